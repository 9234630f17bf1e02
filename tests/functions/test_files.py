"""Files of handlers' jobs: what comes with a job lies in `files`, what it leaves in `out` is kept, and nothing else."""

from tests.support.function_harness import Heard, bench, handler, jobs
from windlass.model.handler import Handler
from windlass.worker.functions import FunctionJob, FunctionOutcome

PYTHON = """
import os
def run(p):
    for name in sorted(os.listdir('files')):
        open('out/' + name + '2', 'wb').write(open('files/' + name, 'rb').read() * 2)
    return sorted(os.listdir('files'))
"""

SHELL = """
cat >/dev/null
for name in files/*; do [ -e "$name" ] && cat "$name" "$name" > "out/$(basename $name)2"; done
printf '"fine"'
"""

HOSTILE = """
import os
def run(p):
    os.symlink('/etc/passwd', 'out/link')
    os.mkfifo('out/pipe')
    os.mkdir('out/folder')
    open('out/own', 'w').write('own')
    os.symlink('own', 'out/alias')
    try:
        os.link('/etc/hostname', 'out/hard')
    except OSError:
        pass
    if p == 'swap':
        os.rename('out', 'kept')
        os.symlink('/etc', 'out')
        os.rename('files', 'was')
        os.symlink('/etc', 'files')
    return 'fine'
"""

MANY = """
def run(p):
    for at in range(40):
        open(f'out/{at}', 'w').write('x')
"""


async def run(code: Handler, given: list[FunctionJob], tier: str = "confined") -> list[FunctionOutcome]:
    heard = Heard()
    async with bench(tier=tier) as found:
        await found.functions.run(code, given, heard)
    return [outcome for _, outcome in sorted(heard.outcomes.items())]


def with_files(*each: dict[str, bytes]) -> list[FunctionJob]:
    return [
        FunctionJob(id=job.id, tenant=job.tenant, payload=job.payload, content_type=job.content_type, files=files)
        for job, files in zip(jobs(*[b"x"] * len(each)), each, strict=True)
    ]


async def test_each_job_of_a_batch_has_its_own_files_and_leaves_its_own() -> None:
    given: list[dict[str, bytes]] = [{"a": b"1"}, {"b": b"22", "c": b""}, {"a": b"3"}]
    for code in (handler("python", PYTHON), handler("sh", SHELL)):
        outcomes = await run(code, with_files(*given))
        assert [outcome.code for outcome in outcomes] == [200, 200, 200], outcomes
        assert [outcome.files for outcome in outcomes] == [{"a2": b"11"}, {"b2": b"2222", "c2": b""}, {"a2": b"33"}]


async def test_a_handler_whose_jobs_leave_files_says_so() -> None:
    (outcome,) = await run(handler("sh", "cat >out/copy; printf 1", files=True), jobs(b"said"))
    assert outcome.files == {"copy": b"said\n"}


async def test_what_is_not_a_plain_file_of_the_job_is_not_kept() -> None:
    outcomes = await run(handler("python", HOSTILE, files=True), jobs(b"stay", b"swap", b"stay"), "limits")
    assert [outcome.code for outcome in outcomes] == [200, 200, 200], outcomes
    assert [outcome.files for outcome in outcomes] == [{"own": b"own"}, {}, {"own": b"own"}]


async def test_more_files_than_are_kept_fail_the_job() -> None:
    (outcome,) = await run(handler("python", MANY, files=True), jobs(b""))
    assert (outcome.code, outcome.type) == (400, "Files")
    assert "at most 32" in outcome.message
