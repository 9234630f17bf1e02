"""Tiers through the engine's operations, on each kind of store: who gives way, who starts, who is denied."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.support.engines import enqueue, finish, register, take
from tests.support.stores import EPOCH, SeededChance, VirtualClock
from windlass.engine import Engine
from windlass.engine.flow.tiers import rebalance, rebalance_all
from windlass.model.errors import Busy, Invalid, PartAway
from windlass.model.job import Job, Reason
from windlass.model.limit import NewLimit, Which
from windlass.model.names import fresh_id
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Alive,
    Cancel,
    ChangeQueue,
    Claim,
    Claimed,
    EnqueueMany,
    PutLimit,
    Renew,
    Show,
    Unregister,
)
from windlass.model.outcome import Verdict
from windlass.model.queue import QueueChange, Tier
from windlass.store.data import Draft

NO_SUCH_ID = "00000000-0000-7000-8000-0000000000df"


async def set_rules(engine: Engine, slow: int | str = 1, medium: int | str = 2) -> None:
    tiers = [
        Tier(name="fast", seconds=3),
        Tier(name="medium", seconds=10, cap=medium),
        Tier(name="slow", seconds=30, cap=slow),
    ]
    await engine(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))


async def show(engine: Engine, job: Job | Claimed) -> Job:
    return await engine(Show(id=job.job.id if isinstance(job, Claimed) else job.id))


async def assigned(engine: Engine, *jobs: Claimed) -> list[str | None]:
    return [(await show(engine, job)).assigned for job in jobs]


async def test_g2_flexible_jobs_are_shrunk_for_a_slow_one_which_starts_when_one_of_them_ends(engine: Engine) -> None:
    await set_rules(engine)
    worker = await register(engine, slots=3)
    for _ in range(3):
        await enqueue(engine)
    running = [await take(engine, worker) for _ in range(3)]
    assert await assigned(engine, *running) == ["slow", "medium", "fast"]
    await enqueue(engine, tier="slow")
    assert await assigned(engine, *running) == ["fast", "fast", "fast"]
    assert (await show(engine, running[0])).reason is Reason.SHRUNK
    await finish(engine, worker, running[2])
    assert (await take(engine, worker)).job.assigned == "slow"


async def test_g3_three_yielding_jobs_are_denied_and_the_flexible_one_loses_a_tier_for_each_of_two(
    engine: Engine,
) -> None:
    await set_rules(engine)
    worker = await register(engine, slots=3)
    await enqueue(engine)
    flexible = await take(engine, worker)
    for _ in range(2):
        await enqueue(engine, tier="fast")
        await take(engine, worker)
    for expected in ("medium", "fast", "fast"):
        with pytest.raises(Busy, match="no slot is free in queue 'default'"):
            await enqueue(engine, yielding=True)
        assert await assigned(engine, flexible) == [expected]


async def test_g4_a_yielding_job_is_halted_for_one_that_waits(engine: Engine) -> None:
    await set_rules(engine)
    worker = await register(engine, slots=3)
    await enqueue(engine, yielding=True)
    halted = await take(engine, worker)
    for _ in range(2):
        await enqueue(engine, tier="fast")
        await take(engine, worker)
    assert (await show(engine, halted)).reason is None
    await enqueue(engine, tier="fast")
    assert (await show(engine, halted)).reason is Reason.HALTED
    (order,) = (await engine(Renew(worker=worker, jobs=[Alive(id=halted.job.id, token=halted.token)]))).orders
    assert order.order == "halt"
    await finish(engine, worker, halted, Verdict.ERROR)
    assert (await take(engine, worker)).job.assigned == "fast"


async def test_only_one_yielding_job_is_halted_as_long_as_one_job_waits_whichever_that_is(
    engine: Engine,
) -> None:
    await set_rules(engine)
    worker = await register(engine, slots=3)
    running = []
    for _ in range(3):
        await enqueue(engine, yielding=True)
        running.append(await take(engine, worker))
    for _ in range(6):
        waiting = await enqueue(engine)
        await rebalance_all(engine.context)
        await engine(Cancel(ids=[waiting.id]))
    reasons = Counter([(await show(engine, job)).reason for job in running])
    assert reasons == {Reason.HALTED: 1, None: 2}


async def test_g5_a_flexible_job_makes_room_for_a_medium_one_at_once(engine: Engine, clock: VirtualClock) -> None:
    await set_rules(engine, slow=1, medium=1)
    worker = await register(engine, slots=2)
    await enqueue(engine)
    flexible = await take(engine, worker)
    assert flexible.job.assigned == "slow"
    clock.advance(1)
    await enqueue(engine, tier="medium")
    assert (await take(engine, worker)).job.assigned == "medium"
    shrunk = await show(engine, flexible)
    assert shrunk.assigned == "fast"
    assert shrunk.started_at is not None
    assert shrunk.deadline is not None
    assert (shrunk.deadline - shrunk.started_at).total_seconds() == 3


async def test_item_13_an_explicit_job_keeps_its_tier_whatever_waits(engine: Engine) -> None:
    await set_rules(engine)
    worker = await register(engine, slots=3)
    for tier in ("slow", "medium", "fast"):
        await enqueue(engine, tier=tier)
    running = [await take(engine, worker) for _ in range(3)]
    await enqueue(engine, tier="slow")
    await enqueue(engine, tier="fast")
    await enqueue(engine)
    await rebalance_all(engine.context)
    assert await assigned(engine, *running) == ["slow", "medium", "fast"]


async def test_no_job_gives_way_to_one_that_could_not_start_anyway(engine: Engine) -> None:
    await set_rules(engine)
    limit = NewLimit(match=Which(queue="default", task="bound"), running=1)
    await engine(PutLimit(name="one", limit=limit))
    worker = await register(engine, slots=2, tasks=["work", "bound"])
    await enqueue(engine, "bound", tier="fast")
    await take(engine, worker)
    await enqueue(engine)
    flexible = await take(engine, worker)
    await enqueue(engine, "bound", tier="slow")
    await enqueue(engine, "nobody-knows-it", tier="slow")
    await rebalance_all(engine.context)
    assert await assigned(engine, flexible) == ["slow"]
    await enqueue(engine, tier="fast")
    assert await assigned(engine, flexible) == ["fast"]


async def test_caps_follow_the_workers_and_so_does_who_gives_way(engine: Engine) -> None:
    await set_rules(engine, slow="50%", medium="100%")
    workers = [await register(engine, slots=1) for _ in range(4)]
    for _ in range(4):
        await enqueue(engine)
    running = [await take(engine, worker) for worker in workers]
    assert await assigned(engine, *running) == ["slow", "slow", "medium", "medium"]
    spare = await register(engine, slots=1)
    await enqueue(engine, tier="slow")
    await rebalance(engine.context, "default", "default")
    assert Counter(await assigned(engine, *running))["slow"] == 1
    assert (await take(engine, spare)).job.assigned == "slow"


async def test_a_yielding_job_is_let_in_where_a_slot_is_free_and_denied_where_no_worker_is(engine: Engine) -> None:
    await set_rules(engine)
    with pytest.raises(Busy):
        await enqueue(engine, yielding=True)
    worker = await register(engine, slots=1)
    await enqueue(engine, yielding=True)
    with pytest.raises(Busy):
        await enqueue(engine, yielding=True)
    assert (await take(engine, worker)).job.yielding
    await engine(Unregister(worker=worker))
    assert await engine.context.store.workers.list("-") == []


async def test_as_many_yielding_jobs_are_let_in_as_places_are_free_however_they_come(engine: Engine) -> None:
    await set_rules(engine)
    await register(engine, slots=2)
    with pytest.raises(Busy):
        await engine(EnqueueMany(jobs=[NewJob(task="work", yielding=True)] * 3))
    came = await asyncio.gather(*(enqueue(engine, yielding=True) for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(one, Job) for one in came) == 2
    assert sum(isinstance(one, Busy) for one in came) == 3


async def test_a_yielding_job_that_is_sent_again_is_not_denied_its_own_place(engine: Engine) -> None:
    await set_rules(engine)
    worker = await register(engine, slots=1)
    first = await enqueue(engine, yielding=True, key="mine")
    assert (await enqueue(engine, yielding=True, key="mine")).id == first.id
    claimed = await take(engine, worker)
    assert (await enqueue(engine, yielding=True, key="mine")).id == first.id
    await finish(engine, worker, claimed)
    assert (await enqueue(engine, yielding=True)).id != first.id


@pytest.mark.parametrize("wait", [{"delay": 1.0}, {"run_at": EPOCH}, {"after": [NO_SUCH_ID]}])
async def test_a_yielding_job_cannot_wait_for_anything(engine: Engine, wait: dict[str, Any]) -> None:
    await set_rules(engine)
    await register(engine)
    with pytest.raises(Invalid, match="at once or not at all"):
        await enqueue(engine, yielding=True, **wait)


async def test_claiming_the_last_slot_shrinks_flexible_jobs_for_those_still_waiting(engine: Engine) -> None:
    await set_rules(engine)
    worker = await register(engine, slots=2)
    for _ in range(3):
        await enqueue(engine)
    first, second = await engine(Claim(worker=worker, slots=2))
    assert await assigned(engine, first, second) == ["fast", "fast"]


async def test_two_engines_that_attend_at_once_take_from_one_job_for_one_need(engine: Engine) -> None:
    await set_rules(engine, slow=5, medium=9)
    worker = await register(engine, slots=9)
    for _ in range(5):
        await enqueue(engine)
    running = [await take(engine, worker) for _ in range(5)]
    engines = [Engine(engine.context.store, SeededChance(seed)) for seed in range(5)]
    epoch = (await engine.context.store.flow.rules()).group_epoch
    new = Draft("default", fresh_id(engine.context.chance.uuid7(), "default"), NewJob(task="work"), "=slow", epoch)
    await engine.context.store.jobs.add([new])
    await asyncio.gather(*(rebalance(one.context, "default", "default") for one in engines))
    assert Counter(await assigned(engine, *running)) == {"slow": 4, "medium": 1}


async def away(*_: Any) -> Any:
    raise PartAway("a part of the store is away")


async def test_neither_claims_nor_new_jobs_fail_of_a_part_that_would_tell_who_waits(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_rules(engine)
    worker = await register(engine, slots=3)
    await enqueue(engine)
    monkeypatch.setattr(engine.context.store.workers, "list", away)
    assert (await take(engine, worker)).job.assigned == "slow"
    await enqueue(engine, tier="slow")
    with pytest.raises(PartAway):
        await enqueue(engine, yielding=True)


async def test_the_rules_that_were_last_read_are_in_force_while_they_cannot_be_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_rules(engine)
    seen = await engine.context.flow_config.refreshed()
    monkeypatch.setattr(engine.context.store.flow, "rules", away)
    assert await engine.context.flow_config.refreshed() is seen
    engine.context.flow_config.invalidate()
    assert await engine.context.flow_config.refreshed() is seen
