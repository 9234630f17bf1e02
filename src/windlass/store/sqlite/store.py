"""The store protocol over one SQLite file: each method names its operation and how durable its write must be.

Holds what is opened and closed: the connection, the wake-ups, the event bus. Knows no SQL.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw

from windlass.model.health import StoreHealth
from windlass.model.job import State
from windlass.model.lifecycle import Move
from windlass.model.names import JobKey, raw_key
from windlass.model.output import Chunk
from windlass.model.ports import Clock
from windlass.model.worker import NewWorker, Worker, WorkerUsage
from windlass.store.data import (
    Added,
    ClaimRequest,
    CompletedParent,
    Counts,
    Dependency,
    Draft,
    Heartbeat,
    HeartbeatReply,
    JobStep,
    JobSuccess,
    ListScope,
    Overdue,
    OverdueJobs,
    Posted,
    Reading,
    Record,
    RecordPage,
    StepSaved,
    StoredResult,
    StoredSteps,
    Sweep,
    SweepReply,
    Unchecked,
)
from windlass.store.encoding import pack_terms
from windlass.store.flow import BucketUsage, FreeSlots, LaneBacklog, Regroup, Room, Rules, StaleRules
from windlass.store.optional import (
    AuditRows,
    AuditStore,
    FileStore,
    JournalTarget,
    LocalDisk,
    Preparation,
    PreparedCommand,
    StepStore,
    StoreInfo,
    StoreSpace,
)
from windlass.store.protocol import EventStore, FlowStore, JobStore, RecordStore, WorkerStore
from windlass.store.sqlite import claims, dependencies, files, flow, jobs, listing, records, tiers, transitions, upkeep
from windlass.store.sqlite.connection import Connection, InlineConnection
from windlass.store.sqlite.events import EventBus
from windlass.store.sqlite.file import MEMORY, Durability, connect, resolve
from windlass.store.sqlite.rules import put_rules, regroup
from windlass.store.sqlite.transaction import Transaction

T = TypeVar("T")

SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
SAFE = ("FULL", "EXTRA")


class SqliteJobs:
    """The jobs of a file."""

    def __init__(self, connection: Connection | InlineConnection) -> None:
        self._connection = connection
        self._drop_cursors = upkeep.DropCursors()
        self._seen_workers: claims.SeenWorkers = {}

    async def add(
        self, drafts: Sequence[Draft], *, wait_for_replicas: bool = False, slots: FreeSlots | None = None
    ) -> list[Added]:
        del wait_for_replicas  # a file has none
        if not drafts:
            return []
        if slots is not None:
            work = partial(tiers.admit, drafts=drafts, slots=slots)
            return await self._connection.write(work, Durability.BEFORE_ANSWER)
        return await self._connection.write(lambda tx: jobs.add(tx, drafts), Durability.BEFORE_ANSWER)

    async def claim(self, request: ClaimRequest) -> list[Record]:
        durability = Durability.BEFORE_VISIBLE if request.lasts else Durability.LATER
        return await self._connection.write(lambda tx: claims.claim(tx, request, self._seen_workers), durability)

    async def heartbeat(self, beats: Sequence[Heartbeat], lease: float) -> list[HeartbeatReply]:
        if not beats:
            return []
        work = partial(transitions.heartbeat, beats=beats, lease=lease)
        return await self._connection.write(work, Durability.BEFORE_ANSWER)

    async def succeed(self, successes: Sequence[JobSuccess]) -> list[bool]:
        if not successes:
            return []
        return await self._connection.write(lambda tx: transitions.succeed(tx, successes))

    async def apply(self, moves: Sequence[Move], room: Room | None = None) -> list[bool]:
        if not moves:
            return []
        if room is not None:
            return await self._connection.write(partial(tiers.make_room, moves=moves, room=room))
        return await self._connection.write(lambda tx: transitions.apply(tx, moves))

    async def read(self, keys: Sequence[JobKey], *, payload: bool = False) -> Reading:
        return await self._connection.read(lambda tx: jobs.read(tx, keys, payload=payload))

    async def tenants_with(self, ids: Sequence[str]) -> list[list[str]]:
        return await self._connection.read(lambda tx: jobs.tenants_with(tx, ids)) if ids else []

    async def results(self, keys: Sequence[JobKey], *, spend: bool = True) -> list[StoredResult | None]:
        found = await self._connection.read(lambda tx: [jobs.peek_result(tx, key) for key in keys])
        once = [key for key, (_, once) in zip(keys, found, strict=True) if once and spend]
        taken = await self._connection.write(lambda tx: jobs.take_results(tx, once)) if once else {}
        return [taken.get(key, kept) for key, (kept, _) in zip(keys, found, strict=True)]

    async def output(self, key: JobKey, after: int, limit: int) -> list[Chunk]:
        return await self._connection.read(lambda tx: jobs.read_output(tx, key, after, limit))

    async def post(self, key: JobKey, message: bytes, most: int | None = None) -> Posted:
        return await self._connection.write(lambda tx: jobs.post(tx, key, message, most))

    async def counts(self, tenant: str) -> Counts:
        return await self._connection.read(lambda tx: listing.counts(tx, tenant))

    async def sweep(self, sweep: Sweep, limit: int) -> SweepReply:
        if sweep is not Sweep.UNBLOCK:
            due = await self._connection.write(lambda tx: upkeep.sweep(tx, sweep, limit))
            return SweepReply(len(due), due)
        unblocked = await self._connection.write(lambda tx: flow.unblock_ready(tx, limit))
        self._drop_cursors = await self._connection.write(lambda tx: upkeep.drop_idle(tx, self._drop_cursors))
        return SweepReply(unblocked)

    async def next_due(self, sweep: Sweep, queues: Sequence[str] = ()) -> float | None:
        if sweep is Sweep.UNBLOCK:
            return await self._connection.read(lambda tx: flow.next_opening(tx, queues))
        return await self._connection.read(upkeep.next_run)

    async def overdue(self, clock: Overdue, limit: int) -> OverdueJobs:
        return await self._connection.read(lambda tx: upkeep.overdue(tx, clock, limit))

    async def add_dependencies(self, edges: Sequence[Dependency]) -> list[State | None]:
        if not edges:
            return []
        # What a power failure undoes is found again: blocked jobs are decided again once a minute.
        return await self._connection.write(lambda tx: dependencies.add_dependencies(tx, edges), Durability.LATER)

    async def completed_parents(self, done: Sequence[CompletedParent], limit: int) -> list[CompletedParent]:
        if not done:  # an idle queue is asked often: it need not write
            return await self._connection.read(lambda tx: dependencies.completed_parents(tx, done, limit))
        # Undone by a power failure, it is only done once more.
        return await self._connection.write(
            lambda tx: dependencies.completed_parents(tx, done, limit), Durability.LATER
        )

    async def list(self, scope: ListScope, after: str | None, limit: int) -> RecordPage:
        cursor = listing.Cursor.parse(after)
        return await self._connection.read(lambda tx: listing.page(tx, scope, cursor, limit))


class SqliteFlow:
    """Flow control in a file."""

    def __init__(self, connection: Connection | InlineConnection) -> None:
        self._connection = connection

    async def rules(self) -> Rules:
        return await self._connection.read(lambda tx: tx.rules)

    async def set_rules(self, rules: Rules) -> bool:
        return await self._connection.write(lambda tx: put_rules(tx, rules))

    async def regroup(self, changes: Sequence[Regroup]) -> list[bool]:
        return await self._connection.write(lambda tx: regroup(tx, changes)) if changes else []

    async def hold(self, bucket: str, seconds: float) -> None:
        await self._connection.write(lambda tx: flow.hold_bucket(tx, bucket, seconds))

    async def backlog(self, tenant: str, queue: str, limit: int) -> list[LaneBacklog]:
        return await self._connection.read(lambda tx: listing.backlog(tx, tenant, queue, limit))

    async def rank(self, key: JobKey) -> int | None:
        return await self._connection.read(lambda tx: listing.rank(tx, key))

    async def usage(self, limit_rule: str, limit: int) -> list[BucketUsage]:
        return await self._connection.read(lambda tx: flow.usage(tx, limit_rule, limit))


class SqliteWorkers:
    """The workers of a file."""

    def __init__(self, connection: Connection | InlineConnection) -> None:
        self._connection = connection

    async def heartbeat(
        self, id: str, tenant: str, lease: float, new: NewWorker | None = None, usage: WorkerUsage | None = None
    ) -> Worker | None:
        durability = Durability.LATER if new is None else Durability.BEFORE_VISIBLE
        return await self._connection.write(
            lambda tx: records.heartbeat(tx, id, tenant, lease, new, usage=usage), durability
        )

    async def list(self, tenant: str) -> list[Worker]:
        return await self._connection.read(lambda tx: records.live_workers(tx, tenant))


class SqliteRecords:
    """The records of a file."""

    def __init__(self, connection: Connection | InlineConnection) -> None:
        self._connection = connection

    async def swap(self, kind: str, name: str, before: bytes | Unchecked | None, after: bytes | None) -> bool:
        return await self._connection.write(lambda tx: records.swap_record(tx, kind, name, before, after))

    async def list(self, kind: str, names: Sequence[str] | None = None) -> dict[str, bytes]:
        return await self._connection.read(lambda tx: records.read_records(tx, kind, names))


class SqliteAudit:
    """The audit log of a file."""

    def __init__(self, connection: Connection | InlineConnection) -> None:
        self._connection = connection

    async def add(self, tenant: str, line: bytes) -> None:
        await self._connection.write(lambda tx: records.add_audit_line(tx, tenant, line))

    async def list(self, tenant: str, after: str | None, limit: int) -> AuditRows:
        return await self._connection.read(lambda tx: records.audit_lines(tx, tenant, after, limit))


class SqliteFiles:
    """The files of a file."""

    def __init__(self, connection: Connection | InlineConnection) -> None:
        self._connection = connection

    async def attach(self, key: JobKey, token: bytes, left: Mapping[str, bytes]) -> bool:
        return await self._connection.write(lambda tx: files.attach(tx, key, token, left))

    async def left(self, key: JobKey) -> dict[str, int]:
        return await self._connection.read(lambda tx: files.left(tx, key))

    async def read(self, key: JobKey, name: str) -> bytes | None:
        return await self._connection.read(lambda tx: files.read(tx, key, name))

    async def upload(self, tenant: str, digest: bytes, data: bytes, *, seconds: float, most: int) -> None:
        await self._connection.write(lambda tx: files.upload(tx, tenant, digest, data, seconds=seconds, most=most))

    async def uploaded(self, tenant: str, digests: Sequence[bytes], seconds: float) -> dict[bytes, bytes]:
        return await self._connection.write(lambda tx: files.uploaded(tx, tenant, digests, seconds))


class SqliteSteps:
    """The results of steps in a file."""

    def __init__(self, connection: Connection | InlineConnection) -> None:
        self._connection = connection

    async def save(self, steps: Sequence[JobStep]) -> list[StepSaved]:
        work = partial(_save_steps, steps=steps)
        return await self._connection.write(work, Durability.BEFORE_ANSWER) if steps else []

    async def list(self, key: JobKey) -> StoredSteps:
        return await self._connection.read(lambda tx: files.steps(tx, key))


def _save_steps(tx: Transaction, steps: Sequence[JobStep]) -> list[StepSaved]:
    return [files.save_step(tx, step) for step in steps]


class SqliteDisk:
    """The disk that a file is on."""

    def __init__(self, connection: Connection | InlineConnection) -> None:
        self._connection = connection

    async def check_room(self) -> None:
        await self._connection.write(lambda tx: tx.check_room(), Durability.LATER)


class SqliteSpace:
    """How much a file takes of its disk."""

    def __init__(self, connection: Connection | InlineConnection) -> None:
        self._connection = connection

    async def read(self) -> StoreHealth:
        path = self._connection.path
        pages, log, free = await self._connection.read(lambda tx: (_size(tx), *_around(path)))
        return StoreHealth(kind="SQLite", used=pages + log, free=free)


def _around(path: str) -> tuple[int, int | None]:
    """Bytes of the log beside a file, and what is free on its disk."""
    if not path:
        return 0, None
    log = Path(f"{path}-wal")
    return log.stat().st_size if log.exists() else 0, shutil.disk_usage(Path(path).parent).free


def _size(tx: Transaction) -> int:
    """Bytes of the file, once its log is part of it."""
    (pages,), (size,) = tx.column("PRAGMA page_count"), tx.column("PRAGMA page_size")
    return int(pages * size)


class SqliteStore:
    """Jobs in one SQLite file, shared by any number of processes on one machine. Made by `open`."""

    def __init__(self, connection: Connection | InlineConnection, events: EventBus) -> None:
        self._connection = connection
        self._bus = events
        self.jobs: JobStore = SqliteJobs(connection)
        self.flow: FlowStore = SqliteFlow(connection)
        self.workers: WorkerStore = SqliteWorkers(connection)
        self.records: RecordStore = SqliteRecords(connection)
        self.events: EventStore = events
        self.journal: JournalTarget | None = None
        self.disk: LocalDisk | None = SqliteDisk(connection)
        self.space: StoreSpace | None = SqliteSpace(connection)
        self.audit: AuditStore | None = SqliteAudit(connection)
        self.files: FileStore | None = SqliteFiles(connection)
        self.steps: StepStore | None = SqliteSteps(connection)
        self.prepare: Preparation | None = None
        if isinstance(connection, InlineConnection):
            self.prepare = SqlitePreparation(connection)

    @classmethod
    def open(cls, path: str | os.PathLike[str], clock: Clock, *, blocking: bool = False) -> "SqliteStore":
        """Open a file, or create it; `:memory:` = a private store of this object. Its folder must exist.

        The clock is read on the connection's thread too. `blocking`: for callers without an event loop; each method
        but `listen` runs in the thread of its caller and never pauses.
        """
        place = resolve(path)
        events = EventBus(None if place == MEMORY else Path(f"{place}-wake"))
        if blocking:
            return cls(InlineConnection(place, clock, events.wake), events)
        return cls(Connection(connect(place), clock, events.wake), events)

    @property
    def path(self) -> str:
        """Of its file; empty = it is in memory."""
        return self._connection.path

    async def close(self) -> None:
        self._bus.close()
        await self._connection.close()

    async def examine(self, look: Callable[[Transaction], T]) -> T:
        """Let a function read the file as it is at one moment; for `scrub` and `facts`, not part of the protocol."""
        return await self._connection.read(look)


class SqlitePreparation:
    """Prepares commands for the threads of callers without an event loop."""

    def __init__(self, connection: InlineConnection) -> None:
        self._connection = connection

    def command(self, example: Draft) -> PreparedCommand | None:
        return PreparedAdd(self._connection, example)


class PreparedAdd:
    """Adds jobs that differ from an example in nothing but their ids and payloads, in the caller's thread."""

    def __init__(self, connection: InlineConnection, example: Draft) -> None:
        self._connection = connection
        self._example = example
        self._terms = pack_terms(example.new)
        self._suffix = raw_key("", example.tenant)
        """Of the keys of its tenant's jobs."""
        self.invalid = False

    def __call__(self, id: bytes, payload: bytes) -> bool | None:
        key = id + self._suffix
        try:
            return self._connection.write_now(
                lambda tx: jobs.add_like(tx, self._example, self._terms, key, payload), Durability.BEFORE_ANSWER
            )
        except StaleRules:  # the limit keys of the example are those of other rules
            self.invalid = True
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
        now=(await store.jobs.read([])).now,
    )


def _exposed(path: str) -> str:
    mode = Path(path).stat().st_mode if path else 0
    return f"others can read or write {path} (mode {mode & 0o777:03o})" if mode & 0o077 else ""


def _settings(tx: Transaction) -> tuple[str, str]:
    (journal,) = tx.column("PRAGMA journal_mode")
    (synchronous,) = tx.column("PRAGMA synchronous")
    return journal, SYNCHRONOUS[synchronous]
