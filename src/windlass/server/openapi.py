"""The OpenAPI 3.1 document, made from the table of operations.

Nothing in it is written twice: routes, parameters, bodies and answers come from the shapes and types of the model. What
differs between the two formats (bytes, times) is said once, in the description.
"""

from functools import cache
from typing import Any, cast

import msgspec

from windlass.model.errors import ERRORS
from windlass.model.job import TEXT, NewJob
from windlass.model.match import Match
from windlass.model.names import NAME_PATTERN
from windlass.model.operations import (
    AddToken,
    ChangeQueue,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    Finish,
    GetOutput,
    GetResult,
    List,
    Output,
    PauseLimit,
    PauseTask,
    PutHandler,
    PutLimit,
    Register,
    RemoveLimit,
    Send,
    answer_type,
)
from windlass.model.shapes import SHAPES, Shape
from windlass.server import described, openapi_beside
from windlass.server.described import REFERENCE, Described
from windlass.server.formats import BYTES, NDJSON, PROBLEM_TYPES, TYPES

LOCATED = (Enqueue, Register, AddToken)
"""What makes one thing, and says where it is."""

AT_THE_END = r"$(?!\n)"
"""What our own patterns end with, where `$` alone would let a last line break pass."""

RIVALLED = (PutLimit, PauseLimit, RemoveLimit, ChangeQueue, PauseTask, PutHandler)
"""What may be refused because there are too many, or because others change the same at the same time."""

ABOUT = """A job queue over HTTP. Every route reads and writes MessagePack and JSON, by Content-Type and Accept.

Durations are seconds. Times are RFC 3339 in JSON and timestamps in MessagePack; bytes are base64 in JSON and bin in
MessagePack. A payload and a result are any value of the format they are sent in; asked for in the other, what that one
lacks is told as near to it as can be: in JSON an extension as `{"ext": CODE, "data": base64}`, NaN as null, and a key
that is no text as its text. Errors are problem details.

Routes with a tag `dialect-…` are those of older queues, in the formats that each names."""

STEPS: dict[str, dict[str, str]] = {
    "tenant": {"pattern": f"^-$|{NAME_PATTERN}", "description": "Whose jobs; `-` = everybody's, for those who may."},
    "id": {"format": "uuid", "pattern": "^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$"},
    "task": {"pattern": NAME_PATTERN},
}
"""What the steps of a path may be."""

EXAMPLE = {"task": "render", "payload": {"scene": 7, "file": "a.png"}, "priority": -5, "max_retry": 3}


@cache
def document(version: str, also: tuple[Described, ...] = ()) -> dict[str, Any]:
    """The whole document, with the routes of other dialects."""
    kinds = [NewJob, *openapi_beside.KINDS, *{kind for shape in SHAPES for kind in _types(shape)}]
    kinds += described.kinds(also)
    _, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for shape in SHAPES:
        paths.setdefault(f"/v1/{{tenant}}{shape.path}", {})[shape.route.verb.lower()] = _operation(shape)
    components |= {_body_name(shape): _body_of(shape) for shape in SHAPES if _has_own_body(shape)}
    components["Outcome"] = openapi_beside.outcome(components["Finished"])
    said = {
        "openapi": "3.1.0",
        "info": {"title": "Windlass", "version": version, "description": ABOUT},
        "security": [{"token": []}],
        "paths": paths | openapi_beside.live_paths(_match_parameters()) | _plain_paths() | described.paths(also),
        "components": {
            "schemas": {name: _timed(components[name]) for name in sorted(components)},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return cast("dict[str, Any]", _plain(said))


def _plain(value: Any) -> Any:
    """The same, as every reader understands it. In JSON Schema `$` is the very end; not all of them can look ahead."""
    match value:
        case {"enum": [bool(), *_], **rest}:
            return {"type": "boolean", **rest}  # a list of choices is one of texts or numbers to some
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case str():
            return value.replace(AT_THE_END, "$")
        case _:
            return value


def _timed(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that says which of its texts are times: those are named so. (The `at` of a problem is a place.)"""
    for name, kind in schema.get("properties", {}).items():
        if name.endswith(("_at", "_after", "_before")) or (name in ("at", "deadline") and schema["title"] != "Problem"):
            for one in kind.get("anyOf", [kind]):
                if one.get("type") == "string":
                    one["format"] = "date-time"
    return schema


def _types(shape: Shape) -> list[Any]:
    found = [answer_type(shape.kind)]
    if shape.body is not None:
        found.append(shape.hints[shape.body])
    return [kind for kind in found if kind is not type(None)]


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REFERENCE)
    return schema


def _name(shape: Shape) -> str:
    return f"{shape.kind.__name__}{'One' if shape.path == shape.route.one else ''}"


def _has_own_body(shape: Shape) -> bool:
    """Whether its body is a map of its fields, which has no type of its own."""
    return shape.has_body and shape.body is None


def _body_name(shape: Shape) -> str:
    return f"{_name(shape)}Request"


def _body_of(shape: Shape) -> dict[str, Any]:
    return {**_inline(shape.struct), "title": _body_name(shape)}


def _operation(shape: Shape) -> dict[str, Any]:
    summary, _, more = (shape.kind.__doc__ or "").partition("\n")
    said: dict[str, Any] = {
        "operationId": _name(shape),
        "summary": summary,
        "description": f"{more.strip()}\n\nScope: `{shape.route.scope}`.".strip(),
        "tags": [shape.path.split("/")[1]],
        "parameters": [*_path_parameters(shape), *_query_parameters(shape)],
        "responses": _responses(shape),
    }
    if shape.has_body:
        said["requestBody"] = _request_body(shape)
    if shape.kind is Register:
        said["callbacks"] = openapi_beside.callbacks()
    return said


def _path_parameters(shape: Shape) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", **STEPS.get(name, {})}}
        for name in ("tenant", *shape.names)
    ]


def _query_parameters(shape: Shape) -> list[dict[str, Any]]:
    if not shape.in_query:
        return []
    found = []
    schema = _inline(shape.struct)
    for name, kind in schema.get("properties", {}).items():
        required = name in schema.get("required", ())
        said = {"name": name, "in": "query", "required": required, "schema": kind}
        if name in shape.maps:
            said |= {"style": "deepObject", "description": f"`{name}[NAME]=VALUE`, or `{name}.NAME=VALUE`."}
        found.append(said)
    return found


def _match_parameters() -> list[dict[str, Any]]:
    listing = next(shape for shape in SHAPES if shape.kind is List)
    return [one for one in _query_parameters(listing) if one["name"] in Match.__struct_fields__]


def _inline(struct: Any) -> dict[str, Any]:
    """The schema of a struct that is known under no name: its fields stand in a query or body of its own."""
    (reference,), components = msgspec.json.schema_components([struct], ref_template=REFERENCE)
    name = reference["$ref"].rsplit("/", 1)[-1]
    return dict(components[name])


def _request_body(shape: Shape) -> dict[str, Any]:
    if shape.kind is EnqueueLines:
        text = {"schema": {"type": "string"}, "example": "first payload\n# a comment\nsecond payload\n"}
        return {"required": True, "content": {TEXT: text}}
    if shape.kind in (Output, Send):
        return {"required": True, "content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}}
    own = {"$ref": REFERENCE.format(name=_body_name(shape))}
    schema = own if shape.body is None else _schema(shape.hints[shape.body])
    media: dict[str, Any] = {"schema": schema}
    if schema.get("$ref", "").endswith("/NewJob"):
        media["example"] = EXAMPLE
    content = dict.fromkeys(TYPES.values(), media)
    if shape.kind is EnqueueMany:
        content[NDJSON] = {"schema": {"type": "string"}, "example": '{"task": "a"}\n{"task": "b", "payload": 3}\n'}
    return {"required": shape.body is not None, "content": content}


def _responses(shape: Shape) -> dict[str, Any]:
    kind, status = answer_type(shape.kind), str(shape.route.status)
    if kind is type(None):
        responses: dict[str, Any] = {"204": {"description": "Done."}}
    else:
        schema = _schema(kind)
        content: dict[str, Any] = {media: {"schema": schema} for media in TYPES.values()}
        if shape.kind is List:
            content[NDJSON] = {"schema": {"type": "string"}}
        if shape.kind is GetOutput:
            content[TEXT] = {"schema": {"type": "string"}}
        responses = {status: {"description": _described(kind), "content": content}}
        if shape.kind in LOCATED:
            where = {"description": "Where it is.", "schema": {"type": "string"}}
            responses[status]["headers"] = {"Location": where}
        if shape.kind is Enqueue:
            responses["200"] = {"description": "It was there already.", "content": content}
    if shape.kind is GetResult:
        responses["408"] = _problem("It has not ended in the time that was waited for.")
    return responses | _problems(shape)


def _problems(shape: Shape) -> dict[str, Any]:
    statuses = {400, 401, 403, 503, *([404] if shape.names else []), *([408, 413, 415] if shape.has_body else [])}
    if answer_type(shape.kind) is not type(None):
        statuses.add(406)
    if shape.route.scope == "work":
        statuses |= {404, 409}
    if shape.kind in RIVALLED or "id" in shape.names:  # of all tenants an id may name several jobs
        statuses.add(409)
    if shape.kind is Enqueue:
        statuses.add(404)
    if shape.route.scope == "enqueue" or shape.kind is Finish:
        statuses.add(429)
    titles = {error.status: error.title for error in reversed(ERRORS.values())}  # the general one, of several
    refused = {str(status): _problem(f"{titles.get(status, 'Refused')}.") for status in sorted(statuses | {500, 507})}
    return refused | {"431": {"description": "More than 16 KiB of headers."}}


def _problem(description: str) -> dict[str, Any]:
    schema = {"$ref": REFERENCE.format(name="Problem")}
    return {"description": description, "content": {media: {"schema": schema} for media in PROBLEM_TYPES.values()}}


def _described(kind: Any) -> str:
    return (getattr(kind, "__doc__", "") or "The answer.").partition("\n")[0]


def _plain_paths() -> dict[str, Any]:
    def plain(name: str, summary: str, *, may_fail: bool = False) -> dict[str, Any]:
        responses: dict[str, Any] = {"200": {"description": "ok", "content": {TEXT: {"schema": {"type": "string"}}}}}
        if may_fail:
            responses["503"] = _problem("The store does not answer.")
        return {"get": {"operationId": name, "summary": summary, "security": [], "responses": responses}}

    metrics = plain(
        "Metrics", "Numbers for Prometheus: of the token's tenant, or of everybody. Scope: `read`.", may_fail=True
    )
    del metrics["get"]["security"]
    metrics["get"]["responses"] |= {"401": _problem("Not authenticated."), "403": _problem("Not allowed.")}
    return {
        "/healthz": plain("Healthz", "Whether the server lives."),
        "/readyz": plain("Readyz", "Whether it can work.", may_fail=True),
        "/metrics": metrics,
    }
