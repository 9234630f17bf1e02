"""Fair order of lanes: by priority and arrival, or by weighted turns (start-time fair queueing).

A lane is a number here; the caller knows the key of its next job. Turns nest: tenants, then tasks.
"""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush, heapreplace

LaneKey = tuple[int, int, int]
"""Priority, arrival, lane."""


class InOrder:
    """Lanes that have a job to start: lowest priority first, then arrival."""

    def __init__(self, key: Callable[[int], LaneKey | None]) -> None:
        self._key = key
        self._heap: list[LaneKey] = []

    def push(self, lane: int) -> None:
        """Add a lane."""
        if (key := self._key(lane)) is not None:
            heappush(self._heap, key)

    def first(self) -> int | None:
        """The lane whose turn it is."""
        return self._heap[0][2] if self._heap else None

    def drop(self) -> None:
        """Remove that lane: it cannot start a job now."""
        heappop(self._heap)

    def serve(self) -> None:
        """A job of that lane has started. The lane's next job is known by now."""
        key = self._key(self._heap[0][2])
        if key is None:
            heappop(self._heap)
        else:
            heapreplace(self._heap, key)

    def arrival(self) -> int:
        """When the first lane's job arrived."""
        return self._heap[0][1]


class ByTurns:
    """The same with one job for each member in turn, by weight; inside a member, by the inner order."""

    def __init__(
        self, weights: Mapping[str, float], member: Callable[[int], str], inner: "Callable[[], LaneOrder]"
    ) -> None:
        self._weights = weights
        self._member = member
        self._inner = inner
        self._members: dict[str, LaneOrder] = {}
        self._served_until = 0.0
        """The start tag of the last member served: an idle member saves up no turns."""
        self._finish: dict[str, float] = {}
        self._heap: list[tuple[float, int, str]] = []
        """Members that have a job to start, by start tag."""

    def push(self, lane: int) -> None:
        name = self._member(lane)
        order = self._members.get(name) or self._members.setdefault(name, self._inner())
        idle = order.first() is None
        order.push(lane)
        if idle and order.first() is not None:
            tag = max(self._served_until, self._finish.get(name, 0.0))
            heappush(self._heap, (tag, order.arrival(), name))

    def first(self) -> int | None:
        return self._members[self._heap[0][2]].first() if self._heap else None

    def drop(self) -> None:
        order = self._members[self._heap[0][2]]
        order.drop()
        if order.first() is None:
            heappop(self._heap)

    def serve(self) -> None:
        tag, _, name = self._heap[0]
        order = self._members[name]
        order.serve()
        self._served_until = max(self._served_until, tag)
        self._finish[name] = tag + 1 / self._weights.get(name, 1.0)
        if order.first() is None:
            heappop(self._heap)
        else:
            heapreplace(self._heap, (self._finish[name], order.arrival(), name))

    def arrival(self) -> int:
        return self._members[self._heap[0][2]].arrival()


LaneOrder = InOrder | ByTurns
