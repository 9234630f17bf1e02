"""Jobs that wait for others and jobs that follow others: dependencies, follow-ups, completed parents.

Knows these tables; what becomes of the jobs in them is decided elsewhere.
"""

from collections.abc import Sequence
from typing import Any

from windlass.model.job import State
from windlass.model.names import key_of, raw_key, text_id
from windlass.store.data import MOST_CHILDREN, CompletedParent, Dependency, StoredResult
from windlass.store.encoding import PARENTS, unpack_then
from windlass.store.sqlite.transaction import ENDED, STATES, Transaction, blob_array, int_array, job_key

_ADD_FOLLOW_UP = "INSERT OR REPLACE INTO follow_up (parent, data) VALUES (?, ?)"

_PARENT = "SELECT seq, state FROM job WHERE id = ?"
_COMPLETED_STATE = "SELECT state FROM completed_parent WHERE id = ?"
_ADD_DEPENDENCY = "INSERT OR IGNORE INTO dependency (parent, child) VALUES (?, ?)"
_FOLLOWED = "UPDATE job SET followed = 1 WHERE seq = ? AND NOT followed"

_KEYS = "SELECT id FROM job WHERE seq IN carray(?)"
_NOT_FOLLOWED = "UPDATE job SET followed = 0 WHERE seq IN carray(?)"
_DROP_FOLLOW_UPS = """
    DELETE FROM follow_up WHERE parent IN carray(?) AND parent NOT IN (SELECT id FROM completed_parent)
"""
_HAVE_CHILDREN = """
    UPDATE job SET followed = 1 WHERE id IN carray(?) AND EXISTS (SELECT 1 FROM dependency WHERE parent = job.id)
"""

_ADD_COMPLETED = """
    INSERT OR REPLACE INTO completed_parent (id, tenant, state)
    SELECT job.id, lane.tenant, ?2 FROM job JOIN lane ON lane.id = job.lane WHERE job.seq = ?1
"""
_FIRST_COMPLETED = """
    SELECT completed_parent.id, completed_parent.tenant, completed_parent.mark, completed_parent.state, follow_up.data
    FROM completed_parent LEFT JOIN follow_up ON follow_up.parent = completed_parent.id
    ORDER BY completed_parent.mark LIMIT ?
"""
_RESULT = """
    SELECT result.data, result.content_type FROM job CROSS JOIN result ON result.job = job.seq WHERE job.id = ?
"""
_CHILDREN = f"SELECT child FROM dependency WHERE parent = ? ORDER BY child LIMIT {MOST_CHILDREN}"

_DROP_DEPENDENCIES = "DELETE FROM dependency WHERE parent = ?1 AND child IN carray(?2)"
_DROP_COMPLETED = """
    DELETE FROM completed_parent WHERE id = ?1 AND mark = ?2 AND NOT EXISTS (SELECT 1 FROM dependency WHERE parent = ?1)
"""
_IS_FOLLOWED = "SELECT 1 FROM job WHERE id = ? AND followed"
_DROP_SPENT = "DELETE FROM result WHERE spent AND job = (SELECT seq FROM job WHERE id = ?)"
_DROP_FAMILY = ("DELETE FROM follow_up WHERE parent = ?", "DELETE FROM dependency WHERE parent = ?")

_USE_UP = (
    """
    UPDATE result SET spent = 1 WHERE job IN carray(?)
        AND EXISTS (
            SELECT 1 FROM job JOIN completed_parent ON completed_parent.id = job.id
            WHERE job.seq = result.job AND job.followed
        )
    """,
    "DELETE FROM result WHERE job IN carray(?) AND NOT spent",
)
_TO_DROP = """
    SELECT id FROM job WHERE seq IN carray(?) AND followed AND id NOT IN (SELECT id FROM completed_parent)
"""


def add_follow_up(tx: Transaction, id: bytes, then: bytes) -> None:
    """Another job is to follow a job."""
    tx.run(_ADD_FOLLOW_UP, id, then)


def add_dependencies(tx: Transaction, edges: Sequence[Dependency]) -> list[State | None]:
    return [_add_dependency(tx, edge) for edge in edges]


def _add_dependency(tx: Transaction, edge: Dependency) -> State | None:
    parent, child = raw_key(edge.parent, edge.tenant), raw_key(edge.child, edge.tenant)
    found = tx.first(_PARENT, parent)
    if found is None:
        completed = tx.first(_COMPLETED_STATE, parent)
        return None if completed is None or completed[0] is None else STATES[int(completed[0])]
    seq, state = int(found[0]), int(found[1])
    if state not in ENDED:
        tx.run(_ADD_DEPENDENCY, parent, child)
        tx.run(_FOLLOWED, seq)
    return STATES[state]


def parent_completed(tx: Transaction, seq: int, state: int | None) -> None:
    """A followed job has ended, or is about to be deleted (null)."""
    tx.run(_ADD_COMPLETED, seq, state)
    tx.topics.add(PARENTS)


def completed_parents(tx: Transaction, done: Sequence[CompletedParent], limit: int) -> list[CompletedParent]:
    for one in done:
        _drop_completed(tx, one)
    return [_completed_parent(tx, row) for row in tx.rows(_FIRST_COMPLETED, limit)] if limit else []


def _drop_completed(tx: Transaction, one: CompletedParent) -> None:
    id = job_key(key_of(one))
    if one.children:
        tx.run(_DROP_DEPENDENCIES, id, blob_array([raw_key(child, one.tenant) for child in one.children]))
    tx.run(_DROP_COMPLETED, id, one.mark)
    if not tx.changed():
        return
    tx.run(_DROP_SPENT, id)
    if tx.first(_IS_FOLLOWED, id) is None:
        _drop_family(tx, id)


def _completed_parent(tx: Transaction, row: tuple[Any, ...]) -> CompletedParent:
    id, tenant, mark, state, then = row
    kept = tx.first(_RESULT, id) if then is not None else None
    return CompletedParent(
        text_id(id),
        tenant,
        mark,
        None if state is None else STATES[state],
        [text_id(child) for child in tx.column(_CHILDREN, id)],
        None if then is None else unpack_then(then)[1],
        None if kept is None else StoredResult(*kept),
    )


def use_up_results(tx: Transaction, seqs: Sequence[int]) -> None:
    """Delete results that were read for the only time, or kept long enough; a job that follows still gets its one."""
    for statement in _USE_UP if seqs else ():
        tx.run(statement, int_array(seqs))


def keep_children(tx: Transaction, seqs: Sequence[int]) -> list[bytes]:
    """Jobs are about to be replaced by others of the same ids: their keys. What waits for them goes on to wait."""
    keys = tx.column(_KEYS, int_array(seqs))
    tx.run(_NOT_FOLLOWED, int_array(seqs))
    tx.run(_DROP_FOLLOW_UPS, blob_array(keys))
    return keys


def find_children(tx: Transaction, keys: Sequence[bytes]) -> None:
    """They have been replaced."""
    tx.run(_HAVE_CHILDREN, blob_array(keys))


def drop_parents(tx: Transaction, seqs: Sequence[int]) -> None:
    """Jobs are about to be deleted. The rows of a completed parent stay until it has been processed."""
    for id in tx.column(_TO_DROP, int_array(seqs)):
        _drop_family(tx, id)


def _drop_family(tx: Transaction, id: bytes) -> None:
    """Forget what waits for a job and what is to follow it."""
    for statement in _DROP_FAMILY:
        tx.run(statement, id)
