"""A route for every operation: a request becomes an operation, its answer a response.

Knows the shapes of operations, formats and tokens; the service behind it does the rest.
"""

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from windlass.model import wire
from windlass.model.errors import Invalid, Problem, WindlassError
from windlass.model.job import FINISHED, TEXT, State
from windlass.model.operations import (
    MOST_AT_ONCE,
    Accepted,
    Claim,
    Claimed,
    Edit,
    EnqueueLines,
    EnqueueMany,
    Finish,
    FinishByHand,
    GetFile,
    GetOutput,
    GetResult,
    List,
    Operation,
    Output,
    OutputPage,
    Page,
    PutFile,
    Register,
    Registered,
    Release,
    Released,
    Result,
    Send,
    Service,
    answer_type,
)
from windlass.model.output import VALUES
from windlass.model.shapes import SHAPES, Shape
from windlass.model.token import Issued
from windlass.model.wire import Format
from windlass.server import bodies, formats
from windlass.server.auth import Auth, TokenWatch, is_of_all_tenants
from windlass.server.requests import Endpoint, EndpointFunction, RequestLimits, read_body, text_of
from windlass.server.streams import stream_head

PREFIX = "/v1/{tenant}"

_INDEX = re.compile(r"jobs\[(\d+)\](.*)", re.DOTALL)

CREATED = 201

WORDS = sorted(shape.path.split("/")[2] for shape in SHAPES if shape.path.startswith("/jobs/") and not shape.names)
"""Fixed path steps in the position of a job's id."""

OFTEN = ("enqueue", "work")
"""Scopes of the most frequent requests: those of producers and workers."""


class Unfinished(WindlassError):
    """The job did not end within the wait."""

    code, title, status, exit_status = "unfinished", "Not finished", 408, 75

    def __init__(self, state: State) -> None:
        super().__init__(f"the job is still {state}")
        self.state = state

    def problem(self) -> Problem:
        return replace(super().problem(), state=self.state)


class Routes:
    """The routes of one service."""

    def __init__(self, service: Service, auth: Auth, limits: RequestLimits, token_watch: TokenWatch) -> None:
        self._service = service
        self._auth = auth
        self._limits = limits
        self._reports = limits.of_reports
        self._token_watch = token_watch

    def all(self) -> list[Route]:
        # Fixed paths go before those with parameters: /jobs/count is not a job. Frequent ones go first.
        ordered = sorted(SHAPES, key=lambda shape: (shape.path.count("{"), shape.route.scope not in OFTEN))
        return [_route(shape, self._respond(shape)) for shape in ordered]

    def _respond(self, shape: Shape) -> EndpointFunction:
        answers_nothing = answer_type(shape.kind) is type(None)  # so any Accept header will do

        async def respond(request: Request) -> Response:
            content_type = request.headers.get("content-type", "")
            accept = request.headers.get("accept", "")
            tenant = await self._auth.authorize(request, shape.route.scope)
            if shape.kind is List and formats.prefers(accept, formats.NDJSON):
                return await self._stream(request, self._from_query(shape, request, tenant))
            if shape.kind is GetOutput and formats.prefers(accept, TEXT):
                only = request.query_params.get("stream")
                return _output_text(await self._service(self._from_query(shape, request, tenant)), only)
            if shape.kind is GetFile and not formats.names_a_format(accept):
                return _file(await self._service(self._from_query(shape, request, tenant)), request)
            if shape.kind is EnqueueMany and formats.media(content_type) == formats.NDJSON:
                return await self._lines(request, tenant)
            own = formats.request_format(content_type) or "json"
            form = own if answers_nothing else formats.response_format(accept, own)
            operation = await self._read(shape, request, tenant, content_type)
            if isinstance(operation, Register):
                trusted = operation.worker.url is not None and is_of_all_tenants(request)
                operation = replace(operation, worker=replace(operation.worker, trusted=trusted))
            if getattr(operation, "wait", 0.0):
                return _response(shape, request, await self._long_poll(shape, request, operation), form)
            return _response(shape, request, await self._service(operation), form)

        return respond

    async def _long_poll(self, shape: Shape, request: Request, operation: Operation[Any]) -> Any:
        """An operation that waits. If the token is revoked meanwhile, jobs that are claimed afterwards are released."""

        async def release(claimed: list[Claimed]) -> None:
            assert isinstance(operation, Claim)  # noqa: S101
            unrun = [Released(id=one.job.id, token=one.token, tenant=one.job.tenant) for one in claimed]
            if unrun:
                await self._service(Release(tenant=operation.tenant, worker=operation.worker, jobs=unrun))

        undo = release if isinstance(operation, Claim) else None
        return await self._token_watch.long_poll(request, shape.route.scope, self._service(operation), undo)

    async def _read(self, shape: Shape, request: Request, tenant: str, content_type: str) -> Operation[Any]:
        if not shape.has_body or (shape.may_have_body and _is_bare(request)):
            return self._from_query(shape, request, tenant)
        data = await read_body(request, self._reports if shape.kind in (Finish, FinishByHand) else self._limits)
        path = request.path_params
        if shape.kind is EnqueueLines:
            if formats.media(content_type) not in (TEXT, formats.BYTES, ""):
                raise formats.unsupported(content_type, TEXT, formats.BYTES)
            return shape.build(tenant, path, self._query(shape, request), text_of(data))
        if shape.kind in (Output, Send, PutFile):
            return shape.build(tenant, path, self._query(shape, request), data)
        form = formats.request_format(content_type)
        if form is None:
            if data or shape.body is not None:
                raise formats.unsupported(content_type, formats.TYPES["msgpack"], formats.TYPES["json"])
            form = "json"
        if shape.body is None:
            if request.url.query:
                raise Invalid("this route takes a body or a query, not both", at="query")
            rest = bodies.decode(data or (b"{}" if form == "json" else b"\x80"), shape.struct, form)
            operation = shape.build(tenant, path, rest, None)
            if isinstance(operation, FinishByHand):
                return bodies.with_content_type(operation, form, "result")
            return bodies.with_content_type(operation, form, "payload") if isinstance(operation, Edit) else operation
        body = bodies.decode(data, shape.hints[shape.body], form)
        return shape.build(tenant, path, self._query(shape, request), body)

    def _query(self, shape: Shape, request: Request) -> Struct:
        return shape.from_query(request.query_params.multi_items()) if request.scope["query_string"] else shape.unasked

    def _from_query(self, shape: Shape, request: Request, tenant: str) -> Operation[Any]:
        return shape.build(tenant, request.path_params, self._query(shape, request), None)

    # Streams

    async def _stream(self, request: Request, operation: Operation[Any]) -> Response:
        """All matching jobs, a line each, a page at a time."""
        assert isinstance(operation, List)  # noqa: S101
        # The first page is read before the response starts, so that errors still get a status. It is a small one, so
        # that the first byte comes soon.
        first = await self._service(operation)
        if request.method == "HEAD":
            return stream_head(formats.NDJSON)
        pages = self._pages(replace(operation, limit=MOST_AT_ONCE), first)
        return StreamingResponse(pages, media_type=formats.NDJSON)

    async def _pages(self, operation: List, page: Page) -> AsyncIterator[bytes]:
        while True:
            if page.jobs:
                yield b"".join(wire.encode(job, "json") + b"\n" for job in page.jobs)
            if page.next is None:
                return
            page = await self._service(replace(operation, after=page.next))

    async def _lines(self, request: Request, tenant: str) -> Response:
        """NDJSON. All jobs are validated before the first is queued; a store may still refuse some in the middle."""
        form = formats.response_format(request.headers.get("accept", ""), "json")
        news, numbers = await bodies.decode_lines(await read_body(request, self._limits), self._limits)
        try:
            answer = await self._service(EnqueueMany(tenant=tenant, jobs=news))
        except WindlassError as fault:
            fault.at = _by_line(fault.at, numbers)
            if fault.partly is not None and len(fault.partly.accepted) < len(numbers):
                fault.line = numbers[len(fault.partly.accepted)]
            raise
        return Response(bodies.encode(answer, form), 201, media_type=formats.TYPES[form])


def _route(shape: Shape, respond: EndpointFunction) -> Route:
    verb, path = shape.route.verb, PREFIX + shape.path
    route = Route(path.replace("/jobs/{id}", "/jobs/{id:job}"), Endpoint(respond), methods=[verb])
    route.path = path
    # No HEAD for results: reading one may use it up.
    route.methods = {verb, "HEAD"} if verb == "GET" and shape.kind is not GetResult else {verb}
    return route


class _JobStep(Convertor[str]):
    """A path step that may be the id of a job: `/jobs/count` is not one, with any verb."""

    regex = rf"(?!(?:{'|'.join(WORDS)})(?:/|$))[^/]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("job", _JobStep())


def _output_text(page: OutputPage, only: str | None) -> Response:
    """The bytes of one stream; or of all, in order, without the values, which are no text for people."""
    headers = {"windlass-next": str(page.next), "windlass-ended": "true" if page.ended else "false"}
    chunks = [one for one in page.chunks if only or one.stream != VALUES]
    return Response(b"".join(chunk.data for chunk in chunks), headers=headers, media_type=TEXT)


def _file(data: bytes, request: Request) -> Response:
    """A file as it is, for a browser to save: it comes from a job, so it is never shown as a page of this server."""
    name = quote(request.path_params["name"], safe="")
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}", "x-content-type-options": "nosniff"}
    return Response(data, headers=headers, media_type="application/octet-stream")


def _is_bare(request: Request) -> bool:
    """Whether a request has no body."""
    return request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers


def _by_line(at: str, numbers: list[int]) -> str:
    """The field of an error, by line number instead of index."""
    found = _INDEX.match(at)
    return at if found is None else f"line {numbers[int(found[1])]}{found[2]}"


def _location(request: Request, answer: Any) -> dict[str, str]:
    """The Location of what was just created, if it is one thing."""
    match answer:
        case Accepted():
            name = answer.id
        case Registered():
            name = answer.worker
        case Issued():
            name = answer.key
        case _:
            return {}
    return {"location": f"{quote(request.scope['path'])}/{name}"}


def _response(shape: Shape, request: Request, answer: Any, form: Format) -> Response:
    status = shape.route.status
    if isinstance(answer, Result) and answer.state not in FINISHED and shape.kind is GetResult:
        raise Unfinished(answer.state)
    if isinstance(answer, Accepted) and not answer.created:
        status = 200
    if answer is None:
        return Response(status_code=204)
    headers = _location(request, answer) if status == CREATED else None
    return Response(bodies.encode(answer, form), status, headers, media_type=formats.TYPES[form])
