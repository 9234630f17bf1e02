"""Functions of a real server that try to get at it: its secrets, its store, its journal, its processes."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.functions.test_faults import DAEMON
from tests.support.function_harness import let_others_in
from tests.support.http_servers import process
from tests.support.servers import StartServer
from tests.support.worker_harness import until
from tests.system.test_s3_outside import asked
from windlass.worker.functions.process import MONITOR

pytestmark = pytest.mark.timeout(240)

ATTEMPTS = """
import os, socket
from pathlib import Path

def tried(what):
    try:
        return f"got {what()!r:.60}"
    except OSError as fault:
        return type(fault).__name__

def run(payload):
    folder, store, server, port = payload.split('|')
    found = [tried(lambda: os.listdir(folder))]
    found += [tried(lambda: os.listdir(f'{folder}/data')), tried(lambda: os.listdir(f'{folder}/data/journal'))]
    found += [tried(lambda: open(f'{folder}/{name}', 'rb').read(9)) for name in ('jobs.db', 'log', 'data/token')]
    found += [tried(lambda: open(f'/proc/{server}/{name}', 'rb').read(9)) for name in ('environ', 'mem', 'maps')]
    found += [tried(lambda: os.kill(int(server), 0))]
    found += [tried(lambda: socket.create_connection(('127.0.0.1', int(one)), 2)) for one in (store, port)]
    return found
"""


@pytest.mark.parametrize(
    ("kind", "sandbox"),
    [
        ("sqlite", "limits"),
        ("sqlite", "confined"),
        ("sqlite", "isolated"),
        ("redis", "confined"),
        pytest.param("redis", "limits", marks=pytest.mark.long),
        pytest.param("redis", "isolated", marks=pytest.mark.long),
    ],
)
def test_x5_a_function_gets_at_nothing_of_its_server_and_the_level_in_force_is_shown(
    kind: str, sandbox: str, tmp_path: Path, start_server: StartServer
) -> None:
    """Under `limits` alone files that everybody may read can be read, and connections made: else this test is blind."""
    server = start_server("redis") if kind == "redis" else None
    flags = ["--allow-upload", "--sandbox", sandbox]
    with process(tmp_path, *flags, store=server.url if server else None) as serving, asked(serving) as site:
        let_others_in(tmp_path)
        for one in tmp_path.rglob("*"):
            one.chmod(0o777)  # so that nothing but the sandbox is in its way
        assert serving.child is not None
        site.upload("attempt", body=ATTEMPTS)
        payload = f"{tmp_path}|{server.port if server else serving.port}|{serving.child.pid}|{serving.port}"
        ids = site.ask("POST", "/tasks/attempt/jobs", content=payload)["ids"]
        (job,) = site.all_ended(ids)
        found = site.ask("GET", f"/jobs/{ids[0]}/result")["result"]
        got = [one for one in found if one.startswith("got")]
        assert len(found) == 12
        assert len(got) >= 5 if sandbox == "limits" else not got, found
        assert job["sandbox"] == sandbox
        assert f"runs python under {sandbox}: limits" in (tmp_path / "log").read_text()


def keepers(server: int) -> list[int]:
    found: list[int] = []
    for one in psutil.Process(server).children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            found += [one.pid] if MONITOR in one.cmdline() else []
    return found


def test_what_a_function_has_started_ends_also_if_its_monitor_is_killed(tmp_path: Path) -> None:
    holds = f"import time\ndef run(p):\n    exec({DAEMON!r})\n    time.sleep(120)\n"
    with process(tmp_path, "--allow-upload") as serving, asked(serving) as site:
        assert serving.child is not None
        site.upload("holds", body=holds, batch=1)
        (id,) = site.feed("holds", 1)
        said = until(lambda: site.output(id))
        daemon = psutil.Process(int(said))
        (monitor,) = keepers(serving.child.pid)
        os.kill(monitor, signal.SIGKILL)
        until(lambda: not daemon.is_running())
        until(lambda: site.ask("GET", f"/jobs/{id}")["crashes"] == 1)
