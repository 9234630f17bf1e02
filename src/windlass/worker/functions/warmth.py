"""Who gets a context when there are fewer than are wanted: warm ones go on with their own work, for a while.

Pure. To end a context and start another costs more than many jobs; so whoever finds none of its own waits for a while
before one that others use is ended for it, and after that nobody goes before it.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

Kept = TypeVar("Kept")

LEAD, MOST_LEAD = 0.5, 3.0
"""Seconds that work for warm contexts may go before work that waits for one."""
STARTS = 5
"""The lead in starts of a context, where a start takes long."""


class Key(NamedTuple):
    """What handlers must have in common to share a context."""

    tenant: str
    lang: str
    eid: str | None
    task: str
    memory: int
    disk: int
    network: bool


class Waiting(Generic[Kept]):
    """A batch that has no context yet."""

    def __init__(self, key: Key, due_at: float) -> None:
        self.key = key
        self.due_at = due_at
        self.room: Kept | None = None
        """The context that is being ended for it."""


class Rest(NamedTuple):
    """A context without work."""

    key: Key
    since: float
    dead: bool


def lead(start: float) -> float:
    """By what the last start took: on a machine that is busy a switch costs more."""
    return min(MOST_LEAD, max(LEAD, STARTS * start))


def may_open(mine: Waiting[Kept], waiting: Iterable[Waiting[Kept]], now: float) -> bool:
    """Whether nobody of another kind came before and has waited long enough."""
    for one in waiting:  # those that came first are due first
        if one is mine or one.due_at > now:
            return True
        if one.key != mine.key:
            return False
    return True


def may_go_on(mine: Waiting[Kept], waiting: Iterable[Waiting[Kept]], now: float) -> bool:
    """Whether a warm context may be had: those for whom room is being made do not need it."""
    return may_open(mine, (one for one in waiting if one.room is None or one is mine), now)


def to_make_way(
    mine: Waiting[Kept], waiting: Iterable[Waiting[Kept]], idle: Mapping[Kept, Rest], now: float
) -> Kept | None:
    """The idle context to be ended for a batch; null = none yet. Those that rest for longest come first in `idle`."""
    wanted = {one.key for one in waiting}
    spare = [context for context, rest in idle.items() if rest.dead or rest.key not in wanted]
    if mine.due_at <= now:
        return next(iter(spare or idle), None)
    return next((one for one in spare if idle[one].dead or now - idle[one].since >= LEAD), None)
