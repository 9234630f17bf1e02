"""A scene as an estimate sees it: who runs for how much longer, who waits, and what bounds them all.

Decides nothing and reads nothing. What it cannot see (slots that jobs of other queues have, places that they take) it
takes to last as long as an average run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from windlass.engine.experience import task_key
from windlass.engine.rules import FOR_EVER
from windlass.engine.scene import Scene, allowance_name, buckets, class_of, known, shut_until
from windlass.model.estimate import Why
from windlass.model.names import EVERY_TENANT
from windlass.model.worker import Worker
from windlass.policy.estimate import NEVER, Bound, Busy, Lane, Snapshot
from windlass.policy.learning import RunTimes, mean, remaining
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


def snapshot(scene: Scene, queue: str, times: Mapping[str, RunTimes]) -> tuple[Snapshot, list[Lane]]:
    """What is needed to foretell when the jobs of a queue start; and jobs that would come now, which delay nobody."""
    maker = _Maker(scene, queue, times)
    lanes = [maker.lane(one) for one in scene.waiting]
    tenants = {"", EVERY_TENANT, *(one.tenant for one in scene.waiting), *(one.tenant for one in scene.workers)}
    newcomers = [maker.newcomer(tenant) for tenant in sorted(tenants)]
    taken = Snapshot(
        slots=sum(worker.slots for worker in scene.workers),
        running=maker.running(),
        lanes=lanes,
        bounds=maker.bounds,
        tenants=scene.rules.fair_queues.get(queue),
        tasks=_turns_of_tasks(scene, queue),
    )
    return taken, newcomers


def _turns_of_tasks(scene: Scene, queue: str) -> Mapping[str, float] | None:
    lines = scene.rules.fair_lines
    if not lines:
        return None
    own = (lines.get(f"{one.tenant},{queue}") for one in scene.waiting)
    return next((found for found in own if found is not None), lines.get(f"{ANY},{queue}"))


class _Maker:
    def __init__(self, scene: Scene, queue: str, times: Mapping[str, RunTimes]) -> None:
        self._scene = scene
        self._queue = queue
        self._times = times
        self._typical = self._typical_run()
        self.bounds: list[Bound] = []
        self._places: dict[tuple[str, ...], int] = {}
        """Which bound is where."""
        self._reach: dict[int, frozenset[str]] = {}
        """The workers behind a bound that stands for slots which not all jobs can have."""

    def _typical_run(self) -> float:
        seen = [mean(self._times.get(task_key(one.tenant, one.task), RunTimes())) for one in self._scene.waiting]
        told = [seconds for seconds in seen if seconds is not None]
        return sum(told) / len(told) if told else UNKNOWN

    def _levels(self, tenant: str) -> Sequence[Level]:
        return self._scene.rules.tiers.get(f"{tenant},{self._queue}", ())

    def lane(self, one: Waiting) -> Lane:
        workers = known(self._scene, one)
        until = shut_until(self._scene, one)
        level = self._level(one.tenant, class_of(one.group))
        bounds = [*self._reached(workers), *self._at_levels(one.tenant, level), *self._in_buckets(one.group)]
        return Lane(
            jobs=one.jobs,
            seconds=self._seconds(one),
            tenant=one.tenant,
            task=one.task,
            bounds=tuple(bounds),
            opens=0.0 if until is None else self._until_open(until),
            lacks=None if workers else self._lacking(one.tenant),
        )

    def newcomer(self, tenant: str) -> Lane:
        workers = [one for one in self._scene.workers if EVERY_TENANT in (tenant, one.tenant) or one.tenant == tenant]
        bounds = tuple(self._reached(workers))
        lacks = None if workers else Why.WORKER
        return Lane([(0, LAST, newcomer(tenant))], 0.0, tenant, bounds=bounds, lacks=lacks)

    def _seconds(self, one: Waiting) -> float:
        levels, kind = self._levels(one.tenant), class_of(one.group)
        if levels and kind:
            return levels[self._level(one.tenant, kind)].seconds
        learned = mean(self._times.get(task_key(one.tenant, one.task), RunTimes()))
        return self._typical if learned is None else learned

    def _level(self, tenant: str, kind: str) -> int:
        """Where a job counts that waits: a flexible one at the shortest."""
        names = [level.name for level in self._levels(tenant)]
        name = kind.removeprefix(EXPLICIT)
        return names.index(name) if name in names else 0

    def _until_open(self, until: datetime) -> float:
        if until < FOR_EVER:
            return (until - self._scene.now).total_seconds()
        return NEVER if not self._scene.rules.sorting else SORTING

    def _lacking(self, tenant: str) -> Why:
        served = any(worker.tenant in (EVERY_TENANT, tenant) for worker in self._scene.workers)
        return Why.HANDLER if served else Why.WORKER

    def _bound(self, key: tuple[str, ...], bound: Bound) -> int:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self.bounds)
            self.bounds.append(bound)
        return place

    def _reached(self, workers: Sequence[Worker]) -> list[int]:
        if len(workers) == len(self._scene.workers):
            return []
        ids = frozenset(worker.id for worker in workers)
        slots = sum(worker.slots for worker in workers)
        place = self._bound(("workers", *sorted(ids)), Bound(why=Why.SLOTS, places=slots))
        self._reach[place] = ids
        return [place]

    def _at_levels(self, tenant: str, level: int) -> list[int]:
        return [
            self._bound(("level", tenant, each.name), Bound(each.name, Why.TIER, places=each.cap))
            for each in self._levels(tenant)[1 : level + 1]
        ]

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
            Busy(self._typical, self._reached_by(worker.id))
            for worker in self._scene.workers
            for _ in range(worker.running - seats[worker.id])
        ]
        return [*(self._busy(record) for record in own), *elsewhere, *self._strangers(own)]

    def _reached_by(self, worker: str) -> tuple[int, ...]:
        return tuple(place for place, ids in self._reach.items() if worker in ids)

    def _busy(self, record: Record) -> Busy:
        kind, job = class_of(record.group), record.job
        keys: list[tuple[str, ...]] = [("bucket", bucket) for bucket in buckets(record.group)]
        if kind.startswith(EXPLICIT):
            level = self._level(job.tenant, kind)
            keys += [("level", job.tenant, each.name) for each in self._levels(job.tenant)[1 : level + 1]]
        found = (self._places.get(key) for key in keys)
        places = tuple(place for place in found if place is not None)
        return Busy(self._remaining(record), places + self._reached_by(job.worker or ""))

    def _remaining(self, record: Record) -> float:
        kind, job, now = class_of(record.group), record.job, self._scene.now
        elapsed = (now - (job.started_at or now)).total_seconds()
        allowed = (job.deadline - now).total_seconds() if job.deadline else NEVER
        levels = self._levels(job.tenant)
        if levels and kind == YIELDING:
            return 0.0  # it is halted as soon as its slot is needed
        if levels and kind:
            tier = allowed if kind.startswith(EXPLICIT) else levels[0].seconds - elapsed
            return max(0.0, min(allowed, tier))
        learned = remaining(self._times.get(task_key(job.tenant, job.task), RunTimes()), elapsed)
        return max(0.0, min(allowed, self._typical if learned is None else learned))

    def _strangers(self, own: Sequence[Record]) -> list[Busy]:
        """Jobs of other queues within the same limits."""
        seen = Counter(bucket for record in own for bucket in buckets(record.group))
        return [
            Busy(self._typical, (place,), slot=False)
            for bucket, usage in self._scene.usage.items()
            if (place := self._places.get(("bucket", bucket))) is not None
            for _ in range(usage.running - seen[bucket])
        ]
