"""Tiers: short jobs do not wait behind long ones.

The jobs of one queue run at levels of time, shortest first. A job at a level counts at all shorter ones too, and at
each level but the shortest (which only the slots bound) no more jobs run than its cap. An *explicit* job asked for its
level and keeps it. A *flexible* job starts at the longest level that has room, counts as the shortest while it waits,
and is shrunk when other jobs need its place. A *yielding* job counts at no level, never waits, and is halted when other
jobs need its slot.

The cycle, while anything waits (`cycle`):

1. From the longest level down to the second: if the first job that is not passed over wants this level or a longer
   one, and the level is full, one flexible job is shrunk: one at the longest level that has any, and not below this
   level. It falls to just below the shortest full level, because the waiting job needs room at all of them. If the
   level is still full, all jobs that want it or a longer one are passed over in this cycle.
2. If a job is left and no slot is free: all flexible jobs fall to the shortest level, which frees nothing at once, and
   one yielding job is halted, whose slot counts as free from now on.
3. If a job is left and a slot is free, the first starts, and the cycle starts over. Otherwise all wait for an end.

Stores start jobs within the same caps. Of a cycle's decisions the engine applies those about running jobs, each with
its `Need`: the store refuses it if the need is over by then.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from msgspec import Struct, field

from windlass.model.queue import Tier

SHORTEST = 0

Draw = Callable[[], float]
"""A number from 0 up to but not including 1: picks among equals."""


class TierClass(Enum):
    """The tier class of a job."""

    EXPLICIT = "explicit"
    FLEXIBLE = "flexible"
    YIELDING = "yielding"


class TierLevel(Struct, frozen=True):
    """One tier."""

    name: str
    seconds: float
    cap: int
    """At most so many jobs run at it or at a longer one; not used for the shortest."""


class TieredRun(Struct, frozen=True):
    """A running job."""

    id: str
    kind: TierClass
    level: int = SHORTEST
    """Where it counts now, from 0 for the shortest."""
    stopping: bool = False
    """Whether it was ordered to stop: its places count as free."""


class TieredWait(Struct, frozen=True):
    """A waiting job. Yielding jobs never wait."""

    id: str
    level: int | None = None
    """The one it asked for; null = flexible."""


class TieredQueue(Struct, frozen=True):
    """A tenant's queue with tiers, as it is now."""

    levels: Sequence[TierLevel]
    slots: int
    """How many of its jobs can run at once."""
    running: Sequence[TieredRun] = ()
    waiting: Sequence[TieredWait] = ()
    """In order."""


class Need(Struct, frozen=True):
    """What a running job makes room for."""

    waiting: str
    """The job that waits."""
    level: int | None = None
    """The level that is full; null = no slot is free."""
    ahead: int = 0
    """How many of the jobs that start in the same round start before it."""


class Decisions(Struct, frozen=True):
    """The result of one round of cycles."""

    shrinks: Mapping[str, int] = field(default_factory=dict)
    """Running jobs that fall to a shorter level, and that level."""
    halts: Sequence[str] = ()
    """Running jobs that are stopped."""
    needs: Mapping[str, Need] = field(default_factory=dict)
    """Of each of these, the last."""
    starts: Mapping[str, int] = field(default_factory=dict)
    """Waiting jobs that start, in order, and the level of each once all have started."""
    passed_by: int | None = None
    """Jobs that want this level or a longer one wait for a cap; null = none."""
    short_of_slots: bool = False
    """Whether a job that is not passed over waits for a slot."""
    free: int = 0
    """Slots left over."""


class Admission(Struct, frozen=True):
    """The decision on yielding jobs that are enqueued."""

    admitted: bool
    ahead: Sequence[str] = ()
    """Waiting jobs that start before them."""
    shrinks: Mapping[str, int] = field(default_factory=dict)


def caps(tiers: Sequence[Tier], slots: int) -> list[int]:
    """The caps of tiers in jobs.

    A share is rounded down. No cap is less than one, or more than that of a shorter tier.
    """
    found: list[int] = []
    for tier in tiers:
        cap = _share(tier.cap, slots) if isinstance(tier.cap, str) else tier.cap
        found.append(max(1, min([cap, *found[-1:]])))
    return found


def _share(percent: str, slots: int) -> int:
    return math.floor(float(percent.removesuffix("%")) * slots / 100)


def cycle(queue: TieredQueue, chance: Draw) -> Decisions:
    """Which jobs make room, start and wait, once nothing more can change."""
    board = _Board(queue, chance)
    passed_by = board.make_room()
    while board.start_first(passed_by):
        passed_by = board.make_room()
    return board.decisions(passed_by)


def admit(queue: TieredQueue, chance: Draw, number: int = 1) -> Admission:
    """Whether so many yielding jobs may start now; if not, the longest flexible job loses one level."""
    decided = cycle(queue, chance)
    ahead = list(decided.starts)
    if decided.free >= number:
        return Admission(admitted=True, ahead=ahead)
    board = _Board(queue, chance)
    level = board.longest_flexible(SHORTEST + 1)
    if level is not None:
        board.shrink_one(level, level - 1)
    return Admission(admitted=False, ahead=ahead, shrinks=board.shrinks)


class _Board:
    """A queue while a cycle is decided."""

    def __init__(self, queue: TieredQueue, chance: Draw) -> None:
        self._chance = chance
        self._levels = queue.levels
        self._caps = [queue.slots, *(level.cap for level in queue.levels[1:])]
        self._taken = [0] * len(self._caps)
        """How many run at each level or a longer one."""
        self._flexible: list[list[str]] = [[] for _ in self._caps]
        self._yielding: list[str] = []
        self._waiting: list[deque[tuple[int, TieredWait]]] = [deque() for _ in self._caps]
        """By the level they count as, with their place in the queue."""
        self._starts: dict[str, int] = {}
        self.shrinks: dict[str, int] = {}
        self._halts: list[str] = []
        self._needs: dict[str, Need] = {}
        for run in queue.running:
            if not run.stopping:
                self._seat(run)
        for place, wait in enumerate(queue.waiting):
            self._waiting[wait.level or SHORTEST].append((place, wait))

    def _seat(self, run: TieredRun) -> None:
        if run.kind is TierClass.YIELDING:
            self._taken[SHORTEST] += 1
            self._yielding.append(run.id)
            return
        self._count(run.level, 1)
        if run.kind is TierClass.FLEXIBLE:
            self._flexible[run.level].append(run.id)

    def _count(self, level: int, change: int, above: int = -1) -> None:
        for each in range(above + 1, level + 1):
            self._taken[each] += change

    def _full(self, level: int) -> bool:
        return self._taken[level] >= self._caps[level]

    def _first(self, passed_by: int) -> int | None:
        """The level of the first job that is not passed over."""
        heads = [(line[0][0], level) for level, line in enumerate(self._waiting[:passed_by]) if line]
        return min(heads)[1] if heads else None

    def _need(self, first: int, level: int | None = None) -> Need:
        return Need(self._waiting[first][0][1].id, level, len(self._starts))

    def make_room(self) -> int:
        """Let running jobs make room for the first; the level from which on jobs are passed over."""
        passed_by = len(self._caps)
        for level in range(len(self._caps) - 1, SHORTEST, -1):
            first = self._first(passed_by)
            if first is None or first < level or not self._full(level):
                continue
            longest = self.longest_flexible(level)
            if longest is not None:
                self.shrink_one(longest, self._below_the_full(level), self._need(first, level))
            if self._full(level):
                passed_by = level
        first = self._first(passed_by)
        if first is not None and self._full(SHORTEST):
            self._give_way(self._need(first))
        return passed_by

    def longest_flexible(self, least: int) -> int | None:
        """The longest level, no shorter than this one, at which flexible jobs run."""
        for level in range(len(self._caps) - 1, least - 1, -1):
            if self._flexible[level]:
                return level
        return None

    def _below_the_full(self, level: int) -> int:
        return next(each for each in range(1, level + 1) if self._full(each)) - 1

    def shrink_one(self, level: int, to: int, need: Need | None = None) -> None:
        self._shrink(self._pick(self._flexible[level]), level, to, need)

    def _shrink(self, id: str, level: int, to: int, need: Need | None) -> None:
        self._count(level, -1, above=to)
        self._flexible[to].append(id)
        if id in self._starts:
            self._starts[id] = to
            return
        self.shrinks[id] = to
        if need is not None:
            self._needs[id] = need

    def _pick(self, some: list[str]) -> str:
        return some.pop(int(self._chance() * len(some)))

    def _give_way(self, need: Need) -> None:
        for level in range(1, len(self._caps)):
            while self._flexible[level]:
                self._shrink(self._flexible[level].pop(0), level, SHORTEST, need)
        if self._yielding:
            id = self._pick(self._yielding)
            self._halts.append(id)
            self._needs[id] = need
            self._taken[SHORTEST] -= 1

    def start_first(self, passed_by: int) -> bool:
        first = self._first(passed_by)
        if first is None or self._full(SHORTEST):
            return False
        wait = self._waiting[first].popleft()[1]
        level = self._longest_with_room() if wait.level is None else wait.level
        self._count(level, 1)
        self._starts[wait.id] = level
        if wait.level is None:
            self._flexible[level].append(wait.id)
        return True

    def _longest_with_room(self) -> int:
        level = SHORTEST
        while level + 1 < len(self._caps) and not self._full(level + 1):
            level += 1
        return level

    def decisions(self, passed_by: int) -> Decisions:
        return Decisions(
            shrinks=self.shrinks,
            halts=self._halts,
            needs=self._needs,
            starts=self._starts,
            passed_by=passed_by if any(self._waiting[passed_by:]) else None,
            short_of_slots=self._first(passed_by) is not None,
            free=max(0, self._caps[SHORTEST] - self._taken[SHORTEST]),
        )
