"""A folder of its own for each context: fresh, its user's alone, gone afterwards.

Once foreign code has run in one, nothing here goes by its contents: links may lead anywhere by then. It is removed by
`rm`, which follows none, however deep it is and however it was locked.
"""

import asyncio
import fcntl
import itertools
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL

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
        """Remove what workers have left behind that were killed."""
        for home in Path(self._home).parent.glob(f"{PREFIX}*"):
            try:
                lock = _locked(str(home))
            except OSError:
                continue  # somebody is at work there, or it is not ours
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    await _run("rm", "-rf", "--", str(home))
            finally:
                os.close(lock)

    async def close(self) -> None:
        await _run("rm", "-rf", "--", self._home)
        os.close(self._lock)


def closed_to_others(parent: str | None) -> str | None:
    """Why code that runs as another user could not get to its folder; null = it could."""
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
    """The lock of a folder that is still there: whoever sweeps one away holds its lock until it has gone."""
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
