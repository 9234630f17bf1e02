"""One connection to one server, as lean as it can be: bytes out, replies back in the order they were asked for.

Callers share it: what several ask at once travels together, and each gets the reply of its own place in the line, so
a cancelled caller can never leave its reply to another. A connection that answers late is dropped with everybody who
waits on it; the next caller opens a new one. Nothing is ever sent twice.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import hiredis

from windlass.model.errors import Unavailable

Argument = bytes | str | int

Hear = Callable[[Any], None]


class Address(NamedTuple):
    """Where a server is and how to be let in."""

    host: str = "localhost"
    port: int = 6379
    path: str | None = None
    """A unix socket, instead of host and port."""
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None

    def greetings(self) -> "list[tuple[Argument, ...]]":
        """What is said first on every connection."""
        said: list[tuple[Argument, ...]] = []
        if self.password is not None:
            said.append(("AUTH", self.username, self.password) if self.username else ("AUTH", self.password))
        if self.db:
            said.append(("SELECT", self.db))
        return said


class Channel:
    """Sends commands to one server; connects when it is first used, and again after a loss."""

    def __init__(self, address: Address, answer_within: float) -> None:
        self._address = address
        self._answer_within = answer_within
        self._pipe: _Pipe | None = None
        self._opening = asyncio.Lock()

    async def ask(self, *command: Argument) -> Any:
        """The reply to a command; an error reply is raised as `hiredis.ReplyError`."""
        pipe = self._pipe
        if pipe is None or pipe.broken:
            pipe = await self._open()
        reply = await pipe.ask(command)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    async def _open(self) -> "_Pipe":
        async with self._opening:
            if self._pipe is None or self._pipe.broken:
                self._pipe = await self._opened()
            return self._pipe

    async def overhear(self, hear: Hear) -> "Subscription":
        """A connection of its own, for subscriptions: what the server says there unasked is handed on."""
        return Subscription(await self._opened(), hear)

    async def _opened(self) -> "_Pipe":
        try:
            async with asyncio.timeout(self._answer_within):
                return await self._connect()
        except (OSError, TimeoutError) as fault:
            raise Unavailable(f"the store does not answer: {fault or 'it took too long to connect'}") from fault
        except hiredis.ReplyError as fault:
            raise Unavailable(f"the store does not let us in: {fault}") from None

    async def _connect(self) -> "_Pipe":
        loop = asyncio.get_running_loop()
        to = self._address

        def make() -> _Pipe:
            return _Pipe(loop, self._answer_within)

        if to.path is not None:
            _, pipe = await loop.create_unix_connection(make, to.path)
        else:
            _, pipe = await loop.create_connection(make, to.host, to.port, ssl=to.tls)
        for greeting in to.greetings():
            if isinstance(reply := await pipe.ask(greeting), hiredis.ReplyError):
                await pipe.close()
                raise reply
        return pipe

    async def close(self) -> None:
        if self._pipe is not None and not self._pipe.broken:
            await self._pipe.close()


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
