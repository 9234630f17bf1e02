"""Worlds to test in: a clock that only the test moves, chance from a seed, and each kind of store over both.

`store` is every kind in turn; `world` is the same store with short ways to say what a test does to it. When a test is
over, the scrubber looks at what it left behind: a store that is not sound fails the test.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from _pytest.mark import ParameterSet
from msgspec import Raw
from msgspec.structs import replace

from tests.store.model_store import ModelStore
from tests.support.servers import NewPrefix, Server
from windlass.model.job import FINISHED, PENDING, Job, State
from windlass.model.lifecycle import Move
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT, JobKey, fresh_id
from windlass.model.new_job import NewJob
from windlass.model.output import Chunk
from windlass.model.unique import identity_of
from windlass.model.worker import Worker
from windlass.store.data import (
    ClaimRequest,
    Draft,
    Heartbeat,
    HeartbeatReply,
    JobSuccess,
    ListScope,
    Record,
    StoredResult,
)
from windlass.store.optional import JournalTarget
from windlass.store.protocol import FlowStore, Store
from windlass.store.redis import RedisStore
from windlass.store.redis import scrub as redis_scrub
from windlass.store.sqlite import SqliteStore
from windlass.store.sqlite import scrub as sqlite_scrub

StoreKind: TypeAlias = Literal["sqlite", "file", "redis", "valkey", "cluster", "model"]
STORES: tuple[StoreKind, ...] = ("sqlite", "file", "redis", "valkey", "cluster")
WITH_MODEL: tuple[StoreKind, ...] = (*STORES, "model")
EACH_CODE: tuple[StoreKind, ...] = ("sqlite", "redis", "valkey", "cluster", "model")
"""For what is the same in a file and in memory."""

EVERY_RUN: tuple[StoreKind, ...] = ("sqlite", "redis")
"""The kinds that a test outside `tests/store` runs on each time; on the others it is a long test."""

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
ALL = PENDING | FINISHED


class VirtualClock:
    """Stands still until a test advances it; a sleeper wakes when it has advanced far enough."""

    def __init__(self, start: datetime = EPOCH) -> None:
        self._start = start
        self._passed = timedelta()
        self._sleepers: list[tuple[timedelta, asyncio.Event]] = []

    def now(self) -> datetime:
        return self._start + self._passed

    def monotonic(self) -> float:
        return self._passed.total_seconds()

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        sleeper = (self._passed + timedelta(seconds=seconds), woken)
        self._sleepers.append(sleeper)
        try:
            self.advance(0)
            await woken.wait()
        finally:
            self._sleepers.remove(sleeper)

    def advance(self, seconds: float) -> None:
        self._passed += timedelta(seconds=seconds)
        for due, woken in self._sleepers:
            if due <= self._passed:
                woken.set()


class SeededChance:
    """The same seed says the same things in the same order."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._milliseconds = itertools.count(1_767_225_600_000)

    def fraction(self) -> float:
        return self._random.random()

    def token(self) -> bytes:
        return self._random.randbytes(8)

    def uuid7(self) -> bytes:
        made = bytearray(next(self._milliseconds).to_bytes(6, "big") + self._random.randbytes(10))
        made[6] = made[6] & 0x0F | 0x70
        made[8] = made[8] & 0x3F | 0x80
        return bytes(made)


@asynccontextmanager
async def open_store(
    kind: StoreKind, address: str, clock: VirtualClock | None, prefix: str = "wl"
) -> AsyncIterator[Store]:
    """Open a store of this kind; what the scrubber finds when it is left is a failure."""
    async with opened(kind, address, clock, prefix) as store:
        yield store
        findings = await scrub(store)
        assert not findings, f"the scrubber of {kind} found: {findings}"


@asynccontextmanager
async def opened(kind: StoreKind, address: str, clock: VirtualClock | None, prefix: str) -> AsyncIterator[Store]:
    store: Store
    if kind == "model":
        store = ModelStore(clock or VirtualClock())
    elif kind in ("sqlite", "file"):
        store = SqliteStore.open(address, clock or VirtualClock())
    else:
        # Many partitions, so that the queues of a test are spread over them.
        partitions = 16 if kind == "cluster" else None
        store = await RedisStore.open(address, clock=clock, prefix=prefix, partitions=partitions)
    try:
        yield store
    finally:
        await store.close()


async def scrub(store: Store) -> Sequence[object]:
    """What is not sound in a store; nothing, for the model."""
    if isinstance(store, SqliteStore):
        return await sqlite_scrub.scrub(store)
    if isinstance(store, RedisStore):
        return await redis_scrub.scrub(store)
    return []


def address_of(kind: StoreKind, request: pytest.FixtureRequest, folder: Path) -> str:
    """Where a store of this kind is opened; a server is started when it is first asked for."""
    if kind in ("sqlite", "model"):
        return ":memory:"
    if kind == "file":
        return str(folder / "jobs.db")
    server = request.getfixturevalue(f"{kind}_server")
    assert isinstance(server, Server)
    return server.url


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def chance() -> SeededChance:
    return SeededChance()


def with_long(kinds: Sequence[StoreKind], every_run: Sequence[StoreKind] = EVERY_RUN) -> list[ParameterSet]:
    """Parameters for a test on these kinds of store: on those that are not of every run it is a long test."""
    return [pytest.param(kind, marks=() if kind in every_run else pytest.mark.long) for kind in kinds]


@pytest.fixture(params=with_long(STORES))
def kind(request: pytest.FixtureRequest) -> StoreKind:
    """Each kind of store in turn. `tests/store` has a fixture of its own, in which none of them is long."""
    found: StoreKind = request.param
    return found


@pytest.fixture
def address(kind: StoreKind, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return address_of(kind, request, tmp_path)


@pytest.fixture
def prefix(new_prefix: NewPrefix) -> str:
    return new_prefix()


@pytest.fixture
async def store(kind: StoreKind, address: str, clock: VirtualClock, prefix: str) -> AsyncIterator[Store]:
    async with open_store(kind, address, clock, prefix) as found:
        yield found


class World:
    """A store, its clock, and short ways to say what a test does to them."""

    def __init__(self, store: Store, clock: VirtualClock, chance: SeededChance) -> None:
        self.store = store
        self.clock = clock
        self.chance = chance
        self.group_epoch = 0

    @property
    def flow(self) -> FlowStore:
        return self.store.flow

    def draft(
        self,
        task: str = "work",
        *,
        tenant: str = DEFAULT_TENANT,
        queue: str = "default",
        payload: bytes = b"\xc0",
        id: str | None = None,
        group: str = "",
        **terms: Any,
    ) -> Draft:
        new = NewJob(task=task, queue=queue, payload=Raw(payload), **terms)
        identity = b"" if new.unique is None else identity_of(tenant, new)
        return Draft(tenant, id or fresh_id(self.chance.uuid7(), queue), new, group, self.group_epoch, identity)

    async def add(self, task: str = "work", **terms: Any) -> str:
        draft = self.draft(task, **terms)
        assert await self.store.jobs.add([draft]) == [True]
        return draft.id

    async def add_many(self, count: int, task: str = "work", **terms: Any) -> list[str]:
        drafts = [self.draft(task, **terms) for _ in range(count)]
        assert all(await self.store.jobs.add(drafts))
        return [draft.id for draft in drafts]

    async def set_rules(self, **rules: Any) -> None:
        """Change these rules, and no others."""
        before = await self.flow.rules()
        after = replace(before, version=before.version + 1, **rules)
        assert await self.flow.set_rules(after)
        self.group_epoch = after.group_epoch

    def worker(self, *queues: str, id: str = "w1", tenant: str = DEFAULT_TENANT, **more: Any) -> Worker:
        now = self.clock.now()
        named = list(queues) or ["default"]
        return Worker(name=id, id=id, tenant=tenant, queues=named, registered_at=now, seen_at=now, **more)

    async def claim(
        self,
        worker: Worker | None = None,
        slots: int = 1,
        *,
        lease: float = 60.0,
        nonce: bytes | None = None,
        warm: Sequence[str] = (),
        **more: Any,
    ) -> list[Record]:
        request = ClaimRequest(worker or self.worker(), nonce or self.chance.token(), slots, lease, warm=warm, **more)
        return await self.store.jobs.claim(request)

    async def take(self, worker: Worker | None = None, *, lease: float = 60.0) -> Record:
        """Claim the one job that must be there."""
        (record,) = await self.claim(worker, lease=lease)
        return record

    async def touch(self, record: Record, *, lease: float = 60.0, **said: Any) -> HeartbeatReply:
        (touched,) = await self.store.jobs.heartbeat(
            [Heartbeat(record.job.id, record.job.tenant, token(record), **said)], lease
        )
        return touched

    async def succeed(
        self, record: Record, result: bytes | None = None, *, content_type: str = "text/plain", **more: Any
    ) -> bool:
        done = JobSuccess(record.job.id, record.job.tenant, token(record), 200, result, content_type, **more)
        (applied,) = await self.store.jobs.succeed([done])
        return applied

    async def apply(self, move: Move, by: Record | None = None) -> bool:
        """Write a move; `by` is the claimed record whose token is its fence."""
        (applied,) = await self.store.jobs.apply([replace(move, fence=token(by)) if by else move])
        return applied

    async def record(self, id: str, *, tenant: str | None = None, payload: bool = False) -> Record | None:
        """A job; of the only tenant that has the id, if none is named."""
        whose = tenant or ((await self.store.jobs.tenants_with([id]))[0] or [DEFAULT_TENANT])[0]
        (record,) = (await self.store.jobs.read([JobKey(id, whose)], payload=payload)).records
        return record

    async def result(self, id: str, tenant: str = DEFAULT_TENANT) -> StoredResult | None:
        return (await self.store.jobs.results([JobKey(id, tenant)]))[0]

    async def rank(self, id: str) -> int | None:
        return await self.flow.rank(JobKey(id, DEFAULT_TENANT))

    async def output(self, id: str, after: int, limit: int, tenant: str = DEFAULT_TENANT) -> list[Chunk]:
        return await self.store.jobs.output(JobKey(id, tenant), after, limit)

    async def records(self, ids: Sequence[str], *, payload: bool = False) -> list[Record | None]:
        """Jobs of the default tenant."""
        return (await self.store.jobs.read([JobKey(id, DEFAULT_TENANT) for id in ids], payload=payload)).records

    async def job(self, id: str) -> Job:
        record = await self.record(id)
        assert record is not None, "there is no such job"
        return record.job

    async def gone(self, id: str) -> bool:
        return await self.record(id) is None

    async def jobs(
        self,
        tenant: str = EVERY_TENANT,
        queue: str | None = None,
        states: frozenset[State] = ALL,
        limit: int = 100,
    ) -> list[Job]:
        """All pages of a listing."""
        return [job async for page in self.pages(ListScope(tenant, queue, states), limit) for job in page]

    async def pages(self, scope: ListScope, limit: int) -> AsyncIterator[list[Job]]:
        after: str | None = None
        while True:
            found = await self.store.jobs.list(scope, after, limit)
            assert len(found.records) <= limit
            yield [record.job for record in found.records]
            if found.next is None:
                return
            assert found.next != after, "this page would be followed by itself"
            after = found.next


def journal_of(store: Store) -> JournalTarget:
    assert store.journal is not None, "no journal can be drained into this store"
    return store.journal


def token(record: Record) -> bytes:
    assert record.token is not None, "a job that is not running has no token"
    return record.token


def ids(records: Sequence[Record] | Sequence[Job]) -> list[str]:
    return [found.job.id if isinstance(found, Record) else found.id for found in records]


@pytest.fixture
def world(store: Store, clock: VirtualClock, chance: SeededChance) -> World:
    return World(store, clock, chance)
