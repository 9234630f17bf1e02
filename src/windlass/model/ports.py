"""What the queue needs of the world, as small protocols that are passed in.

`windlass.system` implements them for real; a simulation may put a virtual clock and a seed in their
place. Nothing else in the project asks the machine for the time or for randomness.
"""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Time. Leases and due times are judged by the store's clock; this is where an embedded store takes its own."""

    def now(self) -> datetime:
        """The wall clock, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for measuring and for pauses."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let others run for so long."""
        ...


class Randomness(Protocol):
    """Randomness."""

    def fraction(self) -> float:
        """A number from 0 up to but not including 1."""
        ...

    def token(self) -> bytes:
        """Eight fresh random bytes: the fencing token of one claim."""
        ...

    def uuid7(self) -> bytes:
        """Sixteen bytes of a fresh UUID, version 7."""
        ...
