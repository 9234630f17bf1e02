"""A store's time never goes back: a host's clock that is set back holds up nothing."""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.stores import SeededChance, VirtualClock, World, ids, open_store
from windlass.store.data import Overdue, Sweep

HOUR = 3600.0


async def swept(world: World) -> list[str]:
    return [job.id for job in (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).jobs]


async def lost(world: World) -> list[str]:
    found = (await world.store.jobs.overdue(Overdue.LEASE, 10)).records
    return ids([record for record in found if record is not None])


async def passed_until(world: World, happens: Callable[[World], Awaitable[list[str]]]) -> int:
    """Seconds that pass until jobs are found, while workers are busy with others."""
    for seconds in range(1000):
        if await happens(world):
            return seconds
        world.clock.advance(1)
        await world.claim(world.worker("other"))
    raise AssertionError


@pytest.mark.parametrize("back", [10.0, HOUR, 24 * HOUR])
async def test_delays_and_leases_run_on_when_the_clock_is_set_back(world: World, back: float) -> None:
    taken = await world.add()
    await world.take(lease=30)
    delayed = await world.add(delay=60)
    world.clock.advance(-back)
    first = await passed_until(world, lost)
    assert await lost(world) == [taken]
    assert 30 <= first <= 35  # a tenth slower, and up to a second that was not noted
    assert 60 <= first + await passed_until(world, swept) <= 69
    assert ids(await world.claim()) == [delayed]


async def test_nothing_ends_early_when_the_clock_is_set_back_again_and_again(world: World) -> None:
    await world.add()
    await world.take(lease=30)
    for _ in range(20):
        world.clock.advance(-HOUR)
        assert await lost(world) == []
        world.clock.advance(1.1)
        await swept(world)
        assert await lost(world) == []
    assert 10 <= await passed_until(world, lost) <= 16


async def test_no_time_on_record_goes_back(world: World) -> None:
    await world.add()
    before = await world.take()
    world.clock.advance(-HOUR)
    id = await world.add()
    after = await world.take()
    assert after.job.id == id
    assert after.job.created_at >= before.job.created_at
    assert before.job.started_at is not None
    assert after.job.started_at is not None
    assert after.job.started_at >= before.job.started_at


async def ahead(world: World) -> float:
    await swept(world)
    return ((await world.store.jobs.read([])).now - world.clock.now()).total_seconds()


async def test_the_hosts_clock_is_followed_again_when_it_has_caught_up(world: World) -> None:
    assert await ahead(world) == 0
    world.clock.advance(-100)
    for passed in range(1000):
        assert await ahead(world) == pytest.approx(100 - 0.1 * passed, abs=0.1)
        world.clock.advance(1)
    world.clock.advance(2)
    assert await ahead(world) == 0


async def test_a_clock_set_forward_again_ends_it(world: World) -> None:
    await ahead(world)
    for _ in range(10):
        world.clock.advance(-HOUR)
        assert await ahead(world) > HOUR - 200
        world.clock.advance(HOUR)
        assert await ahead(world) < 200
    world.clock.advance(-10)


async def test_a_clock_set_back_while_no_process_ran_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = str(tmp_path / "jobs.db"), VirtualClock()
    async with open_store("file", path, clock) as store:
        world = World(store, clock, SeededChance(1))
        id = await world.add(delay=60)
    clock.advance(-HOUR)
    with caplog.at_level(logging.WARNING):
        async with open_store("file", path, clock) as store:
            world = World(store, clock, SeededChance(2))
            assert 60 <= await passed_until(world, swept) <= 69
            assert ids(await world.claim()) == [id]
    assert caplog.messages == ["the clock of this host was set back by 3600 s: the store's time goes on, slower"]
