"""Moving jobs to other groups: to another lane of the same tenant, queue and task, with whatever places they hold."""

from collections.abc import Sequence

from windlass.model.names import key_of
from windlass.store.flow import Regroup
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import ENDED, QUEUED, RUNNING, key

_STANDING = "SELECT seq, lane, state FROM job WHERE id = ?"
_MOVE = "UPDATE job SET lane = ?2 WHERE seq = ?1"


def regroup(tx: Transaction, changes: Sequence[Regroup]) -> list[bool]:
    return [_regroup(tx, change) for change in changes]


def _regroup(tx: Transaction, change: Regroup) -> bool:
    found = tx.first(_STANDING, key(key_of(change)))
    if found is None:
        return False
    seq, lane, state = found
    before = tx.lanes.get(lane)
    if before.group != change.before or state in ENDED:
        return False
    after = tx.lane(before.tenant, before.queue, before.task, change.after)
    tx.run(_MOVE, seq, after.id)
    tx.count(before.id, state, -1)
    tx.count(after.id, state, 1)
    if state == QUEUED:
        tx.topics.add(f"work/{after.queue}")
    if state == RUNNING:
        tx.place(before.buckets, -1)
        tx.place(after.buckets, 1)
    return True
