"""One connection to one server, as lean as it can be: bytes out, replies back in the order they were asked for.

Callers share it: what several ask at once travels together, and each gets the reply of its own place in the line, so
a cancelled caller can never leave its reply to another. A connection that answers late is dropped with everybody who
waits on it; the next caller opens a new one. Nothing is ever sent twice.
"""

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import hiredis

from windlass.model.errors import Unavailable
from windlass.store import NotLetIn
from windlass.store.redis.address import ROLE, Address, Argument
from windlass.store.redis.sentinels import ANSWERS_WITHIN, Sentinels, is_elsewhere

PASSING = ("LOADING", "MASTERDOWN", "BUSY", "CLUSTERDOWN", "ERR max number of clients")
"""Error replies that end by themselves."""

Hear = Callable[[Any], None]


class Channel:
    """Sends commands to one server; connects when it is first used, and again after a loss.

    With sentinels it asks them on every connect which server that is now.
    """

    def __init__(self, address: Address, answer_within: float, sentinels: Sentinels | None = None) -> None:
        self._address = address
        self._answer_within = answer_within
        self._sentinels = sentinels
        self._pipe: _Pipe | None = None
        self._overheard: set[_Pipe] = set()
        self._opening = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._fault: Unavailable | None = None

    async def ask(self, *command: Argument) -> Any:
        """The reply to a command; an error reply is raised as `hiredis.ReplyError`."""
        return (await self._ask(command))[0]

    async def ask_surely(self, command: Sequence[Argument], then: Sequence[Sequence[Argument]]) -> tuple[Any, Any]:
        """The reply to a command, and that to the last of what is asked behind it on the same connection.

        Those who come while somebody else waits for the latter share the next one.
        """
        reply, pipe = await self._ask(tuple(command))
        return reply, await pipe.ask_for_all(then)

    async def _ask(self, command: tuple[Argument, ...]) -> "tuple[Any, _Pipe]":
        pipe = self._pipe
        if pipe is None or pipe.broken:
            pipe = await self._open()
        if self._sentinels is not None and self._sentinels.is_time_to_look(self._now()):
            self._start_to_look(self._sentinels, pipe)
        reply = await pipe.ask(command)
        if isinstance(reply, hiredis.ReplyError):
            if self._sentinels is not None and is_elsewhere(reply) and not pipe.broken:
                self._sentinels.missed()
                pipe.drop(reply)
            raise reply
        return reply, pipe

    def _start_to_look(self, sentinels: Sentinels, pipe: "_Pipe") -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(sentinels, pipe), name="windlass-sentinels")

    async def _look(self, sentinels: Sentinels, pipe: "_Pipe") -> None:
        """Leave a server that is no longer the master, though it may not know yet."""
        if await sentinels.has_moved(_ask_once):
            pipe.drop(ConnectionResetError("another server is the master now"))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _open(self) -> "_Pipe":
        known = self._fault
        async with self._opening:
            if self._pipe is not None and not self._pipe.broken:
                return self._pipe
            if self._fault is not None and self._fault is not known:
                raise Unavailable(str(self._fault))  # somebody has just tried: all who waited for it are told
            for pipe in self._overheard:
                pipe.drop(None)  # what has ended one connection has likely ended the others: they may not know yet
            try:
                self._pipe = await self._opened()
            except Unavailable as fault:
                self._fault = fault
                raise
            return self._pipe

    async def overhear(self, hear: Hear) -> "Subscription":
        """A connection of its own, for subscriptions: what the server says there unasked is handed on."""
        pipe = await self._opened()
        self._overheard = {other for other in self._overheard if not other.broken} | {pipe}
        return Subscription(pipe, hear)

    async def _opened(self) -> "_Pipe":
        if self._sentinels is None:
            return await _connected(self._address, self._answer_within)
        await asyncio.sleep(self._sentinels.pause())
        try:
            host, port = await self._sentinels.master(_ask_once)
            pipe = await _connected(self._address._replace(host=host, port=port), self._answer_within)
        except Unavailable:
            self._sentinels.missed()
            raise
        if self._sentinels.found((host, port), self._now()) and self._pipe is not None:
            self._pipe.drop(ConnectionResetError("another server is the master now"))
        return pipe

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        if self._pipe is not None and not self._pipe.broken:
            await self._pipe.close()


async def _ask_once(address: Address, command: tuple[Argument, ...]) -> Any:
    pipe = await _connected(address, ANSWERS_WITHIN)
    try:
        return await pipe.ask(command)
    finally:
        await pipe.close()


async def _connected(to: Address, within: float) -> "_Pipe":
    try:
        async with asyncio.timeout(within):
            return await _greeted(to, within)
    except (OSError, TimeoutError) as fault:
        raise unreachable(to, fault) from fault


def unreachable(to: Address, fault: OSError) -> Unavailable:
    """What is said of a server to which no connection could be made."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        return Unavailable(f"the store's certificate is not trusted: {fault.verify_message} (?ssl_ca_certs=FILE)")
    errno = fault.errno or 0
    why = os.strerror(errno) if errno > 0 else fault.strerror or str(fault)
    where = to.path or f"{to.host}:{to.port}"
    return Unavailable(f"the store does not answer: {where}: {why or 'it took too long to connect'}")


async def _greeted(to: Address, within: float) -> "_Pipe":
    loop = asyncio.get_running_loop()

    def make() -> _Pipe:
        return _Pipe(loop, within)

    if to.path is not None:
        _, pipe = await loop.create_unix_connection(make, to.path)
    else:
        _, pipe = await loop.create_connection(make, to.host, to.port, ssl=to.tls)
    try:
        for greeting in to.greetings():
            check_welcome(greeting, await pipe.ask(greeting))
    except BaseException:
        pipe.drop(None)
        raise
    return pipe


def _refusal(text: str) -> Unavailable:
    """What an error reply means to whoever wanted to be let in."""
    if text.startswith(PASSING):
        return Unavailable(f"the store does not answer: {text}")
    return NotLetIn(f"the store does not let us in: {text}")


def check_welcome(greeting: tuple[Argument, ...], reply: Any) -> None:
    """Whether the answer to a greeting lets us in, and where we wanted to be."""
    if isinstance(reply, hiredis.ReplyError):
        raise _refusal(str(reply))
    if greeting == ROLE and reply[0] != b"master":
        raise Unavailable(f"the server that the sentinels name is a {reply[0].decode()}, not the master")


class Subscription:
    """A connection on which the server speaks unasked. `hear` gets each message, and null when it is lost."""

    def __init__(self, pipe: "_Pipe", hear: Hear) -> None:
        self._pipe = pipe
        pipe.hear = hear

    def send(self, *command: Argument) -> None:
        """Say something whose answer is heard like everything else."""
        self._pipe.send(command)

    async def close(self) -> None:
        self._pipe.hear = None
        await self._pipe.close()


class _Pipe(asyncio.Protocol):
    """The connection while it lasts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer_within: float) -> None:
        self._loop = loop
        self._answer_within = answer_within
        self._replies = hiredis.Reader()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._turn = asyncio.Lock()
        self._asked_for_all = self._answered_for_all = 0
        self._answer_for_all: Any = None
        self.broken = False
        self.hear: Hear | None = None
        """Gets what is not the answer to a question."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, command: tuple[Argument, ...]) -> asyncio.Future[Any]:
        reply: asyncio.Future[Any] = self._loop.create_future()
        self.send(command)
        self._waiting.append((reply, self._loop.time() + self._answer_within))
        if self._watch is None:
            self._watch = self._loop.call_later(self._answer_within, self._check)
        return reply

    async def ask_for_all(self, commands: Sequence[Sequence[Argument]]) -> Any:
        """The reply to the last of these, sent after now: by us, or by another who wants to know the same."""
        asked = self._asked_for_all
        async with self._turn:
            if self._answered_for_all <= asked:
                self._asked_for_all = number = self._asked_for_all + 1
                *_, self._answer_for_all = await asyncio.gather(*(self.ask(tuple(command)) for command in commands))
                self._answered_for_all = number
            return self._answer_for_all

    def send(self, command: tuple[Argument, ...]) -> None:
        if self.broken or self._transport is None:
            raise Unavailable("the connection to the store was lost")
        self._transport.write(hiredis.pack_command(command))  # type: ignore[arg-type] # its stub knows only pairs

    def data_received(self, data: bytes) -> None:
        self._replies.feed(data)
        while (reply := self._replies.gets()) is not False:
            if self._waiting:
                future, _ = self._waiting.popleft()
                if not future.done():
                    future.set_result(reply)
            elif self.hear is not None:
                self.hear(reply)

    def _check(self) -> None:
        """One timer for all: is the oldest question still in time?"""
        self._watch = None
        if not self._waiting:
            return
        _, until = self._waiting[0]
        if until > self._loop.time():
            self._watch = self._loop.call_at(until, self._check)
        else:
            self.drop(TimeoutError(f"no answer within {self._answer_within:g} s"))

    def drop(self, fault: Exception | None) -> None:
        """Give up on this connection: everybody who waits hears of it."""
        self.broken = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._transport is not None:
            self._transport.abort()
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(Unavailable(f"the store does not answer: {fault or 'the connection was closed'}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop(exc)
        if not self._closed.done():
            self._closed.set_result(None)
        if self.hear is not None:
            self.hear(None)

    async def close(self) -> None:
        self.drop(None)
        await self._closed
