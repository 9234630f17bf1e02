"""A soft timeout is raised in a task's own code: it cleans up or returns what it has; uncaught it is a timeout."""

import threading
import time

import pytest

from tests.support.worker_harness import STORES, MakeHarness, StoreKind, WorkerHarness
from windlass import SoftTimeout, Windlass
from windlass.model.errors import Invalid
from windlass.model.job import Reason, State
from windlass.worker.contexts.soft_timeouts import _Alarm

TASKS = """
import asyncio
import os
import threading
import time
from pathlib import Path
from windlass import SoftTimeout, Windlass, current
app = Windlass(tenant=os.environ["HARNESS_TENANT"])
SOON = 1.0  # long enough for a task to begin, whatever else this machine does

def wait():
    while True:
        time.sleep(0.005)

@app.task(soft_timeout=SOON, timeout=60)
def function(catch: bool) -> str:
    try:
        wait()
    except SoftTimeout:
        if catch:
            return "cleaned up"
        raise

@app.task(soft_timeout=SOON, timeout=60)
async def coroutine(catch: bool) -> str:
    try:
        await asyncio.sleep(600)
    except SoftTimeout:
        if catch:
            await asyncio.sleep(0.01)
            return "cleaned up"
        raise

@app.task(soft_timeout=SOON, timeout=60, isolate=True)
def alone(catch: bool) -> str:
    try:
        time.sleep(600)
    except SoftTimeout:
        if catch:
            return "cleaned up"
        raise

@app.task(soft_timeout=SOON, timeout=60, isolate=True)
async def alone_co(catch: bool) -> str:
    return await coroutine(catch)

@app.task(soft_timeout=SOON, timeout=60)
async def grouped(catch: bool) -> str:
    ended = []
    async def child():
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("child")
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
    except* SoftTimeout:
        if not catch:
            raise
    return f"cleaned up after {len(ended)} child"

@app.task(soft_timeout=SOON, timeout=60)
def plain_handler() -> str:
    try:
        wait()
    except Exception as fault:
        return type(fault).__name__

@app.task(soft_timeout=SOON, timeout=60)
async def twice() -> str:
    try:
        await asyncio.sleep(600)
    except SoftTimeout:
        pass
    async with asyncio.timeout(60):
        await asyncio.sleep(2 * SOON)
    return f"once, {asyncio.current_task().cancelling()} cancellations are left"

@app.task(soft_timeout=SOON, timeout=2 * SOON)
async def swallows() -> None:
    while True:
        try:
            await asyncio.sleep(600)
        except Exception:
            pass

@app.task(soft_timeout=SOON, timeout=60, never_on=SoftTimeout, max_retry=5)
def final() -> None:
    wait()

@app.task(soft_timeout=SOON, timeout=60, max_retry=1, retry={"base": 0.01})
def again() -> str:
    if current.job.attempt == 1:
        wait()
    return f"attempt {current.job.attempt}"

@app.task(soft_timeout=600, timeout=700)
def quick(number: int) -> int:
    return number

@app.task(soft_timeout=0.002, timeout=60)
def racing(number: int) -> int:
    time.sleep(0.0005 * (number % 8))
    return number

@app.task(timeout=60)
def unlimited(number: int) -> int:
    for _ in range(200):
        pass
    return number
"""

KINDS = ("function", "coroutine", "alone", "alone_co")


@pytest.fixture(params=STORES)
def shop(request: pytest.FixtureRequest, make_harness: MakeHarness) -> WorkerHarness:
    kind: StoreKind = request.param
    return make_harness(TASKS, store="" if kind == "file" else request.getfixturevalue("redis_server").url)


@pytest.fixture
def on_a_file(make_harness: MakeHarness) -> WorkerHarness:
    return make_harness(TASKS)


def test_a_task_of_each_kind_catches_it_and_returns_what_it_has(shop: WorkerHarness) -> None:
    jobs = [getattr(shop.tasks, kind).enqueue(True) for kind in KINDS]
    shop.burst()
    assert [job.result(60) for job in jobs] == ["cleaned up"] * len(KINDS)


def test_uncaught_it_is_a_timeout(shop: WorkerHarness) -> None:
    jobs = [getattr(shop.tasks, kind).enqueue(False) for kind in KINDS]
    shop.burst()
    for job in jobs:
        record = job.refresh()
        assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT), job
        (error,) = record.errors
        assert (error.type, error.message) == ("windlass.SoftTimeout", "ran longer than its soft timeout")
        assert error.traceback, "it says where the task was"


def test_it_ends_what_a_coroutine_has_started(on_a_file: WorkerHarness) -> None:
    caught, uncaught = on_a_file.tasks.grouped.enqueue(True), on_a_file.tasks.grouped.enqueue(False)
    on_a_file.burst()
    assert caught.result(60) == "cleaned up after 1 child"
    assert uncaught.refresh().reason is Reason.TIMEOUT, "also in a group of exceptions"


def test_it_is_an_exception_like_others_and_comes_once(on_a_file: WorkerHarness) -> None:
    handled, once = on_a_file.tasks.plain_handler.enqueue(), on_a_file.tasks.twice.enqueue()
    swallowed = on_a_file.tasks.swallows.enqueue()
    on_a_file.burst()
    assert handled.result(60) == "SoftTimeout"
    assert once.result(60) == "once, 0 cancellations are left"
    record = swallowed.refresh()
    assert (record.reason, record.errors[-1].type) == (Reason.TIMEOUT, "Timeout"), "the timeout itself still holds"


def test_the_rules_for_errors_hold_for_it(on_a_file: WorkerHarness) -> None:
    final, again = on_a_file.tasks.final.enqueue(), on_a_file.tasks.again.enqueue()
    on_a_file.start()
    record = on_a_file.ended(final)
    assert (record.state, record.attempt, record.reason) == (State.FAILED, 1, Reason.TIMEOUT)
    assert again.result(60) == "attempt 2"


def test_it_never_comes_to_a_job_that_has_ended_or_to_the_next_of_its_thread(on_a_file: WorkerHarness) -> None:
    tasks = on_a_file.tasks
    calls = [(tasks.racing if number % 2 else tasks.unlimited).enqueue(number) for number in range(300)]
    last = tasks.quick.enqueue(7)
    on_a_file.burst()
    assert last.result(60) == 7
    for number, job in enumerate(calls):
        record = job.refresh()
        if record.state is State.SUCCEEDED:
            assert job.result(60) == number
        else:
            assert (number % 2, record.reason) == (1, Reason.TIMEOUT)


def test_a_cancelled_job_is_cancelled(on_a_file: WorkerHarness) -> None:
    on_a_file.start()
    job = on_a_file.tasks.swallows.using(timeout=600).enqueue()
    assert next(event for event in job.events() if event.name == "started")
    job.cancel()
    assert on_a_file.ended(job).state is State.CANCELLED


def test_it_must_be_shorter_than_the_timeout() -> None:
    app = Windlass(":memory:")
    with pytest.raises(Invalid, match=r"soft_timeout: 60 s is not less than the timeout, 60 s"):
        app.task(name="task", timeout="60s", soft_timeout="1m")(lambda: None)
    task = app.task(name="task", timeout="60s", soft_timeout="50s")(lambda: None)
    with pytest.raises(Invalid, match=r"soft_timeout: 50 s is not less than the timeout, 10 s"):
        task.using(timeout=10)
    with pytest.raises(Invalid, match="soft_timeout: 'soon' is not a duration"):
        app.task(soft_timeout="soon")
    assert app.task(name="alone", soft_timeout=5)(lambda: None).using(queue="x").soft_timeout == 5


def test_in_tests_no_time_passes() -> None:
    app = Windlass(":memory:")

    @app.task(soft_timeout=0)
    def work() -> int:
        return sum(range(100_000))

    with app.testing.inline():
        assert work.enqueue().result() == sum(range(100_000))


class Run:
    """A run, as far as its alarm asks."""

    def __init__(self, *, cancelled: bool) -> None:
        self.stopping = threading.Lock()
        self.is_cancelled = cancelled


@pytest.mark.parametrize(("stopped", "cancelled"), [(True, False), (False, True), (False, False)])
def test_only_a_run_that_goes_on_and_is_not_cancelled_gets_it(*, stopped: bool, cancelled: bool) -> None:
    raised: list[type[BaseException]] = []

    def run_in_thread() -> None:
        alarm = _Alarm(600, Run(cancelled=cancelled))
        if stopped:
            alarm.stop()
        try:
            alarm._ring()
            for _ in range(1000):
                time.monotonic()
        except SoftTimeout as fault:
            raised.append(type(fault))
        alarm.stop()

    thread = threading.Thread(target=run_in_thread)
    thread.start()
    thread.join()
    assert raised == ([] if stopped or cancelled else [SoftTimeout])
