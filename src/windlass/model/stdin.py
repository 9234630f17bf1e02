"""What is sent to a job that reads its standard input: bytes, the size of its terminal, signals.

In the queue these are messages to the job; what they are stands before their bytes.
"""

import re
import struct
from typing import Annotated, Literal

from msgspec import Meta, Struct

Stdin = Literal["pipe", "terminal"]

TERM = "term"
"""A header of a job: what kind of terminal it has."""

TERMINALS = re.compile(r"[A-Za-z0-9._+-]{1,64}")
"""What it may be called."""

SignalName = Literal["HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP", "TSTP", "WINCH"]

MOST_STDIN = 64 * 2**20
"""Bytes that may be sent to the standard input of one run, if the job does not say."""

Length = Annotated[int, Meta(ge=1, le=10_000)]
"""Rows or columns of a terminal."""


class Typed(Struct, frozen=True):
    """Bytes for the standard input; none = its end."""

    data: bytes


class Resized(Struct, frozen=True):
    """The terminal has another size."""

    rows: int
    columns: int


class Signalled(Struct, frozen=True):
    """A signal for the processes of the job in the foreground."""

    name: str


StdinMessage = Typed | Resized | Signalled

_TYPED, _RESIZED, _SIGNALLED = b"\0", b"\1", b"\2"
_SIZE = struct.Struct(">HH")


def encode(message: StdinMessage) -> bytes:
    match message:
        case Typed(data):
            return _TYPED + data
        case Resized(rows, columns):
            return _RESIZED + _SIZE.pack(rows, columns)
        case Signalled(name):
            return _SIGNALLED + name.encode()


def decode(data: bytes) -> StdinMessage:
    kind, rest = data[:1], data[1:]
    if kind == _RESIZED:
        return Resized(*_SIZE.unpack(rest))
    return Signalled(rest.decode()) if kind == _SIGNALLED else Typed(rest)
