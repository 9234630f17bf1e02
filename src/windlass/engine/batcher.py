"""Batches single writes: items that callers submit at about the same moment are written together.

A lone item goes out in the same round of the event loop. Under load each write carries all items that arrived while
the last write was under way, so that a thousand callers share a commit or a round trip. Knows nothing of jobs.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

MOST_AT_ONCE = 1000
MOST_IN_FLIGHT = 2
"""Concurrent writes: one is answered while the next is prepared."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Submits items to `write`, which answers each of them, in order."""

    def __init__(self, write: Callable[[list[Item]], Awaitable[list[Answer]]]) -> None:
        self._write = write
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._writes: set[asyncio.Task[None]] = set()
        self._scheduled = False

    def submit(self, item: Item) -> "asyncio.Future[Answer]":
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, answer))
        if not self._scheduled and len(self._writes) < MOST_IN_FLIGHT:
            self._scheduled = True
            loop.call_soon(self._send)
        return answer

    def _send(self) -> None:
        self._scheduled = False
        while self._waiting and len(self._writes) < MOST_IN_FLIGHT:
            some, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
            write = asyncio.get_running_loop().create_task(self._write_batch(some))
            self._writes.add(write)
            write.add_done_callback(self._sent)

    def _sent(self, write: "asyncio.Task[None]") -> None:
        self._writes.discard(write)
        self._send()

    async def _write_batch(self, some: "list[tuple[Item, asyncio.Future[Answer]]]") -> None:
        # An item whose caller was cancelled before the write must not be written.
        some = [(item, answer) for item, answer in some if not answer.done()]
        if not some:
            return
        try:
            answers = await self._write([item for item, _ in some])
        except Exception as fault:  # noqa: BLE001 - every caller gets it
            for _, answer in some:
                if not answer.done():
                    answer.set_exception(fault)
            return
        for (_, answer), value in zip(some, answers, strict=True):
            if not answer.done():
                answer.set_result(value)
