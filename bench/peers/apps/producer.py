"""Queues jobs through one system's app and says how long it took. Runs in that system's environment.

`producer.py APP TASK one|bulk|crowd|paced N PER_SECOND`. An app has `send(task, text)`, plain or a coroutine function.
It may have `send_many(task, texts)`, `asend(task, text)` for a crowd of callers, and `opened()`, an async context in
which it is connected. The first job is queued before the clock runs, so that the connection is there.
"""

import asyncio
import importlib
import inspect
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import body

BATCH = 1000
CROWD = 64


def in_batches(texts: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(texts), BATCH):
        yield texts[start : start + BATCH]


def plainly(app: ModuleType, task: str, how: str, texts: list[str]) -> float:
    app.send(task, texts.pop())
    begun = time.perf_counter()
    if how == "bulk":
        for batch in in_batches(texts):
            app.send_many(task, batch)
    else:
        for text in texts:
            app.send(task, text)
    return time.perf_counter() - begun


async def in_a_loop(app: ModuleType, task: str, how: str, texts: list[str]) -> float:
    send = app.asend if how == "crowd" else app.send
    await send(task, texts.pop())
    begun = time.perf_counter()
    if how == "bulk":
        for batch in in_batches(texts):
            await app.send_many(task, batch)
    elif how == "crowd":
        await by_a_crowd(lambda text: send(task, text), texts)
    else:
        for text in texts:
            await send(task, text)
    return time.perf_counter() - begun


async def by_a_crowd(send: Callable[[str], Awaitable[Any]], texts: list[str]) -> None:
    waiting = iter(texts)

    async def caller() -> None:
        for text in waiting:
            await send(text)

    await asyncio.gather(*(caller() for _ in range(CROWD)))


def paced(app: ModuleType, task: str, number: int, rate: float) -> float:
    """Each job's argument says when it was queued. Without a loop: a quick one would leave colder caches behind than a
    slow one, and systems bring their own.
    """
    app.send("noop", body.argument(time.time_ns()))
    begun = time.perf_counter()
    for count in range(1, number + 1):
        time.sleep(max(0.0, begun + count / rate - time.perf_counter()))
        app.send(task, body.argument(time.time_ns()))
    return time.perf_counter() - begun


async def paced_in_a_loop(app: ModuleType, task: str, number: int, rate: float) -> float:
    """The same where a call must be awaited."""
    await app.send("noop", body.argument(time.time_ns()))
    begun = time.perf_counter()
    for count in range(1, number + 1):
        await asyncio.sleep(begun + count / rate - time.perf_counter())
        await app.send(task, body.argument(time.time_ns()))
    return time.perf_counter() - begun


async def opened(app: ModuleType, calls: Awaitable[float]) -> float:
    async with app.opened() if hasattr(app, "opened") else nullcontext():
        return await calls


def main(name: str, task: str, how: str, number: str, rate: str) -> None:
    app = importlib.import_module(name)
    texts = [body.argument(count) for count in range(int(number))]
    if how == "paced" and inspect.iscoroutinefunction(app.send):
        seconds = asyncio.run(opened(app, paced_in_a_loop(app, task, len(texts), float(rate))))
    elif how == "paced":
        seconds = paced(app, task, len(texts), float(rate))
    elif how == "crowd" or inspect.iscoroutinefunction(app.send):
        seconds = asyncio.run(opened(app, in_a_loop(app, task, how, texts)))
    else:
        seconds = plainly(app, task, how, texts)
    print(json.dumps({"jobs": len(texts), "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
