"""`windlass schedules`: jobs that are made at certain times."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated

import msgspec
from cyclopts import Parameter
from msgspec import Raw
from msgspec.structs import replace

from windlass.cli import console, values
from windlass.cli.options import option, seconds
from windlass.cli.resources import Resource, listing, pause_text, resource_app, run
from windlass.cli.target import HERE, Target, open_queue
from windlass.cli.terminal import Column
from windlass.model.duration import DAY
from windlass.model.job import JSON
from windlass.model.names import DEFAULT_QUEUE
from windlass.model.new_job import NOTHING, NewJob
from windlass.model.operations import (
    GetSchedule,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    RunSchedule,
    Schedules,
)
from windlass.model.schedule import CatchUp, NewSchedule, Overlap, Schedule, ScheduleCard, ScheduleRun


def _columns(cards: Sequence[ScheduleCard], now: datetime) -> list[Column]:
    columns = [Column("name", lambda card: card.name)]
    if len({card.tenant for card in cards}) > 1:
        columns.append(Column("tenant", lambda card: card.tenant))
    return [
        *columns,
        Column("when", times_text),
        Column("task", lambda card: card.job.task),
        Column("next", lambda card: console.ago(card.next[0], now) if card.next else ""),
        Column("last", lambda card: _run_text(card.runs[0], now) if card.runs else "never"),
        Column("from", _origin),
        Column("", lambda card: "paused" if card.paused else ""),
    ]


def times_text(schedule: Schedule) -> str:
    if schedule.every is not None:
        return f"every {console.span(schedule.every)}"
    return f"{schedule.cron} {schedule.tz}"


def _origin(card: ScheduleCard) -> str:
    return f"{card.app}, edited" if card.edited else card.app or "run time"


def _run_text(one: ScheduleRun, now: datetime) -> str:
    what = one.state or (one.note if one.job is None else "its record is gone")
    return f"{console.ago(one.tick, now)}: {what}"


def _readable(card: ScheduleCard) -> ScheduleCard:
    """With the payload of its job in JSON."""
    payload = values.readable(card.job.payload, card.job.content_type)
    return replace(card, job=replace(card.job, payload=Raw(msgspec.json.encode(payload)), content_type=JSON))


def _print(name: str, card: ScheduleCard, _: datetime, to: Callable[[str], None]) -> None:
    to(f"schedule {name}: task {card.job.task}, {times_text(card)}")
    if card.paused:
        console.note(f"  {pause_text(card)}")
    console.note(f"  overlap {card.overlap}, catch up {card.catch_up}, from {_origin(card)}, {card.skipped} skipped")
    for tick in card.next:
        console.note(f"  next  {tick.astimezone():%Y-%m-%d %H:%M:%S}")
    for one in card.runs:
        what = "  ".join(filter(None, [one.job, one.state, one.note, *_times_of(one)]))
        console.note(f"  run   {one.tick.astimezone():%Y-%m-%d %H:%M:%S}  {what}")


def _times_of(one: ScheduleRun) -> Iterator[str]:
    """How late its job began, how long it took, and whether its record is gone."""
    if one.gone:
        yield "its record is gone"
    if one.started_at is None:
        return
    if one.attempt > 1:
        yield f"run {one.attempt}"
    elif not one.joined:
        yield f"{console.span((one.started_at - one.tick).total_seconds())} late"
    if one.finished_at is not None:
        yield f"took {console.span((one.finished_at - one.started_at).total_seconds())}"


schedules = resource_app(
    Resource(
        name="schedules",
        help={
            "ls": "List schedules, with their next tick and last run.",
            "show": "Show a schedule, its next five ticks and its last fifteen runs.",
            "rm": "Remove a schedule. One that code declares and that was edited goes back to its declaration.",
            "pause": """Pause a schedule: its ticks make no jobs.

    For example:
      windlass schedules pause nightly --for 2h --why "the bank is down"
    """,
            "resume": "Resume a schedule, from its next tick on.",
        },
        ls=listing(Schedules),
        columns=_columns,
        empty="no schedules; `windlass schedules set` makes one, @app.cron declares one",
        show=GetSchedule,
        rm=RemoveSchedule,
        pause=lambda name, pause: PauseSchedule(name=name, pause=pause),
        readable=_readable,
        print_one=_print,
        pausing_creates=False,
    )
)


@schedules.command(name="set")
async def set_(
    name: Annotated[str, Parameter(name="NAME", help="Its name.")],
    task: Annotated[str, Parameter(name="TASK", help="The task that its jobs run.")],
    payload: Annotated[
        str | None, Parameter(name="PAYLOAD", help="The payload of its jobs, as with `enqueue`.")
    ] = None,
    /,
    *,
    cron: Annotated[str | None, option("FIELDS", "Minute, hour, day, month, weekday: '0 3 * * *'.")] = None,
    every: Annotated[float | None, option("TIME", "The time between two ticks: 10s, 1h.", read=seconds)] = None,
    tz: Annotated[str, option("ZONE", "The time zone of --cron (UTC): Europe/Rome.")] = "UTC",
    queue: Annotated[str | None, option("NAME", "The queue of its jobs (the task's own).", "--queue", "-q")] = None,
    overlap: Annotated[
        Overlap, option("HOW", "While an earlier job is pending: skip, queue or replace (skip).")
    ] = "skip",
    catch_up: Annotated[CatchUp, option("HOW", "Missed ticks make a job: skip, once or all (once).")] = "once",
    jitter: Annotated[float, option("TIME", "Start each job up to so much later.", read=seconds)] = 0.0,
    target: Target = HERE,
) -> None:
    """Make jobs of a task at certain times. Workers and servers make them; nothing else has to run.

    For example:
      windlass schedules set nightly backup --cron "0 3 * * *" --tz Europe/Rome
      windlass schedules set ping check '{"host": "a"}' --every 30s
    """
    given = NOTHING if payload is None else values.payload(payload)
    job = NewJob(task=task, payload=given, queue=queue or DEFAULT_QUEUE)
    new = NewSchedule(
        cron=cron, every=every, tz=tz, job=job, overlap=overlap, catch_up=catch_up, jitter=min(jitter, 366 * DAY)
    )
    await run(PutSchedule(name=name, schedule=new), target, partial(_print, name), readable=_readable, create=True)


@schedules.command(name="run")
async def run_(name: Annotated[str, Parameter(name="NAME", help="Its name.")], /, *, target: Target = HERE) -> None:
    """Make the job of a schedule now, beside its ticks, and print its id."""
    async with open_queue(target) as queue:
        accepted = await queue(RunSchedule(name=name))
    if target.json:
        console.write_json(accepted)
    else:
        console.write(accepted.id)
