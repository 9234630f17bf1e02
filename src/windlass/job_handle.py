"""The handle of an enqueued job: what a Python user can ask of it.

Turns answers into values. `connection` knows how an operation reaches the queue, `call` how a result is decoded.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast, overload

from msgspec import UNSET, Raw
from msgspec.structs import asdict

from windlass.call.arguments import CallSignature
from windlass.call.options import Duration
from windlass.call.values import AsyncValueStream, ValueStream
from windlass.model.duration import seconds
from windlass.model.errors import Invalid, WindlassError
from windlass.model.estimate import Estimate
from windlass.model.events import Event, EventCursor
from windlass.model.job import FINISHED, Error, State
from windlass.model.job import Job as Record
from windlass.model.operations import (
    Cancel,
    Delete,
    Edit,
    FailByHand,
    FinishByHand,
    GetEstimate,
    GetFile,
    GetFiles,
    GetOutput,
    GetResult,
    GetSteps,
    LowerTimeout,
    Rerun,
    Resize,
    Result,
    Send,
    SendSignal,
    Show,
)
from windlass.model.output import VALUES, Chunk
from windlass.model.stdin import SignalName
from windlass.model.steps import StepEntry
from windlass.system import SystemClock

if TYPE_CHECKING:
    from windlass.app import Windlass

R = TypeVar("R")
V = TypeVar("V")

MOST_WAIT = 30.0
"""Seconds that one question for a result waits; a longer wait asks again."""

_clock = SystemClock()


class JobFailed(WindlassError):
    """The job whose result was asked for ended without one."""

    __module__ = "windlass"  # where people import it from, and what it is called when it is printed
    code, title = "job_failed", "The job did not succeed"

    def __init__(self, id: str, state: State, error: Error | None) -> None:
        what = f"{error.type}: {error.message}".strip(": ") if error else ""
        super().__init__(f"job {id} {state}{': ' + what if what else ''}")
        self.id = id
        self.state = state
        self.error = error


class JobChanges(TypedDict, total=False):
    """What can be edited of a job that waits."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    payload: Any
    priority: int
    queue: str
    tags: list[str]
    delay: Duration
    run_at: datetime


class Job(Generic[R]):
    """A job that was queued: its id, and a way to ask for it."""

    __slots__ = ("_app", "_plan", "created", "id")

    def __init__(self, id: str, app: "Windlass", plan: CallSignature | None, created: bool | None = None) -> None:
        self.id = id
        self.created = created
        """Whether this call has made the job; false = it was there already under its key or id, and may even have
        finished. None if that is unknown: the handle was made from an id, or the answer was lost.
        """
        self._app = app
        self._plan = plan

    def refresh(self, wait: Duration = 0.0) -> Record:
        """The job's record, as it is now; `wait`: as it is at its end, or after so long (a minute at most)."""
        return self._app.ask(Show(id=self.id, wait=seconds(wait, at="wait")))

    async def arefresh(self, wait: Duration = 0.0) -> Record:
        """The same in asynchronous code."""
        return await self._app.aask(Show(id=self.id, wait=seconds(wait, at="wait")))

    @property
    def state(self) -> State:
        """The job's state; asks the queue each time."""
        return self.refresh().state

    @property
    def progress(self) -> dict[str, Any] | None:
        """How far the job says it is, as `done`, `total`, `note`; None if it has not said. Asks the queue each time."""
        return _progress(self.refresh())

    async def aprogress(self) -> dict[str, Any] | None:
        """The same in asynchronous code."""
        return _progress(await self.arefresh())

    async def astate(self) -> State:
        """The job's state, in asynchronous code."""
        return (await self.arefresh()).state

    def result(self, timeout: Duration | None = None) -> R:
        """What the task returned, waiting for it: so long, or until it has ended.

        Raises `TimeoutError` if it has not ended in time, and `JobFailed` if it ended without a result.
        """
        until = _until(timeout)
        while True:
            answer = self._app.ask(self._ask(until))
            if answer.state in FINISHED:
                return self._value(answer)
            _check(self.id, until, timeout, answer.state)

    async def aresult(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109 - said by those who have no loop too
        """The same in asynchronous code."""
        until = _until(timeout)
        while True:
            answer = await self._app.aask(self._ask(until))
            if answer.state in FINISHED:
                return self._value(answer)
            _check(self.id, until, timeout, answer.state)

    def _ask(self, until: float | None) -> GetResult:
        wait = MOST_WAIT if until is None else min(MOST_WAIT, max(0.0, until - _clock.monotonic()))
        return GetResult(id=self.id, wait=wait)

    def _value(self, answer: Result) -> R:
        if answer.state is not State.SUCCEEDED:
            raise JobFailed(self.id, answer.state, answer.error)
        if not isinstance(answer.result, Raw):
            return cast("R", None)
        plan = self._plan or _ANYTHING
        return cast("R", plan.unpack_result(bytes(answer.result), answer.content_type))

    def events(self, since: str = "") -> Iterator[Event]:
        """Events of the job and its output, until it has ended; `since`: the id of the last event seen.

        The end is the last event. What happened before is reported as the state that the job is in.
        """
        return self._app.link.hear(lambda source: source.follow_job(self._app.tenant, self.id, since))

    def aevents(self, since: str = "") -> AsyncGenerator[Event, None]:
        """The same in asynchronous code."""
        return self._app.link.ahear(lambda source: source.follow_job(self._app.tenant, self.id, since))

    def output(self, *, follow: bool = False) -> Iterator[Chunk]:
        """What the job has printed and logged, in pieces with a `stream` and `data`: from the start, as far as it is
        kept. `follow`: go on until the job has ended.
        """
        if follow:
            yield from (event.chunk.piece for event in self.events() if event.chunk and event.chunk.stream != VALUES)
            return
        page = self._app.ask(GetOutput(id=self.id))
        while page.chunks:
            yield from (chunk for chunk in page.chunks if chunk.stream != VALUES)
            page = self._app.ask(GetOutput(id=self.id, after=page.next))

    async def aoutput(self, *, follow: bool = False) -> AsyncGenerator[Chunk, None]:
        """The same in asynchronous code."""
        if follow:
            async with aclosing(self.aevents()) as events:
                async for event in events:
                    if event.chunk is not None and event.chunk.stream != VALUES:
                        yield event.chunk.piece
            return
        page = await self._app.aask(GetOutput(id=self.id))
        while page.chunks:
            for chunk in page.chunks:
                if chunk.stream != VALUES:
                    yield chunk
            page = await self._app.aask(GetOutput(id=self.id, after=page.next))

    @overload
    def values(self) -> ValueStream[Any]: ...

    @overload
    def values(self, kind: type[V]) -> ValueStream[V]: ...

    def values(self, kind: Any = Any) -> ValueStream[Any]:
        """The values that the task emits (`current.emit`), checked to be of this type, until the job has ended.

        Earlier ones come first, as far as they are kept. If the job runs again, its values begin again, and `run`
        of what this returns grows. How the job ended says `result()`.
        """
        return ValueStream(self._value_chunks(), kind)

    def _value_chunks(self) -> Iterator[Chunk]:
        page = self._app.ask(GetOutput(id=self.id, stream=VALUES))
        while page.chunks:
            yield from page.chunks
            page = self._app.ask(GetOutput(id=self.id, stream=VALUES, after=page.next))
        if not page.ended:
            for event in self.events(str(EventCursor(page.next))):
                if event.chunk is not None and event.chunk.stream == VALUES:
                    yield event.chunk.piece

    @overload
    def avalues(self) -> AsyncValueStream[Any]: ...

    @overload
    def avalues(self, kind: type[V]) -> AsyncValueStream[V]: ...

    def avalues(self, kind: Any = Any) -> AsyncValueStream[Any]:
        """The same in asynchronous code."""
        return AsyncValueStream(self._avalue_chunks(), kind)

    async def _avalue_chunks(self) -> AsyncGenerator[Chunk, None]:
        page = await self._app.aask(GetOutput(id=self.id, stream=VALUES))
        while page.chunks:
            for chunk in page.chunks:
                yield chunk
            page = await self._app.aask(GetOutput(id=self.id, stream=VALUES, after=page.next))
        if not page.ended:
            async with aclosing(self.aevents(str(EventCursor(page.next)))) as events:
                async for event in events:
                    if event.chunk is not None and event.chunk.stream == VALUES:
                        yield event.chunk.piece

    def estimate(self) -> Estimate:
        """How long the job will still wait (`seconds`), its `position` and `why`; all null if it waits no more."""
        return self._app.ask(GetEstimate(id=self.id))

    async def aestimate(self) -> Estimate:
        """The same in asynchronous code."""
        return await self._app.aask(GetEstimate(id=self.id))

    def send(self, data: bytes | str) -> None:
        """Send a message to the job, whose task must take input (`input=True`): `current.input` gives it there.

        What is sent before it runs waits for it. Raises `Busy` if too much waits, `Conflict` if the job has ended.
        """
        self._app.ask(self._message(data))

    async def asend(self, data: bytes | str) -> None:
        """The same in asynchronous code."""
        await self._app.aask(self._message(data))

    def _message(self, data: bytes | str) -> Send:
        return Send(id=self.id, data=data.encode() if isinstance(data, str) else data)

    def files(self) -> dict[str, bytes]:
        """The files that the job has left: what it attached, and what was in `out` of its folder at the end."""
        return {
            one.name: self._app.ask(GetFile(id=self.id, name=one.name)) for one in self._app.ask(GetFiles(id=self.id))
        }

    async def afiles(self) -> dict[str, bytes]:
        """The same in asynchronous code."""
        entries = await self._app.aask(GetFiles(id=self.id))
        return {one.name: await self._app.aask(GetFile(id=self.id, name=one.name)) for one in entries}

    def steps(self) -> list[StepEntry]:
        """The durable steps that the job has finished, in that order: each with its `name` and `finished_at`."""
        return self._app.ask(GetSteps(id=self.id))

    async def asteps(self) -> list[StepEntry]:
        """The same in asynchronous code."""
        return await self._app.aask(GetSteps(id=self.id))

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the job's terminal (`stdin="terminal"`)."""
        self._app.ask(Resize(id=self.id, rows=rows, columns=columns))

    async def aresize(self, rows: int, columns: int) -> None:
        await self._app.aask(Resize(id=self.id, rows=rows, columns=columns))

    def signal(self, name: SignalName) -> None:
        """Send a signal, such as "INT", to a job with a standard input: to what runs in its foreground."""
        self._app.ask(SendSignal(id=self.id, signal=name))

    async def asignal(self, name: SignalName) -> None:
        await self._app.aask(SendSignal(id=self.id, signal=name))

    def cancel(self) -> bool:
        """Stop the job, wherever it stands; whether there was anything to stop."""
        return bool(self._app.ask(Cancel(ids=[self.id])).changed)

    async def acancel(self) -> bool:
        return bool((await self._app.aask(Cancel(ids=[self.id]))).changed)

    def retry(self) -> bool:
        """Queue the job again if it has ended; whether it had."""
        return bool(self._app.ask(Rerun(ids=[self.id])).changed)

    async def aretry(self) -> bool:
        return bool((await self._app.aask(Rerun(ids=[self.id]))).changed)

    def delete(self, *, finished_only: bool = False) -> bool:
        """Delete the job and its record, whether there was one; if it runs, once it has stopped.

        `finished_only`: raise `Conflict` if it has not ended, instead of stopping it.
        """
        return bool(self._app.ask(Delete(ids=[self.id], finished_only=finished_only)).changed)

    async def adelete(self, *, finished_only: bool = False) -> bool:
        """The same in asynchronous code."""
        return bool((await self._app.aask(Delete(ids=[self.id], finished_only=finished_only))).changed)

    def annotate(self, **annotations: str | None) -> dict[str, str]:
        """Note something about the job, in whatever state it is; None removes a note. All that it has then."""
        return self._app.ask(Edit(id=self.id, annotations=annotations)).annotations

    async def aannotate(self, **annotations: str | None) -> dict[str, str]:
        """The same in asynchronous code."""
        return (await self._app.aask(Edit(id=self.id, annotations=annotations))).annotations

    def edit(self, **changes: Unpack[JobChanges]) -> None:
        """Edit the job while it waits; what is not named stays as it is. It keeps its place, but for another queue.

        `args` and `kwargs` are all arguments of its call from now on, checked as `enqueue` does; `payload` is for a
        handle that knows no task. Raises `Conflict` if the job does not wait any more.
        """
        self._app.ask(self._edit(changes))

    async def aedit(self, **changes: Unpack[JobChanges]) -> None:
        """The same in asynchronous code."""
        await self._app.aask(self._edit(changes))

    def _edit(self, changes: JobChanges) -> Edit:
        fields: dict[str, Any] = dict(changes)
        if unknown := fields.keys() - JobChanges.__annotations__.keys():
            known = ", ".join(sorted(JobChanges.__annotations__))
            raise Invalid(f"it cannot be edited; there are {known}", at=min(unknown))
        if (delay := fields.get("delay")) is not None:
            fields["delay"] = seconds(delay, at="delay")
        args, kwargs = fields.pop("args", None), fields.pop("kwargs", None)
        if args is None and kwargs is None:
            if "payload" in fields:
                fields["payload"] = Raw(_ANYTHING.pack_result(fields["payload"]))
            return Edit(id=self.id, **fields)
        if "payload" in fields:
            raise Invalid("give args and kwargs, or a payload, not both", at="payload")
        if self._plan is None:
            raise Invalid("this handle does not know the task: take task.job(id), or give a payload", at="args")
        return Edit(id=self.id, payload=Raw(self._plan.pack(tuple(args or ()), dict(kwargs or {}))), **fields)

    def finish(self, result: R | None = None) -> None:
        """End the running job with this result, in the place of its process, which is stopped if it still lives.

        Raises `Conflict` if the job does not run.
        """
        self._app.ask(self._finish(result))

    async def afinish(self, result: R | None = None) -> None:
        """The same in asynchronous code."""
        await self._app.aask(self._finish(result))

    def _finish(self, result: R | None) -> FinishByHand:
        plan = self._plan or _ANYTHING
        return FinishByHand(id=self.id, result=UNSET if result is None else Raw(plan.pack_result(result)))

    def fail(self, message: str = "") -> None:
        """End the running job as failed, for this reason; it is not run again. Raises `Conflict` if it does not run."""
        self._app.ask(FailByHand(id=self.id, message=message))

    async def afail(self, message: str = "") -> None:
        """The same in asynchronous code."""
        await self._app.aask(FailByHand(id=self.id, message=message))

    def lower_timeout(self, timeout: Duration) -> bool:
        """Lower the time limit of the running job; whether it had more time. If it has run for longer, it is stopped.

        Raises `Conflict` if it does not run.
        """
        return bool(self._app.ask(LowerTimeout(id=self.id, timeout=seconds(timeout, at="timeout"))).changed)

    async def alower_timeout(self, timeout: Duration) -> bool:  # noqa: ASYNC109 - it is the limit of the job
        """The same in asynchronous code."""
        return bool((await self._app.aask(LowerTimeout(id=self.id, timeout=seconds(timeout, at="timeout")))).changed)

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)


def _progress(record: Record) -> dict[str, Any] | None:
    return None if record.progress is None else asdict(record.progress)


def _anything() -> Any: ...


_ANYTHING = CallSignature(_anything)


def _until(timeout: Duration | None) -> float | None:
    return None if timeout is None else _clock.monotonic() + seconds(timeout, at="timeout")


def _check(id: str, until: float | None, timeout: Duration | None, state: State) -> None:
    if until is not None and timeout is not None and _clock.monotonic() >= until:
        within = f"{seconds(timeout, at='timeout'):g} s"
        raise TimeoutError(f"job {id} has not ended within {within}, it is still {state}: ask again, or cancel it")
