"""Messages from the server: wake-ups, granted claims, and the event feed. One subscription per store object.

A wake-up says that something happened, not what, and may be lost. After a lost connection every listener is woken once:
what was missed is found by looking. A grant also carries the job that the server has leased to a parked claim.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any

from windlass import system
from windlass.model.errors import Unavailable
from windlass.model.names import JobKey, raw_key
from windlass.store.data import FEED, GAP, WOKEN, ClaimRequest, Record
from windlass.store.protocol import Listener
from windlass.store.redis import layout
from windlass.store.redis.calls import Connection, Partitions
from windlass.store.redis.connection import BlockingChannel, Subscription

log = logging.getLogger("windlass.store.redis")

CONFIRM_WITHIN = 1.0
TRY_AGAIN_AFTER = 0.2
IDLE_TOPICS = ("work", "grant")
"""Topics that an idle worker leaves and comes back to: they are not unsubscribed at once."""
IDLE_UNSUBSCRIBE = 1.0
"""Seconds until they are."""


class Wakeup:
    """A listener on some topics: remembers that a message came until it is waited for."""

    def __init__(self) -> None:
        self._woken = False
        self._waiting: asyncio.Future[None] | None = None

    def wake(self, _message: bytes | None) -> None:
        """A message came; null = one may have come, and was lost."""
        self._woken = True
        _release(self._waiting)

    async def wait(self, seconds: float) -> list[str]:
        return [WOKEN] if await self.woken(seconds) else []

    async def woken(self, seconds: float) -> bool:
        """Whether a message came within so many seconds."""
        # Not by `asyncio.timeout`, which takes thrice as long: each job that finds a worker idle passes here.
        if not self._woken:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = loop.call_later(seconds, _release, self._waiting)
            try:
                await self._waiting
            finally:
                timer.cancel()
        woken, self._woken = self._woken, False
        return woken


def _release(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class Subscriber:
    """Passes messages of the server to the listeners of one store object."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix
        self._listeners: dict[bytes, set[Wakeup]] = {}
        self._confirmed: dict[bytes, asyncio.Event] = {}
        self._leaving: set[bytes] = set()
        self._idle_topics = tuple(f"{prefix}/{kind}/".encode() for kind in IDLE_TOPICS)
        self._subscription: Subscription | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._complained = False
        """Whether it was logged that there are no wake-ups, since the last connection."""

    def channel(self, topic: str) -> bytes:
        """The channel of a topic on the server."""
        kind, _, rest = topic.partition("/")
        raw = raw_key(*rest.split("/")) if kind == "end" else rest.encode()
        return f"{self._prefix}/{kind}/".encode() + raw

    @asynccontextmanager
    async def listen(self, topics: Sequence[str], listener: Wakeup) -> AsyncIterator[Wakeup]:
        if isinstance(self._connection.channel, BlockingChannel):
            raise Unavailable("a blocking store cannot listen")
        names = [self.channel(topic) for topic in topics]
        for name in names:
            self._listeners.setdefault(name, set()).add(listener)
        try:
            await self._subscribe(names)
            yield listener
        finally:
            self._leave(listener, names)

    async def _subscribe(self, names: list[bytes]) -> None:
        """Subscribe to channels; without an answer of the server the listener still looks by itself."""
        new = [name for name in names if name not in self._confirmed]
        for name in new:
            self._confirmed[name] = asyncio.Event()
        with suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(CONFIRM_WITHIN):
                if self._subscription is not None:
                    if new:
                        self._subscription.send("SUBSCRIBE", *new)
                else:
                    self._connect()
                for name in names:
                    await self._confirmed[name].wait()

    def _leave(self, listener: Wakeup, names: list[bytes]) -> None:
        for name in names:
            self._listeners[name].discard(listener)
            if self._listeners[name] or name in self._leaving:
                continue
            if name.startswith(self._idle_topics):
                self._leaving.add(name)
                asyncio.get_running_loop().call_later(IDLE_UNSUBSCRIBE, self._unsubscribe, name)
            else:
                self._unsubscribe(name)

    def _unsubscribe(self, name: bytes) -> None:
        self._leaving.discard(name)
        if self._listeners[name]:
            return
        del self._listeners[name], self._confirmed[name]
        if self._subscription is not None:
            with suppress(Unavailable):
                self._subscription.send("UNSUBSCRIBE", name)

    def _connect(self) -> None:
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._keep_trying(), name="windlass-subscriber")

    async def _keep_trying(self) -> None:
        """Until it is connected, or has no listener any more."""
        try:
            while self._listeners:
                try:
                    self._subscription = await self._connection.subscribe(self._hear)
                    self._subscription.send("SUBSCRIBE", *self._listeners)
                except Unavailable as fault:
                    if not self._complained:
                        log.info("store: no wake-ups: %s", fault)
                    self._complained = True
                    await asyncio.sleep(TRY_AGAIN_AFTER)
                else:
                    self._complained = False
                    return
        finally:
            self._connecting = None

    def _hear(self, message: Any) -> None:
        match message:
            case None:
                self._lost()
            case [b"message", name, data]:
                for listener in self._listeners.get(name, ()):
                    listener.wake(data)
            case [b"subscribe", name, _] if name in self._confirmed:
                self._confirmed[name].set()

    def _lost(self) -> None:
        """Wake every listener: messages may have been missed."""
        self._subscription = None
        for confirmed in self._confirmed.values():
            confirmed.clear()
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.wake(None)
        if self._listeners:
            self._connect()

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            with suppress(asyncio.CancelledError):
                await self._connecting
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None


# Parked claims


class GrantedClaims:
    """What the server has leased to parked claims of one store object, until the same claim is sent again.

    Kept only while a listener waits. What is forgotten here is not lost: the server answers the same claim.
    """

    def __init__(self) -> None:
        self._granted: dict[bytes, bytes] = {}

    def take(self, request: ClaimRequest) -> list[Record] | None:
        """What was leased under the nonce of a claim, as the server would answer it; null = nothing is known."""
        message = self._granted.pop(request.nonce, None)
        return None if message is None else layout.granted(message, request)

    @contextmanager
    def listener(self) -> "Iterator[ClaimListener]":
        """A listener whose claim may be parked meanwhile."""
        listener = ClaimListener(self._granted)
        try:
            yield listener
        finally:
            for nonce in listener.nonces:
                self._granted.pop(nonce, None)


class ClaimListener(Wakeup):
    """Also notes what was granted."""

    def __init__(self, granted: dict[bytes, bytes]) -> None:
        super().__init__()
        self._granted = granted
        self.nonces: list[bytes] = []

    def wake(self, message: bytes | None) -> None:
        if message:  # other messages to these listeners are empty
            nonce = message[: layout.NONCE_SIZE]
            self._granted[nonce] = message
            self.nonces.append(nonce)
        super().wake(message)


# The event feed

LOOK_EVERY = 1.0
"""Seconds between two looks for a watcher."""

WATCHED_FOR = 5.0
"""Seconds for which a watcher is known to watch: a key that expires."""

MOST_WAITING = 50_000
"""Lines that wait for a watcher."""


class FeedListener(Wakeup):
    """A watcher of the feed."""

    def __init__(self, connection: Connection, key: str) -> None:
        super().__init__()
        self._connection = connection
        self._key = key
        self._lines: list[str] = []
        self._announced_at = 0.0

    def wake(self, message: bytes | None) -> None:
        if message is None or len(self._lines) > MOST_WAITING:
            self._lines = [GAP]
        else:
            self._lines += message.decode().split("\n")
        super().wake(message)

    async def wait(self, seconds: float) -> list[str]:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            if loop.time() >= self._announced_at + WATCHED_FOR / 3:
                await self.announce()
            if self._lines or loop.time() >= until:
                heard, self._lines = self._lines, []
                return heard
            await self.woken(min(until, self._announced_at + WATCHED_FOR / 3) - loop.time())

    async def announce(self) -> None:
        """Say that it watches. If it was late, publishers may have sent nothing meanwhile: then it hears of a gap.

        The key says so if no watcher was announced. The time says so if another watcher was announced again first.
        """
        loop = asyncio.get_running_loop()
        now, last = loop.time(), self._announced_at
        before = await self._connection.ask(self._key, "SET", self._key, "1", "PX", int(WATCHED_FOR * 1000), "GET")
        if last and (before is None or loop.time() - last > WATCHED_FOR):
            await asyncio.sleep(LOOK_EVERY)  # until every publisher has looked again
            self.wake(None)
        self._announced_at = now


class EventBus:
    """The wake-ups and events of one store object."""

    def __init__(self, connection: Connection, partitions: Partitions, prefix: str) -> None:
        self._connection = connection
        self._partitions = partitions
        self._subscriber = Subscriber(connection, prefix)
        self.close = self._subscriber.close
        self.granted = GrantedClaims()
        self._key = f"{prefix}:watched"
        self._channel = self._subscriber.channel(f"{FEED}/")
        self._watched = False
        self._look_at = 0.0

    @property
    def quiet(self) -> bool:
        return not self._watched and system.monotonic() < self._look_at

    def listen(self, topics: Sequence[str]) -> AbstractAsyncContextManager[Listener]:
        return self._subscribed() if FEED in topics else self._wakeups(topics)

    @asynccontextmanager
    async def _wakeups(self, topics: Sequence[str]) -> AsyncIterator[Wakeup]:
        with self.granted.listener() as listener:
            async with self._subscriber.listen(topics, listener):
                for topic in topics:
                    kind, _, name = topic.partition("/")
                    if kind == "end":
                        key = JobKey(*name.split("/"))
                        await self._partitions.call("await_end", self._partitions.of_id(key.id), [raw_key(*key)])
                yield listener

    async def publish(self, lines: Sequence[str]) -> None:
        now = system.monotonic()
        if now >= self._look_at:
            self._watched = await self._connection.ask(self._key, "GET", self._key) is not None
            self._look_at = now + LOOK_EVERY  # not before: other publishers would meanwhile take it for a no
        if self._watched:
            await self._connection.ask(self._key, "PUBLISH", self._channel, "\n".join(lines))

    @asynccontextmanager
    async def _subscribed(self) -> AsyncIterator[FeedListener]:
        listener = FeedListener(self._connection, self._key)
        async with self._subscriber.listen([f"{FEED}/"], listener):
            await listener.announce()
            self._look_at = 0.0
            await asyncio.sleep(LOOK_EVERY)
            yield listener
