"""Wake-ups and events between the processes on one file, by named pipes in a folder beside it.

Each process that listens creates a pipe; after a commit, the writer writes lines into every pipe of that kind. A
wake-up (`KIND/NAME`) says that something happened, not what; an event is a line for subscribers of the feed. Listeners
on the same store object need no pipe. Nothing here is needed for a job to be safe: a full pipe drops what does not fit,
and the next writer removes a pipe without a reader.
"""

import asyncio
import errno
import fcntl
import os
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from windlass import system
from windlass.store.data import FEED, GAP, WOKEN
from windlass.store.encoding import PARENTS
from windlass.store.protocol import Listener

# --- Pipes --------------------------------------------------------------------------------------------

PIPE_BUF = 4096
"""Bytes that a pipe takes whole, even from several writers at a time."""

PIPE_SIZE = 1 << 16
"""Bytes that a pipe holds."""

MTIME_SETTLED = 50_000_000
"""Nanoseconds after which the mtime of a folder is sure to show another change: the kernel's clock for it is coarse."""


ABANDONED_AFTER = 60_000_000_000
"""Nanoseconds after which a pipe that was created but not renamed never will be: its process was killed."""


def remove_dead_pipes(folder: Path) -> None:
    """Remove the pipes of killed processes. A writer does so too, but only with those that it writes to."""
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                if path.name.startswith(".") and system.nanoseconds() - path.stat().st_mtime_ns < ABANDONED_AFTER:
                    continue
                if _is_dead(path):
                    path.unlink()


def _is_dead(path: Path) -> bool:
    """Whether a pipe has no reader."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as fault:
        return fault.errno == errno.ENXIO
    return False


class PipeReader:
    """A pipe of one kind that this process reads from."""

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        # Unique among processes that share the folder, even in different PID namespaces.
        self.name = f"{kind}-{os.getpid()}-{system.nanoseconds()}"
        self._path = folder / self.name
        self._rest = b""
        hidden = folder / f".{self.name}"
        os.mkfifo(hidden, mode=0o600)
        # Open for both, so that it never reads as ended; renamed when open, so that no writer takes it for dead.
        self.descriptor = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        hidden.rename(self._path)

    def widen(self, size: int) -> None:
        """Let so many bytes wait, if the system allows it."""
        with suppress(OSError):
            fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, size)

    def read(self) -> list[str]:
        """The lines that have arrived."""
        with suppress(BlockingIOError):
            *lines, self._rest = (self._rest + os.read(self.descriptor, PIPE_SIZE)).split(b"\n")
            return [line.decode(errors="replace") for line in lines]
        return []

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self.descriptor)


class PipeWriters:
    """The pipes of other processes. Reads the folder only when its mtime has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = str(folder)
        self._listed_at = 0
        self._names: list[str] = []

    def names(self) -> list[str]:
        """The names of the pipes; those of a kind begin with it and a dash."""
        try:
            changed_at = os.stat(self._path).st_mtime_ns  # noqa: PTH116 - after every commit, and twice as fast
            if changed_at != self._listed_at:
                self._names = [pipe.name for pipe in self._folder.iterdir()]
                # Compared with the file system's time, so it must be the machine's clock.
                self._listed_at = changed_at if system.nanoseconds() - changed_at > MTIME_SETTLED else 0
        except OSError:  # no process has ever listened, or we may not read it
            self._names = []
        return self._names

    def send(self, names: Iterable[str], lines: Iterable[str]) -> list[str]:
        """Write lines into pipes, as far as they have room; returns the names of those that did not take all."""
        parts = list(_chunks(lines))
        short = []
        for name in names:
            try:
                self._write(self._folder / name, parts)
            except OSError:  # it is full, was just removed, or we may not write to it
                short.append(name)
        return short

    def _write(self, path: Path, parts: list[bytes]) -> None:
        try:
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as fault:
            if fault.errno == errno.ENXIO:  # it has no reader any more
                path.unlink()
            return
        try:
            for part in parts:
                os.write(pipe, part)
        finally:
            os.close(pipe)


def _chunks(lines: Iterable[str]) -> Iterator[bytes]:
    """Lines, joined into blocks that a pipe takes whole."""
    part = b""
    for line in lines:
        encoded = line.encode() + b"\n"
        if len(part) + len(encoded) > PIPE_BUF:
            yield part
            part = b""
        part += encoded
    yield part


# --- Wake-ups -----------------------------------------------------------------------------------------

KINDS = ("work", "end", "order", PARENTS.partition("/")[0])
"""Kinds of wake-ups. A file parks no claims, so none is ever granted."""

IDLE_KINDS = ("work", "order")
"""Kinds that an idle worker leaves and comes back to: their pipe stays for a while."""

IDLE_UNSUBSCRIBE = 1.0
"""Seconds until such a pipe is removed."""


class WakeupListener:
    """One listener: remembers a wake-up until it is waited for."""

    def __init__(self) -> None:
        self._came = asyncio.Event()

    def wake(self) -> None:
        self._came.set()

    async def wait(self, seconds: float) -> list[str]:
        try:
            async with asyncio.timeout(seconds):
                await self._came.wait()
        except TimeoutError:
            return []
        self._came.clear()
        return [WOKEN]


class WakeupReceiver:
    """All listeners to topics of one kind on one event loop; used on that loop only."""

    def __init__(self, kind: str, folder: Path | None) -> None:
        self.kind = kind
        self.loop = asyncio.get_running_loop()
        self.listeners: dict[str, set[WakeupListener]] = defaultdict(set)
        self.removal: asyncio.TimerHandle | None = None
        """Scheduled while there is no listener."""
        self.pipe: PipeReader | None = None
        if folder is not None:
            with suppress(OSError):  # a folder that we may not write to: listeners must poll
                self.pipe = PipeReader(folder, kind)
                self.loop.add_reader(self.pipe.descriptor, self._read, self.pipe)

    def wake(self, topics: Iterable[str]) -> None:
        for topic in topics:
            for listener in self.listeners.get(topic, ()):
                listener.wake()

    def cancel_removal(self) -> None:
        if self.removal is not None:
            self.removal.cancel()
            self.removal = None

    def close(self) -> None:
        if self.pipe is not None:
            if not self.loop.is_closed():
                self.loop.remove_reader(self.pipe.descriptor)
            self.pipe.close()
            self.pipe = None

    def _read(self, pipe: PipeReader) -> None:
        self.wake(pipe.read())


class Wakeups:
    """The wake-ups of one store object."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        """Of the pipes; None = there are no other processes."""
        self._writers = None if folder is None else PipeWriters(folder)
        self._receivers: tuple[WakeupReceiver, ...] = ()
        """Replaced as a whole: the thread that writes reads it."""
        self._change = threading.Lock()
        self._closed = False
        self._cleaned = False
        """Whether the pipes of killed processes were removed."""

    def close(self) -> None:
        """Remove the pipes that wait for listeners to come back; those in use go with their listeners."""
        self._closed = True
        for receiver in self._receivers:
            if receiver.removal is None:
                continue
            try:
                receiver.loop.call_soon_threadsafe(self._remove, receiver)
            except RuntimeError:  # its event loop is closed
                self._remove(receiver)

    def send(self, topics: Collection[str]) -> None:
        """Wake the listeners to topics. Called after a commit, by the thread that wrote."""
        receivers = self._receivers
        own = {receiver.pipe.name for receiver in receivers if receiver.pipe is not None}
        pipes = [] if self._writers is None else [name for name in self._writers.names() if name not in own]
        for kind in KINDS if receivers or pipes else ():
            near = [receiver for receiver in receivers if receiver.kind == kind]
            far = [name for name in pipes if name.startswith(f"{kind}-")]
            if near or far:
                self._send(near, far, [topic for topic in topics if topic.startswith(f"{kind}/")])

    def _send(self, near: list[WakeupReceiver], far: list[str], topics: list[str]) -> None:
        if not topics:
            return
        for receiver in near:
            try:
                receiver.loop.call_soon_threadsafe(receiver.wake, topics)
            except RuntimeError:  # its event loop is closed
                self._remove(receiver)
        if self._writers is not None:
            self._writers.send(far, topics)

    @asynccontextmanager
    async def listen(self, topics: Sequence[str]) -> AsyncIterator[WakeupListener]:
        listener = WakeupListener()
        by_kind: dict[str, list[str]] = defaultdict(list)
        for topic in topics:
            by_kind[topic.partition("/")[0]].append(topic)
        with ExitStack() as stack:
            for kind in by_kind.keys() & set(KINDS):
                stack.enter_context(self._listening(kind, by_kind[kind], listener))
            yield listener

    @contextmanager
    def _listening(self, kind: str, topics: list[str], listener: WakeupListener) -> Iterator[None]:
        """Listen to topics of a kind: its receiver is opened for the first listener and closed after the last."""
        receiver = self._receiver(kind)
        receiver.cancel_removal()
        for topic in topics:
            receiver.listeners[topic].add(listener)
        try:
            yield
        finally:
            for topic in topics:
                receiver.listeners[topic].discard(listener)
                if not receiver.listeners[topic]:
                    del receiver.listeners[topic]
            if not receiver.listeners:
                self._left(receiver)

    def _left(self, receiver: WakeupReceiver) -> None:
        if self._closed or receiver.kind not in IDLE_KINDS:
            self._remove(receiver)
        else:
            receiver.removal = receiver.loop.call_later(IDLE_UNSUBSCRIBE, self._remove, receiver)

    def _receiver(self, kind: str) -> WakeupReceiver:
        loop = asyncio.get_running_loop()
        for receiver in self._receivers:
            if receiver.kind == kind and receiver.loop is loop:
                return receiver
        if self._folder is not None and not self._cleaned:
            self._cleaned = True
            remove_dead_pipes(self._folder)
        receiver = WakeupReceiver(kind, self._folder)
        with self._change:
            self._receivers = (*self._receivers, receiver)
        return receiver

    def _remove(self, receiver: WakeupReceiver) -> None:
        with self._change:
            self._receivers = tuple(other for other in self._receivers if other is not receiver)
        receiver.close()


# --- Events -------------------------------------------------------------------------------------------
#
# A pipe of this kind means that there is a subscriber. One that is full gets no more lines, then a `GAP` when it has
# room again.

SUBSCRIBER_CHECK = 0.1
"""Seconds between two checks for subscribers in other processes."""

FEED_PIPE_SIZE = 1 << 20
MOST_LINES_WAITING = 50_000
"""Bytes in the pipe, and lines taken from it, that wait for a subscriber."""


class Subscriber:
    """One subscriber of the feed."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._lines: deque[str] = deque()
        self._came = asyncio.Event()
        self.pipe: PipeReader | None = None

    def open(self, folder: Path) -> None:
        self.pipe = pipe = PipeReader(folder, FEED)
        pipe.widen(FEED_PIPE_SIZE)
        self.loop.add_reader(pipe.descriptor, lambda: self.add(pipe.read()))

    def add(self, lines: Iterable[str]) -> None:
        self._lines.extend(lines)
        if len(self._lines) > MOST_LINES_WAITING:
            self._lines.clear()
            self._lines.append(GAP)
        self._came.set()

    async def wait(self, seconds: float) -> list[str]:
        if not self._lines:
            self._came.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._came.wait()
        heard = list(self._lines)
        self._lines.clear()
        return heard

    def close(self) -> None:
        if self.pipe is not None:
            self.loop.remove_reader(self.pipe.descriptor)
            self.pipe.close()


class EventBus:
    """The wake-ups and events of one store object."""

    def __init__(self, folder: Path | None) -> None:
        self._wakeups = Wakeups(folder)
        self.wake, self.close = self._wakeups.send, self._wakeups.close
        self._folder = folder
        """Of the pipes; None = there are no other processes."""
        self._writers = None if folder is None else PipeWriters(folder)
        self._near: tuple[Subscriber, ...] = ()
        self._far: list[str] = []
        self._short: set[str] = set()
        """Pipes that did not take all lines of the last events."""
        self._next_check = 0.0

    @property
    def quiet(self) -> bool:
        return not (self._near or self._far) and (self._writers is None or system.monotonic() < self._next_check)

    async def publish(self, lines: Sequence[str]) -> None:
        for subscriber in self._near:
            with suppress(RuntimeError):  # its event loop is closed
                subscriber.loop.call_soon_threadsafe(subscriber.add, lines)
        if self._writers is None:
            return
        self._next_check = system.monotonic() + SUBSCRIBER_CHECK
        own = {subscriber.pipe.name for subscriber in self._near if subscriber.pipe is not None}
        self._far = [name for name in self._writers.names() if name.startswith(f"{FEED}-") and name not in own]
        self._short &= set(self._far)
        complete = [name for name in self._far if name not in self._short]
        short = self._writers.send(complete, lines) if complete else []
        self._short = {*short, *self._writers.send(self._short, [GAP, *lines])}

    def listen(self, topics: Sequence[str]) -> AbstractAsyncContextManager[Listener]:
        return self._subscribed() if FEED in topics else self._wakeups.listen(topics)

    @asynccontextmanager
    async def _subscribed(self) -> AsyncIterator[Subscriber]:
        subscriber = Subscriber()
        if self._folder is not None:
            with suppress(OSError):  # a folder that we may not write to: only this process's events arrive
                subscriber.open(self._folder)
        self._near = (*self._near, subscriber)
        try:
            if self._folder is not None:
                await asyncio.sleep(SUBSCRIBER_CHECK)
            yield subscriber
        finally:
            self._near = tuple(other for other in self._near if other is not subscriber)
            subscriber.close()
