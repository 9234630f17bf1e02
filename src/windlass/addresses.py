"""What an address means: a file, a Redis server or cluster. Opens what is there; chooses the concrete classes for it.

The drivers are imported where they are needed: a program uses one kind of store, and many only ask for help.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from windlass.config import DEFAULT_STORE
from windlass.engine import Engine, Settings
from windlass.model.errors import Invalid
from windlass.store import Store
from windlass.store.facts import Facts
from windlass.system import SystemChance, SystemClock

ONE_SERVER = ("redis", "rediss", "unix")


def file_of(address: str) -> str | None:
    """The file that an address names; null = it names a server."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address
    return rest if scheme == "sqlite" else None


async def open_store(address: str = DEFAULT_STORE) -> Store:
    """The store at an address: a file (`jobs.db`, `sqlite:///srv/jobs.db`, `:memory:`) or a server (`redis://…`)."""
    if (file := file_of(address)) is not None:
        from windlass.store.sqlite import SqliteStore  # noqa: PLC0415

        return SqliteStore.open(file, SystemClock())
    if address.partition("://")[0] in (*ONE_SERVER, "redis+cluster"):
        from windlass.store.redis import RedisStore  # noqa: PLC0415

        return await RedisStore.open(address)
    raise Invalid(f"{address!r} is no store: give a file, redis://, rediss://, unix:// or redis+cluster://", at="store")


async def open_blocking_store(address: str) -> Store | None:
    """The same for a caller without an event loop, driven to its end in one step; null = it has no such form."""
    if address.partition("://")[0] not in ONE_SERVER:
        return None
    from windlass.store.redis import RedisStore  # noqa: PLC0415

    return await RedisStore.open(address, blocking=True)


@asynccontextmanager
async def open_engine(address: str = DEFAULT_STORE, settings: Settings | None = None) -> AsyncIterator[Engine]:
    """An engine over the store at an address, closed at the end."""
    store = await open_store(address)
    try:
        yield Engine(store, SystemChance(), settings)
    finally:
        await store.close()


async def facts_of(engine: Engine, address: str) -> Facts:
    """What the store of an engine, opened at this address, says of itself."""
    if file_of(address) is not None:
        from windlass.store.sqlite import facts as of_file  # noqa: PLC0415

        return await of_file.facts(engine.desk.store)  # type: ignore[arg-type] # opened as one
    from windlass.store.redis import facts as of_server  # noqa: PLC0415

    return await of_server.facts(engine.desk.store)  # type: ignore[arg-type]
