"""What one call sees while it is inside a transaction: statements, the time, the lanes.

What it leaves behind (counters to shift, topics to tell of) is gathered here, so that no duty can forget it.
"""

from collections.abc import Sequence
from typing import Any

import apsw

from windlass.store.sqlite import batches, lanes


class Transaction:
    """Made anew for each call; several may share one transaction of the file."""

    __slots__ = ("_shifts", "_sql", "lanes", "now", "topics")

    def __init__(self, sql: apsw.Connection, known: lanes.Lanes, now: int) -> None:
        self._sql = sql
        self._shifts = lanes.Shifts()
        self.lanes = known
        self.now = now
        """Microseconds since 1970: the one time that the call goes by."""
        self.topics: set[str] = set()
        """To be told of once the transaction is committed."""

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._sql.execute(statement, values).fetchall()

    def column(self, statement: str, *values: Any) -> list[Any]:
        """The first values of all rows."""
        return [row[0] for row in self._sql.execute(statement, values)]

    def first(self, statement: str, *values: Any) -> tuple[Any, ...] | None:
        """The first row, if there is one."""
        return self._sql.execute(statement, values).fetchone()

    def run(self, statement: str, *values: Any) -> None:
        self._sql.execute(statement, values)

    def changed(self) -> int:
        """How many rows the last statement wrote."""
        return self._sql.changes()

    def run_all(self, template: str, rows: Sequence[batches.Row]) -> None:
        """Run a statement for many rows at once; `{rows}` in it stands for them."""
        if rows:
            batches.run(self._sql, template, rows)

    def count(self, lane: int, state: int, more: int) -> None:
        """Note that a lane has so many jobs more in a state."""
        self._shifts[lane, state] += more

    def finish(self) -> None:
        """Write what was noted."""
        if self._shifts:
            lanes.shift(self._sql, self._shifts)
