"""`./dev bench http`: the server under load, as ratios to a bare route that echoes the same body.

The load comes from wrk, on the same machine. All servers are up at once, and each is asked for a second at a time, in
turn with the bare one; each figure is the best of its rounds. So processors that change their speed for seconds do not
favour one side. After that, once: a backlog is listed, claimed and finished over HTTP.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.http_backlog import Caller, measured
from bench.processes import Program
from bench.table import Table
from tests.support.ports import free_port
from tests.support.servers import Server

BODY = json.dumps({"task": "noop", "payload": "x" * 100})
BATCH = 1000
CROWD = 64
"""Connections that ask at once."""
SHORT, LONG = 100_000, 1_000_000
"""Jobs of a backlog."""
BARS = {"one job a request : echo": 0.3, "jobs/s in batches : echo requests/s": 5.0}

ECHO = """
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

async def echo(request):
    return Response(await request.body(), 201, media_type="application/json")

uvicorn.run(Starlette(routes=[Route("/echo", echo, methods=["POST"])]), port={port}, log_level="error")
"""

LUA = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "{kind}"
wrk.headers["Authorization"] = "Bearer {token}"
local file = io.open("{body}", "rb")
wrk.body = file:read("*a")
"""


class Load(NamedTuple):
    """What is sent, where, and for how long."""

    folder: Path
    seconds: int
    url: str
    kind: str
    body: str
    token: str = ""
    connections: int = CROWD


def load(of: Load) -> float:
    """Requests a second that were answered well."""
    folder = of.folder
    (folder / "body").write_text(of.body)
    (folder / "load.lua").write_text(LUA.format(kind=of.kind, token=of.token, body=folder / "body"))
    command = ["wrk", "-t1", f"-c{of.connections}", f"-d{of.seconds}s", "-s", str(folder / "load.lua"), of.url]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in said:
        raise RuntimeError(said)
    return float(next(line.split()[1] for line in said.splitlines() if line.startswith("Requests/sec")))


def rest(after: Load) -> None:
    """Until a server has carried all it accepted into its store: that must not slow down the next measurement."""
    caller = Caller(urlsplit(after.url).port or 80, after.token)
    before, now = -1, 0
    while now != before:
        time.sleep(0.1)
        before, now = now, caller.ask("GET", "/jobs/count")["count"]


@contextmanager
def started(command: list[str], folder: Path, port: int, **environment: str) -> Iterator[Program]:
    program = Program(command, folder=folder, environment=environment, log=folder / "log")
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1):
                    break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.05)
        yield program
    finally:
        program.end()


def served(store: str, folder: Path, port: int) -> list[str]:
    return [sys.executable, "-m", "windlass", "serve", "--store", store, "--port", str(port), "--data", str(folder)]


def rounds(arguments: argparse.Namespace, folder: Path, addresses: dict[str, str]) -> dict[str, dict[str, float]]:
    """By store and measure, the best of all rounds."""
    echo_port = free_port()
    (folder / "echo.py").write_text(ECHO.format(port=echo_port))
    echo = Load(folder, arguments.seconds, f"http://127.0.0.1:{echo_port}/echo", "application/json", BODY)
    with ExitStack() as up:
        up.enter_context(started([sys.executable, str(folder / "echo.py")], folder, echo_port))
        loads = {name: _loads(arguments, folder, address, up) for name, address in addresses.items()}
        bare: list[float] = []
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        for _ in range(arguments.rounds):
            bare.append(load(echo))
            for name, (one, many) in loads.items():
                found[name, "one"].append(load(one))
                found[name, "many"].append(load(many) * BATCH)
                rest(one)
    return {name: _figures(max(bare), max(found[name, "one"]), max(found[name, "many"])) for name in loads}


def _loads(arguments: argparse.Namespace, folder: Path, address: str, up: ExitStack) -> tuple[Load, Load]:
    """Start a server of a store; one job a request to it, and batches."""
    port = free_port()
    up.enter_context(started(served(address, folder, port), folder, port))
    token, queue = (folder / "token").read_text().strip(), f"http://127.0.0.1:{port}/v1/default"
    lines = "\n".join([BODY] * BATCH)
    return (
        Load(folder, arguments.seconds, f"{queue}/jobs", "application/json", BODY, token),
        Load(folder, arguments.seconds, f"{queue}/jobs/batch", "application/x-ndjson", lines, token, 4),
    )


def _figures(echo: float, one: float, many: float) -> dict[str, float]:
    return {
        "echo requests/s": echo,
        "one job a request/s": one,
        "jobs/s in batches": many,
        "one job a request : echo": one / echo,
        "jobs/s in batches : echo requests/s": many / echo,
    }


def backlogs(number: int, folder: Path, addresses: dict[str, str]) -> Table:
    """What becomes of so many jobs on a server of their own, by store."""
    table = Table()
    for name, address in addresses.items():
        port = free_port()
        with started(served(address, folder, port), folder, port) as program:
            found = measured(program, port, (folder / "token").read_text().strip(), number)
        table.put(name, number, "rows/s listed as NDJSON", found.listed)
        table.put(name, number, "ms to the first row", found.first)
        table.put(name, number, "MB that the server grew by", found.growth)
        table.put(name, number, "jobs/s claimed and finished", found.worked)
    return table


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench http", description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=1, help="of each slice")
    parser.add_argument("--long", action="store_true", help=f"a backlog of {LONG:,} jobs, not {SHORT:,}")
    arguments = parser.parse_args(argv)
    if shutil.which("wrk") is None:
        print("bench: wrk is missing; on Debian or Ubuntu: apt-get install wrk", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
        folder = Path(name)
        folder.chmod(0o700)
        with Server("redis", folder, fsync="everysec") as server:
            found = rounds(arguments, folder, {"sqlite": str(folder / "jobs.db"), "redis": server.url})
            apart = {"sqlite": str(folder / "backlog.db"), "redis": server.url}
            kept = backlogs(LONG if arguments.long else SHORT, folder, apart)
    table = Table()
    for store, measures in found.items():
        for measure, figure in measures.items():
            table.put(store, arguments.rounds, measure, figure)
    print(table.markdown(), kept.markdown(), sep="\n\n")
    for measure, bar in BARS.items():
        for store in found:
            ratio = found[store][measure]
            print(f"{measure}, {store}: {ratio:.2f} (bar {bar}: {'met' if ratio >= bar else 'missed'})")
    return 0
