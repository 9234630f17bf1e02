"""A listing of the newest jobs first, over all queues that it may concern.

A store lists queue by queue. Here the listings of single queues are merged by the time at which their jobs were made,
as long as there are not too many queues. A cursor says for each queue where its listing goes on.
"""

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from windlass.engine.context import EngineContext
from windlass.model.errors import Invalid
from windlass.model.job import Job
from windlass.model.match import states
from windlass.model.names import EVERY_TENANT, check_name
from windlass.model.operations import MOST_AT_ONCE, List, Page

MOST_MERGED = 64
"""Queues; of more the listing goes queue by queue."""

MARK = "m."
"""Begins the cursors of this listing."""

LEAST_READ = 4
"""Jobs of one queue that are read at a time."""

ListQueue = Callable[[EngineContext, List], Awaitable[Page]]
"""Answers a listing of one queue, or of many queue by queue."""


class QueueProgress(Struct, frozen=True, array_like=True):
    """Where the listing of one queue goes on: after this cursor, and after so many jobs behind it."""

    tenant: str
    queue: str
    after: str | None = None
    shown: int = 0
    last: str = ""
    """The last of these."""
    last_at: datetime | None = None
    """When that was made: if it is gone meanwhile, younger ones were shown."""


@dataclass
class Merged:
    """The listing of one queue while it is merged with others."""

    place: QueueProgress
    jobs: list[Job] = field(default_factory=list)
    """Those that are not taken yet."""
    next: str | None = None
    """The cursor behind `jobs`."""

    def take(self) -> Job:
        job = self.jobs.pop(0)
        self.place = replace(self.place, shown=self.place.shown + 1, last=job.id, last_at=job.created_at)
        return job

    @property
    def name(self) -> tuple[str, str]:
        return self.place.tenant, self.place.queue

    @property
    def ended(self) -> bool:
        return not self.jobs and self.next is None


_places = msgspec.json.Decoder(list[QueueProgress])


async def list_newest(context: EngineContext, operation: List, list_queue: ListQueue) -> Page:
    """A page of jobs, newest first."""
    if operation.after is not None and not operation.after.startswith(MARK):
        return await list_queue(context, operation)
    if operation.after is None:
        places = await _begin(context, operation)
        if len(places) > MOST_MERGED:
            return await list_queue(context, operation)
    else:
        places = _decode(operation, operation.after)
    merged = [Merged(place) for place in places]
    size = max(LEAST_READ, 2 * operation.limit // max(1, len(merged)))

    async def read(one: Merged) -> None:
        await _read(context, operation, one, list_queue, size)

    await asyncio.gather(*map(read, merged))
    jobs: list[Job] = []
    while len(jobs) < operation.limit:
        # A queue whose matching jobs are rare may have none in all that was read: the page is a short one then.
        if any(not one.jobs and one.next is not None for one in merged):
            break
        first = max((one for one in merged if one.jobs), key=lambda one: one.jobs[0].created_at, default=None)
        if first is None:
            break
        jobs.append(first.take())
        if not first.jobs and first.next is not None:
            await read(first)
    going_on = [one.place if one.jobs else QueueProgress(*one.name, one.next) for one in merged if not one.ended]
    return Page(jobs=jobs, next=_encode(going_on) if going_on else None)


async def _begin(context: EngineContext, operation: List) -> list[QueueProgress]:
    wanted = states(operation.match)
    counts = (await context.store.jobs.counts(operation.tenant)).jobs
    queue, task = operation.match.queue, operation.match.task
    names = {
        (one.tenant, one.queue)
        for one in counts
        if one.state in wanted and queue in (None, one.queue) and task in (None, one.task)
    }
    return [QueueProgress(*name) for name in sorted(names)]


async def _read(context: EngineContext, operation: List, one: Merged, list_queue: ListQueue, size: int) -> None:
    """The next jobs of a queue, without those that were shown."""
    if one.next is not None:
        one.place = QueueProgress(*one.name, one.next)
    place = one.place
    match = replace(operation.match, queue=place.queue)
    limit = min(MOST_AT_ONCE, place.shown + size)
    page = await list_queue(
        context, replace(operation, tenant=place.tenant, match=match, after=place.after, limit=limit)
    )
    one.jobs, one.next = page.jobs[_shown(place, page.jobs) :], page.next


def _shown(place: QueueProgress, jobs: list[Job]) -> int:
    """How many of these were shown. None of the others is passed over, whatever was deleted meanwhile."""
    if place.last_at is None:
        return 0
    for number, job in enumerate(jobs):
        if job.id == place.last:
            return number + 1
    return sum(1 for job in jobs if job.created_at > place.last_at)


def _encode(places: list[QueueProgress]) -> str:
    return MARK + urlsafe_b64encode(msgspec.json.encode(places)).decode().rstrip("=")


def _decode(operation: List, after: str) -> list[QueueProgress]:
    """The places in a cursor: of the tenant that asks, for a cursor is what a client sends."""
    try:
        places = _places.decode(urlsafe_b64decode(after[len(MARK) :] + "=" * (-len(after[len(MARK) :]) % 4)))
    except (ValueError, msgspec.MsgspecError):
        raise Invalid("not the `next` of an earlier page", at="after") from None
    for place in places:
        check_name(place.queue, at="after")
        own = operation.tenant in (place.tenant, EVERY_TENANT) and place.tenant != EVERY_TENANT
        if not own or not 0 <= place.shown < MOST_AT_ONCE or len(places) > MOST_MERGED:
            raise Invalid("not the `next` of an earlier page", at="after")
    return places
