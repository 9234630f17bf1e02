"""Quotas: kept for each tenant, and told. Whoever serves many tenants holds them to it."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from windlass.engine.desk import Desk
from windlass.model.operations import GetQuota, Operation, PutQuota
from windlass.model.quota import Quota

KIND = "quota"

_pack = msgspec.msgpack.Encoder().encode
_quota = msgspec.msgpack.Decoder(Quota)


async def put(desk: Desk, operation: PutQuota) -> Quota:
    await desk.shelf.put(KIND, operation.tenant, _pack(operation.quota))
    return operation.quota


async def get(desk: Desk, operation: GetQuota) -> Quota:
    kept = (await desk.shelf.shelved(KIND)).get(operation.tenant)
    return Quota() if kept is None else _quota.decode(kept)


ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = {PutQuota: put, GetQuota: get}
