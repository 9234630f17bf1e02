"""Schedules as a Python user declares and manages them: `@app.cron`, `@app.every`, `app.schedules`.

Turns calls into operations. Declared schedules travel with the registration of the app's workers; `app.schedules`
changes those that the queue has.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from windlass.call.options import Duration
from windlass.job_handle import Job
from windlass.management import until
from windlass.model.duration import seconds
from windlass.model.limit import Pause
from windlass.model.operations import (
    GetSchedule,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    RunSchedule,
    Schedules,
)
from windlass.model.schedule import CatchUp, NewSchedule, Overlap, ScheduleCard, check_schedule
from windlass.policy.schedule import next_tick
from windlass.system import SystemClock

if TYPE_CHECKING:
    from windlass.app import Task, Windlass

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

_clock = SystemClock()


class ScheduleOptions(TypedDict, total=False):
    """What may be said of a schedule beside its times."""

    args: Sequence[Any]
    """The positional arguments of each call."""
    kwargs: Mapping[str, Any]
    overlap: Overlap
    """What a tick does while the job of an earlier one is pending: "skip" it, "queue" another, or "replace" it."""
    catch_up: CatchUp
    """Which of the ticks that no process was there for make a job: none ("skip"), the last ("once"), or "all"."""
    jitter: Duration
    """Each job starts up to so much later than its tick."""
    start: datetime
    end: datetime


class Scheduled(Protocol):
    """What `@app.cron(…)` and `@app.every(…)` make of a task, or of a function that becomes one."""

    @overload
    def __call__(self, task: "Task[P, R, C]", /) -> "Task[P, R, C]": ...

    @overload
    def __call__(self, task: Callable[P, C], /) -> "Task[P, C, C]": ...


def schedule_of(
    task: "Task[..., Any, Any]", *, cron: str | None, every: Duration | None, tz: str, options: ScheduleOptions
) -> NewSchedule:
    """The schedule of a task's calls; its arguments and times are checked here."""
    new = NewSchedule(
        cron=cron,
        every=None if every is None else seconds(every, at="every"),
        tz=tz,
        start=options.get("start"),
        end=options.get("end"),
        job=task.new_job(tuple(options.get("args", ())), dict(options.get("kwargs", {})), named=False),
        overlap=options.get("overlap", "skip"),
        catch_up=options.get("catch_up", "once"),
        jitter=seconds(options.get("jitter", 0.0), at="jitter"),
        exact=True,
    )
    check_schedule(new)
    next_tick(new, _clock.now())
    return new


class ScheduleHandles:
    """The schedules that a queue has: those that apps declare, and those made at run time."""

    def __init__(self, app: "Windlass") -> None:
        self._app = app

    def __getitem__(self, name: str) -> "ScheduleHandle":
        return ScheduleHandle(self._app, name)

    def all(self) -> list[ScheduleCard]:
        """All of them, each with its next ticks and last runs."""
        return self._app.ask(Schedules())

    async def aall(self) -> list[ScheduleCard]:
        """The same in asynchronous code."""
        return await self._app.aask(Schedules())

    def set(
        self,
        name: str,
        task: "Task[..., Any, Any]",
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleCard:
        """Make jobs of a task at these times, in the place of any schedule of that name."""
        new = schedule_of(task, cron=cron, every=every, tz=tz, options=options)
        return self._app.ask(PutSchedule(name=name, schedule=new))

    async def aset(
        self,
        name: str,
        task: "Task[..., Any, Any]",
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleCard:
        """The same in asynchronous code."""
        new = schedule_of(task, cron=cron, every=every, tz=tz, options=options)
        return await self._app.aask(PutSchedule(name=name, schedule=new))


class ScheduleHandle:
    """One schedule, by its name."""

    def __init__(self, app: "Windlass", name: str) -> None:
        self._app = app
        self.name = name

    def show(self) -> ScheduleCard:
        """Its times, its next ticks and its last runs."""
        return self._app.ask(GetSchedule(name=self.name))

    async def ashow(self) -> ScheduleCard:
        return await self._app.aask(GetSchedule(name=self.name))

    def pause(self, time: Duration | None = None, *, why: str = "") -> ScheduleCard:
        """Make no jobs, for so long or until it is resumed."""
        return self._app.ask(self._paused(time, why))

    async def apause(self, time: Duration | None = None, *, why: str = "") -> ScheduleCard:
        return await self._app.aask(self._paused(time, why))

    def resume(self) -> ScheduleCard:
        """Make jobs again, from the next tick on."""
        return self._app.ask(PauseSchedule(name=self.name, pause=Pause()))

    async def aresume(self) -> ScheduleCard:
        return await self._app.aask(PauseSchedule(name=self.name, pause=Pause()))

    def run(self) -> Job[Any]:
        """Make its job now, beside its ticks."""
        return Job(self._app.ask(RunSchedule(name=self.name)).id, self._app, None, created=True)

    async def arun(self) -> Job[Any]:
        return Job((await self._app.aask(RunSchedule(name=self.name))).id, self._app, None, created=True)

    def remove(self) -> None:
        """Make these jobs no more."""
        self._app.ask(RemoveSchedule(name=self.name))

    async def aremove(self) -> None:
        await self._app.aask(RemoveSchedule(name=self.name))

    def _paused(self, time: Duration | None, why: str) -> PauseSchedule:
        return PauseSchedule(name=self.name, pause=Pause(paused=True, until=until(time), why=why))

    def __repr__(self) -> str:
        return f"<schedule {self.name}>"
