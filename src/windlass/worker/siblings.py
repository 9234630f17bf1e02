"""Several worker processes under one parent, which only starts them, passes signals on, and restarts those that die.

Each is a worker of its own, registered by itself. The parent runs no event loop and opens nothing, so that it can fork
again at any time. Knows nothing of workers but that they end by themselves after TERM, and that a status other than 0
is a failure.
"""

import logging
import os
import signal
from collections.abc import Callable, Iterator

from msgspec import Struct

from windlass.model.ports import Clock
from windlass.worker.linux import describe_status, end_with_parent

log = logging.getLogger("windlass.worker")

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGCONT)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)

STEADY = 5.0
"""Seconds after which a process counts as started."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds before a process is started again: doubled each time that it was not steady."""


class Sibling(Struct):
    """One of the processes."""

    number: int
    pid: int = 0
    """0 = it does not run."""
    started_at: float = 0.0
    starts_at: float | None = 0.0
    """When it is to be started; null = it runs, or has ended for good."""
    pause: float = FIRST_PAUSE
    """Seconds before it is started again, should it end before it is steady."""
    started_well: bool = False
    """Whether it was ever steady."""


class _InChild(Exception):
    pass


def run_siblings(count: int, run_one: Callable[[], int], clock: Clock) -> int:
    """Run a program in so many processes until all have ended; the exit status. Returns in each child, too.

    If one fails before any was ever steady, as it does when its settings are wrong, all end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*PASSED_ON, signal.SIGCHLD])
    try:
        status = _Parent(count, clock).run()
    except _InChild:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return run_one()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return status


class _Parent:
    """What the parent knows of its children."""

    def __init__(self, count: int, clock: Clock) -> None:
        self._siblings = [Sibling(number) for number in range(1, count + 1)]
        self._clock = clock
        self._pid = os.getpid()
        self._stopping = False
        self._status = 0

    def run(self) -> int:
        while True:
            self._start_due()
            waits = [one.starts_at for one in self._siblings if one.starts_at is not None]
            if not waits and not any(one.pid for one in self._siblings):
                return self._status
            number = self._next_signal(min(waits, default=None))
            if number in PASSED_ON:
                self._pass_on(signal.Signals(number))
            for one, status in self._ended():
                self._note_end(one, status)

    def _next_signal(self, until: float | None) -> int | None:
        signals = [*PASSED_ON, signal.SIGCHLD]
        if until is None:
            return signal.sigwait(signals)
        found = signal.sigtimedwait(signals, max(0.0, until - self._clock.monotonic()))
        return None if found is None else found.si_signo

    def _start_due(self) -> None:
        now = self._clock.monotonic()
        for one in self._siblings:
            if one.starts_at is not None and one.starts_at <= now:
                one.starts_at, one.started_at = None, now
                one.pid = os.fork()
                if not one.pid:
                    os.setpgid(0, 0)  # what is typed at the terminal comes from the parent alone, once
                    end_with_parent(self._pid)
                    raise _InChild

    def _pass_on(self, number: signal.Signals) -> None:
        if number in ENDING:
            self._stopping = True
            for one in self._siblings:
                one.starts_at = None
        for one in self._siblings:
            if one.pid:
                os.kill(one.pid, number)  # not reaped yet: the pid is still its own

    def _ended(self) -> Iterator[tuple[Sibling, int]]:
        """Those that have ended, each with the status that the system gives."""
        for one in self._siblings:
            if not one.pid:
                continue
            found, status = os.waitpid(one.pid, os.WNOHANG)
            if found:
                yield one, status

    def _note_end(self, one: Sibling, status: int) -> None:
        pid, one.pid = one.pid, 0
        lasted = self._clock.monotonic() - one.started_at
        one.started_well = one.started_well or lasted >= STEADY
        code = os.waitstatus_to_exitcode(status)
        if code == 0 or self._stopping:
            self._status = self._status or abs(code)
            return
        how, _ = describe_status(status)
        if code > 0 and not self._any_steady():
            log.error("worker %d (pid %d) did not start, %s: the others are stopped", one.number, pid, how)
            self._status = code
            self._pass_on(signal.SIGTERM)
            return
        pause = FIRST_PAUSE if lasted >= STEADY else one.pause
        one.pause = min(2 * pause, LONGEST_PAUSE)
        one.starts_at = self._clock.monotonic() + pause
        log.warning("worker %d (pid %d) ended, %s; another starts in %g s", one.number, pid, how, pause)

    def _any_steady(self) -> bool:
        now = self._clock.monotonic()
        return any(one.started_well or (one.pid and now - one.started_at >= STEADY) for one in self._siblings)
