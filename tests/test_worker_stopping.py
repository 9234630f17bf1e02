"""Time limits, cancelling and crashes: every kind of task can be stopped, and takes nobody along."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.workers import Workshop, tell, until
from windlass.handle import Job
from windlass.model.job import Reason, State
from windlass.model.operations import Delete

SHARED = ["co_asleep", "co_deaf", "busy", "asleep", "deaf", "parent", "obedient"]
ALONE = ["alone_asleep", "alone_co_asleep", "alone_deaf", "alone_parent"]
ENDLESS = [*SHARED, *ALONE]

AT_ONCE = {"base": 0.0, "jitter": 0.0}


def survivors(workshop: Workshop) -> list[int]:
    return [pid for pid in map(int, workshop.notes("offspring")) if Path(f"/proc/{pid}").exists()]


def test_a_job_that_runs_too_long_is_stopped_whatever_it_does(workshop: Workshop) -> None:
    limited = [getattr(workshop.chores, name).using(timeout=0.5, max_retry=1, retry=AT_ONCE) for name in ENDLESS]
    workshop.start("-c", "20", "--contexts", "2")
    jobs = [task.enqueue() for task in limited]
    for name, job in zip(ENDLESS, jobs, strict=True):
        record = workshop.ended(job)
        assert (record.state, record.reason, record.attempt) == (State.FAILED, Reason.TIMEOUT, 2), name
        assert record.error is not None
        assert record.error.message == "ran longer than its time limit of 0.5 s"
        assert record.crashes == 0
    assert len(workshop.notes("offspring")) >= 2
    until(lambda: not survivors(workshop))


def test_neighbours_of_a_job_that_cannot_be_stopped_are_given_back_and_complete(workshop: Workshop) -> None:
    chores = workshop.chores
    workshop.start("-c", "8", "--contexts", "1")
    stuck = chores.asleep.using(timeout=0.5).enqueue()
    beside = [task.enqueue(1.2, f"beside{number}") for number, task in enumerate([chores.nap, chores.co_nap])]
    workshop.noted("began")
    workshop.noted("start", 2)
    assert workshop.ended(stuck).reason is Reason.TIMEOUT
    for job in beside:
        record = workshop.ended(job)
        assert (record.state, record.attempt, record.crashes) == (State.SUCCEEDED, 1, 0)
    assert len(workshop.notes("start")) == 4


def test_a_running_job_of_every_kind_is_cancelled(workshop: Workshop) -> None:
    workshop.start("-c", "20", "--contexts", "2")
    took: dict[str, float] = {}
    for name in ENDLESS:
        job = getattr(workshop.chores, name).enqueue()
        workshop.noted("began", len(took) + 1)
        asked_at = time.monotonic()
        assert job.cancel()
        record = workshop.ended(job)
        took[name] = time.monotonic() - asked_at
        assert (record.state, record.reason, record.attempt) == (State.CANCELLED, Reason.CANCELLED, 1), name
        assert record.error is None or record.error.type == "Cancelled", name
    tell({name: round(seconds, 2) for name, seconds in took.items()})
    until(lambda: not survivors(workshop))


def test_a_deleted_running_job_is_stopped_and_gone(workshop: Workshop) -> None:
    workshop.start()
    job = workshop.chores.asleep.enqueue()
    workshop.noted("began")
    assert workshop.app.link.ask(Delete(tenant=workshop.tenant, ids=[job.id])).changed == 1
    until(lambda: "there is no job" in workshop.run("jobs", "show", job.id, "--tenant", workshop.tenant).stderr)


def test_jobs_cancelled_around_their_start_are_cancelled_and_cost_nobody_anything(workshop: Workshop) -> None:
    chores = workshop.chores
    workshop.start("-c", "200", "--contexts", "1")
    beside = chores.nap.enqueue(1.0)
    workshop.noted("start")
    jobs: list[Job[Any]] = []
    for number in range(100):
        task = (chores.asleep, chores.co_asleep)[number % 2] if number % 10 else chores.alone_asleep
        jobs.append(task.enqueue())
        jobs[-1].cancel()
    for job in jobs:
        assert workshop.ended(job).state is State.CANCELLED
    assert workshop.ended(beside).state is State.SUCCEEDED


def test_a_job_cancelled_before_its_context_has_come_to_it_never_begins(workshop: Workshop) -> None:
    chores = workshop.chores
    workshop.start("-c", "8", "--contexts", "1")
    blocking = chores.block.enqueue(0.4)
    workshop.noted("start")
    waiting = chores.co_asleep.enqueue()
    until(lambda: waiting.state is State.RUNNING)
    waiting.cancel()
    assert workshop.ended(waiting).state is State.CANCELLED
    assert workshop.ended(blocking).state is State.SUCCEEDED
    assert not workshop.notes("began")


WAYS = {
    "kill": "SIGKILL",
    "segfault": "SIGSEGV",
    "exit": "exited with 3",
    "abort": "SIGABRT",
    "overflow": "SIG",
}


@pytest.mark.parametrize(
    ("workshop", "kind"),
    [("file", "crash"), ("redis", "crash"), ("file", "co_crash"), ("redis", "alone_crash")],
    indirect=["workshop"],
)
def test_a_job_that_kills_its_process_fails_after_three_runs(workshop: Workshop, kind: str) -> None:
    workshop.start("-c", "20", "--contexts", "1")
    assert workshop.ended(getattr(workshop.chores, kind).enqueue("exit")).attempt == 3
    assert len(workshop.notes("began")) == 3
    beside = workshop.chores.nap.enqueue(1.0, "beside")
    workshop.noted("start")
    jobs = {how: getattr(workshop.chores, kind).enqueue(how) for how in WAYS}
    for how, job in jobs.items():
        record = workshop.ended(job)
        assert (record.state, record.reason, record.crashes) == (State.FAILED, Reason.CRASHED, 3), how
        assert record.error is not None
        assert WAYS[how] in record.error.message
        assert "peak memory" in record.error.message
        assert f"about to die by {how}" in record.error.traceback
    assert workshop.ended(beside).state is State.SUCCEEDED
    if kind == "alone_crash":
        assert len(workshop.notes("began")) == 3 + 3 * len(WAYS)
        assert len(workshop.notes("start")) == 1


def test_a_killed_context_is_a_crash_of_what_ran_in_it(workshop: Workshop) -> None:
    """S4 29: what ran in it is not lost."""
    workshop.start("-c", "4", "--contexts", "1")
    job = workshop.chores.nap.enqueue(1.0, "victim")
    os.kill(int(workshop.noted("start")[0].split()[1]), signal.SIGKILL)
    record = workshop.ended(job)
    assert (record.state, record.attempt, record.crashes) == (State.SUCCEEDED, 2, 1)
