"""Puts the rooms together: the one place that chooses concrete classes.

Knows which store an address means, and that an engine wants a store, a clock and chance. Decides nothing else.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from windlass.config import DEFAULT_STORE
from windlass.engine import Engine, Settings
from windlass.engine.upkeep import keep_house
from windlass.model.errors import Invalid
from windlass.store import Store
from windlass.store.facts import Facts
from windlass.store.redis import RedisStore
from windlass.store.redis import facts as redis_facts
from windlass.store.sqlite import SqliteStore
from windlass.store.sqlite import facts as sqlite_facts
from windlass.system import SystemChance, SystemClock
from windlass.worker.options import WorkerOptions
from windlass.worker.pool import Pool
from windlass.worker.supervisor import Supervisor


def file_of(address: str) -> str | None:
    """The file that an address names; null = it names a server."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address
    return rest if scheme == "sqlite" else None


async def open_store(address: str = DEFAULT_STORE) -> Store:
    """The store at an address: a file (`jobs.db`, `sqlite:///srv/jobs.db`, `:memory:`) or a server (`redis://…`)."""
    if (file := file_of(address)) is not None:
        return SqliteStore.open(file, SystemClock())
    scheme = address.partition("://")[0]
    if scheme in ("redis", "rediss", "unix", "redis+cluster"):
        return await RedisStore.open(address)
    raise Invalid(f"{address!r} is no store: give a file, redis://, rediss://, unix:// or redis+cluster://", at="store")


async def open_blocking_store(address: str) -> Store | None:
    """The same for a caller without an event loop, driven to its end in one step; null if that store has no such form."""
    scheme = address.partition("://")[0]
    if scheme not in ("redis", "rediss", "unix"):
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


async def facts_of(engine: Engine) -> Facts | None:
    """What the store of an engine says of itself; null where there is nothing to say."""
    match engine.desk.store:
        case SqliteStore() as store:
            return await sqlite_facts.facts(store)
        case RedisStore() as store:
            return await redis_facts.facts(store)
        case _:
            return None


SWITCH_EVERY = 0.0005
"""Seconds after which a thread lets another in: the thread of an embedded store answers at once."""


async def work(options: WorkerOptions, address: str | None = None, settings: Settings | None = None) -> None:
    """A worker and the periodic duties, in one process, until a signal ends it. The address is the app's own, if not given.

    TERM and INT finish what runs; a second one gives it back; QUIT stops at once; TSTP stops claiming, CONT goes on.
    """
    sys.setswitchinterval(SWITCH_EVERY)
    pool = Pool(options.target)
    try:
        # The app is imported before the store is opened: only it knows which one, and a file is never carried over a fork.
        app = await pool.start()
        async with open_engine(address or app.store, settings) as engine:
            clock = SystemClock()
            worker = Supervisor(engine, pool, app, options, clock, SystemChance())
            _obey_signals(worker)
            upkeep = asyncio.create_task(keep_house(engine, clock))
            try:
                await worker.run()
            finally:
                upkeep.cancel()
    finally:
        await pool.close()


def _obey_signals(worker: Supervisor) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    loop.add_signal_handler(signal.SIGINT, worker.stop)
    loop.add_signal_handler(signal.SIGQUIT, worker.quit)
    loop.add_signal_handler(signal.SIGTSTP, worker.pause, True)
    loop.add_signal_handler(signal.SIGCONT, worker.pause, False)
