"""The example projects, run as a reader would run them."""

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.worker_harness import MakeHarness, WorkerHarness, until

EXAMPLES = Path(__file__).parents[2] / "examples"


def rows(database: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


def run(harness: WorkerHarness, *words: str) -> str:
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=harness.folder, env=harness.environ, check=True, capture_output=True, text=True, timeout=PATIENCE
    ).stdout


@pytest.fixture
def shop(make_harness: MakeHarness) -> WorkerHarness:
    harness = make_harness("from windlass import Windlass\napp = Windlass()")
    harness.tenant = "default"
    shutil.copytree(EXAMPLES / "django_shop", harness.folder, dirs_exist_ok=True)
    run(harness, "manage.py", "migrate")
    return harness


def test_a_django_shop_queues_a_receipt_with_each_order(shop: WorkerHarness) -> None:
    port, database = free_port(), shop.folder / "shop.db"
    command = [sys.executable, "manage.py", "runserver", "--noreload", str(port)]
    site = subprocess.Popen(command, cwd=shop.folder, env=shop.environ, stderr=subprocess.DEVNULL)

    def order(customer: str, cents: int) -> httpx2.Response | None:
        try:
            form = {"customer": customer, "cents": str(cents)}
            return httpx2.post(f"http://127.0.0.1:{port}/order", data=form, trust_env=False, timeout=PATIENCE)
        except httpx2.TransportError:
            return None

    try:
        answer = until(lambda: order("ada@example.org", 1250))
        assert answer is not None
        job = shop.app.job(answer.json()["job"])
        refused = order("bob@example.org", 200_000)
        assert refused is not None
        assert refused.status_code == 400
        assert len(rows(database, "SELECT id FROM windlass_outbox")) == 1, "the refused order left no job"
        shop.start("--outbox", "shop.db", target="worker:app")
        until(lambda: not rows(database, "SELECT id FROM windlass_outbox"))
        assert shop.ended(job).state == "succeeded"
        assert rows(database, "SELECT customer, receipt FROM orders_order") == [
            ("ada@example.org", "ada@example.org has paid 12.50 €")
        ]
        shop.run("schedules", "run", "report")
        until(lambda: rows(database, "SELECT cents FROM orders_report") == [(0,)])
    finally:
        site.kill()
        site.wait()


def test_the_nightly_copy_is_made_and_old_ones_go(make_harness: MakeHarness) -> None:
    harness = make_harness((EXAMPLES / "nightly.py").read_text())
    harness.tenant = "default"
    with closing(sqlite3.connect(harness.folder / "shop.db")) as connection:
        connection.executescript("CREATE TABLE orders (number); INSERT INTO orders VALUES (7)")
    copies = harness.folder / "copies"
    copies.mkdir()
    for day in range(1, 21):
        (copies / f"2025-01-{day:02}.db").touch()
    harness.start()
    card = json.loads(harness.run("schedules", "show", "backup", "--json").stdout)
    assert (card["cron"], card["tz"]) == ("30 3 * * *", "Europe/Rome")
    harness.run("schedules", "run", "backup")
    until(lambda: harness.app.jobs(task="backup", state="succeeded").count() == 1)
    today = copies / f"{datetime.now(UTC):%Y-%m-%d}.db"
    assert rows(today, "SELECT number FROM orders") == [(7,)]
    assert len(list(copies.iterdir())) == 14
