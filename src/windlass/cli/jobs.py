"""`windlass jobs`: list, count, show and follow jobs, send to them, cancel, retry and delete them, end them by hand.

Commands that change several jobs need ids, options that select jobs, or `--all`: never all by accident.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from cyclopts import App, Parameter, validators
from msgspec import UNSET, Raw
from msgspec.structs import replace
from rich.text import Text

from windlass.cli import console, job_view, terminal, values
from windlass.cli.match_options import ANY_JOB, MatchOptions
from windlass.cli.options import flag, option, seconds
from windlass.cli.target import HERE, OPTIONS, Queue, Target, open_queue
from windlass.cli.terminal import Column
from windlass.model import duration, events
from windlass.model.errors import Conflict, Invalid
from windlass.model.estimate import Estimate
from windlass.model.events import Event
from windlass.model.job import FINISHED, Job, State
from windlass.model.match import Match
from windlass.model.names import DEFAULT_QUEUE, JobKey, check_file_name, key_of
from windlass.model.operations import (
    MOST_AT_ONCE,
    Cancel,
    Changed,
    Count,
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
    Selection,
    Send,
    Show,
)
from windlass.model.output import VALUES, Chunk, Stream

SHOWN = 50
"""Rows of a table without `--limit`."""

MOST_ESTIMATED = 50
"""Waiting jobs of a table whose wait is estimated; the others only show that they wait."""

WAITING = frozenset({State.BLOCKED, State.SCHEDULED, State.QUEUED})

JobId = Annotated[str, Parameter(name="ID", help="The id of the job.")]

jobs = App(name="jobs", help="List, show, cancel, retry and delete jobs.", group_parameters=OPTIONS)


def _moment(text: str, at: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)  # without a zone: local time
    except ValueError:
        raise Invalid(f"{text!r} is not a time: write 2027-01-31T12:00:00Z", at=at) from None


# Lists


@jobs.command
async def ls(
    *,
    match_options: MatchOptions = ANY_JOB,
    limit: Annotated[
        int | None, option("N", "Show at most N jobs (50; with --json all).", validator=validators.Number(gte=1))
    ] = None,
    oldest_first: Annotated[bool, flag("Sort by arrival, the oldest first.")] = False,
    target: Target = HERE,
) -> None:
    """List jobs, queue by queue, the newest first.

    For example:
      windlass jobs ls --state failed --created-after 2h
      windlass jobs ls --task render --payload scene=7
      windlass jobs ls --state finished --json | jq -r .id
    """
    most = limit or (None if target.json else SHOWN)
    async with open_queue(target) as queue:
        match = match_options.match(await queue.now())
        listed = queue.jobs(match, order="oldest" if oldest_first else "newest", most=most)
        if most is None or target.json:
            async for job in listed:
                console.write_json(job)
            return
        found = [job async for job in listed]
        total = len(found) if len(found) < most else (await queue(Count(match=match))).count
        waiting = [job for job in found if job.state in WAITING]
        estimates = {
            key_of(job): await queue.service(GetEstimate(tenant=job.tenant, id=job.id))
            for job in waiting[:MOST_ESTIMATED]
        }
        now = await queue.now()
    if not found:
        console.note("no jobs")
        return
    terminal.stdout().print(terminal.Table(_columns(found, estimates, now), found))
    if total > len(found):
        console.note(f"{console.plural(total - len(found), 'more job')}; --limit shows more, --json shows all")


def _columns(found: list[Job], estimates: dict[JobKey, Estimate], now: datetime) -> list[Column]:
    """Tenant and queue have a column only if there are several, because room is scarce."""

    def age(job: Job) -> str:
        return console.span(max(0.0, (now - job.created_at).total_seconds()))

    def note(job: Job) -> Text:
        estimate = estimates.get(key_of(job))
        if estimate is not None and estimate.why is not None:  # else it has started meanwhile
            return Text(f"waits {job_view.wait_text(estimate)}", style="dim")
        return Text(job_view.job_note(job, now), style="dim")

    columns = [Column("id", lambda job: job.id), Column("state", lambda job: terminal.state(job.state))]
    if len({job.tenant for job in found}) > 1:
        columns.append(Column("tenant", lambda job: job.tenant))
    columns.append(Column("task", lambda job: job.task))
    if any(job.queue != DEFAULT_QUEUE for job in found):
        columns.append(Column("queue", lambda job: job.queue))
    return [*columns, Column("age", age), Column("", note)]


@jobs.command
async def count(*, match_options: MatchOptions = ANY_JOB, target: Target = HERE) -> None:
    """Count jobs.

    For example:
      windlass jobs count --state queued --queue mail
    """
    async with open_queue(target) as queue:
        number = await queue(Count(match=match_options.match(await queue.now())))
    if target.json:
        console.write_json(number)
    else:
        console.write(str(number.count))


# One job


@jobs.command
async def show(id: JobId, /, *, target: Target = HERE) -> None:
    """Show a job: its options, times, steps, payload and errors.

    For example:
      windlass jobs show 01936f2e-…
      windlass jobs show 01936f2e-… --json | jq .payload
    """
    async with open_queue(target) as queue:
        job = await queue(Show(id=id, payload=True))
        estimate = await queue(GetEstimate(id=id)) if job.state in WAITING else Estimate()
        steps = await queue(GetSteps(id=id))
        now = await queue.now()
    payload = values.readable(job.payload, job.content_type) if isinstance(job.payload, Raw) else None
    if target.json:
        known = msgspec.to_builtins(replace(job, payload=UNSET), builtin_types=(datetime,))
        shown = {**known, "estimate": estimate.seconds, "payload": payload}
        console.write_json({**shown, "steps": msgspec.to_builtins(steps, builtin_types=(datetime,))})
    else:
        terminal.stdout().print(job_view.details(job, estimate, steps, payload, now))


@jobs.command
async def result(
    id: JobId,
    /,
    *,
    wait: Annotated[
        list[str] | None, option("[TIME]", "Wait for the job to end, at most TIME (no limit).", consume_multiple=(0, 1))
    ] = None,
    target: Target = HERE,
) -> int:
    """Print the result of a job as JSON.

    Exits 1 if the job failed, 75 if it has not ended.

    For example:
      windlass jobs result 01936f2e-… --wait 1m
    """
    most = 0.0 if wait is None else job_view.wait_seconds(wait)
    async with open_queue(target) as queue:
        if most == 0:
            found = await queue(GetResult(id=id))
            if found.state not in FINISHED:
                raise job_view.NotFinished(f"job {id} is {found.state}; --wait waits for its end")
        else:
            found = await job_view.wait_for_result(queue, id, most)
    return job_view.print_result(id, found, json=target.json)


@jobs.command
async def files(
    id: JobId,
    name: Annotated[str | None, Parameter(name="NAME", help="A file: its bytes go to the standard output.")] = None,
    /,
    *,
    every: Annotated[bool, flag("Save all of them in the folder of -o.", name="--all")] = False,
    folder: Annotated[Path, option("FOLDER", "The folder for --all.", "--output", "-o")] = Path(),
    target: Target = HERE,
) -> None:
    """List the files that a job has left, or fetch one or all of them.

    For example:
      windlass jobs files 01936f2e-…
      windlass jobs files 01936f2e-… plot.svg > plot.svg
      windlass jobs files 01936f2e-… --all -o results
    """
    if every and name is not None:
        raise Invalid("give the name of a file or --all, not both", at="NAME")
    async with open_queue(target) as queue:
        if name is not None:
            console.write_bytes(await queue(GetFile(id=id, name=name)))
            return
        found = await queue(GetFiles(id=id))
        if every:
            folder.mkdir(parents=True, exist_ok=True)
            for one in found:
                (folder / check_file_name(one.name, at="NAME")).write_bytes(await queue(GetFile(id=id, name=one.name)))
            console.note(f"{console.plural(len(found), 'file')} saved in {folder}")
            return
    if target.json:
        console.write_json(found)
    elif found:
        columns = [Column("name", lambda one: one.name), Column("bytes", lambda one: f"{one.size:,}", right=True)]
        terminal.stdout().print(terminal.Table(columns, found))
    else:
        console.note("no files")


@jobs.command
async def tail(
    id: Annotated[str | None, Parameter(name="ID", help="The id of a job; without it, all matching jobs.")] = None,
    /,
    *,
    match_options: MatchOptions = ANY_JOB,
    target: Target = HERE,
) -> int:
    """Follow a job until it ends: its states, progress and output.

    Exits 1 if the job did not succeed. Earlier output is shown as far as it is kept. Without an id, follows all
    matching jobs until it is interrupted.

    For example:
      windlass jobs tail 01936f2e-…
      windlass jobs tail --task render
    """
    if id is not None and match_options != ANY_JOB:
        raise Invalid("give the id of a job or options that select jobs, not both", at="ID")
    async with open_queue(target) as queue:
        if id is None:
            await _watch(queue, match_options.match(await queue.now()), json=target.json)
        return await _follow(queue, str(id), json=target.json)


async def _watch(queue: Queue, match: Match, *, json: bool) -> None:
    async with aclosing(queue.watch(match)) as stream:
        async for event in stream:
            if json:
                console.write(events.encode_line(event).decode().rstrip())
            else:
                terminal.stdout().print(_event_line(event))
            sys.stdout.flush()  # a reader of the pipe waits for it


def _event_line(event: Event) -> Text:
    """An event of one of many jobs."""
    if event.gone is not None:
        gone = event.gone
        words = [Text(" " * 8), Text(f"{event.name:9}"), Text(gone.id, style="dim"), Text(gone.task)]
        return Text("  ").join([*words, Text(f"was {gone.state}")])
    if event.job is None:
        return Text("some events were missed", style="yellow")
    job = event.job
    note = job_view.job_note(job, job.updated_at)
    name = Text(f"{event.name:9}", style=terminal.STYLES.get(job.state, ""))
    return Text("  ").join([_clock(job), name, Text(job.id, style="dim"), Text(job.task), Text(note)])


def _clock(job: Job) -> Text:
    return Text(job.updated_at.astimezone().strftime("%H:%M:%S"), style="dim")


async def _follow(queue: Queue, id: str, *, json: bool) -> int:
    state = None
    async for new in job_view.follow(queue, id):
        if isinstance(new, Job):
            state = new.state
        if json:
            console.write_json(new if isinstance(new, Job) else OutputLine.of(new))
        elif isinstance(new, Job):
            terminal.stdout().print(_status_line(new))
        else:
            terminal.stdout().print(_output_lines(new), soft_wrap=True)
    return 0 if state is State.SUCCEEDED else 1


@jobs.command
async def output(
    id: JobId,
    /,
    *,
    follow: Annotated[bool, flag("Go on until the job has ended.")] = False,
    target: Target = HERE,
) -> None:
    """Print what a job has put out, as it wrote it: stdout to stdout, stderr and its log to stderr.

    The newest 2 MiB are kept; `windlass jobs tail` also shows states and progress.

    For example:
      windlass jobs output 01936f2e-… --follow
    """
    async with open_queue(target) as queue:
        async for chunk in _output(queue, id, follow=follow):
            if chunk.stream == VALUES:
                continue
            if target.json:
                console.write_json(OutputLine.of(chunk))
            else:
                console.write_bytes(chunk.data, error=chunk.stream != "stdout")


@jobs.command(name="values")
async def emitted(
    id: JobId,
    /,
    *,
    follow: Annotated[bool, flag("Go on until the job has ended.")] = False,
    target: Target = HERE,
) -> None:
    """Print the values that a job has emitted, each as a line of JSON.

    If the job runs again, its values begin again: a note on stderr says where.

    For example:
      windlass jobs values 01936f2e-… --follow
    """
    runs = 0
    async with open_queue(target) as queue:
        async for chunk in _output(queue, id, follow=follow, only=VALUES):
            for line in chunk.data.splitlines(keepends=True):
                if line.strip():
                    console.write_bytes(line, error=False)
                elif (runs := runs + 1) > 1:
                    console.note("windlass: the job has begun again")


async def _output(queue: Queue, id: str, *, follow: bool, only: Stream | None = None) -> AsyncIterator[Chunk]:
    if follow:
        async with aclosing(queue.follow(id)) as stream:
            async for event in stream:
                if event.chunk is not None and only in (None, event.chunk.stream):
                    yield event.chunk.piece
        return
    after = 0
    while chunks := (page := await queue(GetOutput(id=id, after=after, stream=only))).chunks:
        after = page.next
        for chunk in chunks:
            yield chunk


class OutputLine(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of output, for `--json`."""

    output: str
    stream: str
    n: int
    attempt: int
    at: datetime

    @classmethod
    def of(cls, chunk: Chunk) -> "OutputLine":
        text = chunk.data.decode(errors="replace")
        return cls(output=text, stream=chunk.stream, n=chunk.n, attempt=chunk.attempt, at=chunk.at)


def _output_lines(chunk: Chunk) -> Text:
    """The output of a job, line by line after the name of its stream."""
    lines = [line for line in chunk.data.decode(errors="replace").splitlines() if line or chunk.stream != VALUES]
    style = "red" if chunk.stream == "stderr" else ""
    name = Text(f"  {chunk.stream:6} ", style="dim")
    return Text("\n").join(Text.assemble(name, (line, style)) for line in lines)


def _status_line(job: Job) -> Text:
    note = job_view.job_note(job, job.updated_at)
    if job.state is State.RUNNING and job.progress is None:
        note += f", worker {job.worker}" if job.pid is None else f", process {job.pid} on {job.node or 'this host'}"
    return Text("  ").join([_clock(job), terminal.state(job.state), Text(note)])


@jobs.command
async def send(
    id: Annotated[str, Parameter(name="ID", help="The id of a job that takes input.")],
    message: Annotated[
        str | None, Parameter(name="MESSAGE", help="The message; without it, each line of stdin is a message.")
    ] = None,
    /,
    *,
    target: Target = HERE,
) -> None:
    """Send a message to a running or waiting job. By convention an empty message is the last.

    For example:
      windlass jobs send 01936f2e-… 'continue'
      tail -f orders | windlass jobs send 01936f2e-…
    """
    async with open_queue(target) as queue:
        if message is not None:
            await queue(Send(id=id, data=message.encode()))
            return
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            await queue(Send(id=id, data=line.removesuffix(b"\n")))


@jobs.command
async def edit(
    id: JobId,
    /,
    *,
    payload: Annotated[str | None, option("VALUE", "JSON if it parses, else text; `-` = read stdin.")] = None,
    priority: Annotated[int | None, option("N", "Lower goes first.")] = None,
    queue: Annotated[str | None, option("NAME", "The queue that it waits in then.", "--queue", "-q")] = None,
    delay: Annotated[float | None, option("TIME", "Start it after this time: 0, 90, 10m.", read=seconds)] = None,
    at: Annotated[datetime | None, option("TIME", "Start it then: 2027-01-31T08:00+01:00.", read=_moment)] = None,
    tags: Annotated[list[str] | None, option("TAG", "Its tags from now on; repeat for several.", "--tag")] = None,
    target: Target = HERE,
) -> None:
    """Edit a job that waits; what is not named stays as it is.

    For example:
      windlass jobs edit 01936f2e-… --priority -1 --delay 0
      windlass jobs edit 01936f2e-… --payload '{"scene": 8}' --tag urgent
    """
    new = UNSET if payload is None else values.payload(payload)
    change = Edit(id=id, payload=new, priority=priority, queue=queue, delay=delay, run_at=at, tags=tags)
    async with open_queue(target) as to:
        job = await to(change)
    if target.json:
        console.write_json(job)
    else:
        console.write(f"job {job.id} is edited: {job.state} in {job.queue}, priority {job.priority}")


@jobs.command
async def annotate(
    id: JobId,
    /,
    *notes: Annotated[str, Parameter(name="NAME=VALUE", help="What to note.")],
    remove: Annotated[list[str] | None, option("NAME", "Remove this annotation; repeat for several.")] = None,
    target: Target = HERE,
) -> None:
    """Note something about a job, in any state; print all that is noted about it.

    For example:
      windlass jobs annotate 01936f2e-… ticket=OPS-7 owner=ann
      windlass jobs annotate 01936f2e-… --remove owner
    """
    changes: dict[str, str | None] = dict(map(_note, notes)) | dict.fromkeys(remove or [])
    async with open_queue(target) as queue:
        job = await queue(Edit(id=id, annotations=changes))
    if target.json:
        console.write_json(job.annotations)
        return
    for name, value in job.annotations.items():
        console.write(f"{name}={value}")


def _note(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Invalid(f"{text!r} is not NAME=VALUE, such as ticket=OPS-7", at="NAME=VALUE")
    return name, value


@jobs.command
async def finish(
    id: JobId,
    result: Annotated[
        str | None, Parameter(name="RESULT", help="Its result: JSON if it parses, else text; `-` = read it from stdin.")
    ] = None,
    /,
    *,
    target: Target = HERE,
) -> None:
    """End a running job as succeeded. Its process is stopped if it still lives.

    For example:
      windlass jobs finish 01936f2e-… '{"rows": 17}'
    """
    encoded = UNSET if result is None else values.payload(result)
    async with open_queue(target) as queue:
        _ended(await queue(FinishByHand(id=id, result=encoded)), "finished", json=target.json)


@jobs.command
async def fail(
    id: JobId,
    /,
    *,
    message: Annotated[str, option("TEXT", "Why; the message of its error.")],
    target: Target = HERE,
) -> None:
    """End a running job as failed; it is not run again. Its process is stopped if it still lives.

    For example:
      windlass jobs fail 01936f2e-… --message 'the tape is broken'
    """
    async with open_queue(target) as queue:
        _ended(await queue(FailByHand(id=id, message=message)), "failed", json=target.json)


@jobs.command
async def limit(
    id: JobId,
    time: Annotated[str, Parameter(name="TIME", help="How long its run may take, as `30s`.")],
    /,
    *,
    target: Target = HERE,
) -> None:
    """Lower the time limit of a running job. If it has run for longer, it is stopped; a higher limit is ignored.

    For example:
      windlass jobs limit 01936f2e-… 30s
    """
    async with open_queue(target) as queue:
        _ended(
            await queue(LowerTimeout(id=id, timeout=duration.seconds(time, at="TIME"))),
            "lowered the limit of",
            json=target.json,
        )


def _ended(changed: Changed, participle: str, *, json: bool) -> None:
    if json:
        console.write_json(changed)
    else:
        console.write(f"{participle} {console.plural(changed.changed, 'job')}")


# Several jobs


class Action(NamedTuple):
    """An operation on several jobs, its words and its help."""

    operation: type[Selection]
    infinitive: str
    participle: str
    help: str


ACTIONS = {
    "cancel": Action(
        Cancel,
        "cancel",
        "cancelled",
        """Cancel jobs; running jobs are stopped.

    For example:
      windlass jobs cancel 01936f2e-…
      windlass jobs cancel --queue mail --state pending --dry-run
    """,
    ),
    "retry": Action(
        Rerun,
        "queue again",
        "queued again",
        """Queue finished jobs again, with their attempts reset.

    For example:
      windlass jobs retry 01936f2e-…
      windlass jobs retry --state failed --task mail --text timed
    """,
    ),
    "rm": Action(
        Delete,
        "delete",
        "deleted",
        """Delete jobs and their records; running jobs are stopped first.

    For example:
      windlass jobs rm 01936f2e-…
      windlass jobs rm --state finished --created-before 30d
      windlass jobs rm --finished-only 01936f2e-…
      windlass jobs rm --all --dry-run
    """,
    ),
}


class Chosen(NamedTuple):
    """Which jobs a command is for: ids, options or all."""

    ids: tuple[str, ...]
    match_options: MatchOptions
    everything: bool

    def check(self) -> None:
        ways = sum((bool(self.ids), self.match_options != ANY_JOB, self.everything))
        if ways == 0:
            raise Invalid("select jobs: give ids, options such as --state failed, or --all")
        if ways > 1:
            raise Invalid("select jobs in one way: by ids, by options such as --state, or with --all")


Ids = Annotated[str, Parameter(name="IDS", help="The ids of jobs, instead of options that select jobs.")]
All = Annotated[bool, flag("Every job of the tenant.", name="--all")]
DryRun = Annotated[bool, flag("Change nothing; only count the jobs.")]


def _command(action: Action) -> Callable[..., Awaitable[None]]:
    async def act(
        *ids: Ids,
        match_options: MatchOptions = ANY_JOB,
        everything: All = False,
        dry_run: DryRun = False,
        target: Target = HERE,
    ) -> None:
        await _act(action, action.operation(dry_run=dry_run), Chosen(ids, match_options, everything), target)

    return act


async def _rm(
    *ids: Ids,
    match_options: MatchOptions = ANY_JOB,
    everything: All = False,
    finished_only: Annotated[bool, flag("Finished jobs only; if an id is of another one, delete none.")] = False,
    dry_run: DryRun = False,
    target: Target = HERE,
) -> None:
    asked = Delete(dry_run=dry_run, finished_only=finished_only)
    await _act(ACTIONS["rm"], asked, Chosen(ids, match_options, everything), target)


async def _act(action: Action, asked: Selection, chosen: Chosen, target: Target) -> None:
    chosen.check()
    async with open_queue(target) as queue:
        if chosen.ids:
            changed = await _act_on_ids(queue, action, asked, chosen.ids)
        else:
            match = chosen.match_options.match(await queue.now())
            changed = await queue(replace(asked, match=match))
    print_changed(action, changed, dry_run=asked.dry_run, json=target.json)


def print_changed(action: Action, changed: Changed, *, dry_run: bool, json: bool) -> None:
    if not changed.stopping or dry_run or json:
        _ended(changed, f"would {action.infinitive}" if dry_run else action.participle, json=json)
        return
    if done := changed.changed - changed.stopping:
        _ended(Changed(changed=done), action.participle, json=False)
    stopped = "it has stopped" if changed.stopping == 1 else "they have stopped"
    console.write(f"{console.plural(changed.stopping, 'running job')} will be {action.participle} once {stopped}")


async def _act_on_ids(queue: Queue, action: Action, asked: Selection, ids: tuple[str, ...]) -> Changed:
    """Any number of ids, a thousand at a time."""
    changed = stopping = 0
    for start in range(0, len(ids), MOST_AT_ONCE):
        some = list(ids[start : start + MOST_AT_ONCE])
        answer = await queue(replace(asked, ids=some))
        changed, stopping = changed + answer.changed, stopping + answer.stopping
    if not changed and len(ids) == 1:
        job = await queue(Show(id=ids[0]))
        why = f"there is nothing to {action.infinitive}"
        if job.state is State.RUNNING and action.operation is Cancel:
            why = "it was asked to stop already"
        raise Conflict(f"job {job.id} is {job.state}: {why}", at="id")
    return Changed(changed=changed, stopping=stopping)


for name, action in ACTIONS.items():
    jobs.command(_rm if name == "rm" else _command(action), name=name, help=action.help)
