"""Answers about waits: for callers who ask, follow a job, or have just enqueued one.

All of them read the forecast of the queue. It lists jobs with their waits; the wait of a job that it does not list is
bounded from the jobs ahead.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from windlass.engine.context import EngineContext
from windlass.engine.estimate.forecast import brief_forecast, forecast_for_new_job, forecast_in_time, get_forecast
from windlass.engine.estimate.learn import loop_time, median_errors
from windlass.engine.estimate.stats import FIRST, Forecast, LaneName, QueuePlace, forecast_name
from windlass.engine.handlers import unable
from windlass.model.errors import WindlassError
from windlass.model.estimate import Estimate, QueueEstimate, Why
from windlass.model.job import Job, State
from windlass.model.names import EVERY_TENANT, key_of
from windlass.model.operations import GetEstimate, GetQueueEstimate, Operation
from windlass.policy.estimate import forecast
from windlass.store.data import Record

CLAIMED = Estimate(seconds=0.0, at_most=0.0, why=Why.SLOTS)
"""Of a job that was claimed while it was estimated."""

NOT_KNOWN = Estimate()


async def get_estimate(context: EngineContext, operation: GetEstimate) -> Estimate:
    record = await context.find_for_owner(operation.id, operation.tenant)
    job = record.job
    if job.state is State.BLOCKED:
        return Estimate(why=Why.JOBS)
    if job.state not in (State.QUEUED, State.SCHEDULED):
        return Estimate()
    known = await get_forecast(context, job.queue)
    if job.state is State.SCHEDULED:
        return _of_scheduled(known, record)
    found = await _of_waiting(context, known, job) if known.large else _replay_ahead(known, job)
    if found is None:
        return Estimate()
    return replace(found, name=await unable(context, job)) if found.why is Why.HANDLER else found


async def get_queue_estimate(
    context: EngineContext, operation: GetQueueEstimate, *, brief: bool = False
) -> QueueEstimate:
    known = await (brief_forecast if brief else get_forecast)(context, operation.queue)
    found = _of_new_job(known, (operation.tenant, "", ""), 0)
    total = sum(known.waiting.values())
    return QueueEstimate(
        seconds=found.seconds,
        at_most=found.at_most,
        waiting=total if operation.tenant == EVERY_TENANT else known.waiting.get(operation.tenant, 0),
        why=found.why if found.seconds != 0 else None,
        error=(await median_errors(context)).get(operation.queue),
    )


async def estimate_for_follower(context: EngineContext, job: Job) -> Estimate | None:
    """For callers who follow a job, from a forecast that they share; null = it waits no longer."""
    if job.state is State.BLOCKED:
        return Estimate(why=Why.JOBS)
    known = await get_forecast(context, job.queue, shared=True)
    if job.state is State.SCHEDULED:
        return _of_scheduled(known, Record(job))
    return await _of_waiting(context, known, job)


async def estimate_at_enqueue(context: EngineContext, record: Record) -> Estimate:
    """How long a job which has just been enqueued will wait; empty = unknown, or it takes too long to find out."""
    job = record.job
    if job.state is State.SCHEDULED:
        return estimate_unstored(context, await forecast_in_time(context, job.queue), record)
    if job.state is not State.QUEUED:
        return NOT_KNOWN if job.started_at is None else CLAIMED
    asked = loop_time()
    late = context.stats.arrived(job.queue, _lane(record))
    try:
        exact = (await context.flow_config.current()).has_tiers(job.tenant, job.queue)
        known = await forecast_for_new_job(context, job.queue, exact=exact)
    except WindlassError:
        return NOT_KNOWN
    if known is None:
        return NOT_KNOWN
    is_new = known.begun >= asked
    if is_new and not known.large:
        return _replay_ahead(known, job)
    return _of_new_job(known, _lane(record), job.priority, FIRST if is_new else late)


def estimate_unstored(context: EngineContext, known: Forecast | None, record: Record, undrained: int = 0) -> Estimate:
    """How long a scheduled job will wait, or one in the journal behind so many others, by a recent forecast."""
    job = record.job
    if job.state is State.SCHEDULED:
        return _of_scheduled(known, record) if known else NOT_KNOWN
    if job.state is not State.QUEUED:
        return NOT_KNOWN
    late = context.stats.arrived(job.queue, _lane(record))
    # A journal is drained in order. The forecast misses all late arrivals, or all jobs not drained yet if these are
    # more: then it was made while some of them were in the journal already.
    late = QueuePlace(max(late.queue, undrained), late.lane)
    return _of_new_job(known, _lane(record), job.priority, late) if known else NOT_KNOWN


def _lane(record: Record) -> LaneName:
    return record.job.tenant, record.job.task, record.group


def _replay_ahead(known: Forecast, job: Job) -> Estimate:
    """The wait of a listed job, without the jobs behind it: these never raise it."""
    name = forecast_name(job.id, job.tenant)
    found = forecast(known.snapshot, only=name).get(name, CLAIMED)
    return found if known.worst is None else _bounded(found, _replay_ahead(known.worst, job))


def _of_new_job(known: Forecast, lane: LaneName, priority: int, late: QueuePlace = FIRST) -> Estimate:
    found = known.of_new_job(lane, priority, loop_time(), late)
    if known.worst is None:
        return found
    return _bounded(found, known.worst.of_new_job(lane, priority, loop_time(), late))


def _bounded(found: Estimate, worst: Estimate | None) -> Estimate:
    """An expected wait with its bound."""
    if found.seconds is None or worst is None or worst.seconds is None:
        return found
    return replace(found, at_most=max(found.seconds, worst.seconds))


async def _of_waiting(context: EngineContext, known: Forecast, job: Job) -> Estimate | None:
    """The wait of a job as it is listed, or else from its rank; null = it waits no longer."""
    name = forecast_name(job.id, job.tenant)
    found = known.jobs.get(name) or known.answers.get(name)
    if found is None:
        rank = await context.store.flow.rank(key_of(job))
        (record,) = (await context.store.jobs.read([key_of(job)])).records
        if rank is None or record is None:
            return CLAIMED if record is not None and record.job.state is State.RUNNING else None
        found = known.at_rank(job, _lane(record), rank, loop_time())
    found = known.remaining(found, loop_time())
    return found if known.worst is None else _bounded(found, await _of_waiting(context, known.worst, job))


def _of_scheduled(known: Forecast, record: Record) -> Estimate:
    """The wait of a job that arrives now, but at least until the job is due."""
    job, now = record.job, loop_time()
    found = _of_new_job(known, _lane(record), job.priority)
    if found.seconds is None:
        return found
    due = (job.run_at - known.now).total_seconds() if job.run_at else 0.0
    until_due = known.remaining(Estimate(seconds=max(0.0, due)), now).seconds or 0.0
    at_most = None if found.at_most is None else max(until_due, found.at_most)
    return Estimate(seconds=max(until_due, found.seconds), at_most=at_most, why=Why.TIME)


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    GetEstimate: get_estimate,
    GetQueueEstimate: get_queue_estimate,
}
