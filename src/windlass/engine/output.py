"""Answers about what jobs put out: taking it in from whoever holds the job, and handing it out."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from windlass.engine.desk import Desk, fence
from windlass.model.errors import Conflict, TooLarge
from windlass.model.job import FINISHED, MOST_OUTPUT, NewChunk
from windlass.model.names import key_of
from windlass.model.operations import Alive, GetOutput, Operation, Output, OutputPage
from windlass.store import Touch

MOST_TOGETHER = 16 * MOST_OUTPUT
"""Bytes of output in one request."""


async def output(desk: Desk, operation: Output) -> None:
    job = (await desk.find(operation.id, operation.tenant)).job
    chunk = NewChunk(stream=operation.stream, data=operation.data)
    touch = Touch(job.id, job.tenant, fence(operation.token), output=[chunk])
    (touched,) = await desk.store.touch([touch], desk.settings.lease)
    if not touched.held:
        raise Conflict(f"job {operation.id} is not held under this token: stop it, report nothing", at="token")


async def get_output(desk: Desk, operation: GetOutput) -> OutputPage:
    # Whether it has ended is asked first: whatever an ended job put out is there by then.
    record = await desk.asked_for(operation.id, operation.tenant)
    chunks = await desk.store.output(key_of(record.job), operation.after, operation.limit)
    return OutputPage(
        chunks=chunks,
        next=chunks[-1].n if chunks else operation.after,
        ended=record.job.state in FINISHED,
    )


def check_output(items: Sequence[Alive]) -> None:
    """Refuse more output than one request may carry."""
    together = 0
    for place, item in enumerate(items):
        size = sum(len(chunk.data) for chunk in item.output)
        together += size
        if size > MOST_OUTPUT:
            raise TooLarge(
                f"{size} bytes at once, at most {MOST_OUTPUT} of one job are kept", at=f"jobs[{place}].output"
            )
    if together > MOST_TOGETHER:
        raise TooLarge(f"{together} bytes of output in one request, at most {MOST_TOGETHER} are allowed", at="jobs")


ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = {
    Output: output,
    GetOutput: get_output,
}
