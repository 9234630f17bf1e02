"""Jobs: adding, reading and deleting them, with their results, their output and the messages to them.

Knows the tables of jobs and how a row becomes a `Record`. Runs and changes of state are in `transitions`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from windlass.model.job import Error, Job, Reason, State
from windlass.model.lifecycle import enter
from windlass.model.names import DEFAULT_TENANT, ID_SIZE, JobKey, raw_ids, raw_key, tenant_of, text_id, text_ids
from windlass.model.new_job import Terms
from windlass.model.output import (
    MOST_INPUT,
    MOST_KEPT,
    MOST_MESSAGES,
    MOST_OUTPUT,
    Chunk,
    Message,
    NewChunk,
    Progress,
    RunUsage,
)
from windlass.model.unique import duplicate_refused, settle
from windlass.store import encoding
from windlass.store.data import Added, Draft, Duplicate, Posted, Reading, Record, StoredResult
from windlass.store.encoding import (
    alike,
    ended_at,
    from_micros,
    held_for,
    pack_terms,
    pack_then,
    span,
    to_micros,
    unpack_terms,
)
from windlass.store.flow import StaleRules
from windlass.store.sqlite.dependencies import (
    add_follow_up,
    drop_parents,
    find_children,
    keep_children,
    use_up_results,
)
from windlass.store.sqlite.transaction import (
    QUEUED,
    RUNNING,
    STATE_NUMBERS,
    STATES,
    Row,
    Transaction,
    blob_array,
    int_array,
    job_key,
    job_keys,
)

# --- Rows to records ----------------------------------------------------------------------------------

_unpack_progress = msgspec.msgpack.Decoder(Progress)
_unpack_usage = msgspec.msgpack.Decoder(RunUsage)
_unpack_error = msgspec.msgpack.Decoder(Error)

_COLUMNS = """
    j.seq, j.id, j.lane, j.state, j.priority, j.attempt, j.crashes, j.losses, j.errors, j.files, j.size, j.reason,
    j.code, j.created_at, j.updated_at, j.run_at, j.started_at, j.finished_at, j.worker, j.node, j.pid, j.waits,
    j.assigned, j.seconds, j.terms, j.edits, j.annotations, l.token, l.usage, p.data
"""
_JOINED = """
    FROM carray(?1) AS wanted
    CROSS JOIN job AS j ON j.{key} = wanted.value
    LEFT JOIN lease AS l ON l.job = j.seq
    LEFT JOIN progress AS p ON p.job = j.seq
"""
_PAYLOAD = "LEFT JOIN payload AS large ON large.job = j.seq AND j.payload IS NULL"

# By the column that names the jobs, and whether their payloads are wanted too.
_SELECT = {(name, False): f"SELECT {_COLUMNS}, NULL {_JOINED.format(key=name)}" for name in ("seq", "id")} | {
    (name, True): f"SELECT {_COLUMNS}, coalesce(j.payload, large.data) {_JOINED.format(key=name)} {_PAYLOAD}"
    for name in ("seq", "id")
}

FIRST_RUN_COLUMNS = """
    seq, id, lane, priority, created_at, size, terms, payload,
    attempt = 1 AND crashes = 0 AND losses = 0 AND errors = 0 AND files = 0 AND code IS NULL AND run_at IS NULL
        AND finished_at IS NULL AND waits IS NULL AND payload IS NOT NULL AND edits = 0
        AND NOT EXISTS (SELECT 1 FROM progress WHERE progress.job = job.seq)
"""
"""What `first_run_records` needs of a job that was just started; the last column says whether it is enough."""

_FILES = "SELECT job, name, data FROM file WHERE job IN carray(?) AND NOT from_run ORDER BY rowid"
_ERRORS = "SELECT job, data FROM error WHERE job IN carray(?) ORDER BY job, n"


def records_by_seq(tx: Transaction, seqs: Sequence[int], *, handed_out: bool = False) -> list[Record]:
    """Records in the order asked for. All of them must exist. Handed out, they have their payloads and files."""
    if not seqs:
        return []
    found = tx.rows(_SELECT["seq", handed_out], int_array(seqs))
    records = dict(zip((row[0] for row in found), _to_records(tx, found), strict=True))
    if handed_out and (with_files := [row[0] for row in found if row[9]]):
        for seq, name, data in tx.rows(_FILES, int_array(with_files)):
            records[seq] = replace(records[seq], files={**records[seq].files, name: data})
    return [records[seq] for seq in seqs]


def records_by_key(tx: Transaction, named: Sequence[JobKey], *, payload: bool = False) -> list[Record | None]:
    """Records in the order asked for; None where there is no such job."""
    if not named:
        return []
    wanted = job_keys(named)
    found = tx.rows(_SELECT["id", payload], blob_array(list(dict.fromkeys(wanted))))
    records = dict(zip((row[1] for row in found), _to_records(tx, found), strict=True))
    return [records.get(key) for key in wanted]


def _to_records(tx: Transaction, found: list[Any]) -> Iterable[Record]:
    failed = [row[0] for row in found if row[8]]
    errors: dict[int, list[Error]] = defaultdict(list)
    if failed:
        for seq, data in tx.rows(_ERRORS, int_array(failed)):
            errors[seq].append(_unpack_error.decode(data))
    return [_to_record(tx, row, errors.get(row[0]) or []) for row in found]


def _to_record(tx: Transaction, row: Any, errors: list[Error]) -> Record:
    # The order of `_COLUMNS`, then the payload.
    (
        _, id, lane, state, priority, attempt, crashes, losses, _, _, size, reason,
        code, created_at, updated_at, run_at, started_at, finished_at, worker, place, pid, waits,
        assigned, seconds, terms, edits, annotations, token, usage, progress, payload,
    ) = row  # fmt: skip
    where = tx.lanes.get(lane)
    asked = unpack_terms(terms)
    started = _time(started_at)
    node, ran, adopted_at = encoding.decode_place(place or "")
    job = Job(
        id=text_id(id),
        tenant=where.tenant,
        queue=where.queue,
        task=where.task,
        priority=priority,
        state=STATES[state],
        waits_for=text_ids(waits) if waits else [],
        reason=None if reason is None else Reason(reason),
        attempt=attempt,
        crashes=crashes,
        losses=losses,
        worker=worker,
        node=node,
        adopted_by=worker if adopted_at is not None else None,
        adopted_at=adopted_at,
        sandbox=ran.sandbox,
        handler_version=ran.handler_version,
        pid=pid,
        progress=None if progress is None else _unpack_progress.decode(progress),
        usage=None if usage is None else _unpack_usage.decode(usage),
        code=code,
        error=errors[-1] if errors else None,
        errors=errors,
        created_at=from_micros(created_at),
        updated_at=from_micros(updated_at),
        run_at=_time(run_at),
        started_at=started,
        finished_at=ended_at(started, _time(finished_at)),
        assigned=assigned,
        deadline=run_deadline(started, asked.get("timeout"), seconds) if started and state == RUNNING else None,
        annotations=encoding.unpack_annotations(annotations),
        edits=edits,
        size=size,
        **asked,
    )
    return Record(job=job, token=token, payload=payload, group=where.limit_keys)


class StartedRun(NamedTuple):
    """Where jobs were just started, and under which token."""

    worker: str
    node: str | None
    token: bytes


def first_run_records(tx: Transaction, rows: Iterable[Any], run: StartedRun) -> Iterator[Record]:
    """Records of jobs that never ran before and have no files: those of most claims, made in half the time."""
    started = from_micros(tx.now)
    template, group, before = None, "", None
    for _, id, lane, priority, created_at, size, terms, payload, _ in rows:
        # Most jobs differ from the one before only in their ids and times.
        if template is None or before != (lane, priority, terms):
            before = (lane, priority, terms)
            where, asked = tx.lanes.get(lane), unpack_terms(terms)
            group = where.limit_keys
            template = Job(
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
                deadline=run_deadline(started, asked.get("timeout"), None),
                size=0,
                **asked,
            )
        job = replace(template, id=text_id(id), created_at=from_micros(created_at), size=size)
        yield Record(job, run.token, payload, group=group)


def run_deadline(started: datetime, timeout: float | None, seconds: float | None) -> datetime | None:
    """When a run is stopped, by its own timeout and by the seconds of its tier."""
    if timeout is None and seconds is None:
        return None
    return started + timedelta(seconds=min(bound for bound in (timeout, seconds) if bound is not None))


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


# --- Adding, reading, deleting ------------------------------------------------------------------------

LARGEST_INLINE = 1000
"""Bytes of a payload that is stored in its job's row: rewritten with the row, but read with it too."""

_OWNERS = "SELECT id FROM job WHERE id BETWEEN ? AND ?"
_KNOWN = "SELECT id FROM job WHERE id IN carray(?)"
_EXISTS = "SELECT 1 FROM job WHERE id = ?"
_ADD_JOBS = """
    INSERT INTO job (
        lane, tenant_queue, state, priority, files, followed, waits, created_at, updated_at, run_at, expires_at,
        abandon_at, terms, id, size, payload
    ) VALUES {rows}
"""
_ADD_PAYLOAD = "INSERT INTO payload (job, data) SELECT seq, ?2 FROM job WHERE id = ?1"

_ADD_FILE = "INSERT INTO file (job, name, data) SELECT seq, ?2, ?3 FROM job WHERE id = ?1"

_DROP_JOBS = (
    "DELETE FROM lease WHERE job IN carray(?)",
    "DELETE FROM progress WHERE job IN carray(?)",
    "DELETE FROM error WHERE job IN carray(?)",
    "DELETE FROM result WHERE job IN carray(?)",
    "DELETE FROM output WHERE job IN carray(?)",
    "DELETE FROM input WHERE job IN carray(?)",
    "DELETE FROM payload WHERE job IN carray(?)",
    "DELETE FROM file WHERE job IN carray(?)",
    "DELETE FROM job WHERE seq IN carray(?)",
)


class JobRows(NamedTuple):
    """Jobs that differ only in id and payload, in the order of `_ADD_JOBS`."""

    shared: Row
    own: list[Row]


def add(tx: Transaction, drafts: Sequence[Draft]) -> list[Added]:
    if not all(draft.follows for draft in drafts):
        tx.check_room(sum(len(memoryview(draft.new.payload)) for draft in drafts))
    group_epoch = tx.rules.group_epoch
    if [draft for draft in drafts if draft.group_epoch != group_epoch]:  # takes less time than `any`
        raise StaleRules
    named = job_keys(drafts)
    seen = set(tx.column(_KNOWN, blob_array(named)))
    if [draft for draft in drafts if draft.identity]:
        return _add_unique(tx, drafts, named, seen)
    if not seen and len(set(named)) == len(named):
        _add_new(tx, drafts, named)
        return [True] * len(drafts)
    fresh: dict[bytes, Draft] = {}
    answers: list[Added] = []
    for key, draft in zip(named, drafts, strict=True):
        new = key not in seen
        answers.append(new)
        if new:
            seen.add(key)
            fresh[key] = draft
    _add_new(tx, list(fresh.values()), list(fresh))
    return answers


def add_like(tx: Transaction, example: Draft, terms: bytes, key: bytes, payload: bytes) -> bool:
    """Add one job like an example without files or follow-up, whose terms are packed already; whether it is new."""
    tx.check_room(len(payload))
    if example.group_epoch != tx.rules.group_epoch:
        raise StaleRules
    if tx.first(_EXISTS, key) is not None:
        return False
    tx.run_all(_ADD_JOBS, [_own_row(key, payload)], _shared_row(tx, example, terms, 1))
    if len(payload) > LARGEST_INLINE:
        tx.run(_ADD_PAYLOAD, key, payload)
    return True


def _add_new(tx: Transaction, drafts: Sequence[Draft], named: Sequence[bytes]) -> None:
    """Add jobs that do not exist yet."""
    parts, start = [], 0
    for some in alike(drafts):
        parts.append(_job_rows(tx, some, named[start : start + len(some)]))
        start += len(some)
    if len(parts) == 1:
        tx.run_all(_ADD_JOBS, parts[0].own, parts[0].shared)
    else:
        tx.run_all(_ADD_JOBS, [(*shared, *row) for shared, own in parts for row in own])
    for key, draft in zip(named, drafts, strict=True):
        new = draft.new
        if new.files or new.then is not None or len(memoryview(new.payload)) > LARGEST_INLINE:
            _add_parts(tx, draft, key)


def _job_rows(tx: Transaction, drafts: Sequence[Draft], named: Sequence[bytes]) -> JobRows:
    """The rows of such jobs, which are counted here."""
    shared = _shared_row(tx, drafts[0], pack_terms(drafts[0].new), len(drafts))
    return JobRows(shared, [_own_row(key, bytes(draft.new.payload)) for key, draft in zip(named, drafts, strict=True)])


def _shared_row(tx: Transaction, draft: Draft, terms: bytes, count: int) -> Row:
    new, now = draft.new, tx.now
    lane = tx.lane(draft.tenant, new.queue, new.task, draft.group)
    entered, run_at = enter(new, from_micros(now))
    state, due = STATE_NUMBERS[entered], None if run_at is None else to_micros(run_at)
    waits = raw_ids(new.after) if new.after else None
    expires_at = None if new.expires is None else now + span(new.expires)
    abandon_at = None if new.owner_timeout is None else now + span(new.owner_timeout)
    tx.count(lane.id, state, count)
    if state == QUEUED:
        tx.topics.add(f"work/{lane.queue}")
    followed = new.then is not None or new.on_failure is not None
    what = (lane.id, lane.tenant_queue, state, new.priority, len(new.files), followed, waits)
    return (*what, now, now, due, expires_at, abandon_at, terms)


def _own_row(key: bytes, payload: bytes) -> Row:
    return key, len(payload), payload if len(payload) <= LARGEST_INLINE else None


def _add_parts(tx: Transaction, draft: Draft, key: bytes) -> None:
    """Add what does not fit into the row of a job."""
    new, payload = draft.new, bytes(draft.new.payload)
    if len(payload) > LARGEST_INLINE:
        tx.run(_ADD_PAYLOAD, key, payload)
    for name, data in new.files.items():
        tx.run(_ADD_FILE, key, name, data)
    if new.then is not None:
        add_follow_up(tx, key, pack_then(draft.tenant, new.then))


def read(tx: Transaction, wanted: Sequence[JobKey], *, payload: bool) -> Reading:
    return Reading(now=from_micros(tx.now), records=records_by_key(tx, wanted, payload=payload))


def tenants_with(tx: Transaction, texts: Sequence[str]) -> list[list[str]]:
    """For each id the tenants that have a job with it: keys begin with the id."""
    found = []
    for text in texts:
        first = raw_key(text, DEFAULT_TENANT)
        rows = tx.column(_OWNERS, first, first + b"\xff") if len(first) == ID_SIZE else []
        found.append(sorted(map(tenant_of, rows)))
    return found


def drop_jobs(tx: Transaction, seqs: Sequence[int]) -> None:
    """Delete jobs and all their rows. The caller has adjusted the counters."""
    if seqs:
        drop_parents(tx, seqs)
        for statement in _DROP_JOBS:
            tx.run(statement, int_array(seqs))


# --- Unique jobs --------------------------------------------------------------------------------------

_LAST_JOBS = "SELECT identity, id, state, created_at, seq, lane FROM job WHERE identity IN carray(?)"
_FORGET_IDENTITIES = "UPDATE job SET identity = NULL WHERE identity IN carray(?)"
_SET_IDENTITIES = """
    WITH given (id, identity) AS (VALUES {rows})
    UPDATE job SET identity = given.identity FROM given WHERE job.id = given.id
"""


class LastJob(NamedTuple):
    """The last job that was added under an identity, in the order of `_LAST_JOBS`."""

    key: bytes
    state: int
    created_at: int
    seq: int = 0
    """0 = it is about to be added."""
    lane: int = 0


def _add_unique(tx: Transaction, drafts: Sequence[Draft], named: Sequence[bytes], seen: set[bytes]) -> list[Added]:
    """Add jobs of which some are unique: all is decided before anything is written, so a refusal keeps none."""
    wanted = blob_array(list({draft.identity for draft in drafts}))
    last = {identity: LastJob(*rest) for identity, *rest in tx.rows(_LAST_JOBS, wanted)}
    answers: list[Added] = []
    fresh: dict[bytes, Draft] = {}
    replaced: list[LastJob] = []
    identities: dict[bytes, bytes] = {}
    for key, draft in zip(named, drafts, strict=True):
        if key in seen:
            answers.append(False)
            continue
        other = last.get(draft.identity)
        own, answer = (key, True) if other is None else _settle(tx, draft, key, other)
        answers.append(answer)
        if isinstance(answer, Duplicate) and not answer.replaced:
            continue
        if other is not None and own == other.key:
            fresh.pop(own, None)
            replaced += [other] if other.seq else []
        seen.add(own)
        fresh[own] = draft
        if draft.identity:
            identities[draft.identity] = own
            last[draft.identity] = LastJob(own, QUEUED, tx.now)
    if not fresh:
        return answers
    keys = _drop_replaced(tx, replaced)
    if identities:
        tx.run(_FORGET_IDENTITIES, blob_array(list(identities)))
    _add_new(tx, list(fresh.values()), list(fresh))
    tx.run_all(_SET_IDENTITIES, [(key, identity) for identity, key in identities.items()])
    if keys:
        find_children(tx, keys)
    return answers


def _settle(tx: Transaction, draft: Draft, key: bytes, other: LastJob) -> tuple[bytes, Added]:
    """The key under which a job is to be added, its own or that of the other one, and the answer."""
    state, age = STATES[other.state], timedelta(microseconds=tx.now - other.created_at)
    found = settle(draft.new, state, age, follows=draft.follows)
    if found == "add":
        return key, True
    if found == "reject":
        raise duplicate_refused(draft.new, text_id(other.key), state)
    return other.key, Duplicate(text_id(other.key), replaced=found == "replace")


def _drop_replaced(tx: Transaction, jobs: Sequence[LastJob]) -> list[bytes]:
    if not jobs:
        return []
    for job in jobs:
        tx.count(job.lane, job.state, -1)
    seqs = [job.seq for job in jobs]
    keys = keep_children(tx, seqs)
    drop_jobs(tx, seqs)
    return keys


# --- Results ------------------------------------------------------------------------------------------
#
# Where a record outlives its result, the keep clock has two stages: `purge_at` is first the result's time, then the
# record's, which counts from `updated_at`: nothing may change that after the end. Reading a result checks the clock
# too, for a purge may be late.

DEFAULT_TERMS = Terms(task="any")

_RESULT = """
    SELECT job.seq, job.terms, job.purge_at, result.data, result.content_type
    FROM job CROSS JOIN result ON result.job = job.seq WHERE job.id = ? AND NOT result.spent
"""
_NEXT_STAGE = """
    WITH kept (seq, purge_at) AS (VALUES {rows})
    UPDATE job SET purge_at = kept.purge_at FROM kept WHERE job.seq = kept.seq
"""


def result_kept_for(asked: Mapping[str, Any]) -> float | None:
    """Seconds that the result of a job with these terms is kept, if its record outlives it."""
    if "keep_result_for" not in asked:
        return None
    keep_success = asked.get("keep_success", DEFAULT_TERMS.keep_success)
    return held_for(asked.get("keep_result", DEFAULT_TERMS.keep_result), asked["keep_result_for"], keep_success)


def record_kept_until(asked: Mapping[str, Any], ended_at: int) -> int | None:
    """When the record of a success is deleted; null = never."""
    keep = asked.get("keep_success", DEFAULT_TERMS.keep_success)
    return None if keep is None else ended_at + span(keep)


def peek_result(tx: Transaction, job: JobKey) -> tuple[StoredResult | None, bool]:
    """The result of a job, and whether it may be read only once."""
    found = _find_result(tx, job)
    if found is None:
        return None, False
    _, asked, kept = found
    return kept, asked.get("keep_result") == "once"


def take_results(tx: Transaction, some: Sequence[JobKey]) -> dict[JobKey, StoredResult | None]:
    """The results of jobs, which are deleted."""
    found = {job: _find_result(tx, job) for job in some}
    use_up_results(tx, [one[0] for one in found.values() if one is not None])
    return {job: None if one is None else one[2] for job, one in found.items()}


def _find_result(tx: Transaction, job: JobKey) -> tuple[int, Mapping[str, Any], StoredResult] | None:
    row = tx.first(_RESULT, job_key(job))
    if row is None:
        return None
    seq, terms, purge_at, data, content_type = row
    asked = unpack_terms(terms)
    if result_kept_for(asked) is not None and purge_at <= tx.now:
        return None
    return seq, asked, StoredResult(data=data, content_type=content_type)


def drop_results(tx: Transaction, records: Sequence[tuple[int, int | None]]) -> None:
    """Delete results whose time is over; each record stays until its own time."""
    if records:
        use_up_results(tx, [seq for seq, _ in records])
        tx.run_all(_NEXT_STAGE, records)


# --- Output -------------------------------------------------------------------------------------------
#
# The newest chunks, numbered for as long as the job exists. Each chunk stores how many bytes came before it, so that
# the chunks that must make room are found without adding anything up.

_LAST_CHUNK = """
    SELECT job.chunks, job.attempt, coalesce(output.start + length(output.data), 0)
    FROM job LEFT JOIN output ON output.job = job.seq AND output.n = job.chunks WHERE job.seq = ?
"""
_ADD_CHUNKS = "INSERT INTO output (job, n, start, attempt, stream, at, data) VALUES {rows}"
_NUMBER_CHUNKS = "UPDATE job SET chunks = ?2 WHERE seq = ?1"
_OLDEST_CHUNK_KEPT = "SELECT n FROM output WHERE job = ?1 AND start >= ?2 ORDER BY n LIMIT 1"
_DROP_CHUNKS = "DELETE FROM output WHERE job = ?1 AND n < ?2"
_CHUNKS = """
    SELECT output.n, output.attempt, output.stream, output.at, output.data
    FROM job CROSS JOIN output ON output.job = job.seq WHERE job.id = ?1 AND output.n > ?2 ORDER BY output.n LIMIT ?3
"""


def add_output(tx: Transaction, seq: int, chunks: Sequence[NewChunk]) -> None:
    """Add output of a running job."""
    row = tx.first(_LAST_CHUNK, seq)
    if row is None:
        return
    last, attempt, end = row
    rows: list[Row] = []
    for chunk in chunks:
        last += 1
        rows.append((seq, last, end, attempt, chunk.stream, tx.now, chunk.data))
        end += len(chunk.data)
    tx.run_all(_ADD_CHUNKS, rows)
    tx.run(_NUMBER_CHUNKS, seq, last)
    fits = tx.first(_OLDEST_CHUNK_KEPT, seq, end - MOST_OUTPUT)
    tx.run(_DROP_CHUNKS, seq, max(fits[0] if fits else last + 1, last - MOST_KEPT + 1))


def read_output(tx: Transaction, job: JobKey, after: int, limit: int) -> list[Chunk]:
    return [
        Chunk(n=n, attempt=attempt, stream=stream, at=from_micros(at), data=data)
        for n, attempt, stream, at, data in tx.rows(_CHUNKS, job_key(job), after, limit)
    ]


# --- Messages to jobs: numbered for one run, in rows that end with it ---------------------------------

_RECIPIENT = "SELECT seq, state, worker FROM job WHERE id = ?"
_FIRST_MESSAGE = "SELECT n, finish FROM input WHERE job = ? ORDER BY n LIMIT 1"
_LAST_MESSAGE = "SELECT n, finish FROM input WHERE job = ? ORDER BY n DESC LIMIT 1"
_ADD_MESSAGE = "INSERT INTO input (job, n, finish, data) VALUES (?, ?, ?, ?)"
_DROP_MESSAGES = "DELETE FROM input WHERE job = ?1 AND n < ?2"
_EMPTY_MESSAGE = "UPDATE input SET data = x'' WHERE job = ?1 AND n = ?2"
_MESSAGES = "SELECT n, data FROM input WHERE job = ?1 AND n > ?2 ORDER BY n"


def post(tx: Transaction, to: JobKey, data: bytes, most: int | None) -> Posted:
    job = tx.first(_RECIPIENT, job_key(to))
    if job is None or job[1] > RUNNING:
        return Posted.ENDED
    seq, state, worker = job
    first, last = tx.first(_FIRST_MESSAGE, seq), tx.first(_LAST_MESSAGE, seq)
    if first is None or last is None:
        first = last = (0, 0)
        tx.run(_ADD_MESSAGE, seq, *last, b"")
    if most is not None and last[1] + len(data) > most:
        return Posted.OVER
    if last[0] - first[0] >= MOST_MESSAGES or last[1] - first[1] + len(data) > MOST_INPUT:
        return Posted.FULL
    tx.run(_ADD_MESSAGE, seq, last[0] + 1, last[1] + len(data), data)
    if state == RUNNING:
        tx.topics.add(f"order/{worker}")
    return Posted.KEPT


def collect(tx: Transaction, seq: int, after: int) -> list[Message]:
    """The messages to a running job behind a number; those up to it are dropped."""
    first, last = tx.first(_FIRST_MESSAGE, seq), tx.first(_LAST_MESSAGE, seq)
    if first is None or last is None:
        return []
    after = min(after, last[0])
    if after > first[0]:
        tx.run(_DROP_MESSAGES, seq, after)
        tx.run(_EMPTY_MESSAGE, seq, after)
    return [Message(n, data) for n, data in tx.rows(_MESSAGES, seq, max(after, first[0]))]
