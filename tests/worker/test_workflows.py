"""Workflows with real workers: across queues, on each store, and while workers are killed."""

import signal
from typing import Any

import pytest

from tests.support.worker_harness import MakeHarness, StoreKind, WorkerHarness, until
from windlass import chain, group

APP = """
import os
import time
from pathlib import Path
from windlass import Windlass, current
app = Windlass(tenant=os.environ["HARNESS_TENANT"])

@app.task(queue="first")
def numbers(count: int) -> list[int]: return list(range(count))

@app.task(queue="second")
def total(values: list[int], times: int = 1) -> int: return sum(values) * times

@app.task(queue="first")
async def double(value: int) -> int: return 2 * value

@app.task
def show(values: list, word: str) -> str:
    note(f"show {word} {values} {current.results}")
    return word

@app.task(queue="first")
def slow(value: int) -> int:
    # The last ones wait until the test lets them go.
    note(f"slow {value}")
    time.sleep(0.2)
    while value > 12 and not Path(os.environ["WORKSHOP"], "let go").exists():
        time.sleep(0.01)
    return value

@app.task(queue="second")
def merge(values: list[int]) -> list[int]:
    note(f"merge {values}")
    return values

def note(text: str) -> None:
    with Path(os.environ["WORKSHOP"], "notes").open("a") as file: file.write(f"{text}\\n")
"""
QUEUES = ("-q", "first,second,default")


@pytest.fixture(params=["file", "redis"])
def shop(request: pytest.FixtureRequest, make_harness: MakeHarness) -> WorkerHarness:
    kind: StoreKind = request.param
    return make_harness(APP, store="" if kind == "file" else request.getfixturevalue("redis_server").url)


def test_a_workflow_runs_across_queues(shop: WorkerHarness) -> None:
    tasks = shop.tasks
    shop.start(*QUEUES)
    steps = chain(tasks.numbers.s(5), group(tasks.total, tasks.total.s(times=10)), tasks.show.s("hello"))
    batch = steps.enqueue()
    assert batch.result(60) == "hello"
    assert shop.noted("show") == ["hello [10, 100] [10, 100]"]
    assert batch.wait(60).done == 4
    members = group(tasks.double.s(value) for value in range(200))
    assert members.then(tasks.total.s(times=3)).enqueue().result(60) == 3 * 2 * sum(range(200))
    assert batch.on_complete(tasks.show.s("end")).result(60) == "end"
    lists = [[0, 1, 2, 3, 4], 10, 100, "hello"]
    assert shop.noted("show", 2)[1] == f"end {lists} {lists}"


def test_progress_and_the_end_of_many_jobs_are_asked_for_together(
    shop: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, ask = shop.app, shop.app.link.ask
    asked: list[str] = []

    def noted(operation: Any) -> Any:
        asked.append(type(operation).__name__)
        return ask(operation)

    batch = app.batch([job.id for job in shop.tasks.double.map(range(1500))])
    later = shop.tasks.double.using(delay="2s").map(range(2))
    monkeypatch.setattr(app.link, "ask", noted)
    assert batch.progress().states == {"queued": 1500}
    assert asked == ["GetProgress"] * 2
    with pytest.raises(TimeoutError, match="2 jobs of the batch"):
        app.batch([job.id for job in later]).wait(0.05)
    shop.start(*QUEUES)
    asked.clear()
    assert batch.wait(60).states == {"succeeded": 1500}
    assert app.batch([job.id for job in later]).wait(60).done == 2
    assert len(asked) < 10
    later[0].delete()
    found = app.batch([job.id for job in later]).progress()
    assert (found.total, found.done, found.states) == (2, 2, {"succeeded": 1}), "one whose record is gone has ended"


def test_what_follows_runs_once_however_often_workers_are_killed(shop: WorkerHarness) -> None:
    tasks, values = shop.tasks, list(range(16))
    batch = group(tasks.slow.s(value) for value in values).then(tasks.merge).enqueue()
    for kills in range(3):
        worker = shop.start(*QUEUES, "-c", "3", lease="2s")
        until(lambda: len(shop.notes("slow")) > 4 * (kills + 1))  # noqa: B023 - asked at once
        worker.send(signal.SIGKILL)
        worker.ended()
    assert batch.progress().done < len(values)
    (shop.folder / "let go").touch()
    shop.start(*QUEUES)
    assert batch.result(60) == values
    assert shop.notes("merge") == [str(values)]
    assert batch.wait(60).states == {"succeeded": len(values) + 1}


def test_the_command_line_passes_results_too(shop: WorkerHarness) -> None:
    tasks = shop.tasks
    first, second = tasks.numbers.enqueue(2), tasks.numbers.enqueue(3)
    parents = ("--after", second.id, "--after", first.id, "--after-failure", "fail")
    said = shop.run("enqueue", "show", '{"word": "cli"}', *parents, "--with-results", "list", "--tenant", shop.tenant)
    assert said.returncode == 0, said.stderr
    shop.start(*QUEUES)
    assert shop.noted("show") == ["cli [[0, 1, 2], [0, 1]] [[0, 1, 2], [0, 1]]"]
