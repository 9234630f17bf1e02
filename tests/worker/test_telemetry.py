"""A file with a row for each run."""

import csv
import os
import time
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.worker_harness import WorkerHarness
from windlass.model.job import State
from windlass.system import SystemClock
from windlass.worker.telemetry import Telemetry


def test_s4_30_each_run_has_a_row_with_its_time_length_task_and_process(harness: WorkerHarness, tmp_path: Path) -> None:
    began = time.time_ns()
    worker = harness.start("-c", "4", "--telemetry", str(tmp_path / "told"))
    jobs = [harness.tasks.co_nap.enqueue(0.2, f"{number}") for number in range(3)]
    jobs.append(harness.tasks.add.enqueue(1, 2))
    assert all(harness.ended(job).state is State.SUCCEEDED for job in jobs)
    worker.stop()
    (file,) = (tmp_path / "told").iterdir()
    heads, *rows = csv.reader(file.read_text().splitlines())
    assert heads == ["Timepoint", "Measurement", "Label", "PID"]
    assert sorted(label for _, _, label, _ in rows) == ["add", "co_nap", "co_nap", "co_nap"]
    assert all(0.2 <= float(length) < PATIENCE for _, length, label, _ in rows if label == "co_nap")
    assert all(began < int(at) < time.time_ns() for at, *_ in rows)
    assert {int(pid) for *_, pid in rows} == {worker.pid}


def test_a_full_disk_costs_the_rows_and_not_the_worker(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / f"windlass-{os.getpid()}.csv").symlink_to("/dev/full")
    rows = Telemetry(str(tmp_path), SystemClock())
    for _ in range(2):
        rows.note("a", 1.0)
        rows.flush()
    rows.close()
    (said,) = caplog.messages
    assert "no more rows are written" in said
