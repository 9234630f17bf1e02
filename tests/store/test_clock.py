"""A store's time never goes back: a host's clock that is set back holds up nothing."""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.servers import NewPrefix, StartServer
from tests.support.stores import SeededChance, VirtualClock, World, ids, open_store
from windlass.model.job import State
from windlass.model.lifecycle import finish
from windlass.model.outcome import Outcome, Verdict
from windlass.model.retry import RetryPolicy
from windlass.store.data import Overdue, Sweep
from windlass.store.flow import LimitRule

HOUR = 3600.0


async def swept(world: World) -> list[str]:
    return [job.id for job in (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).jobs]


async def lost(world: World) -> list[str]:
    found = (await world.store.jobs.overdue(Overdue.LEASE, 10)).records
    return ids([record for record in found if record is not None])


async def expired(world: World) -> list[str]:
    found = (await world.store.jobs.overdue(Overdue.EXPIRY, 10)).records
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


@pytest.mark.parametrize("back", [10.0, HOUR, 24 * HOUR])
async def test_retries_and_expiry_run_on_when_the_clock_is_set_back(world: World, back: float) -> None:
    failing = await world.add(max_retry=1, retry=RetryPolicy(base=30, jitter=0))
    expiring = await world.add(expires=60)
    taken = await world.take()
    now = (await world.store.jobs.read([])).now
    assert await world.apply(finish(taken.job, Outcome(verdict=Verdict.ERROR), now, 0.5), taken)
    world.clock.advance(-back)
    first = await passed_until(world, swept)
    assert 30 <= first <= 35
    assert (await world.job(failing)).state is State.QUEUED
    assert 60 <= first + await passed_until(world, expired) <= 69
    assert await expired(world) == [expiring]


@pytest.mark.parametrize("back", [10.0, HOUR, 24 * HOUR])
@pytest.mark.parametrize("burst", [None, 2], ids=["window", "tokens"])
async def test_rates_run_on_when_the_clock_is_set_back(world: World, back: float, burst: int | None) -> None:
    await world.set_rules(limit_rules={"default/x": LimitRule(queue="default", count=2, per=60, burst=burst)})
    await world.add_many(5, group="|default/x")
    assert len(await world.claim(slots=9)) == 2
    world.clock.advance(-back)

    async def started(world: World) -> list[str]:
        return ids(await world.claim(slots=1))

    least = 60 if burst is None else 30
    assert least <= await passed_until(world, started) <= least + 9


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


async def test_a_server_whose_clock_was_set_back_writes_it_to_its_own_log(
    start_server: StartServer, new_prefix: NewPrefix
) -> None:
    server, clock = start_server("redis"), VirtualClock()
    async with open_store("redis", server.url, clock, new_prefix()) as store:
        world = World(store, clock, SeededChance(1))
        await world.add()
        clock.advance(-HOUR)
        await world.take()
    assert "windlass: the clock was set back by 3600 s" in (server.folder / "server.log").read_text()
