"""Starts coroutines at once: only one that must wait becomes a task. Most sends need not wait for anything."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


def start(work: Coroutine[Any, None, None]) -> "asyncio.Task[None] | None":
    """Take the first steps here and now; a task for the rest, null = it is done."""
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return asyncio.create_task(_finish(work, waits_for))


async def _finish(work: Coroutine[Any, None, None], waits_for: Any) -> None:
    await _Rest(work, waits_for)


class _Rest:
    """What is left of a coroutine that waits for something."""

    def __init__(self, work: Coroutine[Any, None, None], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, None, None]:
        try:
            yield self._waits_for
        except BaseException as fault:
            self._work.throw(fault)
            raise
        yield from self._work.__await__()
