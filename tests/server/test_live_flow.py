"""Flow control in the events of a job: its estimated wait, and when it is ordered to stop or to take less time."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from tests.server.test_live import follow, socket
from tests.support.patience import PATIENCE
from tests.support.push_servers import Station, until
from windlass.model.estimate import Estimate, Why
from windlass.model.events import Event
from windlass.model.job import Job, Reason, State
from windlass.model.match import Match
from windlass.model.operations import (
    Cancel,
    ChangeQueue,
    Claim,
    Delete,
    Finish,
    Finished,
    GetEstimate,
    LowerTimeout,
    Register,
)
from windlass.model.outcome import Verdict
from windlass.model.queue import QueueChange, Tier
from windlass.model.worker import NewWorker

TIERS = [Tier(name="fast", seconds=3), Tier(name="medium", seconds=10, cap=2), Tier(name="slow", seconds=30, cap=1)]


async def regulate(hub: Station) -> None:
    await hub.client(ChangeQueue(queue="default", change=QueueChange(tiers=TIERS)))


async def start(hub: Station, slots: int) -> str:
    return (await hub.client(Register(worker=NewWorker(name="hand", slots=slots)))).worker


async def after(stream: AsyncIterator[Event], *names: str) -> Event:
    """The next event of one of these names."""
    async with asyncio.timeout(PATIENCE):
        async for event in stream:
            if event.name in names:
                return event
    pytest.fail(f"the stream ended before {names}")


async def estimated(stream: AsyncIterator[Event]) -> Estimate:
    found = (await after(stream, "estimate")).estimate
    assert found is not None
    return found


async def test_s0_17_the_wait_of_a_job_is_sent_before_it_starts(hub: Station) -> None:
    await regulate(hub)
    worker = await start(hub, 1)
    await hub.enqueue(tier="slow")
    (held,) = await hub.client(Claim(worker=worker, wait=5))
    job = await hub.enqueue(tier="fast")
    async with follow(hub, job) as stream:
        assert (await anext(stream)).name == "queued"
        found = await estimated(stream)
        assert (found.position, found.why) == (1, Why.SLOTS)
        assert found.seconds == pytest.approx(30, abs=10)
        less = await estimated(stream)
        assert found.seconds is not None
        assert less.seconds is not None
        assert 1 <= found.seconds - less.seconds < 20, "sent again when it had changed by a second"
        done = Finished(id=held.job.id, token=held.token, outcome=Verdict.OK)
        await hub.client(Finish(worker=worker, jobs=[done]))
        await hub.client(Claim(worker=worker, wait=5))
        assert (await after(stream, "started")).job is not None


async def test_an_estimate_is_sent_again_only_when_it_has_changed(
    hub: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.engine.events.follow.ESTIMATE_EVERY", 0.05)
    job = await hub.enqueue()
    seen: list[Event] = []
    async with follow(hub, job) as stream:

        async def read() -> None:
            async for event in stream:
                seen.append(event)  # noqa: PERF401 - it may be cut short

        reading = asyncio.create_task(read())
        await asyncio.sleep(1.5)
        await hub.client(Cancel(ids=[job.id]))
        await reading
    first, *estimates, last = seen
    assert (first.name, last.name) == ("queued", "cancelled")
    # A job that is newer than the last forecast has no position at first.
    unknown, known = Estimate(why=Why.WORKER), Estimate(position=1, why=Why.WORKER)
    assert [event.estimate for event in estimates] in ([known], [unknown, known])


async def test_a_job_that_has_started_or_ended_is_not_estimated(hub: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.engine.events.follow.ESTIMATE_EVERY", 0.05)
    worker = await start(hub, 1)
    job = await hub.enqueue()
    (held,) = await hub.client(Claim(worker=worker, wait=5))
    async with follow(hub, job) as stream:
        assert (await anext(stream)).name == "started"
        await asyncio.sleep(0.5)
        done = Finished(id=held.job.id, token=held.token, outcome=Verdict.OK)
        await hub.client(Finish(worker=worker, jobs=[done]))
        assert [event.name async for event in stream] == ["succeeded"]
    async with follow(hub, job) as stream:
        assert [event.name async for event in stream] == ["succeeded"]


async def test_jobs_that_wait_for_a_time_or_for_others_are_estimated_too(hub: Station) -> None:
    later = await hub.enqueue(delay=60)
    blocked = await hub.enqueue(after=[later.id])
    await start(hub, 1)
    async with follow(hub, later) as one, follow(hub, blocked) as two:
        found = await estimated(one)
        assert found.why is Why.TIME
        assert found.seconds == pytest.approx(60, abs=5)
        assert await estimated(two) == Estimate(why=Why.JOBS)


async def test_a_websocket_sends_estimates_as_they_are_answered(hub: Station) -> None:
    job = await hub.enqueue()
    async with socket(hub, job.id) as line, asyncio.timeout(PATIENCE):
        assert json.loads(await line.recv())["event"] == "queued"
        said = json.loads(await line.recv())
    assert said["event"] == "estimate"
    assert said["data"] == {"seconds": None, "at_most": None, "position": 1, "why": "worker", "name": None}
    assert await hub.client(GetEstimate(id=job.id)) == Estimate(position=1, why=Why.WORKER)


async def test_shrunk_and_halted_are_sent_to_followers_of_one_job_and_of_all(hub: Station) -> None:
    await regulate(hub)
    worker = await start(hub, 2)
    flexible = await hub.enqueue()
    await hub.client(Claim(worker=worker, wait=5))
    yielding = await hub.enqueue(yielding=True)
    await hub.client(Claim(worker=worker, wait=5))
    async with (
        hub.engine.watching("default", Match()) as watcher,
        follow(hub, flexible) as one,
        follow(hub, yielding) as two,
    ):
        assert (await after(one, "started", "shrunk")).name == "started"
        assert (await after(two, "started", "halted")).name == "started"
        await hub.enqueue(tier="fast")
        shrunk, halted = (await after(one, "shrunk")).job, (await after(two, "halted")).job
        assert isinstance(shrunk, Job)
        assert (shrunk.state, shrunk.assigned) == (State.RUNNING, "fast")
        assert isinstance(halted, Job)
        assert halted.id == yielding.id
        answer: set[tuple[str, str]] = set()
        async with asyncio.timeout(PATIENCE):
            while len(answer) < 2:
                found = [event for event in await watcher.take(10) if event.job is not None]
                answer |= {(one.name, one.job.id) for one in found if one.job and one.name in ("shrunk", "halted")}
    assert answer == {("shrunk", flexible.id), ("halted", yielding.id)}


async def test_an_order_to_stop_or_to_take_less_time_is_sent_to_followers_of_one_job_and_of_all(hub: Station) -> None:
    worker = await start(hub, 2)
    job, other = await hub.enqueue(), await hub.enqueue()
    await hub.client(Claim(worker=worker, slots=2, wait=5))
    wanted = [("lowered", job.id), ("lowered", job.id), ("stopping", job.id), ("stopping", other.id)]
    answer: list[tuple[str, str]] = []
    async with hub.engine.watching("default", Match()) as watcher, follow(hub, job) as one:
        await after(one, "started")
        for seconds in (60, 30):
            await hub.client(LowerTimeout(id=job.id, timeout=seconds))
            lowered = (await after(one, "lowered")).job
            assert isinstance(lowered, Job)
            assert lowered.deadline is not None
            assert lowered.started_at is not None
            assert (lowered.deadline - lowered.started_at).total_seconds() == seconds
        await hub.client(Cancel(ids=[job.id]))
        stopping = (await after(one, "stopping")).job
        assert isinstance(stopping, Job)
        assert (stopping.state, stopping.reason) == (State.RUNNING, Reason.CANCELLED)
        await hub.client(Delete(ids=[other.id]))
        async with asyncio.timeout(PATIENCE):
            while len(answer) < len(wanted):
                found = [event for event in await watcher.take(10) if event.job is not None]
                answer += [(event.name, event.job.id) for event in found if event.job]
    assert answer == wanted


async def test_who_follows_a_job_that_was_shrunk_before_hears_of_its_start_first(hub: Station) -> None:
    await regulate(hub)
    worker = await start(hub, 1)
    job = await hub.enqueue()
    await hub.client(Claim(worker=worker, wait=5))
    await hub.enqueue(tier="fast")

    async def is_shrunk() -> bool:
        return (await hub.shown(job)).assigned == "fast"

    await until(is_shrunk)
    async with follow(hub, job) as stream:
        assert [(await anext(stream)).name, (await anext(stream)).name] == ["started", "shrunk"]
    async with aclosing(hub.engine.follow_job("default", job.id)) as story:
        assert [(await anext(story)).name, (await anext(story)).name] == ["started", "shrunk"]
