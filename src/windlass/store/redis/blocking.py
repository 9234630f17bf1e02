"""A channel for callers without an event loop: it waits in the socket itself.

`ask` is a coroutine like that of `Channel`, but waits for nothing outside itself: everything above it can be run to its
end without a loop. It pauses once, between question and answer, so that a caller can do something else meanwhile.
Any number of threads may ask at once: each takes a connection of its own, and leaves it for the next.
"""

import os
import select
import socket
import struct
import time
from collections.abc import Generator, Sequence
from typing import Any

import hiredis

from windlass.model.errors import Unavailable
from windlass.store import machine
from windlass.store.redis.address import Address, Argument
from windlass.store.redis.channel import check_welcome, unreachable
from windlass.store.redis.sentinels import ANSWERS_WITHIN, Place, Sentinels, is_elsewhere

READ_AT_ONCE = 1 << 16

AWAKE = 0.05
"""Seconds after an answer for which a connection is taken to be there without a look."""

_now = machine.monotonic

_TIMEVAL = struct.Struct("@ll")


class BlockingChannel:
    """Connections to one server that are used one question at a time."""

    def __init__(self, address: Address, answer_within: float, sentinels: Sentinels | None = None) -> None:
        self._address = address
        self._answer_within = answer_within
        self._sentinels = sentinels
        self._idle: list[_Line] = []
        self._pid = os.getpid()

    async def ask(self, *command: Argument) -> Any:
        """The reply to a command; an error reply is raised as `hiredis.ReplyError`."""
        return (await self._ask_all([command]))[0]

    async def ask_surely(self, command: Sequence[Argument], then: Sequence[Sequence[Argument]]) -> tuple[Any, Any]:
        """The reply to a command, and that to the last of what is asked behind it on the same connection."""
        replies = await self._ask_all([command, *then])
        return replies[0], replies[-1]

    def ask_at_once(self, packed: bytes) -> Any:
        """The reply to a command that is spelled out already, be it an error; null = there is something to do first."""
        if self._sentinels is not None and self._sentinels.will_look(_now()):
            return None
        line = self._rested(trusting=True)
        if line is None:
            return None
        try:
            line.send_packed(packed)
            reply = line.receive()
        except BaseException as fault:
            self._lose(line, fault)
            raise
        self._idle.append(line)
        return reply

    async def _ask_all(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        if self._sentinels is not None and self._sentinels.is_time_to_look(_now()):
            await self._look(self._sentinels)
        line = await self._take()
        try:
            for command in commands:
                line.send(tuple(command))
            await _ASKED
            reply, *more = [line.receive() for _ in commands]
        except BaseException as fault:
            self._lose(line, fault)
            raise
        if not isinstance(reply, hiredis.ReplyError):
            self._idle.append(line)
            return [reply, *more]
        if self._sentinels is not None and is_elsewhere(reply):
            self._sentinels.missed()
            line.close()
            await self.close()
        else:
            self._idle.append(line)
        raise reply

    async def _look(self, sentinels: Sentinels) -> None:
        """Leave a server that is no longer the master, though it may not know yet."""
        if self._idle and await sentinels.has_moved(_ask_once):
            await self.close()

    def _lose(self, line: "_Line", fault: BaseException) -> None:
        line.close()  # its reply may still come: nobody else may read it
        if isinstance(fault, OSError):
            self._close_idle()  # what has ended one connection has likely ended those that rest
            raise Unavailable(f"the store does not answer: {fault}") from fault

    async def _take(self) -> "_Line":
        return self._rested() or await self._opened()

    def _rested(self, *, trusting: bool = False) -> "_Line | None":
        """A connection that rests here and still leads where it should. `trusting`: whoever asks may ask again."""
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return None
            if ((trusting and _now() < line.awake_until) or not (line.stale or self._is_inherited())) and (
                self._sentinels is None or line.place == self._sentinels.place
            ):
                return line
            line.close()

    def _is_inherited(self) -> bool:
        """Whether what rests here is another process's: not every program that forks tells Python of it."""
        if self._pid == os.getpid():
            return False
        self._pid = os.getpid()
        self._close_idle()
        return True

    async def _opened(self) -> "_Line":
        if self._sentinels is None:
            return _opened(self._address, self._answer_within)
        _rest(self._sentinels.pause())
        try:
            host, port = await self._sentinels.master(_ask_once)
            line = _opened(self._address._replace(host=host, port=port), self._answer_within)
        except Unavailable:
            self._sentinels.missed()
            raise
        self._sentinels.found((host, port), _now())
        line.place = (host, port)
        return line

    async def close(self) -> None:
        self._close_idle()

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for line in idle:
            line.close()


class _Pause:
    """Waits for nothing: gives whoever drives the coroutine a moment."""

    def __await__(self) -> Generator[None, None, None]:
        yield


_ASKED = _Pause()


def _rest(seconds: float) -> None:
    """The whole thread: there is no loop that others could use meanwhile."""
    time.sleep(seconds)


async def _ask_once(address: Address, command: tuple[Argument, ...]) -> Any:
    line = _opened(address, ANSWERS_WITHIN)
    try:
        return line.ask(command)
    except OSError as fault:
        raise Unavailable(f"the store does not answer: {fault}") from fault
    finally:
        line.close()


def _opened(to: Address, within: float) -> "_Line":
    try:
        line = _Line(_connected(to, within))
    except OSError as fault:
        raise unreachable(to, fault) from fault
    try:
        for greeting in to.greetings():
            check_welcome(greeting, line.ask(greeting))
    except BaseException as fault:
        line.close()
        if isinstance(fault, OSError):
            raise Unavailable(f"the store does not answer: {fault}") from fault
        raise
    return line


def _connected(to: Address, within: float) -> socket.socket:
    if to.path is not None:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(within)
        link.connect(to.path)
    else:
        link = socket.create_connection((to.host, to.port), within)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if to.tls:
            return to.tls.wrap_socket(link, server_hostname=to.host)
    _leave_patience_to_the_system(link, within)
    return link


def _leave_patience_to_the_system(link: socket.socket, within: float) -> None:
    """Python waits by a call of its own before each that reads or writes; the system needs none."""
    patience = _TIMEVAL.pack(int(within), int(within % 1 * 1e6))
    for side in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        link.setsockopt(socket.SOL_SOCKET, side, patience)
    link.settimeout(None)


class _Line:
    """One connection."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._replies = hiredis.Reader()
        self._space = bytearray(READ_AT_ONCE)  # once: to make room costs more than to read into it
        self.awake_until = 0.0
        """Until when it is taken to be there, for it has just answered."""
        self.place: Place | None = None
        """Where it leads, if sentinels said so."""

    @property
    def stale(self) -> bool:
        """Whether the server has closed it while it rested: nothing else comes unasked."""
        return bool(select.select([self._link], [], [], 0)[0])

    def ask(self, command: tuple[Argument, ...]) -> Any:
        self.send(command)
        return self.receive()

    def send(self, command: tuple[Argument, ...]) -> None:
        self.send_packed(hiredis.pack_command(command))  # type: ignore[arg-type] # its stub knows only pairs

    def send_packed(self, packed: bytes) -> None:
        try:
            self._link.sendall(packed)
        except BlockingIOError:
            raise TimeoutError("timed out") from None

    def receive(self) -> Any:
        while (reply := self._replies.gets()) is False:
            size = self._read()
            if not size:
                raise ConnectionResetError("the connection was closed")
            self._replies.feed(self._space, 0, size)  # type: ignore[arg-type] # its stub knows only bytes
        self.awake_until = _now() + AWAKE
        return reply

    def _read(self) -> int:
        try:
            return self._link.recv_into(self._space)
        except BlockingIOError:
            raise TimeoutError("timed out") from None

    def close(self) -> None:
        self._link.close()
