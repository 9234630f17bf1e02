"""Buckets: how many places are taken in each, when its jobs were started, and whether another one may start now.

Knows allowances, the levels of tiers (which are buckets too) and the clock; knows neither lanes nor jobs.
"""

from collections.abc import Mapping

from windlass.store.flow import Allowance, Rules
from windlass.store.micros import span, to_micros
from windlass.store.sqlite.groups import LEVEL, allowance_of
from windlass.store.sqlite.transaction import Transaction

NANOS = 1000
"""In a microsecond."""

MANY = 1000
"""In the place of a number of starts without a bound."""

UNBOUNDED = Allowance()

_STANDING = "SELECT running, held_until, starts, full_at FROM bucket WHERE name = ?"
_TIMES = "SELECT n, at FROM start WHERE bucket = ? AND n >= ? ORDER BY n LIMIT ?"

_ADD_PLACES = """
    INSERT INTO bucket (name, running) VALUES {rows} ON CONFLICT DO UPDATE SET running = running + excluded.running
"""
_PACE = """
    INSERT INTO bucket (name, starts, full_at) VALUES (?1, ?2, ?3)
    ON CONFLICT DO UPDATE SET starts = excluded.starts, full_at = excluded.full_at
"""
_ADD_START = "INSERT INTO start (bucket, n, at) VALUES {rows}"
_DROP_STARTS = "DELETE FROM start WHERE bucket = ? AND n < ? AND at <= ?"
_HOLD = """
    INSERT INTO bucket (name, held_until) VALUES (?1, ?2)
    ON CONFLICT DO UPDATE SET held_until = max(held_until, excluded.held_until)
"""
_IDLE = """
    SELECT name, running = 0 AND held_until <= ?2 AND full_at <= ?3 AND wake_at IS NULL AND NOT stirred,
        coalesce((SELECT max(at) FROM start WHERE bucket = name AND n = starts - 1), 0)
    FROM bucket WHERE name > ?1 ORDER BY name LIMIT ?4
"""
_DROP = ("DELETE FROM start WHERE bucket = ?", "DELETE FROM bucket WHERE name = ?")


class Bucket:
    """One bucket as a call finds it, and as it becomes while the call starts jobs."""

    __slots__ = ("_allowance", "_closed_until", "_full_at", "_per", "_starts", "_times", "name", "running", "taken")

    def __init__(self, tx: Transaction, name: str, allowance: Allowance, most: int = 1) -> None:
        held_until: int
        self.running: int
        """Places that were taken before."""
        self._starts: int
        self._full_at: int
        self.running, held_until, self._starts, self._full_at = tx.first(_STANDING, name) or (0, 0, 0, 0)
        closed_until = allowance.closed_until
        self.name = name
        self.taken = 0
        """How many jobs the call has started."""
        self._allowance = allowance
        self._closed_until = max(held_until, 0 if closed_until is None else to_micros(closed_until))
        self._per = span(allowance.per)
        self._times: list[int] = []
        """When the starts were that are `count` before the next one, the one after it, and so on, as far as needed."""
        if allowance.count is not None and allowance.burst is None:
            self._times = _times(tx, name, self._starts - allowance.count, most)

    @property
    def places(self) -> int:
        """How many more may run."""
        most = self._allowance.running
        return MANY if most is None else most - self.running - self.taken

    def free_at(self, now: int) -> int:
        """When the clock lets the next job start."""
        return max(self._closed_until, self._paced(now))

    def open(self, now: int) -> bool:
        return self.places > 0 and self.free_at(now) <= now

    def take(self, now: int) -> None:
        """Start a job."""
        allowance = self._allowance
        self.taken += 1
        if allowance.burst is not None and allowance.count is not None:
            self._full_at = max(self._full_at, now * NANOS) + self._interval()

    def write(self, tx: Transaction) -> None:
        """Keep what the call has started, but for the places."""
        allowance, now = self._allowance, tx.now
        if allowance.count is None or not self.taken:
            return
        starts = self._starts if allowance.burst is not None else self._starts + self.taken
        tx.run(_PACE, self.name, starts, self._full_at)
        if allowance.burst is None:
            tx.run_all(_ADD_START, [(self.name, n, now) for n in range(self._starts, starts)])
            tx.run(_DROP_STARTS, self.name, starts - allowance.count, now - self._per)

    def _paced(self, now: int) -> int:
        """When its rate allows the next start."""
        allowance = self._allowance
        if allowance.count is None:
            return 0
        if allowance.burst is not None:
            return -(-(self._full_at - (allowance.burst - 1) * self._interval()) // NANOS)
        if self.taken < min(len(self._times), allowance.count):
            return self._times[self.taken] + self._per
        return now + self._per if self.taken >= allowance.count else 0

    def _interval(self) -> int:
        return self._per * NANOS // (self._allowance.count or 1)


def _times(tx: Transaction, name: str, base: int, most: int) -> list[int]:
    rows = tx.rows(_TIMES, name, base, most + 1)
    if not rows:
        return []
    # Those before the first that is remembered are forgotten because they do not matter any more.
    return [0] * (rows[0][0] - base) + [at for _, at in rows]


def bucket(tx: Transaction, rules: Rules, name: str, most: int = 1) -> Bucket | None:
    """A bucket of which no more than so many are to be started, or None if nothing bounds it. Not for levels."""
    allowance = rules.allowances.get(allowance_of(name))
    return None if allowance is None else Bucket(tx, name, allowance, most)


def level(tx: Transaction, name: str, cap: int) -> Bucket:
    return Bucket(tx, name, Allowance(running=cap))


def any_bucket(tx: Transaction, rules: Rules, name: str) -> Bucket:
    """A bucket or a level, whatever the name says; one that nothing bounds is always open."""
    line, mark, number = name.rpartition(LEVEL)
    if not mark:
        return bucket(tx, rules, name) or Bucket(tx, name, UNBOUNDED)
    levels, place = rules.tiers.get(line, ()), int(number) - 1
    return level(tx, name, levels[place].cap) if place < len(levels) else Bucket(tx, name, UNBOUNDED)


def add_places(tx: Transaction, places: Mapping[str, int]) -> None:
    """Write how many more, or fewer, places are taken."""
    tx.run_all(_ADD_PLACES, [(name, more) for name, more in places.items() if more])


def hold(tx: Transaction, name: str, seconds: float) -> None:
    tx.run(_HOLD, name, tx.now + span(seconds))


def standing(tx: Transaction, after: str, limit: int) -> list[tuple[str, bool]]:
    """The next few after a name, and of each whether it has nothing to remember."""
    allowances = tx.rules.allowances
    return [
        (name, bool(idle) and last <= tx.now - span(allowances.get(allowance_of(name), UNBOUNDED).per))
        for name, idle, last in tx.rows(_IDLE, after, tx.now, tx.now * NANOS, limit)
    ]


def drop(tx: Transaction, name: str) -> None:
    for statement in _DROP:
        tx.run(statement, name)
