"""Follows a job: says what is new of it as the feed tells, and by looking where the feed does not (yet).

Made from operations and the feed, so it costs nothing while nobody follows.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from msgspec.structs import replace

from windlass.engine.attending import attend_every
from windlass.engine.feed import Feed, Follower
from windlass.model.errors import WindlassError
from windlass.model.estimate import Estimate
from windlass.model.events import Event, News, Place, piece, sacrifice, state_event
from windlass.model.job import FINISHED, Chunk, Job, Progress, State
from windlass.model.names import key_of
from windlass.model.operations import GetOutput, Service, Show

LOOK_EVERY = 0.25
LOOK_EVERY_IF_WAITING = 0.5
"""Seconds between two looks at a job that runs, and at one that waits to run, until the feed is heard."""

LOOK_EVERY_IF_HEARD = 30.0
"""The same afterwards: news may be lost."""

BREATHE_EVERY = 5.0
"""Seconds after which somebody who follows hears at least that there is nothing."""

ESTIMATE_EVERY = 1.0
"""The same after which a job that waits is estimated again."""

MOST_ESTIMATES = 1000
"""Estimates in a second: of more followers than that each looks less often."""

NOTICEABLE = 0.1
"""The part of an estimate by which another one must differ to be told, unless it does so by a second."""

LEAST_CHANGE = 0.1
"""Seconds by which it must differ in any case."""

Foretell = Callable[[Job], Awaitable[Estimate | None]]
"""Says how long a job will still wait; null = it cannot be said yet."""


async def follow(
    service: Service, feed: Feed, job: Job, place: Place, *, foretell: Foretell
) -> AsyncGenerator[News | None, None]:
    """What is new of a job from a place on, until it has ended; null = nothing, now and then."""
    story = _Story(service, foretell, job.tenant, place)
    async with feed.following(key_of(job)) as follower:
        looking = _Looking(service, follower, job.tenant)
        output = True
        while True:
            async for news in story.tell(job, output=output):
                yield news
            if job.state in FINISHED:
                return
            looking.rest(job)
            while True:
                pause = max(ESTIMATE_EVERY, feed.followers / MOST_ESTIMATES)
                yield await story.estimated(job, pause)
                if (found := await looking.again(job, pause)) is not None:
                    job, output = found
                    break


class _Story:
    """What has been told of a job."""

    def __init__(self, service: Service, foretell: Foretell, tenant: str, place: Place) -> None:
        self._service = service
        self._foretell = foretell
        self._tenant = tenant
        self._place = place
        self._progress: Progress | None = None
        self._given: tuple[str, str | None] | None = None
        """What it was told to have given for others, and the tier that it has left."""
        self._estimate: Estimate | None = None
        self._estimate_at = 0.0

    async def tell(self, job: Job, *, output: bool) -> AsyncGenerator[News, None]:
        name = state_event(job)
        ended = job.state in FINISHED
        if not ended and (name, job.attempt) != (self._place.told, self._place.attempt):
            self._place = replace(self._place, told=name, attempt=job.attempt)
            self._estimate, self._estimate_at = None, 0.0
            yield Event(name=name, id=str(self._place), job=job), None
        if (given := sacrifice(job)) is not None and (given, job.assigned) != self._given:
            self._given = given, job.assigned
            yield Event(name=given, id=str(self._place), job=job), None
        if ended or (output and (job.attempt or job.state is not State.QUEUED)):
            async for chunk in self._output(job):
                yield Event(name="output", id=str(self._place), chunk=piece(chunk)), chunk
        if ended:
            yield Event(name=name, id=str(replace(self._place, told=name, attempt=job.attempt)), job=job), None
        elif job.progress is not None and job.progress != self._progress:
            yield Event(name="progress", id=str(self._place), job=job), None
        self._progress = job.progress

    async def estimated(self, job: Job, pause: float) -> News | None:
        """How long it will still wait, if that is another time than was told; null = nothing new, or not asked yet."""
        now = asyncio.get_running_loop().time()
        if job.state is State.RUNNING or now < self._estimate_at:
            return None
        try:
            found = await self._foretell(job)
        except WindlassError:
            return None  # nobody can say now
        if found is None:
            return None
        self._estimate_at = now + pause
        if self._estimate is not None and not _differs(found, self._estimate):
            return None
        self._estimate = found
        return Event(name="estimate", id=str(self._place), estimate=found), None

    async def _output(self, job: Job) -> AsyncGenerator[Chunk, None]:
        while True:
            page = await self._service(GetOutput(tenant=self._tenant, id=job.id, after=self._place.after))
            if not page.chunks:
                return
            for chunk in page.chunks:
                self._place = replace(self._place, after=chunk.n)
                yield chunk
            self._place = replace(self._place, after=page.next)


def _differs(found: Estimate, told: Estimate) -> bool:
    if found.seconds is None or told.seconds is None:
        return found != told
    least = min(1.0, max(NOTICEABLE * told.seconds, LEAST_CHANGE))
    return (found.why, found.name) != (told.why, told.name) or abs(found.seconds - told.seconds) >= least


class _Looking:
    """Hears of a job, or looks at it when it is time to."""

    def __init__(self, service: Service, follower: Follower, tenant: str) -> None:
        self._service = service
        self._follower = follower
        self._tenant = tenant
        self._heard = False
        self._look_at = 0.0

    def rest(self, job: Job) -> None:
        """Until the next look."""
        pause = LOOK_EVERY if job.state is State.RUNNING else LOOK_EVERY_IF_WAITING
        pause = min(LOOK_EVERY_IF_HEARD if self._heard else pause, attend_every(job))
        self._look_at = asyncio.get_running_loop().time() + pause

    async def again(self, job: Job, pause: float) -> tuple[Job, bool] | None:
        """The job, and whether it may have put something out; null = it is not time, and nothing was heard.

        A job that waits is looked at after a pause of its own: to estimate it again.
        """
        loop = asyncio.get_running_loop()
        breath = BREATHE_EVERY if job.state is State.RUNNING else min(pause, BREATHE_EVERY)
        news = await self._follower.hear(max(0.0, min(self._look_at - loop.time(), breath)))
        if news is None and loop.time() < self._look_at:
            return None
        self._heard = self._follower.hears  # asked before the look: whatever comes after it is then heard
        if news is not None and news.job is not None:
            return news.job, news.output
        return await self._service(Show(tenant=self._tenant, id=job.id)), True
