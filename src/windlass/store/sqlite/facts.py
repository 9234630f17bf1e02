"""What a file says of itself: its library and how it is written."""

from pathlib import Path

import apsw

from windlass.store.facts import Facts
from windlass.store.sqlite.store import SqliteStore
from windlass.store.sqlite.transaction import Transaction

SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
SAFE = ("FULL", "EXTRA")


async def facts(store: SqliteStore) -> Facts:
    journal, synchronous = await store.examine(_settings)
    return Facts(
        kind="SQLite",
        version=apsw.sqlite_lib_version(),
        durability=f"journal_mode {journal}, synchronous {synchronous}",
        risk="" if synchronous in SAFE else "the last jobs may be lost when the power fails: set synchronous to FULL",
        exposed=_exposed(store.path),
        now=(await store.read([])).now,
    )


def _exposed(path: str) -> str:
    mode = Path(path).stat().st_mode if path else 0
    return f"others can read or write {path} (mode {mode & 0o777:03o})" if mode & 0o007 else ""


def _settings(tx: Transaction) -> tuple[str, str]:
    (journal,) = tx.column("PRAGMA journal_mode")
    (synchronous,) = tx.column("PRAGMA synchronous")
    return journal, SYNCHRONOUS[synchronous]
