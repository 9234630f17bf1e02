"""X2 of the scoreboard: thousands who follow jobs live, a few of whom never read."""

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_servers import Process, process
from windlass.client import Client
from windlass.model.new_job import NewJob
from windlass.model.operations import Alive, Claim, Claimed, Enqueue, EnqueueMany, Register, Renew
from windlass.model.output import NewChunk, Progress
from windlass.model.worker import NewWorker

MIB = 1 << 20
JOBS = 200
EVENTS_A_SECOND = 100

LOUD = [NewChunk(stream="stdout", data=b"x" * (1 << 16))] * 2


@pytest.fixture(autouse=True)
def room_for_many() -> None:
    """As many open files as the system allows; the processes that a test starts inherit it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder without a disk: what is measured is the server, not how long a commit takes."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


class Shop:
    """A worker that holds jobs and says how far they are."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.worker = ""
        self.held: list[Claimed] = []

    async def open(self) -> None:
        self.worker = (await self.client(Register(worker=NewWorker(name="shop", slots=JOBS)))).worker
        await self.client(EnqueueMany(jobs=[NewJob(task="work") for _ in range(JOBS)]))
        self.held = await self.client(Claim(worker=self.worker, slots=JOBS, wait=5))
        assert len(self.held) == JOBS

    async def say(self, places: Iterable[int], **news: Any) -> None:
        some = [self.held[place] for place in places]
        alive = [Alive(id=one.job.id, token=one.token, **news) for one in some]
        await self.client(Renew(worker=self.worker, jobs=alive))

    async def stay(self) -> None:
        """Keep all of them, however long it takes."""
        while True:
            alive = [Alive(id=one.job.id, token=one.token) for one in self.held]
            await self.client(Renew(worker=self.worker, jobs=alive))
            await asyncio.sleep(3)


async def enqueue_times(client: Client, seconds: float) -> list[float]:
    """How long single enqueues take, one after the other, a few in each tenth of a second."""
    times = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        await client(Enqueue(job=NewJob(task="other", queue="other")))
        times.append(time.monotonic() - began)
        await asyncio.sleep(0.02)
    return times


def at(share: float, values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@asynccontextmanager
async def crowd(running: Process, *about: object) -> AsyncIterator[asyncio.subprocess.Process]:
    words = [str(word) for word in (running.port, running.token, *about)]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.live_followers", *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 26,
    )  # fmt: skip
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def follow_in_a_crowd(folder: Path, number: int, seconds: float) -> dict[str, float]:
    """What a crowd of followers sees, and what it costs."""
    silent = number // 100
    with process(folder, "--no-worker") as running:
        async with Client(running.address, running.token) as client:
            shop = Shop(client)
            await shop.open()
            staying = asyncio.create_task(shop.stay())
            alone = await enqueue_times(client, 2.0)
            base = running.memory()
            loud, *others = [one.job.id for one in shop.held]
            async with crowd(running, number, silent, loud, *others) as child, asyncio.timeout(seconds + 60):
                assert child.stdin is not None
                assert child.stdout is not None
                assert await child.stdout.readline() == b"ready\n"
                most, sent = 0, 0

                async def talk() -> None:
                    nonlocal most, sent
                    began = time.monotonic()
                    while (passed := time.monotonic() - began) < seconds:
                        if sent < passed * EVENTS_A_SECOND:
                            note = Progress(done=sent, note=f"{time.time():.6f}")
                            await shop.say((1 + n % (JOBS - 1) for n in range(sent, sent + 10)), progress=note)
                            sent += 10
                        else:
                            most = max(most, running.memory())
                            await asyncio.sleep(0.005)

                async def shout() -> None:
                    for _ in range(60):  # what the system buffers, and more than we do
                        await shop.say([0], output=LOUD)
                        await asyncio.sleep(0.1)

                busy = running.cpu()
                _, _, crowded = await asyncio.gather(talk(), shout(), enqueue_times(client, seconds))
                busy = (running.cpu() - busy) / seconds
                await asyncio.sleep(3)  # what is on its way may take a while
                child.stdin.close()
                seen = json.loads(await child.stdout.readline())
            staying.cancel()
            await asyncio.gather(staying, return_exceptions=True)
    delays = seen["delays"]
    return {
        "sent": sent,
        "heard": len(delays) * (JOBS - 1) / (number - silent) / sent,
        "begun": seen["begun"],
        "ended": seen["ended"],
        "dropped": seen["dropped"] / silent,
        "delivery_p99": at(0.99, delays),
        "enqueue_p99_alone": at(0.99, alone),
        "enqueue_p99": at(0.99, crowded),
        "enqueue_p50": at(0.5, crowded) / at(0.5, alone),
        "busy": busy,
        "microseconds": busy * seconds / len(delays) * 1e6,
        "memory": most / MIB,
        "grown": (most - base) / MIB,
    }


def judge(found: dict[str, float], number: int, most_memory: float) -> None:
    print({name: round(value, 4) for name, value in found.items()})  # noqa: T201
    assert found["begun"] == number - number // 100
    assert found["ended"] == 0, "who reads is not dropped"
    assert found["dropped"] == 1, "who never reads is"
    assert found["sent"] > 0
    assert 0.95 < found["heard"] < 1.05, "every event reaches every follower once"
    assert found["memory"] <= most_memory


@pytest.mark.timeout(240)
async def test_two_thousand_follow_jobs_and_the_deaf_are_dropped(memory: Path) -> None:
    """X2: short."""
    judge(await follow_in_a_crowd(memory, 2000, 8.0), 2000, 250)


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_ten_thousand_follow_jobs_for_long(memory: Path) -> None:
    """X2."""
    judge(await follow_in_a_crowd(memory, 10_000, 600.0), 10_000, 400)
