"""Messages to jobs as a store keeps them: in order, bounded, until the run they are for has ended.

What is sent to a job that waits is for its next run. A message leaves the store when its worker says that it has it;
all of them leave with the end of the run, however it ends. What they say is nobody's business here.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from windlass.model.job import Message
from windlass.model.names import JobKey

MOST_COLLECTED = 4 << 20
"""Bytes of messages that are handed out at once; the rest waits for the next time."""


class Posted(StrEnum):
    """What became of a message."""

    KEPT = "kept"
    FULL = "full"
    """`MOST_MESSAGES` or `MOST_INPUT` wait already: it was not kept."""
    ENDED = "ended"
    """There is no such job, or it has ended: it was not kept."""


class Reader(Struct, frozen=True):
    """Who asks for the messages to a job that it holds."""

    id: str
    tenant: str
    token: bytes
    after: int
    """The number of the last one that it has: those up to it are forgotten. 0 = none yet."""


class Mailbox(Protocol):
    """Where messages to jobs lie. Every store is one too."""

    async def post(self, key: JobKey, data: bytes) -> Posted:
        """Keep a message for a job that has not ended; whoever holds it hears a notice (`order/WORKER`)."""
        ...

    async def collect(self, readers: Sequence[Reader]) -> list[list[Message]]:
        """For each the messages it does not have yet, in order; none to whoever does not hold the job."""
        ...
