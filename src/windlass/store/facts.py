"""What a store reports about itself to operators; not part of the protocol."""

from datetime import datetime

from msgspec import Struct


class StoreInfo(Struct, frozen=True, kw_only=True):
    """Kind, version and care for the jobs of one store."""

    kind: str
    version: str
    durability: str
    """The settings that decide whether what was accepted survives a crash."""
    risk: str = ""
    """What may be lost under these settings, and what to do about it; empty = nothing."""
    exposed: str = ""
    """Who else can read the store, which holds jobs and secrets in clear text; empty = no one, as far as is known."""
    halts: str = ""
    """What stops all of it when a part of it is away, and what to do about it; empty = nothing, as far as is known."""
    now: datetime
    """The store's clock."""
    host_now: datetime | None = None
    """What the clock of its host shows; null = it is on this host."""
