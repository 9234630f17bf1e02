"""Where replicas must have a job too, nobody hears that it was accepted before they have."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from tests.support.drained_journals import CLOCK, in_order, new
from tests.support.engines import packed
from tests.support.http_servers import process
from tests.support.patience import PATIENCE
from tests.support.relays import Wire
from tests.support.scoreboard import await_
from tests.support.servers import Kind, Server, StartServer
from windlass import Windlass
from windlass.addresses import open_engine, open_service
from windlass.engine import Engine, Settings
from windlass.engine.journal import Journaled
from windlass.model.errors import Invalid, NotReplicated
from windlass.model.job import State
from windlass.model.names import fresh_id
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import (
    Claim,
    Count,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    Finish,
    Finished,
    Register,
    Service,
    Show,
)
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker
from windlass.system import SystemRandomness

pytestmark = pytest.mark.timeout(240)

WITHIN = 1.0


class Pair(NamedTuple):
    """A server and its replica, over a line that can be cut."""

    primary: Server
    replica: Server
    line: Wire

    @property
    def url(self) -> str:
        return f"{self.primary.url}?replicas=1&replicated_within={WITHIN}s"


def paired(kind: Kind, start_server: StartServer) -> Iterator[Pair]:
    primary, replica = start_server(kind, fsync="always"), start_server(kind, fsync="always")
    with Wire(primary.port) as line:
        # A link through the wire that broke while it was set up would else be noticed after a minute.
        replica.ask("CONFIG", "SET", "repl-timeout", "3", "repl-ping-replica-period", "1")
        primary.ask("CONFIG", "SET", "repl-ping-replica-period", "1")
        replica.ask("REPLICAOF", "127.0.0.1", str(line.port))
        await_("they are linked", lambda: "master_link_status:up" in replica.ask("INFO", "replication"))
        primary.ask("SET", "first", "1")
        await_("and has said that it got something", lambda: has_all_of(primary))
        yield Pair(primary, replica, line)


def has_all_of(primary: Server) -> bool:
    """Whether the replica has said so: a first answer may take it longer than any after that."""
    told = primary.ask("INFO", "replication")
    offset = re.search(r"master_repl_offset:(\d+)", told)
    return offset is not None and f"state=online,offset={offset[1]}," in told


@pytest.fixture(params=["redis", "valkey"])
def pair(request: pytest.FixtureRequest, start_server: StartServer) -> Iterator[Pair]:
    yield from paired(request.param, start_server)


@pytest.fixture
def redis_pair(start_server: StartServer) -> Iterator[Pair]:
    yield from paired("redis", start_server)


def waits(server: Server) -> int:
    """How often a server was asked whether its replicas have something."""
    found = re.search(r"cmdstat_wait:calls=(\d+)", server.ask("INFO", "commandstats"))
    return int(found[1]) if found else 0


def own_id() -> str:
    return fresh_id(SystemRandomness().uuid7(), "default")


@asynccontextmanager
async def asked(pair: Pair, tmp_path: Path, way: str) -> AsyncIterator[Service]:
    journal = str(tmp_path / "journal") if way == "journal" else None
    async with open_service(pair.url, journal=journal) as service:
        assert isinstance(service, Journaled if journal else Engine)
        yield service


ways = pytest.mark.parametrize("way", ["engine", "journal"])


@ways
async def test_r8_what_was_accepted_outlasts_the_server_without_being_sent_again(
    pair: Pair, tmp_path: Path, way: str
) -> None:
    """The line is cut while jobs come in: those that were accepted are on the replica, the others were told."""
    accepted: list[int] = []
    async with asked(pair, tmp_path, way) as service:

        async def send(number: int) -> None:
            try:
                await service(Enqueue(job=new(number)))
            except NotReplicated:
                return
            accepted.append(number)

        for start in range(0, 200, 20):
            await asyncio.gather(*(send(number) for number in range(start, start + 20)))
        pair.line.cut()
        await asyncio.gather(*(send(number) for number in range(200, 220)))
        pair.primary.kill()
    assert max(accepted) < 200, "nothing after the cut"
    assert len(accepted) > 100, "and nearly everything before it, but for what took a busy machine too long"
    pair.replica.ask("REPLICAOF", "NO", "ONE")
    async with open_engine(pair.replica.url) as engine:
        found = await in_order(engine)
    assert set(accepted) <= set(found)
    assert len(found) == len(set(found))


@ways
async def test_a_job_that_was_not_replicated_may_be_sent_again(pair: Pair, tmp_path: Path, way: str) -> None:
    id = own_id()
    async with asked(pair, tmp_path, way) as service:
        await service(Enqueue(job=new(0)))
        pair.line.cut()
        for _ in range(2):  # a job that is there already must not count as replicated for that
            with pytest.raises(NotReplicated, match=rf"job {id} .* is accepted, but 0 of 1 replicas said within 1 s"):
                await service(Enqueue(job=new(1, id=id)))
            assert (await service(Show(id=id))).state is State.QUEUED
    async with asked(pair, tmp_path, way) as service:
        with pytest.raises(NotReplicated, match="0 of 1 replicas"):  # not even over a new connection
            await service(Enqueue(job=new(1, id=id)))
        pair.line.mend()
        await online(pair)
        assert not (await service(Enqueue(job=new(1, id=id)))).created
        assert (await service(Count())).count == 2


async def online(pair: Pair) -> None:
    """A line that was cut and mended is a new one."""
    pair.replica.ask("REPLICAOF", "127.0.0.1", str(pair.line.port))
    async with asyncio.timeout(PATIENCE):
        while "master_link_status:up" not in pair.replica.ask("INFO", "replication"):
            await CLOCK.sleep(0.05)


@ways
async def test_many_jobs_and_lines_are_held_to_it_too(redis_pair: Pair, tmp_path: Path, way: str) -> None:
    async with asked(redis_pair, tmp_path, way) as service:
        assert (await service(EnqueueMany(jobs=[new(number) for number in range(5)]))).created == 5
        lines = EnqueueLines(task="a", options=JobOptions(), text="1\n2\n3\n")
        assert (await service(lines)).created == 3
        redis_pair.line.cut()
        with pytest.raises(
            NotReplicated, match=r"5 jobs \(.*, …: they may be sent again under these ids\) are accepted"
        ):
            await service(EnqueueMany(jobs=[new(number) for number in range(5)]))
        with pytest.raises(NotReplicated, match="3 jobs"):
            await service(lines)
        assert (await service(Count())).count == 16


async def test_those_who_wait_for_replicas_wait_together(redis_pair: Pair, tmp_path: Path) -> None:
    async with asked(redis_pair, tmp_path, "engine") as service:
        redis_pair.line.cut()
        before = waits(redis_pair.primary)
        many = [EnqueueMany(jobs=[new(number)]) for number in range(30)]
        told = await asyncio.gather(*(service(one) for one in many), return_exceptions=True)
        assert {type(one) for one in told} == {NotReplicated}
        assert 0 < waits(redis_pair.primary) - before < 10, "not one after the other"
        assert (await service(Count())).count == 30


async def test_what_follows_from_other_jobs_does_not_wait_for_replicas(redis_pair: Pair) -> None:
    """Its parent has ended, and must not be held up."""
    async with open_engine(redis_pair.url) as engine:
        await engine(Enqueue(job=NewJob(task="a")))
        worker = (await engine(Register(worker=NewWorker(name="w")))).worker
        (claimed,) = await engine(Claim(worker=worker))
        redis_pair.line.cut()
        made = Finished(
            id=claimed.job.id, token=claimed.token, outcome=Verdict.OK, jobs=[NewJob(task="b", payload=packed(1))]
        )
        assert (await engine(Finish(worker=worker, jobs=[made]))).applied == [claimed.job.id]
        assert (await engine(Count())).count == 2


async def test_while_the_store_is_down_it_is_said_how_far_a_job_got(redis_pair: Pair, tmp_path: Path) -> None:
    id = own_id()
    async with asked(redis_pair, tmp_path, "journal") as service:
        redis_pair.primary.kill()
        for _ in range(2):
            with pytest.raises(NotReplicated, match="accepted, but only into the journal so far: the store does not"):
                await service(Enqueue(job=new(1, id=id)))
        redis_pair.primary.start()
        await online(redis_pair)

        async def there() -> bool:
            try:
                return not (await service(Enqueue(job=new(1, id=id)))).created
            except NotReplicated:
                return False

        async with asyncio.timeout(PATIENCE):
            while not await there():
                await CLOCK.sleep(0.05)
        assert await in_order(service) == [1]


def test_over_http(redis_pair: Pair, tmp_path: Path) -> None:
    with process(tmp_path, "--replicas", "1", store=redis_pair.primary.url) as serving:
        headers = {"authorization": f"Bearer {serving.token}"}
        with httpx2.Client(base_url=serving.address, headers=headers, trust_env=False, timeout=PATIENCE) as client:
            jobs = "/v1/default/jobs"
            assert client.post(jobs, json={"task": "a"}).status_code == 201
            redis_pair.line.cut()
            told = client.post(jobs, json={"task": "a", "id": (id := own_id())})
            assert (told.status_code, told.json()["code"]) == (503, "not_replicated")
            assert id in told.json()["detail"]
            assert client.get(f"{jobs}/{id}").json()["state"] == "queued"


@pytest.mark.parametrize("by", ["address", "argument"])
def test_from_python_code(by: str, redis_pair: Pair) -> None:
    settings = Settings(replicated_within=WITHIN)
    app = (
        Windlass(redis_pair.url) if by == "address" else Windlass(redis_pair.primary.url, settings=settings, replicas=1)
    )
    add = app.task(name="add")(_add)
    try:
        add.enqueue(1)
        redis_pair.line.cut()
        with pytest.raises(NotReplicated, match="0 of 1 replicas said within"):
            add.enqueue(2)
        assert app.link.ask(Count()).count == 2
    finally:
        app.close()


def _add(number: int) -> int:
    raise NotImplementedError


async def test_replicas_can_be_held_to_having_it_on_disk(start_server: StartServer) -> None:
    (pair,) = [next(found := paired("valkey", start_server))]
    settings = Settings(replicas=1, replicas_synced=True, replicated_within=2.0)
    async with open_engine(pair.primary.url, settings) as engine:
        await engine(Enqueue(job=new(1)))
        pair.replica.ask("CONFIG", "SET", "appendonly", "no")
        with pytest.raises(NotReplicated, match="0 of 1 replicas said within 2 s that they have it on disk"):
            await engine(Enqueue(job=new(2)))
    found.close()  # type: ignore[attr-defined]


async def test_a_server_that_cannot_tell_what_is_on_disk_is_refused(redis_server: Server) -> None:
    with pytest.raises(Invalid, match=r"7\.2 is needed"):
        async with open_engine(f"{redis_server.url}?replicas=1&replicas_synced=yes"):
            pass


@pytest.mark.parametrize(
    ("address", "settings"),
    [
        ("redis://127.0.0.1/0?replicas=many", Settings()),
        ("redis://127.0.0.1/0?replicas=-1", Settings()),
        ("redis://127.0.0.1/0?replicas=1&replicated_within=0s", Settings()),
        ("redis+sentinel://127.0.0.1/main?replicas=many", Settings()),
        ("jobs.db", Settings(replicas=1)),
    ],
)
async def test_what_makes_no_sense_is_refused(address: str, settings: Settings) -> None:
    with pytest.raises(Invalid):
        async with open_engine(address, settings):
            pass
