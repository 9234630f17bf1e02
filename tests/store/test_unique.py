"""What every store promises of unique jobs: one at a time of each identity, decided in the step that adds one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.stores import WITH_MODEL, StoreKind, World, open_store
from windlass.model.errors import Conflict
from windlass.model.job import State
from windlass.model.lifecycle import cancel, delete, expire, finish, lose, release, rerun
from windlass.model.new_job import NewJob
from windlass.model.outcome import Outcome, Verdict
from windlass.store.data import Added, Dependency, Draft, Duplicate, Overdue, Record, Sweep
from windlass.store.redis import RedisStore

pytestmark = pytest.mark.parametrize("kind", WITH_MODEL, indirect=True)


async def send(world: World, payload: bytes = b"\x01", **terms: Any) -> tuple[str, Added]:
    """Add one such job; its own id, and the answer."""
    given: dict[str, Any] = {"unique": "pending", "max_retry": 1} | terms
    draft = world.draft(payload=payload, **given)
    (added,) = await world.store.jobs.add([draft])
    return draft.id, added


async def is_free(world: World, **terms: Any) -> bool:
    """Whether one more such job would be new: it is sent, and joined to the other one if there is one."""
    _, added = await send(world, **terms)
    return bool(added)


async def end(world: World, record: Record, verdict: Verdict, **more: Any) -> None:
    move = finish(record.job, Outcome(verdict=verdict, **more), world.clock.now(), 0.5)
    assert await world.apply(move, by=record)


async def running(world: World, id: str, before: Record) -> Record:
    """A claimed job as it is now."""
    return Record(await world.job(id), before.token)


# Who is the same


async def test_a_second_one_is_joined_to_the_first(world: World) -> None:
    id, added = await send(world)
    assert added is True
    other, joined = await send(world)
    assert joined == Duplicate(id)
    assert not joined
    assert await world.gone(other)
    assert [job.id for job in await world.jobs()] == [id]
    assert len(await world.claim(slots=5)) == 1


async def test_jobs_differ_by_payload_task_queue_and_tenant(world: World) -> None:
    for terms in ({}, {"payload": b"\x02"}, {"task": "other"}, {"queue": "b"}, {"tenant": "acme"}):
        assert (await send(world, **terms))[1] is True, terms
    assert len(await world.jobs()) == 5
    for terms in ({}, {"payload": b"\x02"}, {"task": "other"}, {"queue": "b"}, {"tenant": "acme"}):
        assert not (await send(world, **terms))[1], terms


async def test_a_key_of_their_own_makes_jobs_the_same_whatever_their_payload(world: World) -> None:
    id, _ = await send(world, unique_key="k")
    assert await send(world, b"\x02", unique_key="k", priority=3) != (id, True)
    assert await is_free(world, unique_key="l")
    assert await is_free(world), "the payload is no key"
    assert len(await world.jobs()) == 3


async def test_jobs_that_are_not_unique_are_no_concern_of_one(world: World) -> None:
    await world.add(payload=b"\x01")
    id, added = await send(world)
    assert added is True
    await world.add(payload=b"\x01")
    assert (await send(world))[1] == Duplicate(id)
    assert len(await world.jobs()) == 3


async def test_an_id_that_exists_comes_before_anything_else(world: World) -> None:
    id, _ = await send(world)
    again = world.draft(payload=b"\x02", id=id, unique="pending", on_duplicate="reject")
    assert await world.store.jobs.add([again, again]) == [False, False]
    record = await world.record(id, payload=True)
    assert record is not None
    assert record.payload == b"\x01"


# For how long


WAYS: dict[str, Callable[[World, str], Awaitable[None]]] = {}


def way(function: Callable[[World, str], Awaitable[None]]) -> Callable[[World, str], Awaitable[None]]:
    WAYS[function.__name__] = function
    return function


@way
async def succeeded(world: World, id: str) -> None:
    assert await world.succeed(await world.take())


@way
async def succeeded_in_a_second_run(world: World, id: str) -> None:
    await end(world, await world.take(), Verdict.RETRY, delay=1.0)
    world.clock.advance(2)
    await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    assert await world.succeed(await world.take())


@way
async def failed(world: World, id: str) -> None:
    await end(world, await world.take(), Verdict.FAILED)


@way
async def cancelled(world: World, id: str) -> None:
    assert await world.apply(cancel(await world.job(id)))


@way
async def cancelled_while_it_ran(world: World, id: str) -> None:
    record = await world.take()
    assert await world.apply(cancel(record.job), by=record)
    assert not await is_free(world), "it still runs"
    await end(world, await running(world, id, record), Verdict.ERROR)


@way
async def expired(world: World, id: str) -> None:
    assert await world.apply(expire(await world.job(id), world.clock.now()))


@way
async def deleted(world: World, id: str) -> None:
    assert await world.apply(delete(await world.job(id)))
    assert await world.gone(id)


@way
async def lost_too_often(world: World, id: str) -> None:
    record = await world.take(lease=1.0)
    assert (await world.touch(record, lease=1.0, pid=7)).held
    world.clock.advance(2)
    (overdue,) = (await world.store.jobs.overdue(Overdue.LEASE, 10)).records
    assert await world.apply(lose(overdue.job, world.clock.now(), "fail"), by=record)
    assert (await world.job(id)).state is State.FAILED


@way
async def purged(world: World, id: str) -> None:
    assert await world.succeed(await world.take())
    world.clock.advance(86401)
    assert (await world.store.jobs.sweep(Sweep.PURGE, 10)).count == 1
    assert await world.gone(id)


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("unique", ["pending", "queued"])
async def test_whatever_ends_a_job_makes_room_for_the_next_one(world: World, name: str, unique: str) -> None:
    id, _ = await send(world, unique="pending")
    await WAYS[name](world, id)
    other, added = await send(world, unique=unique)
    assert added is True
    assert (await send(world, unique=unique))[1] == Duplicate(other)


async def test_pending_means_until_its_end_and_queued_while_it_waits(world: World) -> None:
    id, _ = await send(world, delay=10.0)
    for state in (State.SCHEDULED, State.QUEUED):
        assert (await world.job(id)).state is state
        assert (await send(world, unique="queued"))[1] == Duplicate(id)
        assert (await send(world, unique="pending"))[1] == Duplicate(id)
        world.clock.advance(10)
        await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    record = await world.take()
    assert (await send(world, unique="pending"))[1] == Duplicate(id)
    other, added = await send(world, unique="queued")
    assert added is True
    assert await world.succeed(record)
    assert (await send(world, unique="pending"))[1] == Duplicate(other)


@pytest.mark.parametrize("back", ["retry", "release"])
async def test_a_job_that_comes_back_waits_again(world: World, back: str) -> None:
    id, _ = await send(world, unique="queued")
    record = await world.take()
    if back == "retry":
        await end(world, record, Verdict.ERROR)
    else:
        assert await world.apply(release(record.job, world.clock.now()), by=record)
    assert (await send(world, unique="queued"))[1] == Duplicate(id)
    assert (await send(world, unique="pending"))[1] == Duplicate(id)


async def test_the_last_one_counts_and_none_before_it(world: World) -> None:
    first, _ = await send(world, unique="queued")
    record = await world.take()
    second, added = await send(world, unique="queued")
    assert added is True
    await end(world, record, Verdict.ERROR)  # it waits again, beside the second
    assert (await send(world, unique="queued"))[1] == Duplicate(second)
    assert await world.apply(cancel(await world.job(second)))
    third, added = await send(world, unique="queued")
    assert added is True
    assert await world.apply(delete(await world.job(second)))
    assert await world.apply(delete(await world.job(first)))
    assert (await send(world, unique="queued"))[1] == Duplicate(third)


async def test_a_job_that_is_run_again_by_hand_counts_while_it_is_the_last(world: World) -> None:
    id, _ = await send(world)
    assert await world.succeed(await world.take())
    assert await world.apply(rerun(await world.job(id)))
    assert (await send(world))[1] == Duplicate(id)


async def test_a_time_counts_from_the_acceptance_until_a_failure(world: World) -> None:
    id, _ = await send(world, unique=100.0)
    world.clock.advance(50)
    record = await world.take()
    assert (await send(world, unique=100.0))[1] == Duplicate(id)
    assert await world.succeed(record)
    world.clock.advance(49.999999)
    assert (await send(world, unique=100.0))[1] == Duplicate(id)
    assert (await send(world, unique=100.000001))[1] == Duplicate(id)
    world.clock.advance(0.000001)
    _, added = await send(world, unique=100.0)
    assert added is True
    await end(world, await world.take(), Verdict.FAILED)
    third, added = await send(world, unique=100.0)
    assert added is True
    assert await world.apply(cancel(await world.job(third)))
    assert await is_free(world, unique=100.0)


# What becomes of a second one


async def test_a_second_one_is_rejected_by_name(world: World) -> None:
    id, _ = await send(world)
    with pytest.raises(Conflict, match=f"job {id} of task 'work' is the same and is queued"):
        await send(world, on_duplicate="reject")
    await world.take()
    with pytest.raises(Conflict, match=f"job {id} of task 'work' is the same and is running"):
        await send(world, on_duplicate="reject")
    assert len(await world.jobs()) == 1


async def test_a_rejection_keeps_nothing_of_its_batch(world: World) -> None:
    id, _ = await send(world, b"\x09")
    waiting, _ = await send(world, b"\x08", unique_key="r")
    batch = [
        world.draft(payload=b"\x01"),
        world.draft(payload=b"\x02", unique="pending"),
        world.draft(payload=b"\x03", unique="pending", unique_key="r", on_duplicate="replace"),
        world.draft(payload=b"\x09", unique="pending", on_duplicate="reject"),
    ]
    with pytest.raises(Conflict, match=id):
        await world.store.jobs.add(batch)
    assert {job.id for job in await world.jobs()} == {id, waiting}
    twice = [world.draft(payload=b"\x05", unique="pending", on_duplicate="reject") for _ in range(2)]
    with pytest.raises(Conflict, match=twice[0].id):
        await world.store.jobs.add(twice)
    assert {job.id for job in await world.jobs()} == {id, waiting}
    record = await world.record(waiting, payload=True)
    assert record is not None
    assert record.payload == b"\x08"
    assert await is_free(world, payload=b"\x02"), "nothing was noted either"


async def test_one_that_another_job_brings_about_is_never_rejected(world: World) -> None:
    id, _ = await send(world)
    await world.take()
    for how in ("join", "replace", "reject"):
        draft = world.draft(payload=b"\x01", unique="pending", on_duplicate=how)
        follows = Draft(draft.tenant, draft.id, draft.new, identity=draft.identity, follows=True)
        assert await world.store.jobs.add([follows]) == [Duplicate(id)]


async def test_replacing_renews_a_job_that_waits(world: World) -> None:
    id, _ = await send(world, b"\x01" * 5, unique_key="k", delay=10.0, expires=50.0, owner_timeout=70.0, tags=["a"])
    behind = await world.add()
    world.clock.advance(5)
    _, added = await send(world, b"\x02" * 2000, unique_key="k", on_duplicate="replace", delay=20.0, priority=-1)
    assert added == Duplicate(id, replaced=True)
    record = await world.record(id, payload=True)
    assert record is not None
    assert (record.payload, record.job.size) == (b"\x02" * 2000, 2000)
    assert (record.job.state, record.job.priority, record.job.tags) == (State.SCHEDULED, -1, [])
    assert record.job.created_at == world.clock.now()
    assert [job.id for job in await world.jobs()] == [behind, id], "it arrives again"
    for clock in (Overdue.EXPIRY, Overdue.OWNER):
        world.clock.advance(0)
        assert not (await world.store.jobs.overdue(clock, 10)).records
    world.clock.advance(19)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 0
    world.clock.advance(1)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 1
    assert (await world.take()).job.id == id


async def test_a_job_that_waits_for_its_next_run_starts_afresh_when_it_is_replaced(world: World) -> None:
    id, _ = await send(world, unique="queued", files={"a": b"1"})
    await end(world, await world.take(), Verdict.ERROR)
    assert (await world.job(id)).attempt == 1
    assert await send(world, unique="queued", on_duplicate="replace") != (id, True)
    job = await world.job(id)
    assert (job.state, job.attempt, job.errors, job.run_at) == (State.QUEUED, 0, [], None)
    record = await world.take()
    assert (record.job.id, record.job.attempt, record.files) == (id, 1, {})


async def test_what_has_started_is_not_replaced(world: World) -> None:
    id, _ = await send(world)
    await world.take()
    with pytest.raises(Conflict, match=f"job {id} .* is running; it has started, so it cannot be replaced"):
        await send(world, on_duplicate="replace")
    assert await is_free(world, unique="queued", on_duplicate="replace")


async def test_jobs_of_one_batch_are_the_same_too(world: World) -> None:
    first, joins, last = (
        world.draft(payload=payload, unique="queued", unique_key="k", on_duplicate=how)
        for payload, how in ((b"\x01", "join"), (b"\x02", "join"), (b"\x03", "replace"))
    )
    plain = world.draft()
    added = await world.store.jobs.add([first, plain, joins, last])
    assert added == [True, True, Duplicate(first.id), Duplicate(first.id, replaced=True)]
    record = await world.record(first.id, payload=True)
    assert record is not None
    assert record.payload == b"\x03"
    assert {job.id for job in await world.jobs()} == {first.id, plain.id}
    assert (await send(world, unique="queued", unique_key="k"))[1] == Duplicate(first.id)
    newest = [world.draft(payload=bytes([n]), unique="queued", unique_key="k", on_duplicate="replace") for n in (7, 8)]
    assert await world.store.jobs.add(newest) == [Duplicate(first.id, replaced=True)] * 2
    record = await world.record(first.id, payload=True)
    assert record is not None
    assert record.payload == b"\x08"


async def test_jobs_that_wait_for_one_wait_on_when_it_is_replaced(world: World) -> None:
    id, _ = await send(world, unique_key="k", then=NewJob(task="next"))
    child = await world.add(after=[id], queue="b")
    assert await world.store.jobs.add_dependencies([Dependency(id, "default", child)]) == [State.QUEUED]
    await send(world, b"\x02", unique_key="k", on_duplicate="replace")
    assert await world.succeed(await world.take(), b"done")
    (one,) = await world.store.jobs.completed_parents([], 10)
    assert (one.id, one.children, one.then) == (id, [child], None)
    assert await world.store.jobs.completed_parents([one], 10) == []
    assert await is_free(world, unique_key="k")


async def test_one_with_a_follow_up_may_replace_one_without(world: World) -> None:
    id, _ = await send(world, unique_key="k")
    await send(world, b"\x02", unique_key="k", on_duplicate="replace", then=NewJob(task="next"))
    assert await world.succeed(await world.take(), b"done")
    (one,) = await world.store.jobs.completed_parents([], 10)
    assert (one.id, one.then and one.then.task) == (id, "next")


# At once, and nothing is left


async def test_of_many_that_come_at_once_one_is_added(world: World, kind: StoreKind, address: str, prefix: str) -> None:
    async with open_store(kind, address, world.clock, prefix) as other:
        stores = (world.store, world.store if kind in ("sqlite", "model") else other)
        for payload in (b"\x01", b"\x02", b"\x03"):
            drafts = [world.draft(payload=payload, unique="pending") for _ in range(40)]
            added = await asyncio.gather(*(stores[place % 2].jobs.add([draft]) for place, draft in enumerate(drafts)))
            (winner,) = (draft.id for draft, (new,) in zip(drafts, added, strict=True) if new)
            assert {new.id for (new,) in added if isinstance(new, Duplicate)} == {winner}
    assert len(await world.jobs()) == 3


async def test_nothing_is_left_of_jobs_that_are_gone(world: World) -> None:
    async def keys() -> object:
        if isinstance(world.store, RedisStore):
            partitions = world.store.partitions
            found = [
                await partitions.connection.ask(key, "EXISTS", f"{key}:unique", f"{key}:identities")
                for key in map(partitions.key, range(partitions.number))
            ]
            return sum(found)
        return 0

    for unique in ("pending", "queued", 5.0):
        for number in range(3):
            await send(world, bytes([number]), unique=unique, keep_success=9.0)
        for record in await world.claim(slots=5):
            assert await world.succeed(record)
        world.clock.advance(10)
        await world.store.jobs.sweep(Sweep.PURGE, 10)
    await send(world, keep_success=0.0)
    assert await world.succeed(await world.take())
    assert await world.jobs() == []
    assert await keys() == 0
