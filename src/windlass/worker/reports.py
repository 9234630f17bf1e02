"""Reports on their way to the queue: gathered while the last ones travel, sent until they are answered.

Nothing that has ended is forgotten while this process lives: a store that does not answer is asked again. Maybe only a
part of it does not: so what was not taken together is sent on by part, and what is for others goes on meanwhile.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from windlass.model.errors import Busy, Full, Missing, Unavailable, WindlassError
from windlass.model.lifecycle import Verdict
from windlass.model.operations import (
    MOST_AT_ONCE,
    Alive,
    Applied,
    Finish,
    Finished,
    Release,
    Renew,
    Service,
    Unrun,
)
from windlass.model.ports import Clock
from windlass.worker.membership import Membership
from windlass.worker.parts import Part, by_part, part_of

log = logging.getLogger("windlass.worker")

TRY_AGAIN = (0.05, 0.1, 0.2, 0.5, 1.0)
MOST_BYTES = 8 << 20
"""Of the results and new jobs in one report."""


PUT_OFF = (Unavailable, Full, Busy)
"""What passes by itself."""

MAKES = "+"
"""Added to the name of a part for reports with new jobs: those may be for another part, and must not hold up others."""


class Letter(NamedTuple):
    """Reports that are sent together, and how."""

    reports: Sequence[Any]
    ask: Callable[[Sequence[Any]], Awaitable[Applied]]
    instead: Callable[[Any, WindlassError], Any] | None
    """What is reported in the place of what cannot be taken."""


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
        self._late: dict[Part, list[Letter]] = {}
        """By part of the store what it has not taken yet, in order; somebody is at it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None
        """What nobody has expected, and ends the worker."""

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
        try:
            while True:
                await self._something.wait()
                self._something.clear()
                if self._broken is not None:
                    raise self._broken
                await self._send_all()
                self._look_whether_settled()
        finally:
            for task in self._tasks:
                task.cancel()

    async def _send_all(self) -> None:
        finished, self._finished = self._finished, []
        unrun, self._unrun = self._unrun, []
        if self._words:
            words, self._words = self._words, []
            await self._post(Letter(words, self._say, None))
        for batch in _batches(finished):
            await self._post(Letter(batch, self._finish, hopeless))
        for start in range(0, len(unrun), MOST_AT_ONCE):
            await self._post(Letter(unrun[start : start + MOST_AT_ONCE], self._release, None))

    def _look_whether_settled(self) -> None:
        if not self._finished and not self._unrun and not self._late:
            self._nothing.set()

    async def _finish(self, batch: Sequence[Finished]) -> Applied:
        return await self._service(Finish(**self._membership.names(), jobs=list(batch)))

    async def _say(self, batch: Sequence[Alive]) -> Applied:
        await self._service(Renew(**self._membership.names(), jobs=list(batch)))
        return Applied()  # whoever is lost or to be stopped has ended anyway

    async def _release(self, batch: Sequence[Unrun]) -> Applied:
        return await self._service(Release(**self._membership.names(), jobs=list(batch)))

    async def _post(self, letter: Letter) -> None:
        """Send it once; what is not taken, or is behind something for the same part that was not, is sent on later."""
        now = letter.reports
        if self._late:
            now = [report for report in letter.reports if part_of(report) not in self._late]
            self._put_off(letter._replace(reports=[one for one in letter.reports if part_of(one) in self._late]))
        if not now:
            return
        try:
            await self._send(letter._replace(reports=now))
        except PUT_OFF as fault:
            log.warning("cannot report: %s", fault)
            self._put_off(letter._replace(reports=now))

    def _put_off(self, letter: Letter) -> None:
        for part, reports in by_part(letter.reports).items():
            makes = [report for report in reports if _makes(report)] if part not in self._late else []
            plain = [report for report in reports if not _makes(report)] if makes else reports
            self._append(part, letter._replace(reports=plain))
            self._append(part + MAKES, letter._replace(reports=makes))

    def _append(self, part: Part, letter: Letter) -> None:
        if not letter.reports:
            return
        if part in self._late:
            self._late[part].append(letter)
            return
        self._late[part] = [letter]
        task = asyncio.create_task(self._send_late(part), name="windlass-reports")
        self._tasks.add(task)
        task.add_done_callback(self._has_sent_late)

    def _has_sent_late(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._broken = fault
            self._something.set()

    async def _send_late(self, part: Part) -> None:
        """Send what is for one part of the store until all of it is answered."""
        letters = self._late[part]
        pauses = itertools.chain(TRY_AGAIN, itertools.repeat(TRY_AGAIN[-1]))
        while letters:
            try:
                await self._send(letters[0])
            except PUT_OFF as fault:
                log.debug("cannot report yet: %s", fault)
                await self._clock.sleep(next(pauses))
            else:
                letters.pop(0)
        del self._late[part]
        self._look_whether_settled()

    async def _send(self, letter: Letter) -> None:
        """Raises what passes by itself. What cannot be taken as it is, is replaced by a report that says so."""
        try:
            answer = await letter.ask(letter.reports)
        except Missing as fault:
            await self._introduce_again()
            raise Unavailable(str(fault)) from fault
        except PUT_OFF:
            raise
        except WindlassError as fault:
            await self._one_by_one(letter, fault)
        else:
            if answer.refused:
                log.warning("%d reports refused: those jobs are no longer this worker's", len(answer.refused))

    async def _introduce_again(self) -> None:
        try:
            await self._membership.introduce()
        except WindlassError as fault:
            log.warning("cannot register: %s", fault)

    async def _one_by_one(self, letter: Letter, fault: WindlassError) -> None:
        if len(letter.reports) > 1:
            for one in letter.reports:
                await self._post(letter._replace(reports=[one]))
        elif letter.instead is not None:
            await self._post(Letter([letter.instead(letter.reports[0], fault)], letter.ask, None))
        else:
            log.error("job %s: the queue does not take its report: %s", letter.reports[0].id, fault)


def _makes(report: Any) -> bool:
    """Whether a report has new jobs."""
    return bool(getattr(report, "jobs", None))


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
