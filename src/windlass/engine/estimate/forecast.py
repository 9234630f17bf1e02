"""Makes forecasts: one snapshot of a queue's load, replayed for all its jobs at once; never inside a claim.

A small queue gets a new forecast for every caller who asks. The forecast of a large queue is shared for a time in
proportion to its cost. Until there is one, a rough forecast from counts serves jobs that are enqueued.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from windlass.engine.context import EngineContext
from windlass.engine.estimate.learn import loop_time, read_run_times
from windlass.engine.estimate.stats import Forecast, Prediction, forecast_name, task_key
from windlass.engine.flow.apply import FOREVER
from windlass.engine.flow.load import (
    QueueLoad,
    buckets,
    class_of,
    limit_of,
    paused_until,
    queued_in,
    read_load,
    workers_for,
)
from windlass.model.estimate import Estimate, Why
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT, JobKey
from windlass.model.worker import Worker
from windlass.policy.estimate import forecast
from windlass.policy.run_times import RunTimes, mean, remaining
from windlass.policy.snapshot import NEVER, Bound, BusySlot, FairTurns, LoadSnapshot, SlotPool, WaitingLane
from windlass.policy.upper_bound import upper_bound
from windlass.store.data import Record
from windlass.store.flow import ANY, EXPLICIT, YIELDING, LaneBacklog, TierRule

SMALL = 1000
"""Waiting jobs up to which every caller gets a new forecast."""

SHARE = 20
"""A forecast is used for so many times its cost: so making forecasts takes at most this share of the time."""

OLDEST = 60.0
"""Seconds after which a forecast is replaced in any case."""

WATCHED = 10.0
"""Seconds for which a queue counts as watched after a caller asked."""

SAMPLE = 3
"""Estimates of one forecast that are compared with the actual waits."""

UNKNOWN = 1.0
"""Seconds that a run is expected to last while nothing is known."""

LAST = 2**62
"""An arrival after all others."""

REGROUPING = 1.0
"""Seconds after which lanes that are being regrouped are expected to open."""


def is_large(found: Forecast) -> bool:
    return found.size > SMALL


def is_due(last: Forecast) -> bool:
    """Whether a new one should be made."""
    return last.rough or loop_time() - last.at > min(OLDEST, SHARE * last.cost)


async def is_crowded(context: EngineContext, queue: str) -> bool:
    return queued_in({queue}, (await context.store.jobs.counts(EVERY_TENANT)).jobs) > SMALL


async def watch_queue(context: EngineContext, queue: str, *, shared: bool = False) -> Forecast:
    """The forecast of a queue, which counts as watched from now on."""
    context.stats.watched[queue] = loop_time()
    return await get_forecast(context, queue, shared=shared)


async def get_forecast(context: EngineContext, queue: str, *, shared: bool = False) -> Forecast:
    """The last forecast of a queue, or a new one if that is due; for a small queue always, unless it is `shared`."""
    stats = context.stats
    last = stats.forecasts.get(queue)
    if last is not None and (shared or is_large(last)) and (queue in stats.making or not is_due(last)):
        return last
    while (making := stats.making.get(queue)) is not None:
        # All concurrent callers share the forecast of a long queue: one for each would keep all of them waiting.
        await making.wait()
        last = stats.forecasts.get(queue)
        if last is not None and is_large(last) and not is_due(last):
            return last
    done = stats.making[queue] = asyncio.Event()
    stats.begin_forecast(queue)
    try:
        made = await _make(context, queue)
        stats.remember(queue, made)
    finally:
        done.set()
        stats.making.pop(queue, None)
    _sample(context, queue, made)
    return made


async def rough_forecast(context: EngineContext, queue: str) -> Forecast:
    """A rough forecast of a long queue, for jobs that arrive before there is another."""
    stats = context.stats
    if queue not in stats.making:
        stats.begin_forecast(queue)
    made = await _make(context, queue, brief=True)
    last = stats.forecasts.get(queue)
    if last is None or last.rough or last.at < made.at - made.cost:
        stats.remember(queue, made)
    return made


async def refresh_forecasts(context: EngineContext) -> int:
    """Make new forecasts of watched queues."""
    stats, now = context.stats, loop_time()
    stats.watched = {queue: at for queue, at in stats.watched.items() if now - at < WATCHED}
    for queue in list(stats.watched):
        last = stats.forecasts.get(queue)
        if queue not in stats.making and (last is None or is_due(last)):
            await get_forecast(context, queue)
    return 0


async def _make(context: EngineContext, queue: str, *, brief: bool = False) -> Forecast:
    started = loop_time()
    rules = (await context.flow_config.refreshed()).rules
    load = await read_load(context, rules, queue, brief=brief)
    snapshot = take_snapshot(load, queue, await read_run_times(context))
    whole = replace(snapshot, lanes=[*snapshot.lanes, *snapshot.arrivals])
    size = sum(one.count for one in load.waiting)
    jobs = {} if brief else _own(_with_upper_bounds(await _replayed(whole, size), snapshot), whole, queue)
    own = [(one, lane) for one, lane in zip(load.waiting, snapshot.lanes, strict=True) if one.queue == queue]
    waiting: Counter[str] = Counter()
    for one, _ in own:
        waiting[one.tenant] += one.count
    return Forecast(
        snapshot=snapshot,
        jobs=jobs,
        waiting=waiting,
        size=size,
        free=free_slots(snapshot, queue) - size,
        pace=_pace(snapshot, queue),
        now=load.now,
        at=loop_time(),
        cost=loop_time() - started,
        lanes={(one.tenant, one.task, one.group): lane for one, lane in own},
        arrivals={lane.tenant: lane for lane in snapshot.arrivals},
        rough=brief,
    )


async def _replayed(whole: LoadSnapshot, size: int) -> dict[str, Estimate]:
    if size <= SMALL:
        return forecast(whole)
    return await asyncio.to_thread(forecast, whole)  # it takes a while: the loop must go on


def _own(jobs: dict[str, Estimate], whole: LoadSnapshot, queue: str) -> dict[str, Estimate]:
    """Without the jobs of other queues."""
    if all(lane.queue == queue for lane in whole.lanes):
        return jobs
    return {key[2]: jobs[key[2]] for lane in whole.lanes if lane.queue == queue for key in lane.jobs}


def _with_upper_bounds(jobs: dict[str, Estimate], snapshot: LoadSnapshot) -> dict[str, Estimate]:
    """If not all jobs were replayed, new jobs wait for the others too."""
    if any(lane.rest for lane in snapshot.lanes):
        for lane in snapshot.arrivals:
            jobs[lane.jobs[0][2]] = upper_bound(snapshot, lane)
    return jobs


def free_slots(snapshot: LoadSnapshot, queue: str) -> int:
    """Free slots of a queue's workers."""
    busy = Counter(busy.pool for busy in snapshot.running)
    return sum(pool.slots - busy[place] for place, pool in enumerate(snapshot.pools) if queue in pool.queues)


def _pace(snapshot: LoadSnapshot, queue: str) -> float:
    """Seconds by which each waiting job delays the next, if only slots are short."""
    own = [lane for lane in snapshot.lanes if lane.queue == queue]
    count = sum(len(lane.jobs) + lane.rest for lane in own)
    mean = sum(lane.seconds * (len(lane.jobs) + lane.rest) for lane in own) / count if count else snapshot.typical_run
    return mean / max(1, sum(pool.slots for pool in snapshot.pools if queue in pool.queues))


def _sample(context: EngineContext, queue: str, made: Forecast) -> None:
    """Remember some estimates of a forecast, to compare them with the actual waits."""
    names = [(key[2], lane.tenant) for lane in made.snapshot.lanes if lane.queue == queue for key in lane.jobs]
    for name, tenant in _spread(names):
        seconds = made.jobs[name].seconds
        if seconds is not None:
            context.stats.predict(JobKey(name.partition("/")[0], tenant), Prediction(queue, seconds, made.now))


def _spread(ids: Sequence[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """Some from all over the queue, so that long and short waits are compared."""
    return [ids[max(0, len(ids) * part // SAMPLE - 1)] for part in range(1, SAMPLE + 1)] if ids else []


# Snapshots


def new_arrival(tenant: str) -> str:
    """In place of an id: a job of this tenant that would arrive now. Empty: a tenant without jobs and workers here."""
    return f"+{tenant}"


def _named(one: LaneBacklog) -> list[tuple[int, int, str]]:
    if one.tenant == DEFAULT_TENANT:
        return one.jobs
    return [(priority, arrival, forecast_name(id, one.tenant)) for priority, arrival, id in one.jobs]


def take_snapshot(load: QueueLoad, queue: str, times: Mapping[str, RunTimes]) -> LoadSnapshot:
    """The load of a queue as estimates see it. Running jobs that cannot be seen are expected to last a typical run."""
    builder = _SnapshotBuilder(load, queue, times)
    lanes = [builder.lane(one) for one in load.waiting]
    shut = (pattern.partition(",")[0] for pattern in load.rules.paused_until)
    own = (one.tenant for one in load.waiting if one.queue == queue)
    tenants = {"", EVERY_TENANT, *own, *(one.tenant for one in load.workers), *shut}
    arrivals = [builder.new_arrival(tenant) for tenant in sorted(tenants)]
    queues = {queue, *(one.queue for one in load.waiting)}
    return LoadSnapshot(
        pools=builder.pools,
        running=builder.running(),
        lanes=lanes,
        bounds=builder.bounds,
        arrivals=arrivals,
        typical_run=builder.typical,
        turns={name: turns for name in queues if (turns := _turns(load, name)) != FairTurns()},
    )


def _turns(load: QueueLoad, queue: str) -> FairTurns:
    return FairTurns(load.rules.fair_queues.get(queue), _turns_of_tasks(load, queue))


def _turns_of_tasks(load: QueueLoad, queue: str) -> Mapping[str, float] | None:
    lines = load.rules.fair_tenant_queues
    if not lines:
        return None
    own = (lines.get(f"{one.tenant},{queue}") for one in load.waiting if one.queue == queue)
    return next((found for found in own if found is not None), lines.get(f"{ANY},{queue}"))


class _SnapshotBuilder:
    def __init__(self, load: QueueLoad, queue: str, times: Mapping[str, RunTimes]) -> None:
        self._load = load
        self._queue = queue
        self._times = times
        self.typical = self._typical_run()
        self.bounds: list[Bound] = []
        self._places: dict[tuple[str, ...], int] = {}
        """Indexes of the bounds."""
        pools = _pools_of_workers(load.workers)
        self.pools = [SlotPool(sum(one.slots for one in pool), pool[0].queues) for pool in pools]
        self._pool_of = {worker.id: place for place, pool in enumerate(pools) for worker in pool}

    def _typical_run(self) -> float:
        waiting = {task_key(one.tenant, one.task) for one in self._load.waiting}
        running = {task_key(one.job.tenant, one.job.task) for one in self._load.running}
        seen = [mean(self._times.get(task, RunTimes())) for task in sorted(waiting or running)]
        known = [seconds for seconds in seen if seconds is not None]
        return sum(known) / len(known) if known else UNKNOWN

    def _levels(self, tenant: str, queue: str) -> Sequence[TierRule]:
        return self._load.rules.tiers.get(f"{tenant},{queue}", ())

    def lane(self, one: LaneBacklog) -> WaitingLane:
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
            pools=self._pools(workers),
            rest=max(0, one.count - len(one.jobs)),
        )

    def new_arrival(self, tenant: str) -> WaitingLane:
        workers = [
            one
            for one in self._load.workers
            if self._queue in one.queues and (EVERY_TENANT in (tenant, one.tenant) or one.tenant == tenant)
        ]
        lacks = None if workers else Why.WORKER
        return WaitingLane(
            [(0, LAST, new_arrival(tenant))],
            0.0,
            tenant,
            opens=self._opens(tenant, self._queue, task=""),
            lacks=lacks,
            queue=self._queue,
            pools=self._pools(workers),
        )

    def _pools(self, workers: Sequence[Worker]) -> tuple[int, ...]:
        return tuple(sorted({self._pool_of[worker.id] for worker in workers}))

    def _seconds(self, one: LaneBacklog) -> float:
        levels, kind = self._levels(one.tenant, one.queue), class_of(one.group)
        if levels and kind:
            return levels[_level(levels, kind)].seconds
        learned = mean(self._times.get(task_key(one.tenant, one.task), RunTimes()))
        return self.typical if learned is None else learned

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
            place = self._places[key] = len(self.bounds)
            self.bounds.append(bound)
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

    def running(self) -> list[BusySlot]:
        """All jobs that have a slot, or a place within a bound; not those whose worker is gone."""
        live = {worker.id for worker in self._load.workers}
        own = [record for record in self._load.running if record.job.worker in live]
        seats = Counter(record.job.worker for record in own)
        elsewhere = [
            BusySlot(self.typical, pool=self._pool_of[worker.id])
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
        if levels and kind:
            tier = allowed if kind.startswith(EXPLICIT) else levels[0].seconds - elapsed
            return max(0.0, min(allowed, tier))
        learned = remaining(self._times.get(task_key(job.tenant, job.task), RunTimes()), elapsed)
        return max(0.0, min(allowed, self.typical if learned is None else learned))

    def _elsewhere_in_limits(self, own: Sequence[Record]) -> list[BusySlot]:
        """Jobs of other workers within the same limits."""
        seen = Counter(bucket for record in own for bucket in buckets(record.group))
        return [
            BusySlot(self.typical, (place,), pool=None)
            for bucket, usage in self._load.usage.items()
            if (place := self._places.get(("bucket", bucket))) is not None
            for _ in range(usage.running - seen[bucket])
        ]


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
