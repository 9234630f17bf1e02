"""Jobs that are queued one by one at about the same moment are written together.

Whoever is alone pays nothing: his job goes out in the same round of the event loop. In a crowd each write carries all
who came while the last was on its way, so that a thousand callers share a commit or a round trip.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from windlass.model.names import key_of
from windlass.store import Draft, Record, Store

MOST_AT_ONCE = 1000
MOST_IN_FLIGHT = 2
"""Writes on their way at once: one is answered while the next is made."""

Add = Callable[[Sequence[Draft]], Awaitable[list[bool]]]

Kept = tuple[Record | None, bool]
"""The job as it is now (null = gone already), and whether it was new."""


class Gathering:
    """One engine's single jobs."""

    def __init__(self, add: Add, store: Store) -> None:
        self._add = add
        self._store = store
        self._waiting: list[tuple[Draft, asyncio.Future[Kept]]] = []
        self._writes: set[asyncio.Task[None]] = set()
        self._called = False

    def add(self, draft: Draft) -> "asyncio.Future[Kept]":
        loop = asyncio.get_running_loop()
        kept: asyncio.Future[Kept] = loop.create_future()
        self._waiting.append((draft, kept))
        if not self._called and len(self._writes) < MOST_IN_FLIGHT:
            self._called = True
            loop.call_soon(self._send)
        return kept

    def _send(self) -> None:
        self._called = False
        while self._waiting and len(self._writes) < MOST_IN_FLIGHT:
            some, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
            write = asyncio.get_running_loop().create_task(self._write(some))
            self._writes.add(write)
            write.add_done_callback(self._sent)

    def _sent(self, write: "asyncio.Task[None]") -> None:
        self._writes.discard(write)
        self._send()

    async def _write(self, some: "list[tuple[Draft, asyncio.Future[Kept]]]") -> None:
        # Whoever was cancelled before his job went out has not queued it: it must not come afterwards.
        some = [(draft, kept) for draft, kept in some if not kept.done()]
        if not some:
            return
        try:
            created = await self._add([draft for draft, _ in some])
            reading = await self._store.read([key_of(draft) for draft, _ in some])
        except Exception as fault:  # noqa: BLE001 - handed to everybody who waits
            for _, kept in some:
                if not kept.done():
                    kept.set_exception(fault)
            return
        for (_, kept), record, new in zip(some, reading.records, created, strict=True):
            if not kept.done():
                kept.set_result((record, new))
