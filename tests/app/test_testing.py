"""`app.testing`: jobs that run inside a test, at once or when they are told to."""

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from windlass import Cancelled, Fail, JobFailed, Retry, Snooze, Windlass, current
from windlass.app import Task
from windlass.engine import Settings
from windlass.model.errors import Invalid, Missing
from windlass.model.job import Reason, State

ROOT = Path(__file__).parents[2]

Add = Task[..., int, int]


@pytest.fixture
def app(tmp_path: Path) -> Windlass:
    """Its store must never be touched: there is no such folder."""
    return Windlass(str(tmp_path / "nowhere" / "jobs.db"), settings=Settings(most_payload=1000, most_result=1000))


@pytest.fixture
def add(app: Windlass) -> Add:
    @app.task
    def add(a: int, b: int = 2) -> int:
        return a + b

    return add


@pytest.fixture
def attempts(app: Windlass) -> list[int]:
    """The task `tries`, which follows instructions, and what it has seen."""
    seen: list[int] = []

    @app.task(max_retry=2, retry={"base": 60, "jitter": 0})
    def tries(*raised: str) -> int:
        seen.append(current.job.attempt)
        match raised[len(seen) - 1 : len(seen)]:
            case ("error",):
                raise ValueError("broken")
            case ("retry",):
                raise Retry("again", after="10s")
            case ("snooze",):
                raise Snooze("1h")
            case ("fail",):
                raise Fail("unreportable", code=422)
        return len(seen)

    return seen


# Inline


def test_a_job_runs_as_it_is_queued(app: Windlass, add: Add) -> None:
    with app.testing.inline() as inline:
        assert add.enqueue(1).result() == 3
        assert [job.result() for job in add.map([(1, 1), (2, 2)])] == [2, 4]
        assert [job.state for job in inline.jobs] == [State.SUCCEEDED] * 3


def test_nothing_is_logged_while_there_is_no_job(app: Windlass, caplog: pytest.LogCaptureFixture) -> None:
    with app.testing.inline():
        time.sleep(0.2)
    assert caplog.records == []


def test_a_coroutine_runs_where_there_is_no_loop_and_where_there_is_one(app: Windlass) -> None:
    loops: list[Any] = []

    @app.task
    async def where(word: str) -> str:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        assert current.job.task == "where"
        return word

    async def in_a_loop() -> None:
        assert await (await where.aenqueue("awaited")).aresult() == "awaited"
        assert loops[-1] is asyncio.get_running_loop(), "it can use what lives in this loop"
        assert where.enqueue("blocking").result() == "blocking"
        assert loops[-1] is not asyncio.get_running_loop()
        assert not current, "nothing of the job is left behind"
        assert [await job.aresult() for job in await where.amap(["a", "b"])] == ["a", "b"]

    with app.testing.inline():
        assert where.enqueue("alone").result() == "alone"
        asyncio.run(in_a_loop())


def test_arguments_and_results_are_packed_as_ever(app: Windlass) -> None:
    given: list[Any] = []

    @app.task
    def keep(days: set[date]) -> tuple[date, ...]:
        given.append(days)
        return tuple(days)

    with app.testing.inline():
        days = {date(2026, 1, 1)}
        assert keep.enqueue(days).result() == (date(2026, 1, 1),)
        assert given == [days]
        assert given[0] is not days
        with pytest.raises(Invalid, match=r"arguments\.days"):
            keep.enqueue({"tomorrow"})  # type: ignore[arg-type]


def test_parameters_may_have_any_name(app: Windlass) -> None:
    @app.task
    def odd(self: int, args: int, *, kwargs: int, größe: str = "") -> list[int]:  # noqa: PLC2401
        return [self, args, kwargs]

    with app.testing.inline():
        assert odd.enqueue(self=1, args=2, kwargs=3, größe="x").result() == [1, 2, 3]
        assert odd(self=1, args=2, kwargs=3) == [1, 2, 3]


def test_jobs_of_many_threads_and_coroutines_find_their_results(app: Windlass) -> None:
    @app.task
    def echo(number: int) -> int:
        return number

    @app.task
    async def aecho(number: int) -> int:
        await asyncio.sleep(0.001 * (number % 3))
        return number

    async def at_once() -> list[int]:
        jobs = await asyncio.gather(*(aecho.aenqueue(number) for number in range(20)))
        return [await job.aresult(10) for job in jobs]

    with app.testing.inline():
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(lambda number: echo.enqueue(number).result(PATIENCE), range(20))) == [*range(20)]
        assert asyncio.run(at_once()) == [*range(20)]


async def test_a_job_that_takes_too_long_can_be_given_up(app: Windlass) -> None:
    @app.task
    async def sleeps() -> None:
        await asyncio.sleep(60)

    with app.testing.inline(), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await sleeps.aenqueue()


def test_a_failure_is_found_in_the_job(app: Windlass) -> None:
    @app.task
    def breaks() -> object:
        raise LookupError("lost")

    @app.task
    def unencodable() -> object:
        return object()

    @app.task
    def huge() -> bytes:
        return bytes(2000)

    with app.testing.inline():
        with pytest.raises(JobFailed, match="LookupError: lost") as failed:
            breaks.enqueue().result()
        assert failed.value.error is not None
        assert "in breaks" in failed.value.error.traceback
        with pytest.raises(JobFailed, match="cannot be kept"):
            unencodable.enqueue().result()
        with pytest.raises(JobFailed, match="at most 1000"):
            huge.enqueue().result()


def test_a_failure_is_raised_where_that_is_wanted(app: Windlass, add: Add) -> None:
    class Own(Exception):
        pass

    @app.task(max_retry=1)
    def breaks(times: int) -> int:
        if current.job.attempt <= times:
            raise Own(current.job.attempt)
        return times

    async def in_a_loop() -> None:
        await breaks.aenqueue(2)

    with app.testing.inline(raises=True):
        assert add.enqueue(1).result() == 3
        assert breaks.enqueue(1).result() == 1, "its second run went well"
        with pytest.raises(Own, match="2"):
            breaks.using(key="k").enqueue(2)
        with pytest.raises(Own, match="2"):
            asyncio.run(in_a_loop())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, pytest.fail.Exception])
def test_an_interrupt_ends_the_test_and_not_only_the_job(app: Windlass, error: type[BaseException]) -> None:
    @app.task
    def interrupted() -> None:
        raise error("now")

    with app.testing.inline(), pytest.raises(error):
        interrupted.enqueue()


def test_delays_and_waits_pass_at_once(app: Windlass, attempts: list[int]) -> None:
    tries = app.tasks["tries"]
    with app.testing.inline() as inline:
        job = tries.using(delay="1d").enqueue("error", "retry")
        assert job.result() == 3
        assert attempts == [1, 2, 3]
        (record,) = inline.jobs
        assert record.finished_at is not None
        assert record.finished_at - record.created_at == timedelta(days=1, seconds=70)


def test_a_task_may_queue_another(app: Windlass) -> None:
    @app.task
    def inner(number: int) -> int:
        return number * 2

    @app.task
    def outer(number: int) -> int:
        job = inner.enqueue(number)
        assert current.job.task == "outer", "it is itself again"
        return job.result() + 1

    @app.task
    def spawns() -> str:
        return current.spawn(inner, 4)

    with app.testing.inline():
        assert outer.enqueue(5).result() == 11
        assert app.job(spawns.enqueue().result()).result() == 8


def test_a_job_that_asks_for_ever_is_noticed(app: Windlass, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    def never() -> None:
        raise Snooze(1)

    monkeypatch.setattr("windlass.testing.MOST_RUNS", 20)
    with app.testing.inline(), pytest.raises(RuntimeError, match="still run after 20 runs"):
        never.enqueue()
    with app.testing.manual() as manual:
        never.enqueue()
        with pytest.raises(RuntimeError, match="still run after 20 runs"):
            manual.drain(within="1h")


def test_a_job_is_run_again_and_cancelled_inline(app: Windlass, add: Add) -> None:
    with app.testing.inline():
        job = add.enqueue(1)
        assert job.retry()
        assert job.result() == 3
        assert not job.cancel()


# Manual


def test_jobs_are_kept_until_they_are_run(app: Windlass, add: Add) -> None:
    with app.testing.manual() as manual:
        jobs = [add.enqueue(1), add.using(queue="other").enqueue(2), add.using(priority=-1).enqueue(3)]
        assert [job.id for job in manual.jobs] == [job.id for job in jobs]
        assert {job.state for job in manual.jobs} == {State.QUEUED}
        with pytest.raises(TimeoutError, match="only the test runs it"):
            jobs[0].result()
        with pytest.raises(TimeoutError):
            asyncio.run(jobs[0].aresult(60))
        ran = manual.drain()
        assert [job.id for job in ran if job.queue == "default"] == [jobs[2].id, jobs[0].id], "dearest first"
        assert [job.result() for job in jobs] == [3, 4, 5]
        assert manual.run_one() is None


def test_time_passes_when_the_test_says_so(app: Windlass, add: Add) -> None:
    with app.testing.manual() as manual:
        late = add.using(delay="10m").enqueue(1)
        assert manual.drain() == []
        doomed = add.using(expires="5m").enqueue(1)
        manual.advance("599s")
        assert (late.state, doomed.refresh().reason) == (State.SCHEDULED, Reason.EXPIRED)
        manual.advance(timedelta(seconds=1))
        assert late.state is State.QUEUED
        assert late.cancel()
        manual.advance("8d")
        with pytest.raises(Missing):
            late.refresh()


def test_a_result_goes_before_its_job_does(app: Windlass, add: Add) -> None:
    with app.testing.manual() as manual:
        job = add.using(keep_result_for="10m").enqueue(1, 2)
        manual.drain()
        manual.advance("599s")
        assert job.result() == 3
        manual.advance("1s")
        nothing: object = job.result()
        assert (job.state, nothing) == (State.SUCCEEDED, None)


@pytest.mark.parametrize(
    ("raised", "states", "runs", "waits"),
    [
        (("error", "error", "error"), ["scheduled", "scheduled", "failed"], [1, 2, 3], [60, 120]),
        (("retry", "retry"), ["scheduled", "scheduled", "succeeded"], [1, 2, 3], [10, 10]),
        (("snooze", "snooze", "snooze"), ["scheduled"] * 3 + ["succeeded"], [1, 1, 1, 1], [3600] * 3),
        (("error", "fail"), ["scheduled", "failed"], [1, 2], [60]),
        (("fail",), ["failed"], [1], []),
    ],
)
def test_every_outcome_is_that_of_a_worker(
    app: Windlass,
    attempts: list[int],
    *,
    raised: tuple[str, ...],
    states: list[str],
    runs: list[int],
    waits: list[float],
) -> None:
    with app.testing.manual() as manual:
        job = app.tasks["tries"].enqueue(*raised)
        had: list[str] = []
        for wait in [*waits, 0.0]:
            ran = manual.drain()
            had += [one.state for one in ran]
            if wait:
                manual.advance(wait - 1)
                assert manual.drain() == [], "too early"
                manual.advance(1)
        assert had == states
        assert attempts == runs
        assert job.state == states[-1]


def test_draining_for_a_while_runs_what_becomes_due(app: Windlass, attempts: list[int]) -> None:
    with app.testing.manual() as manual:
        job = app.tasks["tries"].enqueue("error", "error")
        assert [one.state for one in manual.drain(within="1m")] == [State.SCHEDULED, State.SCHEDULED]
        assert [one.state for one in manual.drain(within="119s")] == []
        assert [one.state for one in manual.drain(within="1s")] == [State.SUCCEEDED]
        assert job.result() == 3


async def test_coroutines_are_drained_in_the_loop_of_the_test(app: Windlass) -> None:
    gate = asyncio.Event()

    @app.task
    async def opens() -> bool:
        gate.set()
        return gate.is_set()

    with app.testing.manual() as manual:
        job = await opens.aenqueue()
        assert (await manual.arun_one()) is not None
        assert gate.is_set()
        assert await job.aresult()
        opens.using(delay=5).enqueue()
        assert len(await manual.adrain(within=5)) == 1
        opens.enqueue()
        assert len(manual.drain()) == 1, "also from code that does not await"


def test_what_a_task_says_is_kept(app: Windlass) -> None:
    @app.task
    def says() -> None:
        current.progress(1, 2, "half way")
        current.log("so far so good")
        raise Cancelled

    with app.testing.manual() as manual:
        job = says.enqueue()
        ran = manual.run_one()
        assert ran is not None
        assert ran.progress is not None
        assert ran.progress.note == "half way"
        with pytest.raises(JobFailed, match="stopped while it ran"):
            job.result()


# Assertions


def test_what_was_queued_is_found_by_its_arguments_and_options(app: Windlass, add: Add) -> None:
    with app.testing.manual() as manual:
        plain = add.enqueue(1)
        fancy = add.using(delay="10m", queue="slow", tags=["x"], key="k").enqueue(5, b=6)
        assert manual.assert_enqueued(add).id == plain.id
        assert manual.assert_enqueued(add, 1, 2).id == plain.id, "defaults count"
        assert manual.assert_enqueued(add, a=1).id == plain.id
        assert manual.assert_enqueued(add, 5, 6).id == fancy.id
        assert manual.assert_enqueued(add.using(queue="slow")).id == fancy.id
        assert manual.assert_enqueued(add.using(delay=600, tags=["x"], key="k"), 5, 6).id == fancy.id
        manual.drain(within="1h")
        assert manual.assert_enqueued(add, 5, 6).state is State.SUCCEEDED


@pytest.mark.parametrize(
    ("options", "args", "message"),
    [
        ({}, (9,), r"add\(a=9, b=2\) was not queued; jobs of this task:\n  add\(a=1, b=2\)$"),
        ({"queue": "slow"}, (1,), r"add\(a=1, b=2\) {'queue': 'slow'} was not queued.*\n.*{'queue': 'default'}"),
        ({"delay": 5}, (), r"add\(…\) {'delay': 5} was not queued"),
    ],
)
def test_what_was_not_queued_is_said_clearly(
    app: Windlass, add: Add, options: Any, args: tuple[Any, ...], message: str
) -> None:
    with app.testing.manual() as manual:
        with pytest.raises(AssertionError, match="jobs of this task: none"):
            manual.assert_enqueued(add)
        add.enqueue(1)
        with pytest.raises(AssertionError, match=message):
            manual.assert_enqueued(add.using(**options), *args)


# Beginning and end


def test_everything_is_as_before_at_the_end(app: Windlass, add: Add) -> None:
    link, threads = app.link, threading.active_count()
    with app.testing.manual() as outer:
        add.enqueue(1)
        with app.testing.inline() as inner:
            assert add.enqueue(2).result() == 4
            assert len(inner.jobs) == 1
        assert len(outer.jobs) == 1
        add.enqueue(3)
        assert len(outer.jobs) == 2
        with pytest.raises(ZeroDivisionError), app.testing.inline():
            raise ZeroDivisionError
        assert app.link is outer
    assert app.link is link
    assert threading.active_count() <= threads
    with pytest.raises(RuntimeError, match="this is not open"):
        _ = outer.jobs
    with pytest.raises(Invalid, match="is not a folder"):
        add.enqueue(1)


def test_one_may_be_used_again_but_not_twice_at_once(app: Windlass, add: Add) -> None:
    manual = app.testing.manual()
    for _ in range(2):
        with manual:
            add.enqueue(1)
            assert len(manual.jobs) == 1
            with pytest.raises(RuntimeError, match="already in use"):
                manual.__enter__()


def test_both_are_decorators(app: Windlass, add: Add) -> None:
    @app.testing.inline()
    def sync(number: int) -> int:
        return add.enqueue(number).result()

    @app.testing.inline()
    async def coroutine(number: int) -> int:
        return await (await add.aenqueue(number)).aresult()

    assert (sync(1), sync(2), asyncio.run(coroutine(3))) == (3, 4, 5)
    assert sync.__name__ == "sync"


# Pages and fixtures


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The files that a page shows, by the name in their first line."""
    for code in re.findall(r"```\w+\n(# \S+\n.*?)```", page.read_text(), re.DOTALL):
        yield code.split("\n", 1)[0].removeprefix("# "), code


def pytest_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_the_examples_of_the_page_pass(tmp_path: Path) -> None:
    files = dict(blocks(ROOT / "docs" / "testing.md"))
    assert sorted(files) == ["pytest.ini", "shop.py", "test_inline.py", "test_manual.py"]
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    ran = pytest_in(tmp_path)
    assert "6 passed" in ran.stdout, ran.stdout
    assert not (tmp_path / "shop.db").exists()


def test_the_fixtures_take_their_app_from_a_fixture_too(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("""
import pytest
from windlass import Windlass
app = Windlass("never.db")
@app.task
def one() -> int: return 1

@pytest.fixture
def windlass_app(): return app

def test_inline(windlass_inline): assert one.enqueue().result() == 1
""")
    assert "1 passed" in pytest_in(tmp_path).stdout


def test_a_missing_app_is_said_clearly(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_inline(windlass_inline): pass")
    assert "say which app is meant: windlass_app = module:name" in pytest_in(tmp_path).stdout


def test_the_plugin_itself_loads_nothing_of_windlass(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("""
import sys
def test_light():
    assert "windlass.pytest_plugin" in sys.modules
    assert not {"windlass.app", "msgspec", "apsw", "redis"} & set(sys.modules)
""")
    ran = pytest_in(tmp_path, "-p", "no:valkey")
    assert "1 passed" in ran.stdout, ran.stdout
