"""SAQ on Redis. It has no bulk call: `map` sends its jobs one after the other and waits for them.

Results are left on: without them its sweeper takes a job that has just been done for a stuck one, and breaks.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import body
from saq import Job, Queue

body.quicken()
queue = Queue.from_url(body.URL)
options = {"timeout": 3, "retries": 3} if body.SAFE else {}


async def noop(context: object, *, text: str) -> None:
    pass


async def stamp(context: object, *, text: str) -> None:
    body.stamp(text)


async def nap(context: object, *, text: str) -> None:
    await asyncio.sleep(body.NAP)
    body.tick(text)


settings = {
    "queue": queue,
    "functions": [noop, stamp, nap],
    "concurrency": body.SLOTS,
    "timers": {"sweep": 1} if body.SAFE else {},
}


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    await queue.connect()
    yield
    await queue.disconnect()


async def send(task: str, text: str) -> None:
    await queue.enqueue(Job(task, kwargs={"text": text}, **options))
