"""What a store does besides keeping jobs: small records, events, draining of journals, waiting for replicas.

Each is a small protocol of its own, so that a caller depends only on what it uses. Every store implements the first
four; only a store on a server implements the others.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from msgspec import Struct

from windlass.model.lifecycle import Verdict
from windlass.store import Draft

GAP = "gap"
"""The event that says some events were missed."""


class Records(Protocol):
    """Small records beside the jobs: tokens, limits, handlers. Compare-and-swap keeps concurrent edits apart."""

    async def put(self, kind: str, name: str, data: bytes | None) -> None:
        """Keep a record under its kind and name, in the place of any that was there; null = keep none."""
        ...

    async def swap(self, kind: str, name: str, before: bytes | None, after: bytes | None) -> bool:
        """Keep `after` if what is kept now is `before`; whether it was. Null = none."""
        ...

    async def list_records(self, kind: str) -> dict[str, bytes]:
        """All records of a kind, by name."""
        ...


MOST_COUNTED = 10_000
"""Tasks (each in a queue of a tenant) whose runs one partition of a store counts: those that ran first."""


class OutcomeCount(Struct, frozen=True):
    """How many runs of one tenant, queue and task ended in one way, ever since."""

    tenant: str
    queue: str
    task: str
    outcome: Verdict
    count: int


class OutcomeCounts(Protocol):
    """How runs ended; kept when the jobs are gone. Counted by `succeed` and `apply`, in the same step."""

    async def outcomes(self, tenant: str) -> list[OutcomeCount]:
        """Those of a tenant; `-` = all."""
        ...


class DueTimes(Protocol):
    """Knows when something is to be done. Every store is one too."""

    async def next_run(self) -> float | None:
        """Seconds until the first of the scheduled jobs is due, 0 if it is; null = none is scheduled."""
        ...


class JobOwners(Protocol):
    """Knows whose an id is. Every store is one too."""

    async def owners(self, ids: Sequence[str]) -> list[list[str]]:
        """For each id the tenants that have a job of it, by name."""
        ...


class EventStream(Protocol):
    """Hears news."""

    async def hear(self) -> list[str]:
        """What has come, waiting for it; `GAP` among it where some was missed."""
        ...


class Events(Protocol):
    """Publishes events to subscribers in all processes. Every store implements it.

    Events are short lines that are opaque to a store. Delivery is at most once; a slow subscriber gets a gap.
    """

    @property
    def quiet(self) -> bool:
        """Whether there are no subscribers, as far as is known without a round trip."""
        ...

    async def publish(self, news: Sequence[str]) -> None:
        """Publish to the subscribers, if there are any; checks for them where that is not known."""
        ...

    def watch(self) -> AbstractAsyncContextManager[EventStream]:
        """Receive all that is published from now on. Entered once every process has noticed the subscriber."""
        ...


@runtime_checkable
class OnLocalDisk(Protocol):
    """A store on a disk of this machine, which may be full."""

    async def check_room(self) -> None:
        """Raise if new jobs would be refused for want of room."""
        ...


class Replicated(Protocol):
    """A store whose server hands on what it is given to others."""

    @property
    def replicated_within(self) -> float | None:
        """Seconds within which enough replicas must have a new job; null = callers do not wait for replicas."""
        ...

    async def add_replicated(self, drafts: Sequence[Draft]) -> list[bool]:
        """As `add`, answered when enough of the others have them; raises `NotReplicated` if that takes too long.

        They are kept then, too.
        """
        ...


class PreparedCommand(Protocol):
    """A prepared command that adds jobs which differ only in id and payload."""

    @property
    def shut(self) -> bool:
        """Whether the store has invalidated it: flow rules may apply now."""
        ...

    def __call__(self, id: bytes, payload: bytes, /) -> bool | None:
        """Add a job; whether it is new. Null = add it with `Store.add` instead, under the same id.

        The id as its sixteen bytes. No event is published.
        """
        ...


class PreparesCommands(Protocol):
    """A store that prepares commands for callers without an event loop."""

    def prepare_add(self, example: Draft) -> PreparedCommand | None:
        """The command for jobs like this one; null = there is none."""
        ...


class DrainRequest(Struct, frozen=True):
    """Jobs from a journal for one partition of a store: all it has for it between two sequence numbers."""

    journal: str
    partition: int
    since: int
    """The watermark that this batch follows: if the watermark is elsewhere, nothing is written."""
    upto: int
    """The watermark after it."""
    drafts: Sequence[Draft]
    wait_for_replicas: bool = False
    """Whether the caller waits until the store's replicas have them."""


class DrainReply(Struct, frozen=True):
    """What became of a drain batch."""

    mark: int
    """Where the watermark is now."""
    created: list[bool] = []
    """For each job whether it is new; empty if the watermark was elsewhere."""
    shortfall: str | None = None
    """What is missing until enough replicas have them; empty = nothing, null = that was not asked for."""


class JournalTarget(Protocol):
    """A store that journals are drained into: it keeps a watermark for each of them."""

    async def ready(self) -> None:
        """Find the server and look at it, if it was not there when the store was opened; raises while it is not."""
        ...

    @property
    def partition_count(self) -> int:
        """How many partitions hold its queues; each has its own watermarks."""
        ...

    def partition_of(self, draft: Draft) -> int:
        """The partition that a job belongs to."""
        ...

    async def drain(self, request: DrainRequest) -> DrainReply:
        """Add jobs and move the watermark in one step; do neither if the watermark is not where it should be."""
        ...
