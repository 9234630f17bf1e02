"""What every store promises of turns: tenants of a queue, and tasks of a tenant, share it by their weights."""

import random
from collections import Counter
from typing import Any

import pytest

from tests.store.model_store import ModelStore
from tests.support.stores import EACH_CODE, World, ids
from windlass.model.lifecycle import release
from windlass.model.worker import Worker
from windlass.store.data import Record, Sweep
from windlass.store.flow import LimitRule

pytestmark = pytest.mark.parametrize("kind", EACH_CODE, indirect=True)

BY_TENANT: dict[str, Any] = {"fair_queues": {"default": {}}}
BY_TASK: dict[str, Any] = {"fair_tenant_queues": {"*,default": {}}}


def everybody(world: World, **more: Any) -> Worker:
    return world.worker(tenant="-", **more)


async def turns(world: World, count: int, worker: Worker | None = None) -> list[Record]:
    """So many claims of one job each."""
    found = [await world.claim(worker or everybody(world)) for _ in range(count)]
    return [record for records in found for record in records]


def tenants(records: list[Record]) -> str:
    return "".join(record.job.tenant for record in records)


def tasks(records: list[Record]) -> str:
    return "".join(record.job.task for record in records)


async def test_tenants_take_turns_whatever_came_first(world: World) -> None:
    await world.set_rules(**BY_TENANT)
    a, b = await world.add_many(3, tenant="a"), await world.add_many(3, tenant="b")
    assert ids(await turns(world, 6)) == [a[0], b[0], a[1], b[1], a[2], b[2]]


async def test_one_claim_of_many_jobs_takes_turns_as_many_claims_do(world: World) -> None:
    await world.set_rules(**BY_TENANT, **BY_TASK)
    for tenant in "ab":
        for task in "xy":
            await world.add_many(5, task, tenant=tenant)
    found = await world.claim(everybody(world), 8)
    assert (tenants(found), tasks(found)) == ("abababab", "xxyyxxyy")


@pytest.mark.parametrize("slots", [1, 5])
async def test_of_two_whose_turn_it_is_the_one_goes_first_whose_first_job_came_first(world: World, slots: int) -> None:
    """Whichever of its jobs it then gives: the turns among its tasks are its own affair."""
    await world.set_rules(**BY_TENANT, **BY_TASK)
    for tenant, task in ("ax", "ax", "bx", "bx", "ay"):
        await world.add(task, tenant=tenant)
    found = [record for _ in range(5 // slots) for record in await world.claim(everybody(world), slots)]
    assert (tenants(found), tasks(found)) == ("ababa", "xxyxx")


async def test_without_fairness_the_first_come_first(world: World) -> None:
    a, b = await world.add_many(3, tenant="a"), await world.add_many(3, tenant="b")
    assert ids(await turns(world, 6)) == [*a, *b]


async def test_a_tenant_with_thousands_of_jobs_does_not_delay_one_with_one(world: World) -> None:
    await world.set_rules(**BY_TENANT)
    await world.add_many(3000, tenant="many", priority=-9)
    await turns(world, 10)
    one = await world.add(tenant="one")
    assert ids(await turns(world, 1)) == [one]
    assert tenants(await turns(world, 2)) == "manymany"


async def test_s3_34_with_two_busy_tasks_both_progress(world: World) -> None:
    await world.set_rules(**BY_TASK)
    await world.add_many(500, "x", priority=-1)
    await world.add_many(5, "y")
    assert tasks(await turns(world, 6, world.worker())) == "xyxyxy"


async def test_a_tenant_that_was_away_has_saved_up_nothing(world: World) -> None:
    await world.set_rules(**BY_TENANT)
    await world.add_many(20, tenant="a")
    await turns(world, 6)
    await world.add_many(20, tenant="b")
    assert tenants(await turns(world, 6)) == "bababa"


async def test_a_tenant_that_comes_back_after_a_turn_has_not_had_less_for_it(world: World) -> None:
    """Coming with one job at a time gains nothing over coming with many."""
    await world.set_rules(**BY_TENANT)
    await world.add_many(20, tenant="a")
    order = ""
    for _ in range(5):
        await world.add(tenant="b")
        order += tenants(await turns(world, 2))
    assert order.count("b") == 5
    assert "bb" not in order


@pytest.mark.parametrize(("weights", "shares"), [({"a": 3.0}, (30, 10)), ({"a": 0.5, "b": 2.0}, (8, 32))])
async def test_tenants_share_a_queue_by_weight(
    world: World, weights: dict[str, float], shares: tuple[int, int]
) -> None:
    await world.set_rules(fair_queues={"default": weights})
    for tenant in "ab":
        await world.add_many(50, tenant=tenant)
    found = Counter(tenants(await turns(world, 40)))
    assert abs(found["a"] - shares[0]) <= 1
    assert found.total() == 40


async def test_weights_that_change_count_from_the_next_turn(world: World) -> None:
    await world.set_rules(fair_queues={"default": {"a": 4.0}})
    for tenant in "ab":
        await world.add_many(60, tenant=tenant)
    await turns(world, 10)
    await world.set_rules(fair_queues={"default": {"b": 4.0}})
    found = Counter(tenants(await turns(world, 40)))
    assert abs(found["b"] - 32) <= 2


async def test_tasks_of_a_tenant_share_its_turns_by_weight(world: World) -> None:
    await world.set_rules(**BY_TENANT, fair_tenant_queues={"*,default": {"x": 4.0}, "a,default": {"y": 3.0}})
    for tenant in "ab":
        for task in "xy":
            await world.add_many(100, task, tenant=tenant)
    found = Counter((record.job.tenant, record.job.task) for record in await turns(world, 80))
    assert abs(found["a", "y"] - 30) <= 1, "its own weights go before those for all"
    assert abs(found["b", "x"] - 32) <= 1
    assert (found["a", "x"] + found["a", "y"], found["b", "x"] + found["b", "y"]) == (40, 40)


async def test_turns_of_tasks_are_for_the_lines_that_have_them(world: World) -> None:
    await world.set_rules(fair_tenant_queues={"a,default": {}})
    for tenant in "ab":
        for task in "xy":
            await world.add_many(2, task, tenant=tenant)
    assert tasks(await turns(world, 4, world.worker(tenant="a"))) == "xyxy"
    assert tasks(await turns(world, 4, world.worker(tenant="b"))) == "xxyy"


async def test_priority_decides_within_a_turn_only(world: World) -> None:
    await world.set_rules(**BY_TENANT)
    late, early = await world.add(tenant="a", priority=5), await world.add(tenant="a", priority=-5)
    other = await world.add(tenant="b", priority=9)
    assert ids(await turns(world, 3)) == [early, other, late]


async def test_queues_of_a_worker_go_before_turns(world: World) -> None:
    await world.set_rules(fair_queues={"default": {}, "other": {}})
    await world.add_many(2, tenant="a")
    await world.add_many(2, tenant="b", queue="other")
    assert tenants(await turns(world, 4, world.worker("other", "default", tenant="-"))) == "bbaa"


async def test_a_worker_takes_turns_among_the_tasks_that_it_knows(world: World) -> None:
    await world.set_rules(**BY_TENANT, **BY_TASK)
    await world.add_many(5, "y", tenant="a")
    for tenant in "bc":
        await world.add_many(5, "x", tenant=tenant)
        await world.add_many(5, "y", tenant=tenant)
    assert tenants(await turns(world, 4, everybody(world, tasks=["x", "z"]))) == "bcbc"
    assert tenants(await turns(world, 5, everybody(world, tasks=["y"]))) == "aaabc", "the first has turns to catch up"


async def test_a_job_that_is_given_back_has_had_its_turn(world: World) -> None:
    await world.set_rules(**BY_TENANT)
    await world.add_many(3, tenant="a")
    await world.add_many(3, tenant="b")
    (held,) = await turns(world, 1)
    assert await world.apply(release(held.job, world.clock.now()), held)
    assert tenants(await turns(world, 3)) == "bab"


async def test_a_tenant_whose_limit_is_full_is_not_waited_for(world: World) -> None:
    await world.set_rules(**BY_TENANT, limit_rules={"a/x": LimitRule(queue="default", running=1)})
    await world.add_many(30, tenant="a", group="|a/x")
    await world.add_many(30, tenant="b")
    assert tenants(await turns(world, 12)) == "a" + "b" * 11
    await world.set_rules(limit_rules={"a/x": LimitRule(queue="default", running=20)})
    after = tenants(await turns(world, 8))
    assert 3 <= after.count("a") <= 5, f"no turns were saved up and none were lost: {after}"


async def test_a_tenant_that_is_partly_full_offers_the_rest(world: World) -> None:
    await world.set_rules(**BY_TENANT, limit_rules={"a/x": LimitRule(queue="default", running=1)})
    full = await world.add_many(3, tenant="a", group="|a/x", priority=-1)
    rest = await world.add_many(3, tenant="a")
    await world.add_many(6, tenant="b")
    found = await turns(world, 6)
    assert tenants(found) == "ababab"
    assert [record.job.id for record in found if record.job.tenant == "a"] == [full[0], *rest[:2]]


async def test_a_queue_that_is_made_fair_is_so_for_jobs_that_wait(world: World) -> None:
    await world.add_many(9, tenant="a")
    await world.add_many(9, tenant="b")
    assert tenants(await turns(world, 2)) == "aa"
    await world.set_rules(**BY_TENANT)
    assert tenants(await turns(world, 4)) == "abab"
    await world.set_rules(fair_queues={})
    assert tenants(await turns(world, 7)) == "aaaaabb"


@pytest.mark.parametrize("seed", range(3))
async def test_turns_are_those_of_the_model(world: World, seed: int) -> None:
    """Without limits nothing is left open: each claim takes exactly the job that the model takes."""
    chance, model = random.Random(seed), World(ModelStore(world.clock), world.clock, world.chance)
    rules: dict[str, Any] = {
        "fair_queues": {"default": {"a": 2.0, "b": 0.25}},
        "fair_tenant_queues": {"*,default": {"x": 3.0}, "b,default": {"y": 1.5}},
    }
    for one in (world, model):
        await one.set_rules(**rules)
    for _ in range(120):
        tenant, task, priority = chance.choice("abc"), chance.choice("xyz"), chance.choice([0, 0, 5])
        drafts = [world.draft(task, tenant=tenant, priority=priority) for _ in range(chance.choice([0, 0, 1, 2, 4]))]
        for one in (world, model):
            await one.store.jobs.add(drafts)
        known = chance.choice([None, None, ["x", "y"], ["z"]])
        worker = world.worker(tenant=chance.choice(["-", "-", "a", "b"]), tasks=known)
        slots = chance.choice([1, 1, 2, 5])
        expected, found = await model.claim(worker, slots), await world.claim(worker, slots)
        assert ids(found) == ids(expected)


@pytest.mark.parametrize("seed", range(3))
async def test_limits_hold_and_nothing_waits_that_could_run_where_turns_are_taken(world: World, seed: int) -> None:
    chance = random.Random(seed)
    limit_rules = {"-/x": LimitRule(queue="default", running=3), "-/y": LimitRule(queue="default", running=2)}
    await world.set_rules(**BY_TENANT, **BY_TASK, limit_rules=limit_rules)
    groups = ["", "|-/x", "|-/y", "|-/x|-/y"]
    held: list[Record] = []
    for _ in range(60):
        for _ in range(chance.randint(0, 2)):
            await world.add(chance.choice("xyz"), tenant=chance.choice("abc"), group=chance.choice(groups))
        held += await world.claim(everybody(world), chance.choice([1, 3, 50]))
        chance.shuffle(held)
        while held and chance.random() < 0.5:
            await world.succeed(held.pop())
        await world.store.jobs.sweep(Sweep.UNBLOCK, 100)
        held += await world.claim(everybody(world), 50)
        taken = {bucket: sum(bucket in record.group for record in held) for bucket in ("|-/x", "|-/y")}
        assert (taken["|-/x"] <= 3, taken["|-/y"] <= 2) == (True, True)
        full = {bucket for bucket, most in (("-/x", 3), ("-/y", 2)) if taken[f"|{bucket}"] == most}
        waiting = await world.flow.backlog("-", "default", 1)
        assert [lane for lane in waiting if not full & set(lane.group.split("|"))] == []
