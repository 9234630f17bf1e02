"""Real workers for tests: an app in a folder of its own, on a store of its own, and processes that run its jobs.

The judge stands outside: tasks write to a file (`note`), and every process that comes of a harness, however far it has
strayed, is known by a variable in its environment. When a test is over none of them may be left.
"""

import importlib.util
import io
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import psutil
import pytest

from tests.support.patience import PATIENCE
from tests.support.servers import Server
from windlass import cli
from windlass.app import Windlass
from windlass.job_handle import Job
from windlass.model.job import FINISHED
from windlass.model.job import Job as Record
from windlass.model.operations import GetResult

T = TypeVar("T")

StoreKind = Literal["file", "redis"]
STORES: tuple[StoreKind, ...] = ("file", "redis")


FOLDER = "WORKSHOP"
"""The variable that tells the processes of one harness from all others."""

TASKS = Path(__file__).parents[1] / "support" / "worker_app.py"
"""The app that harnesses are made with, unless they bring their own."""

_numbers = itertools.count(1)


def until(what: Callable[[], T], within: float = PATIENCE) -> T:
    """Ask again and again until the answer is yes, less often the longer it takes: others want to get on."""
    began = time.monotonic()
    while not (answer := what()):
        passed = time.monotonic() - began
        assert passed < within, f"still not so after {passed:.1f} s"
        time.sleep(min(0.002 + passed / 20, 0.05))
    return answer


def never(what: Callable[[], object], during: float) -> None:
    """Ask again and again: as long as this the answer stays no."""
    over = time.monotonic() + during
    while time.monotonic() < over:
        assert not what()
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Also not as one that is dead and has not been reaped."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def tell(figure: object) -> None:
    """Say what was measured: `pytest -rP` shows it."""
    sys.stdout.write(f"{figure}\n")


class Worker:
    """One `windlass worker`; what it says is read as it comes."""

    def __init__(self, command: list[str], folder: Path, environ: dict[str, str]) -> None:
        self._said: list[str] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._said.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def said(self) -> str:
        return "".join(self._said)

    def hear(self, pattern: str, within: float = PATIENCE) -> re.Match[str]:
        """Wait until it says something like this."""
        found = re.compile(pattern)
        with self._news:
            self._news.wait_for(lambda: found.search(self.said) or not self._reader.is_alive(), within)
        match = found.search(self.said)
        assert match, f"the worker never said {pattern!r}, but:\n{self.said}"
        return match

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def type_ctrl_c(self) -> None:
        """As at a terminal: the whole group in the foreground gets the signal."""
        os.killpg(self.pid, signal.SIGINT)

    def ended(self, within: float = PATIENCE) -> int:
        """Wait for its end; its exit status."""
        status = self._process.wait(within)
        self._reader.join(PATIENCE)
        return status

    def stop(self, within: float = PATIENCE) -> int:
        self.send(signal.SIGTERM)
        return self.ended(within)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def destroy(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._reader.join(1)
        if not self._reader.is_alive():
            assert self._process.stdout is not None
            self._process.stdout.close()


class WorkerHarness:
    """An app in a folder, its store, its workers and what its tasks noted."""

    handlers = False
    """Whether workers of the app run handlers too. To find out what they can run, they start each interpreter once."""

    def __init__(self, folder: Path, store: str, tenant: str, source: str) -> None:
        self.folder = folder
        self.store = store
        self.tenant = tenant
        self.workers: list[Worker] = []
        self._notes = folder / "notes"
        (folder / "tasks.py").write_text(source)
        self._module: ModuleType | None = None

    @property
    def environ(self) -> dict[str, str]:
        """What the processes of this harness find in their environment."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
        path = str(Path(sys.executable).parent) + os.pathsep + kept.get("PATH", "")
        own = {FOLDER: str(self.folder), "WINDLASS_STORE": self.store, "HARNESS_TENANT": self.tenant}
        own["WINDLASS_DATA"] = str(self.folder / "data")
        return kept | own | {"PATH": path, "PYTHONUNBUFFERED": "1"}

    @property
    def tasks(self) -> Any:
        """The app's module, loaded here to queue jobs of its tasks."""
        if self._module is None:
            spec = importlib.util.spec_from_file_location(f"tasks{next(_numbers)}", self.folder / "tasks.py")
            assert spec is not None
            assert spec.loader is not None
            self._module = importlib.util.module_from_spec(spec)
            with pytest.MonkeyPatch.context() as patch:
                for name, value in self.environ.items():
                    patch.setenv(name, value)
                spec.loader.exec_module(self._module)
        return self._module

    @property
    def app(self) -> Windlass:
        app = self.tasks.app
        assert isinstance(app, Windlass)
        return app

    # Workers

    def start(self, *flags: str, lease: str = "10s", target: str = "tasks:app", **variables: str) -> Worker:
        """A worker that is ready to claim."""
        worker = self.start_raw(*flags, lease=lease, target=target, **variables)
        worker.hear(r" runs .* at once\n")
        return worker

    def start_raw(self, *flags: str, lease: str = "10s", target: str = "tasks:app", **variables: str) -> Worker:
        """The same without waiting for it."""
        without = {"WINDLASS_WORKER_HANDLERS": "false"} if target and not self.handlers else {}
        environ = self.environ | {"WINDLASS_WORKER_LEASE": lease} | without | variables
        program = [sys.executable, "-m", "windlass", "worker", *([target] if target else []), *flags]
        worker = Worker(program, self.folder, environ)
        self.workers.append(worker)
        return worker

    def burst(self, *flags: str, lease: str = "10s") -> Worker:
        """A worker that has worked until nothing was left."""
        worker = self.start_raw("--burst", *flags, lease=lease)
        assert worker.ended() == 0, worker.said
        return worker

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another command of the program, in this process: starting one takes longer than most commands."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(self.folder)
            for name in os.environ.keys() - self.environ.keys():
                patch.delenv(name)
            for name, value in self.environ.items():
                patch.setenv(name, value)
            status = cli.run(words)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, status, out.read(), err.read())

    # Jobs

    def ended(self, job: Job[Any], within: float = PATIENCE) -> Record:
        """The record of a job that has ended."""
        answer = self.app.link.ask(GetResult(tenant=self.tenant, id=job.id, wait=within))
        assert answer.state in FINISHED, f"{job} is still {answer.state}: {job.refresh()}"
        return job.refresh()

    def notes(self, word: str = "") -> list[str]:
        """What tasks have noted: each line that begins with this word, without it."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [line.removeprefix(word).strip() for line in lines if not word or line.split(" ", 1)[0] == word]

    def noted(self, word: str, number: int = 1, within: float = PATIENCE) -> list[str]:
        """Wait until so many lines begin with this word."""
        until(lambda: len(self.notes(word)) >= number, within)
        return self.notes(word)

    # Processes

    def processes(self) -> list[int]:
        """All that has come of this harness's workers."""
        mark = f"{FOLDER}={self.folder}".encode()
        return [pid for pid in psutil.pids() if mark in _environ(pid)]

    def close(self) -> None:
        try:
            for worker in self.workers:
                worker.destroy()
            until(lambda: not self.processes())
        finally:
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._module is not None:
                self.app.close()


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or is not ours


# --- Fixtures -----------------------------------------------------------------------------------------------------

MakeHarness = Callable[..., WorkerHarness]


@pytest.fixture
def handlers() -> bool:
    """Whether workers of harnesses run handlers too; in `tests/functions` they do."""
    return False


@pytest.fixture
def make_harness(tmp_path: Path, handlers: bool) -> Iterator[MakeHarness]:
    """For a test that brings its own app, or its own server: `make_harness(source, store=address)`."""
    made: list[WorkerHarness] = []

    def make(source: str = "", store: str = "") -> WorkerHarness:
        number = next(_numbers)
        folder = tmp_path / f"shop{number}"
        folder.mkdir()
        text = source or TASKS.read_text()
        made.append(WorkerHarness(folder, store or str(folder / "jobs.db"), f"shop{os.getpid()}x{number}", text))
        made[-1].handlers = handlers
        return made[-1]

    yield make
    for harness in made:
        harness.close()


ON_A_FILE = pytest.mark.parametrize("harness", ["file"], indirect=True)
"""For a test of what has nothing to do with stores."""


@pytest.fixture(params=STORES)
def harness(request: pytest.FixtureRequest, make_harness: MakeHarness) -> WorkerHarness:
    """The tasks on each kind of store in turn. A server is shared: each harness is a tenant of its own."""
    if request.param == "file":
        return make_harness()
    server = request.getfixturevalue("redis_server")
    assert isinstance(server, Server)
    return make_harness(store=server.url)
