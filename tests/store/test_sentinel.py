"""Servers of which sentinels know the master: it is found, left when it is none any more, and always looked for."""

import asyncio
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Self

import pytest

from tests.journal.test_scoreboard import Body
from tests.support.http_servers import process
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.relays import Crowd
from tests.support.scoreboard import Board, await_
from tests.support.sentinels import NAME, Group, Sentinel, address, replicate, watched_group
from tests.support.servers import Server, StartServer
from tests.support.stores import SeededChance
from tests.support.worker_harness import until
from windlass import Windlass
from windlass.engine import Engine
from windlass.model.errors import Invalid, Unavailable
from windlass.model.job import State
from windlass.model.names import without_password
from windlass.model.new_job import NewJob
from windlass.model.operations import Claim, Count, Enqueue, Finish, Finished, List, Register, Show
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker
from windlass.store.redis import RedisStore
from windlass.store.redis.urls import read_url

pytestmark = pytest.mark.timeout(180)

RATE = 100
"""Jobs a second that each server is sent."""


# Addresses


def test_an_address_names_sentinels_the_master_and_how_to_be_let_in() -> None:
    target = read_url("redis+sentinel://ann:p%40ss@one:1,two,[::1]:3/shop%2Da/2?sentinel_password=s%26t")
    assert target.address.greetings() == [("AUTH", "ann", "p@ss"), ("SELECT", 2), ("ROLE",)]
    assert target.group is not None
    assert target.group.name == "shop-a"
    assert [(one.host, one.port) for one in target.group.sentinels] == [("one", 1), ("two", 26379), ("::1", 3)]
    assert [one.greetings() for one in target.group.sentinels] == [[("AUTH", "s&t")]] * 3


def test_with_tls_both_sentinels_and_servers_are_asked_over_it() -> None:
    target = read_url("rediss+sentinel://one/main")
    assert target.group is not None
    assert target.address.tls is target.group.sentinels[0].tls is not None


@pytest.mark.parametrize(
    "rest", ["one:26379", "one/", "/main", "one,,two/main", "one:port/main", "one/main/db", "one/main?timeout=3"]
)
async def test_half_an_address_is_refused(rest: str) -> None:
    with pytest.raises(Invalid) as fault:
        await RedisStore.open(f"redis+sentinel://{rest}")
    assert fault.value.at == "store"


def test_no_password_is_shown() -> None:
    shown = without_password("redis+sentinel://ann:secret@one:1,two/main/2?sentinel_password=secret")
    assert shown == "redis+sentinel://ann:…@one:1,two/main/2?sentinel_password=…"


# One sentinel that says what the test wants


def _offset(server: Server, name: str) -> int:
    lines = server.ask("INFO", "replication").splitlines()
    return next(int(line.partition(":")[2]) for line in lines if line.startswith(f"{name}:"))


class Pair:
    """A master, its replica, and a sentinel that only tells."""

    def __init__(self, master: Server, replica: Server, sentinel: Sentinel) -> None:
        self.master = master
        self.replica = replica
        self.sentinel = sentinel
        self.url = address([sentinel])

    def swap(self) -> None:
        """By hand, so that connections to the old master stay open: sentinels would close them.

        Only once the replica has everything: what a switch loses is another test's business.
        """
        until(lambda: _offset(self.replica, "slave_repl_offset") >= _offset(self.master, "master_repl_offset"))
        self.replica.ask("REPLICAOF", "NO", "ONE")
        self.master.ask("REPLICAOF", "127.0.0.1", str(self.replica.port))
        self.master, self.replica = self.replica, self.master
        self.sentinel.watch(self.master.port)


@pytest.fixture
def pair(start_server: StartServer, tmp_path: Path) -> Iterator[Pair]:
    master, replica = start_server("redis"), start_server("redis")
    replicate(master, replica)
    with Sentinel(tmp_path) as sentinel:
        sentinel.watch(master.port)
        yield Pair(master, replica, sentinel)


@asynccontextmanager
async def engine_at(url: str) -> AsyncIterator[Engine]:
    store = await RedisStore.open(url, chance=SeededChance())
    try:
        yield Engine(store, SeededChance())
    finally:
        await store.close()


async def patiently(engine: Engine, key: str) -> float:
    """Enqueue until it is taken; how long that took."""
    began = time.monotonic()
    while True:
        try:
            await engine(Enqueue(job=NewJob(task="a", key=key)))
        except Unavailable:
            assert time.monotonic() - began < PATIENCE
        else:
            return time.monotonic() - began


async def test_jobs_are_queued_claimed_finished_and_heard_of(pair: Pair) -> None:
    async with engine_at(pair.url) as engine:
        worker = (await engine(Register(worker=NewWorker(name="w")))).worker
        waiting = asyncio.ensure_future(engine(Claim(worker=worker, wait=10)))
        async with engine.context.store.events.listen(["work/default"]) as bell:
            job = await engine(Enqueue(job=NewJob(task="a")))
            assert await bell.wait(PATIENCE)
        (claimed,) = await waiting
        shown = asyncio.ensure_future(engine(Show(id=job.id, wait=10)))
        await engine(Finish(worker=worker, jobs=[Finished(id=job.id, token=claimed.token, outcome=Verdict.OK)]))
        assert (await shown).state is State.SUCCEEDED
    assert "keys=" in pair.master.ask("INFO", "keyspace")


def test_callers_without_an_event_loop_find_the_master_too(pair: Pair) -> None:
    with_app = Windlass(pair.url)

    @with_app.task
    def work(number: int) -> int:
        return number

    work.enqueue(1)
    pair.swap()
    for number in range(2, 5):
        patient(lambda number=number: work.enqueue(number))  # type: ignore[misc]
    found = with_app.link.ask(Count()).count
    with_app.close()
    assert found == 4


def patient(enqueue: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            enqueue()
        except Unavailable:
            assert time.monotonic() < until
        else:
            return


async def test_a_master_that_became_a_replica_is_left_with_all_connections(pair: Pair) -> None:
    async with engine_at(pair.url) as engine:
        worker = (await engine(Register(worker=NewWorker(name="w")))).worker
        async with engine.context.store.events.listen(["work/default"]) as bell:
            old = pair.master
            pair.swap()
            with pytest.raises(Unavailable, match="READONLY"):
                await engine(Enqueue(job=NewJob(task="a", key="1")))
            await patiently(engine, "1")
            assert await bell.wait(PATIENCE), "whoever listened there is woken"
            async with asyncio.timeout(PATIENCE):
                waiting = asyncio.ensure_future(engine(Claim(worker=worker, slots=1, wait=9)))
                assert len(await waiting) == 1
            assert listeners(old) == 0
            assert listeners(pair.master) == 1


@pytest.mark.parametrize("kind", ["asynchronous", "blocking"])
async def test_a_master_that_does_not_know_that_it_is_none_is_left_soon(pair: Pair, kind: str) -> None:
    store = await RedisStore.open(pair.url, blocking=kind == "blocking")
    engine = Engine(store, SeededChance())
    await engine(Enqueue(job=NewJob(task="a")))
    pair.replica.ask("REPLICAOF", "NO", "ONE")
    pair.sentinel.watch(pair.replica.port)
    async with asyncio.timeout(PATIENCE):
        while pair.replica.ask("EXISTS", "wl:probe") == "0":
            with suppress(Unavailable):
                await store.partitions.connection.ask("wl:probe", "SET", "wl:probe", "1")
            await asyncio.sleep(0.1)
    await store.close()


async def test_a_master_is_kept_while_no_sentinel_answers(pair: Pair) -> None:
    async with engine_at(pair.url) as engine:
        await engine(Enqueue(job=NewJob(task="a")))
        pair.sentinel.kill()
        for _ in range(15):
            await engine(Enqueue(job=NewJob(task="a")))
            await asyncio.sleep(0.1)


def listeners(server: Server) -> int:
    return int(server.ask("PUBSUB", "CHANNELS", "wl*"))


async def test_a_master_without_its_replicas_is_asked_for_again_until_it_has_them(pair: Pair) -> None:
    async with engine_at(pair.url) as engine:
        await engine(Enqueue(job=NewJob(task="a", key="1")))
        pair.master.ask("CONFIG", "SET", "min-replicas-to-write", "2")
        asked = int(connections(pair.sentinel))
        for _ in range(3):
            with pytest.raises(Unavailable, match="NOREPLICAS"):
                await engine(Enqueue(job=NewJob(task="a", key="2")))
        assert int(connections(pair.sentinel)) >= asked + 2, "it looks for another"
        pair.master.ask("CONFIG", "SET", "min-replicas-to-write", "0")
        await patiently(engine, "2")
        assert (await engine(Count())).count == 2


def connections(server: Server) -> str:
    (found,) = [line for line in server.ask("INFO", "stats").splitlines() if line.startswith("total_connections")]
    return found.partition(":")[2]


async def test_a_replica_is_not_taken_for_the_master(pair: Pair) -> None:
    pair.sentinel.watch(pair.replica.port)
    with pytest.raises(Unavailable, match="a slave, not the master"):
        await RedisStore.open(pair.url)


async def test_sentinels_that_are_gone_deaf_or_know_nothing_are_passed_over(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as deaf, Sentinel(tmp_path / "other") as ignorant:
        ports = [free_port(), deaf.getsockname()[1], ignorant.port, pair.sentinel.port]
        async with engine_at(f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/{NAME}") as engine:
            await engine(Enqueue(job=NewJob(task="a")))


async def test_sentinels_that_know_no_master_say_so(pair: Pair) -> None:
    with pytest.raises(Unavailable, match="no sentinel names the master 'other'"):
        await RedisStore.open(pair.url.replace(NAME, "other"))


async def test_passwords_of_sentinels_and_of_the_master_are_given_to_each(pair: Pair) -> None:
    pair.master.ask("CONFIG", "SET", "requirepass", "m")
    pair.sentinel.ask("ACL", "SETUSER", "default", "resetpass", ">s")
    url = pair.url.replace("://", "://:m@")
    async with engine_at(f"{url}/3?sentinel_password=s") as engine:
        await engine(Enqueue(job=NewJob(task="a")))
    for wrong in (f"{pair.url}?sentinel_password=s", f"{url}?sentinel_password=m", url):
        with pytest.raises(Unavailable, match=r"NOAUTH|WRONGPASS"):
            await RedisStore.open(wrong)


# A group that chooses its master itself


@pytest.fixture
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with watched_group(tmp_path_factory.mktemp("group")) as found:
        yield found


class Producer:
    """Enqueues all the time; notes when it was taken at its word."""

    def __init__(self, board: Board) -> None:
        self._task = board.task("work")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.accepted: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        for number in count():
            if self._over.wait(0.01):
                return
            try:
                self._task.enqueue(number, 0.0)
            except Unavailable:
                continue
            self.accepted.append(time.time())

    def accepted_since(self, moment: float) -> bool:
        return any(at > moment for at in self.accepted)


@pytest.mark.parametrize("fate", ["replaced", "killed", "cut off"])
def test_r8_all_clients_go_on_after_a_switch(
    fate: str, group: Group, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = Board(tmp_path, group.url, lease=5.0)
    try:
        workers = [board.start(), board.start()]
        with Producer(board) as producer:
            await_("both work", lambda: len({entry.pid for entry in board.diary()}) == 2)
            working = {entry.pid for entry in board.diary()}
            began = time.monotonic()
            {"replaced": group.force_failover, "killed": group.kill, "cut off": group.cut_off}[fate]()
            group.await_switch()
            waited = await_("all have left", group.is_left)
            left = time.time()
            waited += await_("all go on", lambda: are_back(board, producer, working, left))
            away = time.monotonic() - began
            with capsys.disabled():
                sys.stdout.write(f"\n{fate}: all back {waited:.1f} s after the switch, {away:.1f} s in all\n")
        assert all(worker.poll() is None for worker in workers), "none was restarted by hand"
    finally:
        board.close()


def are_back(board: Board, producer: Producer, working: set[int], since: float) -> bool:
    """Whether a new job was taken in since a moment, and each of these processes has run one."""
    ran = {entry.pid for entry in board.diary() if entry.what == "end" and entry.at > since}
    return producer.accepted_since(since) and ran >= working


@pytest.mark.parametrize("away", [2.0, pytest.param(5.0, marks=pytest.mark.long)], ids=["short", "long"])
def test_r8_what_a_switch_loses_is_made_good_by_the_journal(
    away: float, group: Group, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The replica hears nothing for a while before the master is killed; a server without a journal is the control."""
    board = Board(tmp_path, group.url)
    with_journal, without = tmp_path / "with", tmp_path / "without"
    with_journal.mkdir()
    without.mkdir()
    try:
        with (
            process(with_journal, store=group.url) as journaled,
            process(without, "--no-journal", store=group.url) as control,
        ):
            kept, lost = (Crowd(serving.port, serving.token, Body(board), lines=4) for serving in (journaled, control))

            def fail() -> None:
                time.sleep(1)
                group.wire.cut(b"PSYNC")
                time.sleep(away)
                group.kill()

            number = int(RATE * (away + 5))
            other = threading.Thread(target=lost.run, args=(number, RATE, lambda: None))
            other.start()
            kept.run(number, RATE, fail)
            other.join()
            group.await_switch()
            assert len(kept.accepted()) == number, "the journal takes in all the time"
            expected = set(kept.accepted().values())
            waited = await_("all are there", lambda: expected <= ids(board))
            missing = set(lost.accepted().values()) - ids(board)
            with capsys.disabled():
                share = f"{len(missing)} of {len(lost.accepted())}"
                sys.stdout.write(f"\nlost 0 of {number}, drained after {waited:.1f} s; without the journal {share}\n")
            assert "has gone back" in (with_journal / "log").read_text(), "the journal had something to make good"
            assert missing, "without the journal jobs are lost, or this test is blind"
            assert lost.sent[-1].status == 201, "that server goes on, too"
    finally:
        board.close()


def ids(board: Board) -> set[str]:
    found, after = set[str](), None
    while True:
        page = board.app.link.ask(List(limit=1000, after=after))
        found |= {job.id for job in page.jobs}
        if (after := page.next) is None:
            return found
