"""How a worker takes over runs whose worker has ended: `Adopt`."""

from typing import Annotated

from msgspec import Meta

from windlass.model.duration import OwnLease
from windlass.model.operations.table import MOST_AT_ONCE, Operation, operation
from windlass.model.operations.work import Claimed, LeasedJob


class Orphan(LeasedJob, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A run whose worker has ended, and whose process or last words are here."""

    nonce: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$(?!\n)")]
    """Sixteen random hex digits: the token from now on. Sent again with the same ones, it is answered the same."""
    lease: OwnLease | None = None
    """Seconds that its lease lasts from now; null = as long as any of this worker."""


@operation("POST", "/workers/{worker}/adopt", "work", body="jobs")
class Adopt(Operation[list[Claimed]], frozen=True, kw_only=True):
    """Take over running jobs with their tokens; answers those that are this worker's now, without their payloads."""

    worker: str
    jobs: Annotated[list[Orphan], Meta(max_length=MOST_AT_ONCE)]
