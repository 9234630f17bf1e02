"""What every store promises, first part: jobs are added, claimed, kept alive and end well.

The same tests for every kind of store, and for the model that the stores are compared with.
"""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec import UNSET, Raw

from tests.support.stores import WITH_MODEL, World, ids, token
from windlass.model.job import Error, Job, Reason, State
from windlass.model.lifecycle import cancel, delete, enter, finish, lose, release
from windlass.model.names import DEFAULT_TENANT, JobKey, fresh_id
from windlass.model.new_job import NewJob
from windlass.model.outcome import Outcome, Verdict
from windlass.model.output import NewChunk, Progress
from windlass.model.retry import RetryPolicy
from windlass.store.data import (
    ClaimRequest,
    Heartbeat,
    HeartbeatReply,
    JobSuccess,
    Overdue,
    Record,
    StoredResult,
    Sweep,
)

NO_SUCH_ID = "00000000-0000-7000-8000-0000000000df"

pytestmark = pytest.mark.parametrize("kind", WITH_MODEL, indirect=True)

SECOND = timedelta(seconds=1)

TERMS: dict[str, Any] = {
    "key": "ключ",
    "tags": ["night", "ü"],
    "timeout": 2.5,
    "tier": "fast",
    "yielding": True,
    "max_retry": None,
    "retry": RetryPolicy(base=1.5, factor=3.0, cap=99.0, jitter=0.25, deadline=1000.0, anchor="start"),
    "keep_result": "once",
    "keep_result_for": 60.0,
    "keep_success": None,
    "keep_failure": 0.5,
    "expires": 60.0,
    "owner_timeout": 600.0,
    "isolate": True,
    "input": True,
    "headers": {"trace": "1-2-3"},
    "content_type": "text/plain",
    "one_argument": True,
    "on_failure": "alert",
}


# Adding


async def test_a_new_job_waits_in_its_queue(world: World) -> None:
    now = world.clock.now()
    id = await world.add("render", queue="images", tenant="acme", priority=-7, payload=b"12345", **TERMS)
    assert await world.job(id) == Job(
        id=id,
        tenant="acme",
        task="render",
        queue="images",
        priority=-7,
        state=State.QUEUED,
        created_at=now,
        updated_at=now,
        size=5,
        **TERMS,
    )


async def test_a_job_that_asks_for_nothing_has_the_defaults(world: World) -> None:
    now = world.clock.now()
    id = await world.add()
    assert await world.job(id) == Job(
        id=id, tenant="default", task="work", state=State.QUEUED, created_at=now, updated_at=now, size=1
    )


async def test_a_delayed_job_is_scheduled(world: World) -> None:
    id = await world.add(delay=10.5)
    job = await world.job(id)
    assert (job.state, job.run_at) == (State.SCHEDULED, world.clock.now() + 10.5 * SECOND)
    assert await world.claim() == []


async def test_a_job_for_a_later_time_is_scheduled(world: World) -> None:
    later = world.clock.now() + timedelta(days=400, microseconds=1)
    id = await world.add(run_at=later)
    job = await world.job(id)
    assert (job.state, job.run_at) == (State.SCHEDULED, later)


@pytest.mark.parametrize("ago", [0.0, 0.000001, 3600.0])
async def test_a_time_that_has_come_is_no_wait(world: World, ago: float) -> None:
    id = await world.add(run_at=world.clock.now() - ago * SECOND)
    job = await world.job(id)
    assert (job.state, job.run_at) == (State.QUEUED, None)


async def test_a_delay_of_nothing_is_no_wait(world: World) -> None:
    id = await world.add(delay=0.0)
    job = await world.job(id)
    assert (job.state, job.run_at) == (State.QUEUED, None)


@pytest.mark.parametrize("asked", [{}, {"delay": 1.5}, {"run_at": 60.0}, {"run_at": -60.0}, {"after": [NO_SUCH_ID]}])
async def test_every_store_enters_a_job_as_the_lifecycle_says(world: World, asked: dict[str, Any]) -> None:
    if "run_at" in asked:
        asked = {"run_at": world.clock.now() + asked["run_at"] * SECOND}
    job = await world.job(await world.add(**asked))
    assert (job.state, job.run_at) == enter(NewJob(task="work", **asked), world.clock.now())


async def test_the_same_id_again_changes_nothing(world: World) -> None:
    id = await world.add(payload=b"first", priority=1)
    before = await world.record(id, payload=True)
    world.clock.advance(1)
    again = world.draft("other", id=id, payload=b"second", priority=2, delay=5)
    assert await world.store.jobs.add([again]) == [False]
    assert await world.record(id, payload=True) == before
    assert len(await world.jobs()) == 1


async def test_the_same_id_from_another_tenant_is_another_job(world: World) -> None:
    id = await world.add(tenant="mine")
    drafts = [world.draft(id=id, tenant=tenant) for tenant in ("yours", "default", "mine")]
    assert await world.store.jobs.add(drafts) == [True, True, False]
    assert [(job.id, job.tenant) for job in await world.jobs()] == [(id, "default"), (id, "mine"), (id, "yours")]
    assert await world.store.jobs.tenants_with([id, NO_SUCH_ID]) == [["default", "mine", "yours"], []]
    assert (await world.take(world.worker(tenant="mine"))).job.tenant == "mine"
    found = (await world.store.jobs.read([JobKey(id, tenant) for tenant in ("mine", "yours", "nobody")])).records
    assert [record and record.job.state for record in found] == [State.RUNNING, State.QUEUED, None]


async def test_the_same_id_twice_in_one_batch_is_one_job(world: World) -> None:
    id = fresh_id(world.chance.uuid7(), "default")
    batch = [world.draft(id=id, payload=b"first"), world.draft(), world.draft(id=id, payload=b"second")]
    assert await world.store.jobs.add(batch) == [True, True, False]
    record = await world.record(id, payload=True)
    assert record is not None
    assert record.payload == b"first"
    assert len(await world.claim(slots=10)) == 2


async def test_a_batch_sent_again_adds_what_is_missing(world: World) -> None:
    batch = [world.draft() for _ in range(5)]
    assert await world.store.jobs.add(batch[:2]) == [True, True]
    assert await world.store.jobs.add(batch) == [False, False, True, True, True]
    assert ids(await world.claim(slots=10)) == [draft.id for draft in batch]


async def test_an_id_counts_as_known_while_its_record_lives(world: World) -> None:
    id = await world.add(keep_success=10)
    await world.succeed(await world.take())
    assert await world.store.jobs.add([world.draft(id=id)]) == [False]
    assert await world.claim() == []
    assert await world.apply(delete(await world.job(id)))
    assert await world.store.jobs.add([world.draft(id=id)]) == [True]


async def test_a_batch_over_many_queues_and_tenants(world: World) -> None:
    batch = [world.draft(queue=f"q{n % 7}", tenant=f"t{n % 3}", delay=n % 2) for n in range(100)]
    assert await world.store.jobs.add(batch) == [True] * 100
    assert await world.store.jobs.add(batch) == [False] * 100
    assert sorted(ids(await world.jobs())) == sorted(draft.id for draft in batch)


async def test_two_thousand_five_hundred_jobs_in_one_call(world: World) -> None:
    batch = [world.draft(payload=str(n).encode()) for n in range(2500)]
    assert await world.store.jobs.add(batch) == [True] * 2500
    taken = await world.claim(slots=2500)
    assert [record.payload for record in taken] == [bytes(draft.new.payload) for draft in batch]


@pytest.mark.parametrize(
    "payload", [b"", bytes(range(256)), b"\xff" * (1 << 20), b"a\r\n$3\r\n"], ids=["none", "all", "much", "crlf"]
)
async def test_a_payload_comes_back_byte_by_byte(world: World, payload: bytes) -> None:
    id = await world.add(payload=payload, content_type="application/octet-stream")
    taken = await world.take()
    read = await world.record(id, payload=True)
    assert read is not None
    assert taken.payload == payload
    assert read.payload == payload
    assert (read.job.size, read.job.payload) == (len(payload), UNSET)


async def test_nothing_to_do_is_done_at_once(world: World) -> None:
    assert await world.store.jobs.add([]) == []
    assert await world.store.jobs.heartbeat([], 60) == []
    assert await world.store.jobs.succeed([]) == []
    assert await world.store.jobs.apply([]) == []
    assert (await world.store.jobs.read([])).records == []


async def test_a_call_that_is_cancelled_ends_and_leaves_the_others_alone(world: World) -> None:
    added = [await world.add(queue=f"q{n % 5}") for n in range(10)]
    for n in range(400):
        call = asyncio.ensure_future(world.records(added))
        for _ in range(n % 25):
            await asyncio.sleep(0)
        other = asyncio.ensure_future(world.records(added[::-1]))
        if call.cancel():
            with pytest.raises(asyncio.CancelledError):
                await call
        assert [record and record.job.id for record in await other] == added[::-1]


# Claiming


async def test_a_claimed_job_is_leased_to_its_worker(world: World) -> None:
    id = await world.add(payload=b"abc", timeout=30.0)
    world.clock.advance(5)
    now = world.clock.now()
    worker = world.worker(id="w9", node="north")
    (record,) = await world.claim(worker, nonce=b"12345678")
    assert (record.token, record.payload) == (b"12345678", b"abc")
    assert record.job == Job(
        id=id,
        tenant="default",
        task="work",
        timeout=30.0,
        state=State.RUNNING,
        attempt=1,
        worker="w9",
        node="north",
        created_at=now - 5 * SECOND,
        updated_at=now,
        started_at=now,
        deadline=now + 30 * SECOND,
        size=3,
    )
    assert await world.record(id) == Record(record.job, b"12345678")


async def test_a_worker_of_no_node_leaves_it_empty(world: World) -> None:
    await world.add()
    assert (await world.take(world.worker(node=""))).job.node is None


async def test_a_job_without_a_limit_has_no_deadline(world: World) -> None:
    await world.add()
    assert (await world.take()).job.deadline is None


async def test_only_a_running_job_has_a_deadline(world: World) -> None:
    id = await world.add(timeout=30.0)
    assert (await world.job(id)).deadline is None
    taken = await world.take()
    assert await world.apply(release(taken.job, world.clock.now()), taken)
    assert (await world.job(id)).deadline is None


async def test_jobs_are_claimed_in_order_of_arrival_whatever_their_task(world: World) -> None:
    added = [await world.add(f"task{n % 3}") for n in range(9)]
    assert ids(await world.claim(slots=4)) == added[:4]
    assert ids(await world.claim(slots=9)) == added[4:]


async def test_arrival_is_the_order_of_adding_not_of_ids(world: World) -> None:
    made = [fresh_id(world.chance.uuid7(), "default") for _ in range(20)]
    for id in reversed(made):
        await world.add(id=id)
    assert ids(await world.claim(slots=20)) == made[::-1]


async def test_a_promoted_job_keeps_its_place_of_arrival(world: World) -> None:
    early = await world.add(delay=10)
    later = await world.add()
    world.clock.advance(10)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 1
    assert ids(await world.claim(slots=2)) == [early, later]


async def test_lower_priority_goes_first_and_ties_go_by_arrival(world: World) -> None:
    lowest, highest = -(2**31), 2**31 - 1
    order = [highest, 1, 0, -1, lowest, highest - 1, 0, lowest + 1, highest, lowest]
    added = [(priority, await world.add(priority=priority)) for priority in order]
    in_order = [id for _, id in sorted(added, key=lambda pair: pair[0])]
    taken = await world.claim(slots=20)
    assert ids(taken) == in_order
    assert [record.job.priority for record in taken] == sorted(order)


async def test_queues_are_emptied_dearest_first(world: World) -> None:
    second = await world.add(queue="dear")
    third = await world.add(queue="cheap", priority=-100)
    first = await world.add(queue="dear", priority=-1)
    await world.add(queue="elsewhere", priority=-1000)
    taken = await world.claim(world.worker("dear", "cheap"), slots=10)
    assert ids(taken) == [first, second, third]


async def test_a_claim_goes_on_with_the_next_queue_until_its_slots_are_taken(world: World) -> None:
    first = [await world.add(queue="a") for _ in range(2)]
    then = [await world.add(queue="b") for _ in range(5)]
    assert ids(await world.claim(world.worker("a", "none", "b"), slots=4)) == first + then[:2]


async def test_a_claim_of_more_than_there_is_gets_what_there_is(world: World) -> None:
    added = [await world.add() for _ in range(3)]
    assert ids(await world.claim(slots=1000)) == added
    assert await world.claim(slots=1000) == []


async def test_a_claim_of_nothing_is_empty(world: World) -> None:
    assert await world.claim(world.worker("nobody", "knows")) == []


NEIGHBOURS = ("a", "a.b", "a-b", "a.b.c", "A", "a_b", "aa")


@pytest.mark.parametrize("name", NEIGHBOURS)
async def test_a_queue_whose_name_begins_like_anothers_is_another(world: World, name: str) -> None:
    added = {queue: await world.add(queue=queue) for queue in NEIGHBOURS}
    assert ids(await world.claim(world.worker(name), slots=10)) == [added[name]]


@pytest.mark.parametrize("name", NEIGHBOURS)
async def test_a_task_whose_name_begins_like_anothers_is_another(world: World, name: str) -> None:
    added = {task: await world.add(task) for task in NEIGHBOURS}
    assert ids(await world.claim(world.worker(tasks=[name]), slots=10)) == [added[name]]


@pytest.mark.parametrize("name", NEIGHBOURS)
async def test_a_tenant_whose_name_begins_like_anothers_is_another(world: World, name: str) -> None:
    added = {tenant: await world.add(tenant=tenant) for tenant in NEIGHBOURS}
    assert ids(await world.claim(world.worker(tenant=name), slots=10)) == [added[name]]
    assert ids(await world.jobs(tenant=name)) == [added[name]]


async def test_names_do_not_run_into_each_other(world: World) -> None:
    one = await world.add("c", tenant="a", queue="b-x")
    other = await world.add("x-c", tenant="a-b", queue="x")
    assert ids(await world.claim(world.worker("b-x", tenant="a"), slots=5)) == [one]
    assert ids(await world.claim(world.worker("x", tenant="a-b"), slots=5)) == [other]


async def test_a_worker_takes_only_tasks_that_it_knows(world: World) -> None:
    added = [await world.add(task) for task in ("x", "other", "y", "x", "other", "y")]
    taken = await world.claim(world.worker(tasks=["y", "x", "unheard-of"]), slots=10)
    assert ids(taken) == [added[0], added[2], added[3], added[5]]


async def test_tasks_that_a_worker_knows_are_merged_by_priority_then_arrival(world: World) -> None:
    third, first, fourth, second = [
        await world.add(task, priority=priority) for task, priority in (("x", 0), ("y", -1), ("y", 0), ("x", -1))
    ]
    taken = await world.claim(world.worker(tasks=["x", "y"]), slots=10)
    assert ids(taken) == [first, second, third, fourth]


async def test_a_large_backlog_of_other_tasks_does_not_hide_mine(world: World) -> None:
    await world.store.jobs.add([world.draft(f"other{n % 50}", priority=-1) for n in range(2000)])
    mine = await world.add("mine")
    assert ids(await world.claim(world.worker(tasks=["mine"]), slots=2)) == [mine]


async def test_tenants_are_kept_apart(world: World) -> None:
    mine = await world.add(tenant="mine")
    await world.add(tenant="yours", priority=-5)
    assert ids(await world.claim(world.worker(tenant="mine"), slots=10)) == [mine]


async def test_a_worker_for_every_tenant_takes_by_priority_then_arrival(world: World) -> None:
    second, third, fourth, first = [
        await world.add(tenant=tenant, priority=priority)
        for tenant, priority in (("zoo", 0), ("acme", 0), ("zoo", 0), ("mid", -1))
    ]
    taken = await world.claim(world.worker(tenant="-"), slots=10)
    assert ids(taken) == [first, second, third, fourth]
    assert [record.job.tenant for record in taken] == ["mid", "zoo", "acme", "zoo"]


async def test_a_worker_for_every_tenant_still_knows_only_its_tasks(world: World) -> None:
    await world.add("other", tenant="acme")
    mine = await world.add("mine", tenant="zoo")
    assert ids(await world.claim(world.worker(tenant="-", tasks=["mine"]), slots=10)) == [mine]


async def test_a_claim_sent_again_answers_the_same_jobs_and_takes_no_more(world: World) -> None:
    for queue, priority in (("b", 0), ("a", 5), ("b", -5), ("a", 5), ("a", -5)):
        await world.add(queue=queue, priority=priority, payload=queue.encode())
    await world.add(queue="b")
    wish = ClaimRequest(world.worker("a", "b"), b"nonce..1", 5, 60.0)
    first = await world.store.jobs.claim(wish)
    assert len(first) == 5
    world.clock.advance(1)
    assert await world.store.jobs.claim(wish) == first
    assert await world.store.jobs.claim(ClaimRequest(wish.worker, wish.nonce, 100, 60.0)) == first


async def test_a_claim_sent_again_after_another_answers_the_same_jobs(world: World) -> None:
    for _ in range(6):
        await world.add()
    worker = world.worker()
    first = await world.claim(worker, slots=2, nonce=b"nonce..1")
    second = await world.claim(worker, slots=2, nonce=b"nonce..2")
    assert await world.claim(worker, slots=2, nonce=b"nonce..1") == first
    assert await world.claim(worker, slots=2, nonce=b"nonce..2") == second
    world.clock.advance(3600)
    assert await world.claim(worker, slots=2, nonce=b"nonce..1") == first


async def test_a_claim_sent_again_leaves_out_what_has_ended_since(world: World) -> None:
    for _ in range(4):
        await world.add()
    worker = world.worker()
    first, second, third = await world.claim(worker, slots=3, nonce=b"nonce..1")
    assert await world.succeed(second)
    assert ids(await world.claim(worker, slots=3, nonce=b"nonce..1")) == ids([first, third])


async def test_a_claim_sent_again_does_not_lengthen_the_lease(world: World) -> None:
    await world.add()
    worker = world.worker()
    (taken,) = await world.claim(worker, lease=10, nonce=b"nonce..1")
    world.clock.advance(6)
    await world.claim(worker, lease=10, nonce=b"nonce..1")
    world.clock.advance(4)
    assert (await world.store.jobs.overdue(Overdue.LEASE, 10)).records == [await world.record(taken.job.id)]


async def test_the_nonce_of_one_worker_is_not_anothers(world: World) -> None:
    one, other = [await world.add() for _ in range(2)]
    assert ids(await world.claim(world.worker(id="w1"), nonce=b"nonce..1")) == [one]
    assert ids(await world.claim(world.worker(id="w2"), nonce=b"nonce..1")) == [other]


@pytest.mark.parametrize("nonce", [b"\0" * 8, b"\xff" * 8, b"\r\n\0\xff'\"{}"])
async def test_a_token_is_any_eight_bytes(world: World, nonce: bytes) -> None:
    await world.add()
    (taken,) = await world.claim(nonce=nonce)
    assert taken.token == nonce
    assert (await world.touch(taken)).held
    assert await world.succeed(taken)


async def test_the_next_run_begins_with_a_clean_slate(world: World) -> None:
    id = await world.add()
    first = await world.take()
    await world.touch(first, pid=77, progress=Progress(done=1))
    assert await world.apply(release(first.job, world.clock.now()), first)
    given_back = await world.job(id)
    assert (given_back.pid, given_back.progress, given_back.reason) == (77, Progress(done=1), Reason.RELEASED)
    world.clock.advance(1)
    second = (await world.take(world.worker(id="w2"))).job
    assert (second.pid, second.progress, second.reason, second.worker) == (None, None, None, "w2")
    assert second.started_at == world.clock.now()


async def test_the_job_that_comes_after_a_deleted_one_has_nothing_of_it(world: World) -> None:
    first = await world.add(payload=b"x" * 5000, max_retry=1, keep_success=100)
    taken = await world.take()
    error = Error(message="first time")
    retried = finish(taken.job, Outcome(verdict=Verdict.ERROR, error=error, delay=1), world.clock.now(), 0.0)
    assert await world.apply(retried, taken)
    world.clock.advance(1)
    await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    taken = await world.take()
    await world.store.jobs.post(JobKey(first, DEFAULT_TENANT), b"message")
    await world.touch(taken, progress=Progress(done=1), output=[NewChunk(stream="stdout", data=b"text")])
    assert await world.succeed(taken, b"result")
    assert await world.apply(delete(await world.job(first)))
    second = await world.add()
    taken = await world.take()
    assert (taken.job.id, taken.payload) == (second, b"\xc0")
    assert (taken.job.progress, taken.job.errors, taken.job.attempt) == (None, [], 1)
    assert await world.output(second, 0, 10) == []
    assert (await world.touch(taken, messages_after=0)).messages == []
    assert await world.succeed(taken)
    assert await world.result(second) is None


async def test_many_claims_at_once_share_the_jobs_between_them(world: World) -> None:
    batch = [world.draft(queue=f"q{n % 3}") for n in range(100)]
    await world.store.jobs.add(batch)
    workers = [world.worker("q0", "q1", "q2", id=f"w{n}") for n in range(12)]
    claims = await asyncio.gather(*(world.claim(worker, slots=9) for worker in workers))
    assert sorted(id for claim in claims for id in ids(claim)) == sorted(draft.id for draft in batch)


# Signs of life


async def test_a_sign_of_life_lengthens_the_lease(world: World) -> None:
    await world.add()
    taken = await world.take(lease=10)
    world.clock.advance(9)
    assert await world.touch(taken, lease=10) == HeartbeatReply(taken.job.id, held=True)
    world.clock.advance(9.999999)
    assert (await world.store.jobs.overdue(Overdue.LEASE, 10)).records == []
    world.clock.advance(0.000001)
    assert len((await world.store.jobs.overdue(Overdue.LEASE, 10)).records) == 1


async def test_a_sign_of_life_may_shorten_the_lease(world: World) -> None:
    await world.add()
    taken = await world.take(lease=1000)
    await world.touch(taken, lease=1)
    world.clock.advance(1)
    assert len((await world.store.jobs.overdue(Overdue.LEASE, 10)).records) == 1


async def test_a_late_heartbeat_is_in_time_while_the_job_was_not_reclaimed(world: World) -> None:
    await world.add()
    taken = await world.take(lease=10)
    world.clock.advance(11)
    assert (await world.touch(taken, lease=10)).held
    assert (await world.store.jobs.overdue(Overdue.LEASE, 10)).records == []


async def test_a_pid_is_noted_with_its_time(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    world.clock.advance(1)
    await world.touch(taken, pid=2**32 - 1)
    job = await world.job(id)
    assert (job.pid, job.updated_at) == (2**32 - 1, world.clock.now())


async def test_progress_is_noted_and_changes_nothing_else(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    world.clock.advance(1)
    said = Progress(done=0.5, total=3, note="läuft")
    await world.touch(taken, progress=said)
    job = await world.job(id)
    assert (job.progress, job.updated_at, job.pid) == (said, world.clock.now(), None)


async def test_a_bare_sign_of_life_forgets_nothing(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    await world.touch(taken, pid=7, progress=Progress(done=1))
    before = await world.record(id)
    world.clock.advance(1)
    await world.touch(taken)
    assert await world.record(id) == before


async def test_a_worker_hears_that_its_job_is_to_stop(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    assert (await world.touch(taken)).reason is None
    assert await world.apply(cancel(taken.job), taken)
    assert await world.touch(taken) == HeartbeatReply(id, held=True, reason=Reason.CANCELLED)


async def test_the_fence_is_the_token_alone(world: World) -> None:
    await world.add()
    taken = await world.take(world.worker(id="w1"))
    (touched,) = await world.store.jobs.heartbeat([Heartbeat(taken.job.id, taken.job.tenant, token(taken))], 60)
    assert touched.held


async def test_signs_of_life_are_answered_in_order(world: World) -> None:
    mine = [await world.add() for _ in range(3)]
    taken = await world.claim(slots=3)
    stranger = fresh_id(world.chance.uuid7(), "nowhere")
    touches = [
        Heartbeat(mine[2], DEFAULT_TENANT, token(taken[2]), pid=3),
        Heartbeat(stranger, DEFAULT_TENANT, b"12345678"),
        Heartbeat(mine[0], DEFAULT_TENANT, b"a lie..."),
        Heartbeat(mine[1], DEFAULT_TENANT, token(taken[1])),
        Heartbeat(mine[2], DEFAULT_TENANT, token(taken[2]), pid=4),
    ]
    answers = await world.store.jobs.heartbeat(touches, 60)
    assert [(answer.id, answer.held) for answer in answers] == [
        (mine[2], True),
        (stranger, False),
        (mine[0], False),
        (mine[1], True),
        (mine[2], True),
    ]
    assert (await world.job(mine[2])).pid == 4


async def lost_and_taken_again(world: World) -> tuple[Record, Record]:
    """One job claimed by a worker that was lost, and the same job claimed by the next."""
    await world.add(max_retry=5)
    old = await world.take(world.worker(id="w1"), lease=10)
    world.clock.advance(10)
    assert await world.apply(lose(old.job, world.clock.now()), old)
    new = await world.take(world.worker(id="w2"), lease=10)
    assert new.job.id == old.job.id
    return old, new


async def test_a_lost_lease_fences_off_the_late_sign_of_life(world: World) -> None:
    old, new = await lost_and_taken_again(world)
    world.clock.advance(9)
    assert await world.touch(old, lease=1000, pid=666, progress=Progress(done=1)) == HeartbeatReply(
        old.job.id, held=False
    )
    assert await world.record(new.job.id) == Record(new.job, new.token)
    world.clock.advance(1)
    assert len((await world.store.jobs.overdue(Overdue.LEASE, 10)).records) == 1


async def test_a_lost_lease_fences_off_the_late_success(world: World) -> None:
    old, new = await lost_and_taken_again(world)
    assert not await world.succeed(old, b"late")
    assert await world.record(new.job.id) == Record(new.job, new.token)
    assert await world.result(new.job.id) is None
    assert await world.succeed(new, b"good")
    assert await world.result(new.job.id) == StoredResult(b"good", "text/plain")


async def test_a_lost_lease_fences_off_the_late_failure(world: World) -> None:
    old, new = await lost_and_taken_again(world)
    late = finish(new.job, Outcome(verdict=Verdict.ERROR), world.clock.now(), 0.0)
    assert not await world.apply(late, old)
    assert await world.record(new.job.id) == Record(new.job, new.token)


@pytest.mark.parametrize("ending", ["released", "succeeded", "failed"])
async def test_a_job_that_does_not_run_has_no_holder(world: World, ending: str) -> None:
    id = await world.add()
    taken = await world.take()
    if ending == "succeeded":
        await world.succeed(taken)
    elif ending == "failed":
        await world.apply(finish(taken.job, Outcome(verdict=Verdict.FAILED), world.clock.now(), 0.0), taken)
    else:
        await world.apply(release(taken.job, world.clock.now()), taken)
    before = await world.record(id)
    assert before is not None
    assert before.token is None
    assert not (await world.touch(taken, pid=1)).held
    assert not await world.succeed(taken, b"again")
    assert await world.record(id) == before


# Success


async def test_a_success_is_written_whole(world: World) -> None:
    id = await world.add(max_retry=1, keep_success=100)
    first = await world.take()
    error = Error(message="first time")
    retried = finish(first.job, Outcome(verdict=Verdict.ERROR, error=error, delay=1), world.clock.now(), 0.0)
    assert await world.apply(retried, first)
    world.clock.advance(1)
    await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    taken = await world.take(world.worker(node="n1"))
    await world.touch(taken, pid=7, progress=Progress(done=3))
    world.clock.advance(2)
    now = world.clock.now()
    (applied,) = await world.store.jobs.succeed(
        [JobSuccess(id, DEFAULT_TENANT, token(taken), 204, b"\x2a", "application/vnd.msgpack")]
    )
    assert applied
    record = await world.record(id)
    assert record is not None
    assert record.token is None
    assert record.job == Job(
        id=id,
        tenant="default",
        task="work",
        max_retry=1,
        keep_success=100,
        state=State.SUCCEEDED,
        attempt=2,
        worker="w1",
        node="n1",
        pid=7,
        progress=Progress(done=3),
        code=204,
        error=retried.error,
        errors=[retried.error] if retried.error else [],
        created_at=now - 3 * SECOND,
        updated_at=now,
        run_at=now - 2 * SECOND,
        started_at=now - 2 * SECOND,
        finished_at=now,
        size=1,
    )


async def test_a_success_may_say_when_it_came(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    world.clock.advance(5)
    earlier = world.clock.now() - 3.000001 * SECOND
    assert await world.succeed(taken, finished_at=earlier)
    job = await world.job(id)
    assert (job.finished_at, job.updated_at) == (earlier, world.clock.now())


async def test_a_success_counts_once(world: World) -> None:
    await world.add()
    taken = await world.take()
    assert await world.succeed(taken, b"first")
    assert not await world.succeed(taken, b"second")
    assert await world.result(taken.job.id) == StoredResult(b"first", "text/plain")


async def test_a_success_counts_once_within_one_report(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    dones = [JobSuccess(id, DEFAULT_TENANT, token(taken), 200, word, "text/plain") for word in (b"first", b"second")]
    assert await world.store.jobs.succeed(dones) == [True, False]
    assert await world.result(id) == StoredResult(b"first", "text/plain")


async def test_a_report_of_many_is_judged_one_by_one(world: World) -> None:
    for n in range(6):
        await world.add(queue=f"q{n % 2}")
    taken = await world.claim(world.worker("q0", "q1"), slots=6)
    stranger = fresh_id(world.chance.uuid7(), "q1")
    dones = [JobSuccess(record.job.id, record.job.tenant, token(record), 200, None, "text/plain") for record in taken]
    dones[1] = JobSuccess(taken[1].job.id, taken[1].job.tenant, b"a lie...", 200, None, "text/plain")
    dones[4] = JobSuccess(stranger, DEFAULT_TENANT, token(taken[4]), 200, None, "text/plain")
    assert await world.store.jobs.succeed(dones) == [True, False, True, True, False, True]
    assert len(await world.jobs(states=frozenset({State.RUNNING}))) == 2


async def test_a_cancelled_job_that_succeeds_all_the_same_has_succeeded(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    assert await world.apply(cancel(taken.job), taken)
    assert await world.succeed(taken)
    job = await world.job(id)
    assert (job.state, job.reason) == (State.SUCCEEDED, None)


async def test_a_deleted_job_that_succeeds_all_the_same_leaves_nothing(world: World) -> None:
    id = await world.add(keep_success=None)
    taken = await world.take()
    assert await world.apply(delete(taken.job), taken)
    assert await world.succeed(taken, b"nobody wants it")
    assert await vanished(world, id)


async def test_a_success_that_is_not_kept_leaves_nothing(world: World) -> None:
    id = await world.add(keep_success=0)
    taken = await world.take()
    await world.touch(taken, pid=1, progress=Progress(done=1))
    assert await world.succeed(taken, b"result")
    assert await vanished(world, id)
    assert not await world.succeed(taken)


async def vanished(world: World, id: str) -> bool:
    """Whether there is no trace of a job: the scrubber sees to what cannot be asked for."""
    tallies = (await world.store.jobs.counts("-")).jobs
    found = [await world.record(id), await world.result(id), *tallies, *await world.jobs()]
    again = await world.store.jobs.add([world.draft(id=id, payload=b"anew")])
    job = await world.job(id)
    return found == [None, None] and again == [True] and (job.attempt, job.errors, job.progress) == (0, [], None)


# Results


async def test_a_result_is_kept_and_may_be_read_often(world: World) -> None:
    id = await world.add()
    everything = bytes(range(256)) * 100
    await world.succeed(await world.take(), everything, content_type="image/png")
    for _ in range(3):
        assert await world.result(id) == StoredResult(everything, "image/png")


async def test_a_result_of_no_bytes_is_a_result(world: World) -> None:
    id = await world.add()
    await world.succeed(await world.take(), b"")
    assert await world.result(id) == StoredResult(b"", "text/plain")


async def test_a_result_may_be_read_once(world: World) -> None:
    id = await world.add(keep_result="once")
    await world.succeed(await world.take(), b"secret")
    before = await world.record(id)
    assert await world.result(id) == StoredResult(b"secret", "text/plain")
    assert await world.result(id) is None
    assert await world.record(id) == before


async def test_of_many_readers_at_once_one_gets_the_result(world: World) -> None:
    id = await world.add(keep_result="once")
    await world.succeed(await world.take(), b"secret")
    answers = await asyncio.gather(*(world.result(id) for _ in range(10)))
    assert [answer for answer in answers if answer] == [StoredResult(b"secret", "text/plain")]


async def test_an_unwanted_result_is_dropped(world: World) -> None:
    id = await world.add(keep_result="none")
    await world.succeed(await world.take(), b"unwanted")
    assert await world.result(id) is None
    assert (await world.job(id)).state is State.SUCCEEDED


async def test_there_is_no_result_where_there_was_none(world: World) -> None:
    id = await world.add()
    assert await world.result(id) is None
    await world.succeed(await world.take(), None)
    assert await world.result(id) is None
    assert await world.result(fresh_id(world.chance.uuid7(), "nowhere")) is None


async def test_a_payload_is_raw_bytes_to_the_store(world: World) -> None:
    draft = world.draft(payload=b"\xc1 no value at all")
    assert isinstance(draft.new.payload, Raw)
    await world.store.jobs.add([draft])
    assert (await world.take()).payload == b"\xc1 no value at all"
