"""The ground all systems are measured on: one private Redis, one folder, and the ways to queue, work and count.

Everything is counted from outside: what is left by asking the store, what ran by a file that the tasks append to.
"""

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.peers.environments import modules_beside
from bench.peers.systems import Setting, System
from bench.processes import Program, running
from tests.support.servers import Server
from windlass.addresses import open_store
from windlass.model.job import PENDING
from windlass.system import SystemRandomness

APPS = Path(__file__).parent / "apps"
POLL = 0.02
STALLED = 30.0
"""Seconds without one finished job after which a worker is given up."""
TOO_LONG = 600.0


class Gave(NamedTuple):
    """What a producer says."""

    jobs: int
    seconds: float


class NotRun(Exception):
    """A system could not be measured."""


class Ground:
    """One store for one run, a folder, and the file that tasks append to."""

    def __init__(self, folder: Path, url: str, server: Server | None) -> None:
        self.folder = folder
        self.url = url
        self.server = server
        self.notes = folder / "notes"

    def clear(self) -> None:
        """Nothing is left of the last measurement."""
        self.notes.write_bytes(b"")
        if self.server is not None:
            self.server.ask("FLUSHALL")
            return
        for file in self.folder.glob(f"{Path(self.url).name}*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()

    def noted(self) -> list[list[int]]:
        """What the tasks have noted: a list of numbers for each run."""
        whole = self.notes.read_text().rpartition("\n")[0]
        return [[int(word) for word in line.split()] for line in whole.splitlines()]

    @contextmanager
    def run(self, commands: list[list[str]], modules: Path, *, safe: bool, slots: int) -> Iterator[list[Program]]:
        """Programs that find this ground in their environment."""
        environment = {"PYTHONPATH": str(APPS), "NODE_PATH": str(modules)}
        environment |= {"BENCH_URL": self.url, "BENCH_NOTES": str(self.notes), "BENCH_SLOTS": str(slots)}
        if safe:  # Windlass has a variable of its own for it
            environment |= {"BENCH_SAFE": "1", "WINDLASS_WORKER_LEASE": "2s"}
        with running(commands, folder=self.folder, environment=environment, log=self.folder / "log") as started:
            yield started


class Stand(NamedTuple):
    """A system on the ground."""

    ground: Ground
    system: System
    programs: Path
    """The folder with the programs of its environment."""

    def produce(self, task: str, how: str, number: int, *, rate: float = 0, safe: bool = False) -> Gave:
        """Queue so many jobs from a process in the system's own environment."""
        command = self._filled((*self.system.producer, task, how, str(number), str(rate)), "producer")
        with self.ground.run([command], modules_beside(self.programs), safe=safe, slots=1) as (program,):
            try:
                program.process.wait(TOO_LONG)
            except subprocess.TimeoutExpired:
                raise NotRun(f"{how}: not done in {TOO_LONG:.0f} s") from None
            if program.process.returncode:
                raise NotRun(f"{how}: {program.last_lines()}")
            return Gave(**json.loads(program.last_lines()))

    @contextmanager
    def workers(self, setting: Setting, number: int, *, safe: bool = False) -> Iterator[list[Program]]:
        # The name differs also from that of a worker that was killed.
        commands = [self._filled(setting.command, SystemRandomness().token().hex()) for _ in range(number)]
        with self.ground.run(commands, modules_beside(self.programs), safe=safe, slots=setting.slots) as started:
            yield started

    def _filled(self, command: tuple[str, ...], name: str) -> list[str]:
        program, *words = command
        known = {"{url}": self.ground.url, "{apps}": str(APPS), "{name}": name}
        for mark, meant in known.items():
            words = [word.replace(mark, meant) for word in words]
        return [str(self.programs / program), *words]

    @contextmanager
    def backlog(self, *, safe: bool = False) -> Iterator[Callable[[], int]]:
        """A way to ask how many jobs are not done."""
        commands = self.system.safe_backlog if safe and self.system.safe_backlog else self.system.backlog
        if commands and (server := self.ground.server) is not None:
            yield lambda: sum(int(server.ask(*words)) for words in commands)
            return
        with asyncio.Runner() as runner:
            store = runner.run(open_store(self.ground.url))

            async def left() -> int:
                return sum(tally.count for tally in (await store.jobs.counts("default")).jobs if tally.state in PENDING)

            try:
                yield lambda: runner.run(left())
            finally:
                runner.run(store.close())


@contextmanager
def private_redis(folder: Path) -> Iterator[Server]:
    """A server of our own that writes nothing to disk."""
    with Server("redis", folder) as server:
        server.ask("CONFIG", "SET", "appendonly", "no")
        yield server


def drained(
    left: Callable[[], int], total: int, workers: list[Program], first: Callable[[], None] = lambda: None
) -> float:
    """Jobs per second from the first finished to the last: what a worker takes to start does not count.

    `first` is called when some are finished.
    """
    before, heard, begun = total, time.perf_counter(), 0.0
    while True:
        asked = time.perf_counter()
        now = left()
        if now >= total:
            begun = asked
        if now < before:
            if before == total:
                first()
            before, heard = now, asked
        if now == 0:
            return total / (time.perf_counter() - begun)
        if all(worker.ended for worker in workers):
            raise NotRun(f"the worker ended: {workers[0].last_lines()}")
        if asked - heard > STALLED:
            raise NotRun(f"{now} of {total} jobs left and nothing moves: {workers[0].last_lines()}")
        time.sleep(POLL)
