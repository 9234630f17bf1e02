"""The standard input of a job's process, as its supervisor sees it: the end of a pipe, or of a terminal.

The terminal is also what the process prints to. What does not fit into it now waits here, and with it what comes later:
the queue keeps that, and can refuse more.
"""

import asyncio
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import Callable
from contextlib import suppress

from windlass.model.stdin import Resized, Signalled, Stdin, StdinMessage, Typed

END_OF_INPUT = b"\x04"
"""What a terminal takes for the end."""

FIRST_SIZE = Resized(24, 80)

_SIZE = struct.Struct("HHHH")


class ProcessInput(asyncio.BaseProtocol):
    """Takes what was sent to a job."""

    def __init__(self, kind: Stdin) -> None:
        self.kind = kind
        self.on_room: Callable[[], None] = lambda: None
        """Called when all that was given has gone to the process."""
        self.group: int | None = None
        """The process group that signals go to, where no terminal knows one."""
        self._transport: asyncio.WriteTransport | None = None
        self._unsent: list[bytes] = []
        self._ended = False
        """Whether nothing can be typed any more."""
        self._terminal: int | None = None
        """Our end of the terminal, if it is one."""
        if kind == "terminal":
            self._terminal, self.theirs = pty.openpty()
            self._ours = os.dup(self._terminal)
            self._resize(FIRST_SIZE)
        else:
            self.theirs, self._ours = os.pipe()

    async def connect(self) -> None:
        ours = os.fdopen(self._ours, "wb", 0)
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: self, ours)
        transport.set_write_buffer_limits(high=0)
        self._transport = transport
        for data in self._unsent:
            self._write(data)
        self._unsent.clear()
        if self._ended:
            transport.write_eof()

    def output(self) -> int:
        """A descriptor from which comes what is printed to the terminal."""
        assert self._terminal is not None  # noqa: S101
        return os.dup(self._terminal)

    @property
    def is_full(self) -> bool:
        return bool(self._unsent) or (self._transport is not None and bool(self._transport.get_write_buffer_size()))

    def resume_writing(self) -> None:
        self.on_room()

    def pause_writing(self) -> None:
        """What comes now waits; the queue hears of that when it asks."""

    def connection_lost(self, _fault: Exception | None) -> None:
        self._transport, self._ended = None, True
        self.on_room()

    def give(self, message: StdinMessage) -> None:
        with suppress(OSError):  # the process is gone
            match message:
                case Typed(data):
                    self._type(data)
                case Resized() as size:
                    self._resize(size)
                case Signalled(name):
                    self._signal(signal.Signals[f"SIG{name}"])

    def _type(self, data: bytes) -> None:
        if self._ended:
            return  # as to a program that reads no more
        if data:
            self._write(data)
        elif self.kind == "terminal":
            self._write(END_OF_INPUT)
        else:
            self._ended = True
            if self._transport is not None:
                self._transport.write_eof()

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            self._unsent.append(data)
        else:
            self._transport.write(data)

    def _resize(self, size: Resized) -> None:
        if self._terminal is not None:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, _SIZE.pack(size.rows, size.columns, 0, 0))

    def _signal(self, number: signal.Signals) -> None:
        group = self.group if self._terminal is None else os.tcgetpgrp(self._terminal)
        if group:
            os.killpg(group, number)

    def close(self) -> None:
        """Its process has ended."""
        if self._terminal is not None:
            os.close(self._terminal)
        self._ended, self._terminal, self.group = True, None, None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
