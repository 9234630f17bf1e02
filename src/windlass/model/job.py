"""The job as the queue knows it: what was asked for (`Terms`, in `new_job`), and what has happened to it since.

Frozen data without behaviour. Times are UTC by the store's clock, durations are seconds, "never" is written as null.
"""

from datetime import datetime
from enum import StrEnum

from msgspec import UNSET, Raw, Struct, UnsetType, field

from windlass.model.new_job import JobOptions, Terms
from windlass.model.output import Progress, RunUsage


class State(StrEnum):
    """Where a job stands. Exactly one at any time; `lifecycle.TABLE` says which may follow which."""

    BLOCKED = "blocked"  # waits for other jobs
    SCHEDULED = "scheduled"  # waits for a time: its delay, or its next re-run
    QUEUED = "queued"  # waits for a worker
    RUNNING = "running"  # leased to a worker
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


PENDING = frozenset({State.BLOCKED, State.SCHEDULED, State.QUEUED, State.RUNNING})
FINISHED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


class Reason(StrEnum):
    """Why a job ended, why it waits for another run, or why a running one was ordered to stop or given less time."""

    ERROR = "error"  # the task broke (5xx)
    RETRY = "retry"  # the task asked to be run again (1xx)
    FAILED = "failed"  # the task said that it cannot succeed (4xx)
    TIMEOUT = "timeout"  # it ran longer than its `timeout`
    CRASHED = "crashed"  # its process died under it
    LOST = "lost"  # its worker was silent for a whole lease, or stopped a job that must not run twice
    DEADLINE = "deadline"  # its retry deadline passed
    EXPIRED = "expired"  # it was not started in time
    SHRUNK = "shrunk"  # its time was taken for jobs that wait
    LOWERED = "lowered"  # a caller lowered its time limit while it ran
    HALTED = "halted"  # its place was taken for jobs that wait
    RELEASED = "released"  # its worker gave it back unrun
    SNOOZED = "snoozed"  # the task asked for a later time, without using an attempt
    CANCELLED = "cancelled"  # it was cancelled by a caller
    DELETED = "deleted"  # it was deleted while it ran: it is stopped and leaves no record
    MEMORY = "memory"  # it took more memory than its worker allows
    OUTPUT = "output"  # it printed more than its worker allows
    DISK = "disk"  # it wrote more, or more files, than its worker allows
    DEPENDENCY = "dependency"  # a job that it waited for did not succeed
    ABANDONED = "abandoned"  # its owner did not ask for it within the `owner_timeout` time
    BY_HAND = "by_hand"  # a caller finished or failed it while it ran
    ACCEPTED = "accepted"  # it is safe in the server's journal, and waits for the store to answer again


MSGPACK = JobOptions().content_type
JSON = "application/json"
TEXT = "text/plain"


class Error(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why one run did not succeed, as text, and where it ran."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    reason: Reason | None = None
    attempt: int = 0
    at: datetime | None = None
    worker: str | None = None
    node: str | None = None
    pid: int | None = None  # null = its code had not begun, or ended before its worker reported the process
    peak_memory: int | None = None  # bytes, of the largest of its processes; null = it had no process of its own
    cpu_time: float | None = None  # seconds, of all its processes; null = likewise


class Job(Terms, frozen=True, kw_only=True, omit_defaults=False, gc=False):
    """A job as the queue knows it: its terms, and what has happened to it so far."""

    id: str
    """The UUID it was sent with. Never changes."""
    tenant: str
    """Whose job it is. Never changes."""
    state: State
    """Where it stands; changes only by `lifecycle.TABLE`."""
    waits_for: list[str] = field(default_factory=list)
    """Which of `after` have not ended yet, as far as is known. Empty unless it is blocked."""
    reason: Reason | None = None
    """Why it ended, waits for another run or, while it runs, was ordered to stop or given less time. Null otherwise."""
    attempt: int = 0
    """Which run this is, from 1; 0 before the first. Grows at each claim; a run given back is not counted."""
    crashes: int = 0
    """Runs that ended with the death of their process. Grows by one at each."""
    losses: int = 0
    """Runs whose worker disappeared, or stopped a job that must not run twice. Grows by one at each."""
    worker: str | None = None
    """The worker that holds it or held it last. Set at each claim, and when it is adopted."""
    node: str | None = None
    """The machine of that worker. Set with it."""
    adopted_by: str | None = None
    """The worker that adopted its process; null = not adopted."""
    adopted_at: datetime | None = None
    """When that was, the last time. Cleared at each claim."""
    sandbox: str | None = None
    """The sandbox tier of its handler's code; null = no sandbox. Set with `pid`, and at each finish."""
    handler_version: int | None = None
    """Which version of its handler runs or last ran; null = the task of an app, or not begun. Set with `sandbox`."""
    pid: int | None = None
    """The process that runs it or did last. Set after 0.2 s; with `on_lost` fail or adopt, before it starts."""
    progress: Progress | None = None
    """The progress that its task reported last."""
    usage: RunUsage | None = None
    """What it uses. Null unless it runs in a process of its own or has put something out; changes with heartbeats."""
    estimate: float | None = None
    """Seconds it was expected to wait when it was enqueued. Set in that answer only; later, ask for the estimate."""
    estimate_at_most: float | None = None
    """The longest it could wait, in seconds, where its queue has tiers. Set like `estimate`."""
    code: int | None = None
    """The code of its last outcome (1xx, 2xx, 4xx, 5xx). Set at each finish."""
    error: Error | None = None
    """The last of `errors`."""
    errors: list[Error] = field(default_factory=list)
    """One per run that did not succeed (also lost and stopped ones), and one if it expired or a parent failed.
    Oldest first, the newest hundred; kept after a later success."""
    created_at: datetime
    """When the store accepted it. Never changes."""
    updated_at: datetime
    """When its state, reason, pid or progress last changed, or it was adopted or, before its end, edited."""
    run_at: datetime | None = None
    """It does not run before this: its delay, or its next re-run. Null if it never had to wait."""
    started_at: datetime | None = None
    """When the current or last attempt was claimed."""
    finished_at: datetime | None = None
    """When it ended for good. Null while pending."""
    assigned: str | None = None
    """The tier at which it runs, where its queue has tiers. Null unless running; may become a shorter one meanwhile."""
    deadline: datetime | None = None
    """When the current attempt is stopped: its start plus `timeout`, or plus the time of its tier if that is less."""
    annotations: dict[str, str] = field(default_factory=dict)
    """What callers have noted about it. Changes at any time, in any state; stays through retries and re-runs."""
    edits: int = 0
    """How often callers have edited it or annotated it."""
    size: int = 0
    """Bytes of its payload."""
    payload: Raw | UnsetType = UNSET
    """Its payload, only where it was asked for."""
