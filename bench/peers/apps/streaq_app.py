"""streaQ, without results and without a line of log for each job."""

import asyncio

import body
from streaq import Worker

worker = Worker(
    redis_url=body.URL,
    concurrency=body.SLOTS,
    idle_timeout=3 if body.SAFE else 60,
    anyio_kwargs={"use_uvloop": True},
)


@worker.task(ttl=0, silent=True)
async def noop(text: str) -> None:
    pass


@worker.task(ttl=0, silent=True)
async def stamp(text: str) -> None:
    body.stamp(text)


@worker.task(ttl=0, silent=True)
async def nap(text: str) -> None:
    await asyncio.sleep(body.NAP)
    body.tick(text)


TASKS = {"noop": noop, "stamp": stamp, "nap": nap}


def opened() -> Worker:
    return worker


async def send(task: str, text: str) -> None:
    await TASKS[task].enqueue(text)


async def send_many(task: str, texts: list[str]) -> None:
    await worker.enqueue_many([TASKS[task].enqueue(text) for text in texts])
