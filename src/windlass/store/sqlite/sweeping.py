"""What nobody needs any more, dropped some at a time: lanes without jobs, lines without lanes, turns and buckets with
nothing to remember.

A part of `rouse`. Empty lanes have an index; the other tables are walked round and round, a few rows each time, more
while most of them can go. So keys without end leave nothing behind, and no claim or end of a job pays for it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from windlass.store.sqlite import buckets
from windlass.store.sqlite.transaction import Transaction

MOST_LANES = 1000
"""Lanes dropped at a time."""

FEW, MOST_BITES = 100, 10
"""Rows of another table looked at in one bite, and bites at a time."""

_EMPTY = f"""
    SELECT id FROM lane INDEXED BY lane_empty WHERE running = 0 AND succeeded = 0 AND queued = 0 AND failed = 0
        AND scheduled = 0 AND blocked = 0 AND cancelled = 0 LIMIT {MOST_LANES}
"""

_LINES = f"""
    SELECT id, NOT EXISTS (SELECT 1 FROM lane WHERE lane.tenant = line.tenant AND lane.queue = line.queue)
        AND NOT EXISTS (SELECT 1 FROM turn WHERE turn.line = line.id)
        AND coalesce((SELECT number <> line.round OR time >= finish FROM round WHERE round.queue = line.queue), 1),
        tenant, queue
    FROM line WHERE id > ? ORDER BY id LIMIT {FEW}
"""

_TURNS = f"""
    SELECT turn.task, turn.arrival IS NULL AND (turn.round <> line.number OR turn.finish <= line.time), turn.line
    FROM turn CROSS JOIN line ON line.id = turn.line
    WHERE (turn.line, turn.task) > (?, ?) ORDER BY turn.line, turn.task LIMIT {FEW}
"""
_DROP_TURN = "DELETE FROM turn WHERE line = ? AND task = ?"

Row = tuple[Any, ...]
"""Begins with its mark and whether it can go."""


class Marks(NamedTuple):
    """How far each table has been looked through."""

    bucket: str = ""
    line: int = 0
    turn: tuple[int, str] = (0, "")


def sweep(tx: Transaction, marks: Marks) -> Marks:
    """Drop some of what can go; where to go on."""
    tx.drop_lanes([tx.lanes.get(id) for id in tx.column(_EMPTY)], ())
    idle, bucket = _bites(lambda after: buckets.standing(tx, after, FEW), marks.bucket, "")
    for row in idle:
        buckets.drop(tx, row[0])
    spent, turn = _bites(lambda after: _turns(tx, after), marks.turn, (0, ""))
    for (line, task), *_ in spent:
        tx.run(_DROP_TURN, line, task)
    lines, line = _bites(lambda after: tx.rows(_LINES, after), marks.line, 0)
    tx.drop_lanes((), [(id, tenant, queue) for id, _, tenant, queue in lines])
    return Marks(bucket, line, turn)


def _turns(tx: Transaction, after: tuple[int, str]) -> list[Row]:
    return [((line, task), spent) for task, spent, line in tx.rows(_TURNS, *after)]


def _bites(fetch: Callable[[Any], Sequence[Row]], after: Any, start: Any) -> tuple[list[Row], Any]:
    """What can go of the rows after a mark, and the next mark: the start again when the end was reached."""
    found: list[Row] = []
    for _ in range(MOST_BITES):
        rows = fetch(after)
        going = [row for row in rows if row[1]]
        found += going
        if len(rows) < FEW:
            return found, start
        after = rows[-1][0]
        if 2 * len(going) < FEW:
            break
    return found, after
