"""`windlass jobs ls|count|show|result|tail`: look at jobs. What changes them is in `acting`."""

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from cyclopts import App, Parameter, validators
from msgspec import UNSET, Raw
from rich.text import Text

from windlass.cli import acting, following, saying, values
from windlass.cli.card import card, wait
from windlass.cli.choosing import ANY_JOB, Chosen
from windlass.cli.place import HERE, OPTIONS, Place, Queue, opened
from windlass.model import events
from windlass.model.errors import Invalid
from windlass.model.estimate import Estimate
from windlass.model.events import Event
from windlass.model.job import FINISHED, Chunk, Job, State
from windlass.model.match import Match
from windlass.model.names import DEFAULT_QUEUE, JobKey, key_of
from windlass.model.operations import MOST_AT_ONCE, Count, GetEstimate, GetResult, List, Show
from windlass.system import SystemClock

SHOWN = 50
"""Rows of a table, unless somebody wants more."""

MOST_ESTIMATED = 50
"""Waiting jobs of a table that are asked how long they will wait; the others only say that they do."""

JobId = Annotated[str, Parameter(name="ID", help="The id of a job.")]

WAITING = frozenset({State.BLOCKED, State.SCHEDULED, State.QUEUED})

jobs = App(name="jobs", help="Look at jobs, send to them, cancel, retry and delete them.", group_parameters=OPTIONS)


@jobs.command
async def ls(
    *,
    chosen: Chosen = ANY_JOB,
    limit: Annotated[
        int | None,
        Parameter(metavar="N", help="At most so many (50; with --json all).", validator=validators.Number(gte=1)),
    ] = None,
    oldest_first: Annotated[bool, Parameter(negative="", help="In order of arrival.")] = False,
    place: Place = HERE,
) -> None:
    """List jobs, queue by queue, the newest first.

    For example:
      windlass jobs ls --state failed --created-after 2h
      windlass jobs ls --task render --payload scene=7
      windlass jobs ls --state finished --json | jq -r .id
    """
    match = chosen.match()
    order: Literal["oldest", "newest"] = "oldest" if oldest_first else "newest"
    async with opened(place) as queue:
        if place.json:
            async for job in _listed(queue, match, limit, order):
                saying.write_json(job)
            return
        most = SHOWN if limit is None else limit
        found = [job async for job in _listed(queue, match, most, order)]
        total = len(found) if len(found) < most else (await queue(Count(match=match))).count
        waits = {
            key_of(job): await queue.service(GetEstimate(tenant=job.tenant, id=job.id))
            for job in _waiting(found)[:MOST_ESTIMATED]
        }
    _print_table(found, waits)
    if total > len(found):
        saying.remark(f"{saying.plural(total - len(found), 'more job')}; --limit shows more, --json shows all")


async def _listed(
    queue: Queue, match: Match, most: int | None, order: Literal["oldest", "newest"]
) -> AsyncIterator[Job]:
    """Matching jobs, a page at a time."""
    after, left = None, most
    while left is None or left > 0:
        size = min(left or MOST_AT_ONCE, MOST_AT_ONCE)
        page = await queue(List(match=match, limit=size, after=after, order=order))
        for job in page.jobs:
            yield job
        if (after := page.next) is None:
            return
        left = None if left is None else left - len(page.jobs)


def _waiting(found: list[Job]) -> list[Job]:
    return [job for job in found if job.state in WAITING]


def _print_table(found: list[Job], waits: dict[JobKey, Estimate]) -> None:
    if not found:
        saying.remark("no jobs")
        return
    now = SystemClock().now()
    # Every column costs room: tenant and queue have one where there is something to tell apart.
    tenants = len({job.tenant for job in found}) > 1
    queues = any(job.queue != DEFAULT_QUEUE for job in found)
    made = saying.Table("id", "state", *["tenant"] * tenants, "task", *["queue"] * queues, "age", "")
    for job in found:
        age = saying.span(max(0.0, (now - job.created_at).total_seconds()))
        place = [*[job.tenant] * tenants, job.task, *[job.queue] * queues]
        said = _remark_on(job, now)
        waiting = waits.get(key_of(job))
        if waiting is not None and waiting.why is not None:  # else it has started meanwhile
            said = f"waits {wait(waiting)}"
        made.add(job.id, saying.state(job.state), *place, age, Text(said, style="dim"))
    saying.paper().print(made)


def _remark_on(job: Job, now: datetime) -> str:
    if job.state is State.FAILED:
        return following.message(job.error) if job.error else str(job.reason or "")
    if job.state is State.SUCCEEDED and job.started_at and job.finished_at:
        return f"took {saying.span((job.finished_at - job.started_at).total_seconds())}"
    if job.state is State.CANCELLED and job.finished_at:
        return saying.ago(job.finished_at, now)
    return following.standing(job)


@jobs.command
async def count(*, chosen: Chosen = ANY_JOB, place: Place = HERE) -> None:
    """Count jobs.

    For example:
      windlass jobs count --state queued --queue mail
    """
    async with opened(place) as queue:
        number = await queue(Count(match=chosen.match()))
    if place.json:
        saying.write_json(number)
    else:
        saying.write(str(number.count))


@jobs.command
async def show(id: JobId, /, *, place: Place = HERE) -> None:
    """Show one job: its terms, its times, its payload, its errors.

    For example:
      windlass jobs show 01936f2e-…
      windlass jobs show 01936f2e-… --json | jq .payload
    """
    async with opened(place) as queue:
        job = await queue(Show(id=id, payload=True))
        waits = await queue(GetEstimate(id=id)) if job.state in WAITING else Estimate()
    payload = values.spoken(job.payload, job.content_type) if isinstance(job.payload, Raw) else None
    if place.json:
        known = msgspec.to_builtins(msgspec.structs.replace(job, payload=UNSET), builtin_types=(datetime,))
        saying.write_json({**known, "estimate": waits.seconds, "payload": payload})
    else:
        saying.paper().print(card(job, waits, payload, SystemClock().now()))


@jobs.command
async def result(
    id: JobId,
    /,
    *,
    wait: Annotated[
        list[str] | None,
        Parameter(metavar="[TIME]", consume_multiple=(0, 1), help="Wait for the end, for ever or so long."),
    ] = None,
    place: Place = HERE,
) -> int:
    """Print the result of a job, as JSON.

    A job that failed exits 1, one that has not ended exits 75.

    For example:
      windlass jobs result 01936f2e-… --wait 1m
    """
    most = 0.0 if wait is None else following.patience(wait)
    async with opened(place) as queue:
        if most == 0:
            found = await queue(GetResult(id=id))
            if found.state not in FINISHED:
                raise following.Unfinished(f"job {id} is {found.state}; --wait waits for its end")
        else:
            found = await following.outcome(queue, id, most)
    return following.tell(id, found, json=place.json)


@jobs.command
async def tail(
    id: Annotated[str | None, Parameter(name="ID", help="The id of a job; without one, all that match.")] = None,
    /,
    *,
    chosen: Chosen = ANY_JOB,
    place: Place = HERE,
) -> int:
    """Follow a job until it has ended: its states, its progress, and what it puts out.

    A job that did not succeed exits 1. Output of earlier is shown too, as far as it is kept. Without an id, what
    happens to all matching jobs is told, from now on and for ever.

    For example:
      windlass jobs tail 01936f2e-…
      windlass jobs tail --task render
    """
    if id is not None and chosen != ANY_JOB:
        raise Invalid("give the id of a job, or say which jobs are meant, not both", at="ID")
    async with opened(place) as queue:
        if id is None:
            await _watch(queue, chosen.match(), json=place.json)
        return await _follow(queue, str(id), json=place.json)


async def _watch(queue: Queue, match: Match, *, json: bool) -> None:
    async with aclosing(queue.watch(match)) as stream:
        async for event in stream:
            if json:
                saying.write(events.line(event).decode().rstrip())
            else:
                saying.paper().print(_happened(event))
            sys.stdout.flush()  # whoever reads it in a pipe waits for it


def _happened(event: Event) -> Text:
    """What has happened to one of many jobs."""
    if event.gone is not None:
        gone = event.gone
        words = [Text(" " * 8), Text(f"{event.name:9}"), Text(gone.id, style="dim"), Text(gone.task)]
        return Text("  ").join([*words, Text(f"was {gone.state}")])
    if event.job is None:
        return Text("some events were missed", style="yellow")
    job = event.job
    clock = Text(job.updated_at.astimezone().strftime("%H:%M:%S"), style="dim")
    said = _remark_on(job, job.updated_at) if job.state in FINISHED else following.standing(job)
    name = Text(f"{event.name:9}", style=saying.STYLES.get(job.state, ""))
    return Text("  ").join([clock, name, Text(job.id, style="dim"), Text(job.task), Text(said)])


async def _follow(queue: Queue, id: str, *, json: bool) -> int:
    state = None
    async for new in following.changes(queue, id):
        if isinstance(new, Job):
            state = new.state
        if json:
            saying.write_json(new if isinstance(new, Job) else Said.of(new))
        elif isinstance(new, Job):
            saying.paper().print(_event(new))
        else:
            saying.paper().print(_lines(new), soft_wrap=True)
    return 0 if state is State.SUCCEEDED else 1


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of output, for programs."""

    output: str
    stream: str
    n: int
    attempt: int
    at: datetime

    @classmethod
    def of(cls, chunk: Chunk) -> "Said":
        text = chunk.data.decode(errors="replace")
        return cls(output=text, stream=chunk.stream, n=chunk.n, attempt=chunk.attempt, at=chunk.at)


def _lines(chunk: Chunk) -> Text:
    """What a job put out, line by line behind the name of its stream."""
    lines = chunk.data.decode(errors="replace").splitlines()
    style = "red" if chunk.stream == "stderr" else ""
    name = Text(f"  {chunk.stream:6} ", style="dim")
    return Text("\n").join(Text.assemble(name, (line, style)) for line in lines)


def _event(job: Job) -> Text:
    """What is new of a job, and since when."""
    moment = job.updated_at
    said = following.standing(job)
    if job.state in FINISHED:
        said = _remark_on(job, moment)
    elif job.state is State.RUNNING and job.progress is None:
        said += f", worker {job.worker}" if job.pid is None else f", process {job.pid} on {job.node or 'this host'}"
    clock = Text(moment.astimezone().strftime("%H:%M:%S"), style="dim")
    return Text("  ").join([clock, saying.state(job.state), Text(said)])


for command in (acting.send, acting.cancel, acting.retry, acting.rm):
    jobs.command(command)
