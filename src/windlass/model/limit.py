"""The shape of a limit: at most so many running, or so many per period, among matching jobs.

Only the shape; the stores enforce limits inside the claim once flow control brings them there.
"""

from typing import Annotated

from msgspec import Meta, Struct

from windlass.model.match import Match
from windlass.model.names import Name
from windlass.model.retry import Seconds

Count = Annotated[int, Meta(ge=1)]


class Rate(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """So many starts per period."""

    count: Count
    per: Seconds = 1.0
    burst: Count | None = None
    """How many may start at once; null = `count`."""


class Limit(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A bound on jobs that match."""

    name: Name
    match: Match
    running: Count | None = None
    """At most so many of them run at once."""
    rate: Rate | None = None
    """At most so many of them start per period."""
    key: Annotated[str, Meta(max_length=256)] | None = None
    """One bucket per value of this (`tenant`, `task`, `payload.customer` …); null = one bucket for all."""
