"""Promises to very long tasks, seen from outside: real workers on both stores, and what their records and lists say.

What the keys of the older queue say of the same is in `tests/dialect/test_blueque.py`; how a run outlives its worker is
in `tests/worker/test_adopt.py`.
"""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.servers import StartServer
from tests.support.worker_harness import STORES, MakeHarness, WorkerHarness, alive, until
from tests.worker.test_adopt import let_go, ran_once, started
from windlass.model.errors import Conflict, Missing
from windlass.model.job import FINISHED, Reason, State

SHORT_LEASE = "1s"


def words(harness: WorkerHarness, note: str = "start") -> list[str]:
    return [line.split()[0] for line in harness.notes(note)]


def listed(harness: WorkerHarness, *command: str) -> list[dict[str, object]]:
    """What a command lists."""
    said = harness.run(*command, "--json", "--tenant", harness.tenant).stdout
    return json.loads(said) if said.startswith("[") else [json.loads(line) for line in said.splitlines()]


def test_s1_1_16_17_29_30_what_is_listed_without_a_worker(harness: WorkerHarness) -> None:
    first, second = [harness.tasks.stay.enqueue("a") for _ in range(2)]
    assert first.id != second.id
    record = first.refresh()
    assert (record.state, record.queue, record.created_at) == (State.QUEUED, "default", record.updated_at)
    assert (record.error, record.worker, record.node, record.pid, record.attempt) == (None, None, None, None, 0)
    assert '"a"' in harness.run("jobs", "show", first.id, "--tenant", harness.tenant).stdout
    assert harness.run("jobs", "result", first.id, "--tenant", harness.tenant).returncode != 0
    assert "none" in harness.run("queues", "ls", "--tenant", harness.tenant).stdout
    first.cancel()
    later = harness.tasks.stay.using(delay=600).enqueue("later")
    for job in (second, later):
        with pytest.raises(Conflict, match="only finished jobs are to be deleted"):
            job.delete(finished_only=True)
    assert {job.id for job in harness.app.jobs()} == {first.id, second.id, later.id}
    assert first.delete(finished_only=True)
    assert [job["id"] for job in listed(harness, "jobs", "ls")] == [later.id, second.id]
    with pytest.raises(Missing):
        first.refresh()
    unknown = harness.run("jobs", "show", first.id, "--tenant", harness.tenant)
    assert (unknown.returncode, unknown.stdout) == (3, "")
    assert f"no job {first.id}" in unknown.stderr


def test_s1_2_3_a_worker_with_one_slot_takes_one_queue_in_order(harness: WorkerHarness) -> None:
    sent = [f"job{number}" for number in range(20)]
    for word in sent:
        harness.tasks.nap.enqueue(0.0, word)
    other = harness.tasks.nap.using(queue="other").enqueue(0.0, "other")
    harness.burst("-q", "default", "-c", "1")
    assert words(harness) == sent
    assert other.state is State.QUEUED


def test_s1_4_each_of_many_jobs_runs_once_under_several_workers(harness: WorkerHarness) -> None:
    workers = [harness.start("-c", "2") for _ in range(3)]
    jobs = [harness.tasks.repeat.enqueue(str(number)) for number in range(60)]
    assert [job.result(60) for job in jobs] == [str(number) for number in range(60)]
    assert Counter(harness.notes("repeat")) == Counter(job.id for job in jobs)
    assert [worker.stop() for worker in workers] == [0, 0, 0]


def test_s1_5_6_23_no_job_is_lost_or_begun_twice_by_workers_that_are_killed(harness: WorkerHarness) -> None:
    chance = random.Random(5)
    jobs = {
        f"job{number}": harness.tasks.nap.using(on_lost="fail").enqueue(0.05, f"job{number}") for number in range(40)
    }
    for _ in range(2):
        worker = harness.start("-c", "4", lease=SHORT_LEASE)
        harness.noted("start", len(harness.notes("start")) + 1)
        time.sleep(chance.uniform(0, 0.1))
        worker.send(signal.SIGKILL)
        worker.ended()
        assert {job.id for job in harness.app.jobs()} == {job.id for job in jobs.values()}
    harness.start("-c", "4", lease=SHORT_LEASE)
    records = {word: harness.ended(job) for word, job in jobs.items()}
    assert set(Counter(words(harness)).values()) == {1}
    assert {word for word, one in records.items() if one.state is State.SUCCEEDED} <= set(words(harness))
    assert {one.reason for one in records.values() if one.state is not State.SUCCEEDED} <= {Reason.LOST}


def test_s1_7_8_9_10_12_the_record_follows_each_run(harness: WorkerHarness) -> None:
    worker = harness.start("-c", "2")
    good, bad = harness.tasks.stay.enqueue("good"), harness.tasks.complain.enqueue("error")
    before = good.refresh()
    pid = int(harness.noted("start")[0].split()[1])
    until(lambda: good.refresh().pid)
    running = good.refresh()
    assert (running.state, running.pid, running.node) == (State.RUNNING, pid, os.uname().nodename)
    assert [(row["id"], row["pid"]) for row in listed(harness, "workers", "jobs")] == [(good.id, pid)]
    let_go(harness)
    while (record := good.refresh()).state not in FINISHED:
        assert (record.state, record.worker, record.finished_at) == (State.RUNNING, running.worker, None)
    assert (record.state, record.worker, record.error) == (State.SUCCEEDED, running.worker, None)
    assert record.finished_at is not None
    assert before.created_at == running.created_at == record.created_at
    assert before.created_at < running.updated_at < record.updated_at
    failed = harness.ended(bad)
    assert failed.error is not None
    assert (failed.state, failed.error.message) == (State.FAILED, "no good\nat all")
    assert listed(harness, "workers", "jobs") == []
    for state, job in (("succeeded", good), ("failed", bad)):
        assert [row["id"] for row in listed(harness, "jobs", "ls", "--state", state)] == [job.id]
    assert worker.stop() == 0


def test_s1_11_any_text_of_a_mebibyte_comes_back_as_it_was_sent(harness: WorkerHarness) -> None:
    text = "grüße\n\0\r\n" + "x" * ((1 << 20) - 64)
    job = harness.tasks.repeat.enqueue(text)
    harness.burst()
    assert job.result() == text


def idle_harness(
    store: str, make_harness: MakeHarness, start_server: StartServer
) -> tuple[WorkerHarness, Callable[[], None]]:
    """A harness, and what makes its worker miss the notice of the next job."""
    if store == "file":
        harness = make_harness()

        def lose_pipes() -> None:
            for pipe in Path(f"{harness.store}-wake").iterdir():
                pipe.unlink()

        return harness, lose_pipes
    server = start_server("redis")

    def lose_connections() -> None:
        server.ask("CLIENT", "KILL", "TYPE", "pubsub")

    return make_harness(store=server.url), lose_connections


@pytest.mark.parametrize("store", STORES)
def test_s1_18_a_worker_finds_a_job_also_if_its_notice_is_lost(
    store: str, make_harness: MakeHarness, start_server: StartServer
) -> None:
    harness, lose_notices = idle_harness(store, make_harness, start_server)
    worker = harness.start()
    assert harness.tasks.repeat.enqueue("heard of").result(60) == "heard of"
    for number in range(3):
        lose_notices()
        assert harness.tasks.repeat.enqueue(f"lost {number}").result(20) == f"lost {number}"
    assert worker.stop() == 0


def test_s1_19_21_a_busy_worker_holds_one_job_and_a_free_one_takes_the_next(harness: WorkerHarness) -> None:
    for _ in range(2):
        harness.start("-c", "1")
    jobs = [harness.tasks.stay.enqueue(word) for word in "abc"]
    harness.noted("start", 2)  # the one that did not get the first job got the second
    until(lambda: all(job.refresh().pid for job in jobs[:2]))
    records = [job.refresh() for job in jobs]
    assert [record.state for record in records] == [State.RUNNING, State.RUNNING, State.QUEUED]
    assert len({record.worker for record in records[:2]}) == 2
    assert records[2].worker is None
    (harness.folder / "let go b").touch()
    assert set(words(harness)[:2]) == {"a", "b"}
    harness.noted("start", 3)
    until(lambda: jobs[2].refresh().worker == records[1].worker)
    assert jobs[0].state is State.RUNNING
    let_go(harness)
    for job in jobs:
        assert harness.ended(job).attempt == 1


@pytest.mark.parametrize("store", STORES)
def test_s1_20_a_job_outlasts_every_lease_a_deploy_a_killed_worker_and_a_restart_of_the_store(
    store: str, make_harness: MakeHarness, start_server: StartServer
) -> None:
    server = start_server("redis", fsync="always") if store == "redis" else None
    harness = make_harness(store=server.url if server is not None else "")
    flags = ("--adopt-lease", "15s", "--grace", "60s")
    job = harness.tasks.lasting.using(expires=2, keep_success=3600).enqueue()
    worker = harness.start(*flags, lease=SHORT_LEASE)
    began, process = time.monotonic(), started(harness)
    assert worker.stop() == 0
    worker = harness.start(*flags, lease=SHORT_LEASE)
    worker.hear("adopted job")
    worker.send(signal.SIGKILL)
    worker.ended()
    if server is not None:
        server.kill()
        worker = harness.start_raw(*flags, lease=SHORT_LEASE)
        time.sleep(1.5)  # longer than the worker's lease
        server.start()
    else:
        worker = harness.start(*flags, lease=SHORT_LEASE)
    worker.hear("adopted job")
    if server is not None:
        server.kill()
        time.sleep(1.5)
        server.start()
    until(lambda: time.monotonic() - began > 17)
    assert alive(process)
    let_go(harness)
    record = ran_once(harness, job, worker)
    assert record.started_at is not None
    assert record.finished_at is not None
    assert record.finished_at - record.started_at > timedelta(seconds=16)


def test_s1_27_28_a_scheduled_job_runs_when_it_is_due_and_a_past_time_is_now(harness: WorkerHarness) -> None:
    now = datetime.now(UTC)
    due = now + timedelta(seconds=3)
    future = harness.tasks.repeat.using(run_at=due).enqueue("future")
    assert future.state is State.SCHEDULED
    past = harness.tasks.repeat.using(run_at=now - timedelta(hours=1)).enqueue("past")
    assert past.state is State.QUEUED
    harness.start()
    record = harness.ended(future)
    assert record.started_at is not None
    assert record.started_at >= due
    assert harness.ended(past).state is State.SUCCEEDED
    assert Counter(harness.notes("repeat")) == Counter([past.id, future.id])


def test_s1_32_each_isolated_job_has_a_process_and_a_session_of_its_own(harness: WorkerHarness) -> None:
    worker = harness.start("-c", "3")
    jobs = {word: harness.tasks.stay.using(isolate=True, on_lost="fail").enqueue(word) for word in "abc"}
    pids = {line.split()[0]: int(line.split()[1]) for line in harness.noted("start", 3)}
    assert {os.getsid(pid) for pid in pids.values()} == set(pids.values())
    assert worker.pid not in pids.values()
    os.kill(pids["a"], signal.SIGKILL)
    assert harness.ended(jobs["a"]).state is State.FAILED
    assert alive(pids["b"])
    let_go(harness)
    assert [harness.ended(jobs[word]).state for word in "bc"] == [State.SUCCEEDED, State.SUCCEEDED]
    assert len(words(harness)) == 3
