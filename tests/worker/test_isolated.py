"""Jobs alone in their process: what they hear of their supervisor, and how little that takes."""

from tests.support.worker_harness import WorkerHarness, until
from windlass.model.job import State
from windlass.worker.contexts.pool import SOFT


def test_an_isolated_job_learns_that_it_must_stop_without_a_thread(harness: WorkerHarness) -> None:
    harness.start()
    job = harness.tasks.alone_obedient.enqueue()
    harness.noted("began")
    job.cancel()
    assert harness.ended(job).state is State.CANCELLED
    assert harness.notes("obeyed") == ["1"], f"it had more threads than its own, or was terminated after {SOFT} s"


def test_an_order_to_an_isolated_job_does_not_reach_a_process_that_it_made(harness: WorkerHarness) -> None:
    harness.start()
    job = harness.tasks.alone_mother.enqueue()
    until(lambda: job.state is State.RUNNING)
    job.cancel()
    assert harness.ended(job).state is State.CANCELLED
    assert harness.notes("obeyed") == [""]
