"""A worker's memory does not grow with what waits in the store, nor while some of it comes due.

What is counted is the memory that its processes have for themselves, their shares of what several of them use.
"""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.servers import StartServer
from tests.support.worker_harness import MakeHarness, StoreKind, WorkerHarness, until
from windlass.model.new_job import NewJob
from windlass.model.operations import EnqueueLines, Register, Unregister
from windlass.model.schedule import NewSchedule
from windlass.model.worker import MOST_TASKS, NewWorker

SOURCE = """
import os
from windlass import Windlass

app = Windlass(tenant=os.environ["HARNESS_TENANT"])

@app.task
def later(line: str) -> None: ...

@app.task
def soon(line: str) -> None: ...

@app.every("1s", overlap="queue")
@app.task
def tick() -> None: ...
"""

DAY = 86_400.0
FAR_AWAY = datetime(2100, 1, 1, tzinfo=UTC)

LINES = 100_000
"""Jobs that are added in one request."""

COME_DUE = 1000
TIMES = 3

MOST_GROWTH = 6 << 20
"""Bytes by which all processes of a worker may grow while jobs come due: what an allocator keeps, and caches."""

MOST_FOR_SCHEDULES = 6000
"""Bytes in memory for each schedule: every worker holds all of them."""


def memory(harness: WorkerHarness) -> int:
    """Bytes that all processes of the harness's workers have for themselves."""
    found = 0
    for pid in harness.processes():
        try:
            shares = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it has just ended
        share = re.search(r"Pss_Anon:\s+(\d+) kB", shares)
        assert share is not None
        found += int(share[1]) << 10
    return found


def add(harness: WorkerHarness, task: str, jobs: int, delay: float) -> None:
    for start in range(0, jobs, LINES):
        text = "\n".join(map(str, range(start, min(jobs, start + LINES))))
        harness.app.ask(EnqueueLines(task=task, text=text, delay=delay))


def fill(harness: WorkerHarness, jobs: int, schedules: int) -> None:
    """So many jobs and schedules, of which none is due today."""
    add(harness, "later", jobs, DAY)
    for start in range(0, schedules, MOST_TASKS):
        numbers = range(start, min(schedules, start + MOST_TASKS))
        new = NewSchedule(every=DAY, start=FAR_AWAY, job=NewJob(task="later"), exact=True)
        declared = {f"schedule-{number}": new for number in numbers}
        worker = NewWorker(name="other", queues=["other"], app=f"other{start}:app", schedules=declared)
        found = harness.app.ask(Register(worker=worker)).worker
        harness.app.ask(Unregister(worker=found))


def come_due(harness: WorkerHarness) -> int:
    """Jobs come due and run; the most memory that the worker had meanwhile."""
    most, ended = 0, harness.app.jobs(state="succeeded", task="soon")
    wanted = ended.count() + COME_DUE
    add(harness, "soon", COME_DUE, 1.0)

    def all_ended() -> bool:
        nonlocal most
        most = max(most, memory(harness))
        return ended.count() == wanted

    until(all_ended)
    return most


@pytest.mark.parametrize(("jobs", "schedules"), [pytest.param(1_000_000, 10_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["file", "redis"])
@pytest.mark.timeout(600)
def test_a_workers_memory_is_flat_over_a_large_backlog(
    make_harness: MakeHarness, start_server: StartServer, kind: StoreKind, jobs: int, schedules: int
) -> None:
    def new_harness() -> WorkerHarness:
        return make_harness(SOURCE, store="" if kind == "file" else start_server("redis").url)

    def steady(harness: WorkerHarness) -> int:
        """The memory of a worker that has run for a while."""
        harness.start("-c", "8")
        come_due(harness)
        come_due(harness)
        return memory(harness)

    empty = new_harness()
    without = steady(empty)
    empty.workers[0].stop()
    full = new_harness()
    fill(full, jobs, schedules)
    before = steady(full)
    most = max(come_due(full) for _ in range(TIMES))
    after = memory(full)
    assert len(full.app.schedules.all()) == schedules + 1
    assert full.app.jobs(state="scheduled").count() == jobs
    print(f"{kind}: {without >> 20} MiB over nothing, then {before >> 20}, {most >> 20}, {after >> 20} MiB")  # noqa: T201
    assert max(most, after) <= before + MOST_GROWTH
    assert before <= without + MOST_GROWTH + schedules * MOST_FOR_SCHEDULES
