"""Follows a job: looks at it again and again, and says what is new. An end is heard of at once.

Made from operations alone, so it costs nothing while nobody follows; each follower looks for itself.
"""

import asyncio
from collections.abc import AsyncGenerator

from msgspec.structs import replace

from windlass.model.errors import WindlassError
from windlass.model.events import Event, Place, piece, state_event
from windlass.model.job import FINISHED, Chunk, Job, State
from windlass.model.operations import GetOutput, Service, Show

LOOK_EVERY = 0.25
LOOK_EVERY_IF_WAITING = 0.5
"""Seconds between two looks at a job that runs, and at one that waits to run."""

WAIT_FOR_END = 60.0

News = tuple[Event, Chunk | None]
"""An event and, if it is of output, the bytes."""


async def follow(service: Service, tenant: str, job: Job, place: Place) -> AsyncGenerator[News | None, None]:
    """What is new of a job from a place on, until it has ended; null = nothing, at each look."""
    looking = _Looking(service, tenant, job.id)
    try:
        async for news in _news(service, tenant, job, place, looking):
            yield news
    finally:
        looking.close()


async def _news(
    service: Service, tenant: str, job: Job, place: Place, looking: "_Looking"
) -> AsyncGenerator[News | None, None]:
    last: Job | None = None
    while True:
        name = state_event(job)
        if job.state not in FINISHED and (name, job.attempt) != (place.told, place.attempt):
            place = replace(place, told=name, attempt=job.attempt)
            yield Event(name=name, id=str(place), job=job), None
        if job.attempt or job.state is not State.QUEUED:
            while chunks := (page := await service(GetOutput(tenant=tenant, id=job.id, after=place.after))).chunks:
                for chunk in chunks:
                    place = replace(place, after=chunk.n)
                    yield Event(name="output", id=str(place), chunk=piece(chunk)), chunk
                place = replace(place, after=page.next)
        if job.state in FINISHED:
            yield Event(name=name, id=str(replace(place, told=name, attempt=job.attempt)), job=job), None
            return
        if job.progress is not None and (last is None or job.progress != last.progress):
            yield Event(name="progress", id=str(place), job=job), None
        yield None
        last = job
        job = await looking.again(LOOK_EVERY if job.state is State.RUNNING else LOOK_EVERY_IF_WAITING)


class _Looking:
    """Looks at a job now and then, or as soon as it has ended: one question waits for that all the time."""

    def __init__(self, service: Service, tenant: str, id: str) -> None:
        self._service = service
        self._now = Show(tenant=tenant, id=id)
        self._end: asyncio.Task[Job | None] | None = None

    async def again(self, seconds: float) -> Job:
        if self._end is None:
            self._end = asyncio.create_task(self._wait())
        await asyncio.wait({self._end}, timeout=seconds)
        if self._end.done():
            ended, self._end = self._end.result(), None
            if ended is not None:
                return ended
        return await self._service(self._now)

    async def _wait(self) -> Job | None:
        try:
            return await self._service(replace(self._now, wait=WAIT_FOR_END))
        except WindlassError:
            return None  # whoever looks finds out why

    def close(self) -> None:
        if self._end is not None:
            self._end.cancel()
