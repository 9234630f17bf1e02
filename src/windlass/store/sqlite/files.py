"""Files beside the jobs: those that runs left, the results of steps, and uploaded ones, by tenant and SHA-256.

Uploads past their time are dropped when another one comes, some at a time; of each tenant there are never more than its
bound.
"""

import struct
from collections.abc import Mapping, Sequence

from windlass.model.names import JobKey, raw_key
from windlass.model.steps import MOST_STEP_BYTES, MOST_STEPS
from windlass.store.data import JobStep, StepSaved, StoredStep, StoredSteps
from windlass.store.encoding import from_micros, span
from windlass.store.sqlite.transaction import Transaction, blob_array

_HELD = "SELECT j.seq FROM job AS j CROSS JOIN lease AS l ON l.job = j.seq WHERE j.id = ? AND l.token = ?"
_DROP_LEFT = "DELETE FROM file WHERE job = ? AND from_run = 1"
_LEAVE = "INSERT INTO file (job, name, data, from_run) VALUES (?, ?, ?, 1)"
_LEFT = (
    "SELECT name, length(data) FROM file WHERE from_run = 1 AND job = (SELECT seq FROM job WHERE id = ?) ORDER BY name"
)
_READ = "SELECT data FROM file WHERE from_run = 1 AND job = (SELECT seq FROM job WHERE id = ?) AND name = ?"

_SAVE_STEP = "INSERT INTO file (job, name, data, from_run) VALUES (?, ?, ?, 2)"
_STEP_SIZES = "SELECT count(*), coalesce(sum(length(data)), 0) FROM file WHERE job = ? AND from_run = 2"
_HAS_STEP = "SELECT 1 FROM file WHERE job = ? AND from_run = 2 AND name = ?"
_STEPS = "SELECT name, data FROM file WHERE from_run = 2 AND job = (SELECT seq FROM job WHERE id = ?) ORDER BY rowid"

STEP_TIME = struct.Struct(">Q")
"""When a step finished, before its result."""

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


def save_step(tx: Transaction, step: JobStep) -> StepSaved:
    found = tx.first(_HELD, raw_key(step.id, step.tenant), step.token)
    if found is None:
        return StepSaved.LOST
    job = found[0]
    if tx.first(_HAS_STEP, job, step.name) is not None:
        return StepSaved.KEPT
    number, size = tx.first(_STEP_SIZES, job) or (0, 0)
    if number >= MOST_STEPS or size - number * STEP_TIME.size + len(step.result) > MOST_STEP_BYTES:
        return StepSaved.FULL
    tx.check_room(len(step.result))
    tx.run(_SAVE_STEP, job, step.name, STEP_TIME.pack(tx.now) + step.result)
    return StepSaved.KEPT


def steps(tx: Transaction, key: JobKey) -> StoredSteps:
    found = [
        StoredStep(name, from_micros(STEP_TIME.unpack_from(data)[0]), data[STEP_TIME.size :])
        for name, data in tx.rows(_STEPS, raw_key(*key))
    ]
    return StoredSteps(from_micros(tx.now), found)


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
