"""Reports on their way to the queue: gathered while the last ones travel, sent until they are answered.

Nothing that has ended is forgotten while this process lives: a store that does not answer is asked again.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from windlass.model.errors import Busy, Full, Missing, Unavailable, WindlassError
from windlass.model.lifecycle import Verdict
from windlass.model.operations import (
    MOST_AT_ONCE,
    Alive,
    Applied,
    Finish,
    Finished,
    Held,
    Release,
    Renew,
    Service,
    Unrun,
)
from windlass.model.ports import Clock
from windlass.worker.membership import Membership

log = logging.getLogger("windlass.worker")

H = TypeVar("H", bound=Held)

TRY_AGAIN = (0.05, 0.1, 0.2, 0.5, 1.0)
MOST_BYTES = 8 << 20
"""Of the results and new jobs in one report."""


class Reports:
    """One worker's reports."""

    def __init__(self, service: Service, membership: Membership, clock: Clock) -> None:
        self._service = service
        self._membership = membership
        self._clock = clock
        self._finished: list[Finished] = []
        self._unrun: list[Unrun] = []
        self._words: list[Alive] = []
        self._something = asyncio.Event()
        self._nothing = asyncio.Event()
        self._nothing.set()

    def finish(self, report: Finished, last_words: Alive | None = None) -> None:
        """Report how a job ended; what it said last is passed on before, for afterwards nobody may speak for it."""
        self._finished.append(report)
        if last_words is not None:
            self._words.append(last_words)
        self._note()

    def release(self, report: Unrun) -> None:
        self._unrun.append(report)
        self._note()

    def _note(self) -> None:
        self._something.set()
        self._nothing.clear()

    @property
    def settled(self) -> bool:
        """Whether everything is reported."""
        return self._nothing.is_set()

    async def flush(self) -> None:
        """Until everything is reported."""
        await self._nothing.wait()

    async def run(self) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            finished, self._finished = self._finished, []
            unrun, self._unrun = self._unrun, []
            if self._words:
                words, self._words = self._words, []
                await self._send(words, self._say, None)
            for batch in _batches(finished):
                await self._send(batch, self._finish, hopeless)
            for start in range(0, len(unrun), MOST_AT_ONCE):
                await self._send(unrun[start : start + MOST_AT_ONCE], self._release, None)
            if not self._finished and not self._unrun:
                self._nothing.set()

    async def _finish(self, batch: Sequence[Finished]) -> Applied:
        return await self._service(Finish(**self._membership.names(), jobs=list(batch)))

    async def _say(self, batch: Sequence[Alive]) -> Applied:
        await self._service(Renew(**self._membership.names(), jobs=list(batch)))
        return Applied()  # whoever is lost or to be stopped has ended anyway

    async def _release(self, batch: Sequence[Unrun]) -> Applied:
        return await self._service(Release(**self._membership.names(), jobs=list(batch)))

    async def _send(
        self,
        batch: Sequence[H],
        ask: Callable[[Sequence[H]], Awaitable[Applied]],
        instead: Callable[[H, WindlassError], H] | None,
    ) -> None:
        """Send until it is answered. What cannot be taken as it is, is replaced by a report that says so."""
        for pause in itertools.chain(TRY_AGAIN, itertools.repeat(TRY_AGAIN[-1])):
            try:
                answer = await ask(batch)
            except (Unavailable, Full, Busy) as fault:
                log.warning("cannot report: %s", fault)
                await self._clock.sleep(pause)
            except Missing:
                await self._introduce_again(pause)
            except WindlassError as fault:
                await self._one_by_one(batch, ask, instead, fault)
                return
            else:
                if answer.refused:
                    log.warning("%d reports refused: those jobs are no longer this worker's", len(answer.refused))
                return

    async def _introduce_again(self, pause: float) -> None:
        try:
            await self._membership.introduce()
        except WindlassError as fault:
            log.warning("cannot register: %s", fault)
            await self._clock.sleep(pause)

    async def _one_by_one(
        self,
        batch: Sequence[H],
        ask: Callable[[Sequence[H]], Awaitable[Applied]],
        instead: Callable[[H, WindlassError], H] | None,
        fault: WindlassError,
    ) -> None:
        if len(batch) > 1:
            for one in batch:
                await self._send([one], ask, instead)
        elif instead is not None:
            await self._send([instead(batch[0], fault)], ask, None)
        else:
            log.error("job %s: the queue does not take its report: %s", batch[0].id, fault)


def hopeless(report: Finished, fault: WindlassError) -> Finished:
    """What is said of a job whose own report is refused, because its result is too large for instance."""
    message = f"the outcome could not be kept: {fault}"
    return Finished(id=report.id, token=report.token, outcome=Verdict.FAILED, message=message)


def _batches(reports: list[Finished]) -> list[list[Finished]]:
    """Split by number, and by size."""
    batches: list[list[Finished]] = []
    size = MOST_BYTES
    for report in reports:
        weight = _weight(report)
        if not batches or len(batches[-1]) >= MOST_AT_ONCE or size + weight > MOST_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(report)
        size += weight
    return batches


def _weight(report: Finished) -> int:
    result = len(memoryview(report.result)) if report.result else 0
    return result + sum(len(memoryview(job.payload)) for job in report.jobs) if report.jobs else result
