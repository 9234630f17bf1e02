"""Wake-ups by publish and subscribe: one connection a store, opened when somebody first listens.

A notice says that something happened, never what, and may be lost. After a lost connection everybody
is woken once: what was missed is found by looking.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.exceptions import RedisError

from windlass.model.names import raw_id
from windlass.store.redis.connection import Connection

log = logging.getLogger("windlass.store.redis")

CONFIRM_WITHIN = 1.0
TRY_AGAIN_AFTER = 0.2


class Bell:
    """Hears notices on some channels."""

    def __init__(self) -> None:
        self.rung = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.rung.wait()
        except TimeoutError:
            return False
        self.rung.clear()
        return True


class Notices:
    """Hands what is published to whoever listens."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix
        self._bells: dict[bytes, set[Bell]] = {}
        self._confirmed: dict[bytes, asyncio.Event] = {}
        self._subscriptions: Any = None
        self._reader: asyncio.Task[None] | None = None

    def channel(self, topic: str) -> bytes:
        kind, _, name = topic.partition("/")
        raw = raw_id(name) if kind == "end" else name.encode()
        return f"{self._prefix}/{kind}/".encode() + raw

    @asynccontextmanager
    async def listen(self, topics: Sequence[str]) -> AsyncIterator[Bell]:
        bell = Bell()
        channels = [self.channel(topic) for topic in topics]
        for channel in channels:
            self._bells.setdefault(channel, set()).add(bell)
        try:
            await self._subscribe(channels)
            yield bell
        finally:
            await self._leave(bell, channels)

    async def _subscribe(self, channels: list[bytes]) -> None:
        """Listen on these channels; a server that does not answer is no reason not to look for oneself."""
        new = [channel for channel in channels if channel not in self._confirmed]
        for channel in new:
            self._confirmed[channel] = asyncio.Event()
        with suppress(TimeoutError, RedisError, OSError):
            if self._reader is None:
                self._subscriptions = self._connection.node.pubsub()
                await self._subscriptions.subscribe(*new)
                self._reader = asyncio.create_task(self._read(), name="windlass-notices")
            elif new:
                await self._subscriptions.subscribe(*new)
            async with asyncio.timeout(CONFIRM_WITHIN):
                for channel in channels:
                    await self._confirmed[channel].wait()

    async def _leave(self, bell: Bell, channels: list[bytes]) -> None:
        alone = []
        for channel in channels:
            self._bells[channel].discard(bell)
            if not self._bells[channel]:
                del self._bells[channel]
                self._confirmed.pop(channel, None)
                alone.append(channel)
        if alone and self._reader is not None:
            with suppress(RedisError, OSError):
                await self._subscriptions.unsubscribe(*alone)

    async def _read(self) -> None:
        while True:
            try:
                message = await self._subscriptions.get_message(timeout=None)
            except (RedisError, OSError) as fault:
                log.info("notices were interrupted: %s", fault)
                self._ring_all()
                await asyncio.sleep(TRY_AGAIN_AFTER)
                with suppress(RedisError, OSError):
                    await self._subscriptions.connect()
                continue
            if message is None:
                continue
            if message["type"] == "subscribe" and message["channel"] in self._confirmed:
                self._confirmed[message["channel"]].set()
            elif message["type"] == "message":
                for bell in self._bells.get(message["channel"], ()):
                    bell.rung.set()

    def _ring_all(self) -> None:
        for bells in self._bells.values():
            for bell in bells:
                bell.rung.set()

    async def close(self) -> None:
        if self._reader is None:
            return
        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader
        self._reader = None
        await self._subscriptions.aclose()
