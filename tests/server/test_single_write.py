"""Answers go out whole: their head and body in one write, unless the body is still to come."""

import asyncio
import socket

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from tests.support.http_servers import LOCAL
from windlass.server.http_server import HttpProtocol, JoinedWrites

in_process = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)


class Wire(asyncio.Transport):
    """Notes what is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[bytes | str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.done.append(bytes(data))

    def is_closing(self) -> bool:
        return "closed" in self.done

    def close(self) -> None:
        self.done.append("closed")

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.done.append("closed")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0


@pytest.fixture
async def wire() -> Wire:
    return Wire()


@pytest.fixture
async def joined(wire: Wire) -> JoinedWrites:
    return JoinedWrites(wire, asyncio.get_running_loop())


async def test_a_head_and_its_body_are_one_write(wire: Wire, joined: JoinedWrites) -> None:
    joined.write(b"head ")
    joined.write(b"body")
    await asyncio.sleep(0)
    assert wire.done == [b"head body"]


async def test_a_head_does_not_wait_for_a_body_that_comes_later(wire: Wire, joined: JoinedWrites) -> None:
    joined.write(b"head")
    await asyncio.sleep(0)
    assert wire.done == [b"head"]
    joined.write(b"body")
    await asyncio.sleep(0)
    assert wire.done == [b"head", b"body"]


async def test_what_was_written_goes_out_before_the_connection_is_closed(wire: Wire, joined: JoinedWrites) -> None:
    joined.write(b"head")
    joined.close()
    await asyncio.sleep(0)
    assert wire.done == [b"head", "closed"]


async def test_nothing_is_written_to_a_connection_that_was_cut_off(wire: Wire, joined: JoinedWrites) -> None:
    joined.write(b"head")
    wire.close()
    await asyncio.sleep(0)
    assert wire.done == ["closed"]


@pytest.mark.parametrize("then", ["stop", "nonsense", "a head without an end"])
async def test_an_answer_goes_out_before_its_connection_is_closed(wire: Wire, then: str) -> None:
    over = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        if then == "stop":
            connection.shutdown()
        else:
            connection.data_received(b"\0" if then == "nonsense" else b"GET /" + b"x" * (20 << 10))
        over.set()

    connection = HttpProtocol(config=uvicorn.Config(app), server_state=ServerState(), app_state={})
    connection.connection_made(wire)
    connection.data_received(b"HEAD / HTTP/1.1\r\nhost: here\r\n\r\n")
    await over.wait()
    written = b"".join(part for part in wire.done if isinstance(part, bytes))
    assert written.startswith(b"HTTP/1.1 204")
    assert wire.done[-1] == "closed"
    connection.connection_lost(None)


@in_process
async def test_a_client_reads_the_answer_at_once(site: str) -> None:
    host, _, port = site.removeprefix("http://").partition(":")
    ask = f"GET /v1/default/jobs/count HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {LOCAL}\r\n\r\n"
    loop = asyncio.get_running_loop()
    with socket.create_connection((host, int(port))) as connection:
        connection.setblocking(False)
        for _ in range(5):  # on one connection: each answer is joined
            await loop.sock_sendall(connection, ask.encode())
            answer = await loop.sock_recv(connection, 1 << 16)
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(b'{"count":0}')
