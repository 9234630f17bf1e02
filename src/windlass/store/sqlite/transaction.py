"""What one call sees inside a transaction: statements, the time, the lanes, the rules in force.

What a call leaves behind (counters, places taken and freed, topics to announce) is collected in `Transaction`, so that
no operation can forget it; `flow.settle` writes it. Also here: how values are stored, how many rows go in one
statement, and which lane a name stands for.
"""

import logging
import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import apsw
import msgspec

from windlass.model.job import FINISHED, State
from windlass.model.names import JobKey, OfTenant, raw_key
from windlass.model.outcome import Verdict
from windlass.model.ports import Clock
from windlass.store.data import MOST_COUNTED
from windlass.store.encoding import to_micros
from windlass.store.flow import ANY, BAR, EXPLICIT, FLEXIBLE, KEY, Rules, TierRule
from windlass.store.sqlite.file import Reserve

log = logging.getLogger("windlass.store")


# --- Values -------------------------------------------------------------------------------------------

STATES = tuple(State)
"""A state is stored as its index here: change this and `schema.sql` together."""

STATE_NUMBERS = {state: number for number, state in enumerate(STATES)}

BLOCKED = STATE_NUMBERS[State.BLOCKED]
SCHEDULED = STATE_NUMBERS[State.SCHEDULED]
QUEUED = STATE_NUMBERS[State.QUEUED]
RUNNING = STATE_NUMBERS[State.RUNNING]
SUCCEEDED = STATE_NUMBERS[State.SUCCEEDED]

ENDED = frozenset(STATE_NUMBERS[state] for state in FINISHED)

VERDICTS = tuple(Verdict)
"""Each has a column in `outcome`."""


def job_key(job: JobKey) -> bytes:
    """The stored key of a job."""
    return raw_key(*job)


def job_keys(jobs: Iterable[OfTenant]) -> list[bytes]:
    return [raw_key(job.id, job.tenant) for job in jobs]


# --- One statement for many rows ----------------------------------------------------------------------
#
# Each step of a statement releases the interpreter's lock and must win it back, which costs up to its switch interval
# (5 ms) while another thread is busy. So a batch takes as few steps as possible: lists of keys are bound as one array,
# and rows as `VALUES` of a few fixed lengths, so that the statements can stay prepared.

Value = int | float | str | bytes | None
"""What a column can hold."""

Row = tuple[Value, ...]

ROWS_MARK = "{rows}"
"""Where a template wants its rows."""

BATCH_SIZES = (256, 64, 16, 4, 1)
"""Rows in one statement: each length is a text of its own, and texts beyond 16 KiB are not kept prepared."""


def int_array(values: Sequence[int]) -> "apsw.CArrayBinding":
    """Bind integers, to be read with `carray(?)`. There must be at least one."""
    return apsw.carray(array("q", values))


def blob_array(values: Sequence[bytes]) -> "apsw.CArrayBinding":
    """Bind byte strings, to be read with `carray(?)`. There must be at least one."""
    return apsw.carray(tuple(values))


def text_array(values: Sequence[str]) -> "apsw.CArrayBinding":
    """Bind texts, to be read with `carray(?)`. There must be at least one."""
    return apsw.carray(tuple(values))


def _batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start = 0
    for size in BATCH_SIZES:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


@lru_cache(maxsize=256)
def _statement(template: str, shared: int, own: int, count: int) -> str:
    places = [f"?{place}" for place in range(1, shared + 1)] + ["?"] * own  # one without a number is the next
    row = f"({','.join(places)})"
    return template.replace(ROWS_MARK, ",".join([row] * count))


# --- The time -----------------------------------------------------------------------------------------
#
# That of the host, except that it never goes back. Were the host's clock set back by an hour, all that waits for a time
# (delays, retries, the leases of workers that died) would wait for an hour more. So the store's time goes on from the
# latest that it was, a tenth slower than the host's until that has caught up: durations are at most a ninth longer
# meanwhile (decision 0075).

SECOND = 1_000_000

NOTED_EVERY = 5 * SECOND
"""How often the time is stored, so that the next process knows it too."""

SET_BACK = SECOND
"""A clock that goes back by less was put right, as clocks are every day."""

LONGEST_GAP = 10 * SECOND
"""Of a store that is ahead of its host: beyond this, the clock was set forward again, or no process ran."""

_READ = "SELECT latest, host FROM clock"
_NOTE = "UPDATE clock SET latest = ?, host = ?"


class StoreClock:
    """The time of one file, as one connection sees it."""

    def __init__(self, sql: apsw.Connection, clock: Clock) -> None:
        self._sql = sql
        self._clock = clock
        self._latest = self._host = 0
        """The latest time of the store that is known, and what the host's clock showed then."""

    def begin(self, *, may_write: bool) -> int:
        """To be called first in a transaction: its time, in microseconds."""
        latest, host = self._sql.execute(_READ).get
        if latest > self._latest:
            self._latest, self._host = latest, host
        now = self._go_on()
        if may_write and (now >= latest + NOTED_EVERY or self._host < host):
            self._sql.execute(_NOTE, (self._latest, self._host))
        return now

    def _go_on(self) -> int:
        """The time now; it never goes back."""
        host = to_micros(self._clock.now())
        passed = host - self._host
        if passed < -SET_BACK:
            back = -passed / SECOND
            log.warning("the clock of this host was set back by %.0f s: the store's time goes on, slower", back)
        gone_on = self._latest + min(max(passed, 0) * 9 // 10, LONGEST_GAP)
        self._latest, self._host = max(host, gone_on), host
        return self._latest


# --- What a lane's name and the rules say -------------------------------------------------------------

LEVEL_MARK = "#"
"""Between the name of a tenant's queue and the number of a tier's level: no limit has it in its name."""

NO_TURNS, TENANT_TURNS, TASK_TURNS = 0, 1, 2
"""Who takes turns, as in `lane.turns`."""


def split_limit_keys(limit_keys: str) -> tuple[str, tuple[str, ...]]:
    """The tier class and the buckets, from the text that `store.flow` describes."""
    tier_class, *buckets = limit_keys.split(BAR)
    return tier_class, tuple(dict.fromkeys(buckets))


def limit_of(bucket: str) -> str:
    return bucket.partition(KEY)[0]


def levels_of(rules: Rules, tenant: str, queue: str) -> Sequence[TierRule]:
    return rules.tiers.get(f"{tenant},{queue}", ()) if rules.tiers else ()


def eligible_levels(tier_class: str, levels: Sequence[TierRule]) -> list[int]:
    """The indexes of the levels at which jobs of a class may run, longest first. Empty = nothing bounds their time."""
    if not levels or not tier_class.startswith((EXPLICIT, FLEXIBLE)):
        return []
    asked = [place for place, level in enumerate(levels) if tier_class == EXPLICIT + level.name]
    return asked or list(reversed(range(len(levels))))


def level_buckets(tenant: str, queue: str, place: int) -> tuple[str, ...]:
    """Where a job that runs at a level holds its places: from the second level to its own."""
    return _level_buckets(f"{tenant},{queue}", place)


@lru_cache(maxsize=1024)
def _level_buckets(name: str, place: int) -> tuple[str, ...]:
    return tuple(f"{name}{LEVEL_MARK}{number + 1}" for number in range(1, place + 1))


def held_levels(rules: Rules, tenant: str, queue: str, assigned: str | None) -> tuple[str, ...]:
    """Where a job that was assigned a tier holds its places under the rules in force."""
    if assigned is None:
        return ()
    for place, level in enumerate(levels_of(rules, tenant, queue)):
        if level.name == assigned:
            return level_buckets(tenant, queue, place)
    return ()


def paused_until(rules: Rules, tenant: str, queue: str, task: str) -> int | None:
    """The end of the longest pause of a lane, even if that time has passed."""
    if not rules.paused_until:
        return None
    names = (tenant, queue, task)
    ends = [to_micros(until) for pattern, until in rules.paused_until.items() if _matches(pattern, names)]
    return max(ends, default=None)


def _matches(pattern: str, names: tuple[str, str, str]) -> bool:
    return all(part in (ANY, name) for part, name in zip(pattern.split(","), names, strict=True))


def turns_of(rules: Rules, tenant: str, queue: str) -> int:
    if task_weights(rules, tenant, queue) is not None:
        return TASK_TURNS
    return TENANT_TURNS if queue in rules.fair_queues else NO_TURNS


def task_weights(rules: Rules, tenant: str, queue: str) -> Mapping[str, float] | None:
    """The weights of the tasks of a tenant's queue, if they take turns."""
    fair = rules.fair_tenant_queues
    return fair.get(f"{tenant},{queue}", fair.get(f"{ANY},{queue}")) if fair else None


# --- Lanes --------------------------------------------------------------------------------------------

LARGEST_CACHE = 100_000
"""Lanes that are remembered."""

_LANE_COLUMNS = "id, tenant_queue, tenant, queue, task, limit_keys"
_LANE_BY_ID = f"SELECT {_LANE_COLUMNS} FROM lane WHERE id = ?"
_LANE_BY_NAME = f"SELECT {_LANE_COLUMNS} FROM lane WHERE tenant = ? AND queue = ? AND task = ? AND limit_keys = ?"
_TENANT_QUEUE = "SELECT id FROM tenant_queue WHERE tenant = ? AND queue = ?"
_NEW_TENANT_QUEUE = "INSERT OR IGNORE INTO tenant_queue (tenant, queue) VALUES (?, ?)"
_NEW_LANE = """
    INSERT INTO lane (tenant_queue, tenant, queue, task, limit_keys, paused_until, turns)
    SELECT id, ?1, ?2, ?3, ?4, ?5, ?6 FROM tenant_queue WHERE tenant = ?1 AND queue = ?2
"""
_DROP_LANE = "DELETE FROM lane WHERE id = ?"
_DROP_TENANT_QUEUE = "DELETE FROM tenant_queue WHERE id = ?"
_DROP_MEMBER = "DELETE FROM member WHERE bucket = ? AND lane = ?"
_NEW_MEMBER = "INSERT INTO member (bucket, lane) VALUES (?, ?)"


class Lane(NamedTuple):
    """One tenant's jobs of one task with the same limit keys in one queue."""

    id: int
    tenant_queue: int
    """The id of its tenant's queue."""
    tenant: str
    queue: str
    task: str
    limit_keys: str
    tier_class: str
    buckets: tuple[str, ...]


class LaneCache:
    """The lanes of one file, as far as this connection has met them.

    An id is never used twice, so it always stands for the same lane. But a lane that was created in a transaction that
    failed does not exist, and a name may stand for another lane when lanes were dropped; hence `clear`.
    """

    def __init__(self, sql: apsw.Connection) -> None:
        self._sql = sql
        self._by_id: dict[int, Lane] = {}
        self._by_name: dict[tuple[str, str, str, str], Lane] = {}
        self._tenant_queues: dict[tuple[str, str], int] = {}

    def get(self, id: int) -> Lane:
        return self._by_id.get(id) or self._remember(self._sql.execute(_LANE_BY_ID, (id,)).get)

    def tenant_queue(self, tenant: str, queue: str) -> int | None:
        """The id of a tenant's queue, if it exists."""
        known = self._tenant_queues.get((tenant, queue))
        if known is None and (found := self._sql.execute(_TENANT_QUEUE, (tenant, queue)).get):
            known = self._tenant_queues[tenant, queue] = found
        return known

    def find(self, tenant: str, queue: str, task: str, limit_keys: str) -> Lane | None:
        name = (tenant, queue, task, limit_keys)
        if known := self._by_name.get(name):
            return known
        found = self._sql.execute(_LANE_BY_NAME, name).get
        return None if found is None else self._remember(found)

    def create(self, tenant: str, queue: str, task: str, limit_keys: str, rules: Rules) -> Lane:
        """A lane that does not exist yet, as the rules want it."""
        self._sql.execute(_NEW_TENANT_QUEUE, (tenant, queue))
        pause, turns = paused_until(rules, tenant, queue, task), turns_of(rules, tenant, queue)
        self._sql.execute(_NEW_LANE, (tenant, queue, task, limit_keys, pause, turns))
        lane = self._remember(self._sql.execute(_LANE_BY_NAME, (tenant, queue, task, limit_keys)).get)
        self._sql.executemany(_NEW_MEMBER, [(bucket, lane.id) for bucket in lane.buckets])
        return lane

    def clear(self) -> None:
        self._by_id.clear()
        self.clear_names()

    def clear_names(self) -> None:
        self._by_name.clear()
        self._tenant_queues.clear()

    def drop(self, lanes: Iterable[Lane]) -> None:
        """Delete lanes that have no jobs."""
        for lane in lanes:
            self._sql.execute(_DROP_LANE, (lane.id,))
            self._sql.executemany(_DROP_MEMBER, [(bucket, lane.id) for bucket in lane.buckets])
            self._by_id.pop(lane.id, None)
            self._by_name.pop((lane.tenant, lane.queue, lane.task, lane.limit_keys), None)

    def drop_tenant_queues(self, found: Iterable[tuple[int, str, str]]) -> None:
        """Delete tenants' queues (id, tenant, queue) that have no lanes."""
        for id, tenant, queue in found:
            self._sql.execute(_DROP_TENANT_QUEUE, (id,))
            self._tenant_queues.pop((tenant, queue), None)

    def _remember(self, row: tuple[Any, ...]) -> Lane:
        id, tenant_queue, tenant, queue, task, limit_keys = row
        # Interned: a queue of the default name *is* the default, which is how answers know what to leave out.
        names = (sys.intern(tenant), sys.intern(queue), sys.intern(task))
        lane = Lane(id, tenant_queue, *names, limit_keys, *split_limit_keys(limit_keys))
        if len(self._by_id) >= LARGEST_CACHE:
            self.clear()
        self._tenant_queues[tenant, queue] = tenant_queue
        self._by_id[id] = self._by_name[tenant, queue, task, limit_keys] = lane
        return lane


# --- Rules --------------------------------------------------------------------------------------------

_VERSION = "SELECT version, sweeps FROM rules"
_RULES = "SELECT data FROM rules"
_PUT_RULES = "UPDATE rules SET version = ?, data = ?"
_NOTE_SWEEP = "UPDATE rules SET sweeps = sweeps + 1"

_pack_rules = msgspec.msgpack.Encoder()
_unpack_rules = msgspec.msgpack.Decoder(Rules)


class RulesCache:
    """The rules in force, as one connection remembers them.

    Another process may have changed them, so the first use in a transaction reads their version. The same row tells
    whether lanes were dropped.
    """

    def __init__(self, sql: apsw.Connection, on_dropped: Callable[[], None]) -> None:
        self._sql = sql
        self._on_dropped = on_dropped
        """Called when another connection has dropped lanes."""
        self._sweeps = 0
        self._rules = Rules()
        self._checked = False

    def expire(self) -> None:
        """A transaction begins: the rules may have changed."""
        self._checked = False

    def clear(self) -> None:
        """A transaction has failed: the rules may have been changed in it."""
        self._rules, self._checked = Rules(), False

    def get(self) -> Rules:
        if not self._checked:
            version, sweeps = self._sql.execute(_VERSION).get
            if sweeps != self._sweeps:
                self._on_dropped()
                self._sweeps = sweeps
            if version != self._rules.version:
                self._rules = _unpack_rules.decode(self._sql.execute(_RULES).get)
            self._checked = True
        return self._rules

    def put(self, rules: Rules) -> None:
        self._sql.execute(_PUT_RULES, (rules.version, _pack_rules.encode(rules)))
        self._rules, self._checked = rules, True

    def note_dropped(self) -> None:
        """Lanes are dropped here: other connections must forget their names."""
        self.get()
        self._sql.execute(_NOTE_SWEEP)
        self._sweeps += 1


# --- Transactions -------------------------------------------------------------------------------------

_ADDED_COUNTS = ", ".join(f"{state} = {state} + ?" for state in STATES)
_ADD_COUNTS = f"UPDATE lane SET {_ADDED_COUNTS} WHERE id = ?"
# Most new jobs do not become the first of their lane. Then this writes nothing: neither the row nor its indexes. A lane
# that had nothing queued is checked again, whatever its bucket was like when it was blocked.
_FIRST_QUEUED = f"FROM job WHERE state = {QUEUED} AND lane = ?1 ORDER BY priority, seq LIMIT 1"
_SET_FIRST = f"""
    UPDATE lane SET blocker = iif(arrival IS NULL, NULL, blocker), (priority, arrival) = (
        SELECT priority, seq {_FIRST_QUEUED}
    ) WHERE id = ?1 AND (priority, arrival) IS NOT (SELECT priority, seq {_FIRST_QUEUED})
"""
_EVERY_STATE = range(len(STATES))

_OUTCOME_COLUMNS = ", ".join(VERDICTS)
_ADDED_OUTCOMES = ", ".join(f"{verdict} = {verdict} + ?" for verdict in VERDICTS)
_ADD_OUTCOMES = f"UPDATE outcome SET {_ADDED_OUTCOMES} WHERE tenant = ? AND queue = ? AND task = ?"
_NEW_OUTCOMES = f"""
    INSERT INTO outcome ({_OUTCOME_COLUMNS}, tenant, queue, task) SELECT ?, ?, ?, ?, ?, ?, ?
    WHERE (SELECT count(*) FROM outcome) < {MOST_COUNTED}
"""


class Transaction:
    """Made for each call; several calls may share one transaction of the file."""

    __slots__ = (
        "_reserve",
        "_rules",
        "_sql",
        "changed_lanes",
        "counts",
        "lanes",
        "now",
        "outcomes",
        "places",
        "topics",
    )

    def __init__(self, sql: apsw.Connection, lanes: LaneCache, rules: RulesCache, reserve: Reserve, now: int) -> None:
        self._sql = sql
        self._rules = rules
        self._reserve = reserve
        self.lanes = lanes
        self.now = now
        """Microseconds since 1970: the only time that the call uses."""
        self.counts: defaultdict[tuple[int, int], int] = defaultdict(int)
        """By lane and number of a state: how many jobs more, or fewer, there are."""
        self.places: defaultdict[str, int] = defaultdict(int)
        """By bucket: how many places more, or fewer, are taken."""
        self.outcomes: defaultdict[tuple[int, Verdict], int] = defaultdict(int)
        """By lane and outcome: how many runs ended so."""
        self.changed_lanes: set[int] = set()
        """Lanes that were blocked, opened or paused, or have another first job: their turns must be checked."""
        self.topics: set[str] = set()
        """To be announced when the transaction is committed."""

    @property
    def rules(self) -> Rules:
        """Those in force."""
        return self._rules.get()

    def put_rules(self, rules: Rules) -> None:
        self._rules.put(rules)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._sql.execute(statement, values).fetchall()

    def column(self, statement: str, *values: Any) -> list[Any]:
        """The first value of each row."""
        return [row[0] for row in self._sql.execute(statement, values)]

    def first(self, statement: str, *values: Any) -> tuple[Any, ...] | None:
        """The first row, if there is one."""
        return self._sql.execute(statement, values).fetchone()

    def run(self, statement: str, *values: Any) -> None:
        self._sql.execute(statement, values)

    def run_all(self, template: str, rows: Sequence[Row], shared: Row = ()) -> None:
        """Run a statement for many rows, in order; `{rows}` in it stands for them, each after what they share."""
        for batch in _batches(rows):
            text = _statement(template, len(shared), len(batch[0]), len(batch))
            self._sql.execute(text, (*shared, *chain.from_iterable(batch)))

    def changed(self) -> int:
        """How many rows the last statement wrote."""
        return self._sql.changes()

    def check_room(self, size: int = 0) -> None:
        """Raise if the disk has no room for so many new bytes."""
        self._reserve.check(size, self._free)

    def _free(self) -> int:
        """Unused bytes inside the file."""
        return int(self._sql.pragma("freelist_count")) * int(self._sql.pragma("page_size"))

    def lane(self, tenant: str, queue: str, task: str, limit_keys: str) -> Lane:
        """Find a lane, or create it."""
        rules = self.rules  # reading them first clears the names of lanes that were dropped
        known = self.lanes.find(tenant, queue, task, limit_keys)
        return known or self.lanes.create(tenant, queue, task, limit_keys, rules)

    def drop_lanes(self, lanes: Sequence[Lane]) -> None:
        """Delete lanes without jobs."""
        if lanes:
            self._rules.note_dropped()
            self.lanes.drop(lanes)

    def drop_tenant_queues(self, found: Sequence[tuple[int, str, str]]) -> None:
        """Delete tenants' queues (id, tenant, queue) without lanes."""
        if found:
            self._rules.note_dropped()
            self.lanes.drop_tenant_queues(found)

    def count(self, lane: int, state: int, more: int) -> None:
        """Note that a lane has so many more jobs in a state."""
        self.counts[lane, state] += more

    def place(self, buckets: Iterable[str], more: int) -> None:
        """Note that a run takes a place in each of these buckets (1) or frees it (-1)."""
        for bucket in buckets:
            self.places[bucket] += more

    def write_counts(self) -> None:
        """Write the counters and first jobs of lanes; notes the lanes with other queued jobs."""
        changed = {lane for lane, state in self.counts if state == QUEUED}
        for lane in {lane for lane, _ in self.counts}:
            self.run(_ADD_COUNTS, *[self.counts.get((lane, state), 0) for state in _EVERY_STATE], lane)
        for lane in changed:
            self.run(_SET_FIRST, lane)
        self.changed_lanes |= changed

    def write_outcomes(self) -> None:
        """Write how runs ended: counters of each task, which stay when its jobs and lanes are gone."""
        tasks: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0] * len(VERDICTS))
        for (id, verdict), count in self.outcomes.items():
            lane = self.lanes.get(id)
            tasks[lane.tenant, lane.queue, lane.task][VERDICTS.index(verdict)] += count
        for task, counts in tasks.items():
            self.run(_ADD_OUTCOMES, *counts, *task)
            if not self.changed():
                self.run(_NEW_OUTCOMES, *counts, *task)
