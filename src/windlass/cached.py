"""A value from the store, cached for a while and then refreshed.

Callers that come during a refresh share it. Where jobs are accepted without the store, callers do not wait long: the
last known value still counts, and the refresh goes on. Knows nothing of what is cached.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from windlass.model.errors import Unavailable
from windlass.model.ports import Clock

T = TypeVar("T")

TRY_AGAIN = 2.0
"""Seconds until the next look after one in vain."""

BRIEFLY = 0.05
"""Seconds that a refresh may hold up a caller that could use the old value."""


class CachedValue(Generic[T]):
    """One thing to know."""

    def __init__(
        self, look: Callable[[], Awaitable[T]], clock: Clock, remember: float, patience: float | None = None
    ) -> None:
        """`patience`: seconds that a look is waited for if something is known, or if the last look was in vain; null =
        until it is over.
        """
        self._look = look
        self._clock = clock
        self._remember = remember
        self._patience = patience
        self._known: T | None = None
        self._until = -math.inf
        self._looking: asyncio.Task[None] | None = None
        self._late = False
        """Whether the last refresh took too long: then callers do not wait for the next."""
        self._fault: Unavailable | None = None
        """Of the last look, if it was in vain."""

    async def known(self) -> T:
        """What is known; raises only while nothing is."""
        if self._known is not None and self._clock.monotonic() < self._until:
            return self._known
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_up(), name="windlass-look")
            self._looking.add_done_callback(_hear)
        looking = self._looking
        if self._patience is None or (self._known is None and self._fault is None):
            await asyncio.shield(looking)
        elif self._known is None:
            await asyncio.wait([looking], timeout=self._patience)
            if self._known is None and self._fault is not None:
                raise self._fault.with_traceback(None)
        elif not self._late:
            _, pending = await asyncio.wait([looking], timeout=self._patience)
            self._late = bool(pending)
        assert self._known is not None  # noqa: S101 - a look in vain raises
        return self._known

    async def _look_up(self) -> None:
        asked_at = self._clock.monotonic()
        try:
            self._known = await self._look()
        except Unavailable as fault:
            self._fault = fault
            if self._known is None:
                raise
            self._until = self._clock.monotonic() + TRY_AGAIN
        else:
            self._until = asked_at + self._remember
            self._late = False
            self._fault = None
        finally:
            self._looking = None


def _hear(looking: "asyncio.Task[None]") -> None:
    """An error is raised to the callers that waited for it, if there are any."""
    if not looking.cancelled():
        looking.exception()
