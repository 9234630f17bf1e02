"""Named pipes in a folder beside the file: how one process wakes others on the same machine.

Whoever listens makes a pipe; whoever has something to tell writes lines into every pipe of that kind. Nothing here
is needed for a job to be safe: a full pipe drops what does not fit, and one that nobody reads any more is removed by
the next sender.
"""

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from windlass.store import machine

MOST_AT_ONCE = 4096
"""Bytes that a pipe takes whole, even from several writers at a time (PIPE_BUF)."""

MOST_READ = 1 << 16
"""Bytes that a pipe holds."""

SETTLED = 50_000_000
"""Nanoseconds after which a folder's time is sure to show a further change; the kernel's clock for files is coarse."""


UNFINISHED = 60_000_000_000
"""Nanoseconds after which a pipe that was made and not named yet never will be: its process was killed."""


def remove_dead(folder: Path) -> None:
    """Remove the pipes of processes that were killed. A sender does so too, but only with those that it writes to."""
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                if path.name.startswith(".") and machine.nanoseconds() - path.stat().st_mtime_ns < UNFINISHED:
                    continue
                if _is_dead(path):
                    path.unlink()


def _is_dead(path: Path) -> bool:
    """Whether nobody reads a pipe."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as fault:
        return fault.errno == errno.ENXIO
    return False


class Inbox:
    """A pipe of one kind that this process reads from."""

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        # Unique among processes that share the folder, even if they do not share their numbering of processes.
        self.name = f"{kind}-{os.getpid()}-{machine.nanoseconds()}"
        self._path = folder / self.name
        self._rest = b""
        fresh = folder / f".{self.name}"
        os.mkfifo(fresh, mode=0o600)
        # Open for both, so that it never reads as ended; and named only when open, so that no sender takes it for dead.
        self.descriptor = os.open(fresh, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fresh.rename(self._path)

    def widen(self, size: int) -> None:
        """Let so many bytes wait, if the system allows it."""
        with suppress(OSError):
            fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, size)

    def read(self) -> list[str]:
        """The lines that have come."""
        with suppress(BlockingIOError):
            *lines, self._rest = (self._rest + os.read(self.descriptor, MOST_READ)).split(b"\n")
            return [line.decode(errors="replace") for line in lines]
        return []

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self.descriptor)


class Outbox:
    """The pipes of others. Looks at the folder's time only, as long as nobody comes or goes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listed_at = 0
        self._names: list[str] = []

    def names(self) -> list[str]:
        """The pipes there are; those of a kind begin with it and a dash."""
        try:
            changed_at = self._folder.stat().st_mtime_ns
            if changed_at != self._listed_at:
                self._names = [pipe.name for pipe in self._folder.iterdir()]
                # The file system's own time is compared, so no other clock will do.
                self._listed_at = changed_at if machine.nanoseconds() - changed_at > SETTLED else 0
        except OSError:  # nobody has ever listened, or it is not for us to know
            self._names = []
        return self._names

    def send(self, names: Iterable[str], lines: Iterable[str]) -> list[str]:
        """Write lines into pipes, as far as they have room; the names of those that did not take all."""
        parts = list(_parts(lines))
        short = []
        for name in names:
            try:
                self._write(self._folder / name, parts)
            except OSError:  # it is full, it has just gone, or it is not for us to write to
                short.append(name)
        return short

    def _write(self, path: Path, parts: list[bytes]) -> None:
        try:
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as fault:
            if fault.errno == errno.ENXIO:  # nobody reads it any more
                path.unlink()
            return
        try:
            for part in parts:
                os.write(pipe, part)
        finally:
            os.close(pipe)


def _parts(lines: Iterable[str]) -> Iterator[bytes]:
    """Lines, joined as far as a pipe takes them whole."""
    part = b""
    for line in lines:
        encoded = line.encode() + b"\n"
        if len(part) + len(encoded) > MOST_AT_ONCE:
            yield part
            part = b""
        part += encoded
    yield part
