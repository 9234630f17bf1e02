"""`./dev bench journal`: accepting jobs into a journal, as ratios to a bare write and sync of the same bytes.

The journal stands in front of a real Redis server, which takes the jobs meanwhile. Figures are medians of some rounds.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop
from msgspec import Raw

from bench.table import Table
from tests.servers import Server
from windlass.addresses import open_engine
from windlass.daemon import SWITCH_EVERY
from windlass.engine.journal import Journaled, open_journaled
from windlass.model.job import NewJob
from windlass.model.operations import Enqueue, EnqueueLines, Operation
from windlass.system import SystemClock

CROWD = 64
"""Callers at once."""
LINES = 1000
PAYLOAD = b"\xd9\x64" + b"x" * 100
TEXT = "\n".join(["x" * 100] * LINES)
BAR = 0.5


def bare(folder: Path, size: int, seconds: float) -> float:
    """Writes of so many bytes a second, each synced."""
    data = bytes(size)
    file = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC)
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        os.write(file, data)
        os.fdatasync(file)
        number += 1
    took = time.perf_counter() - began
    os.close(file)
    return number / took


async def crowd(service: Journaled, make: Callable[[], Operation[Any]], callers: int, seconds: float) -> float:
    """Operations a second that were answered."""
    until = time.perf_counter() + seconds
    done = 0

    async def ask() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await service(make())
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(callers)))
    return done / (time.perf_counter() - began)


def written(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.journal"))


async def round_(url: str, folder: Path, seconds: float) -> dict[str, float]:
    found: dict[str, float] = {}
    job = NewJob(task="noop", payload=Raw(PAYLOAD))
    journal = folder / f"journal{time.perf_counter_ns()}"
    async with open_engine(url) as engine, open_journaled(engine, journal, SystemClock()) as service:
        measures: list[tuple[str, Callable[[], Operation[Any]], int, int]] = [
            ("one job, one caller", lambda: Enqueue(job=job), 1, 1),
            (f"one job, {CROWD} callers", lambda: Enqueue(job=job), CROWD, 1),
            (f"{LINES} lines, {CROWD} callers", lambda: EnqueueLines(task="noop", text=TEXT), CROWD, LINES),
        ]
        for name, make, callers, jobs in measures:
            before = written(journal)
            rate = await crowd(service, make, callers, seconds)
            size = (written(journal) - before) // max(1, round(rate * seconds))
            plain = await asyncio.to_thread(bare, folder, size, seconds / 2)
            found |= {f"{name}: jobs/s": rate * jobs, f"{name}: bare, jobs/s": plain * jobs}
            found[f"{name}: ratio"] = rate / plain
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench journal", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args(argv)
    sys.setswitchinterval(SWITCH_EVERY)
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
        folder = Path(name)
        with Server("redis", folder, fsync="everysec") as server:
            rounds += [uvloop.run(round_(server.url, folder, arguments.seconds)) for _ in range(arguments.rounds)]
    table = Table()
    for measure in rounds[0]:
        table.put("journal", arguments.rounds, measure, statistics.median(one[measure] for one in rounds))
    print(table.markdown())
    for measure in rounds[0]:
        if measure.endswith("ratio") and str(CROWD) in measure:
            ratio = table.get("journal", arguments.rounds, measure)
            print(f"{measure}: {ratio:.2f} (bar {BAR}: {'met' if ratio >= BAR else 'missed'})")
    return 0
