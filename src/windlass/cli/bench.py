"""`windlass bench`: the speed of the user's own store, for one caller of operations.

One caller, one process, small payloads, in a queue of its own that is deleted at the end. A number for this machine and
this store, not the maximum for several callers.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated

from cyclopts import Parameter, validators
from msgspec import Raw, Struct
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from windlass.cli import console, terminal
from windlass.cli.target import HERE, Queue, Target, open_queue
from windlass.cli.terminal import Column
from windlass.model import wire
from windlass.model.match import Match
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Claim,
    Claimed,
    Delete,
    Enqueue,
    EnqueueMany,
    Finish,
    Finished,
    Register,
    Release,
    Released,
    Unregister,
)
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker
from windlass.system import SystemClock, SystemRandomness

BATCH = 100
"""Jobs in one batch."""

PAYLOAD = Raw(wire.encode("x" * 98))
"""A hundred bytes."""


class Speed(Struct, frozen=True, kw_only=True):
    """The speed of one step."""

    step: str
    jobs: int
    seconds: float
    per_second: float


class Bench:
    """A queue of its own, and the jobs claimed from it."""

    def __init__(self, queue: Queue, name: str) -> None:
        self.queue = queue
        self.name = name
        self.worker = ""
        self.held: list[Claimed] = []

    def new(self) -> NewJob:
        return NewJob(task="bench", queue=self.name, payload=PAYLOAD)

    async def enqueue_one(self) -> int:
        await self.queue(Enqueue(job=self.new()))
        return 1

    async def enqueue_batch(self) -> int:
        await self.queue(EnqueueMany(jobs=[self.new() for _ in range(BATCH)]))
        return BATCH

    async def work(self) -> int:
        self.held = await self.queue(Claim(worker=self.worker, slots=BATCH))
        done = [Finished(id=one.job.id, token=one.token, outcome=Verdict.OK) for one in self.held]
        if done:
            await self.queue(Finish(worker=self.worker, jobs=done))
        self.held = []
        return len(done)


@asynccontextmanager
async def _set_up(queue: Queue) -> AsyncIterator[Bench]:
    """Deleted afterwards, however it ends."""
    made = Bench(queue, f"bench-{SystemRandomness().token().hex()}")
    made.worker = (await queue(Register(worker=NewWorker(name="bench", queues=[made.name], slots=BATCH)))).worker
    try:
        yield made
    finally:
        if made.held:
            released = [Released(id=one.job.id, token=one.token) for one in made.held]
            await queue(Release(worker=made.worker, jobs=released))
        await queue(Delete(match=Match(queue=made.name)))
        await queue(Unregister(worker=made.worker))


async def bench(
    *,
    jobs: Annotated[
        int,
        Parameter(metavar="N", help="Jobs per step, at most (5000).", validator=validators.Number(gte=1)),
    ] = 5000,
    seconds: Annotated[
        float,
        Parameter(metavar="S", help="Seconds per step, at most (5).", validator=validators.Number(gt=0, lte=600)),
    ] = 5.0,
    target: Target = HERE,
) -> None:
    """Measure the speed of a store: jobs per second for one caller.

    The jobs go to a queue of their own and are deleted at the end.

    For example:
      windlass bench
      windlass bench --store redis://localhost --seconds 10
    """
    speeds: list[Speed] = []
    async with open_queue(target) as queue, _set_up(queue) as own:
        steps: dict[str, Callable[[], Awaitable[int]]] = {
            "enqueue one by one": own.enqueue_one,
            f"enqueue {BATCH} at a time": own.enqueue_batch,
            f"claim and finish {BATCH} at a time": own.work,
        }
        with _progress() as shown:
            for name, step in steps.items():
                speeds.append(await _measure(name, step, jobs, seconds, shown))
    if target.json:
        console.write_json(speeds)
        return
    columns = [
        Column("step", lambda speed: speed.step),
        Column("jobs", lambda speed: f"{speed.jobs:,}", right=True),
        Column("seconds", lambda speed: f"{speed.seconds:.2f}", right=True),
        Column("jobs/s", lambda speed: f"{speed.per_second:,.0f}", right=True),
    ]
    terminal.stdout().print(terminal.Table(columns, speeds))


def _progress() -> Progress:
    stderr = terminal.stderr()
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    return Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal)


async def _whole(step: Awaitable[int]) -> int:
    """A step, to its end even if it is interrupted: jobs on their way to the store would not be deleted."""
    running = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def _measure(name: str, step: Callable[[], Awaitable[int]], most: int, seconds: float, shown: Progress) -> Speed:
    clock = SystemClock()
    bar = shown.add_task(name, total=1.0)
    began = clock.monotonic()
    done, passed = 0, 0.0
    while done < most and passed < seconds:
        more = await _whole(step())
        done += more
        passed = clock.monotonic() - began
        shown.update(bar, completed=max(done / most, passed / seconds))
        if not more:
            break
    return Speed(step=name, jobs=done, seconds=passed, per_second=done / passed)
