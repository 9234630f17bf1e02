"""`app.testing`: run an app's jobs inside a test, without a worker process and without a store.

`inline` runs each job as it is queued; `manual` keeps jobs until the test runs them, on a clock that the test moves.
Both replace the app's connection until they are closed: packing, engine and outcomes are the real ones.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar

from msgspec import Raw
from msgspec.structs import replace

from windlass.app import Task, Windlass
from windlass.call.dependencies import Provider
from windlass.call.options import Duration, to_fields
from windlass.connection import Ask, Transport
from windlass.model.duration import seconds
from windlass.model.errors import Invalid
from windlass.model.events import Event
from windlass.model.job import FINISHED, Job, State
from windlass.model.operations import (
    A,
    BatchProgress,
    Enqueued,
    EnqueueMany,
    GetProgress,
    GetResult,
    Operation,
    Rerun,
    Result,
    Selection,
    Show,
)
from windlass.model.template import JobTemplate
from windlass.testing.engine import InlineRun, InMemoryEngine

F = TypeVar("F", bound=Callable[..., Any])

MOST_RUNS = 10_000
"""Runs after which draining gives up: the jobs would never end."""


class Testing:
    """Runs an app's jobs inside a test."""

    __test__ = False  # pytest would take it for a collection of tests

    def __init__(self, app: Windlass) -> None:
        self._app = app

    def inline(self, *, raises: bool = False) -> "Inline":
        """Each job runs as it is queued, to its end: delays and waits between re-runs pass at once.

        A task's exception is kept with its job, as usual; with `raises`, it is also raised where the job was queued.
        """
        return Inline(self._app, raises=raises)

    def manual(self) -> "Manual":
        """Jobs are kept until the test runs them; time passes only when the test advances it."""
        return Manual(self._app)

    @contextmanager
    def override(self, provider: Provider, instead: Provider) -> Iterator[None]:
        """Inside this block, `instead` makes the value that `provider` would make: `lambda: fake`, or a generator.

        For a lifespan, `instead` is opened in its place.
        """
        if not callable(instead):
            raise Invalid(f"{instead!r} makes no value: give a function, lambda: {instead!r}", at="instead")
        overrides = self._app.hooks.overrides
        before = overrides.get(provider)
        overrides[provider] = instead
        try:
            yield
        finally:
            del overrides[provider]
            if before is not None:
                overrides[provider] = before


class Harness:
    """What `Inline` and `Manual` share: a context manager, a decorator, and a connection of the app."""

    def __init__(self, app: Windlass) -> None:
        self._app = app
        self._engine: InMemoryEngine | None = None
        self._before: Transport | None = None
        self._order: dict[str, int] = {}

    def _fresh(self) -> Self:
        return type(self)(self._app)

    def __enter__(self) -> Self:
        if self._engine is not None:
            raise RuntimeError("this is already in use: make another one")
        tasks = self._app.tasks
        batches = {name: task.batch for name, task in tasks.items() if task.batch is not None}
        self._engine = InMemoryEngine(self._app.tenant, tasks, self._app.settings, self._app.hooks, batches)
        self._order = {}
        self._before, self._app.link = self._app.link, self
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine is None or self._before is None:
            return
        self._app.link, self._before = self._before, None
        engine, self._engine = self._engine, None
        engine.close()

    def __call__(self, function: F) -> F:
        """As a decorator: each call of the function gets its own queue."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaits(*args: Any, **kwargs: Any) -> Any:
                with self._fresh():
                    return await function(*args, **kwargs)

            return awaits  # type: ignore[return-value] # the same signature, as far as a type can say it

        @functools.wraps(function)
        def calls(*args: Any, **kwargs: Any) -> Any:
            with self._fresh():
                return function(*args, **kwargs)

        return calls  # type: ignore[return-value]

    @property
    def _running(self) -> InMemoryEngine:
        if self._engine is None:
            raise RuntimeError("this is not open: use it inside `with … as …`")
        return self._engine

    def _due(self, until: datetime | None = None) -> Iterator[InlineRun]:
        """Claimed jobs to be run one after the other, until none is due: time passes to the next one (by `until`)."""
        for _ in range(MOST_RUNS):
            if (work := self._running.claim()) is not None:
                yield work
            elif not self._running.skip(until):
                return
        raise RuntimeError(f"jobs still run after {MOST_RUNS} runs: does a task ask for another run without end?")

    # What a test may ask

    @property
    def jobs(self) -> list[Job]:
        """Every job, in the order of queueing."""
        last = len(self._order)
        return sorted(self._running.jobs(), key=lambda job: (self._order.get(job.id, last), job.created_at))

    def assert_enqueued(self, task: Task[Any, Any, Any], /, *args: Any, **kwargs: Any) -> Job:
        """The first job of this task that was queued with these arguments; without arguments, any job of the task.

        With `task.using(…)` the job must have been queued with those options too.
        """
        __tracebackhide__ = True
        wanted = _call_of(task, *task.plan.unpack(task.plan.pack(args, kwargs))) if args or kwargs else None
        calls = [(job, self._call(task, job)) for job in self.jobs if job.task == task.name]
        for job, call in calls:
            if wanted in (None, call) and _has_options(job, task):
                return job
        found = "\n".join(f"  {task.name}({_words(call)}) {_options(job, task) or ''}".rstrip() for job, call in calls)
        asked = f"{task.name}({'…' if wanted is None else _words(wanted)}) {task.said or ''}".rstrip()
        raise AssertionError(f"{asked} was not queued; jobs of this task" + (f":\n{found}" if found else ": none"))

    def _call(self, task: Task[Any, Any, Any], job: Job) -> dict[str, Any]:
        shown = self._running.ask(Show(tenant=job.tenant, id=job.id, payload=True))
        payload = bytes(shown.payload) if isinstance(shown.payload, Raw) else b""
        if job.with_results not in (None, "current"):
            return {"…": "the result before it", **task.plan.rest(payload, job.content_type)}
        return _call_of(task, *task.plan.unpack(payload, job.content_type, one=job.one_argument))

    # What the app asks

    def at_once(self, _tenant: str, _template: JobTemplate, _id: bytes, _payload: bytes, /) -> bool:
        return False  # there is one path here

    def ask(self, operation: Operation[A], /) -> A:
        answer = self._running.ask(_without_waiting(operation))
        if _runs_elsewhere(operation, answer):
            answer = self._running.ask(operation)
        self._note(answer)
        if isinstance(operation, Selection):
            self._running.follow()
        return _ended(operation, answer)

    def ask_each(self, operations: Iterable[Operation[A]], /) -> list[A]:
        return [self.ask(operation) for operation in operations]

    async def aask(self, operation: Operation[A], /) -> A:
        answer = await self._running.aask(_without_waiting(operation))
        if _runs_elsewhere(operation, answer):
            answer = await self._running.aask(operation)
        self._note(answer)
        if isinstance(operation, Selection):
            self._running.follow()
        return _ended(operation, answer)

    def hear(self, _: Ask, /) -> Iterator[Event]:
        raise Invalid("inside a test there are no events to wait for: look at the job instead", at="events")

    def ahear(self, _: Ask, /) -> AsyncGenerator[Event, None]:
        raise Invalid("inside a test there are no events to wait for: look at the job instead", at="events")

    def _note(self, answer: object) -> None:
        if isinstance(answer, Enqueued):
            for id in answer.ids:
                self._order.setdefault(id, len(self._order))

    def rest(self) -> None:
        """Nothing is open that a fork could harm."""

    def close(self) -> None:
        """It closes with its `with` block, not with the app."""

    async def aclose(self) -> None:
        """The same."""


class Manual(Harness):
    """Jobs are kept until the test runs them."""

    def advance(self, duration: Duration) -> None:
        """Let time pass: delays end, jobs expire, old records are purged. Nothing runs."""
        self._running.advance(seconds(duration, at="duration"))

    def run_one(self) -> Job | None:
        """Run the first job that is due, and return it as it is then. None: nothing is due.

        If its task takes batches, those of the task that are due run with it.
        """
        work = self._running.claim()
        return None if work is None else self._running.run(work)[0][0]

    async def arun_one(self) -> Job | None:
        """The same in asynchronous code: coroutines run in this event loop."""
        work = self._running.claim()
        return None if work is None else (await self._running.arun(work))[0][0]

    def drain(self, within: Duration = 0) -> list[Job]:
        """Run everything that is due, and what that makes due; with `within`, also what is due within that time.

        Returns the jobs as they are after each run.
        """
        return [job for work in self._due_within(within) for job in self._running.run(work)[0]]

    async def adrain(self, within: Duration = 0) -> list[Job]:
        """The same in asynchronous code."""
        return [job for work in self._due_within(within) for job in (await self._running.arun(work))[0]]

    def _due_within(self, within: Duration) -> Iterator[InlineRun]:
        clock = self._running.clock
        until = clock.now() + timedelta(seconds=seconds(within, at="within"))
        yield from self._due(until)
        self._running.advance(max(0.0, (until - clock.now()).total_seconds()))


class Inline(Harness):
    """Each job runs as it is queued."""

    def __init__(self, app: Windlass, *, raises: bool = False) -> None:
        super().__init__(app)
        self._raises = raises
        self._raised: dict[str, BaseException | None] = {}

    def _fresh(self) -> Self:
        return type(self)(self._app, raises=self._raises)

    def ask(self, operation: Operation[A], /) -> A:
        answer = super().ask(operation)
        if isinstance(operation, EnqueueMany | Rerun):
            for work in self._due():
                self._note_raised(work, self._running.run(work)[1])
            self._raise_for(answer)
        return answer

    async def aask(self, operation: Operation[A], /) -> A:
        answer = await super().aask(operation)
        if isinstance(operation, EnqueueMany | Rerun):
            for work in self._due():
                self._note_raised(work, (await self._running.arun(work))[1])
            self._raise_for(answer)
        return answer

    def _note_raised(self, work: InlineRun, raised: BaseException | None) -> None:
        self._raised |= dict.fromkeys((run.id for run in work.runs), raised)

    def _raise_for(self, answer: object) -> None:
        for id in answer.ids if self._raises and isinstance(answer, Enqueued) else []:
            if (raised := self._raised.get(id)) is not None:
                raise raised


# Waiting is pointless where nothing changes by itself


def _without_waiting(operation: Operation[A]) -> Operation[A]:
    return replace(operation, wait=0.0) if isinstance(operation, GetResult | Show | GetProgress) else operation  # type: ignore[arg-type]


def _waits(operation: Operation[Any]) -> bool:
    return isinstance(operation, GetResult) or (isinstance(operation, Show | GetProgress) and operation.wait > 0)


def _pending(answer: object) -> set[State]:
    """The states of the jobs in an answer that have not ended."""
    found = [answer.state] if isinstance(answer, Result | Job) else []
    return {*found, *(answer.states if isinstance(answer, BatchProgress) else ())} - FINISHED


def _runs_elsewhere(operation: Operation[Any], answer: object) -> bool:
    return _waits(operation) and State.RUNNING in _pending(answer)


def _ended(operation: Operation[Any], answer: A) -> A:
    pending = _pending(answer)
    if not _waits(operation) or not pending or State.RUNNING in pending:
        return answer
    if isinstance(operation, GetProgress):
        raise TimeoutError(f"jobs of the batch are {min(pending)}, and only the test runs them: call run_one or drain")
    raise TimeoutError(
        f"job {getattr(operation, 'id', '')} is {min(pending)}, and only the test runs it: call run_one or drain"
    )


# How a job is compared with a call


def _call_of(task: Task[Any, Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name, defaults and all."""
    bound = task.plan.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _words(call: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in call.items())


def _options(job: Job, task: Task[Any, Any, Any]) -> dict[str, Any]:
    """The job's values of the options that were given with `using`."""
    has: dict[str, Any] = {name: getattr(job, name) for name in task.said if name not in ("delay", "run_at")}
    if "run_at" in task.said:
        has["run_at"] = job.run_at
    if "delay" in task.said:
        has["delay"] = (job.run_at - job.created_at).total_seconds() if job.run_at else 0.0
    return has


def _has_options(job: Job, task: Task[Any, Any, Any]) -> bool:
    return _options(job, task) == to_fields(task.said)
