"""What a worker reports to the queue: which jobs have begun, what they say, how they ended.

Reports are batched while the last ones travel, and sent until they are answered: nothing that has ended is forgotten
while this process lives. Perhaps only a part of the store does not answer, so a batch that was not taken is retried by
partition while reports for other partitions go on. How many partitions there are is the store's business; ids of one
queue end alike.
"""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from windlass.model.errors import Busy, Damaged, Full, Missing, Unavailable, WindlassError
from windlass.model.operations import (
    MOST_AT_ONCE,
    A,
    Alive,
    Applied,
    Began,
    Begin,
    Finish,
    Finished,
    LeasedJob,
    Operation,
    Release,
    Released,
    Renew,
)
from windlass.model.outcome import Verdict
from windlass.model.ports import Clock
from windlass.worker.claims import Registration, WorkerNames

log = logging.getLogger("windlass.worker")
job_log = logging.getLogger("windlass.job")

TRY_AGAIN = (0.05, 0.1, 0.2, 0.5, 1.0)
MOST_UNKNOWN = 5
"""How often a question is asked again that the queue does not know, or of a worker that it does not know."""

MOST_BYTES = 8 << 20
"""Of the results, files and new jobs that are sent in one request."""

TEMPORARY = (Unavailable, Full, Busy)
"""Errors after which the same report is sent again."""

Answered = Callable[[bool], None]
"""Gets whether the job was still this worker's."""

ReportLine = str
"""Reports of one line are taken in order."""

SPAWNS = "+"
"""Added to the partition of reports with new jobs: those may be for another partition, and must not block others."""


# Reports by partition


class Named(Protocol):
    """A report on a job."""

    @property
    def id(self) -> str: ...


N = TypeVar("N", bound=Named)
E = TypeVar("E", Finished, Released)


def partition_of(report: Named) -> str:
    return report.id[-2:]


def without_repeats(reports: Iterable[N]) -> list[list[N]]:
    """Lists in which no id is twice, mostly one: two tenants may have jobs of the same id, a run two updates."""
    lists: list[list[N]] = [[]]
    seen: Counter[str] = Counter()
    for one in reports:
        if seen[one.id] == len(lists):
            lists.append([])
        lists[seen[one.id]].append(one)
        seen[one.id] += 1
    return lists


class ReportBatch(NamedTuple):
    """Reports that are sent together, and how."""

    reports: Sequence[Any]
    send: Callable[[Sequence[Any]], Awaitable[Applied]]
    spawning: frozenset[str]
    """Ids of jobs whose reports have new jobs."""
    instead: Callable[[Any, WindlassError], Any] | None = None
    """What is reported instead of a report that the queue refuses."""
    size: int = 0
    """Bytes of its results, files and new jobs, once it waits in a line."""

    def with_more(self, other: "ReportBatch") -> "ReportBatch | None":
        """Both in one, if they are of one kind and that is not too much."""
        if self.send != other.send or self.instead != other.instead:
            return None
        if len(self.reports) + len(other.reports) > MOST_AT_ONCE or self.size + other.size > MOST_BYTES:
            return None
        reports = [*self.reports, *other.reports]
        return self._replace(reports=reports, spawning=self.spawning | other.spawning, size=self.size + other.size)

    def lines(self) -> "dict[ReportLine, ReportBatch]":
        """The same by line. A job's last update is in the line of its outcome."""
        found: dict[ReportLine, list[Any]] = {}
        for report in self.reports:
            line = partition_of(report) + (SPAWNS if report.id in self.spawning else "")
            found.setdefault(line, []).append(report)
        return {line: self._replace(reports=reports) for line, reports in found.items()}


class Reports:
    """One worker's reports. `run` until it is cancelled."""

    def __init__(self, registration: Registration, clock: Clock) -> None:
        self._registration = registration
        self._clock = clock
        self._finished: list[Finished] = []
        self._released: list[Released] = []
        self._began: list[Began] = []
        self._updates: list[Alive] = []
        self._updating: set[tuple[str, str]] = set()
        """Runs with an update that is not answered, by id and token."""
        self._awaited: dict[tuple[type, str, str], Answered] = {}
        """What is called when a report of this kind on a run has been answered."""
        self._ends: dict[tuple[str, str], str] = {}
        """What to log of ended runs when the queue has stored their outcome, by id and token."""
        self._something = asyncio.Event()
        self._nothing = asyncio.Event()
        self._nothing.set()
        self._sending = False
        self._late: dict[ReportLine, list[ReportBatch]] = {}
        """What was not taken yet, in order; a task sends each line."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.damaged: Damaged | None = None
        """Why something could not be reported, and cannot be until the store is repaired."""
        self._broken: BaseException | None = None
        """An unexpected error, which ends the worker."""

    @property
    def name_tenants(self) -> bool:
        return self._registration.name_tenants

    def finish(self, report: Finished, last_updates: Sequence[Alive] = (), line: str | None = None) -> None:
        """Report how a job ended. Its last updates are sent first: after its end the queue takes none.

        The line is logged when the queue has stored the outcome.
        """
        self._finished.append(report)
        if line is not None:
            self._ends[report.id, report.token] = line
        self._note(last_updates)

    def release(self, report: Released, last_updates: Sequence[Alive] = ()) -> None:
        """Return a job to the queue; this run does not count."""
        self._released.append(report)
        self._note(last_updates)

    def when_answered(self, report: LeasedJob, answered: Answered) -> None:
        """Call this when the report, which is about to be sent, has been answered."""
        self._awaited[type(report), report.id, report.token] = answered

    def last_updates(self, updates: Sequence[Alive]) -> None:
        """Send what a run had to say that goes on without this worker."""
        self._note(updates)

    def begin(self, report: Began) -> None:
        """Report which process runs a job."""
        self._began.append(report)
        self._something.set()

    def update(self, update: Alive) -> None:
        """Send what a running job has to say."""
        self._updates.append(update)
        self._updating.add((update.id, update.token))
        self._something.set()

    def ask(self, make: Callable[[WorkerNames], Operation[A]], answered: Callable[[A | WindlassError], None]) -> None:
        """Ask the queue something for a run, until it answers; then call this. An error is an answer that stays."""
        task = asyncio.create_task(self._ask(make, answered), name="windlass-ask")
        self._tasks.add(task)
        task.add_done_callback(self._has_sent_late)

    async def _ask(
        self, make: Callable[[WorkerNames], Operation[A]], answered: Callable[[A | WindlassError], None]
    ) -> None:
        unknown = 0
        for pause in itertools.chain(TRY_AGAIN, itertools.repeat(TRY_AGAIN[-1])):
            try:
                answer = await self._registration.ask(make)
            except WindlassError as fault:
                unknown += isinstance(fault, Missing)  # forgotten again at once; or the queue is too old to be asked
                if not isinstance(fault, (*TEMPORARY, Missing)) or unknown > MOST_UNKNOWN:
                    answered(fault)
                    return
                log.debug("cannot ask yet: %s", fault)
            else:
                answered(answer)
                return
            await self._clock.sleep(pause)

    def is_updating(self, id: str, token: str) -> bool:
        """Whether an update of this run is not answered yet."""
        return (id, token) in self._updating

    def _note(self, last_updates: Sequence[Alive]) -> None:
        self._updates += last_updates
        self._something.set()
        self._nothing.clear()

    @property
    def settled(self) -> bool:
        """Whether everything is reported."""
        return self._nothing.is_set()

    async def flush(self) -> None:
        """Wait until everything is reported."""
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
                self._check_settled()
        finally:
            for task in self._tasks:
                task.cancel()

    async def _send_all(self) -> None:
        finished, self._finished = self._finished, []
        released, self._released = self._released, []
        began, self._began = self._began, []
        updates, self._updates = self._updates, []
        # One whose update is not answered stays in the line of that update.
        makers = (one for one in finished if one.jobs and not self.is_updating(one.id, one.token))
        spawning = frozenset(report.id for report in makers)
        for start in range(0, len(began), MOST_AT_ONCE):
            await self._post(ReportBatch(began[start : start + MOST_AT_ONCE], self._begin, spawning))
        for some in without_repeats(updates) if updates else ():
            await self._post(ReportBatch(some, self._update, spawning))
        for batch in _batches(finished):
            await self._post(ReportBatch(batch, self._finish, spawning, not_storable))
        for unrun in _batches(released):
            await self._post(ReportBatch(unrun, self._release, spawning, without_files))

    def _check_settled(self) -> None:
        if not (self._sending or self._finished or self._released or self._late):
            self._nothing.set()

    async def _finish(self, batch: Sequence[Finished]) -> Applied:
        answer = await self._registration.ask(lambda names: Finish(**names, jobs=list(batch)))
        for one in batch if self._ends else ():
            line = self._ends.pop((one.id, one.token), None)
            if line is not None and one.id not in answer.refused:
                job_log.debug("%s", line)
        self._answered(batch, answer)
        return answer

    async def _begin(self, batch: Sequence[Began]) -> Applied:
        answer = await self._registration.ask(lambda names: Begin(**names, jobs=list(batch)))
        self._answered(batch, answer)
        return Applied()  # for other jobs that are not ours any more, the next renewal says so

    def _answered(self, batch: Sequence[Any], answer: Applied) -> None:
        for one in batch if self._awaited else ():
            if (answered := self._awaited.pop((type(one), one.id, one.token), None)) is not None:
                answered(one.id not in answer.refused)

    async def _update(self, batch: Sequence[Alive]) -> Applied:
        await self._registration.ask(lambda names: Renew(**names, jobs=list(batch)))
        self._updating.difference_update((one.id, one.token) for one in batch)
        self._answered(batch, Applied())
        return Applied()  # orders come with the renewals

    async def _release(self, batch: Sequence[Released]) -> Applied:
        answer = await self._registration.ask(lambda names: Release(**names, jobs=list(batch)))
        self._answered(batch, answer)
        return answer

    async def _post(self, batch: ReportBatch) -> None:
        """Send it once. What is not taken, or is behind something in its line that was not, is sent later."""
        if self._late:
            lines = batch.lines()
            for line in lines.keys() & self._late.keys():
                self._postpone(line, lines.pop(line))
            batch = batch._replace(reports=[report for one in lines.values() for report in one.reports])
        if not batch.reports:
            return
        try:
            instead = await self._send(batch)
        except TEMPORARY as fault:
            self.damaged = fault if isinstance(fault, Damaged) else None
            log.warning("cannot report: %s", fault)
            for line, part in batch.lines().items():
                self._postpone(line, part)
        else:
            for one in instead:
                await self._post(one)

    def _postpone(self, line: ReportLine, batch: ReportBatch) -> None:
        batch = batch._replace(size=sum(_size(one) for one in batch.reports if isinstance(one, Finished | Released)))
        if line in self._late:
            # Joined with the last one, unless that is being sent: a worker that goes on meanwhile ends jobs a few at a
            # time, and would send them a few at a time for as long as it has work.
            waiting = self._late[line]
            more = waiting[-1].with_more(batch) if len(waiting) > 1 else None
            waiting[-1 if more else len(waiting) :] = [more or batch]
            return
        self._late[line] = [batch]
        task = asyncio.create_task(self._send_late(line), name="windlass-reports")
        self._tasks.add(task)
        task.add_done_callback(self._has_sent_late)

    def _has_sent_late(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._broken = fault
            self._something.set()

    async def _send_late(self, line: ReportLine) -> None:
        """Send what is in a line until all of it is answered."""
        batches = self._late[line]
        pauses = itertools.chain(TRY_AGAIN, itertools.repeat(TRY_AGAIN[-1]))
        while batches:
            try:
                batches[:1] = await self._send(batches[0])
            except TEMPORARY as fault:
                log.debug("cannot report yet: %s", fault)
                await self._clock.sleep(next(pauses))
        del self._late[line]
        self._check_settled()

    async def _send(self, batch: ReportBatch) -> list[ReportBatch]:
        """What to send instead, if it is refused as it is; raises `TEMPORARY` errors."""
        try:
            answer = await batch.send(batch.reports)
        except Missing as fault:  # forgotten again as soon as it was registered
            raise Unavailable(str(fault)) from fault
        except TEMPORARY:
            raise
        except WindlassError as fault:
            self._updating.difference_update((one.id, one.token) for one in batch.reports)
            if len(batch.reports) == 1:
                (refused,) = batch.reports
                self._ends.pop((refused.id, refused.token), None)
                if batch.instead is None:
                    self._answered(batch.reports, Applied(refused=[refused.id]))
            return _instead_of(batch, fault)
        if answer.refused:
            log.warning("%d reports refused: those jobs are no longer this worker's", len(answer.refused))
        return []


def _instead_of(batch: ReportBatch, fault: WindlassError) -> list[ReportBatch]:
    """Each report by itself; instead of a single one, another that says what is wrong."""
    if len(batch.reports) > 1:
        return [batch._replace(reports=[one]) for one in batch.reports]
    (report,) = batch.reports
    if batch.instead is None:
        log.error("the queue refuses the report on job %s: %s", report.id, fault)
        return []
    return [batch._replace(reports=[batch.instead(report, fault)], instead=None)]


def not_storable(report: Finished, fault: WindlassError) -> Finished:
    """The report on a job whose own report is refused, because its result is too large for instance."""
    message = f"its outcome could not be stored: {fault}"
    log.warning("%s failed: %s", report.id, message)
    return Finished(id=report.id, token=report.token, tenant=report.tenant, outcome=Verdict.FAILED, message=message)


def without_files(report: Released, fault: WindlassError) -> Released:
    """The report on a job that is to run again and whose own report is refused, because its files are too large."""
    log.warning("%s runs again without the files that it left: they could not be stored: %s", report.id, fault)
    return replace(report, files={})


def _batches(reports: list[E]) -> list[list[E]]:
    """Split by number, and by size."""
    batches: list[list[E]] = []
    size = MOST_BYTES
    for report in reports:
        added = _size(report)
        if not batches or len(batches[-1]) >= MOST_AT_ONCE or size + added > MOST_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(report)
        size += added
    return batches


def _size(report: Finished | Released) -> int:
    size = sum(map(len, report.files.values())) if report.files else 0
    if isinstance(report, Finished):
        size += len(memoryview(report.result)) if report.result else 0
        size += sum(len(memoryview(job.payload)) for job in report.jobs) if report.jobs else 0
    return size
