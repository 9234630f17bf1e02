"""What the code of a tenant has for itself: a user, where the worker may choose one, and a folder for each context.

Once foreign code has run in a folder, nothing here trusts its contents: links may lead anywhere by then. It is removed
by `rm`, which follows none, however deep it is and however its modes were changed.
"""

import asyncio
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL

from windlass.model.admission import check_left_files
from windlass.model.names import MOST_FILES
from windlass.model.wire import MOST_RESULT
from windlass.worker.linux import children, end_children_but, end_marked

SPAN = 2**28

LEFTOVERS_WITHIN = 2.0
"""Seconds that killed leftovers get to end."""


class Users:
    """A user for each tenant, the same on every worker. The ids come from a range that no distribution assigns."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._tenants: dict[int, str] = {}

    def of(self, tenant: str) -> int | None:
        """A tenant's own user; null where this process may not choose one."""
        if os.geteuid() != 0:
            return None
        for turn in range(SPAN):
            digest = hashlib.sha256(f"{turn}:{tenant}".encode()).digest()
            uid = self._first + int.from_bytes(digest[:8], "big") % SPAN
            if self._tenants.setdefault(uid, tenant) == tenant:
                return uid
        raise LookupError("every user id of the range is taken")


PREFIX = "windlass-functions-"


class Folders:
    """The folders of one worker's contexts. To be closed."""

    def __init__(self, parent: str | None) -> None:
        self._home, self._lock = _fresh(parent)
        os.chmod(self._home, 0o711)  # noqa: S103, PTH101 - others pass through, none can list it
        self._numbers = itertools.count(1)

    def make(self, uid: int | None, name: str, source: bytes) -> str:
        """A folder with one file in it."""
        folder = Path(self._home, str(next(self._numbers)))
        folder.mkdir(mode=0o700)
        file = folder / name
        file.write_bytes(source)
        file.chmod(0o400)
        if uid is not None:
            os.chown(file, uid, uid)
            os.chown(folder, uid, uid)
        return str(folder)

    async def remove(self, folder: str) -> None:
        """Only when everything that ran in it has ended."""
        if await _run("rm", "-rf", "--", folder):
            await _run("chmod", "-R", "u+rwx", "--", folder)
            await _run("rm", "-rf", "--", folder)

    async def sweep(self) -> None:
        """Remove the folders of workers that were killed."""
        for home in Path(self._home).parent.glob(f"{PREFIX}*"):
            try:
                lock = _locked(str(home))
            except OSError:
                continue  # in use, or not ours
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    await _run("rm", "-rf", "--", str(home))
            finally:
                os.close(lock)

    async def close(self) -> None:
        await _run("rm", "-rf", "--", self._home)
        os.close(self._lock)


FILES, OUT = "files", "out"
"""Folders of one job in that of its context: what came with it, and what it leaves."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def unpack(folder: str, uid: int | None, id: str, files: Mapping[str, bytes]) -> None:
    """Give a job fresh folders. Those of the job before it are moved aside, and go with the folder of the context."""
    with _opened(folder) as context:
        for name in (FILES, OUT):
            with suppress(FileNotFoundError):
                os.rename(name, f"{name} before {id}", src_dir_fd=context, dst_dir_fd=context)
            os.mkdir(name, 0o700, dir_fd=context)
            with _opened(name, context) as own:
                for file, data in files.items() if name == FILES else ():
                    _write(own, file, data, uid)
                if uid is not None:
                    os.fchown(own, uid, uid)


def _write(folder: int, name: str, data: bytes, uid: int | None) -> None:
    with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=folder), "wb") as file:
        file.write(data)
        if uid is not None:
            os.fchown(file.fileno(), uid, uid)


def collect(folder: str, uid: int | None) -> dict[str, bytes]:
    """What a job has left: its own plain files, no links to others."""
    found: dict[str, bytes] = {}
    with _opened(folder) as context:
        try:
            left = os.open(OUT, _FOLDER, dir_fd=context)
        except OSError:
            return {}  # it has removed the folder, or put something else there
        try:
            for name in sorted(os.listdir(left))[: MOST_FILES + 1]:  # noqa: PTH208 - a descriptor has no path
                if (data := _read(left, name, uid, MOST_RESULT - sum(map(len, found.values())))) is not None:
                    found[name] = data
        finally:
            os.close(left)
    check_left_files(found, MOST_RESULT, OUT)
    return found


def _read(folder: int, name: str, uid: int | None, most: int) -> bytes | None:
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError:
        return None
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1 or (uid is not None and about.st_uid != uid):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most + 1)


@contextmanager
def _opened(name: str, beneath: int | None = None) -> Iterator[int]:
    folder = os.open(name, _FOLDER, dir_fd=beneath)
    try:
        yield folder
    finally:
        os.close(folder)


def closed_to_others(parent: str | None) -> str | None:
    """Why code that runs as another user could not get to its folder; null = it could, or runs as this user."""
    if os.geteuid() != 0:
        return None
    place = Path(os.path.realpath(parent or tempfile.gettempdir()))
    for folder in (place, *place.parents):
        if folder.exists() and not folder.stat().st_mode & stat.S_IXOTH:
            return f"functions cannot have their folders in {place}: other users than root may not enter {folder}"
    return None


def _fresh(parent: str | None) -> tuple[str, int]:
    """A new folder, and its lock, which is held for as long as this process lives."""
    while True:
        home = os.path.realpath(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        with suppress(FileNotFoundError, BlockingIOError):  # another worker swept it away before it was locked
            return home, _locked(home)


def _locked(home: str) -> int:
    """The lock of a folder that still exists: a sweep holds the lock until the folder is gone."""
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(home)  # noqa: PTH116
    except OSError:
        os.close(folder)
        raise
    return folder


async def _run(program: str, *arguments: str) -> int:
    path = shutil.which(program) or f"/bin/{program}"
    process = await asyncio.create_subprocess_exec(path, *arguments, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    return await process.wait()


def end_leftovers(uid: int | None, folder: str) -> None:
    """Kill what is left of a tenant's code whose monitor was killed: it has become a child of this process.

    It is known by its user; where the worker could not choose one, by the home that it was started with, which a
    program can change. Children of living monitors are not ours.
    """
    if uid is None:
        end_marked(f"HOME={folder}", LEFTOVERS_WITHIN)
        return

    def others() -> list[int]:
        return [pid for pid in children(os.getpid()) if _user_of(pid) != uid]

    end_children_but(others)


def _user_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return None  # it has ended meanwhile
