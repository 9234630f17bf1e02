"""How the server and its store stand, for those who operate them."""

from msgspec import Struct


class StoreHealth(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The place where jobs live."""

    kind: str
    """Such as `SQLite` or `Redis`."""
    used: int
    """Bytes that it takes: memory of a server, of a cluster that of all its members; else files."""
    free: int | None = None
    """Bytes that it may still take; null = no bound is known."""


class JournalHealth(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The journal of a server, in front of its store."""

    waiting: int
    """Jobs that it has accepted and the store does not have yet."""
    fault: str = ""
    """Why the store takes none now; empty = it does."""


class Health(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a server and its store stand."""

    store: StoreHealth | None = None
    """Null = it does not answer, or does not say."""
    journal: JournalHealth | None = None
    """Null = there is none."""
