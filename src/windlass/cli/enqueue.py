"""`windlass enqueue`: queue a job, and wait for its result with `--wait`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from cyclopts import Group, Parameter

from windlass.cli import console, values
from windlass.cli.options import OUTPUT, flag, given, option, output_policy, seconds
from windlass.cli.target import HERE, Queue, Target, open_queue
from windlass.engine import Engine
from windlass.engine.records import WithTaskOptions
from windlass.model.handler import HandlerEntry, Language
from windlass.model.job import FINISHED
from windlass.model.names import EVERY_TENANT
from windlass.model.new_job import AfterFailure, NewJob, OnDuplicate, OnLost, Unique, WithResults
from windlass.model.operations import Accepted, Enqueue, Handlers, QueueStats, Service, Workers
from windlass.model.output import OutputPolicy
from windlass.model.worker import Worker, unmet
from windlass.system import SystemClock

JOB_OPTIONS = Group("Job options", sort_key=10)
WAITING = Group("Waiting", sort_key=20)


def _tier(text: str, at: str) -> str | float:
    """Seconds if it is a duration, else a name."""
    return seconds(text, at) if text[:1].isdecimal() else text


def _unique(text: str, at: str) -> Unique:
    match text:
        case "pending" | "queued":
            return text
        case _:
            return seconds(text, at)


@Parameter(name="*", group=JOB_OPTIONS)
@dataclass(frozen=True, kw_only=True)
class EnqueueOptions:
    """The options of the job: fields of `NewJob`."""

    queue: Annotated[str | None, option("NAME", "The queue (that of its task, or `default`).", "--queue", "-q")] = None
    priority: Annotated[int | None, option("N", "Lower goes first (0).")] = None
    delay: Annotated[float | None, option("TIME", "Start it after this time: 90, 10m, '2h 30m'.", read=seconds)] = None
    key: Annotated[str | None, option("KEY", "A key of your own: enqueued again, it is the same job.")] = None
    unique: Annotated[
        Unique | None,
        option("WHILE", "Only if there is none like it: pending, queued, or a time.", read=_unique),
    ] = None
    unique_key: Annotated[str | None, option("KEY", "What makes a job of the task the same (its payload).")] = None
    on_duplicate: Annotated[
        OnDuplicate | None, option("HOW", "If there is one like it: join (it is that one), replace, or reject (join).")
    ] = None
    tags: Annotated[list[str] | None, option("TAG", "A tag to find it by; repeat for several.", "--tag")] = None
    after: Annotated[
        list[str] | None, option("ID", "Start it when this job has succeeded; repeat to wait for several.")
    ] = None
    after_failure: Annotated[
        AfterFailure | None, option("HOW", "If one of these does not succeed: skip (cancel it), fail, or run (skip).")
    ] = None
    with_results: Annotated[
        WithResults | None,
        option("HOW", "Pass what they returned: list or one (as first argument), or current (in current.results)."),
    ] = None
    on_failure: Annotated[str | None, option("TASK", "Queue this task, with the job's record, if the job fails.")] = (
        None
    )
    timeout: Annotated[float | None, option("TIME", "The timeout of one run (none).", read=seconds)] = None
    tier: Annotated[str | float | None, option("TIER", "The tier, by name or by seconds.", read=_tier)] = None
    yielding: Annotated[bool, flag("Start it at once or not at all; it is halted when other jobs need the slot.")] = (
        False
    )
    max_retry: Annotated[int | None, option("N", "Retries after a failure (0).")] = None
    owner_timeout: Annotated[
        float | None,
        option("TIME", "Cancel it when no client has asked for it for this long; `--wait` asks (never).", read=seconds),
    ] = None
    keep_result_for: Annotated[
        float | None, option("TIME", "How long to keep its result (as long as its record).", read=seconds)
    ] = None
    isolate: Annotated[bool, flag("Run it in a process of its own.")] = False
    on_lost: Annotated[
        OnLost | None,
        option("HOW", "What to do if its process or worker is lost: retry, requeue, fail, adopt (as its queue says)."),
    ] = None
    output: Annotated[
        OutputPolicy | None,
        option(OUTPUT, "How much it may print; beyond that it fails, or the rest is dropped.", read=output_policy),
    ] = None
    input: Annotated[bool, flag("Accept messages: see windlass jobs send.")] = False


NO_OPTIONS = EnqueueOptions()


async def enqueue(
    task: Annotated[str, Parameter(help="The task to run.")],
    payload: Annotated[str | None, Parameter(help="JSON if it parses, else text; `-` = read stdin.")] = None,
    /,
    *,
    options: EnqueueOptions = NO_OPTIONS,
    exact: Annotated[
        bool, flag("Ignore the default options of the task that workers have registered.", group=JOB_OPTIONS)
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
    new = NewJob(task=task, payload=values.payload(payload), **given(options))
    if wait is not None:
        from windlass.cli import job_view  # noqa: PLC0415 - takes long to import

        most = job_view.wait_seconds(wait)
    async with open_queue(target, create=True) as to:
        job = await _with_options(to)(Enqueue(tenant=to.tenant, job=new, exact=exact))
        if not job.created:
            console.note(f"windlass: the job exists already: {_existing(job, await to.now())}")
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
    stored = [one for one in await to(Handlers()) if one.task == job.task]
    if any(takes(worker, line, handler) for worker in alive for handler in stored):
        return ""
    return f"no worker takes it: {why_not_taken(alive, line, stored[0] if stored else None)}"


def serves(worker: Worker, tenant: str, queue: str) -> bool:
    return not worker.draining and worker.tenant in (tenant, EVERY_TENANT) and queue in worker.queues


def takes(worker: Worker, line: QueueStats, handler: HandlerEntry | None) -> bool:
    """Whether a worker takes the jobs of a task. `handler`: of this task; null = it has none."""
    return serves(worker, line.tenant, line.queue) and (
        worker.tasks is None
        or line.task in worker.tasks
        or (handler is not None and runs(worker, handler.lang) and set(handler.needs) <= set(worker.offers))
    )


def runs(worker: Worker, lang: Language) -> bool:
    return worker.handlers and (worker.languages is None or lang in worker.languages)


def why_not_taken(alive: Sequence[Worker], line: QueueStats, handler: HandlerEntry | None = None) -> str:
    """Why no worker takes the jobs of a task in a queue."""
    own = [one for one in alive if one.tenant in (line.tenant, EVERY_TENANT)]
    if handler is not None:
        known = handler.needs and any(runs(one, handler.lang) for one in own)
        return f"none offers {', '.join(handler.needs)}" if known else f"none runs {handler.lang}"
    lacks = [lacking for one in own if line.queue in one.queues and (lacking := unmet(one, line.task))]
    if lacks:
        return f"none that knows task {line.task} offers {', '.join(lacks[0])}, which it needs"
    able = [one for one in own if one.tasks is None or line.task in one.tasks]
    if not able:
        return f"none knows task {line.task}"
    if any(line.queue in one.queues for one in able):
        return f"those that take from {line.queue} are draining: they are stopping or paused"
    others = sorted({queue for one in able for queue in one.queues})
    return f"workers that know task {line.task} take from {', '.join(others)}, not from {line.queue}"


def _existing(job: Accepted, now: datetime) -> str:
    """The state of a job that existed already."""
    if job.finished_at is None:
        return job.state
    ended = f"{job.state} {console.ago(job.finished_at, now)}"
    if job.key is None and job.unique is not None:
        return ended
    return f"{ended}; its key is taken until its record is deleted: `windlass jobs rm {job.id}`"
