"""A journal in front of a real store: opened, waited for, drained and looked at in the words of the tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.faulty_disk import draft
from tests.support.patience import PATIENCE
from tests.support.servers import Server
from tests.support.stores import journal_of
from windlass.engine import Engine
from windlass.engine.journal import Journal, Journaled, JournalSettings, open_journaled
from windlass.engine.journal.drain import Drainer
from windlass.model.errors import Unavailable
from windlass.model.new_job import NewJob
from windlass.model.operations import Claim, GetStats, Register
from windlass.model.worker import NewWorker
from windlass.store.redis import RedisStore
from windlass.system import SystemClock, SystemRandomness

CLOCK = SystemClock()


@asynccontextmanager
async def engine_at(url: str, prefix: str = "wl") -> AsyncIterator[Engine]:
    store = await RedisStore.open(url, prefix=prefix)
    try:
        yield Engine(store, SystemRandomness())
    finally:
        await store.close()


@asynccontextmanager
async def journaled_at(url: str, folder: Path, prefix: str = "wl") -> AsyncIterator[Journaled]:
    async with engine_at(url, prefix) as engine, open_journaled(engine, folder, CLOCK) as service:
        yield service


async def caught_up(service: Journaled) -> None:
    """Wait until the store has what was accepted: a caller waits no more than a second for that."""

    async def has_all() -> bool:
        return service._drainer.reached >= service._journal.last

    await until(has_all)


async def until(done: Callable[[], Awaitable[bool]], within: float = PATIENCE) -> None:
    async with asyncio.timeout(within):
        while not await done():
            await CLOCK.sleep(0.02)


async def down(service: Journaled) -> None:
    """Wait until it is known that the store does not answer."""

    async def refused() -> bool:
        try:
            await service(GetStats())
        except Unavailable:
            return not service._drainer.up
        return False

    await until(refused)


async def up(service: Journaled) -> None:
    async def drained() -> bool:
        return service._drainer.up and service._journal.drained == service._journal.last

    await until(drained)


async def in_order(engine: Any) -> list[int]:
    """The numbers of all queued jobs in the order in which they would run."""
    worker = (await engine(Register(worker=NewWorker(name="w", slots=1000)))).worker
    found: list[int] = []
    while claimed := await engine(Claim(worker=worker, slots=1000)):
        found += [int.from_bytes(bytes(one.payload)[1:]) for one in claimed]
    return found


def new(number: int, **terms: Any) -> NewJob:
    return NewJob(task="work", payload=draft(number).new.payload, **terms)


def redis_of(engine: Engine) -> RedisStore:
    store = engine.context.store
    assert isinstance(store, RedisStore)
    return store


def taken(folder: Path) -> Journal:
    """The journal in a folder, by itself."""
    journal = Journal(folder, CLOCK, SystemRandomness(), JournalSettings())
    assert journal.open(), "another process has it"
    return journal


async def drained(folder: Path, engine: Engine) -> int:
    """Drain what was left in a folder, as the next process does; where it began."""
    journal = taken(folder)
    drainer = Drainer(journal, journal_of(engine.context.store), engine.context, CLOCK)
    await drainer.start()
    began = journal.drained
    await drainer.drain()
    assert journal.drained == journal.last
    await journal.close()
    return began


async def lose(server: Server, prefix: str) -> None:
    """All that a partition has, at one stroke: what is put back meanwhile must not be lost again."""
    store = await RedisStore.open(server.url, prefix=prefix)
    ask = store.partitions.connection.ask
    for partition in range(store.partitions.number):
        key = store.partitions.key(partition)
        cursor: Any = "0"
        found: set[bytes] = set()
        while cursor != b"0":
            cursor, keys = await ask(key, "SCAN", cursor, "MATCH", f"{key}*", "COUNT", 1000)
            found.update(keys)
        if found:
            await ask(key, "DEL", *found)
    await store.close()
