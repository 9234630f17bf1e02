"""Signs of life: leases renewed in time, orders heard at once, and what running jobs say passed on.

Two loops. One asks a renewal that waits for orders; the other carries news (pids, progress, output) a few times a second.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from windlass.model.errors import Missing, WindlassError
from windlass.model.operations import Alive, Began, Begin, Renew, Renewed, Service
from windlass.model.ports import Clock
from windlass.worker.held import Held, Stop
from windlass.worker.membership import Membership

log = logging.getLogger("windlass.worker")

TELL_EVERY = 0.25
"""Seconds between two deliveries of news."""

LONG_ENOUGH = 0.2
"""Seconds after which a job has run long enough for its pid to be of interest."""

TRY_AGAIN = 0.5


class Holder(Protocol):
    """Whoever holds the jobs."""

    held: dict[int, Held]

    def lose(self, ids: Iterable[str]) -> None: ...

    def halt(self, held: Held, why: Stop) -> None: ...


class Leases:
    """Keeps one worker's leases alive."""

    def __init__(self, holder: Holder, service: Service, membership: Membership, clock: Clock) -> None:
        self._holder = holder
        self._service = service
        self._membership = membership
        self._clock = clock
        self._news: dict[int, Held] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew())
            group.create_task(self._tell())

    def has_news(self, held: Held) -> None:
        self._news[held.number] = held

    def forget(self, held: Held) -> None:
        self._news.pop(held.number, None)

    async def _renew(self) -> None:
        while True:
            held = list(self._holder.held.values())
            jobs = [Alive(id=one.id, token=one.token) for one in held]
            try:
                wait = self._membership.lease / 3
                renewed = await self._service(Renew(**self._membership.names(), jobs=jobs, wait=wait))
            except Missing:
                await self._introduce_again()
            except WindlassError as fault:
                log.warning("cannot renew: %s", fault)
                await self._clock.sleep(TRY_AGAIN)
            else:
                self._obey(renewed)

    async def _introduce_again(self) -> None:
        try:
            await self._membership.introduce()
        except WindlassError as fault:
            log.warning("cannot register: %s", fault)
            await self._clock.sleep(TRY_AGAIN)

    def _obey(self, renewed: Renewed) -> None:
        if renewed.lost:
            self._holder.lose(renewed.lost)
        if renewed.orders:
            by_id = {held.id: held for held in self._holder.held.values()}
            for order in renewed.orders:
                if (held := by_id.get(order.id)) is not None:
                    self._holder.halt(held, Stop.CANCEL)

    async def _tell(self) -> None:
        while True:
            await self._clock.sleep(TELL_EVERY)
            try:
                await self.tell()
            except WindlassError as fault:
                log.info("news of running jobs is late: %s", fault)

    async def tell(self) -> None:
        """Pass on what there is to say of the jobs that run."""
        now = self._clock.monotonic()
        fresh = [one for one in self._holder.held.values() if not one.began and now - one.since > LONG_ENOUGH]
        began = [Began(id=one.id, token=one.token, pid=pid) for one in fresh if (pid := one.pid) is not None]
        if began:
            await self._service(Begin(**self._membership.names(), jobs=began))
            for one in fresh:
                one.began = one.pid is not None
        news, self._news = self._news, {}
        if news:
            said = [one.tell() for one in news.values()]
            self._obey(await self._service(Renew(**self._membership.names(), jobs=said)))
