"""Jobs that make jobs: new ones are queued together with the finish of the one that made them, once."""

from typing import Any

import pytest
from msgspec import Raw

from tests.support.engines import enqueue, finish, packed, register, state, take
from tests.support.stores import VirtualClock
from windlass.engine import Engine, upkeep
from windlass.model.errors import Invalid, TooLarge, WindlassError
from windlass.model.job import JSON, Job, State
from windlass.model.match import Match
from windlass.model.names import child_id, fresh_id
from windlass.model.new_job import NewJob
from windlass.model.operations import Applied, Claim, Finish, Finished, List, Show
from windlass.model.outcome import Verdict
from windlass.model.wire import MOST_PAYLOAD

TOKEN = "0123456789abcdef"  # noqa: S105 - of no job


async def made(engine: Engine, task: str = "child", tenant: str = "default") -> list[Job]:
    return (await engine(List(tenant=tenant, match=Match(task=task)))).jobs


async def test_a_job_makes_jobs_of_its_tenant_when_it_ends_well(engine: Engine) -> None:
    parent = await enqueue(engine, tenant="acme")
    await enqueue(engine)
    worker = await register(engine, tenant="-")
    (claimed, _) = await engine(Claim(tenant="-", worker=worker, slots=2))
    new = [
        NewJob(task="child", payload=packed([1]), priority=3),
        NewJob(task="child", queue="other", payload=Raw(b"[2]"), content_type=JSON, delay=5.0),
    ]
    item = Finished(id=parent.id, token=claimed.token, outcome=Verdict.OK, jobs=new)
    assert await engine(Finish(tenant="-", worker=worker, jobs=[item])) == Applied(applied=[parent.id])
    first, second = await made(engine, tenant="acme")
    assert (first.queue, first.state, first.priority) == ("default", State.QUEUED, 3)
    assert (second.queue, second.state) == ("other", State.SCHEDULED)
    assert bytes((await engine(Show(tenant="acme", id=second.id, payload=True))).payload) == b"[2]"  # type: ignore[arg-type]
    assert await made(engine) == []


async def test_a_report_sent_again_makes_no_more(engine: Engine) -> None:
    parent = await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    new = [NewJob(task="child"), NewJob(task="child")]
    assert (await finish(engine, worker, claimed, jobs=new)).applied == [parent.id]
    assert (await finish(engine, worker, claimed, jobs=[*new, NewJob(task="child")])).refused == [parent.id]
    assert len(await made(engine)) == 2


async def test_of_two_reports_on_one_run_the_first_makes_jobs(engine: Engine) -> None:
    parent = await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    items = [
        Finished(id=parent.id, token=claimed.token, outcome=Verdict.OK, jobs=[NewJob(task=task)])
        for task in ("child", "other")
    ]
    report = await engine(Finish(worker=worker, jobs=items))
    assert report == Applied(applied=[parent.id], refused=[parent.id])
    assert len(await made(engine)) == 1
    assert await made(engine, "other") == []


async def test_a_second_run_after_a_crash_in_between_makes_the_same_jobs(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = await enqueue(engine, max_retry=1)
    worker = await register(engine)
    claimed = await take(engine, worker)
    new = [NewJob(task="child", payload=packed(n)) for n in range(3)]

    async def crash(_: Any) -> list[bool]:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(engine.context.store.jobs, "succeed", crash)
        with pytest.raises(KeyboardInterrupt):
            await finish(engine, worker, claimed, jobs=new)
    before = await made(engine)
    assert len(before) == 3
    clock.advance(20)
    assert await upkeep.reclaim(engine) == 1
    worker = await register(engine)
    again = next(one for one in await engine(Claim(worker=worker, slots=9)) if one.job.id == parent.id)
    assert again.job.attempt == 2
    assert (await finish(engine, worker, again, jobs=new)).applied == [parent.id]
    assert [job.id for job in await made(engine)] == [job.id for job in before]


async def test_a_late_report_makes_no_jobs(engine: Engine, clock: VirtualClock) -> None:
    parent = await enqueue(engine)
    worker = await register(engine)
    late = await take(engine, worker)
    clock.advance(15)
    assert await upkeep.reclaim(engine) == 1
    worker = await register(engine)
    assert (await finish(engine, worker, late, jobs=[NewJob(task="child")])).refused == [parent.id]
    await take(engine, worker)
    assert (await finish(engine, worker, late, jobs=[NewJob(task="child")])).refused == [parent.id]
    assert await made(engine) == []


async def test_a_made_job_may_have_an_id_or_a_key_of_its_own(engine: Engine) -> None:
    parent = await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    own = fresh_id(b"0" * 16, "default")
    new = [NewJob(task="child", id=own), NewJob(task="child", key="k"), NewJob(task="child", key="k")]
    await finish(engine, worker, claimed, jobs=new)
    first, second = await made(engine)
    assert first.id == own
    assert (second.key, second.id) == ("k", (await enqueue(engine, key="k")).id)
    assert parent.id not in {first.id, second.id}


def test_the_id_of_a_made_job_tells_its_parent_its_name_and_its_queue() -> None:
    parent, other = fresh_id(b"1" * 16, "a"), fresh_id(b"2" * 16, "a")
    ids = {child_id(one, name, queue) for one in (parent, other) for name in ("x", "y") for queue in ("a", "b")}
    assert len(ids) == 8
    assert child_id(parent, "x", "b")[-2:] == fresh_id(b"3" * 16, "b")[-2:]


BAD: list[tuple[NewJob, str, type[WindlassError]]] = [
    (NewJob(task="a b"), "task", Invalid),
    (NewJob(task="child", delay=-1.0), "delay", Invalid),
    (NewJob(task="child", id="7"), "id", Invalid),
    (NewJob(task="child", payload=Raw(b"x" * (MOST_PAYLOAD + 1))), "payload", TooLarge),
]


@pytest.mark.parametrize(("bad", "field", "kind_of_fault"), BAD, ids=[field for _, field, _ in BAD])
@pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)
async def test_one_bad_job_is_refused_by_name_and_nothing_is_written(
    engine: Engine, bad: NewJob, field: str, kind_of_fault: type[WindlassError]
) -> None:
    ids = [(await enqueue(engine)).id for _ in range(2)]
    worker = await register(engine)
    claimed = await engine(Claim(worker=worker, slots=2))
    news = [[NewJob(task="child")], [NewJob(task="child"), bad]]
    items = [
        Finished(id=one.job.id, token=one.token, outcome=Verdict.OK, jobs=new)
        for one, new in zip(claimed, news, strict=True)
    ]
    with pytest.raises(kind_of_fault) as fault:
        await engine(Finish(worker=worker, jobs=items))
    assert fault.value.at == f"jobs[1].jobs[1].{field}"
    assert [await state(engine, id) for id in ids] == [State.RUNNING] * 2
    assert await made(engine) == []


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_a_bad_job_of_a_report_with_a_wrong_token_is_refused_too(engine: Engine) -> None:
    parent = await enqueue(engine)
    worker = await register(engine)
    await take(engine, worker)
    lie = Finished(id=parent.id, token=TOKEN, outcome=Verdict.OK, jobs=[NewJob(task="")])
    with pytest.raises(Invalid):
        await engine(Finish(worker=worker, jobs=[lie]))


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_only_so_many_jobs_and_only_when_it_ended_well(engine: Engine) -> None:
    await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    for outcome, number in ((Verdict.ERROR, 1), (Verdict.RETRY, 1), (Verdict.FAILED, 1), (Verdict.OK, 101)):
        with pytest.raises(Invalid) as fault:
            await finish(engine, worker, claimed, outcome, jobs=[NewJob(task="child")] * number)
        assert fault.value.at == "jobs[0].jobs"
    assert (await finish(engine, worker, claimed, jobs=[NewJob(task="child")] * 100)).applied
    assert len(await made(engine)) == 100
