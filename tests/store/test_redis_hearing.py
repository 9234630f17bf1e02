"""That a worker was seen is noted where its record is, though not at every claim."""

import asyncio
from itertools import count

from tests.support.patience import PATIENCE
from tests.support.servers import NewPrefix, Server
from windlass.model.worker import NewWorker
from windlass.store.data import ClaimRequest
from windlass.store.redis import RedisStore


async def test_a_worker_is_seen_though_its_first_queue_is_in_another_partition(
    redis_server: Server, new_prefix: NewPrefix
) -> None:
    store = await RedisStore.open(redis_server.url, prefix=new_prefix(), partitions=16)
    try:
        at_home = next(name for n in count() if store.partitions.of_queue(name := f"q{n}") == 0)
        elsewhere = next(name for n in count() if store.partitions.of_queue(name := f"q{n}") != 0)
        for id, queues in (("both", [elsewhere, at_home]), ("away", [elsewhere])):
            await store.workers.heartbeat(id, "default", 3600, NewWorker(name=id, queues=queues))
        first, second = await store.workers.list("default")
        async with asyncio.timeout(PATIENCE):
            while True:
                for worker in (first, second):
                    await store.jobs.claim(ClaimRequest(worker, b"12345678", 1, 3600, repeatable=False))
                if all(one.seen_at > one.registered_at for one in await store.workers.list("default")):
                    break
                await asyncio.sleep(0.05)
    finally:
        await store.close()
