"""Where a claim's streams come from: the open lanes of one queue, in the order of their indexes.

Made for one claim and one worker. Knows which index answers which question; how streams are merged is said in
`picking`, and what the tags of turns mean in `turns`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from windlass.model.names import EVERY_TENANT
from windlass.store import Wish
from windlass.store.sqlite import batches, turns
from windlass.store.sqlite.gate import Gate
from windlass.store.sqlite.patterns import TASKS, task_weights, turns_of
from windlass.store.sqlite.picking import Member, Merged, Place, Strand, Stream, Turns, Warm
from windlass.store.sqlite.transaction import Transaction

Row = tuple[Any, ...]

Fetch = Callable[[Any, int], Sequence[Row]]
"""Rows of an index after a place in it, at most so many."""

MOST_AHEAD = 256
"""Rows of an index fetched at once; at first no more than there are slots."""

MOST_IN_TURN = 1000
"""Lanes of a queue that take turns in one claim: those whose first jobs came first."""

BEFORE_ALL = (-(2**31) - 1, 0)
"""A priority and arrival, or a tag, before every other."""

_OPEN = "arrival IS NOT NULL AND parked IS NULL AND shut IS NULL"

_HEADS = "SELECT priority, arrival, id, bounds <> '' FROM lane INDEXED BY"
# A worker may know a task of everybody's, or one tenant's alone.
_KNOWN = "(task IN carray({0}) OR tenant || '/' || task IN carray({0}))"
_TASKS = f"AND {_KNOWN.format('?5')}"
_ORDERED = "AND (priority, arrival) > (?2, ?3) ORDER BY priority, arrival LIMIT ?4"
_OF_TASK = f"""
    {_HEADS} lane_of_task WHERE line = ?1 AND task = ?5 AND {_OPEN} AND turns = 2 {_ORDERED}
"""
_OTHER_OF_LINE = f"""
    SELECT priority, arrival FROM lane INDEXED BY lane_of_line
    WHERE line = ?1 AND {_OPEN} AND turns < 2 AND NOT {_KNOWN.format("?2")} ORDER BY priority, arrival LIMIT 1
"""
_OTHER_OF_TASKS = """
    SELECT priority, arrival FROM turn
    WHERE line = ?1 AND arrival IS NOT NULL AND task NOT IN carray(?2) AND ?3 || '/' || task NOT IN carray(?2)
    ORDER BY priority, arrival LIMIT 1
"""


class Heads(NamedTuple):
    """One question, asked for all tasks and for some."""

    all: str
    some: str

    @classmethod
    def of(cls, question: str) -> "Heads":
        return cls(f"{question} {_ORDERED}", f"{question} {_TASKS} {_ORDERED}")


_OF_QUEUE = Heads.of(f"{_HEADS} lane_open WHERE queue = ?1 AND {_OPEN} AND turns = 0")
_OF_LINE = Heads.of(f"{_HEADS} lane_of_line WHERE line = ?1 AND {_OPEN} AND turns < 2")

_LINES_BY_TURN = """
    SELECT start, arrival, priority, id, tenant FROM line INDEXED BY line_turn
    WHERE queue = ?1 AND arrival IS NOT NULL AND (start, arrival) > (?2, ?3) ORDER BY start, arrival LIMIT ?4
"""
_LINES_BY_ORDER = """
    SELECT priority, arrival, priority, id, tenant FROM line INDEXED BY line_first
    WHERE queue = ?1 AND arrival IS NOT NULL AND (priority, arrival) > (?2, ?3) ORDER BY priority, arrival LIMIT ?4
"""
_LINE_ALONE = (
    "SELECT {0}, arrival, priority, id, tenant FROM line WHERE tenant = ? AND queue = ? AND arrival IS NOT NULL"
)
_TASKS_BY_TURN = """
    SELECT start, arrival, priority, task FROM turn INDEXED BY turn_order
    WHERE line = ?1 AND arrival IS NOT NULL AND (start, arrival) > (?2, ?3) ORDER BY start, arrival LIMIT ?4
"""


class Sources:
    """The streams of one claim."""

    def __init__(self, tx: Transaction, gate: Gate, wish: Wish) -> None:
        worker = wish.worker
        self._tx = tx
        self._rules = tx.rules
        self._gate = gate
        self._slots = wish.slots
        self._warm = Warm(wish.warm) if wish.warm else None
        self._tenant = None if worker.tenant == EVERY_TENANT else worker.tenant
        self._tasks = None if worker.tasks is None else tuple(worker.tasks)
        self._wish = wish
        self._rounds: list[tuple[Turns, Callable[[float, Mapping[str, float]], None]]] = []
        """Whoever took turns, and what keeps that."""

    def lanes(self, queue: str, after: Place, size: int) -> Sequence[Row]:
        """The first open lanes of a queue after a place, where nobody takes turns."""
        if self._tenant is None:
            return self._heads(_OF_QUEUE, queue, after, size)
        line = self._tx.lanes.line(self._tenant, queue)
        return [] if line is None else self._heads(_OF_LINE, line, after, size)

    def tenants(self, queue: str) -> Mapping[str, Sequence[Row]]:
        """Whose jobs there are in a queue, each with its first open lanes, but where its tasks take turns."""
        found: dict[str, list[Row]] = {}
        for head in self.lanes(queue, BEFORE_ALL, MOST_IN_TURN):
            found.setdefault(self._tx.lanes.get(head[2]).tenant, []).append(head)
        if self._rules.fair_lines:
            for *_, tenant in islice(self._lines(_LINES_BY_ORDER, "priority", queue), MOST_IN_TURN):
                found.setdefault(tenant, [])
        return found

    def narrowed(self, tenant: str, task: str | None = None) -> "Sources":
        """The same for one tenant's jobs alone, or those of one task."""
        tasks = self._wish.worker.tasks if task is None else [f"{tenant}/{task}"]
        worker = replace(self._wish.worker, tenant=tenant, tasks=tasks)
        found = Sources(self._tx, self._gate, replace(self._wish, worker=worker))
        found._rounds = self._rounds
        return found

    def has_turns(self, queue: str) -> bool:
        """Whether tenants or tasks take turns somewhere in a queue."""
        lines = self._rules.fair_lines
        return self.has_fair_tenants(queue) or any(line.endswith(f",{queue}") for line in lines)

    def has_fair_tenants(self, queue: str) -> bool:
        return queue in self._rules.fair_queues

    def has_fair_tasks(self, tenant: str, queue: str) -> bool:
        return task_weights(self._rules, tenant, queue) is not None

    def queue(self, queue: str) -> Stream:
        """The jobs of a queue."""
        if queue in self._rules.fair_queues:
            return self._by_tenants(queue)
        plain = self._strands(lambda after, size: self.lanes(queue, after, size))
        if not self.has_turns(queue):
            return Merged(plain)
        lines = (
            ((priority, arrival), self._by_tasks(line, tenant, queue))
            for priority, arrival, _, line, tenant in self._lines(_LINES_BY_ORDER, "priority", queue)
        )
        both = [(first, stream) for stream in (Merged(plain), Merged(lines)) if (first := stream.first())]
        return Merged(iter(sorted(both, key=itemgetter(0))))

    def write(self) -> None:
        for taken, keep in self._rounds:
            if taken.finishes:
                keep(taken.time, taken.finishes)

    def _by_tenants(self, queue: str) -> Stream:
        members = (self._line(queue, row) for row in self._lines(_LINES_BY_TURN, "start", queue))
        time = turns.queue_time(self._tx, queue)
        found = Turns(members, time, self._rules.fair_queues[queue], self._warm)
        self._rounds.append((found, partial(turns.serve_tenants, self._tx, queue)))
        return found

    def _line(self, queue: str, row: Row) -> Member:
        start, arrival, priority, line, tenant = row
        place = (priority, arrival)
        if turns_of(self._rules, tenant, queue) == TASKS:
            other = self._other(_OTHER_OF_TASKS, line, tenant)
            return Member(tenant, start, place, self._by_tasks(line, tenant, queue), other, tenant)
        strands = self._strands(lambda after, size: self._heads(_OF_LINE, line, after, size))
        return Member(tenant, start, place, Merged(strands), self._other(_OTHER_OF_LINE, line), tenant)

    def _by_tasks(self, line: int, tenant: str, queue: str) -> Stream:
        members = (self._task(line, tenant, row) for row in self._members(line) if self._knows(tenant, row[3]))
        weights = task_weights(self._rules, tenant, queue) or {}
        found = Turns(members, turns.line_time(self._tx, line), weights, self._warm)
        self._rounds.append((found, partial(turns.serve_tasks, self._tx, line)))
        return found

    def _task(self, line: int, tenant: str, row: Row) -> Member:
        start, arrival, priority, task = row
        strands = self._strands(lambda after, size: self._tx.rows(_OF_TASK, line, *after, size, task))
        return Member(task, start, (priority, arrival), Merged(strands), None, tenant, task)

    def _knows(self, tenant: str, task: str) -> bool:
        return self._tasks is None or task in self._tasks or f"{tenant}/{task}" in self._tasks

    def _other(self, statement: str, line: int, *tenant: str) -> Place | None:
        if not self._tasks:
            return None
        found = self._tx.first(statement, line, batches.texts(self._tasks), *tenant)
        return None if found is None else (found[0], found[1])

    def _heads(self, heads: Heads, of: int | str, after: Place, size: int) -> Sequence[Row]:
        if self._tasks is None:
            return self._tx.rows(heads.all, of, *after, size)
        if not self._tasks:
            return []
        return self._tx.rows(heads.some, of, *after, size, batches.texts(self._tasks))

    def _strands(self, fetch: Fetch) -> Iterator[tuple[Place, Stream]]:
        for priority, arrival, id, _ in self._pages(fetch):
            yield (priority, arrival), Strand(self._tx, self._gate, self._tx.lanes.get(id), (priority, arrival))

    def _lines(self, statement: str, order: str, queue: str) -> Iterator[Row]:
        if self._tenant is not None:
            return iter(self._tx.rows(_LINE_ALONE.format(order), self._tenant, queue))
        return self._pages(lambda after, size: self._tx.rows(statement, queue, *after, size))

    def _members(self, line: int) -> Iterator[Row]:
        return self._pages(lambda after, size: self._tx.rows(_TASKS_BY_TURN, line, *after, size))

    def _pages(self, fetch: Fetch) -> Iterator[Row]:
        """Rows of an index, some at a time, each time after the last."""
        size = self._slots
        rows = fetch(BEFORE_ALL, size)
        while rows:
            yield from rows
            if len(rows) < size or self._gate.weary:
                return
            size = min(2 * size, MOST_AHEAD)
            rows = fetch(rows[-1][:2], size)
