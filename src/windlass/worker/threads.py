"""Threads for synchronous tasks: as few as will do.

Tasks that take microseconds are run one after another by one thread, which is far quicker than handing each to a thread
of its own. Only when those at work are stuck in a task while others wait does another thread come in. Threads
that find nothing to do are parked; one of them stays at the door.
"""

import ctypes
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from windlass.call.signals import Cancelled
from windlass.worker.frames import Ending, Given
from windlass.worker.outbox import Outbox
from windlass.worker.running import Callee, Run, call, stopped

Item = tuple[Callee, Given, Run]

_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Threads:
    """Runs synchronous tasks, at most so many at once."""

    def __init__(self, most: int, outbox: Outbox, done: Callable[[int], None]) -> None:
        self._most = most
        self._outbox = outbox
        self._done = done
        self._items: SimpleQueue[Item] = SimpleQueue()
        self._parked: deque[threading.Lock] = deque()
        self._number = 0
        self._taken = 0
        self._taken_before = -1
        self._at_the_door = False

    def put(self, item: Item) -> None:
        self._items.put(item)
        if not self._number:
            self._start()

    def look(self) -> None:
        """Called every few milliseconds while there is work: whoever waits behind stuck threads gets another one."""
        stuck = self._taken == self._taken_before and not self._items.empty() and not self._at_the_door
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
        bed = threading.Lock()
        bed.acquire()
        while True:
            item = self._next(bed)
            self._taken += 1
            self._run(*item)
            if self._items.empty() or self._outbox.full:
                self._outbox.send()

    def _next(self, bed: threading.Lock) -> Item:
        while True:
            try:
                return self._items.get_nowait()
            except Empty:
                if not self._at_the_door:
                    break
            self._parked.append(bed)
            bed.acquire()
        self._at_the_door = True
        item = self._items.get()
        self._at_the_door = False
        return item

    def _run(self, callee: Callee, given: Given, run: Run) -> None:
        thread = threading.get_ident()
        ending: Ending | None = None
        try:
            if run.begin(lambda: _interrupt(thread)):
                ending = call(callee, given, run)
            elif run.taken:
                return
            run.end()
            if run.cancelled:
                _set_exception(ctypes.c_ulong(thread), None)  # what has not struck yet must not strike later
        except Cancelled:
            run.end()  # it struck after the task had returned
        self._done(given.number)
        self._outbox.end(ending or stopped(given.number))


def _interrupt(thread: int) -> None:
    """Raise `Cancelled` in a thread, as soon as it runs Python code again."""
    _set_exception(ctypes.c_ulong(thread), ctypes.py_object(Cancelled))
