"""Ids belong to their tenant: the same id in two tenants is two jobs, and neither tenant disturbs the other's."""

from typing import Any

import pytest
from msgspec import Raw, msgpack

from tests.support.engines import enqueue, packed, register
from tests.support.http_servers import Web
from tests.support.stores import SeededChance
from windlass.engine import Engine, upkeep
from windlass.model.errors import Conflict, Invalid, WindlassError
from windlass.model.job import Job, State
from windlass.model.names import child_id, fresh_id, keyed_id
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Alive,
    Began,
    Begin,
    Cancel,
    Claim,
    Claimed,
    Delete,
    Enqueue,
    EnqueueMany,
    Finish,
    Finished,
    GetEstimate,
    GetOutput,
    GetResult,
    List,
    Release,
    Released,
    Renew,
    Rerun,
    Send,
    Show,
)
from windlass.model.outcome import Verdict
from windlass.model.output import NewChunk

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "redis", "cluster"], indirect=True)

NDJSON = "application/x-ndjson"
MALLORY, BOB = "mallory", "bob"
KEYED = keyed_id(BOB, "default", "order-1")


def taken(id: str = KEYED) -> NewJob:
    """What Mallory sends: a job under an id that Bob is going to use."""
    return NewJob(task="taken", id=id)


async def shown(engine: Engine, tenant: str, id: str = KEYED) -> Job:
    return await engine(Show(tenant=tenant, id=id))


async def both(engine: Engine, id: str = KEYED, **terms: Any) -> None:
    for tenant in (MALLORY, BOB):
        await enqueue(engine, f"work-of-{tenant}", tenant=tenant, id=id, **terms)


async def claimed_by_all(engine: Engine, slots: int = 2) -> tuple[str, dict[str, Claimed]]:
    """A worker of all tenants with what it has claimed, by tenant."""
    worker = await register(engine, tenant="-")
    found = await engine(Claim(tenant="-", worker=worker, slots=slots))
    return worker, {one.job.tenant: one for one in found}


async def all_followed(engine: Engine) -> None:
    while await upkeep.resolve_dependencies(engine):
        pass


# A new job cannot be kept out


async def test_a_key_whose_id_another_tenant_has_is_a_new_job(engine: Engine) -> None:
    await engine(Enqueue(tenant=MALLORY, job=taken()))
    accepted = await engine(Enqueue(tenant=BOB, job=NewJob(task="own", key="order-1")))
    assert (accepted.id, accepted.tenant, accepted.task, accepted.created) == (KEYED, BOB, "own", True)
    again = await engine(Enqueue(tenant=BOB, job=NewJob(task="other", key="order-1")))
    assert (again.task, again.created) == ("own", False)
    assert (await shown(engine, MALLORY)).task == "taken"
    assert [job.tenant for job in (await engine(List(tenant="-"))).jobs] == [BOB, MALLORY]


async def test_a_batch_whose_ids_another_tenant_has_is_all_new(engine: Engine) -> None:
    keys = [f"order-{n}" for n in range(3)]
    jobs = [taken(keyed_id(BOB, "default", key)) for key in keys]
    assert (await engine(EnqueueMany(tenant=MALLORY, jobs=jobs))).created == 3
    enqueued = await engine(EnqueueMany(tenant=BOB, jobs=[NewJob(task="own", key=key) for key in keys]))
    assert enqueued.created == 3
    assert {(await shown(engine, BOB, id)).task for id in enqueued.ids} == {"own"}


async def test_a_job_that_follows_is_made_though_another_tenant_has_its_id(engine: Engine) -> None:
    parent = await enqueue(engine, tenant=BOB, then=NewJob(task="next"))
    follower = child_id(parent.id, "then", "default")
    await engine(Enqueue(tenant=MALLORY, job=taken(follower)))
    worker = await register(engine, tenant=BOB)
    (run,) = await engine(Claim(tenant=BOB, worker=worker))
    item = Finished(id=run.job.id, token=run.token, outcome=Verdict.OK)
    await engine(Finish(tenant=BOB, worker=worker, jobs=[item]))
    await all_followed(engine)
    assert (await shown(engine, BOB, follower)).task == "next"
    assert (await shown(engine, MALLORY, follower)).task == "taken"


async def test_jobs_made_with_a_finish_are_made_though_another_tenant_has_their_ids(engine: Engine) -> None:
    parent = await enqueue(engine, tenant=BOB)
    child = child_id(parent.id, "jobs[0]", "default")
    await engine(Enqueue(tenant=MALLORY, job=taken(child)))
    worker = await register(engine, tenant=BOB)
    (run,) = await engine(Claim(tenant=BOB, worker=worker))
    item = Finished(id=run.job.id, token=run.token, outcome=Verdict.OK, jobs=[NewJob(task="child")])
    await engine(Finish(tenant=BOB, worker=worker, jobs=[item]))
    assert (await shown(engine, BOB, child)).task == "child"


async def test_a_job_waits_for_its_own_tenants_job_alone(engine: Engine) -> None:
    await both(engine)
    waiting = await enqueue(engine, tenant=BOB, after=[KEYED])
    worker = await register(engine, tenant=MALLORY)
    (run,) = await engine(Claim(tenant=MALLORY, worker=worker))
    item = Finished(id=KEYED, token=run.token, outcome=Verdict.OK)
    assert (await engine(Finish(tenant=MALLORY, worker=worker, jobs=[item]))).applied == [KEYED]
    await all_followed(engine)
    assert (await shown(engine, BOB, waiting.id)).state is State.BLOCKED
    worker = await register(engine, tenant=BOB)
    (run,) = await engine(Claim(tenant=BOB, worker=worker))
    await engine(Finish(tenant=BOB, worker=worker, jobs=[Finished(id=KEYED, token=run.token, outcome=Verdict.OK)]))
    await all_followed(engine)
    assert (await shown(engine, BOB, waiting.id)).state is State.QUEUED


# Over HTTP


async def post(page: Web, tenant: str, path: str, body: Any, form: str = "application/json") -> Any:
    content = body if isinstance(body, bytes) else None
    json = None if isinstance(body, bytes) else body
    headers = {"content-type": form} if content is not None else {}
    return await page.client.post(f"/v1/{tenant}{path}", content=content, json=json, headers=headers)


async def test_over_http_a_single_job_a_batch_and_lines_are_all_new(engine: Engine, page: Web) -> None:
    keys = ["single", "batch-1", "batch-2", "line-1", "line-2"]
    for key in keys:
        answer = await post(page, MALLORY, "/jobs", {"task": "taken", "id": keyed_id(BOB, "default", key)})
        assert answer.status_code == 201, answer.text
    single = await post(page, BOB, "/jobs", {"task": "own", "key": "single"})
    assert (single.status_code, single.json()["created"], single.json()["tenant"]) == (201, True, BOB)
    batch = await post(page, BOB, "/jobs/batch", [{"task": "own", "key": f"batch-{n}"} for n in (1, 2)])
    assert (batch.status_code, batch.json()["created"]) == (201, 2)
    text = b"".join(b'{"task": "own", "key": "line-%d"}\n' % n for n in (1, 2))
    lines = await post(page, BOB, "/jobs/batch", text, NDJSON)
    assert (lines.status_code, lines.json()["created"]) == (201, 2), lines.text
    for key in keys:
        found = await page.client.get(f"/v1/{BOB}/jobs/{keyed_id(BOB, 'default', key)}")
        assert (found.status_code, found.json()["task"]) == (200, "own")


async def test_over_http_an_id_of_another_tenant_looks_like_any_other(engine: Engine, page: Web) -> None:
    """What Mallory is answered says nothing of whether Bob has the id."""
    await enqueue(engine, tenant=BOB, key="order-1")
    unused = keyed_id(BOB, "default", "no-such-order")
    answers = [await post(page, MALLORY, "/jobs", {"task": "taken", "id": id}) for id in (KEYED, unused)]
    assert [(one.status_code, one.json()["created"]) for one in answers] == [(201, True), (201, True)]
    assert (await page.client.get(f"/v1/{BOB}/jobs/{KEYED}")).json()["task"] == "work"


async def test_asked_for_all_tenants_an_id_of_several_is_refused_and_they_are_named(engine: Engine, page: Web) -> None:
    await both(engine)
    for verb, path in (("GET", ""), ("GET", "/result"), ("POST", "/cancel"), ("DELETE", "")):
        answer = await page.client.request(verb, f"/v1/-/jobs/{KEYED}{path}")
        assert answer.status_code == 409, answer.text
        assert "bob, mallory" in answer.json()["detail"]
    alone = await enqueue(engine, tenant=BOB)
    found = await page.client.get(f"/v1/-/jobs/{alone.id}")
    assert (found.status_code, found.json()["tenant"]) == (200, BOB)
    missing = await page.client.get(f"/v1/-/jobs/{keyed_id(BOB, 'default', 'none')}")
    assert missing.status_code == 404


# Everything that names a job names one tenant's


async def test_each_tenant_sees_and_changes_its_own(engine: Engine) -> None:
    await both(engine, input=True)
    await engine(Send(tenant=BOB, id=KEYED, data=b"x"))
    assert (await engine(Cancel(tenant=MALLORY, ids=[KEYED]))).changed == 1
    assert (await shown(engine, BOB)).state is State.QUEUED
    assert (await engine(GetEstimate(tenant=BOB, id=KEYED))).why != ""
    assert (await engine(Rerun(tenant=MALLORY, ids=[KEYED]))).changed == 1
    assert (await engine(Delete(tenant=MALLORY, ids=[KEYED]))).changed == 1
    assert (await shown(engine, BOB)).task == "work-of-bob"
    with pytest.raises(WindlassError):
        await shown(engine, MALLORY)


async def test_results_and_output_are_kept_apart(engine: Engine) -> None:
    await both(engine)
    worker, runs = await claimed_by_all(engine)
    said = [
        Alive(id=KEYED, token=run.token, tenant=tenant, output=[NewChunk(stream="stdout", data=tenant.encode())])
        for tenant, run in runs.items()
    ]
    assert (await engine(Renew(tenant="-", worker=worker, jobs=said))).lost == []
    reports = [
        Finished(id=KEYED, token=run.token, tenant=tenant, outcome=Verdict.OK, result=packed(tenant))
        for tenant, run in runs.items()
    ]
    applied = await engine(Finish(tenant="-", worker=worker, jobs=reports))
    assert (applied.applied, applied.refused) == ([KEYED, KEYED], [])
    for tenant in (BOB, MALLORY):
        result = (await engine(GetResult(tenant=tenant, id=KEYED))).result
        assert isinstance(result, Raw)
        assert msgpack.decode(bytes(result)) == tenant
        assert [one.data for one in (await engine(GetOutput(tenant=tenant, id=KEYED))).chunks] == [tenant.encode()]


async def test_a_worker_of_all_tenants_names_the_tenant_of_each_job(engine: Engine) -> None:
    await both(engine)
    worker, runs = await claimed_by_all(engine)
    began = [Began(id=KEYED, token=run.token, tenant=tenant, pid=7) for tenant, run in runs.items()]
    assert (await engine(Begin(tenant="-", worker=worker, jobs=began))).refused == []
    assert {(await shown(engine, tenant)).pid for tenant in (BOB, MALLORY)} == {7}
    given_back = [Released(id=KEYED, token=runs[BOB].token, tenant=BOB)]
    assert (await engine(Release(tenant="-", worker=worker, jobs=given_back))).applied == [KEYED]
    assert (await shown(engine, BOB)).state is State.QUEUED
    assert (await shown(engine, MALLORY)).state is State.RUNNING


async def test_who_does_not_name_it_is_understood_where_one_tenant_alone_has_the_id(engine: Engine) -> None:
    job = await enqueue(engine, tenant=BOB)
    worker, runs = await claimed_by_all(engine)
    report = Finished(id=job.id, token=runs[BOB].token, outcome=Verdict.OK)
    assert (await engine(Finish(tenant="-", worker=worker, jobs=[report]))).applied == [job.id]


async def test_who_does_not_name_it_is_asked_to_where_several_have_the_id(engine: Engine) -> None:
    await both(engine)
    worker, runs = await claimed_by_all(engine)
    report = Finished(id=KEYED, token=runs[BOB].token, outcome=Verdict.OK)
    with pytest.raises(Conflict, match="bob, mallory") as caught:
        await engine(Finish(tenant="-", worker=worker, jobs=[report]))
    assert caught.value.at == "jobs[0].tenant"


async def test_a_worker_of_one_tenant_cannot_name_another(engine: Engine) -> None:
    await both(engine)
    worker = await register(engine, tenant=MALLORY)
    (run,) = await engine(Claim(tenant=MALLORY, worker=worker))
    report = Finished(id=KEYED, token=run.token, tenant=BOB, outcome=Verdict.OK)
    with pytest.raises(Invalid) as caught:
        await engine(Finish(tenant=MALLORY, worker=worker, jobs=[report]))
    assert caught.value.at == "jobs[0].tenant"
    own = Finished(id=KEYED, token=run.token, tenant=MALLORY, outcome=Verdict.OK)
    assert (await engine(Finish(tenant=MALLORY, worker=worker, jobs=[own]))).applied == [KEYED]


# Ids that are none


@pytest.mark.parametrize("id", ["x", "", "00000000-0000-7000-8000-0000000000DF", "0" * 32, "not-a-uuid-at-all"])
async def test_a_report_on_what_is_no_id_is_refused_and_names_the_field(engine: Engine, page: Web, id: str) -> None:
    """Begin, renew, finish and release, for one tenant and for all."""
    good = fresh_id(SeededChance(9).uuid7(), "default")
    for tenant in ("default", "-"):
        worker = await register(engine, tenant=tenant)
        for what, more in (("begin", {"pid": 1}), ("renew", {}), ("finish", {"outcome": "ok"}), ("release", {})):
            jobs = [{"id": one, "token": "0" * 16, "tenant": "default", **more} for one in (good, id)]
            answer = await post(page, tenant, f"/workers/{worker}/{what}", jobs)
            assert answer.status_code == 400, (what, answer.status_code, answer.text)
            assert answer.json()["at"] == "jobs[1].id"
