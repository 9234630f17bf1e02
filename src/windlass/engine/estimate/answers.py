"""Answers about waits: for callers who ask, follow a job, or have just enqueued one.

The forecast of the queue answers for the jobs in it. Jobs that arrived after it was made wait behind all that it knew
and behind other late arrivals; jobs too deep to be listed are placed by their rank. An enqueue waits only briefly for
its estimate.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from windlass.engine.context import EngineContext
from windlass.engine.estimate.forecast import (
    LAST,
    OLDEST,
    SHARE,
    UNKNOWN,
    free_slots,
    get_forecast,
    is_crowded,
    is_due,
    is_large,
    new_arrival,
    rough_forecast,
    watch_queue,
)
from windlass.engine.estimate.learn import loop_time, median_errors
from windlass.engine.estimate.stats import FIRST, Forecast, QueuePlace, forecast_name
from windlass.engine.handlers import unable
from windlass.model.errors import WindlassError
from windlass.model.estimate import Estimate, QueueEstimate, Why
from windlass.model.job import Job, State
from windlass.model.names import EVERY_TENANT, key_of
from windlass.model.operations import GetEstimate, GetQueueEstimate, Operation
from windlass.policy.estimate import forecast
from windlass.policy.snapshot import LoadSnapshot, WaitingLane
from windlass.policy.upper_bound import upper_bound
from windlass.store.data import Record
from windlass.store.flow import MOST_RANKED

AT_ENQUEUE = 0.05
"""Seconds that an enqueue may wait for its estimate."""

STALE = 5.0
"""Seconds after which the forecast of a small queue is too old for new jobs. Also how long no enqueue waits for a
forecast again if one took too long."""

ROUGH_FOR = 1.0
"""Seconds for which a rough forecast serves new jobs, unless it was expensive: then for longer."""

MOMENT = 0.1
"""Seconds for which a forecast counts as made just now."""

MOST_ANSWERS = 10_000
"""Cached estimates of one forecast for jobs that are not in it."""


async def get_estimate(context: EngineContext, operation: GetEstimate) -> Estimate:
    record = await context.find_for_owner(operation.id, operation.tenant)
    job = record.job
    match job.state:
        case State.QUEUED:
            found = await _of_queued(context, record)
            return replace(found, name=await unable(context, job)) if found.why is Why.HANDLER else found
        case State.BLOCKED:
            return Estimate(why=Why.JOBS)
        case State.SCHEDULED:
            return await _of_scheduled(context, record)
        case _:
            return Estimate()


async def get_queue_estimate(context: EngineContext, operation: GetQueueEstimate) -> QueueEstimate:
    found = await watch_queue(context, operation.queue)
    known = aged(found, for_new_arrival(found, operation.tenant))
    total = sum(found.waiting.values())
    return QueueEstimate(
        seconds=known.seconds,
        waiting=total if operation.tenant == EVERY_TENANT else found.waiting.get(operation.tenant, 0),
        why=known.why if known.seconds != 0 else None,
        error=(await median_errors(context)).get(operation.queue),
    )


async def estimate_for_follower(context: EngineContext, job: Job) -> Estimate | None:
    """For callers who follow a job, from a forecast that they share; null = the job is newer than the forecast."""
    if job.state is State.BLOCKED:
        return Estimate(why=Why.JOBS)
    found = await watch_queue(context, job.queue, shared=True)
    if job.state is State.SCHEDULED:
        return _later(found, Record(job))
    is_listed = forecast_name(job.id, job.tenant) in found.jobs
    if not is_listed and not is_large(found):
        return None
    (record,) = [Record(job)] if is_listed else (await context.store.jobs.read([key_of(job)])).records
    return Estimate() if record is None else await _known(context, found, record)


async def _known(context: EngineContext, found: Forecast, record: Record) -> Estimate:
    """The estimate of a job from the forecast of a long queue, or from one that has the job."""
    job = record.job
    name = forecast_name(job.id, job.tenant)
    known = found.jobs.get(name)
    if known is not None:
        return aged(found, known)
    place = context.stats.late_place(job.queue, name)
    deep = await for_deep_job(context, found, record) if place is None else None
    if deep is not None:
        return deep
    late = for_late_arrival(found, record, place or FIRST)
    if place is None or job.priority:
        return late
    return replace(late, position=sum(found.waiting.values()) + place.queue + 1)


async def _of_queued(context: EngineContext, record: Record) -> Estimate:
    found = await watch_queue(context, record.job.queue)
    return await _known(context, found, record) if is_large(found) else _replay_one(found, record.job)


def _replay_one(found: Forecast, job: Job) -> Estimate:
    name = forecast_name(job.id, job.tenant)
    known = forecast(found.snapshot, only=name).get(name)
    return known or Estimate(seconds=0.0, why=Why.SLOTS)  # it was claimed meanwhile


async def _of_scheduled(context: EngineContext, record: Record) -> Estimate:
    """As if the queue stayed as it is until the job is due."""
    job = record.job
    found = await watch_queue(context, job.queue)
    if is_large(found):
        return _later(found, record)
    name = forecast_name(job.id, job.tenant)
    lane = WaitingLane(
        [(job.priority, LAST, name)],
        UNKNOWN,
        job.tenant,
        job.task,
        opens=_due_in(found, job),
        why=Why.TIME,
        queue=job.queue,
        pools=tuple(place for place, pool in enumerate(found.snapshot.pools) if job.queue in pool.queues),
    )
    later = forecast(replace(found.snapshot, lanes=[*found.snapshot.lanes, lane]), only=name)[name]
    return Estimate(seconds=later.seconds, why=later.why if later.seconds is None else Why.TIME)


def _later(found: Forecast, record: Record) -> Estimate:
    """The same without a replay: the wait of a job that arrives now, but at least until it is due."""
    known = for_late_arrival(found, record, FIRST)
    if known.seconds is None:
        return known
    due = aged(found, Estimate(seconds=_due_in(found, record.job)))
    return Estimate(seconds=max(due.seconds or 0.0, known.seconds), why=Why.TIME)


def _due_in(found: Forecast, job: Job) -> float:
    """Seconds from the forecast until a job is due."""
    return max(0.0, (job.run_at - found.now).total_seconds()) if job.run_at else 0.0


async def estimate_at_enqueue(context: EngineContext, record: Record) -> float | None:
    """Seconds that a job which has just been enqueued will wait; null = unknown, or it takes too long to find out."""
    job = record.job
    if job.state is State.SCHEDULED:
        last = context.stats.forecasts.get(job.queue)
        await prepare_estimate(context, job.queue, oldest=0.0 if last is None or is_due(last) else STALE)
        return estimate_unstored(context, record)
    if job.state is not State.QUEUED:
        return None if job.started_at is None else 0.0  # a worker has claimed it already
    place = _arrived(context, record)
    try:
        found = await _estimate_new(context, record, place)
    except WindlassError:
        return None
    return found.seconds if found else None


def _arrived(context: EngineContext, record: Record) -> QueuePlace:
    job = record.job
    return context.stats.arrived(job.queue, (job.tenant, job.task, record.group), forecast_name(job.id, job.tenant))


async def _estimate_new(context: EngineContext, record: Record, place: QueuePlace) -> Estimate | None:
    """With tiers each new job gets an exact estimate; otherwise forecasts may take only a share of the time."""
    stats, queue = context.stats, record.job.queue
    last = stats.forecasts.get(queue)
    if last is not None and is_large(last) and not _is_outdated(last):
        if is_due(last):
            stats.watched[queue] = loop_time()  # the upkeep makes a better one for the next jobs
        return for_late_arrival(last, record, place)
    if not (await context.flow_config.current()).has_tiers(record.job.tenant, queue):
        if last is None and queue in stats.making:
            last = await _wait_for_forecast(context, queue)
        if queue in stats.making or (last is not None and not is_due(last)):
            return _from_recent(last, record, place)
    if await is_crowded(context, queue):
        stats.watched[queue] = loop_time()
        return for_late_arrival(await rough_forecast(context, queue), record, FIRST)
    return _replay_one(await get_forecast(context, queue), record.job)


def _is_outdated(last: Forecast) -> bool:
    """Whether a forecast of a long queue is too old for new jobs."""
    return loop_time() - last.at > (max(ROUGH_FOR, SHARE * last.cost) if last.rough else OLDEST)


async def _wait_for_forecast(context: EngineContext, queue: str) -> Forecast | None:
    """The forecast that another caller is making, if it is done soon."""
    try:
        async with asyncio.timeout(AT_ENQUEUE):
            await context.stats.making[queue].wait()
    except TimeoutError:
        pass
    return context.stats.forecasts.get(queue)


def _from_recent(last: Forecast | None, record: Record, place: QueuePlace) -> Estimate | None:
    return for_late_arrival(last, record, place) if last is not None and loop_time() - last.at < STALE else None


async def prepare_estimate(context: EngineContext, queue: str, *, oldest: float = STALE / 2, ask: bool = True) -> None:
    """Have a forecast ready for a job that will not be in the queue when it is estimated: a scheduled or journaled one.

    Its estimate comes from the last forecast and the number of late arrivals. The forecast of a short queue may be
    `oldest` seconds old. For a long queue a rough forecast will do; the upkeep makes a better one. Without `ask` the
    store is not read now, and the upkeep makes the forecast.
    """
    stats = context.stats
    last = stats.forecasts.get(queue)
    if last is not None and (not _is_outdated(last) if is_large(last) else loop_time() - last.at < oldest):
        return
    if not ask or loop_time() < stats.crowded_until.get(queue, 0.0):
        stats.watched[queue] = loop_time()
        return
    try:
        async with asyncio.timeout(AT_ENQUEUE):
            if last is None and queue in stats.making:
                await stats.making[queue].wait()
            elif await is_crowded(context, queue):
                stats.watched[queue] = loop_time()
                await rough_forecast(context, queue)
            elif queue not in stats.making:
                await get_forecast(context, queue)
    except (TimeoutError, WindlassError):
        stats.watched[queue] = loop_time()
        stats.crowded_until[queue] = loop_time() + STALE


def estimate_unstored(context: EngineContext, record: Record, undrained: int = 0) -> float | None:
    """Seconds that a scheduled job will wait, or one in the journal behind so many others, by the last forecast.

    Null = there is no forecast, or it is too old.
    """
    job = record.job
    last = context.stats.forecasts.get(job.queue)
    if last is not None and (_is_outdated(last) if is_large(last) else loop_time() - last.at >= STALE and is_due(last)):
        last = None
    if job.state is State.SCHEDULED:
        return _later(last, record).seconds if last else None
    if job.state is not State.QUEUED:
        return None
    place = _arrived(context, record)
    # A journal is drained in order. The forecast misses all late arrivals, or all jobs not drained yet if these are
    # more: then it was made while some of them were in the journal already.
    place = place._replace(queue=max(place.queue, undrained))
    return for_late_arrival(last, record, place).seconds if last else None


# Jobs that are not in a forecast


def _lane_of(found: Forecast, record: Record) -> WaitingLane | None:
    return found.lanes.get((record.job.tenant, record.job.task, record.group))


def for_new_arrival(found: Forecast, tenant: str) -> Estimate:
    """The wait of a tenant's job that arrived when the forecast was made."""
    return found.jobs.get(new_arrival(tenant)) or found.jobs.get(new_arrival(""), Estimate())


def for_late_arrival(found: Forecast, record: Record, place: QueuePlace) -> Estimate:
    """The wait of a job that arrived after the forecast, behind other late arrivals."""
    job, lane = record.job, _lane_of(found, record)
    if found.rough or (lane is not None and lane.rest):
        known = _at_most(found, record, lane)
    elif job.priority:
        known = _behind(found, job)
    else:
        known = _after_the_last(found, job, lane)
    if known.seconds is None:
        return replace(known, position=None)
    seconds = known.seconds if job.priority else known.seconds + _delay(found, lane, place)
    return replace(known, position=None, seconds=_left(found, seconds))


def _delay(found: Forecast, lane: WaitingLane | None, place: QueuePlace) -> float:
    """Seconds by which late arrivals delay a job: by slots, and by the bounds of its lane."""
    by_slots = max(0, place.queue - max(0, found.free)) * found.pace
    return max(by_slots, place.lane * _step(found.snapshot, lane)) if lane is not None else by_slots


def _step(snapshot: LoadSnapshot, lane: WaitingLane) -> float:
    """Seconds by which each job of a lane delays the next within its bounds."""
    bounds = [snapshot.bounds[place] for place in lane.bounds]
    spans = [lane.seconds / bound.places for bound in bounds if bound.places]
    return max([*spans, *(bound.interval for bound in bounds)], default=0.0)


def _at_most(found: Forecast, record: Record, lane: WaitingLane | None) -> Estimate:
    """From counts; cached, because the next job gets the same."""
    job = record.job
    name = f"{job.tenant} {job.task} {record.group} {job.priority}"
    known = found.answers.get(name)
    if known is None:
        own = lane or found.arrivals.get(job.tenant) or found.arrivals[""]
        known = upper_bound(found.snapshot, replace(own, jobs=[(job.priority, LAST, "")], rest=0))
        _remember(found, name, known)
    return known


def _remember(found: Forecast, name: str, known: Estimate) -> None:
    if len(found.answers) < MOST_ANSWERS:
        found.answers[name] = known


def _after_the_last(found: Forecast, job: Job, lane: WaitingLane | None) -> Estimate:
    """The wait of any new job, but behind the last of its own lane, within whose bounds it waits too."""
    known = for_new_arrival(found, job.tenant)
    before = bisect_right(lane.jobs, (0, LAST, "")) if lane is not None else 0
    if lane is None or not before:
        return known
    last = found.jobs[lane.jobs[before - 1][2]]
    if last.seconds is None or known.seconds is None:
        return last if last.seconds is None else known
    behind = last.seconds + _step(found.snapshot, lane)
    return replace(last, seconds=behind) if behind > known.seconds else known


def _behind(found: Forecast, job: Job) -> Estimate:
    """A job with a priority of its own waits a little longer than the last job before it."""
    last = (job.priority, LAST, "")
    lanes = [lane for lane in found.snapshot.lanes if lane.queue == job.queue]
    own = [lane for lane in lanes if (lane.tenant, lane.task) == (job.tenant, job.task)] or lanes
    before = [lane.jobs[place - 1] for lane in own if (place := bisect_right(lane.jobs, last))]
    known = found.jobs[max(before)[2]] if before else for_new_arrival(found, job.tenant)
    first = known.seconds is not None and not before
    return replace(known, seconds=_soonest(found.snapshot, job.queue) if first else known.seconds)


def _soonest(snapshot: LoadSnapshot, queue: str) -> float:
    """Seconds until a slot of a queue's workers is free."""
    if free_slots(snapshot, queue) > 0:
        return 0.0
    places = {place for place, pool in enumerate(snapshot.pools) if queue in pool.queues}
    return min((busy.remaining for busy in snapshot.running if busy.pool in places), default=0.0)


async def for_deep_job(context: EngineContext, found: Forecast, record: Record) -> Estimate | None:
    """The wait of a job in a lane of which only the first jobs were listed; null = its lane was listed in full.

    From its own rank, so that later jobs do not change it.
    """
    job, lane = record.job, _lane_of(found, record)
    if lane is None or not lane.rest:
        return None
    name = forecast_name(job.id, job.tenant)
    known = found.answers.get(name)
    if known is None:
        rank = await context.store.flow.rank(key_of(job))
        if rank is None:
            return Estimate(seconds=0.0, why=Why.SLOTS)  # it was claimed meanwhile
        known = _at_rank(found, record, lane, rank)
        alone = len(found.lanes) == 1 and job.queue not in found.snapshot.turns
        known = replace(known, position=rank + 1 if alone and rank < MOST_RANKED else None)
        _remember(found, name, known)
    return aged(found, known)


def _at_rank(found: Forecast, record: Record, lane: WaitingLane, rank: int) -> Estimate:
    """Extrapolates the pace of the last listed jobs; at most the wait of a new job."""
    known = len(lane.jobs) + lane.rest
    beyond = max(0, rank - known)
    at_most = for_late_arrival(found, record, QueuePlace(beyond, beyond))
    if at_most.seconds is None or rank >= min(known, MOST_RANKED):
        return at_most
    seconds = at_most.seconds * rank / known
    half = len(lane.jobs) // 2
    if half and not found.rough:
        last, middle = (found.jobs[lane.jobs[place - 1][2]].seconds or 0.0 for place in (len(lane.jobs), half))
        step = (last - middle) / (len(lane.jobs) - half)
        seconds = min(at_most.seconds, max(0.0, last + (rank + 1 - len(lane.jobs)) * step))
    # The rank is of now; estimates count from when the forecast was made.
    return replace(at_most, seconds=seconds + loop_time() - found.at)


def aged(found: Forecast, known: Estimate) -> Estimate:
    """The rest of a wait that was estimated some time ago."""
    return known if known.seconds is None else replace(known, seconds=_left(found, known.seconds))


def _left(found: Forecast, seconds: float) -> float:
    age = loop_time() - found.at
    return seconds if age < MOMENT else max(0.0, seconds - age)


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    GetEstimate: get_estimate,
    GetQueueEstimate: get_queue_estimate,
}
