"""What a tenant may have of a queue that it shares with others."""

from typing import Annotated

from msgspec import Meta, Struct


class Quota(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Bounds on what one tenant sends in over HTTP, and on what its functions make; null = none."""

    jobs_per_second: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """New jobs in a second, at each server; a second's worth, at least one, may come at once, and a request with more
    is refused. What functions make beyond it is kept, and starts later: at this rate, for each worker.
    """
    stored_jobs: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Jobs on record, in any state."""
    payload_bytes: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Bytes of one payload, with its files."""


def burst(quota: Quota) -> float:
    """New jobs that may come at once after a quiet second."""
    return max(quota.jobs_per_second or 0.0, 1.0)


def too_fast(quota: Quota, left: float, number: int, *, whole: bool) -> str | None:
    """Why so many jobs are refused when so many are left of a burst; null = they are not.

    A `whole` that is larger than a burst comes after a quiet second, and later jobs wait for it.
    """
    if quota.jobs_per_second is None:
        return None
    rate = f"this tenant may send {quota.jobs_per_second:g} jobs a second"
    if number > burst(quota) and not whole:
        return f"{number} jobs in a request, {rate}: send at most {int(burst(quota))} at once"
    return f"{rate}: slow down" if left < min(number, burst(quota)) else None


def too_large(quota: Quota, largest: int) -> str | None:
    """Why a payload of so many bytes is refused; null = it is not."""
    if quota.payload_bytes is None or largest <= quota.payload_bytes:
        return None
    return f"{largest} bytes in a payload, this tenant may send {quota.payload_bytes}"


def too_many(quota: Quota, stored: int, number: int) -> str | None:
    """Why so many more jobs are refused; null = they are not."""
    if quota.stored_jobs is None or stored + number <= quota.stored_jobs:
        return None
    return f"this tenant may have {quota.stored_jobs} jobs on record and has {stored}"
