"""What workers say of the jobs they hold: signs of life, and success.

Everything here is fenced: what does not carry the token of the job's current lease changes nothing.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from windlass.model.job import Reason
from windlass.model.lifecycle import Verdict
from windlass.model.names import key_of
from windlass.store import Done, Touch, Touched, end_topic
from windlass.store.micros import from_micros, span, to_micros
from windlass.store.places import BETWEEN, added
from windlass.store.sqlite import batches, following, output, results
from windlass.store.sqlite.groups import held_levels
from windlass.store.sqlite.jobs import vanish
from windlass.store.sqlite.records import deadline
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import RUNNING, SUCCEEDED, keys
from windlass.store.terms import unpack

_pack = msgspec.msgpack.Encoder()

_HELD = """
    SELECT j.id, j.seq, j.lane, j.reason, j.followed, j.terms, j.started_at, j.assigned, j.seconds, l.token
    FROM carray(?) AS wanted CROSS JOIN job AS j ON j.id = wanted.value CROSS JOIN lease AS l ON l.job = j.seq
"""
_RENEW = "UPDATE lease SET until = ?2 WHERE job IN carray(?1)"
_SET_PROGRESS = "INSERT OR REPLACE INTO progress (job, data) VALUES {rows}"
_SET_UPDATED = "UPDATE job SET updated_at = ?2 WHERE seq IN carray(?1)"
_SET_PID = """
    WITH begun (seq, pid, updated_at) AS (VALUES {rows})
    UPDATE job SET pid = begun.pid, updated_at = begun.updated_at FROM begun WHERE job.seq = begun.seq
"""

_PLACE = f"""
    UPDATE job SET node = substr(coalesce(node, ''), 1, instr(coalesce(node, '') || '{BETWEEN}', '{BETWEEN}') - 1) || ?2
    WHERE seq IN carray(?1)
"""

_ENDING = """
    SELECT j.id, j.seq, j.lane, j.reason, j.followed, j.terms, j.assigned,
        j.assigned IS NOT NULL OR j.abandon_at IS NOT NULL,
        EXISTS (SELECT 1 FROM input WHERE input.job = j.seq), l.token
    FROM carray(?) AS wanted CROSS JOIN job AS j ON j.id = wanted.value CROSS JOIN lease AS l ON l.job = j.seq
"""
_END = f"""
    UPDATE job SET state = {SUCCEEDED}, reason = NULL, code = {{0}}, updated_at = {{1}}, finished_at = {{2}},
        purge_at = {{3}}
"""
_SUCCEED = f"{_END.format('?2', '?3', '?3', '?4')} WHERE seq IN carray(?1)"
_SUCCEED_BEFORE = f"""
    WITH ended (seq, code, updated_at, finished_at, purge_at) AS (VALUES {{rows}})
    {_END.format("ended.code", "ended.updated_at", "ended.finished_at", "ended.purge_at")}
    FROM ended WHERE job.seq = ended.seq
"""
_LET_GO = "UPDATE job SET abandon_at = NULL, assigned = NULL, seconds = NULL WHERE seq IN carray(?)"
_RESULT = "INSERT INTO result (job, data, content_type) VALUES {rows}"
_END_LEASE = "DELETE FROM lease WHERE job IN carray(?)"
_DROP_INPUT = "DELETE FROM input WHERE job IN carray(?)"


class Held(NamedTuple):
    """A running job, in the order of `_HELD`."""

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


class Ending(NamedTuple):
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
    addressed: int
    """Whether anything was sent to it."""
    token: bytes


def _held(tx: Transaction, ids: Sequence[bytes]) -> dict[bytes, Held]:
    return {row[0]: Held(*row) for row in tx.rows(_HELD, batches.blobs(ids))}


def touch(tx: Transaction, touches: Sequence[Touch], lease: float) -> list[Touched]:
    ids = keys(touches)
    held = _held(tx, ids)
    answers = []
    # By job: of several signs in one call, the last one stays.
    pids: dict[int, batches.Row] = {}
    progress: dict[int, batches.Row] = {}
    renewed: list[int] = []
    ran: defaultdict[str, list[int]] = defaultdict(list)
    for id, sign in zip(ids, touches, strict=True):
        job = held.get(id)
        if job is None or job.token != sign.token:
            answers.append(Touched(id=sign.id, held=False))
            continue
        answers.append(_touched(sign.id, job))
        renewed.append(job.seq)
        if sign.pid is not None:
            pids[job.seq] = (job.seq, sign.pid, tx.now)
        if sign.progress is not None:
            progress[job.seq] = (job.seq, _pack.encode(sign.progress))
        if sign.output:
            output.put(tx, job.seq, sign.output)
        ran[added(sign.ran)].append(job.seq)
    if renewed:
        tx.run(_RENEW, batches.numbers(renewed), tx.now + span(lease))
    tx.run_all(_SET_PID, list(pids.values()))
    tx.run_all(_SET_PROGRESS, list(progress.values()))
    if progress:
        tx.run(_SET_UPDATED, batches.numbers(list(progress)), tx.now)
    note_place(tx, ran)
    return answers


def note_place(tx: Transaction, ran: Mapping[str, Sequence[int]]) -> None:
    """What ran jobs, behind the machine that stands there since their claim."""
    for place, seqs in ran.items():
        if place:
            tx.run(_PLACE, batches.numbers(seqs), place)


def _touched(id: str, job: Held) -> Touched:
    reason = None if job.reason is None else Reason(job.reason)
    if job.assigned is None:
        return Touched(id=id, held=True, reason=reason)
    ends_at = deadline(from_micros(job.started_at), unpack(job.terms).get("timeout"), job.seconds)
    return Touched(id=id, held=True, reason=reason, deadline=ends_at)


def succeed(tx: Transaction, dones: Sequence[Done]) -> list[bool]:
    ids = keys(dones)
    held = {row[0]: Ending._make(row) for row in tx.rows(_ENDING, batches.blobs(ids))}
    answers = []
    ended: defaultdict[tuple[int, int | None], list[int]] = defaultdict(list)  # by code and when they are dropped
    ended_before: list[batches.Row] = []
    outcomes: list[batches.Row] = []
    released: list[Ending] = []
    gone: list[int] = []
    ran: defaultdict[str, list[int]] = defaultdict(list)
    for id, done in zip(ids, dones, strict=True):
        job = held.get(id)
        if job is None or job.token != done.token:
            answers.append(False)
            continue
        answers.append(True)
        del held[id]  # it ends once, however often it is in the list
        tx.count(job.lane, RUNNING, -1)
        tx.outcomes[job.lane, Verdict.OK] += 1
        give_back(tx, job.lane, job.assigned)
        tx.topics.add(end_topic(key_of(done)))
        if job.followed:
            following.ripen(tx, job.seq, SUCCEEDED)
        terms = unpack(job.terms)
        keep = terms.get("keep_success", results.DEFAULT.keep_success)
        if keep == 0 or job.reason == Reason.DELETED:
            gone.append(job.seq)
            continue
        tx.count(job.lane, SUCCEEDED, 1)
        released.append(job)
        ran[added(done.ran)].append(job.seq)
        if done.result is not None and terms.get("keep_result") != "none":
            outcomes.append((job.seq, done.result, done.content_type))
            first = results.first_stage(terms)
            keep = keep if first is None else first
        purge_at = None if keep is None else tx.now + span(keep)
        if done.finished_at is None:
            ended[done.code, purge_at].append(job.seq)
        else:
            ended_before.append((job.seq, done.code, tx.now, to_micros(done.finished_at), purge_at))
    for (code, purge_at), seqs in ended.items():
        tx.run(_SUCCEED, batches.numbers(seqs), code, tx.now, purge_at)
    tx.run_all(_SUCCEED_BEFORE, ended_before)
    tx.run_all(_RESULT, outcomes)
    note_place(tx, ran)
    _let_go(tx, released)
    vanish(tx, gone)
    return answers


def _let_go(tx: Transaction, jobs: Sequence[Ending]) -> None:
    """What goes with a run goes: its lease, its bounds, what was sent to it."""
    if not jobs:
        return
    tx.run(_END_LEASE, batches.numbers([job.seq for job in jobs]))
    if bound := [job.seq for job in jobs if job.bound]:
        tx.run(_LET_GO, batches.numbers(bound))
    if addressed := [job.seq for job in jobs if job.addressed]:
        tx.run(_DROP_INPUT, batches.numbers(addressed))


def end_runs(tx: Transaction, seqs: Sequence[int]) -> None:
    """Leases go, and what was sent to these runs."""
    if seqs:
        tx.run(_END_LEASE, batches.numbers(seqs))
        tx.run(_DROP_INPUT, batches.numbers(seqs))


def give_back(tx: Transaction, lane: int, assigned: str | None) -> None:
    """A run ends: its places are free."""
    where = tx.lanes.get(lane)
    if not where.group:
        return
    tx.place(where.buckets, -1)
    if assigned is not None:
        tx.place(held_levels(tx.rules, where.tenant, where.queue, assigned), -1)
