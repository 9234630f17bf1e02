"""What tasks print: it goes to their own job, whatever shares the process with it."""

from typing import Any

import pytest

from tests.support.worker_harness import WorkerHarness
from windlass.job_handle import Job
from windlass.model.job import State
from windlass.model.operations import GetOutput


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
