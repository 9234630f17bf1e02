"""The routes of a queue with pushers and workers, in MessagePack or JSON.

Its job name is our task, a worker's `max_jobs` our slots. Jobs are sent to `/worker-job` at the URL that a worker
registers, and a worker sends heartbeats. The original routes have no field for the URL (`url`) and no route for the
heartbeat (`PUT /worker`); both are added here.

The id that a worker gets holds the job's id and the token of the run, so that a report needs nothing else.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import replace
from starlette.responses import Response

from windlass.dialect.aliases import RouteCall, alias, alias_routes, forward, no_content, rename
from windlass.model import wire
from windlass.model.duration import Seconds, Time
from windlass.model.errors import Conflict, Invalid, Missing
from windlass.model.job import FINISHED, Error, Job, Reason, State
from windlass.model.names import Name, check_id
from windlass.model.new_job import HIGHEST, LOWEST, NOTHING, NewJob
from windlass.model.operations import (
    Cancel,
    Claimed,
    Enqueue,
    Finish,
    Finished,
    GetResult,
    Register,
    Registered,
    Renew,
    Result,
    Service,
    Show,
    Unregister,
)
from windlass.model.outcome import Verdict
from windlass.model.wire import Format
from windlass.model.worker import NewWorker, Slots, Worker
from windlass.server import bodies, formats
from windlass.server.auth import Auth, is_of_all_tenants
from windlass.server.openapi import Content, RouteSpec, SpecRoute
from windlass.server.requests import RequestLimits
from windlass.server.routes import Unfinished
from windlass.worker.push import BodyCodec

WORKER_JOB = "/worker-job"
WORKER_ID = "worker-id"

TYPES: dict[Format, str] = {"json": "application/json", "msgpack": "application/msgpack"}
"""Its media types, which differ from ours."""

HEARTBEAT_WITHIN = 10.0
"""Seconds without a heartbeat after which a worker is dropped, as in the original."""

RESULT_KEPT_FOR = 3600.0
"""Seconds for which a result can be fetched."""

REPORTED = "failure"
"""The type of an error that a worker reported. Its own value is in `traceback`, as JSON."""

MOST_ERROR = 8192
"""Characters of that value; a longer one is cut, and answered as text."""

StatusWord = Literal["queued", "running", "retrying", "error", "done"]

STATUS: dict[State, StatusWord] = {
    State.BLOCKED: "queued",
    State.SCHEDULED: "queued",
    State.QUEUED: "queued",
    State.RUNNING: "running",
    State.SUCCEEDED: "done",
    State.FAILED: "error",
}
"""Our states in its words. A scheduled job that has run before is `retrying`; a cancelled one does not exist."""

STARTED = (State.RUNNING, State.SUCCEEDED, State.FAILED)


def routes(service: Service, auth: Auth, limits: RequestLimits) -> list[SpecRoute]:
    return alias_routes(ALIASES, service, auth, limits)


# Bodies


class JobSubmission(Struct, frozen=True):
    """A new job."""

    name: Name
    argument: Raw
    priority: Annotated[int, Meta(ge=LOWEST, le=HIGHEST)] = 0
    max_retry: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    keep_result: bool = False
    timeout: Seconds = 30.0


class JobAccepted(Struct, frozen=True):
    """An accepted job."""

    job_id: str


class WorkerRegistration(Struct, frozen=True):
    """A new worker."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    max_jobs: Slots
    url: str


class WorkerRegistered(Struct, frozen=True):
    """A registered worker."""

    worker_id: str
    lease: float
    """Seconds in which it must send a heartbeat."""
    secret: str | UnsetType
    """The key that its jobs are signed with."""


class Report(Struct, frozen=True, kw_only=True, tag_field="type"):
    """How a run ended."""

    job_id: str
    finished_at: Time | None = None


class Success(Report, frozen=True, kw_only=True, tag="success"):
    """The run succeeded."""

    result: Raw


class Failure(Report, frozen=True, kw_only=True, tag="failure"):
    """The run failed."""

    should_retry: bool
    reason: Literal["other", "timeout"] = "other"
    message: str = ""
    error: Raw = field(default_factory=lambda: NOTHING)


class DeliveredJob(Struct, frozen=True):
    """A job as a worker gets it."""

    id: str
    name: str
    argument: Raw
    timeout: float | None


class JobStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status of a job."""

    status: StatusWord
    retry_count: int
    message: str
    worker_id: str | None = None
    result: Raw | UnsetType = UNSET
    error: Any = None
    finished_at: str | None = None


class PollQuery(Struct, frozen=True):
    """How long a poll waits."""

    timeout: Annotated[float, Meta(ge=0, le=60)] = 5.0


# Requests


async def _read(call: RouteCall, kind: Any) -> tuple[Any, Format]:
    content_type = call.header("content-type")
    form = formats.request_format(content_type)
    if form is None:
        raise formats.unsupported(content_type, *TYPES.values())
    return bodies.decode(await call.body(), kind, form), form


def _form(call: RouteCall) -> Format:
    """The format of the response: as accepted, else that of the request, else MessagePack."""
    own = formats.request_format(call.header("content-type")) or "msgpack"
    return formats.response_format(call.header("accept"), own)


def _write(call: RouteCall, value: Any, status: int = 200) -> Response:
    form = _form(call)
    return Response(wire.encode(value, form), status, media_type=TYPES[form])


def job_id(text: str) -> str:
    """The id of a job, also from the id that a worker got. In this dialect a malformed id is a missing job."""
    id = text.partition(".")[0]
    try:
        return check_id(id)
    except Invalid:
        raise Missing(f"there is no job {id[:60]}", at="job_id") from None


def _job_id(call: RouteCall) -> str:
    return job_id(call.request.path_params["id"])


def _worker_id(call: RouteCall) -> str:
    if not (worker := call.header(WORKER_ID)):
        raise Invalid("send the id of the worker in this header", at=WORKER_ID)
    return worker


# Pushers


async def _push(call: RouteCall) -> Enqueue:
    sent, form = await _read(call, JobSubmission)
    new = NewJob(
        task=sent.name,
        payload=sent.argument,
        content_type=formats.TYPES[form],
        priority=sent.priority,
        max_retry=sent.max_retry,
        keep_result="once" if sent.keep_result else "none",
        keep_result_for=RESULT_KEPT_FOR if sent.keep_result else None,
        timeout=sent.timeout,
    )
    return Enqueue(tenant=call.tenant, job=new)


async def _status(call: RouteCall) -> Response:
    return await _write_status(call, await call.service(Show(tenant=call.tenant, id=_job_id(call))))


async def _poll(call: RouteCall) -> Response:
    try:
        wait = msgspec.convert(dict(call.request.query_params), PollQuery, strict=False).timeout
    except msgspec.ValidationError as fault:
        raise wire.invalid(fault) from None
    job = await call.service(Show(tenant=call.tenant, id=_job_id(call), wait=wait))
    if job.state not in FINISHED:
        raise Unfinished(job.state)
    return await _write_status(call, job)


async def _write_status(call: RouteCall, job: Job) -> Response:
    form = _form(call)  # checked before the result is read, which may use it up
    done = job.state is State.SUCCEEDED
    kept = await call.service(GetResult(tenant=job.tenant, id=job.id)) if done else None
    return _write(call, job_status(job, kept, form))


async def _cancel(call: RouteCall) -> Response:
    job = _not_cancelled(await call.service(Show(tenant=call.tenant, id=_job_id(call))))
    if job.state in STARTED:
        raise Conflict(f"the job is {job.state}: only a job that has not started can be cancelled", at="id")
    await call.service(Cancel(tenant=call.tenant, ids=[job.id]))
    return Response(status_code=204)


def job_status(job: Job, kept: Result | None, form: Format) -> JobStatus:
    """A job in this dialect; `kept` is its result, once it is done."""
    word = _status_word(_not_cancelled(job))
    error = job.error if word in ("error", "retrying") else None
    return JobStatus(
        status=word,
        retry_count=max(0, job.attempt - 1),
        message=error.message if error else "",
        worker_id=job.worker,
        result=UNSET if kept is None else _result(kept, form),
        error=_error_value(error) if error else None,
        finished_at=job.finished_at.isoformat() if job.finished_at else None,
    )


def _not_cancelled(job: Job) -> Job:
    if job.state is State.CANCELLED:
        raise Missing(f"there is no job {job.id}", at="id")
    return job


def _status_word(job: Job) -> StatusWord:
    return "retrying" if job.state is State.SCHEDULED and job.attempt else STATUS[job.state]


def _result(kept: Result, form: Format) -> Raw:
    if not isinstance(kept.result, Raw):
        return bodies.NULL[form]
    return bodies.translate(kept.result, kept.content_type, form)


def _error_value(error: Error) -> Any:
    """The value that a worker reported, else the type or reason of our own error."""
    if error.type != REPORTED:
        return error.type or error.reason
    try:
        return wire.decode(error.traceback.encode(), object, "json") if error.traceback else None
    except Invalid:
        return error.traceback


# Workers


async def _register(call: RouteCall) -> Register:
    sent, form = await _read(call, WorkerRegistration)
    worker = NewWorker(
        name=sent.name,
        slots=sent.max_jobs,
        lease=HEARTBEAT_WITHIN,
        url=sent.url.rstrip("/") + WORKER_JOB,
        format=form,
        trusted=is_of_all_tenants(call.request),
    )
    return Register(tenant=call.tenant, worker=worker)


def _registered(call: RouteCall, found: Registered) -> Response:
    return _write(call, WorkerRegistered(found.worker, found.lease, found.secret), 201)


async def _done(call: RouteCall) -> Response:
    sent, form = await _read(call, Success | Failure)
    report = finished(sent, form)
    answer = await call.service(Finish(tenant=call.tenant, worker=_worker_id(call), jobs=[report]))
    if answer.refused:  # a late report of a job that exists changes nothing; of one that does not, it is 404
        await call.service(Show(tenant=call.tenant, id=report.id))
    return Response(status_code=204)


def finished(sent: Success | Failure, form: Format) -> Finished:
    """The report of a run; the id that the worker got names it."""
    id, token = job_id(sent.job_id), sent.job_id.partition(".")[2]
    if not token:
        raise Missing("no run has this id: send the id that the worker got with the job", at="job_id")
    if isinstance(sent, Success):
        ended = Finished(id=id, token=token, outcome=Verdict.OK, result=sent.result, content_type=formats.TYPES[form])
        return replace(ended, finished_at=sent.finished_at)
    text = "" if sent.error is NOTHING else bytes(bodies.translate(sent.error, formats.TYPES[form], "json")).decode()
    return Finished(
        id=id,
        token=token,
        finished_at=sent.finished_at,
        outcome=Verdict.ERROR if sent.should_retry else Verdict.FAILED,
        error=Error(type=REPORTED, message=sent.message, traceback=text[:MOST_ERROR]),
        reason=Reason.TIMEOUT if sent.reason == "timeout" else None,
    )


def is_worker(worker: Worker) -> bool:
    """Whether a worker registered in this dialect: its URL shows it."""
    return worker.url is not None and worker.url.endswith(WORKER_JOB)


def _delivery(claimed: Claimed, form: Format) -> bytes:
    job = claimed.job
    argument = bodies.translate(claimed.payload, job.content_type, form)
    return wire.encode(DeliveredJob(f"{job.id}.{claimed.token}", job.task, argument, job.timeout), form)


LANGUAGE = BodyCodec(_delivery, bodies.decode, TYPES)
"""How jobs are sent to its workers."""


# The table

BOTH = tuple(TYPES.values())

WORKER_HEADER = {WORKER_ID: "The id of the worker."}

STATUS_CONTENT = Content(JobStatus, BOTH, {"status": "done", "retry_count": 0, "message": "", "result": {"pages": 3}})

DELIVER = RouteSpec(
    verbs=["POST"],
    path=f"{{$request.body#/url}}{WORKER_JOB}",
    name="S2Deliver",
    tag="dialect-s2",
    summary="A job for a worker, in the format of its registration. 202 accepts it, and only that counts as a run; "
    "404 = the worker does not know the name; after any other status the job goes to another worker.",
    body=[Content(DeliveredJob, BOTH)],
    responses={202: [], 400: [], 404: []},
)

ALIASES = (
    alias(
        "POST /job",
        "S2Push",
        Enqueue,
        "Queue a job.",
        forward(_push, lambda call, job: _write(call, JobAccepted(job.id), 201)),
        body=[Content(JobSubmission, BOTH, {"name": "render", "argument": {"scene": 7}, "keep_result": True})],
        responses={201: [Content(JobAccepted, BOTH)]},
        errors=frozenset({406, 415, 429}),
    ),
    alias(
        "GET /job/{id}",
        "S2Status",
        Show,
        "The status of a job. A kept result is returned once, within an hour; after that it is null.",
        _status,
        responses={200: [STATUS_CONTENT]},
        errors=frozenset({404, 406}),
    ),
    alias(
        "DELETE /job/{id}",
        "S2Cancel",
        Cancel,
        "Cancel a job that has not started.",
        _cancel,
        responses={204: []},
        errors=frozenset({404, 409}),
    ),
    alias(
        "GET /job/{id}/polling",
        "S2Poll",
        Show,
        "Wait until a job has ended, then return its status.",
        _poll,
        query=PollQuery,
        responses={200: [STATUS_CONTENT]},
        errors=frozenset({404, 406, 408}),
    ),
    alias(
        "POST /worker",
        "S2Register",
        Register,
        "Register a worker. Its jobs are sent to its URL.",
        forward(_register, _registered),
        body=[Content(WorkerRegistration, BOTH, {"name": "w1", "max_jobs": 4, "url": "https://worker.example"})],
        responses={201: [Content(WorkerRegistered, BOTH)]},
        errors=frozenset({406, 409, 415}),
        callbacks={"job": DELIVER},
    ),
    alias(
        "PUT /worker",
        "S2Live",
        Renew,
        "The heartbeat of a worker, due at least once per `lease`.",
        forward(rename(Renew, worker=_worker_id), no_content),
        required_headers=WORKER_HEADER,
        responses={204: []},
        errors=frozenset({404}),
    ),
    alias(
        "DELETE /worker",
        "S2Unregister",
        Unregister,
        "Unregister a worker.",
        forward(rename(Unregister, worker=_worker_id), no_content),
        required_headers=WORKER_HEADER,
        responses={204: []},
        errors=frozenset({404}),
    ),
    alias(
        "POST /done",
        "S2Done",
        Finish,
        "Report the end of a run, under the id that the worker got. A repeated report changes nothing.",
        _done,
        required_headers=WORKER_HEADER,
        body=[Content(Success | Failure, BOTH, {"job_id": "…", "type": "success", "result": {"pages": 3}})],
        responses={204: []},
        errors=frozenset({404, 409, 415, 429}),
    ),
)

SPECS = tuple(one.spec for one in ALIASES)
