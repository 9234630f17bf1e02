"""Results: how long each is kept, reading them, dropping them.

Where a record outlives its result, the keep clock has two stages: `purge_at` is first the result's time, then the
record's. Whoever reads looks at it too, for a purge may be late.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.model.job import Terms
from windlass.model.names import JobKey
from windlass.store import Kept
from windlass.store.micros import span
from windlass.store.sqlite import following
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import key
from windlass.store.terms import held_for, unpack

DEFAULT = Terms(task="any")

_RESULT = """
    SELECT job.seq, job.terms, job.purge_at, result.data, result.content_type
    FROM job CROSS JOIN result ON result.job = job.seq WHERE job.id = ? AND NOT result.spent
"""
_NEXT_STAGE = """
    WITH kept (seq, purge_at) AS (VALUES {rows})
    UPDATE job SET purge_at = kept.purge_at FROM kept WHERE job.seq = kept.seq
"""


def first_stage(asked: Mapping[str, Any]) -> float | None:
    """Seconds that the result of a job with these terms is kept, if its record outlives it."""
    if "keep_result_for" not in asked:
        return None
    keep_success = asked.get("keep_success", DEFAULT.keep_success)
    return held_for(asked.get("keep_result", DEFAULT.keep_result), asked["keep_result_for"], keep_success)


def second_stage(asked: Mapping[str, Any], ended_at: int) -> int | None:
    """When the record of a success goes; null = never."""
    keep = asked.get("keep_success", DEFAULT.keep_success)
    return None if keep is None else ended_at + span(keep)


def peek(tx: Transaction, job: JobKey) -> tuple[Kept | None, bool]:
    """The result of a job, and whether it may be read only once."""
    found = _find(tx, job)
    if found is None:
        return None, False
    _, asked, kept = found
    return kept, asked.get("keep_result") == "once"


def take(tx: Transaction, job: JobKey) -> Kept | None:
    """The result of a job, which is gone afterwards."""
    found = _find(tx, job)
    if found is None:
        return None
    seq, _, kept = found
    following.spend(tx, [seq])
    return kept


def _find(tx: Transaction, job: JobKey) -> tuple[int, Mapping[str, Any], Kept] | None:
    row = tx.first(_RESULT, key(job))
    if row is None:
        return None
    seq, terms, purge_at, data, content_type = row
    asked = unpack(terms)
    if first_stage(asked) is not None and purge_at <= tx.now:
        return None
    return seq, asked, Kept(data=data, content_type=content_type)


def outlive(tx: Transaction, records: Sequence[tuple[int, int | None]]) -> None:
    """The results of these jobs have been kept long enough; each record stays until its own time."""
    if records:
        following.spend(tx, [seq for seq, _ in records])
        tx.run_all(_NEXT_STAGE, records)
