"""What every store promises, another part: a claim that waits. Whether the store parks it or not, it gets the next job.

Where a store parks claims (Redis and Valkey, not on a cluster), a job is leased to one as it comes: only if the claim
would have taken it, and only if its worker hears of it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.servers import StartServer
from tests.support.stores import WITH_MODEL, SeededChance, StoreKind, World, ids, opened
from windlass.engine import Engine
from windlass.model.job import State
from windlass.model.lifecycle import cancel
from windlass.model.new_job import NewJob
from windlass.model.operations import Claim, Enqueue, Register, Show
from windlass.model.worker import NewWorker, Worker
from windlass.store.data import ClaimRequest, Overdue, Record
from windlass.store.flow import LimitRule
from windlass.store.protocol import Listener
from windlass.store.redis import RedisStore

STAYS = 5.0

PARKS_CLAIMS = pytest.mark.parametrize("kind", ["redis", "valkey"], indirect=True)


class Waiting:
    """A worker that waits for work, with its claim parked in the store."""

    def __init__(self, world: World, worker: Worker, listener: Listener) -> None:
        self._world = world
        self.worker = worker
        self.listener = listener
        self.nonce = world.chance.token()

    async def ask(self, *, stays: float = 0.0, slots: int = 3) -> list[Record]:
        """The same claim again."""
        return await self._world.store.jobs.claim(ClaimRequest(self.worker, self.nonce, slots, 60.0, stays=stays))


@asynccontextmanager
async def waiting(world: World, *queues: str, **about: Any) -> AsyncIterator[Waiting]:
    worker = world.worker(*queues, **about)
    async with world.store.events.listen(
        [*(f"work/{queue}" for queue in worker.queues), f"grant/{worker.id}"]
    ) as listener:
        one = Waiting(world, worker, listener)
        assert not await one.ask(stays=STAYS)
        yield one


@pytest.mark.parametrize("kind", WITH_MODEL, indirect=True)
async def test_a_claim_that_waits_gets_the_next_job_and_no_other_claim_does(world: World) -> None:
    async with waiting(world) as one:
        id = await world.add(payload=b"42")
        assert await one.listener.wait(PATIENCE)
        (record,) = await one.ask()
        assert (record.job.id, record.job.attempt, record.job.worker) == (id, 1, "w1")
        assert (record.token, record.payload) == (one.nonce, b"42")
        assert ids(await one.ask()) == [id], "sent again, it answers the same"
        assert not await world.claim(world.worker(id="w2"))
        assert await world.succeed(record)
        assert (await world.job(id)).state is State.SUCCEEDED


@PARKS_CLAIMS
async def test_a_job_that_comes_to_a_parked_claim_is_leased_as_it_comes(world: World) -> None:
    async with waiting(world) as one:
        id = await world.add(payload=b"42", priority=3, tags=["t"], max_retry=2)
        told = await world.record(id, payload=True)
        assert told is not None
        assert (told.job.state, told.job.worker, told.token) == (State.RUNNING, "w1", one.nonce)
        assert [(tally.state, tally.count) for tally in (await world.store.jobs.counts("-")).jobs] == [
            (State.RUNNING, 1)
        ]
        assert await one.listener.wait(PATIENCE)
        (record,) = await one.ask()
        assert record == told


@PARKS_CLAIMS
async def test_a_grant_that_was_not_heard_is_answered_by_the_same_claim(world: World) -> None:
    async with waiting(world) as one:
        id = await world.add()
        assert (await world.job(id)).state is State.RUNNING
    assert ids(await one.ask()) == [id]


@PARKS_CLAIMS
async def test_a_granted_job_that_is_not_renewed_is_lost_like_any_other(world: World) -> None:
    async with waiting(world):
        id = await world.add()
        world.clock.advance(59)
        assert not (await world.store.jobs.overdue(Overdue.LEASE, 9)).records
        world.clock.advance(2)
        late = (await world.store.jobs.overdue(Overdue.LEASE, 9)).records
        assert [record.job.id for record in late if record] == [id]


@PARKS_CLAIMS
async def test_a_running_job_that_was_granted_is_stopped_and_keeps_its_fence(world: World) -> None:
    async with waiting(world) as one:
        id = await world.add()
        (record,) = await one.ask()
        assert await world.apply(cancel(record.job), record)
        assert (await world.touch(record)).reason is not None
        assert not await world.succeed(Record(record.job, b"stranger")), id


@PARKS_CLAIMS
async def test_a_parked_claim_is_granted_once(world: World) -> None:
    async with waiting(world):
        first, second = await world.add(), await world.add()
        assert [(await world.job(id)).state for id in (first, second)] == [State.RUNNING, State.QUEUED]


@PARKS_CLAIMS
async def test_the_same_job_sent_again_is_not_granted_to_another_claim(world: World) -> None:
    draft = world.draft()
    async with waiting(world, id="w1"), waiting(world, id="w2"):
        assert await world.store.jobs.add([draft]) == [True]
        assert await world.store.jobs.add([draft]) == [False]
        other = await world.add()
        assert {(await world.job(id)).worker for id in (draft.id, other)} == {"w1", "w2"}


@PARKS_CLAIMS
async def test_the_claim_that_has_waited_longest_is_first(world: World) -> None:
    async with waiting(world, id="w3"):
        world.clock.advance(0.1)
        async with waiting(world, id="w1"):
            world.clock.advance(0.1)
            async with waiting(world, id="w2"):
                workers = [(await world.job(await world.add())).worker for _ in range(3)]
    assert workers == ["w3", "w1", "w2"]


@PARKS_CLAIMS
async def test_a_worker_without_a_tenant_is_granted_the_jobs_of_all(world: World) -> None:
    async with waiting(world, "a", "b", tenant="-", tasks=["other/odd", "work"]):
        id = await world.add("odd", tenant="other", queue="b")
        assert (await world.job(id)).state is State.RUNNING


# A parked claim swallows nothing


async def left_alone(world: World, **terms: Any) -> None:
    """The next job is not leased as it comes, and the next claim has it."""
    id = await world.add(**terms)
    assert (await world.job(id)).state is State.QUEUED
    assert ids(await world.claim(world.worker(id="w9"))) == [id]


@PARKS_CLAIMS
async def test_a_parked_claim_is_not_granted_when_its_time_is_over(world: World) -> None:
    async with waiting(world):
        world.clock.advance(STAYS)
        await left_alone(world)


@PARKS_CLAIMS
async def test_a_parked_claim_is_not_granted_when_it_was_taken_back(world: World) -> None:
    async with waiting(world) as one:
        assert not await one.ask()
        await left_alone(world)


@PARKS_CLAIMS
async def test_a_parked_claim_is_not_granted_when_its_claim_has_taken_something(world: World) -> None:
    async with waiting(world, tasks=["work"]) as one:
        await world.store.jobs.add([world.draft(), world.draft()])
        assert len(await one.ask(stays=STAYS)) == 2
        await left_alone(world)


@PARKS_CLAIMS
async def test_a_parked_claim_is_not_granted_when_its_owner_would_not_hear_of_it(
    world: World, kind: StoreKind, address: str, prefix: str
) -> None:
    async with opened(kind, address, world.clock, prefix) as other, waiting(World(other, world.clock, world.chance)):
        await other.close()  # as when its process is killed
        assert isinstance(world.store, RedisStore)
        ask = world.store.partitions.connection.channel.ask
        while await ask("PUBSUB", "CHANNELS", f"{prefix}/grant/*"):  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(0.005)
        await left_alone(world)


@PARKS_CLAIMS
@pytest.mark.parametrize("terms", [{"delay": 9.0}, {"expires": 9.0}, {"files": {"a": b"b"}}], ids=str)
async def test_only_a_job_that_waits_for_nothing_and_brings_nothing_is_granted(
    world: World, terms: dict[str, Any]
) -> None:
    async with waiting(world):
        assert (await world.job(await world.add(**terms))).state is not State.RUNNING


@PARKS_CLAIMS
async def test_a_job_too_large_for_a_notice_is_not_granted(world: World) -> None:
    async with waiting(world):
        await left_alone(world, payload=bytes(70_000))


@PARKS_CLAIMS
async def test_a_job_of_another_tenant_task_or_queue_is_not_granted(world: World) -> None:
    async with waiting(world, tasks=["mine", "other/theirs"]):
        for terms in ({"task": "theirs"}, {"task": "mine", "tenant": "other"}, {"task": "mine", "queue": "far"}):
            assert (await world.job(await world.add(**terms))).state is State.QUEUED, terms


@PARKS_CLAIMS
async def test_nothing_overtakes_what_waits_already(world: World) -> None:
    async with waiting(world, "first", "second") as one:
        before = await world.add_many(2, queue="first")
        late = await world.add(queue="second")
        assert (await world.job(late)).state is State.QUEUED
        assert ids(await one.ask()) == [*before, late]


@PARKS_CLAIMS
async def test_a_queue_with_rules_grants_nothing_by_itself(world: World) -> None:
    async with waiting(world):
        await world.set_rules(limit_rules={"all": LimitRule(running=1)})
        id = await world.add(group="|all")
        assert (await world.job(id)).state is State.QUEUED


@pytest.mark.parametrize("kind", ["cluster"], indirect=True)
async def test_a_cluster_parks_no_claims(world: World) -> None:
    async with waiting(world):
        await left_alone(world)


# Through the engine


async def test_a_job_for_an_idle_worker_is_one_call_and_one_notice(start_server: StartServer) -> None:
    server = start_server("redis")
    store, other = await RedisStore.open(server.url), await RedisStore.open(server.url)
    idle, busy = Engine(store, SeededChance(1)), Engine(other, SeededChance(2))
    worker = (await idle(Register(worker=NewWorker(name="w")))).worker
    await busy(Enqueue(job=NewJob(task="a")))
    assert await idle(Claim(worker=worker))
    claim = asyncio.ensure_future(idle(Claim(worker=worker, wait=20, nonce="ab" * 8)))
    while not int(server.ask("EXISTS", "wl{0}:parked_claims:default")):  # noqa: ASYNC110 - likewise
        await asyncio.sleep(0.005)
    before = _calls(server.ask("INFO", "commandstats"))
    accepted = await busy(Enqueue(job=NewJob(task="a")))
    (claimed,) = await asyncio.wait_for(claim, PATIENCE)
    assert claimed.job.id == accepted.id
    assert _calls(server.ask("INFO", "commandstats")) - before <= 2, (
        "the new job, and the event that the engine publishes"
    )
    assert (await busy(Show(id=accepted.id))).worker == worker
    await store.close()
    await other.close()


def _calls(stats: str) -> int:
    (line,) = (line for line in stats.splitlines() if line.startswith("cmdstat_fcall:"))
    return int(line.partition("calls=")[2].partition(",")[0])


async def test_a_wait_that_is_over_leaves_no_parked_claim(start_server: StartServer) -> None:
    server = start_server("redis")
    store = await RedisStore.open(server.url)
    engine = Engine(store, SeededChance())
    worker = (await engine(Register(worker=NewWorker(name="w")))).worker
    async with store.events.listen([f"grant/{worker}"]):
        assert not await engine(Claim(worker=worker, wait=0.2, nonce="ab" * 8))
        accepted = await engine(Enqueue(job=NewJob(task="a")))
        assert (await engine(Show(id=accepted.id))).state is State.QUEUED
    await store.close()
