"""What the command line says of waits and pauses: in lists of jobs, of queues, in `top` and in `doctor`."""

import json
import re
from datetime import UTC, datetime

from tests.cli.test_flow import ok
from tests.support.patience import PATIENCE
from tests.support.worker_harness import ON_A_FILE, WorkerHarness
from windlass import Windlass
from windlass.engine import Settings
from windlass.model.limit import NewLimit, Pause, Which
from windlass.model.operations import GetQueue, PauseTask, PutLimit, Register
from windlass.model.worker import NewWorker


def serve(harness: WorkerHarness, *queues: str) -> None:
    """Register a worker that never claims anything, and stays registered for longer than any command takes."""
    app = Windlass(harness.app.store, tenant=harness.app.tenant, settings=Settings(lease=PATIENCE))
    app.ask(Register(worker=NewWorker(name="idler", queues=list(queues) or ["default"])))
    app.close()


@ON_A_FILE
def test_lists_of_jobs_and_queues_show_waits_and_their_causes(harness: WorkerHarness) -> None:
    for _ in range(3):
        harness.tasks.add.using(timeout=1).enqueue(1, 2)  # it never ran: its time limit is expected
    assert ok(harness, "jobs", "ls").count("for a worker: none takes from its queue") == 3
    serve(harness)
    listed = ok(harness, "jobs", "ls")
    assert re.search(r"waits about 2.0 s, position 3, for its turn", listed), listed
    shown = ok(harness, "queues", "show", "default")
    assert "a new job waits about 3" in shown
    assert "for its turn" in shown
    estimate = json.loads(ok(harness, "queues", "show", "default", "--json"))["estimate"]
    assert (estimate["seconds"], estimate["waiting"], estimate["why"]) == (3.0, 3, "slots")
    frame = ok(harness, "top", "--once")
    assert re.search(r"wait$", frame, re.MULTILINE)
    assert re.search(r"for (its turn|a worker: none takes from its queue)", frame), (
        "a silent worker is not there for long"
    )


@ON_A_FILE
def test_doctor_names_what_is_paused_since_when_until_when_and_why(harness: WorkerHarness) -> None:
    harness.tasks.add.enqueue(1, 2)
    limit = NewLimit(match=Which(task="add"), running=1)
    harness.app.ask(PutLimit(name="one", limit=limit))
    assert "nothing is paused" in harness.run("doctor").stdout
    ok(harness, "queues", "pause", "default", "--why", "moved", "--for", "1h")
    ok(harness, "limits", "pause", "one", "--why", "sick")
    harness.app.ask(PauseTask(task="add", pause=Pause(paused=True, why="broken")))
    serve(harness)
    ok(harness, "workers", "pause", "idler", "--why", "leaks")
    found = json.loads(harness.run("doctor", "--json").stdout)["findings"]
    said = [one["found"] for one in found if one["what"] == "pauses"]
    today = f"{datetime.now(UTC).astimezone():%Y-%m-%d}"
    assert len(said) == 4
    for one, kind in zip(said, ("queue default", "limit one", "task add", "worker idler"), strict=True):
        assert one.startswith(f"{kind} of {harness.tenant}: paused")
        assert f"(since {today} " in one
    assert f"paused until {today}" in said[0] or "paused until" in said[0]
    reasons = ["moved", "sick", "broken", "leaks"]
    assert [word for word, one in zip(reasons, said, strict=True) if word in one] == reasons
    advice = [one["advice"] for one in found if one["what"] == "pauses"]
    assert advice[0].endswith(f"windlass queues resume default --tenant {harness.tenant}")
    assert advice[3] == f"it claims no jobs; resume it: windlass workers resume idler --tenant {harness.tenant}"


@ON_A_FILE
def test_every_setting_of_a_queue_can_be_taken_back(harness: WorkerHarness) -> None:
    before = harness.app.ask(GetQueue(queue="mail"))
    ok(harness, "queues", "set", "mail", "--policy", "fair", "--weight", "a=2", "--weight", "b=3", "--timeout", "5m")
    ok(harness, "queues", "set", "mail", "--isolate", "--on-lost", "fail", "--keep-success", "1h", "--tier", "fast:3s")
    ok(harness, "queues", "set", "mail", "--keep-failure", "none")
    assert harness.app.ask(GetQueue(queue="mail")) != before
    ok(harness, "queues", "set", "mail", "--weight", "none", "--clear", "tiers", "--clear", "policy")
    card = harness.app.ask(GetQueue(queue="mail"))
    assert (card.weights, card.tiers, card.policy, card.timeout) == ({}, [], None, 300.0)
    ok(harness, "queues", "set", "mail", *(f"--clear={name}" for name in ("timeout", "isolate", "on_lost")))
    ok(harness, "queues", "set", "mail", "--clear", "keep_success", "--clear", "keep_failure")
    assert harness.app.ask(GetQueue(queue="mail")) == before
    said = harness.run("queues", "set", "mail", "--clear", "options")
    assert said.returncode != 0
    assert "weights" in said.stderr, "the choices are named"
    assert "--clear" in ok(harness, "queues", "set", "--help")
