"""A follower by server-sent events that does not read is dropped when too much waits, while others go on."""

import asyncio
import socket
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import pytest
import uvloop
from starlette.types import Message

from tests.support.http_servers import LOCAL
from tests.support.patience import PATIENCE
from tests.support.push_servers import Station, until
from windlass.model.job import Job
from windlass.model.operations import Alive, Claim, Claimed, Register, Renew
from windlass.model.output import MOST_CHUNK, NewChunk, Progress
from windlass.model.worker import NewWorker
from windlass.server.http_server import reset
from windlass.server.streams import MOST_BUFFERED, PIECE, SendQueue, Stream

SMALL = 4096


@asynccontextmanager
async def deaf(
    hub: Station, path: str, receive_buffer: int | None = SMALL, *, head: str = ""
) -> AsyncIterator[socket.socket]:
    """One who asks and reads no further than the first byte."""
    where = urlsplit(hub.address)
    loop = asyncio.get_running_loop()
    with socket.socket() as link:
        if receive_buffer is not None:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        link.setblocking(False)
        await loop.sock_connect(link, (where.hostname, where.port))
        request = f"GET {path} HTTP/1.1\r\nhost: {where.netloc}\r\nauthorization: Bearer {LOCAL}\r\n{head}\r\n"
        await loop.sock_sendall(link, request.encode())
        assert await loop.sock_recv(link, 1) == b"H"
        yield link


async def is_dropped(link: socket.socket) -> bool:
    """Whether there is an end to what can be read."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE):
            while await loop.sock_recv(link, 1 << 20):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


async def running(hub: Station, number: int = 1) -> tuple[str, list[Claimed], list[Job]]:
    jobs = [await hub.enqueue() for _ in range(number)]
    worker = (await hub.client(Register(worker=NewWorker(name="hand", slots=number)))).worker
    return worker, await hub.client(Claim(worker=worker, slots=number, wait=5)), jobs


async def until_followed(hub: Station, *, yes: bool = True) -> None:
    async def so() -> bool:
        return bool(hub.engine.feed.followers or hub.engine.feed._watchers) is yes

    await until(so)


async def test_who_follows_a_job_and_reads_nothing_is_dropped(hub: Station) -> None:
    worker, (claimed,), (job,) = await running(hub)
    async with deaf(hub, f"/v1/default/jobs/{job.id}/events") as link:
        said = 0
        async with asyncio.timeout(PATIENCE):
            await until_followed(hub)
            gone = asyncio.create_task(until_followed(hub, yes=False))
            while not gone.done():
                chunks = [NewChunk(stream="stdout", data=b"x" * MOST_CHUNK)] * 2
                await hub.client(Renew(worker=worker, jobs=[Alive(id=job.id, token=claimed.token, output=chunks)]))
                said += 2 * MOST_CHUNK
                await asyncio.sleep(0.05)
        assert said > MOST_BUFFERED
        assert await is_dropped(link)


async def test_who_watches_all_jobs_and_reads_nothing_is_dropped(hub: Station) -> None:
    worker, claimed, _ = await running(hub, 50)
    async with deaf(hub, "/v1/default/events") as link:
        said = 0
        async with asyncio.timeout(PATIENCE):
            await until_followed(hub)
            gone = asyncio.create_task(until_followed(hub, yes=False))
            while not gone.done():
                progress = Progress(done=said, note="n" * 1000)
                alive = [Alive(id=one.job.id, token=one.token, progress=progress) for one in claimed]
                await hub.client(Renew(worker=worker, jobs=alive))
                said += 1000 * len(alive)
                await asyncio.sleep(0.06)
        assert said > MOST_BUFFERED / 2, "a job in an event is larger than the note"
        assert await is_dropped(link)


async def test_the_kernel_holds_little_for_a_client_that_reads_nothing(hub: Station) -> None:
    """Otherwise it would take megabytes for each: memory that no process is charged for."""
    worker, claimed, _ = await running(hub, 50)
    async with deaf(hub, "/v1/default/events", receive_buffer=None):
        said = 0
        async with asyncio.timeout(PATIENCE):
            await until_followed(hub)
            gone = asyncio.create_task(until_followed(hub, yes=False))
            while not gone.done():
                progress = Progress(done=said, note="n" * 1000)
                alive = [Alive(id=one.job.id, token=one.token, progress=progress) for one in claimed]
                await hub.client(Renew(worker=worker, jobs=alive))
                said += 1000 * len(alive)
                await asyncio.sleep(0.06)
    assert said < 6 * MOST_BUFFERED, "what waits here, the kernel's buffers on both sides, and some that was on its way"


async def test_who_reads_slowly_but_reads_is_not(hub: Station) -> None:
    worker, claimed, _ = await running(hub, 20)
    loop = asyncio.get_running_loop()
    async with deaf(hub, "/v1/default/events") as link:
        await until_followed(hub)
        heard = 0
        for n in range(20):
            progress = Progress(done=n, note="n" * 1000)
            alive = [Alive(id=one.job.id, token=one.token, progress=progress) for one in claimed]
            await hub.client(Renew(worker=worker, jobs=alive))
            async with asyncio.timeout(PATIENCE):
                while heard < (n + 1) << 14:  # twenty notes of 1,000 bytes have been sent each time
                    heard += len(await loop.sock_recv(link, 1 << 14))
        assert hub.engine.feed._watchers


async def test_slow_followers_of_one_job_hold_the_same_output(hub: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads it from the store; hundreds of copies would have to be held for those that read nothing."""
    added: list[bytes] = []
    plain = SendQueue.add

    def add(queue: SendQueue, frame: str | bytes) -> None:
        if len(frame) >= MOST_CHUNK:
            added.append(frame if isinstance(frame, bytes) else frame.encode())
        plain(queue, frame)

    monkeypatch.setattr(SendQueue, "add", add)
    worker, (claimed,), (job,) = await running(hub)
    path, number = f"/v1/default/jobs/{job.id}", 3
    upgrade = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    key = f"sec-websocket-key: {b64encode(bytes(16)).decode()}\r\n"
    async with AsyncExitStack() as opened:
        for _ in range(number):
            await opened.enter_async_context(deaf(hub, f"{path}/events"))
            await opened.enter_async_context(deaf(hub, f"{path}/live", head=upgrade + key))
        for text in (b"x", b"y"):
            chunk = NewChunk(stream="stdout", data=text * MOST_CHUNK)
            await hub.client(Renew(worker=worker, jobs=[Alive(id=job.id, token=claimed.token, output=[chunk])]))

        async def all_added() -> bool:
            return len(added) == 2 * 2 * number

        await until(all_added)
    assert len({id(frame) for frame in added}) == 2 * 2, "one of each chunk for each kind of stream"


async def test_a_connection_holds_no_more_than_a_piece_of_what_others_get_too() -> None:
    frame, written = bytes(range(256)) * 4096, []

    async def source() -> AsyncGenerator[bytes, None]:
        yield frame

    async def send(message: Message) -> None:
        written.append(message.get("body", b""))

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {}

    stream = Stream(source(), "text/plain", AsyncExitStack(), asyncio.get_running_loop().create_future())
    await stream({"type": "http"}, receive, send)
    assert b"".join(written) == frame
    assert max(map(len, written)) <= PIECE


class UntilLost(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


def test_a_connection_that_is_closed_already_can_be_reset() -> None:
    async def reset_closed() -> None:
        here, there = socket.socketpair()
        with there:
            transport, link = await asyncio.get_running_loop().create_connection(UntilLost, sock=here)
            known = transport.get_extra_info("socket")
            transport.abort()
            await link.lost.wait()
            assert known.fileno() == -1
            reset(transport)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(reset_closed())
