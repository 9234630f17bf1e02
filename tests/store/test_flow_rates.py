"""What every store promises of rates: so many starts in any window, or a burst of tokens that come back one by one."""

import random
from datetime import timedelta
from typing import Any

import pytest

from tests.support.stores import EACH_CODE, World, ids
from windlass.model.lifecycle import finish, release
from windlass.model.outcome import Outcome, Verdict
from windlass.store.data import Sweep
from windlass.store.flow import LimitRule

pytestmark = pytest.mark.parametrize("kind", EACH_CODE, indirect=True)


def rate(count: int, per: float = 1.0, **more: Any) -> dict[str, LimitRule]:
    return {"default/x": LimitRule(queue="default", count=count, per=per, **more)}


async def started(world: World, slots: int = 100) -> int:
    return len(await world.claim(slots=slots))


async def test_s2_28_no_window_holds_more_starts_than_the_rate_allows(world: World) -> None:
    await world.set_rules(limit_rules=rate(3, 10))
    await world.add_many(60, group="|default/x")
    chance, starts = random.Random(3), []
    for _ in range(60):
        starts += [world.clock.now()] * await started(world, chance.randint(1, 4))
        world.clock.advance(chance.choice([0.000001, 0.5, 1.0, 3.3, 9.999999, 10.0]))
    for first, fourth in zip(starts, starts[3:], strict=False):
        assert fourth - first >= timedelta(seconds=10)
    assert len(starts) > 30, "and it allows as many as it says"


async def test_a_window_ends_exactly_when_it_ends(world: World) -> None:
    await world.set_rules(limit_rules=rate(2, 10))
    await world.add_many(9, group="|default/x")
    assert await started(world) == 2
    world.clock.advance(9.999999)
    assert await started(world) == 0
    world.clock.advance(0.000001)
    assert await started(world) == 2
    world.clock.advance(9.999999)
    assert await started(world) == 0


async def test_a_window_slides(world: World) -> None:
    await world.set_rules(limit_rules=rate(2, 10))
    await world.add_many(9, group="|default/x")
    found = []
    for wait, slots in [(0, 1), (4, 9), (5.9, 9), (0.1, 9), (3.9, 9), (0.1, 9)]:
        world.clock.advance(wait)
        found.append(await started(world, slots))
    assert found == [1, 1, 0, 1, 0, 1]


async def test_a_burst_passes_then_one_start_for_each_token(world: World) -> None:
    """At one a second with a burst of three: three pass, the fourth does not, after 1.5 seconds exactly one does."""
    await world.set_rules(limit_rules=rate(1, 1, burst=3))
    await world.add_many(20, group="|default/x")
    assert await started(world) == 3
    assert await started(world) == 0
    world.clock.advance(1.5)
    assert await started(world) == 1
    world.clock.advance(0.499999)
    assert await started(world) == 0
    world.clock.advance(0.000001)
    assert await started(world) == 1, "the half second was not lost"


async def test_a_burst_grows_no_larger_than_it_is(world: World) -> None:
    await world.set_rules(limit_rules=rate(1, 1, burst=3))
    await world.add_many(20, group="|default/x")
    assert await started(world, 1) == 1
    world.clock.advance(1000.9)
    assert await started(world) == 3
    world.clock.advance(0.999999)
    assert await started(world) == 0, "a full burst does not hurry the next token"
    world.clock.advance(0.000001)
    assert await started(world) == 1


async def test_tokens_may_come_faster_than_seconds(world: World) -> None:
    await world.set_rules(limit_rules=rate(10, 2, burst=2))
    await world.add_many(50, group="|default/x")
    assert await started(world) == 2
    world.clock.advance(0.199999)
    assert await started(world) == 0
    world.clock.advance(0.000001)
    assert await started(world) == 1
    world.clock.advance(0.3)
    assert await started(world) == 1
    world.clock.advance(0.1)
    assert await started(world) == 1


async def test_each_key_has_a_rate_of_its_own(world: World) -> None:
    await world.set_rules(limit_rules=rate(1, 5))
    a, b = await world.add_many(2, group="|default/x=a"), await world.add_many(2, group="|default/x=b")
    assert ids(await world.claim(slots=9)) == [a[0], b[0]]
    world.clock.advance(5)
    assert ids(await world.claim(slots=9)) == [a[1], b[1]]


async def test_other_jobs_pass_by_a_window_that_is_full(world: World) -> None:
    await world.set_rules(limit_rules=rate(1, 60))
    bounded = await world.add_many(3, group="|default/x", priority=-1)
    free = await world.add_many(2)
    assert ids(await world.claim(slots=9)) == [bounded[0], *free]


async def test_a_start_counts_even_if_the_job_is_given_back(world: World) -> None:
    await world.set_rules(limit_rules=rate(1, 10))
    (job,) = await world.add_many(1, group="|default/x")
    held = await world.take()
    assert await world.apply(release(held.job, world.clock.now()), held)
    assert await started(world) == 0
    world.clock.advance(10)
    assert ids(await world.claim()) == [job]


async def test_each_run_of_a_job_is_a_start(world: World) -> None:
    await world.set_rules(limit_rules=rate(2, 10))
    await world.add_many(2, group="|default/x", max_retry=3)
    held = await world.take()
    move = finish(held.job, Outcome(verdict=Verdict.RETRY, delay=1.0), world.clock.now(), 0.5)
    assert await world.apply(move, held)
    world.clock.advance(1)
    await world.store.jobs.sweep(Sweep.PROMOTE, 9)
    assert await started(world) == 1
    assert await started(world) == 0
    world.clock.advance(9)
    assert await started(world) == 1


async def test_a_job_may_be_bound_by_places_and_by_a_rate(world: World) -> None:
    await world.set_rules(limit_rules=rate(2, 10, running=1))
    await world.add_many(5, group="|default/x")
    first = await world.take()
    assert await started(world) == 0
    await world.succeed(first)
    second = await world.take()
    await world.succeed(second)
    assert await started(world) == 0, "there is a place, but the window is full"
    world.clock.advance(10)
    assert await started(world) == 1
    world.clock.advance(10)
    assert await started(world) == 0, "the window is free, but the place is not"


async def test_two_rates_bound_one_job(world: World) -> None:
    slow = LimitRule(queue="default", count=3, per=60)
    await world.set_rules(limit_rules=rate(2, 10) | {"default/y": slow})
    await world.add_many(9, group="|default/x|default/y")
    found = []
    for wait in (0, 10, 10, 39.999999, 0.000001):
        world.clock.advance(wait)
        found.append(await started(world))
    assert found == [2, 1, 0, 0, 2]


async def test_a_higher_count_takes_effect_at_once(world: World) -> None:
    await world.set_rules(limit_rules=rate(1, 60))
    await world.add_many(9, group="|default/x")
    assert await started(world) == 1
    assert await started(world) == 0
    await world.set_rules(limit_rules=rate(3, 60))
    assert await started(world) == 2
    await world.set_rules(limit_rules=rate(1, 60))
    world.clock.advance(59.999999)
    assert await started(world) == 0
    world.clock.advance(0.000001)
    assert await started(world) == 1


async def test_the_time_of_the_next_start_is_reported(world: World) -> None:
    begin = world.clock.now()
    await world.set_rules(limit_rules=rate(2, 10))
    await world.add_many(5, group="|default/x")
    assert await started(world, 1) == 1
    world.clock.advance(4)
    assert await started(world) == 1
    assert await world.store.jobs.next_due(Sweep.UNBLOCK, ["default"]) == pytest.approx(6.0)
    (usage,) = await world.flow.usage("default/x", 9)
    assert (usage.running, usage.waiting, usage.free_at) == (2, 3, begin + timedelta(seconds=10))


async def test_the_time_of_the_next_token_is_reported(world: World) -> None:
    begin = world.clock.now()
    await world.set_rules(limit_rules=rate(1, 4, burst=2))
    await world.add_many(5, group="|default/x")
    assert await started(world) == 2
    world.clock.advance(5)
    assert await started(world) == 1
    assert await world.store.jobs.next_due(Sweep.UNBLOCK, ["default"]) == pytest.approx(3.0)
    (usage,) = await world.flow.usage("default/x", 9)
    assert (usage.running, usage.waiting, usage.free_at) == (3, 2, begin + timedelta(seconds=8))
