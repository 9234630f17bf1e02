"""What a running job puts out (progress, output) and uses, the messages that are sent to it, and how much is kept."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a running job says it is."""

    done: float = 0
    total: float | None = None
    note: Annotated[str, Meta(max_length=1000)] = ""


class RunUsage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a running job uses, as its worker measured last."""

    memory: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    """Bytes of its process and all below it; what they share counts for each of them. Null = it shares its process with
    other jobs."""
    cpu: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    """How many CPUs they kept busy on average since the measurement before; at first, since the job started. Null = not
    known yet, or it shares its process."""
    output: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Bytes that it has put out."""


Stream = Literal["stdout", "stderr", "log", "values"]
"""What a job prints, logs, and emits. `values` has lines of JSON, each whole within its chunk; an empty one says that a
run begins."""

VALUES: Stream = "values"

MOST_CHUNK = 64 * 2**10
"""Bytes of one piece of output."""

MOST_VALUE = MOST_CHUNK
"""Bytes of one value with the end of its line."""

MOST_OUTPUT = 2 * 2**20
"""Bytes of output that are kept of one job: the newest."""

MOST_KEPT = 16_384
"""Pieces of output that are kept of one job: the newest."""

MOST_CHUNKS = 1000
"""Pieces of output of one job in one request or answer."""


class OutputPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How much a job may put out in one run, and how that is kept apart."""

    limit: Annotated[int, Meta(ge=0, le=2**53)] | None = 512 * 2**10
    """Bytes of output; null = as much as it likes. Of all output the newest 2 MiB are kept."""
    over: Literal["fail", "drop"] = "fail"
    """What happens beyond the limit: the run ends with the reason `output`, or the rest is dropped."""
    merged: bool = False
    """Whether what goes to stderr is part of stdout, in the order in which it was written."""


DEFAULT_OUTPUT = OutputPolicy()


class NewChunk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A piece of what a job prints or logs, as it is sent in."""

    stream: Stream
    data: Annotated[bytes, Meta(max_length=MOST_CHUNK)]


class Chunk(NewChunk, frozen=True, kw_only=True):
    """A piece of output as the queue keeps it."""

    n: int
    """Its number among all that the job ever put out, from 1."""
    attempt: int
    """The run that put it out."""
    at: datetime
    """When it came in."""


MOST_MESSAGE = 64 * 2**10
"""Bytes of one message to a job."""

MOST_INPUT = 256 * 2**10
"""Bytes of messages that wait for one job."""

MOST_MESSAGES = 1000
"""Messages that wait for one job."""


class Message(Struct, frozen=True):
    """A message that was sent to a job."""

    n: int
    """Its number among all that were sent for this run, from 1."""
    data: bytes
