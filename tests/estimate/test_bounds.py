"""The bound of a wait holds while all kinds of jobs come and go, on each kind of store; time is the test's own."""

import random
from datetime import timedelta
from typing import Any

import pytest

from tests.flow.test_tiers import set_rules, show
from tests.support.engines import finish, register
from tests.support.stores import VirtualClock
from windlass.engine import Engine
from windlass.model.errors import Busy
from windlass.model.job import Job, Reason
from windlass.model.new_job import NewJob
from windlass.model.operations import Accepted, Claim, Claimed, Enqueue, GetEstimate, Renew
from windlass.model.outcome import Verdict

SLOTS = 3
ARRIVALS = 40
TIERS = ("fast", "medium", "slow", None)
TOLERANCE = 0.001
STEP = 5.0
"""Seconds that a worker may be silent."""

FEW_OR_MANY = pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.long] * (n > 2)) for n in range(40)])


class SimulatedWorker:
    """A worker that takes what it may have at once, and runs each job for as long as the test says."""

    def __init__(self, engine: Engine, clock: VirtualClock, id: str) -> None:
        self._engine = engine
        self._clock = clock
        self._id = id
        self._takes: dict[str, float] = {}
        """Seconds that each job runs if it is let, by id."""
        self._running: list[Claimed] = []
        self.waited: dict[str, float] = {}
        """Seconds, of each job that has started."""

    async def enqueue(self, seconds: float, **terms: Any) -> Accepted | None:
        """A new job; null = it was denied."""
        try:
            job = await self._engine(Enqueue(job=NewJob(task="work", **terms)))
        except Busy:
            return None
        self._takes[job.id] = seconds
        await self._settle()
        return job

    @property
    def waiting(self) -> list[str]:
        return [id for id in self._takes if id not in self.waited]

    async def run(self, seconds: float | None = None) -> None:
        """Let jobs end and others start, for so long or until none is left."""
        over = None if seconds is None else self._clock.now() + timedelta(seconds=seconds)
        while self._running:
            left = min([await self._left(run) for run in self._running])
            if over is not None and self._clock.now() + timedelta(seconds=left) > over:
                break
            await self._advance(left)
        if over is not None:
            await self._advance((over - self._clock.now()).total_seconds())

    async def _advance(self, seconds: float) -> None:
        while seconds >= 0:
            self._clock.advance(min(seconds, STEP))
            await self._engine(Renew(worker=self._id, jobs=[]))
            seconds -= STEP
        await self._settle()

    async def _settle(self) -> None:
        """Until nothing more happens at this moment."""
        while await self._end_one() or await self._claim():
            pass

    async def _claim(self) -> bool:
        if len(self._running) == SLOTS:
            return False
        claimed = await self._engine(Claim(worker=self._id, slots=SLOTS - len(self._running)))
        for run in claimed:
            assert run.job.started_at is not None
            self.waited[run.job.id] = (run.job.started_at - run.job.created_at).total_seconds()
        self._running += claimed
        return bool(claimed)

    async def _end_one(self) -> bool:
        for run in self._running:
            job = await show(self._engine, run)
            if job.reason is not Reason.HALTED and self._left_of(job) > 0:
                continue
            self._running.remove(run)
            late = job.reason is Reason.HALTED or (job.deadline is not None and job.deadline <= self._clock.now())
            await finish(self._engine, self._id, run, Verdict.ERROR if late else Verdict.OK)
            return True
        return False

    async def _left(self, run: Claimed) -> float:
        return self._left_of(await show(self._engine, run))

    def _left_of(self, job: Job) -> float:
        assert job.started_at is not None
        ends = job.started_at + timedelta(seconds=self._takes[job.id])
        if job.deadline is not None:
            ends = min(ends, job.deadline)
        return max(0.0, (ends - self._clock.now()).total_seconds())


async def bound(engine: Engine, id: str) -> float:
    found = await engine(GetEstimate(id=id))
    assert found.at_most is not None
    return found.at_most


@FEW_OR_MANY
async def test_s0_17_18_and_19_no_job_waits_longer_than_its_first_bound_which_later_jobs_do_not_raise(
    engine: Engine, clock: VirtualClock, seed: int
) -> None:
    await set_rules(engine)
    worker = SimulatedWorker(engine, clock, await register(engine, slots=SLOTS))
    chance = random.Random(seed)
    first: dict[str, float] = {}
    for _ in range(ARRIVALS):
        await worker.run(chance.expovariate(1.0))
        before = {id: await bound(engine, id) for id in worker.waiting}
        if chance.random() < 0.15:
            await worker.enqueue(chance.uniform(0, 60), yielding=True)
        else:
            job = await worker.enqueue(chance.uniform(0, 40), tier=chance.choice(TIERS))
            assert job is not None
            assert job.estimate_at_most is not None, "each new job has one"
            first[job.id] = job.estimate_at_most
        for id in before.keys() & set(worker.waiting):
            assert await bound(engine, id) <= before[id] + TOLERANCE, "a later job has raised it"
    await worker.run()
    waits = {id: worker.waited[id] for id in first}
    assert sum(wait > 0 for wait in waits.values()) > ARRIVALS / 4, "there was something to wait for"
    assert {id: (wait, first[id]) for id, wait in waits.items() if wait > first[id] + TOLERANCE} == {}
