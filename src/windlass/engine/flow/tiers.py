"""Applies the tier policy: running jobs make room for waiting ones, yielding jobs are admitted or denied.

Stores start jobs within the caps; this module shrinks and halts running jobs. It decides from a load that takes several
reads, while other engines, workers and callers go on. So each decision carries what it counts on, and the store checks
that in the step that writes it: of five engines that shrink a job for the same need, one does.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import count
from operator import itemgetter

from msgspec.structs import replace

from windlass.engine.context import EngineContext
from windlass.engine.flow.apply import tier_levels, update_tier_caps
from windlass.engine.flow.load import QueueLoad, buckets, class_of, is_full, paused_until, read_tenant_load, workers_for
from windlass.model import lifecycle
from windlass.model.errors import Busy, PartAway
from windlass.model.job import State
from windlass.model.lifecycle import STOP_ORDERS, Move
from windlass.model.names import EVERY_TENANT, JobKey, key_of
from windlass.policy import tiers as policy
from windlass.policy.tiers import Admission, Decisions, Draw, Need, TierClass, TieredQueue, TieredRun, TieredWait
from windlass.store.data import Added, Draft, Record
from windlass.store.flow import (
    EXPLICIT,
    YIELDING,
    FreeSlots,
    LaneBacklog,
    NoFreeSlot,
    Room,
    RoomNeed,
    Rules,
    StaleRules,
    TierRule,
    TierSlots,
)

MOST_TRIES = 4
"""How often a decision is made again because others changed meanwhile what it counted on."""


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


async def _rebalance(context: EngineContext, rules: Rules, tenant: str, queue: str) -> int:
    done = 0
    for _ in range(MOST_TRIES):
        if f"{tenant},{queue}" not in rules.tiers:
            return done
        load = await read_tenant_load(context, rules, tenant, queue, idle_too=False)
        if not load.waiting:
            return done
        levels = await _current_levels(context, load, tenant, queue)
        if levels is None:
            rules = (await context.flow_config.current()).rules
            continue
        tiered = _tiered_queue(load, levels)
        if not tiered.waiting:
            return done
        decided = policy.cycle(tiered, _seeded_chance(tiered.waiting[0].id))
        moves = _room_moves(load, levels, decided)
        applied = await _make_room(context, load, _slots(load, tenant, queue), moves, list(decided.starts))
        done += sum(applied)
        if all(applied):
            return done
    return done


async def admit_yielding(context: EngineContext, tenant: str, queue: str, drafts: Sequence[Draft]) -> list[Added]:
    """Add yielding jobs of a tenant's queue if a slot is free for each; for each whether it is new.

    If they are denied, the longest flexible job loses a tier.
    """
    for _ in range(MOST_TRIES):
        config = await context.flow_config.refreshed()
        load = await read_tenant_load(context, config.rules, tenant, queue)
        levels = await _current_levels(context, load, tenant, queue)
        if levels is None:
            continue
        # Jobs that have arrived by now are sent again, and part of the load.
        known = (await context.store.jobs.read([key_of(draft) for draft in drafts])).records
        fresh = sum(record is None for record in known)
        where = _slots(load, tenant, queue)
        answer = policy.admit(_tiered_queue(load, levels), context.chance.fraction, fresh)
        if not answer.admitted and fresh:
            await _make_room(context, load, where, _denied_moves(load, levels, answer, fresh), answer.ahead)
            break
        try:
            slots = FreeSlots(where, len(answer.ahead))
            return await context.writes.add(config.resolve_all(drafts), wait_for_replicas=True, slots=slots)
        except StaleRules:
            context.flow_config.invalidate()
        except NoFreeSlot:
            pass  # others took it meanwhile
    raise Busy(f"no slot is free in queue {queue!r}, and a yielding job does not wait: try again later")


async def _current_levels(
    context: EngineContext, load: QueueLoad, tenant: str, queue: str
) -> Sequence[TierRule] | None:
    """The tiers with the caps that follow from the workers of this load; null = the rules were older: read again."""
    name = f"{tenant},{queue}"
    config = await context.flow_config.refreshed()
    levels, settings = config.rules.tiers.get(name), config.queues.get(name)
    if config.rules.version == load.rules.version and levels is not None:
        if settings is None or levels == tier_levels(name, settings, load.workers):
            return levels
        await update_tier_caps(context)  # a worker has just come or gone
    return None


def _slots(load: QueueLoad, tenant: str, queue: str) -> TierSlots:
    return TierSlots(tenant, queue, {worker.id: worker.slots for worker in load.workers})


def _tiered_queue(load: QueueLoad, levels: Sequence[TierRule]) -> TieredQueue:
    """The load as the policy sees it: of the waiting jobs only those that could start at once if they had a place."""
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
        slots=load.free + len(load.running) - expected,
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
    stopping = record.job.reason in STOP_ORDERS
    if kind == YIELDING:
        return TieredRun(record.job.id, TierClass.YIELDING, stopping=stopping)
    level = places.get(record.job.assigned or "", policy.SHORTEST)
    asked = not kind or kind.removeprefix(EXPLICIT) in places
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


def _room_moves(load: QueueLoad, levels: Sequence[TierRule], decided: Decisions) -> list[tuple[Move, RoomNeed]]:
    """Decisions with what they count on: the job that needs room, and how many start before it."""
    records = {record.job.id: record for record in load.running}
    moves = _shrinks(load, levels, decided.shrinks)
    moves |= {id: _fenced(lifecycle.halt(records[id].job), records[id]) for id in decided.halts}
    promised = len(_promised(load))
    return [(move, _room_need(move, decided.needs[id], levels, promised)) for id, move in moves.items()]


def _shrinks(load: QueueLoad, levels: Sequence[TierRule], shrinks: Mapping[str, int]) -> dict[str, Move]:
    records = {record.job.id: record for record in load.running}
    return {id: _shrink(records[id], levels[level]) for id, level in shrinks.items()}


def _room_need(move: Move, need: Need, levels: Sequence[TierRule], promised: int) -> RoomNeed:
    full = None if need.level is None else levels[need.level].name
    return RoomNeed(JobKey(need.waiting, move.tenant), full, ahead=promised + need.ahead)


def _promised(load: QueueLoad) -> list[str]:
    """The yielding jobs that were admitted and not claimed yet: each has a slot."""
    return [key[2] for one in load.waiting if class_of(one.group) == YIELDING for key in one.jobs]


def _denied_moves(
    load: QueueLoad, levels: Sequence[TierRule], answer: Admission, number: int
) -> list[tuple[Move, RoomNeed]]:
    """So many yielding jobs are denied: a flexible job loses a tier, unless slots for them have become free."""
    need = RoomNeed(None, slots=number, ahead=len(_promised(load)) + len(answer.ahead))
    return [(move, need) for move in _shrinks(load, levels, answer.shrinks).values()]


async def _make_room(
    context: EngineContext,
    load: QueueLoad,
    where: TierSlots,
    moves: Sequence[tuple[Move, RoomNeed]],
    starts: Sequence[str],
) -> list[bool]:
    if not moves:
        return []
    may_stop = [
        key_of(one.job) for one in load.running if class_of(one.group) == YIELDING or one.job.reason in STOP_ORDERS
    ]
    ahead = [JobKey(id, where.tenant) for id in (*_promised(load), *starts)]
    room = Room(where, [need for _, need in moves], may_stop, ahead)
    return await context.writes.apply([move for move, _ in moves], room)


def _shrink(record: Record, level: TierRule) -> Move:
    return _fenced(lifecycle.shrink(record.job, level.name, level.seconds), record)


def _fenced(move: Move, record: Record) -> Move:
    return replace(move, fence=record.token)
