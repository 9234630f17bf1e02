"""The history of a store: its counters, noted each minute and each hour, in a ring of records.

The store counts how runs end in any case, so a history costs its jobs nothing. The counters only grow: what happened in
a minute is the difference of two notes. Every process notes; the first one of a minute wins. Counters of the busiest
queues are noted by queue, those of the others together.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from windlass.engine.context import EngineContext, HasContext
from windlass.engine.workers import note_lost_workers
from windlass.model.history import History, HistoryPoint, QueueHistory
from windlass.model.job import State
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import GetHistory, Operation
from windlass.model.outcome import Verdict

KINDS = {"minute": "history-minute", "hour": "history-hour"}
SECONDS = {"minute": 60, "hour": 3600}
KEPT = {"minute": 1440, "hour": 744}
"""Notes in a ring: a day of minutes, a month of hours."""

NOTE_EVERY = 5.0
"""Seconds between two looks at whether a minute is over."""

MOST_QUEUES = 200
"""Queues of a note; what belongs to others is noted under no queue."""

ENDS = (Verdict.OK, Verdict.FAILED, Verdict.RETRY, Verdict.ERROR)


NOTHING = [0] * 6
"""The counters of a queue that is not in a note."""


class Note(Struct, frozen=True, array_like=True):
    """The counters at one moment."""

    number: int
    """Of the minute or hour since 1970."""
    queues: dict[str, list[int]]
    """By `tenant,queue`: runs that ended, by outcome, since the store was made; then jobs that wait and that run."""
    workers: dict[str, int] = {}
    """By tenant, how many workers were alive."""


_pack = msgspec.msgpack.Encoder().encode
_note = msgspec.msgpack.Decoder(Note)


class Historian:
    """The duty of one process: notes the counters when a minute or an hour is over."""

    __name__ = "history"

    def __init__(self) -> None:
        self._noted = 0

    async def __call__(self, engine: HasContext) -> int:
        context = engine.context
        now = (await context.store.jobs.read([])).now.timestamp()
        minute = int(now) // SECONDS["minute"]
        if minute == self._noted:
            return 0
        queues = await _counters(context)
        workers = Counter(worker.tenant for worker in await context.store.workers.list(EVERY_TENANT))
        for step, seconds in SECONDS.items():
            number = int(now) // seconds
            name = str(number % KEPT[step])
            before = (await context.store.records.list(KINDS[step], [name])).get(name)
            if before is None or _note.decode(before).number != number:
                note = _pack(Note(number, queues, dict(workers)))
                if await context.store.records.swap(KINDS[step], name, before, note) and step == "minute":
                    await note_lost_workers(context)
        self._noted = minute
        return 1


async def _counters(context: EngineContext) -> dict[str, list[int]]:
    counts = await context.store.jobs.counts(EVERY_TENANT)
    found: dict[str, list[int]] = {}
    for ran in counts.runs:
        found.setdefault(f"{ran.tenant},{ran.queue}", [0] * 6)[ENDS.index(ran.outcome)] += ran.count
    for one in counts.jobs:
        if one.state in (State.QUEUED, State.RUNNING):
            found.setdefault(f"{one.tenant},{one.queue}", [0] * 6)[4 + (one.state is State.RUNNING)] += one.count
    if len(found) <= MOST_QUEUES:
        return found
    busiest = sorted(found, key=lambda name: -sum(found[name]))
    kept = {name: found[name] for name in busiest[:MOST_QUEUES]}
    for name in busiest[MOST_QUEUES:]:
        rest = kept.setdefault(f"{name.partition(',')[0]},", [0] * 6)
        kept[f"{name.partition(',')[0]},"] = [a + b for a, b in zip(rest, found[name], strict=True)]
    return kept


async def get_history(context: EngineContext, operation: GetHistory) -> History:
    step = operation.step
    now = (await context.store.jobs.read([])).now.timestamp()
    last = int(now) // SECONDS[step]
    wanted = range(last - min(operation.points, KEPT[step] - 1), last + 1)
    found = await context.store.records.list(KINDS[step], [str(number % KEPT[step]) for number in wanted])
    notes = sorted((_note.decode(data) for data in found.values()), key=lambda note: note.number)
    notes = [note for note in notes if note.number in wanted]
    sums = [(note.number, _sum(note, operation)) for note in notes]
    workers = {note.number: _workers(note, operation) for note in notes}
    points = [
        replace(_point(after, before, SECONDS[step]), workers=workers[after[0]]) for before, after in pairwise(sums)
    ]
    return History(points=points, queues=_by_queue(notes, operation) if operation.by_queue else [])


def _by_queue(notes: list[Note], operation: GetHistory) -> list[QueueHistory]:
    found = []
    for name in sorted({name for note in notes for name in note.queues if _wanted(name, operation)}):
        rows = [note.queues.get(name, NOTHING) for note in notes]
        points = [_ended(after, before) for before, after in pairwise(rows)]
        tenant, _, queue = name.partition(",")
        found.append(
            QueueHistory(
                tenant=tenant,
                queue=queue,
                ended=[sum(ended) for ended in points],
                failed=[failed + error for _, failed, _, error in points],
                waiting=[row[4] for row in rows[1:]],
            )
        )
    return found


def _wanted(name: str, operation: GetHistory) -> bool:
    tenant, _, queue = name.partition(",")
    return operation.tenant in (EVERY_TENANT, tenant) and operation.queue in (None, queue)


def _workers(note: Note, operation: GetHistory) -> int:
    """Those that take jobs of the tenant."""
    if operation.queue is not None:
        return 0
    every = operation.tenant == EVERY_TENANT
    return sum(number for tenant, number in note.workers.items() if every or tenant in (operation.tenant, EVERY_TENANT))


def _sum(note: Note, operation: GetHistory) -> list[int]:
    rows = [row for name, row in note.queues.items() if _wanted(name, operation)]
    return [sum(column) for column in zip(*rows, strict=True)] if rows else NOTHING


def _point(after: tuple[int, list[int]], before: tuple[int, list[int]], seconds: int) -> HistoryPoint:
    ok, failed, retry, error = _ended(after[1], before[1])
    at = datetime.fromtimestamp(after[0] * seconds, UTC)
    waiting, running = after[1][4:]
    return HistoryPoint(at=at, ok=ok, failed=failed, retry=retry, error=error, waiting=waiting, running=running)


def _ended(after: list[int], before: list[int]) -> list[int]:
    """By outcome, the runs that ended between two notes."""
    return [max(0, new - old) for new, old in zip(after[:4], before[:4], strict=True)]


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {GetHistory: get_history}
