"""Jobs whose submitter is gone: who attends to a job, how often that is written down, and what becomes of the rest."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import pytest

from tests.support.engines import enqueue, finish, register, take
from tests.support.http_servers import LOCAL, served
from tests.support.patience import PATIENCE
from tests.support.stores import VirtualClock
from tests.support.worker_harness import WorkerHarness, until
from windlass.client import Client
from windlass.engine import Engine, upkeep
from windlass.model.errors import Invalid
from windlass.model.job import FINISHED, Job, Reason, State
from windlass.model.lifecycle import Move, Step
from windlass.model.limit import NewLimit, Which
from windlass.model.match import Match
from windlass.model.new_job import JobOptions
from windlass.model.operations import (
    Alive,
    Claim,
    Count,
    EnqueueLines,
    GetEstimate,
    GetOutput,
    GetResult,
    GetStats,
    List,
    Operation,
    Output,
    PutLimit,
    Renew,
    Rerun,
    Service,
    Show,
)
from windlass.model.outcome import Verdict
from windlass.store.flow import Room
from windlass.store.protocol import Store


async def look(engine: Engine, id: str) -> Job:
    """A job as it is, without attending to it."""
    (job,) = [job for job in (await engine(List())).jobs if job.id == id]
    return job


class Attended:
    """How often the owner timeout of a job was reset in the store."""

    def __init__(self, store: Store) -> None:
        self.count = 0
        self._heard = asyncio.Event()
        self._apply = store.jobs.apply
        store.jobs.apply = self._told  # type: ignore[method-assign]

    async def _told(self, moves: Sequence[Move], room: Room | None = None) -> list[bool]:
        applied = await self._apply(moves, room)
        if any(move.step is Step.TOUCH_OWNER for move in moves):
            self.count += 1
            self._heard.set()
        return applied

    async def again(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._heard.wait()
        self._heard.clear()


@pytest.fixture
def attended(store: Store, engine: Engine) -> Attended:
    assert engine.context
    return Attended(store)


async def test_a_job_without_a_client_is_cancelled_for_a_reason_of_its_own(engine: Engine, clock: VirtualClock) -> None:
    left, other = await enqueue(engine, owner_timeout=60.0), await enqueue(engine)
    clock.advance(59.9)
    assert await upkeep.abandon(engine) == 0
    clock.advance(0.1)
    assert await upkeep.abandon(engine) == 1
    assert await upkeep.abandon(engine) == 0
    found = await look(engine, left.id)
    assert (found.state, found.reason, found.error) == (State.CANCELLED, Reason.ABANDONED, None)
    assert (await look(engine, other.id)).state is State.QUEUED
    (counts,) = (await engine(GetStats())).queues
    assert counts.states == {State.CANCELLED: 1, State.QUEUED: 1}


async def test_an_abandoned_job_that_runs_is_stopped_and_gives_its_place_to_the_next(
    engine: Engine, clock: VirtualClock
) -> None:
    await engine(PutLimit(name="one", limit=NewLimit(match=Which(queue="default"), running=1)))
    left, following = await enqueue(engine, owner_timeout=10.0), await enqueue(engine)
    worker = await register(engine)
    taken = await take(engine, worker)
    held = Alive(id=left.id, token=taken.token)
    clock.advance(10)
    assert (await engine(Renew(worker=worker, jobs=[held]))).orders == []
    assert await upkeep.abandon(engine) == 1
    (order,) = (await engine(Renew(worker=worker, jobs=[held]))).orders
    assert (order.id, order.order) == (left.id, "cancel")
    assert await engine(Claim(worker=worker)) == [], "its place is taken until it has stopped"
    assert await upkeep.abandon(engine) == 0, "it is ordered once"
    await finish(engine, worker, taken, Verdict.ERROR)
    found = await look(engine, left.id)
    assert (found.state, found.reason) == (State.CANCELLED, Reason.ABANDONED)
    assert (await take(engine, worker)).job.id == following.id


ASKING: dict[str, Callable[[str], Operation[Any]]] = {
    "show": lambda id: Show(id=id),
    "result": lambda id: GetResult(id=id),
    "output": lambda id: GetOutput(id=id),
    "estimate": lambda id: GetEstimate(id=id),
}


@asynccontextmanager
async def in_process(engine: Engine, _: VirtualClock) -> AsyncIterator[Service]:
    yield engine


@asynccontextmanager
async def over_http(engine: Engine, clock: VirtualClock) -> AsyncIterator[Service]:
    async with served(engine, clock) as address, Client(address, LOCAL) as client:
        yield client


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING.keys())
@pytest.mark.parametrize("way", [in_process, over_http], ids=lambda way: way.__name__)
async def test_a_client_that_asks_for_a_job_restarts_its_owner_clock(
    engine: Engine, clock: VirtualClock, ask: Callable[[str], Operation[Any]], way: Any
) -> None:
    job = await enqueue(engine, owner_timeout=10.0)
    async with way(engine, clock) as service:
        for _ in range(3):
            clock.advance(9)
            with suppress(Exception):  # a result that is not there (yet) is an error over HTTP
                await service(ask(job.id))
            assert await upkeep.abandon(engine) == 0
    assert (await look(engine, job.id)).state is State.QUEUED
    clock.advance(10)
    assert await upkeep.abandon(engine) == 1


async def test_what_is_not_asked_for_by_its_id_is_not_attended_to(engine: Engine, clock: VirtualClock) -> None:
    job = await enqueue(engine, owner_timeout=10.0)
    worker = await register(engine)
    clock.advance(9)
    taken = await take(engine, worker)
    await engine(List())
    await engine(Count(match=Match(task="work")))
    await engine(Renew(worker=worker, jobs=[Alive(id=job.id, token=taken.token)]))
    await engine(Output(id=job.id, token=taken.token, stream="log", data=b"still here"))
    clock.advance(1)
    assert await upkeep.abandon(engine) == 1


async def test_asking_often_is_written_down_once_in_a_quarter_of_the_time(
    engine: Engine, clock: VirtualClock, attended: Attended
) -> None:
    job = await enqueue(engine, owner_timeout=100.0)
    for _ in range(1000):
        clock.advance(0.5)
        await engine(Show(id=job.id))
    assert attended.count == 20
    for _ in range(10):
        await engine(Show(id=(await enqueue(engine)).id))
    assert attended.count == 20, "other jobs cost nothing"
    clock.advance(100)
    assert await upkeep.abandon(engine) == 1
    await engine(Show(id=job.id))
    assert attended.count == 20, "nor does one that has ended"


async def test_a_client_that_waits_for_the_end_restarts_the_owner_clock_meanwhile(
    engine: Engine, clock: VirtualClock, attended: Attended
) -> None:
    job = await enqueue(engine, owner_timeout=1.0)
    waiting = asyncio.create_task(engine(GetResult(id=job.id, wait=60)))
    for _ in range(4):
        clock.advance(0.9)
        await attended.again()
        assert await upkeep.abandon(engine) == 0
    waiting.cancel()
    await asyncio.wait([waiting])
    clock.advance(1)
    assert await upkeep.abandon(engine) == 1


async def test_a_client_that_follows_a_job_restarts_its_owner_clock_even_if_it_gets_all_events(
    engine: Engine, clock: VirtualClock, attended: Attended
) -> None:
    job = await enqueue(engine, owner_timeout=1.0)

    async def follow() -> list[str]:
        async with aclosing(engine.follow_job("default", job.id)) as story:
            return [event.name async for event in story]

    following = asyncio.create_task(follow())
    for _ in range(8):
        clock.advance(0.9)
        await attended.again()
        assert await upkeep.abandon(engine) == 0
    following.cancel()
    await asyncio.wait([following])
    clock.advance(1)
    assert await upkeep.abandon(engine) == 1


async def test_a_job_wanted_again_is_abandoned_again(engine: Engine, clock: VirtualClock) -> None:
    job = await enqueue(engine, owner_timeout=10.0)
    clock.advance(10)
    assert await upkeep.abandon(engine) == 1
    clock.advance(100)
    assert (await engine(Rerun(ids=[job.id]))).changed == 1
    clock.advance(9)
    assert await upkeep.abandon(engine) == 0
    clock.advance(1)
    assert await upkeep.abandon(engine) == 1


async def test_all_jobs_of_a_text_may_have_the_clock(engine: Engine, clock: VirtualClock) -> None:
    await engine(EnqueueLines(task="work", text="a\nb\nc", options=JobOptions(owner_timeout=10.0)))
    clock.advance(10)
    assert await upkeep.abandon(engine) == 3


@pytest.mark.parametrize("seconds", [0.0, 0.999, -1.0, float("inf")])
async def test_an_owner_timeout_out_of_range_is_refused(engine: Engine, seconds: float) -> None:
    with pytest.raises(Invalid) as fault:
        await enqueue(engine, owner_timeout=seconds)
    assert fault.value.at == "job.owner_timeout"


# With real processes


def records(harness: WorkerHarness) -> list[Job]:
    return harness.app.link.ask(List(tenant=harness.tenant)).jobs


SUBMIT = """
import os, sys, tasks
job = tasks.app.tasks[sys.argv[1]].using(owner_timeout=4).enqueue()
print(job.id, flush=True)
try:
    job.result()
finally:
    print("the job has ended", flush=True)
"""


def test_the_job_of_a_submitter_that_was_killed_is_stopped_and_its_place_is_free(harness: WorkerHarness) -> None:
    harness.start("-c", "1")
    program = [sys.executable, "-c", SUBMIT, "asleep"]
    submitter = subprocess.Popen(program, cwd=harness.folder, env=harness.environ, stdout=subprocess.PIPE, text=True)
    assert submitter.stdout is not None
    id = submitter.stdout.readline().strip()
    harness.noted("began")
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 5)
    (job,) = records(harness)
    assert (job.id, job.state, job.reason) == (id, State.RUNNING, None), "while he waits, it goes on"
    submitter.kill()
    assert "ended" not in submitter.communicate()[0]
    until(lambda: records(harness)[0].state in FINISHED)
    (job,) = records(harness)
    assert (job.state, job.reason) == (State.CANCELLED, Reason.ABANDONED)
    assert harness.tasks.add.enqueue(1, 2).result(timeout=PATIENCE) == 3


def test_on_the_command_line_waiting_attends_and_leaving_does_not(harness: WorkerHarness) -> None:
    harness.start("-c", "2")
    words = ("enqueue", "nap", "--owner-timeout", "4s", "--tenant", harness.tenant)
    done = harness.run(*words, '{"seconds": 5.5}', "--wait")
    assert done.returncode == 0, done.stderr
    left = harness.run(*words, '{"seconds": 60}')
    assert left.returncode == 0, left.stderr
    until(lambda: all(job.state in FINISHED for job in records(harness)))
    found = {job.id: (job.state, job.reason) for job in records(harness)}
    assert found.pop(left.stdout.strip()) == (State.CANCELLED, Reason.ABANDONED)
    assert list(found.values()) == [(State.SUCCEEDED, None)]
    refused = harness.run("enqueue", "nap", "--owner-timeout", "0", "--tenant", harness.tenant)
    assert (refused.returncode, "owner_timeout" in refused.stderr) == (2, True)
