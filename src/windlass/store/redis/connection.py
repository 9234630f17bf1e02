"""Connections to one server: a conversation without I/O (bytes in, replies out), and two thin transports for it.

`Channel` is for an event loop. Callers share its connection: what several send at once travels together, and each gets
the reply of its own place in the line, so a cancelled caller never leaves its reply to another. `BlockingChannel` is
for callers without a loop: its `ask` is a coroutine too, but waits in the socket itself, on a connection that each
thread has to itself meanwhile. A connection that answers late is dropped with every caller that waits on it; the next
caller opens a new one. Nothing is ever sent twice.
"""

import asyncio
import os
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, cast

import hiredis

from windlass import system
from windlass.model.errors import Full, Unavailable
from windlass.store.data import AccessRefused
from windlass.store.flow import StaleRules
from windlass.store.redis.sentinels import ANSWERS_WITHIN, Place, Sentinels, is_elsewhere
from windlass.store.redis.urls import ROLE, Argument, ServerAddress

READ_AT_ONCE = 1 << 16

AWAKE = 0.05
"""Seconds after an answer for which an idle blocking connection is taken to be alive without a look."""

TEMPORARY = ("LOADING", "MASTERDOWN", "BUSY", "CLUSTERDOWN", "ERR max number of clients")
"""Error replies to a greeting that end by themselves."""

NOT_LET_IN = ("NOAUTH", "WRONGPASS", "NOPERM")
"""Refusals of a server that needs another user or a password."""

LIBRARY_MISSING = "ERR Function not found"

RIGHTS = (
    "~wl* ~{wl:partitions}* &wl/* +@read +@write +@pubsub +@connection +fcall +function|load +time +info +config|get"
)
"""What a user needs, as ACL SETUSER takes it. On a cluster also +cluster|slots and +cluster|info, with sentinels +role,
with replicas +wait, +waitaof and +command|info."""

Hear = Callable[[Any], None]

_now = system.monotonic
_TIMEVAL = struct.Struct("@ll")


# The conversation


class Conversation:
    """What is said on one connection: the greeting first, then commands and their replies in order. Does no I/O."""

    PENDING = False
    """In place of a reply: more bytes are needed."""

    def __init__(self, address: ServerAddress) -> None:
        self._greetings = address.greetings()
        self._reader = hiredis.Reader()

    @property
    def greetings(self) -> list[tuple[Argument, ...]]:
        """The commands to send first; their replies go to `check_welcome`."""
        return self._greetings

    def check_welcome(self, replies: Sequence[Any]) -> None:
        """Raises if the replies to the greetings do not let us in, or the server is not the one we want."""
        for greeting, reply in zip(self._greetings, replies, strict=True):
            if isinstance(reply, hiredis.ReplyError):
                if str(reply).startswith(TEMPORARY):
                    raise Unavailable(f"the store does not answer: {reply}")
                raise AccessRefused(f"the store does not let us in: {reply}")
            if greeting == ROLE and reply[0] != b"master":
                raise Unavailable(f"the server that the sentinels name is a {reply[0].decode()}, not the master")

    def receive(self, data: bytes | bytearray, size: int) -> None:
        """Take in the first bytes of what was read."""
        self._reader.feed(data, 0, size)  # type: ignore[arg-type] # its stub knows only bytes

    def reply(self) -> Any:
        """The next reply, an error reply as `hiredis.ReplyError`; or `PENDING`."""
        return self._reader.gets()


def pack(command: Sequence[Argument]) -> bytes:
    """A command as bytes."""
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type] # its stub knows only pairs
    return packed


class LibraryMissing(Unavailable):
    """The server does not have the function library."""


class own_errors:  # noqa: N801 - reads as a statement
    """Turns refusals of a server into our own errors: nothing of the driver leaves this room."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if isinstance(fault, hiredis.ReplyError):
            raise _refusal(str(fault)) from fault
        if isinstance(fault, OSError):
            raise Unavailable(f"the store does not answer: {fault}") from fault


def _refusal(text: str) -> Exception:
    if text.startswith(LIBRARY_MISSING):
        return LibraryMissing(text)
    if text.startswith("STALERULES"):
        return StaleRules()
    if text.startswith("NOPERM"):
        return AccessRefused(f"the store does not let us in: {text}. Give the user these rights: {RIGHTS}")
    if text.startswith(NOT_LET_IN):
        return AccessRefused(f"the store does not let us in: {text}")
    if text.startswith("OOM"):
        return Full("the server is out of memory: raise maxmemory or delete finished jobs")
    return Unavailable(f"the store refused: {text}")


def _unreachable(to: ServerAddress, fault: OSError) -> Unavailable:
    """The error for a server to which no connection could be made."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        return Unavailable(f"the store's certificate is not trusted: {fault.verify_message} (?ssl_ca_certs=FILE)")
    errno = fault.errno or 0
    why = os.strerror(errno) if errno > 0 else fault.strerror or str(fault)
    where = to.path or f"{to.host}:{to.port}"
    return Unavailable(f"the store does not answer: {where}: {why or 'it took too long to connect'}")


# For an event loop


class Channel:
    """Sends commands to one server; connects when it is first used, and again after a loss.

    With sentinels it asks them on every connect which server that is now.
    """

    def __init__(self, address: ServerAddress, answer_within: float, sentinels: Sentinels | None = None) -> None:
        self._address = address
        self._answer_within = answer_within
        self._sentinels = sentinels
        self._transport: _AsyncTransport | None = None
        self._subscribed: set[_AsyncTransport] = set()
        self._opening = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._failures = 0
        self._failure = ""
        """Why the last attempt to connect failed: a text, for an error would keep the one before it by its frames."""

    async def ask(self, *command: Argument) -> Any:
        """The reply to a command; an error reply is raised as `hiredis.ReplyError`."""
        return (await self._ask(command))[0]

    async def ask_replicated(self, command: Sequence[Argument], then: Sequence[Sequence[Argument]]) -> tuple[Any, Any]:
        """The reply to a command, and the reply to the last of `then`, sent behind it on the same connection.

        Callers that come while another one waits for the latter share the next one.
        """
        reply, transport = await self._ask(tuple(command))
        return reply, await transport.ask_for_all(then)

    async def _ask(self, command: tuple[Argument, ...]) -> "tuple[Any, _AsyncTransport]":
        transport = self._transport
        if transport is None or transport.broken:
            transport = await self._open()
        if self._sentinels is not None and self._sentinels.is_time_to_look(self._now()):
            self._start_to_look(self._sentinels, transport)
        reply = await transport.ask(command)
        if isinstance(reply, hiredis.ReplyError):
            if self._sentinels is not None and is_elsewhere(reply) and not transport.broken:
                self._sentinels.missed()
                transport.drop(reply)
            raise reply
        return reply, transport

    def _start_to_look(self, sentinels: Sentinels, transport: "_AsyncTransport") -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(sentinels, transport), name="windlass-sentinels")

    async def _look(self, sentinels: Sentinels, transport: "_AsyncTransport") -> None:
        """Leave a server that is no longer the master, though it may not know yet."""
        if await sentinels.has_moved(_ask_once):
            transport.drop(ConnectionResetError("another server is the master now"))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _open(self) -> "_AsyncTransport":
        failures = self._failures
        async with self._opening:
            if self._transport is not None and not self._transport.broken:
                return self._transport
            if self._failures != failures:
                raise Unavailable(self._failure)  # another caller has just tried: all that waited for it fail too
            for transport in self._subscribed:
                transport.drop(None)  # what ended one connection likely ended the others: they may not know yet
            try:
                self._transport = await self._opened()
            except Unavailable as fault:
                self._failures += 1
                self._failure = str(fault)
                raise
            return self._transport

    async def subscribe(self, hear: Hear) -> "Subscription":
        """A connection of its own, on which the server sends messages unasked."""
        transport = await self._opened()
        self._subscribed = {other for other in self._subscribed if not other.broken} | {transport}
        return Subscription(transport, hear)

    async def _opened(self) -> "_AsyncTransport":
        if self._sentinels is None:
            return await _connect(self._address, self._answer_within)
        await asyncio.sleep(self._sentinels.pause())
        try:
            host, port = await self._sentinels.master(_ask_once)
            transport = await _connect(self._address._replace(host=host, port=port), self._answer_within)
        except Unavailable:
            self._sentinels.missed()
            raise
        if self._sentinels.found((host, port), self._now()) and self._transport is not None:
            self._transport.drop(ConnectionResetError("another server is the master now"))
        return transport

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        if self._transport is not None and not self._transport.broken:
            await self._transport.close()


class Subscription:
    """A connection on which the server sends unasked. `hear` gets each message, and null when it is lost."""

    def __init__(self, transport: "_AsyncTransport", hear: Hear) -> None:
        self._transport = transport
        transport.hear = hear

    def send(self, *command: Argument) -> None:
        """Send a command whose answer goes to `hear` like everything else."""
        self._transport.send(command)

    async def close(self) -> None:
        self._transport.hear = None
        await self._transport.close()


async def _ask_once(address: ServerAddress, command: tuple[Argument, ...]) -> Any:
    transport = await _connect(address, ANSWERS_WITHIN)
    try:
        return await transport.ask(command)
    finally:
        await transport.close()


async def _connect(to: ServerAddress, within: float) -> "_AsyncTransport":
    try:
        async with asyncio.timeout(within):
            return await _greet(to, within)
    except (OSError, TimeoutError) as fault:
        raise _unreachable(to, fault) from fault


async def _greet(to: ServerAddress, within: float) -> "_AsyncTransport":
    loop, conversation = asyncio.get_running_loop(), Conversation(to)

    def make() -> _AsyncTransport:
        return _AsyncTransport(loop, conversation, within)

    if to.path is not None:
        _, transport = await loop.create_unix_connection(make, to.path)
    else:
        _, transport = await loop.create_connection(make, to.host, to.port, ssl=to.tls)
    try:
        conversation.check_welcome(await asyncio.gather(*map(transport.ask, conversation.greetings)))
    except BaseException:
        transport.drop(None)
        raise
    return transport


class _AsyncTransport(asyncio.Protocol):
    """A connection on a loop, while it lasts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, conversation: Conversation, answer_within: float) -> None:
        self._loop = loop
        self._conversation = conversation
        self._answer_within = answer_within
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._turn = asyncio.Lock()
        self._asked_for_all = self._answered_for_all = 0
        self._answer_for_all: Any = None
        self.broken = False
        self.hear: Hear | None = None
        """Gets what is not the reply to a command."""

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
        """The reply to the last of these, sent after now: by this caller, or by another one for all that wait."""
        asked = self._asked_for_all
        async with self._turn:
            if self._answered_for_all <= asked:
                self._asked_for_all = number = self._asked_for_all + 1
                *_, self._answer_for_all = await asyncio.gather(*(self.ask(tuple(command)) for command in commands))
                self._answered_for_all = number
            return self._answer_for_all

    def send(self, command: Sequence[Argument]) -> None:
        if self.broken or self._transport is None:
            raise Unavailable("the connection to the store was lost")
        self._transport.write(pack(command))

    def data_received(self, data: bytes) -> None:
        self._conversation.receive(data, len(data))
        while (reply := self._conversation.reply()) is not Conversation.PENDING:
            if self._waiting:
                future, _ = self._waiting.popleft()
                if not future.done():
                    future.set_result(reply)
            elif self.hear is not None:
                self.hear(reply)

    def _check(self) -> None:
        """One timer for all: is the oldest command still in time?"""
        self._watch = None
        if not self._waiting:
            return
        _, until = self._waiting[0]
        if until > self._loop.time():
            self._watch = self._loop.call_at(until, self._check)
        else:
            self.drop(TimeoutError(f"no answer within {self._answer_within:g} s"))

    def drop(self, fault: Exception | None) -> None:
        """Give up on this connection: every caller that waits fails."""
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


# Without an event loop


class BlockingChannel:
    """Connections to one server, each used for one command at a time. Any number of threads may ask at once."""

    def __init__(self, address: ServerAddress, answer_within: float, sentinels: Sentinels | None = None) -> None:
        self._address = address
        self._answer_within = answer_within
        self._sentinels = sentinels
        self._idle: list[_BlockingTransport] = []
        self._pid = os.getpid()

    async def ask(self, *command: Argument) -> Any:
        """The reply to a command; an error reply is raised as `hiredis.ReplyError`."""
        return (await self._ask_all([command]))[0]

    async def ask_replicated(self, command: Sequence[Argument], then: Sequence[Sequence[Argument]]) -> tuple[Any, Any]:
        """The reply to a command, and the reply to the last of `then`, sent behind it on the same connection."""
        replies = await self._ask_all([command, *then])
        return replies[0], replies[-1]

    def ask_at_once(self, packed: bytes) -> Any:
        """The reply to a packed command, an error reply as a value; null = there is something else to do first."""
        if self._sentinels is not None and self._sentinels.will_look(_now()):
            return None
        transport = self._take_idle(may_ask_again=True)
        if transport is None:
            return None
        try:
            transport.send(packed)
            reply = transport.receive()
        except BaseException as fault:
            self._lose(transport, fault)
            raise
        self._idle.append(transport)
        return reply

    async def _ask_all(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        if self._sentinels is not None and self._sentinels.is_time_to_look(_now()):
            await self._look(self._sentinels)
        transport = self._take_idle() or await self._opened()
        try:
            for command in commands:
                transport.send(pack(command))
            await _SENT
            reply, *more = [transport.receive() for _ in commands]
        except BaseException as fault:
            self._lose(transport, fault)
            raise
        if not isinstance(reply, hiredis.ReplyError):
            self._idle.append(transport)
            return [reply, *more]
        if self._sentinels is not None and is_elsewhere(reply):
            self._sentinels.missed()
            transport.close()
            await self.close()
        else:
            self._idle.append(transport)
        raise reply

    async def _look(self, sentinels: Sentinels) -> None:
        """Leave a server that is no longer the master, though it may not know yet."""
        if self._idle and await sentinels.has_moved(_ask_once_blocking):
            await self.close()

    def _lose(self, transport: "_BlockingTransport", fault: BaseException) -> None:
        transport.close()  # its reply may still come: no other caller may read it
        if isinstance(fault, OSError):
            self._close_idle()  # what ended one connection likely ended the idle ones
            raise Unavailable(f"the store does not answer: {fault}") from fault

    def _take_idle(self, *, may_ask_again: bool = False) -> "_BlockingTransport | None":
        """An idle connection that still leads where it should. `may_ask_again`: the caller copes with a dead one."""
        while True:
            try:
                transport = self._idle.pop()
            except IndexError:
                return None
            is_alive = (may_ask_again and _now() < transport.awake_until) or not (
                transport.is_closed or self._is_inherited()
            )
            if is_alive and (self._sentinels is None or transport.place == self._sentinels.place):
                return transport
            transport.close()

    def _is_inherited(self) -> bool:
        """Whether the idle connections are another process's: not every program that forks tells Python of it."""
        if self._pid == os.getpid():
            return False
        self._pid = os.getpid()
        self._close_idle()
        return True

    async def _opened(self) -> "_BlockingTransport":
        if self._sentinels is None:
            return _connect_blocking(self._address, self._answer_within)
        _sleep(self._sentinels.pause())
        try:
            host, port = await self._sentinels.master(_ask_once_blocking)
            transport = _connect_blocking(self._address._replace(host=host, port=port), self._answer_within)
        except Unavailable:
            self._sentinels.missed()
            raise
        self._sentinels.found((host, port), _now())
        transport.place = (host, port)
        return transport

    async def close(self) -> None:
        self._close_idle()

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for transport in idle:
            transport.close()


class _Pause:
    """Waits for nothing: between command and reply the driver of the coroutine can do something else."""

    def __await__(self) -> Generator[None, None, None]:
        yield


_SENT = _Pause()


def _sleep(seconds: float) -> None:
    """The whole thread: there is no loop that others could use meanwhile."""
    time.sleep(seconds)


async def _ask_once_blocking(address: ServerAddress, command: tuple[Argument, ...]) -> Any:
    transport = _connect_blocking(address, ANSWERS_WITHIN)
    try:
        transport.send(pack(command))
        return transport.receive()
    except OSError as fault:
        raise Unavailable(f"the store does not answer: {fault}") from fault
    finally:
        transport.close()


def _connect_blocking(to: ServerAddress, within: float) -> "_BlockingTransport":
    conversation = Conversation(to)
    try:
        transport = _BlockingTransport(_open_socket(to, within), conversation)
    except OSError as fault:
        raise _unreachable(to, fault) from fault
    try:
        for greeting in conversation.greetings:
            transport.send(pack(greeting))
        conversation.check_welcome([transport.receive() for _ in conversation.greetings])
    except BaseException as fault:
        transport.close()
        if isinstance(fault, OSError):
            raise Unavailable(f"the store does not answer: {fault}") from fault
        raise
    return transport


def _open_socket(to: ServerAddress, within: float) -> socket.socket:
    if to.path is not None:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(within)
        link.connect(to.path)
    else:
        link = socket.create_connection((to.host, to.port), within)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if to.tls:
            return to.tls.wrap_socket(link, server_hostname=to.host)
    _leave_timeouts_to_the_system(link, within)
    return link


def _leave_timeouts_to_the_system(link: socket.socket, within: float) -> None:
    """Python polls before each read and write of a socket with a timeout; the system needs no such call."""
    timeout = _TIMEVAL.pack(int(within), int(within % 1 * 1e6))
    for side in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        link.setsockopt(socket.SOL_SOCKET, side, timeout)
    link.settimeout(None)


class _BlockingTransport:
    """A connection without a loop."""

    def __init__(self, link: socket.socket, conversation: Conversation) -> None:
        self._link = link
        self._conversation = conversation
        self._space = bytearray(READ_AT_ONCE)  # once: to make room costs more than to read into it
        self.awake_until = 0.0
        """Until when it is taken to be alive, for it has just answered."""
        self.place: Place | None = None
        """Where it leads, if sentinels named it."""

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed it while it was idle: nothing else comes unasked."""
        return bool(select.select([self._link], [], [], 0)[0])

    def send(self, packed: bytes) -> None:
        try:
            self._link.sendall(packed)
        except BlockingIOError:
            raise TimeoutError("timed out") from None

    def receive(self) -> Any:
        while (reply := self._conversation.reply()) is Conversation.PENDING:
            size = self._read()
            if not size:
                raise ConnectionResetError("the connection was closed")
            self._conversation.receive(self._space, size)
        self.awake_until = _now() + AWAKE
        return reply

    def _read(self) -> int:
        try:
            return self._link.recv_into(self._space)
        except BlockingIOError:
            raise TimeoutError("timed out") from None

    def close(self) -> None:
        self._link.close()
