"""The options that tasks were declared with, for jobs that come by name.

Python code that has a task at hand knows its options and sends them with each job (`exact`). The command line and HTTP
clients know only a name: workers register the options of their tasks, and such jobs take them from there, where they do
not say otherwise.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar, cast

import msgspec
from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.lately import Lately
from windlass.model.errors import Unavailable
from windlass.model.job import NewJob, Wishes
from windlass.model.names import EVERY_TENANT, queue_mark
from windlass.model.operations import A, Enqueue, EnqueueLines, EnqueueMany, Operation, Service
from windlass.model.ports import Clock
from windlass.model.worker import MOST_TASKS, NewWorker

KIND = "task-options"

REMEMBER = 2.0
"""Seconds for which the options of tasks are taken for what they were."""

FIELDS = tuple(name for name in Wishes.__struct_fields__ if name not in ("key", "content_type", "one_argument"))
"""What a task may be declared with."""

Known = Mapping[str, Wishes]
"""Options by `tenant/task`."""

W = TypeVar("W", bound=Wishes)

_none = Wishes()
_pack = msgspec.msgpack.Encoder().encode
_options = msgspec.msgpack.Decoder(Wishes)


async def register(desk: Desk, tenant: str, worker: NewWorker) -> None:
    """Keep the options of a worker's tasks. Where two workers differ, the one that came last counts."""
    if worker.options is None:
        return
    before = await desk.shelf.shelved(KIND)
    room = MOST_TASKS - sum(name.startswith(f"{tenant}/") for name in before)
    for task in worker.tasks or ():
        name, said = f"{tenant}/{task}", worker.options.get(task, _none)
        after = None if said == _none else _pack(said)
        if before.get(name) == after:
            continue
        if name not in before:
            room -= 1
        if room >= 0 or name in before:
            await desk.shelf.put(KIND, name, after)


async def registered(desk: Desk) -> Known:
    """All options that were registered."""
    return {name: _options.decode(data) for name, data in (await desk.shelf.shelved(KIND)).items()}


class WithTaskOptions:
    """A service in front of another that gives jobs the options of their tasks."""

    def __init__(self, service: Service, desk: Desk, clock: Clock, patience: float | None = None) -> None:
        """`patience`: seconds that jobs wait for options that were known a moment ago; null = as long as it takes."""
        self._service = service
        self._known = Lately(lambda: registered(desk), clock, REMEMBER, patience)

    async def __call__(self, operation: Operation[A], /) -> A:
        if isinstance(operation, Enqueue | EnqueueMany | EnqueueLines) and not operation.exact:
            # Whether jobs can be taken in without the store is not for us to say.
            with suppress(Unavailable):
                operation = cast("Operation[A]", _filled(operation, await self._known.known()))
        return await self._service(operation)


def _filled(operation: Enqueue | EnqueueMany | EnqueueLines, known: Known) -> Enqueue | EnqueueMany | EnqueueLines:
    tenant = operation.tenant
    if not known:
        return operation
    match operation:
        case Enqueue():
            return replace(operation, job=_with_options(known, tenant, operation.job))
        case EnqueueMany():
            return replace(operation, jobs=[_with_options(known, tenant, new) for new in operation.jobs])
        case _:
            return replace(operation, wishes=filled(operation.wishes, _found(known, tenant, operation.task)))


def _with_options(known: Known, tenant: str, new: NewJob) -> NewJob:
    said = _found(known, tenant, new.task)
    if new.id is not None and said.queue != new.queue and not new.id.endswith(f"{queue_mark(said.queue):02x}"):
        said = replace(said, queue=new.queue)  # an id of one's own is for one queue: so that was said
    found = filled(new, said)
    if found.then is not None:
        found = replace(found, then=_with_options(known, tenant, found.then))
    return found


def _found(known: Known, tenant: str, task: str) -> Wishes:
    return known.get(f"{tenant}/{task}") or known.get(f"{EVERY_TENANT}/{task}") or _none


def filled(wishes: W, said: Wishes) -> W:
    """What is asked for a job, with the options of its task where it asks for nothing."""
    taken = {
        name: value
        for name in FIELDS
        if (value := getattr(said, name)) != (default := getattr(_none, name)) and getattr(wishes, name) == default
    }
    return replace(wishes, **taken) if taken else wishes
