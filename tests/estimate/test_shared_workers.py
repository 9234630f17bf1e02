"""Estimates in queues that share workers, in deep queues, and in front of a journal, on each kind of store."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.estimate.test_estimates import estimate, teach, tiers, waits_of
from tests.support.drained_journals import journaled_at
from tests.support.engines import enqueue, finish, register, take
from tests.support.patience import PATIENCE
from tests.support.servers import NewPrefix, Server
from tests.support.stores import VirtualClock
from windlass.engine import Engine
from windlass.engine.estimate.forecast import refresh_forecasts
from windlass.engine.flow.load import even_part
from windlass.engine.journal import Journaled
from windlass.model.estimate import Estimate, Why
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    ChangeQueue,
    Claim,
    Enqueue,
    EnqueueMany,
    GetEstimate,
    GetQueueEstimate,
    Register,
)
from windlass.model.queue import QueueChange
from windlass.model.worker import NewWorker


async def test_a_job_waits_for_the_dearer_queue_of_its_worker_and_not_for_the_other_way_round(engine: Engine) -> None:
    await teach(engine, 4.0)
    worker = await register(engine, "mail", "bulk")
    await enqueue(engine, queue="bulk")
    await take(engine, worker)
    bulk = [await enqueue(engine, queue="bulk") for _ in range(2)]
    mail = [await enqueue(engine, queue="mail") for _ in range(2)]
    found = await waits_of(engine, *mail, *bulk)
    assert [seconds for seconds, _, _ in found] == pytest.approx([4.0, 8.0, 12.0, 16.0], rel=0.1)
    assert [(position, why) for _, position, why in found] == [(n, Why.SLOTS) for n in (1, 2, 1, 2)]


async def test_the_forecast_of_two_queues_is_the_order_in_which_their_worker_takes_them(
    engine: Engine, clock: VirtualClock
) -> None:
    """Each run takes as long as is known of its task, and every wait is as estimated."""
    await teach(engine, 2.0, task="short")
    await teach(engine, 5.0, task="long")
    worker = await register(engine, "mail", "bulk", "rest")
    jobs = [
        await enqueue(engine, task, queue=queue) for queue in ("rest", "bulk", "mail") for task in ("long", "short")
    ]
    waits = {job.id: (await estimate(engine, job)).seconds for job in jobs}
    begun = clock.now()
    real = {}
    for _ in jobs:
        claimed = await take(engine, worker)
        real[claimed.job.id] = (clock.now() - begun).total_seconds()
        clock.advance(2.0 if claimed.job.task == "short" else 5.0)
        await finish(engine, worker, claimed)
    assert real == pytest.approx(waits, rel=0.1)


async def test_a_later_arrival_in_a_queue_that_is_liked_less_changes_nothing(engine: Engine) -> None:
    await teach(engine, 4.0)
    worker = await register(engine, "mail", "bulk")
    await enqueue(engine, queue="mail")
    await take(engine, worker)
    job = await enqueue(engine, queue="mail")
    before = await waits_of(engine, job)
    await engine(EnqueueMany(jobs=[NewJob(task="work", queue="bulk")] * 50))
    assert await waits_of(engine, job) == before


async def test_the_runs_of_other_queues_end_when_they_are_known_to(engine: Engine) -> None:
    await teach(engine, 30.0, task="video")
    await teach(engine, 1.0, task="work")
    worker = await register(engine, "mail", "bulk")
    await enqueue(engine, "video", queue="bulk")
    await take(engine, worker)
    job = await enqueue(engine, queue="mail")
    assert (await estimate(engine, job)).seconds == pytest.approx(30.0, rel=0.1)


async def test_a_worker_of_another_queue_alone_is_no_worker_of_this_one(engine: Engine) -> None:
    await register(engine, "mail", slots=5)
    await register(engine, "mail", "bulk", tasks=["other"])
    job = await enqueue(engine, queue="bulk")
    assert await estimate(engine, job) == Estimate(position=1, why=Why.HANDLER)
    assert await estimate(engine, await enqueue(engine, queue="rest")) == Estimate(position=1, why=Why.WORKER)


async def test_tiers_of_a_dearer_queue_count_as_long_as_they_last(engine: Engine) -> None:
    await teach(engine, 4.0)
    await tiers(engine)
    await register(engine, "default", "bulk")
    await enqueue(engine, tier="slow")
    job = await enqueue(engine, queue="bulk")
    found = await estimate(engine, job)
    assert found.seconds == pytest.approx(4.0)
    assert found.at_most == 30.0


async def test_a_new_job_of_a_paused_queue_learns_of_the_pause(engine: Engine) -> None:
    await register(engine)
    await engine(ChangeQueue(queue="default", change=QueueChange(paused=True)))
    found = await engine(GetQueueEstimate(queue="default"))
    assert (found.seconds, found.why) == (None, Why.PAUSE)


DEEP = 51_000


@pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)
async def test_a_job_fifty_thousand_deep_has_a_position_and_a_wait_of_its_own(engine: Engine) -> None:
    await teach(engine, 2.0)
    await register(engine, slots=4)
    ids: list[str] = []
    while len(ids) < DEEP:
        ids += (await engine(EnqueueMany(jobs=[NewJob(task="work")] * 1000))).ids
    await engine(GetQueueEstimate(queue="default"))
    for place in (0, 999, 1000, 50_000, 50_001, DEEP - 1):
        found = await engine(GetEstimate(id=ids[place]))
        assert found.position == place + 1
        assert found.seconds == pytest.approx(place // 4 * 2.0, rel=0.05, abs=60)
    begun = time.process_time()
    for id in ids[::100]:
        await engine(GetEstimate(id=id))
    assert time.process_time() - begun < 20.0, "one forecast serves all of them"


@pytest.mark.parametrize(
    ("sizes", "most", "part"),
    [([5, 5], 100, 5), ([1_000_000, 10, 10], 1000, 980), ([50, 50, 50], 90, 30), ([9, 9, 9], 2, 1), ([], 7, 1)],
)
def test_of_more_jobs_than_are_looked_at_the_longest_groups_are_cut(sizes: list[int], most: int, part: int) -> None:
    assert even_part(sizes, most) == part


# In front of a journal


async def forget_forecasts(engine: Engine) -> None:
    """Also those that are being made, of what was before."""
    stats = engine.context.stats
    for made in list(stats.making.values()):
        await made.wait()
    stats.forecasts.clear()


async def accepted(service: Journaled, **terms: Any) -> float | None:
    return (await service(Enqueue(job=NewJob(task="work", **terms)))).estimate


async def test_over_a_journal_an_estimate_counts_the_last_forecast_and_what_came_since(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.engine.estimate.forecast.AT_ENQUEUE", PATIENCE)
    async with journaled_at(redis_server.url, tmp_path, new_prefix()) as service:
        engine = service._engine
        await teach(engine, 4.0)
        worker = (await service(Register(worker=NewWorker(name="w", slots=2)))).worker
        assert [await accepted(service) for _ in range(2)] == [0.0, 0.0], "both slots are free"
        claimed = 0
        while claimed < 2:  # the journal may not have brought both yet
            claimed += len(await service(Claim(worker=worker, slots=2 - claimed)))
        await forget_forecasts(engine)
        waits = [await accepted(service) for _ in range(4)]
        assert waits == pytest.approx([4.0, 6.0, 8.0, 10.0], abs=2.5)
        assert waits == sorted(waits, key=lambda wait: wait or 0.0), "each is behind the one before"
        assert await accepted(service, delay=60.0) == pytest.approx(60.0, abs=2.5)
        forecasts = engine.context.stats.forecasts
        assert forecasts.keys() == {"default"}


async def test_over_a_journal_that_is_far_behind_an_estimate_counts_all_that_is_in_it(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with journaled_at(redis_server.url, tmp_path, new_prefix()) as service:
        engine, drainer = service._engine, service._drainer
        await teach(engine, 4.0)
        await service(Register(worker=NewWorker(name="w", slots=2)))
        await enqueue(engine)
        engine.context.stats.forecasts.clear()
        monkeypatch.setattr(drainer, "_drain", lambda _: asyncio.sleep(0.05, result=False))  # the store is slow
        await service(EnqueueMany(jobs=[NewJob(task="work")] * 1000))
        assert drainer.behind
        assert await accepted(service) is None, "there is no forecast, and the store is busy"
        await refresh_forecasts(engine.context)
        assert await accepted(service) == pytest.approx(2000.0, rel=0.1), "the upkeep has made a forecast meanwhile"
        assert await accepted(service, delay=5.0) is not None


async def test_over_a_journal_no_job_is_kept_at_the_door_by_a_forecast_that_takes_long(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with journaled_at(redis_server.url, tmp_path, new_prefix()) as service:
        context = service._engine.context
        await service(Register(worker=NewWorker(name="w")))
        await service(EnqueueMany(jobs=[NewJob(task="work")] * 1000))
        await service(EnqueueMany(jobs=[NewJob(task="work")] * 1000))
        await service(GetQueueEstimate(queue="other"))
        looks = 0

        async def for_ever(*_: object) -> None:
            nonlocal looks
            looks += 1
            await asyncio.Event().wait()

        monkeypatch.setattr(context.store.flow, "backlog", for_ever)
        assert [await accepted(service) for _ in range(20)] == [None] * 20, "absent rather than late"
        assert looks == 1, "no other enqueue waits for the same"
        assert "default" in context.stats.watched, "the upkeep will make one"
