"""Waits for jobs and tells how they fare: `enqueue --wait`, `jobs result`, `jobs tail`.

Asks again and again: a short wait for the end, then a look. So an end is heard of at once, and progress a moment later.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext

from msgspec import UNSET, Raw, Struct
from rich.live import Live
from rich.text import Text

from windlass.cli import saying, values
from windlass.cli.place import Queue
from windlass.model import duration
from windlass.model.errors import Invalid, WindlassError
from windlass.model.job import FINISHED, Chunk, Error, Job, Progress, State
from windlass.model.operations import GetOutput, GetResult, Result, Show
from windlass.system import SystemClock

LOOK_EVERY = 0.25
"""Seconds between two looks at a job that somebody watches."""

WAIT_MOST = 30.0
"""Seconds of one wait when nobody watches."""


class Unfinished(WindlassError):
    """The job has not ended (yet): ask again later."""

    code, title, status, exit_status = "unfinished", "Not finished", 408, 75


def patience(wait: list[str] | None) -> float | None:
    """How long `--wait [SECONDS]` waits; null = for ever."""
    try:
        return duration.seconds(wait[0], at="--wait") if wait else None
    except Invalid as fault:
        raise Invalid(f"{fault.detail} (a payload stands before the options)", at="--wait") from None


async def outcome(queue: Queue, id: str, most: float | None) -> Result:
    """How a job ended, waiting so long for it; with a line that lives while somebody watches."""
    clock = SystemClock()
    began = clock.monotonic()
    watched = saying.paper(stderr=True).is_terminal
    with _line(id) if watched else nullcontext(_unseen) as show:
        while True:
            if watched:
                show(line(await queue(Show(id=id)), clock.monotonic() - began))
            passed = clock.monotonic() - began
            left = WAIT_MOST if most is None else max(0.0, most - passed)
            found = await queue(GetResult(id=id, wait=min(left, LOOK_EVERY if watched else WAIT_MOST)))
            if found.state in FINISHED:
                return found
            if left == 0:
                raise Unfinished(
                    f"job {id} is still {found.state} after {saying.span(passed)}: `windlass jobs result {id} --wait` "
                    f"waits again, `windlass jobs cancel {id}` cancels it"
                )


def _unseen(_: Text) -> None:
    pass


@contextmanager
def _line(id: str) -> Iterator[Callable[[Text], None]]:
    """A line that is replaced by the next, and gone at the end; above it stands whose it is."""
    paper = saying.paper(stderr=True)
    paper.print(Text(f"job {id}", style="dim"))
    with Live(console=paper, transient=True, auto_refresh=False) as live:
        yield lambda text: live.update(text, refresh=True)


def line(job: Job, seconds: float) -> Text:
    """Where a job stands, in one line."""
    parts = [_life(job), Text(saying.span(seconds), style="dim")]
    if note := standing(job):
        parts.append(Text(note))
    return Text("  ", no_wrap=True, overflow="ellipsis").join(parts)


def _life(job: Job) -> Text:
    """The way of a job, and where on it this one is."""
    way = [State.QUEUED, State.RUNNING, State.SUCCEEDED]
    if job.state not in way:
        way.insert(0, job.state)
    steps = [saying.state(state) if state is job.state else Text(state, style="dim") for state in way]
    return Text.assemble((" › ", "dim")).join(steps)


def standing(job: Job) -> str:
    """What there is to say of a pending job beyond its state."""
    said = []
    if job.attempt and (job.state is State.RUNNING or job.reason):
        most = "" if job.max_retry is None else f" of {job.max_retry + 1}"
        said.append(f"attempt {job.attempt}{most if job.max_retry != 0 else ''}")
    if job.state is State.SCHEDULED and job.run_at is not None:
        said.append(f"due {saying.ago(job.run_at, SystemClock().now())}")
    if job.state is State.RUNNING and job.progress is not None:
        said.append(progress(job.progress))
    if job.reason and job.state not in FINISHED:
        said.append(f"({job.reason})")
    return ", ".join(said)


def progress(said: Progress) -> str:
    share = f"{said.done / said.total:.0%}, {said.done:g} of {said.total:g}" if said.total else f"{said.done:g} done"
    return f"{share} {said.note}".strip()


async def changes(queue: Queue, id: str) -> AsyncIterator[Job | Chunk]:
    """What a job puts out, and the job itself whenever there is something new to say of it, until it has ended."""
    clock = SystemClock()
    last: Job | None = None
    after = 0
    while True:
        job = await queue(Show(id=id))
        while chunks := (page := await queue(GetOutput(id=id, after=after))).chunks:
            after = page.next
            for chunk in chunks:
                yield chunk
        if last is None or news(job) != news(last):
            yield job
        if job.state in FINISHED:
            return
        last = job
        await clock.sleep(LOOK_EVERY)


def news(job: Job) -> tuple[object, ...]:
    return job.state, job.reason, job.attempt, job.pid, job.progress


class Answer(Struct, frozen=True, kw_only=True):
    """How a job ended, for programs."""

    id: str
    state: State
    result: object = None
    code: int | None = None
    error: Error | None = None


def tell(id: str, found: Result, *, json: bool) -> int:
    """Print how a job ended; the exit status that goes with it."""
    result = values.spoken(found.result, found.content_type) if isinstance(found.result, Raw) else None
    if json:
        saying.write_json(Answer(id=id, state=found.state, result=result, code=found.code, error=found.error))
    elif found.state is State.SUCCEEDED:
        saying.write(values.pretty(result))
        if values.has_bytes(result):
            saying.remark(f"windlass: {values.BYTES}")
        if found.result is UNSET:
            saying.remark("windlass: no result is kept of this job (any more)")
    else:
        tell_error(id, found)
    return 0 if found.state is State.SUCCEEDED else 1


def tell_error(id: str, found: Result) -> None:
    error = found.error
    if error is not None and error.traceback:
        saying.remark(error.traceback.rstrip())
    said = "" if error is None else message(error)
    code = f" with code {found.code}" if found.code and found.state is State.FAILED else ""
    saying.remark(f"windlass: job {id} {found.state}{code}" + (f": {said}" if said else ""))


def message(error: Error) -> str:
    """What an error says in one line."""
    said = ": ".join(part for part in (error.type, saying.first_line(error.message)) if part)
    return said or (error.reason or "")
