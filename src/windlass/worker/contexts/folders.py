"""The folders of jobs: each has one for itself, made when its task asks for it, with the files that came with the job.

A folder goes when its run ends. Those of a process that was killed are removed by the zygote, and what a killed zygote
has left by the next one. Trusts nothing in the machine's folder for temporary files.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from windlass.model.errors import Invalid, TooLarge
from windlass.model.names import MOST_FILES, check_file_name
from windlass.model.wire import MOST_RESULT

OUT = "out"
"""What a task leaves in this folder is kept with its job."""


class JobFolder:
    """The folder of one run, and what is kept of it."""

    def __init__(self, number: int, files: Mapping[str, bytes]) -> None:
        self._number = number
        self._files = files
        self._path: Path | None = None
        self._lock = -1
        """Kept while the run lasts: a worker in another container sees the folder, but not the process."""
        self._attached: dict[str, bytes] = {}

    @property
    def path(self) -> Path:
        if self._path is None:
            if OUT in self._files:
                raise Invalid(f"a file of this job is called {OUT!r}, like the folder for its results", at="files")
            self._path = _make(self._number)
            self._lock = _locked(self._path)
            for name, data in self._files.items():
                (self._path / name).write_bytes(data)
        return self._path

    def attach(self, path: str | os.PathLike[str], name: str | None) -> None:
        self._keep(check_file_name(name or Path(path).name, at="attach"), Path(path))

    def _keep(self, name: str, path: Path) -> None:
        others = {other: data for other, data in self._attached.items() if other != name}
        size = path.stat().st_size + sum(map(len, others.values()))
        if len(others) >= MOST_FILES or size > MOST_RESULT:
            raise TooLarge(f"a job may leave {MOST_FILES} files of {MOST_RESULT} bytes together", at="attach")
        self._attached = {**others, name: path.read_bytes()}

    def left(self) -> dict[str, bytes]:
        """What was attached, and the files in `out`."""
        if self._path is not None:
            for path in sorted((self._path / OUT).iterdir()):
                if stat.S_ISREG(path.lstat().st_mode):
                    self._keep(check_file_name(path.name, at=OUT), path)
        return self._attached

    def remove(self) -> None:
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            os.close(self._lock)


def _make(number: int) -> Path:
    own = _home() / str(os.getpid())
    own.mkdir(mode=0o700, exist_ok=True)
    path = own / str(number)
    shutil.rmtree(path, ignore_errors=True)  # of a process that had the same pid
    path.mkdir(mode=0o700)
    (path / OUT).mkdir(mode=0o700)
    return path


def _home() -> Path:
    """The folder of all folders of this user's jobs."""
    home = Path(tempfile.gettempdir()) / f"windlass-jobs-{os.geteuid()}"
    with suppress(FileExistsError):
        home.mkdir(mode=0o700)
    found = home.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise Invalid(f"{home} is not a folder of this user alone: remove it", at="folder")
    return home


def remove_of(pid: int) -> None:
    """Remove the folders of a process that has ended."""
    shutil.rmtree(Path(tempfile.gettempdir()) / f"windlass-jobs-{os.geteuid()}" / str(pid), ignore_errors=True)


def sweep() -> None:
    """Remove the folders of processes that are gone."""
    with suppress(OSError, Invalid):
        for folder in _home().iterdir():
            if folder.name.isdigit() and not Path("/proc", folder.name).exists() and _is_free(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path) -> int:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def _is_free(folder: Path) -> bool:
    """Whether no run in it lasts."""
    try:
        for run in folder.iterdir():
            os.close(_locked(run))
    except OSError:
        return False
    return True
