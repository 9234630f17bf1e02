"""Managing jobs by hand on the command line, and what the audit log says of it."""

import getpass
import json
from typing import Any

from tests.support.worker_harness import WorkerHarness


def ok(harness: WorkerHarness, *words: str) -> str:
    done = harness.run(*words, "--tenant", harness.tenant)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def refused(harness: WorkerHarness, *words: str) -> tuple[int, str]:
    done = harness.run(*words, "--tenant", harness.tenant)
    return done.returncode, done.stderr


def audit(harness: WorkerHarness, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ok(harness, "audit", "--json", *words).splitlines()]


def test_what_is_done_on_a_store_is_noted_with_the_user(harness: WorkerHarness) -> None:
    job = harness.tasks.add.enqueue(1, 2)
    assert "nothing was changed by hand yet" in ok(harness, "audit")
    ok(harness, "jobs", "cancel", job.id)
    ok(harness, "queues", "pause", "mail", "--why", "moved")
    ok(harness, "jobs", "rm", "--all")
    deleted, paused, cancelled = audit(harness)
    assert (cancelled["action"], cancelled["ids"], cancelled["count"]) == ("cancel", [job.id], 1)
    assert (paused["action"], paused["name"]) == ("change-queue", "mail")
    assert (deleted["action"], deleted["match"], deleted["count"]) == ("delete", {}, 1)
    assert all(line["by"].startswith(f"user {getpass.getuser()}@") for line in (deleted, paused, cancelled))
    table = ok(harness, "audit")
    assert "all jobs" in table
    assert job.id in table
    assert audit(harness, "--limit", "1") == [deleted]


def test_a_job_is_annotated(harness: WorkerHarness) -> None:
    job = harness.tasks.add.enqueue(1, 2)
    assert ok(harness, "jobs", "annotate", job.id, "ticket=OPS-7", "owner=a=b") == "ticket=OPS-7\nowner=a=b\n"
    assert ok(harness, "jobs", "annotate", job.id, "--remove", "owner") == "ticket=OPS-7\n"
    assert job.annotate(place="north") == {"ticket": "OPS-7", "place": "north"}
    assert job.refresh().annotations == {"ticket": "OPS-7", "place": "north"}
    assert "OPS-7" in ok(harness, "jobs", "show", job.id)
    status, said = refused(harness, "jobs", "annotate", job.id, "ticket")
    assert (status, "'ticket' is not NAME=VALUE" in said) == (2, True)
