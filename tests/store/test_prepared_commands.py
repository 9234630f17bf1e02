"""A lone job from code without an event loop: it goes a short way into Redis, and nobody can tell it by the job."""

import asyncio
import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import asdict, replace

from tests.support.patience import PATIENCE
from tests.support.servers import NewPrefix, Server, StartServer
from windlass import Windlass
from windlass.connection import run_sync
from windlass.engine import Engine, Settings
from windlass.model.errors import TooLarge, Unavailable
from windlass.model.limit import NewLimit, Which
from windlass.model.match import Match
from windlass.model.names import fresh_id, raw_id
from windlass.model.new_job import NOTHING, NewJob
from windlass.model.operations import Claim, Count, EnqueueMany, List, PutLimit, Register, Show
from windlass.model.template import template_of
from windlass.model.worker import NewWorker
from windlass.store.redis import RedisStore
from windlass.store.redis.connection import AWAKE
from windlass.system import SystemRandomness

chance = SystemRandomness()


@pytest.fixture(autouse=True)
def _seldom_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks whether somebody watches goes the usual way: in a slow test that must not be every time."""
    monkeypatch.setattr("windlass.store.redis.events.LOOK_EVERY", 60.0)


@pytest.fixture(params=["redis_server", "valkey_server"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def engine(server: Server, new_prefix: NewPrefix) -> Iterator[Engine]:
    store = run_sync(RedisStore.open(server.url, prefix=new_prefix(), blocking=True))
    engine = Engine(store, chance, Settings(most_payload=1000))
    run_sync(engine(one()))  # so that what holds here is known
    yield engine
    run_sync(store.close())


def one(task: str = "work", payload: bytes = b"\x01", **options: Any) -> EnqueueMany:
    named = {"id": fresh_id(chance.uuid7(), options.get("queue", "default")), **options}
    return EnqueueMany(jobs=[NewJob(task=task, payload=Raw(payload), **named)])


def at_once(engine: Engine, operation: EnqueueMany) -> bool | None:
    """Whether its job, sent the short way, is new; null = it could not go that way."""
    (new,) = operation.jobs
    template = template_of(replace(new, id=None, payload=NOTHING))
    created = engine.prepared.add("default", template, raw_id(str(new.id)), bytes(new.payload))
    if created is not None:
        run_sync(engine.prepared.publish("default", template, raw_id(str(new.id)), created=created))
    return created


def lasting(engine: Engine, id: str) -> dict[str, Any]:
    """All of a job but what differs between any two."""
    job = asdict(run_sync(engine(Show(id=id, payload=True))))
    return {name: value for name, value in job.items() if name not in ("id", "created_at", "updated_at")}


def claimed(engine: Engine, queue: str) -> list[str]:
    """The ids of what a new worker gets there."""
    worker = run_sync(engine(Register(worker=NewWorker(name="w", queues=[queue])))).worker
    return [claimed.job.id for claimed in asyncio.run(engine(Claim(worker=worker, slots=10)))]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority": -7},
        {"queue": "other", "timeout": 5.0, "tags": ["a"], "keep_result": "once", "keep_success": None, "max_retry": 2},
        {"headers": {"x": "é"}, "isolate": True, "content_type": "text/plain"},
    ],
)
def test_a_job_is_the_same_by_either_way(engine: Engine, options: dict[str, Any]) -> None:
    for payload in (b"\x01", b"", b"\r\n\0" * 300):
        usual, short = one("task", payload, **options), one("task", payload, **options)
        run_sync(engine(usual))
        assert at_once(engine, short) is True
        assert lasting(engine, str(usual.jobs[0].id)) == lasting(engine, str(short.jobs[0].id))


def test_jobs_come_in_order_by_either_way(engine: Engine) -> None:
    asked = [("a", 0), ("b", -1), ("a", 0), ("a", -5), ("b", -7), ("b", -5), ("a", 0)]
    sent = [one(task, queue="ordered", priority=priority) for task, priority in asked]
    for place, operation in enumerate(sent):
        assert run_sync(engine(operation)) if place in (2, 4) else at_once(engine, operation)
    assert claimed(engine, "ordered") == [sent[place].jobs[0].id for place in (4, 3, 5, 1, 0, 2, 6)]


def test_a_job_sent_twice_by_the_short_way_is_one(engine: Engine) -> None:
    operation = one(queue="twice")
    assert [at_once(engine, operation) for _ in range(2)] == [True, False]
    assert run_sync(engine(Count(match=Match(queue="twice")))).count == 1


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 5.0},
        {"expires": 5.0},
        {"owner_timeout": 5.0},
        {"files": {"a": b"b"}},
        {"key": "k"},
    ],
)
def test_what_waits_or_brings_something_along_goes_the_usual_way(engine: Engine, options: dict[str, Any]) -> None:
    assert at_once(engine, one(**options)) is None


def test_a_payload_that_is_too_large_is_refused_as_usual(engine: Engine) -> None:
    assert at_once(engine, one(payload=b"x" * 1000))
    large = one(payload=b"x" * 1001)
    assert at_once(engine, large) is None
    with pytest.raises(TooLarge):
        run_sync(engine(large))


def test_jobs_of_one_task_that_ask_for_different_things_are_not_mixed_up(engine: Engine) -> None:
    tags: list[str] = []
    for priority in (1, 2, 1):
        operation = one(priority=priority, tags=tags)
        assert at_once(engine, operation)
        job = run_sync(engine(Show(id=str(operation.jobs[0].id))))
        assert (job.priority, job.tags) == (priority, tags)
        tags.append(str(priority))


def test_the_way_is_shut_while_rules_are_in_force(engine: Engine) -> None:
    assert at_once(engine, one(queue="bounded"))
    other = Engine(engine.context.store, chance)
    run_sync(other(PutLimit(name="few", limit=NewLimit(match=Which(queue="bounded"), running=1))))
    for _ in range(3):
        operation = one(queue="bounded")
        assert at_once(engine, operation) is None, "the server knows of rules that this engine has not heard of"
        run_sync(engine(operation))
    assert len(claimed(engine, "bounded")) == 1


def test_the_prepared_command_stays_open_while_the_store_looks_for_watchers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.store.redis.events.LOOK_EVERY", 0.0)
    assert [at_once(engine, one()) for _ in range(3)] == [True] * 3


def test_a_server_that_has_lost_the_library_shuts_the_way_once(server: Server, engine: Engine) -> None:
    assert at_once(engine, one())
    server.ask("FUNCTION", "FLUSH")
    operation = one()
    assert at_once(engine, operation) is None
    assert run_sync(engine(operation)).created == 1
    assert at_once(engine, one())


def test_a_connection_that_was_closed_while_it_rested_is_not_used(
    server: Server, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.store.redis.connection.AWAKE", 0.0)
    assert at_once(engine, one())
    server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    operation = one()
    assert at_once(engine, operation) is None
    assert run_sync(engine(operation)).created == 1
    assert len(engine.prepared._commands) == 1, "the way itself is still known"


def test_what_is_not_asked_again_looks_at_its_connection_first(
    server: Server, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.store.redis.connection.AWAKE", 60.0)
    assert at_once(engine, one())
    server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert run_sync(engine(Count())).count >= 1


def test_a_server_that_stalls_is_given_up_in_time(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.store.redis.calls.ANSWER_WITHIN", 0.3)
    server = start_server("redis")
    engine = Engine(run_sync(RedisStore.open(server.url, blocking=True)), chance)
    run_sync(engine(one()))
    assert at_once(engine, one())
    server.ask("CLIENT", "PAUSE", "60000", "ALL")
    for ask in (partial(at_once, engine), lambda operation: run_sync(engine(operation))):
        with pytest.raises(Unavailable, match="timed out"):
            ask(one())
    run_sync(engine.context.store.close())


def test_a_server_that_was_restarted_gets_every_job_once(start_server: StartServer) -> None:
    server = start_server("redis", fsync="always")
    app = Windlass(server.url)
    work = _work_of(app)
    ids = []
    for round_ in range(3):
        ids += [work.enqueue(round_ * 3 + n).id for n in range(3)]
        server.kill()
        server.restart()
    found = app.ask(List()).jobs
    app.close()
    assert [job.id for job in found] == ids


def test_a_process_that_was_forked_behind_pythons_back_has_a_connection_of_its_own(start_server: StartServer) -> None:
    app = Windlass(start_server("redis").url)
    work = _work_of(app)
    work.enqueue(0)
    work.enqueue(1)
    time.sleep(2 * AWAKE)
    pid = ctypes.PyDLL(None).fork()  # as a server in C may do it: none of Python's hooks is called
    jobs = [work.enqueue(n).id for n in range(200)]
    assert len({app.ask(Show(id=id)).id for id in jobs}) == 200
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert app.ask(Count()).count == 402
    app.close()


async def test_every_job_has_its_event_while_the_feed_is_watched(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.store.redis.events.LOOK_EVERY", 0.2)
    app = Windlass(start_server("redis").url)
    work = _work_of(app)
    heard: list[str] = []
    told = asyncio.Event()

    async def listen() -> None:
        async with aclosing(app.aevents()) as events:
            async for event in events:
                heard.append(event.job.id if event.job else event.name)
                told.set()

    async def enqueue() -> str:
        return str((await asyncio.to_thread(work.enqueue, 1)).id)

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(listen())
        while not told.is_set():
            await enqueue()
        ids = [await enqueue() for _ in range(20)]
        while ids[-1] not in heard:
            told.clear()
            await told.wait()
        listening.cancel()
    await app.aclose()
    app.close()
    assert [id for id in heard if id in ids] == ids


def _work_of(app: Windlass) -> Any:
    @app.task
    def work(n: int) -> None: ...

    return work
