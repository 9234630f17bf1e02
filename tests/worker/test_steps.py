"""Durable steps under real workers: what has finished is not run again, whatever is killed and when.

`DONE` is noted at the end of a step. A step that returned to its task was kept before.
"""

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.freezing import freeze
from tests.support.http_servers import Process
from tests.support.patience import PATIENCE
from tests.support.servers import Server
from tests.support.worker_harness import STORES, MakeHarness, WorkerHarness, until
from windlass.job_handle import Job
from windlass.model.job import State

SOURCE = Path(__file__).parents[1] / "support" / "steps_app.py"
SHORT_LEASE = "2s"
PLACES = [f"{where} {name}" for name in "abc" for where in ("before", "in", "after")]
DONE = dict.fromkeys("abc", 1)


@pytest.fixture(params=STORES)
def shop(request: pytest.FixtureRequest, make_harness: MakeHarness) -> WorkerHarness:
    """The tasks with steps, on each kind of store in turn."""
    if request.param == "file":
        return make_harness(SOURCE.read_text())
    server = request.getfixturevalue("redis_server")
    assert isinstance(server, Server)
    return make_harness(SOURCE.read_text(), store=server.url)


def done(shop: WorkerHarness, job: Job[Any]) -> Counter[str]:
    """How often each step of a job came to its end."""
    return Counter(line.split()[1] for line in shop.notes("done") if line.split()[0] == job.id)


def succeeded(shop: WorkerHarness, job: Job[Any]) -> None:
    assert shop.ended(job).state is State.SUCCEEDED
    assert job.result(timeout=PATIENCE) == 3
    assert done(shop, job) == DONE
    assert [one.name for one in job.steps()] == list("abc")


def test_each_finished_step_ran_once_wherever_the_process_was_killed(shop: WorkerHarness) -> None:
    ways = (shop.tasks.alone, shop.tasks.alone_co)
    jobs = [task.enqueue(f"killed {place}") for place in PLACES for task in ways]
    shop.start()
    for job in jobs:
        succeeded(shop, job)
        assert job.refresh().crashes == 1
    assert len(shop.notes("stopped")) == len(jobs)
    begun = Counter(line.split()[1] for line in shop.notes("begun"))
    assert begun == {name: len(jobs) + len(ways) for name in "abc"}  # of each way one was killed in it, and began again


@pytest.mark.parametrize("over_http", [False, True])
def test_each_finished_step_ran_once_wherever_the_worker_was_killed(
    shop: WorkerHarness, over_http: bool, tmp_path: Path
) -> None:
    if over_http:
        server = Process(tmp_path, "--no-worker", store=shop.store)
        server.start()
        flags: tuple[str, ...] = ("--server", server.address)
        more = {"WINDLASS_TOKEN": server.token}
    else:
        server, flags, more = None, (), {}
    try:
        ways = (shop.tasks.plain, shop.tasks.co, shop.tasks.alone, shop.tasks.alone_co)
        jobs = [task.enqueue(place) for place in PLACES for task in ways]
        worker = shop.start("-c", "40", *flags, lease=SHORT_LEASE, **more)
        shop.noted("stopped", len(jobs))
        worker.send(signal.SIGKILL)
        worker.ended()
        until(lambda: not shop.processes())
        for job in jobs:
            (shop.folder / f"{job.id}.waits").unlink(missing_ok=True)
        shop.start(*flags, **more)
        for job in jobs:
            succeeded(shop, job)
            assert job.refresh().losses >= 1
    finally:
        if server is not None:
            server.kill()


def test_a_sleep_frees_the_slot_and_uses_no_attempt(shop: WorkerHarness) -> None:
    job, other = shop.tasks.sleeps.enqueue("o1", 4.0), shop.tasks.plain.enqueue()
    shop.start("-c", "1")
    shop.noted("reserved")
    until(lambda: job.state is State.SCHEDULED)
    succeeded(shop, other)
    record = shop.ended(job)
    assert (record.state, record.attempt) == (State.SUCCEEDED, 2)
    assert job.result(timeout=PATIENCE) == {"o1": 1}
    assert shop.notes("reserved") == ["o1"]
    assert shop.notes("run") == ["1", "1", "2"]
    assert shop.notes("slept") == ["1", "2"]
    assert [one.name for one in job.steps()] == ["reserve", "sleep 1"]


def test_a_plain_function_alone_in_its_process_sleeps_too(shop: WorkerHarness) -> None:
    job = shop.tasks.naps.enqueue(0.5)
    shop.start()
    assert job.result(timeout=PATIENCE) == [1]
    assert shop.notes("run") == ["1", "1"]
    shown = shop.run("jobs", "show", job.id, "--tenant", shop.tenant)
    assert "1 step" in shown.stdout
    assert "nap" in shown.stdout
    assert '"name":"nap"' in shop.run("jobs", "show", job.id, "--tenant", shop.tenant, "--json").stdout


def test_a_sleeping_job_that_is_run_before_its_time_goes_on_sleeping(shop: WorkerHarness) -> None:
    job = shop.tasks.naps.enqueue(3600.0)
    shop.start()
    until(lambda: job.state is State.SCHEDULED)
    due = job.refresh().run_at
    assert job.cancel()
    assert job.retry()
    until(lambda: len(shop.notes("run")) == 2 and job.state is State.SCHEDULED)
    again = job.refresh().run_at
    assert due is not None
    assert again is not None
    assert abs((again - due).total_seconds()) < PATIENCE


def test_a_result_that_is_too_large_fails_the_job_at_once(shop: WorkerHarness) -> None:
    job, fits = shop.tasks.large.enqueue(5 << 20), shop.tasks.large.enqueue(4_000_000)
    shop.start()
    record = shop.ended(job)
    assert record.state is State.FAILED
    assert record.error is not None
    assert "step 'large'" in record.error.message
    assert fits.result(timeout=PATIENCE) == 4_000_000
    assert sorted(shop.notes("made")) == ["4000000", str(5 << 20)]


def test_a_run_that_has_lost_its_lease_saves_no_step(shop: WorkerHarness) -> None:
    """Its worker is frozen until another has the job."""
    job = shop.tasks.waits.enqueue()
    frozen = shop.start(lease="4s")  # a busy machine must not lose it before
    shop.noted("passed")
    freeze(frozen.pid, shop.store)
    shop.start(lease="4s")
    shop.noted("passed", 2)
    (shop.folder / "go first").touch()
    shop.noted("late")
    frozen.send(signal.SIGCONT)
    frozen.hear("lost job")
    assert [one.name for one in job.steps()] == ["early"]
    (shop.folder / "go second").touch()
    assert shop.ended(job).state is State.SUCCEEDED
    assert len(shop.notes("late")) == 2
    assert len(shop.notes("went")) == 1
    assert len(shop.notes("early")) == 1
    assert [one.name for one in job.steps()] == ["early", "late"]


def test_a_run_that_outlives_its_worker_goes_on_with_its_steps(shop: WorkerHarness) -> None:
    job = shop.tasks.adopted.enqueue("gate")
    worker = shop.start(lease=SHORT_LEASE)
    shop.noted("start")
    (shop.folder / "gate a").touch()
    shop.noted("begun", 3)
    worker.send(signal.SIGKILL)
    worker.ended()
    (shop.folder / "gate b").touch()
    shop.noted("done", 2)  # its result waits for a worker
    shop.start()
    (shop.folder / "gate c").touch()
    succeeded(shop, job)
    assert (job.refresh().attempt, len(shop.notes("start"))) == (1, 1)
