"""One connection on one thread, and the way there and back.

Coroutines hand in functions; the thread takes all that are waiting and runs them as a group: those that only read in
one snapshot, those that write in one transaction, so that they share the wait for the disk. Nobody gets an answer
before the commit; when that must be on disk is for `disk` to see to. Knows threads, loops and transactions; knows
nothing of jobs.
"""

import asyncio
import os
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import apsw

from windlass.model.errors import Damaged, Unavailable
from windlass.model.ports import Clock
from windlass.store.micros import to_micros
from windlass.store.sqlite.disk import Disk, Lasts
from windlass.store.sqlite.lanes import Lanes
from windlass.store.sqlite.opening import full, translated
from windlass.store.sqlite.regulation import Regulation
from windlass.store.sqlite.reserve import Reserve
from windlass.store.sqlite.settling import settle
from windlass.store.sqlite.transaction import Transaction

T = TypeVar("T")

MOST_TOGETHER = 256
"""Calls in one group: bounds how long a transaction holds the file."""

OWN_FAULTS = (apsw.FullError, apsw.TooBigError, apsw.ConstraintError)
"""What SQLite says of one call's data; its other complaints are about the file and concern everybody."""


LEAST_UNUSED = 1 << 20
"""Bytes inside the file that deleted jobs have left, for one new job on a disk that is full."""

Identity = tuple[int, int]


class Call:
    """A function on its way to the thread, and the place where its answer is awaited."""

    __slots__ = ("future", "lasts", "loop", "work")

    def __init__(self, work: Callable[[Transaction], Any], lasts: Lasts | None = None) -> None:
        self.work = work
        self.lasts = lasts
        """If it writes."""
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()


def last_of_all(_: Transaction) -> None:
    """Asks the thread to stop; handed in behind everything else."""


class Answer(NamedTuple):
    """What becomes of a call."""

    call: Call
    value: Any = None
    fault: Exception | None = None


class Connection:
    """Runs functions inside transactions of one file."""

    def __init__(self, sql: apsw.Connection, clock: Clock, tell: Callable[[set[str]], None]) -> None:
        self._sql = sql
        """The thread's alone."""
        self.path = sql.filename
        """Empty: it is in memory."""
        self._file, self._log = Path(self.path), Path(f"{self.path}-wal")
        self._disk = Disk(sql)
        self._reserve = Reserve(self.path)
        self._in_need = False
        """Whether the disk was full lately."""
        self._identity = self._identify()
        self._clock = clock
        self._tell = tell
        """Called on the thread after each commit that has something to tell."""
        self._topics: set[str] = set()
        """Committed, and not told yet."""
        self._lanes = Lanes(sql)
        self._regulation = Regulation(sql, self._lanes.forget_names)
        self._process = os.getpid()
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._door = threading.Lock()
        """Held while a call goes in, so that none can slip in behind the last."""
        self._closed = False
        # A daemon: a program that ends without closing must not hang on it, and the file does not mind.
        self._thread = threading.Thread(target=self._live, name="windlass-sqlite", daemon=True)
        self._thread.start()

    def read(self, work: Callable[[Transaction], T]) -> Awaitable[T]:
        """Run a function that only reads, in a snapshot."""
        return self._submit(Call(work))

    def write(self, work: Callable[[Transaction], T], lasts: Lasts = Lasts.WHEN_SEEN) -> Awaitable[T]:
        """Run a function that may write; if it raises, nothing it wrote stays."""
        return self._submit(Call(work, lasts))

    def check_room(self, tx: Transaction, size: int = 0) -> None:
        """Raise if the disk has no room for so much that is new. Called by a function that may write."""
        self._in_need = not self._reserve.is_there()
        if self._in_need and tx.unused() < size * 2 + LEAST_UNUSED:
            raise full(self.path)

    async def close(self) -> None:
        """Finish what was handed in, then let go of the file."""
        if self._closed or os.getpid() != self._process:
            return
        last = Call(last_of_all)
        self._submit(last)
        await last.future
        self._thread.join()

    def _submit(self, call: Call) -> asyncio.Future[Any]:
        if os.getpid() != self._process:
            raise Unavailable("this store was opened before its process was forked: open one of its own")
        with self._door:
            if self._closed:
                raise Unavailable("the store is closed")
            self._closed = call.work is last_of_all
            self._calls.put(call)
        return call.future

    # --- From here on: the thread -----------------------------------------------------------------

    def _live(self) -> None:
        last = None
        try:
            while last is None:
                last = self._serve()
        finally:
            self._sql.close(True)
            self._disk.close()
            self._abandon()
        _hand_back([Answer(last)])

    def _serve(self) -> Call | None:
        """Answer what is waiting; the call to stop, if that came."""
        calls, last = self._gather()
        if reads := [call for call in calls if call.lasts is None]:
            _hand_back(self._checked(self._run("BEGIN", reads)))
        if writes := [call for call in calls if call.lasts is not None]:
            self._write(writes)
        return last

    def _write(self, calls: list[Call]) -> None:
        lasts = max(call.lasts for call in calls if call.lasts is not None)
        try:
            self._disk.prepare(lasts)
            answers = self._run("BEGIN IMMEDIATE", calls)
            # Others are told first: whoever is answered wakes up, and wants the interpreter for himself.
            self._tell_all()
            if lasts is Lasts.WHEN_ANSWERED:
                self._disk.sync()
        except (apsw.Error, OSError) as fault:
            answers = [Answer(call, fault=translated(fault, self.path)) for call in calls]
        _hand_back(self._checked(answers))
        self._write_back(self._reserve.size // 2)

    def _write_back(self, most_grown: int) -> None:
        with suppress(OSError, apsw.Error):  # the next commit tries again
            self._disk.write_back(most_grown, soon=self._in_need)

    def _checked(self, answers: list[Answer]) -> list[Answer]:
        """The answers, unless they are about a file that is no longer the one at its path."""
        if self._identify() == self._identity:
            return answers
        gone = f"{self.path} was deleted or replaced while it was open: restart whatever uses it"
        return [Answer(answer.call, fault=Damaged(gone)) for answer in answers]

    def _identify(self) -> tuple[Identity, Identity] | None:
        """Which files are at the path of the store and of its log; null = at least one is missing."""
        if not self.path:
            return None
        try:
            file, log = self._file.stat(), self._log.stat()
        except OSError:
            return None
        return (file.st_dev, file.st_ino), (log.st_dev, log.st_ino)

    def _tell_all(self) -> None:
        if self._topics:
            with suppress(Exception):  # a notice may be lost, the thread may not
                self._tell(self._topics)
            self._topics = set()

    def _gather(self) -> tuple[list[Call], Call | None]:
        calls = []
        call = self._calls.get()
        while call.work is not last_of_all:
            if not call.future.cancelled():
                calls.append(call)
            if len(calls) == MOST_TOGETHER or self._calls.empty():
                return calls, None
            call = self._calls.get()
        return calls, call

    def _run(self, begin: str, calls: list[Call], *, last: bool = False) -> list[Answer]:
        """Run calls together; if one of them is at fault, each on its own. `last`: there is no room to be made."""
        try:
            return self._run_together(begin, calls)
        except Exception as fault:  # noqa: BLE001 - goes to the callers
            self._roll_back()
            if isinstance(fault, apsw.IOError):
                self._disk.doubt()
            if isinstance(fault, apsw.FullError) and not last:
                self._in_need = True
                self._reserve.give_up()
                self._write_back(0)
                self._reserve.give_to_log()
                return [answer for call in calls for answer in self._run(begin, [call], last=True)]
            if len(calls) > 1 and (isinstance(fault, OWN_FAULTS) or not isinstance(fault, apsw.Error)):
                return [answer for call in calls for answer in self._run(begin, [call])]
            return [Answer(call, fault=translated(fault, self.path)) for call in calls]

    def _run_together(self, begin: str, calls: list[Call]) -> list[Answer]:
        answers = []
        topics: set[str] = set()
        self._sql.execute(begin)
        self._regulation.doubt()
        for call in calls:
            tx = Transaction(self._sql, self._lanes, self._regulation, to_micros(self._clock.now()))
            answers.append(Answer(call, call.work(tx)))
            settle(tx)
            topics |= tx.topics
        self._sql.execute("COMMIT")
        self._topics |= topics
        return answers

    def _roll_back(self) -> None:
        self._lanes.forget()  # they may have been made just now
        self._regulation.forget()
        if self._sql.in_transaction:  # SQLite ends it by itself after the worst faults
            with suppress(apsw.Error):  # then the next to begin hears of it
                self._sql.execute("ROLLBACK")

    def _abandon(self) -> None:
        """Nobody is to wait for a thread that is gone; after a proper stop there is nobody."""
        with self._door:
            self._closed = True
            while not self._calls.empty():
                _hand_back([Answer(self._calls.get(), fault=Unavailable("the store is closed"))])


def _hand_back(answers: list[Answer]) -> None:
    """Give answers to those who wait, with one call per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = defaultdict(list)
    for answer in answers:
        by_loop[answer.call.loop].append(answer)
    for loop, own in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, own)
        except RuntimeError:  # the loop is closed: nobody waits
            continue


def _resolve(answers: list[Answer]) -> None:
    for call, value, fault in answers:
        if call.future.done():  # whoever waited was cancelled
            continue
        if fault is None:
            call.future.set_result(value)
        else:
            call.future.set_exception(fault)
