"""The promises of older queues: each has a test; here are those of the function queue that no other file names.

A test names its promises by their numbers: in its own name, or in its docstring, where those of the function queue may
stand in brackets.
"""

import asyncio
import re
from pathlib import Path

import pytest

from tests.support.engines import enqueue, finish, register, state, take
from tests.support.stores import VirtualClock
from windlass.engine import Engine
from windlass.engine.upkeep import promote, reclaim
from windlass.model.handler import NewHandler
from windlass.model.job import State
from windlass.model.operations import Began, Begin, ChangeQueue, Claim, Finish, Finished, PutHandler, Show, Workers
from windlass.model.outcome import Verdict
from windlass.model.queue import QueueChange
from windlass.model.worker import SandboxTier

STORES = pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)


NAMED = r"def test_s{0}_((?:item_)?\d+(?:_(?:and_)?\d+)*)_", r'"""[^"]*?\bS{0} (\d+(?:(?:, | and )\d+)*)'
IN_BRACKETS = r'"""\[([0-9, ]+)\]'


@pytest.mark.parametrize(("queue", "promises"), [(2, 35), (3, 40), (4, 33)])
def test_each_promise_has_a_test(queue: int, promises: int) -> None:
    patterns = [pattern.format(queue) for pattern in NAMED] + [IN_BRACKETS] * (queue == 3)
    texts = [file.read_text() for file in Path(__file__).parents[1].rglob("test_*.py")]
    found = [numbers for text in texts for pattern in patterns for numbers in re.findall(pattern, text)]
    named = {int(number) for numbers in found for number in re.findall(r"\d+", numbers)}
    assert sorted(set(range(1, promises + 1)) - named) == []


async def worker_of_functions(engine: Engine) -> str:
    await engine(PutHandler(task="work", handler=NewHandler(lang="sh", body="cat")))
    return await register(engine, tasks=[], handlers=True)


@STORES
async def test_no_job_is_claimed_twice_and_a_claim_is_whole(engine: Engine) -> None:
    """[13]"""
    workers = [await worker_of_functions(engine) for _ in range(4)]
    ids = {(await enqueue(engine)).id for _ in range(60)}
    taken = await asyncio.gather(*(engine(Claim(worker=one, slots=5)) for one in workers * 5))
    claimed = [one for batch in taken for one in batch]
    assert len(claimed) == 60
    assert {one.job.id for one in claimed} == ids
    for batch in taken:
        assert len({(one.job.worker, one.job.started_at) for one in batch}) <= 1
        assert {one.job.state for one in batch} <= {State.RUNNING}


@STORES
async def test_the_jobs_of_a_worker_that_died_run_elsewhere(engine: Engine, clock: VirtualClock) -> None:
    """[15]"""
    dead = await worker_of_functions(engine)
    job = await enqueue(engine)
    await take(engine, dead)
    alive = await worker_of_functions(engine)
    assert await engine(Claim(worker=alive, slots=1)) == []
    clock.advance(engine.context.settings.lease + 1)
    await reclaim(engine)
    alive = await worker_of_functions(engine)
    again = await take(engine, alive)
    assert (again.job.id, again.job.losses) == (job.id, 1)
    await finish(engine, alive, again)
    assert await state(engine, job.id) is State.SUCCEEDED


@STORES
async def test_workers_have_names_of_their_own_and_a_dead_one_is_forgotten(engine: Engine, clock: VirtualClock) -> None:
    """[25]"""
    one, other = await worker_of_functions(engine), await worker_of_functions(engine)
    assert one != other
    clock.advance(engine.context.settings.lease + 1)
    third = await worker_of_functions(engine)
    assert [worker.id for worker in await engine(Workers())] == [third]


@STORES
async def test_what_is_stopped_takes_jobs_in_and_runs_them_when_it_is_started(engine: Engine) -> None:
    """[37]"""
    worker = await worker_of_functions(engine)
    running = await enqueue(engine)
    held = await take(engine, worker)
    await engine(ChangeQueue(queue="default", change=QueueChange(paused=True)))
    job = await enqueue(engine)
    assert await engine(Claim(worker=worker, slots=5)) == []
    await finish(engine, worker, held)
    assert await state(engine, running.id) is State.SUCCEEDED, "what runs goes on"
    await engine(ChangeQueue(queue="default", change=QueueChange(paused=False)))
    assert (await take(engine, worker)).job.id == job.id


@STORES
async def test_the_sandbox_and_the_version_of_a_handler_that_ran_stay_in_the_jobs_record(engine: Engine) -> None:
    async def shown(id: str) -> tuple[str | None, str | None, int | None]:
        job = await engine(Show(id=id))
        return job.node, job.sandbox, job.handler_version

    worker = await register(engine, sandbox="confined", node="box")
    plain, kept = await enqueue(engine), await enqueue(engine, max_retry=3)
    first = await take(engine, worker)
    assert await shown(plain.id) == ("box", None, None), "what its worker could do says nothing of this run"
    await finish(engine, worker, first)
    assert await shown(plain.id) == ("box", None, None)

    second = await take(engine, worker)
    began = Began(id=kept.id, token=second.token, pid=7, sandbox="confined", handler_version=3)
    await engine(Begin(worker=worker, jobs=[began]))
    assert await shown(kept.id) == ("box", "confined", 3)
    await finish(engine, worker, second, Verdict.ERROR, delay=0.0, sandbox="isolated", handler_version=4)
    assert await shown(kept.id) == ("box", "isolated", 4)
    await promote(engine)
    other = await register(engine, node="other")
    third = await take(engine, other)
    assert await shown(kept.id) == ("other", None, None), "it is said anew of each run"
    await finish(engine, other, third, handler_version=5)
    assert await shown(kept.id) == ("other", None, 5)


@STORES
async def test_a_first_run_that_ends_well_at_once_is_recorded_with_its_handler(engine: Engine) -> None:
    jobs = [await enqueue(engine) for _ in range(3)]
    worker = await register(engine, node="box")
    claimed = await engine(Claim(worker=worker, slots=3))
    tiers: list[SandboxTier | None] = [None, "limits", "isolated"]
    reports = [
        Finished(id=one.job.id, token=one.token, outcome=Verdict.OK, handler_version=n or None, sandbox=tier)
        for n, (one, tier) in enumerate(zip(claimed, tiers, strict=True))
    ]
    assert (await engine(Finish(worker=worker, jobs=reports))).refused == []
    found = [await engine(Show(id=job.id)) for job in jobs]
    assert [(one.node, one.sandbox, one.handler_version) for one in found] == [
        ("box", None, None),
        ("box", "limits", 1),
        ("box", "isolated", 2),
    ]
