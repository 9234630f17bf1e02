"""The records of workers. One whose lease has passed counts as gone, and is dropped when the next one enlists."""

from typing import Any

import msgspec

from windlass.model.names import EVERY_TENANT
from windlass.model.worker import NewWorker, Worker
from windlass.store import SEEN_EVERY
from windlass.store.micros import from_micros, span
from windlass.store.sqlite.transaction import Transaction

Noted = dict[str, int]
"""When one connection last noted of a worker that it was heard of."""

MOST_NOTED = 1000

_pack = msgspec.msgpack.Encoder()
_unpack = msgspec.msgpack.Decoder(NewWorker)

_ENLIST = """
    INSERT OR REPLACE INTO worker (id, tenant, registered_at, seen_at, until, data) VALUES (?1, ?2, ?3, ?3, ?4, ?5)
"""
_DROP_LAPSED = "DELETE FROM worker WHERE until <= ?"
_SEEN = "UPDATE worker SET seen_at = ?2, until = ?3 WHERE id = ?1 AND until > ?2 AND tenant = ?4"
_HEARD = "UPDATE worker SET seen_at = ?2, until = ?3 WHERE id = ?1 AND until > ?2 AND seen_at <= ?4"
_COLUMNS = """
    id, tenant, registered_at, seen_at, data, (SELECT count(*) FROM lease WHERE lease.worker = worker.id)
"""
_ONE = f"SELECT {_COLUMNS} FROM worker WHERE id = ?"
_ALIVE = f"""
    SELECT {_COLUMNS} FROM worker WHERE until > ?1 AND (tenant = ?2 OR ?2 = '{EVERY_TENANT}')
    ORDER BY registered_at, id
"""
_DISMISS = "DELETE FROM worker WHERE id = ? RETURNING until"


def enlist(tx: Transaction, id: str, tenant: str, worker: NewWorker, lease: float) -> None:
    tx.run(_DROP_LAPSED, tx.now)
    tx.run(_ENLIST, id, tenant, tx.now, tx.now + span(lease), _pack.encode(worker))


def hear(tx: Transaction, id: str, lease: float, noted: Noted) -> None:
    """A worker has been heard of; not noted more often than once in a while."""
    if tx.now - span(SEEN_EVERY) < noted.get(id, 0) <= tx.now:
        return
    tx.run(_HEARD, id, tx.now, tx.now + span(lease), tx.now - span(SEEN_EVERY))
    if tx.changed():
        if len(noted) >= MOST_NOTED:
            noted.clear()
        noted[id] = tx.now


def greet(tx: Transaction, id: str, tenant: str, lease: float) -> Worker | None:
    tx.run(_SEEN, id, tx.now, tx.now + span(lease), tenant)
    found = tx.first(_ONE, id) if tx.changed() else None
    return None if found is None else _worker(found)


def workers(tx: Transaction, tenant: str) -> list[Worker]:
    return [_worker(row) for row in tx.rows(_ALIVE, tx.now, tenant)]


def dismiss(tx: Transaction, id: str) -> bool:
    until = tx.column(_DISMISS, id)
    return bool(until) and until[0] > tx.now


def _worker(row: tuple[Any, ...]) -> Worker:
    id, tenant, registered_at, seen_at, data, running = row
    return Worker(
        id=id,
        tenant=tenant,
        registered_at=from_micros(registered_at),
        seen_at=from_micros(seen_at),
        running=running,
        **msgspec.structs.asdict(_unpack.decode(data)),
    )
