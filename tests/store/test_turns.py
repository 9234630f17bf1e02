"""What every store promises of turns that nobody asked for: within a claim, and from one claim to the next."""

from collections import Counter
from typing import Any

import pytest

from tests.support.stores import EACH_CODE, StoreKind, World, ids
from windlass.model.worker import Worker
from windlass.store.data import Record
from windlass.store.flow import LimitRule

pytestmark = pytest.mark.parametrize("kind", EACH_CODE, indirect=True)

TENANTS: dict[str, Any] = {"turns": frozenset({"tenants"})}
TASKS: dict[str, Any] = {"turns": frozenset({"tenants", "tasks"})}
QUEUES: dict[str, Any] = {"turns": frozenset({"queues"})}


def everybody(world: World, **more: Any) -> Worker:
    return world.worker(tenant="-", **more)


def nonce(number: int) -> bytes:
    return number.to_bytes(8, "big")


def tenants(records: list[Record]) -> Counter[str]:
    return Counter(record.job.tenant for record in records)


def queues(records: list[Record]) -> Counter[str]:
    return Counter(record.job.queue for record in records)


def tasks(records: list[Record]) -> Counter[str]:
    return Counter(record.job.tenant + record.job.task for record in records)


async def test_one_claim_gives_each_tenant_its_part(world: World) -> None:
    await world.add_many(50, tenant="a")
    await world.add_many(2, tenant="b")
    await world.add_many(50, tenant="c", priority=-5)
    assert tenants(await world.claim(everybody(world), 12, **TENANTS)) == {"a": 5, "b": 2, "c": 5}
    assert tenants(await world.claim(everybody(world), 100, **TENANTS)) == {"a": 45, "c": 45}


async def test_claims_of_one_job_begin_with_each_tenant_in_its_turn(world: World) -> None:
    """No tenant is left out, whoever came first: each begins about as often as the others."""
    for tenant in "abc":
        await world.add_many(60, tenant=tenant)
    found = [await world.claim(everybody(world), nonce=nonce(number), **TENANTS) for number in range(1, 61)]
    counts = tenants([record for records in found for record in records])
    assert sum(counts.values()) == 60
    assert min(counts[tenant] for tenant in "abc") >= 10


async def test_inside_a_tenant_priority_and_arrival_count(world: World) -> None:
    first = await world.add_many(2, "x", tenant="a")
    dear = await world.add("y", tenant="a", priority=-1)
    await world.add_many(5, tenant="b")
    found = await world.claim(everybody(world), 4, **TENANTS)
    assert sorted(id for record in found if record.job.tenant == "a" for id in ids([record])) == sorted(
        [dear, first[0]]
    )


async def test_tasks_take_turns_too_if_they_are_to(world: World) -> None:
    await world.add_many(50, "x", tenant="a")
    await world.add_many(50, "y", tenant="a", priority=-1)
    await world.add_many(50, "x", tenant="b")
    assert tasks(await world.claim(everybody(world), 12, **TASKS)) == {"ax": 3, "ay": 3, "bx": 6}
    assert tasks(await world.claim(world.worker(tenant="a"), 4, **TASKS)) == {"ax": 2, "ay": 2}


async def test_queues_take_turns_if_they_are_to(world: World, kind: StoreKind) -> None:
    await world.add_many(60, queue="mail")
    await world.add_many(3, queue="slow")
    await world.add_many(60, queue="web")
    worker = world.worker("mail", "slow", "web")
    counts = queues(await world.claim(worker, 12, **QUEUES))
    if kind == "cluster":  # a script knows the queues of its own partition
        assert min(counts.values()) >= 3
    else:
        assert (counts["slow"], sorted(counts.values())) == (3, [3, 4, 5])
    assert queues(await world.claim(worker, 12)) == {"mail": 12}


@pytest.mark.parametrize("bounded", [False, True])
async def test_a_queue_that_is_named_several_times_has_so_many_turns(
    world: World, kind: StoreKind, bounded: bool
) -> None:
    if bounded:
        await world.set_rules(limit_rules={"default/api": LimitRule(running=100, queue="mail")})
    await world.add_many(60, queue="mail", group="|default/api" if bounded else "")
    await world.add_many(60, queue="web")
    worker = world.worker("mail", "mail", "mail", "web")
    found = await world.claim(worker, 12, **QUEUES)
    if kind != "cluster":
        assert queues(found) == {"mail": 9, "web": 3}
    assert len({record.job.id for record in found}) == len(found)
    lone = [await world.claim(worker, nonce=nonce(number), **QUEUES) for number in range(1, 41)]
    counts = queues([record for records in lone for record in records])
    assert counts.total() == 40
    assert 20 <= counts["mail"] <= 36, "three of four"


async def test_what_a_queue_of_many_turns_does_not_have_goes_to_the_others(world: World, kind: StoreKind) -> None:
    await world.add_many(2, queue="mail")
    await world.add_many(60, queue="web")
    worker = world.worker("mail", "mail", "mail", "web")
    assert queues(await world.claim(worker, 12, **QUEUES)) == {"mail": 2, "web": 10}
    # What a partition leaves is for the next claim.
    assert queues(await world.claim(worker, 12, **QUEUES)) == {"web": 12 if kind != "cluster" else 3}


async def test_where_the_order_counts_there_are_no_turns(world: World) -> None:
    await world.add_many(50, "x", tenant="a")
    await world.add_many(50, "y", tenant="a")
    await world.add_many(50, tenant="b")
    strict = frozenset({"-,default"})
    assert tasks(await world.claim(everybody(world), 10, **TASKS, in_order=strict)) == {"ax": 10}
    strict = frozenset({"a,default"})
    assert tasks(await world.claim(everybody(world), 10, **TASKS, in_order=strict)) == {"ax": 5, "bwork": 5}


async def test_rules_of_turns_go_before(world: World) -> None:
    await world.set_rules(fair_queues={"default": {"a": 3.0}})
    for tenant in "ab":
        await world.add_many(50, tenant=tenant)
    assert tenants(await world.claim(everybody(world), 8, **TENANTS)) == {"a": 6, "b": 2}


@pytest.mark.parametrize("turns", [TENANTS, TASKS])
async def test_what_a_limit_holds_back_leaves_its_turn_to_the_others(world: World, turns: dict[str, Any]) -> None:
    await world.set_rules(limit_rules={"a/api": LimitRule(running=2, queue="default")})
    await world.add_many(50, tenant="a", group="|a/api")
    await world.add_many(50, tenant="b")
    await world.add_many(50, tenant="c")
    counts = tenants(await world.claim(everybody(world), 10, **turns))
    assert (counts["a"], counts["b"] + counts["c"], abs(counts["b"] - counts["c"])) == (2, 8, 0)
    assert tenants(await world.claim(everybody(world), 10, **turns)) == {"b": 5, "c": 5}


async def test_a_worker_that_knows_few_tasks_shares_among_those(world: World) -> None:
    await world.add_many(50, "x", tenant="a")
    await world.add_many(50, "y", tenant="b")
    await world.add_many(50, "x", tenant="c")
    await world.add_many(50, "z", tenant="c")
    worker = everybody(world, tasks=["x", "c/z"])
    assert tasks(await world.claim(worker, 8, **TASKS)) == {"ax": 4, "cx": 2, "cz": 2}


async def test_the_same_claim_again_answers_the_same_jobs(world: World) -> None:
    for tenant in "abc":
        for queue in ("mail", "web"):
            await world.add_many(5, tenant=tenant, queue=queue)
    all_of_them: dict[str, Any] = {"turns": frozenset({"queues", "tenants"}), "nonce": nonce(7)}
    worker = world.worker("mail", "web", tenant="-")
    first = await world.claim(worker, 6, **all_of_them)
    again = await world.claim(worker, 6, **all_of_them)
    assert sorted(ids(first)) == sorted(ids(again))
    assert Counter((record.job.tenant, record.job.queue) for record in first) == dict.fromkeys(
        [(tenant, queue) for tenant in "abc" for queue in ("mail", "web")], 1
    )
