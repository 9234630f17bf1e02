"""Errors as problem details, in the format that the answer was wanted in."""

import logging

from starlette.requests import Request
from starlette.responses import Response

from windlass.model import wire
from windlass.model.errors import Busy, Problem, Unauthenticated, Unavailable, WindlassError
from windlass.model.wire import Format
from windlass.server import formats

log = logging.getLogger("windlass.server")

TRY_AGAIN_AFTER = "1"


def told(request: Request, error: WindlassError) -> Response:
    """What went wrong, as the client can read it."""
    return response(error.problem(), form_for(request), headers_for(error))


def headers_for(error: WindlassError) -> dict[str, str]:
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, Unavailable | Busy):
        return {"retry-after": TRY_AGAIN_AFTER}
    return {}


def form_for(request: Request) -> Format:
    """The format of an error: as the answer would have been, and JSON where even that is not clear."""
    own = formats.sent(request.headers.get("content-type", "")) or "json"
    try:
        return formats.wanted(request.headers.get("accept", ""), own)
    except formats.NotAcceptable:
        return "json"


def response(problem: Problem, form: Format, headers: dict[str, str] | None = None) -> Response:
    body = wire.encode(problem, form)
    return Response(body, problem.status, headers, formats.PROBLEM_TYPES[form])


async def on_error(request: Request, fault: Exception) -> Response:
    """An error of our own that left a route."""
    assert isinstance(fault, WindlassError)  # noqa: S101 - it is registered for these
    return told(request, fault)


def of_bug(request: Request, fault: Exception) -> Response:
    """Anything else is our mistake: the log has it, the client does not."""
    log.error("%s %s", request.method, request.scope["path"], exc_info=fault)
    problem = Problem(title="Internal error", status=500, detail="this is a mistake of the server's", code="error")
    return response(problem, form_for(request))


def of_status(status: int, title: str, detail: str, code: str) -> Problem:
    return Problem(title=title, status=status, detail=detail, code=code)
