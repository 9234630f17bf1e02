"""Finds the current master: asks sentinels in turn, and says when to ask them again.

Knows what they are asked, not how: the caller passes a function that asks. A sentinel may be gone, or behind the times;
so after every miss another one is asked first. The search never ends by itself: callers come again.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from windlass.model.errors import Unavailable
from windlass.model.ports import Randomness
from windlass.store.redis.urls import Argument, Group, ServerAddress

Place = tuple[str, int]

Ask = Callable[[ServerAddress, tuple[Argument, ...]], Awaitable[Any]]
"""Connects, asks one question and hangs up. What goes wrong is raised as `Unavailable`."""

ANSWERS_WITHIN = 1.0
"""Seconds for a sentinel: the others should be asked in time, too."""

PAUSES = (0.0, 0.1, 0.2, 0.4, 0.8, 1.0)
"""Seconds at most before the next search, after so many misses."""

LOOK_EVERY, LOOK_LATER = 1.0, 15.0
"""Seconds after which a master is asked for again while it still answers; and if no sentinel did, the last time.

A master that is replaced on demand learns of it some ten seconds later: what it takes in until then is lost.
"""

ELSEWHERE = ("READONLY", "UNBLOCKED", "MASTERDOWN", "NOREPLICAS")
"""Refusals of a server that is not the master, or not for long."""


class Sentinels:
    """Finds the master of one group, for the connections of one channel."""

    def __init__(self, group: Group, chance: Randomness | None) -> None:
        self._name = group.name
        self._addresses = deque(group.sentinels)
        self._chance = chance
        self._misses = 0
        self._look_at = 0.0
        self.place: Place | None = None
        """Of the master that was found last."""

    async def master(self, ask: Ask) -> Place:
        """Its host and port, from the first sentinel that knows it."""
        problem: object = None
        for _ in range(len(self._addresses)):
            try:
                reply = await ask(self._addresses[0], ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name))
            except Unavailable as fault:
                problem = fault
            else:
                match reply:
                    case [host, port]:
                        return host.decode(), int(port)
                problem = reply or "it knows no master of that name"
            self._addresses.rotate(-1)
        raise Unavailable(f"no sentinel names the master {self._name!r}: {problem}")

    def pause(self) -> float:
        """Seconds to wait before the next search, so that not all clients ask at once."""
        longest = PAUSES[min(self._misses, len(PAUSES) - 1)]
        return longest * (1 + (self._chance.fraction() if self._chance else 1)) / 2

    def missed(self) -> None:
        """No master was found, or what was found is none."""
        self._misses += 1
        self._addresses.rotate(-1)

    def found(self, place: Place, now: float) -> bool:
        """The master is there, and takes itself for one. Whether it is another than before."""
        other = self.place not in (None, place)
        self.place, self._misses, self._look_at = place, 0, now + LOOK_EVERY
        return other

    def will_look(self, now: float) -> bool:
        """Whether the next caller is to ask again where the master is."""
        return now >= self._look_at

    def is_time_to_look(self, now: float) -> bool:
        """Whether to ask again where the master is; true for one caller only."""
        if not self.will_look(now):
            return False
        self._look_at = now + LOOK_EVERY
        return True

    async def has_moved(self, ask: Ask) -> bool:
        """Whether the master is elsewhere now. Sentinels that are away are no reason to leave it."""
        try:
            return await self.master(ask) != self.place
        except Unavailable:
            self._look_at += LOOK_LATER
            return False


def is_elsewhere(refusal: object) -> bool:
    """Whether this refusal is a reason to look for the master again."""
    return str(refusal).startswith(ELSEWHERE)
