"""`windlass worker`: run the jobs of an app."""

import asyncio
import logging
import os
import sys
from typing import Annotated, Any

import uvloop
from cyclopts import Group, Parameter
from msgspec.structs import asdict

from windlass import config
from windlass.cli import saying
from windlass.cli.place import HERE, Place
from windlass.daemon import work
from windlass.engine import Settings
from windlass.model.errors import Invalid
from windlass.model.names import EVERY_TENANT
from windlass.worker.functions import FunctionOptions, Tier
from windlass.worker.options import WorkerOptions
from windlass.worker.pool import AppBroken

SHARE = Group("How much", sort_key=10)
RENEWAL = Group("When a process is replaced", sort_key=11)
UPLOADED = Group("Code that is kept in the queue", sort_key=12)
ENDING = Group("How it ends", sort_key=13)
TELLING = Group("What it tells", sort_key=14)

Handlers = Annotated[
    bool | None, Parameter(group=UPLOADED, negative="--no-handlers", help="Whether it runs what has a handler (yes).")
]
Sandbox = Annotated[
    Tier | None, Parameter(group=UPLOADED, metavar="TIER", help="limits, confined (the default) or isolated.")
]
ForNetwork = Annotated[
    bool | None, Parameter(group=UPLOADED, negative="", help="Give the network to handlers that ask for it.")
]


def worker(
    app: Annotated[
        str,
        Parameter(
            help="The app whose tasks it runs: `module:name`, or `module` if the name is `app`; none = handlers only."
        ),
    ] = "",
    /,
    *,
    queues: Annotated[
        str | None,
        Parameter(
            name=("--queues", "-q"), group=SHARE, metavar="NAMES", help="Take jobs from these, dearest first: a,b,c."
        ),
    ] = None,
    slots: Annotated[
        int | None,
        Parameter(name=("--slots", "--concurrency", "-c"), group=SHARE, metavar="N", help="Jobs run at once (32)."),
    ] = None,
    contexts: Annotated[
        int | None, Parameter(group=SHARE, metavar="N", help="Processes that share them (one a processor).")
    ] = None,
    name: Annotated[str | None, Parameter(group=SHARE, metavar="NAME", help="What people call it.")] = None,
    burst: Annotated[bool, Parameter(group=ENDING, help="End when there is nothing left to do.")] = False,
    grace: Annotated[
        str | None, Parameter(group=ENDING, metavar="TIME", help="What running jobs get after a first signal (30s).")
    ] = None,
    max_jobs: Annotated[int | None, Parameter(group=ENDING, metavar="N", help="End after so many jobs.")] = None,
    context_max_jobs: Annotated[int | None, Parameter(group=RENEWAL, metavar="N", help="After so many jobs.")] = None,
    max_memory: Annotated[
        str | None, Parameter(group=RENEWAL, metavar="SIZE", help="Above so much memory: 512MB, 1GiB.")
    ] = None,
    max_age: Annotated[str | None, Parameter(group=RENEWAL, metavar="TIME", help="After so long: 1h, 2d.")] = None,
    max_output: Annotated[
        str | None,
        Parameter(group=RENEWAL, metavar="SIZE", help="What a job alone may print (64MiB)."),
    ] = None,
    handlers: Handlers = None,
    sandbox: Sandbox = None,
    network: ForNetwork = None,
    reach: Annotated[
        list[str] | None,
        Parameter(
            group=UPLOADED,
            negative="",
            metavar="WHERE:PORT",
            help="Also call URLs of this network, address or host, at this port; repeatable.",
        ),
    ] = None,
    telemetry: Annotated[
        str | None,
        Parameter(
            group=TELLING, metavar="FOLDER", help="Write a row for each run to a CSV file there: when, how long."
        ),
    ] = None,
    verbose: Annotated[bool, Parameter(name=("--verbose", "-v"), group=TELLING, help="Say more.")] = False,
    place: Place = HERE,
) -> int:
    """Run jobs.

    For example:
      windlass worker shop:app                 all queues that the app's tasks name, in turn
      windlass worker shop:app -q mail,slow    these queues, mail first
      windlass worker shop:app -c 100 --burst  a hundred at once, until none is left
      windlass worker shop:app --max-jobs 1    one job, then it ends
      windlass worker --tenant -               what has a handler, of all tenants

    TERM or Ctrl-C lets running jobs finish within the grace and gives the rest back; a second gives all back at once;
    QUIT stops at once; TSTP (Ctrl-Z) stops claiming, CONT goes on.
    """
    flags: dict[str, Any] = {"queues": queues, "slots": slots, "contexts": contexts, "name": name, "grace": grace}
    flags |= {"max_jobs": max_jobs, "context_max_jobs": context_max_jobs, "max_output": max_output}
    flags |= {"max_memory": max_memory, "max_age": max_age}
    flags |= {"handlers": handlers, "sandbox": sandbox, "network": network, "telemetry": telemetry, "reach": reach}
    settings = place.settle({f"worker.{key}": value for key, value in flags.items()})
    if not app and not settings.worker.handlers:
        raise Invalid("there is nothing to run: name an app, or leave out --no-handlers", at="app")
    lease = settings.engine.lease if settings.worker.lease is None else settings.worker.lease
    options = options_of(settings, target=app, burst=burst)
    engine = Settings(**{**asdict(settings.engine), "lease": lease})
    _tell_app(place, settings)
    saying.log(logging.DEBUG if verbose else logging.INFO)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            address = place.server or (place.store if app else settings.store)
            tenant = settings.tenant if place.tenant or not app else None
            runner.run(work(options, address, engine, tenant=tenant))
    except AppBroken as fault:
        sys.stderr.write(f"{fault.traceback}windlass: {app} cannot be imported: {fault}\n")
        return 1
    return 0


def _tell_app(place: Place, settings: config.Config) -> None:
    """Let what was said here hold for the app too, unless its own arguments say otherwise: its tasks queue jobs."""
    if place.server or place.store:
        os.environ[config.SERVER_VARIABLE] = place.server or ""
        os.environ[config.variable("store")] = settings.store
    if place.tenant and settings.tenant != EVERY_TENANT:
        os.environ[config.variable("tenant")] = settings.tenant


def options_of(settings: config.Config, **more: Any) -> WorkerOptions:
    """What the settings say of a worker."""
    said = {key: value for key, value in asdict(settings.worker).items() if value is not None and key != "lease"}
    bounds = {key: value for key, value in asdict(settings.functions).items() if value is not None}
    chosen: dict[str, str] = {lang: bounds.pop(lang) for lang in ("python", "node", "php", "sh") if lang in bounds}
    tier, network, reach = said.pop("sandbox"), said.pop("network"), tuple(said.pop("reach"))
    functions = FunctionOptions(tier=tier, network=network, interpreters=chosen, **bounds)
    return WorkerOptions(functions=functions if said.pop("handlers") else None, reach=reach, **{**said, **more})
