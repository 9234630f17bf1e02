"""Deep queues on each kind of store: an enqueue gets its estimate at once, and later jobs do not raise it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.estimate.test_estimates import estimate, teach
from tests.support.drained_journals import caught_up, journaled_at
from tests.support.engines import enqueue, register
from tests.support.patience import PATIENCE
from tests.support.push_servers import Station
from tests.support.servers import NewPrefix, Server
from tests.support.stores import SeededChance
from windlass.engine import Engine
from windlass.engine.context import EngineContext
from windlass.engine.estimate.forecast import refresh_forecasts
from windlass.engine.flow import load
from windlass.model import wire
from windlass.model.estimate import Why
from windlass.model.job import Job
from windlass.model.limit import NewLimit, Pause, Rate, Which
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Accepted,
    ChangeQueue,
    Enqueue,
    EnqueueMany,
    GetEstimate,
    GetQueueEstimate,
    PauseTask,
    PutLimit,
    Register,
)
from windlass.model.queue import QueueChange, Tier
from windlass.model.worker import NewWorker
from windlass.store.flow import Rules
from windlass.store.protocol import Store

CROWD = 3000
"""More than are looked at for each who comes."""

PAST = 10.0
"""Seconds of a virtual machine that is slower than it should be."""


async def fill(service: Any, number: int = CROWD, **terms: Any) -> list[str]:
    ids: list[str] = []
    new = NewJob(**{"task": "work", **terms})
    while len(ids) < number:
        ids += (await service(EnqueueMany(jobs=[new] * min(1000, number - len(ids))))).ids
    return ids


async def knock(service: Any, *, tenant: str = "default", **terms: Any) -> Accepted:
    found: Accepted = await service(Enqueue(tenant=tenant, job=NewJob(**{"task": "work", **terms})))
    return found


async def test_the_first_job_of_a_deep_queue_gets_an_estimate_at_once(engine: Engine) -> None:
    await teach(engine, 2.0)
    await register(engine, slots=4)
    await fill(engine)
    waits = [(await knock(engine)).estimate for _ in range(3)]
    assert waits == pytest.approx([1500.0] * 3, rel=0.1)
    (found,) = engine.context.stats.forecasts.values()
    assert found.rough, "three thousand jobs are not replayed for that"
    assert "default" in engine.context.stats.watched, "the upkeep makes a better forecast"
    assert await refresh_forecasts(engine.context) == 0
    assert not engine.context.stats.forecasts["default"].rough


async def test_many_who_ask_at_the_same_time_share_one_forecast(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one's own would keep everybody else waiting for as long as all of them take together."""
    await teach(engine, 2.0)
    await register(engine, slots=4)
    ids = await fill(engine)
    engine.context.stats.forecasts.clear()
    looks: list[str] = []

    async def counted(context: EngineContext, rules: Rules, queue: str, **more: float) -> load.QueueLoad:
        looks.append(queue)
        return await load.read_load(context, rules, queue, **more)

    monkeypatch.setattr("windlass.engine.estimate.forecast.read_load", counted)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(engine(GetEstimate(id=id))) for id in ids[::50]]
    assert [one.result().position for one in asked] == list(range(1, CROWD + 1, 50))
    assert looks == ["default"]


async def test_an_estimate_that_was_given_at_once_is_never_raised_by_later_jobs(engine: Engine) -> None:
    await teach(engine, 2.0)
    await register(engine, slots=4)
    await fill(engine)
    first = await knock(engine)
    assert first.estimate is not None
    for _ in range(2):
        await fill(engine)
        engine.context.stats.forecasts.clear()
        again = await engine(GetEstimate(id=first.id))
        assert again.position == CROWD + 1
        assert again.seconds is not None
        assert 0.8 * first.estimate < again.seconds <= first.estimate


async def test_behind_a_full_limit_a_new_job_learns_how_long_that_lasts_and_others_pass_by(engine: Engine) -> None:
    await teach(engine, 2.0)
    await engine(PutLimit(name="smtp", limit=NewLimit(match=Which(queue="default", task="work"), running=1)))
    await register(engine, slots=4)
    await fill(engine)
    assert (await knock(engine)).estimate == pytest.approx(6000.0, rel=0.1)
    assert (await knock(engine, task="other")).estimate == pytest.approx(0.0, abs=1.0)
    await engine(GetQueueEstimate(queue="default"))
    assert not engine.context.stats.forecasts["default"].rough
    begun = time.monotonic()
    bound, other = await knock(engine), await knock(engine, task="other")
    assert bound.estimate == pytest.approx(6000.0, rel=0.1), "with a whole forecast as well"
    assert (await engine(GetEstimate(id=bound.id))).seconds == pytest.approx(6000.0, rel=0.1)
    assert other.estimate == pytest.approx(0.0, abs=1.0)
    last = await knock(engine)
    assert last.estimate is not None
    elapsed = time.monotonic() - begun
    assert last.estimate + elapsed >= (bound.estimate or 0) + 1.9, "one run later, for only one runs at a time"


async def test_each_key_of_a_limit_waits_for_its_own(engine: Engine) -> None:
    """As a payload says; it is read once."""
    await teach(engine, 2.0)
    limit = NewLimit(match=Which(queue="default"), rate=Rate(count=1, per=10), key="payload.customer")
    await engine(PutLimit(name="api", limit=limit))
    await register(engine, slots=4)
    many, few = (Raw(wire.encode({"customer": name})) for name in ("many", "few"))
    await fill(engine, payload=many)
    assert (await knock(engine, payload=many)).estimate == pytest.approx(30_000.0, rel=0.1)
    assert (await knock(engine, payload=few)).estimate == pytest.approx(0.0, abs=15.0)


async def test_in_a_deep_queue_with_tiers_each_job_gets_the_estimate_of_its_tier(engine: Engine) -> None:
    tiers = [Tier(name="fast", seconds=3), Tier(name="slow", seconds=30, cap=1)]
    await engine(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))
    await register(engine, slots=4)
    await fill(engine, 1200, tier="slow")
    assert (await knock(engine, tier="fast")).estimate == pytest.approx(0.0, abs=1.0)
    assert (await knock(engine, tier="slow")).estimate == pytest.approx(36_000.0, rel=0.01)
    assert (await knock(engine, tier="slow")).estimate == pytest.approx(36_030.0, rel=0.01)


async def test_of_tenants_that_take_turns_a_arrival_waits_for_a_round(engine: Engine) -> None:
    await teach(engine, 2.0)
    change = ChangeQueue(tenant="-", queue="default", change=QueueChange(policy="fair"))
    await engine(change)
    await register(engine, tenant="-")
    await fill(engine)
    small = await knock(engine, tenant="small")
    assert small.estimate is not None
    assert small.estimate < 20.0
    assert (await knock(engine)).estimate == pytest.approx(6000.0, rel=0.1)


async def test_where_nothing_is_known_there_is_no_estimate(engine: Engine) -> None:
    await teach(engine, 2.0)
    await fill(engine, 1200)
    assert (await knock(engine)).estimate is None
    assert (await engine(GetEstimate(id=(await knock(engine)).id))).why is Why.WORKER
    await register(engine)
    engine.context.stats.forecasts.clear()
    assert (await knock(engine)).estimate is not None
    await engine(PauseTask(task="work", pause=Pause(paused=True)))
    engine.context.stats.forecasts.clear()
    assert (await knock(engine)).estimate is None
    assert (await knock(engine, task="other")).estimate is not None, "paused jobs delay no other job"


async def test_a_priority_counts_in_a_glimpse_too(engine: Engine) -> None:
    await teach(engine, 2.0)
    await register(engine, slots=4)
    await fill(engine)
    assert (await knock(engine, priority=-1)).estimate == pytest.approx(0.0, abs=2.0)
    assert (await knock(engine, priority=5)).estimate == pytest.approx(1500.0, rel=0.1)


async def test_a_glimpse_is_not_taken_for_each_who_comes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await teach(engine, 2.0)
    await register(engine, slots=4)
    await fill(engine)
    monkeypatch.setattr("windlass.engine.estimate.stats.ROUGH_FOR", 60.0)
    tallies = 0
    tally = engine.context.store.jobs.counts

    async def counted(tenant: str) -> Any:
        nonlocal tallies
        tallies += 1
        return await tally(tenant)

    monkeypatch.setattr(engine.context.store.jobs, "counts", counted)
    for _ in range(50):
        assert (await knock(engine)).estimate is not None
    assert tallies <= 2


async def test_jobs_that_come_while_the_first_look_is_taken_get_estimates_too(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.engine.estimate.forecast.AT_ENQUEUE", 5.0)  # the machine may be busy with other tests
    await teach(engine, 2.0)
    await register(engine)
    found = await asyncio.gather(*(knock(engine) for _ in range(20)))
    assert [one.estimate is None for one in found].count(True) == 0


# Deeper than is listed


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many jobs a forecast lists, for a while."""
    monkeypatch.setattr(load, "MOST_LISTED", 1500)
    return 1500


@pytest.mark.usefixtures("listed")
async def test_a_job_deeper_than_is_listed_is_estimated_by_its_own_rank_whatever_comes_behind_it(
    engine: Engine,
) -> None:
    await teach(engine, 2.0)
    await register(engine, slots=4)
    ids = await fill(engine, 5000)
    for _ in range(2):
        for place in (0, 1499, 1500, 2500, 4999):
            found = await engine(GetEstimate(id=ids[place]))
            assert found.position == place + 1
            assert found.seconds == pytest.approx(place // 4 * 2.0, rel=0.02, abs=PAST)
        await fill(engine, 3000)
        engine.context.stats.forecasts.clear()
    newest = await enqueue(engine)
    assert (await estimate(engine, newest)).seconds == pytest.approx(11_000 / 2, rel=0.05)


@pytest.mark.usefixtures("listed")
async def test_of_several_deep_lanes_none_gets_a_lower_estimate_than_all_of_them_take(engine: Engine) -> None:
    await teach(engine, 2.0)
    await teach(engine, 2.0, task="other")
    await register(engine, slots=4)
    first, second = await fill(engine, 3000), await fill(engine, 3000, task="other")
    found = await engine(GetQueueEstimate(queue="default"))
    assert found.waiting == 6000
    assert found.seconds == pytest.approx(3000.0, rel=0.05)
    told = [(await engine(GetEstimate(id=id))).seconds or 0.0 for id in (first[0], first[1400], first[2999])]
    assert told == pytest.approx([0.0, 700.0, 1500.0], rel=0.05, abs=PAST)
    late = (await engine(GetEstimate(id=second[2999]))).seconds
    assert late is not None
    assert late <= 3000.0 + PAST


# Through a server


async def test_over_a_journal_the_first_job_of_a_deep_queue_gets_an_estimate_at_once(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.engine.estimate.forecast.AT_ENQUEUE", PATIENCE)
    async with journaled_at(redis_server.url, tmp_path, new_prefix()) as service:
        await teach(service._engine, 2.0)
        await service(Register(worker=NewWorker(name="w", slots=4)))
        limit = NewLimit(match=Which(queue="default", payload={"slow": True}), running=1)
        await service(PutLimit(name="one", limit=limit))
        await fill(service)
        await caught_up(service)
        waits = [(await knock(service)).estimate for _ in range(3)]
        assert waits == pytest.approx([1500.0] * 3, rel=0.1)
        bound = Raw(wire.encode({"slow": True}))
        await fill(service, 2000, payload=bound)
        await caught_up(service)
        service._engine.context.stats.forecasts.clear()
        assert (await knock(service, payload=bound)).estimate == pytest.approx(4000 + 1000, rel=0.3)


async def test_over_http_the_first_job_of_a_deep_queue_gets_an_estimate_at_once(
    hub: Station, real_store: Store, chance: SeededChance
) -> None:
    engine = Engine(real_store, chance)
    await teach(engine, 2.0)
    await fill(engine)
    await hub.client(Register(worker=NewWorker(name="w", slots=4)))
    accepted: Job = await hub.enqueue()
    assert accepted.estimate == pytest.approx(CROWD / 4 * 2.0, rel=0.1)
