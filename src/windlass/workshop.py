"""A queue and its worker in one process, for tests: the real engine over a store in memory, and a clock that stands.

Whatever is queued here is claimed, run and reported as a worker does it, but in the caller's own thread (or event loop)
and only when it is told to. Time passes only when it is advanced. Knows no way in: that is `testing`'s business.
"""

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from msgspec.structs import replace

from windlass.call.arguments import Plan
from windlass.call.signals import Cancelled
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
    Unrun,
)
from windlass.model.worker import NewWorker
from windlass.portal import Portal
from windlass.store.sqlite import SqliteStore
from windlass.system import SystemChance, SystemClock
from windlass.worker.context import unknown
from windlass.worker.frames import Assignment, Ending
from windlass.worker.held import Held
from windlass.worker.jobs import assignment_of
from windlass.worker.outcomes import finished
from windlass.worker.reports import hopeless
from windlass.worker.running import Callee, Run, acall, call, is_async


class StandingClock:
    """Shows the time at which it was made, until it is advanced."""

    def __init__(self) -> None:
        self._now = SystemClock().now()
        self._passed = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._passed

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError(f"nobody sleeps here, not even for {seconds} s")

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._passed += seconds


class Witness:
    """A task that remembers what it raised: a report keeps only the text."""

    def __init__(self, task: Callee) -> None:
        self.plan: Plan = task.plan
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


class Work(NamedTuple):
    """A claimed job, ready to be run."""

    held: Held
    payload: bytes
    files: dict[str, bytes]
    task: Witness | None


class Workshop:
    """An engine in memory and one worker, which works when it is told to."""

    def __init__(self, tenant: str, tasks: Mapping[str, Callee], settings: Settings | None) -> None:
        self.clock = StandingClock()
        self._tenant = tenant
        self._tasks = tasks
        # Nobody renews here, and time may be advanced by years while a job runs.
        self._settings = replace(settings or Settings(), lease=LONGEST)
        self._portal = Portal()
        self._store = SqliteStore.open(":memory:", self.clock)
        self.engine = Engine(self._store, SystemChance(), self._settings)
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
        """Let time pass; what is due by then becomes due, expires, is abandoned, or leaves."""
        self.clock.advance(seconds)
        for duty in (upkeep.expire, upkeep.abandon, upkeep.promote, upkeep.purge):
            self._do(duty)
        self.follow()

    def follow(self) -> None:
        """Queue what is to follow jobs that have ended (`then`), and decide those that waited for them (`after`)."""
        self._do(upkeep.follow)

    def _do(self, duty: upkeep.Duty) -> None:
        while self._portal.run(_once(duty, self.engine)) >= upkeep.STEP:
            continue

    def skip(self, until: datetime | None = None) -> bool:
        """Advance to where the next job is due, if there is one (by then); whether there was."""
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
        """Run the first job that is due, here and now: what has become of it, and what it raised."""
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
            # As a task of its own: it must not leave its `current` behind.
            return self._end(work, await asyncio.ensure_future(self._arun(work)))
        return self._end(work, self._run(work))

    def _take(self) -> Work | None:
        self._do(upkeep.promote)
        claimed = self._claim()
        if claimed is None:
            return None
        task = self._tasks.get(claimed.job.task)
        held = Held(1, claimed.job, claimed.token, self.clock.monotonic())
        return Work(held, bytes(claimed.payload), claimed.files, None if task is None else Witness(task))

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

    def _run(self, work: Work) -> Ending:
        assignment = assignment_of(work.held.number, work.held.job, work.payload, work.files)
        if work.task is None:
            return unknown(assignment)
        return call(work.task, assignment, self._begun(work, assignment))

    async def _arun(self, work: Work) -> Ending:
        assignment = assignment_of(work.held.number, work.held.job, work.payload, work.files)
        if work.task is None:
            return unknown(assignment)
        return await acall(work.task, assignment, self._begun(work, assignment))

    def _begun(self, work: Work, assignment: Assignment) -> Run:
        """A run that finds what was sent to it before, and an empty message after that: nobody else sends now."""
        run = Run(assignment, work.held.hear)
        if run.inbox is not None:
            names: dict[str, Any] = {"tenant": self._tenant, "worker": self._worker}
            asked = Alive(id=work.held.id, token=work.held.token, heard=0)
            for message in self.ask(Renew(**names, jobs=[asked])).messages:
                run.inbox.put(message.data)
            run.inbox.put(b"")
        return run

    def _end(self, work: Work, ending: Ending) -> tuple[Job, BaseException | None]:
        held, raised = work.held, work.task.raised if work.task is not None else None
        names: dict[str, Any] = {"tenant": self._tenant, "worker": self._worker}
        if held.has_news:
            self.ask(Renew(**names, jobs=[held.tell()]))
        if ending.snooze is not None:
            self.ask(
                Release(
                    **names,
                    jobs=[
                        Unrun(id=held.id, token=held.token, tenant=held.tenant, delay=ending.snooze, rests=ending.rests)
                    ],
                )
            )
        else:
            self._report(held, ending, names)
        if raised is not None and not isinstance(raised, Exception | Cancelled):
            raise raised  # an interrupted test is not the business of its job
        self.follow()
        return self.ask(Show(tenant=self._tenant, id=held.id)), raised

    def _report(self, held: Held, ending: Ending, names: dict[str, Any]) -> None:
        report = finished(held, ending)
        try:
            self.ask(Finish(**names, jobs=[report]))
        except WindlassError as fault:
            self.ask(Finish(**names, jobs=[hopeless(report, fault)]))


async def _once(duty: upkeep.Duty, engine: Engine) -> int:
    return await duty(engine)


def _in_a_loop(start: Callable[[], Coroutine[Any, Any, Ending]]) -> Ending:
    """Run a coroutine from code that has no loop, or must not wait in the one it has."""

    def run() -> Ending:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(start())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    endings: list[Ending] = []
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: endings.append(context.run(run)), name="windlass-test")
    thread.start()
    thread.join()
    return endings[0]
