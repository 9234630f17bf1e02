"""How long jobs will wait: the claim order, replayed over a snapshot until every job has started.

Running jobs end when they are expected to, and waiting jobs start in order within the same bounds as real claims:
slots, limits, tiers, pauses, turns. If each job is assumed to run as long as its tier allows, and a flexible one as
long as the shortest tier, what comes out is an upper bound. Runs of unknown length end after all others: of the jobs
that start then, only the place and the reason are known.

A wait depends on the jobs ahead. If a place comes free together with a slot (tiers, nested limits), jobs behind cannot
delay a job. With a rate, or overlapping limits, they can; `only` leaves out all jobs behind one job, so that later jobs
never raise its estimate. Each job costs a logarithm, however many wait.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

from msgspec.structs import replace

from windlass.model.estimate import Estimate, Why
from windlass.policy.fair import ByTurns, InOrder, LaneKey, LaneOrder
from windlass.policy.snapshot import NEVER, Bound, FairTurns, Key, LoadSnapshot, WaitingLane, queues_ahead, what_holds

BY_PRIORITY = FairTurns()


def forecast(snapshot: LoadSnapshot, only: str | None = None) -> dict[str, Estimate]:
    """When the waiting jobs will start, by id; `only` = one job, without the jobs behind it."""
    if only is not None:
        snapshot = _ahead_of(snapshot, only)
    ranks = _ranks(snapshot)
    replay = Replay(snapshot, ranks)
    replay.run(only)
    found = replay.starts | _stuck(snapshot, replay, ranks)
    return found if only is None else {id: found[id] for id in {only} & found.keys()}


def _ranks(snapshot: LoadSnapshot) -> dict[str, int]:
    """The positions of jobs among those of their tenant and queue: a tenant must not learn how many jobs others have.

    With turns, positions are known when the jobs start.
    """
    lines: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for lane in snapshot.lanes:
        if lane.queue not in snapshot.turns:
            lines[lane.tenant, lane.queue] += lane.jobs
    return {key[2]: rank for keys in lines.values() for rank, key in enumerate(sorted(keys), start=1)}


def _ahead_of(snapshot: LoadSnapshot, id: str) -> LoadSnapshot:
    """Without the jobs behind a job: later ones of its queue, and queues that none of its workers prefers."""
    place = next(((key, lane.queue) for lane in snapshot.lanes for key in lane.jobs if key[2] == id), None)
    if place is None:
        return replace(snapshot, lanes=())
    last, own = place
    known = queues_ahead([pool.queues for pool in snapshot.pools], own)

    def cut(lane: WaitingLane) -> WaitingLane:
        if lane.queue != own or own in snapshot.turns:  # turns do not go by arrival
            return lane
        return replace(lane, jobs=lane.jobs[: bisect_right(lane.jobs, last)])

    return replace(snapshot, lanes=[cut(lane) for lane in snapshot.lanes if lane.queue in known])


def _stuck(snapshot: LoadSnapshot, replay: "Replay", ranks: dict[str, int]) -> dict[str, Estimate]:
    """The jobs that cannot start."""
    if replay.complete():
        return {}
    return {
        key[2]: replace(found, position=ranks.get(key[2]))
        for lane in snapshot.lanes
        for found in (what_holds(snapshot, lane) or Estimate(why=Why.SLOTS),)
        for key in lane.jobs
        if key[2] not in replay.starts
    }


class Replay:
    """Queues while time passes: jobs end, places come free, and the first job takes them.

    Lanes that cannot start are blocked behind the bound that holds them, and tried again when it has room.
    """

    def __init__(self, snapshot: LoadSnapshot, ranks: dict[str, int]) -> None:
        self.starts: dict[str, Estimate] = {}
        """When each job started, and what it had waited for."""
        self._ranks = ranks
        """Positions of jobs. Jobs without one are numbered as they start."""
        self._started: Counter[tuple[str, str]] = Counter()
        """Started jobs of each tenant in each queue with turns."""
        self._total = sum(len(lane.jobs) for lane in snapshot.lanes)
        self._lanes = snapshot.lanes
        self._now = 0.0
        self._free = [pool.slots for pool in snapshot.pools]
        gates = sorted({(lane.queue, lane.pools) for lane in snapshot.lanes})
        self._gates = {gate: place for place, gate in enumerate(gates, start=len(snapshot.bounds))}
        """Bounds of the replay: behind them are the lanes whose workers have no free slot."""
        self._openers: list[list[int]] = [[] for _ in snapshot.pools]
        for (_, pools), place in self._gates.items():
            for pool in pools:
                self._openers[pool].append(place)
        self._real = len(snapshot.bounds)
        self._bounds = [*snapshot.bounds, *(Bound(why=Why.SLOTS) for _ in gates)]
        self._pools_behind = [pools for _, pools in gates]
        self._taken = [0] * len(self._bounds)
        self._next_start = [bound.opens or -NEVER for bound in self._bounds]
        """When the rate of each bound allows another start."""
        self._cursor = [0] * len(snapshot.lanes)
        self._blocker = [-1] * len(snapshot.lanes)
        """The bound that last held each lane since its last start."""
        self._eased = [(-NEVER, -1)] * len(snapshot.lanes)
        """When each lane was last released by a bound, and by which: a job that starts then waited for it."""
        self._origin = [-1] * len(snapshot.lanes)
        """The bound that each lane was just released by."""
        self._gate_of = [self._gates[lane.queue, lane.pools] for lane in snapshot.lanes]
        self._blocked: list[dict[int, list[LaneKey]]] = [{} for _ in self._bounds]
        """The lanes behind each bound, by gate: lanes of one gate need the same slots."""
        self._ends: list[tuple[float, tuple[int, ...], int]] = []
        self._wakes: list[tuple[float, int]] = []
        """When bounds allow another start by time alone."""
        self._openings: list[tuple[float, int]] = []
        """When lanes open."""
        queues = {lane.queue for lane in snapshot.lanes}
        self._ready = {queue: self._order(snapshot.turns.get(queue, BY_PRIORITY)) for queue in queues}
        self._looks_at = [[self._ready[queue] for queue in pool.queues if queue in queues] for pool in snapshot.pools]
        """The queues of each pool, in order of preference."""
        for busy in snapshot.running:
            self._occupy(busy.remaining, busy.bounds, -1 if busy.pool is None else busy.pool)
        for index, lane in enumerate(snapshot.lanes):
            if lane.jobs and lane.lacks is None and lane.opens < NEVER:
                heappush(self._openings, (lane.opens, index))

    def _order(self, turns: FairTurns) -> LaneOrder:
        order: Callable[[], LaneOrder] = partial(InOrder, self._key)
        if turns.tasks is not None:
            order = partial(ByTurns, turns.tasks, lambda lane: self._lanes[lane].task, order)
        if turns.tenants is not None:
            order = partial(ByTurns, turns.tenants, lambda lane: self._lanes[lane].tenant, order)
        return order()

    def _key(self, lane: int) -> tuple[int, int, int] | None:
        jobs, cursor = self._lanes[lane].jobs, self._cursor[lane]
        return (*jobs[cursor][:2], lane) if cursor < len(jobs) else None

    def complete(self) -> bool:
        return len(self.starts) == self._total

    def run(self, only: str | None) -> None:
        """Until all jobs have started that can, or this one has."""
        while (self._ends or self._wakes or self._openings) and not self.complete():
            self._advance()
            # A try may release a lane that another pool can take.
            while any(self._fill(pool) for pool, free in enumerate(self._free) if free > 0):
                pass
            if only in self.starts:
                return

    def _advance(self) -> None:
        self._now = now = min(some[0][0] for some in (self._ends, self._wakes, self._openings) if some)
        while self._ends and self._ends[0][0] <= now:
            _, bounds, pool = heappop(self._ends)
            for bound in bounds:
                self._taken[bound] -= 1
                self._release_each(bound)
            if pool >= 0:
                self._free[pool] += 1
                for gate in self._openers[pool]:
                    self._release(gate, gate)
        while self._wakes and self._wakes[0][0] <= now:
            self._release_each(heappop(self._wakes)[1])
        while self._openings and self._openings[0][0] <= now:
            self._push(heappop(self._openings)[1])

    def _fill(self, pool: int) -> bool:
        """Give the free slots of a pool to the first lanes; whether any lane was tried."""
        others, tried = [], False
        while self._free[pool] > 0 and (found := self._first(pool)) is not None:
            lane, ready = found
            if pool in self._lanes[lane].pools:
                self._try(lane, ready, pool)
            elif self._opens(self._gate_of[lane]) > self._now:
                self._try(lane, ready, None)
            else:  # another pool has a slot for it
                ready.drop()
                others.append(lane)
                continue
            tried = True
        for lane in others:
            self._push(lane)
        return tried

    def _first(self, pool: int) -> tuple[int, LaneOrder] | None:
        for ready in self._looks_at[pool]:
            if (lane := ready.first()) is not None:
                return lane, ready
        return None

    def _push(self, lane: int) -> None:
        self._ready[self._lanes[lane].queue].push(lane)

    def _try(self, lane: int, ready: LaneOrder, pool: int | None) -> None:
        """Start the first job of a lane, or block the lane; without a pool, because no slot is free."""
        origin, self._origin[lane] = self._origin[lane], -1
        blocker = self._gate_of[lane] if pool is None else self._holder(lane)
        if blocker >= 0:
            self._block(lane, blocker, ready)
        elif pool is not None:
            self._start(lane, pool, ready)
        if origin >= 0:
            self._release(origin, self._gate_of[lane])

    def _holder(self, lane: int) -> int:
        """The first bound that holds a lane now; -1 = none."""
        for bound in self._lanes[lane].bounds:
            if self._opens(bound) > self._now:
                return bound
        return -1

    def _opens(self, bound: int) -> float:
        """When a bound allows the next start; never while all places are taken."""
        if bound >= self._real:
            return -NEVER if any(self._free[pool] > 0 for pool in self._pools_behind[bound - self._real]) else NEVER
        places = self._bounds[bound].places
        return NEVER if places is not None and self._taken[bound] >= places else self._next_start[bound]

    def _block(self, lane: int, bound: int, ready: LaneOrder) -> None:
        key = self._key(lane)
        ready.drop()
        self._blocker[lane] = bound
        if key is not None:
            heappush(self._blocked[bound].setdefault(self._gate_of[lane], []), key)
        self._schedule_wake(bound)

    def _schedule_wake(self, bound: int) -> None:
        """Schedule a wake-up for a bound that time alone will open."""
        at = self._opens(bound)
        if self._now < at < NEVER:
            heappush(self._wakes, (at, bound))

    def _release_each(self, bound: int) -> None:
        """Release one lane of each gate behind a bound."""
        if self._blocked[bound]:
            for gate in list(self._blocked[bound]):
                self._release(bound, gate)

    def _release(self, bound: int, gate: int) -> None:
        """Release one lane behind a bound, if the bound has room. After its try the next one is released."""
        heap = self._blocked[bound].get(gate)
        if heap is None:
            return
        if self._opens(bound) > self._now:
            self._schedule_wake(bound)
            return
        lane = heappop(heap)[2]
        if not heap:
            del self._blocked[bound][gate]
        self._origin[lane] = bound
        self._push(lane)

    def _start(self, index: int, pool: int, ready: LaneOrder) -> None:
        lane = self._lanes[index]
        id = lane.jobs[self._cursor[index]][2]
        blocker, self._blocker[index] = self._blocker[index], -1
        if blocker >= 0:
            self._eased[index] = self._now, blocker
        elif self._eased[index][0] == self._now:
            blocker = self._eased[index][1]
        why, name = self._why(lane, blocker)
        seconds = self._now if self._now < NEVER else None
        self.starts[id] = Estimate(seconds=seconds, position=self._rank(lane, id), why=why, name=name)
        self._cursor[index] += 1
        ready.serve()
        self._occupy(self._now + lane.seconds, lane.bounds, pool)
        for bound in lane.bounds:
            rate = self._bounds[bound]
            if rate.interval:
                # An idle bound has saved up starts, but at most its burst.
                saved = self._now - (rate.burst - 1) * rate.interval
                self._next_start[bound] = max(self._next_start[bound], saved) + rate.interval

    def _rank(self, lane: WaitingLane, id: str) -> int:
        rank = self._ranks.get(id)
        if rank is None:
            self._started[lane.tenant, lane.queue] += 1
            rank = self._started[lane.tenant, lane.queue]
        return rank

    def _why(self, lane: WaitingLane, blocker: int) -> tuple[Why, str | None]:
        if blocker >= 0:
            return self._bounds[blocker].why, self._bounds[blocker].name or None
        return (lane.why if lane.opens and lane.opens == self._now else Why.SLOTS), None

    def _occupy(self, until: float, bounds: tuple[int, ...], pool: int) -> None:
        heappush(self._ends, (until, bounds, pool))
        for bound in bounds:
            self._taken[bound] += 1
        if pool >= 0:
            self._free[pool] -= 1
