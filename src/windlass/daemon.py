"""Puts the rooms together: the one place that chooses concrete classes.

Knows which store an address means, and that an engine wants a store, a clock and chance. Decides nothing else.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from windlass.engine import Engine, Settings
from windlass.model.errors import Invalid
from windlass.store import Store
from windlass.store.redis import RedisStore
from windlass.store.sqlite import SqliteStore
from windlass.system import SystemChance, SystemClock

DEFAULT_STORE = "windlass.db"


async def open_store(address: str = DEFAULT_STORE) -> Store:
    """The store at an address: a file (`jobs.db`, `sqlite:///srv/jobs.db`, `:memory:`) or a server (`redis://…`)."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return SqliteStore.open(address, SystemClock())
    if scheme == "sqlite":
        return SqliteStore.open(rest, SystemClock())
    if scheme in ("redis", "rediss", "unix", "redis+cluster"):
        return await RedisStore.open(address)
    raise Invalid(f"{address!r} is no store: give a file, redis://, rediss://, unix:// or redis+cluster://", at="store")


@asynccontextmanager
async def open_engine(address: str = DEFAULT_STORE, settings: Settings | None = None) -> AsyncIterator[Engine]:
    """An engine over the store at an address, closed at the end."""
    store = await open_store(address)
    try:
        yield Engine(store, SystemChance(), settings)
    finally:
        await store.close()
