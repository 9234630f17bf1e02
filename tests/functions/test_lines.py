"""Lines in and out of uploaded functions: what a script finds on stdin, what it prints, how much of it is kept."""

from typing import Any

import pytest

from tests.support.function_harness import LANGUAGES, bench, handler
from windlass.model.job import JSON, Job, State
from windlass.model.output import MOST_OUTPUT, OutputPolicy
from windlass.model.wire import MOST_PAYLOAD
from windlass.worker.functions.protocol import BYTES
from windlass.worker.runs import ActiveRun


async def test_a_shell_loop_reads_each_line_of_a_payload() -> None:
    """S3-28: `while read` does nothing with a last line that has no end."""
    loop = handler("sh", 'while read -r line; do echo "got $line"; done')
    async with bench() as shop:
        heard = await shop.run(loop, b"one", b"two\nlines", b"")
        assert [one.result for one in heard.outcomes.values()] == [b"got one\n", b"got two\ngot lines\n", b""]
        value = await shop.run(loop, b'{"a": 1}', content_type=JSON)
        assert value.one.result == b'got {"a": 1}\n'
        bare = await shop.run(handler("sh", "od -An -tx1"), b"\xff\x00", content_type=BYTES)
        assert (bare.one.result or b"").split() == [b"ff", b"00"], "bytes are given as they are"


READS = """
import sys
for line in sys.stdin:
    print("got", line.strip(), flush=True)
    print("J: next|" + line.strip())
print("aside", file=sys.stderr)
"""


async def test_python_that_defines_no_run_reads_its_lines_from_stdin_and_prints_its_result() -> None:
    """S3-28: as a shell script does, once for each job, with what `before` has made."""
    async with bench() as shop:
        heard = await shop.run(handler("python", READS), b"one", b"two\nlines")
        first, second = heard.outcomes.values()
        assert (first.code, first.result, first.content_type) == (200, b"got one\n", "text/plain")
        assert second.result == b"got two\ngot lines\n"
        assert (first.jobs, len(second.jobs)) == ((("next", "one"),), 2)
        assert heard.output["0000", "stderr"] == b"aside\n"
        counts = "import os\ncount += 1\nprint(count, input())\nos.system('echo deeper')"
        with_before = await shop.run(handler("python", counts, before="count = 7"), b"a", b"b")
        assert [one.result for one in with_before.outcomes.values()] == [b"8 a\ndeeper\n", b"8 b\ndeeper\n"]


@pytest.mark.parametrize(
    ("body", "code", "kind"),
    [
        ("import sys\nprint('x')\nsys.exit(0)", 200, ""),
        ("import sys\nsys.exit(3)", 500, "SystemExit"),
        ("import sys\nsys.exit(75)", 100, "SystemExit"),
        ("import sys\nsys.exit(70)", 470, "SystemExit"),
        ("import sys\nsys.exit('broken')", 500, "SystemExit"),
        ("raise Retry('later')", 100, "Retry"),
        ("raise Fail('no', code=422)", 422, "Fail"),
        ("1 / 0", 500, "ZeroDivisionError"),
        ("this is (no", 500, "SyntaxError"),
    ],
)
async def test_how_python_without_run_ends(body: str, code: int, kind: str) -> None:
    async with bench() as shop:
        outcome = await shop.value("python", body)
        assert (outcome.code, outcome.type) == (code, kind)


async def test_run_that_is_defined_in_a_roundabout_way_is_called() -> None:
    async with bench() as shop:
        heard = await shop.run(handler("python", 'exec("def " + "r" + "un(p): return [p]")'), b"a", b"b")
        assert [one.result for one in heard.outcomes.values()] == [b'["a"]', b'["b"]']


PRINTS_JOB = {
    "python": "def run(p):\n    print('J: next|' + 'x' * int(p))",
    "node": "function run(p) { console.log('J: next|' + 'x'.repeat(+p)) }",
    "php": "function run($p) { echo 'J: next|' . str_repeat('x', (int)$p) . \"\\n\"; }",
    "sh": 'read n; printf "J: next|"; head -c "$n" /dev/zero | tr "\\0" x; echo',
}


@pytest.mark.parametrize("lang", LANGUAGES)
async def test_a_new_job_may_be_as_large_as_a_payload_and_a_larger_one_is_refused(lang: str) -> None:
    async with bench() as shop:
        heard = await shop.run(
            handler(lang, PRINTS_JOB[lang]), b"%d" % MOST_PAYLOAD, b"%d" % (MOST_PAYLOAD + 1), b"3000000"
        )
        fits, over, far = heard.outcomes.values()
        assert (fits.code, [len(payload) for _, payload in fits.jobs]) == (200, [MOST_PAYLOAD])
        for one in (over, far):
            assert (one.code, one.type) == (500, "Output")
            assert one.message == f"a new job that it printed has a payload of more than {MOST_PAYLOAD} bytes"


def test_of_one_long_line_as_much_is_kept_as_of_many() -> None:
    """The last piece of it, be it one byte, must not push out the large one before it."""
    about: dict[str, Any] = {"state": State.RUNNING, "created_at": 0, "updated_at": 0}
    job = Job(id="x", tenant="t", task="w", output=OutputPolicy(limit=None), **about)
    held = ActiveRun(1, job, "t", 0.0, None)  # type: ignore[arg-type] # no runner
    line = bytes(range(256)) * 4096 * 10
    for start in range(0, len(line), 100_000):
        held.print("stdout", line[start : start + 100_000])
    held.print("stdout", b"\n")
    kept = b"".join(chunk.data for update in held.take_updates() for chunk in update.output)
    assert kept == (line + b"\n")[-MOST_OUTPUT:]
    held.print("stdout", line[: MOST_OUTPUT + 300_000])
    held.print("stderr", b"!")
    (update,) = held.take_updates()
    told = update.output
    assert sum(len(chunk.data) for chunk in told) == MOST_OUTPUT
    assert (told[-1].stream, bytes(told[-1].data)) == ("stderr", b"!")
