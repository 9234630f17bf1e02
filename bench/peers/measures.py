"""What is measured of one system, each figure once. Rounds, medians and ratios are others' business."""

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from bench.peers.ground import POLL, Ground, NotRun, Stand, drained
from bench.peers.systems import Setting
from bench.processes import Program

RATE = 50.0
"""Jobs per second whose start is timed."""
PATIENCE = 10.0
"""Seconds for paced jobs after the last was queued, the start of a worker included."""
NAP = 0.05
"""Seconds that a job takes whose worker is killed."""
SETTLE = 2.0
"""Seconds for what follows the last job."""
BEYOND = 30.0
"""Seconds that the second worker gets beyond what the jobs take."""

ONE = "one by one, jobs/s"
ONE_FILE = "one by one on a synced file, jobs/s"
BULK = "bulk, jobs/s"
CROWD = "64 callers, jobs/s"
DRAIN = "one worker, jobs/s"
DRAIN_TWO = "two workers, jobs/s"
P50 = "start p50, ms"
P99 = "start p99, ms"
TURN_P50 = "start p50 in turn, ms"
TURN_P99 = "start p99 in turn, ms"
RSS = "RSS, MB"
PSS = "PSS, MB"
IDLE = "idle, % of a core"
SMALL_IS_GOOD = frozenset({P50, P99, TURN_P50, TURN_P99, RSS, PSS, IDLE})

Put = Callable[[str, float], None]


class Sizes(NamedTuple):
    """How much is measured."""

    jobs: int
    """In a backlog, before a setting's share."""
    single: int
    """Queued one by one."""
    latency: float
    """Seconds of paced jobs."""
    idle: float
    """Seconds of idling."""
    naps: int
    """Jobs of which a worker is killed."""
    again: int
    """How often in a round what takes a second is measured."""
    turns: int
    """Seconds in turn of those that start jobs soonest."""

    def backlog(self, setting: Setting) -> int:
        return max(50, int(self.jobs * setting.share))


def enqueue(stand: Stand, sizes: Sizes, put: Put) -> None:
    ways = [("one", ONE, sizes.single)]
    ways += [("bulk", BULK, sizes.jobs)] if stand.system.bulk else []
    ways += [("crowd", CROWD, sizes.jobs)] if stand.system.crowd else []
    for how, what, number in ways * sizes.again:
        stand.ground.clear()
        gave = stand.produce("noop", how, number)
        put(what, gave.jobs / gave.seconds)


def enqueue_on_file(stand: Stand, sizes: Sizes, put: Put) -> None:
    """The same, one by one, where the ground is a file: each job is on disk when the call returns."""
    for _ in range(sizes.again):
        stand.ground.clear()
        gave = stand.produce("noop", "one", sizes.single)
        put(ONE_FILE, gave.jobs / gave.seconds)


def fill(stand: Stand, task: str, number: int, *, safe: bool = False) -> None:
    """A backlog on clear ground."""
    stand.ground.clear()
    stand.produce(task, "bulk" if stand.system.bulk else "one", number, safe=safe)


def one_worker(stand: Stand, setting: Setting, sizes: Sizes, put: Put, *, rates_only: bool) -> None:
    """A backlog drained, then what the worker weighs, what it costs to let it wait, and how soon it starts a job."""
    total = sizes.backlog(setting)
    fill(stand, setting.task, total)
    with stand.workers(setting, 1) as (worker,), stand.backlog() as left:
        put(DRAIN, drained(left, total, [worker]))
        if rates_only:
            return
        time.sleep(SETTLE)
        weight = worker.weight()
        put(RSS, weight.rss)
        if weight.pss:
            put(PSS, weight.pss)
        put(IDLE, idle(worker, sizes.idle))
        p50, p99 = latency(stand, setting, sizes.latency)
        put(P50, p50)
        put(P99, p99)


def two_workers(stand: Stand, setting: Setting, sizes: Sizes, put: Put) -> None:
    total = sizes.backlog(setting)
    for _ in range(sizes.again):
        fill(stand, setting.task, total)
        with stand.workers(setting, 2) as workers, stand.backlog() as left:
            put(DRAIN_TWO, drained(left, total, workers))


def idle(worker: Program, seconds: float) -> float:
    """Percent of one processor that a worker with nothing to do uses."""
    before, begun = worker.cpu(), time.perf_counter()
    time.sleep(seconds)
    return 100 * (worker.cpu() - before) / (time.perf_counter() - begun)


def latency(stand: Stand, setting: Setting, seconds: float) -> tuple[float, float]:
    """Milliseconds from the call that queues a job to its first line, for an idle worker: median, and 99 of 100."""
    return percentiles(waits(stand, setting, seconds))


def percentiles(waits: list[float]) -> tuple[float, float]:
    ordered = sorted(waits)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]


def waits(stand: Stand, setting: Setting, seconds: float) -> list[float]:
    """Such milliseconds of each paced job."""
    ground, number = stand.ground, int(RATE * seconds)
    ground.notes.write_bytes(b"")
    stand.produce(setting.stamp, "paced", number, rate=RATE)
    until = time.perf_counter() + PATIENCE
    while len(ground.noted()) < number:
        if time.perf_counter() > until:
            raise NotRun(f"only {len(ground.noted())} of {number} paced jobs have run")
        time.sleep(POLL)
    return [(started - queued) / 1e6 for queued, started in ground.noted()]


class Aftermath(NamedTuple):
    """What became of jobs whose worker was killed."""

    lost: int
    late: int
    """Not done in time, but still known to the system."""
    repeated: int
    seconds: float
    """Until the last job was done, counted from the kill."""


def killed(stand: Stand, number: int) -> Aftermath:
    """Kill a worker with all its processes after a third of the jobs; another does the rest, if it gets them."""
    ground, setting = stand.ground, stand.system.safe
    fill(stand, "nap", number, safe=True)
    slots = 1 if setting.isolated else 10
    with stand.workers(setting, 1, safe=True) as (worker,):
        _until(ground, number // 3, number * NAP * 3 + BEYOND)
        time.sleep(NAP / 2)  # a worker with one job at a time is in the middle of it
        worker.kill()
    if not ground.noted():
        raise NotRun(f"no job has run: {worker.last_lines()}")
    begun = time.perf_counter()
    with stand.workers(setting, 1, safe=True), stand.backlog(safe=True) as left:
        # Twice the time of the naps: some fork for each job.
        last = _until(ground, number, 2 * number * NAP / slots + BEYOND)
        time.sleep(SETTLE)  # a repetition may come after the last
        held = left()
    runs = Counter(note[0] for note in ground.noted())
    missing = number - len(runs)
    late = min(missing, held)
    return Aftermath(missing - late, late, sum(runs.values()) - len(runs), last - begun)


def _until(ground: Ground, number: int, most: float) -> float:
    """When the last of so many different jobs was noted, waiting no longer than that."""
    until = time.perf_counter() + most
    seen, last = 0, time.perf_counter()
    while time.perf_counter() < until:
        now = len({note[0] for note in ground.noted()})
        if now > seen:
            seen, last = now, time.perf_counter()
        if now >= number:
            break
        time.sleep(POLL)
    return last
