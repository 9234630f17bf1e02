"""The begin of a run that was ordered to stop before: code that waits for the answer does not start."""

import pytest

from tests.support.engines import enqueue, finish, register, take
from windlass.engine import Engine
from windlass.model.errors import Missing
from windlass.model.job import Reason, State
from windlass.model.new_job import OnLost
from windlass.model.operations import (
    Alive,
    Applied,
    Began,
    Begin,
    Cancel,
    ChangeQueue,
    Claim,
    Claimed,
    Delete,
    Renew,
    Show,
)
from windlass.model.outcome import Verdict
from windlass.model.queue import QueueChange, Tier


async def begin(engine: Engine, worker: str, *runs: Claimed) -> Applied:
    return await engine(Begin(worker=worker, jobs=[Began(id=run.job.id, token=run.token, pid=7) for run in runs]))


@pytest.mark.parametrize("on_lost", ["fail", "adopt"])
async def test_s0_28_a_job_that_was_cancelled_or_deleted_before_it_began_is_skipped(
    engine: Engine, on_lost: OnLost
) -> None:
    worker = await register(engine, slots=3)
    cancelled, deleted, other = [await enqueue(engine, on_lost=on_lost) for _ in range(3)]
    runs = await engine(Claim(worker=worker, slots=3))
    await engine(Cancel(ids=[cancelled.id]))
    await engine(Delete(ids=[deleted.id]))
    answer = await begin(engine, worker, *runs)
    assert (answer.applied, answer.refused) == ([other.id], [cancelled.id, deleted.id])
    record = await engine(Show(id=cancelled.id))
    assert (record.state, record.reason) == (State.CANCELLED, Reason.CANCELLED)
    with pytest.raises(Missing):
        await engine(Show(id=deleted.id))
    again = await begin(engine, worker, *runs)
    assert (again.applied, again.refused) == ([other.id], [cancelled.id, deleted.id])


async def test_s0_28_a_halted_session_that_has_not_begun_is_skipped_and_its_slot_is_free(engine: Engine) -> None:
    await engine(ChangeQueue(queue="default", change=QueueChange(tiers=[Tier(name="fast", seconds=3)], on_lost="fail")))
    worker = await register(engine)
    session = await enqueue(engine, yielding=True)
    claimed = await take(engine, worker)
    waits = await enqueue(engine)
    assert (await begin(engine, worker, claimed)).refused == [session.id]
    record = await engine(Show(id=session.id))
    assert (record.state, record.reason) == (State.CANCELLED, Reason.HALTED)
    assert (await take(engine, worker)).job.id == waits.id


async def test_a_job_whose_code_runs_when_its_worker_says_so_is_ordered_to_stop(engine: Engine) -> None:
    worker = await register(engine)
    job = await enqueue(engine)
    claimed = await take(engine, worker)
    await engine(Cancel(ids=[job.id]))
    assert (await begin(engine, worker, claimed)).applied == [job.id]
    (order,) = (await engine(Renew(worker=worker, jobs=[Alive(id=job.id, token=claimed.token)]))).orders
    assert order.order == "cancel"
    await finish(engine, worker, claimed, Verdict.ERROR)
    assert (await engine(Show(id=job.id))).state is State.CANCELLED
