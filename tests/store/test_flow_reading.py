"""What every store tells of its flow: who waits, how buckets stand, when something opens, and whom it wakes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.stores import EACH_CODE, World, ids
from windlass.model.lifecycle import cancel, release, shrink
from windlass.store.data import Sweep
from windlass.store.flow import BucketUsage, LimitRule, Regroup, TierRule

pytestmark = pytest.mark.parametrize("kind", EACH_CODE, indirect=True)

FOREVER = datetime(2200, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def limit(**terms: Any) -> dict[str, LimitRule]:
    return {"default/x": LimitRule(queue="default", **terms)}


async def taken(world: World, slots: int = 100, **worker: Any) -> list[str]:
    return ids(await world.claim(world.worker(**worker), slots))


async def roused(world: World) -> None:
    """As upkeep does it: again while there is more, and never without an end."""
    for _ in range(100):
        if not (await world.store.jobs.sweep(Sweep.UNBLOCK, 100)).count:
            return
    raise AssertionError("there is always something left to unblock_ready")


# Who waits


async def test_waiting_jobs_are_listed_by_lane_blocked_or_not(world: World) -> None:
    await world.set_rules(limit_rules=limit(running=1), paused_until={"default,default,shut": FOREVER})
    late = await world.add(priority=2)
    first, last = await world.add(priority=-1), await world.add(priority=2)
    bounded = await world.add_many(3, group="|default/x", priority=-9)
    shut = await world.add("shut", group="~|default/x")
    await world.add(tenant="acme")
    await world.add(queue="other")
    await world.add(delay=5.0)
    assert await taken(world, 1) == bounded[:1]
    found = {(one.task, one.group): one for one in await world.flow.backlog("default", "default", 2)}
    assert {lane: one.count for lane, one in found.items()} == {
        ("work", ""): 3,
        ("work", "|default/x"): 2,
        ("shut", "~|default/x"): 1,
    }
    told = {lane: [(priority, id) for priority, _, id in one.jobs] for lane, one in found.items()}
    assert told == {
        ("work", ""): [(-1, first), (2, late)],
        ("work", "|default/x"): [(-9, id) for id in bounded[1:]],
        ("shut", "~|default/x"): [(0, shut)],
    }
    assert last not in str(told)
    assert {(one.tenant, one.queue) for one in found.values()} == {("default", "default")}


async def test_waiting_jobs_of_all_tenants_come_with_numbers_that_tell_who_came_first(world: World) -> None:
    jobs = [await world.add(tenant=tenant, task=task) for tenant, task in ("ax", "bx", "ay", "by", "ax")]
    found = await world.flow.backlog("-", "default", 10)
    assert {(one.tenant, one.task): one.count for one in found} == {
        ("a", "x"): 2,
        ("b", "x"): 1,
        ("a", "y"): 1,
        ("b", "y"): 1,
    }
    assert [id for _, _, id in sorted(job for one in found for job in one.jobs)] == jobs


async def test_a_queued_job_has_a_rank_among_those_of_its_own_group(world: World) -> None:
    await world.set_rules(limit_rules=limit(running=1))
    plain = await world.add_many(3)
    await world.add_many(2, group="|default/x")
    await world.add("other")
    await world.add(tenant="acme")
    urgent, last = await world.add(priority=-1), await world.add()
    bound = await world.add(group="|default/x")
    assert [await world.rank(id) for id in (urgent, *plain, last, bound)] == [0, 1, 2, 3, 4, 2]
    (held,) = await world.claim(world.worker())
    assert held.job.id == urgent
    later = await world.add(delay=5.0)
    assert [await world.rank(id) for id in (urgent, plain[0], last, later)] == [None, 0, 3, None]
    await world.succeed(held)
    assert await world.rank(urgent) is None
    assert await world.rank("00000000-0000-7000-8000-0000000000df") is None


async def test_no_job_waits_in_an_empty_queue(world: World) -> None:
    await world.add(queue="other")
    assert await world.flow.backlog("-", "default", 10) == []
    (held,) = await world.claim(world.worker("other"))
    assert await world.flow.backlog("-", "other", 10) == []
    await world.succeed(held)
    assert await world.flow.backlog("-", "other", 10) == []


# How buckets stand


async def test_usage_tells_places_and_who_waits_for_them(world: World) -> None:
    await world.set_rules(limit_rules=limit(running=2) | {"default/xx": LimitRule(queue="default", running=9)})
    await world.add_many(5, group="|default/x=a")
    await world.add_many(2, "other", group="|default/x=a|default/xx")
    await world.add(group="|default/x=b")
    await world.claim(slots=9)
    assert await taken(world) == []
    found = sorted(await world.flow.usage("default/x", 10), key=lambda usage: usage.bucket)
    assert found == [
        BucketUsage("default/x=a", running=2, waiting=5, free_at=None),
        BucketUsage("default/x=b", running=1, waiting=0, free_at=None),
    ]
    assert len(await world.flow.usage("default/x", 1)) == 1
    assert await world.flow.usage("default/y", 10) == []


async def test_usage_tells_how_long_a_limit_is_closed(world: World) -> None:
    until = world.clock.now() + 10 * SECOND
    await world.set_rules(limit_rules=limit(running=2, closed_until=until))
    await world.add_many(2, group="|default/x")
    assert await taken(world) == []
    assert await world.flow.usage("default/x", 10) == [BucketUsage("default/x", 0, 2, until)]
    await world.flow.hold("default/x", 20)
    assert await world.flow.usage("default/x", 10) == [BucketUsage("default/x", 0, 2, until + 10 * SECOND)]


async def test_an_unused_bucket_is_not_listed(world: World) -> None:
    await world.set_rules(limit_rules=limit(running=1))
    await world.add(group="|default/x=a")
    held = await world.take()
    assert [usage.bucket for usage in await world.flow.usage("default/x", 9)] == ["default/x=a"]
    await world.succeed(held)
    assert await world.flow.usage("default/x", 9) == []


# When something opens


async def test_nothing_opens_where_nothing_is_passed_by(world: World) -> None:
    assert await world.store.jobs.next_due(Sweep.UNBLOCK, ["default"]) is None
    await world.add()
    assert await world.store.jobs.next_due(Sweep.UNBLOCK, ["default"]) is None


async def test_a_full_limit_does_not_open_by_the_clock(world: World) -> None:
    await world.set_rules(limit_rules=limit(running=1))
    await world.add_many(2, group="|default/x")
    await taken(world)
    assert await taken(world) == []
    assert await world.store.jobs.next_due(Sweep.UNBLOCK, ["default"]) is None


@pytest.mark.parametrize("how", ["closed", "held", "shut"])
async def test_what_is_passed_by_for_a_time_opens_when_it_is_over(world: World, how: str) -> None:
    until = world.clock.now() + 10 * SECOND
    await world.set_rules(
        limit_rules=limit(closed_until=until if how == "closed" else None),
        paused_until={"*,default,work": until} if how == "shut" else {},
    )
    if how == "held":
        await world.flow.hold("default/x", 10)
    job = await world.add(group="|default/x")
    await world.add(queue="other")
    assert await taken(world) == []
    assert await world.store.jobs.next_due(Sweep.UNBLOCK, ["default"]) == pytest.approx(10.0)
    assert await world.store.jobs.next_due(Sweep.UNBLOCK, ["other"]) is None
    world.clock.advance(4)
    assert await world.store.jobs.next_due(Sweep.UNBLOCK, ["other", "default"]) == pytest.approx(6.0)
    world.clock.advance(6)
    assert await taken(world) == [job]
    assert await world.store.jobs.next_due(Sweep.UNBLOCK, ["default"]) is None


async def test_the_first_opening_counts(world: World) -> None:
    now = world.clock.now()
    await world.set_rules(
        limit_rules=limit(closed_until=now + 30 * SECOND),
        paused_until={"*,default,b": now + 20 * SECOND},
    )
    await world.add("a", group="|default/x")
    await world.add("b")
    assert await taken(world) == []
    assert await world.store.jobs.next_due(Sweep.UNBLOCK, ["default"]) == pytest.approx(20.0)


async def test_what_is_closed_for_ever_never_opens(world: World) -> None:
    await world.set_rules(limit_rules=limit(closed_until=FOREVER))
    await world.add(group="|default/x")
    assert await taken(world) == []
    opening = await world.store.jobs.next_due(Sweep.UNBLOCK, ["default"])
    assert opening is None or opening > 1e9


# What was overlooked


async def test_there_is_nothing_to_unblock_ready_in_a_store_at_rest(world: World) -> None:
    assert (await world.store.jobs.sweep(Sweep.UNBLOCK, 100)).count == 0
    await world.set_rules(limit_rules=limit(running=1))
    await world.add_many(3, group="|default/x")
    await world.add()
    await taken(world)
    await roused(world)
    assert (await world.store.jobs.sweep(Sweep.UNBLOCK, 100)).count == 0


async def test_nothing_waits_forever_because_others_are_of_unknown_tasks(world: World) -> None:
    """One limit over many keys: whoever is let through first when a place is free may find no worker."""
    await world.set_rules(limit_rules=limit(running=3) | {"default/all": LimitRule(queue="default", running=1)})
    first = await world.add("known", group="|default/x=first|default/all")
    for number in range(60):
        await world.add("unknown", group=f"|default/x={number}|default/all", priority=-1)
    mine = await world.add("known", group="|default/x=last|default/all")
    (held,) = await world.claim(world.worker(tasks=["known"]), 1)
    assert held.job.id == first
    assert await taken(world) == []
    await world.succeed(held)
    await roused(world)
    assert await taken(world, tasks=["known"]) == [mine]
    await roused(world)
    assert await taken(world) == []


async def test_many_keys_behind_one_limit_are_served_in_order_to_the_last(world: World) -> None:
    await world.set_rules(limit_rules={"default/all": LimitRule(queue="default", running=2)})
    jobs = [await world.add(group=f"|default/x={number}|default/all") for number in range(40)]
    held, done = await world.claim(slots=9), []
    assert await taken(world) == []
    while held:
        done.append(held[0].job.id)
        await world.succeed(held.pop(0))
        held += await world.claim(slots=9)
        assert len(held) <= 2
    assert done == jobs


async def test_many_keys_are_all_let_through_when_the_limit_is_taken_away(world: World) -> None:
    await world.set_rules(limit_rules={"default/all": LimitRule(queue="default", running=1)})
    jobs = [await world.add(group=f"|default/x={number}|default/all") for number in range(60)]
    assert await taken(world) == jobs[:1]
    assert await taken(world) == []
    await world.set_rules(limit_rules={})
    await roused(world)
    assert await taken(world) == jobs[1:]


async def test_rules_that_change_while_much_is_passed_by_leave_nothing_behind(world: World) -> None:
    await world.set_rules(limit_rules=limit(running=1))
    jobs = [await world.add(group=f"|default/x={number % 3}") for number in range(9)]
    held = await world.claim(slots=9)
    await world.set_rules(limit_rules=limit(closed_until=FOREVER), paused_until={"*,*,work": FOREVER})
    assert await taken(world) == []
    await world.set_rules(limit_rules=limit(running=2), paused_until={})
    await roused(world)
    assert await taken(world) == jobs[3:6]
    await world.set_rules(limit_rules=limit(running=2), paused_until={"*,*,work": world.clock.now() + SECOND})
    for record in held:
        await world.succeed(record)
    assert await taken(world) == []
    world.clock.advance(1)
    await roused(world)
    assert await taken(world) == jobs[6:]


# Whoever waits hears of it


async def parked(world: World) -> None:
    """A job that runs, and one that is passed by for it."""
    await world.set_rules(limit_rules=limit(running=1))
    await world.add_many(2, group="|default/x")


@pytest.mark.parametrize("how", ["succeeds", "is released", "is moved", "finds a wider limit", "finds no limit"])
async def test_idle_workers_hear_when_what_was_passed_by_may_run(world: World, how: str) -> None:
    await parked(world)
    held = await world.take()
    assert await taken(world) == []
    async with world.store.events.listen(["work/default"]) as listener:
        if how == "succeeds":
            await world.succeed(held)
        elif how == "is released":
            await world.apply(release(held.job, world.clock.now()), held)
        elif how == "is moved":
            await world.flow.regroup([Regroup(held.job.id, held.job.tenant, "|default/x", "")])
        else:
            await world.set_rules(limit_rules=limit(running=2) if how == "finds a wider limit" else {})
        assert await listener.wait(PATIENCE)
    assert len(await taken(world)) == 1


@pytest.mark.parametrize("how", ["closed", "held", "shut", "paced"])
async def test_idle_workers_hear_when_the_time_has_come(world: World, how: str) -> None:
    until = world.clock.now() + 10 * SECOND
    terms: dict[str, dict[str, Any]] = {"closed": {"closed_until": until}, "paced": {"count": 1, "per": 10.0}}
    await world.set_rules(
        limit_rules=limit(**terms.get(how, {})), paused_until={"*,default,work": until} if how == "shut" else {}
    )
    if how == "held":
        await world.flow.hold("default/x", 10)
    await world.add_many(2, group="|default/x")
    await taken(world)
    assert await taken(world) == []
    world.clock.advance(10)
    async with world.store.events.listen(["work/default"]) as listener:
        assert (await world.store.jobs.sweep(Sweep.UNBLOCK, 100)).count == 1
        assert await listener.wait(PATIENCE)
    assert await taken(world)


async def test_idle_workers_hear_when_a_lane_is_opened(world: World) -> None:
    await world.set_rules(paused_until={"*,default,work": FOREVER})
    job = await world.add()
    assert await taken(world) == []
    async with world.store.events.listen(["work/default"]) as listener:
        await world.set_rules(paused_until={})
        assert await listener.wait(PATIENCE)
    assert await taken(world) == [job]


async def test_idle_workers_hear_when_a_shrink_makes_room(world: World) -> None:
    levels = [TierRule(name="fast", seconds=3.0, cap=9), TierRule(name="slow", seconds=30.0, cap=1)]
    await world.set_rules(tiers={"default,default": levels})
    await world.add(group="~")
    held = await world.take()
    waits = await world.add(group="=slow")
    assert await taken(world) == []
    async with world.store.events.listen(["work/default"]) as listener:
        await world.apply(shrink(held.job, "fast", 3.0), held)
        assert await listener.wait(PATIENCE)
    assert await taken(world) == [waits]


async def test_no_worker_is_woken_when_plain_jobs_end(world: World) -> None:
    await world.add_many(3)
    first, second = await world.claim(slots=2)
    async with world.store.events.listen(["work/default"]) as listener:
        await world.succeed(first)
        await world.apply(cancel(second.job), second)
        assert not await listener.wait(0.1)
