"""A worker's registration: the name under which it asks the queue for everything else.

The queue forgets a worker that was silent for a whole lease. The next call finds that out and registers it again; its
jobs stay its own under the new name, because their tokens are what counts.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TypedDict

from windlass.model.errors import Missing, Unavailable, WindlassError
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import A, Operation, Register, Service, Unregister
from windlass.model.worker import NewWorker

log = logging.getLogger("windlass.worker")


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
        self._again = asyncio.Lock()

    @property
    def name_tenants(self) -> bool:
        """Whether each report must name its job's tenant: the worker serves all tenants."""
        return self._tenant == EVERY_TENANT

    async def register(self) -> None:
        about = self.about
        registered = await self._service(Register(tenant=self._tenant, worker=about))
        if self._worker not in ("", registered.worker):
            log.warning("the queue had forgotten this worker; registered again as %s", registered.worker)
        self._worker, self.lease = registered.worker, registered.lease
        self._registered = about

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
