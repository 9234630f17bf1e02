"""What a connection is to be sent in one round of the event loop, in one write at the end of it.

uvicorn writes the head of an answer and its body one after the other, and a write is dear: it wakes whoever listens at
the other end. So where a whole crowd is answered in one round, nobody is woken before all answers are made. Knows bytes
and a transport, nothing else.
"""

import asyncio

MOST_HELD = 64 << 10
"""Bytes of one connection: beyond that its transport is told, so that it can say when its reader is too slow."""


class Joined(asyncio.Transport):
    """The way out for answers of one connection."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held: list[bytes | bytearray | memoryview] = []
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._held:
            self._loop.call_soon(self.let_go)
        self._held.append(data)
        self._size += len(data)
        if self._size > MOST_HELD:
            self.let_go()

    def close(self) -> None:
        self.let_go()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def let_go(self) -> None:
        """Send now what is held."""
        held, self._held, self._size = self._held, [], 0
        if held and not self._transport.is_closing():
            self._transport.write(b"".join(held))
