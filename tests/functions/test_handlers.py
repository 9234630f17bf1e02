"""Handlers in the queue: kept by version, seen by those who claim, and what becomes of jobs that have none.

The numbers in brackets are the promises of an older function queue that a test holds us to.
"""

import asyncio
from datetime import timedelta

import pytest

from tests.support.engines import enqueue, finish, packed, register, state, take
from tests.support.stores import EPOCH, VirtualClock
from windlass.engine import Engine
from windlass.engine.upkeep import expire, promote, purge, resolve_dependencies
from windlass.model.duration import DAY
from windlass.model.errors import Conflict, Invalid, Missing
from windlass.model.handler import MOST_SCRIPT, MOST_VERSIONS, HandlerOptions, NewHandler
from windlass.model.job import Reason, State
from windlass.model.match import Match
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Claim,
    Count,
    GetCode,
    GetHandler,
    Handlers,
    PutHandler,
    Register,
    Release,
    Released,
    RemoveHandler,
    Rerun,
    Show,
)
from windlass.model.outcome import Verdict
from windlass.model.retry import UNTIL_DEADLINE
from windlass.model.worker import NewWorker


def shell(body: str = "cat") -> NewHandler:
    return NewHandler(lang="sh", body=body)


async def upload(engine: Engine, task: str = "work", body: str = "cat", tenant: str = "default") -> int:
    return (await engine(PutHandler(tenant=tenant, task=task, handler=shell(body)))).version


async def runner(engine: Engine, tenant: str = "default") -> str:
    """A worker that runs nothing but handlers."""
    return await register(engine, tenant=tenant, tasks=[], handlers=True)


async def claimed(engine: Engine, worker: str, tenant: str = "default") -> list[tuple[str, str]]:
    jobs = await engine(Claim(tenant=tenant, worker=worker, slots=100))
    return sorted((one.job.tenant, one.job.task) for one in jobs)


# Kept by version


async def test_the_newest_version_runs_and_the_older_ones_are_listed(engine: Engine, clock: VirtualClock) -> None:
    """[26]"""
    assert await upload(engine, body="one") == 1
    clock.advance(60)
    assert await upload(engine, body="two") == 2
    newest = await engine(GetHandler(task="work"))
    assert (newest.body, newest.version) == ("two", 2)
    assert [one.version for one in newest.versions] == [2, 1]
    assert [one.created_at for one in newest.versions] == [EPOCH + timedelta(seconds=60), EPOCH]
    assert (await engine(GetHandler(task="work", version=1))).body == "one"
    assert [one.version for one in await engine(Handlers())] == [2]


async def test_the_same_upload_again_changes_nothing_but_one_after_another_counts(engine: Engine) -> None:
    assert [await upload(engine, body=body) for body in ("a", "a", "b", "a")] == [1, 1, 2, 3]


async def test_an_upload_that_names_what_is_as_usual_is_the_same(engine: Engine) -> None:
    for handler in (shell(), NewHandler(lang="sh", body="cat", options=HandlerOptions(batch=10, needs=[]))):
        assert (await engine(PutHandler(task="work", handler=handler))).version == 1


async def test_only_so_many_versions_are_kept(engine: Engine) -> None:
    for number in range(MOST_VERSIONS + 3):
        await upload(engine, body=f"echo {number}")
    kept = (await engine(GetHandler(task="work"))).versions
    assert [one.version for one in kept] == list(range(MOST_VERSIONS + 3, 3, -1))


@pytest.mark.parametrize(
    ("handler", "at"),
    [
        (NewHandler(lang="http", body="not a url"), "body"),
        (NewHandler(lang="http", body="file:///etc/passwd"), "body"),
        (NewHandler(lang="http", body="http://user:password@example.com/"), "body"),
        (NewHandler(lang="http", body="http://localhost/", before="x = 1"), "before"),
        (NewHandler(lang="http", body="http://localhost/", after_each="x = 1"), "afterEach"),
        (NewHandler(lang="sh", body="#" * (MOST_SCRIPT + 1)), "body"),
        (NewHandler(lang="sh", body="cat", before_each="é" * MOST_SCRIPT), "beforeEach"),
        (NewHandler(lang="sh", body="cat\0"), "body"),
    ],
)
async def test_what_could_never_run_is_refused(engine: Engine, handler: NewHandler, at: str) -> None:
    with pytest.raises(Invalid) as fault:
        await engine(PutHandler(task="work", handler=handler))
    assert fault.value.at == at
    assert await engine(Handlers()) == []


async def test_removing_a_handler_removes_all_of_its_versions(engine: Engine) -> None:
    """[26]"""
    await upload(engine, body="one")
    await upload(engine, body="two")
    await engine(RemoveHandler(task="work"))
    assert await engine(Handlers()) == []
    for question in (GetHandler(task="work"), GetHandler(task="work", version=1), GetCode(task="work")):
        with pytest.raises(Missing):
            await engine(question)
    with pytest.raises(Missing):
        await engine(RemoveHandler(task="work"))
    assert await upload(engine, body="three") == 1


async def test_uploads_at_the_same_time_are_all_kept_and_one_of_them_is_the_newest(engine: Engine) -> None:
    await asyncio.gather(*(upload(engine, body=f"echo {number}") for number in range(5)))
    kept = await engine(GetHandler(task="work"))
    assert len(kept.versions) == 5
    assert (await engine(GetCode(task="work"))).digest == kept.digest == kept.versions[0].digest


async def test_a_worker_that_has_the_code_is_not_sent_it_again(engine: Engine) -> None:
    await upload(engine)
    first = await engine(GetCode(task="work"))
    assert first.handler is not None
    assert (await engine(GetCode(task="work", known=first.digest))).handler is None
    await upload(engine, body="other")
    assert (await engine(GetCode(task="work", known=first.digest))).handler is not None


async def test_handlers_of_one_tenant_are_nothing_to_another(engine: Engine) -> None:
    """[11]"""
    await upload(engine, "a-b", tenant="shop")
    await upload(engine, "b", tenant="shop-a")
    with pytest.raises(Missing):
        await engine(GetHandler(tenant="shop-a", task="a-b"))
    assert [one.task for one in await engine(Handlers(tenant="shop"))] == ["a-b"]
    await engine(RemoveHandler(tenant="shop-a", task="b"))
    assert [(one.tenant, one.task) for one in await engine(Handlers(tenant="-"))] == [("shop", "a-b")]


async def test_a_tenant_may_have_so_many_handlers_and_still_change_them(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.engine.handlers.MOST_HANDLERS", 2)
    await upload(engine, "a")
    await upload(engine, "b")
    with pytest.raises(Conflict):
        await upload(engine, "c")
    assert await upload(engine, "b", "other") == 2
    assert await upload(engine, "c", tenant="other") == 1


# Seen by those who claim


async def test_jobs_without_a_handler_wait_and_go_once_it_is_set(engine: Engine) -> None:
    """[27]"""
    job = await enqueue(engine)
    worker = await runner(engine)
    assert await claimed(engine, worker) == []
    assert await state(engine, job.id) is State.QUEUED
    await upload(engine, "another")
    assert await claimed(engine, worker) == []
    await upload(engine)
    assert await claimed(engine, worker) == [("default", "work")]


async def test_a_worker_that_waits_hears_of_a_handler_soon(engine: Engine) -> None:
    """[27]"""
    await enqueue(engine)
    worker = await runner(engine)
    waiting = asyncio.create_task(engine(Claim(worker=worker, wait=20.0)))
    other = Engine(engine.context.store, engine.context.chance)
    assert await claimed(engine, await runner(engine)) == []  # what there is has been looked at
    await upload(other)  # by another process than the one that is asked
    assert [one.job.task for one in await waiting] == ["work"]


async def test_jobs_whose_handler_is_removed_wait_again(engine: Engine) -> None:
    """[27]"""
    await upload(engine)
    worker = await runner(engine)
    await enqueue(engine)
    await engine(RemoveHandler(task="work"))
    assert await claimed(engine, worker) == []


async def test_jobs_without_a_handler_end_after_their_deadline(engine: Engine, clock: VirtualClock) -> None:
    """[24, 27]"""
    job = await enqueue(engine, expires=30 * DAY)
    worker = await runner(engine)
    clock.advance(30 * DAY - 1)
    await expire(engine)
    assert await state(engine, job.id) is State.QUEUED
    clock.advance(2)
    await expire(engine)
    ended = await engine(Show(id=job.id))
    assert (ended.state, ended.reason) == (State.FAILED, Reason.EXPIRED)
    await upload(engine)
    worker = await runner(engine)
    assert await claimed(engine, worker) == []


async def test_a_worker_for_all_tenants_takes_only_what_a_tenant_has_a_handler_for(engine: Engine) -> None:
    """[11]"""
    await upload(engine, "work", tenant="shop")
    await upload(engine, "mail", tenant="shop-a")
    for tenant in ("shop", "shop-a", "a"):
        for task in ("work", "mail", "shop", "a-work"):
            await enqueue(engine, task, tenant=tenant)
    worker = await runner(engine, tenant="-")
    assert await claimed(engine, worker, "-") == [("shop", "work"), ("shop-a", "mail")]


async def test_a_worker_with_tasks_of_its_own_takes_those_and_what_has_a_handler(engine: Engine) -> None:
    await upload(engine, "uploaded")
    for task in ("own", "uploaded", "neither"):
        await enqueue(engine, task)
    plain = await register(engine, tasks=["own"])
    both = await register(engine, tasks=["own"], handlers=True)
    assert await claimed(engine, plain) == [("default", "own")]
    assert await claimed(engine, both) == [("default", "uploaded")]


async def test_versions_in_the_names_of_tasks_have_handlers_side_by_side(engine: Engine) -> None:
    """[40]"""
    await upload(engine, "resize.v1", "one")
    await upload(engine, "resize.v2", "two")
    for task in ("resize.v1", "resize.v2", "resize.v3", "resize"):
        await enqueue(engine, task)
    assert await claimed(engine, await runner(engine)) == [("default", "resize.v1"), ("default", "resize.v2")]


async def test_a_worker_with_nothing_to_do_is_refused(engine: Engine) -> None:
    with pytest.raises(Invalid, match="no tasks and runs no handlers"):
        await engine(Register(worker=NewWorker(name="w", tasks=[])))


# Given back, run again, kept


async def test_a_job_given_back_is_ready_at_once_and_a_retry_after_its_delay(
    engine: Engine, clock: VirtualClock
) -> None:
    """[19, 23]"""
    await upload(engine)
    job = await enqueue(engine, max_retry=None, retry=UNTIL_DEADLINE)
    worker = await runner(engine)
    first = await take(engine, worker)
    await engine(Release(worker=worker, jobs=[Released(id=first.job.id, token=first.token)]))
    again = await take(engine, worker)
    assert (again.job.id, again.job.attempt) == (job.id, 1)
    await finish(engine, worker, again, Verdict.RETRY)
    clock.advance(299)
    await promote(engine)
    assert await claimed(engine, await runner(engine)) == []
    clock.advance(2)
    await promote(engine)
    assert await claimed(engine, await runner(engine)) == [("default", "work")]


async def test_a_retry_ends_by_deadline_and_the_job_is_seen_as_abandoned(engine: Engine, clock: VirtualClock) -> None:
    """[22]"""
    await upload(engine)
    job = await enqueue(engine, max_retry=None, retry=UNTIL_DEADLINE)
    runs = 0
    while await state(engine, job.id) is not State.FAILED:
        worker = await runner(engine)
        claim = await take(engine, worker)
        runs += 1
        await finish(engine, worker, claim, Verdict.ERROR, message="no luck")
        clock.advance(300)
        await promote(engine)
    assert runs == 6 * 3600 / 300 + 1
    ended = await engine(Show(id=job.id))
    assert ended.reason is Reason.DEADLINE
    assert await claimed(engine, await runner(engine)) == []


@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.FAILED])
async def test_a_finished_job_is_archived_never_run_again_and_purged_after_its_time(
    engine: Engine, clock: VirtualClock, verdict: Verdict
) -> None:
    """[17, 18, 23, 24]"""
    await upload(engine)
    job = await enqueue(engine, keep_success=14 * DAY, keep_failure=14 * DAY, max_retry=5)
    worker = await runner(engine)
    await finish(engine, worker, await take(engine, worker), verdict)
    clock.advance(14 * DAY - 1)
    await promote(engine)
    await purge(engine)
    worker = await runner(engine)
    assert await claimed(engine, worker) == []
    assert (await engine(Show(id=job.id))).code == {Verdict.OK: 200, Verdict.FAILED: 400}[verdict]
    clock.advance(2)
    await purge(engine)
    with pytest.raises(Missing):
        await engine(Show(id=job.id))


async def test_an_archived_job_can_be_run_again_by_hand(engine: Engine) -> None:
    """[23]"""
    await upload(engine)
    job = await enqueue(engine)
    worker = await runner(engine)
    await finish(engine, worker, await take(engine, worker), Verdict.FAILED, message="no")
    assert (await engine(Rerun(ids=[job.id]))).changed == 1
    assert await claimed(engine, worker) == [("default", "work")]


async def test_the_four_outcomes_are_shown_and_counted_apart(engine: Engine) -> None:
    """[17, 18, 19, 20, 21]"""
    await upload(engine)
    codes = {Verdict.OK: 201, Verdict.FAILED: 410, Verdict.RETRY: 102, Verdict.ERROR: 503}
    found = {}
    for verdict, code in codes.items():
        job = await enqueue(engine, max_retry=1)
        worker = await runner(engine)
        await finish(engine, worker, await take(engine, worker), verdict, code=code)
        shown = await engine(Show(id=job.id))
        found[verdict] = (shown.state, shown.reason, shown.code)
    assert found == {
        Verdict.OK: (State.SUCCEEDED, None, 201),
        Verdict.FAILED: (State.FAILED, Reason.FAILED, 410),
        Verdict.RETRY: (State.SCHEDULED, Reason.RETRY, 102),
        Verdict.ERROR: (State.SCHEDULED, Reason.ERROR, 503),
    }
    for reason in (Reason.FAILED, Reason.RETRY, Reason.ERROR):
        assert (await engine(Count(match=Match(reason=reason)))).count == 1
    assert (await engine(Count(match=Match(state=["succeeded"])))).count == 1


async def test_what_a_job_answered_is_the_payload_of_the_one_that_follows(engine: Engine) -> None:
    """[39]"""
    await upload(engine)
    await upload(engine, "next")
    await enqueue(engine, then=NewJob(task="next"))
    worker = await runner(engine)
    await finish(engine, worker, await take(engine, worker), result=packed({"n": 5}))
    await resolve_dependencies(engine)
    following = await take(engine, worker)
    assert (following.job.task, bytes(following.payload)) == ("next", bytes(packed({"n": 5})))
