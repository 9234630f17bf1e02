"""Limits, pauses and the settings of queues, asked of an engine over each kind of store."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from tests.support.engines import enqueue, finish, packed, register, state
from tests.support.stores import StoreKind, VirtualClock, with_long
from windlass.engine import Engine
from windlass.engine.flow.apply import FOREVER, regroup_jobs
from windlass.engine.flow.config import LIMITS
from windlass.engine.flow.settings import MOST_LIMITS
from windlass.engine.upkeep import reclaim, unblock_lanes
from windlass.model.errors import Conflict, Invalid, Missing
from windlass.model.handler import NewHandler
from windlass.model.job import JSON, TEXT, Reason, State
from windlass.model.limit import Condition, Limit, NewLimit, Pause, Rate, Which
from windlass.model.names import key_of
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Began,
    Begin,
    Cancel,
    ChangeQueue,
    Claim,
    Claimed,
    Enqueue,
    EnqueueMany,
    GetLimit,
    GetQueue,
    GetTask,
    LimitCard,
    Limits,
    PauseLimit,
    PauseTask,
    PutHandler,
    PutLimit,
    Queues,
    Release,
    Released,
    RemoveLimit,
    Show,
)
from windlass.model.queue import QueueChange, Tier
from windlass.store.data import ANYTHING


@pytest.fixture(params=with_long(("sqlite", "file", "redis", "valkey")))
def kind(request: pytest.FixtureRequest) -> StoreKind:
    """Not a cluster: there a limit must name its queue."""
    found: StoreKind = request.param
    return found


async def put(engine: Engine, name: str = "some", tenant: str = "default", **limit: Any) -> LimitCard:
    return await engine(PutLimit(tenant=tenant, name=name, limit=NewLimit(**limit)))


async def claim(engine: Engine, worker: str, slots: int = 100, tenant: str = "default") -> list[Claimed]:
    return await engine(Claim(tenant=tenant, worker=worker, slots=slots))


async def tasks(engine: Engine, worker: str, slots: int = 100) -> list[str]:
    return [claimed.job.task for claimed in await claim(engine, worker, slots)]


# Stored and shown


async def test_a_limit_is_kept_listed_replaced_and_removed(engine: Engine) -> None:
    card = await put(engine, match=Which(task="send"), running=2)
    assert card == LimitCard(name="some", tenant="default", match=Which(task="send"), running=2)
    await put(engine, rate=Rate(count=5))
    assert await engine(Limits()) == [Limit(name="some", tenant="default", rate=Rate(count=5))]
    await engine(RemoveLimit(name="some"))
    assert await engine(Limits()) == []
    with pytest.raises(Missing):
        await engine(GetLimit(name="some"))


async def test_a_tenant_does_not_see_another_ones_limits(engine: Engine) -> None:
    await put(engine, tenant="a", running=1)
    assert await engine(Limits(tenant="b")) == []
    with pytest.raises(Missing):
        await engine(RemoveLimit(tenant="b", name="some"))


@pytest.mark.parametrize(
    ("limit", "at"),
    [
        (NewLimit(), "running"),
        (NewLimit(running=1, key="colour"), "key"),
        (NewLimit(running=1, key="payload"), "key"),
        (NewLimit(rate=Rate(count=20_000)), "rate.count"),
        (NewLimit(running=1, key="payload.a..b"), "key"),
        (NewLimit(running=1, match=Which(payload={"a": Condition()})), "match"),
        (NewLimit(running=1, match=Which(payload={"a": Condition(any_of=[])})), "match"),
        (NewLimit(running=1, match=Which(payload={"a": Condition(min=2, max=1)})), "match"),
        (NewLimit(running=1, match=Which(payload={"": 1})), "match.payload"),
        (NewLimit(running=1, match=Which(task=Condition(min=1))), "match.task"),
        (
            NewLimit(running=1, match=Which(all=[Which(all=[Which(all=[Which(all=[Which(task="a")])])])])),
            "match.all[0].all[0].all[0].all[0]",
        ),
    ],
)
async def test_a_limit_that_cannot_be_meant_is_refused_and_changes_nothing(
    engine: Engine, limit: NewLimit, at: str
) -> None:
    await put(engine, running=3)
    with pytest.raises(Invalid) as fault:
        await engine(PutLimit(name="some", limit=limit))
    assert fault.value.at == at
    assert (await engine(GetLimit(name="some"))).running == 3


# S2 items 28 to 30: what matches is bounded, what does not passes by


async def test_s2_30_a_concurrency_constraint_on_a_matcher_is_never_exceeded(engine: Engine) -> None:
    await put(engine, match=Which(task="send"), running=2)
    for task in ("send", "send", "send", "other", "send"):
        await enqueue(engine, task)
    worker = await register(engine)
    first = await claim(engine, worker)
    assert [one.job.task for one in first] == ["send", "send", "other"]
    assert await tasks(engine, worker) == []
    await finish(engine, worker, first[0])
    assert await tasks(engine, worker) == ["send"]
    card = await engine(GetLimit(name="some"))
    assert [(one.key, one.running, one.waiting) for one in card.buckets] == [(None, 2, 1)]


async def test_s2_28_a_rate_limit_on_a_field_holds_in_any_window(engine: Engine, clock: VirtualClock) -> None:
    await put(engine, match=Which(payload={"customer": 42}), rate=Rate(count=2, per=10))
    for customer in (42, 7, 42, 42, 42, 42):
        await enqueue(engine, "call", payload=packed({"customer": customer}))
    worker = await register(engine)
    assert len(await claim(engine, worker)) == 3, "two of the customer's, and the other one's, which passes by"
    clock.advance(9.9)
    assert await claim(engine, worker) == []
    clock.advance(0.2)
    assert len(await claim(engine, worker)) == 2


async def test_s2_29_a_matcher_combines_conditions(engine: Engine) -> None:
    await put(engine, match=Which(task="a", payload={"n": Condition(min=2, max=3)}), running=1)
    worker = await register(engine)
    for task, n in (("a", 1), ("a", 2), ("a", 3), ("b", 2), ("b", 3), ("a", 4)):
        await enqueue(engine, task, payload=packed({"n": n}))
    assert await tasks(engine, worker) == ["a", "a", "b", "b", "a"]


@pytest.mark.parametrize(
    ("which", "bounded"),
    [
        (Which(payload={"order.id": 7}), [True, False, False]),
        (Which(payload={"to": Condition(glob="*@example.org")}), [False, True, False]),
        (Which(payload={"order.id": Condition(any_of=[7, 8])}), [True, False, False]),
        (Which(tag=["big"]), [False, False, True]),
        (Which(any=[Which(tag=["big"]), Which(payload={"order.id": 7})]), [True, False, True]),
        (Which(task=Condition(glob="w*")), [True, True, True]),
        (Which(queue=Condition(any_of=["other"])), [False, False, False]),
        (Which(tenant="default"), [True, True, True]),
    ],
)
async def test_every_kind_of_condition_says_which_jobs_are_meant(
    engine: Engine, which: Which, bounded: list[bool]
) -> None:
    await put(engine, match=which, running=1)
    await engine(PauseLimit(name="some", pause=Pause(paused=True)))
    jobs = [
        await enqueue(engine, payload=packed({"order": {"id": 7}})),
        await enqueue(engine, payload=packed({"to": "me@example.org"})),
        await enqueue(engine, tags=["big", "red"]),
    ]
    taken = {claimed.job.id for claimed in await claim(engine, await register(engine))}
    assert [job.id not in taken for job in jobs] == bounded


async def test_payloads_of_other_encodings_are_read_as_far_as_they_can_be(engine: Engine) -> None:
    await put(engine, match=Which(payload={"n": 1}), running=1)
    await engine(PauseLimit(name="some", pause=Pause(paused=True)))
    await engine(Enqueue(job=NewJob(task="json", payload=Raw(b'{"n": 1}'), content_type=JSON)))
    await engine(Enqueue(job=NewJob(task="text", payload=Raw(b"n=1"), content_type=TEXT)))
    await engine(Enqueue(job=NewJob(task="odd", payload=Raw(b"\xff\xff"), content_type="application/odd")))
    assert await tasks(engine, await register(engine)) == ["text", "odd"]


async def test_a_key_makes_a_bucket_for_each_value(engine: Engine) -> None:
    await put(engine, running=1, key="payload.customer")
    odd: list[object] = ["", "a b/c|d=e,f", "é" * 200, None, 1, 1.5, True, ["x"]]
    for customer in odd:
        for _ in range(2):
            await enqueue(engine, payload=packed({"customer": customer}))
    for _ in range(2):
        await enqueue(engine, payload=packed("no fields"))
    worker = await register(engine)
    taken = await claim(engine, worker)
    assert len(taken) == len(odd) + 1
    for claimed in taken:
        await finish(engine, worker, claimed)
    assert len(await claim(engine, worker)) == len(odd) + 1


async def test_a_limit_of_everybody_bounds_all_tenants_together_or_each_by_itself(engine: Engine) -> None:
    await put(engine, "all", tenant="-", running=3)
    await put(engine, "each", tenant="-", running=2, key="tenant")
    for tenant in ("a", "b"):
        for _ in range(3):
            await enqueue(engine, tenant=tenant)
    worker = await register(engine, tenant="-")
    taken = [claimed.job.tenant for claimed in await claim(engine, worker, tenant="-")]
    assert sorted((taken.count("a"), taken.count("b"))) == [1, 2]


async def test_a_tenants_limit_leaves_other_tenants_alone(engine: Engine) -> None:
    await put(engine, tenant="a", running=1)
    for tenant in ("a", "a", "b", "b"):
        await enqueue(engine, tenant=tenant)
    worker = await register(engine, tenant="-")
    assert sorted(one.job.tenant for one in await claim(engine, worker, tenant="-")) == ["a", "b", "b"]


# Changed while jobs wait


async def test_a_limit_holds_for_jobs_that_waited_before_it_came(engine: Engine) -> None:
    for n in range(6):
        await enqueue(engine, payload=packed({"n": n % 2}), delay=None if n < 4 else 60)
    await put(engine, match=Which(payload={"n": 1}), running=1)
    worker = await register(engine)
    assert len(await claim(engine, worker)) == 3


async def test_running_jobs_count_for_a_limit_that_comes_later(engine: Engine) -> None:
    for _ in range(4):
        await enqueue(engine)
    worker = await register(engine)
    first = await claim(engine, worker, 2)
    await put(engine, running=2)
    assert await claim(engine, worker) == []
    for claimed in first:
        await finish(engine, worker, claimed)
    assert len(await claim(engine, worker)) == 2


async def test_a_limit_with_another_match_bounds_other_jobs(engine: Engine) -> None:
    await put(engine, match=Which(task="a"), running=1)
    for task in ("a", "a", "b", "b"):
        await enqueue(engine, task)
    await put(engine, match=Which(task="b"), running=1)
    assert await tasks(engine, await register(engine)) == ["a", "a", "b"]


async def test_a_removed_limit_bounds_nothing_and_a_widened_one_less(engine: Engine) -> None:
    await put(engine, running=1)
    for _ in range(5):
        await enqueue(engine)
    worker = await register(engine)
    assert len(await claim(engine, worker)) == 1
    await put(engine, running=3)
    assert len(await claim(engine, worker)) == 2
    await engine(RemoveLimit(name="some"))
    assert len(await claim(engine, worker)) == 2


async def test_a_limit_under_the_name_of_a_removed_one_bounds_only_its_own_jobs(engine: Engine) -> None:
    worker = await register(engine, "a", "b")
    await put(engine, match=Which(queue="a"), running=1)
    for queue in ("a", "a", "a", "b", "b"):
        await enqueue(engine, queue, queue=queue)
    assert await tasks(engine, worker, 1) == ["a"]
    await engine(RemoveLimit(name="some"))
    await enqueue(engine, "b", queue="b")
    await put(engine, match=Which(queue="b"), running=1)
    assert await tasks(engine, worker) == ["a", "a", "b"]


async def test_a_removed_limit_is_forgotten_while_its_jobs_go_on(engine: Engine) -> None:
    await put(engine, running=1)
    job = await enqueue(engine)
    await engine(RemoveLimit(name="some"))
    assert not (await engine.context.store.flow.rules()).paused_until
    assert await regroup_jobs(engine.context)
    rules = await engine.context.store.flow.rules()
    assert (rules.fingerprints, rules.regrouping) == ({}, [])
    (record,) = (await engine.context.store.jobs.read([key_of(job)])).records
    assert record is not None
    assert record.group == ""


async def test_an_engine_that_has_not_heard_of_a_limit_still_adds_jobs_under_it(engine: Engine) -> None:
    other = Engine(engine.context.store, engine.context.chance)
    await enqueue(other)
    await put(engine, running=1)
    await enqueue(other)
    await other(EnqueueMany(jobs=[NewJob(task="work")] * 3))
    worker = await register(engine)
    assert len(await claim(engine, worker)) == 1


async def test_what_a_dead_process_left_unsorted_is_sorted_by_the_next(engine: Engine) -> None:
    await enqueue(engine)
    await enqueue(engine)
    await put(engine, running=1)
    rules = await engine.context.store.flow.rules()
    shut = {"default,*,*": FOREVER}
    assert await engine.context.store.flow.set_rules(
        replace(rules, version=rules.version + 1, regrouping=["default,*,*"], paused_until=shut)
    )
    worker = await register(engine)
    assert await claim(engine, worker) == []
    assert await regroup_jobs(engine.context)
    assert len(await claim(engine, worker)) == 1


async def test_places_of_a_lost_worker_come_back_with_its_lease(engine: Engine, clock: VirtualClock) -> None:
    await put(engine, running=1)
    await enqueue(engine)
    await enqueue(engine)
    lost = await register(engine)
    assert len(await claim(engine, lost)) == 1
    clock.advance(20)
    worker = await register(engine)
    assert await claim(engine, worker) == []
    assert await reclaim(engine) == 1
    assert len(await claim(engine, worker)) == 1


# Rest


async def test_a_task_that_is_refused_elsewhere_lets_its_key_rest_not_the_others(
    engine: Engine, clock: VirtualClock
) -> None:
    await put(engine, "api", match=Which(task="call"), running=10, key="payload.customer")
    for customer in (1, 1, 2):
        await enqueue(engine, "call", payload=packed({"customer": customer}))
    worker = await register(engine)
    (first,) = await claim(engine, worker, 1)
    await engine(Release(worker=worker, jobs=[Released(id=first.job.id, token=first.token, delay=5, hold_limit="")]))
    (other,) = await claim(engine, worker)
    assert other.job.id != first.job.id
    assert (await engine(Show(id=first.job.id))).attempt == 0
    clock.advance(5.1)
    await unblock_lanes(engine)
    again = await claim(engine, worker)
    assert next(one.job.id for one in again) == first.job.id
    assert len(again) == 2


async def test_without_a_limit_such_a_task_is_snoozed(engine: Engine, clock: VirtualClock) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    (first,) = await claim(engine, worker)
    await engine(Release(worker=worker, jobs=[Released(id=job.id, token=first.token, delay=5, hold_limit="")]))
    found = await engine(Show(id=job.id))
    assert (found.state, found.reason) == (State.SCHEDULED, Reason.SNOOZED)


async def test_a_paused_limit_lets_nothing_start_until_it_is_resumed_or_its_time_has_come(
    engine: Engine, clock: VirtualClock
) -> None:
    await put(engine, match=Which(task="a"), running=5)
    for task in ("a", "b"):
        await enqueue(engine, task)
    worker = await register(engine)
    until = clock.now() + timedelta(seconds=30)
    card = await engine(PauseLimit(name="some", pause=Pause(paused=True, until=until, why="tired")))
    assert (card.paused, card.until, card.why) == (True, until, "tired")
    assert await tasks(engine, worker) == ["b"]
    clock.advance(31)
    await unblock_lanes(engine)
    assert await tasks(engine, worker) == ["a"]
    assert not (await engine(GetLimit(name="some"))).paused


async def test_a_paused_queue_takes_jobs_in_and_hands_none_out(engine: Engine, clock: VirtualClock) -> None:
    await enqueue(engine, queue="mail")
    worker = await register(engine, "mail", "default")
    card = await engine(ChangeQueue(queue="mail", change=QueueChange(paused=True, why="moved")))
    assert (card.paused, card.why, card.states) == (True, "moved", {State.QUEUED: 1})
    await enqueue(engine, queue="mail")
    await enqueue(engine, "other")
    assert await tasks(engine, worker) == ["other"]
    card = await engine(ChangeQueue(queue="mail", change=QueueChange(paused=False)))
    assert (card.paused, card.why) == (False, "")
    assert await tasks(engine, worker) == ["work", "work"]


async def test_a_pause_of_a_queue_ends_by_itself(engine: Engine, clock: VirtualClock) -> None:
    await enqueue(engine)
    until = clock.now() + timedelta(seconds=10)
    await engine(ChangeQueue(queue="default", change=QueueChange(paused=True, until=until)))
    worker = await register(engine)
    assert await claim(engine, worker) == []
    clock.advance(10.5)
    await unblock_lanes(engine)
    assert len(await claim(engine, worker)) == 1
    assert not (await engine(GetQueue(queue="default"))).paused


async def test_a_pause_that_has_ended_leaves_nothing_to_the_next_one(engine: Engine, clock: VirtualClock) -> None:
    await enqueue(engine)
    until = clock.now() + timedelta(seconds=10)
    await engine(ChangeQueue(queue="default", change=QueueChange(paused=True, until=until, why="moved")))
    clock.advance(10.5)
    await unblock_lanes(engine)
    card = await engine(ChangeQueue(queue="default", change=QueueChange(paused=True)))
    assert (card.paused, card.until, card.why, card.since) == (True, None, "", clock.now())
    assert await claim(engine, await register(engine)) == []


async def test_a_pause_that_would_be_over_already_is_refused(engine: Engine, clock: VirtualClock) -> None:
    await put(engine, running=5)
    over = clock.now() - timedelta(seconds=1)
    for pause in (
        ChangeQueue(queue="mail", change=QueueChange(paused=True, until=over)),
        PauseLimit(name="some", pause=Pause(paused=True, until=over)),
        PauseTask(task="work", pause=Pause(paused=True, until=over)),
    ):
        with pytest.raises(Invalid, match="the pause would be over already: the store's clock shows"):
            await engine(pause)
    assert not (await engine(GetQueue(queue="mail"))).paused


async def test_everybodys_pause_of_a_queue_pauses_it_for_every_tenant(engine: Engine) -> None:
    for tenant in ("a", "b"):
        await enqueue(engine, tenant=tenant)
    worker = await register(engine, tenant="-")
    await engine(ChangeQueue(tenant="-", queue="default", change=QueueChange(paused=True)))
    assert await claim(engine, worker, tenant="-") == []
    await engine(ChangeQueue(tenant="-", queue="default", change=QueueChange(paused=False)))
    assert len(await claim(engine, worker, tenant="-")) == 2


async def test_a_paused_task_waits_in_all_its_queues(engine: Engine) -> None:
    for queue in ("default", "mail"):
        await enqueue(engine, "a", queue=queue)
        await enqueue(engine, "b", queue=queue)
    await engine(PauseTask(task="a", pause=Pause(paused=True, why="broken")))
    found = await engine(GetTask(task="a"))
    assert (found.paused, found.why) == (True, "broken")
    assert found.since is not None
    assert (await engine(PauseTask(task="a", pause=Pause(paused=True, why="still")))).since == found.since
    worker = await register(engine, "default", "mail")
    assert await tasks(engine, worker) == ["b", "b"]
    await engine(PauseTask(task="a", pause=Pause()))
    assert await tasks(engine, worker) == ["a", "a"]
    assert not (await engine(GetTask(task="a"))).paused


# Queues


async def claimed_by_ones(engine: Engine, worker: str, tenant: str, count: int) -> list[Claimed]:
    """Claims of one job each, whose turns come out the same each time."""
    claims = [
        await engine(Claim(tenant=tenant, worker=worker, nonce=f"{number:016x}")) for number in range(1, count + 1)
    ]
    return [one for taken in claims for one in taken]


@pytest.mark.parametrize("slots", [1, 10])
async def test_s3_34_with_two_busy_tenants_both_progress_without_any_setting(engine: Engine, slots: int) -> None:
    await engine(EnqueueMany(tenant="greedy", jobs=[NewJob(task="a") for _ in range(100)]))
    await engine(EnqueueMany(tenant="modest", jobs=[NewJob(task="a") for _ in range(100)]))
    worker = await register(engine, tenant="-")
    if slots == 1:
        taken = [one.job.tenant for one in await claimed_by_ones(engine, worker, "-", 40)]
        assert min(taken.count("greedy"), taken.count("modest")) >= 10
    else:
        taken = [one.job.tenant for one in await claim(engine, worker, slots, tenant="-")]
        assert (taken.count("greedy"), taken.count("modest")) == (5, 5)


async def test_s3_34_with_two_busy_functions_both_progress_without_any_setting(engine: Engine) -> None:
    for task in "ab":
        await engine(PutHandler(task=task, handler=NewHandler(lang="sh", body="cat")))
        await engine(EnqueueMany(jobs=[NewJob(task=task) for _ in range(100)]))
    for tenant in ("default", "-"):
        worker = await register(engine, tenant=tenant, tasks=[], handlers=True)
        taken = [one.job.task for one in await claim(engine, worker, 10, tenant=tenant)]
        assert (taken.count("a"), taken.count("b")) == (5, 5)
        taken = [one.job.task for one in await claimed_by_ones(engine, worker, tenant, 20)]
        assert min(taken.count("a"), taken.count("b")) >= 4


async def test_tasks_of_an_app_go_by_priority_and_arrival(engine: Engine) -> None:
    await engine(EnqueueMany(jobs=[NewJob(task="a") for _ in range(20)]))
    await engine(EnqueueMany(jobs=[NewJob(task="b", priority=-1) for _ in range(5)]))
    worker = await register(engine, tasks=["a", "b"], handlers=True)
    assert await tasks(engine, worker, 6) == ["b"] * 5 + ["a"]


async def test_an_order_that_was_asked_for_goes_before_turns(engine: Engine) -> None:
    for tenant in ("greedy", "modest"):
        await engine(EnqueueMany(tenant=tenant, jobs=[NewJob(task="a") for _ in range(100)]))
    worker = await register(engine, tenant="-")
    await engine(ChangeQueue(tenant="-", queue="default", change=QueueChange(policy="priority")))
    assert {one.job.tenant for one in await claim(engine, worker, 10, tenant="-")} == {"greedy"}
    await engine(ChangeQueue(tenant="-", queue="default", change=QueueChange(clear=["policy"])))
    assert {one.job.tenant for one in await claim(engine, worker, 10, tenant="-")} == {"greedy", "modest"}


async def test_queues_of_a_worker_take_turns_unless_it_names_their_order(engine: Engine) -> None:
    for queue in ("mail", "web"):
        await engine(EnqueueMany(jobs=[NewJob(task="a", queue=queue) for _ in range(600)]))
    worker = await register(engine, "mail", "web", in_turn=True)
    taken = [one.job.queue for one in await claim(engine, worker, 32)]
    assert (taken.count("mail"), taken.count("web")) == (16, 16)
    taken = [one.job.queue for one in await claimed_by_ones(engine, worker, "default", 20)]
    assert min(taken.count("mail"), taken.count("web")) >= 4
    worker = await register(engine, "mail", "web")
    assert {one.job.queue for one in await claim(engine, worker, 32)} == {"mail"}


async def test_s3_34_with_two_busy_tasks_both_progress_under_the_fair_policy(engine: Engine) -> None:
    await engine(ChangeQueue(queue="default", change=QueueChange(policy="fair", weights={"b": 2.0})))
    await engine(EnqueueMany(jobs=[NewJob(task="a") for _ in range(50)]))
    await engine(EnqueueMany(jobs=[NewJob(task="b") for _ in range(50)]))
    worker = await register(engine)
    taken = await tasks(engine, worker, 12)
    assert (taken.count("a"), taken.count("b")) == (4, 8)


async def test_a_tenant_with_many_jobs_does_not_delay_another_ones_one_job(engine: Engine) -> None:
    await engine(ChangeQueue(tenant="-", queue="default", change=QueueChange(policy="fair")))
    await engine(EnqueueMany(tenant="greedy", jobs=[NewJob(task="a") for _ in range(1000)]))
    worker = await register(engine, tenant="-")
    await claim(engine, worker, 10, tenant="-")
    await enqueue(engine, tenant="modest")
    taken = [one.job.tenant for one in await claim(engine, worker, 2, tenant="-")]
    assert "modest" in taken


async def test_a_queue_gives_its_jobs_what_they_do_not_ask_for(engine: Engine) -> None:
    change = QueueChange(timeout=7.0, isolate=True, keep_success=5.0, keep_failure=None)
    card = await engine(ChangeQueue(queue="default", change=change))
    assert (card.timeout, card.isolate, card.keep_success, card.keep_failure) == (7.0, True, 5.0, None)
    job = await engine(Show(id=(await enqueue(engine)).id))
    assert (job.timeout, job.isolate, job.keep_success, job.keep_failure) == (7.0, True, 5.0, None)
    own = await engine(Show(id=(await enqueue(engine, timeout=1.0, keep_success=9.0)).id))
    assert (own.timeout, own.keep_success) == (1.0, 9.0)


@pytest.mark.parametrize(
    ("queues", "own", "begun", "becomes"),
    [
        ("fail", None, True, State.FAILED),
        ("fail", None, False, State.QUEUED),
        ("requeue", None, True, State.QUEUED),
        ("fail", "retry", True, State.QUEUED),
        ("retry", "fail", True, State.FAILED),
        ("retry", "fail", False, State.QUEUED),
    ],
)
async def test_a_queue_or_the_job_says_what_becomes_of_a_lost_job(
    engine: Engine, clock: VirtualClock, *, queues: Any, own: Any, begun: bool, becomes: State
) -> None:
    await engine(ChangeQueue(queue="default", change=QueueChange(on_lost=queues)))
    job = await enqueue(engine, on_lost=own)
    worker = await register(engine)
    (claimed,) = await claim(engine, worker)
    assert (claimed.job.on_lost or "retry") == (own or queues)
    if begun:
        await engine(Begin(worker=worker, jobs=[Began(id=job.id, token=claimed.token, pid=7)]))
    clock.advance(20)
    await reclaim(engine)
    assert await state(engine, job.id) is becomes


async def test_what_is_not_named_stays_as_it_is(engine: Engine) -> None:
    await engine(ChangeQueue(queue="default", change=QueueChange(timeout=7.0)))
    await engine(ChangeQueue(queue="default", change=QueueChange(isolate=True)))
    card = await engine(GetQueue(queue="default"))
    assert (card.timeout, card.isolate) == (7.0, True)
    await engine(ChangeQueue(queue="default", change=QueueChange(timeout=None, isolate=False)))
    assert [card.queue for card in await engine(Queues())] == []


@pytest.mark.parametrize(
    ("tiers", "at"),
    [
        ([Tier(name="slow", seconds=30), Tier(name="fast", seconds=3)], "tiers[1].seconds"),
        ([Tier(name="fast", seconds=3, cap=1), Tier(name="slow", seconds=30, cap=2)], "tiers[1].cap"),
        ([Tier(name="fast", seconds=3, cap="10%"), Tier(name="slow", seconds=30, cap="20%")], "tiers[1].cap"),
        ([Tier(name="fast", seconds=3, cap="0%")], "tiers[0].cap"),
        ([Tier(name="fast", seconds=3, cap=5), Tier(name="slow", seconds=30, cap=2)], "tiers[0].cap"),
        ([Tier(name="fast", seconds=3, cap="50%")], "tiers[0].cap"),
        ([Tier(name="fast", seconds=3), Tier(name="fast", seconds=4)], "tiers"),
    ],
)
async def test_tiers_out_of_order_or_with_caps_that_grow_are_refused_at_once(
    engine: Engine, tiers: list[Tier], at: str
) -> None:
    with pytest.raises(Invalid) as fault:
        await engine(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))
    assert fault.value.at == at
    assert (await engine(GetQueue(queue="default"))).tiers == []


async def test_a_cancelled_job_behind_a_full_limit_is_gone_from_it(engine: Engine) -> None:
    await put(engine, running=1)
    jobs = [await enqueue(engine) for _ in range(3)]
    worker = await register(engine)
    (first,) = await claim(engine, worker)
    await engine(Cancel(ids=[jobs[1].id]))
    await finish(engine, worker, first)
    assert [one.job.id for one in await claim(engine, worker)] == [jobs[2].id]


async def test_a_thousand_limits_are_enough(engine: Engine) -> None:
    for number in range(MOST_LIMITS):
        limit = Limit(name=f"l{number}", tenant="default", running=1)
        await engine.context.store.records.swap(LIMITS, f"default/l{number}", ANYTHING, msgspec.msgpack.encode(limit))
    with pytest.raises(Conflict):
        await put(engine, "one-more", running=1)
