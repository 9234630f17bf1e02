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
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import apsw
import hiredis
from msgspec import Raw

from bench.table import Table
from tests.support.servers import Server
from windlass.engine import Engine
from windlass.model.names import fresh_id
from windlass.model.new_job import NewJob
from windlass.model.operations import Claim, EnqueueMany, Finish, Finished
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker, Worker
from windlass.store.data import ClaimRequest, Draft, JobSuccess
from windlass.store.protocol import Store
from windlass.store.redis import RedisStore
from windlass.store.sqlite import SqliteStore
from windlass.system import SystemClock, SystemRandomness

PAYLOAD = b"\xc4\x62" + bytes(98)  # a MessagePack binary: 100 bytes in all
BIG = 1000
ROUNDS = 6
WRITES = ("adds", "bare writes")
RAW = 4
"""Bare writes for each add: both are measured for about as long, or the shorter would find the better moments."""
LEASE = 60.0
LOOK_EVERY, LOOKS, MOST_LOOKS = 0.25, 4, 20
"""Seconds between looks at a size, how many must be alike, and how many there are at the most."""


class Place(NamedTuple):
    """A store to measure, how many bytes it takes, and what its ground could do at the most."""

    name: str
    store: Store
    size: Callable[[], int]
    raw: Callable[[int, int], float]
    """Bare writes per second: how many in all, how many at a time."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def together(call: Callable[[int], Awaitable[int]], total: int, batch: int, callers: int) -> float:
    """Jobs per second by several callers at once, as in a worker: while one waits for the store, others work.

    Each sets aside what it is about to do, so that they do `total` together and not a batch each more.
    """
    left = total

    async def caller() -> None:
        nonlocal left
        while left > 0:
            asked = min(batch, left)
            left -= asked
            done = await call(asked)  # on a line of its own: `left` must be read after the wait, not before
            left += asked - done

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return total / (time.perf_counter() - begun)


class Rates:
    """Measures one store, with and without the engine."""

    def __init__(self, store: Store, worker: Worker, callers: int) -> None:
        self.store = store
        self.callers = callers
        self.worker = worker
        self.chance = SystemRandomness()
        self.engine = Engine(store, self.chance)
        self.job = NewJob(task="bench", payload=Raw(PAYLOAD))

    async def add(self, total: int, batch: int) -> float:
        def draft() -> Draft:
            return Draft("default", fresh_id(self.chance.uuid7(), "default"), self.job)

        drafts = [draft() for _ in range(total)]

        async def call(number: int) -> int:
            some, drafts[-number:] = drafts[-number:], []
            await self.store.jobs.add(some)
            return number

        return await together(call, total, batch, self.callers)

    async def add_through_engine(self, total: int, batch: int) -> float:
        async def call(number: int) -> int:
            return len((await self.engine(EnqueueMany(jobs=[self.job] * number))).ids)

        return await together(call, total, batch, self.callers)

    async def drain(self, total: int, batch: int) -> float:
        async def call(number: int) -> int:
            wish = ClaimRequest(self.worker, self.chance.token(), number, LEASE, repeatable=False)
            records = await self.store.jobs.claim(wish)
            await self.store.jobs.succeed(
                [JobSuccess(one.job.id, one.job.tenant, wish.nonce, 200, None, "") for one in records]
            )
            return some(records)

        return await together(call, total, batch, self.callers)

    async def drain_through_engine(self, total: int, batch: int) -> float:
        async def call(number: int) -> int:
            claimed = await self.engine(Claim(worker=self.worker.id, slots=number))
            reports = [Finished(id=one.job.id, token=one.token, outcome=Verdict.OK) for one in claimed]
            await self.engine(Finish(worker=self.worker.id, jobs=reports))
            return some(claimed)

        return await together(call, total, batch, self.callers)


def some(jobs: Sequence[object]) -> int:
    if not jobs:
        raise RuntimeError("the backlog ran dry")
    return len(jobs)


async def enlisted(store: Store) -> Worker:
    new = NewWorker(name="bench", slots=BIG)
    await store.workers.heartbeat("bench", "default", 3600, new)
    worker = await store.workers.heartbeat("bench", "default", 3600)
    if worker is None:
        raise RuntimeError("the store has forgotten its worker")
    return worker


async def settled(size: Callable[[], int]) -> int:
    """How many bytes something takes once it has let go of the buffers of what it was asked last."""
    seen = [size()]
    while len(seen) < MOST_LOOKS and seen[-LOOKS:] != [seen[-1]] * LOOKS:
        await asyncio.sleep(LOOK_EVERY)
        seen.append(size())
    return seen[-1]


async def filled(place: Place, backlog: int, callers: int, table: Table) -> Rates:
    """A store with so many jobs waiting, and what each takes."""
    rates = Rates(place.store, await enlisted(place.store), callers)
    for batch in (1, 2):  # a server keeps the text of a script from its first call on: no job weighs that
        await rates.add(batch, batch)
        await rates.drain(batch, batch)
    empty = await settled(place.size)
    say(f"{place.name}: filling up with {backlog:,} jobs")
    await rates.add(backlog, BIG)
    table.put(place.name, backlog, "bytes per queued job", (await settled(place.size) - empty) / backlog)
    return rates


class Column(NamedTuple):
    """One store at one backlog."""

    backlog: int
    place: Place
    rates: Rates


Slice = Callable[[Column], Awaitable[dict[str, float]]]
"""A short measurement: figures by what they tell, each the better the higher. It leaves the backlog as it was."""


async def in_turn(columns: Sequence[Column], slice_of: Slice, table: Table) -> None:
    """The best of some rounds, in each of which every backlog has its turn: the machine is shared, and its speed
    changes, so what is compared must be measured side by side.
    """
    for _ in range(ROUNDS):
        for column in columns:
            for what, figure in (await slice_of(column)).items():
                table.best(column.place.name, column.backlog, what, figure)


def adding(batch: int, total: int) -> Slice:
    async def slice_of(column: Column) -> dict[str, float]:
        rates = column.rates
        figures = {
            f"bare writes/s, batches of {batch}": column.place.raw(RAW * total, batch),
            f"adds/s, batches of {batch}": await rates.add(total, batch),
            f"adds/s through the engine, batches of {batch}": await rates.add_through_engine(total, batch),
        }
        await rates.drain(2 * total, 100)
        return figures

    return slice_of


def draining(batch: int, total: int) -> Slice:
    async def slice_of(column: Column) -> dict[str, float]:
        rates = column.rates
        await rates.add(2 * total, BIG)
        return {
            f"claim+finish/s, batches of {batch}": await rates.drain(total, batch),
            f"claim+finish/s through the engine, batches of {batch}": await rates.drain_through_engine(total, batch),
        }

    return slice_of


async def measure(columns: Sequence[Column], table: Table) -> None:
    """All figures of one store."""
    for batch, total in ((1, 300), (100, 10_000), (BIG, 20_000)):
        say(f"{columns[0].place.name}: adds, batches of {batch}")
        await in_turn(columns, adding(batch, total), table)
    for batch, total in ((1, 300), (10, 2000), (100, 10_000)):
        say(f"{columns[0].place.name}: claims, batches of {batch}")
        await in_turn(columns, draining(batch, total), table)
    for backlog, place, _ in columns:
        for batch in (1, 100, BIG):
            adds, bare = (table.get(place.name, backlog, f"{what}/s, batches of {batch}") for what in WRITES)
            table.put(place.name, backlog, f"adds : bare writes, batches of {batch}", adds / bare)
        for batch in (1, 10, 100) if backlog > columns[0].backlog else ():
            own, least = (
                table.get(place.name, one, f"claim+finish/s, batches of {batch}")
                for one in (backlog, columns[0].backlog)
            )
            what = f"cost against a backlog of {columns[0].backlog:,}, batches of {batch}"
            table.put(place.name, backlog, what, least / own)


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
    for name in stores:
        async with AsyncExitStack() as stack:
            columns = []
            for backlog in backlogs:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windlass-bench-")))
                place = redis_place(folder, fsync) if name == "redis" else sqlite_place(folder)
                ready = await stack.enter_async_context(place)
                columns.append(Column(backlog, ready, await filled(ready, backlog, callers, table)))
            await measure(columns, table)
    return table


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench store", description=__doc__)
    parser.add_argument("--stores", default="sqlite,redis", help="which stores (default: %(default)s)")
    parser.add_argument("--backlogs", default="1000,100000,1000000", help="jobs waiting (default: %(default)s)")
    parser.add_argument("--fsync", default="everysec", help="Redis appendfsync (default: %(default)s)")
    parser.add_argument("--callers", type=int, default=6, help="callers at once in one process (default: %(default)s)")
    options = parser.parse_args(arguments)
    backlogs = sorted(int(number) for number in options.backlogs.split(","))
    table = asyncio.run(run(options.stores.split(","), backlogs, options.fsync, options.callers))
    print(table.markdown())
    return 0
