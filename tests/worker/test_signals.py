"""How a worker ends, rests and goes on: signals from outside, and a store that is away for a while."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.freezing import freeze
from tests.support.patience import PATIENCE
from tests.support.servers import StartServer
from tests.support.worker_harness import ON_A_FILE, MakeHarness, WorkerHarness, tell, until
from windlass.job_handle import Job
from windlass.model.job import State


def three_that_stay(harness: WorkerHarness) -> list[Job[Any]]:
    """Jobs of three kinds that run until the test lets them go."""
    tasks = harness.tasks
    jobs = [tasks.stay.enqueue("a"), tasks.co_stay.enqueue("b"), tasks.stay.using(isolate=True).enqueue("c")]
    harness.noted("start", 3)
    return jobs


def let_go(harness: WorkerHarness) -> None:
    (harness.folder / "let go").touch()


def test_an_idle_worker_ends_promptly(harness: WorkerHarness) -> None:
    worker = harness.start()
    started = time.monotonic()
    assert worker.stop() == 0
    took = time.monotonic() - started
    tell(f"ended after {took:.2f} s")


@pytest.mark.parametrize(
    ("harness", "number"),
    [("file", signal.SIGTERM), ("redis", signal.SIGTERM), ("file", signal.SIGINT)],
    indirect=["harness"],
)
def test_a_first_signal_lets_running_jobs_finish(harness: WorkerHarness, number: signal.Signals) -> None:
    """S4 28: TERM."""
    worker = harness.start("-c", "4")
    running = three_that_stay(harness)
    if number is signal.SIGINT:
        worker.type_ctrl_c()
    else:
        worker.send(number)
    worker.hear("stopping; 3 jobs")
    late = harness.tasks.nap.enqueue(0.0)
    let_go(harness)
    assert worker.ended() == 0
    for job in running:
        record = harness.ended(job)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    assert late.refresh().state is State.QUEUED


@pytest.mark.parametrize(
    ("harness", "way"),
    [("file", "past the grace"), ("redis", "past the grace"), ("file", "a second signal")],
    indirect=["harness"],
)
def test_jobs_that_do_not_finish_in_time_are_given_back(harness: WorkerHarness, way: str) -> None:
    """S4 28: a second signal."""
    worker = harness.start("--grace", "0.5s" if way == "past the grace" else "600s")
    jobs = three_that_stay(harness)
    worker.send(signal.SIGTERM)
    if way == "a second signal":
        worker.hear("stopping; 3 jobs")
        worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert [(record.state, record.attempt) for record in (job.refresh() for job in jobs)] == [(State.QUEUED, 0)] * 3
    assert not harness.processes()
    assert not harness.notes("end")
    let_go(harness)
    harness.start("--contexts", "1")
    for job in jobs:
        record = harness.ended(job)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 1)


def test_quit_stops_at_once_and_the_lease_brings_the_job_back(harness: WorkerHarness) -> None:
    worker = harness.start(lease="1s")
    job = harness.tasks.stay.enqueue("twice")
    harness.noted("start")
    worker.send(signal.SIGQUIT)
    assert worker.ended() == 75
    until(lambda: not harness.processes())
    let_go(harness)
    harness.start()
    record = harness.ended(job)
    assert (record.state, record.attempt, record.losses) == (State.SUCCEEDED, 2, 1)


def test_a_paused_worker_claims_nothing_until_it_is_resumed(harness: WorkerHarness) -> None:
    add = harness.tasks.add
    worker = harness.start()
    worker.send(signal.SIGCONT)  # as after STOP: there is nothing to go on with
    assert add.enqueue(1, 0).result(PATIENCE) == 1
    assert "claiming" not in worker.said
    worker.send(signal.SIGTSTP)
    worker.hear("claiming paused")
    job = add.enqueue(1, 1)
    with pytest.raises(TimeoutError):
        job.result(0.5)
    worker.send(signal.SIGCONT)
    assert job.result(PATIENCE) == 2
    for _ in range(20):
        worker.send(signal.SIGTSTP)
        worker.send(signal.SIGCONT)
    job = add.enqueue(2, 2)
    while job.state is not State.SUCCEEDED:
        worker.send(signal.SIGCONT)  # two that come at once may change places
    worker.send(signal.SIGTSTP)
    assert worker.stop() == 0


@ON_A_FILE
def test_a_worker_that_was_frozen_past_its_lease_stops_what_it_has_lost(harness: WorkerHarness) -> None:
    frozen = harness.start("--contexts", "1", lease="1s")
    job, deaf = harness.tasks.stay.enqueue("twice"), harness.tasks.deaf.enqueue()
    (first,) = harness.noted("start")
    harness.noted("began")
    freeze(frozen.pid, harness.store)
    harness.start("--contexts", "1")
    harness.noted("start", 2)
    harness.noted("began", 2)
    frozen.send(signal.SIGCONT)
    frozen.hear(f"lost job {job.id}")
    pid = int(first.split()[1])
    until(lambda: not Path(f"/proc/{pid}").exists())
    (harness.folder / "let go").touch()
    assert deaf.cancel()
    for one, state in ((job, State.SUCCEEDED), (deaf, State.CANCELLED)):
        record = harness.ended(one)
        assert (record.state, record.attempt, record.losses) == (state, 2, 1)
    assert harness.notes("end") == ["twice 2"]


def test_a_worker_ends_promptly_under_load(harness: WorkerHarness) -> None:
    """Whatever it is doing at that moment: claiming, gathering, reporting."""
    nap = harness.tasks.co_nap
    worker = harness.start("-c", "8")
    jobs = nap.map([(0.005, "x")] * 2000)
    harness.noted("end", 300)
    started = time.monotonic()
    assert worker.stop() == 0
    took = time.monotonic() - started
    tell(f"ended after {took:.2f} s")
    harness.burst("-c", "100")
    assert [job.refresh().attempt for job in jobs[:300]] == [1] * 300
    assert len(harness.notes("end")) == 2000


def test_a_worker_goes_on_by_itself_when_its_store_comes_back(
    start_server: StartServer, make_harness: MakeHarness
) -> None:
    server = start_server("redis", fsync="always")
    harness = make_harness(store=server.url)
    tasks = harness.tasks
    worker = harness.start("-c", "8", "--contexts", "1", lease="30s")
    over_it = tasks.co_nap.enqueue(60.0, "over")
    within = [tasks.nap.enqueue(1.0, f"within{number}") for number in range(3)]
    harness.noted("start", 4)
    server.stop()
    harness.noted("end", 3)
    worker.hear("cannot (claim|report)")
    time.sleep(2)
    server.start()
    harness.app.close()  # the connection of this process has died with the server
    back_at = time.monotonic()
    for job in within:
        record = harness.ended(job)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    tell(f"reported {time.monotonic() - back_at:.2f} s after the store was back")
    assert tasks.add.enqueue(1, 1).result(PATIENCE) == 2
    tell(f"worked again {time.monotonic() - back_at:.2f} s after")
    worker.hear("cannot claim[^$]*claims are answered")
    over_it.cancel()
    record = harness.ended(over_it)
    assert (record.state, record.attempt) == (State.CANCELLED, 1)
    assert len(harness.notes("start")) == 4


def test_a_worker_can_be_stopped_while_its_store_is_away(start_server: StartServer, make_harness: MakeHarness) -> None:
    server = start_server("redis", fsync="always")
    harness = make_harness(store=server.url)
    worker = harness.start("-c", "8", lease="2s")
    job = harness.tasks.stay.enqueue("over")
    harness.noted("start")
    server.stop()
    worker.hear("cannot")
    let_go(harness)
    harness.noted("end")
    assert worker.stop() == 0
    assert "leases will run out" in worker.said
    server.start()
    harness.app.close()  # the connection of this process has died with the server
    harness.start("-c", "8", lease="2s")
    assert harness.ended(job).state is State.SUCCEEDED


def test_a_worker_that_the_queue_has_forgotten_introduces_itself_again(
    start_server: StartServer, make_harness: MakeHarness
) -> None:
    server = start_server("redis")
    harness = make_harness(store=server.url)
    worker = harness.start("-c", "8", lease="1s")
    job = harness.tasks.stay.enqueue("forgotten")
    harness.noted("start")
    server.ask("FLUSHALL")
    worker.hear("registered again")
    let_go(harness)
    assert harness.tasks.add.enqueue(1, 1).result(PATIENCE) == 2
    worker.hear("reports refused|lost job " + job.id)
    assert worker.stop() == 0
