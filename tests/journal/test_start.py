"""A process with a journal accepts jobs before its store is there."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from msgspec import Raw

from tests.support.drained_journals import CLOCK, in_order, journaled_at, new, until, up
from tests.support.faulty_disk import copied, draft, opened
from tests.support.http_servers import Process
from tests.support.patience import PATIENCE
from tests.support.scoreboard import Board, await_
from tests.support.servers import Server, StartServer
from windlass import Windlass
from windlass.engine import Engine
from windlass.engine.journal import Journaled, open_journaled
from windlass.model.errors import Invalid, Unavailable, WindlassError
from windlass.model.job import Reason
from windlass.model.operations import Count, Enqueue, GetStats, Show
from windlass.store.redis import RedisStore
from windlass.system import SystemRandomness

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def away(start_server: StartServer) -> Server:
    """A server that is not there yet."""
    server = start_server("redis", fsync="always")
    server.kill()
    return server


@contextmanager
def without_store(folder: Path, server: Server, *flags: str, **settings: str) -> Iterator[Process]:
    found = Process(folder, *flags, store=server.url, **settings)
    found.start("/healthz")
    try:
        yield found
    finally:
        found.kill()


@contextmanager
def asking(serving: Process) -> Iterator[httpx2.Client]:
    headers = {"authorization": f"Bearer {serving.token}"}
    with httpx2.Client(base_url=serving.address, headers=headers, trust_env=False, timeout=PATIENCE) as client:
        yield client


def status(client: httpx2.Client, path: str) -> int:
    return client.get(path).status_code


def test_a_server_starts_without_its_store_and_works_when_it_comes(tmp_path: Path, away: Server) -> None:
    board = Board(tmp_path, away.url)
    pack = board.task("work").plan.pack
    path = {"PYTHONPATH": str(tmp_path), "WINDLASS_STORE": away.url}
    try:
        with without_store(tmp_path, away, "--app", "board_app:app", **path) as serving, asking(serving) as client:
            bodies = [{"task": "work", "payload": Raw(pack((number, 0.0), {}))} for number in range(20)]
            jobs = [accepted(client, body) for body in bodies]
            assert {job["reason"] for job in jobs} == {"accepted"}
            shown = client.get(f"/v1/default/jobs/{jobs[0]['id']}").json()
            assert (shown["state"], shown["reason"]) == ("queued", "accepted")
            for path_ in ("/readyz", "/v1/default/stats", "/v1/default/jobs", "/metrics"):
                answer = client.get(path_)
                assert (answer.status_code, path_) == (503, path_)
                assert "Connect" in answer.text or "refused" in answer.text, "it says why"
            assert status(client, "/healthz") == 200
            assert not board.starts()
            away.start()
            await_("it is ready", lambda: status(client, "/readyz") == 200)
            await_("all have run", lambda: set(board.ends()) == set(range(20)))
            assert set(board.starts().values()) == {1}
            log = (tmp_path / "log").read_text()
            assert "Traceback" not in log
            assert len(log.splitlines()) < 30, "it does not repeat itself"
    finally:
        board.close()


def accepted(client: httpx2.Client, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"content-type": "application/msgpack"}
    answer = client.post("/v1/default/jobs", content=msgspec.msgpack.encode(body), headers=headers)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = msgspec.msgpack.decode(answer.content)
    return found


def test_a_server_that_waits_for_its_store_ends_at_a_signal(tmp_path: Path, away: Server) -> None:
    board = Board(tmp_path, away.url)
    path = {"PYTHONPATH": str(tmp_path), "WINDLASS_STORE": away.url}
    try:
        with without_store(tmp_path, away, "--app", "board_app:app", **path) as serving:
            assert serving.child is not None
            serving.child.terminate()
            assert serving.child.wait(PATIENCE) == 0, (tmp_path / "log").read_text()
    finally:
        board.close()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("redis://:wrong@127.0.0.1:{port}/0", "does not let us in"),
        ("redis://127.0.0.1:{port}/99", "does not let us in"),
        ("redis://127.0.0.1:port/0", "not the address of a server"),
        ("redis+sentinel://127.0.0.1:{port}", "name the master"),
        ("rediz://127.0.0.1", "is no store"),
    ],
    ids=["password", "database", "port", "sentinel", "scheme"],
)
def test_an_address_that_can_never_work_is_refused_at_once(
    address: str, why: str, tmp_path: Path, redis_server: Server
) -> None:
    url = address.format(port=redis_server.port)
    command = [sys.executable, "-m", "windlass", "serve", "--store", url, "--data", str(tmp_path), "--port", "0"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=os.environ, check=False)
    assert run.returncode != 0
    assert why in run.stderr
    assert "Traceback" not in run.stderr
    app = Windlass(url, journal=str(tmp_path / "own")) if "rediz" not in url else None
    if app is not None:
        with pytest.raises((Unavailable, Invalid), match=why):
            app.task(name="add")(_add).enqueue(1)
        app.close()


def _add(number: int) -> int:
    raise NotImplementedError


def test_python_code_starts_without_its_store(tmp_path: Path, away: Server) -> None:
    app = Windlass(away.url, journal=str(tmp_path))
    add = app.task(name="add")(_add)
    try:
        jobs = [add.enqueue(number) for number in range(20)]
        assert jobs[-1].refresh().reason is Reason.ACCEPTED
        with pytest.raises(Unavailable, match="accepted meanwhile"):
            jobs[-1].cancel()
        away.start()
        await_("all are there", lambda: counted(app) == 20)
        assert jobs[-1].refresh().reason is None
    finally:
        app.close()


def counted(app: Windlass) -> int:
    try:
        return app.link.ask(Count()).count
    except WindlassError:
        return -1


async def patient(url: str) -> Engine:
    return Engine(await RedisStore.open(url, patient=True), SystemRandomness())


async def test_what_is_in_the_journal_from_before_is_not_said_to_be_waiting(tmp_path: Path, away: Server) -> None:
    """The store may have run it long ago: only it knows."""
    journal = opened(tmp_path / "0")
    await journal.confirm(0)
    await journal.accept([draft(0)])
    await journal.close()
    engine = await patient(away.url)
    async with open_journaled(engine, tmp_path, CLOCK) as service:
        with pytest.raises(Unavailable):
            await service(Show(id=draft(0).id))
        later = await service(Enqueue(job=new(1)))
        assert (await service(Show(id=later.id))).reason is Reason.ACCEPTED
        away.start()
        await up(service)
        assert await in_order(service) == [0, 1]
    await engine.context.store.close()


async def test_jobs_accepted_under_numbers_that_the_store_knows_already_are_not_lost(
    tmp_path: Path, start_server: StartServer
) -> None:
    """A disk that has lost its newest jobs, and a store that is not there to tell."""
    server = start_server("redis", fsync="always")
    async with journaled_at(server.url, tmp_path / "journal") as service:
        for number in range(5):
            await service(Enqueue(job=new(number)))
            if number == 1:
                old = copied(tmp_path / "journal" / "0", tmp_path / "old")
        await up(service)
    shutil.rmtree(tmp_path / "journal")
    (tmp_path / "journal").mkdir()
    old.rename(tmp_path / "journal" / "0")
    server.kill()
    engine = await patient(server.url)
    async with open_journaled(engine, tmp_path / "journal", CLOCK) as service:
        kept = service._journal.last
        assert 0 < kept < 5
        for number in range(5, 8):
            await service(Enqueue(job=new(number)))
        server.start()
        await met(service)
        await service(Enqueue(job=new(8)))
        await up(service)
        assert service._journal.last > 8
        assert await in_order(service) == list(range(9))
    await engine.context.store.close()


async def test_numbers_that_the_store_knows_are_not_given_again_however_often_it_starts_without_the_store(
    tmp_path: Path, start_server: StartServer
) -> None:
    """What was accepted under such numbers is not taken for drained by the next process."""
    server = start_server("redis", fsync="always")
    async with journaled_at(server.url, tmp_path / "journal") as service:
        for number in range(6):
            await service(Enqueue(job=new(number)))
            if number == 1:
                old = copied(tmp_path / "journal" / "0", tmp_path / "old")
        await up(service)
    shutil.rmtree(tmp_path / "journal")
    (tmp_path / "journal").mkdir()
    old.rename(tmp_path / "journal" / "0")
    server.kill()
    for number in (6, 7):
        engine = await patient(server.url)
        async with open_journaled(engine, tmp_path / "journal", CLOCK) as service:
            accepted = await service(Enqueue(job=new(number)))
            assert (await service(Show(id=accepted.id))).reason is Reason.ACCEPTED
        await engine.context.store.close()
    server.start()
    async with journaled_at(server.url, tmp_path / "journal") as service:
        await service(Enqueue(job=new(8)))
        await up(service)
        assert await in_order(service) == list(range(9))


async def met(service: Journaled) -> None:
    async def answers() -> bool:
        try:
            await service(GetStats())
        except Unavailable:
            return False
        return True

    await until(answers)
