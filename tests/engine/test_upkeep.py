"""How house is kept where there is nothing to do: few questions, and yet what comes is found at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.engines import enqueue, finish, register, state
from tests.support.stores import EPOCH, VirtualClock
from windlass.engine import Engine, upkeep
from windlass.model.errors import Unavailable
from windlass.model.job import State
from windlass.model.limit import NewLimit, Which
from windlass.model.operations import Claim, PutLimit
from windlass.store.data import OverdueJobs, Sweep

SECONDS = 10


class Counting:
    """Something that is asked, and how often."""

    def __init__(self, asked: Any, counts: Counter[str]) -> None:
        self._asked = asked
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._asked, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._counts[f"sweep {args[0]}" if name == "sweep" else name] += 1
            return found(*args, **kwargs)

        return counted if callable(found) else found


@asynccontextmanager
async def kept(engine: Engine, clock: VirtualClock) -> AsyncIterator[None]:
    house = asyncio.ensure_future(upkeep.run_upkeep(engine, clock))
    try:
        yield
    finally:
        house.cancel()
        await asyncio.gather(house, return_exceptions=True)


async def pass_time(clock: VirtualClock, seconds: float) -> None:
    for _ in range(int(seconds * 20)):
        clock.advance(0.05)
        await asyncio.sleep(0.002)


async def test_what_follows_a_job_is_dealt_with_as_soon_as_that_has_ended(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "POLL_EVERY", 60.0)  # else it would be found by looking, in the end
    parents = [await enqueue(engine) for _ in range(2)]
    jobs = [await enqueue(engine, after=[parent.id], queue="later") for parent in parents]
    worker = await register(engine)
    async with kept(engine, clock):
        await pass_time(clock, 1)
        for parent, job in zip(parents, jobs, strict=True):
            (claimed,) = await engine(Claim(worker=worker))
            assert claimed.job.id == parent.id
            await finish(engine, worker, claimed)
            rounds = 0
            while await state(engine, job.id) is State.BLOCKED:
                rounds += 1
                assert rounds < 250, "no notice came"  # after a minute all blocked jobs are rechecked anyway
                await pass_time(clock, 0.1)


async def test_a_house_with_nothing_to_do_asks_the_store_a_few_times_a_second(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    for facet in ("jobs", "flow", "workers", "records"):
        monkeypatch.setattr(engine.context.store, facet, Counting(getattr(engine.context.store, facet), counts))
    async with kept(engine, clock):
        await pass_time(clock, SECONDS)
    assert counts[f"sweep {Sweep.UNBLOCK}"] == 0
    assert counts["completed"] <= 1 + SECONDS
    assert counts["next_due"] > 0, "no house was kept at all"
    assert counts[f"sweep {Sweep.PURGE}"] <= 1 + SECONDS / 5
    assert counts[f"sweep {Sweep.PROMOTE}"] == 0, "nothing was scheduled"
    assert sum(counts.values()) <= 9 * SECONDS, counts


async def promoted_after(engine: Engine, clock: VirtualClock, delay: float) -> float:
    """How long after it was queued a job with a delay can be claimed."""
    job = await enqueue(engine, delay=delay)
    began = clock.monotonic()
    while await state(engine, job.id) is State.SCHEDULED:
        clock.advance(0.001)
        await asyncio.sleep(0.002)
        assert clock.monotonic() - began < delay + 1
    return clock.monotonic() - began


async def test_a_scheduled_job_is_queued_when_it_is_due_and_not_at_the_next_look(
    engine: Engine, clock: VirtualClock
) -> None:
    async with kept(engine, clock):
        await pass_time(clock, 0.5)
        for delay in (0.51, 0.6, 0.77):  # none of these is the time of a round
            assert delay <= await promoted_after(engine, clock, delay) < delay + 0.02


async def test_a_process_that_promotes_too_late_leaves_the_next_jobs_to_the_quicker_one(
    engine: Engine, clock: VirtualClock
) -> None:
    late = upkeep.TimedPromote()
    await enqueue(engine, delay=0.1)
    assert (await late(engine), late.pause) == (0, 0.101)
    clock.advance(0.1)
    assert await upkeep.promote(engine) == 1, "another was quicker"
    assert (await late(engine), late.pause) == (0, 0.25)
    await enqueue(engine, delay=0.1)
    assert (await late(engine), late.pause) == (0, 0.25)
    clock.advance(0.25)
    assert await late(engine) == 1, "it was the first this time"
    await enqueue(engine, delay=0.1)
    assert (await late(engine), late.pause) == (0, 0.101)


async def test_a_store_that_is_away_is_not_asked_more_often_because_a_job_was_due(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoting = upkeep.TimedPromote()
    await enqueue(engine, delay=0.1)
    await promoting(engine)

    async def away(*_: Any) -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr(engine.context.store.jobs, "sweep", away)
    clock.advance(0.2)
    with pytest.raises(Unavailable):
        await promoting(engine)
    assert promoting.pause == 0.25


async def test_a_house_with_rules_lets_jobs_come_back_that_were_held_up(engine: Engine, clock: VirtualClock) -> None:
    limit = NewLimit(match=Which(task="a", queue="default"), running=1)
    await engine(PutLimit(name="one", limit=limit))
    counts: Counter[str] = Counter()
    jobs = engine.context.store.jobs
    engine.context.store.jobs = Counting(jobs, counts)
    async with kept(engine, clock):
        await pass_time(clock, 2)
    engine.context.store.jobs = jobs
    assert counts[f"sweep {Sweep.UNBLOCK}"] >= 4


async def test_a_part_that_comes_later_is_not_trusted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one who may be gone soon, and takes it at its word at first."""
    ids = ["00000000-0000-7000-8000-000000000000", "00000000-0000-7000-8000-000000000001"]
    lost: Any = [SimpleNamespace(job=SimpleNamespace(id=id)) for id in ids]
    answered, taken = [0], list[list[str]]()

    async def overdue(*_: Any) -> OverdueJobs:
        there = [one for one, part in zip(lost, (0, 1), strict=True) if part in answered]
        return OverdueJobs(EPOCH, there, answered, answered)

    async def take_back(_: Any, reading: OverdueJobs) -> int:
        taken.append([one.job.id for one in reading.records])
        return 0

    monkeypatch.setattr(upkeep, "_reclaim", take_back)
    engine: Any = SimpleNamespace(context=SimpleNamespace(store=SimpleNamespace(jobs=SimpleNamespace(overdue=overdue))))
    reclaim = upkeep.guarded_reclaim(1.0, trust_first=True)
    await reclaim(engine)
    answered.append(1)
    await reclaim(engine)
    assert taken == [ids[:1], ids[:1]]
