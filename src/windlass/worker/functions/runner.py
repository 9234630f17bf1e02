"""Runs jobs whose code is stored in the queue: fetches handlers, runs the jobs in batches, reports their outcomes.

`HandlerRunner` is the worker's `Runner` for them; `Functions` (`pool.py`) runs the batches. Where a batch runs, how a
context works and what confines it is not known here.
"""

import asyncio
import logging
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from windlass.model import wire
from windlass.model.duration import LONGEST
from windlass.model.errors import Missing, Unavailable, WindlassError
from windlass.model.handler import Handler
from windlass.model.job import MSGPACK
from windlass.model.operations import MOST_WARM, Claimed, GetCode, GetQuota, GetStats, Service
from windlass.model.output import Stream
from windlass.model.ports import Clock
from windlass.model.quota import Quota, too_large, too_many
from windlass.worker.functions import ERROR, FunctionJob, FunctionOutcome, Tier
from windlass.worker.functions.pool import Functions
from windlass.worker.runs import WORKER_STOPPED, ActiveRun, RunTable, function_finished, refused

log = logging.getLogger("windlass.worker")

FRESH = 0.25
"""Seconds for which a handler is taken for the newest."""

POSTPONED = 2.0
"""Seconds before a job whose handler could not be had is claimed again."""

TOGETHER = 0.1
"""Seconds of work that go to a context together, by what the last batch took."""

MOST_PACES = 10_000

QUOTA_FRESH = 1.0
"""Seconds for which a quota, and the number of stored jobs, are taken for current."""

MOST_TENANTS = 10_000

Batch = Sequence[tuple[ActiveRun, Claimed]]


class _KnownHandler(NamedTuple):
    handler: Handler
    asked_at: float


class HandlerRunner:
    """The `Runner` of jobs whose tasks have handlers. `run` until it is cancelled."""

    def __init__(self, service: Service, functions: Functions, runs: RunTable, clock: Clock, contexts: int) -> None:
        self._service = service
        self._functions = functions
        self._runs = runs
        self._clock = clock
        self._contexts = contexts
        self._taken: asyncio.Queue[list[tuple[ActiveRun, Claimed]]] = asyncio.Queue()
        self._waiting: set[int] = set()
        """Numbers of runs whose handler is not here yet."""
        self._known: dict[tuple[str, str], _KnownHandler] = {}
        self._quotas = Quotas(service, clock)
        self.doubt = asyncio.Event()
        """Set when a handler could not be run that should: the languages are probed again."""
        self._paces: dict[str, float] = {}
        """By digest of a handler, the seconds that one job took in the last batch."""

    def start(self, batch: Batch) -> None:
        """Run these, those of one handler together."""
        groups: dict[tuple[str, str], list[tuple[ActiveRun, Claimed]]] = {}
        for run, claimed in batch:
            self._waiting.add(run.number)
            if not run.cleared:  # its process is not known yet: the worker's stands for it
                self._runs.begin(run, os.getpid(), partial(self._taken.put_nowait, [(run, claimed)]))
                continue
            groups.setdefault((run.job.tenant, run.job.task), []).append((run, claimed))
        for group in groups.values():
            self._taken.put_nowait(group)

    def stop(self, run: ActiveRun) -> None:
        if run.number in self._waiting:
            self._waiting.discard(run.number)
            self._runs.remove(run, run.released())
        else:
            self._functions.stop(run.id, run.job.tenant, "stopped while it ran")

    def kill(self, run: ActiveRun) -> None:
        """Release it; its context ends with the worker."""
        self.stop(run)
        self._runs.remove(run, run.released(stopped=WORKER_STOPPED))

    def send(self, run: ActiveRun, messages: Sequence[bytes]) -> None:
        """Functions take no messages."""

    def warm(self) -> list[str]:
        """The tasks that have a context waiting for them, as `tenant/task`."""
        if not self._known:
            return []
        tasks, engines = self._functions.warm()
        if engines:
            known = self._known.items()
            tasks |= {name for name, one in known if (one.handler.tenant, one.handler.eid) in engines}
        return [f"{tenant}/{task}" for tenant, task in islice(tasks, MOST_WARM)]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._run(await self._taken.get()))

    async def _run(self, batch: Batch) -> None:
        first = batch[0][0].job
        try:
            handler = await self._handler(first.tenant, first.task)
        except WindlassError as fault:
            log.warning("%d jobs of %s wait: %s", len(batch), first.task, fault)
            self._postpone(batch)
            return
        quota = await self._quotas.of(first.tenant)
        wanted = [one for one in batch if one[0].number in self._waiting]
        self._waiting.difference_update(run.number for run, _ in wanted)
        if (why := self._functions.forbidden(handler)) is not None:
            log.warning("%d jobs of %s are refused: %s", len(wanted), first.task, why)
            for run, _ in wanted:
                self._runs.remove(run, refused(run, why))
            return
        if (why := self._functions.refusal(handler)) is not None:
            log.warning("%d jobs of %s wait: %s", len(wanted), first.task, why)
            self.doubt.set()
            self._postpone(wanted)
            return
        size = self._size(handler, len(wanted))
        async with asyncio.TaskGroup() as group:
            for start in range(0, len(wanted), size):
                group.create_task(self._run_batch(handler, wanted[start : start + size], quota))

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
            return known.handler  # the part of the store that keeps handlers is away: run the one that is here
        handler = code.handler or (known and known.handler)
        assert handler is not None  # noqa: S101 - the queue leaves out only what is known
        self._known[tenant, task] = _KnownHandler(handler, now)
        return handler

    async def _run_batch(self, handler: Handler, batch: Batch, quota: "QuotaLeft") -> None:
        for run, _ in batch:
            run.version = handler.version
        jobs = [_function_job(run, claimed) for run, claimed in batch]
        listener = _BatchListener(self._runs, {run.id: run for run, _ in batch}, self._clock, quota)
        try:
            await self._functions.run(handler, jobs, listener)
        except Exception:
            log.exception("%d jobs of %s could not be run", len(batch), handler.task)
        if listener.began_at is not None:
            if len(self._paces) >= MOST_PACES:
                self._paces.pop(next(iter(self._paces)))
            self._paces[handler.digest] = (self._clock.monotonic() - listener.began_at) / len(jobs)
        self._postpone(batch)  # those without an outcome

    def _postpone(self, batch: Batch) -> None:
        for run, _ in batch:
            self._waiting.discard(run.number)
            if self._runs.is_active(run):
                self._runs.remove(run, run.released(POSTPONED))


class _BatchListener:
    """Follows the jobs of one batch."""

    def __init__(self, runs: RunTable, batch: dict[str, ActiveRun], clock: Clock, quota: "QuotaLeft") -> None:
        self._runs = runs
        self._batch = batch
        self._clock = clock
        self.began_at: float | None = None
        """When the first of them began."""
        self._quota = quota

    def began(self, id: str, pid: int | None, tier: Tier | None) -> None:
        run = self._batch[id]
        run.pid, run.sandbox, run.began, run.alone = pid, tier, False, pid is not None
        if self.began_at is None:
            self.began_at = self._clock.monotonic()
        log.debug("job %s runs in %s", id, "a call to its URL" if tier is None else f"process {pid} ({tier})")

    def printed(self, id: str, stream: Stream, data: bytes) -> None:
        if self._runs.is_active(run := self._batch[id]):
            self._runs.print(run, stream, data)

    def ended(self, outcome: FunctionOutcome) -> None:
        run = self._batch[outcome.id]
        if not self._runs.is_active(run):
            return
        if not outcome.unrun:
            allowed = self._within_quota(outcome)
            late = delays(self._quota, len(allowed.jobs), self._clock.monotonic()) if allowed.jobs else []
            self._runs.remove(run, function_finished(run, allowed, late))
            return
        if run.stopping is None:
            log.warning("job %s did not begin: %s", run.id, outcome.message)
        self._runs.remove(run, run.released(POSTPONED if run.stopping is None else None))

    def _within_quota(self, outcome: FunctionOutcome) -> FunctionOutcome:
        """An outcome, unless it asks for more jobs than its tenant may have."""
        sizes = [len(payload.encode()) for _, payload in outcome.jobs]
        if not sizes or (why := over_quota(self._quota, sizes)) is None:
            return outcome
        return FunctionOutcome(id=outcome.id, code=ERROR, type="Quota", message=f"its new jobs were refused: {why}")


def _function_job(run: ActiveRun, claimed: Claimed) -> FunctionJob:
    job, payload, content_type = run.job, bytes(claimed.payload), run.job.content_type
    if job.with_results in ("one", "list") and wire.value(payload, content_type) is None:
        payload, content_type = (
            wire.encode(claimed.results[0] if job.with_results == "one" else claimed.results),
            MSGPACK,
        )
    return FunctionJob(
        id=job.id,
        tenant=job.tenant,
        payload=payload,
        content_type=content_type,
        timeout=run.limit,
        files=claimed.files,
    )


# How many jobs functions may still make


class QuotaLeft:
    """A tenant's quota, and what is left of it."""

    def __init__(self) -> None:
        self.quota = Quota()
        self.stored = 0
        self.read_at: float | None = None
        self.left = 0.0
        """New jobs that may start now; below zero: made ahead of their time."""
        self.counted_at: float | None = None


class Quotas:
    """The quotas of one worker's tenants, read now and then."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._known: dict[str, QuotaLeft] = {}

    async def of(self, tenant: str) -> QuotaLeft:
        """As it is now, or as last seen: a server that does not show quotas applies them itself."""
        if tenant not in self._known and len(self._known) >= MOST_TENANTS:
            self._known.pop(next(iter(self._known)))
        known, now = self._known.setdefault(tenant, QuotaLeft()), self._clock.monotonic()
        if known.read_at is not None and now - known.read_at < QUOTA_FRESH:
            return known
        known.read_at = now
        with suppress(WindlassError):
            known.quota = await self._service(GetQuota(tenant=tenant))
            if known.quota.stored_jobs is not None:
                stats = await self._service(GetStats(tenant=tenant))
                known.stored = sum(count for queue in stats.queues for count in queue.states.values())
        return known


def over_quota(quota: QuotaLeft, sizes: Sequence[int]) -> str | None:
    """Why new jobs with payloads of so many bytes may not be made; null = they may, and are counted."""
    why = too_large(quota.quota, max(sizes)) or too_many(quota.quota, quota.stored, len(sizes))
    if why is None:
        quota.stored += len(sizes)
    return why


def delays(quota: QuotaLeft, number: int, now: float) -> list[float]:
    """Seconds after which each of so many new jobs may start, so that they start no faster than the tenant may send.

    They are made in any case: the run that asked for them is over, and would not ask again.
    """
    rate = quota.quota.jobs_per_second
    if rate is None:
        quota.counted_at = None
        return [0.0] * number
    at_once = max(rate, 1.0)
    left = at_once
    if quota.counted_at is not None:
        left = min(at_once, quota.left + rate * (now - quota.counted_at))
    quota.left, quota.counted_at = left - number, now
    return [min(LONGEST, max(0.0, (place - left) / rate)) for place in range(1, number + 1)]
