"""Runs whose process outlives its worker: each has a folder, in which the next worker of this machine finds it.

The folder (mode 0700) holds `about`, which says whose run it is; `socket`, at which the run's shim listens; and, once
its process has ended, `ending`. The worker that has locked the folder has the run; a lock ends with its process. What
is read here is MessagePack of known structs and of bounded size: nothing from a folder is evaluated.
"""

import fcntl
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from windlass.model.names import EVERY_TENANT
from windlass.worker.contexts.frames import MOST_BYTES, ContextUpdate
from windlass.worker.linux import boot_id, started_ticks

ABOUT, SOCKET, ENDING = "about", "socket", "ending"
MOST_ABOUT = 1 << 16
MOST_TOKENS = 8
MOST_LOOKED_AT = 1000
"""Folders that are looked at in one round."""

HALF_MADE = 60.0
"""Seconds after which a folder that does not say whose it is counts as left by a worker that was killed."""

LONGEST_KEPT = 8 * 86400.0
"""Seconds after which no lease can still run: a folder that is older, and has no process, is removed."""


class About(Struct, frozen=True, omit_defaults=True):
    """Whose run it is, and which process holds it."""

    store: str
    tenant: str
    job: str
    node: str
    boot: str
    """The boot of that machine: pids of another one mean nothing."""
    tokens: list[str]
    """The run's token, last. Those before it and it alone: whether the queue had agreed was not known in the end."""
    shim: int = 0
    shim_started: int = 0
    """When that process started, in clock ticks since the boot: a pid may be used again."""


class Ending(Struct, frozen=True, omit_defaults=True):
    """How the process of a run ended, and what it said that no worker has yet."""

    status: int
    peak_memory: int
    begun: bool
    """Whether it had been given its job."""
    unsent: list[ContextUpdate] = []
    cpu_time: float = 0.0


_about = msgspec.msgpack.Decoder(About)
_ending = msgspec.msgpack.Decoder(Ending)


class KeptRun:
    """The folder of one run, locked by this process."""

    def __init__(self, path: Path, lock: int, about: About) -> None:
        self.path = path
        self._lock: int | None = lock
        self.about = about

    def _at(self, name: str) -> str:
        """A name in the folder: the path of a socket may have a hundred characters only."""
        return f"/proc/self/fd/{self._lock}/{name}"

    def listen(self) -> socket.socket:
        """The socket for its shim."""
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self._at(SOCKET))
        listening.listen()
        return listening

    def connect(self) -> socket.socket:
        """To its shim. If that is gone, the other end is closed already."""
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)
        try:
            link.connect(self._at(SOCKET))
        except OSError:
            link.close()
            link, other = socket.socketpair()
            link.setblocking(False)
            other.close()
        return link

    @property
    def is_held(self) -> bool:
        """Whether the shim's process is still there."""
        about = self.about
        return about.boot == boot_id() and about.shim > 0 and started_ticks(about.shim) == about.shim_started

    def note_shim(self, pid: int) -> None:
        self._write(replace(self.about, shim=pid, shim_started=started_ticks(pid) or 0))

    def expect(self, token: str) -> None:
        """Note a token before the queue is asked for it: this process may be killed before it has the answer."""
        if token not in self.about.tokens:
            self._write(replace(self.about, tokens=[*self.about.tokens, token][-MOST_TOKENS:]))

    def confirm(self, token: str) -> None:
        self._write(replace(self.about, tokens=[token]))

    def _write(self, about: About) -> None:
        self.about = about
        write_whole(self.path, ABOUT, msgspec.msgpack.encode(about))

    def ending(self) -> Ending | None:
        """How it ended; null = nothing says so."""
        with suppress(OSError, msgspec.MsgspecError):
            return _ending.decode(_read(self.path / ENDING, MOST_BYTES))
        return None

    def let_go(self) -> None:
        """Leave it to another worker."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.let_go()


class KeptRuns:
    """The folder of all such runs of this user, and whose of them a worker may have."""

    def __init__(self, home: Path, store: str, tenant: str) -> None:
        """`store`: what all workers of the store call it. Raises `OSError` if there can be no such folder."""
        self._home = home
        self._store = store
        self._tenant = tenant
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
        found = home.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(f"{home} is not a folder of this user alone")

    def make(self, tenant: str, job: str, token: str) -> KeptRun:
        """A folder for a run that begins."""
        path = self._home / f"{job}-{token}"
        path.mkdir(mode=0o700)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may look at it, for a moment
        run = KeptRun(path, lock, About(self._store, tenant, job, os.uname().nodename, boot_id(), [token]))
        try:
            run.confirm(token)
        except BaseException:
            run.remove()
            raise
        return run

    def left(self) -> Iterator[KeptRun]:
        """Runs that this worker may take over: no other has them. What can be of no use to any worker is removed."""
        with suppress(OSError):
            for entry in sorted(os.scandir(self._home), key=lambda one: one.name)[:MOST_LOOKED_AT]:
                if (run := self._taken(Path(entry.path))) is not None:
                    yield run

    def _taken(self, path: Path) -> KeptRun | None:
        """A run, if no other worker has it and it may be ours; then its folder is locked."""
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            about = _about.decode(_read(path / ABOUT, MOST_ABOUT))
        except BlockingIOError:
            os.close(lock)
            return None
        except (OSError, msgspec.MsgspecError):
            if _age(path) > HALF_MADE:
                shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
            return None
        run = KeptRun(path, lock, about)
        if self._is_ours(about):
            return run
        if _age(path) > LONGEST_KEPT and not run.is_held:
            run.remove()
        run.let_go()
        return None

    def _is_ours(self, about: About) -> bool:
        """Of this store, of a tenant that the worker serves, and of this machine, also if that was restarted."""
        here = about.boot == boot_id() or about.node == os.uname().nodename
        return here and about.store == self._store and self._tenant in (EVERY_TENANT, about.tenant)


def write_whole(folder: Path, name: str, data: bytes) -> None:
    """Write a file that appears whole or not at all."""
    new = folder / f"{name}.new"
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as out:
        out.write(data)
    new.replace(folder / name)


def _read(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{path} is too large")
    return data


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime  # noqa: TID251 - of files, whose times are the machine's
    except OSError:
        return 0.0
