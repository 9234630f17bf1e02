"""A worker always ends, and takes everything along: whichever of its processes is stuck, or killed, and when."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.servers import StartServer
from tests.workers import FOLDER, ON_A_FILE, MakeWorkshop, Worker, Workshop, until
from windlass.handle import Job
from windlass.model.job import State

PROMPTLY = 30.0
"""Seconds in which a worker ends that would otherwise not end at all, on a busy machine."""


def zygote_of(worker: Worker) -> psutil.Process:
    (zygote,) = guardian_of(worker).children()
    return zygote


def guardian_of(worker: Worker) -> psutil.Process:
    return min(psutil.Process(worker.pid).children(), key=psutil.Process.create_time)  # it was the first


def stop_all(processes: list[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.suspend()


@ON_A_FILE
@pytest.mark.parametrize("kind", ["nap", "co_nap", "alone_nap"])
def test_a_worker_whose_zygote_is_stuck_ends_and_gives_its_jobs_back(workshop: Workshop, kind: str) -> None:
    worker = workshop.start("-c", "4", "--contexts", "1")
    job = getattr(workshop.chores, kind).enqueue(60.0)
    workshop.noted("start")
    zygote_of(worker).suspend()
    worker.send(signal.SIGTERM)
    worker.hear("stopping")
    worker.send(signal.SIGTERM)
    assert worker.ended(PROMPTLY) == 0
    assert not workshop.processes()
    record = job.refresh()
    assert (record.state, record.attempt) == (State.QUEUED, 0)


@ON_A_FILE
def test_a_worker_all_of_whose_processes_are_stuck_ends(workshop: Workshop) -> None:
    worker = workshop.start("-c", "4", "--contexts", "1")
    workshop.chores.alone_parent.enqueue(60.0)
    workshop.noted("offspring")
    stop_all(psutil.Process(worker.pid).children(recursive=True))
    worker.send(signal.SIGTERM)
    worker.hear("stopping")
    worker.send(signal.SIGTERM)
    assert worker.ended(PROMPTLY) == 0
    until(lambda: not workshop.processes())


@ON_A_FILE
@pytest.mark.parametrize("whom", ["zygote", "everybody"])
def test_nothing_survives_a_killed_supervisor_whatever_is_stuck(workshop: Workshop, whom: str) -> None:
    chores = workshop.chores
    worker = workshop.start("-c", "8", "--contexts", "2")
    for task in (chores.alone_parent, chores.parent, chores.alone_deaf, chores.deaf, chores.busy):
        task.enqueue()
    chores.hold_gil.enqueue(60.0)
    workshop.noted("began", 5)
    workshop.noted("offspring", 2)
    stop_all([zygote_of(worker)] if whom == "zygote" else psutil.Process(worker.pid).children(recursive=True))
    worker.send(signal.SIGKILL)
    until(lambda: not workshop.processes())


@ON_A_FILE
def test_a_worker_recovers_when_its_guardian_is_killed(workshop: Workshop) -> None:
    chores = workshop.chores
    worker = workshop.start("-c", "8", "--contexts", "1")
    alone = chores.alone_parent.enqueue(1.0)
    (offspring,) = workshop.noted("offspring")
    guardian_of(worker).kill()
    assert [chores.add.enqueue(number, 1).result(30) for number in range(5)] == [1, 2, 3, 4, 5]
    until(lambda: not Path(f"/proc/{offspring}").exists())
    assert workshop.ended(alone).crashes == 1
    assert worker.stop() == 0


@ON_A_FILE
def test_a_zygote_that_does_not_answer_is_replaced(workshop: Workshop) -> None:
    worker = workshop.start("-c", "8", "--contexts", "1")
    assert workshop.chores.alone_add.enqueue(1, 1).result(30) == 2
    zygote_of(worker).suspend()
    assert workshop.chores.alone_add.enqueue(1, 2).result(60) == 3
    assert "does not answer" in worker.said
    assert worker.stop() == 0


FICKLE = """
import os, pathlib, sys, time
from windlass import Windlass
here = pathlib.Path(__file__).parent
if (here / "broken").exists():
    raise RuntimeError("no longer")
while (here / "hangs").exists():
    time.sleep(0.1)
app = Windlass(tenant=os.environ["WORKSHOP_TENANT"])
@app.task
def stay() -> None:
    with (here / "notes").open("a") as notes:
        notes.write(f"start {os.getpid()}\\n")
    time.sleep(60)
"""


def fickle(make_workshop: MakeWorkshop, then: str) -> tuple[Workshop, Worker, list[Job[Any]]]:
    """A worker whose app is imported again, which then breaks or hangs."""
    workshop = make_workshop(FICKLE)
    worker = workshop.start("-c", "2", "--contexts", "1", "--grace", "0.2s", lease="60s")
    jobs = [workshop.chores.stay.enqueue() for _ in range(2)]
    workshop.noted("start", 2)
    (workshop.folder / then).touch()
    zygote_of(worker).kill()
    return workshop, worker, jobs


def test_a_worker_whose_app_no_longer_imports_gives_its_jobs_back(make_workshop: MakeWorkshop) -> None:
    workshop, worker, jobs = fickle(make_workshop, "broken")
    assert worker.ended(PROMPTLY) == 1
    assert "RuntimeError: no longer" in worker.said
    assert [job.state for job in jobs] == [State.QUEUED] * 2
    assert not workshop.processes()


def test_a_worker_whose_app_hangs_when_it_is_imported_again_ends_and_gives_its_jobs_back(
    make_workshop: MakeWorkshop,
) -> None:
    workshop, worker, jobs = fickle(make_workshop, "hangs")
    worker.hear("starting it again")
    until(lambda: len(workshop.processes()) >= 3)
    assert worker.stop(PROMPTLY) == 0
    assert [job.state for job in jobs] == [State.QUEUED] * 2
    assert not workshop.processes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_whose_app_hangs_at_first_ends(make_workshop: MakeWorkshop, number: signal.Signals) -> None:
    workshop = make_workshop("print('importing', flush=True)\nimport time\ntime.sleep(600)\n")
    worker = workshop.start_raw()
    worker.hear("importing")
    worker.send(number)
    assert worker.ended(PROMPTLY) == 0
    assert not workshop.processes()


def test_a_worker_that_is_told_to_stop_while_it_starts_ends(workshop: Workshop) -> None:
    workers = []
    for step in range(8):
        workers.append(workshop.start_raw("--contexts", "1"))
        time.sleep(0.1 + 0.15 * step)
        workers[-1].send(signal.SIGTERM)
    for worker in workers:
        assert worker.ended(PROMPTLY) in (0, -signal.SIGTERM), worker.said
    assert not workshop.processes()


@ON_A_FILE
def test_a_worker_that_ends_leaves_alone_what_it_has_not_started(workshop: Workshop) -> None:
    """A script that starts something beside and then becomes the worker."""
    script = 'setsid sleep 600 >/dev/null & echo beside $!; exec "$0" -m windlass worker chores:app --burst'
    environ = {name: value for name, value in workshop.environ.items() if name != FOLDER}
    workshop.chores.add.enqueue(1, 1)
    said = subprocess.run(
        ["sh", "-c", script, sys.executable],
        cwd=workshop.folder,
        env=environ | {"WORKSHOP_TENANT": workshop.tenant},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    assert workshop.notes("add")
    beside = int(said.stdout.split()[1])
    os.kill(beside, signal.SIGKILL)  # raises if it is gone


def test_a_worker_is_stopped_while_its_store_is_silent(start_server: StartServer, make_workshop: MakeWorkshop) -> None:
    server = start_server("redis")
    workshop = make_workshop(store=server.url)
    worker = workshop.start("--grace", "0.1s")
    workshop.chores.nap.enqueue(60.0)
    workshop.noted("start")
    server.freeze()
    try:
        assert worker.stop(PROMPTLY) == 0
    finally:
        server.thaw()
    assert "leases will run out" in worker.said
    assert "without saying so" not in worker.said  # it has not waited for the store once more
    assert not workshop.processes()


@ON_A_FILE
def test_a_worker_is_stopped_while_its_file_is_locked(workshop: Workshop) -> None:
    worker = workshop.start("--grace", "0.1s")
    workshop.chores.nap.enqueue(60.0)
    workshop.noted("start")
    with closing(sqlite3.connect(workshop.store, isolation_level=None)) as file:
        file.execute("BEGIN EXCLUSIVE")
        assert worker.stop(PROMPTLY) == 0
    assert "leases will run out" in worker.said
    assert not workshop.processes()


def test_a_worker_ends_after_so_many_jobs(workshop: Workshop) -> None:
    """S4 28."""
    workshop.chores.add.map([(number, 1) for number in range(20)])
    worker = workshop.start_raw("-c", "4", "--max-jobs", "7")
    assert worker.ended() == 0
    assert len(workshop.notes("add")) == 7
    assert workshop.start_raw("--max-jobs", "1").ended() == 0
    assert len(workshop.notes("add")) == 8


@ON_A_FILE
def test_what_is_given_back_is_not_one_of_so_many_jobs(workshop: Workshop) -> None:
    snoozing = workshop.chores.complain.enqueue("snooze")
    worker = workshop.start_raw("--max-jobs", "2")
    assert workshop.ended(snoozing).state is State.SUCCEEDED
    assert worker.running
    workshop.chores.add.enqueue(1, 1)
    assert worker.ended() == 0
