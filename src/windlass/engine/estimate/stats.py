"""In-memory statistics of one engine: run times, forecasts, late arrivals, estimates to be checked.

Bounded in space; costs a claim and a finish next to nothing. Times are seconds of the caller's clock. Reads and writes
nothing: `estimate.learn` stores what is learned.
"""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from windlass.model.estimate import Estimate
from windlass.model.job import Job
from windlass.model.names import DEFAULT_TENANT, JobKey, key_of
from windlass.policy.run_times import RunTimes
from windlass.policy.snapshot import NEVER, FairTurns, LoadSnapshot, WaitingLane
from windlass.policy.upper_bound import upper_bound
from windlass.store.data import Record
from windlass.store.flow import MOST_RANKED

MOST_RUNNING = 20_000
"""Claimed jobs that are remembered until they end."""

MOST_FRESH = 1000
"""Run times of one task that are remembered until they are stored."""

MOST_TASKS = 2000
"""Tasks whose run times are known."""

MOST_PREDICTIONS = 100
"""Estimates that are compared with the actual waits."""

MOST_LATE = 10_000
"""Lanes of one queue whose late arrivals are counted."""

MOST_ANSWERS = 10_000
"""Cached estimates of one forecast."""

SMALL = 1000
"""Waiting jobs up to which every caller gets a new forecast."""

SHARE = 20
"""A forecast is used for so many times its cost: so making forecasts takes at most this share of the time."""

OLDEST = 60.0
"""Seconds after which a forecast is replaced in any case."""

ROUGH_FOR = 1.0
"""Seconds for which a rough forecast serves new jobs, unless it was expensive: then for longer."""

STALE = 5.0
"""Seconds after which the forecast of a short queue is too old for new jobs."""

MOMENT = 0.1
"""Seconds for which a forecast counts as made just now."""

LAST = 2**62
"""An arrival after all others."""

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


class QueuePlace(NamedTuple):
    """How many jobs arrived before a job since the last forecast was begun: in its queue, and in its own lane."""

    queue: int = 0
    lane: int = 0


FIRST = QueuePlace()


class LateArrivals:
    """Jobs that this engine added after a queue's forecast was begun."""

    def __init__(self) -> None:
        self._count = 0
        self._lanes: Counter[LaneName] = Counter()

    def add(self, lane: LaneName) -> QueuePlace:
        place = QueuePlace(self._count, self._lanes[lane])
        self._count += 1
        if lane in self._lanes or len(self._lanes) < MOST_LATE:
            self._lanes[lane] += 1
        return place


class Forecast(Struct, frozen=True):
    """The forecast of one queue: a replay of the listed jobs, and the load that bounds the wait of all others.

    Waits count from `at`. Methods take the present time of the same clock.
    """

    snapshot: LoadSnapshot
    jobs: Mapping[str, Estimate]
    """The listed jobs, by `forecast_name`."""
    waiting: Mapping[str, int]
    """Number of waiting jobs, by tenant."""
    now: datetime
    """By the store's clock."""
    at: float
    cost: float
    """Seconds that it took."""
    size: int
    """Number of waiting jobs, including those of preferred queues."""
    lane: Callable[[LaneName], WaitingLane]
    """A lane of the queue, with or without waiting jobs."""
    begun: float = 0.0
    """Jobs that were in the store by then are part of it."""
    rough: bool = False
    """Whether jobs were only counted, and none is listed."""
    free: int = 0
    """Slots left over."""
    worst: "Forecast | None" = None
    """The same if each run takes as long as its tier allows; null = no tiers play a part."""
    pace: float = 0.0
    """Seconds by which each new job delays the next once all slots are taken."""
    answers: dict[object, Estimate] = field(default_factory=dict)
    """Cached estimates of jobs that are not listed."""

    @property
    def large(self) -> bool:
        return self.size > SMALL

    def is_due(self, now: float) -> bool:
        """Whether a new one should be made."""
        return self.rough or now - self.at > min(OLDEST, SHARE * self.cost)

    def serves_new_jobs(self, now: float, oldest: float = 0.0) -> bool:
        """Whether it is recent enough for new jobs: that of a short queue for `oldest` seconds, or by its cost."""
        age = now - self.at
        if self.large and not self.rough:
            return age <= OLDEST
        return age <= max(ROUGH_FOR if self.rough else oldest, SHARE * self.cost) and (self.rough or age < STALE)

    def _age(self, now: float) -> float:
        age = now - self.at
        return age if age >= MOMENT else 0.0

    def remaining(self, found: Estimate, now: float) -> Estimate:
        """What is left of a wait."""
        return found if found.seconds is None else replace(found, seconds=max(0.0, found.seconds - self._age(now)))

    def of_new_job(self, name: LaneName, priority: int, now: float, late: QueuePlace = FIRST) -> Estimate:
        """The longest wait of a job that arrives after the forecast, behind other late arrivals."""
        lane = self.lane(name)
        found = self._behind_the_last(lane, priority)
        if found.seconds is not None and not priority:
            by_slots = max(0, late.queue - max(0, self.free)) * self.pace
            found = replace(found, seconds=found.seconds + max(by_slots, late.lane * self._step(lane)))
        return self.remaining(found, now)

    def _step(self, lane: WaitingLane) -> float:
        """Seconds by which each job of a lane delays the next within its bounds, as far as is known."""
        bounds = [self.snapshot.bounds[place] for place in lane.bounds]
        run = lane.seconds if lane.seconds < NEVER else 0.0
        steps = [max(bound.interval, run / bound.places if bound.places else 0.0) for bound in bounds]
        return max(steps, default=0.0)

    def _behind_the_last(self, lane: WaitingLane, priority: int) -> Estimate:
        """Of a lane that is listed in full, only the last job is looked at: there may be thousands of such lanes."""
        ahead = 0 if self.rough or lane.rest else bisect_right(lane.jobs, (priority, LAST, ""))
        if not ahead:
            return self._at_most(lane, priority)
        last = replace(self.jobs[lane.jobs[ahead - 1][2]], position=None)
        by_slots = last if lane.queue in self.snapshot.turns else self._at_most(replace(lane, bounds=()), priority)
        if last.seconds is None or by_slots.seconds is None:
            return last if last.seconds is None else by_slots
        behind = last.seconds + self._step(lane)
        return by_slots if by_slots.seconds > behind else replace(last, seconds=behind)

    def _at_most(self, lane: WaitingLane, priority: int) -> Estimate:
        """Cached for all lanes of which the same is known."""
        turns = self.snapshot.turns.get(lane.queue, FairTurns())
        weight = (turns.tenants or {}).get(lane.tenant, 1.0)
        member = (lane.tenant, lane.task) if turns != FairTurns() and lane.tenant in self.waiting else weight
        name = (lane.pools, lane.bounds, lane.opens, lane.lacks, priority, member)
        found = self.answers.get(name)
        if found is None:
            found = upper_bound(self.snapshot, replace(lane, jobs=[(priority, LAST, "")], rest=0))
            self._cache(name, found)
        return found

    def at_rank(self, job: Job, name: LaneName, rank: int, now: float) -> Estimate:
        """The wait of a job that is not listed, from its rank in its lane: later jobs do not change it."""
        lane = self.lane(name)
        if lane.rest:
            found = self._beyond_the_listed(lane, name, job.priority, rank)
        else:  # it arrived later than all listed jobs
            own = replace(lane, rest=max(0, rank - len(lane.jobs)), jobs=lane.jobs[:rank])
            lanes = [own, *(each for each in self.snapshot.lanes if each is not lane)]
            new_job = replace(lane, jobs=[(job.priority, LAST, "")], rest=0)
            found = upper_bound(replace(self.snapshot, lanes=lanes), new_job)
        if found.seconds is not None:  # the rank is of now, but waits count from the forecast
            found = replace(found, seconds=found.seconds + self._age(now))
        found = replace(found, position=self._position(lane, job.priority, rank))
        self._cache(forecast_name(job.id, job.tenant), found)
        return found

    def _beyond_the_listed(self, lane: WaitingLane, name: LaneName, priority: int, rank: int) -> Estimate:
        """At the pace of the last listed jobs of the lane; at most the wait of a new job."""
        beyond = max(0, rank - len(lane.jobs) - lane.rest)
        at_most = self.of_new_job(name, priority, self.at, QueuePlace(beyond, beyond))
        half = len(lane.jobs) // 2
        if at_most.seconds is None or rank >= MOST_RANKED or half + 1 == len(lane.jobs):
            return at_most
        middle, last = (self.jobs[lane.jobs[place][2]].seconds or 0.0 for place in (half, -1))
        step = (last - middle) / (len(lane.jobs) - 1 - half)
        return replace(at_most, seconds=min(at_most.seconds, last + (rank + 1 - len(lane.jobs)) * step))

    def _position(self, lane: WaitingLane, priority: int, rank: int) -> int | None:
        others = self.waiting.get(lane.tenant, 0) - len(lane.jobs) - lane.rest
        known = rank < MOST_RANKED and lane.queue not in self.snapshot.turns
        return others + rank + 1 if known and (not others or not (lane.rest or priority)) else None

    def _cache(self, name: object, found: Estimate) -> None:
        if len(self.answers) < MOST_ANSWERS:
            self.answers[name] = found


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

    def arrived(self, queue: str, lane: LaneName) -> QueuePlace:
        """A job arrived; its place among the late arrivals."""
        late = self._late.get(queue)
        return FIRST if late is None else late.add(lane)

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
