"""Where jobs lie: which partition a queue or an id belongs to, and how calls are grouped by partition.

A queue lives in one partition, named by the last byte of its jobs' ids. All keys of a partition carry its number as
their hash tag. With one partition (the default on a single server) every step is one round trip.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from windlass.model.errors import Unavailable
from windlass.model.names import part_of, queue_mark
from windlass.model.ports import Clock
from windlass.store.micros import to_micros
from windlass.store.redis.address import Argument
from windlass.store.redis.connection import Connection

T = TypeVar("T")

BOUNDED = {"add_one": "add", "claim": "claim_bounded", "succeed": "succeed_bounded"}
"""Scripts for plain jobs alone, and those that take their place where there are others; they are told the same."""
BEYOND = 0
"""What the former answer then."""
LIKELY = 100
"""After such an answer, so many calls go to the latter at once."""
SELDOM = 2
"""The same, where the next call is likely to be for the former again."""

MOST_IN_A_SCRIPT = 1000
"""Items that one script takes on: longer scripts would make others wait."""


class Partitions:
    """Calls scripts on the partitions of one store."""

    def __init__(self, connection: Connection, prefix: str, number: int, clock: Clock | None) -> None:
        self.connection = connection
        self.number = number
        self._prefix = prefix
        self._clock = clock
        self._bounded = dict.fromkeys(BOUNDED, 0)

    def key(self, partition: int) -> str:
        """What every key of a partition begins with."""
        return f"{self._prefix}{{{partition}}}"

    @property
    def timed_by_server(self) -> bool:
        """Whether time is the server's own, as it is but in tests and simulations."""
        return self._clock is None

    def of_queue(self, queue: str) -> int:
        return queue_mark(queue) % self.number

    def of_id(self, id: str) -> int:
        return part_of(id, self.number)

    async def call(self, name: str, partition: int, arguments: Iterable[Argument] = ()) -> Any:
        """A script on one partition."""
        told = arguments if isinstance(arguments, list) else list(arguments)
        key, now = self.key(partition), self._now()
        if name not in BOUNDED:
            return await self.connection.call(name, key, now, told)
        if self.is_likely_bounded(name):
            self._bounded[name] -= 1
            return await self.connection.call(BOUNDED[name], key, now, told)
        reply = await self.connection.call(name, key, now, told)
        if reply not in (BEYOND, SELDOM):
            return reply
        self._bounded[name] = LIKELY if reply == BEYOND else 0
        return await self.connection.call(BOUNDED[name], key, now, told)

    def is_likely_bounded(self, name: str) -> bool:
        """Whether a script for plain jobs alone has lately met others."""
        return self._bounded[name] > 0

    def note_bounded(self, name: str) -> None:
        self._bounded[name] = LIKELY

    async def call_surely(self, name: str, partition: int, arguments: list[Argument]) -> tuple[Any, str]:
        """The same, and what is missing until enough replicas have what it wrote."""
        return await self.connection.call_surely(name, self.key(partition), self._now(), arguments)

    def _now(self) -> int:
        return to_micros(self._clock.now()) if self._clock else 0

    def fault(self, partition: int) -> Unavailable | None:
        """Why a partition cannot be asked, where that is known without asking."""
        return self.connection.fault_at(self.key(partition))

    def refuse_away(self, partitions: Iterable[int]) -> None:
        """Raises if one of these is known not to answer."""
        for partition in partitions:
            if (fault := self.fault(partition)) is not None:
                raise fault

    async def each(self, name: str, arguments: Sequence[Argument] = ()) -> list[Any]:
        """A script on every partition."""
        if self.number == 1:
            return [await self.call(name, 0, arguments)]
        return await asyncio.gather(*(self.call(name, partition, arguments) for partition in range(self.number)))

    async def each_there(self, name: str, arguments: Sequence[Argument] = ()) -> dict[int, Any]:
        """The same on those that are not known to be away; raises if all of them are."""
        if self.number == 1:
            return {0: await self.call(name, 0, arguments)}  # also where there is no loop
        there = self.there(range(self.number))
        replies = await asyncio.gather(*(self.call(name, partition, arguments) for partition in there))
        return dict(zip(there, replies, strict=True))

    def there(self, partitions: Iterable[int]) -> list[int]:
        """Those that are not known to be away; raises if all of them are."""
        faults = {partition: self.fault(partition) for partition in partitions}
        found = [partition for partition, fault in faults.items() if fault is None]
        if not found:
            self.refuse_away(faults)
        return found

    async def up_to(self, name: str, limit: int) -> list[Any]:
        """A duty over one partition after another that is there, until so much is done; what they answer."""
        done: list[Any] = []
        for partition in self.there(range(self.number)):
            if len(done) < limit:
                done += await self.call(name, partition, [limit - len(done)])
        return done

    async def spread(
        self,
        name: str,
        items: Sequence[T],
        partition: Callable[[T], int],
        arguments: Callable[[Sequence[T]], Iterable[Argument]],
        width: int = 1,
    ) -> list[Any]:
        """A script over items, each on its partition; `width` answers per item, in their order.

        Nothing is done if one of those partitions is known to be away: what was said of all can be said again of each.
        """
        if width == 1 and self.number == 1 and 0 < len(items) <= MOST_IN_A_SCRIPT:
            only: list[Any] = await self.call(name, 0, arguments(items))
            return only
        answers: list[Any] = [None] * len(items)
        parts = list(self.parts(items, partition))
        self.refuse_away(number for number, _ in parts)
        for number, some in parts:
            reply = await self.call(name, number, arguments([items[place] for place in some]))
            for order, place in enumerate(some):
                answers[place] = reply[order] if width == 1 else reply[order * width : (order + 1) * width]
        return answers

    def parts(self, items: Sequence[T], partition: Callable[[T], int]) -> Iterator[tuple[int, Sequence[int]]]:
        """What goes into one script each: a partition, and the places of its items."""
        for number, places in self._groups(items, partition).items():
            for start in range(0, len(places), MOST_IN_A_SCRIPT):
                yield number, places[start : start + MOST_IN_A_SCRIPT]

    def _groups(self, items: Sequence[T], partition: Callable[[T], int]) -> dict[int, Sequence[int]]:
        """The places of the items of each partition."""
        if self.number == 1:
            return {0: range(len(items))} if items else {}
        groups: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            groups.setdefault(partition(item), []).append(place)
        return dict(groups)
