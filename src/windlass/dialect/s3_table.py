"""The routes of a function queue: what each takes and answers."""

from typing import Literal

from msgspec import Struct

from windlass.model.handler import Handler, NewHandler
from windlass.model.job import JSON, TEXT
from windlass.model.operations import OPERATIONS, EnqueueLines, GetHandler, PutHandler, RemoveHandler
from windlass.server.described import Content, Described

TAG = "dialect-s3"


class Done(Struct, frozen=True, kw_only=True):
    """It is done."""

    ok: Literal[True] = True


class Added(Done, frozen=True, kw_only=True):
    """Jobs were queued."""

    count: int
    ids: list[str]


class Uploaded(Done, frozen=True, kw_only=True):
    """The code of a type is kept."""

    version: int


class Method(Struct, frozen=True):
    """What is said beside the source."""

    method: str | None = None
    """Its language."""


LINES = "first payload\n# a comment\nsecond payload\n"

ADD = Described(
    verbs=["POST"],
    path="/{tenant}/job/{type}/add",
    name="S3Add",
    tag=TAG,
    summary="Queue a job for each line. Empty lines and those that begin with `#` are skipped.",
    scope=OPERATIONS[EnqueueLines].scope,
    takes=[Content(str, (TEXT,), LINES)],
    answers={200: [Content(Added), Content(str, (TEXT,))]},
    refuses=frozenset({429}),
)
PUT = Described(
    verbs=["POST", "PUT"],
    path="/{tenant}/handler/add/{type}/add",
    name="S3AddHandler",
    tag=TAG,
    summary="Keep the code of a type: as a whole, or its source alone with the language as `method`.",
    scope=OPERATIONS[PutHandler].scope,
    query=Method,
    takes=[
        Content(NewHandler, (JSON,), {"lang": "node", "body": "run = (payload) => payload.length"}),
        Content(str, (TEXT,), "def run(payload):\n    return len(payload)\n"),
    ],
    answers={200: [Content(Uploaded)]},
    refuses=frozenset({404, 409}),
)
GET = Described(
    verbs=["GET"],
    path="/{tenant}/handler/get/{type}",
    name="S3GetHandler",
    tag=TAG,
    summary="The code of a type.",
    scope=OPERATIONS[GetHandler].scope,
    answers={200: [Content(Handler)]},
    refuses=frozenset({404}),
)
REMOVE = Described(
    verbs=["POST", "DELETE"],
    path="/{tenant}/handler/del/{type}/delete",
    name="S3RemoveHandler",
    tag=TAG,
    summary="Forget the code of a type.",
    scope=OPERATIONS[RemoveHandler].scope,
    answers={200: [Content(Done)]},
    refuses=frozenset({404, 409}),
)

TABLE = (ADD, PUT, GET, REMOVE)
