"""A process of foreign code as the worker has it: its keeper, four pipes, and what comes out of them.

Starts a keeper with a plan, reads what the process prints and answers without ever waiting for it, and tells when
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

from windlass.worker.functions.sandbox.plans import Plan

KEEPER = str(Path(__file__).parent / "sandbox" / "keeper.py")

READ_AT_ONCE = 1 << 18
PIPE_SIZE = 1 << 18
START_WITHIN = 30.0
KILLED = 9
"""How a process ends whose keeper was killed."""

Output = Literal["answers", "stdout", "stderr"]


class Refused(Exception):
    """The process could not be started as the plan says, so it was not started at all."""


class Exit(Struct, frozen=True):
    """How a process ended."""

    exited: int
    """As `wait` tells it."""
    peak: int = 0
    """Bytes of memory that it held at most."""
    why: str | None = None
    """`memory` or `disk` if its keeper ended it for that."""


class _News(Struct):
    """One line of a keeper."""

    started: int | None = None
    refused: str | None = None
    exited: int | None = None
    peak: int = 0
    why: str | None = None
    cpu: float | None = None
    half: bool = False


class Listener(Protocol):
    """Whoever has a process."""

    def heard(self, output: Output, data: bytes) -> None: ...

    def used(self, cpu: float) -> None:
        """Everything that came of it has taken so many seconds of processor time by now."""
        ...

    def half_filled(self) -> None:
        """Its folder holds half of what it may."""
        ...

    def cut_off(self) -> None:
        """It has closed a wire: it hears no more orders, or can answer none. Most often it is just ending."""
        ...

    def exited(self, exit: Exit) -> None:  # noqa: A002 - it is one
        """Everything that came of it has ended, and everything it said has been heard."""
        ...


class Process:
    """One process and its keeper."""

    def __init__(self, listener: Listener) -> None:
        self.pid = 0
        self.keeper = 0
        """The process that watches over it."""
        self.gone = asyncio.Event()
        self.kept = True
        """Whether its keeper lived to see everything end."""
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._outputs: dict[Output, int] = {}
        self._orders = -1
        self._unsent = bytearray()
        self._stuck = False
        """Whether it reads more slowly than we write."""
        self._worker: socket.socket | None = None
        self._keeper: asyncio.subprocess.Process | None = None
        self._news = b""

    async def start(self, make: Callable[[tuple[int, int]], Plan]) -> None:
        """Start it by the plan that is made for its two wires; `Refused` if that cannot be carried out."""
        try:
            async with asyncio.timeout(START_WITHIN):
                await self._start(make)
        except TimeoutError:
            raise Refused(f"it did not start within {START_WITHIN:g} s") from None
        except OSError as fault:
            raise Refused(f"there was no room for a process: {fault}") from None
        finally:
            if not self.pid:
                await self._abandon()

    async def _start(self, make: Callable[[tuple[int, int]], Plan]) -> None:
        (orders, self._orders), (answers, answer), (out, print_), (err, complain) = _pipes(4)
        self._outputs = {"answers": answers, "stdout": out, "stderr": err}
        for mine in (self._orders, *self._outputs.values()):
            os.set_blocking(mine, False)
        try:
            self._worker, theirs = socket.socketpair()
            with theirs:
                self._keeper = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", KEEPER, stdin=theirs.fileno(), stdout=print_, stderr=complain,
                    pass_fds=(orders, answer), env={},
                )  # fmt: skip
        finally:
            for other in (orders, answer, print_, complain):
                os.close(other)
        self._worker.setblocking(False)
        self.keeper = self._keeper.pid
        await self._loop.sock_sendall(self._worker, msgspec.json.encode(make((orders, answer))) + b"\n")
        await self._begin()

    async def _begin(self) -> None:
        assert self._worker is not None  # noqa: S101 - it was started
        while b"\n" not in self._news:
            piece = await self._loop.sock_recv(self._worker, READ_AT_ONCE)
            if not piece:
                raise Refused("its keeper ended before it had begun")
            self._news += piece
        line, _, self._news = self._news.partition(b"\n")
        news = msgspec.json.decode(line, type=_News)
        if news.started is None:
            raise Refused(news.refused or "its keeper did not start it")
        self.pid = news.started
        for output, descriptor in self._outputs.items():
            self._loop.add_reader(descriptor, self._readable, output)
        self._loop.add_reader(self._orders, self._unheard)
        self._loop.add_reader(self._worker, self._told)
        self._told_so_far()

    async def _abandon(self) -> None:
        self._release()
        if self._worker is not None:
            self._worker.close()  # its keeper ends everything
            self._worker = None
        if self._keeper is not None:
            await self._keeper.wait()
        self.gone.set()

    # What we say to it

    def send(self, data: bytes) -> None:
        """Write, together with what else is said in this turn of the loop; what it does not read yet is kept."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += data

    def _flush(self) -> None:
        if self._orders < 0:
            return
        try:
            while self._unsent:
                del self._unsent[: os.write(self._orders, self._unsent)]
        except BlockingIOError:
            if not self._stuck:
                self._loop.add_writer(self._orders, self._flush)
            self._stuck = True
            return
        except OSError:
            self._unsent.clear()  # it has closed its side, or is gone: how it ends is told later
        if self._stuck:
            self._loop.remove_writer(self._orders)
            self._stuck = False

    def _unheard(self) -> None:
        """The one thing that can be read from the end we write to: nobody has the other one any more."""
        self._loop.remove_reader(self._orders)
        self._listener.cut_off()

    def end(self, grace: float) -> None:
        """TERM to all that has come of it, and KILL after the grace."""
        if self._worker is not None:
            with suppress(OSError):
                self._worker.send(b'{"end": %f}\n' % grace)

    # What it says to us

    def unread(self, output: Output) -> int:
        """Bytes that have been written to an output and not been heard."""
        descriptor = self._outputs.get(output)
        if descriptor is None:
            return 0
        found = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
        return int.from_bytes(found, sys.byteorder)

    def pull(self, output: Output) -> int:
        """Hear some of what has been written to an output by now; how many bytes there were."""
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
            self._listener.heard(output, data)
            return len(data)
        self.close_output(output)
        if output == "answers":
            self._listener.cut_off()
        return 0

    def _readable(self, output: Output) -> None:
        self.pull(output)

    def close_output(self, output: Output) -> None:
        """Hear no more of it."""
        descriptor = self._outputs.pop(output, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def _told(self) -> None:
        assert self._worker is not None  # noqa: S101 - else nobody listens
        try:
            piece = self._worker.recv(READ_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self._news += piece
        if not self._told_so_far() and not piece:
            self.kept = False
            self._over(Exit(KILLED))

    def _told_so_far(self) -> bool:
        """Whether it has ended."""
        *lines, self._news = self._news.split(b"\n")
        for line in lines:
            news = msgspec.json.decode(line, type=_News)
            if news.cpu is not None:
                self._listener.used(news.cpu)
            elif news.half:
                self._listener.half_filled()
            else:
                self._over(Exit(news.exited if news.exited is not None else KILLED, news.peak, news.why))
                return True
        return False

    def _over(self, exit: Exit) -> None:  # noqa: A002
        if self._worker is None:
            return
        self._loop.remove_reader(self._worker)
        self._worker.close()
        self._worker = None
        outputs: tuple[Output, ...] = ("stdout", "stderr", "answers")
        for output in outputs:
            while self.pull(output):
                pass
        self._release()
        self._listener.exited(exit)
        self._ending = self._loop.create_task(self._reap())

    async def _reap(self) -> None:
        assert self._keeper is not None  # noqa: S101 - it was started
        await self._keeper.wait()
        self.gone.set()

    def _release(self) -> None:
        for output in list(self._outputs):
            self.close_output(output)
        if self._orders >= 0:
            self._loop.remove_reader(self._orders)
            self._loop.remove_writer(self._orders)
            os.close(self._orders)
            self._orders = -1


def _pipes(number: int) -> list[tuple[int, int]]:
    """So many, or none."""
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
