"""Follows one job: yields an event for each change until the job ends.

Updates come from the feed; until its subscription stands, the job is polled. Uses operations only, so a follower works
the same in process and behind a journal.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from datetime import datetime

from msgspec.structs import replace

from windlass.engine.context import touch_every
from windlass.engine.events.feed import Feed, Follower
from windlass.model.errors import WindlassError
from windlass.model.estimate import Estimate
from windlass.model.events import Event, EventCursor, EventName, EventWithOutput, order_event, output_data, state_event
from windlass.model.job import FINISHED, Job, State
from windlass.model.names import key_of
from windlass.model.operations import GetOutput, Service, Show
from windlass.model.output import Chunk, Progress

POLL_RUNNING = 0.25
POLL_WAITING = 0.5
"""Seconds between two polls of a running and of a waiting job, until the feed is subscribed."""

POLL_SUBSCRIBED = 30.0
"""Seconds between two polls after that: an event may be lost."""

HEARTBEAT_EVERY = 5.0
"""Seconds after which a follower gets at least an empty item."""

ESTIMATE_EVERY = 1.0
"""Seconds between two estimates of a waiting job."""

MOST_ESTIMATES = 1000
"""Estimates per second. With more followers, each is estimated less often."""

NOTICEABLE = 0.1
"""The share by which an estimate must differ from the last one sent, unless it differs by a second."""

LEAST_CHANGE = 0.1
"""Seconds by which it must differ in any case."""

Predict = Callable[[Job], Awaitable[Estimate | None]]
"""How long a job will still wait; null = it waits no longer."""


async def follow_job(
    service: Service, feed: Feed, job: Job, place: EventCursor, *, predict: Predict
) -> AsyncGenerator[EventWithOutput | None, None]:
    """The events of a job after `place`, until it ends; null now and then, as a heartbeat."""
    events = _JobEvents(service, predict, job.tenant, place)
    async with feed.following(key_of(job)) as follower:
        updates = _JobUpdates(service, follower, job.tenant)
        output = True
        while True:
            async for event in events.changes(job, output=output):
                yield event
            if job.state in FINISHED:
                return
            updates.schedule_poll(job)
            while True:
                pause = max(ESTIMATE_EVERY, feed.followers / MOST_ESTIMATES)
                yield await events.estimate(job, pause)
                if (found := await updates.next(job, pause)) is not None:
                    job, output = found
                    break


class _JobEvents:
    """Turns successive readings of a job into events. Remembers what was sent."""

    def __init__(self, service: Service, predict: Predict, tenant: str, place: EventCursor) -> None:
        self._service = service
        self._predict = predict
        self._tenant = tenant
        self._place = place
        self._progress: Progress | None = None
        self._ordered: tuple[EventName, str | None, datetime | None] | None = None
        """The last event of an order that was sent, with the tier and the deadline that it left."""
        self._adopted_at: datetime | None = None
        """Of the last `adopted` event that was sent."""
        self._seen: Job | None = None
        """The last reading."""
        self._estimate: Estimate | None = None
        self._estimate_at = 0.0

    async def changes(self, job: Job, *, output: bool) -> AsyncGenerator[EventWithOutput, None]:
        name = state_event(job)
        ended = job.state in FINISHED
        if not ended and (name, job.attempt) != (self._place.sent, self._place.attempt):
            self._place = replace(self._place, sent=name, attempt=job.attempt)
            self._estimate, self._estimate_at = None, 0.0
            yield Event(name=name, id=str(self._place), job=job), None
        for other in self._other_changes(job):
            yield Event(name=other, id=str(self._place), job=job), None
        if ended or (output and (job.attempt or job.state is not State.QUEUED)):
            async for chunk in self._output(job):
                yield Event(name="output", id=str(self._place), chunk=output_data(chunk)), chunk
        if ended:
            yield Event(name=name, id=str(replace(self._place, sent=name, attempt=job.attempt)), job=job), None
        elif job.progress is not None and job.progress != self._progress:
            yield Event(name="progress", id=str(self._place), job=job), None
        self._progress = job.progress

    def _other_changes(self, job: Job) -> Iterator[EventName]:
        """What has changed of a job beside its state."""
        if (name := order_event(job)) is not None and (name, job.assigned, job.deadline) != self._ordered:
            self._ordered = name, job.assigned, job.deadline
            yield name
        seen, self._seen = self._seen, job
        if job.state in FINISHED:
            return
        if job.adopted_at not in (None, self._adopted_at):
            self._adopted_at = job.adopted_at
            yield "adopted"
        if seen is not None and job.edits != seen.edits:
            yield "edited"
        if seen is not None and job.pid is not None and (job.pid, job.attempt) != (seen.pid, seen.attempt):
            yield "begun"

    async def estimate(self, job: Job, pause: float) -> EventWithOutput | None:
        """The remaining wait, if it changed since it was last sent; null = no change, or not due yet."""
        now = asyncio.get_running_loop().time()
        if job.state is State.RUNNING or now < self._estimate_at:
            return None
        try:
            found = await self._predict(job)
        except WindlassError:
            return None  # the store does not answer: the next round tries again
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


def _differs(found: Estimate, sent: Estimate) -> bool:
    if found.seconds is None or sent.seconds is None:
        return found != sent
    if (found.why, found.name, found.at_most is None) != (sent.why, sent.name, sent.at_most is None):
        return True
    pairs = [(found.seconds, sent.seconds), (found.at_most or 0.0, sent.at_most or 0.0)]
    return any(abs(new - old) >= min(1.0, max(NOTICEABLE * old, LEAST_CHANGE)) for new, old in pairs)


class _JobUpdates:
    """Readings of a job: from the feed, or by polling when a poll is due."""

    def __init__(self, service: Service, follower: Follower, tenant: str) -> None:
        self._service = service
        self._follower = follower
        self._tenant = tenant
        self._subscribed = False
        self._poll_at = 0.0

    def schedule_poll(self, job: Job) -> None:
        pause = POLL_RUNNING if job.state is State.RUNNING else POLL_WAITING
        pause = min(POLL_SUBSCRIBED if self._subscribed else pause, touch_every(job))
        self._poll_at = asyncio.get_running_loop().time() + pause

    async def next(self, job: Job, pause: float) -> tuple[Job, bool] | None:
        """The job, and whether it may have new output; null = no update, and no poll is due.

        Returns after `pause` seconds at the latest if the job waits: it is estimated again then.
        """
        loop = asyncio.get_running_loop()
        longest = HEARTBEAT_EVERY if job.state is State.RUNNING else min(pause, HEARTBEAT_EVERY)
        update = await self._follower.receive(max(0.0, min(self._poll_at - loop.time(), longest)))
        if update is None and loop.time() < self._poll_at:
            return None
        self._subscribed = self._follower.subscribed  # before the poll: later events then arrive through the feed
        if update is not None and update.job is not None:
            return update.job, update.output
        return await self._service(Show(tenant=self._tenant, id=job.id)), True
