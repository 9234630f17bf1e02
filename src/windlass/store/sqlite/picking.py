"""Which jobs a worker gets: the lanes of a queue as streams of jobs, merged by priority and arrival, or by turns.

A stream tells its first job and lets it be taken; a merge of streams is a stream again. Streams are opened only as they
are needed, so that a claim costs the same however many lanes and jobs wait behind. Nothing is written here; where the
streams come from is for `sources` to know.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from windlass.store.flow import LEAD, NEAR, Level
from windlass.store.sqlite.gate import Gate
from windlass.store.sqlite.lanes import Lane
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import QUEUED

Place = tuple[int, int]
"""Priority and arrival of a job: sorts as jobs are claimed."""

_NEXT = f"""
    SELECT priority, seq FROM job WHERE state = {QUEUED} AND lane = ?1 AND (priority, seq) > (?2, ?3)
    ORDER BY priority, seq LIMIT ?4
"""

_FIRST = f"""
    SELECT priority, seq, lane FROM job WHERE state = {QUEUED} AND lane = ?1 AND (priority, seq) <= (?2, ?3)
    ORDER BY priority, seq LIMIT ?4
"""

AFTER_ALL = (2**31, 0)
"""A priority and arrival beyond every job's."""

AHEAD = 16
"""Jobs of one lane that are looked up at once: most lanes give few."""


class Pick(NamedTuple):
    """A job that is taken."""

    seq: int
    lane: int
    tier: Level | None


class Stream(Protocol):
    """Jobs, one after the other."""

    def first(self) -> Place | None:
        """The job that comes next and may start now; null = there is none any more."""
        ...

    def earliest(self) -> Place | None:
        """The first by priority and arrival, whoever's turn it is; asked for after `first`."""
        ...

    def lane(self) -> Lane:
        """The lane of the first; asked for right before."""
        ...

    def take(self) -> Pick:
        """Take the first; asked for right before."""
        ...


class Strand:
    """The jobs of one lane."""

    def __init__(self, tx: Transaction, gate: Gate, lane: Lane, first: Place) -> None:
        self._tx = tx
        self._gate = gate
        self._lane = lane
        self._last = first
        self._jobs = [first]
        """Looked up and not taken, last first."""
        self._ended = False

    def first(self) -> Place | None:
        if self._ended:
            return None
        if not self._jobs:
            self._jobs = [(row[0], row[1]) for row in self._tx.rows(_NEXT, self._lane.id, *self._last, AHEAD)]
            self._jobs.reverse()
        # A lane that has no more jobs need not be put away.
        if not self._jobs or not self._gate.admits(self._lane):
            self._ended = True
            return None
        return self._jobs[-1]

    def earliest(self) -> Place | None:
        return self.first()

    def lane(self) -> Lane:
        return self._lane

    def take(self) -> Pick:
        self._last = self._jobs.pop()
        return Pick(self._last[1], self._lane.id, self._gate.start(self._lane))


class Merged:
    """Several streams as one, by priority and arrival. They come in the order of their first jobs."""

    def __init__(self, streams: Iterator[tuple[Place, Stream]]) -> None:
        self._coming = streams
        self._next: tuple[Place, Stream] | None = None
        self._heap: list[tuple[Place, int, Stream]] = []
        self._met = 0
        self._begun = False

    def first(self) -> Place | None:
        if not self._begun:
            self._next, self._begun = next(self._coming, None), True
        while True:
            while self._next is not None and (not self._heap or self._next[0] < self._heap[0][0]):
                self._met += 1
                heapq.heappush(self._heap, (self._next[0], self._met, self._next[1]))
                self._next = next(self._coming, None)
            if not self._heap:
                return None
            place, number, stream = self._heap[0]
            found = stream.first()
            if found == place:
                return found
            if found is None:
                heapq.heappop(self._heap)
            else:
                heapq.heapreplace(self._heap, (found, number, stream))

    def earliest(self) -> Place | None:
        return self.first()

    def lane(self) -> Lane:
        return self._heap[0][2].lane()

    def take(self) -> Pick:
        return self._heap[0][2].take()


class Member(NamedTuple):
    """One who takes turns."""

    name: str
    start: float
    place: Place
    """Of its first job."""
    stream: Stream
    other: Place | None
    """Its first job among those that the worker cannot take, which has a say in whose turn it is."""
    tenant: str
    task: str | None = None
    """If tasks take turns."""


Tag = tuple[float, int]
"""Start and arrival: the least has its turn."""


class Warm:
    """What a worker would rather run, as `tenant/task`."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._tenants = frozenset(name.partition("/")[0] for name in self._names)

    def has(self, lane: Lane) -> bool:
        return f"{lane.tenant}/{lane.task}" in self._names

    def may_have(self, tenant: str, task: str | None) -> bool:
        return tenant in self._tenants if task is None else f"{tenant}/{task}" in self._names


class Turns:
    """Several streams as one, by turns. They come in the order of their tags."""

    def __init__(
        self, members: Iterator[Member], time: float, weights: Mapping[str, float], warm: Warm | None = None
    ) -> None:
        self._coming = members
        self._next = next(members, None)
        self._weights = weights
        self._warm = warm
        self._chosen: Member | None = None
        self._heap: list[tuple[Tag, int, Member]] = []
        self._met = 0
        self._asked: set[str] = set()
        """Those whose first job has been looked for; of the others it is known."""
        self.time = time
        self.finishes: dict[str, float] = {}
        """Of those that were served."""

    def first(self) -> Place | None:
        while True:
            while (coming := self._next) is not None and (
                not self._heap or (coming.start, coming.place[1]) < self._heap[0][0]
            ):
                self._push(coming)
            if not self._heap:
                return None
            tag, number, member = self._heap[0]
            self._asked.add(member.name)
            found = member.stream.first()
            if found is None:
                heapq.heappop(self._heap)
                continue
            own = min(place for place in (member.stream.earliest(), member.other) if place is not None)
            now = (self._start(member), own[1])
            if now == tag:
                self._chosen = member
                return found if self._warm is None else self._preferred(self._warm, found, now[0])
            heapq.heapreplace(self._heap, (now, number, member))

    def _preferred(self, warm: Warm, found: Place, turn: float) -> Place:
        """Of those whose turn comes next, the first for whom the worker is warm; else the one whose turn it is."""
        pushed = 0
        while (coming := self._next) is not None and coming.start < turn + LEAD and pushed < NEAR:
            self._push(coming)
            pushed += 1
        near = heapq.nsmallest(NEAR, ((self._start(one), tag[1], number, one) for tag, number, one in self._heap))
        for start, _, _, member in near:
            if start >= turn + LEAD or not warm.may_have(member.tenant, member.task):
                continue
            self._asked.add(member.name)
            place = member.stream.first()
            if place is not None and warm.has(member.stream.lane()):
                self._chosen = member
                return place
        return found

    def _start(self, member: Member) -> float:
        return self.finishes.get(member.name, member.start)

    def earliest(self) -> Place | None:
        while self._next is not None:
            self._push(self._next)
        places = [member.stream.first() if member.name in self._asked else member.place for _, _, member in self._heap]
        return min((place for place in places if place is not None), default=None)

    def _push(self, member: Member) -> None:
        self._met += 1
        heapq.heappush(self._heap, ((member.start, member.place[1]), self._met, member))
        self._next = next(self._coming, None)

    def take(self) -> Pick:
        member = self._chosen or self._heap[0][2]
        # The time is that of whoever's turn it is: being preferred delays nobody who is yet to come.
        self.time = max(self.time, self._start(self._heap[0][2]))
        self.finishes[member.name] = self._start(member) + 1 / self._weights.get(member.name, 1.0)
        return member.stream.take()

    def lane(self) -> Lane:
        return (self._chosen or self._heap[0][2]).stream.lane()


def first_jobs(tx: Transaction, heads: Sequence[tuple[Any, ...]], room: int) -> list[Pick]:
    """The first jobs of several lanes taken together, if nothing bounds them; no other lane can have a part in it."""
    heads = heads[:room]
    if len(heads) == 1 and room > 1:
        found = tx.rows(_FIRST, heads[0][2], *AFTER_ALL, room)
    elif len(heads) > 1:
        last = heads[-1][:2] if len(heads) == room else AFTER_ALL
        found = sorted(job for _, _, lane, _ in heads for job in tx.rows(_FIRST, lane, *last, room))[:room]
    else:
        found = [head[:3] for head in heads]
    return [Pick(seq, lane, None) for _, seq, lane in found]
