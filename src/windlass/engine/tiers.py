"""Tiers at work: running jobs give way to waiting ones, as `policy.tiers` decides.

Stores start jobs by the caps; what is left to do is to shrink and to halt. Any number of engines may attend to the same
line at once: each move is guarded by what its job was, and all of them draw the same lots for the same need.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import count
from operator import itemgetter

from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.engine.regime import YIELDS_WITHIN
from windlass.engine.scene import Scene, buckets, class_of, is_full, known, look, shut_until
from windlass.model import lifecycle
from windlass.model.errors import Busy, PartAway
from windlass.model.job import State
from windlass.model.lifecycle import ORDERS, Move
from windlass.model.names import EVERY_TENANT, JobKey
from windlass.policy import tiers as policy
from windlass.policy.tiers import Chance, Kind, Line, Run, Wait
from windlass.store import Record
from windlass.store.flow import EXPLICIT, YIELDING, Level, Rules, Waiting


async def attend(desk: Desk, tenant: str, queue: str) -> int:
    """Let running jobs of a tenant's queue give way to those that wait; how many did.

    None while a part of the store is away that would have to be asked: whoever claims or queues must not fail of it.
    """
    try:
        return await _attend(desk, (await desk.regimes.current()).rules, tenant, queue)
    except PartAway:
        return 0


async def attend_all(desk: Desk) -> int:
    """The same for all lines with tiers in which somebody waits."""
    if not (await desk.regimes.current()).rules.tiers:
        return 0  # or there were none a second ago: keeping caps looks as often, and this four times as often
    rules = (await desk.regimes.refreshed()).rules
    counts = await desk.store.tally(EVERY_TENANT)
    lines = {(one.tenant, one.queue) for one in counts if one.state is State.QUEUED and one.count}
    done = [await _attend(desk, rules, *line) for line in sorted(lines) if ",".join(line) in rules.tiers]
    return sum(done)


async def admit(desk: Desk, tenant: str, queue: str, ids: Sequence[str]) -> None:
    """Refuse yielding jobs unless a place is free for each; the longest of the flexible jobs loses some time then."""
    rules = (await desk.regimes.current()).rules
    levels = rules.tiers.get(f"{tenant},{queue}")
    if levels is None:
        return
    coming = desk.let_in.setdefault((tenant, queue), {})
    # Read before the look: whoever has arrived by now is seen there.
    records = (await desk.store.read([JobKey(id, tenant) for id in {*ids, *coming}])).records
    arrived = {record.job.id for record in records if record is not None}
    scene = await look(desk, rules, tenant, queue)
    for id in [id for id, until in coming.items() if id in arrived or until < scene.now]:
        del coming[id]
    fresh = {*ids} - arrived - coming.keys()  # what is sent again is let in already
    answer = policy.admit(_line(scene, levels, len(coming)), desk.chance.fraction, len(fresh))
    if answer.admitted:
        coming.update(dict.fromkeys(fresh, scene.now + timedelta(seconds=YIELDS_WITHIN)))
        return
    await _carry_out(desk, scene, levels, answer.shrinks, [])
    raise Busy(f"no place is free in queue {queue!r}, and a yielding job does not wait: try again later")


async def _attend(desk: Desk, rules: Rules, tenant: str, queue: str) -> int:
    levels = rules.tiers.get(f"{tenant},{queue}")
    if levels is None:
        return 0
    scene = await look(desk, rules, tenant, queue, idle_too=False)
    line = _line(scene, levels)
    if not line.waiting:
        return 0
    decided = policy.cycle(line, _lots(line.waiting[0].id))
    return await _carry_out(desk, scene, levels, decided.shrinks, decided.halts)


def _line(scene: Scene, levels: Sequence[Level], coming: int = 0) -> Line:
    """The scene as the policy sees it: only what could start at once if it had a place is said to wait.

    `coming` = yielding jobs that were let in and are not there yet.
    """
    places = {level.name: place for place, level in enumerate(levels)}
    # A yielding job that was let in has a slot already, though it has not been claimed yet.
    expected = sum(one.count for one in scene.waiting if class_of(one.group) == YIELDING)
    waiting = [
        (key, _wanted(one, places))
        for one in scene.waiting
        if class_of(one.group) != YIELDING and _could_start(scene, one)
        for key in one.jobs
    ]
    return Line(
        levels=[policy.Level(level.name, level.seconds, level.cap) for level in levels],
        slots=scene.free + len(scene.running) - expected - coming,
        running=[_run(record, places) for record in scene.running],
        waiting=[Wait(key[2], wanted) for key, wanted in sorted(waiting, key=itemgetter(0))],
    )


def _wanted(one: Waiting, places: Mapping[str, int]) -> int | None:
    kind = class_of(one.group)
    if not kind:
        return policy.SHORTEST  # it came before there were tiers: it is bound by slots alone
    return places.get(kind.removeprefix(EXPLICIT))


def _run(record: Record, places: Mapping[str, int]) -> Run:
    kind = class_of(record.group)
    stopping = record.job.reason in ORDERS
    if kind == YIELDING:
        return Run(record.job.id, Kind.YIELDING, stopping=stopping)
    level = places.get(record.job.assigned or "", policy.SHORTEST)
    asked = kind == EXPLICIT + (record.job.assigned or "") or not kind
    return Run(record.job.id, Kind.EXPLICIT if asked else Kind.FLEXIBLE, level, stopping)


def _could_start(scene: Scene, one: Waiting) -> bool:
    return (
        bool(known(scene, one))
        and shut_until(scene, one.tenant, one.queue, one.task) is None
        and not any(is_full(scene, bucket) for bucket in buckets(one.group))
    )


def _lots(seed: str) -> Chance:
    """The same numbers for the same seed, whoever draws: so that two engines do not take from two jobs for one."""
    numbers = count()

    def draw() -> float:
        digest = hashlib.blake2b(f"{seed} {next(numbers)}".encode(), digest_size=6).digest()
        return int.from_bytes(digest) / 2**48

    return draw


async def _carry_out(
    desk: Desk, scene: Scene, levels: Sequence[Level], shrinks: Mapping[str, int], halts: Sequence[str]
) -> int:
    records = {record.job.id: record for record in scene.running}
    moves = [_shrink(records[id], levels[level]) for id, level in shrinks.items() if id in records]
    moves += [_fenced(lifecycle.halt(records[id].job), records[id]) for id in halts if id in records]
    return sum(await desk.store.apply(moves)) if moves else 0


def _shrink(record: Record, level: Level) -> Move:
    return _fenced(lifecycle.shrink(record.job, level.name, level.seconds), record)


def _fenced(move: Move, record: Record) -> Move:
    return replace(move, fence=record.token)
