"""A worker's name in the queue, and how it gets one again after the queue has forgotten it."""

import logging
from typing import TypedDict

from windlass.model.names import EVERY_TENANT
from windlass.model.operations import Register, Service
from windlass.model.worker import NewWorker

log = logging.getLogger("windlass.worker")


class Names(TypedDict):
    """What every operation of a worker says of itself."""

    tenant: str
    worker: str


class Membership:
    """Who this worker is. Jobs that it holds stay its own under a new name: their tokens are what counts."""

    def __init__(self, service: Service, tenant: str, about: NewWorker) -> None:
        self._service = service
        self.tenant = tenant
        self.about = about
        self._told: NewWorker | None = None
        """What the queue knows of it."""
        self.worker = ""
        self.lease = 0.0

    async def introduce(self) -> None:
        told = self.about
        registered = await self._service(Register(tenant=self.tenant, worker=told))
        if self.worker:
            log.warning("the queue had forgotten this worker; it is known again as %s", registered.worker)
        self.worker, self.lease = registered.worker, registered.lease
        self._told = told

    async def tell(self, about: NewWorker) -> None:
        """Say something new of this worker; while the queue does not know it, that is for its introduction."""
        self.about = about
        if self.worker and self._told != about:
            await self._service(Register(tenant=self.tenant, worker=about, id=self.worker))
            self._told = about

    @property
    def name_tenants(self) -> bool:
        """Whether each report must say whose job it is of: the worker serves all tenants."""
        return self.tenant == EVERY_TENANT

    def names(self) -> Names:
        return {"tenant": self.tenant, "worker": self.worker}
