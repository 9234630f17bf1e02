"""`current`: what a task knows of itself while it runs, and what it may say.

The run is kept in a context variable, so that every thread and coroutine of a context sees its own.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from windlass.call.values import encode_value
from windlass.model.new_job import NewJob
from windlass.model.output import Progress, Stream
from windlass.model.wire import encodable


class RunningJob(Struct, frozen=True, kw_only=True):
    """The job as its own task sees it."""

    id: str
    task: str
    queue: str
    tenant: str
    attempt: int
    """Which run this is, from 1."""
    priority: int = 0
    max_retry: int | None = 0
    tags: list[str] = []
    headers: dict[str, str] = {}
    created_at: datetime
    deadline: datetime | None = None
    """When it is stopped; null = it may run as long as it likes."""


class RunHooks(Protocol):
    """One run of a job: what a runner provides to `current`."""

    @property
    def jobs(self) -> list[RunningJob]:
        """All jobs that this call runs, in the order of its calls."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the job must stop."""
        ...

    @property
    def job(self) -> RunningJob: ...

    @property
    def files(self) -> dict[str, bytes]: ...

    @property
    def results(self) -> list[Any]: ...

    @property
    def folder(self) -> Path: ...

    def attach(self, path: str | os.PathLike[str], name: str | None) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def log(self, text: str) -> None: ...

    def print(self, stream: Stream, data: bytes) -> None: ...

    def emit(self, line: bytes) -> None: ...

    @property
    def offspring(self) -> Any:
        """What keeps account of the processes that it starts."""
        ...

    def input(self, timeout: float | None) -> bytes: ...

    async def ainput(self) -> bytes: ...

    def spawn(self, new: NewJob) -> str: ...

    @property
    def steps(self) -> Any:
        """Its durable steps."""
        ...


class Sendable(Protocol):
    """A task that can say what a call of it would be, without sending it."""

    def new_job(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, named: bool = True) -> NewJob: ...


running: ContextVar[RunHooks] = ContextVar("windlass_run")


class Current:
    """The job that this code runs for.

    In a plain call of a task there is none: what only reports or queues (`progress`, `log`, `emit`, `attach`,
    `spawn`) does nothing, `cancelled` is false, `files` and `results` are empty; what a job must give (`job`,
    `folder`, `input`) raises `RuntimeError`.
    """

    @property
    def job(self) -> RunningJob:
        """The job itself: id, task, queue, attempt, tags, headers, deadline …"""
        return _run().job

    @property
    def jobs(self) -> list[RunningJob]:
        """The jobs of a batch, in the order of the calls that the task got; `job` is the first of them."""
        return _run().jobs

    @property
    def files(self) -> dict[str, bytes]:
        """The files that came with the job, by name."""
        return _run().files if self else {}

    @property
    def results(self) -> list[Any]:
        """What the jobs in `after` returned, in their order, None for one that did not succeed.

        Only if the job asked for it: `using(after=…, with_results=…)`, or as a step of a workflow.
        """
        return _run().results if self else []

    @property
    def folder(self) -> Path:
        """A folder for this run alone, with the files that came with the job. It goes when the run ends, but files that
        are then in its folder `out` are kept with the job (`job.files()`).
        """
        return _run().folder

    def attach(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        """Keep a file with the job, as it is now: `job.files()` has it when the run has ended."""
        if self:
            _run().attach(path, name)

    @property
    def cancelled(self) -> bool:
        """Whether the job must stop. A long loop should check this now and then, and return."""
        return bool(self) and _run().cancelled

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report how far the job is; followers see it within a second."""
        whole = None if total is None else float(total)
        if self:
            _run().progress(Progress(done=float(done), total=whole, note=encodable(str(note)[:1000])))

    def log(self, *values: object, sep: str = " ") -> None:
        """Write a line to the job's own output, kept with the job and readable while it runs."""
        if self:
            _run().log(sep.join(map(str, values)))

    def emit(self, value: object) -> None:
        """Send a value to those who read `job.values()`, while the job runs and afterwards; at most 64 KiB as JSON."""
        if self:
            _run().emit(encode_value(value))

    def input(self, timeout: float | None = None) -> bytes:
        """The next message to this job; waits for it, without a timeout forever, else raises `TimeoutError`.

        Only where the task says `input=True`. An empty message is by custom the last one.
        """
        return _run().input(timeout)

    async def ainput(self) -> bytes:
        """The same in a coroutine."""
        return await _run().ainput()

    def inputs(self) -> Iterator[bytes]:
        """Message after message, until an empty one comes."""
        while data := self.input():
            yield data

    async def ainputs(self) -> AsyncIterator[bytes]:
        """The same in a coroutine."""
        while data := await self.ainput():
            yield data

    def spawn(self, task: Sendable, /, *args: Any, **kwargs: Any) -> str:
        """Queue another job together with the success of this one, and return its id.

        Nothing is queued if this one does not succeed; and if this one is run again, the other is still one job. In a
        plain call nothing is queued, and the id is empty.
        """
        if not self:
            return ""
        return _run().spawn(task.new_job(args, kwargs, named=False))

    def __bool__(self) -> bool:
        return running.get(None) is not None


def _run() -> RunHooks:
    try:
        return running.get()
    except LookupError:
        raise RuntimeError("windlass.current can be used only inside a task that a worker runs") from None


current = Current()
