"""Holds tenants to their quotas: a service that looks at what is sent in, and hands everything on to another.

A rate is counted by each server for itself. How many jobs a tenant has on record is looked up about once a second, so a
tenant may overshoot by what it sends in that time. While the store does not answer, what was allowed last still is.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from windlass.lately import Lately
from windlass.model.errors import Busy, Conflict, TooLarge, Unavailable
from windlass.model.job import NewJob
from windlass.model.operations import (
    A,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    Finish,
    GetQuota,
    GetStats,
    Operation,
    Service,
)
from windlass.model.ports import Clock
from windlass.model.quota import Quota, too_large, too_many
from windlass.model.texts import payloads_in

REMEMBER = 1.0
"""Seconds that a quota, and the number of jobs on record, are taken for what they were."""

MOST_TENANTS = 10_000


class Found(NamedTuple):
    """What the store says of a tenant."""

    quota: Quota
    stored: int


class Account:
    """What is known of one tenant."""

    def __init__(self, lately: Lately[Found], now: float) -> None:
        self.lately = lately
        self.quota = Quota()
        self.stored = 0
        self.left = 0.0
        self._refilled_at = now
        self._found: Found | None = None

    def learn(self, found: Found, now: float) -> None:
        if found is self._found:
            return
        if found.quota != self.quota:
            self.quota, self.left, self._refilled_at = found.quota, found.quota.jobs_per_second or 0.0, now
        self.stored, self._found = found.stored, found

    def refill(self, now: float) -> None:
        rate = self.quota.jobs_per_second or 0.0
        self.left = min(max(rate, 1.0), self.left + rate * (now - self._refilled_at))
        self._refilled_at = now


class Metered:
    """A service in front of another."""

    def __init__(self, service: Service, clock: Clock, patience: float | None = None) -> None:
        """`patience`: seconds that jobs wait for a quota that was known a moment ago; null = as long as it takes."""
        self._service = service
        self._clock = clock
        self._patience = patience
        self._accounts: dict[str, Account] = {}

    async def __call__(self, operation: Operation[A], /) -> A:
        news = _new_jobs(operation)
        if news:
            self._admit(await self._account(operation.tenant), news, reported=isinstance(operation, Finish))
        return await self._service(operation)

    def _admit(self, account: Account, news: Sequence[NewJob | bytes], *, reported: bool) -> None:
        quota, number = account.quota, len(news)
        if quota.payload_bytes is not None and (why := too_large(quota, max(map(_weight, news)))) is not None:
            raise TooLarge(why, at="payload")
        if (why := too_many(quota, account.stored, number)) is not None:
            # Whoever reports the end of a job must not wait for room: it may never come.
            raise (Conflict if reported else Busy)(why, at="tenant")
        if quota.jobs_per_second is not None:
            account.refill(self._clock.monotonic())
            if account.left < min(number, max(quota.jobs_per_second, 1.0)):
                raise Busy(
                    f"this tenant may send {quota.jobs_per_second:g} jobs a second: send them later", at="tenant"
                )
            account.left -= number
        account.stored += number

    async def _account(self, tenant: str) -> Account:
        now = self._clock.monotonic()
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= MOST_TENANTS:
                self._accounts.pop(next(iter(self._accounts)))
            lately = Lately(partial(self._found, tenant), self._clock, REMEMBER, self._patience)
            account = self._accounts[tenant] = Account(lately, now)
        with suppress(Unavailable):  # whether jobs can be taken in without the store is not for us to say
            account.learn(await account.lately.known(), now)
        return account

    async def _found(self, tenant: str) -> Found:
        quota = await self._service(GetQuota(tenant=tenant))
        return Found(quota, await self._stored(tenant) if quota.stored_jobs is not None else 0)

    async def _stored(self, tenant: str) -> int:
        stats = await self._service(GetStats(tenant=tenant))
        return sum(count for queue in stats.queues for count in queue.states.values())


def _new_jobs(operation: Operation[Any]) -> Sequence[NewJob | bytes]:
    """The new jobs that come with an operation; of those that are lines of a text, what they bring."""
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


def _weight(new: NewJob | bytes) -> int:
    """How many bytes a new job brings."""
    if isinstance(new, bytes):
        return len(new)
    size = len(memoryview(new.payload))
    return size + sum(map(len, new.files.values())) if new.files else size
