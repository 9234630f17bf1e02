"""`windlass enqueue`: queue a job, and wait for its result with `--wait`."""

from typing import Annotated

from cyclopts import Group, Parameter

from windlass.cli import console, job_view, values
from windlass.cli.queues import takes, why_not_taken
from windlass.cli.target import HERE, Queue, Target, open_queue
from windlass.engine import Engine
from windlass.engine.records import WithTaskOptions
from windlass.model import duration
from windlass.model.job import FINISHED, NewJob
from windlass.model.names import DEFAULT_QUEUE
from windlass.model.operations import Accepted, Enqueue, Handlers, QueueStats, Service, Workers
from windlass.system import SystemClock

JOB_OPTIONS = Group("Job options", sort_key=10)
WAITING = Group("Waiting", sort_key=20)


async def enqueue(
    task: Annotated[str, Parameter(help="The task to run.")],
    payload: Annotated[str | None, Parameter(help="JSON if it parses, else text; `-` = read stdin.")] = None,
    /,
    *,
    queue: Annotated[
        str,
        Parameter(
            name=("--queue", "-q"),
            group=JOB_OPTIONS,
            metavar="NAME",
            help="The queue (that of its task, or `default`).",
        ),
    ] = DEFAULT_QUEUE,
    priority: Annotated[int, Parameter(group=JOB_OPTIONS, metavar="N", help="Lower goes first (0).")] = 0,
    delay: Annotated[
        str | None, Parameter(group=JOB_OPTIONS, metavar="TIME", help="Start it after this time: 90, 10m, '2h 30m'.")
    ] = None,
    key: Annotated[
        str | None,
        Parameter(group=JOB_OPTIONS, metavar="KEY", help="A unique key: enqueued again, it is the same job."),
    ] = None,
    tag: Annotated[
        list[str] | None, Parameter(group=JOB_OPTIONS, metavar="TAG", help="A tag to find it by; repeat for several.")
    ] = None,
    timeout: Annotated[  # noqa: ASYNC109 - of the job, not of this call
        str | None, Parameter(group=JOB_OPTIONS, metavar="TIME", help="The timeout of one run (none).")
    ] = None,
    tier: Annotated[
        str | None, Parameter(group=JOB_OPTIONS, metavar="TIER", help="The tier, by name or by seconds.")
    ] = None,
    yielding: Annotated[
        bool,
        Parameter(
            group=JOB_OPTIONS, help="Start it at once or not at all; it is halted when other jobs need the slot."
        ),
    ] = False,
    max_retry: Annotated[int, Parameter(group=JOB_OPTIONS, metavar="N", help="Retries after a failure (0).")] = 0,
    unattended: Annotated[
        str | None,
        Parameter(
            group=JOB_OPTIONS,
            metavar="TIME",
            help="Cancel it when no client has asked for it for this long; `--wait` asks (never).",
        ),
    ] = None,
    keep_result_for: Annotated[
        str | None,
        Parameter(group=JOB_OPTIONS, metavar="TIME", help="How long to keep its result (as long as its record)."),
    ] = None,
    isolate: Annotated[bool, Parameter(group=JOB_OPTIONS, help="Run it in a process of its own.")] = False,
    takes_input: Annotated[
        bool, Parameter(name="--input", group=JOB_OPTIONS, help="Accept messages: see windlass jobs send.")
    ] = False,
    exact: Annotated[
        bool, Parameter(group=JOB_OPTIONS, help="Ignore the default options of the task that workers have registered.")
    ] = False,
    wait: Annotated[
        list[str] | None,
        Parameter(
            group=WAITING,
            metavar="[TIME]",
            consume_multiple=(0, 1),
            help="Wait for the job to end, at most TIME (no limit), and print its result. "
            "Exits 1 if it failed, 75 if it has not ended.",
        ),
    ] = None,
    target: Target = HERE,
) -> int:
    """Queue a job and print its id.

    For example:
      windlass enqueue render '{"scene": 7, "file": "a.png"}'
      windlass enqueue mail < letter.json - -q slow --delay 10m
      windlass enqueue add '[2, 3]' --wait 30
    """
    new = NewJob(
        task=task,
        payload=values.payload(payload),
        queue=queue,
        priority=priority,
        delay=_time(delay, "--delay"),
        key=key,
        tags=tag or [],
        timeout=_time(timeout, "--timeout"),
        tier=_tier(tier),
        yielding=yielding,
        max_retry=max_retry,
        unattended=_time(unattended, "--unattended"),
        keep_result_for=_time(keep_result_for, "--keep-result-for"),
        isolate=isolate,
        input=takes_input,
    )
    most = job_view.wait_seconds(wait)
    async with open_queue(target, create=True) as to:
        job = await _with_options(to)(Enqueue(tenant=to.tenant, job=new, exact=exact))
        if not job.created:
            console.note(f"windlass: the job exists already: {_existing(job)}")
        if job.state not in FINISHED and (why := await _not_taken(to, job)):
            console.note(f"windlass: {why}")
        if wait is not None:
            found = await job_view.wait_for_result(to, job.id, most)
            return job_view.print_result(job.id, found, json=target.json)
    if target.json:
        console.write_json(job)
    else:
        console.write(job.id)
    return 0


def _with_options(to: Queue) -> Service:
    """The service, with the default options of tasks added. A server adds them itself."""
    if not isinstance(to.service, Engine):
        return to.service
    return WithTaskOptions(to.service, to.service.context, SystemClock())


async def _not_taken(to: Queue, job: Accepted) -> str:
    """Why none of the live workers takes a job; empty = one does, or there are none."""
    alive = await to(Workers())
    line = QueueStats(tenant=job.tenant, queue=job.queue, task=job.task, states={})
    if not alive or any(takes(worker, line, None) for worker in alive):
        return ""
    langs = [one.lang for one in await to(Handlers()) if one.task == job.task]
    if any(takes(worker, line, lang) for worker in alive for lang in langs):
        return ""
    return f"no worker takes it: {f'none runs {langs[0]}' if langs else why_not_taken(alive, line)}"


def _existing(job: Accepted) -> str:
    """The state of a job that existed already."""
    if job.finished_at is None:
        return job.state
    ended = f"{job.state} {console.ago(job.finished_at, SystemClock().now())}"
    return f"{ended}; its key is taken until its record is deleted: `windlass jobs rm {job.id}`"


def _time(text: str | None, at: str) -> float | None:
    return None if text is None else duration.seconds(text, at=at)


def _tier(text: str | None) -> str | float | None:
    """Seconds if it is a duration, else a name."""
    if text is None or not text[:1].isdecimal():
        return text
    return duration.seconds(text, at="--tier")
