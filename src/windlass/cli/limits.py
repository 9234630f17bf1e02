"""`windlass limits` and `windlass tasks`: limits on matching jobs, and pauses of tasks.

`set` reads the options of a limit; the other commands are derived from the operations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated

import msgspec
from cyclopts import Parameter
from msgspec.structs import replace
from rich.text import Text

from windlass.cli import console, terminal, values
from windlass.cli.options import option
from windlass.cli.resources import Resource, listing, pause_text, resource_app, run
from windlass.cli.target import HERE, Target
from windlass.cli.terminal import Column
from windlass.model.errors import Invalid
from windlass.model.limit import Limit, NewLimit, Pause, Rate, Wanted, Which, read_rate
from windlass.model.operations import (
    GetLimit,
    GetTask,
    LimitBucket,
    LimitCard,
    Limits,
    PauseLimit,
    PauseTask,
    PutLimit,
    RemoveLimit,
    TaskCard,
    TaskEntry,
    Tasks,
)

LIMIT = Parameter(name="LIMIT", help="The name of the limit.")
TASK = Parameter(name="TASK", help="The name of the task.")


# Limits


def limit_line(limit: Limit) -> str:
    """A limit in one line."""
    running = f"at most {limit.running} at once" if limit.running else ""
    starts = f"at most {_rate(limit.rate)}" if limit.rate else ""
    bounds = " and ".join(part for part in (running, starts) if part)
    each = f" for each {limit.key}" if limit.key else ""
    pause = pause_text(limit)
    return f"limit {limit.name}: {bounds}{each}, of jobs with {_which(limit.match)}{f'; {pause}' if pause else ''}"


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return ""
    return f"{rate.count} in {rate.per:g} s{f', burst {rate.burst}' if rate.burst else ''}"


def _which(which: Which) -> str:
    return "anything" if which == Which() else msgspec.json.encode(which).decode()


def _print_limit(_: str, card: LimitCard, now: datetime, to: Callable[[str], None]) -> None:
    to(limit_line(card))
    if card.buckets:
        terminal.stdout().print(terminal.Table(_bucket_columns(now), card.buckets))
    if card.sorting:
        console.note("a worker or server is still sorting the jobs that waited before; they start after that")


def _bucket_columns(now: datetime) -> list[Column]:
    def free(bucket: LimitBucket) -> str:
        return "" if bucket.free_at is None else console.ago(bucket.free_at, now)

    return [
        Column("bucket", lambda bucket: bucket.key or ""),
        Column("running", lambda bucket: str(bucket.running), right=True),
        Column("waiting", lambda bucket: str(bucket.waiting), right=True),
        Column("free", free),
    ]


LIMITS = Resource(
    name="limits",
    help={
        "ls": "List limits.",
        "show": "Show a limit and the state of its buckets.",
        "rm": "Remove a limit.",
        "pause": "Pause a limit: none of its jobs starts.",
        "resume": "Resume a limit: its jobs start again.",
    },
    argument=LIMIT,
    ls=listing(Limits),
    columns=lambda _found, _now: (
        Column("limit", lambda limit: limit.name),
        Column("at once", lambda limit: str(limit.running or ""), right=True),
        Column("starts", lambda limit: _rate(limit.rate)),
        Column("each", lambda limit: limit.key or ""),
        Column("of jobs with", lambda limit: _which(limit.match)),
        Column("", pause_text),
    ),
    empty="no limits; `windlass limits set` creates one",
    show=GetLimit,
    rm=RemoveLimit,
    pause=lambda name, pause: PauseLimit(name=name, pause=pause),
    print_one=_print_limit,
    pausing_creates=False,
)

limits = resource_app(LIMITS)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """A limit: the fields of `NewLimit`, of its rate and of its match."""

    running: Annotated[int | None, option("N", "At most N jobs run at once.")] = None
    rate: Annotated[str | None, option("N/TIME", "At most N jobs start per TIME: 100/1m.")] = None
    burst: Annotated[int | None, option("N", "After a quiet time N jobs may start at once, then evenly.")] = None
    key: Annotated[str | None, option("KEY", "A bucket for each value of tenant, queue, task or payload.FIELD.")] = None
    task: Annotated[str | None, option("NAME", "Only jobs of this task.")] = None
    queue: Annotated[str | None, option("NAME", "Only jobs in this queue.", "--queue", "-q")] = None
    tag: Annotated[list[str] | None, option("TAG", "Only jobs with this tag.")] = None
    payload: Annotated[
        list[str] | None,
        option("FIELD=VALUE", 'Only jobs with this payload; VALUE may be a test: {"min": 3}.'),
    ] = None
    match: Annotated[str | None, option("JSON", 'The match as JSON: {"any": [{"task": "a"}, {"task": "b"}]}.')] = None


NO_LIMIT = LimitOptions()


@limits.command(name="set")
async def put(name: Annotated[str, LIMIT], /, *, options: LimitOptions = NO_LIMIT, target: Target = HERE) -> None:
    """Create or replace a limit. It holds at once, for waiting jobs too.

    For example:
      windlass limits set mailer --task send_mail --running 5
      windlass limits set api --task call_api --rate 100/1m --key payload.customer
    """
    rate = _read_rate(options.rate, options.burst)
    if options.running is None and rate is None:
        bounds = "how many may run at once (--running N) or start per time (--rate N/TIME)"
        raise Invalid(f"a limit says {bounds}", at="LIMIT")
    limit = NewLimit(match=_read_which(options), running=options.running, rate=rate, key=options.key)
    await run(PutLimit(name=name, limit=limit), target, partial(_print_limit, name), create=True)


def _read_which(options: LimitOptions) -> Which:
    conditions = dict(map(_condition, options.payload or []))
    which = Which(task=options.task, queue=options.queue, tag=options.tag or [], payload=conditions)
    if options.match is None:
        return which
    if which != Which():
        raise Invalid("give --match, or --task, --queue, --tag and --payload, not both", at="--match")
    try:
        return msgspec.json.decode(options.match, type=Which)
    except msgspec.MsgspecError as fault:
        raise Invalid(f"this is not a match: {fault}", at="--match") from None


def _condition(text: str) -> tuple[str, Wanted]:
    field, equals, wanted = text.partition("=")
    if not equals or not field:
        raise Invalid(f"{text!r} is not FIELD=VALUE, such as order.id=7", at="--payload")
    try:
        return field, msgspec.convert(values.read(wanted), type=Wanted)
    except msgspec.ValidationError as fault:
        raise Invalid(f"{wanted!r} is neither a single value nor a test: {fault}", at="--payload") from None


def _read_rate(text: str | None, burst: int | None) -> Rate | None:
    if text is None:
        if burst is not None:
            raise Invalid("--burst needs --rate: --rate 100/1m --burst 10", at="--burst")
        return None
    return replace(read_rate(text, at="--rate"), burst=burst)


# Tasks


def _print_task(task: str, found: Pause, _: datetime, to: Callable[[str], None]) -> None:
    to(f"task {task}: {pause_text(found) or 'not paused'}")
    if isinstance(found, TaskCard) and found.options is not None:
        for name, value in msgspec.to_builtins(found.options).items():
            to(f"  {name}  {console.to_json(value)}")


def _task_columns(found: Sequence[TaskEntry], _: datetime) -> list[Column]:
    tenants = [Column("tenant", lambda one: one.tenant)] if len({one.tenant for one in found}) > 1 else []
    return [
        *tenants,
        Column("task", lambda one: one.task),
        Column("queue", lambda one: one.options.queue if one.options else ""),
        Column("", lambda one: Text(pause_text(one) if one.paused else "", style="yellow")),
    ]


TASKS = Resource(
    name="tasks",
    help={
        "ls": "List the tasks that are paused, or whose options a worker has registered.",
        "show": "Show whether a task is paused, and the options that its last worker registered.",
        "pause": """Pause a task in all its queues: none of its jobs starts.

    For example:
      windlass tasks pause charge_card --why "the bank is down"
    """,
        "resume": "Resume a task: its jobs start again.",
    },
    argument=TASK,
    key="task",
    ls=listing(Tasks),
    columns=_task_columns,
    empty="no task is paused, and no worker has registered options",
    show=GetTask,
    pause=lambda task, pause: PauseTask(task=task, pause=pause),
    print_one=_print_task,
)

tasks = resource_app(TASKS)
