"""What waiting jobs wait for, as it is at one moment: slots in pools, bounds, and jobs in lanes. Pure data.

A pool is what workers have in common that take the same jobs: they look through their queues, dearest first, whenever a
slot is free. So whoever waits in one queue waits for the dearer ones of the same workers as well.
"""

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from windlass.model.estimate import Why

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


class Pool(Struct, frozen=True):
    """The slots of workers that take the same jobs."""

    slots: int
    queues: Sequence[str] = ("",)
    """In the order in which they look for jobs."""


class Busy(Struct, frozen=True):
    """A running job."""

    remaining: float
    """Seconds until it ends."""
    bounds: tuple[int, ...] = ()
    """Where it takes a place."""
    pool: int | None = 0
    """Whose slot it has; null = it runs elsewhere."""


class Lane(Struct, frozen=True):
    """Waiting jobs of one queue that are bound by the same and run equally long."""

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
    queue: str = ""
    pools: tuple[int, ...] = (0,)
    """Whose workers may take its jobs."""
    rest: int = 0
    """How many more wait behind these."""


class Turns(Struct, frozen=True):
    """Who takes turns in a queue."""

    tenants: Mapping[str, float] | None = None
    """If tenants do, their weights."""
    tasks: Mapping[str, float] | None = None
    """If tasks do, their weights."""


class Snapshot(Struct, frozen=True):
    """What jobs wait for, as it is now."""

    pools: Sequence[Pool]
    running: Sequence[Busy] = ()
    lanes: Sequence[Lane] = ()
    bounds: Sequence[Bound] = ()
    turns: Mapping[str, Turns] = {}
    """Of queues that do not go by priority and arrival."""


def ahead(orders: Sequence[Sequence[str]], queue: str) -> set[str]:
    """The queues whose jobs those of a queue may have to wait for, itself among them, if workers look in these orders.

    Those that any of its workers likes better, and what is liked better than these.
    """
    found = {queue}
    rest = [queue]
    while rest:
        name = rest.pop()
        for order in orders:
            if name in order:
                dearer = [other for other in order[: order.index(name)] if other not in found]
                found.update(dearer)
                rest += dearer
    return found
