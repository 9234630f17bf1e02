"""Files beside the jobs: those that runs left, and uploaded ones, by tenant and SHA-256.

Uploads past their time are dropped when another one comes, some at a time; of each tenant there are never more than its
bound.
"""

from collections.abc import Mapping, Sequence

from windlass.model.names import JobKey, raw_key
from windlass.store.encoding import span
from windlass.store.sqlite.transaction import Transaction, blob_array

_HELD = "SELECT j.seq FROM job AS j CROSS JOIN lease AS l ON l.job = j.seq WHERE j.id = ? AND l.token = ?"
_DROP_LEFT = "DELETE FROM file WHERE job = ? AND from_run"
_LEAVE = "INSERT INTO file (job, name, data, from_run) VALUES (?, ?, ?, 1)"
_LEFT = "SELECT name, length(data) FROM file WHERE from_run AND job = (SELECT seq FROM job WHERE id = ?) ORDER BY name"
_READ = "SELECT data FROM file WHERE from_run AND job = (SELECT seq FROM job WHERE id = ?) AND name = ?"

LEAST_SIZE = 4096
"""Bytes as which a smaller file counts, so that their number is bounded too."""

_UPLOAD = "INSERT OR REPLACE INTO upload (tenant, digest, expires_at, data) VALUES (?, ?, ?, ?)"
_EXPIRED = """
    DELETE FROM upload WHERE rowid IN (SELECT rowid FROM upload WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)
"""
_SIZE = f"SELECT sum(max(length(data), {LEAST_SIZE})) FROM upload WHERE tenant = ?"
_OLDEST = f"""
    SELECT rowid, max(length(data), {LEAST_SIZE}) FROM upload WHERE tenant = ? AND digest <> ?
    ORDER BY expires_at, rowid LIMIT 1
"""
_DROP = "DELETE FROM upload WHERE rowid = ?"
_UPLOADED = "SELECT digest, data FROM upload WHERE tenant = ? AND digest IN carray(?) AND expires_at > ?"
_EXTEND = "UPDATE upload SET expires_at = max(expires_at, ?3) WHERE tenant = ?1 AND digest IN carray(?2)"

MOST_EXPIRED = 100
"""Uploads of any tenant that are dropped when one comes."""


def attach(tx: Transaction, key: JobKey, token: bytes, files: Mapping[str, bytes]) -> bool:
    found = tx.first(_HELD, raw_key(*key), token)
    if found is None:
        return False
    tx.check_room(sum(map(len, files.values())))
    tx.run(_DROP_LEFT, found[0])
    for name, data in files.items():
        tx.run(_LEAVE, found[0], name, data)
    return True


def left(tx: Transaction, key: JobKey) -> dict[str, int]:
    return dict(tx.rows(_LEFT, raw_key(*key)))


def read(tx: Transaction, key: JobKey, name: str) -> bytes | None:
    found = tx.first(_READ, raw_key(*key), name)
    return None if found is None else found[0]


def upload(tx: Transaction, tenant: str, digest: bytes, data: bytes, *, seconds: float, most: int) -> None:
    tx.check_room(len(data))
    tx.run(_EXPIRED, tx.now, MOST_EXPIRED)
    tx.run(_UPLOAD, tenant, digest, tx.now + span(seconds), data)
    (size,) = tx.column(_SIZE, tenant)
    while size > most and (oldest := tx.first(_OLDEST, tenant, digest)) is not None:
        tx.run(_DROP, oldest[0])
        size -= oldest[1]


def uploaded(tx: Transaction, tenant: str, digests: Sequence[bytes], seconds: float) -> dict[bytes, bytes]:
    found = dict(tx.rows(_UPLOADED, tenant, blob_array(digests), tx.now))
    if found:
        tx.run(_EXTEND, tenant, blob_array(list(found)), tx.now + span(seconds))
    return found
