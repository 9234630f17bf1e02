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
from windlass.cli import console
from windlass.cli.target import HERE, Target
from windlass.engine import Settings
from windlass.model.errors import Invalid
from windlass.model.names import EVERY_TENANT
from windlass.run_worker import work
from windlass.worker import WorkerOptions
from windlass.worker.contexts.processes import AppBroken
from windlass.worker.functions import FunctionOptions, Tier

CAPACITY = Group("Capacity", sort_key=10)
RECYCLING = Group("Process limits", sort_key=11)
HANDLERS = Group("Handlers: code stored in the queue", sort_key=12)
SHUTDOWN = Group("Shutdown", sort_key=13)
LOGGING = Group("Logging", sort_key=14)

Handlers = Annotated[
    bool | None,
    Parameter(group=HANDLERS, negative="--no-handlers", help="Run jobs of tasks that have a handler (yes)."),
]
Sandbox = Annotated[
    Tier | None,
    Parameter(group=HANDLERS, metavar="TIER", help="The sandbox: limits, confined (the default) or isolated."),
]
ForNetwork = Annotated[
    bool | None, Parameter(group=HANDLERS, negative="", help="Allow the network to handlers that need it.")
]


def worker(
    app: Annotated[
        str,
        Parameter(help="The app to run: `module:name`, or `module` if the name is `app`; none = handlers only."),
    ] = "",
    /,
    *,
    queues: Annotated[
        str | None,
        Parameter(
            name=("--queues", "-q"),
            group=CAPACITY,
            metavar="NAMES",
            help="The queues to take from, most important first: a,b,c.",
        ),
    ] = None,
    slots: Annotated[
        int | None,
        Parameter(
            name=("--slots", "--concurrency", "-c"), group=CAPACITY, metavar="N", help="Jobs to run at once (32)."
        ),
    ] = None,
    contexts: Annotated[
        int | None, Parameter(group=CAPACITY, metavar="N", help="Processes that share the slots (one per CPU).")
    ] = None,
    name: Annotated[str | None, Parameter(group=CAPACITY, metavar="NAME", help="Its name in listings.")] = None,
    burst: Annotated[bool, Parameter(group=SHUTDOWN, help="Exit when the queues are empty.")] = False,
    grace: Annotated[
        str | None,
        Parameter(group=SHUTDOWN, metavar="TIME", help="Time for running jobs to finish after the first signal (30s)."),
    ] = None,
    max_jobs: Annotated[int | None, Parameter(group=SHUTDOWN, metavar="N", help="Exit after N jobs.")] = None,
    context_max_jobs: Annotated[
        int | None, Parameter(group=RECYCLING, metavar="N", help="Replace a process after N jobs.")
    ] = None,
    max_memory: Annotated[
        str | None,
        Parameter(group=RECYCLING, metavar="SIZE", help="Replace a process above this much memory: 512MB, 1GiB."),
    ] = None,
    max_age: Annotated[
        str | None, Parameter(group=RECYCLING, metavar="TIME", help="Replace a process after this time: 1h, 2d.")
    ] = None,
    max_output: Annotated[
        str | None,
        Parameter(group=RECYCLING, metavar="SIZE", help="Kill an isolated job that prints more (64MiB)."),
    ] = None,
    handlers: Handlers = None,
    sandbox: Sandbox = None,
    network: ForNetwork = None,
    reach: Annotated[
        list[str] | None,
        Parameter(
            group=HANDLERS,
            negative="",
            metavar="WHERE:PORT",
            help="Also allow http handlers at this network, address or host, and port; repeatable.",
        ),
    ] = None,
    telemetry: Annotated[
        str | None,
        Parameter(
            group=LOGGING,
            metavar="FOLDER",
            help="Write a row per run to a CSV file in this folder: start, duration, task.",
        ),
    ] = None,
    verbose: Annotated[bool, Parameter(name=("--verbose", "-v"), group=LOGGING, help="Log more.")] = False,
    target: Target = HERE,
) -> int:
    """Run jobs.

    For example:
      windlass worker shop:app                 all queues of the app's tasks, in turn
      windlass worker shop:app -q mail,slow    these queues, mail first
      windlass worker shop:app -c 100 --burst  a hundred jobs at once, until the queues are empty
      windlass worker shop:app --max-jobs 1    one job, then exit
      windlass worker --tenant -               handlers of all tenants

    TERM or Ctrl-C lets running jobs finish within the grace period and releases the rest; a second one releases all at
    once. QUIT stops at once. TSTP (Ctrl-Z) pauses claiming, CONT resumes it.
    """
    flags: dict[str, Any] = {"queues": queues, "slots": slots, "contexts": contexts, "name": name, "grace": grace}
    flags |= {"max_jobs": max_jobs, "context_max_jobs": context_max_jobs, "max_output": max_output}
    flags |= {"max_memory": max_memory, "max_age": max_age}
    flags |= {"handlers": handlers, "sandbox": sandbox, "network": network, "telemetry": telemetry, "reach": reach}
    settings = target.settings({f"worker.{key}": value for key, value in flags.items()})
    if not app and not settings.worker.handlers:
        raise Invalid("nothing to run: name an app, or leave out --no-handlers", at="app")
    lease = settings.engine.lease if settings.worker.lease is None else settings.worker.lease
    options = worker_options(settings, target=app, burst=burst)
    engine = Settings(**{**asdict(settings.engine), "lease": lease})
    _set_environment(target, settings)
    console.log(logging.DEBUG if verbose else logging.INFO)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            address = target.server or (target.store if app else settings.store)
            tenant = settings.tenant if target.tenant or not app else None
            runner.run(work(options, address, engine, tenant=tenant))
    except AppBroken as fault:
        sys.stderr.write(f"{fault.traceback}windlass: {app} cannot be imported: {fault}\n")
        return 1
    return 0


def _set_environment(target: Target, settings: config.Config) -> None:
    """Give the app the same store and tenant, unless its own arguments name others: its tasks may queue jobs."""
    if target.server or target.store:
        os.environ[config.SERVER_VARIABLE] = target.server or ""
        os.environ[config.variable("store")] = settings.store
    if target.tenant and settings.tenant != EVERY_TENANT:
        os.environ[config.variable("tenant")] = settings.tenant


def worker_options(settings: config.Config, **more: Any) -> WorkerOptions:
    """The options of a worker, from the settings."""
    given = {key: value for key, value in asdict(settings.worker).items() if value is not None and key != "lease"}
    bounds = {key: value for key, value in asdict(settings.functions).items() if value is not None}
    chosen: dict[str, str] = {lang: bounds.pop(lang) for lang in ("python", "node", "php", "sh") if lang in bounds}
    tier, network, reach = given.pop("sandbox"), given.pop("network"), tuple(given.pop("reach"))
    functions = FunctionOptions(tier=tier, network=network, interpreters=chosen, **bounds)
    return WorkerOptions(functions=functions if given.pop("handlers") else None, reach=reach, **{**given, **more})
