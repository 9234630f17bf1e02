"""One execution of one job inside a context: payload to arguments, the call, and what comes of it as a `RunOutcome`.

Also the messages that were sent to the job and that its task has not taken. Runs user code; knows no sockets.
"""

import asyncio
import inspect
import itertools
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from windlass.call.arguments import Arguments
from windlass.call.batches import BatchSignature
from windlass.call.current import RunningJob, running
from windlass.call.hooks import HookFailed, TaskCode
from windlass.call.signals import (
    ANY_ERROR,
    Cancelled,
    ErrorRules,
    Fail,
    RateLimited,
    Retry,
    Snooze,
    SoftTimeout,
    Suspended,
)
from windlass.call.steps import RunSteps
from windlass.model.errors import Invalid, TooLarge, WindlassError
from windlass.model.job import Error, Reason
from windlass.model.names import child_id, keyed_id
from windlass.model.new_job import NewJob
from windlass.model.operations import LoadedStep
from windlass.model.outcome import Verdict
from windlass.model.output import VALUES, Progress, Stream
from windlass.model.wire import encodable
from windlass.worker.contexts import soft_timeouts
from windlass.worker.contexts.folders import JobFolder
from windlass.worker.contexts.frames import MOST_RESULT, Assignment, RunOutcome, RunUpdate, StepAnswer, StepRequest
from windlass.worker.contexts.offspring import Offspring


class MessageQueue:
    """The messages to one run, in order."""

    def __init__(self, took: Callable[[int], None]) -> None:
        self._took = took
        """Called with how many were taken so far."""
        self._waiting: deque[bytes] = deque()
        self._came = threading.Condition()
        self._waiters: list[asyncio.Future[None]] = []
        self._taken = 0
        self._closed = False

    def put(self, data: bytes) -> None:
        with self._came:
            self._waiting.append(data)
            self._wake()

    def close(self) -> None:
        """Raise `Cancelled` in the task, if it waits or asks for more."""
        with self._came:
            self._closed = True
            self._wake()

    def take(self, timeout: float | None) -> bytes:
        """The next one, waiting for it."""
        with self._came:
            if not self._came.wait_for(lambda: self._waiting or self._closed, timeout):
                raise TimeoutError(f"nothing was sent within {timeout:g} s")
            data = self._next()
        self._took(self._taken)
        return data

    async def atake(self) -> bytes:
        """The same in an event loop."""
        loop = asyncio.get_running_loop()
        while True:
            with self._came:
                if self._waiting or self._closed:
                    data = self._next()
                    break
                waiter: asyncio.Future[None] = loop.create_future()
                self._waiters.append(waiter)
            await waiter
        self._took(self._taken)
        return data

    def _next(self) -> bytes:
        if not self._waiting:
            raise Cancelled
        self._taken += 1
        return self._waiting.popleft()

    def _wake(self) -> None:
        self._came.notify_all()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.get_loop().call_soon_threadsafe(_wake_one, waiter)


class StepRequests:
    """What one run asks about its durable steps, and the answers: the `StepLink` of a context."""

    def __init__(self, number: int, send: "SendUpdate", *, in_loop: bool, wait: Callable[[], None] | None) -> None:
        self.in_loop = in_loop
        self._number = number
        self._send = send
        self._wait = wait
        """Waits for commands and obeys them, where no thread does so all the time."""
        self._calls = itertools.count(1)
        self._pending: dict[int, Future[StepAnswer]] = {}
        self._closed = False

    def load(self) -> list[LoadedStep]:
        return self._read(self._ask(StepRequest(next(self._calls))))

    async def aload(self) -> list[LoadedStep]:
        return self._read(await self._aask(StepRequest(next(self._calls))))

    def save(self, name: str, result: bytes) -> None:
        self._check_saved(self._ask(StepRequest(next(self._calls), name, result)))

    async def asave(self, name: str, result: bytes) -> None:
        self._check_saved(await self._aask(StepRequest(next(self._calls), name, result)))

    def _read(self, answer: StepAnswer) -> list[LoadedStep]:
        if answer.error:
            raise Invalid(answer.error, at="step")
        return answer.steps

    def _check_saved(self, answer: StepAnswer) -> None:
        if answer.error:
            raise Fail(answer.error)  # another run would only repeat the step

    def _ask(self, request: StepRequest) -> StepAnswer:
        asked = self._sent(request)
        while self._wait is not None and not asked.done():
            self._wait()
        return asked.result()

    async def _aask(self, request: StepRequest) -> StepAnswer:
        if self._wait is not None:
            return self._ask(request)  # a loop of the task's own
        return await asyncio.wrap_future(self._sent(request))

    def _sent(self, request: StepRequest) -> "Future[StepAnswer]":
        asked: Future[StepAnswer] = Future()
        self._pending[request.call] = asked
        if self._closed:
            raise Cancelled
        self._send(RunUpdate(self._number, step=request))
        return asked

    def answer(self, answer: StepAnswer) -> None:
        asked = self._pending.pop(answer.call, None)
        if asked is not None:
            with suppress(InvalidStateError):  # the task waits no more
                asked.set_result(answer)

    def close(self) -> None:
        """Raise `Cancelled` in the task, if it waits or asks for more."""
        self._closed = True
        for call in list(self._pending):
            if (asked := self._pending.pop(call, None)) is not None:
                with suppress(InvalidStateError):
                    asked.set_exception(Cancelled())


def _wake_one(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


MOST_MESSAGE = 4000
MOST_TRACEBACK = 20_000
MOST_SPAWNED = 100

NOT_IN_A_BATCH = "one call runs several jobs here, and this would belong to one of them"

REOPEN_AFTER = 2.0
"""Seconds before a job comes again whose process could not open what the app wants open."""


SendUpdate = Callable[[RunUpdate], None]


class Execution:
    """What `current` stands for while a job runs."""

    __slots__ = (
        "_assignment",
        "_cancelled",
        "_emitted",
        "_folder",
        "_job",
        "_offspring",
        "_send",
        "_steps",
        "in_loop",
        "messages",
        "poll",
        "spawned",
        "stop",
        "taken",
        "task",
        "wait",
    )

    stopping = threading.Lock()
    """Nothing may come between "cancelled" and "has ended": or the exception would hit the next job of that thread."""

    def __init__(self, assignments: Sequence[Assignment], send: SendUpdate) -> None:
        """`assignments`: a single one, unless this is a batch."""
        self._assignment = assignment = assignments[0]
        self._send = send
        self._job: RunningJob | None = None
        self._folder: JobFolder | None = None
        self._offspring: Offspring | None = None
        self._cancelled = False
        self._emitted = False
        self.poll: Callable[[], None] | None = None
        """Reads commands that have come, where no thread listens all the time."""
        self.wait: Callable[[], None] | None = None
        """The same, and waits for one."""
        self.in_loop = False
        """Whether it is a coroutine in the loop of its context."""
        self._steps: RunSteps | None = None
        self.task: asyncio.Task[None] | None = None
        """Runs its coroutine; referenced here, because an event loop does not keep its tasks."""
        self.spawned: list[NewJob] = []
        self.stop: Callable[[], object] | None = None
        """Ends it early, once it has begun."""
        self.messages = MessageQueue(self._report_taken) if assignment.input else None
        self.taken = False
        """Whether it was taken back before it had begun: then another context runs it, and nothing is reported."""

    @property
    def cancelled(self) -> bool:
        if self.poll is not None and not self._cancelled:
            self.poll()
        return self._cancelled

    @property
    def is_cancelled(self) -> bool:
        """The same, without reading commands that have come."""
        return self._cancelled

    def begin(self, stop: Callable[[], object]) -> bool:
        """From here on it can be cancelled by calling `stop`; whether it has not been cancelled already."""
        with self.stopping:
            if self.taken:
                return False
            self.stop = stop
        return not (self._cancelled or (self.poll is not None and self.cancelled))

    def take_back(self) -> Assignment | None:
        """The job, if it has not begun: from here on it cannot. One that takes messages stays with those it has."""
        with self.stopping:
            if self.taken or self._cancelled or self.stop is not None or self.messages is not None:
                return None
            self.taken = True
        return self._assignment

    def cancel(self) -> None:
        """Stop it."""
        with self.stopping:
            if not self._cancelled:
                self._cancelled = True
                if self.stop is not None:
                    self.stop()
        if self.messages is not None:
            self.messages.close()
        if self._steps is not None:
            self._steps.link.close()

    def end(self) -> None:
        """From here on it cannot be stopped."""
        with self.stopping:
            self.stop = _nothing

    def arguments(self, callee: TaskCode) -> Arguments:
        """What the task is called with."""
        assignment, plan = self._assignment, callee.plan
        try:
            if assignment.with_results in (None, "current"):
                return plan.unpack(assignment.payload, assignment.content_type, one=assignment.one_argument)
            first = assignment.results[0] if assignment.with_results == "one" else assignment.results
            return plan.unpack_rest(first, assignment.payload, assignment.content_type)
        except Invalid as fault:
            raise Fail(str(fault)) from None  # it would not fit the next time either

    def success(self, callee: TaskCode, value: Any) -> RunOutcome:
        """The outcome of a run whose task has returned this."""
        number = self._assignment.number
        if self.cancelled:  # that is why it returned: its result is not what was asked for
            return cancelled_outcome(number)
        result = None if value is None else callee.plan.pack_result(value)  # without one, `result` is None too
        if result is not None and len(result) > MOST_RESULT:
            raise TooLarge(f"the result has {len(result)} bytes, at most {MOST_RESULT} are carried")
        return RunOutcome(number, Verdict.OK, result, jobs=self.spawned)

    def outcomes(self, outcome: RunOutcome) -> Sequence[RunOutcome]:
        """What is reported: the outcome of each of its jobs."""
        return (outcome,)

    @property
    def job(self) -> RunningJob:
        if self._job is None:
            assignment = self._assignment
            now = datetime.now(UTC) if assignment.timeout is not None else None  # noqa: TID251 - for people, decides nothing
            self._job = RunningJob(
                id=assignment.id,
                task=assignment.task,
                queue=assignment.queue,
                tenant=assignment.tenant,
                attempt=assignment.attempt,
                priority=assignment.priority,
                max_retry=assignment.max_retry,
                tags=assignment.tags,
                headers=assignment.headers,
                created_at=datetime.fromtimestamp(assignment.created_at, UTC),
                deadline=now + timedelta(seconds=assignment.timeout or 0) if now else None,
            )
        return self._job

    @property
    def jobs(self) -> list[RunningJob]:
        return [self.job]

    @property
    def files(self) -> dict[str, bytes]:
        return self._assignment.files

    @property
    def results(self) -> list[Any]:
        return self._assignment.results

    @property
    def folder(self) -> Path:
        return self._own_folder().path

    def attach(self, path: str | os.PathLike[str], name: str | None) -> None:
        self._own_folder().attach(path, name)

    def _own_folder(self) -> JobFolder:
        if self._folder is None:
            self._folder = JobFolder(self._assignment.number, self._assignment.files)
        return self._folder

    def with_files(self, outcome: RunOutcome) -> RunOutcome:
        """An outcome with the files that the run leaves; its folder is removed."""
        if self._folder is None:
            return outcome
        try:
            return replace(outcome, files=self._folder.left())
        except (OSError, WindlassError) as fault:
            error = describe_error(fault)
            return RunOutcome(outcome.number, Verdict.FAILED, error=replace(error, type="Files", traceback=""))
        finally:
            self._folder.remove()

    def progress(self, progress: Progress) -> None:
        self._send(RunUpdate(self._assignment.number, progress=progress))

    def log(self, text: str) -> None:
        self.print("log", encodable(text).encode() + b"\n")

    def print(self, stream: Stream, data: bytes) -> None:
        self._send(RunUpdate(self._assignment.number, printed=(stream, data)))

    def emit(self, line: bytes) -> None:
        begins, self._emitted = not self._emitted, True
        self.print(VALUES, b"\n" + line if begins else line)

    @property
    def offspring(self) -> Offspring:
        if self._offspring is None:
            self._offspring = Offspring(self._assignment.number)
        return self._offspring

    def end_offspring(self) -> None:
        """End the processes that it has started."""
        if self._offspring is not None:
            self._offspring.end()

    def input(self, timeout: float | None) -> bytes:
        return self._box().take(timeout)

    async def ainput(self) -> bytes:
        return await self._box().atake()

    def _box(self) -> MessageQueue:
        if self.messages is None:
            raise Invalid("this job takes no input: its task must say input=True", at="input")
        return self.messages

    def _report_taken(self, taken: int) -> None:
        self._send(RunUpdate(self._assignment.number, taken=taken))

    @property
    def steps(self) -> RunSteps:
        if self._steps is None:
            number, waits = self._assignment.number, self.wait
            self._steps = RunSteps(StepRequests(number, self._send, in_loop=self.in_loop, wait=waits))
            if self._cancelled:
                self._steps.link.close()
        return self._steps

    def answer_step(self, answer: StepAnswer) -> None:
        if self._steps is not None:
            self._steps.link.answer(answer)

    def spawn(self, new: NewJob) -> str:
        if len(self.spawned) >= MOST_SPAWNED:
            raise Invalid(f"one job may make at most {MOST_SPAWNED} others: queue them instead", at="spawn")
        assignment = self._assignment
        if new.key is not None:
            id = keyed_id(assignment.tenant, new.queue, new.key)
        else:
            id = new.id or child_id(assignment.id, f"jobs[{len(self.spawned)}]", new.queue)  # as the engine names it
        self.spawned.append(new)
        return id


def _nothing() -> None:
    """Stops a run that has ended."""


class BatchExecution(Execution):
    """What `current` stands for while one call runs several jobs. What it says, it says for each of them."""

    __slots__ = ("_called", "_items", "_own")

    def __init__(self, assignments: Sequence[Assignment], send: SendUpdate) -> None:
        def send_for_all(update: RunUpdate) -> None:
            for one in assignments:
                send(replace(update, number=one.number))

        super().__init__([replace(assignments[0], input=False)], send_for_all)
        self._items = {one.number: Execution([one], send) for one in assignments}
        self._called: list[int] = []
        """Those whose arguments fit the task: they are in the list that it gets."""
        self._own: dict[int, RunOutcome] = {}
        """Outcomes that differ from that of the call, by number."""

    def take_back(self) -> Assignment | None:
        return None  # the others of the batch would have to come along

    def arguments(self, callee: TaskCode) -> Arguments:
        assert isinstance(callee.plan, BatchSignature)  # noqa: S101 - else there would be no batch
        items = []
        for number, one in self._items.items():
            try:
                _, found = one.arguments(callee)
            except Fail as fault:
                self._own[number] = outcome_of(number, fault)
            else:
                items.append(found[callee.plan.item])
                self._called.append(number)
        if not items:
            raise Fail("no call of the batch fits the task")
        return (), {callee.plan.item: items}

    def success(self, callee: TaskCode, value: Any) -> RunOutcome:
        number = self._assignment.number
        if self.cancelled:
            return cancelled_outcome(number)
        results = [None] * len(self._called) if value is None else value
        if not isinstance(results, list | tuple) or len(results) != len(self._called):
            returned = f"{len(results)} results" if isinstance(results, list | tuple) else f"a {type(results).__name__}"
            advice = "return a list with a result, or an exception, for each call in its order, or None"
            raise Invalid(f"it returned {returned} for {len(self._called)} calls: {advice}", at="result")
        for called, result in zip(self._called, results, strict=True):
            self._own[called] = self._outcome_of_item(callee, called, result)
        return RunOutcome(number, Verdict.OK)

    def _outcome_of_item(self, callee: TaskCode, number: int, result: Any) -> RunOutcome:
        if isinstance(result, BaseException):
            return outcome_of(number, result, callee.errors)
        try:
            return self._items[number].success(callee, result)
        except WindlassError as fault:
            return outcome_of(number, fault, callee.errors)

    def outcomes(self, outcome: RunOutcome) -> Sequence[RunOutcome]:
        return [self._own.get(number) or replace(outcome, number=number) for number in self._items]

    @property
    def jobs(self) -> list[RunningJob]:
        return [self._items[number].job for number in self._called]

    @property
    def files(self) -> dict[str, bytes]:
        raise Invalid(NOT_IN_A_BATCH, at="files")

    def _own_folder(self) -> JobFolder:
        raise Invalid(NOT_IN_A_BATCH, at="folder")

    @property
    def steps(self) -> RunSteps:
        raise Invalid(NOT_IN_A_BATCH, at="step")

    @property
    def results(self) -> list[Any]:
        raise Invalid(NOT_IN_A_BATCH, at="results")

    def spawn(self, new: NewJob) -> str:
        raise Invalid(f"{NOT_IN_A_BATCH}: queue {new.task} with enqueue", at="spawn")


def execution_of(callee: TaskCode) -> type[Execution]:
    """What runs a task: of several jobs by one call only if it takes batches."""
    return BatchExecution if isinstance(callee.plan, BatchSignature) else Execution


def is_async(callee: TaskCode) -> bool:
    return inspect.iscoroutinefunction(callee.function)


def execute(callee: TaskCode, assignment: Assignment, run: Execution) -> RunOutcome:
    """Run a function to its end in this thread."""
    token = running.set(run)
    try:
        args, kwargs = run.arguments(callee)
        if (soft := callee.soft_timeout) is None:
            value = callee.function(*args, **kwargs)
        else:
            value = soft_timeouts.call(soft, run, callee.function, args, kwargs)
        return run.with_files(run.success(callee, value))
    except BaseException as fault:  # noqa: BLE001 - whatever a task raises is its outcome
        return run.with_files(outcome_of(assignment.number, fault, callee.errors))
    finally:
        run.end_offspring()
        running.reset(token)


async def aexecute(callee: TaskCode, assignment: Assignment, run: Execution) -> RunOutcome:
    """Run a coroutine function to its end in this event loop."""
    running.set(run)
    run.in_loop = True
    try:
        args, kwargs = run.arguments(callee)
        called = callee.function(*args, **kwargs)
        if (soft := callee.soft_timeout) is not None:
            called = soft_timeouts.SoftlyLimited(soft, run, called)
        return run.with_files(run.success(callee, await called))
    except BaseException as fault:  # noqa: BLE001
        return run.with_files(outcome_of(assignment.number, fault, callee.errors))
    finally:
        run.end_offspring()


def outcome_of(number: int, fault: BaseException, errors: ErrorRules = ANY_ERROR) -> RunOutcome:
    """The outcome of a run that an exception ended."""
    match fault:
        case Snooze() | Suspended():
            return RunOutcome(number, Verdict.RETRY, snooze=fault.after)
        case RateLimited():
            return RunOutcome(number, Verdict.RETRY, snooze=fault.after, hold_limit=fault.limit)
        case Retry():
            return RunOutcome(number, Verdict.RETRY, error=describe_error(fault), delay=fault.after)
        case Fail():
            return RunOutcome(number, Verdict.FAILED, code=fault.code, error=describe_error(fault))
        case asyncio.CancelledError() | Cancelled() if not isinstance(fault, SoftTimeout):
            return cancelled_outcome(number)
    verdict = Verdict.FAILED if errors.is_final(fault) else Verdict.ERROR
    reason = Reason.TIMEOUT if _is_soft_timeout(fault) else None
    return RunOutcome(number, verdict, error=describe_error(fault), reason=reason)


def _is_soft_timeout(fault: BaseException) -> bool:
    """Also a group of nothing else, as a task group raises it."""
    if isinstance(fault, BaseExceptionGroup):
        return all(map(_is_soft_timeout, fault.exceptions))
    return isinstance(fault, SoftTimeout)


def unopened_outcome(fault: BaseException) -> RunOutcome:
    """A process could not open what the app wants open: jobs that it was given have not begun, and come again."""
    cause = fault.__cause__ if isinstance(fault, HookFailed) and fault.__cause__ is not None else fault
    error = describe_error(cause)
    return RunOutcome(
        0, Verdict.RETRY, snooze=REOPEN_AFTER, error=replace(error, message=f"{fault}: {error.message}"), unopened=True
    )


def cancelled_outcome(number: int) -> RunOutcome:
    """The outcome of a run that was cancelled, and stopped."""
    return RunOutcome(number, Verdict.ERROR, error=Error(type="Cancelled", message="stopped while it ran"))


def unknown_task(assignment: Assignment) -> RunOutcome:
    error = Error(type="UnknownTask", message=f"this app has no task {assignment.task!r}")
    return RunOutcome(assignment.number, Verdict.ERROR, error=error)


def describe_error(fault: BaseException) -> Error:
    """An exception as text, without the frames of this package."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("windlass."):
        trace = trace.tb_next
    lines = "".join(traceback.format_exception(type(fault), fault, trace))
    kind = type(fault)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return Error(
        type=encodable(name),
        message=encodable(_text(fault)[:MOST_MESSAGE]),
        traceback=encodable(lines[-MOST_TRACEBACK:]),
    )


def _text(fault: BaseException) -> str:
    """An exception's message. Its `__str__` may raise: the job must end all the same."""
    try:
        return str(fault)
    except BaseException as again:  # noqa: BLE001
        return f"it cannot be put into words: that raised {type(again).__qualname__}"
