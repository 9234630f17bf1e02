"""Operations on records beside the jobs: workers, tokens, quotas, the audit log."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from windlass.model.audit import AuditPage
from windlass.model.duration import Seconds
from windlass.model.limit import Pause
from windlass.model.operations.table import MOST_AT_ONCE, Operation, operation
from windlass.model.quota import Quota
from windlass.model.token import Issued, Scope, Token
from windlass.model.worker import NewWorker, Worker, WorkerChange

# Workers


class Registered(Struct, frozen=True, kw_only=True):
    """A worker's name in the queue."""

    worker: str
    lease: float
    """Seconds after which an unrenewed job, or a silent worker, is taken for lost."""
    secret: str | UnsetType = UNSET
    """The key of the signatures on what is sent to its `url`. This answer is the only place that shows it."""


@operation("POST", "/workers", "work", 201, body="worker")
class Register(Operation[Registered], frozen=True, kw_only=True):
    """Introduce a worker, or say something new of one that is known."""

    worker: NewWorker
    id: str | None = None
    """The worker that is known; null = it is new, and gets an id."""
    formerly: str | None = None
    """The id that the queue has forgotten: what people ordered that worker holds for this one."""


@operation("GET", "/workers", "read")
class Workers(Operation[list[Worker]], frozen=True, kw_only=True):
    """The workers that are alive."""


@operation("GET", "/workers/changes", "read")
class WorkerChanges(Operation[list[WorkerChange]], frozen=True, kw_only=True):
    """The workers that joined, stopped or were lost last, newest first; a loss is noticed within a minute."""

    limit: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] = 20


@operation("DELETE", "/workers/{worker}", "work", 204)
class Unregister(Operation[None], frozen=True, kw_only=True):
    """A worker takes its leave."""

    worker: str


# What people order a worker to do: it learns so within a second, when it renews. It is named by its id, or by its name
# if no other worker has that.


@operation("PATCH", "/workers/{worker}", "operate", body="pause")
class PauseWorker(Operation[Worker], frozen=True, kw_only=True):
    """Let a worker claim nothing for a while, or let it claim again. What it runs goes on."""

    worker: str
    pause: Pause


@operation("POST", "/workers/{worker}/stop", "operate")
class StopWorker(Operation[Worker], frozen=True, kw_only=True):
    """Let a worker exit, as the signal TERM does: it claims nothing, and running jobs may end within its grace."""

    worker: str
    now: bool = False
    """Whether to give running jobs back at once, as a second TERM does."""


# Tokens


@operation("POST", "/tokens", "admin", 201)
class AddToken(Operation[Issued], frozen=True, kw_only=True):
    """Make a token for a tenant. This answer is the only place that shows it."""

    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=5)] = field(
        default_factory=lambda: ["enqueue", "read"]
    )
    expires: Seconds | None = None
    """Seconds for which it is valid; null = forever."""
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


# The audit log


@operation("GET", "/audit", "operate")
class Audit(Operation[AuditPage], frozen=True, kw_only=True):
    """Who changed what by hand, newest first, a page at a time: the newest 10,000 operations of each tenant."""

    limit: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] = 100
    after: str | None = None
    job: str | None = None
    """Only what was done to this job by its id, on one page. An operation on more than ten names only the first ten."""
