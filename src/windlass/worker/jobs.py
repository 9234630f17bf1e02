"""The jobs in a worker's hands: started, listened to, stopped, ended.

What is held is in `held`, by number; a job leaves that table in exactly one way, `leave`, which sees to its report.
"""

import asyncio
import itertools
import logging
import signal
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Protocol

from windlass.model.job import Error, Job, Stream
from windlass.model.lifecycle import CODES, Verdict
from windlass.model.operations import Claimed, Delivered, Finished, Glimpse, Unrun
from windlass.model.ports import Clock
from windlass.worker.crew import Crew
from windlass.worker.frames import Assignment, Ending, News, Said
from windlass.worker.held import Held, Stop
from windlass.worker.outcomes import crashed, finished
from windlass.worker.pool import Context
from windlass.worker.reports import Reports
from windlass.worker.telemetry import Telemetry

log = logging.getLogger("windlass.worker")
life = logging.getLogger("windlass.job")

SOFT, TERM = 0.3, 0.3
"""Seconds a job gets after it was told to stop, before TERM; and after TERM, before it is killed."""

POSTPONED = 2.0
"""Seconds before a job is claimed again that got no process."""

MOST_NAMES = 1000
"""Tenants, queues and tasks of which it is remembered that newcomers with these names are the app's."""

LOOK_EVERY = 0.1
"""Seconds between two looks whether a context is held up, while there are jobs."""

LAST_LINES = 2000
"""Characters of what a crashed job printed last, kept with its error."""


UNBEGUN = Error(type="Cancelled", message="stopped before it had begun")


class Gossip(Protocol):
    """Whoever passes on what running jobs say."""

    def has_come(self) -> None: ...

    def has_news(self, held: Held) -> None: ...

    def has_room(self, held: Held) -> None: ...

    def forget(self, held: Held) -> None: ...


class Elsewhere(Protocol):
    """Whoever runs the jobs whose code is kept in the queue."""

    def take(self, given: Sequence[tuple[Held, Claimed]]) -> None: ...

    def stop(self, held: Held) -> None: ...


class Jobs:
    """What one worker runs."""

    def __init__(self, crew: Crew, reports: Reports, clock: Clock, most_output: int, tasks: Collection[str]) -> None:
        self.held: dict[int, Held] = {}
        self.reports = reports
        self.gossip: Gossip | None = None
        self.elsewhere: Elsewhere | None = None
        self.telemetry: Telemetry | None = None
        self.ended = asyncio.Event()
        """Set whenever a job has ended."""
        self.done = 0
        """How many have ended here; what was given back does not count."""
        self._crew = crew
        self._clock = clock
        self._most_output = most_output
        self._tasks = frozenset(tasks)
        """Those of the app: uploaded code cannot take their place."""
        self._ours: set[bytes] = set()
        """Names of newcomers whose task is one of the app's."""
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._kept: dict[Context, Ending] = {}
        """Endings of jobs alone in their process, until that has ended and its output is read."""
        self._looking: asyncio.TimerHandle | None = None
        self._printed: dict[Context, int] = defaultdict(int)
        self._tails: dict[Context, str] = {}

    async def some_ended(self) -> None:
        self.ended.clear()
        await self.ended.wait()

    async def all_ended(self) -> None:
        while self.held:
            await self.some_ended()

    # They start

    def start_at_a_glance(self, glimpse: Glimpse, read: Callable[[], list[Claimed]]) -> None:
        """Read a new job only when its context has it: until then whoever waits for it waits for us."""
        begun = self._begin(glimpse) if glimpse.names in self._ours else None
        claimed = read()
        self.start(claimed, begun)
        if begun is None and claimed[0].job.task in self._tasks and len(self._ours) < MOST_NAMES:
            self._ours.add(glimpse.names)

    def _begin(self, glimpse: Glimpse) -> tuple[int, Context] | None:
        """Give a newcomer to a context, under a number; null = there is none to give it to."""
        try:
            context = self._crew.least_busy()
        except OSError:
            return None
        number = next(self._numbers)
        context.give_newcomer(number, glimpse)
        return number, context

    def start(self, claimed: Sequence[Claimed], begun: tuple[int, Context] | None = None) -> None:
        """`begun`: the only one of them has been given away already."""
        now = self._clock.monotonic()
        batches: dict[Context, list[Assignment]] = {}
        elsewhere: list[tuple[Held, Claimed]] = []
        for one in claimed:
            job = one.job
            tenant = job.tenant if self.reports.name_tenants else None
            held = Held(next(self._numbers) if begun is None else begun[0], job, one.token, now, tenant)
            self.held[held.number] = held
            if begun is not None:
                held.context = begun[1]
                continue
            if self.elsewhere is not None and job.task not in self._tasks:
                elsewhere.append((held, one))
                continue
            assignment = assignment_of(held.number, job, bytes(one.payload), one.files)
            # What has killed a process once gets one of its own: it takes no neighbours along again.
            try:
                held.context = self._crew.alone() if job.isolate or job.crashes else self._crew.least_busy()
            except OSError as fault:
                self._postpone(held, str(fault))
                continue
            held.context.held.add(held.number)
            batches.setdefault(held.context, []).append(assignment)
            if held.limit is not None:
                held.timer = self._loop.call_later(held.limit, self.halt, held, Stop.TIMEOUT)
        for context, assignments in batches.items():
            context.give(assignments)
        if self.elsewhere is not None and elsewhere:
            self.elsewhere.take(elsewhere)
        self._note_start(claimed)
        if self.gossip is not None:
            self.gossip.has_come()
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._looking = None
        if self.held:
            self._crew.look_for_held_up()
            self._looking = self._loop.call_later(LOOK_EVERY, self._look)

    def _note_start(self, claimed: Sequence[Claimed]) -> None:
        """Only now: until their contexts have them, whoever waits for these jobs waits for us."""
        if life.isEnabledFor(logging.DEBUG):
            for one in claimed:
                life.debug("%s %s running, attempt %d", one.job.id, one.job.task, one.job.attempt)

    # They speak

    def news(self, context: Context, news: News) -> None:
        for said in news.said:
            if (held := self.held.get(said.number)) is not None:
                held.hear(said)
                self._pass_on(held, said)
        for ending in news.endings:
            if context.isolated:
                self._kept[context] = ending
            elif (held := self.held.get(ending.number)) is not None:
                self._end(held, ending)
        if news.answers is not None:
            context.answers(news.answers)
            self._move(context, news.unbegun)
        if news.endings:
            self._crew.retire_if_spent(context)

    def _move(self, context: Context, unbegun: Sequence[Assignment]) -> None:
        """Give jobs that wait behind a coroutine which holds its event loop to another context."""
        batches: dict[Context, list[Assignment]] = {}
        for assignment in unbegun:
            held = self.held.get(assignment.number)
            if held is None or held.context is not context:
                continue
            if held.stopping is not None:
                self._end(held, Ending(held.number, Verdict.ERROR, error=UNBEGUN))
                continue
            context.held.discard(held.number)
            held.context = self._crew.least_busy()
            held.context.held.add(held.number)
            batches.setdefault(held.context, []).append(assignment)
        for other, assignments in batches.items():
            other.give(assignments)

    def _pass_on(self, held: Held, said: Said) -> None:
        if self.gossip is None:
            return
        if said.taken is None:
            self.gossip.has_news(held)
        else:
            self.gossip.has_room(held)

    def output(self, context: Context, stream: Stream, data: bytes) -> None:
        self._printed[context] += len(data)
        self._tails[context] = (self._tails.get(context, "") + data.decode(errors="replace"))[-LAST_LINES:]
        for held in self._in(context):
            held.print(stream, data)
            self._tell_of(held)
            if self._printed[context] > self._most_output:
                self._kill_for(held, Stop.OUTPUT)

    def has_said(self, held: Held, stream: Stream, data: bytes) -> None:
        """A job that runs elsewhere has printed something."""
        held.print(stream, data)
        self._tell_of(held)

    def _tell_of(self, held: Held) -> None:
        if self.gossip is not None:
            self.gossip.has_news(held)

    def give(self, held: Held, messages: Sequence[Delivered]) -> None:
        """Pass on what was sent to a job; what it has already is told again until the queue knows that."""
        fresh = [one.data for one in messages if one.n > held.given]
        if held.context is not None and fresh:
            held.given += len(fresh)
            held.context.pass_on(held.number, fresh)

    # They are stopped

    def halt(self, held: Held, why: Stop) -> None:
        """Stop a running job: ask it, then tell it, then kill it."""
        if held.stopping is not None or held.number not in self.held:
            return
        held.stopping = why
        if held.context is None:
            self._stop_elsewhere(held)
            return
        held.context.stop(held.number)
        held.set_timer(self._loop.call_later(SOFT, self._terminate, held))

    def shorten(self, held: Held, deadline: datetime) -> None:
        """Time was taken from a running job: it is stopped at another time, perhaps at once."""
        held.deadline = deadline
        if held.stopping is None and held.limit is not None:
            left = max(0.0, held.limit - (self._clock.monotonic() - held.since))
            held.set_timer(self._loop.call_later(left, self.halt, held, Stop.TIMEOUT))

    def _stop_elsewhere(self, held: Held) -> None:
        if self.elsewhere is not None:
            self.elsewhere.stop(held)

    def _terminate(self, held: Held) -> None:
        if held.context is not None and held.context.isolated:
            self._crew.pool.kill(held.context, signal.SIGTERM)
            held.set_timer(self._loop.call_later(TERM, self.kill, held))
        else:
            self.kill(held)

    def kill(self, held: Held) -> None:
        """A job that cannot be stopped costs its context; the others in it are given back."""
        if held.number not in self.held or held.context is None:
            return
        for other in self._in(held.context):
            if other is not held and other.stopping is None:
                other.stopping = Stop.BACK
        self._crew.dismiss(held.context)
        self._crew.pool.kill(held.context, signal.SIGKILL, tree=True)

    def kill_fat(self) -> None:
        """Kill jobs that take more memory than is allowed; contexts that do are replaced."""
        for context in self._crew.look():
            for held in self._in(context):
                self._kill_for(held, Stop.MEMORY)

    def _kill_for(self, held: Held, why: Stop) -> None:
        """Kill a job that takes too much of something: what it would do with a warning is take more."""
        if held.stopping is None:
            held.stopping = why
            self.kill(held)

    def lose(self, held: Held) -> None:
        """A run is no longer ours, whatever else it was being stopped for."""
        if held.stopping is Stop.LOST:
            return
        log.warning("lost job %s: its lease has run out", held.id)
        self.halt(held, Stop.LOST)
        held.stopping = Stop.LOST

    def give_back(self) -> None:
        """Kill everything that runs; none of these runs counts."""
        for held in list(self.held.values()):
            held.stopping = held.stopping or Stop.BACK
            if held.context is None:
                self._stop_elsewhere(held)
                self.leave(held, Unrun(id=held.id, token=held.token, tenant=held.tenant))
                continue
            self._crew.pool.kill(held.context, signal.SIGKILL, tree=True)
            kept = self._kept.pop(held.context, None)
            self._end(held, kept or Ending(held.number, Verdict.ERROR, error=Error(message="its worker stopped")))

    # They end

    def hung_up(self, context: Context) -> None:
        """A context is ending, or has; how is told later."""
        self._crew.dismiss(context)

    def exited(self, context: Context, status: int, peak_memory: int) -> None:
        """A context has ended: well, or with jobs in it."""
        ending = self._kept.pop(context, None)
        self._printed.pop(context, None)
        tail = self._tails.pop(context, "")
        self._crew.dismiss(context)
        for held in self._in(context):
            self._end(held, ending or crashed(held, status, peak_memory, tail))

    def unforked(self, context: Context, why: str) -> None:
        """There was no room for a context."""
        self._crew.miss(context)
        for held in self._in(context):
            self._postpone(held, why)

    def _postpone(self, held: Held, why: str) -> None:
        """Give back what could not even be started; not at once, or it would be claimed again in the same distress."""
        log.error("job %s gets no process: %s", held.id, why)
        self._end(held, Ending(held.number, Verdict.RETRY, snooze=POSTPONED))

    def _in(self, context: Context) -> list[Held]:
        return [self.held[number] for number in context.held if number in self.held]

    def _end(self, held: Held, ending: Ending) -> None:
        if ending.snooze is not None:
            self.leave(
                held, Unrun(id=held.id, token=held.token, tenant=held.tenant, delay=ending.snooze, rests=ending.rests)
            )
        else:
            self.leave(held, finished(held, ending))

    def leave(self, held: Held, report: Finished | Unrun) -> None:
        """The one way out of `held`."""
        if self.held.pop(held.number, None) is None:
            return  # it was given back before it ended elsewhere
        given_back = held.stopping is Stop.BACK and not (isinstance(report, Finished) and report.outcome is Verdict.OK)
        self._note_end(held, Unrun(id=held.id, token=held.token, tenant=held.tenant) if given_back else report)
        if self.telemetry is not None and isinstance(report, Finished):
            self.telemetry.note(held.job.task, self._clock.monotonic() - held.since)
        held.set_timer(None)
        if held.context is not None:
            held.context.held.discard(held.number)
        if self.gossip is not None:
            self.gossip.forget(held)
        if given_back:
            self.reports.release(Unrun(id=held.id, token=held.token, tenant=held.tenant))
        elif isinstance(report, Unrun):
            self.reports.release(report)
        elif held.stopping is not Stop.LOST:
            self.done += 1
            self._report(held, report)
        self.ended.set()

    def _report(self, held: Held, report: Finished) -> None:
        if held.saying is None:
            self.reports.finish(report, held.tell() if held.has_news else None)
        else:
            self.reports.finish_after(held.saying, lambda: (report, held.tell() if held.has_news else None))

    def _note_end(self, held: Held, report: Finished | Unrun) -> None:
        if not life.isEnabledFor(logging.DEBUG):
            return
        how = "given back"
        if held.stopping is Stop.LOST:
            how = "lost"
        elif isinstance(report, Finished):
            how = f"completed, {report.outcome} {report.code or CODES[report.outcome]}"
        life.debug("%s %s %s after %.3f s", held.id, held.job.task, how, self._clock.monotonic() - held.since)


def assignment_of(number: int, job: Job, payload: bytes, files: dict[str, bytes]) -> Assignment:
    return Assignment(
        number,
        job.task,
        payload,
        job.content_type,
        job.id,
        job.queue,
        job.tenant,
        job.attempt,
        job.priority,
        job.created_at.timestamp(),
        job.timeout,
        job.max_retry,
        job.tags,
        job.headers,
        files,
        job.input,
        job.one_argument,
    )
