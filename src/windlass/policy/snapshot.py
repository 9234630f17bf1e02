"""A snapshot of load: slots in pools, bounds, and jobs in lanes. Pure data, the input of every estimate.

A pool is a set of workers that take the same jobs. They look through their queues in order of preference whenever a
slot is free, so a job in one queue also waits for the preferred queues of the same workers.
"""

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from windlass.model.estimate import Estimate, Why

NEVER = math.inf

Key = tuple[int, int, str]
"""A waiting job: priority, arrival, id."""


class Bound(Struct, frozen=True):
    """A limit or a tier that holds jobs back."""

    name: str = ""
    why: Why = Why.LIMIT
    places: int | None = None
    """So many run at once; null = any number."""
    interval: float = 0.0
    """Seconds between two starts in the long run; 0 = no rate."""
    burst: int = 1
    """Starts that may come at once after an idle time."""
    opens: float = 0.0
    """Seconds until the next start is allowed."""


class SlotPool(Struct, frozen=True):
    """The slots of workers that take the same jobs."""

    slots: int
    queues: Sequence[str] = ("",)
    """In order of preference."""


class BusySlot(Struct, frozen=True):
    """A running job."""

    remaining: float
    """Seconds until it ends; never = unknown."""
    bounds: tuple[int, ...] = ()
    """Bounds in which it takes a place."""
    pool: int | None = 0
    """Whose slot it takes; null = it runs elsewhere."""


class WaitingLane(Struct, frozen=True):
    """Waiting jobs of one queue with the same bounds and the same expected run time."""

    jobs: Sequence[Key]
    """In order."""
    seconds: float
    """Expected run time of each; never = unknown."""
    tenant: str = ""
    task: str = ""
    bounds: tuple[int, ...] = ()
    """Indexes of the snapshot's bounds."""
    opens: float = 0.0
    """Seconds until its jobs may be claimed."""
    lacks: Why | None = None
    """Why its jobs can never start."""
    why: Why = Why.PAUSE
    """Why it opens later."""
    queue: str = ""
    pools: tuple[int, ...] = (0,)
    """The pools that may take its jobs."""
    rest: int = 0
    """How many more jobs wait behind the listed ones."""


class FairTurns(Struct, frozen=True):
    """What takes turns in a queue."""

    tenants: Mapping[str, float] | None = None
    """Weights of tenants, if they take turns."""
    tasks: Mapping[str, float] | None = None
    """Weights of tasks, if they take turns."""


class LoadSnapshot(Struct, frozen=True):
    """What jobs wait for at one moment."""

    pools: Sequence[SlotPool]
    running: Sequence[BusySlot] = ()
    lanes: Sequence[WaitingLane] = ()
    bounds: Sequence[Bound] = ()
    turns: Mapping[str, FairTurns] = {}
    """Of queues that do not go by priority and arrival alone."""


def what_holds(snapshot: LoadSnapshot, lane: WaitingLane) -> Estimate | None:
    """Why the jobs of a lane can never start; null = they can."""
    if lane.lacks is not None or not any(snapshot.pools[pool].slots for pool in lane.pools):
        return Estimate(why=lane.lacks or Why.WORKER)
    if lane.opens == NEVER:
        return Estimate(why=lane.why)
    closed = next((bound for place in lane.bounds if (bound := snapshot.bounds[place]).opens == NEVER), None)
    return Estimate(why=Why.PAUSE, name=closed.name) if closed is not None else None


def queues_ahead(orders: Sequence[Sequence[str]], queue: str) -> set[str]:
    """The queues that a queue's jobs may have to wait for, including itself, given the workers' orders of preference.

    These are the queues that any of its workers prefers, and those preferred to them.
    """
    found = {queue}
    rest = [queue]
    while rest:
        name = rest.pop()
        for order in orders:
            if name in order:
                preferred = [other for other in order[: order.index(name)] if other not in found]
                found.update(preferred)
                rest += preferred
    return found
