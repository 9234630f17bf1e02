"""Workers that die or freeze while their claim is parked: no job is lost, and all run when a lease is over."""

import signal
import time

import pytest

from tests.support.patience import PATIENCE
from tests.support.servers import Server, StartServer
from tests.support.worker_harness import MakeHarness, Worker, WorkerHarness, tell, until
from windlass.model.job import State

LEASE = 3.0


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server("redis")


@pytest.fixture
def shop(server: Server, make_harness: MakeHarness) -> WorkerHarness:
    return make_harness(store=server.url)


def idle_worker(shop: WorkerHarness, server: Server) -> Worker:
    """A worker whose claim is parked in the store."""
    before = parked_claims(server)
    worker = shop.start("-c", "4", "--contexts", "1", lease=f"{LEASE}s")
    until(lambda: parked_claims(server) - before)
    return worker


def parked_claims(server: Server) -> set[str]:
    return set(server.ask("KEYS", "wl{0}:parked_claim:*").splitlines())


def enqueue_one_by_one(shop: WorkerHarness, number: int) -> list[str]:
    return [shop.tasks.add.enqueue(n, 1).id for n in range(number)]


def all_end_well(shop: WorkerHarness, jobs: list[str]) -> None:
    begun = time.monotonic()
    for id in jobs:
        assert shop.ended(shop.app.job(id)).state is State.SUCCEEDED
    tell(f"the last of {len(jobs)} ended after {time.monotonic() - begun:.2f} s")
    assert {note.split()[0] for note in shop.notes("add")} >= set(jobs)


def test_a_killed_workers_parked_claim_takes_no_job_along(shop: WorkerHarness, server: Server) -> None:
    jobs: list[str] = []
    for _ in range(3):
        worker = idle_worker(shop, server)
        worker.send(signal.SIGKILL)
        jobs += enqueue_one_by_one(shop, 4)
        worker.ended()
    idle_worker(shop, server)
    all_end_well(shop, jobs)


def test_a_frozen_workers_parked_claim_takes_one_job_for_one_lease(shop: WorkerHarness, server: Server) -> None:
    frozen = idle_worker(shop, server)
    frozen.send(signal.SIGSTOP)
    jobs = enqueue_one_by_one(shop, 1)
    assert shop.app.job(jobs[0]).state is State.RUNNING, "a frozen worker still has its connection"
    idle_worker(shop, server)
    jobs += enqueue_one_by_one(shop, 5)
    all_end_well(shop, jobs)
    assert [shop.app.job(id).refresh().losses for id in jobs] == [1, 0, 0, 0, 0, 0]
    frozen.send(signal.SIGCONT)
    assert frozen.stop() == 0
    assert shop.app.job(jobs[0]).refresh().losses == 1, "its late report changed nothing"


TELLS = """
import os
from windlass import Windlass, current
app = Windlass(tenant=os.environ["HARNESS_TENANT"])

@app.task
def tell(word: str) -> dict[str, str]:
    return {name: repr(getattr(current.job, name)) for name in type(current.job).__annotations__} | {"word": word}
"""


def test_a_job_knows_the_same_of_itself_however_it_came(server: Server, make_harness: MakeHarness) -> None:
    shop = make_harness(TELLS, server.url)
    early = shop.tasks.tell.enqueue("w")
    worker = idle_worker(shop, server)
    told = [early.result(timeout=PATIENCE)]
    for _ in range(3):
        until(lambda: parked_claims(server))
        job = shop.tasks.tell.enqueue("w")
        told.append(job.result(timeout=PATIENCE))
        assert told[-1]["id"] == repr(job.id)
        assert told[-1]["created_at"] == repr(job.refresh().created_at)
    for one in told:
        del one["id"], one["created_at"]
    assert told == [told[0]] * 4
    assert worker.stop() == 0
