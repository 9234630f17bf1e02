"""Room on the disk for what must not be refused: a file beside the store that is given up when the disk is full.

While it is given up, new jobs are refused and everything else is still written: what workers report, and deletions. It
is taken back as soon as there is room for it. All processes on one store share it: its size says how things stand.
"""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from windlass.store import machine

LEAST, MOST = 1 << 20, 4 << 20
"""Bytes: as many as the store has, between these."""

PART = 16
"""On a small disk at most one in so many of its bytes."""

AND_MORE = 1.25
"""So much room there must be to take it back: else the next job would have it given up again."""

TRY_EVERY = 0.25
"""Seconds between two tries to take it back."""

KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE: blocks behind the end of a file, which stays as long as it is."""


class Reserve:
    """The reserve of one store; used on its thread only."""

    def __init__(self, store: str) -> None:
        """`store`: the path of its file, empty if it is in memory."""
        self._store = Path(store) if store else None
        self._log = Path(f"{store}-wal")
        self._path = Path(f"{store}-reserve")
        self._try_at = 0.0
        self.size = LEAST
        """As it was last seen."""

    def is_there(self) -> bool:
        """Whether it is there, or can be taken back now."""
        if self._store is None:
            return True
        there, wanted = _size(self._path), min(MOST, _size(self._store))
        if there:
            self.size = there
        if there and there >= wanted:
            return True
        if machine.monotonic() < self._try_at:
            return there > 0
        return self._take_back(wanted) or there > 0

    def give_up(self) -> None:
        """The disk is full: make room."""
        self._try_at = machine.monotonic() + TRY_EVERY
        if _size(self._path):
            with suppress(OSError):
                os.truncate(self._path, 0)

    def give_to_log(self) -> None:
        """Let the log have half of what was given up, before anybody else takes it."""
        with suppress(OSError):
            _allocate(self._log, self.size // 2)

    def _take_back(self, wanted: int) -> bool:
        self._try_at = machine.monotonic() + TRY_EVERY
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # a folder that we may not write in: nothing can be kept back
            return True
        before = os.fstat(file).st_size
        try:
            disk = os.fstatvfs(file)
            size = max(before, min(max(LEAST, wanted), disk.f_blocks * disk.f_frsize // PART))
            if size > before:
                os.posix_fallocate(file, 0, int(size * AND_MORE))
                os.ftruncate(file, size)
        except OSError:
            os.ftruncate(file, before)
            return False
        finally:
            os.close(file)
        self.size = size
        return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _allocate(path: Path, size: int) -> None:
    """Blocks behind the end of a file, without changing anything in it (`posix_fallocate` might write)."""
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        end = os.fstat(file).st_size
        libc.fallocate(file, KEEP_SIZE, ctypes.c_longlong(end), ctypes.c_longlong(size))
    finally:
        os.close(file)
