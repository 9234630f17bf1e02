"""Claims: which jobs a worker gets, and the lease under which it gets them.

A claim looks at open lanes in the order of their first jobs; its cost does not depend on how many jobs wait behind
those. Where neither limits nor turns apply, lanes are merged right here; else streams find the next job and `flow`
admits it. Queues are taken in the worker's order, unless the request wants turns within the claim (`Rotation`).

A stream shows its first job and lets it be taken; a merge of streams, by priority and arrival or by turns, is a stream
again. Streams are opened only as far as they are looked at.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from windlass.model.names import EVERY_TENANT
from windlass.store import encoding
from windlass.store.data import SEEN_EVERY, ClaimRequest, Record, shuffled, turns_of_queues
from windlass.store.encoding import span
from windlass.store.flow import LEAD, NEAR, TierRule
from windlass.store.sqlite.flow import LaneAdmission, queue_time, serve_tasks, serve_tenants, task_time, unblock_due
from windlass.store.sqlite.jobs import FIRST_RUN_COLUMNS, StartedRun, first_run_records, records_by_seq
from windlass.store.sqlite.transaction import (
    QUEUED,
    RUNNING,
    TASK_TURNS,
    Lane,
    Transaction,
    int_array,
    task_weights,
    text_array,
    turns_of,
)

# Streams of jobs

Position = tuple[int, int]
"""Priority and arrival of a job: sorts as jobs are claimed."""

_NEXT_JOBS = f"""
    SELECT priority, seq FROM job WHERE state = {QUEUED} AND lane = ?1 AND (priority, seq) > (?2, ?3)
    ORDER BY priority, seq LIMIT ?4
"""

_FIRST_JOBS = f"""
    SELECT priority, seq, lane FROM job WHERE state = {QUEUED} AND lane = ?1 AND (priority, seq) <= (?2, ?3)
    ORDER BY priority, seq LIMIT ?4
"""

AFTER_ALL = (2**31, 0)
"""A priority and arrival beyond every job's."""

READ_AHEAD = 16
"""Jobs of one lane that are looked up at once: most lanes give few."""


class Pick(NamedTuple):
    """A job that is taken."""

    seq: int
    lane: int
    tier: TierRule | None


class JobStream(Protocol):
    """Jobs, one after the other."""

    def first(self) -> Position | None:
        """The job that comes next and may start now; null = there is no more."""
        ...

    def earliest(self) -> Position | None:
        """The first by priority and arrival, regardless of turns; to be called after `first`."""
        ...

    def lane(self) -> Lane:
        """The lane of the first; to be called right after `first`."""
        ...

    def take(self) -> Pick:
        """Take the first; to be called right after `first`."""
        ...


class LaneStream:
    """The jobs of one lane."""

    def __init__(self, tx: Transaction, admission: LaneAdmission, lane: Lane, first: Position) -> None:
        self._tx = tx
        self._admission = admission
        self._lane = lane
        self._last = first
        self._jobs = [first]
        """Looked up and not taken, last first."""
        self._ended = False

    def first(self) -> Position | None:
        if self._ended:
            return None
        if not self._jobs:
            self._jobs = [(row[0], row[1]) for row in self._tx.rows(_NEXT_JOBS, self._lane.id, *self._last, READ_AHEAD)]
            self._jobs.reverse()
        # A lane without more jobs need not be blocked.
        if not self._jobs or not self._admission.admits(self._lane):
            self._ended = True
            return None
        return self._jobs[-1]

    def earliest(self) -> Position | None:
        return self.first()

    def lane(self) -> Lane:
        return self._lane

    def take(self) -> Pick:
        self._last = self._jobs.pop()
        return Pick(self._last[1], self._lane.id, self._admission.start(self._lane))


class MergedStream:
    """Several streams as one, by priority and arrival. They come in the order of their first jobs."""

    def __init__(self, streams: Iterator[tuple[Position, JobStream]]) -> None:
        self._coming = streams
        self._next: tuple[Position, JobStream] | None = None
        self._heap: list[tuple[Position, int, JobStream]] = []
        self._opened = 0
        self._begun = False

    def first(self) -> Position | None:
        if not self._begun:
            self._next, self._begun = next(self._coming, None), True
        while True:
            while self._next is not None and (not self._heap or self._next[0] < self._heap[0][0]):
                self._opened += 1
                heapq.heappush(self._heap, (self._next[0], self._opened, self._next[1]))
                self._next = next(self._coming, None)
            if not self._heap:
                return None
            place, number, stream = self._heap[0]
            found = stream.first()
            if found == place:
                return found
            if found is None:
                heapq.heappop(self._heap)
            else:
                heapq.heapreplace(self._heap, (found, number, stream))

    def earliest(self) -> Position | None:
        return self.first()

    def lane(self) -> Lane:
        return self._heap[0][2].lane()

    def take(self) -> Pick:
        return self._heap[0][2].take()


class Member(NamedTuple):
    """A tenant or a task that takes turns."""

    name: str
    start: float
    place: Position
    """Of its first job."""
    stream: JobStream
    other: Position | None
    """Its first job among those that the worker cannot take: it counts when turns are decided."""
    tenant: str
    task: str | None = None
    """If tasks take turns."""


TurnKey = tuple[float, int]
"""Start and arrival: the smallest has its turn."""


class WarmTasks:
    """What a worker prefers to run, as `tenant/task`."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._tenants = frozenset(name.partition("/")[0] for name in self._names)

    def has(self, lane: Lane) -> bool:
        return f"{lane.tenant}/{lane.task}" in self._names

    def may_have(self, tenant: str, task: str | None) -> bool:
        return tenant in self._tenants if task is None else f"{tenant}/{task}" in self._names


class FairStream:
    """Several streams as one, by turns. They come in the order of their turn keys."""

    def __init__(
        self, members: Iterator[Member], time: float, weights: Mapping[str, float], warm: WarmTasks | None = None
    ) -> None:
        self._coming = members
        self._next = next(members, None)
        self._weights = weights
        self._warm = warm
        self._chosen: Member | None = None
        self._heap: list[tuple[TurnKey, int, Member]] = []
        self._opened = 0
        self._asked: set[str] = set()
        """Members whose stream was asked for its first job; that of the others is in `Member.place`."""
        self.time = time
        self.finishes: dict[str, float] = {}
        """Of the members that were served."""

    def first(self) -> Position | None:
        while True:
            while (coming := self._next) is not None and (
                not self._heap or (coming.start, coming.place[1]) < self._heap[0][0]
            ):
                self._push(coming)
            if not self._heap:
                return None
            key, number, member = self._heap[0]
            self._asked.add(member.name)
            found = member.stream.first()
            if found is None:
                heapq.heappop(self._heap)
                continue
            own = min(place for place in (member.stream.earliest(), member.other) if place is not None)
            now = (self._start(member), own[1])
            if now == key:
                self._chosen = member
                return found if self._warm is None else self._preferred(self._warm, found, now[0])
            heapq.heapreplace(self._heap, (now, number, member))

    def _preferred(self, warm: WarmTasks, found: Position, turn: float) -> Position:
        """Of the members whose turn comes next, the first that the worker prefers; else the one whose turn it is."""
        pushed = 0
        while (coming := self._next) is not None and coming.start < turn + LEAD and pushed < NEAR:
            self._push(coming)
            pushed += 1
        near = heapq.nsmallest(NEAR, ((self._start(one), key[1], number, one) for key, number, one in self._heap))
        for start, _, _, member in near:
            if start >= turn + LEAD or not warm.may_have(member.tenant, member.task):
                continue
            self._asked.add(member.name)
            place = member.stream.first()
            if place is not None and warm.has(member.stream.lane()):
                self._chosen = member
                return place
        return found

    def _start(self, member: Member) -> float:
        return self.finishes.get(member.name, member.start)

    def earliest(self) -> Position | None:
        while self._next is not None:
            self._push(self._next)
        places = [member.stream.first() if member.name in self._asked else member.place for _, _, member in self._heap]
        return min((place for place in places if place is not None), default=None)

    def _push(self, member: Member) -> None:
        self._opened += 1
        heapq.heappush(self._heap, ((member.start, member.place[1]), self._opened, member))
        self._next = next(self._coming, None)

    def take(self) -> Pick:
        member = self._chosen or self._heap[0][2]
        # The time is that of the member whose turn it is: a preferred member delays no other.
        self.time = max(self.time, self._start(self._heap[0][2]))
        self.finishes[member.name] = self._start(member) + 1 / self._weights.get(member.name, 1.0)
        return member.stream.take()

    def lane(self) -> Lane:
        return (self._chosen or self._heap[0][2]).stream.lane()


def first_jobs(tx: Transaction, heads: Sequence[tuple[Any, ...]], room: int) -> list[Pick]:
    """The first jobs of several lanes together, if nothing bounds them; no other lane can come before."""
    heads = heads[:room]
    if len(heads) == 1 and room > 1:
        found = tx.rows(_FIRST_JOBS, heads[0][2], *AFTER_ALL, room)
    elif len(heads) > 1:
        last = heads[-1][:2] if len(heads) == room else AFTER_ALL
        found = sorted(job for _, _, lane, _ in heads for job in tx.rows(_FIRST_JOBS, lane, *last, room))[:room]
    else:
        found = [head[:3] for head in heads]
    return [Pick(seq, lane, None) for _, seq, lane in found]


# --- Where the streams of a claim come from -----------------------------------------------------------

Row = tuple[Any, ...]

Fetch = Callable[[Any, int], Sequence[Row]]
"""Rows of an index after a position in it, at most so many."""

MOST_READ_AHEAD = 256
"""Rows of an index fetched at once; at first no more than there are slots."""

MOST_IN_TURN = 1000
"""Lanes of a queue that take turns in one claim: those whose first jobs came first."""

BEFORE_ALL = (-(2**31) - 1, 0)
"""A priority and arrival, or a turn key, before every other."""

_OPEN = "arrival IS NOT NULL AND blocker IS NULL AND paused_until IS NULL"

_HEADS = "SELECT priority, arrival, id, limit_keys <> '' FROM lane INDEXED BY"
# A worker may know a task of every tenant, or of one tenant alone.
_KNOWN = "(task IN carray({0}) OR tenant || '/' || task IN carray({0}))"
_TASKS = f"AND {_KNOWN.format('?5')}"
_ORDERED = "AND (priority, arrival) > (?2, ?3) ORDER BY priority, arrival LIMIT ?4"
_OF_TASK = f"""
    {_HEADS} lane_of_task WHERE tenant_queue = ?1 AND task = ?5 AND {_OPEN} AND turns = 2 {_ORDERED}
"""
_OTHER_OF_TENANT_QUEUE = f"""
    SELECT priority, arrival FROM lane INDEXED BY lane_of_tenant_queue
    WHERE tenant_queue = ?1 AND {_OPEN} AND turns < 2 AND NOT {_KNOWN.format("?2")} ORDER BY priority, arrival LIMIT 1
"""
_OTHER_OF_TASKS = """
    SELECT priority, arrival FROM turn
    WHERE tenant_queue = ?1 AND arrival IS NOT NULL AND task NOT IN carray(?2) AND ?3 || '/' || task NOT IN carray(?2)
    ORDER BY priority, arrival LIMIT 1
"""


class Heads(NamedTuple):
    """One statement, for all tasks and for some."""

    all: str
    some: str

    @classmethod
    def of(cls, question: str) -> "Heads":
        return cls(f"{question} {_ORDERED}", f"{question} {_TASKS} {_ORDERED}")


_OF_QUEUE = Heads.of(f"{_HEADS} lane_open WHERE queue = ?1 AND {_OPEN} AND turns = 0")
_OF_TENANT_QUEUE = Heads.of(f"{_HEADS} lane_of_tenant_queue WHERE tenant_queue = ?1 AND {_OPEN} AND turns < 2")

_TENANT_QUEUES_BY_TURN = """
    SELECT start, arrival, priority, id, tenant FROM tenant_queue INDEXED BY tenant_queue_turn
    WHERE queue = ?1 AND arrival IS NOT NULL AND (start, arrival) > (?2, ?3) ORDER BY start, arrival LIMIT ?4
"""
_TENANT_QUEUES_BY_ORDER = """
    SELECT priority, arrival, priority, id, tenant FROM tenant_queue INDEXED BY tenant_queue_first
    WHERE queue = ?1 AND arrival IS NOT NULL AND (priority, arrival) > (?2, ?3) ORDER BY priority, arrival LIMIT ?4
"""
_ONE_TENANT_QUEUE = (
    "SELECT {0}, arrival, priority, id, tenant FROM tenant_queue WHERE tenant = ? AND queue = ? AND arrival IS NOT NULL"
)
_TASKS_BY_TURN = """
    SELECT start, arrival, priority, task FROM turn INDEXED BY turn_order
    WHERE tenant_queue = ?1 AND arrival IS NOT NULL AND (start, arrival) > (?2, ?3) ORDER BY start, arrival LIMIT ?4
"""


Rounds = list[tuple[FairStream, Callable[[float, Mapping[str, float]], None]]]


class StreamSources:
    """The streams of one claim of one worker."""

    def __init__(
        self, tx: Transaction, admission: LaneAdmission, request: ClaimRequest, rounds: Rounds | None = None
    ) -> None:
        worker = request.worker
        self._tx = tx
        self._rules = tx.rules
        self._admission = admission
        self._slots = request.slots
        self._warm = WarmTasks(request.warm) if request.warm else None
        self._tenant = None if worker.tenant == EVERY_TENANT else worker.tenant
        self._tasks = None if worker.tasks is None else tuple(worker.tasks)
        self._request = request
        self._rounds: Rounds = [] if rounds is None else rounds
        """The streams that took turns, and what stores their turns."""

    def lanes(self, queue: str, after: Position, size: int) -> Sequence[Row]:
        """The first open lanes of a queue after a position, where no turns are taken."""
        if self._tenant is None:
            return self._heads(_OF_QUEUE, queue, after, size)
        found = self._tx.lanes.tenant_queue(self._tenant, queue)
        return [] if found is None else self._heads(_OF_TENANT_QUEUE, found, after, size)

    def tenants(self, queue: str) -> Mapping[str, Sequence[Row]]:
        """The tenants with jobs in a queue, each with its first open lanes unless its tasks take turns."""
        found: dict[str, list[Row]] = {}
        for head in self.lanes(queue, BEFORE_ALL, MOST_IN_TURN):
            found.setdefault(self._tx.lanes.get(head[2]).tenant, []).append(head)
        if self._rules.fair_tenant_queues:
            for *_, tenant in islice(self._tenant_queues(_TENANT_QUEUES_BY_ORDER, "priority", queue), MOST_IN_TURN):
                found.setdefault(tenant, [])
        return found

    def narrowed(self, tenant: str, task: str | None = None) -> "StreamSources":
        """The same for one tenant's jobs alone, or those of one task."""
        tasks = self._request.worker.tasks if task is None else [f"{tenant}/{task}"]
        worker = replace(self._request.worker, tenant=tenant, tasks=tasks)
        return StreamSources(self._tx, self._admission, replace(self._request, worker=worker), self._rounds)

    def has_turns(self, queue: str) -> bool:
        """Whether tenants or tasks take turns somewhere in a queue."""
        fair = self._rules.fair_tenant_queues
        return self.has_fair_tenants(queue) or any(name.endswith(f",{queue}") for name in fair)

    def has_fair_tenants(self, queue: str) -> bool:
        return queue in self._rules.fair_queues

    def has_fair_tasks(self, tenant: str, queue: str) -> bool:
        return task_weights(self._rules, tenant, queue) is not None

    def queue(self, queue: str) -> JobStream:
        """The jobs of a queue."""
        if queue in self._rules.fair_queues:
            return self._by_tenants(queue)
        plain = self._lane_streams(lambda after, size: self.lanes(queue, after, size))
        if not self.has_turns(queue):
            return MergedStream(plain)
        fair = (
            ((priority, arrival), self._by_tasks(id, tenant, queue))
            for priority, arrival, _, id, tenant in self._tenant_queues(_TENANT_QUEUES_BY_ORDER, "priority", queue)
        )
        both = [(first, stream) for stream in (MergedStream(plain), MergedStream(fair)) if (first := stream.first())]
        return MergedStream(iter(sorted(both, key=itemgetter(0))))

    def write(self) -> None:
        for taken, keep in self._rounds:
            if taken.finishes:
                keep(taken.time, taken.finishes)

    def _by_tenants(self, queue: str) -> JobStream:
        members = (
            self._tenant_member(queue, row) for row in self._tenant_queues(_TENANT_QUEUES_BY_TURN, "start", queue)
        )
        time = queue_time(self._tx, queue)
        found = FairStream(members, time, self._rules.fair_queues[queue], self._warm)
        self._rounds.append((found, partial(serve_tenants, self._tx, queue)))
        return found

    def _tenant_member(self, queue: str, row: Row) -> Member:
        start, arrival, priority, tenant_queue, tenant = row
        place = (priority, arrival)
        if turns_of(self._rules, tenant, queue) == TASK_TURNS:
            other = self._other(_OTHER_OF_TASKS, tenant_queue, tenant)
            return Member(tenant, start, place, self._by_tasks(tenant_queue, tenant, queue), other, tenant)
        streams = self._lane_streams(lambda after, size: self._heads(_OF_TENANT_QUEUE, tenant_queue, after, size))
        return Member(
            tenant, start, place, MergedStream(streams), self._other(_OTHER_OF_TENANT_QUEUE, tenant_queue), tenant
        )

    def _by_tasks(self, tenant_queue: int, tenant: str, queue: str) -> JobStream:
        members = (
            self._task_member(tenant_queue, tenant, row)
            for row in self._members(tenant_queue)
            if self._knows(tenant, row[3])
        )
        weights = task_weights(self._rules, tenant, queue) or {}
        found = FairStream(members, task_time(self._tx, tenant_queue), weights, self._warm)
        self._rounds.append((found, partial(serve_tasks, self._tx, tenant_queue)))
        return found

    def _task_member(self, tenant_queue: int, tenant: str, row: Row) -> Member:
        start, arrival, priority, task = row
        streams = self._lane_streams(lambda after, size: self._tx.rows(_OF_TASK, tenant_queue, *after, size, task))
        return Member(task, start, (priority, arrival), MergedStream(streams), None, tenant, task)

    def _knows(self, tenant: str, task: str) -> bool:
        return self._tasks is None or task in self._tasks or f"{tenant}/{task}" in self._tasks

    def _other(self, statement: str, tenant_queue: int, *tenant: str) -> Position | None:
        if not self._tasks:
            return None
        found = self._tx.first(statement, tenant_queue, text_array(self._tasks), *tenant)
        return None if found is None else (found[0], found[1])

    def _heads(self, heads: Heads, of: int | str, after: Position, size: int) -> Sequence[Row]:
        if self._tasks is None:
            return self._tx.rows(heads.all, of, *after, size)
        if not self._tasks:
            return []
        return self._tx.rows(heads.some, of, *after, size, text_array(self._tasks))

    def _lane_streams(self, fetch: Fetch) -> Iterator[tuple[Position, JobStream]]:
        for priority, arrival, id, _ in self._pages(fetch):
            yield (
                (priority, arrival),
                LaneStream(self._tx, self._admission, self._tx.lanes.get(id), (priority, arrival)),
            )

    def _tenant_queues(self, statement: str, order: str, queue: str) -> Iterator[Row]:
        if self._tenant is not None:
            return iter(self._tx.rows(_ONE_TENANT_QUEUE.format(order), self._tenant, queue))
        return self._pages(lambda after, size: self._tx.rows(statement, queue, *after, size))

    def _members(self, tenant_queue: int) -> Iterator[Row]:
        return self._pages(lambda after, size: self._tx.rows(_TASKS_BY_TURN, tenant_queue, *after, size))

    def _pages(self, fetch: Fetch) -> Iterator[Row]:
        """Rows of an index, page by page."""
        size = self._slots
        rows = fetch(BEFORE_ALL, size)
        while rows:
            yield from rows
            if len(rows) < size or self._admission.budget_spent:
                return
            size = min(2 * size, MOST_READ_AHEAD)
            rows = fetch(rows[-1][:2], size)


# Claims

SeenWorkers = dict[str, int]
"""By worker: when this store last wrote that it was seen."""

MOST_SEEN = 1000

_SEEN = "UPDATE worker SET seen_at = ?2, until = ?3 WHERE id = ?1 AND until > ?2 AND seen_at <= ?4"
_CLAIMED_BEFORE = "SELECT job FROM lease WHERE worker = ? AND token = ?"

_START = f"""
    UPDATE job SET state = {RUNNING}, attempt = attempt + 1, reason = NULL, worker = ?2, node = ?3, pid = NULL,
        started_at = ?4, updated_at = ?4, expires_at = NULL
    WHERE seq IN carray(?1) RETURNING {FIRST_RUN_COLUMNS}
"""
_SET_TIER = """
    WITH assignment (seq, assigned, seconds) AS (VALUES {rows})
    UPDATE job SET assigned = assignment.assigned, seconds = assignment.seconds
    FROM assignment WHERE job.seq = assignment.seq
"""
_ADD_LEASES = "INSERT INTO lease (job, worker, token, until) SELECT value, ?2, ?3, ?4 FROM carray(?1)"
_DROP_PROGRESS = "DELETE FROM progress WHERE job IN carray(?)"


def claim(tx: Transaction, request: ClaimRequest, seen: SeenWorkers) -> list[Record]:
    worker = request.worker
    if request.heard:
        _note_seen(tx, worker.id, request.lease, seen)
    if request.repeatable and (taken := tx.column(_CLAIMED_BEFORE, worker.id, request.nonce)):
        return _repeat(tx, request, taken)
    picks = _pick(tx, request)
    if not picks:
        return []
    numbers: defaultdict[int, int] = defaultdict(int)
    for pick in picks:
        numbers[pick.lane] += 1
    for lane, number in numbers.items():
        tx.count(lane, QUEUED, -number)
        tx.count(lane, RUNNING, number)
    seqs = [pick.seq for pick in picks]
    wanted = int_array(seqs)
    place = encoding.encode_node(worker)
    started = {row[0]: row for row in tx.rows(_START, wanted, worker.id, place or None, tx.now)}
    tx.run_all(_SET_TIER, [(seq, tier.name, tier.seconds) for seq, _, tier in picks if tier is not None])
    tx.run(_ADD_LEASES, wanted, worker.id, request.nonce, tx.now + span(request.lease))
    run = StartedRun(worker.id, encoding.decode_place(place)[0], request.nonce)
    others = [seq for seq, _, tier in picks if tier is not None or not started[seq][-1]]
    if not others:
        return list(first_run_records(tx, [started[seq] for seq in seqs], run))
    tx.run(_DROP_PROGRESS, int_array(others))
    found = dict(zip(others, records_by_seq(tx, others, handed_out=True), strict=True))
    firsts = first_run_records(tx, [started[seq] for seq in seqs if seq not in found], run)
    return [found[seq] if seq in found else next(firsts) for seq in seqs]


def _note_seen(tx: Transaction, id: str, lease: float, seen: SeenWorkers) -> None:
    """A worker was seen; written at most once in `SEEN_EVERY` seconds."""
    if tx.now - span(SEEN_EVERY) < seen.get(id, 0) <= tx.now:
        return
    tx.run(_SEEN, id, tx.now, tx.now + span(lease), tx.now - span(SEEN_EVERY))
    if tx.changed():
        if len(seen) >= MOST_SEEN:
            seen.clear()
        seen[id] = tx.now


def _repeat(tx: Transaction, request: ClaimRequest, taken: list[int]) -> list[Record]:
    """The jobs that the same claim took before."""
    places = {queue: place for place, queue in enumerate(dict.fromkeys(request.worker.queues))}
    found = zip(taken, records_by_seq(tx, taken, handed_out=True), strict=True)
    ranked = sorted(
        (places.get(record.job.queue, len(places)), record.job.priority, seq, record) for seq, record in found
    )
    return [record for *_, record in ranked]


def _pick(tx: Transaction, request: ClaimRequest) -> list[Pick]:
    """The jobs that come first for the worker, at most as many as it has slots."""
    if request.slots < 1 or not request.worker.queues:
        return []
    unblock_due(tx, tx.rules)
    admission = LaneAdmission(tx, request.slots)
    sources = StreamSources(tx, admission, request)
    picks = list(islice(Rotation(tx, sources, request).picks(), request.slots)) if request.turns else []
    for queue in () if request.turns else dict.fromkeys(request.worker.queues):
        picks += _of_queue(tx, sources, queue, request.slots - len(picks))
        if admission.budget_spent:
            break
    if admission.budget_spent:  # workers that wait claim again
        tx.topics.update(f"work/{queue}" for queue in request.worker.queues)
    admission.write()
    sources.write()
    return picks


def _of_queue(tx: Transaction, sources: StreamSources, queue: str, room: int) -> list[Pick]:
    if room < 1:
        return []
    if not sources.has_turns(queue):
        lanes = sources.lanes(queue, BEFORE_ALL, room)
        if not any(bounded for _, _, _, bounded in lanes):
            return first_jobs(tx, lanes, room)
    picks: list[Pick] = []
    stream = sources.queue(queue)
    while len(picks) < room and stream.first() is not None:
        picks.append(stream.take())
    return picks


class Rotation:
    """Turns within one claim, where no rule sets them: one job of each queue, tenant and task, and again.

    Nothing of this is stored. Each claim begins with another member, by chance, so over many claims all get their
    share. Jobs are looked up only when they are needed.
    """

    def __init__(self, tx: Transaction, sources: StreamSources, request: ClaimRequest) -> None:
        self._tx = tx
        self._sources = sources
        self._request = request

    def picks(self) -> Iterator[Pick]:
        turns = Counter(self._request.worker.queues)
        if "queues" not in self._request.turns:
            return chain.from_iterable(self._of_queue(queue, 1) for queue in turns)
        picks = {queue: self._of_queue(queue, max(1, turns.total() // number)) for queue, number in turns.items()}
        return _in_turn(picks[queue] for queue in turns_of_queues(self._request.nonce, self._request.worker.queues))

    def _of_queue(self, queue: str, sharing: int) -> Iterator[Pick]:
        """`sharing` = how many share the slots."""
        request, sources = self._request, self._sources
        if (
            request.turns <= {"queues"}
            or f"{EVERY_TENANT},{queue}" in request.in_order
            or sources.has_fair_tenants(queue)
        ):
            if sources.has_turns(queue):
                yield from _drained(sources.queue(queue))
            else:
                lanes = partial(sources.lanes, queue, BEFORE_ALL)
                yield from self._first(lanes, sharing, lambda: sources.queue(queue))
            return
        tenants = sources.tenants(queue)
        names = {f"{tenant},{queue}": tenant for tenant in tenants}
        yield from _in_turn(
            self._of_tenant(names[name], queue, tenants[names[name]], sharing * len(names))
            for name in shuffled(request.nonce, names)
        )

    def _of_tenant(self, tenant: str, queue: str, heads: Sequence[Row], sharing: int) -> Iterator[Pick]:
        request, sources = self._request, self._sources
        if sources.has_fair_tasks(tenant, queue):
            yield from _drained(sources.narrowed(tenant).queue(queue))
        elif "tasks" not in request.turns or f"{tenant},{queue}" in request.in_order:
            yield from self._first(lambda _: heads, sharing, lambda: sources.narrowed(tenant).queue(queue))
        else:
            tasks: dict[str, list[Row]] = {}
            for head in heads:
                tasks.setdefault(self._tx.lanes.get(head[2]).task, []).append(head)
            names = {f"{tenant},{queue},{task}": task for task in tasks}
            yield from _in_turn(
                self._of_task(tenant, queue, names[name], tasks[names[name]], sharing * len(names))
                for name in shuffled(request.nonce, names)
            )

    def _of_task(self, tenant: str, queue: str, task: str, heads: Sequence[Row], sharing: int) -> Iterator[Pick]:
        return self._first(lambda _: heads, sharing, lambda: self._sources.narrowed(tenant, task).queue(queue))

    def _first(
        self, heads: Callable[[int], Sequence[Row]], sharing: int, bounded: Callable[[], JobStream]
    ) -> Iterator[Pick]:
        """The jobs of some lanes by priority and arrival: first a share of the slots, then those that are left."""
        slots, had = self._request.slots, 0
        for room in (-(-slots // sharing), slots):
            found = heads(room)
            if any(is_bounded for *_, is_bounded in found):
                yield from islice(_drained(bounded()), had, None)  # those before were not bounded
                return
            picks = first_jobs(self._tx, found, room)
            yield from picks[had:]
            if len(picks) < room:
                return
            had = room


def _drained(stream: JobStream) -> Iterator[Pick]:
    while stream.first() is not None:
        yield stream.take()


def _in_turn(members: Iterable[Iterator[Pick]]) -> Iterator[Pick]:
    """One of each, and again; a member without more jobs is skipped."""
    waiting = deque(members)
    while waiting:
        member = waiting.popleft()
        if (pick := next(member, None)) is not None:
            yield pick
            waiting.append(member)
