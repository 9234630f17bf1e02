"""The outbox of a database file, relayed by a worker or a server, while everyone is killed."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.support.databases import make_database, numbers
from tests.support.http_servers import process
from tests.support.servers import Server
from tests.support.worker_harness import ON_A_FILE, MakeHarness, WorkerHarness, until
from windlass import Windlass

SOURCE = """
import os
from windlass import Windlass

app = Windlass(tenant=os.environ["HARNESS_TENANT"])


@app.task
def pack(order: int) -> None:
    note = os.open("notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(note, b"pack %d\\n" % order)
    os.close(note)
"""

WRITER = """
import itertools, sqlite3, sys
from tasks import pack

connection = sqlite3.connect("shop.db", timeout=60)
for number in itertools.count(int(sys.argv[1])):
    connection.execute("INSERT INTO orders VALUES (?)", [number])
    pack.enqueue_in(connection, number)
    if number % 3:
        connection.commit()
    else:
        connection.rollback()
    print(number, flush=True)
"""


def write_and_die(harness: WorkerHarness, start: int, number: int) -> None:
    """A program that takes orders, each with its job, until it is killed in the middle of one."""
    command = [sys.executable, "-c", WRITER, str(start)]
    writer = subprocess.Popen(command, cwd=harness.folder, env=harness.environ, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    for _ in range(number):
        assert writer.stdout.readline()
    writer.kill()
    writer.wait()
    writer.stdout.close()


def waiting(shop: Path) -> int:
    with closing(sqlite3.connect(shop)) as connection:
        (found,) = connection.execute("SELECT count(*) FROM windlass_outbox").fetchone()
    return int(found)


def checked(make_harness: MakeHarness, store: str) -> None:
    harness = make_harness(SOURCE, store)
    shop = make_database(harness.folder / "shop.db")
    for life in range(3):
        worker = harness.start("--outbox", "shop.db", lease="1s")
        write_and_die(harness, life * 1000, 40)
        worker.send(signal.SIGKILL)
        worker.ended()
        write_and_die(harness, life * 1000 + 500, 10)  # no relay is there
        assert waiting(shop) > 0
    harness.start(lease="1s", WINDLASS_OUTBOX="shop.db")
    until(lambda: waiting(shop) == 0)
    orders = numbers(shop)
    assert len(orders) >= 3 * 33
    assert all(number % 3 for number in orders)
    assert harness.app.jobs().count() == len(orders), "one job for each order that was committed, and no other"
    until(lambda: harness.app.jobs(state="succeeded").count() == len(orders))
    assert {int(note) for note in harness.notes("pack")} == set(orders)


def test_each_committed_order_has_its_job_whoever_is_killed_on_a_file(make_harness: MakeHarness) -> None:
    checked(make_harness, "")


def test_each_committed_order_has_its_job_whoever_is_killed_on_redis(
    make_harness: MakeHarness, redis_server: Server
) -> None:
    checked(make_harness, redis_server.url)


RELAYS = """
import sqlite3


@app.every("1s")
def relay() -> int:
    with sqlite3.connect("shop.db") as connection:
        return app.relay(connection)
"""


def test_a_schedule_can_relay_any_database(make_harness: MakeHarness) -> None:
    harness = make_harness(SOURCE + RELAYS)
    shop = make_database(harness.folder / "shop.db")
    with closing(sqlite3.connect(shop)) as connection:
        job = harness.tasks.pack.enqueue_in(connection, 7)
        connection.commit()
    harness.start()
    until(lambda: waiting(shop) == 0)
    assert harness.ended(job).state == "succeeded"


def test_a_server_relays_the_jobs_of_all_tenants(tmp_path: Path) -> None:
    shop = make_database(tmp_path / "shop.db")
    with process(tmp_path, "--no-worker", "--outbox", str(shop)) as server:
        apps = [Windlass(server=server.address, token=server.token, tenant=tenant) for tenant in ("a", "b")]
        with closing(sqlite3.connect(shop)) as connection:
            jobs = [app.task(name="pack")(lambda: None).enqueue_in(connection) for app in apps]
            connection.commit()
        until(lambda: waiting(shop) == 0)
        assert [[job.id for job in app.jobs()] for app in apps] == [[job.id] for job in jobs]
        for app in apps:
            app.close()


@ON_A_FILE
def test_a_worker_relays_only_the_jobs_of_its_tenant(harness: WorkerHarness) -> None:
    shop = make_database(harness.folder / "shop.db")
    other = Windlass(harness.store, tenant="other").task(name="add")(lambda: None)
    with closing(sqlite3.connect(shop)) as connection:
        other.enqueue_in(connection)
        job = harness.tasks.add.enqueue_in(connection, 1, 2)
        connection.commit()
    worker = harness.start("--outbox", "shop.db")
    until(lambda: waiting(shop) == 1)
    assert harness.ended(job).state == "succeeded"
    assert worker.stop() == 0
