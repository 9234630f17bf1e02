"""What people order a worker to do while it runs: pause, resume, stop. Real processes, on each kind of store."""

import json
import signal
from typing import Any

import pytest

from tests.support.engines import register
from tests.support.patience import PATIENCE
from tests.support.push_servers import OK, Station, receiver
from tests.support.push_servers import until as until_so
from tests.support.worker_harness import WorkerHarness, until
from windlass.engine import Engine
from windlass.engine.workers import ORDERS
from windlass.model.errors import Denied, Missing
from windlass.model.job import State
from windlass.model.limit import Pause
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import PauseWorker, Register, StopWorker, Unregister, Workers
from windlass.model.worker import NewWorker


def listed(harness: WorkerHarness) -> list[dict[str, Any]]:
    found = json.loads(harness.run("workers", "ls", "--json", "--tenant", harness.tenant).stdout)
    assert isinstance(found, list)
    return [one for one in found if one["tenant"] == harness.tenant]


def order(harness: WorkerHarness, *words: str) -> str:
    done = harness.run("workers", *words, "--tenant", harness.tenant)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_worker_that_is_ordered_to_pause_runs_on_and_claims_nothing_until_it_is_resumed(
    harness: WorkerHarness,
) -> None:
    worker = harness.start("--name", "web-1", "-c", "4")
    running = harness.tasks.stay.enqueue("a")
    harness.noted("start")
    said = order(harness, "pause", "web-1", "--why", "looking for a leak")
    assert "web-1: paus" in said
    worker.hear("claiming paused by an order")
    until(lambda: listed(harness)[0]["draining"])
    (shown,) = listed(harness)
    assert shown["orders"]["pause"]["why"] == "looking for a leak"
    assert "paused: looking for a leak" in harness.run("workers", "ls", "--tenant", harness.tenant).stdout
    waiting = harness.tasks.add.enqueue(1, 1)
    (harness.folder / "let go a").touch()
    assert harness.ended(running).state is State.SUCCEEDED
    assert waiting.refresh().state is State.QUEUED
    assert "web-1: resumed" in order(harness, "resume", shown["id"])
    assert waiting.result(PATIENCE) == 2
    until(lambda: not listed(harness)[0]["draining"])


def test_a_worker_that_is_paused_twice_is_resumed_twice(harness: WorkerHarness) -> None:
    """By a signal and by an order: neither resumes what the other has paused."""
    worker = harness.start("--name", "web-1")
    worker.send(signal.SIGTSTP)
    worker.hear("claiming paused by a signal\n")
    order(harness, "pause", "web-1")
    worker.hear("claiming paused by a signal and an order\n")
    worker.send(signal.SIGCONT)
    worker.hear("claiming paused by an order\n")
    job = harness.tasks.add.enqueue(1, 1)
    assert not listed(harness)[0]["running"]
    assert job.refresh().state is State.QUEUED
    order(harness, "resume", "web-1")
    assert job.result(PATIENCE) == 2


def test_a_pause_ends_by_itself(harness: WorkerHarness) -> None:
    worker = harness.start("--name", "web-1")
    order(harness, "pause", "web-1", "--for", "2s")
    worker.hear("claiming paused by an order")
    job = harness.tasks.add.enqueue(1, 1)
    assert job.result(PATIENCE) == 2
    assert "claiming resumed" in worker.said
    assert not listed(harness)[0]["orders"].get("pause")


def test_a_worker_that_is_ordered_to_stop_lets_its_jobs_end(harness: WorkerHarness) -> None:
    worker = harness.start("--name", "web-1", "--grace", "600s")
    job = harness.tasks.stay.enqueue("a")
    harness.noted("start")
    assert "web-1: stopping" in order(harness, "stop", "web-1")
    worker.hear("ordered to stop")
    worker.hear("1 job gets 600 s to finish")
    order(harness, "stop", "web-1")  # once more is not now,
    order(harness, "pause", "web-1")
    worker.hear("claiming paused by an order")  # nor is another order
    (harness.folder / "let go").touch()
    assert harness.ended(job).state is State.SUCCEEDED
    assert worker.ended() == 0
    assert listed(harness) == []


def test_a_worker_that_is_ordered_to_stop_now_gives_its_jobs_back(harness: WorkerHarness) -> None:
    worker = harness.start("--name", "web-1", "--grace", "600s")
    job = harness.tasks.stay.enqueue("a")
    harness.noted("start")
    order(harness, "stop", "web-1")
    worker.hear("1 job gets 600 s to finish")
    order(harness, "stop", "web-1", "--now")
    assert worker.ended() == 0
    record = job.refresh()
    assert (record.state, record.attempt) == (State.QUEUED, 0)
    assert not harness.processes()


def test_an_order_that_cannot_be_given_says_why(harness: WorkerHarness) -> None:
    harness.start("--name", "web-1")
    harness.start("--name", "web-1")
    twice = harness.run("workers", "stop", "web-1", "--tenant", harness.tenant)
    assert (twice.returncode, "2 workers are called web-1: name one by its id" in twice.stderr) == (4, True)
    unknown = harness.run("workers", "pause", "web-2", "--tenant", harness.tenant)
    assert (unknown.returncode, "there is no worker web-2" in unknown.stderr) == (3, True)


async def test_only_who_acts_for_all_tenants_orders_a_shared_worker(engine: Engine) -> None:
    own = await register(engine, tenant="a")
    shared = await register(engine, tenant=EVERY_TENANT)
    with pytest.raises(Denied, match="tenant -"):
        await engine(StopWorker(tenant="a", worker=shared))
    with pytest.raises(Missing):
        await engine(StopWorker(tenant="b", worker=own))
    for worker in (own, shared):
        assert (await engine(StopWorker(tenant=EVERY_TENANT, worker=worker))).orders.stop == "soon"
    stolen = (await engine(Register(tenant="b", worker=NewWorker(name="thief"), formerly=own))).worker
    orders = {one.id: one.orders.stop for one in await engine(Workers(tenant=EVERY_TENANT))}
    assert orders == {own: "soon", shared: "soon", stolen: None}


async def test_nothing_is_kept_of_orders_to_a_worker_that_is_gone(engine: Engine) -> None:
    worker = await register(engine)
    await engine(StopWorker(worker=worker))
    assert await engine.context.store.records.list(ORDERS)
    await engine(Unregister(worker=worker))
    assert not await engine.context.store.records.list(ORDERS)


async def test_no_jobs_are_sent_to_a_push_worker_that_is_paused(hub: Station) -> None:
    async with receiver(OK) as worker:
        registered = await hub.register(worker)
        await hub.ended(await hub.enqueue())
        await hub.client(PauseWorker(worker=registered.worker, pause=Pause(paused=True)))

        async def drains() -> bool:
            (found,) = await hub.client(Workers())
            return found.draining

        await until_so(drains)
        job = await hub.enqueue()
        assert len(worker.sent) == 1
        await hub.client(PauseWorker(worker=registered.worker, pause=Pause()))
        await hub.ended(job)
        assert len(worker.sent) == 2
