"""Makes forecasts: of one look at a queue, for all its jobs at once; never inside a claim.

Of a small queue a forecast is made anew for whoever asks; that of a large one is used for as long as it is cheap
compared with its cost. Until there is one, a glimpse of counts alone is enough for those who come.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import ValidationError
from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.engine.experience import Forecast, Promise
from windlass.engine.scene import queued_in, survey
from windlass.engine.snapshots import take
from windlass.model.estimate import Estimate
from windlass.model.names import EVERY_TENANT, JobKey
from windlass.policy.estimate import forecast
from windlass.policy.learning import RunTimes, unpack
from windlass.policy.outlook import outlook
from windlass.policy.snapshot import Lane, Snapshot

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

SAMPLE = 3
"""Estimates of one forecast that are held against what becomes of them."""


def time() -> float:
    return asyncio.get_running_loop().time()


def is_large(found: Forecast) -> bool:
    return found.size > SMALL


def is_due(last: Forecast) -> bool:
    """Whether it is time to make another."""
    return last.rough or time() - last.at > min(OLDEST, SHARE * last.cost)


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
    while (making := experience.making.get(queue)) is not None:
        # One of a long queue is for all who ask meanwhile: each one's own would keep everybody waiting.
        await making.wait()
        last = experience.forecasts.get(queue)
        if last is not None and is_large(last) and not is_due(last):
            return last
    done = experience.making[queue] = asyncio.Event()
    experience.begin(queue)
    try:
        made = await _made(desk, queue)
        experience.remember(queue, made)
    finally:
        done.set()
        experience.making.pop(queue, None)
    _promise(desk, queue, made)
    return made


async def glimpse(desk: Desk, queue: str) -> Forecast:
    """A rough forecast of a long queue, for those who come before there is another."""
    experience = desk.experience
    if queue not in experience.making:
        experience.begin(queue)
    made = await _made(desk, queue, brief=True)
    last = experience.forecasts.get(queue)
    if last is None or last.rough or last.at < made.at - made.cost:
        experience.remember(queue, made)
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


async def _made(desk: Desk, queue: str, *, brief: bool = False) -> Forecast:
    begun = time()
    rules = (await desk.regimes.refreshed()).rules
    scene = await survey(desk, rules, queue, brief=brief)
    taken, newcomers, run = take(scene, queue, await run_times(desk))
    whole = replace(taken, lanes=[*taken.lanes, *newcomers])
    size = sum(one.count for one in scene.waiting)
    jobs = {} if brief else _own(_stretched(await _replayed(whole, size), taken, newcomers), whole, queue)
    own = [(one, lane) for one, lane in zip(scene.waiting, taken.lanes, strict=True) if one.queue == queue]
    waiting: Counter[str] = Counter()
    for one, _ in own:
        waiting[one.tenant] += one.count
    return Forecast(
        snapshot=taken,
        jobs=jobs,
        waiting=waiting,
        size=size,
        free=free_slots(taken, queue) - size,
        pace=_pace(taken, queue, run),
        now=scene.now,
        at=time(),
        cost=time() - begun,
        lanes={(one.tenant, one.task, one.group): lane for one, lane in own},
        newcomers={lane.tenant: lane for lane in newcomers},
        rough=brief,
    )


async def _replayed(whole: Snapshot, size: int) -> dict[str, Estimate]:
    if size <= SMALL:
        return forecast(whole)
    return await asyncio.to_thread(forecast, whole)  # it takes a while, and others want answers meanwhile


def _own(jobs: dict[str, Estimate], whole: Snapshot, queue: str) -> dict[str, Estimate]:
    """Without jobs of other queues, which were only in the way."""
    if all(lane.queue == queue for lane in whole.lanes):
        return jobs
    return {key[2]: jobs[key[2]] for lane in whole.lanes if lane.queue == queue for key in lane.jobs}


def _stretched(jobs: dict[str, Estimate], taken: Snapshot, newcomers: Sequence[Lane]) -> dict[str, Estimate]:
    """Where not all jobs were replayed, newcomers wait for the others as well."""
    if any(lane.rest for lane in taken.lanes):
        for lane in newcomers:
            jobs[lane.jobs[0][2]] = outlook(taken, lane)
    return jobs


def free_slots(taken: Snapshot, queue: str) -> int:
    """Slots of a queue's workers that no job has."""
    busy = Counter(busy.pool for busy in taken.running)
    return sum(pool.slots - busy[place] for place, pool in enumerate(taken.pools) if queue in pool.queues)


def _pace(taken: Snapshot, queue: str, run: float) -> float:
    """Seconds by which each job that waits puts off the next, where only slots are short."""
    own = [lane for lane in taken.lanes if lane.queue == queue]
    count = sum(len(lane.jobs) + lane.rest for lane in own)
    mean = sum(lane.seconds * (len(lane.jobs) + lane.rest) for lane in own) / count if count else run
    return mean / max(1, sum(pool.slots for pool in taken.pools if queue in pool.queues))


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
    names = [(key[2], lane.tenant) for lane in made.snapshot.lanes if lane.queue == queue for key in lane.jobs]
    for name, tenant in _spread(names):
        seconds = made.jobs[name].seconds
        if seconds is not None:
            desk.experience.promise(JobKey(name.partition("/")[0], tenant), Promise(queue, seconds, made.now))


def _spread(ids: Sequence[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """Some from all over the queue, so that long waits are looked at as well as short ones."""
    return [ids[max(0, len(ids) * part // SAMPLE - 1)] for part in range(1, SAMPLE + 1)] if ids else []
