"""A worker that starts again when the code changes: `windlass worker --reload`, for development.

A parent that opens nothing forks the worker, looks at the files below its folder, and replaces the worker after a
change. If the worker ends with an error, as it does when the app cannot be imported, the parent waits for the next
change.
"""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from windlass.model.ports import Clock
from windlass.worker.linux import end_with_parent
from windlass.worker.siblings import ENDING, PASSED_ON

log = logging.getLogger("windlass.worker")

LOOK_EVERY = 0.5
"""Seconds between two looks at the files."""

FINISH_WITHIN = 2.0
"""Seconds for jobs that run during a change to finish; then they are released, and the new code runs them."""

PASSED_OVER = frozenset({"__pycache__", "node_modules"})

Versions = dict[str, tuple[int, int]]
"""Of each file when it was changed, and its size."""


class _InChild(Exception):
    pass


def run_reloading(folder: Path, run_one: Callable[[], int], clock: Clock) -> int:
    """Run a program with the code as it is, until it ends well or a signal ends it. Returns in each child, too."""
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # bytecode counts as fresh for the rest of a second
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*PASSED_ON, signal.SIGCHLD])
    try:
        status = _Watcher(folder, clock).run()
    except _InChild:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return run_one()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return status


class _Watcher:
    """The parent: the worker it has started, and the files as they were then."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._pid = os.getpid()
        self._child = 0
        """0 = it does not run."""
        self._released_at: float | None = None
        """When the child is asked a second time to stop; null = it is not being replaced."""
        self._stopping = False
        self._seen: Versions = {}

    def run(self) -> int:
        self._seen = versions(self._folder)
        self._start()
        while True:
            number = self._next_signal()
            if number in PASSED_ON:
                self._stopping = self._stopping or number in ENDING
                if self._stopping and not self._child:
                    return 0
                self._tell(number)
            if (status := self._ended()) is not None and (self._stopping or self._is_over(status)):
                return abs(status)
            if not self._stopping:
                self._look()

    def _next_signal(self) -> int:
        found = signal.sigtimedwait([*PASSED_ON, signal.SIGCHLD], LOOK_EVERY)
        return 0 if found is None else found.si_signo

    def _start(self) -> None:
        self._released_at = None
        self._child = os.fork()
        if not self._child:
            os.setpgid(0, 0)  # what is typed at the terminal comes from the parent alone, once
            end_with_parent(self._pid)
            raise _InChild

    def _tell(self, number: int) -> None:
        if self._child:
            os.kill(self._child, number)

    def _ended(self) -> int | None:
        """The status of the child, if it has just ended."""
        found, status = os.waitpid(self._child, os.WNOHANG) if self._child else (0, 0)
        if not found:
            return None
        self._child = 0
        return os.waitstatus_to_exitcode(status)

    def _is_over(self, status: int) -> bool:
        """Whether the child has ended for good: by itself, and well."""
        if self._released_at is not None:
            self._start()
            return False
        if status:
            log.warning("the worker ended with status %d: it starts again when a file changes", status)
        return status == 0

    def _look(self) -> None:
        now = self._clock.monotonic()
        if self._released_at is not None:
            if now >= self._released_at:
                self._tell(signal.SIGTERM)
            return
        found = versions(self._folder)
        changed = sorted(dict(found.items() ^ self._seen.items()))
        if not changed:
            return
        self._seen = found
        names = ", ".join(os.path.relpath(one, self._folder) for one in changed[:3])
        log.info("%s changed: the worker starts again", names + (" and others" if changed[3:] else ""))
        if not self._child:
            self._start()
            return
        self._released_at = now + FINISH_WITHIN
        self._tell(signal.SIGTERM)


def versions(folder: Path) -> Versions:
    """The Python files below a folder, without hidden folders and virtual environments."""
    found: Versions = {}
    for one in _files(str(folder)):
        with suppress(OSError):  # it has just been removed
            stat = one.stat()
            found[one.path] = (stat.st_mtime_ns, stat.st_size)
    return found


def _files(folder: str) -> Iterator["os.DirEntry[str]"]:
    try:
        found = list(os.scandir(folder))
    except OSError:
        return  # it has just been removed, or is not ours to read
    if any(one.name == "pyvenv.cfg" for one in found):
        return
    for one in found:
        if one.name.startswith(".") or one.name in PASSED_OVER:
            continue
        if one.is_dir(follow_symlinks=False):
            yield from _files(one.path)
        elif one.name.endswith(".py") and one.is_file():
            yield one
