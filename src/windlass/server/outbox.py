"""What waits to be sent to one who follows: nothing, as long as it keeps up.

News is not held back for a slow reader. Whoever fills an outbox looks at `waiting`, and lets go of a reader for whom
too much waits.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.websockets import WebSocketDisconnect

from windlass.server import eager

Frame = str | bytes

MOST_BUFFERED = 256 << 10
"""Bytes that may wait for a slow reader."""

LAST_WORDS = 5.0
"""Seconds for what still waits when there is no more to say."""


class Outbox:
    """Sends in order, here and now if that needs no waiting."""

    def __init__(self, send: Callable[[Frame], Coroutine[Any, Any, None]]) -> None:
        self._send = send
        self._frames: deque[Frame] = deque()
        self._sending: asyncio.Task[None] | None = None
        self.waiting = 0
        """Bytes that are not sent yet."""
        self.is_gone = False
        """Whether nobody reads any more."""

    def add(self, frame: Frame) -> None:
        self.waiting += len(frame)
        self._frames.append(frame)
        if self._sending is None:
            self._sending = eager.start(self._send_all())
            if self._sending is not None:
                self._sending.add_done_callback(self._rest)

    def _rest(self, _: object) -> None:
        self._sending = None

    async def _send_all(self) -> None:
        try:
            while self._frames:
                frame = self._frames.popleft()
                await self._send(frame)
                self.waiting -= len(frame)
        except (WebSocketDisconnect, RuntimeError, OSError):
            self.is_gone = True

    async def empty(self) -> None:
        """Until all is sent, but not for ever."""
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=LAST_WORDS)

    def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
