"""A worker in the lifespan of a web server: one program to start, and both end together."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx2
import psutil
import pytest

from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.worker_harness import MakeHarness, WorkerHarness, until
from windlass import Invalid, Windlass

TASKS = """
import os, time
from pathlib import Path
from windlass import Windlass

app = Windlass(tenant=os.environ["HARNESS_TENANT"])


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
def stay() -> None:
    Path("begun").touch()
    while not Path("let go").exists():
        time.sleep(0.01)
"""

WEB = """
from contextlib import asynccontextmanager
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from tasks import add, app


@asynccontextmanager
async def lifespan(_):
    async with app.worker("tasks:app", slots=2, handlers=False, queues=["default"]):
        yield


async def total(request):
    job = await add.aenqueue(1, 2)
    return JSONResponse(await job.aresult(timeout=60))


web = Starlette(routes=[Route("/total", total)], lifespan=lifespan)
"""


@contextmanager
def served(harness: WorkerHarness) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    (harness.folder / "web.py").write_text(WEB)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "web:web", "--port", str(port), "--log-level", "warning"]
    server = subprocess.Popen(command, cwd=harness.folder, env=harness.environ)
    try:
        yield server, f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def total(address: str) -> int | None:
    try:
        return int(httpx2.get(f"{address}/total", trust_env=False, timeout=PATIENCE).json())
    except httpx2.TransportError:
        return None


def worker_of(server: "subprocess.Popen[bytes]") -> list[int]:
    found = []
    for one in psutil.Process(server.pid).children():
        with suppress(psutil.NoSuchProcess):  # it has just ended, and may not have been reaped
            found += [one.pid] if "windlass.run_embedded" in one.cmdline() else []
    return found


def test_a_web_server_brings_its_worker_along(make_harness: MakeHarness) -> None:
    harness = make_harness(TASKS)
    with served(harness) as (server, address):
        assert until(lambda: total(address)) == 3
        lasting = harness.app.tasks["stay"].enqueue()
        until((harness.folder / "begun").exists)
        server.send_signal(signal.SIGTERM)
        until(lambda: harness.run("workers", "ls", "--json", "--tenant", harness.tenant).stdout.find("draining") > 0)
        (harness.folder / "let go").touch()
        server.wait(PATIENCE)
        assert lasting.refresh().attempt == 1
        assert lasting.state == "succeeded", "it had time to finish"
        until(lambda: not harness.processes())


def test_the_worker_ends_with_a_killed_web_server_and_is_started_again_by_a_live_one(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness(TASKS)
    with served(harness) as (server, address):
        assert until(lambda: total(address)) == 3
        (first,) = worker_of(server)
        psutil.Process(first).kill()
        until(lambda: worker_of(server) not in ([], [first]))
        assert total(address) == 3
        server.kill()
        until(lambda: not harness.processes())


async def test_a_setting_that_there_is_not_is_named() -> None:
    app = Windlass()
    with pytest.raises(Invalid, match="there is no such setting of a worker; there are queues"):
        async with app.worker("tasks:app", slot=2):
            pass
    with pytest.raises(Invalid, match="name the app"):
        async with app.worker(""):
            pass
