"""What the OpenAPI document says of what is no operation: jobs followed live, and the worker's side of push."""

from typing import Any

from windlass.model import push
from windlass.model.errors import Problem
from windlass.model.estimate import Estimate
from windlass.model.events import NAMES, Gone, Piece
from windlass.model.job import JSON, Job
from windlass.model.operations import Claimed, Finished
from windlass.server.formats import NDJSON, PROBLEM_TYPES, TYPES

KINDS = [Job, Piece, Gone, Estimate, Claimed, Finished, Problem]
"""What is referred to here."""

EVENTS = f"""The events are {", ".join(f"`{name}`" for name in NAMES)}. The data of `output` is a Piece, of
`estimate` (while the job waits: at once, and when it has changed by a second or a tenth) an Estimate, of any other a
Job. The stream ends after the job has. Whoever comes back sends the id of the last event, and is told what follows it;
204 = there is nothing more. What happened between two looks at the job is told as its last state."""

ALL_EVENTS = """Server-sent events, or lines `{"event", "data"}` where `Accept` says so. From when the answer begins,
each event comes at most once; `gap` tells that some were missed, with no job. The data is the job as it is when it is
told, which may be further on; told is of jobs that match then. The end of a delay is told as `queued`. That a record
was deleted, or dropped after its time, is told as `deleted`, with a Gone, where the match asks for no more than state,
queue and task. Output and estimates are told only to those who follow the job. A match by payload is not possible."""

LIVE = """A WebSocket. Without the header Authorization the first message must be `{"token": …}`, within 5 s; it may say
`since`, the id of the last event that is known. Each event is a text message `{"event", "id", "data"}` as on the stream
of events; after one of `output`, which then has `size` instead of `text`, its bytes come as a binary message. Each
message of the other side, text or binary, is sent to the job, in order, if it takes input and the token may `operate`;
one that cannot be is answered with an event `refused`, whose data has its number in this conversation (`message`, from
1) and the `problem`. Closed with 1000 when the job has ended, 1001 when the server stops, 1008 when refused, 1013 when
the reader is too slow."""

DELIVERY = f"""Sent to the `url` that a worker registered, for each job that it has a slot for. The worker must renew
its registration (`POST /v1/TENANT/workers/WORKER/renew`, at least once in a lease), or it counts as gone. Naming its
jobs there, it hears which ones to stop.

`{push.SIGNATURE}` is the HMAC-SHA256 of the timestamp, a full stop and the body, in hex digits; the key is the `secret`
that the registration answered. Answers later than 30 s or longer than 1 MiB count as failed deliveries."""

OUTCOME_FIELDS = ("id", "token", "tenant")
"""What a report has and an answer has not: it is of the job that was sent."""


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _problem(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {media: {"schema": _reference("Problem")} for media in PROBLEM_TYPES.values()},
    }


def _header(name: str, description: str, *, required: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": required,
        "description": description,
        "schema": {"type": "string"},
    }


def live_paths(match: list[dict[str, Any]]) -> dict[str, Any]:
    """Jobs followed live. `match` = the parameters that say which jobs are meant."""
    where = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in ("tenant", "id")]
    since = _header("Last-Event-ID", "The id of the last event that is known already.", required=False)
    refused = {str(status): _problem(said) for status, said in REFUSALS.items()}
    stream = {"schema": {"type": "string"}, "example": 'event: queued\nid: 0-queued-0\ndata: {"id": …}\n\n'}
    return {
        "/v1/{tenant}/events": {
            "get": {
                "operationId": "AllEvents",
                "summary": "What happens to all matching jobs, as it happens.",
                "description": f"{ALL_EVENTS}\n\nScope: `read`.",
                "tags": ["jobs"],
                "parameters": [where[0], *(one for one in match if not one["name"].startswith("payload"))],
                "responses": {
                    "200": {
                        "description": "The events.",
                        "content": {"text/event-stream": stream, NDJSON: {"schema": {"type": "string"}}},
                    },
                    **{status: said for status, said in refused.items() if status != "404"},
                },
            }
        },
        "/v1/{tenant}/jobs/{id}/events": {
            "get": {
                "operationId": "Events",
                "summary": "What happens to a job, as it happens.",
                "description": f"{EVENTS}\n\nScope: `read`.",
                "tags": ["jobs"],
                "parameters": [*where, since],
                "responses": {
                    "200": {"description": "The events.", "content": {"text/event-stream": stream}},
                    "204": {"description": "All has been told."},
                    **refused,
                },
            }
        },
        "/v1/{tenant}/jobs/{id}/live": {
            "get": {
                "operationId": "Live",
                "summary": "What happens to a job, over a WebSocket.",
                "description": f"{LIVE}\n\nScope: `read`.",
                "tags": ["jobs"],
                "parameters": [*where, since],
                "responses": {"101": {"description": "The WebSocket is open."}, **refused},
            }
        },
    }


REFUSALS = {
    400: "Invalid request.",
    401: "Not authenticated.",
    403: "Not allowed.",
    404: "Not found.",
    429: "Too many are being followed.",
    503: "Unavailable.",
}


def outcome(report: dict[str, Any]) -> dict[str, Any]:
    """What a worker may answer that was sent a job: what it would report of it."""
    return {
        "title": "Outcome",
        "description": "How the attempt ended.",
        "type": "object",
        "properties": {name: kind for name, kind in report["properties"].items() if name not in OUTCOME_FIELDS},
        "required": ["outcome"],
    }


def callbacks() -> dict[str, Any]:
    """The worker's side: what it is sent to the address that it registered, and what it may answer."""
    example = {"outcome": "ok", "result": {"pages": 3}}
    schema = _reference("Outcome")
    answer = {media: {"schema": schema, **({"example": example} if media == JSON else {})} for media in TYPES.values()}
    sent = {
        "{$request.body#/url}": {
            "post": {
                "operationId": "Deliver",
                "summary": "One claimed job.",
                "description": DELIVERY,
                "security": [],
                "parameters": [
                    _header(push.ID, "The id of the job."),
                    _header(push.ATTEMPT, "Which run of it this is, from 1."),
                    _header(push.WORKER, "The worker that it is meant for."),
                    _header(push.TIMESTAMP, "When it was sent: seconds since 1970."),
                    _header(push.SIGNATURE, "Who sent it."),
                ],
                "requestBody": {
                    "required": True,
                    "description": "In the `format` that the worker registered.",
                    "content": {media: {"schema": _reference("Claimed")} for media in TYPES.values()},
                },
                "responses": {
                    "200": {"description": "It is done, and this is how it ended.", "content": answer},
                    "202": {"description": "It is taken; the worker will call Finish with its token."},
                    "404": {
                        "description": "The task is not known here: another worker is tried, no attempt is used, and "
                        "this worker is not offered the task for a minute."
                    },
                    "default": {
                        "description": "Not delivered: no attempt is used, and it is sent again, here after a pause "
                        "that grows from 0.5 s to 30 s, or to another worker at once."
                    },
                },
            }
        }
    }
    return {"job": sent}
