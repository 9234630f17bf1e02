"""`windlass enqueue`: queue one job."""

from typing import Annotated

from cyclopts import Group, Parameter

from windlass.cli import following, saying, values
from windlass.cli.place import HERE, Place, Queue, opened
from windlass.cli.queues import nobody_takes, takes
from windlass.engine import Engine
from windlass.engine.task_options import WithTaskOptions
from windlass.model import duration
from windlass.model.job import FINISHED, NewJob
from windlass.model.names import DEFAULT_QUEUE
from windlass.model.operations import Accepted, Enqueue, Handlers, QueueStats, Service, Workers
from windlass.system import SystemClock

WISHES = Group("The job", sort_key=10)
AFTERWARDS = Group("Afterwards", sort_key=20)


async def enqueue(
    task: Annotated[str, Parameter(help="Which code the job runs.")],
    payload: Annotated[str | None, Parameter(help="JSON if it reads as JSON, else text; `-` = from stdin.")] = None,
    /,
    *,
    queue: Annotated[
        str,
        Parameter(
            name=("--queue", "-q"),
            group=WISHES,
            metavar="NAME",
            help="The queue (its task's, or `default`).",
        ),
    ] = DEFAULT_QUEUE,
    priority: Annotated[int, Parameter(group=WISHES, metavar="N", help="Lower goes first (0).")] = 0,
    delay: Annotated[
        str | None, Parameter(group=WISHES, metavar="TIME", help="How long it waits first: 90, 10m, '2h 30m'.")
    ] = None,
    key: Annotated[
        str | None, Parameter(group=WISHES, metavar="KEY", help="Your name for it: the same key again is the same job.")
    ] = None,
    tag: Annotated[
        list[str] | None, Parameter(group=WISHES, metavar="TAG", help="A word to find it by; several times for more.")
    ] = None,
    timeout: Annotated[  # noqa: ASYNC109 - of the job, not of this call
        str | None, Parameter(group=WISHES, metavar="TIME", help="How long one run may take (for ever).")
    ] = None,
    tier: Annotated[
        str | None, Parameter(group=WISHES, metavar="TIER", help="The time class it asks for, by name or by seconds.")
    ] = None,
    yielding: Annotated[
        bool, Parameter(group=WISHES, help="Start it at once or not at all; it is halted when others need the place.")
    ] = False,
    max_retry: Annotated[int, Parameter(group=WISHES, metavar="N", help="Re-runs after a failure (0).")] = 0,
    unattended: Annotated[
        str | None,
        Parameter(
            group=WISHES,
            metavar="TIME",
            help="Cancel it when nobody has asked for it for so long; `--wait` asks (never).",
        ),
    ] = None,
    keep_result_for: Annotated[
        str | None,
        Parameter(group=WISHES, metavar="TIME", help="How long its result stays (as long as its record)."),
    ] = None,
    isolate: Annotated[bool, Parameter(group=WISHES, help="Run it in a process of its own.")] = False,
    takes_input: Annotated[
        bool, Parameter(name="--input", group=WISHES, help="Let messages be sent to it: see windlass jobs send.")
    ] = False,
    exact: Annotated[
        bool, Parameter(group=WISHES, help="Leave out the options of its task, which its workers have registered.")
    ] = False,
    wait: Annotated[
        list[str] | None,
        Parameter(
            group=AFTERWARDS,
            metavar="[TIME]",
            consume_multiple=(0, 1),
            help="Wait for the end, for ever or so long, and print the result. "
            "A failed job exits 1, an unfinished one 75.",
        ),
    ] = None,
    place: Place = HERE,
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
    most = following.patience(wait)
    async with opened(place, create=True) as to:
        job = await _with_options(to)(Enqueue(tenant=to.tenant, job=new, exact=exact))
        if not job.created:
            saying.remark(f"windlass: already there: {_standing(job)}")
        if job.state not in FINISHED and (why := await _nobody_takes(to, job)):
            saying.remark(f"windlass: {why}")
        if wait is not None:
            found = await following.outcome(to, job.id, most)
            return following.tell(job.id, found, json=place.json)
    if place.json:
        saying.write_json(job)
    else:
        saying.write(job.id)
    return 0


def _with_options(to: Queue) -> Service:
    """What answers there, with the options of tasks: a server adds them itself."""
    if not isinstance(to.service, Engine):
        return to.service
    return WithTaskOptions(to.service, to.service.desk, SystemClock())


async def _nobody_takes(to: Queue, job: Accepted) -> str:
    """Why none of the workers that are there will take a job; empty if one does, or if there are none yet."""
    alive = await to(Workers())
    line = QueueStats(tenant=job.tenant, queue=job.queue, task=job.task, states={})
    if not alive or any(takes(worker, line, None) for worker in alive):
        return ""
    langs = [one.lang for one in await to(Handlers()) if one.task == job.task]
    if any(takes(worker, line, lang) for worker in alive for lang in langs):
        return ""
    return f"no worker takes it: {f'none runs {langs[0]}' if langs else nobody_takes(alive, line)}"


def _standing(job: Accepted) -> str:
    """What has become of a job that was there already."""
    if job.finished_at is None:
        return job.state
    ended = f"{job.state} {saying.ago(job.finished_at, SystemClock().now())}"
    return f"{ended}; its key answers until the record is gone, `windlass jobs rm {job.id}` removes it"


def _time(text: str | None, at: str) -> float | None:
    return None if text is None else duration.seconds(text, at=at)


def _tier(text: str | None) -> str | float | None:
    """Seconds, if it reads as a time; else a name."""
    if text is None or not text[:1].isdecimal():
        return text
    return duration.seconds(text, at="--tier")
