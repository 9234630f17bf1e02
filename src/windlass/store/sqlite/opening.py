"""Opens the file: checks that it is ours and safe to use, sets it up, makes its tables.

Knows paths, pragmas and versions, and turns what SQLite complains of into our own errors. Knows no table by name.
"""

import os
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TypeVar

import apsw

from windlass.model.errors import Full, Invalid, TooLarge, Unavailable, WindlassError

T = TypeVar("T")

MEMORY = ":memory:"
"""In the place of a path: a store of its own that lives as long as the object."""

VERSION = 3
"""Of `schema.sql`, kept in the file as `user_version`."""

OLDEST_VERSION = 2
"""A file of this version or a later one is brought up to date: `from_2.sql` leads from 2 to 3, and so on."""

APPLICATION = 0x576E646C
"""`Wndl`: marks a file as ours."""

OLDEST = (3, 51, 3)
"""Earlier versions of SQLite can corrupt a file when two connections write and checkpoint at once."""

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
        return _set_up(Handle(path), path)
    except apsw.NotADBError:
        raise Invalid(f"{path} is not a database", at="path") from None
    except apsw.Error as fault:
        raise translated(fault) from fault


def translated(fault: Exception) -> Exception:
    """What a caller is told of a fault: never one of SQLite's own errors."""
    match fault:
        case WindlassError():
            return type(fault)(fault.detail, at=fault.at)  # one fault may go to several callers
        case apsw.FullError():
            return Full("no room is left on the disk of the store")
        case apsw.TooBigError():
            return TooLarge("a value is larger than SQLite can hold")
        case apsw.BusyError():
            return Unavailable("the store is held by another process: ask again later")
        case apsw.Error() | OSError():
            return Unavailable(f"the store cannot be used: {fault}")
        case OverflowError() | UnicodeError():
            return Invalid(f"a value that the store cannot hold: {fault}")
    return fault


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
