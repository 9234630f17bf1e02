"""A queue as it stands at one moment, read for those who decide who gives way or foretell who will start.

A look is at one queue; a survey takes in those that its workers like better too. Both are made of several readings, so
they may be a little out of joint: whoever acts on them does so under guards.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.engine.handlers import tasks_of
from windlass.model.job import State
from windlass.model.names import EVERY_TENANT
from windlass.model.worker import Worker
from windlass.policy.snapshot import ahead
from windlass.store import Record, Scope, Tally
from windlass.store.flow import ANY, BAR, KEY, Allowance, Rules, Usage, Waiting

MOST_RUNNING = 20_000
"""Running jobs that are looked at."""

MOST_BUCKETS = 10_000
"""Buckets of one limit that are looked at."""

MOST_HEADS = 1000

MOST_LISTED = 100_000
"""Waiting jobs that a survey reads."""

AT_ONCE = 1000

FEW = 8
"""Waiting jobs of each group that are listed for a brief survey: enough to see which priority comes next."""


class Scene(Struct, frozen=True):
    """What was read."""

    now: datetime
    """By the store's clock."""
    rules: Rules
    workers: Sequence[Worker]
    """The live ones that serve any of the queues."""
    waiting: Sequence[Waiting]
    running: Sequence[Record]
    usage: dict[str, Usage]
    """How the buckets of waiting jobs stand, where anybody uses them."""

    @property
    def free(self) -> int:
        """Slots that no job has."""
        return sum(max(0, worker.slots - worker.running) for worker in self.workers)


async def _able(desk: Desk, worker: Worker) -> Worker:
    """With the tasks that it knows now."""
    return replace(worker, tasks=await tasks_of(desk, worker)) if worker.handlers else worker


async def look(desk: Desk, rules: Rules, tenant: str, queue: str, *, idle_too: bool = True) -> Scene:
    """Read a tenant's jobs of a queue; not those that run, unless somebody waits or `idle_too`.

    Of those that wait, as many in each group as the live workers could run at once, and one more.
    """
    workers = [
        await _able(desk, worker)
        for worker in await desk.store.workers(EVERY_TENANT)
        if queue in worker.queues and worker.tenant in (EVERY_TENANT, tenant)
    ]
    heads = min(sum(worker.slots for worker in workers) + 1, MOST_HEADS)
    waiting = await desk.flow.waiting(tenant, queue, heads)
    running = [record async for record in _running(desk, tenant, queue)] if waiting or idle_too else []
    now = (await desk.store.read([])).now
    return Scene(now, rules, workers, waiting, running, await _usage(desk, rules, waiting))


async def survey(desk: Desk, rules: Rules, queue: str, *, brief: bool = False) -> Scene:
    """Read everybody's jobs of a queue and of those that its workers like better, and all that these workers run.

    `brief`: of each group only the first few, and how many there are; of all else what one reading gives.
    """
    alive = await desk.store.workers(EVERY_TENANT)
    queues = ahead(list({tuple(worker.queues) for worker in alive}), queue)
    workers = [await _able(desk, worker) for worker in alive if queues & {*worker.queues}]
    counts = await desk.store.tally(EVERY_TENANT)
    crowded = {one.queue for one in counts if one.state is State.QUEUED and one.count}
    busy = {one.queue for one in counts if one.state is State.RUNNING and one.count}
    waiting = await _waiting(desk, sorted(queues & crowded), FEW if brief else queued_in(queues, counts))
    served = queues.union(*(worker.queues for worker in workers))
    most = AT_ONCE if brief else MOST_RUNNING
    running = [record for name in sorted(served & busy) async for record in _running(desk, EVERY_TENANT, name, most)]
    now = (await desk.store.read([])).now
    usage = await _usage(desk, rules, waiting, AT_ONCE if brief else MOST_BUCKETS)
    return Scene(now, rules, workers, waiting, running, usage)


def queued_in(queues: Collection[str], counts: Iterable[Tally]) -> int:
    return sum(one.count for one in counts if one.queue in queues and one.state is State.QUEUED)


async def _waiting(desk: Desk, queues: Sequence[str], total: int) -> list[Waiting]:
    """Those that wait, but of the longest groups only so many that all together are not too many."""
    heads = max(1, total)
    if total > MOST_LISTED:
        groups = [one.count for queue in queues for one in await desk.flow.waiting(EVERY_TENANT, queue, 1)]
        heads = even_part(groups, MOST_LISTED)
    return [one for queue in queues for one in await desk.flow.waiting(EVERY_TENANT, queue, heads)]


def even_part(sizes: Iterable[int], most: int) -> int:
    """How much each may have at most, if small ones have all they want and nobody has less than one."""
    left = sorted(sizes)
    for place, size in enumerate(left):
        share = most // (len(left) - place)
        if size > share:
            return max(1, share)
        most -= size
    return max(left, default=1)


async def _running(desk: Desk, tenant: str, queue: str, most: int = MOST_RUNNING) -> AsyncIterator[Record]:
    after, seen = None, 0
    while seen < most:
        piece = await desk.store.page(Scope(tenant, queue, frozenset({State.RUNNING})), after, AT_ONCE)
        for record in piece.records:
            yield record
        seen += len(piece.records)
        if (after := piece.next) is None:
            return


async def _usage(desk: Desk, rules: Rules, waiting: Iterable[Waiting], most: int = MOST_BUCKETS) -> dict[str, Usage]:
    names = {allowance_name(bucket) for one in waiting for bucket in buckets(one.group)}
    found: dict[str, Usage] = {}
    for name in sorted(names & rules.allowances.keys()):
        found |= {one.bucket: one for one in await desk.flow.usage(name, most)}
    return found


def class_of(group: str) -> str:
    return group.partition(BAR)[0]


def buckets(group: str) -> list[str]:
    return group.split(BAR)[1:]


def allowance_name(bucket: str) -> str:
    return bucket.partition(KEY)[0]


def known(scene: Scene, one: Waiting) -> list[Worker]:
    """The live workers that may take these jobs."""
    names = {one.task, f"{one.tenant}/{one.task}"}
    return [
        worker
        for worker in scene.workers
        if one.queue in worker.queues
        and worker.tenant in (EVERY_TENANT, one.tenant)
        and (worker.tasks is None or names & set(worker.tasks))
    ]


def shut_until(scene: Scene, tenant: str, queue: str, task: str) -> datetime | None:
    """When a lane that is shut opens; null = it is open."""
    times = [
        until
        for pattern, until in scene.rules.shut.items()
        if until > scene.now
        and all(part in (ANY, name) for part, name in zip(pattern.split(","), (tenant, queue, task), strict=True))
    ]
    return max(times, default=None)


def is_full(scene: Scene, bucket: str) -> bool:
    """Whether a bucket lets nothing start now."""
    allowance = scene.rules.allowances.get(allowance_name(bucket), Allowance())
    if allowance.closed_until is not None and allowance.closed_until > scene.now:
        return True
    usage = scene.usage.get(bucket)
    if usage is None:
        return False
    return usage.free_at is not None or (allowance.running is not None and usage.running >= allowance.running)
