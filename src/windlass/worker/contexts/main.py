"""The main program of a context: reads commands from its supervisor's socket, runs jobs, sends back their outcomes.

A shared context runs many jobs at once: coroutines in its event loop, functions in threads. An isolated one runs a
single job in the main thread, so that TERM interrupts it wherever it waits. Runs user code; knows its supervisor only
as a socket. When that is closed, the process exits.
"""

import asyncio
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from windlass.call.hooks import Hooks, TaskCode
from windlass.call.signals import Cancelled
from windlass.worker.contexts.execution import (
    Execution,
    aexecute,
    cancelled_outcome,
    execute,
    execution_of,
    is_async,
    outcome_of,
    unknown_task,
    unopened_outcome,
)
from windlass.worker.contexts.frames import (
    CLOSE_HOOKS_WITHIN,
    Assignment,
    Command,
    ContextOutbox,
    ContextUpdate,
    FrameReader,
    FrameTooLong,
    JobMessage,
    RunOutcome,
    RunUpdate,
    encode_frame,
)
from windlass.worker.contexts.soft_timeouts import raise_in_thread

Item = tuple[TaskCode, Assignment, Execution]


class Threads:
    """Runs synchronous tasks in as few threads as possible.

    Tasks that take microseconds are run one after another by one thread, which is far quicker than handing each to a
    thread of its own. Another thread comes in only when those at work are stuck in a task while others wait. Threads
    without work are parked; one of them waits for the next task.
    """

    def __init__(self, most: int, outbox: ContextOutbox, done: Callable[[int], None]) -> None:
        self._most = most
        self._outbox = outbox
        self._done = done
        self._items: SimpleQueue[Item] = SimpleQueue()
        self._parked: deque[threading.Lock] = deque()
        self._number = 0
        self._taken = 0
        self._taken_before = -1
        self._one_waits = False

    def put(self, item: Item) -> None:
        self._items.put(item)
        if not self._number:
            self._start()

    def check(self) -> None:
        """Called every few milliseconds while there is work: jobs that wait behind stuck threads get another one."""
        stuck = self._taken == self._taken_before and not self._items.empty() and not self._one_waits
        self._taken_before = self._taken
        if not stuck:
            return
        for _ in range(min(self._number or 1, self._items.qsize())):  # doubles, so that a crowd does not wait long
            if not self._wake() and self._number < self._most:
                self._start()

    def _wake(self) -> bool:
        try:
            self._parked.pop().release()
        except IndexError:
            return False
        return True

    def _start(self) -> None:
        self._number += 1
        threading.Thread(target=self._work, name=f"windlass-{self._number}", daemon=True).start()

    def _work(self) -> None:
        parking = threading.Lock()
        parking.acquire()
        while True:
            item = self._next(parking)
            self._taken += 1
            self._run(*item)
            if self._items.empty() or self._outbox.full:
                self._outbox.flush()

    def _next(self, parking: threading.Lock) -> Item:
        while True:
            try:
                return self._items.get_nowait()
            except Empty:
                if not self._one_waits:
                    break
            self._parked.append(parking)
            parking.acquire()
        self._one_waits = True
        item = self._items.get()
        self._one_waits = False
        return item

    def _run(self, code: TaskCode, assignment: Assignment, run: Execution) -> None:
        thread = threading.get_ident()
        outcome: RunOutcome | None = None
        try:
            if run.begin(lambda: raise_in_thread(thread, Cancelled)):
                outcome = execute(code, assignment, run)
            elif run.taken:
                return
            run.end()
            if run.cancelled:
                raise_in_thread(thread, None)  # not raised yet: it must not be raised in the next job
        except Cancelled:
            run.end()  # it was raised after the task had returned
        for one in run.outcomes(outcome or cancelled_outcome(assignment.number)):
            self._done(one.number)
            self._outbox.add_outcome(one)


READ_AT_ONCE = 1 << 16
CHECK_EVERY = 0.003
"""Seconds between two checks for stuck threads and unsent updates, while there is work."""

SWITCH_EVERY = 0.001
"""Seconds after which a thread that computes lets another in: the supervisor's commands must get through."""

BLOCKED_AFTER = 0.1
"""Seconds after which an event loop that does not answer counts as blocked by one of its coroutines."""

RECHECK_AFTER = 0.005
"""Seconds between two checks of jobs that are about to begin."""

MOST_THREADS = 1000


class KnownTask(NamedTuple):
    """A task that has come before: what need not be asked for each of its jobs."""

    code: TaskCode
    is_coroutine: bool
    execution: type[Execution]


class SharedContext:
    """A context that runs many jobs at once."""

    def __init__(
        self,
        link: socket.socket,
        tasks: Mapping[str, TaskCode],
        frames: FrameReader[Command] | None = None,
        most_threads: int = MOST_THREADS,
    ) -> None:
        self._link = link
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._frames = frames or FrameReader(Command)
        self._outbox = ContextOutbox(link)
        self._runs: dict[int, Execution] = {}
        self._threads = Threads(most_threads, self._outbox, self._forget)
        self._known: dict[str, KnownTask] = {}
        """By name."""
        self._reading = threading.Lock()
        self._blocked = False
        """Whether it was reported that the loop does not answer."""
        self._checking: asyncio.Handle | None = None
        self._exiting = False
        self._idle = self._loop.create_future()

    async def live(self) -> None:
        """Until the supervisor asks it to exit, or is gone."""
        self._loop.add_reader(self._link, self._read)
        await self._idle
        self._outbox.flush()

    def _read(self) -> None:
        for command in self._received():
            self.obey(command)

    def _received(self) -> list[Command]:
        """What has come. Called by the event loop, or by the thread that watches it: each command is read once."""
        with self._reading:
            try:
                data = self._link.recv(READ_AT_ONCE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
            except OSError:
                data = b""
            if not data:
                os._exit(0)  # the supervisor is gone: whatever runs here has lost its lease or is about to
            try:
                return list(self._frames.feed(data))
            except (FrameTooLong, msgspec.MsgspecError):
                traceback.print_exc()
                os._exit(1)  # a command that cannot be decoded is a job that would never end

    # When a coroutine blocks the event loop

    def watch_loop(self, aside: socket.socket) -> None:
        """Answer pings, in a thread of its own: does the event loop respond?"""
        while self._is_pinged(aside):
            while (answered := self._answers()) and self._has_not_begun():
                time.sleep(RECHECK_AFTER)
            if answered:
                self._outbox.send_now(ContextUpdate(answers=True))

    def _answers(self) -> bool:
        """Whether the event loop responds; if not, send back what has not begun. It reports when it responds again."""
        answer = threading.Event()
        self._loop.call_soon_threadsafe(self._answer, answer)
        if answer.wait(BLOCKED_AFTER):
            return True
        self._blocked = True
        self._outbox.send_now(ContextUpdate(not_begun=self._take_back(), answers=False))
        if answer.is_set():  # meanwhile, perhaps before that was sent
            self._outbox.send_now(ContextUpdate(answers=True))
        return False

    def _answer(self, answer: threading.Event) -> None:
        answer.set()
        if self._blocked:
            self._blocked = False
            self._outbox.send_now(ContextUpdate(answers=True))

    def _is_pinged(self, aside: socket.socket) -> bool:
        try:
            asked = aside.recv(READ_AT_ONCE)
        except OSError:
            asked = b""
        if not asked:
            os._exit(0)  # the supervisor is gone
        return True

    def _has_not_begun(self) -> bool:
        unread, _, _ = select.select([self._link], [], [], 0)
        return bool(unread) or any(run.stop is None for run in list(self._runs.values()))

    def _take_back(self) -> list[Assignment]:
        """The jobs that have not begun, and from now on do not begin here."""
        found: list[Assignment] = []
        for command in self._received():
            stay = [one for one in command.start if one.input]
            found += [one for one in command.start if not one.input]
            rest = replace(command, start=stay)
            self._loop.call_soon_threadsafe(self.obey, rest)
        for number, run in list(self._runs.items()):
            if (job := run.take_back()) is not None:
                self._forget(number)
                found.append(job)
        return found

    def obey(self, command: Command) -> None:
        for assignment in command.start:
            self._start([assignment])
        for batch in command.batches:
            self._start(batch)
        for message in command.messages:
            self._deliver(message)
        for answer in command.steps:
            if (run := self._runs.get(answer.number)) is not None:
                run.answer_step(answer)
        for number in command.stop:
            self._stop(number)
        self._exiting = self._exiting or command.exit_when_idle
        if self._checking is None:
            self._checking = self._loop.call_soon(self._check_on)  # after the first steps of what has just come

    def _start(self, assignments: Sequence[Assignment]) -> None:
        """Run one job, or a batch by one call."""
        assignment = assignments[0]
        known = self._known.get(assignment.task) or self._found(assignment.task)
        if known is None:
            for one in assignments:
                self._outbox.add_outcome(unknown_task(one))
            return
        code, is_coroutine, execution = known
        run = execution(assignments, self._outbox.add_update)
        for one in assignments:
            self._runs[one.number] = run
        if is_coroutine:
            run.task = self._loop.create_task(self._await(code, assignment, run))
        else:
            self._threads.put((code, assignment, run))

    def _found(self, task: str) -> KnownTask | None:
        code = self._tasks.get(task)
        if code is None:
            return None
        found = self._known[task] = KnownTask(code, is_async(code), execution_of(code))
        return found

    async def _await(self, code: TaskCode, assignment: Assignment, run: Execution) -> None:
        # Only here: a task that is cancelled before its first step would never report it.
        if run.begin(run.task.cancel):  # type: ignore[union-attr] # this is it
            outcome = await aexecute(code, assignment, run)
        elif run.taken:
            return
        else:
            outcome = cancelled_outcome(assignment.number)
        for one in run.outcomes(outcome):
            self._forget(one.number)
            self._outbox.add_outcome(one)
        if self._outbox.full or not self._runs:
            self._outbox.flush()

    def _deliver(self, message: JobMessage) -> None:
        run = self._runs.get(message.number)
        if run is not None and run.messages is not None:
            run.messages.put(message.data)

    def _stop(self, number: int) -> None:
        if (run := self._runs.get(number)) is not None:
            run.cancel()

    def _forget(self, number: int) -> None:
        self._runs.pop(number, None)

    def _check(self) -> None:
        """While there is work: nothing waits behind a stuck thread, and nothing is left unsent."""
        self._threads.check()
        self._check_on()

    def _check_on(self) -> None:
        self._checking = None
        self._outbox.flush()
        if self._runs:
            self._checking = self._loop.call_later(CHECK_EVERY, self._check)
        elif self._exiting and not self._idle.done():
            self._idle.set_result(None)


def run_shared(
    link: socket.socket,
    tasks: Mapping[str, TaskCode],
    hooks: Hooks,
    *,
    received: Sequence[Command] = (),
    frames: FrameReader[Command] | None = None,
    aside: socket.socket | None = None,
) -> None:
    """Run a shared context until it exits. For a single coroutine job, `received` has its assignment: it exits with it.

    Nothing is cleaned up but by the app's hooks: what a task has left behind in the event loop or in a thread ends with
    the process.
    """
    sys.setswitchinterval(SWITCH_EVERY)

    async def run() -> None:
        if not hooks.concern_processes:
            await live()
            return
        life = hooks.process()
        with _failing(link):
            await life.__aenter__()
        if not received:
            link.sendall(encode_frame(ContextUpdate(opened=True)))
        await live()
        with _closing():
            await life.__aexit__(None, None, None)

    async def live() -> None:
        here = SharedContext(link, tasks, frames)
        if aside is not None:
            threading.Thread(target=here.watch_loop, args=(aside,), name="windlass-watch", daemon=True).start()
        for command in received:
            here.obey(command)
        if received:
            here.obey(Command(exit_when_idle=True))
        await here.live()

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(run())


@contextmanager
def _failing(link: socket.socket) -> Iterator[None]:
    """Report that a hook has failed, and exit: this process runs no jobs."""
    try:
        yield
    except BaseException as fault:  # noqa: BLE001 - user code may raise anything
        with suppress(OSError):
            link.sendall(encode_frame(ContextUpdate([unopened_outcome(fault)])))
        os._exit(1)


@contextmanager
def _closing() -> Iterator[None]:
    """Close what the app has opened. It is not waited for without a limit, and its errors are only shown."""

    def give_up() -> None:
        sys.stderr.write(f"windlass: what the app has opened was not closed within {CLOSE_HOOKS_WITHIN:g} s\n")
        sys.stderr.flush()
        os._exit(1)

    watch = threading.Timer(CLOSE_HOOKS_WITHIN, give_up)
    watch.daemon = True
    watch.start()
    try:
        yield
    except Exception:  # noqa: BLE001
        traceback.print_exc()
    finally:
        watch.cancel()


def run_isolated(
    link: socket.socket, tasks: Mapping[str, TaskCode], frames: FrameReader[Command], hooks: Hooks
) -> None:
    """Run one job, then exit. `frames` is passed in because making a decoder takes longer than many a job."""
    received = _first(link, frames)
    assignment = _assignment(received)
    code = tasks.get(assignment.task)
    outbox = ContextOutbox(link)
    if assignment.terminal:
        os.environ["TERM"] = assignment.terminal
    if code is None:
        outbox.add_outcome(unknown_task(assignment))
    elif is_async(code):
        run_shared(link, tasks, hooks, received=received, frames=frames)
    elif not hooks.concern_processes:
        _run_function(link, frames, outbox, code, received)
    else:
        life = hooks.process_without_loop()
        with _failing(link):
            life.__enter__()
        _run_function(link, frames, outbox, code, received)
        outbox.flush()  # it has ended, whatever is closed now
        with _closing():
            life.__exit__(None, None, None)
    outbox.flush()


def _first(link: socket.socket, frames: FrameReader[Command]) -> list[Command]:
    """The first commands, with the assignment; if the process started late, there may be more."""
    received: list[Command] = []
    while not any(command.start for command in received):
        data = link.recv(READ_AT_ONCE)
        if not data:
            os._exit(0)
        received += frames.feed(data)
    return received


def _assignment(received: Sequence[Command]) -> Assignment:
    return next(assignment for command in received for assignment in command.start)


def _run_function(
    link: socket.socket,
    frames: FrameReader[Command],
    outbox: ContextOutbox,
    code: TaskCode,
    received: Sequence[Command],
) -> None:
    assignment = _assignment(received)

    def send_at_once(update: RunUpdate) -> None:
        outbox.add_update(update)
        outbox.flush()

    run = execution_of(code)([assignment], send_at_once)
    for command in received:
        _obey(command, run)
    if assignment.input:
        threading.Thread(target=_receive, args=(link, frames, run), name="windlass-orders", daemon=True).start()
    else:
        run.poll = poll = _poller(link, frames, run)
        run.wait = lambda: _wait(link, poll)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        outcome = execute(code, assignment, run)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    except Cancelled as fault:
        outcome = outcome_of(assignment.number, fault)
    for one in run.outcomes(outcome):
        outbox.add_outcome(one)


def _interrupt(_number: int, _frame: object) -> None:
    raise Cancelled


def _obey(command: Command, run: Execution) -> None:
    for message in command.messages:
        if run.messages is not None:
            run.messages.put(message.data)
    for answer in command.steps:
        run.answer_step(answer)
    if command.stop:
        run.cancel()


def _poller(link: socket.socket, frames: FrameReader[Command], run: Execution) -> Callable[[], None]:
    """Makes a function that reads the commands that have come, for any thread of this process.

    A thread that listens costs more than many a job: it is started only where messages may come.
    """
    here, alone = os.getpid(), threading.Lock()

    def poll() -> None:
        if os.getpid() != here:
            return  # commands are for the job, not for processes that it forks
        with alone, suppress(BlockingIOError):
            data = link.recv(READ_AT_ONCE, socket.MSG_DONTWAIT)
            for command in frames.feed(data):
                _obey(command, run)

    return poll


def _wait(link: socket.socket, poll: Callable[[], None]) -> None:
    """Wait for commands, then obey them."""
    select.select([link], [], [])
    with suppress(BlockingIOError):
        if not link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            os._exit(0)  # the supervisor is gone
    poll()


def _receive(link: socket.socket, frames: FrameReader[Command], run: Execution) -> None:
    with suppress(OSError):
        while data := link.recv(READ_AT_ONCE):
            for command in frames.feed(data):
                _obey(command, run)
    os._exit(0)  # the supervisor is gone
