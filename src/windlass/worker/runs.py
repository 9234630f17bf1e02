"""The runs of a worker: what a `Runner` must do, the table of runs, and the report on each.

A claimed job enters the table with `start`, an adopted one with `adopt`. It leaves with `remove`, which sends its
report, or with `leave`, if it goes on without this worker. A `Runner` takes a batch of claimed jobs and reports to the
table what happens to each: an update, output, an outcome. Nothing here starts a process; the queue is known only as
`Reports`.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from windlass.model.errors import WindlassError
from windlass.model.job import TEXT, Error, Job, Reason
from windlass.model.new_job import AT_MOST_ONCE, JobOptions, NewJob
from windlass.model.operations import (
    Alive,
    Applied,
    Began,
    Claimed,
    Delivered,
    Finished,
    FinishedStep,
    JobSteps,
    LeasedJob,
    LoadSteps,
    Released,
    SaveSteps,
)
from windlass.model.outcome import CODES, Verdict
from windlass.model.output import (
    DEFAULT_OUTPUT,
    MOST_CHUNK,
    MOST_CHUNKS,
    MOST_OUTPUT,
    VALUES,
    NewChunk,
    Progress,
    Stream,
)
from windlass.model.ports import Clock
from windlass.model.worker import SandboxTier
from windlass.worker.contexts.frames import RunOutcome, RunUpdate, StepAnswer, StepRequest
from windlass.worker.functions import FunctionOutcome
from windlass.worker.linux import OwnProcess, describe_status
from windlass.worker.reports import Reports
from windlass.worker.telemetry import Telemetry

log = logging.getLogger("windlass.worker")
job_log = logging.getLogger("windlass.job")

MOST_UNSENT = MOST_OUTPUT
"""Bytes of a run's output that wait to be sent to the queue."""

GROUPED = 0.02
"""Seconds in which output is gathered before it is sent."""

LONG_ENOUGH = 0.2
"""Seconds after which a job has run long enough for its pid to be of interest."""

KEEP_FREE = 5.0
"""Seconds for which slots are kept free for a job that takes several, if nothing ends meanwhile."""

WORKER_STOPPED = "its worker stopped before it had ended"

MOST_LOGGED = 300
"""Characters of an error in the log."""


class Stop(StrEnum):
    """Why a running job is being stopped."""

    CANCEL = "cancel"
    """It was cancelled: the outcome says so."""
    TIMEOUT = "timeout"
    """It ran too long."""
    OUTPUT = "output"
    """It printed too much."""
    MEMORY = "memory"
    """It took too much memory."""
    LOST = "lost"
    """Its lease is lost: nothing is reported."""
    RELEASE = "release"
    """Its worker stops, or its context was killed for another job: it is released and this run does not count."""


class KeptContext(Protocol):
    """What a run is in that outlives its worker."""

    received: int
    """The last of its updates that this worker has."""

    def confirm(self, upto: int) -> None:
        """The queue has the updates up to this one: they need not be kept for another worker."""
        ...

    def settled(self) -> None:
        """The queue knows how the run ended: nothing of it need be kept."""
        ...


class ActiveRun:
    """One run of one job, from its claim to its report."""

    __slots__ = (
        "_unsent_bytes", "adopted", "allowed", "alone", "asked", "began", "cleared", "deadline", "given", "has_files",
        "id", "job", "kept", "lease", "log", "number", "pid", "printed", "progress", "runner", "sandbox", "since",
        "stopping", "taken", "takes_messages", "tenant", "timer", "token", "used", "version",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        job: Job,
        token: str,
        since: float,
        runner: "Runner",
        *,
        tenant: str | None = None,
    ) -> None:
        self.number = number
        self.job = job
        self.id = job.id
        self.token = token
        self.tenant = tenant
        """The job's tenant, where reports must name it: the worker serves all tenants."""
        self.runner = runner
        self.since = since
        """When it was claimed, by the worker's own clock."""
        self.deadline = job.deadline
        """When it is stopped, by the queue's clock."""
        self.pid: int | None = None
        """The process that runs it, once there is one."""
        self.alone = False
        """Whether no other job runs in that process."""
        self.used: tuple[int, float] | None = None
        """Bytes that its own process held at its peak, and seconds of CPU, once it has ended."""
        self.sandbox: SandboxTier | None = None
        """What an uploaded function runs in."""
        self.version: int | None = None
        """The version of its handler."""
        self.has_files = False
        """Whether files came with it."""
        self.began = False
        """Whether the queue knows its pid."""
        self.cleared = not self.at_most_once
        """Whether its code may start: the queue knows that it begins."""
        self.adopted = False
        """Whether another worker has started it."""
        self.kept: KeptContext | None = None
        """What it runs in, if that outlives this worker."""
        self.lease: float | None = None
        """Seconds of its own lease; null = the worker's."""
        self.stopping: Stop | None = None
        self.timer: asyncio.TimerHandle | None = None
        """Its time limit, then the next step of stopping it."""
        self.progress: Progress | None = None
        """Its latest progress, if not sent yet."""
        self.log: list[tuple[Stream, bytes | memoryview]] = []
        """Output that is not sent yet."""
        self._unsent_bytes = 0
        self.printed = 0
        """Bytes that it has put out."""
        self.allowed: int | None = None
        """Bytes that it may put out, once it has put out more."""
        self.takes_messages = False
        self.given = self.taken = 0
        """Messages that were passed to it, and that its task has taken."""
        self.asked = False
        """Whether the renewal in flight asks for more messages."""

    @property
    def at_most_once(self) -> bool:
        """Whether it may not run again once it has begun: then the queue must know first."""
        return self.job.on_lost in AT_MOST_ONCE

    @property
    def begun(self) -> bool:
        """Whether its code may have begun."""
        return self.cleared and (self.at_most_once or self.pid is not None)

    @property
    def own_process(self) -> OwnProcess | None:
        """Its process, if it has that for itself. That of a function has run others before."""
        if not self.alone or self.pid is None:
            return None
        return OwnProcess(self.pid, self.since if self.sandbox is None else None)

    @property
    def heard(self) -> int | None:
        """The last message it has; null = it takes none, or none now.

        It gets one at a time: what its task has not taken waits in the queue, which can refuse more.
        """
        return self.given if self.takes_messages and self.taken >= self.given else None

    @property
    def limit(self) -> float | None:
        """Seconds it may run. Both times are the queue's, so its clock need not agree with ours."""
        if self.deadline is None or self.job.started_at is None:
            return None
        return (self.deadline - self.job.started_at).total_seconds()

    @property
    def known_deadline(self) -> datetime | None:
        """The deadline, where it may change: the queue answers only if it has another."""
        return self.deadline if self.job.assigned is not None or self.deadline != self.job.deadline else None

    @property
    def has_update(self) -> bool:
        return self.progress is not None or bool(self.log)

    def set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    def apply(self, update: RunUpdate) -> None:
        """Keep what the job reported until it is sent."""
        if update.progress is not None:
            self.progress = update.progress
        if update.taken is not None:
            self.taken = update.taken
        if update.printed is not None:
            self.print(*update.printed)

    def print(self, stream: Stream, data: bytes | memoryview) -> None:
        """Keep output until it is sent, up to the job's limit; of what waits too long only the newest part stays."""
        policy = self.job.output or DEFAULT_OUTPUT
        before, self.printed = self.printed, self.printed + len(data)
        if policy.limit is not None and self.printed > policy.limit:
            data = data[: _cut(stream, data, policy.limit - before)]
            if policy.over == "fail":
                self.allowed = policy.limit
        if not data and before != self.printed:
            return
        if policy.merged and stream == "stderr":
            stream = "stdout"
        data = data[-MOST_UNSENT:]
        self.log.append((stream, data))
        self._unsent_bytes += len(data)
        while (excess := self._unsent_bytes - MOST_UNSENT) > 0:
            source, oldest = self.log.pop(0)
            cut = _cut(source, oldest, excess, later=True)
            if cut < len(oldest):  # a view, because a piece may be cut many times
                self.log.insert(0, (source, memoryview(oldest)[cut:]))
            self._unsent_bytes -= cut

    def take_updates(self) -> list[Alive]:
        """What it has reported since the last updates: one, or several if its output is in very many pieces."""
        progress, self.progress = self.progress, None
        log, self.log, self._unsent_bytes = self.log, [], 0
        chunks = [*_chunks(log)]
        parts = [chunks[start : start + MOST_CHUNKS] for start in range(0, len(chunks), MOST_CHUNKS)] or [[]]
        return [
            Alive(
                id=self.id,
                token=self.token,
                tenant=self.tenant,
                progress=progress,
                output=part,
                deadline=self.known_deadline,
                lease=self.lease,
            )
            for part in parts
        ]

    def begins(self, pid: int) -> Began:
        """The report that a process runs it."""
        return Began(
            id=self.id,
            token=self.token,
            tenant=self.tenant,
            pid=pid,
            sandbox=self.sandbox,
            handler_version=self.version,
            lease=self.lease,
            files_loaded=self.has_files and self.at_most_once and self.job.max_retry == 0,
        )

    def released(
        self, delay: float | None = None, *, stopped: str | None = None, outcome: RunOutcome | None = None
    ) -> Released:
        """The report that this run does not count; the job waits again, after a delay if there is one.

        `stopped`: why its code was stopped before it had ended, if it may have begun. `outcome`: of code that asked for
        another run.
        """
        stopped = stopped[:MOST_LOGGED] if stopped is not None and self.begun else None
        return Released(
            id=self.id,
            token=self.token,
            tenant=self.tenant,
            delay=delay,
            hold_limit=None if outcome is None else outcome.hold_limit,
            stopped=stopped,
            files={} if outcome is None else outcome.files,
        )


def _chunks(log: list[tuple[Stream, bytes | memoryview]]) -> Iterator[NewChunk]:
    """Neighbouring pieces of one stream joined, in chunks of the size that the queue takes; an empty one stays so."""
    for (stream, _), pieces in itertools.groupby(log, key=lambda one: (one[0], bool(one[1]))):
        data = b"".join(piece for _, piece in pieces)
        start = 0
        while True:
            if (end := _cut(stream, data, start + MOST_CHUNK)) <= start:
                end = start + MOST_CHUNK  # no line: it was not emitted by us
            yield NewChunk(stream=stream, data=data[start:end])
            if (start := end) >= len(data):
                break


def _cut(stream: Stream, data: bytes | memoryview, at: int, *, later: bool = False) -> int:
    """Where to cut a piece of output: here; but between values, so at the end of the line before, or of this one."""
    at = min(max(at, 0), len(data))
    if stream != VALUES or at in (0, len(data)):
        return at
    if later:
        return bytes(data).find(b"\n", at - 1) + 1 or len(data)
    return bytes(data).rfind(b"\n", 0, at) + 1


class Runner(Protocol):
    """Runs jobs: in contexts of the app, as functions, at a push worker, or inside a test. Reports to a `RunTable`."""

    def start(self, batch: Sequence[tuple[ActiveRun, Claimed]]) -> None:
        """Run these jobs. Must not wait."""
        ...

    def stop(self, run: ActiveRun) -> None:
        """End a run, within a grace that is the runner's own. It then ends like any other."""
        ...

    def kill(self, run: ActiveRun) -> None:
        """End a run at once, and report it before this returns: the worker stops."""
        ...

    def send(self, run: ActiveRun, messages: Sequence[bytes]) -> None:
        """Pass messages to a running job."""
        ...


class RunListener(Protocol):
    """Follows the runs of a worker."""

    def runs_started(self) -> None:
        """Some runs have started."""
        ...

    def run_has_room(self, run: ActiveRun) -> None:
        """A run has taken the messages it was given."""
        ...


# The table

STOPPED = {
    Stop.TIMEOUT: (Reason.TIMEOUT, "ran longer than its time limit of {run.limit:g} s"),
    Stop.OUTPUT: (Reason.OUTPUT, "printed more than its limit of {run.allowed} bytes"),
    Stop.MEMORY: (Reason.MEMORY, "took more memory than this worker allows"),
}
"""Why a worker stops a job by itself, and the message of its error."""

VERDICTS = {code // 100: verdict for verdict, code in CODES.items()}
"""What the first digit of a code means; any other asks for another run."""

RunnerOf = Callable[[Job], Runner]
"""Chooses the runner of a job."""


def choose_runner(app_tasks: Collection[str], contexts: Runner, handlers: Runner | None) -> RunnerOf:
    """An app's own tasks run in its contexts: an uploaded handler cannot take their place."""
    return lambda job: contexts if handlers is None or job.task in app_tasks else handlers


class RunTable:
    """What one worker runs."""

    def __init__(
        self,
        reports: Reports,
        clock: Clock,
        telemetry: Telemetry | None = None,
        slots_of: Mapping[str, int] | None = None,
        options: Mapping[str, JobOptions] | None = None,
    ) -> None:
        """`slots_of`: the slots that a job takes, by task, where it takes more than one. `options`: of its tasks."""
        self.active: dict[int, ActiveRun] = {}
        """By number, in the order in which they were claimed."""
        self.reports = reports
        self.changed = asyncio.Event()
        """Set whenever a run has ended."""
        self._updated: dict[int, ActiveRun] = {}
        """Runs that have progress or output to send."""
        self._sending: asyncio.TimerHandle | None = None
        """When the output that waits is sent."""
        self.done = 0
        """How many runs have ended here; released ones do not count."""
        self._clock = clock
        self._telemetry = telemetry
        self._slots_of = slots_of or {}
        self._kept_free = 1
        """Slots that must be free before the next claim: several if a job was given back for want of them."""
        self._on_lost = {task: one.on_lost for task, one in (options or {}).items() if one.on_lost is not None}
        self._listeners: list[RunListener] = []
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()

    def subscribe(self, listener: RunListener) -> None:
        self._listeners.append(listener)

    def slots(self, at_once: int, in_all: int | None) -> int:
        """How many jobs may run at once now, if so many may end here in all."""
        return at_once if in_all is None else min(at_once, in_all - self.done)

    def free(self, slots: int) -> int:
        """How many of the slots are free; none as long as they are kept for a job that needs more than these."""
        if not self._slots_of:
            return slots - len(self.active)
        free = slots - sum(self._slots_of.get(run.job.task, 1) for run in self.active.values())
        return 0 if self.active and free < self._kept_free else free

    def fitting(self, claimed: Sequence[Claimed], free: int) -> Sequence[Claimed]:
        """As many of the first jobs as these slots are enough for. For the next one, slots are kept free.

        A job that is alone may take more than there are.
        """
        self._kept_free = 1
        if not self._slots_of:
            return claimed
        for place, one in enumerate(claimed):
            needed = self._slots_of.get(one.job.task, 1)
            if needed > free and (place or self.active):
                self._kept_free = needed
                job_log.debug("%s %s takes %d slots, %d are free: released", one.job.id, one.job.task, needed, free)
                return claimed[:place]
            free -= needed
        return claimed

    async def some_ended(self) -> None:
        self.changed.clear()
        if self._kept_free == 1:
            await self.changed.wait()
            return
        try:
            async with asyncio.timeout(KEEP_FREE):
                await self.changed.wait()
        except TimeoutError:
            self._kept_free = 1  # another worker may have taken the job

    async def all_ended(self) -> None:
        while self.active:
            await self.some_ended()

    def is_active(self, run: ActiveRun) -> bool:
        return self.active.get(run.number) is run

    # Runs start

    def start(self, claimed: Sequence[Claimed], runner_of: RunnerOf) -> None:
        """Give the jobs of a claim's answer to their runners."""
        now, named = self._clock.monotonic(), self.reports.name_tenants
        batches: dict[Runner, list[tuple[ActiveRun, Claimed]]] = {}
        for one in map(self._with_on_lost, claimed) if self._on_lost else claimed:
            tenant = one.job.tenant if named else None
            runner = runner_of(one.job)
            run = ActiveRun(next(self._numbers), one.job, one.token, now, runner, tenant=tenant)
            run.has_files = bool(one.files)
            self.active[run.number] = run
            batches.setdefault(runner, []).append((run, one))
        for runner, batch in batches.items():
            runner.start(batch)
        # Logged only now: until the jobs are with their runner, their callers wait.
        if job_log.isEnabledFor(logging.DEBUG):
            for one in claimed:
                job_log.debug("%s %s running, attempt %d", one.job.id, one.job.task, one.job.attempt)
        for listener in self._listeners:
            listener.runs_started()

    def _with_on_lost(self, claimed: Claimed) -> Claimed:
        """As its task says, if it was enqueued by name before the queue knew what that is. The queue decides alike."""
        job = claimed.job
        if job.on_lost is not None or job.task not in self._on_lost:
            return claimed
        return replace(claimed, job=replace(job, on_lost=self._on_lost[job.task]))

    def adopt(self, claimed: Claimed, runner: Runner) -> ActiveRun:
        """A run that goes on here: its job has just been adopted."""
        job, now = self._with_on_lost(claimed).job, self._clock.monotonic()
        tenant = job.tenant if self.reports.name_tenants else None
        run = ActiveRun(next(self._numbers), job, claimed.token, now, runner, tenant=tenant)
        if job.started_at is not None:
            run.since -= max(0.0, (job.updated_at - job.started_at).total_seconds())
        run.adopted = run.began = run.cleared = True
        self.active[run.number] = run
        for listener in self._listeners:
            listener.runs_started()
        return run

    def leave(self, run: ActiveRun) -> None:
        """A run goes on without this worker. Its last update also renews its lease."""
        if self.active.pop(run.number, None) is not None:
            self._updated.pop(run.number, None)
            run.set_timer(None)
            updates = run.take_updates()
            self._confirm(run, updates[-1])
            self.reports.last_updates(updates)
            log.info("job %s goes on without this worker", run.id)
            self.changed.set()

    def begin(self, run: ActiveRun, pid: int, start: Callable[[], None]) -> None:
        """Report that a run begins, and start it once that is answered: if this worker dies, the queue must know."""

        def answered(held: bool) -> None:
            if not self.is_active(run):
                return
            if not held:
                self.lose(run)
            elif run.stopping is None:
                run.cleared = True
                start()

        run.began = True
        self.reports.when_answered(began := run.begins(pid), answered)
        self.reports.begin(began)

    def limit_time(self, run: ActiveRun) -> None:
        """Stop a run when its time limit, counted from its claim, is over."""
        if run.deadline is not None and run.stopping is None and (limit := run.limit) is not None:
            left = max(0.0, limit - (self._clock.monotonic() - run.since))
            run.set_timer(self._loop.call_later(left, self.stop, run, Stop.TIMEOUT))

    # Runs report

    def update(self, run: ActiveRun, update: RunUpdate) -> None:
        run.apply(update)
        if update.printed is not None:
            self._has_printed(run)
        elif update.taken is None:
            self._updated[run.number] = run
        else:
            for listener in self._listeners:
                listener.run_has_room(run)

    def ask_steps(self, run: ActiveRun, request: StepRequest, answer: Callable[[StepAnswer], None]) -> None:
        """Load the steps of its job, or save one; then answer, if the run is still ours."""

        def answered(found: list[JobSteps] | Applied | WindlassError) -> None:
            if not self.is_active(run):
                return
            match found:
                case WindlassError():
                    answer(StepAnswer(run.number, request.call, error=str(found)))
                case Applied(applied=[]) | []:
                    self.lose(run)
                case Applied():
                    answer(StepAnswer(run.number, request.call))
                case [loaded]:
                    answer(StepAnswer(run.number, request.call, loaded.steps))

        held = LeasedJob(id=run.id, token=run.token, tenant=run.tenant)
        if not request.name:
            self.reports.ask(lambda names: LoadSteps(**names, jobs=[held]), answered)
            return
        step = FinishedStep(id=run.id, token=run.token, tenant=run.tenant, name=request.name, result=request.result)
        self.reports.ask(lambda names: SaveSteps(**names, jobs=[step]), answered)

    def print(self, run: ActiveRun, stream: Stream, data: bytes) -> None:
        run.print(stream, data)
        self._has_printed(run)

    def _has_printed(self, run: ActiveRun) -> None:
        self._updated[run.number] = run
        if run.allowed is not None:
            self.stop(run, Stop.OUTPUT)
        if self._sending is None:
            self._sending = self._loop.call_later(GROUPED, self._send_output)

    def _send_output(self) -> None:
        self._sending = None
        self.send_updates()
        if self._updated and self._sending is None:
            self._sending = self._loop.call_later(GROUPED, self._send_output)

    def send_updates(self) -> None:
        """Report pids, progress and output. What a run says before its last update is answered waits."""
        long_ago = self._clock.monotonic() - LONG_ENOUGH
        for run in self.active.values():
            if run.since > long_ago:
                break  # so are all that were claimed after it
            if not run.began and run.pid is not None:
                run.began = True
                self.reports.begin(run.begins(run.pid))
        updated, self._updated = self._updated, {}
        for run in updated.values():
            if self.reports.is_updating(run.id, run.token):
                self._updated[run.number] = run
            else:
                *before, last = run.take_updates()
                for update in before:
                    self.reports.update(update)
                self._confirm(run, last)
                self.reports.update(last)

    def _confirm(self, run: ActiveRun, update: Alive) -> None:
        """Once the queue has this update, nothing up to it need be kept for another worker."""
        if run.kept is not None:
            kept, upto = run.kept, run.kept.received
            self.reports.when_answered(update, lambda _held: kept.confirm(upto))

    def deliver(self, run: ActiveRun, messages: Sequence[Delivered]) -> None:
        """Pass on messages to a job; the queue repeats those it has until it knows that."""
        fresh = [one.data for one in messages if one.n > run.given]
        if run.takes_messages and fresh:
            run.given += len(fresh)
            run.runner.send(run, fresh)

    # Runs are stopped

    def stop(self, run: ActiveRun, why: Stop) -> None:
        if run.stopping is not None or run.number not in self.active:
            return
        run.stopping = why
        run.runner.stop(run)

    def shorten(self, run: ActiveRun, deadline: datetime) -> None:
        """A running job has less time than before: it is stopped earlier, perhaps now."""
        run.deadline = deadline
        self.limit_time(run)

    def lose(self, run: ActiveRun) -> None:
        """A run is no longer ours, whatever else it was being stopped for."""
        if run.stopping is not Stop.LOST:
            run.stopping = Stop.LOST
            run.runner.stop(run)

    def release_all(self) -> None:
        """Kill everything that runs; none of these runs counts."""
        for run in list(self.active.values()):
            run.stopping = run.stopping or Stop.RELEASE
            run.runner.kill(run)

    # Runs end

    def finish(self, run: ActiveRun, outcome: RunOutcome) -> None:
        if outcome.snooze is not None:
            self.remove(run, run.released(outcome.snooze, outcome=outcome))
        else:
            self.remove(run, finished(run, outcome))

    def remove(self, run: ActiveRun, report: Finished | Released | None) -> None:
        """Remove a run that has ended, and send its report. None = a push worker has reported it already."""
        if self.active.pop(run.number, None) is None:
            return  # it was released before its runner saw its end
        if self._telemetry is not None and isinstance(report, Finished):
            self._telemetry.note(run.job.task, self._clock.monotonic() - run.since)
        succeeded = isinstance(report, Finished) and report.outcome is Verdict.OK
        if run.stopping is Stop.RELEASE and not succeeded:
            report = run.released(stopped=_why_stopped(report))
        elif run.stopping is Stop.LOST and isinstance(report, Finished):
            log.warning("lost job %s: its lease has run out, or it was ended by hand", run.id)
            report = None
        line = self._line_of_end(run, report)
        self._updated.pop(run.number, None)
        run.set_timer(None)
        self.done += isinstance(report, Finished)
        self._name_process(run, report)
        last_updates = run.take_updates() if run.has_update else []
        if run.kept is not None:
            self._settle(run.kept, report)
        if isinstance(report, Finished):
            self.reports.finish(report, last_updates, line)
        elif isinstance(report, Released):
            self.reports.release(report, last_updates)
        if line is not None and not isinstance(report, Finished):
            job_log.debug("%s", line)
        self.changed.set()

    def _settle(self, kept: KeptContext, report: Finished | Released | None) -> None:
        if report is None:
            kept.settled()
        else:
            self.reports.when_answered(report, lambda _held: kept.settled())

    def _name_process(self, run: ActiveRun, report: Finished | Released | None) -> None:
        """Report the process of a short run that ended without reporting an outcome: it belongs to the record."""
        if run.began or run.pid is None or report is None:
            return
        if report.stopped is not None if isinstance(report, Released) else report.reason is Reason.CRASHED:
            self.reports.begin(run.begins(run.pid))

    def _line_of_end(self, run: ActiveRun, report: Finished | Released | None) -> str | None:
        """For the log, if it takes such lines. That of an outcome is true only when the queue has stored it."""
        if not job_log.isEnabledFor(logging.DEBUG):
            return None
        how = "released" if report is not None else "reported by its worker"
        if run.stopping is Stop.LOST:
            how = "lost"
        elif run.stopping is Stop.CANCEL and isinstance(report, Finished) and report.outcome is not Verdict.OK:
            how = "stopped"  # cancelled, halted or deleted: the order says no more than that
        elif isinstance(report, Finished):
            how = f"completed, {report.outcome} {report.code or CODES[report.outcome]}"
        return f"{run.id} {run.job.task} {how} after {self._clock.monotonic() - run.since:.3f} s"


# The report on a run


def _why_stopped(report: Finished | Released | None) -> str | None:
    if isinstance(report, Released):
        return report.stopped
    return None if report is None or report.error is None else report.error.message


def finished(run: ActiveRun, outcome: RunOutcome) -> Finished:
    """The report on a run that ended by itself, crashed, or was stopped."""
    if outcome.verdict is Verdict.OK and run.stopping is not Stop.OUTPUT:
        return Finished(
            id=run.id,
            token=run.token,
            tenant=run.tenant,
            sandbox=run.sandbox,
            handler_version=run.version,
            outcome=Verdict.OK,
            code=outcome.code,
            result=UNSET if outcome.result is None else Raw(outcome.result),
            content_type=outcome.content_type,
            jobs=outcome.jobs,
            files=outcome.files,
        )
    verdict, error, reason = outcome.verdict, outcome.error or Error(), outcome.reason
    if run.stopping in STOPPED:
        verdict = Verdict.ERROR
        reason, text = STOPPED[run.stopping]
        error = Error(type=reason.value.capitalize(), message=text.format(run=run), traceback=error.traceback)
    elif run.stopping is Stop.CANCEL:
        if reason is Reason.CRASHED:
            message = "killed: it went on running after it was cancelled"
            error = Error(type="Cancelled", message=message, traceback=error.traceback)
        reason = None
    if run.used is not None:
        error = replace(error, peak_memory=run.used[0], cpu_time=run.used[1])
    _log_failure(run, verdict, error)
    return Finished(
        id=run.id,
        token=run.token,
        tenant=run.tenant,
        sandbox=run.sandbox,
        handler_version=run.version,
        outcome=verdict,
        code=None if reason or outcome.reason else outcome.code,
        error=error,
        reason=reason,
        delay=outcome.delay,
        files=outcome.files,
    )


def crashed(run: ActiveRun, status: int, peak_memory: int, last_output: str) -> RunOutcome:
    """The outcome of a run whose process has died."""
    how, code = describe_status(status)
    peak = f"; peak memory {peak_memory / 2**20:.0f} MiB" if peak_memory else ""
    error = Error(type="Crashed", message=f"{how} (exit code {code}{peak})", traceback=last_output)
    return RunOutcome(run.number, Verdict.ERROR, error=error, reason=Reason.CRASHED)


def exited_by_itself(run: ActiveRun, status: int) -> RunOutcome:
    """The outcome of a run whose process has become another program, which has ended: its status is the result."""
    return RunOutcome(run.number, Verdict.OK, msgspec.msgpack.encode(status))


def function_finished(run: ActiveRun, outcome: FunctionOutcome, delays: Sequence[float] = ()) -> Finished:
    """The report on a run of an uploaded function. `delays`: one for each job that it makes; none = no delays."""
    verdict = VERDICTS.get(outcome.code // 100, Verdict.RETRY)
    jobs = [
        chained_job(run.job, task, payload, delays[place] if delays else 0.0)
        for place, (task, payload) in enumerate(outcome.jobs)
    ]
    return finished(
        run,
        RunOutcome(
            run.number,
            verdict,
            outcome.result,
            outcome.code if outcome.code // 100 in VERDICTS else CODES[verdict],
            Error(type=outcome.type, message=outcome.message, traceback=outcome.traceback),
            outcome.delay,
            jobs=jobs,
            reason=outcome.reason,
            content_type=outcome.content_type,
            files=outcome.files,
        ),
    )


def chained_job(parent: Job, task: str, payload: str, delay: float) -> NewJob:
    """A job that a function printed. It names no options, so it gets its parent's, in the parent's queue."""
    return NewJob(
        task=task,
        payload=Raw(payload.encode()),
        content_type=TEXT,
        delay=delay or None,
        queue=parent.queue,
        priority=parent.priority,
        timeout=parent.timeout,
        max_retry=parent.max_retry,
        retry=parent.retry,
        keep_result=parent.keep_result,
        keep_result_for=parent.keep_result_for,
        keep_success=parent.keep_success,
        keep_failure=parent.keep_failure,
        on_lost=parent.on_lost,
        expires=None if parent.expires is None else parent.expires + delay,
    )


def refused(run: ActiveRun, why: str) -> Finished:
    """The report on a job that this worker will not run."""
    error = Error(type="Refused", message=why)
    return Finished(id=run.id, token=run.token, tenant=run.tenant, outcome=Verdict.ERROR, error=error)


def _log_failure(run: ActiveRun, verdict: Verdict, error: Error) -> None:
    """Log that a run failed, unless it was stopped for no fault of its own."""
    if run.stopping is not None and run.stopping not in STOPPED:
        return
    what = "asks for another run" if verdict is Verdict.RETRY else "failed"
    first = f"{error.type}: {error.message}".strip(": ").partition("\n")[0][:MOST_LOGGED]
    text = "".join(one if one.isprintable() else "\ufffd" for one in first)
    job_log.warning("%s %s %s in attempt %d: %s", run.id, run.job.task, what, run.job.attempt, text)
