"""The user's module: what a worker makes of one that is broken, slow, talkative or odd."""

import signal
import time

import pytest

from tests.support.patience import PATIENCE
from tests.support.servers import Server
from tests.support.worker_harness import STORES, MakeHarness, StoreKind, WorkerHarness
from windlass.model.job import Reason, State

GOOD = """
import os
from windlass import Windlass
app = Windlass(tenant=os.environ["HARNESS_TENANT"])

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""

EAGER = """
add.using(key="first").enqueue(1, 1)

import asyncio
asyncio.run(add.using(key="second").aenqueue(1, 2))

@app.task
def more() -> str:
    return add.enqueue(2, 3).id
"""


def refused(harness: WorkerHarness, target: str = "tasks:app") -> str:
    worker = harness.start_raw(target=target)
    assert worker.ended() == 1
    return worker.said


def test_a_module_that_fails_is_named_with_its_own_traceback(make_harness: MakeHarness) -> None:
    said = refused(make_harness("def helper():\n    return 1 / 0\n\nhelper()\n"))
    assert "windlass: tasks:app cannot be imported: ZeroDivisionError: division by zero\n" in said
    assert 'tasks.py", line 2, in helper' in said
    assert "zygote" not in said
    assert "importlib" not in said


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (GOOD, "nowhere:app", "nowhere:app cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        (
            GOOD,
            "tasks:other",
            "tasks:other cannot be imported: AttributeError: module 'tasks' has no attribute 'other'",
        ),
        (GOOD, "tasks.py:app", "cannot be imported: ImportError: name the module, not its file: tasks:app"),
        (GOOD, "./tasks.py", "cannot be imported: ImportError: name the module, not its file: tasks:app"),
        ("app = 3", "tasks:app", "tasks:app cannot be imported: TypeError: tasks:app is a int, not a Windlass"),
        (
            "import windlass; app = windlass.Windlass()",
            "tasks:app",
            "cannot be imported: LookupError: it has no tasks",
        ),
        ("import os; os._exit(7)", "tasks:app", "the process that imports tasks:app has died"),
        ("raise SystemExit(3)", "tasks:app", "tasks:app cannot be imported: SystemExit: 3"),
    ],
)
def test_what_is_no_app_is_refused(make_harness: MakeHarness, source: str, target: str, expected: str) -> None:
    assert expected in refused(make_harness(source), target)


def test_a_task_that_the_app_does_not_have_is_left_to_others(make_harness: MakeHarness) -> None:
    harness = make_harness(GOOD)
    unknown = harness.run("enqueue", "mystery", "1", "--tenant", harness.tenant).stdout.strip()
    harness.burst()
    assert harness.app.job(unknown).refresh().state is State.QUEUED


def test_what_an_app_prints_is_printed_once(make_harness: MakeHarness) -> None:
    harness = make_harness(f"import sys\nsys.stdout.write('hello from the app')\n{GOOD}")
    worker = harness.start("--contexts", "4", PYTHONUNBUFFERED="")
    assert [job.result(PATIENCE) for job in harness.tasks.add.map([(1, 1)] * 20)] == [2] * 20
    assert worker.stop() == 0
    assert worker.said.count("hello from the app") == 1


def test_an_app_may_take_its_time_and_be_interrupted_meanwhile(make_harness: MakeHarness) -> None:
    harness = make_harness(f"print('importing', flush=True)\nimport time\ntime.sleep(2)\n{GOOD}")
    started = time.monotonic()
    worker, interrupted = harness.start_raw(), harness.start_raw()
    interrupted.hear("importing")
    interrupted.send(signal.SIGTERM)
    interrupted.ended()
    assert "tasks add" not in interrupted.said
    worker.hear("queue default, tasks? add.*\n(.*\n)*.* runs jobs, ")
    assert time.monotonic() - started > 2
    assert worker.stop() == 0
    assert not harness.processes()


@pytest.mark.parametrize("kind", STORES)
def test_an_app_may_queue_jobs_while_it_is_imported(
    make_harness: MakeHarness, redis_server: Server, kind: StoreKind
) -> None:
    harness = make_harness(GOOD + EAGER, store=redis_server.url if kind == "redis" else "")
    worker = harness.start("--contexts", "2")
    made = [harness.app.job(harness.tasks.more.enqueue().result(PATIENCE)) for _ in range(20)]
    assert [job.result(PATIENCE) for job in made] == [5] * 20
    assert harness.tasks.add.using(key="first").enqueue(1, 1).result(PATIENCE) == 2
    assert harness.tasks.add.using(key="second").enqueue(1, 2).result(PATIENCE) == 3
    assert worker.stop() == 0


def test_the_traceback_of_a_task_begins_with_its_own_first_line(make_harness: MakeHarness) -> None:
    harness = make_harness(f"{GOOD}\n@app.task\ndef wrong(by: int) -> float:\n    return 1 / by\n")
    harness.start()
    record = harness.ended(harness.tasks.wrong.enqueue(0))
    assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)
    assert record.error is not None
    assert record.error.type == "ZeroDivisionError"
    assert record.error.message == "division by zero"
    assert 'tasks.py", line' in record.error.traceback
    assert "running.py" not in record.error.traceback
