"""What supervisor, zygote and contexts say to each other, and how it lies on a socket.

A frame is four bytes of length and one MessagePack value; a frame carries a whole batch, unless that is very large.
Payloads and results travel as raw bytes: the supervisor never looks inside.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Generic, TypeVar

import msgspec
from msgspec import Struct

from windlass.model.job import MSGPACK, Error, NewJob, Progress, Wishes
from windlass.model.lifecycle import Verdict
from windlass.model.names import text_id

LENGTH = struct.Struct(">I")

LARGE = 4 << 20
"""Bytes of payloads or results that fill a frame: the next one goes into another."""

MOST_BYTES = 512 << 20
"""Of one frame that is believed: well above the largest payload and the largest result."""

MOST_RESULT = 256 << 20
"""Bytes of one result that are carried at all; how much is kept is the queue's choice."""

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode


# Supervisor to context


class Assignment(Struct, frozen=True, array_like=True, gc=False):
    """One job to run."""

    number: int
    """Its name between supervisor and context."""
    task: str
    payload: bytes
    content_type: str
    id: str
    queue: str
    tenant: str
    attempt: int
    priority: int
    created_at: float
    """Seconds since 1970."""
    timeout: float | None = None
    max_retry: int | None = 0
    tags: list[str] = []
    headers: dict[str, str] = {}
    files: dict[str, bytes] = {}
    input: bool = False
    """Whether it is passed what is sent to it."""
    one_argument: bool = False
    """Whether its payload is one argument, whatever it is."""


class Newcomer(Struct, frozen=True, array_like=True, gc=False):
    """One job to run that is new and asks for nothing, in the bytes in which it came."""

    content_type: ClassVar[str] = MSGPACK
    one_argument: ClassVar[bool] = False
    input: ClassVar[bool] = False

    number: int
    id: bytes
    names: bytes
    payload: bytes
    priority: int
    created_at: int
    """Microseconds since 1970."""

    @property
    def task(self) -> str:
        return self.names.rpartition(b",")[2].decode()

    def assignment(self) -> Assignment:
        """The same in full: what most jobs run without having asked for."""
        tenant, queue, task = self.names.decode().split(",")
        id, created_at, kind = text_id(self.id), self.created_at / 1e6, self.content_type
        return Assignment(self.number, task, self.payload, kind, id, queue, tenant, 1, self.priority, created_at)


Given = Assignment | Newcomer
"""A job to run, however it was told."""


class Passed(Struct, frozen=True, array_like=True, gc=False):
    """A message to a job."""

    number: int
    """The job's."""
    data: bytes


class Orders(Struct, frozen=True, array_like=True, gc=False):
    """What a context is told."""

    start: list[Assignment] = []
    stop: list[int] = []
    """Numbers of jobs that are to end now."""
    leave: bool = False
    """End yourself once nothing is running."""
    input: list[Passed] = []
    newcomer: Newcomer | None = None


# Context to supervisor


class Ending(Struct, frozen=True, array_like=True, gc=False):
    """How a job ended."""

    number: int
    verdict: Verdict
    result: bytes | None = None
    code: int | None = None
    error: Error | None = None
    delay: float | None = None
    snooze: float | None = None
    """Seconds after which it wants to be run again, this run uncounted."""
    rests: str | None = None
    """A limit, or if empty all that bound the job, of which nothing is to start for as long as it snoozes."""
    jobs: list[NewJob] = []
    """Jobs to be queued with its success."""


class Said(Struct, frozen=True, array_like=True, gc=False):
    """What a running job says."""

    number: int
    progress: Progress | None = None
    log: str | None = None
    taken: int | None = None
    """How many messages it has taken by now."""


class News(Struct, frozen=True, array_like=True, gc=False):
    """What a context tells."""

    endings: list[Ending] = []
    said: list[Said] = []
    unbegun: list[Assignment] = []
    """Jobs that it gives back, for its event loop is held up and they have not begun."""
    answers: bool | None = None
    """Whether its event loop does what it is asked; null = nothing is said of that."""


# Supervisor and zygote: single messages, some with descriptors


class Fork(Struct, frozen=True, tag=True):
    """Make a context; its socket (and, for one job alone, its two output pipes) come as descriptors."""

    context: int
    isolated: bool


class Kill(Struct, frozen=True, tag=True):
    """Send a signal to a context, or to everything that has come of it."""

    context: int
    signal: int
    tree: bool = False


Request = Fork | Kill


class Ready(Struct, frozen=True, tag=True):
    """The app is imported."""

    tasks: list[str]
    queues: list[str]
    """Queues that the tasks name, in the order of their definition."""
    store: str
    """Its address."""
    tenant: str
    token: str | None = None
    options: dict[str, Wishes] = {}
    """Of those tasks that were declared with any."""
    connections: list[str] = []
    """Where connections lead that it has opened while it was imported: all contexts share them."""


class Broken(Struct, frozen=True, tag=True):
    """The app cannot be imported."""

    message: str
    traceback: str


class Forked(Struct, frozen=True, tag=True):
    """A context lives."""

    context: int
    pid: int


class Unforked(Struct, frozen=True, tag=True):
    """There was no room for another process."""

    context: int
    why: str


class Killed(Struct, frozen=True, tag=True):
    """The signal was sent, if the context was still there."""

    context: int


class Exited(Struct, frozen=True, tag=True):
    """A context has ended."""

    context: int
    status: int
    """As `wait` tells it."""
    peak_memory: int
    """Bytes."""


Report = Ready | Broken | Forked | Unforked | Killed | Exited


def frame(value: object) -> bytes:
    packed = _encode(value)
    return LENGTH.pack(len(packed)) + packed


def assign(assignments: Sequence[Assignment]) -> list[bytes]:
    """Frames that give these jobs to a context."""
    frames: list[bytes] = []
    batch: list[Assignment] = []
    size = 0
    for assignment in assignments:
        if size > LARGE:
            frames.append(frame(Orders(batch)))
            batch, size = [], 0
        batch.append(assignment)
        size += len(assignment.payload)
    frames.append(frame(Orders(batch)))
    return frames


class TooLong(Exception):
    """A frame claims to be larger than any that is ever sent: whoever speaks is not to be trusted."""


class Frames(Generic[T]):
    """Cuts a stream of bytes into values."""

    def __init__(self, kind: type[T]) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterable[T]:
        """The values that are whole now."""
        if not self._buffer and len(data) >= LENGTH.size and LENGTH.unpack_from(data)[0] == len(data) - LENGTH.size:
            return [self._decode(data[LENGTH.size :])]  # one frame and no more, as most that come are
        return self._pieced_together(data)

    def _pieced_together(self, data: bytes) -> Iterator[T]:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, at)
            if length > MOST_BYTES:
                raise TooLong(f"a frame of {length} bytes")
            end = at + LENGTH.size + length
            if len(buffer) < end:
                break
            value = self._decode(bytes(buffer[at + LENGTH.size : end]))
            at = end
            yield value
        del buffer[:at]
