"""Failed jobs in groups: what they have in common, and what is done to all of a group."""

from typing import Any

from tests.support.engines import enqueue, finish, register, state, take
from windlass.engine import Engine
from windlass.model.failure import FailureGroup, merge
from windlass.model.job import Error, State
from windlass.model.match import Match
from windlass.model.operations import Count, Delete, FailByHand, Failures, List, Rerun
from windlass.model.outcome import Verdict


async def fail(engine: Engine, worker: str, message: str, version: int | None = None, **terms: Any) -> str:
    job = await enqueue(engine, **terms)
    claimed = await take(engine, worker)
    error = Error(type="Declined", message=message)
    await finish(engine, worker, claimed, Verdict.FAILED, error=error, handler_version=version)
    return job.id


async def test_failed_jobs_are_grouped_and_a_group_is_retried_or_deleted(engine: Engine) -> None:
    worker = await register(engine)
    cards = [await fail(engine, worker, f"card {number} declined") for number in range(3)]
    stolen = await fail(engine, worker, "the card was stolen")
    other = await fail(engine, worker, "card 1 declined", task="refund")
    waiting = await enqueue(engine)
    page = await engine(Failures())
    assert (page.scanned, page.next) == (5, None)
    assert [(one.task, one.type, one.count) for one in page.groups][:1] == [("work", "Declined", 3)]
    assert sorted(one.count for one in page.groups) == [1, 1, 3]
    largest = page.groups[0]
    assert largest.sample == cards[-1]
    assert largest.first_at <= largest.last_at

    group = Match(state=["failed"], fingerprint=largest.fingerprint)
    assert sorted(job.id for job in (await engine(List(match=group))).jobs) == sorted(cards)
    assert (await engine(Count(match=group))).count == 3
    assert (await engine(Rerun(match=group, dry_run=True))).changed == 3
    assert (await engine(Rerun(match=group))).changed == 3
    assert {await state(engine, id) for id in [*cards, waiting.id]} == {State.QUEUED}
    assert {await state(engine, id) for id in (stolen, other)} == {State.FAILED}

    (only,) = (await engine(Failures(match=Match(task="refund")))).groups
    assert (await engine(Delete(match=Match(state=["failed"], fingerprint=only.fingerprint)))).changed == 1
    assert [one.sample for one in (await engine(Failures())).groups] == [stolen]


async def test_a_group_counts_the_versions_of_the_handler_that_failed(engine: Engine) -> None:
    worker = await register(engine)
    for version in (2, 3, 3, 11):
        await fail(engine, worker, f"card {version} declined", version)
    await fail(engine, worker, "card 5 declined")
    (group,) = (await engine(Failures())).groups
    assert (group.count, list(group.versions.items())) == (5, [(11, 1), (3, 2), (2, 1)])
    alone = await fail(engine, worker, "card 5 declined", task="refund")
    (group,) = (await engine(Failures(match=Match(task="refund")))).groups
    assert (group.sample, group.versions) == (alone, {})


async def test_many_different_failures_come_in_pages_that_add_up(engine: Engine) -> None:
    worker = await register(engine)
    for number in range(230):
        await fail(engine, worker, f"card {number} declined" if number % 2 else f"kind {'x' * number}")
    asked, groups, pages = Failures(limit=10), dict[tuple[str, str], FailureGroup](), 0
    while True:
        page = await engine(asked)
        merge(groups, page.groups)
        pages += 1
        if page.next is None:
            break
        asked = Failures(limit=10, after=page.next)
    assert pages == 2
    assert len(groups) == 100  # of 115 different lengths the longest look alike
    assert sum(one.count for one in groups.values()) == 230
    assert max(one.count for one in groups.values()) == 115


async def test_failures_of_other_tenants_are_apart(engine: Engine) -> None:
    for tenant in ("a", "b"):
        worker = await register(engine, tenant=tenant)
        for _ in range(2):
            job = await enqueue(engine, tenant=tenant)
            await take(engine, worker, tenant=tenant)
            await engine(FailByHand(tenant=tenant, id=job.id, message="no"))
    both = (await engine(Failures(tenant="-"))).groups
    assert sorted((one.tenant, one.count) for one in both) == [("a", 2), ("b", 2)]
    assert len({one.fingerprint for one in both}) == 1
    assert [one.tenant for one in (await engine(Failures(tenant="a"))).groups] == ["a"]
    assert (await engine(Failures(tenant="c"))).groups == []
