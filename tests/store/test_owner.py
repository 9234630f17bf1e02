"""The owner clock in every store: when a job is overdue, what sets the clock anew, and what takes it away."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from tests.support.patience import PATIENCE
from tests.support.servers import NewPrefix, Server
from tests.support.stores import SeededChance, VirtualClock, World, ids, journal_of, open_store
from windlass.model.dependency import unblock as decide
from windlass.model.job import Job, Reason, State
from windlass.model.lifecycle import Move, abandon, cancel, delete, finish, release, rerun, touch_owner
from windlass.model.names import key_of, raw_id
from windlass.model.outcome import Outcome, Verdict
from windlass.store.data import Dependency, DrainRequest, Overdue, Record, Sweep
from windlass.store.encoding import end_topic
from windlass.store.protocol import Store
from windlass.store.redis import RedisStore
from windlass.store.redis.scrub import scrub as scrub_redis
from windlass.store.sqlite import SqliteStore
from windlass.store.sqlite.scrub import scrub as scrub_sqlite

Made = Callable[[World], Awaitable[Record]]
"""Makes a job in some state."""


async def overdue(world: World, limit: int = 100) -> list[str]:
    found = (await world.store.jobs.overdue(Overdue.OWNER, limit)).records
    return ids([record for record in found if record is not None])


def attending(job: Job) -> Move:
    move = touch_owner(job)
    assert move is not None
    return move


@pytest.mark.parametrize("terms", [{}, {"delay": 600.0}, {"expires": 600.0}], ids=["queued", "scheduled", "expiring"])
async def test_a_job_without_a_client_is_overdue_from_that_moment(world: World, terms: dict[str, Any]) -> None:
    id = await world.add(owner_timeout=10, **terms)
    await world.add(**terms)
    world.clock.advance(9.999999)
    assert await overdue(world) == []
    world.clock.advance(0.000001)
    reading = await world.store.jobs.overdue(Overdue.OWNER, 10)
    assert (reading.now, reading.records) == (world.clock.now(), [await world.record(id)])


async def test_overdue_jobs_come_earliest_first_and_no_more_than_asked(world: World) -> None:
    late, earliest, _, middle = [await world.add(queue=f"q{n}", owner_timeout=n) for n in (30, 10, 40, 20)]
    world.clock.advance(39)
    assert await overdue(world) == [earliest, middle, late]
    assert await overdue(world, 2) == [earliest, middle]


async def test_of_a_batch_each_job_has_its_own_clock_or_none(world: World) -> None:
    drafts = [
        world.draft(queue=f"q{n % 2}", owner_timeout=n * 10.0 if n % 3 else None, delay=n or None) for n in range(6)
    ]
    assert all(await world.store.jobs.add(drafts))
    world.clock.advance(20)
    assert await overdue(world) == [drafts[1].id, drafts[2].id]
    assert not any(await world.store.jobs.add(drafts)), "sent again, they are there"
    assert await overdue(world) == [drafts[1].id, drafts[2].id]
    world.clock.advance(30)
    assert await overdue(world) == [drafts[place].id for place in (1, 2, 4, 5)]


async def test_jobs_from_a_journal_have_their_clocks(server: Server, new_prefix: NewPrefix) -> None:
    async with open_store("redis", server.url, clock := VirtualClock(), new_prefix()) as store:
        assert isinstance(store, RedisStore)
        world = World(store, clock, SeededChance(3))
        drafts = [world.draft(owner_timeout=seconds) for seconds in (None, 20, 10)]
        request = DrainRequest("j", journal_of(store).partition_of(drafts[0]), 0, 3, drafts)
        assert (await journal_of(store).drain(request)).created == [True] * 3
        assert (await journal_of(store).drain(DrainRequest("j", request.partition, 3, 4, []))).mark == 4
        clock.advance(20)
        assert await overdue(world) == [drafts[2].id, drafts[1].id]


async def waiting(world: World) -> Record:
    return await found(world, await world.add(owner_timeout=10))


async def running(world: World) -> Record:
    await world.add(owner_timeout=10)
    return await world.take()


async def scheduled(world: World) -> Record:
    return await found(world, await world.add(owner_timeout=10, delay=600))


async def blocked(world: World) -> Record:
    parent = await world.add(queue="parents")
    id = await world.add(owner_timeout=10, after=[parent])
    assert await world.store.jobs.add_dependencies([Dependency(parent, "default", id)]) == [State.QUEUED]
    return await found(world, id)


async def found(world: World, id: str) -> Record:
    record = await world.record(id)
    assert record is not None
    return record


PENDING = pytest.mark.parametrize("pending", [waiting, scheduled, blocked, running], ids=lambda made: made.__name__)


@PENDING
async def test_a_job_that_is_attended_to_has_all_its_time_again_and_is_otherwise_as_it_was(
    world: World, pending: Made
) -> None:
    record = await pending(world)
    world.clock.advance(9)
    assert await world.apply(attending(record.job), record if record.token else None)
    assert await found(world, record.job.id) == replace(record, payload=None)
    world.clock.advance(9.999999)
    assert await overdue(world) == []
    world.clock.advance(0.000001)
    assert await overdue(world) == [record.job.id]


@PENDING
async def test_a_job_is_not_abandoned_if_it_was_attended_to_since_that_was_decided(world: World, pending: Made) -> None:
    record = await pending(world)
    by = record if record.token else None
    assert not await world.apply(abandon(record.job), by), "its clock has not run out"
    world.clock.advance(10)
    assert await world.apply(attending(record.job), by)
    assert not await world.apply(abandon(record.job), by)
    assert await found(world, record.job.id) == replace(record, payload=None)
    world.clock.advance(10)
    assert await world.apply(abandon(record.job), by)


async def test_a_job_without_the_clock_cannot_be_abandoned(world: World) -> None:
    id = await world.add()
    world.clock.advance(10**6)
    assert not await world.apply(abandon(await world.job(id)))


@pytest.mark.parametrize("pending", [waiting, scheduled, blocked], ids=lambda made: made.__name__)
async def test_an_abandoned_job_that_waits_is_cancelled_at_once(world: World, pending: Made) -> None:
    record = await pending(world)
    world.clock.advance(10)
    now = world.clock.now()
    async with world.store.events.listen([end_topic(key_of(record.job))]) as listener:
        assert await world.apply(abandon(record.job))
        assert await listener.wait(PATIENCE)
    after = replace(
        record.job, state=State.CANCELLED, reason=Reason.ABANDONED, waits_for=[], updated_at=now, finished_at=now
    )
    assert await world.job(record.job.id) == after
    assert (await overdue(world), await world.claim()) == ([], [])


async def test_an_abandoned_job_that_runs_is_ordered_to_stop_once_and_keeps_its_place(world: World) -> None:
    taken = await running(world)
    world.clock.advance(10)
    async with world.store.events.listen([f"order/{taken.job.worker}"]) as listener:
        assert await world.apply(abandon(taken.job), taken)
        assert await listener.wait(PATIENCE)
    told = await world.job(taken.job.id)
    assert (told.state, told.reason) == (State.RUNNING, Reason.ABANDONED)
    assert (await world.touch(taken)).reason is Reason.ABANDONED
    assert await overdue(world) == []
    stopped = finish(told, Outcome(verdict=Verdict.ERROR), world.clock.now(), 0.0)
    assert await world.apply(stopped, taken)
    ended = await world.job(taken.job.id)
    assert (ended.state, ended.reason) == (State.CANCELLED, Reason.ABANDONED)
    assert await overdue(world) == []


async def test_a_job_that_succeeds_though_it_was_abandoned_has_succeeded(world: World) -> None:
    taken = await running(world)
    world.clock.advance(10)
    assert await world.apply(abandon(taken.job), taken)
    assert await world.succeed(taken)
    assert (await world.job(taken.job.id)).state is State.SUCCEEDED


async def test_the_clock_goes_on_from_state_to_state(world: World) -> None:
    id = await world.add(owner_timeout=60, delay=1, max_retry=3)
    world.clock.advance(1)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 1
    taken = await world.take()
    assert await world.apply(release(taken.job, world.clock.now()), taken)
    taken = await world.take()
    retry = finish(taken.job, Outcome(verdict=Verdict.RETRY, delay=0.5), world.clock.now(), 0.0)
    assert await world.apply(retry, taken)
    world.clock.advance(59)
    assert await overdue(world) == [id]


async def test_a_blocked_job_that_may_run_keeps_its_clock(world: World) -> None:
    record = await blocked(world)
    assert await world.succeed(await world.take(world.worker("parents")))
    move = decide(record.job, dict.fromkeys(record.job.waits_for, State.SUCCEEDED), world.clock.now())
    assert move is not None
    assert await world.apply(move)
    world.clock.advance(10)
    assert await overdue(world) == [record.job.id]


async def test_a_job_that_has_ended_is_not_abandoned(world: World) -> None:
    await world.add_many(4, owner_timeout=10)
    first, second, third, fourth = await world.claim(slots=4)
    assert await world.succeed(first, b"r")
    failed = finish(second.job, Outcome(verdict=Verdict.FAILED), world.clock.now(), 0.0)
    assert await world.apply(failed, second)
    assert await world.apply(replace(failed, id=third.job.id, keep=0), third)
    assert await world.apply(delete(third.job), third) is False
    assert await world.apply(delete(fourth.job), fourth)
    assert await world.succeed(fourth)
    for end in (cancel, delete):
        assert await world.apply(end(await world.job(await world.add(owner_timeout=10))))
    await world.add(owner_timeout=10, keep_success=0)
    assert await world.succeed(await world.take())
    world.clock.advance(10)
    assert await overdue(world) == []


async def test_a_job_that_was_retried_ends_without_its_clock(world: World) -> None:
    await world.add(owner_timeout=10, max_retry=1)
    taken = await world.take()
    retry = finish(taken.job, Outcome(verdict=Verdict.RETRY, delay=0), world.clock.now(), 0.0)
    assert await world.apply(retry, taken)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 1
    assert await world.succeed(await world.take())
    world.clock.advance(10)
    assert await overdue(world) == []


async def test_a_job_wanted_again_has_all_its_time_again(world: World) -> None:
    taken = await running(world)
    assert await world.succeed(taken)
    world.clock.advance(100)
    assert await world.apply(rerun(await world.job(taken.job.id)))
    assert await overdue(world) == []
    world.clock.advance(10)
    assert await overdue(world) == [taken.job.id]


async def test_a_job_that_was_cancelled_while_it_runs_is_not_overdue_for_ever(world: World) -> None:
    taken = await running(world)
    assert await world.apply(cancel(taken.job), taken)
    world.clock.advance(10)
    assert await overdue(world) == [taken.job.id]
    told = await world.job(taken.job.id)
    assert await world.apply(abandon(told), taken)
    assert (await world.job(taken.job.id)).reason is Reason.CANCELLED
    assert await overdue(world) == []


# What the scrubbers see


async def clocked(store: Store) -> World:
    world = World(store, VirtualClock(), SeededChance(7))
    await world.add(owner_timeout=10)
    await world.add()
    return world


async def test_the_scrubber_sees_owner_clocks_that_are_missing_or_too_many_in_redis(
    redis_server: Server, new_prefix: NewPrefix
) -> None:
    store = await RedisStore.open(redis_server.url, prefix=new_prefix())
    world = await clocked(store)
    (owned, free) = await world.jobs()
    key = f"{store.partitions.key(0)}:owner_timeouts"
    ask = store.partitions.connection.ask
    assert await scrub_redis(store) == []
    assert await ask(key, "ZREM", key, raw_id(owned.id)) == 1
    assert any(owned.id in finding and "an owner clock" in finding for finding in await scrub_redis(store))
    await ask(key, "ZADD", key, 1, raw_id(owned.id), 1, raw_id(free.id))
    assert any(free.id in finding and "an owner clock" in finding for finding in await scrub_redis(store))
    await store.close()


async def test_the_scrubber_sees_owner_clocks_that_are_missing_or_too_many_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore.open(path, VirtualClock())
    await clocked(store)
    assert await scrub_sqlite(store) == []
    sql = apsw.Connection(str(path))
    sql.execute("UPDATE job SET abandon_at = NULL WHERE seq = 1; UPDATE job SET abandon_at = 1 WHERE seq = 2")
    assert len(await scrub_sqlite(store)) == 2
    sql.execute("UPDATE job SET state = 6, finished_at = 1 WHERE seq = 2")
    sql.close()
    assert any("has an owner clock but has ended" in finding for finding in await scrub_sqlite(store))
    await store.close()
