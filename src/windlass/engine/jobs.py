"""Answers to operations on stored jobs: show, result, list, count, output, messages, cancel, run again, delete,
finish and fail by hand.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Raw
from msgspec.structs import replace

from windlass.engine.context import MOST_ROUNDS, POLL_EVERY, EngineContext, fence, touch_every
from windlass.engine.newest import list_newest
from windlass.model import lifecycle, stdin, wire
from windlass.model.errors import Busy, Conflict, Invalid, TooLarge, WindlassError
from windlass.model.health import Health
from windlass.model.job import FINISHED, Job, Reason, State
from windlass.model.lifecycle import STOP_ORDERS, TABLE, Move, Step
from windlass.model.match import Match, index_only, matches, states
from windlass.model.names import EVERY_TENANT, JobKey, check_id, key_of
from windlass.model.operations import (
    MOST_AT_ONCE,
    Alive,
    BatchProgress,
    Cancel,
    Changed,
    Count,
    Delete,
    Delivered,
    FailByHand,
    FinishByHand,
    GetHealth,
    GetOutput,
    GetProgress,
    GetResult,
    GetStats,
    List,
    LowerTimeout,
    Number,
    Operation,
    Output,
    OutputPage,
    Page,
    QueueStats,
    Rerun,
    Resize,
    Result,
    Selection,
    Send,
    SendSignal,
    Show,
    Stats,
)
from windlass.model.outcome import CODES, Verdict
from windlass.model.output import MOST_INPUT, MOST_MESSAGES, MOST_OUTPUT, VALUES, Chunk, NewChunk
from windlass.store.data import (
    MOST_COLLECTED,
    Heartbeat,
    HeartbeatReply,
    JobSuccess,
    ListScope,
    Posted,
    Record,
    RecordPage,
)
from windlass.store.encoding import end_topic
from windlass.store.flow import TierRule

MOST_SCANNED = 10_000
"""Jobs scanned for one page: a rare match gives a short page with a cursor."""

MOST_OUTPUT_AT_ONCE = 2 * MOST_OUTPUT
"""Bytes of output in one request."""


async def show(context: EngineContext, operation: Show) -> Job:
    record = await context.find_for_owner(operation.id, operation.tenant, payload=operation.payload)
    if record.job.state not in FINISHED and operation.wait:
        ended = await _ended(context, record, operation.wait)
        record = replace(record, job=ended.job)
    return record.job if record.payload is None else replace(record.job, payload=Raw(record.payload))


async def _ended(context: EngineContext, pending: Record, wait: float) -> Record:
    """The job once it has ended, or as it is after so many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    key = key_of(pending.job)
    async with context.store.events.listen([end_topic(key)]) as listener:
        while True:
            record = await context.find_for_owner(*key)
            remaining = until - loop.time()
            if record.job.state in FINISHED or remaining <= 0:
                return record
            await listener.wait(min(POLL_EVERY, remaining, touch_every(record.job)))


async def get_progress(context: EngineContext, operation: GetProgress) -> BatchProgress:
    found = await _named_keys(context, operation.ids, operation.tenant)
    keys = [key for key in found if key is not None]
    records = await _all_ended(context, keys, operation.wait) if operation.wait else await context.read_for_owner(keys)
    there = Counter(record.job.state for record in records if record is not None)
    pending = sum(number for state, number in there.items() if state not in FINISHED)
    return BatchProgress(len(found), len(found) - pending, dict(there))


async def _all_ended(context: EngineContext, keys: list[JobKey], wait: float) -> list[Record | None]:
    """The jobs once all of them have ended, or as they are after so many seconds.

    Listens for the end of the last one that is pending: jobs that wait for others come behind those.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    found: dict[JobKey, Record | None] = {}
    pending = list(dict.fromkeys(keys))
    while pending:
        last = pending[-1]
        async with context.store.events.listen([end_topic(last)]) as listener:
            records = await context.read_for_owner(pending)
            found |= zip(pending, records, strict=True)
            waiting = [record.job for record in records if record is not None and record.job.state not in FINISHED]
            pending = [key_of(job) for job in waiting]
            if (remaining := until - loop.time()) <= 0:
                break
            if last in pending:
                await listener.wait(min(POLL_EVERY, remaining, *map(touch_every, waiting)))
    return [found[key] for key in keys]


async def _named_keys(context: EngineContext, ids: Sequence[str], tenant: str) -> list[JobKey | None]:
    """The jobs of a list of ids."""
    for place, id in enumerate(ids):
        check_id(id, at=f"ids[{place}]")
    return await context.keys(ids, tenant)


async def get_result(context: EngineContext, operation: GetResult) -> Result:
    """The result; without one, a pending state, if the job has not ended in time."""
    record = await context.find_for_owner(operation.id, operation.tenant)
    if record.job.state not in FINISHED and operation.wait:
        record = await _ended(context, record, operation.wait)
    job = record.job
    (kept,) = await context.store.jobs.results([key_of(job)]) if job.state is State.SUCCEEDED else (None,)
    if kept is None:
        return Result(state=job.state, code=job.code, error=job.error)
    return Result(state=job.state, code=job.code, result=Raw(kept.data), content_type=kept.content_type)


class PageRequest(NamedTuple):
    """Which jobs to read from a store."""

    scope: ListScope
    after: str | None
    size: int


async def list_jobs(context: EngineContext, operation: List) -> Page:
    if operation.order == "newest" and (operation.match.queue is None or operation.tenant == EVERY_TENANT):
        return await list_newest(context, operation, list_by_queue)
    return await list_by_queue(context, operation)


async def list_by_queue(context: EngineContext, operation: List) -> Page:
    match = operation.match
    scope = ListScope(operation.tenant, match.queue, states(match), newest_first=operation.order == "newest")
    found: list[Job] = []
    after, scanned, size = operation.after, 0, operation.limit
    while True:
        room = operation.limit - len(found)
        piece, matching = await _read_page(context, match, PageRequest(scope, after, size), room)
        found += [record.job for record in matching]
        after, scanned = piece.next, scanned + max(len(piece.records), MOST_SCANNED // 100)
        if after is None or len(found) == operation.limit or scanned >= MOST_SCANNED:
            return Page(jobs=found, next=after)
        if len(matching) < len(piece.records):
            size = min(2 * size, MOST_AT_ONCE)  # rare matches: scan in larger steps


async def _read_page(
    context: EngineContext, match: Match, request: PageRequest, room: int
) -> tuple[RecordPage, list[Record]]:
    """The page, and the jobs in it that match; a shorter page if more match than there is room for."""
    while True:
        piece = await context.store.jobs.list(request.scope, request.after, request.size)
        matching = await matching_records(context, match, piece.records)
        if len(matching) <= room:
            return piece, matching
        # Only the store knows the cursor, so it is asked again for a page that ends with the last job that fits.
        keys = [key_of(record.job) for record in piece.records]
        request = request._replace(size=1 + keys.index(key_of(matching[room - 1].job)))


async def count(context: EngineContext, operation: Count) -> Number:
    match = operation.match
    if index_only(match):
        wanted = states(match)
        return Number(
            count=sum(
                one.count
                for one in (await context.store.jobs.counts(operation.tenant)).jobs
                if one.state in wanted and match.queue in (None, one.queue) and match.task in (None, one.task)
            )
        )
    return Number(count=sum([len(records) async for records in _scan(context, operation.tenant, match, states(match))]))


async def _scan(
    context: EngineContext, tenant: str, match: Match, wanted: frozenset[State]
) -> AsyncIterator[list[Record]]:
    """All matching jobs in those states, page by page, in constant space."""
    scope, after = ListScope(tenant, match.queue, wanted), None
    while True:
        piece = await context.store.jobs.list(scope, after, MOST_AT_ONCE)
        if records := await matching_records(context, match, piece.records):
            yield records
        if (after := piece.next) is None:
            return


async def matching_records(context: EngineContext, match: Match, records: list[Record]) -> list[Record]:
    """Those of the jobs that match."""
    if not match.payload:
        return [record for record in records if matches(match, record.job)]
    # Payloads are read last, and only of jobs that match in everything else.
    bare = replace(match, payload={})
    likely = [key_of(record.job) for record in records if matches(bare, record.job)]
    reading = await context.store.jobs.read(likely, payload=True)
    return [record for record in reading.records if record and matches(match, record.job, _payload_value(record))]


def _payload_value(record: Record) -> object:
    try:
        return wire.value(record.payload or b"", record.job.content_type)
    except Invalid:
        return None  # it has no fields to match


async def get_health(context: EngineContext, operation: GetHealth) -> Health:
    space = context.store.space
    if space is None or operation.tenant != EVERY_TENANT:
        return Health()
    with suppress(WindlassError):  # a server that may not be asked about itself, or a part that is away
        return Health(store=await space.read())
    return Health()


async def get_stats(context: EngineContext, operation: GetStats) -> Stats:
    counts = await context.store.jobs.counts(operation.tenant)
    found: dict[tuple[str, str, str], dict[State, int]] = {}
    for one in counts.jobs:
        found.setdefault((one.tenant, one.queue, one.task), {})[one.state] = one.count
    ended: dict[tuple[str, str, str], dict[Verdict, int]] = {}
    for ran in counts.runs:
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


# Output and messages


async def output(context: EngineContext, operation: Output) -> None:
    job = (await context.find(operation.id, operation.tenant)).job
    chunk = NewChunk(stream=operation.stream, data=operation.data)
    _check_values(chunk, at="data")
    beat = Heartbeat(job.id, job.tenant, fence(operation.token), output=[chunk])
    (reply,) = await context.writes.heartbeat([beat], context.settings.lease)
    if not reply.held:
        raise Conflict(f"job {operation.id} is not held under this token: stop it and report nothing", at="token")


async def get_output(context: EngineContext, operation: GetOutput) -> OutputPage:
    # The state is read first: all output of an ended job is stored by then.
    record = await context.find_for_owner(operation.id, operation.tenant)
    chunks, after = list[Chunk](), operation.after
    while not chunks and (page := await context.store.jobs.output(key_of(record.job), after, operation.limit)):
        chunks, after = [one for one in page if operation.stream in (None, one.stream)], page[-1].n
    return OutputPage(chunks=chunks, next=after, ended=record.job.state in FINISHED)


def _check_values(chunk: NewChunk, at: str) -> None:
    if chunk.stream == VALUES and not chunk.data.endswith(b"\n"):
        raise Invalid("values are whole lines: end each of them with a newline", at=at)


def check_output(items: Sequence[Alive]) -> None:
    """Refuse more output than fits into one request."""
    together = 0
    for place, item in enumerate(items):
        for number, chunk in enumerate(item.output):
            _check_values(chunk, at=f"jobs[{place}].output[{number}].data")
        size = sum(len(chunk.data) for chunk in item.output)
        together += size
        if size > MOST_OUTPUT:
            raise TooLarge(
                f"{size} bytes of output at once, at most {MOST_OUTPUT} of one job are kept",
                at=f"jobs[{place}].output",
            )
    if together > MOST_OUTPUT_AT_ONCE:
        raise TooLarge(
            f"{together} bytes of output in one request, at most {MOST_OUTPUT_AT_ONCE} are allowed", at="jobs"
        )


async def send(context: EngineContext, operation: Send) -> None:
    job = (await context.find(operation.id, operation.tenant)).job
    if not job.input:
        raise Conflict(f"job {operation.id} takes no input: it must be queued with input=true", at="id")
    await _post(context, job, operation.data if job.stdin is None else stdin.encode(stdin.Typed(operation.data)))


async def resize(context: EngineContext, operation: Resize) -> None:
    job = (await context.find(operation.id, operation.tenant)).job
    if job.stdin != "terminal":
        raise Conflict(f"job {operation.id} has no terminal: it must be queued with stdin=terminal", at="id")
    await _post(context, job, stdin.encode(stdin.Resized(operation.rows, operation.columns)))


async def signal(context: EngineContext, operation: SendSignal) -> None:
    job = (await context.find(operation.id, operation.tenant)).job
    if job.stdin is None:
        raise Conflict(f"job {operation.id} has no standard input: only such jobs get signals", at="id")
    await _post(context, job, stdin.encode(stdin.Signalled(operation.signal)))


async def _post(context: EngineContext, job: Job, message: bytes) -> None:
    most_input = job.most_input if job.most_input is not None or job.stdin is None else stdin.MOST_STDIN
    match await context.store.jobs.post(key_of(job), message, most_input):
        case Posted.OVER:
            raise TooLarge(f"job {job.id} takes {most_input} bytes of input in all, and has got them", at="data")
        case Posted.FULL:
            most = f"{MOST_MESSAGES} messages or {MOST_INPUT} bytes"
            raise Busy(f"job {job.id} has not read its earlier messages: at most {most} wait", at="data")
        case Posted.ENDED:
            raise Conflict(f"job {job.id} has ended: it takes no more input", at="id")


def deliveries(replies: Sequence[HeartbeatReply]) -> list[Delivered]:
    """The messages in these replies; if there are too many, the first of them."""
    found: list[Delivered] = []
    room = MOST_COLLECTED
    for reply in replies:
        for message in reply.messages:
            room -= len(message.data)
            if room >= 0:
                found.append(Delivered(id=reply.id, n=message.n, data=message.data))
    return found


# Runs that a caller ends


async def finish_by_hand(context: EngineContext, operation: FinishByHand) -> Changed:
    result = bytes(operation.result) if isinstance(operation.result, Raw) else None
    if result is not None:
        wire.check_size(result, context.settings.most_result, at="result")
    for _ in range(MOST_ROUNDS):
        record = await context.find(operation.id, operation.tenant)
        lifecycle.check_running(record.job)
        code = CODES[Verdict.OK]
        job, fence = record.job, record.token or b""
        done = JobSuccess(job.id, job.tenant, fence, code, result, operation.content_type, reason=Reason.BY_HAND)
        if (await context.writes.succeed([done]))[0]:
            return Changed(changed=1)
    return Changed(changed=0)


async def fail_by_hand(context: EngineContext, operation: FailByHand) -> Changed:
    def decide(record: Record, now: datetime) -> Move:
        return lifecycle.fail_by_hand(record.job, operation.message, now)

    key = key_of((await context.find(operation.id, operation.tenant)).job)
    return Changed(changed=len(await context.move_jobs([key], decide)))


async def lower_timeout(context: EngineContext, operation: LowerTimeout) -> Changed:
    rules = (await context.flow_config.refreshed()).rules

    def decide(record: Record, _: datetime) -> Move | None:
        levels = rules.tiers.get(f"{record.job.tenant},{record.job.queue}", ())
        return lifecycle.lower(record.job, operation.timeout, shortest_tier(levels, record.job, operation.timeout))

    key = key_of((await context.find(operation.id, operation.tenant)).job)
    return Changed(changed=len(await context.move_jobs([key], decide)))


def shortest_tier(levels: Sequence[TierRule], job: Job, seconds: float) -> str | None:
    """The tier at which a running job goes on if it may take no longer: it gives its places at longer ones back."""
    if job.assigned not in [level.name for level in levels]:
        return job.assigned
    return next(level.name for level in levels if level.seconds >= seconds or level.name == job.assigned)


# Bulk actions


Action = Callable[[Job], Move | None]
"""The move of an action on one job; null = none."""


def cancel(job: Job) -> Move | None:
    ordered = job.state is State.RUNNING and job.reason in STOP_ORDERS
    return lifecycle.cancel(job) if (job.state, Step.CANCEL) in TABLE and not ordered else None


def _rerun(job: Job) -> Move | None:
    return lifecycle.rerun(job) if (job.state, Step.RERUN) in TABLE else None


def _delete(job: Job) -> Move | None:
    ordered = job.state is State.RUNNING and job.reason is Reason.DELETED
    return None if ordered else lifecycle.delete(job)


def _delete_finished(job: Job) -> Move | None:
    return lifecycle.delete(job) if job.state in FINISHED else None


def _bulk(action: Action, possible: frozenset[State]) -> Callable[[EngineContext, Selection], Awaitable[Changed]]:
    """The answer to an operation that applies an action to the jobs it selects, if they are in these states."""

    async def answer(context: EngineContext, operation: Selection) -> Changed:
        if (operation.ids is None) == (operation.match is None):
            raise Invalid("select jobs either by ids or by match", at="ids")
        if operation.ids is not None:
            return await _act_on_ids(context, operation, operation.ids, action)
        match = operation.match or Match()
        changed = stopping = 0
        async for records in _scan(context, operation.tenant, match, states(match) & possible):
            keys = [key_of(record.job) for record in records]
            some = await _act(context, operation, keys, action, match)
            changed, stopping = changed + some.changed, stopping + some.stopping
        return Changed(changed=changed, stopping=stopping)

    return answer


def _states_before(step: Step) -> frozenset[State]:
    return frozenset(state for state, allowed in TABLE if allowed is step)


_delete_all = _bulk(_delete, _states_before(Step.DELETE))
_delete_all_finished = _bulk(_delete_finished, FINISHED)


async def delete(context: EngineContext, operation: Delete) -> Changed:
    if not operation.finished_only:
        return await _delete_all(context, operation)
    keys = await context.keys(operation.ids or [], operation.tenant)
    found = (await context.store.jobs.read([key for key in keys if key is not None])).records if keys else []
    for record in found:
        if record is not None and record.job.state not in FINISHED:
            job = record.job
            raise Conflict(f"job {job.id} is {job.state}: only finished jobs are to be deleted; nothing was", at="id")
    return await _delete_all_finished(context, operation)


async def _act_on_ids(context: EngineContext, operation: Selection, ids: list[str], action: Action) -> Changed:
    found = await _named_keys(context, ids, operation.tenant)
    if len(ids) == 1:
        await context.find(ids[0], operation.tenant)
    keys = [key for key in found if key is not None]
    return await _act(context, operation, keys, action, Match())


async def _act(
    context: EngineContext, operation: Selection, keys: list[JobKey], action: Action, match: Match
) -> Changed:
    bare = replace(match, payload={})  # the payload was matched before
    running: dict[JobKey, bool] = {}

    def decide(record: Record, _: datetime) -> Move | None:
        job = record.job
        running[key_of(job)] = job.state is State.RUNNING
        return action(job) if matches(bare, job) else None

    if operation.dry_run:
        reading = await context.store.jobs.read(list(dict.fromkeys(keys)))
        found = [record for record in reading.records if record is not None]
        changed = {key_of(record.job) for record in found if decide(record, reading.now) is not None}
    else:
        changed = await context.move_jobs(keys, decide)
    return Changed(changed=len(changed), stopping=sum(running[key] for key in changed))


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    Show: show,
    GetProgress: get_progress,
    GetResult: get_result,
    List: list_jobs,
    Count: count,
    Cancel: _bulk(cancel, _states_before(Step.CANCEL)),
    Rerun: _bulk(_rerun, _states_before(Step.RERUN)),
    Delete: delete,
    FinishByHand: finish_by_hand,
    FailByHand: fail_by_hand,
    LowerTimeout: lower_timeout,
    GetStats: get_stats,
    GetHealth: get_health,
    Output: output,
    GetOutput: get_output,
    Send: send,
    Resize: resize,
    SendSignal: signal,
}
