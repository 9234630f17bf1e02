"""When a connection waits for its disk: which commits do, and when the log is written back into the file.

A commit that SQLite syncs holds up everybody else who writes, and is seen by nobody before. So it syncs only what must
not be seen earlier; the rest is synced here, after the commit, or by whoever syncs next: a log is synced as a whole.
Knows files, pragmas and pages; what must last is for the store to say.
"""

import os
from enum import IntEnum
from pathlib import Path

import apsw

LONG = 4000
"""Pages of a log that is written back, 16 MiB: pages that change often are written back less often."""

SHORT = 100
"""The same while the disk is full: then it must not grow."""


class Lasts(IntEnum):
    """When that which was written must be on disk, so that no power cut can undo it."""

    SOME_TIME = 0
    """With whatever is synced next."""
    WHEN_ANSWERED = 1
    """Before whoever wrote it is answered; others may see it earlier."""
    WHEN_SEEN = 2
    """Before anybody sees it."""


class Disk:
    """The disk under one connection; used on its thread only."""

    def __init__(self, sql: apsw.Connection) -> None:
        self._sql = sql
        self._page_size = int(sql.pragma("page_size"))
        self._pages = 0
        """Of the log, after the last commit."""
        self._log: int | None = None
        """A descriptor of our own: SQLite syncs in the middle of a commit, or not at all."""
        self._commits_sync = True
        self._in_doubt = False
        sql.wal_autocheckpoint(0)
        sql.set_wal_hook(self._note)

    def prepare(self, lasts: Lasts) -> None:
        """Let SQLite sync the next commit if it must. Not to be called inside a transaction."""
        if self._in_doubt:
            self._begin_log_anew()
        if (sync := lasts is Lasts.WHEN_SEEN) is not self._commits_sync:
            self._sql.pragma("synchronous", "FULL" if sync else "NORMAL")
            self._commits_sync = sync

    def sync(self) -> None:
        """Wait until all that anybody has committed is on disk."""
        if not self._sql.filename:  # it is in memory
            return
        if self._log is None:
            self._log = os.open(f"{self._sql.filename}-wal", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fdatasync(self._log)
        except OSError:
            self.doubt()
            raise

    def doubt(self) -> None:
        """A sync has failed: what could not be written may be dropped, and the next sync would not say so."""
        self._in_doubt = True

    def write_back(self, most_grown: int, *, soon: bool) -> None:
        """Write the log into the file, if it has become long, or makes the file longer by so many bytes."""
        if self._pages >= (SHORT if soon else LONG) or self._grown(most_grown) > most_grown:
            self._pages = 0
            self._sql.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _grown(self, enough: int) -> int:
        """Bytes that the file will need when the log is written back; 0 = surely fewer than would be enough."""
        if self._pages * self._page_size <= enough:
            return 0
        return int(self._sql.pragma("page_count")) * self._page_size - Path(self._sql.filename).stat().st_size

    def close(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _begin_log_anew(self) -> None:
        """Rely on nothing in the log: all of it goes into the file, which is synced, and the log is cut off."""
        self._sql.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._in_doubt = False

    def _note(self, _sql: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK
