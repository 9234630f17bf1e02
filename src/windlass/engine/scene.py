"""A queue as it stands at one moment, read for those who decide who gives way or foretell who will start.

Made of several readings, so it may be a little out of joint: whoever acts on it does so under guards.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.engine.handlers import tasks_of
from windlass.model.job import State
from windlass.model.names import EVERY_TENANT
from windlass.model.worker import Worker
from windlass.store import Record, Scope
from windlass.store.flow import ANY, BAR, KEY, Allowance, Rules, Usage, Waiting

MOST_RUNNING = 20_000
"""Running jobs that are looked at."""

MOST_BUCKETS = 10_000
"""Buckets of one limit that are looked at."""

MOST_HEADS = 1000

AT_ONCE = 1000


class Scene(Struct, frozen=True):
    """What was read."""

    now: datetime
    """By the store's clock."""
    rules: Rules
    workers: Sequence[Worker]
    """The live ones that serve the queue."""
    waiting: Sequence[Waiting]
    running: Sequence[Record]
    usage: dict[str, Usage]
    """How the buckets of waiting jobs stand, where anybody uses them."""

    @property
    def free(self) -> int:
        """Slots that no job has."""
        return sum(max(0, worker.slots - worker.running) for worker in self.workers)


async def live_workers(desk: Desk, tenant: str, queue: str) -> list[Worker]:
    """Those who take such jobs, with the tasks that they know now; `-` = of any tenant."""
    return [
        replace(worker, tasks=await tasks_of(desk, worker)) if worker.handlers else worker
        for worker in await desk.store.workers(EVERY_TENANT)
        if queue in worker.queues and (EVERY_TENANT in (tenant, worker.tenant) or worker.tenant == tenant)
    ]


async def look(
    desk: Desk, rules: Rules, tenant: str, queue: str, *, heads: int | None = None, idle_too: bool = True
) -> Scene:
    """Read a tenant's jobs of a queue (`-` = everybody's); not those that run, unless somebody waits or `idle_too`.

    Of those that wait, so many in each group; null = as many as the live workers could run at once, and one more.
    """
    workers = await live_workers(desk, tenant, queue)
    if heads is None:
        heads = min(sum(worker.slots for worker in workers) + 1, MOST_HEADS)
    waiting = await desk.flow.waiting(tenant, queue, heads)
    running = [record async for record in _running(desk, tenant, queue)] if waiting or idle_too else []
    now = (await desk.store.read([])).now
    return Scene(now, rules, workers, waiting, running, await _usage(desk, rules, waiting))


async def _running(desk: Desk, tenant: str, queue: str) -> AsyncIterator[Record]:
    after, seen = None, 0
    while seen < MOST_RUNNING:
        piece = await desk.store.page(Scope(tenant, queue, frozenset({State.RUNNING})), after, AT_ONCE)
        for record in piece.records:
            yield record
        seen += len(piece.records)
        if (after := piece.next) is None:
            return


async def _usage(desk: Desk, rules: Rules, waiting: Iterable[Waiting]) -> dict[str, Usage]:
    names = {allowance_name(bucket) for one in waiting for bucket in buckets(one.group)}
    found: dict[str, Usage] = {}
    for name in sorted(names & rules.allowances.keys()):
        found |= {one.bucket: one for one in await desk.flow.usage(name, MOST_BUCKETS)}
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
        if worker.tenant in (EVERY_TENANT, one.tenant) and (worker.tasks is None or names & set(worker.tasks))
    ]


def shut_until(scene: Scene, one: Waiting) -> datetime | None:
    """When a lane that is shut opens; null = it is open."""
    times = [
        until
        for pattern, until in scene.rules.shut.items()
        if until > scene.now
        and all(
            part in (ANY, name)
            for part, name in zip(pattern.split(","), (one.tenant, one.queue, one.task), strict=True)
        )
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
