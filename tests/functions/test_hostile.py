"""Functions that run amok: whatever they write, close, leave behind or kill, each job has one end and nobody waits."""

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.function_harness import (
    LANGUAGES,
    Bench,
    Heard,
    bench,
    family,
    handler,
    jobs,
    note_who_is_there,
    results,
)
from tests.support.hostile_functions import RUNS, misdeed
from tests.support.patience import PATIENCE
from windlass.model.job import JSON, Reason
from windlass.model.names import is_name
from windlass.worker.functions import FunctionOptions, FunctionOutcome
from windlass.worker.functions.context import FunctionContext
from windlass.worker.functions.process import ProcessOutput
from windlass.worker.functions.protocol import MOST_JOBS

EVERY = pytest.mark.parametrize("lang", LANGUAGES)

SMALL: dict[str, Any] = {"output": 300_000, "result": 100_000, "grace": 0.1}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    note_who_is_there()
    yield
    assert not [one for one in family() if one.is_running()]


def check(outcome: FunctionOutcome) -> None:
    """What the queue may be told, whoever says it."""
    assert outcome.code // 100 in {1, 2, 4, 5}
    assert not outcome.unrun
    assert len(outcome.result or b"") <= SMALL["result"]
    assert len(outcome.jobs) <= MOST_JOBS
    assert outcome.code // 100 == 2 or not (outcome.jobs or outcome.result)
    assert {task for task, _ in outcome.jobs} <= {"made"}
    assert all(is_name(task) for task, _ in outcome.jobs)
    if outcome.content_type == JSON and outcome.result is not None:
        json.loads(outcome.result)


async def misbehave(lang: str, seed: int, number: int) -> None:
    chance = random.Random(f"{lang} {seed}")
    payloads = [misdeed(lang, chance) for _ in range(number)]
    async with bench(**SMALL) as shop:
        heard = Heard()
        work, batch = handler(lang, RUNS[lang], batch=5), jobs(*payloads, timeout=5.0)
        async with asyncio.timeout(60 + 6 * number):
            for start in range(0, number, 5):
                await shop.functions.run(work, batch[start : start + 5], heard)
        assert len(heard.outcomes) == number
        for outcome in heard.outcomes.values():
            check(outcome)
        assert (await shop.run(handler(lang, RUNS[lang], task="after"), b"")).codes == [200]


@EVERY
async def test_whatever_functions_do_each_job_has_one_end(lang: str) -> None:
    await misbehave(lang, 1, 25)


@pytest.mark.long
@pytest.mark.timeout(1800)
@EVERY
@pytest.mark.parametrize("seed", range(2, 12))
async def test_whatever_functions_do_each_job_has_one_end_at_length(lang: str, seed: int) -> None:
    await misbehave(lang, seed, 150)


# What was found this way


DEAF = ["os.dup2(os.pipe()[0], 3)", "#" * 300_000]
DUMB = ["os.dup2(os.open('/dev/null', os.O_WRONLY), 4)", ""]


@pytest.mark.parametrize("deeds", [DEAF, DUMB], ids=["deaf", "dumb"])
async def test_a_context_that_turns_its_wires_elsewhere_is_not_waited_for(deeds: list[str]) -> None:
    async with bench() as shop:
        heard = await shop.run(handler("python", RUNS["python"]), *(deed.encode() for deed in deeds), timeout=None)
        crashed = [one for one in heard.outcomes.values() if one.reason is Reason.CRASHED]
        assert [one.message for one in crashed] == ["its process has closed descriptor 3 or 4"]
        assert (await shop.run(handler("python", RUNS["python"], task="after"), b"")).codes == [200]


class Spring:
    """A process that has always printed more by the time we look again."""

    pid, full, pulled = 1, 1000, 0

    def __init__(self, context: FunctionContext) -> None:
        self.context = context

    def send(self, orders: bytes) -> None: ...

    def unread(self, _: ProcessOutput) -> int:
        return self.full

    def pull(self, output: ProcessOutput) -> int:
        self.pulled += 100
        assert self.pulled <= 10 * self.full, "it is read for ever"
        self.context.received(output, b"x" * 100)
        return 100


async def test_a_function_that_prints_faster_than_we_read_delays_no_other() -> None:
    """It says that its job and its batch are over, without a mark, and prints all the while."""
    context, heard = FunctionContext(FunctionOptions(), "nonce", "", None), Heard()
    spring = Spring(context)
    context.process = spring  # type: ignore[assignment]
    running = asyncio.create_task(context.run(handler("python", ""), jobs(b"x"), heard))
    await asyncio.sleep(0)
    context.received("answers", b"done 1 200 json 1\nend\n")
    assert await running == []
    assert heard.codes == [200]
    assert spring.pulled == 4 * spring.full, "what was there at each of two answers, of two outputs"


FLOOD = "for _ in range(3): subprocess.Popen(['/bin/dd', 'if=/dev/zero', 'bs=64k'], stderr=subprocess.DEVNULL)\n"
AHEAD = "os.write(1, sys._getframe(2).f_locals['self'].mark * 200)\n"
STAYS = "import time; time.sleep(30)"


@pytest.mark.parametrize("deed", [FLOOD, AHEAD + FLOOD + STAYS], ids=["idle", "behind marks of its own making"])
async def test_what_is_printed_for_no_job_is_bounded_too(deed: str) -> None:
    async with bench(output=5_000_000) as shop:
        heard = await shop.run(handler("python", RUNS["python"]), deed.encode(), timeout=None)
        assert heard.one.reason is (Reason.OUTPUT if STAYS in deed else None)
        async with asyncio.timeout(PATIENCE):
            while any(one.name() == "dd" for one in family()):  # noqa: ASYNC110 - nobody gives a sign
                await asyncio.sleep(0.01)


async def test_a_large_answer_is_whole_though_signals_come_in_between() -> None:
    ringing = "import signal\nsignal.signal(14, lambda *_: None)\nsignal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)"
    async with bench() as shop:
        work = handler("python", "def run(p):\n    return 'x' * 3_000_000", before=ringing)
        assert [len(one) for one in results(await shop.run(work, b"", b""))] == [3_000_000] * 2


HALF_A_CHARACTER = {
    "python": ("raise ValueError('a\\udcff')", "a?"),
    "node": ("throw new Error('a\\ud800')", "a\ufffd"),
    "php": ('throw new Exception("a\\xff");', "a\ufffd"),
}


async def test_an_error_of_python_that_cannot_be_put_into_words_is_reported() -> None:
    source = "class Wordless(Exception):\n    def __str__(self): raise SystemExit\n\ndef run(p):\n    raise Wordless"
    async with bench() as shop:
        outcome = (await shop.run(handler("python", source), b"")).one
        assert (outcome.code, outcome.reason) == (500, None)
        assert outcome.message == "it cannot be put into words: that raised SystemExit"


@pytest.mark.parametrize("lang", HALF_A_CHARACTER)
async def test_an_error_with_half_a_character_in_it_is_reported(lang: str) -> None:
    source, message = HALF_A_CHARACTER[lang]
    async with bench() as shop:
        outcome = (await shop.run(handler(lang, RUNS[lang]), source.encode())).one
        assert (outcome.code, outcome.reason, outcome.message) == (500, None, message)


@pytest.mark.parametrize(
    ("result", "code"), [("'\\ud800'", 500), ("['\\\\', '\\udfff']", 500), ("'\\\\ud800'", 200), ("'\\u{1f600}'", 200)]
)
async def test_a_result_of_node_with_half_a_character_in_it_is_an_error(result: str, code: int) -> None:
    async with bench() as shop:
        heard = await shop.run(handler("node", f"function run(p) {{ return {result} }}"), b"", b"")
        assert heard.codes == [code, code]
        assert len(set(heard.pids.values())) == 1, "it has cost no context"


async def test_a_php_buffer_that_cannot_be_ended_is_let_be() -> None:
    async with bench(output=100_000) as shop:
        heard = await shop.run(handler("php", RUNS["php"]), b"ob_start(null, 0, 0); echo 'x';", b"", b"")
        assert heard.codes == [200, 200, 200]


async def test_batches_side_by_side_are_not_disturbed() -> None:
    """Those of another tenant, and of another handler of the same one."""
    chance = random.Random(3)

    async def honest(shop: Bench, tenant: str) -> list[str]:
        work = handler("python", "def run(p):\n    return p", task="honest", tenant=tenant)
        return [one for _ in range(20) for one in results(await shop.run(work, *[b"x"] * 20))]

    async with bench(**SMALL) as shop, asyncio.TaskGroup() as group:
        wild = [misdeed("python", chance) for _ in range(20)]
        others = [group.create_task(honest(shop, tenant)) for tenant in ("acme", "other")]
        heard = await shop.run(handler("python", RUNS["python"]), *wild, timeout=5.0)
        assert len(heard.outcomes) == 20
        for one in others:
            assert await one == ["x"] * 400
