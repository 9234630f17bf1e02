"""`on_failure`: a job that gets the record of one that has failed."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.support.engines import enqueue, finish, packed, register, take
from tests.support.stores import VirtualClock
from windlass.engine import Engine, upkeep
from windlass.model.errors import Invalid
from windlass.model.job import Error, Job, State
from windlass.model.match import Match
from windlass.model.new_job import JobOptions
from windlass.model.operations import Cancel, Delete, EnqueueLines, FailByHand, List, Register, Rerun
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker


async def made(engine: Engine) -> list[Job]:
    while await upkeep.resolve_dependencies(engine):
        pass
    return (await engine(List(match=Match(task="alert")))).jobs


async def fail(engine: Engine, *queues: str, outcome: Verdict = Verdict.ERROR, **more: Any) -> None:
    worker = await register(engine, *queues)
    await finish(engine, worker, await take(engine, worker), outcome, **more)


async def test_a_failed_job_is_passed_on_with_its_record(engine: Engine, clock: VirtualClock) -> None:
    payload = packed({"page": 7})
    job = await enqueue(engine, "render", queue="a", tags=["x"], payload=payload, on_failure="alert", max_retry=1)
    await fail(engine, "a", error=Error(type="ValueError", message="first"))
    assert await made(engine) == [], "it is run again"
    await engine(Cancel(ids=[(await enqueue(engine, "other", on_failure="alert")).id]))
    clock.advance(3600)
    await upkeep.promote(engine)
    worker = await register(engine, "a")
    await engine(FailByHand(id=(await take(engine, worker)).job.id, message="enough"))
    (alert,) = await made(engine)
    claimed = await take(engine, await register(engine))
    assert (claimed.job.id, claimed.job.one_argument, claimed.job.on_failure) == (alert.id, True, None)
    record = msgspec.msgpack.decode(claimed.payload)
    assert (record["id"], record["state"], record["tags"], record["queue"]) == (job.id, "failed", ["x"], "a")
    assert (record["payload"], record["error"]["message"]) == ({"page": 7}, "enough")


async def test_only_a_failure_counts(engine: Engine) -> None:
    await enqueue(engine, on_failure="alert")
    await fail(engine, outcome=Verdict.OK)
    deleted = await enqueue(engine, on_failure="alert")
    await engine(Delete(ids=[deleted.id]))
    cancelled = await enqueue(engine, on_failure="alert")
    await engine(Cancel(ids=[cancelled.id]))
    assert await made(engine) == []


async def test_each_failure_counts_once_whatever_repeats(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await enqueue(engine, on_failure="alert")
    await fail(engine, outcome=Verdict.FAILED)
    completed_parents = engine.context.store.jobs.completed_parents
    with monkeypatch.context() as patch:
        patch.setattr(engine.context.store.jobs, "completed_parents", _keeps(completed_parents))
        await upkeep.resolve_dependencies(engine)  # it dies before it takes the parent off the index
    assert len(await made(engine)) == 1
    await engine(Cancel(match=Match(task="alert")))
    await engine(Rerun(ids=[job.id]))
    clock.advance(1)
    await fail(engine, outcome=Verdict.FAILED)
    assert len(await made(engine)) == 2, "it was run again, and has failed again"


def _keeps(completed_parents: Any) -> Any:
    async def only_reads(done: Any, limit: int) -> Any:
        return await completed_parents([], limit) if limit else []

    return only_reads


async def test_also_of_jobs_that_expired_or_waited_in_vain(engine: Engine, clock: VirtualClock) -> None:
    expired = await enqueue(engine, expires=5.0, on_failure="alert")
    blocked = await enqueue(engine, after=[expired.id], after_failure="fail", on_failure="alert")
    clock.advance(5)
    await upkeep.expire(engine)
    await made(engine)
    worker = await register(engine)
    records = [msgspec.msgpack.decode((await take(engine, worker)).payload) for _ in range(2)]
    assert {(one["id"], one["reason"]) for one in records} == {(expired.id, "expired"), (blocked.id, "dependency")}


async def test_jobs_that_come_by_name_take_it_from_their_task_and_the_follower_its_own_options(engine: Engine) -> None:
    options = {"render": JobOptions(on_failure="alert"), "alert": JobOptions(queue="ops", max_retry=3)}
    options["alert"] = replace(options["alert"], on_failure="alert")
    new = NewWorker(name="w", queues=["default"], tasks=["render", "alert"], options=options)
    worker = (await engine(Register(worker=new))).worker
    await engine(EnqueueLines(task="render", text="1\n2", options=JobOptions(on_failure="alert")))
    for _ in range(2):
        await finish(engine, worker, await take(engine, worker), Verdict.FAILED)
    found = await made(engine)
    assert [(one.queue, one.max_retry, one.on_failure) for one in found] == [("ops", 3, None)] * 2


async def test_a_record_that_is_not_kept_cannot_be_passed_on(engine: Engine) -> None:
    with pytest.raises(Invalid) as refused:
        await enqueue(engine, on_failure="alert", keep_failure=0.0)
    assert refused.value.at == "job.keep_failure"


async def test_nothing_stays_behind(engine: Engine, clock: VirtualClock) -> None:
    for outcome in (Verdict.OK, Verdict.FAILED):
        await enqueue(engine, on_failure="alert", keep_success=1.0, keep_failure=1.0)
        await fail(engine, outcome=outcome)
    (alert,) = await made(engine)
    await engine(Delete(ids=[alert.id]))
    clock.advance(1)
    await upkeep.purge(engine)
    await made(engine)
    assert (await engine(List())).jobs == []
    assert State.FAILED not in {one.state for one in (await engine.context.store.jobs.counts("-")).jobs}
