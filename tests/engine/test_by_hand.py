"""A caller ends a running job in the place of its worker: `finish` with a result, `fail` with a message."""

import asyncio

import pytest
from msgspec import Raw

from tests.support.engines import enqueue, finish, packed, register, state, take
from tests.support.stores import VirtualClock
from windlass.engine import Engine, upkeep
from windlass.model.errors import Conflict, Missing, TooLarge
from windlass.model.job import JSON, Reason, State
from windlass.model.match import Match
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Alive,
    Audit,
    Cancel,
    Delete,
    FailByHand,
    FinishByHand,
    GetResult,
    GetStats,
    List,
    Renew,
    Show,
)
from windlass.model.outcome import Verdict
from windlass.model.wire import MOST_RESULT


async def test_a_running_job_is_finished_by_hand(engine: Engine) -> None:
    """S1 31."""
    job = await enqueue(engine)
    claimed = await take(engine, worker := await register(engine))
    assert (await engine(FinishByHand(id=job.id, result=packed({"rows": 17})))).changed == 1
    record = await engine(Show(id=job.id))
    assert (record.state, record.reason, record.code, record.attempt) == (State.SUCCEEDED, Reason.BY_HAND, 200, 1)
    assert record.finished_at is not None
    kept = await engine(GetResult(id=job.id))
    assert (kept.state, kept.result) == (State.SUCCEEDED, packed({"rows": 17}))
    late = await finish(engine, worker, claimed, result=packed("late"))
    assert late.refused == [job.id]
    renewed = await engine(Renew(worker=worker, jobs=[Alive(id=job.id, token=claimed.token)]))
    assert renewed.lost == [job.id]
    assert (await engine(GetResult(id=job.id))).result == packed({"rows": 17})


async def test_a_running_job_is_failed_by_hand_and_not_run_again(engine: Engine, clock: VirtualClock) -> None:
    """S1 31."""
    job = await enqueue(engine, max_retry=5)
    claimed = await take(engine, worker := await register(engine))
    assert (await engine(FailByHand(id=job.id, message="the tape is broken"))).changed == 1
    record = await engine(Show(id=job.id))
    assert (record.state, record.reason, record.code) == (State.FAILED, Reason.BY_HAND, 400)
    assert record.error is not None
    entry = (record.error.message, record.error.reason, record.error.attempt, record.error.worker)
    assert entry == ("the tape is broken", Reason.BY_HAND, 1, worker)
    assert (await finish(engine, worker, claimed)).refused == [job.id]
    clock.advance(3600)
    await upkeep.reclaim(engine)
    assert await state(engine, job.id) is State.FAILED
    assert [one.id for one in (await engine(List(match=Match(reason=Reason.BY_HAND)))).jobs] == [job.id]


async def test_a_worker_that_waits_for_orders_learns_at_once_that_its_job_was_ended(engine: Engine) -> None:
    worker = await register(engine)
    for operation in (FinishByHand, FailByHand):
        job = await enqueue(engine)
        claimed = await take(engine, worker)
        held = Alive(id=job.id, token=claimed.token)
        waiting = asyncio.create_task(engine(Renew(worker=worker, jobs=[held], wait=60.0)))
        await asyncio.sleep(0.1)
        await engine(operation(id=job.id))
        async with asyncio.timeout(30):
            assert (await waiting).lost == [job.id]


async def test_what_depends_on_a_job_ended_by_hand_goes_on_as_after_any_end(engine: Engine) -> None:
    good = await enqueue(engine, then=NewJob(task="next"))
    bad = await enqueue(engine)
    after_good = await enqueue(engine, "child", after=[good.id])
    after_bad = await enqueue(engine, "child", after=[bad.id])
    worker = await register(engine)
    for _ in range(2):
        await take(engine, worker)
    await engine(FinishByHand(id=good.id, result=packed("handed on")))
    await engine(FailByHand(id=bad.id))
    await upkeep.resolve_dependencies(engine)
    assert (await state(engine, after_good.id), await state(engine, after_bad.id)) == (State.QUEUED, State.CANCELLED)
    (follower,) = (await engine(List(match=Match(task="next")))).jobs
    assert (await engine(Show(id=follower.id, payload=True))).payload == packed("handed on")


@pytest.mark.parametrize("operation", [FinishByHand, FailByHand])
async def test_only_a_running_job_can_be_ended_by_hand(
    engine: Engine, operation: type[FinishByHand | FailByHand]
) -> None:
    waiting = await enqueue(engine, delay=60.0)
    with pytest.raises(Conflict, match="is scheduled: only a running job can be finished or failed by hand; cancel it"):
        await engine(operation(id=waiting.id))
    job = await enqueue(engine)
    await take(engine, await register(engine))
    await engine(operation(id=job.id))
    with pytest.raises(Conflict, match="run it again with retry"):
        await engine(operation(id=job.id))
    with pytest.raises(Missing):
        await engine(operation(tenant="other", id=job.id))
    assert await state(engine, waiting.id) is State.SCHEDULED


async def test_a_job_that_was_ordered_to_stop_can_be_ended_by_hand(engine: Engine) -> None:
    worker = await register(engine)
    cancelled = await enqueue(engine)
    await take(engine, worker)
    await engine(Cancel(ids=[cancelled.id]))
    await engine(FinishByHand(id=cancelled.id))
    assert await state(engine, cancelled.id) is State.SUCCEEDED
    for operation in (FinishByHand, FailByHand):
        deleted = await enqueue(engine)
        await take(engine, worker)
        await engine(Delete(ids=[deleted.id]))
        await engine(operation(id=deleted.id))
        with pytest.raises(Missing):
            await engine(Show(id=deleted.id))


async def test_a_result_by_hand_may_be_as_large_as_any_and_of_any_type(engine: Engine) -> None:
    job = await enqueue(engine)
    await take(engine, await register(engine))
    with pytest.raises(TooLarge):
        await engine(FinishByHand(id=job.id, result=Raw(bytes(MOST_RESULT + 1)), content_type="text/plain"))
    await engine(FinishByHand(id=job.id, result=Raw(b'{"a": 1}'), content_type=JSON))
    kept = await engine(GetResult(id=job.id))
    assert (kept.result, kept.content_type) == (Raw(b'{"a": 1}'), JSON)


async def test_runs_ended_by_hand_are_counted_and_leave_a_line_in_the_audit_log(engine: Engine) -> None:
    worker = await register(engine)
    for _ in range(2):
        await enqueue(engine)
    first, second = [(await take(engine, worker)).job.id for _ in range(2)]
    await engine(FinishByHand(id=first, result=packed("secret")))
    await engine(FailByHand(id=second, message="no"))
    (stats,) = (await engine(GetStats())).queues
    assert (stats.outcomes[Verdict.OK], stats.outcomes[Verdict.FAILED]) == (1, 1)
    failed, finished = (await engine(Audit())).entries
    assert (failed.action, failed.count, failed.details) == ("fail", 1, '{"message":"no"}')
    assert (finished.action, finished.count) == ("finish", 1)
    assert "secret" not in finished.details
