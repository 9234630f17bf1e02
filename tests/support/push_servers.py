"""A server in real time, and workers in the same loop that have jobs sent to them.

A `Station` is what `windlass serve` is made of: an engine over a real store, upkeep, push, HTTP on a real socket. A
`Receiver` is a push worker: it notes what it is sent and answers as the test says.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from msgspec import Raw

from tests.support.http_servers import LOCAL, close, start
from tests.support.patience import PATIENCE
from tests.support.servers import NewPrefix
from windlass.client import Client
from windlass.dialect import s2
from windlass.engine import Engine, Settings
from windlass.engine.push_workers import PushWorkers
from windlass.engine.records import Keyring
from windlass.engine.upkeep import run_upkeep
from windlass.model import push, wire
from windlass.model.job import FINISHED, Job
from windlass.model.new_job import NewJob
from windlass.model.operations import Claimed, Enqueue, Register, Registered, Renew, Show
from windlass.model.worker import NewWorker
from windlass.run_server import language_of
from windlass.server.application import application
from windlass.server.auth import Auth, TokensAndLocal
from windlass.server.http_server import ListenAddress, server
from windlass.server.requests import RequestLimits
from windlass.store.protocol import Store
from windlass.store.redis import RedisStore
from windlass.store.sqlite import SqliteStore
from windlass.system import SystemClock, SystemRandomness
from windlass.worker.network import Allowed, Network
from windlass.worker.push import Push

HERE = Network(Allowed(), answer_within=PATIENCE)

Answer = tuple[int, Any]
"""A status and a value for the body; null = none."""

Answering = Callable[["Sent"], Awaitable[Answer]]


@pytest.fixture(params=["file", "redis"])
async def real_store(request: pytest.FixtureRequest, tmp_path: Path, new_prefix: NewPrefix) -> AsyncIterator[Store]:
    """A store that lives in real time."""
    store: Store
    if request.param == "file":
        store = SqliteStore.open(str(tmp_path / "jobs.db"), SystemClock())
    else:
        store = await RedisStore.open(request.getfixturevalue("redis_server").url, prefix=f"{new_prefix()}live")
    yield store
    await store.close()


class Station:
    """One server."""

    def __init__(self, engine: Engine, push: Push, client: Client, address: str, stopping: asyncio.Event) -> None:
        self.engine = engine
        self.push = push
        self.client = client
        self.address = address
        self.stopping = stopping

    async def enqueue(self, task: str = "work", value: object = None, **terms: Any) -> Job:
        return await self.client(Enqueue(job=NewJob(task=task, payload=Raw(wire.encode(value)), **terms)))

    async def register(self, receiver: "Receiver", *, slots: int = 1, **more: Any) -> Registered:
        new = NewWorker(name="w", slots=slots, url=more.pop("url", receiver.url), format=receiver.format, **more)
        receiver.registered = await self.client(Register(worker=new))
        return receiver.registered

    async def renew(self, worker: str) -> None:
        await self.client(Renew(worker=worker))

    async def shown(self, job: Job) -> Job:
        return await self.client(Show(id=job.id))

    async def ended(self, job: Job, within: float = PATIENCE) -> Job:
        found = await self.client(Show(id=job.id, wait=within))
        assert found.state in FINISHED, found
        return found


@asynccontextmanager
async def station(store: Store, *, lease: float = 15.0, network: Network = HERE) -> AsyncIterator[Station]:
    clock = SystemClock()
    engine = Engine(store, SystemRandomness(), Settings(lease=lease))
    sending = Push(
        engine, PushWorkers(engine.context, clock), network, language_of, clock=clock, chance=SystemRandomness()
    )
    stopping = asyncio.Event()
    auth = Auth(TokensAndLocal(Keyring(engine.context, clock), LOCAL), local=True)
    also = s2.routes(sending, auth, RequestLimits())
    http = server(application(sending, engine, auth, None, stopping, also=also), ListenAddress(port=0))
    await start(http)
    tasks = [asyncio.create_task(work) for work in (sending.run(), run_upkeep(engine, clock))]
    address = f"http://127.0.0.1:{http.servers[0].sockets[0].getsockname()[1]}"
    try:
        async with Client(address, LOCAL) as client:
            yield Station(engine, sending, client, address, stopping)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await close(http)
        assert not [found for found in results if isinstance(found, Exception)], results


@pytest.fixture
async def hub(real_store: Store) -> AsyncIterator[Station]:
    """However slow this machine is, no lease runs out."""
    async with station(real_store, lease=PATIENCE) as found:
        yield found


@pytest.fixture
async def brief_hub(real_store: Store) -> AsyncIterator[Station]:
    """One whose leases do run out."""
    async with station(real_store, lease=3.0) as found:
        yield found


# Workers


class Sent(msgspec.Struct, frozen=True):
    """What a worker was sent."""

    headers: dict[str, str]
    body: bytes
    claimed: Claimed
    target: str = ""
    """The path it was sent to."""

    @property
    def task(self) -> str:
        return self.claimed.job.task


@dataclass
class Receiver:
    """A push worker."""

    answer: Answering
    format: Any = "msgpack"
    reads: Any = Claimed
    url: str = ""
    registered: Registered | None = None
    connections: int = 0
    at_once: int = 0
    most_at_once: int = 0
    sent: list[Sent] = field(default_factory=list)
    came: asyncio.Condition = field(default_factory=asyncio.Condition)
    times: list[float] = field(default_factory=list)
    open: set[asyncio.Task[None]] = field(default_factory=set)

    async def has(self, number: int, within: float = PATIENCE) -> list[Sent]:
        """Wait until it has been sent so many jobs."""
        async with asyncio.timeout(within), self.came:
            await self.came.wait_for(lambda: len(self.sent) >= number)
        return self.sent

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.open.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    await self._one(reader, writer)
        finally:
            self.open.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
        body = await reader.readexactly(int(headers["content-length"]))
        self.times.append(asyncio.get_running_loop().time())
        sent = Sent(headers, body, wire.decode(body, self.reads, self.format), head[0].split()[1])
        self.sent.append(sent)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        async with self.came:
            self.came.notify_all()
        try:
            status, value = await self.answer(sent)
        finally:
            self.at_once -= 1
        if isinstance(value, dict) and "location" in value:
            writer.write(f"HTTP/1.1 {status} x\r\nlocation: {value['location']}\r\ncontent-length: 0\r\n\r\n".encode())
        else:
            data = value if isinstance(value, bytes) else b"" if value is None else wire.encode(value, self.format)
            writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()

    def is_signed(self, sent: Sent) -> bool:
        assert self.registered is not None
        secret = self.registered.secret
        assert isinstance(secret, str)
        return push.signature(secret, sent.headers[push.TIMESTAMP], sent.body) == sent.headers[push.SIGNATURE]


def always(status: int, value: Any = None) -> Answering:
    async def answer(_: Sent) -> Answer:
        return status, value

    return answer


OK = always(200, {"outcome": "ok", "result": 7})


@asynccontextmanager
async def receiver(answer: Answering, *, host: str = "127.0.0.1", **more: Any) -> AsyncIterator[Receiver]:
    found = Receiver(answer, **more)
    listening = await asyncio.start_server(found.connected, host, 0)
    port = listening.sockets[0].getsockname()[1]
    found.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/jobs"
    try:
        yield found
    finally:
        listening.close()
        for task in (held := list(found.open)):
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        await asyncio.sleep(0)  # what was broken off is closed


async def until(true: Callable[[], Awaitable[bool]], within: float = PATIENCE) -> None:
    """Wait for something that sends no signal."""
    async with asyncio.timeout(within):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def lines(address: str, path: str, **headers: str) -> AsyncIterator[str]:
    """The lines of a stream."""
    async with (
        httpx2.AsyncClient(base_url=address, trust_env=False, timeout=PATIENCE) as client,
        client.stream("GET", path, headers={"authorization": f"Bearer {LOCAL}", **headers}) as response,
    ):
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            yield line
