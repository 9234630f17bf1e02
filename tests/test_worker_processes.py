"""A worker's processes: replaced in time, kept within bounds, never left behind."""

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.patience import PATIENCE
from tests.workers import ON_A_FILE, Worker, Workshop, tell, until
from windlass.model.job import Reason, State


def zygote_of(worker: Worker) -> psutil.Process:
    guardian = min(
        psutil.Process(worker.pid).children(), key=psutil.Process.create_time
    )  # orphans of jobs come to it too
    (zygote,) = guardian.children()
    return zygote


def zombies(worker: Worker) -> list[psutil.Process]:
    family = psutil.Process(worker.pid).children(recursive=True)
    return [one for one in family if one.status() == psutil.STATUS_ZOMBIE]


@ON_A_FILE
def test_contexts_are_replaced_after_so_many_jobs(workshop: Workshop) -> None:
    workshop.start("-c", "4", "--contexts", "1", "--context-max-jobs", "10")
    jobs = workshop.chores.add.map([(number, 1) for number in range(100)])
    assert [job.result(PATIENCE) for job in jobs] == list(range(1, 101))
    pids = [line.split()[1] for line in workshop.notes("add")]
    assert len(pids) == 100
    assert 5 <= len(set(pids)) <= 11


@ON_A_FILE
@pytest.mark.parametrize(("bound", "size"), [(("--max-age", "1s"), 1), (("--max-memory", "300MB"), 300)])
def test_contexts_are_replaced_when_they_are_old_or_fat(workshop: Workshop, bound: tuple[str, str], size: int) -> None:
    chores = workshop.chores
    workshop.start("-c", "4", "--contexts", "1", *bound)
    long = chores.stay.enqueue("long")
    workshop.noted("start")
    first = chores.swell.enqueue(size).result(PATIENCE)
    until(lambda: chores.swell.enqueue(1).result(PATIENCE) != first)
    (workshop.folder / "let go").touch()
    record = workshop.ended(long)
    assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    until(lambda: len(workshop.processes()) == 4)


@pytest.mark.parametrize("kind", ["mother", "co_mother", "alone_child"])
def test_only_the_process_that_was_given_a_job_tells_how_it_ended(workshop: Workshop, kind: str) -> None:
    task = getattr(workshop.chores, kind)
    worker = workshop.start("-c", "4", "--contexts", "1")
    for _ in range(5):
        assert task.enqueue("returns").result(PATIENCE) == "parent of one that ended with 0"
    raised = task.enqueue("raises")
    assert raised.result(PATIENCE) == "parent of one that ended with 1"
    assert task.enqueue("leaves").result(PATIENCE) == "parent of one that ended with 7"
    assert workshop.chores.add.enqueue(1, 2).result(PATIENCE) == 3
    until(lambda: len(workshop.processes()) == 4)
    if kind != "alone_child":  # what that prints is kept with the job
        assert "ValueError: the child" in worker.said
        assert "SystemExit" not in worker.said


FAMILY = """
import os, subprocess, sys, time
from windlass.worker.processes import end_children_but
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
own, spared, stray = (subprocess.Popen(sleep, start_new_session=new) for new in (False, True, True))
end_children_but(lambda: [spared.pid])
print(own.poll(), spared.poll(), os.path.exists(f"/proc/{stray.pid}"))
for one in (own, spared):
    one.kill()
"""


def test_what_a_process_has_started_itself_is_not_taken_for_left_behind() -> None:
    said = subprocess.run([sys.executable, "-c", FAMILY], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert said.stdout == "None None False\n"


@ON_A_FILE
def test_a_job_that_takes_too_much_memory_is_killed(workshop: Workshop) -> None:
    workshop.start("-c", "4", "--contexts", "1", "--max-memory", "200MB")
    record = workshop.ended(workshop.chores.eat.enqueue(2000))
    assert (record.state, record.reason, record.attempt) == (State.FAILED, Reason.MEMORY, 1)
    assert record.error is not None
    assert record.error.message == "took more memory than this worker allows"


@ON_A_FILE
def test_a_job_that_prints_too_much_is_killed_and_costs_the_supervisor_nothing(workshop: Workshop) -> None:
    worker = workshop.start("-c", "4", "--contexts", "1")
    supervisor = psutil.Process(worker.pid)
    before = supervisor.memory_info().rss
    record = workshop.ended(workshop.chores.chatter.enqueue(4000))
    assert (record.state, record.reason, record.attempt) == (State.FAILED, Reason.OUTPUT, 1)
    grown = (supervisor.memory_info().rss - before) / 2**20
    tell(f"the supervisor has grown by {grown:.1f} MiB")
    assert grown < 40


def test_nothing_survives_a_killed_supervisor(workshop: Workshop) -> None:
    chores = workshop.chores
    worker = workshop.start("-c", "8", "--contexts", "2", lease="1s")
    for task in (chores.alone_parent, chores.parent, chores.alone_deaf, chores.deaf, chores.busy):
        task.enqueue()
    chores.hold_gil.enqueue(30.0)
    workshop.noted("began", 5)
    workshop.noted("offspring", 2)
    assert len(workshop.processes()) > 6
    killed_at = time.monotonic()
    worker.send(signal.SIGKILL)
    until(lambda: not workshop.processes())
    tell(f"all gone after {time.monotonic() - killed_at:.2f} s")


def test_a_worker_recovers_when_the_process_that_forks_is_killed(workshop: Workshop) -> None:
    """S4 29."""
    chores = workshop.chores
    worker = workshop.start("-c", "8", "--contexts", "1")
    alone, shared = chores.alone_parent.enqueue(1.0), chores.nap.enqueue(1.0)
    (offspring,) = workshop.noted("offspring")
    workshop.noted("start")
    zygote_of(worker).kill()
    meanwhile = [chores.add.enqueue(number, 1) for number in range(20)]
    meanwhile += [chores.alone_add.enqueue(number, 1) for number in range(20, 24)]
    assert [job.result(PATIENCE) for job in meanwhile] == list(range(1, 25))
    until(lambda: not Path(f"/proc/{offspring}").exists())
    for job in (alone, shared):
        record = workshop.ended(job)
        assert (record.state, record.crashes) == (State.SUCCEEDED, 1)
    assert worker.running
    until(lambda: not zombies(worker))
    assert worker.stop() == 0


def test_hundreds_of_isolated_jobs_leave_nothing_behind(workshop: Workshop) -> None:
    chores = workshop.chores
    worker = workshop.start("-c", "8", "--contexts", "1")
    supervisor, zygote = psutil.Process(worker.pid), zygote_of(worker)

    def run(number: int) -> None:
        for job in chores.alone_add.map([(1, 1)] * number):
            assert job.result(PATIENCE) == 2
        chores.alone_parent.enqueue(0).result(PATIENCE)

    run(20)
    until(lambda: len(workshop.processes()) == 4)
    before = supervisor.num_fds(), zygote.num_fds()
    run(280)
    until(lambda: len(workshop.processes()) == 4)
    until(lambda: supervisor.num_fds() <= before[0] + 2)  # its store may have something open just now
    until(lambda: zygote.num_fds() <= before[1])
    until(lambda: not zombies(worker))
    assert "Exception ignored" not in worker.said
    offspring = [Path(f"/proc/{pid}") for pid in workshop.notes("offspring")]
    until(lambda: not any(one.exists() for one in offspring))  # who was killed stays until the system has buried him
    assert worker.running


@ON_A_FILE
def test_a_worker_with_few_descriptors_postpones_what_it_cannot_start(workshop: Workshop) -> None:
    worker = workshop.start("-c", "40", "--contexts", "1")
    limit = psutil.Process(worker.pid).num_fds() + 24
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (limit, limit))
    jobs = workshop.chores.alone_nap.map([0.2] * 12)
    worker.hear("gets no process: .*Too many open files")
    for job in jobs:
        record = workshop.ended(job)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    assert worker.stop() == 0
