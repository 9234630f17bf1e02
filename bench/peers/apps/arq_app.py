"""arq, without results. It has no bulk call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import body
from arq import create_pool
from arq.connections import RedisSettings

body.quicken()
settings = RedisSettings.from_dsn(body.URL)
quiet = {"version": 1, "disable_existing_loggers": False}
pool = None


async def noop(context: object, text: str) -> None:
    pass


async def stamp(context: object, text: str) -> None:
    body.stamp(text)


async def nap(context: object, text: str) -> None:
    await asyncio.sleep(body.NAP)
    body.tick(text)


class Worker:
    """What `arq` reads."""

    functions = (noop, stamp, nap)
    redis_settings = settings
    max_jobs = body.SLOTS
    keep_result = 0
    log_results = False
    job_timeout = 5 if body.SAFE else 300


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    global pool  # noqa: PLW0603
    pool = await create_pool(settings)
    yield
    await pool.aclose()


async def send(task: str, text: str) -> None:
    await pool.enqueue_job(task, text)
