"""taskiq on Redis: the quick broker over a list, or in a safe run the one over a stream. It has no bulk call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import body
from taskiq_redis import ListQueueBroker, RedisStreamBroker

# With the client's own limit of five seconds the listener of an idle worker breaks off and is started again.
waiting = {"socket_timeout": None}
if body.SAFE:
    # From the start of the stream: its own default leaves out what was queued before the first worker came.
    patience = {"idle_timeout": 3000, "unacknowledged_lock_timeout": 5}
    broker = RedisStreamBroker(body.URL, consumer_id="0", **patience, **waiting)
else:
    broker = ListQueueBroker(body.URL, **waiting)


@broker.task(task_name="noop")
async def noop(text: str) -> None:
    pass


@broker.task(task_name="stamp")
async def stamp(text: str) -> None:
    body.stamp(text)


@broker.task(task_name="nap")
async def nap(text: str) -> None:
    await asyncio.sleep(body.NAP)
    body.tick(text)


TASKS = {"noop": noop, "stamp": stamp, "nap": nap}


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    await broker.startup()
    yield
    await broker.shutdown()


async def send(task: str, text: str) -> None:
    await TASKS[task].kiq(text)
