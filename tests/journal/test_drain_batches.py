"""What a journal gives to a store: in time, and so that what is away holds nothing else up."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.faulty_disk import draft
from tests.support.stores import SeededChance
from windlass.engine import Engine
from windlass.engine.journal import drain
from windlass.engine.journal.batch import Entry
from windlass.engine.journal.drain import DrainTarget
from windlass.model.errors import PartAway, Unavailable
from windlass.model.names import JobKey
from windlass.store.data import Draft, DrainReply, DrainRequest
from windlass.store.sqlite import SqliteStore
from windlass.system import SystemClock


class Slow:
    """A store in so many partitions that answers after a while."""

    def __init__(self, strands: int, after: float = 0.0) -> None:
        self.partition_count = strands
        self.replicated_within: float | None = None
        self._after = after

    def partition_of(self, _: Draft) -> int:
        return 0

    async def ready(self) -> None: ...

    async def drain(self, request: DrainRequest) -> DrainReply:
        await asyncio.sleep(self._after)
        return DrainReply(request.upto, [True] * len(request.drafts))


def target(store: Slow) -> DrainTarget:
    engine = Engine(SqliteStore.open(":memory:", SystemClock()), SeededChance())
    return DrainTarget("j", store, engine.context, SystemClock())


@pytest.mark.parametrize(("strands", "answers"), [(1, False), (3, True)])
async def test_a_store_in_parts_has_time_to_find_out_which_of_them_is_away(
    monkeypatch: pytest.MonkeyPatch, strands: int, answers: bool
) -> None:
    monkeypatch.setattr(drain, "ANSWER_WITHIN", 0.05)
    monkeypatch.setattr(drain, "PART_AWAY_WITHIN", 5.0)
    found = target(Slow(strands, after=0.3))
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

    monkeypatch.setattr(drain, "unblock", unblock)
    found = target(Slow(3))
    assert (await found.carry(0, 0, 3, entries)).mark == 3
    assert seen == [entry.draft.id for entry in (entries[0], entries[2]) if entry.draft is not None]
