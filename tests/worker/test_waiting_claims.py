"""A claim that waits: what it is granted starts once, and goes back if the worker stops claiming meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.support.patience import PATIENCE
from tests.support.servers import StartServer
from tests.support.stores import SeededChance
from windlass.engine import Engine
from windlass.model.job import State
from windlass.model.names import EVERY_TENANT
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    A,
    Claim,
    Claimed,
    Enqueue,
    EnqueueMany,
    Operation,
    Register,
    Released,
    Service,
    Show,
)
from windlass.model.worker import NewWorker
from windlass.store.data import ClaimRequest, Record
from windlass.store.redis import RedisStore
from windlass.system import SystemClock
from windlass.worker.claims import Registration
from windlass.worker.loop import WorkerLoop
from windlass.worker.reports import Reports
from windlass.worker.runs import ActiveRun


@pytest.fixture
async def engine(start_server: StartServer) -> AsyncIterator[Engine]:
    store = await RedisStore.open(start_server("redis").url)
    yield Engine(store, SeededChance())
    await store.close()


async def registered(engine: Engine) -> str:
    return (await engine(Register(worker=NewWorker(name="w")))).worker


async def waits(engine: Engine) -> None:
    """Until a claim has left its wish."""
    while not await engine.context.store.partitions.connection.ask("wl{0}", "EXISTS", "wl{0}:parked_claims:default"):  # type: ignore[attr-defined] # noqa: ASYNC110 - no signal says so
        await asyncio.sleep(0.005)


async def test_a_worker_whose_last_claim_had_to_wait_asks_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await registered(engine)
    store, asked = engine.context.store, list[float]()
    claim_of_store = store.jobs.claim

    async def claim(wish: ClaimRequest) -> list[Record]:
        asked.append(wish.stays)
        return await claim_of_store(wish)

    monkeypatch.setattr(store.jobs, "claim", claim)
    for place, then in enumerate((2, 1, 1)):
        asked.clear()
        waiting = asyncio.ensure_future(engine(Claim(worker=worker, wait=20, nonce=f"{place:016x}")))
        await waits(engine)
        assert (len(asked), asked[-1] > 0) == (then, True)
        await engine(Enqueue(job=NewJob(task="a")))
        assert len(await asyncio.wait_for(waiting, PATIENCE)) == 1
    await engine(EnqueueMany(jobs=[NewJob(task="a")] * 3))
    for _ in range(3):
        await engine(Claim(worker=worker, wait=20))
    assert asked[-2:] == [0.0, 0.0], "there is something to do again: it is asked for without listening first"


async def test_a_parked_claim_whose_owner_does_not_hear_is_dropped(engine: Engine) -> None:
    worker = await registered(engine)
    await engine(Claim(worker=worker))
    wish = ClaimRequest(engine.context.known_workers[worker], b"w" * 8, 1, 15.0, repeatable=True, stays=60.0)
    assert not await engine.context.store.jobs.claim(wish)
    await waits(engine)
    accepted = await engine(Enqueue(job=NewJob(task="a")))
    assert (await engine(Show(id=accepted.id))).state is State.QUEUED
    assert not await engine.context.store.partitions.connection.ask("wl{0}", "EXISTS", "wl{0}:parked_claims:default")  # type: ignore[attr-defined]


class Slots:
    """A runner that never ends anything: notes what is started. And what is released."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.released: list[Released] = []
        self.started: list[str] = []

    def start(self, batch: Sequence[tuple[ActiveRun, Claimed]]) -> None:
        self.started += [run.id for run, _ in batch]
        self.begun.set()

    def stop(self, run: ActiveRun) -> None:
        raise AssertionError(run.id)

    def kill(self, run: ActiveRun) -> None:
        raise AssertionError(run.id)

    def send(self, run: ActiveRun, messages: Sequence[bytes]) -> None:
        raise AssertionError(run.id)


async def looping(service: Service, slots: Slots, monkeypatch: pytest.MonkeyPatch) -> WorkerLoop:
    registration = Registration(service, EVERY_TENANT, NewWorker(name="w"))
    await registration.register()
    monkeypatch.setattr(Reports, "release", lambda _, report: slots.released.append(report))
    return WorkerLoop(registration, clock=SystemClock(), chance=SeededChance())


async def test_a_job_that_is_granted_to_a_waiting_claim_starts_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots()
    loop = await looping(engine, slots, monkeypatch)
    running = asyncio.ensure_future(loop.run(lambda _: slots, lambda: 8))
    for number in range(1, 4):
        await waits(engine)
        accepted = await engine(Enqueue(job=NewJob(task="a")))
        await asyncio.wait_for(slots.begun.wait(), PATIENCE)
        slots.begun.clear()
        assert slots.started[number - 1 :] == [accepted.id]
    await waits(engine)
    loop.stop()
    await asyncio.wait_for(running, PATIENCE)
    assert (len(slots.started), slots.released) == (3, [])


async def test_a_worker_that_stops_as_a_job_starts_does_not_release_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots()
    loop = await looping(engine, slots, monkeypatch)
    start = slots.start

    def start_and_stop(batch: Sequence[tuple[ActiveRun, Claimed]]) -> None:
        start(batch)
        loop.stop()

    slots.start = start_and_stop  # type: ignore[method-assign]
    running = asyncio.ensure_future(loop.run(lambda _: slots, lambda: 8))
    await waits(engine)
    accepted = await engine(Enqueue(job=NewJob(task="a")))
    await asyncio.wait_for(running, PATIENCE)
    assert (slots.started, slots.released) == ([accepted.id], [])
    assert (await engine(Show(id=accepted.id))).state is State.RUNNING


async def test_a_worker_that_is_paused_and_resumed_at_once_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots()
    loop = await looping(engine, slots, monkeypatch)
    running = asyncio.ensure_future(loop.run(lambda _: slots, lambda: 8))
    await waits(engine)
    for paused in (True, False, True, False):  # several before the claim has heard of the first
        loop.pause("a test", paused)
    await engine(Enqueue(job=NewJob(task="a")))
    await asyncio.wait_for(slots.begun.wait(), PATIENCE)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_worker_that_pauses_as_its_claim_is_answered_releases_what_it_got(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots()

    async def pause_on_answer(operation: Operation[A]) -> A:
        answer = await engine(operation)
        if isinstance(operation, Claim) and answer and not slots.released:
            asyncio.get_running_loop().call_soon(loop.pause, "a test")
            await asyncio.sleep(0)
        return answer

    loop = await looping(pause_on_answer, slots, monkeypatch)
    running = asyncio.ensure_future(loop.run(lambda _: slots, lambda: 8))
    await waits(engine)
    accepted = await engine(Enqueue(job=NewJob(task="a")))
    async with asyncio.timeout(PATIENCE):
        while not slots.released:  # noqa: ASYNC110 - no signal says so
            await asyncio.sleep(0.005)
    assert ([one.id for one in slots.released], slots.started) == ([accepted.id], [])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
