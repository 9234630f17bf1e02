"""`Adopt`: a run goes on under another worker, whose token is the only one that counts from then on."""

import asyncio
from typing import Any

from tests.support.engines import enqueue, finish, register, take
from tests.support.stores import VirtualClock
from windlass.engine import Engine, upkeep
from windlass.model.job import Reason, State
from windlass.model.operations import (
    Adopt,
    Alive,
    Began,
    Begin,
    Cancel,
    Claimed,
    Finish,
    Finished,
    Orphan,
    Renew,
    Show,
    Workers,
)
from windlass.model.outcome import Verdict

FIRST, SECOND = "0123456789abcdef", "fedcba9876543210"
LONG = 600.0


async def a_run(engine: Engine, **terms: Any) -> tuple[str, Claimed]:
    """A job that has begun, with a lease of its own."""
    await enqueue(engine, on_lost="adopt", **terms)
    worker = await register(engine, node="here")
    claimed = await take(engine, worker)
    began = Began(id=claimed.job.id, token=claimed.token, pid=7, lease=LONG)
    await engine(Begin(worker=worker, jobs=[began]))
    return worker, claimed


def adopt(worker: str, claimed: Claimed, nonce: str = FIRST) -> Adopt:
    return Adopt(worker=worker, jobs=[Orphan(id=claimed.job.id, token=claimed.token, nonce=nonce, lease=LONG)])


async def test_an_adopted_run_is_its_adopters(engine: Engine, clock: VirtualClock) -> None:
    """S1 22, 26."""
    before, claimed = await a_run(engine)
    clock.advance(5)
    after = await register(engine, node="there")
    (adopted,) = await engine(adopt(after, claimed))
    assert adopted.token == FIRST
    job = await engine(Show(id=claimed.job.id))
    assert (job.state, job.attempt, job.pid) == (State.RUNNING, 1, 7)
    assert (job.worker, job.node, job.adopted_by, job.adopted_at) == (after, "there", after, clock.now())
    assert {one.id: one.running for one in await engine(Workers())} == {before: 0, after: 1}
    assert (await finish(engine, before, claimed)).refused == [job.id]
    assert (await engine(Renew(worker=before, jobs=[Alive(id=job.id, token=claimed.token)]))).lost == [job.id]
    assert (await finish(engine, after, adopted)).applied == [job.id]
    done = await engine(Show(id=job.id))
    assert (done.state, done.adopted_by, done.attempt) == (State.SUCCEEDED, after, 1)


async def test_of_two_adopters_one_wins(engine: Engine) -> None:
    _, claimed = await a_run(engine)
    workers = [await register(engine), await register(engine)]
    asked = [adopt(worker, claimed, nonce) for worker, nonce in zip(workers, (FIRST, SECOND), strict=True)]
    answers = await asyncio.gather(*map(engine, asked))
    assert sorted(map(len, answers)) == [0, 1]
    assert [len(await engine(one)) for one in asked] == [len(one) for one in answers]  # sent again
    assert await engine(adopt(workers[0], claimed, "0" * 16)) == []


async def test_the_lease_of_such_a_job_has_its_own_length(engine: Engine, clock: VirtualClock) -> None:
    worker, claimed = await a_run(engine)
    other = await enqueue(engine)
    ordinary = await take(engine, worker)
    clock.advance(LONG - 1)
    reclaim = upkeep.guarded_reclaim(15.0, trust_first=True)
    await reclaim(engine)
    assert (await engine(Show(id=other.id))).state is State.QUEUED
    assert (await engine(Show(id=claimed.job.id))).state is State.RUNNING
    again = await register(engine)
    alive = [
        Alive(id=other.id, token=ordinary.token),
        Alive(id=claimed.job.id, token=claimed.token, lease=LONG),
    ]
    assert (await engine(Renew(worker=again, jobs=alive))).lost == [other.id]
    clock.advance(LONG + 1)
    await upkeep.guarded_reclaim(15.0, trust_first=True)(engine)
    lost = await engine(Show(id=claimed.job.id))
    assert (lost.state, lost.reason, lost.attempt) == (State.FAILED, Reason.LOST, 1)
    assert await engine(adopt(await register(engine), claimed)) == []


async def test_an_order_reaches_the_adopter(engine: Engine) -> None:
    _, claimed = await a_run(engine)
    await engine(Cancel(ids=[claimed.job.id]))
    worker = await register(engine)
    (adopted,) = await engine(adopt(worker, claimed))
    renewed = await engine(Renew(worker=worker, jobs=[Alive(id=claimed.job.id, token=adopted.token)]))
    assert [order.order for order in renewed.orders] == ["cancel"]


async def test_one_that_crashed_meanwhile_is_not_run_again(engine: Engine) -> None:
    """S1 24."""
    _, claimed = await a_run(engine, max_retry=5)
    worker = await register(engine)
    (adopted,) = await engine(adopt(worker, claimed))
    crashed = Finished(id=claimed.job.id, token=adopted.token, outcome=Verdict.ERROR, reason=Reason.CRASHED)
    await engine(Finish(worker=worker, jobs=[crashed]))
    job = await engine(Show(id=claimed.job.id))
    assert (job.state, job.reason) == (State.FAILED, Reason.CRASHED)
    assert (job.errors[0].worker, job.errors[0].pid) == (worker, 7)
