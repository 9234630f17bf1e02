"""Time limits, cancelling and crashes: every kind of task can be stopped, and takes nobody along."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.worker_harness import WorkerHarness, tell, until
from windlass.job_handle import Job
from windlass.model.job import Reason, State
from windlass.model.operations import Delete

SHARED = ["co_asleep", "co_deaf", "busy", "asleep", "deaf", "parent", "obedient"]
ALONE = ["alone_asleep", "alone_co_asleep", "alone_deaf", "alone_parent"]
ENDLESS = [*SHARED, *ALONE]

AT_ONCE = {"base": 0.0, "jitter": 0.0}


def survivors(harness: WorkerHarness) -> list[int]:
    return [pid for pid in map(int, harness.notes("offspring")) if Path(f"/proc/{pid}").exists()]


def test_a_job_that_runs_too_long_is_stopped_whatever_it_does(harness: WorkerHarness) -> None:
    limited = [getattr(harness.tasks, name).using(timeout=0.5, max_retry=1, retry=AT_ONCE) for name in ENDLESS]
    harness.start("-c", "20", "--contexts", "2")
    jobs = [task.enqueue() for task in limited]
    for name, job in zip(ENDLESS, jobs, strict=True):
        record = harness.ended(job)
        assert (record.state, record.reason, record.attempt) == (State.FAILED, Reason.TIMEOUT, 2), name
        assert record.error is not None
        assert record.error.message == "ran longer than its time limit of 0.5 s"
        assert record.crashes == 0
    assert len(harness.notes("offspring")) >= 2
    until(lambda: not survivors(harness))


def test_neighbours_of_a_job_that_cannot_be_stopped_are_given_back_and_complete(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    harness.start("-c", "8", "--contexts", "1")
    beside = [tasks.stay.enqueue("beside"), tasks.co_stay.enqueue("beside too")]
    harness.noted("start", 2)
    stuck = tasks.asleep.using(timeout=0.5).enqueue()
    assert harness.ended(stuck).reason is Reason.TIMEOUT
    harness.noted("start", 4)
    let_go(harness)
    for job in beside:
        record = harness.ended(job)
        assert (record.state, record.attempt, record.crashes) == (State.SUCCEEDED, 1, 0)
    assert len(harness.notes("start")) == 4


def let_go(harness: WorkerHarness) -> None:
    (harness.folder / "let go").touch()


def test_a_running_job_of_every_kind_is_cancelled(harness: WorkerHarness) -> None:
    harness.start("-c", "20", "--contexts", "2")
    took: dict[str, float] = {}
    for name in ENDLESS:
        job = getattr(harness.tasks, name).enqueue()
        harness.noted("began", len(took) + 1)
        asked_at = time.monotonic()
        assert job.cancel()
        record = harness.ended(job)
        took[name] = time.monotonic() - asked_at
        assert (record.state, record.reason, record.attempt) == (State.CANCELLED, Reason.CANCELLED, 1), name
        assert record.error is None or record.error.type == "Cancelled", name
        assert {entry.reason for entry in record.errors} <= {Reason.CANCELLED}, name
    tell({name: round(seconds, 2) for name, seconds in took.items()})
    until(lambda: not survivors(harness))


def test_a_deleted_running_job_is_stopped_and_gone(harness: WorkerHarness) -> None:
    harness.start()
    job = harness.tasks.asleep.enqueue()
    harness.noted("began")
    assert harness.app.link.ask(Delete(tenant=harness.tenant, ids=[job.id])).changed == 1
    until(lambda: "there is no job" in harness.run("jobs", "show", job.id, "--tenant", harness.tenant).stderr)


def test_jobs_cancelled_around_their_start_are_cancelled_and_cost_no_other_job_anything(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    harness.start("-c", "200", "--contexts", "1")
    beside = tasks.nap.enqueue(1.0)
    harness.noted("start")
    jobs: list[Job[Any]] = []
    for number in range(100):
        task = (tasks.asleep, tasks.co_asleep)[number % 2] if number % 10 else tasks.alone_asleep
        jobs.append(task.enqueue())
        jobs[-1].cancel()
    for job in jobs:
        assert harness.ended(job).state is State.CANCELLED
    assert harness.ended(beside).state is State.SUCCEEDED


def test_a_job_cancelled_before_its_context_has_come_to_it_never_begins(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    harness.start("-c", "8", "--contexts", "1")
    blocking = tasks.hold_loop.enqueue()
    harness.noted("start")
    waiting = tasks.co_asleep.enqueue()
    until(lambda: waiting.state is State.RUNNING)
    waiting.cancel()
    assert harness.ended(waiting).state is State.CANCELLED
    let_go(harness)
    assert harness.ended(blocking).state is State.SUCCEEDED
    assert not harness.notes("began")


WAYS = {
    "kill": "SIGKILL",
    "segfault": "SIGSEGV",
    "exit": "exited with 3",
    "abort": "SIGABRT",
    "overflow": "SIG",
}


@pytest.mark.parametrize(
    ("harness", "kind"),
    [("file", "crash"), ("redis", "crash"), ("file", "co_crash"), ("redis", "alone_crash")],
    indirect=["harness"],
)
def test_a_job_that_kills_its_process_fails_after_three_runs(harness: WorkerHarness, kind: str) -> None:
    harness.start("-c", "20", "--contexts", "1")
    assert harness.ended(getattr(harness.tasks, kind).enqueue("exit")).attempt == 3
    assert len(harness.notes("began")) == 3
    beside = harness.tasks.nap.enqueue(1.0, "beside")
    harness.noted("start")
    jobs = {how: getattr(harness.tasks, kind).enqueue(how) for how in WAYS}
    for how, job in jobs.items():
        record = harness.ended(job)
        assert (record.state, record.reason, record.crashes) == (State.FAILED, Reason.CRASHED, 3), how
        assert record.error is not None
        assert WAYS[how] in record.error.message
        assert "peak memory" in record.error.message
        assert f"about to die by {how}" in record.error.traceback
    assert harness.ended(beside).state is State.SUCCEEDED
    if kind == "alone_crash":
        assert len(harness.notes("began")) == 3 + 3 * len(WAYS)
        assert len(harness.notes("start")) == 1


def test_a_killed_context_is_a_crash_of_what_ran_in_it(harness: WorkerHarness) -> None:
    """S4 29: what ran in it is not lost."""
    harness.start("-c", "4", "--contexts", "1")
    job = harness.tasks.stay.enqueue("victim")
    os.kill(int(harness.noted("start")[0].split()[1]), signal.SIGKILL)
    let_go(harness)
    record = harness.ended(job)
    assert (record.state, record.attempt, record.crashes) == (State.SUCCEEDED, 2, 1)


def test_a_job_ended_by_hand_is_stopped_and_stays_as_it_was_ended(harness: WorkerHarness) -> None:
    """S1 31."""
    ends = {
        "alone_nap": ("jobs", "finish", "17"),
        "co_nap": ("jobs", "fail", "--message", "the tape is broken"),
    }
    harness.start("-c", "2")
    jobs = {task: getattr(harness.tasks, task).enqueue(60.0, task) for task in ends}
    started = {line.split()[0]: int(line.split()[1]) for line in harness.noted("start", 2)}
    for task, (group, verb, *words) in ends.items():
        job = jobs[task]
        command = harness.run(group, verb, job.id, *words, "--tenant", harness.tenant)
        assert command.returncode == 0, command.stderr
        assert job.refresh().reason == "by_hand"
    until(lambda: not Path(f"/proc/{started['alone_nap']}").exists())
    assert jobs["alone_nap"].result(PATIENCE) == 17
    record = jobs["co_nap"].refresh()
    assert (record.state, record.error and record.error.message) == (State.FAILED, "the tape is broken")
    free = harness.tasks.nap.enqueue(0.0, "free")
    assert harness.ended(free).state is State.SUCCEEDED
    assert not [line for line in harness.notes("end") if "free" not in line]
