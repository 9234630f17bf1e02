"""Jobs that wait for others, and jobs that follow others, through the engine."""

import asyncio
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from tests.support.engines import enqueue, finish, packed, register, state, take
from tests.support.patience import PATIENCE
from tests.support.stores import EVERY_RUN, STORES, SeededChance, StoreKind, VirtualClock, with_long
from windlass.engine import Engine, upkeep
from windlass.model import wire
from windlass.model.errors import Invalid, TooLarge, WindlassError
from windlass.model.job import JSON, MSGPACK, Job, Reason, State
from windlass.model.match import Match
from windlass.model.names import child_id, fresh_id
from windlass.model.new_job import MOST_PARENTS, NOTHING, AfterFailure, NewJob
from windlass.model.operations import (
    Cancel,
    Claim,
    Delete,
    Edit,
    EnqueueMany,
    Finish,
    Finished,
    GetResult,
    GetStats,
    List,
    Rerun,
    Show,
)
from windlass.model.outcome import Verdict
from windlass.model.wire import MOST_PAYLOAD
from windlass.server import bodies

NO_SUCH_ID = "00000000-0000-7000-8000-0000000000df"
OTHER_ID = "00000000-0000-7000-8000-0000000001df"


@pytest.fixture(params=with_long(STORES, every_run=(*EVERY_RUN, "cluster")))
def kind(request: pytest.FixtureRequest) -> StoreKind:
    """On a cluster each time too: a job may wait for one that lies on another server."""
    found: StoreKind = request.param
    return found


async def end(engine: Engine, id: str, outcome: Verdict = Verdict.OK, **more: Any) -> None:
    """Claim everything there is, and end this one so."""
    worker = await register(engine, "default", "a", "b", slots=100)
    (claimed,) = [one for one in await engine(Claim(worker=worker, slots=100)) if one.job.id == id]
    assert (await finish(engine, worker, claimed, outcome, **more)).applied == [id]


async def follow(engine: Engine) -> None:
    while await upkeep.resolve_dependencies(engine):
        pass


async def made(engine: Engine, task: str, tenant: str = "default") -> list[Job]:
    return (await engine(List(tenant=tenant, match=Match(task=task)))).jobs


# After


async def test_a_job_stays_blocked_until_all_that_it_waits_for_have_succeeded(engine: Engine) -> None:
    first, second = await enqueue(engine, queue="a"), await enqueue(engine, queue="b")
    job = await enqueue(engine, after=[first.id, second.id])
    assert (job.state, job.waits_for) == (State.BLOCKED, [first.id, second.id])
    await follow(engine)
    await end(engine, first.id)
    await follow(engine)
    waiting = await engine(Show(id=job.id))
    assert (waiting.state, waiting.waits_for) == (State.BLOCKED, [second.id])


async def test_the_last_of_many_lets_it_go(engine: Engine) -> None:
    parents = [await enqueue(engine, queue=queue) for queue in ("a", "b", "default")]
    job = await enqueue(engine, "after", after=[parent.id for parent in parents])
    worker = await register(engine, "a", "b", "default")
    for claimed in await engine(Claim(worker=worker, slots=9)):
        assert await state(engine, job.id) is State.BLOCKED
        await finish(engine, worker, claimed)
        await follow(engine)
    freed = await take(engine, worker)
    assert (freed.job.id, freed.job.after) == (job.id, [parent.id for parent in parents])


async def test_one_whose_parents_have_succeeded_already_is_queued_at_once(engine: Engine) -> None:
    parent = await enqueue(engine)
    await end(engine, parent.id)
    assert (await enqueue(engine, after=[parent.id])).state is State.QUEUED


async def test_jobs_of_one_batch_may_wait_for_each_other_in_any_order(engine: Engine) -> None:
    ids = [fresh_id(bytes([number]) * 16, queue) for number, queue in enumerate(("a", "b", "default"))]
    news = [
        NewJob(task="last", queue="a", id=ids[0], after=[ids[1], ids[2]]),
        NewJob(task="second", queue="b", id=ids[1], after=[ids[2]]),
        NewJob(task="first", id=ids[2]),
    ]
    await engine(EnqueueMany(jobs=news))
    worker = await register(engine, "a", "b", "default")
    for task in ("first", "second", "last"):
        claimed = await take(engine, worker)
        assert claimed.job.task == task
        await finish(engine, worker, claimed)
        await follow(engine)


@pytest.mark.parametrize("ending", ["failed", "cancelled", "deleted", "missing", "foreign"])
async def test_one_that_waits_for_what_does_not_succeed_is_cancelled(engine: Engine, ending: str) -> None:
    parent = await enqueue(engine, queue="a", tenant="acme" if ending == "foreign" else "default")
    named = NO_SUCH_ID if ending == "missing" else parent.id
    job = await enqueue(engine, after=[named])
    chained = await enqueue(engine, queue="b", after=[job.id])
    match ending:
        case "failed":
            await end(engine, parent.id, Verdict.FAILED)
        case "cancelled":
            await engine(Cancel(ids=[parent.id]))
        case "deleted":
            await engine(Delete(ids=[parent.id]))
    await follow(engine)
    found = await engine(Show(id=job.id))
    assert (found.state, found.reason, found.waits_for) == (State.CANCELLED, Reason.DEPENDENCY, [])
    assert found.error is not None
    assert named in found.error.message
    assert (await engine(Show(id=chained.id))).reason is Reason.DEPENDENCY, "and so is what waits for it"
    assert (await engine(Rerun(ids=[job.id]))).changed == 1
    assert await state(engine, job.id) is State.QUEUED


@pytest.mark.parametrize("ending", ["failed", "cancelled", "deleted", "expired", "missing"])
@pytest.mark.parametrize("rule", ["fail", "run"])
async def test_a_job_says_what_it_does_if_its_parent_does_not_succeed(
    engine: Engine, clock: VirtualClock, rule: AfterFailure, ending: str
) -> None:
    parent = await enqueue(engine, queue="a", expires=5.0 if ending == "expired" else None)
    other = await enqueue(engine, queue="b")
    named = NO_SUCH_ID if ending == "missing" else parent.id
    job = await enqueue(engine, after=[named, other.id], after_failure=rule)
    match ending:
        case "failed":
            worker = await register(engine, "a")
            await finish(engine, worker, await take(engine, worker), Verdict.FAILED)
        case "cancelled":
            await engine(Cancel(ids=[parent.id]))
        case "deleted":
            await engine(Delete(ids=[parent.id]))
        case "expired":
            clock.advance(5)
            assert await upkeep.expire(engine) == 1
    await follow(engine)
    found = await engine(Show(id=job.id))
    if rule == "fail":
        assert (found.state, found.reason, found.waits_for) == (State.FAILED, Reason.DEPENDENCY, [])
        assert found.error is not None
        assert named in found.error.message
        return
    assert (found.state, found.waits_for) == (State.BLOCKED, [other.id])
    await end(engine, other.id)
    await follow(engine)
    assert await state(engine, job.id) is State.QUEUED


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_jobs_of_one_request_that_wait_for_each_other_are_refused(engine: Engine) -> None:
    a, b, c = (fresh_id(bytes([n]) * 16, "default") for n in range(3))
    waits = [(b, [a]), (c, [b]), (a, [c])]
    jobs = [NewJob(task="work", id=id, after=after) for id, after in waits]
    with pytest.raises(Invalid, match=f"{b} after {a} after {c} after {b}") as refused:
        await engine(EnqueueMany(jobs=jobs))
    assert refused.value.at == "jobs[0].after"
    assert (await engine(GetStats())).queues == []
    await engine(EnqueueMany(jobs=[*jobs[:2], NewJob(task="work", id=a)]))


async def test_a_parent_that_leaves_no_record_still_lets_its_children_go(engine: Engine) -> None:
    first = await enqueue(engine, queue="a", keep_success=0.0)
    second = await enqueue(engine, queue="b", keep_success=0.0)
    both = await enqueue(engine, after=[first.id, second.id])
    worker = await register(engine, "a", "b")
    one, other = await engine(Claim(worker=worker, slots=2))
    await finish(engine, worker, one)
    late = await enqueue(engine, after=[first.id])
    assert late.state is State.QUEUED, "its end is known until all children are decided"
    await follow(engine)
    assert (await engine(Show(id=both.id))).waits_for == [second.id]
    await finish(engine, worker, other)
    await follow(engine)
    assert await state(engine, both.id) is State.QUEUED


async def test_a_parent_that_was_purged_has_still_succeeded(engine: Engine, clock: VirtualClock) -> None:
    first, second = await enqueue(engine, queue="a", keep_success=5.0), await enqueue(engine, queue="b")
    job = await enqueue(engine, after=[first.id, second.id])
    await end(engine, first.id)
    clock.advance(5)
    assert await upkeep.purge(engine) == 1
    await follow(engine)
    await upkeep.recheck_blocked(engine)
    assert (await engine(Show(id=job.id))).waits_for == [second.id]


async def test_a_job_added_by_one_who_died_before_it_was_bound_is_found(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = [await enqueue(engine, queue="a") for _ in range(2)]

    async def crash(_: Any) -> list[State | None]:
        raise ConnectionAbortedError

    with monkeypatch.context() as broken:
        broken.setattr(engine.context.store.jobs, "add_dependencies", crash)
        for parent in parents:
            with pytest.raises(ConnectionAbortedError):
                await enqueue(engine, key=parent.id, after=[parent.id])
    await end(engine, parents[0].id)
    await follow(engine)
    assert [job.state for job in await made(engine, "work")].count(State.BLOCKED) == 2
    await upkeep.recheck_blocked(engine)
    assert [job.state for job in await made(engine, "work")].count(State.BLOCKED) == 1


async def test_many_who_follow_at_once_do_it_once(store: Any, chance: SeededChance, engine: Engine) -> None:
    others = [Engine(store, SeededChance(seed)) for seed in range(2, 5)]
    parents = [await enqueue(engine, queue=queue, then=NewJob(task="next")) for queue in ("a", "b")]
    jobs = [await enqueue(engine, after=[parent.id for parent in parents]) for _ in range(150)]
    worker = await register(engine, "a", "b")
    for claimed in await engine(Claim(worker=worker, slots=2)):
        await finish(engine, worker, claimed)
    for _ in range(4):
        await asyncio.gather(*(upkeep.resolve_dependencies(one) for one in (engine, *others)))
    await follow(engine)
    assert {(await engine(Show(id=job.id))).state for job in jobs} == {State.QUEUED}
    assert len(await made(engine, "next")) == 2


# Then


async def test_a_job_is_followed_by_another_that_gets_its_result(engine: Engine) -> None:
    first = await enqueue(engine, tenant="acme", then=NewJob(task="next", queue="b", priority=2))
    worker = await register(engine, tenant="acme")
    claimed = await take(engine, worker, "acme")
    await follow(engine)
    assert await made(engine, "next", "acme") == []

    item = Finished(id=first.id, token=claimed.token, outcome=Verdict.OK, result=Raw(b"[42]"), content_type=JSON)
    await engine(Finish(tenant="acme", worker=worker, jobs=[item]))
    await follow(engine)
    (following,) = await made(engine, "next", "acme")
    assert following.id == child_id(first.id, "then", "b")
    assert (following.queue, following.priority, following.content_type) == ("b", 2, JSON)
    assert bytes((await engine(Show(tenant="acme", id=following.id, payload=True))).payload) == b"[42]"  # type: ignore[arg-type]


async def test_a_job_names_the_job_that_follows_it(engine: Engine) -> None:
    chain = NewJob(task="next", queue="b", then=NewJob(task="last", key="k"))
    first = await enqueue(engine, then=chain, follow_up=OTHER_ID)
    plain = await enqueue(engine, queue="a", follow_up=OTHER_ID)
    assert (first.follow_up, plain.follow_up) == (child_id(first.id, "then", "b"), None)
    await engine(Edit(id=first.id, priority=7, payload=packed("edited")))
    await end(engine, first.id)
    await follow(engine)
    (next_job,) = await made(engine, "next")
    assert (await engine(Show(id=first.id))).follow_up == next_job.id
    await end(engine, next_job.id)
    await follow(engine)
    (last,) = await made(engine, "last")
    assert (next_job.follow_up, last.follow_up) == (last.id, None)


async def test_a_payload_of_its_own_comes_before_the_result(engine: Engine) -> None:
    first = await enqueue(engine, then=NewJob(task="next", payload=packed("own")))
    none = await enqueue(engine, queue="a", keep_result="none", then=NewJob(task="bare"))
    await end(engine, first.id, result=packed("result"))
    await engine(Cancel(ids=[none.id]))
    await follow(engine)
    (following,) = await made(engine, "next")
    assert bytes((await engine(Show(id=following.id, payload=True))).payload) == wire.encode("own")  # type: ignore[arg-type]


async def test_where_there_is_no_result_it_gets_nothing(engine: Engine) -> None:
    first = await enqueue(engine, keep_result="none", then=NewJob(task="next", content_type=JSON))
    await end(engine, first.id, result=packed("result"))
    await follow(engine)
    (following,) = await made(engine, "next")
    assert following.content_type == MSGPACK
    assert bytes((await engine(Show(id=following.id, payload=True))).payload) == bytes(NOTHING)  # type: ignore[arg-type]


async def test_a_result_for_one_reading_is_not_used_up_by_what_follows(engine: Engine) -> None:
    first = await enqueue(engine, keep_result="once", then=NewJob(task="next"))
    await end(engine, first.id, result=packed(42))
    assert (await engine(GetResult(id=first.id))).result == packed(42)
    await follow(engine)
    (following,) = await made(engine, "next")
    assert bytes((await engine(Show(id=following.id, payload=True))).payload) == wire.encode(42)  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["failed", "cancelled", "deleted"])
async def test_what_does_not_succeed_is_not_followed(engine: Engine, ending: str) -> None:
    first = await enqueue(engine, then=NewJob(task="next"))
    if ending == "failed":
        await end(engine, first.id, Verdict.FAILED)
    else:
        await engine(Cancel(ids=[first.id]) if ending == "cancelled" else Delete(ids=[first.id]))
    await follow(engine)
    assert await made(engine, "next") == []


async def test_a_chain_goes_on_to_its_end(engine: Engine) -> None:
    chain = NewJob(task="t9")
    for number in range(8, -1, -1):
        chain = NewJob(task=f"t{number}", queue="b" if number % 2 else "a", then=chain, keep_success=0.0)
    await enqueue(engine, "start", queue="a", then=chain)
    worker = await register(engine, "a", "b", "default")
    tasks = []
    while claimed := await engine(Claim(worker=worker)):
        tasks.append(claimed[0].job.task)
        await finish(engine, worker, claimed[0])
        await follow(engine)
    assert tasks == ["start", *(f"t{number}" for number in range(10))]


async def test_a_made_job_and_a_following_one_may_wait_too(engine: Engine) -> None:
    other = await enqueue(engine, queue="a")
    first = await enqueue(engine, then=NewJob(task="next", after=[other.id]))
    worker = await register(engine)
    await finish(engine, worker, await take(engine, worker), jobs=[NewJob(task="made", after=[other.id])])
    await follow(engine)
    assert first.id != other.id
    (following,), (spawned,) = await made(engine, "next"), await made(engine, "made")
    assert following.state is spawned.state is State.BLOCKED
    await end(engine, other.id)
    await follow(engine)
    assert await state(engine, following.id) is await state(engine, spawned.id) is State.QUEUED


async def test_house_is_kept_for_those_who_wait(engine: Engine, clock: VirtualClock) -> None:
    parent = await enqueue(engine, queue="a", then=NewJob(task="next"))
    job = await enqueue(engine, after=[parent.id])
    await end(engine, parent.id)
    house = asyncio.ensure_future(upkeep.run_upkeep(engine, clock))
    async with asyncio.timeout(PATIENCE):
        while await state(engine, job.id) is State.BLOCKED or not await made(engine, "next"):
            clock.advance(0.1)
            await asyncio.sleep(0.005)
    house.cancel()
    await asyncio.gather(house, return_exceptions=True)


# Refused


def nested(depth: int) -> NewJob:
    found = NewJob(task="a")
    for _ in range(depth - 1):
        found = NewJob(task="a", then=found)
    return found


BAD: list[tuple[dict[str, Any], str, type[WindlassError]]] = [
    ({"after": ["7"]}, "job.after[0]", Invalid),
    ({"after": [NO_SUCH_ID, NO_SUCH_ID]}, "job.after", Invalid),
    ({"after": [NO_SUCH_ID], "delay": 1.0}, "job.after", Invalid),
    ({"after": [fresh_id((n << 96).to_bytes(16), "a") for n in range(MOST_PARENTS + 1)]}, "job.after", Invalid),
    ({"after": [NO_SUCH_ID, OTHER_ID], "with_results": "one"}, "job.with_results", Invalid),
    ({"with_results": "one"}, "job.with_results", Invalid),
    ({"after": [NO_SUCH_ID], "id": NO_SUCH_ID}, "job.after", Invalid),
    ({"then": nested(11)}, "job.then", Invalid),
    ({"then": "no job"}, "job.then", Invalid),
    ({"then": NewJob(task="a", then=7)}, "job.then.then", Invalid),  # type: ignore[arg-type]
    ({"then": NewJob(task="")}, "job.then.task", Invalid),
    ({"then": NewJob(task="a", then=NewJob(task="a", delay=-1.0))}, "job.then.then.delay", Invalid),
    ({"then": NewJob(task="a", payload=Raw(b"x" * (MOST_PAYLOAD + 1)))}, "job.then", TooLarge),
]


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("fields", "at", "fault"), BAD, ids=range(len(BAD)))
async def test_what_cannot_be_waited_for_is_refused_by_name(
    engine: Engine, fields: dict[str, Any], at: str, fault: type[WindlassError]
) -> None:
    with pytest.raises(fault) as refused:
        await enqueue(engine, queue="default", **fields)
    assert refused.value.at == at


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_as_much_as_is_allowed_is_allowed(engine: Engine) -> None:
    await enqueue(engine, then=nested(10))
    many = [fresh_id((n << 96).to_bytes(16), "a") for n in range(MOST_PARENTS)]
    assert (await enqueue(engine, after=many)).reason is Reason.DEPENDENCY


def test_in_json_what_follows_keeps_its_payload_or_has_none() -> None:
    sent = b'{"task": "a", "then": {"task": "b", "then": {"task": "c", "payload": null}}}'
    new = bodies.decode(sent, NewJob, "json")
    assert new.then is not None
    assert new.then.then is not None
    assert (new.payload, new.content_type) == (Raw(b"null"), JSON)
    assert new.then.payload is NOTHING
    assert (new.then.then.payload, new.then.then.content_type) == (Raw(b"null"), JSON)
    assert wire.checked_job(replace(new, then=None)).then is None
