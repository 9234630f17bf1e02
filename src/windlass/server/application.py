"""The ASGI application: all routes, and how the server itself is."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from windlass.model.errors import Full, PartAway, Unavailable
from windlass.model.events import Newsroom
from windlass.model.operations import GetStats, Service
from windlass.server import problems
from windlass.server.described import DescribedRoute
from windlass.server.front import Front
from windlass.server.gate import Gate
from windlass.server.lasting import Lasting
from windlass.server.limits import Limits
from windlass.server.live import Live
from windlass.server.metrics import Counted, Metrics, Requests
from windlass.server.openapi import document
from windlass.server.reference import POLICY, page
from windlass.server.routes import Routes

VERSION = version("windlass")


def application(
    service: Service,
    newsroom: Newsroom,
    gate: Gate,
    limits: Limits | None = None,
    stopping: asyncio.Event | None = None,
    *,
    also: Sequence[DescribedRoute] = (),
    check_ready: Callable[[], Awaitable[None]] | None = None,
) -> Starlette:
    """Everything that is answered over HTTP, in other dialects last. Streams end when the server stops.

    `check_ready`: raises what keeps the service from working; without it, whether the store answers.
    """

    async def ask() -> None:
        await service(GetStats(tenant="default"))

    async def alive(_: Request) -> Response:
        return Response(b"ok\n", media_type="text/plain")

    async def ready(request: Request) -> Response:
        try:
            await (check_ready or ask)()
        except PartAway as fault:
            return Response(f"ok, but in part: {fault}\n".encode(), media_type="text/plain")
        except (Unavailable, Full) as fault:
            return problems.told(request, Unavailable(str(fault)))
        return Response(b"ok\n", media_type="text/plain")

    known = document(VERSION, tuple(route.entry for route in also))
    described, shown = msgspec.json.encode(known), page(known)

    async def openapi(_: Request) -> Response:
        return Response(described, media_type="application/json")

    async def reference(_: Request) -> Response:
        return Response(shown, media_type="text/html", headers={"content-security-policy": POLICY})

    passing, requests, lasting = Counted(service), Requests(), Lasting(gate)
    return Front(
        [
            *Routes(
                passing, gate, limits or Limits(), lasting
            ).all(),  # first, for they are looked through in this order
            Route("/openapi.json", openapi),
            Route("/reference", reference),
            Route("/healthz", alive),
            Route("/readyz", ready),
            *Metrics(passing, gate, requests).all(),
            *Live(service, newsroom, gate, lasting, stopping or asyncio.Event()).all(),
            *also,
        ],
        requests,
    )
