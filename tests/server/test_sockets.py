"""Misused connections: endless bodies, clients that never read, ambiguous heads, and tokens that are removed during a
stream or long poll.
"""

import asyncio
import select
import socket
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.server.test_live_slow_readers import SMALL, deaf, running
from tests.support.http_servers import LOCAL, Web, decoded, process, served, web
from tests.support.patience import LONGEST_WAIT, NOTIFIED, PATIENCE
from tests.support.push_servers import Station, until
from tests.support.stores import VirtualClock
from windlass.client import Client
from windlass.engine import Engine
from windlass.model.errors import Unauthenticated
from windlass.model.job import State
from windlass.model.operations import AddToken, Alive, Claim, Register, RemoveToken, Renew, Show
from windlass.model.output import MOST_CHUNK, NewChunk
from windlass.model.token import key_of
from windlass.model.worker import NewWorker
from windlass.server import http_server, streams
from windlass.server.requests import RequestLimits
from windlass.store.data import ANYTHING

in_process = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)


def port_of(site: str) -> int:
    return int(site.rpartition(":")[2])


# Bodies that are not read

REFUSED = {
    "401": "POST /v1/default/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n",
    "413": f"POST /v1/default/jobs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {LOCAL}\r\n"
    "content-type: application/json\r\ncontent-length: 1000000000\r\n\r\n",
    "404": "POST /nothing HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nfffff\r\n",
    "200": "GET /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n",
}


@in_process
@pytest.mark.parametrize("status", REFUSED)
async def test_an_answer_before_the_end_of_the_body_ends_the_connection(
    status: str, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "LINGER", 0.3, raising=False)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(site))
    writer.write(REFUSED[status].encode())
    told = b""
    ended = asyncio.create_task(reader.read())
    with suppress(ConnectionError):
        for _ in range(100):  # bytes that trickle, each before the idle timeout
            if ended.done():
                break
            writer.write(b"x")
            await writer.drain()
            await asyncio.wait({ended}, timeout=0.1)
    assert ended.done(), "the connection is still open"
    told = ended.result()
    assert f" {status} ".encode() in told.partition(b"\r\n")[0]
    assert b"\r\nconnection: close\r\n" in told.lower()
    async with asyncio.timeout(30):
        with suppress(ConnectionError):
            while True:  # the server has closed it
                writer.write(b"x" * 1000)
                await writer.drain()
                await asyncio.sleep(0.01)
    writer.close()


@in_process
async def test_a_client_that_sends_its_whole_body_first_can_read_the_error(engine: Engine, clock: VirtualClock) -> None:
    async with served(engine, clock, limits=RequestLimits(most_body=1000)) as site, web(site) as client:
        for _ in range(5):
            response = await client.post(
                "/v1/default/jobs", content=b" " * (4 << 20), headers={"content-type": "application/json"}
            )
            assert (response.status_code, decoded(response)["code"]) == (413, "too_large")


@in_process
async def test_a_connection_whose_requests_are_whole_goes_on(site: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(site))
    for _ in range(3):
        writer.write(b"POST /v1/default/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\nabc")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        assert b" 401 " in head
        assert b"connection: close" not in head
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
    writer.close()


def _is_broken(link: socket.socket) -> bool:
    """Send one more byte."""
    try:
        link.send(b"x")
    except OSError:
        return True
    return False


def test_senders_without_a_token_use_no_capacity(tmp_path: Path) -> None:
    """The descriptors of a server are few: those of refused requests come back."""
    with process(tmp_path, "--no-worker") as server:
        links = []
        try:
            for _ in range(150):
                link = socket.create_connection(("127.0.0.1", server.port))
                links.append(link)
                link.sendall(REFUSED["401"].encode())
            with httpx2.Client(base_url=server.address, trust_env=False, verify=False, timeout=30) as client:
                over = time.monotonic() + PATIENCE
                while sum(map(_is_broken, links)) < len(links) and time.monotonic() < over:
                    time.sleep(0.05)
                assert client.get("/healthz").status_code == 200
                assert server.descriptors() < 100
        finally:
            for link in links:
                link.close()


# Heads that may be read two ways


@in_process
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n", b" 400 "),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nHost: localhost\r\n\r\n", b" 400 "),
        (b"POST /healthz HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", b" 501 "),
        (
            b"GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            b" 501 ",
        ),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: Chunked\r\n\r\n0\r\n\r\n", b" 200 "),
        (b"GET /v HTTP/1.1\r\nhost: a\r\nhost: b\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", b" 400 "),
    ],
)
async def test_a_head_that_others_may_read_otherwise_is_refused(head: bytes, status: bytes, site: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(site))
    writer.write(head)
    assert status in await asyncio.wait_for(reader.readline(), 30)
    writer.close()


async def test_requests_that_are_no_http_do_not_fill_the_log(tmp_path: Path) -> None:
    with process(tmp_path, "--no-worker") as server:
        before = len((tmp_path / "log").read_text().splitlines())
        for n in range(200):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"nonsense %d\r\n\r\n" % n)
            assert b" 400 " in await asyncio.wait_for(reader.readline(), 30)
            writer.close()
        said = (tmp_path / "log").read_text().splitlines()[before:]
        assert 1 <= len(said) <= 5, said


# Readers that do not read


@asynccontextmanager
async def deaf_socket(hub: Station, path: str) -> AsyncIterator[socket.socket]:
    """One who opens a WebSocket and reads no further than the first byte."""
    where, loop = urlsplit(hub.address), asyncio.get_running_loop()
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        link.setblocking(False)
        await loop.sock_connect(link, (where.hostname, where.port))
        key = b64encode(b"0123456789abcdef").decode()
        head = (
            f"GET {path} HTTP/1.1\r\nhost: {where.netloc}\r\nauthorization: Bearer {LOCAL}\r\nupgrade: websocket\r\n"
            f"connection: upgrade\r\nsec-websocket-key: {key}\r\nsec-websocket-version: 13\r\n\r\n"
        )
        await loop.sock_sendall(link, head.encode())
        assert await loop.sock_recv(link, 1) == b"H"
        yield link


def is_cut_off(link: socket.socket) -> bool:
    """Whether the other side is gone, without reading anything."""
    look = select.poll()
    look.register(link, 0)
    return any(happened & (select.POLLERR | select.POLLHUP) for _, happened in look.poll(0))


@pytest.mark.parametrize("real_store", ["file"], indirect=True)
@pytest.mark.parametrize("way", ["socket", "events", "output"])
async def test_a_client_that_reads_nothing_is_disconnected(
    way: str, hub: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when no more than what waits already is ever said: by time."""
    monkeypatch.setattr(http_server, "STALLED_FOR", 0.5, raising=False)
    worker, (claimed,), (job,) = await running(hub)
    chunks = [NewChunk(stream="stdout", data=b"x" * MOST_CHUNK)] * 2
    alive = [Alive(id=job.id, token=claimed.token, output=chunks)]
    path = f"/v1/default/jobs/{job.id}/{'live' if way == 'socket' else way}"
    if way == "output":  # a plain answer: ask for so much at once that no buffer has room for it
        for _ in range(8):
            await hub.client(Renew(worker=worker, jobs=alive))
    async with (deaf_socket if way == "socket" else deaf)(hub, path) as link:
        if way == "output":
            again = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {LOCAL}\r\n\r\n".encode()
            for _ in range(20):
                with suppress(BlockingIOError):
                    link.send(again)
        async with asyncio.timeout(60):
            while not is_cut_off(link):
                if way != "output":
                    await hub.client(Renew(worker=worker, jobs=alive))
                await asyncio.sleep(0.05)
    assert (await hub.client(Show(id=job.id))).state is State.RUNNING


@pytest.mark.parametrize("real_store", ["file"], indirect=True)
async def test_little_waits_for_each_of_many_slow_readers(hub: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    most, add = 0, streams.SendQueue.add

    def noted(self: streams.SendQueue, frame: streams.Frame) -> None:
        nonlocal most
        add(self, frame)
        most = max(most, self.buffered)

    monkeypatch.setattr(streams.SendQueue, "add", noted)
    worker, (claimed,), (job,) = await running(hub)
    chunks = [NewChunk(stream="stdout", data=b"x" * MOST_CHUNK)] * 2
    async with deaf(hub, f"/v1/default/jobs/{job.id}/events") as link, asyncio.timeout(60):
        while not is_cut_off(link):
            await hub.client(Renew(worker=worker, jobs=[Alive(id=job.id, token=claimed.token, output=chunks)]))
            await asyncio.sleep(0.02)
    assert 0 < most <= (256 << 10) + 2 * 2 * MOST_CHUNK


# Tokens that are good no more


async def token(hub: Station, expires: float | None = None) -> str:
    return (await hub.engine(AddToken(tenant="default", scopes=["read", "work"], expires=expires))).token


async def spoil(hub: Station, shown: str, how: str) -> None:
    """Let a token be good no more: by this server, by another one over the same store, or by its time."""
    if how == "removed":
        await hub.engine(RemoveToken(tenant="default", key=str(key_of(shown))))
    elif how == "removed elsewhere":
        await hub.engine.context.store.records.swap("token", str(key_of(shown)), ANYTHING, None)


@pytest.mark.parametrize("how", ["removed", "removed elsewhere", "expired"])
@pytest.mark.parametrize("path", ["events", "jobs/{id}/events", "jobs/{id}/live"])
async def test_streams_end_with_their_token(path: str, how: str, hub: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await hub.enqueue()
    shown = await token(hub, expires=3.0 if how == "expired" else None)
    address = f"/v1/default/{path.format(id=job.id)}"
    monkeypatch.setattr("windlass.server.live.KEEP_ALIVE", 10 * PATIENCE)  # no stream ends because it is written to
    async with asyncio.timeout(PATIENCE):
        if path.endswith("live"):
            await _live_until_closed(hub, address, shown, how)
            return
        async with web(hub.address, shown) as client, client.stream("GET", address) as response:
            assert response.status_code == 200
            await spoil(hub, shown, how)
            async for _ in response.aiter_raw():
                pass
        async with web(hub.address, shown) as client:
            assert (await client.get(address)).status_code == 401


async def _live_until_closed(hub: Station, address: str, shown: str, how: str) -> None:
    where = hub.address.replace("http", "ws", 1)
    async with connect(f"{where}{address}", additional_headers={"authorization": f"Bearer {shown}"}) as link:
        await link.recv()
        await spoil(hub, shown, how)
        with suppress(ConnectionClosed):
            async for _ in link:
                pass
        assert link.close_code == 1008


@pytest.mark.parametrize("how", ["removed", "removed elsewhere"])
async def test_a_waiting_claim_ends_with_its_token_and_keeps_no_job(how: str, hub: Station) -> None:
    shown = await token(hub)
    async with Client(hub.address, shown) as client:
        worker = (await client(Register(worker=NewWorker(name="w")))).worker
        waiting = asyncio.create_task(client(Claim(worker=worker, wait=LONGEST_WAIT)))
        await asyncio.sleep(0.3)
        await spoil(hub, shown, how)
        async with asyncio.timeout(NOTIFIED):
            with pytest.raises(Unauthenticated):
                await waiting
    job = await hub.enqueue()
    other = (await hub.client(Register(worker=NewWorker(name="other")))).worker

    async def taken() -> bool:
        return bool(await hub.client(Claim(worker=other)))

    await until(taken)
    shown_job = await hub.shown(job)
    assert (shown_job.worker, shown_job.attempt) == (other, 1)


@pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)
async def test_a_token_is_good_at_once_where_it_was_issued_and_bad_at_once_where_it_was_removed(
    page: Web, site: str
) -> None:
    """No time passes here."""
    assert (await page.send("GET", "/jobs")).status_code == 200
    issued = decoded(await page.send("POST", "/tokens", {"scopes": ["read"]}))
    async with web(site, issued["token"]) as client:
        assert (await client.get("/v1/default/jobs")).status_code == 200
        assert (await page.send("DELETE", f"/tokens/{issued['key']}")).status_code == 204
        assert (await client.get("/v1/default/jobs")).status_code == 401
