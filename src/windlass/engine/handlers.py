"""Handlers: kept with their versions, told, and made known to those who claim.

The versions of one handler lie together, apart from everybody else's; an entry in one small list says that there is a
handler. The entry is written last and removed first: what is in the list is there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from windlass.engine.desk import Desk, Handled
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
from windlass.model.worker import Worker

LIST = "handler"

REMEMBER = 0.25
"""Seconds for which claims go by the handlers that there were."""

_pack = msgspec.msgpack.Encoder().encode
_handler = msgspec.msgpack.Decoder(Handler)
_entry = msgspec.msgpack.Decoder(HandlerEntry)


class _OfLanguage(Struct):
    """As much of an entry as those who claim need."""

    lang: Language


_language = msgspec.msgpack.Decoder(_OfLanguage)


async def put(desk: Desk, operation: PutHandler) -> HandlerEntry:
    tenant, task = _whose(operation), operation.task
    if f"{tenant}/{task}" in desk.reserved:
        raise Conflict(f"{task} is a task of the app that runs here, which no handler can replace", at="task")
    _check_source(operation.handler)
    listed = await _listed(desk, tenant)
    if len(listed) >= MOST_HANDLERS and task not in {one.task for one in listed}:
        raise Conflict(f"this tenant has {MOST_HANDLERS} handlers, which is as many as are kept", at="task")
    versions = await _versions(desk, tenant, task)
    digest = digest_of(operation.handler)
    if not versions or versions[0].digest != digest:
        now = (await desk.store.read([])).now
        number = versions[0].version + 1 if versions else 1
        said = asdict(operation.handler)
        new = Handler(**said, tenant=tenant, task=task, version=number, digest=digest, created_at=now)
        await desk.shelf.put(_shelf(tenant, task), _name(new), _pack(new))
        versions = await _versions(desk, tenant, task)  # somebody else may have had the same idea
    for old in versions[MOST_VERSIONS:]:
        await desk.shelf.put(_shelf(tenant, task), _name(old), None)
    entry = HandlerEntry(**_about(versions[0]), tenant=tenant, task=task)
    await desk.shelf.put(LIST, f"{tenant}/{task}", _pack(entry))
    desk.handled = None
    return entry


async def get(desk: Desk, operation: GetHandler) -> KeptHandler:
    versions = await _kept(desk, operation, operation.task)
    wanted = operation.version or versions[0].version
    for one in versions:
        if one.version == wanted:
            return KeptHandler(**asdict(one), versions=[HandlerVersion(**_about(other)) for other in versions])
    raise Missing(f"there is no version {wanted} of the handler of {operation.task}", at="version")


async def handlers(desk: Desk, operation: Handlers) -> list[HandlerEntry]:
    return await _listed(desk, operation.tenant)


async def remove(desk: Desk, operation: RemoveHandler) -> None:
    tenant, task = _whose(operation), operation.task
    versions = await _kept(desk, operation, task)
    await desk.shelf.put(LIST, f"{tenant}/{task}", None)
    desk.handled = None
    for one in versions:
        await desk.shelf.put(_shelf(tenant, task), _name(one), None)


async def get_code(desk: Desk, operation: GetCode) -> Code:
    newest = (await _kept(desk, operation, operation.task))[0]
    return Code(digest=newest.digest, handler=None if newest.digest == operation.known else newest)


async def tasks_of(desk: Desk, worker: Worker, languages: Collection[Language] | None = None) -> list[str] | None:
    """The tasks that a worker may be given now; those of other tenants than its own as `tenant/task`.

    `languages`: those of handlers that it can run now; null = those that it registered with.
    """
    if worker.tasks is None or not worker.handlers:
        return worker.tasks
    now = _now()
    if desk.handled is None or now is None or desk.handled.until <= now:
        try:
            tasks = await _handled(desk)
        except PartAway:
            if desk.handled is None:
                raise
            tasks = desk.handled.tasks
        desk.handled = Handled(0.0 if now is None else now + REMEMBER, tasks)
    known = desk.handled.tasks
    able = worker.languages if languages is None else languages
    if worker.tenant != EVERY_TENANT:
        mine = known.get(worker.tenant, {})
        return [*worker.tasks, *(task for task, lang in mine.items() if able is None or lang in able)]
    found = ((tenant, task, lang) for tenant, tasks in known.items() for task, lang in tasks.items())
    return [*worker.tasks, *(f"{tenant}/{task}" for tenant, task, lang in found if able is None or lang in able)]


async def unable(desk: Desk, job: Job) -> str | None:
    """Why no worker of a job's queue runs the handler of its task, as one of them says; null = none says anything."""
    lang = (await _handled(desk)).get(job.tenant, {}).get(job.task)
    for worker in await desk.store.workers(EVERY_TENANT):
        if lang in worker.unable and job.queue in worker.queues and worker.tenant in (EVERY_TENANT, job.tenant):
            return f"no worker can run {lang}: {worker.unable[lang]}"
    return None


async def _handled(desk: Desk) -> Mapping[str, Mapping[str, Language]]:
    """By tenant the tasks that have handlers, and in which language."""
    tasks: dict[str, dict[str, Language]] = {}
    for name, data in (await desk.shelf.shelved(LIST)).items():
        if name not in desk.reserved:
            tenant, _, task = name.partition("/")
            tasks.setdefault(tenant, {})[task] = _language.decode(data).lang
    return tasks


def _now() -> float | None:
    """By the loop's clock; null = whoever asks has no loop, and looks each time."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return None


def _whose(operation: Operation[Any]) -> str:
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
                raise Invalid("a URL has no code around it", at=name)
    if new.lang != "sh":
        return
    for name, source in {"body": new.body, **around}.items():
        if "\0" in source:
            raise Invalid("a script has no zero bytes", at=name)
        if len(source.encode()) > MOST_SCRIPT:
            raise Invalid(f"a script may have {MOST_SCRIPT} bytes", at=name)


def _shelf(tenant: str, task: str) -> str:
    return f"{LIST}/{tenant}/{task}"


def _name(handler: Handler) -> str:
    return f"{handler.version}.{handler.digest}"


def _about(handler: Handler) -> dict[str, Any]:
    return {name: getattr(handler, name) for name in HandlerVersion.__struct_fields__}


async def _listed(desk: Desk, tenant: str) -> list[HandlerEntry]:
    found = [_entry.decode(data) for data in (await desk.shelf.shelved(LIST)).values()]
    return sorted(
        (one for one in found if tenant in (EVERY_TENANT, one.tenant)), key=lambda one: (one.tenant, one.task)
    )


async def _versions(desk: Desk, tenant: str, task: str) -> list[Handler]:
    """Newest first. Two that were sent at the same time may have the same number: then the later one counts."""
    found = [_handler.decode(data) for data in (await desk.shelf.shelved(_shelf(tenant, task))).values()]
    return sorted(found, key=lambda one: (one.version, one.created_at, one.digest), reverse=True)


async def _kept(desk: Desk, operation: Operation[Any], task: str) -> list[Handler]:
    tenant = _whose(operation)
    versions = await _versions(desk, tenant, task)
    if not versions or f"{tenant}/{task}" not in await desk.shelf.shelved(LIST):
        raise Missing(f"there is no handler of {task}", at="task")
    return versions


ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = {
    PutHandler: put,
    GetHandler: get,
    Handlers: handlers,
    RemoveHandler: remove,
    GetCode: get_code,
}
