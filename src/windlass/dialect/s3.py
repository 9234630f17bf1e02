"""The routes of a function queue as its users write them: a client's jobs of a type, and the handlers of types.

A client is a tenant, a type is a task. Jobs come a line each and get the terms of that queue: another run every five
minutes for six hours, two minutes a run; two weeks in the archive and a month to be started, unless the operator says
otherwise.
"""

from typing import Any, TypedDict

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace
from starlette.requests import Request
from starlette.responses import Response

from windlass.dialect import s3_table as table
from windlass.model import wire
from windlass.model.errors import Invalid
from windlass.model.handler import NewHandler
from windlass.model.job import DAY, JSON, TEXT, Wishes
from windlass.model.operations import (
    OPERATIONS,
    EnqueueLines,
    GetHandler,
    Operation,
    PutHandler,
    RemoveHandler,
    Service,
)
from windlass.model.retry import UNTIL_DEADLINE
from windlass.server import formats
from windlass.server.described import DescribedRoute
from windlass.server.gate import Gate
from windlass.server.limits import Limits, read_body

TERMS = Wishes(max_retry=None, retry=UNTIL_DEADLINE, timeout=120.0)


class Terms(Struct, frozen=True, kw_only=True):
    """What an operator chooses for jobs that come by these routes."""

    keep_success: float | None = 14 * DAY
    keep_failure: float | None = 14 * DAY
    expires: float | None = 30 * DAY


class Names(TypedDict):
    """What every path says."""

    tenant: str
    task: str


def routes(service: Service, gate: Gate, limits: Limits, terms: Terms | None = None) -> list[DescribedRoute]:
    """What a server answers in this dialect."""
    wishes = replace(TERMS, **asdict(terms or Terms()))

    async def admitted(request: Request, kind: type[Operation[Any]]) -> Names:
        tenant = await gate.admit(request, OPERATIONS[kind].scope)
        return {"tenant": tenant, "task": request.path_params["type"]}

    async def add_jobs(request: Request) -> Response:
        names = await admitted(request, EnqueueLines)
        text = _text(await read_body(request, limits))
        made = await service(EnqueueLines(**names, text=text, wishes=wishes))
        if formats.media(request.headers.get("accept", "")) == TEXT:
            return Response("".join(f"{id}\n" for id in made.ids), media_type=TEXT)
        return _json(table.Added(count=made.created, ids=made.ids))

    async def add_handler(request: Request) -> Response:
        names = await admitted(request, PutHandler)
        entry = await service(PutHandler(**names, handler=await _handler(request, limits)))
        return _json(table.Uploaded(version=entry.version))

    async def get_handler(request: Request) -> Response:
        names = await admitted(request, GetHandler)
        return _json(await service(GetHandler(**names)))

    async def delete_handler(request: Request) -> Response:
        names = await admitted(request, RemoveHandler)
        await service(RemoveHandler(**names))
        return _json(table.Done())

    return [
        DescribedRoute(table.ADD, add_jobs),
        DescribedRoute(table.PUT, add_handler),
        DescribedRoute(table.GET, get_handler),
        DescribedRoute(table.REMOVE, delete_handler),
    ]


async def _handler(request: Request, limits: Limits) -> NewHandler:
    """The whole handler as JSON, or its source alone with the language as `method`."""
    data = await read_body(request, limits)
    method = request.query_params.get("method")
    if formats.media(request.headers.get("content-type", "")) != JSON:
        said = {"body": _text(data)} | ({} if method is None else {"lang": method})
        return wire.decode(wire.encode(said), NewHandler)
    handler: NewHandler = wire.decode(data, NewHandler, "json")
    if method not in (None, handler.lang):
        raise Invalid(f"the body says {handler.lang}", at="method")
    return handler


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as fault:
        raise Invalid(f"not UTF-8: {fault.reason} at byte {fault.start}", at="body") from None


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)
