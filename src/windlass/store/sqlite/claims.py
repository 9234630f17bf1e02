"""Claiming: which jobs a worker gets, and the lease it gets them under.

A claim looks at open lanes in the order of their first jobs; it costs the same however many jobs wait behind those.
Where no group and no turn has a say, lanes are merged right here; else `sources`, `picking` and `gate` find what may be
taken. The order of queues is the worker's own, unless they take turns (`rotation`).
"""

from collections import defaultdict
from itertools import islice

from windlass.store import Record, Wish, places
from windlass.store.micros import span
from windlass.store.sqlite import batches, records
from windlass.store.sqlite.gate import Gate
from windlass.store.sqlite.parking import let_time_pass
from windlass.store.sqlite.picking import Pick, first_jobs
from windlass.store.sqlite.rotation import Rotation
from windlass.store.sqlite.sources import BEFORE_ALL, Sources
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import QUEUED, RUNNING
from windlass.store.sqlite.workers import Noted, hear

_TAKEN = "SELECT job FROM lease WHERE worker = ? AND token = ?"

_TAKE = f"""
    UPDATE job SET state = {RUNNING}, attempt = attempt + 1, reason = NULL, worker = ?2, node = ?3, pid = NULL,
        started_at = ?4, updated_at = ?4, expires_at = NULL
    WHERE seq IN carray(?1) RETURNING {records.STARTED}
"""
_ASSIGN = """
    WITH told (seq, assigned, seconds) AS (VALUES {rows})
    UPDATE job SET assigned = told.assigned, seconds = told.seconds FROM told WHERE job.seq = told.seq
"""
_LEASE = "INSERT INTO lease (job, worker, token, until) SELECT value, ?2, ?3, ?4 FROM carray(?1)"
_DROP_PROGRESS = "DELETE FROM progress WHERE job IN carray(?)"


def claim(tx: Transaction, wish: Wish, noted: Noted) -> list[Record]:
    worker = wish.worker
    if wish.heard:
        hear(tx, worker.id, wish.lease, noted)
    if wish.repeatable and (taken := tx.column(_TAKEN, worker.id, wish.nonce)):
        return _again(tx, wish, taken)
    picks = _pick(tx, wish)
    if not picks:
        return []
    numbers: defaultdict[int, int] = defaultdict(int)
    for pick in picks:
        numbers[pick.lane] += 1
    for lane, number in numbers.items():
        tx.count(lane, QUEUED, -number)
        tx.count(lane, RUNNING, number)
    seqs = [pick.seq for pick in picks]
    wanted = batches.numbers(seqs)
    place = places.written(worker)
    started = {row[0]: row for row in tx.rows(_TAKE, wanted, worker.id, place or None, tx.now)}
    tx.run_all(_ASSIGN, [(seq, tier.name, tier.seconds) for seq, _, tier in picks if tier is not None])
    tx.run(_LEASE, wanted, worker.id, wish.nonce, tx.now + span(wish.lease))
    run = records.Run(worker.id, places.read(place)[0], wish.nonce)
    others = [seq for seq, _, tier in picks if tier is not None or not started[seq][-1]]
    if not others:
        return list(records.first_runs(tx, [started[seq] for seq in seqs], run))
    tx.run(_DROP_PROGRESS, batches.numbers(others))
    found = dict(zip(others, records.by_seq(tx, others, handed_out=True), strict=True))
    firsts = records.first_runs(tx, [started[seq] for seq in seqs if seq not in found], run)
    return [found[seq] if seq in found else next(firsts) for seq in seqs]


def _again(tx: Transaction, wish: Wish, taken: list[int]) -> list[Record]:
    """What the same claim took when it was asked before."""
    places = {queue: place for place, queue in enumerate(dict.fromkeys(wish.worker.queues))}
    found = zip(taken, records.by_seq(tx, taken, handed_out=True), strict=True)
    ranked = sorted(
        (places.get(record.job.queue, len(places)), record.job.priority, seq, record) for seq, record in found
    )
    return [record for *_, record in ranked]


def _pick(tx: Transaction, wish: Wish) -> list[Pick]:
    """The jobs that the worker would rather have than any other, at most as many as it has slots."""
    if wish.slots < 1 or not wish.worker.queues:
        return []
    let_time_pass(tx, tx.rules)
    gate = Gate(tx, wish.slots)
    sources = Sources(tx, gate, wish)
    picks = list(islice(Rotation(tx, sources, wish).picks(), wish.slots)) if wish.turns else []
    for queue in () if wish.turns else dict.fromkeys(wish.worker.queues):
        picks += _of_queue(tx, sources, queue, wish.slots - len(picks))
        if gate.weary:
            break
    if gate.weary:  # those that wait look again
        tx.topics.update(f"work/{queue}" for queue in wish.worker.queues)
    gate.write()
    sources.write()
    return picks


def _of_queue(tx: Transaction, sources: Sources, queue: str, room: int) -> list[Pick]:
    if room < 1:
        return []
    if not sources.has_turns(queue):
        lanes = sources.lanes(queue, BEFORE_ALL, room)
        if not any(bounded for _, _, _, bounded in lanes):
            return first_jobs(tx, lanes, room)
    picks: list[Pick] = []
    stream = sources.queue(queue)
    while len(picks) < room and stream.first() is not None:
        picks.append(stream.take())
    return picks
