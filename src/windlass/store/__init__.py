"""Where jobs live: the protocol that every store implements, and its records.

A store knows SQL or keys; it decides nothing. `model.lifecycle` decides which state comes next and returns a `Move`;
the store checks the move's guards and writes it whole, or refuses it. What every store promises:

- A job is named by its id and its tenant (`JobKey`): the same id in two tenants is two jobs.
- `add` is idempotent by that key, and arrival order is a sequence that the store keeps.
- `claim` is one atomic step: a job is leased to one worker under a token, or not at all. The same nonce again answers
  the same jobs.
- Every write by a worker is fenced by that token.
- Due times and leases are judged by the store's own clock; callers pass durations, or times that the store gave them.
- Finished jobs leave the structures that claims read, and vanish when their keep clock runs out. A result may have less
  time than its record: then that clock has two stages.
- No call costs more as the backlog grows, beyond a logarithm; no call loops without a bound.

What stores do beside keeping jobs is in `beside`, `flow` and `mailbox`.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import StrEnum
from hashlib import sha1
from typing import Literal, Protocol

from msgspec import Struct

from windlass.model.errors import Unavailable
from windlass.model.handler import NO_HANDLER, HandlerRun
from windlass.model.job import Job, NewJob, Reason, State
from windlass.model.lifecycle import Move
from windlass.model.names import JobKey
from windlass.model.output import Chunk, NewChunk, Progress
from windlass.model.worker import NewWorker, Worker

SEEN_EVERY = 1.0
"""Seconds between two notes that a worker has been heard of by its claims: an idle one need not write at each."""

MOST_CHILDREN = 100
"""Children of one completed parent that are returned at a time."""


Turn = Literal["queues", "tenants", "tasks"]


def shuffled(nonce: bytes, names: Iterable[str]) -> list[str]:
    """Names in a pseudo-random order that depends on the nonce: a claim that is sent again gets the same order."""
    return sorted(names, key=lambda name: sha1(nonce + name.encode(), usedforsecurity=False).digest())


class AccessRefused(Unavailable):
    """The store answers and refuses access (password, ACL): waiting does not help."""


class Draft(Struct, frozen=True, gc=False):
    """A job on its way into a store: checked, and with its id."""

    tenant: str
    id: str
    new: NewJob
    group: str = ""
    """What bounds it, as `store.flow` spells it."""
    grouping: int = 0
    """The rules under which the group was made: see `Rules.grouping`."""
    follows: bool = False
    """Whether another job brings it about: then it is kept as long as anything can be, for that job's end waits."""


class Record(Struct, frozen=True, gc=False):
    """A job as a store holds it."""

    job: Job
    token: bytes | None = None
    """The fence of its current run; null unless it runs."""
    payload: bytes | None = None
    """Only where it was asked for."""
    files: dict[str, bytes] = {}
    """What came with it, by name; only of a job that is handed out."""
    group: str = ""
    """What bounds it."""


class Reading(Struct, frozen=True):
    """Records and the store's time at which they were read."""

    now: datetime
    records: list[Record | None]
    """In the order asked for; null where there is no such job."""
    parts: int = 1
    """How many partitions the store has: a job is in the one with the number `part_of`."""
    answered: Sequence[int] = (0,)
    """Which of them were read."""


class Heartbeat(Struct, frozen=True):
    """A sign of life of one running job."""

    id: str
    tenant: str
    token: bytes
    pid: int | None = None
    progress: Progress | None = None
    output: Sequence[NewChunk] = ()
    ran: HandlerRun = NO_HANDLER


class HeartbeatReply(Struct, frozen=True):
    """What a worker learns from a sign of life."""

    id: str
    held: bool
    """Whether the job is still its own."""
    reason: Reason | None = None
    """Why the job must stop, if it must; `shrunk` = it may go on until `deadline`."""
    deadline: datetime | None = None
    """When a job that runs at a tier is stopped."""


class JobSuccess(Struct, frozen=True, gc=False):
    """A success on its way into a store."""

    id: str
    tenant: str
    token: bytes
    code: int
    result: bytes | None
    content_type: str
    finished_at: datetime | None = None
    """As the worker says; null = the store's now."""
    ran: HandlerRun = NO_HANDLER


class StoredResult(Struct, frozen=True):
    """A result as a store holds it."""

    data: bytes
    content_type: str


class ClaimRequest(Struct, frozen=True):
    """What a worker can take now."""

    worker: Worker
    """Its tasks may also be spelled `tenant/task`, which means that tenant's alone."""
    nonce: bytes
    """Eight fresh bytes: the token of every job this claim takes."""
    slots: int
    lease: float
    repeatable: bool = True
    """Whether the same nonce may come again: then it answers what it took before."""
    heard: bool = True
    """Whether the worker itself sent this, which counts as a heartbeat; else a server claims on its behalf."""
    stays: float = 0.0
    """Seconds for which a store that has no job may park a repeatable request and lease the next job to it at once.

    The caller listens to `wish/WORKER` meanwhile, then sends the same request again: the answer is what the parked
    claim was granted. If it was granted nothing, the parked claim is withdrawn.
    """
    warm: Sequence[str] = ()
    """Tasks it has warm contexts for, as `tenant/task`; matters only where tenants or tasks take turns."""
    turns: frozenset[Turn] = frozenset()
    """Who takes turns in this claim where no rule says who does; see `claim`."""
    in_order: frozenset[str] = frozenset()
    """Where they do not: `TENANT,QUEUE`, or `-,QUEUE` for all tenants."""
    lasts: bool = False
    """Whether a lease must outlast a power cut. Else a store may forget it then: the job is queued, as if never begun.

    For jobs that are to fail rather than be run again.
    """


class ListScope(Struct, frozen=True):
    """What an index can narrow a listing to."""

    tenant: str
    """`-` = all."""
    queue: str | None
    states: frozenset[State]
    newest_first: bool = False
    """Whether the jobs of each queue come from the last that arrived to the first."""


class RecordPage(Struct, frozen=True):
    """Some records of a scope, in order, and where to go on."""

    records: list[Record]
    next: str | None
    """Null = the end. A slice may be short, even empty, and still have a next."""


class Dependency(Struct, frozen=True):
    """That a job waits for another one."""

    parent: str
    """The other one."""
    tenant: str
    """Whose both must be."""
    child: str
    """The one that waits."""


class CompletedParent(Struct, frozen=True):
    """A job that ended or was removed while other jobs wait for it or are to follow it."""

    id: str
    tenant: str
    mark: int
    """Which of its ends this is: it may be run again and end once more."""
    state: State | None
    """How it ended; null = it vanished before."""
    children: list[str]
    """Some of the jobs that wait for it; once these are processed, the next call returns more."""
    then: NewJob | None = None
    """What is to follow it."""
    result: StoredResult | None = None
    """What it answered, if something is to follow it; not used up by this."""


class JobCount(Struct, frozen=True):
    """How many jobs of one tenant, queue and task are in one state."""

    tenant: str
    queue: str
    task: str
    state: State
    count: int


class Sweep(StrEnum):
    """Clocks whose running out needs no decision."""

    RUN = "run"
    """A scheduled job whose time has come is queued."""
    KEEP = "keep"
    """A finished job that was kept long enough is dropped; or its result is, if only that was kept long enough."""


class DueJob(Struct, frozen=True, gc=False):
    """A job whose clock ran out, as it is now or was at last."""

    id: str
    tenant: str
    queue: str
    task: str
    state: State
    result_only: bool = False
    """Whether only its result was dropped, and its record stays."""


class Overdue(StrEnum):
    """Clocks whose running out needs a decision."""

    LEASE = "lease"
    """A running job that was not renewed."""
    WAIT = "wait"
    """A job that was not started before it expired."""
    OWNER = "owner"
    """A job whose owner stopped asking for it."""


class Listener(Protocol):
    """Wakes a waiter when something happened; the waiter looks up what."""

    async def wait(self, seconds: float) -> bool:
        """Whether a notice came within so many seconds. Notices may be lost: never wait long without looking."""
        ...


class Store(Protocol):
    """Where jobs live. At most twenty methods; a test counts them."""

    async def add(self, drafts: Sequence[Draft]) -> list[bool]:
        """Keep new jobs; for each, whether it is new. One whose id its tenant has already changes nothing.

        Raises `flow.StaleRules` if a group was made under other rules than those in force. Then it keeps none, or says
        which it has kept.
        """
        ...

    async def claim(self, wish: ClaimRequest) -> list[Record]:
        """Lease the first jobs that the worker may take, by its queues' order, then priority, then arrival.

        Where tenants or tasks take turns, the turn goes before the priority. Nothing that `flow` forbids is taken. A
        flexible job is assigned the longest tier whose caps have room.

        Those whom the wish names take turns in each claim: one job for each queue, tenant, task that has one, in the
        order of `shuffled`, and again. Then the jobs come in any order.

        They come with their payloads and files. A worker that claims has been heard of (see `SEEN_EVERY`).
        """
        ...

    async def touch(self, touches: Sequence[Heartbeat], lease: float) -> list[HeartbeatReply]:
        """Renew the leases of jobs and note what they say of themselves."""
        ...

    async def succeed(self, dones: Sequence[JobSuccess]) -> list[bool]:
        """End jobs well; for each, whether its token was right. What a record says of keeping is applied at once."""
        ...

    async def apply(self, moves: Sequence[Move]) -> list[bool]:
        """Write moves; for each, whether its guards held. A refused move changes nothing."""
        ...

    async def read(self, keys: Sequence[JobKey], *, payload: bool = False) -> Reading:
        """Look jobs up."""
        ...

    async def result(self, key: JobKey) -> StoredResult | None:
        """The result of a job, unless its time is over; if it is kept for one reading only, it is gone afterwards."""
        ...

    async def output(self, key: JobKey, after: int, limit: int) -> list[Chunk]:
        """What a job has put out beyond a chunk's number: the newest of it, up to `MOST_OUTPUT` and `MOST_CHUNKS`.

        Kept from one run to the next, until the finished job is run again; the numbers continue even then.
        """
        ...

    async def page(self, scope: ListScope, after: str | None, limit: int) -> RecordPage:
        """Jobs of a scope: tenant by tenant, queue by queue, in order of arrival or the other way round.

        A job that changes its state between two pages is neither missed nor seen twice while it stays in the scope.
        """
        ...

    async def count_jobs(self, tenant: str) -> list[JobCount]:
        """How many jobs there are, from counters."""
        ...

    async def sweep(self, clock: Sweep, limit: int) -> list[DueJob]:
        """Do what needs no decision to jobs whose clock has run out, earliest first; which they were."""
        ...

    async def overdue(self, clock: Overdue, limit: int) -> Reading:
        """Jobs whose clock has run out, at most so many."""
        ...

    async def add_dependencies(self, edges: Sequence[Dependency]) -> list[State | None]:
        """How the parents stand (null = there is no such job of that tenant).

        Where a parent is pending, the dependency is stored, and `completed_parents` reports the parent's end.
        """
        ...

    async def completed_parents(self, done: Sequence[CompletedParent], limit: int) -> list[CompletedParent]:
        """Drop these completed parents and their children, unless they completed again; then return some more.

        A parent completes when it ends or is removed while another job waits for it or is to follow it.
        """
        ...

    async def register_worker(self, id: str, tenant: str, worker: NewWorker, lease: float) -> None:
        """Keep the record of a worker for as long as a lease."""
        ...

    async def worker_heartbeat(self, id: str, tenant: str, lease: float) -> Worker | None:
        """A tenant's worker has been heard of: its record, kept for another lease; null if it is not known (now)."""
        ...

    async def workers(self, tenant: str) -> list[Worker]:
        """The workers that are alive."""
        ...

    async def unregister_worker(self, id: str) -> bool:
        """Forget a worker; whether it was known."""
        ...

    def listen(self, topics: Sequence[str]) -> AbstractAsyncContextManager[Listener]:
        """Wake-ups for topics: new work (`work/QUEUE`), the end of a job (`encoding.end_topic`), orders to a worker
        (`order/WORKER`), a granted parked claim (`wish/WORKER`), the first completed parent (`house/ripe`).
        """
        ...

    async def close(self) -> None:
        """Let go of everything that was opened."""
        ...
