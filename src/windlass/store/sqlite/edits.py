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
from windlass.store.sqlite.transaction import QUEUED, STATES, Transaction

_EDIT = "UPDATE job SET edits = edits + 1, annotations = nullif(?2, x''), updated_at = ?3 WHERE seq = ?1"
_REWRITE = """
    UPDATE job SET lane = ?2, priority = ?3, terms = ?4, size = ?5, payload = ?6 WHERE seq = ?1
"""
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


def edit(tx: Transaction, job: EditedRow, change: JobEdit) -> int:
    """Write an edit; the lane that the job is in then."""
    packed, lane = pack_annotations(change.annotations), job.lane
    tx.check_room(len(packed))
    if change.new is not None:
        lane = _rewrite(tx, job, change, change.new)
    tx.run(_EDIT, job.seq, packed, tx.now)
    return lane


def _rewrite(tx: Transaction, job: EditedRow, change: JobEdit, new: NewJob) -> int:
    """Write what a job is from now on. It keeps its row, and so its place."""
    if change.group_epoch != tx.rules.group_epoch:
        raise StaleRules
    payload = bytes(new.payload)
    tx.check_room(len(payload))
    if change.identity:
        _identify(tx, job.seq, change.identity, new)
    before = tx.lanes.get(job.lane)
    after = tx.lane(before.tenant, before.queue, before.task, change.group)
    tx.count(before.id, job.state, -1)
    tx.count(after.id, job.state, 1)
    inline = len(payload) <= LARGEST_INLINE
    tx.run(_REWRITE, job.seq, after.id, new.priority, pack_terms(new), len(payload), payload if inline else None)
    tx.run(_DROP_PAYLOAD, job.seq)
    if not inline:
        tx.run(_ADD_PAYLOAD, job.seq, payload)
    if job.state == QUEUED:
        tx.topics.add(f"work/{after.queue}")
    return after.id


def _identify(tx: Transaction, seq: int, identity: bytes, new: NewJob) -> None:
    """Note what a unique job is known by now, unless another one keeps it off."""
    row = tx.first(_LAST, identity)
    if row is not None and row[0] != seq:
        other, key, state, created_at = row
        if settle(new, STATES[state], timedelta(microseconds=tx.now - created_at)) != "add":
            raise edit_refused(text_id(key), STATES[state])
        tx.run(_FORGET, other)
    tx.run(_IDENTIFY, seq, identity)
