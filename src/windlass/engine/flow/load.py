"""The load of queues at one moment, as read from the store: workers, waiting and running jobs, use of limits.

Tiers are decided and estimates are made from it. It takes several reads, so its parts may differ by a moment: whatever
is written because of it must be guarded.
"""

import math
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from windlass.engine.context import EngineContext, claiming_workers
from windlass.engine.handlers import tasks_of
from windlass.model.job import State
from windlass.model.names import EVERY_TENANT
from windlass.model.worker import Worker
from windlass.policy.snapshot import queues_ahead
from windlass.store.data import ListScope, Record
from windlass.store.flow import ANY, BAR, KEY, BucketUsage, LaneBacklog, LimitRule, Rules

MOST_RUNNING = 20_000
"""Running jobs that are read."""

MOST_BUCKETS = 10_000
"""Buckets of one limit that are read."""

MOST_HEADS = 1000

MOST_LISTED = 100_000
"""Waiting jobs that are read for a forecast."""

PAGE = 1000

FEW = 8
"""Waiting jobs of each group that a brief reading lists: enough to see which priority comes next."""


class QueueLoad(Struct, frozen=True):
    """What was read."""

    now: datetime
    """By the store's clock."""
    rules: Rules
    workers: Sequence[Worker]
    """The live workers of any of the queues."""
    waiting: Sequence[LaneBacklog]
    running: Sequence[Record]
    usage: dict[str, BucketUsage]
    """The use of the waiting jobs' buckets."""
    brief: bool = False
    """Whether only a part was read: of each group the first few jobs and their number, of everything else one page."""

    @property
    def free(self) -> int:
        """Free slots."""
        return sum(max(0, worker.slots - worker.running) for worker in self.workers)


async def _able(context: EngineContext, worker: Worker) -> Worker:
    """The worker with the tasks that it can run now."""
    return replace(worker, tasks=await tasks_of(context, worker)) if worker.handlers else worker


async def read_tenant_load(
    context: EngineContext, rules: Rules, tenant: str, queue: str, *, idle_too: bool = True
) -> QueueLoad:
    """Read a tenant's load of one queue. Running jobs are read only if jobs wait, or `idle_too`.

    Of each group it reads as many waiting jobs as the live workers could run at once, and one more.
    """
    workers = [
        await _able(context, worker)
        for worker in await claiming_workers(context)
        if queue in worker.queues and worker.tenant in (EVERY_TENANT, tenant)
    ]
    heads = min(sum(worker.slots for worker in workers) + 1, MOST_HEADS)
    waiting = await context.store.flow.backlog(tenant, queue, heads)
    running = [record async for record in _running(context, tenant, queue)] if waiting or idle_too else []
    now = (await context.store.jobs.read([])).now
    return QueueLoad(now, rules, workers, waiting, running, await _usage(context, rules, waiting))


async def read_load(context: EngineContext, rules: Rules, queue: str, *, brief_beyond: float = math.inf) -> QueueLoad:
    """Read all tenants' load of a queue and of queues that its workers prefer, and all that these workers run.

    If more jobs wait than `brief_beyond`, only a part is read.
    """
    alive = await claiming_workers(context)
    queues = queues_ahead(list({tuple(worker.queues) for worker in alive}), queue)
    workers = [await _able(context, worker) for worker in alive if queues & {*worker.queues}]
    counts = (await context.store.jobs.counts(EVERY_TENANT)).jobs
    total = sum(one.count for one in counts if one.queue in queues and one.state is State.QUEUED)
    # A job may be claimed after it was counted: so running jobs are read, too, where jobs were waiting.
    active = {one.queue for one in counts if one.state in (State.QUEUED, State.RUNNING) and one.count}
    brief = total > brief_beyond
    waiting = await _waiting(context, sorted(queues & active), FEW if brief else total)
    served = sorted(active & queues.union(*(worker.queues for worker in workers)))
    most = PAGE if brief else MOST_RUNNING
    running = [record for name in served async for record in _running(context, EVERY_TENANT, name, most)]
    now = (await context.store.jobs.read([])).now
    usage = await _usage(context, rules, waiting, PAGE if brief else MOST_BUCKETS)
    return QueueLoad(now, rules, workers, waiting, running, usage, brief)


async def _waiting(context: EngineContext, queues: Sequence[str], total: int) -> list[LaneBacklog]:
    """The waiting jobs. If there are too many, only the first of the longest groups."""
    heads = max(1, total)
    if total > MOST_LISTED:
        groups = [one.count for queue in queues for one in await context.store.flow.backlog(EVERY_TENANT, queue, 1)]
        heads = even_part(groups, MOST_LISTED)
    return [one for queue in queues for one in await context.store.flow.backlog(EVERY_TENANT, queue, heads)]


def even_part(sizes: Iterable[int], most: int) -> int:
    """The largest share of each group if small groups get all they need and no group less than one."""
    left = sorted(sizes)
    for place, size in enumerate(left):
        share = most // (len(left) - place)
        if size > share:
            return max(1, share)
        most -= size
    return max(left, default=1)


async def _running(context: EngineContext, tenant: str, queue: str, most: int = MOST_RUNNING) -> AsyncIterator[Record]:
    after, seen = None, 0
    while seen < most:
        piece = await context.store.jobs.list(ListScope(tenant, queue, frozenset({State.RUNNING})), after, PAGE)
        for record in piece.records:
            yield record
        seen += len(piece.records)
        if (after := piece.next) is None:
            return


async def _usage(
    context: EngineContext, rules: Rules, waiting: Iterable[LaneBacklog], most: int = MOST_BUCKETS
) -> dict[str, BucketUsage]:
    names = {limit_of(bucket) for one in waiting for bucket in buckets(one.group)}
    found: dict[str, BucketUsage] = {}
    for name in sorted(names & rules.limit_rules.keys()):
        found |= {one.bucket: one for one in await context.store.flow.usage(name, most)}
    return found


def class_of(group: str) -> str:
    return group.partition(BAR)[0]


def buckets(group: str) -> list[str]:
    return group.split(BAR)[1:]


def limit_of(bucket: str) -> str:
    return bucket.partition(KEY)[0]


def workers_for(load: QueueLoad, one: LaneBacklog) -> list[Worker]:
    """The live workers that may claim these jobs. An empty task stands for any, and `-` for any tenant."""
    names = {one.task, f"{one.tenant}/{one.task}"}
    return [
        worker
        for worker in load.workers
        if one.queue in worker.queues
        and (worker.tenant in (EVERY_TENANT, one.tenant) or one.tenant == EVERY_TENANT)
        and (worker.tasks is None or not one.task or names & set(worker.tasks))
    ]


def paused_until(load: QueueLoad, tenant: str, queue: str, task: str) -> datetime | None:
    """When a paused lane opens; null = it is open."""
    times = [
        until
        for pattern, until in load.rules.paused_until.items()
        if until > load.now
        and all(part in (ANY, name) for part, name in zip(pattern.split(","), (tenant, queue, task), strict=True))
    ]
    return max(times, default=None)


def is_full(load: QueueLoad, bucket: str) -> bool:
    """Whether a bucket allows no start now."""
    limit_rule = load.rules.limit_rules.get(limit_of(bucket), LimitRule())
    if limit_rule.closed_until is not None and limit_rule.closed_until > load.now:
        return True
    usage = load.usage.get(bucket)
    if usage is None:
        return False
    return usage.free_at is not None or (limit_rule.running is not None and usage.running >= limit_rule.running)
