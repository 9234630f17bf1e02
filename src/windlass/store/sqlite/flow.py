"""Flow control: limits, tiers and turns as claims meet them, and lanes that are blocked by them.

A *bucket* counts the running jobs and the starts of one limit key, or of one level of tiers. A lane behind a full
bucket is *blocked*: no claim looks at it until the bucket has room again. A bucket may block thousands of lanes while
few of them can start, so only some are unblocked at a time; a bucket that left others blocked is *dirty*, and
`unblock_ready` checks it again. `settle` writes what every call leaves behind. Which job asks is chosen in `streams`;
how rules change is in `rules`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from windlass.store.encoding import LATEST, from_micros, span, to_micros
from windlass.store.flow import KEY, BucketUsage, LimitRule, Rules, TierRule
from windlass.store.sqlite.transaction import (
    LEVEL_MARK,
    NO_TURNS,
    TASK_TURNS,
    Lane,
    Transaction,
    eligible_levels,
    int_array,
    level_buckets,
    levels_of,
    limit_of,
    text_array,
    turns_of,
)

# --- Buckets ------------------------------------------------------------------------------------------

NANOS_PER_MICRO = 1000

UNLIMITED = 1000
"""Places of a bucket without a bound."""

UNBOUNDED = LimitRule()

_BUCKET = "SELECT running, held_until, starts, full_at FROM bucket WHERE name = ?"
_START_TIMES = "SELECT n, at FROM start WHERE bucket = ? AND n >= ? ORDER BY n LIMIT ?"

_ADD_PLACES = """
    INSERT INTO bucket (name, running) VALUES {rows} ON CONFLICT DO UPDATE SET running = running + excluded.running
"""
_SET_PACE = """
    INSERT INTO bucket (name, starts, full_at) VALUES (?1, ?2, ?3)
    ON CONFLICT DO UPDATE SET starts = excluded.starts, full_at = excluded.full_at
"""
_ADD_START = "INSERT INTO start (bucket, n, at) VALUES {rows}"
_DROP_STARTS = "DELETE FROM start WHERE bucket = ? AND n < ? AND at <= ?"
_SET_HELD_UNTIL = """
    INSERT INTO bucket (name, held_until) VALUES (?1, ?2)
    ON CONFLICT DO UPDATE SET held_until = max(held_until, excluded.held_until)
"""
_BUCKETS_AFTER = """
    SELECT name, running = 0 AND held_until <= ?2 AND full_at <= ?3 AND wake_at IS NULL AND NOT dirty,
        coalesce((SELECT max(at) FROM start WHERE bucket = name AND n = starts - 1), 0)
    FROM bucket WHERE name > ?1 ORDER BY name LIMIT ?4
"""
_DROP_BUCKET = ("DELETE FROM start WHERE bucket = ?", "DELETE FROM bucket WHERE name = ?")


class Bucket:
    """One bucket as a call finds it, and as it becomes while the call starts jobs."""

    __slots__ = ("_closed_until", "_full_at", "_per", "_rule", "_starts", "_times", "name", "running", "taken")

    def __init__(self, tx: Transaction, name: str, rule: LimitRule, most: int = 1) -> None:
        held_until: int
        self.running: int
        """Places that were taken before."""
        self._starts: int
        self._full_at: int
        self.running, held_until, self._starts, self._full_at = tx.first(_BUCKET, name) or (0, 0, 0, 0)
        closed_until = rule.closed_until
        self.name = name
        self.taken = 0
        """How many jobs the call has started."""
        self._rule = rule
        self._closed_until = max(held_until, 0 if closed_until is None else to_micros(closed_until))
        self._per = span(rule.per)
        self._times: list[int] = []
        """The times of the starts `count` before the next one, before the one after it, and so on, as far as needed."""
        if rule.count is not None and rule.burst is None:
            self._times = _start_times(tx, name, self._starts - rule.count, most)

    @property
    def places(self) -> int:
        """How many more may run."""
        most = self._rule.running
        return UNLIMITED if most is None else most - self.running - self.taken

    def free_at(self, now: int) -> int:
        """When the clock lets the next job start."""
        return max(self._closed_until, self._paced(now))

    def open(self, now: int) -> bool:
        return self.places > 0 and self.free_at(now) <= now

    def take(self, now: int) -> None:
        """Start a job."""
        rule = self._rule
        self.taken += 1
        if rule.burst is not None and rule.count is not None:
            self._full_at = max(self._full_at, now * NANOS_PER_MICRO) + self._interval()

    def write(self, tx: Transaction) -> None:
        """Write the starts of the call; the places are written by `settle`."""
        rule, now = self._rule, tx.now
        if rule.count is None or not self.taken:
            return
        starts = self._starts if rule.burst is not None else self._starts + self.taken
        tx.run(_SET_PACE, self.name, starts, self._full_at)
        if rule.burst is None:
            tx.run_all(_ADD_START, [(self.name, n, now) for n in range(self._starts, starts)])
            tx.run(_DROP_STARTS, self.name, starts - rule.count, now - self._per)

    def _paced(self, now: int) -> int:
        """When its rate allows the next start."""
        rule = self._rule
        if rule.count is None:
            return 0
        if rule.burst is not None:
            return -(-(self._full_at - (rule.burst - 1) * self._interval()) // NANOS_PER_MICRO)
        if self.taken < min(len(self._times), rule.count):
            return self._times[self.taken] + self._per
        return now + self._per if self.taken >= rule.count else 0

    def _interval(self) -> int:
        return self._per * NANOS_PER_MICRO // (self._rule.count or 1)


def _start_times(tx: Transaction, name: str, base: int, most: int) -> list[int]:
    rows = tx.rows(_START_TIMES, name, base, most + 1)
    if not rows:
        return []
    # Those before the first row were deleted because they do not matter any more.
    return [0] * (rows[0][0] - base) + [at for _, at in rows]


def limit_bucket(tx: Transaction, rules: Rules, name: str, most: int = 1) -> Bucket | None:
    """The bucket of a limit, of which at most so many jobs will start; None if nothing bounds it. Not for levels."""
    rule = rules.limit_rules.get(limit_of(name))
    return None if rule is None else Bucket(tx, name, rule, most)


def level_bucket(tx: Transaction, name: str, cap: int) -> Bucket:
    return Bucket(tx, name, LimitRule(running=cap))


def any_bucket(tx: Transaction, rules: Rules, name: str) -> Bucket:
    """The bucket of a limit or of a level, by its name; one that nothing bounds is always open."""
    tiered, mark, number = name.rpartition(LEVEL_MARK)
    if not mark:
        return limit_bucket(tx, rules, name) or Bucket(tx, name, UNBOUNDED)
    levels, place = rules.tiers.get(tiered, ()), int(number) - 1
    return level_bucket(tx, name, levels[place].cap) if place < len(levels) else Bucket(tx, name, UNBOUNDED)


def add_places(tx: Transaction, places: Mapping[str, int]) -> None:
    """Write how many more, or fewer, places are taken."""
    tx.run_all(_ADD_PLACES, [(name, more) for name, more in places.items() if more])


def hold_bucket(tx: Transaction, name: str, seconds: float) -> None:
    tx.run(_SET_HELD_UNTIL, name, tx.now + span(seconds))


def idle_buckets(tx: Transaction, after: str, limit: int) -> list[tuple[str, bool]]:
    """The next buckets after a name, and for each whether its row can be deleted."""
    limit_rules = tx.rules.limit_rules
    return [
        (name, bool(idle) and last <= tx.now - span(limit_rules.get(limit_of(name), UNBOUNDED).per))
        for name, idle, last in tx.rows(_BUCKETS_AFTER, after, tx.now, tx.now * NANOS_PER_MICRO, limit)
    ]


def drop_bucket(tx: Transaction, name: str) -> None:
    for statement in _DROP_BUCKET:
        tx.run(statement, name)


# --- Admission ----------------------------------------------------------------------------------------

MOST_BLOCKED_PER_CLAIM = 10_000
"""Lanes that one claim blocks: its cost is bounded, whatever the limits are."""


class LaneAdmission:
    """Which jobs of one claim may start: caches its buckets, counts what it admits, and writes that at the end."""

    def __init__(self, tx: Transaction, slots: int) -> None:
        self._tx = tx
        self._rules = tx.rules
        self._slots = slots
        self._buckets: dict[str, Bucket | None] = {}
        self._blocked: defaultdict[str, list[int]] = defaultdict(list)
        self._room = MOST_BLOCKED_PER_CLAIM

    @property
    def budget_spent(self) -> bool:
        """Whether it has blocked as many lanes as one claim may."""
        return self._room <= 0

    def admits(self, lane: Lane) -> bool:
        """Whether a job of a lane may start now; if not, the lane will be blocked."""
        if not lane.limit_keys:
            return True
        blocker = self._blocker(lane)
        if blocker is None:
            return True
        self._blocked[blocker].append(lane.id)
        self._room -= 1
        return False

    def start(self, lane: Lane) -> TierRule | None:
        """Take the places of a job of an admitted lane; returns the tier that it is assigned."""
        if not lane.limit_keys:
            return None
        for name in lane.buckets:
            self._take(name)
        place = self._tier(lane)
        if place is None:
            return None
        for name in level_buckets(lane.tenant, lane.queue, place):
            self._take(name)
        return levels_of(self._rules, lane.tenant, lane.queue)[place]

    def write(self) -> None:
        """Write what was admitted, and block the lanes that were not."""
        for bucket in self._buckets.values():
            if bucket is not None:
                bucket.write(self._tx)
        for name, lanes in self._blocked.items():
            bucket = self._buckets[name]
            by_clock = bucket is not None and bucket.places > 0
            block(self._tx, name, lanes, bucket.free_at(self._tx.now) if bucket is not None and by_clock else None)

    def _blocker(self, lane: Lane) -> str | None:
        """The first of a lane's buckets, or of its levels, that has no room."""
        now = self._tx.now
        for name in lane.buckets:
            bucket = self._bucket(name)
            if bucket is not None and not bucket.open(now):
                return name
        places = eligible_levels(lane.tier_class, levels_of(self._rules, lane.tenant, lane.queue))
        if not places or self._tier(lane) is not None:
            return None
        return next(
            name
            for number, name in enumerate(level_buckets(lane.tenant, lane.queue, places[-1]), 1)
            if self._level(lane, number, name).places <= 0
        )

    def _tier(self, lane: Lane) -> int | None:
        """The longest level at which a job may run now, if it is to run at one and there is one."""
        for place in eligible_levels(lane.tier_class, levels_of(self._rules, lane.tenant, lane.queue)):
            names = level_buckets(lane.tenant, lane.queue, place)
            if all(self._level(lane, number, name).places > 0 for number, name in enumerate(names, 1)):
                return place
        return None

    def _bucket(self, name: str) -> Bucket | None:
        if name not in self._buckets:
            self._buckets[name] = limit_bucket(self._tx, self._rules, name, self._slots)
        return self._buckets[name]

    def _level(self, lane: Lane, number: int, name: str) -> Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            cap = levels_of(self._rules, lane.tenant, lane.queue)[number].cap
            bucket = self._buckets[name] = level_bucket(self._tx, name, cap)
        return bucket

    def _take(self, name: str) -> None:
        self._tx.places[name] += 1
        bucket = self._buckets.get(name)
        if bucket is not None:
            bucket.take(self._tx.now)


# --- Blocked lanes ------------------------------------------------------------------------------------

UNBLOCKED_PER_PLACE = 16
"""Lanes unblocked for one place: the workers that claim may not take from all of them."""

BUCKETS_PER_CLAIM = 100
"""Buckets or paused lanes that one claim checks."""

_BLOCKED = "arrival IS NOT NULL AND blocker IS NOT NULL AND paused_until IS NULL"

_BLOCK = "UPDATE lane SET blocker = ?1 WHERE id IN carray(?2)"
_SET_WAKE_AT = """
    INSERT INTO bucket (name, wake_at) VALUES (?1, ?2)
    ON CONFLICT DO UPDATE SET wake_at = excluded.wake_at, dirty = 0
"""
_FIRST_BLOCKED = f"""
    SELECT id FROM lane INDEXED BY lane_blocked
    WHERE blocker = ?1 AND {_BLOCKED} ORDER BY priority, arrival LIMIT ?2
"""
_OPEN_LANES = "UPDATE lane SET blocker = NULL, paused_until = NULL WHERE id IN carray(?)"
_SET_DIRTY = "UPDATE bucket SET dirty = ?2, wake_at = NULL WHERE name = ?1"

_DUE_BUCKETS = "SELECT name FROM bucket WHERE wake_at <= ? ORDER BY wake_at LIMIT ?"
_DIRTY_BUCKETS = "SELECT name FROM bucket WHERE dirty ORDER BY name LIMIT ?"
_PAUSE_ENDED = "SELECT id FROM lane WHERE paused_until <= ? ORDER BY paused_until LIMIT ?"


def block(tx: Transaction, bucket: str, lanes: Sequence[int], wake_at: int | None) -> None:
    """Block lanes until a bucket has room: at a time, or when a place is freed."""
    tx.run(_BLOCK, bucket, int_array(lanes))
    tx.run(_SET_WAKE_AT, bucket, wake_at)
    tx.changed_lanes.update(lanes)


def unblock(tx: Transaction, name: str, limit: int = 0) -> int:
    """Open lanes that a bucket blocks, if it has room: as many as can start, at least a few; or `limit`."""
    if not tx.rows(_FIRST_BLOCKED, name, 1):
        tx.run(_SET_DIRTY, name, 0)
        return 0
    bucket = any_bucket(tx, tx.rules, name)
    if not bucket.open(tx.now):
        tx.run(_SET_WAKE_AT, name, bucket.free_at(tx.now) if bucket.places > 0 else None)
        return 0
    count = limit or max(UNBLOCKED_PER_PLACE, min(bucket.places, BUCKETS_PER_CLAIM))
    found = tx.column(_FIRST_BLOCKED, name, count + 1)
    tx.run(_SET_DIRTY, name, len(found) > count)
    return open_lanes(tx, found[:count])


def open_lanes(tx: Transaction, lanes: Sequence[int]) -> int:
    """Let claims look at these lanes; a claim blocks them again if it must."""
    if lanes:
        tx.run(_OPEN_LANES, int_array(lanes))
        tx.changed_lanes.update(lanes)
        tx.topics.update(f"work/{tx.lanes.get(lane).queue}" for lane in lanes)
    return len(lanes)


def unblock_due(tx: Transaction, rules: Rules, limit: int = BUCKETS_PER_CLAIM) -> int:
    """Open the lanes whose pause or wait is over."""
    opened = 0
    if rules.paused_until:
        opened += open_lanes(tx, tx.column(_PAUSE_ENDED, tx.now, limit))
    if rules.limit_rules:
        for name in tx.column(_DUE_BUCKETS, tx.now, limit):
            opened += unblock(tx, name)
    return opened


def unblock_ready(tx: Transaction, limit: int) -> int:
    """Open the lanes that can be; returns how many."""
    opened = unblock_due(tx, tx.rules, limit)
    for name in tx.column(_DIRTY_BUCKETS, limit):
        if opened >= limit:
            break
        opened += unblock(tx, name, limit - opened)
    return opened


# --- Turns --------------------------------------------------------------------------------------------
#
# Start-time fair queueing, for the tenants of a queue or the tasks of a tenant's queue. Each round has a time; each
# member has the time at which it starts next and the one at which it last finished. The member with the smallest start
# is served one job: the time becomes its start, and its next start is one weighted step later. A member that had no
# open lane comes back at the round's time. When no member waits any more, not even in a blocked lane, the round is
# over, and what members had in it is forgotten.

_OPEN = "arrival IS NOT NULL AND blocker IS NULL AND paused_until IS NULL"

_FIRST_OF_TASK = f"""
    SELECT priority, arrival FROM lane INDEXED BY lane_of_task
    WHERE tenant_queue = ? AND task = ? AND {_OPEN} AND turns = 2 ORDER BY priority, arrival LIMIT 1
"""
_FIRST_OF_TASKS = """
    SELECT priority, arrival FROM turn WHERE tenant_queue = ? AND arrival IS NOT NULL ORDER BY priority, arrival LIMIT 1
"""
_FIRST_OF_TENANT_QUEUE = f"""
    SELECT priority, arrival FROM lane INDEXED BY lane_of_tenant_queue
    WHERE tenant_queue = ? AND {_OPEN} AND turns < 2 ORDER BY priority, arrival LIMIT 1
"""

# A start is set when a member has an open lane again, and stays until it is served.
_SET_TASK = """
    INSERT INTO turn (tenant_queue, task, priority, arrival, start)
    VALUES (?1, ?2, ?3, ?4, (SELECT time FROM tenant_queue WHERE id = ?1))
    ON CONFLICT DO UPDATE SET priority = excluded.priority, arrival = excluded.arrival,
        start = iif(arrival IS NULL, max(
            excluded.start, iif(round = (SELECT number FROM tenant_queue WHERE id = ?1), finish, 0)
        ), start)
"""
_SET_TENANT_QUEUE = """
    UPDATE tenant_queue SET priority = ?2, arrival = ?3, start = iif(arrival IS NULL, coalesce((
        SELECT max(time, iif(tenant_queue.round = round.number, finish, 0)) FROM round
        WHERE round.queue = tenant_queue.queue
    ), finish), start) WHERE id = ?1
"""

_MEMBER_OF_QUEUE = (
    "SELECT 1 FROM tenant_queue INDEXED BY tenant_queue_turn WHERE queue = ? AND arrival IS NOT NULL LIMIT 1"
)
_WAITING_BEHIND = "arrival IS NOT NULL AND (blocker IS NOT NULL OR paused_until IS NOT NULL) LIMIT 1"
_WAITING_IN_TENANT_QUEUE = (
    f"SELECT 1 FROM lane INDEXED BY lane_not_open WHERE queue = ? AND tenant_queue = ? AND {_WAITING_BEHIND}"
)
_WAITING_IN_QUEUE = f"SELECT 1 FROM lane INDEXED BY lane_not_open WHERE queue = ? AND {_WAITING_BEHIND}"
_END_TASK_ROUND = "UPDATE tenant_queue SET time = 0, number = number + 1 WHERE id = ?"
_END_QUEUE_ROUND = "UPDATE round SET time = 0, number = number + 1 WHERE queue = ?"

_QUEUE_TIME = "SELECT time FROM round WHERE queue = ?"
_TASK_TIME = "SELECT time FROM tenant_queue WHERE id = ?"
_SET_QUEUE_TIME = "INSERT INTO round (queue, time) VALUES (?, ?) ON CONFLICT DO UPDATE SET time = excluded.time"
_SET_TASK_TIME = "UPDATE tenant_queue SET time = ?2 WHERE id = ?1"
_SERVE_TENANT = """
    UPDATE tenant_queue SET start = ?3, finish = ?3, round = (SELECT number FROM round WHERE queue = ?1)
    WHERE tenant = ?2 AND queue = ?1
"""
_SERVE_TASK = """
    UPDATE turn SET start = ?3, finish = ?3, round = (SELECT number FROM tenant_queue WHERE id = ?1)
    WHERE tenant_queue = ?1 AND task = ?2
"""

_RESET_TENANTS = (
    "UPDATE tenant_queue SET start = 0, finish = 0, round = 0, priority = NULL, arrival = NULL WHERE queue = ?"
)
_DROP_ROUND = "DELETE FROM round WHERE queue = ?"
_DROP_TASK_TURNS = "DELETE FROM turn WHERE tenant_queue = ?"
_RESET_TASK_TIME = "UPDATE tenant_queue SET time = 0 WHERE id = ?"
_LEAVE_TURNS = "UPDATE tenant_queue SET priority = NULL, arrival = NULL WHERE id = ?"


def refresh_turns(tx: Transaction, lanes: Iterable[int]) -> None:
    """After lanes were opened, emptied or blocked: update which members have open lanes, and their first jobs."""
    rules = tx.rules
    if not (rules.fair_queues or rules.fair_tenant_queues):
        return
    changed = {tx.lanes.get(lane) for lane in lanes}
    tasks = {
        (lane.tenant_queue, lane.task) for lane in changed if turns_of(rules, lane.tenant, lane.queue) == TASK_TURNS
    }
    for tenant_queue, task in sorted(tasks):
        tx.run(_SET_TASK, tenant_queue, task, *(tx.first(_FIRST_OF_TASK, tenant_queue, task) or (None, None)))
    tenant_queues = {lane.tenant_queue: (lane.queue, turns_of(rules, lane.tenant, lane.queue)) for lane in changed}
    for tenant_queue, (queue, turns) in sorted(tenant_queues.items()):
        if turns != NO_TURNS:
            first = tx.first(_FIRST_OF_TASKS if turns == TASK_TURNS else _FIRST_OF_TENANT_QUEUE, tenant_queue)
            tx.run(_SET_TENANT_QUEUE, tenant_queue, *(first or (None, None)))
            if first is None:
                _end_rounds(tx, tenant_queue, queue)


def _end_rounds(tx: Transaction, tenant_queue: int, queue: str) -> None:
    """A tenant's queue has no open lane: if nothing else waits in it, or in the whole queue, that round is over."""
    if tx.first(_WAITING_IN_TENANT_QUEUE, queue, tenant_queue) is None:
        tx.run(_END_TASK_ROUND, tenant_queue)
    if tx.first(_MEMBER_OF_QUEUE, queue) is None and tx.first(_WAITING_IN_QUEUE, queue) is None:
        tx.run(_END_QUEUE_ROUND, queue)


def queue_time(tx: Transaction, queue: str) -> float:
    found = tx.first(_QUEUE_TIME, queue)
    return found[0] if found else 0.0


def task_time(tx: Transaction, tenant_queue: int) -> float:
    found = tx.first(_TASK_TIME, tenant_queue)
    return found[0] if found else 0.0


def serve_tenants(tx: Transaction, queue: str, time: float, finishes: Mapping[str, float]) -> None:
    tx.run(_SET_QUEUE_TIME, queue, time)
    for tenant, finish in finishes.items():
        tx.run(_SERVE_TENANT, queue, tenant, finish)


def serve_tasks(tx: Transaction, tenant_queue: int, time: float, finishes: Mapping[str, float]) -> None:
    tx.run(_SET_TASK_TIME, tenant_queue, time)
    for task, finish in finishes.items():
        tx.run(_SERVE_TASK, tenant_queue, task, finish)


def reset_queue_turns(tx: Transaction, queue: str) -> None:
    """Tenants no longer take turns, or do not take them yet."""
    tx.run(_DROP_ROUND, queue)
    tx.run(_RESET_TENANTS, queue)


def reset_task_turns(tx: Transaction, tenant_queue: int) -> None:
    """Tasks no longer take turns, or do not take them yet."""
    tx.run(_DROP_TASK_TURNS, tenant_queue)
    tx.run(_RESET_TASK_TIME, tenant_queue)


def leave_turns(tx: Transaction, tenant_queue: int) -> None:
    """No turns are taken in this tenant's queue."""
    tx.run(_LEAVE_TURNS, tenant_queue)


# --- The state of limits, for others than claims ------------------------------------------------------

MOST_LANES_CHECKED = 100
"""Open lanes whose buckets are checked one by one."""

_BUCKETS_IN_USE = """
    SELECT name FROM bucket WHERE (name = ?1 OR (name > ?2 AND name < ?3)) AND running > 0
    UNION SELECT bucket FROM member CROSS JOIN lane ON lane.id = member.lane
    WHERE (bucket = ?1 OR (bucket > ?2 AND bucket < ?3)) AND lane.arrival IS NOT NULL
    ORDER BY 1
"""
_LANES_OF_BUCKET = """
    SELECT lane.id, lane.queued FROM member CROSS JOIN lane ON lane.id = member.lane
    WHERE member.bucket = ? AND lane.arrival IS NOT NULL
"""

_NEXT_WAKE = """
    SELECT min(wake_at) FROM bucket WHERE wake_at IS NOT NULL AND EXISTS (
        SELECT 1 FROM lane INDEXED BY lane_blocked
        WHERE blocker = bucket.name AND blocker IS NOT NULL AND arrival IS NOT NULL AND paused_until IS NULL
            AND queue IN carray(?1)
    )
"""
_NEXT_PAUSE_END = (
    "SELECT min(paused_until) FROM lane WHERE paused_until IS NOT NULL AND arrival IS NOT NULL AND queue IN carray(?1)"
)
_OPEN_BOUNDED = f"""
    SELECT id FROM lane INDEXED BY lane_open WHERE queue IN carray(?1) AND arrival IS NOT NULL AND blocker IS NULL
        AND paused_until IS NULL AND turns = 0 AND limit_keys <> '' LIMIT {MOST_LANES_CHECKED}
"""


def usage(tx: Transaction, limit_name: str, most: int) -> list[BucketUsage]:
    cache = BucketCache(tx)
    found: list[BucketUsage] = []
    for name in tx.column(_BUCKETS_IN_USE, limit_name, limit_name + KEY, limit_name + chr(ord(KEY) + 1)):
        if len(found) >= most:
            break
        bucket = cache.bucket(name)
        blocked = sum(queued for lane, queued in tx.rows(_LANES_OF_BUCKET, name) if cache.blockers(tx.lanes.get(lane)))
        if bucket.running or blocked:
            free_at = bucket.free_at(tx.now)
            found.append(BucketUsage(name, bucket.running, blocked, from_micros(free_at) if free_at > tx.now else None))
    return found


def next_opening(tx: Transaction, queues: Sequence[str]) -> float | None:
    if not queues:
        return None
    wanted = tuple(queues)
    times = [
        time for statement in (_NEXT_WAKE, _NEXT_PAUSE_END) for time in tx.column(statement, text_array(wanted)) if time
    ]
    cache = BucketCache(tx)
    for lane in tx.column(_OPEN_BOUNDED, text_array(wanted)):  # perhaps no claim has checked these yet
        blockers = cache.blockers(tx.lanes.get(lane))
        if blockers and all(bucket.places > 0 for bucket in blockers):
            times.append(max(bucket.free_at(tx.now) for bucket in blockers))
    times = [time for time in times if tx.now < time < LATEST]
    return (min(times) - tx.now) / 1_000_000 if times else None


class BucketCache:
    """The buckets that one call has read."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._rules = tx.rules
        self._buckets: dict[str, Bucket] = {}

    def bucket(self, name: str) -> Bucket:
        if name not in self._buckets:
            self._buckets[name] = any_bucket(self._tx, self._rules, name)
        return self._buckets[name]

    def blockers(self, lane: Lane) -> list[Bucket]:
        """The buckets that keep a job of a lane from starting now."""
        places = eligible_levels(lane.tier_class, levels_of(self._rules, lane.tenant, lane.queue))
        levels = level_buckets(lane.tenant, lane.queue, places[-1]) if places else ()
        bounds = [self.bucket(name) for name in (*lane.buckets, *levels)]
        return [bucket for bucket in bounds if not bucket.open(self._tx.now)]


# --- The end of every call ----------------------------------------------------------------------------


def settle(tx: Transaction) -> None:
    """Write counters and places; freed places unblock lanes, and lanes that changed may change turns."""
    if tx.outcomes:
        tx.write_outcomes()
    if tx.counts:
        tx.write_counts()
    if tx.places:
        add_places(tx, tx.places)
        for bucket in [bucket for bucket, more in tx.places.items() if more < 0]:
            unblock(tx, bucket)
    if tx.changed_lanes:
        refresh_turns(tx, tx.changed_lanes)
