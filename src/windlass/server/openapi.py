"""The OpenAPI 3.1 document and the reference page: operations, live events, push, health checks, other dialects.

Each route has a spec. Specs of operations are derived from their shapes, those of dialects are rows of their tables,
and the others are written here. The differences between the two formats (bytes, times) are described once, at the top.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct
from starlette.routing import Route

from windlass.model import push
from windlass.model.errors import ERRORS, Problem
from windlass.model.estimate import Estimate
from windlass.model.events import NAMES, DeletedJob, OutputData
from windlass.model.job import JSON, MSGPACK, TEXT, Job
from windlass.model.match import Match
from windlass.model.names import NAME_PATTERN
from windlass.model.new_job import NewJob
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
    PauseWorker,
    PutHandler,
    PutLimit,
    Register,
    RemoveLimit,
    Send,
    StopWorker,
    answer_type,
)
from windlass.model.shapes import SHAPES, Shape
from windlass.model.token import Scope
from windlass.server.formats import BYTES, NDJSON, PROBLEM_TYPES, TYPES
from windlass.server.requests import EndpointFunction

REFERENCE = "#/components/schemas/{name}"

BOTH = tuple(TYPES.values())
BINARY = Annotated[str, Meta(extra_json_schema={"format": "binary"})]

ALWAYS = frozenset({400, 401, 403, 500, 503, 507})
"""Error statuses of every route that needs a token."""
WITH_BODY = frozenset({408, 413})
"""Error statuses of routes with a body."""

LOCATED = (Enqueue, Register, AddToken)
"""Operations that create one thing and answer with its Location."""

PATTERN_END = r"$(?!\n)"
"""The end of our own patterns: in Python `$` alone would accept a trailing newline."""

CONTENDED = (PutLimit, PauseLimit, RemoveLimit, ChangeQueue, PauseTask, PutHandler, PauseWorker, StopWorker)
"""Operations that fail with 409: there are too many of a thing or of that name, or it changes at the same time."""

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
in the answer to the registration. Answers later than {push.ANSWER_WITHIN:g} s or longer than
{push.MOST_ANSWER >> 20} MiB count as failed deliveries."""

OUTCOME_FIELDS = ("id", "token", "tenant")
"""Fields of a report that the answer to a delivery does not have: it is about the delivered job."""

PARAMETERS: dict[str, dict[str, str]] = {
    "tenant": {
        "pattern": f"^-$|{NAME_PATTERN}",
        "description": "The tenant; `-` = all tenants, if the token is valid for all.",
    },
    "id": {"format": "uuid", "pattern": "^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$"},
    "task": {"pattern": NAME_PATTERN},
    "type": {"pattern": NAME_PATTERN},
}
"""Schemas of path parameters; any other is any text. A dialect's ids are any text too."""

EXAMPLE = {"task": "render", "payload": {"scene": 7, "file": "a.png"}, "priority": -5, "max_retry": 3}


# Specs


class Content(Struct, frozen=True, eq=False):
    """A body in one of several formats."""

    kind: Any
    media: Sequence[str] = (JSON,)
    example: Any = None


# Twice, for some generators of clients know no text.
LINES = [Content(str, (TEXT,), "first payload\n# a comment\nsecond payload\n"), Content(BINARY, (BYTES,))]
"""A payload on each line."""

Status = int | Literal["default"]


class RouteSpec(Struct, frozen=True, kw_only=True, eq=False):
    """One route."""

    verbs: Sequence[str]
    path: str
    name: str
    """The operationId: unique."""
    tag: str = ""
    summary: str
    description: str = ""
    scope: Scope | None = None
    """The scope that a token must have; null = no token is needed."""
    body: Sequence[Content] = ()
    """The request body; empty = there is none."""
    body_required: bool = True
    responses: Mapping[Status, Sequence[Content]]
    """By status; no content = an empty body."""
    errors: frozenset[int] = frozenset()
    """Error statuses beyond those of every route."""
    meanings: Mapping[Status, str] = {}
    """What a status means, where its title does not say it."""
    located: bool = False
    """Whether the response to a creation has a Location."""
    query: type[Struct] | None = None
    maps: frozenset[str] = frozenset()
    """Query parameters with fields of their own."""
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


# The document


@cache
def document(version: str, also: tuple[RouteSpec, ...] = ()) -> dict[str, Any]:
    """The whole document, with the routes of other dialects."""
    specs = [*map(_spec, SHAPES), *LIVE_SPECS, *PLAIN_SPECS, *also]
    kinds = [Job, OutputData, DeletedJob, Estimate, Problem]
    kinds += [content.kind for spec in specs for content in _contents(spec)]
    _, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for spec in specs:
        paths.setdefault(spec.path, {}).update(_verbs(spec))
    whole = {
        "openapi": "3.1.0",
        "info": {"title": "Windlass", "version": version, "description": ABOUT},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {name: _timed(components[name]) for name in sorted(components)},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return cast("dict[str, Any]", _plain(whole))


def _contents(spec: RouteSpec) -> Iterator[Content]:
    yield from spec.body
    for contents in spec.responses.values():
        yield from contents
    for callback in spec.callbacks.values():
        yield from _contents(callback)


def _plain(value: Any) -> Any:
    """The document for readers with fewer abilities: `$` alone is the end in JSON Schema, and booleans have no enum."""
    match value:
        case {"enum": [bool(), *_], **rest}:
            return {"type": "boolean", **rest}  # some readers allow only texts and numbers in an enum
        case {"type": "array", **rest} if not {"items", "prefixItems"} & rest.keys():
            return _plain({**value, "items": {}})  # some readers drop a schema whose array does not say what is in it
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


def _verbs(spec: RouteSpec) -> dict[str, Any]:
    first, *others = spec.verbs
    names = {first: spec.name, **{verb: f"{spec.name}By{verb.capitalize()}" for verb in others}}
    return {verb.lower(): _operation(spec, name) for verb, name in names.items()}


def _operation(spec: RouteSpec, name: str) -> dict[str, Any]:
    scope = f"Scope: `{spec.scope}`." if spec.scope else ""
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": spec.summary,
        "description": f"{spec.description}\n\n{scope}".strip(),
        "parameters": [*_path_parameters(spec), *_query_parameters(spec), *_headers(spec)],
        "responses": _responses(spec),
    }
    if spec.tag:
        operation["tags"] = [spec.tag]
    if spec.scope is None:
        operation["security"] = []
    if spec.body:
        operation["requestBody"] = {"required": spec.body_required, "content": _media(spec.body)}
    if spec.callbacks:
        operation["callbacks"] = {name: {callback.path: _verbs(callback)} for name, callback in spec.callbacks.items()}
    return operation


def _path_parameters(spec: RouteSpec) -> list[dict[str, Any]]:
    names = [] if "$" in spec.path else re.findall(r"\{(\w+)\}", spec.path)
    known = PARAMETERS if spec.path.startswith("/v1/") else {**PARAMETERS, "id": {}}
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", **known.get(name, {})}}
        for name in names
    ]


def _query_parameters(spec: RouteSpec) -> list[dict[str, Any]]:
    if spec.query is None:
        return []
    (reference,), components = msgspec.json.schema_components([spec.query], ref_template=REFERENCE)
    schema = components[reference["$ref"].rsplit("/", 1)[-1]]
    found = []
    for name, kind in schema["properties"].items():
        parameter = {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": kind}
        if name in spec.maps:
            parameter |= {"style": "deepObject", "description": f"`{name}[NAME]=VALUE`, or `{name}.NAME=VALUE`."}
        found.append(parameter)
    return found


def _headers(spec: RouteSpec) -> list[dict[str, Any]]:
    text = {"in": "header", "schema": {"type": "string"}}
    return [
        {"name": name, "description": about, "required": name in spec.required_headers, **text}
        for name, about in {**spec.required_headers, **spec.headers}.items()
    ]


def _media(contents: Sequence[Content]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for content in contents:
        (schema,), _ = msgspec.json.schema_components([content.kind], ref_template=REFERENCE)
        if schema.pop("discriminator", None):  # generators write types of it that contradict the tag of each schema
            schema["oneOf"] = schema.pop("anyOf")
        example = {} if content.example is None else {"example": content.example}
        found |= {media: {"schema": schema, **example} for media in content.media}
    return found


def _responses(spec: RouteSpec) -> dict[str, Any]:
    problem = _media([Content(Problem, tuple(PROBLEM_TYPES.values()))])
    titles: dict[Status, str] = {
        error.status: f"{error.title}." for error in reversed(ERRORS.values())
    }  # of several the first
    found: dict[str, Any] = {}
    for status, contents in spec.responses.items():
        about = next((_first_line(content.kind) for content in contents), "") or titles.get(status, "Done.")
        found[str(status)] = {"description": spec.meanings.get(status, about)}
        if contents:
            found[str(status)]["content"] = _media(contents)
        if spec.located and status == CREATED:
            found[str(status)]["headers"] = {"Location": {"description": "Its URL.", "schema": {"type": "string"}}}
    errors = spec.errors
    if spec.scope is not None:
        errors |= ALWAYS | (WITH_BODY if spec.body else frozenset())
    for status in sorted(errors):
        about = spec.meanings.get(status) or titles.get(status, "Refused.")
        found[str(status)] = {"description": about, "content": problem}
    return found if spec.scope is None else found | {"431": {"description": "More than 16 KiB of headers."}}


def _first_line(kind: Any) -> str:
    return (kind.__doc__ or "").partition("\n")[0] if isinstance(kind, type) and issubclass(kind, Struct) else ""


# Operations


def _spec(shape: Shape) -> RouteSpec:
    kind = shape.kind
    summary, _, more = (kind.__doc__ or "").partition("\n")
    return RouteSpec(
        verbs=[shape.route.verb],
        path=f"/v1/{{tenant}}{shape.path}",
        name=_name(shape),
        tag=shape.path.split("/")[1],
        summary=summary,
        description=more.strip(),
        scope=shape.route.scope,
        query=shape.struct if shape.in_query else None,
        maps=shape.maps,
        body=_body(shape),
        body_required=shape.body is not None,
        responses=_answers(shape),
        errors=_errors(shape),
        meanings={408: "The job did not end within the wait."} if kind is GetResult else {},
        located=kind in LOCATED,
        callbacks={"job": DELIVER} if kind is Register else {},
    )


def _name(shape: Shape) -> str:
    return f"{shape.kind.__name__}{'One' if shape.path == shape.route.one else ''}"


def _body(shape: Shape) -> list[Content]:
    if not shape.has_body:
        return []
    if shape.kind is EnqueueLines:
        return LINES
    if shape.kind in (Output, Send):
        return [Content(BINARY, (BYTES,))]
    if shape.body is None:
        return [Content(_without(shape.struct, f"{_name(shape)}Request"), BOTH)]
    kind = shape.hints[shape.body]
    found = [Content(kind, BOTH, EXAMPLE if kind is NewJob else None)]
    if shape.kind is EnqueueMany:
        found.append(Content(str, (NDJSON,), '{"task": "a"}\n{"task": "b", "payload": 3}\n'))
    return found


def _without(kind: type[Struct], name: str, *left_out: str, doc: str | None = None) -> type[Struct]:
    """The same struct under another name, without some of its fields."""
    field: Callable[..., Any] = msgspec.field  # its overloads do not know that both may be absent
    fields = [
        (one.name, one.type, field(default=one.default, default_factory=one.default_factory))
        for one in msgspec.structs.fields(kind)
        if one.name not in left_out
    ]
    forbid = kind.__struct_config__.forbid_unknown_fields and not left_out
    return msgspec.defstruct(name, fields, namespace={"__doc__": doc}, kw_only=True, forbid_unknown_fields=forbid)


def _answers(shape: Shape) -> dict[Status, Sequence[Content]]:
    kind = answer_type(shape.kind)
    if kind is type(None):
        return {204: []}
    contents = [Content(kind, BOTH)]
    if shape.kind is List:
        contents.append(Content(str, (NDJSON,)))
    if shape.kind is GetOutput:
        contents.append(Content(str, (TEXT,)))
    found: dict[Status, Sequence[Content]] = {shape.route.status: contents}
    return {**found, 200: contents} if shape.kind is Enqueue else found


def _errors(shape: Shape) -> frozenset[int]:
    statuses = {*([404] if shape.names else []), *([415] if shape.has_body else [])}
    if answer_type(shape.kind) is not type(None):
        statuses.add(406)
    if shape.route.scope == "work":
        statuses |= {404, 409}
    if shape.kind in CONTENDED or "id" in shape.names:  # across tenants an id may name several jobs
        statuses.add(409)
    if shape.kind is Enqueue:
        statuses.add(404)
    if shape.kind in (Enqueue, EnqueueMany):
        statuses.add(409)  # files that a job names by their SHA-256 must be sent first
    if shape.kind is GetResult:
        statuses.add(408)
    if shape.route.scope == "enqueue" or shape.kind is Finish:
        statuses.add(429)
    return frozenset(statuses)


# Routes that are not operations

CREATED = 201

STREAM = Content(str, ("text/event-stream",), 'event: queued\nid: 0-queued-0\ndata: {"id": …}\n\n')
SINCE = {"Last-Event-ID": "The id of the last event that the client has."}

LIVE_SPECS = (
    RouteSpec(
        verbs=["GET"],
        path="/v1/{tenant}/events",
        name="AllEvents",
        tag="jobs",
        summary="Events of all matching jobs, as they happen.",
        description=ALL_EVENTS,
        scope="read",
        query=_without(Match, "EventQuery", "payload"),
        responses={200: [STREAM, Content(str, (NDJSON,))]},
        errors=frozenset({429}),
        meanings={429: "Too many open streams."},
    ),
    RouteSpec(
        verbs=["GET"],
        path="/v1/{tenant}/jobs/{id}/events",
        name="Events",
        tag="jobs",
        summary="Events of a job, as they happen.",
        description=EVENTS,
        scope="read",
        headers=SINCE,
        responses={200: [STREAM], 204: []},
        errors=frozenset({404, 409, 429}),
        meanings={204: "The client has all events, and the job has ended.", 429: "Too many open streams."},
    ),
    RouteSpec(
        verbs=["GET"],
        path="/v1/{tenant}/jobs/{id}/live",
        name="Live",
        tag="jobs",
        summary="Events of a job, over a WebSocket.",
        description=LIVE,
        scope="read",
        headers=SINCE,
        responses={101: []},
        errors=frozenset({404, 409, 429}),
        meanings={101: "The WebSocket is open.", 429: "Too many open streams."},
    ),
)

OUTCOME = _without(Finished, "Outcome", *OUTCOME_FIELDS, doc="How the attempt ended.")

DELIVER = RouteSpec(
    verbs=["POST"],
    path="{$request.body#/url}",
    name="Deliver",
    summary="One claimed job, in the `format` that the worker registered.",
    description=DELIVERY,
    required_headers={
        push.ID: "The id of the job.",
        push.ATTEMPT: "The number of this run, from 1.",
        push.WORKER: "The id of the worker.",
        push.TIMESTAMP: "When it was sent: seconds since 1970.",
        push.SIGNATURE: "The signature of the request.",
    },
    body=[Content(Claimed, BOTH)],
    responses={
        200: [Content(OUTCOME, (JSON,), {"outcome": "ok", "result": {"pages": 3}}), Content(OUTCOME, (MSGPACK,))],
        202: [],
        404: [],
        "default": [],
    },
    meanings={
        200: "The job has run; the body is its outcome.",
        202: "Accepted; the worker will call Finish with the job's token.",
        404: "The worker does not know the task: another worker is tried, no attempt is used, and this worker is not "
        "offered the task for a minute.",
        "default": "Not delivered: no attempt is used. The job is sent again, to this worker after a pause that grows "
        "from 0.5 s to 30 s, or to another one at once.",
    },
)


def _plain_spec(path: str, name: str, summary: str, **more: Any) -> RouteSpec:
    return RouteSpec(
        verbs=["GET"], path=path, name=name, summary=summary, responses={200: [Content(str, (TEXT,))]}, **more
    )


PLAIN_SPECS = (
    _plain_spec("/healthz", "Healthz", "Whether the server is alive."),
    _plain_spec("/readyz", "Readyz", "Whether the server can reach its store.", errors=frozenset({503})),
    _plain_spec(
        "/metrics", "Metrics", "Metrics for Prometheus: of the token's tenant, or of all tenants.", scope="read"
    ),
)


# The reference page: the document as plain HTML, without scripts

STYLE = """
:root { color-scheme: light dark; --dim: #777; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 13px/1.5 ui-monospace, monospace; } h2 { border-bottom: 1px solid var(--line); margin-top: 3rem; }
h3 code { font-size: 15px; } .verb { display: inline-block; min-width: 4.5rem; font-weight: 600; }
.dim { color: var(--dim); } table { border-collapse: collapse; width: 100%; } td { border-top: 1px solid var(--line);
padding: .3rem .8rem .3rem 0; vertical-align: top; } pre { background: #8881; padding: .7rem; overflow: auto; }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def page(document: dict[str, Any]) -> bytes:
    """The whole page."""
    info = document["info"]
    groups: dict[str, list[str]] = {}
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            groups.setdefault((operation.get("tags") or ["server"])[0], []).append(_route_html(verb, path, operation))
    inside = "".join(f"<h2 id='{escape(name)}'>{escape(name)}</h2>{''.join(parts)}" for name, parts in groups.items())
    index = " · ".join(f"<a href='#{escape(name)}'>{escape(name)}</a>" for name in [*groups, "shapes"])
    shapes = "".join(_shape(name, schema) for name, schema in document["components"]["schemas"].items())
    about = "".join(f"<p>{escape(part)}</p>" for part in info["description"].split("\n\n"))
    title = f"{escape(info['title'])} {escape(info['version'])}"
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{STYLE}</style>"
        f"<h1>{title}</h1>{about}<p>{index} · <a href='/openapi.json'>openapi.json</a></p>{inside}"
        f"<h2 id='shapes'>shapes</h2>{shapes}</html>"
    ).encode()


def _route_html(verb: str, path: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        _row(f"{one['name']}{'' if one.get('required') else '?'}", _kind(one["schema"]), one.get("description", ""))
        for one in operation.get("parameters", [])
        if one["in"] == "query"
    )
    return (
        f"<h3><span class='verb'>{escape(verb.upper())}</span> <code>{escape(path)}</code></h3>"
        f"<p>{escape(operation.get('summary', ''))} {escape(operation.get('description', ''))}</p>"
        f"{f'<table>{rows}</table>' if rows else ''}{_body_html(operation)}{_answers_html(operation)}"
    )


def _body_html(operation: dict[str, Any]) -> str:
    body = operation.get("requestBody")
    if body is None:
        return ""
    kinds = ", ".join(body["content"])
    first = next(iter(body["content"].values()))
    example = next((media["example"] for media in body["content"].values() if "example" in media), None)
    shown = f"<pre>{escape(str(example))}</pre>" if example is not None else ""
    return (
        f"<p><span class='dim'>body</span> {_kind(first['schema'])} <span class='dim'>{escape(kinds)}</span></p>{shown}"
    )


def _answers_html(operation: dict[str, Any]) -> str:
    rows = []
    for status, answer in operation["responses"].items():
        schema: dict[str, Any] = next((media.get("schema", {}) for media in answer.get("content", {}).values()), {})
        rows.append(_row(status, _kind(schema) if schema else "", answer["description"]))
    return f"<table>{''.join(rows)}</table>"


def _shape(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = "".join(
        _row(field if field in required else f"{field}?", _kind(kind), kind.get("description", ""))
        for field, kind in schema.get("properties", {}).items()
    )
    values = ", ".join(map(str, schema.get("enum", ())))
    about = escape(schema.get("description", ""))
    return (
        f"<h3 id='{escape(name)}'><code>{escape(name)}</code></h3><p>{about} {escape(values)}</p><table>{rows}</table>"
    )


def _row(name: str, kind: str, about: str) -> str:
    return f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{escape(about)}</td></tr>"


def _kind(schema: dict[str, Any]) -> str:
    """A type in a few words; a shape is a link to it."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in schema:
        return " | ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"[{_kind(schema.get('items', {}))}]"
    if "enum" in schema:
        return escape(" | ".join(map(str, schema["enum"])))
    kind = schema.get("type", "any value")
    return escape(" | ".join(kind) if isinstance(kind, list) else str(kind))
