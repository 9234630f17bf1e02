"""In-memory statistics of one engine: run times, forecasts, late arrivals, estimates to be checked.

Bounded in space; costs a claim and a finish next to nothing. Times are seconds of the caller's clock. Reads and writes
nothing: `estimate.learn` stores what is learned.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct, field

from windlass.model.estimate import Estimate
from windlass.model.names import DEFAULT_TENANT, JobKey, key_of
from windlass.policy.run_times import RunTimes
from windlass.policy.snapshot import LoadSnapshot, WaitingLane
from windlass.store.data import Record

MOST_RUNNING = 20_000
"""Claimed jobs that are remembered until they end."""

MOST_FRESH = 1000
"""Run times of one task that are remembered until they are stored."""

MOST_TASKS = 2000
"""Tasks whose run times are known."""

MOST_PREDICTIONS = 100
"""Estimates that are compared with the actual waits."""

MOST_LATE = 10_000
"""Late arrivals of one queue whose places are remembered."""

MOST_FORECASTS = 1000
"""Queues whose last forecast is remembered."""

MOST_FORECAST_JOBS = 500_000
"""Jobs in all forecasts together."""

LaneName = tuple[str, str, str]
"""Tenant, task and group of jobs in one queue."""


class Prediction(Struct, frozen=True):
    """An estimate that will be compared with the actual wait."""

    queue: str
    seconds: float
    at: datetime
    """When it was made, by the store's clock."""


class Forecast(Struct, frozen=True):
    """The forecast of one queue."""

    snapshot: LoadSnapshot
    jobs: Mapping[str, Estimate]
    """By `forecast_name`."""
    waiting: Mapping[str, int]
    """Number of waiting jobs, by tenant."""
    now: datetime
    """By the store's clock."""
    at: float
    cost: float
    """Seconds that it took."""
    size: int
    """Number of waiting jobs, including those of preferred queues."""
    free: int = 0
    """Slots left over."""
    pace: float = 0.0
    """Seconds by which each new job delays the next once all slots are taken."""
    lanes: Mapping[LaneName, WaitingLane] = {}
    """Of the queue itself."""
    arrivals: Mapping[str, WaitingLane] = {}
    """A job that would arrive now, by tenant; under an empty name, of a tenant without jobs and workers here."""
    rough: bool = False
    """Whether jobs were only counted: then it has upper bounds for new jobs, and no estimates of waiting ones."""
    answers: dict[str, Estimate] = field(default_factory=dict)
    """Cached estimates of jobs that are not in it."""


class QueuePlace(NamedTuple):
    """How many jobs arrived before a job since the last forecast: in its queue, and in its own lane."""

    queue: int = 0
    lane: int = 0


FIRST = QueuePlace()


class LateArrivals:
    """Jobs that this engine added after a queue's forecast was begun."""

    def __init__(self) -> None:
        self.count = 0
        self.lanes: Counter[LaneName] = Counter()
        self.places: dict[str, QueuePlace] = {}
        """The first of them, by `forecast_name`."""

    def add(self, lane: LaneName, name: str) -> QueuePlace:
        place = QueuePlace(self.count, self.lanes[lane])
        self.count += 1
        if place.queue < MOST_LATE:
            self.places[name] = place
        if lane in self.lanes or len(self.lanes) < MOST_LATE:
            self.lanes[lane] += 1
        return place


class RunStats:
    """The statistics of one engine."""

    def __init__(self) -> None:
        self._running: dict[JobKey, tuple[str, float]] = {}
        self.fresh: dict[str, list[float]] = {}
        """Run times by `TENANT,TASK` that are not stored yet."""
        self.times: dict[str, RunTimes] = {}
        """The run times of all engines, as last read."""
        self.times_at = float("-inf")
        self.forecasts: dict[str, Forecast] = {}
        """By queue."""
        self.making: dict[str, asyncio.Event] = {}
        """Queues whose forecast is being made; the event is set when it is done."""
        self.crowded_until: dict[str, float] = {}
        """Until when an enqueue does not wait for a forecast of these queues."""
        self._late: dict[str, LateArrivals] = {}
        """By queue."""
        self.watched: dict[str, float] = {}
        """Queues that a caller asked about, and when."""
        self.predictions: dict[JobKey, Prediction] = {}
        """By job."""
        self.errors: dict[str, list[float]] = {}
        """By queue: errors of estimates that are not stored yet."""

    def claimed(self, records: Iterable[Record], at: float) -> None:
        """Jobs have started."""
        for record in records:
            job = record.job
            self._running[key_of(job)] = (task_key(job.tenant, job.task), at)
        while len(self._running) > MOST_RUNNING:
            del self._running[next(iter(self._running))]

    def finished(self, keys: Iterable[JobKey], at: float) -> None:
        """Jobs have ended, successfully or not: each had a slot until now."""
        for key in keys:
            seen = self._running.pop(key, None)
            if seen is None:
                continue  # claimed through another engine
            task, began = seen
            runs = self.fresh.get(task)
            if runs is None:
                if len(self.fresh) >= MOST_TASKS:
                    continue
                runs = self.fresh[task] = []
            if len(runs) < MOST_FRESH:
                runs.append(at - began)

    def begin_forecast(self, queue: str) -> None:
        """A forecast is begun: jobs that arrive from now on may be missing in it."""
        self._late[queue] = LateArrivals()

    def arrived(self, queue: str, lane: LaneName, name: str) -> QueuePlace:
        """A job arrived; its place among the late arrivals."""
        late = self._late.get(queue)
        return FIRST if late is None else late.add(lane, name)

    def late_place(self, queue: str, name: str) -> QueuePlace | None:
        """The same, asked for later; null = the job came through another engine, or too many have come."""
        late = self._late.get(queue)
        return None if late is None else late.places.get(name)

    def predict(self, key: JobKey, prediction: Prediction) -> None:
        if len(self.predictions) < MOST_PREDICTIONS:
            self.predictions.setdefault(key, prediction)

    def worker_registered(self, queues: Iterable[str]) -> None:
        """A worker of these queues registered: forecasts of queues that had none are outdated."""
        for queue in queues:
            last = self.forecasts.get(queue)
            if last is not None and not any(queue in pool.queues for pool in last.snapshot.pools):
                del self.forecasts[queue]

    def remember(self, queue: str, forecast: Forecast) -> None:
        self.crowded_until.pop(queue, None)
        self.forecasts.pop(queue, None)
        self.forecasts[queue] = forecast
        jobs = sum(len(one.jobs) for one in self.forecasts.values())
        while len(self.forecasts) > 1 and (len(self.forecasts) > MOST_FORECASTS or jobs > MOST_FORECAST_JOBS):
            oldest = next(iter(self.forecasts))
            self._late.pop(oldest, None)
            jobs -= len(self.forecasts.pop(oldest).jobs)


def forecast_name(id: str, tenant: str) -> str:
    """The name of a job in a forecast, where the jobs of all tenants are together."""
    return id if tenant == DEFAULT_TENANT else f"{id}/{tenant}"


def task_key(tenant: str, task: str) -> str:
    return f"{tenant},{task}"
