"""Answers to the operations on queues and tasks as a whole: how they are run, and pauses."""

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict, replace

from windlass.engine import keeping
from windlass.engine.desk import Desk
from windlass.engine.promises import usual_errors
from windlass.engine.regime import NO_SETTINGS, QUEUES, TASKS
from windlass.engine.rules import MOST_SORTED, begun, put_in_force, resting, sort_out
from windlass.model.errors import Invalid
from windlass.model.job import State
from windlass.model.limit import Pause
from windlass.model.names import EVERY_TENANT, check_name
from windlass.model.operations import ChangeQueue, GetQueue, GetTask, Operation, PauseTask, QueueCard, Queues
from windlass.model.queue import QueueChange, QueueSettings, check_tiers
from windlass.model.worker import Worker

_pack = msgspec.msgpack.Encoder().encode
_queue = msgspec.msgpack.Decoder(QueueSettings)
_pause = msgspec.msgpack.Decoder(Pause)


async def change(desk: Desk, operation: ChangeQueue) -> QueueCard:
    name = f"{operation.tenant},{check_name(operation.queue, at='queue')}"
    now = (await desk.store.read([])).now

    def changed(kept: bytes | None) -> bytes | None:
        old = NO_SETTINGS if kept is None else _queue.decode(kept)
        new = _changed(old, operation.change)
        if operation.change.paused is not UNSET:
            new = replace(new, since=begun(new, old, now))
        if new.tiers and operation.tenant == EVERY_TENANT:
            raise Invalid("tiers belong to one tenant's queue, not to everybody's", at="tiers")
        return None if new == NO_SETTINGS else _pack(new)

    await keeping.change(desk, QUEUES, name, changed)
    await put_in_force(desk)
    await sort_out(desk, MOST_SORTED)
    return await get(desk, GetQueue(tenant=operation.tenant, queue=operation.queue))


def _changed(settings: QueueSettings, change: QueueChange) -> QueueSettings:
    given = {name: value for name, value in asdict(change).items() if value is not UNSET}
    for name in given.pop("clear"):
        if name in given:
            raise Invalid("either give it or clear it", at=f"clear.{name}")
        given[name] = getattr(NO_SETTINGS, name)
    if given.get("paused") is False:
        given = {**given, "until": None, "why": ""}
    elif "paused" not in given and not settings.paused and ("until" in given or "why" in given):
        raise Invalid("until and why go with paused", at="paused")
    if "tiers" in given:
        check_tiers(given["tiers"])
    return replace(settings, **given)


async def get(desk: Desk, operation: GetQueue) -> QueueCard:
    found = [card for card in await _cards(desk, operation.tenant) if card.queue == operation.queue]
    if found:
        return found[0]
    return QueueCard(tenant=operation.tenant, queue=check_name(operation.queue, at="queue"))


async def get_all(desk: Desk, operation: Queues) -> list[QueueCard]:
    return await _cards(desk, operation.tenant)


async def _cards(desk: Desk, tenant: str) -> list[QueueCard]:
    """One for each queue that has jobs, workers or settings; for everybody, all tenants' jobs together."""
    states: dict[str, Counter[State]] = {}
    for count in await desk.store.tally(tenant):
        states.setdefault(count.queue, Counter())[count.state] += count.count
    settings = await _settings(desk)
    rules = (await desk.regimes.refreshed()).rules
    workers = await desk.store.workers(EVERY_TENANT)
    own = {name.partition(",")[2] for name in settings if name.startswith(f"{tenant},")}
    served = {queue for worker in workers if worker.tenant == tenant for queue in worker.queues}
    now = (await desk.store.read([])).now
    errors = await usual_errors(desk)
    return [
        QueueCard(
            **asdict(_awake(settings.get(f"{tenant},{queue}") or NO_SETTINGS, now)),
            tenant=tenant,
            queue=queue,
            states=dict(states.get(queue, {})),
            workers=sum(1 for worker in workers if _serves(worker, tenant, queue)),
            slots=sum(worker.slots for worker in workers if _serves(worker, tenant, queue)),
            estimate_error=errors.get(queue),
            caps={level.name: level.cap for level in rules.tiers.get(f"{tenant},{queue}", [])},
        )
        for queue in sorted({*states, *own, *served})
    ]


def _serves(worker: Worker, tenant: str, queue: str) -> bool:
    return queue in worker.queues and (tenant == EVERY_TENANT or worker.tenant in (tenant, EVERY_TENANT))


def _awake(settings: QueueSettings, now: datetime) -> QueueSettings:
    """Without a pause that has ended by itself."""
    return settings if resting(settings, now) else replace(settings, **asdict(Pause()))


async def _settings(desk: Desk) -> dict[str, QueueSettings]:
    return {name: _queue.decode(data) for name, data in (await desk.shelf.shelved(QUEUES)).items()}


async def get_task(desk: Desk, operation: GetTask) -> Pause:
    kept = (await desk.shelf.shelved(TASKS)).get(f"{operation.tenant},{operation.task}")
    pause = Pause() if kept is None else _pause.decode(kept)
    return pause if resting(pause, (await desk.store.read([])).now) else Pause()


async def pause_task(desk: Desk, operation: PauseTask) -> Pause:
    name = f"{operation.tenant},{check_name(operation.task, at='task')}"
    before = await get_task(desk, GetTask(tenant=operation.tenant, task=operation.task))
    since = begun(operation.pause, before, (await desk.store.read([])).now)
    pause = replace(operation.pause, since=since) if since else Pause()
    await desk.shelf.put(TASKS, name, _pack(pause) if pause.paused else None)
    await put_in_force(desk)
    return pause


ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = {
    ChangeQueue: change,
    GetQueue: get,
    Queues: get_all,
    GetTask: get_task,
    PauseTask: pause_task,
}
