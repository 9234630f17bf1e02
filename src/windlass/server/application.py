"""The ASGI application: routes, health, and errors told alike."""

import asyncio
from collections.abc import Sequence
from importlib.metadata import version

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from windlass.model.errors import Unavailable, WindlassError
from windlass.model.events import Newsroom
from windlass.model.operations import GetStats, Service
from windlass.server import problems
from windlass.server.described import DescribedRoute
from windlass.server.gate import Gate
from windlass.server.limits import Limits
from windlass.server.live import Live
from windlass.server.metrics import Counted, Metrics, Requests
from windlass.server.openapi import document
from windlass.server.reference import POLICY, page
from windlass.server.routes import Routes

VERSION = version("windlass")

NO_METHOD = 405

CODES = {404: ("no_route", "Not found"), 405: ("no_method", "Method not allowed")}


def application(
    service: Service,
    newsroom: Newsroom,
    gate: Gate,
    limits: Limits | None = None,
    stopping: asyncio.Event | None = None,
    *,
    also: Sequence[DescribedRoute] = (),
) -> Starlette:
    """Everything that is answered over HTTP, in other dialects last. Streams end when it is told to be stopping."""

    async def alive(_: Request) -> Response:
        return Response(b"ok\n", media_type="text/plain")

    async def ready(request: Request) -> Response:
        try:
            await service(GetStats(tenant="default"))
        except Unavailable as fault:
            return problems.told(request, fault)
        return Response(b"ok\n", media_type="text/plain")

    known = document(VERSION, tuple(route.entry for route in also))
    described, shown = msgspec.json.encode(known), page(known)

    async def openapi(_: Request) -> Response:
        return Response(described, media_type="application/json")

    async def reference(_: Request) -> Response:
        return Response(shown, media_type="text/html", headers={"content-security-policy": POLICY})

    passing, requests = Counted(service), Requests()
    app = Starlette(
        routes=[
            *Routes(passing, gate, limits or Limits()).all(),  # first, for they are looked through in this order
            Route("/openapi.json", openapi),
            Route("/reference", reference),
            Route("/healthz", alive),
            Route("/readyz", ready),
            *Metrics(passing, gate, requests).all(),
            *Live(service, newsroom, gate, stopping or asyncio.Event()).all(),
            *also,
        ],
        middleware=[Middleware(requests.counting)],
        exception_handlers={
            WindlassError: problems.on_error,
            HTTPException: _no_such_route,
            Exception: problems.on_bug,
        },
    )
    app.router.redirect_slashes = False  # a path is what it is
    requests.know(app.routes)
    return app


async def _no_such_route(request: Request, fault: Exception) -> Response:
    status = getattr(fault, "status_code", 404)
    code, title = CODES.get(status, ("error", "Error"))
    path = request.scope["path"][:200]
    detail = f"there is no {request.method} {path}; /reference lists what there is"
    problem = problems.of_status(status, title, detail, code)
    return problems.response(problem, problems.form_for(request), _allowed(request) if status == NO_METHOD else None)


def _allowed(request: Request) -> dict[str, str]:
    """What may be done at this path, by all of its routes."""
    routes = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return {"allow": ", ".join(sorted({verb for route in routes for verb in route.methods or ()}))}
