"""Jobs followed live: one stream for each follower, told as server-sent events or over a WebSocket.

A stream ends when its job has ended, when the server stops, or when its reader has gone. Whoever comes back says where
it stopped.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from windlass.model import events
from windlass.model.errors import Busy, WindlassError
from windlass.model.events import Place
from windlass.model.job import FINISHED, Job
from windlass.model.operations import Service, Show
from windlass.server import sockets
from windlass.server.following import News, follow
from windlass.server.gate import Gate

EVENT_STREAM = "text/event-stream"
EVENTS = "/v1/{tenant}/jobs/{id}/events"
LIVE = "/v1/{tenant}/jobs/{id}/live"

MOST_STREAMS = 1000
"""Jobs that are followed at once on one server."""

BREATH = 15.0
"""Seconds after which a stream without news shows that it lives."""


class Live:
    """Follows jobs for others."""

    def __init__(self, service: Service, gate: Gate, stopping: asyncio.Event) -> None:
        self._service = service
        self._gate = gate
        self.stopping = stopping
        self._streams = 0

    def all(self) -> list[Route | WebSocketRoute]:
        return [Route(EVENTS, self.events, methods=["GET"]), WebSocketRoute(LIVE, self.live)]

    async def events(self, request: Request) -> Response:
        """As server-sent events."""
        tenant, job = await self.find(request)
        place = events.place(request.headers.get("last-event-id", ""))
        if job.state in FINISHED and place.told == job.state:
            return Response(status_code=204)  # all has been told: a browser comes back no more
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._written(tenant, job, place), media_type=EVENT_STREAM, headers=headers)

    async def _written(self, tenant: str, job: Job, place: Place) -> AsyncGenerator[bytes, None]:
        yield b"retry: 1000\n\n"
        loop = asyncio.get_running_loop()
        said = loop.time()
        async with aclosing(self.follow(tenant, job, place)) as stream:
            async for news in stream:
                if news is not None:
                    yield events.written(news[0])
                elif loop.time() - said > BREATH:
                    yield b":\n\n"
                else:
                    continue
                said = loop.time()

    async def follow(self, tenant: str, job: Job, place: Place) -> AsyncGenerator[News | None, None]:
        """What is new of a job, from a place on."""
        self._streams += 1
        try:
            async with aclosing(follow(self._service, tenant, job, place)) as stream:
                async for news in stream:
                    yield news
                    if self.stopping.is_set():
                        return
        except WindlassError:
            return  # it is gone, or cannot be seen now: whoever comes back is told
        finally:
            self._streams -= 1

    async def find(self, connection: HTTPConnection, token: str | None = None) -> tuple[str, Job]:
        """The job that somebody wants to follow, and in whose name."""
        tenant = await self._gate.admit(connection, "read", token=token)
        if self._streams >= MOST_STREAMS:
            raise Busy(f"{MOST_STREAMS} jobs are being followed already: ask now and then instead")
        return tenant, await self._service(Show(tenant=tenant, id=connection.path_params["id"]))

    async def live(self, socket: WebSocket) -> None:
        """Over a WebSocket."""
        await sockets.converse(socket, self)
