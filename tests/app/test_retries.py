"""Which errors run again and when, and what is kept of each attempt."""

import asyncio
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any

import pytest

from windlass import Fail, Invalid, Retry, RunningJob, Snooze, TaskOutcome, Windlass
from windlass.model.errors import WindlassError
from windlass.model.job import Job, Reason, State

NET, VALUE, KEY, PIPE = ConnectionError, ValueError, KeyError, BrokenPipeError
GROUPS: dict[str, Callable[[], BaseException]] = {
    "net": lambda: NET("down"),
    "pipe": lambda: PIPE("gone"),
    "value": lambda: VALUE("broken"),
    "nets": lambda: ExceptionGroup("several", [NET("down"), ExceptionGroup("more", [PIPE("gone")])]),
    "mixed": lambda: ExceptionGroup("several", [NET("down"), VALUE("broken")]),
    "retry": lambda: Retry("again", after="1m"),
    "snooze": lambda: Snooze("1h"),
    "fail": lambda: Fail("never", code=422),
}


@pytest.fixture
def app() -> Windlass:
    return Windlass(":memory:")


def run_once(app: Windlass, how: list[str], *, form: str = "plain", **rules: Any) -> dict[str, Job]:
    """What becomes of jobs that end so, after their first run."""

    @app.task(name=f"plain-{len(app.tasks)}", max_retry=5, **rules)  # type: ignore[untyped-decorator] # rules may name a batch
    def plain(how: str) -> None:
        error = GROUPS[how]()
        raise error

    @app.task(name=f"awaited-{len(app.tasks)}", max_retry=5, **rules)  # type: ignore[untyped-decorator] # rules may name a batch
    async def awaited(how: str) -> None:
        await asyncio.sleep(0)
        error = GROUPS[how]()
        raise error

    task = plain if form == "plain" else awaited
    with app.testing.manual() as manual:
        jobs = {one: task.enqueue(one) for one in how}
        manual.drain()
        return {one: job.refresh() for one, job in jobs.items()}


def failed_for_good(jobs: dict[str, Job]) -> set[str]:
    assert {job.state for job in jobs.values()} <= {State.FAILED, State.SCHEDULED}
    return {how for how, job in jobs.items() if job.state is State.FAILED}


@pytest.mark.parametrize("form", ["plain", "awaited"])
@pytest.mark.parametrize(
    ("rules", "final"),
    [
        ({}, set()),
        ({"retry_on": NET}, {"value", "mixed"}),
        ({"retry_on": (NET, VALUE)}, set()),
        ({"retry_on": (KEY,)}, {"net", "pipe", "value", "nets", "mixed"}),
        ({"retry_on": ()}, {"net", "pipe", "value", "nets", "mixed"}),
        ({"never_on": VALUE}, {"value", "mixed"}),
        ({"never_on": (ExceptionGroup,)}, {"nets", "mixed"}),
        ({"retry_on": (NET,), "never_on": (PIPE,)}, {"pipe", "value", "nets", "mixed"}),
        ({"retry_on": Exception, "never_on": PIPE}, {"pipe", "nets"}),
    ],
)
def test_a_task_says_which_of_its_errors_run_again(
    app: Windlass, form: str, rules: dict[str, Any], final: set[str]
) -> None:
    jobs = run_once(app, ["net", "pipe", "value", "nets", "mixed"], form=form, **rules)
    assert failed_for_good(jobs) == final
    for how in final:
        job = jobs[how]
        assert (job.reason, job.code, job.attempt) == (Reason.FAILED, 400, 1)
        assert job.error is not None
        assert job.error.type in {"ConnectionError", "BrokenPipeError", "ValueError", "ExceptionGroup"}
        assert "raise error" in job.error.traceback


@pytest.mark.parametrize("rules", [{}, {"retry_on": (KEY,)}, {"never_on": (Exception, SystemExit)}])
def test_what_a_task_says_of_its_end_stands_whatever_the_rules(app: Windlass, rules: dict[str, Any]) -> None:
    jobs = run_once(app, ["retry", "snooze", "fail"], **rules)
    assert failed_for_good(jobs) == {"fail"}
    assert (jobs["retry"].reason, jobs["snooze"].reason) == (Reason.RETRY, Reason.SNOOZED)
    assert jobs["fail"].code == 422


def test_the_rules_see_the_error_that_a_hook_has_put_in_the_place_of_another(app: Windlass) -> None:
    @app.around
    def translate(_: RunningJob) -> Generator[None, TaskOutcome, None]:
        outcome = yield
        if isinstance(outcome.error, ValueError):
            raise ConnectionError("it was the net, after all")

    assert failed_for_good(run_once(app, ["value"], retry_on=(ConnectionError,))) == set()
    assert failed_for_good(run_once(app, ["value"], never_on=(ConnectionError,))) == {"value"}


def test_the_rules_belong_to_the_task_and_stay_with_other_options(app: Windlass) -> None:
    @app.task(never_on=ValueError)
    def broken() -> None:
        raise ValueError

    with app.testing.manual() as manual:
        job = broken.using(max_retry=3, priority=5).enqueue()
        manual.drain()
        assert job.state is State.FAILED
    with pytest.raises(WindlassError, match="retry_on: there is no such option"):
        broken.using(retry_on=ValueError)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"retry_on": "ConnectionError"}, r"retry_on: 'ConnectionError' is no class of exceptions"),
        ({"never_on": (ValueError, 3)}, r"never_on: 3 is no class of exceptions"),
        ({"never_on": ValueError("x")}, r"never_on: ValueError\('x'\) is no class of exceptions"),
        ({"retry_on": (Retry,)}, r"retry_on: Retry says itself what becomes of the job"),
        ({"never_on": asyncio.CancelledError}, r"never_on: CancelledError says itself"),
    ],
)
def test_what_is_no_class_of_errors_is_refused_where_it_is_declared(
    app: Windlass, rules: dict[str, Any], expected: str
) -> None:
    with pytest.raises(Invalid, match=expected):

        @app.task(**rules)  # type: ignore[untyped-decorator] # the same
        def task() -> None: ...


def test_a_retry_may_say_when(app: Windlass) -> None:
    job = run_once(app, ["retry"])["retry"]
    assert job.run_at is not None
    assert job.run_at - job.updated_at == timedelta(minutes=1)


def test_jitter_spreads_the_jobs_of_a_crowd(app: Windlass) -> None:
    @app.task(max_retry=1, retry={"base": "100s", "jitter": 0.5})
    def broken() -> None:
        raise ValueError

    with app.testing.manual() as manual:
        broken.map([()] * 20)
        manual.drain()
        waits = [(job.run_at - job.updated_at).total_seconds() for job in manual.jobs if job.run_at is not None]
    assert len(waits) == 20
    assert all(100 <= wait <= 150 for wait in waits)
    assert len(set(waits)) > 15


def test_the_error_of_every_attempt_is_kept(app: Windlass) -> None:
    kinds = iter([ConnectionError("down"), Retry("not yet"), KeyError("x")])

    @app.task(max_retry=5)
    def unlucky() -> str:
        for error in kinds:
            raise error
        return "at last"

    with app.testing.manual() as manual:
        job = unlucky.enqueue()
        manual.drain(within="1d")
        assert job.result() == "at last"
        errors = job.refresh().errors
    assert [(error.type, error.reason, error.attempt) for error in errors] == [
        ("ConnectionError", Reason.ERROR, 1),
        ("windlass.Retry", Reason.RETRY, 2),
        ("KeyError", Reason.ERROR, 3),
    ]
    assert all(error.at is not None and "raise error" in error.traceback for error in errors)
