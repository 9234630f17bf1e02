import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.servers import KINDS, Kind, NewPrefix, Server, StartServer, ask


def test_every_kind_answers(server: Server) -> None:
    assert server.ask("PING") == "PONG"


def test_every_kind_refuses_writes_rather_than_evict(server: Server) -> None:
    assert "maxmemory_policy:noeviction" in server.ask("INFO", "memory")


def test_the_cluster_serves_every_slot(cluster_server: Server) -> None:
    assert "cluster_slots_ok:16384" in cluster_server.ask("CLUSTER", "INFO")
    assert cluster_server.url.startswith("redis+cluster://")


def test_prefixes_keep_tests_apart(server: Server, new_prefix: NewPrefix) -> None:
    mine, yours = new_prefix(), new_prefix()
    server.ask("SET", f"{mine}:key", "1")
    assert server.ask("GET", f"{yours}:key") == ""


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_a_restart_keeps_port_and_data(kind: Kind, start_server: StartServer) -> None:
    server = start_server(kind, fsync="always")
    url = server.url
    server.ask("SET", "key", "kept")
    server.restart()
    assert server.url == url
    assert server.ask("GET", "key") == "kept"


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_server_is_gone_and_comes_back_with_its_data(kind: Kind, start_server: StartServer) -> None:
    server = start_server(kind, fsync="always")
    server.ask("SET", "key", "kept")
    server.kill()
    assert not server.running
    with pytest.raises(ConnectionRefusedError):
        server.ask("PING")
    server.restart()
    assert server.ask("GET", "key") == "kept"


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys; from tests.support.servers import Server; "
        "server = Server('redis', pathlib.Path(sys.argv[1])); server.start(); "
        "print(server.port, flush=True); os.kill(os.getpid(), 9)"
    )
    starter = subprocess.run([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, check=False)
    assert starter.returncode == -signal.SIGKILL
    assert refuses(int(starter.stdout))


def refuses(port: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            ask(port, ["PING"])
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            continue  # it died under our question
    return False
