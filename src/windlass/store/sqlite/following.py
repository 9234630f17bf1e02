"""Jobs that wait for others and jobs that follow others: edges, sequels, and which jobs have ripened.

Knows these tables; what becomes of the jobs in them is decided elsewhere.
"""

from collections.abc import Sequence
from typing import Any

from windlass.model.job import State
from windlass.model.names import key_of, raw_key, text_id
from windlass.store import MOST_CHILDREN, Edge, Kept, Ripe
from windlass.store.sqlite import batches
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import ENDED, STATES, key
from windlass.store.terms import unpack_then

_NOTE = "INSERT OR REPLACE INTO sequel (parent, data) VALUES (?, ?)"

_STANDING = "SELECT seq, state FROM job WHERE id = ?"
_RIPENED = "SELECT state FROM ripe WHERE id = ?"
_BIND = "INSERT OR IGNORE INTO edge (parent, child) VALUES (?, ?)"
_FOLLOWED = "UPDATE job SET followed = 1 WHERE seq = ? AND NOT followed"

_RIPEN = """
    INSERT OR REPLACE INTO ripe (id, tenant, state)
    SELECT job.id, lane.tenant, ?2 FROM job JOIN lane ON lane.id = job.lane WHERE job.seq = ?1
"""
_FIRST = """
    SELECT ripe.id, ripe.tenant, ripe.mark, ripe.state, sequel.data
    FROM ripe LEFT JOIN sequel ON sequel.parent = ripe.id ORDER BY ripe.mark LIMIT ?
"""
_RESULT = """
    SELECT result.data, result.content_type FROM job CROSS JOIN result ON result.job = job.seq WHERE job.id = ?
"""
_CHILDREN = f"SELECT child FROM edge WHERE parent = ? ORDER BY child LIMIT {MOST_CHILDREN}"

_UNBIND = "DELETE FROM edge WHERE parent = ?1 AND child IN carray(?2)"
_TAKE_OFF = """
    DELETE FROM ripe WHERE id = ?1 AND mark = ?2 AND NOT EXISTS (SELECT 1 FROM edge WHERE parent = ?1)
"""
_IS_FOLLOWED = "SELECT 1 FROM job WHERE id = ? AND followed"
_DROP_SPENT = "DELETE FROM result WHERE spent AND job = (SELECT seq FROM job WHERE id = ?)"
_FORGET = ("DELETE FROM sequel WHERE parent = ?", "DELETE FROM edge WHERE parent = ?")

_SPEND = (
    """
    UPDATE result SET spent = 1 WHERE job IN carray(?)
        AND EXISTS (SELECT 1 FROM job JOIN ripe ON ripe.id = job.id WHERE job.seq = result.job AND job.followed)
    """,
    "DELETE FROM result WHERE job IN carray(?) AND NOT spent",
)
_VANISHING = """
    SELECT id FROM job WHERE seq IN carray(?) AND followed AND id NOT IN (SELECT id FROM ripe)
"""


def note(tx: Transaction, id: bytes, then: bytes) -> None:
    """Something is to follow a job."""
    tx.run(_NOTE, id, then)


def bind(tx: Transaction, edges: Sequence[Edge]) -> list[State | None]:
    return [_bind(tx, edge) for edge in edges]


def _bind(tx: Transaction, edge: Edge) -> State | None:
    parent, child = raw_key(edge.parent, edge.tenant), raw_key(edge.child, edge.tenant)
    found = tx.first(_STANDING, parent)
    if found is None:
        ripened = tx.first(_RIPENED, parent)
        return None if ripened is None or ripened[0] is None else STATES[int(ripened[0])]
    seq, state = int(found[0]), int(found[1])
    if state not in ENDED:
        tx.run(_BIND, parent, child)
        tx.run(_FOLLOWED, seq)
    return STATES[state]


def ripen(tx: Transaction, seq: int, state: int | None) -> None:
    """A followed job has ended, or is about to vanish (null)."""
    tx.run(_RIPEN, seq, state)
    tx.topics.add("house/ripe")


def ripe(tx: Transaction, done: Sequence[Ripe], limit: int) -> list[Ripe]:
    for one in done:
        _take_off(tx, one)
    return [_told(tx, row) for row in tx.rows(_FIRST, limit)] if limit else []


def _take_off(tx: Transaction, one: Ripe) -> None:
    id = key(key_of(one))
    if one.children:
        tx.run(_UNBIND, id, batches.blobs([raw_key(child, one.tenant) for child in one.children]))
    tx.run(_TAKE_OFF, id, one.mark)
    if not tx.changed():
        return
    tx.run(_DROP_SPENT, id)
    if tx.first(_IS_FOLLOWED, id) is None:
        _forget(tx, id)


def _told(tx: Transaction, row: tuple[Any, ...]) -> Ripe:
    id, tenant, mark, state, then = row
    kept = tx.first(_RESULT, id) if then is not None else None
    return Ripe(
        text_id(id),
        tenant,
        mark,
        None if state is None else STATES[state],
        [text_id(child) for child in tx.column(_CHILDREN, id)],
        None if then is None else unpack_then(then)[1],
        None if kept is None else Kept(*kept),
    )


def spend(tx: Transaction, seqs: Sequence[int]) -> None:
    """Results that were read for the only time, or kept long enough, go; but for the job that follows they stay."""
    for statement in _SPEND:
        tx.run(statement, batches.numbers(seqs))


def vanish(tx: Transaction, seqs: Sequence[int]) -> None:
    """Jobs are about to vanish. What belongs to a ripe one stays until it has been dealt with."""
    for id in tx.column(_VANISHING, batches.numbers(seqs)):
        _forget(tx, id)


def _forget(tx: Transaction, id: bytes) -> None:
    for statement in _FORGET:
        tx.run(statement, id)
