"""News between processes by publish and subscribe. A key that expires says that somebody watches."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from windlass.store import machine
from windlass.store.beside import GAP
from windlass.store.redis.connection import Connection
from windlass.store.redis.notices import Bell, Notices

TOPIC = "feed/"

LOOK_EVERY = 1.0
"""Seconds between two looks for somebody who watches."""

WATCHED_FOR = 5.0
"""Seconds that the word of somebody who watches holds."""

MOST_WAITING = 50_000
"""Lines that wait for whoever watches."""


class Ear(Bell):
    """One who watches."""

    def __init__(self, connection: Connection, key: str) -> None:
        super().__init__()
        self._connection = connection
        self._key = key
        self._lines: list[str] = []
        self._claim_at = 0.0

    def ring(self, said: bytes | None) -> None:
        if said is None or len(self._lines) > MOST_WAITING:
            self._lines = [GAP]
        else:
            self._lines += said.decode().split("\n")
        super().ring(said)

    async def hear(self) -> list[str]:
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() >= self._claim_at:
                await self.claim()
            if self._lines:
                heard, self._lines = self._lines, []
                return heard
            await self.wait(self._claim_at - loop.time())

    async def claim(self) -> None:
        self._claim_at = asyncio.get_running_loop().time() + WATCHED_FOR / 3
        await self._connection.ask(self._key, "SET", self._key, "1", "PX", int(WATCHED_FOR * 1000))


class Wire:
    """The news of one store object."""

    def __init__(self, connection: Connection, notices: Notices, prefix: str) -> None:
        self._connection = connection
        self._notices = notices
        self._key = f"{prefix}:watched"
        self._channel = notices.name(TOPIC)
        self._watched = False
        self._look_at = 0.0

    @property
    def quiet(self) -> bool:
        return not self._watched and machine.monotonic() < self._look_at

    async def publish(self, news: Sequence[str]) -> None:
        now = machine.monotonic()
        if now >= self._look_at:
            self._watched = await self._connection.ask(self._key, "GET", self._key) is not None
            self._look_at = now + LOOK_EVERY  # not before: others who publish meanwhile would take it for a no
        if self._watched:
            await self._connection.ask(self._key, "PUBLISH", self._channel, "\n".join(news))

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Ear]:
        ear = Ear(self._connection, self._key)
        async with self._notices.listen([TOPIC], ear):
            await ear.claim()
            self._look_at = 0.0
            await asyncio.sleep(LOOK_EVERY)
            yield ear
