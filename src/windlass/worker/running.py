"""One run of one job inside a context: payload to arguments, the call, and whatever comes of it as an `Ending`."""

import asyncio
import inspect
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from windlass.call.arguments import Arguments, Plan
from windlass.call.current import RunningJob, running
from windlass.call.signals import Cancelled, Fail, RateLimited, Retry, Snooze
from windlass.model.errors import Invalid, TooLarge
from windlass.model.job import Error, NewJob, Progress
from windlass.model.lifecycle import Verdict
from windlass.model.names import child_id, keyed_id
from windlass.model.wire import speakable
from windlass.worker.frames import MOST_RESULT, Assignment, Ending, Given, Newcomer, Said
from windlass.worker.inbox import Inbox

MOST_MESSAGE = 4000
MOST_TRACEBACK = 20_000
MOST_SPAWNED = 100


class Callee(Protocol):
    """A task of the user's app, as far as a context needs it."""

    function: Callable[..., Any]
    plan: Plan


Tell = Callable[[Said], None]


class Run:
    """What `current` stands for while a job runs."""

    __slots__ = ("_cancelled", "_given", "_job", "_tell", "inbox", "look", "spawned", "stop", "taken", "task")

    _stopping = threading.Lock()
    """Between "told to stop" and "has ended" there must be nothing: or the next run of that thread would be struck."""

    def __init__(self, given: Given, tell: Tell) -> None:
        self._given = given
        self._tell = tell
        self._job: RunningJob | None = None
        self._cancelled = False
        self.look: Callable[[], None] | None = None
        """How to find out what it has been told, where nobody listens all the time."""
        self.task: asyncio.Task[None] | None = None
        """Runs its coroutine; held here, for a loop does not hold its tasks."""
        self.spawned: list[NewJob] = []
        self.stop: Callable[[], object] | None = None
        """How to end it early, where there is a way."""
        self.inbox = Inbox(self._say_taken) if given.input else None
        self.taken = False
        """Whether it was taken back before it had begun: then another context has it, and nothing is reported."""

    @property
    def cancelled(self) -> bool:
        if self.look is not None and not self._cancelled:
            self.look()
        return self._cancelled

    def begin(self, stop: Callable[[], object]) -> bool:
        """From here on it can be told to stop, in this way; whether it has not been told already."""
        with self._stopping:
            if self.taken:
                return False
            self.stop = stop
        return not (self._cancelled or (self.look is not None and self.cancelled))

    def take_back(self) -> Assignment | None:
        """The job, if it has not begun: from here on it cannot. One that takes messages stays with those it has."""
        with self._stopping:
            if self.taken or self._cancelled or self.stop is not None or self.inbox is not None:
                return None
            self.taken = True
        return self._assignment

    def cancel(self) -> None:
        """Tell it to stop."""
        with self._stopping:
            if not self._cancelled:
                self._cancelled = True
                if self.stop is not None:
                    self.stop()
        if self.inbox is not None:
            self.inbox.close()

    def end(self) -> None:
        """From here on it cannot be told to stop."""
        with self._stopping:
            self.stop = _nothing

    @property
    def _assignment(self) -> Assignment:
        given = self._given
        return given.assignment() if isinstance(given, Newcomer) else given

    @property
    def job(self) -> RunningJob:
        if self._job is None:
            given = self._assignment
            now = datetime.now(UTC) if given.timeout is not None else None  # noqa: TID251 - for people, decides nothing
            self._job = RunningJob(
                id=given.id,
                task=given.task,
                queue=given.queue,
                tenant=given.tenant,
                attempt=given.attempt,
                priority=given.priority,
                max_retry=given.max_retry,
                tags=given.tags,
                headers=given.headers,
                created_at=datetime.fromtimestamp(given.created_at, UTC),
                deadline=now + timedelta(seconds=given.timeout or 0) if now else None,
            )
        return self._job

    @property
    def files(self) -> dict[str, bytes]:
        return self._assignment.files

    def progress(self, progress: Progress) -> None:
        self._tell(Said(self._given.number, progress=progress))

    def log(self, text: str) -> None:
        self._tell(Said(self._given.number, log=speakable(text)))

    def input(self, timeout: float | None) -> bytes:
        return self._box().take(timeout)

    async def ainput(self) -> bytes:
        return await self._box().atake()

    def _box(self) -> Inbox:
        if self.inbox is None:
            raise Invalid("this job takes no input: its task must say input=True", at="input")
        return self.inbox

    def _say_taken(self, taken: int) -> None:
        self._tell(Said(self._given.number, taken=taken))

    def spawn(self, new: NewJob) -> str:
        if len(self.spawned) >= MOST_SPAWNED:
            raise Invalid(f"one job may make at most {MOST_SPAWNED} others: queue them instead", at="spawn")
        given = self._assignment
        if new.key is not None:
            id = keyed_id(given.tenant, new.queue, new.key)
        else:
            id = new.id or child_id(given.id, f"jobs[{len(self.spawned)}]", new.queue)  # as the engine names it
        self.spawned.append(new)
        return id


def _nothing() -> None:
    """How to stop a run that has ended."""


def is_async(callee: Callee) -> bool:
    return inspect.iscoroutinefunction(callee.function)


def call(callee: Callee, given: Given, run: Run) -> Ending:
    """Run a function to its end in this thread."""
    token = running.set(run)
    try:
        args, kwargs = _arguments(callee, given)
        return succeeded(callee, given.number, callee.function(*args, **kwargs), run)
    except BaseException as fault:  # noqa: BLE001 - whatever a task raises is its outcome
        return ended(given.number, fault)
    finally:
        running.reset(token)


async def acall(callee: Callee, given: Given, run: Run) -> Ending:
    """Run a coroutine function to its end in this loop."""
    running.set(run)
    try:
        args, kwargs = _arguments(callee, given)
        return succeeded(callee, given.number, await callee.function(*args, **kwargs), run)
    except BaseException as fault:  # noqa: BLE001
        return ended(given.number, fault)


def _arguments(callee: Callee, given: Given) -> Arguments:
    try:
        return callee.plan.unpack(given.payload, given.content_type, one=given.one_argument)
    except Invalid as fault:
        raise Fail(str(fault)) from None  # it would not fit the next time either


def succeeded(callee: Callee, number: int, value: Any, run: Run) -> Ending:
    if run.cancelled:
        return stopped(number)  # it came back because it was told to: what it brought is not what was asked for
    result = None if value is None else callee.plan.pack_result(value)  # without one, `result` is None too
    if result is not None and len(result) > MOST_RESULT:
        raise TooLarge(f"the result has {len(result)} bytes, at most {MOST_RESULT} are carried")
    return Ending(number, Verdict.OK, result, jobs=run.spawned)


def ended(number: int, fault: BaseException) -> Ending:
    """What an exception that left a task says of its run."""
    match fault:
        case Snooze():
            return Ending(number, Verdict.RETRY, snooze=fault.after)
        case RateLimited():
            return Ending(number, Verdict.RETRY, snooze=fault.after, rests=fault.limit)
        case Retry():
            return Ending(number, Verdict.RETRY, error=describe(fault), delay=fault.after)
        case Fail():
            return Ending(number, Verdict.FAILED, code=fault.code, error=describe(fault))
        case asyncio.CancelledError() | Cancelled():
            return stopped(number)
    return Ending(number, Verdict.ERROR, error=describe(fault))


def stopped(number: int) -> Ending:
    """The end of a run that was told to stop, and did."""
    return Ending(number, Verdict.ERROR, error=Error(type="Cancelled", message="stopped while it ran"))


def describe(fault: BaseException) -> Error:
    """An exception as text, the frames of our own left out."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("windlass."):
        trace = trace.tb_next
    lines = "".join(traceback.format_exception(type(fault), fault, trace))
    kind = type(fault)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return Error(
        type=speakable(name),
        message=speakable(_text(fault)[:MOST_MESSAGE]),
        traceback=speakable(lines[-MOST_TRACEBACK:]),
    )


def _text(fault: BaseException) -> str:
    """What an exception says. What it does then is its author's: a job must end, whatever that is."""
    try:
        return str(fault)
    except BaseException as again:  # noqa: BLE001
        return f"it cannot be put into words: that raised {type(again).__qualname__}"
