"""The processes that a job starts end with it, also where it shares its own with other jobs.

Each is noted by the job whose code starts it, and programs are marked in their environment: so they are found although
they have left their session, or the process that started them has ended. A job that starts none pays nothing.
Processes of `multiprocessing` are left alone: a pool may serve many jobs.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from windlass.call.current import running
from windlass.worker.linux import children, descendants, send

MARK = "_WINDLASS_RUN"
"""A variable in the environment of the programs that a job has started."""

ENVIRONMENT = 5
"""Its place among the arguments of the function with which `subprocess` starts a program."""

SWEEPS = 3
"""How often to look for what has been started while the rest was being ended."""

_START_TIME = 19
"""Its place behind the name in the line that says how a process is."""


class Offspring:
    """What one run has started."""

    active = False
    """Whether jobs share this process. False in a process that has only one job, and in those that jobs fork."""

    def __init__(self, number: int) -> None:
        self.mark = f"{MARK}={os.getpid()}.{number}".encode()
        self._started: list[tuple[int, str]] = []
        """Pids, each with the time of its start: it may be another's by now."""

    def note(self, pid: int) -> None:
        self._started.append((pid, _started_at(pid)))

    def end(self) -> None:
        """End all of it that still lives."""
        if not self.active:
            return
        for _ in range(SWEEPS):
            doomed = {*self._living(), *self._orphans()}
            for pid in doomed:
                for one in (pid, *descendants(pid)):
                    send(one, signal.SIGKILL)
            if not doomed:
                return

    def _living(self) -> Iterator[int]:
        for pid, started_at in self._started:
            if started_at and _started_at(pid) == started_at:
                yield pid

    def _orphans(self) -> Iterator[int]:
        """What has lost its parent has the zygote instead."""
        for pid in children(os.getppid()):
            with suppress(OSError):
                if self.mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    yield pid


def _started_at(pid: int) -> str:
    """When a process was started, in the kernel's words; empty if it has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state == "Z" else rest[_START_TIME - 1]


def install() -> None:
    """Note what is started from now on. Before the app is imported: it may take these functions by name."""
    run_program = subprocess._fork_exec  # type: ignore[attr-defined] # noqa: SLF001 - what starts all programs

    @wraps(run_program)
    def run_marked(*arguments: Any) -> int:
        offspring = _offspring()
        if offspring is None:
            return int(run_program(*arguments))
        before = arguments[ENVIRONMENT]
        if before is None:
            before = [name + b"=" + value for name, value in os.environb.items()]
        marked = [*before, offspring.mark]
        pid = int(run_program(*arguments[:ENVIRONMENT], marked, *arguments[ENVIRONMENT + 1 :]))
        offspring.note(pid)
        return pid

    subprocess._fork_exec = run_marked  # type: ignore[attr-defined] # noqa: SLF001
    os.fork = _noting(os.fork)
    os.posix_spawn = _noting(os.posix_spawn)
    os.posix_spawnp = _noting(os.posix_spawnp)
    os.register_at_fork(after_in_child=lambda: end_with_jobs(yes=False))


def _noting(start: Callable[..., int]) -> Callable[..., int]:
    @wraps(start)
    def started(*arguments: Any, **more: Any) -> int:
        offspring = _offspring()
        pid = start(*arguments, **more)
        if pid and offspring is not None and not _is_a_pool(sys._getframe(1).f_globals):  # noqa: SLF001
            offspring.note(pid)
        return pid

    return started


def _is_a_pool(caller: dict[str, Any]) -> bool:
    return str(caller.get("__name__")).startswith("multiprocessing.")


def _offspring() -> Offspring | None:
    run = running.get(None) if Offspring.active else None
    found: Offspring | None = None if run is None else run.offspring
    return found


def end_with_jobs(*, yes: bool) -> None:
    """Whether jobs share this process, so that the processes they start must be kept apart."""
    Offspring.active = yes
