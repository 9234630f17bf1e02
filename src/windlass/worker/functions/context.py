"""A function context: one process of an interpreter that runs batches of jobs, one job after the other.

Knows the protocol and which job runs. A job that runs too long, prints too much, or whose process dies or sends
garbage costs the process; the jobs after it have not begun and are returned.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from windlass.model.errors import Invalid, WindlassError
from windlass.model.handler import Handler
from windlass.model.job import Reason
from windlass.worker.functions import (
    ERROR,
    FAILED,
    FunctionJob,
    FunctionListener,
    FunctionOptions,
    FunctionOutcome,
    protocol,
)
from windlass.worker.functions.process import MonitorReport, ProcessOutput, SandboxedProcess
from windlass.worker.functions.protocol import OutputSplitter, PrintedJobs, encode_payload
from windlass.worker.functions.sandbox import folders
from windlass.worker.linux import describe_status

AHEAD = 100
"""Jobs that a context is given before it has answered the first of them."""
AFTER_WITHIN = 60.0
"""Seconds that `afterEach` may take."""
LAST_MOMENTS = 1.0
"""Seconds in which a process that has closed its pipes may still exit by itself."""
LAST_LINES = 2000
"""Characters of a dead process's last output."""

NO_HEAP = re.compile(r"heap out of memory|Allowed memory size of \d+ bytes exhausted")
"""What Node and PHP print when they run out of memory."""

log = logging.getLogger("windlass.functions")

Printed = Literal["stdout", "stderr"]

EndReason = tuple[Reason | None, str]
"""Why a context is being ended, and the message for the job that runs."""


class ContextBatch:
    """The jobs that a context has been given."""

    def __init__(
        self, handler: Handler, jobs: Sequence[FunctionJob], listener: FunctionListener, over: asyncio.Future[None]
    ) -> None:
        self.handler = handler
        self.listener = listener
        self.over = over
        self.waiting = deque(jobs)
        self.given: deque[FunctionJob] = deque()
        """Sent to the process; the first of them runs."""
        self.printouts: dict[str, PrintedJobs] = {}
        """Of those sent that have printed something."""
        self.stopped: dict[str, str] = {}
        self.aside = ""
        """The last output that belongs to no job: that of `afterEach`, if it has run."""
        self.closed = False
        """Whether the process knows that no more jobs come."""

    def has_folder(self, job: FunctionJob) -> bool:
        """Whether files come with a job, or it may leave some."""
        return bool(job.files) or self.handler.options.files


class FunctionContext:
    """One process, from its first batch to its end."""

    def __init__(self, options: FunctionOptions, nonce: str, folder: str, uid: int | None) -> None:
        self.folder = folder
        self.uid = uid
        """The user it runs as, if not the worker's."""
        self.process = SandboxedProcess(self)
        self.dead = False
        self.broken = False
        """Whether it gets no other batch."""
        self.jobs = 0
        """How many it has run."""
        self.loaded: dict[str, tuple[int, str]] = {}
        """The number and digest of each task's handler."""
        self._options = options
        self._nonce = nonce
        mark = protocol.mark(nonce)
        self._parts: dict[Printed, OutputSplitter] = {"stdout": OutputSplitter(mark), "stderr": OutputSplitter(mark)}
        self._marks = 0
        """How many marks should have come."""
        self._answers = bytearray()
        self._stray = 0
        """Bytes printed since the last answer that belong to no job."""
        self._tail = ""
        self._number = 1
        """The number of the job that runs; the jobs after it have the numbers after it."""
        self._batch: ContextBatch | None = None
        self._cpu = 0, 0.0
        """The number of the job that was last seen running, and the processor time until then."""
        self._ending: EndReason | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def fits(self, handler: Handler) -> bool:
        """Whether it has loaded this version of the handler, or none of that task."""
        return handler.task not in self.loaded or self.loaded[handler.task][1] == handler.digest

    async def run(self, handler: Handler, jobs: Sequence[FunctionJob], listener: FunctionListener) -> list[FunctionJob]:
        """Run a batch; the jobs that were not begun because the process has ended."""
        if self.dead:  # it died while it was idle
            return list(jobs)
        batch = self._batch = ContextBatch(handler, jobs, listener, self._loop.create_future())
        if handler.task not in self.loaded:
            self.loaded[handler.task] = len(self.loaded) + 1, handler.digest
            self.process.send(protocol.load(self.loaded[handler.task][0], handler, self._nonce))
        self.process.send(protocol.batch(self.loaded[handler.task][0]))
        self._give(batch)
        self._next(batch)
        try:
            await batch.over
        finally:
            self._batch = None
        return list(batch.waiting)

    def stop(self, id: str, why: str) -> None:
        """Stop a job of the batch, whether it has begun or not."""
        if self._batch is not None:
            self._batch.stopped[id] = why
            self._drop_stopped(self._batch)
            self._check_first(self._batch)

    def _drop_stopped(self, batch: ContextBatch) -> None:
        for job in [one for one in batch.waiting if one.id in batch.stopped]:
            batch.waiting.remove(job)
            batch.listener.ended(FunctionOutcome(id=job.id, code=ERROR, message=batch.stopped[job.id], unrun=True))

    def end(self, reason: Reason | None = None, how: str = "its context was ended") -> None:
        """End the process; the job that runs ends with this reason and message."""
        if self._ending is None and not self.dead:
            self._ending = reason, how
            self.broken = True
            self.process.close_output("answers")  # too late
            self.process.end(self._options.grace)

    # Jobs are sent

    def _give(self, batch: ContextBatch) -> None:
        if self._ending is not None or self.dead:
            return
        commands: list[bytes] = []
        waiting, given, number = batch.waiting, batch.given, self._number + len(batch.given)
        while waiting and len(given) < AHEAD:
            if given and any(map(batch.has_folder, (waiting[0], given[-1]))):
                break  # it has the folder for itself
            job = waiting.popleft()
            try:
                kind, data = encode_payload(job.payload, job.content_type)
                if batch.has_folder(job):
                    folders.unpack(self.folder, self.uid, job.id, job.files)
            except (Invalid, OSError) as fault:
                batch.listener.ended(FunctionOutcome(id=job.id, code=FAILED, type="Invalid", message=str(fault)))
                continue
            given.append(job)
            commands.append(protocol.job(number, kind, data))
            number += 1
        if not batch.waiting and not batch.closed:
            batch.closed = True
            commands.append(protocol.END)
        if commands:
            self.process.send(b"".join(commands))

    def _next(self, batch: ContextBatch) -> None:
        """The next job runs now, or none is left."""
        if self._ending is not None:
            return
        if not batch.given:
            self._allow(AFTER_WITHIN)
            return
        job = batch.given[0]
        self._allow(job.timeout if job.timeout is not None else batch.handler.options.timeout)
        batch.listener.began(job.id, self.process.pid, self._options.tier)
        self._check_first(batch)

    def _check_first(self, batch: ContextBatch) -> None:
        if batch.given and (why := batch.stopped.get(batch.given[0].id)) is not None:
            self.end(None, why)

    def _allow(self, seconds: float | None) -> None:
        """Allow so much time from now; null = without bound."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._check_clock, seconds)

    def _check_clock(self, allowed: float) -> None:
        """The job has run too long, unless its answer is just unread: then this timer is no longer the current one."""
        timer = self._timer
        while self._timer is timer and self.process.pull("answers"):
            pass
        if self._timer is not timer:
            return
        if self._batch is not None and self._batch.given:
            self.end(Reason.TIMEOUT, f"ran longer than its timeout of {allowed:g} s")
        else:
            self.end(None, "afterEach took too long")

    def used(self, cpu: float) -> None:
        """A job's processor time counts from the first report on it, so that none pays for another."""
        batch, (number, before) = self._batch, self._cpu
        if batch is None or not batch.given:
            return
        if number != self._number:
            self._cpu = self._number, cpu
            return
        wanted = batch.handler.options.cpu
        most = self._options.cpu if wanted is None else min(wanted, self._options.cpu)
        if cpu - before > most:
            self.end(Reason.TIMEOUT, f"took more than {most:g} s of processor time")

    def half_filled(self) -> None:
        """Use it for no other batch: files that its jobs left behind would fill the folder of a later one."""
        self.broken = True

    # Output and answers are read

    def received(self, output: ProcessOutput, data: bytes) -> None:
        if output == "answers":
            self._received_answers(data)
            return
        for marks, piece in self._parts[output].feed(data):
            if piece:
                self._print(output, marks - self._marks, piece)

    def _print(self, output: Printed, place: int, data: bytes) -> None:
        """Output of the job at this place: the first, unless the answer of one before it is still unread."""
        last = data[-LAST_LINES:].decode(errors="replace")
        self._tail = (self._tail + last)[-LAST_LINES:]
        batch = self._batch
        if batch is None or not 0 <= place < len(batch.given):
            if batch is not None:
                batch.aside = (batch.aside + last)[-LAST_LINES:]
            self._stray += len(data)
            self._check_output(output, self._stray)
            return
        id = batch.given[place].id
        printout = batch.printouts.setdefault(id, PrintedJobs())
        printout.bytes += len(data)
        if not self._check_output(output, printout.bytes):
            return
        text = printout.feed(data) if output == "stdout" else data
        if text:
            batch.listener.printed(id, output, text)

    def _check_output(self, output: Printed, printed: int) -> bool:
        if printed <= self._options.output:
            return True
        self.end(Reason.OUTPUT, "printed more than this worker allows")
        self.process.close_output(output)
        return False

    def _received_answers(self, data: bytes) -> None:
        self._answers += data
        whole = bytes(self._answers).split(b"\n") if b"\n" in data else []
        if whole:
            self._answers = bytearray(whole.pop())
        try:
            for line in whole:
                if self._ending is not None:
                    break
                self._answered(line)
        except protocol.Garbage:
            self.end(Reason.CRASHED, "what its process wrote on descriptor 4 is no answer")
        if len(self._answers) > self._options.result * 2 + LAST_LINES:
            self.end(Reason.OUTPUT, f"its result has more than {self._options.result} bytes")

    def _answered(self, line: bytes) -> None:
        batch = self._batch
        if batch is None:
            raise protocol.Garbage
        if not batch.given:
            self._batch_answered(batch, line)
            return
        outcome = protocol.outcome(batch.given[0].id, line, self._number)
        self._catch_up()
        self._conclude(batch, outcome)

    def _batch_answered(self, batch: ContextBatch, line: bytes) -> None:
        broken = protocol.is_broken(line)
        if not batch.closed:
            raise protocol.Garbage
        self._catch_up()
        if broken and batch.aside:  # no job is left to report it
            handler = batch.handler
            log.warning("afterEach of %s of %s failed: %s", handler.task, handler.tenant, batch.aside.strip())
        self._marks += 1
        self.broken = self.broken or broken
        self._over(batch)

    def _catch_up(self) -> None:
        """Read what was printed before this answer: it is in the pipes, because the process wrote it first."""
        for output, parts in self._parts.items():
            if parts.marks > self._marks:
                continue
            unread = self.process.unread(output)  # and no more: it may print faster than we read
            while parts.marks <= self._marks and unread > 0 and (received := self.process.pull(output)):
                unread -= received
            parts.skip_to(self._marks + 1)

    def _conclude(self, batch: ContextBatch, outcome: FunctionOutcome) -> None:
        if (printout := batch.printouts.pop(outcome.id, None)) is not None:
            outcome = _with_printout(batch, outcome, printout)
        if outcome.result is not None and len(outcome.result) > self._options.result:
            outcome = _too_much(outcome.id, f"its result has more than {self._options.result} bytes")
        if batch.has_folder(batch.given[0]):
            outcome = self._with_files(outcome)
        self._marks += 1
        self._number += 1
        self._stray = 0
        batch.given.popleft()
        self.jobs += 1
        batch.listener.ended(outcome)
        if not batch.closed:
            self._give(batch)
        self._next(batch)

    def _with_files(self, outcome: FunctionOutcome) -> FunctionOutcome:
        try:
            return replace(outcome, files=folders.collect(self.folder, self.uid))
        except (WindlassError, OSError) as fault:
            message = f"what it has left in {folders.OUT} cannot be kept: {fault}"
            return FunctionOutcome(id=outcome.id, code=FAILED, type="Files", message=message)

    # The process ends

    def cut_off(self) -> None:
        """End a process that has closed its pipes: it would never answer."""
        self._loop.call_later(LAST_MOMENTS, self.end, Reason.CRASHED, "its process has closed descriptor 3 or 4")

    def exited(self, report: MonitorReport) -> None:
        self.dead = True
        self._allow(None)
        batch = self._batch
        if batch is None or batch.over.done():
            return
        if batch.given:  # the job that runs ends with its process; those after it wait again
            job = batch.given.popleft()
            batch.waiting.extendleft(reversed(batch.given))
            batch.given.clear()
            batch.listener.ended(self._last_outcome(job.id, report))
        self._drop_stopped(batch)
        self._over(batch)

    def _over(self, batch: ContextBatch) -> None:
        self._allow(None)
        if not batch.over.done():
            batch.over.set_result(None)

    def _last_outcome(self, id: str, report: MonitorReport) -> FunctionOutcome:
        last = self._tail.strip()
        reason: Reason | None
        if report.why == "memory" or (NO_HEAP.search(last) and self._ending is None):
            reason, how = Reason.MEMORY, "took more memory than it is allowed"
        elif report.why == "disk":
            reason, how = Reason.DISK, "wrote more to its folder than it is allowed"
        elif self._ending is not None:
            reason, how = self._ending
        else:
            peak = f"; peak memory {report.peak / 2**20:.0f} MiB" if report.peak else ""
            reason, how = Reason.CRASHED, f"{describe_status(report.exited)[0]}{peak}"
        kind = reason.value.capitalize() if reason else "Stopped"
        return FunctionOutcome(id=id, code=ERROR, type=kind, message=how, reason=reason, traceback=last)


def _with_printout(batch: ContextBatch, outcome: FunctionOutcome, printout: PrintedJobs) -> FunctionOutcome:
    """The outcome of a job that has printed something: the jobs it printed count if it succeeded."""
    if rest := printout.finish():
        batch.listener.printed(outcome.id, "stdout", rest)
    if printout.excess:
        return _too_much(outcome.id, printout.excess)
    return replace(outcome, jobs=tuple(printout.found)) if outcome.result is not None else outcome


def _too_much(id: str, how: str) -> FunctionOutcome:
    return FunctionOutcome(id=id, code=ERROR, type="Output", message=how, reason=Reason.OUTPUT)
