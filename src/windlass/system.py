"""The machine's own clock and randomness, and who runs this process: the one place that asks for them."""

import asyncio
import os
import pwd
import random
import socket
import time
from datetime import UTC, datetime

_RANDOM = (0x0FFF << 64) + (1 << 62) - 1
"""The bits of a UUID of version 7 that are."""
_VERSION_7 = (0x7 << 76) + (0b10 << 62)


class SystemClock:
    """The host's time."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemRandomness:
    """The host's randomness."""

    def fraction(self) -> float:
        return random.random()  # noqa: S311 - spreads retries, guards nothing

    def token(self) -> bytes:
        return os.urandom(8)

    def uuid7(self) -> bytes:
        """From the system's randomness: a generator of our own would be copied by a fork outside Python.

        Then two processes would give their jobs the same ids.
        """
        chance = int.from_bytes(os.urandom(10))
        return ((time.time_ns() // 1_000_000 << 80) + (chance & _RANDOM) + _VERSION_7).to_bytes(16)


# Where no other time will do: to space questions to the outside, and to name files. Nothing of a job is decided by it.


def monotonic() -> float:
    """Seconds that never go back, for callers without an event loop too."""
    return time.monotonic()


def nanoseconds() -> int:
    """What the file system stamps its files with."""
    return time.time_ns()


def local_user() -> str:
    """Who runs this process, as the audit log names it: `user NAME@HOST`."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # of a container, perhaps
        name = str(os.geteuid())
    return f"user {name}@{socket.gethostname()}"
