"""How many jobs uploaded code may still make: the quotas of tenants, looked up now and then.

Knows quotas and counts. What becomes of a job that asks for too much is decided elsewhere.
"""

from collections.abc import Sequence

from windlass.model.duration import LONGEST
from windlass.model.errors import WindlassError
from windlass.model.operations import GetQuota, GetStats, Service
from windlass.model.ports import Clock
from windlass.model.quota import Quota, too_large, too_many

REMEMBER = 1.0
"""Seconds for which a quota, and the number of jobs on record, are taken for what they were."""

MOST_TENANTS = 10_000


class Allowance:
    """What is known of one tenant."""

    def __init__(self) -> None:
        self.quota = Quota()
        self.stored = 0
        self.read_at: float | None = None
        self.left = 0.0
        """New jobs that may start now; below zero: those that were made before their time."""
        self.counted_at: float | None = None


class Allowances:
    """What the tenants of one worker may make."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._known: dict[str, Allowance] = {}

    async def of(self, tenant: str) -> Allowance:
        """As it is now, or was when it could last be seen: a server that does not tell it looks at it itself."""
        if tenant not in self._known and len(self._known) >= MOST_TENANTS:
            self._known.pop(next(iter(self._known)))
        known, now = self._known.setdefault(tenant, Allowance()), self._clock.monotonic()
        if known.read_at is not None and now - known.read_at < REMEMBER:
            return known
        known.read_at = now
        try:
            known.quota = await self._service(GetQuota(tenant=tenant))
            if known.quota.stored_jobs is not None:
                stats = await self._service(GetStats(tenant=tenant))
                known.stored = sum(count for queue in stats.queues for count in queue.states.values())
        except WindlassError:
            return known
        return known


def refusal(allowance: Allowance, sizes: Sequence[int]) -> str | None:
    """Why new jobs with payloads of so many bytes may not be made; null = they may, and are counted."""
    why = too_large(allowance.quota, max(sizes)) or too_many(allowance.quota, allowance.stored, len(sizes))
    if why is None:
        allowance.stored += len(sizes)
    return why


def delays(allowance: Allowance, number: int, now: float) -> list[float]:
    """Seconds after which each of so many new jobs may start, so that they start no faster than the tenant may send.

    They are made in any case: the run that asked for them is over, and would not ask again.
    """
    rate = allowance.quota.jobs_per_second
    if rate is None:
        allowance.counted_at = None
        return [0.0] * number
    at_once = max(rate, 1.0)
    left = at_once
    if allowance.counted_at is not None:
        left = min(at_once, allowance.left + rate * (now - allowance.counted_at))
    allowance.left, allowance.counted_at = left - number, now
    return [min(LONGEST, max(0.0, (place - left) / rate)) for place in range(1, number + 1)]
