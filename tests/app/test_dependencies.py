"""Jobs that make jobs, jobs that wait for jobs, files: from the Python interface through a real worker."""

from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.worker_harness import STORES, MakeHarness, WorkerHarness, until
from windlass import JobFailed
from windlass.model.job import Reason, State
from windlass.model.operations import Count, List

FLOW = (Path(__file__).parents[1] / "support" / "dependency_app.py").read_text()


@pytest.fixture(params=STORES)
def flow(request: pytest.FixtureRequest, make_harness: MakeHarness, tmp_path: Path) -> WorkerHarness:
    store = str(tmp_path / "jobs.db") if request.param == "file" else request.getfixturevalue("redis_server").url
    harness = make_harness(FLOW, store=store)
    harness.start("-c", "8", "--contexts", "1")
    return harness


def test_a_job_waits_for_others_and_hands_its_result_on(flow: WorkerHarness) -> None:
    app = flow.app
    double = app.tasks["double"]
    first = double.using(delay=0.3).enqueue(1)
    second = double.using(after=[first, double.enqueue(5)], then=double).enqueue(10)
    assert second.state == State.BLOCKED
    assert second.result(PATIENCE) == 20
    assert first.state == State.SUCCEEDED
    everything = List(tenant=app.tenant)
    until(lambda: len(app.link.ask(everything).jobs) == 4)
    assert sorted(app.job(job.id).result(PATIENCE) for job in app.link.ask(everything).jobs) == [2, 10, 20, 40]


def test_a_job_whose_forerunner_fails_is_cancelled(flow: WorkerHarness) -> None:
    refused = flow.app.tasks["refuse"].using(delay=0.2).enqueue(1)
    waiting = flow.app.tasks["double"].using(after=[refused]).enqueue(2)
    with pytest.raises(JobFailed, match=refused.id):
        waiting.result(PATIENCE)
    assert (waiting.state, waiting.refresh().reason) == (State.CANCELLED, Reason.DEPENDENCY)


def test_a_job_is_spawned_with_the_success_of_another(flow: WorkerHarness) -> None:
    child = flow.app.tasks["begin"].enqueue(21).result(PATIENCE)
    assert flow.app.job(child).result(PATIENCE) == 42


def test_what_a_failed_run_spawned_is_not_queued_and_a_second_run_spawns_the_same_job(flow: WorkerHarness) -> None:
    child = flow.app.tasks["begin_twice"].enqueue(21).result(PATIENCE)
    assert flow.app.job(child).result(PATIENCE) == 42
    assert flow.app.link.ask(Count(tenant=flow.app.tenant)).count == 2


def test_files_come_with_the_job(flow: WorkerHarness) -> None:
    files = {"a.txt": b"12345", "b.bin": bytes(100_000)}
    assert flow.app.tasks["weigh"].using(files=files).enqueue().result(PATIENCE) == {"a.txt": 5, "b.bin": 100_000}
