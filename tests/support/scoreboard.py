"""The scoreboard's tools: a judge outside the product, a crowd of workers, and a line that loses replies.

Tasks append what they do to a file that the queue knows nothing of; what the queue says is compared with that.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.patience import PATIENCE
from tests.support.relays import Wire
from windlass import Windlass

APP = '''
import asyncio, os, sys, time
from pathlib import Path
from windlass import Windlass, current

app = Windlass()
HERE = Path(__file__).parent
DIARY = os.open(HERE / "diary", os.O_APPEND | os.O_CREAT | os.O_WRONLY)


def note(what, number):
    os.write(DIARY, f"{what} {number} {current.job.attempt} {os.getpid()} {time.time()}\\n".encode())


@app.task(max_retry=0)
def work(number: int, seconds: float) -> int:
    note("start", number)
    time.sleep(seconds)
    note("end", number)
    return current.job.attempt


@app.task(max_retry=0)
async def awork(number: int, seconds: float) -> int:
    note("start", number)
    await asyncio.sleep(seconds)
    note("end", number)
    return current.job.attempt


@app.task(max_retry=0)
def until(number: int, file: str) -> int:
    """Runs until a file is there, and says so all the time."""
    note("start", number)
    while not (HERE / file).exists():
        note("beat", number)
        time.sleep(0.02)
    note("end", number)
    return current.job.attempt


@app.task(max_retry=0)
async def auntil(number: int, file: str) -> int:
    note("start", number)
    while not (HERE / file).exists():
        note("beat", number)
        await asyncio.sleep(0.02)
    note("end", number)
    return current.job.attempt
'''


class Entry(NamedTuple):
    """One line of the diary."""

    what: str
    number: int
    attempt: int
    pid: int
    at: float


class Board:
    """One folder with an app, its diary and its workers."""

    def __init__(self, folder: Path, store: str, lease: float = 1.0) -> None:
        self.folder = folder
        self.store = store
        self.settings = os.environ | {
            "WINDLASS_STORE": store,
            "WINDLASS_WORKER_LEASE": f"{lease}s",
            "PYTHONPATH": str(folder),
        }
        (folder / "board_app.py").write_text(APP)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.app = Windlass(store)
        signatures: dict[str, Callable[..., int]] = {"work": _work, "awork": _work, "until": _until, "auntil": _until}
        for name, signature in signatures.items():
            self.app.task(name=name, max_retry=0)(signature)
        self.log = (folder / "log").open("ab")

    def task(self, name: str) -> Any:
        return self.app.tasks[name]

    def start(self, *options: str, store: str | None = None) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "windlass", "worker", "board_app:app", "-c", "8", "--contexts", "1", *options]
        if store:
            command += ["--store", store]
        worker = subprocess.Popen(command, cwd=self.folder, env=self.settings, stderr=self.log)
        self.workers.append(worker)
        return worker

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        self.log.close()
        self.app.close()

    def diary(self) -> list[Entry]:
        path = self.folder / "diary"
        text = path.read_text() if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
        words = [line.split() for line in lines]
        return [Entry(what, int(n), int(attempt), int(pid), float(at)) for what, n, attempt, pid, at in words]

    def starts(self) -> Counter[int]:
        return Counter(entry.number for entry in self.diary() if entry.what == "start")

    def ends(self) -> Counter[int]:
        return Counter(entry.number for entry in self.diary() if entry.what == "end")

    def follow_job(self) -> dict[int, list[Entry]]:
        found: dict[int, list[Entry]] = defaultdict(list)
        for entry in self.diary():
            found[entry.number].append(entry)
        return found


# What the tasks look like to a sender.


def _work(number: int, seconds: float) -> int:
    raise NotImplementedError


def _until(number: int, file: str) -> int:
    raise NotImplementedError


def await_(what: str, done: Callable[[], bool], within: float = PATIENCE) -> float:
    """Wait until something is so; how long it took."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > within:
            raise TimeoutError(f"not within {within:g} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - began


@contextmanager
def killing(board: Board, every: float, seed: int) -> Iterator[list[int]]:
    """A random worker is killed again and again, and another started; the pids of the killed."""
    killed: list[int] = []
    chance, over = random.Random(seed), threading.Event()

    def kill() -> None:
        while not over.wait(every):
            victim = chance.choice([worker for worker in board.workers if worker.poll() is None])
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            killed.append(victim.pid)
            board.start()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


class Relay(Wire):
    """A line to a server that now and then takes a command there and loses the answer."""

    def __init__(self, port: int, loss: float, seed: int) -> None:
        super().__init__(port)
        self._loss = loss
        self._chance = random.Random(seed)
        self.lost = 0

    def _breaks(self, *, forth: bool) -> bool:
        broken = not forth and self._chance.random() < self._loss
        self.lost += broken
        return broken
