"""Jobs whose code is kept in the queue: their handlers fetched, the jobs given away in batches, their ends reported.

Knows handlers and what is said of running functions; how those are run, stopped and kept apart is not known here.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from windlass.model.errors import Missing, Unavailable, WindlassError
from windlass.model.handler import Handler
from windlass.model.job import Stream
from windlass.model.operations import MOST_WARM, Claimed, Finished, GetCode, Service, Unrun
from windlass.model.ports import Clock
from windlass.worker.allowances import Allowance, Allowances, delays, refusal
from windlass.worker.functions import FunctionJob, FunctionOutcome, Functions, Tier
from windlass.worker.functions.terms import ERROR
from windlass.worker.held import Held
from windlass.worker.outcomes import answered, refused

log = logging.getLogger("windlass.worker")

FRESH = 0.25
"""Seconds for which code is taken for the newest."""

POSTPONED = 2.0
"""Seconds before a job is claimed again whose code could not be had."""

TOGETHER = 0.1
"""Seconds of work that go to a context together, by what the last batch took."""

MOST_PACES = 10_000

Given = tuple[Held, Claimed]


class Holder(Protocol):
    """Whoever holds the jobs."""

    held: dict[int, Held]

    def has_said(self, held: Held, stream: Stream, data: bytes) -> None: ...

    def leave(self, held: Held, report: Finished | Unrun) -> None: ...


class _Known(NamedTuple):
    handler: Handler
    asked_at: float


class Handled:
    """The jobs of one worker whose tasks have handlers. `run` until it is cancelled."""

    def __init__(self, service: Service, functions: Functions, holder: Holder, clock: Clock, contexts: int) -> None:
        self._service = service
        self._functions = functions
        self._holder = holder
        self._clock = clock
        self._contexts = contexts
        self._taken: asyncio.Queue[list[Given]] = asyncio.Queue()
        self._waiting: set[int] = set()
        """Numbers of jobs whose code is not there yet."""
        self._known: dict[tuple[str, str], _Known] = {}
        self._allowances = Allowances(service, clock)
        self.doubt = asyncio.Event()
        """Set when a handler could not be run that should: the languages are probed again."""
        self._paces: dict[str, float] = {}
        """By digest of a handler, the seconds that one job took in the last batch."""

    def take(self, given: Sequence[Given]) -> None:
        """Run these, those of one handler together."""
        groups: dict[tuple[str, str], list[Given]] = {}
        for held, claimed in given:
            self._waiting.add(held.number)
            groups.setdefault((held.job.tenant, held.job.task), []).append((held, claimed))
        for group in groups.values():
            self._taken.put_nowait(group)

    def warm(self) -> list[str]:
        """The tasks that have a context waiting for them, as `tenant/task`."""
        tasks, engines = self._functions.warm()
        if engines:
            known = self._known.items()
            tasks |= {name for name, one in known if (one.handler.tenant, one.handler.eid) in engines}
        return [f"{tenant}/{task}" for tenant, task in islice(tasks, MOST_WARM)]

    def stop(self, held: Held) -> None:
        """Stop a job, which then ends like any other."""
        if held.number in self._waiting:
            self._waiting.discard(held.number)
            self._holder.leave(held, Unrun(id=held.id, token=held.token, tenant=held.tenant))
        else:
            self._functions.stop(held.id, held.job.tenant, "stopped while it ran")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._run(await self._taken.get()))

    async def _run(self, given: list[Given]) -> None:
        first = given[0][0].job
        try:
            handler = await self._handler(first.tenant, first.task)
        except WindlassError as fault:
            log.warning("%d jobs of %s wait: %s", len(given), first.task, fault)
            self._give_back(given)
            return
        allowance = await self._allowances.of(first.tenant)
        wanted = [one for one in given if one[0].number in self._waiting]
        self._waiting.difference_update(held.number for held, _ in wanted)
        if (why := self._functions.never(handler)) is not None:
            log.warning("%d jobs of %s are refused: %s", len(wanted), first.task, why)
            for held, _ in wanted:
                self._holder.leave(held, refused(held, why))
            return
        if (why := self._functions.refusal(handler)) is not None:
            log.warning("%d jobs of %s wait: %s", len(wanted), first.task, why)
            self.doubt.set()
            self._give_back(wanted)
            return
        size = self._size(handler, len(wanted))
        async with asyncio.TaskGroup() as group:
            for start in range(0, len(wanted), size):
                group.create_task(self._run_batch(handler, wanted[start : start + size], allowance))

    def _size(self, handler: Handler, jobs: int) -> int:
        """How many go to a context together: quick ones as many as may, others spread, so that none waits for long."""
        if handler.options.whole_batch:
            return handler.options.batch
        spread = math.ceil(jobs / self._contexts)
        pace = self._paces.get(handler.digest, math.inf)
        quick = min(int(TOGETHER / pace), jobs) if pace else jobs
        return min(handler.options.batch, max(1, spread, quick))

    async def _handler(self, tenant: str, task: str) -> Handler:
        known, now = self._known.get((tenant, task)), self._clock.monotonic()
        if known is not None and now - known.asked_at < FRESH:
            return known.handler
        digest = None if known is None else known.handler.digest
        try:
            code = await self._service(GetCode(tenant=tenant, task=task, known=digest))
        except Missing:
            self._known.pop((tenant, task), None)
            raise
        except Unavailable:
            if known is None:
                raise
            return known.handler  # the part of the store that keeps code is away: what is here is run
        handler = code.handler or (known and known.handler)
        assert handler is not None  # noqa: S101 - what is left out is what is known
        self._known[tenant, task] = _Known(handler, now)
        return handler

    async def _run_batch(self, handler: Handler, given: list[Given], allowance: Allowance) -> None:
        for held, _ in given:
            held.version = handler.version
        jobs = [_job(held, claimed) for held, claimed in given]
        ear = _Ear(self._holder, {held.id: held for held, _ in given}, self._clock, allowance)
        try:
            await self._functions.run(handler, jobs, ear)
        except Exception:
            log.exception("%d jobs of %s could not be run", len(given), handler.task)
        if ear.began_at is not None:
            if len(self._paces) >= MOST_PACES:
                self._paces.pop(next(iter(self._paces)))
            self._paces[handler.digest] = (self._clock.monotonic() - ear.began_at) / len(jobs)
        self._give_back(given)  # if there is still anything to give

    def _give_back(self, given: Sequence[Given]) -> None:
        for held, _ in given:
            self._waiting.discard(held.number)
            if self._holder.held.get(held.number) is held:
                self._holder.leave(held, Unrun(id=held.id, token=held.token, tenant=held.tenant, delay=POSTPONED))


class _Ear:
    """Hears of the jobs of one batch."""

    def __init__(self, holder: Holder, batch: dict[str, Held], clock: Clock, allowance: Allowance) -> None:
        self._holder = holder
        self._batch = batch
        self._clock = clock
        self.began_at: float | None = None
        """When the first of them began."""
        self._allowance = allowance

    def began(self, id: str, pid: int | None, tier: Tier | None) -> None:
        self._batch[id].process, self._batch[id].sandbox = pid, tier
        if self.began_at is None:
            self.began_at = self._clock.monotonic()
        log.debug("job %s is run by %s", id, "a URL" if tier is None else f"process {pid} ({tier})")

    def said(self, id: str, stream: Stream, data: bytes) -> None:
        if (held := self._current(id)) is not None:
            self._holder.has_said(held, stream, data)

    def ended(self, outcome: FunctionOutcome) -> None:
        if (held := self._current(outcome.id)) is None:
            return
        if not outcome.unrun:
            allowed = self._allowed(outcome)
            late = delays(self._allowance, len(allowed.jobs), self._clock.monotonic()) if allowed.jobs else []
            self._holder.leave(held, answered(held, allowed, late))
            return
        if held.stopping is None:
            log.warning("job %s was not begun: %s", held.id, outcome.message)
        delay = POSTPONED if held.stopping is None else None
        self._holder.leave(held, Unrun(id=held.id, token=held.token, tenant=held.tenant, delay=delay))

    def _allowed(self, outcome: FunctionOutcome) -> FunctionOutcome:
        """An outcome, unless it asks for more than its tenant may have."""
        sizes = [len(payload.encode()) for _, payload in outcome.jobs]
        if not sizes or (why := refusal(self._allowance, sizes)) is None:
            return outcome
        return FunctionOutcome(id=outcome.id, code=ERROR, type="Quota", message=f"its new jobs were refused: {why}")

    def _current(self, id: str) -> Held | None:
        held = self._batch[id]
        return held if self._holder.held.get(held.number) is held else None


def _job(held: Held, claimed: Claimed) -> FunctionJob:
    job = held.job
    return FunctionJob(
        id=job.id,
        tenant=job.tenant,
        task=job.task,
        payload=bytes(claimed.payload),
        content_type=job.content_type,
        timeout=held.limit,
    )
