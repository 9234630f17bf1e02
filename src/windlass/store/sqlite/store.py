"""The store protocol over one SQLite file: each method names its duty and says whether it writes.

Holds what is opened and closed (the connection, the notices); knows no SQL.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

from windlass.model.job import Chunk, Message, State
from windlass.model.lifecycle import Move
from windlass.model.names import JobKey
from windlass.model.ports import Clock
from windlass.model.worker import NewWorker, Worker
from windlass.store import (
    Done,
    Draft,
    Edge,
    Kept,
    Listener,
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
)
from windlass.store.beside import Ran, Watch
from windlass.store.flow import Regroup, Rules, Usage, Waiting
from windlass.store.mailbox import Posted, Reader
from windlass.store.sqlite import (
    buckets,
    claims,
    following,
    jobs,
    listing,
    mailbox,
    moving,
    outcomes,
    output,
    parking,
    regrouping,
    results,
    ruling,
    shelf,
    standing,
    sweeping,
    upkeep,
    work,
    workers,
)
from windlass.store.sqlite.connection import Connection
from windlass.store.sqlite.disk import Lasts
from windlass.store.sqlite.notices import Notices
from windlass.store.sqlite.opening import MEMORY, connect, resolve
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.wire import Wire

T = TypeVar("T")


class SqliteStore:
    """Jobs in one SQLite file, shared by any number of processes on one machine. Made by `open`."""

    def __init__(self, connection: Connection, notices: Notices, wire: Wire) -> None:
        self._connection = connection
        self._notices = notices
        self._wire = wire
        self._swept = sweeping.Marks()
        self._noted: workers.Noted = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str], clock: Clock) -> "SqliteStore":
        """Open a file, or make it; `:memory:` = a store of this object's own. Its folder must be there.

        The clock is asked on the connection's thread too.
        """
        place = resolve(path)
        meeting = None if place == MEMORY else Path(f"{place}-wake")
        notices = Notices(meeting)
        return cls(Connection(connect(place), clock, notices.tell), notices, Wire(meeting))

    @property
    def path(self) -> str:
        """Of its file; empty = it is in memory."""
        return self._connection.path

    async def add(self, drafts: Sequence[Draft]) -> list[bool]:
        if not drafts:
            return []

        def add(tx: Transaction) -> list[bool]:
            if not all(draft.follows for draft in drafts):
                self._connection.check_room(tx, sum(len(memoryview(draft.new.payload)) for draft in drafts))
            return jobs.add(tx, drafts)

        return await self._connection.write(add, Lasts.WHEN_ANSWERED)

    async def claim(self, wish: Wish) -> list[Record]:
        lasts = Lasts.WHEN_SEEN if wish.lasts else Lasts.SOME_TIME
        return await self._connection.write(lambda tx: claims.claim(tx, wish, self._noted), lasts)

    async def touch(self, touches: Sequence[Touch], lease: float) -> list[Touched]:
        if not touches:
            return []
        return await self._connection.write(lambda tx: work.touch(tx, touches, lease), Lasts.WHEN_ANSWERED)

    async def succeed(self, dones: Sequence[Done]) -> list[bool]:
        if not dones:
            return []
        return await self._connection.write(lambda tx: work.succeed(tx, dones))

    async def apply(self, moves: Sequence[Move]) -> list[bool]:
        if not moves:
            return []
        return await self._connection.write(lambda tx: moving.apply(tx, moves))

    async def read(self, keys: Sequence[JobKey], *, payload: bool = False) -> Reading:
        return await self._connection.read(lambda tx: jobs.read(tx, keys, payload=payload))

    async def owners(self, ids: Sequence[str]) -> list[list[str]]:
        return await self._connection.read(lambda tx: jobs.owners(tx, ids)) if ids else []

    async def result(self, key: JobKey) -> Kept | None:
        kept, once = await self._connection.read(lambda tx: results.peek(tx, key))
        return await self._connection.write(lambda tx: results.take(tx, key)) if once else kept

    async def output(self, key: JobKey, after: int, limit: int) -> list[Chunk]:
        return await self._connection.read(lambda tx: output.page(tx, key, after, limit))

    async def page(self, scope: Scope, after: str | None, limit: int) -> Slice:
        place = listing.Cursor.parse(after)
        return await self._connection.read(lambda tx: listing.page(tx, scope, place, limit))

    async def tally(self, tenant: str) -> list[Tally]:
        return await self._connection.read(lambda tx: listing.tally(tx, tenant))

    async def outcomes(self, tenant: str) -> list[Ran]:
        return await self._connection.read(lambda tx: outcomes.read(tx, tenant))

    async def sweep(self, clock: Sweep, limit: int) -> list[Swept]:
        return await self._connection.write(lambda tx: upkeep.sweep(tx, clock, limit))

    async def next_run(self) -> float | None:
        return await self._connection.read(upkeep.next_run)

    async def overdue(self, clock: Overdue, limit: int) -> Reading:
        return await self._connection.read(lambda tx: upkeep.overdue(tx, clock, limit))

    async def bind(self, edges: Sequence[Edge]) -> list[State | None]:
        if not edges:
            return []
        return await self._connection.write(lambda tx: following.bind(tx, edges))

    async def ripe(self, done: Sequence[Ripe], limit: int) -> list[Ripe]:
        if not done:  # an idle queue is asked often: it need not be written to
            return await self._connection.read(lambda tx: following.ripe(tx, done, limit))
        return await self._connection.write(lambda tx: following.ripe(tx, done, limit))

    async def enlist(self, id: str, tenant: str, worker: NewWorker, lease: float) -> None:
        await self._connection.write(lambda tx: workers.enlist(tx, id, tenant, worker, lease))

    async def greet(self, id: str, tenant: str, lease: float) -> Worker | None:
        return await self._connection.write(lambda tx: workers.greet(tx, id, tenant, lease), Lasts.SOME_TIME)

    async def workers(self, tenant: str) -> list[Worker]:
        return await self._connection.read(lambda tx: workers.workers(tx, tenant))

    async def dismiss(self, id: str) -> bool:
        return await self._connection.write(lambda tx: workers.dismiss(tx, id))

    async def rules(self) -> Rules:
        return await self._connection.read(ruling.rules)

    async def regulate(self, rules: Rules) -> bool:
        return await self._connection.write(lambda tx: ruling.regulate(tx, rules))

    async def regroup(self, changes: Sequence[Regroup]) -> list[bool]:
        if not changes:
            return []
        return await self._connection.write(lambda tx: regrouping.regroup(tx, changes))

    async def hold(self, bucket: str, seconds: float) -> None:
        await self._connection.write(lambda tx: buckets.hold(tx, bucket, seconds))

    async def rouse(self, limit: int) -> int:
        opened = await self._connection.write(lambda tx: parking.rouse(tx, limit))
        self._swept = await self._connection.write(lambda tx: sweeping.sweep(tx, self._swept))
        return opened

    async def opening(self, queues: Sequence[str]) -> float | None:
        return await self._connection.read(lambda tx: standing.opening(tx, queues))

    async def waiting(self, tenant: str, queue: str, limit: int) -> list[Waiting]:
        return await self._connection.read(lambda tx: standing.waiting(tx, tenant, queue, limit))

    async def rank(self, key: JobKey) -> int | None:
        return await self._connection.read(lambda tx: standing.rank(tx, key))

    async def usage(self, allowance: str, limit: int) -> list[Usage]:
        return await self._connection.read(lambda tx: standing.usage(tx, allowance, limit))

    async def post(self, key: JobKey, data: bytes) -> Posted:
        return await self._connection.write(lambda tx: mailbox.post(tx, key, data))

    async def collect(self, readers: Sequence[Reader]) -> list[list[Message]]:
        if not readers:
            return []
        return await self._connection.write(lambda tx: mailbox.collect(tx, readers))

    async def put(self, kind: str, name: str, data: bytes | None) -> None:
        await self._connection.write(lambda tx: shelf.put(tx, kind, name, data))

    async def swap(self, kind: str, name: str, before: bytes | None, after: bytes | None) -> bool:
        return await self._connection.write(lambda tx: shelf.swap(tx, kind, name, before, after))

    async def shelved(self, kind: str) -> dict[str, bytes]:
        return await self._connection.read(lambda tx: shelf.shelved(tx, kind))

    def listen(self, topics: Sequence[str]) -> AbstractAsyncContextManager[Listener]:
        return self._notices.listen(topics)

    @property
    def quiet(self) -> bool:
        return self._wire.quiet

    async def publish(self, news: Sequence[str]) -> None:
        await self._wire.publish(news)

    def watch(self) -> AbstractAsyncContextManager[Watch]:
        return self._wire.watch()

    async def check_room(self) -> None:
        """Raise if new jobs would be refused for want of room; for health checks."""
        await self._connection.write(self._connection.check_room, Lasts.SOME_TIME)

    async def close(self) -> None:
        self._notices.close()
        await self._connection.close()

    async def examine(self, look: Callable[[Transaction], T]) -> T:
        """Let a function look at the file as it is at one moment; for `scrub`, not part of the protocol."""
        return await self._connection.read(look)
