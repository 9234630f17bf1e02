"""Handlers: stored with their versions, listed, and offered to workers that claim.

The versions of each handler are a kind of records of their own; an entry in one small list says that the handler
exists. The entry is written last and removed first: what is listed exists.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from windlass.engine.context import EngineContext, HandledTasks
from windlass.model.errors import Conflict, Invalid, Missing, PartAway
from windlass.model.handler import (
    MOST_HANDLERS,
    MOST_SCRIPT,
    MOST_VERSIONS,
    Handler,
    HandlerEntry,
    HandlerVersion,
    Language,
    NewHandler,
    digest_of,
)
from windlass.model.job import Job
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import (
    Code,
    GetCode,
    GetHandler,
    Handlers,
    KeptHandler,
    Operation,
    PutHandler,
    RemoveHandler,
)
from windlass.model.push import read_url
from windlass.model.worker import Worker, unmet
from windlass.store.data import ANYTHING

LIST = "handler"

CACHED_FOR = 0.25
"""Seconds for which claims use the cached list of handlers."""

_pack = msgspec.msgpack.Encoder().encode
_handler = msgspec.msgpack.Decoder(Handler)
_entry = msgspec.msgpack.Decoder(HandlerEntry)


async def put(context: EngineContext, operation: PutHandler) -> HandlerEntry:
    tenant, task = _tenant(operation), operation.task
    if f"{tenant}/{task}" in context.reserved:
        raise Conflict(f"{task} is a task of the app in this process: a handler cannot replace it", at="task")
    _check_source(operation.handler)
    listed = await _listed(context, tenant)
    if len(listed) >= MOST_HANDLERS and task not in {one.task for one in listed}:
        raise Conflict(f"this tenant has {MOST_HANDLERS} handlers already: remove one first", at="task")
    versions = await _versions(context, tenant, task)
    digest = digest_of(operation.handler)
    if not versions or versions[0].digest != digest:
        now = (await context.store.jobs.read([])).now
        number = versions[0].version + 1 if versions else 1
        fields = asdict(operation.handler)
        new = Handler(**fields, tenant=tenant, task=task, version=number, digest=digest, created_at=now)
        await context.store.records.swap(_kind(tenant, task), _name(new), ANYTHING, _pack(new))
        versions = await _versions(context, tenant, task)  # another caller may have added one too
    for old in versions[MOST_VERSIONS:]:
        await context.store.records.swap(_kind(tenant, task), _name(old), ANYTHING, None)
    entry = HandlerEntry(**_about(versions[0]), tenant=tenant, task=task, needs=versions[0].options.needs)
    await context.store.records.swap(LIST, f"{tenant}/{task}", ANYTHING, _pack(entry))
    context.handled_tasks = None
    return entry


async def get(context: EngineContext, operation: GetHandler) -> KeptHandler:
    versions = await _stored(context, operation, operation.task)
    wanted = operation.version or versions[0].version
    for one in versions:
        if one.version == wanted:
            return KeptHandler(**asdict(one), versions=[HandlerVersion(**_about(other)) for other in versions])
    raise Missing(f"there is no version {wanted} of the handler of {operation.task}", at="version")


async def handlers(context: EngineContext, operation: Handlers) -> list[HandlerEntry]:
    return await _listed(context, operation.tenant)


async def remove(context: EngineContext, operation: RemoveHandler) -> None:
    tenant, task = _tenant(operation), operation.task
    versions = await _stored(context, operation, task)
    await context.store.records.swap(LIST, f"{tenant}/{task}", ANYTHING, None)
    context.handled_tasks = None
    for one in versions:
        await context.store.records.swap(_kind(tenant, task), _name(one), ANYTHING, None)


async def get_code(context: EngineContext, operation: GetCode) -> Code:
    newest = (await _stored(context, operation, operation.task))[0]
    return Code(digest=newest.digest, handler=None if newest.digest == operation.known else newest)


async def tasks_of(
    context: EngineContext, worker: Worker, languages: Collection[Language] | None = None
) -> list[str] | None:
    """The tasks that a worker may claim now; those of other tenants than its own as `tenant/task`.

    `languages`: languages of handlers that it can run now; null = those that it registered with.
    """
    if worker.tasks is None or not worker.handlers:
        return worker.tasks
    now = _now()
    if context.handled_tasks is None or now is None or context.handled_tasks.until <= now:
        try:
            tasks = await _read_handled(context)
        except PartAway:
            if context.handled_tasks is None:
                raise
            tasks = context.handled_tasks.tasks
        context.handled_tasks = HandledTasks(0.0 if now is None else now + CACHED_FOR, tasks)
    known, able = context.handled_tasks.tasks, worker.languages if languages is None else languages
    if worker.tenant == EVERY_TENANT:
        mine = {f"{tenant}/": tasks for tenant, tasks in known.items()}
    else:
        mine = {"": known.get(worker.tenant, {})}
    offers = set(worker.offers)
    return [
        *worker.tasks,
        *(
            before + task
            for before, tasks in mine.items()
            for task, entry in tasks.items()
            if (able is None or entry.lang in able) and offers.issuperset(entry.needs) and not unmet(worker, task)
        ),
    ]


async def unable(context: EngineContext, job: Job) -> str | None:
    """Why no worker of a job's queue runs its task, as far as they say so; null = they do not."""
    entry = (await _read_handled(context)).get(job.tenant, {}).get(job.task)
    lacks: list[str] = []
    for worker in await context.store.workers.list(EVERY_TENANT):
        if job.queue not in worker.queues or worker.tenant not in (EVERY_TENANT, job.tenant):
            continue
        needs = entry.needs if entry is not None and worker.handlers else ()
        if lacking := unmet(worker, job.task) or [label for label in needs if label not in worker.offers]:
            lacks = lacking
        elif entry is not None and entry.lang in worker.unable:
            return f"no worker can run {entry.lang}: {worker.unable[entry.lang]}"
    return f"it needs {', '.join(lacks)}, which no worker that knows it offers" if lacks else None


async def _read_handled(context: EngineContext) -> Mapping[str, Mapping[str, HandlerEntry]]:
    """By tenant the tasks that have handlers."""
    tasks: dict[str, dict[str, HandlerEntry]] = {}
    for name, data in (await context.store.records.list(LIST)).items():
        if name not in context.reserved:
            tenant, _, task = name.partition("/")
            tasks.setdefault(tenant, {})[task] = _entry.decode(data)
    return tasks


def _now() -> float | None:
    """By the loop's clock; null = the caller has no loop, and reads each time."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return None


def _tenant(operation: Operation[Any]) -> str:
    if operation.tenant == EVERY_TENANT:
        raise Invalid("a handler belongs to one tenant, not to '-'", at="tenant")
    return operation.tenant


def _check_source(new: NewHandler) -> None:
    """Refuse what could never run."""
    around = {"before": new.before, "beforeEach": new.before_each, "afterEach": new.after_each}
    if new.lang == "http":
        read_url(new.body, at="body")
        for name, source in around.items():
            if source:
                raise Invalid("a handler that is a URL has no code around it: leave it empty", at=name)
    if new.lang != "sh":
        return
    for name, source in {"body": new.body, **around}.items():
        if "\0" in source:
            raise Invalid("a script cannot contain zero bytes", at=name)
        if len(source.encode()) > MOST_SCRIPT:
            raise Invalid(f"a script may have at most {MOST_SCRIPT} bytes", at=name)


def _kind(tenant: str, task: str) -> str:
    return f"{LIST}/{tenant}/{task}"


def _name(handler: Handler) -> str:
    return f"{handler.version}.{handler.digest}"


def _about(handler: Handler) -> dict[str, Any]:
    return {name: getattr(handler, name) for name in HandlerVersion.__struct_fields__}


async def _listed(context: EngineContext, tenant: str) -> list[HandlerEntry]:
    found = [_entry.decode(data) for data in (await context.store.records.list(LIST)).values()]
    return sorted(
        (one for one in found if tenant in (EVERY_TENANT, one.tenant)), key=lambda one: (one.tenant, one.task)
    )


async def _versions(context: EngineContext, tenant: str, task: str) -> list[Handler]:
    """Newest first. Two that were added at the same time may have the same number: then the later one counts."""
    found = [_handler.decode(data) for data in (await context.store.records.list(_kind(tenant, task))).values()]
    return sorted(found, key=lambda one: (one.version, one.created_at, one.digest), reverse=True)


async def _stored(context: EngineContext, operation: Operation[Any], task: str) -> list[Handler]:
    tenant = _tenant(operation)
    versions = await _versions(context, tenant, task)
    if not versions or f"{tenant}/{task}" not in await context.store.records.list(LIST):
        raise Missing(f"there is no handler of {task}", at="task")
    return versions


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    PutHandler: put,
    GetHandler: get,
    Handlers: handlers,
    RemoveHandler: remove,
    GetCode: get_code,
}
