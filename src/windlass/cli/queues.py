"""`windlass queues ls|show`: how many jobs wait where, and who takes them. Pauses and settings: `queue_settings`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from cyclopts import App, Parameter
from msgspec import Struct
from rich.text import Text

from windlass.cli import saying
from windlass.cli.card import wait
from windlass.cli.place import HERE, OPTIONS, Place, opened
from windlass.cli.queue_settings import describe
from windlass.cli.workers import table_of
from windlass.model.errors import Missing
from windlass.model.estimate import Estimate, QueueEstimate
from windlass.model.handler import Language
from windlass.model.job import State
from windlass.model.lifecycle import Verdict
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import GetQueue, GetQueueEstimate, GetStats, Queues, QueueStats, Workers
from windlass.model.operations import QueueCard as QueueRecord
from windlass.model.worker import Worker

USUAL = frozenset({State.QUEUED, State.RUNNING, State.SUCCEEDED, State.FAILED})

queues = App(name="queues", help="Look at queues, pause them, and say how they are run.", group_parameters=OPTIONS)
for command in ("pause", "resume", "set"):
    queues.command(f"windlass.cli.queue_settings:{command.replace('set', 'change')}", name=command)


class QueueLine(Struct, frozen=True, kw_only=True):
    """One queue of one tenant, all its tasks together."""

    tenant: str
    queue: str
    states: dict[State, int]
    outcomes: dict[Verdict, int] = {}
    """How many runs ended so."""
    workers: int
    """How many workers take jobs from it."""


def lines(stats: Sequence[QueueStats], workers: Sequence[Worker]) -> list[QueueLine]:
    counts: dict[tuple[str, str], Counter[State]] = {}
    ended: dict[tuple[str, str], Counter[Verdict]] = {}
    for line in stats:
        counts.setdefault((line.tenant, line.queue), Counter()).update(line.states)
        ended.setdefault((line.tenant, line.queue), Counter()).update(line.outcomes)
    return [
        QueueLine(
            tenant=tenant,
            queue=queue,
            states={state: count[state] for state in State if count[state]},
            outcomes=dict(ended[tenant, queue]),
            workers=sum(serves(worker, tenant, queue) for worker in workers),
        )
        for (tenant, queue), count in sorted(counts.items())
    ]


def ended_as(outcomes: Mapping[Verdict, int]) -> Text:
    """How runs ended, in words."""
    return Text(
        ", ".join(f"{outcomes[verdict]:,} {verdict}" for verdict in Verdict if outcomes.get(verdict)), style="dim"
    )


def serves(worker: Worker, tenant: str, queue: str) -> bool:
    return worker.tenant in (tenant, EVERY_TENANT) and queue in worker.queues


def takes(worker: Worker, line: QueueStats, lang: Language | None) -> bool:
    """Whether a worker takes the jobs of a task, which has a handler in this language; null = it has none."""
    return serves(worker, line.tenant, line.queue) and (
        worker.tasks is None or line.task in worker.tasks or (lang is not None and runs(worker, lang))
    )


def runs(worker: Worker, lang: Language) -> bool:
    """Whether a worker takes jobs of handlers in this language."""
    return worker.handlers and (worker.languages is None or lang in worker.languages)


def nobody_takes(alive: Sequence[Worker], line: QueueStats) -> str:
    """Why no worker takes jobs of a task in a queue: none knows the task, or those that do take from other queues."""
    own = [one for one in alive if one.tenant in (line.tenant, EVERY_TENANT)]
    able = [one for one in own if one.tasks is None or line.task in one.tasks]
    if not able:
        return f"none knows task {line.task}"
    others = sorted({queue for one in able for queue in one.queues})
    return f"those that know task {line.task} take from {', '.join(others)}, not from {line.queue}"


@queues.command
async def ls(*, place: Place = HERE) -> None:
    """List queues, with how many jobs are in each state."""
    async with opened(place) as to:
        all_of_them = lines((await to(GetStats())).queues, await to(Workers()))
        found = [line for line in all_of_them if line.states]
        paused = [one for one in await to(Queues()) if one.paused]
    if place.json:
        saying.write_json(found)
        return
    if found:
        saying.paper().print(_table(found))
    else:
        saying.remark("no queues: a queue is there as soon as it has a job")
    for one in paused:
        saying.remark(describe(one))


def _table(found: Sequence[QueueLine]) -> saying.Table:
    several = len({line.tenant for line in found}) > 1
    names = ("tenant", "queue") if several else ("queue",)
    states = occurring(line.states for line in found)
    made = saying.Table(*names, *states, "workers", right=(*states, "workers"))
    for line in found:
        first = (line.tenant, line.queue) if several else (line.queue,)
        made.add(*first, *numbers(line.states, states), str(line.workers))
    return made


def occurring(counts: Iterable[dict[State, int]]) -> list[State]:
    """The states that have a column: those that any job is in, and those that everybody looks for."""
    found = USUAL.union(*counts)
    return [state for state in State if state in found]


def numbers(counts: dict[State, int], states: Sequence[State]) -> list[Text]:
    """A count for each state; none is a dot, so that the eye finds the others."""
    return [
        Text(f"{counts[state]:,}", style=saying.STYLES[state]) if counts.get(state) else Text("·", style="dim")
        for state in states
    ]


class QueueCard(Struct, frozen=True, kw_only=True):
    """One queue, task by task, and its workers."""

    queue: str
    tasks: list[QueueStats]
    workers: list[Worker]
    settings: QueueRecord
    estimate: QueueEstimate
    """How long a job that came now would wait, and how right estimates were lately."""


def newcomers_wait(waits: QueueEstimate) -> str:
    """How long a job that came now would wait, and how far that may be trusted."""
    told = wait(Estimate(seconds=waits.seconds, why=waits.why)) or "nothing"
    right = "" if waits.error is None else f"; estimates were wrong by {waits.error:.0%} lately"
    return f"a job that comes now waits {told}{right}"


@queues.command
async def show(queue: Annotated[str, Parameter(name="QUEUE", help="Its name.")], /, *, place: Place = HERE) -> None:
    """Show one queue: how it is run, its tasks, and the workers that take jobs from it.

    For example:
      windlass queues show mail
    """
    async with opened(place) as to:
        tasks = [line for line in (await to(GetStats())).queues if line.queue == queue]
        workers = [worker for worker in await to(Workers()) if queue in worker.queues]
        settings = await to(GetQueue(queue=queue))
        waits = await to(GetQueueEstimate(queue=queue))
    if not tasks and not workers and settings == QueueRecord(tenant=settings.tenant, queue=queue):
        raise Missing(f"no job and no worker is in queue {queue!r}", at="queue")
    if place.json:
        saying.write_json(QueueCard(queue=queue, tasks=tasks, workers=workers, settings=settings, estimate=waits))
        return
    saying.paper().print(describe(settings), soft_wrap=True)
    saying.paper().print(newcomers_wait(waits), soft_wrap=True)
    states = occurring(line.states for line in tasks)
    made = saying.Table("task", *states, "runs", right=tuple(states))
    for line in tasks:
        made.add(line.task, *numbers(line.states, states), ended_as(line.outcomes))
    saying.paper().print(made)
    if workers:
        saying.paper().print()
        saying.paper().print(table_of(workers))
    else:
        saying.remark("no worker takes jobs from this queue")
