"""Batches of calls under real workers: how they are gathered, and that each call stays a job of its own."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_servers import Process
from tests.support.patience import PATIENCE
from tests.support.servers import Server
from tests.support.worker_harness import STORES, MakeHarness, WorkerHarness, never, until
from windlass.job_handle import Job
from windlass.model.job import Reason, State

SOURCE = Path(__file__).parents[1] / "support" / "batches_app.py"
SHORT_LEASE = "2s"

each_way = pytest.mark.parametrize("name", ["held", "co_held"])


@pytest.fixture(params=STORES)
def shop(request: pytest.FixtureRequest, make_harness: MakeHarness) -> WorkerHarness:
    """The tasks with batches, on each kind of store in turn."""
    if request.param == "file":
        return make_harness(SOURCE.read_text())
    server = request.getfixturevalue("redis_server")
    assert isinstance(server, Server)
    return make_harness(SOURCE.read_text(), store=server.url)


def batches(shop: WorkerHarness) -> list[list[str]]:
    return [line.split() for line in shop.notes("batch")]


def sizes(shop: WorkerHarness) -> list[int]:
    return sorted(map(len, batches(shop)))


def states(jobs: list[Job[Any]]) -> list[State]:
    return [job.state for job in jobs]


@pytest.mark.parametrize("name", ["full", "co_full"])
def test_a_batch_begins_when_it_is_full(shop: WorkerHarness, name: str) -> None:
    worker = shop.start()
    jobs = [job for n in range(20) for job in getattr(shop.tasks, name).map([n])]
    assert [job.result(timeout=PATIENCE) for job in jobs] == [2 * n for n in range(20)]
    assert sizes(shop) == [10, 10]
    assert sorted(int(n) for batch in batches(shop) for n in batch) == list(range(20))
    assert all(job.refresh().attempt == 1 for job in jobs)
    assert worker.stop() == 0


def test_a_batch_begins_when_its_worker_has_no_room_for_more(shop: WorkerHarness) -> None:
    jobs = shop.tasks.full.map(range(6))
    shop.start("-c", "3")
    assert [job.result(timeout=PATIENCE) for job in jobs] == [2 * n for n in range(6)]
    assert sizes(shop) == [3, 3]


def test_a_batch_begins_some_time_after_its_first_call(shop: WorkerHarness) -> None:
    jobs = shop.tasks.soon.map(range(5))
    shop.start()
    assert [job.result(timeout=PATIENCE) for job in jobs] == [None] * 5
    assert sum(sizes(shop)) == 5


def test_a_worker_of_a_server_gathers_too(shop: WorkerHarness, tmp_path: Path) -> None:
    server = Process(tmp_path, "--no-worker", store=shop.store)
    server.start()
    try:
        shop.start("--server", server.address, WINDLASS_TOKEN=server.token)
        jobs = shop.tasks.full.map(range(10))
        assert [job.result(timeout=PATIENCE) for job in jobs] == [2 * n for n in range(10)]
        assert sizes(shop) == [10]
    finally:
        server.kill()


def test_each_item_has_its_own_outcome(shop: WorkerHarness) -> None:
    jobs = shop.tasks.mixed.map(["ok", "retry", "fail", "error"])
    shop.start()
    assert jobs[0].result(timeout=PATIENCE) == "ok"
    assert shop.ended(jobs[2]).state is State.FAILED
    more = shop.tasks.mixed.map(["fine", "good"])  # with the two that run again, they are four
    assert [job.result(timeout=PATIENCE) for job in (jobs[1], jobs[3], *more)] == ["retry", "error", "fine", "good"]
    assert [job.refresh().attempt for job in jobs] == [1, 2, 1, 2]
    assert sizes(shop) == [4, 4]
    record = jobs[2].refresh()
    assert record.error is not None
    assert record.error.message == "no"


@each_way
def test_a_cancelled_item_leaves_the_others_alone(shop: WorkerHarness, name: str) -> None:
    jobs = getattr(shop.tasks, name).map([1, 2, 3])
    shop.start()
    shop.noted("batch")
    assert jobs[1].cancel()
    assert shop.ended(jobs[1]).state is State.CANCELLED
    (shop.folder / "go").touch()
    assert [jobs[n].result(timeout=PATIENCE) for n in (0, 2)] == [1, 3]
    assert states(jobs) == [State.SUCCEEDED, State.CANCELLED, State.SUCCEEDED]
    assert len(shop.notes("done")) == 1
    for n in (0, 2):
        assert b"".join(chunk.data for chunk in jobs[n].output()) == b"for each of them\n"


@each_way
def test_a_batch_all_of_whose_items_are_cancelled_is_stopped(shop: WorkerHarness, name: str) -> None:
    jobs = getattr(shop.tasks, name).map([1, 2, 3])
    shop.start()
    shop.noted("batch")
    for job in jobs:
        assert job.cancel()
    for job in jobs:
        assert shop.ended(job).state is State.CANCELLED
    after = shop.tasks.full.map(range(10))
    assert [job.result(timeout=PATIENCE) for job in after] == [2 * n for n in range(10)]
    assert shop.notes("done") == []


def test_an_item_is_cancelled_while_its_batch_is_gathered(shop: WorkerHarness) -> None:
    jobs = shop.tasks.held.map([1, 2])
    shop.start()
    until(lambda: states(jobs) == [State.RUNNING] * 2)
    assert jobs[0].cancel()
    assert shop.ended(jobs[0]).state is State.CANCELLED
    jobs += shop.tasks.held.map([3, 4])
    assert shop.noted("batch") == ["2 3 4"]
    (shop.folder / "go").touch()
    assert [job.result(timeout=PATIENCE) for job in jobs[1:]] == [2, 3, 4]


def test_a_batch_that_takes_too_long_is_a_timeout_of_each_of_its_items(shop: WorkerHarness) -> None:
    """Also of those that came later, and have time left."""
    shop.start()
    jobs = shop.tasks.slow.map([1])
    until(lambda: states(jobs) == [State.RUNNING])
    time.sleep(1.0)  # if it has begun meanwhile, on a machine that is slow, those are a batch of their own
    jobs += shop.tasks.slow.map([2, 3])
    for job in jobs:
        record = shop.ended(job)
        assert (record.state, record.reason, record.attempt) == (State.FAILED, Reason.TIMEOUT, 1)


def test_items_of_a_process_that_has_died_run_again_each_alone(shop: WorkerHarness) -> None:
    jobs = shop.tasks.deadly.map([1, -1, 3])
    shop.start()
    assert [jobs[n].result(timeout=PATIENCE) for n in (0, 2)] == [1, 3]
    record = shop.ended(jobs[1])
    assert (record.state, record.crashes) == (State.FAILED, 3)
    assert sizes(shop) == [1, 1, 1, 1, 3]


@each_way
def test_the_items_of_a_killed_worker_run_again(shop: WorkerHarness, name: str) -> None:
    jobs = getattr(shop.tasks, name).map([1, 2, 3])
    worker = shop.start(lease=SHORT_LEASE)
    shop.noted("batch")
    worker.send(signal.SIGKILL)
    worker.ended()
    (shop.folder / "go").touch()
    shop.start()
    assert [job.result(timeout=PATIENCE) for job in jobs] == [1, 2, 3]
    assert [job.refresh().losses for job in jobs] == [1, 1, 1]


def test_leases_are_kept_while_a_batch_is_gathered_and_while_it_runs(shop: WorkerHarness) -> None:
    """Another worker, which takes part in upkeep, takes none of them for lost."""
    shop.start(lease=SHORT_LEASE)
    shop.start("-q", "elsewhere", lease=SHORT_LEASE)
    jobs = shop.tasks.held.map([1, 2])
    until(lambda: states(jobs) == [State.RUNNING] * 2)
    never(lambda: any(job.refresh().losses for job in jobs), during=4.0)
    jobs += shop.tasks.held.map([3])
    assert shop.noted("batch") == ["1 2 3"]
    never(lambda: any(job.refresh().losses for job in jobs), during=4.0)
    (shop.folder / "go").touch()
    assert [job.result(timeout=PATIENCE) for job in jobs] == [1, 2, 3]


def test_a_worker_that_stops_releases_what_it_has_gathered(shop: WorkerHarness) -> None:
    jobs = shop.tasks.held.using(max_retry=0).map([1, 2])
    worker = shop.start("--grace", "600s")
    until(lambda: states(jobs) == [State.RUNNING] * 2)
    assert worker.stop() == 0
    assert states(jobs) == [State.QUEUED] * 2
    assert shop.notes("batch") == []
    assert [job.refresh().losses for job in jobs] == [0, 0]
    (shop.folder / "go").touch()
    shop.start("-c", "2")
    assert [job.result(timeout=PATIENCE) for job in jobs] == [1, 2]


@pytest.mark.parametrize("on_lost", ["fail", "adopt"])
def test_jobs_that_may_run_only_once_are_called_one_by_one(shop: WorkerHarness, on_lost: str) -> None:
    jobs = shop.tasks.full.using(on_lost=on_lost).map([1, 2])
    shop.start()
    assert [job.result(timeout=PATIENCE) for job in jobs] == [2, 4]
    assert sizes(shop) == [1, 1]


def test_a_worker_with_too_few_slots_for_a_task_says_so(shop: WorkerHarness) -> None:
    worker = shop.start("-c", "10")
    worker.hear(r"task soon takes 100 calls at once, this worker 10: -c 100 allows more")
    assert "task full" not in worker.said
