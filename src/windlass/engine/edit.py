"""Answers Edit: what a caller changes of one stored job, decided again while others change it too.

Annotations change in any state. The rest changes only while a job waits: the store writes what the job is from now on
in one step, refused if a worker has taken it meanwhile. So a run gets all of an edit or nothing of it.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import UNSET, Raw
from msgspec.structs import replace

from windlass.engine.context import MOST_ROUNDS, EngineContext
from windlass.engine.flow.tiers import rebalance
from windlass.engine.new_jobs import check_job
from windlass.model import editing
from windlass.model.edit import JobEdit
from windlass.model.errors import Busy, Invalid, TooLarge
from windlass.model.job import Job, State
from windlass.model.new_job import NewJob, Terms
from windlass.model.operations import MOST_ANNOTATED, MOST_ANNOTATIONS, Edit, Operation
from windlass.model.unique import identity_of
from windlass.store.data import Draft, Record
from windlass.store.flow import StaleRules


async def edit(context: EngineContext, operation: Edit) -> Job:
    for _ in range(MOST_ROUNDS):
        more = bool(edited_fields(operation))
        record, now = await context.find_now(operation.id, operation.tenant, payload=more)
        job = record.job
        annotations = _annotated(job.annotations, operation.annotations or {})
        if annotations == job.annotations and not more:
            return job
        change = JobEdit(number=job.edits, annotations=annotations)
        if more:
            change = await _with_terms(context, operation, record, change)
            move = editing.edit_waiting(job, change, _due(operation, job, now), now)
        else:
            move = editing.edit(job, change)
        try:
            (written,) = await context.writes.apply([replace(move, fence=record.token)])
        except StaleRules:
            context.flow_config.invalidate()
            continue
        if written:
            await _make_room(context, job, change)
            return (await context.find(job.id, job.tenant)).job
    raise Busy(f"job {operation.id} is changed by others all the time: try again", at="id")


def _annotated(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    after = {name: value for name, value in {**before, **changes}.items() if value is not None}
    if len(after) > MOST_ANNOTATIONS:
        raise TooLarge(f"{len(after)} annotations, at most {MOST_ANNOTATIONS} are kept of a job", at="annotations")
    size = sum(len(name.encode()) + len(value.encode()) for name, value in after.items())
    if size > MOST_ANNOTATED:
        raise TooLarge(f"{size} bytes of annotations, at most {MOST_ANNOTATED} are kept of a job", at="annotations")
    return after


def edited_fields(operation: Edit) -> list[str]:
    """What an edit changes beside annotations, by name."""
    found = [name for name in ("priority", "queue", "tags", "delay", "run_at") if getattr(operation, name) is not None]
    return found if operation.payload is UNSET else [*found, "payload"]


async def _with_terms(context: EngineContext, operation: Edit, record: Record, change: JobEdit) -> JobEdit:
    """With what the job is from now on, checked as a new job is, and with its limit keys."""
    job = record.job
    new = NewJob(**{name: getattr(job, name) for name in Terms.__struct_fields__}, payload=Raw(record.payload or b""))
    if operation.priority is not None:
        new = replace(new, priority=operation.priority)
    if operation.tags is not None:
        new = replace(new, tags=operation.tags)
    config = await context.flow_config.current()
    moves = operation.queue is not None and operation.queue != job.queue
    if operation.queue is not None and moves:
        if job.yielding:
            raise Invalid("a yielding job starts at once or not at all: it cannot change its queue", at="queue")
        new = config.resolve(Draft(job.tenant, job.id, replace(new, queue=operation.queue)), strict=True).new
    if isinstance(operation.payload, Raw):
        about = {"content_type": operation.content_type, "one_argument": operation.one_argument}
        new = check_job(context, replace(new, payload=operation.payload, **about), "")
    identity = b"" if new.unique is None else identity_of(job.tenant, new)
    group = config.group(job.tenant, new, bytes(new.payload))
    return replace(change, new=new, group=group, group_epoch=config.rules.group_epoch, identity=identity)


def _due(operation: Edit, job: Job, now: datetime) -> datetime | None:
    """When the job is due from now on; null = as soon as it may run."""
    if operation.delay is None and operation.run_at is None:
        return job.run_at if job.state is State.SCHEDULED else None
    at = "run_at" if operation.delay is None else "delay"
    if operation.delay is not None and operation.run_at is not None:
        raise Invalid("send a delay or a run_at, not both", at="run_at")
    if job.state is State.BLOCKED:
        raise Invalid("it waits for other jobs, and cannot wait for a time too", at=at)
    if job.yielding:
        raise Invalid("a yielding job starts at once or not at all: it cannot wait for a time", at=at)
    if operation.run_at is not None:
        return operation.run_at.astimezone(UTC)
    return now + timedelta(seconds=operation.delay or 0.0)


async def _make_room(context: EngineContext, job: Job, change: JobEdit) -> None:
    if change.new is None:
        return
    config = await context.flow_config.current()
    for tenant, queue in config.tiered([Draft(job.tenant, job.id, change.new)]):
        await rebalance(context, tenant, queue)


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {Edit: edit}
