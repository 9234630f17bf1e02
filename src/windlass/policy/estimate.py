"""How long jobs will wait: the claim's policy, replayed over a snapshot until everything has started.

Running jobs end when they are expected to, and the queue follows in order, held by the same bounds as real claims:
slots, limits, tiers, pauses, turns. With tiers every job is taken to run as long as its tier allows, and a flexible one
as long as the shortest does: then the estimate is an upper bound.

A wait depends on what is ahead. Where a place comes free with a slot (tiers, limits of which one lies within the other)
those behind cannot delay anybody. A rate, or limits that overlap, let them slip in between; `only` leaves out all that
is behind one job, so that what comes later never raises its estimate.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from msgspec import Struct
from msgspec.structs import replace

from windlass.model.estimate import Estimate, Why
from windlass.policy.turns import Order, by_turns, in_order

NEVER = math.inf

Key = tuple[int, int, str]
"""A waiting job: priority, arrival, id."""


class Bound(Struct, frozen=True):
    """Something that holds jobs back."""

    name: str = ""
    why: Why = Why.LIMIT
    places: int | None = None
    """So many run at once; null = any number."""
    interval: float = 0.0
    """Seconds between two starts in the long run; 0 = none need pass."""
    burst: int = 1
    """Starts that may come at once after a rest."""
    opens: float = 0.0
    """Seconds until the next start is allowed."""


class Busy(Struct, frozen=True):
    """A running job."""

    remaining: float
    """Seconds until it ends."""
    bounds: tuple[int, ...] = ()
    """Where it takes a place."""
    slot: bool = True
    """Whether it takes one of the slots; otherwise it runs elsewhere."""


class Lane(Struct, frozen=True):
    """Waiting jobs that are bound by the same and run equally long."""

    jobs: Sequence[Key]
    """In order."""
    seconds: float
    """How long each runs."""
    tenant: str = ""
    task: str = ""
    bounds: tuple[int, ...] = ()
    """Which of the snapshot's."""
    opens: float = 0.0
    """Seconds until it is claimed from."""
    lacks: Why | None = None
    """What keeps its jobs from ever starting."""
    why: Why = Why.PAUSE
    """What it means that it opens later."""


class Snapshot(Struct, frozen=True):
    """What the jobs of a queue wait for, as it is now."""

    slots: int
    running: Sequence[Busy] = ()
    lanes: Sequence[Lane] = ()
    bounds: Sequence[Bound] = ()
    tenants: Mapping[str, float] | None = None
    """If tenants take turns, their weights."""
    tasks: Mapping[str, float] | None = None
    """If tasks take turns, their weights."""


def forecast(snapshot: Snapshot, only: str | None = None) -> dict[str, Estimate]:
    """When the waiting jobs will start, by their ids; `only` = this one alone, whatever is behind it."""
    by_turns = snapshot.tenants is not None or snapshot.tasks is not None
    if only is not None and not by_turns:
        snapshot = _ahead_of(snapshot, only)
    replay = _Replay(snapshot, {} if by_turns else _ranks(snapshot))
    replay.run(only)
    if only is not None:
        return {id: found for id, found in {**_stuck(snapshot, replay), **replay.starts}.items() if id == only}
    return replay.starts | _stuck(snapshot, replay)


def _ranks(snapshot: Snapshot) -> dict[str, int]:
    keys = sorted([key for lane in snapshot.lanes for key in lane.jobs])
    return {key[2]: rank for rank, key in enumerate(keys, start=1)}


def _ahead_of(snapshot: Snapshot, id: str) -> Snapshot:
    last = next((key for lane in snapshot.lanes for key in lane.jobs if key[2] == id), None)
    if last is None:
        return replace(snapshot, lanes=())
    return replace(
        snapshot, lanes=[replace(lane, jobs=lane.jobs[: bisect_right(lane.jobs, last)]) for lane in snapshot.lanes]
    )


def _stuck(snapshot: Snapshot, replay: "_Replay") -> dict[str, Estimate]:
    """The jobs that nothing in sight will start."""
    if replay.complete():
        return {}
    return {
        key[2]: Estimate(position=replay.ranks.get(key[2]), why=why, name=name)
        for lane in snapshot.lanes
        for why, name in (_lacking(snapshot, lane),)
        for key in lane.jobs
        if key[2] not in replay.starts
    }


def _lacking(snapshot: Snapshot, lane: Lane) -> tuple[Why, str | None]:
    if lane.lacks is not None or snapshot.slots <= 0:
        return lane.lacks or Why.WORKER, None
    if lane.opens == NEVER:
        return lane.why, None
    shut = next((snapshot.bounds[each] for each in lane.bounds if snapshot.bounds[each].opens == NEVER), None)
    return (Why.PAUSE, shut.name) if shut is not None else (Why.SLOTS, None)


class _Replay:
    """A queue while time passes in it."""

    def __init__(self, snapshot: Snapshot, ranks: dict[str, int]) -> None:
        self.starts: dict[str, Estimate] = {}
        """When each started, and for what it had waited."""
        self.ranks = ranks
        """Their places in the queue; empty = as they start."""
        self._total = sum(len(lane.jobs) for lane in snapshot.lanes)
        self._lanes = snapshot.lanes
        self._bounds = snapshot.bounds
        self._now = 0.0
        self._free = snapshot.slots - sum(busy.slot for busy in snapshot.running)
        self._taken = [0] * len(snapshot.bounds)
        self._next_start = [bound.opens or -NEVER for bound in snapshot.bounds]
        """When each bound allows another start, as far as its rate goes."""
        self._cursor = [0] * len(snapshot.lanes)
        self._blocker = [-1] * len(snapshot.lanes)
        """The bound that each lane was last held by since its last start."""
        self._eased = [(-NEVER, -1)] * len(snapshot.lanes)
        """When each lane was last let go by a bound that had held it, and which: whoever starts then waited for it."""
        self._origin = [-1] * len(snapshot.lanes)
        """The bound that each lane has come back from."""
        self._parked: list[list[tuple[int, int, int]]] = [[] for _ in snapshot.bounds]
        self._ends: list[tuple[float, tuple[int, ...], bool]] = []
        self._wakes: list[tuple[float, int]] = []
        """When bounds have time enough behind them for another start."""
        self._openings: list[tuple[float, int]] = []
        """When lanes open."""
        self._ready = self._order(snapshot)
        for busy in snapshot.running:
            self._occupy(busy.remaining, busy.bounds, slot=busy.slot)
        for index, lane in enumerate(snapshot.lanes):
            if lane.jobs and lane.lacks is None and lane.opens < NEVER:
                heappush(self._openings, (lane.opens, index))

    def _order(self, snapshot: Snapshot) -> Order:
        order = in_order(self._key)
        if snapshot.tasks is not None:
            order = by_turns(snapshot.tasks, lambda lane: self._lanes[lane].task, order)
        if snapshot.tenants is not None:
            order = by_turns(snapshot.tenants, lambda lane: self._lanes[lane].tenant, order)
        return order()

    def _key(self, lane: int) -> tuple[int, int, int] | None:
        jobs, cursor = self._lanes[lane].jobs, self._cursor[lane]
        return (*jobs[cursor][:2], lane) if cursor < len(jobs) else None

    def complete(self) -> bool:
        return len(self.starts) == self._total

    def run(self, only: str | None) -> None:
        while (self._ends or self._wakes or self._openings) and not self.complete():
            self._pass_time()
            while self._free > 0 and (lane := self._ready.first()) is not None:
                self._try(lane)
            if only in self.starts:
                return

    def _pass_time(self) -> None:
        self._now = now = min(some[0][0] for some in (self._ends, self._wakes, self._openings) if some)
        while self._ends and self._ends[0][0] <= now:
            _, bounds, slot = heappop(self._ends)
            self._free += slot
            for bound in bounds:
                self._taken[bound] -= 1
                self._call_back(bound)
        while self._wakes and self._wakes[0][0] <= now:
            self._call_back(heappop(self._wakes)[1])
        while self._openings and self._openings[0][0] <= now:
            self._ready.push(heappop(self._openings)[1])

    def _try(self, lane: int) -> None:
        origin, self._origin[lane] = self._origin[lane], -1
        for bound in self._lanes[lane].bounds:
            if self._opens(bound) > self._now:
                self._park(lane, bound)
                break
        else:
            self._start(lane)
        if origin >= 0:
            self._call_back(origin)

    def _opens(self, bound: int) -> float:
        """When a bound lets the next job start; never, as long as all places are taken."""
        places = self._bounds[bound].places
        return NEVER if places is not None and self._taken[bound] >= places else self._next_start[bound]

    def _park(self, lane: int, bound: int) -> None:
        key = self._key(lane)
        self._ready.drop()
        self._blocker[lane] = bound
        if key is not None:
            heappush(self._parked[bound], key)
        self._expect(bound)

    def _expect(self, bound: int) -> None:
        """Come back to a bound that time alone will open."""
        at = self._opens(bound)
        if self._now < at < NEVER:
            heappush(self._wakes, (at, bound))

    def _call_back(self, bound: int) -> None:
        """Let one who waits for a bound try again, if there is room: whoever has tried calls the next."""
        if not self._parked[bound]:
            return
        if self._opens(bound) > self._now:
            self._expect(bound)
            return
        lane = heappop(self._parked[bound])[2]
        self._origin[lane] = bound
        self._ready.push(lane)

    def _start(self, index: int) -> None:
        lane = self._lanes[index]
        id = lane.jobs[self._cursor[index]][2]
        rank = self.ranks[id] if self.ranks else len(self.starts) + 1
        blocker, self._blocker[index] = self._blocker[index], -1
        if blocker >= 0:
            self._eased[index] = self._now, blocker
        elif self._eased[index][0] == self._now:
            blocker = self._eased[index][1]
        why, name = self._why(lane, blocker)
        self.starts[id] = Estimate(seconds=self._now, position=rank, why=why, name=name)
        self._cursor[index] += 1
        self._ready.serve()
        self._free -= 1
        self._occupy(self._now + lane.seconds, lane.bounds, slot=True)
        for bound in lane.bounds:
            rate = self._bounds[bound]
            if rate.interval:
                # A bound that has rested has saved up starts, but no more than its burst.
                saved = self._now - (rate.burst - 1) * rate.interval
                self._next_start[bound] = max(self._next_start[bound], saved) + rate.interval

    def _why(self, lane: Lane, blocker: int) -> tuple[Why, str | None]:
        if blocker >= 0:
            return self._bounds[blocker].why, self._bounds[blocker].name or None
        return (lane.why if lane.opens and lane.opens == self._now else Why.SLOTS), None

    def _occupy(self, until: float, bounds: tuple[int, ...], *, slot: bool) -> None:
        heappush(self._ends, (until, bounds, slot))
        for bound in bounds:
            self._taken[bound] += 1
