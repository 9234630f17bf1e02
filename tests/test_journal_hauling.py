"""What a journal gives to a store: in time, and so that what is away holds nothing else up."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.journals import draft
from tests.worlds import SeededChance
from windlass.engine import Engine
from windlass.engine.journal import hauling
from windlass.engine.journal.hauling import Hauling
from windlass.engine.journal.runs import Entry
from windlass.model.errors import PartAway, Unavailable
from windlass.model.names import JobKey
from windlass.store import Draft
from windlass.store.beside import Haul, Hauled
from windlass.store.sqlite import SqliteStore
from windlass.system import SystemClock


class Slow:
    """A store in so many strands that answers after a while."""

    def __init__(self, strands: int, after: float = 0.0) -> None:
        self.strands = strands
        self._after = after

    def strand(self, _: Draft) -> int:
        return 0

    async def ready(self) -> None: ...

    async def drain(self, haul: Haul) -> Hauled:
        await asyncio.sleep(self._after)
        return Hauled(haul.upto, [True] * len(haul.drafts))


def hauling_to(ledger: Slow) -> Hauling:
    engine = Engine(SqliteStore.open(":memory:", SystemClock()), SeededChance())
    return Hauling("j", ledger, engine.desk, SystemClock())


@pytest.mark.parametrize(("strands", "answers"), [(1, False), (3, True)])
async def test_a_store_in_parts_has_time_to_find_out_which_of_them_is_away(
    monkeypatch: pytest.MonkeyPatch, strands: int, answers: bool
) -> None:
    monkeypatch.setattr(hauling, "ANSWER_WITHIN", 0.05)
    monkeypatch.setattr(hauling, "PART_AWAY_WITHIN", 5.0)
    found = hauling_to(Slow(strands, after=0.3))
    if answers:
        assert await found.move(0, 1, 2) == 2
    else:
        with pytest.raises(Unavailable, match=r"nothing came within 0\.05 s"):
            await found.move(0, 1, 2)


async def test_a_job_that_waits_for_what_is_away_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = draft(0).id
    entries = [Entry(n, 0, draft(n, after=[parent]), b"") for n in (1, 2, 3)]
    lost = entries[1].draft
    seen: list[str] = []

    async def unblock(_desk: Any, keys: Sequence[JobKey]) -> None:
        if lost is not None and lost.id in [key.id for key in keys]:
            raise PartAway("a part does not answer")
        seen.extend(key.id for key in keys)

    monkeypatch.setattr(hauling, "unblock", unblock)
    found = hauling_to(Slow(3))
    assert (await found.carry(0, 0, 3, entries, surely=False)).mark == 3
    assert seen == [entry.draft.id for entry in (entries[0], entries[2]) if entry.draft is not None]
