"""Runs an app's tasks: which context gets a job, when a context is replaced, how a run in it is stopped.

Knows contexts as processes that take assignments and send updates. How they are started and killed is in `processes`.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from windlass.model.job import Error, Job
from windlass.model.operations import Claimed
from windlass.model.outcome import Verdict
from windlass.model.output import Stream
from windlass.model.ports import Clock
from windlass.model.stdin import decode
from windlass.model.worker import BatchOptions
from windlass.worker import WorkerOptions
from windlass.worker.contexts.frames import Assignment, ContextUpdate, RunOutcome, RunUpdate, ShimState, assignment_of
from windlass.worker.contexts.gathering import Gathering
from windlass.worker.contexts.kept import KeptRun, KeptRuns
from windlass.worker.contexts.processes import ContextProcess, KeptProcess, ProcessManager
from windlass.worker.linux import describe_status, resident
from windlass.worker.runs import WORKER_STOPPED, ActiveRun, RunTable, Stop, crashed, exited_by_itself

log = logging.getLogger("windlass.worker")

SOFT, TERM = 0.3, 0.3
"""Seconds a job gets after it was cancelled, before TERM; and after TERM, before it is killed."""

POSTPONED = 2.0
"""Seconds before a job that got no process is claimed again."""

CHECK_EVERY = 0.1
"""Seconds between two checks whether a context is blocked, while there are jobs."""

LONGEST_PAUSE = 30.0
"""Seconds between two tries to open what the app wants open, at most; they begin with one."""

END_KEPT_WITHIN = 2.0
"""Seconds in which runs that would go on without this worker end, where none is to be left."""

LAST_OUTPUT = 2000
"""Characters of a crashed job's last output, kept with its error."""

NOT_BEGUN = Error(type="Cancelled", message="stopped before it had begun")
LEFT_OUT = Error(type="Cancelled", message="stopped while its batch ran")


class ContextRunner:
    """The `Runner` of an app's tasks, in contexts that jobs share or that one job has for itself."""

    def __init__(
        self,
        processes: ProcessManager,
        runs: RunTable,
        options: WorkerOptions,
        clock: Clock,
        kept: KeptRuns | None = None,
        *,
        opens: bool = False,
        batches: Mapping[str, BatchOptions] | None = None,
    ) -> None:
        """`kept`: where runs that outlive this worker have their folders; null = no run does. `opens`: whether contexts
        open something before they run jobs, and close it at their end. `batches`: tasks that take several calls.
        """
        self._processes = processes
        self._runs = runs
        self._options = options
        self._clock = clock
        self._kept = None if options.stop_jobs else kept
        self._loop = asyncio.get_running_loop()
        self._shared: list[ContextProcess] = []
        """Those that get the next jobs."""
        self._closing = False
        self._opens = opens
        self._fill_at = 0.0
        """When the next context is forked, after one could not open what the app wants open."""
        self._resting = False
        """Whether nothing is to be claimed for a while, because a job's own context could not open that."""
        self._failures = 0
        """How often in a row that failed."""
        self.changed = asyncio.Event()
        """Set whenever `is_open` may have changed, or a context has ended."""
        self._context_of: dict[int, ContextProcess] = {}
        """By number of the run."""
        self._held: dict[int, Assignment] = {}
        """What a context gets once the queue knows that the run begins, by number of the run."""
        self._batches = batches or {}
        self._gathering = Gathering(self._batches, self._start_batch)
        self._batch_of: dict[int, list[ActiveRun]] = {}
        """The runs of one call, by the number of each."""
        self._outcomes: dict[ContextProcess, RunOutcome] = {}
        """Of runs alone in their process, until that has exited and its output is read."""
        self._checking: asyncio.TimerHandle | None = None
        self._tails: dict[ContextProcess, str] = {}

    # Contexts

    @property
    def closing(self) -> bool:
        """Whether contexts that end are no longer replaced."""
        return self._closing

    def stop_filling(self) -> None:
        self._closing = True

    @property
    def is_open(self) -> bool:
        """Whether a job that is claimed now could begin."""
        return not self._opens or (not self._resting and any(not one.opening for one in self._shared))

    async def end_idle(self, within: float) -> None:
        """Let contexts end by themselves, in so many seconds, so that they close what they have opened."""
        self._closing = True
        if not self._opens:
            return
        for context in self._shared:
            self._leave(context)
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while any(not isinstance(one, KeptProcess) for one in self._processes.contexts.values()):
                    self.changed.clear()
                    await self.changed.wait()

    async def end_processes(self) -> None:
        """End all contexts but those of runs that outlive this worker."""
        self._closing = True
        await self._processes.end_all()

    async def close(self) -> None:
        """The same, and let go of those runs."""
        self._closing = True
        await self._processes.close()

    def fill(self) -> None:
        """Fork as many shared contexts as there should be."""
        if self._clock.monotonic() < self._fill_at:
            return
        while not self._closing and len(self._shared) < min(self._options.contexts, self._options.slots):
            context = self._processes.fork(self, isolated=False, started_at=self._clock.monotonic())
            context.opening = self._opens
            self._shared.append(context)

    def _fork_alone(self, run: ActiveRun) -> ContextProcess:
        """A context for one job, with the outputs and the standard input that it asks for."""
        merged, now = _is_merged(run.job), self._clock.monotonic()
        context = self._processes.fork(self, isolated=True, started_at=now, merged=merged, stdin=run.job.stdin)
        if context.stdin is not None:
            context.stdin.on_room = partial(self._has_taken, run)
        return context

    def _has_taken(self, run: ActiveRun) -> None:
        """Its standard input has taken all that was sent so far."""
        if self._runs.is_active(run):
            self._runs.update(run, RunUpdate(run.number, taken=run.given))

    async def zygote_lost(self) -> None:
        """Wait until the zygote has died."""
        await self._processes.lost.wait()

    async def restart(self) -> None:
        """Replace a zygote that has died; what ran in its contexts died with it."""
        log.error("the process that forks contexts is gone; starting it again")
        self._shared.clear()
        self.fill()
        await self._processes.restart()

    def check(self) -> None:
        """Kill jobs that take more memory than is allowed, and replace contexts that are too old or too large."""
        self._processes.check()
        for context in list(self._shared):
            if self._is_spent(context) or self._over_memory(context):
                self._retire(context)
        self.fill()
        for context in list(self._processes.contexts.values()):
            if context.isolated and self._over_memory(context):
                for run in self._in(context):
                    self._kill_for(run, Stop.MEMORY)

    def _is_spent(self, context: ContextProcess) -> bool:
        most_jobs, most_age = self._options.context_max_jobs, self._options.max_age
        old = most_age is not None and self._clock.monotonic() - context.started_at > most_age
        return old or (most_jobs is not None and context.jobs >= most_jobs)

    def _over_memory(self, context: ContextProcess) -> bool:
        limit = self._options.max_memory
        return limit is not None and context.pid is not None and resident(context.pid) > limit

    def _retire(self, context: ContextProcess) -> None:
        """Let a context end when nothing runs in it any more."""
        self._leave(context)
        self._shared.remove(context)
        self.changed.set()

    def _leave(self, context: ContextProcess) -> None:
        if not context.leaving:
            context.exit_when_idle()

    def _least_busy(self) -> ContextProcess:
        least: ContextProcess | None = None
        for context in self._shared:
            if context.blocked or context.opening:
                continue
            if not context.runs:
                return context
            if least is None or len(context.runs) < len(least.runs):
                least = context
        if least is None and self._shared:
            return min(self._shared, key=lambda context: len(context.runs))
        if least is None:
            raise OSError("no process that runs jobs could be started")
        return least

    def _check_blocked(self) -> None:
        """Ping contexts that were given jobs while others have less to do: does their event loop answer?"""
        self._checking = None
        if not self._context_of:
            return
        for context in self._shared:
            if context.unanswered:
                context.blocked = True
            elif context.runs and (context.blocked or context.jobs > context.pinged_at) and self._has_idler(context):
                context.ping()
        self._checking = self._loop.call_later(CHECK_EVERY, self._check_blocked)

    def _has_idler(self, context: ContextProcess) -> bool:
        return any(not other.blocked and len(other.runs) < len(context.runs) for other in self._shared)

    # Runs start

    def start(self, batch: Sequence[tuple[ActiveRun, Claimed]]) -> None:
        batches: dict[ContextProcess, list[Assignment]] = {}
        for run, claimed in batch:
            # A job that has crashed a process gets one of its own: it takes no other jobs with it again.
            try:
                context = self._context_for(run)
            except OSError as fault:
                self._postpone(run, str(fault))
                continue
            assignment = assignment_of(run.number, claimed)
            if run.job.task in self._batches and run.cleared and not context.isolated:
                self._runs.limit_time(run)
                self._gathering.add(assignment)
                continue
            self._place(run, context)
            run.takes_messages = run.job.input
            if run.cleared:
                batches.setdefault(context, []).append(assignment)
            else:
                self._held[run.number] = assignment
                self._begin(run)
            self._runs.limit_time(run)
        for context, assignments in batches.items():
            context.assign(assignments)
        if self._batches and self._runs.free(self._options.slots) < 1:
            self._gathering.begin_all()
        if self._checking is None:
            self._checking = self._loop.call_later(CHECK_EVERY, self._check_blocked)

    def _start_batch(self, batch: list[Assignment]) -> None:
        runs = [self._runs.active[one.number] for one in batch]
        try:
            context = self._least_busy()
        except OSError as fault:
            for run in runs:
                self._postpone(run, str(fault))
            return
        for run in runs:
            self._batch_of[run.number] = runs
            self._place(run, context)
        context.assign_batch(batch)

    def release_gathered(self) -> None:
        """Release jobs that wait for their batch: the worker stops, and no more come."""
        for number in self._gathering.numbers:
            run = self._runs.active[number]
            run.stopping = run.stopping or Stop.RELEASE
            self.kill(run)

    def _context_for(self, run: ActiveRun) -> ContextProcess:
        job = run.job
        if job.on_lost == "adopt" and job.stdin is None and self._kept is not None:
            return self._keep(run, self._kept)
        alone = job.isolate or job.crashes or job.on_lost == "adopt"
        return self._fork_alone(run) if alone else self._least_busy()

    def _keep(self, run: ActiveRun, runs: KeptRuns) -> KeptProcess:
        folder = runs.make(run.job.tenant, run.id, run.token)
        lease, merged = self._options.adopt_lease, _is_merged(run.job)
        try:
            context = self._processes.keep(self, folder, lease=lease, merged=merged, started_at=self._clock.monotonic())
        except OSError:
            folder.remove()
            raise
        run.kept, run.lease = context, lease
        return context

    def adopt(self, claimed: Claimed, folder: KeptRun) -> None:
        """Go on with a run that another worker has started: its process, or what that has left."""
        run = self._runs.adopt(claimed, self)
        context = self._processes.adopt(self, folder, self._clock.monotonic())
        run.kept, run.lease = context, self._options.adopt_lease
        self._place(run, context)
        run.pid = claimed.job.pid
        self._runs.limit_time(run)

    def end_orphan(self, folder: KeptRun) -> None:
        """End the process of a run that no worker may go on with."""
        context = self._processes.adopt(self, folder, self._clock.monotonic())
        self._processes.kill(context, signal.SIGKILL)

    def leave(self) -> None:
        """Let runs go on that outlive this worker. Their last updates are reported; then their contexts are let go."""
        for context in self._kept_contexts():
            for run in self._in(context):
                if run.number not in self._held:
                    self._runs.leave(run)

    async def end_kept(self) -> None:
        """End such runs too: this worker is to leave none."""
        ending = self._kept_contexts()
        for context in ending:
            for run in self._in(context):
                run.stopping = run.stopping or Stop.RELEASE
            self._processes.kill(context, signal.SIGKILL, tree=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_KEPT_WITHIN):
                for context in ending:
                    await context.gone.wait()

    def _kept_contexts(self) -> list[KeptProcess]:
        return [one for one in self._processes.contexts.values() if isinstance(one, KeptProcess)]

    @property
    def leaves_all(self) -> bool:
        """Whether every run that is left goes on without this worker."""
        if self._options.stop_jobs:
            return False
        left = {number for context in self._kept_contexts() for number in context.runs}
        return all(number in left and number not in self._held for number in self._runs.active)

    def _place(self, run: ActiveRun, context: ContextProcess) -> None:
        self._context_of[run.number] = context
        context.runs.add(run.number)
        run.pid, run.alone = context.pid, context.isolated

    def _begin(self, run: ActiveRun) -> None:
        """Report that a run begins, if it is held for that, as soon as it has a process; then let it start."""
        if run.pid is not None and not run.began and run.number in self._held:
            self._runs.begin(run, run.pid, partial(self._assign, run))

    def _assign(self, run: ActiveRun) -> None:
        assignment = self._held.pop(run.number)
        self._context_of[run.number].assign([assignment])
        if run.kept is not None:
            self._runs.changed.set()  # a worker that is to stop need not wait for it any more

    # Runs report

    def forked(self, context: ContextProcess) -> None:
        for run in self._in(context):
            run.pid = context.pid
            self._begin(run)
            if context.stdin is not None:
                self._runs.print(run, "stdout", b"")  # marks the start
            if isinstance(context, KeptProcess) and context.state is not None and run.adopted:
                self._go_on(run, context, context.state)

    def _go_on(self, run: ActiveRun, context: KeptProcess, state: ShimState) -> None:
        """The shim has said how an adopted run stands."""
        if not state.begun:
            self._processes.kill(context, signal.SIGKILL)  # the end of it gives the job back
            return
        run.takes_messages, run.given, run.taken = run.job.input, state.given, state.taken
        run.printed = state.printed
        if run.stopping is not None:
            self.stop(run)

    def updated(self, context: ContextProcess, update: ContextUpdate) -> None:
        for one in update.updates:
            if (run := self._runs.active.get(one.number)) is not None:
                self._update(context, run, one)
        if update.opened:
            context.opening, self._failures = False, 0
            self.changed.set()
        for outcome in update.outcomes:
            if context.isolated:
                self._outcomes[context] = outcome
            elif outcome.unopened:
                self._not_opened(context, outcome)
            elif (run := self._runs.active.get(outcome.number)) is not None:
                self._finish(run, outcome)
        if update.answers is not None:
            context.answered(update.answers)
            self._move(context, update.not_begun)
        if update.outcomes and context in self._shared and self._is_spent(context):
            self._retire(context)
            self.fill()

    def _update(self, context: ContextProcess, run: ActiveRun, update: RunUpdate) -> None:
        if update.step is not None:
            self._runs.ask_steps(run, update.step, context.answer_step)
        else:
            self._runs.update(run, update)

    def _not_opened(self, context: ContextProcess, outcome: RunOutcome) -> None:
        """A shared context ends before it ran anything; the next one is forked after a pause, which grows."""
        context.opening = False
        self._log_not_opened(outcome)
        self._fill_at = self._clock.monotonic() + self._pause()
        if context in self._shared:
            self._shared.remove(context)
        for run in self._in(context):
            self._finish(run, replace(outcome, number=run.number))
        self.changed.set()

    def _pause(self) -> float:
        """Seconds without another try; called once for each that has failed."""
        self._failures += 1
        return float(min(LONGEST_PAUSE, 2.0 ** (self._failures - 1)))

    def _log_not_opened(self, outcome: RunOutcome) -> None:
        error = outcome.error or Error()
        log.error("cannot run jobs, tries again: %s (%s)", error.message, error.type)
        if not self._failures and error.traceback:
            log.error("%s", error.traceback.rstrip())

    def _rest(self, outcome: RunOutcome) -> None:
        """A job's own context could not open what the app wants open: others could not either, for now."""
        if not self._resting:
            self._log_not_opened(outcome)
            self._resting = True
            self._loop.call_later(self._pause(), self._end_rest)
            self.changed.set()

    def _end_rest(self) -> None:
        self._resting = False
        self.changed.set()

    def _move(self, context: ContextProcess, not_begun: Sequence[Assignment]) -> None:
        """Give jobs that wait behind a coroutine which blocks its event loop to another context."""
        batches: dict[ContextProcess, list[Assignment]] = {}
        for assignment in not_begun:
            run = self._runs.active.get(assignment.number)
            if run is None or self._context_of.get(run.number) is not context:
                continue
            if run.stopping is not None:
                self._finish(run, RunOutcome(run.number, Verdict.ERROR, error=NOT_BEGUN))
                continue
            context.runs.discard(run.number)
            other = self._least_busy()
            self._place(run, other)
            batches.setdefault(other, []).append(assignment)
        for other, assignments in batches.items():
            other.assign(assignments)

    def printed(self, context: ContextProcess, stream: Stream, data: bytes) -> None:
        self._tails[context] = (self._tails.get(context, "") + data.decode(errors="replace"))[-LAST_OUTPUT:]
        for run in self._in(context):
            self._runs.print(run, stream, data)
            if run.printed > self._options.max_output:
                run.allowed = self._options.max_output
                self._kill_for(run, Stop.OUTPUT)

    def send(self, run: ActiveRun, messages: Sequence[bytes]) -> None:
        context = self._context_of.get(run.number)
        if context is None:
            return
        if context.stdin is None:
            context.send(run.number, messages)
            return
        for data in messages:
            context.stdin.give(decode(data))
        if not context.stdin.is_full:
            self._has_taken(run)

    # Runs are stopped

    def stop(self, run: ActiveRun) -> None:
        """Cancel it; then TERM, if it has a process of its own; then KILL."""
        if run.number in self._held or self._gathering.remove(run.number):
            self._finish(run, RunOutcome(run.number, Verdict.ERROR, error=NOT_BEGUN))
            return
        others = [one for one in self._batch_of.get(run.number, ()) if one is not run and self._runs.is_active(one)]
        if others and run.stopping in (Stop.CANCEL, Stop.LOST):
            self._finish(run, RunOutcome(run.number, Verdict.ERROR, error=LEFT_OUT))  # the call goes on for the others
            return
        for one in others:
            one.stopping = one.stopping or run.stopping  # it is the call that takes too long, or prints too much
        if (context := self._context_of.get(run.number)) is not None:
            if context.isolated and run.stopping is Stop.OUTPUT:
                self._kill_context(run)  # given a warning, it would only print more
                return
            context.stop(run.number)
            run.set_timer(self._loop.call_later(SOFT, self._terminate, run))

    def _terminate(self, run: ActiveRun) -> None:
        context = self._context_of.get(run.number)
        if context is not None and context.isolated:
            self._processes.kill(context, signal.SIGTERM)
            run.set_timer(self._loop.call_later(TERM, self._kill_context, run))
        else:
            self._kill_context(run)

    def _kill_context(self, run: ActiveRun) -> None:
        """A job that cannot be stopped costs its context; the other jobs in it are released."""
        context = self._context_of.get(run.number)
        if context is None:
            return
        for other in self._in(context):
            if other is not run and other.stopping is None:
                other.stopping = Stop.RELEASE
        self._remove(context)
        self._processes.kill(context, signal.SIGKILL, tree=True)

    def release_waiting(self) -> None:
        """Release jobs that wait for a context which is not forked yet: nothing can fork it now."""
        for context in self._processes.waiting():
            for run in self._in(context):
                run.stopping = run.stopping or Stop.RELEASE
            if context.runs:
                self._remove(context)
                self._processes.kill(context, signal.SIGKILL)

    def kill(self, run: ActiveRun) -> None:
        if self._gathering.remove(run.number):
            self._finish(run, RunOutcome(run.number, Verdict.ERROR, error=NOT_BEGUN))
            return
        context = self._context_of[run.number]
        self._processes.kill(context, signal.SIGKILL, tree=True)
        outcome = self._outcomes.pop(context, None)
        error = Error(message=WORKER_STOPPED)
        self._finish(run, outcome or RunOutcome(run.number, Verdict.ERROR, error=error))

    def _kill_for(self, run: ActiveRun, why: Stop) -> None:
        """Kill a job that takes too much of something: given a warning, it would only take more."""
        if run.stopping is None:
            run.stopping = why
            self._kill_context(run)

    # Runs and contexts end

    def disconnected(self, context: ContextProcess) -> None:
        """A context is exiting, or has; its status comes later."""
        self._remove(context)

    def exited(self, context: ContextProcess, status: int, peak_memory: int, cpu_time: float) -> None:
        outcome = self._outcomes.pop(context, None)
        tail = self._tails.pop(context, "")
        if context.opening:
            how, _ = describe_status(status)
            error = Error(type="Crashed", message=f"a context has died while it opened what the app wants open, {how}")
            self._not_opened(context, RunOutcome(0, Verdict.RETRY, error=error, snooze=POSTPONED, unopened=True))
        self._remove(context)
        self.changed.set()
        for run in self._in(context):
            if run.number in self._held:
                self._postpone(run, "it ended before the job began")
                continue
            if isinstance(context, KeptProcess) and (context.unbegun or (run.adopted and run.job.pid is None)):
                self._give_back(run)
                continue
            if outcome is None and context.stdin is not None and os.WIFEXITED(status):
                outcome = exited_by_itself(run, os.WEXITSTATUS(status))
            if context.isolated and peak_memory:
                run.used = peak_memory, cpu_time
            self._finish(run, outcome or crashed(run, status, peak_memory, tail))

    def fork_failed(self, context: ContextProcess, why: str) -> None:
        """There was no room for a context. The next check forks again: to try at once would fail too."""
        if context.opening:
            error = Error(type="Fork", message=why)
            self._not_opened(context, RunOutcome(0, Verdict.RETRY, error=error, snooze=POSTPONED, unopened=True))
        if context in self._shared:
            self._shared.remove(context)
        for run in self._in(context):
            self._postpone(run, why)

    def _remove(self, context: ContextProcess) -> None:
        """Give a context no more jobs; another takes its place."""
        if context in self._shared:
            self._shared.remove(context)
            if not context.opening:  # else it is known only now that it failed: the next one is forked later
                self.fill()

    def _postpone(self, run: ActiveRun, why: str) -> None:
        """Release a job that could not be started, with a delay: claimed again at once it would fail again."""
        log.error("no process for job %s: %s", run.id, why)
        self._finish(run, RunOutcome(run.number, Verdict.RETRY, snooze=POSTPONED))

    def _give_back(self, run: ActiveRun) -> None:
        """Its first worker ended before the code began: it is handed out again."""
        self._forget(run)
        self._runs.remove(run, run.released())

    def _in(self, context: ContextProcess) -> list[ActiveRun]:
        return [self._runs.active[number] for number in context.runs if number in self._runs.active]

    def _finish(self, run: ActiveRun, outcome: RunOutcome) -> None:
        context = self._context_of.get(run.number)
        if context is not None and context.isolated:
            if outcome.unopened:
                self._rest(outcome)
            else:
                self._failures = 0
        self._forget(run)
        self._runs.finish(run, outcome)

    def _forget(self, run: ActiveRun) -> None:
        if self._batches:
            self._batch_of.pop(run.number, None)
        if (context := self._context_of.pop(run.number, None)) is not None:
            context.runs.discard(run.number)
            if self._held.pop(run.number, None) is not None and context.isolated:
                self._processes.kill(context, signal.SIGKILL)  # it waits for a job that will not come


def _is_merged(job: Job) -> bool:
    return job.output is not None and job.output.merged
