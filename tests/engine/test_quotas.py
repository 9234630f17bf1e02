"""Tenants are held to their quotas, over each kind of store."""

import pytest
from msgspec import Raw

from tests.support.engines import enqueue, register, take
from tests.support.stores import VirtualClock
from windlass.engine import Engine
from windlass.model.errors import Busy, Conflict, TooLarge
from windlass.model.match import Match
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Count,
    Delete,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    Finish,
    Finished,
    GetQuota,
    PutQuota,
)
from windlass.model.outcome import Verdict
from windlass.model.quota import Quota
from windlass.server.filters import REMEMBER, QuotaFilter


@pytest.fixture
def service(engine: Engine, clock: VirtualClock) -> QuotaFilter:
    return QuotaFilter(engine, clock)


def jobs(number: int) -> EnqueueMany:
    return EnqueueMany(jobs=[NewJob(task="t") for _ in range(number)])


async def count(service: QuotaFilter) -> int:
    return (await service(Count())).count


async def test_without_a_quota_nothing_is_refused(service: QuotaFilter) -> None:
    assert await service(GetQuota()) == Quota()
    await service(jobs(1000))
    assert await count(service) == 1000


async def test_a_rate_lets_a_seconds_worth_through_and_then_no_more_than_it_says(
    service: QuotaFilter, clock: VirtualClock
) -> None:
    await service(PutQuota(quota=Quota(jobs_per_second=10)))
    await service(jobs(10))
    with pytest.raises(Busy, match="10 jobs a second"):
        await service(Enqueue(job=NewJob(task="t")))
    clock.advance(0.5)
    await service(jobs(5))
    with pytest.raises(Busy):
        await service(EnqueueLines(task="t", text="a\n#\nb\n"))
    assert await count(service) == 15


@pytest.mark.parametrize(("rate", "fit"), [(10, 10), (2.5, 2), (0.5, 1)])
async def test_a_batch_of_more_than_a_seconds_worth_is_refused_and_says_how_many_fit(
    service: QuotaFilter, rate: float, fit: int
) -> None:
    await service(PutQuota(quota=Quota(jobs_per_second=rate)))
    with pytest.raises(Busy, match=f"{fit + 1} jobs in a request, .* {rate} jobs a second: .* most {fit} at once"):
        await service(jobs(fit + 1))
    with pytest.raises(Busy, match=f"most {fit} at once"):
        await service(EnqueueLines(task="t", text="line\n" * 5000))
    assert await count(service) == 0
    await service(jobs(fit))
    assert await count(service) == fit


async def test_a_report_with_more_than_a_seconds_worth_of_jobs_passes_and_later_requests_wait_for_it(
    service: QuotaFilter, engine: Engine, clock: VirtualClock
) -> None:
    await service(PutQuota(quota=Quota(jobs_per_second=10)))
    worker = await register(engine)
    await enqueue(engine)
    claimed = await take(engine, worker)
    news = [NewJob(task="t") for _ in range(30)]
    report = Finished(id=claimed.job.id, token=claimed.token, outcome=Verdict.OK, jobs=news)
    await service(Finish(worker=worker, jobs=[report]))
    assert await count(service) == 31
    clock.advance(2.0)
    with pytest.raises(Busy, match="slow down"):
        await service(jobs(1))
    clock.advance(0.1)
    await service(jobs(1))


async def test_jobs_on_record_are_bounded_until_some_are_gone(service: QuotaFilter, clock: VirtualClock) -> None:
    await service(PutQuota(quota=Quota(stored_jobs=5)))
    await service(jobs(5))
    with pytest.raises(Busy, match="5 jobs on record"):
        await service(jobs(1))
    await service(Delete(match=Match()))
    clock.advance(REMEMBER)
    await service(jobs(5))
    assert await count(service) == 5


async def test_a_payload_is_no_larger_than_the_tenant_may_send(service: QuotaFilter) -> None:
    await service(PutQuota(quota=Quota(payload_bytes=100)))
    with pytest.raises(TooLarge, match="100"):
        await service(Enqueue(job=NewJob(task="t", payload=Raw(b"\xd9\x64" + b"x" * 100))))
    with pytest.raises(TooLarge):
        await service(Enqueue(job=NewJob(task="t", files={"f": bytes(200)})))
    assert await count(service) == 0


async def test_lines_are_counted_as_they_become_jobs(service: QuotaFilter) -> None:
    await service(PutQuota(quota=Quota(stored_jobs=1, payload_bytes=10)))
    with pytest.raises(TooLarge, match="11 bytes"):
        await service(EnqueueLines(task="t", text="é" * 5 + "x"))
    await service(EnqueueLines(task="t", text="one\u2028job\n"))
    assert await count(service) == 1


async def test_a_report_with_more_jobs_than_there_is_room_for_is_not_to_be_sent_again(service: QuotaFilter) -> None:
    await service(PutQuota(quota=Quota(stored_jobs=1)))
    report = Finished(id="0" * 36, token="0" * 32, outcome=Verdict.OK, jobs=[NewJob(task="t"), NewJob(task="t")])
    with pytest.raises(Conflict, match="1 jobs on record"):
        await service(Finish(worker="w", jobs=[report]))


async def test_one_tenants_quota_is_not_anothers(service: QuotaFilter) -> None:
    await service(PutQuota(tenant="small", quota=Quota(stored_jobs=0)))
    await service(jobs(3))
    with pytest.raises(Busy):
        await service(Enqueue(tenant="small", job=NewJob(task="t")))


async def test_a_quota_changes_for_everybody_within_a_moment(service: QuotaFilter, clock: VirtualClock) -> None:
    await service(jobs(1))
    await service(PutQuota(quota=Quota(stored_jobs=1)))
    clock.advance(REMEMBER)
    with pytest.raises(Busy):
        await service(jobs(1))
