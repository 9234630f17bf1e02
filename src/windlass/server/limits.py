"""How much a request may bring, and how long it may take to bring it."""

import asyncio

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request

from windlass.model.errors import Invalid, TooLarge, WindlassError
from windlass.model.operations import MOST_LINES
from windlass.model.wire import MOST_PAYLOAD, MOST_RESULT
from windlass.server.heads import WHOLE


class Limits(Struct, frozen=True, kw_only=True):
    """What an operator may choose for requests."""

    most_body: int = 16 << 20
    """Bytes of one body."""
    body_within: float = 30.0
    """Seconds in which a body must have arrived."""
    most_lines: int = MOST_LINES
    """Jobs in one body of lines."""
    most_payload: int = MOST_PAYLOAD
    """Bytes of one payload, as the queue has it."""
    most_result: int = MOST_RESULT
    """The same of one result."""

    @property
    def of_reports(self) -> "Limits":
        """For what workers report: the largest result in JSON, where bytes and odd characters take more room."""
        return replace(self, most_body=max(self.most_body, 2 * self.most_result))


class Slow(WindlassError):
    """The body did not arrive in time."""

    code, title, status, exit_status = "slow", "Request timeout", 408, 75


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body, if it is not too long and does not take too long."""
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Invalid("compressed bodies are not read: send it as it is", at="content-encoding")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.most_body:
        raise _too_large(limits)
    if WHOLE in request.scope:
        return await _received(request, limits)
    try:
        async with asyncio.timeout(limits.body_within):
            return await _received(request, limits)
    except TimeoutError:
        raise Slow(f"the body did not arrive within {limits.body_within:g} s", at="body") from None


async def _received(request: Request, limits: Limits) -> bytes:
    pieces: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Invalid("the connection was closed before the body had arrived", at="body")
        pieces.append(message["body"])
        size, more = size + len(pieces[-1]), message["more_body"]
        if size > limits.most_body:
            raise _too_large(limits)
    return b"".join(pieces)


def _too_large(limits: Limits) -> TooLarge:
    return TooLarge(f"a body may have {limits.most_body} bytes: send less at once", at="body")
