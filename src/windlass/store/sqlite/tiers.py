"""Tiers where a decision must hold in the step that writes it: yielding jobs are admitted, running jobs make room.

The engine decides from what it has read; others may have written since. Here the numbers that it decided from are
counted again, in the same transaction.
"""

from collections.abc import Sequence

from windlass.model.lifecycle import ORDERS
from windlass.model.names import JobKey
from windlass.store.data import Draft
from windlass.store.flow import YIELDING, RoomMove, TierSlots
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
_STOPPING = f"SELECT count(*) FROM job WHERE id IN carray(?) AND state = {RUNNING} AND reason IN carray(?)"


def admit(tx: Transaction, drafts: Sequence[Draft], where: TierSlots, ahead: int) -> list[bool] | None:
    keys = set(job_keys(drafts))
    (known,) = tx.column(_KNOWN, blob_array(list(keys)))
    (promised,) = tx.column(_PROMISED, where.tenant, where.queue)
    fresh = len(keys) - known
    if fresh and _free_slots(tx, where) - promised - ahead < fresh:
        return None
    return jobs.add(tx, drafts)


def make_room(tx: Transaction, moves: Sequence[RoomMove], where: TierSlots, yielding: Sequence[JobKey]) -> list[bool]:
    return [_is_needed(tx, one, where, yielding) and transitions.apply(tx, [one.move])[0] for one in moves]


def _is_needed(tx: Transaction, one: RoomMove, where: TierSlots, yielding: Sequence[JobKey]) -> bool:
    if one.waiting is not None and tx.first(_IS_QUEUED, job_key(one.waiting)) is None:
        return False
    if one.full is not None:
        return _is_full(tx, where, one.full)
    return _free_slots(tx, where) + _stopping(tx, yielding) <= one.most


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


def _stopping(tx: Transaction, yielding: Sequence[JobKey]) -> int:
    if not yielding:
        return 0
    (found,) = tx.column(_STOPPING, blob_array(job_keys(yielding)), text_array([order.value for order in ORDERS]))
    return int(found)
