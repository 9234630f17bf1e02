"""`windlass limits`, `windlass tasks`, and how queues are run, on the command line."""

import itertools
import json
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.worker_harness import ON_A_FILE, WorkerHarness
from windlass.model.job import State


def ok(harness: WorkerHarness, *words: str) -> str:
    done = harness.run(*words, "--tenant", harness.tenant)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def refused(harness: WorkerHarness, *words: str) -> tuple[int, str]:
    done = harness.run(*words, "--tenant", harness.tenant)
    return done.returncode, done.stderr


def test_limits_are_set_listed_shown_and_removed(harness: WorkerHarness) -> None:
    said = ok(harness, "limits", "set", "api", "--task", "add", "--running", "2", "--rate", "100/1m", "--burst", "5")
    assert "limit api: at most 2 at once and at most 100 in 60 s, burst 5, of jobs with" in said
    (listed,) = json.loads(ok(harness, "limits", "ls", "--json"))
    assert listed["rate"] == {"count": 100, "per": 60.0, "burst": 5}
    assert "api" in ok(harness, "limits", "ls")
    shown = json.loads(ok(harness, "limits", "show", "api", "--json"))
    assert (shown["name"], shown["match"]) == ("api", {"task": "add"})
    assert "limit api: at most 2" in harness.run("limits", "show", "api", "--tenant", harness.tenant).stdout
    ok(harness, "limits", "rm", "api")
    assert "no limits" in ok(harness, "limits", "ls")
    assert refused(harness, "limits", "show", "api")[0] == 3


@ON_A_FILE
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--running", "0"], "running"),
        ([], "how many may run at once"),
        (["--rate", "often"], "is not N/TIME"),
        (["--burst", "3", "--running", "1"], "--burst needs --rate"),
        (["--running", "1", "--key", "colour"], "is no key"),
        (["--running", "1", "--match", '{"colour": "red"}'], "colour"),
        (["--running", "1", "--match", "{}", "--task", "a"], "not both"),
        (["--running", "1", "--payload", "a"], "FIELD=VALUE"),
        (["--running", "1", "--payload", 'a={"colour": 1}'], "neither a single value nor a test"),
    ],
)
def test_a_limit_that_cannot_be_meant_is_refused_with_one_clear_line(
    harness: WorkerHarness, words: list[str], says: str
) -> None:
    status, said = refused(harness, "limits", "set", "x", *words)
    assert status == 2
    assert says in said
    assert said.count("\n") == 1


def test_a_limit_set_while_jobs_wait_bounds_a_worker_that_comes_later(harness: WorkerHarness) -> None:
    jobs = [harness.tasks.co_nap.enqueue(0.3, "n") for _ in range(3)]
    ok(harness, "limits", "set", "one", "--running", "1")
    harness.start("-c", "3")
    records: list[Any] = [harness.ended(job) for job in jobs]
    spans = sorted((record.started_at, record.finished_at) for record in records)
    assert all(ended <= begun for (_, ended), (begun, _) in itertools.pairwise(spans))


def test_queues_tasks_and_limits_are_paused_and_resumed(harness: WorkerHarness) -> None:
    harness.start()
    assert "paused: moved" in ok(harness, "queues", "pause", "default", "--why", "moved")
    job = harness.tasks.add.enqueue(1, 2)
    assert "paused" in ok(harness, "queues", "show", "default")
    assert "queue default: paused: moved" in ok(harness, "queues", "ls")
    assert job.state is State.QUEUED
    ok(harness, "queues", "resume", "default")
    assert job.result(timeout=PATIENCE) == 3

    assert "paused until" in ok(harness, "tasks", "pause", "add", "--for", "1h")
    job = harness.tasks.add.enqueue(3, 4)
    assert harness.tasks.co_add.enqueue(1, 1).result(timeout=PATIENCE) == 2
    assert job.state is State.QUEUED
    ok(harness, "tasks", "resume", "add")
    assert job.result(timeout=PATIENCE) == 7

    ok(harness, "limits", "set", "some", "--task", "add", "--running", "9")
    ok(harness, "limits", "pause", "some", "--for", "6s")
    job = harness.tasks.add.enqueue(5, 6)
    assert harness.tasks.co_add.enqueue(2, 2).result(timeout=PATIENCE) == 4
    assert job.state is State.QUEUED
    assert job.result(timeout=PATIENCE) == 11, "a pause ends by itself"


def test_the_settings_of_a_queue_are_set_and_shown(harness: WorkerHarness) -> None:
    said = ok(
        harness, "queues", "set", "web", "--tier", "fast:3s", "--tier", "slow:30s:20%", "--policy", "fair",
        "--weight", "a=2", "--timeout", "2h", "--isolate", "--on-lost", "fail", "--keep-success", "none",
    )  # fmt: skip
    assert "slow 30 s at most 20%" in said
    card = json.loads(ok(harness, "queues", "set", "web", "--tier", "none", "--no-isolate", "--json"))
    assert "tiers" not in card
    assert (card["policy"], card["weights"], card["timeout"], card["keep_success"]) == (
        "fair",
        {"a": 2.0},
        7200.0,
        None,
    )
    assert refused(harness, "queues", "set", "web")[0] == 2
    assert "shortest first" in refused(harness, "queues", "set", "web", "--tier", "a:3s", "--tier", "b:2s")[1]


def test_a_job_asks_for_its_tier_on_the_command_line(harness: WorkerHarness) -> None:
    ok(harness, "queues", "set", "default", "--tier", "fast:3s", "--tier", "slow:30s:50%")
    id = ok(harness, "enqueue", "add", "[1, 2]", "--tier", "slow").strip()
    assert json.loads(ok(harness, "jobs", "show", id, "--json"))["tier"] == "slow"
    status, said = refused(harness, "enqueue", "add", "[1, 2]", "--yielding")
    assert status == 75, said
