"""The head of a request: how large it may be, and how long it may take. And the rest of a body that nobody reads.

uvicorn's parser has no bound of its own for any of these. Knows HTTP as bytes; knows nothing of what is asked.
"""

import asyncio
from functools import partial

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from windlass.server.joining import Joined
from windlass.server.stalled import Stalled, cut_off
from windlass.server.streams import ABORT

MOST_HEAD = 16 << 10
"""Bytes of a request's line and headers."""

HEAD_WITHIN = 10.0
"""Seconds in which they must have arrived."""

SWITCHED = 101

WHOLE = "windlass.whole"
"""Set in the scope of a request whose body has arrived: nobody need wait for it."""

LINGER, MOST_LINGERED = 2.0, 16 << 20
"""Seconds, and bytes, for which a client may go on sending a body after the answer: one that sends all of it first
could not read otherwise why it was refused.
"""

TWO_HOSTS = b"400 Bad Request"
UNKNOWN_CODING = b"501 Not Implemented"
TOO_LARGE = b"431 Request Header Fields Too Large"
TOO_SLOW = b"408 Request Timeout"


class Guarded(HttpToolsProtocol):
    """A connection whose requests begin in time, and briefly."""

    _head = 0
    """Bytes of the head that is being read, and perhaps of what came with its end."""
    _in_head = True
    _refused = False
    _lingered: int | None = None
    """Bytes of a body that came after the answer; null = there is none of that kind."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._answers = Joined(transport, self.loop, self._close)
        self._stalled = Stalled(transport, self.loop)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stalled.end()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled.end()

    def data_received(self, data: bytes) -> None:
        if self._lingered is not None:
            self._lingered += len(data)
            if self._lingered > MOST_LINGERED:
                cut_off(self.transport)
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
        if (status := _ambiguous(self.headers)) is not None:
            self._refuse(status)
            return
        super().on_headers_complete()
        if self.cycle is not None:  # else it is to become a WebSocket
            self.cycle.transport = self._answers
        self.scope["extensions"] = {ABORT: partial(cut_off, self.transport)}  # type: ignore[dict-item] # one of our own

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

    def handle_websocket_upgrade(self) -> None:
        self._stalled.end()
        if not self._refused:
            super().handle_websocket_upgrade()

    def _close(self) -> None:
        """After an answer."""
        if self.cycle is None or WHOLE in self.cycle.scope:
            self.transport.close()
        else:
            self._linger()

    def _linger(self) -> None:
        """The request is not whole yet: what is left of it is thrown away, for a moment."""
        if self._lingered is not None or self.transport.is_closing():
            return
        self._refused, self._lingered = True, 0
        self._stop_timer()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER, cut_off, self.transport)

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
        if self.cycle is not None and not self.cycle.response_complete:  # that answer must not be cut into
            self._answers.close()
            return
        self._answers.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self._answers.let_go()
        self._linger()


class GuardedSocket(WebSocketsSansIOProtocol):
    """A WebSocket whose reader reads."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._stalled = Stalled(self.transport, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stalled.end()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled.end()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == SWITCHED:  # else there is nobody to talk to
            self.scope["extensions"][ABORT] = partial(cut_off, self.transport)  # type: ignore[assignment]


def _ambiguous(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    """How a head is refused that others on the way may read otherwise than we do; null = it is not."""
    if sum(name == b"host" for name, _ in headers) > 1:
        return TWO_HOSTS
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings and b",".join(codings).strip().lower() != b"chunked":
        return UNKNOWN_CODING
    return None
