"""Jobs followed live: one stream for each follower, told as server-sent events or over a WebSocket.

A stream of one job ends when the job has ended, when the server stops, or when its reader has gone; whoever comes back
says where it stopped. A stream of all jobs begins where it begins.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from windlass.model import events
from windlass.model.errors import Busy, Invalid, WindlassError
from windlass.model.events import Event, News, Newsroom, Place, Watching
from windlass.model.job import FINISHED, Job
from windlass.model.match import Match
from windlass.model.operations import OPERATIONS, List, Send, Service, Show
from windlass.model.shapes import SHAPES
from windlass.server import formats, sockets
from windlass.server.gate import Gate
from windlass.server.lasting import Lasting
from windlass.server.streams import Stream, head_of

EVENT_STREAM = "text/event-stream"
ALL_EVENTS = "/v1/{tenant}/events"
EVENTS = "/v1/{tenant}/jobs/{id}/events"
LIVE = "/v1/{tenant}/jobs/{id}/live"

MOST_STREAMS = 10_000
"""Followers at once on one server."""

BREATH = 15.0
"""Seconds after which a stream without news shows that it lives."""

_LISTING = next(shape for shape in SHAPES if shape.kind is List)


class Live:
    """Follows jobs for others."""

    def __init__(
        self, service: Service, newsroom: Newsroom, gate: Gate, lasting: Lasting, stopping: asyncio.Event
    ) -> None:
        self._service = service
        self._newsroom = newsroom
        self._gate = gate
        self.lasting = lasting
        self.stopping = stopping
        self.wording = sockets.Wording()
        self._streams = 0
        self._ending: asyncio.Task[None] | None = None

    def all(self) -> list[Route | WebSocketRoute]:
        return [
            Route(ALL_EVENTS, self.all_events, methods=["GET"]),
            Route(EVENTS, self.events, methods=["GET"]),
            WebSocketRoute(LIVE, self.live),
        ]

    # All jobs

    async def all_events(self, request: Request) -> Response:
        """What happens to all matching jobs, as server-sent events or as JSON lines."""
        tenant = await self._gate.admit(request, "read")
        self._check_room()
        match = _match(request)
        lines = formats.wants_lines(request.headers.get("accept", ""))
        write, form = (events.line, formats.NDJSON) if lines else (events.written, EVENT_STREAM)
        if request.method == "HEAD":
            return head_of(form)
        opened = AsyncExitStack()
        # Opened before anything is answered: what is wrong can still be told, and who has the answer misses nothing.
        watcher = await opened.enter_async_context(self._newsroom.watching(tenant, match))
        stream = self._watched(watcher, write, b"\n" if lines else b":\n\n")
        return Stream(stream, form, opened, opened.enter_context(self.lasting.opened(request, "read")))

    async def _watched(
        self, watcher: Watching, write: Callable[[Event], bytes], breath: bytes
    ) -> AsyncGenerator[bytes, None]:
        with self._counted():
            yield breath
            while not self.stopping.is_set():
                some = await watcher.take(BREATH)
                if some:
                    yield b"".join(map(write, some))
                else:
                    yield breath

    # One job

    async def events(self, request: Request) -> Response:
        """As server-sent events."""
        job = await self.find(request)
        place = events.place(request.headers.get("last-event-id", ""))
        if job.state in FINISHED and place.told == job.state:
            return Response(status_code=204)  # all has been told: a browser comes back no more
        if request.method == "HEAD":
            return head_of(EVENT_STREAM)
        opened = AsyncExitStack()
        ended = opened.enter_context(self.lasting.opened(request, "read"))
        return Stream(self._written(job, place), EVENT_STREAM, opened, ended)

    async def _written(self, job: Job, place: Place) -> AsyncGenerator[bytes, None]:
        yield b"retry: 1000\n\n"
        loop = asyncio.get_running_loop()
        said = loop.time()
        async with aclosing(self.follow(job, place)) as stream:
            async for news in stream:
                if news is not None:
                    yield events.written(news[0])
                elif loop.time() - said > BREATH:
                    yield b":\n\n"
                else:
                    continue
                said = loop.time()

    async def follow(self, job: Job, place: Place) -> AsyncGenerator[News | None, None]:
        """What is new of a job, from a place on."""
        with self._counted():
            try:
                async with aclosing(self._newsroom.follow(job, place)) as stream:
                    async for news in stream:
                        yield news
                        if self.stopping.is_set():
                            return
            except WindlassError:
                return  # it is gone, or cannot be seen now: whoever comes back is told

    async def find(self, connection: HTTPConnection, token: str | None = None) -> Job:
        """The job to follow."""
        tenant = await self._gate.admit(connection, "read", token=token)
        self._check_room()
        return await self._service(Show(tenant=tenant, id=connection.path_params["id"]))

    async def send(self, connection: HTTPConnection, token: str | None, id: str, data: bytes) -> None:
        """A message to a job, from somebody who may do more than look."""
        tenant = await self._gate.admit(connection, OPERATIONS[Send].scope, token=token)
        await self._service(Send(tenant=tenant, id=id, data=data))

    async def live(self, socket: WebSocket) -> None:
        """Over a WebSocket."""
        await sockets.converse(socket, self)

    def _check_room(self) -> None:
        if self._streams >= MOST_STREAMS:
            raise Busy(f"there are {MOST_STREAMS} followers already: ask now and then instead")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._streams += 1
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        try:
            yield
        finally:
            self._streams -= 1
            if not self._streams:
                self._ending.cancel()
                self._ending = None

    async def _end(self) -> None:
        """Nobody waits for news of a server that stops."""
        await self.stopping.wait()
        self._newsroom.wake()


def _match(request: Request) -> Match:
    """Which jobs are meant, from the query of a listing."""
    for name in ("limit", "after", "order"):
        if name in request.query_params:
            raise Invalid("a stream of events has no pages", at=name)
    listing = _LISTING.build("-", {}, _LISTING.from_query(request.query_params.multi_items()), None)
    assert isinstance(listing, List)  # noqa: S101
    return listing.match
