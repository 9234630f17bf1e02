"""Lines with tiers to test policies on: a slow, obviously right scheduler, and a line in which time passes.

The scheduler is written after the words of the specification and knows nothing of `policy.tiers` but its structs; where
chance decides, it asks. The line carries out whatever `cycle` decides, and notes what its jobs live through.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.support.stores import SeededChance
from windlass.policy.snapshot import Bound, BusySlot, LoadSnapshot, SlotPool, WaitingLane
from windlass.policy.tiers import (
    Admission,
    Decisions,
    TierClass,
    TieredQueue,
    TieredRun,
    TieredWait,
    TierLevel,
    admit,
    cycle,
)

FAST, MEDIUM, SLOW = range(3)

Choose = Callable[[Sequence[str]], str]

Outcome = tuple[frozenset[tuple[str, int]], frozenset[str], tuple[tuple[str, int], ...]]
"""Shrinks, halts, starts."""


def three(slow: int, medium: int) -> list[TierLevel]:
    return [TierLevel("fast", 3, 0), TierLevel("medium", 10, medium), TierLevel("slow", 30, slow)]


def flexible(id: str, level: int) -> TieredRun:
    return TieredRun(id, TierClass.FLEXIBLE, level)


def explicit(id: str, level: int) -> TieredRun:
    return TieredRun(id, TierClass.EXPLICIT, level)


def yielding(id: str) -> TieredRun:
    return TieredRun(id, TierClass.YIELDING)


def outcome(decisions: Decisions) -> Outcome:
    return (
        frozenset(decisions.shrinks.items()),
        frozenset(decisions.halts),
        tuple(decisions.starts.items()),
    )


def every_outcome(line: TieredQueue) -> set[Outcome]:
    """All that may come of a line, whatever chance says."""
    return {outcome(Reference(line, choose).decide()) for choose in _all_choices(line)}


def _all_choices(line: TieredQueue) -> Iterator[Choose]:
    script: list[int] = []
    while True:
        sizes: list[int] = []

        def choose(some: Sequence[str], script: list[int] = script, sizes: list[int] = sizes) -> str:
            place = len(sizes)
            sizes.append(len(some))
            if place == len(script):
                script.append(0)
            return sorted(some)[script[place]]

        yield choose
        del script[len(sizes) :]
        while script and script[-1] + 1 == sizes[len(script) - 1]:
            script.pop()
        if not script:
            return
        script[-1] += 1


class Reference:
    """Counts everything again at each step."""

    def __init__(self, line: TieredQueue, choose: Choose) -> None:
        self.line = line
        self.choose = choose
        self.level = {run.id: run.level for run in line.running if not run.stopping}
        self.kind = {run.id: run.kind for run in line.running}
        self.queue = list(line.waiting)
        self.before = dict(self.level)
        self.halts: list[str] = []
        self.starts: list[str] = []

    def running(self, level: int) -> int:
        if level == 0:
            return len(self.level)
        return sum(self.level[id] >= level for id in self.level if self.kind[id] is not TierClass.YIELDING)

    def full(self, level: int) -> bool:
        return self.running(level) >= (self.line.slots if level == 0 else self.line.levels[level].cap)

    def flexible_at(self, level: int) -> list[str]:
        return [id for id, where in self.level.items() if where == level and self.kind[id] is TierClass.FLEXIBLE]

    def decide(self) -> Decisions:
        while self.step():
            pass
        return Decisions(
            shrinks={
                id: self.level[id] for id in self.before if id in self.level and self.level[id] != self.before[id]
            },
            halts=self.halts,
            starts={id: self.level[id] for id in self.starts},
        )

    def step(self) -> bool:
        top = len(self.line.levels) - 1
        ignored = top + 1
        for level in range(top, 0, -1):
            left = self.left(ignored)
            if left and (left[0].level or 0) >= level and self.full(level):
                self.shrink_for(level)
                if self.full(level):
                    ignored = level
        left = self.left(ignored)
        if left and self.full(0):
            self.make_all_give_way()
        if not left or self.full(0):
            return False
        self.start(left[0])
        return True

    def left(self, ignored: int) -> list[TieredWait]:
        return [wait for wait in self.queue if (wait.level or 0) < ignored]

    def shrink_for(self, level: int) -> None:
        for where in range(len(self.line.levels) - 1, level - 1, -1):
            if some := self.flexible_at(where):
                target = level - 1
                while any(self.full(each) for each in range(1, target + 1)):
                    target -= 1
                self.level[self.choose(some)] = target
                return

    def make_all_give_way(self) -> None:
        for where in range(1, len(self.line.levels)):
            for id in self.flexible_at(where):
                self.level[id] = 0
        if some := [id for id in self.level if self.kind[id] is TierClass.YIELDING]:
            halted = self.choose(some)
            del self.level[halted]
            self.halts.append(halted)

    def start(self, first: TieredWait) -> None:
        self.queue.remove(first)
        self.starts.append(first.id)
        self.kind[first.id] = TierClass.FLEXIBLE if first.level is None else TierClass.EXPLICIT
        longest = 0
        while longest + 1 < len(self.line.levels) and not self.full(longest + 1):
            longest += 1
        self.level[first.id] = longest if first.level is None else first.level


@dataclass
class Life:
    """What a job of a moving line lives through."""

    id: str
    kind: TierClass
    wanted: int | None
    needs: float
    """How long it would run if it were let."""
    came: float
    started: float | None = None
    level: int = 0
    ended: float | None = None
    stopped: bool = False
    """Whether it was stopped before it had what it needs."""
    estimates: list[float] = field(default_factory=list)


class MovingLine:
    """A line in which time passes: jobs come, run as long as they need or may, and end."""

    def __init__(self, levels: Sequence[TierLevel], slots: int, seed: int = 0) -> None:
        self.levels = levels
        self.slots = slots
        self.now = 0.0
        self.chance = SeededChance(seed).fraction
        self.lives: dict[str, Life] = {}
        self.queue: list[Life] = []
        self.running: list[Life] = []
        self.order: list[Life] = []
        """As they started."""

    def line(self) -> TieredQueue:
        return TieredQueue(
            self.levels,
            self.slots,
            [TieredRun(one.id, one.kind, one.level) for one in self.running],
            [TieredWait(one.id, one.wanted) for one in self.queue],
        )

    def arrive(self, id: str, wanted: int | None, needs: float) -> Life:
        kind = TierClass.FLEXIBLE if wanted is None else TierClass.EXPLICIT
        life = self.lives[id] = Life(id, kind, wanted, needs, self.now)
        self.queue.append(life)
        return life

    def knock(self, id: str, needs: float) -> Admission:
        """A yielding job comes."""
        answer = admit(self.line(), self.chance)
        self._shrink(answer.shrinks)
        if answer.admitted:
            self._begin(Life(id, TierClass.YIELDING, None, needs, self.now), 0)
        return answer

    def decide(self) -> Decisions:
        found = cycle(self.line(), self.chance)
        self._shrink(found.shrinks)
        for id in found.halts:
            self._end(self.lives[id], stopped=True)
        for id, level in found.starts.items():
            life = self.lives[id]
            self.queue.remove(life)
            self._begin(life, level)
        return found

    def _begin(self, life: Life, level: int) -> None:
        life.started, life.level = self.now, level
        self.lives[life.id] = life
        self.running.append(life)
        self.order.append(life)

    def _shrink(self, shrinks: object) -> None:
        for id, level in dict(shrinks).items():  # type: ignore[call-overload]
            assert self.lives[id].kind is TierClass.FLEXIBLE
            assert level < self.lives[id].level
            self.lives[id].level = level

    def _end(self, life: Life, *, stopped: bool) -> None:
        life.ended, life.stopped = self.now, stopped
        self.running.remove(life)

    def _end_of(self, life: Life) -> float:
        assert life.started is not None
        allowed = float("inf") if life.kind is TierClass.YIELDING else self.levels[life.level].seconds
        return max(life.started + min(life.needs, allowed), self.now)

    def advance_to(self, until: float) -> None:
        """Let time pass, and decide again whenever a job has ended."""
        self.decide()
        while (ends := [self._end_of(one) for one in self.running]) and min(ends) <= until:
            self.now = min(ends)
            for one in [one for one in self.running if self._end_of(one) <= self.now]:
                assert one.started is not None
                self._end(one, stopped=self.now - one.started < one.needs - 1e-9)
            self.decide()
        self.now = until

    def snapshot(self) -> LoadSnapshot:
        """What an estimate is made from: each at the time of its tier, a flexible one at the shortest's."""
        bounds = [Bound(level.name, places=level.cap) for level in self.levels[1:]]
        running = []
        for one in self.running:
            assert one.started is not None
            level = one.level if one.kind is TierClass.EXPLICIT else 0
            allowed = 0.0 if one.kind is TierClass.YIELDING else self.levels[level].seconds
            running.append(BusySlot(max(0.0, one.started + allowed - self.now), tuple(range(level))))
        lanes = [
            WaitingLane(
                [(0, place, one.id)], self.levels[one.wanted or 0].seconds, bounds=tuple(range(one.wanted or 0))
            )
            for place, one in enumerate(self.queue)
        ]
        return LoadSnapshot([SlotPool(self.slots)], running, lanes, bounds)


def random_line(chance: random.Random) -> TieredQueue:
    """A small line in any state, even in one that no cycle would lead to."""
    count = chance.randint(1, 5)
    slots = chance.randint(1, 6)
    sizes = sorted((chance.randint(1, slots) for _ in range(count)), reverse=True)
    levels = [TierLevel(f"l{place}", 3.0**place, cap) for place, cap in enumerate(sizes)]
    running = [
        TieredRun(
            f"r{place}",
            chance.choice((TierClass.EXPLICIT, TierClass.FLEXIBLE, TierClass.FLEXIBLE, TierClass.YIELDING)),
            chance.randrange(count),
            chance.random() < 0.1,
        )
        for place in range(chance.randint(0, slots))
    ]
    running = [
        TieredRun(run.id, run.kind, 0, run.stopping) if run.kind is TierClass.YIELDING else run for run in running
    ]
    waiting = [
        TieredWait(f"w{place}", chance.choice((None, chance.randrange(count)))) for place in range(chance.randint(0, 5))
    ]
    return TieredQueue(levels, slots, running, waiting)
