"""Answers to the operations on limits: kept per tenant, in force at once."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from windlass.engine import keeping
from windlass.engine.desk import Desk
from windlass.engine.groups import NO_KEY, allowance_name
from windlass.engine.regime import LIMITS
from windlass.engine.rules import MOST_SORTED, begun, put_in_force, resting, sort_out
from windlass.model.errors import Conflict, Missing
from windlass.model.limit import Limit, Pause, check_limit
from windlass.model.names import check_name
from windlass.model.operations import (
    GetLimit,
    LimitBucket,
    LimitCard,
    Limits,
    Operation,
    PauseLimit,
    PutLimit,
    RemoveLimit,
)
from windlass.store.flow import KEY, Usage

MOST_BUCKETS = 100
"""Buckets that are told of one limit."""

MOST_LIMITS = 1000
"""Limits of one tenant."""

_pack = msgspec.msgpack.Encoder().encode
_limit = msgspec.msgpack.Decoder(Limit)


async def put(desk: Desk, operation: PutLimit) -> LimitCard:
    check_name(operation.name, at="name")
    check_limit(operation.limit)
    before = await _kept(desk, operation.tenant)
    if operation.name not in before and len(before) >= MOST_LIMITS:
        raise Conflict(f"there are {MOST_LIMITS} limits already: remove one first", at="name")

    def changed(old: Limit | None) -> Limit:
        pause = asdict(_pause(old)) if old else {}
        return Limit(**asdict(operation.limit), name=operation.name, tenant=operation.tenant, **pause)

    limit = await _keep(desk, operation.tenant, operation.name, changed)
    return await _card(desk, limit, sorting=not await sort_out(desk, MOST_SORTED))


async def _keep(desk: Desk, tenant: str, name: str, change: Callable[[Limit | None], Limit]) -> Limit:
    """Change a limit and put it in force; if the store cannot have it, keep what was there before."""
    place = f"{tenant}/{name}"
    before, after = await keeping.change(
        desk, LIMITS, place, lambda kept: _pack(change(None if kept is None else _limit.decode(kept)))
    )
    try:
        await put_in_force(desk)
    except BaseException:
        await desk.shelf.swap(LIMITS, place, after, before)
        raise
    return _limit.decode(after or b"")


async def get(desk: Desk, operation: GetLimit) -> LimitCard:
    limit = await _find(desk, operation.tenant, operation.name)
    return await _card(desk, limit, sorting=bool((await desk.regimes.refreshed()).rules.sorting))


async def get_all(desk: Desk, operation: Limits) -> list[Limit]:
    now = (await desk.store.read([])).now
    return [_awake(limit, now) for limit in (await _kept(desk, operation.tenant)).values()]


async def pause(desk: Desk, operation: PauseLimit) -> LimitCard:
    now = (await desk.store.read([])).now

    def changed(old: Limit | None) -> Limit:
        if old is None:
            raise _no_limit(operation.name)
        since = begun(operation.pause, old, now)
        return replace(old, **asdict(replace(operation.pause, since=since) if since else Pause()))

    limit = await _keep(desk, operation.tenant, operation.name, changed)
    return await _card(desk, limit, sorting=False)


async def remove(desk: Desk, operation: RemoveLimit) -> None:
    limit = await _find(desk, operation.tenant, operation.name)
    await desk.shelf.put(LIMITS, allowance_name(limit), None)
    await put_in_force(desk)


async def _kept(desk: Desk, tenant: str) -> dict[str, Limit]:
    found = (_limit.decode(data) for _, data in sorted((await desk.shelf.shelved(LIMITS)).items()))
    return {limit.name: limit for limit in found if limit.tenant == tenant}


async def _find(desk: Desk, tenant: str, name: str) -> Limit:
    limit = (await _kept(desk, tenant)).get(name)
    if limit is None:
        raise _no_limit(name)
    return limit


def _no_limit(name: str) -> Missing:
    return Missing(f"there is no limit {name[:60]!r}", at="name")


def _pause(limit: Limit) -> Pause:
    return Pause(paused=limit.paused, until=limit.until, why=limit.why, since=limit.since)


def _awake(limit: Limit, now: datetime) -> Limit:
    """Without a pause that has ended by itself."""
    return limit if resting(limit, now) else replace(limit, **asdict(Pause()))


async def _card(desk: Desk, limit: Limit, *, sorting: bool) -> LimitCard:
    usage = await desk.flow.usage(allowance_name(limit), MOST_BUCKETS)
    now = (await desk.store.read([])).now
    limit = _awake(limit, now)
    buckets = [_bucket(one) for one in sorted(usage, key=lambda one: (-one.running, one.bucket))]
    return LimitCard(**asdict(limit), sorting=sorting, buckets=buckets)


def _bucket(usage: Usage) -> LimitBucket:
    _, equals, key = usage.bucket.partition(KEY)
    named = None if not equals else "" if key == NO_KEY else key
    return LimitBucket(key=named, running=usage.running, waiting=usage.waiting, free_at=usage.free_at)


ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = {
    PutLimit: put,
    GetLimit: get,
    Limits: get_all,
    PauseLimit: pause,
    RemoveLimit: remove,
}
