"""The feed: what happens to all jobs, for those in this process who watch many or follow one.

One pump for all of them hears the news of every process, looks the jobs up once, and hands them out. It runs while
somebody watches, and belongs to whoever does. Nobody is waited for: who does not keep up is told of a gap.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from msgspec.structs import replace

from windlass.engine.desk import owns
from windlass.model.errors import Invalid, Unavailable, WindlassError
from windlass.model.events import ALONE, NAMES, Event, EventName, Gone
from windlass.model.job import FINISHED, PENDING, Job, State
from windlass.model.match import Match, index_only, matches, states
from windlass.model.names import DEFAULT_TENANT, JobKey, key_of
from windlass.store import Store
from windlass.store.beside import GAP, Watch, Wire

log = logging.getLogger("windlass.feed")

PAUSE = 0.05
"""Seconds between two handings out: what comes meanwhile is looked up together."""

MOST_AT_ONCE = 500
"""Jobs that are looked up for one of them; where more happens, some is missed."""

MOST_IN_A_ROW = 20
"""Followers that are told before others of this event loop have their turn."""

MOST_WAITING = 1000
"""Events that wait for one who watches."""

MOST_SEEN = 5000
"""Jobs that are remembered in case that their end takes their record along."""

BEGIN_WITHIN = 10.0
TRY_AGAIN_AFTER = 1.0
"""Seconds in which somebody who watches must be heard of by all, and after which a lost wire is taken up again."""

_NAMES = {name: name for name in NAMES if name not in ALONE}
"""News that is told to those who watch, beside deletions; the rest only to those who follow the job."""


class Line(NamedTuple):
    """A line of news: see `engine.telling`."""

    name: str
    key: JobKey = JobKey("", "")
    about: tuple[str, ...] = ()
    """What else is said of a job that is gone: queue, task, state."""

    @classmethod
    def of(cls, text: str) -> "Line":
        name, id, tenant, *about = (*text.split(" "), "", "")[:6]
        return cls(name, JobKey(id, tenant or DEFAULT_TENANT), tuple(word for word in about if word))

    @property
    def gone(self) -> Gone | None:
        match self.about:
            case (queue, task, state) if self.name == "deleted" and state in FINISHED | PENDING:
                return Gone(*self.key, queue, task, State(state))
        return None


class News(NamedTuple):
    """What has happened to a job that somebody follows."""

    job: Job | None
    """As it is now; null = look for yourself."""
    output: bool
    """Whether it may have put something out."""


LOOK = News(None, output=True)


class Follower:
    """Follows one job."""

    def __init__(self, feed: "Feed") -> None:
        self._feed = feed
        self._news: News | None = None
        self._came = asyncio.Event()

    @property
    def hears(self) -> bool:
        """Whether all that happens is heard; before, one must look."""
        return self._feed.ready.is_set()

    def wake(self) -> None:
        self._came.set()

    def put(self, news: News) -> None:
        self._news = News(news.job, output=news.output or (self._news is not None and self._news.output))
        self._came.set()

    async def hear(self, seconds: float) -> News | None:
        """What has happened; null = nothing in this time."""
        if not self._came.is_set():
            # Not `asyncio.timeout`, which can do more and costs more: thousands wait here at once.
            timer = asyncio.get_running_loop().call_later(seconds, self._came.set)
            try:
                await self._came.wait()
            finally:
                timer.cancel()
        self._came.clear()
        news, self._news = self._news, None
        return news


class Watcher:
    """Watches jobs that match."""

    def __init__(self, tenant: str, match: Match) -> None:
        self._tenant = tenant
        self._match = match
        self._waiting: list[Event] = []
        self._missed = False
        self._came = asyncio.Event()

    def put(self, events: Iterable[Event]) -> None:
        for event in events:
            if not self._wants(event):
                continue
            if len(self._waiting) >= MOST_WAITING:
                self.miss()
                return
            self._waiting.append(event)
            self._came.set()

    def _wants(self, event: Event) -> bool:
        if event.job is not None:
            return owns(self._tenant, event.job) and matches(self._match, event.job)
        gone = event.gone
        return gone is not None and owns(self._tenant, gone) and matches_gone(self._match, gone)

    def miss(self) -> None:
        self._missed = True
        self._came.set()

    def wake(self) -> None:
        self._came.set()

    async def take(self, seconds: float) -> list[Event]:
        """All that waits, waiting so long for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._came.wait()
        self._came.clear()
        taken, self._waiting = self._waiting, []
        if self._missed:
            self._missed = False
            taken.append(Event(name="gap"))
        return taken


class Feed:
    """One engine's part in it."""

    def __init__(self, store: Store, wire: Wire) -> None:
        self._store = store
        self._wire = wire
        self._watchers: set[Watcher] = set()
        self._followers: dict[JobKey, set[Follower]] = {}
        self._seen: dict[JobKey, Job] = {}
        """Jobs that have not ended, as they were last told."""
        self._pump: asyncio.Task[None] | None = None
        self.ready = asyncio.Event()
        self._tried = asyncio.Event()
        """Whether it is known if there is any news."""

    @asynccontextmanager
    async def watching(self, tenant: str, match: Match) -> AsyncIterator[Watcher]:
        """What happens to a tenant's jobs from now on."""
        if match.payload:
            raise Invalid("events are not matched by payload: give a task, a queue or a tag", at="payload")
        watcher = Watcher(tenant, match)
        self._watchers.add(watcher)
        self._start()
        try:
            await self._begun()
            yield watcher
        finally:
            self._watchers.discard(watcher)
            await self._stop_if_alone()

    @asynccontextmanager
    async def following(self, key: JobKey) -> AsyncIterator[Follower]:
        """What happens to one job. It is heard of a moment later (see `Follower.hears`)."""
        follower = Follower(self)
        self._followers.setdefault(key, set()).add(follower)
        self._start()
        try:
            yield follower
        finally:
            self._followers[key].discard(follower)
            if not self._followers[key]:
                del self._followers[key]
            await self._stop_if_alone()

    @property
    def followers(self) -> int:
        """Jobs that somebody follows."""
        return len(self._followers)

    def wake(self) -> None:
        """Let everybody look up, though there is no news."""
        for watcher in self._watchers:
            watcher.wake()
        for followers in self._followers.values():
            for follower in followers:
                follower.wake()

    def _start(self) -> None:
        if self._pump is None:
            self._pump = asyncio.create_task(self._keep_on(), name="windlass-feed")

    async def _begun(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_WITHIN):
                await self._tried.wait()
        if not self.ready.is_set():
            raise Unavailable("the store does not tell what happens: ask again later")

    async def _stop_if_alone(self) -> None:
        if self._pump is None or self._watchers or self._followers:
            return
        pump, self._pump = self._pump, None
        self.ready.clear()
        self._tried.clear()
        self._seen.clear()
        pump.cancel()
        await asyncio.wait({pump})

    async def _keep_on(self) -> None:
        while True:
            try:
                async with self._wire.watch() as watch:
                    self.ready.set()
                    self._tried.set()
                    await self._hand_out(watch)
            except WindlassError as fault:
                log.info("no news: %s", fault)
            except Exception:  # whatever it is, those who watch must not wait for ever
                log.exception("no news")
            self.ready.clear()
            self._tried.set()
            self._miss()
            await asyncio.sleep(TRY_AGAIN_AFTER)

    async def _hand_out(self, watch: Watch) -> None:
        while True:
            news = await watch.hear()
            await self._tell([Line.of(text) for text in news])
            await asyncio.sleep(PAUSE)

    async def _tell(self, news: list[Line]) -> None:
        if any(line.name == GAP for line in news):
            self._miss()
        wanted = [line.key for line in news if line.key in self._followers or (self._watchers and line.name in _NAMES)]
        keys = list(dict.fromkeys(wanted))[:MOST_AT_ONCE]
        reading = await self._store.read(keys)
        jobs = {key_of(record.job): record.job for record in reading.records if record is not None}
        self._tell_watchers(news, jobs, set(keys))
        await self._tell_followers(news, jobs)

    async def _tell_followers(self, news: list[Line], jobs: Mapping[JobKey, Job]) -> None:
        told = 0
        spoke = {line.key for line in news if line.name == "output"}
        for key in dict.fromkeys(line.key for line in news if line.key in self._followers):
            found = News(jobs.get(key), output=key in spoke)
            for follower in tuple(self._followers.get(key, ())):
                follower.put(found if found.job else LOOK)
                told += 1
                if told % MOST_IN_A_ROW == 0:
                    await asyncio.sleep(0)

    def _tell_watchers(self, news: list[Line], jobs: Mapping[JobKey, Job], looked_up: set[JobKey]) -> None:
        if not self._watchers:
            return
        events = [event for line in news if (event := self._event(line, jobs)) is not None]
        self._remember(jobs.values())
        missed = any(line.name in _NAMES and line.key not in looked_up for line in news)
        for watcher in self._watchers:
            watcher.put(events)
            if missed:
                watcher.miss()

    def _event(self, line: Line, jobs: Mapping[JobKey, Job]) -> Event | None:
        """What those who watch are told; null = nothing."""
        if line.name not in _NAMES:
            gone = line.gone
            return None if gone is None else Event(name="deleted", gone=gone)
        name = _NAMES[line.name]
        job = jobs.get(line.key) or self._last_seen(name, line.key)
        return None if job is None else Event(name=name, job=job)

    def _last_seen(self, name: EventName, key: JobKey) -> Job | None:
        """A job whose record is gone with its end, as it was before."""
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
                follower.put(LOOK)


def matches_gone(match: Match, gone: Gone) -> bool:
    """Whether a job that is gone was meant: nobody can say where more is asked for than is known of it."""
    return (
        index_only(match)
        and gone.state in states(match)
        and match.task in (None, gone.task)
        and match.queue in (None, gone.queue)
    )
