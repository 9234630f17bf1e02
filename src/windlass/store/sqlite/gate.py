"""The gate that every job with a group goes through: may it start now, at which tier, and what does that take.

Made for one claim. Remembers the buckets it has met and what it has let through, and writes that down at the end.
Knows buckets and levels; which job asks is chosen in `picking`.
"""

from collections import defaultdict

from windlass.store.flow import Level
from windlass.store.sqlite import buckets
from windlass.store.sqlite.buckets import Bucket
from windlass.store.sqlite.groups import eligible, level_buckets, levels_of
from windlass.store.sqlite.lanes import Lane
from windlass.store.sqlite.parking import park
from windlass.store.sqlite.transaction import Transaction

MOST_PASSED = 10_000
"""Lanes that one claim puts away: it is bounded, whatever has been set up."""


class Gate:
    """What bounds the jobs of one claim."""

    def __init__(self, tx: Transaction, slots: int) -> None:
        self._tx = tx
        self._rules = tx.rules
        self._slots = slots
        self._met: dict[str, Bucket | None] = {}
        self._passed: defaultdict[str, list[int]] = defaultdict(list)
        self._room = MOST_PASSED

    @property
    def weary(self) -> bool:
        """Whether it has put away as many lanes as one claim may."""
        return self._room <= 0

    def admits(self, lane: Lane) -> bool:
        """Whether a job of a lane may start now; if not, the lane is put away."""
        if not lane.group:
            return True
        full = self._full(lane)
        if full is None:
            return True
        self._passed[full].append(lane.id)
        self._room -= 1
        return False

    def start(self, lane: Lane) -> Level | None:
        """Take what a job of an admitted lane takes; the tier that it is assigned."""
        if not lane.group:
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
        """Keep what was let through, and put away what was not."""
        for bucket in self._met.values():
            if bucket is not None:
                bucket.write(self._tx)
        for name, lanes in self._passed.items():
            met = self._met[name]
            by_clock = met is not None and met.places > 0
            park(self._tx, name, lanes, met.free_at(self._tx.now) if met is not None and by_clock else None)

    def _full(self, lane: Lane) -> str | None:
        """The first of a lane's buckets, or of its levels, that has no room."""
        now = self._tx.now
        for name in lane.buckets:
            bucket = self._bucket(name)
            if bucket is not None and not bucket.open(now):
                return name
        places = eligible(lane.kind, levels_of(self._rules, lane.tenant, lane.queue))
        if not places or self._tier(lane) is not None:
            return None
        return next(
            name
            for number, name in enumerate(level_buckets(lane.tenant, lane.queue, places[-1]), 1)
            if self._level(lane, number, name).places <= 0
        )

    def _tier(self, lane: Lane) -> int | None:
        """The longest level at which a job may run now, if it is to run at one and there is one."""
        for place in eligible(lane.kind, levels_of(self._rules, lane.tenant, lane.queue)):
            names = level_buckets(lane.tenant, lane.queue, place)
            if all(self._level(lane, number, name).places > 0 for number, name in enumerate(names, 1)):
                return place
        return None

    def _bucket(self, name: str) -> Bucket | None:
        if name not in self._met:
            self._met[name] = buckets.bucket(self._tx, self._rules, name, self._slots)
        return self._met[name]

    def _level(self, lane: Lane, number: int, name: str) -> Bucket:
        met = self._met.get(name)
        if met is None:
            cap = levels_of(self._rules, lane.tenant, lane.queue)[number].cap
            met = self._met[name] = buckets.level(self._tx, name, cap)
        return met

    def _take(self, name: str) -> None:
        self._tx.places[name] += 1
        met = self._met.get(name)
        if met is not None:
            met.take(self._tx.now)
