"""The head of a request: how large it may be, and how long it may take.

uvicorn's parser has no bound of its own for either. Knows HTTP as bytes; knows nothing of what is asked.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from windlass.server.joining import Joined
from windlass.server.streams import ABORT

MOST_HEAD = 16 << 10
"""Bytes of a request's line and headers."""

HEAD_WITHIN = 10.0
"""Seconds in which they must have arrived."""

WHOLE = "windlass.whole"
"""Set in the scope of a request whose body has arrived: nobody need wait for it."""

TOO_LARGE = b"431 Request Header Fields Too Large"
TOO_SLOW = b"408 Request Timeout"


class Guarded(HttpToolsProtocol):
    """A connection whose requests begin in time, and briefly."""

    _head = 0
    """Bytes of the head that is being read, and perhaps of what came with its end."""
    _in_head = True
    _refused = False
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._answers = Joined(transport, self.loop)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._head += len(data)
        super().data_received(data)
        if not self._in_head:
            self._head = 0
        elif self._head > MOST_HEAD and not self._refused:
            self._refuse(TOO_LARGE)
        elif self._timer is None and not self._refused:
            self._start_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        if self._head > MOST_HEAD and self._size() > MOST_HEAD:
            self._refuse(TOO_LARGE)
            return
        super().on_headers_complete()
        if self.cycle is not None:  # else it is to become a WebSocket
            self.cycle.transport = self._answers
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item] # one of our own

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            self.scope[WHOLE] = True  # type: ignore[literal-required]
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._answers.let_go()
        super().send_400_response(msg)

    def shutdown(self) -> None:
        self._answers.let_go()
        super().shutdown()

    def _size(self) -> int:
        """Bytes of a head that has been read."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEAD_WITHIN, self._refuse, TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: bytes) -> None:
        self._refused = True
        self._stop_timer()
        if self.cycle is None or self.cycle.response_complete:  # else that answer must not be cut into
            self._answers.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self._answers.close()
