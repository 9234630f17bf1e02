"""`./dev bench flow`: what limits, keys, parked jobs and turns cost a claim, and how fast and right estimates are.

100-byte payloads, claimed and finished in batches by several callers at once, on both stores; each figure beside that
of the same store without any limit, in the same run. Estimates: all jobs of a queue of 100,000, read from the store and
replayed; and a mixed workload in real time, where estimates are held against real waits once run times are learned.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

from msgspec import Raw

from bench.store import LEASE, PAYLOAD, Place, redis_place, say, sqlite_place, together
from bench.table import Table
from windlass.engine import Engine
from windlass.engine.estimate.answers import get_queue_estimate
from windlass.engine.estimate.learn import learn_run_times
from windlass.model.names import EVERY_TENANT, fresh_id
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Accepted,
    Claim,
    Claimed,
    Enqueue,
    Finish,
    Finished,
    GetEstimate,
    GetQueueEstimate,
    Register,
)
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker, Worker
from windlass.store.data import ClaimRequest, Draft, JobSuccess
from windlass.store.flow import LimitRule, Rules
from windlass.store.protocol import Store
from windlass.system import SystemClock, SystemRandomness

BATCHES = ((1, 600), (100, 10_000))
"""Jobs claimed at a time, and how many in all."""

ROUNDS = 6
KEYS = 10_000
TENANTS = 10_000
PLENTY = 1_000_000
WAITING = 100_000
SLOTS = 8
SECONDS = {"short": 0.03, "middling": 0.15, "long": 0.6}
"""Tasks of the mixed workload, and how long they run on average."""

Make = Callable[[str], AbstractAsyncContextManager[Place]]


class Load:
    """Adds jobs to a store and drains them."""

    def __init__(self, store: Store, callers: int, *, everybodys: bool = False) -> None:
        self.store = store
        self.flow = store.flow
        self.callers = callers
        self.chance = SystemRandomness()
        now = SystemClock().now()
        tenant = EVERY_TENANT if everybodys else "default"
        self.worker = Worker(
            name="bench", id="bench", tenant=tenant, queues=["default"], registered_at=now, seen_at=now
        )

    async def set_rules(self, **rules: object) -> None:
        assert await self.flow.set_rules(Rules(version=1, group_epoch=1, **rules))  # type: ignore[arg-type]

    async def add(self, total: int, groups: Iterator[str], tenants: Iterator[str] | None = None) -> None:
        group_epoch = (await self.flow.rules()).group_epoch
        job = NewJob(task="bench", payload=Raw(PAYLOAD))
        for start in range(0, total, 1000):
            drafts = [
                Draft(
                    next(tenants) if tenants else "default",
                    fresh_id(self.chance.uuid7(), "default"),
                    job,
                    next(groups),
                    group_epoch,
                )
                for _ in range(min(1000, total - start))
            ]
            await self.store.jobs.add(drafts)

    async def drain(self, total: int, batch: int) -> float:
        async def call(number: int) -> int:
            wish = ClaimRequest(self.worker, self.chance.token(), number, LEASE, repeatable=False)
            records = await self.store.jobs.claim(wish)
            await self.store.jobs.succeed(
                [JobSuccess(one.job.id, one.job.tenant, wish.nonce, 200, None, "") for one in records]
            )
            if not records:
                raise RuntimeError("the backlog ran dry")
            return len(records)

        return await together(call, total, batch, self.callers)


def each(*groups: str) -> Iterator[str]:
    while True:
        yield from groups


def limit_rules(number: int, queue: str = "default") -> dict[str, LimitRule]:
    return {f"-/limit{place}": LimitRule(running=PLENTY, queue=queue) for place in range(number)}


async def without(_: Load, __: int) -> Iterator[str]:
    return each("")


async def one_limit(load: Load, _: int) -> Iterator[str]:
    await load.set_rules(limit_rules=limit_rules(1))
    return each("|-/limit0")


async def five_limits(load: Load, _: int) -> Iterator[str]:
    await load.set_rules(limit_rules=limit_rules(5))
    return each("|" + "|".join(f"-/limit{place}" for place in range(5)))


async def many_keys(load: Load, _: int) -> Iterator[str]:
    await load.set_rules(limit_rules={"-/limit0": LimitRule(running=100, queue="default")})
    return (f"|-/limit0={number % KEYS}" for number in count())


async def behind_a_full_limit(load: Load, parked: int) -> Iterator[str]:
    await load.set_rules(limit_rules={"-/limit0": LimitRule(running=1, queue="default")})
    await load.add(parked + 1, each("|-/limit0"))
    assert len(await load.store.jobs.claim(ClaimRequest(load.worker, load.chance.token(), 2, 3600.0))) == 1
    return each("")


async def by_turns(load: Load, _: int) -> Iterator[str]:
    await load.set_rules(fair_queues={"default": {}})
    return each("")


SCENES = {
    "no limits": without,
    "1 limit": one_limit,
    "5 limits": five_limits,
    f"{KEYS:,} keys": many_keys,
    "jobs parked behind a full limit": behind_a_full_limit,
    f"fair, {TENANTS:,} tenants": by_turns,
}


class Stand(NamedTuple):
    """A store in which one scene is set, and how more of its jobs are made."""

    label: str
    load: Load
    groups: Iterator[str]
    tenants: Iterator[str] | None


async def set_up(what: str, place: Place, parked: int, callers: int) -> Stand:
    prepare = SCENES[what]
    fair = prepare is by_turns
    load = Load(place.store, callers, everybodys=fair)
    groups = await prepare(load, parked)
    tenants = (f"t{number % TENANTS}" for number in count()) if fair else None
    await load.add(BATCHES[-1][0] * callers, groups, tenants)  # so that it never runs dry
    return Stand(f"{parked:,} {what}" if prepare is behind_a_full_limit else what, load, groups, tenants)


async def measure_claims(name: str, make: Make, parked: int, callers: int, table: Table) -> None:
    """All scenes are set at once and have their turns in each round: the machine changes its speed."""
    async with AsyncExitStack() as stack:
        stands = []
        for what in SCENES:
            say(f"{name}: {what}")
            place = await stack.enter_async_context(make(what))
            stands.append(await set_up(what, place, parked, callers))
        for batch, total in BATCHES:
            say(f"{name}: batches of {batch}")
            for _ in range(ROUNDS):
                for label, load, groups, tenants in stands:
                    await load.add(total, groups, tenants)
                    rate = await load.drain(total, batch)
                    table.best(name, parked, f"claim+finish/s, {label}, batches of {batch}", rate)
            without_any, *others = (
                (label, table.get(name, parked, f"claim+finish/s, {label}, batches of {batch}")) for label, *_ in stands
            )
            for label, rate in others:
                part = f"part of the rate without, {label}, batches of {batch}"
                table.put(name, parked, part, rate / without_any[1])


async def measure_forecast(name: str, make: Make, parked: int, table: Table) -> None:
    say(f"{name}: estimate of {WAITING:,} waiting jobs")
    async with make("forecast") as place:
        load = Load(place.store, 1)
        engine = Engine(place.store, load.chance)
        await load.add(WAITING, each(""))
        await engine(Register(worker=NewWorker(name="bench", slots=SLOTS)))
        begun, spent = time.perf_counter(), time.process_time()
        found = await get_queue_estimate(engine.context, GetQueueEstimate(queue="default"))
        assert found.waiting == WAITING
        what = f"estimate of {WAITING:,} waiting jobs"
        table.put(name, parked, f"{what}, seconds of this process", time.process_time() - spent)
        table.put(name, parked, f"{what}, seconds in all", time.perf_counter() - begun)


async def measure_error(name: str, make: Make, parked: int, seconds: float, table: Table) -> None:
    say(f"{name}: a mixed workload for {seconds:g} s")
    async with make("error") as place:
        mixed = Mixed(Engine(place.store, SystemRandomness()))
        await mixed.run(seconds)
        table.put(name, parked, "mixed workload, estimates that came true", len(mixed.errors))
        table.put(name, parked, "median error of the wait, part of it", statistics.median(mixed.errors))


class Mixed:
    """Tasks of different and uncertain length, in a queue that is somewhat too small for them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.random = random.Random(7)
        self.estimated: dict[str, tuple[float, float]] = {}
        """What was said, and when, by job."""
        self.errors: list[float] = []

    async def run(self, seconds: float) -> None:
        worker = (await self.engine(Register(worker=NewWorker(name="bench", slots=SLOTS)))).worker
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(SLOTS):
                group.create_task(self.work(worker, until))
            group.create_task(self.learn(until))
            await self.submit(until)

    async def submit(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        warm = loop.time() + (until - loop.time()) / 4  # until then run times are learned
        load = statistics.fmean(SECONDS.values())
        for _ in range(60):  # so that there is a wait from the first
            await self.enqueue()
        at = loop.time()
        while at < until - 2:
            at += self.random.expovariate(SLOTS / load)
            await asyncio.sleep(max(0.0, at - loop.time()))
            job = await self.enqueue()
            if at > warm and self.random.random() < 0.2:
                found = await self.engine(GetEstimate(id=job.id))
                if found.seconds is not None:
                    self.estimated[job.id] = (found.seconds, loop.time())

    async def enqueue(self) -> Accepted:
        return await self.engine(Enqueue(job=NewJob(task=self.random.choice(list(SECONDS)))))

    async def work(self, worker: str, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            for claimed in await self.engine(Claim(worker=worker, wait=0.2)):
                self.compare(claimed, loop.time())
                mean = SECONDS[claimed.job.task]
                await asyncio.sleep(mean * self.random.lognormvariate(-0.125, 0.5))
                report = Finished(id=claimed.job.id, token=claimed.token, outcome=Verdict.OK)
                await self.engine(Finish(worker=worker, jobs=[report]))

    def compare(self, claimed: Claimed, now: float) -> None:
        said = self.estimated.pop(claimed.job.id, None)
        if said is None:
            return
        seconds, at = said
        if now - at > 0.5:
            self.errors.append(abs(seconds - (now - at)) / (now - at))

    async def learn(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            await learn_run_times(self.engine.context)
            await asyncio.sleep(0.5)


def maker(name: str, folder: Path, fsync: str) -> Make:
    """A fresh store for each figure."""

    @asynccontextmanager
    async def make(what: str) -> AsyncIterator[Place]:
        own = folder / what.replace(" ", "-").replace(",", "")
        own.mkdir()
        async with redis_place(own, fsync) if name == "redis" else sqlite_place(own) as place:
            yield place

    return make


FIGURES = ("claims", "forecast", "error")


async def run(options: argparse.Namespace) -> Table:
    table = Table()
    parked = 1_000_000 if options.long else 100_000
    figures = options.figures.split(",")
    for name in options.stores.split(","):
        with tempfile.TemporaryDirectory(prefix="windlass-bench-") as folder:
            make = maker(name, Path(folder), options.fsync)
            if "claims" in figures:
                await measure_claims(name, make, parked, options.callers, table)
            if "forecast" in figures:
                await measure_forecast(name, make, parked, table)
            if "error" in figures:
                await measure_error(name, make, parked, options.seconds, table)
    return table


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench flow", description=__doc__)
    parser.add_argument("--stores", default="sqlite,redis", help="which stores (default: %(default)s)")
    parser.add_argument("--long", action="store_true", help="a million jobs behind the full limit, not 100,000")
    parser.add_argument("--fsync", default="everysec", help="Redis appendfsync (default: %(default)s)")
    parser.add_argument("--callers", type=int, default=6, help="callers at once in one process (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="of the mixed workload (default: %(default)s)")
    parser.add_argument("--figures", default=",".join(FIGURES), help="which figures (default: %(default)s)")
    options = parser.parse_args(arguments)
    print(asyncio.run(run(options)).markdown())
    return 0
