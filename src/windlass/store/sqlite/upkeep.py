"""The store's share in the periodic duties: what has become due, what is overdue, what is to be dropped.

Each looks at one clock's own index, earliest first, and stops at a limit.
"""

from collections import Counter
from typing import NamedTuple

from windlass.model.names import text_id
from windlass.store import Overdue, Reading, Sweep, Swept
from windlass.store.micros import from_micros
from windlass.store.sqlite import batches, records, results
from windlass.store.sqlite.jobs import vanish
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import QUEUED, SCHEDULED, STATES, SUCCEEDED
from windlass.store.terms import unpack

_DUE = f"SELECT seq, id, lane FROM job WHERE state = {SCHEDULED} AND run_at <= ? ORDER BY run_at, seq LIMIT ?"
_NEXT_DUE = f"SELECT run_at FROM job WHERE state = {SCHEDULED} ORDER BY run_at LIMIT 1"
_PROMOTE = f"UPDATE job SET state = {QUEUED}, updated_at = ?2 WHERE seq IN carray(?1)"

_OVERDUE = {
    Overdue.LEASE: "SELECT job FROM lease WHERE until <= ? ORDER BY until, job LIMIT ?",
    Overdue.WAIT: "SELECT seq FROM job WHERE expires_at <= ? ORDER BY expires_at, seq LIMIT ?",
    Overdue.OWNER: "SELECT seq FROM job WHERE abandon_at <= ? ORDER BY abandon_at, seq LIMIT ?",
}

_OLD = "SELECT seq, id, lane, state, terms, updated_at FROM job WHERE purge_at <= ? ORDER BY purge_at, seq LIMIT ?"


class Old(NamedTuple):
    """A finished job whose keep clock has run out, in the order of `_OLD`."""

    seq: int
    id: bytes
    lane: int
    state: int
    terms: bytes
    updated_at: int


def sweep(tx: Transaction, clock: Sweep, limit: int) -> list[Swept]:
    return _promote(tx, limit) if clock is Sweep.RUN else _purge(tx, limit)


def _promote(tx: Transaction, limit: int) -> list[Swept]:
    due = tx.rows(_DUE, tx.now, limit)
    if not due:
        return []
    tx.run(_PROMOTE, batches.numbers([seq for seq, _, _ in due]), tx.now)
    for lane, count in Counter(lane for _, _, lane in due).items():
        tx.count(lane, SCHEDULED, -count)
        tx.count(lane, QUEUED, count)
        tx.topics.add(f"work/{tx.lanes.get(lane).queue}")
    return [_swept(tx, id, lane, QUEUED) for _, id, lane in due]


def next_run(tx: Transaction) -> float | None:
    due_at = tx.column(_NEXT_DUE)
    return max(due_at[0] - tx.now, 0) / 1_000_000 if due_at else None


def overdue(tx: Transaction, clock: Overdue, limit: int) -> Reading:
    seqs = tx.column(_OVERDUE[clock], tx.now, limit)
    return Reading(now=from_micros(tx.now), records=list(records.by_seq(tx, seqs)))


def _purge(tx: Transaction, limit: int) -> list[Swept]:
    old = [Old(*row) for row in tx.rows(_OLD, tx.now, limit)]
    stay = [job for job in old if _outlives_its_result(job, tx.now)]
    lasting = {job.seq: results.second_stage(unpack(job.terms), job.updated_at) for job in stay}
    results.outlive(tx, list(lasting.items()))
    gone = [job for job in old if job.seq not in lasting]
    vanish(tx, [job.seq for job in gone])
    for (lane, state), count in Counter((job.lane, job.state) for job in gone).items():
        tx.count(lane, state, -count)
    return [_swept(tx, job.id, job.lane, job.state, result_only=job.seq in lasting) for job in old]


def _outlives_its_result(job: Old, now: int) -> bool:
    asked = unpack(job.terms)
    if job.state != SUCCEEDED or results.first_stage(asked) is None:
        return False
    last = results.second_stage(asked, job.updated_at)
    return last is None or last > now


def _swept(tx: Transaction, id: bytes, lane: int, state: int, *, result_only: bool = False) -> Swept:
    where = tx.lanes.get(lane)
    return Swept(text_id(id), where.tenant, where.queue, where.task, STATES[state], result_only)
