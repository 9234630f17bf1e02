"""The HTTP server itself, as a part of a larger program: whoever runs it owns the signals."""

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from msgspec import Struct
from starlette.applications import Starlette

from windlass.local import LOOPBACK
from windlass.server.heads import Guarded


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


def server(app: Starlette, where: Listening) -> Server:
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
            timeout_graceful_shutdown=5,
            ws_per_message_deflate=False,
            lifespan="off",
        )
    )
