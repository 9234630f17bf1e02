"""The client before servers that break off, answer nonsense, or are not there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_servers import LOCAL, process
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from windlass.client import Client
from windlass.engine import Engine
from windlass.model.errors import Invalid, Unauthenticated, Unavailable, WindlassError
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Claim,
    Count,
    Enqueue,
    EnqueueMany,
    GetResult,
    GetStats,
    Operation,
    Register,
    Show,
)
from windlass.model.worker import NewWorker

UNKNOWN_ID = "00000000-0000-7000-8000-0000000000df"


class Stub:
    """Says the same to everybody, or hangs up; and counts who came."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
        await reader.readexactly(int(length or 0))
        self.asked += 1
        writer.write(self.answer)
        writer.close()


@asynccontextmanager
async def stubbed(answer: bytes = b"") -> AsyncIterator[tuple[Stub, Client]]:
    stub = Stub(answer)
    async with await asyncio.start_server(stub, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}") as client:
            yield stub, client


TWICE: list[Operation[Any]] = [
    GetStats(),
    Show(id=UNKNOWN_ID),
    Enqueue(job=NewJob(task="a", key="k")),
    Enqueue(job=NewJob(task="a", id=UNKNOWN_ID)),
    EnqueueMany(jobs=[NewJob(task="a", key="k"), NewJob(task="a", id=UNKNOWN_ID)]),
    Claim(worker="w", nonce="0123456789abcdef"),
]
ONCE: list[Operation[Any]] = [
    Enqueue(job=NewJob(task="a")),
    EnqueueMany(jobs=[NewJob(task="a", key="k"), NewJob(task="a")]),
    Claim(worker="w"),
    GetResult(id=UNKNOWN_ID),
]


@pytest.mark.parametrize("operation", TWICE, ids=lambda one: type(one).__name__)
async def test_what_may_come_twice_is_sent_again(operation: Operation[Any]) -> None:
    async with stubbed() as (stub, client):
        with pytest.raises(Unavailable):
            await client(operation)
        assert stub.asked == 2


@pytest.mark.parametrize("operation", ONCE, ids=lambda one: type(one).__name__)
async def test_what_must_come_once_is_not(operation: Operation[Any]) -> None:
    async with stubbed() as (stub, client):
        with pytest.raises(Unavailable):
            await client(operation)
        assert stub.asked == 1


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with Client(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(Unavailable, match="does not answer"):
            await client(GetStats())


ANSWERS = [
    (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\n<h1>", Unavailable),
    (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", Unavailable),
    (b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\n<h1>", WindlassError),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n<h1>", WindlassError),
    (b"nonsense\r\n\r\n", Unavailable),
]


@pytest.mark.parametrize(("answer", "kind"), ANSWERS, ids=[answer[9:12].decode() for answer, _ in ANSWERS])
async def test_an_answer_of_another_server_becomes_one_of_our_errors(answer: bytes, kind: type[WindlassError]) -> None:
    async with stubbed(answer) as (_, client):
        with pytest.raises(WindlassError) as fault:
            await client(GetStats())
        assert type(fault.value) is kind


def test_what_is_no_address_is_refused() -> None:
    for wrong in ("localhost:7717", "redis://x", "http:/x", ""):
        with pytest.raises(Invalid):
            Client(wrong)
    for wrong in ("a b", "a\n", "é"):
        with pytest.raises(Invalid, match="not a token"):
            Client("http://localhost", wrong)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_one_client_asks_many_things_at_once(engine: Engine, site: str) -> None:
    """More than it has connections, some of which wait for long."""
    job = await engine(Enqueue(job=NewJob(task="a")))
    async with Client(site, LOCAL) as client, asyncio.TaskGroup() as group:
        for _ in range(120):
            group.create_task(client(GetResult(id=job.id, wait=0.5)))
        news = [group.create_task(client(Enqueue(job=NewJob(task="a")))) for _ in range(300)]
        await asyncio.gather(*news)
    assert (await engine(Count())).count == 301


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_a_client_without_a_token_gets_an_error(site: str, kind: str) -> None:
    async with Client(site) as client:
        with pytest.raises(Unauthenticated):
            await client(GetStats())


async def test_a_claim_whose_client_has_gone_keeps_no_job(tmp_path: Path) -> None:
    with process(tmp_path, "--no-worker") as running:
        async with Client(running.address, running.token) as client:
            workers = [(await client(Register(worker=NewWorker(name=name)))).worker for name in ("gone", "there")]
            waiting = asyncio.create_task(client(Claim(worker=workers[0], wait=25.0)))
            await asyncio.sleep(0.5)  # until the server has it
            waiting.cancel()
            accepted = await client(Enqueue(job=NewJob(task="a")))
            async with asyncio.timeout(PATIENCE):
                while not (claimed := await client(Claim(worker=workers[1], wait=1.0))):
                    pass
            assert [(one.job.id, one.job.attempt) for one in claimed] == [(accepted.id, 1)]


async def test_a_closed_client_says_so() -> None:
    client = Client("http://127.0.0.1:9")
    await client.close()
    with pytest.raises(Unavailable, match="this client was closed"):
        await client(GetStats())


async def test_an_error_names_the_server_that_does_not_answer() -> None:
    async with Client("http://127.0.0.1:9") as client:
        with pytest.raises(Unavailable, match=r"the server at http://127\.0\.0\.1:9 does not answer"):
            await client(GetStats())
