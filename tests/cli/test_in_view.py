"""What people see of workers and runs: in lists, records, and logs."""

import io
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from tests.support.engines import enqueue, register, take
from tests.support.stores import VirtualClock
from tests.support.worker_harness import ON_A_FILE, WorkerHarness
from windlass.cli import terminal
from windlass.cli.job_view import job_note
from windlass.cli.queues import running_columns, worker_of
from windlass.engine import Engine
from windlass.model.job import Error, Job, Reason, State
from windlass.model.lifecycle import finish, lose, release
from windlass.model.operations import Alive, Renew, Show, Workers
from windlass.model.outcome import Outcome, Verdict
from windlass.model.output import Progress, RunUsage

EACH_STORE = pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@EACH_STORE
async def test_a_tenant_sees_the_workers_of_all_tenants_but_not_those_of_another(engine: Engine) -> None:
    own = await register(engine, tenant="a")
    everybodys = await register(engine, tenant="-", url="http://10.0.0.1/secret")
    other = await register(engine, tenant="b")
    seen = await engine(Workers(tenant="a"))
    assert {worker.id: worker.tenant for worker in seen} == {own: "a", everybodys: "-"}
    assert [worker.url for worker in seen] == [None, None], "where an operator's workers are is not a tenant's business"
    assert {worker.id for worker in await engine(Workers(tenant="-"))} == {own, everybodys, other}


@ON_A_FILE
def test_the_commands_name_the_workers_of_all_tenants(harness: WorkerHarness) -> None:
    harness.start("--tenant", "-", "--name", "everybodys", target="")
    for words in (("workers", "ls"), ("top", "--once"), ("queues", "show", "default")):
        said = harness.run(*words, "--tenant", "acme")
        assert "everybodys" in said.stdout, (words, said.stderr)
        assert "all" in said.stdout


def running(**more: Any) -> Job:
    return Job(id="1", tenant="a", task="t", state=State.RUNNING, attempt=1, created_at=NOW, updated_at=NOW, **more)


@pytest.mark.parametrize("how", ["finished", "released", "lost"])
def test_a_halted_job_has_an_error_that_explains_it(how: str) -> None:
    job = running(reason=Reason.HALTED, yielding=True)
    cancelled = Outcome(verdict=Verdict.ERROR, error=Error(type="Cancelled", message="", traceback="Traceback …"))
    ends = {
        "finished": lambda: finish(job, cancelled, NOW, 0.5),
        "released": lambda: release(job, NOW),
        "lost": lambda: lose(job, NOW),
    }
    move = ends[how]()
    assert move.reason is Reason.HALTED
    assert move.error is not None
    assert (move.error.type, move.error.reason) == ("Halted", Reason.HALTED)
    assert move.error.message == "its place was needed for a job that waits"


def test_a_list_says_why_a_job_was_cancelled_by_no_one_and_that_a_running_one_is_stopping() -> None:
    halted = replace(running(), state=State.CANCELLED, reason=Reason.HALTED, finished_at=NOW)
    assert job_note(halted, NOW + timedelta(seconds=4)) == "halted, 4.0 s ago"
    assert job_note(replace(halted, reason=Reason.CANCELLED), NOW + timedelta(seconds=4)) == "4.0 s ago"
    assert job_note(running(reason=Reason.DELETED), NOW) == "attempt 1, stopping (deleted)"
    assert job_note(running(reason=Reason.SHRUNK), NOW) == "attempt 1, (shrunk)"


@ON_A_FILE
def test_the_log_says_that_a_cancelled_run_was_stopped_not_that_it_failed(harness: WorkerHarness) -> None:
    worker = harness.start("-v", "--contexts", "1")
    job = harness.tasks.co_asleep.enqueue()
    harness.noted("began")
    job.cancel()
    assert harness.ended(job).state is State.CANCELLED
    worker.hear(f"{job.id} co_asleep stopped after [0-9.]+ s")


def test_a_shrunk_job_that_timed_out_has_an_error_that_explains_it() -> None:
    job = running(reason=Reason.SHRUNK, assigned="fast")
    late = Error(type="Timeout", message="ran longer than its time limit of 3 s")
    move = finish(job, Outcome(verdict=Verdict.ERROR, error=late, reason=Reason.TIMEOUT), NOW, 0.5)
    assert move.reason is Reason.TIMEOUT
    assert move.error is not None
    assert move.error.message == (
        "ran longer than its time limit of 3 s: it was shortened to tier fast, for a job that waits"
    )


@EACH_STORE
async def test_progress_carries_its_own_time(engine: Engine, clock: VirtualClock) -> None:
    await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    began = claimed.job.updated_at
    clock.advance(10)
    said = Alive(id=claimed.job.id, token=claimed.token, progress=Progress(done=1, total=2))
    await engine(Renew(worker=worker, jobs=[said]))
    assert (await engine(Show(id=claimed.job.id))).updated_at - began == timedelta(seconds=10)
    clock.advance(10)
    await engine(Renew(worker=worker, jobs=[Alive(id=claimed.job.id, token=claimed.token)]))
    assert (await engine(Show(id=claimed.job.id))).updated_at - began == timedelta(seconds=10), "nothing is new"


@ON_A_FILE
def test_a_run_that_was_given_back_is_logged_so(harness: WorkerHarness) -> None:
    id = harness.tasks.nap.enqueue(60).id
    worker = harness.start("-v", "--grace", "0s")
    harness.noted("start")
    worker.stop()
    said = worker.hear(f"{id} nap (.*) after [0-9.]+ s")
    assert said[1] == "released"


@ON_A_FILE
def test_a_result_that_is_too_large_leaves_a_line_in_the_log(harness: WorkerHarness) -> None:
    id = harness.tasks.huge_result.enqueue(17).id
    worker = harness.start("--burst", "-v")
    worker.hear(f"{id}.*its outcome could not be stored: .* bytes, at most")
    assert worker.ended() == 0
    assert "huge_result completed" not in worker.said, "one line of it, which is true"


def test_running_jobs_stand_under_their_workers_in_eighty_columns() -> None:
    id = "019a0000-0000-7000-8000-00000000000"
    began = NOW - timedelta(seconds=250)
    places = (("w1", "big", "report"), ("w1", "big", "scan"), ("w2", "big", "report"))
    jobs = [
        running(started_at=began, pid=4711 + place, worker=worker, node=node, queue="mail")
        for place, (worker, node, _) in enumerate(places)
    ]
    jobs = [replace(job, id=f"{id}{place}", task=places[place][2]) for place, job in enumerate(jobs)]
    jobs[0] = replace(jobs[0], usage=RunUsage(memory=210_300_000, cpu=1.02, output=2100))
    jobs[1] = replace(jobs[1], usage=RunUsage(output=7))
    paper = Console(width=80, file=io.StringIO())
    table = terminal.Table(running_columns(jobs, NOW), jobs, partial(worker_of, {"w1": "anna"}))
    paper.print(table)
    assert paper.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "job                                   task           for    memory  cpu   output",
        "big  anna",
        f"{id}0  report  4 min 10 s  210.3 MB  1.0   2.1 kB",
        f"{id}1  scan    4 min 10 s                 7 bytes",
        "big  w2",
        f"{id}2  report  4 min 10 s",
    ]
    assert [column.title for column in running_columns(jobs[2:], NOW)] == ["job", "task", "for", "pid", "queue", ""]
