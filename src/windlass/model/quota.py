"""What a tenant may have of a queue that it shares with others."""

from typing import Annotated

from msgspec import Meta, Struct


class Quota(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Bounds on what one tenant sends in over HTTP; null = none."""

    jobs_per_second: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """New jobs in a second, at each server; a second's worth may come at once."""
    stored_jobs: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Jobs on record, in any state."""
    payload_bytes: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Bytes of one payload, with its files."""
