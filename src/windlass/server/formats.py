"""Which of the two formats a request is in, and which one its answer is wanted in."""

from functools import lru_cache
from typing import NamedTuple

from windlass.model.errors import WindlassError
from windlass.model.job import JSON, MSGPACK, TEXT
from windlass.model.wire import Format

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


class NotAcceptable(WindlassError):
    """The answer exists in none of the formats that were asked for."""

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
    """The ranges of an Accept header, dearest first."""
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


def wanted(accept: str, own: Format) -> Format:
    """The format of the answer: what is accepted best; the request's own where that is left open."""
    if not accept.strip():
        return own
    ranges = accepted(accept)
    best = max((own, *TYPES), key=lambda form: _rank(ranges, form))
    if _rank(ranges, best) <= 0:
        raise NotAcceptable(
            f"this is told as {MSGPACK} or {JSON}; neither goes with Accept: {accept[:200]}", at="accept"
        )
    return best


def _rank(ranges: list[Range], form: Format) -> float:
    """How much a format is wanted: what it is called by name counts, then the most exact range that covers it."""
    covering = [one for one in ranges if FORMATS.get(one.kind) == form]
    covering = covering or sorted((one for one in ranges if one.covers(TYPES[form])), key=lambda one: one.kind == "*/*")
    return covering[0].quality if covering else 0.0


def wants_lines(accept: str) -> bool:
    """Whether a line for each is asked for: by name, and no less than anything else."""
    ranges = accepted(accept)
    named = max((one.quality for one in ranges if one.kind == NDJSON), default=0.0)
    return named > 0 and named >= max(_rank(ranges, form) for form in TYPES)


def wants_text(accept: str) -> bool:
    """Whether plain text is asked for: by name, and more than what else there is."""
    ranges = accepted(accept)
    named = max((one.quality for one in ranges if one.kind == TEXT), default=0.0)
    return named > 0 and named >= max(_rank(ranges, form) for form in TYPES)


def sent(content_type: str) -> Format | None:
    """The format of a body; null = neither of the two."""
    return FORMATS.get(media(content_type))


@lru_cache(maxsize=256)
def media(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def refuse(content_type: str, *reads: str) -> Unsupported:
    said = content_type[:200] or "no Content-Type"
    return Unsupported(f"this route reads {', '.join(reads)}; this came with {said}", at="content-type")


__all__ = ["BYTES", "FORMATS", "NDJSON", "PROBLEM_TYPES", "TEXT", "TYPES", "NotAcceptable", "Unsupported"]
