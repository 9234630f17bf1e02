"""One conversation over a WebSocket: who asks, then the events of a job as messages, each of output with its bytes.

The token comes in a header or in the first message, never in the address. News is not held back for a slow reader: when
too much waits for it, it is dropped, and may come back.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Protocol

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from windlass.model import events
from windlass.model.errors import Invalid, Unauthenticated, WindlassError
from windlass.model.events import Event, News, Place
from windlass.model.job import Chunk, Job
from windlass.server import problems
from windlass.server.gate import check_origin

HELLO_WITHIN = 5.0
"""Seconds in which the first message must come."""

MOST_BUFFERED = 1 << 20
"""Bytes that may wait for a slow reader."""

LAST_WORDS = 5.0
"""Seconds for what still waits when the job has ended."""

ENDED, GOING_AWAY, REFUSED, TOO_SLOW = 1000, 1001, 1008, 1013
"""Why a conversation is over."""


class Hello(Struct, frozen=True, forbid_unknown_fields=True):
    """The first message, where the request carries no token."""

    token: str
    since: str = ""
    """The id of the last event that is known already."""


class Message(Struct, frozen=True):
    """An event as a message."""

    event: str
    id: str
    data: Raw


class Streams(Protocol):
    """Finds jobs and follows them."""

    stopping: asyncio.Event

    async def find(self, connection: HTTPConnection, token: str | None = None) -> tuple[str, Job]: ...

    def follow(self, tenant: str, job: Job, place: Place) -> AsyncGenerator[News | None, None]: ...


async def converse(socket: WebSocket, streams: Streams) -> None:
    try:
        check_origin(socket)
        since = socket.headers.get("last-event-id", "")
        if "authorization" in socket.headers:
            tenant, job = await streams.find(socket)
            await socket.accept()
        else:
            await socket.accept()
            hello = await _hello(socket)
            since = hello.since
            tenant, job = await streams.find(socket, hello.token)
        await _tell(socket, streams, tenant, job, events.place(since))
    except WindlassError as fault:
        await _refuse(socket, fault)
    except WebSocketDisconnect:
        return


async def _hello(socket: WebSocket) -> Hello:
    try:
        async with asyncio.timeout(HELLO_WITHIN):
            said = await socket.receive_text()
        return msgspec.json.decode(said, type=Hello)
    except TimeoutError:
        raise Unauthenticated(f"no token came within {HELLO_WITHIN:g} s", at="token") from None
    except (msgspec.MsgspecError, KeyError):
        raise Invalid('the first message must be {"token": …}, as text', at="token") from None


async def _refuse(socket: WebSocket, fault: WindlassError) -> None:
    if socket.client_state is WebSocketState.CONNECTING:
        headers = problems.headers_for(fault)
        await socket.send_denial_response(problems.response(fault.problem(), "json", headers))
    else:
        await socket.close(REFUSED, str(fault)[:100])


async def _tell(socket: WebSocket, streams: Streams, tenant: str, job: Job, place: Place) -> None:
    outbox = _Outbox(socket)
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(outbox.send())
        hearing = group.create_task(outbox.until_gone())
        code = await _fill(outbox, streams, tenant, job, place)
        if code in (ENDED, GOING_AWAY):
            outbox.end()
            await asyncio.wait({sending}, timeout=LAST_WORDS)
        sending.cancel()
        hearing.cancel()
    with suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
        async with asyncio.timeout(1):
            await socket.close(code)


async def _fill(outbox: "_Outbox", streams: Streams, tenant: str, job: Job, place: Place) -> int:
    """Why there is no more to say."""
    async with aclosing(streams.follow(tenant, job, place)) as stream:
        async for news in stream:
            if news is not None:
                outbox.put(*news)
            if outbox.is_gone:
                return REFUSED
            if outbox.waiting > MOST_BUFFERED:
                return TOO_SLOW
    return GOING_AWAY if streams.stopping.is_set() else ENDED


class _Outbox:
    """What waits to be sent."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._frames: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self.waiting = 0
        """Bytes of it."""
        self.is_gone = False

    def put(self, event: Event, chunk: Chunk | None) -> None:
        told: object = event.job or event.estimate
        if chunk is not None and event.chunk is not None:
            told = replace(event.chunk, text=None, base64=None, size=len(chunk.data))
        message = Message(event.name, event.id, Raw(msgspec.json.encode(told)))
        self._add(msgspec.json.encode(message).decode())
        if chunk is not None:
            self._add(chunk.data)

    def end(self) -> None:
        self._frames.put_nowait(None)

    def _add(self, frame: str | bytes) -> None:
        self.waiting += len(frame)
        self._frames.put_nowait(frame)

    async def send(self) -> None:
        try:
            while (frame := await self._frames.get()) is not None:
                await (self._socket.send_text(frame) if isinstance(frame, str) else self._socket.send_bytes(frame))
                self.waiting -= len(frame)
        except (WebSocketDisconnect, RuntimeError):
            self.is_gone = True

    async def until_gone(self) -> None:
        """Whatever is said after the first message is not listened to, but that somebody leaves is."""
        while (await self._socket.receive())["type"] != "websocket.disconnect":
            pass
        self.is_gone = True
