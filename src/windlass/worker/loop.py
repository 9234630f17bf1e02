"""The worker's loop: claim as many jobs as there are free slots, start them, claim again when some have ended.

The answer to a claim is the only path by which a job reaches a runner. A claim that finds nothing waits in the store;
one that is cancelled while it waits may have taken jobs, and those are released.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any, TypeVar

from windlass.model.errors import Busy, Damaged, Full, Missing, Unavailable, WindlassError
from windlass.model.handler import Language
from windlass.model.operations import MOST_AT_ONCE, Claim, Claimed, Released, Service
from windlass.model.ports import Clock, Randomness
from windlass.worker.reports import Registration
from windlass.worker.runs import RunnerOf, RunTable

log = logging.getLogger("windlass.worker")

T = TypeVar("T")

WAIT = 30.0
"""Seconds that one claim waits for work."""

BURST_WAIT = 0.05
"""The same for a worker that exits when there is none: scheduled jobs that are due get their chance."""

GATHER = 0.002
"""Seconds that freed slots are gathered for one claim."""

HEAD_START = 0.001
"""Seconds that contexts get for what they were given, before the next claim of a store that has nothing more."""

TRY_AGAIN = (0.1, 0.2, 0.5, 1.0)
"""Seconds between attempts while the store does not answer."""


class WorkerLoop:
    """One worker's claims."""

    def __init__(
        self,
        runs: RunTable,
        runner_of: RunnerOf,
        service: Service,
        registration: Registration,
        *,
        clock: Clock,
        chance: Randomness,
        burst: bool = False,
        warm: Callable[[], Sequence[str]] = tuple,
        languages: list[Language] | None = None,
    ) -> None:
        """`burst`: end when nothing is left. `warm`: what has a warm context, as `tenant/task`.

        `languages`: those of handlers whose jobs are wanted; null = all.
        """
        self._runs = runs
        self._runner_of = runner_of
        self._service = service
        self._registration = registration
        self._clock = clock
        self._chance = chance
        self._burst = burst
        self._warm = warm
        self._languages = languages
        self._asking: asyncio.Task[Any] | None = None
        """The task that claims, while it may be interrupted."""
        self._interrupted = False
        self._releasing: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._paused = False
        self._suspended = False
        """Whether no context can be started now, so that nothing that is claimed could run."""
        self._complained = False
        """Whether it has ever logged that it cannot claim."""
        self._able = False

    @property
    def able(self) -> bool:
        """Whether claims are answered: whether this worker can work at all."""
        return self._able

    @property
    def languages(self) -> list[Language] | None:
        return self._languages

    async def run(self, slots: int, most: int | None = None) -> None:
        """Until it is stopped, or `most` jobs have ended; in a burst, until nothing is left or the store is damaged."""
        while not self._stopped and self._runs.done < (most or inf):
            if self._burst and self._runs.reports.damaged is not None and not self._runs.active:
                raise self._runs.reports.damaged
            free = self._free(slots, most)
            if free < 1 or self._rests():
                await self._runs.some_ended()
                continue
            if free < slots // 4:
                await self._clock.sleep(GATHER)  # others are about to end: one claim for all of them
                free = self._free(slots, most)
                if self._rests():
                    continue
            idle = not self._runs.active and self._runs.reports.settled  # reports on their way may make new jobs
            asked = min(free, MOST_AT_ONCE)
            claimed = await self._claim(asked, BURST_WAIT if self._burst else WAIT)
            if claimed:
                self._runs.start(claimed, self._runner_of)
                if len(claimed) < asked:
                    await self._clock.sleep(HEAD_START)
            elif self._burst and idle and not self._runs.active and not self._rests():
                return

    def _free(self, slots: int, most: int | None) -> int:
        """How many jobs to ask for."""
        wanted = slots if most is None else min(slots, most - self._runs.done)
        return wanted - len(self._runs.active)

    def _rests(self) -> bool:
        return self._paused or self._suspended or self._stopped

    def stop(self) -> None:
        self._stopped = True
        self._interrupt()

    def pause(self, paused: bool) -> None:
        if paused == self._paused:
            return
        self._paused = paused
        log.info("claiming paused" if paused else "claiming resumed")
        self._interrupt()

    def suspend(self, suspended: bool) -> None:
        """Claim nothing while no context can be started."""
        self._suspended = suspended
        self._interrupt()

    def take_only(self, languages: list[Language]) -> None:
        """From now on, claim handlers' jobs only in these languages."""
        self._languages = languages
        self._interrupt()

    def _interrupt(self) -> None:
        self._runs.changed.set()
        if self._asking is not None and not self._interrupted:
            self._interrupted = True
            self._asking.cancel()

    async def register(self) -> bool:
        """Register this worker, however long that takes; false = it was stopped first."""

        async def ask() -> bool:
            await self._registration.register()
            return True

        return bool(await self._unless_interrupted(ask))

    async def _claim(self, slots: int, wait: float) -> list[Claimed]:
        nonce = self._chance.token().hex()
        languages = self._languages

        async def ask() -> list[Claimed]:
            warm, names = list(self._warm()), self._registration.names()
            return await self._service(
                Claim(**names, slots=slots, wait=wait, nonce=nonce, warm=warm, languages=languages)
            )

        claimed = await self._unless_interrupted(ask)
        if claimed is None:
            task = asyncio.create_task(self._release(nonce, languages))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)
        return claimed or []

    async def released(self) -> None:
        """Wait until what an interrupted claim may have taken is known, and its release is being reported."""
        while self._releasing:
            await asyncio.wait(self._releasing)

    async def _release(self, nonce: str, languages: list[Language] | None) -> None:
        """An interrupted claim may have taken jobs: sent again with the same nonce, it names them."""
        try:
            names = self._registration.names()
            taken = await self._service(Claim(**names, slots=1, nonce=nonce, languages=languages))
        except WindlassError:
            return  # their lease will run out
        for one in taken:
            tenant = one.job.tenant if self._registration.name_tenants else None
            self._runs.reports.release(Released(id=one.job.id, token=one.token, tenant=tenant))

    async def _unless_interrupted(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask until the store answers; null = interrupted."""
        if self._stopped:
            return None
        self._interrupted = False
        # No task of its own: every job that finds this worker idle would wait for one more round of the event loop.
        task = self._asking = asyncio.current_task()
        try:
            return await self._until_answered(ask)
        except asyncio.CancelledError:
            if not self._interrupted or task is None or task.uncancel():
                raise
            return None
        finally:
            self._asking = None

    async def _until_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        pauses = itertools.chain(TRY_AGAIN, itertools.repeat(TRY_AGAIN[-1]))
        while True:
            try:
                answer = await self._registered(ask)
            except (Unavailable, Full, Busy, Missing) as fault:
                if self._burst and isinstance(fault, Damaged):
                    raise
                if self._able or not self._complained:
                    log.warning("cannot claim: %s", fault)
                self._complained = True
                self._able = False
                await self._clock.sleep(next(pauses))
            else:
                if self._complained and not self._able:
                    log.info("claims are answered again")
                self._able = True
                return answer

    async def _registered(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await ask()
        except Missing:
            await self._registration.register()
            return await ask()
