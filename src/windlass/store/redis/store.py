"""The store over Redis or Valkey: each method is one call of one script, on the partition that its jobs lie in.

Knows which script answers what; decides nothing.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from itertools import zip_longest

import msgspec

from windlass.model.errors import Invalid, PartAway, Unavailable
from windlass.model.job import Chunk, Message, State
from windlass.model.lifecycle import Move, Verdict
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT, JobKey, is_name, key_of, raw_key
from windlass.model.ports import Chance, Clock
from windlass.model.worker import NewWorker, Worker
from windlass.store import (
    MOST_CHILDREN,
    Done,
    Edge,
    Kept,
    Listener,
    NotLetIn,
    Overdue,
    Reading,
    Record,
    Ripe,
    Scope,
    Slice,
    Sweep,
    Swept,
    Tally,
    Touch,
    Touched,
    Wish,
    places,
    shuffled,
)
from windlass.store.beside import Ran, Watch
from windlass.store.mailbox import Posted, Reader
from windlass.store.micros import from_micros, span
from windlass.store.redis import answers, layout
from windlass.store.redis.adding import RedisAdding
from windlass.store.redis.address import Argument
from windlass.store.redis.connection import Connection
from windlass.store.redis.hearing import Hearing
from windlass.store.redis.notices import Notices
from windlass.store.redis.partitions import MOST_IN_A_SCRIPT, Partitions
from windlass.store.redis.passing import Passing
from windlass.store.redis.replicas import Replicas
from windlass.store.redis.wire import Wire
from windlass.store.redis.wishes import Grants

MOST_LINES, MOST_ROUNDS, MOST_CHUNKS = 100, 20, 200
"""What one page looks at: names of lines at a time, how often, and chunks of one line."""

AGAIN = 1
"""The answer of a claim that has only parked jobs so far: as many as one script may, fewer each time."""

HOME = 0
"""The partition where the records of workers are."""

AFTER = "\x01"
"""A name followed by this sorts right behind the name."""

MOST_LOOKS = 20_000
"""Keys that one script looks for to find out whose an id is."""

LAYOUT = "2"
"""Of the keys, as `lua/keys.lua` describes them; kept in the server. In 1 a job's tenant was no part of its key."""

LAST_PLACE = 10**15 - 1
"""Beyond every place of a line."""

_TURNS = {"q": "queues", "t": "tenants", "k": "tasks"}
"""Who takes turns, as passed to a script."""

SPREAD = 16
"""Partitions of a new store on a cluster."""


class RedisStore(RedisAdding):
    """Jobs in Redis. Made by `open`."""

    def __init__(self, connection: Connection, prefix: str, partitions: int | None, clock: Clock | None) -> None:
        self._connection = connection
        self._prefix = prefix
        self._wanted = partitions
        usual = SPREAD if connection.cluster else 1
        self.partitions = Partitions(connection, prefix, partitions or usual, clock)
        self._notices = Notices(connection, prefix)
        self._wire = Wire(connection, self._notices, prefix)
        self._grants = Grants()
        self._hearing = Hearing(virtual=clock is not None)
        self._passing = Passing(self.partitions)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        prefix: str = "wl",
        partitions: int | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        blocking: bool = False,
        patient: bool = False,
        replicas: Replicas | None = None,
    ) -> "RedisStore":
        """Connect and check the server. The number of partitions is set by whoever opens the store first, for good.

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
            if patient and isinstance(fault, Unavailable) and not isinstance(fault, NotLetIn):
                return store
            await store.close()
            raise
        return store

    async def ready(self) -> None:
        connection = self._connection
        if connection.known:
            return
        await connection.check()
        kept = int(await connection.keep(f"{self._prefix}:partitions", str(self.partitions.number)))
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
            found = (await self._connection.keep(mark, LAYOUT)).encode()
        if found.decode() != LAYOUT:
            known = f"the store has layout {found.decode()}, this Windlass knows {LAYOUT}"
            raise Invalid(f"{known}: use a newer one", at="store")

    async def close(self) -> None:
        await self._notices.close()
        await self._connection.close()

    async def claim(self, wish: Wish) -> list[Record]:
        if (granted := self._grants.take(wish)) is not None:
            return granted
        runs = self._runs_of_queues(self._order_of_queues(wish))
        if wish.heard and HOME not in dict(runs) and self._hearing.is_to_be_told(wish.worker.id):
            with suppress(PartAway):
                await self.partitions.call("worker", HOME, ["hear", wish.worker.id, span(wish.lease)])
        runs = self._passing.there(runs)
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

    def _order_of_queues(self, wish: Wish) -> Sequence[str]:
        """Where they take turns, those of one partition are neighbours: what it has is known to one script alone."""
        queues = wish.worker.queues
        if "queues" not in wish.turns or self.partitions.number == 1:
            return queues
        queues = shuffled(wish.nonce, queues)
        partitions = list(dict.fromkeys(map(self.partitions.of_queue, queues)))
        return sorted(queues, key=lambda queue: partitions.index(self.partitions.of_queue(queue)))

    async def _claim(self, wish: Wish, partition: int, queues: list[str], *, slots: int) -> list[Record]:
        worker, tasks = wish.worker, wish.worker.tasks or []
        repeatable = "1" if wish.repeatable else "0"
        place = places.written(worker)
        about: list[Argument] = [wish.nonce, repeatable, worker.id, place, span(wish.lease), slots, worker.tenant]
        heard = wish.heard and partition == HOME and self._hearing.is_to_be_told(worker.id)
        about += ("1" if heard else "0", span(self._stay(wish)))
        turns = "".join(letter for letter, who in _TURNS.items() if who in wish.turns)
        about += (len(tasks), len(wish.warm), turns, len(wish.in_order), *tasks, *wish.warm, *wish.in_order, *queues)
        reply = await self.partitions.call("claim", partition, about)
        while reply == AGAIN:
            reply = await self.partitions.call("claim", partition, about)
        return answers.claimed(reply, wish)

    def _stay(self, wish: Wish) -> float:
        """How long a wish is kept: not at all where one script cannot grant it, or cannot know that it is heard."""
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

    async def touch(self, touches: Sequence[Touch], lease: float) -> list[Touched]:
        if self.partitions.number > 1 and (unheard := {one.id for one in touches if self._goes_unheard(one)}):
            heard = iter(await self.touch([one for one in touches if one.id not in unheard], lease))
            # Whether they are still held is for the partition to say when it is back: until then nobody takes them.
            return [Touched(one.id, held=True) if one.id in unheard else next(heard) for one in touches]
        replies = await self.partitions.spread(
            "touch",
            touches,
            lambda touch: self.partitions.of_id(touch.id),
            lambda some: [span(lease), *layout.touch_arguments(some)],
            width=3,
        )
        return [answers.touched(touch.id, *reply) for touch, reply in zip(touches, replies, strict=True)]

    def _goes_unheard(self, touch: Touch) -> bool:
        """Whether a sign of life, which says no more than that, is for a partition that is away."""
        says_more = touch.pid is not None or touch.progress is not None or touch.output
        return not says_more and isinstance(self.partitions.fault(self.partitions.of_id(touch.id)), PartAway)

    async def succeed(self, dones: Sequence[Done]) -> list[bool]:
        replies = await self.partitions.spread(
            "succeed", dones, lambda done: self.partitions.of_id(done.id), layout.succeed_arguments
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
            for start in range(0, len(some), MOST_IN_A_SCRIPT):
                part = some[start : start + MOST_IN_A_SCRIPT]
                stamp, *reply = await self.partitions.call("read", number, ["1" if payload else "0", *part])
                now = from_micros(int(stamp))
                for record in answers.records(reply, whole=payload):
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
                reply = await self.partitions.call("owners", partition, [MOST_LOOKS, *named])
                for place, tenants in zip(rest, reply, strict=False):
                    found[place] = sorted(tenant.decode() for tenant in tenants)
                rest = rest[len(reply) :]
        return found

    async def result(self, key: JobKey) -> Kept | None:
        reply = await self.partitions.call("result", self.partitions.of_id(key.id), [raw_key(*key)])
        return None if reply is None else answers.kept(reply)

    async def output(self, key: JobKey, after: int, limit: int) -> list[Chunk]:
        partition = self.partitions.of_id(key.id)
        return answers.chunks(await self.partitions.call("output", partition, [raw_key(*key), after, limit]))

    async def page(self, scope: Scope, after: str | None, limit: int) -> Slice:
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
                found += answers.records(reply, whole=False)
                if len(found) == limit or not ended:
                    return Slice(found, f"{name},{place}")
            if len(lines) < MOST_LINES:
                return Slice(found, None)
            start = lines[-1] + AFTER
        return Slice(found, f"{lines[-1]},{last}")

    async def _lines(self, scope: Scope, start: str) -> list[str]:
        """Names of the tenant's lines from one on, in order, not more than `MOST_LINES`."""
        first, end = start, ""
        if scope.tenant != EVERY_TENANT:
            first, end = max(start, f"{scope.tenant},"), f"{scope.tenant}-"
        replies = await self.partitions.each("lines", [first, end, MOST_LINES])
        return sorted(name.decode() for reply in replies for name in reply)[:MOST_LINES]

    async def tally(self, tenant: str) -> list[Tally]:
        found = []
        for reply in await self.partitions.each("tally", [tenant]):
            for place in range(0, len(reply), 2):
                numbers = reply[place + 1]
                for field in range(0, len(numbers), 2):
                    queue, task, state = numbers[field].decode().split(",")
                    number = int(numbers[field + 1])
                    found.append(Tally(reply[place].decode(), queue, task, layout.STATES[int(state)], number))
        return sorted(found, key=lambda tally: (tally.tenant, tally.queue, tally.task, tally.state))

    async def outcomes(self, tenant: str) -> list[Ran]:
        found = []
        for reply in await self.partitions.each("outcomes", [tenant]):
            for place in range(0, len(reply), 2):
                numbers = reply[place + 1]
                for field in range(0, len(numbers), 2):
                    queue, task, outcome = numbers[field].decode().split(",")
                    found.append(Ran(reply[place].decode(), queue, task, Verdict(outcome), int(numbers[field + 1])))
        return sorted(found, key=lambda ran: (ran.tenant, ran.queue, ran.task, ran.outcome))

    async def sweep(self, clock: Sweep, limit: int) -> list[Swept]:
        return answers.swept(await self.partitions.up_to("promote" if clock is Sweep.RUN else "purge", limit))

    async def next_run(self) -> float | None:
        found = (await self.partitions.each_there("next_run")).values()
        return min((int(micros) / 1e6 for micros in found if micros is not None), default=None)

    async def overdue(self, clock: Overdue, limit: int) -> Reading:
        found: list[tuple[float, Record]] = []
        replies = await self.partitions.each_there("overdue", [clock.value, limit])
        for _, times, *reply in replies.values():
            found += zip(map(float, times), answers.records(reply, whole=False), strict=True)
        found.sort(key=lambda pair: pair[0])
        now = from_micros(min(int(stamp) for stamp, *_ in replies.values()))
        records: list[Record | None] = [record for _, record in found[:limit]]
        return Reading(now, records, self.partitions.number, list(replies))

    async def bind(self, edges: Sequence[Edge]) -> list[State | None]:
        states = await self.partitions.spread(
            "bind",
            edges,
            lambda edge: self.partitions.of_id(edge.parent),
            lambda some: [word for edge in some for word in (_bare(edge.parent), edge.tenant, _bare(edge.child))],
        )
        return [layout.STATES[state] if state < len(layout.STATES) else None for state in states]

    async def ripe(self, done: Sequence[Ripe], limit: int) -> list[Ripe]:
        await self.partitions.spread(
            "ripe",
            done,
            lambda one: self.partitions.of_id(one.id),
            lambda some: [0, 0, *layout.ripe_arguments(some)],
        )
        if not limit:
            return []
        replies = await self.partitions.each_there("ripe", [limit, MOST_CHILDREN])
        found = zip_longest(*(answers.ripened(reply) for reply in replies.values()))
        # By turns: those of one partition that cannot be followed now do not keep the others off.
        return [one for turn in found for one in turn if one is not None][:limit]

    async def enlist(self, id: str, tenant: str, worker: NewWorker, lease: float) -> None:
        await self.partitions.call("worker", HOME, ["enlist", id, span(lease), tenant, msgspec.msgpack.encode(worker)])

    async def greet(self, id: str, tenant: str, lease: float) -> Worker | None:
        reply = await self.partitions.call("worker", HOME, ["greet", id, span(lease), tenant])
        return (await self._workers(reply))[0] if reply else None

    async def workers(self, tenant: str) -> list[Worker]:
        alive = await self._workers(await self.partitions.call("worker", HOME, ["list"]))
        own = [worker for worker in alive if tenant in (EVERY_TENANT, worker.tenant)]
        return sorted(own, key=lambda worker: (worker.registered_at, worker.id))

    async def _workers(self, reply: list[bytes]) -> list[Worker]:
        running: dict[str, int] = {}
        for held in (await self.partitions.each_there("held")).values():
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

    async def dismiss(self, id: str) -> bool:
        return bool(await self.partitions.call("worker", HOME, ["dismiss", id]))

    async def post(self, key: JobKey, data: bytes) -> Posted:
        reply = await self.partitions.call("post", self.partitions.of_id(key.id), [raw_key(*key), data])
        return Posted(reply.decode())

    async def collect(self, readers: Sequence[Reader]) -> list[list[Message]]:
        there = [one for one in readers if self.partitions.fault(self.partitions.of_id(one.id)) is None]
        replies = await self.partitions.spread(
            "collect", there, lambda reader: self.partitions.of_id(reader.id), layout.collect_arguments
        )
        found = {one: answers.messages(reply) for one, reply in zip(there, replies, strict=True)}
        return [found.get(one, []) for one in readers]

    async def put(self, kind: str, name: str, data: bytes | None) -> None:
        words: list[Argument] = ["drop", kind, name] if data is None else ["put", kind, name, data]
        await self.partitions.call("shelf", HOME, words)

    async def swap(self, kind: str, name: str, before: bytes | None, after: bytes | None) -> bool:
        there = [word for data in (before, after) for word in ("" if data is None else "1", data or b"")]
        return bool(await self.partitions.call("shelf", HOME, ["swap", kind, name, *there]))

    async def shelved(self, kind: str) -> dict[str, bytes]:
        found = await self.partitions.call("shelf", HOME, ["all", kind])
        return {found[at].decode(): found[at + 1] for at in range(0, len(found), 2)}

    @asynccontextmanager
    async def listen(self, topics: Sequence[str]) -> AsyncIterator[Listener]:
        with self._grants.bell() as bell:
            async with self._notices.listen(topics, bell):
                for topic in topics:
                    kind, _, name = topic.partition("/")
                    if kind == "end":
                        key = JobKey(*name.split("/"))
                        await self.partitions.call("await", self.partitions.of_id(key.id), [raw_key(*key)])
                yield bell

    @property
    def quiet(self) -> bool:
        return self._wire.quiet

    async def publish(self, news: Sequence[str]) -> None:
        await self._wire.publish(news)

    def watch(self) -> AbstractAsyncContextManager[Watch]:
        return self._wire.watch()


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
