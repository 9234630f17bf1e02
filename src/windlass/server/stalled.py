"""Readers that take nothing of what they are sent: cut off after a while, whatever they are sent.

Without it such a connection stays for good, with all that waits for it: a transport that is closed first sends what it
has. Knows a transport, nothing of HTTP.
"""

import asyncio
import struct
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET

STALLED_FOR = 20.0
"""Seconds after which a reader that has taken nothing is cut off."""

_AT_ONCE = struct.pack("ii", 1, 0)


class Stalled:
    """Looks after one connection while something waits to be sent on it."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        # A writer waits until all is sent: at most one piece waits, and we notice that it does.
        transport.set_write_buffer_limits(high=0)

    def begin(self) -> None:
        """Something waits."""
        if self._timer is None:
            self._look_later()

    def end(self) -> None:
        """Nothing waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        waiting = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(STALLED_FOR, self._look, waiting)

    def _look(self, before: int) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() >= before:
            cut_off(self._transport)
        else:
            self._look_later()


def cut_off(transport: asyncio.Transport) -> None:
    """End a connection here and now: what waits in the system for a reader who does not read goes with it."""
    link = transport.get_extra_info("socket")
    if link is not None:
        with suppress(OSError):
            link.setsockopt(SOL_SOCKET, SO_LINGER, _AT_ONCE)
    transport.abort()
