"""Tasks whose jobs take several of their worker's slots: `@app.task(slots=2)`."""

import pytest

from tests.support.servers import Server
from tests.support.worker_harness import STORES, MakeHarness, StoreKind, WorkerHarness, until
from windlass import Invalid, Windlass

SOURCE = """
import os, time
from pathlib import Path
from windlass import Windlass

app = Windlass(tenant=os.environ["HARNESS_TENANT"])


def note(*words):
    file = os.open("notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(words) + "\\n").encode())
    os.close(file)


def stay(word):
    note("start", word)
    while not (Path("let go").exists() or Path(f"let go {word}").exists()):
        time.sleep(0.005)
    note("end", word)


def nap(word):
    note("start", word)
    time.sleep(0.05)
    note("end", word)


app.task(name="light")(stay)
app.task(name="heavy", slots=2)(stay)
app.task(name="huge", slots=100)(stay)
app.task(name="short")(nap)
app.task(name="shorts", slots=3)(nap)
"""


@pytest.fixture(params=STORES)
def harness(request: pytest.FixtureRequest, make_harness: MakeHarness) -> WorkerHarness:
    kind: StoreKind = request.param
    if kind == "file":
        return make_harness(SOURCE)
    server = request.getfixturevalue("redis_server")
    assert isinstance(server, Server)
    return make_harness(SOURCE, server.url)


def let_go(harness: WorkerHarness, word: str = "") -> None:
    (harness.folder / f"let go {word}".strip()).touch()


def test_jobs_never_take_more_slots_than_there_are(harness: WorkerHarness) -> None:
    tasks = harness.app.tasks
    jobs = []
    for number in range(20):
        jobs.append(tasks["short"].enqueue(f"1-{number}"))
        jobs.append(tasks["shorts"].enqueue(f"3-{number}"))
    harness.start("-c", "4")
    for job in jobs:
        record = harness.ended(job)
        assert (record.state, record.attempt, record.losses) == ("succeeded", 1, 0)
    taken, most = 0, 0
    for line in harness.notes():
        what, word = line.split()
        taken += int(word[0]) * (1 if what == "start" else -1)
        most = max(most, taken)
    assert most == 4, "all slots are used, and no more"


def test_a_job_that_needs_two_slots_is_not_overtaken_by_those_that_need_one(harness: WorkerHarness) -> None:
    light, heavy = harness.app.tasks["light"], harness.app.tasks["heavy"]
    for word in ("a", "b"):
        light.enqueue(word)
    worker = harness.start("-c", "2", "-v")
    harness.noted("start", 2)
    waiting = heavy.enqueue("c")
    later = [light.enqueue(word) for word in ("d", "e")]
    let_go(harness, "a")
    harness.noted("end", 1)
    worker.hear(f"{waiting.id} heavy takes 2 slots, 1 are free: released")
    until(lambda: waiting.state == "queued")
    assert sorted(harness.notes("start")) == ["a", "b"]
    let_go(harness, "b")
    assert harness.noted("start", 3)[2] == "c"
    let_go(harness)
    for job in (waiting, *later):
        assert harness.ended(job).attempt == 1
    assert sorted(harness.notes("start")[:2]) == ["a", "b"]
    assert sorted(harness.notes("start")[3:]) == ["d", "e"]


def test_a_job_that_needs_more_slots_than_a_worker_has_runs_alone(harness: WorkerHarness) -> None:
    huge = [harness.app.tasks["huge"].enqueue(word) for word in ("a", "b")]
    harness.app.tasks["light"].enqueue("c")
    worker = harness.start("-c", "2", "-v")
    assert harness.noted("start", 1) == ["a"]
    worker.hear(rf"{huge[1].id} huge takes .*: released")
    until(lambda: huge[1].state == "queued")
    let_go(harness)
    assert [harness.ended(job).attempt for job in huge] == [1, 1]
    assert harness.noted("end", 3) == ["a", "b", "c"]


def test_another_worker_takes_what_has_no_room_here(harness: WorkerHarness) -> None:
    harness.app.tasks["light"].enqueue("a")
    harness.start("-c", "2", "--name", "first")
    harness.noted("start", 1)
    harness.start("-c", "2", "--name", "second")
    job = harness.app.tasks["heavy"].enqueue("b")
    harness.noted("start", 2)
    let_go(harness)
    assert harness.ended(job).attempt == 1


def test_slots_are_a_number(tmp_path: object) -> None:
    app = Windlass()
    for wrong in (0, -1, 1.5, True, "2", 10_001):
        with pytest.raises(Invalid, match="is no number of slots"):
            app.task(slots=wrong)(lambda: None)  # type: ignore[arg-type]
    task = app.task(name="two", slots=2)(lambda: None)
    assert task.using(priority=3).slots == 2
