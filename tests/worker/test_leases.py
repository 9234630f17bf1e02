"""Signs of life of a worker: what it asks of its queue, and how often."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from tests.support.patience import PATIENCE
from windlass.model.errors import Unavailable
from windlass.model.job import Job, State
from windlass.model.operations import A, Applied, Finish, Finished, Operation, Release, Renew, Renewed
from windlass.model.outcome import Verdict
from windlass.model.output import RunUsage
from windlass.system import SystemClock
from windlass.worker.claims import Registration, WorkerNames
from windlass.worker.leases import Leases
from windlass.worker.linux import OwnProcess, UsageMeter
from windlass.worker.reports import Reports
from windlass.worker.runs import ActiveRun, Runner, RunTable

YOUNG = 0.02
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Queue:
    """Stands for a queue that has no orders: notes what it is asked, and answers when the question has waited."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Renew] = asyncio.Queue()

    async def __call__(self, operation: Any) -> Renewed:
        self.asked.put_nowait(operation)
        await asyncio.sleep(operation.wait)
        return Renewed()


class Member:
    """Stands for a worker that the queue knows."""

    lease = 30.0
    name_tenants = False

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.registered = asyncio.Event()
        self.registered.set()

    async def ask(self, make: Callable[[WorkerNames], Operation[A]]) -> Any:
        return await self._queue(make({"tenant": "default", "worker": "w"}))


def member_of(queue: Queue) -> Registration:
    return cast("Registration", Member(queue))


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
async def runs(queue: Queue) -> RunTable:
    return RunTable(Reports(member_of(queue), SystemClock()), SystemClock())


@pytest.fixture
async def leases(queue: Queue, runs: RunTable, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Leases]:
    monkeypatch.setattr("windlass.worker.leases.YOUNG", YOUNG)
    leases = Leases(runs, member_of(queue), SystemClock())
    running = asyncio.ensure_future(leases.run())
    yield leases
    running.cancel()


def held(number: int, ago: float = 0.0) -> ActiveRun:
    about: dict[str, Any] = {"tenant": "default", "queue": "default", "task": "a", "size": 0}
    job = Job(id="j", state=State.RUNNING, created_at=NOON, updated_at=NOON, **about)
    return ActiveRun(number, job, "token", SystemClock().monotonic() - ago, cast("Runner", None))


async def test_jobs_that_ended_soon_are_not_asked_about(leases: Leases, queue: Queue, runs: RunTable) -> None:
    first = await asyncio.wait_for(queue.asked.get(), PATIENCE)
    for _ in range(3):
        leases.runs_started()
        await asyncio.sleep(2 * YOUNG)
    assert (first.jobs, queue.asked.qsize()) == ([], 0)


async def test_jobs_that_have_just_begun_are_not_asked_about(leases: Leases, queue: Queue, runs: RunTable) -> None:
    await asyncio.wait_for(queue.asked.get(), PATIENCE)
    runs.active[1] = held(1, ago=-60)  # however slow this machine is
    leases.runs_started()
    await asyncio.sleep(10 * YOUNG)
    assert queue.asked.qsize() == 0


async def test_a_job_that_goes_on_is_asked_about_though_others_had_ended_before(
    leases: Leases, queue: Queue, runs: RunTable
) -> None:
    await asyncio.wait_for(queue.asked.get(), PATIENCE)
    leases.runs_started()
    await asyncio.sleep(2 * YOUNG)
    runs.active[1] = held(1)
    leases.runs_started()
    while not (question := await asyncio.wait_for(queue.asked.get(), PATIENCE)).jobs:
        pass
    assert [one.id for one in question.jobs] == ["j"]


async def test_a_renewal_that_is_hurried_as_the_worker_ends_lets_it_end(queue: Queue, runs: RunTable) -> None:
    leases = Leases(runs, member_of(queue), SystemClock())
    running = asyncio.ensure_future(leases.run())
    await queue.asked.get()
    waiting = leases._waiting
    assert waiting is not None
    leases._hurry(waiting)
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=PATIENCE)
    assert done
    assert running.cancelled()


class Meter:
    """Stands for one that finds the same each time."""

    def read(self, runs: Mapping[int, OwnProcess]) -> tuple[int, float, dict[int, RunUsage]]:
        return 10, 0.5, {number: RunUsage(memory=own.pid) for number, own in runs.items()}


async def test_what_runs_use_is_reported_now_and_then_with_a_renewal(
    queue: Queue, runs: RunTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.worker.leases.YOUNG", YOUNG)
    monkeypatch.setattr("windlass.worker.leases.MEASURE_EVERY", 1000.0)
    for number, id in enumerate(("alone", "alone and loud", "shared", "shared and loud", "not forked")):
        runs.active[number] = one = held(number, ago=60)
        one.id, one.alone = id, "shared" not in id
        one.pid = None if "not" in id else 100 + number
        one.printed = 3 if "loud" in id else 0
    leases = Leases(runs, member_of(queue), SystemClock(), cast("UsageMeter", Meter()))
    running = asyncio.ensure_future(leases.run())

    async def next_one() -> tuple[int | None, dict[str, RunUsage | None]]:
        question = await asyncio.wait_for(queue.asked.get(), PATIENCE)
        return question.memory, {one.id: one.usage for one in question.jobs}

    uses = {
        "alone": RunUsage(memory=100),
        "alone and loud": RunUsage(memory=101, output=3),
        "shared": None,
        "shared and loud": RunUsage(output=3),
        "not forked": None,
    }
    assert await next_one() == (10, uses)
    leases.runs_started()
    assert await next_one() == (None, dict.fromkeys(uses)), "it was measured a moment ago"
    monkeypatch.setattr("windlass.worker.leases.MEASURE_EVERY", 0.0)
    leases.runs_started()
    assert await next_one() == (10, uses)
    running.cancel()


def print_in(runs: RunTable, run: ActiveRun, text: bytes) -> None:
    """A run prints something, and it is time for updates."""
    runs.print(run, "log", text)
    runs.send_updates()


class Forgetful(Queue):
    """Does not answer the first time, though it may have heard."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[list[str]] = []

    async def __call__(self, operation: Any) -> Renewed:
        self.told.append([job.id for job in operation.jobs])
        if len(self.told) == 1:
            raise Unavailable("its answer was lost")
        return Renewed()


async def test_an_update_that_was_not_answered_is_sent_by_part_and_the_next_together() -> None:
    queue = Forgetful()
    reports = Reports(member_of(queue), SystemClock())
    runs = RunTable(reports, SystemClock())
    running = asyncio.create_task(reports.run())
    for number, id in enumerate(("1aa", "2bb", "3aa")):
        runs.active[number] = one = held(number)
        one.id, one.began = id, True

    async def speak(times: int) -> None:
        for one in runs.active.values():
            runs.print(one, "log", b"word")
        runs.send_updates()
        async with asyncio.timeout(PATIENCE):
            while len(queue.told) < times or any(reports.is_updating(one.id, "token") for one in runs.active.values()):  # noqa: ASYNC110 - no signal says so
                await asyncio.sleep(0.005)

    await speak(3)
    await speak(4)
    assert queue.told == [["1aa", "2bb", "3aa"], ["1aa", "3aa"], ["2bb"], ["1aa", "2bb", "3aa"]]
    running.cancel()


class Overtaken(Queue):
    """Takes its time with what running jobs say, or does not hear it; notes what comes in which order."""

    def __init__(self, *, hears: bool) -> None:
        super().__init__()
        self.hears = hears
        self.slow = asyncio.Event()
        self.came: list[str] = []
        self.has_come = asyncio.Event()

    async def __call__(self, operation: Any) -> Any:
        self.has_come.set()
        if isinstance(operation, Finish | Release):
            self.came.append("end")
            return Applied()
        said = b"".join(chunk.data for one in operation.jobs for chunk in one.output).decode()
        if not self.slow.is_set():
            self.came.append("asked")
            await self.slow.wait()
            if not self.hears:
                raise Unavailable("it is away")
        self.came.append(said)
        return Renewed()


@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.parametrize("released", [True, False])
async def test_the_end_of_a_run_does_not_overtake_what_it_has_said(hears: bool, released: bool) -> None:
    queue = Overtaken(hears=hears)
    reports = Reports(member_of(queue), SystemClock())
    runs = RunTable(reports, SystemClock())
    running = asyncio.create_task(reports.run())
    runs.active[1] = one = held(1)
    one.began = True
    print_in(runs, one, b"first ")
    await asyncio.wait_for(queue.has_come.wait(), PATIENCE)
    print_in(runs, one, b"last")
    runs.remove(one, one.released() if released else Finished(id=one.id, token=one.token, outcome=Verdict.OK))
    await asyncio.sleep(0.05)
    assert queue.came == ["asked"]
    queue.slow.set()
    await asyncio.wait_for(reports.flush(), PATIENCE)
    assert queue.came == ["asked", "first ", "last", "end"]
    running.cancel()


async def test_what_is_printed_within_a_moment_is_sent_together_and_by_itself() -> None:
    queue = Overtaken(hears=True)
    queue.slow.set()
    reports = Reports(member_of(queue), SystemClock())
    runs = RunTable(reports, SystemClock())
    running = asyncio.create_task(reports.run())
    runs.active[1] = one = held(1)
    one.began = True
    for piece in (b"one ", b"two ", b"three"):
        runs.print(one, "stdout", piece)
    await asyncio.wait_for(queue.has_come.wait(), PATIENCE)
    assert queue.came == ["one two three"]
    running.cancel()


async def test_what_was_said_while_the_store_was_away_is_said_again() -> None:
    queue = Overtaken(hears=False)
    reports = Reports(member_of(queue), SystemClock())
    runs = RunTable(reports, SystemClock())
    running = asyncio.create_task(reports.run())
    runs.active[1] = one = held(1)
    one.began = True
    print_in(runs, one, b"first ")
    await asyncio.wait_for(queue.has_come.wait(), PATIENCE)
    for word in (b"la", b"st"):
        print_in(runs, one, word)
    queue.slow.set()
    async with asyncio.timeout(PATIENCE):
        while len(queue.came) < 3:
            await asyncio.sleep(0.005)
            runs.send_updates()
    assert queue.came == ["asked", "first ", "last"], "what came meanwhile waits, and is sent together"
    running.cancel()
