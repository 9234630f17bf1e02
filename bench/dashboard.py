"""`./dev bench dashboard`: what the dashboard costs, and how long its pages wait for the server.

A server gets a backlog; the questions of its pages are asked one at a time. Then it carries 1,000 jobs a second, alone
and with fifty dashboards open, which follow the events and ask as often as the first page does; its processor time is
compared. With so many events a page gives its stream up for a while, and asks by time. The history
is noted once a minute and takes the processor from the queue meanwhile: that is timed in process, and so are drains
with and without it, in turn. On a busy machine two drains differ by more than the history costs.
"""

import argparse
import asyncio
import gzip
import json
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx2

from bench.http import served, started
from bench.http_backlog import NDJSON, SENT_AT_ONCE, Caller
from bench.processes import Program
from bench.table import Table
from tests.support.ports import free_port
from tests.support.servers import Server
from windlass.addresses import open_engine
from windlass.engine import Engine
from windlass.engine.history import NOTE_EVERY, SECONDS, Historian
from windlass.engine.upkeep import repeat
from windlass.model.new_job import NewJob
from windlass.model.operations import MOST_AT_ONCE, Claim, EnqueueMany, Finish, Finished, Register
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker
from windlass.server import dashboard
from windlass.system import SystemClock

ROUNDS = 20
QUEUES, TASKS = 10, 10
"""Of the backlog."""

QUESTIONS = {
    "first rows": "/jobs?order=newest&limit=50",
    "first rows of a task": "/jobs?order=newest&limit=50&task=task-3",
    "first rows of a state": "/jobs?order=newest&limit=50&state=queued",
    "counts": "/stats",
    "queues": "/queues?waits=true",
    "history of a day": "/history?step=minute&points=1439",
}
OVERVIEW = {
    "/stats": 2,
    "/queues?waits=true": 3,
    "/workers": 4,
    "/workers/changes?limit=6": 5,
    "/limits": 6,
    "/tasks": 10,
    "/health": 10,
    "/history?step=minute&points=60": 15,
}
"""What an open first page asks, and every how many seconds, while it has no stream."""
MOST_EVENTS, CALM_DOWN = 100, 60.0
"""Events after which a page gives its stream up, and for how many seconds on a busy queue: as in `live.js`."""

PER_SECOND = 1000
AT_ONCE = 100
BARS = {
    "ms to the first rows": 300.0,
    "KB of all files, compressed": 150.0,
    "% of a core for all dashboards": 10.0,
    "% of a core for the history": 2.0,
}


def fill(caller: Caller, number: int) -> None:
    lines = [
        json.dumps({"task": f"task-{n % TASKS}", "queue": f"queue-{n % QUEUES}", "payload": "x" * 100})
        for n in range(100)
    ]
    for start in range(0, number, SENT_AT_ONCE):
        body = "\n".join((lines * (SENT_AT_ONCE // 100))[: number - start]).encode()
        caller.send("POST", "/jobs/batch", body, **{"Content-Type": NDJSON}).read()


def drain_journal(port: int, token: str) -> None:
    """Wait until the store has all jobs: a question waits for those that came before it, up to a second."""
    headers = {"authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False) as client:
        while client.get("/v1/-/health").json().get("journal", {}).get("waiting"):
            time.sleep(1)


def asked(caller: Caller, path: str) -> float:
    """Milliseconds, the median."""
    found = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        caller.send("GET", path).read()
        found.append((time.perf_counter() - begun) * 1000)
    return statistics.median(found)


def weight() -> float:
    """KB of all files of the pages, as they are sent."""
    static = Path(dashboard.__file__).parent / "static"
    return (
        sum(len(gzip.compress(file.read_bytes())) for file in static.rglob("*.*") if file.suffix in dashboard.TYPES)
        / 1000
    )


class Carried(threading.Thread):
    """Jobs that come and are done meanwhile, so many a second: on two connections, as a program and a worker would."""

    def __init__(self, port: int, token: str) -> None:
        super().__init__(daemon=True)
        self._caller = Caller(port, token)
        self._ended = threading.Event()
        self.done = 0

    def run(self) -> None:
        caller, batch = self._caller, [{"task": "noop", "queue": "busy"}] * AT_ONCE
        worker = caller.ask("POST", "/workers", {"name": "bench", "queues": ["busy"], "slots": AT_ONCE})["worker"]
        begun = time.monotonic()
        while not self._ended.is_set():
            caller.ask("POST", "/jobs/batch", batch)
            claimed = caller.ask("POST", f"/workers/{worker}/claim", {"slots": AT_ONCE})
            ends = [{"id": one["job"]["id"], "token": one["token"], "outcome": "ok"} for one in claimed]
            self.done += len(caller.ask("POST", f"/workers/{worker}/finish", ends)["applied"])
            self._ended.wait(max(0.0, begun + self.done / PER_SECOND - time.monotonic()))

    def end(self) -> None:
        self._ended.set()
        self.join()


async def look(port: int, token: str, dashboards: int, seconds: float) -> int:
    """So many dashboards for a while; how many of their questions were answered."""
    answered = 0
    until = time.monotonic() + seconds

    async def ask(client: httpx2.AsyncClient, path: str, every: float, first: float) -> None:
        nonlocal answered
        await asyncio.sleep(first)
        while time.monotonic() < until:
            (await client.get(f"/v1/default{path}")).raise_for_status()
            answered += 1
            await asyncio.sleep(every)

    async def follow(client: httpx2.AsyncClient, first: float) -> None:
        await asyncio.sleep(first)
        while time.monotonic() < until:
            came = 0
            with suppress(httpx2.ReadError):  # the server gives up a client that is too slow
                async with client.stream(
                    "GET", "/v1/default/events", headers={"accept": "text/event-stream"}
                ) as stream:
                    async for line in stream.aiter_lines():
                        came += line.startswith("event:")
                        if came > MOST_EVENTS or time.monotonic() > until:
                            break
            await asyncio.sleep(CALM_DOWN)

    headers = {"authorization": f"Bearer {token}", "accept": "application/json", "accept-encoding": "gzip"}
    limits = httpx2.Limits(max_connections=2 * dashboards)
    async with (
        httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, limits=limits, trust_env=False, timeout=60
        ) as client,
        asyncio.TaskGroup() as group,
    ):
        for number in range(dashboards):
            group.create_task(follow(client, CALM_DOWN * number / dashboards))
            for path, every in OVERVIEW.items():
                group.create_task(ask(client, path, every, every * number / dashboards))
    return answered


def compared(program: Program, port: int, token: str, arguments: argparse.Namespace) -> tuple[float, float, float]:
    """Percent of a core for the jobs alone, for the dashboards, and jobs a second with them open."""
    load = Carried(port, token)
    load.start()
    time.sleep(2)
    alone, both, done = 0.0, 0.0, 0
    for _ in range(arguments.rounds):
        begun, used = time.monotonic(), program.cpu()
        time.sleep(arguments.seconds)
        alone += (program.cpu() - used) / (time.monotonic() - begun)
        begun, used, before = time.monotonic(), program.cpu(), load.done
        asyncio.run(look(port, token, arguments.dashboards, arguments.seconds))
        both += (program.cpu() - used) / (time.monotonic() - begun)
        done += round((load.done - before) / (time.monotonic() - begun))
    load.end()
    rounds = arguments.rounds
    return 100 * alone / rounds, 100 * (both - alone) / rounds, done / rounds


async def noted(address: str) -> float:
    """Percent of a core for the history: a note a minute, with the counters as they are."""
    async with open_engine(address) as engine:
        found = []
        for _ in range(ROUNDS):
            begun = time.process_time()
            await Historian()(engine)
            found.append(time.process_time() - begun)
        return 100 * statistics.median(found) / SECONDS["minute"]


async def drained(engine: Engine, number: int, *, noting: bool) -> tuple[float, float]:
    """Jobs a second, and seconds of this process, while so many jobs are claimed and finished."""
    for _ in range(0, number, MOST_AT_ONCE):
        await engine(EnqueueMany(jobs=[NewJob(task="noop", queue="drained", keep_success=0.0)] * MOST_AT_ONCE))
    worker = (await engine(Register(worker=NewWorker(name="bench", queues=["drained"], slots=AT_ONCE)))).worker
    begun, used, done = time.perf_counter(), time.process_time(), 0
    notes = asyncio.create_task(repeat(NOTE_EVERY, Historian(), engine, SystemClock())) if noting else None
    while claimed := await engine(Claim(worker=worker, slots=AT_ONCE)):
        ends = [Finished(id=one.job.id, token=one.token, outcome=Verdict.OK) for one in claimed]
        done += len((await engine(Finish(worker=worker, jobs=ends))).applied)
    rate, spent = done / (time.perf_counter() - begun), time.process_time() - used
    if notes is not None:
        notes.cancel()
        await asyncio.wait({notes})
    return rate, spent


async def history_cost(address: str, number: int, rounds: int) -> tuple[float, float]:
    """What a drain loses, and what it takes more of the processor, in percent, with the history against without it."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    spent: dict[bool, list[float]] = {True: [], False: []}
    async with open_engine(address) as engine:
        await drained(engine, number // 4, noting=True)  # warm
        for turn in range(rounds):
            for noting in (True, False) if turn % 2 else (False, True):
                rate, seconds = await drained(engine, number, noting=noting)
                rates[noting].append(rate)
                spent[noting].append(seconds)
    kept = statistics.median(noted / bare for noted, bare in zip(rates[True], rates[False], strict=True))
    more = statistics.median(noted / bare for noted, bare in zip(spent[True], spent[False], strict=True))
    return 100 * (1 - kept), 100 * (more - 1)


def measured(table: Table, name: str, address: str, folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    port, number = free_port(), arguments.jobs
    with started(served(address, folder, port), folder, port) as program:
        token = (folder / "token").read_text().strip()
        fill(Caller(port, token), number)
        drain_journal(port, token)
        caller = Caller(port, token)
        caller.send("GET", QUESTIONS["first rows"]).read()  # warm
        times = {what: asked(caller, path) for what, path in QUESTIONS.items()}
        for what, milliseconds in times.items():
            table.put(name, number, f"ms: {what}", milliseconds)
        alone, dashboards, done = compared(program, port, token, arguments)
    history = asyncio.run(noted(address))
    lost, more = asyncio.run(history_cost(address, arguments.drained, arguments.drains))
    table.put(name, number, "% of a core for the jobs alone", alone)
    table.put(name, number, f"% of a core for {arguments.dashboards} dashboards", dashboards)
    table.put(name, number, "jobs/s meanwhile", done)
    table.put(name, number, "% fewer jobs/s drained with the history", lost)
    table.put(name, number, "% more processor time of a drain with the history", more)
    table.put(name, number, "% of a core for the history", history)
    firsts = [milliseconds for what, milliseconds in times.items() if what.startswith("first rows")]
    return dict(zip(BARS, (max(firsts), weight(), dashboards, history), strict=True))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench dashboard", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="of the backlog")
    parser.add_argument("--dashboards", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=15, help="of each slice")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--drained", type=int, default=200_000, help="jobs of each drain")
    parser.add_argument("--drains", type=int, default=7, help="with the history, and as many without")
    parser.add_argument("--stores", nargs="+", choices=("sqlite", "redis"), default=("sqlite", "redis"))
    arguments = parser.parse_args(argv)
    table, found = Table(), {}
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
        folder = Path(name)
        folder.chmod(0o700)
        with Server("redis", folder, fsync="everysec") as server:
            addresses = {"sqlite": str(folder / "jobs.db"), "redis": server.url}
            for store in arguments.stores:
                found[store] = measured(table, store, addresses[store], folder, arguments)
    print(table.markdown(), end="\n\n")
    for what, bar in BARS.items():
        for store, figures in found.items():
            print(f"{what}, {store}: {figures[what]:.2f} (bar {bar:g}: {'met' if figures[what] <= bar else 'missed'})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
