"""The store over Redis or Valkey: each method is one call of one function, on the partition where its jobs are.

Knows which function answers what; decides nothing.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from windlass import system
from windlass.model.errors import Invalid, NotReplicated, PartAway, Unavailable
from windlass.model.job import State
from windlass.model.lifecycle import Move, Verdict
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT, ID_SIZE, JobKey, is_name, key_of, raw_key
from windlass.model.output import Chunk, Message
from windlass.model.ports import Clock, Randomness
from windlass.model.worker import NewWorker, Worker
from windlass.store import (
    MOST_CHILDREN,
    SEEN_EVERY,
    AccessRefused,
    ClaimRequest,
    CompletedParent,
    Dependency,
    Draft,
    DueJob,
    Heartbeat,
    HeartbeatReply,
    JobCount,
    JobSuccess,
    Listener,
    ListScope,
    Overdue,
    Reading,
    Record,
    RecordPage,
    StoredResult,
    Sweep,
    encoding,
    shuffled,
)
from windlass.store.beside import DrainReply, DrainRequest, EventStream, OutcomeCount, PreparedCommand
from windlass.store.encoding import from_micros, span
from windlass.store.flow import StaleRules
from windlass.store.mailbox import Posted, Reader
from windlass.store.redis import layout
from windlass.store.redis.calls import MOST_IN_A_CALL, Connection, Partitions, SkippedQueues, library
from windlass.store.redis.connection import BlockingChannel
from windlass.store.redis.events import EventBus, GrantedClaims, Subscriber
from windlass.store.redis.flow import RedisFlow
from windlass.store.redis.urls import Argument, Replicas

MOST_LINES, MOST_ROUNDS, MOST_CHUNKS = 100, 20, 200
"""What one page looks at: names of lines at a time, how often, and chunks of one line."""

BUDGET_SPENT = 1
"""The answer of a claim that has only blocked lanes so far, as many as one call may: send it again."""

HOME = 0
"""The partition where the records of workers are."""

AFTER = "\x01"
"""A name followed by this sorts right behind the name."""

MOST_LOOKS = 20_000
"""Keys that one call looks for to find out whose an id is."""

LAYOUT = "2"
"""Of the keys, as `lua/keys.lua` describes them; kept in the server. In 1 a job's tenant was no part of its key."""

LAST_PLACE = 10**15 - 1
"""Beyond every place of a line."""

_TURNS = {"q": "queues", "t": "tenants", "k": "tasks"}
"""Who takes turns, as the library spells it."""

NOTE_EVERY = SEEN_EVERY / 4
MOST_SEEN = 1000

SPREAD = 16
"""Partitions of a new store on a cluster."""


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

ENOUGH = ""
"""The shortfall when enough replicas have it, or none were asked for."""


class RedisStore(RedisFlow):
    """Jobs in Redis. Made by `open`."""

    def __init__(self, connection: Connection, prefix: str, partitions: int | None, clock: Clock | None) -> None:
        self._connection = connection
        self._prefix = prefix
        self._wanted = partitions
        usual = SPREAD if connection.cluster else 1
        self.partitions = Partitions(connection, prefix, partitions or usual, clock)
        self._subscriber = Subscriber(connection, prefix)
        self._events = EventBus(connection, self._subscriber, prefix)
        self._granted = GrantedClaims()
        self._seen = SeenWorkers(virtual=clock is not None)
        self._skipped = SkippedQueues(self.partitions)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        prefix: str = "wl",
        partitions: int | None = None,
        clock: Clock | None = None,
        chance: Randomness | None = None,
        blocking: bool = False,
        patient: bool = False,
        replicas: Replicas | None = None,
    ) -> "RedisStore":
        """Connect and check the server. The number of partitions is set by the first that opens the store, for good.

        `clock` replaces the server's own clock; only tests and simulations pass one. `chance` spreads the
        questions of many clients to sentinels. A `blocking` store never suspends:
        for callers without an event loop, on one server; it cannot listen. A `patient` one may be opened while the
        server is not there: it answers nothing until `ready` has found it. `replicas` goes before what the address
        says of them.
        """
        if not prefix.isalnum():
            raise Invalid("the prefix is made of letters and digits", at="prefix")
        connection = Connection(url, blocking=blocking, chance=chance, replicas=replicas)
        store = cls(connection, prefix, partitions, clock)
        try:
            await store.ready()
        except BaseException as fault:
            if patient and isinstance(fault, Unavailable) and not isinstance(fault, AccessRefused):
                return store
            await store.close()
            raise
        return store

    async def ready(self) -> None:
        connection = self._connection
        if connection.known:
            return
        await connection.check()
        kept = int(await connection.set_once(f"{self._prefix}:partitions", str(self.partitions.number)))
        if self._wanted not in (None, kept):
            raise Invalid(f"this store has {kept} partitions, not {self._wanted}; that is for good", at="partitions")
        self.partitions.number = kept
        connection.known = True
        try:
            await self._check_layout()
        except BaseException:
            connection.known = False
            raise

    async def _check_layout(self) -> None:
        """Refuse a store whose keys another version made; one that has lost its mark is judged by its jobs."""
        mark = f"{{{self._prefix}:partitions}}:layout"  # in a cluster beside the key of that name
        found = await self._connection.ask(mark, "GET", mark)
        if found is None:
            for tenant in await self.partitions.each("old_layout"):
                if tenant is not None:
                    raise Invalid(
                        f"the store has jobs of tenant {tenant.decode()!r} in an older layout, in which tenants shared"
                        " their ids: finish or delete them with the Windlass that wrote them, or use another database",
                        at="store",
                    )
            found = (await self._connection.set_once(mark, LAYOUT)).encode()
        if found.decode() != LAYOUT:
            known = f"the store has layout {found.decode()}, this Windlass knows {LAYOUT}"
            raise Invalid(f"{known}: use a newer one", at="store")

    async def close(self) -> None:
        await self._subscriber.close()
        await self._connection.close()

    # New jobs

    async def add(self, drafts: Sequence[Draft]) -> list[bool]:
        return await self._add_all(drafts, replicated=False)

    def prepare_add(self, example: Draft) -> PreparedCommand | None:
        channel = self.partitions.connection.channel
        if not isinstance(channel, BlockingChannel) or not self.partitions.timed_by_server:
            return None
        if not layout.is_bare(example):
            return None
        return PreparedAdd(channel, self.partitions.key(self.partition_of(example)), example)

    @property
    def replicated_within(self) -> float | None:
        replicas = self.partitions.connection.replicas
        return None if replicas is None else replicas.within

    async def add_replicated(self, drafts: Sequence[Draft]) -> list[bool]:
        return await self._add_all(drafts, replicated=True)

    @property
    def partition_count(self) -> int:
        return self.partitions.number

    def partition_of(self, draft: Draft) -> int:
        return self.partitions.of_queue(draft.new.queue)

    async def drain(self, request: DrainRequest) -> DrainReply:
        about: list[Argument] = [request.journal, request.since, request.upto]
        reply, missing = await self._add(
            "drain", request.partition, request.drafts, about, replicated=request.wait_for_replicas
        )
        shortfall = missing if request.wait_for_replicas else None
        if isinstance(reply, bytes):
            return DrainReply(int(reply), shortfall=shortfall)
        return DrainReply(request.upto, [bool(new) for new in reply], shortfall)

    async def _add_all(self, drafts: Sequence[Draft], *, replicated: bool) -> list[bool]:
        if len({draft.grouping for draft in drafts}) > 1:
            raise StaleRules
        added: list[bool | None] = [None] * len(drafts)
        missing = ENOUGH
        for partition, chosen in self.partitions.parts(drafts, self.partition_of):
            try:
                reply, shortfall = await self._add(
                    "add", partition, [drafts[one] for one in chosen], replicated=replicated
                )
            except StaleRules:
                raise StaleRules(added) from None
            missing = missing or shortfall
            for one, new in zip(chosen, reply, strict=True):
                added[one] = bool(new)
        if missing:
            raise NotReplicated(missing)
        return [bool(new) for new in added]

    async def _add(
        self,
        function: str,
        partition: int,
        drafts: Sequence[Draft],
        more: Sequence[Argument] = (),
        *,
        replicated: bool = False,
    ) -> tuple[Any, str]:
        """The answer for new jobs of one partition, and what is missing until enough replicas have them."""
        arguments: list[Argument] = layout.add_arguments(drafts)
        arguments += more
        try:
            return await self._call(function, partition, arguments, replicated=replicated)
        except StaleRules:
            if not drafts or not await self.catch_up(partition, drafts[0].grouping):
                raise
        return await self._call(function, partition, arguments, replicated=replicated)

    async def _call(
        self, function: str, partition: int, arguments: list[Argument], *, replicated: bool
    ) -> tuple[Any, str]:
        if replicated:
            return await self.partitions.call_replicated(function, partition, arguments)
        return await self.partitions.call(function, partition, arguments), ENOUGH

    # Runs

    async def claim(self, wish: ClaimRequest) -> list[Record]:
        if (granted := self._granted.take(wish)) is not None:
            return granted
        runs = self._runs_of_queues(self._order_of_queues(wish))
        if wish.heard and HOME not in dict(runs) and self._seen.is_to_be_noted(wish.worker.id):
            with suppress(PartAway):
                await self.partitions.call("note_seen", HOME, [wish.worker.id, span(wish.lease)])
        runs = self._skipped.there(runs)
        if len(runs) > 1 and wish.repeatable:
            # Whether this is a claim sent again must be known of all partitions before the first gives anything new.
            again = [record for run in runs for record in await self._claim(wish, *run, slots=0)]
            if again:
                return again
        taken: list[Record] = []
        for place, run in enumerate(runs):
            if (room := wish.slots - len(taken)) > 0:
                share = -(-room // (len(runs) - place)) if "queues" in wish.turns else room
                taken += await self._claim(wish, *run, slots=share)
        return taken

    def _order_of_queues(self, wish: ClaimRequest) -> Sequence[str]:
        """Where they take turns, those of one partition are neighbours: what it has is known to one call alone."""
        queues = wish.worker.queues
        if "queues" not in wish.turns or self.partitions.number == 1:
            return queues
        queues = shuffled(wish.nonce, queues)
        partitions = list(dict.fromkeys(map(self.partitions.of_queue, queues)))
        return sorted(queues, key=lambda queue: partitions.index(self.partitions.of_queue(queue)))

    async def _claim(self, wish: ClaimRequest, partition: int, queues: list[str], *, slots: int) -> list[Record]:
        worker, tasks = wish.worker, wish.worker.tasks or []
        repeatable = "1" if wish.repeatable else "0"
        place = encoding.encode_node(worker)
        about: list[Argument] = [wish.nonce, repeatable, worker.id, place, span(wish.lease), slots, worker.tenant]
        heard = wish.heard and partition == HOME and self._seen.is_to_be_noted(worker.id)
        about += ("1" if heard else "0", span(self._stay(wish)))
        turns = "".join(letter for letter, who in _TURNS.items() if who in wish.turns)
        about += (len(tasks), len(wish.warm), turns, len(wish.in_order), *tasks, *wish.warm, *wish.in_order, *queues)
        reply = await self.partitions.call("claim", partition, about)
        while reply == BUDGET_SPENT:
            reply = await self.partitions.call("claim", partition, about)
        return layout.claimed(reply, wish)

    def _stay(self, wish: ClaimRequest) -> float:
        """How long a claim is parked: not at all where one call cannot grant it, or cannot know that it is heard."""
        whole = wish.repeatable and len(self._runs_of_queues(self._order_of_queues(wish))) == 1
        return wish.stays if whole and self.partitions.connection.cluster is None else 0.0

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

    async def touch(self, touches: Sequence[Heartbeat], lease: float) -> list[HeartbeatReply]:
        if self.partitions.number > 1 and (unheard := {one.id for one in touches if self._goes_unheard(one)}):
            heard = iter(await self.touch([one for one in touches if one.id not in unheard], lease))
            # The partition says whether they are still held when it is back: until then no other worker gets them.
            return [HeartbeatReply(one.id, held=True) if one.id in unheard else next(heard) for one in touches]
        replies = await self.partitions.spread(
            "renew",
            touches,
            lambda touch: self.partitions.of_id(touch.id),
            lambda some: [span(lease), *layout.touch_arguments(some)],
            width=3,
        )
        return [layout.touched(touch.id, *reply) for touch, reply in zip(touches, replies, strict=True)]

    def _goes_unheard(self, touch: Heartbeat) -> bool:
        """Whether a sign of life, which says no more than that, is for a partition that is away."""
        says_more = touch.pid is not None or touch.progress is not None or touch.output
        return not says_more and isinstance(self.partitions.fault(self.partitions.of_id(touch.id)), PartAway)

    async def succeed(self, dones: Sequence[JobSuccess]) -> list[bool]:
        replies = await self.partitions.spread(
            "finish", dones, lambda done: self.partitions.of_id(done.id), layout.succeed_arguments
        )
        return [bool(held) for held in replies]

    async def apply(self, moves: Sequence[Move]) -> list[bool]:
        replies = await self.partitions.spread(
            "apply", moves, lambda move: self.partitions.of_id(move.id), layout.apply_arguments
        )
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

    async def owners(self, ids: Sequence[str]) -> list[list[str]]:
        found: list[list[str]] = [[] for _ in ids]
        for partition, chosen in self.partitions.parts(ids, self.partitions.of_id):
            rest = list(chosen)
            while rest:
                named = [raw_key(ids[place], DEFAULT_TENANT) for place in rest]
                reply = await self.partitions.call("tenants_of_ids", partition, [MOST_LOOKS, *named])
                for place, tenants in zip(rest, reply, strict=False):
                    found[place] = sorted(tenant.decode() for tenant in tenants)
                rest = rest[len(reply) :]
        return found

    async def result(self, key: JobKey) -> StoredResult | None:
        reply = await self.partitions.call("result", self.partitions.of_id(key.id), [raw_key(*key)])
        return None if reply is None else layout.kept(reply)

    async def output(self, key: JobKey, after: int, limit: int) -> list[Chunk]:
        partition = self.partitions.of_id(key.id)
        return layout.chunks(await self.partitions.call("output", partition, [raw_key(*key), after, limit]))

    async def page(self, scope: ListScope, after: str | None, limit: int) -> RecordPage:
        line, place = _cursor(after)
        found: list[Record] = []
        states = sorted(layout.STATE_NUMBERS[state] for state in scope.states)
        first, last = (LAST_PLACE, 0) if scope.newest_first else (0, LAST_PLACE)
        start = line
        for _ in range(MOST_ROUNDS):
            lines = await self._lines(scope, start)
            for name in lines:
                if name != line:
                    line, place = name, first
                queue = name.partition(",")[2]
                if scope.queue not in (None, queue):
                    continue
                order = "1" if scope.newest_first else "0"
                asked: list[Argument] = [name, place, limit - len(found), MOST_CHUNKS, order, *states]
                place, ended, *reply = await self.partitions.call("page", self.partitions.of_queue(queue), asked)
                found += layout.records(reply, whole=False)
                if len(found) == limit or not ended:
                    return RecordPage(found, f"{name},{place}")
            if len(lines) < MOST_LINES:
                return RecordPage(found, None)
            start = lines[-1] + AFTER
        return RecordPage(found, f"{lines[-1]},{last}")

    async def _lines(self, scope: ListScope, start: str) -> list[str]:
        """Names of the tenant's lines from one on, in order, not more than `MOST_LINES`."""
        first, end = start, ""
        if scope.tenant != EVERY_TENANT:
            first, end = max(start, f"{scope.tenant},"), f"{scope.tenant}-"
        replies = await self.partitions.each("lines", [first, end, MOST_LINES])
        return sorted(name.decode() for reply in replies for name in reply)[:MOST_LINES]

    async def count_jobs(self, tenant: str) -> list[JobCount]:
        found = []
        for reply in await self.partitions.each("count_jobs", [tenant]):
            for place in range(0, len(reply), 2):
                numbers = reply[place + 1]
                for field in range(0, len(numbers), 2):
                    queue, task, state = numbers[field].decode().split(",")
                    number = int(numbers[field + 1])
                    found.append(JobCount(reply[place].decode(), queue, task, layout.STATES[int(state)], number))
        return sorted(found, key=lambda tally: (tally.tenant, tally.queue, tally.task, tally.state))

    async def outcomes(self, tenant: str) -> list[OutcomeCount]:
        found = []
        for reply in await self.partitions.each("count_outcomes", [tenant]):
            for place in range(0, len(reply), 2):
                numbers = reply[place + 1]
                for field in range(0, len(numbers), 2):
                    queue, task, outcome = numbers[field].decode().split(",")
                    found.append(
                        OutcomeCount(reply[place].decode(), queue, task, Verdict(outcome), int(numbers[field + 1]))
                    )
        return sorted(found, key=lambda ran: (ran.tenant, ran.queue, ran.task, ran.outcome))

    async def sweep(self, clock: Sweep, limit: int) -> list[DueJob]:
        return layout.swept(await self.partitions.up_to("promote" if clock is Sweep.RUN else "purge", limit))

    async def next_run(self) -> float | None:
        found = (await self.partitions.each_there("next_run")).values()
        return min((int(micros) / 1e6 for micros in found if micros is not None), default=None)

    async def overdue(self, clock: Overdue, limit: int) -> Reading:
        found: list[tuple[float, Record]] = []
        replies = await self.partitions.each_there("overdue", [clock.value, limit])
        for _, times, *reply in replies.values():
            found += zip(map(float, times), layout.records(reply, whole=False), strict=True)
        found.sort(key=lambda pair: pair[0])
        now = from_micros(min(int(stamp) for stamp, *_ in replies.values()))
        records: list[Record | None] = [record for _, record in found[:limit]]
        return Reading(now, records, self.partitions.number, list(replies))

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
        found = zip_longest(*(layout.ripened(reply) for reply in replies.values()))
        # By turns: those of one partition that cannot be followed now do not keep the others off.
        return [one for turn in found for one in turn if one is not None][:limit]

    async def register_worker(self, id: str, tenant: str, worker: NewWorker, lease: float) -> None:
        await self.partitions.call("register_worker", HOME, [id, span(lease), tenant, msgspec.msgpack.encode(worker)])

    async def worker_heartbeat(self, id: str, tenant: str, lease: float) -> Worker | None:
        reply = await self.partitions.call("renew_worker", HOME, [id, span(lease), tenant])
        return (await self._workers(reply))[0] if reply else None

    async def workers(self, tenant: str) -> list[Worker]:
        alive = await self._workers(await self.partitions.call("workers", HOME))
        own = [worker for worker in alive if tenant in (EVERY_TENANT, worker.tenant)]
        return sorted(own, key=lambda worker: (worker.registered_at, worker.id))

    async def _workers(self, reply: list[bytes]) -> list[Worker]:
        running: dict[str, int] = {}
        for held in (await self.partitions.each_there("count_running")).values():
            for place in range(0, len(held), 2):
                name = held[place].decode()
                running[name] = running.get(name, 0) + int(held[place + 1])
        return [
            Worker(
                **msgspec.structs.asdict(msgspec.msgpack.decode(record, type=NewWorker)),
                id=id.decode(),
                tenant=tenant.decode(),
                running=running.get(id.decode(), 0),
                registered_at=from_micros(int(registered)),
                seen_at=from_micros(int(seen)),
            )
            for id, tenant, record, registered, seen in (reply[at : at + 5] for at in range(0, len(reply), 5))
        ]

    async def unregister_worker(self, id: str) -> bool:
        return bool(await self.partitions.call("unregister_worker", HOME, [id]))

    async def post(self, key: JobKey, data: bytes) -> Posted:
        reply = await self.partitions.call("send_message", self.partitions.of_id(key.id), [raw_key(*key), data])
        return Posted(reply.decode())

    async def collect(self, readers: Sequence[Reader]) -> list[list[Message]]:
        there = [one for one in readers if self.partitions.fault(self.partitions.of_id(one.id)) is None]
        replies = await self.partitions.spread(
            "take_messages", there, lambda reader: self.partitions.of_id(reader.id), layout.collect_arguments
        )
        found = {one: layout.messages(reply) for one, reply in zip(there, replies, strict=True)}
        return [found.get(one, []) for one in readers]

    async def put(self, kind: str, name: str, data: bytes | None) -> None:
        if data is None:
            await self.partitions.call("drop_record", HOME, [kind, name])
        else:
            await self.partitions.call("put_record", HOME, [kind, name, data])

    async def swap(self, kind: str, name: str, before: bytes | None, after: bytes | None) -> bool:
        there = [word for data in (before, after) for word in ("" if data is None else "1", data or b"")]
        return bool(await self.partitions.call("swap_record", HOME, [kind, name, *there]))

    async def list_records(self, kind: str) -> dict[str, bytes]:
        found = await self.partitions.call("records", HOME, [kind])
        return {found[at].decode(): found[at + 1] for at in range(0, len(found), 2)}

    @asynccontextmanager
    async def listen(self, topics: Sequence[str]) -> AsyncIterator[Listener]:
        with self._granted.listener() as listener:
            async with self._subscriber.listen(topics, listener):
                for topic in topics:
                    kind, _, name = topic.partition("/")
                    if kind == "end":
                        key = JobKey(*name.split("/"))
                        await self.partitions.call("await_end", self.partitions.of_id(key.id), [raw_key(*key)])
                yield listener

    @property
    def quiet(self) -> bool:
        return self._events.quiet

    async def publish(self, news: Sequence[str]) -> None:
        await self._events.publish(news)

    def watch(self) -> AbstractAsyncContextManager[EventStream]:
        return self._events.watch()


def _bare(id: str) -> bytes:
    return raw_key(id, DEFAULT_TENANT)


def _cursor(after: str | None) -> tuple[str, int]:
    """The line and the place that a cursor names."""
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


class PreparedAdd:
    """The command that adds a lone job like an example, packed but for the job's id and payload.

    Takes one answer, of a call that has stored the job or had it; with any other, the caller adds the job by `add`.
    """

    def __init__(self, channel: BlockingChannel, key: str, example: Draft) -> None:
        self._channel = channel
        self.shut = False
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
            self.shut = True
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
