"""Records beside the jobs: few, small, and told apart by kind and name."""

from windlass.store.sqlite.transaction import Transaction

_PUT = "INSERT INTO record (kind, name, data) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET data = ?3"
_DROP = "DELETE FROM record WHERE kind = ? AND name = ?"
_KEPT = "SELECT data FROM record WHERE kind = ? AND name = ?"
_ALL = "SELECT name, data FROM record WHERE kind = ? ORDER BY name"


def put(tx: Transaction, kind: str, name: str, data: bytes | None) -> None:
    if data is None:
        tx.run(_DROP, kind, name)
    else:
        tx.run(_PUT, kind, name, data)


def swap(tx: Transaction, kind: str, name: str, before: bytes | None, after: bytes | None) -> bool:
    found = tx.first(_KEPT, kind, name)
    if (None if found is None else found[0]) != before:
        return False
    put(tx, kind, name, after)
    return True


def shelved(tx: Transaction, kind: str) -> dict[str, bytes]:
    return dict(tx.rows(_ALL, kind))
