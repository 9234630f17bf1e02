"""Estimates through the engine's operations, on each kind of store: how long, for what, and how right that was."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.engines import enqueue, finish, register, take
from tests.support.patience import PATIENCE
from tests.support.stores import EPOCH, VirtualClock
from windlass.engine import Engine
from windlass.engine.estimate.answers import estimate_for_follower
from windlass.engine.estimate.forecast import refresh_forecasts
from windlass.engine.estimate.learn import RUN_TIMES, learn_run_times, measure_accuracy, relative_error
from windlass.engine.estimate.stats import (
    MOST_FORECAST_JOBS,
    MOST_FRESH,
    MOST_RUNNING,
    STALE,
    Forecast,
    Prediction,
    RunStats,
)
from windlass.model.errors import Missing
from windlass.model.estimate import Estimate, QueueEstimate, Why
from windlass.model.job import Job
from windlass.model.limit import NewLimit, Pause, Rate, Which
from windlass.model.names import EVERY_TENANT, JobKey, key_of
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Cancel,
    ChangeQueue,
    Claim,
    Enqueue,
    EnqueueMany,
    GetEstimate,
    GetQueueEstimate,
    PauseTask,
    PutLimit,
)
from windlass.model.queue import QueueChange, Tier
from windlass.policy.run_times import mean, unpack
from windlass.policy.snapshot import LoadSnapshot, SlotPool, WaitingLane
from windlass.store.data import Reading, Record


async def estimate(engine: Engine, job: Job, **more: Any) -> Estimate:
    return await engine(GetEstimate(id=job.id, **more))


async def waits_of(engine: Engine, *jobs: Job) -> list[tuple[float | None, int | None, Why | None]]:
    found = [await estimate(engine, job) for job in jobs]
    return [(one.seconds, one.position, one.why) for one in found]


async def teach(engine: Engine, seconds: float, *, task: str = "work", tenant: str = "default", runs: int = 50) -> None:
    """Let the engine see runs of a task that take so long."""
    job = await enqueue(engine, task, tenant=tenant, delay=1000.0)
    for _ in range(runs):
        engine.context.stats.claimed([Record(job)], 0.0)
        engine.context.stats.finished([key_of(job)], seconds)
    await learn_run_times(engine.context)
    await engine(Cancel(tenant=tenant, ids=[job.id]))
    stats = engine.context.stats
    for made_for_that_job in (stats.forecasts, stats.watched, stats.crowded_until):
        made_for_that_job.clear()


async def tiers(engine: Engine, slow: int = 1, medium: int = 2) -> None:
    given = [
        Tier(name="fast", seconds=3),
        Tier(name="medium", seconds=10, cap=medium),
        Tier(name="slow", seconds=30, cap=slow),
    ]
    await engine(ChangeQueue(queue="default", change=QueueChange(tiers=given)))


async def test_jobs_wait_for_those_before_them_as_long_as_such_jobs_have_run(engine: Engine) -> None:
    await teach(engine, 4.0)
    worker = await register(engine, slots=2)
    for _ in range(2):
        await enqueue(engine)
        await take(engine, worker)
    jobs = [await enqueue(engine) for _ in range(4)]
    found = await waits_of(engine, *jobs)
    assert [(position, why) for _, position, why in found] == [(n, Why.SLOTS) for n in (1, 2, 3, 4)]
    assert [seconds for seconds, _, _ in found] == pytest.approx([4.0, 4.0, 8.0, 8.0], rel=0.1)


async def test_a_running_job_is_expected_to_end_the_sooner_the_longer_it_has_run(
    engine: Engine, clock: VirtualClock
) -> None:
    await teach(engine, 10.0)
    worker = await register(engine)
    await enqueue(engine)
    await take(engine, worker)
    job = await enqueue(engine)
    clock.advance(6)
    assert (await estimate(engine, job)).seconds == pytest.approx(4.0, abs=1.0)


async def test_a_job_that_runs_or_has_ended_waits_for_nothing(engine: Engine) -> None:
    worker = await register(engine)
    job = await enqueue(engine)
    claimed = await take(engine, worker)
    assert await estimate(engine, job) == Estimate()
    await finish(engine, worker, claimed)
    assert await estimate(engine, job) == Estimate()


async def test_a_job_of_another_tenant_has_no_estimate(engine: Engine) -> None:
    job = await enqueue(engine)
    with pytest.raises(Missing):
        await estimate(engine, job, tenant="other")


async def test_without_a_worker_there_is_no_estimate_and_it_says_why(engine: Engine) -> None:
    job = await enqueue(engine)
    assert await estimate(engine, job) == Estimate(position=1, why=Why.WORKER)
    await register(engine, tasks=["other"])
    assert await estimate(engine, job) == Estimate(position=1, why=Why.HANDLER)
    await register(engine, tasks=["work"])
    assert (await estimate(engine, job)).seconds == 0.0


async def test_a_scheduled_job_waits_for_its_time_and_a_blocked_one_for_other_jobs(engine: Engine) -> None:
    await register(engine)
    scheduled = await enqueue(engine, delay=30.0)
    blocked = await enqueue(engine, after=[scheduled.id])
    assert await waits_of(engine, scheduled, blocked) == [(30.0, None, Why.TIME), (None, None, Why.JOBS)]


async def test_behind_a_full_limit_a_job_says_which_and_others_pass_by(engine: Engine) -> None:
    await teach(engine, 5.0, task="mail")
    await engine(PutLimit(name="smtp", limit=NewLimit(match=Which(queue="default", task="mail"), running=1)))
    worker = await register(engine, slots=3)
    await enqueue(engine, "mail")
    await take(engine, worker)
    waiting, other = await enqueue(engine, "mail"), await enqueue(engine, "other")
    found = await estimate(engine, waiting)
    assert (found.why, found.name) == (Why.LIMIT, "smtp")
    assert found.seconds == pytest.approx(5.0, rel=0.1)
    assert (await estimate(engine, other)).seconds == 0.0


async def test_a_rate_holds_jobs_up_until_the_clock_allows_them(engine: Engine) -> None:
    limit = NewLimit(match=Which(queue="default"), rate=Rate(count=1, per=60))
    await engine(PutLimit(name="slowly", limit=limit))
    worker = await register(engine, slots=5)
    jobs = [await enqueue(engine) for _ in range(3)]
    await take(engine, worker)
    assert await engine(Claim(worker=worker)) == []
    found = [await estimate(engine, job) for job in jobs[1:]]
    assert [(one.why, one.name) for one in found] == [(Why.LIMIT, "slowly")] * 2
    assert [one.seconds for one in found] == pytest.approx([60.0, 120.0], abs=0.5)


async def test_a_pause_is_said_with_its_end_or_without(engine: Engine, clock: VirtualClock) -> None:
    await register(engine)
    job = await enqueue(engine)
    pause = Pause(paused=True, until=clock.now() + timedelta(seconds=90))
    await engine(PauseTask(task="work", pause=pause))
    assert await waits_of(engine, job) == [(90.0, 1, Why.PAUSE)]
    await engine(ChangeQueue(queue="default", change=QueueChange(paused=True)))
    assert await waits_of(engine, job) == [(None, 1, Why.PAUSE)]


async def test_items_17_and_18_with_tiers_the_nominal_time_counts_and_later_arrivals_do_not(engine: Engine) -> None:
    await tiers(engine)
    worker = await register(engine, slots=2)
    for tier in ("slow", None):
        await enqueue(engine, tier=tier)
        await take(engine, worker)
    slow, flexible, medium = [await enqueue(engine, tier=tier) for tier in ("slow", None, "medium")]
    before = await waits_of(engine, slow, flexible, medium)
    assert before == [(30.0, 1, Why.TIER), (3.0, 2, Why.SLOTS), (6.0, 3, Why.SLOTS)]
    for tier in ("fast", "slow", None, "medium", "fast"):
        await enqueue(engine, tier=tier)
    assert await waits_of(engine, slow, flexible, medium) == before


async def test_jobs_of_tenants_that_share_workers_wait_for_each_other(engine: Engine) -> None:
    await teach(engine, 2.0, tenant="b")
    worker = await register(engine, tenant="-")
    first = await enqueue(engine, tenant="b")
    second = await enqueue(engine, tenant="a")
    assert (await estimate(engine, first, tenant="b")).seconds == 0.0
    assert (await estimate(engine, second, tenant="a")).seconds == pytest.approx(2.0, rel=0.1)
    await register(engine, tenant="a")
    assert (await estimate(engine, second, tenant="a")).seconds == 0.0
    assert worker


async def test_a_job_waits_for_a_worker_that_knows_it_though_others_are_free(engine: Engine) -> None:
    await teach(engine, 7.0, task="rare")
    await register(engine, tasks=["common"], slots=5)
    worker = await register(engine, tasks=["rare"])
    await enqueue(engine, "rare")
    await take(engine, worker)
    rare, common = await enqueue(engine, "rare"), await enqueue(engine, "common")
    assert (await estimate(engine, rare)).seconds == pytest.approx(7.0, rel=0.1)
    assert (await estimate(engine, common)).seconds == 0.0


async def test_a_worker_that_is_busy_with_another_queue_has_no_free_slot(engine: Engine) -> None:
    await teach(engine, 5.0)
    worker = await register(engine, "default", "other")
    await enqueue(engine, queue="other")
    await take(engine, worker)
    job = await enqueue(engine)
    assert (await estimate(engine, job)).seconds == pytest.approx(5.0, rel=0.1)


@pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)  # on a cluster a limit bounds one queue
async def test_places_that_jobs_of_another_queue_take_within_a_limit_count(engine: Engine) -> None:
    await teach(engine, 5.0)
    await engine(PutLimit(name="one", limit=NewLimit(match=Which(task="work"), running=1)))
    worker = await register(engine, "default", "other", slots=3)
    await enqueue(engine, queue="other")
    await take(engine, worker)
    found = await estimate(engine, await enqueue(engine))
    assert (found.why, found.name) == (Why.LIMIT, "one")
    assert found.seconds == pytest.approx(5.0, rel=0.1)


async def test_a_yielding_job_delays_no_other_job(engine: Engine) -> None:
    await tiers(engine)
    worker = await register(engine)
    await enqueue(engine, yielding=True)
    await take(engine, worker)
    job = await enqueue(engine, tier="slow")
    assert (await estimate(engine, job)).seconds == 0.0


async def test_a_queue_says_how_long_a_arrival_would_wait(engine: Engine) -> None:
    await teach(engine, 4.0)
    assert await engine(GetQueueEstimate(queue="default")) == QueueEstimate(why=Why.WORKER)
    worker = await register(engine)
    assert await engine(GetQueueEstimate(queue="default")) == QueueEstimate(seconds=0.0)
    await enqueue(engine)
    await take(engine, worker)
    await engine(EnqueueMany(jobs=[NewJob(task="work")] * 9))
    found = await engine(GetQueueEstimate(queue="default"))
    assert (found.waiting, found.why) == (9, Why.SLOTS)
    assert found.seconds == pytest.approx(40.0, rel=0.1)


async def test_a_tenant_sees_of_a_queue_what_concerns_it(engine: Engine) -> None:
    await register(engine, tenant="b")
    await enqueue(engine, tenant="b")
    await enqueue(engine, tenant="a")
    assert await engine(GetQueueEstimate(tenant="a", queue="default")) == QueueEstimate(waiting=1, why=Why.WORKER)
    found = await engine(GetQueueEstimate(tenant="b", queue="default"))
    assert (found.seconds, found.why) == (None, Why.SLOTS), "nothing is known of its task"
    assert (await engine(GetQueueEstimate(tenant="c", queue="default"))) == QueueEstimate(why=Why.WORKER)
    assert (await engine(GetQueueEstimate(tenant="-", queue="default"))).waiting == 2


async def accepted(engine: Engine, **terms: Any) -> float | None:
    return (await engine(Enqueue(job=NewJob(task="work", **terms)))).estimate


async def test_a_new_job_gets_an_estimate_unless_that_takes_too_much_time(engine: Engine) -> None:
    await teach(engine, 4.0)
    worker = await register(engine)
    await enqueue(engine)
    await take(engine, worker)
    engine.context.stats.forecasts.clear()
    assert await accepted(engine) == pytest.approx(4.0, rel=0.1)
    last = engine.context.stats.forecasts["default"]
    engine.context.stats.forecasts["default"] = replace(last, cost=60.0)
    assert await accepted(engine) == pytest.approx(8.0, rel=0.1), "from the last forecast and the late arrivals"
    engine.context.stats.forecasts["default"] = replace(last, cost=60.0, at=last.at - STALE)
    assert await accepted(engine) is None, "that is too long ago"
    engine.context.stats.forecasts["default"] = replace(last, cost=0.0)
    assert await accepted(engine) == pytest.approx(16.0, rel=0.1)


async def test_a_new_job_with_a_delay_gets_an_estimate_of_its_start(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.engine.estimate.forecast.AT_ENQUEUE", PATIENCE)
    await teach(engine, 4.0)
    assert await accepted(engine, delay=60.0) is None, "unknown: there is no worker"
    worker = await register(engine)
    assert await accepted(engine, delay=60.0) == pytest.approx(60.0, abs=1.0), "one came, and its slot is free"
    for _ in range(4):
        await enqueue(engine)
    await take(engine, worker)
    engine.context.stats.forecasts.clear()
    assert await accepted(engine, delay=5.0) == pytest.approx(16.0, rel=0.2), "behind those who wait, as they are now"
    assert await accepted(engine, delay=60.0) == pytest.approx(60.0, abs=1.0)
    assert await accepted(engine) == pytest.approx(16.0, rel=0.1), "later jobs do not count as waiting"
    last = engine.context.stats.forecasts["default"]
    engine.context.stats.forecasts["default"] = replace(last, cost=60.0, at=last.at - 2.0)
    assert await accepted(engine, delay=60.0) == pytest.approx(58.0, abs=1.0), "the forecast was made two seconds ago"


async def test_a_job_with_a_delay_for_a_deep_queue_gets_a_rough_estimate(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.engine.estimate.forecast.AT_ENQUEUE", PATIENCE)
    await teach(engine, 4.0)
    await register(engine, slots=2)
    for _ in range(2):
        await engine(EnqueueMany(jobs=[NewJob(task="work")] * 1000))
    engine.context.stats.forecasts.clear()
    assert await accepted(engine, delay=5.0) == pytest.approx(4000.0, rel=0.1)
    assert engine.context.stats.forecasts["default"].rough
    assert await accepted(engine, delay=5000.0) == pytest.approx(5000.0, abs=1.0)


async def test_item_17_with_tiers_each_new_job_gets_an_estimate(engine: Engine) -> None:
    await tiers(engine)
    worker = await register(engine)
    await enqueue(engine, tier="medium")
    await take(engine, worker)
    assert [await accepted(engine, tier=tier) for tier in ("fast", "slow", None)] == [10.0, 13.0, 43.0]


async def test_estimates_are_compared_with_actual_waits(engine: Engine, clock: VirtualClock) -> None:
    await teach(engine, 10.0)
    worker = await register(engine)
    await enqueue(engine)
    running = await take(engine, worker)
    await enqueue(engine)
    stats = engine.context.stats
    stats.predictions.clear()
    stats.forecasts.clear()
    stats.watched.clear()  # on a busy machine an enqueue may have made a second forecast
    await refresh_forecasts(engine.context)
    assert not stats.predictions, "the queue is not watched"
    await engine(GetQueueEstimate(queue="default"))
    while not stats.predictions:
        await refresh_forecasts(engine.context)
    clock.advance(8)
    await measure_accuracy(engine.context)
    assert (await engine(GetQueueEstimate(queue="default"))).error is None, "it has not come true yet"
    await finish(engine, worker, running)
    await take(engine, worker)
    await measure_accuracy(engine.context)
    found = await engine(GetQueueEstimate(queue="default"))
    assert found.error == pytest.approx(0.25, abs=0.15), "ten seconds were foretold, it was eight"


async def test_run_times_are_learned_from_what_is_claimed_and_finished(engine: Engine) -> None:
    worker = await register(engine)
    await enqueue(engine)
    await finish(engine, worker, await take(engine, worker))
    assert list(engine.context.stats.fresh) == ["default,work"]
    assert await learn_run_times(engine.context) == 0
    (kept,) = (await engine.context.store.records.list(RUN_TIMES)).values()
    learned = mean(unpack(kept))
    assert learned is not None, "every engine over this store can know it"
    assert 0 < learned < 5


async def test_what_an_engine_remembers_is_bounded(engine: Engine) -> None:
    stats = RunStats()
    job = await enqueue(engine)
    records = [Record(replace(job, id=str(number))) for number in range(MOST_RUNNING + 1)]
    stats.claimed(records, 0.0)
    stats.finished([JobKey("0", "default"), JobKey("unknown", "default")], 1.0)
    assert not stats.fresh, "the oldest was forgotten"
    stats.finished([JobKey(str(number), "default") for number in range(1, MOST_RUNNING)], 1.0)
    assert len(stats.fresh["default,work"]) == MOST_FRESH


def test_forecasts_of_many_large_queues_do_not_pile_up() -> None:
    stats = RunStats()
    large = {str(number): Estimate() for number in range(MOST_FORECAST_JOBS // 2)}
    for queue in "abc":
        load = LoadSnapshot([SlotPool(1)])
        stats.remember(queue, Forecast(load, large, {}, EPOCH, 0.0, 0.0, len(large), lambda _: WaitingLane([], 0.0)))
    assert list(stats.forecasts) == ["b", "c"]


async def test_one_forecast_of_a_large_queue_serves_all_who_ask(engine: Engine) -> None:
    await teach(engine, 2.0)
    await register(engine, slots=4)
    for _ in range(2):
        await engine(EnqueueMany(jobs=[NewJob(task="work")] * 1000))
    found = await engine(GetQueueEstimate(queue="default"))
    assert found.waiting == 2000
    assert found.seconds is not None
    assert found.seconds == pytest.approx(1000.0, rel=0.1)
    made = engine.context.stats.forecasts["default"]
    engine.context.stats.forecasts["default"] = replace(made, cost=60.0)
    job = await enqueue(engine)
    found_again = await estimate(engine, job)
    assert found_again.position == 2001
    assert found_again.seconds == pytest.approx(found.seconds, abs=1.0), "it came later, and waits as long as a new job"
    later = await estimate(engine, await enqueue(engine))
    assert later.position == 2002
    assert later.seconds == pytest.approx(found.seconds + 0.5, abs=0.4), "behind that one, four of which run at once"
    urgent = await estimate(engine, await enqueue(engine, priority=-1))
    assert urgent.seconds == 0.0, "no job goes before it"
    assert engine.context.stats.forecasts["default"].at == made.at


async def test_a_follower_of_a_job_that_is_newer_than_the_forecast_gets_its_wait_at_once(engine: Engine) -> None:
    await teach(engine, 4.0)
    worker = await register(engine)
    await enqueue(engine)
    await take(engine, worker)
    await engine(GetQueueEstimate(queue="default"))
    forecasts = engine.context.stats.forecasts
    made = forecasts["default"] = replace(forecasts["default"], cost=60.0)
    jobs = [await enqueue(engine), await enqueue(engine)]
    found = [one for job in jobs if (one := await estimate_for_follower(engine.context, job)) is not None]
    assert [(one.position, one.why) for one in found] == [(1, Why.SLOTS), (2, Why.SLOTS)]
    assert [one.seconds for one in found] == pytest.approx([4.0, 8.0], abs=1.0)
    assert forecasts["default"] is made, "from the same forecast as everything else"


async def test_a_job_that_was_cancelled_while_it_was_followed_is_not_estimated(engine: Engine) -> None:
    await engine(GetQueueEstimate(queue="default"))
    forecasts = engine.context.stats.forecasts
    forecasts["default"] = replace(forecasts["default"], cost=60.0)  # so that it is not made again
    job = await enqueue(engine)
    await engine(Cancel(ids=[job.id]))
    assert await estimate_for_follower(engine.context, job) is None


@pytest.mark.parametrize(("said", "real", "part"), [(10, 8, 0.25), (8, 10, 0.2), (0, 0, 0), (0.05, 0, 0.5)])
def test_an_error_is_a_part_of_the_real_wait(said: float, real: float, part: float) -> None:
    assert relative_error(said, real) == pytest.approx(part)


async def test_promises_made_while_others_are_looked_up_are_kept(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats, store = engine.context.stats, engine.context.store
    jobs = [await enqueue(engine) for _ in range(3)]
    promise = Prediction("default", 1.0, EPOCH)
    stats.predictions.clear()
    stats.predictions.update({key_of(jobs[0]): promise, key_of(jobs[1]): promise})
    read = store.jobs.read

    async def meanwhile(keys: list[JobKey]) -> Reading:
        reading = await read(keys)
        stats.predictions[key_of(jobs[2])] = promise
        del stats.predictions[key_of(jobs[0])]
        return reading

    await engine(Cancel(ids=[jobs[0].id]))
    monkeypatch.setattr(store.jobs, "read", meanwhile)
    await measure_accuracy(engine.context)
    assert set(stats.predictions) == {key_of(jobs[1]), key_of(jobs[2])}


@pytest.mark.parametrize("policy", [None, "fair"])
async def test_a_position_counts_only_jobs_of_the_own_tenant(engine: Engine, policy: Any) -> None:
    if policy:
        await engine(ChangeQueue(tenant=EVERY_TENANT, queue="default", change=QueueChange(policy=policy)))
    await register(engine, tenant=EVERY_TENANT)
    for _ in range(3):
        await enqueue(engine, tenant="other")
    jobs = [await enqueue(engine), await enqueue(engine, "another")]
    assert [(await estimate(engine, job)).position for job in jobs] == [1, 2]


async def test_a_position_beyond_the_last_forecast_counts_only_jobs_of_the_own_tenant(engine: Engine) -> None:
    await register(engine, tenant=EVERY_TENANT)
    for _ in range(3):
        await enqueue(engine, tenant="other")
    await enqueue(engine, "another")
    await engine(GetQueueEstimate(queue="default"))
    forecasts = engine.context.stats.forecasts
    forecasts["default"] = replace(forecasts["default"], cost=60.0)  # so that it is not made again
    found = await estimate_for_follower(engine.context, await enqueue(engine))
    assert found is not None
    assert found.position == 2


# Tasks that never ran, and what bounds a wait


async def test_of_a_task_that_never_ran_the_time_limit_is_expected(engine: Engine) -> None:
    worker = await register(engine)
    await enqueue(engine, "new", timeout=20.0)
    await take(engine, worker)
    await enqueue(engine, "new", timeout=20.0)
    behind = await enqueue(engine, "newer")
    assert (await estimate(engine, behind)).seconds == pytest.approx(40.0)


async def test_without_a_time_limit_the_runs_of_its_queue_are_expected(engine: Engine) -> None:
    worker = await register(engine)
    await enqueue(engine)
    await finish(engine, worker, await take(engine, worker))
    await teach(engine, 4.0, runs=500)
    await enqueue(engine, "new")
    await take(engine, worker)
    behind = await enqueue(engine, "new")
    assert (await estimate(engine, behind)).seconds == pytest.approx(4.0, rel=0.1)


async def test_where_nothing_is_known_no_wait_is_given_but_what_it_is_for(engine: Engine) -> None:
    worker = await register(engine, slots=2)
    first = await enqueue(engine, "new")
    assert (await estimate(engine, first)).seconds == 0.0, "a slot is free"
    await enqueue(engine, "new")
    for _ in range(2):
        await take(engine, worker)
    behind = [await enqueue(engine, "new") for _ in range(2)]
    found = [await estimate(engine, job) for job in behind]
    assert [(one.seconds, one.position, one.why) for one in found] == [(None, 1, Why.SLOTS), (None, 2, Why.SLOTS)]


async def test_with_tiers_a_wait_has_an_expected_value_and_a_bound(engine: Engine) -> None:
    await teach(engine, 2.0)
    tiers = [Tier(name="fast", seconds=10), Tier(name="slow", seconds=30, cap=9)]
    await engine(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))
    worker = await register(engine)
    await enqueue(engine, tier="slow")
    await take(engine, worker)
    await enqueue(engine, tier="slow")
    job = await engine(Enqueue(job=NewJob(task="work", tier="fast")))
    found = await estimate(engine, job)
    assert found.seconds == pytest.approx(4.0, rel=0.2)
    assert found.at_most == pytest.approx(60.0)
    assert job.estimate == pytest.approx(4.0, rel=0.2)
    assert job.estimate_at_most == pytest.approx(60.0)
    whole = await engine(GetQueueEstimate(queue="default"))
    assert whole.seconds is not None
    assert whole.at_most is not None
    assert whole.seconds < whole.at_most


async def test_item_18_jobs_behind_raise_neither_the_wait_nor_its_bound(engine: Engine) -> None:
    await teach(engine, 2.0)
    tiers = [Tier(name="fast", seconds=10), Tier(name="slow", seconds=30, cap=1)]
    await engine(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))
    worker = await register(engine, slots=2)
    for _ in range(2):
        await enqueue(engine, tier="slow")
    await take(engine, worker)
    job = await enqueue(engine, tier="slow")
    before = await estimate(engine, job)
    for tier in ("fast", "slow", None, "fast"):
        await enqueue(engine, tier=tier)
        after = await estimate(engine, job)
        assert (after.seconds or 0.0) <= (before.seconds or 0.0)
        assert (after.at_most or 0.0) <= (before.at_most or 0.0)
