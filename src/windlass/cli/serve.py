"""`windlass serve` and `windlass openapi`: the queue over HTTP, and its OpenAPI document."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import uvloop
from cyclopts import Group, Parameter
from msgspec.structs import asdict, replace

from windlass.cli import console
from windlass.cli.target import HERE, Target
from windlass.cli.worker import HANDLERS, ForNetwork, Handlers, Sandbox, worker_options
from windlass.dialect import s2, s3, s4
from windlass.dialect.s3 import ClientJobOptions
from windlass.dialect.s4 import NotificationOptions
from windlass.engine import Settings
from windlass.engine.journal import JournalSettings
from windlass.local_token import data_folder
from windlass.model.errors import Invalid
from windlass.run_server import ServerOptions
from windlass.run_server import serve as run
from windlass.server.application import VERSION
from windlass.server.http_server import ListenAddress
from windlass.server.openapi import document
from windlass.worker.contexts.processes import AppBroken

SERVER = Group("Server", sort_key=10)
WORKER = Group("Built-in worker", sort_key=11)


def serve(
    *,
    host: Annotated[
        str, Parameter(group=SERVER, metavar="HOST", help="The address to listen on (127.0.0.1).")
    ] = "127.0.0.1",
    port: Annotated[int, Parameter(group=SERVER, metavar="N", help="The port (7717).")] = 7717,
    socket: Annotated[str, Parameter(group=SERVER, metavar="PATH", help="Listen on a unix socket instead.")] = "",
    data: Annotated[
        Path | None,
        Parameter(group=SERVER, metavar="DIR", help="The folder of its token and journal (~/.local/state/windlass)."),
    ] = None,
    journal: Annotated[
        bool,
        Parameter(
            group=SERVER,
            negative="--no-journal",
            help="Journal accepted jobs on disk, in front of a Redis store (yes).",
        ),
    ] = True,
    replicas: Annotated[
        int | None,
        Parameter(group=SERVER, metavar="N", help="Redis replicas that must have a job before it is accepted (0)."),
    ] = None,
    reach: Annotated[
        list[str] | None,
        Parameter(
            name=("--reach", "--push-allow"),
            group=SERVER,
            negative="",
            metavar="WHERE:PORT",
            help="Also send jobs to this network, address or host, and port; repeatable.",
        ),
    ] = None,
    app: Annotated[str | None, Parameter(group=WORKER, metavar="MODULE:APP", help="Run the tasks of this app.")] = None,
    worker: Annotated[
        bool, Parameter(group=WORKER, negative="--no-worker", help="Run a worker inside the server (yes).")
    ] = True,
    slots: Annotated[
        int | None,
        Parameter(name=("--slots", "--concurrency", "-c"), group=WORKER, metavar="N", help="Jobs to run at once (32)."),
    ] = None,
    allow_upload: Annotated[
        bool | None, Parameter(group=HANDLERS, negative="", help="Accept handlers: code that workers run.")
    ] = None,
    handlers: Handlers = None,
    sandbox: Sandbox = None,
    network: ForNetwork = None,
    verbose: Annotated[bool, Parameter(name=("--verbose", "-v"), group=SERVER, help="Log more.")] = False,
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
    flags = {"worker.slots": slots, "worker.handlers": handlers, "worker.sandbox": sandbox, "worker.network": network}
    settings = target.settings(
        {**flags, "worker.reach": reach, "server.allow_upload": allow_upload, "engine.replicas": replicas}
    )
    where = ListenAddress(host=host, port=port, socket=socket)
    chosen = worker_options(settings, max_jobs=None)
    own = data or data_folder(dict(os.environ))
    if own.exists() and not own.is_dir():
        raise Invalid(f"{own} is not a folder: name the folder where the server keeps its token", at="--data")
    if settings.notifications.recover and not (app and worker):
        raise Invalid("notifications.recover needs an app that runs them: name it with --app", at="--app")
    serving = ServerOptions(
        store=settings.store,
        data=own,
        journal=own / "journal" if journal else None,
        journal_settings=JournalSettings(**asdict(settings.journal)),
        where=where,
        settings=Settings(**asdict(settings.engine)),
        worker=replace(chosen, target=app, functions=None) if app and worker else None,
        functions=chosen if worker and settings.worker.handlers else None,
        reach=chosen.reach,
        allow_upload=settings.server.allow_upload,
        notifications=NotificationOptions(**asdict(settings.notifications)),
        client_jobs=ClientJobOptions(**asdict(settings.client_jobs)),
    )
    console.log(logging.DEBUG if verbose else logging.INFO)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(serving))
    except AppBroken as fault:
        sys.stderr.write(f"{fault.traceback}windlass: {app} cannot be imported: {fault}\n")
        return 1
    return 0


def openapi(*, target: Target = HERE) -> None:  # noqa: ARG001 - every command has these options
    """Print the OpenAPI document of the server, for client generators. It needs no store and no server.

    For example:
      windlass openapi > openapi.json
    """
    console.write_json(document(VERSION, (*s2.SPECS, *s3.SPECS, *s4.SPECS)))
