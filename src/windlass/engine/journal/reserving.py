"""Jobs handed out from a journal for a while: whoever does not say in time that it is done with them has not had them.

What is committed is never handed out again; what was cancelled, or not committed in time, is, before anything newer.
"""

from typing import NamedTuple

from windlass.engine.journal.journal import Journal
from windlass.engine.journal.runs import Entry
from windlass.model.errors import Conflict
from windlass.model.ports import Chance, Clock


class _Reserved(NamedTuple):
    entries: list[Entry]
    until: float


class Reservations:
    """The readers of one journal."""

    def __init__(self, journal: Journal, clock: Clock, chance: Chance) -> None:
        self._journal = journal
        self._clock = clock
        self._chance = chance
        self._position = journal.drained
        self._reserved: dict[str, _Reserved] = {}
        self._returned: list[Entry] = []

    async def reserve(self, count: int, seconds: float) -> str | None:
        """A token for the next jobs, good for so long; null if there are none."""
        self._take_back_overdue()
        if self._returned:
            self._returned.sort()
            entries, self._returned = self._returned[:count], self._returned[count:]
        else:
            entries = await self._journal.read(self._position, count)
            if not entries:
                return None
            self._position = entries[-1].sequence
        token = self._chance.token().hex()
        self._reserved[token] = _Reserved(entries, self._clock.monotonic() + seconds)
        return token

    def read(self, token: str) -> list[Entry]:
        self._take_back_overdue()
        return self._known(token).entries

    def commit(self, token: str) -> None:
        """They are done with."""
        self._take_back_overdue()
        self._known(token)
        del self._reserved[token]

    def cancel(self, token: str) -> None:
        """They go back."""
        self._returned += self._known(token).entries
        del self._reserved[token]

    def rewind(self, to: int) -> None:
        """All behind a sequence are handed out again."""
        self._position = to
        self._reserved, self._returned = {}, []

    def _known(self, token: str) -> _Reserved:
        found = self._reserved.get(token)
        if found is None:
            raise Conflict("this reservation has been used, or its time is over", at="token")
        return found

    def _take_back_overdue(self) -> None:
        now = self._clock.monotonic()
        for token in [token for token, one in self._reserved.items() if one.until <= now]:
            self._returned += self._reserved.pop(token).entries
