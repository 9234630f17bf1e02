"""Keys, tenants and tasks without end: when their jobs are gone, nothing of them stays in a store."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Raw

from tests.support.patience import PATIENCE
from tests.support.stores import SeededChance, StoreKind, VirtualClock, World, scrub
from windlass.model.names import EVERY_TENANT, fresh_id
from windlass.model.new_job import NewJob
from windlass.model.worker import Worker
from windlass.store.data import ClaimRequest, Draft, JobSuccess, Sweep
from windlass.store.flow import LimitRule, Rules
from windlass.store.protocol import Store
from windlass.store.redis import RedisStore
from windlass.store.redis.scrub import _read
from windlass.store.sqlite import SqliteStore
from windlass.store.sqlite.transaction import Transaction
from windlass.system import SystemClock, SystemRandomness

AT_ONCE = 1000

ONCE = 8
"""What the first job leaves behind, and no other: the last number given out, and the like."""

RULES: dict[str, dict[str, Any]] = {
    "places": {"limit_rules": {"-/a": LimitRule(running=2, queue="default")}},
    "a window": {"limit_rules": {"-/a": LimitRule(count=3, per=0.2, queue="default")}},
    "tokens": {"limit_rules": {"-/a": LimitRule(count=3, per=0.2, burst=3, queue="default")}},
    "turns": {"fair_queues": {"default": {}}, "fair_tenant_queues": {"*,default": {"t1": 3.0}}},
}

Leavings = dict[str, int]
"""How many rows a table has, or entries a key."""


@pytest.fixture(params=("sqlite", "redis"))
def kind(request: pytest.FixtureRequest) -> StoreKind:
    found: StoreKind = request.param
    return found


@pytest.fixture
async def store(kind: StoreKind, address: str, prefix: str) -> AsyncIterator[Store]:
    """By the real time: what expires by itself does so by the server's clock."""
    found: SqliteStore | RedisStore
    if kind == "sqlite":
        found = SqliteStore.open(address, SystemClock())
    else:
        found = await RedisStore.open(address, prefix=prefix)
    try:
        yield found
        assert await scrub(found) == []
    finally:
        await found.close()


async def leavings(store: Store) -> Leavings:
    """But for the counts of how runs ended, which stay on purpose and have a bound of their own."""
    if isinstance(store, SqliteStore):
        return await store.examine(_rows)
    redis = cast("RedisStore", store)
    found = await _read(redis, redis.partitions.key(0))
    there = {key: kept for key, kept in found.items() if kept is not None}  # others have expired meanwhile
    counts = {
        key: 1 if isinstance(kept, bytes) else len(kept) for key, kept in there.items() if b":outcomes" not in key
    }
    return {key.decode(): count for key, count in counts.items()}


def _rows(tx: Transaction) -> Leavings:
    tables = tx.column(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'outcome' AND name NOT LIKE 'sqlite_%'"
    )
    return {table: tx.column(f"SELECT count(*) FROM {table}")[0] for table in tables}  # noqa: S608 - our own names


class Passage:
    """Jobs that come, run and vanish, each with a key, a tenant and a task of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._chance = SystemRandomness()
        now = SystemClock().now()
        self._worker = Worker(id="w", name="w", tenant=EVERY_TENANT, registered_at=now, seen_at=now)

    async def through(self, numbers: Sequence[int]) -> None:
        """Every tenth of them with so many jobs that some have to wait for the others."""
        flow = self._store.flow
        for number in numbers[::10]:
            await flow.hold(f"-/a=k{number}", 0.001)
        drafts = [self._draft(number) for number in numbers] + [self._draft(n) for n in numbers[::10] for _ in "ab"]
        assert all(await self._store.jobs.add(drafts))
        left = len(drafts)
        async with asyncio.timeout(PATIENCE):
            while left:
                await self._store.jobs.sweep(Sweep.UNBLOCK, 1000)
                wish = ClaimRequest(self._worker, self._chance.token(), AT_ONCE, 60.0, repeatable=False, heard=False)
                taken = await self._store.jobs.claim(wish)
                dones = [
                    JobSuccess(one.job.id, one.job.tenant, one.token or b"", 200, None, "text/plain") for one in taken
                ]
                assert all(await self._store.jobs.succeed(dones))
                left -= len(taken)

    def _draft(self, number: int) -> Draft:
        id = fresh_id(self._chance.uuid7(), "default")
        new = NewJob(task=f"t{number % 7}", payload=Raw(b"\xc0"), keep_success=0)
        return Draft(f"tenant{number}", id, new, f"|-/a=k{number}")


@pytest.mark.parametrize("many", [2000, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("rules", RULES)
async def test_keys_without_end_leave_nothing_behind(store: Store, rules: str, many: int) -> None:
    flow, passage = store.flow, Passage(store)
    assert await flow.set_rules(Rules(version=1, **RULES[rules]))
    before = await leavings(store)
    for start in range(0, many, AT_ONCE):
        await passage.through(range(start, start + AT_ONCE))
    await _is_as(store, before)


async def _is_as(store: Store, before: Leavings) -> None:
    """By and by, as house is kept; and what has a clock goes by it."""
    found: Leavings = {}
    async with asyncio.timeout(PATIENCE):
        while not found or sum(found.values()) > sum(before.values()) + ONCE:
            await asyncio.sleep(0.05 if found else 0)
            await store.jobs.sweep(Sweep.UNBLOCK, 1000)
            found = await leavings(store)


async def test_what_one_process_has_dropped_another_makes_again(tmp_path: Path) -> None:
    """Both remember the numbers of lanes and lines by their names."""
    clock, chance = VirtualClock(), SeededChance()
    path = tmp_path / "jobs.db"
    stores = [SqliteStore.open(path, clock) for _ in "ab"]
    here, there = (World(store, clock, chance) for store in stores)
    for adding, taking in ((here, there), (there, here), (here, here), (there, there)):
        id = await adding.add(tenant="t", group="|-/a=1", keep_success=0)
        record = await taking.take(taking.worker(tenant="t"))
        assert record.job.id == id
        assert await taking.succeed(record)
        await taking.store.jobs.sweep(Sweep.UNBLOCK, 100)
        assert (await leavings(adding.store))["lane"] == 0
        assert (await leavings(adding.store))["tenant_queue"] == 0
        assert await scrub(adding.store) == []
    for store in stores:
        await store.close()
