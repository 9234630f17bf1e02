"""What every store promises of tiers: which one a job is assigned, whose caps hold, and how time is taken back.

The numbers S0 … G6 are those of the checklist for short and long jobs in one queue: at most one job is slow, two are
medium or slow.
"""

import random
from datetime import timedelta

import pytest

from tests.support.patience import PATIENCE
from tests.support.stores import EACH_CODE, World, ids
from windlass.model.job import Reason, State
from windlass.model.lifecycle import cancel, delete, finish, halt, lose, release, shrink
from windlass.model.outcome import Outcome, Verdict
from windlass.store.data import Overdue, Record
from windlass.store.flow import LimitRule, TierRule

pytestmark = pytest.mark.parametrize("kind", EACH_CODE, indirect=True)

FAST, MEDIUM, SLOW = 3.0, 10.0, 30.0


def tiers(medium: int = 2, slow: int = 1, line: str = "default,default") -> dict[str, list[TierRule]]:
    levels = [
        TierRule(name="fast", seconds=FAST, cap=1),
        TierRule(name="medium", seconds=MEDIUM, cap=medium),
        TierRule(name="slow", seconds=SLOW, cap=slow),
    ]
    return {line: levels}


async def assigned(world: World, slots: int = 100) -> list[str | None]:
    return [record.job.assigned for record in await world.claim(slots=slots)]


async def shrunk(world: World, record: Record, tier: str, seconds: float) -> bool:
    return await world.apply(shrink(await world.job(record.job.id), tier, seconds), record)


# What a job is assigned


async def test_g1_three_flexible_jobs_are_assigned_slow_medium_and_fast(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add_many(4, group="~")
    assert await assigned(world, 3) == ["slow", "medium", "fast"]
    assert await assigned(world) == ["fast"], "the shortest tier has no cap but the slots"


async def test_a_job_runs_until_the_time_of_its_tier_or_its_own(world: World) -> None:
    await world.set_rules(tiers=tiers(medium=9, slow=9))
    now = world.clock.now()
    for group, timeout in [("~", None), ("~", 5.0), ("=medium", 60.0), ("=fast", 1.0), ("!", 7.0), ("!", None)]:
        await world.add(group=group, timeout=timeout)
    held = await world.claim(slots=9)
    expected = [SLOW, 5.0, MEDIUM, 1.0, 7.0, None]
    told = [now + timedelta(seconds=seconds) if seconds else None for seconds in expected]
    assert [record.job.deadline for record in held] == told
    assert [(await world.job(id)).deadline for id in ids(held)] == told


async def test_a_record_has_its_tier_while_its_job_runs(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add(group="~", max_retry=1)
    held = await world.take()
    job = await world.job(held.job.id)
    assert (job.assigned, job.deadline) == ("slow", held.job.deadline)
    assert [job.assigned for job in await world.jobs()] == ["slow"]
    assert await world.apply(release(job, world.clock.now()), held)
    assert ((await world.job(job.id)).assigned, (await world.job(job.id)).deadline) == (None, None)


async def test_a_claim_sent_again_tells_the_same_tiers(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add_many(3, group="~")
    first = await world.claim(slots=3, nonce=b"12345678")
    again = await world.claim(slots=3, nonce=b"12345678")

    def told(records: list[Record]) -> list[tuple[object, ...]]:
        return sorted((record.job.id, record.job.assigned, record.job.deadline) for record in records)

    assert told(again) == told(first)
    assert await assigned(world) == []


async def test_an_explicit_job_waits_for_a_place_at_its_tier(world: World) -> None:
    await world.set_rules(tiers=tiers())
    jobs = [await world.add(group=group) for group in ("=slow", "=slow", "=medium", "=medium", "=fast", "=fast")]
    held = await world.claim(slots=9)
    assert ids(held) == [jobs[0], jobs[2], jobs[4], jobs[5]]
    assert [record.job.assigned for record in held] == ["slow", "medium", "fast", "fast"]


async def test_g6_a_fast_job_overtakes_a_slow_one_that_must_wait(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add(group="=slow")
    await world.add(group="=medium")
    await world.claim(slots=2)
    slow, fast = await world.add(group="=slow"), await world.add(group="=fast")
    assert ids(await world.claim()) == [fast]
    assert (await world.job(slow)).state is State.QUEUED


async def test_s0_11_caps_hold_under_random_load(world: World) -> None:
    await world.set_rules(tiers=tiers(medium=4, slow=2))
    chance = random.Random(5)
    held: list[Record] = []
    for _ in range(40):
        for _ in range(chance.randint(0, 3)):
            await world.add(group=chance.choice(["~", "~", "=slow", "=medium", "=fast", "!"]))
        held += await world.claim(slots=chance.randint(1, 3))
        chance.shuffle(held)
        if held and chance.random() < 0.6:
            await world.succeed(held.pop())
        names = [(await world.job(record.job.id)).assigned for record in held]
        assert names.count("slow") <= 2
        assert names.count("slow") + names.count("medium") <= 4


async def test_s0_12_jobs_of_one_tier_start_in_order_of_arrival(world: World) -> None:
    await world.set_rules(tiers=tiers())
    jobs = await world.add_many(4, group="=slow")
    done = []
    while held := await world.claim(slots=3):
        done += ids(held)
        await world.succeed(held[0])
    assert done == jobs


async def test_a_yielding_job_takes_no_place_at_any_tier(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add_many(3, group="!")
    await world.add_many(2, group="=slow")
    assert await assigned(world) == [None, None, None, "slow"]


async def test_a_tier_that_is_not_there_any_more_makes_its_job_flexible(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add_many(3, group="=huge")
    assert await assigned(world) == ["slow", "medium", "fast"]


async def test_without_tiers_in_force_no_class_bounds_a_job(world: World) -> None:
    for group in ("~", "=slow", "=slow", "!"):
        await world.add(group=group)
    assert await assigned(world) == [None] * 4


async def test_each_line_has_caps_of_its_own(world: World) -> None:
    await world.set_rules(tiers=tiers() | tiers(line="acme,default"))
    await world.add_many(2, group="=slow")
    await world.add_many(2, tenant="acme", group="=slow")
    held = await world.claim(world.worker(tenant="-"), 9)
    assert sorted(record.job.tenant for record in held) == ["acme", "default"]


async def test_caps_that_grow_let_waiting_jobs_start(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add_many(4, group="=slow")
    assert await assigned(world) == ["slow"]
    assert await assigned(world) == []
    await world.set_rules(tiers=tiers(medium=9, slow=3))
    assert await assigned(world) == ["slow", "slow"]


async def test_caps_that_fall_end_nothing(world: World) -> None:
    await world.set_rules(tiers=tiers(medium=9, slow=3))
    await world.add_many(5, group="=slow")
    held = await world.claim(slots=3)
    await world.set_rules(tiers=tiers(medium=9, slow=1))
    for record in held:
        assert await assigned(world) == []
        await world.succeed(record)
    assert await assigned(world) == ["slow"]


async def test_caps_of_a_queue_that_had_no_tiers_do_not_count_what_ran_before(world: World) -> None:
    await world.add_many(2, group="=slow")
    await world.claim(slots=2)
    await world.set_rules(tiers=tiers())
    await world.add_many(2, group="=slow")
    assert await assigned(world) == ["slow"]


async def test_a_flexible_job_waits_for_its_limit_whatever_the_tiers_say(world: World) -> None:
    await world.set_rules(tiers=tiers(), limit_rules={"default/x": LimitRule(queue="default", running=1)})
    await world.add_many(3, group="~|default/x")
    free = await world.add(group="~")
    held = await world.claim(slots=9)
    assert [(record.job.id == free, record.job.assigned) for record in held] == [(False, "slow"), (True, "medium")]
    await world.succeed(held[0])
    assert await assigned(world) == ["slow"]


# Places at tiers come back


@pytest.mark.parametrize("how", ["succeeded", "failed", "released", "lost", "deleted"])
async def test_a_place_at_a_tier_comes_back_when_its_job_is(world: World, how: str) -> None:
    await world.set_rules(tiers=tiers())
    await world.add_many(2, group="=slow", keep_failure=0.0)
    held = await world.take()
    job, now = held.job, world.clock.now()
    assert await assigned(world) == []
    if how == "succeeded":
        await world.succeed(held)
    elif how == "failed":
        await world.apply(finish(job, Outcome(verdict=Verdict.FAILED), now, 0.5), held)
    elif how == "released":
        await world.apply(release(job, now), held)
    elif how == "lost":
        world.clock.advance(61)
        assert len((await world.store.jobs.overdue(Overdue.LEASE, 9)).records) == 1
        await world.apply(lose(job, world.clock.now()), held)
    else:
        await world.apply(delete(job), held)
        assert await assigned(world) == []
        await world.apply(finish(await world.job(job.id), Outcome(verdict=Verdict.ERROR), now, 0.5), held)
    assert await assigned(world) == ["slow"]


# Time is taken from a job


async def test_a_job_that_is_shrunk_goes_on_until_its_new_deadline(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add(group="~")
    held = await world.take()
    started = world.clock.now()
    world.clock.advance(1)
    assert await shrunk(world, held, "fast", FAST)
    job = await world.job(held.job.id)
    assert (job.state, job.assigned, job.reason) == (State.RUNNING, "fast", Reason.SHRUNK)
    assert (job.deadline, job.started_at) == (started + timedelta(seconds=FAST), started)
    touched = await world.touch(held)
    assert (touched.held, touched.reason, touched.deadline) == (True, Reason.SHRUNK, job.deadline)
    assert await world.succeed(held)
    assert (await world.job(held.job.id)).reason is None


async def test_touch_tells_the_deadline_of_jobs_at_a_tier_only(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add(group="~", timeout=5.0)
    await world.add(group="!", timeout=5.0)
    await world.add(queue="default", timeout=5.0)
    touched = [await world.touch(record) for record in await world.claim(slots=9)]
    assert [one.deadline for one in touched] == [world.clock.now() + timedelta(seconds=5), None, None]


async def test_g2_a_shrink_lets_the_slow_job_that_waits_start(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add_many(3, group="~")
    held = await world.claim(slots=3)
    slow = await world.add(group="=slow")
    assert await world.claim() == []
    assert await shrunk(world, held[0], "fast", FAST)
    (found,) = await world.claim()
    assert (found.job.id, found.job.assigned) == (slow, "slow")
    await world.add(group="=medium")
    assert await world.claim() == [], "the medium one and the slow one fill their cap"
    assert await shrunk(world, held[1], "fast", FAST)
    assert await assigned(world) == ["medium"]


async def test_a_shrink_by_one_tier_gives_back_only_the_places_above(world: World) -> None:
    await world.set_rules(tiers=tiers(medium=1, slow=1))
    await world.add(group="~")
    held = await world.take()
    await world.add(group="=medium")
    await world.add(group="=slow")
    assert await shrunk(world, held, "medium", MEDIUM)
    assert await assigned(world) == [], "the level of medium is still full, and slow needs it too"
    assert await shrunk(world, held, "fast", FAST)
    assert await assigned(world) == ["medium"]


async def test_a_shrink_that_was_decided_before_another_is_refused(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add(group="~")
    held = await world.take()
    before = await world.job(held.job.id)
    assert await world.apply(shrink(before, "fast", FAST), held)
    shrunken = await world.job(held.job.id)
    assert not await world.apply(shrink(before, "medium", MEDIUM), held)
    assert not await world.apply(cancel(before), held)
    assert not await world.apply(shrink(shrunken, "fast", FAST))  # without the token
    assert await world.job(held.job.id) == shrunken


async def test_a_move_must_know_the_tier_of_the_run(world: World) -> None:
    """Even where the reason has not changed: as with a job told to stop that is shrunk."""
    await world.set_rules(tiers=tiers())
    await world.add(group="~")
    held = await world.take()
    assert await world.apply(cancel(held.job), held)
    before = await world.job(held.job.id)
    assert await world.apply(shrink(before, "medium", MEDIUM), held)
    after = await world.job(held.job.id)
    assert (after.reason, after.assigned) == (Reason.CANCELLED, "medium")
    assert not await world.apply(shrink(before, "fast", FAST), held)
    assert not await world.apply(finish(before, Outcome(verdict=Verdict.ERROR), world.clock.now(), 0.5), held)
    assert await world.apply(finish(after, Outcome(verdict=Verdict.ERROR), world.clock.now(), 0.5), held)


async def test_a_job_shrunk_twice_leaves_no_place_behind(world: World) -> None:
    await world.set_rules(tiers=tiers(medium=1, slow=1))
    await world.add(group="~")
    held = await world.take()
    assert await shrunk(world, held, "medium", MEDIUM)
    assert await shrunk(world, held, "fast", FAST)
    await world.succeed(held)
    await world.add_many(2, group="=slow")
    assert await assigned(world) == ["slow"]


async def test_a_shrunk_job_that_runs_again_is_assigned_again(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add(group="~")
    held = await world.take()
    assert await shrunk(world, held, "fast", FAST)
    assert await world.apply(release(await world.job(held.job.id), world.clock.now()), held)
    assert await assigned(world) == ["slow"]


# A job is halted


async def test_a_halted_job_is_ordered_to_stop_and_keeps_its_places_until_it_has(world: World) -> None:
    limited = {"default/x": LimitRule(queue="default", running=1)}
    await world.set_rules(tiers=tiers(), limit_rules=limited)
    await world.add(group="!|default/x")
    fast = await world.add(group="=fast|default/x")
    held = await world.take()
    assert await world.apply(halt(held.job), held)
    assert (await world.touch(held)).reason is Reason.HALTED
    assert await world.claim() == []
    job = await world.job(held.job.id)
    assert (job.state, job.reason) == (State.RUNNING, Reason.HALTED)
    assert await world.apply(finish(job, Outcome(verdict=Verdict.ERROR), world.clock.now(), 0.5), held)
    job = await world.job(held.job.id)
    assert (job.state, job.reason) == (State.CANCELLED, Reason.HALTED)
    assert ids(await world.claim()) == [fast]


async def test_a_halt_without_the_token_is_refused(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add(group="!")
    held = await world.take()
    assert not await world.apply(halt(held.job))
    assert (await world.job(held.job.id)).reason is None


@pytest.mark.parametrize("what", ["shrink", "halt"])
async def test_a_worker_hears_that_its_job_is_to_stop_sooner(world: World, what: str) -> None:
    await world.set_rules(tiers=tiers())
    await world.add(group="~")
    held = await world.take()
    async with world.store.events.listen(["order/w1"]) as listener:
        await world.apply(halt(held.job) if what == "halt" else shrink(held.job, "fast", FAST), held)
        assert await listener.wait(PATIENCE)
