"""`windlass serve`: HTTP, the periodic duties and workers (of an app, of handlers), in one program.

Puts the rooms together, like `daemon`; starts them in an order in which each finds what it needs, and ends them the
other way round.
"""

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from windlass.addresses import file_of, open_engine, shown
from windlass.daemon import SWITCH_EVERY
from windlass.dialect import s2, s3, s4
from windlass.engine import Engine, Settings
from windlass.engine.journal import JournalSettings, open_journaled
from windlass.engine.pushing import Pushing
from windlass.engine.task_options import WithTaskOptions
from windlass.engine.tokens import PATIENCE, Keyring
from windlass.engine.upkeep import keep_house
from windlass.lately import BRIEFLY
from windlass.local import check_private, local_token
from windlass.model.errors import Denied, Unavailable
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import Service, Tokens
from windlass.model.worker import Worker
from windlass.run_now import RunNow
from windlass.server import bodies
from windlass.server.application import application
from windlass.server.gate import Gate, WithLocal
from windlass.server.limits import Limits
from windlass.server.listening import Listening, Server, server
from windlass.server.quotas import Metered
from windlass.server.uploads import NoUploads
from windlass.system import SystemChance, SystemClock
from windlass.worker.addresses_allowed import read_allowed
from windlass.worker.delivering import Language, Network
from windlass.worker.frames import Ready
from windlass.worker.functions.checking import CheckedUploads
from windlass.worker.options import WorkerOptions
from windlass.worker.pool import Pool
from windlass.worker.push import Push
from windlass.worker.supervisor import NO_APP, Supervisor

log = logging.getLogger("windlass.server")

COLLECT_AFTER = 20_000
"""Objects after which the collector looks for cycles. Requests leave few: after 700, as it comes, it takes a twentieth
of the server's time.
"""

OURS = Language(bodies.encode, bodies.decode)

Met = Callable[[], Awaitable[None]]
"""Waits until the store has been there."""


class Serving(Struct, frozen=True, kw_only=True):
    """What an operator chooses for a server."""

    store: str
    data: Path
    """Its own folder: the token of this machine."""
    where: Listening = Listening()
    limits: Limits = Limits()
    settings: Settings = Settings()
    worker: WorkerOptions | None = None
    """The worker in the same program; null = none."""
    journal: Path | None = None
    """The folder of the journal in front of a store on another machine; null = none."""
    journal_settings: JournalSettings = JournalSettings()
    functions: WorkerOptions | None = None
    """Another one beside it, which runs what has a handler, of every tenant; null = none."""
    allow_upload: bool = False
    """Whether handlers are taken in."""
    notifications: s4.Habits = s4.Habits()
    client_jobs: s3.Terms = s3.Terms()
    reach: tuple[str, ...] = ()
    """Where jobs may be sent beyond the open network: networks, addresses or hosts, each with a port."""


async def serve(serving: Serving) -> None:
    """Until a signal ends it: TERM and INT let requests and running jobs finish, a second one does not wait."""
    sys.setswitchinterval(SWITCH_EVERY)
    clock = SystemClock()
    if serving.data.exists():
        check_private(serving.data)
    async with AsyncExitStack() as opened:
        pool = app = None
        if serving.worker is not None:
            pool = Pool(serving.worker.target)
            opened.push_async_callback(pool.close)
            app = await pool.start()
        log.info("store %s", shown(serving.store))
        folder = serving.journal if file_of(serving.store) is None else None
        opening = open_engine(serving.store, serving.settings, patient=folder is not None)
        engine = await opened.enter_async_context(opening)
        service: Service = engine
        met, check_ready = _at_once, engine.check_ready
        if folder is not None:
            journaled = open_journaled(engine, folder, clock, serving.journal_settings)
            service = accepting = await opened.enter_async_context(journaled)
            met, check_ready = accepting.met, accepting.check_ready
        if app is not None:
            engine.desk.reserved = frozenset(f"{app.tenant}/{task}" for task in app.tasks)
        limits = _limits(serving)
        stop = asyncio.Event()
        push = _push(service, engine, serving, clock)
        briefly = None if folder is None else BRIEFLY
        gate = await _gate(engine, serving, Keyring(engine.desk, clock, briefly or PATIENCE))
        optioned = WithTaskOptions(Metered(push, clock, briefly), engine.desk, clock, briefly)
        answers = _uploads(optioned, serving)
        also = [*s2.routes(answers, gate, limits), *s3.routes(answers, gate, limits, serving.client_jobs)]
        also += s4.routes(answers, gate, limits, serving.notifications, _recovery(serving, app))
        site = application(answers, engine, gate, limits, stop, also=also, check_ready=check_ready)
        http = server(site, serving.where)
        workers = []
        if pool is not None and app is not None and serving.worker is not None:
            workers.append(Supervisor(engine, pool, app, serving.worker, clock=clock, chance=SystemChance()))
        if serving.functions is not None:
            workers.append(_functions(engine, serving.functions, clock))
        _obey_signals(stop, http, workers)
        gc.collect()
        gc.freeze()  # what is here now stays: to look through it again and again would make everybody wait 50 ms
        gc.set_threshold(COLLECT_AFTER)
        async with asyncio.TaskGroup() as group:
            duties = [group.create_task(_then(met, keep_house, engine, clock)), group.create_task(_then(met, push.run))]
            group.create_task(_listen(http, stop))
            for worker in workers:
                group.create_task(_work(worker, met, stop))
            await stop.wait()
            for duty in duties:
                duty.cancel()


def _recovery(serving: Serving, app: Ready | None) -> RunNow | None:
    if app is None or serving.worker is None or not serving.notifications.recover:
        return None
    return RunNow(serving.worker.target, app.tenant)


def _limits(serving: Serving) -> Limits:
    bounds = serving.settings
    return replace(serving.limits, most_payload=bounds.most_payload, most_result=bounds.most_result)


def _uploads(service: Service, serving: Serving) -> Service:
    """The same, which takes no handlers in, or none that their own interpreter here cannot read."""
    if not serving.allow_upload:
        return NoUploads(service)
    options = None if serving.functions is None else serving.functions.functions
    return service if options is None else CheckedUploads(service, options)


async def _listen(http: Server, stop: asyncio.Event) -> None:
    try:
        await http.serve()
    finally:
        stop.set()  # a port that is taken ends the program


async def _at_once() -> None:
    """The store was there when it was opened."""


async def _then(met: Met, duty: Callable[..., Awaitable[None]], *about: object) -> None:
    """What needs the store begins when it is there."""
    await met()
    await duty(*about)


async def _work(worker: Supervisor, met: Met, stop: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(met()), asyncio.ensure_future(stop.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for one in waits:
        one.cancel()
    if not stop.is_set():
        await worker.run()


def _functions(engine: Engine, options: WorkerOptions, clock: SystemClock) -> Supervisor:
    named = replace(options, name=f"{options.name or socket.gethostname()}-functions")
    return Supervisor(engine, Pool(""), NO_APP, named, clock=clock, chance=SystemChance())


def _push(service: Service, engine: Engine, serving: Serving, clock: SystemClock) -> Push:
    network = Network(read_allowed(serving.reach))
    return Push(service, Pushing(engine.desk, clock), network, language_of, clock=clock, chance=SystemChance())


def language_of(worker: Worker) -> Language:
    """What a worker is spoken to in."""
    return s2.LANGUAGE if s2.is_spoken_by(worker) else OURS


async def _gate(engine: Engine, serving: Serving, keyring: Keyring) -> Gate:
    if serving.where.local:
        token = local_token(serving.data, SystemChance())
        log.info("serves %s; its token is in %s", serving.where.address, serving.data / "token")
        return Gate(WithLocal(keyring, token), local=not serving.where.socket)
    if await _has_no_tokens(engine):
        raise Denied(
            f"{serving.where.host} can be reached by others, and there are no tokens: add one first "
            "(windlass tokens add), or listen on 127.0.0.1",
            at="host",
        )
    log.info("serves %s", serving.where.address)
    return Gate(keyring, local=False)


async def _has_no_tokens(engine: Engine) -> bool:
    try:
        return not await engine(Tokens(tenant=EVERY_TENANT))
    except Unavailable:
        return False  # nobody is let in without one, whenever the store comes


def _obey_signals(stop: asyncio.Event, http: Server, workers: Sequence[Supervisor]) -> None:
    def end() -> None:
        http.force_exit = stop.is_set()
        http.should_exit = True
        for worker in workers:
            worker.stop()
        stop.set()

    def pause(paused: bool) -> None:
        for worker in workers:
            worker.pause(paused)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, end)
    loop.add_signal_handler(signal.SIGINT, end)
    if workers:
        loop.add_signal_handler(signal.SIGQUIT, workers[0].quit)
        loop.add_signal_handler(signal.SIGTSTP, pause, True)
        loop.add_signal_handler(signal.SIGCONT, pause, False)
