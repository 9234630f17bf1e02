"""An app that opens connections while it is imported: the processes forked from it would share them."""

import socket

import pytest

from tests.support.worker_harness import MakeHarness
from windlass.worker.contexts.zygote import open_connections

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


@pytest.mark.parametrize("scheme", ["redis+sentinel", "redis+cluster", "redis"])
def test_a_queue_of_several_servers_is_no_connection_of_the_app(scheme: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert open_connections(f"{scheme}://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/jobs") == []
