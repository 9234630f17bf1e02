"""What only Redis can do to us: servers that die, forget, stall, refuse, or are set up to lose jobs."""

import asyncio
import gc
import re
from importlib.resources import files

import pytest
import redis

from tests.support.patience import PATIENCE
from tests.support.servers import Server, StartServer
from tests.support.stores import SeededChance
from windlass.engine import Engine
from windlass.model.errors import Invalid, Unavailable
from windlass.model.job import Reason, State
from windlass.model.lifecycle import GONE
from windlass.model.new_job import NewJob
from windlass.model.operations import Claim, Count, Delete, Enqueue, EnqueueMany, Register
from windlass.model.worker import NewWorker
from windlass.store.data import AccessRefused
from windlass.store.redis import RedisStore, layout
from windlass.store.redis.calls import SOURCES, Library, library
from windlass.store.redis.connection import RIGHTS
from windlass.store.redis.scrub import facts, scrub


async def test_a_server_that_was_killed_and_came_back_is_used_again(start_server: StartServer) -> None:
    server = start_server("redis", fsync="always")
    store = await RedisStore.open(server.url)
    engine = Engine(store, SeededChance())
    await engine(Enqueue(job=NewJob(task="a", key="1")))
    server.kill()
    with pytest.raises(Unavailable):
        await engine(Enqueue(job=NewJob(task="a", key="2")))
    server.restart()
    await engine(Enqueue(job=NewJob(task="a", key="2")))
    assert (await engine(Count())).count == 2
    await store.close()


async def test_a_server_that_stays_away_costs_no_memory(start_server: StartServer) -> None:
    server = start_server("redis")
    store = await RedisStore.open(server.url)
    server.kill()
    for _ in range(20):
        with pytest.raises(Unavailable):
            await store.jobs.counts("default")
    gc.collect()
    kept = [one for one in gc.get_objects() if type(one) is ConnectionRefusedError]  # asks no object
    assert len(kept) < 10, "what failed long ago is not kept"
    await store.close()


async def test_a_worker_that_waits_for_work_goes_on_waiting_when_the_server_restarts(start_server: StartServer) -> None:
    server = start_server("redis", fsync="always")
    store = await RedisStore.open(server.url)
    engine = Engine(store, SeededChance())
    worker = (await engine(Register(worker=NewWorker(name="w")))).worker
    async with store.events.listen(["work/default"]) as listener:
        server.restart()
        assert await listener.wait(PATIENCE), "a listener is woken when messages were interrupted"
    async with asyncio.timeout(PATIENCE):
        waiting = asyncio.ensure_future(engine(Claim(worker=worker, wait=9)))
        await asyncio.sleep(0.3)
        job = await engine(Enqueue(job=NewJob(task="a")))
        assert [claimed.job.id for claimed in await waiting] == [job.id]
    await store.close()


async def test_a_server_that_has_lost_the_library_gets_it_again(redis_server: Server) -> None:
    store = await RedisStore.open(redis_server.url, prefix="forgetful")
    engine = Engine(store, SeededChance())
    await engine(EnqueueMany(jobs=[NewJob(task="a")] * 3))
    redis_server.ask("FUNCTION", "FLUSH")
    assert (await engine(EnqueueMany(jobs=[NewJob(task="a")] * 3))).created == 3
    assert (await engine(Count())).count == 6
    await store.close()


async def test_a_server_that_stalls_is_given_up_and_tried_again(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.store.redis.calls.ANSWER_WITHIN", 0.3)
    server = start_server("redis")
    store = await RedisStore.open(server.url)
    engine = Engine(store, SeededChance())
    server.ask("CLIENT", "PAUSE", "3000", "ALL")
    with pytest.raises(Unavailable, match="no answer"):
        await engine(Enqueue(job=NewJob(task="a", key="1")))
    server.ask("PING")  # answered when the pause is over
    await engine(Enqueue(job=NewJob(task="a", key="1")))
    assert (await engine(Count())).count == 1, "the first request may have been carried out: it is the same job"
    await store.close()


async def test_a_server_that_throws_jobs_away_is_refused(start_server: StartServer) -> None:
    server = start_server("redis")
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(Invalid, match="noeviction") as fault:
        await RedisStore.open(server.url)
    assert fault.value.at == "store"


@pytest.mark.parametrize("appendonly", ["no", "yes"])
async def test_a_server_that_keeps_no_log_is_warned_of(
    start_server: StartServer, appendonly: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server("redis")
    server.ask("CONFIG", "SET", "appendonly", appendonly)
    store = await RedisStore.open(server.url)
    found = await facts(store)
    await store.close()
    warned = [record.message for record in caplog.records if "APPENDONLY IS OFF" in record.message]
    assert [record.levelname for record in caplog.records if record.message in warned] == ["WARNING"] * len(warned)
    assert len(warned) == (1 if appendonly == "no" else 0)
    assert ("set appendonly to yes" in found.risk) == (appendonly == "no"), "doctor says it too"


async def test_a_server_without_memory_says_so_and_goes_on_later(start_server: StartServer) -> None:
    server = start_server("redis")
    store = await RedisStore.open(server.url)
    engine = Engine(store, SeededChance())
    server.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(Exception, match="out of memory") as fault:
        await engine(Enqueue(job=NewJob(task="a")))
    assert getattr(fault.value, "code", "") == "full"
    server.ask("CONFIG", "SET", "maxmemory", "0")
    await engine(Enqueue(job=NewJob(task="a")))
    assert (await engine(Count())).count == 1
    await store.close()


async def test_a_password_is_given_and_a_wrong_one_is_refused(start_server: StartServer) -> None:
    server = start_server("redis")
    server.ask("CONFIG", "SET", "requirepass", "secret")
    address = f"127.0.0.1:{server.port}/3"
    store = await RedisStore.open(f"redis://:secret@{address}")
    assert (await Engine(store, SeededChance())(Enqueue(job=NewJob(task="a")))).state is State.QUEUED
    await store.close()
    with pytest.raises(Unavailable):
        await RedisStore.open(f"redis://:wrong@{address}")


@pytest.mark.parametrize("url", ["http://localhost", "redis://localhost:port", "nonsense"])
async def test_what_is_no_address_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(Invalid) as fault:
        await RedisStore.open(url)
    assert fault.value.at == "store"


async def test_a_server_that_does_not_answer(start_server: StartServer) -> None:
    server = start_server("redis")
    server.stop()
    with pytest.raises(Unavailable):
        await RedisStore.open(server.url)


async def test_the_number_of_partitions_is_for_good(redis_server: Server) -> None:
    first = await RedisStore.open(redis_server.url, prefix="parts", partitions=4)
    await first.close()
    again = await RedisStore.open(redis_server.url, prefix="parts")
    assert again.partitions.number == 4
    await again.close()
    with pytest.raises(Invalid, match="4 partitions"):
        await RedisStore.open(redis_server.url, prefix="parts", partitions=8)


def test_the_library_and_python_use_the_same_numbers() -> None:
    source = (files("windlass.store.redis") / "lua" / "keys.lua").read_text()
    constants = dict[str, int]()
    for names, values in re.findall(r"^local ([A-Z_, ]+) = ([0-9, ]+)", source, re.MULTILINE):
        constants.update(zip(names.split(", "), map(int, values.split(", ")), strict=True))
    for state in (State.SCHEDULED, State.QUEUED, State.RUNNING, State.SUCCEEDED, State.CANCELLED, GONE):
        assert constants[state.upper()] == layout.STATE_NUMBERS[state]
    assert constants["DELETED"] == layout.REASON_NUMBERS[Reason.DELETED]
    assert set(layout.REASONS) == {None, *Reason}
    for flag, mode in (("ONCE", "once"), ("NONE", "none")):
        assert constants[flag] == layout.KEEP_RESULT_FLAGS[mode]
    assert (constants["ERRORS"], constants["PROGRESS"]) == (layout.ERRORS, layout.PROGRESS)


# The function library


async def test_two_versions_of_the_library_live_on_one_server(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server("redis")
    old, text = await RedisStore.open(server.url), library().text
    other = Library("0" * 12, text.replace(library().version, "0" * 12) + "-- another text\n")
    monkeypatch.setattr("windlass.store.redis.calls.library", lambda: other)
    new = await RedisStore.open(server.url)
    before, after = Engine(old, SeededChance(1)), Engine(new, SeededChance(2))
    await after(Enqueue(job=NewJob(task="a")))
    monkeypatch.undo()
    await before(Enqueue(job=NewJob(task="a")))
    assert (await before(Count())).count == 2
    assert server.ask("FUNCTION", "STATS")
    with redis.Redis(port=server.port) as client:
        names = {name.decode() for _, name, *_ in client.function_list()}
    assert names == {f"windlass_{library().version}", "windlass_000000000000"}
    await old.close()
    await new.close()


async def test_a_user_that_may_not_load_the_library_learns_which_rights_it_needs(start_server: StartServer) -> None:
    server = start_server("redis")
    server.ask("ACL", "SETUSER", "queue", "on", ">secret", "~*", "&*", "+@all", "-function")
    with pytest.raises(AccessRefused, match=r"\+function\|load"):
        await RedisStore.open(f"redis://queue:secret@127.0.0.1:{server.port}")


async def test_a_user_with_exactly_the_rights_that_are_documented_may_do_everything(start_server: StartServer) -> None:
    server = start_server("redis")
    server.ask("ACL", "SETUSER", "queue", "on", ">secret", *RIGHTS.split())
    store = await RedisStore.open(f"redis://queue:secret@127.0.0.1:{server.port}")
    engine = Engine(store, SeededChance())
    worker = (await engine(Register(worker=NewWorker(name="w")))).worker
    async with store.events.listen([f"grant/{worker}"]) as listener:
        claim = asyncio.ensure_future(engine(Claim(worker=worker, wait=9, nonce="ab" * 8)))
        while not int(server.ask("EXISTS", "wl{0}:parked_claims:default")):  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(0.005)
        job = await engine(Enqueue(job=NewJob(task="a")))
        assert await listener.wait(PATIENCE)
        (claimed,) = await claim
    assert claimed.job.id == job.id
    await engine(Delete(ids=[job.id]))
    assert not await scrub(store)
    await store.close()


def test_every_source_is_a_part_of_the_library() -> None:
    names = {file.name.removesuffix(".lua") for file in (files("windlass.store.redis") / "lua").iterdir()}
    assert names == set(SOURCES)
    assert len(SOURCES) <= 10


# The layout of keys

LAYOUT = "{wl:partitions}:layout"


async def with_jobs_of(url: str, *tenants: str) -> RedisStore:
    store = await RedisStore.open(url)
    engine = Engine(store, SeededChance())
    for tenant in tenants:
        await engine(Enqueue(tenant=tenant, job=NewJob(task="a")))
    return store


async def open_again(url: str) -> None:
    store = await RedisStore.open(url)
    await store.close()


async def test_a_store_is_marked_with_its_layout_and_another_layout_is_refused(start_server: StartServer) -> None:
    server = start_server("redis")
    await (await with_jobs_of(server.url, "acme")).close()
    assert server.ask("GET", LAYOUT) == "4"
    await open_again(server.url)
    for mark, advice in (("5", "has layout 5, .*: use a newer one"), ("3", "older layout than 4, .*: use another")):
        server.ask("SET", LAYOUT, mark)
        with pytest.raises(Invalid, match=advice):
            await open_again(server.url)


async def test_a_store_that_has_lost_its_mark_is_judged_by_its_keys(start_server: StartServer) -> None:
    server = start_server("redis")
    store = await with_jobs_of(server.url, "default", "acme")
    server.ask("DEL", LAYOUT)
    await open_again(server.url)
    server.ask("FLUSHALL")
    await open_again(server.url)
    server.ask("FLUSHALL")
    assert (await Engine(store, SeededChance())(Enqueue(tenant="acme", job=NewJob(task="a")))).created
    await open_again(server.url)
    assert server.ask("GET", LAYOUT) == "4"
    await store.close()
    server.ask("DEL", LAYOUT)
    server.ask("ZADD", "wl{0}:lines", "0", "default,default")
    with pytest.raises(Invalid, match="older layout"):
        await open_again(server.url)
    assert server.ask("EXISTS", LAYOUT) == "0"
