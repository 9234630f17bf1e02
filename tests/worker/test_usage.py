"""What running jobs use: measured by their workers, seen in their records and in lists, and gone with the run."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.stores import VirtualClock
from tests.support.worker_harness import WorkerHarness, until
from windlass.job_handle import Job
from windlass.model.handler import NewHandler
from windlass.model.job import State
from windlass.model.operations import EnqueueLines, PutHandler
from windlass.model.output import RunUsage
from windlass.worker import linux
from windlass.worker.linux import OwnProcess, UsageMeter

LEASE = "2s"
"""A worker measures as it renews, so it does not wait for long."""

MIB = 2**20


def let_go(harness: WorkerHarness) -> None:
    (harness.folder / "let go").touch()


def used(job: Job[Any], enough: Callable[[RunUsage], bool]) -> RunUsage:
    """What a job uses, once that is so."""

    def found() -> RunUsage | None:
        usage = job.refresh().usage
        return usage if usage is not None and enough(usage) else None

    usage = until(found)
    assert usage is not None
    return usage


def test_a_job_alone_in_its_process_shows_the_memory_and_the_cpus_of_all_its_processes(
    harness: WorkerHarness,
) -> None:
    harness.start(lease=LEASE)
    job, shares = harness.tasks.burn.enqueue(200, children=1), harness.tasks.stay.enqueue("here")
    until(lambda: sum("burn" in line for line in harness.notes("start")) == 2)
    usage = used(job, lambda usage: (usage.memory or 0) > 400 * MIB and (usage.cpu or 0) > 0)
    assert usage.output == len("burning\n")
    assert shares.refresh().usage is None, "it shares its process, and has put out nothing"
    where = ("--tenant", harness.tenant)
    row = next(line for line in harness.run("workers", "jobs", *where).stdout.splitlines() if job.id in line)
    assert "MB" in row
    assert "8 bytes" in row
    assert "of memory" in harness.run("jobs", "show", job.id, *where).stdout
    let_go(harness)
    record = harness.ended(job)
    assert (record.state, record.usage) == (State.FAILED, None)
    assert record.error is not None
    assert record.error.peak_memory is not None
    assert record.error.peak_memory > 200 * MIB
    assert record.error.cpu_time is not None
    assert record.error.cpu_time > 0
    assert "of CPU time" in harness.run("jobs", "show", job.id, *where).stdout


def test_the_failed_run_of_a_job_that_outlives_workers_keeps_what_it_used(harness: WorkerHarness) -> None:
    harness.start()
    job = harness.tasks.burn.using(on_lost="adopt").enqueue(100)
    harness.noted("start")
    let_go(harness)
    error = harness.ended(job).error
    assert error is not None
    assert (error.peak_memory or 0) > 100 * MIB
    assert (error.cpu_time or 0) > 0


def test_what_a_job_puts_out_is_counted_though_it_shares_its_process(harness: WorkerHarness) -> None:
    harness.start(lease=LEASE)
    job = harness.tasks.say_and_stay.enqueue("words")
    assert used(job, lambda _: True) == RunUsage(output=len("words\n"))
    let_go(harness)
    assert harness.ended(job).usage is None


def test_the_worker_that_adopts_a_job_goes_on_measuring_it(harness: WorkerHarness) -> None:
    job = harness.tasks.lasting.enqueue(megabytes=100)
    worker = harness.start(lease=LEASE)
    harness.noted("start")
    worker.send(signal.SIGKILL)
    worker.ended()
    worker = harness.start(lease=LEASE)
    worker.hear("adopted job")
    usage = used(job, lambda usage: usage.memory is not None)
    assert usage.memory is not None
    assert usage.memory > 100 * MIB
    assert usage.output > 0
    let_go(harness)
    assert harness.ended(job).usage is None


SLOW = """
import time
taken = b"x" * (60 << 20)
def run(payload):
    while True:
        time.sleep(0.01)
"""


def test_a_handler_shows_what_its_process_uses(harness: WorkerHarness) -> None:
    handler = NewHandler(lang="python", body=SLOW)
    harness.app.ask(PutHandler(tenant=harness.tenant, task="slow", handler=handler))
    harness.start("--tenant", harness.tenant, lease=LEASE, target="")
    (id,) = harness.app.ask(EnqueueLines(tenant=harness.tenant, task="slow", text="go")).ids
    job = harness.app.job(id)
    usage = used(job, lambda usage: usage.cpu is not None)
    assert usage.memory is not None
    assert usage.memory > 60 * MIB
    assert usage.cpu is not None
    assert usage.cpu < 1.5, "what its process had used before the job began does not count"
    job.cancel()
    assert harness.ended(job).usage is None


class Processes:
    """Stands for the processes of a machine, each with bytes of memory and seconds of CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used: dict[int, tuple[int, float]] = {}
        self.below: dict[int, list[int]] = {}
        monkeypatch.setattr(linux, "children", lambda pid: self.below.get(pid, []))
        monkeypatch.setattr(linux, "resident", lambda pid: self.used.get(pid, (0, 0.0))[0])
        monkeypatch.setattr(linux, "cpu_time", lambda pid: self.used.get(pid, (0, 0.0))[1])


def test_each_run_counts_its_own_processes_and_the_worker_all(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, clock = Processes(monkeypatch), VirtualClock()
    machine.below = {os.getpid(): [10], 10: [11, 12], 11: [13]}
    machine.used = {os.getpid(): (1, 1.0), 10: (2, 0.0), 11: (4, 0.0), 12: (8, 0.0), 13: (16, 0.0), 99: (32, 500.0)}
    meter = UsageMeter(clock)
    began = clock.monotonic()
    runs = {1: OwnProcess(11, began), 2: OwnProcess(12, None), 3: OwnProcess(99, None)}
    clock.advance(2)
    machine.used |= {11: (4, 1.0), 13: (16, 2.0), 12: (8, 6.0)}
    memory, busy, found = meter.read(runs)
    assert (memory, busy) == (63, 4.5), "an adopted process had used its time before"
    assert found == {
        1: RunUsage(memory=20, cpu=1.5),
        2: RunUsage(memory=8),
        3: RunUsage(memory=32),
    }, "of a process that is older than the run, it is not known yet how much of its time was for the run"
    clock.advance(2)
    machine.used |= {11: (4, 1.5), 12: (8, 7.0), 99: (32, 504.0)}
    assert meter.read(runs)[2] == {
        1: RunUsage(memory=20, cpu=0.25),
        2: RunUsage(memory=8, cpu=0.5),
        3: RunUsage(memory=32, cpu=2.0),
    }


def test_a_process_that_is_gone_uses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Processes(monkeypatch)
    clock = VirtualClock()
    assert UsageMeter(clock).read({1: OwnProcess(11, clock.monotonic())})[2] == {1: RunUsage(memory=0, cpu=0.0)}
