"""From a coroutine to a transaction of the file, and back.

`Session` runs a group of calls: those that only read in one snapshot, those that write in one transaction, so that
they share one sync. No call is answered before its commit, nor before its write is as durable as it asked for.
`Connection` is a thread with a session; coroutines of any event loop hand it their calls. `InlineConnection` runs a
call in the thread of its caller, who has no event loop. Knows threads, event loops and transactions; knows nothing of
jobs.
"""

import asyncio
import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

import apsw

from windlass.model.errors import Unavailable
from windlass.model.ports import Clock
from windlass.store.sqlite.file import Durability, Identity, Log, Reserve, connect, to_windlass_error
from windlass.store.sqlite.flow import settle
from windlass.store.sqlite.transaction import LaneCache, RulesCache, StoreClock, Transaction

T = TypeVar("T")

LARGEST_GROUP = 256
"""Calls in one group: bounds how long a transaction holds the file."""

READ, WRITE = "BEGIN", "BEGIN IMMEDIATE"
"""How a transaction begins."""

FAULTS_OF_ONE_CALL = (apsw.FullError, apsw.TooBigError, apsw.ConstraintError)
"""SQLite's errors about the data of one call; its other errors are about the file and concern the whole group."""


class Call:
    """A function to be run in a transaction, and its answer."""

    __slots__ = ("durability", "fault", "value", "work")

    def __init__(self, work: Callable[[Transaction], Any], durability: Durability | None) -> None:
        self.work = work
        self.durability = durability
        """Null = it only reads."""
        self.value: Any = None
        self.fault: Exception | None = None


class Session:
    """One open file and what is cached of it. Used by one thread at a time."""

    def __init__(self, sql: apsw.Connection, clock: Clock, wake: Callable[[set[str]], None]) -> None:
        self._sql = sql
        self._path = sql.filename
        """Empty = it is in memory."""
        self._clock = StoreClock(sql, clock)
        self._wake = wake
        """Called after each commit that has topics to announce."""
        self._log = Log(sql)
        self._reserve = Reserve(self._path)
        self._identity = Identity(self._path)
        self._lanes = LaneCache(sql)
        self._rules = RulesCache(sql, self._lanes.clear_names)
        self._topics: set[str] = set()
        """Committed, and not announced yet."""

    def read(self, calls: Sequence[Call]) -> None:
        """Run calls that only read; then each has its value or its fault."""
        self._run(READ, calls)
        self._check_identity(calls)

    def write(self, calls: Sequence[Call]) -> None:
        """Run calls that may write; then each has its value or its fault, and is as durable as it must be."""
        durability = max(call.durability for call in calls if call.durability is not None)
        try:
            self._log.prepare(durability)
            self._run(WRITE, calls)
            # Before the sync, and before the callers wake up and want the interpreter.
            self._announce()
            if durability is Durability.BEFORE_ANSWER:
                self._log.sync()
        except (apsw.Error, OSError) as fault:
            _fail(calls, fault, self._path)
        self._check_identity(calls)

    def checkpoint(self) -> None:
        """Write the log back into the file if it is time; to be called when the callers have their answers."""
        if self._log.has_changed():
            self._reserve.look()
        with suppress(OSError, apsw.Error):  # the next commit tries again
            if self._log.is_long(0 if self._reserve.in_use else self._reserve.size // 2, soon=self._reserve.in_use):
                self._write_back()

    def roll_back(self) -> None:
        """End a transaction that has failed; harmless without one."""
        self._lanes.clear()  # they may have been created in it
        self._rules.clear()
        if self._sql.in_transaction:  # SQLite ends it by itself after the worst faults
            with suppress(apsw.Error):  # then the next transaction reports it
                self._sql.execute("ROLLBACK")

    def close(self) -> None:
        self._sql.close(True)
        self._log.close()

    def _run(self, begin: str, calls: Sequence[Call], *, last_try: bool = False) -> None:
        """Run calls together; if one of them is at fault, each on its own. `last_try`: no more room can be made."""
        try:
            self._run_together(begin, calls)
        except Exception as fault:  # noqa: BLE001 - goes to the callers
            self.roll_back()
            if isinstance(fault, apsw.IOError):
                self._log.distrust()
            if isinstance(fault, apsw.FullError) and not last_try:
                self._reserve.release()
                with suppress(OSError, apsw.Error):  # the next try finds out
                    self._write_back()
                self._run_each(begin, calls, last_try=len(calls) == 1)
            elif len(calls) > 1 and (isinstance(fault, FAULTS_OF_ONE_CALL) or not isinstance(fault, apsw.Error)):
                self._run_each(begin, calls, last_try=False)
            else:
                _fail(calls, fault, self._path)

    def _run_each(self, begin: str, calls: Sequence[Call], *, last_try: bool) -> None:
        for call in calls:
            self._run(begin, [call], last_try=last_try)

    def _run_together(self, begin: str, calls: Sequence[Call]) -> None:
        topics: set[str] = set()
        self._sql.execute(begin)
        if begin is WRITE and not self._reserve.in_use:
            self._log.lengthen()
        self._rules.expire()
        now = self._clock.begin(may_write=begin is WRITE and not self._reserve.in_use)
        for call in calls:
            tx = Transaction(self._sql, self._lanes, self._rules, self._reserve, now)
            call.value = call.work(tx)
            settle(tx)
            topics |= tx.topics
        self._sql.execute("COMMIT")
        self._topics |= topics

    def _announce(self) -> None:
        if self._topics:
            with suppress(Exception):  # a wake-up may be lost, the session may not
                self._wake(self._topics)
            self._topics = set()

    def _check_identity(self, calls: Sequence[Call]) -> None:
        try:
            self._identity.check()
        except Unavailable as fault:
            _fail(calls, fault, self._path)

    def _write_back(self) -> None:
        """Write the log into the file. Only when all of it is there, the log starts again from its beginning."""
        if not self._reserve.in_use or self._reserve.give(self._log.growth()):
            self._log.checkpoint()


def _fail(calls: Sequence[Call], fault: Exception, path: str) -> None:
    for call in calls:
        call.fault = to_windlass_error(fault, path)


class QueuedCall(Call):
    """A call from an event loop."""

    __slots__ = ("future", "loop")

    def __init__(self, work: Callable[[Transaction], Any], durability: Durability | None = None) -> None:
        super().__init__(work, durability)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()


def stop(_: Transaction) -> None:
    """Asks the thread to stop; handed in behind everything else."""


class Connection:
    """A thread that runs the calls of event loops in one session."""

    def __init__(self, sql: apsw.Connection, clock: Clock, wake: Callable[[set[str]], None]) -> None:
        self.path = sql.filename
        """Empty = it is in memory."""
        self._session = Session(sql, clock, wake)
        """Used by the thread alone."""
        self._process = os.getpid()
        self._calls: SimpleQueue[QueuedCall] = SimpleQueue()
        self._door = threading.Lock()
        """Locked while a call is queued, so that none is queued behind the last."""
        self._closed = False
        # A daemon: a program that ends without closing must not hang on it, and the file survives that.
        self._thread = threading.Thread(target=self._live, name="windlass-sqlite", daemon=True)
        self._thread.start()

    def read(self, work: Callable[[Transaction], T]) -> Awaitable[T]:
        """Run a function that only reads, in a snapshot."""
        return self._submit(QueuedCall(work))

    def write(
        self, work: Callable[[Transaction], T], durability: Durability = Durability.BEFORE_VISIBLE
    ) -> Awaitable[T]:
        """Run a function that may write; if it raises, nothing that it wrote stays."""
        return self._submit(QueuedCall(work, durability))

    async def close(self) -> None:
        """Finish the calls that were handed in, then release the file."""
        if self._closed or os.getpid() != self._process:
            return
        last = QueuedCall(stop)
        self._submit(last)
        await last.future
        self._thread.join()

    def _submit(self, call: QueuedCall) -> asyncio.Future[Any]:
        if os.getpid() != self._process:
            raise Unavailable("this store was opened before its process was forked: open another one in the child")
        with self._door:
            if self._closed:
                raise Unavailable("the store is closed")
            self._closed = call.work is stop
            self._calls.put(call)
        return call.future

    # --- From here on: the thread -----------------------------------------------------------------

    def _live(self) -> None:
        last = None
        try:
            while last is None:
                last = self._serve()
        finally:
            self._session.close()
            self._refuse_rest()
        _answer([last])

    def _serve(self) -> QueuedCall | None:
        """Answer the calls that wait; the call to stop, if it came."""
        calls, last = self._gather()
        if reads := [call for call in calls if call.durability is None]:
            self._session.read(reads)
            _answer(reads)
        if writes := [call for call in calls if call.durability is not None]:
            self._session.write(writes)
            _answer(writes)
            self._session.checkpoint()
        return last

    def _gather(self) -> tuple[list[QueuedCall], QueuedCall | None]:
        calls = []
        call = self._calls.get()
        while call.work is not stop:
            if not call.future.cancelled():
                calls.append(call)
            if len(calls) == LARGEST_GROUP or self._calls.empty():
                return calls, None
            call = self._calls.get()
        return calls, call

    def _refuse_rest(self) -> None:
        """After a fault of the thread itself no caller may wait for it; after a proper stop there is none."""
        with self._door:
            self._closed = True
            while not self._calls.empty():
                call = self._calls.get()
                call.fault = Unavailable("the store is closed")
                _answer([call])


def _answer(calls: Sequence[QueuedCall]) -> None:
    """Give callers their answers, with one call per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[QueuedCall]] = defaultdict(list)
    for call in calls:
        by_loop[call.loop].append(call)
    for loop, own in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: no caller waits
            loop.call_soon_threadsafe(_resolve, own)


def _resolve(calls: Sequence[QueuedCall]) -> None:
    for call in calls:
        if call.future.done():  # the caller was cancelled
            continue
        if call.fault is None:
            call.future.set_result(call.value)
        else:
            call.future.set_exception(call.fault)


class InlineCall(Call):
    """A call of a thread without an event loop."""

    __slots__ = ("leads", "turn")

    def __init__(self, work: Callable[[Transaction], Any], durability: Durability | None = None) -> None:
        super().__init__(work, durability)
        self.turn = threading.Lock()
        """Released when it was run, or when its thread may use the session."""
        self.leads = False
        """Whether its thread uses the session; else another thread runs it."""


def alone(_: Transaction) -> None:
    """Marks a call that wants the session for itself."""


class InlineConnection:
    """Runs calls in the threads of callers without an event loop.

    `read` and `write` are coroutines that never pause, so everything above them can be run to its end without a loop.
    Of several threads one at a time uses the session: it runs its own call together with those that wait, which share
    its sync, and then leaves the session to the next that came.

    The file is closed before this process forks, for a child could never use it; the next call opens it again, in
    either process.
    """

    def __init__(self, path: str, clock: Clock, wake: Callable[[set[str]], None]) -> None:
        self.path = path
        self._clock = clock
        self._wake = wake
        self._door = threading.Lock()
        """Locked for a moment, to change the two below."""
        self._waiting: deque[InlineCall] = deque()
        self._in_use = False
        """Whether a thread uses the session."""
        self._owner: int | None = None
        """That thread, while it runs calls."""
        self._process = os.getpid()
        self._forking = False
        self._closed = False
        self._session: Session | None = Session(connect(path), clock, wake)
        """Null = it was closed for a fork, or for good."""
        self._inherited: list[Session] = []
        """Open when this process was forked in the middle of a call: closed here, they could disturb the parent."""
        _close_before_forks(self)

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run a function that only reads, in a snapshot."""
        value: T = self._run(InlineCall(work))
        return value

    async def write(self, work: Callable[[Transaction], T], durability: Durability = Durability.BEFORE_VISIBLE) -> T:
        """Run a function that may write; if it raises, nothing that it wrote stays."""
        return self.write_now(work, durability)

    def write_now(self, work: Callable[[Transaction], T], durability: Durability) -> T:
        """The same without a coroutine."""
        value: T = self._run(InlineCall(work, durability))
        return value

    async def close(self) -> None:
        """Release the file; calls that come later are refused."""
        self._enter(InlineCall(alone))
        self._closed = True
        self._close_session()
        self._leave()

    def _run(self, call: InlineCall) -> Any:
        try:
            self._enter(call)
            if call.leads:
                self._owner = threading.get_ident()
                self._serve([call])
        finally:
            if call.leads:
                self._owner = None
                self._leave()
        if call.fault is not None:
            raise call.fault
        return call.value

    def _enter(self, call: InlineCall) -> None:
        """Wait until a call leads, or was answered by another thread."""
        if os.getpid() != self._process:  # forked by a library that does not run Python's hooks
            self.after_fork_in_child()
        if self._owner == threading.get_ident():
            raise Unavailable("a signal handler cannot use the store while it interrupts a call: use it after the call")
        with self._door:
            if not self._in_use:
                self._in_use = call.leads = True
                return
            call.turn.acquire()
            self._waiting.append(call)
        try:
            call.turn.acquire()  # until another thread releases it
        except BaseException:  # interrupted while it waited: no other thread shall run it
            with self._door, suppress(ValueError):
                self._waiting.remove(call)
            raise

    def _leave(self) -> None:
        """Let the next thread use the session."""
        with self._door:
            following = self._waiting.popleft() if self._waiting else None
            if following is None:
                self._in_use = False
            else:
                following.leads = True
        if following is not None:
            following.turn.release()

    def _serve(self, calls: list[InlineCall]) -> None:
        """Run a call, and those that wait, which are added to the list."""
        try:
            with self._door:
                while self._waiting and len(calls) < LARGEST_GROUP and self._waiting[0].work is not alone:
                    calls.append(self._waiting.popleft())
            session = self._opened()
            if reads := [call for call in calls if call.durability is None]:
                session.read(reads)
            if writes := [call for call in calls if call.durability is not None]:
                session.write(writes)
                session.checkpoint()
        except Exception as fault:  # noqa: BLE001 - goes to the callers
            _fail(calls, fault, self.path)
        except BaseException:
            if self._session is not None:
                self._session.roll_back()
            _fail(calls, Unavailable("another thread was interrupted in the middle of this call: try again"), self.path)
            raise
        finally:
            for call in calls[1:]:
                call.turn.release()

    def _opened(self) -> Session:
        if self._closed:
            raise Unavailable("the store is closed")
        if self._session is None:
            self._session = Session(connect(self.path), self._clock, self._wake)
        return self._session

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def before_fork(self) -> None:
        """Close the file; calls of other threads wait until the fork is done."""
        if self._owner == threading.get_ident():  # a fork in the middle of a call: the child cannot use the file
            return
        self._enter(InlineCall(alone))
        self._forking = True
        self._close_session()

    def after_fork_in_parent(self) -> None:
        if self._forking:
            self._forking = False
            self._leave()

    def after_fork_in_child(self) -> None:
        """The other threads do not exist here, nor do their calls."""
        self._door = threading.Lock()
        self._waiting.clear()
        self._in_use, self._owner, self._forking = False, None, False
        self._process = os.getpid()
        if self._session is not None:
            self._inherited.append(self._session)
            self._session = None


def _close_before_forks(connection: InlineConnection) -> None:
    found = weakref.ref(connection)  # what is registered stays: it must not hold the connection

    def before() -> None:
        if (here := found()) is not None:
            here.before_fork()

    def after_in_parent() -> None:
        if (here := found()) is not None:
            here.after_fork_in_parent()

    def after_in_child() -> None:
        if (here := found()) is not None:
            here.after_fork_in_child()

    os.register_at_fork(before=before, after_in_parent=after_in_parent, after_in_child=after_in_child)
