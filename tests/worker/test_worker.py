"""What a worker does all day: it takes jobs at once, runs them side by side, and tells how they ended."""

import json
import re
import signal
import statistics
import time
from collections import Counter

import pytest

from tests.support.patience import PATIENCE
from tests.support.servers import Server
from tests.support.worker_harness import ON_A_FILE, STORES, MakeHarness, StoreKind, WorkerHarness, tell, until
from windlass.model.job import State
from windlass.model.operations import Workers


def test_every_kind_of_task_runs_and_nothing_runs_twice(harness: WorkerHarness) -> None:
    """S4 4 and 27: in another process, on either store."""
    tasks = harness.tasks
    worker = harness.start("-c", "32", "--contexts", "2")
    kinds = [tasks.add, tasks.co_add] * 12 + [tasks.alone_add, tasks.alone_co_add]
    jobs = [kinds[number % len(kinds)].enqueue(number, 1) for number in range(500)]
    assert [job.result(PATIENCE) for job in jobs] == list(range(1, 501))
    ran = [line.split()[0] for line in harness.notes("add")]
    assert sorted(ran) == sorted(job.id for job in jobs)
    assert len({line.split()[1] for line in harness.notes("add")}) > 2
    assert worker.stop() == 0


@ON_A_FILE
def test_blocking_tasks_run_at_once(harness: WorkerHarness) -> None:
    """S4 28: so many at once."""
    harness.start("-c", "30", "--contexts", "1")
    harness.tasks.add.enqueue(1, 1).result(PATIENCE)
    jobs = harness.tasks.stay.map(["x"] * 30)
    harness.noted("start", 30)
    assert not harness.notes("end"), "all run, and none has ended"
    (harness.folder / "let go").touch()
    assert {harness.ended(job).state for job in jobs} == {State.SUCCEEDED}


def test_short_jobs_do_not_wait_behind_long_ones(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    harness.start("-c", "8", "--contexts", "1")
    long = [tasks.stay.enqueue("x"), tasks.co_nap.enqueue(60.0), tasks.compute.enqueue(60.0)]
    harness.noted("start", 2)
    harness.noted("computing")
    for number in range(20):
        (tasks.stamp, tasks.co_stamp)[number % 2].enqueue(time.time_ns()).result(PATIENCE)
    late = [int(nanoseconds) / 1e6 for nanoseconds in harness.notes("late")]
    tell(f"beside a computing thread: median {statistics.median(late):.1f} ms, worst {max(late):.1f} ms")
    assert not harness.notes("end")
    assert not harness.notes("computed")
    assert [job.state for job in long] == [State.RUNNING] * 3


def test_an_idle_worker_starts_a_job_at_once(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    harness.start("--contexts", "1")
    tasks.stamp.enqueue(time.time_ns()).result(PATIENCE)
    for number in range(50):
        time.sleep(0.02)
        (tasks.stamp, tasks.co_stamp)[number % 2].enqueue(time.time_ns())
    late = sorted(int(nanoseconds) / 1e6 for nanoseconds in harness.noted("late", 51)[1:])
    tell(f"started after: median {statistics.median(late):.2f} ms, worst {late[-1]:.2f} ms")


def test_a_task_that_holds_the_interpreter_keeps_its_lease(harness: WorkerHarness) -> None:
    harness.start("--contexts", "1", lease="2s")
    job = harness.tasks.hold_gil.enqueue(5.0)
    record = harness.ended(job)
    assert (record.state, record.attempt, record.losses) == (State.SUCCEEDED, 1, 0)
    assert len(harness.notes("start")) == 1


def test_a_burst_ends_when_nothing_is_left_and_takes_the_dearest_queue_first(harness: WorkerHarness) -> None:
    """S4 28: burst."""
    nap = harness.tasks.nap
    for number in range(3):
        nap.using(queue="slow").enqueue(0.0, f"slow{number}")
        nap.using(queue="dear").enqueue(0.0, f"dear{number}")
    nap.using(queue="other").enqueue(0.0, "other")
    harness.burst("-q", "dear,slow", "--strict", "-c", "1")
    order = [line.split()[0] for line in harness.notes("start")]
    assert order == ["dear0", "dear1", "dear2", "slow0", "slow1", "slow2"]


TWO_QUEUES = """
import os
from pathlib import Path

from windlass import Windlass

app = Windlass(tenant=os.environ["HARNESS_TENANT"])


def note(queue):
    with Path(__file__).with_name("notes").open("a") as notes:
        notes.write(f"{queue}\\n")


@app.task(queue="mail")
def mail() -> None:
    note("mail")


@app.task(queue="few")
def few() -> None:
    note("few")
"""


@pytest.mark.parametrize("kind", STORES)
def test_without_an_order_the_queues_of_a_worker_take_turns(
    make_harness: MakeHarness, redis_server: Server, kind: StoreKind
) -> None:
    shop = make_harness(TWO_QUEUES, store=redis_server.url if kind == "redis" else "")
    shop.tasks.mail.map([()] * 600)
    shop.tasks.few.map([()] * 8)
    shop.burst("-c", "1", "--contexts", "1")
    order = shop.notes()
    assert (order.count("mail"), order.count("few")) == (600, 8)
    last = len(order) - order[::-1].index("few")
    assert last < 100, "eight turns of the second queue, while hundreds wait in the first"


def test_with_strict_queues_are_served_in_the_order_in_which_they_are_named(harness: WorkerHarness) -> None:
    """However few wait in the second one."""
    nap = harness.tasks.nap
    nap.using(queue="few").map([(0.0, f"few{number}") for number in range(3)])
    nap.using(queue="mail").map([(0.0, f"mail{number}") for number in range(60)])
    harness.burst("-q", "mail,few", "--strict", "-c", "1")
    order = [line.split()[0] for line in harness.notes("start")]
    assert order == [*(f"mail{number}" for number in range(60)), "few0", "few1", "few2"]


@pytest.mark.parametrize("kind", STORES)
def test_named_queues_take_turns_by_weight(make_harness: MakeHarness, redis_server: Server, kind: StoreKind) -> None:
    shop = make_harness(TWO_QUEUES, store=redis_server.url if kind == "redis" else "")
    shop.tasks.mail.map([()] * 200)
    shop.tasks.few.map([()] * 200)
    worker = shop.burst("-q", "mail=4,few", "-c", "1", "--contexts", "1")
    assert "queues mail (4 turns), few in turn" in worker.said
    order = shop.notes()
    last = len(order) - order[::-1].index("mail")
    early = order[:last].count("few")
    assert 20 < early < 100, "about a quarter of two hundred"
    shop.start("-q", "mail=4,few")
    assert "mail=4,few" in shop.run("workers", "ls", "--tenant", shop.tenant).stdout
    assert shop.run("worker", "-q", "mail=2", "--strict").stderr.strip().endswith("leave the numbers out")
    assert "--queues: not a name, nor one with a number of turns" in shop.run("worker", "-q", "mail=17").stderr


def test_a_worker_is_listed_while_it_lives(harness: WorkerHarness) -> None:
    worker = harness.start("--name", "anna", "-c", "3")
    until(lambda: harness.app.ask(Workers())[0].usage)
    (found,) = harness.app.ask(Workers())
    assert found.usage is not None
    assert found.usage.memory > 2**20
    listed = harness.run("workers", "ls", "--tenant", harness.tenant).stdout
    assert "anna" in listed
    assert "memory" in listed
    worker.stop()
    assert "anna" not in harness.run("workers", "ls", "--tenant", harness.tenant).stdout


def test_a_worker_is_marked_while_it_drains(harness: WorkerHarness) -> None:
    """S1 14, 15."""

    def draining() -> list[bool]:
        return [one.draining for one in harness.app.ask(Workers())]

    worker = harness.start("-c", "3")
    job = harness.tasks.stay.enqueue("here")
    harness.noted("start")
    assert draining() == [False]
    worker.send(signal.SIGTSTP)
    until(lambda: draining() == [True])
    assert "draining" in harness.run("workers", "ls", "--tenant", harness.tenant).stdout
    (node,) = json.loads(harness.run("workers", "nodes", "--json", "--tenant", harness.tenant).stdout)
    assert (node["workers"], node["draining"], node["running"], node["slots"]) == (1, 1, 1, 1)
    until(lambda: job.refresh().pid)
    row = harness.run("workers", "jobs", "--tenant", harness.tenant).stdout
    assert job.id in row
    assert str(job.refresh().pid) in row
    worker.send(signal.SIGCONT)
    until(lambda: draining() == [False])
    worker.send(signal.SIGTERM)
    until(lambda: draining() == [True])
    waiting = harness.tasks.nap.enqueue(0.0)
    assert "none" in harness.run("queues", "ls", "--tenant", harness.tenant).stdout
    (harness.folder / "let go").touch()
    worker.ended()
    assert (draining(), job.state, waiting.state) == ([], State.SUCCEEDED, State.QUEUED)


@ON_A_FILE
def test_a_large_result_fails_alone(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    harness.start("-c", "8", "--contexts", "1")
    beside = tasks.nap.enqueue(1.0)
    harness.noted("start")
    huge = [tasks.huge_result.enqueue(megabytes) for megabytes in (17, 100)]
    for job in huge:
        record = harness.ended(job)
        assert record.state is State.FAILED
        assert record.crashes == 0
        assert record.error is not None
        assert "bytes" in record.error.message
    record = harness.ended(beside)
    assert (record.state, record.attempt) == (State.SUCCEEDED, 1)


def test_many_large_payloads_reach_their_tasks(harness: WorkerHarness) -> None:
    harness.start("-c", "200", "--contexts", "1")
    jobs = harness.tasks.measure.map([b"x" * 1_000_000] * 100)
    assert [job.result(PATIENCE) for job in jobs] == [1_000_000] * 100


def test_a_worker_tells_of_runs_that_went_wrong_and_of_no_others(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    worker = harness.start("-c", "4", "--contexts", "1")
    jobs = [tasks.complain.enqueue(how) for how in ("error", "fail", "retry", "snooze", "bell")]
    for job in jobs:
        harness.ended(job)
    slow, cancelled = tasks.asleep.using(timeout=0.1).enqueue(), tasks.co_asleep.enqueue()
    harness.noted("began", 2)
    cancelled.cancel()
    harness.ended(slow)
    harness.ended(cancelled)
    assert tasks.add.enqueue(1, 1).result(PATIENCE) == 2
    worker.hear(f"{jobs[0].id} complain failed in attempt 1: ValueError: no good\n")
    worker.hear(f"{jobs[1].id} complain failed in attempt 1: windlass.Fail: never\n")
    worker.hear(f"{jobs[2].id} complain asks for another run in attempt 1: windlass.Retry: again\n")
    worker.hear(f"{jobs[4].id} complain failed in attempt 1: ValueError: \ufffdbell\n")
    worker.hear(f"{slow.id} asleep failed in attempt 1: Timeout: ran longer than its time limit of 0.1 s\n")
    assert worker.said.count("windlass.job: ") == 5
    assert worker.stop() == 0


def test_a_task_says_which_of_its_errors_run_again_whatever_runs_it(harness: WorkerHarness) -> None:
    harness.start("-c", "4", "--contexts", "1")
    tasks = harness.tasks
    for task in (tasks.picky, tasks.co_picky, tasks.alone_picky, tasks.alone_co_picky):
        ended = {how: harness.ended(task.enqueue(how)) for how in ("net", "key")}
        assert {how: (job.attempt, job.reason) for how, job in ended.items()} == {
            "net": (2, "error"),
            "key": (1, "failed"),
        }
        assert [error.type for error in ended["net"].errors] == ["ConnectionResetError"] * 2
        shown = harness.run("jobs", "show", ended["net"].id, "--tenant", harness.tenant).stdout
        assert [f"attempt {number}: ConnectionResetError" in shown for number in (1, 2)] == [True, True]
    assert len(harness.notes("picked")) == 12


@ON_A_FILE
def test_a_worker_does_not_tell_of_thousands_of_failures_one_by_one(harness: WorkerHarness) -> None:
    worker = harness.start("-c", "32", "--contexts", "1")
    for job in harness.tasks.complain.map(["error"] * 500):
        harness.ended(job)
    time.sleep(1.1)
    harness.ended(harness.tasks.complain.enqueue("error"))

    def said() -> Counter[str]:
        """Its lines, by second."""
        return Counter(line.split()[0] for line in worker.said.splitlines() if "windlass.job: " in line)

    def dropped() -> int:
        return sum(int(number) for number in re.findall(r"\(([\d,]+) lines? before it dropped\)", worker.said))

    until(lambda: said().total() + dropped() == 501)
    assert max(said().values()) <= 20


def test_a_scheduled_job_starts_when_it_is_due(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    harness.start("-c", "4", "--contexts", "1")
    tasks.add.enqueue(1, 1).result(PATIENCE)
    late = []
    for delay in (0.33, 0.41, 0.56, 0.62, 0.79):
        record = harness.ended(tasks.add.using(delay=delay).enqueue(1, 1))
        assert record.started_at is not None
        late.append((record.started_at - record.created_at).total_seconds() - delay)
    tell(f"late by {[round(seconds * 1000) for seconds in late]} ms")
    assert min(late) >= 0
