"""Jobs by the part of the store that they lie in: what cannot be said of all of them may be said of some.

How many parts there are is the store's business. But ids end alike where queues are the same, and a queue lies in one.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from windlass.model.errors import Unavailable

Part = str


class Named(Protocol):
    """What is said of a job."""

    @property
    def id(self) -> str: ...


N = TypeVar("N", bound=Named)


def part_of(said: Named) -> Part:
    return said.id[-2:]


def by_part(said: Iterable[N]) -> dict[Part, list[N]]:
    parts: dict[Part, list[N]] = {}
    for one in said:
        parts.setdefault(part_of(one), []).append(one)
    return parts


def apart(said: Iterable[N]) -> list[list[N]]:
    """Lists in which no id is twice, mostly one: answers name ids, and jobs of two tenants may have the same."""
    lists: list[list[N]] = [[]]
    met: Counter[str] = Counter()
    for one in said:
        if met[one.id] == len(lists):
            lists.append([])
        lists[met[one.id]].append(one)
        met[one.id] += 1
    return lists


async def tell_all(
    said: Sequence[N], tell: Callable[[Sequence[N]], Awaitable[None]], *, apart: bool
) -> Unavailable | None:
    """Tell it, together or `apart`, of each part by itself; what kept some of it from being told."""
    if not said:
        return None
    letters = [*by_part(said).values()] if apart else [said]
    faults = await asyncio.gather(*(_told(some, tell) for some in letters))
    return next((fault for fault in faults if fault is not None), None)


async def _told(said: Sequence[N], tell: Callable[[Sequence[N]], Awaitable[None]]) -> Unavailable | None:
    try:
        await tell(said)
    except Unavailable as fault:
        return fault
    return None
