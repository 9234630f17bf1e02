"""Rows to records: the statement that reads jobs, and what becomes of its rows.

Knows the columns of `job` and what a `Job` is made of; decides nothing and writes nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from windlass.model.job import Error, Job, Progress, Reason, State
from windlass.model.names import JobKey, text_id
from windlass.store import Record, places
from windlass.store.micros import ended_at, from_micros
from windlass.store.sqlite import batches
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import RUNNING, STATES, keys
from windlass.store.terms import unpack

_progress = msgspec.msgpack.Decoder(Progress)
_error = msgspec.msgpack.Decoder(Error)

_COLUMNS = """
    j.seq, j.id, j.lane, j.state, j.priority, j.attempt, j.crashes, j.losses, j.errors, j.files, j.size, j.reason,
    j.code, j.created_at, j.updated_at, j.run_at, j.started_at, j.finished_at, j.worker, j.node, j.pid, j.waits,
    j.assigned, j.seconds, j.terms, l.token, p.data
"""
_JOINED = """
    FROM carray(?1) AS wanted
    CROSS JOIN job AS j ON j.{key} = wanted.value
    LEFT JOIN lease AS l ON l.job = j.seq
    LEFT JOIN progress AS p ON p.job = j.seq
"""
_PAYLOAD = "LEFT JOIN payload AS large ON large.job = j.seq AND j.payload IS NULL"

# By what the wanted ones are named by, and whether their payloads are wanted too.
_SELECT = {(name, False): f"SELECT {_COLUMNS}, NULL {_JOINED.format(key=name)}" for name in ("seq", "id")} | {
    (name, True): f"SELECT {_COLUMNS}, coalesce(j.payload, large.data) {_JOINED.format(key=name)} {_PAYLOAD}"
    for name in ("seq", "id")
}

STARTED = """
    seq, id, lane, priority, created_at, size, terms, payload,
    attempt = 1 AND crashes = 0 AND losses = 0 AND errors = 0 AND files = 0 AND code IS NULL AND run_at IS NULL
        AND finished_at IS NULL AND waits IS NULL AND payload IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM progress WHERE progress.job = job.seq)
"""
"""What `first_runs` must know of a job that has just been started, and whether that is enough."""

_FILES = "SELECT job, name, data FROM file WHERE job IN carray(?) ORDER BY rowid"
_ERRORS = "SELECT job, data FROM error WHERE job IN carray(?) ORDER BY job, n"


def by_seq(tx: Transaction, seqs: Sequence[int], *, handed_out: bool = False) -> list[Record]:
    """Records in the order asked for. All of them must be there. Handed out, they have their payloads and files."""
    if not seqs:
        return []
    found = tx.rows(_SELECT["seq", handed_out], batches.numbers(seqs))
    records = dict(zip((row[0] for row in found), _records(tx, found), strict=True))
    if handed_out and (laden := [row[0] for row in found if row[9]]):
        for seq, name, data in tx.rows(_FILES, batches.numbers(laden)):
            records[seq] = replace(records[seq], files={**records[seq].files, name: data})
    return [records[seq] for seq in seqs]


def by_key(tx: Transaction, named: Sequence[JobKey], *, payload: bool = False) -> list[Record | None]:
    """Records in the order asked for; None where there is no such job."""
    if not named:
        return []
    wanted = keys(named)
    found = tx.rows(_SELECT["id", payload], batches.blobs(list(dict.fromkeys(wanted))))
    records = dict(zip((row[1] for row in found), _records(tx, found), strict=True))
    return [records.get(key) for key in wanted]


def _records(tx: Transaction, found: list[Any]) -> Iterable[Record]:
    failed = [row[0] for row in found if row[8]]
    errors: dict[int, list[Error]] = defaultdict(list)
    if failed:
        for seq, data in tx.rows(_ERRORS, batches.numbers(failed)):
            errors[seq].append(_error.decode(data))
    return [_record(tx, row, errors.get(row[0]) or []) for row in found]


def _record(tx: Transaction, row: Any, errors: list[Error]) -> Record:
    # The order of `_COLUMNS`, then the payload.
    (
        _, id, lane, state, priority, attempt, crashes, losses, _, _, size, reason,
        code, created_at, updated_at, run_at, started_at, finished_at, worker, place, pid, waits,
        assigned, seconds, terms, token, progress, payload,
    ) = row  # fmt: skip
    where = tx.lanes.get(lane)
    asked = unpack(terms)
    started = _maybe(started_at)
    node, ran = places.read(place or "")
    job = Job(
        id=text_id(id),
        tenant=where.tenant,
        queue=where.queue,
        task=where.task,
        priority=priority,
        state=STATES[state],
        waits_for=_ids(waits),
        reason=None if reason is None else Reason(reason),
        attempt=attempt,
        crashes=crashes,
        losses=losses,
        worker=worker,
        node=node,
        sandbox=ran.sandbox,
        handler_version=ran.handler_version,
        pid=pid,
        progress=None if progress is None else _progress.decode(progress),
        code=code,
        error=errors[-1] if errors else None,
        errors=errors,
        created_at=from_micros(created_at),
        updated_at=from_micros(updated_at),
        run_at=_maybe(run_at),
        started_at=started,
        finished_at=ended_at(started, _maybe(finished_at)),
        assigned=assigned,
        deadline=deadline(started, asked.get("timeout"), seconds) if started and state == RUNNING else None,
        size=size,
        **asked,
    )
    return Record(job=job, token=token, payload=payload, group=where.group)


class Run(NamedTuple):
    """Where jobs have just been started, and under which token."""

    worker: str
    node: str | None
    token: bytes


def first_runs(tx: Transaction, rows: Iterable[Any], run: Run) -> Iterator[Record]:
    """Jobs that have never run before and bring nothing along: what most claims bring, made in half the time."""
    started = from_micros(tx.now)
    alike, group, before = None, "", None
    for _, id, lane, priority, created_at, size, terms, payload, _ in rows:
        # The next job mostly differs from the last in its id and times alone.
        if alike is None or before != (lane, priority, terms):
            before = (lane, priority, terms)
            where, asked = tx.lanes.get(lane), unpack(terms)
            group = where.group
            alike = Job(
                id="",
                tenant=where.tenant,
                queue=where.queue,
                task=where.task,
                priority=priority,
                state=State.RUNNING,
                attempt=1,
                worker=run.worker,
                node=run.node,
                created_at=started,
                updated_at=started,
                started_at=started,
                deadline=deadline(started, asked.get("timeout"), None),
                size=0,
                **asked,
            )
        job = replace(alike, id=text_id(id), created_at=from_micros(created_at), size=size)
        yield Record(job, run.token, payload, group=group)


def deadline(started: datetime, timeout: float | None, seconds: float | None) -> datetime | None:
    """When a run is stopped that may take so long, and so long at its tier."""
    if timeout is None and seconds is None:
        return None
    return started + timedelta(seconds=min(bound for bound in (timeout, seconds) if bound is not None))


def _maybe(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _ids(waits: bytes | None) -> list[str]:
    return [text_id(waits[at : at + 16]) for at in range(0, len(waits), 16)] if waits else []
