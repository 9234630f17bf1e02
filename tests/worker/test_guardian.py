"""A worker always ends, and takes everything along: whichever of its processes is stuck, or killed, and when."""

import asyncio
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

from tests.support.engines import enqueue
from tests.support.servers import StartServer
from tests.support.worker_harness import FOLDER, ON_A_FILE, STORES, MakeHarness, Worker, WorkerHarness, until
from windlass.engine import Engine
from windlass.job_handle import Job
from windlass.model.job import State
from windlass.model.operations import Claim, Show
from windlass.model.worker import NewWorker
from windlass.system import SystemClock
from windlass.worker import WorkerOptions
from windlass.worker.claims import Registration
from windlass.worker.contexts.pool import ContextRunner
from windlass.worker.contexts.processes import ProcessManager
from windlass.worker.reports import Reports
from windlass.worker.runs import RunTable

LONG_LEASE = "10m"
"""A job that runs again sooner was given back."""


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
def test_a_worker_whose_zygote_is_stuck_ends_and_gives_its_jobs_back(harness: WorkerHarness, kind: str) -> None:
    worker = harness.start("-c", "4", "--contexts", "1")
    job = getattr(harness.tasks, kind).enqueue(600.0)
    harness.noted("start")
    zygote_of(worker).suspend()
    worker.send(signal.SIGTERM)
    worker.hear("stopping")
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert not harness.processes()
    record = job.refresh()
    assert (record.state, record.attempt) == (State.QUEUED, 0)


@ON_A_FILE
def test_a_worker_all_of_whose_processes_are_stuck_ends(harness: WorkerHarness) -> None:
    worker = harness.start("-c", "4", "--contexts", "1")
    harness.tasks.alone_parent.enqueue(600.0)
    harness.noted("offspring")
    stop_all(psutil.Process(worker.pid).children(recursive=True))
    worker.send(signal.SIGTERM)
    worker.hear("stopping")
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    until(lambda: not harness.processes())


@ON_A_FILE
@pytest.mark.parametrize("whom", ["zygote", "everybody"])
def test_nothing_survives_a_killed_supervisor_whatever_is_stuck(harness: WorkerHarness, whom: str) -> None:
    tasks = harness.tasks
    worker = harness.start("-c", "8", "--contexts", "2")
    for task in (tasks.alone_parent, tasks.parent, tasks.alone_deaf, tasks.deaf, tasks.busy):
        task.enqueue()
    tasks.hold_gil.enqueue(600.0)
    harness.noted("began", 5)
    harness.noted("offspring", 2)
    stop_all([zygote_of(worker)] if whom == "zygote" else psutil.Process(worker.pid).children(recursive=True))
    worker.send(signal.SIGKILL)
    until(lambda: not harness.processes())


@ON_A_FILE
def test_a_worker_recovers_when_its_guardian_is_killed(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    worker = harness.start("-c", "8", "--contexts", "1")
    alone = tasks.alone_parent.enqueue()
    (offspring,) = harness.noted("offspring")
    guardian_of(worker).kill()
    assert [tasks.add.enqueue(number, 1).result(30) for number in range(5)] == [1, 2, 3, 4, 5]
    until(lambda: not Path(f"/proc/{offspring}").exists())
    (harness.folder / "let go").touch()
    assert harness.ended(alone).crashes == 1
    assert worker.stop() == 0


@ON_A_FILE
def test_a_zygote_that_does_not_answer_is_replaced(harness: WorkerHarness) -> None:
    worker = harness.start("-c", "8", "--contexts", "1")
    assert harness.tasks.alone_add.enqueue(1, 1).result(30) == 2
    zygote_of(worker).suspend()
    assert harness.tasks.alone_add.enqueue(1, 2).result(60) == 3
    assert "does not answer" in worker.said
    assert worker.stop() == 0


FICKLE = """
import os, pathlib, sys, time
from windlass import Windlass
here = pathlib.Path(__file__).parent
if (here / "broken").exists():
    raise RuntimeError("no longer")
while (here / "hangs").exists() and "SOUND" not in os.environ:
    time.sleep(0.1)
app = Windlass(tenant=os.environ["HARNESS_TENANT"])
@app.task
def stay() -> None:
    with (here / "notes").open("a") as notes:
        notes.write(f"start {os.getpid()}\\n")
    time.sleep(60)
@app.task
def touch(name: str) -> None:
    with (here / "notes").open("a") as notes:
        notes.write(f"touched {name}\\n")
"""


@pytest.fixture(params=STORES)
def fickle_harness(request: pytest.FixtureRequest, make_harness: MakeHarness) -> WorkerHarness:
    server = request.getfixturevalue("redis_server") if request.param == "redis" else None
    return make_harness(FICKLE, store=server.url if server else "")


def fickle(make_harness: MakeHarness, then: str) -> tuple[WorkerHarness, Worker, list[Job[Any]]]:
    """A worker whose app is imported again, which then breaks or hangs."""
    harness = make_harness(FICKLE)
    worker = harness.start("-c", "2", "--contexts", "1", "--grace", "0.2s", lease=LONG_LEASE)
    jobs = [harness.tasks.stay.enqueue() for _ in range(2)]
    harness.noted("start", 2)
    (harness.folder / then).touch()
    zygote_of(worker).kill()
    return harness, worker, jobs


def test_a_worker_whose_app_no_longer_imports_gives_its_jobs_back(make_harness: MakeHarness) -> None:
    harness, worker, jobs = fickle(make_harness, "broken")
    assert worker.ended() == 1
    assert "RuntimeError: no longer" in worker.said
    assert [job.state for job in jobs] == [State.QUEUED] * 2
    assert not harness.processes()


def test_a_worker_whose_app_hangs_when_it_is_imported_again_ends_and_gives_its_jobs_back(
    make_harness: MakeHarness,
) -> None:
    harness, worker, jobs = fickle(make_harness, "hangs")
    worker.hear("starting it again")
    until(lambda: len(harness.processes()) >= 3)
    assert worker.stop() == 0
    assert [job.state for job in jobs] == [State.QUEUED] * 2
    assert not harness.processes()


def test_a_worker_leaves_jobs_to_others_while_the_import_of_its_app_hangs_and_then_goes_on(
    fickle_harness: WorkerHarness,
) -> None:
    harness = fickle_harness
    worker = harness.start("-c", "2", "--contexts", "1", lease=LONG_LEASE)
    touch = harness.tasks.touch
    harness.ended(touch.enqueue("before"))
    (harness.folder / "hangs").touch()
    zygote_of(worker).kill()
    worker.hear("starting it again")
    jobs = [touch.enqueue(str(number)) for number in range(6)]
    other = harness.start("-c", "1", "--contexts", "1", lease=LONG_LEASE, SOUND="yes")
    assert [harness.ended(job).state for job in jobs] == [State.SUCCEEDED] * 6
    assert other.stop() == 0
    last = touch.enqueue("last")
    assert worker.running
    (harness.folder / "hangs").unlink()
    assert {harness.ended(job).attempt for job in [*jobs, last]} == {1}
    assert sorted(harness.notes("touched")) == [*"012345", "before", "last"]
    assert worker.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_whose_app_hangs_at_first_ends(make_harness: MakeHarness, number: signal.Signals) -> None:
    harness = make_harness("print('importing', flush=True)\nimport time\ntime.sleep(600)\n")
    worker = harness.start_raw()
    worker.hear("importing")
    worker.send(number)
    assert worker.ended() == 0
    assert not harness.processes()


def test_a_worker_that_is_stopped_while_it_starts_ends(harness: WorkerHarness) -> None:
    workers = []
    for step in range(8):
        workers.append(harness.start_raw("--contexts", "1"))
        time.sleep(0.1 + 0.15 * step)
        workers[-1].send(signal.SIGTERM)
    for worker in workers:
        assert worker.ended() in (0, -signal.SIGTERM), worker.said
    assert not harness.processes()


@ON_A_FILE
def test_a_worker_that_ends_leaves_alone_what_it_has_not_started(harness: WorkerHarness) -> None:
    """A script that starts something beside and then becomes the worker."""
    script = 'setsid sleep 600 >/dev/null & echo beside $!; exec "$0" -m windlass worker tasks:app --burst'
    environ = {name: value for name, value in harness.environ.items() if name != FOLDER}
    harness.tasks.add.enqueue(1, 1)
    said = subprocess.run(
        ["sh", "-c", script, sys.executable],
        cwd=harness.folder,
        env=environ | {"HARNESS_TENANT": harness.tenant},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    assert harness.notes("add")
    beside = int(said.stdout.split()[1])
    os.kill(beside, signal.SIGKILL)  # raises if it is gone


def test_a_worker_is_stopped_while_its_store_is_silent(start_server: StartServer, make_harness: MakeHarness) -> None:
    server = start_server("redis")
    harness = make_harness(store=server.url)
    worker = harness.start("--grace", "0.1s")
    harness.tasks.nap.enqueue(600.0)
    harness.noted("start")
    server.freeze()
    try:
        assert worker.stop() == 0
    finally:
        server.thaw()
    assert "leases will run out" in worker.said
    assert "could not unregister" not in worker.said  # it has not waited for the store once more
    assert not harness.processes()


@ON_A_FILE
def test_a_worker_is_stopped_while_its_file_is_locked(harness: WorkerHarness) -> None:
    worker = harness.start("--grace", "0.1s")
    harness.tasks.nap.enqueue(600.0)
    harness.noted("start")
    with closing(sqlite3.connect(harness.store, isolation_level=None)) as file:
        file.execute("BEGIN EXCLUSIVE")
        assert worker.stop() == 0
    assert "leases will run out" in worker.said
    assert not harness.processes()


def test_a_worker_ends_after_so_many_jobs(harness: WorkerHarness) -> None:
    """S4 28."""
    harness.tasks.add.map([(number, 1) for number in range(20)])
    worker = harness.start_raw("-c", "4", "--max-jobs", "7")
    assert worker.ended() == 0
    assert len(harness.notes("add")) == 7
    assert harness.start_raw("--max-jobs", "1").ended() == 0
    assert len(harness.notes("add")) == 8


@ON_A_FILE
def test_what_is_given_back_is_not_one_of_so_many_jobs(harness: WorkerHarness) -> None:
    snoozing = harness.tasks.complain.enqueue("snooze")
    worker = harness.start_raw("--max-jobs", "2")
    assert harness.ended(snoozing).state is State.SUCCEEDED
    assert worker.running
    harness.tasks.add.enqueue(1, 1)
    assert worker.ended() == 0


@pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)
@pytest.mark.parametrize("isolate", [False, True])
async def test_a_job_that_waits_for_a_context_is_given_back_unrun_when_none_can_be_started(
    engine: Engine, isolate: bool
) -> None:
    options, clock = WorkerOptions(contexts=1, slots=4), SystemClock()
    registration = Registration(engine, "default", NewWorker(name="w"))
    await registration.register()
    reports = Reports(registration, clock)
    runs = RunTable(reports, clock)
    contexts = ContextRunner(ProcessManager("an app that is never imported"), runs, options, clock)
    job = await enqueue(engine, "noop", isolate=isolate)
    contexts.fill()
    runs.start(await registration.ask(lambda names: Claim(**names)), lambda _: contexts)
    reporting = asyncio.create_task(reports.run())
    contexts.release_waiting()
    await runs.all_ended()
    await reports.flush()
    reporting.cancel()
    await contexts.close()
    record = await engine(Show(id=job.id))
    assert (record.state, record.attempt, record.crashes) == (State.QUEUED, 0, 0)
