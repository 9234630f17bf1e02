"""Signs of life: leases renewed in time, orders heard at once, and what running jobs say passed on.

Two loops. One asks a renewal that waits for orders and messages; the other carries news (pids, progress, output) a few
times a second.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Protocol

from windlass.model.errors import Missing, Unavailable, WindlassError
from windlass.model.operations import MOST_AT_ONCE, Alive, Began, Begin, Delivered, Renew, Renewed, Service
from windlass.model.ports import Clock
from windlass.worker.held import Held, Stop
from windlass.worker.membership import Membership
from windlass.worker.parts import apart, tell_all

log = logging.getLogger("windlass.worker")

TELL_EVERY = 0.25
"""Seconds between two deliveries of news."""

LONG_ENOUGH = 0.2
"""Seconds after which a job has run long enough for its pid to be of interest."""

TRY_AGAIN = 0.5

YOUNG = 0.1
"""Seconds during which nobody asks about a job: most have ended by then."""

PAUSE = 0.02
"""Seconds between two questions, at least."""


class Holder(Protocol):
    """Whoever holds the jobs."""

    held: dict[int, Held]

    def lose(self, held: Held) -> None: ...

    def halt(self, held: Held, why: Stop) -> None: ...

    def shorten(self, held: Held, deadline: datetime) -> None: ...

    def give(self, held: Held, messages: Sequence[Delivered]) -> None: ...


class Leases:
    """Keeps one worker's leases alive."""

    def __init__(self, holder: Holder, service: Service, membership: Membership, clock: Clock) -> None:
        self._holder = holder
        self._service = service
        self._membership = membership
        self._clock = clock
        self._news: dict[int, Held] = {}
        self._patient: asyncio.Future[Renewed] | None = None
        """A question that waits long, unless it is to be broken off soon anyway."""
        self._hurried = False
        self._apart = False
        """Whether something was not heard the last time: maybe only a part of the store is away."""

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
            started = self._clock.monotonic()
            held = self._holder.held.values()
            grown = [one for one in held if started - one.since >= YOUNG]
            asked, *others = apart(grown)
            wait = self._membership.lease / 3 if len(grown) == len(held) and not others else YOUNG
            try:
                for some in others:
                    self._obey(some, await self._ask(some, 0.0))
                renewed = await self._ask(asked, wait)
            except Missing:
                await self._introduce_again()
            except WindlassError as fault:
                log.warning("cannot renew: %s", fault)
                await self._clock.sleep(TRY_AGAIN)
            else:
                self._obey(asked, renewed)
                # It may have been answered early for nothing: a job that ended meanwhile, or is being stopped already.
                # And a message that has just come is mostly taken in that time, so that the next question asks on.
                since = self._clock.monotonic() if renewed.messages else started
                await self._clock.sleep(max(0.0, since + PAUSE - self._clock.monotonic()))

    async def _ask(self, jobs: list[Held], wait: float) -> Renewed:
        """Ask for orders; broken off when jobs have come meanwhile, for the answer would not speak of them."""
        alive = [
            Alive(id=one.id, token=one.token, tenant=one.tenant, deadline=one.told_deadline, heard=one.heard)
            for one in jobs
        ]
        for one, asked in zip(jobs, alive, strict=True):
            one.asked = asked.heard is not None
        asking = asyncio.ensure_future(self._service(Renew(**self._membership.names(), jobs=alive, wait=wait)))
        if wait > YOUNG:
            self._patient = asking
        try:
            return await asking
        except asyncio.CancelledError:
            if not self._hurried:
                raise
            return Renewed()
        finally:
            self._patient = None
            self._hurried = False

    def has_come(self) -> None:
        """A job has been started."""
        if self._patient is not None:
            asyncio.get_running_loop().call_later(YOUNG, self._hurry_if_grown, self._patient)
            self._patient = None

    def has_room(self, held: Held) -> None:
        """A job has taken what was sent to it: it wants more, if the question on its way does not say so."""
        if self._patient is not None and held.heard is not None and not held.asked:
            self._hurry(self._patient)
            self._patient = None

    def _hurry_if_grown(self, asking: "asyncio.Future[Renewed]") -> None:
        """Break a question off for jobs that it does not speak of; not for what has ended, or has just begun."""
        if asking.done():
            return
        oldest = next(iter(self._holder.held.values()), None)  # they are held in the order they came
        if oldest is None:
            self._patient = asking
            return
        left = oldest.since + YOUNG - self._clock.monotonic()
        if left <= 0:
            self._hurry(asking)
        else:
            asyncio.get_running_loop().call_later(max(left, PAUSE), self._hurry_if_grown, asking)

    def _hurry(self, asking: "asyncio.Future[Renewed]") -> None:
        self._hurried = asking.cancel()

    async def _introduce_again(self) -> None:
        try:
            await self._membership.introduce()
        except WindlassError as fault:
            log.warning("cannot register: %s", fault)
            await self._clock.sleep(TRY_AGAIN)

    def _obey(self, asked: Sequence[Held], renewed: Renewed) -> None:
        """Do what the answer says of those that were asked about and still run."""
        if not (renewed.lost or renewed.orders or renewed.messages):
            return
        # A job may have come back meanwhile, as another run: the answer does not speak of that one.
        running = {one.id: one for one in asked if self._holder.held.get(one.number) is one}
        for id in renewed.lost:
            if id in running:
                self._holder.lose(running[id])
        for id, messages in groupby(renewed.messages, key=attrgetter("id")):
            if id in running:
                self._holder.give(running[id], list(messages))
        for order in renewed.orders:
            if order.id not in running:
                continue
            if order.deadline is not None:
                self._holder.shorten(running[order.id], order.deadline)
            else:
                self._holder.halt(running[order.id], Stop.CANCEL)

    async def _tell(self) -> None:
        told = ""
        while True:
            await self._clock.sleep(TELL_EVERY)
            try:
                await self.tell()
                told = ""
            except WindlassError as fault:
                if str(fault) != told:  # what lasts is told once
                    log.info("news of running jobs is late: %s", fault)
                told = str(fault)

    async def tell(self) -> None:
        """Pass on what there is to say of the jobs that run."""
        long_ago = self._clock.monotonic() - LONG_ENOUGH
        fresh = [one for one in self._holder.held.values() if not one.began and one.since < long_ago]
        begun = [one for one in fresh if one.pid is not None][:MOST_AT_ONCE]
        late = await tell_all(begun, self._tell_pids, apart=self._apart)
        news, self._news = list(self._news.values()), {}
        for some in apart(news):
            late = await self._tell_news(some) or late
        self._apart = late is not None
        if late is not None:
            raise late

    async def _tell_pids(self, began: Sequence[Held]) -> None:
        jobs = [
            Began(
                id=one.id, token=one.token, tenant=one.tenant, pid=pid, sandbox=one.sandbox, handler_version=one.version
            )
            for one in began
            if (pid := one.pid) is not None
        ]
        await self._service(Begin(**self._membership.names(), jobs=jobs))
        for one in began:
            one.began = True

    async def _tell_news(self, news: Sequence[Held]) -> Unavailable | None:
        """Jobs that end meanwhile wait with their reports until it is sent, or known not to be."""
        saying = asyncio.get_running_loop().create_future()
        for one in news:
            one.saying = saying
        said = [one.tell() for one in news]
        try:
            return await tell_all(said, partial(self._pass_on, news), apart=self._apart)
        finally:
            for one in news:
                one.saying = None
            saying.set_result(None)

    async def _pass_on(self, news: Sequence[Held], said: Sequence[Alive]) -> None:
        try:
            renewed = await self._service(Renew(**self._membership.names(), jobs=list(said)))
        except BaseException:
            speakers = {one.id: one for one in news}
            for alive in said:
                speaker = speakers[alive.id]
                speaker.take_back(alive)
                if self._holder.held.get(speaker.number) is speaker:
                    self._news[speaker.number] = speaker
            raise
        self._obey(news, renewed)
