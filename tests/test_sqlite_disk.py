"""What a file has on disk, and when: the system is watched while a process of its own goes through a job's life."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.store.sqlite import SqliteStore
from windlass.system import SystemClock

pytestmark = pytest.mark.timeout(120)

LIFE = """
import asyncio, os, sys
from tests.engines import enqueue, finish, register, take
from windlass.engine import Engine
from windlass.model.names import key_of
from windlass.store import end_topic
from windlass.model.errors import Unavailable
from windlass.model.operations import Began, Begin, ChangeQueue
from windlass.model.queue import QueueChange
from windlass.store.sqlite import SqliteStore
from windlass.system import SystemChance, SystemClock

def say(what):
    os.write(1, f"SAID {what}\\n".encode())

async def life(engine, listening):
    worker = await register(engine)
    async with listening.listen(["work/default"]):
        say("listening")
        job = await enqueue(engine)
        say("added")
    claimed = await take(engine, worker)
    say("claimed")
    await engine(Begin(worker=worker, jobs=[Began(id=job.id, token=claimed.token, pid=1)]))
    say("begun")
    async with listening.listen([end_topic(key_of(job))]):
        await finish(engine, worker, claimed)
        say("finished")
    await engine(ChangeQueue(queue="default", change=QueueChange(on_lost="fail")))
    await enqueue(engine)
    say("added again")
    await take(engine, worker)
    say("claimed for once")

async def faults(engine, listening):
    for number in range(5):
        try:
            job = await enqueue(engine)
        except Unavailable:
            say("fault")
        else:
            say(f"added {job.id}")

async def main(path, what):
    store, other = SqliteStore.open(path, SystemClock()), SqliteStore.open(path, SystemClock())
    await globals()[what](Engine(store, SystemChance()), other)
    if what == "faults":
        os._exit(0)  # nobody writes the log back
    await store.close()
    await other.close()

asyncio.run(main(*sys.argv[1:]))
"""

Watch = Callable[..., list[str]]


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """Let a process go through a part of `LIFE`; what the system saw of it."""
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
    """What a line of the trace tells; a call that another thread has interrupted counts when it ends."""
    if said := re.search(r'"SAID (.+?)\\n"', line):
        return said[1]
    if re.search(r"fdatasync\(\d+<[^>]*jobs\.db-wal>\)\s+= 0|fdatasync resumed>\)\s+= 0", line):
        return "sync"
    if re.search(r"fdatasync.*= -1", line):
        return "no sync"
    if re.search(r"pwrite64\(\d+<[^>]*jobs\.db-wal>", line):
        return "write"
    if re.search(r"ftruncate\(\d+<[^>]*jobs\.db-wal>, 0", line):
        return "cut"
    told = re.search(r"write\(\d+<[^>]*jobs\.db-wake/\.?(work|end)-", line)
    return f"tell {told[1]}" if told else None


def _before(steps: list[str], said: str) -> list[str]:
    """What came before something was said, since the last that was; writes in a row count as one."""
    since = steps[: steps.index(said)]
    known = ("write", "sync", "tell work", "tell end")
    start = max((place for place, step in enumerate(since) if step not in known), default=-1)
    own = since[start + 1 :]
    return [step for place, step in enumerate(own) if step != "write" or own[place - 1 : place] != ["write"]]


def test_what_was_accepted_or_reported_is_on_disk_before_it_is_answered(watch: Watch) -> None:
    steps = watch("life")
    assert _before(steps, "added") == ["write", "tell work", "sync"], "others may begin while the disk is waited for"
    assert _before(steps, "claimed") == ["write"], "a power cut may take it back"
    assert _before(steps, "begun") == ["write", "sync"]
    assert _before(steps, "finished") == ["write", "sync", "tell end"], "nobody sees an end that may be undone"


def test_a_job_that_shall_not_run_twice_is_begun_when_that_is_on_disk(watch: Watch) -> None:
    steps = watch("life")
    assert _before(steps, "added again")[-1] == "sync"
    assert _before(steps, "claimed for once") == ["write", "sync"]


async def test_after_a_failed_sync_nothing_is_accepted_that_rests_on_it(watch: Watch, tmp_path: Path) -> None:
    await SqliteStore.open(tmp_path / "jobs.db", SystemClock()).close()
    steps = watch("faults", "-e", "inject=fdatasync:error=EIO:when=3")  # the third of each thread
    fault = steps.index("fault")
    assert "no sync" in steps[:fault]
    following = next(place for place, step in enumerate(steps) if place > fault and step.startswith("added"))
    assert "cut" in steps[fault:following], "the log is begun anew, ahead of the next answer"
    assert sum(step.startswith("added") for step in steps) == 4
