"""Claiming: which jobs a worker gets, and the lease it gets them under.

A claim looks at lanes that have queued jobs, takes the first of each from one index and merges them by priority and
arrival; it costs the same however many jobs wait behind those. The order of queues is the worker's own.
"""

from collections import defaultdict
from collections.abc import Sequence

from windlass.model.names import EVERY_TENANT
from windlass.store import Record, Wish
from windlass.store.micros import span
from windlass.store.sqlite import batches, records
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import QUEUED, RUNNING
from windlass.store.sqlite.workers import hear

Head = tuple[int, int, int]
"""Priority, arrival and lane of a job: sorts as jobs are claimed."""

AFTER_ALL = (2**31, 0)
"""A priority and arrival beyond every job's."""

_TAKEN = "SELECT job FROM lease WHERE worker = ? AND token = ?"

_READY = "SELECT queue, id, tenant, task FROM lane WHERE queued > 0 AND queue IN carray(?)"
_READY_OF_TENANT = f"{_READY} AND tenant = ?"

_HEADS = f"""
    SELECT j.priority, j.seq, j.lane FROM carray(?1) AS ready CROSS JOIN job AS j ON j.seq = (
        SELECT seq FROM job WHERE state = {QUEUED} AND lane = ready.value ORDER BY priority, seq LIMIT 1
    )
    ORDER BY j.priority, j.seq LIMIT ?2
"""
_FIRST = f"""
    SELECT priority, seq, lane FROM job WHERE state = {QUEUED} AND lane = ?1 AND (priority, seq) <= (?2, ?3)
    ORDER BY priority, seq LIMIT ?4
"""

_TAKE = f"""
    UPDATE job SET state = {RUNNING}, attempt = attempt + 1, reason = NULL, worker = ?2, node = ?3, pid = NULL,
        started_at = ?4, updated_at = ?4, expires_at = NULL
    WHERE seq IN carray(?1)
"""
_LEASE = "INSERT INTO lease (job, worker, token, until) SELECT value, ?2, ?3, ?4 FROM carray(?1)"
_DROP_PROGRESS = "DELETE FROM progress WHERE job IN carray(?)"


def claim(tx: Transaction, wish: Wish) -> list[Record]:
    worker = wish.worker
    if wish.heard:
        hear(tx, worker.id, wish.lease)
    if taken := tx.column(_TAKEN, worker.id, wish.nonce):
        return _again(tx, wish, taken)
    heads = _first(tx, wish)
    if not heads:
        return []
    for _, _, lane in heads:
        tx.count(lane, QUEUED, -1)
        tx.count(lane, RUNNING, 1)
    seqs = [seq for _, seq, _ in heads]
    tx.run(_TAKE, batches.numbers(seqs), worker.id, worker.node or None, tx.now)
    tx.run(_LEASE, batches.numbers(seqs), worker.id, wish.nonce, tx.now + span(wish.lease))
    tx.run(_DROP_PROGRESS, batches.numbers(seqs))
    return records.by_seq(tx, seqs, handed_out=True)


def _again(tx: Transaction, wish: Wish, taken: list[int]) -> list[Record]:
    """What the same claim took when it was asked before."""
    places = {queue: place for place, queue in enumerate(dict.fromkeys(wish.worker.queues))}
    found = zip(taken, records.by_seq(tx, taken, handed_out=True), strict=True)
    ranked = sorted(
        (places.get(record.job.queue, len(places)), record.job.priority, seq, record) for seq, record in found
    )
    return [record for *_, record in ranked]


def _first(tx: Transaction, wish: Wish) -> list[Head]:
    """The jobs that the worker would rather have than any other, at most as many as it has slots."""
    if wish.slots < 1 or not wish.worker.queues:
        return []
    ready = _ready(tx, wish)
    heads: list[Head] = []
    for queue in dict.fromkeys(wish.worker.queues):
        heads += _merged(tx, ready[queue], wish.slots - len(heads))
    return heads


def _ready(tx: Transaction, wish: Wish) -> dict[str, list[int]]:
    """By queue, the lanes that have a job for the worker."""
    worker = wish.worker
    queues = batches.texts(worker.queues)
    if worker.tenant == EVERY_TENANT:
        lanes = tx.rows(_READY, queues)
    else:
        lanes = tx.rows(_READY_OF_TENANT, queues, worker.tenant)
    tasks = None if worker.tasks is None else frozenset(worker.tasks)
    ready: dict[str, list[int]] = defaultdict(list)
    for queue, lane, tenant, task in lanes:
        if tasks is None or task in tasks or f"{tenant}/{task}" in tasks:
            ready[queue].append(lane)
    return ready


def _merged(tx: Transaction, lanes: Sequence[int], room: int) -> list[Head]:
    """The first jobs of several lanes taken together."""
    if room < 1 or not lanes:
        return []
    if len(lanes) == 1:
        return tx.rows(_FIRST, lanes[0], *AFTER_ALL, room)
    heads = tx.rows(_HEADS, batches.numbers(lanes), room)
    if room == 1:
        return heads
    # Only these lanes can have a part in it: any other has `room` jobs before its first.
    last = heads[-1][:2] if len(heads) == room else AFTER_ALL
    found = [head for _, _, lane in heads for head in tx.rows(_FIRST, lane, *last, room)]
    return sorted(found)[:room]
