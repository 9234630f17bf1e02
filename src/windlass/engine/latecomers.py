"""What a forecast says of jobs that are not in it: those that came after it was made, and those too deep to be listed.

Whoever comes later waits behind all that the forecast knew, and behind those who came in between. Where only counts are
known it is told how long it waits at most. Reads a forecast, and asks the store for the rank of a deep job.
"""

from bisect import bisect_right

from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.engine.experience import Forecast, Place, forecast_name
from windlass.engine.forecasts import free_slots, time
from windlass.engine.snapshots import LAST, newcomer
from windlass.model.estimate import Estimate, Why
from windlass.model.job import Job
from windlass.model.names import key_of
from windlass.policy.outlook import outlook
from windlass.policy.snapshot import Lane, Snapshot
from windlass.store import Record
from windlass.store.flow import MOST_RANKED

MOMENT = 0.1
"""Seconds for which a forecast counts as made just now."""

MOST_TOLD = 10_000
"""Answers of one forecast that are remembered for jobs which are not in it."""


def _lane_of(found: Forecast, record: Record) -> Lane | None:
    return found.lanes.get((record.job.tenant, record.job.task, record.group))


def of_newcomer(found: Forecast, tenant: str) -> Estimate:
    """How long a tenant's job would wait that came when the forecast was made."""
    return found.jobs.get(newcomer(tenant)) or found.jobs.get(newcomer(""), Estimate())


def of_latecomer(found: Forecast, record: Record, place: Place) -> Estimate:
    """How long a job waits that came after a forecast was made, behind so many others who did."""
    job, lane = record.job, _lane_of(found, record)
    if found.rough or (lane is not None and lane.rest):
        told = _at_most(found, record, lane)
    elif job.priority:
        told = _behind(found, job)
    else:
        told = _after_the_last(found, job, lane)
    if told.seconds is None:
        return replace(told, position=None)
    seconds = told.seconds if job.priority else told.seconds + _put_off(found, lane, place)
    return replace(told, position=None, seconds=_left(found, seconds))


def _put_off(found: Forecast, lane: Lane | None, place: Place) -> float:
    """Seconds by which those who came in between put off a job: by slots, and by the bounds of its lane."""
    by_slots = max(0, place.queue - max(0, found.free)) * found.pace
    return max(by_slots, place.lane * _step(found.snapshot, lane)) if lane is not None else by_slots


def _step(snapshot: Snapshot, lane: Lane) -> float:
    """Seconds by which each job of a lane puts off the next within its bounds."""
    bounds = [snapshot.bounds[place] for place in lane.bounds]
    spans = [lane.seconds / bound.places for bound in bounds if bound.places]
    return max([*spans, *(bound.interval for bound in bounds)], default=0.0)


def _at_most(found: Forecast, record: Record, lane: Lane | None) -> Estimate:
    """By counts; remembered, for whoever comes next is told the same."""
    job = record.job
    name = f"{job.tenant} {job.task} {record.group} {job.priority}"
    told = found.told.get(name)
    if told is None:
        own = lane or found.newcomers.get(job.tenant) or found.newcomers[""]
        told = outlook(found.snapshot, replace(own, jobs=[(job.priority, LAST, "")], rest=0))
        _remember(found, name, told)
    return told


def _remember(found: Forecast, name: str, told: Estimate) -> None:
    if len(found.told) < MOST_TOLD:
        found.told[name] = told


def _after_the_last(found: Forecast, job: Job, lane: Lane | None) -> Estimate:
    """As long as any newcomer, but behind the last of its own lane, within whose bounds it waits too."""
    told = of_newcomer(found, job.tenant)
    before = bisect_right(lane.jobs, (0, LAST, "")) if lane is not None else 0
    if lane is None or not before:
        return told
    last = found.jobs[lane.jobs[before - 1][2]]
    if last.seconds is None or told.seconds is None:
        return last if last.seconds is None else told
    behind = last.seconds + _step(found.snapshot, lane)
    return replace(last, seconds=behind) if behind > told.seconds else told


def _behind(found: Forecast, job: Job) -> Estimate:
    """A job that came with a priority of its own waits a little longer than the last that goes before it."""
    last = (job.priority, LAST, "")
    lanes = [lane for lane in found.snapshot.lanes if lane.queue == job.queue]
    own = [lane for lane in lanes if (lane.tenant, lane.task) == (job.tenant, job.task)] or lanes
    before = [lane.jobs[place - 1] for lane in own if (place := bisect_right(lane.jobs, last))]
    told = found.jobs[max(before)[2]] if before else of_newcomer(found, job.tenant)
    first = told.seconds is not None and not before
    return replace(told, seconds=_soonest(found.snapshot, job.queue) if first else told.seconds)


def _soonest(taken: Snapshot, queue: str) -> float:
    """When a slot of a queue's workers is free."""
    if free_slots(taken, queue) > 0:
        return 0.0
    places = {place for place, pool in enumerate(taken.pools) if queue in pool.queues}
    return min((busy.remaining for busy in taken.running if busy.pool in places), default=0.0)


async def of_deep(desk: Desk, found: Forecast, record: Record) -> Estimate | None:
    """How long a job waits that is in a lane of which only the first were listed; null = it is in no such lane.

    By its own rank, so that nobody who comes behind it has a part in this.
    """
    job, lane = record.job, _lane_of(found, record)
    if lane is None or not lane.rest:
        return None
    name = forecast_name(job.id, job.tenant)
    told = found.told.get(name)
    if told is None:
        rank = await desk.flow.rank(key_of(job))
        if rank is None:
            return Estimate(seconds=0.0, why=Why.SLOTS)  # it was claimed meanwhile
        told = _at_rank(found, record, lane, rank)
        alone = len(found.lanes) == 1 and job.queue not in found.snapshot.turns
        told = replace(told, position=rank + 1 if alone and rank < MOST_RANKED else None)
        _remember(found, name, told)
    return aged(found, told)


def _at_rank(found: Forecast, record: Record, lane: Lane, rank: int) -> Estimate:
    """As the last that were listed follow each other, so do the others; but nobody waits longer than a newcomer."""
    known = len(lane.jobs) + lane.rest
    beyond = max(0, rank - known)
    at_most = of_latecomer(found, record, Place(beyond, beyond))
    if at_most.seconds is None or rank >= min(known, MOST_RANKED):
        return at_most
    seconds = at_most.seconds * rank / known
    half = len(lane.jobs) // 2
    if half and not found.rough:
        last, middle = (found.jobs[lane.jobs[place - 1][2]].seconds or 0.0 for place in (len(lane.jobs), half))
        step = (last - middle) / (len(lane.jobs) - half)
        seconds = min(at_most.seconds, max(0.0, last + (rank + 1 - len(lane.jobs)) * step))
    # The rank is of now, and what is told is counted from when the forecast was made.
    return replace(at_most, seconds=seconds + time() - found.at)


def aged(found: Forecast, told: Estimate) -> Estimate:
    """What is left of a wait that was foretold some time ago."""
    return told if told.seconds is None else replace(told, seconds=_left(found, told.seconds))


def _left(found: Forecast, seconds: float) -> float:
    age = time() - found.at
    return seconds if age < MOMENT else max(0.0, seconds - age)
