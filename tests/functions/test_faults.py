"""Uploaded functions that crash, hang, talk nonsense or take too much: each costs itself and nobody else."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tests.support.function_harness import (
    LANGUAGES,
    SLACK,
    Bench,
    Heard,
    alive,
    bench,
    family,
    handler,
    jobs,
    let_others_in,
    results,
    there,
    until_gone,
)
from tests.support.patience import PATIENCE
from windlass.model.job import Reason
from windlass.worker.functions.protocol import OutputSplitter, PrintedJobs

EVERY = pytest.mark.parametrize("lang", LANGUAGES)


@pytest.fixture
async def shop() -> AsyncIterator[Bench]:
    async with bench() as found:
        yield found


def in_folder(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


# They die


CRASH = {
    "python": "import os, sys\ndef run(p):\n    if p == 'bad':\n        print('last words', file=sys.stderr)\n"
    "        os.kill(os.getpid(), 11)\n    return p",
    "node": "function run(p) { if (p === 'bad') { console.error('last words'); process.kill(process.pid, 'SIGSEGV'); "
    "for (;;); } return p }",
    "php": "function run($p) { if ($p !== 'bad') return $p; "
    "fwrite(STDERR, 'last words'); posix_kill(getmypid(), 11); }",
    "sh": 'if [ "$(cat)" = bad ]; then echo last words >&2; kill -SEGV $PPID; sleep 5; fi; printf \'"fine"\'',
}


@EVERY
async def test_a_crash_costs_one_job_and_the_rest_of_its_batch_goes_on(shop: Bench, lang: str) -> None:
    heard = await shop.run(handler(lang, CRASH[lang]), b"a", b"bad", b"b", b"bad", b"c")
    assert heard.codes == [200, 500, 200, 500, 200]
    crashed = heard.outcomes["0001"]
    assert (crashed.reason, crashed.unrun) == (Reason.CRASHED, False)
    assert "SIGSEGV" in crashed.message
    assert "last words" in crashed.traceback
    assert heard.pids["0000"] != heard.pids["0002"] != heard.pids["0004"]


async def test_a_function_that_exits_has_crashed(shop: Bench) -> None:
    outcome = await shop.value("python", "import os\ndef run(p):\n    os._exit(0)")
    assert (outcome.code, outcome.reason) == (500, Reason.CRASHED)
    assert outcome.message.startswith("its process exited with 0")


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        print(os.getpid(), flush=True)
        time.sleep(60)
    os._exit(0)
"""
HANGS = {
    "python": f"def run(p):\n    exec({DAEMON!r})\n    import signal, time\n"
    "    signal.signal(15, signal.SIG_IGN)\n    time.sleep(60)",
    "node": "function run(p) { const { spawn } = require('node:child_process'); process.on('SIGTERM', () => {}); "
    f"spawn('/usr/bin/python3', ['-c', {json.dumps(DAEMON)}], {{stdio: 'inherit', detached: true}}); "
    "for (;;) { require('node:fs').existsSync('/x') } }",
    "php": f"function run($p) {{ pcntl_async_signals(true); pcntl_signal(15, function () {{}}); "
    f"proc_close(proc_open(['/usr/bin/python3', '-c', {json.dumps(DAEMON)}], [], $pipes)); while (true) sleep(60); }}",
    "sh": f"trap '' TERM\nexec 1>&2\n/usr/bin/python3 -c '{DAEMON}'\nwhile :; do sleep 60; done",
}


@EVERY
async def test_a_job_that_runs_too_long_ends_with_everything_it_has_started(shop: Bench, lang: str) -> None:
    for slack in SLACK:
        heard, batch = Heard(), jobs(b"", timeout=1.5 * slack)
        running = asyncio.create_task(shop.functions.run(handler(lang, HANGS[lang]), batch, heard))
        if await heard.until("0000", b"\n"):
            break
        await running
    daemon = int(re.findall(rb"\d+", b"".join(heard.output.values()))[0])
    assert alive(daemon)
    await running
    outcome = heard.one
    assert (outcome.code, outcome.reason) == (500, Reason.TIMEOUT)
    assert outcome.message == f"ran longer than its timeout of {1.5 * slack:g} s"
    assert not alive(daemon)


async def test_the_time_of_one_job_is_not_counted_for_the_next(shop: Bench) -> None:
    work = handler("python", "import time\ndef run(p):\n    time.sleep(float(p))")
    for slack in SLACK:
        short = b"%f" % (0.4 * slack)
        heard = await shop.run(work, short, short, short, b"30", short, timeout=0.8 * slack)
        if heard.codes == [200, 200, 200, 500, 200]:
            break
    assert heard.codes == [200, 200, 200, 500, 200]
    assert heard.outcomes["0003"].reason is Reason.TIMEOUT


async def test_nothing_is_left_when_the_worker_is_killed(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    script = f"""
import asyncio
from tests.support.function_harness import Heard, bench, handler, jobs
class Says(Heard):
    def printed(self, id, stream, data):
        print(data.decode(), flush=True)
async def main():
    async with bench(folder={str(tmp_path)!r}) as shop:
        await shop.functions.run(handler("python", {HANGS["python"]!r}), jobs(b"", timeout=None), Says())
asyncio.run(main())
"""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert worker.stdout is not None
    daemon = int(await asyncio.wait_for(worker.stdout.readline(), PATIENCE))
    started = psutil.Process(worker.pid).children(recursive=True)
    assert len(started) >= 2
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    for pid in (daemon, *(process.pid for process in started)):
        await until_gone(f"/proc/{pid}")
    assert len(in_folder(tmp_path)) == 1
    async with bench(folder=str(tmp_path)) as shop:
        heard = await shop.run(handler("python", "import os\ndef run(p):\n    return os.getcwd()"), b"")
        (folder,) = results(heard)
        async with asyncio.timeout(PATIENCE):
            while len(in_folder(tmp_path)) > 1:  # noqa: ASYNC110 - nobody gives a sign
                await asyncio.sleep(0.01)
        assert there(folder)
    assert not in_folder(tmp_path)


async def test_many_contexts_leave_no_zombies_and_no_descriptors(shop: Bench) -> None:
    work = handler("python", "import os\ndef run(p):\n    os.fork() or os._exit(0)", recycle=1)
    await shop.run(work, b"")
    before = descriptors()
    for _ in range(10):
        assert (await shop.run(work, b"")).codes == [200]
    async with asyncio.timeout(PATIENCE):
        while descriptors() > before + 8 or zombies():  # noqa: ASYNC110 - nobody gives a sign
            await asyncio.sleep(0.01)


def zombies() -> list[psutil.Process]:
    return [one for one in family() if is_zombie(one)]


def is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it has been reaped since it was listed
        return False


# They talk nonsense


GARBAGE = [
    b"hello\n", b"\x00\xff\xfe\n", b"done\n", b"done 1 200\n", b"done 1 999 json 1\n", b"done 1 300 json 1\n",
    b"done 7 200 json 1\n", b"done 1 200 json {\n", b"done 1 200 base64 !\n", b"done 1 200 odd 1\n", b"end\n",
    b"done 1 200 error {}\ndone 1 200 json 2\n", b"done 1 -5 json 1\n", b"done 1 500 error [1]\n",
    b"done 1 500 json 1\n", b"done 1 200 json " + b"[" * 100_000 + b"\n", b"done " + b"9" * 9999 + b" 200 json 1\n",
    b"\n" * 1000, b'done 1 200 json "\xff"\n',
]  # fmt: skip


@pytest.mark.parametrize("nonsense", GARBAGE, ids=range(len(GARBAGE)))
async def test_a_context_that_talks_nonsense_is_ended_and_its_job_has_crashed(shop: Bench, nonsense: bytes) -> None:
    body = (
        f"import os, time\ndef run(p):\n    if p == 'bad':\n        os.write(4, {nonsense!r})\n        time.sleep(30)"
    )
    heard = await shop.run(handler("python", body), b"bad", b"good")
    assert heard.outcomes["0000"].code == 500
    assert Reason.CRASHED in {one.reason for one in heard.outcomes.values()}
    assert set(heard.outcomes) == {"0000", "0001"}


async def test_any_bytes_whatever_are_survived(shop: Bench) -> None:
    body = """
import os, random
def run(p):
    chance = random.Random(p)
    words = [b'done ', b'end', b'1 ', b'200 ', b'json ', b'error ', b'{}', b'\\n', b'\\x1e']
    words.append(bytes([chance.randrange(256)]))
    for fd in (1, 2, 4):
        os.write(fd, b''.join(chance.choices(words, k=chance.randrange(300))))
    os._exit(chance.randrange(3))
"""
    heard = await shop.run(handler("python", body), *(str(seed).encode() for seed in range(25)))
    assert len(heard.outcomes) == 25
    assert (await shop.value("python", "def run(p):\n    return 1", task="after")).code == 200


async def test_an_answer_without_end_is_cut_off() -> None:
    async with bench(result=100_000) as shop:
        endless = "import os\ndef run(p):\n    while True:\n        os.write(4, b'x' * 65536)"
        outcome = await shop.value("python", endless)
        assert (outcome.code, outcome.reason) == (500, Reason.OUTPUT)
        large = "def run(n):\n    return 'x' * n"
        assert (await shop.value("python", large, b"99998", task="b")).code == 200
        outcome = await shop.value("python", large, b"99999", task="b")
        assert (outcome.code, outcome.reason) == (500, Reason.OUTPUT)


PRINTS = {
    "python": "def run(p):\n    while True:\n        print('x' * 60000)",
    "node": "function run(p) { for (;;) console.log('x'.repeat(60000)) }",
    "php": "function run($p) { while (true) echo str_repeat('x', 60000); }",
    "sh": "while :; do printf '%060000d\\n' 1 >&2; done",
}


@EVERY
async def test_a_job_that_prints_without_end_is_ended(lang: str) -> None:
    async with bench(output=5_000_000) as shop:
        outcome = (await shop.run(handler(lang, PRINTS[lang]), b"")).one
        assert (outcome.code, outcome.reason) == (500, Reason.OUTPUT)
        assert outcome.message == "printed more than this worker allows"


async def test_output_belongs_to_the_job_that_printed_it(shop: Bench) -> None:
    work = handler("python", "import sys\ndef run(p):\n    print(p)\n    print(p, end='', file=sys.stderr)")
    heard = await shop.run(work, *(b"%d" % number for number in range(200)))
    for number in range(200):
        assert heard.output[f"{number:04}", "stdout"] == b"%d\n" % number
        assert heard.output[f"{number:04}", "stderr"] == b"%d" % number


async def test_a_function_may_close_its_output(shop: Bench) -> None:
    work = handler("python", "import os\ndef run(p):\n    print('J: a|b', flush=True)\n    os.close(1)\n    return p")
    heard = await shop.run(work, b"a", b"b")
    assert heard.codes == [200, 500]
    assert heard.outcomes["0000"].jobs == (("a", "b"),)


EATS = {
    "python": "def run(p):\n    kept = []\n    while True:\n        kept.append(bytearray(1 << 20))",
    "node": "function run(p) { const kept = []; for (;;) kept.push(new Array(1e5).fill(Math.random())) }",
    "php": "function run($p) { $kept = []; while (true) $kept[] = random_bytes(1 << 20); }",
    "sh": "/usr/bin/python3 -c 'x = [bytearray(1 << 20) for _ in range(99999)]'",
}


@EVERY
async def test_a_job_that_takes_too_much_memory_is_ended(shop: Bench, lang: str) -> None:
    heard = await shop.run(handler(lang, EATS[lang], memory=128 << 20), b"")
    assert heard.one.code == 500
    if lang != "sh":  # of whose children's errors nobody tells us more than their status
        assert heard.one.reason is Reason.MEMORY


async def test_memory_is_counted_for_all_processes_of_a_context(shop: Bench) -> None:
    body = """
import os, time
def run(p):
    for _ in range(4):
        if os.fork() == 0:
            kept = bytearray(60 << 20)
            time.sleep(30)
    time.sleep(30)
"""
    outcome = await shop.value("python", body, memory=128 << 20)
    assert (outcome.code, outcome.reason) == (500, Reason.MEMORY)
    assert outcome.message == "took more memory than it is allowed"


# The parts


def test_parts_are_cut_at_marks_however_the_bytes_come() -> None:
    text = b"one\x1e\x1eabtwo\x1eab\n\x1eab\nthree\x1eab\n\x1e"
    for size in range(1, len(text) + 1):
        parts = OutputSplitter(b"\x1eab\n")
        found: dict[int, bytes] = {}
        for at in range(0, len(text), size):
            for place, piece in parts.feed(text[at : at + size]):
                found[place] = found.get(place, b"") + piece
        assert {place: piece for place, piece in found.items() if piece} == {0: b"one\x1e\x1eabtwo", 2: b"three"}
        assert parts.marks == 3


def test_job_lines_are_found_however_the_bytes_come() -> None:
    text = b"a\nJ: x|1\n#J: y|2\nJ no\n #J: z|3\nJ: w|4"
    for size in range(1, len(text) + 1):
        lines = PrintedJobs()
        passed = b"".join(lines.feed(text[at : at + size]) for at in range(0, len(text), size)) + lines.finish()
        assert passed == b"a\nJ no\n #J: z|3\n"
        assert lines.found == [("x", "1"), ("y", "2"), ("w", "4")]


def test_a_job_line_without_end_is_not_kept() -> None:
    lines = PrintedJobs()
    for _ in range(40):
        lines.feed(b"J: x|" + b"y" * 100_000)
    assert lines.excess
