"""The data that goes into a store and comes out of it; that of flow control is in `flow`, the methods in `protocol`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum, StrEnum
from hashlib import sha1
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from windlass.model.errors import Unavailable
from windlass.model.handler import NO_HANDLER, HandlerRun
from windlass.model.job import Job, Reason, State
from windlass.model.lifecycle import Step
from windlass.model.names import JobKey
from windlass.model.new_job import NewJob
from windlass.model.outcome import Verdict
from windlass.model.output import Message, NewChunk, Progress, RunUsage
from windlass.model.worker import Worker

SEEN_EVERY = 1.0
"""Seconds between two notes that a worker has been heard of by its claims: an idle one need not write at each."""

MOST_CHILDREN = 100
"""Children of one completed parent that are returned at a time."""


Turn = Literal["queues", "tenants", "tasks"]


def turns_of_queues(nonce: bytes, queues: Sequence[str]) -> list[str]:
    """The order in which queues take turns in a claim; one that is named several times has so many turns."""
    labels, seen = dict[str, str](), Counter[str]()
    for queue in queues:
        labels[f"{queue}#{seen[queue]}" if seen[queue] else queue] = queue
        seen[queue] += 1
    return [labels[label] for label in shuffled(nonce, labels)]


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
    group_epoch: int = 0
    """The rules under which the group was made: see `Rules.group_epoch`."""
    identity: bytes = b""
    """What it is known by, if it is unique: see `model.unique`."""
    follows: bool = False
    """Whether another job brings it about: then it is kept as long as anything can be, for that job's end waits."""


class Duplicate(NamedTuple):
    """A unique job was not added, because there is another one. False, as is what `add` says of a job that is there."""

    id: str
    """The other one's."""
    replaced: bool = False
    """Whether that one is now as the new one was to be."""

    def __bool__(self) -> bool:
        return False


Added = bool | Duplicate
"""Whether a job is new."""


def stored_as(draft: Draft, added: Added | None) -> JobKey:
    """The job that there is for one that was to be added."""
    return JobKey(added.id if isinstance(added, Duplicate) else draft.id, draft.tenant)


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


class Heartbeat(Struct, frozen=True):
    """A sign of life of one running job."""

    id: str
    tenant: str
    token: bytes
    pid: int | None = None
    progress: Progress | None = None
    output: Sequence[NewChunk] = ()
    usage: RunUsage | None = None
    ran: HandlerRun = NO_HANDLER
    messages_after: int | None = None
    """The number of the last message that its worker has: those up to it are dropped. Null = it takes none now."""
    lease: float | None = None
    """Seconds that its lease lasts, if it has its own length: the engine makes a call for each length."""
    files_loaded: bool = False
    """Whether the files that came with it are dropped: its worker has them, and it is not run again."""


class HeartbeatReply(Struct, frozen=True):
    """What a worker learns from a sign of life."""

    id: str
    held: bool
    """Whether the job is still its own."""
    reason: Reason | None = None
    """Why the job must stop, if it must; `shrunk` = it may go on until `deadline`."""
    deadline: datetime | None = None
    """When a job that runs at a tier is stopped."""
    messages: list[Message] = []
    """Those that its worker does not have yet, in order; of all jobs of a call about `MOST_COLLECTED` bytes."""


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
    reason: Reason | None = None
    """Why it ended, if not by its own word: then its worker is notified, as of an order."""


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

    The caller listens to `grant/WORKER` meanwhile, then sends the same request again: the answer is what the parked
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


class RunCount(Struct, frozen=True):
    """How many runs of one tenant, queue and task ended in one way; kept when the jobs are gone."""

    tenant: str
    queue: str
    task: str
    outcome: Verdict
    count: int


MOST_COUNTED = 10_000
"""Tasks (each in a queue of a tenant) whose runs one partition of a store counts: those that ran first."""


class Counts(Struct, frozen=True):
    """Counters of a store, each list sorted."""

    jobs: list[JobCount]
    runs: list[RunCount]


def sorted_counts(jobs: Iterable[JobCount], runs: Iterable[RunCount]) -> Counts:
    return Counts(
        sorted(jobs, key=lambda one: (one.tenant, one.queue, one.task, one.state)),
        sorted(runs, key=lambda one: (one.tenant, one.queue, one.task, one.outcome)),
    )


# Clocks


class Sweep(StrEnum):
    """What a store does where a clock has run out, without a decision: named after the duties of upkeep."""

    PROMOTE = "promote"
    """A scheduled job whose time has come is queued."""
    PURGE = "purge"
    """A finished job that was kept long enough is dropped; or its result is, if only that was kept long enough."""
    UNBLOCK = "unblock"
    """A lane whose limit has room again, whose pause is over, or that was overlooked, can be claimed from."""


class DueJob(Struct, frozen=True, gc=False):
    """A job whose clock ran out, as it is now or was at last."""

    id: str
    tenant: str
    queue: str
    task: str
    state: State
    result_only: bool = False
    """Whether only its result was dropped, and its record stays."""


class SweepReply(Struct, frozen=True):
    """What a sweep did."""

    count: int
    """How many jobs, or lanes, it changed."""
    jobs: Sequence[DueJob] = ()
    """The jobs, where it changes jobs."""


ORDER_STEPS = frozenset({Step.CANCEL, Step.ABANDON, Step.DELETE, Step.HALT, Step.SHRINK, Step.LOWER})
"""Steps that order a running job's worker to do something; the job goes on for now."""


class Overdue(StrEnum):
    """Clocks whose running out needs a decision."""

    LEASE = "lease"
    """A running job that was not renewed."""
    EXPIRY = "expiry"
    """A job that was not started before it expired."""
    OWNER = "owner"
    """A job whose owner stopped asking for it."""


class OverdueJobs(Struct, frozen=True):
    """Jobs whose clock has run out, and the store's time."""

    now: datetime
    records: list[Record]
    """Earliest first."""
    sources: Sequence[int] = ()
    """For each the part of the store that it is in: parts may be away, each by itself. Empty = there is one part, 0."""
    answered: Sequence[int] = (0,)
    """The parts that answered."""


# Messages to jobs

MOST_COLLECTED = 4 << 20
"""Bytes of messages that are handed out at once; the rest waits for the next time."""


class Posted(StrEnum):
    """What became of a message."""

    KEPT = "kept"
    FULL = "full"
    """`MOST_MESSAGES` or `MOST_INPUT` wait already: it was not kept."""
    OVER = "over"
    """The run would get more than its job allows: it was not kept."""
    ENDED = "ended"
    """There is no such job, or it has ended: it was not kept."""


# Durable steps


class JobStep(Struct, frozen=True):
    """A step of a running job has finished."""

    id: str
    tenant: str
    token: bytes
    name: str
    result: bytes


class StepSaved(Enum):
    """What became of its result."""

    KEPT = "kept"
    FULL = "full"
    """The job has as many steps, or as many bytes of them, as it may have: it was not kept."""
    LOST = "lost"
    """The job does not run under that token: it was not kept."""


class StoredStep(Struct, frozen=True):
    """A step that has finished."""

    name: str
    finished_at: datetime
    result: bytes


class StoredSteps(Struct, frozen=True):
    """The steps of a job, and the store's time at which they were read."""

    now: datetime
    steps: list[StoredStep]


# Records and events


class Unchecked(Enum):
    """In the place of a record's data before a change."""

    ANYTHING = "anything"


ANYTHING: Final = Unchecked.ANYTHING
"""Whatever is there now, or nothing."""

WOKEN = ""
"""What a listener hears of a wake-up."""

FEED = "feed"
"""The topic of all that is published."""

GAP = "gap"
"""The event that says some events were missed."""


# Draining of journals


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
