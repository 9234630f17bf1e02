"""The routes of a notification queue: notify, and list, count and delete its tasks.

A notification is a job of the task `notify` in the tenant of the token, or in `default` for a token of all tenants. Its
service, path and correlator headers are its scope: the jobs carry them as tags and headers. Lists are streamed, a few
notifications at a time.
"""

import asyncio
import hashlib
import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta, Raw, Struct, field
from msgspec.structs import asdict, replace
from starlette.responses import Response, StreamingResponse

from windlass.dialect.aliases import Alias, Handle, KeepTimes, RouteCall, alias, alias_routes, forward, no_content
from windlass.model import wire
from windlass.model.errors import Full, Invalid, Missing, Unavailable, WindlassError
from windlass.model.job import FINISHED, JSON, TEXT, Job, State
from windlass.model.match import Match, StateWord
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import (
    MOST_AT_ONCE,
    Count,
    Delete,
    Enqueue,
    List,
    Page,
    Service,
    Show,
)
from windlass.model.retry import FROM_START
from windlass.server import bodies
from windlass.server.auth import Auth
from windlass.server.openapi import Content, SpecRoute
from windlass.server.requests import RequestLimits

log = logging.getLogger("windlass.server")

TASK = "notify"
"""The task of all of these jobs."""

RUN_WITHIN = 180.0
"""Seconds for one run."""

START_WITHIN = 60.0
"""Seconds in which a notification must start whose client waits for it."""

WAIT = 60.0
"""Seconds of one wait for the end of a job."""

READ_AT_ONCE = 20
"""Notifications in memory at a time: each may be as large as a payload."""

TaskStatus = Literal["pending", "succeeded", "failed"]

TASK_STATUSES: list[StateWord] = ["pending", "succeeded", "failed"]
"""The states that this queue knows: a cancelled task does not exist."""

TENANT, SERVICE, PATH, CORRELATOR = "ngsild-tenant", "fiware-service", "fiware-servicepath", "fiware-correlator"
TIME_INDEX = "fiware-timeindex-attribute"

ROOT = "/"
EMPTY_PART = '""'

WriteJobs = Callable[[list[Job]], AsyncIterator[bytes]]
"""Writes jobs as elements of a JSON array."""


class Recovery(Protocol):
    """Runs a notification that the queue could not accept."""

    @property
    def tenant(self) -> str:
        """The tenant whose notifications it can run."""

    async def __call__(self, new: NewJob, within: float, /) -> str | None:
        """Run it now; the error, null = it succeeded."""


class NotificationOptions(KeepTimes, frozen=True, kw_only=True):
    """Operator settings for notifications. The queue's own keep times go first."""

    offload: bool = True
    recover: bool = False
    max_retry: int = 0
    retry_after: float = FROM_START.base
    trailing_null: bool = False
    wrapped_summary: bool = False


class NotQueued(WindlassError):
    """A notification that the queue could not accept."""

    code, title, status, exit_status = "not_queued", "Not queued", 500, 75


class NotDone(WindlassError):
    """A notification that failed while its client waited for it."""

    code, title, status, exit_status = "not_done", "Not done", 500, 1


def routes(
    service: Service,
    auth: Auth,
    limits: RequestLimits,
    options: NotificationOptions | None = None,
    recovery: Recovery | None = None,
) -> list[SpecRoute]:
    return alias_routes(aliases(options or NotificationOptions(), recovery), service, auth, limits)


# Scopes


class Scope(Struct, frozen=True):
    """The scope of a notification. Names match as a whole, never by prefix."""

    service: str = ""
    path: str = ROOT
    correlator: str = ""

    @property
    def tags(self) -> list[str]:
        """The tags by which its jobs are found; digests, for a path may be longer than a tag."""
        place = _digest(self.service, self.path)
        return [place, _digest(self.service, self.path, self.correlator)] if self.correlator else [place]

    @property
    def headers(self) -> dict[str, str]:
        """The headers of its jobs."""
        headers = {SERVICE: self.service, PATH: self.path, CORRELATOR: self.correlator}
        return {name: value for name, value in headers.items() if value}


def _digest(*names: str) -> str:
    return "scope:" + hashlib.sha256(wire.encode(names)).hexdigest()


def scope_of(headers: Mapping[str, str]) -> Scope:
    """The scope in the headers of a request or a job."""
    service = headers.get(TENANT) or headers.get(SERVICE, "")
    return Scope(service, headers.get(PATH) or ROOT, headers.get(CORRELATOR, ""))


def match_of(headers: Mapping[str, str], states: list[StateWord]) -> Match:
    """The jobs of the scope in a request's headers; of every scope if it has none."""
    has_scope = any(headers.get(name) for name in (TENANT, SERVICE, PATH, CORRELATOR))
    return Match(task=TASK, state=states, tag=scope_of(headers).tags if has_scope else [])


def states_of(status: str | None) -> list[StateWord]:
    """The states that a `taskStatus` means."""
    if status is None:
        return TASK_STATUSES
    for word in TASK_STATUSES:
        if word == status:
            return [word]
    raise Invalid(f"must be one of {', '.join(TASK_STATUSES)}, not {status[:60]!r}", at="taskStatus")


# Notifications


class Notification(Struct, frozen=True):
    """The body of a notification; other fields are ignored."""

    data: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    subscriptionId: str | None = None  # noqa: N815 - its own name


class NotificationInput(Struct, frozen=True):
    """The payload of a job: its fields are the arguments of the task."""

    fiware_service: str | None
    fiware_service_path: str
    fiware_correlator: str | None
    payload: list[dict[str, Any]]


def _input_of(body: bytes, scope: Scope) -> NotificationInput:
    """The arguments of a notification's task; refused if an entity has no id or no type."""
    notification = wire.decode(body, Notification, "json")
    entities = [_entity(entity, f"data[{index}]") for index, entity in enumerate(notification.data)]
    return NotificationInput(scope.service or None, scope.path, scope.correlator or None, entities)


def _entity(entity: dict[str, Any], at: str) -> dict[str, Any]:
    for name in ("id", "type"):
        if not isinstance(entity.get(name), str) or not entity[name]:
            raise Invalid("an entity must have an id and a type, both texts", at=f"{at}.{name}")
    return {name: value for name, value in entity.items() if not _is_empty(value)}


def _is_empty(attribute: Any) -> bool:
    """Whether an attribute has neither a type nor a value."""
    if not isinstance(attribute, dict):
        return attribute is None
    return all(attribute.get(name) in (None, "") for name in ("type", "value"))


def _job_options(options: NotificationOptions) -> JobOptions:
    job_options = JobOptions(
        max_retry=options.max_retry,
        retry=replace(FROM_START, base=options.retry_after),
        timeout=RUN_WITHIN,
        keep_result="none",
        content_type=JSON,
    )
    # A client that waits gets the error and may send the notification again: so it runs once, soon or never.
    return job_options if options.offload else replace(job_options, max_retry=0, expires=START_WITHIN)


def _job(headers: Mapping[str, str], body: bytes, job_options: JobOptions) -> NewJob:
    scope = scope_of(headers)
    payload = Raw(wire.encode(_input_of(body, scope), "json"))
    index = headers.get(TIME_INDEX)
    carried = scope.headers | ({TIME_INDEX: index} if index else {})
    return NewJob(task=TASK, payload=payload, **asdict(job_options) | {"tags": scope.tags, "headers": carried})


def _notify(options: NotificationOptions, recovery: Recovery | None) -> Handle:
    job_options = _job_options(options)

    async def notify(call: RouteCall) -> Response:
        new = _job(call.request.headers, await call.body(), job_options)
        try:
            job = await call.service(Enqueue(tenant=call.tenant, job=new))
        except (Unavailable, Full) as fault:
            return Response(await _recovered(recovery, call.tenant, new, fault), media_type=TEXT)
        return Response("queued\n" if options.offload else await _done(call.service, job), media_type=TEXT)

    return notify


async def _recovered(recovery: Recovery | None, tenant: str, new: NewJob, fault: WindlassError) -> str:
    """Run without the queue, if the operator wants that."""
    if recovery is None or recovery.tenant != tenant:
        raise NotQueued(str(fault)) from fault
    log.warning("notifications: the queue is down (%s): running one without it", fault)
    try:
        error = await recovery(new, RUN_WITHIN)
    except Full as full:
        raise NotQueued(str(full)) from full
    if error is not None:
        raise NotDone(error)
    return "done\n"


async def _done(service: Service, job: Job) -> str:
    """Wait for the end of a job. It comes: the job expires if no worker starts it, and its run has a timeout."""
    while job.state not in FINISHED:
        try:
            job = await service(Show(tenant=job.tenant, id=job.id, wait=WAIT))
        except Unavailable as fault:
            raise NotDone(f"queued, but the store does not answer how it ended: {fault}") from fault
    if job.state is not State.SUCCEEDED:
        raise NotDone(job.error.message if job.error else f"the job is {job.state}")
    return "done\n"


# Tasks


class TaskRuntime(Struct, frozen=True):
    """The status of a task."""

    task_id: str
    task_type: str
    status: TaskStatus
    retries_left: int | None
    """Null if it never had any."""
    errors: list[str]


class WrappedRuntime(Struct, frozen=True):
    """The same, nested as in a listing."""

    runtime: TaskRuntime


class NotificationTask(Struct, frozen=True):
    """A task with its input."""

    runtime: TaskRuntime
    input: Raw


class TaskQuery(Struct, frozen=True):
    """Which tasks to list."""

    task_status: TaskStatus | None = field(default=None, name="taskStatus")


def task_id(scope: Scope, id: str) -> str:
    """The scope and the job's id, encoded in one text."""
    parts = (scope.service, scope.path, scope.correlator, id.replace("-", ""))
    return ":".join(b64encode(part.encode()).decode() if part else EMPTY_PART for part in parts)


def runtime(job: Job) -> TaskRuntime:
    return TaskRuntime(
        task_id=task_id(scope_of(job.headers), job.id),
        task_type=job.task,
        status=_task_status(job),
        retries_left=max(0, job.max_retry - max(0, job.attempt - 1)) if job.max_retry else None,
        errors=[": ".join(text for text in (error.type, error.message) if text) for error in job.errors],
    )


def _task_status(job: Job) -> TaskStatus:
    if job.state not in FINISHED:
        return "pending"
    return "succeeded" if job.state is State.SUCCEEDED else "failed"


def _task(job: Job) -> NotificationTask:
    assert isinstance(job.payload, Raw)  # noqa: S101 - it was asked for
    return NotificationTask(runtime(job), bodies.translate(job.payload, job.content_type, "json"))


# Lists


def _listing(call: RouteCall) -> List:
    states = states_of(call.request.query_params.get("taskStatus"))
    return List(tenant=call.tenant, match=match_of(call.request.headers, states))


async def _stream(call: RouteCall, write: WriteJobs, *, trailing_null: bool) -> Response:
    listing = _listing(call)
    first = await call.service(listing)  # before the response starts, so that errors still get a status
    elements = _elements(call.service, listing, first, write)
    return StreamingResponse(_array(elements, trailing_null=trailing_null), media_type=JSON)


async def _array(elements: AsyncIterator[bytes], *, trailing_null: bool) -> AsyncIterator[bytes]:
    before = b"["
    async for element in elements:
        yield before + element
        before = b","
    if trailing_null:
        yield before + b"null]"
    else:
        yield b"[]" if before == b"[" else b"]"


async def _elements(service: Service, listing: List, page: Page, write: WriteJobs) -> AsyncIterator[bytes]:
    while True:
        async for element in write(page.jobs):
            yield element
        if page.next is None:
            return
        page = await service(replace(listing, limit=MOST_AT_ONCE, after=page.next))


async def _write_runtimes(jobs: list[Job], *, wrapped: bool) -> AsyncIterator[bytes]:
    found = (WrappedRuntime(runtime(job)) if wrapped else runtime(job) for job in jobs)
    if pieces := [msgspec.json.encode(one) for one in found]:
        yield b",".join(pieces)


async def _write_tasks(service: Service, tenant: str, jobs: list[Job]) -> AsyncIterator[bytes]:
    for start in range(0, len(jobs), READ_AT_ONCE):
        some = jobs[start : start + READ_AT_ONCE]
        found = await asyncio.gather(*(_read(service, tenant, job.id) for job in some))
        if pieces := [msgspec.json.encode(_task(job)) for job in found if job is not None]:
            yield b",".join(pieces)


async def _read(service: Service, tenant: str, id: str) -> Job | None:
    """A job with its payload; null = it was deleted since it was listed."""
    try:
        return await service(Show(tenant=tenant, id=id, payload=True))
    except Missing:
        return None


async def _count(call: RouteCall) -> Count:
    return Count(tenant=call.tenant, match=_listing(call).match)


async def _delete(call: RouteCall) -> Delete:
    return Delete(tenant=call.tenant, match=match_of(call.request.headers, []))


# The table

PREFIXES = {"/management/queue": "", "/wq/management": "Wq"}
"""Two prefixes for the same routes, and the suffixes that keep their names apart."""

SCOPE_HEADERS = {
    SERVICE: "The service.",
    TENANT: "The service; takes precedence.",
    PATH: "The path in the service; `/` by default.",
    CORRELATOR: "The correlator of the notifications.",
}
INDEX_HEADER = {TIME_INDEX: "Passed on with the job."}

ENTITY = {"id": "room-1", "type": "Room", "temperature": {"type": "Number", "value": 21.5}}


def aliases(options: NotificationOptions, recovery: Recovery | None = None) -> tuple[Alias, ...]:
    async def tasks(call: RouteCall) -> Response:
        write = partial(_write_tasks, call.service, call.tenant)
        return await _stream(call, write, trailing_null=options.trailing_null)

    async def summary(call: RouteCall) -> Response:
        write = partial(_write_runtimes, wrapped=options.wrapped_summary)
        return await _stream(call, write, trailing_null=options.trailing_null)

    found = [
        alias(
            "POST /v2/notify",
            "S4Notify",
            Enqueue,
            "Queue a notification. 500 = the queue cannot accept it, or the client waited for it and it failed.",
            _notify(options, recovery),
            headers=SCOPE_HEADERS | INDEX_HEADER,
            body=[Content(Notification, example={"subscriptionId": "s1", "data": [ENTITY]})],
            responses={200: [Content(str, (TEXT,))]},
            errors=frozenset({429}),
        )
    ]
    for prefix, suffix in PREFIXES.items():
        path = f"{prefix}/notifications"
        listing: dict[str, Any] = {"headers": SCOPE_HEADERS, "query": TaskQuery}
        found += [
            alias(
                f"GET {path}",
                f"S4List{suffix}",
                List,
                "Tasks with their input.",
                tasks,
                responses={200: [Content(list[NotificationTask])]},
                **listing,
            ),
            alias(
                f"DELETE {path}",
                f"S4Delete{suffix}",
                Delete,
                "Delete all tasks of the scope, in any state.",
                forward(_delete, no_content),
                headers=SCOPE_HEADERS,
                responses={204: []},
            ),
            alias(
                f"GET {path}/summary",
                f"S4Summary{suffix}",
                List,
                "The status of each task.",
                summary,
                responses={200: [Content(list[TaskRuntime])]},
                **listing,
            ),
            alias(
                f"GET {path}/count",
                f"S4Count{suffix}",
                Count,
                "The number of tasks.",
                forward(_count, lambda _, found: Response(msgspec.json.encode(found.count), media_type=JSON)),
                responses={200: [Content(int)]},
                **listing,
            ),
        ]
    return tuple(found)


SPECS = tuple(one.spec for one in aliases(NotificationOptions()))
