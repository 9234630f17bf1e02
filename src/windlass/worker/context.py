"""A context that runs many jobs at once: coroutines in its event loop, functions in threads.

Runs user code; knows its supervisor only as a socket. When that is closed, it ends.
"""

import asyncio
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence

import msgspec

from windlass.model.job import Error
from windlass.model.lifecycle import Verdict
from windlass.worker.frames import Assignment, Ending, Frames, Given, News, Orders, Passed, TooLong
from windlass.worker.outbox import Outbox
from windlass.worker.running import Callee, Run, acall, is_async, stopped
from windlass.worker.threads import Threads

READ_AT_ONCE = 1 << 16
LOOK_EVERY = 0.003
"""Seconds between two looks at stuck threads and unsent news, while there is work."""

SWITCH_EVERY = 0.001
"""Seconds after which a thread that computes lets another in: the supervisor's orders must get through."""

HELD_UP = 0.1
"""Seconds after which an event loop that does not answer is taken to be held up by one of its coroutines."""

BREATH = 0.005
"""Seconds between two looks at jobs that are about to begin."""

MOST_THREADS = 1000

MOST_KNOWN = 1000


class Context:
    """What one context does in its event loop."""

    def __init__(
        self,
        link: socket.socket,
        tasks: Mapping[str, Callee],
        frames: Frames[Orders] | None = None,
        most_threads: int = MOST_THREADS,
    ) -> None:
        self._link = link
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._frames = frames or Frames(Orders)
        self._outbox = Outbox(link)
        self._runs: dict[int, Run] = {}
        self._threads = Threads(most_threads, self._outbox, self._forget)
        self._known: dict[str | bytes, tuple[Callee, bool]] = {}
        """Tasks by what they were found by before, and whether they are coroutine functions."""
        self._reading = threading.Lock()
        self._held_up = False
        """Whether it was reported that the loop does not answer."""
        self._looking: asyncio.Handle | None = None
        self._leaving = False
        self._left = self._loop.create_future()

    async def live(self) -> None:
        """Until the supervisor says so, or is gone."""
        self._loop.add_reader(self._link, self._read)
        await self._left
        self._outbox.send()

    def _read(self) -> None:
        for orders in self._heard():
            self.obey(orders)

    def _heard(self) -> list[Orders]:
        """What has come by now. For the loop, or for the thread that watches it: each order is heard once."""
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
            except (TooLong, msgspec.MsgspecError):
                traceback.print_exc()
                os._exit(1)  # an order that was not understood is a job that would wait for ever

    # When a coroutine holds the loop

    def watch(self, aside: socket.socket) -> None:
        """In a thread of its own, which only ever waits to be asked: does the loop answer?"""
        while self._is_asked(aside):
            while (answered := self._answers()) and self._has_unbegun():
                time.sleep(BREATH)
            if answered:
                self._outbox.tell(News(answers=True))

    def _answers(self) -> bool:
        """Whether the loop does; if not, what has not begun is given back, and it tells when it does again."""
        answer = threading.Event()
        self._loop.call_soon_threadsafe(self._answer, answer)
        if answer.wait(HELD_UP):
            return True
        self._held_up = True
        self._outbox.tell(News(unbegun=self._take_back(), answers=False))
        if answer.is_set():  # meanwhile, perhaps before it was said that it does not
            self._outbox.tell(News(answers=True))
        return False

    def _answer(self, answer: threading.Event) -> None:
        answer.set()
        if self._held_up:
            self._held_up = False
            self._outbox.tell(News(answers=True))

    def _is_asked(self, aside: socket.socket) -> bool:
        try:
            asked = aside.recv(READ_AT_ONCE)
        except OSError:
            asked = b""
        if not asked:
            os._exit(0)  # the supervisor is gone
        return True

    def _has_unbegun(self) -> bool:
        unread, _, _ = select.select([self._link], [], [], 0)
        return bool(unread) or any(run.stop is None for run in list(self._runs.values()))

    def _take_back(self) -> list[Assignment]:
        """The jobs that have not begun here, which nobody runs here from now on."""
        found: list[Assignment] = []
        for orders in self._heard():
            stay = [one for one in orders.start if one.input]
            found += [one for one in orders.start if not one.input]
            if orders.newcomer is not None:
                found.append(orders.newcomer.assignment())
            rest = Orders(stay, orders.stop, orders.leave, orders.input)
            self._loop.call_soon_threadsafe(self.obey, rest)
        for number, run in list(self._runs.items()):
            if (job := run.take_back()) is not None:
                self._forget(number)
                found.append(job)
        return found

    def obey(self, orders: Orders) -> None:
        if orders.newcomer is not None:
            self._start(orders.newcomer, orders.newcomer.names)
        for assignment in orders.start:
            self._start(assignment, assignment.task)
        for passed in orders.input:
            self._pass_on(passed)
        for number in orders.stop:
            self._stop(number)
        self._leaving = self._leaving or orders.leave
        if self._looking is None:
            self._looking = self._loop.call_soon(self._look_on)  # after the first steps of what has just come

    def _start(self, given: Given, names: str | bytes) -> None:
        """`names`: what its task is found by."""
        known = self._known.get(names) or self._found(names, given.task)
        if known is None:
            self._outbox.end(unknown(given))
            return
        callee, is_coroutine = known
        self._runs[given.number] = run = Run(given, self._outbox.say)
        if is_coroutine:
            run.task = self._loop.create_task(self._await(callee, given, run))
        else:
            self._threads.put((callee, given, run))

    def _found(self, names: str | bytes, task: str) -> tuple[Callee, bool] | None:
        callee = self._tasks.get(task)
        if callee is None:
            return None
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        found = self._known[names] = callee, is_async(callee)
        return found

    async def _await(self, callee: Callee, given: Given, run: Run) -> None:
        # Only here: a task that is cancelled before its first step would never come to tell of it.
        if run.begin(run.task.cancel):  # type: ignore[union-attr] # this is it
            ending = await acall(callee, given, run)
        elif run.taken:
            return
        else:
            ending = stopped(given.number)
        self._forget(given.number)
        self._outbox.end(ending)
        if self._outbox.full or not self._runs:
            self._outbox.send()

    def _pass_on(self, passed: Passed) -> None:
        run = self._runs.get(passed.number)
        if run is not None and run.inbox is not None:
            run.inbox.put(passed.data)

    def _stop(self, number: int) -> None:
        if (run := self._runs.get(number)) is not None:
            run.cancel()

    def _forget(self, number: int) -> None:
        self._runs.pop(number, None)

    def _look(self) -> None:
        """While there is work: nothing waits behind a stuck thread, and nothing is left unsent."""
        self._threads.look()
        self._look_on()

    def _look_on(self) -> None:
        self._looking = None
        self._outbox.send()
        if self._runs:
            self._looking = self._loop.call_later(LOOK_EVERY, self._look)
        elif self._leaving and not self._left.done():
            self._left.set_result(None)


def unknown(given: Given) -> Ending:
    error = Error(type="UnknownTask", message=f"this app has no task {given.task!r}")
    return Ending(given.number, Verdict.ERROR, error=error)


def live(
    link: socket.socket,
    tasks: Mapping[str, Callee],
    told: Sequence[Orders] = (),
    frames: Frames[Orders] | None = None,
    aside: socket.socket | None = None,
) -> None:
    """The life of a context; one that was made for a single job has been told of it already, and ends with it.

    Nothing is tidied up: what a task has left behind in the loop or in a thread ends with the process.
    """
    sys.setswitchinterval(SWITCH_EVERY)

    async def run() -> None:
        here = Context(link, tasks, frames)
        if aside is not None:
            threading.Thread(target=here.watch, args=(aside,), name="windlass-watch", daemon=True).start()
        for orders in told:
            here.obey(orders)
        if told:
            here.obey(Orders(leave=True))
        await here.live()

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(run())
