"""The store over Redis or Valkey: opens it, checks its layout, holds its facets. Also workers, records, audit log."""

import asyncio
from collections.abc import Sequence

import msgspec

from windlass.model.audit import MOST_LINES_KEPT
from windlass.model.errors import Invalid, Unavailable
from windlass.model.health import StoreHealth
from windlass.model.names import EVERY_TENANT
from windlass.model.ports import Clock, Randomness
from windlass.model.worker import NewWorker, Worker, WorkerUsage
from windlass.store.data import ANYTHING, AccessRefused, Unchecked
from windlass.store.encoding import from_micros, span
from windlass.store.optional import (
    AuditRow,
    AuditRows,
    AuditStore,
    FileStore,
    JournalTarget,
    LocalDisk,
    Preparation,
    StepStore,
    StoreSpace,
    audit_cursor,
)
from windlass.store.protocol import EventStore, FlowStore, JobStore, RecordStore, WorkerStore
from windlass.store.redis.calls import Connection, Partitions
from windlass.store.redis.connection import BlockingChannel
from windlass.store.redis.events import EventBus
from windlass.store.redis.files import RedisFiles, RedisSteps
from windlass.store.redis.flow import HOME, RedisFlow
from windlass.store.redis.jobs import RedisJobs, RedisJournal, RedisPreparation
from windlass.store.redis.urls import Replicas

LAYOUT = "4"
"""Of the keys, as `lua/keys.lua` describes them; kept in the server."""

SPREAD = 16
"""Partitions of a new store on a cluster."""


class RedisWorkers:
    """Workers in Redis."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def heartbeat(
        self, id: str, tenant: str, lease: float, new: NewWorker | None = None, usage: WorkerUsage | None = None
    ) -> Worker | None:
        record, used = (b"" if said is None else msgspec.msgpack.encode(said) for said in (new, usage))
        reply = await self._partitions.call("worker_heartbeat", HOME, [id, span(lease), tenant, record, used])
        return (await self._workers(reply))[0] if reply else None

    async def _workers(self, reply: list[bytes]) -> list[Worker]:
        running: dict[str, int] = {}
        for held in (await self._partitions.each_there("count_running")).values():
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
                usage=None if usage is None else msgspec.msgpack.decode(usage, type=WorkerUsage),
            )
            for id, tenant, record, registered, seen, usage in (reply[at : at + 6] for at in range(0, len(reply), 6))
        ]

    async def list(self, tenant: str) -> list[Worker]:
        alive = await self._workers(await self._partitions.call("workers", HOME))
        own = [worker for worker in alive if tenant in (EVERY_TENANT, worker.tenant)]
        return sorted(own, key=lambda worker: (worker.registered_at, worker.id))


class RedisRecords:
    """Records in Redis."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def swap(self, kind: str, name: str, before: bytes | Unchecked | None, after: bytes | None) -> bool:
        expected = ("*", b"") if before is ANYTHING else ("1", before) if isinstance(before, bytes) else ("", b"")
        wanted = ("", b"") if after is None else ("1", after)
        function = "drop_record" if after is None else "swap_record"
        return bool(await self._partitions.call(function, HOME, [kind, name, *expected, *wanted]))

    async def list(self, kind: str, names: Sequence[str] | None = None) -> dict[str, bytes]:
        if names is not None and not names:
            return {}
        found = await self._partitions.call("records", HOME, [kind, *(names or ())])
        return {found[at].decode(): found[at + 1] for at in range(0, len(found), 2)}


class RedisAudit:
    """The audit log in Redis."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def add(self, tenant: str, line: bytes) -> None:
        await self._partitions.call("add_audit_line", HOME, [tenant, line, MOST_LINES_KEPT])

    async def list(self, tenant: str, after: str | None, limit: int) -> AuditRows:
        found = await self._partitions.call("audit_lines", HOME, [tenant, audit_cursor(after), limit])
        rows = [found[at : at + 4] for at in range(0, len(found), 4)]
        lines = [AuditRow(from_micros(int(at)), whose.decode(), data) for _, at, whose, data in rows]
        return AuditRows(lines, rows[-1][0].decode() if len(rows) == limit else None)


class RedisSpace:
    """The memory of a server, or of the members of a cluster that hold partitions."""

    def __init__(self, connection: Connection, partitions: Partitions) -> None:
        self._connection = connection
        self._partitions = partitions

    async def read(self) -> StoreHealth:
        keys = [self._partitions.key(number) for number in range(self._partitions.number)]
        answers = await asyncio.gather(*(self._about(key) for key in (keys if self._connection.cluster else keys[:1])))
        members = {said["run_id"]: said for said in answers}.values()
        bounds = [int(said.get("maxmemory", "0")) for said in members]
        used = sum(int(said["used_memory"]) for said in members)
        kind = "Valkey" if any("valkey_version" in said for said in members) else "Redis"
        return StoreHealth(kind=kind, used=used, free=max(0, sum(bounds) - used) if all(bounds) else None)

    async def _about(self, key: str) -> dict[str, str]:
        about: bytes = b"".join([await self._connection.ask(key, "INFO", part) for part in ("server", "memory")])
        return dict(line.split(":", 1) for line in about.decode().splitlines() if ":" in line)


class RedisStore:
    """Jobs in Redis. Made by `open`."""

    def __init__(self, connection: Connection, prefix: str, partitions: int | None, clock: Clock | None) -> None:
        self._connection = connection
        self._prefix = prefix
        self._wanted = partitions
        usual = SPREAD if connection.cluster else 1
        self.partitions = Partitions(connection, prefix, partitions or usual, clock)
        self._bus = EventBus(connection, self.partitions, prefix)
        flow = RedisFlow(self.partitions)
        jobs = RedisJobs(self.partitions, flow, self._bus.granted)
        self.jobs: JobStore = jobs
        self.flow: FlowStore = flow
        self.workers: WorkerStore = RedisWorkers(self.partitions)
        self.records: RecordStore = RedisRecords(self.partitions)
        self.events: EventStore = self._bus
        self.journal: JournalTarget | None = RedisJournal(jobs, self.ready)
        self.disk: LocalDisk | None = None
        self.space: StoreSpace | None = RedisSpace(connection, self.partitions)
        self.audit: AuditStore | None = RedisAudit(self.partitions)
        self.files: FileStore | None = RedisFiles(self.partitions)
        self.steps: StepStore | None = RedisSteps(self.partitions)
        self.prepare: Preparation | None = None
        if isinstance(connection.channel, BlockingChannel) and clock is None and connection.replicas is None:
            self.prepare = RedisPreparation(connection.channel, jobs)

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
        """Refuse a store whose keys another version made; one that has lost its mark is judged by its keys."""
        mark = f"{{{self._prefix}:partitions}}:layout"  # in a cluster beside the key of that name
        found = await self._connection.ask(mark, "GET", mark)
        if found is None:
            is_older = any(await self.partitions.each("has_older_layout"))
            found = b"1" if is_older else (await self._connection.set_once(mark, LAYOUT)).encode()
        if int(found) > int(LAYOUT):
            known = f"the store has layout {found.decode()}, this Windlass knows {LAYOUT}"
            raise Invalid(f"{known}: use a newer one", at="store")
        if int(found) < int(LAYOUT):
            raise Invalid(
                f"the keys of this store are in an older layout than {LAYOUT}, which this Windlass writes: use another"
                " database, or finish its jobs with the Windlass that wrote them and empty it",
                at="store",
            )

    async def close(self) -> None:
        await self._bus.close()
        await self._connection.close()
