"""Claims jobs on behalf of one worker and sends them to its address, never more at once than it has slots.

What the worker says decides: it has done the job, will tell, does not know the task, or was not reached. A job that was
not taken is given back without an attempt. While the worker lives its jobs are kept for it; time limits are held here,
whether it says anything or not.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Protocol, TypedDict

from msgspec.structs import replace

from windlass.model.errors import Unavailable, WindlassError
from windlass.model.job import Error, Reason
from windlass.model.lifecycle import Verdict
from windlass.model.names import JobKey, key_of
from windlass.model.operations import Began, Begin, Claimed, Finish, Finished, Release, Renewed, Service, Unrun
from windlass.model.ports import Chance, Clock
from windlass.model.wire import FAULTS
from windlass.model.worker import Worker
from windlass.worker.delivering import Delivery, NotDelivered

log = logging.getLogger("windlass.push")

WAIT = 30.0
"""Seconds that one claim waits for work."""

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds without deliveries after one that failed, and after each that fails then."""

UNKNOWN_FOR = 60.0
"""Seconds for which a worker is not offered a task that it said it does not know."""

GATHER = 0.002
"""Seconds that freed slots are gathered for one claim."""

STOP_WITHIN = 30.0
"""Seconds that a worker has to stop a cancelled job."""

RENEW_EVERY = 1.0


class Book(Protocol):
    """What is written on a worker's behalf."""

    @property
    def lease(self) -> float: ...

    async def claim(
        self, worker: Worker, nonce: bytes, slots: int, wait: float, unknown: Collection[str]
    ) -> list[Claimed]: ...

    async def renew(self, worker: Worker, jobs: Sequence[Claimed]) -> Renewed: ...

    async def lose(self, jobs: Sequence[Claimed]) -> None: ...

    async def held(self, worker: Worker) -> list[Claimed]: ...


class _Run:
    """A job that is on its way to the worker, or there."""

    def __init__(self, claimed: Claimed, seconds: float | None, *, delivered: bool = False) -> None:
        self.claimed = claimed
        self.seconds = seconds
        """How long it may take; null = as long as it likes."""
        self.limit = asyncio.timeout(None)
        self.delivered = delivered
        self.unwanted = False
        self.ended = asyncio.Event()


class Dispatcher:
    """One worker's jobs. `run` until it is cancelled: then what was not taken is given back, and if the worker is gone
    the rest is lost at once.
    """

    def __init__(
        self, worker: Worker, service: Service, book: Book, delivery: Delivery, *, clock: Clock, chance: Chance
    ) -> None:
        self.worker = worker
        self._service = service
        self._book = book
        self._delivery = delivery
        self._clock = clock
        self._chance = chance
        self._runs: dict[JobKey, _Run] = {}
        self._changed = asyncio.Event()
        self._unknown: dict[str, float] = {}
        self._failures = 0
        self._paused_until = 0.0
        self.gone = False
        """Whether the worker is."""

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                await self._adopt(group)
                group.create_task(self._renew())
                await self._claim(group)
        finally:
            for run in self._runs.values():
                if not run.delivered:
                    await self._give_back(run.claimed)
            left = [run.claimed for run in self._runs.values() if run.delivered and not run.ended.is_set()]
            if self.gone and left:
                await self._say(lambda: self._book.lose(left))
            await self._delivery.close()

    def ended(self, keys: Iterable[JobKey]) -> None:
        """The worker has told of these jobs."""
        for key in keys:
            if (run := self._runs.get(key)) is not None:
                run.ended.set()

    # Claiming

    async def _adopt(self, group: asyncio.TaskGroup) -> None:
        """Go on with what another server has sent; what it had not sent is given back."""
        for one in await self._book.held(self.worker):
            if one.job.pid is None:
                await self._give_back(one)
            else:
                self._start(group, _Run(one, self._time_left(one), delivered=True))

    async def _claim(self, group: asyncio.TaskGroup) -> None:
        while True:
            await self._clock.sleep(max(0.0, self._paused_until - self._clock.monotonic()))
            self._changed.clear()
            free = self.worker.slots - len(self._runs)
            if free < 1 or (self._failures and self._runs and not self._all_delivered()):
                await self._changed.wait()
                continue
            if free < self.worker.slots // 4:
                await self._clock.sleep(GATHER)  # others are about to end: one claim for all of them
                free = self.worker.slots - len(self._runs)
            # After a failure one job tries the way for all.
            for one in await self._take(1 if self._failures else free):
                self._start(group, _Run(one, _allowed(one)))

    def _start(self, group: asyncio.TaskGroup, run: _Run) -> None:
        self._runs[key_of(run.claimed.job)] = run
        group.create_task(self._follow(run))

    def _all_delivered(self) -> bool:
        return all(run.delivered for run in self._runs.values())

    async def _take(self, slots: int) -> list[Claimed]:
        now = self._clock.monotonic()
        self._unknown = {task: until for task, until in self._unknown.items() if until > now}
        nonce = self._chance.token()
        try:
            taken = await self._book.claim(self.worker, nonce, slots, WAIT, self._unknown)
        except WindlassError as fault:
            log.warning("cannot claim for %s: %s", self.worker.name, fault)
            await self._clock.sleep(RENEW_EVERY)
            return []
        except asyncio.CancelledError:
            # A claim that was broken off may have taken jobs: asked again in the same words, it names them.
            with suppress(WindlassError):
                await self._give_all_back(await self._book.claim(self.worker, nonce, slots, 0, self._unknown))
            raise
        if self._clock.monotonic() < self._paused_until:
            await self._give_all_back(taken)  # a delivery has failed while this waited
            return []
        return taken

    # One job

    async def _follow(self, run: _Run) -> None:
        """See a job through, from its claim until it has ended or is the worker's no more."""
        try:
            async with asyncio.timeout(run.seconds) as run.limit:
                if run.delivered or await self._deliver(run):
                    await run.ended.wait()
        except TimeoutError:
            await (self._give_back(run.claimed) if run.unwanted else self._time_out(run.claimed))
        if self._runs.get(key_of(run.claimed.job)) is run:  # it may have been given back, and claimed again by now
            del self._runs[key_of(run.claimed.job)]
        self._changed.set()

    def _time_left(self, claimed: Claimed) -> float | None:
        """Of a job that has been running for a while."""
        if claimed.deadline is None:
            return None
        return max(0.0, (claimed.deadline - self._clock.now()).total_seconds())

    async def _deliver(self, run: _Run) -> bool:
        """Whether the worker has taken the job and will tell of it."""
        claimed = run.claimed
        try:
            said = await self._delivery.send(claimed)
            if isinstance(said, Finished):
                await self._finish(said)
        except (NotDelivered, *FAULTS) as fault:
            self._pause(fault)
            await self._give_back(claimed)
            return False
        self._failures = 0
        if isinstance(said, Finished):
            return False
        if said == "unknown":
            log.info("%s does not know %s", self.worker.name, claimed.job.task)
            self._unknown[claimed.job.task] = self._clock.monotonic() + UNKNOWN_FOR
            await self._give_back(claimed)
            return False
        run.delivered = True
        self._changed.set()
        began = Began(**_named(claimed), pid=max(1, self.worker.pid))
        await self._say(lambda: self._service(Begin(tenant=self.worker.tenant, worker=self.worker.id, jobs=[began])))
        return True

    def _pause(self, fault: WindlassError) -> None:
        now = self._clock.monotonic()
        if now < self._paused_until:
            return  # one of several that were on their way together
        pause = PAUSES[min(self._failures, len(PAUSES) - 1)]
        log.warning("cannot send a job to %s: %s; again in %g s", self.worker.name, fault, pause)
        self._failures += 1
        self._paused_until = now + pause

    async def _time_out(self, claimed: Claimed) -> None:
        said = f"ran longer than its time limit of {_allowed(claimed) or 0:g} s"
        error = Error(type="Timeout", message=said)
        await self._finish(Finished(**_named(claimed), outcome=Verdict.ERROR, error=error, reason=Reason.TIMEOUT))

    async def _finish(self, report: Finished) -> None:
        await self._say(lambda: self._service(Finish(tenant=self.worker.tenant, worker=self.worker.id, jobs=[report])))

    async def _give_all_back(self, taken: list[Claimed]) -> None:
        for one in taken:
            await self._give_back(one)

    async def _give_back(self, claimed: Claimed) -> None:
        unrun = Unrun(**_named(claimed))
        await self._say(lambda: self._service(Release(tenant=self.worker.tenant, worker=self.worker.id, jobs=[unrun])))

    async def _say(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Told once more if the store does not answer; after that the lease runs out. What is faulty is refused."""
        for last in (False, True):
            try:
                await ask()
            except Unavailable as fault:
                if last:
                    log.warning("cannot tell of a job of %s: %s", self.worker.name, fault)
                else:
                    await self._clock.sleep(RENEW_EVERY)
            except FAULTS:
                raise
            except WindlassError as fault:
                log.warning("a job of %s: %s", self.worker.name, fault)
                return
            else:
                return

    # Leases

    async def _renew(self) -> None:
        """Keep the worker's jobs its own, and learn of those that are not any more."""
        while True:
            await self._clock.sleep(min(RENEW_EVERY, self._book.lease / 4))
            if not self._runs:
                continue
            try:
                for some in _apart(self._runs.values()):
                    self._obey(some, await self._book.renew(self.worker, [run.claimed for run in some.values()]))
            except WindlassError as fault:
                log.warning("cannot renew for %s: %s", self.worker.name, fault)

    def _obey(self, asked: Mapping[str, _Run], renewed: Renewed) -> None:
        for id in renewed.lost:
            asked[id].ended.set()
        for order in renewed.orders:
            run = asked[order.id]
            if run.unwanted:
                continue
            if order.order == "deadline":
                self._shorten(run, order.deadline)
            else:
                self._stop(run)

    def _shorten(self, run: _Run, deadline: datetime | None) -> None:
        """Time was taken from a running job: its limit comes as much earlier as its deadline does."""
        before, limit = run.claimed.deadline, run.limit.when()
        if before is None or deadline is None or limit is None:
            return
        run.claimed = replace(run.claimed, deadline=deadline)
        run.limit.reschedule(limit - (before - deadline).total_seconds())

    def _stop(self, run: _Run) -> None:
        """The worker hears of it when it renews; one that is still being asked hears the connection close."""
        run.unwanted = True
        now = asyncio.get_running_loop().time()
        until = now + STOP_WITHIN if run.delivered else now
        run.limit.reschedule(min(until, run.limit.when() or until))


class _Named(TypedDict):
    id: str
    token: str
    tenant: str


def _named(claimed: Claimed) -> _Named:
    return {"id": claimed.job.id, "token": claimed.token, "tenant": claimed.job.tenant}


def _apart(runs: Iterable[_Run]) -> list[dict[str, _Run]]:
    """Runs by id, in as many parts as one id has tenants: answers name ids."""
    parts: list[dict[str, _Run]] = []
    for run in runs:
        id = run.claimed.job.id
        part = next((part for part in parts if id not in part), None)
        if part is None:
            parts.append(part := {})
        part[id] = run
    return parts


def _allowed(claimed: Claimed) -> float | None:
    """Seconds that a run may take: by its timeout, or its tier; null = any number."""
    if claimed.deadline is None or claimed.job.started_at is None:
        return claimed.job.timeout
    return (claimed.deadline - claimed.job.started_at).total_seconds()
