"""How runs ended, and how many jobs waited and ran: by the minute for a day, by the hour for a month."""

from datetime import datetime
from typing import Literal

from msgspec import Struct

HistoryStep = Literal["minute", "hour"]


class HistoryPoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One minute or hour."""

    at: datetime
    """When it ended."""
    ok: int = 0
    """Runs that succeeded in it."""
    failed: int = 0
    """Runs that failed for good."""
    retry: int = 0
    """Runs that asked to be run again."""
    error: int = 0
    """Runs that broke."""
    waiting: int = 0
    """Jobs that were queued at its end."""
    running: int = 0
    """Jobs that ran at its end."""
    workers: int = 0
    """Workers that were alive at its end, those of all tenants too. Not said of a single queue."""


class QueueHistory(Struct, frozen=True, kw_only=True):
    """One queue, point by point: as long as the history itself."""

    tenant: str
    queue: str
    """Empty = queues that were not noted by themselves."""
    ended: list[int]
    """Runs that ended, however they did."""
    failed: list[int]
    """Runs that failed for good, or broke."""
    waiting: list[int]
    """Jobs that were queued at the end."""


class History(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The points there are, oldest first; minutes in which no process kept the history are missing."""

    points: list[HistoryPoint]
    queues: list[QueueHistory] = []
    """Each queue by itself, if that was asked for."""
