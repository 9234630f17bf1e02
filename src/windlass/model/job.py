"""The job: what was asked for (`Terms`), what came of it (`Job`), and the words for both.

Frozen data without behaviour; nothing here opens, sends or decides anything. Times are UTC by the
store's clock, durations are seconds, and "never" is written as null.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from windlass.model.duration import LONGEST
from windlass.model.names import DEFAULT_QUEUE, Name
from windlass.model.retry import EXPONENTIAL, RetryPolicy, Seconds


class State(StrEnum):
    """Where a job stands. Exactly one at any time; `lifecycle.TABLE` says which may follow which."""

    BLOCKED = "blocked"
    """Waits for other jobs."""
    SCHEDULED = "scheduled"
    """Waits for a time: its delay, or its next re-run (then `attempt` is above 0)."""
    QUEUED = "queued"
    """Waits for a worker."""
    RUNNING = "running"
    """Leased to a worker."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


PENDING = frozenset({State.BLOCKED, State.SCHEDULED, State.QUEUED, State.RUNNING})
FINISHED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


class Reason(StrEnum):
    """Why a job ended, why it waits for another run, or why a running one was ordered to stop."""

    ERROR = "error"
    """The task broke (5xx)."""
    RETRY = "retry"
    """The task asked to be run again (1xx)."""
    FAILED = "failed"
    """The task said that it cannot succeed (4xx)."""
    TIMEOUT = "timeout"
    """It ran longer than its `timeout`."""
    CRASHED = "crashed"
    """Its process died under it."""
    LOST = "lost"
    """Its worker was not heard of for a whole lease."""
    DEADLINE = "deadline"
    """Its retry deadline passed."""
    EXPIRED = "expired"
    """It was not started in time."""
    SHRUNK = "shrunk"
    """Its time was taken for jobs that wait."""
    HALTED = "halted"
    """Its place was taken for jobs that wait."""
    RELEASED = "released"
    """Its worker gave it back unrun."""
    SNOOZED = "snoozed"
    """The task asked for a later time, without using an attempt."""
    CANCELLED = "cancelled"
    """It was cancelled by a caller."""
    DELETED = "deleted"
    """It was deleted while it ran: it is stopped and leaves no record."""
    MEMORY = "memory"
    """It took more memory than its worker allows."""
    OUTPUT = "output"
    """It printed more than its worker allows."""
    DISK = "disk"
    """It wrote more, or more files, than its worker allows."""
    DEPENDENCY = "dependency"
    """A job that it waited for did not succeed."""
    ABANDONED = "abandoned"
    """Its owner did not ask for it within the `unattended` time."""
    ACCEPTED = "accepted"
    """It is safe in the server's journal, and waits for the store to answer again."""


MOST_PARENTS = 100
"""Jobs that one job may wait for."""

MOST_THEN = 10
"""Jobs that may follow each other by `then`."""

KeepResult = Literal["keep", "once", "none"]

MSGPACK = "application/vnd.msgpack"
JSON = "application/json"
TEXT = "text/plain"

DAY = 86400.0

LEAST_UNATTENDED = 1.0
"""Seconds: upkeep looks no more often."""

LOWEST, HIGHEST = -(2**31), 2**31 - 1
"""Bounds of a priority."""

Time = Annotated[datetime, Meta(tz=True)]
"""A time that a caller sends; it must name its time zone."""

Text = Annotated[str, Meta(max_length=8192)]


# Jobs hold nothing that could hold them in turn, so the collector need not look at them (`gc=False`): otherwise it
# takes a third of the time in which many are made.


class JobOptions(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """What a submitter may ask of the queue for a job, whatever its task. None of it changes while the job lives."""

    queue: Name = DEFAULT_QUEUE
    """The named queue it waits in."""
    key: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    """The caller's own name for the job; its id is derived from tenant, queue and key."""
    priority: Annotated[int, Meta(ge=LOWEST, le=HIGHEST)] = 0
    """Lower goes first; equal ones go by arrival."""
    tags: Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(max_length=32)] = []
    """Words to find it by."""
    timeout: Seconds | None = None
    """Seconds one attempt may run; null = as long as it likes."""
    tier: Name | Seconds | None = None
    """The time class asked for, by name or by seconds; null = flexible where the queue has tiers."""
    yielding: bool = False
    """Whether it may be halted for others, and is denied rather than queued."""
    max_retry: Annotated[int, Meta(ge=0, le=1_000_000)] | None = 0
    """How many re-runs a failing job gets; null = as many as the retry deadline allows."""
    retry: RetryPolicy = EXPONENTIAL
    """When those re-runs come."""
    keep_result: KeepResult = "keep"
    """Whether the result stays with the record, is handed out once, or is dropped at once."""
    keep_result_for: Seconds | None = None
    """Seconds after success that the result stays, if its record stays longer; null = as long as the record."""
    keep_success: Seconds | None = DAY
    """Seconds that the record of a success stays; null = forever."""
    keep_failure: Seconds | None = 7 * DAY
    """Seconds that the record of a failed or cancelled job stays; null = forever."""
    expires: Seconds | None = None
    """Seconds after creation within which it must be started, or it fails as `expired`; null = never."""
    unattended: Annotated[float, Meta(ge=LEAST_UNATTENDED, le=LONGEST)] | None = None
    """Seconds it may go without its owner asking for it; then it is cancelled as `abandoned`; null = forever."""
    isolate: bool = False
    """Whether it runs in a process of its own."""
    input: bool = False
    """Whether messages may be sent to it, which its task takes while it runs."""
    headers: Annotated[dict[Annotated[str, Meta(max_length=128)], Text], Meta(max_length=64)] = {}
    """Texts that travel with the job untouched (trace ids and the like)."""
    content_type: Annotated[str, Meta(max_length=128)] = MSGPACK
    """How the payload is encoded; the queue itself never decodes it."""
    one_argument: bool = False
    """Whether the payload is one argument of a Python task even if it is a list or a map, which otherwise give the
    arguments by place or by name. So is a result that is passed on by `then`."""


class Terms(JobOptions, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A task, and what is asked of the queue for one job of it."""

    task: Name
    """Which code the job runs."""
    after: Annotated[list[str], Meta(max_length=MOST_PARENTS)] = []
    """Ids of jobs of the same tenant that must have succeeded before it is queued; if one does not, it is cancelled."""


NOTHING = Raw(b"\xc0")
"""MessagePack nil: the payload of a job that was given none."""


MOST_FILES = 32

FileName = Annotated[str, Meta(min_length=1, max_length=255)]
"""Without `/`, and neither `.` nor `..`."""


OWN_ID = (
    "A UUID made by the caller, in lower case: sending it twice makes one job. Its last two digits must be those of "
    "the queue, the lowest byte of the CRC-32 of its name (`df` for `default`): the error says which. Or send a `key`."
)


class NewJob(Terms, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A job as it is sent in."""

    payload: Raw = field(default_factory=lambda: NOTHING)  # made, for a schema cannot show it
    """One encoded value, in the encoding that `content_type` names."""
    files: Annotated[dict[FileName, bytes], Meta(max_length=MOST_FILES)] = {}
    """Files that go to the worker with the payload, by name; together with it they are no larger than it may be."""
    id: Annotated[str, Meta(description=OWN_ID)] | None = None
    """A UUID made by the caller; sending it twice makes one job. Absent: derived from `key`, or random."""
    delay: Seconds | None = None
    """Seconds to wait before it may run."""
    then: "NewJob | None" = None
    """A job to be queued when this one has succeeded; without a payload of its own it gets this one's result."""
    run_at: Time | None = None
    """The time before which it may not run, with its time zone; not together with `delay`."""


class Error(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong in one attempt, as text."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    reason: Reason | None = None
    attempt: int = 0
    """The attempt it belongs to."""
    at: datetime | None = None
    """When it was reported."""


class HandlerRun(NamedTuple):
    """What runs a job, where that is a handler's code: the tier of its sandbox if it is in one, and the version."""

    sandbox: str | None = None
    handler_version: int | None = None


NO_HANDLER = HandlerRun()


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a running job says it is."""

    done: float = 0
    total: float | None = None
    note: Annotated[str, Meta(max_length=1000)] = ""


Stream = Literal["stdout", "stderr", "log"]

MOST_CHUNK = 64 * 2**10
"""Bytes of one piece of output."""

MOST_OUTPUT = 256 * 2**10
"""Bytes of output that are kept of one job: the newest."""

MOST_CHUNKS = 1000
"""Pieces of output that are kept of one job: the newest."""


class NewChunk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A piece of what a job prints or logs, as it is sent in."""

    stream: Stream
    data: Annotated[bytes, Meta(max_length=MOST_CHUNK)]


class Chunk(NewChunk, frozen=True, kw_only=True):
    """A piece of output as the queue keeps it."""

    n: int
    """Its number among all that the job ever put out, from 1."""
    attempt: int
    """The run that put it out."""
    at: datetime
    """When it came in."""


MOST_MESSAGE = 64 * 2**10
"""Bytes of one message to a job."""

MOST_INPUT = 256 * 2**10
"""Bytes of messages that wait for one job."""

MOST_MESSAGES = 1000
"""Messages that wait for one job."""


class Message(Struct, frozen=True):
    """A message that was sent to a job."""

    n: int
    """Its number among all that were sent for this run, from 1."""
    data: bytes


class Job(Terms, frozen=True, kw_only=True, omit_defaults=False, gc=False):
    """A job as the queue knows it: its terms, and what has come of it so far."""

    id: str
    """The UUID it was sent with. Never changes."""
    tenant: str
    """Whose job it is. Never changes."""
    state: State
    """Where it stands; changes only by `lifecycle.TABLE`."""
    waits_for: list[str] = []
    """Which of `after` have not succeeded yet, as far as is known. Empty unless it is blocked."""
    reason: Reason | None = None
    """Why it ended or waits for another run; on a running job, why it was ordered to stop. Null otherwise."""
    attempt: int = 0
    """Which run this is, from 1; 0 before the first. Grows at each claim; a run given back is not counted."""
    crashes: int = 0
    """Runs that ended with the death of their process. Grows by one at each."""
    losses: int = 0
    """Runs whose worker was not heard of again. Grows by one at each."""
    worker: str | None = None
    """The worker that holds it or held it last. Set at each claim."""
    node: str | None = None
    """The machine of that worker. Set at each claim."""
    sandbox: str | None = None
    """The tier under which its code runs or last ran, if that is a handler's; null = in no sandbox. Set with `pid`, and
    at each finish."""
    handler_version: int | None = None
    """Which version of its handler runs or last ran; null = the task of an app, or not begun. Set with `sandbox`."""
    pid: int | None = None
    """The process that runs it or ran it last. Set when its code starts; null between claim and start."""
    progress: Progress | None = None
    """What the running task last said of how far it is."""
    estimate: float | None = None
    """Seconds it was expected to wait when it was enqueued. Set in that answer only; later, ask for the estimate."""
    code: int | None = None
    """The code of its last outcome (1xx, 2xx, 4xx, 5xx). Set at each finish."""
    error: Error | None = None
    """The last of `errors`."""
    errors: list[Error] = []
    """One entry per attempt that did not succeed, oldest first, the newest hundred; kept after a later success."""
    created_at: datetime
    """When the store accepted it. Never changes."""
    updated_at: datetime
    """When its state, reason, pid or progress last changed."""
    run_at: datetime | None = None
    """Before this it may not run: its delay, or its next re-run. Null if it never had to wait."""
    started_at: datetime | None = None
    """When the current or last attempt was claimed."""
    finished_at: datetime | None = None
    """When it ended for good. Null while pending."""
    assigned: str | None = None
    """The tier at which it runs, where its queue has tiers. Null unless running; may become a shorter one meanwhile."""
    deadline: datetime | None = None
    """When the current attempt is stopped: its start plus `timeout`, or plus the time of its tier if that is less."""
    size: int = 0
    """Bytes of its payload."""
    payload: Raw | UnsetType = UNSET
    """Its payload, only where it was asked for."""
