"""Estimates on the feed, over HTTP on each kind of store: sent when they change, whatever the reason, but not often."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tests.server.test_live import follow
from tests.server.test_live_flow import estimated, regulate, start
from tests.support.patience import PATIENCE
from tests.support.push_servers import Station, station
from windlass.model.estimate import Estimate, Why
from windlass.model.events import Event
from windlass.model.limit import NewLimit, Pause, Which
from windlass.model.operations import ChangeQueue, Claim, Finish, Finished, PauseLimit, PauseTask, PutLimit, RemoveLimit
from windlass.model.outcome import Verdict
from windlass.model.queue import QueueChange
from windlass.store.protocol import Store

SOON = 30.0
"""Seconds within which a change is sent, however busy the machine; estimates are made each second."""


@pytest.fixture
async def hub(real_store: Store) -> AsyncIterator[Station]:
    """No lease runs out meanwhile: that would change estimates too."""
    async with station(real_store, lease=60.0) as found:
        yield found


async def told_that(stream: AsyncIterator[Event], why: Why, name: str | None = None) -> Estimate:
    """The next estimate that gives this reason."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await estimated(stream)
            if (found.why, found.name) == (why, name):
                return found


async def test_a_new_estimate_is_sent_when_a_job_ends_early(hub: Station) -> None:
    await regulate(hub)
    worker = await start(hub, 1)
    await hub.enqueue(tier="slow")
    claimed_at = time.monotonic()
    (held,) = await hub.client(Claim(worker=worker, wait=5))
    await hub.enqueue(tier="medium")
    job = await hub.enqueue(tier="fast")
    async with follow(hub, job) as stream:
        first = (await estimated(stream)).at_most
        assert first is not None
        assert 36 - (time.monotonic() - claimed_at) < first < 44
        done = Finished(id=held.job.id, token=held.token, outcome=Verdict.OK)
        await hub.client(Finish(worker=worker, jobs=[done]))
        began = time.monotonic()
        await hub.client(Claim(worker=worker, wait=5))
        async with asyncio.timeout(PATIENCE):
            while ((found := await estimated(stream)).at_most or 0) > 20:
                pass
        assert (found.position, found.why) == (1, Why.SLOTS)
        assert found.at_most is not None
        left = 10 - (time.monotonic() - began)
        assert left - 4 < found.at_most < 14, "thirty seconds less, as the slow one took none"


async def test_a_new_estimate_is_sent_when_a_pause_starts_or_ends(hub: Station) -> None:
    worker = await start(hub, 1)
    await hub.enqueue("busy")
    await hub.client(Claim(worker=worker, wait=5))
    job = await hub.enqueue("wait")
    async with follow(hub, job) as stream:
        await told_that(stream, Why.SLOTS)
        await hub.client(ChangeQueue(queue="default", change=QueueChange(paused=True)))
        assert (await told_that(stream, Why.PAUSE)).seconds is None
        await hub.renew(worker)
        await hub.client(ChangeQueue(queue="default", change=QueueChange(paused=False)))
        await told_that(stream, Why.SLOTS)
        await hub.renew(worker)
        await hub.client(PauseTask(task="wait", pause=Pause(paused=True)))
        await told_that(stream, Why.PAUSE)


async def test_a_new_estimate_is_sent_when_a_limit_changes(hub: Station) -> None:
    worker = await start(hub, 3)
    await hub.client(PutLimit(name="some", limit=NewLimit(match=Which(queue="default"), running=1)))
    await hub.enqueue("busy")
    await hub.client(Claim(worker=worker, wait=5))
    job = await hub.enqueue("wait")
    async with follow(hub, job) as stream:
        await told_that(stream, Why.LIMIT, "some")
        await hub.renew(worker)
        await hub.client(PauseLimit(name="some", pause=Pause(paused=True)))
        assert (await told_that(stream, Why.PAUSE, "some")).seconds is None
        await hub.renew(worker)
        await hub.client(RemoveLimit(name="some"))
        assert (await told_that(stream, Why.SLOTS)).seconds == 0.0


async def test_estimates_are_sent_at_most_once_a_second(hub: Station) -> None:
    worker = await start(hub, 1)
    await hub.enqueue("busy")
    await hub.client(Claim(worker=worker, wait=5))
    job = await hub.enqueue("wait")
    times: list[float] = []
    async with follow(hub, job) as stream:

        async def read() -> None:
            async for event in stream:
                times.extend([time.monotonic()] * (event.name == "estimate"))

        reading = asyncio.create_task(read())
        for number in range(30):
            pause = QueueChange(paused=number % 2 == 0)
            await hub.client(ChangeQueue(queue="default", change=pause))
            await hub.renew(worker)
            await asyncio.sleep(0.1)
        for _ in range(5):  # whatever was sent last, by then an event says that nothing is paused
            await hub.renew(worker)
            await asyncio.sleep(0.5)
        await hub.renew(worker)
        so_far = len(times)
        await hub.client(ChangeQueue(queue="default", change=QueueChange(paused=True)))
        async with asyncio.timeout(PATIENCE):
            while len(times) == so_far:  # noqa: ASYNC110 - the reader gives no sign
                await asyncio.sleep(0.05)
        reading.cancel()
        await asyncio.wait({reading})
    # Thirty changes in three seconds, if the machine is not busy: all would be far more. Some may be read late.
    assert len(times) <= times[-1] - times[0] + 8
