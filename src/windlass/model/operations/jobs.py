"""Operations on jobs: queue, look, list, count, edit, cancel, run again, delete, finish or fail by hand."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from windlass.model.duration import Seconds, Time
from windlass.model.health import Health
from windlass.model.history import History, HistoryStep
from windlass.model.job import MSGPACK, Error, Job, State
from windlass.model.match import Match
from windlass.model.names import MEDIA_PATTERN, Name
from windlass.model.new_job import HIGHEST, LOWEST, JobOptions, NewJob, Tags
from windlass.model.operations.table import MOST_AT_ONCE, Operation, operation
from windlass.model.outcome import Verdict
from windlass.model.output import MOST_CHUNK, MOST_CHUNKS, MOST_MESSAGE, Chunk, Stream
from windlass.model.stdin import Length, SignalName

MOST_TEXT = 16 * 2**20
"""Characters of a text whose lines become jobs."""

MOST_LINES = 100_000
"""Lines of it."""

MOST_ANNOTATIONS = 64
MOST_ANNOTATED = 16_384
"""Bytes of all annotations of a job, names and values."""

AnnotationName = Annotated[str, Meta(pattern=r"^[^=\x00-\x1f\x7f]{1,128}$(?!\n)")]
"""Of a command line's `NAME=VALUE`, so without `=`; and without control characters."""


Annotations = Annotated[
    dict[AnnotationName, Annotated[str, Meta(max_length=MOST_ANNOTATED)] | None], Meta(max_length=2 * MOST_ANNOTATIONS)
]


class Accepted(Job, frozen=True, kw_only=True, gc=False):
    """A job as it was taken in."""

    created: bool
    """Whether it is new; false = the id or key was there already, and this is that job."""


class Enqueued(Struct, frozen=True, kw_only=True):
    """What became of a batch."""

    ids: list[str]
    """In the order sent."""
    created: int
    """How many of them are new; the others were there already."""
    existing: list[str] = []
    """Those of `ids` that were there before: the same id or key was queued earlier, and may even have finished."""


class Result(Struct, frozen=True, kw_only=True):
    """How a job ended."""

    state: State
    result: Raw | UnsetType = UNSET
    """The value in the encoding of `content_type`; absent if there is none (any more)."""
    content_type: str = MSGPACK
    """Empty over HTTP if there is no result; the result is null then."""
    code: int | None = None
    error: Error | None = None


class BatchProgress(Struct, frozen=True):
    """How far the jobs of a batch are."""

    total: int
    done: int
    """How many have ended in any way, or are gone."""
    states: dict[State, int]
    """How many are in each state; those whose record is gone are in none."""


class Page(Struct, frozen=True, kw_only=True):
    """Some of the matching jobs."""

    jobs: list[Job]
    next: str | None = None
    """Give this as `after` for the following page; null = this was the last."""


class OutputPage(Struct, frozen=True, kw_only=True):
    """Some of what a job put out."""

    chunks: list[Chunk]
    """In order; a gap in their numbers is output that made room for newer."""
    next: int
    """Give this as `after` for what follows."""
    ended: bool
    """Whether the job has finished: if also no chunk came, there is no more."""


class Number(Struct, frozen=True, kw_only=True):
    """How many."""

    count: int


class Changed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many jobs an action changed, or would change in a dry run."""

    changed: int
    stopping: int = 0
    """How many of them run: they are `running` until they have been stopped, or until their lease has ended."""


class QueueStats(Struct, frozen=True, kw_only=True):
    """How many jobs of one queue and task are in each state."""

    tenant: str
    queue: str
    task: str
    states: dict[State, int]
    outcomes: dict[Verdict, int] = {}
    """How many runs ended so ever since, whether or not their jobs are still there."""


class Stats(Struct, frozen=True, kw_only=True):
    """How many jobs there are."""

    queues: list[QueueStats]


JobIds = Annotated[list[str], Meta(max_length=MOST_AT_ONCE)]


@operation("POST", "/jobs", "enqueue", 201, body="job")
class Enqueue(Operation[Accepted], frozen=True, kw_only=True):
    """Queue one job. The same id or key again answers the job that is there."""

    job: NewJob
    exact: bool = False
    """Whether it is taken exactly as sent; otherwise options that it does not name are those of its task, as registered
    by the task's workers."""
    most_files: Annotated[int, Meta(ge=0)] | None = None
    """Refuse it if its files, those named by their SHA-256 included, have more bytes together; null = as its queue
    does."""


@operation("POST", "/jobs/batch", "enqueue", 201, body="jobs")
class EnqueueMany(Operation[Enqueued], frozen=True, kw_only=True):
    """Queue many jobs in one round trip; if one of them is invalid, none is queued."""

    exact: bool = False
    """As with one job."""
    jobs: Annotated[list[NewJob], Meta(max_length=MOST_AT_ONCE)]


@operation("POST", "/tasks/{task}/jobs", "enqueue", 201, body="text")
class EnqueueLines(Operation[Enqueued], frozen=True, kw_only=True):
    """Queue one job for each line of a text; empty lines and lines that begin with `#` are skipped."""

    task: Name
    text: Annotated[str, Meta(max_length=MOST_TEXT)]
    """Each line is the payload of a job, as text."""
    options: JobOptions = JobOptions()
    """What is asked of the queue for all of them."""
    delay: Seconds | None = None
    """Seconds that all of them wait before they may run."""
    exact: bool = False
    """As with one job."""


@operation("GET", "/jobs/{id}", "read")
class Show(Operation[Job], frozen=True, kw_only=True):
    """One job as it is now."""

    id: str
    payload: bool = False
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0
    """Seconds to wait for its end, if it has not ended yet."""


@operation("POST", "/jobs/progress", "read")
class GetProgress(Operation[BatchProgress], frozen=True, kw_only=True):
    """How far these jobs are together, waiting for the end of all of them if asked to."""

    ids: JobIds
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0


@operation("GET", "/jobs/{id}/result", "read")
class GetResult(Operation[Result], frozen=True, kw_only=True):
    """How a job ended, waiting for it if asked to."""

    id: str
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0


@operation("GET", "/jobs/{id}/output", "read")
class GetOutput(Operation[OutputPage], frozen=True, kw_only=True):
    """What a job has put out so far: the newest of it, however long it runs."""

    id: str
    after: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """The number of the last chunk that is known already."""
    stream: Stream | None = None
    """Only what is on this stream; null = on any."""
    limit: Annotated[int, Meta(ge=1, le=MOST_CHUNKS)] = MOST_CHUNKS


@operation("POST", "/jobs/{id}/output", "work", 204, body="data")
class Output(Operation[None], frozen=True, kw_only=True):
    """A running job has put something out, which is also a sign of life; kept as often as it is sent."""

    id: str
    token: str
    stream: Stream
    data: Annotated[bytes, Meta(max_length=MOST_CHUNK)]


@operation("GET", "/jobs", "read")
class List(Operation[Page], frozen=True, kw_only=True):
    """Matching jobs, queue by queue in order of arrival or all of them newest first, a page at a time."""

    match: Match = Match()
    limit: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] = 100
    after: str | None = None
    order: Literal["oldest", "newest"] = "oldest"
    """`oldest`: queue by queue, each in order of arrival. `newest`: the last ones come first, whatever their queue; of
    more than 64 queues, queue by queue. The same for all pages."""


@operation("GET", "/jobs/count", "read")
class Count(Operation[Number], frozen=True, kw_only=True):
    """How many jobs match."""

    match: Match = Match()


class Selection(Operation[Changed], frozen=True, kw_only=True):
    """An action on the jobs named, or on all that match."""

    ids: JobIds | None = None
    match: Match | None = None
    dry_run: bool = False


@operation("POST", "/jobs/cancel", "operate", one="/jobs/{id}/cancel")
class Cancel(Selection, frozen=True, kw_only=True):
    """Cancel jobs; running ones are stopped."""


@operation("POST", "/jobs/{id}/finish", "operate")
class FinishByHand(Operation[Changed], frozen=True, kw_only=True):
    """End a running job as succeeded, whether or not its process still lives: that is stopped, its report refused."""

    id: str
    result: Raw | UnsetType = UNSET
    """Its result, in the encoding of `content_type`."""
    content_type: Annotated[str, Meta(max_length=128, pattern=MEDIA_PATTERN)] = MSGPACK


@operation("POST", "/jobs/{id}/fail", "operate")
class FailByHand(Operation[Changed], frozen=True, kw_only=True):
    """End a running job as failed, whether or not its process still lives; it is not run again."""

    id: str
    message: Annotated[str, Meta(max_length=2000)] = ""
    """Why; the message of its error."""


@operation("POST", "/jobs/{id}/timeout", "operate")
class LowerTimeout(Operation[Changed], frozen=True, kw_only=True):
    """Lower the time limit of a running job, which stops at once if it has run for longer. A higher one is ignored."""

    id: str
    timeout: Seconds
    """Seconds that its run may take, from its start."""


@operation("PATCH", "/jobs/{id}", "operate")
class Edit(Operation[Job], frozen=True, kw_only=True):
    """Edit a job that waits, or annotate one in any state; answers the job as it is then, with all else as it was."""

    id: str
    annotations: Annotations | None = None
    """By name: added, or put in the place of the one before; null removes it. Others stay as they are."""
    priority: Annotated[int, Meta(ge=LOWEST, le=HIGHEST)] | None = None
    """Lower goes first."""
    queue: Name | None = None
    """The queue that it waits in then, as the last to arrive there; in Redis Cluster one of the same partition."""
    tags: Tags | None = None
    """All that it has then."""
    delay: Seconds | None = None
    """Seconds from now that it waits before it may run; 0 = it need not wait any longer."""
    run_at: Time | None = None
    """The time before which it may not run; not together with `delay`."""
    payload: Raw | UnsetType = UNSET
    """Its payload, in the encoding of `content_type`; absent = as it was."""
    content_type: Annotated[str, Meta(max_length=128)] = MSGPACK
    """How the payload is encoded."""
    one_argument: bool = False
    """Whether the payload is one argument even if it is a list or a map of several."""


@operation("POST", "/jobs/{id}/input", "operate", 204, body="data")
class Send(Operation[None], frozen=True, kw_only=True):
    """Send a message to a job that takes input: to its run, or to its next one; kept as often as it is sent."""

    id: str
    data: Annotated[bytes, Meta(max_length=MOST_MESSAGE)]


@operation("POST", "/jobs/{id}/resize", "operate", 204)
class Resize(Operation[None], frozen=True, kw_only=True):
    """The terminal of a job has another size."""

    id: str
    rows: Length
    columns: Length


@operation("POST", "/jobs/{id}/signal", "operate", 204)
class SendSignal(Operation[None], frozen=True, kw_only=True):
    """Send a signal to a job with a standard input: to what runs in the foreground of its terminal, or to its group."""

    id: str
    signal: SignalName


@operation("POST", "/jobs/retry", "operate", one="/jobs/{id}/retry")
class Rerun(Selection, frozen=True, kw_only=True):
    """Queue finished jobs again, counting attempts from the start."""


@operation("DELETE", "/jobs", "operate", one="/jobs/{id}")
class Delete(Selection, frozen=True, kw_only=True):
    """Delete jobs and their records; running ones are stopped first."""

    finished_only: bool = False
    """Only finished jobs: of the jobs that match no other is touched; if one that is named has not finished, none is
    deleted."""


@operation("GET", "/history", "read")
class GetHistory(Operation[History], frozen=True, kw_only=True):
    """How runs ended, and how many jobs waited and ran: by the minute for a day, by the hour for a month."""

    step: HistoryStep = "minute"
    points: Annotated[int, Meta(ge=1, le=1440)] = 60
    """How many minutes or hours, at most."""
    queue: Name | None = None
    """Of one queue; null = of all."""
    by_queue: bool = False
    """Whether to say it of each queue, too."""


@operation("GET", "/health", "read")
class GetHealth(Operation[Health], frozen=True, kw_only=True):
    """How full the store is, and what waits in the server's journal. With the token of one tenant, nothing."""


@operation("GET", "/stats", "read")
class GetStats(Operation[Stats], frozen=True, kw_only=True):
    """How many jobs there are by queue, task and state; costs the same whatever the backlog."""
