"""Claiming: as many jobs as there are free slots, again and again, waiting where there is nothing to do."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any, Protocol, TypeVar, runtime_checkable

from windlass.model.errors import Busy, Damaged, Full, Missing, Unavailable, WindlassError
from windlass.model.handler import Language
from windlass.model.operations import MOST_AT_ONCE, Claim, Claimed, Glimpse, Hand, Service, Unrun
from windlass.model.ports import Chance, Clock
from windlass.worker.jobs import Jobs
from windlass.worker.membership import Membership

log = logging.getLogger("windlass.worker")

T = TypeVar("T")

WAIT = 30.0
"""Seconds that one claim waits for work."""

BURST_WAIT = 0.05
"""The same for a worker that ends when there is none: scheduled jobs that are due get their chance."""

GATHER = 0.002
"""Seconds that freed slots are gathered for one claim."""

HEAD_START = 0.001
"""Seconds that contexts get for what they were given, before the next claim of a store that has nothing more."""

TRY_AGAIN = (0.1, 0.2, 0.5, 1.0)
"""Seconds between tries while the store does not answer."""


@runtime_checkable
class HandsOver(Protocol):
    """A service in this process, which need not wait for an answer to travel."""

    def hand_to(self, worker: str, hand: Hand) -> None: ...


class Claims:
    """One worker's claims."""

    def __init__(self, jobs: Jobs, service: Service, membership: Membership, clock: Clock, chance: Chance) -> None:
        self._jobs = jobs
        self._service = service
        self._hands = service if isinstance(service, HandsOver) else None
        self._membership = membership
        self._clock = clock
        self._chance = chance
        self._asking: asyncio.Task[Any] | None = None
        """The task that claims, while it may be broken off."""
        self._broken_off = False
        self._giving_back: set[asyncio.Task[None]] = set()
        self._nonce: str | None = None
        """That of the claim on its way, until it has brought something."""
        self._stopped = False
        self._paused = False
        self._complained = False
        """Whether it has ever said that it cannot claim."""
        self.warm: Callable[[], Sequence[str]] = tuple
        """Says what has a context waiting for it, as `tenant/task`."""
        self.burst = False
        """Whether to end when there is nothing left to do, or nothing can be done."""
        self.languages: list[Language] | None = None
        """Those of handlers whose jobs are wanted; null = all."""
        self.able = asyncio.Event()
        """Set while claims are answered: whether this worker can work at all."""

    async def run(self, slots: int, most: int | None = None) -> None:
        """Until it is stopped, or so many have ended; in a burst, until nothing is left, or the store is damaged."""
        while not self._stopped and self._jobs.done < (most or inf):
            if self.burst and self._jobs.reports.damaged is not None and not self._jobs.held:
                raise self._jobs.reports.damaged
            free = self._free(slots, most)
            if free < 1 or self._rests():
                await self._jobs.some_ended()
                continue
            if free < slots // 4:
                await self._clock.sleep(GATHER)  # others are about to end: one claim for all of them
                free = self._free(slots, most)
                if self._rests():
                    continue
            idle = not self._jobs.held and self._jobs.reports.settled  # or what has ended may yet make new jobs
            asked = min(free, MOST_AT_ONCE)
            claimed = await self._claim(asked, BURST_WAIT if self.burst else WAIT)
            if claimed:
                if self._start(claimed) and len(claimed) < asked:
                    await self._clock.sleep(HEAD_START)
            elif self.burst and idle and not self._jobs.held and not self._paused:
                return

    def _free(self, slots: int, most: int | None) -> int:
        """How many jobs to ask for."""
        wanted = slots if most is None else min(slots, most - self._jobs.done)
        return wanted - len(self._jobs.held)

    def _rests(self) -> bool:
        return self._paused or self._stopped

    def stop(self) -> None:
        self._stopped = True
        self._break_off()

    def pause(self, paused: bool) -> None:
        if paused == self._paused:
            return
        self._paused = paused
        log.info("claims nothing until it is told to continue" if paused else "claims again")
        self._break_off()

    def take_only(self, languages: list[Language]) -> None:
        """From now on, of handlers' jobs only those in these languages."""
        self.languages = languages
        self._break_off()

    def _break_off(self) -> None:
        self._jobs.ended.set()
        if self._asking is not None and not self._broken_off:
            self._broken_off = True
            self._asking.cancel()

    async def introduce(self) -> bool:
        """Make this worker known to the queue, however long that takes; false = it was stopped before."""

        async def ask() -> bool:
            await self._membership.introduce()
            return True

        return bool(await self._unless_broken_off(ask))

    async def _claim(self, slots: int, wait: float) -> list[Claimed]:
        nonce = self._nonce = self._chance.token().hex()
        languages = self.languages

        async def ask() -> list[Claimed]:
            warm = list(self.warm())
            names = self._membership.names()
            if self._hands is not None:
                self._hands.hand_to(names["worker"], self._take)
            return await self._service(
                Claim(**names, slots=slots, wait=wait, nonce=nonce, warm=warm, languages=languages)
            )

        claimed = await self._unless_broken_off(ask)
        if claimed is None and self._nonce is not None:
            self._nonce = None
            task = asyncio.create_task(self._give_back(nonce, languages))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)
        return claimed or []

    async def given_back(self) -> None:
        """Until what a claim that was broken off may have taken is known, and on its way back."""
        while self._giving_back:
            await asyncio.wait(self._giving_back)

    def _take(self, glimpse: Glimpse | None, read: Callable[[], list[Claimed]]) -> None:
        """Start what is handed over; not when the claim is being broken off, which gives it back."""
        if self._paused or self._stopped:
            return
        if glimpse is None:
            self._start(read())
        elif glimpse.token.hex() == self._nonce:
            self._nonce = None
            self._jobs.start_at_a_glance(glimpse, read)

    def _start(self, claimed: list[Claimed]) -> bool:
        """Start what a claim has brought: once, though it may have been handed over before it is answered."""
        if claimed[0].token != self._nonce:
            return False
        self._nonce = None
        self._jobs.start(claimed)
        return True

    async def _give_back(self, nonce: str, languages: list[Language] | None) -> None:
        """A claim that was broken off may have taken jobs: asked again in the same words, it names them."""
        try:
            names = self._membership.names()
            taken = await self._service(Claim(**names, slots=1, nonce=nonce, languages=languages))
        except WindlassError:
            return  # their lease will run out
        for one in taken:
            tenant = one.job.tenant if self._membership.name_tenants else None
            self._jobs.reports.release(Unrun(id=one.job.id, token=one.token, tenant=tenant))

    async def _unless_broken_off(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask until the store answers; null = somebody did not want to wait for it."""
        if self._stopped:
            return None
        self._broken_off = False
        # No task of its own: every job that finds this worker idle would wait for one more round of the loop.
        task = self._asking = asyncio.current_task()
        try:
            return await self._patiently(ask)
        except asyncio.CancelledError:
            if not self._broken_off or task is None or task.uncancel():
                raise
            return None
        finally:
            self._asking = None

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        pauses = itertools.chain(TRY_AGAIN, itertools.repeat(TRY_AGAIN[-1]))
        while True:
            try:
                answer = await self._known(ask)
            except (Unavailable, Full, Busy, Missing) as fault:
                if self.burst and isinstance(fault, Damaged):
                    raise
                if self.able.is_set() or not self._complained:
                    log.warning("cannot claim: %s", fault)
                self._complained = True
                self.able.clear()
                await self._clock.sleep(next(pauses))
            else:
                if self._complained and not self.able.is_set():
                    log.info("claims are answered")
                self.able.set()
                return answer

    async def _known(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await ask()
        except Missing:
            await self._membership.introduce()
            return await ask()
