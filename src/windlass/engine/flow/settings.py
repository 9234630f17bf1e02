"""Answers to operations on limits, queues and tasks: settings and pauses, in force when the answer arrives."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict, replace

from windlass.engine.context import EngineContext
from windlass.engine.estimate import stats
from windlass.engine.estimate.answers import get_queue_estimate
from windlass.engine.estimate.learn import median_errors
from windlass.engine.flow.apply import MOST_REGROUPED, apply_config, is_paused, paused_since, regroup_jobs
from windlass.engine.flow.config import LIMITS, NO_KEY, NO_SETTINGS, QUEUES, TASKS, limit_name
from windlass.engine.records import change_record, read_task_options
from windlass.model.errors import Conflict, Invalid, Missing
from windlass.model.job import State
from windlass.model.limit import Limit, Pause, check_limit
from windlass.model.names import EVERY_TENANT, check_name
from windlass.model.operations import (
    MOST_AT_ONCE,
    ChangeQueue,
    GetLimit,
    GetQueue,
    GetQueueEstimate,
    GetTask,
    LimitBucket,
    LimitCard,
    Limits,
    Operation,
    PauseLimit,
    PauseTask,
    PutLimit,
    QueueCard,
    Queues,
    QueueWaits,
    RemoveLimit,
    TaskCard,
    TaskEntry,
    Tasks,
)
from windlass.model.queue import QueueChange, QueueSettings, check_tiers
from windlass.model.worker import Worker
from windlass.store.data import ANYTHING, ListScope
from windlass.store.flow import KEY, BucketUsage

MOST_BUCKETS = 100
"""Buckets of one limit in an answer."""

MOST_WAITS = 100
"""Queues whose waits are looked up for one answer."""

MOST_LIMITS = 1000
"""Limits of one tenant."""

_pack = msgspec.msgpack.Encoder().encode
_limit = msgspec.msgpack.Decoder(Limit)
_queue = msgspec.msgpack.Decoder(QueueSettings)
_pause = msgspec.msgpack.Decoder(Pause)


# Limits


async def put_limit(context: EngineContext, operation: PutLimit) -> LimitCard:
    check_name(operation.name, at="name")
    check_limit(operation.limit)
    before = await _read_limits(context, operation.tenant)
    if operation.name not in before and len(before) >= MOST_LIMITS:
        raise Conflict(f"there are {MOST_LIMITS} limits already: remove one first", at="name")

    def changed(old: Limit | None) -> Limit:
        pause = asdict(_pause_of(old)) if old else {}
        return Limit(**asdict(operation.limit), name=operation.name, tenant=operation.tenant, **pause)

    limit = await _change_limit(context, operation.tenant, operation.name, changed)
    return await _limit_card(context, limit, regrouping=not await regroup_jobs(context, MOST_REGROUPED))


async def _change_limit(
    context: EngineContext, tenant: str, name: str, change: Callable[[Limit | None], Limit]
) -> Limit:
    """Change a limit and put it in force; if the store refuses it, restore the old one."""
    record = f"{tenant}/{name}"
    before, after = await change_record(
        context, LIMITS, record, lambda stored: _pack(change(None if stored is None else _limit.decode(stored)))
    )
    try:
        await apply_config(context)
    except BaseException:
        await context.store.records.swap(LIMITS, record, after, before)
        raise
    return _limit.decode(after or b"")


async def get_limit(context: EngineContext, operation: GetLimit) -> LimitCard:
    limit = await _find_limit(context, operation.tenant, operation.name)
    return await _limit_card(context, limit, regrouping=bool((await context.flow_config.refreshed()).rules.regrouping))


async def list_limits(context: EngineContext, operation: Limits) -> list[Limit]:
    now = (await context.store.jobs.read([])).now
    return [_without_ended_pause(limit, now) for limit in (await _read_limits(context, operation.tenant)).values()]


async def pause_limit(context: EngineContext, operation: PauseLimit) -> LimitCard:
    now = (await context.store.jobs.read([])).now

    def changed(old: Limit | None) -> Limit:
        if old is None:
            raise _no_limit(operation.name)
        since = paused_since(operation.pause, old, now)
        return replace(old, **asdict(replace(operation.pause, since=since) if since else Pause()))

    limit = await _change_limit(context, operation.tenant, operation.name, changed)
    return await _limit_card(context, limit, regrouping=False)


async def remove_limit(context: EngineContext, operation: RemoveLimit) -> None:
    limit = await _find_limit(context, operation.tenant, operation.name)
    await context.store.records.swap(LIMITS, limit_name(limit), ANYTHING, None)
    await apply_config(context)


async def _read_limits(context: EngineContext, tenant: str) -> dict[str, Limit]:
    found = (_limit.decode(data) for _, data in sorted((await context.store.records.list(LIMITS)).items()))
    return {limit.name: limit for limit in found if limit.tenant == tenant}


async def _find_limit(context: EngineContext, tenant: str, name: str) -> Limit:
    limit = (await _read_limits(context, tenant)).get(name)
    if limit is None:
        raise _no_limit(name)
    return limit


def _no_limit(name: str) -> Missing:
    return Missing(f"there is no limit {name[:60]!r}", at="name")


def _pause_of(limit: Limit) -> Pause:
    return Pause(paused=limit.paused, until=limit.until, why=limit.why, since=limit.since)


def _without_ended_pause(limit: Limit, now: datetime) -> Limit:
    return limit if is_paused(limit, now) else replace(limit, **asdict(Pause()))


async def _limit_card(context: EngineContext, limit: Limit, *, regrouping: bool) -> LimitCard:
    usage = await context.store.flow.usage(limit_name(limit), MOST_BUCKETS)
    now = (await context.store.jobs.read([])).now
    limit = _without_ended_pause(limit, now)
    buckets = [_bucket(one) for one in sorted(usage, key=lambda one: (-one.running, one.bucket))]
    return LimitCard(**asdict(limit), sorting=regrouping, buckets=buckets)


def _bucket(usage: BucketUsage) -> LimitBucket:
    _, equals, key = usage.bucket.partition(KEY)
    named = None if not equals else "" if key == NO_KEY else key
    return LimitBucket(key=named, running=usage.running, waiting=usage.waiting, free_at=usage.free_at)


# Queues


async def change_queue(context: EngineContext, operation: ChangeQueue) -> QueueCard:
    name = f"{operation.tenant},{check_name(operation.queue, at='queue')}"
    now = (await context.store.jobs.read([])).now

    def changed(stored: bytes | None) -> bytes | None:
        old = NO_SETTINGS if stored is None else _queue.decode(stored)
        if not is_paused(old, now):
            old = replace(old, **asdict(Pause()))  # a pause that has ended by itself leaves nothing to the next one
        new = _changed_settings(old, operation.change)
        if operation.change.paused is not UNSET:
            new = replace(new, since=paused_since(new, old, now))
        if new.tiers and operation.tenant == EVERY_TENANT:
            raise Invalid("tiers belong to one tenant's queue, not to all tenants", at="tiers")
        return None if new == NO_SETTINGS else _pack(new)

    await change_record(context, QUEUES, name, changed)
    await apply_config(context)
    await regroup_jobs(context, MOST_REGROUPED)
    return await get_queue(context, GetQueue(tenant=operation.tenant, queue=operation.queue))


def _changed_settings(settings: QueueSettings, change: QueueChange) -> QueueSettings:
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


async def get_queue(context: EngineContext, operation: GetQueue) -> QueueCard:
    found = [card for card in await _queue_cards(context, operation.tenant) if card.queue == operation.queue]
    card = found[0] if found else QueueCard(tenant=operation.tenant, queue=check_name(operation.queue, at="queue"))
    return await with_waits(context, card) if operation.waits else card


async def list_queues(context: EngineContext, operation: Queues) -> list[QueueCard]:
    cards = await _queue_cards(context, operation.tenant)
    if not operation.waits:
        return cards
    busy = [card.queue for card in cards if card.states.get(State.QUEUED) or card.states.get(State.RUNNING)]
    left_out = set(busy[MOST_WAITS:])
    # Forecasts that cannot be kept together would push each other out, and each question would make all of them.
    brief = sum(card.states.get(State.QUEUED, 0) for card in cards) > stats.MOST_FORECAST_JOBS
    return list(
        await asyncio.gather(
            *(with_waits(context, card, known=card.queue not in left_out, brief=brief) for card in cards)
        )
    )


async def _queue_cards(context: EngineContext, tenant: str) -> list[QueueCard]:
    """One for each queue that has jobs, workers or settings; for `-`, with the jobs of all tenants."""
    states: dict[str, Counter[State]] = {}
    for count in (await context.store.jobs.counts(tenant)).jobs:
        states.setdefault(count.queue, Counter())[count.state] += count.count
    stored = (await context.store.records.list(QUEUES)).items()
    settings = {name: _queue.decode(data) for name, data in stored}
    rules = (await context.flow_config.refreshed()).rules
    workers = await context.store.workers.list(EVERY_TENANT)
    own = {name.partition(",")[2] for name in settings if name.startswith(f"{tenant},")}
    served = {queue for worker in workers if worker.tenant == tenant for queue in worker.queues}
    claiming = [worker for worker in workers if not worker.draining]
    now = (await context.store.jobs.read([])).now
    errors = await median_errors(context)
    return [
        QueueCard(
            **asdict(_settings_now(settings.get(f"{tenant},{queue}") or NO_SETTINGS, now)),
            tenant=tenant,
            queue=queue,
            states=dict(states.get(queue, {})),
            workers=sum(1 for worker in claiming if _serves(worker, tenant, queue)),
            slots=sum(worker.slots for worker in claiming if _serves(worker, tenant, queue)),
            estimate_error=errors.get(queue),
            caps={level.name: level.cap for level in rules.tiers.get(f"{tenant},{queue}", [])},
        )
        for queue in sorted({*states, *own, *served})
    ]


async def with_waits(context: EngineContext, card: QueueCard, *, known: bool = True, brief: bool = False) -> QueueCard:
    """The queue with how long its jobs wait. A queue that no job is in costs nothing."""
    if not known or not (card.states.get(State.QUEUED) or card.states.get(State.RUNNING)):
        return replace(card, waits=QueueWaits(seconds=0.0 if known and card.workers else None))
    asked = GetQueueEstimate(tenant=card.tenant, queue=card.queue)
    estimate = await get_queue_estimate(context, asked, brief=brief)
    oldest = None
    if card.states.get(State.QUEUED):
        page = await context.store.jobs.list(ListScope(card.tenant, card.queue, frozenset({State.QUEUED})), None, 1)
        oldest = min((job.run_at or job.created_at for job in (record.job for record in page.records)), default=None)
    tiers = await _tier_use(context, card) if card.tiers else {}
    return replace(card, waits=QueueWaits(oldest=oldest, seconds=estimate.seconds, why=estimate.why, tiers=tiers))


async def _tier_use(context: EngineContext, card: QueueCard) -> dict[str, int]:
    scope = ListScope(card.tenant, card.queue, frozenset({State.RUNNING}))
    page = await context.store.jobs.list(scope, None, MOST_AT_ONCE)
    names = [tier.name for tier in card.tiers]
    found = [names.index(record.job.assigned) for record in page.records if record.job.assigned in names]
    return {name: sum(1 for at in found if at >= place) for place, name in enumerate(names)}


def _serves(worker: Worker, tenant: str, queue: str) -> bool:
    return queue in worker.queues and (tenant == EVERY_TENANT or worker.tenant in (tenant, EVERY_TENANT))


def _settings_now(settings: QueueSettings, now: datetime) -> QueueSettings:
    """Without a pause that has ended by itself."""
    return settings if is_paused(settings, now) else replace(settings, **asdict(Pause()))


# Tasks


async def get_task(context: EngineContext, operation: GetTask) -> TaskCard:
    options = (await read_task_options(context)).get(f"{operation.tenant}/{operation.task}")
    return TaskCard(**asdict(await _pause_of_task(context, operation)), options=options)


async def _pause_of_task(context: EngineContext, operation: GetTask | PauseTask) -> Pause:
    stored = (await context.store.records.list(TASKS)).get(f"{operation.tenant},{operation.task}")
    pause = Pause() if stored is None else _pause.decode(stored)
    return pause if is_paused(pause, (await context.store.jobs.read([])).now) else Pause()


async def list_tasks(context: EngineContext, operation: Tasks) -> list[TaskEntry]:
    now = (await context.store.jobs.read([])).now
    pauses = {name: _pause.decode(data) for name, data in (await context.store.records.list(TASKS)).items()}
    paused = {name.replace(",", "/", 1): pause for name, pause in pauses.items() if is_paused(pause, now)}
    options = await read_task_options(context)
    found = []
    for name in sorted({*paused, *options}):
        tenant, _, task = name.partition("/")
        if EVERY_TENANT in (operation.tenant, tenant) or operation.tenant == tenant:
            about = asdict(paused.get(name) or Pause())
            found.append(TaskEntry(**about, options=options.get(name), tenant=tenant, task=task))
    return found


async def pause_task(context: EngineContext, operation: PauseTask) -> Pause:
    name = f"{operation.tenant},{check_name(operation.task, at='task')}"
    before = await _pause_of_task(context, operation)
    since = paused_since(operation.pause, before, (await context.store.jobs.read([])).now)
    pause = replace(operation.pause, since=since) if since else Pause()
    await context.store.records.swap(TASKS, name, ANYTHING, _pack(pause) if pause.paused else None)
    await apply_config(context)
    return pause


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    PutLimit: put_limit,
    GetLimit: get_limit,
    Limits: list_limits,
    PauseLimit: pause_limit,
    RemoveLimit: remove_limit,
    ChangeQueue: change_queue,
    GetQueue: get_queue,
    Queues: list_queues,
    GetTask: get_task,
    Tasks: list_tasks,
    PauseTask: pause_task,
}
