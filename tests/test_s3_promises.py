"""The forty promises of an older function queue: those that no other file of tests names, and that each has a test.

A test names its promises by their numbers: in brackets at the start of its docstring, or in its own name.
"""

import asyncio
import re
from pathlib import Path

import pytest

from tests.engines import enqueue, finish, register, state, take
from tests.worlds import VirtualClock
from windlass.engine import Engine
from windlass.engine.upkeep import reclaim
from windlass.model.handler import NewHandler
from windlass.model.job import State
from windlass.model.operations import ChangeQueue, Claim, PutHandler, Show, Workers
from windlass.model.queue import QueueChange

STORES = pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)


def test_each_promise_has_a_test() -> None:
    named: set[int] = set()
    for file in Path(__file__).parent.glob("test_*.py"):
        text = file.read_text()
        named.update(int(number) for number in re.findall(r"def test_s3_item_(\d+)", text))
        for numbers in re.findall(r'"""\[([0-9, ]+)\]', text):
            named.update(map(int, numbers.split(",")))
    assert sorted(set(range(1, 41)) - named) == []


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
    clock.advance(engine.desk.settings.lease + 1)
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
    clock.advance(engine.desk.settings.lease + 1)
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
async def test_the_sandbox_of_its_worker_stays_in_a_jobs_record(engine: Engine) -> None:
    await engine(PutHandler(task="work", handler=NewHandler(lang="sh", body="cat")))
    job = await enqueue(engine)
    worker = await register(engine, tasks=[], handlers=True, sandbox="confined", node="box")
    claimed = await take(engine, worker)
    assert (claimed.job.node, claimed.job.sandbox) == ("box", "confined")
    await finish(engine, worker, claimed)
    found = await engine(Show(id=job.id))
    assert (found.node, found.sandbox) == ("box", "confined")
    other = await enqueue(engine, "other")
    plain = await register(engine)
    await finish(engine, plain, await take(engine, plain))
    assert (await engine(Show(id=other.id))).sandbox is None
