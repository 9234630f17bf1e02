"""Tiers while much happens at once: several engines decide over one store, workers join and leave, jobs end meanwhile.

Each test makes many trials. What chance decides comes from a seed; what the event loop decides does not.
"""

import asyncio
from collections.abc import Sequence

import pytest

from tests.flow.test_tiers import assigned, set_rules, show
from tests.support.engines import enqueue, finish, register, take
from tests.support.stores import SeededChance
from windlass.engine import Engine
from windlass.engine.flow.tiers import rebalance
from windlass.model.errors import Busy
from windlass.model.job import Job, Reason
from windlass.model.operations import Cancel, Claim, Claimed, Unregister
from windlass.model.outcome import Verdict

TRIALS = pytest.mark.parametrize("trials", [60, pytest.param(300, marks=pytest.mark.long)])


def engines_over(engine: Engine, number: int) -> list[Engine]:
    """Others over the same store, as other processes have them: each with its own caches."""
    return [Engine(engine.context.store, SeededChance(seed + 1)) for seed in range(number)]


async def halted(engine: Engine, running: Sequence[Claimed]) -> int:
    return sum([(await show(engine, job)).reason is Reason.HALTED for job in running])


@TRIALS
async def test_of_five_callers_for_one_slot_exactly_one_is_accepted(engine: Engine, trials: int) -> None:
    await set_rules(engine)
    worker = await register(engine)
    others = engines_over(engine, 5)
    for _ in range(trials):
        answers = await asyncio.gather(*(enqueue(one, yielding=True) for one in others), return_exceptions=True)
        accepted = [answer for answer in answers if isinstance(answer, Job)]
        assert len(accepted) == 1
        assert sum(isinstance(answer, Busy) for answer in answers) == 4
        claimed = await take(engine, worker)
        assert claimed.job.id == accepted[0].id
        await finish(engine, worker, claimed)


@TRIALS
async def test_one_waiting_halts_one_yielding_job_whatever_ends_and_starts_meanwhile(
    engine: Engine, trials: int
) -> None:
    await set_rules(engine)
    worker = await register(engine, slots=3)
    others = engines_over(engine, 3)
    for trial in range(trials):
        running = []
        for _ in range(3):
            await enqueue(engine, yielding=True)
            running.append(await take(engine, worker))
        waiting = await enqueue(others[0], tier="fast")
        (gone,) = [job for job in running if (await show(engine, job)).reason is Reason.HALTED]

        async with asyncio.TaskGroup() as group:
            ending = group.create_task(give_way(engine, worker, gone, after=trial % 7 / 5000))
            for one in others:
                group.create_task(look(one))
        started = ending.result()
        assert started.job.id == waiting.id
        left = [started, *(job for job in running if job is not gone)]
        assert await halted(engine, left) == 0
        for job in left:
            await finish(engine, worker, job)


async def give_way(engine: Engine, worker: str, job: Claimed, *, after: float) -> Claimed:
    """A halted job stops after some time, and its worker takes the next."""
    await asyncio.sleep(after)
    await finish(engine, worker, job, Verdict.ERROR)
    return await take(engine, worker)


async def look(engine: Engine) -> None:
    for _ in range(6):
        await rebalance(engine.context, "default", "default")


@TRIALS
async def test_no_flexible_job_is_shrunk_for_one_that_fits_beside_it_on_a_worker_that_joins(
    engine: Engine, trials: int
) -> None:
    await set_rules(engine, slow="50%", medium="100%")
    first = await register(engine, slots=2)
    (other,) = engines_over(engine, 1)
    for _ in range(trials):
        await enqueue(engine)
        flexible = await take(engine, first)
        assert flexible.job.assigned == "slow"
        await other.context.flow_config.refreshed()  # it knows the caps from before
        joined = await register(engine, slots=2)
        slow = await enqueue(engine, tier="slow")
        fast = await enqueue(other)
        assert await assigned(engine, flexible) == ["slow"]
        claimed = await engine(Claim(worker=joined, slots=2))
        assert [one.job.id for one in claimed] == [slow.id, fast.id]
        assert [one.job.assigned for one in claimed] == ["slow", "medium"]
        for one in claimed:
            await finish(engine, joined, one)
        await finish(engine, first, flexible)
        await engine(Unregister(worker=joined))


async def test_a_worker_that_leaves_takes_its_slots_out_of_the_caps_of_every_engine_at_once(engine: Engine) -> None:
    await set_rules(engine, slow="50%", medium="100%")
    (other,) = engines_over(engine, 1)
    staying, leaving = await register(engine, slots=2), await register(engine, slots=2)
    await other.context.flow_config.refreshed()
    await enqueue(other, tier="slow")
    await take(engine, staying)
    await engine(Unregister(worker=leaving))
    waits = await enqueue(other, tier="slow")
    assert await engine(Claim(worker=staying)) == []
    assert (await show(engine, waits)).state == "queued"
    await engine(Cancel(ids=[waits.id]))
