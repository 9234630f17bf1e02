"""A coroutine that holds its event loop keeps nobody waiting for whom there is another one."""

import time

import pytest

from tests.support.worker_harness import ON_A_FILE, WorkerHarness
from windlass.model.job import State

pytestmark = ON_A_FILE


@pytest.mark.parametrize("kind", ["co_add", "add"])
def test_what_has_not_begun_goes_to_a_context_that_is_idle(harness: WorkerHarness, kind: str) -> None:
    tasks = harness.tasks
    harness.start("-c", "32", "--contexts", "2")
    blocking = tasks.hold_loop.enqueue()
    harness.noted("start")
    jobs = getattr(tasks, kind).map([(number, 1) for number in range(40)])
    assert [job.result(30) for job in jobs] == list(range(1, 41))
    assert blocking.state is State.RUNNING
    (harness.folder / "let go").touch()
    assert harness.ended(blocking).state is State.SUCCEEDED
    assert len(harness.notes("add")) == 40


def test_what_came_together_with_it_does_so_too(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    blocking = tasks.hold_loop.enqueue()
    jobs = tasks.co_add.map([(number, 1) for number in range(20)])
    harness.start("-c", "32", "--contexts", "2")
    assert [job.result(30) for job in jobs] == list(range(1, 21))
    assert blocking.state is State.RUNNING
    (harness.folder / "let go").touch()
    assert harness.ended(blocking).state is State.SUCCEEDED
    assert len(harness.notes("add")) == 20


def test_each_runs_once_however_often_loops_are_held(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    harness.start("-c", "24", "--contexts", "3")
    jobs = []
    for _ in range(12):
        jobs += [tasks.block.enqueue(0.13) for _ in range(2)]
        jobs += tasks.co_add.map([(1, 1)] * 10)
        jobs += tasks.add.map([(1, 1)] * 5)
        time.sleep(0.05)
    for job in jobs:
        record = harness.ended(job)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    assert len(harness.notes("add")) == 12 * 15
    assert len(harness.notes("start")) == 24
