"""Tasks that say what cannot be said: each job ends all the same, and takes nobody along."""

import socket

import pytest

from tests.support.patience import PATIENCE
from tests.support.worker_harness import WorkerHarness
from windlass.model.job import State
from windlass.model.new_job import NewJob
from windlass.model.outcome import Verdict
from windlass.model.output import Progress
from windlass.worker.contexts.frames import ContextOutbox, ContextUpdate, FrameReader, RunOutcome, RunUpdate
from windlass.worker.runs import MOST_UNSENT

BLURTED = {
    "nothing": ("tasks.WordlessError", "it cannot be put into words: that raised RuntimeError"),
    "half a character": ("ValueError", "a\\ud800"),
    "no number": ("ValueError", "could not convert string to float: 'many'"),
    "no limit": (
        "windlass.Invalid",
        "limit: 'a b' is not a name: letters, digits, '_', '.', '-'; 1 to 128 of them",
    ),
    "no code": ("windlass.Invalid", "code: 'none' is no code of a failure: a whole number, 400 to 599"),
}


@pytest.mark.parametrize("name", ["blurt", "co_blurt", "alone_blurt"])
def test_whatever_a_task_raises_its_job_ends_with_an_error(harness: WorkerHarness, name: str) -> None:
    task, add = getattr(harness.tasks, name), harness.tasks.add
    harness.start()
    blurting = {what: task.enqueue(what) for what in BLURTED}
    beside = add.enqueue(1, 2)
    for what, (kind, message) in BLURTED.items():
        job = harness.ended(blurting[what])
        assert job.state is State.FAILED
        assert job.error is not None
        assert (job.error.type, job.error.message) == (kind, message), what
    assert beside.result(PATIENCE) == 3


@pytest.mark.parametrize("name", ["blurt", "co_blurt", "alone_blurt"])
def test_half_a_character_is_spelled_out_in_what_a_job_says(harness: WorkerHarness, name: str) -> None:
    harness.start()
    job = getattr(harness.tasks, name).enqueue("half a line")
    ended = harness.ended(job)
    assert ended.state is State.SUCCEEDED
    assert ended.progress is not None
    assert ended.progress.note == "a\\ud800"


@pytest.mark.parametrize("name", ["blurt", "co_blurt", "alone_blurt"])
def test_of_a_line_that_is_too_long_the_end_is_kept(harness: WorkerHarness, name: str) -> None:
    harness.start()
    job = getattr(harness.tasks, name).using(output={"limit": None}).enqueue("a long line")
    assert harness.ended(job).state is State.SUCCEEDED
    kept = b"".join(chunk.data for chunk in job.output())
    assert kept.endswith(b"xend\n")
    assert len(kept) == MOST_UNSENT


def test_an_ending_that_cannot_be_sent_is_an_error_and_the_others_go_through() -> None:
    here, there = socket.socketpair()
    with here, there:
        outbox = ContextOutbox(here)
        outbox.add_update(RunUpdate(1, progress=Progress(note="a\ud800")))
        outbox.add_update(RunUpdate(2, printed=("log", b"well")))
        outbox.add_outcome(RunOutcome(1, Verdict.OK, jobs=[NewJob(task="x", headers={"a": "\ud800"})]))
        outbox.add_outcome(RunOutcome(2, Verdict.OK))
        outbox.flush()
        heard = list(FrameReader(ContextUpdate).feed(there.recv(1 << 16)))
    assert [update for sent in heard for update in sent.updates] == [RunUpdate(2, printed=("log", b"well"))]
    bad, good = [outcome for sent in heard for outcome in sent.outcomes]
    assert (bad.number, bad.verdict, good) == (1, Verdict.ERROR, RunOutcome(2, Verdict.OK))
    assert bad.error is not None
    assert "surrogates not allowed" in bad.error.message
