"""What a store says of itself to whoever looks after it; not part of the protocol."""

from datetime import datetime

from msgspec import Struct


class Facts(Struct, frozen=True, kw_only=True):
    """Kind, version and care for the jobs of one store."""

    kind: str
    version: str
    durability: str
    """The settings that decide whether what was accepted survives a crash."""
    risk: str = ""
    """What may be lost under these settings, and what to do about it; empty = nothing."""
    exposed: str = ""
    """Who else can read it, though jobs and secrets lie in it in clear; empty = nobody, as far as is known."""
    halts: str = ""
    """What stops all of it when a part of it is away, and what to do about it; empty = nothing, as far as is known."""
    now: datetime
    """The store's clock."""
