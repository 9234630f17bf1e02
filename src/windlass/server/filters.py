"""Services in front of the engine that refuse some operations: jobs beyond a tenant's quota, and uploads.

Each server counts rates for itself. The number of stored jobs is looked up about once a second, so a tenant may exceed
its quota by what it sends in that time. While the store does not answer, the last known quota holds.
"""

from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from msgspec import Raw

from windlass.cached import CachedValue
from windlass.model.admission import payloads_in
from windlass.model.errors import Busy, Conflict, Denied, TooLarge, Unavailable
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    A,
    Edit,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    Finish,
    GetQuota,
    GetStats,
    Operation,
    PutFile,
    PutHandler,
    Service,
)
from windlass.model.ports import Clock
from windlass.model.quota import Quota, burst, too_fast, too_large, too_many

REMEMBER = 1.0
"""Seconds for which a quota and a number of stored jobs are cached."""

MOST_TENANTS = 10_000


class Usage(NamedTuple):
    """A tenant's quota and stored jobs, read from the store."""

    quota: Quota
    stored: int


class TenantMeter:
    """Counts one tenant's new jobs."""

    def __init__(self, usage: CachedValue[Usage], now: float) -> None:
        self.usage = usage
        self.quota = Quota()
        self.stored = 0
        self.left = 0.0
        self._refilled_at = now
        self._usage: Usage | None = None

    def update(self, usage: Usage, now: float) -> None:
        if usage is self._usage:
            return
        if usage.quota != self.quota:
            self.quota, self.left, self._refilled_at = usage.quota, burst(usage.quota), now
        self.stored, self._usage = usage.stored, usage

    def refill(self, now: float) -> None:
        rate = self.quota.jobs_per_second or 0.0
        self.left = min(burst(self.quota), self.left + rate * (now - self._refilled_at))
        self._refilled_at = now


class QuotaFilter:
    """Refuses new jobs beyond a tenant's quota."""

    def __init__(self, service: Service, clock: Clock, patience: float | None = None) -> None:
        """`patience`: seconds to wait for a fresh quota when an older one is cached; null = as long as it takes."""
        self._service = service
        self._clock = clock
        self._patience = patience
        self._meters: dict[str, TenantMeter] = {}

    async def __call__(self, operation: Operation[A], /) -> A:
        news = _new_jobs(operation)
        if news:
            self._admit(await self._meter(operation.tenant), news, reported=isinstance(operation, Finish))
        if isinstance(operation, Edit) and isinstance(operation.payload, Raw):
            quota = (await self._meter(operation.tenant)).quota
            if (why := too_large(quota, len(memoryview(operation.payload)))) is not None:
                raise TooLarge(why, at="payload")
        if isinstance(operation, PutFile):
            quota = (await self._meter(operation.tenant)).quota
            if (why := too_large(quota, len(operation.data))) is not None:
                raise TooLarge(why, at="data")
        return await self._service(operation)

    def _admit(self, meter: TenantMeter, news: Sequence[NewJob | bytes], *, reported: bool) -> None:
        quota, number = meter.quota, len(news)
        if quota.payload_bytes is not None and (why := too_large(quota, max(map(_size, news)))) is not None:
            raise TooLarge(why, at="payload")
        if (why := too_many(quota, meter.stored, number)) is not None:
            # A report must not be retried until there is room, which may never come: Conflict is final.
            raise (Conflict if reported else Busy)(why, at="tenant")
        if quota.jobs_per_second is not None:
            meter.refill(self._clock.monotonic())
            # A report cannot be divided: a large one passes in one piece.
            if (why := too_fast(quota, meter.left, number, whole=reported)) is not None:
                raise Busy(why, at="tenant")
            meter.left -= number
        meter.stored += number

    async def _meter(self, tenant: str) -> TenantMeter:
        now = self._clock.monotonic()
        meter = self._meters.get(tenant)
        if meter is None:
            if len(self._meters) >= MOST_TENANTS:
                self._meters.pop(next(iter(self._meters)))
            usage = CachedValue(partial(self._read_usage, tenant), self._clock, REMEMBER, self._patience)
            meter = self._meters[tenant] = TenantMeter(usage, now)
        with suppress(Unavailable):  # a journal may accept jobs without the store
            meter.update(await meter.usage.known(), now)
        return meter

    async def _read_usage(self, tenant: str) -> Usage:
        quota = await self._service(GetQuota(tenant=tenant))
        return Usage(quota, await self._stored(tenant) if quota.stored_jobs is not None else 0)

    async def _stored(self, tenant: str) -> int:
        stats = await self._service(GetStats(tenant=tenant))
        return sum(count for queue in stats.queues for count in queue.states.values())


def _new_jobs(operation: Operation[Any]) -> Sequence[NewJob | bytes]:
    """The new jobs of an operation; of lines of text, their payloads."""
    match operation:
        case Enqueue():
            return (operation.job,)
        case EnqueueMany():
            return operation.jobs
        case EnqueueLines():
            return payloads_in(operation.text)
        case Finish():
            return [new for report in operation.jobs for new in report.jobs]
        case _:
            return ()


def _size(new: NewJob | bytes) -> int:
    """Bytes of a new job's payload and files."""
    if isinstance(new, bytes):
        return len(new)
    size = len(memoryview(new.payload))
    return size + sum(map(len, new.files.values())) if new.files else size


class NoUploads:
    """Refuses handlers, until an operator allows them."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __call__(self, operation: Operation[A], /) -> Coroutine[Any, Any, A]:
        if isinstance(operation, PutHandler):
            raise Denied("this server does not accept handlers: start it with --allow-upload", at="handler")
        return self._service(operation)
