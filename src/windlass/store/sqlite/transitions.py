"""Changes of jobs: heartbeats and success as workers report them, and the moves that `model.lifecycle` decides.

A report changes nothing unless it carries the token of the job's current lease; a move changes nothing unless the job
still is what it was when the move was decided. Checks and writes; decides nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from windlass.model.job import FINISHED, Reason, State
from windlass.model.lifecycle import GONE, Move, Step
from windlass.model.names import key_of, raw_ids
from windlass.model.outcome import Verdict
from windlass.model.output import Message
from windlass.model.worker import Adopter
from windlass.store.data import MOST_COLLECTED, ORDER_STEPS, Heartbeat, HeartbeatReply, JobSuccess
from windlass.store.encoding import (
    PLACE_SEPARATOR,
    encode_adopted,
    encode_handler_run,
    end_topic,
    from_micros,
    span,
    to_micros,
    unpack_terms,
)
from windlass.store.sqlite.dependencies import parent_completed
from windlass.store.sqlite.edits import edit
from windlass.store.sqlite.jobs import DEFAULT_TERMS, add_output, collect, drop_jobs, result_kept_for, run_deadline
from windlass.store.sqlite.transaction import (
    BLOCKED,
    ENDED,
    RUNNING,
    STATE_NUMBERS,
    SUCCEEDED,
    Row,
    Transaction,
    blob_array,
    held_levels,
    int_array,
    job_keys,
)

# --- Reports of workers -------------------------------------------------------------------------------

_pack = msgspec.msgpack.Encoder()

_RUNNING = """
    SELECT j.id, j.seq, j.lane, j.reason, j.followed, j.terms, j.started_at, j.assigned, j.seconds, l.token
    FROM carray(?) AS wanted CROSS JOIN job AS j ON j.id = wanted.value CROSS JOIN lease AS l ON l.job = j.seq
"""
_RENEW = "UPDATE lease SET until = ?2 WHERE job IN carray(?1)"
_SET_PROGRESS = "INSERT OR REPLACE INTO progress (job, data) VALUES {rows}"
_SET_USAGE = """
    WITH measured (job, usage) AS (VALUES {rows})
    UPDATE lease SET usage = measured.usage FROM measured WHERE lease.job = measured.job
"""
_SET_UPDATED_AT = "UPDATE job SET updated_at = ?2 WHERE seq IN carray(?1)"
_SET_PID = """
    WITH begun (seq, pid, updated_at) AS (VALUES {rows})
    UPDATE job SET pid = begun.pid, updated_at = begun.updated_at FROM begun WHERE job.seq = begun.seq
"""

_DROP_SENT_FILES = "DELETE FROM file WHERE job IN carray(?) AND NOT from_run"
_NO_SENT_FILES = "UPDATE job SET files = 0 WHERE seq IN carray(?)"

_SET_HANDLER = f"""
    UPDATE job SET node =
        substr(coalesce(node, ''), 1, instr(coalesce(node, '') || '{PLACE_SEPARATOR}', '{PLACE_SEPARATOR}') - 1) || ?2
    WHERE seq IN carray(?1)
"""

_ENDING = """
    SELECT j.id, j.seq, j.lane, j.reason, j.followed, j.terms, j.assigned,
        j.seconds IS NOT NULL OR j.abandon_at IS NOT NULL,
        EXISTS (SELECT 1 FROM input WHERE input.job = j.seq), l.token
    FROM carray(?) AS wanted CROSS JOIN job AS j ON j.id = wanted.value CROSS JOIN lease AS l ON l.job = j.seq
"""
_SUCCEEDED_JOB = f"""
    UPDATE job SET state = {SUCCEEDED}, reason = NULL, code = {{0}}, updated_at = {{1}}, finished_at = {{2}},
        purge_at = {{3}}
"""
_SUCCEED = f"{_SUCCEEDED_JOB.format('?2', '?3', '?3', '?4')} WHERE seq IN carray(?1)"
_SET_REASON = """
    WITH marked (seq, reason, updated_at) AS (VALUES {rows})
    UPDATE job SET reason = marked.reason, updated_at = marked.updated_at FROM marked WHERE job.seq = marked.seq
"""
_NOTIFIED = "SELECT 'order/' || worker FROM lease WHERE job IN carray(?)"
_SUCCEED_BEFORE = f"""
    WITH ended (seq, code, updated_at, finished_at, purge_at) AS (VALUES {{rows}})
    {_SUCCEEDED_JOB.format("ended.code", "ended.updated_at", "ended.finished_at", "ended.purge_at")}
    FROM ended WHERE job.seq = ended.seq
"""
_DROP_BOUNDS = "UPDATE job SET abandon_at = NULL, assigned = NULL, seconds = NULL WHERE seq IN carray(?)"
_ADD_RESULTS = "INSERT INTO result (job, data, content_type) VALUES {rows}"
_DROP_LEASES = "DELETE FROM lease WHERE job IN carray(?)"
_DROP_MESSAGES = "DELETE FROM input WHERE job IN carray(?)"


class LeasedRow(NamedTuple):
    """A running job, in the order of `_RUNNING`."""

    id: bytes
    seq: int
    lane: int
    reason: str | None
    followed: int
    terms: bytes
    started_at: int
    assigned: str | None
    seconds: float | None
    token: bytes


class EndingJob(NamedTuple):
    """A running job that is about to end, in the order of `_ENDING`."""

    id: bytes
    seq: int
    lane: int
    reason: str | None
    followed: int
    terms: bytes
    assigned: str | None
    bound: int
    """Whether it has a tier or an owner clock."""
    messages: int
    """Whether there are messages for it."""
    token: bytes


def _running_jobs(tx: Transaction, ids: Sequence[bytes]) -> dict[bytes, LeasedRow]:
    return {row[0]: LeasedRow(*row) for row in tx.rows(_RUNNING, blob_array(ids))}


def heartbeat(tx: Transaction, beats: Sequence[Heartbeat], lease: float) -> list[HeartbeatReply]:
    ids = job_keys(beats)
    held = _running_jobs(tx, ids)
    answers = []
    # By job: of several heartbeats in one call, the last one counts.
    pids: dict[int, Row] = {}
    progress: dict[int, Row] = {}
    renewed: list[int] = []
    ran: defaultdict[str, list[int]] = defaultdict(list)
    room = MOST_COLLECTED
    for id, beat in zip(ids, beats, strict=True):
        job = held.get(id)
        if job is None or job.token != beat.token:
            answers.append(HeartbeatReply(id=beat.id, held=False))
            continue
        messages: list[Message] = []
        if beat.messages_after is not None and room > 0:
            messages = collect(tx, job.seq, beat.messages_after)
            room -= sum(len(message.data) for message in messages)
        answers.append(_heartbeat_reply(beat.id, job, messages))
        renewed.append(job.seq)
        if beat.pid is not None:
            pids[job.seq] = (job.seq, beat.pid, tx.now)
        if beat.progress is not None:
            progress[job.seq] = (job.seq, _pack.encode(beat.progress))
        if beat.output:
            add_output(tx, job.seq, beat.output)
        ran[encode_handler_run(beat.ran)].append(job.seq)
    if renewed:
        tx.run(_RENEW, int_array(renewed), tx.now + span(lease))
    tx.run_all(_SET_PID, list(pids.values()))
    tx.run_all(_SET_PROGRESS, list(progress.values()))
    _set_usage(tx, held, beats)
    if progress:
        tx.run(_SET_UPDATED_AT, int_array(list(progress)), tx.now)
    _set_handler(tx, ran)
    if loaded := [id for id, beat, reply in zip(ids, beats, answers, strict=True) if beat.files_loaded and reply.held]:
        seqs = [held[id].seq for id in loaded]
        tx.run(_DROP_SENT_FILES, int_array(seqs))
        tx.run(_NO_SENT_FILES, int_array(seqs))
    return answers


def _set_usage(tx: Transaction, held: Mapping[bytes, LeasedRow], beats: Sequence[Heartbeat]) -> None:
    measured = [beat for beat in beats if beat.usage is not None]
    jobs = [(held.get(id), beat) for id, beat in zip(job_keys(measured), measured, strict=True)]
    rows = {job.seq: (job.seq, _pack.encode(beat.usage)) for job, beat in jobs if job and job.token == beat.token}
    tx.run_all(_SET_USAGE, list(rows.values()))


def _set_handler(tx: Transaction, ran: Mapping[str, Sequence[int]]) -> None:
    """Store what ran jobs, behind the name of the machine, which is there since their claim."""
    for place, seqs in ran.items():
        if place:
            tx.run(_SET_HANDLER, int_array(seqs), place)


def _heartbeat_reply(id: str, job: LeasedRow, messages: list[Message]) -> HeartbeatReply:
    reason = None if job.reason is None else Reason(job.reason)
    deadline = None
    if job.seconds is not None:
        deadline = run_deadline(from_micros(job.started_at), unpack_terms(job.terms).get("timeout"), job.seconds)
    return HeartbeatReply(id, held=True, reason=reason, deadline=deadline, messages=messages)


def succeed(tx: Transaction, successes: Sequence[JobSuccess]) -> list[bool]:
    ids = job_keys(successes)
    held = {row[0]: EndingJob._make(row) for row in tx.rows(_ENDING, blob_array(ids))}
    answers = []
    ended: defaultdict[tuple[int, int | None], list[int]] = defaultdict(list)  # by code and purge time
    ended_before: list[Row] = []
    outcomes: list[Row] = []
    released: list[EndingJob] = []
    gone: list[int] = []
    by_hand: dict[int, Row] = {}
    ran: defaultdict[str, list[int]] = defaultdict(list)
    for id, done in zip(ids, successes, strict=True):
        job = held.get(id)
        if job is None or job.token != done.token:
            answers.append(False)
            continue
        answers.append(True)
        del held[id]  # it ends once, even if it is in the list twice
        tx.count(job.lane, RUNNING, -1)
        tx.outcomes[job.lane, Verdict.OK] += 1
        _free_places(tx, job.lane, job.assigned)
        tx.topics.add(end_topic(key_of(done)))
        if job.followed:
            parent_completed(tx, job.seq, SUCCEEDED)
        if done.reason is not None:
            by_hand[job.seq] = (job.seq, done.reason, tx.now)
        terms = unpack_terms(job.terms)
        keep = terms.get("keep_success", DEFAULT_TERMS.keep_success)
        if keep == 0 or job.reason == Reason.DELETED:
            gone.append(job.seq)
            continue
        tx.count(job.lane, SUCCEEDED, 1)
        released.append(job)
        ran[encode_handler_run(done.ran)].append(job.seq)
        if done.result is not None and terms.get("keep_result") != "none":
            outcomes.append((job.seq, done.result, done.content_type))
            first = result_kept_for(terms)
            keep = keep if first is None else first
        purge_at = None if keep is None else tx.now + span(keep)
        if done.finished_at is None:
            ended[done.code, purge_at].append(job.seq)
        else:
            ended_before.append((job.seq, done.code, tx.now, to_micros(done.finished_at), purge_at))
    for (code, purge_at), seqs in ended.items():
        tx.run(_SUCCEED, int_array(seqs), code, tx.now, purge_at)
    tx.run_all(_SUCCEED_BEFORE, ended_before)
    if by_hand:
        tx.topics.update(tx.column(_NOTIFIED, int_array(list(by_hand))))
        tx.run_all(_SET_REASON, list(by_hand.values()))
    tx.run_all(_ADD_RESULTS, outcomes)
    _set_handler(tx, ran)
    _release(tx, released)
    drop_jobs(tx, gone)
    return answers


def _release(tx: Transaction, jobs: Sequence[EndingJob]) -> None:
    """Delete what belongs to a run: its lease, its bounds, the messages to it."""
    if not jobs:
        return
    tx.run(_DROP_LEASES, int_array([job.seq for job in jobs]))
    if bound := [job.seq for job in jobs if job.bound]:
        tx.run(_DROP_BOUNDS, int_array(bound))
    if with_messages := [job.seq for job in jobs if job.messages]:
        tx.run(_DROP_MESSAGES, int_array(with_messages))


def _end_runs(tx: Transaction, seqs: Sequence[int]) -> None:
    """Delete leases, and the messages to these runs."""
    if seqs:
        tx.run(_DROP_LEASES, int_array(seqs))
        tx.run(_DROP_MESSAGES, int_array(seqs))


def _free_places(tx: Transaction, lane: int, assigned: str | None) -> None:
    """A run ends: free its places."""
    where = tx.lanes.get(lane)
    if not where.limit_keys:
        return
    tx.place(where.buckets, -1)
    if assigned is not None:
        tx.place(held_levels(tx.rules, where.tenant, where.queue, assigned), -1)


# --- Moves: those of different jobs are written together, those of one job one after the other --------

MOST_ERRORS = 100
"""Of one job; the oldest is dropped for the next."""

_BEFORE = """
    SELECT j.id, j.seq, j.lane, j.state, j.attempt, j.reason, j.errors, j.worker, j.followed, j.waits, j.assigned,
        j.abandon_at, j.edits, l.token, l.until
    FROM carray(?) AS wanted CROSS JOIN job AS j ON j.id = wanted.value LEFT JOIN lease AS l ON l.job = j.seq
"""
_SET_TIER = """
    WITH shortened (seq, assigned, seconds) AS (VALUES {rows})
    UPDATE job SET assigned = shortened.assigned, seconds = shortened.seconds
    FROM shortened WHERE job.seq = shortened.seq
"""
_ADOPT = (
    "UPDATE job SET worker = ?2, node = ?3, updated_at = ?4 WHERE seq = ?1",
    "UPDATE lease SET worker = ?2, token = ?3, until = ?4, usage = NULL WHERE job = ?1",
)
_SET_WAITS = """
    WITH remaining (seq, waits) AS (VALUES {rows})
    UPDATE job SET waits = remaining.waits FROM remaining WHERE job.seq = remaining.seq
"""
_SET_ABANDON_AT = """
    WITH clock (seq, abandon_at) AS (VALUES {rows})
    UPDATE job SET abandon_at = clock.abandon_at FROM clock WHERE job.seq = clock.seq
"""
_MOVE = """
    WITH moved (
        seq, state, reason, attempt, crashes, losses, run_at, code, updated_at, finished_at, purge_at, failed, waits,
        abandon_at
    ) AS (VALUES {rows})
    UPDATE job SET state = moved.state, reason = moved.reason, attempt = moved.attempt, crashes = moved.crashes,
        losses = moved.losses, run_at = moved.run_at, code = moved.code, updated_at = moved.updated_at,
        finished_at = moved.finished_at, purge_at = moved.purge_at, errors = errors + moved.failed,
        waits = NULL, assigned = NULL, seconds = NULL, expires_at = iif(moved.waits, expires_at, NULL),
        abandon_at = moved.abandon_at
    FROM moved WHERE job.seq = moved.seq
"""
_ADD_ERROR = "INSERT INTO error (job, n, data) VALUES {rows}"
_DROP_ERROR = "WITH old (job, n) AS (VALUES {rows}) DELETE FROM error WHERE (job, n) IN (SELECT job, n FROM old)"
_RESTART = (
    "DELETE FROM result WHERE job IN carray(?)",
    "DELETE FROM progress WHERE job IN carray(?)",
    "DELETE FROM output WHERE job IN carray(?)",
)


class JobBefore(NamedTuple):
    """A job before a move, in the order of `_BEFORE`."""

    id: bytes
    seq: int
    lane: int
    state: int
    attempt: int
    reason: str | None
    errors: int
    worker: str | None
    followed: int
    waits: bytes | None
    assigned: str | None
    abandon_at: int | None
    edits: int
    token: bytes | None
    until: int | None


class Changes:
    """What a round of moves writes, table by table."""

    def __init__(self) -> None:
        self.marked: list[Row] = []
        self.shortened: list[Row] = []
        self.remaining: list[Row] = []
        self.owner_clocks: list[Row] = []
        self.moved: list[Row] = []
        self.errors: list[Row] = []
        self.old_errors: list[Row] = []
        self.released: list[int] = []
        self.restarted: list[int] = []
        self.gone: list[int] = []
        self.ran: defaultdict[str, list[int]] = defaultdict(list)


def apply(tx: Transaction, moves: Sequence[Move]) -> list[bool]:
    answers = [False] * len(moves)
    for places in _rounds(moves):
        before = {row[0]: JobBefore(*row) for row in tx.rows(_BEFORE, blob_array([*places]))}
        changes = Changes()
        for id, place in places.items():
            move, job = moves[place], before.get(id)
            if job is not None and _allows(job, move, tx.now):
                answers[place] = True
                if move.edit is not None:
                    seq, lane = edit(tx, job, move.edit)
                    job = job._replace(seq=seq, lane=lane)
                _collect(tx, changes, job, move)
        _write(tx, changes)
    return answers


def _rounds(moves: Sequence[Move]) -> list[dict[bytes, int]]:
    """Indexes of moves by job, split so that no job is twice in one round and each job's moves stay in order."""
    rounds: list[dict[bytes, int]] = []
    seen: Counter[bytes] = Counter()
    for place, id in enumerate(job_keys(moves)):
        if seen[id] == len(rounds):
            rounds.append({})
        rounds[seen[id]][id] = place
        seen[id] += 1
    return rounds


def _allows(job: JobBefore, move: Move, now: int) -> bool:
    before = (STATE_NUMBERS[move.source], move.attempt_before, move.reason_before)
    if (job.state, job.attempt, job.reason) != before:
        return False
    if job.state == RUNNING and (move.fence is None or job.token != move.fence):
        return False
    if job.state == RUNNING and job.assigned != move.assigned_before:
        return False
    if job.state == BLOCKED and job.waits != raw_ids(move.waits_before):
        return False
    if move.edit is not None and job.edits != move.edit.number:
        return False
    if move.lapsed is None:
        return True
    until = job.until if move.lapsed == "lease" else job.abandon_at
    return until is not None and until <= now


def _collect(tx: Transaction, changes: Changes, job: JobBefore, move: Move) -> None:
    """Collect what an allowed move changes, and what to announce."""
    if move.target is move.source:
        _collect_change_in_place(tx, changes, job, move)
        return
    _collect_end(tx, job, move)
    tx.count(job.lane, job.state, -1)
    if move.outcome is not None:
        tx.outcomes[job.lane, move.outcome] += 1
    if job.state == RUNNING:
        _free_places(tx, job.lane, job.assigned)
    ends = move.target in FINISHED
    if move.target is GONE or (ends and move.keep == 0):
        changes.gone.append(job.seq)
        return
    tx.count(job.lane, STATE_NUMBERS[State(move.target)], 1)
    if move.target is State.QUEUED:
        tx.topics.add(f"work/{tx.lanes.get(job.lane).queue}")
    if job.state == RUNNING or ends:
        changes.released.append(job.seq)
    if move.step is Step.RERUN:
        changes.restarted.append(job.seq)
    if move.error is not None:
        changes.errors.append((job.seq, job.errors, _pack.encode(move.error)))
        if job.errors >= MOST_ERRORS:
            changes.old_errors.append((job.seq, job.errors - MOST_ERRORS))
    changes.moved.append(_moved_row(job, move, tx.now, ends=ends))
    changes.ran[encode_handler_run(move.ran)].append(job.seq)


def _collect_change_in_place(tx: Transaction, changes: Changes, job: JobBefore, move: Move) -> None:
    """A job stays in its state, but something of it changes."""
    if move.step is Step.TOUCH_OWNER:
        changes.owner_clocks.append((job.seq, _abandon_at(job, move, tx.now)))
    elif move.step is Step.MEET:
        changes.remaining.append((job.seq, raw_ids(move.waits_for)))
    elif move.step is Step.DEFER:
        changes.moved.append(_moved_row(job, move, tx.now, ends=False))
    elif move.step is Step.EDIT:
        pass  # it is written already
    elif move.adopter is not None:
        _adopt(tx, job, move.adopter)
    elif move.step in ORDER_STEPS:
        _collect_order(tx, changes, job, move)
    else:
        raise NotImplementedError(f"step {move.step} leaves a job in its state, and this store was not taught it")


def _adopt(tx: Transaction, job: JobBefore, adopter: Adopter) -> None:
    """Its run goes on under another worker and token."""
    of_job, of_lease = _ADOPT
    tx.run(of_job, job.seq, adopter.worker, encode_adopted(adopter.node, adopter.at), tx.now)
    tx.run(of_lease, job.seq, adopter.worker, adopter.token, tx.now + span(adopter.lease))
    tx.topics.add(f"order/{job.worker}")


def _collect_order(tx: Transaction, changes: Changes, job: JobBefore, move: Move) -> None:
    """A running job gets an order and goes on for now; at a shorter tier, it frees its places at longer ones."""
    changes.marked.append((job.seq, move.reason, tx.now))
    if move.lapsed == "owner":
        changes.owner_clocks.append((job.seq, None))  # it has run out: the job is marked once
    tx.topics.add(f"order/{job.worker}")
    if move.assigned is None:
        return
    changes.shortened.append((job.seq, *move.assigned))
    lane = tx.lanes.get(job.lane)
    tx.place(held_levels(tx.rules, lane.tenant, lane.queue, job.assigned), -1)
    tx.place(held_levels(tx.rules, lane.tenant, lane.queue, move.assigned[0]), 1)


def _collect_end(tx: Transaction, job: JobBefore, move: Move) -> None:
    """If the job ends or is deleted: announce it, and queue it for the jobs that wait for it or follow it."""
    ends = move.target in FINISHED
    if ends:
        tx.topics.add(end_topic(key_of(move)))
    if move.reason is Reason.BY_HAND:
        tx.topics.add(f"order/{job.worker}")
    if job.followed and job.state not in ENDED and (ends or move.target is GONE):
        parent_completed(tx, job.seq, STATE_NUMBERS[State(move.target)] if ends else None)


def _moved_row(job: JobBefore, move: Move, now: int, *, ends: bool) -> Row:
    """A move in the order of `_MOVE`."""
    finished_at = purge_at = None
    if ends:
        finished_at = now if move.finished_at is None else to_micros(move.finished_at)
        purge_at = None if move.keep is None else now + span(move.keep)
    return (
        job.seq,
        STATE_NUMBERS[State(move.target)],
        move.reason,
        move.attempt,
        move.crashes,
        move.losses,
        None if move.run_at is None else to_micros(move.run_at),
        move.code,
        now,
        finished_at,
        purge_at,
        move.error is not None,
        not ends and move.step is not Step.RERUN,
        None if ends else _abandon_at(job, move, now),
    )


def _abandon_at(job: JobBefore, move: Move, now: int) -> int | None:
    return job.abandon_at if move.owner_timeout is None else now + span(move.owner_timeout)


def _write(tx: Transaction, changes: Changes) -> None:
    tx.run_all(_SET_REASON, changes.marked)
    tx.run_all(_SET_TIER, changes.shortened)
    tx.run_all(_SET_WAITS, changes.remaining)
    tx.run_all(_SET_ABANDON_AT, changes.owner_clocks)
    tx.run_all(_MOVE, changes.moved)
    _set_handler(tx, changes.ran)
    tx.run_all(_ADD_ERROR, changes.errors)
    tx.run_all(_DROP_ERROR, changes.old_errors)
    _end_runs(tx, changes.released)
    if changes.restarted:
        for statement in _RESTART:
            tx.run(statement, int_array(changes.restarted))
    drop_jobs(tx, changes.gone)
