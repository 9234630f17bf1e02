"""One conversation over a WebSocket: who asks, then the events of a job as messages, each of output with its bytes.

The token comes in a header or in the first message, never in the address. Whatever is said after that goes to the job.
News is not held back for a slow reader: when too much waits for it, it is dropped, and may come back.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from windlass.model import events
from windlass.model.errors import Invalid, Problem, Unauthenticated, WindlassError
from windlass.model.events import Event, News, Place
from windlass.model.job import Chunk, Job
from windlass.server import problems
from windlass.server.gate import check_origin
from windlass.server.lasting import Lasting
from windlass.server.outbox import MOST_BUFFERED, Frame, Outbox
from windlass.server.streams import ABORT

HELLO_WITHIN = 5.0
"""Seconds in which the first message must come."""

GOODBYE_WITHIN = 1.0
"""Seconds in which the last message must be on its way."""

MOST_KNOWN = 256
"""Messages that are remembered in case that others are told the same."""

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


class Refusal(Struct, frozen=True):
    """What became of a message to the job that could not be sent."""

    message: int
    """Which one of this conversation, from 1."""
    problem: Problem


class Streams(Protocol):
    """Finds jobs and follows them."""

    stopping: asyncio.Event
    lasting: Lasting
    wording: "Wording"

    async def find(self, connection: HTTPConnection, token: str | None = None) -> Job: ...

    async def send(self, connection: HTTPConnection, token: str | None, id: str, data: bytes) -> None: ...

    def follow(self, job: Job, place: Place) -> AsyncGenerator[News | None, None]: ...


async def converse(socket: WebSocket, streams: Streams) -> None:
    try:
        check_origin(socket)
        since, token = socket.headers.get("last-event-id", ""), None
        if "authorization" in socket.headers:
            job = await streams.find(socket)
            await socket.accept()
        else:
            await socket.accept()
            hello = await _hello(socket)
            since, token = hello.since, hello.token
            job = await streams.find(socket, token)
        await _Talk(socket, streams, token, job).hold(events.place(since))
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


class _Talk:
    """What is said, both ways."""

    def __init__(self, socket: WebSocket, streams: Streams, token: str | None, job: Job) -> None:
        self._socket = socket
        self._streams = streams
        self._token = token
        self._job = job
        self._outbox = Outbox(self._send)

    async def hold(self, place: Place) -> None:
        """Until all is said."""
        hearing, telling = asyncio.create_task(self._hear()), asyncio.create_task(self._tell(place))
        try:
            with self._streams.lasting.opened(self._socket, "read", self._token) as ended:
                either: set[asyncio.Future[Any]] = {telling, ended}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            code = telling.result() if telling.done() else REFUSED
            if code in (ENDED, GOING_AWAY):
                await self._outbox.empty()
        finally:
            hearing.cancel()
            telling.cancel()
            await asyncio.wait({hearing, telling})
            self._outbox.close()
        try:
            async with asyncio.timeout(GOODBYE_WITHIN):
                await self._socket.close(code)
        except (RuntimeError, WebSocketDisconnect):
            pass
        except TimeoutError:  # a client that reads nothing would not read the close frame either
            self._socket.scope["extensions"][ABORT]()

    async def _tell(self, place: Place) -> int:
        """Why there is no more to say."""
        outbox = self._outbox
        async with aclosing(self._streams.follow(self._job, place)) as stream:
            async for news in stream:
                if news is not None:
                    self._put(*news)
                if outbox.is_gone:
                    return REFUSED
                if outbox.waiting > MOST_BUFFERED:
                    return TOO_SLOW
        return GOING_AWAY if self._streams.stopping.is_set() else ENDED

    async def _hear(self) -> None:
        """What is said goes to the job, one message after the other; that somebody leaves is heard too."""
        number = 0
        while (heard := await self._socket.receive())["type"] != "websocket.disconnect":
            number += 1
            text = heard.get("text")
            try:
                data = (heard.get("bytes") or b"") if text is None else text.encode()
                await self._streams.send(self._socket, self._token, self._job.id, data)
            except WindlassError as fault:
                self._say("refused", "", Refusal(number, fault.problem()))
        self._outbox.is_gone = True

    def _put(self, event: Event, chunk: Chunk | None) -> None:
        if chunk is None or event.chunk is None:
            self._say(event.name, event.id, event.job or event.estimate)
        else:
            self._say(event.name, event.id, replace(event.chunk, text=None, base64=None, size=len(chunk.data)))
            self._outbox.add(chunk.data)

    def _say(self, name: str, place: str, told: object) -> None:
        self._outbox.add(self._streams.wording.of(name, place, told))

    async def _send(self, frame: Frame) -> None:
        await (self._socket.send_text(frame) if isinstance(frame, str) else self._socket.send_bytes(frame))


class Wording:
    """Messages as they are sent. Those who follow one job are told the same, so it is put into words once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], tuple[object, str]] = {}

    def of(self, name: str, place: str, told: object) -> str:
        key = (name, place, id(told))
        found = self._known.get(key)
        if found is not None and found[0] is told:
            return found[1]
        text = msgspec.json.encode(Message(name, place, Raw(msgspec.json.encode(told)))).decode()
        if len(self._known) >= MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = told, text
        return text
