"""`windlass serve`: the queue over HTTP."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import uvloop
from cyclopts import Group, Parameter
from msgspec.structs import asdict, replace

from windlass.cli import saying
from windlass.cli.place import HERE, Place
from windlass.cli.worker import UPLOADED, ForNetwork, Handlers, Sandbox, options_of
from windlass.dialect.s3 import Terms
from windlass.dialect.s4 import Habits
from windlass.engine import Settings
from windlass.engine.journal import JournalSettings
from windlass.local import data_folder
from windlass.model.errors import Invalid
from windlass.server.listening import Listening
from windlass.serving import Serving
from windlass.serving import serve as run
from windlass.worker.pool import AppBroken

WHERE = Group("Where", sort_key=10)
WORK = Group("The worker inside", sort_key=11)


def serve(
    *,
    host: Annotated[
        str, Parameter(group=WHERE, metavar="HOST", help="The address to listen on (127.0.0.1).")
    ] = "127.0.0.1",
    port: Annotated[int, Parameter(group=WHERE, metavar="N", help="The port (7717).")] = 7717,
    socket: Annotated[str, Parameter(group=WHERE, metavar="PATH", help="A unix socket instead.")] = "",
    data: Annotated[
        Path | None, Parameter(group=WHERE, metavar="DIR", help="Its own folder (~/.local/state/windlass).")
    ] = None,
    journal: Annotated[
        bool,
        Parameter(group=WHERE, negative="--no-journal", help="Keep what is accepted for a Redis store on disk (yes)."),
    ] = True,
    replicas: Annotated[
        int | None,
        Parameter(group=WHERE, metavar="N", help="Replicas of Redis that must have a job before it is accepted (0)."),
    ] = None,
    reach: Annotated[
        list[str] | None,
        Parameter(
            name=("--reach", "--push-allow"),
            group=WHERE,
            negative="",
            metavar="WHERE:PORT",
            help="Also send jobs to this network, address or host, at this port; repeatable.",
        ),
    ] = None,
    app: Annotated[
        str | None, Parameter(group=WORK, metavar="MODULE:APP", help="Also run the tasks of this app.")
    ] = None,
    worker: Annotated[bool, Parameter(group=WORK, negative="--no-worker", help="Whether it does (yes).")] = True,
    slots: Annotated[
        int | None,
        Parameter(name=("--slots", "--concurrency", "-c"), group=WORK, metavar="N", help="Jobs at once (32)."),
    ] = None,
    allow_upload: Annotated[
        bool | None, Parameter(group=UPLOADED, negative="", help="Take in handlers: code that workers run.")
    ] = None,
    handlers: Handlers = None,
    sandbox: Sandbox = None,
    network: ForNetwork = None,
    verbose: Annotated[bool, Parameter(name=("--verbose", "-v"), group=WHERE, help="Say more.")] = False,
    place: Place = HERE,
) -> int:
    """Serve the queue over HTTP, in MessagePack and JSON; /openapi.json describes it.

    For example:
      windlass serve                        on http://127.0.0.1:7717, the jobs in ./windlass.db
      windlass serve --app shop:app         and run the tasks of an app
      windlass serve --allow-upload         and run functions that are sent in
      windlass serve --store redis://db     several servers may share one store

    Whoever runs it on this machine needs no token: commands and clients read it from its folder. Others need one:
    windlass tokens add.
    """
    flags = {"worker.slots": slots, "worker.handlers": handlers, "worker.sandbox": sandbox, "worker.network": network}
    settings = place.settle(
        {**flags, "worker.reach": reach, "server.allow_upload": allow_upload, "engine.replicas": replicas}
    )
    where = Listening(host=host, port=port, socket=socket)
    chosen = options_of(settings, max_jobs=None)
    own = data or data_folder(dict(os.environ))
    if own.exists() and not own.is_dir():
        raise Invalid(f"{own} is not a folder: name the folder where the server keeps its token", at="--data")
    if settings.notifications.recover and not (app and worker):
        raise Invalid("notifications.recover needs an app that does the work: name it with --app", at="--app")
    serving = Serving(
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
        notifications=Habits(**asdict(settings.notifications)),
        client_jobs=Terms(**asdict(settings.client_jobs)),
    )
    saying.log(logging.DEBUG if verbose else logging.INFO)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(serving))
    except AppBroken as fault:
        sys.stderr.write(f"{fault.traceback}windlass: {app} cannot be imported: {fault}\n")
        return 1
    return 0
