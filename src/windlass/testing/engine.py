"""A queue and its worker in one process, for tests: the real engine over a store in memory, and the real worker loop.

Only the runner differs: it keeps a claimed job until the caller runs it, in the caller's own thread or event loop. The
store's clock stands until it is advanced. How a test reaches all this is the business of `windlass.testing`.
"""

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from windlass.call.dependencies import Provider
from windlass.call.hooks import Hooks, TaskCode
from windlass.call.signals import Cancelled, Suspended
from windlass.connection import LoopThread
from windlass.engine import Engine, Settings, upkeep
from windlass.model.duration import LONGEST
from windlass.model.job import Job, State
from windlass.model.match import Match
from windlass.model.operations import MOST_AT_ONCE, A, Alive, Claimed, GetStats, List, Operation, Renew, Show
from windlass.model.worker import BatchOptions, NewWorker
from windlass.store.sqlite import SqliteStore
from windlass.system import SystemClock, SystemRandomness
from windlass.worker.claims import Registration
from windlass.worker.contexts.execution import Execution, aexecute, execute, execution_of, is_async, unknown_task
from windlass.worker.contexts.frames import Assignment, RunOutcome, RunUpdate, assignment_of
from windlass.worker.loop import WorkerLoop
from windlass.worker.runs import ActiveRun


class ManualClock:
    """Stands at the time at which it was made, until it is advanced."""

    def __init__(self) -> None:
        self._now = SystemClock().now()
        self._passed = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._passed

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError(f"the clock of a test stands: nothing may sleep, not even {seconds} s")

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._passed += seconds


class RecordingTask:
    """A task that keeps the exception it raised: a report has only the text."""

    def __init__(self, task: TaskCode) -> None:
        self.plan = task.plan
        self.errors = task.errors
        self.soft_timeout = None
        self.raised: BaseException | None = None
        self._inner = task.function
        self.function: Callable[..., Any] = self._await if is_async(task) else self._call

    def _call(self, /, *args: Any, **kwargs: Any) -> Any:
        with self._recording():
            return self._inner(*args, **kwargs)

    async def _await(self, /, *args: Any, **kwargs: Any) -> Any:
        with self._recording():
            return await self._inner(*args, **kwargs)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        try:
            yield
        except BaseException as fault:
            self.raised = fault
            raise


class InlineRun:
    """A claimed job that the caller is about to run."""

    def __init__(
        self, runs: Sequence[ActiveRun], assignments: Sequence[Assignment], task: TaskCode | None, send: "SendUpdate"
    ) -> None:
        self.runs = runs
        """Several if they are a batch."""
        self.assignments = assignments
        self.task = task
        self.raised: BaseException | None = None
        """What it raised, once it has ended."""
        self.execution = self._execution(lambda update: send(self, update))

    def _execution(self, send: Callable[[RunUpdate], None]) -> Execution:
        if self.task is None:
            return Execution(self.assignments, send)
        return execution_of(self.task)(self.assignments, send)


SendUpdate = Callable[[InlineRun, RunUpdate], None]


class InlineRunner:
    """The `Runner` of a test: what is started waits until the caller takes it. Time limits are not enforced."""

    def __init__(self, tasks: Mapping[str, TaskCode], send: SendUpdate) -> None:
        self._tasks = tasks
        self._send = send
        self._started: deque[InlineRun] = deque()
        self._runs: dict[int, InlineRun] = {}
        """By number, until they have ended."""

    def start(self, batch: Sequence[tuple[ActiveRun, Claimed]]) -> None:
        for run, claimed in batch:
            task = self._tasks.get(claimed.job.task)
            self._runs[run.number] = one = InlineRun([run], [assignment_of(run.number, claimed)], task, self._send)
            self._started.append(one)

    @property
    def first(self) -> InlineRun | None:
        """What was started first."""
        return self._started[0] if self._started else None

    def take(self) -> InlineRun | None:
        """What was started: if that is more than one job, they are a batch."""
        if len(self._started) < 2:  # noqa: PLR2004
            return self._started.popleft() if self._started else None
        runs = [run for one in self._started for run in one.runs]
        assignments = [job for one in self._started for job in one.assignments]
        batch = InlineRun(runs, assignments, self._started[0].task, self._send)
        self._started.clear()
        self._runs |= dict.fromkeys((run.number for run in runs), batch)
        return batch

    def forget(self, run: ActiveRun) -> None:
        self._runs.pop(run.number, None)

    def stop(self, run: ActiveRun) -> None:
        if run.number in self._runs:
            self._runs[run.number].execution.cancel()

    def kill(self, run: ActiveRun) -> None:
        """Code that runs in the caller's thread cannot be killed."""
        self.stop(run)

    def send(self, run: ActiveRun, messages: Sequence[bytes]) -> None:
        """It was given its messages when it started."""


class InMemoryEngine:
    """An engine in memory and one worker, which runs jobs on demand."""

    def __init__(
        self,
        tenant: str,
        tasks: Mapping[str, TaskCode],
        settings: Settings | None,
        hooks: Hooks,
        batches: Mapping[str, BatchOptions] | None = None,
    ) -> None:
        self.clock = ManualClock()
        self._hooks = hooks
        self._tenant = tenant
        self._portal = LoopThread()
        self._store = SqliteStore.open(":memory:", self.clock)
        # Time may be advanced by years while a job runs: its lease must not run out.
        self.engine = Engine(self._store, SystemRandomness(), replace(settings or Settings(), lease=LONGEST))
        self._runner = InlineRunner(tasks, self._updated)
        self._batches = batches or {}
        about = NewWorker(name="test", pid=os.getpid(), queues=[])
        self._registration = Registration(self.engine, tenant, about)
        self._claiming = asyncio.Lock()
        self._worker, self._duties = self._portal.run(self._started())

    async def _started(self) -> tuple[WorkerLoop, list[asyncio.Task[None]]]:
        worker = WorkerLoop(self._registration, clock=SystemClock(), chance=SystemRandomness())
        return worker, [asyncio.create_task(duty) for duty in (worker.reports.run(), worker.leases.run())]

    def close(self) -> None:
        self._portal.run(self._closed())
        self._portal.close()

    async def _closed(self) -> None:
        for duty in self._duties:
            duty.cancel()
        await asyncio.wait(self._duties)
        await self._store.close()

    def ask(self, operation: Operation[A]) -> A:
        return self._portal.run(self.engine(operation))

    async def aask(self, operation: Operation[A]) -> A:
        answer = asyncio.run_coroutine_threadsafe(self.engine(operation), self._portal.loop)
        return await asyncio.wrap_future(answer)

    # Time

    def advance(self, seconds: float) -> None:
        """Let time pass: jobs become due, expire, are abandoned or purged."""
        self.clock.advance(seconds)
        for duty in (upkeep.expire, upkeep.abandon, upkeep.promote, upkeep.purge):
            self._portal.run(self._do(duty))
        self.follow()

    def follow(self) -> None:
        """Queue the jobs that follow finished ones (`then`), and decide those that waited for them (`after`)."""
        self._portal.run(self._do(upkeep.resolve_dependencies))

    async def _do(self, duty: upkeep.Duty) -> None:
        while await duty(self.engine) >= upkeep.STEP:
            continue

    def skip(self, until: datetime | None = None) -> bool:
        """Advance to where the next job is due, if there is one (by `until`); whether there was."""
        waiting = [job.run_at for job in self.jobs(State.SCHEDULED) if job.run_at is not None]
        due = min(waiting, default=None)
        if due is None or (until is not None and due > until):
            return False
        self.advance(max(0.0, (due - self.clock.now()).total_seconds()))
        return True

    # Jobs

    def jobs(self, *states: State) -> list[Job]:
        """All jobs in these states, or in any."""
        found: list[Job] = []
        after: str | None = None
        match = Match(state=[state.value for state in states])
        while True:
            page = self.ask(List(tenant=self._tenant, match=match, limit=MOST_AT_ONCE, after=after))
            found += page.jobs
            if (after := page.next) is None:
                return found

    def claim(self) -> InlineRun | None:
        """The first job that is due."""
        return self._portal.run(self._claim())

    async def _claim(self) -> InlineRun | None:
        async with self._claiming:
            await self._do(upkeep.promote)
            stats = (await self.engine(GetStats(tenant=self._tenant))).queues
            await self._serve([one.queue for one in stats if one.states.get(State.QUEUED)])
            if self._registration.about.queues:
                await self._worker.claim_and_start(lambda _: self._runner, 1, 0.0)
            if (first := self._runner.first) is not None:
                await self._claim_batch(first)
            return self._runner.take()

    async def _claim_batch(self, first: InlineRun) -> None:
        """What else is due of the same task, as many as that takes at once."""
        task = first.assignments[0].task
        most = self._batches[task].size - 1 if task in self._batches else 0
        if not most:
            return
        about = self._registration.about
        await self._registration.update(replace(about, tasks=[task]))
        while most > 0 and (started := await self._worker.claim_and_start(lambda _: self._runner, most, 0.0)):
            most -= started
        await self._registration.update(about)

    async def _serve(self, queues: Sequence[str]) -> None:
        """Claim from these queues too."""
        about = self._registration.about
        if not (new := [queue for queue in queues if queue not in about.queues]):
            return
        await self._registration.update(replace(about, queues=[*about.queues, *new]))
        if not about.queues:
            await self._registration.register()

    def run(self, work: InlineRun) -> tuple[list[Job], BaseException | None]:
        """Run a claimed job in this thread, a coroutine in a loop of its own.

        Returns the job afterwards, or those of its batch, and what it raised.
        """
        if work.task is None:
            return self._end(work, unknown_task(work.assignments[0]))
        self._deliver_messages(work)
        if is_async(work.task):
            return self._end(work, _in_a_loop(lambda: self._aexecuted(work)))
        lifespans = self._hooks.lifespans_of_a_run()
        opened = self._portal.run(lifespans.__aenter__())  # a plain function has no loop for them
        try:
            outcome = self._executed(work, opened)
        finally:
            self._portal.run(lifespans.__aexit__(None, None, None))
        return self._end(work, outcome)

    def _executed(self, work: InlineRun, opened: Mapping[Provider, Any]) -> RunOutcome:
        code = RecordingTask(self._hooks.wrap(_known(work), opened))
        outcome = execute(code, work.assignments[0], work.execution)
        work.raised = code.raised
        return outcome

    async def _aexecuted(self, work: InlineRun) -> RunOutcome:
        async with self._hooks.lifespans_of_a_run() as opened:
            code = RecordingTask(self._hooks.wrap(_known(work), opened))
            outcome = await aexecute(code, work.assignments[0], work.execution)
            work.raised = code.raised
        return outcome

    async def arun(self, work: InlineRun) -> tuple[list[Job], BaseException | None]:
        """The same inside an event loop: a coroutine runs in this loop, so that it can use what lives here."""
        if work.task is None or not is_async(work.task):
            return self.run(work)
        self._deliver_messages(work)
        # In a task of its own: it must not leave its `current` behind.
        running = asyncio.ensure_future(self._aexecuted(work))
        return self._end(work, await running)

    def _deliver_messages(self, work: InlineRun) -> None:
        """It gets the messages sent to it before, and then an empty one: no more come while it runs."""
        if work.execution.messages is not None:
            (run,) = work.runs
            alive = Alive(id=run.id, token=run.token, heard=0)
            renewed = self._portal.run(self._registration.ask(lambda names: Renew(**names, jobs=[alive])))
            for data in [*(message.data for message in renewed.messages), b""]:
                work.execution.messages.put(data)

    def _updated(self, work: InlineRun, update: RunUpdate) -> None:
        runs, here = self._worker.runs, self._portal.loop
        run = next(one for one in work.runs if one.number == update.number)
        if update.step is not None:
            here.call_soon_threadsafe(runs.ask_steps, run, update.step, work.execution.answer_step)
        else:
            here.call_soon_threadsafe(runs.update, run, update)

    def _end(self, work: InlineRun, outcome: RunOutcome) -> tuple[list[Job], BaseException | None]:
        outcomes = zip(work.runs, work.execution.outcomes(outcome), strict=True)
        jobs = [self._portal.run(self._report(run, one)) for run, one in outcomes]
        raised = work.raised
        if raised is not None and not isinstance(raised, Exception | Cancelled | Suspended):
            raise raised  # an interrupted test is not the business of its job
        return jobs, raised

    async def _report(self, run: ActiveRun, outcome: RunOutcome) -> Job:
        self._runner.forget(run)
        self._worker.runs.finish(run, outcome)
        await self._worker.reports.flush()
        await self._do(upkeep.resolve_dependencies)
        return await self.engine(Show(tenant=self._tenant, id=run.id))


def _known(work: InlineRun) -> TaskCode:
    assert work.task is not None  # noqa: S101 - asked before
    return work.task


def _in_a_loop(start: Callable[[], Coroutine[Any, Any, RunOutcome]]) -> RunOutcome:
    """Run a coroutine from code that has no loop, or must not wait in the one it has."""

    def run() -> RunOutcome:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(start())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    outcomes: list[RunOutcome] = []
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: outcomes.append(context.run(run)), name="windlass-test")
    thread.start()
    thread.join()
    return outcomes[0]
