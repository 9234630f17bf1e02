"""The scoreboard of the journal: servers are killed, stores go away and come back with less, and nothing is lost."""

import asyncio
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import msgspec
import psutil
import pytest
from msgspec import Raw

from tests.support.drained_journals import CLOCK, engine_at, in_order, new
from tests.support.http_servers import Process, process
from tests.support.patience import PATIENCE
from tests.support.relays import Crowd, Wire
from tests.support.scoreboard import Board, await_
from tests.support.servers import StartServer
from windlass.engine.journal import open_journaled
from windlass.model import wire
from windlass.model.errors import WindlassError
from windlass.model.job import State
from windlass.model.match import Match
from windlass.model.operations import Count, Enqueue, GetStats, List

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def tool() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.fail("strace is missing; it comes with: ./dev test, or: apt-get install strace", pytrace=False)
    return found


class Body:
    """Jobs of a board as requests."""

    def __init__(self, board: Board) -> None:
        self._plan = board.task("awork").plan

    def __call__(self, number: int) -> bytes:
        payload = Raw(self._plan.pack((number, 0.0), {}))
        return msgspec.msgpack.encode({"task": "awork", "payload": payload, "max_retry": 0})


def succeeded(board: Board) -> int:
    queues = board.app.link.ask(GetStats()).queues
    return sum(queue.states.get(State.SUCCEEDED, 0) for queue in queues)


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [(400, 4), pytest.param(1000, 60, marks=[pytest.mark.long, pytest.mark.timeout(500)])],
    ids=["short", "long"],
)
def test_r6_enqueues_go_on_while_the_store_is_down(
    rate: int, seconds: int, tmp_path: Path, start_server: StartServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_server("redis", fsync="always")
    board = Board(tmp_path, server.url, lease=30.0)
    number = rate * (seconds + 3)
    try:
        with process(tmp_path, store=server.url) as serving:
            board.start()
            board.task("work").enqueue(-1, 0.0).result(PATIENCE)
            crowd = Crowd(serving.port, serving.token, Body(board))
            sending = threading.Thread(target=crowd.run, args=(number, rate, lambda: None))
            sending.start()
            time.sleep(1)
            server.kill()
            time.sleep(seconds / 2)
            found = shown(serving, crowd)
            time.sleep(seconds / 2)
            server.start()
            began = time.monotonic()
            sending.join()
            await_("all drained", lambda: stored(board) == number + 1)
            drained = time.monotonic() - began
            await_("all run", lambda: succeeded(board) == number + 1, within=90)
            with capsys.disabled():
                sys.stdout.write(f"\n{number} jobs: drained within {drained:.1f} s\n")
            ids = crowd.accepted()
            assert len(ids) == number, "every one was accepted"
            assert found == ("queued", "accepted", 503)
            assert set(board.starts()) == set(range(-1, number))
            assert set(board.starts().values()) == {1}, "once each"
            check_order(board, crowd, ids)
    finally:
        board.close()


def stored(board: Board) -> int:
    try:
        return board.app.link.ask(Count()).count
    except WindlassError:
        return -1


def shown(serving: Process, crowd: Crowd) -> tuple[str, str, int]:
    """How a job that was accepted just now is shown, and the status of any other request."""
    id = msgspec.msgpack.decode(crowd.sent[-1].body)["id"]
    headers = {"authorization": f"Bearer {serving.token}"}
    with httpx2.Client(base_url=serving.address, headers=headers, trust_env=False, timeout=PATIENCE) as client:
        job = client.get(f"/v1/default/jobs/{id}").json()
        other = client.get("/v1/default/stats").status_code
    return job["state"], job["reason"], other


def check_order(board: Board, crowd: Crowd, ids: dict[int, str]) -> None:
    """What one connection sent, one after the other, is queued in that order."""
    numbers = {id: number for number, id in ids.items()}
    arrived: list[int] = []
    after = None
    while True:
        page = board.app.link.ask(List(match=Match(task="awork"), limit=1000, after=after))
        arrived += [numbers[job.id] for job in page.jobs]
        if (after := page.next) is None:
            break
    for line in range(16):
        own = [number for number in arrived if number % 16 == line]
        assert own == sorted(own)


def kill_when_busy(serving: Process, crowd: Crowd) -> None:
    await_("it has answered some", lambda: len(crowd.sent) > 50)
    serving.kill()


def test_s3_item_3_a_killed_server_loses_nothing_that_it_has_acknowledged(
    tmp_path: Path, start_server: StartServer
) -> None:
    """Also while the store is down: it is in the journal, and drained by the server that comes next."""
    server = start_server("redis", fsync="always")
    board = Board(tmp_path, server.url)
    accepted: dict[int, str] = {}
    try:
        serving = Process(tmp_path, store=server.url)
        for round_ in range(3):
            serving.start()
            crowd = Crowd(serving.port, serving.token, Body(board), lines=8)
            if round_:
                server.kill()
            killer = threading.Timer(0.8, kill_when_busy, [serving, crowd])
            killer.start()
            with pytest.raises((asyncio.IncompleteReadError, OSError)):
                crowd.run(5000, 1000, lambda: None)
            killer.join()
            accepted |= {round_ * 10_000 + number: id for number, id in crowd.accepted().items()}
            if round_:
                server.start()
        serving.start()
        try:
            await_("all are there", lambda: stored(board) >= len(accepted))
            after, there = None, set[str]()
            while True:
                page = board.app.link.ask(List(limit=1000, after=after))
                there |= {job.id for job in page.jobs}
                if (after := page.next) is None:
                    break
            assert set(accepted.values()) <= there, "lost"
            assert len(there) <= len(accepted) + 3 * 8, "no more than were on their way"
        finally:
            serving.kill()
    finally:
        board.close()


@pytest.mark.parametrize("journal", [False, True], ids=["control", "journal"])
async def test_r8_a_failover_that_loses_the_newest_jobs_is_made_good(
    journal: bool, tmp_path: Path, start_server: StartServer
) -> None:
    primary, replica = start_server("redis", fsync="always"), start_server("redis", fsync="always")
    with Wire(primary.port) as link, Wire(primary.port) as front:
        replica.ask("REPLICAOF", "127.0.0.1", str(link.port))
        async with asyncio.timeout(PATIENCE):
            while "master_link_status:up" not in replica.ask("INFO", "replication"):
                await CLOCK.sleep(0.05)
        url = f"redis://127.0.0.1:{front.port}/0"
        async with engine_at(url) as engine, open_journaled(engine, tmp_path, CLOCK) as journaled:
            service = journaled if journal else engine
            accepted = [number for number in range(200) if await service(Enqueue(job=new(number)))]
            async with asyncio.timeout(PATIENCE):
                while int(_offset(replica)) < int(_offset(primary)):
                    await CLOCK.sleep(0.02)
            link.cut()
            accepted += [number for number in range(200, 700) if await service(Enqueue(job=new(number)))]
            primary.kill()
            replica.ask("REPLICAOF", "NO", "ONE")
            front.lead(replica.port)
            if journal:
                async with asyncio.timeout(PATIENCE):
                    while await _count(engine) < len(accepted):
                        await CLOCK.sleep(0.05)
            else:
                async with asyncio.timeout(PATIENCE):
                    while await _count(engine) < 0:
                        await CLOCK.sleep(0.05)
            found = await in_order(engine)
    if journal:
        assert found == accepted, "all of them, once, in order"
    else:
        assert 0 < len(found) < len(accepted), "without the journal jobs are lost, or this test is blind"


def _offset(server: object) -> str:
    said = server.ask("INFO", "replication")  # type: ignore[attr-defined]
    found = re.search(r"master_repl_offset:(\d+)", said)
    assert found
    return found[1]


async def _count(engine: object) -> int:
    try:
        return int((await engine(Count())).count)  # type: ignore[operator]
    except WindlassError:
        return -1


@pytest.fixture
def traced(tmp_path: Path, start_server: StartServer, tool: str) -> Iterator[tuple[Process, Path]]:
    server = start_server("redis")
    with process(tmp_path, store=server.url) as serving:
        log = tmp_path / "trace"
        assert serving.child is not None
        calls = "trace=write,writev,sendto,sendmsg,pwrite64,fdatasync,fsync"
        command = [tool, "-f", "-y", "-s", "24", "-e", calls, "-o", str(log), "-p", str(serving.child.pid)]
        with (tmp_path / "strace").open("wb") as said:
            tracer = subprocess.Popen(command, stderr=said)
        await_("it is traced", lambda: "attached" in (tmp_path / "strace").read_text())
        try:
            yield serving, log
        finally:
            tracer.terminate()
            tracer.wait()


@pytest.mark.parametrize("number", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_r12_the_system_sees_write_then_sync_then_reply(number: int, traced: tuple[Process, Path]) -> None:
    serving, log = traced
    crowd = Crowd(serving.port, serving.token, lambda n: wire.encode({"task": "a", "payload": n}), lines=1)
    crowd.run(number, 10_000, lambda: None)
    assert len(crowd.accepted()) == number

    def replies() -> int:
        return log.read_text(errors="replace").count("HTTP/1.1 201")

    await_("the trace is written", lambda: replies() == number)
    order = [step for line in log.read_text(errors="replace").splitlines() if (step := _step(line))]
    replied = 0
    for before, step in zip(["", "", *order], ["", *order], strict=False):
        if step == "reply":
            replied += 1
            assert before == "sync", f"reply {replied} came after {before}"
    assert replied == number
    assert order.count("sync") >= number


def _step(line: str) -> str | None:
    """What a line of the trace is about; a call that another thread interrupts counts when it ends."""
    if "HTTP/1.1 201" in line:
        return "reply"
    if re.search(r"fdatasync\(\d+<[^>]*\.db-wal>\)\s+= 0", line) or re.search(r"fdatasync resumed>\)\s+= 0", line):
        return "sync"
    if re.search(r"pwrite64\(\d+<[^>]*\.db-wal>", line):
        return "write"
    return None


def test_r11_a_full_disk_is_reported_over_http_and_over_when_there_is_room(
    tmp_path: Path, start_server: StartServer
) -> None:
    """Full for this process: its files may not grow, which cuts writes short like a disk that runs full."""
    server = start_server("redis")
    sample = wire.encode({"task": "a", "headers": {"x": "y" * 8000}})
    with process(tmp_path, store=server.url) as serving:
        crowd = Crowd(serving.port, serving.token, lambda _: sample, lines=4)
        server.stop()  # else what is drained makes room
        crowd.run(20, 1000, lambda: None)
        assert serving.child is not None
        limits = psutil.Process(serving.child.pid)
        before = limits.rlimit(psutil.RLIMIT_FSIZE)
        (log,) = (tmp_path / "data" / "journal" / "0").glob("journal-*.db-wal")
        limits.rlimit(psutil.RLIMIT_FSIZE, (log.stat().st_size + 20_000, before[1]))
        crowd.run(100, 1000, lambda: None)
        refused = [one for one in crowd.sent if one.status != 201]
        assert len(refused) >= 30, "the log is begun again once, then it is full too"
        assert {one.status for one in refused} == {507}
        assert {msgspec.msgpack.decode(one.body)["code"] for one in refused} == {"journal_full"}
        limits.rlimit(psutil.RLIMIT_FSIZE, before)
        known = len(crowd.sent)
        crowd.run(20, 1000, lambda: None)
        assert {one.status for one in crowd.sent[known:]} == {201}, "it goes on, without a restart"
        server.start()
        accepted = sum(one.status == 201 for one in crowd.sent)
        board = Board(tmp_path, server.url)
        try:
            await_("all that were acknowledged are there", lambda: stored(board) == accepted)
        finally:
            board.close()
