"""Streams to clients that must keep up: a response without an end, and the queue of what waits to be sent.

Events are not held back for a slow client. When too much waits for one, the stream ends.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from windlass.server.requests import ABORT, LIMIT_BUFFER, disconnected

Frame = str | bytes

MOST_BUFFERED = 256 << 10
"""Bytes that may wait for a slow client."""

PIECE = 16 << 10
"""Bytes that are written at once: a connection holds a copy of what it writes, while what waits is shared."""

DRAIN_WITHIN = 5.0
"""Seconds to send what still waits at the end of a stream."""

UNCACHED = {"cache-control": "no-store", "x-accel-buffering": "no"}


class SendQueue:
    """Sends frames in order, at once if that needs no waiting."""

    def __init__(self, send: Callable[[Frame], Coroutine[Any, Any, None]]) -> None:
        self._send = send
        self._frames: deque[Frame] = deque()
        self._sending: asyncio.Task[None] | None = None
        self.buffered = 0
        """Bytes that are not sent yet."""
        self.disconnected = False

    def add(self, frame: Frame) -> None:
        self.buffered += len(frame)
        self._frames.append(frame)
        if self._sending is None:
            self._sending = start_now(self._send_all())
            if self._sending is not None:
                self._sending.add_done_callback(self._sent)

    def _sent(self, _: object) -> None:
        self._sending = None

    async def _send_all(self) -> None:
        try:
            while self._frames:
                frame = self._frames.popleft()
                await self._send(frame)
                self.buffered -= len(frame)
        except (WebSocketDisconnect, RuntimeError, OSError):
            self.disconnected = True

    async def drain(self) -> None:
        """Wait until everything is sent, but not longer than `DRAIN_WITHIN`."""
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=DRAIN_WITHIN)

    def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()


class Stream(Response):
    """Sends what a generator yields until it ends, the client disconnects, or too much waits for the client.

    Closes what was opened for it, whether or not it was ever started.
    """

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        media_type: str,
        opened: AsyncExitStack,
        revoked: "asyncio.Future[None]",
    ) -> None:
        """`revoked`: done when the token of the request is no longer valid."""
        super().__init__(media_type=media_type, headers=UNCACHED)
        del self.headers["content-length"]
        self._source = source
        self._opened = opened
        self._revoked = revoked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def put(data: Frame) -> None:
            for start in range(0, len(data), PIECE):
                piece = data[start : start + PIECE]
                await send({"type": "http.response.body", "body": piece, "more_body": True})

        extensions = scope.get("extensions", {})
        if LIMIT_BUFFER in extensions:
            extensions[LIMIT_BUFFER]()
        async with self._opened, aclosing(self._source):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            queue = SendQueue(put)
            sending, leaving = asyncio.create_task(self._send(queue)), asyncio.create_task(disconnected(receive))
            try:
                any_of: set[asyncio.Future[Any]] = {sending, leaving, self._revoked}
                await asyncio.wait(any_of, return_when=asyncio.FIRST_COMPLETED)
                if self._revoked.done() or (sending.done() and sending.result()):
                    await queue.drain()
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                elif sending.done() and ABORT in extensions:
                    extensions[ABORT]()
                    await leaving
            finally:
                sending.cancel()
                leaving.cancel()
                await asyncio.wait({sending, leaving})
                queue.close()

    async def _send(self, queue: SendQueue) -> bool:
        """Whether the source ended before too much waited."""
        async for data in self._source:
            queue.add(data)
            if queue.buffered > MOST_BUFFERED:
                return False
        return True


def stream_head(media_type: str) -> Response:
    """The response to HEAD."""
    response = Response(media_type=media_type, headers=UNCACHED)
    del response.headers["content-length"]
    return response


# Most sends need not wait for anything: only a coroutine that does becomes a task.


def start_now(work: Coroutine[Any, None, None]) -> "asyncio.Task[None] | None":
    """Run a coroutine up to its first wait; a task for the rest, null = it is done."""
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return asyncio.create_task(_finish(work, waits_for))


async def _finish(work: Coroutine[Any, None, None], waits_for: Any) -> None:
    await _Rest(work, waits_for)


class _Rest:
    """The rest of a coroutine that waits for something."""

    def __init__(self, work: Coroutine[Any, None, None], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, None, None]:
        try:
            yield self._waits_for
        except BaseException as fault:
            self._work.throw(fault)
            raise
        yield from self._work.__await__()
