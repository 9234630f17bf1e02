"""What an app has around its tasks, in the processes of real workers."""

import signal
from pathlib import Path

import pytest

from tests.support.servers import Server
from tests.support.worker_harness import STORES, MakeHarness, WorkerHarness, until

APP = Path(__file__).parents[1] / "support" / "hooks_app.py"

FOUR = ("plain", "co", "alone", "alone_co")


@pytest.fixture(params=STORES)
def hooked(request: pytest.FixtureRequest, make_harness: MakeHarness) -> WorkerHarness:
    """The app with hooks on each kind of store in turn."""
    if request.param == "file":
        return make_harness(APP.read_text())
    server = request.getfixturevalue("redis_server")
    assert isinstance(server, Server)
    return make_harness(APP.read_text(), store=server.url)


@pytest.fixture
def on_a_file(make_harness: MakeHarness) -> WorkerHarness:
    return make_harness(APP.read_text())


def down(harness: WorkerHarness, what: str) -> Path:
    """Until this file is removed."""
    mark = harness.folder / f"{what} is down"
    mark.touch()
    return mark


def test_lifespans_are_open_in_every_kind_of_context_and_closed_at_its_end(hooked: WorkerHarness) -> None:
    worker = hooked.start("--contexts", "2")
    jobs = [getattr(hooked.tasks, task).enqueue(task) for task in FOUR]
    for task, job in zip(FOUR, jobs, strict=True):
        assert job.result(timeout=60) == (True, f"model of {task}")
    assert worker.stop() == 0, worker.said
    opened, closed = hooked.notes("opened"), hooked.notes("closed")
    assert len(opened) == 4, "two shared contexts, two of a job each"
    assert sorted(opened) == sorted(closed) == sorted(set(opened))
    assert hooked.notes("model") == hooked.notes("unloaded") == ["True"] * 4
    assert hooked.notes("before") == hooked.notes("after") == ["True"] * 4
    assert len(hooked.notes("used")) == 4


def test_hooks_stand_around_runs_and_choose_outcomes(hooked: WorkerHarness) -> None:
    jobs = [hooked.tasks.fail.enqueue(how) for how in ("key", "value")]
    jobs += [getattr(hooked.tasks, task).enqueue(task) for task in FOUR]
    hooked.start("--contexts", "1")
    found, failed, *rest = [hooked.ended(job) for job in jobs]
    assert (found.state, found.attempt) == ("succeeded", 2)
    assert (failed.state, failed.attempt) == ("failed", 1)
    assert failed.error is not None
    assert failed.error.type == "windlass.Fail"
    assert {one.state for one in rest} == {"succeeded"}
    assert sorted(hooked.notes("begin")) == sorted(
        ["fail 1", "fail 1", "fail 2", "plain 1", "co 1", "alone 1", "alone_co 1"]
    )
    ends = hooked.notes("end")
    assert {"fail None KeyError", "fail None ValueError", "fail found NoneType"} < set(ends)
    assert len(ends) == 7


def test_a_job_waits_while_no_lifespan_opens(hooked: WorkerHarness) -> None:
    """Nothing is claimed, so that another worker can have it; tries are paused for longer and longer."""
    mark = down(hooked, "pool")
    worker = hooked.start("--contexts", "1")
    worker.hear("cannot run jobs, tries again: lifespan pool: the database is down .ConnectionRefusedError")
    worker.hear(", in pool\n")
    job = hooked.tasks.plain.enqueue("x")
    hooked.noted("trying", 3)
    record = job.refresh()
    assert (record.state, record.attempt, record.worker) == ("queued", 0, None)
    assert len(set(hooked.notes("trying"))) == len(hooked.notes("trying"))
    mark.unlink()
    assert job.result(timeout=60) == (True, "model of x")
    assert job.refresh().attempt == 1
    assert worker.said.count("Traceback") == 1
    assert worker.stop() == 0


@pytest.mark.parametrize("task", ["alone", "alone_co", "lasting"])
def test_a_job_alone_comes_again_when_its_lifespan_did_not_open(hooked: WorkerHarness, task: str) -> None:
    """Also one that may run only once: its code has not begun."""
    worker = hooked.start("--contexts", "1")
    hooked.noted("model")
    mark = down(hooked, "pool")
    job = getattr(hooked.tasks, task).enqueue("x")
    worker.hear("cannot run jobs, tries again: lifespan pool")
    until(lambda: job.refresh().state in {"scheduled", "queued"})
    assert job.refresh().errors == []
    mark.unlink()
    assert job.result(timeout=60) in ((True, "model of x"), "x")
    record = job.refresh()
    assert (record.attempt, record.crashes) == (1, 0)
    assert worker.stop() == 0


def test_a_context_that_dies_while_it_opens_costs_no_job(on_a_file: WorkerHarness) -> None:
    mark = down(on_a_file, "after")
    worker = on_a_file.start("--contexts", "1")
    worker.hear("a context has died while it opened what the app wants open")
    job = on_a_file.tasks.co.enqueue("x")
    mark.unlink()
    assert job.result(timeout=60) == (True, "model of x")
    assert job.refresh().crashes == 0


def test_a_hook_before_a_fork_that_fails_is_tried_again(on_a_file: WorkerHarness) -> None:
    mark = down(on_a_file, "before")
    worker = on_a_file.start("--contexts", "1")
    worker.hear("cannot run jobs, tries again: before_fork: RuntimeError: not ready to fork")
    job = on_a_file.tasks.alone.enqueue("x")
    mark.unlink()
    assert job.result(timeout=60) == (True, "model of x")
    assert worker.stop() == 0


def test_a_context_that_is_replaced_closes_what_it_has_opened(on_a_file: WorkerHarness) -> None:
    jobs = [on_a_file.tasks.plain.enqueue(str(number)) for number in range(6)]
    on_a_file.burst("--contexts", "1", "--context-max-jobs", "2", "-c", "1")
    assert {job.state for job in jobs} == {"succeeded"}
    opened = on_a_file.notes("opened")
    assert len(opened) >= 3
    assert sorted(opened) == sorted(on_a_file.notes("closed"))


def test_closing_without_end_keeps_no_worker(on_a_file: WorkerHarness) -> None:
    down(on_a_file, "closing")
    worker = on_a_file.start("--contexts", "1")
    job = on_a_file.tasks.alone.enqueue("x")
    assert job.result(timeout=60) == (True, "model of x"), "it had ended before"
    assert worker.stop() == 0
    assert "was not closed within 5 s" in worker.said


def test_a_second_signal_does_not_wait_for_lifespans(on_a_file: WorkerHarness) -> None:
    down(on_a_file, "closing")
    worker = on_a_file.start("--contexts", "1")
    on_a_file.noted("model")
    worker.send(signal.SIGTERM)
    on_a_file.noted("closed")
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert "was not closed" not in worker.said


def test_an_app_whose_dependencies_cannot_be_provided_is_refused(make_harness: MakeHarness) -> None:
    source = APP.read_text() + (
        "\nasync def token() -> str: ...\n\n@app.task\ndef wrong(token: str = Depends(token)) -> None: ...\n"
    )
    worker = make_harness(source).start_raw()
    assert worker.ended() == 1
    assert "wrong is a plain function, and token, which it depends on, is asynchronous" in worker.said
