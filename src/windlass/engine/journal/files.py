"""The files of a journal: what it needs of a disk, as a protocol that is passed in, and the disk of this machine.

Every method does one thing to the disk, so that a test can watch their order, make one fail, or forget what was not
synced. What is said here is said in the words of the system: errors are `OSError`.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from windlass.model.errors import JournalFull, Unavailable, WindlassError

FILE_MODE, FOLDER_MODE = 0o600, 0o700

MOST_PARTS = os.sysconf("SC_IOV_MAX")
"""What the system puts together in one call."""


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def not_written(fault: OSError) -> WindlassError:
    """The error for a job that could not be written: only a full disk is reported as one."""
    kind = JournalFull if fault.errno in NO_ROOM else Unavailable
    return kind(f"the journal cannot be written: {fault.strerror or fault}; nothing of it was kept")


class File(Protocol):
    """A file that is being written."""

    def write(self, *parts: bytes) -> None:
        """Append all of them."""
        ...

    def sync(self) -> None:
        """Make what was written outlast a power cut."""
        ...

    def cut(self, size: int) -> None:
        """Drop what lies beyond that size."""
        ...

    def close(self) -> None: ...


class Files(Protocol):
    """A disk."""

    def folder(self, path: Path) -> None:
        """Make a folder, if it is not there."""
        ...

    def names(self, folder: Path) -> list[str]:
        """What is in a folder, sorted."""
        ...

    def create(self, path: Path) -> File:
        """A new file, which only its owner can read."""
        ...

    def open(self, path: Path) -> File:
        """A file that is there, to be written at its end."""
        ...

    def read(self, path: Path, at: int = 0, size: int = -1) -> bytes: ...

    def rename(self, old: Path, new: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def sync_folder(self, folder: Path) -> None:
        """Make what was created, renamed and removed in it outlast a power cut."""
        ...

    def fullness(self, folder: Path) -> float:
        """Which part of the disk is used, from 0 to 1."""
        ...

    def lock(self, path: Path) -> int | None:
        """Take a lock that ends with this process; null = somebody else has it."""
        ...

    def unlock(self, lock: int) -> None: ...


FLEETING = ("tmpfs", "ramfs", "overlay")
"""Kinds of file systems that are gone with the machine or the container."""


def fleeting(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """The kind of file system that a folder is on, if what lies there does not last."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None  # another kind of system: nobody can say
    above = [(len(point), kind) for _, point, kind, *_ in lines if folder.resolve().is_relative_to(point)]
    kind = max(above, default=(0, ""))[1]
    return kind if kind in FLEETING else None


class DiskFile:
    """A file on the disk of this machine."""

    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, FILE_MODE)

    def write(self, *parts: bytes) -> None:
        for start in range(0, len(parts), MOST_PARTS):
            self._write_some(parts[start : start + MOST_PARTS])

    def _write_some(self, parts: Sequence[bytes]) -> None:
        written = os.writev(self._descriptor, parts)
        if written < sum(map(len, parts)):
            rest = memoryview(b"".join(parts))[written:]
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def cut(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        os.close(self._descriptor)


class Disk:
    """The disk of this machine."""

    def folder(self, path: Path) -> None:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)

    def names(self, folder: Path) -> list[str]:
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def create(self, path: Path) -> File:
        return DiskFile(path, os.O_CREAT | os.O_EXCL)

    def open(self, path: Path) -> File:
        return DiskFile(path, 0)

    def read(self, path: Path, at: int = 0, size: int = -1) -> bytes:
        with path.open("rb") as file:
            file.seek(at)
            return file.read(size)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove(self, path: Path) -> None:
        path.unlink()

    def sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def fullness(self, folder: Path) -> float:
        disk = os.statvfs(folder)
        used = disk.f_blocks - disk.f_bfree
        return used / ((used + disk.f_bavail) or 1)

    def lock(self, path: Path) -> int | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def unlock(self, lock: int) -> None:
        os.close(lock)
