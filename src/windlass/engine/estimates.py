"""Answers about how long jobs wait: to whoever asks, follows a job, or has just queued one.

Says what `forecasts` foretells. A job that is at the door is told only what is cheap to say: it is in, whoever can say
how long it waits.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.engine.experience import Forecast
from windlass.engine.forecasts import (
    aged,
    forecast_of,
    is_crowded,
    is_due,
    is_large,
    of_latecomer,
    of_newcomer,
    time,
    watched,
)
from windlass.engine.promises import usual_errors
from windlass.engine.snapshots import LAST, UNKNOWN
from windlass.model.errors import WindlassError
from windlass.model.estimate import Estimate, QueueEstimate, Why
from windlass.model.job import Job, State
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import GetEstimate, GetQueueEstimate, Operation
from windlass.policy.estimate import forecast
from windlass.policy.snapshot import Lane

IN_PASSING = 0.05
"""Seconds that a job may be kept at the door for an estimate."""

STALE = 5.0
"""Seconds after which a forecast of a small queue says nothing of who comes now."""


SELDOM = 60.0
"""Seconds between two forecasts of a long queue that are made only for who comes to it."""


async def get_estimate(desk: Desk, operation: GetEstimate) -> Estimate:
    job = (await desk.asked_for(operation.id, operation.tenant)).job
    match job.state:
        case State.QUEUED:
            return await _of_queued(desk, job)
        case State.BLOCKED:
            return Estimate(why=Why.JOBS)
        case State.SCHEDULED:
            return await _of_scheduled(desk, job)
        case _:
            return Estimate()


async def get_queue_estimate(desk: Desk, operation: GetQueueEstimate) -> QueueEstimate:
    found = await watched(desk, operation.queue)
    told = aged(found, of_newcomer(found, operation.tenant))
    total = sum(found.waiting.values())
    return QueueEstimate(
        seconds=told.seconds,
        waiting=total if operation.tenant == EVERY_TENANT else found.waiting.get(operation.tenant, 0),
        why=told.why if told.seconds != 0 else None,
        error=(await usual_errors(desk)).get(operation.queue),
    )


async def lately(desk: Desk, job: Job) -> Estimate | None:
    """For those who look again and again, by a forecast that all of them share; null = the job is newer than that."""
    if job.state is State.BLOCKED:
        return Estimate(why=Why.JOBS)
    found = await watched(desk, job.queue, shared=True)
    if job.state is State.SCHEDULED:
        return _later(found, job)
    return _known(desk, found, job)


def _known(desk: Desk, found: Forecast, job: Job) -> Estimate | None:
    """What a forecast says of a job; null = it is newer than that, and another is made soon."""
    told = found.jobs.get(job.id)
    if told is not None:
        return aged(found, told)
    if not is_large(found):
        return None
    place = desk.experience.place_since(job.queue, job.id)
    late = of_latecomer(found, job, place or 0)
    if place is None or job.priority:
        return late
    return replace(late, position=sum(found.waiting.values()) + place + 1)


async def _of_queued(desk: Desk, job: Job) -> Estimate:
    found = await watched(desk, job.queue)
    told = _known(desk, found, job) if is_large(found) else None
    return told or _alone(found, job)


def _alone(found: Forecast, job: Job) -> Estimate:
    told = forecast(found.snapshot, only=job.id).get(job.id)
    return told or Estimate(seconds=0.0, why=Why.SLOTS)  # it was claimed meanwhile


async def _of_scheduled(desk: Desk, job: Job) -> Estimate:
    """As if the queue stayed as it is until its time comes."""
    found = await watched(desk, job.queue)
    if is_large(found):
        return _later(found, job)
    lane = Lane(
        [(job.priority, LAST, job.id)],
        UNKNOWN,
        job.tenant,
        job.task,
        opens=_due_in(found, job),
        why=Why.TIME,
        queue=job.queue,
        pools=tuple(place for place, pool in enumerate(found.snapshot.pools) if job.queue in pool.queues),
    )
    later = forecast(replace(found.snapshot, lanes=[*found.snapshot.lanes, lane]), only=job.id)[job.id]
    return Estimate(seconds=later.seconds, why=later.why if later.seconds is None else Why.TIME)


def _later(found: Forecast, job: Job) -> Estimate:
    """The same without a replay: as long as a newcomer waits, but not before its time."""
    told = aged(found, of_newcomer(found, job.tenant))
    if told.seconds is None:
        return Estimate(why=told.why)
    return Estimate(seconds=max(_due_in(found, job), told.seconds), why=Why.TIME)


def _due_in(found: Forecast, job: Job) -> float:
    """Seconds until a job's time comes, from when the forecast was made."""
    return max(0.0, (job.run_at - found.now).total_seconds()) if job.run_at else 0.0


async def at_the_door(desk: Desk, job: Job) -> float | None:
    """Seconds that a job which has just been queued will wait, if that is cheap to say; null = ask for its estimate."""
    if job.state is not State.QUEUED:
        return None if job.started_at is None else 0.0  # a worker was quicker than we
    place = desk.experience.arrived(job.queue, job.id)
    try:
        found = await _at_a_glance(desk, job, place)
    except WindlassError:
        return None
    return found.seconds if found else None


async def _at_a_glance(desk: Desk, job: Job, place: int) -> Estimate | None:
    """With tiers everybody is told what is exact; elsewhere looks must not take more than a part of the time."""
    experience, queue = desk.experience, job.queue
    last = experience.forecasts.get(queue)
    if last is not None and is_large(last) and not is_due(last):
        return of_latecomer(last, job, place)
    if not (await desk.regimes.current()).has_tiers(job.tenant, queue):
        if queue in experience.making or (last is not None and not is_due(last)):
            return _from(last, job, place)
        if time() < experience.crowded_until.get(queue, 0.0):
            return None
    if await is_crowded(desk, queue):
        experience.crowded_until[queue] = time() + 1.0
        experience.watched[queue] = time()  # whoever keeps house makes a forecast for those who come next
        return _from(last, job, place)
    return _alone(await forecast_of(desk, queue), job)


def _from(last: Forecast | None, job: Job, place: int) -> Estimate | None:
    return of_latecomer(last, job, place) if last is not None and time() - last.at < STALE else None


async def before_the_door(desk: Desk, queue: str) -> None:
    """Have a forecast at hand for a job that is about to come, where it goes to a journal first.

    The store does not have it when it is asked for its wait: what it is told comes from the last forecast, and from how
    many came since. Made in passing if the queue is short; else by whoever keeps house, for those who come later.
    """
    experience = desk.experience
    last = experience.forecasts.get(queue)
    if queue in experience.making or time() < experience.crowded_until.get(queue, 0.0):
        return
    if last is not None and time() - last.at < (SELDOM if is_large(last) else STALE / 2):
        return
    try:
        async with asyncio.timeout(IN_PASSING):
            if not await is_crowded(desk, queue):
                await forecast_of(desk, queue)
                return
    except (TimeoutError, WindlassError):
        pass
    experience.watched[queue] = time()
    experience.crowded_until[queue] = time() + SELDOM


def through_the_door(desk: Desk, job: Job) -> float | None:
    """Seconds that a job which is in the journal will wait, by the last forecast; null = there is none, or no more."""
    place = desk.experience.arrived(job.queue, job.id)
    if job.state is not State.QUEUED:
        return None
    last = desk.experience.forecasts.get(job.queue)
    if last is None or (time() - last.at >= STALE and is_due(last)):
        return None
    return of_latecomer(last, job, place).seconds


ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = {
    GetEstimate: get_estimate,
    GetQueueEstimate: get_queue_estimate,
}
