"""What a long absence of the store leaves is drained beside those who enqueue meanwhile, not before them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.drained_journals import engine_at, in_order, until
from tests.support.faulty_disk import draft
from tests.support.servers import NewPrefix, Server
from tests.support.stores import journal_of
from windlass.engine import Engine
from windlass.engine.journal import Journal, JournalSettings
from windlass.engine.journal.drain import LONGEST_PAUSE, MOST_AT_ONCE, Drainer
from windlass.system import SystemClock, SystemRandomness

BACKLOG = 12 * MOST_AT_ONCE


class Pauses(SystemClock):
    """Notes how long the drain lets others run on purpose."""

    def __init__(self) -> None:
        self.noted: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds:
            self.noted.append(seconds)
        await super().sleep(seconds)


@pytest.fixture
def clock() -> Pauses:
    return Pauses()


@asynccontextmanager
async def draining(engine: Engine, clock: Pauses, folder: Path) -> AsyncIterator[Journal]:
    """A journal with many jobs that is being drained."""
    journal = Journal(folder, clock, SystemRandomness(), JournalSettings())
    assert journal.open()
    await journal.accept([draft(number) for number in range(BACKLOG)])
    drainer = Drainer(journal, journal_of(engine.context.store), engine.context, clock)
    await drainer.start()
    running = asyncio.create_task(drainer.run())
    try:
        yield journal
        await until(lambda: _all_drained(journal))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await journal.close()


async def _all_drained(journal: Journal) -> bool:
    return journal.drained == journal.last


async def test_the_drain_leaves_time_to_those_who_enqueue_while_much_waits(
    redis_server: Server, new_prefix: NewPrefix, clock: Pauses, tmp_path: Path
) -> None:
    async with engine_at(redis_server.url, new_prefix()) as engine:
        newcomers = 0
        async with draining(engine, clock, tmp_path) as journal:
            while BACKLOG - journal.drained > 2 * MOST_AT_ONCE:
                await journal.accept([draft(BACKLOG + newcomers)])
                newcomers += 1
        assert len(clock.noted) >= 5, "after most of its steps"
        assert max(clock.noted) <= LONGEST_PAUSE
        assert await in_order(engine) == list(range(BACKLOG + newcomers))


async def test_without_callers_the_drain_does_not_pause(
    redis_server: Server, new_prefix: NewPrefix, clock: Pauses, tmp_path: Path
) -> None:
    async with engine_at(redis_server.url, new_prefix()) as engine:
        async with draining(engine, clock, tmp_path):
            pass
        assert clock.noted == []
        assert await in_order(engine) == list(range(BACKLOG))
