"""The store over Redis or Valkey: each method is one call of one script, on the partition that its jobs live in.

Knows partitions and how calls are grouped by them; decides nothing. A queue lives in one partition, named by the last byte
of its jobs' ids; with one partition (the default on a single server) every step is one round trip.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from windlass.model.errors import Invalid
from windlass.model.lifecycle import Move
from windlass.model.names import EVERY_TENANT, check_name, queue_mark, raw_id
from windlass.model.ports import Clock
from windlass.model.worker import NewWorker, Worker
from windlass.store import (
    Done,
    Draft,
    Kept,
    Listener,
    Overdue,
    Reading,
    Record,
    Scope,
    Slice,
    Tally,
    Touch,
    Touched,
    Wish,
)
from windlass.store.micros import from_micros, span, to_micros
from windlass.store.redis import layout
from windlass.store.redis.channel import Argument
from windlass.store.redis.connection import Connection
from windlass.store.redis.notices import Notices

T = TypeVar("T")

MOST_IN_A_SCRIPT = 1000
"""Jobs that one script takes on: longer scripts would make others wait."""

MOST_LINES, MOST_ROUNDS, MOST_CHUNKS = 100, 20, 200
"""What one page looks at: names of lines at a time, how often, and chunks of one line."""

AFTER = "\x01"
"""A name followed by this sorts right behind the name."""

LAST_PLACE = 2**53 - 1

SPREAD = 16
"""Partitions of a new store on a cluster."""


class RedisStore:
    """Jobs in Redis. Made by `open`."""

    def __init__(self, connection: Connection, prefix: str, partitions: int, clock: Clock | None) -> None:
        self._connection = connection
        self._prefix = prefix
        self._partitions = partitions
        self._clock = clock
        self._notices = Notices(connection, prefix)

    @classmethod
    async def open(
        cls, url: str, *, prefix: str = "wl", partitions: int | None = None, clock: Clock | None = None
    ) -> "RedisStore":
        """Connect and check the server. The number of partitions is set by whoever opens the store first, for good.

        `clock` replaces the server's own clock; only tests and simulations pass one.
        """
        if not prefix.isalnum():
            raise Invalid("the prefix is made of letters and digits", at="prefix")
        connection = Connection(url)
        try:
            await connection.check()
            wanted = partitions or (SPREAD if connection.cluster else 1)
            kept = int(await connection.keep(f"{prefix}:partitions", str(wanted)))
        except BaseException:
            await connection.close()
            raise
        if partitions not in (None, kept):
            await connection.close()
            raise Invalid(f"this store has {kept} partitions, not {partitions}: that cannot be changed", at="partitions")
        return cls(connection, prefix, kept, clock)

    async def close(self) -> None:
        await self._notices.close()
        await self._connection.close()

    # Partitions

    def _key(self, partition: int) -> str:
        return f"{self._prefix}{{{partition}}}"

    def _of_queue(self, queue: str) -> int:
        return queue_mark(queue) % self._partitions

    def _of_id(self, id: str) -> int:
        return int(id[-2:], 16) % self._partitions

    async def _call(self, name: str, partition: int, arguments: Iterable[Argument] = ()) -> Any:
        now = to_micros(self._clock.now()) if self._clock else 0
        return await self._connection.call(name, self._key(partition), now, list(arguments))

    async def _each(self, name: str, arguments: Sequence[Argument] = ()) -> list[Any]:
        """A script on every partition."""
        if self._partitions == 1:
            return [await self._call(name, 0, arguments)]
        return await asyncio.gather(*(self._call(name, number, arguments) for number in range(self._partitions)))

    async def _spread(
        self, name: str, items: Sequence[T], partition: Callable[[T], int], arguments: Callable[[list[T]], Iterable[Argument]]
    ) -> list[Any]:
        """A script over items, each on its partition; one answer per item, in their order."""
        groups: dict[int, Sequence[int]] = {0: range(len(items))} if self._partitions == 1 else {}
        for place, item in enumerate(items if not groups else ()):
            groups.setdefault(partition(item), []).append(place)  # type: ignore[attr-defined]
        answers: list[Any] = [None] * len(items)
        for number, places in groups.items():
            for start in range(0, len(places), MOST_IN_A_SCRIPT):
                some = places[start : start + MOST_IN_A_SCRIPT]
                reply = await self._call(name, number, arguments([items[place] for place in some]))
                size = len(reply) // len(some)
                for order, place in enumerate(some):
                    answers[place] = reply[order] if size == 1 else reply[order * size : (order + 1) * size]
        return answers

    # The protocol

    async def now(self) -> datetime:
        return from_micros(int(await self._call("now", 0)))

    async def add(self, drafts: Sequence[Draft]) -> list[bool]:
        for draft in drafts:
            if self._of_id(draft.id) != self._of_queue(draft.new.queue):
                mark = queue_mark(draft.new.queue)
                raise Invalid(
                    f"the id of a job in queue {draft.new.queue!r} must end with {mark:02x}: leave it out, or send a key",
                    at="id",
                )
        added = await self._spread("add", drafts, lambda draft: self._of_queue(draft.new.queue), layout.add_arguments)
        return [bool(new) for new in added]

    async def claim(self, wish: Wish) -> list[Record]:
        runs = self._runs_of_queues(wish.worker.queues)
        if len(runs) > 1:
            # Whether this is a claim sent again must be known of all partitions before the first gives anything new.
            again = [record for run in runs for record in await self._claim(wish, *run, slots=0)]
            if again:
                return again
        taken: list[Record] = []
        for run in runs:
            if len(taken) < wish.slots:
                taken += await self._claim(wish, *run, slots=wish.slots - len(taken))
        return taken

    async def _claim(self, wish: Wish, partition: int, queues: list[str], *, slots: int) -> list[Record]:
        worker, tasks = wish.worker, wish.worker.tasks or []
        about: list[Argument] = [wish.nonce, worker.id, worker.node, span(wish.lease), slots, worker.tenant]
        reply = await self._call("claim", partition, [*about, len(tasks), *tasks, *queues])
        return layout.records(reply, whole=True)

    def _runs_of_queues(self, queues: Sequence[str]) -> list[tuple[int, list[str]]]:
        """The queues in their order, neighbours of one partition together."""
        runs: list[tuple[int, list[str]]] = []
        for queue in queues:
            number = self._of_queue(queue)
            if runs and runs[-1][0] == number:
                runs[-1][1].append(queue)
            else:
                runs.append((number, [queue]))
        return runs

    async def touch(self, worker: str, touches: Sequence[Touch], lease: float) -> list[Touched]:
        replies = await self._spread(
            "touch",
            touches,
            lambda touch: self._of_id(touch.id),
            lambda some: [span(lease), *layout.touch_arguments(some)],
        )
        return [
            Touched(touch.id, bool(held), layout.REASONS[reason])
            for touch, (held, reason) in zip(touches, replies, strict=True)
        ]

    async def succeed(self, worker: str, dones: Sequence[Done]) -> list[bool]:
        replies = await self._spread("succeed", dones, lambda done: self._of_id(done.id), layout.succeed_arguments)
        return [bool(held) for held in replies]

    async def apply(self, moves: Sequence[Move]) -> list[bool]:
        replies = await self._spread("apply", moves, lambda move: self._of_id(move.id), layout.apply_arguments)
        return [bool(written) for written in replies]

    async def read(self, ids: Sequence[str], *, payload: bool = False) -> Reading:
        groups: dict[int, list[bytes]] = {}
        for id in ids:
            groups.setdefault(self._of_id(id), []).append(raw_id(id))
        found: dict[str, Record] = {}
        now = None
        for number, some in groups.items():
            for start in range(0, len(some), MOST_IN_A_SCRIPT):
                part = some[start : start + MOST_IN_A_SCRIPT]
                stamp, *reply = await self._call("read", number, ["1" if payload else "0", *part])
                now = from_micros(int(stamp))
                for record in layout.records(reply, whole=payload):
                    found[record.job.id] = record
        return Reading(now or await self.now(), [found.get(id) for id in ids])

    async def result(self, id: str) -> Kept | None:
        reply = await self._call("result", self._of_id(id), [raw_id(id)])
        if reply is None:
            return None
        content_type, _, data = reply.partition(b"\0")
        return Kept(data, content_type.decode())

    async def page(self, scope: Scope, after: str | None, limit: int) -> Slice:
        line, place = _cursor(after)
        found: list[Record] = []
        states = sorted(layout.STATE_NUMBERS[state] for state in scope.states)
        start = line
        for _ in range(MOST_ROUNDS):
            lines = await self._lines(scope, start)
            for name in lines:
                if name != line:
                    line, place = name, 0
                queue = name.partition(",")[2]
                if scope.queue not in (None, queue):
                    continue
                asked = [name, place, limit - len(found), MOST_CHUNKS, *states]
                place, ended, *reply = await self._call("page", self._of_queue(queue), asked)
                found += layout.records(reply, whole=False)
                if len(found) == limit or not ended:
                    return Slice(found, f"{name},{place}")
            if len(lines) < MOST_LINES:
                return Slice(found, None)
            start = lines[-1] + AFTER
        return Slice(found, f"{lines[-1]},{LAST_PLACE}")

    async def _lines(self, scope: Scope, start: str) -> list[str]:
        """Names of the tenant's lines from one on, in order, not more than `MOST_LINES`."""
        first, end = start, ""
        if scope.tenant != EVERY_TENANT:
            first, end = max(start, f"{scope.tenant},"), f"{scope.tenant}-"
        replies = await self._each("lines", [first, end, MOST_LINES])
        return sorted(name.decode() for reply in replies for name in reply)[:MOST_LINES]

    async def tally(self, tenant: str) -> list[Tally]:
        found = []
        for reply in await self._each("tally", [tenant]):
            for place in range(0, len(reply), 2):
                numbers = reply[place + 1]
                for field in range(0, len(numbers), 2):
                    queue, task, state = numbers[field].decode().split(",")
                    number = int(numbers[field + 1])
                    found.append(Tally(reply[place].decode(), queue, task, layout.STATES[int(state)], number))
        return sorted(found, key=lambda tally: (tally.tenant, tally.queue, tally.task, tally.state))

    async def promote(self, limit: int) -> int:
        return await self._up_to("promote", limit)

    async def _up_to(self, name: str, limit: int) -> int:
        """A duty over one partition after another, until so much is done."""
        done = 0
        for number in range(self._partitions):
            if done < limit:
                done += await self._call(name, number, [limit - done])
        return done

    async def overdue(self, clock: Overdue, limit: int) -> Reading:
        found: list[tuple[float, Record]] = []
        replies = await self._each("overdue", [clock.value, limit])
        for _, times, *reply in replies:
            found += zip(map(float, times), layout.records(reply, whole=False), strict=True)
        found.sort(key=lambda pair: pair[0])
        now = from_micros(min(int(stamp) for stamp, *_ in replies))
        return Reading(now, [record for _, record in found[:limit]])

    async def purge(self, limit: int) -> int:
        return await self._up_to("purge", limit)

    async def enlist(self, id: str, tenant: str, worker: NewWorker, lease: float) -> None:
        await self._call("worker", 0, ["enlist", id, span(lease), tenant, msgspec.msgpack.encode(worker)])

    async def greet(self, id: str, lease: float) -> Worker | None:
        reply = await self._call("worker", 0, ["greet", id, span(lease)])
        return (await self._workers(reply))[0] if reply else None

    async def workers(self, tenant: str) -> list[Worker]:
        alive = await self._workers(await self._call("worker", 0, ["list"]))
        own = [worker for worker in alive if tenant in (EVERY_TENANT, worker.tenant)]
        return sorted(own, key=lambda worker: (worker.registered_at, worker.id))

    async def _workers(self, reply: list[bytes]) -> list[Worker]:
        running: dict[str, int] = {}
        for held in await self._each("held"):
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
        return bool(await self._call("worker", 0, ["dismiss", id]))

    @asynccontextmanager
    async def listen(self, topics: Sequence[str]) -> AsyncIterator[Listener]:
        async with self._notices.listen(topics) as bell:
            for topic in topics:
                kind, _, name = topic.partition("/")
                if kind == "end":
                    await self._call("await", self._of_id(name), [raw_id(name)])
            yield bell


def _cursor(after: str | None) -> tuple[str, int]:
    if after is None:
        return "", 0
    tenant, _, rest = after.partition(",")
    queue, _, place = rest.partition(",")
    try:
        check_name(tenant, at="after")
        check_name(queue, at="after")
        number = int(place) if place.isascii() and place.isdigit() and len(place) <= len(str(LAST_PLACE)) else -1
        if not 0 <= number <= LAST_PLACE:
            raise Invalid("no number", at="after")
    except Invalid:
        raise Invalid("not a place in a listing: give `next` of the page before", at="after") from None
    return f"{tenant},{queue}", number
