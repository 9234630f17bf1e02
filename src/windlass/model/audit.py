"""The audit log: who changed what in the queue by hand, and how many jobs that concerned.

`caller` says who asks: a server sets it for each request. Where it is not set, the user of this process asks.
"""

from contextvars import ContextVar
from datetime import datetime

from msgspec import Struct

from windlass.model.match import Match

MOST_LINES_KEPT = 10_000
"""Lines of one tenant; the oldest makes room for the next."""

MOST_IDS_NOTED = 10
MOST_DETAILS = 500
"""Characters."""


class Caller(Struct, frozen=True):
    """Who asks."""

    name: str
    """`token KEY`, `user NAME@HOST`; never a secret."""
    note: str = ""
    """What its token is for."""


OWNER = Caller("owner")
"""Who stops its own job, as a program does whose connection is that job: this is no management, and leaves no line."""

caller: ContextVar[Caller | None] = ContextVar("windlass_caller", default=None)


class AuditLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One management operation."""

    by: str
    """Who did it: `token KEY`, where the machine's own token is called `local`; or `user NAME@HOST`."""
    note: str = ""
    """What that token is for."""
    action: str
    """What was done: `cancel`, `put-limit` …"""
    name: str = ""
    """Of the queue, task, limit, handler or token."""
    ids: list[str] = []
    """The jobs that were named, the first ten of them."""
    match: Match | None = None
    """Which jobs were meant, if they were not named."""
    details: str = ""
    """The rest of the request as JSON, without results and code; cut if it is long."""
    count: int | None = None
    """How many jobs were changed; null for anything but jobs, or if that is unknown."""
    error: str = ""
    """What stopped it: some of the jobs may have been changed, or all."""


class AuditEntry(AuditLine, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the audit log."""

    at: datetime
    """When it was written, right after the operation."""
    tenant: str
    """Whose jobs or settings were meant; `-` = those of all tenants."""


class AuditPage(Struct, frozen=True, kw_only=True):
    """Some lines of the audit log, newest first."""

    entries: list[AuditEntry]
    next: str | None = None
    """Give this as `after` for the following page; null = this was the last."""
