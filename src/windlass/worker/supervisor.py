"""The supervisor: one worker from registration to its last report.

Puts the parts together: the loop that claims, the table of runs, leases, reports, and a runner for each kind of job.
Knows the queue only as a service and user code only as processes.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import get_args

from msgspec.structs import replace

from windlass.model.errors import Damaged, WindlassError
from windlass.model.handler import Language
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import Service
from windlass.model.ports import Clock, Randomness
from windlass.model.worker import NewWorker, WorkerOrders, unmet
from windlass.worker import WorkerOptions
from windlass.worker.adoption import Adoption
from windlass.worker.claims import Registration
from windlass.worker.contexts.frames import CLOSE_HOOKS_WITHIN, AppInfo
from windlass.worker.contexts.kept import KeptRuns
from windlass.worker.contexts.pool import ContextRunner
from windlass.worker.contexts.processes import ProcessManager
from windlass.worker.functions.pool import Functions
from windlass.worker.functions.runner import HandlerRunner
from windlass.worker.linux import UsageMeter, adopt_orphans, descendants, send
from windlass.worker.loop import WorkerLoop
from windlass.worker.network import Network, read_allowed
from windlass.worker.runs import choose_runner
from windlass.worker.telemetry import Telemetry

log = logging.getLogger("windlass.worker")

CHECK_EVERY = 0.25
"""Seconds between two checks of the contexts' age and memory."""

NO_APP = AppInfo(tasks=[], queues=[], store="", tenant=EVERY_TENANT)
"""A worker without an app: it runs jobs that have a handler."""

A_SIGNAL, AN_ORDER = "a signal", "an order"
BY_PEOPLE = frozenset({A_SIGNAL, AN_ORDER})
"""Who pauses a worker, so that it counts as draining. The loop knows other reasons to claim nothing."""

PROBE_EVERY, PROBE_SOON = 300.0, 60.0
"""Seconds between two probes of the languages that can be run; and if some cannot."""

UNPROBED: list[Language] = ["http"]
"""The languages of handlers that need no interpreter."""

LAST_REPORTS = 5.0
"""Seconds of its grace that a stopping worker waits for a store that does not take its reports."""

LAST_MOMENT = 1.0
"""Seconds that it waits for that in any case, and for processes that do not end."""


class Supervisor:
    """One worker, from its first claim to its last report."""

    def __init__(
        self,
        service: Service,
        processes: ProcessManager,
        app: AppInfo,
        options: WorkerOptions,
        *,
        clock: Clock,
        chance: Randomness,
        kept: KeptRuns | None = None,
    ) -> None:
        """`kept`: where runs are that outlive their workers; null = this worker leaves none and takes none over."""
        self._options = options
        self._clock = clock
        self._app_tasks = frozenset(app.tasks)
        self._registration = Registration(service, app.tenant, _about(app, options))
        self._telemetry = None if options.telemetry is None else Telemetry(options.telemetry, clock)
        self._loop = WorkerLoop(
            self._registration,
            clock=clock,
            chance=chance,
            burst=options.burst,
            languages=None if options.functions is None else UNPROBED,
            telemetry=self._telemetry,
            meter=UsageMeter(clock),
            slots_of=app.slots,
        )
        self._loop.leases.take_orders(self.obey)
        self._runs = self._loop.runs
        shared = options if app.tasks else replace(options, contexts=0)
        self._contexts = ContextRunner(processes, self._runs, shared, clock, kept, opens=app.opens, batches=app.batches)
        self._large_batches = {task: one.size for task, one in app.batches.items() if one.size > options.slots}
        """Calls in a batch of tasks for which this worker has not enough slots."""
        self._adoption: Adoption | None = None
        if kept is not None:
            self._adoption = Adoption(
                kept, self._registration, self._contexts, options.adopt_lease, clock=clock, chance=chance
            )
        self._functions: Functions | None = None
        self._handlers: HandlerRunner | None = None
        if options.functions is not None:
            self._functions = Functions(options.functions, Network(read_allowed(options.reach)), chance=chance)
            self._handlers = HandlerRunner(service, self._functions, self._runs, clock, options.functions.contexts)
        self._probed = asyncio.Event()
        """Set once it is known which languages of handlers can be run."""
        self._grace_over: float | None = None
        """When the grace of running jobs is over, by our own clock; null = not stopping."""
        self._forced = asyncio.Event()
        self._drains = asyncio.Event()
        """Set when it begins or ends draining, until the queue knows."""
        self._unreported = False
        """Whether the store did not even take the last reports."""

    def _warn_of_batches(self, slots: int) -> None:
        for task, size in self._large_batches.items():
            log.warning("task %s takes %d calls at once, this worker %d: -c %d allows more", task, size, slots, size)

    async def run(self) -> None:
        """Work until `stop`, or in a burst until nothing is left."""
        adopt_orphans()
        if not await self._loop.register():
            return
        self._contexts.fill()
        self._loop.pause("open", not self._contexts.is_open)
        about = self._registration.about
        log.info("%s runs jobs, %d at once", about.name, about.slots)
        self._warn_of_batches(about.slots)
        reporting = asyncio.create_task(self._loop.reports.run())
        duties: list[Awaitable[None]] = [asyncio.shield(reporting), self._loop.leases.run()]
        duties += [self._keep_zygote(), self._check(), self._announce_draining(), self._await_open()]
        if self._adoption is not None:
            duties.append(self._adoption.run())
        if self._handlers is not None:
            duties += [self._handlers.run(), self._probe_languages(self._handlers)]
        runner_of = choose_runner(self._app_tasks, self._contexts, self._handlers)
        slots = partial(self._runs.slots, self._options.slots, self._options.max_jobs)
        warm = tuple[str] if self._handlers is None else self._handlers.warm
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_awaited(duty)) for duty in duties]
                if self._adoption is not None:
                    await self._adoption.look()  # before it claims: what goes on here has its place among the slots
                if self._options.burst and self._handlers is not None:
                    await self._probed.wait()  # or it might exit before it claims what it can run
                try:
                    # A task of its own: each job would otherwise pass through every coroutine that waits for this one.
                    await asyncio.create_task(self._loop.run(runner_of, slots, warm))
                except Damaged:
                    await self._finish_running()
                    raise
                await self._finish_running()
                for task in tasks:
                    task.cancel()
        except ExceptionGroup as faults:
            if not self._contexts.closing:  # else they are released already
                await self._release_running()
            raise faults.exceptions[0] from None  # one duty that fails ends the worker; the first error says why
        finally:
            reporting.cancel()
            await self._close()

    def stop(self) -> None:
        """The first call lets running jobs finish within the grace; a second releases them at once."""
        if self._grace_over is None:
            self._grace_over = self._clock.monotonic() + self._options.grace
        else:
            self._forced.set()
        self._probed.set()
        self._loop.stop()
        self._drains.set()

    def pause(self, paused: bool, by: str = A_SIGNAL) -> None:
        """Claim nothing for now; or claim again, unless something else has paused it too."""
        if paused == (by in self._loop.paused_by):
            return  # it is resumed, say, by CONT after a STOP
        self._loop.pause(by, paused)
        if still := " and ".join(sorted(self._loop.paused_by & BY_PEOPLE)):
            log.info("claiming paused by %s", still)
        else:
            log.info("claiming resumed")
        self._drains.set()

    def obey(self, orders: WorkerOrders) -> None:
        """Do what people have ordered."""
        if orders.pause.paused != (AN_ORDER in self._loop.paused_by):
            self.pause(orders.pause.paused, AN_ORDER)
        if orders.stop is not None and self._grace_over is None:
            log.info("ordered to stop")
            self.stop()
        if orders.stop == "now" and not self._forced.is_set():
            self.stop()

    def quit(self) -> None:
        """Exit at once and report nothing: leases run out, and the guardian ends every process."""
        os._exit(os.EX_TEMPFAIL)

    async def _finish_running(self) -> None:
        if self._grace_over is not None:
            self._contexts.release_gathered()
        if self._runs.active and not (self._grace_over is not None and self._contexts.leaves_all):
            count = _counted(len(self._runs.active), "get", "gets")
            log.info("stopping; %s %g s to finish", count, self._options.grace)
        ended, forced = asyncio.create_task(self._all_ended()), asyncio.create_task(self._forced.wait())
        await asyncio.wait([ended, forced], timeout=self._grace_left(), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        forced.cancel()
        await self._release_running()

    async def _all_ended(self) -> None:
        """Wait for all runs; if this worker is stopping, not for those that go on without it."""
        while self._runs.active and not (self._grace_over is not None and self._contexts.leaves_all):
            await self._runs.some_ended()

    def _grace_left(self) -> float:
        if self._grace_over is None:
            return self._options.grace
        return 0.0 if self._forced.is_set() else max(0.0, self._grace_over - self._clock.monotonic())

    async def _release_running(self) -> None:
        """End what still runs, then report it: the next worker must not run those jobs while they run here."""
        self._contexts.stop_filling()
        if self._options.stop_jobs:
            await self._contexts.end_kept()
        else:
            self._contexts.leave()
        if self._runs.active:
            log.info("releasing %s", _counted(len(self._runs.active)))
            await self._contexts.end_processes()
            self._runs.release_all()
        reported, forced = asyncio.create_task(self._loop.report_all()), asyncio.create_task(self._forced.wait())
        if not self._forced.is_set():
            within = max(LAST_MOMENT, min(LAST_REPORTS, self._grace_left()))
            await asyncio.wait([reported, forced], timeout=within, return_when=asyncio.FIRST_COMPLETED)
        if self._forced.is_set():
            await asyncio.wait([reported], timeout=LAST_MOMENT)
        self._unreported = not reported.done()
        reported.cancel()
        forced.cancel()
        if self._unreported:
            log.warning("exits without reporting what has ended: the store does not answer, leases will run out")

    async def _close(self) -> None:
        if self._telemetry is not None:
            self._telemetry.close()
        if self._functions is not None:
            await self._close_functions(self._functions)
        await self._end_contexts()
        await self._contexts.close()
        if self._unreported:
            return
        try:
            async with asyncio.timeout(LAST_MOMENT):
                await self._registration.unregister()
        except (WindlassError, TimeoutError) as fault:
            log.info("could not unregister: %s", fault or "the store does not answer")

    async def _end_contexts(self) -> None:
        """Let contexts close what they have opened, unless everything is to end at once."""
        ending = asyncio.create_task(self._contexts.end_idle(CLOSE_HOOKS_WITHIN + LAST_MOMENT))
        forced = asyncio.create_task(self._forced.wait())
        await asyncio.wait([ending, forced], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        forced.cancel()

    async def _close_functions(self, functions: Functions) -> None:
        """Wait for their monitors to end everything; kill those that are stuck."""
        closing = asyncio.create_task(functions.close())
        await asyncio.wait([closing], timeout=LAST_MOMENT)
        if not closing.done():
            for monitor in functions.monitors():
                for one in [monitor, *descendants(monitor)]:
                    send(one, signal.SIGKILL)
            await asyncio.wait([closing], timeout=LAST_MOMENT)
        closing.cancel()

    async def _probe_languages(self, handlers: HandlerRunner) -> None:
        """Find out, now and then, which languages can be run here, and claim jobs of no others."""
        assert self._functions is not None  # noqa: S101 - made together with the handlers
        while True:
            handlers.doubt.clear()
            unable = await self._functions.unable()
            await self._announce_languages(unable)
            self._probed.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(PROBE_SOON if unable else PROBE_EVERY):
                    await handlers.doubt.wait()

    async def _announce_languages(self, unable: dict[str, str]) -> None:
        about = self._registration.about
        languages = [lang for lang in get_args(Language) if lang not in unable]
        for lang, why in unable.items():
            if about.unable.get(lang) != why:
                log.info("takes no jobs of handlers in %s: %s", lang, why)
        if back := about.unable.keys() - unable.keys():
            log.info("takes jobs of handlers in %s again", ", ".join(sorted(back)))
        self._loop.take_only(languages)
        try:
            await self._registration.update(replace(about, languages=languages, unable=unable))
        except WindlassError as fault:
            log.warning("cannot announce its languages: %s", fault)

    async def _announce_draining(self) -> None:
        """Say so when this worker takes no more jobs, or takes them again, so that its free slots do not count."""
        while True:
            await self._drains.wait()
            self._drains.clear()
            draining = bool(self._loop.paused_by & BY_PEOPLE) or self._grace_over is not None
            if self._grace_over is not None and not self._runs.active:
                continue  # it is about to unregister
            try:
                await self._registration.update(replace(self._registration.about, draining=draining))
            except WindlassError as fault:
                log.info("cannot announce that it %s: %s", "drains" if draining else "claims again", fault)
                await self._clock.sleep(CHECK_EVERY)
                self._drains.set()

    async def _keep_zygote(self) -> None:
        """Replace a zygote that has died.

        The import of the app may take long, or hang: until it is done no context can be started. So nothing is claimed,
        and what has not begun goes back to the queue for other workers.
        """
        while True:
            await self._contexts.zygote_lost()
            self._loop.pause("zygote")
            self._contexts.release_waiting()
            await self._contexts.restart()
            self._loop.pause("zygote", False)
            log.info("claiming resumed: the process that forks contexts is back")

    async def _await_open(self) -> None:
        """Claim nothing while no context has opened what the app wants open: what is claimed could not begin."""
        while True:
            self._loop.pause("open", not self._contexts.is_open)
            self._contexts.changed.clear()
            await self._contexts.changed.wait()

    async def _check(self) -> None:
        while True:
            await self._clock.sleep(CHECK_EVERY)
            self._contexts.check()
            if self._telemetry is not None:
                self._telemetry.flush()


async def _awaited(duty: Awaitable[None]) -> None:
    await duty


def _counted(count: int, do: str = "", does: str = "") -> str:
    return f"{count} job {does}".rstrip() if count == 1 else f"{count} jobs {do}".rstrip()


def introduction(app: AppInfo, options: WorkerOptions, store: str) -> str:
    """The first line of a worker: which jobs of which store it runs."""
    about = _about(app, options)
    tasks = sorted(task for task in app.tasks if not unmet(about, task))
    runs = [f"task{'s' if len(tasks) > 1 else ''} {', '.join(tasks)}"] if tasks else []
    if about.handlers:
        runs.append("jobs with a handler")
    named = [f"{queue} ({about.weights[queue]} turns)" if queue in about.weights else queue for queue in about.queues]
    queues = f"queue{'s' if len(named) > 1 else ''} {', '.join(named)}"
    turns = (" in turn" if about.in_turn else " in this order") if len(named) > 1 else ""
    offers = f", offers {', '.join(about.offers)}" if about.offers else ""
    place = f"store {store}, tenant {app.tenant}, {queues}{turns}"
    return f"{about.name}: {place}, {' and '.join(runs) or 'no tasks'}{offers}"


def _about(app: AppInfo, options: WorkerOptions) -> NewWorker:
    host = socket.gethostname()
    return NewWorker(
        name=options.name or f"{host}-{os.getpid()}",
        node=host,
        pid=os.getpid(),
        queues=options.queues or app.queues or ["default"],
        in_turn=not options.strict,
        weights=options.weights,
        tasks=app.tasks,
        needs=app.needs,
        offers=options.offers,
        options=app.options,
        app=options.target,
        schedules=app.schedules if options.target else None,
        handlers=options.functions is not None,
        sandbox=None if options.functions is None else options.functions.tier,
        languages=None if options.functions is None else UNPROBED,
        slots=options.slots,
    )
