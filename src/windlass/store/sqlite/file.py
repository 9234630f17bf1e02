"""The file and its disk: opening it, its format, when it is synced, what happens when the disk is full.

Knows paths, pragmas, formats and SQLite's errors, which it maps to our own. Knows no table by name.
A commit that SQLite syncs holds up every other writer, and no reader sees it before. So SQLite syncs only the commits
that must not be visible earlier; `Log` syncs the others after the commit, or the next sync covers them: a log is
synced as a whole (decision 0037).
"""

import ctypes
import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from importlib import resources
from pathlib import Path
from typing import TypeVar

import apsw

from windlass import system
from windlass.model.errors import Damaged, Full, Invalid, TooLarge, Unavailable, WindlassError

T = TypeVar("T")

MEMORY = ":memory:"
"""Instead of a path: a private store that lives as long as the object."""

FORMAT = 9
"""Of `schema.sql`, kept in the file as `user_version`."""

APPLICATION_ID = 0x576E646C
"""`Wndl`: marks a file as ours."""

OLDEST_SQLITE = (3, 51, 3)
"""Earlier versions can corrupt a file when two connections write and checkpoint at once."""

OWNER_ONLY = 0o600
"""The mode of a new file: payloads and secrets are stored in clear."""

BUSY_TIMEOUT = 15.0
"""Seconds to wait for other processes to release the file."""

FIRST_PAUSE, FIRST_PAUSES, LATER_PAUSE = 0.0002, 20, 0.002
"""Seconds between two tries, at first and later: most writers hold the file for one sync."""

CHECKPOINT_PAGES = 4000
"""Pages of log that cause a checkpoint, 16 MiB: a page that changes often is then written back less often."""

LOG_STEP = 1 << 20
"""Bytes of zeros by which the log grows. To sync a write behind the end of a file takes twice as long as one inside."""

LOG_GROWS_WITH = 64 << 20
"""Free bytes on the disk with which it does so."""

FRAME_HEADER = 24
"""Bytes before each page in the log."""

CHECKPOINT_PAGES_WHEN_FULL = 100
"""The same while the disk is full: then the log must not grow."""

LOOK_PAGES = 32
"""Pages of log after which a process looks whether the disk is full; a look takes a microsecond or two."""

SMALLEST_RESERVE, LARGEST_RESERVE = 1 << 20, 4 << 20
"""Bytes: as many as the store has, between these two."""

DISK_SHARE = 16
"""On a small disk the reserve takes at most one in so many of its bytes."""

MARGIN = 1.25
"""So many times its size must be free to restore the reserve: else the next job would use it up again."""

RESTORE_EVERY = 0.25
"""Seconds between two tries to restore the reserve."""

LEAST_FREE = 1 << 20
"""Free bytes inside the file, left by deleted jobs, that one new job needs on a full disk."""

LEFT_FREE = 1 << 16
"""Bytes of the reserve that neither the log nor the file gets: SQLite's index of the log may need them."""

KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE: allocates blocks beyond the end of a file without changing its length."""

BLOCK = 4096
"""Bytes by which room on a disk is given away and taken."""

PRAGMAS = """
    PRAGMA synchronous = FULL;             -- accepted means durable; see `Log`
    PRAGMA cache_size = -16384;            -- KiB; the rest is in the system's cache, which costs as little
    PRAGMA journal_size_limit = 67108864;  -- bytes; after a burst the log shrinks again
    PRAGMA temp_store = MEMORY;
"""


# --- Opening ------------------------------------------------------------------------------------------


class FileConnection(apsw.Connection):
    """A connection that knows which process opened it: used in another process it would corrupt the file."""

    def __init__(self, path: str) -> None:
        super().__init__(path, statementcachesize=200)
        self.path = path
        self.process = os.getpid()
        self.set_busy_handler(_wait_while_busy)
        # Plans do not depend on bound values: else each new value, even of a LIMIT, recompiles its statement.
        self.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def resolve(path: str | os.PathLike[str]) -> str:
    """The canonical path of a file; refuses what cannot be a file."""
    text = os.fspath(path)
    if text == MEMORY:
        return text
    place = Path(text).resolve()
    if not place.parent.is_dir():
        raise Invalid(f"{place.parent} is not a folder: create it first", at="path")
    if place.is_dir():
        raise Invalid(f"{place} is a folder: name a file in it", at="path")
    return str(place)


def connect(path: str) -> apsw.Connection:
    """Open a resolved path; create its tables."""
    _check_library()
    _check_fork(path)
    try:
        _create(path)
        return _connect(path)
    except apsw.NotADBError:
        raise Invalid(f"{path} is not a database", at="path") from None
    except (apsw.Error, OSError) as fault:
        raise to_windlass_error(fault, path) from fault


def _create(path: str) -> None:
    """Create a new file that only its owner can read; SQLite gives the files beside it the same mode.

    Nothing is opened here: closing a file again would release every lock that this process has on it.
    """
    if path != MEMORY:
        with suppress(FileExistsError):
            os.mknod(path, stat.S_IFREG | OWNER_ONLY)


def _connect(path: str) -> apsw.Connection:
    try:
        return _prepare(FileConnection(path), path)
    except (apsw.FullError, apsw.IOError):
        if path == MEMORY:
            raise
        Reserve(path).release()  # even reading needs some room beside the file
        return _prepare(FileConnection(path), path)


def _check_library() -> None:
    found = apsw.sqlite_lib_version()
    if tuple(int(part) for part in found.split(".")) < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise Unavailable(f"SQLite {found} can corrupt a shared file: install an apsw with SQLite {oldest} or newer")


def _check_fork(path: str) -> None:
    # After a fork SQLite takes the parent's locks for its own, in new connections too.
    for other in apsw.connections():
        if isinstance(other, FileConnection) and other.path == path != MEMORY and other.process != os.getpid():
            raise Unavailable(f"{path} was open when this process was forked: fork first, then open")


def _prepare(sql: apsw.Connection, path: str) -> apsw.Connection:
    try:
        _set_journal_mode(sql, path)
        sql.execute(PRAGMAS)
        if not _has_tables(sql, path):
            sql.execute("BEGIN IMMEDIATE")
            if not _has_tables(sql, path):  # another process may have been faster
                _create_tables(sql)
            sql.execute("COMMIT")
    except BaseException:
        sql.close(True)
        raise
    return sql


def _set_journal_mode(sql: apsw.Connection, path: str) -> None:
    mode = _retry_while_busy(lambda: sql.execute("PRAGMA journal_mode = WAL").get)
    if path != MEMORY and mode != "wal":
        raise Unavailable(f"{path} is on a file system without shared memory: move it to a local disk")


def _has_tables(sql: apsw.Connection, path: str) -> bool:
    """Whether the tables were created; refuses those of another format or program."""
    with sql:  # one snapshot: another process may create the tables meanwhile
        version, mark = int(sql.pragma("user_version")), sql.pragma("application_id")
        used = bool(mark or version or sql.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get)
    if not used:
        return False
    if mark != APPLICATION_ID:
        raise Invalid(f"{path} is the database of another program", at="path")
    if version > FORMAT:
        raise Invalid(f"{path} has format {version}, this Windlass knows {FORMAT}: use a newer Windlass", at="path")
    if version < FORMAT:
        raise Invalid(
            f"{path} has format {version}, older than {FORMAT}, which this Windlass writes: start with a new file, and"
            " finish the jobs in this one with the Windlass that wrote them",
            at="path",
        )
    return True


def _create_tables(sql: apsw.Connection) -> None:
    sql.execute(resources.files(__package__).joinpath("schema.sql").read_text("utf-8"))
    sql.pragma("application_id", APPLICATION_ID)
    sql.pragma("user_version", FORMAT)


def _retry_while_busy(ask: Callable[[], T]) -> T:
    """Where SQLite itself does not wait: two processes may open a new file at the same moment."""
    tries = 0
    while True:
        try:
            return ask()
        except apsw.BusyError:
            if not _wait_while_busy(tries):
                raise
        tries += 1


def _wait_while_busy(tries: int) -> bool:
    # SQLite's own handler sleeps longer and longer, up to 100 ms, and so starves the oldest waiter.
    time.sleep(FIRST_PAUSE if tries < FIRST_PAUSES else LATER_PAUSE)
    return tries * LATER_PAUSE < BUSY_TIMEOUT


# --- Errors -------------------------------------------------------------------------------------------


def to_windlass_error(fault: Exception, path: str) -> Exception:
    """The error that a caller gets for a fault: never one of SQLite's own."""
    match fault:
        case WindlassError():
            return type(fault)(fault.detail, at=fault.at)  # one fault may go to several callers
        case apsw.FullError() | OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return disk_full(path)
        case apsw.TooBigError():
            return TooLarge("a value is larger than SQLite can store")
        case apsw.BusyError():
            return Unavailable(f"{path} is locked by another process: try again later")
        case apsw.Error() | OSError():
            return _unusable(fault, path)
        case OverflowError() | UnicodeError():
            return Invalid(f"the store cannot keep a value: {fault}")
    return fault


def disk_full(path: str) -> Full:
    """The error for new jobs while the disk is full."""
    return Full(f"no room is left on the disk of {path}: delete finished jobs, or free space there")


def _unusable(fault: Exception, path: str) -> Unavailable:
    """What is wrong with the file or its disk, and what to do about it."""
    if isinstance(fault, apsw.CorruptError | apsw.NotADBError):
        return Damaged(f"{path} is damaged ({fault}): restore a backup, or start with a new file")
    if _is_read_only(path):
        return Unavailable(f"{path} cannot be written, its disk is mounted read-only: mount it for writing")
    if isinstance(fault, apsw.ReadOnlyError | apsw.CantOpenError | PermissionError):
        done = "opened" if isinstance(fault, apsw.CantOpenError) else "written"
        return Unavailable(f"{path} cannot be {done}: let this user write to the file and to its folder")
    return Unavailable(f"{path} cannot be used: {fault}")


def _is_read_only(path: str) -> bool:
    """Whether the file system of a file is mounted read-only."""
    try:
        return bool(os.statvfs(Path(path).parent).f_flag & os.ST_RDONLY)
    except OSError:
        return False


# --- The same file ------------------------------------------------------------------------------------


class Identity:
    """Which files were at the path of a store and of its log when it was opened."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files = (path, f"{path}-wal") if path else ()
        self._opened = self._found()

    def check(self) -> None:
        """Raise if the file was deleted or replaced: nothing that was written to it counts."""
        if self._found() != self._opened:
            raise Damaged(f"{self._path} was deleted or replaced while it was open: restart every program that uses it")

    def _found(self) -> list[tuple[int, int]] | None:
        """Device and inode of each file; null = at least one is missing."""
        try:
            return [(found.st_dev, found.st_ino) for found in map(os.stat, self._files)]
        except OSError:
            return None


# --- Syncing ------------------------------------------------------------------------------------------


class Durability(IntEnum):
    """When a write must be on disk, so that no power cut can undo it."""

    LATER = 0
    """With the next sync."""
    BEFORE_ANSWER = 1
    """Before its caller is answered; others may see it earlier."""
    BEFORE_VISIBLE = 2
    """Before any reader sees it."""


class Log:
    """The write-ahead log of one connection: when it is synced and when it is written back into the file."""

    def __init__(self, sql: apsw.Connection) -> None:
        self._sql = sql
        self._page_size = int(sql.pragma("page_size"))
        self._pages = 0
        """Of the log, after the last commit."""
        self._measure_at = 0
        """Pages of the log at which it could make the file too long, and is measured again."""
        self._seen = 0
        """Pages of the log when it was last said to have changed."""
        self._length = 0
        """Bytes of its file, as last seen."""
        self._descriptor: int | None = None
        """Our own: SQLite syncs in the middle of a commit, or not at all."""
        self._commits_sync = True
        self._suspect = False
        sql.wal_autocheckpoint(0)
        sql.set_wal_hook(self._count_pages)

    def prepare(self, durability: Durability) -> None:
        """Have SQLite sync the next commit if it must. Not to be called inside a transaction."""
        if self._suspect:
            # Rely on nothing in the log: write all of it into the file, which is synced, and truncate it.
            self._sql.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._suspect = False
        if (sync := durability is Durability.BEFORE_VISIBLE) is not self._commits_sync:
            self._sql.pragma("synchronous", "FULL" if sync else "NORMAL")
            self._commits_sync = sync

    def lengthen(self) -> None:
        """Let the log have room for the next commits. Only inside a transaction that writes: no other process adds."""
        end = (self._pages + LOG_STEP // 8 // self._page_size) * (self._page_size + FRAME_HEADER)
        if self._length > end or not self._sql.filename:
            return
        with suppress(OSError):  # then commits make the file longer themselves
            log = self._opened()
            self._length = os.fstat(log).st_size
            disk = os.fstatvfs(log)
            if self._length <= end and disk.f_bavail * disk.f_frsize > LOG_GROWS_WITH:
                self._length += os.pwrite(log, bytes(LOG_STEP), self._length)

    def sync(self) -> None:
        """Wait until every commit, of any process, is on disk."""
        if not self._sql.filename:  # in memory
            return
        try:
            os.fdatasync(self._opened())
        except OSError:
            self.distrust()
            raise

    def _opened(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(f"{self._sql.filename}-wal", os.O_RDWR | os.O_CLOEXEC)
        return self._descriptor

    def distrust(self) -> None:
        """A sync has failed: the system may have dropped unwritten pages, and the next sync would not report it."""
        self._suspect = True

    def has_changed(self) -> bool:
        """Whether it has grown by some pages since this was last true, or has started again."""
        if 0 <= self._pages - self._seen < LOOK_PAGES:
            return False
        self._seen = self._pages
        return True

    def is_long(self, most_growth: int, *, soon: bool) -> bool:
        """Whether it is time for a checkpoint: it is long, or makes the file longer by more than so many bytes."""
        if self._pages >= (CHECKPOINT_PAGES_WHEN_FULL if soon else CHECKPOINT_PAGES):
            return True
        if self._pages * self._page_size <= most_growth or self._pages < self._measure_at:
            return False
        growth = self.growth()
        self._measure_at = self._pages + max(0, most_growth - growth) // self._page_size
        return growth > most_growth

    def growth(self) -> int:
        """How many bytes longer the file will be when the log is written back."""
        return int(self._sql.pragma("page_count")) * self._page_size - _size_of(self._sql.filename)

    def checkpoint(self) -> None:
        """Write the log into the file, except what readers still need."""
        self._pages = self._measure_at = 0
        self._sql.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _count_pages(self, _sql: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._pages:  # the log was written back and starts again
            self._measure_at = self._length = 0
        self._pages = pages
        return apsw.SQLITE_OK


# --- A full disk --------------------------------------------------------------------------------------


class Reserve:
    """Disk space for what must not be refused: a file beside the store that is released when the disk is full.

    While it is released, new jobs are refused; reports of workers and deletions are still written. The log gets half
    of it at once, the rest is kept until a checkpoint needs it to make the store's file longer (decision 0135). It is
    restored as soon as there is room. All processes on one store share it: the size of its file is its state. That is a
    number of blocks; one byte more, or no byte at all, means that it is released.
    """

    def __init__(self, path: str) -> None:
        """`path`: of the store's file, empty if it is in memory."""
        self._path = path
        self._file = f"{path}-reserve"
        self._next_try = 0.0
        self.size = SMALLEST_RESERVE
        """In bytes, as last seen whole."""
        self.in_use = False
        """Whether the disk was full recently."""

    def check(self, new: int, free: Callable[[], int]) -> None:
        """Raise if the disk has no room for so many new bytes. `free` = the unused bytes inside the store's file."""
        self.in_use = not self._is_there()
        if self.in_use and free() < new * 2 + LEAST_FREE:
            raise disk_full(self._path)

    def look(self) -> None:
        """See whether it is released: another process may have released or restored it."""
        try:
            self.in_use = bool(self._path) and not _is_whole(os.stat(self._file).st_size)  # noqa: PTH116 - as below
        except OSError:  # there is none
            self.in_use = False

    def release(self) -> None:
        """The disk is full: let the log have room, before another program takes it, and keep the rest for the file."""
        self.in_use = True
        self._next_try = system.monotonic() + RESTORE_EVERY
        if not _is_whole(size := _size_of(self._file)):
            return
        log = f"{self._path}-wal"
        missing = max(0, size // 2 - _size_of(log))
        with suppress(OSError):
            self._cut(size - missing - LEFT_FREE)
            _preallocate(log, missing)

    def give(self, size: int) -> bool:
        """See that so many bytes of the disk are free, to be used at once; false if there are not as many."""
        with suppress(OSError):
            there = _size_of(self._file)
            disk = os.statvfs(self._file)
            missing = size - disk.f_bavail * disk.f_frsize
            if missing > 0:
                if _is_whole(there) or there <= missing:
                    return False
                self._cut(there - missing)
        return True

    def _cut(self, size: int) -> None:
        os.truncate(self._file, max(0, size) // BLOCK * BLOCK + 1)

    def _is_there(self) -> bool:
        """Whether it is there, or can be restored now."""
        if not self._path:
            return True
        there = _size_of(self._file)
        if whole := _is_whole(there):
            self.size = there
            if there >= LARGEST_RESERVE:
                return True
        wanted = min(LARGEST_RESERVE, _size_of(self._path))
        if whole and there >= wanted:
            return True
        if system.monotonic() < self._next_try:
            return whole
        return self._restore(wanted) or whole

    def _restore(self, wanted: int) -> bool:
        self._next_try = system.monotonic() + RESTORE_EVERY
        try:
            file = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)
        except OSError:  # a folder that we may not write to: there can be no reserve
            return True
        before = os.fstat(file).st_size
        try:
            disk = os.fstatvfs(file)
            size = max(before, min(max(SMALLEST_RESERVE, wanted), disk.f_blocks * disk.f_frsize // DISK_SHARE))
            size -= size % BLOCK
            if size != before:
                os.posix_fallocate(file, 0, int(size * MARGIN))
                os.ftruncate(file, size)
        except OSError:
            os.ftruncate(file, before)
            return False
        finally:
            os.close(file)
        self.size = size
        return True


def _is_whole(size: int) -> bool:
    """Whether a reserve of this size is not released."""
    return size > 0 and size % BLOCK == 0


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - at every commit, and twice as fast
    except OSError:
        return 0


def _preallocate(path: str, size: int) -> None:
    """Blocks beyond the end of a file, without changing its contents (`posix_fallocate` might write)."""
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        end = os.fstat(file).st_size
        libc.fallocate(file, KEEP_SIZE, ctypes.c_longlong(end), ctypes.c_longlong(size))
    finally:
        os.close(file)
