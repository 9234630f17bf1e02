"""`./dev bench waits`: how long callers and jobs wait.

Enqueueing while something is wrong is measured as a ratio to when all is well. Journal: a store that is there, that is
killed, and that is back and has to take what came meanwhile, round after round. Followers: none at first, then
hundreds, of whom some never read. What is compared is seconds apart in one run, so that a machine which changes its
speed favours no side; a figure is the median of the rounds.

Workers: real ones on a file and on Redis. How long they take to stop, to cancel a job, to start one that is scheduled,
one that is short behind long ones, those of a worker that was killed, and one after a failover of Redis; and waits
against their first estimates.

A bar that is missed is reported. Only a wrong outcome (a job that is lost, run twice or not stopped) fails the run.
The default takes about a minute: for figures to compare, say `--rounds 5 --seconds 4`.
"""

import argparse
import asyncio
import math
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.table import Table
from tests.server.test_live_load import follow_in_a_crowd
from tests.support.http_servers import process
from tests.support.patience import PATIENCE
from tests.support.relays import Crowd
from tests.support.sentinels import watched_group
from tests.support.servers import Server
from tests.support.worker_harness import TASKS, WorkerHarness
from windlass.model import wire
from windlass.model.errors import Unavailable
from windlass.model.job import State
from windlass.model.operations import ChangeQueue
from windlass.model.queue import QueueChange, Tier

RATE = 200
"""Requests a second, over 16 connections."""
BODY = wire.encode({"task": "noop", "payload": "x" * 100})
BARS = {
    "store away : there": 4.0,
    "store just back : there": 4.0,
    "followed : not followed": 4.0,
}


def journal(folder: Path, rounds: int, seconds: float) -> dict[str, list[float]]:
    """The slowest hundredth of enqueues, in seconds, in each round."""
    found: dict[str, list[float]] = {"store there": [], "store away": [], "store just back": []}
    with (
        Server("redis", folder, fsync="everysec") as server,
        process(folder, "--no-worker", store=server.url) as serving,
    ):

        def p99() -> float:
            crowd = Crowd(serving.port, serving.token, lambda _: BODY)
            number = int(RATE * seconds)
            crowd.run(number, RATE, lambda: None)
            assert len(crowd.accepted()) == number, "a request was refused"
            return crowd.slowest(0.99, range(number))

        p99()
        for _ in range(rounds):
            found["store there"].append(p99())
            server.kill()
            time.sleep(0.5)
            found["store away"].append(p99())
            server.start()
            found["store just back"].append(p99())
            time.sleep(2)
    return found


async def followers(folder: Path, rounds: int, seconds: float, number: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"not followed": [], "followed": [], "until a follower hears": []}
    for turn in range(rounds):
        place = folder / str(turn)
        place.mkdir()
        seen = await follow_in_a_crowd(place, number, seconds)
        found["not followed"].append(seen["enqueue_p99_alone"])
        found["followed"].append(seen["enqueue_p99"])
        found["until a follower hears"].append(seen["delivery_p99"])
    return found


LEASE = 5.0
"""Seconds: what a worker that was killed keeps its jobs for."""

FAILOVER = "a worker runs jobs after a failover"

LIMITS = {
    "stop an idle worker": 1.0,
    "stop a worker with running jobs": 1.0,
    "cancel a coroutine": 1.0,
    "cancel a function in a thread": 1.0,
    "cancel a job alone in its process": 1.0,
    "a scheduled job starts late by": 1.0,
    "a fast job starts behind slow ones": 1.0,
    "first estimate exceeded by": 1.0,
    "jobs of a killed worker run again": 10.0,
    FAILOVER: 10.0,
}
"""Seconds, at most. The first estimate is that of a job that waits behind others of its tier."""


class Wrong(Exception):
    """An outcome that no machine is too slow for."""


def workers(harness: WorkerHarness, rounds: int) -> dict[str, list[float]]:
    """Seconds of each wait, in each round."""
    found: dict[str, list[float]] = {what: [] for what in LIMITS if what != FAILOVER}
    for _ in range(rounds):
        _stop(harness, found)
        with _worker(harness, "-c", "8", "--contexts", "2"):
            _cancel(harness, found)
            _schedule(harness, found)
        _tiers(harness, found)
        _kill(harness, found)
    return found


@contextmanager
def _worker(harness: WorkerHarness, *flags: str) -> Iterator[None]:
    worker = harness.start(*flags, "--grace", "0.2s", lease=f"{LEASE:g}s")
    try:
        yield
    finally:
        _expect(worker.stop() == 0, "a worker that was stopped ended badly")


def _stop(harness: WorkerHarness, found: dict[str, list[float]]) -> None:
    for busy in (False, True):
        worker = harness.start("-c", "8", "--contexts", "2", "--grace", "0.2s", lease=f"{LEASE:g}s")
        jobs = _napping(harness, [harness.tasks.nap, harness.tasks.alone_nap]) if busy else []
        began = time.monotonic()
        _expect(worker.stop() == 0, "a worker that was stopped ended badly")
        found["stop a worker with running jobs" if busy else "stop an idle worker"].append(time.monotonic() - began)
        for job in jobs:
            _expect(job.state is State.QUEUED, "a job of a worker that was stopped was not given back")
            job.cancel()


def _cancel(harness: WorkerHarness, found: dict[str, list[float]]) -> None:
    tasks = harness.tasks
    kinds = {
        "a coroutine": tasks.co_nap,
        "a function in a thread": tasks.nap,
        "a job alone in its process": tasks.alone_nap,
    }
    for kind, task in kinds.items():
        (job,) = _napping(harness, [task])
        began = time.monotonic()
        job.cancel()
        record = harness.ended(job)
        found[f"cancel {kind}"].append(time.monotonic() - began)
        _expect(record.state is State.CANCELLED, f"{kind} that was cancelled is {record.state}")


def _schedule(harness: WorkerHarness, found: dict[str, list[float]]) -> None:
    known = len(harness.notes("late"))
    jobs = [harness.tasks.stamp.using(delay=1.0).enqueue(time.time_ns() + 1_000_000_000) for _ in range(10)]
    for job in jobs:
        _expect(harness.ended(job).attempt == 1, "a scheduled job did not run once")
    late = [int(line) / 1e9 for line in harness.notes("late")[known:]]
    _expect(len(late) == len(jobs), "a scheduled job did not run once")
    _expect(min(late) > -0.05, "a scheduled job ran before its time")  # the store and this process read the clock apart
    found["a scheduled job starts late by"].append(max(late))


def _tiers(harness: WorkerHarness, found: dict[str, list[float]]) -> None:
    """Slow jobs have two of three places: a fast one waits for none of them, slow ones for each other."""
    tiers = [Tier(name="fast", seconds=60.0, cap="100%"), Tier(name="slow", seconds=600.0, cap=2)]
    harness.app.ask(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))
    nap = harness.tasks.co_nap
    try:
        with _worker(harness, "-c", "3"):
            for job in [nap.using(tier="slow").enqueue(0.5) for _ in range(4)]:
                harness.ended(job)  # so that it is known how long they take
            slow = [nap.using(tier="slow").enqueue(0.5) for _ in range(8)]
            last = slow[-1].estimate()
            fast = harness.ended(nap.using(tier="fast").enqueue(0.0))
            found["a fast job starts behind slow ones"].append(_waited(fast))
            ended = [harness.ended(job) for job in slow]
    finally:
        harness.app.ask(ChangeQueue(queue="default", change=QueueChange(clear=["tiers"])))
    _expect({fast.state, *(one.state for one in ended)} == {State.SUCCEEDED}, "a job with a tier did not succeed")
    _expect(last.seconds is not None, "a job that waits behind others got no estimate")
    found["first estimate exceeded by"].append(max(0.0, _waited(ended[-1]) - (last.at_most or last.seconds or 0.0)))


def _kill(harness: WorkerHarness, found: dict[str, list[float]]) -> None:
    killed = harness.start("-c", "4", "--contexts", "2", lease=f"{LEASE:g}s")
    known = len(harness.notes("start"))
    jobs = [harness.tasks.co_nap.enqueue(60.0) for _ in range(4)]
    harness.noted("start", known + len(jobs))
    with _worker(harness, "-c", "4"):
        killed.send(signal.SIGKILL)
        began = time.monotonic()
        harness.noted("start", known + 2 * len(jobs))
        found["jobs of a killed worker run again"].append(time.monotonic() - began)
        _expect(
            len(harness.notes("start")) == known + 2 * len(jobs), "a job of a killed worker ran more than once again"
        )
        for job in jobs:
            job.cancel()
            _expect(harness.ended(job).state is State.CANCELLED, "a job that was cancelled goes on")


def failover(folder: Path) -> float:
    """Seconds from the moment that a sentinel names another master until a job has been enqueued and run there."""
    (folder / "shop").mkdir(parents=True)
    with watched_group(folder) as group:
        harness = WorkerHarness(folder / "shop", group.url, "bench", TASKS.read_text())
        try:
            with _worker(harness):
                harness.ended(harness.tasks.add.enqueue(1, 1))
                group.kill()
                group.await_switch()
                began = time.monotonic()
                while True:
                    try:
                        _expect(harness.ended(harness.tasks.add.enqueue(1, 1)).attempt == 1, "a job did not run once")
                        return time.monotonic() - began
                    except Unavailable:
                        _expect(time.monotonic() - began < PATIENCE, "no job is accepted after a failover")
        finally:
            harness.close()


def _napping(harness: WorkerHarness, tasks: list[Any]) -> list[Any]:
    """Jobs that run, and would for a minute."""
    known = len(harness.notes("start"))
    jobs = [task.enqueue(60.0) for task in tasks]
    harness.noted("start", known + len(jobs))
    return jobs


def _waited(record: Any) -> float:
    return float((record.started_at - record.created_at).total_seconds())


def _expect(right: bool, otherwise: str) -> None:
    if not right:
        raise Wrong(otherwise)


def measure_workers(rounds: int) -> list[str]:
    """Prints the waits; the outcomes that were wrong."""
    wrong: list[str] = []
    table: dict[str, dict[str, float]] = {}
    for kind in ("file", "redis"):
        with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
            folder = Path(name)
            (folder / "redis").mkdir()
            with Server("redis", folder / "redis", fsync="everysec") as server:
                (folder / "shop").mkdir()
                store = server.url if kind == "redis" else str(folder / "shop" / "jobs.db")
                harness = WorkerHarness(folder / "shop", store, "bench", TASKS.read_text())
                try:
                    for what, values in workers(harness, rounds).items():
                        table.setdefault(what, {})[kind] = statistics.median(values)
                except Wrong as fault:
                    wrong.append(f"{kind}: {fault}")
                finally:
                    harness.close()
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
        try:
            waits = [failover(Path(name) / str(turn)) for turn in range(rounds)]
            table[FAILOVER] = {"redis": statistics.median(waits)}
        except Wrong as fault:
            wrong.append(f"failover: {fault}")
    print(f"\n| seconds; rounds: {rounds} | bar | file | redis | |\n|---|---:|---:|---:|---|")
    for what, bar in LIMITS.items():
        seen = table.get(what, {})
        cells = " | ".join(f"{seen[kind]:.2f}" if kind in seen else "" for kind in ("file", "redis"))
        verdict = "met" if max(seen.values(), default=math.inf) <= bar else "missed" if seen else "not measured"
        print(f"| {what} | {bar:g} | {cells} | {verdict} |")
    return wrong


def measure_enqueueing(arguments: argparse.Namespace) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
        found = journal(Path(name), arguments.rounds, arguments.seconds)
    with tempfile.TemporaryDirectory(prefix="windlass-bench-", dir="/dev/shm") as name:
        found |= asyncio.run(followers(Path(name), arguments.rounds, arguments.seconds + 6, arguments.followers))
    table = Table()
    medians = {what: statistics.median(values) for what, values in found.items()}
    for what, value in medians.items():
        table.put("p99, ms; rounds:", arguments.rounds, what, 1000 * value)
    print(table.markdown())
    for ratio, bar in BARS.items():
        one, _, other = ratio.partition(" : ")
        other = {"there": "store there"}.get(other, other)
        seen = medians[one] / medians[other]
        print(f"{ratio}: {seen:.1f} (bar {bar:g}: {'met' if seen <= bar else 'missed'})")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench waits", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one phase")
    parser.add_argument("--followers", type=int, default=200)
    parser.add_argument("--only", choices=("enqueueing", "workers"))
    arguments = parser.parse_args(argv)
    if arguments.only != "workers":
        measure_enqueueing(arguments)
    wrong = measure_workers(arguments.rounds) if arguments.only != "enqueueing" else []
    for what in wrong:
        print(f"WRONG {what}")
    return 1 if wrong else 0
