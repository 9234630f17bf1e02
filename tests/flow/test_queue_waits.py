"""How long the jobs of a queue wait, and how its tiers are used, in an answer about queues."""

from datetime import timedelta

import pytest
from msgspec import UNSET

from tests.support.engines import enqueue, register, take
from tests.support.stores import EPOCH, VirtualClock
from windlass.engine import Engine
from windlass.engine.estimate import forecast, stats
from windlass.model.estimate import Why
from windlass.model.new_job import NewJob
from windlass.model.operations import ChangeQueue, EnqueueMany, GetQueue, Queues, QueueWaits
from windlass.model.queue import QueueChange, Tier
from windlass.store.flow import LaneBacklog


async def waits(engine: Engine, queue: str) -> QueueWaits:
    cards = {card.queue: card.waits for card in await engine(Queues(waits=True))}
    assert cards[queue] == (await engine(GetQueue(queue=queue, waits=True))).waits
    found = cards[queue]
    assert isinstance(found, QueueWaits)
    return found


async def test_a_queue_says_since_when_its_oldest_job_waits(engine: Engine, clock: VirtualClock) -> None:
    clock.advance(100)
    await enqueue(engine, queue="mail")
    clock.advance(10)
    await enqueue(engine, queue="mail", priority=-5)
    found = await waits(engine, "mail")
    assert (found.oldest, found.why) == (EPOCH + timedelta(seconds=100), Why.WORKER)
    assert (await engine(Queues()))[0].waits is UNSET
    worker = await register(engine, "mail", slots=2)
    await take(engine, worker)
    await take(engine, worker)
    assert (await waits(engine, "mail")).oldest is None


async def test_a_queue_says_how_many_jobs_run_at_each_tier_or_a_longer_one(engine: Engine) -> None:
    tiers = [Tier(name="short", seconds=10), Tier(name="long", seconds=60, cap="50%")]
    await engine(ChangeQueue(queue="renders", change=QueueChange(tiers=tiers)))
    worker = await register(engine, "renders", slots=4)
    for tier in ("short", "short", "long"):
        await enqueue(engine, queue="renders", tier=tier)
        await take(engine, worker)
    assert (await waits(engine, "renders")).tiers == {"short": 3, "long": 1}


async def test_a_job_that_comes_to_an_idle_queue_with_a_worker_does_not_wait(engine: Engine) -> None:
    await register(engine, "mail", slots=2)
    await enqueue(engine, queue="alone", delay=3600.0)
    assert (await waits(engine, "mail")).seconds == 0.0
    assert (await waits(engine, "alone")).seconds is None


async def test_of_more_jobs_than_forecasts_may_list_a_question_makes_brief_ones(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "MOST_FORECAST_JOBS", 30)
    monkeypatch.setattr(forecast, "SMALL", 2)
    await register(engine, "a", "b", "c", slots=2)
    for queue in ("a", "b", "c"):
        await engine(EnqueueMany(jobs=[NewJob(task="work", queue=queue, timeout=10.0)] * 20))
    listed: list[int] = []
    backlog = engine.context.store.flow.backlog

    async def counted(tenant: str, queue: str, limit: int) -> list[LaneBacklog]:
        listed.append(limit)
        return await backlog(tenant, queue, limit)

    monkeypatch.setattr(engine.context.store.flow, "backlog", counted)
    cards = await engine(Queues(waits=True))
    assert [isinstance(card.waits, QueueWaits) and (card.waits.seconds or 0) > 0 for card in cards] == [True] * 3
    assert listed, "or this test is blind"
    assert max(listed) < 20
    assert engine.context.stats.forecasts == {}, "they would push each other out"
