"""Rules that several change at once, and rules that change while jobs come in: nothing of either is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import msgspec
import pytest

from tests.support.engines import enqueue, register
from tests.support.patience import PATIENCE
from tests.support.stores import SeededChance, StoreKind, VirtualClock, open_store
from windlass.engine import Engine
from windlass.engine.flow.apply import apply_config
from windlass.engine.flow.config import LIMITS
from windlass.engine.new_jobs import add, to_draft
from windlass.model.errors import Invalid, Unavailable
from windlass.model.limit import Limit, NewLimit, Pause, Which
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import (
    ChangeQueue,
    Claim,
    Count,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    GetLimit,
    GetQueue,
    PauseLimit,
    PutLimit,
)
from windlass.model.queue import QueueChange, Tier
from windlass.store.data import ANYTHING, FEED
from windlass.store.protocol import Store
from windlass.store.redis import RedisStore
from windlass.store.redis.urls import Argument

SHARED = pytest.mark.parametrize("kind", ["file", "redis", "cluster"], indirect=True)


@pytest.fixture
async def others(
    engine: Engine, kind: StoreKind, address: str, clock: VirtualClock, prefix: str
) -> AsyncIterator[list[Engine]]:
    """The same store opened twice, as two processes would: each with an engine of its own."""
    async with open_store(kind, address, clock, prefix) as store:
        yield [engine, Engine(store, SeededChance(1))]


async def test_a_record_is_swapped_only_for_what_is_there(store: Store) -> None:
    records_of = store.records
    assert await records_of.swap("limit", "a", None, b"1")
    assert not await records_of.swap("limit", "a", None, b"2")
    assert not await records_of.swap("limit", "a", b"", b"2")
    assert not await records_of.swap("limit", "b", b"1", b"2")
    assert await records_of.swap("limit", "a", b"1", b"\x00\xff")
    assert await records_of.list("limit") == {"a": b"\x00\xff"}
    assert not await records_of.swap("limit", "a", b"1", None)
    assert await records_of.swap("limit", "a", b"\x00\xff", None)
    assert await records_of.swap("limit", "a", None, None)
    assert await records_of.list("limit") == {}


@SHARED
async def test_many_who_change_one_queue_at_once_all_find_their_change(others: list[Engine]) -> None:
    changes: list[dict[str, Any]] = [
        {"timeout": 7.0},
        {"isolate": True},
        {"on_lost": "fail"},
        {"keep_success": 60.0},
        {"keep_failure": 70.0},
        {"policy": "fair"},
        {"weights": {"a": 2.0}},
        {"paused": True, "why": "moved"},
    ]
    asked = [ChangeQueue(queue="web", change=QueueChange(**change)) for change in changes]
    await asyncio.gather(*(others[place % 2](change) for place, change in enumerate(asked)))
    card = await others[0](GetQueue(queue="web"))
    for change in changes:
        assert {name: getattr(card, name) for name in change} == change


@SHARED
async def test_a_pause_and_a_new_limit_rule_of_one_limit_do_not_undo_each_other(others: list[Engine]) -> None:
    for round_ in range(1, 11):
        new = NewLimit(match=Which(queue="default"), running=round_)
        await others[0](PutLimit(name="some", limit=NewLimit(match=Which(queue="default"), running=100)))
        await others[0](PauseLimit(name="some", pause=Pause()))
        await asyncio.gather(
            others[0](PutLimit(name="some", limit=new)),
            others[1](PauseLimit(name="some", pause=Pause(paused=True, why="why not"))),
        )
        card = await others[0](GetLimit(name="some"))
        assert (card.running, card.paused, card.why) == (round_, True, "why not")


class Meddled:
    """The rules change when the first part of a batch has been added."""

    def __init__(self, store: RedisStore, meddle: Callable[[], Awaitable[object]]) -> None:
        self._call = store.partitions.call
        self._meddle = meddle
        self.parts = 0

    async def __call__(self, name: str, partition: int, arguments: Iterable[Argument] = ()) -> Any:
        reply = await self._call(name, partition, arguments)
        if name == "add":
            self.parts += 1
            if self.parts == 1:
                await self._meddle()
        return reply


@pytest.mark.parametrize("kind", ["redis", "valkey", "cluster"], indirect=True)
async def test_a_limit_that_comes_while_a_batch_is_taken_in_by_parts_holds_for_all_of_it(
    store: RedisStore, others: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part is a thousand jobs, and on a cluster those of one partition."""
    engine, elsewhere = others
    await engine.context.flow_config.current()

    async def bound() -> None:
        for queue in ("q0", "q1"):
            await elsewhere(PutLimit(name=queue, limit=NewLimit(match=Which(queue=queue), running=1)))

    meddled = Meddled(store, bound)
    monkeypatch.setattr(store.partitions, "call", meddled)
    jobs = [NewJob(task="work", queue=f"q{n % 2}") for n in range(2500)]
    drafts = [to_draft(engine.context, "default", new, "job") for new in jobs]
    created = await add(engine.context, drafts)
    monkeypatch.undo()
    assert meddled.parts > 2
    assert (len(created), all(created)) == (2500, True), "each is new, whichever part it was in"
    for queue in ("q0", "q1"):
        (group,) = await elsewhere.context.store.flow.backlog("default", queue, 0)
        assert (group.group, group.count) == (f"|default/{queue}", 1250)
    worker = await register(engine, "q0", "q1")
    assert len(await engine(Claim(worker=worker, slots=100))) == 2


@pytest.mark.parametrize("kind", ["redis"], indirect=True)
async def test_a_watcher_gets_one_event_for_each_job_of_such_a_batch(
    store: RedisStore, others: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, elsewhere = others
    await engine.context.flow_config.current()
    limit = PutLimit(name="some", limit=NewLimit(match=Which(queue="default"), running=1))
    async with elsewhere.context.store.events.listen([FEED]) as watch:
        monkeypatch.setattr(store.partitions, "call", Meddled(store, lambda: elsewhere(limit)))
        drafts = [to_draft(engine.context, "default", NewJob(task="work"), "job") for _ in range(1500)]
        await add(engine.context, drafts)
        told: list[str] = []
        async with asyncio.timeout(PATIENCE):
            while len(told) < 1500:
                told += await watch.wait(PATIENCE)
    assert sorted(told) == sorted(f"queued {one.id} {one.tenant}" for one in drafts)


@pytest.mark.parametrize("kind", ["cluster"], indirect=True)
async def test_a_partition_without_the_new_rules_gets_them_with_the_next_jobs(
    store: RedisStore, others: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine that applied them died before it had reached all partitions."""
    engine, elsewhere = others
    home, call = store.partitions.key(0), store.partitions.call

    async def only_home(name: str, partition: int, arguments: Iterable[Argument] = ()) -> Any:
        if name == "set_rules" and partition != 0:
            raise Unavailable("gone")
        return await call(name, partition, arguments)

    queue = next(f"q{n}" for n in range(100) if store.partitions.key(store.partitions.of_queue(f"q{n}")) != home)
    with monkeypatch.context() as dying:
        dying.setattr(store.partitions, "call", only_home)
        with pytest.raises(Unavailable):
            await put_in_force_of(engine, queue)
    job = await enqueue(elsewhere, queue=queue)
    (group,) = await elsewhere.context.store.flow.backlog("default", queue, 1)
    assert (group.group, [id for _, _, id in group.jobs]) == (f"|default/{queue}", [job.id])


async def put_in_force_of(engine: Engine, queue: str) -> None:
    """A limit is kept and put in force, as far as that gets."""
    limit = Limit(name=queue, tenant="default", match=Which(queue=queue), running=1)
    await engine.context.store.records.swap(LIMITS, f"default/{queue}", ANYTHING, msgspec.msgpack.encode(limit))
    await apply_config(engine.context)


@pytest.mark.parametrize("tier", ["fast", 3.0])
async def test_a_tier_for_a_queue_without_tiers_is_refused_with_what_to_do(engine: Engine, tier: str | float) -> None:
    hint = "queue 'web' has no tiers: set some (windlass queues set web --tier …), or "
    hint += "name none" if tier == "fast" else "give the job a timeout"
    job = NewJob(task="work", queue="web", tier=tier)
    questions: dict[str, Any] = {
        "job.tier": Enqueue(job=job),
        "jobs[1].tier": EnqueueMany(jobs=[NewJob(task="work"), job]),
        "options.tier": EnqueueLines(task="work", text="a", options=JobOptions(queue="web", tier=tier)),
    }
    for at, question in questions.items():
        with pytest.raises(Invalid) as refused:
            await engine(question)
        assert (refused.value.detail, refused.value.at) == (hint, at)
    assert (await engine(Count())).count == 0, "nothing of a batch is taken in"
    await engine(ChangeQueue(queue="web", change=QueueChange(tiers=[Tier(name="fast", seconds=3.0)])))
    for question in questions.values():
        await engine(question)
