"""One job for people: the details of `jobs show`, a live line while a command waits for it, and its result.

Waits by asking again and again: a short wait for the end, then a look at the job. So an end is seen at once, and
progress a moment later.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from windlass.cli import console, terminal, values
from windlass.cli.target import Queue
from windlass.model import duration
from windlass.model.errors import Invalid, WindlassError
from windlass.model.estimate import Estimate, Why
from windlass.model.job import FINISHED, PENDING, Error, Job, Reason, State
from windlass.model.lifecycle import STOP_ORDERS
from windlass.model.new_job import JobOptions
from windlass.model.operations import GetOutput, GetResult, Result, Show
from windlass.model.output import Chunk, Progress, RunUsage
from windlass.model.steps import StepEntry
from windlass.system import SystemClock

LOOK_EVERY = 0.25
"""Seconds between two looks at a job that is shown live."""

WAIT_MOST = 30.0
"""Seconds of one wait when nothing is shown."""

MOST_STEPS_SHOWN = 20
"""Finished steps in the list, the newest."""

MOST_PARENTS_SHOWN = 10
"""Jobs in the list that it comes after, the first of them."""

MOST_ERRORS = 5
"""Errors in the list, the newest; the last one is shown in full."""

WAITS_FOR = {
    Why.SLOTS: "its turn",
    Why.LIMIT: "limit",
    Why.TIER: "a slot of tier",
    Why.TIME: "its time",
    Why.JOBS: "other jobs",
    Why.PAUSE: "the end of a pause",
    Why.WORKER: "a worker: none takes from its queue",
    Why.HANDLER: "a worker: none knows its task or runs its handler",
}
"""What a job waits for."""

DURATIONS = {"timeout", "keep_result_for", "keep_success", "keep_failure", "expires", "owner_timeout"}
"""Job options that are durations."""


class NotFinished(WindlassError):
    """The job has not ended yet: ask again later."""

    code, title, status, exit_status = "unfinished", "Not finished", 408, 75


# Details


def details(job: Job, estimate: Estimate, steps: Sequence[StepEntry], payload: Any, now: datetime) -> RenderableType:
    """Everything about a job that differs from the defaults."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in (*_rows(job, estimate, now), *_steps(steps, now), *_errors(job, now)):
        grid.add_row(name, text)
    parts: list[RenderableType] = [grid]
    if payload is not None:
        note = f", {values.BYTES}" if values.has_bytes(payload) else ""
        parts += _section(f"payload ({console.size(job.size)}{note})", values.pretty(payload))
    if job.error is not None:
        parts += _section("last error", job.error.traceback.rstrip() or error_line(job.error))
    return Group(*parts)


def _section(title: str, text: str) -> list[RenderableType]:
    return [Text(), Text(title, style="dim"), Text("\n".join(f"  {line}" for line in text.splitlines()))]


def _rows(job: Job, estimate: Estimate, now: datetime) -> Iterator[tuple[str, Text]]:
    yield "job", Text(job.id, style="bold")
    yield "task", Text(f"{job.task}  in queue {job.queue}" + ("" if job.tenant == "default" else f" of {job.tenant}"))
    yield "state", _state(job)
    if estimate.why is not None:
        yield "waits", Text(wait_text(estimate))
    if job.progress is not None and job.state in PENDING:
        yield "progress", Text(progress_text(job.progress))
    for name, moment in _times(job):
        yield name, Text.assemble(console.ago(moment, now), (f"  {console.local_time(moment)}", "dim"))
    if job.started_at and job.finished_at:
        yield "took", Text(console.span((job.finished_at - job.started_at).total_seconds()))
    if job.worker:
        where = f" on {job.node}" if job.node else ""
        where += f", version {job.handler_version} of its handler" if job.handler_version else ""
        where += f", sandbox {job.sandbox}" if job.sandbox else ""
        yield "worker", Text(job.worker + where + (f", process {job.pid}" if job.pid else ""))
    if job.usage is not None:
        yield "uses", Text(usage_text(job.usage))
    yield from _relatives(job)
    for name, text in _changed_options(job):
        yield name, Text(text)
    for name, value in job.annotations.items():
        yield name, Text(f"{value}  (annotation)")


def usage_text(usage: RunUsage) -> str:
    parts = [f"{console.size(usage.memory)} of memory"] if usage.memory is not None else []
    parts += [f"{usage.cpu:.1f} CPUs"] if usage.cpu is not None else []
    parts += [f"{console.size(usage.output)} of output so far"] if usage.output else []
    return ", ".join(parts)


def _relatives(job: Job) -> Iterator[tuple[str, Text]]:
    """The jobs before it, and the one that follows it."""
    if job.after:
        more = f" and {len(job.after) - MOST_PARENTS_SHOWN} more" if len(job.after) > MOST_PARENTS_SHOWN else ""
        yield "after", Text(", ".join(job.after[:MOST_PARENTS_SHOWN]) + more)
    if job.follow_up is not None:
        yield "follow-up", Text(job.follow_up)


def _steps(steps: Sequence[StepEntry], now: datetime) -> Iterator[tuple[str, Text]]:
    """The steps that have finished, the newest of them."""
    for place, step in enumerate(steps[-MOST_STEPS_SHOWN:]):
        ended = f"  {console.size(step.size)}, {console.ago(step.finished_at, now)}"
        yield "" if place else console.plural(len(steps), "step"), Text.assemble(step.name, (ended, "dim"))


def wait_text(estimate: Estimate) -> str:
    """How long a job will wait, and for what."""
    parts = [] if estimate.seconds is None else [f"about {console.span(estimate.seconds)}"]
    if estimate.at_most is not None and estimate.at_most > (estimate.seconds or 0.0):
        parts.append(f"at most {console.span(estimate.at_most)}")
    if estimate.position is not None:
        parts.append(f"position {estimate.position}")
    if estimate.why is Why.HANDLER and estimate.name:
        return ", ".join([*parts, f"for a worker that can run it: {estimate.name}"])
    named = f" {estimate.name}" if estimate.name else ""
    return ", ".join([*parts, f"for {WAITS_FOR[estimate.why]}{named}" if estimate.why else ""]).strip(", ")


def _state(job: Job) -> Text:
    parts = [f"code {job.code}"] if job.code and job.state in FINISHED else []
    if job.reason and job.reason.value != job.state.value:
        parts.append(str(job.reason))
    if job.attempt:
        parts.append(f"attempt {job.attempt}")
    if job.crashes or job.losses:
        crashes = [console.plural(job.crashes, "crash", "crashes")] if job.crashes else []
        parts += [*crashes, *([f"{job.losses} lost"] if job.losses else [])]
    return Text.assemble(terminal.state(job.state), f"  {', '.join(parts)}" if parts else "")


def _times(job: Job) -> Iterator[tuple[str, datetime]]:
    yield "created", job.created_at
    if job.run_at is not None and job.state in PENDING:
        yield "due", job.run_at
    if job.started_at is not None:
        yield "started", job.started_at
    if job.adopted_at is not None:
        yield "adopted", job.adopted_at
    if job.deadline is not None:
        yield "stopped at", job.deadline
    if job.finished_at is not None:
        yield "finished", job.finished_at


def _changed_options(job: Job) -> Iterator[tuple[str, str]]:
    """The options that differ from their defaults."""
    for field in msgspec.structs.fields(JobOptions):
        value = getattr(job, field.name)
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        if field.name == "queue" or value == default:
            continue
        yield field.name.replace("_", " "), _option_text(field.name, value)


def _option_text(name: str, value: Any) -> str:
    if value is None:
        return "no limit"
    if name in DURATIONS:
        return console.span(value)
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(value)
        case dict() | msgspec.Struct():
            known = value if isinstance(value, dict) else msgspec.to_builtins(value)
            return ", ".join(f"{key} {item}" for key, item in known.items())
        case _:
            return str(value)


def _errors(job: Job, now: datetime) -> Iterator[tuple[str, Text]]:
    if not job.errors or (len(job.errors) == 1 and _where(job.errors[0]) in {"", _where(job)}):
        return  # a single one is shown in full, and where it ran already
    for index, error in enumerate(job.errors[-MOST_ERRORS:]):
        when = f"  {console.ago(error.at, now)}" if error.at else ""
        name = console.plural(len(job.errors), "error") if index == 0 else ""
        yield name, Text.assemble(f"attempt {error.attempt}: {error_line(error)}", (f"{_where(error)}{when}", "dim"))


def _where(run: Job | Error) -> str:
    """The worker, node and process of a run, and what a failed one has used."""
    if run.worker is None:
        return ""
    node, process = f" on {run.node}" if run.node else "", f", process {run.pid}" if run.pid else ""
    used = ""
    if isinstance(run, Error) and run.peak_memory is not None:
        used = f", at most {console.size(run.peak_memory)} of memory, {console.span(run.cpu_time or 0.0)} of CPU time"
    return f"  worker {run.worker}{node}{process}{used}"


# In one line


def error_line(error: Error) -> str:
    """An error in one line."""
    text = ": ".join(part for part in (error.type, console.first_line(error.message)) if part)
    return text or (error.reason or "")


def progress_text(progress: Progress) -> str:
    done, total = progress.done, progress.total
    share = f"{done / total:.0%}, {done:g} of {total:g}" if total else f"{done:g} done"
    return f"{share} {progress.note}".strip()


def pending_note(job: Job, now: datetime) -> str:
    """What there is to know about a pending job beyond its state."""
    parts = []
    if job.attempt and (job.state is State.RUNNING or job.reason):
        most = "" if job.max_retry is None else f" of {job.max_retry + 1}"
        parts.append(f"attempt {job.attempt}{most if job.max_retry != 0 else ''}")
    if job.state is State.SCHEDULED and job.run_at is not None:
        parts.append(f"due {console.ago(job.run_at, now)}")
    if job.state is State.RUNNING and job.progress is not None:
        parts.append(progress_text(job.progress))
    if job.reason and job.state not in FINISHED:
        stopping = "stopping " if job.state is State.RUNNING and job.reason in STOP_ORDERS else ""
        parts.append(f"{stopping}({job.reason})")
    return ", ".join(parts)


def job_note(job: Job, now: datetime) -> str:
    """What there is to know about any job beyond its state."""
    if job.state is State.FAILED:
        return error_line(job.error) if job.error else str(job.reason or "")
    if job.state is State.SUCCEEDED and job.started_at and job.finished_at:
        return f"took {console.span((job.finished_at - job.started_at).total_seconds())}"
    if job.state is State.CANCELLED and job.finished_at:
        why = "" if job.reason in (None, Reason.CANCELLED) else f"{job.reason}, "
        return f"{why}{console.ago(job.finished_at, now)}"
    return pending_note(job, now)


# Waiting


def wait_seconds(wait: list[str] | None) -> float | None:
    """The seconds of `--wait [TIME]`; null = no limit."""
    try:
        return duration.seconds(wait[0], at="--wait") if wait else None
    except Invalid as fault:
        raise Invalid(f"{fault.detail} (a payload goes before the options)", at="--wait") from None


async def wait_for_result(queue: Queue, id: str, most: float | None) -> Result:
    """The result of a job, waiting at most so many seconds; on a terminal with a live line."""
    clock = SystemClock()
    started = clock.monotonic()
    shown = terminal.stderr().is_terminal
    with _live_line(id) if shown else nullcontext(_not_shown) as show:
        while True:
            if shown:
                show(_line(await queue(Show(id=id)), await queue.now(), clock.monotonic() - started))
            passed = clock.monotonic() - started
            left = WAIT_MOST if most is None else max(0.0, most - passed)
            found = await queue(GetResult(id=id, wait=min(left, LOOK_EVERY if shown else WAIT_MOST)))
            if found.state in FINISHED:
                return found
            if left == 0:
                raise NotFinished(
                    f"job {id} is still {found.state} after {console.span(passed)}: `windlass jobs result {id} --wait` "
                    f"waits again, `windlass jobs cancel {id}` cancels it"
                )


def _not_shown(_: Text) -> None:
    pass


@contextmanager
def _live_line(id: str) -> Iterator[Callable[[Text], None]]:
    """A line below the job's id that each update replaces, and that is gone at the end."""
    stderr = terminal.stderr()
    stderr.print(Text(f"job {id}", style="dim"))
    with Live(console=stderr, transient=True, auto_refresh=False) as live:
        yield lambda text: live.update(text, refresh=True)


def _line(job: Job, now: datetime, seconds: float) -> Text:
    parts = [_path(job), Text(console.span(seconds), style="dim")]
    if note := pending_note(job, now):
        parts.append(Text(note))
    return Text("  ", no_wrap=True, overflow="ellipsis").join(parts)


def _path(job: Job) -> Text:
    """The usual states of a job, with its own highlighted."""
    states = [State.QUEUED, State.RUNNING, State.SUCCEEDED]
    if job.state not in states:
        states.insert(0, job.state)
    steps = [terminal.state(state) if state is job.state else Text(state, style="dim") for state in states]
    return Text.assemble((" › ", "dim")).join(steps)


async def follow(queue: Queue, id: str) -> AsyncIterator[Job | Chunk]:
    """The output of a job, and the job itself whenever it has changed, until it has ended."""
    clock = SystemClock()
    last: Job | None = None
    after = 0
    while True:
        job = await queue(Show(id=id))
        while chunks := (page := await queue(GetOutput(id=id, after=after))).chunks:
            after = page.next
            for chunk in chunks:
                yield chunk
        if last is None or _status(job) != _status(last):
            yield job
        if job.state in FINISHED:
            return
        last = job
        await clock.sleep(LOOK_EVERY)


def _status(job: Job) -> tuple[object, ...]:
    return job.state, job.reason, job.attempt, job.pid, job.progress


# Results


class ResultView(Struct, frozen=True, kw_only=True):
    """The result of a job, for `--json`."""

    id: str
    state: State
    result: object = None
    code: int | None = None
    error: Error | None = None


def print_result(id: str, found: Result, *, json: bool) -> int:
    """Print the result of a job; the exit status."""
    result = values.readable(found.result, found.content_type) if isinstance(found.result, Raw) else None
    if json:
        console.write_json(ResultView(id=id, state=found.state, result=result, code=found.code, error=found.error))
    elif found.state is State.SUCCEEDED:
        console.write(values.pretty(result))
        if values.has_bytes(result):
            console.note(f"windlass: {values.BYTES}")
        if found.result is UNSET:
            console.note("windlass: no result: the task returned none, or it is not kept any more")
    else:
        _print_failure(id, found)
    return 0 if found.state is State.SUCCEEDED else 1


def _print_failure(id: str, found: Result) -> None:
    error = found.error
    text = "" if error is None else error_line(error)
    if error is not None and error.traceback.strip() not in ("", text):
        console.note(error.traceback.rstrip())
    code = f" with code {found.code}" if found.code and found.state is State.FAILED else ""
    console.note(f"windlass: job {id} {found.state}{code}" + (f": {text}" if text else ""))
