"""`windlass serve` and `windlass openapi`: the queue over HTTP, and its OpenAPI document."""

import os
from typing import Annotated, Any

from cyclopts import Group
from msgspec.structs import asdict, replace

from windlass import config
from windlass.cli import console
from windlass.cli.options import flag, option
from windlass.cli.target import HERE, Target
from windlass.cli.worker import (
    HANDLERS,
    NO_HANDLER_FLAGS,
    SLOTS,
    HandlerFlags,
    Outbox,
    run_forever,
    worker_flags,
    worker_options,
)
from windlass.dialect import s2, s3, s4
from windlass.dialect.asy import AsyOptions
from windlass.dialect.s3 import ClientJobOptions
from windlass.dialect.s4 import NotificationOptions
from windlass.engine import Settings
from windlass.engine.journal import JournalSettings
from windlass.model.errors import Invalid
from windlass.run_server import ServerOptions
from windlass.run_server import serve as run
from windlass.server.application import VERSION
from windlass.server.http_server import ListenAddress
from windlass.server.openapi import document

SERVER = Group("Server", sort_key=10)
WORKER = Group("Built-in worker", sort_key=11)


def serve(
    *,
    host: Annotated[str | None, option("HOST", "The address to listen on (127.0.0.1).", group=SERVER)] = None,
    port: Annotated[int | None, option("N", "The port (7717).", group=SERVER)] = None,
    socket: Annotated[str | None, option("PATH", "Listen on a unix socket instead.", group=SERVER)] = None,
    data: Annotated[
        str | None, option("DIR", "The folder of its token and journal (~/.local/state/windlass).", group=SERVER)
    ] = None,
    journal: Annotated[
        bool | None,
        flag("Journal accepted jobs on disk, in front of a Redis store (yes).", negative="--no-journal", group=SERVER),
    ] = None,
    replicas: Annotated[
        int | None, option("N", "Redis replicas that must have a job before it is accepted (0).", group=SERVER)
    ] = None,
    outbox: Outbox = None,
    reach: Annotated[
        list[str] | None,
        option(
            "WHERE:PORT",
            "Also send jobs to this network, address or host, and port; repeatable.",
            *("--reach", "--push-allow"),
            group=SERVER,
        ),
    ] = None,
    app: Annotated[str | None, option("MODULE:APP", "Run the tasks of this app.", group=WORKER)] = None,
    worker: Annotated[
        bool | None, flag("Run a worker inside the server (yes).", negative="--no-worker", group=WORKER)
    ] = None,
    slots: Annotated[int | None, option("N", "Jobs to run at once (32).", *SLOTS, group=WORKER)] = None,
    allow_upload: Annotated[bool | None, flag("Accept handlers: code that workers run.", group=HANDLERS)] = None,
    handler_flags: HandlerFlags = NO_HANDLER_FLAGS,
    verbose: Annotated[bool, flag("Log more.", name=("--verbose", "-v"), group=SERVER)] = False,
    target: Target = HERE,
) -> int:
    """Serve the queue over HTTP, in MessagePack and JSON; /openapi.json describes it.

    For example:
      windlass serve                        http://127.0.0.1:7717, jobs in ./windlass.db
      windlass serve --app shop:app         also run the tasks of an app
      windlass serve --allow-upload         also accept and run handlers
      windlass serve --store redis://db     several servers may share one store

    Commands and clients of the same user on this machine find the token in the server's folder. Others need one from
    `windlass tokens add`.
    """
    own_flags: dict[str, Any] = {"host": host, "port": port, "socket": socket, "journal": journal, "app": app}
    own_flags |= {"worker": worker, "allow_upload": allow_upload}
    flags = {**worker_flags(handler_flags), "worker.slots": slots, "worker.reach": reach, "engine.replicas": replicas}
    settings = target.settings(
        {**flags, "data": data, "outbox": outbox, **{f"server.{name}": own_flags[name] for name in own_flags}}
    )
    server = settings.server
    chosen = worker_options(settings, max_jobs=None)
    own = config.data_folder(os.environ, settings)
    if own.exists() and not own.is_dir():
        raise Invalid(f"{own} is not a folder: name the folder where the server keeps its token", at="--data")
    with_worker, app = server.worker, server.app
    if settings.notifications.recover and not (app and with_worker):
        what_to_do = "start the server without --no-worker" if app else "name one with --app"
        raise Invalid(f"notifications.recover runs the task of the server's app: {what_to_do}")
    serving = ServerOptions(
        store=settings.store,
        data=own,
        journal=own / "journal" if server.journal else None,
        journal_settings=JournalSettings(**asdict(settings.journal)),
        where=ListenAddress(host=server.host, port=server.port, socket=server.socket),
        settings=Settings(**asdict(settings.engine)),
        outbox=settings.outbox,
        worker=replace(chosen, target=app, functions=None) if app and with_worker else None,
        functions=chosen if with_worker and settings.worker.handlers else None,
        reach=chosen.reach,
        allow_upload=server.allow_upload,
        notifications=NotificationOptions(**asdict(settings.notifications)),
        client_jobs=ClientJobOptions(**asdict(settings.client_jobs)),
        drawing=AsyOptions(public=settings.asy.public, owner_timeout=settings.asy.owner_timeout),
    )
    return run_forever(run(serving), app, verbose=verbose)


def openapi(*, target: Target = HERE) -> None:  # noqa: ARG001 - every command has these options
    """Print the OpenAPI document of the server, for client generators. It needs no store and no server.

    For example:
      windlass openapi > openapi.json
    """
    console.write_json(document(VERSION, (*s2.SPECS, *s3.SPECS, *s4.SPECS)))
