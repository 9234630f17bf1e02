"""`windlass limits ls|show|set|rm|pause|resume`: at most so many, among jobs that match."""

from collections.abc import Callable
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from windlass.cli import saying, values
from windlass.cli.pausing import For, Why, paused, told
from windlass.cli.place import HERE, OPTIONS, Place, opened
from windlass.model import duration
from windlass.model.errors import Invalid
from windlass.model.limit import Limit, NewLimit, Pause, Rate, Wanted, Which
from windlass.model.operations import GetLimit, LimitCard, Limits, Operation, PauseLimit, PutLimit, RemoveLimit
from windlass.system import SystemClock

limits = App(name="limits", help="Bound how many jobs run, or start in a time.", group_parameters=OPTIONS)

Name = Annotated[str, Parameter(name="LIMIT", help="Its name.")]


@limits.command
async def ls(*, place: Place = HERE) -> None:
    """List limits."""
    async with opened(place) as queue:
        found = await queue(Limits())
    if place.json:
        saying.write_json(found)
        return
    if not found:
        saying.remark("no limits; `windlass limits set` makes one")
        return
    table = saying.Table("limit", "at once", "starts", "each", "of jobs with", "", right=("at once",))
    for limit in found:
        running = str(limit.running or "")
        table.add(limit.name, running, _rate(limit.rate), limit.key or "", _which(limit.match), told(limit))
    saying.paper().print(table)


@limits.command
async def show(name: Name, /, *, place: Place = HERE) -> None:
    """Show one limit, and how its buckets stand."""
    await _ask(GetLimit(name=name), place, say=saying.write)


@limits.command(name="set")
async def put(
    name: Name,
    /,
    *,
    running: Annotated[int | None, Parameter(metavar="N", help="At most so many run at once.")] = None,
    rate: Annotated[str | None, Parameter(metavar="N/TIME", help="At most so many start in a time: 100/1m.")] = None,
    burst: Annotated[
        int | None, Parameter(metavar="N", help="So many may start at once after a quiet time, then evenly.")
    ] = None,
    key: Annotated[
        str | None, Parameter(metavar="KEY", help="A bucket for each value of tenant, queue, task or payload.FIELD.")
    ] = None,
    task: Annotated[str | None, Parameter(metavar="NAME", help="Only jobs of this task.")] = None,
    queue: Annotated[str | None, Parameter(name=("--queue", "-q"), metavar="NAME", help="Only in this queue.")] = None,
    tag: Annotated[list[str] | None, Parameter(metavar="TAG", help="Only with this tag.")] = None,
    payload: Annotated[
        list[str] | None,
        Parameter(metavar="FIELD=VALUE", help='Only with this in the payload; VALUE may be a test: {"min": 3}.'),
    ] = None,
    match: Annotated[
        str | None, Parameter(metavar="JSON", help='Which jobs, in full: {"any": [{"task": "a"}, {"task": "b"}]}.')
    ] = None,
    place: Place = HERE,
) -> None:
    """Bound jobs, in the place of any limit of that name. In force at once, for waiting jobs too.

    For example:
      windlass limits set mailer --task send_mail --running 5
      windlass limits set api --task call_api --rate 100/1m --key payload.customer
    """
    which = Which(task=task, queue=queue, tag=tag or [], payload=dict(_condition(text) for text in payload or []))
    if match is not None:
        if which != Which():
            raise Invalid("give --match, or --task, --queue, --tag and --payload, not both", at="--match")
        which = _read(match)
    limit = NewLimit(match=which, running=running, rate=_read_rate(rate, burst), key=key)
    await _ask(PutLimit(name=name, limit=limit), place, create=True)


@limits.command
async def rm(name: Name, /, *, place: Place = HERE) -> None:
    """Bound these jobs no more."""
    async with opened(place) as queue:
        await queue(RemoveLimit(name=name))


@limits.command
async def pause(name: Name, /, *, how_long: For = None, why: Why = "", place: Place = HERE) -> None:
    """Let no job of a limit start for a while."""
    await _ask(PauseLimit(name=name, pause=paused(how_long, why)), place)


@limits.command
async def resume(name: Name, /, *, place: Place = HERE) -> None:
    """Let the jobs of a limit start again."""
    await _ask(PauseLimit(name=name, pause=Pause()), place)


async def _ask(
    operation: Operation[LimitCard],
    place: Place,
    *,
    create: bool = False,
    say: Callable[[str], None] = saying.remark,
) -> None:
    async with opened(place, create=create) as queue:
        card = await queue(operation)
    if place.json:
        saying.write_json(card)
        return
    say(describe(card))
    if card.buckets:
        now = SystemClock().now()
        table = saying.Table("bucket", "running", "waiting", "free", right=("running", "waiting"))
        for one in card.buckets:
            free = "" if one.free_at is None else saying.ago(one.free_at, now)
            table.add(one.key or "", str(one.running), str(one.waiting), free)
        saying.paper().print(table)
    if card.sorting:
        saying.remark("jobs that waited before are being sorted by a worker or server; those concerned wait meanwhile")


def describe(limit: Limit) -> str:
    """A limit in one line."""
    running = f"at most {limit.running} at once" if limit.running else ""
    starts = f"at most {_rate(limit.rate)}" if limit.rate else ""
    bounds = " and ".join(part for part in (running, starts) if part)
    each = f" for each {limit.key}" if limit.key else ""
    rest = told(limit)
    return f"limit {limit.name}: {bounds}{each}, of jobs with {_which(limit.match)}{f' ({rest})' if rest else ''}"


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return ""
    return f"{rate.count} in {rate.per:g} s{f', {rate.burst} at first' if rate.burst else ''}"


def _which(which: Which) -> str:
    return "anything" if which == Which() else msgspec.json.encode(which).decode()


def _read(text: str) -> Which:
    try:
        return msgspec.json.decode(text, type=Which)
    except msgspec.MsgspecError as fault:
        raise Invalid(f"this does not say which jobs: {fault}", at="--match") from None


def _condition(text: str) -> tuple[str, Wanted]:
    field, equals, wanted = text.partition("=")
    if not equals or not field:
        raise Invalid(f"{text!r} is not FIELD=VALUE", at="--payload")
    try:
        return field, msgspec.convert(values.read(wanted), type=Wanted)
    except msgspec.ValidationError as fault:
        raise Invalid(f"{wanted!r} is neither a single value nor a test: {fault}", at="--payload") from None


def _read_rate(text: str | None, burst: int | None) -> Rate | None:
    if text is None:
        if burst is not None:
            raise Invalid("a burst goes with a rate: --rate 100/1m --burst 10", at="--burst")
        return None
    count, slash, per = text.partition("/")
    if not slash or not count.isdecimal():
        raise Invalid(f"{text!r} is not N/TIME, such as 100/1m", at="--rate")
    seconds = duration.seconds(per if per[:1].isdecimal() else f"1{per}", at="--rate")
    return Rate(count=int(count), per=seconds, burst=burst)
