"""Answers Edit: what a caller changes of one stored job, decided again while others change it too."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec.structs import replace

from windlass.engine.context import MOST_ROUNDS, EngineContext
from windlass.model import lifecycle
from windlass.model.edit import JobEdit
from windlass.model.errors import Busy, TooLarge
from windlass.model.job import Job
from windlass.model.operations import MOST_ANNOTATED, MOST_ANNOTATIONS, Edit, Operation


async def edit(context: EngineContext, operation: Edit) -> Job:
    for _ in range(MOST_ROUNDS):
        record = await context.find(operation.id, operation.tenant)
        job = record.job
        annotations = _annotated(job.annotations, operation.annotations or {})
        if annotations == job.annotations:
            return job
        move = lifecycle.edit(job, JobEdit(number=job.edits, annotations=annotations))
        if (await context.writes.apply([replace(move, fence=record.token)]))[0]:
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


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {Edit: edit}
