"""Jobs alone in their process: what they hear of their supervisor, and how little that takes."""

from tests.workers import Workshop, until
from windlass.model.job import State
from windlass.worker.jobs import SOFT


def test_a_job_alone_that_looks_whether_it_is_to_stop_is_told_so_without_a_thread(workshop: Workshop) -> None:
    workshop.start()
    job = workshop.chores.alone_obedient.enqueue()
    workshop.noted("began")
    job.cancel()
    assert workshop.ended(job).state is State.CANCELLED
    assert workshop.notes("obeyed") == ["1"], f"it had more threads than its own, or was terminated after {SOFT} s"


def test_what_a_job_alone_is_told_is_not_heard_by_a_process_that_it_made(workshop: Workshop) -> None:
    workshop.start()
    job = workshop.chores.alone_mother.enqueue()
    until(lambda: job.state is State.RUNNING)
    job.cancel()
    assert workshop.ended(job).state is State.CANCELLED
    assert workshop.notes("obeyed") == [""]
