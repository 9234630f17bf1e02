"""Writing moves: what `model.lifecycle` has decided, guarded by what the job was when it decided.

Checks guards and writes; decides nothing. Moves of different jobs are written together, moves of one job one after
the other.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from windlass.model.job import FINISHED, State
from windlass.model.lifecycle import GONE, Move, Step
from windlass.model.names import key_of
from windlass.store import end_topic
from windlass.store.micros import span, to_micros
from windlass.store.places import added
from windlass.store.sqlite import batches, following
from windlass.store.sqlite.groups import held_levels
from windlass.store.sqlite.jobs import vanish
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import BLOCKED, ENDED, NUMBERS, RUNNING, ids, keys
from windlass.store.sqlite.work import end_runs, give_back, note_place

MOST_ERRORS = 100
"""Of one job; the oldest makes room."""

_pack = msgspec.msgpack.Encoder()

_STANDING = """
    SELECT j.id, j.seq, j.lane, j.state, j.attempt, j.reason, j.errors, j.worker, j.followed, j.waits, j.assigned,
        j.abandon_at, l.token, l.until
    FROM carray(?) AS wanted CROSS JOIN job AS j ON j.id = wanted.value LEFT JOIN lease AS l ON l.job = j.seq
"""
_TELL = """
    WITH told (seq, reason, updated_at) AS (VALUES {rows})
    UPDATE job SET reason = told.reason, updated_at = told.updated_at FROM told WHERE job.seq = told.seq
"""
_SHRINK = """
    WITH shrunk (seq, assigned, seconds) AS (VALUES {rows})
    UPDATE job SET assigned = shrunk.assigned, seconds = shrunk.seconds FROM shrunk WHERE job.seq = shrunk.seq
"""
_MEET = """
    WITH met (seq, waits) AS (VALUES {rows}) UPDATE job SET waits = met.waits FROM met WHERE job.seq = met.seq
"""
_ATTEND = """
    WITH asked (seq, abandon_at) AS (VALUES {rows})
    UPDATE job SET abandon_at = asked.abandon_at FROM asked WHERE job.seq = asked.seq
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
_START_ANEW = (
    "DELETE FROM result WHERE job IN carray(?)",
    "DELETE FROM progress WHERE job IN carray(?)",
    "DELETE FROM output WHERE job IN carray(?)",
)


class Standing(NamedTuple):
    """What a job is before a move, in the order of `_STANDING`."""

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
    token: bytes | None
    until: int | None


class Changes:
    """What a round of moves writes, table by table."""

    def __init__(self) -> None:
        self.told: list[batches.Row] = []
        self.shrunk: list[batches.Row] = []
        self.met: list[batches.Row] = []
        self.attended: list[batches.Row] = []
        self.moved: list[batches.Row] = []
        self.errors: list[batches.Row] = []
        self.old_errors: list[batches.Row] = []
        self.released: list[int] = []
        self.anew: list[int] = []
        self.gone: list[int] = []
        self.ran: defaultdict[str, list[int]] = defaultdict(list)


def apply(tx: Transaction, moves: Sequence[Move]) -> list[bool]:
    answers = [False] * len(moves)
    for places in _rounds(moves):
        standing = {row[0]: Standing(*row) for row in tx.rows(_STANDING, batches.blobs([*places]))}
        changes = Changes()
        for id, place in places.items():
            move, job = moves[place], standing.get(id)
            if job is not None and _allows(job, move, tx.now):
                answers[place] = True
                _note(tx, changes, job, move)
        _write(tx, changes)
    return answers


def _rounds(moves: Sequence[Move]) -> list[dict[bytes, int]]:
    """Places in the list, split so that no job is twice in one round and each job's moves stay in order."""
    rounds: list[dict[bytes, int]] = []
    met: Counter[bytes] = Counter()
    for place, id in enumerate(keys(moves)):
        if met[id] == len(rounds):
            rounds.append({})
        rounds[met[id]][id] = place
        met[id] += 1
    return rounds


def _allows(job: Standing, move: Move, now: int) -> bool:
    before = (NUMBERS[move.source], move.attempt_before, move.reason_before)
    if (job.state, job.attempt, job.reason) != before:
        return False
    if job.state == RUNNING and (move.fence is None or job.token != move.fence):
        return False
    if job.state == RUNNING and job.assigned != move.assigned_before:
        return False
    if job.state == BLOCKED and job.waits != ids(move.waits_before):
        return False
    if move.lapsed is None:
        return True
    until = job.until if move.lapsed == "lease" else job.abandon_at
    return until is not None and until <= now


def _note(tx: Transaction, changes: Changes, job: Standing, move: Move) -> None:
    """Note what an allowed move changes, and whom to tell."""
    if move.target is move.source:
        _note_stay(tx, changes, job, move)
        return
    _note_end(tx, job, move)
    tx.count(job.lane, job.state, -1)
    if move.outcome is not None:
        tx.outcomes[job.lane, move.outcome] += 1
    if job.state == RUNNING:
        give_back(tx, job.lane, job.assigned)
    ends = move.target in FINISHED
    if move.target is GONE or (ends and move.keep == 0):
        changes.gone.append(job.seq)
        return
    tx.count(job.lane, NUMBERS[State(move.target)], 1)
    if move.target is State.QUEUED:
        tx.topics.add(f"work/{tx.lanes.get(job.lane).queue}")
    if job.state == RUNNING or ends:
        changes.released.append(job.seq)
    if move.step is Step.RERUN:
        changes.anew.append(job.seq)
    if move.error is not None:
        changes.errors.append((job.seq, job.errors, _pack.encode(move.error)))
        if job.errors >= MOST_ERRORS:
            changes.old_errors.append((job.seq, job.errors - MOST_ERRORS))
    changes.moved.append(_row(job, move, tx.now, ends=ends))
    changes.ran[added(move.ran)].append(job.seq)


def _note_stay(tx: Transaction, changes: Changes, job: Standing, move: Move) -> None:
    """A job stays in its state, yet something of it changes."""
    if move.step is Step.ATTEND:
        changes.attended.append((job.seq, _abandon_at(job, move, tx.now)))
    elif move.step is Step.MEET:
        changes.met.append((job.seq, ids(move.waits_for)))
    else:
        _note_order(tx, changes, job, move)


def _note_order(tx: Transaction, changes: Changes, job: Standing, move: Move) -> None:
    """A running job goes on for now; at a shorter tier, it gives back its places at longer ones."""
    changes.told.append((job.seq, move.reason, tx.now))
    if move.lapsed == "owner":
        changes.attended.append((job.seq, None))  # it has run out: the job is told once
    tx.topics.add(f"order/{job.worker}")
    if move.assigned is None:
        return
    changes.shrunk.append((job.seq, *move.assigned))
    lane = tx.lanes.get(job.lane)
    tx.place(held_levels(tx.rules, lane.tenant, lane.queue, job.assigned), -1)
    tx.place(held_levels(tx.rules, lane.tenant, lane.queue, move.assigned[0]), 1)


def _note_end(tx: Transaction, job: Standing, move: Move) -> None:
    """If the job ends or goes: whoever listens hears of it, and what waits for it or follows it will be seen to."""
    ends = move.target in FINISHED
    if ends:
        tx.topics.add(end_topic(key_of(move)))
    if job.followed and job.state not in ENDED and (ends or move.target is GONE):
        following.ripen(tx, job.seq, NUMBERS[State(move.target)] if ends else None)


def _row(job: Standing, move: Move, now: int, *, ends: bool) -> batches.Row:
    """A move in the order of `_MOVE`."""
    finished_at = purge_at = None
    if ends:
        finished_at = now if move.finished_at is None else to_micros(move.finished_at)
        purge_at = None if move.keep is None else now + span(move.keep)
    return (
        job.seq,
        NUMBERS[State(move.target)],
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


def _abandon_at(job: Standing, move: Move, now: int) -> int | None:
    return job.abandon_at if move.unattended is None else now + span(move.unattended)


def _write(tx: Transaction, changes: Changes) -> None:
    tx.run_all(_TELL, changes.told)
    tx.run_all(_SHRINK, changes.shrunk)
    tx.run_all(_MEET, changes.met)
    tx.run_all(_ATTEND, changes.attended)
    tx.run_all(_MOVE, changes.moved)
    note_place(tx, changes.ran)
    tx.run_all(_ADD_ERROR, changes.errors)
    tx.run_all(_DROP_ERROR, changes.old_errors)
    end_runs(tx, changes.released)
    if changes.anew:
        for statement in _START_ANEW:
            tx.run(statement, batches.numbers(changes.anew))
    vanish(tx, changes.gone)
