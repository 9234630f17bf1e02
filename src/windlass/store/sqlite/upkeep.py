"""Periodic upkeep: jobs that are due, overdue or to be purged, and rows that are no longer needed.

Each query uses the index of one clock, earliest first, and stops at a limit. Lanes without jobs have an index too;
tenants' queues, turns and buckets are walked round and round, some rows each time, more while most can be deleted. So
any number of keys leaves nothing behind, and neither claims nor reports pay for it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from windlass.model.names import text_id
from windlass.store.data import DueJob, Overdue, OverdueJobs, Sweep
from windlass.store.encoding import from_micros, unpack_terms
from windlass.store.sqlite.flow import drop_bucket, idle_buckets
from windlass.store.sqlite.jobs import drop_jobs, drop_results, record_kept_until, records_by_seq, result_kept_for
from windlass.store.sqlite.transaction import QUEUED, SCHEDULED, STATES, SUCCEEDED, Transaction, int_array

_DUE = f"SELECT seq, id, lane FROM job WHERE state = {SCHEDULED} AND run_at <= ? ORDER BY run_at, seq LIMIT ?"
_NEXT_DUE = f"SELECT run_at FROM job WHERE state = {SCHEDULED} ORDER BY run_at LIMIT 1"
_PROMOTE = f"UPDATE job SET state = {QUEUED}, updated_at = ?2 WHERE seq IN carray(?1)"

_OVERDUE = {
    Overdue.LEASE: "SELECT job FROM lease WHERE until <= ? ORDER BY until, job LIMIT ?",
    Overdue.EXPIRY: "SELECT seq FROM job WHERE expires_at <= ? ORDER BY expires_at, seq LIMIT ?",
    Overdue.OWNER: "SELECT seq FROM job WHERE abandon_at <= ? ORDER BY abandon_at, seq LIMIT ?",
}

_OLD = "SELECT seq, id, lane, state, terms, updated_at FROM job WHERE purge_at <= ? ORDER BY purge_at, seq LIMIT ?"


class OldJob(NamedTuple):
    """A finished job whose keep clock has run out, in the order of `_OLD`."""

    seq: int
    id: bytes
    lane: int
    state: int
    terms: bytes
    updated_at: int


def sweep(tx: Transaction, sweep: Sweep, limit: int) -> list[DueJob]:
    return _promote(tx, limit) if sweep is Sweep.PROMOTE else _purge(tx, limit)


def _promote(tx: Transaction, limit: int) -> list[DueJob]:
    due = tx.rows(_DUE, tx.now, limit)
    if not due:
        return []
    tx.run(_PROMOTE, int_array([seq for seq, _, _ in due]), tx.now)
    for lane, count in Counter(lane for _, _, lane in due).items():
        tx.count(lane, SCHEDULED, -count)
        tx.count(lane, QUEUED, count)
        tx.topics.add(f"work/{tx.lanes.get(lane).queue}")
    return [_expired(tx, id, lane, QUEUED) for _, id, lane in due]


def next_run(tx: Transaction) -> float | None:
    due_at = tx.column(_NEXT_DUE)
    return max(due_at[0] - tx.now, 0) / 1_000_000 if due_at else None


def overdue(tx: Transaction, clock: Overdue, limit: int) -> OverdueJobs:
    seqs = tx.column(_OVERDUE[clock], tx.now, limit)
    return OverdueJobs(from_micros(tx.now), records_by_seq(tx, seqs))


def _purge(tx: Transaction, limit: int) -> list[DueJob]:
    old = [OldJob(*row) for row in tx.rows(_OLD, tx.now, limit)]
    kept = [job for job in old if _outlives_result(job, tx.now)]
    kept_until = {job.seq: record_kept_until(unpack_terms(job.terms), job.updated_at) for job in kept}
    drop_results(tx, list(kept_until.items()))
    gone = [job for job in old if job.seq not in kept_until]
    drop_jobs(tx, [job.seq for job in gone])
    for (lane, state), count in Counter((job.lane, job.state) for job in gone).items():
        tx.count(lane, state, -count)
    return [_expired(tx, job.id, job.lane, job.state, result_only=job.seq in kept_until) for job in old]


def _outlives_result(job: OldJob, now: int) -> bool:
    asked = unpack_terms(job.terms)
    if job.state != SUCCEEDED or result_kept_for(asked) is None:
        return False
    last = record_kept_until(asked, job.updated_at)
    return last is None or last > now


def _expired(tx: Transaction, id: bytes, lane: int, state: int, *, result_only: bool = False) -> DueJob:
    where = tx.lanes.get(lane)
    return DueJob(text_id(id), where.tenant, where.queue, where.task, STATES[state], result_only)


# --- Rows that are no longer needed -------------------------------------------------------------------

MOST_LANES_DROPPED = 1000
"""Lanes deleted at a time."""

ROWS_PER_STEP, MOST_STEPS = 100, 10
"""Rows of another table that one step checks, and steps at a time."""

_EMPTY_LANES = f"""
    SELECT id FROM lane INDEXED BY lane_empty WHERE running = 0 AND succeeded = 0 AND queued = 0 AND failed = 0
        AND scheduled = 0 AND blocked = 0 AND cancelled = 0 LIMIT {MOST_LANES_DROPPED}
"""

_TENANT_QUEUES = f"""
    SELECT id,
        NOT EXISTS (SELECT 1 FROM lane WHERE lane.tenant = tenant_queue.tenant AND lane.queue = tenant_queue.queue)
        AND NOT EXISTS (SELECT 1 FROM turn WHERE turn.tenant_queue = tenant_queue.id)
        AND coalesce((
            SELECT number <> tenant_queue.round OR time >= finish FROM round WHERE round.queue = tenant_queue.queue
        ), 1),
        tenant, queue
    FROM tenant_queue WHERE id > ? ORDER BY id LIMIT {ROWS_PER_STEP}
"""

_TURNS = f"""
    SELECT turn.task, turn.arrival IS NULL AND (turn.round <> tenant_queue.number OR turn.finish <= tenant_queue.time),
        turn.tenant_queue
    FROM turn CROSS JOIN tenant_queue ON tenant_queue.id = turn.tenant_queue
    WHERE (turn.tenant_queue, turn.task) > (?, ?) ORDER BY turn.tenant_queue, turn.task LIMIT {ROWS_PER_STEP}
"""
_DROP_TURN = "DELETE FROM turn WHERE tenant_queue = ? AND task = ?"

Row = tuple[Any, ...]
"""Begins with its cursor and whether it can be deleted."""


class DropCursors(NamedTuple):
    """How far each table has been checked."""

    bucket: str = ""
    tenant_queue: int = 0
    turn: tuple[int, str] = (0, "")


def drop_idle(tx: Transaction, cursors: DropCursors) -> DropCursors:
    """Delete some of the rows that are no longer needed; returns where to go on."""
    tx.drop_lanes([tx.lanes.get(id) for id in tx.column(_EMPTY_LANES)])
    idle, bucket = _droppable(lambda after: idle_buckets(tx, after, ROWS_PER_STEP), cursors.bucket, "")
    for row in idle:
        drop_bucket(tx, row[0])
    finished, turn = _droppable(lambda after: _turns_after(tx, after), cursors.turn, (0, ""))
    for (tenant_queue_id, task), *_ in finished:
        tx.run(_DROP_TURN, tenant_queue_id, task)
    empty, tenant_queue = _droppable(lambda after: tx.rows(_TENANT_QUEUES, after), cursors.tenant_queue, 0)
    tx.drop_tenant_queues([(id, tenant, queue) for id, _, tenant, queue in empty])
    return DropCursors(bucket, tenant_queue, turn)


def _turns_after(tx: Transaction, after: tuple[int, str]) -> list[Row]:
    return [((tenant_queue, task), over) for task, over, tenant_queue in tx.rows(_TURNS, *after)]


def _droppable(fetch: Callable[[Any], Sequence[Row]], after: Any, start: Any) -> tuple[list[Row], Any]:
    """The deletable rows after a cursor, and the next cursor: the start again after the end."""
    found: list[Row] = []
    for _ in range(MOST_STEPS):
        rows = fetch(after)
        deletable = [row for row in rows if row[1]]
        found += deletable
        if len(rows) < ROWS_PER_STEP:
            return found, start
        after = rows[-1][0]
        if 2 * len(deletable) < ROWS_PER_STEP:
            break
    return found, after
