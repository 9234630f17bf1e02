"""The client of a server: a service that sends operations over HTTP, with the same answers and errors as in process.

Speaks MessagePack. Retries a request only if the first one cannot have arrived, or if the operation is idempotent.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote

import httpx2
import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from windlass.model import events, wire
from windlass.model.errors import Invalid, Missing, Problem, Unavailable, WindlassError, from_problem
from windlass.model.events import Event
from windlass.model.job import FINISHED, MSGPACK, State
from windlass.model.match import Match
from windlass.model.names import EVERY_TENANT, check_id, check_name, without_password
from windlass.model.new_job import NOTHING, NewJob
from windlass.model.operations import (
    A,
    Claim,
    Edit,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    FinishByHand,
    Finished,
    GetProgress,
    GetResult,
    Operation,
    Output,
    PutFile,
    Result,
    Send,
    answer_type,
)
from windlass.model.schedule import NewSchedule
from windlass.model.shapes import SHAPES, Shape

S = TypeVar("S", Finished, FinishByHand)

ANSWER_WITHIN = 10.0
"""Seconds for the response, beyond the wait of the operation."""

STREAM_TIMEOUT = 60.0
"""Seconds without data after which a stream counts as lost; a server sends keep-alives more often."""

TRIES = 2

KEEP_ALIVE = 3.0
"""Seconds for which an idle connection is kept: less than a server keeps it, or it might close under a request."""

PROXY_ERRORS = (502, 503, 504)
"""Statuses of a proxy that cannot reach the server."""

_SHAPES = {shape.kind: shape for shape in reversed(SHAPES)}
"""By operation; the first path of those with two."""


class Client:
    """A client of one server. Close it, or use it with `async with`."""

    def __init__(self, server: str, token: str = "", *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        address, chosen = _address(server)
        self._http = httpx2.AsyncClient(
            base_url=address,
            transport=transport or chosen,
            timeout=_timeout(),
            limits=httpx2.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=KEEP_ALIVE),
            trust_env=False,
            verify=address.startswith("https:"),  # loading certificates takes long, so only for TLS
            headers={"accept": MSGPACK, "content-type": MSGPACK, **_auth_header(token)},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def __call__(self, operation: Operation[A], /) -> A:
        shape = _SHAPES[type(operation)]
        request = self._request(shape, operation)
        response = await self._send(request, retry=_is_idempotent(operation))
        return cast("A", _answer(operation, response))

    async def follow_job(self, tenant: str, id: str, since: str = "") -> AsyncGenerator[Event, None]:
        """The events of a job after the event `since`, until the job has ended."""
        path = f"/v1/{_tenant_step(tenant)}/jobs/{check_id(id)}/events"
        async with aclosing(self._stream(path, {}, {"last-event-id": since} if since else {})) as stream:
            async for event in stream:
                yield event
                if event.job is not None and event.job.state in FINISHED:
                    return

    async def watch(self, tenant: str, match: Match) -> AsyncGenerator[Event, None]:
        """The events of all matching jobs from now on."""
        params = {name: value for name, value in msgspec.to_builtins(match).items() if value}
        async with aclosing(self._stream(f"/v1/{_tenant_step(tenant)}/events", params, {})) as stream:
            async for event in stream:
                yield event

    async def _stream(self, path: str, params: dict[str, Any], headers: dict[str, str]) -> AsyncGenerator[Event, None]:
        headers = {"accept": "text/event-stream, */*;q=0.1", **headers}
        timeout = httpx2.Timeout(ANSWER_WITHIN, read=STREAM_TIMEOUT, pool=None)
        try:
            request = self._http.build_request("GET", path, params=_query(params), headers=headers, timeout=timeout)
            response = await self._http.send(request, stream=True)
            async with aclosing(response):
                if response.status_code == httpx2.codes.NO_CONTENT:
                    return
                if response.status_code >= httpx2.codes.BAD_REQUEST:
                    await response.aread()
                    raise from_problem(_problem(response))
                async for event in events.read(response.aiter_lines()):
                    yield event
        except httpx2.TransportError as fault:
            raise self._no_answer(fault) from fault
        raise Unavailable("the server ended the stream: it is stopping, or the job was deleted")

    def _request(self, shape: Shape, operation: Operation[Any]) -> httpx2.Request:
        path = shape.path.format(**{name: _step(name, getattr(operation, name)) for name in shape.names})
        tenant = _tenant_step(operation.tenant)
        wait = getattr(operation, "wait", 0.0)
        if isinstance(operation, FinishByHand):
            operation = _wrapped_result(operation)
        if isinstance(operation, Edit) and operation.content_type != MSGPACK and isinstance(operation.payload, Raw):
            operation = replace(operation, payload=_wrapped(operation.payload))
        rest = _flat(shape, operation)
        headers: dict[str, str] = {}
        body: bytes | None = None
        if shape.body is not None:
            value = getattr(operation, shape.body)
            if isinstance(operation, EnqueueLines):
                body, headers = value.encode(), {"content-type": "text/plain; charset=utf-8"}
            elif isinstance(operation, Output | Send | PutFile):
                body, headers = value, {"content-type": "application/octet-stream"}
            else:
                body = wire.encode(_sendable(value))
        elif shape.has_body:
            body, rest = wire.encode(rest), {}
        return self._http.build_request(
            shape.route.verb,
            f"/v1/{tenant}{path}",
            params=_query(rest),
            content=body,
            headers=headers,
            timeout=_timeout(wait),
        )

    async def _send(self, request: httpx2.Request, *, retry: bool) -> httpx2.Response:
        if self._http.is_closed:
            raise Unavailable("this client was closed")
        for left in range(TRIES - 1, -1, -1):
            try:
                return await self._http.send(request)
            except httpx2.ConnectError as fault:
                failure: httpx2.TransportError = fault  # the request was not sent
            except httpx2.TransportError as fault:
                failure = fault
                if not retry:
                    break
            if not left:
                break
        raise self._no_answer(failure) from failure

    def _no_answer(self, fault: httpx2.TransportError) -> Unavailable:
        address = self._http.base_url  # its `netloc` has no password
        where = f"{address.scheme}://{address.netloc.decode()}"
        return Unavailable(f"the server at {where} does not answer: {fault or type(fault).__name__}")


def _tenant_step(tenant: str) -> str:
    return EVERY_TENANT if tenant == EVERY_TENANT else check_name(tenant, at="tenant")


def _auth_header(token: str) -> dict[str, str]:
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise Invalid(
            "this is not a token: it contains a space, a line break or another character that headers cannot hold",
            at="token",
        )
    return {"authorization": f"Bearer {token}"} if token else {}


def _timeout(wait: float = 0.0) -> httpx2.Timeout:
    # Waiting for a free connection of our own is not a failure of the server.
    return httpx2.Timeout(ANSWER_WITHIN + wait, pool=None)


def _step(name: str, value: str) -> str:
    """A value as one path step. For a value that cannot be one, the same error as from the queue."""
    if name == "id":
        return check_id(value)
    if name == "task":
        return check_name(value, at=name)
    if not value or "/" in value or value in (".", ".."):
        raise Missing(f"there is no {name} {value[:60]!r}", at=name)
    return quote(value, safe="")


def _address(server: str) -> tuple[str, httpx2.AsyncBaseTransport | None]:
    """`http://…`, `https://…`, or `http+unix:///path/of/a/socket`."""
    scheme, separator, rest = server.partition("://")
    if scheme == "http+unix" and separator:
        return "http://localhost", httpx2.AsyncHTTPTransport(uds=rest)
    if scheme not in ("http", "https") or not separator:
        raise Invalid(
            f"{without_password(server)!r} is not the URL of a server: give http://, https:// or http+unix://",
            at="server",
        )
    return server.rstrip("/"), None


def _is_idempotent(operation: Operation[Any]) -> bool:
    """Whether a retry is safe: reads, and operations whose ids come from the caller."""
    match operation:
        case Enqueue():
            return operation.job.id is not None or operation.job.key is not None
        case EnqueueMany():
            return all(new.id is not None or new.key is not None for new in operation.jobs)
        case Claim():
            return operation.nonce is not None
        case PutFile() | GetProgress():
            return True
        case _:
            return _SHAPES[type(operation)].route.verb == "GET" and not isinstance(operation, GetResult)


def _sendable(value: Any) -> Any:
    """A body with payloads of other formats wrapped as bytes."""
    match value:
        case NewJob():
            return _wrapped_job(value)
        case [NewJob(), *_]:
            return [_wrapped_job(new) for new in value]
        case [Finished(), *_]:
            return [_wrapped_report(report) for report in value]
        case NewSchedule():
            return replace(value, job=_wrapped_job(value.job))
        case _:
            return value


def _wrapped_job(new: NewJob) -> NewJob:
    """In a MessagePack body a payload of another content type travels as its bytes."""
    then = None if new.then is None else _wrapped_job(new.then)
    if new.content_type == MSGPACK or new.payload is NOTHING:
        return new if then is new.then else replace(new, then=then)
    return replace(new, payload=_wrapped(new.payload), then=then)


def _wrapped_report(report: Finished) -> Finished:
    return replace(_wrapped_result(report), jobs=[_wrapped_job(new) for new in report.jobs])


def _wrapped_result(report: S) -> S:
    if report.content_type == MSGPACK or not isinstance(report.result, Raw):
        return report
    return replace(report, result=_wrapped(report.result))


def _wrapped(raw: Raw) -> Raw:
    return Raw(wire.encode(bytes(raw)))


def _flat(shape: Shape, operation: Operation[Any]) -> dict[str, Any]:
    """The fields that are neither path nor body, inner structs flattened, without defaults."""
    found: dict[str, Any] = {}
    for field in shape.fields:
        value = getattr(operation, field.name)
        if field.name in shape.flat:
            found |= _fields(value, optional=field.default is None)
        elif value != field.default and not (field.default is None and value is None):
            found[field.name] = value
    return found


def _fields(value: Any, *, optional: bool) -> dict[str, Any]:
    """The fields of an inner struct. If an empty one would select nothing, all jobs are selected by their states."""
    if value is None:
        return {}
    return msgspec.to_builtins(value) or ({"state": ["pending", "finished"]} if optional else {})


def _query(rest: dict[str, Any]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in msgspec.to_builtins(rest).items():
        if isinstance(value, dict):
            word = _word if name == "payload" else _plain
            pairs += [(f"{name}.{key}", word(one)) for key, one in value.items()]
        elif name == "tier":
            pairs.append((name, _word(value)))
        else:
            pairs += [(name, _plain(one)) for one in (value if isinstance(value, list) else [value])]
    return pairs


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _word(value: Any) -> str:
    """A value whose type the server infers from its text: text that looks like another type is quoted."""
    try:
        msgspec.json.decode(_plain(value))
    except msgspec.DecodeError:
        return _plain(value)
    return msgspec.json.encode(value).decode()


def _answer(operation: Operation[Any], response: httpx2.Response) -> Any:
    if response.status_code == httpx2.codes.REQUEST_TIMEOUT and isinstance(operation, GetResult):
        return _pending(response)
    if response.status_code >= httpx2.codes.BAD_REQUEST:
        raise from_problem(_problem(response))
    kind = answer_type(type(operation))
    if kind is type(None):
        return None
    try:
        return _without_null(wire.decode(response.content, kind))
    except Invalid as fault:
        raise WindlassError(f"the response of the server cannot be read: {fault}") from None


def _without_null(answer: Any) -> Any:
    """A missing result is sent as null without a content type."""
    if isinstance(answer, Result) and not answer.content_type:
        return replace(answer, result=UNSET, content_type=MSGPACK)
    return answer


def _pending(response: httpx2.Response) -> Result:
    problem = _problem(response)
    if problem.code != "unfinished":
        raise from_problem(problem)
    return Result(state=State(problem.state))


def _problem(response: httpx2.Response) -> Problem:
    try:
        return wire.decode(response.content, Problem)
    except Invalid:
        status = response.status_code
        code = Unavailable.code if status in PROXY_ERRORS else WindlassError.code
        return Problem(title="Not ours", status=status, detail=f"the server answered {status}", code=code)
