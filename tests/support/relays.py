"""Lines between programs that a test can cut or lead elsewhere, and a crowd that enqueues at a steady pace."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple, Self

import msgspec

BEGINNING = 1000
"""Bytes by which a connection is recognised."""


class Wire:
    """A port that leads to another one, until it is cut: then what is sent is lost, without an error."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.port = 0
        self._cut: bytes | None = None
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._over = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def cut(self, lines: bytes = b"") -> None:
        """For all connections, or for those that began like this."""
        self._cut = lines

    def mend(self) -> None:
        """Clients have to connect again: what was lost stays lost."""
        self._cut = None
        self._loop.call_soon_threadsafe(self._hang_up)

    def lead(self, port: int) -> None:
        """To another port from now on; clients have to connect again."""
        self.to = port
        self._loop.call_soon_threadsafe(self._hang_up)

    def _hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        self._hang_up()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # a client may have connected just now
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there = await asyncio.open_connection("127.0.0.1", self.to)
        except BaseException as fault:
            writer.transport.abort()
            if isinstance(fault, OSError):
                return
            raise
        pair, said = {writer, there}, bytearray()
        self._writers |= pair
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, there, said, forth=True))
                group.create_task(self._pass_on(there_reader, writer, said))
        finally:
            self._writers -= pair
            for one in pair:
                one.transport.abort()

    def _breaks(self, *, forth: bool) -> bool:
        """Whether the line goes down with what is just to be passed on, forth or back."""
        return False

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytearray, *, forth: bool = False
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if forth and len(said) < BEGINNING:
                    said += data
                if self._breaks(forth=forth):
                    break
                if self._cut is None or self._cut not in said:
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()


class Sent(NamedTuple):
    """A request and its answer."""

    number: int
    line: int
    """Which connection it went over."""
    status: int
    took: float
    body: bytes


class Crowd:
    """Connections that enqueue at a steady pace, each waiting for its answer before it goes on."""

    def __init__(self, port: int, token: str, body: Callable[[int], bytes], lines: int = 16) -> None:
        self._port = port
        self._token = token
        self._body = body
        self._lines = lines
        self.sent: list[Sent] = []

    def run(self, number: int, rate: float, meanwhile: Callable[[], None]) -> None:
        """Send so many, at so many a second; in another thread something happens meanwhile."""
        other = threading.Thread(target=meanwhile)
        other.start()
        _run(self._all(number, rate))
        other.join()

    async def _all(self, number: int, rate: float) -> None:
        began = time.monotonic()
        lines = (self._line(line, range(line, number, self._lines), began, rate) for line in range(self._lines))
        ended = await asyncio.gather(*lines, return_exceptions=True)
        for fault in ended:
            if fault is not None:
                raise fault

    async def _line(self, line: int, numbers: range, began: float, rate: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            for number in numbers:
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                asked = time.monotonic()
                writer.write(self._request(self._body(number)))
                status, answer = await _answer(reader)
                self.sent.append(Sent(number, line, status, time.monotonic() - asked, answer))
        finally:
            writer.close()

    def _request(self, body: bytes) -> bytes:
        head = (
            f"POST /v1/default/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/vnd.msgpack\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def accepted(self) -> dict[int, str]:
        """The ids of the jobs that were accepted, by number."""
        return {one.number: msgspec.msgpack.decode(one.body)["id"] for one in self.sent if one.status == 201}

    def slowest(self, share: float, numbers: range) -> float:
        """Seconds within which this share of these requests was answered."""
        took = sorted(one.took for one in self.sent if one.number in numbers)
        return took[min(len(took) - 1, int(share * len(took)))]


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner() as runner:
        runner.run(coroutine)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    size = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return status, await reader.readexactly(size)
