"""Many at once, and much at once: against a server in a process of its own, over a file."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import httpx2
import msgspec
import pytest

from tests.support.engines import packed
from tests.support.http_servers import Process, Web, decoded, process, web
from tests.support.patience import PATIENCE
from tests.support.push_servers import until
from tests.support.scoreboard import Board, killing
from windlass.engine import Engine
from windlass.model.job import JSON, State
from windlass.model.match import Match
from windlass.model.new_job import NewJob
from windlass.model.operations import Count, Enqueue, EnqueueMany, List

MIB = 1 << 20
NDJSON = "application/x-ndjson"


class Wire:
    """One kept connection, as thin as can be: the server is measured, not the client."""

    def __init__(self, running: Process) -> None:
        self._running = running

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._running.port)
        self._about = f"host: localhost\r\nauthorization: Bearer {self._running.token}\r\ncontent-type: {JSON}\r\n"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def enqueue(self, body: bytes) -> tuple[int, bytes]:
        return await self.ask("POST", "/jobs", body)

    async def ask(self, verb: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        line = f"{verb} /v1/default{path} HTTP/1.1\r\n{self._about}content-length: {len(body)}\r\n\r\n"
        self._writer.write(line.encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        return int(head[9:12]), await self._reader.readexactly(length)


async def listed(running: Process) -> list[str]:
    """The ids of all jobs that there are."""
    async with web(running.address, running.token) as client:
        response = await client.get("/v1/default/jobs", headers={"accept": NDJSON})
    return [msgspec.json.decode(line)["id"] for line in response.content.splitlines()]


async def test_of_ten_thousand_enqueues_at_once_none_is_lost(tmp_path: Path) -> None:
    """S4 33: two hundred connections, fifty jobs on each."""
    acknowledged: list[str] = []

    async def send(place: int) -> None:
        async with Wire(running) as wire:
            for n in range(50):
                status, body = await wire.enqueue(b'{"task": "a", "payload": [%d, %d]}' % (place, n))
                assert status == 201, body
                acknowledged.append(msgspec.json.decode(body)["id"])

    with process(tmp_path) as running:
        await asyncio.gather(*(send(place) for place in range(200)))
        assert len(set(acknowledged)) == 10_000
        assert sorted(await listed(running)) == sorted(acknowledged)


async def test_what_was_acknowledged_outlives_a_kill(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    enough = asyncio.Event()

    async def send() -> None:
        async with Wire(running) as wire:
            while True:
                try:
                    status, body = await wire.enqueue(b'{"task": "a"}')
                except (asyncio.IncompleteReadError, ConnectionError):
                    return
                assert status == 201, body
                acknowledged.append(msgspec.json.decode(body)["id"])
                if len(acknowledged) >= wanted:
                    enough.set()

    with process(tmp_path) as running:
        for more in (1000, 200):
            enough.clear()
            wanted = len(acknowledged) + more
            senders = asyncio.gather(*(send() for _ in range(50)))
            await asyncio.wait_for(enough.wait(), PATIENCE)
            running.kill()
            await senders
            running.start()
        there = await listed(running)
        assert len(there) == len(set(there))
        assert set(acknowledged) <= set(there)


class Pace:
    """So many requests a second for so long, each due at its moment, however long those before it take."""

    def __init__(self, rate: int, seconds: float) -> None:
        self.number = int(rate * seconds)
        self._rate = rate
        self._began = time.monotonic()
        self._next = 0
        self.delays: list[float] = []
        """Seconds from when each was sent to its answer."""

    async def due(self) -> int | None:
        """The number of the next request, at its moment; null = there are no more."""
        number, self._next = self._next, self._next + 1
        if number >= self.number:
            return None
        await asyncio.sleep(self._began + number / self._rate - time.monotonic())
        return number

    def __str__(self) -> str:
        passed = time.monotonic() - self._began
        slowest = sorted(1000 * delay for delay in self.delays)
        p50, p99 = (slowest[int(share * len(slowest))] for share in (0.5, 0.99))
        return f"{self.number / passed:.0f} requests/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms, most {slowest[-1]:.0f} ms"


async def load_while_workers_die(folder: Path, patch: pytest.MonkeyPatch, rate: int, seconds: float) -> None:
    """R6-style: every request is answered; what is acknowledged runs, and ends once, whatever dies on the way."""
    acknowledged: list[str] = []

    async def send(pace: Pace) -> None:
        async with Wire(running) as wire:
            while (number := await pace.due()) is not None:
                began = time.monotonic()
                if number % 2 == 0 or not acknowledged:
                    status, body = await wire.enqueue(b'{"task": "work", "payload": [%d, 0.001]}' % number)
                    assert status == 201, body
                    acknowledged.append(msgspec.json.decode(body)["id"])
                else:
                    status, body = await wire.ask("GET", f"/jobs/{acknowledged[-1]}")
                    assert status == 200, body
                pace.delays.append(time.monotonic() - began)

    with process(folder, "--no-worker", WINDLASS_ENGINE_LEASE="2s") as running:
        patch.setenv("WINDLASS_TOKEN", running.token)
        (folder / "board").mkdir()
        board = Board(folder / "board", running.address, lease=2.0)
        try:
            for _ in range(2):
                board.start()
            first = board.task("work").enqueue(-1, 0.0)
            assert await asyncio.to_thread(first.result, 60) == 1
            with killing(board, every=1.0, seed=3) as killed:
                pace = Pace(rate, seconds)
                await asyncio.gather(*(send(pace) for _ in range(50)))
                said = str(pace)
            number = len(acknowledged) + 1
            assert len(pace.delays) == pace.number
            async with web(running.address, running.token) as client:

                async def counted(query: str = "") -> int:
                    return int(decoded(await client.get(f"/v1/default/jobs/count{query}"))["count"])

                async def all_ended() -> bool:
                    return await counted("?state=pending") == 0

                await until(all_ended, within=90 + 4 * seconds)
                assert await counted() == await counted("?state=succeeded") == number
            assert len(board.ends()) == number, "lost"
            assert killed
            assert sum(board.starts().values()) - number <= 8 * len(killed), "only what ran at a kill runs again"
        finally:
            await asyncio.to_thread(board.close)
    print(f"{len(killed)} workers killed, {said}")  # noqa: T201


@pytest.mark.timeout(240)
async def test_a_server_answers_a_thousand_requests_a_second_while_workers_that_know_only_it_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await load_while_workers_die(tmp_path, monkeypatch, 1000, 3.0)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_server_answers_a_thousand_requests_a_second_for_long_while_workers_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await load_while_workers_die(tmp_path, monkeypatch, 1000, 30.0)


async def lines(client: httpx2.AsyncClient, path: str) -> AsyncIterator[bytes]:
    async with client.stream("GET", path, headers={"accept": NDJSON}) as response:
        assert response.status_code == 200
        async for piece in response.aiter_bytes():
            yield piece


async def test_a_listing_of_a_hundred_thousand_jobs_begins_at_once_and_takes_no_room(tmp_path: Path) -> None:
    """S4 20 and 23."""
    with process(tmp_path) as running:
        async with web(running.address, running.token) as client:
            for _ in range(5):
                body = b'{"task": "a", "payload": "%s"}\n' % (b"x" * 50) * 20_000
                response = await client.post("/v1/default/jobs/batch", content=body, headers={"content-type": NDJSON})
                assert decoded(response)["created"] == 20_000
            running.kill()
            running.start()  # so that no room is left over from what was sent
            async for _ in lines(client, "/v1/default/jobs?task=none"):
                pass
            before, most, ends = running.memory(), 0, 0
            async for piece in lines(client, "/v1/default/jobs"):
                ends += piece.count(b"\n")
                most = max(most, running.memory())
            assert decoded(await client.get("/v1/default/jobs/count"))["count"] == ends == 100_000
            print(f"{(most - before) / MIB:+.1f} MiB")  # noqa: T201
            assert most - before < 30 * MIB
            pieces = ends = 0
            async for piece in lines(client, "/v1/default/jobs"):
                if not pieces:
                    response = await client.post("/v1/default/jobs", json={"task": "late"})
                    assert response.status_code == 201
                pieces += 1
                ends += piece.count(b"\n")
            assert ends == 100_001, "it begins before it has read all: a job that came after its first piece is in it"


# Actions on many


@pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)
async def test_actions_on_all_that_match(engine: Engine, page: Web) -> None:
    """S4 17, 21 and 22: exactly those, and a dry run changes nothing."""
    news = [NewJob(task="odd" if n % 2 else "even", payload=packed({"n": n})) for n in range(2500)]
    for start in range(0, 2500, 500):
        await engine(EnqueueMany(jobs=news[start : start + 500]))
    await engine(Enqueue(tenant="other", job=NewJob(task="odd")))

    async def act(verb: str, path: str, **more: str) -> int:
        sent: dict[str, Any] = {"body": more} if verb == "POST" else {"params": more}
        response = await page.send(verb, path, **sent)
        assert response.status_code == 200, response.text
        return int(decoded(response)["changed"])

    assert decoded(await page.send("POST", "/jobs/cancel", {"task": "odd", "dry_run": True})) == {"changed": 1250}
    assert (await engine(Count(match=Match(state=["queued"])))).count == 2500
    assert await act("POST", "/jobs/cancel", task="odd") == 1250
    assert await act("POST", "/jobs/cancel", task="odd") == 0
    assert (await engine(Count(match=Match(state=["cancelled"], task="odd")))).count == 1250
    dry = await page.send("POST", "/jobs/retry", {"state": ["finished"], "dry_run": True})
    assert decoded(dry) == {"changed": 1250}
    assert decoded(await page.send("POST", "/jobs/retry", {"payload": {"n": 3}})) == {"changed": 1}
    assert await act("DELETE", "/jobs", state="cancelled", dry_run="true") == 1249
    assert await act("DELETE", "/jobs", state="cancelled") == 1249
    assert await act("DELETE", "/jobs", **{"payload.n": "3"}) == 1
    assert await act("DELETE", "/jobs", task="odd") == 0
    ids = [job.id for job in (await engine(List(limit=1000))).jobs]
    by_body = await page.send("DELETE", "/jobs", {"ids": ids})
    assert decoded(by_body) == {"changed": 1000}
    assert (await page.send("DELETE", "/jobs?task=a", {"ids": ids})).status_code == 400
    assert (await engine(Count())).count == 250
    assert (await engine(Count(tenant="other"))).count == 1


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_a_job_that_goes_during_a_listing_is_left_out(engine: Engine, site: str) -> None:
    """S4 24."""
    for _ in range(3):
        await engine(EnqueueMany(jobs=[NewJob(task="a") for _ in range(1000)]))
    last = (await engine(List(limit=1000))).jobs[-1]
    async with web(site) as client:
        seen = b""
        async for piece in lines(client, "/v1/default/jobs"):
            if not seen:
                response = await client.delete(f"/v1/default/jobs/{last.id}")
                assert response.status_code == 200
            seen += piece
    found = [msgspec.json.decode(line) for line in seen.splitlines()]
    assert len(found) in (2999, 3000)
    assert {job["state"] for job in found} == {State.QUEUED}
