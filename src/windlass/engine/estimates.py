"""Answers about how long jobs wait: to whoever asks, follows a job, or has just queued one.

Says what `forecasts` foretells, and `latecomers` of who is not in it. A job that is at the door is told what is cheap
to say: it is in, whoever can say how long it waits.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.engine.experience import FIRST, Forecast, Place, forecast_name
from windlass.engine.forecasts import OLDEST, SHARE, forecast_of, glimpse, is_crowded, is_due, is_large, time, watched
from windlass.engine.handlers import unable
from windlass.engine.latecomers import aged, of_deep, of_latecomer, of_newcomer
from windlass.engine.promises import usual_errors
from windlass.engine.snapshots import LAST, UNKNOWN
from windlass.model.errors import WindlassError
from windlass.model.estimate import Estimate, QueueEstimate, Why
from windlass.model.job import Job, State
from windlass.model.names import EVERY_TENANT, key_of
from windlass.model.operations import GetEstimate, GetQueueEstimate, Operation
from windlass.policy.estimate import forecast
from windlass.policy.snapshot import Lane
from windlass.store import Record

IN_PASSING = 0.05
"""Seconds that a job may be kept at the door for an estimate."""

STALE = 5.0
"""Seconds after which a forecast of a small queue says nothing of who comes now, and for which nobody is kept at the
door again where a look took too long."""

ROUGHLY = 1.0
"""Seconds for which a glimpse of a long queue is good for those who come, unless it was dear: then for longer."""


async def get_estimate(desk: Desk, operation: GetEstimate) -> Estimate:
    record = await desk.asked_for(operation.id, operation.tenant)
    job = record.job
    match job.state:
        case State.QUEUED:
            found = await _of_queued(desk, record)
            return replace(found, name=await unable(desk, job)) if found.why is Why.HANDLER else found
        case State.BLOCKED:
            return Estimate(why=Why.JOBS)
        case State.SCHEDULED:
            return await _of_scheduled(desk, record)
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
        return _later(found, Record(job))
    is_listed = forecast_name(job.id, job.tenant) in found.jobs
    if not is_listed and not is_large(found):
        return None
    (record,) = [Record(job)] if is_listed else (await desk.store.read([key_of(job)])).records
    return Estimate() if record is None else await _known(desk, found, record)


async def _known(desk: Desk, found: Forecast, record: Record) -> Estimate:
    """What a forecast of a long queue, or one that has it, says of a job."""
    job = record.job
    name = forecast_name(job.id, job.tenant)
    told = found.jobs.get(name)
    if told is not None:
        return aged(found, told)
    place = desk.experience.place_since(job.queue, name)
    deep = await of_deep(desk, found, record) if place is None else None
    if deep is not None:
        return deep
    late = of_latecomer(found, record, place or FIRST)
    if place is None or job.priority:
        return late
    return replace(late, position=sum(found.waiting.values()) + place.queue + 1)


async def _of_queued(desk: Desk, record: Record) -> Estimate:
    found = await watched(desk, record.job.queue)
    return await _known(desk, found, record) if is_large(found) else _alone(found, record.job)


def _alone(found: Forecast, job: Job) -> Estimate:
    name = forecast_name(job.id, job.tenant)
    told = forecast(found.snapshot, only=name).get(name)
    return told or Estimate(seconds=0.0, why=Why.SLOTS)  # it was claimed meanwhile


async def _of_scheduled(desk: Desk, record: Record) -> Estimate:
    """As if the queue stayed as it is until its time comes."""
    job = record.job
    found = await watched(desk, job.queue)
    if is_large(found):
        return _later(found, record)
    name = forecast_name(job.id, job.tenant)
    lane = Lane(
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
    """The same without a replay: as long as one who comes now waits, but not before its time."""
    told = of_latecomer(found, record, FIRST)
    if told.seconds is None:
        return told
    due = aged(found, Estimate(seconds=_due_in(found, record.job)))
    return Estimate(seconds=max(due.seconds or 0.0, told.seconds), why=Why.TIME)


def _due_in(found: Forecast, job: Job) -> float:
    """Seconds until a job's time comes, from when the forecast was made."""
    return max(0.0, (job.run_at - found.now).total_seconds()) if job.run_at else 0.0


async def at_the_door(desk: Desk, record: Record) -> float | None:
    """Seconds that a job which has just been queued will wait; null = that takes too long to say, or nobody can."""
    job = record.job
    if job.state is State.SCHEDULED:
        last = desk.experience.forecasts.get(job.queue)
        await before_the_door(desk, job.queue, oldest=0.0 if last is None or is_due(last) else STALE)
        return through_the_door(desk, record)
    if job.state is not State.QUEUED:
        return None if job.started_at is None else 0.0  # a worker was quicker than we
    place = _arrived(desk, record)
    try:
        found = await _at_a_glance(desk, record, place)
    except WindlassError:
        return None
    return found.seconds if found else None


def _arrived(desk: Desk, record: Record) -> Place:
    job = record.job
    return desk.experience.arrived(job.queue, (job.tenant, job.task, record.group), forecast_name(job.id, job.tenant))


async def _at_a_glance(desk: Desk, record: Record, place: Place) -> Estimate | None:
    """With tiers everybody is told what is exact; elsewhere looks must not take more than a part of the time."""
    experience, queue = desk.experience, record.job.queue
    last = experience.forecasts.get(queue)
    if last is not None and is_large(last) and not _has_passed(last):
        if is_due(last):
            experience.watched[queue] = time()  # whoever keeps house makes a better one for those who come next
        return of_latecomer(last, record, place)
    if not (await desk.regimes.current()).has_tiers(record.job.tenant, queue):
        if last is None and queue in experience.making:
            last = await _being_made(desk, queue)
        if queue in experience.making or (last is not None and not is_due(last)):
            return _from(last, record, place)
    if await is_crowded(desk, queue):
        experience.watched[queue] = time()
        return of_latecomer(await glimpse(desk, queue), record, FIRST)
    return _alone(await forecast_of(desk, queue), record.job)


def _has_passed(last: Forecast) -> bool:
    """Whether too much may have happened in a long queue since."""
    return time() - last.at > (max(ROUGHLY, SHARE * last.cost) if last.rough else OLDEST)


async def _being_made(desk: Desk, queue: str) -> Forecast | None:
    """The forecast that somebody is about to have made, if that is soon."""
    try:
        async with asyncio.timeout(IN_PASSING):
            await desk.experience.making[queue].wait()
    except TimeoutError:
        pass
    return desk.experience.forecasts.get(queue)


def _from(last: Forecast | None, record: Record, place: Place) -> Estimate | None:
    return of_latecomer(last, record, place) if last is not None and time() - last.at < STALE else None


async def before_the_door(desk: Desk, queue: str, *, oldest: float = STALE / 2, ask: bool = True) -> None:
    """Have a forecast at hand for a job that will not be in the queue when it is told its wait.

    That is where its time comes later, or where it goes to a journal first: what it is told comes from the last
    forecast, and from how many came since; that of a short queue may be so many seconds old. Of a long one a glimpse
    will do: whoever keeps house makes a better one, and all of it where the store should not be asked now.
    """
    experience = desk.experience
    last = experience.forecasts.get(queue)
    if last is not None and (not _has_passed(last) if is_large(last) else time() - last.at < oldest):
        return
    if not ask or time() < experience.crowded_until.get(queue, 0.0):
        experience.watched[queue] = time()
        return
    try:
        async with asyncio.timeout(IN_PASSING):
            if last is None and queue in experience.making:
                await experience.making[queue].wait()
            elif await is_crowded(desk, queue):
                experience.watched[queue] = time()
                await glimpse(desk, queue)
            elif queue not in experience.making:
                await forecast_of(desk, queue)
    except (TimeoutError, WindlassError):
        experience.watched[queue] = time()
        experience.crowded_until[queue] = time() + STALE


def through_the_door(desk: Desk, record: Record, undrained: int = 0) -> float | None:
    """Seconds that a job will wait whose time comes later, or which is in the journal behind so many others, by the
    last forecast; null = there is none, or no more.
    """
    job = record.job
    last = desk.experience.forecasts.get(job.queue)
    if last is not None and (_has_passed(last) if is_large(last) else time() - last.at >= STALE and is_due(last)):
        last = None
    if job.state is State.SCHEDULED:
        return _later(last, record).seconds if last else None
    if job.state is not State.QUEUED:
        return None
    place = _arrived(desk, record)
    # A journal is drained in order: the forecast misses all who came since, or all who are not drained, if these are
    # more, for then it was made while some of them waited here already.
    place = place._replace(queue=max(place.queue, undrained))
    return of_latecomer(last, record, place).seconds if last else None


ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = {
    GetEstimate: get_estimate,
    GetQueueEstimate: get_queue_estimate,
}
