"""Makes forecasts: of one look at a queue, for all its jobs at once; never inside a claim.

Of a small queue a forecast is made anew for whoever asks; that of a large one is used for as long as it is cheap
compared with its cost. Whoever comes after it waits behind all that it knew, and behind those who came in between.
"""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import ValidationError
from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.engine.experience import Forecast, Promise
from windlass.engine.scene import queued_in, survey
from windlass.engine.snapshots import LAST, newcomer, take
from windlass.model.estimate import Estimate
from windlass.model.job import Job
from windlass.model.names import EVERY_TENANT
from windlass.policy.estimate import forecast
from windlass.policy.learning import RunTimes, unpack
from windlass.policy.snapshot import Lane, Snapshot
from windlass.store.flow import Waiting

RUN_TIMES = "runtime"
"""A kind of records on the shelf: by `TENANT,TASK`."""

SMALL = 1000
"""Waiting jobs up to which a forecast is made for whoever asks."""

SHARE = 20
"""A forecast is used for so many times as long as it took to make: so it takes at most this part of the time."""

OLDEST = 60.0
"""Seconds after which a forecast is made anew in any case."""

WATCHED = 10.0
"""Seconds for which a queue counts as watched after somebody asked."""

MOMENT = 0.1
"""Seconds for which a forecast counts as made just now."""

SAMPLE = 3
"""Estimates of one forecast that are held against what becomes of them."""


def time() -> float:
    return asyncio.get_running_loop().time()


def is_large(found: Forecast) -> bool:
    return found.size > SMALL


def is_due(last: Forecast) -> bool:
    """Whether it is time to make another."""
    return time() - last.at > min(OLDEST, SHARE * last.cost)


async def is_crowded(desk: Desk, queue: str) -> bool:
    return queued_in({queue}, await desk.store.tally(EVERY_TENANT)) > SMALL


async def watched(desk: Desk, queue: str, *, shared: bool = False) -> Forecast:
    """The forecast of a queue that somebody watches from now on."""
    desk.experience.watched[queue] = time()
    return await forecast_of(desk, queue, shared=shared)


async def forecast_of(desk: Desk, queue: str, *, shared: bool = False) -> Forecast:
    """The last forecast of a queue, or a new one where that is due; of a small one always, unless it is `shared`."""
    experience = desk.experience
    last = experience.forecasts.get(queue)
    if last is not None and (shared or is_large(last)) and (queue in experience.making or not is_due(last)):
        return last
    experience.making.add(queue)
    try:
        made = await _made(desk, queue)
    finally:
        experience.making.discard(queue)
    experience.remember(queue, made)
    _promise(desk, queue, made)
    return made


async def foretell(desk: Desk) -> int:
    """Make new forecasts of the queues that somebody watches."""
    experience, now = desk.experience, time()
    experience.watched = {queue: at for queue, at in experience.watched.items() if now - at < WATCHED}
    for queue in list(experience.watched):
        last = experience.forecasts.get(queue)
        if queue not in experience.making and (last is None or is_due(last)):
            await forecast_of(desk, queue)
    return 0


async def _made(desk: Desk, queue: str) -> Forecast:
    begun = time()
    desk.experience.begin(queue)
    rules = (await desk.regimes.refreshed()).rules
    scene = await survey(desk, rules, queue)
    taken, newcomers, run = take(scene, queue, await run_times(desk))
    whole = replace(taken, lanes=[*taken.lanes, *newcomers])
    size = sum(one.count for one in scene.waiting)
    if size <= SMALL:
        jobs = forecast(whole)
    else:  # it takes a while, and others want answers meanwhile
        jobs = await asyncio.to_thread(forecast, whole)
    waiting: Counter[str] = Counter()
    for one in scene.waiting:
        if one.queue == queue:
            waiting[one.tenant] += one.count
    return Forecast(
        snapshot=taken,
        jobs=_own(_stretched(jobs, scene.waiting, newcomers), whole, queue),
        waiting=waiting,
        size=size,
        free=_free(taken, queue) - size,
        pace=_pace(taken, queue, run),
        now=scene.now,
        at=time(),
        cost=time() - begun,
    )


def _own(jobs: dict[str, Estimate], whole: Snapshot, queue: str) -> dict[str, Estimate]:
    """Without jobs of other queues, which were only in the way."""
    if all(lane.queue == queue for lane in whole.lanes):
        return jobs
    return {key[2]: jobs[key[2]] for lane in whole.lanes if lane.queue == queue for key in lane.jobs}


def _stretched(jobs: dict[str, Estimate], waiting: Sequence[Waiting], newcomers: Sequence[Lane]) -> dict[str, Estimate]:
    """Where not all jobs were replayed, newcomers wait for the others as well."""
    total, listed = sum(one.count for one in waiting), sum(len(one.jobs) for one in waiting)
    if not listed or total <= listed:
        return jobs
    for lane in newcomers:
        id = lane.jobs[0][2]
        seconds = jobs[id].seconds
        if seconds is not None:
            jobs[id] = replace(jobs[id], seconds=seconds * total / listed)
    return jobs


def _free(taken: Snapshot, queue: str) -> int:
    """Slots of a queue's workers that no job has."""
    busy = Counter(busy.pool for busy in taken.running)
    return sum(pool.slots - busy[place] for place, pool in enumerate(taken.pools) if queue in pool.queues)


def _pace(taken: Snapshot, queue: str, run: float) -> float:
    """Seconds by which each job that waits puts off the next, where only slots are short."""
    own = [lane for lane in taken.lanes if lane.queue == queue]
    count = sum(len(lane.jobs) for lane in own)
    mean = sum(lane.seconds * len(lane.jobs) for lane in own) / count if count else run
    return mean / max(1, sum(pool.slots for pool in taken.pools if queue in pool.queues))


def of_newcomer(found: Forecast, tenant: str) -> Estimate:
    """How long a tenant's job would wait that came when the forecast was made."""
    return found.jobs.get(newcomer(tenant)) or found.jobs.get(newcomer(""), Estimate())


def of_latecomer(found: Forecast, job: Job, place: int) -> Estimate:
    """How long a job waits that came after a forecast was made, behind so many others who did."""
    if job.priority:
        return aged(found, _behind(found, job))
    told = replace(of_newcomer(found, job.tenant), position=None)
    if told.seconds is None:
        return told
    put_off = max(0, place - max(0, found.free)) * found.pace
    return aged(found, replace(told, seconds=told.seconds + put_off))


def _behind(found: Forecast, job: Job) -> Estimate:
    """A job that came with a priority of its own waits a little longer than the last that goes before it."""
    last = (job.priority, LAST, "")
    lanes = [lane for lane in found.snapshot.lanes if lane.queue == job.queue]
    own = [lane for lane in lanes if (lane.tenant, lane.task) == (job.tenant, job.task)] or lanes
    before = [lane.jobs[place - 1] for lane in own if (place := bisect_right(lane.jobs, last))]
    told = found.jobs[max(before)[2]] if before else of_newcomer(found, job.tenant)
    first = told.seconds is not None and not before
    return replace(told, position=None, seconds=_soonest(found.snapshot, job.queue) if first else told.seconds)


def _soonest(taken: Snapshot, queue: str) -> float:
    """When a slot of a queue's workers is free."""
    if _free(taken, queue) > 0:
        return 0.0
    places = {place for place, pool in enumerate(taken.pools) if queue in pool.queues}
    return min((busy.remaining for busy in taken.running if busy.pool in places), default=0.0)


def aged(found: Forecast, told: Estimate) -> Estimate:
    """What is left of a wait that was foretold some time ago."""
    age = time() - found.at
    if told.seconds is None or age < MOMENT:
        return told
    return replace(told, seconds=max(0.0, told.seconds - age))


async def run_times(desk: Desk) -> dict[str, RunTimes]:
    """What all engines have learned, not older than a second."""
    experience = desk.experience
    if time() - experience.times_at > 1.0:
        experience.times = decoded(await desk.shelf.shelved(RUN_TIMES))
        experience.times_at = time()
    return experience.times


def decoded(kept: Mapping[str, bytes]) -> dict[str, RunTimes]:
    found = {}
    for name, data in kept.items():
        try:
            found[name] = unpack(data)
        except ValidationError:
            continue  # of an older form: it is learned anew
    return found


def _promise(desk: Desk, queue: str, made: Forecast) -> None:
    """Hold some of a forecast against what will become of it."""
    ids = [key[2] for lane in made.snapshot.lanes if lane.queue == queue for key in lane.jobs]
    for id in _spread(ids):
        seconds = made.jobs[id].seconds
        if seconds is not None:
            desk.experience.promise(id, Promise(queue, seconds, made.now))


def _spread(ids: Sequence[str]) -> Iterable[str]:
    """Some from all over the queue, so that long waits are looked at as well as short ones."""
    return [ids[max(0, len(ids) * part // SAMPLE - 1)] for part in range(1, SAMPLE + 1)] if ids else []
