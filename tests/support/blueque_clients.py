"""Clients of Blueque, written from its document alone, on real servers with a bridge and workers."""

import sys
import time
import uuid
from typing import Any

import pytest
import redis

from tests.support.servers import Server
from tests.support.worker_harness import Worker, WorkerHarness, until
from windlass.job_handle import Job

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

    def submit_taken(self, node: str, status: str) -> str:
        """A task that another listener has taken, and perhaps run, in the moment in which it was sent."""
        id, now = str(uuid.uuid4()), str(time.time())
        fields = {"status": status, "queue": self.queue, "parameters": "x", "created": now, "updated": now}
        with self.redis.pipeline() as steps:
            steps.hset(f"blueque_task_{id}", mapping=fields)
            steps.zincrby("blueque_queues", 0, self.queue)
            if status == "started":
                steps.lpush(f"blueque_reserved_tasks_{self.queue}_{node}", id)
                steps.sadd(f"blueque_started_tasks_{self.queue}", f"{node} 7 {id}")
            else:
                steps.lpush(f"blueque_{status}_tasks_{self.queue}", id)
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

    def all_ids(self) -> list[str]:
        return list(self.redis.lrange(f"blueque_tasks_{self.queue}", 0, -1))

    def started(self) -> set[str]:
        return set(self.redis.smembers(f"blueque_started_tasks_{self.queue}"))

    def listeners(self) -> set[str]:
        return set(self.redis.smembers(f"blueque_listeners_{self.queue}"))

    def score(self) -> float | None:
        score: float | None = self.redis.zscore("blueque_queues", self.queue)
        return score

    def end_by_hand(self, id: str, status: str, field: str, text: str) -> None:
        """What a client writes that ends a started task in the place of its process."""
        task, now = self.task(id), str(time.time())
        with self.redis.pipeline() as steps:
            steps.lrem(f"blueque_reserved_tasks_{self.queue}_{task['node']}", 1, id)
            steps.srem(f"blueque_started_tasks_{self.queue}", f"{task['node']} {task.get('pid')} {id}")
            steps.hset(f"blueque_task_{id}", mapping={"status": status, field: text, "updated": now})
            steps.lpush(f"blueque_{status}_tasks_{self.queue}", id)
            steps.execute()

    def open_at_bridges(self) -> dict[str, str]:
        """The tasks that a bridge has taken and not yet reported, with their jobs."""
        return dict(self.redis.hgetall(f"blueque_bridge_{self.queue}"))

    def ended(self, id: str) -> dict[str, str]:
        until(lambda: self.task(id)["status"] in ("complete", "failed"))
        return self.task(id)


class BridgedQueue:
    """A queue of the client's, an app whose task is called as the queue, and the bridges between them."""

    def __init__(self, harness: WorkerHarness, server: Server, queue: str) -> None:
        self.harness = harness
        self.client = Client(server, queue)
        (harness.folder / "tasks.py").write_text(APP.replace("QUEUE", queue))
        harness.app.close()
        self._command = ["bridge", "blueque", "--redis", server.url, "--queue", queue, "--tenant", harness.tenant]

    def bridge(self, *flags: str, node: str = "", **variables: str) -> Worker:
        program = [sys.executable, "-m", "windlass", *self._command, "--node", node or self.client.queue, *flags]
        bridge = Worker(program, self.harness.folder, self.harness.environ | variables)
        self.harness.workers.append(bridge)
        bridge.hear("serves")
        return bridge

    def kill(self, bridge: Worker) -> None:
        """Kill a bridge; the next one gets its name after a second, not after fifteen."""
        bridge.destroy()
        assert self.client.redis.expire(f"blueque_bridge_{self.client.queue}_lock", 1)

    def job(self) -> Job[str]:
        """The only one that the bridge has made."""
        (record,) = self.harness.app.jobs()
        return self.harness.app.job(record.id)

    def go(self) -> None:
        (self.harness.folder / "go").touch()


@pytest.fixture
def bridged(harness: WorkerHarness, redis_server: Server) -> BridgedQueue:
    return BridgedQueue(harness, redis_server, f"q{uuid.uuid4().hex[:8]}")
