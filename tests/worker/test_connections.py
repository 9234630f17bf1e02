"""An app that opens connections while it is imported: the processes forked from it would share them."""

import socket

import pytest

from tests.support.servers import StartServer
from tests.support.worker_harness import MakeHarness

APP = """
import os, socket, sqlite3
from windlass import Windlass
app = Windlass(tenant=os.environ["HARNESS_TENANT"])
@app.task
def add(a: int, b: int) -> int:
    return a + b
"""

BESIDE = "beside = socket.create_connection(('127.0.0.1', {port}))\n"
DATABASE = "beside = sqlite3.connect('other.db')\nbeside.execute('create table if not exists a (b)')\nbeside.commit()\n"


@pytest.mark.parametrize("kind", ["socket", "database"])
def test_the_doctor_and_the_worker_warn_of_connections_that_are_shared(make_harness: MakeHarness, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        harness = make_harness(APP + (DATABASE if kind == "database" else BESIDE.format(port=port)))
        where = str(harness.folder / "other.db") if kind == "database" else f"127.0.0.1:{port}"
        assert f"shares its connections to {where}" in harness.burst().said
        said = harness.run("doctor", "tasks:app")
        assert said.returncode == 0, said.stderr
        assert f"shares its connections to {where}" in said.stdout.replace("\n", "")


def test_an_app_that_only_asks_its_queue_is_well(make_harness: MakeHarness) -> None:
    harness = make_harness(APP + "add.enqueue(1, 1)\npair = socket.socketpair()\n")
    said = harness.run("doctor", "tasks:app")
    assert "tasks:app has 1 task" in said.stdout
    assert "shares" not in said.stdout + harness.burst().said


def test_the_doctor_says_that_an_app_cannot_be_imported(make_harness: MakeHarness) -> None:
    harness = make_harness("import nothing_like_it")
    harness.run("enqueue", "add")
    said = harness.run("doctor", "tasks:app")
    assert said.returncode == 1
    assert "tasks:app cannot be imported: ModuleNotFoundError" in said.stdout


def test_the_apps_own_connection_to_the_server_of_its_queue_is_one_too(
    make_harness: MakeHarness, start_server: StartServer
) -> None:
    server = start_server("redis")
    harness = make_harness(APP + "add.enqueue(1, 1)\n" + BESIDE.format(port=server.port), store=server.url)
    assert f"shares its connections to 127.0.0.1:{server.port}" in harness.burst().said
