"""The history of a store: what happened minute by minute, kept by any number of processes."""

import asyncio

import pytest

from tests.support.engines import enqueue, finish, register, take
from tests.support.stores import EPOCH, SeededChance, VirtualClock
from windlass.engine import Engine, history, workers
from windlass.engine.history import Historian
from windlass.model.errors import Unavailable
from windlass.model.history import HistoryPoint
from windlass.model.operations import GetHistory, Register, Unregister, WorkerChanges, Workers
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker
from windlass.store.protocol import Store


async def run(engine: Engine, *outcomes: Verdict, queue: str = "default", tenant: str = "default") -> None:
    for outcome in outcomes:
        worker = await register(engine, queue, tenant=tenant)
        await enqueue(engine, queue=queue, tenant=tenant)
        claimed = await take(engine, worker, tenant)
        if tenant == "default":
            await finish(engine, worker, claimed, outcome)


async def points(engine: Engine, **asked: object) -> list[HistoryPoint]:
    return (await engine(GetHistory(**asked))).points  # type: ignore[arg-type]


async def test_each_minute_has_what_ended_in_it_however_many_processes_note(
    engine: Engine, clock: VirtualClock, store: Store, chance: SeededChance
) -> None:
    pairs = [(Historian(), engine), (Historian(), Engine(store, chance))]

    async def note() -> None:
        await asyncio.gather(*(historian(own) for historian, own in pairs))

    await note()
    await run(engine, Verdict.OK, Verdict.OK, Verdict.FAILED)
    clock.advance(60)
    await note()
    await run(engine, Verdict.OK, Verdict.ERROR, queue="mail")
    await enqueue(engine)
    clock.advance(60)
    await note()
    await note()
    first, second = await points(engine)
    assert (first.at - EPOCH).total_seconds() == 60
    assert (first.ok, first.failed, first.error, first.waiting) == (2, 1, 0, 0)
    assert (second.ok, second.failed, second.error, second.waiting) == (1, 0, 1, 1)
    (mail,) = (await points(engine, queue="mail"))[1:]
    assert (mail.ok, mail.error) == (1, 1)
    assert all(point.ok == 0 for point in await points(engine, tenant="other"))
    assert (await points(engine, tenant="-", points=1)) == [second]


async def test_a_ring_keeps_a_day_of_minutes_and_a_month_of_hours(engine: Engine, clock: VirtualClock) -> None:
    historian = Historian()
    for _ in range(30):
        clock.advance(3600)
        await historian(engine)
    assert len(await points(engine, step="hour", points=743)) == 29
    records = engine.context.store.records
    for _ in range(history.KEPT["hour"]):
        clock.advance(3600)
        await historian(engine)
    assert len(await records.list(history.KINDS["hour"])) == history.KEPT["hour"]
    assert len(await records.list(history.KINDS["minute"])) <= history.KEPT["minute"]


async def test_the_busiest_queues_are_noted_by_name_and_the_others_together(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_QUEUES", 1)
    historian = Historian()
    await historian(engine)
    await run(engine, Verdict.OK, Verdict.OK, queue="busy")
    await run(engine, Verdict.OK, queue="rare")
    clock.advance(60)
    await historian(engine)
    (all_of_them,) = await points(engine)
    (busy,) = await points(engine, queue="busy")
    (rare,) = await points(engine, queue="rare")
    assert (all_of_them.ok, busy.ok, rare.ok) == (3, 2, 0)


async def test_each_queue_has_a_history_of_its_own(engine: Engine, clock: VirtualClock) -> None:
    historian = Historian()
    await historian(engine)
    await run(engine, Verdict.OK, Verdict.FAILED, queue="mail")
    clock.advance(60)
    await historian(engine)
    await run(engine, Verdict.ERROR, queue="mail")
    await enqueue(engine, queue="mail")
    await enqueue(engine, queue="slow")
    clock.advance(60)
    await historian(engine)
    found = await engine(GetHistory(by_queue=True))
    assert [(one.queue, one.ended, one.failed) for one in found.queues] == [
        ("mail", [2, 1], [1, 1]),
        ("slow", [0, 0], [0, 0]),
    ]
    assert [one.waiting for one in found.queues] == [[0, 1], [0, 1]]
    assert [one.queue for one in (await engine(GetHistory(by_queue=True, queue="slow"))).queues] == ["slow"]
    assert (await engine(GetHistory())).queues == []


async def test_workers_that_came_and_went_are_noted(engine: Engine, clock: VirtualClock) -> None:
    historian = Historian()
    await historian(engine)
    clock.advance(60)
    for tenant in ("default", "default", "other", "-"):
        await register(engine, tenant=tenant)
    await historian(engine)
    clock.advance(60)  # none of them is heard of again
    await historian(engine)
    assert [point.workers for point in await points(engine)] == [3, 0]
    assert [point.workers for point in await points(engine, tenant="-")] == [4, 0]
    assert [point.workers for point in await points(engine, queue="default")] == [0, 0]


async def changes(engine: Engine, tenant: str = "default", limit: int = 20) -> list[tuple[str, str]]:
    found = await engine(WorkerChanges(tenant=tenant, limit=limit))
    assert [one.at for one in found] == sorted((one.at for one in found), reverse=True)
    return [(one.event, one.name) for one in found]


async def test_workers_that_joined_stopped_or_were_lost_are_listed(
    engine: Engine, clock: VirtualClock, store: Store, chance: SeededChance
) -> None:
    ids = {}
    for name, tenant in (("stops", "default"), ("dies", "default"), ("other", "other"), ("shared", "-")):
        new = NewWorker(name=name, node="box")
        ids[name] = (await engine(Register(tenant=tenant, worker=new))).worker
        clock.advance(1)
    await engine(Register(id=ids["dies"], worker=NewWorker(name="dies", node="box", slots=2)))  # says something new
    await engine(Unregister(worker=ids["stops"]))
    joined = [("joined", "shared"), ("joined", "dies"), ("joined", "stops")]
    assert await changes(engine) == [("stopped", "stops"), *joined]
    clock.advance(60)  # the others are not heard of again
    pairs = [(Historian(), engine), (Historian(), Engine(store, chance))]
    await asyncio.gather(*(historian(own) for historian, own in pairs))
    assert sorted((await changes(engine))[:2]) == [("lost", "dies"), ("lost", "shared")]
    assert (await changes(engine))[2:] == [("stopped", "stops"), *joined]
    assert len(await changes(engine, "-")) == 8
    assert await changes(engine, "-", 1) == (await changes(engine, "-"))[:1]


async def test_of_workers_that_went_the_last_are_remembered(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MOST_GONE", 2)
    for _ in range(4):
        clock.advance(1)
        await engine(Unregister(worker=await register(engine)))
    stays = await register(engine)
    await Historian()(engine)
    found = await engine(WorkerChanges())
    assert [one.event for one in found] == ["joined", "stopped", "joined", "stopped", "joined"]
    assert found[0].worker == stays


async def test_a_worker_joins_although_nothing_can_be_noted_of_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> bool:
        raise Unavailable("no room")

    monkeypatch.setattr(engine.context.store.records, "swap", refused)
    worker = await register(engine)
    assert [one.id for one in await engine(Workers())] == [worker]
    await engine(Unregister(worker=worker))
    assert await engine(Workers()) == []
