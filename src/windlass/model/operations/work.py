"""How a worker moves a job: `Claim` leases it, `Begin` says that its code runs, `Renew` keeps the lease and brings
orders, `Finish` reports an outcome, `Release` gives it back. Each report carries the token of the lease.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from windlass.model.duration import OwnLease, Seconds, Time
from windlass.model.handler import Language
from windlass.model.job import MSGPACK, Error, Job, Reason
from windlass.model.names import MEDIA_PATTERN, MOST_FILES, FileName, Name
from windlass.model.new_job import NewJob
from windlass.model.operations.table import MOST_AT_ONCE, Operation, operation
from windlass.model.outcome import Verdict
from windlass.model.output import MOST_CHUNKS, NewChunk, Progress, RunUsage
from windlass.model.worker import SandboxTier, StopOrder, WorkerOrders

MOST_WARM = 100  # names in a claim's `warm`
MOST_SPAWNED = 100  # new jobs in the report of one job

WarmName = Annotated[str, Meta(max_length=257)]
Wait = Annotated[float, Meta(ge=0, le=60)]
HandlerNumber = Annotated[int, Meta(ge=1, le=2**53)]


class Claimed(Struct, frozen=True, kw_only=True, gc=False):
    """A job leased to a worker: `queued` → `running`. The right to finish it is the token."""

    job: Job
    token: str
    payload: Raw  # encoded as `job.content_type` says
    files: dict[str, bytes] = {}  # what was sent with the job, by name
    deadline: datetime | None = None
    results: list[Any] = []  # what the jobs that it waited for returned, if it asked for that (`with_results`)


@operation("POST", "/workers/{worker}/claim", "work")
class Claim(Operation[list[Claimed]], frozen=True, kw_only=True):
    """Take jobs under a lease, waiting for some if there are none."""

    worker: str
    slots: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] = 1
    wait: Wait = 0.0
    nonce: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$(?!\n)")] | None = None
    """Sixteen random hex digits; a claim repeated with the same nonce returns the same jobs."""
    warm: Annotated[list[WarmName], Meta(max_length=MOST_WARM)] = field(default_factory=list)
    """Tasks for which it has a warm context, as `tenant/task`; with turns, their jobs are preferred slightly."""
    languages: Annotated[list[Language], Meta(max_length=16)] | None = None
    """Claim handler jobs only in these languages; null = those it registered with."""


class LeasedJob(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A job that a worker says it holds."""

    id: str
    token: str
    tenant: Name | None = None  # whose job it is; null = the worker's own tenant. A worker of all tenants names it


class Applied(Struct, frozen=True, kw_only=True):
    """What became of a worker's report."""

    applied: list[str] = []
    refused: list[str] = []  # jobs that this worker does not hold under the token it gave: nothing was written for them


class Began(LeasedJob, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job whose code has started."""

    pid: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    lease: OwnLease | None = None  # seconds that its lease lasts; null = the worker's lease
    sandbox: SandboxTier | None = None  # of a handler's code: the tier of the sandbox that it runs in
    handler_version: HandlerNumber | None = None  # of a handler's code: its version
    files_loaded: bool = False  # the worker has saved the job's files; the queue may drop them


@operation("POST", "/workers/{worker}/begin", "work", body="jobs")
class Begin(Operation[Applied], frozen=True, kw_only=True):
    """The code of jobs starts. With `on_lost` = `fail` or `adopt`, report this before, so that no job can run twice."""

    worker: str
    jobs: Annotated[list[Began], Meta(max_length=MOST_AT_ONCE)]


class Alive(LeasedJob, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A job that is still running."""

    progress: Progress | None = None
    output: Annotated[list[NewChunk], Meta(max_length=MOST_CHUNKS)] = []
    """New output since the last report. Not deduplicated: sent twice, it is stored twice."""
    usage: RunUsage | None = None  # what it uses now; null = as reported before
    deadline: Time | None = None  # when the worker will stop it; sent so that the answer can say when that has changed
    heard: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Number of the last message received (0 = none yet); null = send none now."""
    lease: OwnLease | None = None  # seconds that its lease lasts from now; null = the worker's lease


class Order(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stop a job (cancel, halt) or give it less time (deadline); it is `running` until its worker reports its end."""

    id: str
    order: Literal["cancel", "halt", "deadline"]
    deadline: datetime | None = None


class Delivered(Struct, frozen=True, kw_only=True):
    """A message to a job, on its way to it."""

    id: str
    n: int  # its number among those for this run, from 1, without gaps
    data: bytes


class Renewed(Struct, frozen=True, kw_only=True):
    """What a worker learns when it renews."""

    lost: list[str] = []  # jobs that are no longer this worker's: stop them, report nothing
    orders: list[Order] = []
    messages: list[Delivered] = []  # messages to jobs that accept input; sent again until `heard` confirms them
    worker: WorkerOrders | None = None  # what the worker itself is to do, if it does not know that


@operation("POST", "/workers/{worker}/renew", "work", body="jobs")
class Renew(Operation[Renewed], frozen=True, kw_only=True):
    """Extend the leases of these jobs; get orders and messages, at once or as they come."""

    worker: str
    jobs: Annotated[list[Alive], Meta(max_length=10 * MOST_AT_ONCE)] = field(default_factory=list)
    wait: Wait = 0.0  # seconds to wait for orders or messages if there are none yet
    memory: Annotated[int, Meta(ge=0, le=2**62)] | None = None  # bytes that the worker and all its processes use
    cpu: Annotated[float, Meta(ge=0, le=1e6)] = 0.0  # how many CPUs they kept busy since the last such report
    paused: bool | None = None  # whether it knows that it is ordered to pause; null = it takes no orders
    stop: StopOrder | None = None  # the order to stop that it knows of


class Finished(LeasedJob, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """How an attempt ended; `lifecycle.finish` says what becomes of the job."""

    outcome: Verdict
    code: Annotated[int, Meta(ge=100, le=599)] | None = None
    """Must agree with the outcome: 1xx retry, 2xx ok, 4xx failed, 5xx error."""
    result: Raw | UnsetType = UNSET
    """What the task returned, in the encoding of `content_type`; goes with the outcome ok."""
    content_type: Annotated[str, Meta(max_length=128, pattern=MEDIA_PATTERN)] = MSGPACK
    message: str = ""
    error: Error | None = None
    reason: Reason | None = None  # what the worker knows: `timeout`, `crashed`, `memory`, `output` or `disk`
    delay: Seconds | None = None  # seconds before the next run, where there is one; null = by the job's retry policy
    finished_at: Time | None = None
    sandbox: SandboxTier | None = None
    handler_version: HandlerNumber | None = None  # as in `Began`; kept in the job's record
    jobs: Annotated[list[NewJob], Meta(max_length=MOST_SPAWNED)] = []
    """New jobs of its tenant, only with ok. Added before the finish is written, also if that is refused, and once."""
    files: Annotated[dict[FileName, bytes], Meta(max_length=MOST_FILES)] = {}
    """Files the run leaves; they replace those of an earlier run."""


@operation("POST", "/workers/{worker}/finish", "work", body="jobs")
class Finish(Operation[Applied], frozen=True, kw_only=True):
    """Report how jobs ended."""

    worker: str
    jobs: Annotated[list[Finished], Meta(max_length=MOST_AT_ONCE)]


class Released(LeasedJob, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A job that is given back."""

    delay: Seconds | None = None  # seconds before it may be claimed again
    hold_limit: Annotated[str, Meta(max_length=128)] | None = None
    """Hold the bucket of this limit for `delay` seconds (empty = of every limit of the job). A job with such a limit
    goes back to its place in the queue and waits there."""
    stopped: Annotated[str, Meta(max_length=2000)] | None = None
    """Why its code was stopped before it had ended: then `on_lost` decides. Null = it had not begun, or snoozed."""
    files: Annotated[dict[FileName, bytes], Meta(max_length=MOST_FILES)] = {}  # as with an outcome


@operation("POST", "/workers/{worker}/release", "work", body="jobs")
class Release(Operation[Applied], frozen=True, kw_only=True):
    """Give jobs back, unrun or stopped. No attempt is used; a stopped job fails if `on_lost` forbids another run."""

    worker: str
    jobs: Annotated[list[Released], Meta(max_length=MOST_AT_ONCE)]
