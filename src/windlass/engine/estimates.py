"""Answers about how long jobs wait, and the duties that make the answers good.

A forecast is made of one look at a queue, for all its jobs at once; never inside a claim. Of a small queue it is made
anew for whoever asks; that of a large one is used for as long as it is cheap compared with its cost. Run times are
learned from what this engine hands out and gets back, and are shared by way of the shelf. Some of what was foretold is
held against what came of it.
"""

import asyncio
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import ValidationError
from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.engine.experience import MOST_TASKS, Forecast, Promise
from windlass.engine.scene import look
from windlass.engine.snapshots import LAST, UNKNOWN, newcomer, snapshot
from windlass.model.errors import WindlassError
from windlass.model.estimate import Estimate, QueueEstimate, Why
from windlass.model.job import Job, State
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import GetEstimate, GetQueueEstimate, Operation
from windlass.policy.estimate import Lane, forecast
from windlass.policy.learning import RunTimes, learn, merge, pack, unpack
from windlass.store.flow import Waiting

RUN_TIMES, ERRORS = "runtime", "estimate.error"
"""Kinds of records on the shelf: by `TENANT,TASK`, and by queue."""

SMALL = 1000
"""Waiting jobs up to which a forecast is made for whoever asks."""

MOST_LISTED = 100_000
"""Waiting jobs that are replayed one by one; how long the others wait is told from these."""

SHARE = 20
"""A forecast is used for so many times as long as it took to make: so it takes at most this part of the time."""

WATCHED = 10.0
"""Seconds for which a queue counts as watched after somebody asked."""

MOST_WRITTEN = 100
"""Tasks whose run times are written down in one step."""

MOST_ERRORS = 100
"""The newest errors of a queue's estimates that count."""

SAMPLE = 3
"""Estimates of one forecast that are held against what becomes of them."""

LEAST_WAIT = 0.1
"""Seconds: of a shorter wait an estimate is not taken to be wrong by more than its whole."""

_errors = msgspec.msgpack.Decoder(list[float])
_pack = msgspec.msgpack.Encoder().encode


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
    found = await _watched(desk, operation.queue)
    told = _newcomer(found, operation.tenant)
    kept = (await desk.shelf.shelved(ERRORS)).get(operation.queue)
    errors = _errors.decode(kept) if kept else []
    return QueueEstimate(
        seconds=told.seconds,
        waiting=_total(found) if operation.tenant == EVERY_TENANT else found.waiting.get(operation.tenant, 0),
        why=told.why if told.seconds != 0 else None,
        error=statistics.median(errors) if errors else None,
    )


async def lately(desk: Desk, job: Job) -> Estimate | None:
    """For those who look again and again, by a forecast that all of them share; null = the job is newer than that."""
    if job.state is State.BLOCKED:
        return Estimate(why=Why.JOBS)
    found = await _watched(desk, job.queue, shared=True)
    if job.state is State.SCHEDULED:
        return _later(found, job)
    told = found.jobs.get(job.id)
    if told is not None or not _large(found):
        return told
    return _newcomer(found, job.tenant)


def _newcomer(found: Forecast, tenant: str) -> Estimate:
    return found.jobs.get(newcomer(tenant)) or found.jobs.get(newcomer(""), Estimate())


def _total(found: Forecast) -> int:
    return sum(found.waiting.values())


def _large(found: Forecast) -> bool:
    return _total(found) > SMALL


async def at_the_door(desk: Desk, job: Job) -> float | None:
    """Seconds that a job which has just been queued will wait, if that is cheap to say; null = ask for its estimate."""
    if job.state is not State.QUEUED:
        return None
    try:
        found = await _at_a_glance(desk, job)
    except WindlassError:
        return None  # the job is in, whoever can say how long it waits
    return found.seconds if found else None


async def _at_a_glance(desk: Desk, job: Job) -> Estimate | None:
    """With tiers everybody is told; elsewhere looks must not take more than a part of the time."""
    experience, queue = desk.experience, job.queue
    last = experience.forecasts.get(queue)
    if last is not None and _large(last) and not _due(last):
        return _newcomer(last, job.tenant)
    if not (await desk.regimes.current()).has_tiers(job.tenant, queue):
        if queue in experience.making or (last is not None and not _due(last)):
            return None
        if _time() < experience.crowded_until.get(queue, 0.0):
            return None
    if await _crowded(desk, queue):
        experience.crowded_until[queue] = _time() + 1.0
        return None
    return _alone(await _forecast(desk, queue), job)


async def _crowded(desk: Desk, queue: str) -> bool:
    counts = await desk.store.tally(EVERY_TENANT)
    return sum(one.count for one in counts if one.queue == queue and one.state is State.QUEUED) > SMALL


async def _of_queued(desk: Desk, job: Job) -> Estimate:
    found = await _watched(desk, job.queue)
    if not _large(found):
        return _alone(found, job)
    return found.jobs.get(job.id) or _newcomer(found, job.tenant)


def _alone(found: Forecast, job: Job) -> Estimate:
    told = forecast(found.snapshot, only=job.id).get(job.id)
    return told or Estimate(seconds=0.0, why=Why.SLOTS)  # it was claimed meanwhile


async def _of_scheduled(desk: Desk, job: Job) -> Estimate:
    """As if the queue stayed as it is until its time comes."""
    found = await _watched(desk, job.queue)
    if _large(found):
        return _later(found, job)
    due = _due_in(found, job)
    lane = Lane([(job.priority, LAST, job.id)], UNKNOWN, job.tenant, job.task, opens=due, why=Why.TIME)
    later = forecast(replace(found.snapshot, lanes=[*found.snapshot.lanes, lane]), only=job.id)[job.id]
    return Estimate(seconds=later.seconds, why=later.why if later.seconds is None else Why.TIME)


def _later(found: Forecast, job: Job) -> Estimate:
    """The same without a replay: as long as a newcomer waits, but not before its time."""
    told = _newcomer(found, job.tenant)
    if told.seconds is None:
        return Estimate(why=told.why)
    return Estimate(seconds=max(_due_in(found, job), told.seconds), why=Why.TIME)


def _due_in(found: Forecast, job: Job) -> float:
    return max(0.0, (job.run_at - found.now).total_seconds()) if job.run_at else 0.0


def _time() -> float:
    return asyncio.get_running_loop().time()


async def _watched(desk: Desk, queue: str, *, shared: bool = False) -> Forecast:
    """The forecast of a queue that somebody watches from now on."""
    desk.experience.watched[queue] = _time()
    return await _forecast(desk, queue, shared=shared)


async def _forecast(desk: Desk, queue: str, *, shared: bool = False) -> Forecast:
    """The last forecast of a queue, or a new one where that is due; of a small one always, unless it is `shared`."""
    experience = desk.experience
    last = experience.forecasts.get(queue)
    if last is not None and (shared or _large(last)) and (queue in experience.making or not _due(last)):
        return last
    experience.making.add(queue)
    try:
        made = await _made(desk, queue)
    finally:
        experience.making.discard(queue)
    experience.remember(queue, made)
    _promise(desk, queue, made)
    return made


def _due(last: Forecast) -> bool:
    return _time() - last.at > min(60.0, SHARE * last.cost)


async def _made(desk: Desk, queue: str) -> Forecast:
    begun = _time()
    rules = (await desk.regimes.refreshed()).rules
    scene = await look(desk, rules, EVERY_TENANT, queue, heads=await _heads(desk, queue))
    taken, newcomers = snapshot(scene, queue, await _run_times(desk))
    whole = replace(taken, lanes=[*taken.lanes, *newcomers])
    waiting: Counter[str] = Counter()
    for one in scene.waiting:
        waiting[one.tenant] += one.count
    if waiting.total() <= SMALL:
        jobs = forecast(whole)
    else:  # it takes a while, and others want answers meanwhile
        jobs = await asyncio.to_thread(forecast, whole)
    return Forecast(taken, _stretched(jobs, scene.waiting, newcomers), waiting, scene.now, _time(), _time() - begun)


async def _heads(desk: Desk, queue: str) -> int:
    """How many jobs of each group to read, so that they are not too many together."""
    counts = await desk.store.tally(EVERY_TENANT)
    total = sum(one.count for one in counts if one.queue == queue and one.state is State.QUEUED)
    if total <= MOST_LISTED:
        return max(1, total)
    return max(1, MOST_LISTED // max(1, len(await desk.flow.waiting(EVERY_TENANT, queue, 1))))


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


async def _run_times(desk: Desk) -> dict[str, RunTimes]:
    """What all engines have learned, not older than a second."""
    experience = desk.experience
    if _time() - experience.times_at > 1.0:
        experience.times = _decoded(await desk.shelf.shelved(RUN_TIMES))
        experience.times_at = _time()
    return experience.times


def _decoded(kept: dict[str, bytes]) -> dict[str, RunTimes]:
    found = {}
    for name, data in kept.items():
        try:
            found[name] = unpack(data)
        except ValidationError:
            continue  # of an older form: it is learned anew
    return found


def _promise(desk: Desk, queue: str, made: Forecast) -> None:
    """Hold some of a forecast against what will become of it."""
    ids = [key[2] for lane in made.snapshot.lanes for key in lane.jobs]
    if not ids:
        return
    for part in range(1, SAMPLE + 1):
        # Spread over the queue, so that long waits are looked at as well as short ones.
        id = ids[max(0, len(ids) * part // SAMPLE - 1)]
        seconds = made.jobs[id].seconds
        if seconds is not None:
            desk.experience.promise(id, Promise(queue, seconds, made.now))


async def learn_run_times(desk: Desk) -> int:
    """Write down how long jobs ran."""
    experience = desk.experience
    if not experience.fresh:
        return 0
    kept = _decoded(await desk.shelf.shelved(RUN_TIMES))
    for task in list(experience.fresh)[:MOST_WRITTEN]:
        runs = experience.fresh.pop(task)
        if task in kept or len(kept) < MOST_TASKS:
            kept[task] = merge(kept.get(task, RunTimes()), learn(RunTimes(), runs))
            await desk.shelf.put(RUN_TIMES, task, pack(kept[task]))
    experience.times, experience.times_at = kept, _time()
    return 0


async def keep_promises(desk: Desk) -> int:
    """Hold what was foretold against what has come, and write down how wrong it was."""
    experience = desk.experience
    if not experience.promises:
        return 0
    ids = list(experience.promises)  # others come while these are looked up
    reading = await desk.store.read(ids)
    for id, record in zip(ids, reading.records, strict=True):
        if record is not None and record.job.state is State.QUEUED:
            continue
        promise = experience.promises.pop(id, None)
        if promise is None:
            continue
        began = record.job.started_at if record is not None else None
        if began is not None and began >= promise.at:
            experience.errors.setdefault(promise.queue, []).append(
                wrong_by(promise.seconds, (began - promise.at).total_seconds())
            )
    if experience.errors:
        await _write_errors(desk)
    return 0


def wrong_by(told: float, real: float) -> float:
    """By which part of the real wait an estimate was wrong."""
    return abs(told - real) / max(real, LEAST_WAIT)


async def _write_errors(desk: Desk) -> None:
    kept = await desk.shelf.shelved(ERRORS)
    for queue, fresh in list(desk.experience.errors.items()):
        before = _errors.decode(kept[queue]) if queue in kept else []
        await desk.shelf.put(ERRORS, queue, _pack([*before, *fresh][-MOST_ERRORS:]))
        del desk.experience.errors[queue]


async def foretell(desk: Desk) -> int:
    """Make new forecasts of the queues that somebody watches."""
    experience, now = desk.experience, _time()
    experience.watched = {queue: at for queue, at in experience.watched.items() if now - at < WATCHED}
    for queue in list(experience.watched):
        last = experience.forecasts.get(queue)
        if queue not in experience.making and (last is None or _due(last)):
            await _forecast(desk, queue)
    return 0


ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = {
    GetEstimate: get_estimate,
    GetQueueEstimate: get_queue_estimate,
}
