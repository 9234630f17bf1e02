"""Connections that go only to addresses that are allowed.

Apart from `network`, since the HTTP client takes long to load and most workers send no job anywhere.
"""

from collections.abc import Iterable

import httpcore2

from windlass.model.errors import Denied
from windlass.worker.network import Network


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Resolves a name once, connects to that address if it is allowed, and to no other."""

    def __init__(self, network: Network, *, encrypted: bool) -> None:
        self._network = network
        self._encrypted = encrypted
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - so it is declared
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        found = await self._network.resolve(host, port)
        addresses = self._network.allowed.check(host, port, found, encrypted=self._encrypted)
        for address in addresses[:-1]:
            try:
                return await self._inner.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except httpcore2.ConnectError:
                continue
        return await self._inner.connect_tcp(str(addresses[-1]), port, timeout, local_address, socket_options)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,  # noqa: ARG002
    ) -> httpcore2.AsyncNetworkStream:
        raise Denied(f"jobs are not sent to {path}", at="url")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)
