"""How a worker ends, rests and goes on: signals from outside, and a store that is away for a while."""

import signal
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.servers import StartServer
from tests.workers import ON_A_FILE, MakeWorkshop, Workshop, tell, until
from windlass.model.job import State


def test_an_idle_worker_ends_promptly(workshop: Workshop) -> None:
    worker = workshop.start()
    started = time.monotonic()
    assert worker.stop() == 0
    took = time.monotonic() - started
    tell(f"ended after {took:.2f} s")


@pytest.mark.parametrize(
    ("workshop", "number"),
    [("file", signal.SIGTERM), ("redis", signal.SIGTERM), ("file", signal.SIGINT)],
    indirect=["workshop"],
)
def test_a_first_signal_lets_running_jobs_finish(workshop: Workshop, number: signal.Signals) -> None:
    """S4 28: TERM."""
    chores = workshop.chores
    worker = workshop.start("-c", "4")
    running = [chores.nap.enqueue(0.7), chores.co_nap.enqueue(0.7), chores.alone_nap.enqueue(0.7)]
    workshop.noted("start", 3)
    if number is signal.SIGINT:
        worker.type_ctrl_c()
    else:
        worker.send(number)
    worker.hear("stopping; 3 jobs")
    late = chores.nap.enqueue(0.0)
    assert worker.ended() == 0
    for job in running:
        record = workshop.ended(job)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    assert late.refresh().state is State.QUEUED


@pytest.mark.parametrize(
    ("workshop", "way"),
    [("file", "past the grace"), ("redis", "past the grace"), ("file", "a second signal")],
    indirect=["workshop"],
)
def test_jobs_that_do_not_finish_in_time_are_given_back(workshop: Workshop, way: str) -> None:
    """S4 28: a second signal."""
    chores = workshop.chores
    worker = workshop.start("--grace", "0.5s" if way == "past the grace" else "30s")
    jobs = [chores.nap.enqueue(4, "a"), chores.co_nap.enqueue(4, "b"), chores.alone_nap.enqueue(4, "c")]
    workshop.noted("start", 3)
    worker.send(signal.SIGTERM)
    if way == "a second signal":
        worker.hear("stopping; 3 jobs")
        worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert [(record.state, record.attempt) for record in (job.refresh() for job in jobs)] == [(State.QUEUED, 0)] * 3
    assert not workshop.processes()
    assert not workshop.notes("end")
    workshop.start("--contexts", "1")
    for job in jobs:
        record = workshop.ended(job)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 1)


def test_quit_stops_at_once_and_the_lease_brings_the_job_back(workshop: Workshop) -> None:
    worker = workshop.start(lease="1s")
    job = workshop.chores.nap.enqueue(1.0)
    workshop.noted("start")
    worker.send(signal.SIGQUIT)
    assert worker.ended() == 75
    until(lambda: not workshop.processes())
    workshop.start(lease="1s")
    record = workshop.ended(job)
    assert (record.state, record.attempt, record.losses) == (State.SUCCEEDED, 2, 1)


def test_a_worker_told_to_rest_claims_nothing_until_it_is_told_to_go_on(workshop: Workshop) -> None:
    add = workshop.chores.add
    worker = workshop.start()
    worker.send(signal.SIGCONT)  # as after STOP: there is nothing to go on with
    assert add.enqueue(1, 0).result(PATIENCE) == 1
    worker.send(signal.SIGTSTP)
    worker.hear("claims nothing")
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
def test_a_worker_that_was_frozen_past_its_lease_stops_what_it_has_lost(workshop: Workshop) -> None:
    frozen = workshop.start("--contexts", "1", lease="1s")
    job, deaf = workshop.chores.stay.enqueue("twice"), workshop.chores.deaf.enqueue()
    (first,) = workshop.noted("start")
    workshop.noted("began")
    frozen.send(signal.SIGSTOP)
    workshop.start("--contexts", "1", lease="1s")
    workshop.noted("start", 2)
    workshop.noted("began", 2)
    frozen.send(signal.SIGCONT)
    frozen.hear(f"lost job {job.id}")
    pid = int(first.split()[1])
    until(lambda: not Path(f"/proc/{pid}").exists())
    (workshop.folder / "let go").touch()
    assert deaf.cancel()
    for one, state in ((job, State.SUCCEEDED), (deaf, State.CANCELLED)):
        record = workshop.ended(one)
        assert (record.state, record.attempt, record.losses) == (state, 2, 1)
    assert workshop.notes("end") == ["twice 2"]


def test_a_worker_ends_promptly_under_load(workshop: Workshop) -> None:
    """Whatever it is doing at that moment: claiming, gathering, reporting."""
    nap = workshop.chores.co_nap
    worker = workshop.start("-c", "8")
    jobs = nap.map([(0.005, "x")] * 2000)
    workshop.noted("end", 300)
    started = time.monotonic()
    assert worker.stop() == 0
    took = time.monotonic() - started
    tell(f"ended after {took:.2f} s")
    workshop.burst("-c", "100")
    assert [job.refresh().attempt for job in jobs[:300]] == [1] * 300
    assert len(workshop.notes("end")) == 2000


def test_a_worker_goes_on_by_itself_when_its_store_comes_back(
    start_server: StartServer, make_workshop: MakeWorkshop
) -> None:
    server = start_server("redis", fsync="always")
    workshop = make_workshop(store=server.url)
    chores = workshop.chores
    worker = workshop.start("-c", "8", "--contexts", "1", lease="30s")
    over_it = chores.co_nap.enqueue(60.0, "over")
    within = [chores.nap.enqueue(1.0, f"within{number}") for number in range(3)]
    workshop.noted("start", 4)
    server.stop()
    workshop.noted("end", 3)
    worker.hear("cannot (claim|report)")
    time.sleep(2)
    server.start()
    workshop.app.close()  # the connection of this process has died with the server
    back_at = time.monotonic()
    for job in within:
        record = workshop.ended(job)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    tell(f"reported {time.monotonic() - back_at:.2f} s after the store was back")
    assert chores.add.enqueue(1, 1).result(PATIENCE) == 2
    tell(f"worked again {time.monotonic() - back_at:.2f} s after")
    worker.hear("cannot claim[^$]*claims are answered")
    over_it.cancel()
    record = workshop.ended(over_it)
    assert (record.state, record.attempt) == (State.CANCELLED, 1)
    assert len(workshop.notes("start")) == 4


def test_a_worker_can_be_stopped_while_its_store_is_away(
    start_server: StartServer, make_workshop: MakeWorkshop
) -> None:
    server = start_server("redis", fsync="always")
    workshop = make_workshop(store=server.url)
    worker = workshop.start("-c", "8", lease="2s")
    job = workshop.chores.nap.enqueue(0.5)
    workshop.noted("start")
    server.stop()
    worker.hear("cannot")
    workshop.noted("end")
    assert worker.stop() == 0
    assert "leases will run out" in worker.said
    server.start()
    workshop.app.close()  # the connection of this process has died with the server
    workshop.start("-c", "8", lease="2s")
    assert workshop.ended(job).state is State.SUCCEEDED


def test_a_worker_that_the_queue_has_forgotten_introduces_itself_again(
    start_server: StartServer, make_workshop: MakeWorkshop
) -> None:
    server = start_server("redis")
    workshop = make_workshop(store=server.url)
    worker = workshop.start("-c", "8", lease="1s")
    job = workshop.chores.nap.enqueue(1.5)
    workshop.noted("start")
    server.ask("FLUSHALL")
    worker.hear("known again")
    assert workshop.chores.add.enqueue(1, 1).result(PATIENCE) == 2
    worker.hear("reports refused|lost job " + job.id)
    assert worker.stop() == 0
