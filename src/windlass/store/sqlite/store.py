"""The store protocol over one SQLite file: each method names its operation and how durable its write must be.

Holds what is opened and closed: the connection, the wake-ups, the event bus. Knows no SQL.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

import apsw

from windlass.model.job import State
from windlass.model.lifecycle import Move
from windlass.model.names import JobKey, raw_key
from windlass.model.output import Chunk, Message
from windlass.model.ports import Clock
from windlass.model.worker import NewWorker, Worker
from windlass.store import (
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
)
from windlass.store.beside import EventStream, OutcomeCount, PreparedCommand
from windlass.store.encoding import pack_terms
from windlass.store.facts import StoreInfo
from windlass.store.flow import BucketUsage, LaneBacklog, Regroup, Rules, StaleRules
from windlass.store.mailbox import Posted, Reader
from windlass.store.sqlite import claims, dependencies, flow, jobs, listing, records, rules, transitions, upkeep
from windlass.store.sqlite.connection import Connection, InlineConnection
from windlass.store.sqlite.events import EventBus, Wakeups
from windlass.store.sqlite.file import MEMORY, Durability, connect, resolve
from windlass.store.sqlite.transaction import Transaction

T = TypeVar("T")

SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
SAFE = ("FULL", "EXTRA")


class SqliteStore:
    """Jobs in one SQLite file, shared by any number of processes on one machine. Made by `open`."""

    def __init__(self, connection: Connection | InlineConnection, wakeups: Wakeups, events: EventBus) -> None:
        self._connection = connection
        self._wakeups = wakeups
        self._events = events
        self._drop_cursors = upkeep.DropCursors()
        self._seen_workers: claims.SeenWorkers = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str], clock: Clock, *, blocking: bool = False) -> "SqliteStore":
        """Open a file, or create it; `:memory:` = a private store of this object. Its folder must exist.

        The clock is read on the connection's thread too. `blocking`: for callers without an event loop; each method
        but `listen` and `watch` runs in the thread of its caller and never pauses.
        """
        place = resolve(path)
        pipes = None if place == MEMORY else Path(f"{place}-wake")
        wakeups = Wakeups(pipes)
        if blocking:
            return cls(InlineConnection(place, clock, wakeups.send), wakeups, EventBus(pipes))
        return cls(Connection(connect(place), clock, wakeups.send), wakeups, EventBus(pipes))

    @property
    def path(self) -> str:
        """Of its file; empty = it is in memory."""
        return self._connection.path

    async def add(self, drafts: Sequence[Draft]) -> list[bool]:
        if not drafts:
            return []
        return await self._connection.write(lambda tx: jobs.add(tx, drafts), Durability.BEFORE_ANSWER)

    def prepare_add(self, example: Draft) -> PreparedCommand | None:
        return PreparedAdd(self._connection, example) if isinstance(self._connection, InlineConnection) else None

    async def claim(self, wish: ClaimRequest) -> list[Record]:
        durability = Durability.BEFORE_VISIBLE if wish.lasts else Durability.LATER
        return await self._connection.write(lambda tx: claims.claim(tx, wish, self._seen_workers), durability)

    async def touch(self, touches: Sequence[Heartbeat], lease: float) -> list[HeartbeatReply]:
        if not touches:
            return []
        return await self._connection.write(lambda tx: transitions.touch(tx, touches, lease), Durability.BEFORE_ANSWER)

    async def succeed(self, dones: Sequence[JobSuccess]) -> list[bool]:
        if not dones:
            return []
        return await self._connection.write(lambda tx: transitions.succeed(tx, dones))

    async def apply(self, moves: Sequence[Move]) -> list[bool]:
        if not moves:
            return []
        return await self._connection.write(lambda tx: transitions.apply(tx, moves))

    async def read(self, keys: Sequence[JobKey], *, payload: bool = False) -> Reading:
        return await self._connection.read(lambda tx: jobs.read(tx, keys, payload=payload))

    async def owners(self, ids: Sequence[str]) -> list[list[str]]:
        return await self._connection.read(lambda tx: jobs.owners(tx, ids)) if ids else []

    async def result(self, key: JobKey) -> StoredResult | None:
        kept, once = await self._connection.read(lambda tx: jobs.peek_result(tx, key))
        return await self._connection.write(lambda tx: jobs.take_result(tx, key)) if once else kept

    async def output(self, key: JobKey, after: int, limit: int) -> list[Chunk]:
        return await self._connection.read(lambda tx: jobs.read_output(tx, key, after, limit))

    async def page(self, scope: ListScope, after: str | None, limit: int) -> RecordPage:
        cursor = listing.Cursor.parse(after)
        return await self._connection.read(lambda tx: listing.page(tx, scope, cursor, limit))

    async def count_jobs(self, tenant: str) -> list[JobCount]:
        return await self._connection.read(lambda tx: listing.count_jobs(tx, tenant))

    async def outcomes(self, tenant: str) -> list[OutcomeCount]:
        return await self._connection.read(lambda tx: listing.outcomes(tx, tenant))

    async def sweep(self, clock: Sweep, limit: int) -> list[DueJob]:
        return await self._connection.write(lambda tx: upkeep.sweep(tx, clock, limit))

    async def next_run(self) -> float | None:
        return await self._connection.read(upkeep.next_run)

    async def overdue(self, clock: Overdue, limit: int) -> Reading:
        return await self._connection.read(lambda tx: upkeep.overdue(tx, clock, limit))

    async def add_dependencies(self, edges: Sequence[Dependency]) -> list[State | None]:
        if not edges:
            return []
        return await self._connection.write(lambda tx: dependencies.add_dependencies(tx, edges))

    async def completed_parents(self, done: Sequence[CompletedParent], limit: int) -> list[CompletedParent]:
        if not done:  # an idle queue is asked often: it need not write
            return await self._connection.read(lambda tx: dependencies.completed_parents(tx, done, limit))
        return await self._connection.write(lambda tx: dependencies.completed_parents(tx, done, limit))

    async def register_worker(self, id: str, tenant: str, worker: NewWorker, lease: float) -> None:
        await self._connection.write(lambda tx: records.register(tx, id, tenant, worker, lease))

    async def worker_heartbeat(self, id: str, tenant: str, lease: float) -> Worker | None:
        return await self._connection.write(lambda tx: records.heartbeat(tx, id, tenant, lease), Durability.LATER)

    async def workers(self, tenant: str) -> list[Worker]:
        return await self._connection.read(lambda tx: records.live_workers(tx, tenant))

    async def unregister_worker(self, id: str) -> bool:
        return await self._connection.write(lambda tx: records.unregister(tx, id))

    async def rules(self) -> Rules:
        return await self._connection.read(lambda tx: tx.rules)

    async def set_rules(self, new: Rules) -> bool:
        return await self._connection.write(lambda tx: rules.put_rules(tx, new))

    async def regroup(self, changes: Sequence[Regroup]) -> list[bool]:
        if not changes:
            return []
        return await self._connection.write(lambda tx: rules.regroup(tx, changes))

    async def hold(self, bucket: str, seconds: float) -> None:
        await self._connection.write(lambda tx: flow.hold_bucket(tx, bucket, seconds))

    async def unblock_ready(self, limit: int) -> int:
        opened = await self._connection.write(lambda tx: flow.unblock_ready(tx, limit))
        self._drop_cursors = await self._connection.write(lambda tx: upkeep.drop_idle(tx, self._drop_cursors))
        return opened

    async def next_opening(self, queues: Sequence[str]) -> float | None:
        return await self._connection.read(lambda tx: flow.next_opening(tx, queues))

    async def waiting(self, tenant: str, queue: str, limit: int) -> list[LaneBacklog]:
        return await self._connection.read(lambda tx: listing.waiting(tx, tenant, queue, limit))

    async def rank(self, key: JobKey) -> int | None:
        return await self._connection.read(lambda tx: listing.rank(tx, key))

    async def usage(self, limit_rule: str, limit: int) -> list[BucketUsage]:
        return await self._connection.read(lambda tx: flow.usage(tx, limit_rule, limit))

    async def post(self, key: JobKey, data: bytes) -> Posted:
        return await self._connection.write(lambda tx: jobs.post(tx, key, data))

    async def collect(self, readers: Sequence[Reader]) -> list[list[Message]]:
        if not readers:
            return []
        return await self._connection.write(lambda tx: jobs.collect(tx, readers))

    async def put(self, kind: str, name: str, data: bytes | None) -> None:
        await self._connection.write(lambda tx: records.put_record(tx, kind, name, data))

    async def swap(self, kind: str, name: str, before: bytes | None, after: bytes | None) -> bool:
        return await self._connection.write(lambda tx: records.swap_record(tx, kind, name, before, after))

    async def list_records(self, kind: str) -> dict[str, bytes]:
        return await self._connection.read(lambda tx: records.read_records(tx, kind))

    def listen(self, topics: Sequence[str]) -> AbstractAsyncContextManager[Listener]:
        return self._wakeups.listen(topics)

    @property
    def quiet(self) -> bool:
        return self._events.quiet

    async def publish(self, news: Sequence[str]) -> None:
        await self._events.publish(news)

    def watch(self) -> AbstractAsyncContextManager[EventStream]:
        return self._events.watch()

    async def check_room(self) -> None:
        """Raise if the disk has no room for new jobs; for health checks."""
        await self._connection.write(lambda tx: tx.check_room(), Durability.LATER)

    async def close(self) -> None:
        self._wakeups.close()
        await self._connection.close()

    async def examine(self, look: Callable[[Transaction], T]) -> T:
        """Let a function read the file as it is at one moment; for `scrub` and `facts`, not part of the protocol."""
        return await self._connection.read(look)


class PreparedAdd:
    """Adds jobs that differ from an example in nothing but their ids and payloads, in the caller's thread."""

    def __init__(self, connection: InlineConnection, example: Draft) -> None:
        self._connection = connection
        self._example = example
        self._terms = pack_terms(example.new)
        self._suffix = raw_key("", example.tenant)
        """Of the keys of its tenant's jobs."""
        self.shut = False

    def __call__(self, id: bytes, payload: bytes) -> bool | None:
        key = id + self._suffix
        try:
            return self._connection.write_now(
                lambda tx: jobs.add_like(tx, self._example, self._terms, key, payload), Durability.BEFORE_ANSWER
            )
        except StaleRules:  # the limit keys of the example are those of other rules
            self.shut = True
            return None


async def facts(store: SqliteStore) -> StoreInfo:
    """The library, the settings and the risks of a file; for `doctor`."""
    journal, synchronous = await store.examine(_settings)
    return StoreInfo(
        kind="SQLite",
        version=apsw.sqlite_lib_version(),
        durability=f"journal_mode {journal}, synchronous {synchronous}",
        risk="" if synchronous in SAFE else "a power cut may lose the last jobs: set synchronous to FULL",
        exposed=_exposed(store.path),
        now=(await store.read([])).now,
    )


def _exposed(path: str) -> str:
    mode = Path(path).stat().st_mode if path else 0
    return f"others can read or write {path} (mode {mode & 0o777:03o})" if mode & 0o007 else ""


def _settings(tx: Transaction) -> tuple[str, str]:
    (journal,) = tx.column("PRAGMA journal_mode")
    (synchronous,) = tx.column("PRAGMA synchronous")
    return journal, SYNCHRONOUS[synchronous]
