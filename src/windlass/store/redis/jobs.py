"""The jobs of a store in Redis: each method is one call of one function, on the partition where its jobs are.

Knows which function answers what; decides nothing.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import zip_longest
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from windlass import system
from windlass.model.errors import Conflict, Invalid, NotReplicated, PartAway
from windlass.model.job import State
from windlass.model.lifecycle import Move
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT, ID_SIZE, JobKey, is_name, key_of, raw_key, text_id
from windlass.model.outcome import Verdict
from windlass.model.output import Chunk
from windlass.model.unique import duplicate_refused, edit_refused
from windlass.store import encoding
from windlass.store.data import (
    MOST_CHILDREN,
    SEEN_EVERY,
    Added,
    ClaimRequest,
    CompletedParent,
    Counts,
    Dependency,
    Draft,
    DrainReply,
    DrainRequest,
    Heartbeat,
    HeartbeatReply,
    JobCount,
    JobSuccess,
    ListScope,
    Overdue,
    OverdueJobs,
    Posted,
    Reading,
    Record,
    RecordPage,
    RunCount,
    StoredResult,
    Sweep,
    SweepReply,
    shuffled,
    sorted_counts,
)
from windlass.store.encoding import from_micros, span
from windlass.store.flow import FreeSlots, NoFreeSlot, Room, StaleRules, TierSlots
from windlass.store.optional import PreparedCommand
from windlass.store.redis import layout
from windlass.store.redis.calls import MOST_IN_A_CALL, Partitions, SkippedQueues, library
from windlass.store.redis.connection import BlockingChannel
from windlass.store.redis.events import GrantedClaims
from windlass.store.redis.flow import HOME, RedisFlow
from windlass.store.redis.urls import Argument

MOST_TENANT_QUEUES, MOST_ROUNDS, MOST_CHUNKS = 100, 20, 200
"""What one page looks at: tenant queues at a time, how often, and chunks of one of them."""

BUDGET_SPENT = 1
"""The answer of a claim that has only blocked lanes so far, as many as one call may: send it again."""

DENIED = 0
"""The answer to yielding jobs for which no slot is free."""

AFTER = "\x01"
"""A name followed by this sorts right behind the name."""

MOST_LOOKS = 20_000
"""Keys that one call looks for to find out whose an id is."""

LAST_PLACE = 10**15 - 1
"""Beyond every place of a tenant queue."""

_TURNS = {"q": "queues", "t": "tenants", "k": "tasks"}
"""Who takes turns, as the library spells it."""

NOTE_EVERY = SEEN_EVERY / 4
MOST_SEEN = 1000


class SeenWorkers:
    """When a worker was last noted as seen, by the machine's own clock: a claim need not note it again and again.

    Where time is virtual, each is noted.
    """

    def __init__(self, *, virtual: bool) -> None:
        self._virtual = virtual
        self._noted: dict[str, float] = {}

    def is_to_be_noted(self, worker: str) -> bool:
        """Whether a worker is to be noted now; then it counts as noted."""
        now = system.monotonic()
        if not self._virtual and now - self._noted.get(worker, -NOTE_EVERY) < NOTE_EVERY:
            return False
        if len(self._noted) >= MOST_SEEN:
            self._noted.clear()
        self._noted[worker] = now
        return True


MOST_LENGTHS = 1000
"""Spelled lengths that are remembered: to spell a number takes longer than all the rest of a command."""

Part = tuple[int, Sequence[int]]
"""A partition, and the indexes of new jobs that are its own."""

ENOUGH = ""
"""The shortfall when enough replicas have it, or none were asked for."""


class RedisJobs:
    """Jobs in Redis."""

    def __init__(self, partitions: Partitions, flow: RedisFlow, granted: GrantedClaims) -> None:
        self.partitions = partitions
        self._flow = flow
        self._granted = granted
        self._seen = SeenWorkers(virtual=not partitions.timed_by_server)
        self._skipped = SkippedQueues(partitions)

    # New jobs

    async def add(
        self, drafts: Sequence[Draft], *, wait_for_replicas: bool = False, slots: FreeSlots | None = None
    ) -> list[Added]:
        if len({draft.group_epoch for draft in drafts}) > 1:
            raise StaleRules
        if slots is not None:
            return await self._admit(drafts, slots, wait_for_replicas=wait_for_replicas)
        added: list[Added | None] = [None] * len(drafts)
        missing, unique = ENOUGH, _are_unique(drafts)
        parts = self.partitions.parts(drafts, self.partition_of)
        for partition, chosen in _unique_first(drafts, parts) if unique else parts:
            some = [drafts[one] for one in chosen]
            to_settle = unique and _are_unique(some)
            function, first = ("add_unique", [layout.unique_arguments(some)]) if to_settle else ("add", [])
            try:
                reply, shortfall = await self.add_to(
                    function, partition, some, first=first, wait_for_replicas=wait_for_replicas
                )
            except StaleRules:
                raise StaleRules(added) from None
            if isinstance(reply, bytes):
                raise _rejected(some, reply)
            missing = missing or shortfall
            for one, new in zip(chosen, layout.added(reply) if first else map(bool, reply), strict=True):
                added[one] = new
        if missing:
            raise NotReplicated(missing)
        return [new for new in added if new is not None]

    def partition_of(self, draft: Draft) -> int:
        return self.partitions.of_queue(draft.new.queue)

    async def add_to(
        self,
        function: str,
        partition: int,
        drafts: Sequence[Draft],
        more: Sequence[Argument] = (),
        *,
        first: Sequence[Argument] = (),
        wait_for_replicas: bool = False,
    ) -> tuple[Any, str]:
        """The answer for new jobs of one partition, and what is missing until enough replicas have them."""
        arguments: list[Argument] = layout.add_arguments(drafts)
        arguments[:0] = first
        arguments += more
        call = self.partitions.call_replicated if wait_for_replicas else self.partitions.call_alone
        try:
            return await call(function, partition, arguments)
        except StaleRules:
            if not drafts or not await self._flow.catch_up(partition, drafts[0].group_epoch):
                raise
        return await call(function, partition, arguments)

    async def _admit(self, drafts: Sequence[Draft], slots: FreeSlots, *, wait_for_replicas: bool) -> list[Added]:
        where = slots.where
        partition, tenant_queue = self.partitions.of_queue(where.queue), f"{where.tenant},{where.queue}"
        keys = {raw_key(draft.id, draft.tenant) for draft in drafts}
        about: list[Argument] = [tenant_queue, slots.ahead, *await self._slots_for(where, partition), len(keys), *keys]
        reply, missing = await self.add_to("admit", partition, drafts, first=about, wait_for_replicas=wait_for_replicas)
        if reply == DENIED:
            raise NoFreeSlot
        if missing:
            raise NotReplicated(missing)
        return [bool(new) for new in reply]

    async def _slots_for(self, where: TierSlots, partition: int) -> list[Argument]:
        """The workers, each with the slots that it has for one partition: those that others use are taken off."""
        slots = dict(where.slots)
        if self.partitions.number > 1:
            for number, held in (await self.partitions.each_there("count_running")).items():
                for name, count in zip(held[::2], held[1::2], strict=True):
                    if number != partition and (worker := name.decode()) in slots:
                        slots[worker] -= int(count)
        return [len(slots), *(word for pair in slots.items() for word in pair)]

    # Runs

    async def claim(self, request: ClaimRequest) -> list[Record]:
        if (granted := self._granted.take(request)) is not None:
            return granted
        runs = self._runs_of_queues(self._order_of_queues(request))
        if request.heard and HOME not in dict(runs) and self._seen.is_to_be_noted(request.worker.id):
            with suppress(PartAway):
                await self.partitions.call("note_seen", HOME, [request.worker.id, span(request.lease)])
        runs = self._skipped.there(runs)
        if len(runs) > 1 and request.repeatable:
            # Whether this is a claim sent again must be known of all partitions before the first gives anything new.
            again = [record for run in runs for record in await self._claim(request, *run, slots=0)]
            if again:
                return again
        taken: list[Record] = []
        for place, run in enumerate(runs):
            if (room := request.slots - len(taken)) > 0:
                left = sum(len(queues) for _, queues in runs[place:])
                share = -(-room * len(run[1]) // left) if "queues" in request.turns else room
                taken += await self._claim(request, *run, slots=share)
        return taken

    def _order_of_queues(self, request: ClaimRequest) -> Sequence[str]:
        """Where they take turns, those of one partition are neighbours: what it has is known to one call alone."""
        queues = request.worker.queues
        if "queues" not in request.turns or self.partitions.number == 1:
            return queues
        queues = shuffled(request.nonce, queues)
        partitions = list(dict.fromkeys(map(self.partitions.of_queue, queues)))
        return sorted(queues, key=lambda queue: partitions.index(self.partitions.of_queue(queue)))

    async def _claim(self, request: ClaimRequest, partition: int, queues: list[str], *, slots: int) -> list[Record]:
        worker, tasks = request.worker, request.worker.tasks or []
        repeatable = "1" if request.repeatable else "0"
        place = encoding.encode_node(worker)
        about: list[Argument] = [request.nonce, repeatable, worker.id, place, span(request.lease), slots, worker.tenant]
        heard = request.heard and partition == HOME and self._seen.is_to_be_noted(worker.id)
        about += ("1" if heard else "0", span(self._stay(request)))
        turns = "".join(letter for letter, who in _TURNS.items() if who in request.turns)
        about += (
            len(tasks),
            len(request.warm),
            turns,
            len(request.in_order),
            *tasks,
            *request.warm,
            *request.in_order,
            *queues,
        )
        reply = await self.partitions.call("claim", partition, about)
        while reply == BUDGET_SPENT:
            reply = await self.partitions.call("claim", partition, about)
        return layout.claimed(reply, request)

    def _stay(self, request: ClaimRequest) -> float:
        """How long a claim is parked: not at all where one call cannot grant it, or cannot know that it is heard."""
        whole = request.repeatable and len(self._runs_of_queues(self._order_of_queues(request))) == 1
        return request.stays if whole and self.partitions.connection.cluster is None else 0.0

    def _runs_of_queues(self, queues: Sequence[str]) -> list[tuple[int, list[str]]]:
        """The queues in their order, neighbours of one partition together."""
        runs: list[tuple[int, list[str]]] = []
        for queue in queues:
            number = self.partitions.of_queue(queue)
            if runs and runs[-1][0] == number:
                runs[-1][1].append(queue)
            else:
                runs.append((number, [queue]))
        return runs

    async def heartbeat(self, beats: Sequence[Heartbeat], lease: float) -> list[HeartbeatReply]:
        if self.partitions.number > 1 and (unheard := {one.id for one in beats if self._goes_unheard(one)}):
            heard = iter(await self.heartbeat([one for one in beats if one.id not in unheard], lease))
            # The partition says whether they are still held when it is back: until then no other worker gets them.
            return [HeartbeatReply(one.id, held=True) if one.id in unheard else next(heard) for one in beats]
        replies = await self.partitions.spread(
            "heartbeat",
            beats,
            lambda beat: self.partitions.of_id(beat.id),
            lambda some: [span(lease), *layout.heartbeat_arguments(some)],
            width=4,
        )
        return [layout.heartbeat_reply(beat.id, *reply) for beat, reply in zip(beats, replies, strict=True)]

    def _goes_unheard(self, beat: Heartbeat) -> bool:
        """Whether a sign of life, which says no more than that, is for a partition that is away."""
        says_more = beat.pid is not None or beat.progress is not None or beat.output
        return not says_more and isinstance(self.partitions.fault(self.partitions.of_id(beat.id)), PartAway)

    async def succeed(self, successes: Sequence[JobSuccess]) -> list[bool]:
        replies = await self.partitions.spread(
            "succeed", successes, lambda done: self.partitions.of_id(done.id), layout.succeed_arguments
        )
        return [bool(held) for held in replies]

    async def apply(self, moves: Sequence[Move], room: Room | None = None) -> list[bool]:
        if room is not None:
            return await self._make_room(moves, room)
        if any(move.edit is not None for move in moves):
            return [await self._write(move) for move in moves]
        replies = await self.partitions.spread(
            "apply", moves, lambda move: self.partitions.of_id(move.id), layout.apply_arguments
        )
        return [bool(written) for written in replies]

    async def _write(self, move: Move) -> bool:
        """One move, which may be an edit: that takes memory, and so has a function of its own."""
        if move.edit is None:
            return (await self.apply([move]))[0]
        new = move.edit.new
        if new is not None and self.partitions.of_queue(new.queue) != self.partitions.of_id(move.id):
            raise Invalid(f"queue {new.queue} is in another partition of the cluster: run a copy there", at="queue")
        about = [*layout.apply_arguments([move]), *layout.edit_arguments(move.tenant, move.edit)]
        written = await self.partitions.call("edit", self.partitions.of_id(move.id), about)
        if isinstance(written, bytes):
            _, state, other = layout.REJECTED.unpack(written)
            raise edit_refused(text_id(other), layout.STATES[state])
        return bool(written)

    async def _make_room(self, moves: Sequence[Move], room: Room) -> list[bool]:
        where = room.where
        partition, tenant_queue = self.partitions.of_queue(where.queue), f"{where.tenant},{where.queue}"
        slots = await self._slots_for(where, partition)
        about: list[Argument] = [tenant_queue, layout.ORDER_REASONS, *slots, len(room.may_stop)]
        about += [*(raw_key(*key) for key in room.may_stop), len(room.ahead), *(raw_key(*key) for key in room.ahead)]
        replies = await self.partitions.call("make_room", partition, [*about, *layout.room_arguments(moves, room)])
        return [bool(written) for written in replies]

    async def read(self, keys: Sequence[JobKey], *, payload: bool = False) -> Reading:
        groups: dict[int, list[bytes]] = {}
        for key in keys:
            groups.setdefault(self.partitions.of_id(key.id), []).append(raw_key(*key))
        found: dict[JobKey, Record] = {}
        now = None
        for number, some in groups.items():
            for start in range(0, len(some), MOST_IN_A_CALL):
                part = some[start : start + MOST_IN_A_CALL]
                stamp, *reply = await self.partitions.call("read", number, ["1" if payload else "0", *part])
                now = from_micros(int(stamp))
                for record in layout.records(reply, whole=payload):
                    found[key_of(record.job)] = record
        return Reading(now or await self._now(), [found.get(key) for key in keys])

    async def _now(self) -> datetime:
        return from_micros(int(await self.partitions.call("now", HOME)))

    async def tenants_with(self, ids: Sequence[str]) -> list[list[str]]:
        found: list[list[str]] = [[] for _ in ids]
        for partition, chosen in self.partitions.parts(ids, self.partitions.of_id):
            rest = list(chosen)
            while rest:
                named = [raw_key(ids[place], DEFAULT_TENANT) for place in rest]
                reply = await self.partitions.call("tenants_with", partition, [MOST_LOOKS, *named])
                for place, tenants in zip(rest, reply, strict=False):
                    found[place] = sorted(tenant.decode() for tenant in tenants)
                rest = rest[len(reply) :]
        return found

    async def results(self, keys: Sequence[JobKey], *, spend: bool = True) -> list[StoredResult | None]:
        replies = await self.partitions.spread(
            "results",
            keys,
            lambda key: self.partitions.of_id(key.id),
            lambda some: [int(spend), *(raw_key(*key) for key in some)],
        )
        return [None if reply is None else layout.kept(reply) for reply in replies]

    async def output(self, key: JobKey, after: int, limit: int) -> list[Chunk]:
        partition = self.partitions.of_id(key.id)
        return layout.chunks(await self.partitions.call("output", partition, [raw_key(*key), after, limit]))

    async def counts(self, tenant: str) -> Counts:
        jobs: list[JobCount] = []
        runs: list[RunCount] = []
        for states, outcomes in await self.partitions.each("counts", [tenant]):
            jobs += (
                JobCount(owner, queue, task, layout.STATES[int(state)], count)
                for owner, queue, task, state, count in _numbers(states)
            )
            runs += (
                RunCount(owner, queue, task, Verdict(outcome), count)
                for owner, queue, task, outcome, count in _numbers(outcomes)
            )
        return sorted_counts(jobs, runs)

    async def sweep(self, sweep: Sweep, limit: int) -> SweepReply:
        if sweep is Sweep.UNBLOCK:
            return SweepReply(await self._flow.unblock_ready(limit))
        due = layout.swept(await self.partitions.up_to(sweep.value, limit))
        return SweepReply(len(due), due)

    async def next_due(self, sweep: Sweep, queues: Sequence[str] = ()) -> float | None:
        if sweep is Sweep.UNBLOCK:
            return await self._flow.next_opening(queues)
        found = (await self.partitions.each_there("next_run")).values()
        return min((int(micros) / 1e6 for micros in found if micros is not None), default=None)

    async def overdue(self, clock: Overdue, limit: int) -> OverdueJobs:
        found: list[tuple[float, Record]] = []
        replies = await self.partitions.each_there("overdue", [clock.value, limit])
        for _, times, *reply in replies.values():
            found += zip(map(float, times), layout.records(reply, whole=False), strict=True)
        found.sort(key=lambda pair: pair[0])
        now = from_micros(min(int(stamp) for stamp, *_ in replies.values()))
        records = [record for _, record in found[:limit]]
        sources = [self.partitions.of_id(record.job.id) for record in records]
        return OverdueJobs(now, records, sources, list(replies))

    async def add_dependencies(self, edges: Sequence[Dependency]) -> list[State | None]:
        states = await self.partitions.spread(
            "add_dependencies",
            edges,
            lambda edge: self.partitions.of_id(edge.parent),
            lambda some: [word for edge in some for word in (_bare(edge.parent), edge.tenant, _bare(edge.child))],
        )
        return [layout.STATES[state] if state < len(layout.STATES) else None for state in states]

    async def completed_parents(self, done: Sequence[CompletedParent], limit: int) -> list[CompletedParent]:
        await self.partitions.spread(
            "completed_parents",
            done,
            lambda one: self.partitions.of_id(one.id),
            lambda some: [0, 0, *layout.completed_parent_arguments(some)],
        )
        if not limit:
            return []
        replies = await self.partitions.each_there("completed_parents", [limit, MOST_CHILDREN])
        found = zip_longest(*(layout.completed_parents(reply) for reply in replies.values()))
        # By turns: those of one partition that cannot be followed now do not keep the others off.
        return [one for turn in found for one in turn if one is not None][:limit]

    async def post(self, key: JobKey, message: bytes, most: int | None = None) -> Posted:
        arguments: list[Argument] = [raw_key(*key), message, "" if most is None else most]
        reply = await self.partitions.call("post", self.partitions.of_id(key.id), arguments)
        return Posted(reply.decode())

    async def _tenant_queues(self, scope: ListScope, start: str) -> list[str]:
        """Names of the tenant's queues from one on, in order, not more than `MOST_TENANT_QUEUES`."""
        first, end = start, ""
        if scope.tenant != EVERY_TENANT:
            first, end = max(start, f"{scope.tenant},"), f"{scope.tenant}-"
        replies = await self.partitions.each("tenant_queues", [first, end, MOST_TENANT_QUEUES])
        return sorted(name.decode() for reply in replies for name in reply)[:MOST_TENANT_QUEUES]

    async def list(self, scope: ListScope, after: str | None, limit: int) -> RecordPage:
        tenant_queue, place = _cursor(after)
        found: list[Record] = []
        states = sorted(layout.STATE_NUMBERS[state] for state in scope.states)
        first, last = (LAST_PLACE, 0) if scope.newest_first else (0, LAST_PLACE)
        start = tenant_queue
        for _ in range(MOST_ROUNDS):
            names = await self._tenant_queues(scope, start)
            for name in names:
                if name != tenant_queue:
                    tenant_queue, place = name, first
                queue = name.partition(",")[2]
                if scope.queue not in (None, queue):
                    continue
                order = "1" if scope.newest_first else "0"
                asked: list[Argument] = [name, place, limit - len(found), MOST_CHUNKS, order, *states]
                place, ended, *reply = await self.partitions.call("list", self.partitions.of_queue(queue), asked)
                found += layout.records(reply, whole=False)
                if len(found) == limit or not ended:
                    return RecordPage(found, f"{name},{place}")
            if len(names) < MOST_TENANT_QUEUES:
                return RecordPage(found, None)
            start = names[-1] + AFTER
        return RecordPage(found, f"{names[-1]},{last}")


def _are_unique(drafts: Sequence[Draft]) -> bool:
    """Whether one of them is unique."""
    return bool([draft for draft in drafts if draft.identity])  # takes less time than `any`


def _unique_first(drafts: Sequence[Draft], parts: Iterable[Part]) -> list[Part]:
    """Those with unique jobs come first: they may be refused."""
    return sorted(parts, key=lambda part: not _are_unique([drafts[one] for one in part[1]]))


def _rejected(drafts: Sequence[Draft], reply: bytes) -> Conflict:
    number, state, id = layout.REJECTED.unpack(reply)
    return duplicate_refused(drafts[number - 1].new, text_id(id), layout.STATES[state])


def _numbers(reply: Sequence[Any]) -> Iterator[tuple[str, str, str, str, int]]:
    """What `counts` answers, as tenant, queue, task, state or outcome, number."""
    for tenant, numbers in zip(reply[::2], reply[1::2], strict=True):
        for field, number in zip(numbers[::2], numbers[1::2], strict=True):
            queue, task, kind = field.decode().split(",")
            yield tenant.decode(), queue, task, kind, int(number)


def _bare(id: str) -> bytes:
    return raw_key(id, DEFAULT_TENANT)


def _cursor(after: str | None) -> tuple[str, int]:
    """The tenant queue and the place that a cursor names."""
    if after is None:
        return "", 0
    tenant, _, rest = after.partition(",")
    queue, _, place = rest.partition(",")
    if (
        is_name(tenant)
        and is_name(queue)
        and place.isascii()
        and place.isdigit()
        and len(place) <= len(str(LAST_PLACE))
    ):
        return f"{tenant},{queue}", int(place)
    raise Invalid("not a place in a listing: give `next` of the page before", at="after")


class RedisJournal:
    """The target of journals."""

    def __init__(self, jobs: RedisJobs, ready: Callable[[], Awaitable[None]]) -> None:
        self._jobs = jobs
        self._ready = ready
        replicas = jobs.partitions.connection.replicas
        self.replicated_within = None if replicas is None else replicas.within

    @property
    def partition_count(self) -> int:
        return self._jobs.partitions.number

    async def ready(self) -> None:
        await self._ready()

    def partition_of(self, draft: Draft) -> int:
        return self._jobs.partition_of(draft)

    async def drain(self, request: DrainRequest) -> DrainReply:
        about: list[Argument] = [request.journal, request.since, request.upto]
        wait = request.wait_for_replicas
        reply, missing = await self._jobs.add_to(
            "drain", request.partition, request.drafts, about, wait_for_replicas=wait
        )
        shortfall = missing if wait else None
        if isinstance(reply, bytes):
            return DrainReply(int(reply), shortfall=shortfall)
        return DrainReply(request.upto, [bool(new) for new in reply], shortfall)


class RedisPreparation:
    """Prepares commands for callers without an event loop, whose jobs wait for no replicas."""

    def __init__(self, channel: BlockingChannel, jobs: RedisJobs) -> None:
        self._channel = channel
        self._jobs = jobs

    def command(self, example: Draft) -> PreparedCommand | None:
        if not layout.is_bare(example):
            return None
        return PreparedAdd(self._channel, self._jobs.partitions.key(self._jobs.partition_of(example)), example)


class PreparedAdd:
    """The command that adds a lone job like an example, packed but for the job's id and payload.

    Takes one answer, of a call that has stored the job or had it; with any other, the caller adds the job by `add`.
    """

    def __init__(self, channel: BlockingChannel, key: str, example: Draft) -> None:
        self._channel = channel
        self.invalid = False
        blank = replace(example, new=replace(example.new, payload=Raw()))
        *common, about, body = layout.add_arguments([blank])
        meta, self._body = _bytes(about)[ID_SIZE:], _bytes(body)
        words: list[Argument] = ["FCALL", library().function("add"), 1, key, 0, *common]
        front = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in map(_bytes, words))
        self._before_id = b"*%d\r\n%b$%d\r\n" % (len(words) + 2, front, ID_SIZE + len(meta))
        self._after_id = meta + b"\r\n"

    def __call__(self, id: bytes, payload: bytes) -> bool | None:
        reply = self._channel.ask_at_once(self._packed(id, payload))
        if type(reply) is list:
            return bool(reply[0])
        if reply is not None:
            self.invalid = True
        return None

    def _packed(self, id: bytes, payload: bytes) -> bytes:
        body = self._body
        length = len(body) + len(payload)
        size = _lengths.get(length) or _spelled(length)
        return b"".join((self._before_id, id, self._after_id, size, body, payload, b"\r\n"))


_lengths: dict[int, bytes] = {}


def _spelled(length: int) -> bytes:
    if len(_lengths) >= MOST_LENGTHS:
        _lengths.clear()
    size = _lengths[length] = b"$%d\r\n" % length
    return size


def _bytes(word: Argument) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()
