"""`on_lost`: whether a job runs again whose run ended without a word of its own.

Each test counts from outside how often the job's code began.
"""

import os
import signal
from contextlib import suppress

import pytest

from tests.support.engines import enqueue, packed, register, take
from tests.support.stores import VirtualClock
from tests.support.worker_harness import ON_A_FILE, STORES, MakeHarness, StoreKind, WorkerHarness, until
from windlass.engine import Engine
from windlass.engine.upkeep import reclaim
from windlass.model.job import Job as Record
from windlass.model.job import Reason, State
from windlass.model.new_job import NewJob
from windlass.model.operations import Begin, ChangeQueue, Claim, Enqueue, Register, Release
from windlass.model.operations.work import Began, Claimed, Released
from windlass.model.queue import QueueChange
from windlass.model.worker import NewWorker

LONG = 60.0
SHORT_LEASE = "1s"
EVERY_WAY = pytest.mark.parametrize("task", ["nap", "co_nap", "alone_nap"])


def failed_once(harness: WorkerHarness, record: Record) -> None:
    """It has failed as lost, its record says where it ran, and no other worker starts it again."""
    assert (record.state, record.attempt) == (State.FAILED, 1)
    harness.burst()
    (started,) = harness.notes("start")
    (entry,) = record.errors
    assert entry.attempt == 1
    assert entry.pid == int(started.split()[-1])
    assert (entry.worker, entry.node) == (record.worker, os.uname().nodename)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@EVERY_WAY
def test_a_job_whose_process_is_killed_is_not_started_again(
    harness: WorkerHarness, task: str, number: signal.Signals
) -> None:
    """S1 13."""
    job = getattr(harness.tasks, task).using(on_lost="fail", max_retry=3).enqueue(LONG)
    harness.start()
    (started,) = harness.noted("start")
    os.kill(int(started.split()[-1]), number)
    record = harness.ended(job)
    assert (record.reason, record.crashes) == (Reason.CRASHED, 1)
    assert record.error is not None
    assert number.name in record.error.message
    failed_once(harness, record)


@EVERY_WAY
def test_a_job_whose_worker_is_killed_is_not_started_again(harness: WorkerHarness, task: str) -> None:
    job = getattr(harness.tasks, task).using(on_lost="fail").enqueue(LONG)
    worker = harness.start(lease=SHORT_LEASE)
    harness.noted("start")
    worker.send(signal.SIGKILL)
    worker.ended()
    harness.start(lease=SHORT_LEASE)
    record = harness.ended(job)
    assert (record.reason, record.losses) == (Reason.LOST, 1)
    failed_once(harness, record)


@EVERY_WAY
def test_a_job_whose_worker_stops_is_not_started_again(harness: WorkerHarness, task: str) -> None:
    job = getattr(harness.tasks, task).using(on_lost="fail").enqueue(LONG)
    worker = harness.start("--grace", "0.3s")
    harness.noted("start")
    assert worker.stop() == 0
    record = job.refresh()
    assert record.reason is Reason.LOST
    assert record.error is not None
    assert record.error.message == "its worker stopped before it had ended"
    failed_once(harness, record)


def test_the_queue_says_so_for_jobs_that_do_not(harness: WorkerHarness) -> None:
    harness.app.ask(ChangeQueue(queue="default", change=QueueChange(on_lost="fail")))
    stay = harness.tasks.stay.using(isolate=True)
    job, other = stay.enqueue("the queue's"), stay.using(on_lost="retry").enqueue("its own")
    worker = harness.start("--grace", "0s")
    harness.noted("start", 2)
    assert worker.stop() == 0
    assert (job.refresh().state, other.refresh().state) == (State.FAILED, State.QUEUED)
    (harness.folder / "let go").touch()
    harness.burst()
    assert sorted(line.rsplit(" ", 1)[0] for line in harness.notes("start")) == ["its own", "its own", "the queue's"]


def test_by_default_such_a_job_runs_again_and_its_record_tells(harness: WorkerHarness) -> None:
    job = harness.tasks.alone_nap.enqueue(LONG)
    worker = harness.start("--grace", "0s")
    harness.noted("start", 1)
    assert worker.stop() == 0
    worker = harness.start(lease=SHORT_LEASE)
    pids = [int(line.split()[-1]) for line in harness.noted("start", 2)]
    until(lambda: job.refresh().pid == pids[1])
    worker.send(signal.SIGKILL)
    worker.ended()
    harness.start()
    pids = [int(line.split()[-1]) for line in harness.noted("start", 3)]
    os.kill(pids[2], signal.SIGKILL)
    pids = [int(line.split()[-1]) for line in harness.noted("start", 4)]
    record = job.refresh()
    assert (record.state, record.attempt) == (State.RUNNING, 3)
    found = [(entry.reason, entry.attempt, entry.pid) for entry in record.errors]
    assert found == [(Reason.RELEASED, 1, pids[0]), (Reason.LOST, 1, pids[1]), (Reason.CRASHED, 2, pids[2])]
    assert len({entry.worker for entry in record.errors}) == 3
    shown = harness.run("jobs", "show", job.id, "--tenant", harness.tenant).stdout
    for entry in record.errors:
        assert f"worker {entry.worker} on {entry.node}, process {entry.pid}" in " ".join(shown.split())
    job.cancel()


def test_what_a_task_says_counts_for_jobs_that_were_there_before_its_first_worker(harness: WorkerHarness) -> None:
    """Such a job, sent by name, knows nothing of its task's options."""
    id = harness.app.ask(Enqueue(job=NewJob(task="lasting", payload=packed({})))).id
    job = harness.app.job(id)
    assert job.refresh().on_lost is None
    worker = harness.start(lease=SHORT_LEASE)
    harness.noted("start")
    worker.send(signal.SIGKILL)
    worker.ended()
    worker = harness.start(lease=SHORT_LEASE)
    worker.hear("adopted job")
    for pid in harness.processes():
        if pid != worker.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    record = harness.ended(job)
    assert (record.state, record.reason, record.attempt) == (State.FAILED, Reason.CRASHED, 1)
    assert len(harness.notes("start")) == 1


@pytest.mark.parametrize("how", ["killed", "stopped", "process"])
def test_no_such_job_is_started_again_however_its_run_ended(harness: WorkerHarness, how: str) -> None:
    job = harness.app.job(harness.app.ask(Enqueue(job=NewJob(task="begun_once", payload=packed({})))).id)
    worker = harness.start("--grace", "0s", lease=SHORT_LEASE)
    (started,) = harness.noted("start")
    if how == "stopped":
        assert worker.stop() == 0
    elif how == "killed":
        worker.send(signal.SIGKILL)
        worker.ended()
        harness.start(lease=SHORT_LEASE)
    else:
        os.kill(int(started.split()[-1]), signal.SIGKILL)
    record = harness.ended(job)
    assert record.reason is (Reason.CRASHED if how == "process" else Reason.LOST)
    failed_once(harness, record)


SNOOZING = """
import os
from pathlib import Path
from windlass import Snooze, Windlass, current, step

app = Windlass(tenant=os.environ["HARNESS_TENANT"])

HERE = Path(__file__).parent

def note(line: str) -> None:
    with (HERE / "notes").open("a") as notes:
        notes.write(line + "\\n")

def charge() -> int:
    note("charged")
    return 7

@app.task(on_lost="fail", isolate=True)
def pay(again: str) -> None:
    paid = step.sync("charge", charge)
    note(f"start {paid} {sorted(current.files)} {os.getpid()}")
    if not (HERE / "snoozed").exists():
        (HERE / "snoozed").write_text("first")
        current.attach(HERE / "snoozed", "left")
        if again == "sleeps":
            step.sync.sleep("1s")
        raise Snooze("1s")
    while again == "hangs":
        pass
"""


@pytest.mark.parametrize("again", ["ends", "sleeps", "hangs"])
@pytest.mark.parametrize("kind", STORES)
def test_a_job_that_asked_for_another_run_keeps_its_steps_and_what_it_left(
    make_harness: MakeHarness, request: pytest.FixtureRequest, kind: StoreKind, again: str
) -> None:
    """Not the files that came with it, which were dropped when its code first began. If the second run is lost there is
    no third.
    """
    harness = make_harness(SNOOZING, store="" if kind == "file" else request.getfixturevalue("redis_server").url)
    job = harness.tasks.pay.using(files={"sent": b"1"}).enqueue(again)
    worker = harness.start(lease=SHORT_LEASE if again == "hangs" else "10s")
    harness.noted("start", 2)
    if again == "hangs":
        worker.send(signal.SIGKILL)
        worker.ended()
        harness.start()
    record = harness.ended(job)
    lost = again == "hangs"
    assert (record.state, record.reason) == ((State.FAILED, Reason.LOST) if lost else (State.SUCCEEDED, record.reason))
    assert [line.rsplit(" ", 1)[0] for line in harness.notes("start")] == ["7 ['sent']", "7 []"]
    assert len(harness.notes("charged")) == 1
    assert "charge" in [one.name for one in job.steps()]
    assert job.files() == {"left": b"first"}


async def test_a_run_that_did_not_begin_is_handed_out_again_also_after_one_that_did(
    engine: Engine, clock: VirtualClock
) -> None:
    job = await enqueue(engine, on_lost="fail")
    worker = await register(engine)
    first = await take(engine, worker)
    await engine(Begin(worker=worker, jobs=[Began(id=job.id, token=first.token, pid=7)]))
    await engine(Release(worker=worker, jobs=[Released(id=job.id, token=first.token)]))
    second = await take(engine, worker)
    clock.advance(engine.context.settings.lease + 1)
    await reclaim(engine)
    third = await take(engine, await register(engine))
    assert (third.job.id, second.token != third.token) == (job.id, True)
    assert third.job.on_lost == "fail"


def claimed_by_hand(harness: WorkerHarness) -> tuple[str, Claimed]:
    app, tenant = harness.app, harness.tenant
    about = NewWorker(name="by hand", queues=["default"], slots=1, lease=1.0)
    worker = app.ask(Register(tenant=tenant, worker=about)).worker
    (one,) = app.ask(Claim(tenant=tenant, worker=worker, wait=10.0))
    return worker, one


def test_a_job_that_never_began_is_handed_out_again(harness: WorkerHarness) -> None:
    """S1 23."""
    job = harness.tasks.alone_nap.using(on_lost="fail").enqueue(0.0)
    claimed_by_hand(harness)
    harness.start()
    record = harness.ended(job)
    assert (record.state, record.attempt, record.losses) == (State.SUCCEEDED, 1, 0)
    assert len(harness.notes("start")) == 1
    assert [(entry.reason, entry.pid) for entry in record.errors] == [(Reason.LOST, None)]


def test_a_job_given_back_unbegun_is_handed_out_again(harness: WorkerHarness) -> None:
    job = harness.tasks.nap.using(on_lost="fail").enqueue(0.0)
    worker, one = claimed_by_hand(harness)
    harness.app.ask(Release(tenant=harness.tenant, worker=worker, jobs=[Released(id=job.id, token=one.token)]))
    harness.burst()
    assert (job.refresh().state, len(harness.notes("start"))) == (State.SUCCEEDED, 1)


def test_from_its_begin_on_a_job_counts_as_begun(harness: WorkerHarness) -> None:
    job = harness.tasks.nap.using(on_lost="fail").enqueue(0.0)
    worker, one = claimed_by_hand(harness)
    assert one.job.on_lost == "fail"
    harness.app.ask(Begin(tenant=harness.tenant, worker=worker, jobs=[Began(id=job.id, token=one.token, pid=77)]))
    harness.start()
    record = harness.ended(job)
    assert (record.state, record.reason, record.errors[-1].pid) == (State.FAILED, Reason.LOST, 77)
    assert not harness.notes("start")


@ON_A_FILE
def test_a_caller_may_run_it_again(harness: WorkerHarness) -> None:
    job = harness.tasks.stay.using(isolate=True, on_lost="fail").enqueue("twice")
    worker = harness.start("--grace", "0s")
    harness.noted("start")
    assert worker.stop() == 0
    (harness.folder / "let go").touch()
    assert harness.run("jobs", "retry", job.id, "--tenant", harness.tenant).returncode == 0
    harness.burst()
    record = job.refresh()
    assert (record.state, len(harness.notes("start"))) == (State.SUCCEEDED, 2)


@ON_A_FILE
def test_a_job_killed_in_its_first_moment_is_not_started_again(harness: WorkerHarness) -> None:
    """The queue knows that a job begins before its code does."""
    jobs = [harness.tasks.nap.using(on_lost="fail").enqueue(LONG, word) for word in "abcdefgh"]
    worker = harness.start("-c", "8", lease=SHORT_LEASE)
    harness.noted("start", 1)
    worker.send(signal.SIGKILL)
    worker.ended()
    until(lambda: not harness.processes())
    begun = {line.split()[0] for line in harness.notes("start")}
    harness.start("-c", "8", lease=SHORT_LEASE)
    for job, word in zip(jobs, "abcdefgh", strict=True):
        if word in begun:
            assert harness.ended(job).reason is Reason.LOST
    for word in begun:
        assert sum(line.split()[0] == word for line in harness.notes("start")) == 1
    for job in jobs:
        job.cancel()
