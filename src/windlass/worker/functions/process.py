"""A process of uploaded code, as the worker sees it: its monitor, four pipes, and what comes out of them.

Starts a monitor with a plan, reads what the process prints and answers without ever waiting for it, and reports when
everything has ended. Knows descriptors and signals; what the bytes mean is the context's business.
"""

import asyncio
import fcntl
import os
import socket
import sys
import termios
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


class MonitorReport(Struct, frozen=True):
    """One line from a monitor: that the process has started, or not; what it uses; how it ended."""

    started: int | None = None
    refused: str | None = None
    cpu: float | None = None
    half: bool = False
    exited: int = KILLED
    """As `wait` returns it."""
    peak: int = 0
    """Peak memory in bytes."""
    why: str | None = None
    """`memory` or `disk` if its monitor ended it for that."""


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

    def exited(self, report: MonitorReport) -> None:
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
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._outputs: dict[ProcessOutput, int] = {}
        self._commands = -1
        self._unsent = bytearray()
        self._stuck = False
        """Whether it reads more slowly than we write."""
        self._socket: socket.socket | None = None
        """To its monitor."""
        self._monitor: asyncio.subprocess.Process | None = None
        self._unread = b""

    async def start(self, plan: SandboxPlan) -> None:
        """Start it by a plan; `NotStarted` if that fails."""
        ready = False
        try:
            async with asyncio.timeout(START_WITHIN):
                await self._start(plan)
            ready = True
        except TimeoutError:
            raise NotStarted(f"it did not start within {START_WITHIN:g} s") from None
        except OSError as fault:
            raise NotStarted(f"no process could be started: {fault}") from None
        finally:
            if not ready:
                self._release()  # its monitor ends everything
                await self._reap()

    async def _start(self, plan: SandboxPlan) -> None:
        (commands, self._commands), (answers, answer), (out, print_), (err, complain) = _pipes(4)
        self._outputs = {"answers": answers, "stdout": out, "stderr": err}
        for mine in (self._commands, *self._outputs.values()):
            os.set_blocking(mine, False)
        try:
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._monitor = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", MONITOR, stdin=theirs.fileno(), stdout=print_, stderr=complain,
                    pass_fds=(commands, answer), env={},
                )  # fmt: skip
        finally:
            for other in (commands, answer, print_, complain):
                os.close(other)
        self._socket.setblocking(False)
        self.monitor = self._monitor.pid
        plan = msgspec.structs.replace(plan, wires=[commands, answer])
        await self._loop.sock_sendall(self._socket, msgspec.json.encode(plan) + b"\n")
        self._loop.add_reader(self._socket, self._monitor_readable)
        await self._started

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
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(b'{"end": %f}\n' % grace)

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

    def close_output(self, output: ProcessOutput) -> None:
        """Stop reading it."""
        descriptor = self._outputs.pop(output, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    # Reports of its monitor

    def _monitor_readable(self) -> None:
        assert self._socket is not None  # noqa: S101 - else it is not read
        try:
            piece = self._socket.recv(READ_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        *lines, self._unread = (self._unread + piece).split(b"\n")
        for line in lines:
            self._reported(msgspec.json.decode(line, type=MonitorReport))
        if not piece and self._socket is not None:
            self.monitored = not self.pid
            self._reported(MonitorReport())

    def _reported(self, report: MonitorReport) -> None:
        if not self.pid:
            self._began(report)
        elif report.cpu is not None:
            self._owner.used(report.cpu)
        elif report.half:
            self._owner.half_filled()
        else:
            self._finish(report)

    def _began(self, report: MonitorReport) -> None:
        if self._started.done():
            return  # too late
        if report.started is None:
            self._started.set_exception(NotStarted(report.refused or "its monitor ended before it had begun"))
            return
        self.pid = report.started
        for output, descriptor in self._outputs.items():
            self._loop.add_reader(descriptor, self.pull, output)
        self._loop.add_reader(self._commands, self._hung_up)
        self._started.set_result(None)

    def _finish(self, report: MonitorReport) -> None:
        outputs: tuple[ProcessOutput, ...] = ("stdout", "stderr", "answers")
        for output in outputs:
            while self.pull(output):
                pass
        self._release()
        self._owner.exited(report)
        self._ending = self._loop.create_task(self._reap())

    async def _reap(self) -> None:
        if self._monitor is not None:
            await self._monitor.wait()
        self.gone.set()

    def _release(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
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
        for _ in range(number):
            made.append(os.pipe2(os.O_CLOEXEC))
            with suppress(OSError):  # as much as this user may have
                fcntl.fcntl(made[-1][1], fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    except OSError:
        for pipe in made:
            for end in pipe:
                os.close(end)
        raise
    return made
