"""What was sent to a running job and its task has not taken yet.

Put in by the thread that hears the supervisor; taken by the task, in any thread or event loop of its own.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from windlass.call.signals import Cancelled


class Inbox:
    """The messages to one run, in order."""

    def __init__(self, took: Callable[[int], None]) -> None:
        self._took = took
        """Told how many were taken by now."""
        self._waiting: deque[bytes] = deque()
        self._came = threading.Condition()
        self._sleepers: list[asyncio.Future[None]] = []
        self._taken = 0
        self._closed = False

    def put(self, data: bytes) -> None:
        with self._came:
            self._waiting.append(data)
            self._wake()

    def close(self) -> None:
        """Whoever waits is told to stop."""
        with self._came:
            self._closed = True
            self._wake()

    def take(self, timeout: float | None) -> bytes:
        """The next one, waiting for it."""
        with self._came:
            if not self._came.wait_for(lambda: self._waiting or self._closed, timeout):
                raise TimeoutError(f"nothing was sent within {timeout:g} s")
            data = self._next()
        self._took(self._taken)
        return data

    async def atake(self) -> bytes:
        """The same in an event loop."""
        loop = asyncio.get_running_loop()
        while True:
            with self._came:
                if self._waiting or self._closed:
                    data = self._next()
                    break
                sleeper: asyncio.Future[None] = loop.create_future()
                self._sleepers.append(sleeper)
            await sleeper
        self._took(self._taken)
        return data

    def _next(self) -> bytes:
        if not self._waiting:
            raise Cancelled
        self._taken += 1
        return self._waiting.popleft()

    def _wake(self) -> None:
        self._came.notify_all()
        sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            sleeper.get_loop().call_soon_threadsafe(_rouse, sleeper)


def _rouse(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)
