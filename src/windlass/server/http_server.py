"""The HTTP server: uvicorn, with bounds of our own on heads, unread bodies and stalled readers.

uvicorn's parser has none of these bounds. Knows connections and HTTP as bytes; knows nothing of routes. The program
that runs the server handles the signals.
"""

import asyncio
import errno
import logging
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from socket import SO_LINGER, SO_SNDBUF, SOL_SOCKET

import uvicorn
from msgspec import Struct
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from windlass.local_token import LOOPBACK
from windlass.model.errors import Conflict, Invalid
from windlass.server.requests import ABORT, BODY_COMPLETE, LIMIT_BUFFER

MOST_HEAD = 16 << 10
"""Bytes of a request's line and headers."""

HEAD_WITHIN = 10.0
"""Seconds in which they must arrive."""

DISCARD_FOR, MOST_DISCARDED = 2.0, 16 << 20
"""Seconds, and bytes, for which a client may go on sending a body after the response. A client that sends all of its
body first could not read otherwise why it was refused.
"""

STREAM_BUFFER = 512 << 10
"""Bytes that the kernel holds for the client of a stream, as far as it allows; otherwise it may hold 4 MiB and more.
"""

STALLED_FOR = 20.0
"""Seconds after which a connection is reset whose client has read nothing of what was sent."""

LOG_EVERY = 60.0
"""Seconds in which the same line is logged once."""

SWITCHED = 101

TWO_HOSTS = b"400 Bad Request"
UNKNOWN_CODING = b"501 Not Implemented"
TOO_LARGE = b"431 Request Header Fields Too Large"
TOO_SLOW = b"408 Request Timeout"

_RESET = struct.pack("ii", 1, 0)


# The server


class ListenAddress(Struct, frozen=True, kw_only=True):
    """Where a server listens."""

    host: str = "127.0.0.1"
    port: int = 7717
    socket: str = ""
    """The path of a unix socket, instead of host and port."""

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return bool(self.socket) or self.host in LOOPBACK

    @property
    def url(self) -> str:
        if self.socket:
            return f"http+unix://{self.socket}"
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def check_free(where: ListenAddress) -> None:
    """Raise if another program listens there, before anything is started: uvicorn would find out last."""
    if where.socket or not where.port:
        return
    try:
        found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    except OSError as fault:
        raise Invalid(f"{where.host!r} is not an address of this machine: {fault}", at="host") from None
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(address)
            except OSError as fault:
                if fault.errno == errno.EADDRINUSE:
                    detail = f"another program listens at {where.url}: stop it, or choose another port with --port"
                    raise Conflict(detail) from None


class Server(uvicorn.Server):
    """A uvicorn server that installs no signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class OncePerMinute(logging.Filter):
    """Passes one line of each kind a minute: malformed requests can come by the million."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}
        self._suppressed: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = str(record.msg)
        if record.created - self._logged_at.get(kind, -LOG_EVERY) < LOG_EVERY:
            self._suppressed[kind] += 1
            return False
        if count := self._suppressed.pop(kind, 0):
            record.msg, record.args = f"{record.getMessage().rstrip()} ({count} more of these since the last line)", ()
        self._logged_at[kind] = record.created
        return True


_once_per_minute = OncePerMinute()


def server(app: Starlette, where: ListenAddress) -> Server:
    logging.getLogger("uvicorn.error").addFilter(_once_per_minute)
    return Server(
        uvicorn.Config(
            app,
            host=where.host,
            port=where.port,
            uds=where.socket or None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=HttpProtocol,
            ws=WebSocketProtocol,
            timeout_graceful_shutdown=5,
            ws_per_message_deflate=False,
            lifespan="off",
        )
    )


# Writing


class JoinedWrites(asyncio.Transport):
    """Sends the head and the body of a response, which uvicorn writes one after the other, in one system call.

    The first write is held until the next one, or until the end of this round of the event loop.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, close: Callable[[], None] | None = None
    ) -> None:
        """`close`: closes the connection after a response; null = at once."""
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
            self._loop.call_soon(self.flush)  # the head of a stream must not wait for its first event

    def close(self) -> None:
        self.flush()
        self._close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def flush(self) -> None:
        if self._held and not self._transport.is_closing():
            self._transport.write(self._held)
        self._held = b""


class StallTimer:
    """Resets a connection whose client reads nothing for a while.

    Otherwise it would stay open with everything that waits for it: a transport that is closed sends its buffer first.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        # Writers wait until everything is sent: at most one piece is buffered, and `pause_writing` is called for it.
        transport.set_write_buffer_limits(high=0)

    def start(self) -> None:
        """Something is buffered."""
        if self._timer is None:
            self._check_later()

    def stop(self) -> None:
        """Nothing is buffered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_later(self) -> None:
        buffered = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(STALLED_FOR, self._check, buffered)

    def _check(self, before: int) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() >= before:
            reset(self._transport)
        else:
            self._check_later()


def reset(transport: asyncio.Transport) -> None:
    """Drop a connection at once, with everything that the kernel has buffered for it."""
    _set_option(transport, SO_LINGER, _RESET)
    transport.abort()


def _set_option(transport: asyncio.Transport, option: int, value: int | bytes) -> None:
    link = transport.get_extra_info("socket")
    if link is not None:
        with suppress(OSError, ValueError):  # it is closed already; uvloop raises the latter
            link.setsockopt(SOL_SOCKET, option, value)


def _extensions(transport: asyncio.Transport) -> dict[str, Callable[[], None]]:
    """What streams may do with their connection."""
    return {ABORT: partial(reset, transport), LIMIT_BUFFER: partial(_set_option, transport, SO_SNDBUF, STREAM_BUFFER)}


class StallGuard(asyncio.Protocol):
    """A connection that is reset when its client stops reading."""

    _stall_timer: StallTimer

    def connection_lost(self, exc: Exception | None) -> None:
        self._stall_timer.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall_timer.stop()


# Reading


class HttpProtocol(StallGuard, HttpToolsProtocol):
    """A connection with bounds on the size and time of each head."""

    _head = 0
    """Bytes of the head that is being read, and perhaps of what came with its end."""
    _in_head = True
    _refused = False
    _discarded: int | None = None
    """Bytes of a body that came after the response; null = none is expected."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._responses = JoinedWrites(transport, self.loop, self._close)
        self._stall_timer = StallTimer(transport, self.loop)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._discarded is not None:
            self._discarded += len(data)
            if self._discarded > MOST_DISCARDED:
                reset(self.transport)
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
        if self._head > MOST_HEAD and self._head_size() > MOST_HEAD:
            self._refuse(TOO_LARGE)
            return
        if (status := _ambiguous(self.headers)) is not None:
            self._refuse(status)
            return
        super().on_headers_complete()
        if self.cycle is not None:  # else it becomes a WebSocket
            self.cycle.transport = self._responses
        self.scope["extensions"] = _extensions(self.transport)  # type: ignore[typeddict-item] # our own

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            self.scope[BODY_COMPLETE] = True  # type: ignore[literal-required]
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._responses.flush()
        super().send_400_response(msg)

    def shutdown(self) -> None:
        self._responses.flush()
        super().shutdown()

    def handle_websocket_upgrade(self) -> None:
        self._stall_timer.stop()
        if not self._refused:
            super().handle_websocket_upgrade()

    def _close(self) -> None:
        """After a response."""
        if self.cycle is None or BODY_COMPLETE in self.cycle.scope:
            self.transport.close()
        else:
            self._discard_rest()

    def _discard_rest(self) -> None:
        """The body has not arrived completely: discard the rest of it for a moment, then drop the connection."""
        if self._discarded is not None or self.transport.is_closing():
            return
        self._refused, self._discarded = True, 0
        self._stop_timer()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(DISCARD_FOR, reset, self.transport)

    def _head_size(self) -> int:
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
        if self.cycle is not None and not self.cycle.response_complete:  # that response must not be cut into
            self._responses.close()
            return
        self._responses.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self._responses.flush()
        self._discard_rest()


class WebSocketProtocol(StallGuard, WebSocketsSansIOProtocol):
    """A WebSocket that is reset when its client stops reading."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._stall_timer = StallTimer(self.transport, self.loop)

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == SWITCHED:  # else the handshake failed
            self.scope["extensions"] |= _extensions(self.transport)  # type: ignore[arg-type] # our own


def _ambiguous(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    """The status for a head that a proxy might read differently than we do; null = it is unambiguous."""
    if sum(name == b"host" for name, _ in headers) > 1:
        return TWO_HOSTS
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings and b",".join(codings).strip().lower() != b"chunked":
        return UNKNOWN_CODING
    return None
