"""A round of upkeep costs what is due, not what waits: counted in what the store does, never in seconds.

The jobs are delayed, the schedules tick once a day. A small backlog and a large one have the same number due.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from tests.support.engines import packed, register
from tests.support.servers import Server, StartServer
from tests.support.stores import EPOCH, SeededChance, StoreKind, VirtualClock, opened
from windlass.engine import Engine
from windlass.engine.upkeep import STEP, all_duties
from windlass.model.job import State
from windlass.model.match import Match
from windlass.model.new_job import NewJob
from windlass.model.operations import Claim, Count, EnqueueLines, PutSchedule, Unregister
from windlass.model.schedule import NewSchedule
from windlass.model.worker import MOST_TASKS
from windlass.store.protocol import Store

DAY = 86_400.0
LINES = 100_000
"""Jobs that are added in one request."""

DUE_JOBS, DUE_SCHEDULES = 1000, 50
ROUNDS = 5

SLACK = {"calls": 20, "steps": 200, "bytes": 4000}
"""The bytes are those of the question how many there were."""

SCHEDULES_OF_ONE_APP = MOST_TASKS


class Backlog(NamedTuple):
    jobs: int
    schedules: int


SMALL = Backlog(2000, 30)
LARGE = Backlog(20_000, 300)
LARGEST = Backlog(1_000_000, 10_000 - DUE_SCHEDULES)


class Sqlite:
    """Counts what every connection to a file does: statements, and steps of SQLite's virtual machine."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def read(self) -> Counter[str]:
        return self.counted.copy()

    def watch(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._count)

    def _count(self, trace: dict[str, Any]) -> None:
        self.counted["calls"] += 1
        self.counted["steps"] += trace["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


class Redis:
    """Counts the commands that a server runs, those of functions too, and the bytes of its answers."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def read(self) -> Counter[str]:
        commands = re.findall(r"cmdstat_(\S+?):calls=(\d+)", self._server.ask("INFO", "commandstats"))
        calls = sum(int(number) for name, number in commands if name != "info")
        sent = re.search(r"total_net_output_bytes:(\d+)", self._server.ask("INFO", "stats"))
        assert sent is not None
        return Counter(calls=calls, bytes=int(sent[1]))


Costs = Sqlite | Redis


@contextmanager
def watched(server: Server | None) -> Iterator[Costs]:
    if server is not None:
        yield Redis(server)
        return
    costs = Sqlite()
    apsw.connection_hooks.append(costs.watch)
    try:
        yield costs
    finally:
        apsw.connection_hooks.remove(costs.watch)


async def fill(engine: Engine, backlog: Backlog) -> None:
    """Jobs that are due in two days, and schedules that tick once a week."""
    jobs, schedules = backlog
    for start in range(0, jobs, LINES):
        text = "\n".join(map(str, range(start, min(jobs, start + LINES))))
        await engine(EnqueueLines(task="later", text=text, delay=2 * DAY + start / LINES))
    for start in range(0, schedules, SCHEDULES_OF_ONE_APP):
        declared = {
            f"s{number}": NewSchedule(every=7 * DAY, job=NewJob(task="tick"), exact=True)
            for number in range(start, min(schedules, start + SCHEDULES_OF_ONE_APP))
        }
        worker = await register(engine, "ticks", app=f"app{start}", schedules=declared)
        await engine(Unregister(worker=worker))


class Upkeep:
    """All duties of one process, by hand."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._duties = [duty for duty, _ in all_duties(engine.context.settings.lease, short_lived=True)]

    async def round(self) -> None:
        for duty in self._duties:
            while await duty(self._engine) >= STEP:
                pass


async def costs_of(costs: Costs, store: Store, clock: VirtualClock, backlog: Backlog) -> dict[str, Counter[str]]:
    """What idle rounds cost over such a backlog, one round in which the same number comes due, and a claim."""
    engine = Engine(store, SeededChance())
    await fill(engine, backlog)
    upkeep = Upkeep(engine)
    await upkeep.round()
    await upkeep.round()
    before = costs.read()
    for _ in range(ROUNDS):
        await upkeep.round()
    idle = costs.read() - before
    due = "\n".join(map(str, range(DUE_JOBS)))
    await engine(EnqueueLines(task="soon", text=due, delay=DAY))
    for number in range(DUE_SCHEDULES):
        one = NewSchedule(every=DAY, start=EPOCH, job=NewJob(task="tick", payload=packed([number])))
        await engine(PutSchedule(name=f"due{number}", schedule=one))
    await upkeep.round()
    clock.advance(DAY)
    before = costs.read()
    await upkeep.round()
    busy = costs.read() - before
    queued = Match(state=["queued"])
    assert (await engine(Count(match=queued))).count == DUE_JOBS + DUE_SCHEDULES
    worker = await register(engine, slots=100, tasks=["soon"])
    before = costs.read()
    claimed = await engine(Claim(worker=worker, slots=100))
    claim = costs.read() - before
    assert len(claimed) == 100
    assert {one.job.state for one in claimed} == {State.RUNNING}
    assert (await engine(Count(match=Match(task="later")))).count == backlog.jobs
    return {"idle": idle, "due": busy, "claim": claim}


@pytest.mark.parametrize("large", [LARGE, pytest.param(LARGEST, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["file", "redis"])
@pytest.mark.timeout(600)
async def test_a_round_of_upkeep_and_a_claim_cost_what_is_due(
    kind: StoreKind, large: Backlog, tmp_path: Path, start_server: StartServer
) -> None:
    server = start_server("redis") if kind == "redis" else None
    found: list[dict[str, Counter[str]]] = []
    for name, backlog in (("small", SMALL), ("large", large)):
        address, clock = str(tmp_path / name) if server is None else server.url, VirtualClock()
        with watched(server) as costs:
            async with opened(kind, address, clock, name) as store:
                found.append(await costs_of(costs, store, clock, backlog))
    small, most = found
    print(f"{kind}: {small} over {SMALL}, {most} over {large}")  # noqa: T201
    for what, cost in most.items():
        for unit, number in cost.items():
            assert number <= 1.2 * small[what][unit] + SLACK[unit], f"{what}: {unit}"
