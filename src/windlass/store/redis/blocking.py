"""A channel for callers without an event loop: it waits in the socket itself.

`ask` is a coroutine like that of `Channel`, but waits for nothing outside itself: everything above it can be run to its
end without a loop. It pauses once, between question and answer, so that a caller can do something else meanwhile.
Any number of threads may ask at once: each takes a connection of its own, and leaves it for the next.
"""

import select
import socket
from collections.abc import Generator
from typing import Any

import hiredis

from windlass.model.errors import Unavailable
from windlass.store.redis.channel import Address, Argument

READ_AT_ONCE = 1 << 16


class BlockingChannel:
    """Connections to one server that are used one question at a time."""

    def __init__(self, address: Address, answer_within: float) -> None:
        self._address = address
        self._answer_within = answer_within
        self._idle: list[_Line] = []

    async def ask(self, *command: Argument) -> Any:
        """The reply to a command; an error reply is raised as `hiredis.ReplyError`."""
        line = self._take()
        try:
            line.send(command)
            await _ASKED
            reply = line.receive()
        except BaseException as fault:
            line.close()  # its reply may still come: nobody else may read it
            if isinstance(fault, OSError):
                await self.close()  # what has ended one connection has likely ended those that rest
                raise Unavailable(f"the store does not answer: {fault}") from fault
            raise
        self._idle.append(line)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def _take(self) -> "_Line":
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return self._opened()
            if not line.stale:
                return line
            line.close()

    def _opened(self) -> "_Line":
        to = self._address
        try:
            line = _Line(_connected(to, self._answer_within))
        except OSError as fault:
            raise Unavailable(f"the store does not answer: {fault}") from fault
        for greeting in to.greetings():
            if isinstance(reply := line.ask(greeting), hiredis.ReplyError):
                line.close()
                raise Unavailable(f"the store does not let us in: {reply}")
        return line

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for line in idle:
            line.close()


class _Pause:
    """Waits for nothing: gives whoever drives the coroutine a moment."""

    def __await__(self) -> Generator[None, None, None]:
        yield


_ASKED = _Pause()


def _connected(to: Address, within: float) -> socket.socket:
    if to.path is not None:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(within)
        link.connect(to.path)
        return link
    link = socket.create_connection((to.host, to.port), within)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return to.tls.wrap_socket(link, server_hostname=to.host) if to.tls else link


class _Line:
    """One connection."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._replies = hiredis.Reader()

    @property
    def stale(self) -> bool:
        """Whether the server has closed it while it rested: nothing else comes unasked."""
        return bool(select.select([self._link], [], [], 0)[0])

    def ask(self, command: tuple[Argument, ...]) -> Any:
        self.send(command)
        return self.receive()

    def send(self, command: tuple[Argument, ...]) -> None:
        self._link.sendall(hiredis.pack_command(command))  # type: ignore[arg-type] # its stub knows only pairs

    def receive(self) -> Any:
        while (reply := self._replies.gets()) is False:
            data = self._link.recv(READ_AT_ONCE)
            if not data:
                raise ConnectionResetError("the connection was closed")
            self._replies.feed(data)
        return reply

    def close(self) -> None:
        self._link.close()
