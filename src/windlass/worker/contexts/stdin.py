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


class ProcessInput:
    """Takes what was sent to a job.

    It writes to the descriptor itself: a loop's transport for writing reads as well, to learn of the other end's close,
    and from a terminal that takes what the process prints.
    """

    def __init__(self, kind: Stdin) -> None:
        self.kind = kind
        self.on_room: Callable[[], None] = lambda: None
        """Called when all that was given has gone to the process."""
        self.group: int | None = None
        """The process group that signals go to, where no terminal knows one."""
        self._loop = asyncio.get_running_loop()
        self._unsent = b""
        self._ended = False
        """Whether nothing can be typed any more."""
        if kind == "terminal":
            ours, self.theirs = pty.openpty()
        else:
            self.theirs, ours = os.pipe()
        os.set_blocking(ours, False)
        self._ours: int | None = ours
        """Our end; null = closed."""
        self._resize(FIRST_SIZE)

    def output(self) -> int:
        """A descriptor from which comes what is printed to the terminal."""
        assert self.kind == "terminal"  # noqa: S101
        assert self._ours is not None  # noqa: S101
        return os.dup(self._ours)

    @property
    def is_full(self) -> bool:
        return bool(self._unsent)

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
        if not data and self.kind == "pipe":
            self._ended = True
        self._unsent += data or (END_OF_INPUT if self.kind == "terminal" else b"")
        self._write()

    def _write(self) -> None:
        """Write what the process takes now; the rest when it takes more."""
        if self._ours is None:
            return
        was_full = bool(self._loop.remove_writer(self._ours))
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._ours, self._unsent) :]
        except BlockingIOError:
            self._loop.add_writer(self._ours, self._write)
            return
        except OSError:  # it reads no more
            self._unsent, self._ended = b"", True
        if self._ended:
            self._close()
        if was_full:
            self.on_room()

    def _resize(self, size: Resized) -> None:
        if self.kind == "terminal" and self._ours is not None:
            fcntl.ioctl(self._ours, termios.TIOCSWINSZ, _SIZE.pack(size.rows, size.columns, 0, 0))

    def _signal(self, number: signal.Signals) -> None:
        group = self.group
        if self.kind == "terminal":
            group = None if self._ours is None else os.tcgetpgrp(self._ours)
        if group:
            os.killpg(group, number)

    def close(self) -> None:
        """Its process has ended."""
        self._unsent, self._ended, self.group = b"", True, None
        self._close()

    def _close(self) -> None:
        if self._ours is not None:
            self._loop.remove_writer(self._ours)
            os.close(self._ours)
            self._ours = None
