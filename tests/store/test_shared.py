"""What every store promises, fourth part: one store opened twice, as two processes would open it.

A store in memory lives inside one process and is opened once; all others are here.
"""

import asyncio

import pytest

from tests.support.patience import PATIENCE
from tests.support.stores import StoreKind, World, ids, open_store
from windlass.model.job import State
from windlass.model.lifecycle import cancel
from windlass.model.names import JobKey
from windlass.store.data import StoredResult
from windlass.store.encoding import end_topic

pytestmark = pytest.mark.parametrize("kind", ["file", "redis", "valkey", "cluster"], indirect=True)


async def test_two_openings_of_one_store_share_its_jobs(
    world: World, kind: StoreKind, address: str, prefix: str
) -> None:
    async with open_store(kind, address, world.clock, prefix) as other:
        elsewhere = World(other, world.clock, world.chance)
        both = (world, elsewhere)
        added = [await both[n % 2].add() for n in range(40)]
        workers = [world.worker(id=f"w{n}") for n in range(8)]
        claims = await asyncio.gather(*(both[n % 2].claim(worker, slots=5) for n, worker in enumerate(workers)))
        assert sorted(id for claim in claims for id in ids(claim)) == sorted(added)
        first = claims[1][0]
        assert await world.succeed(first, b"42")
        assert (await elsewhere.job(first.job.id)).state is State.SUCCEEDED
        assert await elsewhere.result(first.job.id) == StoredResult(b"42", "text/plain")
        assert await elsewhere.store.jobs.counts("-") == await world.store.jobs.counts("-")


async def test_the_same_batch_sent_to_both_at_once_is_added_once(
    world: World, kind: StoreKind, address: str, prefix: str
) -> None:
    async with open_store(kind, address, world.clock, prefix) as other:
        batch = [world.draft(queue=f"q{n % 3}") for n in range(60)]
        answers = await asyncio.gather(*(store.jobs.add(batch) for store in (world.store, other) * 3))
        assert sum(bool(added) for answer in answers for added in answer) == 60
        assert len(await world.jobs()) == 60


async def test_what_was_written_is_there_when_the_store_is_opened_again(
    world: World, kind: StoreKind, address: str, prefix: str
) -> None:
    async with open_store(kind, address, world.clock, prefix) as first:
        before = World(first, world.clock, world.chance)
        ended, running = await before.add(payload=b"one"), await before.add(payload=b"two")
        taken = await before.claim(slots=2)
        await before.succeed(taken[0], b"result")
    async with open_store(kind, address, world.clock, prefix) as second:
        after = World(second, world.clock, world.chance)
        assert await after.result(ended) == StoredResult(b"result", "text/plain")
        assert await after.record(running, payload=True) == taken[1]
        waiting = await after.add()
        assert ids(await after.claim(slots=5)) == [waiting]
        assert ids(await after.jobs()) == [ended, running, waiting]


@pytest.mark.parametrize("what", ["work", "end", "order"])
async def test_a_notice_crosses_from_one_opening_to_the_other(
    world: World, kind: StoreKind, address: str, prefix: str, what: str
) -> None:
    async with open_store(kind, address, world.clock, prefix) as other:
        elsewhere = World(other, world.clock, world.chance)
        id = await world.add(queue="busy")
        taken = await world.take(world.worker("busy"))
        topic = {"work": "work/idle", "end": end_topic(JobKey(id, "default")), "order": "order/w1"}[what]
        async with world.store.events.listen([topic]) as listener:
            waiting = asyncio.ensure_future(listener.wait(PATIENCE))
            await asyncio.sleep(0)
            if what == "work":
                await elsewhere.add(queue="idle")
            elif what == "end":
                await elsewhere.succeed(taken)
            else:
                await elsewhere.apply(cancel(taken.job), taken)
            assert await waiting
