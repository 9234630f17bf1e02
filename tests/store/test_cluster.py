"""A cluster of two servers: partitions on both, and a slot that moves while jobs are in it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from tests.support.clusters import PARTITIONS, joined
from tests.support.servers import Server, StartServer
from tests.support.stores import SeededChance
from windlass.engine import Engine
from windlass.model.errors import Unavailable
from windlass.model.job import State
from windlass.model.names import queue_mark
from windlass.model.new_job import NewJob
from windlass.model.operations import Claim, Enqueue, EnqueueMany, Finish, Finished, GetStats, List, Register
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker
from windlass.store.redis import RedisStore
from windlass.store.redis.cluster import slot_of

QUEUES = [f"q{number}" for number in range(24)]
HALF = 8192


@pytest.fixture
def two(start_server: StartServer) -> tuple[Server, Server]:
    """Two servers that know each other, each with half of the slots."""
    left, right = joined(start_server, 2)
    return left, right


def tell(server: Server, *words: str | int | bytes) -> Any:
    with redis.Redis(port=server.port) as connection:
        return connection.execute_command(*words)


@pytest.fixture
async def engine(two: tuple[Server, Server]) -> AsyncIterator[Engine]:
    store = await RedisStore.open(two[0].url, partitions=PARTITIONS)
    yield Engine(store, SeededChance())
    await store.close()


async def drain(engine: Engine) -> int:
    worker = (await engine(Register(worker=NewWorker(name="w", queues=QUEUES, slots=100)))).worker
    done = 0
    while claimed := await engine(Claim(worker=worker, slots=7)):
        reports = [Finished(id=one.job.id, token=one.token, outcome=Verdict.OK) for one in claimed]
        assert not (await engine(Finish(worker=worker, jobs=reports))).refused
        done += len(claimed)
    return done


async def test_queues_spread_over_the_servers_and_all_of_them_are_served(
    engine: Engine, two: tuple[Server, Server]
) -> None:
    jobs = [NewJob(task="t", queue=queue) for queue in QUEUES for _ in range(3)]
    assert (await engine(EnqueueMany(jobs=jobs))).created == len(jobs)
    assert all(int(server.ask("DBSIZE")) > 0 for server in two)
    assert len((await engine(List(limit=1000))).jobs) == len(jobs)
    assert await drain(engine) == len(jobs)
    states = [queue.states for queue in (await engine(GetStats())).queues]
    assert states == [{State.SUCCEEDED: 3}] * len(QUEUES)


async def test_a_partition_on_the_move_waits_and_is_found_where_it_went(
    engine: Engine, two: tuple[Server, Server]
) -> None:
    queue = next(queue for queue in QUEUES if slot_of(f"wl{{{queue_mark(queue) % PARTITIONS}}}") < HALF)
    slot = slot_of(f"wl{{{queue_mark(queue) % PARTITIONS}}}")
    before = [(await engine(Enqueue(job=NewJob(task="t", queue=queue)))).id for _ in range(5)]
    left, right = two
    names = [tell(server, "CLUSTER", "MYID").decode() for server in two]
    tell(right, "CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
    tell(left, "CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])

    with pytest.raises(Unavailable, match="is being moved"):
        await engine(Enqueue(job=NewJob(task="t", queue=queue)))

    keys = tell(left, "CLUSTER", "GETKEYSINSLOT", slot, 1000)
    tell(left, "MIGRATE", "127.0.0.1", right.port, "", 0, 5000, "KEYS", *keys)
    for server in (right, left):
        tell(server, "CLUSTER", "SETSLOT", slot, "NODE", names[1])

    after = (await engine(Enqueue(job=NewJob(task="t", queue=queue)))).id
    assert [job.id for job in (await engine(List())).jobs] == [*before, after]
    assert await drain(engine) == len(before) + 1
