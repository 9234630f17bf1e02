"""Notices: from those who have committed something to those who wait for it.

A topic is `KIND/NAME`. Listeners on the same store object are woken directly; those on other store objects and in other
processes by way of a pipe for each kind that they listen to. A notice says that something happened, not what.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from windlass.store import Listener, Take, Wish
from windlass.store.sqlite.pipes import Inbox, Outbox, remove_dead

KINDS = ("work", "end", "order", "house")
"""What is told of. No wish is kept here, so none is ever granted."""

LINGERS = ("work", "order")
"""Kinds that an idle worker leaves and comes back to: the pipe is not taken away at once."""

LINGER = 1.0
"""Seconds until it is."""


class Waiter:
    """One who listens: remembers that a notice came until it is asked."""

    def __init__(self) -> None:
        self._came = asyncio.Event()

    def wake(self) -> None:
        self._came.set()

    async def wait(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._came.wait()
        except TimeoutError:
            return False
        self._came.clear()
        return True

    def hand_over(self, wish: Wish, take: Take) -> None:
        """No wish is kept here."""


class Ear:
    """All that listen to topics of one kind on one loop; used on that loop only."""

    def __init__(self, kind: str, folder: Path | None) -> None:
        self.kind = kind
        self.loop = asyncio.get_running_loop()
        self.waiters: dict[str, set[Waiter]] = defaultdict(set)
        self.leaving: asyncio.TimerHandle | None = None
        """Runs while nobody listens."""
        self.inbox: Inbox | None = None
        if folder is not None:
            with suppress(OSError):  # a folder that we may not write in: whoever waits must look now and then
                self.inbox = Inbox(folder, kind)
                self.loop.add_reader(self.inbox.descriptor, self._read, self.inbox)

    def hear(self, topics: Iterable[str]) -> None:
        for topic in topics:
            for waiter in self.waiters.get(topic, ()):
                waiter.wake()

    def stay(self) -> None:
        if self.leaving is not None:
            self.leaving.cancel()
            self.leaving = None

    def close(self) -> None:
        if self.inbox is not None:
            if not self.loop.is_closed():
                self.loop.remove_reader(self.inbox.descriptor)
            self.inbox.close()
            self.inbox = None

    def _read(self, inbox: Inbox) -> None:
        self.hear(inbox.read())


class Notices:
    """The notices of one store object."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        """Where processes meet; None: there are no others."""
        self._outbox = None if folder is None else Outbox(folder)
        self._ears: tuple[Ear, ...] = ()
        """Replaced as a whole, since the connection's thread reads it."""
        self._change = threading.Lock()
        self._closed = False
        self._looked = False
        """Whether it has looked for pipes that killed processes have left."""

    def close(self) -> None:
        """Nobody will listen any more; who still does, ends by himself."""
        self._closed = True
        for ear in self._ears:
            if ear.leaving is None:
                continue
            try:
                ear.loop.call_soon_threadsafe(self._remove, ear)
            except RuntimeError:  # its loop was closed under it
                self._remove(ear)

    def tell(self, topics: Collection[str]) -> None:
        """Wake whoever listens to these. Called on the connection's thread, after a commit."""
        ears = self._ears
        own = {ear.inbox.name for ear in ears if ear.inbox is not None}
        pipes = [] if self._outbox is None else [name for name in self._outbox.names() if name not in own]
        for kind in KINDS:
            near = [ear for ear in ears if ear.kind == kind]
            far = [name for name in pipes if name.startswith(f"{kind}-")]
            if near or far:
                self._tell(near, far, [topic for topic in topics if topic.startswith(f"{kind}/")])

    def _tell(self, near: list[Ear], far: list[str], topics: list[str]) -> None:
        if not topics:
            return
        for ear in near:
            try:
                ear.loop.call_soon_threadsafe(ear.hear, topics)
            except RuntimeError:  # its loop was closed under it
                self._remove(ear)
        if self._outbox is not None:
            self._outbox.send(far, topics)

    @asynccontextmanager
    async def listen(self, topics: Sequence[str]) -> AsyncIterator[Listener]:
        waiter = Waiter()
        by_kind: dict[str, list[str]] = defaultdict(list)
        for topic in topics:
            by_kind[topic.partition("/")[0]].append(topic)
        with ExitStack() as stack:
            for kind in by_kind.keys() & set(KINDS):
                stack.enter_context(self._hearing(kind, by_kind[kind], waiter))
            yield waiter

    @contextmanager
    def _hearing(self, kind: str, topics: list[str], waiter: Waiter) -> Iterator[None]:
        """An ear for a kind, made for the first who listens and closed after the last."""
        ear = self._ear(kind)
        ear.stay()
        for topic in topics:
            ear.waiters[topic].add(waiter)
        try:
            yield
        finally:
            for topic in topics:
                ear.waiters[topic].discard(waiter)
                if not ear.waiters[topic]:
                    del ear.waiters[topic]
            if not ear.waiters:
                self._leave(ear)

    def _leave(self, ear: Ear) -> None:
        if self._closed or ear.kind not in LINGERS:
            self._remove(ear)
        else:
            ear.leaving = ear.loop.call_later(LINGER, self._remove, ear)

    def _ear(self, kind: str) -> Ear:
        loop = asyncio.get_running_loop()
        for ear in self._ears:
            if ear.kind == kind and ear.loop is loop:
                return ear
        if self._folder is not None and not self._looked:
            self._looked = True
            remove_dead(self._folder)
        ear = Ear(kind, self._folder)
        with self._change:
            self._ears = (*self._ears, ear)
        return ear

    def _remove(self, ear: Ear) -> None:
        with self._change:
            self._ears = tuple(other for other in self._ears if other is not ear)
        ear.close()
