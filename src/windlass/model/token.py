"""Tokens: what stands for a tenant, and for what may be done in its name. The secret itself is nowhere kept."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

Scope = Literal["enqueue", "work", "read", "operate", "admin"]
"""What may be done: queue jobs, run them, look at them, change them, everything."""

PREFIX = "wl"


class Pass(Struct, frozen=True):
    """What a token allows."""

    tenant: str
    """Whose jobs; `-` = everybody's."""
    scopes: frozenset[str]
    key: str = ""
    """The token's name."""
    note: str = ""

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes


class Token(Struct, frozen=True, kw_only=True):
    """A token as the queue shows it."""

    key: str
    """Its name: the part between the underscores."""
    tenant: str
    scopes: list[Scope]
    note: Annotated[str, Meta(max_length=200)] = ""
    created_at: datetime
    expires_at: datetime | None = None
    """When it stops to be one; null = never."""


class Locked(Token, frozen=True, kw_only=True):
    """A token as the queue keeps it."""

    digest: bytes
    """SHA-256 of the whole token: it has 256 random bits, which no slow hash could improve."""


class Issued(Token, frozen=True, kw_only=True):
    """A token just made; the only time its secret is shown."""

    token: str


def key_of(token: str) -> str | None:
    """The name of a token, if this looks like one."""
    parts = token.split("_")
    return parts[1] if len(parts) == 3 and parts[0] == PREFIX and parts[1] else None  # noqa: PLR2004
