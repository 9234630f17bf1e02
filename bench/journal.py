"""`./dev bench journal`: accepting jobs into a journal, as ratios to a bare append and sync of the same jobs.

The journal is in front of a real Redis server, which takes the jobs meanwhile. Shared processors and disks change their
speed for seconds at a time, so both are measured in short slices, in turn, and the best slices count.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import uvloop
from msgspec import Raw

from bench.table import Table
from tests.support.servers import Server
from windlass.addresses import open_engine
from windlass.engine.journal import Journaled, open_journaled
from windlass.model.new_job import NewJob
from windlass.model.operations import Enqueue, EnqueueLines, Operation
from windlass.run_worker import SWITCH_EVERY
from windlass.system import SystemClock

CROWD = 64
"""Callers at once."""
LINES = 1000
PAYLOAD = b"\xd9\x64" + b"x" * 100
TEXT = "\n".join(["x" * 100] * LINES)
BARS = {1: 0.5, LINES: 0.3}
"""The least ratio for a crowd of callers, by the jobs that each request brings."""


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
    """Bytes of all batches in the journal of a folder."""
    (path,) = folder.rglob("journal-*.db")
    sql = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    size = int(sql.execute("SELECT total(length(body)) FROM batches").get)
    sql.close()
    return size


class Measure(NamedTuple):
    """An operation, how many callers send it at once, and how many jobs it brings."""

    name: str
    make: Callable[[], Operation[Any]]
    callers: int
    jobs: int


JOB = NewJob(task="noop", payload=Raw(PAYLOAD))
MEASURES = (
    Measure("one job, one caller", lambda: Enqueue(job=JOB), 1, 1),
    Measure(f"one job, {CROWD} callers", lambda: Enqueue(job=JOB), CROWD, 1),
    Measure(f"{LINES} lines, {CROWD} callers", lambda: EnqueueLines(task="noop", text=TEXT), CROWD, LINES),
)


async def compare(service: Journaled, measure: Measure, folder: Path, seconds: float) -> tuple[float, float]:
    """A slice of ours and a bare one beside it, in which everything else stands still: jobs a second of both."""
    journal = folder / "journal"
    before = written(journal)
    began = time.perf_counter()
    rate = await crowd(service, measure.make, measure.callers, seconds)
    answered = max(1, round(rate * (time.perf_counter() - began)))
    plain = bare(folder, (written(journal) - before) // answered, seconds)
    return rate * measure.jobs, plain * measure.jobs


async def compare_all(url: str, folder: Path, rounds: int, seconds: float) -> dict[str, tuple[float, float]]:
    """The best slices of each. JobBatch are last: it takes a while until they are drained."""
    found: dict[str, tuple[float, float]] = {}
    async with open_engine(url) as engine, open_journaled(engine, folder / "journal", SystemClock()) as service:
        for measure in MEASURES:
            slices = [await compare(service, measure, folder, seconds) for _ in range(rounds)]
            ours, plain = zip(*slices, strict=True)
            found[measure.name] = max(ours), max(plain)
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench journal", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one slice")
    arguments = parser.parse_args(argv)
    sys.setswitchinterval(SWITCH_EVERY)
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
        folder = Path(name)
        with Server("redis", folder, fsync="everysec") as server:
            found = uvloop.run(compare_all(server.url, folder, arguments.rounds, arguments.seconds))
    table = Table()
    for measure, (ours, plain) in found.items():
        for what, figure in (("jobs/s", ours), ("bare, jobs/s", plain), ("ratio", ours / plain)):
            table.put("journal", arguments.rounds, f"{measure}: {what}", figure)
    print(table.markdown())
    for one in MEASURES:
        if one.callers == CROWD:
            ours, plain = found[one.name]
            met = "met" if ours / plain >= BARS[one.jobs] else "missed"
            print(f"{one.name}: {ours / plain:.2f} (bar {BARS[one.jobs]}: {met})")
    return 0
