"""The machine's own clock and randomness: the one place that asks for them."""

import asyncio
import os
import random
import time
from datetime import UTC, datetime

import uuid_utils


class SystemClock:
    """The host's time."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemChance:
    """The host's randomness."""

    def fraction(self) -> float:
        return random.random()  # noqa: S311 - spreads retries, guards nothing

    def token(self) -> bytes:
        return os.urandom(8)

    def uuid7(self) -> bytes:
        return uuid_utils.uuid7().bytes
