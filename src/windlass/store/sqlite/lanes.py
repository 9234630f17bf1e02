"""Names and counters: which number stands for a tenant's queue (line) and for one task's jobs there (lane).

Lines and lanes are never deleted, so a number once read holds for ever and is remembered; one that was made in a
transaction that failed was never true, hence `forget`. Knows nothing of jobs but the states they are counted in.
"""

import sys
from collections import Counter
from typing import Any, NamedTuple

import apsw

from windlass.store.sqlite.values import STATES

MOST_REMEMBERED = 100_000

_COLUMNS = "id, line, tenant, queue, task"
_BY_ID = f"SELECT {_COLUMNS} FROM lane WHERE id = ?"
_BY_NAME = f"SELECT {_COLUMNS} FROM lane WHERE tenant = ? AND queue = ? AND task = ?"
_NEW_LINE = "INSERT OR IGNORE INTO line (tenant, queue) VALUES (?, ?)"
_NEW_LANE = """
    INSERT INTO lane (line, tenant, queue, task)
    SELECT id, ?1, ?2, ?3 FROM line WHERE tenant = ?1 AND queue = ?2
"""
_SHIFT = f"UPDATE lane SET {', '.join(f'{state} = {state} + ?' for state in STATES)} WHERE id = ?"

Shifts = Counter[tuple[int, int]]
"""By lane and number of a state: how many jobs more, or less, there are."""


class Lane(NamedTuple):
    """One tenant's jobs of one task in one queue."""

    id: int
    line: int
    tenant: str
    queue: str
    task: str


class Lanes:
    """The lanes of one file, as far as they have been met."""

    def __init__(self, sql: apsw.Connection) -> None:
        self._sql = sql
        self._by_id: dict[int, Lane] = {}
        self._by_name: dict[tuple[str, str, str], Lane] = {}

    def get(self, id: int) -> Lane:
        return self._by_id.get(id) or self._remember(self._sql.execute(_BY_ID, (id,)).get)

    def named(self, tenant: str, queue: str, task: str) -> Lane:
        """Find a lane, or make it; only inside a transaction that writes."""
        name = (tenant, queue, task)
        if known := self._by_name.get(name):
            return known
        found = self._sql.execute(_BY_NAME, name).get
        if found is None:
            self._sql.execute(_NEW_LINE, (tenant, queue))
            self._sql.execute(_NEW_LANE, name)
            found = self._sql.execute(_BY_NAME, name).get
        return self._remember(found)

    def forget(self) -> None:
        self._by_id.clear()
        self._by_name.clear()

    def _remember(self, row: tuple[Any, ...]) -> Lane:
        id, line, *names = row
        # Interned: a queue of the default name *is* the default, which is how answers know what to leave out.
        lane = Lane(id, line, *map(sys.intern, names))
        if len(self._by_id) >= MOST_REMEMBERED:
            self.forget()
        self._by_id[id] = self._by_name[lane.tenant, lane.queue, lane.task] = lane
        return lane


def shift(sql: apsw.Connection, shifts: Shifts) -> None:
    """Write what has changed into the counters."""
    lanes = {lane for (lane, _), count in shifts.items() if count}
    rows = [(*(shifts[lane, state] for state in range(len(STATES))), lane) for lane in sorted(lanes)]
    sql.executemany(_SHIFT, rows)
