"""Tasks that take batches, without a worker: what a declaration may say, plain calls, and `app.testing`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from windlass import Depends, Fail, Retry, Windlass, current, step
from windlass.model.errors import Invalid
from windlass.model.job import Error, Job, State


@dataclass
class Doc:
    id: int
    text: str = ""


@pytest.fixture
def app(tmp_path: Path) -> Windlass:
    """Its store must never be touched: there is no such folder."""
    return Windlass(str(tmp_path / "nowhere" / "jobs.db"))


def error_of(job: Job) -> Error:
    assert job.error is not None
    return job.error


def test_each_call_is_a_job_with_its_own_result(app: Windlass) -> None:
    seen: list[list[Doc]] = []
    ids: list[list[str]] = []

    @app.task(batch=3, within="1s")
    def index(docs: list[Doc]) -> list[str]:
        seen.append(docs)
        if current:
            ids.append([job.id for job in current.jobs])
            assert current.job == current.jobs[0]
        return [f"doc {doc.id}" for doc in docs]

    with app.testing.manual() as test:
        jobs = index.map(Doc(n) for n in range(5))
        assert test.run_one() is not None
        assert seen == [[Doc(0), Doc(1), Doc(2)]]
        assert len(test.drain()) == 2
        assert seen[1:] == [[Doc(3), Doc(4)]]
        assert [job.result() for job in jobs] == [f"doc {n}" for n in range(5)]
        assert [id for some in ids for id in some] == [job.id for job in jobs]
    with app.testing.inline():
        assert index.enqueue(Doc(7)).result() == "doc 7"
        with pytest.raises(Invalid, match="Expected `object`"):
            index.enqueue("no doc")  # type: ignore[arg-type]
    assert index([Doc(8)]) == ["doc 8"]
    assert index.using(priority=-1).template.priority == -1


def test_jobs_of_other_tasks_are_left_for_later(app: Windlass) -> None:
    ran: list[Any] = []

    @app.task
    def other(n: int) -> None:
        ran.append(n)

    @app.task(batch=10)
    def many(ns: list[int]) -> None:
        ran.append(ns)

    with app.testing.manual() as test:
        many.enqueue(1)
        waits = other.enqueue(2)
        many.enqueue(3)
        test.run_one()
        assert (ran, waits.state) == ([[1, 3]], State.QUEUED)
        test.drain()
    assert ran == [[1, 3], 2]


async def test_an_item_has_its_own_outcome_and_retries_alone(app: Windlass) -> None:
    calls: list[list[str]] = []

    @app.task(batch=10, max_retry=2, retry={"base": 60, "jitter": 0}, never_on=KeyError)
    async def work(words: Sequence[str]) -> list[int | Exception]:
        calls.append(list(words))
        if len(calls) > 1:
            return [2 for _ in words]
        return [
            {"retry": Retry(after=5), "fail": Fail("no"), "value": ValueError("v"), "key": KeyError("k")}.get(w, 1)
            for w in words
        ]

    with app.testing.inline():
        jobs = await work.amap(["ok", "retry", "fail", "value", "key"])
        states = [job.refresh() for job in jobs]
    assert [job.state for job in states] == [
        State.SUCCEEDED,
        State.SUCCEEDED,
        State.FAILED,
        State.SUCCEEDED,
        State.FAILED,
    ]
    assert [job.attempt for job in states] == [1, 2, 1, 2, 1]
    assert error_of(states[2]).message == "no"
    assert error_of(states[4]).type == "KeyError"
    assert calls == [["ok", "retry", "fail", "value", "key"], ["retry"], ["value"]]


def test_what_the_function_raises_is_the_outcome_of_all(app: Windlass) -> None:
    calls: list[list[int]] = []

    @app.task(batch=10, max_retry=1, retry={"base": 60, "jitter": 0})
    def work(ns: list[int]) -> None:
        calls.append(ns)
        if len(calls) == 1:
            raise ValueError("not now")

    with app.testing.inline():
        jobs = work.map([1, 2, 3])
        assert [(job.state, job.result()) for job in jobs] == [(State.SUCCEEDED, None)] * 3
    assert calls == [[1, 2, 3]] * 2
    calls.clear()
    with app.testing.inline(raises=True), pytest.raises(ValueError, match="not now"):
        work.using(max_retry=0).map([1, 2])


def test_a_call_that_does_not_fit_fails_alone(app: Windlass) -> None:
    seen: list[list[int]] = []

    @app.task(batch=10)
    def work(ns: list[int]) -> list[int]:
        seen.append(ns)
        assert len(current.jobs) == len(ns)
        return ns

    loose = Windlass(app.store)

    @loose.task(name="work", batch=10)
    def anything(ns: list[Any]) -> list[Any]:
        return ns

    with app.testing.manual() as test:
        loose.link = app.link
        jobs = anything.map([1, "two", 3])
        test.drain()
        assert [job.state for job in jobs] == [State.SUCCEEDED, State.FAILED, State.SUCCEEDED]
        assert [jobs[0].result(), jobs[2].result()] == [1, 3]
        seen.clear()
        (only,) = anything.map(["none"])
        test.drain()
        assert only.state is State.FAILED
    assert seen == []


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1, 2], "it returned 2 results for 3 calls"),
        ({1, 2, 3}, "it returned a set for 3 calls"),
        ("abc", "it returned a str for 3 calls"),
    ],
)
def test_results_that_do_not_match_the_calls_are_an_error_of_all(app: Windlass, returned: Any, message: str) -> None:
    @app.task(batch=3)
    def work(ns: list[int]) -> Any:
        del ns
        return returned

    with app.testing.inline():
        for job in work.map([1, 2, 3]):
            assert job.state is State.FAILED
            assert message in error_of(job.refresh()).message


def test_a_result_that_cannot_be_sent_is_an_error_of_its_item(app: Windlass) -> None:
    @app.task(batch=3)
    def work(ns: list[int]) -> list[Any]:
        return [object() if n == 2 else n for n in ns]

    with app.testing.inline():
        assert [job.state for job in work.map([1, 2, 3])] == [State.SUCCEEDED, State.FAILED, State.SUCCEEDED]


def test_dependencies_and_hooks_are_made_once_for_a_batch(app: Windlass) -> None:
    made: list[str] = []

    def session() -> str:
        made.append("session")
        return "s"

    @app.around
    def around(job: Any) -> Any:
        made.append(f"around {job.task}")
        yield

    @app.task(batch=10)
    def work(ns: list[int], db: str = Depends(session)) -> list[str]:
        current.log("said for each")
        return [f"{db}{n}" for n in ns]

    with app.testing.inline():
        jobs = work.map([1, 2])
        assert [job.result() for job in jobs] == ["s1", "s2"]
        assert [[chunk.data for chunk in job.output()] for job in jobs] == [[b"said for each\n"]] * 2
    assert made == ["around work", "session"]


def test_what_belongs_to_one_job_is_refused_in_a_batch(app: Windlass) -> None:
    @app.task(batch=10)
    def work(whats: list[str]) -> None:
        uses: dict[str, Callable[[], object]] = {
            "files": lambda: current.files,
            "folder": lambda: current.folder,
            "spawn": lambda: current.spawn(work, "x"),
            "step": lambda: step.sync("a", dict),
            "input": current.input,
        }
        uses[whats[0]]()

    with app.testing.inline():
        for what in ("files", "folder", "spawn", "step"):
            assert "one call runs several jobs here" in error_of(work.enqueue(what).refresh()).message
        assert "takes no input" in error_of(work.enqueue("input").refresh()).message


def none() -> None: ...


def two(a: list[int], b: list[int]) -> None: ...


def default(a: list[int] = []) -> None: ...  # noqa: B006


def starred(*a: list[int]) -> None: ...


def single(a: int) -> None: ...


@pytest.mark.parametrize("function", [none, two, default, starred])
def test_a_function_that_cannot_take_a_list_of_calls_is_refused(app: Windlass, function: Any) -> None:
    with pytest.raises(Invalid, match="has one parameter without a default, the list of calls"):
        app.task(batch=2)(function)


def test_the_list_must_be_annotated_as_one_or_not_at_all(app: Windlass) -> None:
    with pytest.raises(Invalid, match="a gets a list: annotate it so"):
        app.task(batch=2)(single)  # type: ignore[arg-type]

    @app.task(batch=2)
    def bare(calls):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return calls

    with app.testing.inline():
        assert bare.enqueue([1, "a"]).result() == [1, "a"]


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": 1001}, "batch"),
        ({"batch": True}, "batch"),
        ({"batch": 2, "within": "2m"}, "within"),
        ({"batch": 2, "within": "5s", "timeout": "5s"}, "timeout"),
        ({"batch": 2, "isolate": True}, "isolate"),
        ({"batch": 2, "input": True}, "input"),
        ({"batch": 2, "stdin": "pipe"}, "stdin"),
    ],
)
def test_options_that_do_not_go_together_are_refused(app: Windlass, options: Any, at: str) -> None:
    with pytest.raises(Invalid) as refused:
        app.task(**options)
    assert refused.value.at == at
