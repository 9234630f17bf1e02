"""How a worker asks the queue: under the name that it is registered by, and for jobs.

The queue forgets a worker that was silent for a whole lease. The next call finds that out and registers it again; its
jobs stay its own under the new name, because their tokens are what counts. A claim is asked until the store answers. It
may be granted jobs as it is interrupted: sent again with the same nonce, it names them, and they are released.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypedDict, TypeVar

from windlass.model.errors import Busy, Damaged, Full, Missing, Unavailable, WindlassError
from windlass.model.handler import Language
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import A, Claim, Claimed, Operation, Register, Released, Service, Unregister
from windlass.model.ports import Clock, Randomness
from windlass.model.worker import NewWorker

log = logging.getLogger("windlass.worker")

T = TypeVar("T")

TRY_AGAIN = (0.1, 0.2, 0.5, 1.0)
"""Seconds between attempts while the store does not answer."""


class WorkerNames(TypedDict):
    """What every operation of a worker says of itself."""

    tenant: str
    worker: str


class Registration:
    """One worker's name in the queue."""

    def __init__(self, service: Service, tenant: str, about: NewWorker) -> None:
        self._service = service
        self._tenant = tenant
        self.about = about
        self._registered: NewWorker | None = None
        """What the queue knows of it."""
        self._worker = ""
        self.lease = 0.0
        self.registered = asyncio.Event()
        """Set once the queue has known it."""
        self._again = asyncio.Lock()

    @property
    def name_tenants(self) -> bool:
        """Whether each report must name its job's tenant: the worker serves all tenants."""
        return self._tenant == EVERY_TENANT

    async def register(self) -> None:
        about = self.about
        formerly = self._worker or None
        registered = await self._service(Register(tenant=self._tenant, worker=about, formerly=formerly))
        if self._worker not in ("", registered.worker):
            log.warning("the queue had forgotten this worker; registered again as %s", registered.worker)
        self._worker, self.lease = registered.worker, registered.lease
        self._registered = about
        self.registered.set()

    async def update(self, about: NewWorker) -> None:
        """Change what the queue knows of this worker; before it is registered, that is for the registration."""
        self.about = about
        if self._worker and self._registered != about:
            await self._service(Register(tenant=self._tenant, worker=about, id=self._worker))
            self._registered = about

    async def unregister(self) -> None:
        await self._service(Unregister(tenant=self._tenant, worker=self._worker))

    async def ask(self, make: Callable[[WorkerNames], Operation[A]]) -> A:
        """Ask under this worker's name; if the queue has forgotten the worker, register it and ask again."""
        worker = self._worker
        try:
            return await self._service(make({"tenant": self._tenant, "worker": worker}))
        except Missing:
            await self._register_again(worker)
            return await self._service(make({"tenant": self._tenant, "worker": self._worker}))

    async def _register_again(self, forgotten: str) -> None:
        async with self._again:
            if self._worker != forgotten:
                return  # another call has registered it meanwhile
            try:
                await self.register()
            except WindlassError as fault:
                raise Unavailable(f"cannot register: {fault}") from fault


class Claims:
    """One worker's claims, one at a time."""

    def __init__(
        self,
        registration: Registration,
        release: Callable[[Released], None],
        *,
        clock: Clock,
        chance: Randomness,
        give_up_if_damaged: bool,
    ) -> None:
        self._registration = registration
        self._report_release = release
        self._clock = clock
        self._chance = chance
        self._give_up_if_damaged = give_up_if_damaged
        self._asking: asyncio.Task[Any] | None = None
        """The task that asks, while it may be interrupted."""
        self._interrupted = False
        self._releasing: set[asyncio.Task[None]] = set()
        self._complained = False
        """Whether it has logged that it cannot claim, and not yet that it can again."""

    async def register(self) -> bool:
        """Register this worker, however long that takes; false = interrupted."""

        async def ask() -> bool:
            await self._registration.register()
            return True

        return bool(await self._unless_interrupted(ask))

    async def claim(
        self, slots: int, wait: float, warm: Sequence[str], languages: list[Language] | None
    ) -> list[Claimed]:
        """Up to so many jobs; none if there are none, or if this was interrupted."""
        nonce = self._chance.token().hex()

        def ask() -> Awaitable[list[Claimed]]:
            return self._registration.ask(
                lambda names: Claim(**names, slots=slots, wait=wait, nonce=nonce, warm=list(warm), languages=languages)
            )

        claimed: list[Claimed] | None = None
        try:
            claimed = await self._unless_interrupted(ask)
        finally:
            if claimed is None:
                task = asyncio.create_task(self._release(nonce, languages))
                self._releasing.add(task)
                task.add_done_callback(self._releasing.discard)
        return claimed or []

    def give_back(self, one: Claimed) -> None:
        """Release a job that this worker does not start."""
        tenant = one.job.tenant if self._registration.name_tenants else None
        self._report_release(Released(id=one.job.id, token=one.token, tenant=tenant))

    def interrupt(self) -> None:
        if self._asking is not None and not self._interrupted:
            self._interrupted = True
            self._asking.cancel()

    async def released(self) -> None:
        """Wait until what interrupted claims may have taken is known, and its release is being reported."""
        while self._releasing:
            await asyncio.wait(self._releasing)

    async def _release(self, nonce: str, languages: list[Language] | None) -> None:
        try:
            taken = await self._registration.ask(
                lambda names: Claim(**names, slots=1, nonce=nonce, languages=languages)
            )
        except WindlassError:
            return  # their lease will run out
        for one in taken:
            self.give_back(one)

    async def _unless_interrupted(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask until the store answers; null = interrupted."""
        self._interrupted = False
        # No task of its own: every job that finds this worker idle would wait for one more round of the event loop.
        task = self._asking = asyncio.current_task()
        try:
            return await self._until_answered(ask)
        except asyncio.CancelledError:
            if not self._interrupted or task is None or task.uncancel():
                raise
            return None
        finally:
            self._asking = None

    async def _until_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        pauses = itertools.chain(TRY_AGAIN, itertools.repeat(TRY_AGAIN[-1]))
        while True:
            try:
                answer = await ask()
            except (Unavailable, Full, Busy, Missing) as fault:
                if self._give_up_if_damaged and isinstance(fault, Damaged):
                    raise
                if not self._complained:
                    log.warning("cannot claim: %s", fault)
                self._complained = True
                await self._clock.sleep(next(pauses))
            else:
                if self._complained:
                    log.info("claims are answered again")
                self._complained = False
                return answer
