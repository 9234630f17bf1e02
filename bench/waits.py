"""`./dev bench waits`: how long those who enqueue wait while something is wrong, as ratios to when all is well.

Journal: a store that is there, that is killed, and that is back and has to take what came meanwhile, round after round.
Followers: none at first, then hundreds, of whom some never read, round after round. What is compared lies seconds
apart in one run, so that a machine which changes its speed favours no side; a figure is the median of the rounds.
"""

import argparse
import asyncio
import resource
import statistics
import tempfile
import time
from pathlib import Path

from bench.table import Table
from tests.servers import Server
from tests.serving import process
from tests.test_live_load import follow_in_a_crowd
from tests.wires import Crowd
from windlass.model import wire

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


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench waits", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one phase")
    parser.add_argument("--followers", type=int, default=500)
    arguments = parser.parse_args(argv)
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
    return 0
