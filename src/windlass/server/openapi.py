"""The OpenAPI 3.1 document: operations, live events, the worker's side of push, health checks, other dialects.

Routes, parameters, bodies and answers of operations come from the shapes and types of the model. The differences
between the two formats (bytes, times) are described once, at the top.
"""

from functools import cache
from typing import Any, cast

import msgspec

from windlass.model import push
from windlass.model.errors import ERRORS, Problem
from windlass.model.estimate import Estimate
from windlass.model.events import NAMES, DeletedJob, OutputData
from windlass.model.job import JSON, TEXT, Job, NewJob
from windlass.model.match import Match
from windlass.model.names import NAME_PATTERN
from windlass.model.operations import (
    AddToken,
    ChangeQueue,
    Claimed,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    Finish,
    Finished,
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
from windlass.server import route_specs
from windlass.server.formats import BYTES, NDJSON, PROBLEM_TYPES, TYPES
from windlass.server.route_specs import REFERENCE, RouteSpec

LOCATED = (Enqueue, Register, AddToken)
"""Operations that create one thing and answer with its Location."""

PATTERN_END = r"$(?!\n)"
"""The end of our own patterns: in Python `$` alone would accept a trailing newline."""

CONTENDED = (PutLimit, PauseLimit, RemoveLimit, ChangeQueue, PauseTask, PutHandler)
"""Operations that fail with 409 when there are too many of a thing, or when it changes at the same time."""

ABOUT = """A job queue over HTTP. Every route reads and writes MessagePack and JSON, by Content-Type and Accept.

Durations are seconds. Times are RFC 3339 in JSON and timestamps in MessagePack; bytes are base64 in JSON and bin in
MessagePack. A payload and a result are any value of the format they are sent in. Read in the other format, a value that
this format lacks becomes the nearest one: in JSON an extension becomes `{"ext": CODE, "data": base64}`, NaN becomes
null, and a key that is not text becomes its text. Errors are problem details.

Routes with a tag `dialect-…` are those of older queues, in the formats that each of them names."""

EVENTS = f"""The events are {", ".join(f"`{name}`" for name in NAMES)}. The data of `output` is a Piece, of
`estimate` (while the job waits: at once, and when it changes by a second or a tenth) an Estimate, of any other a
Job. The stream ends after the job has. A client that reconnects sends the id of the last event it has and gets the
events after it; 204 = there are no more. If a job changes twice between two looks, only its last state is sent."""

ALL_EVENTS = """Server-sent events, or lines `{"event", "data"}` if `Accept` asks for them. Each event after the start
of the response comes at most once; `gap`, with no job, means that some were missed. The data is the job at the time of
sending, which may be a later state, and only jobs that match at that time are sent. The end of a delay is sent as
`queued`. `deleted`, with a Gone, is sent when a record is deleted or purged, if the match asks for no more than state,
queue and task. Output and estimates are only on the streams of single jobs. Matching by payload is not possible."""

LIVE = """A WebSocket. Without the header Authorization the first message must be `{"token": …}`, within 5 s; it may
hold `since`, the id of the last event that the client has. Each event is a text message `{"event", "id", "data"}` as on
the stream of events. An `output` event has `size` instead of `text`, and its bytes follow as a binary message. Each
message of the client, text or binary, is sent to the job, in order, if the job takes input and the token has the scope
`operate`. A message that cannot be sent is answered with an event `refused`, whose data has its number in this
connection (`message`, from 1) and the `problem`. Close codes: 1000 the job has ended, 1001 the server stops, 1008
refused, 1013 the client reads too slowly."""

DELIVERY = f"""Sent to the `url` that a worker registered, for each job that it has a slot for. The worker must renew
its registration (`POST /v1/TENANT/workers/WORKER/renew`, at least once per lease), or it counts as gone. If it names
its jobs there, the answer says which of them to stop.

`{push.SIGNATURE}` is the HMAC-SHA256 of the timestamp, a full stop and the body, in hex digits; the key is the `secret`
in the answer to the registration. Answers later than 30 s or longer than 1 MiB count as failed deliveries."""

LIVE_ERRORS = {
    400: "Invalid request.",
    401: "Not authenticated.",
    403: "Not allowed.",
    404: "Not found.",
    429: "Too many open streams.",
    503: "Unavailable.",
}

OUTCOME_FIELDS = ("id", "token", "tenant")
"""Fields of a report that the answer to a delivery does not have: it is about the delivered job."""

PARAMETERS: dict[str, dict[str, str]] = {
    "tenant": {
        "pattern": f"^-$|{NAME_PATTERN}",
        "description": "The tenant; `-` = all tenants, if the token is valid for all.",
    },
    "id": {"format": "uuid", "pattern": "^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$"},
    "task": {"pattern": NAME_PATTERN},
}
"""Schemas of path parameters."""

EXAMPLE = {"task": "render", "payload": {"scene": 7, "file": "a.png"}, "priority": -5, "max_retry": 3}


@cache
def document(version: str, also: tuple[RouteSpec, ...] = ()) -> dict[str, Any]:
    """The whole document, with the routes of other dialects."""
    kinds = [NewJob, Job, OutputData, DeletedJob, Estimate, Claimed, Finished, Problem]
    kinds += [*{kind for shape in SHAPES for kind in _types(shape)}, *route_specs.kinds(also)]
    _, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for shape in SHAPES:
        paths.setdefault(f"/v1/{{tenant}}{shape.path}", {})[shape.route.verb.lower()] = _operation(shape)
    components |= {_body_name(shape): _body_of(shape) for shape in SHAPES if _has_own_body(shape)}
    components["Outcome"] = _outcome(components["Finished"])
    whole = {
        "openapi": "3.1.0",
        "info": {"title": "Windlass", "version": version, "description": ABOUT},
        "security": [{"token": []}],
        "paths": paths | _live_paths() | _plain_paths() | route_specs.paths(also),
        "components": {
            "schemas": {name: _timed(components[name]) for name in sorted(components)},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return cast("dict[str, Any]", _plain(whole))


def _plain(value: Any) -> Any:
    """The document for readers with fewer abilities: `$` alone is the end in JSON Schema, and booleans have no enum."""
    match value:
        case {"enum": [bool(), *_], **rest}:
            return {"type": "boolean", **rest}  # some readers allow only texts and numbers in an enum
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case str():
            return value.replace(PATTERN_END, "$")
        case _:
            return value


def _timed(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose times have the format `date-time`. Their names tell; the `at` of a problem is a field."""
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
    """Whether its body is a map of its fields, which needs a schema of its own."""
    return shape.has_body and shape.body is None


def _body_name(shape: Shape) -> str:
    return f"{_name(shape)}Request"


def _body_of(shape: Shape) -> dict[str, Any]:
    return {**_inline(shape.struct), "title": _body_name(shape)}


def _operation(shape: Shape) -> dict[str, Any]:
    summary, _, more = (shape.kind.__doc__ or "").partition("\n")
    operation: dict[str, Any] = {
        "operationId": _name(shape),
        "summary": summary,
        "description": f"{more.strip()}\n\nScope: `{shape.route.scope}`.".strip(),
        "tags": [shape.path.split("/")[1]],
        "parameters": [*_path_parameters(shape), *_query_parameters(shape)],
        "responses": _responses(shape),
    }
    if shape.has_body:
        operation["requestBody"] = _request_body(shape)
    if shape.kind is Register:
        operation["callbacks"] = _callbacks()
    return operation


def _path_parameters(shape: Shape) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", **PARAMETERS.get(name, {})}}
        for name in ("tenant", *shape.names)
    ]


def _query_parameters(shape: Shape) -> list[dict[str, Any]]:
    if not shape.in_query:
        return []
    found = []
    schema = _inline(shape.struct)
    for name, kind in schema.get("properties", {}).items():
        required = name in schema.get("required", ())
        parameter = {"name": name, "in": "query", "required": required, "schema": kind}
        if name in shape.maps:
            parameter |= {"style": "deepObject", "description": f"`{name}[NAME]=VALUE`, or `{name}.NAME=VALUE`."}
        found.append(parameter)
    return found


def _inline(struct: Any) -> dict[str, Any]:
    """The schema of a struct that is not in the components: its fields are the query or the body."""
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
        responses = {status: {"description": _first_line(kind), "content": content}}
        if shape.kind in LOCATED:
            where = {"description": "Its URL.", "schema": {"type": "string"}}
            responses[status]["headers"] = {"Location": where}
        if shape.kind is Enqueue:
            responses["200"] = {"description": "The job existed already.", "content": content}
    if shape.kind is GetResult:
        responses["408"] = _problem("The job did not end within the wait.")
    return responses | _problems(shape)


def _problems(shape: Shape) -> dict[str, Any]:
    statuses = {400, 401, 403, 503, *([404] if shape.names else []), *([408, 413, 415] if shape.has_body else [])}
    if answer_type(shape.kind) is not type(None):
        statuses.add(406)
    if shape.route.scope == "work":
        statuses |= {404, 409}
    if shape.kind in CONTENDED or "id" in shape.names:  # across tenants an id may name several jobs
        statuses.add(409)
    if shape.kind is Enqueue:
        statuses.add(404)
    if shape.route.scope == "enqueue" or shape.kind is Finish:
        statuses.add(429)
    titles = {error.status: error.title for error in reversed(ERRORS.values())}  # the first of several with one status
    errors = {str(status): _problem(f"{titles.get(status, 'Refused')}.") for status in sorted(statuses | {500, 507})}
    return errors | {"431": {"description": "More than 16 KiB of headers."}}


def _problem(description: str) -> dict[str, Any]:
    schema = {"$ref": REFERENCE.format(name="Problem")}
    return {"description": description, "content": {media: {"schema": schema} for media in PROBLEM_TYPES.values()}}


def _first_line(kind: Any) -> str:
    return (getattr(kind, "__doc__", "") or "The answer.").partition("\n")[0]


# Live events


def _live_paths() -> dict[str, Any]:
    where = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in ("tenant", "id")]
    since = _header("Last-Event-ID", "The id of the last event that the client has.", required=False)
    errors = {str(status): _problem(text) for status, text in LIVE_ERRORS.items()}
    stream = {"schema": {"type": "string"}, "example": 'event: queued\nid: 0-queued-0\ndata: {"id": …}\n\n'}
    return {
        "/v1/{tenant}/events": {
            "get": {
                "operationId": "AllEvents",
                "summary": "Events of all matching jobs, as they happen.",
                "description": f"{ALL_EVENTS}\n\nScope: `read`.",
                "tags": ["jobs"],
                "parameters": [where[0], *(one for one in _match_parameters() if one["name"] != "payload")],
                "responses": {
                    "200": {
                        "description": "The events.",
                        "content": {"text/event-stream": stream, NDJSON: {"schema": {"type": "string"}}},
                    },
                    **{status: problem for status, problem in errors.items() if status != "404"},
                },
            }
        },
        "/v1/{tenant}/jobs/{id}/events": {
            "get": {
                "operationId": "Events",
                "summary": "Events of a job, as they happen.",
                "description": f"{EVENTS}\n\nScope: `read`.",
                "tags": ["jobs"],
                "parameters": [*where, since],
                "responses": {
                    "200": {"description": "The events.", "content": {"text/event-stream": stream}},
                    "204": {"description": "The client has all events, and the job has ended."},
                    **errors,
                },
            }
        },
        "/v1/{tenant}/jobs/{id}/live": {
            "get": {
                "operationId": "Live",
                "summary": "Events of a job, over a WebSocket.",
                "description": f"{LIVE}\n\nScope: `read`.",
                "tags": ["jobs"],
                "parameters": [*where, since],
                "responses": {"101": {"description": "The WebSocket is open."}, **errors},
            }
        },
    }


def _match_parameters() -> list[dict[str, Any]]:
    listing = next(shape for shape in SHAPES if shape.kind is List)
    return [one for one in _query_parameters(listing) if one["name"] in Match.__struct_fields__]


def _header(name: str, description: str, *, required: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": required,
        "description": description,
        "schema": {"type": "string"},
    }


# Push


def _outcome(report: dict[str, Any]) -> dict[str, Any]:
    """The answer to a delivery: a report without the job's names."""
    return {
        "title": "Outcome",
        "description": "How the attempt ended.",
        "type": "object",
        "properties": {name: kind for name, kind in report["properties"].items() if name not in OUTCOME_FIELDS},
        "required": ["outcome"],
    }


def _callbacks() -> dict[str, Any]:
    """The worker's side: the request to the URL that it registered, and its possible answers."""
    example = {"outcome": "ok", "result": {"pages": 3}}
    schema = {"$ref": REFERENCE.format(name="Outcome")}
    answer = {media: {"schema": schema, **({"example": example} if media == JSON else {})} for media in TYPES.values()}
    claimed = {"schema": {"$ref": REFERENCE.format(name="Claimed")}}
    delivery = {
        "{$request.body#/url}": {
            "post": {
                "operationId": "Deliver",
                "summary": "One claimed job.",
                "description": DELIVERY,
                "security": [],
                "parameters": [
                    _header(push.ID, "The id of the job."),
                    _header(push.ATTEMPT, "The number of this run, from 1."),
                    _header(push.WORKER, "The id of the worker."),
                    _header(push.TIMESTAMP, "When it was sent: seconds since 1970."),
                    _header(push.SIGNATURE, "The signature of the request."),
                ],
                "requestBody": {
                    "required": True,
                    "description": "In the `format` that the worker registered.",
                    "content": dict.fromkeys(TYPES.values(), claimed),
                },
                "responses": {
                    "200": {"description": "The job has run; the body is its outcome.", "content": answer},
                    "202": {"description": "Accepted; the worker will call Finish with the job's token."},
                    "404": {
                        "description": "The worker does not know the task: another worker is tried, no attempt is "
                        "used, and this worker is not offered the task for a minute."
                    },
                    "default": {
                        "description": "Not delivered: no attempt is used. The job is sent again, to this worker "
                        "after a pause that grows from 0.5 s to 30 s, or to another one at once."
                    },
                },
            }
        }
    }
    return {"job": delivery}


# Health checks and metrics


def _plain_paths() -> dict[str, Any]:
    def plain(name: str, summary: str, *, may_fail: bool = False) -> dict[str, Any]:
        responses: dict[str, Any] = {"200": {"description": "ok", "content": {TEXT: {"schema": {"type": "string"}}}}}
        if may_fail:
            responses["503"] = _problem("The store does not answer.")
        return {"get": {"operationId": name, "summary": summary, "security": [], "responses": responses}}

    metrics = plain(
        "Metrics", "Metrics for Prometheus: of the token's tenant, or of all tenants. Scope: `read`.", may_fail=True
    )
    del metrics["get"]["security"]
    metrics["get"]["responses"] |= {"401": _problem("Not authenticated."), "403": _problem("Not allowed.")}
    return {
        "/healthz": plain("Healthz", "Whether the server is alive."),
        "/readyz": plain("Readyz", "Whether the server can reach its store.", may_fail=True),
        "/metrics": metrics,
    }
