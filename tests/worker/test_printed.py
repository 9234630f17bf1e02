"""What tasks print: it goes to their own job, whatever shares the process with it."""

import subprocess
import sys
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.worker_harness import WorkerHarness
from windlass.job_handle import Job
from windlass.model.job import Reason, State
from windlass.model.operations import ChangeQueue, GetOutput
from windlass.model.output import OutputPolicy
from windlass.model.queue import QueueChange


def printed(harness: WorkerHarness, job: "Job[Any]", stream: str | None = None) -> str:
    """What has been kept of it, of one stream or of all."""
    chunks = harness.app.ask(GetOutput(id=job.id)).chunks
    return b"".join(chunk.data for chunk in chunks if stream in (None, chunk.stream)).decode()


@pytest.mark.parametrize("task", ["say", "co_say", "alone_say"])
def test_each_job_has_what_it_printed_and_nothing_else(harness: WorkerHarness, task: str) -> None:
    harness.start("--contexts", "1")
    jobs = {word: getattr(harness.tasks, task).enqueue(word, 20) for word in ("one", "two", "three")}
    for word, job in jobs.items():
        assert harness.ended(job).state is State.SUCCEEDED
        lines = "".join(f"{word} {place}\n" for place in range(1 if task != "alone_say" else 20))
        whole = lines if task == "alone_say" else lines * 20
        assert printed(harness, job, "stdout") == printed(harness, job, "stderr") == whole


def test_what_loggers_and_raw_writes_print_goes_to_the_job_too(harness: WorkerHarness) -> None:
    worker = harness.start()
    job = harness.tasks.say_by_log.enqueue("logged")
    assert harness.ended(job).state is State.SUCCEEDED
    assert (printed(harness, job, "stderr"), printed(harness, job, "stdout")) == ("logged\n", "logged")
    assert "logged" not in worker.said


def test_a_process_that_a_job_forks_prints_where_its_worker_does(harness: WorkerHarness) -> None:
    worker = harness.start()
    job = harness.tasks.mother.enqueue("raises")
    assert harness.ended(job).state is State.SUCCEEDED
    worker.hear("ValueError: the child")
    assert printed(harness, job) == ""


LIMIT = 5000


@pytest.mark.parametrize("task", ["flood", "co_flood", "alone_flood"])
def test_s0_34_a_job_that_prints_more_than_its_limit_ends_after_exactly_that(harness: WorkerHarness, task: str) -> None:
    harness.start("--contexts", "1")
    flood = getattr(harness.tasks, task)
    exact = flood.using(output={"limit": LIMIT}).enqueue(LIMIT)
    over = flood.using(output={"limit": LIMIT}).enqueue(LIMIT + 1)
    forever = flood.using(output={"limit": LIMIT}).enqueue(None)
    cut = flood.using(output={"limit": LIMIT, "over": "drop"}).enqueue(3 * LIMIT)
    whole = "".join(map(str, range(LIMIT)))[:LIMIT]
    for job, state in (
        (exact, State.SUCCEEDED), (over, State.FAILED), (forever, State.FAILED), (cut, State.SUCCEEDED)
    ):  # fmt: skip
        record = harness.ended(job)
        assert record.state is state, record.error
        assert printed(harness, job) == whole
        if state is State.FAILED:
            assert record.error is not None
            assert (record.reason, record.attempt, record.error.type) == (Reason.OUTPUT, 1, "Output")
            assert record.error.message == f"printed more than its limit of {LIMIT} bytes"


@pytest.mark.parametrize("task", ["say", "alone_say"])
def test_s0_33_stderr_is_part_of_stdout_where_the_queue_says_so(harness: WorkerHarness, task: str) -> None:
    harness.start()
    harness.app.ask(ChangeQueue(queue="default", change=QueueChange(output=OutputPolicy(merged=True))))
    job = getattr(harness.tasks, task).enqueue("word", 3)
    assert harness.ended(job).state is State.SUCCEEDED
    assert printed(harness, job, "stderr") == ""
    lines = [f"word {place}\n" for place in range(3)] if task == "alone_say" else ["word 0\n"] * 3
    assert printed(harness, job, "stdout") == "".join(line * 2 for line in lines)


def test_the_output_of_a_job_can_be_read_while_it_runs_and_again_after(harness: WorkerHarness) -> None:
    harness.start()
    job = harness.tasks.say.enqueue("word", 5)
    live = list(job.output(follow=True))
    assert b"".join(chunk.data for chunk in live if chunk.stream == "stdout") == b"word 0\n" * 5
    assert list(job.output()) == live
    command = [sys.executable, "-m", "windlass", "jobs", "output", job.id, "--tenant", harness.tenant]
    told = subprocess.run(command, env=harness.environ, capture_output=True, check=True, timeout=PATIENCE)
    assert (told.stdout, told.stderr) == (b"word 0\n" * 5,) * 2
