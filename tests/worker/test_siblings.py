"""Several worker processes under one parent: each is listed, a dead one comes back, signals reach all."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from tests.support.patience import PATIENCE
from tests.support.worker_harness import WorkerHarness, until
from windlass.model.operations import Workers

PROGRAM = """
import os, sys, time
from windlass.system import SystemClock
from windlass.worker.siblings import run_siblings

def run_one():
    os.write(1, b"%d\\n" % os.getpid())
    {body}

sys.exit(run_siblings(2, run_one, SystemClock()))
"""


class Parent:
    """A program in two processes; what they print, line by line."""

    def __init__(self, body: str) -> None:
        command = [sys.executable, "-c", PROGRAM.format(body=body)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def pids(self, number: int) -> list[int]:
        return [int(self.line()) for _ in range(number)]

    def ended(self) -> int:
        return self.process.wait(PATIENCE)


def test_each_process_is_a_worker_of_its_own_and_a_dead_one_comes_back(harness: WorkerHarness) -> None:
    """S1 33."""

    others = {one.id for one in harness.app.ask(Workers())}  # of tests before, on the same server

    def listed() -> set[int]:
        return {one.pid for one in harness.app.ask(Workers()) if one.id not in others}

    parent = harness.start("--processes", "2", "-c", "1", lease="3s")
    until(lambda: len(listed()) == 2)
    killed, kept = sorted(listed())
    os.kill(killed, signal.SIGKILL)
    until(lambda: len(listed() - {killed}) == 2)
    assert kept in listed()
    jobs = [harness.tasks.stay.enqueue(f"job{number}") for number in range(2)]
    harness.noted("start", 2)
    ids = {one.id for one in harness.app.ask(Workers()) if one.pid in listed() - {killed}}
    assert {job.refresh().worker for job in jobs} == ids
    (harness.folder / "let go").touch()
    assert parent.stop() == 0
    assert listed() - {killed} == set()


def test_processes_that_end_well_are_not_started_again() -> None:
    with Parent("return 0") as parent:
        assert len(set(parent.pids(2))) == 2
        assert parent.ended() == 0
        assert parent.line() == ""


def test_if_one_cannot_start_all_end_with_its_status() -> None:
    with Parent("time.sleep(600 if os.getpid() % 2 else 0); return 7") as parent:
        assert parent.ended() == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_all_end_with_their_parent(number: signal.Signals) -> None:
    with Parent("time.sleep(600)") as parent:
        pids = parent.pids(2)
        parent.process.send_signal(number)
        parent.ended()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_a_signal_reaches_those_that_are_there() -> None:
    with Parent("time.sleep(600)") as parent:
        killed, kept = parent.pids(2)
        os.kill(killed, signal.SIGKILL)
        (again,) = parent.pids(1)
        parent.process.send_signal(signal.SIGTERM)
        assert parent.ended() == signal.SIGTERM, "they had no handler"
        assert not any(Path(f"/proc/{pid}").exists() for pid in (killed, kept, again))
