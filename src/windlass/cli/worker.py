"""`windlass worker`: run the jobs of an app."""

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import uvloop
from cyclopts import Group, Parameter
from msgspec.structs import asdict

from windlass import config
from windlass.cli import console
from windlass.cli.options import flag, option
from windlass.cli.target import HERE, Target
from windlass.engine import Settings
from windlass.model.errors import Invalid
from windlass.model.names import EVERY_TENANT
from windlass.run_worker import work
from windlass.system import SystemClock
from windlass.worker import WorkerOptions
from windlass.worker.contexts.processes import AppBroken
from windlass.worker.functions import FunctionOptions, Tier
from windlass.worker.reload import run_reloading
from windlass.worker.siblings import run_siblings

CAPACITY = Group("Capacity", sort_key=10)
RECYCLING = Group("Process limits", sort_key=11)
HANDLERS = Group("Handlers: code stored in the queue", sort_key=12)
SHUTDOWN = Group("Shutdown", sort_key=13)
LOGGING = Group("Logging and development", sort_key=14)

SLOTS = ("--slots", "--concurrency", "-c")


@Parameter(name="*", group=HANDLERS)
@dataclass(frozen=True, kw_only=True)
class HandlerFlags:
    """How handlers are run: settings of the worker, of this command and of `serve`."""

    handlers: Annotated[bool | None, flag("Run jobs of tasks that have a handler (yes).", negative="--no-handlers")] = (
        None
    )
    sandbox: Annotated[Tier | None, option("TIER", "The sandbox: limits, confined (the default) or isolated.")] = None
    network: Annotated[bool | None, flag("Allow the network to handlers that need it.")] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WorkerFlags:
    """Settings of the worker, by name; `config` reads and checks them."""

    queues: Annotated[
        str | None,
        option(
            "NAMES",
            "The queues to take from, in turn: a,b, or a=3,b for three turns of a.",
            "--queues",
            "-q",
            group=CAPACITY,
        ),
    ] = None
    strict: Annotated[
        bool | None, flag("Take from a queue only when those named before it have no jobs.", group=CAPACITY)
    ] = None
    offers: Annotated[
        str | None,
        option("LABELS", "What this worker has for tasks that need it: gpu,big.", group=CAPACITY),
    ] = None
    slots: Annotated[int | None, option("N", "Jobs to run at once (32).", *SLOTS, group=CAPACITY)] = None
    contexts: Annotated[int | None, option("N", "Processes that share the slots (one per CPU).", group=CAPACITY)] = None
    processes: Annotated[
        int | None,
        option(
            "N",
            "Run N workers, each with its own slots and contexts, under a parent that restarts those that die (1).",
            group=CAPACITY,
        ),
    ] = None
    name: Annotated[str | None, option("NAME", "Its name in listings.", group=CAPACITY)] = None
    grace: Annotated[
        str | None, option("TIME", "Time for running jobs to finish after the first signal (30s).", group=SHUTDOWN)
    ] = None
    stop_jobs: Annotated[
        bool | None, flag("End all jobs with it, also those that outlive their worker (on_lost=adopt).", group=SHUTDOWN)
    ] = None
    adopt_lease: Annotated[
        str | None, option("TIME", "How long jobs with on_lost=adopt go on without a worker (10m).", group=SHUTDOWN)
    ] = None
    max_jobs: Annotated[int | None, option("N", "Exit after N jobs.", group=SHUTDOWN)] = None
    context_max_jobs: Annotated[int | None, option("N", "Replace a process after N jobs.", group=RECYCLING)] = None
    max_memory: Annotated[
        str | None, option("SIZE", "Replace a process above this much memory: 512MB, 1GiB.", group=RECYCLING)
    ] = None
    max_age: Annotated[str | None, option("TIME", "Replace a process after this time: 1h, 2d.", group=RECYCLING)] = None
    max_output: Annotated[
        str | None, option("SIZE", "Kill an isolated job that prints more (64MiB).", group=RECYCLING)
    ] = None
    reach: Annotated[
        list[str] | None,
        option(
            "WHERE:PORT",
            "Also allow http handlers at this network, address or host, and port; repeatable.",
            group=HANDLERS,
        ),
    ] = None
    telemetry: Annotated[
        str | None,
        option("FOLDER", "Write a row per run to a CSV file in this folder: start, duration, task.", group=LOGGING),
    ] = None


Outbox = Annotated[
    str | None, option("FILE", "Queue the jobs in the table windlass_outbox of this SQLite file.", group=CAPACITY)
]

NO_HANDLER_FLAGS, NO_FLAGS = HandlerFlags(), WorkerFlags()


def worker(
    app: Annotated[
        str,
        Parameter(help="The app to run: `module:name`, or `module` if the name is `app`; none = handlers only."),
    ] = "",
    /,
    *,
    outbox: Outbox = None,
    reload: Annotated[
        bool, flag("Start again when a Python file below this folder changes: for development.", group=LOGGING)
    ] = False,
    burst: Annotated[bool, flag("Exit when the queues are empty.", group=SHUTDOWN)] = False,
    handler_flags: HandlerFlags = NO_HANDLER_FLAGS,
    flags: WorkerFlags = NO_FLAGS,
    verbose: Annotated[bool, flag("Log more.", name=("--verbose", "-v"), group=LOGGING)] = False,
    target: Target = HERE,
) -> int:
    """Run jobs.

    For example:
      windlass worker shop:app                 all queues of the app's tasks, in turn
      windlass worker shop:app -q mail=3,slow  three jobs of mail to one of slow
      windlass worker shop:app -q mail,slow --strict
                                               slow only when mail has no jobs
      windlass worker shop:app --offers gpu    also tasks that need a gpu
      windlass worker shop:app -c 100 --burst  a hundred jobs at once, until the queues are empty
      windlass worker shop:app --max-jobs 1    one job, then exit
      windlass worker shop:app --processes 4   four workers under one parent
      windlass worker --tenant -               handlers of all tenants

    TERM or Ctrl-C lets running jobs finish within the grace period and releases the rest; a second one releases all at
    once. QUIT stops at once. TSTP (Ctrl-Z) pauses claiming, CONT resumes it.
    """
    settings = target.settings({**worker_flags(flags, handler_flags), "outbox": outbox})
    if not app and not settings.worker.handlers:
        raise Invalid("nothing to run: name an app, or leave out --no-handlers", at="app")
    lease = settings.engine.lease if settings.worker.lease is None else settings.worker.lease
    options = worker_options(settings, target=app, burst=burst)
    engine = Settings(**{**asdict(settings.engine), "lease": lease})
    _set_environment(target, settings)
    address = target.server or (target.store if app else settings.store)
    tenant = settings.tenant if target.tenant or not app else None
    run = partial(_run, options, address, engine, tenant, settings.outbox, verbose=verbose)
    if reload and settings.worker.processes > 1:
        raise Invalid("--reload is for one process: leave out --processes", at="--reload")
    if settings.worker.processes == 1 and not reload:
        return run()
    console.log(logging.DEBUG if verbose else logging.INFO)
    if reload:
        return run_reloading(Path.cwd(), run, SystemClock())
    return run_siblings(settings.worker.processes, run, SystemClock())


def _run(
    options: WorkerOptions,
    address: str | None,
    engine: Settings,
    tenant: str | None,
    outbox: str | None,
    *,
    verbose: bool,
) -> int:
    program = work(options, address, engine, tenant=tenant, outbox=outbox)
    return run_forever(program, options.target, verbose=verbose)


def run_forever(program: Coroutine[Any, Any, None], app: str | None, *, verbose: bool) -> int:
    """Run a worker or a server to its end, with a log; the exit status."""
    console.log(logging.DEBUG if verbose else logging.INFO)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(program)
    except AppBroken as fault:
        sys.stderr.write(f"{fault.traceback}windlass: {app} cannot be imported: {fault}\n")
        return 1
    return 0


def worker_flags(*options: object) -> dict[str, Any]:
    """Options as settings of the worker."""
    return {f"worker.{name}": value for one in options for name, value in vars(one).items()}


def _set_environment(target: Target, settings: config.Config) -> None:
    """Give the app the same store and tenant, unless its own arguments name others: its tasks may queue jobs."""
    if target.server or target.store:
        os.environ[config.SERVER_VARIABLE] = target.server or ""
        os.environ[config.variable("store")] = settings.store
    if target.tenant and settings.tenant != EVERY_TENANT:
        os.environ[config.variable("tenant")] = settings.tenant


def worker_options(settings: config.Config, **more: Any) -> WorkerOptions:
    """The options of a worker, from the settings."""
    given = {key: value for key, value in asdict(settings.worker).items() if value is not None}
    for name in ("lease", "processes"):  # of the program around it
        given.pop(name, None)
    bounds = {key: value for key, value in asdict(settings.functions).items() if value is not None}
    chosen: dict[str, str] = {lang: bounds.pop(lang) for lang in ("python", "node", "php", "sh") if lang in bounds}
    tier, network, reach = given.pop("sandbox"), given.pop("network"), tuple(given.pop("reach"))
    functions = FunctionOptions(tier=tier, network=network, interpreters=chosen, **bounds)
    named = [one.partition("=")[::2] for one in given.pop("queues")]
    weights = {name: int(weight) for name, weight in named if weight}
    if weights and given["strict"]:
        raise Invalid("with --strict queues take no turns: leave the numbers out", at="queues")
    given |= {"queues": [name for name, _ in named], "weights": weights}
    return WorkerOptions(functions=functions if given.pop("handlers") else None, reach=reach, **{**given, **more})
