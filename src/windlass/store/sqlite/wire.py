"""News between processes on one file: lines in a pipe of each who watches. Nothing of it is written to the file.

That there is a pipe says that somebody watches. One that is full gets no more, and is told of the gap when it has room
again.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from windlass.store import machine
from windlass.store.beside import GAP
from windlass.store.sqlite.pipes import Inbox, Outbox

KIND = "feed"

LOOK_EVERY = 0.1
"""Seconds between two looks for others who watch."""

MOST_IN_A_PIPE = 1 << 20
MOST_WAITING = 50_000
"""Bytes in the pipe, and lines taken from it, that wait for whoever watches."""


class Ear:
    """One who watches."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._lines: deque[str] = deque()
        self._came = asyncio.Event()
        self.inbox: Inbox | None = None

    def open(self, folder: Path) -> None:
        self.inbox = inbox = Inbox(folder, KIND)
        inbox.widen(MOST_IN_A_PIPE)
        self.loop.add_reader(inbox.descriptor, lambda: self.add(inbox.read()))

    def add(self, lines: Iterable[str]) -> None:
        self._lines.extend(lines)
        if len(self._lines) > MOST_WAITING:
            self._lines.clear()
            self._lines.append(GAP)
        self._came.set()

    async def hear(self) -> list[str]:
        while not self._lines:
            self._came.clear()
            await self._came.wait()
        heard = list(self._lines)
        self._lines.clear()
        return heard

    def close(self) -> None:
        if self.inbox is not None:
            self.loop.remove_reader(self.inbox.descriptor)
            self.inbox.close()


class Wire:
    """The news of one store object."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        """Where processes meet; None: there are no others."""
        self._outbox = None if folder is None else Outbox(folder)
        self._near: tuple[Ear, ...] = ()
        self._far: list[str] = []
        self._short: set[str] = set()
        """Pipes that did not take all that they were last told."""
        self._look_at = 0.0

    @property
    def quiet(self) -> bool:
        return not (self._near or self._far) and (self._outbox is None or machine.monotonic() < self._look_at)

    async def publish(self, news: Sequence[str]) -> None:
        for ear in self._near:
            with suppress(RuntimeError):  # its loop was closed under it
                ear.loop.call_soon_threadsafe(ear.add, news)
        if self._outbox is None:
            return
        self._look_at = machine.monotonic() + LOOK_EVERY
        own = {ear.inbox.name for ear in self._near if ear.inbox is not None}
        self._far = [name for name in self._outbox.names() if name.startswith(f"{KIND}-") and name not in own]
        self._short &= set(self._far)
        even = [name for name in self._far if name not in self._short]
        short = self._outbox.send(even, news) if even else []
        self._short = {*short, *self._outbox.send(self._short, [GAP, *news])}

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Ear]:
        ear = Ear()
        if self._folder is not None:
            with suppress(OSError):  # a folder that we may not write in: only this process is heard
                ear.open(self._folder)
        self._near = (*self._near, ear)
        try:
            if self._folder is not None:
                await asyncio.sleep(LOOK_EVERY)
            yield ear
        finally:
            self._near = tuple(other for other in self._near if other is not ear)
            ear.close()
