"""What becomes of a yielding job's client when the job is halted: real server, real worker, real connections."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from tests.server.test_live import follow, socket
from tests.server.test_live_flow import after
from tests.support.http_servers import LOCAL
from tests.support.patience import PATIENCE
from tests.support.push_servers import Station
from tests.support.worker_harness import TASKS, WorkerHarness
from windlass.model.job import Job, Reason, State
from windlass.model.operations import ChangeQueue
from windlass.model.queue import QueueChange, Tier

TIERS = [Tier(name="fast", seconds=3), Tier(name="slow", seconds=30, cap=1)]


@pytest.fixture
async def shop(hub: Station, tmp_path: Path) -> AsyncIterator[WorkerHarness]:
    """Workers that know the server only."""
    folder = tmp_path / "shop"
    folder.mkdir()
    made = WorkerHarness(folder, hub.address, "default", TASKS.read_text())
    yield made
    await asyncio.to_thread(made.close)


async def nap(hub: Station, seconds: float, **terms: Any) -> Job:
    return await hub.enqueue("co_nap", {"seconds": seconds, "word": "nap"}, **terms)


async def rest_of(line: ClientConnection) -> list[Any]:
    """All that is said until the server ends it, which it does in good order."""
    async with asyncio.timeout(PATIENCE):
        return [json.loads(message) async for message in line]  # any other end is an error here


async def test_s0_16_a_halted_client_gets_a_last_word_and_a_closed_connection_and_its_worker_takes_the_next_job(
    hub: Station, shop: WorkerHarness
) -> None:
    await hub.client(ChangeQueue(queue="default", change=QueueChange(tiers=TIERS)))
    worker = await asyncio.to_thread(shop.start, "-c", "1", WINDLASS_TOKEN=LOCAL)
    yielding = await nap(hub, 60, yielding=True)
    async with socket(hub, yielding.id) as line, follow(hub, yielding) as stream:
        await after(stream, "started")
        await asyncio.to_thread(shop.noted, "start")
        waiting = await nap(hub, 0.1, tier="fast")
        messages = await rest_of(line)
        async with asyncio.timeout(PATIENCE):
            events = [event async for event in stream]
    halted = await hub.shown(yielding)
    assert (halted.state, halted.reason) == (State.CANCELLED, Reason.HALTED)
    last = messages[-1]
    assert (last["event"], last["data"]["state"], last["data"]["reason"]) == ("cancelled", "cancelled", "halted")
    assert events[-1].name == "cancelled", "followers by server-sent events too"
    assert events[-1].job is not None
    assert events[-1].job.reason is Reason.HALTED
    taken = await hub.ended(waiting)
    assert taken.state is State.SUCCEEDED
    assert taken.worker == halted.worker, "the place was given to the next"
    assert worker.running, "and the worker was not restarted"
    assert len(shop.notes("end")) == 1, "the halted one never came to its end"
