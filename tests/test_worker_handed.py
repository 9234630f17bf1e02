"""Jobs that come to a waiting worker: handed over as they are heard of, ahead of the answer to its claim, and once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec import Raw

from tests.patience import PATIENCE
from tests.servers import StartServer
from tests.worlds import SeededChance
from windlass.engine import Engine
from windlass.model.job import NewJob, State
from windlass.model.names import EVERY_TENANT, raw_id
from windlass.model.operations import (
    Claim,
    Claimed,
    Enqueue,
    EnqueueMany,
    Glimpse,
    Hand,
    Register,
    Service,
    Show,
    Unrun,
)
from windlass.model.worker import NewWorker
from windlass.store import Record, Wish
from windlass.store.micros import to_micros
from windlass.store.redis import RedisStore
from windlass.system import SystemClock
from windlass.worker.claims import Claims
from windlass.worker.frames import Assignment
from windlass.worker.jobs import Jobs
from windlass.worker.membership import Membership

NONCE = "ab" * 8

Read = Callable[[], list[Claimed]]


@pytest.fixture
async def engine(start_server: StartServer) -> AsyncIterator[Engine]:
    store = await RedisStore.open(start_server("redis").url)
    yield Engine(store, SeededChance())
    await store.close()


async def registered(engine: Engine) -> str:
    return (await engine(Register(worker=NewWorker(name="w")))).worker


async def waits(engine: Engine) -> None:
    """Until a claim has left its wish."""
    while not await engine.desk.store.partitions.connection.ask("wl{0}", "EXISTS", "wl{0}:wishes:default"):  # type: ignore[attr-defined] # noqa: ASYNC110 - no signal says so
        await asyncio.sleep(0.005)


async def test_a_job_is_handed_over_before_its_claim_is_answered(engine: Engine) -> None:
    worker = await registered(engine)
    handed: list[Claimed] = []
    answered_first: list[bool] = []

    def hand(_seen: Glimpse | None, read: Read) -> None:
        handed.extend(read())
        answered_first.append(claim.done())

    engine.hand_to(worker, hand)
    claim = asyncio.ensure_future(engine(Claim(worker=worker, wait=20, nonce=NONCE)))
    await waits(engine)
    accepted = await engine(Enqueue(job=NewJob(task="a")))
    answer = await asyncio.wait_for(claim, PATIENCE)
    assert [one.job.id for one in answer] == [accepted.id]
    assert (handed, answered_first) == (answer, [False])


async def test_a_worker_whose_last_claim_had_to_wait_asks_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await registered(engine)
    store, asked = engine.desk.store, list[float]()
    claim_of_store = store.claim

    async def claim(wish: Wish) -> list[Record]:
        asked.append(wish.stays)
        return await claim_of_store(wish)

    monkeypatch.setattr(store, "claim", claim)
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


async def test_a_wish_whose_owner_does_not_hear_is_dropped(engine: Engine) -> None:
    worker = await registered(engine)
    await engine(Claim(worker=worker))
    wish = Wish(engine.desk.known_workers[worker], b"w" * 8, 1, 15.0, repeatable=True, stays=60.0)
    assert not await engine.desk.store.claim(wish)
    await waits(engine)
    accepted = await engine(Enqueue(job=NewJob(task="a")))
    assert (await engine(Show(id=accepted.id))).state is State.QUEUED
    assert not await engine.desk.store.partitions.connection.ask("wl{0}", "EXISTS", "wl{0}:wishes:default")  # type: ignore[attr-defined]


async def test_what_is_granted_to_another_claim_is_not_handed_over(engine: Engine) -> None:
    worker, other = await registered(engine), await registered(engine)
    handed: list[Claimed] = []
    engine.hand_to(other, lambda _seen, read: handed.extend(read()))
    claim = asyncio.ensure_future(engine(Claim(worker=worker, wait=20, nonce=NONCE)))
    await waits(engine)
    await engine(Enqueue(job=NewJob(task="a")))
    assert await asyncio.wait_for(claim, PATIENCE)
    assert not handed


async def seen_of(engine: Engine, new: NewJob) -> tuple[Glimpse | None, Claimed]:
    """What was seen of a job in passing, and what was read of it."""
    worker = await registered(engine)
    seen: list[Glimpse | None] = []
    engine.hand_to(worker, lambda glimpse, _: seen.append(glimpse))
    claim = asyncio.ensure_future(engine(Claim(worker=worker, wait=20, nonce=NONCE)))
    await waits(engine)
    await engine(Enqueue(job=new))
    (claimed,) = await asyncio.wait_for(claim, PATIENCE)
    (glimpse,) = seen
    return glimpse, claimed


async def test_a_job_that_asks_for_nothing_is_seen_in_passing(engine: Engine) -> None:
    new = NewJob(task="a", priority=-7, payload=Raw(b"\xa3a\x00b"))
    glimpse, claimed = await seen_of(engine, new)
    job, token, payload = claimed.job, claimed.token, claimed.payload
    assert glimpse == Glimpse(
        bytes.fromhex(token),
        to_micros(job.created_at),
        raw_id(job.id),
        -7,
        b"default,default,a",
        bytes(payload),
    )
    assert bytes(payload) == b"\xa3a\x00b"


@pytest.mark.parametrize(
    "wish", [{"timeout": 5}, {"max_retry": 3}, {"tags": ["x"]}, {"isolate": True}, {"content_type": "text/plain"}]
)
async def test_a_job_that_asks_for_something_is_read(engine: Engine, wish: dict[str, Any]) -> None:
    glimpse, _ = await seen_of(engine, NewJob(task="a", payload=Raw(b"\xa1a"), **wish))
    assert glimpse is None


class Desk:
    """Stands for a worker's contexts, and for one of them: notes what it is given, and what is read meanwhile."""

    isolated = False
    name_tenants = False

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.noted: list[str] = []

    def least_busy(self) -> "Desk":
        return self

    def give(self, assignments: list[Assignment]) -> None:
        self.noted.append("given")

    def give_newcomer(self, number: int, seen: Glimpse) -> None:
        self.held.add(number)
        self.noted.append("given")


@pytest.mark.parametrize(("tasks", "then"), [(["a"], ["given", "read"]), (["b"], ["read", "given"])])
async def test_a_newcomer_is_given_away_before_it_is_read(engine: Engine, tasks: list[str], then: list[str]) -> None:
    """But for the first of its kind, and what may be uploaded code."""
    desk: Any = Desk()
    jobs = Jobs(desk, desk, SystemClock(), 1000, tasks)
    glimpse, claimed = await seen_of(engine, NewJob(task="a", payload=Raw(b"\xa1a")))
    assert glimpse is not None

    def read() -> list[Claimed]:
        desk.noted.append("read")
        return [claimed]

    jobs.start_at_a_glance(glimpse, read)
    jobs.start_at_a_glance(glimpse, read)
    assert desk.noted == ["read", "given", *then]
    assert [(number, held.id, held.context) for number, held in jobs.held.items()] == [
        (1, claimed.job.id, desk),
        (2, claimed.job.id, desk),
    ]
    assert desk.held == {1, 2}


class Slots:
    """Stands for the jobs in a worker's hands: notes what is started, and what is given back."""

    def __init__(self) -> None:
        self.held: dict[int, Claimed] = {}
        self.done = 0
        self.ended = asyncio.Event()
        self.begun = asyncio.Event()
        self.given_back: list[Unrun] = []
        self.started: list[str] = []
        self.settled = True
        self.reports = self

    def start(self, claimed: list[Claimed]) -> None:
        for one in claimed:
            self.started.append(one.job.id)
            self.held[len(self.started)] = one
        self.begun.set()

    def start_at_a_glance(self, _seen: Glimpse, read: Read) -> None:
        self.start(read())

    def release(self, report: Unrun) -> None:
        self.given_back.append(report)

    async def some_ended(self) -> None:
        self.ended.clear()
        await self.ended.wait()


async def claiming(service: Service, slots: Any) -> Claims:
    membership = Membership(service, EVERY_TENANT, NewWorker(name="w"))
    await membership.introduce()
    return Claims(slots, service, membership, SystemClock(), SeededChance())


async def test_a_job_that_is_handed_over_starts_once(engine: Engine) -> None:
    slots = Slots()
    claims = await claiming(engine, slots)
    running = asyncio.ensure_future(claims.run(8))
    for number in range(1, 4):
        await waits(engine)
        accepted = await engine(Enqueue(job=NewJob(task="a")))
        await asyncio.wait_for(slots.begun.wait(), PATIENCE)
        slots.begun.clear()
        assert slots.started[number - 1 :] == [accepted.id]
    await waits(engine)
    claims.stop()
    await asyncio.wait_for(running, PATIENCE)
    assert (len(slots.started), slots.given_back) == (3, [])


async def test_a_worker_that_stops_as_a_job_is_handed_over_does_not_give_it_back(engine: Engine) -> None:
    slots = Slots()
    claims = await claiming(engine, slots)
    start = slots.start

    def start_and_stop(claimed: list[Claimed]) -> None:
        start(claimed)
        claims.stop()

    slots.start = start_and_stop  # type: ignore[method-assign]
    running = asyncio.ensure_future(claims.run(8))
    await waits(engine)
    accepted = await engine(Enqueue(job=NewJob(task="a")))
    await asyncio.wait_for(running, PATIENCE)
    assert (slots.started, slots.given_back) == ([accepted.id], [])
    assert (await engine(Show(id=accepted.id))).state is State.RUNNING


async def test_a_worker_told_to_rest_and_to_go_on_at_once_goes_on(engine: Engine) -> None:
    slots = Slots()
    claims = await claiming(engine, slots)
    running = asyncio.ensure_future(claims.run(8))
    await waits(engine)
    for paused in (True, False, True, False):  # several before the claim has heard of the first
        claims.pause(paused)
    await engine(Enqueue(job=NewJob(task="a")))
    await asyncio.wait_for(slots.begun.wait(), PATIENCE)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_worker_told_to_rest_gives_back_what_it_is_handed_meanwhile(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_to, slots = engine.hand_to, Slots()

    def hand_late(worker: str, hand: Hand) -> None:
        def rest_and_take(seen: Glimpse | None, read: Read) -> None:
            claims.pause(True)
            hand(seen, read)

        hand_to(worker, rest_and_take)

    monkeypatch.setattr(engine, "hand_to", hand_late)
    claims = await claiming(engine, slots)
    running = asyncio.ensure_future(claims.run(8))
    await waits(engine)
    accepted = await engine(Enqueue(job=NewJob(task="a")))
    async with asyncio.timeout(PATIENCE):
        while not slots.given_back:  # noqa: ASYNC110 - no signal says so
            await asyncio.sleep(0.005)
    assert ([one.id for one in slots.given_back], slots.started) == ([accepted.id], [])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
