"""Dependencies, lifespans and hooks around runs, in plain calls and inside tests."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest

from windlass import Depends, Fail, Invalid, Retry, RunningJob, Snooze, TaskOutcome, Windlass, current
from windlass.call.arguments import CallSignature
from windlass.model.errors import WindlassError

said: list[str] = []


@pytest.fixture(autouse=True)
def silence() -> None:
    said.clear()


@pytest.fixture
def app() -> Windlass:
    return Windlass(":memory:")


class Pool:
    def __init__(self, name: str) -> None:
        self.name = name


def get_pool() -> Pool:
    said.append("pool made")
    return Pool("real")


def get_session(pool: Annotated[Pool, Depends(get_pool)]) -> Iterator[str]:
    said.append(f"session of {pool.name}")
    try:
        yield f"session of {pool.name}"
    except ValueError:
        said.append("rolled back")
        raise
    finally:
        said.append("session closed")


async def get_client() -> AsyncIterator[str]:
    yield "client"
    said.append("client closed")


async def get_token() -> str:
    return "token"


Session = Annotated[str, Depends(get_session)]


# What is part of the payload


def charge(order: int, db: Session, *, note: str = "", pool: Pool = Depends(get_pool)) -> str:
    if order < 0:
        raise ValueError("no such order")
    return f"{order} {note} {db} {pool.name}"


def test_a_dependency_is_no_part_of_the_payload() -> None:
    plan = CallSignature(charge)
    assert str(plan.signature) == "(order: int, *, note: str = '') -> str"
    assert plan.unpack(plan.pack((7,), {"note": "x"})) == ((), {"order": 7, "note": "x"})
    assert plan.unpack(b"\x07") == ((), {"order": 7})
    assert plan.takes_one
    for wrong in ((7, "db"), (7,)):
        with pytest.raises(Invalid, match=r"charge\(order"):
            plan.pack(wrong, {"pool": 1} if len(wrong) == 1 else {})
    with pytest.raises(Invalid, match="db"):
        plan.unpack(b"\x82\xa5order\x07\xa2db\x01")


def test_a_task_with_dependencies_alone_takes_no_argument() -> None:
    def sweep(db: Session) -> None: ...

    assert CallSignature(sweep).unpack(b"\xc0") == ((), {})
    assert not CallSignature(sweep).takes_one


def test_names_of_any_kind_do_not_bring_a_dependency_in() -> None:
    def gather(*parts: str, db: Session, **more: Any) -> None: ...

    plan = CallSignature(gather)
    assert plan.unpack(plan.pack(("a", "b"), {"c": 1})) == (("a", "b"), {"c": 1})
    with pytest.raises(Invalid, match="'db' is a dependency"):
        plan.unpack(plan.pack((), {}).replace(b"\x80", b"\x81\xa2db\x01"))
    with pytest.raises(Invalid, match="'db' is a dependency"):
        plan.pack((), {"db": 1})


def test_a_dependency_among_places_without_names_is_refused() -> None:
    def gather(first: int, db: Session, /) -> None: ...

    def spread(db: Session, *parts: str) -> None: ...

    for function in (gather, spread):
        with pytest.raises(Invalid, match=r"'db' must stand behind a \*"):
            _ = CallSignature(function).signature


def test_an_annotation_that_cannot_be_read_hides_no_dependency() -> None:
    def hidden(order: int, db: "Annotated[Unknown, Depends(get_session)]") -> None: ...  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(Invalid, match="cannot be read"):
        CallSignature(hidden).pack((1,), {})


# Plain calls


def test_a_plain_call_makes_what_it_is_not_given(app: Windlass) -> None:
    task = app.task(charge)
    assert task(7, note="x") == "7 x session of real real"  # type: ignore[call-arg]
    assert said == ["pool made", "session of real", "session closed"], "one pool, and all is closed"
    assert task(7, "mine") == "7  mine real"
    assert task(7, db="mine", pool=Pool("other")) == "7  mine other"


async def test_a_plain_call_of_a_coroutine_too(app: Windlass) -> None:
    @app.task
    async def fetch(url: str, client: str = Depends(get_client), token: str = Depends(get_token)) -> str:
        return f"{url} {client} {token}"

    assert await fetch("/") == "/ client token"
    assert said == ["client closed"]
    assert await fetch("/", client="mine") == "/ mine token"


def test_a_provider_learns_of_the_error_and_cannot_hide_it(app: Windlass) -> None:
    def hiding() -> Iterator[str]:
        try:
            yield "hidden"
        except ValueError:
            said.append("hidden")

    @app.task
    def fail(db: Session, hider: str = Depends(hiding)) -> None:
        raise ValueError("no such order")

    with pytest.raises(ValueError, match="no such order"):
        fail("mine")
    assert said == ["hidden"]
    with pytest.raises(ValueError, match="no such order"):
        app.task(charge)(-1)  # type: ignore[call-arg]
    assert said[-2:] == ["rolled back", "session closed"]


def test_what_cannot_be_provided_is_refused(app: Windlass) -> None:
    def lonely(url: str) -> str:
        return url

    def one(other: str = Depends(lambda: "replaced below")) -> str:
        return other

    def other(back: str = Depends(one)) -> str:
        return back

    one.__defaults__ = (Depends(other),)

    @app.task
    def plain(token: str = Depends(get_token)) -> None: ...

    @app.task
    def without(url: str = Depends(lonely)) -> None: ...

    @app.task
    def circular(x: str = Depends(one)) -> None: ...

    for task, why in ((plain, "plain function"), (without, "nothing provides its 'url'"), (circular, "circle")):
        with pytest.raises(Invalid, match=why):
            app.hooks.check(task)
    with pytest.raises(Invalid, match="Depends takes a function"):
        Depends("pool")  # type: ignore[arg-type]


# Inside tests


def run_both_ways(app: Windlass, enqueue: Callable[[], Any]) -> list[Any]:
    """Inline and manual."""
    with app.testing.inline():
        first = enqueue().result()
    with app.testing.manual() as manual:
        job = enqueue()
        manual.drain()
        return [first, job.result()]


def test_inside_a_test_dependencies_are_made_for_each_run(app: Windlass) -> None:
    task = app.task(charge)
    assert run_both_ways(app, lambda: task.enqueue(7)) == ["7  session of real real"] * 2  # type: ignore[call-arg]
    assert said == ["pool made", "session of real", "session closed"] * 2


def test_a_test_overrides_a_provider(app: Windlass) -> None:
    task = app.task(charge)

    def fake_pool() -> Iterator[Pool]:
        yield Pool("fake")
        said.append("fake closed")

    with app.testing.inline(), app.testing.override(get_pool, fake_pool):
        assert task.enqueue(7).result() == "7  session of fake fake"  # type: ignore[call-arg]
        assert task(7) == "7  session of fake fake"  # type: ignore[call-arg]
        with app.testing.override(get_pool, lambda: Pool("inner")):
            assert task(7) == "7  session of inner inner"  # type: ignore[call-arg]
        assert task(7) == "7  session of fake fake"  # type: ignore[call-arg]
    assert task(7) == "7  session of real real"  # type: ignore[call-arg]
    assert said.count("fake closed") == 3
    with pytest.raises(Invalid, match="makes no value"), app.testing.override(get_pool, Pool("fake")):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_inside_a_test_a_lifespan_is_open_in_each_run(app: Windlass, asynchronous: bool) -> None:
    @app.lifespan
    def config() -> Iterator[str]:
        said.append("config opened")
        yield "config"
        said.append("config closed")

    @app.lifespan
    async def pool(base: Annotated[str, Depends(config)]) -> AsyncIterator[Pool]:
        said.append("pool opened")
        yield Pool(f"pool with {base}")
        said.append("pool closed")

    @app.task
    async def aname(pool: Pool = Depends(pool)) -> str:
        return pool.name

    @app.task
    def name(pool: Pool = Depends(pool)) -> str:
        return pool.name

    task: Any = aname if asynchronous else name
    assert run_both_ways(app, task.enqueue) == ["pool with config"] * 2
    assert said == ["config opened", "pool opened", "pool closed", "config closed"] * 2
    with app.testing.inline(), app.testing.override(pool, lambda: Pool("fake")):
        assert task.enqueue().result() == "fake"
    assert said[8:] == ["config opened", "config closed"]


async def test_inside_a_test_a_lifespan_is_open_in_the_loop_of_the_test(app: Windlass) -> None:
    @app.lifespan
    @asynccontextmanager
    async def pool() -> AsyncIterator[str]:
        yield "pool"
        said.append("closed")

    @app.task
    async def name(pool: Annotated[str, Depends(pool)] = "") -> str:
        return pool

    with app.testing.inline():
        assert await (await name.aenqueue()).aresult() == "pool"
    assert said == ["closed"]


def test_inside_a_test_a_lifespan_that_fails_fails_the_test(app: Windlass) -> None:
    @app.lifespan
    def broken() -> Iterator[None]:
        if not said:
            raise OSError("no database")
        yield

    @app.task
    def task() -> None: ...

    with app.testing.inline(), pytest.raises(Exception, match=r"lifespan .*broken"):
        task.enqueue()


# Around runs


def declare_hooks(app: Windlass) -> None:
    @app.around
    def outer(job: RunningJob) -> Generator[None, TaskOutcome, None]:
        said.append(f"outer {job.task} {job.attempt}")
        outcome = yield
        said.append(f"outer {outcome.result} {outcome.error!r}")

    @app.around
    def inner(_: RunningJob) -> Generator[None, TaskOutcome, None]:
        said.append(f"inner {current.job.task}")
        outcome = yield
        said.append(f"inner {outcome.result} {outcome.error!r}")


def test_hooks_stand_around_runs_in_the_order_of_their_declaration(app: Windlass) -> None:
    declare_hooks(app)

    @app.task
    def double(n: int) -> int:
        said.append("run")
        return n * 2

    @app.task
    async def adouble(n: int) -> int:
        said.append("run")
        return n * 2

    for task in (double, adouble):
        said.clear()
        with app.testing.inline():
            assert task.enqueue(2).result() == 4
        assert said == [f"outer {task.name} 1", f"inner {task.name}", "run", "inner 4 None", "outer 4 None"]
    said.clear()
    assert double(2) == 4
    assert said == ["run"], "a plain call is no run of a job"


def test_hooks_see_the_error_and_may_replace_it(app: Windlass) -> None:
    @app.around
    def translate(_: RunningJob) -> Generator[None, TaskOutcome, None]:
        outcome = yield
        if isinstance(outcome.error, ConnectionError):
            raise Retry("the net is down", after="1h")
        if isinstance(outcome.error, ValueError):
            raise Fail("it will never do")

    declare_hooks(app)

    @app.task(max_retry=5)
    def fail(how: str) -> None:
        raise {"net": ConnectionError, "value": ValueError, "key": KeyError}[how]("broken")

    with app.testing.manual() as manual:
        jobs = [fail.enqueue(how) for how in ("net", "value", "key")]
        manual.drain()
        net, value, key = [job.refresh() for job in jobs]
    assert (net.state, net.reason) == ("scheduled", "retry")
    assert value.state == "failed"
    assert value.error is not None
    assert (value.error.type, value.error.message) == ("windlass.Fail", "it will never do")
    assert (key.state, key.reason) == ("scheduled", "error")
    assert key.error is not None
    assert "windlass/call/hooks.py" not in key.error.traceback, "only the frames of the task"
    assert "inner None ConnectionError('broken')" in said


def test_a_hook_may_keep_a_job_from_running(app: Windlass) -> None:
    @app.around
    def hold(job: RunningJob) -> Generator[None, TaskOutcome, None]:
        if "hold" in job.tags:
            raise Snooze("1h")
        yield

    @app.task
    def task() -> None:
        said.append("run")

    with app.testing.manual() as manual:
        job = task.using(tags=["hold"]).enqueue()
        task.enqueue()
        manual.drain()
        assert job.refresh().reason == "snoozed"
    assert said == ["run"]


def test_a_hook_must_yield_once(app: Windlass) -> None:
    yields: list[int] = []

    @app.around
    def hook(_: RunningJob) -> Generator[None, TaskOutcome, None]:
        for _number in yields:
            yield

    @app.task
    def task() -> None:
        said.append("run")

    with app.testing.inline(raises=True):
        with pytest.raises(Invalid, match="must yield once: it did not"):
            task.enqueue()
        assert said == []
        yields += [1, 2]
        with pytest.raises(Invalid, match="must yield once: it did so again"):
            task.enqueue()
        yields.pop()
        assert task.enqueue().result() is None


def test_wrong_hooks_are_refused(app: Windlass) -> None:
    @app.task
    def task() -> None: ...

    for declare, wrong in ((app.around, lambda job: None), (app.lifespan, task), (app.before_fork, "x")):
        with pytest.raises(WindlassError):
            declare(wrong)  # type: ignore[type-var]


def test_without_hooks_a_task_is_run_as_it_is(app: Windlass) -> None:
    @app.task
    def task() -> None: ...

    assert app.hooks.wrap(task) is task
