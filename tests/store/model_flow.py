"""The specification of flow control: which job may start, at which tier, and whose turn it is.

Everything is found anew from the jobs each time it is asked for; kept is only what no job can tell: the rules, when
jobs of a bucket were started, how long a bucket is on hold, and what each has had of its turns. Nothing is parked.
"""

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Protocol, TypeAlias, TypeVar

from windlass.model.job import Job
from windlass.store.flow import (
    ANY,
    BAR,
    EXPLICIT,
    FLEXIBLE,
    KEY,
    LEAD,
    NEAR,
    BucketUsage,
    LaneBacklog,
    LimitRule,
    Rules,
    TierRule,
)

MICROSECOND = timedelta(microseconds=1)


class Bounded(Protocol):
    """What flow control asks of a job."""

    job: Job
    group: str
    arrival: int


B = TypeVar("B", bound=Bounded)

Lane: TypeAlias = tuple[str, str, str, str]
"""Tenant, queue, task and group."""


@dataclass
class Turns:
    """Who has had how much of a queue, or of a line."""

    time: float = 0.0
    finishes: dict[str, float] = field(default_factory=dict)
    starts: dict[str, float] = field(default_factory=dict)
    """Of those who have something to offer now."""

    def note(self, active: Iterable[str]) -> None:
        self.starts = {
            member: self.starts.get(member, max(self.time, self.finishes.get(member, 0.0))) for member in active
        }

    def choose(self, firsts: Mapping[str, int], warm: Container[str]) -> tuple[str, str]:
        """Who is served, and whose turn it is; `firsts` = when the first job of each arrived."""
        order = sorted(firsts, key=lambda one: (self.starts[one], firsts[one]))[:NEAR]
        near = [one for one in order if one in warm and self.starts[one] < self.starts[order[0]] + LEAD]
        return (near or order)[0], order[0]

    def serve(self, member: str, weight: float, turn: str) -> None:
        """One member is served, though it may be another one's turn."""
        start = self.starts[member]
        self.time = max(self.time, self.starts[turn])
        self.finishes[member] = self.starts[member] = start + 1 / weight


class Bounds:
    """The rules in force, and what has happened under them."""

    def __init__(self) -> None:
        self.rules = Rules()
        self.started: dict[str, list[datetime]] = defaultdict(list)
        self.held: dict[str, datetime] = {}
        self._turns: dict[str, Turns] = defaultdict(Turns)

    def set_rules(self, rules: Rules) -> bool:
        if rules.version != self.rules.version + 1:
            return False
        self.rules = rules
        return True

    def hold(self, bucket: str, until: datetime) -> None:
        self.held[bucket] = max(until, self.held.get(bucket, until))

    # What may start

    def open(self, queued: Sequence[B], running: Sequence[Bounded], now: datetime) -> list[B]:
        """The queued jobs of which each could start now, if it were the only one."""
        lanes = {lane_of(entry): entry for entry in queued}
        free = {lane for lane, entry in lanes.items() if self._may_start(entry, running, now)}
        return [entry for entry in queued if lane_of(entry) in free]

    def _may_start(self, entry: Bounded, running: Sequence[Bounded], now: datetime) -> bool:
        free_at = self._free_at(entry, now)
        return self._has_places(entry, running) and (free_at is None or free_at <= now)

    def _has_places(self, entry: Bounded, running: Sequence[Bounded]) -> bool:
        for bucket, limit_rule in self._bounding(entry.group):
            if limit_rule.running is not None and places(bucket, running) >= limit_rule.running:
                return False
        return bool(self.tiers(entry, running))

    def _free_at(self, entry: Bounded, now: datetime) -> datetime | None:
        """When the clocks allow a start, whatever else does not."""
        times = [self._bucket_free_at(bucket, limit_rule, now) for bucket, limit_rule in self._bounding(entry.group)]
        lane = (entry.job.tenant, entry.job.queue, entry.job.task)
        times += [until for pattern, until in self.rules.paused_until.items() if matches(pattern, lane)]
        return latest(times)

    def _bucket_free_at(self, bucket: str, limit_rule: LimitRule, now: datetime) -> datetime | None:
        paced = next_start(limit_rule, self.started[bucket], now)
        return latest([paced, limit_rule.closed_until, self.held.get(bucket)])

    def _bounding(self, group: str) -> list[tuple[str, LimitRule]]:
        found = [(bucket, self.rules.limit_rules.get(name_of(bucket))) for bucket in buckets_of(group)]
        return [(bucket, limit_rule) for bucket, limit_rule in found if limit_rule is not None]

    # Tiers

    def levels(self, job: Job) -> list[TierRule]:
        return self.rules.tiers.get(f"{job.tenant},{job.queue}", [])

    def tiers(self, entry: Bounded, running: Sequence[Bounded]) -> Sequence[TierRule | None]:
        """Where a job could start now, longest last; none = nowhere, a null = where nothing bounds its time."""
        levels, wanted = self.levels(entry.job), class_of(entry.group)
        if not levels or not wanted.startswith((EXPLICIT, FLEXIBLE)):
            return [None]
        roomy = [level for number, level in enumerate(levels) if self._has_room(entry.job, number, running)]
        if wanted not in [EXPLICIT + level.name for level in levels]:
            return roomy
        return [level for level in roomy if wanted == EXPLICIT + level.name]

    def _has_room(self, job: Job, number: int, running: Sequence[Bounded]) -> bool:
        """Whether all levels from the second to this one have a place."""
        levels = self.levels(job)
        return all(self.taken(job, step, running) < levels[step].cap for step in range(1, number + 1))

    def taken(self, job: Job, number: int, running: Sequence[Bounded]) -> int:
        """How many jobs of the same line run at this level or at a longer one."""
        names = {level.name for level in self.levels(job)[number:]}
        line = (job.tenant, job.queue)
        return sum((e.job.tenant, e.job.queue) == line and e.job.assigned in names for e in running)

    # Turns

    def settle(self, lanes: Iterable[Lane], queued: Sequence[Bounded]) -> None:
        """Note who has something to offer, and forget the turns of what is no longer fair or where nobody waits."""
        active: dict[str, set[str]] = defaultdict(set)
        for tenant, queue, task, _ in lanes:
            if queue in self.rules.fair_queues:
                active[queue].add(tenant)
            if self._fair_line(tenant, queue) is not None:
                active[f"{tenant},{queue}"].add(task)
        waited_for = {place for e in queued for place in (e.job.queue, f"{e.job.tenant},{e.job.queue}")}
        for place in [place for place in self._turns if place not in waited_for or not self.is_fair(place)]:
            del self._turns[place]
        for place in {*self._turns, *active}:
            self._turns[place].note(active[place])

    def first(self, fit: Sequence[B], free: Sequence[Bounded], warm: Sequence[str]) -> B:
        """Of the jobs of one queue that somebody may take, the one to be taken; it counts as served.

        `free` is all that could start, whoever may take it; `warm` what he would rather take.
        """
        queue = fit[0].job.queue
        free = [entry for entry in free if entry.job.queue == queue]
        tenant = min(fit, key=rank).job.tenant
        if queue in self.rules.fair_queues:
            firsts = {one: arrival_of_first(e for e in free if e.job.tenant == one) for one in tenants(fit)}
            offers = {one: self._offer(one, fit, free, warm)[0] for one in firsts}
            turns = self._turns[queue]
            tenant, turn = turns.choose(firsts, {one for one, entry in offers.items() if is_warm(entry, warm)})
            turns.serve(tenant, self.rules.fair_queues[queue].get(tenant, 1.0), turn)
        entry, turn = self._offer(tenant, fit, free, warm)
        weights = self._fair_line(tenant, queue)
        if weights is not None:
            task = entry.job.task
            self._turns[f"{tenant},{queue}"].serve(task, weights.get(task, 1.0), turn)
        return entry

    def _offer(self, tenant: str, fit: Sequence[B], free: Sequence[Bounded], warm: Sequence[str]) -> tuple[B, str]:
        """The job that a tenant gives, and the task whose turn it is."""
        line = [entry for entry in fit if entry.job.tenant == tenant]
        queue = line[0].job.queue
        if self._fair_line(tenant, queue) is None:
            return min(line, key=rank), ""
        firsts = {
            task: arrival_of_first(e for e in free if (e.job.tenant, e.job.task) == (tenant, task))
            for task in {entry.job.task for entry in line}
        }
        liked = {task for task in firsts if f"{tenant}/{task}" in warm}
        task, turn = self._turns[f"{tenant},{queue}"].choose(firsts, liked)
        return min((entry for entry in line if entry.job.task == task), key=rank), turn

    def start(self, entry: Bounded, now: datetime) -> None:
        """Note that a job starts."""
        for bucket, limit_rule in self._bounding(entry.group):
            if limit_rule.count is not None:
                self.started[bucket].append(now)

    def _fair_line(self, tenant: str, queue: str) -> dict[str, float] | None:
        lines = self.rules.fair_tenant_queues
        return lines.get(f"{tenant},{queue}", lines.get(f"{ANY},{queue}"))

    def is_fair(self, place: str) -> bool:
        tenant, comma, queue = place.rpartition(",")
        return self._fair_line(tenant, queue) is not None if comma else queue in self.rules.fair_queues

    # What is told

    def passed_by(self, queued: Sequence[B], running: Sequence[Bounded], now: datetime) -> list[B]:
        return [entry for entry in queued if not self._may_start(entry, running, now)]

    def next_opening(self, queued: Sequence[Bounded], running: Sequence[Bounded], now: datetime) -> float | None:
        by_clock = [entry for entry in self.passed_by(queued, running, now) if self._has_places(entry, running)]
        times = [until for entry in by_clock if (until := self._free_at(entry, now))]
        return (min(times) - now).total_seconds() if times else None

    def usage(
        self, limit_rule: str, queued: Sequence[Bounded], running: Sequence[Bounded], now: datetime
    ) -> list[BucketUsage]:
        passed_by = self.passed_by(queued, running, now)
        buckets = {bucket for entry in (*running, *passed_by) for bucket in buckets_of(entry.group)}
        rule = self.rules.limit_rules.get(limit_rule, LimitRule())
        found = []
        for bucket in sorted(bucket for bucket in buckets if name_of(bucket) == limit_rule):
            free_at = self._bucket_free_at(bucket, rule, now)
            held_up = free_at if free_at and free_at > now else None
            found.append(BucketUsage(bucket, places(bucket, running), places(bucket, passed_by), held_up))
        return found


def waiting(queued: Sequence[Bounded], limit: int) -> list[LaneBacklog]:
    lanes: dict[Lane, list[Bounded]] = defaultdict(list)
    for entry in sorted(queued, key=rank):
        lanes[lane_of(entry)].append(entry)
    return [
        LaneBacklog(*lane, len(entries), [(*rank(entry), entry.job.id) for entry in entries[:limit]])
        for lane, entries in lanes.items()
    ]


def lane_of(entry: Bounded) -> Lane:
    return entry.job.tenant, entry.job.queue, entry.job.task, entry.group


def rank(entry: Bounded) -> tuple[int, int]:
    return entry.job.priority, entry.arrival


def is_warm(entry: Bounded, warm: Sequence[str]) -> bool:
    return f"{entry.job.tenant}/{entry.job.task}" in warm


def arrival_of_first(entries: Iterable[Bounded]) -> int:
    return min(entries, key=rank).arrival


def tenants(entries: Iterable[Bounded]) -> set[str]:
    return {entry.job.tenant for entry in entries}


def class_of(group: str) -> str:
    return group.partition(BAR)[0]


def buckets_of(group: str) -> list[str]:
    return group.split(BAR)[1:]


def name_of(bucket: str) -> str:
    return bucket.partition(KEY)[0]


def places(bucket: str, entries: Sequence[Bounded]) -> int:
    return sum(bucket in buckets_of(entry.group) for entry in entries)


def matches(pattern: str, lane: tuple[str, str, str]) -> bool:
    return all(said in (ANY, name) for said, name in zip(pattern.split(","), lane, strict=True))


def latest(times: Iterable[datetime | None]) -> datetime | None:
    return max((when for when in times if when is not None), default=None)


def next_start(limit_rule: LimitRule, started: Sequence[datetime], now: datetime) -> datetime | None:
    """When the rate of an limit_rule lets the next job start; null = there is no rate."""
    if limit_rule.count is None:
        return None
    per = timedelta(seconds=limit_rule.per)
    if limit_rule.burst is not None:
        return next_token(limit_rule.burst, Fraction(per // MICROSECOND, limit_rule.count), started, now)
    recent = [when for when in started if when > now - per]
    return recent[-limit_rule.count] + per if len(recent) >= limit_rule.count else now


def next_token(burst: int, each: Fraction, started: Sequence[datetime], now: datetime) -> datetime:
    """When there is a token: each start took one; while some are missing, one comes back each so many microseconds."""
    tokens, since = burst, Fraction(0)
    for when in started:
        passed = (when - started[0]) // MICROSECOND
        gained = math.floor((passed - since) / each)
        full = tokens + gained >= burst
        tokens, since = (burst, Fraction(passed)) if full else (tokens + gained, since + gained * each)
        tokens -= 1
    return now if tokens > 0 else started[0] + math.ceil(since + each) * MICROSECOND
