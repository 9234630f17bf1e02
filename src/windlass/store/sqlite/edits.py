"""Edits of stored jobs by callers. `transitions` has checked that a job may be edited now."""

from datetime import timedelta
from typing import Protocol

from windlass.model.edit import JobEdit
from windlass.model.names import text_id
from windlass.model.new_job import NewJob
from windlass.model.unique import edit_refused, settle
from windlass.store.encoding import pack_annotations, pack_terms
from windlass.store.flow import StaleRules
from windlass.store.sqlite.jobs import LARGEST_INLINE
from windlass.store.sqlite.transaction import ENDED, QUEUED, STATES, Transaction

_EDIT = """
    UPDATE job SET edits = edits + 1, annotations = nullif(?2, x''), updated_at = coalesce(?3, updated_at)
    WHERE seq = ?1
"""
_REWRITE = """
    UPDATE job SET lane = ?2, priority = ?3, terms = ?4, size = ?5, payload = ?6, tenant_queue = ?7 WHERE seq = ?1
"""
_NEXT_SEQ = "SELECT max(seq) + 1 FROM job"
_ARRIVE = (
    "UPDATE job SET seq = ?2 WHERE seq = ?1",
    "UPDATE payload SET job = ?2 WHERE job = ?1",
    "UPDATE file SET job = ?2 WHERE job = ?1",
    "UPDATE progress SET job = ?2 WHERE job = ?1",
    "UPDATE error SET job = ?2 WHERE job = ?1",
    "UPDATE output SET job = ?2 WHERE job = ?1",
    "UPDATE input SET job = ?2 WHERE job = ?1",
    "UPDATE result SET job = ?2 WHERE job = ?1",
)
_DROP_PAYLOAD = "DELETE FROM payload WHERE job = ?"
_ADD_PAYLOAD = "INSERT INTO payload (job, data) VALUES (?, ?)"
_LAST = "SELECT seq, id, state, created_at FROM job WHERE identity = ?"
_FORGET = "UPDATE job SET identity = NULL WHERE seq = ?"
_IDENTIFY = "UPDATE job SET identity = ?2 WHERE seq = ?1"


class EditedRow(Protocol):
    """What is edited."""

    @property
    def seq(self) -> int: ...
    @property
    def lane(self) -> int: ...
    @property
    def state(self) -> int: ...


def edit(tx: Transaction, job: EditedRow, change: JobEdit) -> tuple[int, int]:
    """Write an edit; the number and the lane of the job afterwards."""
    packed, where = pack_annotations(change.annotations), (job.seq, job.lane)
    tx.check_room(len(packed))
    if change.new is not None:
        where = _rewrite(tx, job, change, change.new)
    # The record of a job that has ended is kept from `updated_at` on: an annotation must not prolong that.
    tx.run(_EDIT, where[0], packed, None if job.state in ENDED else tx.now)
    return where


def _rewrite(tx: Transaction, job: EditedRow, change: JobEdit, new: NewJob) -> tuple[int, int]:
    """Write what a job is from now on. Unless it changes its queue it keeps its number, and so its place."""
    if change.group_epoch != tx.rules.group_epoch:
        raise StaleRules
    payload = bytes(new.payload)
    tx.check_room(len(payload))
    if change.identity:
        _identify(tx, job.seq, change.identity, new)
    before = tx.lanes.get(job.lane)
    after = tx.lane(before.tenant, new.queue, before.task, change.group)
    seq = job.seq if after.tenant_queue == before.tenant_queue else _arrive(tx, job.seq)
    tx.count(before.id, job.state, -1)
    tx.count(after.id, job.state, 1)
    inline = payload if len(payload) <= LARGEST_INLINE else None
    tx.run(_REWRITE, seq, after.id, new.priority, pack_terms(new), len(payload), inline, after.tenant_queue)
    tx.run(_DROP_PAYLOAD, seq)
    if inline is None:
        tx.run(_ADD_PAYLOAD, seq, payload)
    if job.state == QUEUED:
        tx.topics.add(f"work/{after.queue}")
    return seq, after.id


def _arrive(tx: Transaction, seq: int) -> int:
    """Give a job the number of one that arrives now."""
    (arrival,) = tx.column(_NEXT_SEQ)
    for statement in _ARRIVE:
        tx.run(statement, seq, arrival)
    return int(arrival)


def _identify(tx: Transaction, seq: int, identity: bytes, new: NewJob) -> None:
    """Note what a unique job is known by now, unless another one keeps it off."""
    row = tx.first(_LAST, identity)
    if row is not None and row[0] != seq:
        other, key, state, created_at = row
        if settle(new, STATES[state], timedelta(microseconds=tx.now - created_at)) != "add":
            raise edit_refused(text_id(key), STATES[state])
        tx.run(_FORGET, other)
    tx.run(_IDENTIFY, seq, identity)
