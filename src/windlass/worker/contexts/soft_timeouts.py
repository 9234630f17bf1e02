"""Soft timeouts: `SoftTimeout` is raised in a task's own code, once, while the task may still run.

A plain function gets it between two instructions of its thread; in the main thread, which an isolated job has for
itself, a signal also ends what it waits for. A coroutine gets it where it awaits. Knows no time limits of jobs: the
supervisor enforces those.
"""

import asyncio
import ctypes
import signal
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol

from windlass.call.signals import SoftTimeout

RING = signal.SIGRTMAX
"""Sent to the main thread of this process, by this process alone."""

_NOTHING = object()

_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Stoppable(Protocol):
    """A run that may be cancelled meanwhile."""

    @property
    def stopping(self) -> threading.Lock:
        """Locked while it is being cancelled."""
        ...

    @property
    def is_cancelled(self) -> bool: ...


class CancelledSoftly(SoftTimeout, asyncio.CancelledError):
    """`SoftTimeout` in a coroutine: what asyncio does on a cancellation, as in a task group, it does for this too."""


CancelledSoftly.__module__, CancelledSoftly.__qualname__ = SoftTimeout.__module__, SoftTimeout.__qualname__


def raise_in_thread(thread: int, kind: type[BaseException] | None) -> None:
    """Raise this in a thread as soon as it runs Python code again; null = what was to be raised is not."""
    _set_exception(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))


def call(seconds: float, run: Stoppable, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function in this thread; it gets `SoftTimeout` if it still runs after so long."""
    alarm, result = _Alarm(seconds, run), _NOTHING
    try:
        try:
            result = function(*args, **kwargs)
        finally:
            alarm.stop()
    except SoftTimeout:
        if result is _NOTHING:
            raise
        alarm.stop()  # it came after the function had returned
    return result


class _Alarm:
    """Raises `SoftTimeout` in the thread that made it, unless it is stopped before."""

    def __init__(self, seconds: float, run: Stoppable) -> None:
        self._run = run
        self._thread = threading.get_ident()
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        self._stopped = False
        if self._in_main_thread:
            signal.signal(RING, self._ringing)
        self._timer = threading.Timer(seconds, self._ring)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        self._timer.cancel()
        with self._run.stopping:
            self._stopped = True
            if not (self._in_main_thread or self._run.is_cancelled):
                raise_in_thread(self._thread, None)  # not raised yet: it must not be raised in the next job

    def _ring(self) -> None:
        with self._run.stopping:
            if self._stopped or self._run.is_cancelled:
                return
            if self._in_main_thread:
                signal.pthread_kill(self._thread, RING)
            else:
                raise_in_thread(self._thread, SoftTimeout)

    def _ringing(self, _number: int, _frame: object) -> None:
        if not self._stopped:
            raise SoftTimeout


class SoftlyLimited:
    """A coroutine to be awaited; it gets `SoftTimeout` if it still runs after so long.

    Its task is cancelled, which wakes it; the cancellation is replaced on its way into the coroutine.
    """

    def __init__(self, seconds: float, run: Stoppable, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._seconds = seconds
        self._run = run
        self._coroutine = coroutine
        self._rung = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task, steps = asyncio.current_task(), self._coroutine.__await__()
        assert task is not None  # noqa: S101 - only tasks await
        timer = asyncio.get_running_loop().call_later(self._seconds, self._ring, task)
        try:
            waits = next(steps)
            while True:
                try:
                    sent = yield waits
                except asyncio.CancelledError as fault:
                    waits = steps.throw(self._replaced(fault, task))
                except BaseException as fault:  # noqa: BLE001 - all that comes in goes on to the coroutine
                    waits = steps.throw(fault)
                else:
                    waits = steps.send(sent)
        except StopIteration as end:
            return end.value
        finally:
            timer.cancel()
            steps.close()

    def _ring(self, task: asyncio.Task[Any]) -> None:
        if not self._run.is_cancelled:
            self._rung = True
            task.cancel()

    def _replaced(self, fault: asyncio.CancelledError, task: asyncio.Task[Any]) -> BaseException:
        if not self._rung or self._run.is_cancelled:
            return fault
        self._rung = False
        task.uncancel()
        return CancelledSoftly()
