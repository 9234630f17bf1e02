"""Applies the tier policy: running jobs make room for waiting ones, as `policy.tiers` decides.

Stores start jobs within the caps; this module shrinks and halts running jobs. Any number of engines may rebalance the
same queue at once: each move is guarded, and all engines pick the same job for the same need.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import count
from operator import itemgetter

from msgspec.structs import replace

from windlass.engine.context import EngineContext
from windlass.engine.flow.config import YIELDS_WITHIN
from windlass.engine.flow.load import QueueLoad, buckets, class_of, is_full, paused_until, read_tenant_load, workers_for
from windlass.model import lifecycle
from windlass.model.errors import Busy, PartAway
from windlass.model.job import State
from windlass.model.lifecycle import ORDERS, Move
from windlass.model.names import EVERY_TENANT, JobKey
from windlass.policy import tiers as policy
from windlass.policy.tiers import Draw, TierClass, TieredQueue, TieredRun, TieredWait
from windlass.store.data import Record
from windlass.store.flow import EXPLICIT, YIELDING, LaneBacklog, Rules, TierRule


async def rebalance(context: EngineContext, tenant: str, queue: str) -> int:
    """Let running jobs of a tenant's queue make room for waiting ones; how many did.

    None while a partition that must be read is away: a claim or an enqueue must not fail because of it.
    """
    try:
        return await _rebalance(context, (await context.flow_config.current()).rules, tenant, queue)
    except PartAway:
        return 0


async def rebalance_all(context: EngineContext) -> int:
    """The same for all queues with tiers that have waiting jobs."""
    if not (await context.flow_config.current()).rules.tiers:
        return (
            0  # as of a second ago: `update_caps` refreshes the cache every second, and this runs four times as often
        )
    rules = (await context.flow_config.refreshed()).rules
    counts = (await context.store.jobs.counts(EVERY_TENANT)).jobs
    queues = {(one.tenant, one.queue) for one in counts if one.state is State.QUEUED and one.count}
    done = [await _rebalance(context, rules, *name) for name in sorted(queues) if ",".join(name) in rules.tiers]
    return sum(done)


async def admit_yielding(context: EngineContext, tenant: str, queue: str, ids: Sequence[str]) -> None:
    """Refuse yielding jobs unless a slot is free for each. If refused, the longest flexible job loses a tier."""
    rules = (await context.flow_config.current()).rules
    levels = rules.tiers.get(f"{tenant},{queue}")
    if levels is None:
        return
    coming = context.admitted.setdefault((tenant, queue), {})
    # Read before the load: jobs that have arrived by now are part of it.
    records = (await context.store.jobs.read([JobKey(id, tenant) for id in {*ids, *coming}])).records
    arrived = {record.job.id for record in records if record is not None}
    load = await read_tenant_load(context, rules, tenant, queue)
    for id in [id for id, until in coming.items() if id in arrived or until < load.now]:
        del coming[id]
    fresh = {*ids} - arrived - coming.keys()  # repeated requests are admitted already
    answer = policy.admit(_tiered_queue(load, levels, len(coming)), context.chance.fraction, len(fresh))
    if answer.admitted:
        coming.update(dict.fromkeys(fresh, load.now + timedelta(seconds=YIELDS_WITHIN)))
        return
    await _apply_decisions(context, load, levels, answer.shrinks, [])
    raise Busy(f"no slot is free in queue {queue!r}, and a yielding job does not wait: try again later")


async def _rebalance(context: EngineContext, rules: Rules, tenant: str, queue: str) -> int:
    levels = rules.tiers.get(f"{tenant},{queue}")
    if levels is None:
        return 0
    load = await read_tenant_load(context, rules, tenant, queue, idle_too=False)
    tiered = _tiered_queue(load, levels)
    if not tiered.waiting:
        return 0
    decided = policy.cycle(tiered, _seeded_chance(tiered.waiting[0].id))
    return await _apply_decisions(context, load, levels, decided.shrinks, decided.halts)


def _tiered_queue(load: QueueLoad, levels: Sequence[TierRule], coming: int = 0) -> TieredQueue:
    """The load as the policy sees it: of the waiting jobs only those that could start at once if they had a place.

    `coming`: admitted yielding jobs that are not stored yet.
    """
    places = {level.name: place for place, level in enumerate(levels)}
    # An admitted yielding job has a slot already, though it has not been claimed yet.
    expected = sum(one.count for one in load.waiting if class_of(one.group) == YIELDING)
    waiting = [
        (key, _wanted(one, places))
        for one in load.waiting
        if class_of(one.group) != YIELDING and _could_start(load, one)
        for key in one.jobs
    ]
    return TieredQueue(
        levels=[policy.TierLevel(level.name, level.seconds, level.cap) for level in levels],
        slots=load.free + len(load.running) - expected - coming,
        running=[_run(record, places) for record in load.running],
        waiting=[TieredWait(key[2], wanted) for key, wanted in sorted(waiting, key=itemgetter(0))],
    )


def _wanted(one: LaneBacklog, places: Mapping[str, int]) -> int | None:
    kind = class_of(one.group)
    if not kind:
        return policy.SHORTEST  # it came before the queue had tiers: only slots bound it
    return places.get(kind.removeprefix(EXPLICIT))


def _run(record: Record, places: Mapping[str, int]) -> TieredRun:
    kind = class_of(record.group)
    stopping = record.job.reason in ORDERS
    if kind == YIELDING:
        return TieredRun(record.job.id, TierClass.YIELDING, stopping=stopping)
    level = places.get(record.job.assigned or "", policy.SHORTEST)
    asked = kind == EXPLICIT + (record.job.assigned or "") or not kind
    return TieredRun(record.job.id, TierClass.EXPLICIT if asked else TierClass.FLEXIBLE, level, stopping)


def _could_start(load: QueueLoad, one: LaneBacklog) -> bool:
    return (
        bool(workers_for(load, one))
        and paused_until(load, one.tenant, one.queue, one.task) is None
        and not any(is_full(load, bucket) for bucket in buckets(one.group))
    )


def _seeded_chance(seed: str) -> Draw:
    """The same numbers for the same seed in every engine, so that two engines do not shrink two jobs for one need."""
    numbers = count()

    def draw() -> float:
        digest = hashlib.blake2b(f"{seed} {next(numbers)}".encode(), digest_size=6).digest()
        return int.from_bytes(digest) / 2**48

    return draw


async def _apply_decisions(
    context: EngineContext,
    load: QueueLoad,
    levels: Sequence[TierRule],
    shrinks: Mapping[str, int],
    halts: Sequence[str],
) -> int:
    records = {record.job.id: record for record in load.running}
    moves = [_shrink(records[id], levels[level]) for id, level in shrinks.items() if id in records]
    moves += [_fenced(lifecycle.halt(records[id].job), records[id]) for id in halts if id in records]
    return sum(await context.writes.apply(moves)) if moves else 0


def _shrink(record: Record, level: TierRule) -> Move:
    return _fenced(lifecycle.shrink(record.job, level.name, level.seconds), record)


def _fenced(move: Move, record: Record) -> Move:
    return replace(move, fence=record.token)
