"""Opens the file: checks that it is ours and safe to use, sets it up, makes its tables.

Knows paths, pragmas and versions, and turns what SQLite complains of into our own errors. Knows no table by name.
"""

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TypeVar

import apsw

from windlass.model.errors import Damaged, Full, Invalid, TooLarge, Unavailable, WindlassError
from windlass.store.sqlite.reserve import Reserve

T = TypeVar("T")

MEMORY = ":memory:"
"""In the place of a path: a store of its own that lives as long as the object."""

VERSION = 4
"""Of `schema.sql`, kept in the file as `user_version`."""

OLDEST_VERSION = 2
"""A file of this version or a later one is brought up to date: `from_2.sql` leads from 2 to 3, and so on."""

APPLICATION = 0x576E646C
"""`Wndl`: marks a file as ours."""

OLDEST = (3, 51, 3)
"""Earlier versions of SQLite can corrupt a file when two connections write and checkpoint at once."""

OWNER_ONLY = 0o600
"""The mode of a new file: payloads and secrets lie in it in clear."""

PATIENCE = 15.0
"""Seconds to wait for other processes to let go of the file."""

SHORT_PAUSE, SHORT_PAUSES, PAUSE = 0.0002, 20, 0.002
"""Seconds between two tries, first and later: most hold the file for one wait for the disk."""

PRAGMAS = """
    PRAGMA synchronous = FULL;             -- accepted means durable; see `disk.py`
    PRAGMA cache_size = -16384;            -- KiB; what lies beyond is in the system's cache, and costs as little
    PRAGMA journal_size_limit = 67108864;  -- bytes; after a burst the log shrinks again
    PRAGMA temp_store = MEMORY;
"""


class Handle(apsw.Connection):
    """A connection that remembers which process made it: used in another one, it would corrupt the file."""

    def __init__(self, path: str) -> None:
        super().__init__(path, statementcachesize=200)
        self.path = path
        self.process = os.getpid()
        self.set_busy_handler(_wait)
        # Plans do not depend on bound values: else each new value, even of a LIMIT, has its statement compiled again.
        self.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def resolve(path: str | os.PathLike[str]) -> str:
    """The one name of a file, however it was spelled; refuses what cannot be a file."""
    text = os.fspath(path)
    if text == MEMORY:
        return text
    place = Path(text).resolve()
    if not place.parent.is_dir():
        raise Invalid(f"{place.parent} is not a folder: make it first", at="path")
    if place.is_dir():
        raise Invalid(f"{place} is a folder: name a file in it", at="path")
    return str(place)


def connect(path: str) -> apsw.Connection:
    """Open a resolved path."""
    _check_library()
    _check_fork(path)
    try:
        _create(path)
        return _connect(path)
    except apsw.NotADBError:
        raise Invalid(f"{path} is not a database", at="path") from None
    except (apsw.Error, OSError) as fault:
        raise translated(fault, path) from fault


def _create(path: str) -> None:
    """Make a new file that only its owner can read; SQLite gives what lies beside it the same mode.

    Nothing is opened here: to close a file again would let go of all locks that this process has on it.
    """
    if path != MEMORY:
        with suppress(FileExistsError):
            os.mknod(path, stat.S_IFREG | OWNER_ONLY)


def _connect(path: str) -> apsw.Connection:
    try:
        return _set_up(Handle(path), path)
    except (apsw.FullError, apsw.IOError):
        if path == MEMORY:
            raise
        Reserve(path).give_up()  # even to read takes some room beside the file
        return _set_up(Handle(path), path)


def full(path: str) -> Full:
    """The error for new jobs while the disk is full."""
    return Full(f"no room is left on the disk of {path}: delete finished jobs, or make room there")


def translated(fault: Exception, path: str) -> Exception:
    """What a caller is told of a fault: never one of SQLite's own errors."""
    match fault:
        case WindlassError():
            return type(fault)(fault.detail, at=fault.at)  # one fault may go to several callers
        case apsw.FullError() | OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return full(path)
        case apsw.TooBigError():
            return TooLarge("a value is larger than SQLite can hold")
        case apsw.BusyError():
            return Unavailable(f"{path} is held by another process: ask again later")
        case apsw.Error() | OSError():
            return _unusable(fault, path)
        case OverflowError() | UnicodeError():
            return Invalid(f"a value that the store cannot hold: {fault}")
    return fault


def _unusable(fault: Exception, path: str) -> Unavailable:
    """What is wrong with the file or its disk, and what to do about it."""
    if isinstance(fault, apsw.CorruptError | apsw.NotADBError):
        return Damaged(f"{path} is damaged ({fault}): put a copy of it in its place, or begin a new file")
    if _is_read_only(path):
        return Unavailable(f"{path} cannot be written, its disk is mounted read-only: mount it for writing")
    if isinstance(fault, apsw.ReadOnlyError | apsw.CantOpenError | PermissionError):
        done = "opened" if isinstance(fault, apsw.CantOpenError) else "written"
        return Unavailable(f"{path} cannot be {done}: see that this user may write to it and to its folder")
    return Unavailable(f"{path} cannot be used: {fault}")


def _is_read_only(path: str) -> bool:
    """Whether the disk of a file is mounted so that nothing can be written."""
    try:
        return bool(os.statvfs(Path(path).parent).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _check_library() -> None:
    found = apsw.sqlite_lib_version()
    if tuple(int(part) for part in found.split(".")) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise Unavailable(f"SQLite {found} can corrupt a shared file: install an apsw that carries {oldest} or newer")


def _check_fork(path: str) -> None:
    # After a fork SQLite takes the parent's locks for its own, in new connections too.
    for other in apsw.connections():
        if isinstance(other, Handle) and other.path == path != MEMORY and other.process != os.getpid():
            raise Unavailable(f"{path} was open when this process was forked: fork first, then open")


def _set_up(sql: apsw.Connection, path: str) -> apsw.Connection:
    try:
        _set_journal(sql, path)
        sql.execute(PRAGMAS)
        if _version(sql, path) < VERSION:
            sql.execute("BEGIN IMMEDIATE")
            _bring_up_to_date(sql, _version(sql, path))  # another process may have been quicker
            sql.execute("COMMIT")
    except BaseException:
        sql.close(True)
        raise
    return sql


def _set_journal(sql: apsw.Connection, path: str) -> None:
    mode = _patiently(lambda: sql.execute("PRAGMA journal_mode = WAL").get)
    if path != MEMORY and mode != "wal":
        raise Unavailable(f"{path} is on a file system without shared memory: move it to a local disk")


def _version(sql: apsw.Connection, path: str) -> int:
    """Of the tables in the file, 0 if it has none; refuses a file with others than ours."""
    version, mark = int(sql.pragma("user_version")), sql.pragma("application_id")
    if mark == APPLICATION and OLDEST_VERSION <= version <= VERSION:
        return version
    if mark == APPLICATION and version > VERSION:
        raise Invalid(f"{path} has format {version}, this Windlass knows {VERSION}: use a newer one", at="path")
    if mark == APPLICATION and 0 < version < OLDEST_VERSION:
        raise Invalid(f"{path} has format {version}, {OLDEST_VERSION} is the oldest known: begin a new file", at="path")
    if mark or version or sql.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get:
        raise Invalid(f"{path} is a database of something else", at="path")
    return 0


def _bring_up_to_date(sql: apsw.Connection, version: int) -> None:
    steps = [f"from_{old}.sql" for old in range(version, VERSION)] if version else ["schema.sql"]
    for step in steps:
        sql.execute(resources.files(__package__).joinpath(step).read_text("utf-8"))
    sql.pragma("application_id", APPLICATION)
    sql.pragma("user_version", VERSION)


def _patiently(ask: Callable[[], T]) -> T:
    """Ask until nobody is in the way, where SQLite does not wait: two may open a new file at the same moment."""
    tries = 0
    while True:
        try:
            return ask()
        except apsw.BusyError:
            if not _wait(tries):
                raise
        tries += 1


def _wait(tries: int) -> bool:
    # SQLite's own handler sleeps ever longer, up to 100 ms, and so starves whoever has waited longest.
    pause = SHORT_PAUSE if tries < SHORT_PAUSES else PAUSE
    time.sleep(pause)
    return tries * PAUSE < PATIENCE
