"""A worker leaves tasks to others that need what it does not offer; a job that no worker takes says what it needs."""

import json
import re

import pytest

from tests.support.engines import enqueue, register, state
from tests.support.worker_harness import STORES, MakeHarness, StoreKind, WorkerHarness, until
from windlass import Windlass
from windlass.engine import Engine
from windlass.engine.records import TASK_OPTIONS
from windlass.model.errors import Invalid
from windlass.model.estimate import Why
from windlass.model.handler import HandlerOptions, NewHandler
from windlass.model.job import State
from windlass.model.new_job import JobOptions
from windlass.model.operations import Claim, GetEstimate, Handlers, PutHandler, Workers

SHOP = """
import os
from windlass import Windlass, current
app = Windlass(tenant=os.environ["HARNESS_TENANT"])

@app.task(needs=["gpu", "big"], max_retry=2)
def train() -> int:
    return os.getppid()

@app.task
def plain() -> int:
    return os.getppid()
"""

NEEDS = {"train": ["gpu"]}


@pytest.fixture(params=STORES)
def shop(request: pytest.FixtureRequest, make_harness: MakeHarness) -> WorkerHarness:
    kind: StoreKind = request.param
    return make_harness(SHOP, store="" if kind == "file" else request.getfixturevalue("redis_server").url)


# In the engine


async def claimed(engine: Engine, worker: str, tenant: str = "default") -> list[str]:
    return sorted(one.job.task for one in await engine(Claim(tenant=tenant, worker=worker, slots=10)))


async def test_a_worker_leaves_tasks_whose_needs_it_does_not_offer(engine: Engine) -> None:
    for task in ("train", "plain"):
        await enqueue(engine, task)
    small = await register(engine, tasks=["train", "plain"], needs=NEEDS, offers=["ssd"])
    assert await claimed(engine, small) == ["plain"]
    large = await register(engine, tasks=["train", "plain"], needs=NEEDS, offers=["ssd", "gpu"])
    assert await claimed(engine, large) == ["train"]
    left = {worker.id: worker for worker in await engine(Workers())}[small]
    assert (left.tasks, left.needs, left.offers) == (["plain"], NEEDS, ["ssd"])


async def test_a_job_that_no_worker_can_take_waits_and_says_what_it_needs(engine: Engine) -> None:
    job = await enqueue(engine, "train")
    await register(engine, tasks=["train", "plain"], needs=NEEDS)
    found = await engine(GetEstimate(id=job.id))
    assert (found.why, found.name) == (Why.HANDLER, "it needs gpu, which no worker that knows it offers")
    await register(engine, tasks=["train"], needs=NEEDS, offers=["gpu"])
    assert (await engine(GetEstimate(id=job.id))).why is not Why.HANDLER
    assert await state(engine, job.id) is State.QUEUED


async def test_a_worker_that_could_run_nothing_is_refused(engine: Engine) -> None:
    with pytest.raises(Invalid, match=r"train needs gpu\): start it with --offers gpu"):
        await register(engine, tasks=["train"], needs=NEEDS)
    await register(engine, tasks=["train"], needs=NEEDS, handlers=True)


async def test_the_options_of_a_task_are_kept_by_a_worker_that_leaves_it_to_others(engine: Engine) -> None:
    await register(
        engine, tasks=["train", "plain"], needs=NEEDS, options={"train": JobOptions(queue="slow", max_retry=2)}
    )
    known = await engine.context.store.records.list(TASK_OPTIONS)
    assert list(known) == ["default/train"]


async def test_a_handler_says_what_it_needs_too(engine: Engine) -> None:
    options = HandlerOptions(needs=["gpu"])
    await engine(PutHandler(task="train", handler=NewHandler(lang="python", body="x = 1", options=options)))
    await engine(PutHandler(task="plain", handler=NewHandler(lang="python", body="x = 1")))
    assert {one.task: one.needs for one in await engine(Handlers())} == {"train": ["gpu"], "plain": []}
    jobs = [await enqueue(engine, task) for task in ("train", "plain")]
    for tenant in ("default", "-"):
        small = await register(engine, tenant=tenant, tasks=[], handlers=True)
        assert await claimed(engine, small, tenant) == (["plain"] if tenant == "default" else [])
    found = await engine(GetEstimate(id=jobs[0].id))
    assert (found.why, found.name) == (Why.HANDLER, "it needs gpu, which no worker that knows it offers")
    large = await register(engine, tenant="-", tasks=[], handlers=True, offers=["gpu"])
    assert await claimed(engine, large, "-") == ["train"]


async def test_a_handler_does_not_bring_a_task_back_that_a_worker_leaves_to_others(engine: Engine) -> None:
    """Its worker would run its own code for it."""
    await engine(PutHandler(task="train", handler=NewHandler(lang="python", body="x = 1")))
    await enqueue(engine, "train")
    assert await claimed(engine, await register(engine, tasks=["train"], needs=NEEDS, handlers=True)) == []


def test_labels_are_checked_where_a_task_is_declared() -> None:
    app = Windlass(":memory:")
    with pytest.raises(Invalid, match="is no list of labels"):
        app.task(needs="gpu")(lambda: None)
    with pytest.raises(Invalid, match="needs: 'two words' is not a name"):
        app.task(needs=["two words"])


# Of a worker


def test_workers_run_what_they_offer_for(shop: WorkerHarness) -> None:
    small = shop.start()
    small.hear(r"\btask plain\b")
    jobs = [shop.tasks.train.enqueue(), shop.tasks.plain.enqueue()]
    assert jobs[1].result(60)
    place = ["--tenant", shop.tenant]
    assert "it needs gpu, big, which no worker" in " ".join(shop.run("jobs", "show", jobs[0].id, *place).stdout.split())
    report = shop.run("doctor").stdout
    assert "no worker: none that knows task train offers gpu, big, which it needs" in report
    assert "windlass worker MODULE:APP -q default --offers gpu,big" in report
    warned = shop.run("enqueue", "train", *place)
    assert warned.stderr == "windlass: no worker takes it: none that knows task train offers gpu, big, which it needs\n"

    large = shop.start("--offers", "big,gpu")
    large.hear("offers big, gpu")
    jobs[0].result(60)
    (line,) = [one for one in shop.run("workers", "ls", *place).stdout.splitlines() if "big,gpu" in one]
    assert re.search(r"\bdefault\b", line)
    listed = json.loads(shop.run("workers", "ls", "--json", *place).stdout)
    assert sorted((one["offers"], one["tasks"]) for one in listed) == [
        ([], ["plain"]),
        (["big", "gpu"], ["train", "plain"]),
    ]
    assert until(lambda: shop.app.jobs(task="train", state="succeeded").count() == 2)


def test_a_worker_takes_its_labels_from_the_settings(shop: WorkerHarness) -> None:
    (shop.folder / "windlass.toml").write_text('[worker]\noffers = ["gpu", "big"]\n')
    shop.start().hear("offers gpu, big")
    assert shop.tasks.train.enqueue().result(60)


def test_a_worker_with_nothing_to_run_says_what_to_offer(make_harness: MakeHarness) -> None:
    harness = make_harness(SHOP.replace("@app.task\ndef plain", "def plain"))
    worker = harness.start_raw("--no-handlers")
    assert worker.ended() == 2
    assert "each of its tasks needs what this worker does not offer" in worker.said
    assert "--offers gpu,big" in worker.said
