"""What one call sees while it is inside a transaction: statements, the time, the lanes, the rules.

What it leaves behind (counters to shift, places taken and given back, topics to tell of) is gathered here, so that no
duty can forget it; `settling` writes it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from windlass.model.lifecycle import Verdict
from windlass.store.flow import Rules
from windlass.store.sqlite import batches, lanes
from windlass.store.sqlite.regulation import Regulation


class Transaction:
    """Made anew for each call; several may share one transaction of the file."""

    __slots__ = ("_regulation", "_sql", "lanes", "now", "outcomes", "places", "shifts", "stirred", "topics")

    def __init__(self, sql: apsw.Connection, known: lanes.Lanes, regulation: Regulation, now: int) -> None:
        self._sql = sql
        self._regulation = regulation
        self.lanes = known
        self.now = now
        """Microseconds since 1970: the one time that the call goes by."""
        self.shifts = lanes.Shifts(int)
        self.places: defaultdict[str, int] = defaultdict(int)
        """By bucket: how many more, or fewer, are taken."""
        self.outcomes: defaultdict[tuple[int, Verdict], int] = defaultdict(int)
        """By lane: how many runs ended so."""
        self.stirred: set[int] = set()
        """Lanes that have been parked, opened or shut."""
        self.topics: set[str] = set()
        """To be told of once the transaction is committed."""

    @property
    def rules(self) -> Rules:
        """Those in force."""
        return self._regulation.get()

    def put_rules(self, rules: Rules) -> None:
        self._regulation.put(rules)

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

    def unused(self) -> int:
        """Bytes inside the file that nothing lies in."""
        return int(self._sql.pragma("freelist_count")) * int(self._sql.pragma("page_size"))

    def changed(self) -> int:
        """How many rows the last statement wrote."""
        return self._sql.changes()

    def run_all(self, template: str, rows: Sequence[batches.Row], shared: batches.Row = ()) -> None:
        """Run a statement for many rows at once; `{rows}` in it stands for them, each after what they share."""
        if rows:
            batches.run(self._sql, template, rows, shared)

    def lane(self, tenant: str, queue: str, task: str, group: str) -> lanes.Lane:
        """Find a lane, or make it."""
        rules = self.rules  # whoever looks at them hears of lanes that are no more
        return self.lanes.named(tenant, queue, task, group) or self.lanes.make(tenant, queue, task, group, rules)

    def drop_lanes(self, empty: Sequence[lanes.Lane], lines: Sequence[tuple[int, str, str]]) -> None:
        """Drop lanes without jobs, and lines without lanes (each with its tenant and queue)."""
        if empty or lines:
            self._regulation.sweep()
            self.lanes.drop(empty)
            self.lanes.drop_lines(lines)

    def count(self, lane: int, state: int, more: int) -> None:
        """Note that a lane has so many jobs more in a state."""
        self.shifts[lane, state] += more

    def place(self, buckets: Iterable[str], more: int) -> None:
        """Note that a run takes a place in each of these (1) or gives it back (-1)."""
        for bucket in buckets:
            self.places[bucket] += more

    def shift(self) -> set[int]:
        """Write the counters; the lanes in which another job may be the first now."""
        return lanes.shift(self._sql, self.shifts)
