"""A server, a worker and jobs that queue jobs, with Redis and nothing else."""

from pathlib import Path

import pytest

from tests.support.http_servers import process
from tests.support.patience import PATIENCE
from tests.support.servers import Server
from tests.support.worker_harness import MakeHarness
from windlass.job_handle import Job

APP = """
import os
from windlass import Windlass
app = Windlass(tenant=os.environ["HARNESS_TENANT"], token=os.environ["HARNESS_TOKEN"])

@app.task
def add(a: int, b: int) -> int:
    return a + b

@app.task
async def order(a: int, b: int) -> str:
    return (await add.aenqueue(a, b)).id
"""


def test_jobs_queue_jobs_over_a_server_that_has_only_redis(
    make_harness: MakeHarness, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2 31 and 33."""
    (tmp_path / "server").mkdir()
    with process(tmp_path / "server", "--no-worker", store=redis_server.url) as running:
        monkeypatch.setenv("HARNESS_TOKEN", running.token)
        shop = make_harness(APP, store=running.address)
        shop.start("-c", "2", "--contexts", "1")
        made = shop.tasks.order.enqueue(2, 3).result(timeout=PATIENCE)
        assert Job(made, shop.app, None).result(timeout=PATIENCE) == 5
        assert not [file for file in tmp_path.rglob("*.db") if "journal" not in file.parts], "the store is Redis alone"
