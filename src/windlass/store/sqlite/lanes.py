"""Names, counters and heads: which number stands for a tenant's queue (line) and for one task's and group's jobs there
(lane), how many those are, and which of them is the first.

A number is never used twice, so what it stands for is remembered; one that was made in a transaction that failed was
never true, hence `forget`. Which number a name has is remembered until lanes are dropped. Knows nothing of jobs but the
states they are counted in.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import apsw

from windlass.store.flow import Rules
from windlass.store.sqlite.groups import split
from windlass.store.sqlite.patterns import shut_until, turns_of
from windlass.store.sqlite.values import QUEUED, STATES

MOST_REMEMBERED = 100_000

_COLUMNS = "id, line, tenant, queue, task, bounds"
_BY_ID = f"SELECT {_COLUMNS} FROM lane WHERE id = ?"
_BY_NAME = f"SELECT {_COLUMNS} FROM lane WHERE tenant = ? AND queue = ? AND task = ? AND bounds = ?"
_LINE = "SELECT id FROM line WHERE tenant = ? AND queue = ?"
_NEW_LINE = "INSERT OR IGNORE INTO line (tenant, queue) VALUES (?, ?)"
_NEW_LANE = """
    INSERT INTO lane (line, tenant, queue, task, bounds, shut, turns)
    SELECT id, ?1, ?2, ?3, ?4, ?5, ?6 FROM line WHERE tenant = ?1 AND queue = ?2
"""
_DROP_LANE = "DELETE FROM lane WHERE id = ?"
_DROP_LINE = "DELETE FROM line WHERE id = ?"
_DROP_MEMBER = "DELETE FROM member WHERE bucket = ? AND lane = ?"
_NEW_MEMBER = "INSERT INTO member (bucket, lane) VALUES (?, ?)"

_SHIFTED = ", ".join(f"{state} = {state} + ?" for state in STATES)
_SHIFT = f"UPDATE lane SET {_SHIFTED} WHERE id = ?"
# A lane that had nothing queued is looked at afresh, whatever its bucket was like when it was parked.
_SHIFT_HEAD = f"""
    UPDATE lane SET {_SHIFTED}, parked = iif(arrival IS NULL, NULL, parked), (priority, arrival) = (
        SELECT priority, seq FROM job WHERE state = {QUEUED} AND lane = ? ORDER BY priority, seq LIMIT 1
    ) WHERE id = ?
"""

_NUMBERS = range(len(STATES))

Shifts = defaultdict[tuple[int, int], int]
"""By lane and number of a state: how many jobs more, or less, there are."""


class Lane(NamedTuple):
    """One tenant's jobs of one task and group in one queue."""

    id: int
    line: int
    tenant: str
    queue: str
    task: str
    group: str
    kind: str
    """The class in the group."""
    buckets: tuple[str, ...]


class Lanes:
    """The lanes of one file, as far as they have been met."""

    def __init__(self, sql: apsw.Connection) -> None:
        self._sql = sql
        self._by_id: dict[int, Lane] = {}
        self._by_name: dict[tuple[str, str, str, str], Lane] = {}
        self._lines: dict[tuple[str, str], int] = {}

    def get(self, id: int) -> Lane:
        return self._by_id.get(id) or self._remember(self._sql.execute(_BY_ID, (id,)).get)

    def line(self, tenant: str, queue: str) -> int | None:
        """The number of a line, if it is there."""
        known = self._lines.get((tenant, queue))
        if known is None and (found := self._sql.execute(_LINE, (tenant, queue)).get):
            known = self._lines[tenant, queue] = found
        return known

    def named(self, tenant: str, queue: str, task: str, group: str) -> Lane | None:
        name = (tenant, queue, task, group)
        if known := self._by_name.get(name):
            return known
        found = self._sql.execute(_BY_NAME, name).get
        return None if found is None else self._remember(found)

    def make(self, tenant: str, queue: str, task: str, group: str, rules: Rules) -> Lane:
        """A lane that is not there yet, as the rules want it."""
        self._sql.execute(_NEW_LINE, (tenant, queue))
        shut, turns = shut_until(rules, tenant, queue, task), turns_of(rules, tenant, queue)
        self._sql.execute(_NEW_LANE, (tenant, queue, task, group, shut, turns))
        lane = self._remember(self._sql.execute(_BY_NAME, (tenant, queue, task, group)).get)
        self._sql.executemany(_NEW_MEMBER, [(bucket, lane.id) for bucket in lane.buckets])
        return lane

    def forget(self) -> None:
        self._by_id.clear()
        self.forget_names()

    def forget_names(self) -> None:
        self._by_name.clear()
        self._lines.clear()

    def drop(self, lanes: Iterable[Lane]) -> None:
        """These have no jobs."""
        for lane in lanes:
            self._sql.execute(_DROP_LANE, (lane.id,))
            self._sql.executemany(_DROP_MEMBER, [(bucket, lane.id) for bucket in lane.buckets])
            self._by_id.pop(lane.id, None)
            self._by_name.pop((lane.tenant, lane.queue, lane.task, lane.group), None)

    def drop_lines(self, lines: Iterable[tuple[int, str, str]]) -> None:
        """These, each with its tenant and queue, have no lanes."""
        for id, tenant, queue in lines:
            self._sql.execute(_DROP_LINE, (id,))
            self._lines.pop((tenant, queue), None)

    def _remember(self, row: tuple[Any, ...]) -> Lane:
        id, line, tenant, queue, task, group = row
        # Interned: a queue of the default name *is* the default, which is how answers know what to leave out.
        lane = Lane(id, line, sys.intern(tenant), sys.intern(queue), sys.intern(task), group, *split(group))
        if len(self._by_id) >= MOST_REMEMBERED:
            self.forget()
        self._lines[tenant, queue] = line
        self._by_id[id] = self._by_name[tenant, queue, task, group] = lane
        return lane


def shift(sql: apsw.Connection, shifts: Shifts) -> set[int]:
    """Write what has changed into the counters and heads; the lanes in which another job may be the first now."""
    stirred = {lane for lane, state in shifts if state == QUEUED}
    for lane in {lane for lane, _ in shifts}:
        counts = [shifts.get((lane, state), 0) for state in _NUMBERS]
        if lane in stirred:
            sql.execute(_SHIFT_HEAD, (*counts, lane, lane))
        else:
            sql.execute(_SHIFT, (*counts, lane))
    return stirred
