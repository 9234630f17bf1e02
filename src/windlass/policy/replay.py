"""Queues while time passes in them: jobs end, places come free, and whoever is first takes them.

Knows only a snapshot. Lanes that nothing lets start are parked with what holds them, and called back one by one when it
has room: so each job costs a logarithm, however many wait.
"""

from collections import Counter
from heapq import heappop, heappush

from windlass.model.estimate import Estimate, Why
from windlass.policy.snapshot import NEVER, Bound, Lane, Snapshot, Turns
from windlass.policy.turns import Key, Order, by_turns, in_order

BY_PRIORITY = Turns()


class Replay:
    """One run of it."""

    def __init__(self, snapshot: Snapshot, ranks: dict[str, int]) -> None:
        self.starts: dict[str, Estimate] = {}
        """When each started, and for what it had waited."""
        self._ranks = ranks
        """Their places in their queues; whoever has none is numbered as it starts."""
        self._started: Counter[str] = Counter()
        """How many of each queue that goes by turns."""
        self._total = sum(len(lane.jobs) for lane in snapshot.lanes)
        self._lanes = snapshot.lanes
        self._now = 0.0
        self._free = [pool.slots for pool in snapshot.pools]
        gates = sorted({(lane.queue, lane.pools) for lane in snapshot.lanes})
        self._gates = {gate: place for place, gate in enumerate(gates, start=len(snapshot.bounds))}
        """Bounds of our own: behind them wait the lanes whose workers have no free slot."""
        self._openers: list[list[int]] = [[] for _ in snapshot.pools]
        for (_, pools), place in self._gates.items():
            for pool in pools:
                self._openers[pool].append(place)
        self._real = len(snapshot.bounds)
        self._bounds = [*snapshot.bounds, *(Bound(why=Why.SLOTS) for _ in gates)]
        self._pools_behind = [pools for _, pools in gates]
        self._taken = [0] * len(self._bounds)
        self._next_start = [bound.opens or -NEVER for bound in self._bounds]
        """When each bound allows another start, as far as its rate goes."""
        self._cursor = [0] * len(snapshot.lanes)
        self._blocker = [-1] * len(snapshot.lanes)
        """The bound that each lane was last held by since its last start."""
        self._eased = [(-NEVER, -1)] * len(snapshot.lanes)
        """When each lane was last let go by a bound that had held it, and which: whoever starts then waited for it."""
        self._origin = [-1] * len(snapshot.lanes)
        """The bound that each lane has come back from."""
        self._gate_of = [self._gates[lane.queue, lane.pools] for lane in snapshot.lanes]
        self._parked: list[dict[int, list[Key]]] = [{} for _ in self._bounds]
        """The lanes behind each bound: by gate, for those of one gate need the same slots."""
        self._ends: list[tuple[float, tuple[int, ...], int]] = []
        self._wakes: list[tuple[float, int]] = []
        """When bounds have time enough behind them for another start."""
        self._openings: list[tuple[float, int]] = []
        """When lanes open."""
        queues = {lane.queue for lane in snapshot.lanes}
        self._ready = {queue: self._order(snapshot.turns.get(queue, BY_PRIORITY)) for queue in queues}
        self._looks_at = [[self._ready[queue] for queue in pool.queues if queue in queues] for pool in snapshot.pools]
        """In which order each pool looks for jobs."""
        for busy in snapshot.running:
            self._occupy(busy.remaining, busy.bounds, -1 if busy.pool is None else busy.pool)
        for index, lane in enumerate(snapshot.lanes):
            if lane.jobs and lane.lacks is None and lane.opens < NEVER:
                heappush(self._openings, (lane.opens, index))

    def _order(self, turns: Turns) -> Order:
        order = in_order(self._key)
        if turns.tasks is not None:
            order = by_turns(turns.tasks, lambda lane: self._lanes[lane].task, order)
        if turns.tenants is not None:
            order = by_turns(turns.tenants, lambda lane: self._lanes[lane].tenant, order)
        return order()

    def _key(self, lane: int) -> tuple[int, int, int] | None:
        jobs, cursor = self._lanes[lane].jobs, self._cursor[lane]
        return (*jobs[cursor][:2], lane) if cursor < len(jobs) else None

    def complete(self) -> bool:
        return len(self.starts) == self._total

    def run(self, only: str | None) -> None:
        """Until all have started that will, or this one has."""
        while (self._ends or self._wakes or self._openings) and not self.complete():
            self._pass_time()
            # Whoever tries may call back one that another pool can take.
            while any(self._fill(pool) for pool, free in enumerate(self._free) if free > 0):
                pass
            if only in self.starts:
                return

    def _pass_time(self) -> None:
        self._now = now = min(some[0][0] for some in (self._ends, self._wakes, self._openings) if some)
        while self._ends and self._ends[0][0] <= now:
            _, bounds, pool = heappop(self._ends)
            for bound in bounds:
                self._taken[bound] -= 1
                self._call_back_all(bound)
            if pool >= 0:
                self._free[pool] += 1
                for gate in self._openers[pool]:
                    self._call_back(gate, gate)
        while self._wakes and self._wakes[0][0] <= now:
            self._call_back_all(heappop(self._wakes)[1])
        while self._openings and self._openings[0][0] <= now:
            self._push(heappop(self._openings)[1])

    def _fill(self, pool: int) -> bool:
        """Give the free slots of a pool to whoever is first for it; whether anything came of it."""
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

    def _first(self, pool: int) -> tuple[int, Order] | None:
        for ready in self._looks_at[pool]:
            if (lane := ready.first()) is not None:
                return lane, ready
        return None

    def _push(self, lane: int) -> None:
        self._ready[self._lanes[lane].queue].push(lane)

    def _try(self, lane: int, ready: Order, pool: int | None) -> None:
        """Start the first job of a lane, or park it with what holds it; without a pool, for want of a slot."""
        origin, self._origin[lane] = self._origin[lane], -1
        blocker = self._gate_of[lane] if pool is None else self._holder(lane)
        if blocker >= 0:
            self._park(lane, blocker, ready)
        elif pool is not None:
            self._start(lane, pool, ready)
        if origin >= 0:
            self._call_back(origin, self._gate_of[lane])

    def _holder(self, lane: int) -> int:
        """The first bound that does not let a lane start now; -1 = all do."""
        for bound in self._lanes[lane].bounds:
            if self._opens(bound) > self._now:
                return bound
        return -1

    def _opens(self, bound: int) -> float:
        """When a bound lets the next job start; never, as long as all places are taken."""
        if bound >= self._real:
            return -NEVER if any(self._free[pool] > 0 for pool in self._pools_behind[bound - self._real]) else NEVER
        places = self._bounds[bound].places
        return NEVER if places is not None and self._taken[bound] >= places else self._next_start[bound]

    def _park(self, lane: int, bound: int, ready: Order) -> None:
        key = self._key(lane)
        ready.drop()
        self._blocker[lane] = bound
        if key is not None:
            heappush(self._parked[bound].setdefault(self._gate_of[lane], []), key)
        self._expect(bound)

    def _expect(self, bound: int) -> None:
        """Come back to a bound that time alone will open."""
        at = self._opens(bound)
        if self._now < at < NEVER:
            heappush(self._wakes, (at, bound))

    def _call_back_all(self, bound: int) -> None:
        """Let one of each kind that waits for a bound try again."""
        if self._parked[bound]:
            for gate in list(self._parked[bound]):
                self._call_back(bound, gate)

    def _call_back(self, bound: int, gate: int) -> None:
        """Let one who waits for a bound try again, if there is room: whoever has tried calls the next."""
        heap = self._parked[bound].get(gate)
        if heap is None:
            return
        if self._opens(bound) > self._now:
            self._expect(bound)
            return
        lane = heappop(heap)[2]
        if not heap:
            del self._parked[bound][gate]
        self._origin[lane] = bound
        self._push(lane)

    def _start(self, index: int, pool: int, ready: Order) -> None:
        lane = self._lanes[index]
        id = lane.jobs[self._cursor[index]][2]
        blocker, self._blocker[index] = self._blocker[index], -1
        if blocker >= 0:
            self._eased[index] = self._now, blocker
        elif self._eased[index][0] == self._now:
            blocker = self._eased[index][1]
        why, name = self._why(lane, blocker)
        self.starts[id] = Estimate(seconds=self._now, position=self._rank(lane, id), why=why, name=name)
        self._cursor[index] += 1
        ready.serve()
        self._occupy(self._now + lane.seconds, lane.bounds, pool)
        for bound in lane.bounds:
            rate = self._bounds[bound]
            if rate.interval:
                # A bound that has rested has saved up starts, but no more than its burst.
                saved = self._now - (rate.burst - 1) * rate.interval
                self._next_start[bound] = max(self._next_start[bound], saved) + rate.interval

    def _rank(self, lane: Lane, id: str) -> int:
        rank = self._ranks.get(id)
        if rank is None:
            self._started[lane.queue] += 1
            rank = self._started[lane.queue]
        return rank

    def _why(self, lane: Lane, blocker: int) -> tuple[Why, str | None]:
        if blocker >= 0:
            return self._bounds[blocker].why, self._bounds[blocker].name or None
        return (lane.why if lane.opens and lane.opens == self._now else Why.SLOTS), None

    def _occupy(self, until: float, bounds: tuple[int, ...], pool: int) -> None:
        heappush(self._ends, (until, bounds, pool))
        for bound in bounds:
            self._taken[bound] += 1
        if pool >= 0:
            self._free[pool] -= 1
