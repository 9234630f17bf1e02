"""`windlass serve`: HTTP, the periodic duties and workers (of an app, of handlers) in one process.

Puts the rooms together, like `run_worker`; starts them in an order in which each finds what it needs, and stops them in
reverse.
"""

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from windlass.addresses import file_of, open_engine, shown
from windlass.cached import BRIEFLY
from windlass.dialect import asy, s2, s3, s4
from windlass.dialect.aliases import KeepTimes, WithKeepTimes
from windlass.engine import Engine, Settings
from windlass.engine.journal import JournalSettings, open_journaled
from windlass.engine.push_workers import PushWorkers
from windlass.engine.records import PATIENCE, Keyring, WithTaskOptions
from windlass.engine.upkeep import run_upkeep
from windlass.local_token import check_private, known_token, local_token
from windlass.model.errors import Denied, Unavailable
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import Service, Tokens
from windlass.model.worker import Worker
from windlass.run_now import RunNow
from windlass.run_worker import SWITCH_EVERY, kept_runs
from windlass.server import bodies, dashboard
from windlass.server.application import application
from windlass.server.auth import LOCAL_KEY, Auth, TokensAndLocal
from windlass.server.dashboard import Sessions
from windlass.server.filters import NoUploads, QuotaFilter
from windlass.server.http_server import ListenAddress, Server, check_free, server
from windlass.server.requests import RequestLimits
from windlass.system import SystemClock, SystemRandomness
from windlass.worker import WorkerOptions
from windlass.worker.contexts.frames import AppInfo
from windlass.worker.contexts.processes import ProcessManager
from windlass.worker.functions.languages import CheckedUploads
from windlass.worker.network import Network, read_allowed
from windlass.worker.push import BodyCodec, Push
from windlass.worker.supervisor import NO_APP, Supervisor, introduction

log = logging.getLogger("windlass.server")

COLLECT_AFTER = 20_000
"""Objects after which the garbage collector looks for cycles. Requests leave few: with the default of 700 it takes a
twentieth of the server's time.
"""

OURS = BodyCodec(bodies.encode, bodies.decode)

Met = Callable[[], Awaitable[None]]
"""Waits until the store has answered once."""


class ServerOptions(Struct, frozen=True, kw_only=True):
    """One server's settings."""

    store: str
    data: Path
    """The server's own folder, with the token of this machine."""
    where: ListenAddress = ListenAddress()
    limits: RequestLimits = RequestLimits()
    settings: Settings = Settings()
    outbox: str | None = None
    """A file whose jobs it queues; null = none."""
    worker: WorkerOptions | None = None
    """The worker in the same process; null = none."""
    journal: Path | None = None
    """The folder of the journal in front of a store on another machine; null = none."""
    journal_settings: JournalSettings = JournalSettings()
    functions: WorkerOptions | None = None
    """Another worker, which runs jobs with a handler, of every tenant; null = none."""
    allow_upload: bool = False
    """Whether handlers may be uploaded."""
    notifications: s4.NotificationOptions = s4.NotificationOptions()
    client_jobs: s3.ClientJobOptions = s3.ClientJobOptions()
    drawing: asy.AsyOptions = asy.AsyOptions()
    reach: tuple[str, ...] = ()
    """Where jobs may be sent beyond public addresses: networks, addresses or hosts, each with a port."""


async def serve(options: ServerOptions) -> None:
    """Until a signal ends it: TERM and INT let requests and running jobs finish, a second one does not wait."""
    sys.setswitchinterval(SWITCH_EVERY)
    clock = SystemClock()
    check_free(options.where)
    if options.data.exists():
        check_private(options.data)
    async with AsyncExitStack() as opened:
        processes = app = None
        if options.worker is not None:
            processes = ProcessManager(options.worker.target)
            opened.push_async_callback(processes.close)
            app = await processes.start()
        log.info("store %s", shown(options.store))
        folder = options.journal if file_of(options.store) is None else None
        opening = open_engine(options.store, options.settings, patient=folder is not None)
        engine = await opened.enter_async_context(opening)
        service: Service = engine
        met, check_ready = _at_once, engine.check_ready
        if folder is not None:
            journaled = open_journaled(engine, folder, clock, options.journal_settings)
            service = accepting = await opened.enter_async_context(journaled)
            met, check_ready = accepting.met, accepting.check_ready
        if app is not None:
            engine.context.reserved = frozenset(f"{app.tenant}/{task}" for task in app.tasks)
        limits = _limits(options)
        stop = asyncio.Event()
        push = _push(service, engine, options, clock)
        briefly = None if folder is None else BRIEFLY
        auth = await _auth(engine, options, Keyring(engine.context, clock, briefly or PATIENCE))
        filtered = partial(_filtered, QuotaFilter(push, clock, briefly), engine, options, clock, patience=briefly)
        answers, client_jobs, notifications = filtered(), options.client_jobs, options.notifications
        also = [
            *s2.routes(answers, auth, limits),
            *s3.routes(filtered(times=client_jobs), auth, limits, client_jobs),
            *s4.routes(filtered(times=notifications), auth, limits, notifications, _recovery(options, app)),
        ]
        drawing = asy.Asy(answers, engine, auth, clock, options.drawing, stopping=stop).all()
        also_routes = [*drawing, *dashboard.routes(auth, _sessions(options, auth, clock))]
        site = application(
            answers, engine, auth, limits, stop, also=also, also_routes=also_routes, check_ready=check_ready
        )
        http = server(site, options.where)
        workers = []
        if processes is not None and app is not None and options.worker is not None:
            workers.append(_worker(engine, processes, app, options.worker, options))
        if options.functions is not None:
            workers.append(_functions(engine, options.functions, options, clock))
        _obey_signals(stop, http, workers)
        _collect_rarely()
        async with asyncio.TaskGroup() as group:
            chosen = _duties(options, service, engine, push=push, met=met, clock=clock)
            duties = [group.create_task(one) for one in chosen]
            group.create_task(_listen(http, stop))
            for worker in workers:
                group.create_task(_work(worker, met, stop))
            await stop.wait()
            for duty in duties:
                duty.cancel()


def _duties(
    options: ServerOptions, service: Service, engine: Engine, *, push: Push, met: Met, clock: SystemClock
) -> list[Coroutine[Any, Any, None]]:
    found = [_then(met, run_upkeep, engine, clock), _then(met, push.run)]
    if options.outbox is not None:
        from windlass.run_outbox import OutboxFile  # noqa: PLC0415 - most servers have none

        found.append(OutboxFile(options.outbox, EVERY_TENANT).relay(service, clock))
    return found


def _collect_rarely() -> None:
    gc.collect()
    gc.freeze()  # what is here now stays: collecting it again and again would make all requests wait 50 ms
    gc.set_threshold(COLLECT_AFTER)


def _recovery(options: ServerOptions, app: AppInfo | None) -> RunNow | None:
    if app is None or options.worker is None or not options.notifications.recover:
        return None
    return RunNow(options.worker.target, app.tenant)


def _limits(options: ServerOptions) -> RequestLimits:
    bounds = options.settings
    return replace(options.limits, most_payload=bounds.most_payload, most_result=bounds.most_result)


def _filtered(
    service: Service,
    engine: Engine,
    options: ServerOptions,
    clock: SystemClock,
    *,
    patience: float | None,
    times: KeepTimes | None = None,
) -> Service:
    """The service as routes see it: task options, keep times of a dialect, and a check of uploaded handlers."""
    if times is not None:
        service = WithKeepTimes(service, times, engine.context.flow_config, clock, patience)
    service = WithTaskOptions(service, engine.context, clock, patience)
    if not options.allow_upload:
        return NoUploads(service)
    functions = None if options.functions is None else options.functions.functions
    return CheckedUploads(service, functions, Network(read_allowed(options.reach)))


async def _listen(http: Server, stop: asyncio.Event) -> None:
    try:
        await http.serve()
    finally:
        stop.set()  # a port that is in use ends the program


async def _at_once() -> None:
    """The store answered when it was opened."""


async def _then(met: Met, duty: Callable[..., Awaitable[None]], *about: object) -> None:
    """Start a duty once the store has answered."""
    await met()
    await duty(*about)


async def _work(worker: Supervisor, met: Met, stop: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(met()), asyncio.ensure_future(stop.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for one in waits:
        one.cancel()
    if not stop.is_set():
        await worker.run()


def _functions(engine: Engine, options: WorkerOptions, server: ServerOptions, clock: SystemClock) -> Supervisor:
    named = replace(options, name=f"{options.name or socket.gethostname()}-functions")
    log.info("%s", introduction(NO_APP, named, shown(server.store)))
    return Supervisor(engine, ProcessManager(""), NO_APP, named, clock=clock, chance=SystemRandomness())


def _worker(
    engine: Engine, processes: ProcessManager, app: AppInfo, options: WorkerOptions, server: ServerOptions
) -> Supervisor:
    """The worker for the tasks of the server's app."""
    log.info("%s", introduction(app, options, shown(server.store)))
    kept = kept_runs(server.store, app.tenant, server.data)
    return Supervisor(engine, processes, app, options, clock=SystemClock(), chance=SystemRandomness(), kept=kept)


def _push(service: Service, engine: Engine, options: ServerOptions, clock: SystemClock) -> Push:
    network = Network(read_allowed(options.reach))
    return Push(
        service, PushWorkers(engine.context, clock), network, language_of, clock=clock, chance=SystemRandomness()
    )


def language_of(worker: Worker) -> BodyCodec:
    """How bodies are encoded for a worker."""
    return s2.LANGUAGE if s2.is_worker(worker) else OURS


async def _auth(engine: Engine, options: ServerOptions, keyring: Keyring) -> Auth:
    if options.where.local:
        token = local_token(options.data, SystemRandomness())
        log.info("serves %s; its token is in %s", options.where.url, options.data / "token")
        return Auth(TokensAndLocal(keyring, token), local=not options.where.socket)
    if await _has_no_tokens(engine):
        raise Denied(
            f"{options.where.host} can be reached from other machines, and there are no tokens: add one first "
            "(windlass tokens add), or listen on 127.0.0.1",
            at="host",
        )
    log.info("serves %s", options.where.url)
    return Auth(keyring, local=False)


def _sessions(options: ServerOptions, auth: Auth, clock: SystemClock) -> Sessions:
    """Those of the dashboard. On this machine they outlive a restart, and a link signs in its owner."""
    chance = SystemRandomness()
    own = known_token(options.data) if options.where.local else None
    secret = own.encode() if own else b"".join(chance.token() for _ in range(4))
    auth.sessions = sessions = Sessions(secret, clock, chance, auth.tokens.find_key)
    if own and not options.where.socket:
        log.info("dashboard %s%s (signs in once)", options.where.url, sessions.link(LOCAL_KEY))
    elif not options.where.socket:
        log.info("dashboard %s/", options.where.url)
    return sessions


async def _has_no_tokens(engine: Engine) -> bool:
    try:
        return not await engine(Tokens(tenant=EVERY_TENANT))
    except Unavailable:
        return False  # without a token every request is refused, whenever the store comes back


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
