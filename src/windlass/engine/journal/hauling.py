"""Gives batches of the journal to a strand of the store: in time, each job in its group, aged by what it has waited."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec.structs import replace

from windlass.engine.desk import MOST_ROUNDS, Desk
from windlass.engine.following import unblock
from windlass.engine.journal.runs import Entry
from windlass.model.errors import PartAway, Unavailable
from windlass.model.names import JobKey, key_of
from windlass.model.ports import Clock
from windlass.store import Draft
from windlass.store.beside import Haul, Hauled, Ledger
from windlass.store.flow import StaleRules
from windlass.store.micros import to_micros

T = TypeVar("T")

ANSWER_WITHIN = 2.0
"""Seconds after which a store that says nothing counts as down."""
PART_AWAY_WITHIN = 6.0
"""The same of one in several parts: longer than it takes to find out that only one of them says nothing."""
OLD = 1_000_000
"""Microseconds that a job must have waited here before its delay is shortened by it."""

ANY = -1
"""The mark of no store: asks for what it is."""


class Hauling:
    """What a journal, under its name, has carried to one store."""

    def __init__(self, name: str, ledger: Ledger, desk: Desk, clock: Clock) -> None:
        self._name = name
        self._desk = desk
        self._clock = clock
        self.ledger = ledger

    @property
    def replicated_within(self) -> float:
        """Seconds that replicas have for what is to be had surely."""
        return (self._desk.sure.replicated_within if self._desk.sure else None) or 0.0

    @property
    def can_be_sure(self) -> bool:
        return self._desk.sure is not None

    async def ready(self) -> None:
        """Raises if the store does not answer."""
        await in_time(self.ledger.ready(), ANSWER_WITHIN)

    async def mark(self, strand: int) -> int:
        """How far it is."""
        return (await self._haul(strand, ANY, 0, ())).mark

    async def move(self, strand: int, mark: int, upto: int) -> int:
        """Bring a mark up to date where there is nothing to carry; where it is then."""
        return (await self._haul(strand, mark, upto, ())).mark

    async def carry(self, strand: int, since: int, upto: int, entries: Sequence[Entry], *, surely: bool) -> Hauled:
        """Give jobs to the store, each in its group under the rules in force. Those that wait are decided at once."""
        drafts = [aged(entry, self._clock) for entry in entries]
        hauled = await self._carry(strand, since, upto, drafts, surely=surely)
        if hauled.mark == upto and (waiting := [key_of(draft) for draft in drafts if draft.new.after]):
            await self._unblock(waiting)
        return hauled

    async def _carry(self, strand: int, since: int, upto: int, drafts: Sequence[Draft], *, surely: bool) -> Hauled:
        for _ in range(MOST_ROUNDS):
            regime = await self._desk.regimes.current()
            try:
                return await self._haul(strand, since, upto, regime.all_admitted(drafts), surely=surely)
            except StaleRules:
                self._desk.regimes.forget()
        raise Unavailable("the rules change faster than jobs can be drained")

    async def _haul(
        self, strand: int, since: int, upto: int, drafts: Sequence[Draft], *, surely: bool = False
    ) -> Hauled:
        haul = Haul(self._name, strand, since, upto, drafts, surely)
        within = ANSWER_WITHIN if self.ledger.strands == 1 else PART_AWAY_WITHIN
        return await in_time(self.ledger.drain(haul), within + (self.replicated_within if surely else 0.0))

    async def _unblock(self, waiting: Sequence[JobKey]) -> None:
        """Those that wait for something in a part that is away are looked after when it is back."""
        try:
            await unblock(self._desk, waiting)
        except PartAway:
            for key in waiting:
                with suppress(PartAway):
                    await unblock(self._desk, [key])


async def in_time(answer: Awaitable[T], within: float) -> T:
    try:
        async with asyncio.timeout(within):
            return await answer
    except TimeoutError:
        raise Unavailable(f"the store does not answer: nothing came within {within:g} s") from None


def aged(entry: Entry, clock: Clock) -> Draft:
    """A job as the store is to take it: the time that it has waited here counts."""
    draft = entry.draft
    assert draft is not None  # noqa: S101 - others are put aside
    new = draft.new
    if new.delay is None and new.expires is None:
        return draft
    waited = to_micros(clock.now()) - entry.accepted
    if waited < OLD:
        return draft
    seconds = waited / 1_000_000
    delay = None if new.delay is None else max(0.0, new.delay - seconds)
    expires = None if new.expires is None else max(0.0, new.expires - seconds)
    return replace(draft, new=replace(new, delay=delay, expires=expires))
