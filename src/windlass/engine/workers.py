"""Answers to operations on workers: register, list, unregister, order; which came and went."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from windlass.engine.context import EngineContext, known_worker, lease_of, unknown_worker
from windlass.engine.flow.apply import is_paused, paused_since, update_tier_caps
from windlass.engine.records import register_task_options
from windlass.engine.schedules import declare_schedules
from windlass.model.errors import Conflict, Denied, Invalid, WindlassError
from windlass.model.limit import Pause
from windlass.model.names import EVERY_TENANT, text_id
from windlass.model.operations import (
    Operation,
    PauseWorker,
    Register,
    Registered,
    Renew,
    StopWorker,
    Unregister,
    WorkerChanges,
    Workers,
)
from windlass.model.push import read_url
from windlass.model.worker import NO_ORDERS, NewWorker, Worker, WorkerChange, WorkerOrders, unmet
from windlass.store.data import ANYTHING

SECRETS = "push.secret"
"""Records: the secrets of push workers, by worker."""

STAYS = "worker-stays"
"""Records: since when workers were there and until when, by worker."""

ORDERS = "worker-orders"
"""Records: what people ordered workers to do, by worker."""

MOST_GONE = 100
"""Workers that are remembered after they went."""


_pack = msgspec.msgpack.Encoder().encode
_orders = msgspec.msgpack.Decoder(WorkerOrders)


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
    if operation.id is None and operation.formerly is not None:
        await _hand_on(context, operation.tenant, operation.formerly, id)
    if operation.id is None and worker is not None:
        await _note(context, id, WorkerStay(worker.tenant, worker.name, worker.node, worker.registered_at))
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
    found = await _ordered(context, await context.store.workers.list(EVERY_TENANT))
    if tenant == EVERY_TENANT:
        return found
    serving = [worker for worker in found if worker.tenant in (EVERY_TENANT, tenant)]
    return [worker if worker.tenant == tenant else replace(worker, url=None) for worker in serving]


async def unregister(context: EngineContext, operation: Unregister) -> None:
    known = await known_worker(context, operation.worker, operation.tenant)
    context.forget_worker(operation.worker)
    if await context.store.workers.heartbeat(operation.worker, operation.tenant, 0.0) is None:
        raise unknown_worker(operation.worker)
    with suppress(WindlassError):
        await context.store.records.swap(ORDERS, known.id, ANYTHING, None)
        now = (await context.store.jobs.read([])).now
        await _note(context, known.id, WorkerStay(known.tenant, known.name, known.node, known.registered_at, now))
    await update_tier_caps(context)


# What people order a worker to do. The order stays, as a record, until the worker is gone: each renewal says what the
# worker knows of it, and is answered with what is new. So no order is lost with an answer, and none is obeyed twice.


async def pause_worker(context: EngineContext, operation: PauseWorker) -> Worker:
    worker = await _worker_to_order(context, operation.worker, operation.tenant)
    now = (await context.store.jobs.read([])).now
    since = paused_since(operation.pause, worker.orders.pause, now)
    return await _order(context, worker, pause=replace(operation.pause, since=since) if since else Pause())


async def stop_worker(context: EngineContext, operation: StopWorker) -> Worker:
    worker = await _worker_to_order(context, operation.worker, operation.tenant)
    if worker.url is not None:
        raise Conflict(f"{worker.name} is a push worker: end it where it runs; it can be paused here", at="worker")
    stop = "now" if operation.now or worker.orders.stop == "now" else "soon"
    return await _order(context, worker, stop=stop)


async def unknown_orders(context: EngineContext, renew: Renew) -> WorkerOrders | None:
    """What a worker is ordered to do; null = what it knows, or it takes no orders. It may renew even if the store does
    not say.
    """
    if renew.paused is None:
        return None
    with suppress(WindlassError):
        data = (await context.store.records.list(ORDERS, [renew.worker])).get(renew.worker)
        orders = NO_ORDERS if data is None else await _in_force(context, _orders.decode(data))
        if (orders.pause.paused, orders.stop) != (renew.paused, renew.stop):
            return orders
    return None


async def _worker_to_order(context: EngineContext, named: str, tenant: str) -> Worker:
    serving = await workers(context, Workers(tenant=tenant))
    found = [one for one in serving if one.id == named] or [one for one in serving if one.name == named]
    if not found:
        raise unknown_worker(named)
    if len(found) > 1:
        raise Conflict(f"{len(found)} workers are called {named[:60]}: name one by its id", at="worker")
    if found[0].tenant != tenant != EVERY_TENANT:
        raise Denied(
            f"{found[0].name} serves all tenants: it takes orders only for all of them (tenant -)", at="worker"
        )
    return found[0]


async def _order(context: EngineContext, worker: Worker, **changes: Any) -> Worker:
    records = context.store.records
    while True:
        before = (await records.list(ORDERS, [worker.id])).get(worker.id)
        orders = replace(NO_ORDERS if before is None else _orders.decode(before), **changes)
        if await records.swap(ORDERS, worker.id, before, _pack(orders)):
            return replace(worker, orders=orders)


async def _ordered(context: EngineContext, found: list[Worker]) -> list[Worker]:
    """Workers, with what they are ordered to do."""
    stored = await context.store.records.list(ORDERS) if found else {}
    orders = {id: await _in_force(context, _orders.decode(data)) for id, data in stored.items()}
    return [replace(worker, orders=orders[worker.id]) if worker.id in orders else worker for worker in found]


async def _in_force(context: EngineContext, orders: WorkerOrders) -> WorkerOrders:
    """Orders without a pause that is over."""
    if orders.pause.until is None or is_paused(orders.pause, (await context.store.jobs.read([])).now):
        return orders
    return replace(orders, pause=Pause())


async def _hand_on(context: EngineContext, tenant: str, formerly: str, id: str) -> None:
    """Let a worker that was forgotten, and has a new id, go on under the orders that it had."""
    records = context.store.records
    stay = (await records.list(STAYS, [formerly])).get(formerly)
    data = (await records.list(ORDERS, [formerly])).get(formerly)
    if stay is None or data is None or _stay.decode(stay).tenant != tenant:
        return
    await records.swap(ORDERS, id, ANYTHING, data)
    await records.swap(ORDERS, formerly, ANYTHING, None)


# Workers that came and went. A worker that is lost cannot say so: the process that keeps the history notices it.


class WorkerStay(Struct, frozen=True, array_like=True):
    """How long a worker was there."""

    tenant: str
    name: str
    node: str
    joined_at: datetime
    left_at: datetime | None = None
    lost: bool = False


_stay = msgspec.msgpack.Decoder(WorkerStay)


async def _note(context: EngineContext, worker: str, stay: WorkerStay) -> None:
    with suppress(WindlassError):  # no worker fails for want of this
        await context.store.records.swap(STAYS, worker, ANYTHING, _pack(stay))


async def note_lost_workers(context: EngineContext) -> None:
    """Note those that are gone without a word, and forget those that went long ago."""
    records = context.store.records
    packed = await records.list(STAYS)
    stays = {id: _stay.decode(data) for id, data in packed.items()}
    if any(stay.left_at is None for stay in stays.values()):
        alive = {worker.id for worker in await context.store.workers.list(EVERY_TENANT)}  # read after the stays
        now = (await context.store.jobs.read([])).now
        for id, stay in stays.items():
            if stay.left_at is None and id not in alive:
                stays[id] = replace(stay, left_at=now, lost=True)
                await records.swap(STAYS, id, packed[id], _pack(stays[id]))
    gone = sorted((stay.left_at, id) for id, stay in stays.items() if stay.left_at is not None)
    for _, id in gone[:-MOST_GONE]:
        await records.swap(STAYS, id, ANYTHING, None)
        await records.swap(ORDERS, id, ANYTHING, None)


async def worker_changes(context: EngineContext, operation: WorkerChanges) -> list[WorkerChange]:
    found: list[WorkerChange] = []
    for id, data in (await context.store.records.list(STAYS)).items():
        stay = _stay.decode(data)
        if operation.tenant not in (EVERY_TENANT, stay.tenant) and stay.tenant != EVERY_TENANT:
            continue
        change = WorkerChange(
            at=stay.joined_at, event="joined", worker=id, name=stay.name, node=stay.node, tenant=stay.tenant
        )
        found.append(change)
        if stay.left_at is not None:
            found.append(replace(change, at=stay.left_at, event="lost" if stay.lost else "stopped"))
    return sorted(found, key=lambda one: (one.at, one.worker, one.event != "joined"), reverse=True)[: operation.limit]


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    Register: register,
    Workers: workers,
    WorkerChanges: worker_changes,
    Unregister: unregister,
    PauseWorker: pause_worker,
    StopWorker: stop_worker,
}
