"""`windlass limits`, `windlass tasks`, and how queues are run, on the command line."""

import itertools
import json
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.workers import ON_A_FILE, Workshop
from windlass.model.job import State


def ok(workshop: Workshop, *words: str) -> str:
    done = workshop.run(*words, "--tenant", workshop.tenant)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def refused(workshop: Workshop, *words: str) -> tuple[int, str]:
    done = workshop.run(*words, "--tenant", workshop.tenant)
    return done.returncode, done.stderr


def test_limits_are_set_listed_shown_and_removed(workshop: Workshop) -> None:
    said = ok(workshop, "limits", "set", "api", "--task", "add", "--running", "2", "--rate", "100/1m", "--burst", "5")
    assert "limit api: at most 2 at once and at most 100 in 60 s, 5 at first, of jobs with" in said
    (listed,) = json.loads(ok(workshop, "limits", "ls", "--json"))
    assert listed["rate"] == {"count": 100, "per": 60.0, "burst": 5}
    assert "api" in ok(workshop, "limits", "ls")
    shown = json.loads(ok(workshop, "limits", "show", "api", "--json"))
    assert (shown["name"], shown["match"]) == ("api", {"task": "add"})
    assert "limit api: at most 2" in workshop.run("limits", "show", "api", "--tenant", workshop.tenant).stdout
    ok(workshop, "limits", "rm", "api")
    assert "no limits" in ok(workshop, "limits", "ls")
    assert refused(workshop, "limits", "show", "api")[0] == 3


@ON_A_FILE
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--running", "0"], "running"),
        ([], "how many may run at once"),
        (["--rate", "often"], "is not N/TIME"),
        (["--burst", "3", "--running", "1"], "a burst goes with a rate"),
        (["--running", "1", "--key", "colour"], "is no key"),
        (["--running", "1", "--match", '{"colour": "red"}'], "colour"),
        (["--running", "1", "--match", "{}", "--task", "a"], "not both"),
        (["--running", "1", "--payload", "a"], "FIELD=VALUE"),
        (["--running", "1", "--payload", 'a={"colour": 1}'], "neither a single value nor a test"),
    ],
)
def test_a_limit_that_cannot_be_meant_is_refused_with_one_clear_line(
    workshop: Workshop, words: list[str], says: str
) -> None:
    status, said = refused(workshop, "limits", "set", "x", *words)
    assert status == 2
    assert says in said
    assert said.count("\n") == 1


def test_a_limit_set_while_jobs_wait_bounds_a_worker_that_comes_later(workshop: Workshop) -> None:
    jobs = [workshop.chores.co_nap.enqueue(0.3, "n") for _ in range(3)]
    ok(workshop, "limits", "set", "one", "--running", "1")
    workshop.start("-c", "3")
    records: list[Any] = [workshop.ended(job) for job in jobs]
    spans = sorted((record.started_at, record.finished_at) for record in records)
    assert all(ended <= begun for (_, ended), (begun, _) in itertools.pairwise(spans))


def test_queues_tasks_and_limits_are_paused_and_resumed(workshop: Workshop) -> None:
    workshop.start()
    assert "paused: moved" in ok(workshop, "queues", "pause", "default", "--why", "moved")
    job = workshop.chores.add.enqueue(1, 2)
    assert "paused" in ok(workshop, "queues", "show", "default")
    assert "queue default: paused: moved" in ok(workshop, "queues", "ls")
    assert job.state is State.QUEUED
    ok(workshop, "queues", "resume", "default")
    assert job.result(timeout=PATIENCE) == 3

    assert "paused until" in ok(workshop, "tasks", "pause", "add", "--for", "1h")
    job = workshop.chores.add.enqueue(3, 4)
    assert workshop.chores.co_add.enqueue(1, 1).result(timeout=PATIENCE) == 2
    assert job.state is State.QUEUED
    ok(workshop, "tasks", "resume", "add")
    assert job.result(timeout=PATIENCE) == 7

    ok(workshop, "limits", "set", "some", "--task", "add", "--running", "9")
    ok(workshop, "limits", "pause", "some", "--for", "6s")
    job = workshop.chores.add.enqueue(5, 6)
    assert workshop.chores.co_add.enqueue(2, 2).result(timeout=PATIENCE) == 4
    assert job.state is State.QUEUED
    assert job.result(timeout=PATIENCE) == 11, "a pause ends by itself"


def test_how_a_queue_is_run_is_said_and_told(workshop: Workshop) -> None:
    said = ok(
        workshop, "queues", "set", "web", "--tier", "fast:3s", "--tier", "slow:30s:20%", "--policy", "fair",
        "--weight", "a=2", "--timeout", "2h", "--isolate", "--on-lost", "fail", "--keep-success", "none",
    )  # fmt: skip
    assert "slow 30 s at most 20%" in said
    card = json.loads(ok(workshop, "queues", "set", "web", "--tier", "none", "--no-isolate", "--json"))
    assert "tiers" not in card
    assert (card["policy"], card["weights"], card["timeout"], card["keep_success"]) == (
        "fair",
        {"a": 2.0},
        7200.0,
        None,
    )
    assert refused(workshop, "queues", "set", "web")[0] == 2
    assert "shortest first" in refused(workshop, "queues", "set", "web", "--tier", "a:3s", "--tier", "b:2s")[1]


def test_a_job_asks_for_its_tier_on_the_command_line(workshop: Workshop) -> None:
    ok(workshop, "queues", "set", "default", "--tier", "fast:3s", "--tier", "slow:30s:50%")
    id = ok(workshop, "enqueue", "add", "[1, 2]", "--tier", "slow").strip()
    assert json.loads(ok(workshop, "jobs", "show", id, "--json"))["tier"] == "slow"
    status, said = refused(workshop, "enqueue", "add", "[1, 2]", "--yielding")
    assert status == 75, said
