"""The ASGI application: all routes, health checks, counting of requests, and errors as problem details.

Starlette wraps its routes in a layer for each of these. Here a request passes one layer; a WebSocket passes
Starlette's own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from importlib.metadata import version

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Message, Receive, Scope, Send

from windlass.model.errors import Full, PartAway, Problem, Unavailable, WindlassError
from windlass.model.events import LiveEvents
from windlass.model.operations import GetStats, Service
from windlass.server import formats
from windlass.server.auth import Auth, TokenWatch
from windlass.server.live import Live
from windlass.server.metrics import JobCounter, Metrics, RequestStats
from windlass.server.openapi import POLICY, SpecRoute, document, page
from windlass.server.requests import ABORT, BODY_COMPLETE, RequestLimits
from windlass.server.routes import Routes

VERSION = version("windlass")

NO_METHOD = 405

CLOSE = (b"connection", b"close")

CODES = {404: ("no_route", "Not found"), 405: ("no_method", "Method not allowed")}


def application(
    service: Service,
    newsroom: LiveEvents,
    auth: Auth,
    limits: RequestLimits | None = None,
    stopping: asyncio.Event | None = None,
    *,
    also: Sequence[SpecRoute] = (),
    also_routes: Sequence[BaseRoute] = (),
    check_ready: Callable[[], Awaitable[None]] | None = None,
) -> Starlette:
    """All routes, those of other dialects last. Streams end when `stopping` is set.

    `also_routes`: those that OpenAPI cannot describe. `check_ready`: raises what keeps the service from working;
    without it, the store is asked.
    """

    async def ask_store() -> None:
        await service(GetStats(tenant="default"))

    async def alive(_: Request) -> Response:
        return Response(b"ok\n", media_type="text/plain")

    async def ready(request: Request) -> Response:
        try:
            await (check_ready or ask_store)()
        except PartAway as fault:
            return Response(f"ok, but in part: {fault}\n".encode(), media_type="text/plain")
        except (Unavailable, Full) as fault:
            return formats.error_response(request, Unavailable(str(fault)))
        return Response(b"ok\n", media_type="text/plain")

    specs = tuple(route.spec for route in also)

    # Made when first asked for, which takes as long as all else at the start of a server. These two are no coroutines:
    # Starlette runs them in a thread, so that other requests do not wait.
    @cache
    def openapi_json() -> bytes:
        return msgspec.json.encode(document(VERSION, specs))

    @cache
    def reference_html() -> bytes:
        return page(document(VERSION, specs))

    def openapi(_: Request) -> Response:
        return Response(openapi_json(), media_type="application/json")

    def reference(_: Request) -> Response:
        return Response(reference_html(), media_type="text/html", headers={"content-security-policy": POLICY})

    counter, stats, token_watch = JobCounter(service), RequestStats(), TokenWatch(auth)
    return Application(
        [
            *Routes(counter, auth, limits or RequestLimits(), token_watch).all(),  # first: matched in this order
            Route("/openapi.json", openapi),
            Route("/reference", reference),
            Route("/healthz", alive),
            Route("/readyz", ready),
            *Metrics(counter, auth, stats).all(),
            *Live(service, newsroom, auth, token_watch, stopping or asyncio.Event()).all(),
            *also,
            *also_routes,
        ],
        stats,
    )


class Application(Starlette):
    """Gives each request to its route, counts it, and answers errors."""

    def __init__(self, routes: Sequence[BaseRoute], stats: RequestStats) -> None:
        super().__init__(routes=routes, exception_handlers={WindlassError: _on_error})
        self.router.redirect_slashes = False
        self._stats = stats
        stats.name_routes(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        started_at, responded = self._stats.now(), False

        async def send_counted(message: Message) -> None:
            nonlocal responded
            if not responded:
                responded = True
                if BODY_COMPLETE not in scope and ABORT in scope.get("extensions", {}):
                    message["headers"] = [*message.get("headers", ()), CLOSE]  # the rest of the body is not read
                self._stats.count(scope, message["status"], started_at)
            await send(message)

        try:
            await self.router(scope, receive, send_counted)
        except (WindlassError, HTTPException) as fault:
            if responded:
                raise
            response = _error_response(Request(scope), fault)
            await response(scope, receive, send_counted)
        except Exception as fault:
            response = formats.bug_response(Request(scope), fault)
            if not responded:
                await response(scope, receive, send_counted)
            raise  # uvicorn closes the connection


async def _on_error(request: Request, fault: Exception) -> Response:
    """For WebSockets, which pass Starlette's own layer."""
    assert isinstance(fault, WindlassError)  # noqa: S101 - it is registered for these
    return formats.error_response(request, fault)


def _error_response(request: Request, fault: WindlassError | HTTPException) -> Response:
    if isinstance(fault, WindlassError):
        return formats.error_response(request, fault)
    status = fault.status_code
    code, title = CODES.get(status, ("error", "Error"))
    detail = f"there is no route {request.method} {request.scope['path'][:200]}; /reference lists all of them"
    problem = Problem(title=title, status=status, detail=detail, code=code)
    headers = _allowed(request) if status == NO_METHOD else None
    return formats.problem_response(problem, formats.error_format(request), headers)


def _allowed(request: Request) -> dict[str, str]:
    """The methods of all routes at this path."""
    routes = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return {"allow": ", ".join(sorted({verb for route in routes for verb in route.methods or ()}))}
