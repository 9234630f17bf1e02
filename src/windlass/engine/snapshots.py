"""A scene as an estimate sees it: who runs for how much longer, who waits, and what bounds them all.

Decides nothing and reads nothing. What it cannot see (places that jobs of other workers' queues take) it takes to last
as long as an average run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from windlass.engine.experience import forecast_name, task_key
from windlass.engine.rules import FOR_EVER
from windlass.engine.scene import Scene, allowance_name, buckets, class_of, known, shut_until
from windlass.model.estimate import Why
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT
from windlass.model.worker import Worker
from windlass.policy.learning import RunTimes, mean, remaining
from windlass.policy.snapshot import NEVER, Bound, Busy, Lane, Pool, Snapshot, Turns
from windlass.store import Record
from windlass.store.flow import ANY, EXPLICIT, YIELDING, Level, Waiting

UNKNOWN = 1.0
"""Seconds that a run is taken to last while nothing is known of any."""

LAST = 2**62
"""An arrival after all others."""

SORTING = 1.0
"""Seconds after which lanes that are being sorted are taken to open."""


def newcomer(tenant: str) -> str:
    """In place of an id: a job of this tenant that would come now. Empty: of one without jobs and workers here."""
    return f"+{tenant}"


def _named(one: Waiting) -> list[tuple[int, int, str]]:
    if one.tenant == DEFAULT_TENANT:
        return one.jobs
    return [(priority, arrival, forecast_name(id, one.tenant)) for priority, arrival, id in one.jobs]


class Taken(NamedTuple):
    """What is needed to foretell when the jobs of a queue start."""

    snapshot: Snapshot
    newcomers: list[Lane]
    """Jobs that would come now, which delay nobody."""
    run: float
    """Seconds that a run takes, if nothing else is known of it."""


def take(scene: Scene, queue: str, times: Mapping[str, RunTimes]) -> Taken:
    maker = _Maker(scene, queue, times)
    lanes = [maker.lane(one) for one in scene.waiting]
    shut = (pattern.partition(",")[0] for pattern in scene.rules.shut)
    own = (one.tenant for one in scene.waiting if one.queue == queue)
    tenants = {"", EVERY_TENANT, *own, *(one.tenant for one in scene.workers), *shut}
    newcomers = [maker.newcomer(tenant) for tenant in sorted(tenants)]
    queues = {queue, *(one.queue for one in scene.waiting)}
    made = Snapshot(
        pools=maker.pools,
        running=maker.running(),
        lanes=lanes,
        bounds=maker.bounds,
        turns={name: turns for name in queues if (turns := _turns(scene, name)) != Turns()},
    )
    return Taken(made, newcomers, maker.typical)


def _turns(scene: Scene, queue: str) -> Turns:
    return Turns(scene.rules.fair_queues.get(queue), _turns_of_tasks(scene, queue))


def _turns_of_tasks(scene: Scene, queue: str) -> Mapping[str, float] | None:
    lines = scene.rules.fair_lines
    if not lines:
        return None
    own = (lines.get(f"{one.tenant},{queue}") for one in scene.waiting if one.queue == queue)
    return next((found for found in own if found is not None), lines.get(f"{ANY},{queue}"))


class _Maker:
    def __init__(self, scene: Scene, queue: str, times: Mapping[str, RunTimes]) -> None:
        self._scene = scene
        self._queue = queue
        self._times = times
        self.typical = self._typical_run()
        self.bounds: list[Bound] = []
        self._places: dict[tuple[str, ...], int] = {}
        """Which bound is where."""
        self._crews = _crews(scene.workers)
        self.pools = [Pool(sum(one.slots for one in crew), crew[0].queues) for crew in self._crews]
        self._pool_of = {worker.id: place for place, crew in enumerate(self._crews) for worker in crew}

    def _typical_run(self) -> float:
        waiting = {task_key(one.tenant, one.task) for one in self._scene.waiting}
        running = {task_key(one.job.tenant, one.job.task) for one in self._scene.running}
        seen = [mean(self._times.get(task, RunTimes())) for task in sorted(waiting or running)]
        told = [seconds for seconds in seen if seconds is not None]
        return sum(told) / len(told) if told else UNKNOWN

    def _levels(self, tenant: str, queue: str) -> Sequence[Level]:
        return self._scene.rules.tiers.get(f"{tenant},{queue}", ())

    def lane(self, one: Waiting) -> Lane:
        workers = known(self._scene, one)
        levels = self._levels(one.tenant, one.queue)
        level = _level(levels, class_of(one.group))
        bounds = [*self._at_levels(f"{one.tenant},{one.queue}", levels[1 : level + 1]), *self._in_buckets(one.group)]
        return Lane(
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

    def newcomer(self, tenant: str) -> Lane:
        workers = [
            one
            for one in self._scene.workers
            if self._queue in one.queues and (EVERY_TENANT in (tenant, one.tenant) or one.tenant == tenant)
        ]
        lacks = None if workers else Why.WORKER
        return Lane(
            [(0, LAST, newcomer(tenant))],
            0.0,
            tenant,
            opens=self._opens(tenant, self._queue, task=""),
            lacks=lacks,
            queue=self._queue,
            pools=self._pools(workers),
        )

    def _pools(self, workers: Sequence[Worker]) -> tuple[int, ...]:
        return tuple(sorted({self._pool_of[worker.id] for worker in workers}))

    def _seconds(self, one: Waiting) -> float:
        levels, kind = self._levels(one.tenant, one.queue), class_of(one.group)
        if levels and kind:
            return levels[_level(levels, kind)].seconds
        learned = mean(self._times.get(task_key(one.tenant, one.task), RunTimes()))
        return self.typical if learned is None else learned

    def _opens(self, tenant: str, queue: str, task: str) -> float:
        until = shut_until(self._scene, tenant, queue, task)
        if until is None:
            return 0.0
        if until < FOR_EVER:
            return (until - self._scene.now).total_seconds()
        return NEVER if not self._scene.rules.sorting else SORTING

    def _lacking(self, one: Waiting) -> Why:
        tenants = {worker.tenant for worker in self._scene.workers if one.queue in worker.queues}
        return Why.HANDLER if tenants & {EVERY_TENANT, one.tenant} else Why.WORKER

    def _bound(self, key: tuple[str, ...], bound: Bound) -> int:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self.bounds)
            self.bounds.append(bound)
        return place

    def _at_levels(self, line: str, levels: Sequence[Level]) -> list[int]:
        return [self._bound(("level", line, each.name), Bound(each.name, Why.TIER, places=each.cap)) for each in levels]

    def _in_buckets(self, group: str) -> list[int]:
        names = [bucket for bucket in buckets(group) if allowance_name(bucket) in self._scene.rules.allowances]
        return [self._bound(("bucket", name), self._limit(name)) for name in names]

    def _limit(self, bucket: str) -> Bound:
        name = allowance_name(bucket)
        allowance = self._scene.rules.allowances[name]
        usage = self._scene.usage.get(bucket)
        now, closed = self._scene.now, allowance.closed_until
        paused = closed is not None and closed > now
        opens = (closed if paused else usage and usage.free_at) or now
        return Bound(
            name=name.partition("/")[2],
            why=Why.PAUSE if paused else Why.LIMIT,
            places=allowance.running,
            interval=allowance.per / allowance.count if allowance.count else 0.0,
            burst=allowance.burst or allowance.count or 1,
            opens=NEVER if opens >= FOR_EVER else max(0.0, (opens - now).total_seconds()),
        )

    def running(self) -> list[Busy]:
        """Everybody who has a slot, or a place within a bound. Whose worker is gone has neither for long."""
        live = {worker.id for worker in self._scene.workers}
        own = [record for record in self._scene.running if record.job.worker in live]
        seats = Counter(record.job.worker for record in own)
        elsewhere = [
            Busy(self.typical, pool=self._pool_of[worker.id])
            for worker in self._scene.workers
            for _ in range(worker.running - seats[worker.id])
        ]
        return [*(self._busy(record) for record in own), *elsewhere, *self._strangers(own)]

    def _busy(self, record: Record) -> Busy:
        kind, job = class_of(record.group), record.job
        keys: list[tuple[str, ...]] = [("bucket", bucket) for bucket in buckets(record.group)]
        if kind.startswith(EXPLICIT):
            levels = self._levels(job.tenant, job.queue)
            line = f"{job.tenant},{job.queue}"
            keys += [("level", line, each.name) for each in levels[1 : _level(levels, kind) + 1]]
        found = (self._places.get(key) for key in keys)
        places = tuple(place for place in found if place is not None)
        return Busy(self._remaining(record), places, self._pool_of[job.worker or ""])

    def _remaining(self, record: Record) -> float:
        kind, job, now = class_of(record.group), record.job, self._scene.now
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

    def _strangers(self, own: Sequence[Record]) -> list[Busy]:
        """Jobs of other workers within the same limits."""
        seen = Counter(bucket for record in own for bucket in buckets(record.group))
        return [
            Busy(self.typical, (place,), pool=None)
            for bucket, usage in self._scene.usage.items()
            if (place := self._places.get(("bucket", bucket))) is not None
            for _ in range(usage.running - seen[bucket])
        ]


def _crews(workers: Sequence[Worker]) -> list[list[Worker]]:
    """The workers, those together that take the same jobs."""
    found: dict[tuple[str, tuple[str, ...], tuple[str, ...] | None], list[Worker]] = {}
    for worker in workers:
        tasks = None if worker.tasks is None else tuple(sorted(worker.tasks))
        found.setdefault((worker.tenant, tuple(worker.queues), tasks), []).append(worker)
    return list(found.values())


def _level(levels: Sequence[Level], kind: str) -> int:
    """Where a job counts that waits: a flexible one at the shortest."""
    names = [level.name for level in levels]
    name = kind.removeprefix(EXPLICIT)
    return names.index(name) if name in names else 0
