"""Coroutines for code without an event loop: in a thread that runs one, or step by step where nothing is waited for.

Knows threads and loops; what is asked, and of whom, is the caller's business.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Portal:
    """A thread that runs an event loop for those who have none."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="windlass", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the caller was interrupted: nobody waits any more
            raise

    def close(self) -> None:
        self.run(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Asking(Generic[T]):
    """A question on its way: a coroutine that waits for nothing outside itself, run up to where it has asked."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._answered = False
        self._step()

    def _step(self) -> None:
        try:
            pause = self._coroutine.send(None)
        except StopIteration as end:
            self._answer: T = end.value
            self._answered = True
            return
        if pause is not None:
            self._coroutine.close()
            raise RuntimeError("this can only be asked in an event loop")

    def answer(self) -> T:
        while not self._answered:
            self._step()
        return self._answer


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run such a coroutine to its end."""
    return Asking(coroutine).answer()
