"""The file of a journal: batches of jobs in a table of SQLite, in a folder that one process holds.

Knows SQL, pragmas, locks, what a full or failing disk says, and how to save what can be read of a damaged file. Every
call waits for the disk, so callers run them on a thread. Must not know what a batch holds or what a store is.
"""

import errno
import fcntl
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import apsw

from windlass.engine.journal.tree import Relinked, for_reading, relinked
from windlass.engine.journal.wal import LogDamage, damage_in, salts
from windlass.model.errors import Damaged, Invalid, JournalFull, Unavailable, WindlassError

FILE_MODE, FOLDER_MODE = 0o600, 0o700

APPLICATION = 0x576C4A6C
"""`WlJl`: marks a file as a journal."""

VERSION = 1
"""Of the tables, kept in the file as `user_version`."""

SCHEMA = """
    CREATE TABLE batches (
        last INTEGER PRIMARY KEY,      -- the number of its last job
        first INTEGER NOT NULL,        -- the number of its first job; numbers are consecutive
        accepted_at INTEGER NOT NULL,  -- microseconds, by this host's clock
        body BLOB NOT NULL             -- see batch.py
    ) STRICT;
    CREATE TABLE gaps (                -- numbers without jobs
        first INTEGER NOT NULL,
        last INTEGER,                  -- null = everything behind `first`
        reason TEXT NOT NULL           -- drained and deleted, skipped because the store knew them, or lost;
    ) STRICT;                          -- or unconfirmed: an empty one, before numbers that the store may know
    INSERT INTO gaps VALUES (1, 0, 'drained');
"""

PRAGMAS = """
    PRAGMA auto_vacuum = INCREMENTAL;      -- so that a file that was once large can shrink
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;             -- accepted means durable: each commit is synced
    PRAGMA wal_autocheckpoint = 512;       -- pages, 2 MiB
    PRAGMA journal_size_limit = 8388608;   -- bytes; after a large commit the log shrinks again
    PRAGMA cache_size = -4096;             -- KiB
"""

PREFIX, SUFFIX, DAMAGED, SALVAGED = "journal-", ".db", ".damaged", ".salvaged"
"""The file is `journal-ID.db`: its id is in its name, so that damage cannot take it."""

OLD_SEGMENT = re.compile(r"[0-9a-f]{16}-[0-9a-f]{6}\.journal(\..+)?")
"""A file of the format before SQLite."""

BUSY_WITHIN = 5000
"""Milliseconds to wait for another process that reads the file."""

READ_AT_ONCE = 64 << 10
"""Bytes that are read at a time, at least one batch: decoding them takes processor time from the event loop."""

DELETE_AT_ONCE = 100
"""Batches of one deletion: nothing is written meanwhile."""

VACUUM_AT_ONCE = 256
"""Free pages that are given back to the disk at a time: more would not fit into the cache, and go through the log."""

SPARE_PAGES = 2048
"""Free pages that the file keeps for later batches."""

BESIDES = 64 << 10
"""Bytes that a commit may write besides its batches: the pages that lead to them."""

RESERVE_NAME = "reserve"
RESERVE, RESERVED_PART = 8 << 20, 4
"""Bytes of the reserve, so that all of the log has room in the file; on a small disk at most one in so many bytes."""

INDEX_LOCK = 128
"""The byte of SQLite's index that every process with the database open has locked."""
LOCK_FORMAT = "hhqqi4x"
"""The system's `struct flock`: kind, from where, start, length, process."""

DAMAGE = (apsw.CorruptError, apsw.NotADBError)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

SALVAGE_AT_ONCE = 1000
MOST_UNREADABLE = 100_000
"""Numbers in a row that cannot be read before a salvage takes the rest of the file for lost."""

_BATCHES = "SELECT first, last, accepted_at, body FROM batches"
_BEHIND = f"{_BATCHES} WHERE last > ? ORDER BY last LIMIT 1000"
_HOLDING = f"{_BATCHES} WHERE last >= ? AND first <= ? ORDER BY last LIMIT 1"
_BETWEEN = f"{_BATCHES} WHERE last BETWEEN ? AND ? ORDER BY last"
_NEWEST_OF_OLDEST = "SELECT max(last) FROM (SELECT last FROM batches WHERE last <= ? ORDER BY last LIMIT ?)"
_LOWEST, _HIGHEST = "SELECT min(last) FROM batches", "SELECT max(last) FROM batches"
_INSERT = "INSERT INTO batches (first, last, accepted_at, body) VALUES (?, ?, ?, ?)"


class Row(NamedTuple):
    """A batch of jobs with consecutive numbers."""

    first: int
    last: int
    accepted_at: int
    """Microseconds, by this host's clock."""
    body: bytes


class JournalFinding(NamedTuple):
    """Something in a journal that is not as it was written."""

    path: Path
    what: str
    first: int = 0
    last: int = -1
    """The numbers of the jobs that are lost by it, if any."""
    open_ended: bool = False
    """Whether everything from `first` on is lost, and nothing says how much that is."""

    aside: bool = False
    """Whether it was moved aside before, and what could be read of it saved."""

    @property
    def lost(self) -> int:
        return max(0, self.last - self.first + 1)

    def __str__(self) -> str:
        if self.open_ended:
            return f"{self.what}: jobs from {self.first} on are lost"
        return f"{self.what}: jobs {self.first} to {self.last} are lost" if self.lost else self.what


class _Gap(NamedTuple):
    first: int
    last: int | None
    reason: str


# Folders


def lock_folder(folder: Path) -> int | None:
    """Make the folder if it is not there and lock it until this process ends; null = another process holds it."""
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def file_in(folder: Path) -> Path | None:
    """The file of the journal in a folder; null = there is none. Refuses a journal of an older Windlass."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for name in names:
        if OLD_SEGMENT.fullmatch(name):
            raise Invalid(
                f"{folder} holds a journal of an older Windlass ({name}), which this one cannot read: "
                "drain it with the version that wrote it, then delete its .journal files",
                at="FOLDER",
            )
    files = [name for name in names if name.startswith(PREFIX) and name.endswith((SUFFIX, SUFFIX + SALVAGED))]
    ids = sorted({name.removesuffix(SALVAGED) for name in files})
    if len(ids) > 1:
        raise Invalid(f"{folder} holds several journals ({', '.join(ids)}): move all but one elsewhere", at="FOLDER")
    return folder / ids[0] if ids else None


def reject(folder: Path, sequence: int, raw: bytes) -> Path:
    """Put bytes that no job can be made of into the file `rejected`: the number and hex digits, a line for each."""
    path = folder / "rejected"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        os.write(file, b"%d %b\n" % (sequence, raw.hex().encode()))
        os.fdatasync(file)
    finally:
        os.close(file)
    return path


def fullness(folder: Path) -> float:
    """Which part of the disk of a folder is used, from 0 to 1. The reserve of the journal there is not in use."""
    disk = os.statvfs(folder)
    used, free = (disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_bavail * disk.f_frsize
    reserve = folder / RESERVE_NAME
    reserved = reserve.stat().st_size if reserve.exists() else 0
    return (used - reserved) / ((used + free) or 1)


VOLATILE = ("tmpfs", "ramfs", "overlay")
"""Kinds of file systems that are gone with the machine or the container."""


def volatile_file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """The kind of file system that a folder is on, if it does not outlast the machine."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None  # not Linux
    above = [(len(point), kind) for _, point, kind, *_ in lines if folder.resolve().is_relative_to(point)]
    kind = max(above, default=(0, ""))[1]
    return kind if kind in VOLATILE else None


# The file


class JournalFile:
    """The open file of a journal. One thread at a time may use it; its folder must be locked."""

    def __init__(self, folder: Path, fresh_id: Callable[[], bytes]) -> None:
        """Open the file in a folder, or a new one. What can be read of a damaged one is saved first."""
        path = file_in(folder)
        self.path = path or folder / f"{PREFIX}{fresh_id().hex()}{SUFFIX}"
        self.id = bytes.fromhex(self.path.name.removeprefix(PREFIX).removesuffix(SUFFIX))
        self._reserve = _Reserve(folder)
        self._log_in_doubt = False
        with _translated(self.path):
            try:
                self.findings, self._sql = _opened(self.path)
            except (apsw.FullError, apsw.IOError):
                self._reserve.release()  # even reading takes some room beside the file
                self.findings, self._sql = _opened(self.path)
            marked = self._sql.execute("SELECT first FROM gaps WHERE reason = 'unconfirmed'").get
        self._confirmed = False
        self.unconfirmed: int = marked or self.last + 1
        """The store may know other jobs under the numbers from here on."""
        self._reserve.take()

    def close(self) -> None:
        with suppress(apsw.Error):  # what is in the log stays in the log
            self._sql.close()

    @property
    def deleted(self) -> int:
        """Up to which number batches were drained and deleted."""
        return int(self._sql.execute("SELECT last FROM gaps WHERE reason = 'drained'").get or 0)

    @property
    def last(self) -> int:
        """The highest number that was ever given."""
        newest = self._sql.execute(_HIGHEST).get
        return max(newest or 0, self._sql.execute("SELECT max(last) FROM gaps").get or 0)

    def count(self, after: int) -> int:
        """How many jobs there are behind a number. Some numbers have none."""
        missing = "SELECT sum(last - max(first - 1, ?1)) FROM gaps WHERE last > ?1 AND reason <> 'drained'"
        with _translated(self.path, self._sql):
            return self.last - after - int(self._sql.execute(missing, (after,)).get or 0)

    def append(self, rows: Sequence[Row]) -> None:
        """Write batches in one commit, all or none. Returns when they would outlast a power cut.

        Without batches it is a commit that changes nothing, and shows whether the file can be written.
        """
        with self._writing():
            self._insert(rows)
        self._reserve.take()

    def _insert(self, rows: Sequence[Row]) -> None:
        if not rows:
            self._sql.pragma("user_version", VERSION)
            return
        if len(rows) == 1 and (self._confirmed or rows[0].first > self.unconfirmed):
            self._sql.execute(_INSERT, rows[0])  # a statement is a transaction of its own
            return
        with self._transaction():
            if not self._confirmed and rows[0].first == self.unconfirmed:
                first = self.unconfirmed
                self._sql.execute("INSERT INTO gaps VALUES (?, ?, 'unconfirmed')", (first, first - 1))
            for row in rows:
                self._sql.execute(_INSERT, row)

    def confirm(self, newest: int) -> bool:
        """The store knows the numbers up to the newest: unconfirmed jobs get others. Whether that changed any."""
        behind = self.unconfirmed - 1
        if self._confirmed or newest <= behind == self.last:
            self._confirmed = True
            return False
        with self._writing(), self._transaction():
            self._sql.execute("DELETE FROM gaps WHERE reason = 'unconfirmed'")
            if newest > behind:  # by way of negative numbers, which no other row has
                moved = "UPDATE batches SET first = first + ?1, last = -last - ?1 WHERE last > ?2"
                self._sql.execute(moved, (newest - behind, behind))
                self._sql.execute("UPDATE batches SET last = -last WHERE last < 0")
                self._sql.execute("INSERT INTO gaps VALUES (?, ?, 'skipped')", (behind + 1, newest))
        self._confirmed = True
        return newest > behind

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A sync that failed may have dropped what it could not write, and the next one would report success.

        So nothing relies on that log any more: what was committed goes into the file, and the log is cut to nothing.
        The refused batches go with it. Until that has worked, nothing is written.
        """
        try:
            with _translated(self.path, self._sql):
                if self._log_in_doubt:
                    self._begin_log_again()
                yield
        except WindlassError as error:
            if may_be_kept(error):
                self._log_in_doubt = True
                with suppress(apsw.Error):
                    self._begin_log_again()
            raise

    def _begin_log_again(self) -> None:
        self._sql.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._log_in_doubt = False

    def read(self, after: int) -> list[Row]:
        """The next batches with jobs behind a number, a little at a time."""
        rows: list[Row] = []
        size = 0
        with _translated(self.path, self._sql):
            cursor = self._sql.execute(_BEHIND, (after,))
            for first, last, accepted_at, body in cursor:
                rows.append(Row(first, last, accepted_at, body))
                size += len(body)
                if size >= READ_AT_ONCE:
                    break
            cursor.close(True)
        return rows

    def find(self, sequence: int) -> Row | None:
        """The batch with this number."""
        with _translated(self.path, self._sql):
            found = self._sql.execute(_HOLDING, (sequence, sequence)).get
        return None if found is None else Row(*found)

    def delete(self, upto: int) -> bool:
        """Delete batches that end at a number or before it, or give free pages back; false if there is nothing to do.

        One call does a little, so that callers who write do not wait long.
        """
        with self._writing():
            if self._delete_some(upto):
                return True
            if int(self._sql.pragma("freelist_count")) <= SPARE_PAGES:
                return False
            self._give_back()
            return True

    def make_room(self, upto: int, size: int, is_full: Callable[[], bool]) -> bool:
        """See that the disk is not full, and has room for so many bytes, once in the log and once in the file.

        The log goes into the file, free pages are given back, then batches up to a number are deleted, the oldest
        first. Whether that has made the room. It needs some itself, which is what the reserve is for.
        """

        def is_enough() -> bool:
            return not is_full() and self._reserve.room_beside_it() >= 2 * size + BESIDES

        with _translated(self.path, self._sql):
            if is_enough():
                return False  # it is something else that is full
            try:
                self._free(upto, is_enough)
            except apsw.FullError:
                self._reserve.release()
                with suppress(apsw.FullError):
                    self._free(upto, is_enough)
                self._reserve.take()
            return is_enough()

    def _free(self, upto: int, is_enough: Callable[[], bool]) -> None:
        self._begin_log_again()
        while not is_enough() and (self._sql.pragma("freelist_count") or self._delete_some(upto)):
            self._give_back()
            self._begin_log_again()

    def _delete_some(self, upto: int) -> bool:
        newest = self._sql.execute(_NEWEST_OF_OLDEST, (upto, DELETE_AT_ONCE)).get
        if newest is None:
            return False
        with self._transaction():
            self._delete_upto(newest)
        return True

    def _delete_upto(self, newest: int) -> None:
        self._sql.execute("DELETE FROM batches WHERE last <= ?", (newest,))
        self._sql.execute("DELETE FROM gaps WHERE ifnull(last, first) <= ? AND reason <> 'drained'", (newest,))
        self._sql.execute("UPDATE gaps SET last = ? WHERE reason = 'drained'", (newest,))

    def _give_back(self) -> None:
        self._sql.execute(f"PRAGMA incremental_vacuum({VACUUM_AT_ONCE})").fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._sql.execute("COMMIT")
        except BaseException:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            raise


class _Reserve:
    """Room on the disk for deletions: a file in the folder that is emptied while the disk is full."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RESERVE_NAME
        self._taken = self._path.exists() and self._path.stat().st_size > 0

    def release(self) -> None:
        self._taken = False
        with suppress(OSError):
            os.truncate(self._path, 0)

    def take(self) -> None:
        """Take it, or take it back; if there is no room for it, later."""
        if not self._taken:
            with suppress(OSError):
                self._taken = self._allocated()

    def room_beside_it(self) -> int:
        """Bytes that are free on the disk and not needed to take it back."""
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize - (0 if self._taken else self._size(disk))

    def _size(self, disk: os.statvfs_result) -> int:
        return min(RESERVE, disk.f_blocks * disk.f_frsize // RESERVED_PART)

    def _allocated(self) -> bool:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            os.posix_fallocate(file, 0, self._size(os.fstatvfs(file)))
        except OSError as fault:
            os.ftruncate(file, 0)
            return fault.errno not in NO_ROOM  # a disk that cannot reserve room is not asked again
        finally:
            os.close(file)
        return True


def _opened(path: Path) -> tuple[list[JournalFinding], apsw.Connection]:
    _finish_salvage(path)
    if path.exists():
        return _repaired(path), _connect(path)
    os.mknod(path, stat.S_IFREG | FILE_MODE)  # SQLite gives the files beside it the same mode
    sql = _connect(path)
    _sync_folder(path.parent)
    _sync_folder(path.parent.parent)
    return [], sql


def _connect(path: Path) -> apsw.Connection:
    sql = apsw.Connection(str(path))
    try:
        sql.set_busy_timeout(BUSY_WITHIN)
        _set_up(sql, path)
    except BaseException:
        sql.close(True)
        raise
    return sql


def _set_up(sql: apsw.Connection, path: Path) -> None:
    _check_version(sql, path)
    sql.execute(PRAGMAS).fetchall()  # to the last of them: some return a row, and apsw stops there
    if sql.pragma("journal_mode") != "wal":
        raise Unavailable(f"{path} is on a file system without shared memory: move the journal to a local disk")
    if not sql.pragma("user_version"):
        with sql:
            _make_tables(sql)


def _make_tables(sql: apsw.Connection) -> None:
    sql.execute(SCHEMA)
    sql.pragma("application_id", APPLICATION)
    sql.pragma("user_version", VERSION)


def _check_version(sql: apsw.Connection, path: Path) -> None:
    mark, version = sql.pragma("application_id"), int(sql.pragma("user_version"))
    if mark not in (0, APPLICATION):
        raise Invalid(f"{path} is a database of another program", at="FOLDER")
    if version > VERSION:
        raise Invalid(f"{path} has format {version}, this program reads up to {VERSION}: use a newer one", at="FOLDER")


@contextmanager
def _translated(path: Path, sql: apsw.Connection | None = None) -> Iterator[None]:
    """Turn what SQLite and the system report into our own errors."""
    try:
        yield
    except DAMAGE as fault:
        raise Damaged(f"{path} is damaged ({fault}): restart, and what can be read of it is saved") from fault
    except apsw.Error as fault:
        raise _not_written(_reason(fault, sql), str(fault)) from fault
    except OSError as fault:
        raise _not_written(fault.errno or 0, fault.strerror or str(fault)) from fault


def _reason(fault: apsw.Error, sql: apsw.Connection | None) -> int:
    """The number of the system's error behind one of SQLite's; 0 = there is none."""
    if isinstance(fault, apsw.FullError):
        return errno.ENOSPC
    return sql.system_errno if isinstance(fault, apsw.IOError) and sql is not None else 0


def _not_written(reason: int, text: str) -> WindlassError:
    """The error for a job that could not be written: only a full disk is reported as one."""
    kind = JournalFull if reason in NO_ROOM else Unavailable
    return kind(f"the journal cannot be written: {os.strerror(reason) if reason else text}")


def may_be_kept(fault: WindlassError) -> bool:
    """Whether a commit that failed so may be found in the log after a crash. If the disk was full, it was taken back;
    if a sync failed, what it did not sync may reach the disk all the same.
    """
    return fault.__cause__ is not None and not isinstance(fault.__cause__, apsw.FullError)


def _sync_folder(folder: Path) -> None:
    """Make what was created or renamed in a folder outlast a power cut."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# Damage


def examine(folder: Path) -> Iterator[Row | JournalFinding]:
    """Every batch in a folder that can be read, in order, and what is wrong there. Changes nothing.

    Works beside the process that writes the journal.
    """
    path = file_in(folder)
    try:
        if path is not None and path.exists():
            yield from _examined(path)
    except (OSError, apsw.CantOpenError) as fault:
        name, why = (fault.filename, fault.strerror) if isinstance(fault, OSError) else (path, fault)
        raise Invalid(f"{name} cannot be read: {why}", at="FOLDER") from None
    for aside in sorted(folder.glob(f"*{DAMAGED}")):
        yield JournalFinding(aside, "a damaged journal that was moved aside", aside=True)


def _examined(path: Path) -> Iterator[Row | JournalFinding]:
    log = _log_damage(path)
    if log is not None:
        what = f"damaged: of the {log.committed} frames of its log, only the first {log.readable} can be recovered"
        yield JournalFinding(path, what)
    try:
        with _reading(path, log) as sql:
            complaints = _complaints(sql)
            for line in complaints:
                yield JournalFinding(path, f"damaged: {line}")
            yield from _walk_damaged(sql, path, log) if complaints else _walk(sql, path, log)
    except DAMAGE as fault:
        yield from _without_first_page(path, log, fault)


def _without_first_page(path: Path, log: LogDamage | None, fault: apsw.Error) -> Iterator[Row | JournalFinding]:
    """What can be read of a file that SQLite does not even open.

    Its first page names the tables and where they are, which is the same in each journal: that of an empty one does
    as well. The log is not read: without its file it does not say what it changes.
    """
    newest = 0
    try:
        with closing(_with_first_page_of_an_empty_one(path)) as sql:
            yield JournalFinding(path, f"damaged ({fault}); read without its first page")
            for found in _walk_damaged(sql, path, log):
                newest = max(newest, found.last)
                yield found
    except (*DAMAGE, MemoryError):
        yield JournalFinding(path, f"damaged ({fault}); nothing in it can be read", 1, open_ended=True)
        return
    if _log_of(path).exists() and _log_of(path).stat().st_size:
        yield JournalFinding(path, "damaged at its end", newest + 1, open_ended=True)


def _with_first_page_of_an_empty_one(path: Path) -> apsw.Connection:
    with closing(apsw.Connection(":memory:")) as empty:
        empty.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _make_tables(empty)
        page = for_reading(empty.serialize("main")[: int(empty.pragma("page_size"))])
    return _in_memory(page + path.read_bytes()[len(page) :])


def _in_memory(image: bytes) -> apsw.Connection:
    sql = apsw.Connection(":memory:")
    try:
        sql.deserialize("main", image)
        sql.execute("SELECT 1 FROM batches LIMIT 0").fetchall()
    except BaseException:
        sql.close(True)
        raise
    return sql


def _log_damage(path: Path) -> LogDamage | None:
    """What SQLite will not find in the log of a file, though it was committed.

    To be asked before SQLite reads the file: it writes the index again.
    """
    log, index = _log_of(path), _index_of(path)
    if not log.exists():
        return None
    while True:  # until both are of the same moment
        counted = index.read_bytes() if index.exists() else b""
        data = log.read_bytes()
        if not index.exists() or salts(index.read_bytes()) == salts(counted):
            return damage_in(data, counted, in_use=_is_open(index))


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _index_of(path: Path) -> Path:
    return path.with_name(path.name + "-shm")


def _is_open(index: Path) -> bool:
    """Whether a process has a database open: as long as it does, it holds a lock in the index."""
    with suppress(FileNotFoundError), index.open("rb") as file:
        asked = struct.pack(LOCK_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, INDEX_LOCK, 1, 0)
        found, *_ = struct.unpack(LOCK_FORMAT, fcntl.fcntl(file, fcntl.F_GETLK, asked))
        return bool(found != fcntl.F_UNLCK)
    return False


@contextmanager
def _reading(path: Path, log: LogDamage | None) -> Iterator[apsw.Connection]:
    """A connection that changes nothing: it does not even write the log back when it is closed.

    Nor does it replace the index of a damaged log, which counts what was lost.
    """
    sql = _shared(path) if log is None or _is_open(_index_of(path)) else _looked_at(_alone(path), path)
    try:
        yield sql
    finally:
        sql.close(True)


def _shared(path: Path) -> apsw.Connection:
    """A connection beside a process that writes."""
    try:
        return _looked_at(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY), path)
    except (apsw.CantOpenError, apsw.ReadOnlyError):  # a folder that this user may not write, or a copy on such a disk
        return _looked_at(_alone(path), path)


def _alone(path: Path) -> apsw.Connection:
    """A connection for a file that no process writes: it needs no index and no locks."""
    if not _log_of(path).exists():
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        return apsw.Connection(f"{path.absolute().as_uri()}?immutable=1", flags=flags)
    sql = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs="unix-none")
    sql.pragma("locking_mode", "exclusive")
    return sql


def _looked_at(sql: apsw.Connection, path: Path) -> apsw.Connection:
    try:
        sql.set_busy_timeout(BUSY_WITHIN)
        sql.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        sql.config(apsw.SQLITE_DBCONFIG_WRITABLE_SCHEMA, 1)  # or a file that was cut off could not be read at all
        _check_version(sql, path)
        sql.execute("SELECT 1 FROM sqlite_schema").fetchall()
    except BaseException:
        sql.close(True)
        raise
    return sql


def _complaints(sql: apsw.Connection) -> list[str]:
    """What SQLite finds wrong in a file; empty = it is sound."""
    try:
        found = [str(line) for (line,) in sql.execute("PRAGMA integrity_check(10)")]
    except DAMAGE as fault:
        return [str(fault)]
    lines = [line for text in found for line in text.splitlines()]
    return [] if found == ["ok"] else [line for line in lines if not line.startswith("***")]


def _walk_damaged(sql: apsw.Connection, path: Path, log: LogDamage | None) -> Iterator[Row | JournalFinding]:
    """`_walk` of a damaged file. If pages are damaged that lead to batches, it does without them."""
    found = _relinked(sql)
    if found is None:
        yield from _walk(sql, path, log)
        return
    yield JournalFinding(path, "damaged: pages that lead to jobs; the jobs are read without them")
    with closing(_in_memory(found.image)) as tree:
        yield from _walk(tree, path, log, end_unknown=found.lacks_leaves)


def _relinked(sql: apsw.Connection) -> Relinked | None:
    with suppress(apsw.Error, MemoryError):
        root = sql.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'batches'").get
        return relinked(sql.serialize("main"), root) if root else None
    return None


def _walk(
    sql: apsw.Connection, path: Path, log: LogDamage | None, *, end_unknown: bool = False
) -> Iterator[Row | JournalFinding]:
    """All batches that can be read, and a finding for each range of numbers that is missing."""
    gaps = _gaps(sql)
    low, high = _number(sql, _LOWEST), _number(sql, _HIGHEST)
    drained = next((gap.last or 0 for gap in gaps if gap.reason == "drained"), None)
    expected = 1 if drained is None else drained + 1
    most = path.stat().st_size // 16  # an id has as many bytes: there cannot be more jobs
    start = low or (max(expected, high - most) if high else expected)
    for row in _readable(sql, start, start + most if high is None else high):
        if drained is None:  # the list of gaps is damaged
            drained, expected = row.first - 1, row.first
            yield JournalFinding(path, f"damaged; whether jobs up to {drained} were drained or are lost is not known")
        if row.first >= expected:
            yield from _missing(path, gaps, expected, row.first - 1)
            yield row
            expected = row.last + 1
    newest = max([high or 0, log.newest if log else 0, *(gap.last or 0 for gap in gaps)])
    yield from _missing(path, gaps, expected, newest)
    for gap in gaps:
        if gap.last is None:
            yield JournalFinding(path, "damaged before", gap.first, open_ended=True)
    if high is None or end_unknown or (log and log.end_unknown):
        yield JournalFinding(path, "damaged at its end", max(expected, newest + 1), open_ended=True)


def _gaps(sql: apsw.Connection) -> list[_Gap]:
    try:
        return [_Gap(*row) for row in sql.execute("SELECT first, last, reason FROM gaps ORDER BY first, last")]
    except apsw.Error:
        return []


def _number(sql: apsw.Connection, query: str) -> int | None:
    """The answer to a query; null if the page that it is on is damaged."""
    try:
        return int(sql.execute(query).get or 0)
    except apsw.Error:
        return None


def _missing(path: Path, gaps: Sequence[_Gap], first: int, last: int) -> Iterator[JournalFinding]:
    """Numbers of a range that no gap explains, and those that were lost before."""
    for gap in gaps:
        if gap.last is None or gap.last < first or gap.first > last or gap.reason == "unconfirmed":
            continue
        if gap.first > first:
            yield JournalFinding(path, "damaged", first, gap.first - 1)
        if gap.reason == "lost":
            yield JournalFinding(path, "damaged before", max(first, gap.first), min(last, gap.last))
        first = gap.last + 1
    if first <= last:
        yield JournalFinding(path, "damaged", first, last)


def _readable(sql: apsw.Connection, low: int, high: int) -> Iterator[Row]:
    """The batches of a range. Where SQLite fails, the range is halved until only what is damaged is left out."""
    unreadable = 0
    for start in range(low, high + 1, SALVAGE_AT_ONCE):
        ranges = [(start, min(high, start + SALVAGE_AT_ONCE - 1))]
        while ranges and unreadable < MOST_UNREADABLE:
            first, last = ranges.pop()
            try:
                rows = [Row(*row) for row in sql.execute(_BETWEEN, (first, last))]
            except apsw.Error:
                middle = (first + last) // 2
                if first < last:
                    ranges += [(middle + 1, last), (first, middle)]
                unreadable += first == last
                continue
            unreadable = 0 if rows else unreadable
            yield from (row for row in rows if _is_plausible(row))


def _is_plausible(row: Row) -> bool:
    """Whether a damaged page has not made something up."""
    numbers = isinstance(row.first, int) and isinstance(row.accepted_at, int)
    return numbers and isinstance(row.body, bytes) and 0 < row.first <= row.last


def _repaired(path: Path) -> list[JournalFinding]:
    """Look through a file. If it is damaged, move it aside and put what can be read of it in its place."""
    if _log_damage(path) is None:
        with suppress(*DAMAGE), _reading(path, None) as sql:
            if not _complaints(sql):
                return []
    return _salvage(path)


def _salvage(path: Path) -> list[JournalFinding]:
    salvaged = path.with_name(path.name + SALVAGED)
    salvaged.unlink(missing_ok=True)
    os.mknod(salvaged, stat.S_IFREG | FILE_MODE)
    into = apsw.Connection(str(salvaged))
    findings: list[JournalFinding] = []
    try:
        into.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _make_tables(into)
        into.execute("BEGIN")
        first = 0
        for found in _examined(path):
            if isinstance(found, Row):
                first = first or found.first
                into.execute(_INSERT, found)
                continue
            findings.append(found)
            if found.lost or found.open_ended:
                last = None if found.open_ended else found.last
                into.execute("INSERT INTO gaps VALUES (?, ?, 'lost')", (found.first, last))
        lost = [found.first for found in findings if found.lost]
        drained = min([first, *lost]) - 1 if first else 0
        into.execute("UPDATE gaps SET last = ? WHERE reason = 'drained'", (drained,))
        into.executemany("INSERT INTO gaps VALUES (?, ?, ?)", _unconfirmed(path))
        into.execute("COMMIT")
    finally:
        into.close(True)
    _sync_folder(path.parent)
    _finish_salvage(path, replace=True)
    return [found._replace(path=_asides(path)[-1]) for found in findings]


def _unconfirmed(path: Path) -> list[_Gap]:
    with suppress(*DAMAGE), _reading(path, _log_damage(path)) as sql:
        return [gap for gap in _gaps(sql) if gap.reason == "unconfirmed"]
    with suppress(*DAMAGE, MemoryError), closing(_with_first_page_of_an_empty_one(path)) as sql:
        return [gap for gap in _gaps(sql) if gap.reason == "unconfirmed"]
    return []


def _finish_salvage(path: Path, *, replace: bool = False) -> None:
    """Put a salvaged file into the place of the damaged one, also if this program was killed before it could.

    A salvaged file beside a damaged one that is still in its place is not known to be whole: it is made again.
    """
    salvaged = path.with_name(path.name + SALVAGED)
    if not salvaged.exists():
        return
    if path.exists() and not replace:
        salvaged.unlink()
        return
    if path.exists():
        path.rename(f"{path}.{len(_asides(path)) + 1}{DAMAGED}")
    if _log_of(path).exists():
        _log_of(path).rename(f"{_asides(path)[-1]}-wal")
    _index_of(path).unlink(missing_ok=True)
    salvaged.rename(path)
    _sync_folder(path.parent)


def _asides(path: Path) -> list[Path]:
    """The files that were moved aside, the newest last."""
    return sorted(path.parent.glob(f"{path.name}.*{DAMAGED}"), key=lambda one: int(one.suffixes[-2][1:]))
