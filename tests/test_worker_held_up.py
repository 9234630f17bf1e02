"""A coroutine that holds its event loop keeps nobody waiting for whom there is another one."""

import time

import pytest

from tests.workers import ON_A_FILE, Workshop
from windlass.model.job import State

pytestmark = ON_A_FILE


@pytest.mark.parametrize("kind", ["co_add", "add"])
def test_what_has_not_begun_goes_to_a_context_that_is_idle(workshop: Workshop, kind: str) -> None:
    chores = workshop.chores
    workshop.start("-c", "32", "--contexts", "2")
    blocking = chores.hold_loop.enqueue()
    workshop.noted("start")
    jobs = getattr(chores, kind).map([(number, 1) for number in range(40)])
    assert [job.result(30) for job in jobs] == list(range(1, 41))
    assert blocking.state is State.RUNNING
    (workshop.folder / "let go").touch()
    assert workshop.ended(blocking).state is State.SUCCEEDED
    assert len(workshop.notes("add")) == 40


def test_what_came_together_with_it_does_so_too(workshop: Workshop) -> None:
    chores = workshop.chores
    blocking = chores.hold_loop.enqueue()
    jobs = chores.co_add.map([(number, 1) for number in range(20)])
    workshop.start("-c", "32", "--contexts", "2")
    assert [job.result(30) for job in jobs] == list(range(1, 21))
    assert blocking.state is State.RUNNING
    (workshop.folder / "let go").touch()
    assert workshop.ended(blocking).state is State.SUCCEEDED
    assert len(workshop.notes("add")) == 20


def test_each_runs_once_however_often_loops_are_held(workshop: Workshop) -> None:
    chores = workshop.chores
    workshop.start("-c", "24", "--contexts", "3")
    jobs = []
    for _ in range(12):
        jobs += [chores.block.enqueue(0.13) for _ in range(2)]
        jobs += chores.co_add.map([(1, 1)] * 10)
        jobs += chores.add.map([(1, 1)] * 5)
        time.sleep(0.05)
    for job in jobs:
        record = workshop.ended(job)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    assert len(workshop.notes("add")) == 12 * 15
    assert len(workshop.notes("start")) == 24
