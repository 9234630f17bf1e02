"""A draining worker finishes what it runs and takes nothing more: its free slots count nowhere."""

import pytest

from tests.support.engines import enqueue, finish, register, take
from tests.support.stores import EPOCH, VirtualClock
from windlass.cli.enqueue import takes, why_not_taken
from windlass.engine import Engine
from windlass.model.errors import Busy
from windlass.model.estimate import Why
from windlass.model.match import Match
from windlass.model.operations import (
    ChangeQueue,
    Delete,
    GetEstimate,
    GetQueue,
    List,
    QueueCard,
    Queues,
    QueueStats,
    Register,
    Unregister,
    Workers,
)
from windlass.model.queue import QueueChange, Tier
from windlass.model.worker import NewWorker, Worker


async def drain(engine: Engine, worker: str, *, draining: bool = True) -> None:
    about = NewWorker(name="w", slots=4, draining=draining)
    await engine(Register(id=worker, worker=about))


async def card(engine: Engine) -> QueueCard:
    return await engine(GetQueue(queue="default"))


async def test_it_is_marked_and_known_since_it_registered(engine: Engine, clock: VirtualClock) -> None:
    worker = await register(engine, slots=4)
    began = clock.now()
    clock.advance(1)
    await drain(engine, worker)
    (listed,) = await engine(Workers())
    assert (listed.draining, listed.registered_at, listed.seen_at) == (True, began, clock.now())
    await drain(engine, worker, draining=False)
    (listed,) = await engine(Workers())
    assert not listed.draining


async def test_its_queue_counts_as_one_without_workers(engine: Engine) -> None:
    """S1 16."""
    worker = await register(engine, slots=4)
    await enqueue(engine)
    await take(engine, worker)
    waiting = await enqueue(engine)
    assert ((await card(engine)).workers, (await card(engine)).slots) == (1, 4)
    assert (await engine(GetEstimate(id=waiting.id))).why is not Why.WORKER
    await drain(engine, worker)
    assert ((await card(engine)).workers, (await card(engine)).slots) == (0, 0)


async def test_jobs_that_wait_for_it_alone_wait_for_a_worker(engine: Engine) -> None:
    worker = await register(engine, slots=4)
    await drain(engine, worker)
    job = await enqueue(engine)
    assert (await engine(GetEstimate(id=job.id))).why is Why.WORKER


async def test_caps_of_tiers_and_the_admission_of_yielding_jobs_leave_it_out_at_once(engine: Engine) -> None:
    tiers = [Tier(name="fast", seconds=3), Tier(name="slow", seconds=30, cap="50%")]
    await engine(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))
    first = await register(engine, slots=4)
    await register(engine, slots=4)
    assert (await card(engine)).caps["slow"] == 4
    await drain(engine, first)
    assert (await card(engine)).caps["slow"] == 2
    for _ in range(4):
        await enqueue(engine, yielding=True)
    with pytest.raises(Busy):
        await enqueue(engine, yielding=True)
    await drain(engine, first, draining=False)
    assert (await card(engine)).caps["slow"] == 4
    await enqueue(engine, yielding=True)


async def test_a_queue_counts_its_live_workers_and_lists_its_jobs_in_any_state(engine: Engine) -> None:
    """S1 14, 15, 16, 17."""
    first, second = await register(engine), await register(engine)
    assert (await card(engine)).workers == 2
    await engine(Unregister(worker=first))
    assert (await card(engine)).workers == 1
    ended, running = await enqueue(engine), await enqueue(engine)
    await finish(engine, second, await take(engine, second))
    await take(engine, second)
    later = await enqueue(engine, delay=60.0)
    await enqueue(engine, queue="unserved")
    assert {one.queue: one.workers for one in await engine(Queues())} == {"default": 1, "unserved": 0}
    listed = await engine(List(match=Match(queue="default")))
    assert [one.id for one in listed.jobs] == [ended.id, running.id, later.id]
    await engine(Delete(ids=[ended.id]))
    listed = await engine(List(match=Match(queue="default")))
    assert [one.id for one in listed.jobs] == [running.id, later.id]


def test_people_learn_that_the_workers_of_a_queue_are_draining() -> None:
    line = QueueStats(tenant="default", queue="default", task="work", states={})
    one = Worker(id="w", name="w", tenant="default", draining=True, registered_at=EPOCH, seen_at=EPOCH)
    assert not takes(one, line, None)
    assert why_not_taken([one], line) == "those that take from default are draining: they are stopping or paused"
