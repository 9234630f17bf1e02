"""Messages to jobs: numbered for one run, in rows that end with it."""

from collections.abc import Iterator, Sequence

from windlass.model.job import MOST_INPUT, MOST_MESSAGES, Message
from windlass.model.names import JobKey, key_of
from windlass.store.mailbox import MOST_COLLECTED, Posted, Reader
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import RUNNING, key

_JOB = "SELECT seq, state, worker FROM job WHERE id = ?"
_HELD = "SELECT job.seq FROM job CROSS JOIN lease ON lease.job = job.seq WHERE job.id = ? AND lease.token = ?"
_FIRST = "SELECT n, finish FROM input WHERE job = ? ORDER BY n LIMIT 1"
_LAST = "SELECT n, finish FROM input WHERE job = ? ORDER BY n DESC LIMIT 1"
_ADD = "INSERT INTO input (job, n, finish, data) VALUES (?, ?, ?, ?)"
_DROP = "DELETE FROM input WHERE job = ?1 AND n < ?2"
_EMPTY = "UPDATE input SET data = x'' WHERE job = ?1 AND n = ?2"
_WAITING = "SELECT n, data FROM input WHERE job = ?1 AND n > ?2 ORDER BY n"


def post(tx: Transaction, to: JobKey, data: bytes) -> Posted:
    job = tx.first(_JOB, key(to))
    if job is None or job[1] > RUNNING:
        return Posted.ENDED
    seq, state, worker = job
    first, last = tx.first(_FIRST, seq), tx.first(_LAST, seq)
    if first is None or last is None:
        first = last = (0, 0)
        tx.run(_ADD, seq, *last, b"")
    if last[0] - first[0] >= MOST_MESSAGES or last[1] - first[1] + len(data) > MOST_INPUT:
        return Posted.FULL
    tx.run(_ADD, seq, last[0] + 1, last[1] + len(data), data)
    if state == RUNNING:
        tx.topics.add(f"order/{worker}")
    return Posted.KEPT


def collect(tx: Transaction, readers: Sequence[Reader]) -> list[list[Message]]:
    found = []
    room = MOST_COLLECTED
    for reader in readers:
        messages = list(_taken(tx, reader)) if room > 0 else []
        room -= sum(len(message.data) for message in messages)
        found.append(messages)
    return found


def _taken(tx: Transaction, reader: Reader) -> Iterator[Message]:
    held = tx.first(_HELD, key(key_of(reader)), reader.token)
    first = None if held is None else tx.first(_FIRST, held[0])
    if held is None or first is None:
        return
    after = min(reader.after, tx.first(_LAST, held[0])[0])  # type: ignore[index] # there is a first one
    if after > first[0]:
        tx.run(_DROP, held[0], after)
        tx.run(_EMPTY, held[0], after)
    for n, data in tx.rows(_WAITING, held[0], max(after, first[0])):
        yield Message(n, data)
