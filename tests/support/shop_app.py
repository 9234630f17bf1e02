"""The app whose jobs the tests of the Python interface run; copied into the folder of a harness."""

import asyncio
import os
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pydantic

from windlass import Fail, Retry, Snooze, Windlass, current
from windlass.engine import Settings

app = Windlass(tenant=os.environ["HARNESS_TENANT"], settings=Settings(most_payload=1 << 20))


class Customer(pydantic.BaseModel):
    name: str
    since: date


@dataclass
class Bill:
    customer: Customer
    total: Decimal
    lines: list[tuple[str, int]]


@app.task
def bill(customer: Customer, *prices: Decimal, line: str = "tea") -> Bill:
    return Bill(customer, sum(prices, Decimal(0)), [(line, len(prices))])


@app.task
async def abill(customer: Customer | None = None) -> list[Customer]:
    await asyncio.sleep(0)
    return [customer] if customer else []


@app.task
def nothing() -> None:
    return None


@app.task
def describe() -> dict[str, Any]:
    job = current.job
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "attempt": job.attempt,
        "tags": job.tags,
        "headers": job.headers,
        "deadline": job.deadline is not None,
        "cancelled": current.cancelled,
        "inside": bool(current),
        "pid": os.getpid(),
    }


@app.task
def unencodable() -> object:
    return object()


@app.task
def huge() -> bytes:
    return bytes(17 << 20)


@app.task
def breaks(word: str) -> None:
    raise LookupError(word)


@app.task
def gives_up() -> None:
    raise Fail("never", code=422)


@app.task(max_retry=1)
def again() -> int:
    if current.job.attempt == 1:
        raise Retry("not yet", after=0)
    return current.job.attempt


@app.task
def later(path: str) -> int:
    if not Path(path).exists():
        Path(path).touch()
        raise Snooze("10ms")
    return current.job.attempt


@app.task
async def waits() -> None:
    current.progress(1, 2, "half way")
    current.log("waiting")
    await asyncio.sleep(60)


@app.task
def spawns() -> str:
    return current.spawn(nothing)
