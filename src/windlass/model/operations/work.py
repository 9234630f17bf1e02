"""How a worker moves a job: `Claim` leases it, `Begin` says that its code runs, `Renew` keeps the lease and brings
orders, `Finish` reports an outcome, `Release` gives it back unrun. Each report carries the token of the lease.
"""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from windlass.model.duration import OwnLease, Seconds, Time
from windlass.model.handler import Language
from windlass.model.job import MSGPACK, Error, Job, Reason
from windlass.model.names import MEDIA_PATTERN, MOST_FILES, FileName, Name
from windlass.model.new_job import NewJob
from windlass.model.operations.table import MOST_AT_ONCE, Operation, operation
from windlass.model.outcome import Verdict
from windlass.model.output import MOST_CHUNKS, NewChunk, Progress
from windlass.model.worker import SandboxTier

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


@operation("POST", "/workers/{worker}/claim", "work")
class Claim(Operation[list[Claimed]], frozen=True, kw_only=True):
    """Take jobs under a lease, waiting for some if there are none."""

    worker: str
    slots: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] = 1
    wait: Wait = 0.0
    nonce: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$(?!\n)")] | None = None
    """Sixteen random hex digits; sent again with the same ones, a claim answers the same jobs."""
    warm: Annotated[list[WarmName], Meta(max_length=MOST_WARM)] = field(default_factory=list)
    """What it has a context waiting for, as `tenant/task`: where turns are taken it gets such jobs a little earlier."""
    languages: Annotated[list[Language], Meta(max_length=16)] | None = None
    """Of jobs whose task has a handler, only those in these languages; null = as the worker said when it registered."""


class LeasedJob(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A job that a worker says it holds."""

    id: str
    token: str
    tenant: Name | None = None
    """Whose job it is; null = the worker's own tenant's. A worker of all tenants says it of each job."""


class Applied(Struct, frozen=True, kw_only=True):
    """What became of a worker's report."""

    applied: list[str] = []
    refused: list[str] = []  # jobs that this worker does not hold under the token it gave: nothing of them was written


class Began(LeasedJob, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job whose code has started."""

    pid: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    lease: OwnLease | None = None  # seconds that its lease lasts; null = as long as any of this worker
    sandbox: SandboxTier | None = None  # of a handler's code: the tier of the sandbox that it runs in
    handler_version: HandlerNumber | None = None  # of a handler's code: its version
    files_loaded: bool = False  # the queue drops the files that came with the job: the worker has them, for good


@operation("POST", "/workers/{worker}/begin", "work", body="jobs")
class Begin(Operation[Applied], frozen=True, kw_only=True):
    """The code of these jobs starts. With `on_lost` = `fail` or `adopt` report it before: then no job runs again."""

    worker: str
    jobs: Annotated[list[Began], Meta(max_length=MOST_AT_ONCE)]


class Alive(LeasedJob, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A job that is still running."""

    progress: Progress | None = None
    output: Annotated[list[NewChunk], Meta(max_length=MOST_CHUNKS)] = []
    """What it has put out since; kept as often as it is sent."""
    deadline: Time | None = None  # when the worker will stop it; sent so that the answer can say when that has changed
    heard: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """The number of the last message that it has, 0 = none yet; null = it wants none now."""
    lease: OwnLease | None = None
    """Seconds that its lease lasts from now; null = as long as any of this worker."""


class Order(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An order about a job that a worker runs; the job stays `running` until its worker reports that it has stopped."""

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


@operation("POST", "/workers/{worker}/renew", "work", body="jobs")
class Renew(Operation[Renewed], frozen=True, kw_only=True):
    """Extend the leases of these jobs; get orders and messages, at once or as they come."""

    worker: str
    jobs: Annotated[list[Alive], Meta(max_length=10 * MOST_AT_ONCE)] = field(default_factory=list)
    wait: Wait = 0.0  # seconds to wait for orders or messages if there are none yet
    memory: Annotated[int, Meta(ge=0, le=2**62)] | None = None  # bytes that the worker and all its processes use
    cpu: Annotated[float, Meta(ge=0, le=1e6)] = 0.0  # how many CPUs they kept busy since the last such report


class Finished(LeasedJob, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """How an attempt ended; `lifecycle.finish` says what becomes of the job."""

    outcome: Verdict
    code: Annotated[int, Meta(ge=100, le=599)] | None = None
    """Must agree with the outcome: 1xx retry, 2xx ok, 4xx failed, 5xx error."""
    result: Raw | UnsetType = UNSET
    """What the task answered, in the encoding of `content_type`; goes with the outcome ok."""
    content_type: Annotated[str, Meta(max_length=128, pattern=MEDIA_PATTERN)] = MSGPACK
    message: str = ""
    error: Error | None = None
    reason: Reason | None = None  # what the worker knows beyond the outcome: `timeout`, `crashed`, `memory` or `output`
    delay: Seconds | None = None  # seconds before the next run, where there is one; null = by the job's retry policy
    finished_at: Time | None = None
    sandbox: SandboxTier | None = None
    handler_version: HandlerNumber | None = None  # as in `Began`; kept in the job's record
    jobs: Annotated[list[NewJob], Meta(max_length=MOST_SPAWNED)] = []
    """New jobs of the same tenant, queued together with the finish, once however often it is sent; only with ok."""
    files: Annotated[
        dict[FileName, bytes], Meta(max_length=MOST_FILES)
    ] = {}  # what the run leaves; replaces what an earlier left


@operation("POST", "/workers/{worker}/finish", "work", body="jobs")
class Finish(Operation[Applied], frozen=True, kw_only=True):
    """Report how jobs ended."""

    worker: str
    jobs: Annotated[list[Finished], Meta(max_length=MOST_AT_ONCE)]


class Released(LeasedJob, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A job that is given back."""

    delay: Seconds | None = None  # seconds before it may be claimed again
    rests: Annotated[str, Meta(max_length=128)] | None = None
    """A limit that bounds the job, or if empty each that does: its bucket starts nothing for those seconds. A job with
    such a limit goes back to its place in the queue and waits there."""
    stopped: Annotated[str, Meta(max_length=2000)] | None = None
    """Why its code was stopped before it had ended; then `on_lost` says whether it may run again. Null = its code had
    not begun, or asked for a later time itself."""


@operation("POST", "/workers/{worker}/release", "work", body="jobs")
class Release(Operation[Applied], frozen=True, kw_only=True):
    """Give jobs back unrun, or stopped; no attempt is used."""

    worker: str
    jobs: Annotated[list[Released], Meta(max_length=MOST_AT_ONCE)]
