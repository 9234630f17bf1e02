"""Something that the store knows, taken for what it was for a while and then looked up anew.

Whoever comes meanwhile shares one look. Where jobs are accepted without the store, nobody waits long for it: what was
known last still counts, and the look goes on. Knows nothing of what is looked up.
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
"""Seconds that a look may hold up whoever could do without it."""


class Lately(Generic[T]):
    """One thing to know."""

    def __init__(
        self, look: Callable[[], Awaitable[T]], clock: Clock, remember: float, patience: float | None = None
    ) -> None:
        """`patience`: seconds that a look is waited for if something is known; null = until it is over."""
        self._look = look
        self._clock = clock
        self._remember = remember
        self._patience = patience
        self._known: T | None = None
        self._until = -math.inf
        self._looking: asyncio.Task[None] | None = None
        self._late = False
        """Whether the last look took too long: then nobody waits for the next."""

    async def known(self) -> T:
        """What is known; raises only while nothing is."""
        if self._known is not None and self._clock.monotonic() < self._until:
            return self._known
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_up(), name="windlass-look")
            self._looking.add_done_callback(_hear)
        looking = self._looking
        if self._known is None or self._patience is None:
            await asyncio.shield(looking)
        elif not self._late:
            _, pending = await asyncio.wait([looking], timeout=self._patience)
            self._late = bool(pending)
        assert self._known is not None  # noqa: S101 - a look in vain raises
        return self._known

    async def _look_up(self) -> None:
        asked_at = self._clock.monotonic()
        try:
            self._known = await self._look()
        except Unavailable:
            if self._known is None:
                raise
            self._until = self._clock.monotonic() + TRY_AGAIN
        else:
            self._until = asked_at + self._remember
            self._late = False
        finally:
            self._looking = None


def _hear(looking: "asyncio.Task[None]") -> None:
    """What went wrong is told to those who waited for it, if anybody did."""
    if not looking.cancelled():
        looking.exception()
