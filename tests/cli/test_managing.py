"""Managing jobs by hand on the command line, and what the audit log says of it."""

import getpass
import json
from typing import Any

import pytest

from tests.support.worker_harness import WorkerHarness
from windlass import Conflict, Invalid


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
    assert audit(harness, "--job", job.id) == [cancelled]
    other = harness.tasks.add.enqueue(1, 2)
    assert "nothing was done to it by hand" in ok(harness, "audit", "--job", other.id)


def test_a_job_is_annotated(harness: WorkerHarness) -> None:
    job = harness.tasks.add.enqueue(1, 2)
    assert ok(harness, "jobs", "annotate", job.id, "ticket=OPS-7", "owner=a=b") == "ticket=OPS-7\nowner=a=b\n"
    assert ok(harness, "jobs", "annotate", job.id, "--remove", "owner") == "ticket=OPS-7\n"
    assert job.annotate(place="north") == {"ticket": "OPS-7", "place": "north"}
    assert job.refresh().annotations == {"ticket": "OPS-7", "place": "north"}
    assert "OPS-7" in ok(harness, "jobs", "show", job.id)
    status, said = refused(harness, "jobs", "annotate", job.id, "ticket")
    assert (status, "'ticket' is not NAME=VALUE" in said) == (2, True)


def test_a_waiting_job_is_edited(harness: WorkerHarness) -> None:
    job = harness.tasks.add.enqueue(1, 2)
    change = ("--priority", "-1", "-q", "slow", "--tag", "a", "--tag", "b", "--delay", "1h", "--payload", "[3, 4]")
    assert ok(harness, "jobs", "edit", job.id, *change) == f"job {job.id} is edited: scheduled in slow, priority -1\n"
    shown = json.loads(ok(harness, "jobs", "show", job.id, "--json"))
    assert (shown["priority"], shown["tags"], shown["payload"]) == (-1, ["a", "b"], [3, 4])
    assert shown["queue"] == "slow"
    assert json.loads(ok(harness, "jobs", "edit", job.id, "--delay", "0", "--json"))["state"] == "queued"
    later = json.loads(ok(harness, "jobs", "edit", job.id, "--at", "2999-01-31T08:00:00Z", "--json"))
    assert later["run_at"].startswith("2999-01-31T08:00:00")
    status, said = refused(harness, "jobs", "edit", job.id, "--at", "soon")
    assert (status, "'soon' is not a time" in said) == (2, True)
    (line,) = [line for line in audit(harness) if "payload" in line["details"]]
    assert (line["action"], line["details"]) == ("edit", '{"changed":["priority","queue","tags","delay","payload"]}')
    ok(harness, "jobs", "cancel", job.id)
    status, said = refused(harness, "jobs", "edit", job.id, "--priority", "1")
    assert (status, "only a job that waits can be edited; run a copy" in said) == (4, True)


def test_the_arguments_of_a_waiting_job_are_checked_as_those_of_a_call(harness: WorkerHarness) -> None:
    job = harness.tasks.add.enqueue(1, 2)
    with pytest.raises(Invalid, match="add"):
        job.edit(args=(1,))
    with pytest.raises(Invalid, match="not both"):
        job.edit(args=(1, 2), payload=[1, 2])
    with pytest.raises(Invalid, match="cannot be edited; there are args"):
        job.edit(task="other")
    job.edit(args=(20,), kwargs={"b": 22}, priority=-1, tags=["x"], delay="1h")
    assert (job.state, job.refresh().priority, job.refresh().tags) == ("scheduled", -1, ["x"])
    job.edit(delay=0)
    harness.start()
    assert job.result(60) == 42
    with pytest.raises(Conflict, match="run a copy"):
        job.edit(priority=1)
