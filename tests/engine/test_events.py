"""The feed: events of all jobs, delivered to watchers across processes."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.engines import enqueue, finish, packed, register, take
from tests.support.http_servers import LOCAL, web
from tests.support.patience import PATIENCE
from tests.support.push_servers import Station
from tests.support.servers import StartServer
from tests.support.stores import StoreKind, VirtualClock, opened
from windlass import Windlass
from windlass.addresses import open_store
from windlass.engine import Engine, upkeep
from windlass.engine.events import feed
from windlass.model import events
from windlass.model.errors import Invalid, Unavailable, WindlassError
from windlass.model.estimate import Estimate, Why
from windlass.model.events import Event, EventSubscription
from windlass.model.job import State
from windlass.model.match import Match
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    AddToken,
    Alive,
    Began,
    Begin,
    Cancel,
    ChangeQueue,
    Claim,
    Edit,
    Enqueue,
    EnqueueMany,
    Finish,
    Finished,
    GetQueueEstimate,
    GetResult,
    Register,
    Renew,
    Rerun,
)
from windlass.model.outcome import Verdict
from windlass.model.output import Progress
from windlass.model.queue import QueueChange, Tier
from windlass.model.worker import NewWorker
from windlass.server import live
from windlass.store.data import FEED, GAP
from windlass.store.protocol import EventStore, Listener, Store
from windlass.system import SystemRandomness

Watched = tuple[str, str]
"""The name of an event, and the task of its job."""


@pytest.fixture
async def other(kind: StoreKind, address: str, clock: VirtualClock, prefix: str, store: Store) -> AsyncIterator[Store]:
    """The same jobs, opened a second time, as another process would; a store in memory cannot be opened twice."""
    if kind == "sqlite":
        yield store
        return
    async with opened(kind, address, clock, prefix) as found:
        yield found


@pytest.fixture
def elsewhere(other: Store) -> Engine:
    return Engine(other, SystemRandomness())


async def take_events(watcher: EventSubscription, number: int) -> list[Event]:
    """So many events, and not one more that came with them."""
    found: list[Event] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < number:
            found += await watcher.take(10)
    assert len(found) == number, found
    return found


def said(found: list[Event]) -> list[Watched]:
    return [(event.name, event.job.task if event.job else "") for event in found]


def quiet(wire: EventStore) -> bool:
    return wire.quiet


async def heard(watch: Listener) -> list[str]:
    async with asyncio.timeout(PATIENCE):
        return await watch.wait(PATIENCE)


# --- The wire -----------------------------------------------------------------------------------------------------


async def test_events_reach_every_subscriber_wherever_they_are_published(store: Store, other: Store) -> None:
    here, there = store.events, other.events
    async with here.listen([FEED]) as watch, there.listen([FEED]) as too:
        await here.publish(["a 1", "b 2"])
        assert await heard(watch) == await heard(too) == ["a 1", "b 2"]
        await there.publish(["c 3"])
        assert await heard(watch) == await heard(too) == ["c 3"]


async def test_an_event_bus_is_quiet_until_there_is_a_subscriber_and_soon_after_the_last_has_gone(
    store: Store, other: Store
) -> None:
    here, there = store.events, other.events
    await there.publish(["no listener hears it"])
    assert quiet(there)
    async with here.listen([FEED]) as watch:
        assert not quiet(there)
        await there.publish(["a 1"])
        assert await heard(watch) == ["a 1"]
        assert not quiet(there)
    async with asyncio.timeout(PATIENCE):
        while not quiet(there):
            await there.publish(["b 2"])
            await asyncio.sleep(0.05)


async def test_nothing_is_lost_while_subscribers_are_looked_for(store: Store, other: Store) -> None:
    """Several who publish at the same moment: the first of them looks, the others must not take that for a no."""
    here, there = store.events, other.events
    async with here.listen([FEED]) as watch:
        await asyncio.gather(*(there.publish([f"a {number}"]) for number in range(10)))
        found: list[str] = []
        while len(found) < 10:
            found += await heard(watch)
        assert sorted(found) == [f"a {number}" for number in range(10)]


@pytest.mark.parametrize("kind", ["file"], indirect=True)
async def test_who_reads_too_slowly_hears_of_a_gap(store: Store, other: Store) -> None:
    here, there = store.events, other.events
    news = [f"word {number:060}" for number in range(1000)]
    async with here.listen([FEED]) as watch:
        for _ in range(40):  # more than a pipe holds; nothing reads meanwhile
            await there.publish(news)
        first = await heard(watch)
        assert len(first) < 40_000
        async with asyncio.timeout(PATIENCE):
            while GAP not in first:
                await asyncio.sleep(0.01)
                await there.publish(["after 1"])
                first = await heard(watch)
        assert first[first.index(GAP) + 1] == "after 1"


@pytest.mark.parametrize("kind", ["redis", "valkey"], indirect=True)
@pytest.mark.parametrize("beside_another", [False, True], ids=["alone", "beside another watcher"])
async def test_a_watcher_that_was_forgotten_because_it_did_not_ask_hears_of_a_gap(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch, *, beside_another: bool
) -> None:
    monkeypatch.setattr("windlass.store.redis.events.WATCHED_FOR", 0.3)
    monkeypatch.setattr("windlass.store.redis.events.LOOK_EVERY", 0.05)
    here, there = store.events, other.events
    async with AsyncExitStack() as stack:
        watch = await stack.enter_async_context(here.listen([FEED]))
        async with asyncio.timeout(PATIENCE):
            while not quiet(there):
                await asyncio.sleep(0.01)
                await there.publish(["before 1"])  # the last of these is not sent
        if beside_another:
            await stack.enter_async_context(there.listen([FEED]))
        hearing = asyncio.create_task(heard(watch))
        while not hearing.done():
            await there.publish(["after 1"])
            await asyncio.sleep(0.01)
        assert GAP in await hearing


# --- Watching -----------------------------------------------------------------------------------------------------


async def test_each_step_of_every_job_is_an_event(engine: Engine, elsewhere: Engine, clock: VirtualClock) -> None:
    async with engine.watching("default", Match()) as watcher:
        job = await enqueue(elsewhere, "one", max_retry=1)
        assert said(await take_events(watcher, 1)) == [("queued", "one")]
        worker = await register(elsewhere)
        claimed = await take(elsewhere, worker)
        (started,) = await take_events(watcher, 1)
        assert started.name == "started"
        assert started.job is not None
        assert (started.job.id, started.job.worker) == (job.id, worker)
        alive = Alive(id=job.id, token=claimed.token, progress=Progress(done=1, total=2))
        await elsewhere(Renew(worker=worker, jobs=[alive]))
        (progress,) = await take_events(watcher, 1)
        assert progress.job is not None
        assert (progress.name, progress.job.progress) == ("progress", Progress(done=1, total=2))
        await finish(elsewhere, worker, claimed, Verdict.ERROR)
        assert said(await take_events(watcher, 1)) == [("retrying", "one")]
        clock.advance(3600)
        await upkeep.promote(elsewhere)
        await finish(elsewhere, worker, await take(elsewhere, worker), result=packed(7))
        assert said(await take_events(watcher, 3)) == [("queued", "one"), ("started", "one"), ("succeeded", "one")]
        await elsewhere(Rerun(ids=[job.id]))
        await elsewhere(Cancel(ids=[job.id]))
        assert said(await take_events(watcher, 2)) == [("queued", "one"), ("cancelled", "one")]


async def test_an_edit_is_an_event_and_a_begin_one_for_those_who_follow_the_job(
    engine: Engine, elsewhere: Engine
) -> None:
    job = await enqueue(engine)
    async with engine.watching("default", Match()) as watcher, aclosing(engine.follow_job("default", job.id)) as story:
        found: list[Event] = []

        async def until(name: str) -> Event:
            async with asyncio.timeout(PATIENCE):
                while not found or found[-1].name != name:
                    found.append(await anext(story))
            return found[-1]

        await until("queued")
        await elsewhere(Edit(id=job.id, priority=3))
        edited = (await until("edited")).job
        worker = await register(elsewhere)
        claimed = await take(elsewhere, worker)
        await until("started")
        await elsewhere(Begin(worker=worker, jobs=[Began(id=job.id, token=claimed.token, pid=77)]))
        begun = (await until("begun")).job
        await finish(elsewhere, worker, claimed)
        await until("succeeded")
        assert edited is not None
        assert begun is not None
        assert (edited.priority, begun.pid) == (3, 77)
        expected = ["queued", "edited", "started", "begun", "succeeded"]
        assert [event.name for event in found if event.name != "estimate"] == expected
        names = [event.name for event in await take_events(watcher, 3)]
        assert names == ["edited", "started", "succeeded"]


async def test_a_job_whose_worker_is_lost_is_an_event_too(
    engine: Engine, elsewhere: Engine, clock: VirtualClock
) -> None:
    await enqueue(engine)
    worker = await register(engine)
    await take(engine, worker)
    async with engine.watching("default", Match()) as watcher:
        clock.advance(60)
        assert await upkeep.reclaim(elsewhere) == 1
        (event,) = await take_events(watcher, 1)
        assert event.name == "retrying"
        assert event.job is not None
        assert event.job.reason == "lost"


async def test_an_end_that_drops_the_record_is_an_event_too(engine: Engine, elsewhere: Engine) -> None:
    async with engine.watching("default", Match()) as watcher:
        await enqueue(elsewhere, "brief", keep_success=0)
        worker = await register(elsewhere)
        claimed = await take(elsewhere, worker)
        await take_events(watcher, 2)
        await finish(elsewhere, worker, claimed)
        (event,) = await take_events(watcher, 1)
        assert event.job is not None
        assert (event.name, event.job.state, event.job.task) == ("succeeded", "succeeded", "brief")


async def test_a_watcher_gets_only_matching_jobs_of_its_tenant(engine: Engine, elsewhere: Engine) -> None:
    async with AsyncExitStack() as stack:
        watching = [
            await stack.enter_async_context(engine.watching(tenant, match))
            for tenant, match in (
                ("mine", Match()),
                ("mine", Match(task="b")),
                ("mine", Match(tag=["red"])),
                ("-", Match(queue="mail")),
            )
        ]
        every, by_task, by_tag, admin = watching
        await enqueue(elsewhere, "secret", tenant="yours", queue="mail")
        await enqueue(elsewhere, "a", tenant="mine", tags=["red"])
        await enqueue(elsewhere, "b", tenant="mine")
        await enqueue(elsewhere, "last", tenant="mine", tags=["red"], queue="mail")
        assert said(await take_events(every, 3)) == [("queued", "a"), ("queued", "b"), ("queued", "last")]
        assert said(await take_events(by_task, 1)) == [("queued", "b")]
        assert said(await take_events(by_tag, 2)) == [("queued", "a"), ("queued", "last")]
        assert said(await take_events(admin, 2)) == [("queued", "secret"), ("queued", "last")]


async def test_events_are_not_matched_by_payload(engine: Engine) -> None:
    with pytest.raises(Invalid) as refused:
        async with engine.watching("default", Match(payload={"a": 1})):
            pass
    assert refused.value.at == "payload"


@pytest.mark.parametrize("kind", ["file", "redis"], indirect=True)
async def test_a_slow_subscriber_gets_a_gap_and_goes_on(
    engine: Engine, elsewhere: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_WAITING", 3)
    async with engine.watching("default", Match()) as slow, engine.watching("default", Match()) as quick:
        for number in range(5):
            await enqueue(elsewhere, f"t{number}")
            await take_events(quick, 1)
        found = await take_events(slow, 4)
        assert [event.name for event in found] == ["queued"] * 3 + ["gap"]
        await enqueue(elsewhere, "next")
        assert said(await take_events(slow, 1)) == [("queued", "next")]


@pytest.mark.parametrize("kind", ["file", "redis"], indirect=True)
async def test_more_than_can_be_looked_up_is_a_gap(
    engine: Engine, elsewhere: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_AT_ONCE", 2)
    async with engine.watching("default", Match()) as watcher:
        await elsewhere(EnqueueMany(jobs=[NewJob(task=f"t{number}") for number in range(5)]))  # published together
        assert [event.name for event in await take_events(watcher, 3)] == ["queued", "queued", "gap"]


async def test_the_last_who_leaves_ends_the_feed(engine: Engine, elsewhere: Engine) -> None:
    async with engine.watching("default", Match()):
        async with engine.watching("default", Match()):
            pass
        assert engine.feed.ready.is_set()
    assert not engine.feed.ready.is_set()
    async with engine.watching("default", Match()) as again:
        await enqueue(elsewhere, "again")
        assert said(await take_events(again, 1)) == [("queued", "again")]


@pytest.mark.parametrize("kind", ["file", "redis"], indirect=True)
async def test_a_write_whose_event_cannot_be_published_is_done_all_the_same(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(news: object) -> None:
        raise WindlassError("no way")

    async with engine.watching("default", Match()):
        monkeypatch.setattr(engine.context.store.events, "publish", broken)
        assert (await enqueue(engine)).task == "work"


@pytest.mark.parametrize("kind", ["file"], indirect=True)
@pytest.mark.parametrize("fault", [Unavailable("it is away"), ValueError("a bug")])
async def test_a_lost_wire_is_a_gap_and_is_taken_up_again(
    engine: Engine, elsewhere: Engine, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    monkeypatch.setattr(feed, "TRY_AGAIN_AFTER", 0.01)

    async def broken(ids: object, **_: object) -> None:
        raise fault

    async with engine.watching("default", Match()) as watcher:
        with monkeypatch.context() as broken_for_now:
            broken_for_now.setattr(engine.context.store.jobs, "read", broken)
            await enqueue(elsewhere, "missed")
            assert [event.name for event in await take_events(watcher, 1)] == ["gap"]
        async with asyncio.timeout(PATIENCE):
            await engine.feed.ready.wait()
        await enqueue(elsewhere, "heard")
        assert said(await take_events(watcher, 1)) == [("queued", "heard")]


@pytest.mark.parametrize("kind", ["file"], indirect=True)
@pytest.mark.parametrize("away", [True, False])
async def test_a_store_that_tells_nothing_is_said_to_be_away(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """At once if it says so itself."""
    monkeypatch.setattr(feed, "BEGIN_WITHIN", 30.0 if away else 0.1)

    @asynccontextmanager
    async def listen(_: Any) -> AsyncIterator[Any]:
        if away:
            raise Unavailable("it is away")
        await asyncio.sleep(60)
        yield

    monkeypatch.setattr(engine.context.store.events, "listen", listen)
    with pytest.raises(Unavailable):
        async with asyncio.timeout(PATIENCE), engine.watching("default", Match()):
            pass


# --- Over HTTP ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["file", "redis"])
def real_address(request: pytest.FixtureRequest, tmp_path: Path, start_server: StartServer) -> str:
    """Where an app and a command find the jobs of `hub`."""
    return str(tmp_path / "jobs.db") if request.param == "file" else start_server("redis").url


@pytest.fixture
async def real_store(real_address: str) -> AsyncIterator[Store]:
    store = await open_store(real_address)
    yield store
    await store.close()


@asynccontextmanager
async def answered(hub: Station, path: str, token: str = LOCAL, **headers: str) -> AsyncIterator[httpx2.Response]:
    """A stream whose answer has begun: from here on nothing is missed."""
    async with web(hub.address, token) as client, client.stream("GET", path, headers=headers) as response:
        yield response


@asynccontextmanager
async def stream(hub: Station, path: str, token: str = LOCAL) -> AsyncIterator[AsyncGenerator[Event, None]]:
    async with answered(hub, path, token) as response:
        assert response.headers["content-type"].startswith(live.EVENT_STREAM), await response.aread()
        async with aclosing(events.read(response.aiter_lines())) as found:
            yield found


async def following(found: AsyncIterator[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await anext(found)


async def test_events_of_all_jobs_come_as_server_sent_events(hub: Station) -> None:
    async with stream(hub, "/v1/default/events") as seen:
        job = await hub.enqueue()
        event = await following(seen)
        assert (event.name, event.id, event.job.id) == ("queued", "", job.id)
        await hub.client(Cancel(ids=[job.id]))
        assert (await following(seen)).name == "cancelled"


async def test_they_come_as_lines_of_json_where_that_is_asked_for(hub: Station) -> None:
    async with answered(hub, "/v1/default/events", accept="application/x-ndjson") as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        lines = response.aiter_lines()
        assert await following(lines) == ""
        job = await hub.enqueue()
        event = json.loads(await following(lines))
        assert (event["event"], event["data"]["id"], event["data"]["state"]) == ("queued", job.id, "queued")


async def test_a_query_says_which_jobs_are_meant(hub: Station) -> None:
    async with stream(hub, "/v1/default/events?task=a&tag=red&state=pending") as seen:
        await hub.enqueue("b", tags=["red"])
        await hub.enqueue("a")
        job = await hub.enqueue("a", tags=["red", "blue"])
        assert (await following(seen)).job.id == job.id


@pytest.mark.parametrize(
    ("query", "at"), [("limit=1", "limit"), ("after=x", "after"), ("payload.a=1", "payload"), ("colour=red", "colour")]
)
async def test_a_wrong_query_is_refused(hub: Station, query: str, at: str) -> None:
    async with answered(hub, f"/v1/default/events?{query}") as response:
        assert response.status_code == 400
        assert at in json.loads(await response.aread())["at"]


async def test_no_tenant_gets_events_of_the_jobs_of_another(hub: Station) -> None:
    mine = (await hub.client(AddToken(tenant="mine", scopes=["read"]))).token
    blind = (await hub.client(AddToken(tenant="mine", scopes=["enqueue", "work", "operate"]))).token
    for path, token, status in (
        ("/v1/mine/events", "wrong", 401),
        ("/v1/mine/events", blind, 403),
        ("/v1/yours/events", mine, 403),
        ("/v1/-/events", mine, 403),
    ):
        async with answered(hub, path, token) as response:
            assert response.status_code == status, path
    async with stream(hub, "/v1/mine/events", mine) as own, stream(hub, "/v1/-/events") as every:
        for tenant in ("yours", "mine"):
            await hub.client(Enqueue(tenant=tenant, job=NewJob(task="work")))
        assert (await following(own)).job.tenant == "mine"
        assert [(await following(every)).job.tenant for _ in range(2)] == ["yours", "mine"]


async def test_a_stream_of_all_jobs_ends_when_the_server_stops(hub: Station) -> None:
    async with answered(hub, "/v1/default/events") as response:
        hub.stopping.set()
        async with asyncio.timeout(PATIENCE):
            await response.aread()
    assert not hub.engine.feed.ready.is_set()


# --- From Python and the command line -----------------------------------------------------------------------------


@pytest.fixture(params=["store", "server"])
def app(request: pytest.FixtureRequest, hub: Station, real_address: str) -> Windlass:
    """The same queue by way of its store, and by way of its server."""
    if request.param == "server":
        return Windlass(server=hub.address, token=LOCAL)
    return Windlass(real_address)


async def test_the_handle_of_a_job_gets_its_events(hub: Station, app: Windlass) -> None:
    job = await hub.enqueue()
    async with aclosing(app.job(job.id).aevents()) as seen:
        first = await following(seen)
        assert (first.name, first.job.id) == ("queued", job.id)
        waiting = await following(seen)
        assert (waiting.name, waiting.estimate) == ("estimate", Estimate(position=1, why=Why.WORKER))
        await hub.client(Cancel(ids=[job.id]))
        last = await following(seen)
        assert last.name == "cancelled"
        assert await anext(seen, None) is None
    assert [event async for event in app.job(job.id).aevents(since=last.id)] == []
    assert [event.name for event in await asyncio.to_thread(lambda: list(app.job(job.id).events()))] == ["cancelled"]
    await app.aclose()
    await asyncio.to_thread(app.close)


async def test_an_app_gets_the_events_of_all_jobs(hub: Station, app: Windlass) -> None:
    async with aclosing(app.aevents(task="mine")) as seen:
        beginning = asyncio.ensure_future(following(seen))
        async with asyncio.timeout(PATIENCE):
            while not beginning.done():  # there is no signal that it watches
                await hub.enqueue("other")
                await hub.enqueue("mine")
                await asyncio.sleep(0.1)
        event = beginning.result()
        assert (event.name, event.job.task) == ("queued", "mine")
    await app.aclose()


async def test_a_handle_without_a_loop_hears_of_a_life(hub: Station, app: Windlass) -> None:
    job = await hub.enqueue()

    def names() -> list[str]:
        found: list[str] = []
        for event in app.job(job.id).events():
            found.append(event.name)
            if event.name == "queued":
                app.job(job.id).cancel()
        return found

    async with asyncio.timeout(PATIENCE):
        found = await asyncio.to_thread(names)
    assert [name for name in found if name != "estimate"] == ["queued", "cancelled"]
    await asyncio.to_thread(app.close)


async def test_whatever_the_queue_answers_can_be_asked_without_a_loop(hub: Station, app: Windlass) -> None:
    job = (await hub.enqueue()).id

    def ask() -> None:
        assert app.ask(Enqueue(job=NewJob(task="work"))).created
        assert app.ask(GetQueueEstimate(queue="default")).why is Why.WORKER
        assert app.ask(GetResult(id=job, wait=0.01)).state is State.QUEUED
        worker = app.ask(Register(worker=NewWorker(name="hand", handlers=True, tasks=["work"], slots=2))).worker
        (held,) = app.ask(Claim(worker=worker))
        done = Finished(id=held.job.id, token=held.token, outcome=Verdict.OK)
        assert app.ask(Finish(worker=worker, jobs=[done])).applied == [held.job.id]
        app.ask(ChangeQueue(queue="default", change=QueueChange(tiers=[Tier(name="fast", seconds=3)])))
        app.ask(EnqueueMany(jobs=[NewJob(task="work", queue="default", yielding=True)]))
        app.close()

    async with asyncio.timeout(PATIENCE):
        await asyncio.to_thread(ask)


async def test_a_handle_knows_how_long_its_job_will_wait_until_it_waits_no_more(hub: Station, app: Windlass) -> None:
    job = app.job((await hub.enqueue()).id)
    waiting = Estimate(position=1, why=Why.WORKER)
    assert await job.aestimate() == await asyncio.to_thread(job.estimate) == waiting
    await job.acancel()
    assert await job.aestimate() == await asyncio.to_thread(job.estimate) == Estimate()
    await app.aclose()
    await asyncio.to_thread(app.close)


async def test_the_command_line_tells_what_happens_to_matching_jobs(hub: Station, real_address: str) -> None:
    for place in (["--server", hub.address], ["--store", real_address]):
        command = [sys.executable, "-m", "windlass", "jobs", "tail", "--task", "mine", "--json", *place]
        environment = {**os.environ, "WINDLASS_TOKEN": LOCAL}
        tail = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.PIPE)
        assert tail.stdout is not None
        line = asyncio.ensure_future(tail.stdout.readline())
        try:
            async with asyncio.timeout(PATIENCE):
                while not line.done():  # there is no signal that it watches
                    await hub.enqueue("other")
                    await hub.enqueue("mine")
                    await asyncio.wait({line}, timeout=0.2)
            event = json.loads(line.result())
            assert (event["event"], event["data"]["task"]) == ("queued", "mine")
        finally:
            tail.kill()
            await tail.wait()
            line.cancel()


def test_the_engine_writes_only_where_events_are_published() -> None:
    """A write past `StoreWrites` would change a job without an event."""
    folder = Path(feed.__file__).parents[1]
    write = re.compile(r"(store\.jobs|target)\.(add|drain|claim|heartbeat|succeed|apply|sweep)\(")
    found = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if write.search(path.read_text())}
    assert found == {"context.py"}
