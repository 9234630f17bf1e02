"""Routes that stand for no operation of ours, and what the OpenAPI document says of them.

Other dialects keep tables of these; the document and the routes are made from the same entry. What a route takes and
answers is said in types; which dialects there are is not known here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from starlette.routing import Route

from windlass.model.errors import ERRORS
from windlass.model.job import JSON
from windlass.model.names import NAME_PATTERN
from windlass.model.token import Scope
from windlass.server.asking import Answer
from windlass.server.formats import PROBLEM_TYPES

REFERENCE = "#/components/schemas/{name}"

ALWAYS = frozenset({400, 401, 403, 500, 503, 507})
"""How any route may refuse."""
WITH_BODY = frozenset({408, 413})
"""And one that is sent something."""

STEPS = {"tenant": {"pattern": f"^-$|{NAME_PATTERN}"}, "type": {"pattern": NAME_PATTERN}}
"""What the steps of a path may be; any other is any text."""


class Content(Struct, frozen=True, eq=False):
    """A body in one of several formats."""

    kind: Any
    media: Sequence[str] = (JSON,)
    example: Any = None


class Described(Struct, frozen=True, kw_only=True, eq=False):
    """One route."""

    verbs: Sequence[str]
    path: str
    name: str
    """Of the operation: no other has it."""
    tag: str
    summary: str
    scope: Scope | None = None
    """What a token must allow; null = none is asked for."""
    takes: Sequence[Content] = ()
    """What is sent to it; nothing = it has no body."""
    answers: Mapping[int, Sequence[Content]]
    """By status; nothing = an empty body."""
    refuses: frozenset[int] = frozenset()
    """How else than every route."""
    query: type[Struct] | None = None
    headers: Mapping[str, str] = {}
    """Names, and what each is for."""
    needs: frozenset[str] = frozenset()
    """Which of them must be there."""
    calls: Mapping[str, "Described"] = {}
    """What whoever asked is called for later: by its name. The path begins with an expression of OpenAPI."""


class DescribedRoute(Route):
    """A route, and the entry that it was made from."""

    def __init__(self, entry: Described, answer: Answer) -> None:
        super().__init__(entry.path, answer, methods=list(entry.verbs))
        self.entry = entry
        self.methods = set(entry.verbs)  # no HEAD: to look at a result may use it up


def kinds(entries: Sequence[Described]) -> list[Any]:
    """All types that these speak of."""
    return [content.kind for entry in entries for content in _contents(entry)]


def _contents(entry: Described) -> Iterator[Content]:
    yield from entry.takes
    for answers in entry.answers.values():
        yield from answers
    for called in entry.calls.values():
        yield from _contents(called)


def paths(entries: Sequence[Described]) -> dict[str, dict[str, Any]]:
    """What the document says of them."""
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        found.setdefault(entry.path, {}).update(_verbs(entry))
    return found


def _verbs(entry: Described) -> dict[str, Any]:
    first, *others = entry.verbs
    names = {first: entry.name, **{verb: f"{entry.name}By{verb.capitalize()}" for verb in others}}
    return {verb.lower(): _operation(entry, name) for verb, name in names.items()}


def _operation(entry: Described, name: str) -> dict[str, Any]:
    said: dict[str, Any] = {
        "operationId": name,
        "summary": entry.summary,
        "tags": [entry.tag],
        "parameters": [*_steps(entry), *_queries(entry), *_headers(entry)],
        "responses": _responses(entry),
    }
    if entry.scope is None:
        said["security"] = []
    else:
        said["description"] = f"Scope: `{entry.scope}`."
    if entry.takes:
        said["requestBody"] = {"required": True, "content": _media(entry.takes)}
    if entry.calls:
        said["callbacks"] = {name: {called.path: _verbs(called)} for name, called in entry.calls.items()}
    return said


def _steps(entry: Described) -> list[dict[str, Any]]:
    if "$" in entry.path:
        return []
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", **STEPS.get(name, {})}}
        for name in re.findall(r"\{(\w+)\}", entry.path)
    ]


def _queries(entry: Described) -> list[dict[str, Any]]:
    if entry.query is None:
        return []
    (reference,), components = msgspec.json.schema_components([entry.query], ref_template=REFERENCE)
    schema = components[reference["$ref"].rsplit("/", 1)[-1]]
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": kind}
        for name, kind in schema["properties"].items()
    ]


def _headers(entry: Described) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "header",
            "required": name in entry.needs,
            "description": text,
            "schema": {"type": "string"},
        }
        for name, text in entry.headers.items()
    ]


def _media(contents: Sequence[Content]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for content in contents:
        (schema,), _ = msgspec.json.schema_components([content.kind], ref_template=REFERENCE)
        example = {} if content.example is None else {"example": content.example}
        found |= {media: {"schema": schema, **example} for media in content.media}
    return found


def _responses(entry: Described) -> dict[str, Any]:
    titles = {error.status: error.title for error in reversed(ERRORS.values())}  # the general one, of several
    found: dict[str, Any] = {}
    for status, contents in entry.answers.items():
        said: dict[str, Any] = {"description": titles.get(status, "Done.")}
        found[str(status)] = {**said, "content": _media(contents)} if contents else said
    if entry.scope is None:
        return found
    problem = {media: {"schema": {"$ref": REFERENCE.format(name="Problem")}} for media in PROBLEM_TYPES.values()}
    statuses = ALWAYS | entry.refuses | (WITH_BODY if entry.takes else frozenset())
    refused = {
        str(status): {"description": f"{titles.get(status, 'Refused')}.", "content": problem}
        for status in sorted(statuses)
    }
    return found | refused
