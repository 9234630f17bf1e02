"""`chain` and `group`: what is refused when they are made, and how they run inside a test."""

import dataclasses
import datetime as dt
import enum
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import pytest

from windlass import Batch, JobFailed, Windlass, chain, current, group
from windlass.call.fitting import fits
from windlass.model.errors import Invalid
from windlass.model.job import Reason, State


@pytest.fixture
def app() -> Windlass:
    app = Windlass("never.db")

    @app.task
    def number(value: int) -> int:
        if value < 0:
            raise ValueError("negative")
        return value

    @app.task
    def add(value: int, more: int = 1) -> int:
        return value + more

    @app.task
    def total(values: list[int], times: int = 1) -> int:
        return sum(values) * times

    @app.task
    def collect(values: list[Any]) -> list[Any]:
        return values

    @app.task
    def nothing() -> str:
        return f"nothing, but {current.results}"

    @app.task
    def beside(text: str) -> list[Any]:
        return [text, *current.results]

    return app


@pytest.fixture
def tasks(app: Windlass) -> Iterator[Any]:
    with app.testing.inline():
        yield type("Tasks", (), app.tasks)


def states(batch: Batch[Any]) -> dict[str, int]:
    return {state.value: number for state, number in batch.progress().states.items()}


def test_a_step_of_a_chain_gets_the_result_before_it_as_its_first_argument(tasks: Any) -> None:
    batch = chain(tasks.number.s(1), tasks.add.s(10), tasks.add.s(more=100), tasks.add).enqueue()
    assert batch.result() == 112
    assert [job.result() for job in batch.jobs] == [1, 11, 111, 112]


def test_the_results_of_a_group_are_a_list_in_the_order_of_its_members(tasks: Any) -> None:
    members = group(tasks.number.s(value) for value in (3, 1, 2))
    assert members.enqueue().result() == [3, 1, 2]
    assert members.then(tasks.collect).enqueue().result() == [3, 1, 2]
    assert members.then(tasks.total.s(times=10), tasks.add.s(5)).enqueue().result() == 65
    assert group(tasks.number.s(1)).then(tasks.collect).enqueue().result() == [1]


def test_an_empty_group_is_complete_at_once(tasks: Any) -> None:
    batch = group().enqueue()
    assert (batch.result(), batch.wait().done, batch.cancel()) == ([], 0, 0)
    assert batch.on_complete(tasks.collect).result() == []
    assert group().then(tasks.total.s(times=2)).enqueue().result() == 0
    assert chain(tasks.number.s(1), group(), tasks.collect, tasks.collect).enqueue().result() == []


def test_steps_can_be_nested(tasks: Any) -> None:
    inner = chain(tasks.number.s(1), tasks.add.s(1))
    assert group(inner, tasks.number.s(7)).then(tasks.collect).enqueue().result() == [2, 7]
    fan_out = chain(tasks.number.s(1), group(tasks.add.s(1), chain(tasks.add.s(2), tasks.add.s(3))), tasks.collect)
    assert fan_out.enqueue().result() == [2, 6]
    two = chain(group(tasks.number.s(1), tasks.number.s(2)), group(tasks.total, tasks.total.s(2)), tasks.collect)
    assert two.enqueue().result() == [3, 6]


def test_a_step_may_leave_the_result_out(tasks: Any) -> None:
    assert chain(tasks.number.s(1), tasks.nothing.si(), tasks.number.si(4)).enqueue().result() == 4


def test_results_can_come_beside_the_arguments(tasks: Any) -> None:
    parents = [tasks.number.enqueue(1), tasks.number.enqueue(2)]
    job = tasks.beside.using(after=parents, with_results="current").enqueue("x")
    assert job.result() == ["x", 1, 2]
    assert chain(tasks.number.s(1), tasks.add.s()).enqueue().result() == 2
    assert tasks.nothing() == "nothing, but []", "and none in a plain call"


def test_a_member_that_fails_cancels_what_waits_for_it_unless_that_says_otherwise(tasks: Any) -> None:
    members = group(tasks.number.s(1), tasks.number.s(-1), tasks.number.s(3))
    batch = members.then(tasks.collect, tasks.collect).enqueue()
    assert states(batch) == {"succeeded": 2, "failed": 1, "cancelled": 2}
    with pytest.raises(JobFailed, match="which it waited for"):
        batch.result()
    assert members.then(tasks.collect.using(after_failure="run")).enqueue().result() == [1, None, 3]
    failed = members.then(tasks.collect.using(after_failure="fail")).enqueue().jobs[-1].refresh()
    assert (failed.state, failed.reason) == (State.FAILED, Reason.DEPENDENCY)


def test_on_complete_runs_once_all_have_ended(tasks: Any) -> None:
    batch = group(tasks.number.s(1), tasks.number.s(-1)).then(tasks.collect).enqueue()
    assert batch.on_complete(tasks.collect).result() == [1, None, None]
    with pytest.raises(Invalid, match="on_complete takes one call"):
        batch.on_complete(group(tasks.number.s(1)))  # type: ignore[arg-type]


async def test_in_a_loop(app: Windlass) -> None:
    add, collect = app.tasks["add"], app.tasks["collect"]
    with app.testing.inline():
        batch = await group(add.s(1), add.s(2)).then(collect).aenqueue()
        assert await batch.aresult() == [2, 3]
        assert (await batch.await_end()).done == (await batch.aprogress()).done == len(batch) == 3
        assert await batch.acancel() == 0
        assert await (await batch.aon_complete(collect)).aresult() == [2, 3, [2, 3]]


def test_manual_jobs_of_a_workflow_wait_until_those_before_them_have_run(app: Windlass) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    with app.testing.manual() as manual:
        batch = group(add.s(1), add.s(2)).then(total.s(times=2)).enqueue()
        assert states(batch) == {"queued": 2, "blocked": 1}
        assert batch.progress().done == 0
        with pytest.raises(TimeoutError, match="only the test runs them"):
            batch.wait()
        manual.run_one()
        assert states(batch) == {"succeeded": 1, "queued": 1, "blocked": 1}
        manual.assert_enqueued(total)
        manual.drain()
        assert (batch.result(), batch.wait().done) == (10, 3)
        other = chain(add.s(1), add.s(2), add.s(3)).enqueue()
        manual.run_one()
        assert other.cancel() == 2
        assert states(other) == {"succeeded": 1, "cancelled": 2}
        assert {job.refresh().reason for job in other.jobs[1:]} == {Reason.CANCELLED}
        batch.jobs[0].delete()
        assert (batch.progress().total, batch.progress().done) == (3, 3), "one whose record is gone has ended"


def test_a_handle_for_any_jobs_by_their_ids(app: Windlass) -> None:
    add = app.tasks["add"]
    with app.testing.manual() as manual:
        ids = [job.id for job in add.map([1, 2, 3])]
        batch = app.batch(ids)
        assert (states(batch), len(batch)) == ({"queued": 3}, 3)
        assert batch.cancel() == 3
        again = app.batch(job.id for job in add.map([4, 5]))
        done = again.on_complete(app.tasks["collect"])
        manual.drain()
        assert (again.result(), again.wait().done, done.result()) == ([5, 6], 2, [5, 6])
        assert app.batch([]).wait().total == 0
        with pytest.raises(Invalid, match="ids"):
            app.batch(["nonsense"]).progress()


# on_failure


def test_a_task_can_name_one_that_gets_the_records_of_its_failed_jobs() -> None:
    app = Windlass("never.db")
    seen: list[dict[str, Any]] = []

    @app.task
    def alert(job: dict[str, Any]) -> None:
        seen.append(job)
        raise ValueError("nor can this")

    @app.task(on_failure=alert)
    def number(value: int) -> int:
        if value < 0:
            raise ValueError("negative")
        return value

    with app.testing.inline() as inline:
        number.enqueue(1)
        failed = number.enqueue(-1)
        assert [(job["id"], job["task"], job["payload"]) for job in seen] == [(failed.id, "number", {"value": -1})]
        assert seen[0]["error"]["type"] == "ValueError"
        number.using(on_failure=None).enqueue(-2)
        assert len(seen) == 1
        assert inline.assert_enqueued(alert).state is State.FAILED
    for wrong in (alert.using(queue="x"), app.task(name="none")(lambda: None), 7):
        with pytest.raises(Invalid, match="on_failure"):
            number.using(on_failure=wrong)  # type: ignore[arg-type]


# What is refused


def test_steps_that_do_not_fit_are_refused_when_they_are_put_together(app: Windlass) -> None:
    tasks: Any = type("Tasks", (), app.tasks)
    with pytest.raises(Invalid, match=r"add\(.*\) -> int cannot take what total.* returns|returns: int is not"):
        chain(tasks.number.s(1), tasks.total)
    with pytest.raises(Invalid, match=r"list\[int\] is not int"):
        group(tasks.number.s(1)).then(tasks.add)
    with pytest.raises(Invalid, match=r"then: .*cannot take what number returns: int is not list\[int\]"):
        tasks.number.using(then=tasks.total)
    with pytest.raises(Invalid, match="may not end with a group"):
        group(group(tasks.number.s(1)))
    with pytest.raises(Invalid, match="is no step of a workflow"):
        chain(7)  # type: ignore[arg-type]
    kept = {"keep_result": "none", "keep_result_for": 60}
    for name, value in kept.items():
        with pytest.raises(Invalid, match=f"add needs the result of number: leave out {'keep_result'}"):
            chain(tasks.number.using(**{name: value}).s(1), tasks.add)
    with pytest.raises(Invalid, match="number has keep_success=0, but a later step waits for it"):
        chain(tasks.number.using(keep_success=0).s(1), tasks.nothing.si())


def test_arguments_are_checked_before_anything_is_sent(app: Windlass) -> None:
    tasks: Any = type("Tasks", (), app.tasks)
    with app.testing.manual() as manual:
        for wrong in (
            chain(tasks.number.s("x"), tasks.add),
            chain(tasks.number.s(1), tasks.add.s("x")),
            chain(tasks.number.s(1), tasks.add.s(1, 2)),
            chain(tasks.number.s(1), tasks.nothing.s()),
            chain(tasks.number.s(1), tasks.add.using(after=["00000000-0000-7000-8000-0000000000df"])),
            group(tasks.number.s(n) for n in range(1001)).then(tasks.total),
            chain(tasks.number.using(unique="pending").s(1), tasks.add),
            chain(),
        ):
            with pytest.raises(Invalid):
                wrong.enqueue()
        other = Windlass("other.db").task(name="other")(lambda value: value)
        with pytest.raises(Invalid, match="all tasks of a workflow must be of one app"):
            chain(tasks.number.s(1), other).enqueue()
        assert manual.jobs == []


# Types


@dataclasses.dataclass
class Order:
    id: int
    items: list[str]


@dataclasses.dataclass
class Person:
    id: int
    name: str


class Keyed(TypedDict):
    id: int


class Pair(NamedTuple):
    left: int
    right: str


class Size(enum.Enum):
    SMALL = "small"


FIT: list[tuple[Any, Any]] = [
    (int, int),
    (int, float),
    (int | None, int),
    (Any, int),
    (int, Any),
    (None, None),
    (list[int], list[float]),
    (list[int], set[int]),
    (tuple[int, str], Pair),
    (Pair, tuple[int, str]),
    (Order, Order),
    (Order, dict[str, Any]),
    (Order, Keyed),
    (dict[str, int], Keyed),
    (list[Order], list[Order]),
    (Size, str),
    (Literal["a"], str),
    (Path, str),
    (uuid.UUID, str),
    (dt.datetime, dt.datetime),
    (object, int),
]
UNFIT: list[tuple[Any, Any]] = [
    (int, str),
    (str, int),
    (bool, int),
    (None, int),
    (int, list[int]),
    (list[int], list[str]),
    (Order, Person),
    (list[Order], Order),
    (Order, dict[str, int]),
    (dict[str, str], Keyed),
    (list[int], dict[str, int]),
    (tuple[int, int, int], Pair),
]


@pytest.mark.parametrize(("returned", "wanted"), FIT, ids=str)
def test_what_may_fit_is_taken(returned: Any, wanted: Any) -> None:
    assert fits(returned, wanted)


@pytest.mark.parametrize(("returned", "wanted"), UNFIT, ids=str)
def test_what_can_never_fit_is_refused(returned: Any, wanted: Any) -> None:
    assert not fits(returned, wanted)
