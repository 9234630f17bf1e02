"""A context: one process of an interpreter that runs batches of jobs, one job after the other.

Knows the protocol and whose turn it is. A job whose time is over, that prints too much, or whose process dies or
talks nonsense costs the process; the jobs after it were not begun and are handed back.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from windlass.model.errors import Invalid
from windlass.model.handler import Handler
from windlass.model.job import Reason
from windlass.worker.functions import lines
from windlass.worker.functions.payloads import written
from windlass.worker.functions.printed import JobLines, Parts
from windlass.worker.functions.process import Exit, Output, Process
from windlass.worker.functions.terms import ERROR, FAILED, FunctionJob, FunctionOptions, FunctionOutcome, Hears, Tier
from windlass.worker.processes import describe_status

AHEAD = 100
"""Jobs that a context is given before it has answered the first of them."""
AFTER_WITHIN = 60.0
"""Seconds that `afterEach` may take."""
LAST_MOMENTS = 1.0
"""Seconds for which a process that can hear or answer no more may still end by itself."""
LAST_LINES = 2000
"""Characters of what a dead process printed last."""

NO_HEAP = re.compile(r"heap out of memory|Allowed memory size of \d+ bytes exhausted")
"""How Node and PHP take their leave."""

log = logging.getLogger("windlass.functions")

Printed = Literal["stdout", "stderr"]

Ending = tuple[Reason | None, str]
"""Why a context is being ended, and how that is said of the job at hand."""


class Talk:
    """What one job has printed; most never do."""

    def __init__(self) -> None:
        self.lines = JobLines()
        self.bytes = 0


class Batch:
    """The jobs that a context has in hand."""

    def __init__(self, handler: Handler, jobs: Sequence[FunctionJob], hears: Hears, over: asyncio.Future[None]) -> None:
        self.handler = handler
        self.hears = hears
        self.over = over
        self.waiting = deque(jobs)
        self.given: deque[FunctionJob] = deque()
        """Handed to the process; the first of them is the one that runs."""
        self.talks: dict[str, Talk] = {}
        """Of those in hand that have printed something."""
        self.unwanted: dict[str, str] = {}
        self.aside = ""
        """The last of what was printed by no job: by `afterEach`, if it has run."""
        self.closed = False
        """Whether the process knows that no more jobs come."""


class Context:
    """One process, from its first batch to its end."""

    def __init__(self, options: FunctionOptions, tier: Tier, nonce: str) -> None:
        self.tier = tier
        self.folder = ""
        self.uid: int | None = None
        """The user it runs as, if not ours."""
        self.process = Process(self)
        self.dead = False
        self.broken = False
        """Whether it is to get no other batch."""
        self.jobs = 0
        """Those it has ended."""
        self.loaded: dict[str, tuple[int, str]] = {}
        """The number and digest of each task's handler."""
        self._options = options
        self._nonce = nonce
        mark = lines.mark(nonce)
        self._stdout, self._stderr = Parts(mark), Parts(mark)
        self._marks = 0
        """Those that should have gone by."""
        self._answers = bytearray()
        self._stray = 0
        """Bytes printed since the last answer that are no job's."""
        self._tail = ""
        self._number = 1
        """That of the job at hand; those after it have those after it."""
        self._batch: Batch | None = None
        self._cpu = 0, 0.0
        """The number of the job that was last seen at work, and the processor time until then."""
        self._ending: Ending | None = None
        self._allowed = 0.0
        """Seconds that what runs now may take, if there is a time when it is due."""
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def fits(self, handler: Handler) -> bool:
        """Whether it has this very handler in it, or none of that task."""
        return handler.task not in self.loaded or self.loaded[handler.task][1] == handler.digest

    async def run(self, handler: Handler, jobs: Sequence[FunctionJob], hears: Hears) -> list[FunctionJob]:
        """Run a batch; the jobs that were not begun because the process has ended."""
        if self.dead:  # as it waited
            return list(jobs)
        batch = self._batch = Batch(handler, jobs, hears, self._loop.create_future())
        if handler.task not in self.loaded:
            self.loaded[handler.task] = len(self.loaded) + 1, handler.digest
            self.process.send(lines.load(self.loaded[handler.task][0], handler, self._nonce))
        self.process.send(lines.batch(self.loaded[handler.task][0]))
        self._give(batch)
        self._next(batch)
        try:
            await batch.over
        finally:
            self._due = None
            self._batch = None
        return list(batch.waiting)

    def stop(self, id: str, why: str) -> None:
        """Stop a job of the batch, begun or not."""
        batch = self._batch
        if batch is None:
            return
        batch.unwanted[id] = why
        for job in [one for one in batch.waiting if one.id == id]:
            batch.waiting.remove(job)
            batch.hears.ended(FunctionOutcome(id=id, code=ERROR, message=why, unrun=True))
        self._look_at_first(batch)

    def end(self, reason: Reason | None = None, how: str = "its context was ended") -> None:
        """End the process; the job at hand ends as said."""
        if self._ending is None and not self.dead:
            self._ending = reason, how
            self.broken = True
            self.process.close_output("answers")  # too late
            self.process.end(self._options.grace)

    # Jobs go in

    def _give(self, batch: Batch) -> None:
        if self._ending is not None or self.dead:
            return
        orders: list[bytes] = []
        waiting, given, number = batch.waiting, batch.given, self._number + len(batch.given)
        while waiting and len(given) < AHEAD:
            job = waiting.popleft()
            try:
                kind, data = written(job.payload, job.content_type)
            except Invalid as fault:
                batch.hears.ended(FunctionOutcome(id=job.id, code=FAILED, type="Invalid", message=str(fault)))
                continue
            given.append(job)
            orders.append(lines.job(number, kind, data))
            number += 1
        if not batch.waiting and not batch.closed:
            batch.closed = True
            orders.append(lines.END)
        if orders:
            self.process.send(b"".join(orders))

    def _next(self, batch: Batch) -> None:
        """Another job runs now, or none."""
        if self._ending is not None:
            return
        if not batch.given:
            self._allow(AFTER_WITHIN)
            return
        job = batch.given[0]
        most = job.timeout if job.timeout is not None else batch.handler.options.timeout
        if most is not None or self._due is not None:
            self._allow(most)
        batch.hears.began(job.id, self.process.pid, self.tier)
        if batch.unwanted:
            self._look_at_first(batch)

    def _look_at_first(self, batch: Batch) -> None:
        if batch.given and (why := batch.unwanted.get(batch.given[0].id)) is not None:
            self.end(None, why)

    def _allow(self, seconds: float | None) -> None:
        """From now on, so much time; the timer that runs stays, for most jobs end long before it."""
        if seconds is None:
            self._due = None
            return
        self._allowed, self._due = seconds, self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._due:
            self._set_timer(self._due)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look_at_clock)

    def _look_at_clock(self) -> None:
        """The job at hand may have run too long, unless its answer just lies unread."""
        self._timer = None
        while self._is_late() and self.process.pull("answers"):
            pass
        if self._is_late():
            self._end_late()
        elif self._due is not None:
            self._set_timer(self._due)

    def _is_late(self) -> bool:
        return self._due is not None and self._loop.time() >= self._due

    def _end_late(self) -> None:
        if self._batch is not None and self._batch.given:
            self.end(Reason.TIMEOUT, f"ran longer than its timeout of {self._allowed:g} s")
        else:
            self.end(None, "afterEach took too long")

    def used(self, cpu: float) -> None:
        """The processor time of a job counts from the first look at it, so that none pays for another."""
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
        """What its jobs leave behind is not to be the ruin of a later one."""
        self.broken = True

    # Words come out

    def heard(self, output: Output, data: bytes) -> None:
        if output == "answers":
            self._hear_answers(data)
            return
        parts = self._stdout if output == "stdout" else self._stderr
        for marks, piece in parts.feed(data):
            if piece:
                self._print(output, marks - self._marks, piece)

    def _print(self, output: Printed, place: int, data: bytes) -> None:
        """What the job at this place said; of those in hand it is the first unless we have yet to hear of its end."""
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
        talk = batch.talks.setdefault(id, Talk())
        talk.bytes += len(data)
        if not self._check_output(output, talk.bytes):
            return
        said = talk.lines.feed(data) if output == "stdout" else data
        if said:
            batch.hears.said(id, output, said)

    def _check_output(self, output: Printed, printed: int) -> bool:
        if printed <= self._options.output:
            return True
        self.end(Reason.OUTPUT, "printed more than this worker allows")
        self.process.close_output(output)
        return False

    def _hear_answers(self, data: bytes) -> None:
        self._answers += data
        whole = bytes(self._answers).split(b"\n") if b"\n" in data else []
        if whole:
            self._answers = bytearray(whole.pop())
        try:
            for line in whole:
                if self._ending is not None:
                    break
                self._hear(line)
        except lines.Garbage:
            self.end(Reason.CRASHED, "what its process wrote on descriptor 4 is no answer")
        if len(self._answers) > self._options.result * 2 + LAST_LINES:
            self.end(Reason.OUTPUT, f"its result has more than {self._options.result} bytes")

    def _hear(self, line: bytes) -> None:
        batch = self._batch
        if batch is None:
            raise lines.Garbage
        if not batch.given:
            self._hear_end(batch, line)
            return
        outcome = lines.outcome(batch.given[0].id, line, self._number)
        if self._stdout.marks <= self._marks or self._stderr.marks <= self._marks:
            self._catch_up()
        self._conclude(batch, outcome)

    def _hear_end(self, batch: Batch, line: bytes) -> None:
        broken = lines.is_broken(line)
        if not batch.closed:
            raise lines.Garbage
        self._catch_up()
        if broken and batch.aside:  # no job can tell of it any more
            whose = batch.handler
            log.warning("afterEach of %s of %s failed: %s", whose.task, whose.tenant, batch.aside.strip())
        self._marks += 1
        self.broken = self.broken or broken
        _over(batch)

    def _catch_up(self) -> None:
        """Hear what was printed before this answer: it is in the pipes, for the process wrote it first."""
        if self._stdout.marks <= self._marks:
            self._catch_up_with("stdout", self._stdout)
        if self._stderr.marks <= self._marks:
            self._catch_up_with("stderr", self._stderr)

    def _catch_up_with(self, output: Printed, parts: Parts) -> None:
        unread = self.process.unread(output)  # and no more: somebody may print faster than we read
        while parts.marks <= self._marks and unread > 0 and (heard := self.process.pull(output)):
            unread -= heard
        parts.skip_to(self._marks + 1)

    def _conclude(self, batch: Batch, outcome: FunctionOutcome) -> None:
        if batch.talks and (talk := batch.talks.pop(outcome.id, None)) is not None:
            outcome = _with_talk(batch, outcome, talk)
        if outcome.result is not None and len(outcome.result) > self._options.result:
            outcome = _too_much(outcome.id, f"its result has more than {self._options.result} bytes")
        self._marks += 1
        self._number += 1
        self._stray = 0
        batch.given.popleft()
        self.jobs += 1
        batch.hears.ended(outcome)
        if not batch.closed:
            self._give(batch)
        self._next(batch)

    # It ends

    def cut_off(self) -> None:
        """What closes its wires and lives on would be waited for in vain."""
        self._loop.call_later(LAST_MOMENTS, self.end, Reason.CRASHED, "its process has closed descriptor 3 or 4")

    def exited(self, exit: Exit) -> None:  # noqa: A002
        self.dead = True
        if self._timer is not None:
            self._timer.cancel()
        if self._batch is not None and not self._batch.over.done():
            self._bury(self._batch, exit)

    def _bury(self, batch: Batch, exit: Exit) -> None:  # noqa: A002
        """The job at hand ends with its process; those after it wait again."""
        if batch.given:
            job = batch.given.popleft()
            batch.waiting.extendleft(reversed(batch.given))
            batch.given.clear()
            batch.hears.ended(self._epitaph(job.id, exit))
        for job in [job for job in batch.waiting if job.id in batch.unwanted]:
            batch.waiting.remove(job)
            batch.hears.ended(FunctionOutcome(id=job.id, code=ERROR, message=batch.unwanted[job.id], unrun=True))
        _over(batch)

    def _epitaph(self, id: str, exit: Exit) -> FunctionOutcome:  # noqa: A002
        last = self._tail.strip()
        if exit.why == "memory" or (NO_HEAP.search(last) and self._ending is None):
            how = "took more memory than it is allowed"
            return FunctionOutcome(id=id, code=ERROR, type="Memory", message=how, reason=Reason.MEMORY, traceback=last)
        if exit.why == "disk":
            how = "wrote more to its folder than it is allowed"
            return FunctionOutcome(id=id, code=ERROR, type="Disk", message=how, reason=Reason.DISK, traceback=last)
        if self._ending is not None:
            reason, how = self._ending
            kind = reason.value.capitalize() if reason else "Stopped"
            return FunctionOutcome(id=id, code=ERROR, type=kind, message=how, reason=reason, traceback=last)
        how, _ = describe_status(exit.exited)
        peak = f"; peak memory {exit.peak / 2**20:.0f} MiB" if exit.peak else ""
        message = f"{how}{peak}"
        crashed = Reason.CRASHED
        return FunctionOutcome(id=id, code=ERROR, type="Crashed", message=message, reason=crashed, traceback=last)


def _with_talk(batch: Batch, outcome: FunctionOutcome, talk: Talk) -> FunctionOutcome:
    """How a job ended that has printed something: what it asked for counts if it was a success."""
    if rest := talk.lines.finish():
        batch.hears.said(outcome.id, "stdout", rest)
    if talk.lines.excess:
        return _too_much(outcome.id, talk.lines.excess)
    return replace(outcome, jobs=tuple(talk.lines.found)) if outcome.result is not None else outcome


def _too_much(id: str, how: str) -> FunctionOutcome:
    return FunctionOutcome(id=id, code=ERROR, type="Output", message=how, reason=Reason.OUTPUT)


def _over(batch: Batch) -> None:
    if not batch.over.done():
        batch.over.set_result(None)
