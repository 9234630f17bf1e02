"""Messages to jobs as a store keeps them: in order, bounded, until the run they are for has ended.

What is sent to a job that waits is for its next run. A message leaves the store when its worker says that it has it;
all of them are dropped at the end of the run, however it ends. The store never decodes them.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from windlass.model.names import JobKey
from windlass.model.output import Message

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
    """Messages to jobs. Every store implements it."""

    async def post(self, key: JobKey, data: bytes) -> Posted:
        """Keep a message for a job that has not ended; the worker that runs it gets a wake-up (`order/WORKER`)."""
        ...

    async def collect(self, readers: Sequence[Reader]) -> list[list[Message]]:
        """For each reader the messages it does not have yet, in order; none if its token is not the current one."""
        ...
