"""What jobs put out: the newest of it, numbered for as long as the job lives.

Each piece notes how many bytes came before it, so that what must make room is found without adding anything up.
"""

from collections.abc import Sequence

from windlass.model.job import MOST_CHUNKS, MOST_OUTPUT, Chunk, NewChunk
from windlass.model.names import JobKey
from windlass.store.micros import from_micros
from windlass.store.sqlite import batches
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import key

_LAST = """
    SELECT job.chunks, job.attempt, coalesce(output.start + length(output.data), 0)
    FROM job LEFT JOIN output ON output.job = job.seq AND output.n = job.chunks WHERE job.seq = ?
"""
_ADD = "INSERT INTO output (job, n, start, attempt, stream, at, data) VALUES {rows}"
_NUMBER = "UPDATE job SET chunks = ?2 WHERE seq = ?1"
_OLDEST_KEPT = "SELECT n FROM output WHERE job = ?1 AND start >= ?2 ORDER BY n LIMIT 1"
_DROP = "DELETE FROM output WHERE job = ?1 AND n < ?2"
_PAGE = """
    SELECT output.n, output.attempt, output.stream, output.at, output.data
    FROM job CROSS JOIN output ON output.job = job.seq WHERE job.id = ?1 AND output.n > ?2 ORDER BY output.n LIMIT ?3
"""


def put(tx: Transaction, seq: int, chunks: Sequence[NewChunk]) -> None:
    """Keep what a running job has put out."""
    row = tx.first(_LAST, seq)
    if row is None:
        return
    last, attempt, end = row
    rows: list[batches.Row] = []
    for chunk in chunks:
        last += 1
        rows.append((seq, last, end, attempt, chunk.stream, tx.now, chunk.data))
        end += len(chunk.data)
    tx.run_all(_ADD, rows)
    tx.run(_NUMBER, seq, last)
    fits = tx.first(_OLDEST_KEPT, seq, end - MOST_OUTPUT)
    tx.run(_DROP, seq, max(fits[0] if fits else last + 1, last - MOST_CHUNKS + 1))


def page(tx: Transaction, job: JobKey, after: int, limit: int) -> list[Chunk]:
    return [
        Chunk(n=n, attempt=attempt, stream=stream, at=from_micros(at), data=data)
        for n, attempt, stream, at, data in tx.rows(_PAGE, key(job), after, limit)
    ]
