"""What a file has on disk, and when: the system is watched while a process of its own goes through a job's life."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.faulty_disk import disk_of
from tests.support.worker_harness import TASKS, MakeHarness
from windlass.model.errors import Full
from windlass.model.job import State
from windlass.store.sqlite import SqliteStore
from windlass.system import SystemClock

pytestmark = pytest.mark.timeout(120)

LIFE = """
import asyncio, os, sys
from tests.support.engines import enqueue, finish, register, take
from windlass.engine import Engine
from windlass.model.names import key_of
from windlass.store.encoding import end_topic
from windlass.model.errors import Unavailable
from windlass.model.operations import Began, Begin, ChangeQueue
from windlass.model.queue import QueueChange
from windlass.store.sqlite import SqliteStore
from windlass.system import SystemRandomness, SystemClock

def mark(what):
    os.write(1, f"MARK {what}\\n".encode())

async def life(engine, listening):
    worker = await register(engine)
    async with listening.events.listen(["work/default"]):
        mark("listening")
        job = await enqueue(engine)
        mark("added")
    claimed = await take(engine, worker)
    mark("claimed")
    await engine(Begin(worker=worker, jobs=[Began(id=job.id, token=claimed.token, pid=1)]))
    mark("begun")
    async with listening.events.listen([end_topic(key_of(job))]):
        await finish(engine, worker, claimed)
        mark("finished")
    await engine(ChangeQueue(queue="default", change=QueueChange(on_lost="fail")))
    await enqueue(engine)
    mark("added again")
    await take(engine, worker)
    mark("claimed for once")

life_inline = life

async def faults(engine, listening):
    for number in range(5):
        try:
            job = await enqueue(engine)
        except Unavailable:
            mark("fault")
        else:
            mark(f"added {job.id}")

async def main(path, what):
    store = SqliteStore.open(path, SystemClock(), blocking=what == "life_inline")
    other = SqliteStore.open(path, SystemClock())
    await globals()[what](Engine(store, SystemRandomness()), other)
    if what == "faults":
        os._exit(0)  # without a checkpoint
    await store.close()
    await other.close()

asyncio.run(main(*sys.argv[1:]))
"""

Watch = Callable[..., list[str]]


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """Let a process go through a part of `LIFE`; returns the system calls that matter."""
    tool = shutil.which("strace")
    if tool is None:
        pytest.fail("strace is missing; it comes with: ./dev test, or: apt-get install strace", pytrace=False)

    def watched(what: str, *more: str) -> list[str]:
        log = tmp_path / "trace"
        calls = "trace=write,pwrite64,fdatasync,ftruncate"
        command = [tool, "-f", "-y", "-s", "60", "-e", calls, *more, "-o", str(log)]
        life = [sys.executable, "-c", LIFE, str(tmp_path / "jobs.db"), what]
        subprocess.run([*command, *life], check=True, capture_output=True, timeout=60)
        return [step for line in log.read_text(errors="replace").splitlines() if (step := _step(line))]

    return watched


def _step(line: str) -> str | None:
    """What a line of the trace shows; a call that another thread has interrupted counts when it ends."""
    if marked := re.search(r'"MARK (.+?)\\n"', line):
        return marked[1]
    if re.search(r"fdatasync\(\d+<[^>]*jobs\.db-wal>\)\s+= 0|fdatasync resumed>\)\s+= 0", line):
        return "sync"
    if re.search(r"fdatasync.*= -1", line):
        return "no sync"
    if re.search(r"pwrite64\(\d+<[^>]*jobs\.db-wal>", line):
        return "write"
    if re.search(r"ftruncate\(\d+<[^>]*jobs\.db-wal>, 0", line):
        return "cut"
    sent = re.search(r"write\(\d+<[^>]*jobs\.db-wake/\.?(work|end)-", line)
    return f"wake {sent[1]}" if sent else None


def _before(steps: list[str], mark: str) -> list[str]:
    """What came before a mark, since the last one; writes in a row count as one."""
    since = steps[: steps.index(mark)]
    known = ("write", "sync", "wake work", "wake end")
    start = max((place for place, step in enumerate(since) if step not in known), default=-1)
    own = since[start + 1 :]
    return [step for place, step in enumerate(own) if step != "write" or own[place - 1 : place] != ["write"]]


@pytest.mark.parametrize("life", ["life", "life_inline"])
def test_what_was_accepted_or_reported_is_on_disk_before_it_is_answered(watch: Watch, life: str) -> None:
    steps = watch(life)
    assert _before(steps, "added") == ["write", "wake work", "sync"], "others may begin while the disk is waited for"
    assert _before(steps, "claimed") == ["write"], "a power cut may take it back"
    assert _before(steps, "begun") == ["write", "sync"]
    assert _before(steps, "finished") == ["write", "sync", "wake end"], "no reader sees an end that may be undone"


@pytest.mark.parametrize("life", ["life", "life_inline"])
def test_a_job_that_shall_not_run_twice_is_begun_when_that_is_on_disk(watch: Watch, life: str) -> None:
    steps = watch(life)
    assert _before(steps, "added again")[-1] == "sync"
    assert _before(steps, "claimed for once") == ["write", "sync"]


async def test_after_a_failed_sync_nothing_is_accepted_that_rests_on_it(watch: Watch, tmp_path: Path) -> None:
    await SqliteStore.open(tmp_path / "jobs.db", SystemClock()).close()
    steps = watch("faults", "-e", "inject=fdatasync:error=EIO:when=3")  # the third of each thread
    fault = steps.index("fault")
    assert "no sync" in steps[:fault]
    following = next(place for place, step in enumerate(steps) if place > fault and step.startswith("added"))
    assert "cut" in steps[fault:following], "the log is truncated, before the next answer"
    assert sum(step.startswith("added") for step in steps) == 4


def _fill(disk: Path) -> None:
    """Take all the room that is left, to the last block."""
    with (disk / "more ballast").open("ab", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            return


LARGE = """
@app.task
def large() -> str:
    return "x" * 40_000
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of(tmp_path / "disk", 16) as place:
        yield place


def test_on_a_full_disk_a_live_worker_keeps_its_jobs_and_reports_them(disk: Path, make_harness: MakeHarness) -> None:
    lease = 2.0
    harness = make_harness(TASKS.read_text() + LARGE, store=str(disk / "jobs.db"))
    worker = harness.start("-c", "4", "--contexts", "2", lease=f"{lease}s")
    tasks = harness.tasks
    early, *jobs = [tasks.stay.enqueue(word) for word in ("early", "one", "two")]
    followers = [tasks.large.using(after=[early]).enqueue() for _ in range(12)]
    harness.noted("start", 3)
    _fill(disk)
    with pytest.raises(Full):
        tasks.nap.map([(0.0, "x" * 100_000)] * 50)
    _fill(disk)  # nor do other programs leave anything of what the store has given up
    (harness.folder / "let go early").touch()
    for job in (early, *followers):
        ended = harness.ended(job)
        assert (ended.state, ended.attempt) == (State.SUCCEEDED, 1), "its end is written into the reserve"
    time.sleep(3 * lease)
    assert {job.refresh().state for job in jobs} == {State.RUNNING}
    (disk / "more ballast").unlink()
    assert tasks.add.enqueue(1, 2).result(60) == 3
    time.sleep(2 * lease)  # for reclaiming, if anything is taken for lost
    (harness.folder / "let go").touch()
    assert [harness.ended(job).attempt for job in jobs] == [1, 1]
    assert sorted(line.split()[0] for line in harness.notes("start")) == ["early", "one", "two"]
    assert worker.stop() == 0
