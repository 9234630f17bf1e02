"""The routes of a queue of pushers and workers as its users write them, in MessagePack or JSON.

A job's name is a task, a worker's `max_jobs` its slots. Workers have their jobs sent to `/worker-job` at an address
that they give when they register, and say that they live: those routes had no field for the one (`url`), and no route
for the other (`PUT /worker`).
"""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from windlass.dialect import s2_table as table
from windlass.dialect import s2_words as words
from windlass.dialect.s2_table import WORKER_ID, Patience
from windlass.dialect.s2_words import LANGUAGE, TYPES, is_spoken_by
from windlass.model import wire
from windlass.model.errors import Conflict, Invalid
from windlass.model.job import FINISHED, Job, State
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT
from windlass.model.operations import (
    OPERATIONS,
    Cancel,
    Enqueue,
    Finish,
    GetResult,
    Operation,
    Register,
    Renew,
    Service,
    Show,
    Unregister,
)
from windlass.model.wire import Format
from windlass.model.worker import NewWorker
from windlass.server import bodies, formats
from windlass.server.described import DescribedRoute
from windlass.server.gate import Gate, is_of_all_tenants
from windlass.server.limits import Limits, read_body
from windlass.server.routes import Unfinished

__all__ = ["LANGUAGE", "is_spoken_by", "routes"]

SILENT_FOR = 10.0
"""Seconds after which a worker that does not say that it lives is dropped, as its users are used to."""

STARTED = (State.RUNNING, State.SUCCEEDED, State.FAILED)


def routes(service: Service, gate: Gate, limits: Limits) -> list[DescribedRoute]:
    """What a server answers in this dialect."""
    return [*_for_pushers(service, gate, limits), *_for_workers(service, gate, limits)]


def _for_pushers(service: Service, gate: Gate, limits: Limits) -> list[DescribedRoute]:
    async def add(request: Request) -> Response:
        tenant = await _tenant(gate, request, Enqueue)
        sent, form = await _body(request, limits, words.Submission)
        job = await service(Enqueue(tenant=tenant, job=words.new_job(sent, form)))
        return _told(request, words.Queued(job.id), 201)

    async def show(request: Request) -> Response:
        tenant = await _tenant(gate, request, Show)
        return await told(request, await service(Show(tenant=tenant, id=_id(request))))

    async def poll(request: Request) -> Response:
        tenant = await _tenant(gate, request, Show)
        job = await service(Show(tenant=tenant, id=_id(request), wait=_patience(request)))
        if job.state not in FINISHED:
            raise Unfinished(job.state)
        return await told(request, job)

    async def told(request: Request, job: Job) -> Response:
        form = _form(request)  # before the result is looked at, which may use it up
        kept = await service(GetResult(tenant=job.tenant, id=job.id)) if job.state is State.SUCCEEDED else None
        return _told(request, words.status(job, kept, form))

    async def cancel(request: Request) -> Response:
        tenant = await _tenant(gate, request, Cancel)
        job = words.known(await service(Show(tenant=tenant, id=_id(request))))
        if job.state in STARTED:
            raise Conflict(f"the job is {job.state}", at="id")
        await service(Cancel(tenant=tenant, ids=[job.id]))
        return Response(status_code=204)

    return [
        DescribedRoute(table.PUSH, add),
        DescribedRoute(table.LOOK, show),
        DescribedRoute(table.CANCEL, cancel),
        DescribedRoute(table.POLL, poll),
    ]


def _for_workers(service: Service, gate: Gate, limits: Limits) -> list[DescribedRoute]:
    async def add(request: Request) -> Response:
        tenant = await _tenant(gate, request, Register)
        sent, form = await _body(request, limits, words.Introduction)
        address = sent.url.rstrip("/") + words.WORKER_JOB
        worker = NewWorker(
            name=sent.name,
            slots=sent.max_jobs,
            lease=SILENT_FOR,
            url=address,
            format=form,
            trusted=is_of_all_tenants(request),
        )
        found = await service(Register(tenant=tenant, worker=worker))
        return _told(request, words.Joined(found.worker, found.lease, found.secret), 201)

    async def keep(request: Request) -> Response:
        tenant = await _tenant(gate, request, Renew)
        await service(Renew(tenant=tenant, worker=_worker(request)))
        return Response(status_code=204)

    async def remove(request: Request) -> Response:
        tenant = await _tenant(gate, request, Unregister)
        await service(Unregister(tenant=tenant, worker=_worker(request)))
        return Response(status_code=204)

    async def done(request: Request) -> Response:
        tenant = await _tenant(gate, request, Finish)
        sent, form = await _body(request, limits, words.Success | words.Failure)
        report = words.finished(sent, form)
        answer = await service(Finish(tenant=tenant, worker=_worker(request), jobs=[report]))
        if answer.refused:
            await service(Show(tenant=tenant, id=report.id))  # that of one that is there changes nothing
        return Response(status_code=204)

    return [
        DescribedRoute(table.JOIN, add),
        DescribedRoute(table.LIVE, keep),
        DescribedRoute(table.LEAVE, remove),
        DescribedRoute(table.DONE, done),
    ]


async def _tenant(gate: Gate, request: Request, kind: type[Operation[Any]]) -> str:
    tenant = await gate.identify(request, OPERATIONS[kind].scope)
    return DEFAULT_TENANT if tenant == EVERY_TENANT else tenant


async def _body(request: Request, limits: Limits, kind: Any) -> tuple[Any, Format]:
    content_type = request.headers.get("content-type", "")
    form = formats.sent(content_type)
    if form is None:
        raise formats.refuse(content_type, *TYPES.values())
    return bodies.decode(await read_body(request, limits), kind, form), form


def _form(request: Request) -> Format:
    """What the answer is told in: as asked for, or as it was sent, or in MessagePack."""
    own = formats.sent(request.headers.get("content-type", "")) or "msgpack"
    return formats.wanted(request.headers.get("accept", ""), own)


def _id(request: Request) -> str:
    return words.job_id(request.path_params["id"])


def _worker(request: Request) -> str:
    if not (worker := request.headers.get(WORKER_ID, "")):
        raise Invalid("say which worker it is", at=WORKER_ID)
    return worker


def _patience(request: Request) -> float:
    try:
        return msgspec.convert(dict(request.query_params), Patience, strict=False).timeout
    except msgspec.ValidationError as fault:
        raise wire.invalid(fault) from None


def _told(request: Request, value: Any, status: int = 200) -> Response:
    form = _form(request)
    return Response(wire.encode(value, form), status, media_type=TYPES[form])
