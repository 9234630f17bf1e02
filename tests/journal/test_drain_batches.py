"""What a journal gives to a store: in time, and so that what is away holds nothing else up."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.drained_journals import taken
from tests.support.faulty_disk import draft, number_of
from tests.support.patience import PATIENCE
from tests.support.stores import SeededChance
from windlass.engine import Engine
from windlass.engine.journal import drain
from windlass.engine.journal.batch import Entry
from windlass.engine.journal.drain import Drainer, DrainTarget
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


class InTwo(Slow):
    """A store whose second partition can be away."""

    def __init__(self) -> None:
        super().__init__(2)
        self.away = False
        self.marks = [0, 0]

    def partition_of(self, draft: Draft) -> int:
        return number_of(draft) % 2

    async def drain(self, request: DrainRequest) -> DrainReply:
        if self.away and request.partition:
            raise PartAway("a part does not answer")
        self.marks[request.partition] = max(self.marks[request.partition], request.upto)
        return DrainReply(self.marks[request.partition], [True] * len(request.drafts))


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


async def test_the_log_says_how_many_jobs_are_read_again_when_a_part_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "windlass.journal")
    monkeypatch.setattr(drain, "CHECK_EVERY", 0.01)
    store, journal = InTwo(), taken(tmp_path)
    engine = Engine(SqliteStore.open(":memory:", SystemClock()), SeededChance())
    drainer = Drainer(journal, store, engine.context, SystemClock())
    running = asyncio.create_task(drainer.run())
    try:
        await journal.accept([draft(number) for number in range(4)])
        await until(lambda: min(store.marks) == 4)
        store.away = True
        await until(lambda: drainer.some_away)
        await journal.accept([draft(number) for number in range(4, 10)])
        await until(lambda: store.marks == [10, 4])
        store.away = False
        await until(lambda: "are back" in caplog.text)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await journal.close()
    assert "all parts of the store are back; 6 jobs are read again" in caplog.text


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that sends no signal."""
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
