"""Runs the jobs of handlers: in contexts, or behind a URL.

Knows which of the two a handler wants, and which job is where, so that it can be stopped.
"""

import os
from collections.abc import Sequence
from typing import Protocol

from windlass.model.handler import Handler
from windlass.model.ports import Chance
from windlass.worker.delivering import Network
from windlass.worker.functions.calling import Call, Calls
from windlass.worker.functions.context import Context
from windlass.worker.functions.contexts import CLOSED, Contexts
from windlass.worker.functions.process import Refused
from windlass.worker.functions.terms import ERROR, FunctionJob, FunctionOptions, FunctionOutcome, Hears


class Stoppable(Protocol):
    """A run of some jobs."""

    def stop(self, id: str, why: str) -> None: ...


class Functions:
    """Everything uploaded that one worker runs. To be closed."""

    def __init__(self, options: FunctionOptions, network: Network, *, chance: Chance) -> None:
        self._contexts = Contexts(options, chance, os.environ)
        self._calls = Calls(network)
        self._runs: dict[Stoppable, Sequence[FunctionJob]] = {}
        """Where each job is, the latest run last."""

    def refusal(self, handler: Handler) -> str | None:
        """Why jobs of a handler cannot be run here, if so: its interpreter is missing, or the tier cannot be had."""
        return None if handler.lang == "http" else self._contexts.refusal(handler)

    def never(self, handler: Handler) -> str | None:
        """Why this worker will not run them whatever changes; null = it would."""
        return None if handler.lang == "http" else self._contexts.forbidden(handler)

    async def unable(self) -> dict[str, str]:
        """The languages that cannot be run here, each with the reason; cancelling this ends the trial."""
        return await self._contexts.unable()

    def warm(self) -> tuple[set[tuple[str, str]], set[tuple[str, str | None]]]:
        """Tasks and engines (`eid`) that have a context waiting for them, each with its tenant."""
        return self._contexts.warm()

    async def run(self, handler: Handler, jobs: Sequence[FunctionJob], hears: Hears) -> None:
        """Run a batch to its end; each job is told of by `hears.ended`, once, as soon as it has ended.

        A job that kills its process costs only itself: those after it go on in a fresh context. Whoever cancels this
        ends what runs and hears no more of it.
        """
        if (refused := self.refusal(handler)) is not None:
            _hand_back(jobs, hears, refused)
            return
        run = Call(self._calls, handler, hears) if handler.lang == "http" else Run(self._contexts, handler, hears)
        self._runs[run] = jobs
        try:
            await run.run(jobs)
        finally:
            del self._runs[run]

    def stop(self, id: str, tenant: str, why: str) -> None:
        """Stop a job: its outcome (500, `message` = why) is told when it has stopped; `unrun` if it had not begun."""
        for run, jobs in reversed(self._runs.items()):  # one that is run anew before it has stopped is in the later run
            if any(job.id == id and job.tenant == tenant for job in jobs):
                run.stop(id, why)
                return

    def keepers(self) -> list[int]:
        """The processes of ours that watch over running code."""
        return self._contexts.keepers()

    async def close(self) -> None:
        """End everything at once; what still runs is told as stopped, what was not begun as `unrun`."""
        for run, jobs in list(self._runs.items()):
            for job in jobs:
                run.stop(job.id, CLOSED)
        await self._contexts.close()
        await self._calls.close()


class Run:
    """A batch on its way through as many contexts as it takes."""

    def __init__(self, contexts: Contexts, handler: Handler, hears: Hears) -> None:
        self._contexts = contexts
        self._handler = handler
        self._hears = hears
        self._context: Context | None = None
        self._unwanted: dict[str, str] = {}
        """Jobs that wait for a context and need none any more, and why."""

    def stop(self, id: str, why: str) -> None:
        if self._context is not None:
            self._context.stop(id, why)
        else:
            self._unwanted[id] = why

    async def run(self, jobs: Sequence[FunctionJob]) -> None:
        left = list(jobs)
        try:
            while left:
                left = await self._in_one_context(left)
        except Refused as fault:
            _hand_back(left, self._hears, str(fault))

    async def _in_one_context(self, jobs: list[FunctionJob]) -> list[FunctionJob]:
        """The jobs that are left when their context has ended before them."""
        context = await self._contexts.take(self._handler)
        try:
            wanted = [job for job in jobs if not self._is_unwanted(job)] if self._unwanted else jobs
            self._context = context
            return await context.run(self._handler, wanted, self._hears) if wanted else []
        except BaseException:
            context.end()
            raise
        finally:
            self._context = None
            self._contexts.give_back(context, self._handler)

    def _is_unwanted(self, job: FunctionJob) -> bool:
        why = self._unwanted.pop(job.id, None)
        if why is not None:
            _hand_back([job], self._hears, why)
        return why is not None


def _hand_back(jobs: Sequence[FunctionJob], hears: Hears, why: str) -> None:
    for job in jobs:
        hears.ended(FunctionOutcome(id=job.id, code=ERROR, type="Refused", message=why, unrun=True))
