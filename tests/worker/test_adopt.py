"""`on_lost="adopt"`: a job's process outlives its worker, and the next worker of the machine goes on with it.

Each test counts from outside how often the job's code began.
"""

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.http_servers import Process
from tests.support.patience import PATIENCE
from tests.support.stores import VirtualClock
from tests.support.worker_harness import ON_A_FILE, Worker, WorkerHarness, alive, until
from tests.worker.test_guardian import guardian_of, zygote_of
from windlass.addresses import identity
from windlass.job_handle import Job
from windlass.model.job import Job as Record
from windlass.model.job import Reason, State
from windlass.model.operations import GetOutput, Workers
from windlass.worker import linux
from windlass.worker.linux import SHIM, OwnProcess, UsageMeter

SHORT_LEASE = "1s"


def started(harness: WorkerHarness) -> int:
    """The process of the one job that has begun."""
    (line,) = harness.noted("start")
    return int(line.split()[-1])


def let_go(harness: WorkerHarness) -> None:
    (harness.folder / "let go").touch()


def folders(harness: WorkerHarness) -> list[Path]:
    return list((harness.folder / "data" / "runs").iterdir())


def printed(harness: WorkerHarness, job: Job[int]) -> list[int]:
    page = harness.app.ask(GetOutput(tenant=harness.tenant, id=job.id, limit=1000))
    return [int(line) for line in b"".join(chunk.data for chunk in page.chunks).split()]


def ran_once(harness: WorkerHarness, job: Job[int], worker: Worker) -> Record:
    """It has succeeded in its first attempt, under this worker, and nothing of what it said is missing."""
    record = harness.ended(job)
    assert (record.state, record.attempt, record.losses, record.errors) == (State.SUCCEEDED, 1, 0, [])
    assert record.pid == started(harness)
    assert (record.adopted_by, record.node) == (record.worker, os.uname().nodename)
    assert record.adopted_at is not None
    places = list(dict.fromkeys(printed(harness, job)))  # what a worker had just sent when it was killed comes twice
    assert places == list(range(job.result(timeout=PATIENCE)))
    assert record.progress is not None
    assert record.progress.done == places[-1]
    worker.hear("adopted job")
    until(lambda: not folders(harness))
    return record


def kill(worker: Worker) -> None:
    worker.send(signal.SIGKILL)
    worker.ended()


def test_a_job_outlives_two_deploys_and_a_killed_worker(harness: WorkerHarness) -> None:
    """S1 20, 22, 26: it runs longer than every lease of a worker, and once."""
    job = harness.tasks.lasting.enqueue()
    worker = harness.start("--grace", "60s", lease=SHORT_LEASE)
    process = started(harness)
    assert worker.stop() == 0
    worker.hear("goes on without this worker")
    time.sleep(1.5)
    worker = harness.start("--grace", "60s", lease=SHORT_LEASE)
    worker.hear("adopted job")
    kill(worker)
    worker = harness.start(lease=SHORT_LEASE)
    worker.hear("adopted job")
    first = job.refresh().worker
    assert worker.stop() == 0
    worker = harness.start(lease=SHORT_LEASE)
    worker.hear("adopted job")
    assert alive(process)
    assert job.refresh().worker != first
    shown = harness.run("jobs", "show", job.id, "--tenant", harness.tenant).stdout
    assert "adopted" in shown
    let_go(harness)
    ran_once(harness, job, worker)


@ON_A_FILE
def test_a_worker_of_a_server_adopts_too(harness: WorkerHarness, tmp_path: Path) -> None:
    server = Process(tmp_path, "--no-worker", store=harness.store)
    server.start()
    try:
        job = harness.tasks.lasting.enqueue()
        worker = harness.start("--server", server.address, lease=SHORT_LEASE, WINDLASS_TOKEN=server.token)
        started(harness)
        kill(worker)
        worker = harness.start("--server", server.address, lease=SHORT_LEASE, WINDLASS_TOKEN=server.token)
        worker.hear("adopted job")
        let_go(harness)
        ran_once(harness, job, worker)
        worker.hear("store http")
        assert worker.stop() == 0
    finally:
        server.kill()


@ON_A_FILE
def test_a_worker_goes_on_with_such_a_job_when_its_zygote_is_killed(harness: WorkerHarness) -> None:
    other = harness.tasks.alone_nap.using(on_lost="fail").enqueue(60.0, "other")
    job = harness.tasks.lasting.enqueue()
    worker = harness.start()
    harness.noted("start", 2)
    zygote_of(worker).kill()
    assert harness.ended(other).reason is Reason.CRASHED
    worker.hear("is back")
    (guardian,) = [one for one in psutil.Process(worker.pid).children() if one.name() != SHIM]
    guardian.kill()
    until(lambda: worker.said.count("is back") == 2)
    let_go(harness)
    record = harness.ended(job)
    assert (record.state, record.attempt, record.adopted_by) == (State.SUCCEEDED, 1, None)
    assert printed(harness, job) == list(range(job.result(timeout=PATIENCE)))


@ON_A_FILE
def test_whatever_is_killed_of_a_worker_its_other_jobs_die_with_it(harness: WorkerHarness) -> None:
    harness.tasks.alone_nap.using(on_lost="fail").enqueue(60.0, "other")
    harness.tasks.lasting_parent.enqueue()
    worker = harness.start(lease=SHORT_LEASE)
    pids = {word: int(pid) for word, pid in (line.split() for line in harness.noted("start", 2))}
    for process in (guardian_of(worker), psutil.Process(worker.pid)):
        process.kill()
    worker.ended()
    until(lambda: not alive(pids["other"]))
    assert alive(pids["parent"])
    (offspring,) = map(int, harness.notes("offspring"))
    assert alive(offspring)
    harness.start(lease=SHORT_LEASE).hear("adopted job")
    let_go(harness)
    until(lambda: not alive(offspring))


def test_a_job_outlives_the_process_groups_of_its_worker(harness: WorkerHarness) -> None:
    job = harness.tasks.lasting.enqueue()
    worker = harness.start(lease=SHORT_LEASE)
    process = started(harness)
    for group in {os.getpgid(pid) for pid in (zygote_of(worker).pid, guardian_of(worker).pid, worker.pid)}:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    worker.ended()
    worker = harness.start(lease=SHORT_LEASE)
    worker.hear("adopted job")
    assert alive(process)
    let_go(harness)
    ran_once(harness, job, worker)


def test_a_job_all_of_whose_processes_are_killed_has_failed_within_seconds(harness: WorkerHarness) -> None:
    """S1 24: though its lease runs for minutes."""
    job = harness.tasks.lasting.using(max_retry=3).enqueue()
    worker = harness.start(lease=SHORT_LEASE)
    process = started(harness)
    worker.send(signal.SIGKILL)
    for pid in harness.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    worker.ended()
    harness.start(lease=SHORT_LEASE)
    record = harness.ended(job)
    assert (record.state, record.reason, record.attempt, record.crashes) == (State.FAILED, Reason.CRASHED, 1, 1)
    assert record.error is not None
    assert (record.error.message, record.error.pid) == ("its process is gone, and has left no result", process)
    assert len(harness.notes("start")) == 1
    until(lambda: not folders(harness))


@ON_A_FILE
def test_a_job_whose_shim_is_killed_is_not_started_again(harness: WorkerHarness) -> None:
    job = harness.tasks.lasting.enqueue()
    worker = harness.start()
    process = started(harness)
    psutil.Process(psutil.Process(process).ppid()).kill()
    record = harness.ended(job)
    assert (record.state, record.reason, record.attempt) == (State.FAILED, Reason.CRASHED, 1)
    assert record.errors[0].pid == process
    until(lambda: not alive(process))
    assert worker.stop() == 0
    assert len(harness.notes("start")) == 1
    assert not folders(harness)


@ON_A_FILE
@pytest.mark.parametrize("how", ["killed", "done"])
def test_a_job_whose_process_ended_meanwhile_is_settled_by_the_next_worker(harness: WorkerHarness, how: str) -> None:
    job = harness.tasks.lasting.enqueue()
    worker = harness.start()
    process = started(harness)
    kill(worker)
    if how == "killed":
        os.kill(process, signal.SIGSEGV)
    else:
        let_go(harness)
    until(lambda: not harness.processes())
    worker = harness.start()
    if how == "done":
        ran_once(harness, job, worker)
        return
    record = harness.ended(job)
    assert (record.state, record.reason) == (State.FAILED, Reason.CRASHED)
    assert record.error is not None
    assert "SIGSEGV" in record.error.message


@ON_A_FILE
def test_of_two_workers_one_adopts_a_job(harness: WorkerHarness) -> None:
    job = harness.tasks.lasting.enqueue()
    kill_first = harness.start()
    started(harness)
    kill(kill_first)
    workers = [harness.start_raw(), harness.start_raw()]
    for worker in workers:
        worker.hear("at once")
    until(lambda: any("adopted job" in worker.said for worker in workers))
    let_go(harness)
    harness.ended(job)
    (one,) = [worker for worker in workers if "adopted job" in worker.said]
    ran_once(harness, job, one)


def test_the_address_of_the_store_may_be_written_in_another_way(harness: WorkerHarness) -> None:
    job = harness.tasks.lasting.enqueue()
    worker = harness.start()
    started(harness)
    kill(worker)
    if harness.store.startswith("redis://"):
        same = harness.store.replace("127.0.0.1", "default@localhost").removesuffix("/0")
    else:
        same = str(harness.folder / "link.db")
        Path(same).symlink_to(harness.store)
    worker = harness.start(WINDLASS_STORE=same)
    worker.hear("adopted job")
    let_go(harness)
    ran_once(harness, job, worker)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis://db", "rediss://user:secret@db:6379/0?replicas=1", True),
        ("redis://127.0.0.1:6380/2", "redis://localhost:6380?db=2", True),
        ("redis://db/1", "redis://db/2", False),
        ("redis://db", "redis://db:6380", False),
        ("unix:///run/redis.sock", "unix:///run/redis.sock?db=0", True),
        ("redis+sentinel://a,b:26379/main", "redis+sentinel://:pw@b,a/main/0", True),
        ("redis+sentinel://a/main", "redis+sentinel://a/other", False),
        ("/srv/jobs.db", "sqlite:///srv/../srv/jobs.db", True),
        ("/srv/jobs.db", "/srv/other.db", False),
        ("http://queue:7717", "http://queue:7717/", True),
        ("http://queue:7717", "http://queue:7718", False),
    ],
)
def test_addresses_of_the_same_store_are_known_as_such(one: str, other: str, same: bool) -> None:
    assert (identity(one) == identity(other)) is same


@ON_A_FILE
def test_a_worker_counts_what_the_jobs_that_it_adopted_use(harness: WorkerHarness) -> None:
    job = harness.tasks.lasting.enqueue(megabytes=300)
    worker = harness.start(lease=SHORT_LEASE)
    started(harness)
    kill(worker)
    worker = harness.start(lease=SHORT_LEASE)
    worker.hear("adopted job")

    def memory() -> list[int]:
        listed = harness.app.ask(Workers())
        return [one.usage.memory for one in listed if one.pid == worker.pid and one.usage is not None]

    until(lambda: memory() and memory()[0] > 300 << 20)
    let_go(harness)
    harness.ended(job)


def test_cpu_time_from_before_an_adoption_is_not_of_the_adopter(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {os.getpid(): 10.0, 77: 5000.0}
    monkeypatch.setattr(linux, "cpu_time", lambda pid: used.get(pid, 0.0))
    monkeypatch.setattr(linux, "children", lambda _: [])
    clock = VirtualClock()
    meter = UsageMeter(clock)
    adopted = {1: OwnProcess(77, None)}
    for _ in range(2):
        used |= {os.getpid(): used[os.getpid()] + 0.5, 77: used[77] + 0.25}
        clock.advance(1.0)
        assert meter.read({})[1] == 0.5
    clock.advance(1.0)
    assert meter.read(adopted)[1] == 0.0
    used[77] += 0.75
    clock.advance(1.0)
    assert meter.read(adopted)[1] == 0.75


def test_a_job_whose_machine_is_gone_fails_when_its_own_lease_is_over(harness: WorkerHarness) -> None:
    """S1 25."""
    job = harness.tasks.lasting.enqueue()
    worker = harness.start("--adopt-lease", "3s", lease=SHORT_LEASE)
    started(harness)
    worker.send(signal.SIGKILL)
    for pid in harness.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    worker.ended()
    shutil.rmtree(harness.folder / "data")
    harness.start(lease=SHORT_LEASE)
    record = harness.ended(job)
    assert (record.state, record.reason, record.attempt) == (State.FAILED, Reason.LOST, 1)
    assert len(harness.notes("start")) == 1


@ON_A_FILE
def test_a_process_does_not_outlive_its_lease(harness: WorkerHarness) -> None:
    harness.tasks.lasting.enqueue()
    worker = harness.start("--adopt-lease", "1s")
    process = started(harness)
    kill(worker)
    until(lambda: not alive(process))
    until(lambda: not harness.processes())
    until(lambda: not folders(harness))


def test_a_worker_that_is_to_leave_no_jobs_ends_them(harness: WorkerHarness) -> None:
    job = harness.tasks.lasting.enqueue()
    worker = harness.start("--stop-jobs", "--grace", "0s")
    started(harness)
    assert worker.stop() == 0
    assert not harness.processes()
    record = job.refresh()
    assert (record.state, record.reason, record.attempt) == (State.FAILED, Reason.LOST, 1)


@ON_A_FILE
def test_it_also_ends_those_it_has_adopted(harness: WorkerHarness) -> None:
    job = harness.tasks.lasting.enqueue()
    worker = harness.start()
    started(harness)
    kill(worker)
    worker = harness.start("--stop-jobs", "--grace", "0s")
    worker.hear("adopted job")
    assert worker.stop() == 0
    assert not harness.processes()
    record = job.refresh()
    assert (record.state, record.reason) == (State.FAILED, Reason.LOST)
    assert not folders(harness)


@ON_A_FILE
def test_a_job_that_was_cancelled_meanwhile_is_stopped_by_its_adopter(harness: WorkerHarness) -> None:
    job = harness.tasks.lasting.enqueue()
    worker = harness.start()
    process = started(harness)
    kill(worker)
    job.cancel()
    assert alive(process)
    harness.start()
    assert harness.ended(job).state is State.CANCELLED
    until(lambda: not alive(process))


@ON_A_FILE
def test_messages_go_on_with_the_adopter(harness: WorkerHarness) -> None:
    job = harness.tasks.co_lasting.enqueue()
    worker = harness.start()
    started(harness)
    job.send(b"one")
    harness.noted("heard", 1)
    kill(worker)
    job.send(b"two")
    worker = harness.start()
    harness.noted("heard", 2)
    job.send(b"end")
    harness.ended(job)
    assert job.result(timeout=PATIENCE) == ["one", "two", "end"]


@ON_A_FILE
def test_a_job_that_is_run_elsewhere_by_now_loses_its_process(harness: WorkerHarness) -> None:
    job = harness.tasks.lasting.enqueue()
    worker = harness.start()
    process = started(harness)
    kill(worker)
    assert harness.run("jobs", "fail", job.id, "--message", "x", "--tenant", harness.tenant).returncode == 0
    harness.start().hear("is no longer to be run")
    until(lambda: not alive(process))
    until(lambda: not folders(harness))
    assert job.refresh().state is State.FAILED


@ON_A_FILE
def test_what_is_no_folder_of_a_run_is_left_alone(harness: WorkerHarness) -> None:
    runs = harness.folder / "data" / "runs"
    runs.mkdir(parents=True, mode=0o700)
    (runs / "garbage").mkdir()
    (runs / "garbage" / "about").write_bytes(b"\xff" * 100_000)
    (runs / "elsewhere").symlink_to(harness.folder)
    (runs / "file").touch()
    job = harness.tasks.lasting.enqueue()
    let_go(harness)
    worker = harness.burst()
    assert job.refresh().state is State.SUCCEEDED
    assert "adopt" not in worker.said
    assert {path.name for path in folders(harness)} == {"garbage", "elsewhere", "file"}
