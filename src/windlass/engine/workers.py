"""Workers as an engine knows them: registration, heartbeats, the list of them, and what each may claim.

A worker's registration is cached. Its heartbeats show whether it is alive.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from windlass.engine.context import EngineContext
from windlass.engine.flow.apply import update_tier_caps
from windlass.engine.records import register_task_options
from windlass.model.errors import Invalid, Missing, PartAway
from windlass.model.names import EVERY_TENANT, text_id
from windlass.model.operations import Claimed, Operation, Register, Registered, Unregister, Workers
from windlass.model.push import read_url
from windlass.model.worker import NewWorker, Worker
from windlass.store.data import ANYTHING, ClaimRequest, Record, Turn

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
    await register_task_options(context, operation.tenant, operation.worker)
    about = replace(operation.worker, options=None)
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
        raise _unknown(operation.worker)
    await update_tier_caps(context)


# Known workers


def lease_of(context: EngineContext, worker: NewWorker | None) -> float:
    """Seconds after which a silent worker counts as lost, and its jobs with it."""
    own = None if worker is None else worker.lease
    return context.settings.lease if own is None else min(own, context.settings.lease)


async def known_worker(context: EngineContext, id: str, tenant: str) -> Worker:
    """A tenant's worker, as it registered."""
    worker = context.known_workers.get(id) or await _heartbeat(context, id, tenant)
    if worker is None or worker.tenant != tenant:
        raise _unknown(id)
    context.remember_worker(worker)
    return worker


async def heard_of(context: EngineContext, id: str, tenant: str) -> Worker:
    """Record a worker's heartbeat. If that partition of the store is away, a known worker continues; should it expire
    meanwhile, it learns so when the partition is back.
    """
    try:
        found = await _heartbeat(context, id, tenant)
    except PartAway:
        found = context.known_workers.get(id)
        if found is None or found.tenant != tenant:
            raise
    if found is None:
        context.forget_worker(id)
        raise _unknown(id)
    return found


async def _heartbeat(context: EngineContext, id: str, tenant: str) -> Worker | None:
    """Record a worker's heartbeat; null = there is no such worker, or it has expired."""
    lease = lease_of(context, context.known_workers.get(id))
    found = await context.store.workers.heartbeat(id, tenant, lease)
    if found is not None and lease_of(context, found) < lease:  # its own lease was not known here
        found = await context.store.workers.heartbeat(id, tenant, lease_of(context, found))
    return found


def _unknown(id: str) -> Missing:
    return Missing(f"there is no worker {id[:60]}: it was silent for a whole lease, or never registered", at="worker")


# What a worker may claim


async def claim_request(
    context: EngineContext, worker: Worker, tasks: Sequence[str] | None, nonce: bytes, slots: int, **more: Any
) -> ClaimRequest:
    """A worker's claim of these tasks (null = any), under the settings of its queues."""
    able = worker if tasks is worker.tasks else replace(worker, tasks=tasks)
    slots = slots if tasks is None or tasks else 0  # to a store, no tasks would mean any task
    config = await context.flow_config.current()
    return ClaimRequest(
        able,
        nonce,
        slots,
        lease_of(context, worker),
        turns=_turns(worker),
        in_order=config.strict_priority(worker.queues),
        lasts=config.has_at_most_once(worker.queues),
        **more,
    )


def claimed(record: Record) -> Claimed:
    return Claimed(
        job=record.job,
        token=(record.token or b"").hex(),
        payload=Raw(record.payload or b""),
        files=record.files,
        deadline=record.job.deadline,
    )


def _turns(worker: Worker) -> frozenset[Turn]:
    """What takes turns in a worker's claims, unless a queue's settings say otherwise."""
    queues: tuple[Turn, ...] = ("queues",) if worker.in_turn and len(worker.queues) > 1 else ()
    tenants: tuple[Turn, ...] = ("tenants",) if worker.tenant == EVERY_TENANT else ()
    tasks: tuple[Turn, ...] = ("tasks",) if worker.handlers and worker.tasks == [] else ()
    return frozenset((*queues, *tenants, *tasks))


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    Register: register,
    Workers: workers,
    Unregister: unregister,
}
