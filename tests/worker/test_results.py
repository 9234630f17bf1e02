"""What is kept of what tasks return."""

import time

from msgspec import UNSET, Raw

from tests.support.patience import PATIENCE
from tests.support.worker_harness import WorkerHarness
from windlass.model.operations import GetResult


def test_a_task_that_returns_none_leaves_nothing_to_keep(harness: WorkerHarness) -> None:
    tasks, app = harness.tasks, harness.app
    harness.start()
    silent = [task.enqueue(time.time_ns()) for task in (tasks.stamp, tasks.co_stamp)]
    telling = tasks.add.enqueue(1, 2)
    assert [job.result(PATIENCE) for job in (*silent, telling)] == [None, None, 3]
    kept = [app.link.ask(GetResult(tenant=app.tenant, id=job.id)).result for job in (*silent, telling)]
    assert kept == [UNSET, UNSET, Raw(b"\x03")]
