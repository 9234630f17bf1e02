"""The routes of a function queue: a client's jobs of a type, one per line, and the handlers of types.

Its client is our tenant, its type our task. Jobs get the options of that queue: a retry every five minutes for six
hours and two minutes per run. Records are kept for two weeks, and a job must start within a month, unless the operator
sets other times.
"""

from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from windlass.dialect.aliases import Alias, KeepTimes, RouteCall, alias, alias_routes, forward, rename
from windlass.model import wire
from windlass.model.duration import DAY
from windlass.model.errors import Invalid
from windlass.model.handler import Handler, NewHandler
from windlass.model.job import JSON, TEXT
from windlass.model.new_job import JobOptions
from windlass.model.operations import Enqueued, EnqueueLines, GetHandler, PutHandler, RemoveHandler, Service
from windlass.model.retry import UNTIL_DEADLINE
from windlass.server import formats
from windlass.server.auth import Auth
from windlass.server.openapi import LINES, Content, SpecRoute
from windlass.server.requests import RequestLimits, text_of

JOB_OPTIONS = JobOptions(max_retry=None, retry=UNTIL_DEADLINE, timeout=120.0)


class ClientJobOptions(KeepTimes, frozen=True, kw_only=True):
    """Operator settings for jobs that come by these routes. The queue's own keep times go first."""

    keep_success: float | None = 14 * DAY
    keep_failure: float | None = 14 * DAY
    expires: float | None = 30 * DAY


def routes(
    service: Service, auth: Auth, limits: RequestLimits, options: ClientJobOptions | None = None
) -> list[SpecRoute]:
    return alias_routes(aliases(options or ClientJobOptions()), service, auth, limits)


# Bodies


class Done(Struct, frozen=True, kw_only=True):
    """The request succeeded."""

    ok: Literal[True] = True


class JobsAdded(Done, frozen=True, kw_only=True):
    """Jobs were queued."""

    count: int
    ids: list[str]


class HandlerAdded(Done, frozen=True, kw_only=True):
    """The code of a type was stored."""

    version: int


class HandlerQuery(Struct, frozen=True):
    """The query beside the source of a handler."""

    method: str | None = None
    """Its language."""


# Requests and answers


def _task(call: RouteCall) -> str:
    return str(call.request.path_params["type"])


async def _put_handler(call: RouteCall) -> PutHandler:
    return PutHandler(tenant=call.tenant, task=_task(call), handler=await _handler(call))


async def _handler(call: RouteCall) -> NewHandler:
    """The whole handler as JSON, or its source alone with the language as `method`."""
    data = await call.body()
    method = call.request.query_params.get("method")
    if formats.media(call.header("content-type")) != JSON:
        fields = {"body": text_of(data)} | ({} if method is None else {"lang": method})
        return wire.decode(wire.encode(fields), NewHandler)
    handler: NewHandler = wire.decode(data, NewHandler, "json")
    if method not in (None, handler.lang):
        raise Invalid(
            f"the language is {handler.lang} in the body: leave out `method`, or make them equal", at="method"
        )
    return handler


def _jobs_added(call: RouteCall, made: Enqueued) -> Response:
    if formats.media(call.header("accept")) == TEXT:
        return Response("".join(f"{id}\n" for id in made.ids), media_type=TEXT)
    return _json(JobsAdded(count=made.created, ids=made.ids))


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)


# The table


def aliases(options: ClientJobOptions) -> tuple[Alias, ...]:
    job_options = replace(JOB_OPTIONS, expires=options.expires)

    async def add_jobs(call: RouteCall) -> EnqueueLines:
        text = text_of(await call.body())
        return EnqueueLines(tenant=call.tenant, task=_task(call), text=text, options=job_options)

    return (
        alias(
            "POST /{tenant}/job/{type}/add",
            "S3Add",
            EnqueueLines,
            "Queue a job for each line. Empty lines and lines that start with `#` are skipped.",
            forward(add_jobs, _jobs_added),
            body=LINES,
            responses={200: [Content(JobsAdded), Content(str, (TEXT,))]},
            errors=frozenset({429}),
        ),
        alias(
            "POST PUT /{tenant}/handler/add/{type}/add",
            "S3AddHandler",
            PutHandler,
            "Store the code of a type: a whole handler, or its source alone with the language as `method`.",
            forward(_put_handler, lambda _, entry: _json(HandlerAdded(version=entry.version))),
            query=HandlerQuery,
            body=[
                Content(NewHandler, (JSON,), {"lang": "node", "body": "run = (payload) => payload.length"}),
                Content(str, (TEXT,), "def run(payload):\n    return len(payload)\n"),
            ],
            responses={200: [Content(HandlerAdded)]},
            errors=frozenset({404, 409}),
        ),
        alias(
            "GET /{tenant}/handler/get/{type}",
            "S3GetHandler",
            GetHandler,
            "The code of a type.",
            forward(rename(GetHandler, task=_task), lambda _, handler: _json(handler)),
            responses={200: [Content(Handler)]},
            errors=frozenset({404}),
        ),
        alias(
            "POST DELETE /{tenant}/handler/del/{type}/delete",
            "S3RemoveHandler",
            RemoveHandler,
            "Remove the code of a type.",
            forward(rename(RemoveHandler, task=_task), lambda *_: _json(Done())),
            responses={200: [Content(Done)]},
            errors=frozenset({404, 409}),
        ),
    )


SPECS = tuple(one.spec for one in aliases(ClientJobOptions()))
