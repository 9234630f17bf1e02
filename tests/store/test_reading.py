"""What every store promises, third part: jobs are looked up, listed and counted, workers known, notices heard."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.stores import ALL, WITH_MODEL, World, ids
from windlass.model.errors import Invalid
from windlass.model.job import FINISHED, PENDING, State
from windlass.model.lifecycle import cancel, delete, finish, release, rerun
from windlass.model.names import JobKey, fresh_id
from windlass.model.outcome import Outcome, Verdict
from windlass.model.worker import NewWorker, Worker, WorkerUsage
from windlass.store.data import ClaimRequest, JobCount, ListScope, Sweep
from windlass.store.encoding import end_topic

pytestmark = pytest.mark.parametrize("kind", WITH_MODEL, indirect=True)

SECOND = timedelta(seconds=1)
EVERYTHING = ListScope("-", None, ALL)


# Looking up


async def test_the_store_tells_its_time(world: World) -> None:
    assert (await world.store.jobs.read([])).now == world.clock.now()
    world.clock.advance(86400.000001)
    assert (await world.store.jobs.read([])).now == world.clock.now()


async def test_jobs_are_read_in_the_order_asked_for(world: World) -> None:
    a, b, c = [await world.add(queue=queue) for queue in ("a", "b", "c")]
    nobody = fresh_id(world.chance.uuid7(), "b")
    found = await world.records([c, nobody, a, b, a])
    assert [record and record.job.id for record in found] == [c, None, a, b, a]


async def test_payloads_are_read_only_where_asked_for(world: World) -> None:
    id = await world.add(payload=b"abc")
    bare, full = await world.record(id), await world.record(id, payload=True)
    assert bare is not None
    assert full is not None
    assert (bare.payload, full.payload) == (None, b"abc")
    assert bare.job == full.job


async def test_a_thousand_jobs_are_read_at_once(world: World) -> None:
    batch = [world.draft(queue=f"q{n % 9}", payload=str(n).encode()) for n in range(1000)]
    await world.store.jobs.add(batch)
    found = await world.records([draft.id for draft in batch], payload=True)
    assert [record and record.payload for record in found] == [str(n).encode() for n in range(1000)]


# Listing


async def a_crowd(world: World) -> list[str]:
    """Jobs of several tenants and queues, in the order of a listing."""
    places = [(tenant, queue) for tenant in ("b", "a", "a-b", "B") for queue in ("x", "default", "x.y", "x-y")]
    added: dict[tuple[str, str], list[str]] = {place: [] for place in places}
    for _ in range(3):
        for tenant, queue in places:
            added[tenant, queue].append(await world.add(tenant=tenant, queue=queue))
    in_order = sorted(places, key=lambda place: (place[0].encode(), place[1].encode()))
    return [id for place in in_order for id in added[place]]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 48, 1000])
async def test_all_pages_are_all_jobs_once_in_order(world: World, limit: int) -> None:
    crowd = await a_crowd(world)
    assert ids(await world.jobs(limit=limit)) == crowd


async def test_a_listing_of_nothing_is_empty(world: World) -> None:
    assert (await world.store.jobs.list(EVERYTHING, None, 10)).records == []
    await world.add(tenant="a", queue="q")
    for scope in (
        ListScope("b", None, ALL),
        ListScope("-", "p", ALL),
        ListScope("a", "q", FINISHED),
        ListScope("a", "q", frozenset()),
    ):
        assert [page async for page in world.pages(scope, 10) if page] == []


async def test_a_listing_of_one_tenant(world: World) -> None:
    await a_crowd(world)
    jobs = await world.jobs(tenant="a", limit=5)
    assert [(job.tenant, job.queue) for job in jobs] == [
        ("a", queue) for queue in ("default", "x", "x-y", "x.y") for _ in range(3)
    ]


async def test_a_listing_of_one_queue(world: World) -> None:
    await a_crowd(world)
    jobs = await world.jobs(queue="x", limit=5)
    assert [(job.tenant, job.queue) for job in jobs] == [
        (tenant, "x") for tenant in ("B", "a", "a-b", "b") for _ in range(3)
    ]
    assert len(await world.jobs(tenant="a", queue="x-y", limit=2)) == 3


async def in_every_state(world: World, **terms: Any) -> dict[State, str]:
    """One job in each state that can be reached."""
    by_state = {}
    for state in (State.SUCCEEDED, State.FAILED, State.RUNNING):
        id = by_state[state] = await world.add(**terms)
        taken = await world.take(world.worker(terms.get("queue", "default"), tenant=terms.get("tenant", "default")))
        assert taken.job.id == id
        if state is State.SUCCEEDED:
            await world.succeed(taken)
        elif state is State.FAILED:
            failed = finish(taken.job, Outcome(verdict=Verdict.FAILED), world.clock.now(), 0.0)
            await world.apply(failed, taken)
    by_state[State.CANCELLED] = await world.add(**terms)
    await world.apply(cancel(await world.job(by_state[State.CANCELLED])))
    by_state[State.SCHEDULED] = await world.add(delay=60, **terms)
    by_state[State.QUEUED] = await world.add(**terms)
    return by_state


@pytest.mark.parametrize(
    "states",
    [*({state} for state in sorted(State)), PENDING, FINISHED, {State.QUEUED, State.FAILED}],
    ids=lambda states: "+".join(sorted(states)),
)
async def test_a_listing_of_some_states(world: World, states: set[State]) -> None:
    by_state = await in_every_state(world)
    wanted = [id for state, id in by_state.items() if state in states]
    assert ids(await world.jobs(states=frozenset(states), limit=2)) == wanted


async def test_a_record_of_a_listing_is_the_record_without_its_payload(world: World) -> None:
    by_state = await in_every_state(world, timeout=30)
    page = await world.store.jobs.list(EVERYTHING, None, 100)
    assert page.records == await world.records(list(by_state.values()))


# Newest first

NEWEST_FIRST = ListScope("-", None, ALL, newest_first=True)


def backwards(crowd: list[str]) -> list[str]:
    """The same queues, each from its newest job to its oldest."""
    return [id for start in range(0, len(crowd), 3) for id in crowd[start : start + 3][::-1]]


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
async def test_newest_first_all_pages_are_all_jobs_once(world: World, limit: int) -> None:
    crowd = await a_crowd(world)
    assert [id async for page in world.pages(NEWEST_FIRST, limit) for id in ids(page)] == backwards(crowd)


async def test_newest_first_a_long_queue_is_listed_through_all_its_parts(world: World) -> None:
    added = await world.add_many(300)
    for id in added[:200:7]:
        await world.apply(delete(await world.job(id)))
    for id in added[1::5]:
        if not await world.gone(id):
            await world.apply(cancel(await world.job(id)))
    left = [job.id for job in await world.jobs(limit=1000)]
    assert [id async for page in world.pages(NEWEST_FIRST, 90) for id in ids(page)] == left[::-1]
    cancelled = [job.id for job in await world.jobs(states=FINISHED, limit=1000)]
    ended = ListScope("-", None, FINISHED, newest_first=True)
    assert [id async for page in world.pages(ended, 7) for id in ids(page)] == cancelled[::-1]


@pytest.mark.parametrize("state", [State.RUNNING, State.BLOCKED, State.SCHEDULED])
async def test_newest_first_of_states_that_have_an_index_of_their_own(world: World, state: State) -> None:
    terms: dict[State, dict[str, Any]] = {
        State.BLOCKED: {"after": ["00000000-0000-7000-8000-0000000000df"]},
        State.SCHEDULED: {"delay": 60},
    }
    added = await world.add_many(5, **terms.get(state, {}))
    if state is State.RUNNING:
        await world.claim(slots=5)
    scope = ListScope("-", None, frozenset({state}), newest_first=True)
    assert [id async for page in world.pages(scope, 2) for id in ids(page)] == added[::-1]


async def test_newest_first_jobs_that_come_between_pages_are_not_listed_and_move_nothing(world: World) -> None:
    added = await world.add_many(10)
    seen: list[str] = []
    async for page in world.pages(NEWEST_FIRST, 3):
        seen += ids(page)
        if len(seen) < 10:
            await world.add_many(2)
            await world.claim()
    assert seen == added[::-1]


Meddle = Callable[[World, list[str]], Awaitable[None]]


async def claim_some(world: World, crowd: list[str]) -> None:
    await world.claim(world.worker("x", "default", "x.y", "x-y", tenant="-"), slots=7)


async def cancel_some(world: World, crowd: list[str]) -> None:
    for id in crowd[::3]:
        if (job := await world.job(id)).state is State.QUEUED:
            await world.apply(cancel(job))


async def run_some_again(world: World, crowd: list[str]) -> None:
    for job in await world.jobs(states=FINISHED):
        await world.apply(rerun(job))


async def give_some_back(world: World, crowd: list[str]) -> None:
    await claim_some(world, crowd)
    for job in await world.jobs(states=frozenset({State.RUNNING})):
        record = await world.record(job.id)
        assert record is not None
        await world.apply(release(job, world.clock.now()), record)


async def add_some(world: World, crowd: list[str]) -> None:
    if sum(tally.count for tally in (await world.store.jobs.counts("-")).jobs) < len(crowd) + 20:
        await world.add(tenant="a", queue="default")
        await world.add(tenant="c", queue="new")


@pytest.mark.parametrize("meddle", [claim_some, cancel_some, run_some_again, give_some_back, add_some])
@pytest.mark.parametrize("limit", [1, 5])
async def test_jobs_that_change_between_pages_are_listed_once(world: World, meddle: Meddle, limit: int) -> None:
    crowd = await a_crowd(world)
    await cancel_some(world, crowd[1:])
    seen: list[str] = []
    async for page in world.pages(EVERYTHING, limit):
        seen += ids(page)
        await meddle(world, crowd)
    assert len(set(seen)) == len(seen)
    assert [id for id in seen if id in set(crowd)] == crowd


async def test_jobs_deleted_between_pages_do_not_hide_the_others(world: World) -> None:
    crowd = await a_crowd(world)
    seen: list[str] = []
    gone: list[str] = []
    async for page in world.pages(EVERYTHING, 4):
        seen += ids(page)
        # The last one seen, where the next page begins, and one further on.
        for id in (seen[-1], *[id for id in crowd if id not in seen and id not in gone][2:3]):
            await world.apply(delete(await world.job(id)))
            gone.append(id)
    assert seen == [id for id in crowd if id in set(seen)]
    assert set(seen) >= set(crowd) - set(gone)
    assert len(seen) < len(crowd)


async def test_a_whole_queue_deleted_between_pages_does_not_end_the_listing(world: World) -> None:
    crowd = await a_crowd(world)
    first = await world.store.jobs.list(EVERYTHING, None, 2)
    for job in await world.jobs(tenant=first.records[0].job.tenant):
        await world.apply(delete(job))
    rest: list[str] = []
    after = first.next
    while after is not None:
        page = await world.store.jobs.list(EVERYTHING, after, 5)
        rest += ids(page.records)
        after = page.next
    assert rest == crowd[12:]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "!",
        "0",
        "-1",
        "\0",
        "💥",
        "\ud800",
        "AAAA",
        "a" * 10_000,
        "[]",
        "{}",
        "null",
        "a/b/c",
        "a:b:c",
        "a b c",
    ],
    ids=ascii,
)
async def test_a_cursor_that_no_page_gave_is_refused(world: World, cursor: str) -> None:
    await a_crowd(world)
    with pytest.raises(Invalid) as fault:
        await world.store.jobs.list(EVERYTHING, cursor, 10)
    assert fault.value.at == "after"


@pytest.mark.parametrize(
    "cursor",
    [
        "\ud800,b,1",
        "a,b,99999999999999999999999",
        "a,b,-1",
        "a,b,1e5",
        "a,b,٣",
        "a,b,²",
        "a,\ud800,1",
        "a,b\n,1",
        ",,1",
    ],
    ids=ascii,
)
async def test_a_cursor_is_understood_or_refused(world: World, cursor: str) -> None:
    await a_crowd(world)
    with suppress(Invalid):
        await world.store.jobs.list(EVERYTHING, cursor, 10)


# Counting


async def test_counts_are_sorted_and_above_nothing(world: World) -> None:
    await world.add("y", tenant="b", queue="q")
    await world.add("x", tenant="b", queue="q", delay=5)
    await world.add("x", tenant="b", queue="q")
    await world.add("x", tenant="b", queue="p")
    await world.add("x", tenant="a", queue="q")
    await world.add("x", tenant="a", queue="q")
    await world.add("x", tenant="a-b", queue="q")
    in_order = [
        JobCount("a", "q", "x", State.QUEUED, 2),
        JobCount("a-b", "q", "x", State.QUEUED, 1),
        JobCount("b", "p", "x", State.QUEUED, 1),
        JobCount("b", "q", "x", State.QUEUED, 1),
        JobCount("b", "q", "x", State.SCHEDULED, 1),
        JobCount("b", "q", "y", State.QUEUED, 1),
    ]
    assert (await world.store.jobs.counts("-")).jobs == in_order
    assert (await world.store.jobs.counts("a")).jobs == in_order[:1]
    assert (await world.store.jobs.counts("b")).jobs == in_order[2:]
    assert (await world.store.jobs.counts("nobody")).jobs == []


async def test_counts_are_what_a_listing_finds(world: World) -> None:
    for tenant in ("a", "b"):
        for queue in ("default", "images"):
            await in_every_state(world, tenant=tenant, queue=queue)
    jobs = await world.jobs()
    counted = Counter((job.tenant, job.queue, job.task, job.state) for job in jobs)
    assert {(t.tenant, t.queue, t.task, t.state): t.count for t in (await world.store.jobs.counts("-")).jobs} == counted
    assert len(counted) == 4 * 6


async def test_counts_go_back_to_nothing(world: World) -> None:
    await in_every_state(world)
    for job in await world.jobs():
        record = await world.record(job.id)
        assert record is not None
        await world.apply(delete(job), record if record.token else None)
        if record.token:
            await world.succeed(record)
    assert (await world.store.jobs.counts("-")).jobs == []


# Workers

SAID = NewWorker(name="north-1", node="north", pid=77, queues=["a", "b"], tasks=["x"], slots=5)


def known(world: World, id: str, tenant: str = "default", running: int = 0) -> Worker:
    now = world.clock.now()
    return Worker(
        name="north-1",
        node="north",
        pid=77,
        queues=["a", "b"],
        tasks=["x"],
        slots=5,
        id=id,
        tenant=tenant,
        running=running,
        registered_at=now,
        seen_at=now,
    )


async def test_a_worker_is_known_as_it_introduced_itself(world: World) -> None:
    await world.store.workers.heartbeat("w1", "acme", 10, SAID)
    assert await world.store.workers.list("acme") == [known(world, "w1", "acme")]
    assert await world.store.workers.heartbeat("w1", "acme", 10) == known(world, "w1", "acme")


async def test_a_worker_that_knows_any_task_is_known_as_such(world: World) -> None:
    await world.store.workers.heartbeat("w1", "acme", 10, NewWorker(name="w"))
    (worker,) = await world.store.workers.list("acme")
    assert (worker.tasks, worker.queues, worker.node, worker.slots) == (None, ["default"], "", 1)


async def test_workers_are_listed_by_tenant_in_order_of_registration(world: World) -> None:
    for id, tenant in (("w3", "a"), ("w1", "b"), ("w2", "-")):
        await world.store.workers.heartbeat(id, tenant, 100, SAID)
        world.clock.advance(1)
    await world.store.workers.heartbeat("w9", "a", 100, SAID)
    await world.store.workers.heartbeat("w4", "a", 100, SAID)
    assert [worker.id for worker in await world.store.workers.list("-")] == ["w3", "w1", "w2", "w4", "w9"]
    assert [worker.id for worker in await world.store.workers.list("a")] == ["w3", "w4", "w9"]
    assert await world.store.workers.list("nobody") == []


async def test_a_greeting_keeps_a_worker_alive(world: World) -> None:
    await world.store.workers.heartbeat("w1", "default", 10, SAID)
    registered = world.clock.now()
    world.clock.advance(9.999999)
    worker = await world.store.workers.heartbeat("w1", "default", 10)
    assert worker is not None
    assert (worker.registered_at, worker.seen_at) == (registered, world.clock.now())
    world.clock.advance(9.999999)
    assert await world.store.workers.list("default") == [worker]


async def test_a_silent_worker_is_forgotten_at_that_moment(world: World) -> None:
    await world.store.workers.heartbeat("w1", "default", 10, SAID)
    world.clock.advance(10)
    assert await world.store.workers.list("default") == []
    assert await world.store.workers.heartbeat("w1", "default", 10) is None
    assert await world.store.workers.list("-") == []
    assert await world.store.workers.heartbeat("w1", "default", 0) is None


async def test_a_worker_that_takes_its_leave_is_forgotten(world: World) -> None:
    await world.store.workers.heartbeat("w1", "default", 10, SAID)
    await world.store.workers.heartbeat("w2", "default", 10, SAID)
    assert await world.store.workers.heartbeat("w1", "default", 0) is not None
    assert [worker.id for worker in await world.store.workers.list("-")] == ["w2"]
    assert await world.store.workers.heartbeat("w1", "default", 10) is None
    assert await world.store.workers.heartbeat("w1", "default", 0) is None
    assert await world.store.workers.heartbeat("never-heard-of", "default", 0) is None


async def test_a_stranger_is_not_greeted(world: World) -> None:
    assert await world.store.workers.heartbeat("stranger", "acme", 10) is None


async def test_no_tenant_renews_the_worker_of_another(world: World) -> None:
    await world.store.workers.heartbeat("w1", "acme", 10, SAID)
    world.clock.advance(9)
    assert await world.store.workers.heartbeat("w1", "other", 10) is None
    world.clock.advance(1)
    assert await world.store.workers.list("-") == []


async def test_a_claim_is_a_sign_of_life_noted_once_a_second(world: World) -> None:
    await world.store.workers.heartbeat("w1", "default", 60, SAID)
    registered = world.clock.now()
    world.clock.advance(0.999999)
    await world.claim(world.worker(id="w1"))
    assert [worker.seen_at for worker in await world.store.workers.list("-")] == [registered]
    world.clock.advance(0.000001)
    await world.claim(world.worker(id="w1"))
    assert [worker.seen_at for worker in await world.store.workers.list("-")] == [world.clock.now()]


async def test_a_claim_on_behalf_of_a_worker_is_no_sign_of_its_life(world: World) -> None:
    await world.store.workers.heartbeat("w1", "default", 10, SAID)
    registered = world.clock.now()
    world.clock.advance(9)
    id = await world.add()
    worker = world.worker(id="w1")
    (taken,) = await world.store.jobs.claim(ClaimRequest(worker, b"12345678", 1, 60.0, heard=False))
    assert (taken.job.id, taken.job.worker) == (id, "w1")
    assert [worker.seen_at for worker in await world.store.workers.list("-")] == [registered]
    world.clock.advance(1)
    assert await world.store.workers.list("-") == []


async def test_a_worker_may_come_back_under_its_name(world: World) -> None:
    await world.store.workers.heartbeat("w1", "a", 10, SAID)
    world.clock.advance(20)
    await world.store.workers.heartbeat("w1", "b", 10, NewWorker(name="other"))
    (worker,) = await world.store.workers.list("-")
    assert (worker.tenant, worker.name, worker.registered_at) == ("b", "other", world.clock.now())
    assert await world.store.workers.list("a") == []


async def test_a_worker_is_known_with_what_it_runs(world: World) -> None:
    await world.store.workers.heartbeat("w1", "default", 100, SAID)
    await world.store.workers.heartbeat("w2", "default", 100, SAID)
    for n in range(6):
        await world.add(queue="ab"[n % 2])
    taken = await world.claim(world.worker("a", "b", id="w1"), slots=5)
    assert [(worker.id, worker.running) for worker in await world.store.workers.list("-")] == [("w1", 5), ("w2", 0)]
    assert await world.succeed(taken[0])
    assert await world.apply(release(taken[1].job, world.clock.now()), taken[1])
    assert await world.apply(delete(taken[2].job), taken[2])
    worker = await world.store.workers.heartbeat("w1", "default", 100)
    assert worker is not None
    assert worker.running == 3
    assert await world.succeed(taken[2])
    assert [worker.running for worker in await world.store.workers.list("-")] == [2, 0]


# Notices


async def hears(world: World, topic: str, happens: Callable[[], Awaitable[Any]]) -> bool:
    """Whether somebody who waits for this topic hears of what happens within a second."""
    async with world.store.events.listen([topic]) as listener:
        waiting = asyncio.ensure_future(listener.wait(PATIENCE))
        await asyncio.sleep(0)
        await happens()
        return bool(await waiting)


async def test_new_work_is_heard_of(world: World) -> None:
    assert await hears(world, "work/images", lambda: world.add(queue="images"))


async def test_new_work_of_any_tenant_is_heard_of(world: World) -> None:
    assert await hears(world, "work/images", lambda: world.add(queue="images", tenant="acme"))


async def test_work_whose_time_has_come_is_heard_of(world: World) -> None:
    await world.add(delay=1)
    world.clock.advance(1)
    assert await hears(world, "work/default", lambda: world.store.jobs.sweep(Sweep.PROMOTE, 10))


async def test_work_that_is_given_back_is_heard_of(world: World) -> None:
    await world.add()
    taken = await world.take()
    assert await hears(world, "work/default", lambda: world.apply(release(taken.job, world.clock.now()), taken))


async def test_work_that_is_wanted_again_is_heard_of(world: World) -> None:
    id = await world.add()
    await world.succeed(await world.take())
    job = await world.job(id)
    assert await hears(world, "work/default", lambda: world.apply(rerun(job)))


@pytest.mark.parametrize("keep", [0.0, 60.0, None])
async def test_the_end_of_a_job_is_heard_of(world: World, keep: float | None) -> None:
    id = await world.add(keep_success=keep)
    taken = await world.take()
    assert await hears(world, end_topic(JobKey(id, "default")), lambda: world.succeed(taken))


@pytest.mark.parametrize("keep", [0.0, 60.0, None])
async def test_the_failure_of_a_job_is_heard_of(world: World, keep: float | None) -> None:
    id = await world.add(keep_failure=keep)
    taken = await world.take()
    move = finish(taken.job, Outcome(verdict=Verdict.FAILED), world.clock.now(), 0.0)
    assert await hears(world, end_topic(JobKey(id, "default")), lambda: world.apply(move, taken))


async def test_a_caller_that_waits_for_the_end_of_a_job_learns_of_its_cancelling(world: World) -> None:
    id = await world.add()
    job = await world.job(id)
    assert await hears(world, end_topic(JobKey(id, "default")), lambda: world.apply(cancel(job)))


@pytest.mark.parametrize("order", [cancel, delete])
async def test_an_order_is_heard_of_by_the_worker(world: World, order: Any) -> None:
    await world.add()
    taken = await world.take(world.worker(id="w7"))
    assert await hears(world, "order/w7", lambda: world.apply(order(taken.job), taken))


async def test_a_notice_that_came_before_the_wait_is_heard_of(world: World) -> None:
    async with world.store.events.listen(["work/a", "work/b"]) as listener:
        await world.add(queue="b")
        assert await listener.wait(PATIENCE)


async def test_one_notice_reaches_all_who_listen(world: World) -> None:
    async with (
        world.store.events.listen(["work/default"]) as one,
        world.store.events.listen(["work/other", "work/default"]) as other,
    ):
        waits = asyncio.gather(one.wait(1.0), other.wait(1.0))
        await asyncio.sleep(0)
        await world.add()
        assert all(await waits)


async def test_notices_are_heard_of_one_after_the_other(world: World) -> None:
    async with world.store.events.listen(["work/default"]) as listener:
        for _ in range(3):
            await world.add()
            assert await listener.wait(PATIENCE)


async def test_where_nothing_happens_nothing_is_heard_of(world: World) -> None:
    async with world.store.events.listen(["work/default"]) as listener:
        assert not await listener.wait(0.05)
        assert not await listener.wait(0)


async def test_an_earlier_listener_does_not_keep_others_from_listening(world: World) -> None:
    async with world.store.events.listen(["work/default"]) as listener:
        assert not await listener.wait(0.01)
    assert await hears(world, "work/default", world.add)


async def test_what_a_worker_uses_is_kept_as_it_last_said(world: World) -> None:
    workers = world.store.workers
    await workers.heartbeat("w1", "acme", 10, SAID)
    heard = await workers.heartbeat("w1", "acme", 10, usage=WorkerUsage(2**40, 0.25))
    assert heard is not None
    assert heard.usage == WorkerUsage(2**40, 0.25)
    assert await workers.heartbeat("w1", "other", 10, usage=WorkerUsage(1, 1.0)) is None
    await workers.heartbeat("w1", "acme", 10)
    await workers.heartbeat("w1", "acme", 10, NewWorker(name="other"))
    (found,) = await workers.list("acme")
    assert (found.name, found.usage) == ("other", WorkerUsage(2**40, 0.25))
