"""The time limit of a running job is lowered by its owner (S0, item 32), with tiers and without."""

import pytest

from tests.flow.test_tiers import assigned, set_rules, show
from tests.support.engines import enqueue, finish, register, take
from tests.support.stores import VirtualClock
from tests.support.worker_harness import WorkerHarness
from windlass.engine import Engine
from windlass.engine.upkeep import promote
from windlass.model.errors import Conflict
from windlass.model.job import Job, Reason, State
from windlass.model.operations import Alive, Claimed, LowerTimeout, Order, Renew
from windlass.model.outcome import Verdict


async def lower(engine: Engine, job: Job | Claimed, seconds: float) -> int:
    id = job.job.id if isinstance(job, Claimed) else job.id
    return (await engine(LowerTimeout(id=id, timeout=seconds))).changed


async def limit_of(engine: Engine, job: Claimed) -> float | None:
    found = await show(engine, job)
    if found.deadline is None or found.started_at is None:
        return None
    return (found.deadline - found.started_at).total_seconds()


async def orders(engine: Engine, worker: str, job: Claimed) -> list[Order]:
    beat = Alive(id=job.job.id, token=job.token, deadline=job.deadline)
    return (await engine(Renew(worker=worker, jobs=[beat]))).orders


async def test_s0_32_a_lower_limit_holds_and_a_higher_one_is_ignored(engine: Engine, clock: VirtualClock) -> None:
    worker = await register(engine)
    await enqueue(engine, timeout=60.0)
    running = await take(engine, worker)
    clock.advance(2)
    assert await lower(engine, running, 5) == 1
    assert await limit_of(engine, running) == 5
    assert await lower(engine, running, 9) == 0
    assert await limit_of(engine, running) == 5
    (order,) = await orders(engine, worker, running)
    assert order.order == "deadline"
    assert order.deadline == (await show(engine, running)).deadline
    assert await lower(engine, running, 1) == 1, "below the time used: its worker stops it at once"
    await finish(engine, worker, running, Verdict.ERROR, reason=Reason.TIMEOUT)
    ended = await show(engine, running)
    assert ended.reason is Reason.TIMEOUT
    assert ended.error is not None
    assert "lowered to 1 s" in ended.error.message


async def test_a_job_without_a_limit_gets_one_and_its_next_run_has_none(engine: Engine) -> None:
    worker = await register(engine)
    await enqueue(engine, max_retry=1)
    running = await take(engine, worker)
    assert await limit_of(engine, running) is None
    assert await lower(engine, running, 5) == 1
    assert await limit_of(engine, running) == 5
    await finish(engine, worker, running, Verdict.RETRY, delay=0)
    await promote(engine)
    again = await take(engine, worker)
    assert await limit_of(engine, again) is None
    await finish(engine, worker, again)
    assert (await show(engine, again)).state is State.SUCCEEDED


async def test_only_a_running_job_has_a_limit_to_lower(engine: Engine) -> None:
    worker = await register(engine)
    waits = await enqueue(engine)
    with pytest.raises(Conflict, match="is queued: only the time limit of a running job"):
        await lower(engine, waits, 5)
    running = await take(engine, worker)
    await finish(engine, worker, running)
    with pytest.raises(Conflict, match="is succeeded"):
        await lower(engine, waits, 5)


async def test_a_lowered_job_gives_its_place_at_longer_tiers_back_and_is_not_shrunk(engine: Engine) -> None:
    await set_rules(engine)
    worker = await register(engine, slots=3)
    await enqueue(engine, tier="slow")
    running = await take(engine, worker)
    waits = await enqueue(engine, tier="slow")
    assert await lower(engine, running, 8) == 1
    assert await assigned(engine, running) == ["medium"]
    next_ = await take(engine, worker)
    assert next_.job.id == waits.id
    await enqueue(engine, tier="medium")
    assert await assigned(engine, running) == ["medium"], "it asked for a tier: no other job takes time from it"
    assert await limit_of(engine, running) == 8


async def test_a_lowered_flexible_job_that_is_shrunk_gets_no_time_back(engine: Engine) -> None:
    await set_rules(engine)
    worker = await register(engine, slots=1)
    await enqueue(engine)
    running = await take(engine, worker)
    assert await lower(engine, running, 2) == 1
    assert await assigned(engine, running) == ["fast"]
    assert await limit_of(engine, running) == 2
    await enqueue(engine, tier="fast")
    assert await limit_of(engine, running) == 2


def test_a_worker_stops_a_job_at_its_lowered_limit(harness: WorkerHarness) -> None:
    harness.start("-c", "1")
    job = harness.tasks.co_nap.using(timeout=600).enqueue(600, "job")
    harness.noted("start")
    assert job.lower_timeout(0.5)
    record = harness.ended(job)
    assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
    assert record.error is not None
    assert "time limit of 0.5 s: it was lowered to 0.5 s while it ran" in record.error.message
