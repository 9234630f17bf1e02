"""Blueque's keys: a client written from its document alone, a bridge, and real workers."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.blueque_clients import BridgedQueue
from tests.support.freezing import freeze
from tests.support.http_servers import Process
from tests.support.patience import PATIENCE
from tests.support.worker_harness import ON_A_FILE, alive, until
from windlass.model.job import Reason


def test_a_client_reads_what_becomes_of_its_tasks(bridged: BridgedQueue) -> None:
    """S1 1, 2, 8, 9, 10, 11, 12, 14, 15, 17, 34 and 35."""
    client = bridged.client
    large = "grüße\n" + "x" * ((1 << 20) - 8)
    sent = [client.submit("first", colour="red"), client.submit("fail"), client.submit(large), client.submit("[1]")]
    worker = bridged.harness.start("-c", "1")
    bridge = bridged.bridge()
    first, failed, long, listed = [client.ended(id) for id in sent]
    assert (first["status"], first["result"], first["colour"], "error" in first) == ("complete", "first", "red", False)
    assert (failed["status"], failed["error"], "result" in failed) == ("failed", "it broke", False)
    assert long["result"] == large
    assert json.loads(listed["result"]) == {"n": 3}
    assert float(first["created"]) < float(first["updated"]) < float(listed["updated"])
    assert bridged.harness.notes("ran")[:2] == ["first", "fail"]
    assert client.ids("complete") == [sent[3], sent[2], sent[0]]
    assert client.ids("failed") == [sent[1]]
    assert sorted(client.all_ids()) == sorted(sent)
    assert client.ids("pending") == []
    assert client.started() == set()
    (listener,) = client.listeners()
    assert listener == first["node"] == f"{os.uname().nodename}_{worker.pid}"
    assert client.score() == 1
    assert bridge.stop() == 0
    assert (client.listeners(), client.score()) == (set(), 0)


@ON_A_FILE
def test_a_running_task_is_in_view_and_fails_when_its_process_is_killed(bridged: BridgedQueue) -> None:
    """S1 6, 7, 13 and 21: a worker with one slot has one task; the others stay where every listener finds them."""
    client = bridged.client
    bridged.harness.start("-c", "1")
    bridged.bridge()
    running, waiting = client.submit("wait"), client.submit("next")
    until(lambda: client.task(running)["status"] == "started" and bridged.harness.notes("ran"))
    task = client.task(running)
    assert client.started() == {f"{task['node']} {task['pid']} {running}"}
    assert client.redis.lrange(f"blueque_reserved_tasks_{client.queue}_{task['node']}", 0, -1) == [running]
    assert client.ids("pending") == [waiting]
    os.kill(int(task["pid"]), signal.SIGKILL)
    assert client.ended(running)["status"] == "failed"
    assert "SIGKILL" in client.task(running)["error"]
    assert client.started() == set()
    assert client.ended(waiting)["result"] == "next"
    assert bridged.harness.notes("ran") == ["wait", "next"]


def test_a_bridge_that_was_killed_goes_on_where_it_stopped(bridged: BridgedQueue) -> None:
    """S1 5, 6, 20 and 23: no task is lost and none runs twice."""
    client = bridged.client
    bridged.harness.start("-c", "2")
    bridge = bridged.bridge()
    running = client.submit("wait")
    until(lambda: client.task(running)["status"] == "started")
    bridge.destroy()
    gap = client.submit("gap")  # as if it had been killed between its two steps
    moved = client.redis.lmove(
        f"blueque_pending_tasks_{client.queue}",
        f"blueque_reserved_tasks_{client.queue}_{client.queue}",
        "RIGHT",
        "LEFT",
    )
    assert moved == gap
    bridged.go()
    bridged.bridge()
    assert client.ended(running)["result"] == "wait"
    assert client.ended(gap)["result"] == "gap"
    assert sorted(bridged.harness.notes("ran")) == ["gap", "wait"]
    assert client.ids("complete").count(running) == client.ids("complete").count(gap) == 1


@ON_A_FILE
def test_tasks_without_a_worker_wait_and_scheduled_ones_run_when_they_are_due(bridged: BridgedQueue) -> None:
    """S1 16, 17, 27 and 29: nothing else has to be started for them; a task that is sent again runs again."""
    client = bridged.client
    bridged.bridge()
    waiting, later = client.submit("now"), client.schedule("later", time.time() + 1.5)
    last = client.schedule("last", time.time() + 600)
    until(lambda: set(client.all_ids()) == {waiting, later, last})
    until(lambda: client.task(later)["status"] == "pending")
    assert float(client.task(later)["updated"]) >= float(client.task(later)["eta"])
    assert client.ids("pending") == [later, waiting]
    assert (client.score(), client.listeners()) == (0, set())
    bridged.harness.start()
    assert client.ended(waiting)["status"] == client.ended(later)["status"] == "complete"
    client.redis.delete(f"blueque_task_{later}")
    until(lambda: set(client.all_ids()) == {waiting, last})
    client.redis.hset(f"blueque_task_{waiting}", "status", "pending")
    client.redis.lpush(f"blueque_pending_tasks_{client.queue}", waiting)
    until(lambda: bridged.harness.notes("ran").count("now") == 2)
    assert client.ended(waiting)["status"] == "complete"
    assert sorted(client.all_ids()) == sorted([waiting, last])


@ON_A_FILE
def test_s1_17_the_list_of_all_tasks_names_those_that_another_listener_took(bridged: BridgedQueue) -> None:
    """Before the bridge saw them wait."""
    client = bridged.client
    bridged.bridge()
    taken = {status: client.submit_taken("elsewhere", status) for status in ("started", "complete", "failed")}
    until(lambda: set(client.all_ids()) == set(taken.values()))
    client.redis.lrem(f"blueque_complete_tasks_{client.queue}", 1, taken["complete"])
    for status in ("complete", "failed"):  # one from its list too, as the library does, and one as careless as can be
        client.redis.delete(f"blueque_task_{taken[status]}")
    until(lambda: client.all_ids() == [taken["started"]])
    last = client.submit("waits")
    until(lambda: client.all_ids() == [last, taken["started"]])


@ON_A_FILE
def test_what_cannot_be_bridged_is_one_clear_error(bridged: BridgedQueue) -> None:
    def said(*words: str) -> str:
        return bridged.harness.run("bridge", "blueque", *words).stderr

    assert "blueque_" not in said("--redis", "redis://127.0.0.1:1/0")
    assert "the store does not answer" in said("--redis", "redis://127.0.0.1:1/0")
    assert "single server" in said("--redis", "redis+cluster://127.0.0.1:1")
    assert "no name of a queue" in said("--redis", "redis://127.0.0.1:1", "--queue", "a b")


@ON_A_FILE
def test_s1_34_a_bridge_of_a_server_serves_the_same_keys(bridged: BridgedQueue, tmp_path: Path) -> None:
    client = bridged.client
    server = Process(tmp_path, "--no-worker", store=bridged.harness.store)
    server.start()
    try:
        bridged.harness.start("-c", "1")
        bridge = bridged.bridge("--server", server.address, WINDLASS_TOKEN=server.token)
        assert client.ended(client.submit("first"))["result"] == "first"
        running = client.submit("wait")
        until(lambda: client.task(running)["status"] == "started")
        server.kill()
        bridge.hear("waits: ")
        server.start()
        bridged.go()
        assert client.ended(running)["result"] == "wait"
        assert bridge.stop() == 0
        assert "HTTP Request" not in bridge.said
    finally:
        server.kill()


@ON_A_FILE
def test_a_task_outlives_its_worker_and_the_keys_name_the_one_that_adopted_it(bridged: BridgedQueue) -> None:
    """S1 20, 22 and 26."""
    client = bridged.client
    first = bridged.harness.start("-c", "1")
    bridged.bridge()
    running = client.submit("wait")
    until(lambda: client.task(running)["status"] == "started" and bridged.harness.notes("ran"))
    before = client.task(running)
    first.destroy()
    second = bridged.harness.start("-c", "1")
    until(lambda: client.task(running).get("reclaimed_node"))
    adopted = client.task(running)
    assert adopted["reclaimed_node"] == adopted["node"] == f"{os.uname().nodename}_{second.pid}" != before["node"]
    assert client.started() == {f"{adopted['node']} {before['pid']} {running}"}
    bridged.go()
    assert client.ended(running)["result"] == "wait"
    assert bridged.harness.notes("ran") == ["wait"]
    assert client.started() == set()


def test_s1_6_a_task_that_was_taken_and_has_not_started_is_reserved(bridged: BridgedQueue) -> None:
    client = bridged.client
    worker = bridged.harness.start("-c", "1", lease="60s")
    bridged.bridge()
    until(lambda: client.score() == 1)
    freeze(worker.pid, bridged.harness.store)
    id = client.submit("first")
    until(lambda: client.task(id)["status"] == "reserved")
    task = client.task(id)
    assert (task["node"], "pid" in task) == (client.queue, False), "the bridge holds it"
    assert client.redis.lrange(f"blueque_reserved_tasks_{client.queue}_{client.queue}", 0, -1) == [id]
    assert (client.ids("pending"), client.started()) == ([], set())
    worker.send(signal.SIGCONT)
    assert client.ended(id)["node"] == f"{os.uname().nodename}_{worker.pid}"
    assert client.redis.keys(f"blueque_reserved_tasks_{client.queue}_*") == []


def test_s1_14_and_15_the_score_of_a_queue_is_the_number_of_its_live_workers(bridged: BridgedQueue) -> None:
    client = bridged.client
    bridged.bridge()
    workers = [bridged.harness.start("-c", "1", lease="3s") for _ in range(2)]
    names = [f"{os.uname().nodename}_{worker.pid}" for worker in workers]
    until(lambda: client.listeners() == set(names))
    assert client.score() == 2
    assert workers[0].stop() == 0
    until(lambda: client.listeners() == {names[1]})
    assert client.score() == 1
    workers[1].destroy()
    until(lambda: client.listeners() == set())
    assert client.score() == 0


@ON_A_FILE
def test_s1_14_listeners_stay_as_long_as_one_of_two_bridges_serves_them(bridged: BridgedQueue) -> None:
    client = bridged.client
    worker = bridged.harness.start("-c", "1")
    nodes = [client.queue, f"{client.queue}-second"]
    bridges = [bridged.bridge(node=node) for node in nodes]
    until(lambda: all(client.redis.exists(f"blueque_bridge_{node}_listeners") for node in nodes))
    assert client.score() == 1
    assert bridges[1].stop() == 0
    until(lambda: client.score() == 1)
    assert client.listeners() == {f"{os.uname().nodename}_{worker.pid}"}
    assert bridges[0].stop() == 0
    assert (client.listeners(), client.score()) == (set(), 0)


@pytest.mark.parametrize(
    ("status", "field", "state"), [("complete", "result", "succeeded"), ("failed", "error", "failed")]
)
@pytest.mark.parametrize("away", [False, True], ids=["", "while the bridge is away"])
def test_s1_31_a_client_ends_a_started_task_and_its_process_is_stopped(
    bridged: BridgedQueue, status: str, field: str, state: str, away: bool
) -> None:
    client = bridged.client
    bridged.harness.start("-c", "1")
    bridge = bridged.bridge()
    id = client.submit("wait")
    until(lambda: client.task(id)["status"] == "started" and bridged.harness.notes("ran"))
    job = bridged.job()
    if away:
        bridged.kill(bridge)
    client.end_by_hand(id, status, field, "by hand")
    if away:
        bridged.bridge()
    until(lambda: not alive(int(client.task(id)["pid"])))
    after = client.submit("next")
    assert client.ended(after)["result"] == "next"
    until(lambda: not client.open_at_bridges())
    task = client.task(id)
    assert (task["status"], task[field]) == (status, "by hand")
    assert ("result" in task) != ("error" in task)
    assert (client.ids(status).count(id), client.started()) == (1, set())
    assert client.redis.lrange(f"blueque_reserved_tasks_{client.queue}_{task['node']}", 0, -1) == []
    record = job.refresh()
    assert (str(record.state), record.reason, record.attempt) == (state, Reason.BY_HAND, 1)
    if status == "complete":
        assert job.result(timeout=PATIENCE) == "by hand"
    else:
        assert record.error is not None
        assert record.error.message == "by hand"
    assert bridged.harness.notes("ran") == ["wait", "next"]


def test_s1_31_what_a_client_wrote_stands_though_the_job_has_ended_itself(bridged: BridgedQueue) -> None:
    client = bridged.client
    bridged.harness.start("-c", "1")
    bridge = bridged.bridge()
    id = client.submit("wait")
    until(lambda: client.task(id)["status"] == "started" and bridged.harness.notes("ran"))
    bridged.kill(bridge)
    job = bridged.job()
    bridged.go()
    assert job.result(timeout=PATIENCE) == "wait"
    client.end_by_hand(id, "failed", "error", "too late")
    bridged.bridge()
    until(lambda: not client.open_at_bridges())
    task = client.task(id)
    assert (task["status"], task["error"], "result" in task) == ("failed", "too late", False)
    assert (client.ids("failed"), client.ids("complete")) == ([id], [])


def test_s1_31_a_task_that_was_ended_by_hand_and_sent_again_is_a_new_job(bridged: BridgedQueue) -> None:
    client = bridged.client
    bridged.harness.start("-c", "1")
    bridged.bridge()
    id = client.submit("wait")
    until(lambda: client.task(id)["status"] == "started" and bridged.harness.notes("ran"))
    client.end_by_hand(id, "failed", "error", "try again")
    client.redis.hset(f"blueque_task_{id}", "status", "pending")
    client.redis.lpush(f"blueque_pending_tasks_{client.queue}", id)
    bridged.harness.noted("ran", 2)
    bridged.go()
    assert client.ended(id)["result"] == "wait"
    until(lambda: not client.open_at_bridges())
    assert (client.ids("complete"), len(list(bridged.harness.app.jobs()))) == ([id], 2)


@ON_A_FILE
def test_s1_31_a_task_that_was_ended_by_hand_before_its_job_was_made_does_not_run(bridged: BridgedQueue) -> None:
    client = bridged.client
    id = client.submit("ended")
    client.redis.lrem(f"blueque_pending_tasks_{client.queue}", 1, id)
    client.redis.hset(f"blueque_bridge_{client.queue}", id, f"{client.queue} ")  # a bridge was killed as it took it
    client.redis.hset(f"blueque_task_{id}", mapping={"status": "complete", "result": "by hand"})
    bridged.harness.start("-c", "1")
    bridged.bridge()
    assert client.ended(client.submit("next"))["result"] == "next"
    assert not client.open_at_bridges()
    assert client.task(id)["result"] == "by hand"
    assert bridged.harness.notes("ran") == ["next"]
