"""Renews the leases of running jobs and obeys what the queue answers.

A renewal waits in the queue for orders and messages. What jobs say meanwhile is reported a few times a second. This
process runs no user code, so nothing a task does can keep it from renewing.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from windlass.model.errors import WindlassError
from windlass.model.operations import Alive, Renew, Renewed
from windlass.model.output import RunUsage
from windlass.model.ports import Clock
from windlass.model.worker import NO_ORDERS, WorkerOrders
from windlass.worker.claims import Registration
from windlass.worker.linux import UsageMeter
from windlass.worker.reports import without_repeats
from windlass.worker.runs import ActiveRun, RunTable, Stop

log = logging.getLogger("windlass.worker")

UPDATE_EVERY = 0.25
"""Seconds between two updates."""

TRY_AGAIN = 0.5

YOUNG = 0.1
"""Seconds during which a job is not renewed: most have ended by then."""

MOST_WAIT = 30.0
"""Seconds that one renewal waits for orders."""

MEASURE_EVERY = 5.0
"""Seconds between two reports of what the worker uses."""

PAUSE = 0.02
"""Seconds between two renewals, at least."""

NO_USAGE = RunUsage()


class Measured(NamedTuple):
    """What a worker and its runs use, if that was just measured."""

    memory: int | None = None
    cpu: float = 0.0
    runs: Mapping[int, RunUsage] = {}
    """By number of the run."""


class Leases:
    """Keeps one worker's leases alive. A `RunListener`. `run` until it is cancelled."""

    def __init__(
        self, runs: RunTable, registration: Registration, clock: Clock, meter: UsageMeter | None = None
    ) -> None:
        """`meter`: measures what the worker uses, which is reported now and then."""
        self._runs = runs
        self._registration = registration
        self._clock = clock
        self._waiting: asyncio.Future[Renewed] | None = None
        """A renewal that waits for orders, unless it is to be cancelled soon anyway."""
        self._hurried = False
        self._meter = meter
        self._measured_at = float("-inf")
        self._take_orders: Callable[[WorkerOrders], None] | None = None
        self._orders: WorkerOrders | None = None
        """What people have ordered this worker to do; null = it takes no orders."""
        runs.subscribe(self)

    def take_orders(self, obey: Callable[[WorkerOrders], None]) -> None:
        """From now on, call this with what people order the worker to do."""
        self._take_orders, self._orders = obey, NO_ORDERS

    async def run(self) -> None:
        await self._registration.registered.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew())
            group.create_task(self._send_updates())

    # What runs do

    def runs_started(self) -> None:
        if self._waiting is not None:
            asyncio.get_running_loop().call_later(YOUNG, self._hurry_if_grown, self._waiting)
            self._waiting = None

    def run_has_room(self, run: ActiveRun) -> None:
        """Ask for more messages, if the renewal in flight does not."""
        if self._waiting is not None and run.heard is not None and not run.asked:
            self._hurry(self._waiting)
            self._waiting = None

    # Renewals

    async def _renew(self) -> None:
        complained = False
        while True:
            started = self._clock.monotonic()
            active = self._runs.active.values()
            grown = [one for one in active if started - one.since >= YOUNG]
            asked, *others = without_repeats(grown)
            wait = min(MOST_WAIT, self._registration.lease / 3) if len(grown) == len(active) and not others else YOUNG
            measured = self._measure()
            try:
                for some in others:
                    self._obey(some, await self._ask(some, 0.0, measured))
                renewed = await self._ask(asked, wait, measured)
            except WindlassError as fault:
                log.log(logging.DEBUG if complained else logging.WARNING, "cannot renew leases: %s", fault)
                complained = True
                await self._clock.sleep(TRY_AGAIN)
            else:
                if complained:
                    log.info("leases are renewed again")
                complained = False
                self._obey(asked, renewed)
                # It may have been answered early for nothing: for a job that has ended, or is being stopped already.
                # And a message is mostly taken in that time, so that the next renewal asks for more.
                since = self._clock.monotonic() if renewed.messages else started
                await self._clock.sleep(max(0.0, since + PAUSE - self._clock.monotonic()))

    async def _ask(self, runs: list[ActiveRun], wait: float, measured: Measured) -> Renewed:
        """Renew and wait for orders; cancelled when jobs have started meanwhile, because it does not name them."""
        alive = [
            Alive(
                id=one.id,
                token=one.token,
                tenant=one.tenant,
                deadline=one.known_deadline,
                heard=one.heard,
                lease=one.lease,
                usage=measured.runs.get(one.number),
            )
            for one in runs
        ]
        for one, asked in zip(runs, alive, strict=True):
            one.asked = asked.heard is not None
        memory, cpu, _ = measured
        paused, stop = (None, None) if self._orders is None else (self._orders.pause.paused, self._orders.stop)
        asking = asyncio.ensure_future(
            self._registration.ask(
                lambda names: Renew(**names, jobs=alive, wait=wait, memory=memory, cpu=cpu, paused=paused, stop=stop)
            )
        )
        if wait > YOUNG:
            self._waiting = asking
        try:
            return await asking
        except asyncio.CancelledError:
            if not self._hurried or is_cancelled():  # both may come in the same round of the event loop
                raise
            return Renewed()
        finally:
            self._waiting = None
            self._hurried = False

    def _measure(self) -> Measured:
        """What the worker and its runs use; nothing, if it is not measured, or was a moment ago."""
        if self._meter is None or self._clock.monotonic() - self._measured_at < MEASURE_EVERY:
            return Measured()
        self._measured_at = self._clock.monotonic()
        active = self._runs.active.values()
        own = {one.number: process for one in active if (process := one.own_process) is not None}
        memory, cpu, used = self._meter.read(own)
        for one in active:
            if one.printed:
                used[one.number] = replace(used.get(one.number, NO_USAGE), output=one.printed)
        return Measured(memory, cpu, used)

    def _hurry_if_grown(self, asking: "asyncio.Future[Renewed]") -> None:
        """Cancel a renewal for jobs that it does not name; not for jobs that have ended, or have just begun."""
        if asking.done():
            return
        oldest = next(iter(self._runs.active.values()), None)
        if oldest is None:
            self._waiting = asking
            return
        left = oldest.since + YOUNG - self._clock.monotonic()
        if left <= 0:
            self._hurry(asking)
        else:
            asyncio.get_running_loop().call_later(max(left, PAUSE), self._hurry_if_grown, asking)

    def _hurry(self, asking: "asyncio.Future[Renewed]") -> None:
        self._hurried = asking.cancel()

    def _obey(self, asked: Sequence[ActiveRun], renewed: Renewed) -> None:
        """Do what the answer says: of the worker, and of the runs that were named and are still active."""
        if renewed.worker is not None and self._take_orders is not None:
            self._orders = renewed.worker
            self._take_orders(renewed.worker)
        if not (renewed.lost or renewed.orders or renewed.messages):
            return
        # A job may have come back meanwhile, as another run: the answer is not about that one.
        active = {one.id: one for one in asked if self._runs.is_active(one)}
        for id in renewed.lost:
            if id in active:
                self._runs.lose(active[id])
        for id, messages in groupby(renewed.messages, key=attrgetter("id")):
            if id in active:
                self._runs.deliver(active[id], list(messages))
        for order in renewed.orders:
            if order.id not in active:
                continue
            if order.deadline is not None:
                self._runs.shorten(active[order.id], order.deadline)
            else:
                self._runs.stop(active[order.id], Stop.CANCEL)

    async def _send_updates(self) -> None:
        while True:
            await self._clock.sleep(UPDATE_EVERY)
            self._runs.send_updates()


def is_cancelled() -> bool:
    """Whether the current task is to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
