"""What every store promises of limits: so many run at once, and all others pass by.

The same tests for every kind of store, and for the model that the stores are compared with.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.stores import EACH_CODE, World, ids
from windlass.model.errors import Invalid
from windlass.model.job import Reason
from windlass.model.lifecycle import cancel, delete, expire, finish, lose, release, rerun
from windlass.model.outcome import Outcome, Verdict
from windlass.store.data import Overdue, Record, Sweep
from windlass.store.flow import BucketUsage, LimitRule

pytestmark = pytest.mark.parametrize("kind", EACH_CODE, indirect=True)

FOREVER = datetime(2200, 1, 1, tzinfo=UTC)


def limit(**terms: Any) -> LimitRule:
    return LimitRule(queue="default", **terms)


async def running(world: World, limit_rule: str = "default/x") -> dict[str, int]:
    """How many places are taken in each bucket."""
    usages = await world.flow.usage(limit_rule, 100)
    return {usage.bucket: usage.running for usage in usages if usage.running}


async def taken(world: World, slots: int = 100, **worker: Any) -> list[str]:
    return ids(await world.claim(world.worker(**worker), slots))


# So many run at once


async def test_s2_30_a_concurrency_limit_is_never_exceeded(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=3)})
    jobs = await world.add_many(10, group="|default/x")
    assert await taken(world, 2) == jobs[:2]
    assert await taken(world) == jobs[2:3]
    assert await taken(world) == []
    assert await running(world) == {"default/x": 3}


async def test_s2_30_many_claims_at_once_exceed_no_limit(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=7)})
    await world.add_many(50, group="|default/x")
    claims = await asyncio.gather(*(world.claim(world.worker(id=f"w{n}"), 2) for n in range(20)))
    assert sum(map(len, claims)) == 7


async def test_a_claim_takes_no_more_than_its_slots_of_what_is_allowed(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=8)})
    await world.add_many(9, group="|default/x")
    assert [len(await world.claim(slots=3)) for _ in range(4)] == [3, 3, 2, 0]


async def test_a_claim_sent_again_takes_no_second_place(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=3, count=3, per=60)})
    await world.add_many(5, group="|default/x")
    first = await world.claim(slots=2, nonce=b"12345678")
    again = await world.claim(slots=2, nonce=b"12345678")
    assert sorted(ids(again)) == sorted(ids(first))
    assert await running(world) == {"default/x": 2}
    assert len(await world.claim(slots=5)) == 1, "neither a place nor a start was counted twice"


async def test_each_key_has_places_of_its_own(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    a = await world.add_many(3, group="|default/x=a")
    b = await world.add_many(3, group="|default/x=b")
    assert await taken(world) == [a[0], b[0]]
    assert await running(world) == {"default/x=a": 1, "default/x=b": 1}


async def test_keys_may_hold_any_sign_that_a_group_allows(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    keys = ["a", "A", "a.b", "a-b", "a_b", "a~b", "%2C", "%7C", "*", "-", "~"]
    jobs = [(await world.add_many(2, group=f"|default/x={key}"))[0] for key in keys if key != "*"]
    assert await taken(world) == jobs


async def test_a_job_needs_a_place_in_each_of_its_buckets(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1), "default/all": limit(running=2)})
    both = await world.add_many(2, group="|default/x=a|default/all")
    other = await world.add("other", group="|default/x=b|default/all")
    last = await world.add("last", group="|default/x=c|default/all")
    held = await world.claim(slots=9)
    assert ids(held) == [both[0], other]
    assert await running(world, "default/all") == {"default/all": 2}
    await world.succeed(held[0])
    assert await taken(world) == [both[1]]
    assert await running(world) == {"default/x=a": 1, "default/x=b": 1}
    await world.succeed(held[1])
    assert await taken(world) == [last]


async def test_a_limit_over_several_queues_is_for_stores_of_one_piece(world: World, kind: str) -> None:
    over_all = {"-/all": LimitRule(running=2)}
    if kind == "cluster":
        with pytest.raises(Invalid) as error:
            await world.set_rules(limit_rules=over_all)
        assert (error.value.at, (await world.flow.rules()).version) == ("match.queue", 0)
        return
    await world.set_rules(limit_rules=over_all)
    places = [("default", "a"), ("acme", "b"), ("default", "b"), ("acme", "a")]
    jobs = [await world.add(tenant=tenant, queue=queue, group="|-/all") for tenant, queue in places]
    everybody = world.worker("a", "b", tenant="-")
    first = await world.claim(everybody, 9)
    assert ids(first) == [jobs[0], jobs[3]]
    await world.succeed(first[1])
    assert ids(await world.claim(everybody, 9)) == [jobs[1]]


# A place is given back by whatever ends the run


def ended(verdict: Verdict, **more: Any) -> Outcome:
    return Outcome(verdict=verdict, **more)


async def end(world: World, record: Record, how: str) -> None:
    """End a run in one of the ways in which runs end."""
    job, now = (await world.job(record.job.id)), world.clock.now()
    if how == "succeeded":
        assert await world.succeed(record)
    elif how == "lost":
        world.clock.advance(61)
        (overdue,) = (await world.store.jobs.overdue(Overdue.LEASE, 9)).records
        assert overdue is not None
        assert await world.apply(lose(overdue.job, world.clock.now()), record)
    elif how in ("cancelled", "deleted"):
        assert await world.apply(cancel(job) if how == "cancelled" else delete(job), record)
        assert await taken(world) == [], "a job that is told to stop keeps its place until it has stopped"
        job = await world.job(job.id)
        assert await world.apply(finish(job, ended(Verdict.ERROR), now, 0.5), record)
    else:
        moves = {
            "failed": lambda: finish(job, ended(Verdict.FAILED), now, 0.5),
            "retried": lambda: finish(job, ended(Verdict.RETRY, delay=600.0), now, 0.5),
            "crashed": lambda: finish(job, ended(Verdict.ERROR, reason=Reason.CRASHED), now, 0.5),
            "released": lambda: release(job, now),
            "snoozed": lambda: release(job, now, 600.0),
        }
        assert await world.apply(moves[how](), record)


ENDS = ["succeeded", "failed", "retried", "crashed", "lost", "released", "snoozed", "cancelled", "deleted"]


@pytest.mark.parametrize("keep", [60.0, 0.0])
@pytest.mark.parametrize("how", ENDS)
async def test_a_place_comes_back_when_its_job_is(world: World, how: str, keep: float) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    terms: dict[str, Any] = {"max_retry": 5, "keep_success": keep, "keep_failure": keep}
    first, second = await world.add_many(2, group="|default/x", **terms)
    (record,) = await world.claim(slots=5)
    assert await taken(world) == []
    await end(world, record, how)
    assert await running(world) == {}
    again = how in ("crashed", "lost", "released")
    assert await taken(world) == [first if again else second]
    assert await running(world) == {"default/x": 1}


async def test_a_retry_keeps_its_group(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    first, second = await world.add_many(2, group="|default/x", max_retry=3)
    record = await world.take()
    move = finish(record.job, ended(Verdict.RETRY, delay=10.0), world.clock.now(), 0.5)
    assert await world.apply(move, record)
    held = await world.take()
    assert held.job.id == second
    world.clock.advance(10)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 9)).count == 1
    assert await taken(world) == []
    await world.succeed(held)
    assert await taken(world) == [first]


async def test_a_job_that_is_run_again_keeps_its_group(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    first, second = await world.add_many(2, group="|default/x")
    await world.succeed(await world.take())
    held = await world.take()
    assert await world.apply(rerun(await world.job(first)))
    assert (await taken(world), held.job.id) == ([], second)
    await world.succeed(held)
    assert await taken(world) == [first]


@pytest.mark.parametrize("how", ["cancelled", "deleted", "expired"])
async def test_a_job_that_ends_while_it_is_passed_by_leaves_nothing_behind(world: World, how: str) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    _, second, third = await world.add_many(3, group="|default/x", expires=30.0)
    held = await world.take()
    assert await taken(world) == []
    job = await world.job(second)
    moves = {"cancelled": cancel(job), "deleted": delete(job), "expired": expire(job, world.clock.now())}
    assert await world.apply(moves[how])
    assert [usage.waiting for usage in await world.flow.usage("default/x", 9)] == [1]
    await world.succeed(held)
    assert await taken(world) == [third]


async def test_the_last_job_of_a_group_may_end_while_it_is_passed_by(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    _, second = await world.add_many(2, group="|default/x")
    held = await world.take()
    assert await taken(world) == []
    assert await world.apply(delete(await world.job(second)))
    await world.succeed(held)
    assert await taken(world) == []
    third = await world.add(group="|default/x")
    assert await taken(world) == [third]


# Others pass by


async def test_s2_28_other_jobs_pass_by_a_full_limit(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    bounded = await world.add_many(5, group="|default/x", priority=-5)
    free = await world.add_many(2)
    other = await world.add("other", priority=9)
    assert await taken(world) == [bounded[0], *free, other]


async def test_a_job_that_comes_to_a_full_limit_is_passed_by_at_once(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    await world.add_many(2, group="|default/x")
    held = await world.take()
    assert await taken(world) == []
    late = await world.add(group="|default/x", priority=-1)
    assert await taken(world) == []
    await world.succeed(held)
    assert await taken(world) == [late]


async def test_jobs_that_were_passed_by_come_back_in_order(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    priorities = [0, 3, -2, 3, 0, -7]
    jobs = [await world.add(task, group="|default/x", priority=p) for p in priorities for task in ("a", "b")]
    expected = [
        id for _, id in sorted(zip([p for p in priorities for _ in "ab"], jobs, strict=True), key=lambda x: x[0])
    ]
    done = []
    while held := await world.claim(slots=5):
        assert await taken(world) == []
        done += ids(held)
        await world.succeed(held[0])
    assert done == expected


async def test_groups_of_one_task_mingle_by_priority_and_arrival(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=9)})
    groups = ["|default/x=a", "", "|default/x=b", "|default/x=a", "", "|default/x=b|default/gone"]
    jobs = [await world.add(group=group) for group in groups]
    urgent = await world.add(group="|default/x=a", priority=-1)
    assert [await taken(world, 1) for _ in range(7)] == [[id] for id in (urgent, *jobs)]


async def test_a_worker_takes_only_the_tasks_that_it_knows(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=2)})
    await world.add_many(3, "theirs", group="|default/x")
    mine = await world.add_many(3, "mine", group="|default/x")
    assert await taken(world, tasks=["mine"]) == mine[:2]
    assert await taken(world, tasks=["theirs"]) == []


async def test_a_worker_may_know_a_task_of_one_tenant_alone(world: World) -> None:
    for tenant in ("default", "acme"):
        for task in ("a", "b", "c"):
            await world.add(task, tenant=tenant)
    held = await world.claim(world.worker(tenant="-", tasks=["a", "acme/b"]), 9)
    assert [(record.job.tenant, record.job.task) for record in held] == [("default", "a"), ("acme", "a"), ("acme", "b")]


async def test_the_jobs_of_another_tenant_take_no_places_of_mine(world: World) -> None:
    limit_rules = {"default/x": limit(running=1), "acme/x": limit(running=1)}
    await world.set_rules(limit_rules=limit_rules)
    mine = await world.add_many(2, group="|default/x")
    theirs = await world.add_many(2, tenant="acme", group="|acme/x")
    assert await taken(world, tenant="acme") == theirs[:1]
    assert await taken(world) == mine[:1]


# Rules change while jobs wait and run


async def test_a_wider_limit_lets_more_start_at_once(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    jobs = await world.add_many(5, group="|default/x")
    assert await taken(world) == jobs[:1]
    assert await taken(world) == []
    await world.set_rules(limit_rules={"default/x": limit(running=3)})
    assert await taken(world) == jobs[1:3]


async def test_a_narrower_limit_ends_nothing_and_starts_nothing(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=3)})
    jobs = await world.add_many(5, group="|default/x")
    held = await world.claim(slots=5)
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    for record in held[:2]:
        await world.succeed(record)
        assert await taken(world) == []
    assert await running(world) == {"default/x": 1}
    await world.succeed(held[2])
    assert await taken(world) == jobs[3:4]


async def test_a_limit_that_is_taken_away_bounds_nothing(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1), "default/y": limit(running=3)})
    jobs = await world.add_many(5, group="|default/x|default/y")
    assert await taken(world) == jobs[:1]
    assert await taken(world) == []
    await world.set_rules(limit_rules={"default/y": limit(running=3)})
    assert await taken(world) == jobs[1:3]
    await world.set_rules(limit_rules={})
    assert await taken(world) == jobs[3:]


async def test_a_limit_that_comes_later_counts_what_runs_already(world: World) -> None:
    jobs = await world.add_many(5, group="|default/x")
    held = await world.claim(slots=2)
    await world.set_rules(limit_rules={"default/x": limit(running=3)})
    assert await taken(world) == jobs[2:3]
    assert await running(world) == {"default/x": 3}
    await world.succeed(held[0])
    assert await taken(world) == jobs[3:4]


# A pause


async def test_a_closed_limit_starts_nothing_until_its_time(world: World) -> None:
    until = world.clock.now().replace(second=30)
    await world.set_rules(limit_rules={"default/x": limit(closed_until=until)})
    bounded, free = await world.add(group="|default/x"), await world.add()
    assert await taken(world) == [free]
    world.clock.advance(29.999999)
    assert await taken(world) == []
    world.clock.advance(0.000001)
    assert await taken(world) == [bounded]


async def test_a_limit_that_is_closed_for_ever_opens_when_it_is_opened(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(closed_until=FOREVER)})
    job = await world.add(group="|default/x=a")
    world.clock.advance(1_000_000)
    await world.store.jobs.sweep(Sweep.UNBLOCK, 100)
    assert await taken(world) == []
    await world.set_rules(limit_rules={"default/x": limit()})
    assert await taken(world) == [job]


async def test_closing_a_limit_does_not_end_what_runs(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    jobs = await world.add_many(2, group="|default/x")
    held = await world.take()
    await world.set_rules(limit_rules={"default/x": limit(running=1, closed_until=FOREVER)})
    assert await world.succeed(held)
    assert await taken(world) == []
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    assert await taken(world) == jobs[1:]


async def test_a_hold_stops_one_key_for_a_time(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=1)})
    held = await world.add_many(2, group="|default/x=a")
    other = await world.add(group="|default/x=b")
    await world.flow.hold("default/x=a", 10)
    assert await taken(world) == [other]
    world.clock.advance(9.999999)
    assert await taken(world) == []
    world.clock.advance(0.000001)
    assert await taken(world) == held[:1]


async def test_a_shorter_hold_does_not_end_a_longer_one(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit()})
    job = await world.add(group="|default/x")
    await world.flow.hold("default/x", 10)
    await world.flow.hold("default/x", 1)
    world.clock.advance(9)
    assert await taken(world) == []
    world.clock.advance(1)
    assert await taken(world) == [job]


async def test_a_hold_on_a_bucket_that_no_limit_bounds_stops_nothing(world: World) -> None:
    await world.flow.hold("default/x", 10)
    job = await world.add(group="|default/x")
    assert await taken(world) == [job]


async def test_a_hold_outlasts_the_job_that_asked_for_it(world: World) -> None:
    await world.set_rules(limit_rules={"default/x": limit(running=2)})
    jobs = await world.add_many(3, group="|default/x")
    held = await world.take()
    await world.flow.hold("default/x", 5)
    assert await world.apply(release(held.job, world.clock.now()), held)
    assert await taken(world) == []
    assert await world.flow.usage("default/x", 9) == [
        BucketUsage("default/x", running=0, waiting=3, free_at=world.clock.now().replace(second=5))
    ]
    world.clock.advance(5)
    assert await taken(world) == jobs[:2]
