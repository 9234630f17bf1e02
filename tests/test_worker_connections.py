"""An app that opens connections while it is imported: the processes forked from it would share them."""

import socket

import pytest

from tests.workers import MakeWorkshop
from windlass.worker.connections import open_connections

APP = """
import os, socket, sqlite3
from windlass import Windlass
app = Windlass(tenant=os.environ["WORKSHOP_TENANT"])
@app.task
def add(a: int, b: int) -> int:
    return a + b
"""

BESIDE = "beside = socket.create_connection(('127.0.0.1', {port}))\n"
DATABASE = "beside = sqlite3.connect('other.db')\nbeside.execute('create table if not exists a (b)')\nbeside.commit()\n"


@pytest.mark.parametrize("kind", ["socket", "database"])
def test_the_doctor_and_the_worker_warn_of_connections_that_are_shared(make_workshop: MakeWorkshop, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        workshop = make_workshop(APP + (DATABASE if kind == "database" else BESIDE.format(port=port)))
        where = str(workshop.folder / "other.db") if kind == "database" else f"127.0.0.1:{port}"
        assert f"shares its connections to {where}" in workshop.burst().said
        said = workshop.run("doctor", "chores:app")
        assert said.returncode == 0, said.stderr
        assert f"shares its connections to {where}" in said.stdout.replace("\n", "")


def test_an_app_that_only_asks_its_queue_is_well(make_workshop: MakeWorkshop) -> None:
    workshop = make_workshop(APP + "add.enqueue(1, 1)\npair = socket.socketpair()\n")
    said = workshop.run("doctor", "chores:app")
    assert "chores:app has 1 task" in said.stdout
    assert "shares" not in said.stdout + workshop.burst().said


def test_the_doctor_says_that_an_app_cannot_be_imported(make_workshop: MakeWorkshop) -> None:
    workshop = make_workshop("import nothing_like_it")
    workshop.run("enqueue", "add")
    said = workshop.run("doctor", "chores:app")
    assert said.returncode == 1
    assert "chores:app cannot be imported: ModuleNotFoundError" in said.stdout


@pytest.mark.parametrize("scheme", ["redis+sentinel", "redis+cluster", "redis"])
def test_a_queue_of_several_servers_is_no_connection_of_the_app(scheme: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert open_connections(f"{scheme}://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/jobs") == []
