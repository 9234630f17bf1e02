"""Answers about messages to jobs: taking them in, and handing them to whoever holds the job."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from windlass.engine.desk import Desk, fence
from windlass.model.errors import Busy, Conflict
from windlass.model.job import MOST_INPUT, MOST_MESSAGES
from windlass.model.names import key_of
from windlass.model.operations import Alive, Delivered, Operation, Send
from windlass.store.mailbox import MOST_COLLECTED, Posted, Reader


async def send(desk: Desk, operation: Send) -> None:
    record = await desk.find(operation.id, operation.tenant)
    if not record.job.input:
        raise Conflict(f"job {operation.id} takes no input: it must be queued with input=true", at="id")
    match await desk.mailbox.post(key_of(record.job), operation.data):
        case Posted.FULL:
            most = f"{MOST_MESSAGES} messages or {MOST_INPUT} bytes"
            raise Busy(f"job {operation.id} has not taken what was sent before: at most {most} wait", at="data")
        case Posted.ENDED:
            raise Conflict(f"job {operation.id} has ended: it takes no more input", at="id")


async def deliveries(desk: Desk, jobs: Sequence[Alive], tenants: Sequence[str]) -> list[Delivered]:
    """What was sent to these jobs and their worker does not have yet; of very much, the first part."""
    readers = [
        Reader(item.id, tenant, fence(item.token), item.heard)
        for item, tenant in zip(jobs, tenants, strict=True)
        if item.heard is not None
    ]
    if not readers:
        return []
    found: list[Delivered] = []
    room = MOST_COLLECTED
    for reader, messages in zip(readers, await desk.mailbox.collect(readers), strict=True):
        for message in messages:
            room -= len(message.data)
            if room >= 0:
                found.append(Delivered(id=reader.id, n=message.n, data=message.data))
    return found


ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = {Send: send}
