"""What the feed tells of clocks that ran out, and of records that are gone."""

import asyncio

import pytest

from tests.engine.test_events import elsewhere, other, said, take_events
from tests.support.engines import enqueue, finish, register, take
from tests.support.http_servers import LOCAL
from tests.support.patience import PATIENCE
from tests.support.stores import VirtualClock
from windlass.client import Client
from windlass.engine import Engine, upkeep
from windlass.model.events import DeletedJob, Event
from windlass.model.job import State
from windlass.model.match import Match
from windlass.model.operations import Cancel, Delete
from windlass.model.outcome import Verdict

__all__ = ["elsewhere", "other"]


def gone(event: Event) -> DeletedJob:
    assert event.name == "deleted"
    assert event.gone is not None
    return event.gone


async def test_the_end_of_a_delay_is_an_event(engine: Engine, elsewhere: Engine, clock: VirtualClock) -> None:
    async with engine.watching("default", Match()) as watcher:
        job = await enqueue(elsewhere, "late", delay=5.0)
        (first,) = await take_events(watcher, 1)
        assert first.job is not None
        assert first.job.state is State.SCHEDULED
        clock.advance(5)
        assert await upkeep.promote(elsewhere) == 1
        (second,) = await take_events(watcher, 1)
        assert second.job is not None
        assert (second.name, second.job.id, second.job.state) == ("queued", job.id, State.QUEUED)


async def test_the_end_of_a_wait_between_runs_is_an_event(
    engine: Engine, elsewhere: Engine, clock: VirtualClock
) -> None:
    await enqueue(elsewhere, "again", max_retry=1)
    worker = await register(elsewhere)
    claimed = await take(elsewhere, worker)
    async with engine.watching("default", Match()) as watcher:
        await finish(elsewhere, worker, claimed, Verdict.ERROR, delay=5.0)
        assert said(await take_events(watcher, 1)) == [("retrying", "again")]
        clock.advance(5)
        await upkeep.promote(elsewhere)
        assert said(await take_events(watcher, 1)) == [("queued", "again")]


async def test_a_record_that_is_dropped_after_its_time_is_an_event(
    engine: Engine, elsewhere: Engine, clock: VirtualClock
) -> None:
    job = await enqueue(elsewhere, "old", queue="q", keep_success=5.0)
    worker = await register(elsewhere, "q")
    await finish(elsewhere, worker, await take(elsewhere, worker))
    async with engine.watching("default", Match()) as watcher:
        clock.advance(5)
        assert await upkeep.purge(elsewhere) == 1
        (event,) = await take_events(watcher, 1)
        assert gone(event) == DeletedJob(job.id, "default", "q", "old", State.SUCCEEDED)


@pytest.mark.parametrize("before", [State.QUEUED, State.CANCELLED])
async def test_a_record_that_a_caller_deletes_is_an_event(engine: Engine, elsewhere: Engine, before: State) -> None:
    job = await enqueue(elsewhere, "unwanted")
    if before is State.CANCELLED:
        await elsewhere(Cancel(ids=[job.id]))
    async with engine.watching("default", Match()) as watcher:
        await elsewhere(Delete(ids=[job.id]))
        (event,) = await take_events(watcher, 1)
        assert gone(event) == DeletedJob(job.id, "default", "default", "unwanted", before)


async def test_only_who_could_have_seen_a_job_hears_that_it_is_gone(engine: Engine, elsewhere: Engine) -> None:
    mine, theirs = await enqueue(elsewhere, "a"), await enqueue(elsewhere, "b", tenant="acme")
    every, own = engine.watching("-", Match()), engine.watching("acme", Match())
    of_task, of_tag = engine.watching("-", Match(task="a")), engine.watching("-", Match(tag=["x"]))
    async with every as all_, own as acme, of_task as a, of_tag as tagged:
        await elsewhere(Delete(tenant="-", ids=[mine.id, theirs.id]))
        assert {gone(event).id for event in await take_events(all_, 2)} == {mine.id, theirs.id}
        assert [gone(event).id for event in await take_events(acme, 1)] == [theirs.id]
        assert [gone(event).id for event in await take_events(a, 1)] == [mine.id]
        assert await tagged.take(0.1) == [], "its tags are unknown by now"


async def test_deletions_are_sent_over_http(engine: Engine, site: str) -> None:
    job = await enqueue(engine, "unwanted")
    async with Client(site, LOCAL) as client, asyncio.timeout(PATIENCE):
        stream = client.watch("default", Match())
        first = asyncio.ensure_future(anext(stream))
        await engine.feed.ready.wait()
        await engine(Delete(ids=[job.id]))
        assert gone(await first) == DeletedJob(job.id, "default", "default", "unwanted", State.QUEUED)
        await stream.aclose()
