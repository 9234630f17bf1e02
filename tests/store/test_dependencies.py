"""What every store promises of jobs that wait for others or follow others."""

from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.stores import ALL, WITH_MODEL, World
from windlass.model.dependency import unblock
from windlass.model.job import Reason, State
from windlass.model.lifecycle import cancel, delete, expire, finish, rerun
from windlass.model.new_job import NewJob
from windlass.model.outcome import Outcome, Verdict
from windlass.store.data import (
    MOST_CHILDREN,
    CompletedParent,
    Dependency,
    ListScope,
    Overdue,
    Record,
    StoredResult,
    Sweep,
)

pytestmark = pytest.mark.parametrize("kind", WITH_MODEL, indirect=True)

NOBODY = "00000000-0000-7000-8000-0000000000df"
THEN = NewJob(task="next", queue="b", files={"f": b"1"}, then=NewJob(task="last", priority=3))


async def add_dependencies(world: World, parent: str, child: str = NOBODY, tenant: str = "default") -> State | None:
    (state,) = await world.store.jobs.add_dependencies([Dependency(parent, tenant, child)])
    return state


async def completed_parents(world: World) -> list[CompletedParent]:
    return await world.store.jobs.completed_parents([], 100)


async def only_completed_parents(world: World) -> CompletedParent:
    (one,) = await completed_parents(world)
    return one


async def meet(world: World, id: str, **states: Any) -> bool:
    """Decide a blocked job when what it waits for stands so, in order."""
    job = await world.job(id)
    move = unblock(job, dict(zip(job.waits_for, states.values(), strict=True)), world.clock.now())
    assert move is not None
    return await world.apply(move)


# Waiting


async def test_a_job_after_others_is_blocked_until_it_is_let_go(world: World) -> None:
    first, second = await world.add(queue="a"), await world.add(queue="b")
    id = await world.add(after=[second, first])
    job = await world.job(id)
    assert (job.state, job.after, job.waits_for) == (State.BLOCKED, [second, first], [second, first])
    assert await world.claim() == []
    assert await meet(world, id, second=State.SUCCEEDED, first=State.RUNNING)
    met = await world.job(id)
    assert (met.state, met.waits_for, met.updated_at) == (State.BLOCKED, [first], job.updated_at)
    world.clock.advance(1)
    assert await meet(world, id, first=State.SUCCEEDED)
    free = await world.job(id)
    assert (free.state, free.waits_for, free.after) == (State.QUEUED, [], [second, first])
    assert free.updated_at == world.clock.now()
    assert (await world.take()).job.id == id


async def test_a_job_let_go_keeps_its_place_and_is_heard_of(world: World) -> None:
    parent = await world.add(queue="a")
    id = await world.add(after=[parent])
    later = await world.add()
    async with world.store.events.listen(["work/default"]) as listener:
        assert await meet(world, id, parent=State.SUCCEEDED)
        assert await listener.wait(PATIENCE)
    assert [record.job.id for record in await world.claim(slots=2)] == [id, later]


async def test_a_blocked_job_is_guarded_by_what_it_waits_for(world: World) -> None:
    first, second = await world.add(queue="a"), await world.add(queue="a")
    id = await world.add(after=[first, second])
    before = await world.job(id)
    assert await meet(world, id, first=State.SUCCEEDED, second=State.QUEUED)
    late = unblock(before, {first: None, second: State.QUEUED}, world.clock.now())
    assert late is not None
    assert late.reason is Reason.DEPENDENCY
    assert not await world.apply(late)
    assert (await world.job(id)).waits_for == [second]


async def test_a_blocked_job_may_be_cancelled_expire_and_be_deleted(world: World) -> None:
    parent = await world.add(queue="a")
    ids = [await world.add(after=[parent], expires=5.0) for _ in range(3)]
    assert await world.apply(cancel(await world.job(ids[0])))
    assert await world.apply(delete(await world.job(ids[1])))
    world.clock.advance(5)
    (overdue,) = (await world.store.jobs.overdue(Overdue.EXPIRY, 10)).records
    assert overdue is not None
    assert overdue == Record(await world.job(ids[2]))
    assert await world.apply(expire(overdue.job, world.clock.now()))
    assert [(await world.job(id)).state for id in (ids[0], ids[2])] == [State.CANCELLED, State.FAILED]
    assert (await world.job(ids[2])).waits_for == []
    assert await world.gone(ids[1])


async def test_blocked_jobs_are_listed_and_counted(world: World) -> None:
    parent = await world.add(queue="a")
    blocked = []
    for number in range(150):
        id = await world.add(queue=f"q{number % 2}", after=[parent] if number % 5 == 0 else [])
        blocked += [id] if number % 5 == 0 else []
    for limit in (1, 7, 100):
        found = await world.jobs(states=frozenset({State.BLOCKED}), limit=limit)
        assert sorted(job.id for job in found) == sorted(blocked)
        assert all(job.waits_for == [parent] for job in found)
    assert len(await world.jobs(states=ALL)) == 151
    counts = (await world.store.jobs.counts("-")).jobs
    assert sum(tally.count for tally in counts if tally.state is State.BLOCKED) == len(blocked)
    scope = ListScope("default", "q0", frozenset({State.BLOCKED}))
    assert [job.id for job in await world.jobs("default", "q0", scope.states)] == blocked[::2]


# How parents stand


async def test_a_parent_stands_as_it_is(world: World) -> None:
    queued, delayed = await world.add(queue="a"), await world.add(delay=5.0)
    succeeded, failed, running = [await world.add() for _ in range(3)]
    taken = await world.claim(slots=3)
    await world.succeed(taken[0])
    await world.apply(finish(taken[1].job, Outcome(verdict=Verdict.FAILED), world.clock.now(), 0.0), taken[1])
    ids = [queued, delayed, succeeded, failed, running, NOBODY]
    states = await world.store.jobs.add_dependencies([Dependency(id, "default", NOBODY) for id in ids])
    assert states == [State.QUEUED, State.SCHEDULED, State.SUCCEEDED, State.FAILED, State.RUNNING, None]
    assert await world.store.jobs.add_dependencies([Dependency(id, "acme", NOBODY) for id in ids]) == [None] * 6
    assert await world.store.jobs.add_dependencies([]) == []


async def test_a_parent_that_was_bound_is_otherwise_as_before(world: World) -> None:
    waiting = await world.add(expires=100.0, payload=b"\x01" * 2000)
    await world.add(queue="a")
    taken = await world.take(world.worker("a"))
    before = await world.record(waiting, payload=True)
    await add_dependencies(world, waiting)
    await add_dependencies(world, taken.job.id)
    assert await world.record(waiting, payload=True) == before
    assert await world.record(taken.job.id) == Record(taken.job, taken.token)
    assert await world.succeed(taken, b"good")
    assert (await world.take()).payload == b"\x01" * 2000


# Ripening


@pytest.mark.parametrize("keep", [0.0, 10.0])
@pytest.mark.parametrize("ending", ["succeeded", "failed", "cancelled", "deleted"])
async def test_a_bound_parent_ripens_when_it_ends(world: World, ending: str, keep: float) -> None:
    parent = await world.add(queue="a", keep_success=keep, keep_failure=keep)
    assert await add_dependencies(world, parent, NOBODY) is State.QUEUED
    assert await add_dependencies(world, parent, NOBODY) is State.QUEUED
    assert await completed_parents(world) == []
    if ending in ("succeeded", "failed"):
        taken = await world.take(world.worker("a"))
        assert await completed_parents(world) == []
        if ending == "succeeded":
            await world.succeed(taken)
        else:
            await world.apply(finish(taken.job, Outcome(verdict=Verdict.FAILED), world.clock.now(), 0.0), taken)
    else:
        job = await world.job(parent)
        assert await world.apply(cancel(job) if ending == "cancelled" else delete(job))
    state = None if ending == "deleted" else State(ending)
    one = await only_completed_parents(world)
    assert (one.id, one.tenant, one.state, one.children, one.then) == (parent, "default", state, [NOBODY], None)
    world.clock.advance(10)
    await world.store.jobs.sweep(Sweep.PURGE, 10)
    assert await world.gone(parent)
    assert await add_dependencies(world, parent) is state, "how it ended is known as long as it is completed"
    assert await add_dependencies(world, parent, tenant="acme") is None
    assert await world.store.jobs.completed_parents([one], 10) == []
    assert await add_dependencies(world, parent) is None


async def test_a_job_without_dependents_does_not_become_a_completed_parent(world: World) -> None:
    await world.add()
    await world.succeed(await world.take())
    assert await completed_parents(world) == []


async def test_a_retried_parent_ripens_when_it_has_ended_for_good(world: World) -> None:
    parent = await world.add(max_retry=1)
    taken = await world.take()
    await add_dependencies(world, parent)
    retried = finish(taken.job, Outcome(verdict=Verdict.ERROR, delay=0), world.clock.now(), 0.0)
    assert await world.apply(retried, taken)
    await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    assert await completed_parents(world) == []
    await world.succeed(await world.take())
    assert (await only_completed_parents(world)).state is State.SUCCEEDED


async def test_a_parent_that_ended_is_not_bound(world: World) -> None:
    parent = await world.add()
    await world.succeed(await world.take())
    assert await add_dependencies(world, parent) is State.SUCCEEDED
    assert await world.apply(delete(await world.job(parent)))
    assert await completed_parents(world) == []


async def test_one_that_ripens_again_meanwhile_stays(world: World) -> None:
    parent = await world.add()
    await add_dependencies(world, parent)
    await world.succeed(await world.take())
    first = await only_completed_parents(world)
    assert await world.apply(rerun(await world.job(parent)))
    assert await add_dependencies(world, parent, parent) is State.QUEUED
    taken = await world.take()
    await world.apply(finish(taken.job, Outcome(verdict=Verdict.FAILED), world.clock.now(), 0.0), taken)
    (second,) = await world.store.jobs.completed_parents([first], 10)
    assert (second.state, second.children) == (State.FAILED, [parent])
    assert await world.store.jobs.completed_parents([second], 10) == []


async def test_what_is_to_follow_a_second_end_is_not_forgotten_with_the_first(world: World) -> None:
    parent = await world.add(then=THEN)
    await world.succeed(await world.take(), b"1")
    first = await only_completed_parents(world)
    assert await world.apply(rerun(await world.job(parent)))
    await world.succeed(await world.take(), b"2")
    (second,) = await world.store.jobs.completed_parents([first], 10)
    assert (second.then, second.result) == (THEN, StoredResult(b"2", "text/plain"))
    assert second.mark > first.mark
    assert await world.store.jobs.completed_parents([second], 10) == []


async def test_children_are_handed_out_some_at_a_time(world: World) -> None:
    parent = await world.add()
    children = [f"00000000-0000-7000-8000-{number:012x}" for number in range(MOST_CHILDREN + 20)]
    await world.store.jobs.add_dependencies([Dependency(parent, "default", child) for child in children])
    await world.succeed(await world.take())
    first = await only_completed_parents(world)
    assert len(first.children) == MOST_CHILDREN
    (second,) = await world.store.jobs.completed_parents([first], 10)
    assert sorted(first.children + second.children) == children
    assert await world.store.jobs.completed_parents([second], 10) == []


async def test_completed_parents_of_every_queue_are_handed_out_and_no_more_than_asked(world: World) -> None:
    parents = [await world.add(queue=f"q{number}") for number in range(5)]
    await world.store.jobs.add_dependencies([Dependency(parent, "default", NOBODY) for parent in parents])
    for number, parent in enumerate(parents):
        assert await world.apply(cancel(await world.job(parent))), number
    assert sorted(one.id for one in await completed_parents(world)) == sorted(parents)
    some = await world.store.jobs.completed_parents([], 2)
    assert len(some) == 2
    rest = await world.store.jobs.completed_parents(some, 10)
    assert sorted(one.id for one in [*some, *rest]) == sorted(parents)


# Following


async def test_a_job_with_something_to_follow_ripens_with_it_and_its_result(world: World) -> None:
    id = await world.add(then=THEN, tenant="acme")
    assert await completed_parents(world) == []
    await world.succeed(await world.take(world.worker(tenant="acme")), b"42")
    one = await only_completed_parents(world)
    assert (one.id, one.tenant, one.state, one.children) == (id, "acme", State.SUCCEEDED, [])
    assert (one.then, one.result) == (THEN, StoredResult(b"42", "text/plain"))
    assert await world.result(id, "acme") == StoredResult(b"42", "text/plain")
    assert await world.store.jobs.completed_parents([one], 10) == []


async def test_a_result_for_one_reading_is_there_for_both(world: World) -> None:
    id = await world.add(then=THEN, keep_result="once")
    await world.succeed(await world.take(), b"42")
    assert (await only_completed_parents(world)).result == StoredResult(b"42", "text/plain")
    assert await world.result(id) == StoredResult(b"42", "text/plain")
    assert await world.result(id) is None
    one = await only_completed_parents(world)
    assert one.result == StoredResult(b"42", "text/plain")
    assert await world.store.jobs.completed_parents([one], 10) == []
    assert await world.result(id) is None


async def test_where_no_result_is_kept_there_is_none(world: World) -> None:
    for terms in ({"keep_success": 0.0}, {"keep_result": "none"}, {}):
        await world.add(then=THEN, **terms)
    for record, result in zip(await world.claim(slots=3), (b"1", b"2", None), strict=True):
        await world.succeed(record, result)
    assert [(one.then, one.result) for one in await completed_parents(world)] == [(THEN, None)] * 3


async def test_what_is_to_follow_is_there_for_each_life(world: World) -> None:
    id = await world.add(then=THEN)
    for _ in range(2):
        await world.succeed(await world.take())
        one = await only_completed_parents(world)
        assert one.then == THEN
        assert await world.store.jobs.completed_parents([one], 10) == []
        assert await world.apply(rerun(await world.job(id)))
    assert await world.apply(delete(await world.job(id)))
    one = await only_completed_parents(world)
    assert (one.state, one.then) == (None, THEN)
    assert await world.store.jobs.completed_parents([one], 10) == []
