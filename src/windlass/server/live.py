"""Live events: all jobs of a tenant or one job, as server-sent events, JSON lines or WebSocket messages.

The stream of one job ends when the job has ended, when the server stops, or when the client disconnects. A client that
reconnects sends the id of the last event that it has. The stream of all jobs starts when it is opened.

Over a WebSocket the token comes in a header or in the first message, never in the URL. Later messages of the client
are sent to the job.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, contextmanager
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from windlass.model import events
from windlass.model.errors import Busy, Invalid, Problem, Unauthenticated, WindlassError
from windlass.model.events import Event, EventCursor, EventSubscription, EventWithOutput, LiveEvents
from windlass.model.job import FINISHED, Job
from windlass.model.match import Match
from windlass.model.names import JobKey, key_of
from windlass.model.operations import OPERATIONS, List, Resize, Send, SendSignal, Service, Show
from windlass.model.output import Chunk
from windlass.model.shapes import SHAPES
from windlass.model.stdin import Length, SignalName
from windlass.server import formats
from windlass.server.auth import Auth, TokenWatch, check_origin
from windlass.server.requests import ABORT, LIMIT_BUFFER
from windlass.server.streams import MOST_BUFFERED, Frame, SendQueue, Stream, stream_head

EVENT_STREAM = "text/event-stream"
ALL_EVENTS = "/v1/{tenant}/events"
EVENTS = "/v1/{tenant}/jobs/{id}/events"
LIVE = "/v1/{tenant}/jobs/{id}/live"

MOST_STREAMS = 10_000
"""Open streams on one server."""

KEEP_ALIVE = 15.0
"""Seconds after which a stream without events sends a comment or an empty line."""

TOKEN_WITHIN = 5.0
"""Seconds in which the first message of a WebSocket must come."""

CLOSE_WITHIN = 1.0
"""Seconds in which a close frame must be sent."""

MOST_CACHED = 256
"""Encoded messages that are kept for other followers of the same job."""

ENDED, GOING_AWAY, REFUSED, TOO_SLOW = 1000, 1001, 1008, 1013
"""Close codes."""

_LISTING = next(shape for shape in SHAPES if shape.kind is List)


class Live:
    """The routes that stream events."""

    def __init__(
        self, service: Service, newsroom: LiveEvents, auth: Auth, token_watch: TokenWatch, stopping: asyncio.Event
    ) -> None:
        self._service = service
        self._newsroom = newsroom
        self._auth = auth
        self.token_watch = token_watch
        self.stopping = stopping
        self.messages = MessageCache()
        self.shared = SharedFrames()
        self._frames = FrameCache()
        self._streams = 0
        self._stop_task: asyncio.Task[None] | None = None

    def all(self) -> list[Route | WebSocketRoute]:
        return [
            Route(ALL_EVENTS, self.all_events, methods=["GET"]),
            Route(EVENTS, self.events, methods=["GET"]),
            WebSocketRoute(LIVE, self.live),
        ]

    # All jobs

    async def all_events(self, request: Request) -> Response:
        """Events of all matching jobs, as server-sent events or as JSON lines."""
        tenant = await self._auth.authorize(request, "read")
        self._check_room()
        match = _match(request)
        lines = formats.prefers(request.headers.get("accept", ""), formats.NDJSON)
        write, media_type = (events.encode_line, formats.NDJSON) if lines else (events.encode_sse, EVENT_STREAM)
        if request.method == "HEAD":
            return stream_head(media_type)
        opened = AsyncExitStack()
        # Subscribe before the response starts: errors still get a status, and the client misses nothing after it.
        watcher = await opened.enter_async_context(self._newsroom.watching(tenant, match))
        stream = self._all_written(watcher, write, b"\n" if lines else b":\n\n")
        return Stream(stream, media_type, opened, opened.enter_context(self.token_watch.watch(request, "read")))

    async def _all_written(
        self, watcher: EventSubscription, write: Callable[[Event], bytes], keep_alive: bytes
    ) -> AsyncGenerator[bytes, None]:
        with self._counted():
            yield keep_alive
            while not self.stopping.is_set():
                some = await watcher.take(KEEP_ALIVE)
                yield self._frames.encode(write, some) if some else keep_alive

    # One job

    async def events(self, request: Request) -> Response:
        """Events of one job, as server-sent events."""
        job = await self.find(request)
        place = events.cursor(request.headers.get("last-event-id", ""))
        if job.state in FINISHED and place.sent == job.state:
            return Response(status_code=204)  # the client has everything: a browser does not reconnect after this
        if request.method == "HEAD":
            return stream_head(EVENT_STREAM)
        opened = AsyncExitStack()
        revoked = opened.enter_context(self.token_watch.watch(request, "read"))
        return Stream(self._written(job, place), EVENT_STREAM, opened, revoked)

    async def _written(self, job: Job, place: EventCursor) -> AsyncGenerator[bytes, None]:
        yield b"retry: 1000\n\n"
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        async with aclosing(self.follow(job, place)) as stream:
            async for news in stream:
                if news is not None:
                    yield self.shared.share(job, news[0].id, events.encode_sse(news[0]))
                elif loop.time() - sent_at > KEEP_ALIVE:
                    yield b":\n\n"
                else:
                    continue
                sent_at = loop.time()

    async def follow(self, job: Job, place: EventCursor) -> AsyncGenerator[EventWithOutput | None, None]:
        """The events of a job after a place; null now and then, when there are none."""
        with self._counted():
            try:
                async with aclosing(self._newsroom.follow(job, place)) as stream:
                    async for news in stream:
                        yield news
                        if self.stopping.is_set():
                            return
            except WindlassError:
                return  # deleted, or the store is away: a client that reconnects gets the error

    async def find(self, connection: HTTPConnection, token: str | None = None) -> Job:
        """The job in the path."""
        tenant = await self._auth.authorize(connection, "read", token=token)
        self._check_room()
        return await self._service(Show(tenant=tenant, id=connection.path_params["id"]))

    async def send(self, connection: HTTPConnection, token: str | None, message: Send | Resize | SendSignal) -> None:
        """Send something to a job, which needs another scope than reading."""
        tenant = await self._auth.authorize(connection, OPERATIONS[Send].scope, token=token)
        await self._service(replace(message, tenant=tenant))

    async def live(self, socket: WebSocket) -> None:
        """Events of one job, over a WebSocket."""
        try:
            check_origin(socket)
            since, token = socket.headers.get("last-event-id", ""), None
            if "authorization" in socket.headers:
                job = await self.find(socket)
                await socket.accept()
            else:
                await socket.accept()
                hello = await _hello(socket)
                since, token = hello.since, hello.token
                job = await self.find(socket, token)
            socket.scope["extensions"][LIMIT_BUFFER]()
            await _Session(socket, self, token, job).run(events.cursor(since))
        except WindlassError as fault:
            await _refuse(socket, fault)
        except WebSocketDisconnect:
            return

    def _check_room(self) -> None:
        if self._streams >= MOST_STREAMS:
            raise Busy(f"this server already has {MOST_STREAMS} open streams: poll the job instead")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._streams += 1
        if self._stop_task is None:
            self._stop_task = asyncio.create_task(self._wake_when_stopping())
        try:
            yield
        finally:
            self._streams -= 1
            if not self._streams:
                self._stop_task.cancel()
                self._stop_task = None

    async def _wake_when_stopping(self) -> None:
        """Streams that wait for events must notice that the server stops."""
        await self.stopping.wait()
        self._newsroom.wake()


def _match(request: Request) -> Match:
    """The match in the query, spelled as for a listing."""
    for name in ("limit", "after", "order"):
        if name in request.query_params:
            raise Invalid("a stream of events has no pages: leave it out", at=name)
    listing = _LISTING.build("-", {}, _LISTING.from_query(request.query_params.multi_items()), None)
    assert isinstance(listing, List)  # noqa: S101
    return listing.match


# WebSockets


class Hello(Struct, frozen=True, forbid_unknown_fields=True):
    """The first message, if the request has no Authorization header."""

    token: str
    since: str = ""
    """The id of the last event that the client has."""


class Control(Struct, frozen=True, forbid_unknown_fields=True):
    """A text to a job with a standard input: one of these, or none for the end of input."""

    input: str | None = None
    resize: tuple[Length, Length] | None = None
    """Rows and columns."""
    signal: SignalName | None = None


CONTROLS = '{"input": …}, {"resize": [ROWS, COLUMNS]}, {"signal": "INT"} or, for the end, {}'


class ClientMessage(Struct, frozen=True):
    """An event as a message."""

    event: str
    id: str
    data: Raw


class Refusal(Struct, frozen=True):
    """The data of a `refused` event: a message to the job that could not be sent."""

    message: int
    """Its number in this connection, from 1."""
    problem: Problem


class MessageCache:
    """Encodes messages. Followers of one job get the same ones, so each is encoded once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], tuple[object, str]] = {}

    def encode(self, name: str, event_id: str, data: object) -> str:
        key = (name, event_id, id(data))
        found = self._known.get(key)
        if found is not None and found[0] is data:
            return found[1]
        text = msgspec.json.encode(ClientMessage(name, event_id, Raw(msgspec.json.encode(data)))).decode()
        if len(self._known) >= MOST_CACHED:
            del self._known[next(iter(self._known))]
        self._known[key] = data, text
        return text


class SharedFrames:
    """Lets the followers of one job hold the same bytes: each reads its output for itself, and hundreds may be slow."""

    def __init__(self) -> None:
        self._known: dict[tuple[JobKey, str, int], bytes] = {}

    def share(self, job: Job, event_id: str, frame: bytes) -> bytes:
        """An equal frame that another follower got, if there is one."""
        key = (key_of(job), event_id, len(frame))
        found = self._known.get(key)
        if found == frame:
            return found
        if len(self._known) >= MOST_CACHED:
            del self._known[next(iter(self._known))]
        self._known[key] = frame
        return frame


class FrameCache:
    """Encodes events. Streams that take the same events get the same bytes: there may be thousands of them."""

    def __init__(self) -> None:
        self._last: dict[Callable[[Event], bytes], tuple[list[Event], bytes]] = {}

    def encode(self, write: Callable[[Event], bytes], some: list[Event]) -> bytes:
        known = self._last.get(write)
        if known is None or known[0] != some:
            known = self._last[write] = some, b"".join(map(write, some))
        return known[1]


async def _hello(socket: WebSocket) -> Hello:
    try:
        async with asyncio.timeout(TOKEN_WITHIN):
            text = await socket.receive_text()
        return msgspec.json.decode(text, type=Hello)
    except TimeoutError:
        raise Unauthenticated(f"no token came within {TOKEN_WITHIN:g} s", at="token") from None
    except (msgspec.MsgspecError, KeyError):
        raise Invalid('the first message must be {"token": …}, as text', at="token") from None


async def _refuse(socket: WebSocket, fault: WindlassError) -> None:
    if socket.client_state is WebSocketState.CONNECTING:
        response = formats.problem_response(fault.problem(), "json", formats.error_headers(fault))
        await socket.send_denial_response(response)
    else:
        await socket.close(REFUSED, str(fault)[:100])


class _Session:
    """One WebSocket: events to the client, messages to the job."""

    def __init__(self, socket: WebSocket, live: Live, token: str | None, job: Job) -> None:
        self._socket = socket
        self._live = live
        self._token = token
        self._job = job
        self._queue = SendQueue(self._send)

    async def run(self, place: EventCursor) -> None:
        """Until the job has ended, the client or the server stops, or the token is revoked."""
        receiving, sending = asyncio.create_task(self._receive()), asyncio.create_task(self._send_events(place))
        try:
            with self._live.token_watch.watch(self._socket, "read", self._token) as revoked:
                either: set[asyncio.Future[Any]] = {sending, revoked}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            code = sending.result() if sending.done() else REFUSED
            if code in (ENDED, GOING_AWAY):
                await self._queue.drain()
        finally:
            receiving.cancel()
            sending.cancel()
            await asyncio.wait({receiving, sending})
            self._queue.close()
        try:
            async with asyncio.timeout(CLOSE_WITHIN):
                await self._socket.close(code)
        except (RuntimeError, WebSocketDisconnect):
            pass
        except TimeoutError:  # a client that reads nothing would not read the close frame either
            self._socket.scope["extensions"][ABORT]()

    async def _send_events(self, place: EventCursor) -> int:
        """The close code at the end of the events."""
        queue = self._queue
        async with aclosing(self._live.follow(self._job, place)) as stream:
            async for news in stream:
                if news is not None:
                    self._put(*news)
                if queue.disconnected:
                    return REFUSED
                if queue.buffered > MOST_BUFFERED:
                    return TOO_SLOW
        return GOING_AWAY if self._live.stopping.is_set() else ENDED

    async def _receive(self) -> None:
        """Messages go to the job, one after the other; a disconnect ends the session."""
        number = 0
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            number += 1
            try:
                await self._live.send(self._socket, self._token, self._read(message))
            except WindlassError as fault:
                self._put_message("refused", "", Refusal(number, fault.problem()))
        self._queue.disconnected = True

    def _read(self, message: Mapping[str, Any]) -> Send | Resize | SendSignal:
        """Bytes are input. So is text, but where it goes to a standard input it says what it is."""
        id, text = self._job.id, message.get("text")
        if text is None:
            return Send(id=id, data=message.get("bytes") or b"")
        if self._job.stdin is None:
            return Send(id=id, data=text.encode())
        try:
            control = msgspec.json.decode(text, type=Control)
        except msgspec.MsgspecError as fault:
            raise Invalid(f"a text to this job is {CONTROLS}; bytes are its input: {fault}", at="message") from None
        if control.resize is not None:
            return Resize(id=id, rows=control.resize[0], columns=control.resize[1])
        if control.signal is not None:
            return SendSignal(id=id, signal=control.signal)
        return Send(id=id, data=(control.input or "").encode())

    def _put(self, event: Event, chunk: Chunk | None) -> None:
        if chunk is None or event.chunk is None:
            self._put_message(event.name, event.id, event.job or event.estimate)
        else:
            self._put_message(event.name, event.id, replace(event.chunk, text=None, base64=None, size=len(chunk.data)))
            self._queue.add(self._live.shared.share(self._job, event.id, chunk.data))

    def _put_message(self, name: str, event_id: str, data: object) -> None:
        self._queue.add(self._live.messages.encode(name, event_id, data))

    async def _send(self, frame: Frame) -> None:
        await (self._socket.send_text(frame) if isinstance(frame, str) else self._socket.send_bytes(frame))
