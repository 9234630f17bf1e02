"""`windlass bench`: how fast the user's own store is, as a caller of operations sees it.

One caller, one process, small payloads, in a queue that nobody else uses and that is emptied at the end. An honest
number for this machine and this store, not the most that several callers could get out of it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated

from cyclopts import Parameter, validators
from msgspec import Raw, Struct
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from windlass.cli import saying
from windlass.cli.place import HERE, Place, Queue, opened
from windlass.model import wire
from windlass.model.job import NewJob
from windlass.model.lifecycle import Verdict
from windlass.model.match import Match
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
    Unregister,
    Unrun,
)
from windlass.model.worker import NewWorker
from windlass.system import SystemChance, SystemClock

BATCH = 100
"""Jobs in one batch."""

PAYLOAD = Raw(wire.encode("x" * 98))
"""A hundred bytes."""


class Speed(Struct, frozen=True, kw_only=True):
    """What one step came to."""

    step: str
    jobs: int
    seconds: float
    per_second: float


class Bench:
    """A queue of our own, and what we hold of it."""

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
    """Nothing is left of it afterwards, however it ends."""
    made = Bench(queue, f"bench-{SystemChance().token().hex()}")
    made.worker = (await queue(Register(worker=NewWorker(name="bench", queues=[made.name], slots=BATCH)))).worker
    try:
        yield made
    finally:
        if made.held:
            back = [Unrun(id=one.job.id, token=one.token) for one in made.held]
            await queue(Release(worker=made.worker, jobs=back))
        await queue(Delete(match=Match(queue=made.name)))
        await queue(Unregister(worker=made.worker))


async def bench(
    *,
    jobs: Annotated[
        int,
        Parameter(metavar="N", help="At most so many jobs in each step (5000).", validator=validators.Number(gte=1)),
    ] = 5000,
    seconds: Annotated[
        float,
        Parameter(metavar="S", help="At most so long for each step (5).", validator=validators.Number(gt=0, lte=600)),
    ] = 5.0,
    place: Place = HERE,
) -> None:
    """Measure how fast a store is: jobs per second for one caller.

    The jobs go to a queue of their own and are deleted at the end.

    For example:
      windlass bench
      windlass bench --store redis://localhost --seconds 10
    """
    speeds: list[Speed] = []
    async with opened(place) as queue, _set_up(queue) as own:
        steps: dict[str, Callable[[], Awaitable[int]]] = {
            "enqueue one by one": own.enqueue_one,
            f"enqueue {BATCH} at a time": own.enqueue_batch,
            f"claim and finish {BATCH} at a time": own.work,
        }
        with _progress() as shown:
            for name, step in steps.items():
                speeds.append(await _measure(name, step, jobs, seconds, shown))
    if place.json:
        saying.write_json(speeds)
        return
    made = saying.Table("step", "jobs", "seconds", "jobs/s", right=("jobs", "seconds", "jobs/s"))
    for speed in speeds:
        made.add(speed.step, f"{speed.jobs:,}", f"{speed.seconds:.2f}", f"{speed.per_second:,.0f}")
    saying.paper().print(made)


def _progress() -> Progress:
    paper = saying.paper(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    return Progress(*columns, console=paper, transient=True, disable=not paper.is_terminal)


async def _measure(name: str, step: Callable[[], Awaitable[int]], most: int, seconds: float, shown: Progress) -> Speed:
    clock = SystemClock()
    bar = shown.add_task(name, total=1.0)
    began = clock.monotonic()
    done, passed = 0, 0.0
    while done < most and passed < seconds:
        more = await step()
        done += more
        passed = clock.monotonic() - began
        shown.update(bar, completed=max(done / most, passed / seconds))
        if not more:
            break
    return Speed(step=name, jobs=done, seconds=passed, per_second=done / passed)
