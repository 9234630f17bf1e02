"""What every store promises of its rules: they change at once for all, jobs move between groups, lanes are shut."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from tests.support.stores import EACH_CODE, World, ids
from windlass.model.dependency import unblock
from windlass.model.job import State
from windlass.model.lifecycle import cancel, delete
from windlass.model.names import DEFAULT_TENANT
from windlass.store.data import Sweep
from windlass.store.flow import LimitRule, Regroup, Rules, StaleRules, TierRule

pytestmark = pytest.mark.parametrize("kind", EACH_CODE, indirect=True)

FOREVER = datetime(2200, 1, 1, tzinfo=UTC)
ONE = {"default/x": LimitRule(queue="default", running=1)}


async def taken(world: World, slots: int = 100) -> list[str]:
    return ids(await world.claim(world.worker("default", "other", tenant="-"), slots))


async def group_of(world: World, id: str) -> str:
    record = await world.record(id)
    assert record is not None
    return record.group


# Rules are put in force


async def test_a_store_has_no_rules_at_first(world: World) -> None:
    assert await world.flow.rules() == Rules()


async def test_rules_are_kept_as_they_were_given(world: World) -> None:
    moment = world.clock.now() + timedelta(days=3, microseconds=1)
    rules = Rules(
        version=1,
        group_epoch=7,
        limit_rules={
            "default/x": LimitRule(running=3, count=1, per=0.5, burst=9, queue="default", closed_until=moment),
            "acme/y": LimitRule(queue="other", closed_until=FOREVER),
        },
        tiers={
            "default,default": [TierRule(name="fast", seconds=0.5, cap=3), TierRule(name="slow", seconds=60.0, cap=0)]
        },
        fair_queues={"default": {"acme": 1.5}, "other": {}},
        fair_tenant_queues={"*,default": {}, "acme,other": {"work": 0.1}},
        paused_until={"acme,*,work": moment, "*,other,*": FOREVER},
        regrouping=["acme,*,*"],
        fingerprints={"default/x": "*,default,*#1f"},
    )
    assert await world.flow.set_rules(rules)
    assert await world.flow.rules() == rules
    assert await world.flow.set_rules(Rules(version=2))
    assert await world.flow.rules() == Rules(version=2)


@pytest.mark.parametrize("version", [0, 1, 3, 99])
async def test_only_the_next_edition_is_put_in_force(world: World, version: int) -> None:
    await world.set_rules(limit_rules=ONE)
    before = await world.flow.rules()
    assert not await world.flow.set_rules(Rules(version=version))
    assert await world.flow.rules() == before


async def test_of_many_changes_at_once_one_is_made(world: World) -> None:
    changes = [Rules(version=1, fair_queues={f"q{n}": {}}) for n in range(10)]
    made = await asyncio.gather(*(world.flow.set_rules(rules) for rules in changes))
    assert made.count(True) == 1
    assert await world.flow.rules() == changes[made.index(True)]


async def test_jobs_that_were_sorted_by_other_rules_are_refused(world: World) -> None:
    await world.set_rules(group_epoch=1)
    right, queue = world.draft(group="|default/x"), "other"
    stale = replace(world.draft(queue=queue), group_epoch=0)
    with pytest.raises(StaleRules):
        await world.store.jobs.add([stale])
    with pytest.raises(StaleRules):
        await world.store.jobs.add([right, stale])
    with pytest.raises(StaleRules):
        await world.store.jobs.add([replace(right, group_epoch=2)])
    assert await world.jobs() == []
    assert await world.store.jobs.add([right]) == [True]
    with pytest.raises(StaleRules):
        await world.store.jobs.add([replace(right, group_epoch=0)])


async def test_jobs_with_limit_keys_of_an_earlier_version_are_taken_if_the_keys_are_the_same(world: World) -> None:
    await world.set_rules(group_epoch=3)
    draft = world.draft()
    await world.set_rules(limit_rules=ONE)
    assert await world.store.jobs.add([draft]) == [True]


# Jobs move between groups


async def test_a_waiting_job_moves_to_another_group(world: World) -> None:
    await world.set_rules(limit_rules=ONE)
    first, second = await world.add_many(2, group="|default/x")
    free = await world.add()
    assert await taken(world, 1) == [first]
    changes = [Regroup(second, DEFAULT_TENANT, "|default/x", ""), Regroup(free, DEFAULT_TENANT, "", "|default/x")]
    assert await world.flow.regroup(changes) == [True, True]
    assert (await group_of(world, second), await group_of(world, free)) == ("", "|default/x")
    assert await taken(world) == [second]


async def test_a_job_that_is_passed_by_moves_and_is_claimed(world: World) -> None:
    await world.set_rules(limit_rules=ONE)
    jobs = await world.add_many(3, group="|default/x")
    assert await taken(world) == jobs[:1]
    assert await taken(world) == []
    assert await world.flow.regroup([Regroup(id, DEFAULT_TENANT, "|default/x", "|default/x=a") for id in jobs[1:]]) == [
        True,
        True,
    ]
    assert await taken(world) == jobs[1:2]


async def test_a_running_jobs_places_follow_it(world: World) -> None:
    await world.set_rules(limit_rules=ONE)
    first, second = await world.add_many(2, group="|default/x")
    held = await world.take()
    assert await world.flow.regroup([Regroup(first, DEFAULT_TENANT, "|default/x", "|default/x=a")]) == [True]
    assert await taken(world) == [second]
    other = await world.add(group="|default/x=a")
    assert await taken(world) == []
    await world.succeed(held)
    assert await taken(world) == [other]


async def test_running_jobs_may_fill_a_bucket_beyond_its_limit(world: World) -> None:
    await world.set_rules(limit_rules=ONE)
    jobs = await world.add_many(3)
    held = await world.claim(slots=3)
    assert await world.flow.regroup([Regroup(id, DEFAULT_TENANT, "", "|default/x") for id in jobs]) == [True] * 3
    waits = await world.add(group="|default/x")
    for record in held:
        assert await taken(world) == []
        await world.succeed(record)
    assert await taken(world) == [waits]


async def test_scheduled_and_blocked_jobs_move_too(world: World) -> None:
    await world.set_rules(limit_rules=ONE)
    parent = await world.add()
    later, blocked = await world.add(delay=5.0), await world.add(after=[parent])
    assert await world.flow.regroup([Regroup(id, DEFAULT_TENANT, "", "|default/x") for id in (later, blocked)]) == [
        True,
        True,
    ]
    await world.succeed(await world.take())
    move = unblock(await world.job(blocked), {parent: State.SUCCEEDED}, world.clock.now())
    assert move is not None
    assert await world.apply(move)
    world.clock.advance(5)
    await world.store.jobs.sweep(Sweep.PROMOTE, 9)
    assert await taken(world) == [later]
    assert (await group_of(world, later), await group_of(world, blocked)) == ("|default/x", "|default/x")


async def test_a_job_is_moved_from_the_group_that_was_thought_only(world: World) -> None:
    await world.set_rules(limit_rules=ONE)
    job = await world.add(group="|default/x")
    assert await world.flow.regroup([Regroup(job, DEFAULT_TENANT, "", "|default/x=a")]) == [False]
    assert await group_of(world, job) == "|default/x"
    assert await world.flow.regroup([Regroup(job, DEFAULT_TENANT, "|default/x", "|default/x")]) == [True]
    unknown = world.draft().id
    assert await world.flow.regroup([Regroup(unknown, DEFAULT_TENANT, "", "|default/x")]) == [False]


async def test_a_job_that_has_ended_is_not_moved(world: World) -> None:
    done, cancelled, gone = await world.add(), await world.add(), await world.add()
    await world.succeed(await world.take())
    await world.apply(cancel(await world.job(cancelled)))
    await world.apply(delete(await world.job(gone)))
    changes = [Regroup(id, DEFAULT_TENANT, "", "|default/x") for id in (done, cancelled, gone)]
    assert await world.flow.regroup(changes) == [False] * 3


async def test_a_move_keeps_the_order_of_arrival(world: World) -> None:
    jobs = await world.add_many(6)
    assert all(
        await world.flow.regroup([Regroup(id, DEFAULT_TENANT, "", f"|default/x={n % 2}") for n, id in enumerate(jobs)])
    )
    assert await taken(world) == jobs


async def test_the_class_of_a_job_can_change(world: World) -> None:
    levels = [TierRule(name="fast", seconds=3.0, cap=9), TierRule(name="slow", seconds=30.0, cap=1)]
    await world.set_rules(tiers={"default,default": levels})
    first, second = await world.add_many(2, group="=slow")
    assert await taken(world) == [first]
    assert await world.flow.regroup(
        [Regroup(second, DEFAULT_TENANT, "=slow", "=fast"), Regroup(first, DEFAULT_TENANT, "=slow", "~")]
    ) == [True, True]
    assert await taken(world) == [second]
    assert [(await world.job(id)).assigned for id in (first, second)] == ["slow", "fast"]


async def test_a_thousand_jobs_move_in_one_call(world: World) -> None:
    await world.set_rules(limit_rules=ONE)
    jobs = await world.add_many(1000)
    assert await world.flow.regroup([Regroup(id, DEFAULT_TENANT, "", "|default/x") for id in jobs]) == [True] * 1000
    assert await taken(world) == jobs[:1]


# Lanes are shut

PATTERNS = [
    "default,default,work",
    "*,default,work",
    "default,*,work",
    "default,default,*",
    "default,*,*",
    "*,other,*",
    "*,*,other",
    "*,*,*",
]


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_a_shut_lane_is_passed_by(world: World, pattern: str) -> None:
    places = [(t, q, k) for t in ("default", "acme") for q in ("default", "other") for k in ("work", "other")]
    jobs = {place: await world.add(place[2], tenant=place[0], queue=place[1]) for place in places}
    await world.set_rules(paused_until={pattern: FOREVER})
    wanted = pattern.split(",")
    shut = {place for place in places if all(w in ("*", part) for w, part in zip(wanted, place, strict=True))}
    assert shut
    assert set(await taken(world)) == {id for place, id in jobs.items() if place not in shut}
    await world.set_rules(paused_until={})
    assert set(await taken(world)) == {jobs[place] for place in shut}


async def test_a_lane_is_shut_until_its_time(world: World) -> None:
    await world.set_rules(paused_until={"default,default,work": world.clock.now() + timedelta(seconds=10)})
    job, other = await world.add(), await world.add("other")
    assert await taken(world) == [other]
    world.clock.advance(9.999999)
    assert await taken(world) == []
    world.clock.advance(0.000001)
    assert await taken(world) == [job]


async def test_a_lane_that_two_patterns_shut_waits_for_both(world: World) -> None:
    now = world.clock.now()
    shut = {"default,default,*": now + timedelta(seconds=10), "*,default,work": now + timedelta(seconds=20)}
    await world.set_rules(paused_until=shut)
    job, other = await world.add(), await world.add("other")
    world.clock.advance(10)
    assert await taken(world) == [other]
    world.clock.advance(10)
    assert await taken(world) == [job]


async def test_jobs_that_come_back_to_a_shut_lane_wait_as_well(world: World) -> None:
    scheduled, queued = await world.add(delay=1.0), await world.add()
    held = await world.take()
    await world.set_rules(paused_until={"*,default,*": FOREVER})
    late = await world.add(priority=-1)
    world.clock.advance(1)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 9)).count == 1
    assert await taken(world) == []
    assert await world.succeed(held), "what runs is not stopped"
    await world.set_rules(paused_until={})
    assert await taken(world) == [late, scheduled]
    assert held.job.id == queued


async def test_jobs_in_a_shut_lane_can_be_moved_cancelled_and_deleted(world: World) -> None:
    await world.set_rules(paused_until={"*,default,*": FOREVER}, limit_rules=ONE)
    moved, cancelled, deleted = await world.add_many(3)
    assert await taken(world) == []
    assert await world.flow.regroup([Regroup(moved, DEFAULT_TENANT, "", "|default/x")]) == [True]
    assert await world.apply(cancel(await world.job(cancelled)))
    assert await world.apply(delete(await world.job(deleted)))
    assert await taken(world) == []
    await world.set_rules(paused_until={})
    assert await taken(world) == [moved]


async def test_a_shut_lane_that_is_full_as_well_waits_for_both(world: World) -> None:
    await world.set_rules(limit_rules=ONE)
    jobs = await world.add_many(2, group="|default/x")
    held = await world.take()
    assert await taken(world) == []
    await world.set_rules(paused_until={"*,default,*": world.clock.now() + timedelta(seconds=10)})
    world.clock.advance(10)
    await world.store.jobs.sweep(Sweep.UNBLOCK, 100)
    assert await taken(world) == []
    await world.set_rules(paused_until={"*,default,*": FOREVER})
    await world.succeed(held)
    assert await taken(world) == []
    await world.set_rules(paused_until={})
    assert await taken(world) == jobs[1:]
