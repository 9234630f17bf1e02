"""Schedules: which job is made at which times, and what happens to those times that cannot be kept.

Only the shapes. `policy.schedule` computes the times; the engine makes the jobs.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from windlass.model.duration import Seconds, Time
from windlass.model.errors import Invalid
from windlass.model.job import State
from windlass.model.names import Name
from windlass.model.new_job import NewJob

Overlap = Literal["skip", "queue", "replace"]
CatchUp = Literal["skip", "once", "all"]

LEAST_EVERY = 1.0
"""Seconds."""

MOST_RUNS = 15
"""Runs of a schedule that are remembered."""


class Timing(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """When a schedule makes jobs. Either `cron` or `every` is given."""

    cron: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Five fields (minute, hour, day, month, weekday), or six with seconds first, in the time zone `tz`."""
    every: Annotated[float, Meta(ge=LEAST_EVERY, le=366 * 86_400)] | None = None
    """Seconds between two ticks, counted from `start`, or else from 1970: `every` 60 ticks on the minute."""
    tz: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    """The time zone of `cron`, such as `Europe/Rome`."""
    start: Time | None = None
    """No tick before this."""
    end: Time | None = None
    """No tick after this."""


class NewSchedule(Timing, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A schedule as it is sent in."""

    job: NewJob
    """The job that each tick makes. Its id is derived from the schedule and the tick, so each tick makes one job."""
    overlap: Overlap = "skip"
    """What a tick does while the job of an earlier one is pending: makes none (`skip`), another one (`queue`), or
    cancels the earlier one and makes another (`replace`)."""
    catch_up: CatchUp = "once"
    """What becomes of ticks that no process was there for: none of them (`skip`), the last (`once`), or `all`."""
    jitter: Seconds = 0.0
    """Each job starts up to so many seconds after its tick, each after another time, so that not all start at once."""
    exact: bool = False
    """Whether the job is taken exactly as it is; otherwise options that it does not name are those of its task."""


class Schedule(NewSchedule, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as the queue keeps it."""

    name: Name
    tenant: str
    app: str = ""
    """The app whose code declares it; empty = it was made at run time."""
    edited: bool = False
    """Whether it was changed at run time and so differs from its declaration."""
    paused: bool = False
    """While it is, ticks make no jobs."""
    until: Time | None = None
    """When the pause ends by itself; null = until it is resumed by hand."""
    why: str = ""
    since: Time | None = None
    """When the pause began."""
    changed_at: Time
    """When its times were last changed, or a pause ended: earlier ticks are not made up for."""


class ScheduleRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a tick."""

    tick: Time
    """When it was due."""
    job: str | None = None
    """The job that it made or joined; null = none."""
    joined: bool = False
    """Whether it joined a unique job that was there already."""
    note: str = ""
    """Why it made none."""
    state: State | None = None
    """The state of the job now; of one whose record is gone, how it ended. Null = not known, or there was none."""
    attempt: int = 0
    """Which run of the job is the current or last one, from 1; 0 = it has not started."""
    started_at: Time | None = None
    """When that run started."""
    finished_at: Time | None = None
    """When the job ended; null while it is pending."""
    gone: bool = False
    """Whether the record of the job is gone; what is said of it was noted at a later tick."""


class ScheduleCard(Schedule, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule, when it will tick, and what became of its last ticks."""

    next: list[Time] = field(default_factory=list)
    """The next five ticks; none while it is paused without an end."""
    runs: list[ScheduleRun] = field(default_factory=list)
    """The last fifteen, newest first."""
    skipped: int = 0
    """Ticks so far that made no job."""


def check_schedule(schedule: NewSchedule) -> None:
    """Refuse what cannot be meant. The times themselves are checked where they are computed."""
    if (schedule.cron is None) == (schedule.every is None):
        raise Invalid("a schedule has either cron or every", at="cron")
    if schedule.start is not None and schedule.end is not None and schedule.end < schedule.start:
        raise Invalid("it ends before it starts", at="end")
    job = schedule.job
    for name in ("id", "key", "delay", "run_at"):
        if getattr(job, name) is not None:
            raise Invalid("the schedule decides this: leave it out", at=f"job.{name}")
    if job.after or job.yielding:
        raise Invalid(
            "a scheduled job waits for its time only: leave this out", at=f"job.{'after' if job.after else 'yielding'}"
        )
