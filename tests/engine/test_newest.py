"""A listing of the newest jobs first, over all queues."""

from itertools import chain
from typing import Any

import pytest

from tests.support.engines import enqueue
from tests.support.stores import VirtualClock
from windlass.engine import Engine, newest
from windlass.model.errors import Invalid
from windlass.model.match import Match
from windlass.model.operations import Delete, List

QUEUES = ("mail", "reports", "images", "mail", "images", "default", "mail", "reports", "reports", "default", "mail")


async def fill(engine: Engine, clock: VirtualClock, **more: Any) -> list[str]:
    """Jobs of several queues, one after the other; newest first."""
    ids = []
    for number, queue in enumerate(QUEUES):
        clock.advance(1)
        ids.append((await enqueue(engine, queue=queue, tags=["even"] if number % 2 == 0 else [], **more)).id)
    return ids[::-1]


async def pages(engine: Engine, limit: int, **asked: Any) -> list[list[str]]:
    found, after = [], None
    while True:
        page = await engine(List(limit=limit, after=after, order="newest", **asked))
        found.append([job.id for job in page.jobs])
        if (after := page.next) is None:
            return found


def joined(found: list[list[str]]) -> list[str]:
    return list(chain.from_iterable(found))


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
async def test_the_newest_jobs_of_all_queues_come_first(engine: Engine, clock: VirtualClock, limit: int) -> None:
    ids = await fill(engine, clock)
    found = await pages(engine, limit)
    assert joined(found) == ids
    assert all(len(page) == limit for page in found[:-2])
    assert joined(await pages(engine, limit, match=Match(tag=["even"]))) == ids[::2]


async def test_queues_of_all_tenants_are_merged_and_a_cursor_is_good_for_its_tenant_only(
    engine: Engine, clock: VirtualClock
) -> None:
    own = await fill(engine, clock)
    others = await fill(engine, clock, tenant="other")
    assert joined(await pages(engine, 4, tenant="-")) == others + own
    assert joined(await pages(engine, 4, tenant="-", match=Match(queue="images"))) == [
        id for ids in (others, own) for id, queue in zip(ids, QUEUES[::-1], strict=True) if queue == "images"
    ]
    page = await engine(List(tenant="other", limit=2, order="newest"))
    assert page.next
    for tenant, after in (("default", page.next), ("other", page.next[:-3] + "!"), ("other", "m.e30")):
        with pytest.raises(Invalid):
            await engine(List(tenant=tenant, limit=2, order="newest", after=after))


async def test_jobs_that_are_deleted_between_two_pages_hide_no_others(engine: Engine, clock: VirtualClock) -> None:
    ids = await fill(engine, clock)
    page = await engine(List(limit=4, order="newest"))
    await engine(Delete(ids=ids[1:3]))
    rest = await engine(List(limit=100, order="newest", after=page.next))
    assert [job.id for job in rest.jobs] == ids[4:]


async def test_with_too_many_queues_it_goes_queue_by_queue(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "MOST_MERGED", 3)
    ids = await fill(engine, clock)
    by_queue = [
        id for name in sorted(set(QUEUES)) for id, queue in zip(ids, QUEUES[::-1], strict=True) if queue == name
    ]
    assert joined(await pages(engine, 2)) == by_queue


async def test_a_listing_of_a_task_looks_only_at_queues_that_have_it(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "MOST_MERGED", 2)
    ids = []
    for queue, task in (("mail", "send"), ("images", "send"), ("mail", "send"), ("reports", "draw"), ("logs", "draw")):
        clock.advance(1)
        ids.append((await enqueue(engine, task, queue=queue)).id)
    assert joined(await pages(engine, 1, match=Match(task="send"))) == [ids[2], ids[1], ids[0]]
