"""Whether it is time to take jobs back: not before those who run them have had a chance to speak up.

While the store is away nobody can renew a lease, and all of them run out. So whoever takes jobs back must have seen the
store answer for a while without a break. Pure: knows only the times at which the store answered, by the store's own
clock.
"""

from datetime import datetime, timedelta

AWAY = 3.0
"""Seconds between two answers beyond which the store may have been away, at least. One of them may get lost."""

SETTLE = 2.0
"""Seconds that workers get to speak up, at least: they try again every half second."""


class Vigil:
    """What one process has seen of its store."""

    def __init__(self, lease: float, *, trusting: bool = False) -> None:
        """`trusting`: what was before the first answer is of no concern."""
        # A break much shorter than a lease ends no lease; workers on a dead line need some seconds to notice that.
        self._away = timedelta(seconds=max(AWAY, lease / 3))
        self._settle = timedelta(seconds=max(SETTLE, lease / 2))
        self._trusting = trusting
        self._last: datetime | None = None
        self._since: datetime | None = None

    def answered(self, now: datetime) -> bool:
        """The store says that it is so late; whether jobs may be taken back.

        A clock that is set forwards ends leases as an absence does; one that is set back must not make us wait for it.
        """
        first = self._last is None
        if self._last is None or abs(now - self._last) > self._away:
            self._since = None if first and self._trusting else now
        self._last = now
        return self._since is None or now - self._since >= self._settle
