"""Every question the queue answers, declared once, as data.

An operation is a struct that carries its own arguments; the decorator adds verb, path, success status and
scope. The engine answers operations in process; HTTP routes, client calls, command line and OpenAPI are derived
from `OPERATIONS`. Whatever answers them (`await service(operation)`) is a `Service`.
"""

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args, get_origin

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from windlass.model.job import (
    MOST_CHUNK,
    MOST_CHUNKS,
    MSGPACK,
    Chunk,
    Error,
    Job,
    NewChunk,
    NewJob,
    Progress,
    Reason,
    State,
    Stream,
    Time,
    Wishes,
)
from windlass.model.lifecycle import Verdict
from windlass.model.match import Match
from windlass.model.names import DEFAULT_TENANT, Name
from windlass.model.quota import Quota
from windlass.model.retry import Seconds
from windlass.model.token import Issued, Scope, Token
from windlass.model.worker import NewWorker, Worker

A_co = TypeVar("A_co", covariant=True)
A = TypeVar("A")

MOST_AT_ONCE = 1000
"""Jobs in one request, rows in one page."""

MOST_SPAWNED = 100
"""New jobs in the report of one job."""

MOST_TEXT = 16 * 2**20
"""Characters of a text whose lines become jobs."""

MOST_LINES = 100_000
"""Lines of it."""


class Operation(Struct, Generic[A_co], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to the queue; `A_co` is the type of its answer."""

    tenant: str = DEFAULT_TENANT
    """Whose jobs are meant; `-` = everybody's."""


class Service(Protocol):
    """Whatever answers operations: the engine in process, the client over HTTP."""

    async def __call__(self, operation: Operation[A], /) -> A: ...


class Route(NamedTuple):
    """How an operation is spelled outside."""

    verb: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    status: int
    scope: Scope
    body: str | None = None
    """The field that is the whole body of a request; null = its fields are the body's, or stand in the query."""
    one: str | None = None
    """The path of the same action on a single job."""


OPERATIONS: dict[type[Operation[Any]], Route] = {}

O = TypeVar("O", bound=type[Operation[Any]])  # noqa: E741


def operation(
    verb: Literal["GET", "POST", "PUT", "PATCH", "DELETE"],
    path: str,
    scope: Scope,
    status: int = 200,
    *,
    body: str | None = None,
    one: str | None = None,
) -> Callable[[O], O]:
    """Enter an operation into the table."""

    def enter(kind: O) -> O:
        OPERATIONS[kind] = Route(verb, path, status, scope, body, one)
        return kind

    return enter


@cache
def answer_type(kind: type[Operation[Any]]) -> Any:
    """What an operation is answered with, as its class says."""
    for one in kind.__mro__:
        for parent in getattr(one, "__orig_bases__", ()):
            if get_origin(parent) is Operation:
                return get_args(parent)[0]
    raise TypeError(f"{kind.__name__} does not say what it is answered with")


# Answers


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


class Result(Struct, frozen=True, kw_only=True):
    """How a job ended."""

    state: State
    result: Raw | UnsetType = UNSET
    """The value in the encoding of `content_type`; absent if there is none (any more)."""
    content_type: str = MSGPACK
    """Empty over HTTP if there is no result, which is told as null there."""
    code: int | None = None
    error: Error | None = None


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


class Changed(Struct, frozen=True, kw_only=True):
    """How many jobs an action changed, or would change in a dry run."""

    changed: int


class Registered(Struct, frozen=True, kw_only=True):
    """A worker's name in the queue."""

    worker: str
    lease: float
    """Seconds after which an unrenewed job, or a silent worker, is taken for lost."""
    secret: str | UnsetType = UNSET
    """The key of the signatures on what is sent to its `url`. This answer is the only place that shows it."""


class Claimed(Struct, frozen=True, kw_only=True, gc=False):
    """A job handed to a worker: the right to finish it is the token."""

    job: Job
    token: str
    payload: Raw
    """Encoded as `job.content_type` says."""
    files: dict[str, bytes] = {}
    """What was sent with the job, by name."""
    deadline: datetime | None = None


class Applied(Struct, frozen=True, kw_only=True):
    """What became of a worker's report."""

    applied: list[str] = []
    refused: list[str] = []
    """Jobs that this worker does not hold under the token it gave: nothing of them was written."""


class Order(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker is told of a job that it runs."""

    id: str
    order: Literal["cancel", "halt", "deadline"]
    deadline: datetime | None = None


class Renewed(Struct, frozen=True, kw_only=True):
    """What a worker learns when it renews."""

    lost: list[str] = []
    """Jobs that are no longer this worker's: stop them, report nothing."""
    orders: list[Order] = []


class QueueStats(Struct, frozen=True, kw_only=True):
    """How many jobs of one queue and task are in each state."""

    tenant: str
    queue: str
    task: str
    states: dict[State, int]


class Stats(Struct, frozen=True, kw_only=True):
    """How many jobs there are."""

    queues: list[QueueStats]


# Jobs

JobIds = Annotated[list[str], Meta(max_length=MOST_AT_ONCE)]


@operation("POST", "/jobs", "enqueue", 201, body="job")
class Enqueue(Operation[Accepted], frozen=True, kw_only=True):
    """Queue one job. The same id or key again answers the job that is there."""

    job: NewJob


@operation("POST", "/jobs/batch", "enqueue", 201, body="jobs")
class EnqueueMany(Operation[Enqueued], frozen=True, kw_only=True):
    """Queue many jobs in one round trip; if one of them is invalid, none is queued."""

    jobs: Annotated[list[NewJob], Meta(max_length=MOST_AT_ONCE)]


@operation("POST", "/tasks/{task}/jobs", "enqueue", 201, body="text")
class EnqueueLines(Operation[Enqueued], frozen=True, kw_only=True):
    """Queue one job for each line of a text; empty lines and lines that begin with `#` are skipped."""

    task: Name
    text: Annotated[str, Meta(max_length=MOST_TEXT)]
    """Each line is the payload of a job, as text."""
    wishes: Wishes = Wishes()
    """What is asked of the queue for all of them."""
    delay: Seconds | None = None
    """Seconds that all of them wait before they may run."""


@operation("GET", "/jobs/{id}", "read")
class Show(Operation[Job], frozen=True, kw_only=True):
    """One job as it is now."""

    id: str
    payload: bool = False
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0
    """Seconds to wait for its end, if it has not ended yet."""


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
    limit: Annotated[int, Meta(ge=1, le=MOST_CHUNKS)] = MOST_CHUNKS


@operation("GET", "/jobs", "read")
class List(Operation[Page], frozen=True, kw_only=True):
    """Matching jobs, queue by queue in order of arrival, a page at a time."""

    match: Match = Match()
    limit: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] = 100
    after: str | None = None


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


@operation("POST", "/jobs/retry", "operate", one="/jobs/{id}/retry")
class Retry(Selection, frozen=True, kw_only=True):
    """Queue finished jobs again, their attempts counted anew."""


@operation("DELETE", "/jobs", "operate", one="/jobs/{id}")
class Delete(Selection, frozen=True, kw_only=True):
    """Delete jobs and their records; running ones are stopped first."""


@operation("GET", "/stats", "read")
class GetStats(Operation[Stats], frozen=True, kw_only=True):
    """How many jobs there are by queue, task and state; costs the same whatever the backlog."""


# Work


class Held(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A job that a worker says it holds."""

    id: str
    token: str


class Began(Held, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job whose code has started."""

    pid: Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Alive(Held, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A job that is still running."""

    progress: Progress | None = None
    output: Annotated[list[NewChunk], Meta(max_length=MOST_CHUNKS)] = []
    """What it has put out since; kept as often as it is sent."""


class Finished(Held, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """How an attempt ended."""

    outcome: Verdict
    code: Annotated[int, Meta(ge=100, le=599)] | None = None
    """Must agree with the outcome: 1xx retry, 2xx ok, 4xx failed, 5xx error."""
    result: Raw | UnsetType = UNSET
    """What the task answered, in the encoding of `content_type`; goes with the outcome ok."""
    content_type: Annotated[str, Meta(max_length=128)] = MSGPACK
    message: str = ""
    error: Error | None = None
    reason: Reason | None = None
    """What the worker knows beyond the outcome: `timeout`, `crashed`, `memory` or `output`."""
    delay: Seconds | None = None
    """Seconds before the next run, where there is one; null = by the job's retry policy."""
    finished_at: Time | None = None
    jobs: Annotated[list[NewJob], Meta(max_length=MOST_SPAWNED)] = []
    """New jobs of the same tenant, queued together with the finish, once however often it is sent; only with ok."""


class Unrun(Held, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A job that is given back."""

    delay: Seconds | None = None
    """Seconds before it may be claimed again."""


@operation("POST", "/workers", "work", 201, body="worker")
class Register(Operation[Registered], frozen=True, kw_only=True):
    """Introduce a worker."""

    worker: NewWorker


@operation("GET", "/workers", "read")
class Workers(Operation[list[Worker]], frozen=True, kw_only=True):
    """The workers that are alive."""


@operation("DELETE", "/workers/{worker}", "work", 204)
class Unregister(Operation[None], frozen=True, kw_only=True):
    """A worker takes its leave."""

    worker: str


@operation("POST", "/workers/{worker}/claim", "work")
class Claim(Operation[list[Claimed]], frozen=True, kw_only=True):
    """Take jobs under a lease, waiting for some if there are none."""

    worker: str
    slots: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] = 1
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0
    nonce: Annotated[str, Meta(pattern="^[0-9a-f]{16}$(?!\n)")] | None = None
    """Sixteen random hex digits; sent again with the same ones, a claim answers the same jobs."""


@operation("POST", "/workers/{worker}/begin", "work", body="jobs")
class Begin(Operation[Applied], frozen=True, kw_only=True):
    """The code of these jobs has started."""

    worker: str
    jobs: Annotated[list[Began], Meta(max_length=MOST_AT_ONCE)]


@operation("POST", "/workers/{worker}/renew", "work", body="jobs")
class Renew(Operation[Renewed], frozen=True, kw_only=True):
    """Lengthen the leases of these jobs; hear what is to be stopped, at once or as soon as there is something."""

    worker: str
    jobs: Annotated[list[Alive], Meta(max_length=10 * MOST_AT_ONCE)] = []
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0
    """Seconds to wait for orders if there are none yet."""


@operation("POST", "/workers/{worker}/finish", "work", body="jobs")
class Finish(Operation[Applied], frozen=True, kw_only=True):
    """Report how jobs ended."""

    worker: str
    jobs: Annotated[list[Finished], Meta(max_length=MOST_AT_ONCE)]


@operation("POST", "/jobs/{id}/output", "work", 204, body="data")
class Output(Operation[None], frozen=True, kw_only=True):
    """A running job has put something out, which is also a sign of life; kept as often as it is sent."""

    id: str
    token: str
    stream: Stream
    data: Annotated[bytes, Meta(max_length=MOST_CHUNK)]


@operation("POST", "/workers/{worker}/release", "work", body="jobs")
class Release(Operation[Applied], frozen=True, kw_only=True):
    """Give jobs back unrun; no attempt is used."""

    worker: str
    jobs: Annotated[list[Unrun], Meta(max_length=MOST_AT_ONCE)]


# Tokens


@operation("POST", "/tokens", "admin", 201)
class AddToken(Operation[Issued], frozen=True, kw_only=True):
    """Make a token for a tenant. This answer is the only place that shows it."""

    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=5)] = field(
        default_factory=lambda: ["enqueue", "read"]
    )
    expires: Seconds | None = None
    """Seconds for which it is good; null = for ever."""
    note: Annotated[str, Meta(max_length=200)] = ""
    """What it is for."""


@operation("GET", "/tokens", "admin")
class Tokens(Operation[list[Token]], frozen=True, kw_only=True):
    """The tokens of a tenant, without their secrets."""


@operation("DELETE", "/tokens/{key}", "admin", 204)
class RemoveToken(Operation[None], frozen=True, kw_only=True):
    """Make a token good for nothing, within a second."""

    key: str


# Quotas


@operation("PUT", "/quota", "admin", body="quota")
class PutQuota(Operation[Quota], frozen=True, kw_only=True):
    """Bound what a tenant sends in over HTTP, in the place of any bounds before."""

    quota: Quota


@operation("GET", "/quota", "read")
class GetQuota(Operation[Quota], frozen=True, kw_only=True):
    """The bounds on what a tenant sends in."""
