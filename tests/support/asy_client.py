"""A client of the dialect `asy`, written from the protocol alone."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.http_servers import LOCAL
from tests.support.patience import PATIENCE

PLAIN, RESTORE = "asyonline.asy", "asyonline.asy+restore"
SHELL = "asyonline.asy.interactive"
WITH_BYTES = ("output", "result")


class Frame(NamedTuple):
    """What a server has said."""

    verb: str
    value: Any
    data: bytes | None = None


class AsyClient:
    """One connection."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.heard: list[Frame] = []

    async def say(self, verb: str, value: Any, data: bytes | None = None) -> None:
        await self.socket.send(f"{verb} {json.dumps(value)}")
        if data is not None:
            await self.socket.send(data)

    async def add(self, name: str, data: bytes, **more: Any) -> None:
        await self.say("add", {"filename": name, **more}, data)

    async def draw(self, text: bytes = b"circle", **options: Any) -> None:
        """A whole task of one file."""
        await self.add("main.asy", text)
        if options:
            await self.say("options", options)
        await self.say("start", {"main": "main.asy"})

    async def hear(self) -> Frame | None:
        """The next frame; null = the server has closed."""
        try:
            async with asyncio.timeout(PATIENCE):
                text = await self.socket.recv()
                assert isinstance(text, str)
                verb, _, value = text.partition(" ")
                data = await self.socket.recv() if verb in WITH_BYTES else None
        except ConnectionClosed:
            return None
        assert data is None or isinstance(data, bytes)
        frame = Frame(verb, json.loads(value), data)
        self.heard.append(frame)
        return frame

    async def until(self, verb: str) -> Frame:
        while (frame := await self.hear()) is not None:
            if frame.verb == verb:
                return frame
        raise AssertionError(f"no {verb}: {self.heard}")

    async def rest(self) -> list[Frame]:
        """Everything until the server closes."""
        while await self.hear() is not None:
            pass
        return self.heard

    def output(self, stream: str) -> bytes:
        return b"".join(
            frame.data or b"" for frame in self.heard if frame.verb == "output" and frame.value["stream"] == stream
        )


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@asynccontextmanager
async def asy(
    site: str, *protocols: str, path: str = "/asy", token: str | None = LOCAL, **more: Any
) -> AsyncIterator[AsyClient]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    address = site.replace("http://", "ws://") + path
    offered: Any = list(protocols or (PLAIN,))
    async with connect(
        address, subprotocols=offered, additional_headers=headers, proxy=None, max_size=None, **more
    ) as socket:
        yield AsyClient(socket)
