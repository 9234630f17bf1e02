"""Blueque's keys: a client written from its document alone, a bridge, and real workers."""

import json
import os
import signal
import sys
import time
import uuid
from typing import Any

import pytest
import redis

from tests.support.servers import Server
from tests.support.worker_harness import ON_A_FILE, Worker, WorkerHarness, until

APP = """
import os, time
from pathlib import Path
from windlass import Windlass, current

app = Windlass(tenant=os.environ["HARNESS_TENANT"])
notes = Path(__file__).parent / "notes"

@app.task(name="QUEUE", queue="QUEUE")
def run(parameters: str) -> object:
    with notes.open("a") as file:
        file.write(f"ran {parameters[:20]}\\n")
    if parameters == "fail":
        raise ValueError("it broke")
    if parameters == "wait":
        go = notes.with_name("go")
        while not go.exists():
            time.sleep(0.01)
    return {"n": len(parameters)} if parameters.startswith("[") else parameters
"""


class Client:
    """What a program of another language does: the commands of the document, word by word."""

    def __init__(self, server: Server, queue: str) -> None:
        self.redis: Any = redis.Redis(port=server.port, decode_responses=True)
        self.queue = queue

    def submit(self, parameters: str, **more: str) -> str:
        id, now = str(uuid.uuid4()), str(time.time())
        fields = {"status": "pending", "queue": self.queue, "parameters": parameters, "created": now, "updated": now}
        with self.redis.pipeline() as steps:
            steps.hset(f"blueque_task_{id}", mapping=fields | more)
            steps.zincrby("blueque_queues", 0, self.queue)
            steps.lpush(f"blueque_pending_tasks_{self.queue}", id)
            steps.execute()
        return id

    def schedule(self, parameters: str, eta: float) -> str:
        id = str(uuid.uuid4())
        fields = {"status": "scheduled", "queue": self.queue, "parameters": parameters, "eta": str(eta)}
        self.redis.hset(f"blueque_task_{id}", mapping=fields)
        self.redis.zincrby("blueque_queues", 0, self.queue)
        self.redis.zadd(f"blueque_scheduled_tasks_{self.queue}", {id: eta})
        return id

    def task(self, id: str) -> dict[str, str]:
        return dict(self.redis.hgetall(f"blueque_task_{id}"))

    def ids(self, kind: str) -> list[str]:
        return list(self.redis.lrange(f"blueque_{kind}_tasks_{self.queue}", 0, -1))

    def started(self) -> set[str]:
        return set(self.redis.smembers(f"blueque_started_tasks_{self.queue}"))

    def listeners(self) -> set[str]:
        return set(self.redis.smembers(f"blueque_listeners_{self.queue}"))

    def score(self) -> float | None:
        score: float | None = self.redis.zscore("blueque_queues", self.queue)
        return score

    def ended(self, id: str) -> dict[str, str]:
        until(lambda: self.task(id)["status"] in ("complete", "failed"))
        return self.task(id)


class Site:
    """A queue of the client's, an app whose task is called as the queue, and the bridges between them."""

    def __init__(self, harness: WorkerHarness, server: Server, queue: str) -> None:
        self.harness = harness
        self.client = Client(server, queue)
        (harness.folder / "tasks.py").write_text(APP.replace("QUEUE", queue))
        harness.app.close()
        self._command = ["bridge", "blueque", "--redis", server.url, "--queue", queue, "--tenant", harness.tenant]

    def bridge(self, *flags: str) -> Worker:
        program = [sys.executable, "-m", "windlass", *self._command, "--node", self.client.queue, *flags]
        bridge = Worker(program, self.harness.folder, self.harness.environ)
        self.harness.workers.append(bridge)
        bridge.hear("serves")
        return bridge

    def go(self) -> None:
        (self.harness.folder / "go").touch()


@pytest.fixture
def site(harness: WorkerHarness, redis_server: Server) -> Site:
    return Site(harness, redis_server, f"q{uuid.uuid4().hex[:8]}")


def test_a_client_reads_what_becomes_of_its_tasks(site: Site) -> None:
    """S1 1, 2, 8, 9, 10, 11, 12, 14, 15, 17, 34 and 35."""
    client = site.client
    large = "grüße\n" + "x" * ((1 << 20) - 8)
    sent = [client.submit("first", colour="red"), client.submit("fail"), client.submit(large), client.submit("[1]")]
    worker = site.harness.start("-c", "1")
    bridge = site.bridge()
    first, failed, long, listed = [client.ended(id) for id in sent]
    assert (first["status"], first["result"], first["colour"], "error" in first) == ("complete", "first", "red", False)
    assert (failed["status"], failed["error"], "result" in failed) == ("failed", "it broke", False)
    assert long["result"] == large
    assert json.loads(listed["result"]) == {"n": 3}
    assert float(first["created"]) < float(first["updated"]) < float(listed["updated"])
    assert site.harness.notes("ran")[:2] == ["first", "fail"]
    assert client.ids("complete") == [sent[3], sent[2], sent[0]]
    assert client.ids("failed") == [sent[1]]
    assert set(client.redis.lrange(f"blueque_tasks_{client.queue}", 0, -1)) == set(sent)
    assert client.ids("pending") == []
    assert client.started() == set()
    (listener,) = client.listeners()
    assert listener == first["node"] == f"{os.uname().nodename}_{worker.pid}"
    assert client.score() == 1
    assert bridge.stop() == 0
    assert (client.listeners(), client.score()) == (set(), 0)


@ON_A_FILE
def test_a_running_task_is_in_view_and_fails_when_its_process_is_killed(site: Site) -> None:
    """S1 6, 7, 13 and 21: a worker with one slot has one task; the others stay where every listener finds them."""
    client = site.client
    site.harness.start("-c", "1")
    site.bridge()
    running, waiting = client.submit("wait"), client.submit("next")
    until(lambda: client.task(running)["status"] == "started" and site.harness.notes("ran"))
    task = client.task(running)
    assert client.started() == {f"{task['node']} {task['pid']} {running}"}
    assert client.redis.lrange(f"blueque_reserved_tasks_{client.queue}_{task['node']}", 0, -1) == [running]
    assert client.ids("pending") == [waiting]
    os.kill(int(task["pid"]), signal.SIGKILL)
    assert client.ended(running)["status"] == "failed"
    assert "SIGKILL" in client.task(running)["error"]
    assert client.started() == set()
    assert client.ended(waiting)["result"] == "next"
    assert site.harness.notes("ran") == ["wait", "next"]


def test_a_bridge_that_was_killed_goes_on_where_it_stopped(site: Site) -> None:
    """S1 5, 6, 20 and 23: no task is lost and none runs twice."""
    client = site.client
    site.harness.start("-c", "2")
    bridge = site.bridge()
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
    site.go()
    site.bridge()
    assert client.ended(running)["result"] == "wait"
    assert client.ended(gap)["result"] == "gap"
    assert sorted(site.harness.notes("ran")) == ["gap", "wait"]
    assert client.ids("complete").count(running) == client.ids("complete").count(gap) == 1


@ON_A_FILE
def test_tasks_without_a_worker_wait_and_scheduled_ones_run_when_they_are_due(site: Site) -> None:
    """S1 16, 17, 27 and 29: nothing else has to be started for them; a task that is sent again runs again."""
    client = site.client
    site.bridge()
    waiting, later = client.submit("now"), client.schedule("later", time.time() + 1.5)
    until(lambda: client.task(later)["status"] == "pending")
    assert float(client.task(later)["updated"]) >= float(client.task(later)["eta"])
    assert client.ids("pending") == [later, waiting]
    assert (client.score(), client.listeners()) == (0, set())
    site.harness.start()
    assert client.ended(waiting)["status"] == client.ended(later)["status"] == "complete"
    client.redis.delete(f"blueque_task_{later}")
    until(lambda: client.redis.lrange(f"blueque_tasks_{client.queue}", 0, -1) == [waiting])
    client.redis.hset(f"blueque_task_{waiting}", "status", "pending")
    client.redis.lpush(f"blueque_pending_tasks_{client.queue}", waiting)
    until(lambda: site.harness.notes("ran").count("now") == 2)
    assert client.ended(waiting)["status"] == "complete"


@ON_A_FILE
def test_what_cannot_be_bridged_is_one_clear_error(site: Site) -> None:
    def said(*words: str) -> str:
        return site.harness.run("bridge", "blueque", *words).stderr

    assert "blueque_" not in said("--redis", "redis://127.0.0.1:1/0")
    assert "the store does not answer" in said("--redis", "redis://127.0.0.1:1/0")
    assert "single server" in said("--redis", "redis+cluster://127.0.0.1:1")
    assert "no name of a queue" in said("--redis", "redis://127.0.0.1:1", "--queue", "a b")


@ON_A_FILE
def test_a_task_outlives_its_worker_and_the_keys_name_the_one_that_adopted_it(site: Site) -> None:
    """S1 20, 22 and 26."""
    client = site.client
    first = site.harness.start("-c", "1")
    site.bridge()
    running = client.submit("wait")
    until(lambda: client.task(running)["status"] == "started" and site.harness.notes("ran"))
    before = client.task(running)
    first.destroy()
    second = site.harness.start("-c", "1")
    until(lambda: client.task(running).get("reclaimed_node"))
    adopted = client.task(running)
    assert adopted["reclaimed_node"] == adopted["node"] == f"{os.uname().nodename}_{second.pid}" != before["node"]
    assert client.started() == {f"{adopted['node']} {before['pid']} {running}"}
    site.go()
    assert client.ended(running)["result"] == "wait"
    assert site.harness.notes("ran") == ["wait"]
    assert client.started() == set()
