"""Tokens: made, listed, removed, and found for whoever comes with one."""

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec

from windlass.engine.desk import Desk
from windlass.lately import Lately
from windlass.model.errors import Missing
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import AddToken, Operation, RemoveToken, Tokens
from windlass.model.ports import Clock
from windlass.model.token import PREFIX, Issued, Locked, Pass, Token, key_of

KIND = "token"

REMEMBER = 0.5
"""Seconds that tokens are taken for what they were: a removed one is refused after at most so long."""

PATIENCE = 0.5
"""Seconds that a look at the tokens is waited for, if some are known."""

_pack = msgspec.msgpack.Encoder().encode
_locked = msgspec.msgpack.Decoder(Locked)


async def add(desk: Desk, operation: AddToken) -> Issued:
    key = desk.chance.token().hex()[:12]
    token = f"{PREFIX}_{key}_{b''.join(desk.chance.token() for _ in range(4)).hex()}"
    now = (await desk.store.read([])).now
    expires_at = None if operation.expires is None else now + timedelta(seconds=operation.expires)
    said: dict[str, Any] = {
        "key": key,
        "tenant": operation.tenant,
        "scopes": operation.scopes,
        "note": operation.note,
        "created_at": now,
        "expires_at": expires_at,
    }
    locked = Locked(**said, digest=_digest(token))
    await desk.shelf.put(KIND, key, _pack(locked))
    for learn in desk.on_token:
        learn(key, locked)
    return Issued(**said, token=token)


async def tokens(desk: Desk, operation: Tokens) -> list[Token]:
    known = [_locked.decode(data) for data in (await desk.shelf.shelved(KIND)).values()]
    return [
        msgspec.convert(one, Token, from_attributes=True)
        for one in sorted(known, key=lambda one: (one.created_at, one.key))
        if operation.tenant in (EVERY_TENANT, one.tenant)
    ]


async def remove(desk: Desk, operation: RemoveToken) -> None:
    mine = {one.key for one in await tokens(desk, Tokens(tenant=operation.tenant))}
    if operation.key not in mine:
        raise Missing(f"there is no token {operation.key[:60]}", at="key")
    await desk.shelf.put(KIND, operation.key, None)
    for learn in desk.on_token:
        learn(operation.key, None)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class Keyring:
    """Finds tokens, asking the store now and then. What is added or removed in this process is known at once.

    While the store does not answer, those that it told of last are still good: jobs may be accepted without it.
    """

    def __init__(self, desk: Desk, clock: Clock, patience: float = PATIENCE) -> None:
        self._desk = desk
        self._lately = Lately(self._look, clock, REMEMBER, patience)
        self._changes = 0
        self._changed: dict[str, tuple[int, Locked | None]] = {}
        """What was changed here since the last look began; each with the number of its change."""
        desk.on_token.append(self._learn)

    def _learn(self, key: str, locked: Locked | None) -> None:
        self._changes += 1
        self._changed[key] = self._changes, locked

    async def find(self, token: str) -> Pass | None:
        key = key_of(token) or ""
        known = await self._lately.known()
        locked = self._changed[key][1] if key in self._changed else known.get(key)
        if locked is None or not hmac.compare_digest(locked.digest, _digest(token)):
            return None
        return Pass(locked.tenant, frozenset(locked.scopes))

    async def _look(self) -> dict[str, Locked]:
        """All tokens that are good now, by the store's clock."""
        seen = self._changes
        now = (await self._desk.store.read([])).now
        locked = [_locked.decode(data) for data in (await self._desk.shelf.shelved(KIND)).values()]
        self._changed = {key: change for key, change in self._changed.items() if change[0] > seen}
        return {one.key: one for one in locked if one.expires_at is None or one.expires_at > now}


ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = {
    AddToken: add,
    Tokens: tokens,
    RemoveToken: remove,
}
