"""Reports: nothing that has ended is forgotten, whatever the queue answers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from windlass.model.errors import Full, Missing, TooLarge, Unavailable, WindlassError
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Alive,
    Applied,
    Finish,
    Finished,
    Operation,
    Register,
    Registered,
    Release,
    Released,
    Renew,
)
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker
from windlass.system import SystemClock
from windlass.worker.claims import Registration
from windlass.worker.reports import MOST_BYTES, Reports

TOKEN = "00"  # noqa: S105 - of a job


class Queue:
    """Refuses reports as it was told to, and remembers those that it took."""

    def __init__(self, *faults: WindlassError) -> None:
        self._faults = list(faults)
        self.known = 0
        self.taken: list[Finished | Released] = []

    async def __call__(self, operation: Operation[Any]) -> Any:
        match operation:
            case Register():
                self.known += 1
                return Registered(worker=f"worker{self.known}", lease=15)
            case Finish() | Release() if self._faults:
                raise self._faults.pop(0)
            case Finish() | Release():
                assert operation.worker == f"worker{self.known}"
                self.taken += operation.jobs
                return Applied(applied=[job.id for job in operation.jobs])
        raise AssertionError(operation)


@asynccontextmanager
async def reporting(queue: Queue) -> AsyncIterator[Reports]:
    """Reports to this queue, until all of them are answered."""
    about = NewWorker(name="anna", node="here", pid=1, queues=["default"])
    membership = Registration(queue, "default", about)
    await membership.register()
    reports = Reports(membership, SystemClock())
    running = asyncio.create_task(reports.run())
    yield reports
    await asyncio.wait_for(reports.flush(), PATIENCE)
    running.cancel()


def done(id: str) -> Finished:
    return Finished(id=id, token=TOKEN, outcome=Verdict.OK)


async def test_a_queue_that_does_not_answer_is_asked_again() -> None:
    queue = Queue(Unavailable("away"), Full("no room"), Unavailable("away"))
    async with reporting(queue) as reports:
        reports.finish(done("a"))
        reports.release(Released(id="b", token=TOKEN))
    assert {job.id for job in queue.taken} == {"a", "b"}


class Parted(Queue):
    """Does not answer for jobs whose ids end like this, as long as it is away."""

    def __init__(self, lost: str) -> None:
        super().__init__()
        self._lost = lost
        self.back = asyncio.Event()
        self.heard: list[str] = []

    async def __call__(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Finish | Release | Renew):
            if not self.back.is_set() and any(job.id.endswith(self._lost) for job in operation.jobs):
                raise Unavailable("a part is away")
            self.heard += [f"{type(operation).__name__} {job.id}" for job in operation.jobs]
            return Applied() if isinstance(operation, Renew) else await super().__call__(operation)
        return await super().__call__(operation)


async def test_a_part_of_the_queue_that_is_away_holds_up_no_other() -> None:
    queue = Parted("aa")
    async with reporting(queue) as reports:
        reports.finish(done("1aa"), [Alive(id="1aa", token=TOKEN)])
        reports.finish(done("1bb"))
        await until(lambda: [job.id for job in queue.taken] == ["1bb"])
        reports.finish(done("2aa"))
        reports.finish(done("2bb"))
        reports.release(Released(id="3bb", token=TOKEN))
        await until(lambda: {job.id for job in queue.taken} == {"1bb", "2bb", "3bb"})
        assert not reports.settled
        queue.back.set()
    lost = [heard for heard in queue.heard if heard.endswith("aa")]
    assert lost == ["Renew 1aa", "Finish 1aa", "Finish 2aa"], "in order, once"
    assert len(queue.heard) == len(set(queue.heard))


async def test_jobs_that_a_report_makes_for_a_part_that_is_away_hold_up_no_other() -> None:
    class Picky(Queue):
        async def __call__(self, operation: Operation[Any]) -> Any:
            if isinstance(operation, Finish) and any(job.jobs for job in operation.jobs) and not back.is_set():
                raise Unavailable("a part is away")
            return await super().__call__(operation)

    queue, back = Picky(), asyncio.Event()
    async with reporting(queue) as reports:
        reports.finish(Finished(id="1aa", token=TOKEN, outcome=Verdict.OK, jobs=[NewJob(task="next", queue="other")]))
        reports.finish(done("2aa"))
        await until(lambda: [job.id for job in queue.taken] == ["2aa"])
        reports.finish(done("3aa"))
        await until(lambda: [job.id for job in queue.taken] == ["2aa", "3aa"])
        back.set()
    assert [job.id for job in queue.taken] == ["2aa", "3aa", "1aa"]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - nobody gives a sign
            await asyncio.sleep(0.01)


async def test_a_worker_that_the_queue_has_forgotten_registers_again() -> None:
    queue = Queue(Missing("there is no worker"))
    async with reporting(queue) as reports:
        reports.finish(done("a"))
    assert queue.known == 2
    assert [job.id for job in queue.taken] == ["a"]


async def test_an_outcome_that_cannot_be_kept_fails_its_own_job_only() -> None:
    queue = Queue(TooLarge("all of it"), TooLarge("the first"))
    async with reporting(queue) as reports:
        reports.finish(done("a"))
        reports.finish(done("b"))
    assert [(job.id, job.outcome) for job in queue.taken if isinstance(job, Finished)] == [
        ("a", Verdict.FAILED),
        ("b", Verdict.OK),
    ]


async def test_a_run_whose_files_cannot_be_kept_is_given_back_without_them(caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue(TooLarge("too much"))
    async with reporting(queue) as reports:
        reports.release(Released(id="a", token=TOKEN, delay=60.0, files={"left": b"much"}))
    assert queue.taken == [Released(id="a", token=TOKEN, delay=60.0)]
    assert caplog.messages == ["a runs again without the files that it left: they could not be stored: too much"]


class Slow(Queue):
    """Takes a while; refuses what its rules say, each of which may change its mind."""

    def __init__(self, *rules: Callable[[Operation[Any]], WindlassError | None]) -> None:
        super().__init__()
        self.rules = rules
        self.told: list[tuple[str, list[str]]] = []
        self.gate: dict[str, asyncio.Event] = {}

    async def __call__(self, operation: Operation[Any]) -> Any:
        if not isinstance(operation, Finish | Renew):
            return await super().__call__(operation)
        await asyncio.sleep(0.002)
        ids = [job.id for job in operation.jobs]
        for id in ids:
            if id in self.gate:
                await self.gate[id].wait()
        for rule in self.rules:
            if (fault := rule(operation)) is not None:
                raise fault
        self.told.append((type(operation).__name__, ids))
        return Applied(applied=ids)

    def of(self, kind: str) -> list[str]:
        return [id for name, ids in self.told for id in ids if name == kind]


def first(*faults: WindlassError) -> Callable[[Operation[Any]], WindlassError | None]:
    """Refuses the first questions."""
    left = [*faults]
    return lambda _: left.pop() if left else None


def maker(id: str) -> Finished:
    return Finished(id=id, token=TOKEN, outcome=Verdict.OK, jobs=[NewJob(task="next", queue="other")])


async def test_reports_with_new_jobs_that_cannot_be_kept_hold_up_no_others() -> None:
    away = True

    def none_made(operation: Operation[Any]) -> WindlassError | None:
        made = isinstance(operation, Finish) and any(job.jobs for job in operation.jobs)
        return Unavailable("the other queue is away") if away and made else None

    queue = Slow(none_made)
    async with reporting(queue) as reports:
        reports.finish(done("1aa"))
        reports.finish(maker("2aa"))
        await asyncio.sleep(0.003)  # they are on their way, or being sent by part
        reports.finish(maker("3aa"))
        for number in range(4, 9):
            reports.finish(done(f"{number}aa"))
            await asyncio.sleep(0.02)
        assert queue.of("Finish") == ["1aa", *(f"{number}aa" for number in range(4, 9))]
        away = False
    assert queue.of("Finish")[-2:] == ["2aa", "3aa"]


async def test_what_was_put_off_is_not_overtaken_by_its_like() -> None:
    queue = Slow(first(Full("no room"), Full("no room")))
    async with reporting(queue) as reports:
        reports.finish(maker("1aa"))
        await asyncio.sleep(0.01)
        reports.finish(maker("2aa"))
    assert queue.of("Finish") == ["1aa", "2aa"]


async def test_nothing_is_settled_while_a_report_travels() -> None:
    queue = Slow(first(Unavailable("away"), Unavailable("away")))
    queue.gate["1bb"] = asyncio.Event()
    async with reporting(queue) as reports:
        reports.finish(done("1aa"))
        await asyncio.sleep(0.01)
        reports.finish(done("1bb"))
        while queue.of("Finish") != ["1aa"]:  # noqa: ASYNC110 - no signal says so
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.01)
        assert not reports.settled
        queue.gate["1bb"].set()
    assert queue.of("Finish") == ["1aa", "1bb"]


async def test_last_report_that_are_sent_again_one_by_one_come_before_the_end() -> None:
    def not_together(operation: Operation[Any]) -> WindlassError | None:
        return TooLarge("too long") if isinstance(operation, Renew) and len(operation.jobs) > 1 else None

    queue = Slow(first(Unavailable("away")), not_together)
    async with reporting(queue) as reports:
        for id in ("1aa", "2aa"):
            reports.finish(done(id), [Alive(id=id, token=TOKEN)])
    assert [name for name, _ in queue.told] == ["Renew", "Renew", "Finish"]


async def test_what_has_to_wait_is_sent_on_together() -> None:
    """Else a worker that was away for a moment sends its reports by the handful for as long as it has work."""

    class Slow(Queue):
        calls = 0

        async def __call__(self, operation: Operation[Any]) -> Any:
            if isinstance(operation, Finish):
                self.calls += 1
                await asyncio.sleep(0.01)
            return await super().__call__(operation)

    queue, ids = Slow(Unavailable("away")), [f"{number:030x}57" for number in range(3000)]
    async with reporting(queue) as reports:
        for place, id in enumerate(ids):
            reports.finish(done(id))
            if place % 5 == 0:
                await asyncio.sleep(0)
    assert [job.id for job in queue.taken] == ids
    assert queue.calls < 20


@pytest.mark.parametrize("ended", [True, False], ids=["finished", "released"])
async def test_what_has_to_wait_is_not_sent_on_in_one_that_is_too_large(*, ended: bool) -> None:
    class Careful(Queue):
        largest = 0
        away = True

        async def __call__(self, operation: Operation[Any]) -> Any:
            if isinstance(operation, Finish | Release):
                if self.away:
                    raise Unavailable("away")
                self.largest = max(self.largest, sum(len(job.files["left"]) for job in operation.jobs))
            return await super().__call__(operation)

    queue, files = Careful(), {"left": bytes(3 << 20)}
    async with reporting(queue) as reports:
        for number in range(8):
            id = f"{number:030x}57"
            if ended:
                reports.finish(Finished(id=id, token=TOKEN, outcome=Verdict.OK, files=files))
            else:
                reports.release(Released(id=id, token=TOKEN, files=files))
            await asyncio.sleep(0.005)
        queue.away = False
    assert len(queue.taken) == 8
    assert queue.largest <= MOST_BYTES
