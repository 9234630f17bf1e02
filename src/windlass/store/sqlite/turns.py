"""Whose turn it is: the tags by which the tenants of a queue, or the tasks of a line, share it by weight.

Start-time fair queueing. Each round (a queue, or a line) has a time; each member has the tag at which it starts next
and the one at which it was finished last. The member with the least start is served one job: the time becomes its
start, and its next start is one weighted step later. A member that has had nothing open comes back at the round's time.
When nobody waits any more, not even behind an obstacle, the round is over: what anybody has had in it is forgotten.
"""

from collections.abc import Iterable, Mapping

from windlass.store.sqlite.patterns import NOBODY, TASKS, turns_of
from windlass.store.sqlite.transaction import Transaction

_OPEN = "arrival IS NOT NULL AND parked IS NULL AND shut IS NULL"

_FIRST_OF_TASK = f"""
    SELECT priority, arrival FROM lane INDEXED BY lane_of_task
    WHERE line = ? AND task = ? AND {_OPEN} AND turns = 2 ORDER BY priority, arrival LIMIT 1
"""
_FIRST_OF_TASKS = """
    SELECT priority, arrival FROM turn WHERE line = ? AND arrival IS NOT NULL ORDER BY priority, arrival LIMIT 1
"""
_FIRST_OF_LINE = f"""
    SELECT priority, arrival FROM lane INDEXED BY lane_of_line
    WHERE line = ? AND {_OPEN} AND turns < 2 ORDER BY priority, arrival LIMIT 1
"""

# A start is found when a member has something open again, and stays until it is served.
_SET_TASK = """
    INSERT INTO turn (line, task, priority, arrival, start)
    VALUES (?1, ?2, ?3, ?4, (SELECT time FROM line WHERE id = ?1))
    ON CONFLICT DO UPDATE SET priority = excluded.priority, arrival = excluded.arrival,
        start = iif(arrival IS NULL, max(
            excluded.start, iif(round = (SELECT number FROM line WHERE id = ?1), finish, 0)
        ), start)
"""
_SET_LINE = """
    UPDATE line SET priority = ?2, arrival = ?3, start = iif(arrival IS NULL, coalesce((
        SELECT max(time, iif(line.round = round.number, finish, 0)) FROM round WHERE round.queue = line.queue
    ), finish), start) WHERE id = ?1
"""

_MEMBER_OF_QUEUE = "SELECT 1 FROM line INDEXED BY line_turn WHERE queue = ? AND arrival IS NOT NULL LIMIT 1"
_HELD_UP = "arrival IS NOT NULL AND (parked IS NOT NULL OR shut IS NOT NULL) LIMIT 1"
_HELD_UP_IN_LINE = f"SELECT 1 FROM lane INDEXED BY lane_held_up WHERE queue = ? AND line = ? AND {_HELD_UP}"
_HELD_UP_IN_QUEUE = f"SELECT 1 FROM lane INDEXED BY lane_held_up WHERE queue = ? AND {_HELD_UP}"
_END_OF_LINE = "UPDATE line SET time = 0, number = number + 1 WHERE id = ?"
_END_OF_QUEUE = "UPDATE round SET time = 0, number = number + 1 WHERE queue = ?"

_ROUND = "SELECT time FROM round WHERE queue = ?"
_LINE_ROUND = "SELECT time FROM line WHERE id = ?"
_SET_ROUND = "INSERT INTO round (queue, time) VALUES (?, ?) ON CONFLICT DO UPDATE SET time = excluded.time"
_SET_LINE_ROUND = "UPDATE line SET time = ?2 WHERE id = ?1"
_SERVE_LINE = """
    UPDATE line SET start = ?3, finish = ?3, round = (SELECT number FROM round WHERE queue = ?1)
    WHERE tenant = ?2 AND queue = ?1
"""
_SERVE_TASK = """
    UPDATE turn SET start = ?3, finish = ?3, round = (SELECT number FROM line WHERE id = ?1)
    WHERE line = ?1 AND task = ?2
"""

_FORGET_LINE = "UPDATE line SET start = 0, finish = 0, round = 0, priority = NULL, arrival = NULL WHERE queue = ?"
_FORGET_ROUND = "DELETE FROM round WHERE queue = ?"
_FORGET_TASKS = "DELETE FROM turn WHERE line = ?"
_FORGET_LINE_ROUND = "UPDATE line SET time = 0 WHERE id = ?"
_TAKE_OUT = "UPDATE line SET priority = NULL, arrival = NULL WHERE id = ?"


def refresh(tx: Transaction, lanes: Iterable[int]) -> None:
    """After lanes have opened, run dry or been put away: who has something to offer, and what comes first."""
    rules = tx.rules
    if not (rules.fair_queues or rules.fair_lines):
        return
    met = {tx.lanes.get(lane) for lane in lanes}
    tasks = {(lane.line, lane.task) for lane in met if turns_of(rules, lane.tenant, lane.queue) == TASKS}
    for line, task in sorted(tasks):
        tx.run(_SET_TASK, line, task, *(tx.first(_FIRST_OF_TASK, line, task) or (None, None)))
    lines = {lane.line: (lane.queue, turns_of(rules, lane.tenant, lane.queue)) for lane in met}
    for line, (queue, turns) in sorted(lines.items()):
        if turns != NOBODY:
            first = tx.first(_FIRST_OF_TASKS if turns == TASKS else _FIRST_OF_LINE, line)
            tx.run(_SET_LINE, line, *(first or (None, None)))
            if first is None:
                _end_rounds(tx, line, queue)


def _end_rounds(tx: Transaction, line: int, queue: str) -> None:
    """A line has nothing open: if nothing waits there either, or in its queue, what was had of turns is forgotten."""
    if tx.first(_HELD_UP_IN_LINE, queue, line) is None:
        tx.run(_END_OF_LINE, line)
    if tx.first(_MEMBER_OF_QUEUE, queue) is None and tx.first(_HELD_UP_IN_QUEUE, queue) is None:
        tx.run(_END_OF_QUEUE, queue)


def queue_time(tx: Transaction, queue: str) -> float:
    found = tx.first(_ROUND, queue)
    return found[0] if found else 0.0


def line_time(tx: Transaction, line: int) -> float:
    found = tx.first(_LINE_ROUND, line)
    return found[0] if found else 0.0


def serve_tenants(tx: Transaction, queue: str, time: float, finishes: Mapping[str, float]) -> None:
    tx.run(_SET_ROUND, queue, time)
    for tenant, finish in finishes.items():
        tx.run(_SERVE_LINE, queue, tenant, finish)


def serve_tasks(tx: Transaction, line: int, time: float, finishes: Mapping[str, float]) -> None:
    tx.run(_SET_LINE_ROUND, line, time)
    for task, finish in finishes.items():
        tx.run(_SERVE_TASK, line, task, finish)


def forget_queue(tx: Transaction, queue: str) -> None:
    """Tenants take turns no longer, or not yet."""
    tx.run(_FORGET_ROUND, queue)
    tx.run(_FORGET_LINE, queue)


def forget_line(tx: Transaction, line: int) -> None:
    """Tasks take turns no longer, or not yet."""
    tx.run(_FORGET_TASKS, line)
    tx.run(_FORGET_LINE_ROUND, line)


def take_out(tx: Transaction, line: int) -> None:
    """Nobody takes turns there."""
    tx.run(_TAKE_OUT, line)
