"""What every store promises of warm workers: where turns are taken they get a little earlier what they would rather
run, and nobody is delayed by it beyond a stated number of turns.
"""

from collections import Counter
from typing import Any

import pytest

from tests.support.stores import EACH_CODE, World, ids
from windlass.store.data import ClaimRequest, Record
from windlass.store.flow import LEAD

pytestmark = pytest.mark.parametrize("kind", EACH_CODE, indirect=True)

BY_TENANT: dict[str, Any] = {"fair_queues": {"default": {}}}
BY_TASK: dict[str, Any] = {"fair_tenant_queues": {"*,default": {}}}


async def take(world: World, count: int, *warm: str, slots: int = 1, tenant: str = "-", **more: Any) -> list[Record]:
    """So many claims by somebody who is warm for these."""
    worker = world.worker(tenant=tenant, **more)
    options = [ClaimRequest(worker, world.chance.token(), slots, 60.0, warm=warm) for _ in range(count)]
    return [record for wish in options for record in await world.store.jobs.claim(wish)]


def tenants(records: list[Record]) -> str:
    return "".join(record.job.tenant for record in records)


def tasks(records: list[Record]) -> str:
    return "".join(record.job.task for record in records)


@pytest.mark.parametrize("slots", [1, 12])
async def test_who_is_warm_for_a_tenant_gets_its_jobs_first_but_not_more_of_them(world: World, slots: int) -> None:
    await world.set_rules(**BY_TENANT)
    for tenant in "abc":
        await world.add_many(8, tenant=tenant)
    found = await take(world, 12 // slots, "c/work", slots=slots)
    assert tenants(found) == "cc" + "abcabcabca"


async def test_who_is_warm_for_a_task_gets_its_jobs_first_but_not_more_of_them(world: World) -> None:
    await world.set_rules(**BY_TASK)
    for task in "xyz":
        await world.add_many(8, task, tenant="a")
    assert tasks(await take(world, 9, "a/z", tenant="a")) == "zzxyzxyzx"


async def test_of_a_tenant_the_task_counts_and_not_the_tenant_alone(world: World) -> None:
    await world.set_rules(**BY_TENANT)
    await world.add_many(3, "x", tenant="a")
    await world.add_many(3, "y", tenant="b")
    assert tenants(await take(world, 2, "b/x")) == "ab", "what b gives next is nothing that the worker is warm for"
    assert tenants(await take(world, 1, "b/y")) == "b"


async def test_another_tenants_task_of_the_same_name_is_not_warm(world: World) -> None:
    await world.set_rules(**BY_TENANT, **BY_TASK)
    for tenant in "ab":
        for task in "xy":
            await world.add_many(3, task, tenant=tenant)
    found = await take(world, 4, "b/y")
    assert [record.job.tenant + record.job.task for record in found] == ["by", "by", "ax", "ay"]


async def test_where_no_turns_are_taken_the_order_is_as_ever(world: World) -> None:
    a, b = await world.add_many(2, tenant="a"), await world.add_many(2, tenant="b")
    assert ids(await take(world, 4, "b/work")) == [*a, *b]


@pytest.mark.parametrize("weight", [1.0, 4.0])
async def test_a_tenant_with_thousands_of_jobs_delays_anothers_one_by_no_more_than_its_lead(
    world: World, weight: float
) -> None:
    await world.set_rules(fair_queues={"default": {"many": weight}})
    await world.add_many(3000, tenant="many")
    await take(world, 20, "many/work")
    one = await world.add(tenant="one")
    before = ids(await take(world, 40, "many/work")).index(one)
    assert before <= LEAD * weight


async def test_a_task_that_comes_while_another_is_preferred_is_not_behind_for_it(world: World) -> None:
    """Being preferred moves no clock: a arrival starts where those stand whose turn it is."""
    await world.set_rules(**BY_TENANT)
    for tenant in "abm":
        await world.add_many(50, tenant=tenant)
    await take(world, 3, "m/work")
    arrival = await world.add(tenant="n")
    assert arrival in ids(await take(world, 3))


async def test_in_the_long_run_all_tasks_have_the_same_whatever_workers_are_warm_for(world: World) -> None:
    await world.set_rules(**BY_TENANT, **BY_TASK)
    for tenant in "abcd":
        for task in "xy":
            await world.add_many(60, task, tenant=tenant)
    found = Counter(tenants(await take(world, 120, "a/x", "c/y")))
    assert max(found.values()) - min(found.values()) <= LEAD
    assert found.total() == 120


async def test_who_is_warm_for_what_he_may_not_take_does_not_get_it(world: World) -> None:
    await world.set_rules(**BY_TENANT)
    await world.add_many(2, "x", tenant="a")
    await world.add_many(2, "y", tenant="b")
    assert tasks(await take(world, 3, "b/y", tasks=["x"])) == "xx"
