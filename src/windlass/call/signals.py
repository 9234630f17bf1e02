"""What a task raises to say more than "it broke", and which of its other errors are worth another run."""

import asyncio
from datetime import timedelta

from windlass.model.duration import seconds
from windlass.model.errors import Invalid
from windlass.model.names import check_name

Errors = type[BaseException] | tuple[type[BaseException], ...]
"""Classes of exceptions."""

LEAST_CODE, MOST_CODE = 400, 599


class Signal(Exception):
    """Raised by a task to choose its own outcome; never an error of the queue."""


class Retry(Signal):
    """Run me again: after so long, or by the job's retry policy. Uses one of its re-runs."""

    def __init__(self, message: str = "", *, after: float | str | timedelta | None = None) -> None:
        super().__init__(message or "the task asked to be run again")
        self.after = None if after is None else seconds(after, at="after")


class Fail(Signal):
    """I ran well and cannot succeed: do not run me again."""

    def __init__(self, message: str = "", *, code: int = 400) -> None:
        super().__init__(message or "the task failed")
        if type(code) is not int or not LEAST_CODE <= code <= MOST_CODE:
            raise Invalid(f"{code!r} is no code of a failure: a whole number, {LEAST_CODE} to {MOST_CODE}", at="code")
        self.code = code


class Snooze(Signal):
    """Not now: run me again after so long, without using a re-run."""

    def __init__(self, after: float | str | timedelta) -> None:
        super().__init__(f"the task asked to be run again after {after}")
        self.after = seconds(after, at="after")


class RateLimited(Signal):
    """A remote service refuses more requests for now: start no job of the same limit for so long, then run this again.

    Uses no retry. It holds the bucket of each limit that bounds the job, or of the one named; other keys of the
    limit go on. A job that no limit bounds is snoozed.
    """

    def __init__(self, after: float | str | timedelta, *, limit: str = "") -> None:
        super().__init__(f"the task asked for a rest of {after}")
        self.after = seconds(after, at="after")
        self.limit = limit if limit == "" else check_name(str(limit), at="limit")


class Suspended(BaseException):
    """Raised where a task sleeps in a durable step: this run ends here. `except Exception` does not catch it."""

    def __init__(self, after: float) -> None:
        super().__init__(f"the job goes on in {after:g} s")
        self.after = after


class Cancelled(BaseException):
    """Raised inside a synchronous task that must stop. Not an `Exception`: `except Exception` does not catch it."""


class SoftTimeout(Exception):
    """Raised once inside a task that has run for its `soft_timeout`: it can clean up or return what it has.

    An `Exception`, unlike `Cancelled`: the task may go on, until its `timeout`. No `TimeoutError`, which code around a
    single request catches. In a coroutine it is an `asyncio.CancelledError` too.
    """

    def __init__(self, message: str = "ran longer than its soft timeout") -> None:
        super().__init__(message)


class ErrorRules:
    """Which errors of a task are worth another run: those of `retry_on` (null = any), but none of `never_on`."""

    def __init__(self, retry_on: Errors | None = None, never_on: Errors = ()) -> None:
        self._retry_on = None if retry_on is None else _classes(retry_on, at="retry_on")
        self._never_on = _classes(never_on, at="never_on")

    def is_final(self, fault: BaseException) -> bool:
        """Whether the job must not run again after this. All errors of a group must be worth it."""
        if isinstance(fault, self._never_on):
            return True
        if isinstance(fault, BaseExceptionGroup):
            return any(map(self.is_final, fault.exceptions))
        return self._retry_on is not None and not isinstance(fault, self._retry_on)


def _classes(given: Errors, *, at: str) -> tuple[type[BaseException], ...]:
    classes = given if isinstance(given, tuple) else (given,)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise Invalid(f"{one!r} is no class of exceptions: give one, or a tuple of them", at=at)
        if issubclass(one, (Signal, Cancelled, Suspended, asyncio.CancelledError)):
            raise Invalid(f"{one.__name__} says itself what becomes of the job: leave it out", at=at)
    return classes


ANY_ERROR = ErrorRules()
"""Those of a task that has none of its own: any error is worth another run."""


for _signal in (Retry, Fail, Snooze, RateLimited, Cancelled, Suspended, SoftTimeout):
    _signal.__module__ = "windlass"  # where people import them from, and what they are called when they are printed
