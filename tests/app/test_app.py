"""The Python interface over real stores, with real workers: what is queued, what is refused, what comes back."""

import asyncio
import contextlib
import functools
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import apsw
import pytest

import windlass
from tests.support.patience import PATIENCE
from tests.support.servers import Server, StartServer
from tests.support.worker_harness import STORES, MakeHarness, WorkerHarness, until
from windlass import JobFailed, RetryPolicy, Windlass, current
from windlass.addresses import enter_service
from windlass.app import Task
from windlass.engine import Settings
from windlass.job_handle import Job
from windlass.model.errors import Invalid, Missing, TooLarge, Unavailable
from windlass.model.job import State
from windlass.model.operations import A, Count, Operation, Service, Show
from windlass.model.retry import FROM_START

TRADE = (Path(__file__).parents[1] / "support" / "shop_app.py").read_text()

Add = Task[..., int, int]

_numbers = itertools.count(1)


def own_tenant() -> str:
    return f"app{os.getpid()}x{next(_numbers)}"


def address_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    if kind == "file":
        return str(folder / "jobs.db")
    server = request.getfixturevalue("redis_server")
    assert isinstance(server, Server)
    return server.url


@pytest.fixture(params=STORES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return address_of(request.param, request, tmp_path)


@pytest.fixture
def app(address: str) -> Iterator[Windlass]:
    """A queue on each kind of store in turn, with a tenant of its own."""
    app = Windlass(address, tenant=own_tenant())
    yield app
    app.close()


@pytest.fixture
def add(app: Windlass) -> Add:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    return add


@pytest.fixture(params=STORES)
def trade(request: pytest.FixtureRequest, make_harness: MakeHarness, tmp_path: Path) -> WorkerHarness:
    """The sample app on each kind of store in turn, with a worker."""
    harness = make_harness(TRADE, store=address_of(request.param, request, tmp_path))
    harness.start("-c", "8", "--contexts", "1")
    return harness


def count(app: Windlass) -> int:
    return app.link.ask(Count(tenant=app.tenant)).count


# What is queued


def test_a_task_is_still_a_function(add: Add) -> None:
    assert add(1, 2) == 3
    assert add.name == "add"
    assert repr(add) == "<task add(a: int, b: int) -> int>"
    assert count(add.app) == 0


def test_every_way_to_queue_makes_a_job(add: Add) -> None:
    async def in_a_loop() -> list[Job[int]]:
        return [await add.aenqueue(1, 2), *await add.amap([(1, 2), (3, 4)])]

    jobs = [add.enqueue(1, b=2), add.delay(1, 2), *add.map([(1, 2), (3, 4)]), *asyncio.run(in_a_loop())]
    assert len({job.id for job in jobs}) == 7
    assert {job.state for job in jobs} == {State.QUEUED}
    assert count(add.app) == 7


def test_many_calls_are_queued_in_order(app: Windlass) -> None:
    @app.task
    def square(number: int) -> int:
        return number * number

    jobs = square.map(range(2500))
    assert count(app) == 2500
    assert [jobs[place].refresh().task for place in (0, 1000, 2499)] == ["square"] * 3
    assert square.map([]) == []


OPTIONS: list[tuple[str, Any, Any]] = [
    ("queue", "slow", "slow"),
    ("priority", -5, -5),
    ("tags", ["a", "b"], ["a", "b"]),
    ("timeout", "1m 30s", 90.0),
    ("timeout", timedelta(seconds=2), 2.0),
    ("timeout", None, None),
    ("max_retry", 3, 3),
    ("max_retry", None, None),
    ("retry", "from-start", FROM_START),
    ("retry", {"base": 1, "factor": 3}, RetryPolicy(base=1.0, factor=3.0)),
    ("retry", {"base": "1m", "deadline": "1h"}, RetryPolicy(base=60.0, deadline=3600.0)),
    ("retry", RetryPolicy(jitter=0), RetryPolicy(jitter=0)),
    ("keep_result", "once", "once"),
    ("keep_success", "1h", 3600.0),
    ("keep_failure", None, None),
    ("expires", 60, 60.0),
    ("owner_timeout", "10m", 600.0),
    ("keep_result_for", "10m", 600.0),
    ("headers", {"trace": "1"}, {"trace": "1"}),
    ("isolate", True, True),
    ("input", True, True),
    ("key", "order/7", "order/7"),
]


@pytest.mark.parametrize(("name", "given", "kept"), OPTIONS)
def test_an_option_reaches_the_job(add: Add, name: str, given: Any, kept: Any) -> None:
    assert getattr(add.using(**{name: given}).enqueue(1, 2).refresh(), name) == kept


def test_options_come_from_the_queue_the_task_and_the_call_the_nearest_first(address: str) -> None:
    app = Windlass(address, tenant=own_tenant(), defaults={"queue": "all", "max_retry": 1, "timeout": "5s"})

    @app.task(name="shop.sell", queue="sales", max_retry=2)
    def sell() -> None: ...

    job = sell.using(max_retry=3).using(priority=1).enqueue().refresh()
    assert (job.task, job.queue, job.max_retry, job.timeout, job.priority) == ("shop.sell", "sales", 3, 5.0, 1)
    assert sell.enqueue().refresh().max_retry == 2, "`using` leaves the task as it was"
    app.close()


def test_a_delay_schedules(add: Add) -> None:
    job = add.using(delay="10m").enqueue(1, 2).refresh()
    assert job.state is State.SCHEDULED
    assert job.run_at is not None
    assert job.run_at - job.created_at == timedelta(minutes=10)
    noon = datetime(2040, 1, 1, 12, tzinfo=UTC)
    assert add.using(run_at=noon).enqueue(1, 2).refresh().run_at == noon


def test_the_same_key_is_the_same_job(add: Add) -> None:
    first, second = (add.using(key="one").enqueue(1, number) for number in (1, 2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != add.using(key="two").enqueue(1, 1)
    assert count(add.app) == 2


def test_the_same_id_is_the_same_job(add: Add) -> None:
    id = add.enqueue(1, 2).id
    assert add.using(id=id).enqueue(1, 2).id == id
    assert count(add.app) == 1


# What is refused


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1,), {}, "missing a required argument: 'b'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1, "2"), {}, "arguments.b: Expected `int`, got `str`"),
        ((1, 2), {"c": 3}, "unexpected keyword argument 'c'"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused_before_anything_is_sent(
    add: Add, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    async def in_a_loop() -> None:
        await add.aenqueue(*args, **kwargs)

    with pytest.raises(Invalid, match=message):
        add.enqueue(*args, **kwargs)
    with pytest.raises(Invalid, match=message):
        asyncio.run(in_a_loop())
    if not kwargs:
        with pytest.raises(Invalid, match=message):
            add.map([(1, 1), args])
    assert count(add.app) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queu": "x"}, "queu: there is no such option; there are after, after_failure, delay, expires"),
        ({"timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"timeout": -1}, "timeout: a duration is between"),
        ({"timeout": [1]}, r"timeout: \[1\] is not a duration"),
        ({"priority": "high"}, "priority: Expected `int`"),
        ({"queue": "a b"}, "queue: not a name"),
        ({"retry": "now"}, "retry: 'now' is no policy: exponential, from-start, until-deadline"),
        ({"retry": {"bas": 1}}, "retry.bas: there is no such field"),
        ({"retry": {"factor": 0}}, "retry.factor: Expected `float` >= 1"),
        ({"keep_result": "maybe"}, "keep_result: 'maybe' is none of: keep, once, none"),
        ({"max_retry": -1}, "max_retry: Expected `int` >= 0"),
        ({"tags": [""]}, r"tags\[0\]: Expected `str` of length >= 1"),
        ({"headers": {"a": 1}}, "headers"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_where_it_is_said(options: dict[str, Any], message: str) -> None:
    app = Windlass("nowhere.db")
    with pytest.raises(Invalid, match=message):
        app.task(name="wrong", **options)(lambda: None)
    named = app.task(name="fine")(lambda: None)
    with pytest.raises(Invalid, match=message):
        named.using(**options)
    assert not Path("nowhere.db").exists()


def test_only_a_function_with_a_name_becomes_a_task() -> None:
    app = Windlass("nowhere.db")
    with pytest.raises(Invalid, match="name: "):
        app.task(lambda: None)

    class Shop:
        def sell(self) -> None: ...

        @staticmethod
        def buy(what: str) -> str:
            return what

    with pytest.raises(Invalid, match=r"sell is a method: only a function can be a task"):
        app.task(Shop.sell)
    assert app.task(Shop.buy)("tea") == "tea"
    assert app.task(name="doubled")(lambda number: number * 2)(3) == 6
    with pytest.raises(Invalid, match="there is already a task 'buy'"):
        app.task(Shop.buy)
    with pytest.raises(Invalid, match=r"a task is a function, not 'sell': @app.task, or @app.task\(name="):
        app.task("sell")  # type: ignore[call-overload]
    with pytest.raises(Invalid, match="has no name of its own"):
        app.task(functools.partial(Shop.buy, "tea"))


def test_a_generator_which_would_do_nothing_is_no_task() -> None:
    app = Windlass("nowhere.db")

    def count() -> Iterator[int]:
        yield 1

    async def co_count() -> AsyncIterator[int]:
        yield 1

    for function in (count, co_count):
        with pytest.raises(Invalid, match=r"count is a generator, which would do nothing as a task"):
            app.task(function)


def test_errors_are_called_what_they_are_imported_as() -> None:
    errors = {name: found for name in windlass.__all__ if isinstance(found := getattr(windlass, name), type)}
    for name, error in errors.items():
        if issubclass(error, BaseException):
            assert f"{error.__module__}.{error.__qualname__}" == f"windlass.{name}"


def test_an_address_that_is_none_is_refused_before_a_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="'localhost:7717' is not the URL of a server"):
        Windlass(server="localhost:7717")
    for address in ("localhost:6379", "redis:localhost", "127.0.0.1:6379/0"):
        with contextlib.chdir(tmp_path), pytest.raises(Invalid, match="Write redis://HOST:PORT"):
            Windlass(address).job(str(uuid4())).refresh()
    assert not [*tmp_path.iterdir()]


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(Unavailable, match=r"the store does not answer: 127\.0\.0\.1:1: Connection refused") as caught:
        Windlass("redis://127.0.0.1:1").task(name="x")(lambda: None).enqueue()
    told = "".join(traceback.format_exception(caught.value))
    assert told.count("Traceback") == 1, "it was tried twice, which is not for the user to read"


def test_a_payload_that_is_too_large_is_refused(address: str) -> None:
    app = Windlass(address, tenant=own_tenant(), settings=Settings(most_payload=1000))

    @app.task
    def keep(data: bytes) -> None: ...

    with pytest.raises(TooLarge, match="1000 are allowed"):
        keep.enqueue(bytes(2000))
    assert count(app) == 0
    app.close()


def test_a_store_that_is_none_is_refused_when_it_is_first_used(tmp_path: Path) -> None:
    for store in ("ftp://x", str(tmp_path / "no" / "folder.db")):
        app = Windlass(store)
        task = app.task(name="x")(lambda: None)
        with pytest.raises(Invalid):
            task.enqueue()


def test_an_unknown_job_is_missing(app: Windlass) -> None:
    with pytest.raises(Missing):
        app.job(str(uuid4())).refresh()


# What comes back


def test_results_come_back_as_their_types(trade: WorkerHarness) -> None:
    shop = trade.tasks
    ada = shop.Customer(name="Ada", since=date(2020, 2, 29))
    result = shop.bill.enqueue(ada, Decimal("1.10"), Decimal("2.20"), line="milk").result(PATIENCE)
    assert result == shop.Bill(ada, Decimal("3.30"), [("milk", 2)])
    assert shop.abill.enqueue(ada).result(PATIENCE) == [ada]
    assert shop.abill.enqueue(None).result(PATIENCE) == []
    job = shop.nothing.enqueue()
    assert job.result(PATIENCE) is None
    assert job.state is State.SUCCEEDED
    assert trade.app.job(job.id).result() is None
    once = shop.abill.using(keep_result="once").enqueue(ada)
    assert [once.result(PATIENCE), once.result(PATIENCE)] == [[ada], None]
    assert shop.abill.using(keep_result="none").enqueue(ada).result(PATIENCE) is None

    async def in_a_loop() -> Any:
        return await (await shop.abill.aenqueue(ada)).aresult(10)

    assert asyncio.run(in_a_loop()) == [ada]
    assert trade.app.job(shop.bill.enqueue(ada).id).result(PATIENCE)["total"] == "0", "without its task, a plain value"


def test_a_task_knows_its_job(trade: WorkerHarness) -> None:
    options = {"tags": ["x"], "headers": {"a": "b"}, "timeout": "10s"}
    job = trade.tasks.describe.using(**options).enqueue()
    told = job.result(PATIENCE)
    assert told.pop("pid") != os.getpid()
    assert told == {
        "id": job.id,
        "task": "describe",
        "queue": "default",
        "attempt": 1,
        "tags": ["x"],
        "headers": {"a": "b"},
        "deadline": True,
        "cancelled": False,
        "inside": True,
    }


def test_a_failure_comes_back_with_what_was_raised(trade: WorkerHarness) -> None:
    shop = trade.tasks
    with pytest.raises(JobFailed, match="failed: LookupError: lost") as failed:
        shop.breaks.enqueue("lost").result(PATIENCE)
    error = failed.value.error
    assert error is not None
    assert (failed.value.state, error.type, error.message) == (State.FAILED, "LookupError", "lost")
    assert "in breaks" in error.traceback
    assert "raise LookupError(word)" in error.traceback
    with pytest.raises(JobFailed, match="never"):
        shop.gives_up.enqueue().result(PATIENCE)
    with pytest.raises(JobFailed, match="the result cannot be kept: a object cannot be sent"):
        shop.unencodable.enqueue().result(PATIENCE)
    with pytest.raises(JobFailed, match=r"its outcome could not be stored: .* bytes, at most"):
        shop.huge.enqueue().result(PATIENCE)


def test_a_payload_that_does_not_fit_fails_the_job_and_not_the_worker(trade: WorkerHarness) -> None:
    said = trade.run("enqueue", "bill", '{"customer": 7}', "--wait", "--tenant", trade.tenant)
    assert "arguments" in said.stdout + said.stderr
    assert trade.tasks.nothing.enqueue().result(PATIENCE) is None


def test_a_task_may_choose_its_own_outcome(trade: WorkerHarness) -> None:
    shop = trade.tasks
    assert shop.again.enqueue().result(PATIENCE) == 2
    assert shop.later.enqueue(str(trade.folder / "mark")).result(PATIENCE) == 1, "a snooze uses no attempt"


def test_a_job_makes_another_with_its_success(trade: WorkerHarness) -> None:
    assert trade.app.job(trade.tasks.spawns.enqueue().result(PATIENCE)).result(PATIENCE) is None


def test_a_running_job_is_watched_and_cancelled(trade: WorkerHarness) -> None:
    job = trade.tasks.waits.enqueue()

    def half_way() -> bool:
        progress = job.refresh().progress
        return progress is not None and progress.note == "half way"

    until(half_way)
    assert job.state is State.RUNNING
    with pytest.raises(TimeoutError, match=r"has not ended within 0.01 s, it is still running: ask again"):
        job.result("10ms")
    assert job.cancel()
    with pytest.raises(JobFailed, match="cancelled") as failed:
        job.result(PATIENCE)
    assert failed.value.state is State.CANCELLED
    assert not job.cancel()


def test_a_finished_job_is_run_again(trade: WorkerHarness) -> None:
    job = trade.tasks.nothing.enqueue()
    job.result(PATIENCE)
    assert job.retry()
    assert job.result(PATIENCE) is None

    assert asyncio.run(job.aretry())
    job.result(PATIENCE)


# Waiting and asking without a worker


def test_a_result_is_waited_for_no_longer_than_said(add: Add) -> None:
    job = add.enqueue(1, 2)
    with pytest.raises(TimeoutError, match=f"job {job.id} has not ended within 0.05 s, it is still queued: ask again"):
        job.result(0.05)

    async def in_a_loop() -> None:
        await add.app.job(job.id).aresult("50ms")

    with pytest.raises(TimeoutError):
        asyncio.run(in_a_loop())


def test_a_waiting_job_is_cancelled_and_queued_again(add: Add) -> None:
    job = add.enqueue(1, 2)
    assert not job.retry()
    assert job.cancel()
    assert job.refresh().state is State.CANCELLED
    with pytest.raises(JobFailed, match="cancelled"):
        job.result()
    assert job.retry()
    assert job.refresh().state is State.QUEUED

    async def in_a_loop() -> tuple[bool, State]:
        return await job.acancel(), (await job.arefresh()).state

    assert asyncio.run(in_a_loop()) == (True, State.CANCELLED)


def test_an_id_that_no_format_has_is_refused(app: Windlass) -> None:
    task = app.task(name="named")(lambda: None)
    with pytest.raises(Invalid, match="is not a UUID"):
        task.using(id="\ud800").enqueue()


def test_what_was_given_for_a_task_may_be_changed_afterwards(app: Windlass) -> None:
    tags: list[str] = []
    task = app.task(name="tagged", tags=tags)(lambda: None)
    for tag in ("a", "b"):
        assert app.ask(Show(id=task.enqueue().id)).tags == []
        tags.append(tag)


# Threads, loops, forks, restarts


def test_many_threads_queue_at_once(add: Add) -> None:
    ready = threading.Barrier(8)

    def queue_some(thread: int) -> list[str]:
        ready.wait()
        return [add.enqueue(thread, number).id for number in range(20)]

    with ThreadPoolExecutor(8) as threads:
        ids = {id for some in threads.map(queue_some, range(8)) for id in some}
    assert len(ids) == 160
    assert count(add.app) == 160


async def test_of_many_calls_at_once_only_the_wrong_one_fails(app: Windlass) -> None:
    @app.task
    def keep(data: bytes) -> None: ...

    most = 1 << 20
    answers = await asyncio.gather(
        *(keep.aenqueue(bytes(most + 1 if number == 40 else 10)) for number in range(64)), return_exceptions=True
    )
    assert isinstance(answers[40], TooLarge)
    jobs = [answer for answer in answers if isinstance(answer, Job)]
    assert len(jobs) == 63
    assert count(app) == 63


def test_event_loops_come_and_go_and_leave_nothing_open(add: Add) -> None:
    async def queue_one() -> str:
        return (await add.aenqueue(1, 2)).id

    add.enqueue(1, 2)
    asyncio.run(queue_one())  # SQLite keeps one descriptor for the next who opens the file
    threads, files = threading.active_count(), open_files()
    ids = {asyncio.run(queue_one()) for _ in range(5)}
    assert len(ids) == 5
    assert threading.active_count() <= threads
    assert open_files() <= files
    assert count(add.app) == 7


def test_event_loops_of_several_threads_queue_at_once(add: Add) -> None:
    async def queue_some(thread: int) -> int:
        return len({job.id for job in await asyncio.gather(*(add.aenqueue(thread, number) for number in range(10)))})

    with ThreadPoolExecutor(4) as threads:
        queued = threads.map(lambda thread: asyncio.run(queue_some(thread)), range(12))
        assert list(queued) == [10] * 12
    assert count(add.app) == 120


async def test_an_opening_that_fails_once_is_made_good_for_all_who_waited_for_it(
    add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [Unavailable("not yet")]

    async def enter_late(*arguments: Any) -> Service:
        await asyncio.sleep(0.01)
        if faults:
            raise faults.pop()
        return await enter_service(*arguments)

    monkeypatch.setattr("windlass.connection.enter_service", enter_late)
    await asyncio.gather(*(add.aenqueue(1, number) for number in range(10)))
    gc.collect()  # what was opened in vain, and closes what it has opened
    await asyncio.sleep(0.05)
    await add.aenqueue(2, 3)
    assert count(add.app) == 11


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_loop_may_close_what_it_has_opened_and_open_it_again(add: Add) -> None:
    await add.aenqueue(1, 2)
    await add.app.aclose()
    await add.app.aclose()
    await add.aenqueue(1, 2)
    assert count(add.app) == 2


def test_what_was_closed_is_opened_again(add: Add) -> None:
    add.enqueue(1, 2)
    add.app.close()
    add.app.close()
    add.enqueue(1, 2)
    assert count(add.app) == 2


def in_a_child(work: Callable[[], None]) -> None:
    """Run in a forked process; its failure is ours."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # newer Pythons warn of forks beside threads: that is the test
        pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # nobody else would end it
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def test_parent_and_child_use_the_queue_each_by_itself(add: Add) -> None:
    first = add.enqueue(1, 2)

    def use_it() -> None:
        add.enqueue(1, 2)
        add.map([(number, 0) for number in range(10)])
        assert first.state is State.QUEUED
        with pytest.raises(TimeoutError):
            first.result(0.01)
        asyncio.run(queue_one())

    async def queue_one() -> None:
        await add.aenqueue(1, 2)

    for _ in range(3):
        in_a_child(use_it)
        add.enqueue(1, 2)
        with pytest.raises(TimeoutError):
            first.result(0.01)
    assert count(add.app) == 1 + 3 * 13


def test_a_fork_does_not_disturb_who_waits(add: Add) -> None:
    waiting = add.enqueue(1, 2)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(waiting.result, 0.6)
        for _ in range(3):
            in_a_child(lambda: None)
            add.enqueue(1, 2)
        with pytest.raises(TimeoutError, match=r"has not ended within 0.6 s"):
            answer.result()


def test_a_file_that_an_event_loop_holds_open_is_refused_to_a_child(tmp_path: Path) -> None:
    app = Windlass(str(tmp_path / "jobs.db"))
    task = app.task(name="x")(lambda: None)

    def use_it() -> None:
        with pytest.raises(Unavailable, match="fork first, then open"):
            task.enqueue()

    async def main() -> None:
        await task.aenqueue()
        await asyncio.to_thread(in_a_child, use_it)
        await task.aenqueue()

    asyncio.run(main())
    assert count(app) == 2
    app.close()


@pytest.mark.parametrize("idle", [1, 4])
def test_a_server_that_was_restarted_takes_the_next_job_once(start_server: StartServer, idle: int) -> None:
    server = start_server("redis", fsync="always")
    app = Windlass(server.url)
    task = app.task(name="x")(lambda: None)
    ready = threading.Barrier(idle)

    def queue_one(_: int) -> None:
        ready.wait()
        task.enqueue()

    with ThreadPoolExecutor(idle) as threads:
        list(threads.map(queue_one, range(idle)))
    server.restart()
    task.enqueue()
    server.restart()
    task.map([(), ()])
    assert count(app) == idle + 3
    app.close()


async def test_a_server_that_was_restarted_takes_the_next_job_of_a_loop_once(start_server: StartServer) -> None:
    server = start_server("redis", fsync="always")
    app = Windlass(server.url)
    task = app.task(name="x")(lambda: None)
    await task.aenqueue()
    server.restart()  # the loop has had no chance to notice
    await asyncio.gather(*(task.aenqueue() for _ in range(3)))
    server.restart()
    await task.amap([(), ()])
    assert count(app) == 6
    app.close()


async def test_a_lost_answer_does_not_make_two_jobs(add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    link, lost = add.app.link, iter([True, False])
    ask = link.aask

    async def answer_is_lost(operation: Operation[A]) -> A:
        answer = await ask(operation)
        if next(lost, False):
            raise Unavailable("the connection was closed")
        return answer

    monkeypatch.setattr(link, "aask", answer_is_lost)
    job = await add.aenqueue(1, 2)
    assert (await job.arefresh()).state is State.QUEUED
    assert count(add.app) == 1


def test_a_server_that_is_down_is_unavailable_and_then_is_not(start_server: StartServer) -> None:
    server = start_server("redis", fsync="always")
    app = Windlass(server.url)
    task = app.task(name="x")(lambda: None)
    server.stop()
    with pytest.raises(Unavailable):
        task.enqueue()
    server.start()
    task.enqueue()
    assert count(app) == 1
    app.close()


# The package


def test_the_store_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_STORE", "redis://elsewhere")
    assert Windlass().store == "redis://elsewhere"
    assert Windlass("here.db").store == "here.db"
    monkeypatch.setenv("WINDLASS_STORE", "")
    assert Windlass().store == "windlass.db"


def test_every_public_name_is_there() -> None:
    assert sorted(windlass.__all__, key=lambda name: (not name.isupper(), name)) == windlass.__all__
    for name in windlass.__all__:
        assert getattr(windlass, name) is not None
    assert set(windlass._PLACES) | {"RetryPolicy", "__version__"} == set(windlass.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Queue'"):
        windlass.Queue  # noqa: B018


def loaded_by(code: str) -> set[str]:
    told = f"{code}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True).stdout.split())


def test_importing_windlass_loads_next_to_nothing() -> None:
    assert not loaded_by("import windlass") & {"asyncio", "msgspec", "apsw", "redis", "hiredis", "typing_extensions"}


def test_drivers_are_loaded_when_a_store_is_opened() -> None:
    code = """
from windlass import Windlass, current
app = Windlass('redis://localhost')
@app.task(max_retry=1)
def add(a: int, b: int) -> int: return a + b
add.using(delay=1)
"""
    assert not loaded_by(code) & {"apsw", "redis", "hiredis", "uvloop", "psutil", "rich", "cyclopts", "pytest"}


@pytest.mark.parametrize("use", ["job", "folder"])
def test_outside_a_task_there_is_no_current_job(use: str) -> None:
    assert not current
    with pytest.raises(RuntimeError, match="only inside a task that a worker runs"):
        getattr(current, use)
    with pytest.raises(RuntimeError, match="only inside a task"):
        current.input()
    assert current.spawn(None) == ""  # type: ignore[arg-type]


def test_no_connection_is_left_behind(tmp_path: Path) -> None:
    app = Windlass(str(tmp_path / "jobs.db"))
    app.task(name="x")(lambda: None).enqueue()
    app.close()
    assert str(tmp_path / "jobs.db") not in {getattr(one, "path", "") for one in apsw.connections()}
