"""Programs that run until they are told to stop: puts their rooms together and owns their signals."""

import asyncio
import gc
import itertools
import logging
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec.structs import replace

from windlass.addresses import file_of, open_service, shown
from windlass.config import DEFAULT_STORE
from windlass.engine import Engine, Settings
from windlass.engine.upkeep import keep_house
from windlass.model.errors import Unavailable
from windlass.model.names import DEFAULT_TENANT
from windlass.model.operations import Service
from windlass.store import NotLetIn
from windlass.system import SystemChance, SystemClock
from windlass.worker.claims import TRY_AGAIN
from windlass.worker.options import WorkerOptions
from windlass.worker.pool import Pool
from windlass.worker.supervisor import NO_APP, Supervisor

log = logging.getLogger("windlass.worker")

SWITCH_EVERY = 0.0005
"""Seconds after which a thread lets another in: the thread of an embedded store answers at once."""


async def work(
    options: WorkerOptions,
    address: str | None = None,
    settings: Settings | None = None,
    *,
    tenant: str | None = None,
) -> None:
    """A worker and the periodic duties, in one process, until a signal ends it. Without address or tenant: the app's.

    TERM and INT finish what runs; a second one gives it back; QUIT stops at once; TSTP stops claiming, CONT goes on.
    """
    sys.setswitchinterval(SWITCH_EVERY)
    pool = Pool(options.target)
    try:
        # The app is imported before the store is opened: only it knows which one, and no file is carried over a fork.
        app = await pool.start() if options.target else replace(NO_APP, store=DEFAULT_STORE, tenant=DEFAULT_TENANT)
        app = replace(app, store=address or app.store, tenant=tenant or app.tenant)
        log.info("store %s, tenant %s", shown(app.store), app.tenant)
        async with _opened(app.store, settings, app.token) as service:
            if service is None:
                return
            clock = SystemClock()
            worker = Supervisor(service, pool, app, options, clock=clock, chance=SystemChance())
            _obey_signals(worker)
            _spare_what_stays()
            # A server keeps house itself.
            house = keep_house(service, clock, briefly=options.burst) if isinstance(service, Engine) else None
            upkeep = asyncio.create_task(house) if house is not None else None
            try:
                await worker.run()
            finally:
                if upkeep is not None:
                    upkeep.cancel()
    finally:
        await pool.close()


@asynccontextmanager
async def _opened(address: str, settings: Settings | None, token: str | None) -> AsyncIterator[Service | None]:
    """The service at an address, as soon as it is there; null = a signal came first.

    A file is there or is not: only a server may come later. One that answers and refuses us would go on refusing.
    """
    told_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)
    async with AsyncExitStack() as stack:
        for tries in itertools.count():
            try:
                service = await stack.enter_async_context(open_service(address, settings, token))
            except Unavailable as fault:
                if isinstance(fault, NotLetIn) or file_of(address) is not None:
                    raise
                if not tries:
                    log.warning("cannot claim yet, waits for the store: %s", fault)
                if await _comes(told_to_stop, within=TRY_AGAIN[min(tries, len(TRY_AGAIN) - 1)]):
                    yield None
                    return
            else:
                if tries:
                    log.info("the store is there")
                yield service
                return


def _spare_what_stays() -> None:
    """Leave out of later collections what is there by now: they would go through all of it while a job waits."""
    gc.collect()
    gc.freeze()


async def _comes(signal_: asyncio.Event, within: float) -> bool:
    try:
        await asyncio.wait_for(signal_.wait(), within)
    except TimeoutError:
        return False
    return True


def _obey_signals(worker: Supervisor) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    loop.add_signal_handler(signal.SIGINT, worker.stop)
    loop.add_signal_handler(signal.SIGQUIT, worker.quit)
    loop.add_signal_handler(signal.SIGTSTP, worker.pause, True)
    loop.add_signal_handler(signal.SIGCONT, worker.pause, False)
