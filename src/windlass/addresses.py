"""What an address means: a file, Redis (a server, sentinels, a cluster), or a Windlass server. Opens what is there.

The drivers are imported where they are needed: a program uses one kind of store, and many only ask for help.
"""

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from windlass.config import DEFAULT_STORE, data_folder, is_server
from windlass.engine import Engine, Settings
from windlass.local_token import LOOPBACK, known_token
from windlass.model.errors import Invalid
from windlass.model.names import without_password
from windlass.model.operations import Service
from windlass.store.optional import StoreInfo
from windlass.store.protocol import Store
from windlass.system import SystemClock, SystemRandomness, local_user

if TYPE_CHECKING:
    from windlass.store.redis.urls import Replicas

ONE_SERVER = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
"""One at a time: sentinels know which."""
REDIS = (*ONE_SERVER, "redis+cluster")
MEMORY = ":memory:"
"""In the place of a file: a private store in memory."""
_MISTAKEN = re.compile(r"(rediss?|unix|https?)(\+\w+)?:|[\w.-]+:\d+(/\d*)?$")
"""What is hardly meant as the name of a file."""


def file_of(address: str) -> str | None:
    """The file that an address names; null = it names a server, of Redis or of Windlass."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        if _MISTAKEN.match(address):
            raise Invalid(
                f"is {without_password(address)!r} a server? Write redis://HOST:PORT, or ./NAME for a file", at="store"
            )
        return address
    if scheme == "sqlite":
        return rest
    if scheme not in REDIS and not is_server(address):
        raise _no_store(address)
    return None


def _no_store(address: str) -> Invalid:
    forms = f"{', '.join(f'{scheme}://' for scheme in REDIS[:-1])} or {REDIS[-1]}://"
    return Invalid(f"{without_password(address)!r} is no store: give a file, {forms}", at="store")


def shown(address: str) -> str:
    """An address as people may read it: a file with its folders, a server without passwords."""
    if "://" not in address and address != MEMORY:
        return os.path.abspath(address)  # noqa: PTH100 - as it was said, links and all
    return without_password(address)


def identity(address: str) -> str:
    """The same text for every way to write the address of one store or server: no links, login or options."""
    if is_server(address):
        return without_password(address).rstrip("/")
    if (file := file_of(address)) is not None:
        return file if file == MEMORY else os.path.realpath(file)
    from windlass.store.redis.urls import read_url  # noqa: PLC0415

    target = read_url(address)
    servers = [target.address] if target.group is None else target.group.sentinels
    hosts = [one.path or f"{'localhost' if one.host in LOOPBACK else one.host}:{one.port}" for one in servers]
    name = "" if target.group is None else target.group.name
    return f"redis {','.join(sorted(hosts))} {name} {target.address.db}"


async def open_store(address: str = DEFAULT_STORE, settings: Settings | None = None, *, patient: bool = False) -> Store:
    """The store at an address: a file (`jobs.db`, `sqlite:///srv/jobs.db`, `:memory:`) or a server (`redis://…`).

    `patient`: a server that is not there yet is no fault.
    """
    if (file := file_of(address)) is not None:
        return _open_file(file, settings)
    if is_server(address):
        raise _no_store(address)
    from windlass.store.redis import RedisStore  # noqa: PLC0415

    return await RedisStore.open(
        address, chance=SystemRandomness(), patient=patient, replicas=_replicas(settings or Settings())
    )


def _open_file(file: str, settings: Settings | None, *, blocking: bool = False) -> Store:
    if settings is not None and settings.replicas:
        raise Invalid("a file has no replicas: they are for a Redis store", at="replicas")
    from windlass.store.sqlite import SqliteStore  # noqa: PLC0415

    return SqliteStore.open(file, SystemClock(), blocking=blocking)


def _replicas(settings: Settings) -> "Replicas | None":
    """Whom new jobs wait for, if that is set; else the address may say it."""
    if settings.replicas is None:
        return None
    from windlass.store.redis.urls import checked_replicas  # noqa: PLC0415

    return checked_replicas(settings.replicas, settings.replicated_within, synced=settings.replicas_synced)


async def open_blocking_store(address: str, settings: Settings | None = None) -> Store | None:
    """The same for a caller without an event loop, driven to its end in one step; null = it has no such form."""
    if (file := file_of(address)) is not None:
        return None if file == MEMORY else _open_file(file, settings, blocking=True)
    if address.partition("://")[0] not in ONE_SERVER:
        return None
    from windlass.store.redis import RedisStore  # noqa: PLC0415

    replicas = _replicas(settings or Settings())
    return await RedisStore.open(address, chance=SystemRandomness(), blocking=True, replicas=replicas)


@asynccontextmanager
async def open_engine(
    address: str = DEFAULT_STORE, settings: Settings | None = None, *, patient: bool = False
) -> AsyncIterator[Engine]:
    """An engine over the store at an address, closed at the end."""
    async with AsyncExitStack() as stack:
        yield await _enter_engine(stack, address, settings, patient=patient)


@asynccontextmanager
async def open_service(
    address: str = DEFAULT_STORE,
    settings: Settings | None = None,
    token: str | None = None,
    journal: str | None = None,
) -> AsyncIterator[Service]:
    """Whatever answers operations at an address: a client of a server, or an engine over a store.

    `journal`: the folder of a journal in front of the store.
    """
    async with AsyncExitStack() as stack:
        yield await enter_service(stack, address, settings, token, journal)


async def enter_service(
    stack: AsyncExitStack,
    address: str,
    settings: Settings | None = None,
    token: str | None = None,
    journal: str | None = None,
) -> Service:
    """The same, closed with a stack.

    Without a journal no generator waits for the end: an event loop that ends closes all of them at once, and so breaks
    one that is nested in another.
    """
    if is_server(address):
        from windlass.client import Client  # noqa: PLC0415

        return await stack.enter_async_context(Client(address, token or token_for(address, os.environ)))
    engine = await _enter_engine(stack, address, settings, patient=journal is not None)
    if journal is None:
        return engine
    from windlass.engine.journal import open_journaled  # noqa: PLC0415

    return await stack.enter_async_context(open_journaled(engine, Path(journal), SystemClock()))


async def _enter_engine(stack: AsyncExitStack, address: str, settings: Settings | None, *, patient: bool) -> Engine:
    store = await open_store(address, settings, patient=patient)
    stack.push_async_callback(store.close)
    return Engine(store, SystemRandomness(), settings, user=local_user())


def token_for(address: str, environ: Mapping[str, str]) -> str:
    """The token that goes with a server: WINDLASS_TOKEN, or that of this machine if the server is on it."""
    if said := environ.get("WINDLASS_TOKEN"):
        return said
    local = address.startswith("http+unix://") or urlsplit(address).hostname in LOOPBACK
    return (known_token(data_folder(environ)) or "") if local else ""


async def scrub(engine: Engine, address: str) -> list[str]:
    """What does not add up in the store of an engine, opened at this address. Reads all of it."""
    if file_of(address) is not None:
        from windlass.store.sqlite import scrub as of_file  # noqa: PLC0415

        return await of_file.scrub(engine.context.store)  # type: ignore[arg-type] # opened as one
    from windlass.store.redis import scrub as of_server  # noqa: PLC0415

    return await of_server.scrub(engine.context.store)  # type: ignore[arg-type]


async def quick_check(engine: Engine) -> list[str] | None:
    """What is damaged in the pages of the file of an engine; null = it is too large for that."""
    from windlass.store.sqlite import scrub as of_file  # noqa: PLC0415

    return await of_file.quick_check(engine.context.store)  # type: ignore[arg-type] # opened as one


async def facts_of(engine: Engine, address: str) -> StoreInfo:
    """What the store of an engine, opened at this address, says of itself."""
    if file_of(address) is not None:
        from windlass.store.sqlite import facts as file_facts  # noqa: PLC0415

        return await file_facts(engine.context.store)  # type: ignore[arg-type] # opened as one
    from windlass.store.redis import scrub as of_server  # noqa: PLC0415

    return await of_server.facts(engine.context.store)  # type: ignore[arg-type]
