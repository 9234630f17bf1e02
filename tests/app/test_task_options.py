"""Jobs that are queued by name take the options that their tasks were declared with."""

import json
from typing import Any

import httpx2
import pytest

from tests.support.engines import register
from tests.support.http_servers import process
from tests.support.stores import VirtualClock
from tests.support.worker_harness import STORES, MakeHarness, StoreKind, WorkerHarness
from windlass import Windlass
from windlass.engine import Engine
from windlass.engine.records import OPTIONS_CACHED_FOR, TASK_OPTIONS, WithTaskOptions
from windlass.model.limit import Pause
from windlass.model.names import fresh_id
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import Enqueue, EnqueueLines, EnqueueMany, GetEstimate, GetTask, PauseTask, Show, Workers

SHOP = """
import os
from windlass import Windlass, current
app = Windlass(tenant=os.environ["HARNESS_TENANT"], defaults={"tags": ["shop"]})

@app.task(queue="mail", max_retry=3, retry={"base": "2s"}, timeout="1m", isolate=True, priority=7)
def send(to: str) -> str:
    return f"{current.job.queue} {to}"

@app.task
def plain() -> None: ...
"""

OPTIONS: dict[str, Any] = {"queue": "mail", "max_retry": 3, "timeout": 60.0, "isolate": True, "priority": 7}


def of(job: Any) -> dict[str, Any]:
    return {name: getattr(job, name) for name in OPTIONS}


@pytest.fixture(params=STORES)
def shop(request: pytest.FixtureRequest, make_harness: MakeHarness) -> WorkerHarness:
    kind: StoreKind = request.param
    return make_harness(SHOP, store="" if kind == "file" else request.getfixturevalue("redis_server").url)


def test_the_command_line_and_http_take_the_options_of_a_task(shop: WorkerHarness) -> None:
    worker = shop.start()
    place = ["--tenant", shop.tenant]
    ran = shop.run("enqueue", "send", '["Ada"]', "--wait", "60", *place)
    assert (ran.stdout, ran.stderr) == ('"mail Ada"\n', "")
    assert worker.stop() == 0

    made = shop.run("enqueue", "send", '["Bob"]', "--max-retry", "1", "--tag", "x", "--json", *place)
    job = shop.app.job(json.loads(made.stdout)["id"]).refresh()
    shown = shop.run("tasks", "show", "send", *place).stdout
    assert shown.startswith("task send: not paused\n")
    assert '  queue  "mail"\n' in shown
    assert "  max_retry  3\n" in shown
    assert of(job) == {**OPTIONS, "max_retry": 1}, "they stay when the worker has gone, and what is said counts"
    assert (job.tags, job.retry.base) == (["x"], 2.0)
    exact = shop.run("enqueue", "send", '["Eve"]', "--exact", "--json", *place)
    assert (json.loads(exact.stdout)["queue"], json.loads(exact.stdout)["max_retry"]) == ("default", 0)

    with process(shop.folder, "--no-worker", "--no-journal", store=shop.store) as server:
        remote = Windlass(server=server.address, token=server.token, tenant=shop.tenant)
        headers = {"authorization": f"Bearer {server.token}"}
        with httpx2.Client(base_url=f"{server.address}/v1/{shop.tenant}", headers=headers, trust_env=False) as web:
            one = web.post("/jobs", json={"task": "send", "payload": ["Ada"], "then": {"task": "send"}}).json()
            batch = web.post("/jobs/batch", json=[{"task": "send", "priority": 1}, {"task": "plain"}]).json()
            lines = web.post("/tasks/send/jobs", content="a\nb\n", headers={"content-type": "text/plain"}).json()
            as_sent = web.post("/jobs?exact=true", json={"task": "send"}).json()
        assert {name: one[name] for name in OPTIONS} == OPTIONS
        first, second = (remote.job(id).refresh() for id in batch["ids"])
        assert of(first) == {**OPTIONS, "priority": 1}
        assert (second.queue, second.tags) == ("default", ["shop"])
        assert [of(remote.job(id).refresh()) for id in lines["ids"]] == [OPTIONS] * 2
        assert (as_sent["queue"], as_sent["max_retry"]) == ("default", 0)
        send = remote.task(name="send", queue="default")(lambda to: None)
        assert send.enqueue("Ada").refresh().queue == "default", "code that has the task at hand knows its options"
        remote.close()


async def test_options_are_remembered_for_a_while_and_those_who_know_them_read_nothing(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    stored = engine.context.store.records.list

    async def counted(kind: str) -> dict[str, bytes]:
        reads.extend([kind] if kind == TASK_OPTIONS else [])
        return await stored(kind)

    said = JobOptions(queue="mail", max_retry=3)
    await register(engine, "mail", tasks=["send", "plain"], options={"send": said})
    monkeypatch.setattr(engine.context.store.records, "list", counted)
    service = WithTaskOptions(engine, engine.context, clock)
    await service(EnqueueMany(jobs=[NewJob(task="send")], exact=True))
    assert reads == []
    for _ in range(3):
        assert (await service(Enqueue(job=NewJob(task="send")))).queue == "mail"
    await service(EnqueueLines(task="send", text="a"))
    assert len(reads) == 1
    clock.advance(OPTIONS_CACHED_FOR + 0.1)
    await service(Enqueue(job=NewJob(task="send")))
    assert len(reads) == 2


async def test_the_last_worker_counts_and_one_that_says_nothing_changes_nothing(
    engine: Engine, clock: VirtualClock
) -> None:
    async def queue_of(task: str, **more: Any) -> str:
        service = WithTaskOptions(engine, engine.context, clock)
        return (await service(Enqueue(job=NewJob(task=task, **more)))).queue

    await register(
        engine, "mail", tasks=["a", "b"], options={"a": JobOptions(queue="mail"), "b": JobOptions(queue="mail")}
    )
    assert all(worker.options is None for worker in await engine(Workers())), "not shown with the worker"
    await register(engine, "mail", tasks=["a"])
    assert await queue_of("a") == "mail"
    assert (await engine(GetTask(task="a"))).options == JobOptions(queue="mail")
    await register(engine, "mail", tasks=["a"], options={})
    assert (await queue_of("a"), await queue_of("b")) == ("default", "mail")
    assert (await engine(GetTask(task="a"))).options is None, "the newest registration wins, and is shown"
    own = fresh_id(b"0" * 16, "default")
    assert await queue_of("b", id=own) == "default", "its id is for that queue"
    assert await queue_of("b", key="k") == "mail"
    await register(engine, "x", tenant="acme", tasks=["b"], options={"b": JobOptions(queue="x")})
    assert await queue_of("b") == "mail", "each tenant has its own"
    await engine(PauseTask(task="b", pause=Pause(paused=True)))
    assert await queue_of("b") == "mail", "what else is kept of a task is kept apart"
    shown = await engine(Enqueue(job=NewJob(task="b")))
    assert (await engine(Show(id=shown.id))).queue == "default", "the engine itself takes jobs as they are"


async def test_a_job_in_a_queue_whose_workers_do_not_know_its_task_says_so(engine: Engine) -> None:
    await register(engine, tasks=["a"])
    await register(engine, "mail", tasks=["b"])
    waiting = await engine(Enqueue(job=NewJob(task="b")))
    assert (await engine(GetEstimate(id=waiting.id))).why == "handler", "its workers do not know the task"
    own = await engine(Enqueue(job=NewJob(task="b", queue="mail")))
    assert (await engine(GetEstimate(id=own.id))).why == "slots", "only for its turn"


def test_a_job_that_no_worker_will_take_is_said_so_at_once(shop: WorkerHarness) -> None:
    place = ["--tenant", shop.tenant]
    assert shop.run("enqueue", "send", '["Ada"]', *place).stderr == "", "a worker may still come"
    shop.start("-q", "mail")
    lost = shop.run("enqueue", "send", '["Ada"]', "-q", "typo", *place)
    assert lost.stderr == "windlass: no worker takes it: workers that know task send take from mail, not from typo\n"
    unknown = shop.run("enqueue", "sent", *place)
    assert unknown.stderr == "windlass: no worker takes it: none knows task sent\n"
    report = shop.run("doctor").stdout
    assert (
        f"1 job of task send in typo of {shop.tenant}, and no worker: workers that know task send take from mail"
        in report
    )
