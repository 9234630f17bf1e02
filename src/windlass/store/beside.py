"""What a store does beside keeping jobs: settings on a shelf, news on a wire, journals drained, replicas waited for.

Small contracts of their own, so that whoever needs one of them need not know the rest. Every store is a shelf, a
wire, a timetable and a directory; only a store on a server has the others.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from msgspec import Struct

from windlass.model.lifecycle import Verdict
from windlass.store import Draft

GAP = "gap"
"""The news that some was missed."""


class Shelf(Protocol):
    """Where settings live beside the jobs: tokens and the like, few and small. Every store is one too."""

    async def put(self, kind: str, name: str, data: bytes | None) -> None:
        """Keep a record under its kind and name, in the place of any that was there; null = keep none."""
        ...

    async def swap(self, kind: str, name: str, before: bytes | None, after: bytes | None) -> bool:
        """Keep `after` if what is kept now is `before`; whether it was. Null = none."""
        ...

    async def shelved(self, kind: str) -> dict[str, bytes]:
        """All records of a kind, by name."""
        ...


MOST_COUNTED = 10_000
"""Tasks (each in a queue of a tenant) whose runs one partition of a store counts: those that ran first."""


class Ran(Struct, frozen=True):
    """How many runs of one tenant, queue and task ended in one way, ever since."""

    tenant: str
    queue: str
    task: str
    outcome: Verdict
    count: int


class Outcomes(Protocol):
    """How runs ended; kept when the jobs are gone. Counted by `succeed` and `apply`, in the same step."""

    async def outcomes(self, tenant: str) -> list[Ran]:
        """Those of a tenant; `-` = all."""
        ...


class Timetable(Protocol):
    """Knows when something is to be done. Every store is one too."""

    async def next_run(self) -> float | None:
        """Seconds until the first of the scheduled jobs is due, 0 if it is; null = none is scheduled."""
        ...


class Directory(Protocol):
    """Knows whose an id is. Every store is one too."""

    async def owners(self, ids: Sequence[str]) -> list[list[str]]:
        """For each id the tenants that have a job of it, by name."""
        ...


class Watch(Protocol):
    """Hears news."""

    async def hear(self) -> list[str]:
        """What has come, waiting for it; `GAP` among it where some was missed."""
        ...


class Wire(Protocol):
    """Carries news from whoever writes to whoever watches, across processes. Every store is one too.

    News is short lines that say nothing to a store. Each is told at most once; whoever does not keep up hears of a gap.
    """

    @property
    def quiet(self) -> bool:
        """Whether nobody watches, as far as is known without asking."""
        ...

    async def publish(self, news: Sequence[str]) -> None:
        """Tell those who watch, if there are any; looks for them where that is not known."""
        ...

    def watch(self) -> AbstractAsyncContextManager[Watch]:
        """Hear all that is published from now on. Entered only when every process will have noticed."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A store on a disk of this machine, which may be full."""

    async def check_room(self) -> None:
        """Raise if new jobs would be refused for want of room."""
        ...


class Replicating(Protocol):
    """A store whose server hands on what it is given to others."""

    @property
    def replicated_within(self) -> float | None:
        """Seconds in which enough of the others must have a new job; null = nobody waits for that."""
        ...

    async def add_surely(self, drafts: Sequence[Draft]) -> list[bool]:
        """As `add`, answered when enough of the others have them; raises `NotReplicated` if that takes too long.

        They are kept then, too.
        """
        ...


class Chute(Protocol):
    """A short way into a store, for jobs that differ in nothing but their ids and payloads."""

    @property
    def shut(self) -> bool:
        """Whether the store has said that no more should go this way."""
        ...

    def __call__(self, id: bytes, payload: bytes, /) -> bool | None:
        """Whether the job, which is kept now, is new; null = it must go the usual way, under the same id.

        The id as its sixteen bytes. Nobody is told of the job.
        """
        ...


class Chuting(Protocol):
    """A store that may have such ways, for callers without an event loop."""

    def chute(self, example: Draft) -> Chute | None:
        """The one for jobs that are like this one; null = there is none."""
        ...


class Haul(Struct, frozen=True):
    """Jobs on their way from a journal into one strand of a store: all that it has for it between two numbers."""

    journal: str
    strand: int
    since: int
    """The mark that this follows on: if it is not there, nothing happens."""
    upto: int
    """The mark that it leads to."""
    drafts: Sequence[Draft]
    surely: bool = False
    """Whether somebody waits until the store's replicas have them."""


class Hauled(Struct, frozen=True):
    """What became of a haul."""

    mark: int
    """Where the mark is now."""
    created: list[bool] = []
    """For each job whether it is new; none if the mark was elsewhere."""
    shortfall: str | None = None
    """What is missing until enough replicas have them; empty = nothing, null = that was not asked for."""


class Ledger(Protocol):
    """A store that journals are drained into: it remembers how far each of them has been."""

    async def ready(self) -> None:
        """Find the server and look at it, if it was not there when the store was opened; raises while it is not."""
        ...

    @property
    def strands(self) -> int:
        """In how many parts it keeps its queues; each has marks of its own."""
        ...

    def strand(self, draft: Draft) -> int:
        """The part that a job belongs to."""
        ...

    async def drain(self, haul: Haul) -> Hauled:
        """Keep jobs as `add` does and move the mark, in one step; or neither, if the mark is not where it should be."""
        ...
