"""The routes of a queue of notifications as its users write them: notify, and look at, count and delete its tasks.

A notification is a job of the task `notify` in the tenant of the token, or in `default` for a token of all tenants; the
service, path and correlator of its headers are its scope there. Notifications are told while they are read, some at a
time, however many there are.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from windlass.dialect import s4_table as table
from windlass.dialect import s4_words as words
from windlass.model import wire
from windlass.model.errors import Full, Missing, Unavailable, WindlassError
from windlass.model.job import DAY, FINISHED, JSON, TEXT, Job, NewJob, State, Wishes
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT
from windlass.model.operations import (
    MOST_AT_ONCE,
    OPERATIONS,
    Count,
    Delete,
    Enqueue,
    List,
    Operation,
    Page,
    Service,
    Show,
)
from windlass.model.retry import FROM_START
from windlass.server.described import DescribedRoute
from windlass.server.gate import Gate
from windlass.server.limits import Limits, read_body

log = logging.getLogger("windlass.server")

RUN_WITHIN = 180.0
"""Seconds for one run."""

START_WITHIN = 60.0
"""Seconds in which work must be started that somebody waits for."""

WAIT = 60.0
"""Seconds that one question waits for the end of a job."""

READ_AT_ONCE = 20
"""Notifications in memory at a time: each may be as large as a payload."""

Telling = Callable[[list[Job]], AsyncIterator[bytes]]
"""Jobs as the elements of an array."""


class Recovery(Protocol):
    """Does the work of a notification that the queue could not take."""

    @property
    def tenant(self) -> str:
        """The tenant whose notifications it can do."""

    async def __call__(self, new: NewJob, within: float, /) -> str | None:
        """Do it now; why it failed."""


class Habits(Struct, frozen=True, kw_only=True):
    """What an operator chooses for notifications."""

    offload: bool = True
    recover: bool = False
    max_retry: int = 0
    retry_after: float = FROM_START.base
    keep_success: float = DAY
    keep_failure: float = 7 * DAY
    trailing_null: bool = False
    wrapped_summary: bool = False


class NotQueued(WindlassError):
    """A notification that the queue could not take."""

    code, title, status, exit_status = "not_queued", "Not queued", 500, 75


class NotDone(WindlassError):
    """A notification whose work did not succeed, told to whoever waited for it."""

    code, title, status, exit_status = "not_done", "Not done", 500, 1


def routes(
    service: Service, gate: Gate, limits: Limits, habits: Habits | None = None, recovery: Recovery | None = None
) -> list[DescribedRoute]:
    """What a server answers in this dialect."""
    chosen = habits or Habits()
    terms = _terms(chosen)

    async def admitted(request: Request, kind: type[Operation[Any]]) -> str:
        tenant = await gate.identify(request, OPERATIONS[kind].scope)
        return DEFAULT_TENANT if tenant == EVERY_TENANT else tenant

    async def notify(request: Request) -> Response:
        tenant = await admitted(request, Enqueue)
        new = _job(request, await read_body(request, limits), terms)
        try:
            job = await service(Enqueue(tenant=tenant, job=new))
        except (Unavailable, Full) as fault:
            return Response(await _recovered(recovery, tenant, new, fault), media_type=TEXT)
        return Response(await _answered(service, job, chosen), media_type=TEXT)

    async def listing(request: Request) -> Response:
        tenant = await admitted(request, List)
        return await streamed(_listing(request, tenant), lambda jobs: _whole(service, tenant, jobs))

    async def summary(request: Request) -> Response:
        tenant = await admitted(request, List)
        return await streamed(_listing(request, tenant), lambda jobs: _brief(jobs, wrapped=chosen.wrapped_summary))

    async def streamed(asked: List, telling: Telling) -> Response:
        first = await service(asked)  # what is wrong shows here, and can still be told
        elements = _elements(service, asked, first, telling)
        return StreamingResponse(_array(elements, trailing_null=chosen.trailing_null), media_type=JSON)

    async def count(request: Request) -> Response:
        tenant = await admitted(request, Count)
        found = await service(Count(tenant=tenant, match=_listing(request, tenant).match))
        return Response(msgspec.json.encode(found.count), media_type=JSON)

    async def delete(request: Request) -> Response:
        tenant = await admitted(request, Delete)
        await service(Delete(tenant=tenant, match=words.match_of(request.headers, [])))
        return Response(status_code=204)

    managing = (listing, delete, summary, count)
    pairs = [pair for entries in table.MANAGING for pair in zip(entries, managing, strict=True)]
    return [DescribedRoute(table.NOTIFY, notify), *(DescribedRoute(entry, answer) for entry, answer in pairs)]


def _terms(habits: Habits) -> Wishes:
    terms = Wishes(
        max_retry=habits.max_retry,
        retry=replace(FROM_START, base=habits.retry_after),
        timeout=RUN_WITHIN,
        keep_result="none",
        keep_success=habits.keep_success,
        keep_failure=habits.keep_failure,
        content_type=JSON,
    )
    # Whoever waits for the work hears how it went, and may send it again: so it is run once, soon or never.
    return terms if habits.offload else replace(terms, max_retry=0, expires=START_WITHIN)


def _job(request: Request, body: bytes, terms: Wishes) -> NewJob:
    scope = words.scope_of(request.headers)
    payload = Raw(wire.encode(words.input_of(body, scope), "json"))
    index = request.headers.get(words.TIME_INDEX)
    headers = scope.headers | ({words.TIME_INDEX: index} if index else {})
    wishes = msgspec.structs.asdict(terms) | {"tags": scope.tags, "headers": headers}
    return NewJob(task=words.TASK, payload=payload, **wishes)


async def _recovered(recovery: Recovery | None, tenant: str, new: NewJob, fault: WindlassError) -> str:
    """Done without the queue, if that is wanted."""
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


async def _answered(service: Service, job: Job, habits: Habits) -> str:
    return "queued\n" if habits.offload else await _done(service, job)


async def _done(service: Service, job: Job) -> str:
    """Until the job has ended: it does, for it expires if nobody starts it, and has so long to run."""
    while job.state not in FINISHED:
        try:
            job = await service(Show(tenant=job.tenant, id=job.id, wait=WAIT))
        except Unavailable as fault:
            raise NotDone(f"queued, but the store does not say how it ended: {fault}") from fault
    if job.state is not State.SUCCEEDED:
        raise NotDone(job.error.message if job.error else f"the work is {job.state}")
    return "done\n"


# Lists


def _listing(request: Request, tenant: str) -> List:
    states = words.states_of(request.query_params.get("taskStatus"))
    return List(tenant=tenant, match=words.match_of(request.headers, states))


async def _array(elements: AsyncIterator[bytes], *, trailing_null: bool) -> AsyncIterator[bytes]:
    before = b"["
    async for element in elements:
        yield before + element
        before = b","
    if trailing_null:
        yield before + b"null]"
    else:
        yield b"[]" if before == b"[" else b"]"


async def _elements(service: Service, asked: List, page: Page, telling: Telling) -> AsyncIterator[bytes]:
    while True:
        async for element in telling(page.jobs):
            yield element
        if page.next is None:
            return
        page = await service(replace(asked, limit=MOST_AT_ONCE, after=page.next))


async def _brief(jobs: list[Job], *, wrapped: bool) -> AsyncIterator[bytes]:
    told = (words.Wrapped(words.runtime(job)) if wrapped else words.runtime(job) for job in jobs)
    if pieces := [msgspec.json.encode(one) for one in told]:
        yield b",".join(pieces)


async def _whole(service: Service, tenant: str, jobs: list[Job]) -> AsyncIterator[bytes]:
    for start in range(0, len(jobs), READ_AT_ONCE):
        some = jobs[start : start + READ_AT_ONCE]
        found = await asyncio.gather(*(_read(service, tenant, job.id) for job in some))
        if pieces := [msgspec.json.encode(words.told(job)) for job in found if job is not None]:
            yield b",".join(pieces)


async def _read(service: Service, tenant: str, id: str) -> Job | None:
    """A job with its payload; null if it has gone since it was listed."""
    try:
        return await service(Show(tenant=tenant, id=id, payload=True))
    except Missing:
        return None
