"""The bridge with the library that clients of Blueque use, as it comes from PyPI."""

import time
from collections.abc import Iterator
from typing import Any

import blueque
import pytest
from blueque.task import Task

from tests.support.blueque_clients import BridgedQueue
from tests.support.servers import Server
from tests.support.worker_harness import alive, until
from windlass.model.job import Reason, State


@pytest.fixture
def client(redis_server: Server) -> Iterator[Any]:
    client = blueque.Client(redis_server.url)
    yield client
    client._redis.close()


def in_state(client: Any, id: str, *statuses: str) -> Task:
    return until(lambda: task if (task := client.get_task(id)).status in statuses else None)


def test_s1_11_the_library_enqueues_schedules_reads_and_deletes(bridged: BridgedQueue, client: Any) -> None:
    """S1 1, 8, 9, 10, 17, 27, 28, 29 and 30."""
    queue = client.get_queue(bridged.client.queue)
    bridged.bridge()
    sent = queue.enqueue("grüße\n")
    task = client.get_task(sent)
    assert (task.status, task.queue, task.parameters) == ("pending", bridged.client.queue, "grüße\n")
    assert task.created == task.updated
    assert (task.result, task.error, task.node, task.pid) == (None, None, None, None)
    past, failing = queue.schedule("past", time.time() - 60), queue.enqueue("fail")
    assert client.get_task(past).status == "pending"
    due = time.time() + 1.5
    later = queue.schedule("later", due)
    assert client.get_task(later).status == "scheduled"
    with pytest.raises(ValueError, match="Cannot delete task with status pending"):
        queue.delete_task(client.get_task(sent))
    bridged.harness.start("-c", "2")
    for id, parameters in ((sent, "grüße\n"), (past, "past"), (later, "later")):
        task = in_state(client, id, "complete", "failed")
        assert (task.status, task.result, task.error) == ("complete", parameters, None)
        assert isinstance(task.pid, int)
        assert isinstance(task.updated, float)
        assert task.updated > task.created
    assert task.updated > due
    failed = in_state(client, failing, "complete", "failed")
    assert (failed.status, failed.result, failed.error) == ("failed", None, "it broke")
    with pytest.raises(ValueError, match="is not in queue"):
        client.get_queue("another").delete_task(client.get_task(sent))
    for id in (sent, failing):
        queue.delete_task(client.get_task(id))
        gone = client.get_task(id)
        assert (gone.status, gone.queue, gone.parameters, gone.result, gone.pid) == (None,) * 5
    names = bridged.client.ids("complete") + bridged.client.ids("failed")
    assert sorted(names) == sorted([past, later])
    until(lambda: set(bridged.client.redis.lrange(f"blueque_tasks_{bridged.client.queue}", 0, -1)) == {past, later})
    unknown = client.get_task("unknown")
    assert (unknown.status, unknown.queue, unknown.result, unknown.error, unknown.pid, unknown.created) == (None,) * 6
    assert sorted(bridged.harness.notes("ran")) == sorted(["grüße", "past", "later", "fail"])


@pytest.mark.parametrize("how", ["complete", "fail"])
def test_s1_31_the_librarys_processor_ends_a_started_task(bridged: BridgedQueue, client: Any, how: str) -> None:
    queue = client.get_queue(bridged.client.queue)
    bridged.harness.start("-c", "1")
    bridged.bridge()
    id = queue.enqueue("wait")
    task = in_state(client, id, "started")
    bridged.harness.noted("ran")
    getattr(client.get_processor(task), how)("by hand")
    until(lambda: not alive(task.pid))
    until(lambda: not bridged.client.open_at_bridges())
    ended = client.get_task(id)
    record = bridged.job().refresh()
    if how == "complete":
        assert (ended.status, ended.result, ended.error) == ("complete", "by hand", None)
        assert (bridged.client.ids("complete"), record.state) == ([id], State.SUCCEEDED)
    else:
        assert (ended.status, ended.result, ended.error) == ("failed", None, "by hand")
        assert (bridged.client.ids("failed"), record.state) == ([id], State.FAILED)
    assert (record.reason, record.attempt, bridged.harness.notes("ran")) == (Reason.BY_HAND, 1, ["wait"])
    assert bridged.client.started() == set()
