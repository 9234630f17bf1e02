"""Routes that are not operations of their own: a spec for each, from which the route and its OpenAPI spec are made.

The dialects keep tables of these. Bodies are declared as types. Knows OpenAPI; knows no dialect.
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
from windlass.server.formats import PROBLEM_TYPES
from windlass.server.requests import EndpointFunction

REFERENCE = "#/components/schemas/{name}"

ALWAYS = frozenset({400, 401, 403, 500, 503, 507})
"""Error statuses of every route."""
WITH_BODY = frozenset({408, 413})
"""Error statuses of routes with a body."""

PARAMETERS = {"tenant": {"pattern": f"^-$|{NAME_PATTERN}"}, "type": {"pattern": NAME_PATTERN}}
"""Schemas of path parameters; any other is any text."""


class Content(Struct, frozen=True, eq=False):
    """A body in one of several formats."""

    kind: Any
    media: Sequence[str] = (JSON,)
    example: Any = None


class RouteSpec(Struct, frozen=True, kw_only=True, eq=False):
    """One route."""

    verbs: Sequence[str]
    path: str
    name: str
    """The operationId: unique."""
    tag: str
    summary: str
    scope: Scope | None = None
    """The scope that a token must have; null = no token is needed."""
    body: Sequence[Content] = ()
    """The request body; empty = there is none."""
    responses: Mapping[int, Sequence[Content]]
    """By status; no content = an empty body."""
    errors: frozenset[int] = frozenset()
    """Error statuses beyond those of every route."""
    query: type[Struct] | None = None
    headers: Mapping[str, str] = {}
    """Optional ones: names, and what each is for."""
    required_headers: Mapping[str, str] = {}
    callbacks: Mapping[str, "RouteSpec"] = {}
    """Requests that this server later sends to the client, by name. Their path is an OpenAPI runtime expression."""


class SpecRoute(Route):
    """A route, and the spec that it was made from."""

    def __init__(self, spec: RouteSpec, respond: EndpointFunction) -> None:
        super().__init__(spec.path, respond, methods=list(spec.verbs))
        self.spec = spec
        self.methods = set(spec.verbs)  # no HEAD: reading a result may use it up


def kinds(specs: Sequence[RouteSpec]) -> list[Any]:
    """All types in these specs."""
    return [content.kind for spec in specs for content in _contents(spec)]


def _contents(spec: RouteSpec) -> Iterator[Content]:
    yield from spec.body
    for contents in spec.responses.values():
        yield from contents
    for callback in spec.callbacks.values():
        yield from _contents(callback)


def paths(specs: Sequence[RouteSpec]) -> dict[str, dict[str, Any]]:
    """Their part of the OpenAPI document."""
    found: dict[str, dict[str, Any]] = {}
    for spec in specs:
        found.setdefault(spec.path, {}).update(_verbs(spec))
    return found


def _verbs(spec: RouteSpec) -> dict[str, Any]:
    first, *others = spec.verbs
    names = {first: spec.name, **{verb: f"{spec.name}By{verb.capitalize()}" for verb in others}}
    return {verb.lower(): _operation(spec, name) for verb, name in names.items()}


def _operation(spec: RouteSpec, name: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": spec.summary,
        "tags": [spec.tag],
        "parameters": [*_path_parameters(spec), *_queries(spec), *_headers(spec)],
        "responses": _responses(spec),
    }
    if spec.scope is None:
        operation["security"] = []
    else:
        operation["description"] = f"Scope: `{spec.scope}`."
    if spec.body:
        operation["requestBody"] = {"required": True, "content": _media(spec.body)}
    if spec.callbacks:
        operation["callbacks"] = {name: {callback.path: _verbs(callback)} for name, callback in spec.callbacks.items()}
    return operation


def _path_parameters(spec: RouteSpec) -> list[dict[str, Any]]:
    if "$" in spec.path:
        return []
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", **PARAMETERS.get(name, {})}}
        for name in re.findall(r"\{(\w+)\}", spec.path)
    ]


def _queries(spec: RouteSpec) -> list[dict[str, Any]]:
    if spec.query is None:
        return []
    (reference,), components = msgspec.json.schema_components([spec.query], ref_template=REFERENCE)
    schema = components[reference["$ref"].rsplit("/", 1)[-1]]
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": kind}
        for name, kind in schema["properties"].items()
    ]


def _headers(spec: RouteSpec) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "header",
            "required": name in spec.required_headers,
            "description": text,
            "schema": {"type": "string"},
        }
        for name, text in {**spec.required_headers, **spec.headers}.items()
    ]


def _media(contents: Sequence[Content]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for content in contents:
        (schema,), _ = msgspec.json.schema_components([content.kind], ref_template=REFERENCE)
        example = {} if content.example is None else {"example": content.example}
        found |= {media: {"schema": schema, **example} for media in content.media}
    return found


def _responses(spec: RouteSpec) -> dict[str, Any]:
    titles = {error.status: error.title for error in reversed(ERRORS.values())}  # the general one, of several
    found: dict[str, Any] = {}
    for status, contents in spec.responses.items():
        response: dict[str, Any] = {"description": titles.get(status, "Done.")}
        found[str(status)] = {**response, "content": _media(contents)} if contents else response
    if spec.scope is None:
        return found
    problem = {media: {"schema": {"$ref": REFERENCE.format(name="Problem")}} for media in PROBLEM_TYPES.values()}
    statuses = ALWAYS | spec.errors | (WITH_BODY if spec.body else frozenset())
    errors = {
        str(status): {"description": f"{titles.get(status, 'Refused')}.", "content": problem}
        for status in sorted(statuses)
    }
    return found | errors
