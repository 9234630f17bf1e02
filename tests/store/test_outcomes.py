"""The four outcomes of a run are counted apart, on every store. The counts stay when the jobs are gone."""

import apsw
import pytest

from tests.support.engines import enqueue, finish, register, take
from tests.support.http_servers import web
from tests.support.push_servers import Station
from tests.support.stores import StoreKind, VirtualClock
from tests.support.worker_harness import ON_A_FILE, WorkerHarness
from windlass.engine import Engine
from windlass.engine.upkeep import purge, reclaim
from windlass.model.operations import Cancel, GetStats, Release, Released
from windlass.model.outcome import Verdict
from windlass.model.retry import RetryPolicy
from windlass.store.data import MOST_COUNTED

EACH_STORE = pytest.mark.parametrize("kind", ["sqlite", "redis", "cluster"], indirect=True)

EACH = {Verdict.OK: 4, Verdict.FAILED: 1, Verdict.RETRY: 2, Verdict.ERROR: 3}
"""Each number once: a store that takes one outcome for another must be noticed."""


async def counted(engine: Engine, tenant: str = "default") -> dict[str, dict[Verdict, int]]:
    return {line.task: line.outcomes for line in (await engine(GetStats(tenant=tenant))).queues}


async def run_each(engine: Engine, worker: str, task: str) -> None:
    for verdict, times in EACH.items():
        for _ in range(times):
            await enqueue(engine, task, max_retry=5, keep_success=10.0, keep_failure=10.0)
            await finish(engine, worker, await take(engine, worker), verdict, delay=3600.0)


@EACH_STORE
async def test_s3_21_the_four_outcomes_are_counted_apart(engine: Engine) -> None:
    worker = await register(engine)
    await run_each(engine, worker, "a")
    await enqueue(engine, "b", tenant="other")
    assert await counted(engine) == {"a": EACH}
    assert await counted(engine, "-") == {"a": EACH, "b": {}}


@EACH_STORE
async def test_counts_stay_when_the_jobs_are_gone(engine: Engine, clock: VirtualClock) -> None:
    worker = await register(engine)
    await run_each(engine, worker, "a")
    await enqueue(engine, "b", keep_success=0.0)
    await finish(engine, worker, await take(engine, worker))
    clock.advance(11)
    await purge(engine)
    assert await counted(engine) == {"a": EACH, "b": {Verdict.OK: 1}}


@EACH_STORE
async def test_a_lost_run_is_an_error_and_one_that_was_given_back_or_cancelled_is_nothing(
    engine: Engine, clock: VirtualClock
) -> None:
    worker = await register(engine)
    await enqueue(engine, "a")
    given = await take(engine, worker)
    await engine(Release(worker=worker, jobs=[Released(id=given.job.id, token=given.token)]))
    again = await take(engine, worker)
    await engine(Cancel(ids=[again.job.id]))
    await finish(engine, worker, again, Verdict.ERROR)
    assert await counted(engine) == {"a": {}}
    await enqueue(engine, "a")
    await take(engine, worker)
    clock.advance(3600)
    assert await reclaim(engine) == 1
    assert await counted(engine) == {"a": {Verdict.ERROR: 1}}


@pytest.mark.parametrize("kind", ["file"], indirect=True)
async def test_so_many_tasks_are_counted_and_no_more(engine: Engine, kind: StoreKind, address: str) -> None:
    assert kind == "file"
    sql = apsw.Connection(address)
    rows = [("a", "q", f"t{number}") for number in range(MOST_COUNTED)]
    with sql:
        sql.executemany("INSERT INTO outcome (tenant, queue, task, ok) VALUES (?, ?, ?, 1)", rows)
    sql.close()
    worker = await register(engine)
    await enqueue(engine, "one-too-many")
    await finish(engine, worker, await take(engine, worker))
    assert await counted(engine) == {"one-too-many": {}}
    assert len(await counted(engine, "a")) == MOST_COUNTED


async def test_outcomes_are_in_the_metrics_and_the_stats_over_http(hub: Station) -> None:
    worker = await register(hub.engine)
    await run_each(hub.engine, worker, "a")
    (line,) = (await hub.client(GetStats())).queues
    assert line.outcomes == EACH
    async with web(hub.address) as client:
        said = (await client.get("/metrics")).text
    for verdict, count in EACH.items():
        assert f'windlass_runs_total{{tenant="default",queue="default",outcome="{verdict}"}} {count}\n' in said


@ON_A_FILE
def test_top_and_queues_show_tell_the_four_outcomes_apart(harness: WorkerHarness) -> None:
    tasks = harness.tasks
    for _ in range(2):
        tasks.nap.enqueue(0)
    for how in ("fail", "error", "retry"):
        tasks.complain.using(max_retry=1, retry=RetryPolicy(base=3600.0)).enqueue(how)
    harness.burst()
    for words in (("top", "--once"), ("queues", "show", "default")):
        said = harness.run(*words, "--tenant", harness.tenant).stdout
        assert "2 ok" in said, said
        assert all(f"1 {outcome}" in said for outcome in ("failed", "error", "retry")), said
