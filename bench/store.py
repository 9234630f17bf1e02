"""`./dev bench store`: adds, claims and finishes of both stores against the raw limit of the same run.

100-byte payloads. The raw limits are a pipelined SET of fresh keys over a bare socket for Redis, and a batched insert
into a table of id and payload for SQLite, with the same bytes and the same settings. As for those, what is written is
made beforehand: drafts for adds. "Through the engine" is what a caller of operations gets, checks and ids included.
"""

import argparse
import asyncio
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import apsw
import hiredis
from msgspec import Raw

from bench.table import Table
from tests.servers import Server
from windlass.engine import Engine
from windlass.model.job import NewJob
from windlass.model.lifecycle import Verdict
from windlass.model.names import fresh_id
from windlass.model.operations import Claim, EnqueueMany, Finish, Finished
from windlass.model.worker import NewWorker, Worker
from windlass.store import Done, Draft, Store, Wish
from windlass.store.redis import RedisStore
from windlass.store.sqlite import SqliteStore
from windlass.system import SystemChance, SystemClock

PAYLOAD = b"\xc4\x62" + bytes(98)  # a MessagePack binary: 100 bytes in all
BIG = 1000
ROUNDS = 3
LEASE = 60.0


class Place(NamedTuple):
    """A store to measure, how many bytes it takes, and what its ground could do at the most."""

    name: str
    store: Store
    size: Callable[[], int]
    raw: Callable[[int, int], float]
    """Bare writes per second: how many in all, how many at a time."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def together(call: Callable[[], Awaitable[int]], total: int, callers: int) -> float:
    """Jobs per second by several callers at once, as in a worker: while one waits for the store, others work."""
    done = 0

    async def caller() -> None:
        nonlocal done
        while done < total:
            number = await call()  # on a line of its own: `done` must be read after the wait, not before
            done += number

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return done / (time.perf_counter() - begun)


class Rates:
    """Measures one store, with and without the engine."""

    def __init__(self, store: Store, worker: Worker, callers: int) -> None:
        self.store = store
        self.callers = callers
        self.worker = worker
        self.chance = SystemChance()
        self.engine = Engine(store, self.chance)
        self.job = NewJob(task="bench", payload=Raw(PAYLOAD))

    async def add(self, total: int, batch: int) -> float:
        def draft() -> Draft:
            return Draft("default", fresh_id(self.chance.uuid7(), "default"), self.job)

        batches = [[draft() for _ in range(batch)] for _ in range(total // batch + self.callers)]

        async def call() -> int:
            await self.store.add(batches.pop())
            return batch

        return await together(call, total, self.callers)

    async def add_through_engine(self, total: int, batch: int) -> float:
        async def call() -> int:
            return len((await self.engine(EnqueueMany(jobs=[self.job] * batch))).ids)

        return await together(call, total, self.callers)

    async def drain(self, total: int, batch: int) -> float:
        async def call() -> int:
            wish = Wish(self.worker, self.chance.token(), batch, LEASE, repeatable=False)
            records = await self.store.claim(wish)
            await self.store.succeed([Done(one.job.id, wish.nonce, 200, None, "") for one in records])
            return some(records)

        return await together(call, total, self.callers)

    async def drain_through_engine(self, total: int, batch: int) -> float:
        async def call() -> int:
            claimed = await self.engine(Claim(worker=self.worker.id, slots=batch))
            reports = [Finished(id=one.job.id, token=one.token, outcome=Verdict.OK) for one in claimed]
            await self.engine(Finish(worker=self.worker.id, jobs=reports))
            return some(claimed)

        return await together(call, total, self.callers)


def some(jobs: Sequence[object]) -> int:
    if not jobs:
        raise RuntimeError("the backlog ran dry")
    return len(jobs)


async def enlisted(store: Store) -> Worker:
    new = NewWorker(name="bench", slots=BIG)
    await store.enlist("bench", "default", new, 3600)
    worker = await store.greet("bench", "default", 3600)
    if worker is None:
        raise RuntimeError("the store has forgotten its worker")
    return worker


async def measure(place: Place, backlog: int, callers: int, table: Table) -> None:
    """All figures of one store at one backlog: the best of some rounds each, because the machine is shared."""
    rates = Rates(place.store, await enlisted(place.store), callers)
    await rates.add(1, 1)  # a server keeps the text of a script from its first call on; no job weighs that
    empty = place.size()
    say(f"  filling up with {backlog:,} jobs")
    await rates.add(backlog, BIG)
    filled = sum(tally.count for tally in await place.store.tally("default"))
    table.put(place.name, backlog, "bytes per queued job", (place.size() - empty) / (filled - 1))
    # What one figure adds another drains: the backlog stays what the column says.
    for batch, total in ((1, 1000), (100, 20_000), (BIG, 20_000)):
        raw, plain, engine = [], [], []
        for _ in range(ROUNDS):
            raw.append(place.raw(total, batch))
            plain.append(await rates.add(total, batch))
            engine.append(await rates.add_through_engine(total, batch))
            await rates.drain(2 * total, 100)
        table.put(place.name, backlog, f"bare writes/s, batches of {batch}", max(raw))
        table.put(place.name, backlog, f"adds/s, batches of {batch}", max(plain))
        table.put(place.name, backlog, f"adds : bare writes, batches of {batch}", max(plain) / max(raw))
        table.put(place.name, backlog, f"adds/s through the engine, batches of {batch}", max(engine))
    for batch, total in ((1, 1000), (10, 5000), (100, 20_000)):
        plain, engine = [], []
        for _ in range(ROUNDS):
            await rates.add(2 * total, BIG)
            plain.append(await rates.drain(total, batch))
            engine.append(await rates.drain_through_engine(total, batch))
        what = f"claim+finish/s, batches of {batch}"
        table.put(place.name, backlog, what, max(plain))
        table.put(place.name, backlog, f"claim+finish/s through the engine, batches of {batch}", max(engine))
        if backlog > BIG:
            slower = table.get(place.name, BIG, what) / max(plain)
            table.put(place.name, backlog, f"cost against a backlog of 1,000, batches of {batch}", slower)


@asynccontextmanager
async def redis_place(folder: Path, fsync: str) -> AsyncIterator[Place]:
    with Server("redis", folder, fsync=fsync) as server:  # type: ignore[arg-type]
        store = await RedisStore.open(server.url)

        def size() -> int:
            return int(server.ask("INFO", "memory").split("used_memory:")[1].split("\r")[0])

        def raw(total: int, batch: int) -> float:
            return pipelined_set(server.port, total, batch)

        try:
            yield Place("redis", store, size, raw)
        finally:
            await store.close()


def pack(*words: bytes) -> bytes:
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type] # its stub knows only pairs
    return packed


def pipelined_set(port: int, total: int, batch: int) -> float:
    """SET of the same payload under fresh keys over a bare socket, so many at a time; they are gone afterwards."""
    keys = [b"raw%021d" % number for number in range(total)]
    requests = [
        b"".join(pack(b"SET", key, PAYLOAD) for key in keys[start : start + batch]) for start in range(0, total, batch)
    ]
    reader = hiredis.Reader()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun = time.perf_counter()
        for request in requests:
            connection.sendall(request)
            answers = 0
            while answers < batch:
                reader.feed(connection.recv(1 << 16))
                while reader.gets() is not False:
                    answers += 1
        rate = total / (time.perf_counter() - begun)
        connection.sendall(pack(b"DEL", *keys))
        connection.recv(100)
    return rate


@asynccontextmanager
async def sqlite_place(folder: Path) -> AsyncIterator[Place]:
    path = folder / "bench.db"
    store = SqliteStore.open(str(path), SystemClock())

    def size() -> int:
        return sum(file.stat().st_size for file in folder.glob("bench.db*") if file.is_file())

    def raw(total: int, batch: int) -> float:
        return bare_insert(folder / "bare.db", total, batch)

    try:
        yield Place("sqlite", store, size, raw)
    finally:
        await store.close()


def bare_insert(path: Path, total: int, batch: int) -> float:
    """Insert of the same payload into a table of id and payload, so many a transaction, each synced to disk."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.execute("CREATE TABLE IF NOT EXISTS bare (id BLOB PRIMARY KEY, payload BLOB)")
    batches = [[(os.urandom(16), PAYLOAD) for _ in range(batch)] for _ in range(total // batch)]
    begun = time.perf_counter()
    for rows in batches:
        with connection:
            connection.executemany("INSERT INTO bare VALUES (?, ?)", rows)
    rate = total / (time.perf_counter() - begun)
    connection.execute("DROP TABLE bare")
    connection.close()
    return rate


async def run(stores: list[str], backlogs: list[int], fsync: str, callers: int) -> Table:
    table = Table()
    for backlog in backlogs:
        for name in stores:
            say(f"{name}, backlog {backlog:,}")
            with tempfile.TemporaryDirectory(prefix="windlass-bench-") as folder:
                place = redis_place(Path(folder), fsync) if name == "redis" else sqlite_place(Path(folder))
                async with place as ready:
                    await measure(ready, backlog, callers, table)
    return table


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench store", description=__doc__)
    parser.add_argument("--stores", default="sqlite,redis", help="which stores (default: %(default)s)")
    parser.add_argument("--backlogs", default="1000,100000,1000000", help="jobs waiting (default: %(default)s)")
    parser.add_argument("--fsync", default="everysec", help="Redis appendfsync (default: %(default)s)")
    parser.add_argument("--callers", type=int, default=6, help="callers at once in one process (default: %(default)s)")
    options = parser.parse_args(arguments)
    backlogs = [int(number) for number in options.backlogs.split(",")]
    table = asyncio.run(run(options.stores.split(","), backlogs, options.fsync, options.callers))
    print(table.markdown())
    return 0
