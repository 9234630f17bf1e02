"""Records beside the jobs: workers, named values that change by compare-and-swap, and the audit log.

A worker whose lease has passed counts as gone; its row is deleted when the next worker registers.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.model.audit import MOST_LINES_KEPT
from windlass.model.names import EVERY_TENANT
from windlass.model.worker import NewWorker, Worker, WorkerUsage
from windlass.store.data import ANYTHING, Unchecked
from windlass.store.encoding import from_micros, span
from windlass.store.optional import AuditRow, AuditRows, audit_cursor
from windlass.store.sqlite.transaction import Transaction

# --- Workers ------------------------------------------------------------------------------------------

_pack_worker = msgspec.msgpack.Encoder()
_unpack_worker = msgspec.msgpack.Decoder(NewWorker)

_REGISTER = """
    INSERT INTO worker (id, tenant, registered_at, seen_at, until, data) VALUES (?1, ?2, ?3, ?3, ?4, ?5)
    ON CONFLICT DO UPDATE SET tenant = ?2, registered_at = iif(tenant = ?2, registered_at, ?3),
        seen_at = ?3, until = ?4, data = ?5
"""
_DROP_LAPSED = "DELETE FROM worker WHERE until <= ?"
_HEARTBEAT = "UPDATE worker SET seen_at = ?2, until = ?3 WHERE id = ?1 AND until > ?2 AND tenant = ?4"
_SET_USAGE = "UPDATE worker SET memory = ?3, cpu = ?4 WHERE id = ?1 AND tenant = ?2"
_WORKER_COLUMNS = """
    id, tenant, registered_at, seen_at, data, memory, cpu, (SELECT count(*) FROM lease WHERE lease.worker = worker.id)
"""
_WORKER = f"SELECT {_WORKER_COLUMNS} FROM worker WHERE id = ?"
_LIVE_WORKERS = f"""
    SELECT {_WORKER_COLUMNS} FROM worker WHERE until > ?1 AND (tenant = ?2 OR ?2 = '{EVERY_TENANT}')
    ORDER BY registered_at, id
"""


def heartbeat(
    tx: Transaction, id: str, tenant: str, lease: float, new: NewWorker | None, *, usage: WorkerUsage | None
) -> Worker | None:
    until = tx.now + span(lease)
    if usage is not None:
        tx.run(_SET_USAGE, id, tenant, usage.memory, usage.cpu)
    if new is None:
        tx.run(_HEARTBEAT, id, tx.now, until, tenant)
    else:
        tx.run(_DROP_LAPSED, tx.now)
        tx.run(_REGISTER, id, tenant, tx.now, until, _pack_worker.encode(new))
    found = tx.first(_WORKER, id) if tx.changed() else None
    return None if found is None else _worker(found)


def live_workers(tx: Transaction, tenant: str) -> list[Worker]:
    return [_worker(row) for row in tx.rows(_LIVE_WORKERS, tx.now, tenant)]


def _worker(row: tuple[Any, ...]) -> Worker:
    id, tenant, registered_at, seen_at, data, memory, cpu, running = row
    return Worker(
        id=id,
        tenant=tenant,
        registered_at=from_micros(registered_at),
        seen_at=from_micros(seen_at),
        running=running,
        usage=None if memory is None else WorkerUsage(memory, cpu),
        **msgspec.structs.asdict(_unpack_worker.decode(data)),
    )


# --- Named values -------------------------------------------------------------------------------------

_PUT_RECORD = "INSERT INTO record (kind, name, data) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET data = ?3"
_DROP_RECORD = "DELETE FROM record WHERE kind = ? AND name = ?"
_RECORD = "SELECT data FROM record WHERE kind = ? AND name = ?"
_RECORDS = "SELECT name, data FROM record WHERE kind = ? ORDER BY name"


def swap_record(tx: Transaction, kind: str, name: str, before: bytes | Unchecked | None, after: bytes | None) -> bool:
    found = None if before is ANYTHING else tx.first(_RECORD, kind, name)
    if before is not ANYTHING and (None if found is None else found[0]) != before:
        return False
    if after is None:
        tx.run(_DROP_RECORD, kind, name)
    else:
        tx.run(_PUT_RECORD, kind, name, after)
    return True


def read_records(tx: Transaction, kind: str, names: Sequence[str] | None) -> dict[str, bytes]:
    if names is None:
        return dict(tx.rows(_RECORDS, kind))
    return {name: found[0] for name in names if (found := tx.first(_RECORD, kind, name)) is not None}


# --- The audit log: numbered, and for each tenant again without gaps, so that its oldest line is found at once --------

_LAST_PLACE = "SELECT max(place) FROM audit WHERE tenant = ?"
_ADD_LINE = "INSERT INTO audit (tenant, place, at, data) VALUES (?, ?, ?, ?)"
_DROP_LINE = "DELETE FROM audit WHERE tenant = ? AND place <= ?"
_LINES = """
    SELECT place, at, tenant, data FROM audit WHERE tenant = ? AND place < ? ORDER BY place DESC LIMIT ?
"""
_ALL_LINES = "SELECT n, at, tenant, data FROM audit WHERE n < ? ORDER BY n DESC LIMIT ?"


def add_audit_line(tx: Transaction, tenant: str, line: bytes) -> None:
    (last,) = tx.column(_LAST_PLACE, tenant)
    place = (last or 0) + 1
    tx.run(_ADD_LINE, tenant, place, tx.now, line)
    tx.run(_DROP_LINE, tenant, place - MOST_LINES_KEPT)


def audit_lines(tx: Transaction, tenant: str, after: str | None, limit: int) -> AuditRows:
    before = audit_cursor(after)
    found = tx.rows(_ALL_LINES, before, limit) if tenant == EVERY_TENANT else tx.rows(_LINES, tenant, before, limit)
    rows = list(found)
    lines = [AuditRow(from_micros(at), whose, data) for _, at, whose, data in rows]
    return AuditRows(lines, str(rows[-1][0]) if len(rows) == limit else None)
