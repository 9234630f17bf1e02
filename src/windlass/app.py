"""What a Python user imports: `Windlass` and the tasks made with it.

Turns calls into operations; `job_handle` turns answers into values. Knows no store and no process: `connection` knows
how an operation reaches the queue, `call` what a payload says.
"""

import functools
import inspect
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from windlass import config, outbox
from windlass.addresses import file_of
from windlass.call.arguments import CallSignature
from windlass.call.batches import DEFAULT_WITHIN, BatchSignature, batch_options
from windlass.call.hooks import Around, Hooks
from windlass.call.options import Duration, Options, TaskOptions, duration_of, to_fields
from windlass.call.signals import ANY_ERROR, ErrorRules, Errors
from windlass.connection import AppConnection, Transport
from windlass.engine import Settings
from windlass.job_handle import Job
from windlass.management import JobFilter, JobQuery, LimitHandles, QueueHandles, afailures, failures
from windlass.model.errors import Invalid, Unavailable
from windlass.model.events import Event
from windlass.model.failure import FailureGroup
from windlass.model.match import Match
from windlass.model.names import check_name, keyed_id, text_id, texts_like, without_password
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    MOST_AT_ONCE,
    A,
    Enqueued,
    EnqueueMany,
    Operation,
)
from windlass.model.schedule import NewSchedule
from windlass.model.template import template_of
from windlass.model.wire import checked_job
from windlass.model.worker import MOST_SLOTS, BatchOptions
from windlass.schedules import Scheduled, ScheduleHandles, ScheduleOptions, schedule_of
from windlass.system import SystemRandomness
from windlass.workflow import Batch, Signature, check_fits

if TYPE_CHECKING:
    from windlass.testing import Testing

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Around)

MOST_BYTES = 8 << 20
"""Bytes of payloads that are sent together: a server takes larger bodies, but a store answers for them in time."""


class Windlass:
    """A queue: where its jobs are, and the tasks they run.

    `store` is a file (`jobs.db`) or `redis://…`; `server` is a Windlass server (`http://…`), with its `token`. Store,
    tenant and settings that are not given come from the environment (WINDLASS_SERVER, WINDLASS_STORE, WINDLASS_TENANT,
    WINDLASS_ENGINE_…), else from `windlass.toml` in the current folder or above it, else they are the defaults: a file
    `windlass.db` in the current folder, the tenant `default`. Nothing is opened before it is needed.
    `defaults` are options for every task of this queue. With a `journal`, a folder, jobs for a Redis store are kept on
    this machine's disk first, and queueing goes on while the store does not answer. With `replicas`, jobs are queued
    when so many replicas of Redis have them too.
    """

    def __init__(
        self,
        store: str | None = None,
        *,
        server: str | None = None,
        token: str | None = None,
        tenant: str | None = None,
        defaults: TaskOptions | None = None,
        settings: Settings | None = None,
        journal: str | None = None,
        replicas: int | None = None,
    ) -> None:
        if store and server:
            raise Invalid("give a store or a server, not both", at="server")
        if server:
            config.check_server(server, at="server", of_store="store")
        found = config.here(store=store, server=server, tenant=tenant)
        self.store = found.store
        """Its address."""
        self.token = token
        self.tenant = check_name(found.tenant, at="tenant")
        self.tasks: dict[str, Task[Any, Any, Any]] = {}
        self.declared: dict[str, NewSchedule] = {}
        """The schedules that this app declares."""
        chosen = settings or Settings(**msgspec.structs.asdict(found.engine))
        if replicas is not None:
            chosen = replace(chosen, replicas=replicas)
        if config.is_server(self.store) and chosen.replicas:
            if settings is not None or replicas is not None:
                raise Invalid("a server knows itself which replicas it waits for", at="replicas")
            chosen = replace(chosen, replicas=None)
        self.settings = chosen
        if journal and (config.is_server(self.store) or file_of(self.store) is not None):
            raise Invalid("a journal is for a Redis store: a file needs none, and a server has its own", at="journal")
        self.link: Transport = AppConnection(self.store, chosen, token, journal)
        self.hooks = Hooks()
        self._defaults: TaskOptions = defaults or {}

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> "Task[P, R, Coroutine[Any, Any, R]]": ...

    @overload
    def task(self, function: Callable[P, R], /) -> "Task[P, R, R]": ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        retry_on: Errors | None = None,
        never_on: Errors = (),
        slots: int = 1,
        needs: Sequence[str] = (),
        soft_timeout: Duration | None = None,
        **options: Unpack[TaskOptions],
    ) -> "Decorator": ...

    @overload
    def task(
        self,
        *,
        batch: int,
        within: Duration = DEFAULT_WITHIN,
        name: str | None = None,
        retry_on: Errors | None = None,
        never_on: Errors = (),
        slots: int = 1,
        needs: Sequence[str] = (),
        soft_timeout: Duration | None = None,
        **options: Unpack[TaskOptions],
    ) -> "BatchDecorator": ...

    def task(  # type: ignore[misc] # mypy takes the options of signature 3 for more than they are
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        batch: int | None = None,
        within: Duration = DEFAULT_WITHIN,
        name: str | None = None,
        retry_on: Errors | None = None,
        never_on: Errors = (),
        slots: int = 1,
        needs: Sequence[str] = (),
        soft_timeout: Duration | None = None,
        **options: Any,
    ) -> Any:
        """Make a function a task of this queue. A plain call of it just runs it; `enqueue` sends it.

        Its name in the queue is the function's own, unless another is given. `retry_on`: classes of exceptions after
        which its jobs run again (None = any), as far as `max_retry` allows; `never_on`: those after which they do not.
        `slots`: how many of its worker's slots one job of it takes. `needs`: labels that a worker must offer to run
        it, like `["gpu"]`. `soft_timeout`: how long it may run before `SoftTimeout` is raised in it.

        With `batch`, the function gets a list of up to so many calls at once: the first, and those that came `within` a
        time of it. Each call is a job of its own. The function returns a list of their results in order, or None; an
        exception in the list is the outcome of its job alone.
        """
        rules: dict[str, Any] = {
            "errors": ErrorRules(retry_on, never_on),
            "slots": _checked_slots(slots),
            "needs": _labels(needs),
            "soft_timeout": None if soft_timeout is None else duration_of(soft_timeout, at="soft_timeout"),
            "batch": None if batch is None else batch_options(batch, within, {**self._defaults, **options}),
        }
        if function is None:
            return functools.partial(self._enter, name=name, options=options, **rules)
        return self._enter(function, name=None, options={}, **rules)

    def _enter(
        self, function: Callable[..., Any], *, name: str | None, options: dict[str, Any], **rules: Any
    ) -> "Task[Any, Any, Any]":
        _check_callable(function, name)
        called = check_name(name or str(getattr(function, "__name__", "")), at="name")
        if _is_method(function):
            raise Invalid(f"{function.__qualname__} is a method: only a function can be a task", at="function")
        if called in self.tasks:
            raise Invalid(f"there is already a task {called!r}: give this one another name", at="name")
        kind: type[Task[Any, Any, Any]] = Task if rules["batch"] is None else BatchTask
        task: Task[Any, Any, Any] = kind(
            self, called, function, cast("Options", {**self._defaults, **options}), **rules
        )
        self.tasks[called] = task
        return task

    def lifespan(self, function: F) -> F:
        """Open something once in each process that runs jobs: a generator function, async or not, that yields once.

        What stands before the `yield` runs before the first job of the process, what stands behind it after the last.
        A parameter with `Depends(this_function)` gets what it yields.
        """
        self.hooks.lifespans.append(_checked_hook(function, "lifespan"))
        return function

    def around(self, function: H) -> H:
        """Run code around each run of a task: a generator function that gets the job and yields once.

        The `yield` returns a `TaskOutcome`. The hook may raise what a task may raise, before or after: that is then the
        outcome. Of several hooks the first declared is the outermost.
        """
        _checked_hook(function, "around")
        if not inspect.isgeneratorfunction(function):
            raise Invalid(f"{_called(function)} must be a generator function: outcome = yield", at="around")
        self.hooks.around.append(function)
        return function

    def before_fork(self, function: F) -> F:
        """Call this, without arguments, in the process that has imported the app, each time before it forks."""
        self.hooks.before_fork.append(_checked_hook(function, "before_fork"))
        return function

    def after_fork(self, function: F) -> F:
        """Call this, without arguments, in each process that runs jobs, before its lifespans open."""
        self.hooks.after_fork.append(_checked_hook(function, "after_fork"))
        return function

    def cron(
        self, expression: str, *, tz: str = "UTC", name: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> Scheduled:
        """Queue a call of a task at these times: minute, hour, day, month and weekday, in a time zone.

        For a task, or a function that becomes one. The schedule is called as the task, unless another name is given.
        It is in force once a worker of this app has started.
        """
        return self._scheduled(name, cron=expression, every=None, tz=tz, options=options)

    def every(self, interval: Duration, *, name: str | None = None, **options: Unpack[ScheduleOptions]) -> Scheduled:
        """Queue a call of a task each time so much has passed. The rest is as with `cron`."""
        return self._scheduled(name, cron=None, every=interval, tz="UTC", options=options)

    def _scheduled(self, name: str | None, **times: Any) -> Scheduled:
        def declare(what: Any) -> Any:
            task = what if isinstance(what, Task) else self.task(what)
            called = check_name(name or task.name, at="name")
            if called in self.declared:
                raise Invalid(f"there is already a schedule {called!r}: give this one another name", at="name")
            self.declared[called] = schedule_of(task, **times)
            return task

        return cast("Scheduled", declare)

    def relay(self, connection: Any) -> int:
        """Queue the jobs of this tenant that wait in the outbox of a database; how many they were.

        For databases that no worker or server reads by itself. The connection must not be in a transaction.
        """
        return outbox.relay(connection, self.tenant, self.ask)

    @property
    def queues(self) -> QueueHandles:
        """The queues: `app.queues["mail"].pause("30m", why="…")`."""
        return QueueHandles(self)

    @property
    def limits(self) -> LimitHandles:
        """The limits: `app.limits.set("api", task="call_api", rate="100/1m", key="payload.customer")`."""
        return LimitHandles(self)

    def jobs(self, **which: Unpack[JobFilter]) -> JobQuery:
        """The jobs that match, to go through, to count, or to act on: `app.jobs(state="failed").retry()`."""
        return JobQuery(self, which)

    def failures(self, **which: Unpack[JobFilter]) -> list[FailureGroup]:
        """The failed jobs in groups of the same task, error and place in the code, the largest group first.

        `app.jobs(state="failed", fingerprint=group.fingerprint).retry()` queues the jobs of a group again.
        """
        return failures(self, which)

    async def afailures(self, **which: Unpack[JobFilter]) -> list[FailureGroup]:
        """The same in asynchronous code."""
        return await afailures(self, which)

    @property
    def schedules(self) -> ScheduleHandles:
        """The schedules that the queue has."""
        return ScheduleHandles(self)

    def worker(self, target: str, **settings: Any) -> "AbstractAsyncContextManager[None]":
        """A worker of this app in a process beside this one: `async with app.worker("shop:app", slots=8)`.

        For the lifespan of a web server. `target` is the app as `module:name`; settings are those of `[worker]`.
        """
        from windlass.run_embedded import embedded_worker  # noqa: PLC0415 - most programs need none

        return embedded_worker(target, settings)

    @property
    def testing(self) -> "Testing":
        """Ways to run this queue's jobs inside a test."""
        from windlass.testing import Testing  # noqa: PLC0415 - of no use outside tests

        return Testing(self)

    def job(self, id: str) -> "Job[Any]":
        """The handle of a job by its id."""
        return Job(id, self, None)

    def batch(self, ids: Iterable[str]) -> "Batch[list[Any]]":
        """One handle for jobs, by their ids: their progress, their end, the list of their results."""
        jobs = [self.job(id) for id in ids]
        return Batch(self, jobs, jobs, many=True)

    def events(self, *, task: str | None = None, queue: str | None = None, tag: Iterable[str] = ()) -> Iterator[Event]:
        """Events of this queue's jobs from now on, without end: of all jobs, or of those that match.

        Delivery is at most once; an event named `gap` says that some were missed.
        """
        match = Match(task=task, queue=queue, tag=list(tag))
        return self.link.hear(lambda source: source.watch(self.tenant, match))

    def aevents(
        self, *, task: str | None = None, queue: str | None = None, tag: Iterable[str] = ()
    ) -> AsyncGenerator[Event, None]:
        """The same in asynchronous code."""
        match = Match(task=task, queue=queue, tag=list(tag))
        return self.link.ahear(lambda source: source.watch(self.tenant, match))

    def ask(self, operation: Operation[A]) -> A:
        """Ask the queue anything that it answers, in this tenant's name: see `windlass.model.operations`."""
        return self.link.ask(msgspec.structs.replace(operation, tenant=self.tenant))

    async def aask(self, operation: Operation[A]) -> A:
        """The same in asynchronous code."""
        return await self.link.aask(msgspec.structs.replace(operation, tenant=self.tenant))

    def close(self) -> None:
        """Let go of connections that code without an event loop has opened."""
        self.link.close()

    async def aclose(self) -> None:
        """Let go of the connection that this event loop has opened."""
        await self.link.aclose()

    def __repr__(self) -> str:
        return f"Windlass({without_password(self.store)!r}, tenant={self.tenant!r}, tasks={sorted(self.tasks)})"


class Decorator(Protocol):
    """What `app.task(…)` makes of a function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> "Task[P, R, Coroutine[Any, Any, R]]": ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> "Task[P, R, R]": ...


class BatchDecorator(Protocol):
    """What `app.task(batch=…)` makes of a function that takes a list of calls."""

    @overload
    def __call__(
        self, function: Callable[[list[T]], Coroutine[Any, Any, None]], /
    ) -> "BatchTask[T, None, Coroutine[Any, Any, None]]": ...

    @overload
    def __call__(
        self, function: Callable[[list[T]], Coroutine[Any, Any, Sequence[R]]], /
    ) -> "BatchTask[T, R, Coroutine[Any, Any, Sequence[R]]]": ...

    @overload
    def __call__(self, function: Callable[[list[T]], None], /) -> "BatchTask[T, None, None]": ...

    @overload
    def __call__(self, function: Callable[[list[T]], Sequence[R]], /) -> "BatchTask[T, R, Sequence[R]]": ...


class Task(Generic[P, R, C]):
    """A function that can be called here and now, or through the queue."""

    def __init__(
        self,
        app: Windlass,
        name: str,
        function: Callable[P, C],
        options: Options,
        *,
        plan: CallSignature | None = None,
        said: Options | None = None,
        errors: ErrorRules = ANY_ERROR,
        slots: int = 1,
        batch: BatchOptions | None = None,
        needs: Sequence[str] = (),
        soft_timeout: float | None = None,
    ) -> None:
        self.app = app
        self.name = name
        self.function = function
        self.options = options
        self.said: Options = said or {}
        """Those of its options that came with `using`."""
        self.plan = plan or (CallSignature(function) if batch is None else BatchSignature(function))
        self.errors = errors
        """Which of its errors are worth another run."""
        self.slots = slots
        """How many of its worker's slots one job takes."""
        self.batch = batch
        """Which calls it takes at once; null = one."""
        self.needs = needs
        """What a worker must offer to run it."""
        self.soft_timeout = soft_timeout
        """Seconds after which `SoftTimeout` is raised in it; None = never."""
        self.job_template = template_of(checked_job(NewJob(task=name, **to_fields(options))))
        self.template = self.job_template.new
        """A job of it, without its arguments."""
        limit = self.template.timeout
        if soft_timeout is not None and limit is not None and soft_timeout >= limit:
            raise Invalid(f"{soft_timeout:g} s is not less than the timeout, {limit:g} s", at="soft_timeout")
        functools.update_wrapper(self, function)
        if isinstance(follower := options.get("then"), Task):
            check_fits(self, follower, at="then")

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> C:
        """Just run it. Dependencies that are not given are made for this call."""
        if self.plan.dependencies:
            return cast("C", self.app.hooks.call(self, args, kwargs))
        return self.function(*args, **kwargs)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> "Job[R]":
        """Queue a call; the arguments are checked against the signature before anything is sent."""
        app, template, payload = self.app, self.job_template, self.plan.pack(args, kwargs)
        fresh = _chance.uuid7()[:-1] + template.mark
        try:
            if app.link.at_once(app.tenant, template, fresh, payload):
                return Job(text_id(fresh), app, self.plan, created=True)
            return self._enqueue(text_id(fresh), payload)
        except Unavailable:  # a connection that rested may be stale
            with without_first_error():
                # Its id makes it one job, however often it is sent.
                return self._enqueue(text_id(fresh), payload, again=True)

    def _enqueue(self, fresh: str, payload: bytes, *, again: bool = False) -> "Job[R]":
        new = self._new(payload, fresh)
        answer = self.app.link.ask(self._operation([new]))
        return self._handle(new, answer.ids[0], created=bool(answer.created), again=again)

    delay = enqueue

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> "Job[R]":
        """The same in asynchronous code. Calls made at once share a round trip."""
        new = self.new_job(args, kwargs)
        answer, again = await self._aask(self._operation([new]))
        return self._handle(new, answer.ids[0], created=bool(answer.created), again=again)

    def enqueue_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> "Job[R]":
        """Queue a call with a transaction of your own database: if it commits, and not at all if it is rolled back.

        `connection`: of a driver, of Django, or a connection or session of SQLAlchemy. The job waits in the table
        `windlass_outbox` until a worker or server with the setting `outbox`, or `app.relay`, sends it to the queue.
        """
        new = self._later(args, kwargs)
        outbox.execute(connection, outbox.put(self.app.tenant, new, self.app.settings.most_payload))
        return self._sent_later(new)

    async def aenqueue_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> "Job[R]":
        """The same in asynchronous code, with an asynchronous connection or session."""
        new = self._later(args, kwargs)
        await outbox.aexecute(connection, outbox.put(self.app.tenant, new, self.app.settings.most_payload))
        return self._sent_later(new)

    def enqueue_on_commit(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> "Job[R]":
        """Queue a call as soon as a transaction of Django, or a session of SQLAlchemy, has committed.

        It needs no table, but a process that dies between the commit and the call loses the job.
        """
        new = self._later(args, kwargs)
        outbox.after_commit(connection, lambda: self.app.link.ask(self._operation([new])))
        return self._sent_later(new)

    def _later(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        if self.template.unique is not None:
            raise Invalid(
                "only the queue can say whether a unique job is taken: call enqueue after the commit", at="unique"
            )
        return self.new_job(args, kwargs)

    def _sent_later(self, new: NewJob) -> "Job[R]":
        id = new.id or keyed_id(self.app.tenant, new.queue, new.key or "")
        return self._handle(new, id, created=False, again=True)

    async def _aask(self, operation: EnqueueMany) -> tuple[Enqueued, bool]:
        """The answer, and whether it was asked twice: a connection that rested may be stale."""
        try:
            return await self.app.link.aask(operation), False
        except Unavailable:
            with without_first_error():
                return await self.app.link.aask(operation), True

    def _operation(self, jobs: list[NewJob]) -> EnqueueMany:
        return EnqueueMany(tenant=self.app.tenant, jobs=jobs, exact=True)

    def map(self, calls: Iterable[Any]) -> "list[Job[R]]":
        """Queue many calls, up to a thousand in one round trip. Each item is the single argument, or a tuple.

        All of them are checked before the first is sent.
        """
        payloads, news = self._payloads(calls), list[NewJob]()
        try:
            answers = self.app.link.ask_each(self._batches(payloads, news))
        except Unavailable:
            with without_first_error():
                return self._handles(news, self.app.link.ask_each(self._batches(payloads, news)), again=True)
        return self._handles(news, answers)

    async def amap(self, calls: Iterable[Any]) -> "list[Job[R]]":
        """The same in asynchronous code."""
        payloads, news = self._payloads(calls), list[NewJob]()
        answers = [await self._aask(batch) for batch in self._batches(payloads, news)]
        return self._handles(news, [answer for answer, _ in answers], again=any(again for _, again in answers))

    def _payloads(self, calls: Iterable[Any]) -> list[bytes]:
        pack = self.plan.pack
        return [pack(call if isinstance(call, tuple) else (call,), {}) for call in calls]

    def _batches(self, payloads: list[bytes], news: list[NewJob]) -> Iterator[EnqueueMany]:
        """The calls as operations, made while others are answered. Jobs are kept: sent again, they are the same."""
        start = 0
        while some := _sent_together(payloads[start : start + MOST_AT_ONCE]):
            if start == len(news):
                news += map(self._new, some, texts_like(self._fresh(), len(some)))
            yield self._operation(news[start : start + len(some)])
            start += len(some)

    def using(self, **options: Unpack[Options]) -> "Task[P, R, C]":
        """The same task with other options, for the jobs queued through what this returns."""
        chosen, said = {**self.options, **options}, {**self.said, **options}
        return type(self)(
            self.app,
            self.name,
            self.function,
            cast("Options", chosen),
            plan=self.plan,
            said=cast("Options", said),
            errors=self.errors,
            slots=self.slots,
            batch=self.batch,
            needs=self.needs,
            soft_timeout=self.soft_timeout,
        )

    def job(self, id: str) -> "Job[R]":
        """The handle of a job of this task by its id: its result has the task's type."""
        return Job(id, self.app, self.plan)

    def s(self, /, *args: Any, **kwargs: Any) -> "Signature[R]":
        """A call as a step of a workflow (`chain`, `group`). In a later step, the result before it comes first."""
        return Signature(self, args, kwargs)

    def si(self, /, *args: Any, **kwargs: Any) -> "Signature[R]":
        """The same, but without the result of the step before: these are all its arguments."""
        return Signature(self, args, kwargs, immutable=True)

    def with_payload(self, payload: bytes) -> NewJob:
        """The job of a call that is packed already, with its id unless that follows from its key."""
        return self._new(payload, text_id(self._fresh()))

    def new_job(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, named: bool = True) -> NewJob:
        """The job that a call would be: checked, and with its id unless that is left to others. Nothing is sent."""
        return self._new(self.plan.pack(args, kwargs), text_id(self._fresh()) if named else None)

    def _fresh(self) -> bytes:
        """An id for one more job of it."""
        return _chance.uuid7()[:-1] + self.job_template.mark

    def _new(self, payload: bytes, fresh: str | None) -> NewJob:
        """`fresh`: its id, unless it has one of its own or one that its key stands for."""
        template = self.template
        id = template.id if template.id is not None or template.key is not None else fresh
        return msgspec.structs.replace(template, id=id, payload=Raw(payload))

    def _handle(self, new: NewJob, id: str, *, created: bool, again: bool = False) -> "Job[R]":
        """`id`: of the job that there is. `again`: it was sent a second time, so it may have been made by the first."""
        if self.template.id is None and self.template.key is None:
            return Job(id, self.app, self.plan, created=id == new.id)  # no other call has sent this id
        return Job(id, self.app, self.plan, created=created or (None if again else False))

    def _handles(self, news: list[NewJob], answers: list[Enqueued], *, again: bool = False) -> "list[Job[R]]":
        app, plan, named = self.app, self.plan, self.template.id is not None or self.template.key is not None
        there = {id for answer in answers for id in answer.existing}
        ids = [id for answer in answers for id in answer.ids]
        handles: list[Job[R]] = []
        for new, id in zip(news, ids, strict=True):
            created: bool | None = named or id == new.id  # of the others, no other call has sent this id
            if id in there:
                created = None if again else False
            elif named:
                there.add(id)  # the next one with its key is the same job
            handles.append(Job(id, app, plan, created=created))
        return handles

    def __repr__(self) -> str:
        return f"<task {self.name}{self.plan.signature}>"


class BatchTask(Task[[T], R, C]):
    """A task that takes several calls at once: `enqueue` sends one of them, a plain call has the list."""

    def __call__(self, calls: list[T], /, **dependencies: Any) -> C:  # type: ignore[override] # it is called with all
        return super().__call__(calls, **dependencies)  # type: ignore[arg-type]


_chance = SystemRandomness()


@contextmanager
def without_first_error() -> Iterator[None]:
    """A second try that fails like the first raises only its own error."""
    try:
        yield
    except Unavailable as fault:
        raise fault from None


def _sent_together(payloads: list[bytes]) -> list[bytes]:
    """As many of the first payloads as one request takes; at least one."""
    if sum(map(len, payloads)) <= MOST_BYTES:
        return payloads
    return payloads[: max(1, bisect_right(list(accumulate(map(len, payloads))), MOST_BYTES))]


def _labels(needs: Sequence[str]) -> list[str]:
    if isinstance(needs, str) or not all(isinstance(label, str) for label in needs):
        raise Invalid(f'{needs!r} is no list of labels: write needs=["gpu"]', at="needs")
    return [check_name(label, at="needs") for label in needs]


def _checked_slots(slots: int) -> int:
    if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= MOST_SLOTS:
        raise Invalid(f"{slots!r} is no number of slots: 1 to {MOST_SLOTS}", at="slots")
    return slots


def _check_callable(function: Callable[..., Any], name: str | None) -> None:
    """Refuse here what would fail in every run of it."""
    if not callable(function):
        raise Invalid(f"a task is a function, not {function!r}: @app.task, or @app.task(name=…, …)", at="function")
    if name is None and not hasattr(function, "__name__"):
        raise Invalid(f"{function!r} has no name of its own: give it one, @app.task(name=…)", at="name")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        advice = "return a list, or enqueue a job for each item"
        raise Invalid(f"{function.__name__} is a generator, which would do nothing as a task: {advice}", at="function")


def _checked_hook(function: F, what: str) -> F:
    if not callable(function):
        raise Invalid(f"a hook is a function, not {function!r}: @app.{what} has no arguments of its own", at=what)
    if isinstance(function, Task):
        raise Invalid(f"{function.name} is a task: a hook is a function of its own", at=what)
    return function


def _called(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", repr(function)))


def _is_method(function: Callable[..., Any]) -> bool:
    """Whether this was defined in a class and wants an instance."""
    holder = str(getattr(function, "__qualname__", "")).rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters), None)
    return holder != "" and not holder.endswith("<locals>") and first in ("self", "cls")
