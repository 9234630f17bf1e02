"""`./dev bench worker`: what one worker does on each store: drains, start latency, isolated jobs, idling, memory.

A no-op task with an argument of 100 bytes. Counted from outside, as in `bench peers`. In the columns `0` nothing waits:
a worker gets a job now and then, or none.
"""

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.peers.ground import POLL, STALLED, Ground, Stand, drained, private_redis
from bench.peers.measures import fill, idle, latency
from bench.peers.systems import WINDLASS, Setting
from bench.processes import Program, Weight
from bench.table import Table

SHARED = next(setting for setting in WINDLASS.settings if not setting.isolated)
ISOLATED = next(setting for setting in WINDLASS.settings if setting.isolated)
DRAIN = "jobs/s"
AGAINST = "jobs/s : jobs/s of the shortest backlog"
WARM_UP = 100
"""Jobs after which a worker is up."""
BAR = 0.9
"""A drain of the longest backlog against the shortest."""
SLICE = 1.0
"""Seconds of a long drain between two drains of the shortest backlog."""


class Sizes(NamedTuple):
    """How much is measured."""

    backlogs: list[int]
    isolated: int
    """Isolated jobs in a backlog."""
    seconds: float
    """Of paced jobs, and of idling."""
    rounds: int


@contextmanager
def stand_on(store: str) -> Iterator[Stand]:
    programs = Path(sys.executable).parent
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
        folder = Path(name)
        if store == "sqlite":
            yield Stand(Ground(folder, str(folder / "jobs.db"), None), WINDLASS, programs)
            return
        with private_redis(folder) as server:
            yield Stand(Ground(folder, server.url, server), WINDLASS, programs)


def drain(stand: Stand, setting: Setting, total: int) -> tuple[float, Weight, Weight]:
    """Jobs per second, and what the worker weighs after its first jobs and after its last."""
    fill(stand, setting.task, total)
    light: list[Weight] = []
    with stand.workers(setting, 1) as (worker,), stand.backlog() as left:
        rate = drained(left, total, [worker], first=lambda: light.append(worker.weight()))
        return rate, light[0], worker.weight()


def in_turn(long: Stand, short: Stand, total: int, shortest: int) -> tuple[float, float, Weight, Weight]:
    """A long drain in slices, and after each one of the shortest backlog on another store.

    The machine changes its speed meanwhile, for both. Answers jobs per second of the long one, the same against the
    short ones, and what its worker weighs at first and at last.
    """
    for stand in (long, short):
        fill(stand, SHARED.task, WARM_UP)
    with (
        long.workers(SHARED, 1) as (busy,), long.backlog() as left,
        short.workers(SHARED, 1) as (other,), short.backlog() as others_left,
    ):  # fmt: skip
        drained(left, WARM_UP, [busy])
        drained(others_left, WARM_UP, [other])
        busy.pause()
        long.produce(SHARED.task, "bulk", total)
        light = busy.weight()
        seconds = others_seconds = 0.0
        slices, remaining = 0, left()
        begun = remaining
        other.pause()
        while remaining:
            short.produce(SHARED.task, "bulk", shortest)
            seconds += _slice(busy, left, SLICE)
            remaining = left()
            others_seconds += _slice(other, others_left, STALLED)
            slices += 1
        rate = begun / seconds
        return rate, rate / (slices * shortest / others_seconds), light, busy.weight()


def _slice(busy: Program, left: Callable[[], int], most: float) -> float:
    """Let a worker drain for a while, or to the end; the seconds that it took."""
    begun = time.perf_counter()
    busy.resume()
    while (now := time.perf_counter()) - begun < most and left():
        time.sleep(POLL)
    busy.pause()
    return now - begun


def measure(store: str, stand: Stand, sizes: Sizes, table: Table) -> None:
    shortest, *longer = sizes.backlogs

    def put(total: int, rounds: Sequence[tuple[float, Weight, Weight]]) -> None:
        table.put(store, total, DRAIN, statistics.median(rate for rate, _, _ in rounds))
        table.put(store, total, "memory at the start, MB (PSS)", statistics.median(one.pss for _, one, _ in rounds))
        table.put(store, total, "memory at the end, MB (PSS)", statistics.median(one.pss for _, _, one in rounds))

    say(f"  draining {shortest:,}")
    put(shortest, [drain(stand, SHARED, shortest) for _ in range(sizes.rounds)])
    for total in longer:
        say(f"  draining {total:,}, and {shortest:,} now and then")
        with stand_on(store) as other:
            rounds = [in_turn(stand, other, total, shortest) for _ in range(sizes.rounds)]
        put(total, [(rate, light, heavy) for rate, _, light, heavy in rounds])
        table.put(store, total, AGAINST, statistics.median(ratio for _, ratio, _, _ in rounds))
    say("  latency and idling")
    fill(stand, SHARED.task, WARM_UP)
    with stand.workers(SHARED, 1) as (worker,), stand.backlog() as left:
        drained(left, WARM_UP, [worker])
        p50, p99 = latency(stand, SHARED, sizes.seconds)
        table.put(store, 0, "start p50, ms", p50)
        table.put(store, 0, "start p99, ms", p99)
        table.put(store, 0, "idle, % of a core", idle(worker, sizes.seconds))
    say("  isolated jobs")
    rates = [drain(stand, ISOLATED, sizes.isolated)[0] for _ in range(sizes.rounds)]
    table.put(store, sizes.isolated, "isolated jobs/s", statistics.median(rates))


def verdict(store: str, backlogs: list[int], table: Table) -> str:
    if len(backlogs) < 2:
        return ""
    ratio = table.get(store, backlogs[-1], AGAINST)
    said = "met" if ratio >= BAR else "**missed**"
    return f"{store}: {backlogs[-1]:,} against {backlogs[0]:,} jobs: {ratio:.2f} ×, bar ≥ {BAR} ×: {said}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench worker", description=__doc__)
    parser.add_argument("--stores", default="sqlite,redis", help="which stores (default: %(default)s)")
    parser.add_argument("--backlogs", default="10000,100000", help="jobs waiting (default: %(default)s)")
    parser.add_argument("--isolated", type=int, default=1000, help="isolated jobs waiting (default: %(default)s)")
    parser.add_argument("--long", action="store_true", help="a backlog of a million, too")
    parser.add_argument("--seconds", type=float, default=6, help="of paced jobs, and of idling (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="drains of each backlog; medians (default: %(default)s)")
    options = parser.parse_args(arguments)
    logging.getLogger("windlass").setLevel(logging.ERROR)  # it warns of a server that keeps nothing: ours is meant to
    backlogs = sorted(
        {int(number) for number in options.backlogs.split(",")} | ({1_000_000} if options.long else set())
    )
    sizes = Sizes(backlogs, options.isolated, options.seconds, options.rounds)
    stores = options.stores.split(",")
    table = Table()
    for store in stores:
        say(store)
        with stand_on(store) as stand:
            measure(store, stand, sizes, table)
    print(table.markdown())
    print("\n" + "\n".join(verdict(store, backlogs, table) for store in stores))
    return 0
