"""How a run whose worker has ended goes on under another: `Adopt`. The store decides who of several gets it."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from windlass.engine.context import EngineContext, fence, known_worker, lease_of
from windlass.engine.reports import claimed, tenants_of
from windlass.model import lifecycle
from windlass.model.lifecycle import Move
from windlass.model.names import JobKey, key_of
from windlass.model.new_job import NOTHING
from windlass.model.operations import Adopt, Claimed, Operation
from windlass.model.worker import Adopter
from windlass.store.data import Record


async def adopt(context: EngineContext, operation: Adopt) -> list[Claimed]:
    """Runs go on under this worker, if they are still under the token that it knows."""
    worker = await known_worker(context, operation.worker, operation.tenant)
    tenants = await tenants_of(context, operation)
    orphans = {JobKey(item.id, tenant): item for item, tenant in zip(operation.jobs, tenants, strict=True)}

    def adopted(record: Record, now: datetime) -> Move | None:
        orphan = orphans[key_of(record.job)]
        if record.token is None or record.token != fence(orphan.token):
            return None
        lease = orphan.lease or lease_of(context, worker)
        return lifecycle.adopt(record.job, Adopter(worker.id, worker.node, fence(orphan.nonce), lease, now))

    await context.move_jobs(list(orphans), adopted)
    reading = await context.store.jobs.read(list(orphans))
    config = await context.flow_config.current()
    found = [record for record in reading.records if record is not None and record.job.worker == worker.id]
    return [
        claimed(replace(record, payload=bytes(NOTHING)), config)
        for record in found
        if record.token is not None and record.token == fence(orphans[key_of(record.job)].nonce)
    ]


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {Adopt: adopt}
