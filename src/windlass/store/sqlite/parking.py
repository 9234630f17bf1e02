"""Parked lanes: those behind a full bucket, out of the way of every claim until it has room again.

A bucket may have thousands of them while few can start, so only some of the first are let in at a time; one that has
left others behind is *stirred*, and `rouse` looks at it again. Knows lanes and buckets; says nothing of jobs.
"""

from collections.abc import Sequence

from windlass.store.flow import Rules
from windlass.store.sqlite import batches, buckets
from windlass.store.sqlite.transaction import Transaction

FEW = 16
"""Lanes let in for one place: not all of them may be wanted by those who come."""

AT_ONCE = 100
"""Buckets or shut lanes that one claim looks after."""

_ONLY_PARKED = "arrival IS NOT NULL AND parked IS NOT NULL AND shut IS NULL"

_PARK = "UPDATE lane SET parked = ?1 WHERE id IN carray(?2)"
_NOTE = """
    INSERT INTO bucket (name, wake_at) VALUES (?1, ?2)
    ON CONFLICT DO UPDATE SET wake_at = excluded.wake_at, stirred = 0
"""
_FIRST = f"""
    SELECT id FROM lane INDEXED BY lane_parked
    WHERE parked = ?1 AND {_ONLY_PARKED} ORDER BY priority, arrival LIMIT ?2
"""
_OPEN = "UPDATE lane SET parked = NULL, shut = NULL WHERE id IN carray(?)"
_STIR = "UPDATE bucket SET stirred = ?2, wake_at = NULL WHERE name = ?1"

_DUE = "SELECT name FROM bucket WHERE wake_at <= ? ORDER BY wake_at LIMIT ?"
_STIRRED = "SELECT name FROM bucket WHERE stirred ORDER BY name LIMIT ?"
_SHUT = "SELECT id FROM lane WHERE shut <= ? ORDER BY shut LIMIT ?"


def park(tx: Transaction, bucket: str, lanes: Sequence[int], wake_at: int | None) -> None:
    """Put lanes away until a bucket has room: at a time, or when a place is given back."""
    tx.run(_PARK, bucket, batches.numbers(lanes))
    tx.run(_NOTE, bucket, wake_at)
    tx.stirred.update(lanes)


def let_in(tx: Transaction, name: str, limit: int = 0) -> int:
    """Open lanes that are parked at a bucket, if it has room: as many as can start, a few, or so many."""
    if not tx.rows(_FIRST, name, 1):
        tx.run(_STIR, name, 0)
        return 0
    bucket = buckets.any_bucket(tx, tx.rules, name)
    if not bucket.open(tx.now):
        tx.run(_NOTE, name, bucket.free_at(tx.now) if bucket.places > 0 else None)
        return 0
    count = limit or max(FEW, min(bucket.places, AT_ONCE))
    found = tx.column(_FIRST, name, count + 1)
    tx.run(_STIR, name, len(found) > count)
    return open_lanes(tx, found[:count])


def open_lanes(tx: Transaction, lanes: Sequence[int]) -> int:
    """Whatever kept them, these may be claimed from; a claim will see."""
    if lanes:
        tx.run(_OPEN, batches.numbers(lanes))
        tx.stirred.update(lanes)
        tx.topics.update(f"work/{tx.lanes.get(lane).queue}" for lane in lanes)
    return len(lanes)


def let_time_pass(tx: Transaction, rules: Rules, limit: int = AT_ONCE) -> int:
    """Open what the clock has freed."""
    opened = 0
    if rules.shut:
        opened += open_lanes(tx, tx.column(_SHUT, tx.now, limit))
    if rules.allowances:
        for name in tx.column(_DUE, tx.now, limit):
            opened += let_in(tx, name)
    return opened


def rouse(tx: Transaction, limit: int) -> int:
    """Let in what can be; how many lanes."""
    opened = let_time_pass(tx, tx.rules, limit)
    for name in tx.column(_STIRRED, limit):
        if opened >= limit:
            break
        opened += let_in(tx, name, limit - opened)
    return opened
