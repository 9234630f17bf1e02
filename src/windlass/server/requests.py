"""A request as the routes see it: fast header lookup, and a body read within limits of size and time.

Knows HTTP requests; knows neither operations nor formats.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from windlass.model.errors import Invalid, TooLarge, WindlassError
from windlass.model.operations import MOST_LINES
from windlass.model.wire import MOST_PAYLOAD, MOST_RESULT

BODY_COMPLETE = "windlass.body_complete"
"""Set in the scope of a request whose whole body has arrived: reading it needs no timeout."""

ABORT = "windlass.abort"
"""The scope extension that resets the connection. A client that reads nothing would not read a close either."""

LIMIT_BUFFER = "windlass.limit_buffer"
"""The scope extension that limits how much the kernel holds for a client that does not read."""

EndpointFunction = Callable[[Request], Awaitable[Response]]


class ApiRequest(Request):
    """A request that indexes its headers once: Starlette scans all of them for each of the eight lookups."""

    @cached_property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]
        """By lower-case name; the first one wins if a name repeats."""
        pairs = reversed(self.scope["headers"])
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}


class Endpoint:
    """The ASGI application of one route. Around a plain function Starlette would add another error-handling layer."""

    def __init__(self, respond: EndpointFunction) -> None:
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._respond(ApiRequest(scope, receive, send))
        await response(scope, receive, send)


# Bodies


class RequestLimits(Struct, frozen=True, kw_only=True):
    """Limits that an operator sets for requests."""

    most_body: int = 16 << 20
    """Bytes of one body."""
    body_within: float = 30.0
    """Seconds in which a body must arrive."""
    most_lines: int = MOST_LINES
    """Jobs in one NDJSON body."""
    most_payload: int = MOST_PAYLOAD
    """Bytes of one payload, as it is stored."""
    most_result: int = MOST_RESULT
    """Bytes of one result, as it is stored."""

    @property
    def of_reports(self) -> "RequestLimits":
        """For worker reports: the largest result as JSON, where bytes and escaped characters take more room."""
        return replace(self, most_body=max(self.most_body, 2 * self.most_result))


class Slow(WindlassError):
    """The body did not arrive in time."""

    code, title, status, exit_status = "slow", "Request timeout", 408, 75


async def read_body(request: Request, limits: RequestLimits) -> bytes:
    """The body, if it is not too large and arrives in time."""
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Invalid("compressed bodies are not supported: send it uncompressed", at="content-encoding")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.most_body:
        raise _too_large(limits)
    if BODY_COMPLETE in request.scope:
        return await _receive(request, limits)
    try:
        async with asyncio.timeout(limits.body_within):
            return await _receive(request, limits)
    except TimeoutError:
        raise Slow(f"the body did not arrive within {limits.body_within:g} s", at="body") from None


async def _receive(request: Request, limits: RequestLimits) -> bytes:
    pieces: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Invalid("the connection was closed before the whole body arrived", at="body")
        pieces.append(message["body"])
        size, more = size + len(pieces[-1]), message["more_body"]
        if size > limits.most_body:
            raise _too_large(limits)
    return b"".join(pieces)


def _too_large(limits: RequestLimits) -> TooLarge:
    return TooLarge(f"the body is larger than {limits.most_body} bytes: split it", at="body")


def text_of(data: bytes) -> str:
    """A body of plain text."""
    try:
        return data.decode()
    except UnicodeDecodeError as fault:
        raise Invalid(f"not UTF-8: {fault.reason} at byte {fault.start}", at="body") from None


async def disconnected(receive: Receive) -> None:
    """Until the client of a request whose body was read has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
