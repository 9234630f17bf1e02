"""Wake-ups by publish and subscribe: one connection a store, opened when somebody first listens.

A notice says that something happened, never what, and may be lost. After a lost connection everybody
is woken once: what was missed is found by looking.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from windlass.model.errors import Unavailable
from windlass.model.names import raw_key
from windlass.store.redis.blocking import BlockingChannel
from windlass.store.redis.channel import Subscription
from windlass.store.redis.connection import Connection

log = logging.getLogger("windlass.store.redis")

CONFIRM_WITHIN = 1.0
TRY_AGAIN_AFTER = 0.2
LINGERS = ("work", "wish")
"""Topics that an idle worker leaves and comes back to: they are not unsubscribed at once."""
LINGER = 1.0
"""Seconds until they are."""


class Bell:
    """Hears notices on some channels."""

    def __init__(self) -> None:
        self._rung = False
        self._waiting: asyncio.Future[None] | None = None

    def ring(self, _said: bytes | None) -> None:
        """Something was said; null = something may have been, and was lost."""
        self._rung = True
        _release(self._waiting)

    async def wait(self, seconds: float) -> bool:
        # By hand, for this is on the way of every job that finds a worker idle: `asyncio.timeout` takes thrice as long.
        if not self._rung:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = loop.call_later(seconds, _release, self._waiting)
            try:
                await self._waiting
            finally:
                timer.cancel()
        rung, self._rung = self._rung, False
        return rung


def _release(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class Notices:
    """Hands what is published to whoever listens."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix
        self._bells: dict[bytes, set[Bell]] = {}
        self._confirmed: dict[bytes, asyncio.Event] = {}
        self._lingering: set[bytes] = set()
        self._lingers = tuple(f"{prefix}/{kind}/".encode() for kind in LINGERS)
        self._subscription: Subscription | None = None
        self._connecting: asyncio.Task[None] | None = None

    def name(self, topic: str) -> bytes:
        """What a topic is called on the server."""
        kind, _, rest = topic.partition("/")
        raw = raw_key(*rest.split("/")) if kind == "end" else rest.encode()
        return f"{self._prefix}/{kind}/".encode() + raw

    @asynccontextmanager
    async def listen(self, topics: Sequence[str], bell: Bell | None = None) -> AsyncIterator[Bell]:
        if isinstance(self._connection.channel, BlockingChannel):
            raise Unavailable("a blocking store cannot listen")
        bell = bell or Bell()
        names = [self.name(topic) for topic in topics]
        for name in names:
            self._bells.setdefault(name, set()).add(bell)
        try:
            await self._subscribe(names)
            yield bell
        finally:
            self._leave(bell, names)

    async def _subscribe(self, names: list[bytes]) -> None:
        """Listen under these names; a server that does not answer is no reason not to look for oneself."""
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

    def _leave(self, bell: Bell, names: list[bytes]) -> None:
        for name in names:
            self._bells[name].discard(bell)
            if self._bells[name] or name in self._lingering:
                continue
            if name.startswith(self._lingers):
                self._lingering.add(name)
                asyncio.get_running_loop().call_later(LINGER, self._hang_up, name)
            else:
                self._hang_up(name)

    def _hang_up(self, name: bytes) -> None:
        self._lingering.discard(name)
        if self._bells[name]:
            return
        del self._bells[name], self._confirmed[name]
        if self._subscription is not None:
            with suppress(Unavailable):
                self._subscription.send("UNSUBSCRIBE", name)

    def _connect(self) -> None:
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._keep_trying(), name="windlass-notices")

    async def _keep_trying(self) -> None:
        """Until it is connected, or nobody listens any more."""
        try:
            while self._bells:
                try:
                    self._subscription = await self._connection.overhear(self._hear)
                    self._subscription.send("SUBSCRIBE", *self._bells)
                except Unavailable as fault:
                    log.info("no notices: %s", fault)
                    await asyncio.sleep(TRY_AGAIN_AFTER)
                else:
                    return
        finally:
            self._connecting = None

    def _hear(self, message: Any) -> None:
        match message:
            case None:
                self._lost()
            case [b"message", name, said]:
                for bell in self._bells.get(name, ()):
                    bell.ring(said)
            case [b"subscribe", name, _] if name in self._confirmed:
                self._confirmed[name].set()

    def _lost(self) -> None:
        """Whoever listens is woken: there may have been notices that nobody heard."""
        self._subscription = None
        for confirmed in self._confirmed.values():
            confirmed.clear()
        for bells in self._bells.values():
            for bell in bells:
                bell.ring(None)
        if self._bells:
            self._connect()

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            with suppress(asyncio.CancelledError):
                await self._connecting
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None
