"""Where jobs live: the protocol that every store keeps, and the records it trades in.

A store knows SQL or keys; it decides nothing. Whichever state comes next was decided in `model.lifecycle` and arrives
as a `Move`; the store checks the move's guards and writes it whole, or refuses it. What every store promises:

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

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import StrEnum
from hashlib import sha1
from typing import Literal, Protocol

from msgspec import Struct

from windlass.model.errors import Unavailable
from windlass.model.job import NO_HANDLER, Chunk, HandlerRun, Job, NewChunk, NewJob, Progress, Reason, State
from windlass.model.lifecycle import Move
from windlass.model.names import JobKey
from windlass.model.operations import Glimpse
from windlass.model.worker import NewWorker, Worker

SEEN_EVERY = 1.0
"""Seconds between two notes that a worker has been heard of by its claims: an idle one need not write at each."""

MOST_CHILDREN = 100
"""Children of one ripe job that are told at a time."""


Turn = Literal["queues", "tenants", "tasks"]


def shuffled(nonce: bytes, names: Iterable[str]) -> list[str]:
    """Names in an order that chance has given: each claim has one of its own, the same when it is sent again."""
    return sorted(names, key=lambda name: sha1(nonce + name.encode(), usedforsecurity=False).digest())


class NotLetIn(Unavailable):
    """The store answers, and refuses whoever asks: waiting does not help."""


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
    """Of how many parts the store is made: a job lies in that with the number `part_of`."""
    answered: Sequence[int] = (0,)
    """Which of them were read."""


class Touch(Struct, frozen=True):
    """A sign of life of one running job."""

    id: str
    tenant: str
    token: bytes
    pid: int | None = None
    progress: Progress | None = None
    output: Sequence[NewChunk] = ()
    ran: HandlerRun = NO_HANDLER


class Touched(Struct, frozen=True):
    """What a worker learns from a sign of life."""

    id: str
    held: bool
    """Whether the job is still its own."""
    reason: Reason | None = None
    """Why the job has been told to stop, if it has; `shrunk` = it may go on, until `deadline`."""
    deadline: datetime | None = None
    """When a job that runs at a tier is stopped."""


class Done(Struct, frozen=True, gc=False):
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


class Kept(Struct, frozen=True):
    """A result as a store holds it."""

    data: bytes
    content_type: str


class Wish(Struct, frozen=True):
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
    """Whether the worker itself asks, and so has been heard of; else somebody asks on its behalf."""
    stays: float = 0.0
    """Seconds for which a store that has nothing may keep a repeatable wish and lease the next job to it at once.

    Whoever wishes listens to `wish/WORKER` meanwhile, and then asks again in the same words: that answers what the
    wish was given, and takes it back if it was given nothing.
    """
    warm: Sequence[str] = ()
    """What it would rather run than anything else, as `tenant/task`; has a say only where turns are taken."""
    turns: frozenset[Turn] = frozenset()
    """Who takes turns in this claim where no rule says who does; see `claim`."""
    in_order: frozenset[str] = frozenset()
    """Where they do not: `TENANT,QUEUE`, or `-,QUEUE` for all tenants."""
    lasts: bool = False
    """Whether a lease must outlast a power cut. Else a store may forget it then: the job is queued, as if never begun.

    For jobs that are to fail rather than be run again.
    """


class Scope(Struct, frozen=True):
    """What an index can narrow a listing to."""

    tenant: str
    """`-` = all."""
    queue: str | None
    states: frozenset[State]
    newest_first: bool = False
    """Whether the jobs of each queue come from the last that arrived to the first."""


class Slice(Struct, frozen=True):
    """Some records of a scope, in order, and where to go on."""

    records: list[Record]
    next: str | None
    """Null = the end. A slice may be short, even empty, and still have a next."""


class Edge(Struct, frozen=True):
    """That a job waits for another one."""

    parent: str
    """The other one."""
    tenant: str
    """Whose both must be."""
    child: str
    """The one that waits."""


class Ripe(Struct, frozen=True):
    """A job that has ended or vanished while others wait for it or are to follow it."""

    id: str
    tenant: str
    mark: int
    """Which of its ends this is: it may be run again and end once more."""
    state: State | None
    """How it ended; null = it vanished before."""
    children: list[str]
    """Some of those that wait for it; whoever deals with these is told of more."""
    then: NewJob | None = None
    """What is to follow it."""
    result: Kept | None = None
    """What it answered, if something is to follow it; not used up by this."""


class Tally(Struct, frozen=True):
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


class Swept(Struct, frozen=True, gc=False):
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
    """A job that nobody started before it expired."""
    OWNER = "owner"
    """A job that nobody asked for."""


Take = Callable[[Glimpse | None, Callable[[], list[Record]]], object]
"""Who takes what a wish is given: what is seen of it in passing, if anything, and the way to read it."""


def end_topic(key: JobKey) -> str:
    """What to listen to for the end of a job."""
    return f"end/{key.id}/{key.tenant}"


class Listener(Protocol):
    """Hears that something happened, not what: whoever waits looks for itself."""

    async def wait(self, seconds: float) -> bool:
        """Whether a notice came within so many seconds. Notices may be lost: never wait long without looking."""
        ...

    def hand_over(self, wish: Wish, take: Take) -> None:
        """Let `take` have what this wish is given, as soon as that is heard; who asks again is answered all the same.

        A store that keeps no wishes gives them nothing.
        """
        ...


class Store(Protocol):
    """Where jobs live. At most twenty methods; a test counts them."""

    async def add(self, drafts: Sequence[Draft]) -> list[bool]:
        """Keep new jobs; for each, whether it is new. One whose id its tenant has already changes nothing.

        Raises `flow.StaleRules` if a group was made under other rules than those in force. Then it keeps none, or says
        which it has kept.
        """
        ...

    async def claim(self, wish: Wish) -> list[Record]:
        """Lease the first jobs that the worker may take, by its queues' order, then priority, then arrival.

        Where tenants or tasks take turns, the turn goes before the priority. Nothing that `flow` forbids is taken. A
        flexible job is assigned the longest tier whose caps have room.

        Those whom the wish names take turns in each claim: one job for each queue, tenant, task that has one, in the
        order of `shuffled`, and again. Then the jobs come in any order.

        They come with their payloads and files. A worker that claims has been heard of (see `SEEN_EVERY`).
        """
        ...

    async def touch(self, touches: Sequence[Touch], lease: float) -> list[Touched]:
        """Renew the leases of jobs and note what they say of themselves."""
        ...

    async def succeed(self, dones: Sequence[Done]) -> list[bool]:
        """End jobs well; for each, whether its token was right. What a record says of keeping is applied at once."""
        ...

    async def apply(self, moves: Sequence[Move]) -> list[bool]:
        """Write moves; for each, whether its guards held. A refused move changes nothing."""
        ...

    async def read(self, keys: Sequence[JobKey], *, payload: bool = False) -> Reading:
        """Look jobs up."""
        ...

    async def result(self, key: JobKey) -> Kept | None:
        """The result of a job, unless its time is over; if it is kept for one reading only, it is gone afterwards."""
        ...

    async def output(self, key: JobKey, after: int, limit: int) -> list[Chunk]:
        """What a job has put out beyond a chunk's number: the newest of it, up to `MOST_OUTPUT` and `MOST_CHUNKS`.

        Kept from one run to the next until somebody wants the job again; the numbers go on even then.
        """
        ...

    async def page(self, scope: Scope, after: str | None, limit: int) -> Slice:
        """Jobs of a scope: tenant by tenant, queue by queue, in order of arrival or the other way round.

        A job that changes its state between two pages is neither missed nor seen twice while it stays in the scope.
        """
        ...

    async def tally(self, tenant: str) -> list[Tally]:
        """How many jobs there are, from counters."""
        ...

    async def sweep(self, clock: Sweep, limit: int) -> list[Swept]:
        """Do what needs no decision to jobs whose clock has run out, earliest first; which they were."""
        ...

    async def overdue(self, clock: Overdue, limit: int) -> Reading:
        """Jobs whose clock has run out, at most so many."""
        ...

    async def bind(self, edges: Sequence[Edge]) -> list[State | None]:
        """How the parents stand (null = there is no such job of that tenant).

        Where one is pending, the edge is noted, and the parent's end is told by `ripe`.
        """
        ...

    async def ripe(self, done: Sequence[Ripe], limit: int) -> list[Ripe]:
        """Forget these, with their children, unless they have ripened again; then tell of some that have.

        A job ripens when it ends or vanishes while another one waits for it, or if one is to follow it.
        """
        ...

    async def enlist(self, id: str, tenant: str, worker: NewWorker, lease: float) -> None:
        """Keep the record of a worker for as long as a lease."""
        ...

    async def greet(self, id: str, tenant: str, lease: float) -> Worker | None:
        """A tenant's worker has been heard of: its record, kept for another lease; null if it is not known (now)."""
        ...

    async def workers(self, tenant: str) -> list[Worker]:
        """The workers that are alive."""
        ...

    async def dismiss(self, id: str) -> bool:
        """Forget a worker; whether it was known."""
        ...

    def listen(self, topics: Sequence[str]) -> AbstractAsyncContextManager[Listener]:
        """Hear of new work (`work/QUEUE`), the end of a job (`end_topic`), orders to a worker (`order/WORKER`).

        And that a worker's wish was granted (`wish/WORKER`), by stores that keep wishes; that a job has ripened where
        none was ripe (`house/ripe`).
        """
        ...

    async def close(self) -> None:
        """Let go of everything that was opened."""
        ...
