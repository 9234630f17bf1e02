"""Content types and content negotiation: the format of a request, the format of its response, and error responses.

Knows MessagePack, JSON, NDJSON and problem details; knows no routes.
"""

import logging
from functools import lru_cache
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from windlass.model import wire
from windlass.model.errors import Busy, Problem, Unauthenticated, Unavailable, WindlassError
from windlass.model.job import JSON, MSGPACK
from windlass.model.wire import Format

log = logging.getLogger("windlass.server")

NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"

FORMATS: dict[str, Format] = {
    MSGPACK: "msgpack",
    "application/msgpack": "msgpack",
    "application/x-msgpack": "msgpack",
    JSON: "json",
    "text/json": "json",
}
"""Media types, aliases included."""

TYPES: dict[Format, str] = {"json": JSON, "msgpack": MSGPACK}
PROBLEM_TYPES: dict[Format, str] = {"json": "application/problem+json", "msgpack": "application/problem+msgpack"}

RETRY_AFTER = "1"


class NotAcceptable(WindlassError):
    """None of the accepted formats is available."""

    code, title, status, exit_status = "not_acceptable", "Not acceptable", 406, 2


class Unsupported(WindlassError):
    """The body is in a format that this route does not read."""

    code, title, status, exit_status = "unsupported", "Unsupported media type", 415, 2


class Range(NamedTuple):
    """One entry of an Accept header."""

    kind: str
    quality: float

    def covers(self, media: str) -> bool:
        return self.kind in ("*/*", media) or (self.kind.endswith("/*") and media.startswith(self.kind[:-1]))


def accepted(header: str) -> list[Range]:
    """The ranges of an Accept header, highest quality first."""
    found = []
    for part in header.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if kind:
            found.append(Range(kind, _quality(parameters)))
    return sorted(found, key=lambda one: -one.quality)


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0


def response_format(accept: str, own: Format) -> Format:
    """The accepted format with the highest quality; the request's own format on a tie or without an Accept header."""
    if not accept.strip():
        return own
    ranges = accepted(accept)
    best = max((own, *TYPES), key=lambda form: _rank(ranges, form))
    if _rank(ranges, best) <= 0:
        raise NotAcceptable(
            f"this route answers in {MSGPACK} or {JSON}, but the request accepts only {accept[:200]}", at="accept"
        )
    return best


def _rank(ranges: list[Range], form: Format) -> float:
    """The quality of a format: of the range that names it, else of the most specific range that covers it."""
    covering = [one for one in ranges if FORMATS.get(one.kind) == form]
    covering = covering or sorted((one for one in ranges if one.covers(TYPES[form])), key=lambda one: one.kind == "*/*")
    return covering[0].quality if covering else 0.0


def prefers(accept: str, kind: str) -> bool:
    """Whether the request names this media type, at no lower quality than the other formats."""
    ranges = accepted(accept)
    named = max((one.quality for one in ranges if one.kind == kind), default=0.0)
    return named > 0 and named >= max(_rank(ranges, form) for form in TYPES)


def names_a_format(accept: str) -> bool:
    """Whether the request names MessagePack or JSON."""
    return any(one.kind in FORMATS and one.quality > 0 for one in accepted(accept))


def request_format(content_type: str) -> Format | None:
    """The format of a body; null = neither MessagePack nor JSON."""
    return FORMATS.get(media(content_type))


@lru_cache(maxsize=256)
def media(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def unsupported(content_type: str, *reads: str) -> Unsupported:
    given = content_type[:200] or "no Content-Type"
    return Unsupported(f"this route reads {', '.join(reads)}; the request has {given}", at="content-type")


# Problem details


def error_response(request: Request, error: WindlassError) -> Response:
    """An error as problem details, in the format that the response would have had."""
    return problem_response(error.problem(), error_format(request), error_headers(error))


def error_headers(error: WindlassError) -> dict[str, str]:
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, Unavailable | Busy):
        return {"retry-after": RETRY_AFTER}
    return {}


def error_format(request: Request) -> Format:
    """The format of the response; JSON if the Accept header rules out both."""
    own = request_format(request.headers.get("content-type", "")) or "json"
    try:
        return response_format(request.headers.get("accept", ""), own)
    except NotAcceptable:
        return "json"


def problem_response(problem: Problem, form: Format, headers: dict[str, str] | None = None) -> Response:
    return Response(wire.encode(problem, form), problem.status, headers, PROBLEM_TYPES[form])


def bug_response(request: Request, fault: Exception) -> Response:
    """Any other exception is a bug of the server: it is logged, and not shown to the client."""
    log.error("server: %s %s failed", request.method, request.scope["path"], exc_info=fault)
    problem = Problem(title="Internal error", status=500, detail="internal server error; see its log", code="error")
    return problem_response(problem, error_format(request))
