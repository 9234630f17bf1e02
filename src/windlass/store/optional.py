"""What a store may offer beyond the protocol: each capability is null in a store that does not have it.

Also what it reports about itself to operators (`StoreInfo`), which is no part of the protocol either.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from windlass.model.errors import Invalid
from windlass.model.health import StoreHealth
from windlass.model.names import JobKey
from windlass.store.data import Draft, DrainReply, DrainRequest, JobStep, StepSaved, StoredSteps

# Journals, local files and prepared commands


class JournalTarget(Protocol):
    """Journals are drained into the store, which keeps a watermark for each of them in each partition."""

    replicated_within: float | None
    """Seconds within which enough replicas must have a new job; null = no caller waits for replicas."""

    @property
    def partition_count(self) -> int: ...

    async def ready(self) -> None:
        """Find the server, if it was not there when the store was opened; raises while it is not."""

    def partition_of(self, draft: Draft) -> int:
        """The partition that a job belongs to."""

    async def drain(self, request: DrainRequest) -> DrainReply:
        """Add jobs and move the watermark in one step; do neither if the watermark is not where it should be."""


class LocalDisk(Protocol):
    """The store is on a disk of this machine."""

    async def check_room(self) -> None:
        """Raise if new jobs would be refused for want of room."""


class StoreSpace(Protocol):
    """The store says how full it is."""

    async def read(self) -> StoreHealth:
        """What it takes now, and what is left."""


class PreparedCommand(Protocol):
    """Adds jobs which differ only in id and payload, for callers without an event loop."""

    invalid: bool
    """Whether flow rules may apply now: prepare another one."""

    def __call__(self, id: bytes, payload: bytes, /) -> bool | None:
        """Add a job (the id as its sixteen bytes); whether it is new. Null = use `add`. No event is published."""


class Preparation(Protocol):
    """The store prepares commands."""

    def command(self, example: Draft) -> PreparedCommand | None:
        """The command for jobs like this one; null = there is none."""


# The audit log: without it, lines go to the log of the process alone

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


# Files: those that runs left, and uploaded ones that jobs name by their SHA-256. Files that are sent with a job are
# added and claimed with it, by `JobStore`.


class FileStore(Protocol):
    """Files beside the jobs. A digest is known to one tenant alone: the same bytes of another are stored again."""

    async def attach(self, key: JobKey, token: bytes, files: Mapping[str, bytes]) -> bool:
        """Keep what a run has left, in the place of what an earlier one left, until the job vanishes.

        Refused without the token of the current run.
        """

    async def left(self, key: JobKey) -> dict[str, int]:
        """The files that a run has left: their sizes in bytes, by name."""

    async def read(self, key: JobKey, name: str) -> bytes | None:
        """One of them."""

    async def upload(self, tenant: str, digest: bytes, data: bytes, *, seconds: float, most: int) -> None:
        """Keep a file until it was not asked for in so long; of a tenant's files the ones that expire first make room
        when they have more than `most` bytes.
        """

    async def uploaded(self, tenant: str, digests: Sequence[bytes], seconds: float) -> dict[bytes, bytes]:
        """Those that are there, by digest; each stays for so long from now."""


# Durable steps


class StepStore(Protocol):
    """The results of steps, beside their job until it vanishes."""

    async def save(self, steps: Sequence[JobStep]) -> list[StepSaved]:
        """Keep results, on disk before this is answered. A job keeps what it has under a name, and is kept `MOST_STEPS`
        steps of `MOST_STEP_BYTES`. Refused without the token of the current run.
        """

    async def list(self, key: JobKey) -> StoredSteps:
        """The steps of a job, in the order in which they were saved."""


# Facts


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
