"""`windlass worker`: a worker and the periodic duties in one process.

Puts the packages together, chooses concrete classes and owns the signals.
"""

import asyncio
import gc
import itertools
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from windlass.addresses import enter_service, file_of, identity, shown
from windlass.config import DEFAULT_STORE, data_folder
from windlass.engine import Engine, Settings
from windlass.engine.upkeep import run_upkeep
from windlass.model.errors import Unavailable
from windlass.model.names import DEFAULT_TENANT
from windlass.model.operations import Service
from windlass.store.data import AccessRefused
from windlass.system import SystemClock, SystemRandomness
from windlass.worker import WorkerOptions
from windlass.worker.claims import TRY_AGAIN
from windlass.worker.contexts.kept import KeptRuns
from windlass.worker.contexts.processes import ProcessManager, describe_shared
from windlass.worker.supervisor import NO_APP, Supervisor, introduction

log = logging.getLogger("windlass.worker")

T = TypeVar("T")

CLOSE_WITHIN = 0.5
"""Seconds in which a store that answers is closed."""

SWITCH_EVERY = 0.0005
"""Seconds after which a thread yields to another: the thread of an embedded store must answer at once."""


async def work(
    options: WorkerOptions,
    address: str | None = None,
    settings: Settings | None = None,
    *,
    tenant: str | None = None,
    outbox: str | None = None,
) -> None:
    """A worker and the periodic duties, in one process, until a signal ends it. Without address or tenant: the app's.
    `outbox`: a file whose jobs it queues.

    TERM and INT finish what runs; a second one releases it; QUIT exits at once; TSTP stops claiming, CONT resumes.
    """
    sys.setswitchinterval(SWITCH_EVERY)
    signals = _Signals()
    pool = ProcessManager(options.target)
    try:
        # The app is imported before the store is opened: only it knows which one, and no file passes through a fork.
        app = replace(NO_APP, store=DEFAULT_STORE, tenant=DEFAULT_TENANT)
        if options.target:
            imported = await signals.unless_stopped(pool.start())
            if imported is None:
                return
            app = imported
            if app.connections:
                log.warning("%s shares its connections to %s: %s", options.target, *describe_shared(app.connections))
        app = replace(app, store=address or app.store, tenant=tenant or app.tenant)
        log.info("%s", introduction(app, options, shown(app.store)))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_closed, opened := AsyncExitStack())
            service = await signals.unless_stopped(_opened(opened, app.store, settings, app.token))
            if service is None:
                return
            clock = SystemClock()
            kept = kept_runs(app.store, app.tenant, data_folder(os.environ))
            worker = Supervisor(service, pool, app, options, clock=clock, chance=SystemRandomness(), kept=kept)
            signals.obeyed_by(worker)
            _spare_what_stays()
            duties: list[asyncio.Task[None]] = []
            if isinstance(service, Engine):  # a server runs the duties itself
                duties.append(asyncio.create_task(run_upkeep(service, clock, short_lived=options.burst)))
            if outbox is not None:
                from windlass.run_outbox import OutboxFile  # noqa: PLC0415 - most workers have none

                duties.append(asyncio.create_task(OutboxFile(outbox, app.tenant).relay(service, clock)))
            try:
                await worker.run()
            finally:
                for duty in duties:
                    duty.cancel()
    finally:
        await pool.close()


def kept_runs(store: str, tenant: str, data: Path) -> KeptRuns | None:
    """Where runs of this store are that outlive their workers; null = there can be no folder for them."""
    try:
        return KeptRuns(data / "runs", identity(store), tenant)
    except OSError as fault:
        log.warning("no job outlives this worker: %s; name a folder for them with WINDLASS_DATA", fault)
        return None


async def _closed(stack: AsyncExitStack) -> None:
    """Close it, without waiting for a store that does not answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_WITHIN):
            await stack.aclose()


async def _opened(stack: AsyncExitStack, address: str, settings: Settings | None, token: str | None) -> Service:
    """The service at an address, as soon as it is there; closed with the stack.

    A file exists or does not: only a server may come later. One that answers and refuses us will go on refusing.
    """
    for tries in itertools.count():
        try:
            service = await enter_service(stack, address, settings, token)
        except Unavailable as fault:
            if isinstance(fault, AccessRefused) or file_of(address) is not None:
                raise
            if not tries:
                log.warning("cannot claim yet, waits for the store: %s", fault)
            await asyncio.sleep(TRY_AGAIN[min(tries, len(TRY_AGAIN) - 1)])
        else:
            if tries:
                log.info("the store answers")
            return service
    raise AssertionError


def _spare_what_stays() -> None:
    """Exempt what exists now from later garbage collections: they would go through all of it while a job waits."""
    gc.collect()
    gc.freeze()


class _Signals:
    """The signals sent to this process, from its start."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopping.set)

    @property
    def stopped(self) -> bool:
        return self._stopping.is_set()

    async def unless_stopped(self, what: Coroutine[Any, Any, T]) -> T | None:
        """Its result; null = a signal came first."""
        task, stopping = asyncio.create_task(what), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stopping.cancel()

    def obeyed_by(self, worker: Supervisor) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, worker.stop)
        self._loop.add_signal_handler(signal.SIGQUIT, worker.quit)
        self._loop.add_signal_handler(signal.SIGTSTP, worker.pause, True)
        self._loop.add_signal_handler(signal.SIGCONT, worker.pause, False)
        if self.stopped:
            worker.stop()
