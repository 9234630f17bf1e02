"""A process of uploaded code, as the worker sees it: its monitor, four pipes, and what comes out of them.

Starts a monitor with a plan, reads what the process prints and answers without ever waiting for it, and reports when
everything has ended. Knows descriptors and signals; what the bytes mean is the context's business.
"""

import asyncio
import fcntl
import itertools
import os
import socket
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from windlass.worker.functions.sandbox.plans import SandboxPlan

MONITOR = str(Path(__file__).parent / "sandbox" / "monitor.py")

READ_AT_ONCE = 1 << 18
PIPE_SIZE = 1 << 18
START_WITHIN = 30.0
KILLED = 9
"""The status of a process whose monitor was killed."""

ProcessOutput = Literal["answers", "stdout", "stderr"]


class NotStarted(Exception):
    """The process could not be started as the plan says, so it was not started at all."""


class Exit(Struct, frozen=True):
    """How a process ended."""

    exited: int
    """As `wait` returns it."""
    peak: int = 0
    """Peak memory in bytes."""
    why: str | None = None
    """`memory` or `disk` if its monitor ended it for that."""


class _MonitorLine(Struct):
    """One line from a monitor."""

    started: int | None = None
    refused: str | None = None
    exited: int | None = None
    peak: int = 0
    why: str | None = None
    cpu: float | None = None
    half: bool = False


class ProcessOwner(Protocol):
    """Gets what a process writes and how it ends."""

    def received(self, output: ProcessOutput, data: bytes) -> None: ...

    def used(self, cpu: float) -> None:
        """The process and its descendants have used so many seconds of processor time."""
        ...

    def half_filled(self) -> None:
        """Its folder holds half of what it may."""
        ...

    def cut_off(self) -> None:
        """It has closed a pipe: it reads no more commands, or can answer none. Most often it is just exiting."""
        ...

    def exited(self, exit: Exit) -> None:  # noqa: A002 - it is one
        """It and all its descendants have ended, and everything they wrote has been read."""
        ...


class SandboxedProcess:
    """One process and its monitor."""

    def __init__(self, owner: ProcessOwner) -> None:
        self.pid = 0
        self.monitor = 0
        """The process that watches over it."""
        self.gone = asyncio.Event()
        self.monitored = True
        """Whether its monitor saw everything end."""
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._outputs: dict[ProcessOutput, int] = {}
        self._commands = -1
        self._unsent = bytearray()
        self._stuck = False
        """Whether it reads more slowly than we write."""
        self._worker: socket.socket | None = None
        self._monitor: asyncio.subprocess.Process | None = None
        self._unread = b""

    async def start(self, make: Callable[[tuple[int, int]], SandboxPlan]) -> None:
        """Start it by the plan that `make` makes for its two pipes; `NotStarted` if that fails."""
        try:
            async with asyncio.timeout(START_WITHIN):
                await self._start(make)
        except TimeoutError:
            raise NotStarted(f"it did not start within {START_WITHIN:g} s") from None
        except OSError as fault:
            raise NotStarted(f"there was no room for a process: {fault}") from None
        finally:
            if not self.pid:
                await self._abandon()

    async def _start(self, make: Callable[[tuple[int, int]], SandboxPlan]) -> None:
        (commands, self._commands), (answers, answer), (out, print_), (err, complain) = _pipes(4)
        self._outputs = {"answers": answers, "stdout": out, "stderr": err}
        for mine in (self._commands, *self._outputs.values()):
            os.set_blocking(mine, False)
        try:
            self._worker, theirs = socket.socketpair()
            with theirs:
                self._monitor = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", MONITOR, stdin=theirs.fileno(), stdout=print_, stderr=complain,
                    pass_fds=(commands, answer), env={},
                )  # fmt: skip
        finally:
            for other in (commands, answer, print_, complain):
                os.close(other)
        self._worker.setblocking(False)
        self.monitor = self._monitor.pid
        await self._loop.sock_sendall(self._worker, msgspec.json.encode(make((commands, answer))) + b"\n")
        await self._begin()

    async def _begin(self) -> None:
        assert self._worker is not None  # noqa: S101 - it was started
        while b"\n" not in self._unread:
            piece = await self._loop.sock_recv(self._worker, READ_AT_ONCE)
            if not piece:
                raise NotStarted("its monitor ended before it had begun")
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        message = msgspec.json.decode(line, type=_MonitorLine)
        if message.started is None:
            raise NotStarted(message.refused or "its monitor did not start it")
        self.pid = message.started
        for output, descriptor in self._outputs.items():
            self._loop.add_reader(descriptor, self._readable, output)
        self._loop.add_reader(self._commands, self._hung_up)
        self._loop.add_reader(self._worker, self._monitor_readable)
        self._read_monitor()

    async def _abandon(self) -> None:
        self._release()
        if self._worker is not None:
            self._worker.close()  # its monitor ends everything
            self._worker = None
        if self._monitor is not None:
            await self._monitor.wait()
        self.gone.set()

    # Commands to it

    def send(self, data: bytes) -> None:
        """Write, together with what else is sent in this round of the event loop; what it does not read yet is kept."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += data

    def _flush(self) -> None:
        if self._commands < 0:
            return
        try:
            while self._unsent:
                del self._unsent[: os.write(self._commands, self._unsent)]
        except BlockingIOError:
            if not self._stuck:
                self._loop.add_writer(self._commands, self._flush)
            self._stuck = True
            return
        except OSError:
            self._unsent.clear()  # it has closed its end, or is gone: its exit is reported later
        if self._stuck:
            self._loop.remove_writer(self._commands)
            self._stuck = False

    def _hung_up(self) -> None:
        """Readable means one thing on the end that we write to: the other end is closed."""
        self._loop.remove_reader(self._commands)
        self._owner.cut_off()

    def end(self, grace: float) -> None:
        """TERM to it and all its descendants, and KILL after the grace."""
        if self._worker is not None:
            with suppress(OSError):
                self._worker.send(b'{"end": %f}\n' % grace)

    # Output from it

    def unread(self, output: ProcessOutput) -> int:
        """Bytes that were written to an output and are not read yet."""
        descriptor = self._outputs.get(output)
        if descriptor is None:
            return 0
        found = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
        return int.from_bytes(found, sys.byteorder)

    def pull(self, output: ProcessOutput) -> int:
        """Read some of what was written to an output; how many bytes there were."""
        descriptor = self._outputs.get(output)
        if descriptor is None:
            return 0
        try:
            data = os.read(descriptor, READ_AT_ONCE)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if data:
            self._owner.received(output, data)
            return len(data)
        self.close_output(output)
        if output == "answers":
            self._owner.cut_off()
        return 0

    def _readable(self, output: ProcessOutput) -> None:
        self.pull(output)

    def close_output(self, output: ProcessOutput) -> None:
        """Stop reading it."""
        descriptor = self._outputs.pop(output, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def _monitor_readable(self) -> None:
        assert self._worker is not None  # noqa: S101 - else it is not read
        try:
            piece = self._worker.recv(READ_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self._unread += piece
        if not self._read_monitor() and not piece:
            self.monitored = False
            self._finish(Exit(KILLED))

    def _read_monitor(self) -> bool:
        """Whether it has ended."""
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            message = msgspec.json.decode(line, type=_MonitorLine)
            if message.cpu is not None:
                self._owner.used(message.cpu)
            elif message.half:
                self._owner.half_filled()
            else:
                self._finish(Exit(message.exited if message.exited is not None else KILLED, message.peak, message.why))
                return True
        return False

    def _finish(self, exit: Exit) -> None:  # noqa: A002
        if self._worker is None:
            return
        self._loop.remove_reader(self._worker)
        self._worker.close()
        self._worker = None
        outputs: tuple[ProcessOutput, ...] = ("stdout", "stderr", "answers")
        for output in outputs:
            while self.pull(output):
                pass
        self._release()
        self._owner.exited(exit)
        self._ending = self._loop.create_task(self._reap())

    async def _reap(self) -> None:
        assert self._monitor is not None  # noqa: S101 - it was started
        await self._monitor.wait()
        self.gone.set()

    def _release(self) -> None:
        for output in list(self._outputs):
            self.close_output(output)
        if self._commands >= 0:
            self._loop.remove_reader(self._commands)
            self._loop.remove_writer(self._commands)
            os.close(self._commands)
            self._commands = -1


def _pipes(number: int) -> list[tuple[int, int]]:
    """So many pipes, or none."""
    made: list[tuple[int, int]] = []
    try:
        while len(made) < number:
            made.append(_pipe())
    except OSError:
        for end in itertools.chain(*made):
            os.close(end)
        raise
    return made


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):  # as much as this user may have
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    return reader, writer
