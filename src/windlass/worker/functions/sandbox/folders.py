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
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL

from windlass.worker.linux import children, end_children_but

SPAN = 2**28


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


def end_leftovers(uid: int) -> None:
    """Kill what is left of a tenant's code whose monitor was killed: it has become a child of this process.

    It is known by its user, so this works only where the worker runs as root. Children of living monitors are not ours.
    """

    def others() -> list[int]:
        return [pid for pid in children(os.getpid()) if _user_of(pid) != uid]

    end_children_but(others)


def _user_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return None  # it has ended meanwhile
