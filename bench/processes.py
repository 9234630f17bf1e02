"""Programs that a benchmark starts: with all their descendants they can be weighed, timed, killed and ended.

They die with the benchmark, however it ends. Knows nothing of queues.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.support.servers import BECOME

PATIENCE = 5.0
"""Seconds for a program to end by itself."""


class Weight(NamedTuple):
    """Memory of a program and its descendants, in MB."""

    rss: float
    """Pages shared between processes count in each."""
    pss: float
    """Pages shared between processes are shared out; 0 where the system does not say."""


class Program:
    """A started program. Its output goes to a file, for the reason if it fails."""

    def __init__(self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            # A session of its own: Ctrl-C must reach us first, and we end it.
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-c", BECOME, *command],
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def tree(self) -> list[psutil.Process]:
        try:
            top = psutil.Process(self.process.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def weight(self) -> Weight:
        rss = pss = 0
        for process in self.tree():
            try:
                full = process.memory_full_info()
            except psutil.Error:
                continue
            rss += full.rss
            pss += getattr(full, "pss", 0)
        return Weight(rss / 1e6, pss / 1e6)

    def cpu(self) -> float:
        """Seconds of processor time that what runs now has used."""
        return sum(_used(process) for process in self.tree())

    def pause(self) -> None:
        """Hold all of it still."""
        for process in self.tree():
            _send(process, signal.SIGSTOP)

    def resume(self) -> None:
        for process in self.tree():
            _send(process, signal.SIGCONT)

    def kill(self) -> None:
        """As when the machine goes: all of it, without a word."""
        tree = self.tree()
        for process in tree:
            _send(process, signal.SIGSTOP)  # else a parent could start another child in between
        for process in {*tree, *self.tree()}:
            _send(process, signal.SIGKILL)
        psutil.wait_procs(tree, PATIENCE)
        self.process.wait()

    def end(self) -> None:
        tree = self.tree()
        if not self.ended:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                tree = [*tree, *self.tree()]
        for process in tree:
            _send(process, signal.SIGKILL)
        self.process.wait()

    def last_lines(self) -> str:
        """The last line that it printed."""
        printed = self.log.read_bytes()[self._log_start :].decode(errors="replace").strip()
        return printed.rpartition("\n")[2][-200:] or "it printed nothing"


def _used(process: psutil.Process) -> float:
    """Seconds of one process, by the scheduler's own count: what the system calls its times is in steps of 10 ms."""
    try:
        counts = [task.read_text() for task in Path(f"/proc/{process.pid}/task").glob("*/schedstat")]
    except OSError:  # a thread has just ended
        counts = []
    if counts:
        return sum(int(count.split()[0]) for count in counts) / 1e9
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.Error):  # it has ended by itself
        process.send_signal(number)


@contextmanager
def running(
    commands: Sequence[Sequence[str]], *, folder: Path, environment: Mapping[str, str], log: Path
) -> Iterator[list[Program]]:
    """Programs at the same time, ended at the end."""
    started: list[Program] = []
    try:
        for command in commands:
            started.append(Program(command, folder=folder, environment=environment, log=log))  # noqa: PERF401 - the rest must be ended if one does not start
        yield started
    finally:
        for program in started:
            program.end()
