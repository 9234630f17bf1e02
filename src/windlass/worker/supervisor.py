"""The supervisor's life: it introduces itself, works, and takes its leave.

Knows the queue only as a service and user code only as processes; puts the worker's parts together.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable
from contextlib import suppress
from typing import get_args

from msgspec.structs import replace

from windlass.model.errors import Damaged, WindlassError
from windlass.model.handler import Language
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import Service, Unregister
from windlass.model.ports import Chance, Clock
from windlass.model.worker import NewWorker
from windlass.worker.addresses_allowed import read_allowed
from windlass.worker.claims import Claims
from windlass.worker.crew import Crew
from windlass.worker.delivering import Network
from windlass.worker.frames import Ready
from windlass.worker.functions import Functions
from windlass.worker.handled import Handled
from windlass.worker.jobs import Jobs
from windlass.worker.leases import Leases
from windlass.worker.membership import Membership
from windlass.worker.options import WorkerOptions
from windlass.worker.pool import Pool
from windlass.worker.processes import adopt_orphans, descendants, send
from windlass.worker.reports import Reports
from windlass.worker.telemetry import Telemetry

log = logging.getLogger("windlass.worker")

LOOK_EVERY = 0.25
"""Seconds between two looks at the contexts' age and memory."""

NO_APP = Ready(tasks=[], queues=[], store="", tenant=EVERY_TENANT)
"""What a worker without an app starts with: it runs what has a handler."""

LOOK_AGAIN_AFTER, LOOK_AGAIN_SOON = 300.0, 60.0
"""Seconds between two probes of the languages that can be run; and if some cannot."""

UNTRIED: list[Language] = ["http"]
"""The languages of handlers that can be run without an interpreter."""

LAST_REPORTS = 5.0
"""Seconds of its grace that a worker which ends waits for a store that does not take its reports."""

LAST_MOMENT = 1.0
"""Seconds that it waits for that in any case, and for processes that do not end."""


class Supervisor:
    """One worker, from its first claim to its last report."""

    def __init__(
        self, service: Service, pool: Pool, app: Ready, options: WorkerOptions, *, clock: Clock, chance: Chance
    ) -> None:
        self._service = service
        self._options = options
        self._clock = clock
        self._membership = Membership(service, app.tenant, _about(app, options))
        self._crew = Crew(pool, options if app.tasks else replace(options, contexts=0), clock)
        self._reports = Reports(service, self._membership, clock)
        self._jobs = Jobs(self._crew, self._reports, clock, options.max_output, app.tasks)
        self._leases = Leases(self._jobs, service, self._membership, clock)
        self._claims = Claims(self._jobs, service, self._membership, clock, chance)
        self._claims.burst = options.burst
        self._jobs.gossip = self._leases
        self._telemetry = None if options.telemetry is None else Telemetry(options.telemetry, clock)
        self._jobs.telemetry = self._telemetry
        self._functions: Functions | None = None
        self._handled: Handled | None = None
        if options.functions is not None:
            network = Network(read_allowed(options.reach))
            self._functions = Functions(options.functions, network, chance=chance)
            handled = Handled(service, self._functions, self._jobs, clock, options.functions.contexts)
            self._jobs.elsewhere = self._handled = handled
            self._claims.warm = handled.warm
            self._claims.languages = UNTRIED
        pool.hears = self._jobs
        self._looked = asyncio.Event()
        """Whether it is known which languages of handlers can be run."""
        self._stops = 0
        self._grace_over: float | None = None
        """When what runs has had its time, by our own clock; null = not stopping."""
        self._forced = asyncio.Event()
        self._silent = False
        """Whether the store did not even take the last reports."""

    @property
    def able(self) -> bool:
        """Whether the queue answers this worker's claims."""
        return self._claims.able.is_set()

    async def run(self) -> None:
        """Work until `stop`, or in a burst until nothing is left."""
        adopt_orphans()
        if not await self._claims.introduce():
            return
        self._crew.fill()
        about = self._membership.about
        known = ", ".join(about.tasks or []) or "no tasks of its own"
        also = " and what has a handler" if about.handlers else ""
        log.info("%s runs %s from %s%s, %d at once", about.name, known, about.queues, also, about.slots)
        reporting = asyncio.create_task(self._reports.run())
        duties: list[Awaitable[None]] = [asyncio.shield(reporting), self._leases.run(), self._crew.guard()]
        duties.append(self._tend())
        if self._handled is not None:
            duties += [self._handled.run(), self._look_at_languages(self._handled)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_awaited(duty)) for duty in duties]
                if self._options.burst and self._handled is not None:
                    await self._looked.wait()  # or it might end before it takes what it can run
                try:
                    await self._claims.run(self._options.slots, self._options.max_jobs)
                except Damaged:
                    await self._finish_what_runs()
                    raise
                await self._finish_what_runs()
                for task in tasks:
                    task.cancel()
        except ExceptionGroup as faults:
            if self._crew.hiring:  # else it has given back already
                await self._give_back()
            raise faults.exceptions[0] from None  # where one duty cannot go on, none can; the first says why
        finally:
            reporting.cancel()
            await self._take_leave()

    def stop(self) -> None:
        """The first call lets running jobs finish within the grace; a second gives them back at once."""
        self._stops += 1
        if self._stops == 1:
            self._grace_over = self._clock.monotonic() + self._options.grace
        else:
            self._forced.set()
        self._looked.set()
        self._claims.stop()

    def pause(self, paused: bool) -> None:
        """Claim nothing for now, or again."""
        self._claims.pause(paused)

    def quit(self) -> None:
        """Stop at once and report nothing: leases run out, and the guardian ends every process."""
        os._exit(os.EX_TEMPFAIL)

    async def _finish_what_runs(self) -> None:
        if self._jobs.held:
            log.info("stopping; %s %g s to finish", _jobs(len(self._jobs.held), "get", "gets"), self._options.grace)
        ended, forced = asyncio.create_task(self._jobs.all_ended()), asyncio.create_task(self._forced.wait())
        await asyncio.wait([ended, forced], timeout=self._grace_left(), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        forced.cancel()
        await self._give_back()

    def _grace_left(self) -> float:
        if self._grace_over is None:
            return self._options.grace
        return 0.0 if self._forced.is_set() else max(0.0, self._grace_over - self._clock.monotonic())

    async def _give_back(self) -> None:
        """End what still runs, then say so: the next worker must not run those jobs beside us."""
        self._crew.hiring = False
        if self._jobs.held:
            log.info("gives %s back", _jobs(len(self._jobs.held)))
            await self._crew.close()
            self._jobs.give_back()
        reported, forced = asyncio.create_task(self._report_all()), asyncio.create_task(self._forced.wait())
        if not self._forced.is_set():
            within = max(LAST_MOMENT, min(LAST_REPORTS, self._grace_left()))
            await asyncio.wait([reported, forced], timeout=within, return_when=asyncio.FIRST_COMPLETED)
        if self._forced.is_set():
            await asyncio.wait([reported], timeout=LAST_MOMENT)
        self._silent = not reported.done()
        reported.cancel()
        forced.cancel()
        if self._silent:
            log.warning("leaves without reporting what has ended: the store does not answer, leases will run out")

    async def _report_all(self) -> None:
        await self._claims.given_back()
        await self._reports.flush()

    async def _take_leave(self) -> None:
        if self._telemetry is not None:
            self._telemetry.close()
        if self._functions is not None:
            await self._end_functions(self._functions)
        await self._crew.close()
        if self._silent:
            return
        try:
            async with asyncio.timeout(LAST_MOMENT):
                await self._service(Unregister(**self._membership.names()))
        except (WindlassError, TimeoutError) as fault:
            log.info("left without saying so: %s", fault or "the store does not answer")

    async def _end_functions(self, functions: Functions) -> None:
        """However long their keepers take, or if they are stuck."""
        closing = asyncio.create_task(functions.close())
        await asyncio.wait([closing], timeout=LAST_MOMENT)
        if not closing.done():
            for keeper in functions.keepers():
                for one in [keeper, *descendants(keeper)]:
                    send(one, signal.SIGKILL)
            await asyncio.wait([closing], timeout=LAST_MOMENT)
        closing.cancel()

    async def _look_at_languages(self, handled: Handled) -> None:
        """Find out, now and then, which languages can be run here, and take jobs of no others."""
        assert self._functions is not None  # noqa: S101 - who has handlers has them
        while True:
            handled.doubt.clear()
            unable = await self._functions.unable()
            await self._say_languages(unable)
            self._looked.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_SOON if unable else LOOK_AGAIN_AFTER):
                    await handled.doubt.wait()

    async def _say_languages(self, unable: dict[str, str]) -> None:
        about = self._membership.about
        languages = [lang for lang in get_args(Language) if lang not in unable]
        for lang, why in unable.items():
            if about.unable.get(lang) != why:
                log.info("takes no jobs of handlers in %s: %s", lang, why)
        if back := about.unable.keys() - unable.keys():
            log.info("takes jobs of handlers in %s again", ", ".join(sorted(back)))
        if languages != self._claims.languages:
            self._claims.take_only(languages)
        try:
            await self._membership.tell(replace(about, languages=languages, unable=unable))
        except WindlassError as fault:
            log.warning("cannot say which languages it runs: %s", fault)

    async def _tend(self) -> None:
        while True:
            await self._clock.sleep(LOOK_EVERY)
            self._jobs.kill_fat()
            if self._telemetry is not None:
                self._telemetry.flush()


async def _awaited(duty: Awaitable[None]) -> None:
    await duty


def _jobs(count: int, do: str = "", does: str = "") -> str:
    return f"{count} job {does}".rstrip() if count == 1 else f"{count} jobs {do}".rstrip()


def _about(app: Ready, options: WorkerOptions) -> NewWorker:
    host = socket.gethostname()
    return NewWorker(
        name=options.name or f"{host}-{os.getpid()}",
        node=host,
        pid=os.getpid(),
        queues=options.queues or app.queues or ["default"],
        in_turn=not options.queues,
        tasks=app.tasks,
        options=app.options,
        handlers=options.functions is not None,
        sandbox=None if options.functions is None else options.functions.tier,
        languages=None if options.functions is None else UNTRIED,
        slots=options.slots,
    )
