"""Makes forecasts: one snapshot of a queue's load, replayed for all its jobs at once; never inside a claim.

There is one forecast per queue. The upkeep refreshes those of watched queues, and a caller makes one if there is none
that serves it. A caller who asks about a short queue always gets a new one. New jobs of a long queue get a rough one
from counts, until there is another: an enqueue must not wait for a replay.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from windlass.engine.context import EngineContext
from windlass.engine.estimate.learn import loop_time, read_run_times
from windlass.engine.estimate.stats import SMALL, STALE, Forecast, LaneName, Prediction, forecast_name, task_key
from windlass.engine.flow.apply import FOREVER
from windlass.engine.flow.load import QueueLoad, buckets, class_of, limit_of, paused_until, read_load, workers_for
from windlass.model.errors import WindlassError
from windlass.model.estimate import Why
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT, JobKey
from windlass.model.worker import Worker
from windlass.policy.estimate import forecast
from windlass.policy.run_times import RunTimes, mean, remaining
from windlass.policy.snapshot import NEVER, Bound, BusySlot, FairTurns, Key, LoadSnapshot, SlotPool, WaitingLane
from windlass.store.data import Record
from windlass.store.flow import ANY, EXPLICIT, YIELDING, LaneBacklog, TierRule

AT_ENQUEUE = 0.05
"""Seconds that an enqueue may wait for a forecast that does not have its job."""

WATCHED = 10.0
"""Seconds for which a queue counts as watched after a caller asked."""

SAMPLE = 3
"""Estimates of one forecast that are compared with the actual waits."""

MOST_UNSEEN = 100
"""Lanes of tasks that never ran here whose first job is read, for its time limit."""

MOST_LANES = 10_000
"""Lanes without waiting jobs that a forecast remembers."""

REGROUPING = 1.0
"""Seconds after which lanes that are being regrouped are expected to open."""


async def get_forecast(context: EngineContext, queue: str, *, shared: bool = False) -> Forecast:
    """The forecast of a queue for a caller who asks; the queue counts as watched from now on.

    For a short queue it is begun after the call, unless it is `shared`.
    """
    stats, asked = context.stats, loop_time()
    stats.watched[queue] = asked
    last = stats.forecasts.get(queue)
    if last is not None and (shared or last.large) and not last.is_due(asked):
        return last
    return await _begun_after(context, queue, asked)


async def brief_forecast(context: EngineContext, queue: str) -> Forecast:
    """A rough one from counts, which is not kept: for a caller who asks about more jobs than forecasts may list."""
    return await _read_and_replay(context, queue, SMALL)


async def forecast_for_new_job(
    context: EngineContext, queue: str, *, exact: bool = False, oldest: float = 0.0
) -> Forecast | None:
    """A forecast for a job that is enqueued; null = the last one is too old, and a new one too expensive.

    `exact`: a new one, begun after the call, unless the queue is long.
    """
    stats, asked = context.stats, loop_time()
    making = stats.making.get(queue)
    if making is not None and queue not in stats.forecasts and not exact:
        with suppress(TimeoutError):
            async with asyncio.timeout(AT_ENQUEUE):
                await making.wait()
    last, now = stats.forecasts.get(queue), loop_time()
    if last is not None and (last.large or not exact) and last.serves_new_jobs(now, oldest):
        if last.large and last.is_due(now):
            stats.watched[queue] = now  # the upkeep makes a better one for the next jobs
        return last
    if not exact and (queue in stats.making or (last is not None and not last.is_due(now))):
        return last if last is not None and now - last.at < STALE else None
    return await _begun_after(context, queue, asked, brief_beyond=SMALL)


async def _begun_after(context: EngineContext, queue: str, asked: float, *, brief_beyond: float = NEVER) -> Forecast:
    """A forecast that is begun later than `asked`; that of a long queue may be begun earlier.

    All concurrent callers share it: one for each would keep all of them waiting.
    """
    stats = context.stats
    while (making := stats.making.get(queue)) is not None:
        await making.wait()
        last = stats.forecasts.get(queue)
        if last is not None and (last.begun >= asked or last.large) and (not last.rough or brief_beyond < NEVER):
            return last
    return await _make(context, queue, brief_beyond=brief_beyond)


async def forecast_in_time(context: EngineContext, queue: str, *, ask: bool = True) -> Forecast | None:
    """A forecast for a job that will not be in it, a scheduled or journaled one; null = there is none within 50 ms.

    Without `ask` the store is not read now: the upkeep makes the next one.
    """
    stats = context.stats
    if not ask or loop_time() < stats.crowded_until.get(queue, 0.0):
        stats.watched[queue] = loop_time()
        last = stats.forecasts.get(queue)
        return last if last is not None and last.serves_new_jobs(loop_time(), oldest=STALE) else None
    try:
        async with asyncio.timeout(AT_ENQUEUE):
            return await forecast_for_new_job(context, queue, oldest=STALE / 2)
    except (TimeoutError, WindlassError):
        stats.watched[queue] = loop_time()
        stats.crowded_until[queue] = loop_time() + STALE
        return None


async def refresh_forecasts(context: EngineContext) -> int:
    """Make new forecasts of watched queues."""
    stats, now = context.stats, loop_time()
    stats.watched = {queue: at for queue, at in stats.watched.items() if now - at < WATCHED}
    for queue in list(stats.watched):
        last = stats.forecasts.get(queue)
        if queue not in stats.making and (last is None or last.is_due(loop_time())):
            await _make(context, queue)
    return 0


async def _make(context: EngineContext, queue: str, *, brief_beyond: float = NEVER) -> Forecast:
    stats = context.stats
    done = stats.making[queue] = asyncio.Event()
    stats.begin_forecast(queue)
    try:
        made = await _read_and_replay(context, queue, brief_beyond)
        stats.remember(queue, made)
        if made.rough:
            stats.watched[queue] = made.at  # the upkeep makes a better one
    finally:
        done.set()
        del stats.making[queue]
    for name, tenant in _sample(made, queue):
        seconds = made.jobs[name].seconds
        if seconds is not None:
            stats.predict(JobKey(name.partition("/")[0], tenant), Prediction(queue, seconds, made.now))
    return made


async def _read_and_replay(context: EngineContext, queue: str, brief_beyond: float) -> Forecast:
    begun = loop_time()
    rules = (await context.flow_config.refreshed()).rules
    load = await read_load(context, rules, queue, brief_beyond=brief_beyond)
    times = await read_run_times(context)
    unseen = await _read_unseen(context, load, queue, times)
    made = await _replay(load, _SnapshotBuilder(load, queue, times, unseen), queue, begun)
    tiered = {f"{one.tenant},{one.queue}" for one in load.waiting} & rules.tiers.keys()
    if not tiered and not any(name.partition(",")[2] == queue for name in rules.tiers):
        return made
    worst = await _replay(load, _SnapshotBuilder(load, queue, times, unseen, worst=True), queue, begun)
    return replace(made, worst=worst, at=worst.at, cost=worst.cost)


class Unseen(Struct, frozen=True):
    """What is known of runs of tasks that never ran here."""

    typical: float = NEVER
    """How long jobs of the queue run."""
    limits: Mapping[tuple[str, str, str, str], float] = {}
    """The time limits of waiting jobs, by tenant, queue, task and group: of each the first job's."""


async def _read_unseen(context: EngineContext, load: QueueLoad, queue: str, times: Mapping[str, RunTimes]) -> Unseen:
    """Read it only if there are such jobs."""
    lanes = [one for one in load.waiting if one.jobs and task_key(one.tenant, one.task) not in times]
    if not lanes and all(task_key(one.job.tenant, one.job.task) in times for one in load.running):
        return Unseen()
    firsts = [JobKey(one.jobs[0][2], one.tenant) for one in lanes[:MOST_UNSEEN]]
    found = (await context.store.jobs.read(firsts)).records if firsts else []
    limits = {
        (one.tenant, one.queue, one.task, one.group): record.job.timeout
        for one, record in zip(lanes, found, strict=False)
        if record is not None and record.job.timeout is not None
    }
    ran = (await context.store.jobs.counts(EVERY_TENANT)).runs
    seen = [
        (one.count, mean(times.get(task_key(one.tenant, one.task), RunTimes()))) for one in ran if one.queue == queue
    ]
    known = [(count, seconds) for count, seconds in seen if seconds is not None]
    total = sum(count for count, _ in known)
    return Unseen(sum(count * seconds for count, seconds in known) / total if total else NEVER, limits)


async def _replay(load: QueueLoad, builder: "_SnapshotBuilder", queue: str, begun: float) -> Forecast:
    snapshot = builder.snapshot
    size = sum(one.count for one in load.waiting)
    if load.brief:
        jobs = {}
    elif size <= SMALL:
        jobs = forecast(snapshot)
    else:
        jobs = await asyncio.to_thread(forecast, snapshot)  # it takes a while: the loop must go on
    waiting: Counter[str] = Counter()
    for one in load.waiting:
        if one.queue == queue:
            waiting[one.tenant] += one.count
    own = [place for place, pool in enumerate(snapshot.pools) if queue in pool.queues]
    slots = sum(snapshot.pools[place].slots for place in own)
    return Forecast(
        snapshot=snapshot,
        jobs=jobs,
        waiting=waiting,
        now=load.now,
        begun=begun,
        at=loop_time(),
        cost=loop_time() - begun,
        size=size,
        lane=builder.lane_of,
        rough=load.brief,
        free=slots - sum(busy.pool in own for busy in snapshot.running) - size,
        pace=builder.mean_run() / max(1, slots),
    )


def _sample(made: Forecast, queue: str) -> list[tuple[str, str]]:
    """Some jobs from all over the queue, with their tenants: their estimates are compared with the actual waits."""
    lanes = () if made.rough else made.snapshot.lanes
    jobs = [(key[2], lane.tenant) for lane in lanes if lane.queue == queue for key in lane.jobs]
    return [jobs[max(0, len(jobs) * part // SAMPLE - 1)] for part in range(1, SAMPLE + 1)] if jobs else []


class _SnapshotBuilder:
    """Turns the load of a queue into what policies understand.

    A run is expected to take as long as runs of its task did, or else as those of its queue, but not longer than its
    limit; if nothing is known, nothing is said. Running jobs that cannot be seen are expected to last a typical run.
    """

    def __init__(
        self, load: QueueLoad, queue: str, times: Mapping[str, RunTimes], unseen: Unseen, *, worst: bool = False
    ) -> None:
        """`worst`: each run takes as long as it may, instead of as long as such runs took."""
        self._load = load
        self._queue = queue
        self._times = times
        self._unseen = unseen
        self._worst = worst
        self._typical = self._typical_run()
        self._bounds: list[Bound] = []
        self._places: dict[tuple[str, ...], int] = {}
        """Indexes of the bounds."""
        pools = _pools_of_workers(load.workers)
        self._pool_of = {worker.id: place for place, pool in enumerate(pools) for worker in pool}
        lanes = [self._lane(one) for one in load.waiting]
        own = zip(load.waiting, lanes, strict=True)
        self._lanes = {(one.tenant, one.task, one.group): lane for one, lane in own if one.queue == queue}
        self.snapshot = LoadSnapshot(
            pools=[SlotPool(sum(one.slots for one in pool), pool[0].queues) for pool in pools],
            running=self._running(),
            lanes=lanes,
            bounds=tuple(self._bounds),
            turns={
                name: turns for name in {lane.queue for lane in lanes} if (turns := self._turns(name)) != FairTurns()
            },
        )
        self._load = replace(load, waiting=(), running=())  # `lane_of` needs the rest

    def _turns(self, queue: str) -> FairTurns:
        lines = self._load.rules.fair_tenant_queues
        own = (lines.get(f"{one.tenant},{queue}") for one in self._load.waiting if lines and one.queue == queue)
        tasks = next((found for found in own if found is not None), lines.get(f"{ANY},{queue}"))
        return FairTurns(self._load.rules.fair_queues.get(queue), tasks)

    def _typical_run(self) -> float:
        waiting = {task_key(one.tenant, one.task) for one in self._load.waiting}
        running = {task_key(one.job.tenant, one.job.task) for one in self._load.running}
        seen = [mean(self._times.get(task, RunTimes())) for task in sorted(waiting or running)]
        known = [seconds for seconds in seen if seconds is not None]
        return sum(known) / len(known) if known else self._unseen.typical

    def mean_run(self) -> float:
        """Of the queue's waiting jobs."""
        lanes = [lane for lane in self._lanes.values() if lane.seconds < NEVER]
        counts = [(len(lane.jobs) + lane.rest, lane.seconds) for lane in lanes]
        total = sum(count for count, _ in counts)
        typical = self._typical if self._typical < NEVER else 0.0
        return sum(count * seconds for count, seconds in counts) / total if total else typical

    def lane_of(self, name: LaneName) -> WaitingLane:
        """A lane of the queue; for any tenant (`-`), or any task (empty), of a job that nothing but slots bounds."""
        found = self._lanes.get(name)
        if found is None:
            tenant, task, group = name
            found = self._lane(LaneBacklog(tenant, self._queue, task, group, 0, []))
            # Of limits for which no job waits, nothing was read.
            found = replace(found, bounds=tuple(each for each in found.bounds if each < len(self.snapshot.bounds)))
            if len(self._lanes) < MOST_LANES:
                self._lanes[name] = found
        return found

    def _levels(self, tenant: str, queue: str) -> Sequence[TierRule]:
        return self._load.rules.tiers.get(f"{tenant},{queue}", ())

    def _lane(self, one: LaneBacklog) -> WaitingLane:
        workers = workers_for(self._load, one)
        levels = self._levels(one.tenant, one.queue)
        level = _level(levels, class_of(one.group))
        bounds = [*self._at_levels(f"{one.tenant},{one.queue}", levels[1 : level + 1]), *self._in_buckets(one.group)]
        return WaitingLane(
            jobs=_named(one),
            seconds=self._seconds(one),
            tenant=one.tenant,
            task=one.task,
            bounds=tuple(bounds),
            opens=self._opens(one.tenant, one.queue, one.task),
            lacks=None if workers else self._lacking(one),
            queue=one.queue,
            pools=tuple(sorted({self._pool_of[worker.id] for worker in workers})),
            rest=max(0, one.count - len(one.jobs)),
        )

    def _seconds(self, one: LaneBacklog) -> float:
        levels, kind = self._levels(one.tenant, one.queue), class_of(one.group)
        tier = levels[_level(levels, kind)].seconds if levels and kind else NEVER
        if self._worst:
            return tier
        limit = min(tier, self._unseen.limits.get((one.tenant, one.queue, one.task, one.group), NEVER))
        learned = mean(self._times.get(task_key(one.tenant, one.task), RunTimes()))
        return min(limit, self._typical if learned is None else learned)

    def _opens(self, tenant: str, queue: str, task: str) -> float:
        until = paused_until(self._load, tenant, queue, task)
        if until is None:
            return 0.0
        if until < FOREVER:
            return (until - self._load.now).total_seconds()
        return NEVER if not self._load.rules.regrouping else REGROUPING

    def _lacking(self, one: LaneBacklog) -> Why:
        tenants = {worker.tenant for worker in self._load.workers if one.queue in worker.queues}
        return Why.HANDLER if tenants & {EVERY_TENANT, one.tenant} else Why.WORKER

    def _bound(self, key: tuple[str, ...], bound: Bound) -> int:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._bounds)
            self._bounds.append(bound)
        return place

    def _at_levels(self, line: str, levels: Sequence[TierRule]) -> list[int]:
        return [self._bound(("level", line, each.name), Bound(each.name, Why.TIER, places=each.cap)) for each in levels]

    def _in_buckets(self, group: str) -> list[int]:
        names = [bucket for bucket in buckets(group) if limit_of(bucket) in self._load.rules.limit_rules]
        return [self._bound(("bucket", name), self._limit(name)) for name in names]

    def _limit(self, bucket: str) -> Bound:
        name = limit_of(bucket)
        limit_rule = self._load.rules.limit_rules[name]
        usage = self._load.usage.get(bucket)
        now, closed = self._load.now, limit_rule.closed_until
        paused = closed is not None and closed > now
        opens = (closed if paused else usage and usage.free_at) or now
        return Bound(
            name=name.partition("/")[2],
            why=Why.PAUSE if paused else Why.LIMIT,
            places=limit_rule.running,
            interval=limit_rule.per / limit_rule.count if limit_rule.count else 0.0,
            burst=limit_rule.burst or limit_rule.count or 1,
            opens=NEVER if opens >= FOREVER else max(0.0, (opens - now).total_seconds()),
        )

    def _running(self) -> list[BusySlot]:
        """All jobs that have a slot, or a place within a bound; not those whose worker is gone."""
        live = {worker.id for worker in self._load.workers}
        own = [record for record in self._load.running if record.job.worker in live]
        seats = Counter(record.job.worker for record in own)
        elsewhere = [
            BusySlot(self._typical, pool=self._pool_of[worker.id])
            for worker in self._load.workers
            for _ in range(worker.running - seats[worker.id])
        ]
        return [*(self._busy(record) for record in own), *elsewhere, *self._elsewhere_in_limits(own)]

    def _busy(self, record: Record) -> BusySlot:
        kind, job = class_of(record.group), record.job
        keys: list[tuple[str, ...]] = [("bucket", bucket) for bucket in buckets(record.group)]
        if kind.startswith(EXPLICIT):
            levels = self._levels(job.tenant, job.queue)
            line = f"{job.tenant},{job.queue}"
            keys += [("level", line, each.name) for each in levels[1 : _level(levels, kind) + 1]]
        found = (self._places.get(key) for key in keys)
        places = tuple(place for place in found if place is not None)
        return BusySlot(self._remaining(record), places, self._pool_of[job.worker or ""])

    def _remaining(self, record: Record) -> float:
        kind, job, now = class_of(record.group), record.job, self._load.now
        elapsed = (now - (job.started_at or now)).total_seconds()
        allowed = (job.deadline - now).total_seconds() if job.deadline else NEVER
        levels = self._levels(job.tenant, job.queue)
        if levels and kind == YIELDING:
            return 0.0  # it is halted as soon as its slot is needed
        if levels and kind and not kind.startswith(EXPLICIT):
            allowed = min(allowed, levels[0].seconds - elapsed)
        if self._worst:
            return max(0.0, allowed)
        learned = remaining(self._times.get(task_key(job.tenant, job.task), RunTimes()), elapsed)
        return max(0.0, min(allowed, self._typical if learned is None else learned))

    def _elsewhere_in_limits(self, own: Sequence[Record]) -> list[BusySlot]:
        """Jobs of other workers within the same limits."""
        seen = Counter(bucket for record in own for bucket in buckets(record.group))
        return [
            BusySlot(self._typical, (place,), pool=None)
            for bucket, usage in self._load.usage.items()
            if (place := self._places.get(("bucket", bucket))) is not None
            for _ in range(usage.running - seen[bucket])
        ]


def _named(one: LaneBacklog) -> list[Key]:
    if one.tenant == DEFAULT_TENANT:
        return one.jobs
    return [(priority, arrival, forecast_name(id, one.tenant)) for priority, arrival, id in one.jobs]


def _pools_of_workers(workers: Sequence[Worker]) -> list[list[Worker]]:
    """The workers, grouped by the jobs that they take."""
    found: dict[tuple[str, tuple[str, ...], tuple[str, ...] | None], list[Worker]] = {}
    for worker in workers:
        tasks = None if worker.tasks is None else tuple(sorted(worker.tasks))
        found.setdefault((worker.tenant, tuple(worker.queues), tasks), []).append(worker)
    return list(found.values())


def _level(levels: Sequence[TierRule], kind: str) -> int:
    """The level of a waiting job: the shortest for a flexible one."""
    names = [level.name for level in levels]
    name = kind.removeprefix(EXPLICIT)
    return names.index(name) if name in names else 0
