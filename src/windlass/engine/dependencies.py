"""Dependencies: jobs that wait for others (`after`), and jobs that follow others (`then`).

Parent and child may be in different partitions, so no step here is atomic across both. Each step is guarded and
repeatable; what a crash leaves undone is found again, by the index of completed parents or among the blocked jobs.
"""

from collections.abc import Sequence
from itertools import islice

from msgspec import Raw
from msgspec.structs import replace

from windlass.engine.context import MOST_ROUNDS, EngineContext
from windlass.model import dependency
from windlass.model.job import MSGPACK, State
from windlass.model.names import JobKey, child_id, key_of, keyed_id
from windlass.model.new_job import NOTHING, NewJob
from windlass.store.data import CompletedParent, Dependency, Draft, StoredResult


async def unblock(context: EngineContext, keys: Sequence[JobKey]) -> set[JobKey]:
    """Decide blocked jobs again; those that could not be decided now.

    The dependency edges are written first: a parent that is still pending then reports its end.
    """
    rest = list(dict.fromkeys(keys))
    for _ in range(MOST_ROUNDS):
        if not rest:
            break
        reading = await context.store.jobs.read(rest)
        blocked = [record.job for record in reading.records if record and record.job.state is State.BLOCKED]
        edges = [Dependency(parent, job.tenant, job.id) for job in blocked for parent in job.waits_for]
        states = iter(await context.store.jobs.add_dependencies(edges))
        parents = [dict(zip(job.waits_for, islice(states, len(job.waits_for)), strict=True)) for job in blocked]
        decided = [dependency.unblock(job, known, reading.now) for job, known in zip(blocked, parents, strict=True)]
        moves = [move for move in decided if move is not None]
        applied = await context.writes.apply(moves)
        rest = [key_of(move) for move, done in zip(moves, applied, strict=True) if not done]
    return set(rest)


def then_jobs(parents: Sequence[CompletedParent]) -> list[Draft]:
    """The jobs that follow these completed parents. They were checked when the parents were enqueued."""
    ordered = sorted(parents, key=lambda one: (one.id, one.tenant))
    return [_then_job(one, one.then) for one in ordered if one.then and one.state is State.SUCCEEDED]


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
