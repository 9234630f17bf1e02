"""`./dev bench workflows`: what it costs that jobs wait for each other, against the same jobs without that.

Chains of three, many of them at once; and a group of a thousand whose results one job merges. One real worker, on a
file and on Redis, with the default settings. A figure is the time from the first enqueue until nothing is pending,
per job; both kinds take turns, and the median of the rounds counts. A missed bar is reported; a wrong result fails.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.table import Table
from tests.support.servers import Server
from tests.support.worker_harness import WorkerHarness
from windlass import chain, group
from windlass.model.job import FINISHED
from windlass.model.operations import GetStats
from windlass.workflow import Workflow

BAR = 2.0
"""The cost of a job of a workflow against the same job without."""

APP = """
import os
from windlass import Windlass
app = Windlass(tenant=os.environ["HARNESS_TENANT"])

@app.task
def number(value: int) -> int: return value

@app.task
def merge(values: list[int]) -> int: return sum(values)
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench workflows", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chains", type=int, default=300)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--stores", default="file,redis")
    chosen = parser.parse_args(arguments)
    table = Table()
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
        for store in chosen.stores.split(","):
            folder = Path(name) / store
            folder.mkdir()
            if store == "file":
                measure(table, store, folder, str(folder / "jobs.db"), chosen)
            else:
                with Server("redis", folder) as server:
                    measure(table, store, folder, server.url, chosen)
    print(f"µs per job; with : without at most {BAR:g}\n\n{table.markdown()}")
    return 0


def measure(table: Table, store: str, folder: Path, address: str, chosen: argparse.Namespace) -> None:
    harness = WorkerHarness(folder, address, "default", APP)
    try:
        harness.start()
        for what, without, along in (
            ("chains of 3", apart, chained),
            ("a merged group", spread, merged),
        ):
            number = chosen.chains if along is chained else chosen.members
            for make in (without, along):  # to warm up
                timed(harness, make, number)
            rounds = [(timed(harness, without, number), timed(harness, along, number)) for _ in range(chosen.rounds)]
            plain, linked = (statistics.median(column) * 1e6 for column in zip(*rounds, strict=True))
            ratio = statistics.median(linked / plain for plain, linked in rounds)
            for figure, value in (("without", plain), ("with", linked), ("with : without", ratio)):
                table.put(store, number, f"{what}: {figure}", value)
    finally:
        harness.close()


def chained(tasks: Any, number: int) -> list[Workflow]:
    return [chain(tasks.number.s(n), tasks.number, tasks.number) for n in range(number)]


def apart(tasks: Any, number: int) -> list[Workflow]:
    return [group(tasks.number.s(n) for _ in range(3)) for n in range(number)]


def merged(tasks: Any, number: int) -> list[Workflow]:
    return [group(tasks.number.s(n) for n in range(number)).then(tasks.merge)]


def spread(tasks: Any, number: int) -> list[Workflow]:
    return [group([*(tasks.number.s(n) for n in range(number)), tasks.merge.s([1])])]


def _pending(harness: WorkerHarness) -> int:
    queues = harness.app.ask(GetStats()).queues
    return sum(number for one in queues for state, number in one.states.items() if state not in FINISHED)


def timed(harness: WorkerHarness, make: Callable[[Any, int], Sequence[Workflow]], number: int) -> float:
    """Seconds per job."""
    began = time.perf_counter()
    batches = [one.enqueue() for one in make(harness.tasks, number)]
    while _pending(harness):
        time.sleep(0.005)
    passed = time.perf_counter() - began
    if make is merged:
        assert batches[0].result() == sum(range(number))
    if make is chained:
        assert [batch.result() for batch in batches[:10]] == list(range(10))
    return passed / sum(map(len, batches))
