"""What one engine has seen lately: how long jobs ran, and how long they waited that were told how long they would.

Only remembers, in bounded space; `engine.estimates` writes it down and reads it. Costs a claim and a finish next to
nothing. Moments are seconds of whatever clock the caller reads, always the same.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct, field

from windlass.model.estimate import Estimate
from windlass.model.names import DEFAULT_TENANT, JobKey, key_of
from windlass.policy.learning import RunTimes
from windlass.policy.snapshot import Lane, Snapshot
from windlass.store import Record

MOST_RUNNING = 20_000
"""Claimed jobs that are remembered until they end."""

MOST_FRESH = 1000
"""Run times of one task that are remembered until they are written down."""

MOST_TASKS = 2000
"""Tasks whose run times are known."""

MOST_PROMISES = 100
"""Estimates that are held against what becomes of them."""

MOST_LATE = 10_000
"""Jobs of one queue whose places since its last forecast are remembered."""

MOST_FORECASTS = 1000
"""Queues whose last forecast is remembered."""

MOST_FORETOLD = 500_000
"""Jobs in all of those together."""


LaneName = tuple[str, str, str]
"""Tenant, task and group of jobs in one queue."""


class Promise(Struct, frozen=True):
    """That a job would start after so long."""

    queue: str
    seconds: float
    at: datetime
    """When it was said, by the store's clock."""


class Forecast(Struct, frozen=True):
    """What was foretold of a queue."""

    snapshot: Snapshot
    jobs: Mapping[str, Estimate]
    """By `forecast_name`."""
    waiting: Mapping[str, int]
    """How many jobs, by tenant."""
    now: datetime
    """By the store's clock."""
    at: float
    cost: float
    """Seconds that it took."""
    size: int
    """How many jobs, with those of other queues that were in the way."""
    free: int = 0
    """Slots that were left over."""
    pace: float = 0.0
    """Seconds by which each newcomer puts off the next once all slots are taken."""
    lanes: Mapping[LaneName, Lane] = {}
    """Of the queue itself."""
    newcomers: Mapping[str, Lane] = {}
    """Jobs that would come now, by tenant; of an empty name: of one without jobs and workers here."""
    rough: bool = False
    """Whether jobs were only counted: then it says how long newcomers wait at most, and nothing of anybody else."""
    told: dict[str, Estimate] = field(default_factory=dict)
    """What was told since of jobs that are not in it."""


class Place(NamedTuple):
    """How many came before a job since the last look at its queue: in all, and of its own lane."""

    queue: int = 0
    lane: int = 0


FIRST = Place()


class Latecomers:
    """Jobs that one engine took in after a queue's forecast was begun."""

    def __init__(self) -> None:
        self.count = 0
        self.lanes: Counter[LaneName] = Counter()
        self.places: dict[str, Place] = {}
        """The first of them, by `forecast_name`."""

    def add(self, lane: LaneName, name: str) -> Place:
        place = Place(self.count, self.lanes[lane])
        self.count += 1
        if place.queue < MOST_LATE:
            self.places[name] = place
        if lane in self.lanes or len(self.lanes) < MOST_LATE:
            self.lanes[lane] += 1
        return place


class Experience:
    """One engine's."""

    def __init__(self) -> None:
        self._running: dict[JobKey, tuple[str, float]] = {}
        self.fresh: dict[str, list[float]] = {}
        """Run times by `TENANT,TASK` that are not written down yet."""
        self.times: dict[str, RunTimes] = {}
        """What all engines have learned, as last read."""
        self.times_at = float("-inf")
        self.forecasts: dict[str, Forecast] = {}
        """By queue."""
        self.making: dict[str, asyncio.Event] = {}
        """Queues whose forecast is being made, and what tells that it is."""
        self.crowded_until: dict[str, float] = {}
        """Until when queues are taken to be too slow for a look at the door."""
        self._since: dict[str, Latecomers] = {}
        """By queue: who came after its forecast was begun."""
        self.watched: dict[str, float] = {}
        """Queues for which somebody has asked, and when."""
        self.promises: dict[JobKey, Promise] = {}
        """By job."""
        self.errors: dict[str, list[float]] = {}
        """By queue: how wrong promises were that have come true, not written down yet."""

    def claimed(self, records: Iterable[Record], at: float) -> None:
        """Jobs have started."""
        for record in records:
            job = record.job
            self._running[key_of(job)] = (task_key(job.tenant, job.task), at)
        while len(self._running) > MOST_RUNNING:
            del self._running[next(iter(self._running))]

    def finished(self, keys: Iterable[JobKey], at: float) -> None:
        """Jobs have ended, well or not: each had a slot until now."""
        for key in keys:
            seen = self._running.pop(key, None)
            if seen is None:
                continue  # another engine handed it out
            task, began = seen
            runs = self.fresh.get(task)
            if runs is None:
                if len(self.fresh) >= MOST_TASKS:
                    continue
                runs = self.fresh[task] = []
            if len(runs) < MOST_FRESH:
                runs.append(at - began)

    def begin(self, queue: str) -> None:
        """A look at a queue begins: whoever comes from now on may be missing in it."""
        self._since[queue] = Latecomers()

    def arrived(self, queue: str, lane: LaneName, name: str) -> Place:
        """A job came; its place among those who came since the last look."""
        since = self._since.get(queue)
        return FIRST if since is None else since.add(lane, name)

    def place_since(self, queue: str, name: str) -> Place | None:
        """The same, asked for later; null = it came to another engine, or too many have come."""
        since = self._since.get(queue)
        return None if since is None else since.places.get(name)

    def promise(self, key: JobKey, promise: Promise) -> None:
        if len(self.promises) < MOST_PROMISES:
            self.promises.setdefault(key, promise)

    def manned(self, queues: Iterable[str]) -> None:
        """A worker of these queues came: what was foretold of one that had none holds no more."""
        for queue in queues:
            last = self.forecasts.get(queue)
            if last is not None and not any(queue in pool.queues for pool in last.snapshot.pools):
                del self.forecasts[queue]

    def remember(self, queue: str, forecast: Forecast) -> None:
        self.crowded_until.pop(queue, None)
        self.forecasts.pop(queue, None)
        self.forecasts[queue] = forecast
        jobs = sum(len(one.jobs) for one in self.forecasts.values())
        while len(self.forecasts) > 1 and (len(self.forecasts) > MOST_FORECASTS or jobs > MOST_FORETOLD):
            oldest = next(iter(self.forecasts))
            self._since.pop(oldest, None)
            jobs -= len(self.forecasts.pop(oldest).jobs)


def forecast_name(id: str, tenant: str) -> str:
    """What a job is called in a forecast, where jobs of all tenants wait together."""
    return id if tenant == DEFAULT_TENANT else f"{id}/{tenant}"


def task_key(tenant: str, task: str) -> str:
    return f"{tenant},{task}"
