"""Tiers where a decision must hold in the step that writes it: yielding jobs are admitted, running jobs make room.

The engine decides from what it has read; others may have written since. Here the numbers that it decided from are
counted again, in the same transaction.
"""

from collections.abc import Sequence

from windlass.model.lifecycle import STOP_ORDERS, Move
from windlass.model.names import JobKey
from windlass.store.data import Added, Draft
from windlass.store.flow import YIELDING, FreeSlots, NoFreeSlot, Room, RoomNeed, TierSlots
from windlass.store.sqlite import jobs, transitions
from windlass.store.sqlite.flow import level_bucket
from windlass.store.sqlite.transaction import (
    QUEUED,
    RUNNING,
    Transaction,
    blob_array,
    job_key,
    job_keys,
    level_buckets,
    levels_of,
    text_array,
)

_HELD = "SELECT worker, count(*) FROM lease WHERE worker IN carray(?) GROUP BY worker"
_PROMISED = f"""
    SELECT coalesce(sum(queued), 0) FROM lane WHERE tenant = ? AND queue = ? AND limit_keys GLOB '{YIELDING}*'
"""
_KNOWN = "SELECT count(*) FROM job WHERE id IN carray(?)"
_IS_QUEUED = f"SELECT 1 FROM job WHERE id = ? AND state = {QUEUED}"
_QUEUED = f"SELECT count(*) FROM job WHERE id IN carray(?) AND state = {QUEUED}"
_STOPPING = f"SELECT count(*) FROM job WHERE id IN carray(?) AND state = {RUNNING} AND reason IN carray(?)"


def admit(tx: Transaction, drafts: Sequence[Draft], slots: FreeSlots) -> list[Added]:
    keys, where = set(job_keys(drafts)), slots.where
    (known,) = tx.column(_KNOWN, blob_array(list(keys)))
    (promised,) = tx.column(_PROMISED, where.tenant, where.queue)
    fresh = len(keys) - known
    if fresh and _free_slots(tx, where) - promised - slots.ahead < fresh:
        raise NoFreeSlot
    return jobs.add(tx, drafts)


def make_room(tx: Transaction, moves: Sequence[Move], room: Room) -> list[bool]:
    pairs = zip(moves, room.needs, strict=True)
    return [_is_needed(tx, need, room) and transitions.apply(tx, [move])[0] for move, need in pairs]


def _is_needed(tx: Transaction, need: RoomNeed, room: Room) -> bool:
    if need.waiting is not None and tx.first(_IS_QUEUED, job_key(need.waiting)) is None:
        return False
    if need.full is not None:
        return _is_full(tx, room.where, need.full)
    coming = _free_slots(tx, room.where) + _stopping(tx, room.may_stop)
    return coming - _queued(tx, room.ahead[: need.ahead]) < need.slots


def _free_slots(tx: Transaction, where: TierSlots) -> int:
    if not where.slots:
        return 0
    held: dict[str, int] = dict(tx.rows(_HELD, text_array(list(where.slots))))
    return sum(max(0, slots - held.get(worker, 0)) for worker, slots in where.slots.items())


def _is_full(tx: Transaction, where: TierSlots, tier: str) -> bool:
    levels = levels_of(tx.rules, where.tenant, where.queue)
    place = next((place for place, level in enumerate(levels) if level.name == tier), 0)
    if not place:
        return False
    name = level_buckets(where.tenant, where.queue, place)[-1]
    return level_bucket(tx, name, levels[place].cap).places - tx.places[name] <= 0


def _stopping(tx: Transaction, keys: Sequence[JobKey]) -> int:
    if not keys:
        return 0
    (found,) = tx.column(_STOPPING, blob_array(job_keys(keys)), text_array([order.value for order in STOP_ORDERS]))
    return int(found)


def _queued(tx: Transaction, keys: Sequence[JobKey]) -> int:
    if not keys:
        return 0
    (found,) = tx.column(_QUEUED, blob_array(job_keys(keys)))
    return int(found)
