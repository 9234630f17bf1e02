"""The event feed: delivers the events of all processes to this one. `StoreWrites` publishes them.

An event arrives as one line; the receiver reads the job from the store. One task per engine receives for all watchers
and followers; it runs only while there are any.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from msgspec.structs import replace

from windlass.engine.context import DELETED
from windlass.model.errors import Invalid, Unavailable, WindlassError
from windlass.model.events import ALONE, NAMES, DeletedJob, Event, EventName
from windlass.model.job import FINISHED, PENDING, Job, State
from windlass.model.match import Match, index_only, matches, states
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT, JobKey, key_of
from windlass.model.wire import encode
from windlass.store.data import (
    FEED,
    GAP,
)
from windlass.store.protocol import Listener, Store

log = logging.getLogger("windlass.feed")

PAUSE = 0.05
"""Seconds between two deliveries: jobs of all events that arrive meanwhile are read together."""

IDLE = 60.0
"""Seconds for which it waits for the next event at a time."""

MOST_AT_ONCE = 500
"""Jobs read for one delivery. Watchers get a gap for the rest."""

MOST_IN_A_ROW = 20
"""Watchers or followers notified before other tasks of the event loop get a turn."""

MOST_WAITING = 1000
"""Events buffered for one watcher."""

MOST_SEEN = 5000
"""Unfinished jobs remembered, for events of jobs whose record is deleted with their end."""

BEGIN_WITHIN = 10.0
"""Seconds a new watcher waits for the subscription."""

TRY_AGAIN_AFTER = 1.0
"""Seconds before a lost subscription is renewed."""

_NAMES = {name: name for name in NAMES if name not in ALONE}
"""Events for watchers, besides deletions. Followers of a job get the others too."""


class EventLine(NamedTuple):
    """One received line."""

    name: str
    key: JobKey = JobKey("", "")
    about: tuple[str, ...] = ()
    """Queue, task and state of a deleted job."""

    @classmethod
    def parse(cls, text: str) -> "EventLine":
        name, id, tenant, *about = (*text.split(" "), "", "")[:6]
        return cls(name, JobKey(id, tenant or DEFAULT_TENANT), tuple(word for word in about if word))

    @property
    def gone(self) -> DeletedJob | None:
        match self.about:
            case (queue, task, state) if self.name == DELETED and state in FINISHED | PENDING:
                return DeletedJob(*self.key, queue, task, State(state))
        return None


class JobUpdate(NamedTuple):
    """What a follower learns of its job."""

    job: Job | None
    """The job as it is now; null = the follower must read it."""
    output: bool
    """Whether there may be new output."""


READ_AGAIN = JobUpdate(None, output=True)


class Follower:
    """Receives the updates of one job."""

    def __init__(self, feed: "Feed") -> None:
        self._feed = feed
        self._update: JobUpdate | None = None
        self._came = asyncio.Event()

    @property
    def subscribed(self) -> bool:
        """Whether every event arrives. Until then the follower must poll."""
        return self._feed.ready.is_set()

    def wake(self) -> None:
        self._came.set()

    def put(self, update: JobUpdate) -> None:
        self._update = JobUpdate(update.job, output=update.output or (self._update is not None and self._update.output))
        self._came.set()

    async def receive(self, seconds: float) -> JobUpdate | None:
        """The next update; null = none in this time."""
        if not self._came.is_set():
            # Cheaper than `asyncio.timeout`: thousands of followers wait here at once.
            timer = asyncio.get_running_loop().call_later(seconds, self._came.set)
            try:
                await self._came.wait()
            finally:
                timer.cancel()
        self._came.clear()
        update, self._update = self._update, None
        return update


class Watcher:
    """Receives the events of all jobs that match."""

    def __init__(self, tenant: str, match: Match) -> None:
        self._tenant = tenant
        self._match = match
        self.selects = tenant, encode(match)
        """Watchers for which this is equal want the same events."""
        self._waiting: list[Event] = []
        self._missed = False
        self._came = asyncio.Event()

    def put(self, events: Sequence[Event]) -> None:
        """Buffer events that it wants."""
        room = MOST_WAITING - len(self._waiting)
        self._waiting += events[:room]
        if len(events) > room:
            self._missed = True
        if events:
            self._came.set()

    def wants(self, event: Event) -> bool:
        if event.job is not None:
            return _owns(self._tenant, event.job) and matches(self._match, event.job)
        gone = event.gone
        return gone is not None and _owns(self._tenant, gone) and matches_gone(self._match, gone)

    def miss(self) -> None:
        self._missed = True
        self._came.set()

    def wake(self) -> None:
        self._came.set()

    async def take(self, seconds: float) -> list[Event]:
        """All buffered events; waits up to so many seconds for the first."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._came.wait()
        self._came.clear()
        taken, self._waiting = self._waiting, []
        if self._missed:
            self._missed = False
            taken.append(Event(name="gap"))
        return taken


def _owns(tenant: str, job: Job | DeletedJob) -> bool:
    return tenant in (EVERY_TENANT, job.tenant)


class Feed:
    """The watchers and followers of one engine."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watchers: set[Watcher] = set()
        self._followers: dict[JobKey, set[Follower]] = {}
        self._seen: dict[JobKey, Job] = {}
        """Unfinished jobs as they were last delivered."""
        self._receiver: asyncio.Task[None] | None = None
        self.ready = asyncio.Event()
        self._tried = asyncio.Event()
        """Set when the first attempt to subscribe has succeeded or failed."""

    @asynccontextmanager
    async def watching(self, tenant: str, match: Match) -> AsyncIterator[Watcher]:
        """The events of a tenant's jobs from now on."""
        if match.payload:
            raise Invalid("events are not matched by payload: give a task, a queue or a tag", at="payload")
        watcher = Watcher(tenant, match)
        self._watchers.add(watcher)
        self._start()
        try:
            await self._subscribed()
            yield watcher
        finally:
            self._watchers.discard(watcher)
            await self._stop_if_unused()

    @asynccontextmanager
    async def following(self, key: JobKey) -> AsyncIterator[Follower]:
        """The updates of one job. They arrive once the subscription stands (see `Follower.subscribed`)."""
        follower = Follower(self)
        self._followers.setdefault(key, set()).add(follower)
        self._start()
        try:
            yield follower
        finally:
            self._followers[key].discard(follower)
            if not self._followers[key]:
                del self._followers[key]
            await self._stop_if_unused()

    @property
    def followers(self) -> int:
        """How many jobs are followed."""
        return len(self._followers)

    def wake(self) -> None:
        """Wake all watchers and followers without an event."""
        for watcher in self._watchers:
            watcher.wake()
        for followers in self._followers.values():
            for follower in followers:
                follower.wake()

    def _start(self) -> None:
        if self._receiver is None:
            self._receiver = asyncio.create_task(self._receive(), name="windlass-feed")

    async def _subscribed(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_WITHIN):
                await self._tried.wait()
        if not self.ready.is_set():
            raise Unavailable("the store delivers no events now: try again later")

    async def _stop_if_unused(self) -> None:
        if self._receiver is None or self._watchers or self._followers:
            return
        receiver, self._receiver = self._receiver, None
        self.ready.clear()
        self._tried.clear()
        self._seen.clear()
        receiver.cancel()
        await asyncio.wait({receiver})

    async def _receive(self) -> None:
        while True:
            try:
                async with self._store.events.listen([FEED]) as listener:
                    self.ready.set()
                    self._tried.set()
                    await self._deliver_all(listener)
            except WindlassError as fault:
                log.info("feed: no events: %s", fault)
            except Exception:  # watchers must not wait forever, whatever failed
                log.exception("feed: no events")
            self.ready.clear()
            self._tried.set()
            self._miss()
            await asyncio.sleep(TRY_AGAIN_AFTER)

    async def _deliver_all(self, listener: Listener) -> None:
        while True:
            if lines := await listener.wait(IDLE):
                await self._deliver([EventLine.parse(text) for text in lines])
                await asyncio.sleep(PAUSE)

    async def _deliver(self, lines: list[EventLine]) -> None:
        if any(line.name == GAP for line in lines):
            self._miss()
        wanted = [line.key for line in lines if line.key in self._followers or (self._watchers and line.name in _NAMES)]
        keys = list(dict.fromkeys(wanted))[:MOST_AT_ONCE]
        reading = await self._store.jobs.read(keys)
        jobs = {key_of(record.job): record.job for record in reading.records if record is not None}
        await self._notify_watchers(lines, jobs, set(keys))
        await self._notify_followers(lines, jobs)

    async def _notify_followers(self, lines: list[EventLine], jobs: Mapping[JobKey, Job]) -> None:
        notified = 0
        with_output = {line.key for line in lines if line.name == "output"}
        for key in dict.fromkeys(line.key for line in lines if line.key in self._followers):
            update = JobUpdate(jobs.get(key), output=key in with_output)
            for follower in tuple(self._followers.get(key, ())):
                follower.put(update if update.job else READ_AGAIN)
                notified += 1
                if notified % MOST_IN_A_ROW == 0:
                    await asyncio.sleep(0)

    async def _notify_watchers(
        self, lines: list[EventLine], jobs: Mapping[JobKey, Job], looked_up: set[JobKey]
    ) -> None:
        if not self._watchers:
            return
        events = [event for line in lines if (event := self._event(line, jobs)) is not None]
        self._remember(jobs.values())
        missed = any(line.name in _NAMES and line.key not in looked_up for line in lines)
        selected: dict[tuple[str, bytes], list[Event]] = {}
        for number, watcher in enumerate(tuple(self._watchers), 1):
            if watcher.selects not in selected:
                selected[watcher.selects] = [event for event in events if watcher.wants(event)]
            watcher.put(selected[watcher.selects])
            if missed:
                watcher.miss()
            if number % MOST_IN_A_ROW == 0:
                await asyncio.sleep(0)

    def _event(self, line: EventLine, jobs: Mapping[JobKey, Job]) -> Event | None:
        """The event for watchers; null = none."""
        if line.name not in _NAMES:
            gone = line.gone
            return None if gone is None else Event(name="deleted", gone=gone)
        name = _NAMES[line.name]
        job = jobs.get(line.key) or self._last_seen(name, line.key)
        return None if job is None else Event(name=name, job=job)

    def _last_seen(self, name: EventName, key: JobKey) -> Job | None:
        """A job whose record was deleted with its end, as it was before."""
        job = self._seen.pop(key, None) if name in FINISHED else None
        return None if job is None else replace(job, state=State(name))

    def _remember(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._seen.pop(key_of(job), None)
            if job.state not in FINISHED:
                self._seen[key_of(job)] = job
        while len(self._seen) > MOST_SEEN:
            del self._seen[next(iter(self._seen))]

    def _miss(self) -> None:
        for watcher in self._watchers:
            watcher.miss()
        for followers in self._followers.values():
            for follower in followers:
                follower.put(READ_AGAIN)


def matches_gone(match: Match, gone: DeletedJob) -> bool:
    """Whether a deleted job matched. It does not if the match asks for more than is known of it."""
    return (
        index_only(match)
        and gone.state in states(match)
        and match.task in (None, gone.task)
        and match.queue in (None, gone.queue)
    )
