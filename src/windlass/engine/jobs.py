"""Answers to the operations on jobs: queue, look, list, count, cancel, run again, delete."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

from msgspec import Raw
from msgspec.structs import asdict, replace

from windlass.engine.attending import attend_every
from windlass.engine.desk import Desk, no_job
from windlass.engine.drafts import check_terms, checked_parts, drafts_of
from windlass.engine.estimates import at_the_door
from windlass.engine.following import add
from windlass.engine.gathering import Gathering
from windlass.engine.sureness import accepted_all, taking
from windlass.model import lifecycle, wire
from windlass.model.errors import Invalid
from windlass.model.job import FINISHED, Job, Reason, State
from windlass.model.lifecycle import ORDERS, TABLE, Move, Step, Verdict
from windlass.model.match import Match, index_only, matches, states
from windlass.model.names import JobKey, check_id, key_of
from windlass.model.operations import (
    MOST_AT_ONCE,
    Accepted,
    Cancel,
    Changed,
    Count,
    Delete,
    Enqueue,
    Enqueued,
    EnqueueLines,
    EnqueueMany,
    GetResult,
    GetStats,
    List,
    Number,
    Operation,
    Page,
    QueueStats,
    Result,
    Retry,
    Selection,
    Show,
    Stats,
)
from windlass.store import Draft, Record, Scope, Slice, end_topic

MOST_SCANNED = 10_000
"""Jobs looked at for one page: a rare match gives a short page that says where to go on."""

LOOK_AGAIN = 1.0
"""Seconds after which whoever waits looks for itself: a notice may be lost."""


async def enqueue(desk: Desk, operation: Enqueue) -> Accepted:
    (new,) = drafts_of(desk, operation)
    await check_terms(desk, [new], "job")
    with accepted_all([new.id]):
        record, created = await _gathering(desk).add(new)
        if record is None and not created:  # what was there under its id has just ended and left no record
            record, created = await _gathering(desk).add(new)
    if record is None:
        raise no_job(new.id)
    estimate = await at_the_door(desk, record) if created else None
    return Accepted(**{**asdict(record.job), "estimate": estimate}, created=created)


def _gathering(desk: Desk) -> Gathering:
    if desk.gathering is None:
        desk.gathering = Gathering(partial(add, desk, surely=True), desk.store)
    return desk.gathering


async def enqueue_many(desk: Desk, operation: EnqueueMany) -> Enqueued:
    parts = await checked_parts(desk, operation, partial(check_terms, desk))
    return await _enqueue_all(desk, operation.tenant, parts)


async def _enqueue_all(desk: Desk, tenant: str, parts: Iterable[list[Draft]]) -> Enqueued:
    """One part after the other: a fault in the middle says which jobs were accepted."""
    ids: list[str] = []
    existing: list[str] = []
    created = 0
    for drafts in parts:
        some = [draft.id for draft in drafts]
        async with taking(ids, some, partial(_number_of, desk, tenant)):
            with accepted_all(some):
                new = await add(desk, drafts, surely=True)
        ids += some
        created += sum(new)
        if not all(new):
            made = set(compress(some, new))
            existing += [id for id in dict.fromkeys(some) if id not in made]
    return Enqueued(ids=ids, created=created, existing=existing)


async def _number_of(desk: Desk, tenant: str, ids: list[str]) -> int:
    reading = await desk.store.read([JobKey(id, tenant) for id in ids])
    return sum(record is not None for record in reading.records)


async def enqueue_lines(desk: Desk, operation: EnqueueLines) -> Enqueued:
    drafts = drafts_of(desk, operation)
    await check_terms(desk, drafts[:1], "wishes")
    parts = (drafts[start : start + MOST_AT_ONCE] for start in range(0, len(drafts), MOST_AT_ONCE))
    return await _enqueue_all(desk, operation.tenant, parts)


async def show(desk: Desk, operation: Show) -> Job:
    record = await desk.asked_for(operation.id, operation.tenant, payload=operation.payload)
    if record.job.state not in FINISHED and operation.wait:
        ended = await _ended(desk, record, operation.wait)
        record = replace(record, job=ended.job)
    return record.job if record.payload is None else replace(record.job, payload=Raw(record.payload))


async def _ended(desk: Desk, pending: Record, wait: float) -> Record:
    """A job once it has ended, or as it is when that has taken too long."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    key = key_of(pending.job)
    async with desk.store.listen([end_topic(key)]) as listener:
        while True:
            record = await desk.asked_for(*key)
            remaining = until - loop.time()
            if record.job.state in FINISHED or remaining <= 0:
                return record
            await listener.wait(min(LOOK_AGAIN, remaining, attend_every(record.job)))


async def get_result(desk: Desk, operation: GetResult) -> Result:
    """Answers a pending state if the job has not ended in time."""
    record = await desk.asked_for(operation.id, operation.tenant)
    if record.job.state not in FINISHED and operation.wait:
        record = await _ended(desk, record, operation.wait)
    job = record.job
    kept = await desk.store.result(key_of(job)) if job.state is State.SUCCEEDED else None
    if kept is None:
        return Result(state=job.state, code=job.code, error=job.error)
    return Result(state=job.state, code=job.code, result=Raw(kept.data), content_type=kept.content_type)


class Place(NamedTuple):
    """Which jobs to ask a store for."""

    scope: Scope
    after: str | None
    size: int


async def list_jobs(desk: Desk, operation: List) -> Page:
    match = operation.match
    scope = Scope(operation.tenant, match.queue, states(match), newest_first=operation.order == "newest")
    found: list[Job] = []
    after, scanned, size = operation.after, 0, operation.limit
    while True:
        piece, matching = await _fitting(desk, match, Place(scope, after, size), operation.limit - len(found))
        found += [record.job for record in matching]
        after, scanned = piece.next, scanned + max(len(piece.records), MOST_SCANNED // 100)
        if after is None or len(found) == operation.limit or scanned >= MOST_SCANNED:
            return Page(jobs=found, next=after)
        if len(matching) < len(piece.records):
            size = min(2 * size, MOST_AT_ONCE)  # what is rare is looked for in larger steps


async def _fitting(desk: Desk, match: Match, place: Place, room: int) -> tuple[Slice, list[Record]]:
    """The slice of a place, and the jobs in it that match; cut short where there is no room for all that do."""
    while True:
        piece = await desk.store.page(place.scope, place.after, place.size)
        matching = await _matching(desk, match, piece.records)
        if len(matching) <= room:
            return piece, matching
        # Only a store can say where to go on: so it is asked again for what ends with the last that fits.
        keys = [key_of(record.job) for record in piece.records]
        place = place._replace(size=1 + keys.index(key_of(matching[room - 1].job)))


async def count(desk: Desk, operation: Count) -> Number:
    match = operation.match
    if index_only(match):
        wanted = states(match)
        return Number(
            count=sum(
                tally.count
                for tally in await desk.store.tally(operation.tenant)
                if tally.state in wanted and match.queue in (None, tally.queue) and match.task in (None, tally.task)
            )
        )
    return Number(count=sum([len(records) async for records in _scan(desk, operation.tenant, match, states(match))]))


async def _scan(desk: Desk, tenant: str, match: Match, wanted: frozenset[State]) -> AsyncIterator[list[Record]]:
    """All matching jobs in those states, some at a time, in constant space."""
    scope, after = Scope(tenant, match.queue, wanted), None
    while True:
        piece = await desk.store.page(scope, after, MOST_AT_ONCE)
        if records := await _matching(desk, match, piece.records):
            yield records
        if (after := piece.next) is None:
            return


async def _matching(desk: Desk, match: Match, records: list[Record]) -> list[Record]:
    if not match.payload:
        return [record for record in records if matches(match, record.job)]
    # Payload fields are asked for last: only of jobs that everything else admits is the payload read.
    bare = replace(match, payload={})
    likely = [key_of(record.job) for record in records if matches(bare, record.job)]
    reading = await desk.store.read(likely, payload=True)
    return [record for record in reading.records if record and matches(match, record.job, _inside(record))]


def _inside(record: Record) -> object:
    try:
        return wire.value(record.payload or b"", record.job.content_type)
    except Invalid:
        return None  # whatever this is, it has no fields


async def get_stats(desk: Desk, operation: GetStats) -> Stats:
    found: dict[tuple[str, str, str], dict[State, int]] = {}
    for tally in await desk.store.tally(operation.tenant):
        found.setdefault((tally.tenant, tally.queue, tally.task), {})[tally.state] = tally.count
    ended: dict[tuple[str, str, str], dict[Verdict, int]] = {}
    for ran in await desk.outcomes.outcomes(operation.tenant):
        ended.setdefault((ran.tenant, ran.queue, ran.task), {})[ran.outcome] = ran.count
    return Stats(
        queues=[
            QueueStats(
                tenant=name[0],
                queue=name[1],
                task=name[2],
                states=found.get(name, {}),
                outcomes=ended.get(name, {}),
            )
            for name in sorted({*found, *ended})
        ]
    )


Action = Callable[[Job], Move | None]
"""What an action does to one job; null = nothing to do."""


def _cancelling(job: Job) -> Move | None:
    ordered = job.state is State.RUNNING and job.reason in ORDERS
    return lifecycle.cancel(job) if (job.state, Step.CANCEL) in TABLE and not ordered else None


def _retrying(job: Job) -> Move | None:
    return lifecycle.rerun(job) if (job.state, Step.RERUN) in TABLE else None


def _deleting(job: Job) -> Move | None:
    doomed = job.state is State.RUNNING and job.reason is Reason.DELETED
    return None if doomed else lifecycle.delete(job)


def _selecting(action: Action, step: Step) -> Callable[[Desk, Selection], Awaitable[Changed]]:
    """The answer to an operation that does this to the jobs it selects."""
    possible = frozenset(state for state, allowed in TABLE if allowed is step)

    async def answer(desk: Desk, operation: Selection) -> Changed:
        if (operation.ids is None) == (operation.match is None):
            raise Invalid("say which jobs are meant: by ids, or by match", at="ids")
        if operation.ids is not None:
            return Changed(changed=await _act_on_ids(desk, operation, operation.ids, action))
        match = operation.match or Match()
        changed = 0
        async for records in _scan(desk, operation.tenant, match, states(match) & possible):
            keys = [key_of(record.job) for record in records]
            changed += await _act(desk, operation, keys, action, match)
        return Changed(changed=changed)

    return answer


async def _act_on_ids(desk: Desk, operation: Selection, ids: list[str], action: Action) -> int:
    for place, id in enumerate(ids):
        check_id(id, at=f"ids[{place}]")
    if len(ids) == 1:
        await desk.find(ids[0], operation.tenant)
    keys = [key for key in await desk.keys(ids, operation.tenant) if key is not None]
    return await _act(desk, operation, keys, action, Match())


async def _act(desk: Desk, operation: Selection, keys: list[JobKey], action: Action, match: Match) -> int:
    bare = replace(match, payload={})  # the payload of a job never changes: it need not be looked at again

    def decide(record: Record, _: datetime) -> Move | None:
        job = record.job
        return action(job) if matches(bare, job) else None

    if not operation.dry_run:
        return len(await desk.settle(keys, decide))
    reading = await desk.store.read(list(dict.fromkeys(keys)))
    return sum(record is not None and decide(record, reading.now) is not None for record in reading.records)


ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = {
    Enqueue: enqueue,
    EnqueueMany: enqueue_many,
    EnqueueLines: enqueue_lines,
    Show: show,
    GetResult: get_result,
    List: list_jobs,
    Count: count,
    Cancel: _selecting(_cancelling, Step.CANCEL),
    Retry: _selecting(_retrying, Step.RERUN),
    Delete: _selecting(_deleting, Step.DELETE),
    GetStats: get_stats,
}
