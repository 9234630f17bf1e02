"""Changes of the rules of flow control, and of the limit keys of jobs.

Lanes that wait for something that changed are opened again; the next claims block those that must still wait. Costs as
much as there are lanes concerned: rules change seldom.
"""

from collections.abc import Sequence

from windlass.model.names import key_of
from windlass.store.flow import KEY, Regroup, Rules
from windlass.store.sqlite.flow import leave_turns, open_lanes, reset_queue_turns, reset_task_turns
from windlass.store.sqlite.transaction import (
    ENDED,
    LEVEL_MARK,
    NO_TURNS,
    QUEUED,
    RUNNING,
    Transaction,
    held_levels,
    job_key,
    paused_until,
    turns_of,
)

_BLOCKED = "arrival IS NOT NULL AND blocker IS NOT NULL AND paused_until IS NULL"
_BLOCKED_BY = f"SELECT id FROM lane INDEXED BY lane_blocked WHERE blocker = ? AND {_BLOCKED}"
_BLOCKED_BETWEEN = f"SELECT id FROM lane INDEXED BY lane_blocked WHERE blocker > ? AND blocker < ? AND {_BLOCKED}"
_CLEAN = "UPDATE bucket SET wake_at = NULL, dirty = 0 WHERE name = ?1 OR (name > ?2 AND name < ?3)"

_DROP_LEVELS = "UPDATE bucket SET running = 0 WHERE name > ? AND name < ?"
_ASSIGNED = f"""
    SELECT job.assigned, count(*)
    FROM tenant_queue CROSS JOIN job INDEXED BY job_listing ON job.tenant_queue = tenant_queue.id
    WHERE tenant_queue.tenant = ? AND tenant_queue.queue = ? AND job.state = {RUNNING} AND job.assigned IS NOT NULL
    GROUP BY job.assigned
"""

_LANE_NAMES = "SELECT DISTINCT tenant, queue, task FROM lane"
_PAUSES = (
    "SELECT id, arrival IS NOT NULL FROM lane WHERE tenant = ? AND queue = ? AND task = ? AND paused_until IS NOT ?"
)
_SET_PAUSE = "UPDATE lane SET paused_until = ?2, blocker = NULL WHERE id = ?1"

_TENANT_QUEUES = "SELECT id, tenant, queue FROM tenant_queue"
_SET_TURNS = "UPDATE lane SET turns = ?2 WHERE tenant_queue = ?1 AND tenant = ?3 AND queue = ?4 RETURNING id"


def put_rules(tx: Transaction, new: Rules) -> bool:
    """Put rules in force if their version is the next one; whether it was."""
    old = tx.rules
    if new.version != old.version + 1:
        return False
    tx.put_rules(new)
    _change_limits(tx, old, new)
    _change_tiers(tx, old, new)
    if new.paused_until != old.paused_until:
        _change_pauses(tx, new)
    if (new.fair_queues, new.fair_tenant_queues) != (old.fair_queues, old.fair_tenant_queues):
        _change_turns(tx, old, new)
    return True


def _change_limits(tx: Transaction, old: Rules, new: Rules) -> None:
    for name in sorted(old.limit_rules.keys() | new.limit_rules.keys()):
        if old.limit_rules.get(name) != new.limit_rules.get(name):
            _recheck(tx, name, name + KEY)


def _change_tiers(tx: Transaction, old: Rules, new: Rules) -> None:
    for name in sorted(old.tiers.keys() | new.tiers.keys()):
        if old.tiers.get(name) == new.tiers.get(name):
            continue
        # Places at levels are found by the tier's name, whatever its level is now.
        tenant, _, queue = name.partition(",")
        tx.run(_DROP_LEVELS, name + LEVEL_MARK, _beyond(name + LEVEL_MARK))
        for assigned, count in tx.rows(_ASSIGNED, tenant, queue):
            tx.place(held_levels(new, tenant, queue, assigned), count)
        _recheck(tx, name, name + LEVEL_MARK)


def _recheck(tx: Transaction, name: str, start: str) -> None:
    """Open all lanes that are blocked by a bucket, or by one whose name has this start."""
    end = _beyond(start)
    open_lanes(tx, tx.column(_BLOCKED_BY, name) + tx.column(_BLOCKED_BETWEEN, start, end))
    tx.run(_CLEAN, name, start, end)


def _beyond(start: str) -> str:
    """A text that sorts after every text with this start."""
    return start[:-1] + chr(ord(start[-1]) + 1)


def _change_pauses(tx: Transaction, new: Rules) -> None:
    for tenant, queue, task in tx.rows(_LANE_NAMES):
        until = paused_until(new, tenant, queue, task)
        until = until if until is not None and until > tx.now else None
        for lane, waits in tx.rows(_PAUSES, tenant, queue, task, until):
            tx.run(_SET_PAUSE, lane, until)
            tx.changed_lanes.add(lane)
            if waits and until is None:
                tx.topics.add(f"work/{queue}")


def _change_turns(tx: Transaction, old: Rules, new: Rules) -> None:
    for queue in old.fair_queues.keys() ^ new.fair_queues.keys():
        reset_queue_turns(tx, queue)
    for tenant_queue, tenant, queue in tx.rows(_TENANT_QUEUES):
        before, after = turns_of(old, tenant, queue), turns_of(new, tenant, queue)
        fair = (queue in old.fair_queues, queue in new.fair_queues)
        if before == after and fair[0] == fair[1]:
            continue
        if before != after:
            reset_task_turns(tx, tenant_queue)
        if after == NO_TURNS:
            leave_turns(tx, tenant_queue)
        tx.changed_lanes.update(tx.column(_SET_TURNS, tenant_queue, after, tenant, queue))


# --- Jobs with other limit keys: they move to another lane of the same tenant, queue and task ---------

_JOB = "SELECT seq, lane, state FROM job WHERE id = ?"
_MOVE_TO_LANE = "UPDATE job SET lane = ?2 WHERE seq = ?1"


def regroup(tx: Transaction, changes: Sequence[Regroup]) -> list[bool]:
    return [_regroup(tx, change) for change in changes]


def _regroup(tx: Transaction, change: Regroup) -> bool:
    found = tx.first(_JOB, job_key(key_of(change)))
    if found is None:
        return False
    seq, lane, state = found
    before = tx.lanes.get(lane)
    if before.limit_keys != change.before or state in ENDED:
        return False
    after = tx.lane(before.tenant, before.queue, before.task, change.after)
    tx.run(_MOVE_TO_LANE, seq, after.id)
    tx.count(before.id, state, -1)
    tx.count(after.id, state, 1)
    if state == QUEUED:
        tx.topics.add(f"work/{after.queue}")
    if state == RUNNING:
        tx.place(before.buckets, -1)
        tx.place(after.buckets, 1)
    return True
