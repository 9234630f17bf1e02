"""A crowd that follows jobs over WebSockets, as a program of its own: some of it never reads.

Given a port, a token, how many there are, how many are deaf, the job that those follow, and the jobs of the others. It
says `ready` when every follower has received an event; when its input ends it says what it has seen, as JSON.
"""

import asyncio
import base64
import json
import os
import select
import socket
import sys
import time

from tests.support.patience import PATIENCE

PING, PONG = 0x9, 0xA

SMALL = 4096
"""Bytes that the system buffers for one who never reads."""


def request(port: int, token: str, job: str) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET /v1/default/jobs/{job}/live HTTP/1.1\r\nhost: localhost:{port}\r\nauthorization: Bearer {token}\r\n"
        f"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\r\n"
    ).encode()


async def message(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The next message of a server; its frames are whole and not masked. It answers pings."""
    while True:
        head = await reader.readexactly(2)
        length = head[1] & 0x7F
        if length > 125:
            length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8))
        said = await reader.readexactly(length)
        if head[0] & 0x0F != PING:
            return said
        writer.write(bytes([0x80 | PONG, 0x80 | length]) + bytes(4) + said)  # a mask of zeros


class Seen:
    """What the crowd has seen."""

    def __init__(self) -> None:
        self.begun = 0
        self.begin = asyncio.Condition()
        self.delays: list[float] = []
        self.ended = 0

    async def note_begin(self) -> None:
        async with self.begin:
            self.begun += 1
            self.begin.notify_all()

    async def have_begun(self, number: int) -> None:
        async with self.begin:
            await self.begin.wait_for(lambda: self.begun >= number)


async def follow(port: int, token: str, job: str, seen: Seen) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(port, token, job))
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 101 " in head, head
    await message(reader, writer)
    await seen.note_begin()
    try:
        while True:
            event = json.loads(await message(reader, writer))
            if event["event"] == "progress":
                seen.delays.append(time.time() - float(event["data"]["progress"]["note"]))
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        seen.ended += 1
    finally:
        writer.transport.abort()


def deaf(port: int, token: str, job: str) -> socket.socket:
    """One who asks and never reads."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    link.connect(("127.0.0.1", port))
    link.sendall(request(port, token, job))
    return link


def was_dropped(link: socket.socket) -> bool:
    """Wait until the server has let go of it. The system says so though nothing is read: reading would let it go on."""
    watched = select.poll()
    watched.register(link, select.POLLRDHUP)
    return bool(watched.poll(PATIENCE * 1000))


async def main(port: int, token: str, followed: list[str], unheard: list[str]) -> None:
    seen = Seen()
    unread = [deaf(port, token, job) for job in unheard]
    async with asyncio.TaskGroup() as group:
        followers = []
        for place, job in enumerate(followed):
            followers.append(group.create_task(follow(port, token, job, seen)))
            await seen.have_begun(place - 50)  # a server takes so many at a time
        await seen.have_begun(len(followed))
        say("ready")
        await asyncio.to_thread(sys.stdin.read)
        dropped = sum([await asyncio.to_thread(was_dropped, link) for link in unread])
        say(json.dumps({"delays": seen.delays, "ended": seen.ended, "begun": seen.begun, "dropped": dropped}))
        for task in followers:
            task.cancel()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _, its_port, its_token, number, silent, loud, *jobs = sys.argv
    loudly = [loud] * int(silent)
    asyncio.run(main(int(its_port), its_token, [jobs[n % len(jobs)] for n in range(int(number) - len(loudly))], loudly))
