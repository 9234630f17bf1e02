"""The head of an answer and its body, which uvicorn writes one after the other, in one write.

A write to a connection is dear: it wakes whoever listens at the other end. Knows bytes and a transport, nothing else.
"""

import asyncio
from collections.abc import Callable


class Joined(asyncio.Transport):
    """The way out for answers of one connection: what was written first waits for what follows in the same round."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, close: Callable[[], None] | None = None
    ) -> None:
        """`close`: how the connection is closed after an answer; null = at once."""
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._close = close or transport.close
        self._held = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        else:
            self._held = bytes(data)
            self._loop.call_soon(self.let_go)  # the head of a stream: nobody knows when more comes

    def close(self) -> None:
        self.let_go()
        self._close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def let_go(self) -> None:
        """Send now what is held."""
        if self._held and not self._transport.is_closing():
            self._transport.write(self._held)
        self._held = b""
