"""The audit log as a store keeps it: an optional capability. Without it, lines go to the log of the process alone."""

from datetime import datetime
from typing import Protocol

from msgspec import Struct

from windlass.model.errors import Invalid

_NEWEST = 2**53
"""Beyond the number of any line."""


class AuditRow(Struct, frozen=True):
    """A line."""

    at: datetime
    tenant: str
    data: bytes


class AuditRows(Struct, frozen=True):
    """Some lines, newest first, and where to go on."""

    rows: list[AuditRow]
    next: str | None
    """Null = the end."""


class AuditStore(Protocol):
    """Of each tenant the newest `MOST_LINES_KEPT` lines."""

    async def add(self, tenant: str, line: bytes) -> None:
        """Keep a line with the store's time; the oldest one makes room for it. Works while the store is full."""

    async def list(self, tenant: str, after: str | None, limit: int) -> AuditRows:
        """Lines of a tenant, newest first; for `-` those of all tenants, in the order in which they came."""


def audit_cursor(after: str | None) -> int:
    """The number before which a page begins."""
    if after is None:
        return _NEWEST
    if not (after.isascii() and after.isdecimal() and len(after) < len(str(_NEWEST))):
        raise Invalid("not a cursor that a page gave", at="after")
    return int(after)
