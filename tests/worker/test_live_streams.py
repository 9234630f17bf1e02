"""Two hundred jobs that print all the time, each followed over a WebSocket: the memory that it takes stays the same."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from websockets.asyncio.client import connect

from tests.support.http_servers import Process
from tests.support.patience import PATIENCE
from tests.support.worker_harness import ON_A_FILE, WorkerHarness, tell

STREAMS = 200
KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def server(harness: WorkerHarness, tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path, "--no-worker", store=harness.store)
    process.start()
    yield process
    process.kill()


class Follower:
    """One WebSocket, and how much output came of it."""

    def __init__(self) -> None:
        self.got = 0

    async def follow(self, address: str, token: str, tenant: str, id: str) -> None:
        path = address.replace("http", "ws") + f"/v1/{tenant}/jobs/{id}/live"
        async with connect(path, compression=None, open_timeout=PATIENCE, proxy=None) as line:
            await line.send(json.dumps({"token": token}))
            async for said in line:
                self.got += len(said) if isinstance(said, bytes) else 0


async def all_have(followers: list[Follower], size: int) -> None:
    async with asyncio.timeout(10 * PATIENCE):
        while min(one.got for one in followers) < size:  # noqa: ASYNC110 - it is looked at, not waited for
            await asyncio.sleep(0.1)


def memory(pids: list[int]) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


@ON_A_FILE
@pytest.mark.parametrize("size", [16 * KIB, pytest.param(2 * MIB, marks=pytest.mark.long)])
async def test_the_memory_of_server_and_worker_stays_flat(harness: WorkerHarness, server: Process, size: int) -> None:
    harness.start("-c", str(STREAMS), "--contexts", "1")
    jobs = [harness.tasks.co_drone.using(output={"limit": None}).enqueue() for _ in range(STREAMS)]
    followers = [Follower() for _ in jobs]
    async with asyncio.TaskGroup() as group:
        following = [
            group.create_task(one.follow(server.address, server.token, harness.tenant, job.id))
            for one, job in zip(followers, jobs, strict=True)
        ]
        await all_have(followers, size // 4)
        pids = harness.processes()
        before = server.memory(), memory(pids)
        await all_have(followers, size)
        grown = [(after - start) / MIB for start, after in zip(before, (server.memory(), memory(pids)), strict=True)]
        (harness.folder / "let go").touch()
        for task in following:
            task.cancel()
    tell(f"server and worker have grown by {grown[0]:.1f} and {grown[1]:.1f} MiB")
    assert max(grown) < 24, grown
