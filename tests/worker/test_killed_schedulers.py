"""Schedules by the second while workers and a server, which all make their jobs, are killed again and again (R3).

Each tick makes one job and no more, also those ticks at which no process was there. The judge reads the queue, and a
file in which each run notes the id of its job.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.http_servers import Process
from tests.support.servers import StartServer
from tests.support.worker_harness import MakeHarness, StoreKind, Worker, WorkerHarness, until
from windlass.model.job import Job as Record
from windlass.model.job import State

SOURCE = """
import os
from pathlib import Path
from windlass import Windlass, current

app = Windlass(tenant=os.environ["HARNESS_TENANT"])
NOTES = os.open(Path(__file__).with_name("notes"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.every("1s", name="first", overlap="queue", catch_up="all")
@app.every("1s", name="second", overlap="queue", catch_up="all")
@app.cron("*/2 * * * * *", name="third", overlap="queue", catch_up="all")
@app.task
def tick() -> None:
    os.write(NOTES, f"ran {current.job.id}\\n".encode())


@app.task
def late() -> None:
    tick()
"""

PERIODS = {"first": 1, "second": 1, "third": 2}
"""Seconds between two ticks."""

EVERY = 3.0
"""Seconds between two kills."""

DOWN = 2.5
"""Seconds without any of them, now and then: more than one tick of a schedule finds no process."""

WORKERS = 2
LEASE = "2s"
LATE_JOBS = 20


class Crowd:
    """Processes that all make the jobs of schedules: workers, and a server that runs none."""

    def __init__(self, harness: WorkerHarness) -> None:
        self._harness = harness
        self.server = Process(harness.folder, "--no-worker", store=harness.store)
        self._workers: list[Worker] = []

    def start(self) -> None:
        self.server.start()
        self._workers = [self._harness.start(lease=LEASE) for _ in range(WORKERS)]

    def kill(self, places: list[int]) -> None:
        """`places`: of the workers, and after them the server. All are killed before the first is started again."""
        for place in places:
            if place == WORKERS:
                self.server.kill()
            else:
                self._workers[place].destroy()
        if len(places) > WORKERS:
            time.sleep(DOWN)
        for place in places:
            if place == WORKERS:
                self.server.start()
            else:
                self._workers[place] = self._harness.start(lease=LEASE)


@contextmanager
def crowd(harness: WorkerHarness) -> Iterator[Crowd]:
    found = Crowd(harness)
    try:
        found.start()
        yield found
    finally:
        if found.server.child is not None:
            found.server.kill()


def tick_of(job: Record) -> datetime:
    assert job.key is not None
    return datetime.strptime(job.key.split(":", 2)[2], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


def ticks_between(start: datetime, end: datetime, period: int) -> list[datetime]:
    """By hand: the whole seconds after `start`, up to `end`, that the period divides."""
    first = (int(start.timestamp()) // period + 1) * period
    return [datetime.fromtimestamp(at, UTC) for at in range(first, int(end.timestamp()) + 1, period)]


@pytest.mark.parametrize("kind", ["file", "redis"])
@pytest.mark.parametrize("seconds", [10.0, pytest.param(75.0, marks=pytest.mark.long)])
def test_each_tick_makes_one_job_while_the_processes_that_make_them_are_killed(
    make_harness: MakeHarness, start_server: StartServer, kind: StoreKind, seconds: float
) -> None:
    harness = make_harness(SOURCE, store="" if kind == "file" else start_server("redis").url)
    app, chance, kills = harness.app, random.Random(3), 0
    with crowd(harness) as schedulers:
        late = [harness.tasks.late.using(delay=place * seconds / LATE_JOBS).enqueue() for place in range(LATE_JOBS)]
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            time.sleep(EVERY)
            everyone = list(range(WORKERS + 1))
            schedulers.kill(everyone if kills % 3 == 2 else [chance.choice(everyone)])
            kills += 1
        killed_at = datetime.now(UTC)
        for name in PERIODS:
            until(lambda name=name: app.schedules[name].show().runs[0].tick > killed_at)  # type: ignore[misc]
            app.schedules[name].pause()
        until(lambda: app.jobs(state="pending").count() == 0)
        cards = {name: app.schedules[name].show() for name in PERIODS}
        jobs = list(app.jobs())
    ran = Counter(harness.notes("ran"))
    for name, period in PERIODS.items():
        ticks = Counter(tick_of(job) for job in jobs if job.headers.get("schedule") == name)
        assert sorted(ticks) == ticks_between(cards[name].changed_at, max(ticks), period), f"{name}: missed or made up"
        assert set(ticks.values()) == {1}, f"{name}: twice"
        assert cards[name].skipped == 0
        assert max(ticks) > killed_at - timedelta(seconds=period)
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert {job.id for job in jobs} == set(ran), "lost"
    assert {job.id for job in late} <= set(ran)
    again = {id for id, runs in ran.items() if runs > 1}
    assert again <= {job.id for job in jobs if job.losses}, "a job runs again only if its worker was killed"
    print(f"{kind}: {kills} kills, {len(jobs)} jobs, {len(again)} ran again")  # noqa: T201
