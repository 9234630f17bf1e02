"""Dependencies: jobs that wait for others (`after`), and jobs that follow others (`then`).

Parent and child may be in different partitions, so no step here is atomic across both. Each step is guarded and
repeatable; what a crash leaves undone is found again, by the index of completed parents or among the blocked jobs.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice

from msgspec import Raw
from msgspec.structs import replace

from windlass.engine.context import MOST_ROUNDS, EngineContext
from windlass.engine.records import OptionsByTask, job_with_options, read_task_options
from windlass.model import dependency, lifecycle, wire
from windlass.model.errors import TooLarge
from windlass.model.job import FINISHED, MSGPACK, Error, Job, Reason, State
from windlass.model.lifecycle import Move
from windlass.model.names import JobKey, child_id, key_of, keyed_id
from windlass.model.new_job import NOTHING, NewJob
from windlass.model.operations import Claimed
from windlass.model.outcome import Outcome, Verdict
from windlass.store.data import CompletedParent, Dependency, Draft, Record, StoredResult

RESULTS_AT_ONCE = 50
"""Results that are read together: each may be large, and there may be a thousand."""


async def unblock(
    context: EngineContext, keys: Sequence[JobKey], ended: Mapping[JobKey, Mapping[str, State | None]] | None = None
) -> set[JobKey]:
    """Decide blocked jobs again; those that could not be decided now.

    The dependency edges are written first: a parent that is still pending then reports its end. `ended`: for each job
    the parents that have reported theirs. The others have their edges, and are not looked at; nor are successes, while
    one that did not succeed may have been run again meanwhile.
    """
    rest = list(dict.fromkeys(keys))
    for _ in range(MOST_ROUNDS):
        if not rest:
            break
        reading = await context.store.jobs.read(rest)
        blocked = [record.job for record in reading.records if record and record.job.state is State.BLOCKED]
        reported = [None if ended is None else ended[key_of(job)] for job in blocked]
        known = [_successes(parents or {}) for parents in reported]
        asked = [
            [id for id in job.waits_for if id not in found and (parents is None or id in parents)]
            for job, parents, found in zip(blocked, reported, known, strict=True)
        ]
        pairs = list(zip(blocked, asked, strict=True))
        edges = [Dependency(parent, job.tenant, job.id) for job, parents in pairs for parent in parents]
        states = iter(await context.store.jobs.add_dependencies(edges))
        for found, parents in zip(known, asked, strict=True):
            found.update(zip(parents, islice(states, len(parents)), strict=True))
        decided = [dependency.unblock(job, found, reading.now) for job, found in zip(blocked, known, strict=True)]
        moves = [move for move in decided if move is not None]
        applied = await context.writes.apply(moves)
        rest = [key_of(move) for move, done in zip(moves, applied, strict=True) if not done]
    return set(rest)


def _successes(parents: Mapping[str, State | None]) -> dict[str, State | None]:
    return {id: state for id, state in parents.items() if state is State.SUCCEEDED}


async def add_parents(context: EngineContext, drafts: Sequence[Draft]) -> None:
    """Note for new blocked jobs what they wait for, and decide those with a parent that has ended already."""
    edges = [Dependency(parent, draft.tenant, draft.id) for draft in drafts for parent in draft.new.after]
    states = iter(await context.store.jobs.add_dependencies(edges))
    parents = [(draft, list(islice(states, len(draft.new.after)))) for draft in drafts]
    if ended := [key_of(draft) for draft, found in parents if any(one is None or one in FINISHED for one in found)]:
        await unblock(context, ended)


# Results for jobs that asked for them


ParentResults = Mapping[JobKey, StoredResult | None]
"""What the jobs that one waited for have returned; null = it returned none, or that is no longer kept."""


async def give_results(context: EngineContext, claims: Sequence[Claimed]) -> list[Claimed]:
    """Claimed jobs, with the results that they asked for. One whose results are no longer kept fails."""
    asking = [one for one in claims if one.job.with_results is not None]
    first = list(dict.fromkeys(_parents(one.job)[0] for one in asking if len(one.job.after) == 1))
    kept = dict(zip(first, await context.store.jobs.results(first, spend=False), strict=True)) if first else {}
    given: dict[JobKey, ParentResults] = {}
    faults: dict[JobKey, str] = {}
    for one in asking:
        try:
            given[key_of(one.job)] = await _read_results(context, one.job, kept)
        except TooLarge as fault:
            faults[key_of(one.job)] = fault.detail
    faults |= await _missing_results(context, [one.job for one in asking if one.job.after_failure != "run"], given)
    for one in asking:
        if (why := faults.get(key_of(one.job))) is not None:
            await context.move_jobs([key_of(one.job)], partial(_fail, one, why))
    return [_with_results(one, given) for one in claims if key_of(one.job) not in faults]


def _parents(job: Job) -> list[JobKey]:
    return [JobKey(id, job.tenant) for id in job.after]


def _with_results(claimed: Claimed, given: Mapping[JobKey, ParentResults]) -> Claimed:
    if claimed.job.with_results is None:
        return claimed
    found = given[key_of(claimed.job)].values()
    return replace(claimed, results=[None if one is None else wire.value(one.data, one.content_type) for one in found])


async def _read_results(context: EngineContext, job: Job, kept: ParentResults) -> ParentResults:
    """`kept`: results that have been read already."""
    keys, most = _parents(job), context.settings.most_result
    found: dict[JobKey, StoredResult | None] = {}
    size = 0
    for start in range(0, len(keys), RESULTS_AT_ONCE):
        some = keys[start : start + RESULTS_AT_ONCE]
        known = [kept[key] for key in some] if set(some) <= kept.keys() else None
        results = known or await context.store.jobs.results(some, spend=False)
        found |= zip(some, results, strict=True)
        size += sum(len(one.data) for one in results if one is not None)
        if size > most:
            raise TooLarge(f"the jobs that it waited for have more than {most} bytes of results together")
    return found


async def _missing_results(
    context: EngineContext, jobs: Sequence[Job], given: Mapping[JobKey, ParentResults]
) -> dict[JobKey, str]:
    """The jobs for which a result is no longer kept, and why each of them fails. Most results are there."""
    without = {key_of(job): [key for key, one in given.get(key_of(job), {}).items() if one is None] for job in jobs}
    keys = list(dict.fromkeys(key for some in without.values() for key in some))
    if not keys:
        return {}
    reading = await context.store.jobs.read(keys)
    there = {key_of(one.job) for one in reading.records if one is not None and not _is_dropped(one.job, reading.now)}
    gone = {job: [key.id for key in some if key not in there] for job, some in without.items()}
    return {
        job: f"the result of job {ids[0]}, which it waited for, is no longer kept" for job, ids in gone.items() if ids
    }


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
    followed = [one for one in parents if one.then is not None or one.state is State.FAILED]
    ordered = sorted(followed, key=lambda one: (one.id, one.tenant))
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
    new, id = _with_result(then, parent.result), _then_id(parent.tenant, parent.id, then)
    return Draft(parent.tenant, id, with_follow_up(parent.tenant, id, new), follows=True)


def with_follow_up(tenant: str, id: str, new: NewJob) -> NewJob:
    """A job under this id, which says what its follow-up will be called."""
    if new.then is None:
        return new if new.follow_up is None else replace(new, follow_up=None)
    return replace(new, follow_up=_then_id(tenant, id, new.then))


def _then_id(tenant: str, parent: str, then: NewJob) -> str:
    return own_id(tenant, then) or child_id(parent, "then", then.queue)


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
