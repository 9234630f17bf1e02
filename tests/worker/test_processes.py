"""A worker's processes: replaced in time, kept within bounds, never left behind."""

import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.patience import PATIENCE
from tests.support.worker_harness import ON_A_FILE, Worker, WorkerHarness, tell, until
from windlass.model.job import Reason, State


def zygote_of(worker: Worker) -> psutil.Process:
    guardian = min(
        psutil.Process(worker.pid).children(), key=psutil.Process.create_time
    )  # orphans of jobs come to it too
    (zygote,) = guardian.children()
    return zygote


def let_go(harness: WorkerHarness) -> None:
    (harness.folder / "let go").touch()


def zombies(worker: Worker) -> list[psutil.Process]:
    family = psutil.Process(worker.pid).children(recursive=True)
    return [one for one in family if one.status() == psutil.STATUS_ZOMBIE]


@ON_A_FILE
def test_contexts_are_replaced_after_so_many_jobs(harness: WorkerHarness) -> None:
    harness.start("-c", "4", "--contexts", "1", "--context-max-jobs", "10")
    jobs = harness.tasks.add.map([(number, 1) for number in range(100)])
    assert [job.result(PATIENCE) for job in jobs] == list(range(1, 101))
    pids = [line.split()[1] for line in harness.notes("add")]
    assert len(pids) == 100
    assert 5 <= len(set(pids)) <= 11


@ON_A_FILE
@pytest.mark.parametrize(("bound", "size"), [(("--max-age", "1s"), 1), (("--max-memory", "300MB"), 300)])
def test_contexts_are_replaced_when_they_are_old_or_fat(
    harness: WorkerHarness, bound: tuple[str, str], size: int
) -> None:
    tasks = harness.tasks
    harness.start("-c", "4", "--contexts", "1", *bound)
    long = tasks.stay.enqueue("long")
    harness.noted("start")
    first = tasks.swell.enqueue(size).result(PATIENCE)
    until(lambda: tasks.swell.enqueue(1).result(PATIENCE) != first)
    (harness.folder / "let go").touch()
    record = harness.ended(long)
    assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    until(lambda: len(harness.processes()) == 4)


@pytest.mark.parametrize("kind", ["mother", "co_mother", "alone_child"])
def test_only_the_process_that_was_given_a_job_tells_how_it_ended(harness: WorkerHarness, kind: str) -> None:
    task = getattr(harness.tasks, kind)
    worker = harness.start("-c", "4", "--contexts", "1")
    for _ in range(5):
        assert task.enqueue("returns").result(PATIENCE) == "parent of one that ended with 0"
    raised = task.enqueue("raises")
    assert raised.result(PATIENCE) == "parent of one that ended with 1"
    assert task.enqueue("leaves").result(PATIENCE) == "parent of one that ended with 7"
    assert harness.tasks.add.enqueue(1, 2).result(PATIENCE) == 3
    until(lambda: len(harness.processes()) == 4)
    if kind != "alone_child":  # what that prints is kept with the job
        assert "ValueError: the child" in worker.said
        assert "SystemExit" not in worker.said


FAMILY = """
import os, subprocess, sys, time
from windlass.worker.linux import end_children_but
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
def test_a_job_that_takes_too_much_memory_is_killed(harness: WorkerHarness) -> None:
    harness.start("-c", "4", "--contexts", "1", "--max-memory", "200MB")
    record = harness.ended(harness.tasks.eat.enqueue(2000))
    assert (record.state, record.reason, record.attempt) == (State.FAILED, Reason.MEMORY, 1)
    assert record.error is not None
    assert record.error.message == "took more memory than this worker allows"


@ON_A_FILE
def test_a_job_that_prints_too_much_is_killed_and_costs_the_supervisor_nothing(harness: WorkerHarness) -> None:
    worker = harness.start("-c", "4", "--contexts", "1")
    supervisor = psutil.Process(worker.pid)
    before = supervisor.memory_info().rss
    record = harness.ended(harness.tasks.chatter.enqueue(4000))
    assert (record.state, record.reason, record.attempt) == (State.FAILED, Reason.OUTPUT, 1)
    grown = (supervisor.memory_info().rss - before) / 2**20
    tell(f"the supervisor has grown by {grown:.1f} MiB")
    assert grown < 40


def test_nothing_survives_a_killed_supervisor(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    worker = harness.start("-c", "8", "--contexts", "2", lease="1s")
    for task in (tasks.alone_parent, tasks.parent, tasks.alone_deaf, tasks.deaf, tasks.busy):
        task.enqueue()
    tasks.hold_gil.enqueue(30.0)
    harness.noted("began", 5)
    harness.noted("offspring", 2)
    assert len(harness.processes()) > 6
    killed_at = time.monotonic()
    worker.send(signal.SIGKILL)
    until(lambda: not harness.processes())
    tell(f"all gone after {time.monotonic() - killed_at:.2f} s")


def test_a_worker_recovers_when_the_process_that_forks_is_killed(harness: WorkerHarness) -> None:
    """S4 29."""
    tasks = harness.tasks
    worker = harness.start("-c", "8", "--contexts", "1")
    alone, shared = tasks.alone_parent.enqueue(), tasks.stay.enqueue("shared")
    (offspring,) = harness.noted("offspring")
    harness.noted("start")
    zygote_of(worker).kill()
    meanwhile = [tasks.add.enqueue(number, 1) for number in range(20)]
    meanwhile += [tasks.alone_add.enqueue(number, 1) for number in range(20, 24)]
    assert [job.result(PATIENCE) for job in meanwhile] == list(range(1, 25))
    until(lambda: not Path(f"/proc/{offspring}").exists())
    let_go(harness)
    for job in (alone, shared):
        record = harness.ended(job)
        assert (record.state, record.crashes) == (State.SUCCEEDED, 1)
    assert worker.running
    until(lambda: not zombies(worker))
    assert worker.stop() == 0


def test_hundreds_of_isolated_jobs_leave_nothing_behind(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    worker = harness.start("-c", "8", "--contexts", "1")
    supervisor, zygote = psutil.Process(worker.pid), zygote_of(worker)

    def run(number: int) -> None:
        for job in tasks.alone_add.map([(1, 1)] * number):
            assert job.result(PATIENCE) == 2
        tasks.alone_parent.enqueue(0).result(PATIENCE)

    run(20)
    until(lambda: len(harness.processes()) == 4)
    before = supervisor.num_fds(), zygote.num_fds()
    run(280)
    until(lambda: len(harness.processes()) == 4)
    until(lambda: supervisor.num_fds() <= before[0] + 2)  # its store may have something open just now
    until(lambda: zygote.num_fds() <= before[1])
    until(lambda: not zombies(worker))
    assert "Exception ignored" not in worker.said
    offspring = [Path(f"/proc/{pid}") for pid in harness.notes("offspring")]
    until(lambda: not any(one.exists() for one in offspring))  # who was killed stays until the system has buried him
    assert worker.running


@ON_A_FILE
def test_a_worker_with_few_descriptors_postpones_what_it_cannot_start(harness: WorkerHarness) -> None:
    worker = harness.start("-c", "40", "--contexts", "1")
    limit = psutil.Process(worker.pid).num_fds() + 24
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (limit, limit))
    jobs = harness.tasks.alone_nap.map([0.2] * 12)
    worker.hear("no process for job .*Too many open files")
    for job in jobs:
        record = harness.ended(job)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    assert worker.stop() == 0


@pytest.mark.parametrize(("how", "number"), [("program", 1), ("orphans", 2), ("fork", 1)])
@pytest.mark.parametrize("task", ["start", "co_start"])
def test_s0_39_what_a_job_has_started_ends_with_it_and_not_with_another(
    harness: WorkerHarness, task: str, how: str, number: int
) -> None:
    harness.start("--contexts", "1")
    first = getattr(harness.tasks, task).enqueue(how, "first")
    begun = harness.noted("offspring", number)
    second = getattr(harness.tasks, task).enqueue(how, "second")
    others = harness.noted("offspring", 2 * number)[number:]
    (harness.folder / "let go first").touch()
    assert harness.ended(first).state is State.SUCCEEDED
    until(lambda: not any(_lives(pid) for pid in begun))
    assert all(_lives(pid) for pid in others)
    (harness.folder / "let go second").touch()
    assert harness.ended(second).state is State.SUCCEEDED
    until(lambda: not any(_lives(pid) for pid in others))


@ON_A_FILE
def test_a_pool_of_processes_may_serve_more_than_one_job(harness: WorkerHarness) -> None:
    harness.start("--contexts", "1")
    job = harness.tasks.start.enqueue("pool", "first")
    (pid,) = harness.noted("offspring")
    (harness.folder / "let go first").touch()
    assert harness.ended(job).state is State.SUCCEEDED
    assert _lives(pid)


def _lives(pid: str) -> bool:
    """Whether it runs; one that is dead and not reaped does not."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE)
    return False
