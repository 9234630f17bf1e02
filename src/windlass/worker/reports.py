"""Reports on their way to the queue: gathered while the last ones travel, sent until they are answered.

Nothing that has ended is forgotten while this process lives: a store that does not answer is asked again. Maybe only a
part of it does not: so what was not taken together is sent on by part, and what is for others goes on meanwhile.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from windlass.model.errors import Busy, Damaged, Full, Missing, Unavailable, WindlassError
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
from windlass.worker.parts import part_of

log = logging.getLogger("windlass.worker")

TRY_AGAIN = (0.05, 0.1, 0.2, 0.5, 1.0)
MOST_BYTES = 8 << 20
"""Of the results and new jobs in one report."""


PUT_OFF = (Unavailable, Full, Busy)
"""What passes by itself."""

Line = str
"""What is said in one line is taken in order."""

MAKES = "+"
"""Added to the name of a part for reports with new jobs: those may be for another part, and must not hold up others."""


class Letter(NamedTuple):
    """Reports that are sent together, and how."""

    reports: Sequence[Any]
    ask: Callable[[Sequence[Any]], Awaitable[Applied]]
    makers: frozenset[str]
    """Ids of jobs whose reports have new ones."""
    instead: Callable[[Any, WindlassError], Any] | None = None
    """What is reported in the place of what cannot be taken."""
    size: int = 0
    """Bytes of its results and new jobs, once it waits in a line."""

    def with_more(self, other: "Letter") -> "Letter | None":
        """Both in one, if they are of one kind and that is not too much."""
        if self.ask != other.ask or self.instead != other.instead:
            return None
        if len(self.reports) + len(other.reports) > MOST_AT_ONCE or self.size + other.size > MOST_BYTES:
            return None
        reports = [*self.reports, *other.reports]
        return self._replace(reports=reports, makers=self.makers | other.makers, size=self.size + other.size)

    def lines(self) -> "dict[Line, Letter]":
        """The same by line. What a job said last is in the line of its end."""
        found: dict[Line, list[Any]] = {}
        for report in self.reports:
            line = part_of(report) + (MAKES if report.id in self.makers else "")
            found.setdefault(line, []).append(report)
        return {line: self._replace(reports=reports) for line, reports in found.items()}


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
        self._sending = False
        self._awaited = 0
        """Reports that wait until the last update of their jobs is sent."""
        self._late: dict[Line, list[Letter]] = {}
        """What was not taken yet, in order; somebody is at it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.damaged: Damaged | None = None
        """Why something could not be reported, and cannot be until the store is repaired."""
        self._broken: BaseException | None = None
        """What nobody has expected, and ends the worker."""

    @property
    def name_tenants(self) -> bool:
        """Whether each report must say whose job it is of."""
        return self._membership.name_tenants

    def finish(self, report: Finished, last_words: Alive | None = None) -> None:
        """Report how a job ended; what it said last is passed on before, for afterwards nobody may speak for it."""
        self._finished.append(report)
        if last_words is not None:
            self._words.append(last_words)
        self._note()

    def finish_after(self, saying: "asyncio.Future[None]", report: Callable[[], tuple[Finished, Alive | None]]) -> None:
        """The same for a job whose last news is on its way: what was not heard of it is passed on with its end."""
        self._awaited += 1
        self._nothing.clear()

        def finish(_: object) -> None:
            self._awaited -= 1
            self.finish(*report())

        saying.add_done_callback(finish)

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
                self._sending = True
                await self._send_all()
                self._sending = False
                self._look_whether_settled()
        finally:
            for task in self._tasks:
                task.cancel()

    async def _send_all(self) -> None:
        finished, self._finished = self._finished, []
        unrun, self._unrun = self._unrun, []
        words, self._words = self._words, []
        makers = frozenset(report.id for report in finished if report.jobs)
        if words:
            await self._post(Letter(words, self._say, makers))
        for batch in _batches(finished):
            await self._post(Letter(batch, self._finish, makers, hopeless))
        for start in range(0, len(unrun), MOST_AT_ONCE):
            await self._post(Letter(unrun[start : start + MOST_AT_ONCE], self._release, makers))

    def _look_whether_settled(self) -> None:
        if not (self._sending or self._finished or self._unrun or self._late or self._awaited):
            self._nothing.set()

    async def _finish(self, batch: Sequence[Finished]) -> Applied:
        return await self._service(Finish(**self._membership.names(), jobs=list(batch)))

    async def _say(self, batch: Sequence[Alive]) -> Applied:
        await self._service(Renew(**self._membership.names(), jobs=list(batch)))
        return Applied()  # whoever is lost or to be stopped has ended anyway

    async def _release(self, batch: Sequence[Unrun]) -> Applied:
        return await self._service(Release(**self._membership.names(), jobs=list(batch)))

    async def _post(self, letter: Letter) -> None:
        """Send it once; what is not taken, or is behind something in its line that was not, is sent on later."""
        if self._late:
            lines = letter.lines()
            for line in lines.keys() & self._late.keys():
                self._put_off(line, lines.pop(line))
            letter = letter._replace(reports=[report for one in lines.values() for report in one.reports])
        if not letter.reports:
            return
        try:
            instead = await self._send(letter)
        except PUT_OFF as fault:
            self.damaged = fault if isinstance(fault, Damaged) else None
            log.warning("cannot report: %s", fault)
            for line, part in letter.lines().items():
                self._put_off(line, part)
        else:
            for one in instead:
                await self._post(one)

    def _put_off(self, line: Line, letter: Letter) -> None:
        letter = letter._replace(size=sum(_weight(one) for one in letter.reports if isinstance(one, Finished)))
        if line in self._late:
            # Together with the last one, unless that is on its way: else a worker that goes on meanwhile ends jobs by
            # the handful, and would send them on by the handful for as long as it has work.
            waiting = self._late[line]
            more = waiting[-1].with_more(letter) if len(waiting) > 1 else None
            waiting[-1 if more else len(waiting) :] = [more or letter]
            return
        self._late[line] = [letter]
        task = asyncio.create_task(self._send_late(line), name="windlass-reports")
        self._tasks.add(task)
        task.add_done_callback(self._has_sent_late)

    def _has_sent_late(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._broken = fault
            self._something.set()

    async def _send_late(self, line: Line) -> None:
        """Send what is in a line until all of it is answered."""
        letters = self._late[line]
        pauses = itertools.chain(TRY_AGAIN, itertools.repeat(TRY_AGAIN[-1]))
        while letters:
            try:
                letters[:1] = await self._send(letters[0])
            except PUT_OFF as fault:
                log.debug("cannot report yet: %s", fault)
                await self._clock.sleep(next(pauses))
        del self._late[line]
        self._look_whether_settled()

    async def _send(self, letter: Letter) -> list[Letter]:
        """What is to be sent in its place, if it cannot be taken as it is; raises what passes by itself."""
        known_as = self._membership.worker
        try:
            answer = await letter.ask(letter.reports)
        except Missing as fault:
            if self._membership.worker == known_as:  # or another letter has seen to it
                await self._introduce_again()
            raise Unavailable(str(fault)) from fault
        except PUT_OFF:
            raise
        except WindlassError as fault:
            return _instead_of(letter, fault)
        if answer.refused:
            log.warning("%d reports refused: those jobs are no longer this worker's", len(answer.refused))
        return []

    async def _introduce_again(self) -> None:
        try:
            await self._membership.introduce()
        except WindlassError as fault:
            log.warning("cannot register: %s", fault)


def _instead_of(letter: Letter, fault: WindlassError) -> list[Letter]:
    """Each report by itself; of a single one, another that says what is wrong."""
    if len(letter.reports) > 1:
        return [letter._replace(reports=[one]) for one in letter.reports]
    (report,) = letter.reports
    if letter.instead is None:
        log.error("job %s: the queue does not take its report: %s", report.id, fault)
        return []
    log.warning("%s failed: the outcome could not be kept: %s", report.id, fault)
    return [letter._replace(reports=[letter.instead(report, fault)], instead=None)]


def hopeless(report: Finished, fault: WindlassError) -> Finished:
    """What is said of a job whose own report is refused, because its result is too large for instance."""
    message = f"the outcome could not be kept: {fault}"
    return Finished(id=report.id, token=report.token, tenant=report.tenant, outcome=Verdict.FAILED, message=message)


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
