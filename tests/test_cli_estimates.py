"""What the command line says of waits and pauses: in lists of jobs, of queues, in `top` and in `doctor`."""

import json
import re
from datetime import UTC, datetime

from tests.test_cli_flow import ok
from tests.workers import ON_A_FILE, Workshop
from windlass.model.limit import NewLimit, Pause, Which
from windlass.model.operations import GetQueue, PauseTask, PutLimit, Register
from windlass.model.worker import NewWorker


def serve(workshop: Workshop, *queues: str) -> None:
    """A worker that is there, and never claims anything."""
    workshop.app.ask(Register(worker=NewWorker(name="idler", queues=list(queues) or ["default"])))


@ON_A_FILE
def test_lists_of_jobs_and_queues_say_how_long_and_for_what(workshop: Workshop) -> None:
    for _ in range(3):
        workshop.chores.add.enqueue(1, 2)
    assert ok(workshop, "jobs", "ls").count("for a worker of its queue: there is none") == 3
    serve(workshop)
    listed = ok(workshop, "jobs", "ls")
    assert re.search(r"waits about 2.0 s, position 3, for its turn", listed), listed
    shown = ok(workshop, "queues", "show", "default")
    assert "a job that comes now waits about 3" in shown
    assert "for its turn" in shown
    estimate = json.loads(ok(workshop, "queues", "show", "default", "--json"))["estimate"]
    assert (estimate["seconds"], estimate["waiting"], estimate["why"]) == (3.0, 3, "slots")
    frame = ok(workshop, "top", "--once")
    assert re.search(r"wait$", frame, re.MULTILINE)
    assert re.search(r"for (its turn|a worker of its queue)", frame), "a silent worker is not there for long"


@ON_A_FILE
def test_doctor_names_what_is_paused_since_when_until_when_and_why(workshop: Workshop) -> None:
    workshop.chores.add.enqueue(1, 2)
    limit = NewLimit(match=Which(task="add"), running=1)
    workshop.app.ask(PutLimit(name="one", limit=limit))
    assert "nothing is paused" in workshop.run("doctor").stdout
    ok(workshop, "queues", "pause", "default", "--why", "moved", "--for", "1h")
    ok(workshop, "limits", "pause", "one", "--why", "sick")
    workshop.app.ask(PauseTask(task="add", pause=Pause(paused=True, why="broken")))
    found = json.loads(workshop.run("doctor", "--json").stdout)["findings"]
    said = [one["found"] for one in found if one["what"] == "pauses"]
    today = f"{datetime.now(UTC).astimezone():%Y-%m-%d}"
    assert len(said) == 3
    for one, kind in zip(said, ("queue default", "limit one", "task add"), strict=True):
        assert one.startswith(f"{kind} of {workshop.tenant}: paused")
        assert f"(since {today} " in one
    assert f"paused until {today}" in said[0] or "paused until" in said[0]
    assert [word for word, one in zip(("moved", "sick", "broken"), said, strict=True) if word in one] == [
        "moved",
        "sick",
        "broken",
    ]
    advice = [one["advice"] for one in found if one["what"] == "pauses"]
    assert advice[0].endswith(f"windlass queues resume default --tenant {workshop.tenant}")


@ON_A_FILE
def test_every_setting_of_a_queue_can_be_taken_back(workshop: Workshop) -> None:
    before = workshop.app.ask(GetQueue(queue="mail"))
    ok(workshop, "queues", "set", "mail", "--policy", "fair", "--weight", "a=2", "--weight", "b=3", "--timeout", "5m")
    ok(workshop, "queues", "set", "mail", "--isolate", "--on-lost", "fail", "--keep-success", "1h", "--tier", "fast:3s")
    ok(workshop, "queues", "set", "mail", "--keep-failure", "none")
    assert workshop.app.ask(GetQueue(queue="mail")) != before
    ok(workshop, "queues", "set", "mail", "--weight", "none", "--clear", "tiers", "--clear", "policy")
    card = workshop.app.ask(GetQueue(queue="mail"))
    assert (card.weights, card.tiers, card.policy, card.timeout) == ({}, [], None, 300.0)
    ok(workshop, "queues", "set", "mail", *(f"--clear={name}" for name in ("timeout", "isolate", "on_lost")))
    ok(workshop, "queues", "set", "mail", "--clear", "keep_success", "--clear", "keep_failure")
    assert workshop.app.ask(GetQueue(queue="mail")) == before
    said = workshop.run("queues", "set", "mail", "--clear", "wishes")
    assert said.returncode != 0
    assert "weights" in said.stderr, "the choices are named"
    assert "--clear" in ok(workshop, "queues", "set", "--help")
