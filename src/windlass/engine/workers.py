"""Answers to operations on workers: register, list, unregister."""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from windlass.engine.context import EngineContext, known_worker, lease_of, unknown_worker
from windlass.engine.flow.apply import update_tier_caps
from windlass.engine.records import register_task_options
from windlass.engine.schedules import declare_schedules
from windlass.model.errors import Invalid
from windlass.model.names import EVERY_TENANT, text_id
from windlass.model.operations import Operation, Register, Registered, Unregister, Workers
from windlass.model.push import read_url
from windlass.model.worker import NewWorker, Worker, unmet
from windlass.store.data import ANYTHING

SECRETS = "push.secret"
"""Records: the secrets of push workers, by worker."""


async def register(context: EngineContext, operation: Register) -> Registered:
    id = operation.id or text_id(context.chance.uuid7())
    if operation.worker.tasks == [] and not operation.worker.handlers:
        raise Invalid("the worker has no tasks and runs no handlers: give it one or the other", at="worker.tasks")
    if operation.worker.url is not None:
        read_url(operation.worker.url)
    if operation.id is not None:
        known = await known_worker(context, operation.id, operation.tenant)
        if known.url != operation.worker.url:
            raise Invalid("a worker's URL cannot change: register a new worker", at="worker.url")
    about = _without_unmet(operation.worker)
    await register_task_options(context, operation.tenant, operation.worker)
    await declare_schedules(context, operation.tenant, operation.worker)
    about = replace(about, options=None, schedules=None)
    lease = lease_of(context, operation.worker)
    worker = await context.store.workers.heartbeat(id, operation.tenant, lease, about)
    if operation.id is not None and worker is not None:
        context.remember_worker(worker)  # only now: the cached worker must survive a store that is away
    await update_tier_caps(context)
    context.stats.worker_registered(operation.worker.queues)
    if operation.worker.url is None or operation.id is not None:
        return Registered(worker=id, lease=lease)
    # Stored after the worker: a secret without a worker may be deleted.
    secret = b"".join(context.chance.token() for _ in range(4)).hex()
    await context.store.records.swap(SECRETS, id, ANYTHING, secret.encode())
    return Registered(worker=id, lease=lease, secret=secret)


def _without_unmet(worker: NewWorker) -> NewWorker:
    """The worker without the tasks that need what it does not offer: it claims none of their jobs."""
    if not worker.needs or not worker.tasks:
        return worker
    tasks = [task for task in worker.tasks if not unmet(worker, task)]
    if not tasks and not worker.handlers:
        task = worker.tasks[0]
        lacks = ", ".join(unmet(worker, task))
        raise Invalid(
            f"each of its tasks needs what this worker does not offer ({task} needs {lacks}): "
            f"start it with --offers {','.join(unmet(worker, task))} where that is there",
            at="worker.offers",
        )
    return replace(worker, tasks=tasks)


async def workers(context: EngineContext, operation: Workers) -> list[Worker]:
    """The workers that serve a tenant: its own, and shared ones without their URLs."""
    tenant = operation.tenant
    found = await context.store.workers.list(EVERY_TENANT)
    if tenant == EVERY_TENANT:
        return found
    serving = [worker for worker in found if worker.tenant in (EVERY_TENANT, tenant)]
    return [worker if worker.tenant == tenant else replace(worker, url=None) for worker in serving]


async def unregister(context: EngineContext, operation: Unregister) -> None:
    await known_worker(context, operation.worker, operation.tenant)
    context.forget_worker(operation.worker)
    if await context.store.workers.heartbeat(operation.worker, operation.tenant, 0.0) is None:
        raise unknown_worker(operation.worker)
    await update_tier_caps(context)


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    Register: register,
    Workers: workers,
    Unregister: unregister,
}
