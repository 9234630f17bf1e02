"""Dependencies: jobs that wait for others (`after`), and jobs that follow others (`then`).

Parent and child may be in different partitions, so no step here is atomic across both. Each step is guarded and
repeatable; what a crash leaves undone is found again, by the index of completed parents or among the blocked jobs.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from windlass.engine.context import MOST_ROUNDS, EngineContext
from windlass.engine.records import OptionsByTask, job_with_options, read_task_options
from windlass.model import dependency, lifecycle, wire
from windlass.model.errors import Missing, TooLarge
from windlass.model.job import MSGPACK, Error, Job, Reason, State
from windlass.model.lifecycle import Move
from windlass.model.names import JobKey, child_id, key_of, keyed_id
from windlass.model.new_job import NOTHING, NewJob
from windlass.model.operations import Claimed
from windlass.model.outcome import Outcome, Verdict
from windlass.store.data import CompletedParent, Dependency, Draft, Record, StoredResult


async def unblock(
    context: EngineContext, keys: Sequence[JobKey], ended: Mapping[JobKey, Collection[str]] | None = None
) -> set[JobKey]:
    """Decide blocked jobs again; those that could not be decided now.

    The dependency edges are written first: a parent that is still pending then reports its end. `ended`: for each job
    the parents that have reported it; the others have their edges, and are not looked at.
    """
    rest = list(dict.fromkeys(keys))
    for _ in range(MOST_ROUNDS):
        if not rest:
            break
        reading = await context.store.jobs.read(rest)
        blocked = [record.job for record in reading.records if record and record.job.state is State.BLOCKED]
        asked = [[id for id in job.waits_for if ended is None or id in ended[key_of(job)]] for job in blocked]
        pairs = list(zip(blocked, asked, strict=True))
        edges = [Dependency(parent, job.tenant, job.id) for job, parents in pairs for parent in parents]
        states = iter(await context.store.jobs.add_dependencies(edges))
        known = [dict(zip(parents, islice(states, len(parents)), strict=True)) for parents in asked]
        decided = [dependency.unblock(job, parents, reading.now) for job, parents in zip(blocked, known, strict=True)]
        moves = [move for move in decided if move is not None]
        applied = await context.writes.apply(moves)
        rest = [key_of(move) for move, done in zip(moves, applied, strict=True) if not done]
    return set(rest)


async def give_results(context: EngineContext, claims: Sequence[Claimed]) -> list[Claimed]:
    """Claimed jobs, with the results that they asked for. One whose results are no longer kept fails."""
    found: list[Claimed] = []
    for claimed in claims:
        if claimed.job.with_results is None:
            found.append(claimed)
            continue
        try:
            found.append(replace(claimed, results=await _results_for(context, claimed.job)))
        except (Missing, TooLarge) as fault:
            await context.move_jobs([key_of(claimed.job)], partial(_fail, claimed, fault.detail))
    return found


async def _results_for(context: EngineContext, job: Job) -> list[Any]:
    keys = [JobKey(id, job.tenant) for id in job.after]
    reading = await context.store.jobs.read(keys)
    if job.after_failure != "run":
        for key, record in zip(keys, reading.records, strict=True):
            if record is None or _is_dropped(record.job, reading.now):
                raise Missing(f"the result of job {key.id}, which it waited for, is no longer kept")
    kept = await asyncio.gather(*map(context.store.jobs.result, keys))
    size = sum(len(one.data) for one in kept if one is not None)
    if size > context.settings.most_result:
        raise TooLarge(
            f"the jobs that it waited for have {size} bytes of results, at most {context.settings.most_result}"
        )
    return [None if one is None else wire.value(one.data, one.content_type) for one in kept]


def _is_dropped(job: Job, now: datetime) -> bool:
    """Whether a result goes before its record, and has."""
    if job.keep_result_for is None or job.finished_at is None:
        return False
    return (now - job.finished_at).total_seconds() >= job.keep_result_for


def _fail(claimed: Claimed, why: str, record: Record, now: datetime) -> Move | None:
    if record.token is None or record.token.hex() != claimed.token:
        return None
    outcome = Outcome(verdict=Verdict.FAILED, reason=Reason.DEPENDENCY, error=Error(message=why))
    return lifecycle.finish(record.job, outcome, now, 0.0)


async def follow_ups(context: EngineContext, parents: Sequence[CompletedParent]) -> list[Draft]:
    """The jobs that follow these completed parents: those of `then`, which were checked when the parents were enqueued,
    and those of `on_failure`.
    """
    ordered = sorted(parents, key=lambda one: (one.id, one.tenant))
    found = [_then_job(one, one.then) for one in ordered if one.then and one.state is State.SUCCEEDED]
    failed = [key_of(one) for one in ordered if one.state is State.FAILED]
    reading = await context.store.jobs.read(failed) if failed else None
    hooked = [key_of(one.job) for one in reading.records if one and one.job.on_failure] if reading else []
    if hooked:
        options = await read_task_options(context)
        records = (await context.store.jobs.read(hooked, payload=True)).records
        found += [_failure_job(options, one) for one in records if one is not None and one.job.state is State.FAILED]
    return found


def _failure_job(options: OptionsByTask, failed: Record) -> Draft:
    """A job that gets the record of a failed one. Its own failure brings no other about."""
    job = failed.job
    payload = Raw(wire.encode(wire.value(failed.payload or bytes(NOTHING), job.content_type)))
    record = Raw(wire.encode(replace(job, payload=payload, content_type=MSGPACK)))
    new = NewJob(task=job.on_failure or "", payload=record, one_argument=True)
    new = replace(job_with_options(options, job.tenant, new), on_failure=None)
    # Each of its ends is another failure: it may be run again and fail once more.
    return Draft(job.tenant, child_id(job.id, f"on_failure {job.finished_at}", new.queue), new, follows=True)


def _then_job(parent: CompletedParent, then: NewJob) -> Draft:
    new = _with_result(then, parent.result)
    id = own_id(parent.tenant, new) or child_id(parent.id, "then", new.queue)
    return Draft(parent.tenant, id, new, follows=True)


def own_id(tenant: str, new: NewJob) -> str | None:
    """The id that a job brings: given, or derived from its key."""
    if new.id is None and new.key is not None:
        return keyed_id(tenant, new.queue, new.key)
    return new.id


def _with_result(new: NewJob, result: StoredResult | None) -> NewJob:
    """The parent's result is the argument of a job that has none."""
    if new.payload is not NOTHING:
        return new
    if result is None:
        return replace(new, content_type=MSGPACK, one_argument=True)
    return replace(new, payload=Raw(result.data), content_type=result.content_type, one_argument=True)
