"""A queue and its worker in one process, for tests: the real engine over a store in memory, and a clock that stands.

Jobs are claimed, run and reported as a worker does it, but in the caller's own thread (or event loop), one at a time
and only on demand. Time passes only when it is advanced. How a test reaches it is the business of `windlass.testing`.
"""

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from msgspec.structs import replace

from windlass.call.arguments import CallSignature
from windlass.call.signals import Cancelled
from windlass.connection import LoopThread
from windlass.engine import Engine, Settings, upkeep
from windlass.model.duration import LONGEST
from windlass.model.errors import WindlassError
from windlass.model.job import Job, State
from windlass.model.match import Match
from windlass.model.operations import (
    MOST_AT_ONCE,
    A,
    Alive,
    Claim,
    Claimed,
    Finish,
    GetStats,
    List,
    Operation,
    Register,
    Release,
    Renew,
    Show,
)
from windlass.model.worker import NewWorker
from windlass.store.sqlite import SqliteStore
from windlass.system import SystemClock, SystemRandomness
from windlass.worker.contexts.execution import Execution, TaskCode, aexecute, execute, is_async
from windlass.worker.contexts.main import unknown_task
from windlass.worker.reports import not_storable
from windlass.worker.runner import ActiveRun, Assignment, RunOutcome, assignment_of
from windlass.worker.runs import finished


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
        self.plan: CallSignature = task.plan
        self.raised: BaseException | None = None
        self._inner = task.function
        self.function: Callable[..., Any] = self._await if is_async(task) else self._call

    def _call(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._inner(*args, **kwargs)
        except BaseException as fault:
            self.raised = fault
            raise

    async def _await(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return await self._inner(*args, **kwargs)
        except BaseException as fault:
            self.raised = fault
            raise


class ClaimedRun(NamedTuple):
    """A claimed job, ready to be run."""

    run: ActiveRun
    assignment: Assignment
    task: RecordingTask | None


class InMemoryEngine:
    """An engine in memory and one worker, which runs jobs on demand."""

    def __init__(self, tenant: str, tasks: Mapping[str, TaskCode], settings: Settings | None) -> None:
        self.clock = ManualClock()
        self._tenant = tenant
        self._tasks = tasks
        # Leases are not renewed here, and time may be advanced by years while a job runs.
        self._settings = replace(settings or Settings(), lease=LONGEST)
        self._portal = LoopThread()
        self._store = SqliteStore.open(":memory:", self.clock)
        self.engine = Engine(self._store, SystemRandomness(), self._settings)
        self._worker: str | None = None
        self._queues: list[str] = []

    def close(self) -> None:
        self._portal.run(self._store.close())
        self._portal.close()

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
            self._do(duty)
        self.follow()

    def follow(self) -> None:
        """Queue the jobs that follow finished ones (`then`), and decide those that waited for them (`after`)."""
        self._do(upkeep.resolve_dependencies)

    def _do(self, duty: upkeep.Duty) -> None:
        while self._portal.run(_once(duty, self.engine)) >= upkeep.STEP:
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
        while True:
            page = self.ask(
                List(
                    tenant=self._tenant,
                    match=Match(state=[state.value for state in states]),
                    limit=MOST_AT_ONCE,
                    after=after,
                )
            )
            found += page.jobs
            if (after := page.next) is None:
                return found

    def run_one(self) -> tuple[Job, BaseException | None] | None:
        """Run the first job that is due: the job afterwards, and what it raised."""
        if (work := self._take()) is None:
            return None
        if work.task is not None and is_async(work.task):
            return self._end(work, _in_a_loop(lambda: self._arun(work)))
        return self._end(work, self._run(work))

    async def arun_one(self) -> tuple[Job, BaseException | None] | None:
        """The same inside an event loop: a coroutine runs in this loop, so that it can use what lives here."""
        if (work := self._take()) is None:
            return None
        if work.task is not None and is_async(work.task):
            # In a task of its own: it must not leave its `current` behind.
            return self._end(work, await asyncio.ensure_future(self._arun(work)))
        return self._end(work, self._run(work))

    def _take(self) -> ClaimedRun | None:
        self._do(upkeep.promote)
        claimed = self._claim()
        if claimed is None:
            return None
        task = self._tasks.get(claimed.job.task)
        run = ActiveRun(1, claimed.job, claimed.token, self.clock.monotonic())
        return ClaimedRun(run, assignment_of(run.number, claimed), None if task is None else RecordingTask(task))

    def _claim(self) -> Claimed | None:
        stats = self.ask(GetStats(tenant=self._tenant)).queues
        queues = {one.queue: None for one in stats if one.states.get(State.QUEUED)}
        if not queues:
            return None
        if self._worker is None or not queues.keys() <= set(self._queues):
            self._queues = list(dict.fromkeys([*self._queues, *queues]))
            new = NewWorker(name="test", pid=os.getpid(), queues=self._queues)
            self._worker = self.ask(Register(tenant=self._tenant, worker=new)).worker
        return next(iter(self.ask(Claim(tenant=self._tenant, worker=self._worker))), None)

    def _run(self, work: ClaimedRun) -> RunOutcome:
        if work.task is None:
            return unknown_task(work.assignment)
        return execute(work.task, work.assignment, self._begun(work))

    async def _arun(self, work: ClaimedRun) -> RunOutcome:
        if work.task is None:
            return unknown_task(work.assignment)
        return await aexecute(work.task, work.assignment, self._begun(work))

    def _begun(self, work: ClaimedRun) -> Execution:
        """An execution that gets the messages sent to it before, and then an empty one: no more come while it runs."""
        execution = Execution(work.assignment, work.run.apply)
        if execution.messages is not None:
            names: dict[str, Any] = {"tenant": self._tenant, "worker": self._worker}
            asked = Alive(id=work.run.id, token=work.run.token, heard=0)
            for message in self.ask(Renew(**names, jobs=[asked])).messages:
                execution.messages.put(message.data)
            execution.messages.put(b"")
        return execution

    def _end(self, work: ClaimedRun, outcome: RunOutcome) -> tuple[Job, BaseException | None]:
        run, raised = work.run, work.task.raised if work.task is not None else None
        names: dict[str, Any] = {"tenant": self._tenant, "worker": self._worker}
        if run.has_update:
            self.ask(Renew(**names, jobs=[run.take_update()]))
        if outcome.snooze is not None:
            self.ask(Release(**names, jobs=[run.released(outcome.snooze, outcome.rests)]))
        else:
            self._report(run, outcome, names)
        if raised is not None and not isinstance(raised, Exception | Cancelled):
            raise raised  # an interrupted test is not the business of its job
        self.follow()
        return self.ask(Show(tenant=self._tenant, id=run.id)), raised

    def _report(self, run: ActiveRun, outcome: RunOutcome, names: dict[str, Any]) -> None:
        report = finished(run, outcome)
        try:
            self.ask(Finish(**names, jobs=[report]))
        except WindlassError as fault:
            self.ask(Finish(**names, jobs=[not_storable(report, fault)]))


async def _once(duty: upkeep.Duty, engine: Engine) -> int:
    return await duty(engine)


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
