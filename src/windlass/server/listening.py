"""The HTTP server itself, as a part of a larger program: whoever runs it owns the signals."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from msgspec import Struct
from starlette.applications import Starlette

from windlass.local import LOOPBACK
from windlass.server.heads import Guarded, GuardedSocket


class Listening(Struct, frozen=True, kw_only=True):
    """Where a server listens."""

    host: str = "127.0.0.1"
    port: int = 7717
    socket: str = ""
    """The path of a unix socket, in the place of host and port."""

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return bool(self.socket) or self.host in LOOPBACK

    @property
    def address(self) -> str:
        if self.socket:
            return f"http+unix://{self.socket}"
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


SELDOM = 60.0
"""Seconds in which one and the same line is written once, however often there is a reason for it."""


class Seldom(logging.Filter):
    """Lets a line of each kind through now and then: anybody can send requests that are no HTTP, by the million."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = str(record.msg)
        if record.created - self._said.get(kind, -SELDOM) < SELDOM:
            self._unsaid[kind] += 1
            return False
        if unsaid := self._unsaid.pop(kind, 0):
            record.msg, record.args = f"{record.getMessage().rstrip()} ({unsaid} more of these since the last line)", ()
        self._said[kind] = record.created
        return True


_seldom = Seldom()


def server(app: Starlette, where: Listening) -> Server:
    logging.getLogger("uvicorn.error").addFilter(_seldom)
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
            http=Guarded,
            ws=GuardedSocket,
            timeout_graceful_shutdown=5,
            ws_per_message_deflate=False,
            lifespan="off",
        )
    )
