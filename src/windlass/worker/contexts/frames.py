"""What supervisor, zygote and contexts send each other, and how it is framed on a socket.

A frame is four bytes of length and one MessagePack value; a frame carries a whole batch, unless that is very large.
Payloads and results travel as raw bytes: the supervisor never decodes them. `ContextOutbox` gathers what it sends.
"""

import itertools
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, NoReturn, TypeVar

import msgspec
from msgspec import Struct

from windlass.model.errors import Invalid
from windlass.model.job import MSGPACK, Error, Job, Reason
from windlass.model.new_job import JobOptions, NewJob, WithResults
from windlass.model.operations import Claimed, LoadedStep
from windlass.model.outcome import Verdict
from windlass.model.output import Progress, Stream
from windlass.model.schedule import NewSchedule
from windlass.model.stdin import TERM, TERMINALS, Stdin
from windlass.model.wire import UNENCODABLE, encodable
from windlass.model.worker import BatchOptions

LENGTH = struct.Struct(">I")

LARGE = 4 << 20
"""Bytes of payloads or results that fill a frame: the next one goes into another."""

MOST_BYTES = 512 << 20
"""Of one frame, at most: well above the largest payload and the largest result."""

MOST_RESULT = 256 << 20
"""Bytes of one result, at most; how much is stored is the queue's choice."""

CLOSE_HOOKS_WITHIN = 5.0
"""Seconds in which a context closes at its end what the app has opened in it."""

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode


# One run


class Assignment(Struct, frozen=True, array_like=True, gc=False):
    """One job to run, with all that the code which runs it may ask."""

    number: int
    """Names the run between a worker and its contexts."""
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
    """Whether it takes messages."""
    one_argument: bool = False
    """Whether its payload is one argument, whatever its type."""
    terminal: str = ""
    """What kind of terminal it has, if any."""
    with_results: WithResults | None = None
    """How it gets the results of the jobs that it waited for."""
    results: list[Any] = []
    """These results."""


def assignment_of(number: int, claimed: Claimed) -> Assignment:
    """What a claim's answer says of one job. Its payload is not decoded."""
    job = claimed.job
    return Assignment(
        number,
        job.task,
        bytes(claimed.payload),
        job.content_type,
        job.id,
        job.queue,
        job.tenant,
        job.attempt,
        job.priority,
        job.created_at.timestamp(),
        job.timeout,
        job.max_retry,
        job.tags,
        job.headers,
        claimed.files,
        job.input and job.stdin is None,
        job.one_argument,
        _terminal_of(job) if job.stdin == "terminal" else "",
        job.with_results,
        claimed.results,
    )


def _terminal_of(job: Job) -> str:
    """As its caller says in its headers."""
    named = job.headers.get(TERM, "")
    return named if TERMINALS.fullmatch(named) else "xterm"


class RunOutcome(Struct, frozen=True, array_like=True, gc=False):
    """How a run ended."""

    number: int
    verdict: Verdict
    result: bytes | None = None
    code: int | None = None
    error: Error | None = None
    delay: float | None = None
    snooze: float | None = None
    """Seconds after which the job wants to run again; this run does not count."""
    hold_limit: str | None = None
    """A limit (empty = every limit of the job) under which nothing starts while the job snoozes."""
    jobs: list[NewJob] = []
    """Jobs to be queued with its success."""
    reason: Reason | None = None
    """`crashed`, `timeout` …, where the code itself did not end it."""
    content_type: str = MSGPACK
    """Of the result."""
    files: dict[str, bytes] = {}
    """What it leaves, by name."""
    unopened: bool = False
    """Whether it never began, because its process could not open what the app wants open."""


class StepRequest(Struct, frozen=True, array_like=True, gc=False):
    """What a run asks of the durable steps of its job."""

    call: int
    """Names the request within its run."""
    name: str = ""
    """The step whose result is to be kept; empty = it asks for those that are kept."""
    result: bytes = b""


class StepAnswer(Struct, frozen=True, array_like=True, gc=False):
    """The answer to that."""

    number: int
    """Of the run."""
    call: int
    steps: list[LoadedStep] = []
    error: str = ""
    """Why it was refused."""


class RunUpdate(Struct, frozen=True, array_like=True, gc=False):
    """What a running job reports."""

    number: int
    progress: Progress | None = None
    printed: tuple[Stream, bytes] | None = None
    taken: int | None = None
    """How many messages it has taken so far."""
    step: StepRequest | None = None


# Supervisor to context


class JobMessage(Struct, frozen=True, array_like=True, gc=False):
    """A message to a job."""

    number: int
    """Of the run."""
    data: bytes


class Command(Struct, frozen=True, array_like=True, gc=False):
    """What a supervisor sends to a context."""

    start: list[Assignment] = []
    stop: list[int] = []
    """Numbers of runs to stop now."""
    exit_when_idle: bool = False
    """Exit once nothing is running."""
    messages: list[JobMessage] = []
    signal: int = 0
    """To a shim: send this to its context."""
    got: int = 0
    """To a shim: the queue has what came with updates up to this number."""
    steps: list[StepAnswer] = []
    batches: list[list[Assignment]] = []
    """Jobs that are run by one call."""


# Context to supervisor


class ContextUpdate(Struct, frozen=True, array_like=True, gc=False):
    """What a context sends to its supervisor."""

    outcomes: list[RunOutcome] = []
    updates: list[RunUpdate] = []
    not_begun: list[Assignment] = []
    """Jobs that it returns, because its event loop is blocked and they have not begun."""
    answers: bool | None = None
    """Whether its event loop responds; null = not asked."""
    n: int = 0
    """From a shim: the number of this update, which is repeated until the worker says that the queue has it."""
    opened: bool = False
    """Whether it has opened what the app wants open, and runs what it is given from now on."""
    shim: "ShimState | None" = None
    """From a shim: how things stand when a worker connects."""


class ShimState(Struct, frozen=True, array_like=True, gc=False):
    """What a worker must know of a run that it may not have started."""

    context: int
    """The pid."""
    begun: bool = False
    """Whether the context was given its job."""
    given: int = 0
    taken: int = 0
    """Messages that were passed to it, and that its task has taken."""
    printed: int = 0
    """Bytes of output that the queue has, or that were dropped: all before the first update that follows."""


# Supervisor and zygote: single messages, some with descriptors


class Fork(Struct, frozen=True, tag=True):
    """Make a context; its socket (and, for one job alone, its two output pipes) come as descriptors."""

    context: int
    isolated: bool
    stdin: Stdin | None = None
    """Then the first of these descriptors is its standard input; a terminal is also what it prints to."""
    shim: "ShimOptions | None" = None
    """For a run that outlives its worker. Instead of other descriptors comes the socket at which its shim listens."""


class ShimOptions(Struct, frozen=True):
    """What a shim is to do."""

    folder: str
    """The run's."""
    lease: float
    """Seconds that the run waits for another worker."""
    merged: bool
    """Whether the stderr of its context is its stdout."""


class Kill(Struct, frozen=True, tag=True):
    """Send a signal to a context, or also to all its descendants."""

    context: int
    signal: int
    tree: bool = False


ZygoteRequest = Fork | Kill


class AppInfo(Struct, frozen=True, tag=True):
    """The app is imported."""

    tasks: list[str]
    queues: list[str]
    """Queues that the tasks name, in the order of their definition."""
    store: str
    """Its address."""
    tenant: str
    token: str | None = None
    options: dict[str, JobOptions] = {}
    """Of those tasks that were declared with any."""
    schedules: dict[str, NewSchedule] = {}
    """Those that it declares."""
    connections: list[str] = []
    """Peers of connections that it opened while it was imported: all contexts share them."""
    slots: dict[str, int] = {}
    """The slots that one job takes, of those tasks whose jobs take more than one."""
    needs: dict[str, list[str]] = {}
    """What those tasks that need something of a worker need."""
    opens: bool = False
    """Whether its contexts open something before they run jobs, and close it at their end."""
    batches: dict[str, BatchOptions] = {}
    """Tasks that take several calls at once."""


class ImportFailed(Struct, frozen=True, tag=True):
    """The app cannot be imported."""

    message: str
    traceback: str


class Forked(Struct, frozen=True, tag=True):
    """A context has started."""

    context: int
    pid: int


class ForkFailed(Struct, frozen=True, tag=True):
    """There was no room for another process."""

    context: int
    why: str


class SignalSent(Struct, frozen=True, tag=True):
    """The signal was sent, if the context was still there."""

    context: int


class Exited(Struct, frozen=True, tag=True):
    """A context has ended."""

    context: int
    status: int
    """As `wait` returns it."""
    peak_memory: int
    """Bytes."""
    cpu_time: float = 0.0
    """Seconds."""


ZygoteReport = AppInfo | ImportFailed | Forked | ForkFailed | SignalSent | Exited


def encode_frame(value: object) -> bytes:
    packed = _encode(value)
    return LENGTH.pack(len(packed)) + packed


def assignment_frames(assignments: Sequence[Assignment]) -> list[bytes]:
    """Frames that assign these jobs to a context."""
    frames: list[bytes] = []
    batch: list[Assignment] = []
    size = 0
    for assignment in assignments:
        if size > LARGE:
            frames.append(encode_frame(Command(batch)))
            batch, size = [], 0
        batch.append(assignment)
        size += len(assignment.payload)
    frames.append(encode_frame(Command(batch)))
    return frames


class FrameTooLong(Exception):
    """A frame claims to be larger than any that is ever sent: its sender cannot be trusted."""


class FrameReader(Generic[T]):
    """Cuts a stream of bytes into values."""

    def __init__(self, kind: type[T]) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterable[T]:
        """The values that are whole now."""
        if not self._buffer and len(data) >= LENGTH.size and LENGTH.unpack_from(data)[0] == len(data) - LENGTH.size:
            return [self._decode(data[LENGTH.size :])]  # exactly one frame, as usual
        return self._pieced_together(data)

    def _pieced_together(self, data: bytes) -> Iterator[T]:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, at)
            if length > MOST_BYTES:
                raise FrameTooLong(f"a frame of {length} bytes")
            end = at + LENGTH.size + length
            if len(buffer) < end:
                break
            value = self._decode(bytes(buffer[at + LENGTH.size : end]))
            at = end
            yield value
        del buffer[:at]


MANY = 64
"""Outcomes that are sent without waiting for more."""

MOST_PRINTED = 1 << 18
"""Bytes of output that wait to be sent: whatever prints more waits."""

BREATH = 0.002
"""Seconds between two looks whether there is room again."""


class ContextOutbox:
    """Gathers what a context sends, from all its threads. A thread that finds it full, or has nothing to do, sends."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._thread = threading.get_ident()
        """The thread that may send at any time: nothing is ever raised in it from outside."""
        self._outcomes: list[RunOutcome] = []
        self._updates: list[RunUpdate] = []
        self._bytes = 0
        self._printed = 0

    def add_outcome(self, outcome: RunOutcome) -> None:
        if os.getpid() != self._process:
            _exit_forked(outcome)
        self._outcomes.append(outcome)
        if outcome.result is not None:
            self._bytes += len(outcome.result)
        if outcome.files:
            self._bytes += sum(map(len, outcome.files.values()))

    def add_update(self, update: RunUpdate) -> None:
        if update.step is not None and os.getpid() != self._process:
            raise Invalid("a step must be run by the process that runs its job, not by one that it forked", at="step")
        self._updates.append(update)
        if update.printed is not None:
            self._printed += len(update.printed[1])
            if self._printed > MOST_PRINTED:
                self._make_room()

    def _make_room(self) -> None:
        """Wait until the output has been sent. A job's thread must not send it: it may be interrupted at any point."""
        if threading.get_ident() == self._thread:
            self.flush()
        while self._printed > MOST_PRINTED:
            time.sleep(BREATH)

    @property
    def full(self) -> bool:
        return len(self._outcomes) >= MANY or self._bytes >= LARGE

    def flush(self) -> None:
        """Send what there is, in order. Exits the process if its supervisor is gone."""
        if not self._outcomes and not self._updates:
            return
        with self._lock:
            outcomes, self._outcomes = self._outcomes, []
            updates, self._updates = self._updates, []
            large, self._bytes = self._bytes > LARGE, 0
            if self._printed:
                updates, self._printed = _joined(updates), 0
            try:
                if large:
                    self._send_one_by_one(outcomes, updates)
                elif outcomes or updates:
                    self._send_together(outcomes, updates)
            except OSError:
                os._exit(0)  # the supervisor is gone

    def send_now(self, update: ContextUpdate) -> None:
        """Send something else, at once."""
        with self._lock:
            try:
                self._link.sendall(encode_frame(update))
            except OSError:
                os._exit(0)

    def _send_together(self, outcomes: list[RunOutcome], updates: list[RunUpdate]) -> None:
        try:
            packed = encode_frame(ContextUpdate(outcomes, updates))
        except UNENCODABLE:
            self._send_one_by_one(outcomes, updates)
        else:
            self._link.sendall(packed)

    def _send_one_by_one(self, outcomes: list[RunOutcome], updates: list[RunUpdate]) -> None:
        """Where one of them cannot be encoded, because of what a task has put into it, the others still go through."""
        for one in updates:
            with suppress(*UNENCODABLE):
                self._link.sendall(encode_frame(ContextUpdate(updates=[one])))
        for outcome in outcomes:
            self._link.sendall(_encoded_outcome(outcome))


def _joined(updates: Sequence[RunUpdate]) -> list[RunUpdate]:
    """The same with neighbouring pieces of one stream joined: a line is often printed in several."""
    found: list[RunUpdate] = []
    for (number, stream), some in itertools.groupby(updates, lambda one: (one.number, one.printed and one.printed[0])):
        if stream:
            data = b"".join(one.printed[1] for one in some if one.printed is not None)
            found.append(RunUpdate(number, printed=(stream, data)))
        else:
            found += some
    return found


def _exit_forked(outcome: RunOutcome) -> NoReturn:
    """Exit a process that a task has forked and that came back from the task: the outcome is not its to report.

    It exits like a program that has come to its end, has called `sys.exit`, or has an uncaught exception.
    """
    error, status = outcome.error, 0 if outcome.verdict is Verdict.OK else 1
    with suppress(Exception):
        if error is not None and error.type == SystemExit.__name__:
            status = _exit_status(error.message)
        elif error is not None:
            sys.stderr.write(error.traceback)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _exit_status(argument: str) -> int:
    """The status that an interpreter makes of the argument of `sys.exit`."""
    if argument in {"", "None"}:
        return 0
    if re.fullmatch(r"-?\d+", argument):
        return int(argument) & 0xFF
    sys.stderr.write(f"{argument}\n")
    return 1


def _encoded_outcome(outcome: RunOutcome) -> bytes:
    try:
        return encode_frame(ContextUpdate([outcome]))
    except UNENCODABLE as fault:
        error = Error(type="Unencodable", message=encodable(f"its outcome cannot be encoded: {fault}"))
        return encode_frame(ContextUpdate([RunOutcome(outcome.number, Verdict.ERROR, error=error)]))
