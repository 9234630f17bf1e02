"""`windlass queues` and `windlass workers`: how many jobs wait where, the settings of queues, and who takes their jobs.

`queues ls` and `show` combine several operations; `set` reads the settings of a queue.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter
from msgspec import UNSET, Struct
from rich.text import Text

from windlass import config
from windlass.cli import console, terminal
from windlass.cli.enqueue import serves
from windlass.cli.job_view import pending_note, wait_text
from windlass.cli.options import OUTPUT, flag, given, option, output_policy, seconds, seconds_or_none
from windlass.cli.resources import Resource, WriteLine, listing, pause_text, resource_app, run
from windlass.cli.target import HERE, Queue, Target, open_queue
from windlass.cli.terminal import Column
from windlass.model.errors import Invalid, Missing
from windlass.model.estimate import Estimate, QueueEstimate
from windlass.model.job import PENDING, Job, State
from windlass.model.limit import Pause
from windlass.model.match import Match
from windlass.model.names import EVERY_TENANT
from windlass.model.new_job import OnLost
from windlass.model.operations import (
    ChangeQueue,
    GetQueue,
    GetQueueEstimate,
    GetStats,
    Handlers,
    Operation,
    PauseWorker,
    QueueCard,
    Queues,
    QueueStats,
    StopWorker,
    WorkerChanges,
    Workers,
)
from windlass.model.outcome import Verdict
from windlass.model.output import DEFAULT_OUTPUT, OutputPolicy
from windlass.model.queue import Clearable, Policy, QueueChange, Tier
from windlass.model.worker import Worker, counted_slots

QUEUE = Parameter(name="QUEUE", help="The name of the queue.")

USUAL = frozenset({State.QUEUED, State.RUNNING, State.SUCCEEDED, State.FAILED})
"""States that always have a column."""


# Counts


class QueueCounts(Struct, frozen=True, kw_only=True):
    """The jobs of one tenant in one queue, all tasks together."""

    tenant: str
    queue: str
    states: dict[State, int]
    outcomes: dict[Verdict, int] = {}
    """Ended runs, by outcome."""
    workers: int
    """Workers that take jobs from it."""


def count_queues(stats: Sequence[QueueStats], workers: Sequence[Worker]) -> list[QueueCounts]:
    states: dict[tuple[str, str], Counter[State]] = {}
    outcomes: dict[tuple[str, str], Counter[Verdict]] = {}
    for line in stats:
        states.setdefault((line.tenant, line.queue), Counter()).update(line.states)
        outcomes.setdefault((line.tenant, line.queue), Counter()).update(line.outcomes)
    return [
        QueueCounts(
            tenant=tenant,
            queue=queue,
            states={state: count[state] for state in State if count[state]},
            outcomes=dict(outcomes[tenant, queue]),
            workers=sum(serves(worker, tenant, queue) for worker in workers),
        )
        for (tenant, queue), count in sorted(states.items())
    ]


def outcomes_text(outcomes: Mapping[Verdict, int]) -> Text:
    words = [f"{outcomes[verdict]:,} {verdict}" for verdict in Verdict if outcomes.get(verdict)]
    return Text(", ".join(words), style="dim")


def state_columns(rows: Iterable[QueueCounts | QueueStats]) -> list[Column]:
    """A column for each usual state, and for those that any job is in."""
    found = USUAL.union(*(row.states for row in rows))
    return [Column(state, partial(_count, state), right=True) for state in State if state in found]


def _count(state: State, row: QueueCounts | QueueStats) -> Text:
    """The count of a state; zero is a dot, so that the eye finds the others."""
    count = row.states.get(state)
    return Text(f"{count:,}", style=terminal.STYLES[state]) if count else Text("·", style="dim")


# Workers of a queue


def _queues_text(worker: Worker) -> str:
    """As they are given to `windlass worker -q`."""
    return ",".join(f"{one}={worker.weights[one]}" if one in worker.weights else one for one in worker.queues)


def worker_columns(found: Sequence[Worker], now: datetime) -> list[Column]:
    columns = [Column("worker", lambda worker: worker.name)]
    if any(worker.tenant == EVERY_TENANT for worker in found):
        columns.append(Column("tenant", lambda worker: "all" if worker.tenant == EVERY_TENANT else worker.tenant))
    offers = any(worker.offers for worker in found)
    measured = any(worker.usage is not None for worker in found)
    return [
        *columns,
        Column("node", lambda worker: worker.node),
        Column("pid", lambda worker: str(worker.pid or ""), right=True),
        Column("queues", _queues_text),
        *([Column("offers", lambda worker: ",".join(worker.offers))] if offers else []),
        Column("running", lambda worker: f"{worker.running} of {worker.slots}", right=True),
        Column("", lambda worker: Text(_ordered_text(worker) or "draining" * worker.draining, style="yellow")),
        *([Column("memory", _memory, right=True), Column("cpu", _cpus, right=True)] if measured else []),
        Column("handlers", _handler_languages),
        Column("since", lambda worker: console.ago(worker.registered_at, now)),
        Column("seen", lambda worker: console.ago(worker.seen_at, now)),
    ]


def _ordered_text(worker: Worker) -> str:
    """What it is ordered to do, and whether it does; empty = nothing."""
    if worker.orders.stop is not None:
        return "stopping"
    if not worker.orders.pause.paused:
        return ""
    return pause_text(worker.orders.pause) if worker.draining else "pausing"


def _memory(worker: Worker) -> str:
    return "" if worker.usage is None else console.size(worker.usage.memory)


def _cpus(worker: Worker) -> str:
    return "" if worker.usage is None else f"{worker.usage.cpu:.1f}"


def _handler_languages(worker: Worker) -> str:
    """The languages of handlers that it runs."""
    if not worker.handlers:
        return ""
    return "all" if worker.languages is None else ",".join(worker.languages)


async def _unable(queue: Queue, found: list[Worker]) -> list[str]:
    """The languages of stored handlers that a worker cannot run."""
    if not any(worker.unable for worker in found):
        return []
    stored = {str(one.lang) for one in await queue(Handlers())}
    return [
        f"{worker.name} cannot run {lang}: {worker.unable[lang]}"
        for worker in found
        for lang in stored & worker.unable.keys()
    ]


def _print_worker(_named: str, worker: Worker, _now: datetime, to: WriteLine) -> None:
    to(f"{worker.name}: {_ordered_text(worker) or 'resumed'}")


WORKER = Parameter(name="WORKER", help="Its name or id, as `workers ls` and `workers ls --json` show them.")

workers = resource_app(
    Resource(
        name="workers",
        help={
            "ls": "List the workers that are alive.",
            "pause": """Pause a worker: it claims no jobs, and what it runs goes on. It obeys within a second.

    For example:
      windlass workers pause web-1 --for 30m --why "looking for a leak"
    """,
            "resume": "Resume a worker: it claims jobs again.",
        },
        argument=WORKER,
        ls=listing(Workers),
        columns=worker_columns,
        empty="no workers; `windlass worker` starts one",
        notes=_unable,
        pause=lambda worker, pause: PauseWorker(worker=worker, pause=pause),
        pausing_creates=False,
        print_one=_print_worker,
    )
)


@workers.command
async def stop(
    worker: Annotated[str, WORKER],
    /,
    *,
    now: Annotated[bool, flag("Give its running jobs back at once.")] = False,
    target: Target = HERE,
) -> None:
    """Stop a worker as the signal TERM does: it claims no jobs, lets what runs end within its grace, and exits.

    Whatever keeps it running, like systemd or Kubernetes, may start another one in its place.
    """
    await run(StopWorker(worker=worker, now=now), target, partial(_print_worker, worker))


@workers.command(name="jobs")
async def running_jobs(*, target: Target = HERE) -> None:
    """List the running jobs, node by node: which worker runs each, for how long, and what it uses.

    Memory and CPUs are those of the job's own process and all below it: of isolated jobs, and of handlers.
    """
    async with open_queue(target) as queue:
        names = {worker.id: worker.name for worker in await queue(Workers())}
        found = [job async for job in queue.jobs(Match(state=["running"]))]
        now = await queue.now()
    found.sort(key=lambda job: (job.node or "", names.get(job.worker or "", ""), job.started_at or job.created_at))
    if target.json:
        for job in found:
            console.write_json(job)
        return
    if not found:
        console.note("nothing runs")
        return
    terminal.stdout().print(terminal.Table(running_columns(found, now), found, partial(worker_of, names)))


def worker_of(names: Mapping[str, str], job: Job) -> str:
    """Where a job runs: the heading of those of one worker."""
    worker = names.get(job.worker or "", job.worker or "")
    return f"{job.node}  {worker}" if job.node else worker


def running_columns(found: Sequence[Job], now: datetime) -> list[Column]:
    """Those that say something of one of these jobs, the most important first."""
    columns = [
        Column("job", lambda job: job.id),
        Column("task", lambda job: job.task),
        Column("for", lambda job: _since(job.started_at, now), right=True),
        Column("memory", lambda job: _used(job, "memory", console.size), right=True),
        Column("cpu", lambda job: _used(job, "cpu", "{:.1f}".format), right=True),
        Column("output", lambda job: _used(job, "output", console.size), right=True),
        Column("pid", lambda job: str(job.pid or ""), right=True),
        Column("queue", lambda job: job.queue),
        Column("", lambda job: Text(pending_note(job, now), style="dim")),
    ]
    return [column for column in columns if any(column.cell(job) for job in found)]


def _since(started: datetime | None, now: datetime) -> str:
    return "" if started is None else console.span(max(0.0, (now - started).total_seconds()))


def _used(job: Job, what: str, text: Callable[[Any], str]) -> str:
    used = None if job.usage is None else getattr(job.usage, what)
    return "" if used is None or (what == "output" and not used) else text(used)


@workers.command(name="changes")
async def worker_changes(
    limit: Annotated[int, Parameter(name="N", help="How many lines.")] = 20, /, *, target: Target = HERE
) -> None:
    """List the workers that joined, stopped or were lost last, newest first."""
    async with open_queue(target) as queue:
        found = await queue(WorkerChanges(limit=limit))
        now = await queue.now()
    if target.json:
        console.write_json(found)
        return
    if not found:
        console.note("no worker has come or gone")
        return
    columns = [
        Column("", lambda one: console.ago(one.at, now)),
        Column("", lambda one: Text(one.event, style="red" if one.event == "lost" else "")),
        Column("worker", lambda one: one.name),
        Column("node", lambda one: one.node),
        Column("id", lambda one: one.worker),
    ]
    terminal.stdout().print(terminal.Table(columns, found))


class Node(Struct, frozen=True, kw_only=True):
    """The workers of one machine together."""

    node: str
    workers: int
    draining: int
    running: int
    slots: int
    """As many as count: of draining workers those in use."""
    memory: int
    """Bytes, of the workers that report it."""
    cpu: float


def nodes_of(found: Sequence[Worker]) -> list[Node]:
    by_node: dict[str, list[Worker]] = {}
    for worker in found:
        by_node.setdefault(worker.node, []).append(worker)
    return [
        Node(
            node=node,
            workers=len(own),
            draining=sum(worker.draining for worker in own),
            running=sum(worker.running for worker in own),
            slots=sum(map(counted_slots, own)),
            memory=sum(worker.usage.memory for worker in own if worker.usage is not None),
            cpu=round(sum(worker.usage.cpu for worker in own if worker.usage is not None), 3),
        )
        for node, own in sorted(by_node.items())
    ]


@workers.command(name="nodes")
async def nodes(*, target: Target = HERE) -> None:
    """List the machines that workers run on: their slots, memory and CPUs in use."""
    async with open_queue(target) as queue:
        found = nodes_of(await queue(Workers()))
    if target.json:
        console.write_json(found)
        return
    if not found:
        console.note("no workers; `windlass worker` starts one")
        return
    columns = [
        Column("node", lambda one: one.node),
        Column("workers", lambda one: str(one.workers), right=True),
        Column("draining", lambda one: str(one.draining or ""), right=True),
        Column("running", lambda one: f"{one.running} of {one.slots}", right=True),
        Column("memory", lambda one: console.size(one.memory) if one.memory else "", right=True),
        Column("cpu", lambda one: f"{one.cpu:.1f}" if one.memory else "", right=True),
    ]
    terminal.stdout().print(terminal.Table(columns, found))


# Queues


async def _queues(queue: Queue) -> list[QueueCounts]:
    return [row for row in count_queues((await queue(GetStats())).queues, await queue(Workers())) if row.states]


def _queue_columns(found: Sequence[QueueCounts], _: datetime) -> list[Column]:
    tenant = [Column("tenant", lambda row: row.tenant)] if len({row.tenant for row in found}) > 1 else []
    workers = Column("workers", _workers_of, right=True)
    return [*tenant, Column("queue", lambda row: row.queue), *state_columns(found), workers]


def _workers_of(row: QueueCounts) -> Text:
    waits = any(row.states.get(state) for state in PENDING)
    return Text("none", style="red") if waits and not row.workers else Text(str(row.workers))


async def _paused_queues(queue: Queue, _: list[QueueCounts]) -> list[str]:
    return [queue_line(one) for one in await queue(Queues()) if one.paused]


def _pause_queue(name: str, pause: Pause) -> Operation[QueueCard]:
    change = QueueChange(paused=True, until=pause.until, why=pause.why) if pause.paused else QueueChange(paused=False)
    return ChangeQueue(queue=name, change=change)


def _print_queue(_: str, card: QueueCard, _now: datetime, to: Callable[[str], None]) -> None:
    to(queue_line(card))


def queue_line(card: QueueCard) -> str:
    """The settings of a queue in one line."""
    parts = [pause_text(card), card.policy or ("priority" if card.weights else "")]
    parts += [f"{name}={number:g}" for name, number in card.weights.items()]
    parts += [f"{tier.name} {tier.seconds:g} s at most {tier.cap}" for tier in card.tiers]
    if card.timeout is not None:
        parts.append(f"timeout {card.timeout:g} s")
    if card.isolate:
        parts.append("isolated")
    if card.on_lost != "retry":
        parts.append(f"on loss {card.on_lost}")
    if card.announcement:
        parts.append(f"announces {card.announcement!r}")
    for word, most in (("payload", card.most_payload), ("files", card.most_files)):
        if most is not None:
            parts.append(f"{word} at most {most} bytes")
    if card.output != DEFAULT_OUTPUT:
        parts.append(output_text(card.output))
    for word, keep in (("successes", card.keep_success), ("failures", card.keep_failure)):
        if keep is not UNSET:
            parts.append(f"{word} kept {'forever' if keep is None else f'{keep:g} s'}")
    return f"queue {card.queue}: {', '.join(part for part in parts if part) or 'by priority'}"


def output_text(policy: OutputPolicy) -> str:
    """An output policy for people."""
    limit = "output without a limit" if policy.limit is None else f"output at most {console.size(policy.limit)}"
    rest = ", the rest is dropped" if policy.over == "drop" and policy.limit is not None else ""
    return f"{limit}{rest}{', stderr as stdout' if policy.merged else ''}"


queues = resource_app(
    Resource(
        name="queues",
        help={
            "ls": "List queues, with the number of jobs in each state.",
            "pause": """Pause a queue: none of its jobs starts. Running jobs continue, and new jobs are accepted.

    For example:
      windlass queues pause mail --for 30m --why "server is being moved"
    """,
            "resume": "Resume a queue: its jobs start again.",
        },
        argument=QUEUE,
        key="queue",
        ls=_queues,
        columns=_queue_columns,
        empty="no queues: the first job of a queue creates it",
        notes=_paused_queues,
        pause=_pause_queue,
        print_one=_print_queue,
    )
)


class QueueView(Struct, frozen=True, kw_only=True):
    """One queue with its tasks and workers, for `--json`."""

    queue: str
    tasks: list[QueueStats]
    workers: list[Worker]
    settings: QueueCard
    estimate: QueueEstimate
    """The wait of a job that is enqueued now, and the recent error of estimates."""


@queues.command
async def show(queue: Annotated[str, QUEUE], /, *, target: Target = HERE) -> None:
    """Show a queue: its settings, its tasks, and the workers that take jobs from it.

    For example:
      windlass queues show mail
    """
    async with open_queue(target) as to:
        tasks = [line for line in (await to(GetStats())).queues if line.queue == queue]
        workers = [worker for worker in await to(Workers()) if queue in worker.queues]
        settings = await to(GetQueue(queue=queue))
        estimate = await to(GetQueueEstimate(queue=queue))
        now = await to.now()
    if not tasks and not workers and settings == QueueCard(tenant=settings.tenant, queue=queue):
        raise Missing(f"queue {queue!r} has no jobs and no workers", at="queue")
    if target.json:
        console.write_json(QueueView(queue=queue, tasks=tasks, workers=workers, settings=settings, estimate=estimate))
        return
    terminal.stdout().print(queue_line(settings), soft_wrap=True)
    terminal.stdout().print(_new_job_waits(estimate), soft_wrap=True)
    runs = Column("runs", lambda line: outcomes_text(line.outcomes))
    terminal.stdout().print(
        terminal.Table([Column("task", lambda line: line.task), *state_columns(tasks), runs], tasks)
    )
    if workers:
        terminal.stdout().print()
        terminal.stdout().print(terminal.Table(worker_columns(workers, now), workers))
    else:
        console.note("no worker takes jobs from this queue")


def _new_job_waits(estimate: QueueEstimate) -> str:
    """The wait of a job that is enqueued now, and how reliable that is."""
    wait = wait_text(Estimate(seconds=estimate.seconds or None, at_most=estimate.at_most or None, why=estimate.why))
    error = "" if estimate.error is None else f"; recent estimates were wrong by {estimate.error:.0%}"
    return f"a new job {f'waits {wait}' if wait else 'starts at once'}{error}"


def _unless_none(texts: list[str]) -> list[str]:
    return [] if texts == ["none"] else texts


def _weight(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise Invalid(f"{text!r} is not NAME=NUMBER, such as receipt=5", at="--weight") from None


def _tier(text: str) -> Tier:
    cap = "100%"
    match text.split(":"):
        case [name, time]:
            pass
        case [name, time, cap]:
            pass
        case _:
            raise Invalid(f"{text!r} is not NAME:TIME or NAME:TIME:CAP, such as slow:30s:20%", at="--tier")
    if not re.fullmatch(r"\d+(\.\d+)?%|\d+", cap):
        raise Invalid(f"the cap of {text!r} is not a number of jobs or a share of the slots: 5, 20%", at="--tier")
    return Tier(name=name, seconds=seconds(time, "--tier"), cap=int(cap) if cap.isdecimal() else cap)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """The settings to change: fields of `QueueChange`."""

    policy: Annotated[
        Policy | None, option("POLICY", "Which job is next: `priority` = strictly by it, `fair` = tasks take turns.")
    ] = None
    weights: Annotated[
        list[str] | None,
        option(
            "NAME=N",
            "Turns of this task for one turn of the others (with --tenant -: of this tenant). `none` removes all.",
            "--weight",
        ),
    ] = None
    tiers: Annotated[
        list[str] | None,
        option("NAME:TIME:CAP", "A time class, shortest first: slow:30s:20%. `none` removes all.", "--tier"),
    ] = None
    timeout: Annotated[
        float | None, option("TIME", "The timeout of jobs that set none; `none` = no limit.", read=seconds_or_none)
    ] = None
    isolate: Annotated[bool | None, flag("Run each job in a process of its own.", negative="--no-isolate")] = None
    on_lost: Annotated[
        OnLost | None,
        option(
            "HOW",
            "What to do with a job whose process or worker is lost: retry, requeue, fail (never run it again), adopt "
            "(and let its process go on).",
        ),
    ] = None
    output: Annotated[
        OutputPolicy | None,
        option(
            OUTPUT,
            "How much a job may print (512kB; `none` = no limit); beyond that it fails, or the rest is dropped. "
            "`merged`: stderr is part of stdout.",
            read=output_policy,
        ),
    ] = None
    keep_success: Annotated[
        float | None,
        option("TIME", "How long to keep records of successes; `none` = forever.", read=seconds_or_none),
    ] = None
    keep_failure: Annotated[
        float | None, option("TIME", "The same for failed and cancelled jobs.", read=seconds_or_none)
    ] = None
    announcement: Annotated[
        str | None, option("TEXT", "What those who use the queue should know, maintenance for instance.")
    ] = None
    most_payload: Annotated[
        str | None, option("BYTES", "The largest payload: 64KiB. `none` = as the server allows.")
    ] = None
    most_files: Annotated[
        str | None, option("BYTES", "Bytes of one job's files, those it comes with and those it leaves; the same.")
    ] = None
    clear: Annotated[
        list[Clearable] | None,
        option("NAME", "Reset a setting: policy, weights, tiers, timeout, isolate, on_lost, output, keep_…, most_…."),
    ] = None


NO_CHANGE = QueueOptions()


@queues.command(name="set")
async def change(queue: Annotated[str, QUEUE], /, *, options: QueueOptions = NO_CHANGE, target: Target = HERE) -> None:
    """Change the settings of a queue. Settings that are not named stay; `--clear` resets one.

    For example:
      windlass queues set web --tier fast:3s:100% --tier medium:10s:50% --tier slow:30s:20%
      windlass queues set mail --policy fair --weight newsletter=1 --weight receipt=5
      windlass queues set video --timeout 2h --isolate --on-lost fail
      windlass queues set mail --clear weights --clear keep_success
    """
    if options == NO_CHANGE:
        raise Invalid("nothing to change: give --policy, --tier, --timeout or another setting", at="queue")
    fields = given(options)
    if options.weights is not None:
        fields["weights"] = dict(map(_weight, _unless_none(options.weights)))
    if options.tiers is not None:
        fields["tiers"] = list(map(_tier, _unless_none(options.tiers)))
    for name in ("most_payload", "most_files"):
        if (text := fields.get(name)) is not None:
            fields[name] = None if text == "none" else config.size(text)
    change = ChangeQueue(queue=queue, change=QueueChange(**fields))
    await run(change, target, partial(_print_queue, queue), create=True)
