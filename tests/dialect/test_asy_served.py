"""The protocol of `asy` from outside: a server, a worker that runs a real program, and clients."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.asy_client import SHELL, asy
from tests.support.http_servers import Process, process
from tests.support.patience import PATIENCE
from tests.support.worker_harness import WorkerHarness, until
from windlass.model.job import Reason, State
from windlass.model.match import Match
from windlass.model.operations import Count, List

SMALL = Path(__file__).parents[2] / "examples" / "asymptote" / "small_draw.py"
PROGRAM = f"{sys.executable} {SMALL} {{out}} {{main}}"
TIERS = ("--tier", "fast:3s:100%", "--tier", "medium:10s:100%", "--tier", "slow:30s:100%")


@pytest.fixture
def site(server: Process) -> str:
    return server.address


@pytest.fixture
def server(harness: WorkerHarness, tmp_path: Path) -> Iterator[Process]:
    """A server for all, over the store of the harness, whose worker draws."""
    assert harness.run("queues", "set", "asy", *TIERS, "--tenant", harness.tenant).returncode == 0
    settings = {"WINDLASS_ASY_PUBLIC": harness.tenant, "WINDLASS_ASY_OWNER_TIMEOUT": "2s"}
    (tmp_path / "server").mkdir()
    with process(tmp_path / "server", "--no-worker", store=harness.store, **settings) as running:
        harness.start(
            "--slots",
            "2",
            target="windlass.asy_app",
            WINDLASS_TENANT=harness.tenant,
            WINDLASS_ASY_PROGRAM=PROGRAM,
            WINDLASS_ASY_SHELL=f"{sys.executable} {SMALL}",
        )
        yield running


async def test_pictures_are_drawn_errors_are_reported_and_nothing_stays(harness: WorkerHarness, site: str) -> None:
    """S0 1, 33, 35 to 37, 39."""
    async with asy(site, token=None) as client:
        await client.add("base.draw", b"circle 50 50 30 red\n")
        await client.draw(b"import base.draw\nwrite said\nwarn warned\nline 0 0 9 9", duration=3, stderrRedir=False)
        heard = await client.rest()
        assert client.output("stdout") == b"said\n"
        assert client.output("stderr") == b"warned\n"
        assert heard[-1] == ("complete", {}, None)
        (result,) = [frame for frame in heard if frame.verb == "result"]
        assert result.data is not None
        assert result.data.startswith(b"<svg")
        assert b"red" in result.data
    for text, told in ((b"write only", "no image output"), (b"nonsense", "execution failed: exit status 1")):
        async with asy(site, token=None) as client:
            await client.draw(text)
            assert (await client.rest())[-1].value == {"error": told}
    async with asy(site, token=None) as client:
        await client.draw(b"warn merged", stderrRedir=True)
        await client.rest()
        assert client.output("stdout") == b"merged\n"
    await flood(site)
    await shell_session(harness, site)
    async with asy(site, token=None) as client:
        await client.draw(b"write begun\nsleep 60")
        while b"begun" not in client.output("stdout"):
            await client.until("output")
        (program,) = programs(harness)
    assert psutil.wait_procs([program], timeout=PATIENCE)[1] == []
    ask = Count(tenant=harness.tenant, match=Match(queue="asy"))
    until(lambda: harness.app.ask(ask).count == 0)


async def flood(site: str) -> None:
    """S0 34."""
    most = 512 * 1024
    async with asy(site, token=None) as client:
        await client.draw(b"flood %d\ncircle 1 1 1" % most)
        assert (await client.rest())[-1] == ("complete", {}, None)
        assert len(client.output("stdout")) == most
    async with asy(site, token=None) as client:
        await client.draw(b"flood %d\nsleep 60" % (most + 1))
        error = (await client.rest())[-1].value["error"]
        assert "output limit" in error
        assert str(most) in error
        assert len(client.output("stdout")) == most


async def shell_session(harness: WorkerHarness, site: str) -> None:
    """S0 37."""
    async with asy(site, SHELL, path="/asy/interactive", token=None) as client:
        await client.say("start", {})
        for number in (1, 2, 3):
            await client.say("input", {}, b"circle 1 1 1\n")
            while f"> {number} shapes".encode() not in client.output("stdout"):
                await client.until("output")
        await client.say("input", {}, b"quit\n")
        assert (await client.rest())[-1] == ("complete", {}, None)


async def test_a_task_that_takes_longer_than_its_duration_is_stopped(harness: WorkerHarness, site: str) -> None:
    """S0 1, 39."""
    async with asy(site, token=None) as client:
        await client.draw(b"sleep 60", duration=3)
        error = (await client.rest())[-1].value["error"]
        assert "time limit" in error
        assert "3 s" in error
    until(lambda: programs(harness) == [])


def programs(harness: WorkerHarness) -> list[psutil.Process]:
    """The drawing programs that run."""
    found = []
    for pid in harness.processes():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            one = psutil.Process(pid)
            found += [one] if str(SMALL) in one.cmdline() else []
    return found


async def test_a_task_whose_server_has_died_is_stopped(harness: WorkerHarness, server: Process) -> None:
    """S0 22."""
    async with asy(server.address, token=None) as client:
        await client.draw(b"write begun\nsleep 60")
        while b"begun" not in client.output("stdout"):
            await client.until("output")
        server.kill()
        assert (await client.rest())[-1].verb == "output"
    until(lambda: programs(harness) == [])
    ask = List(tenant=harness.tenant)
    until(lambda: [job.state for job in harness.app.ask(ask).jobs] == [State.CANCELLED])
    assert harness.app.ask(ask).jobs[0].reason is Reason.ABANDONED
