"""The audit log over HTTP: a line names the token, and a tenant sees its own lines alone."""

from typing import Any

import pytest

from tests.support.engines import enqueue
from tests.support.http_servers import named, web
from tests.support.sample_requests import asked, made
from windlass.client import Client
from windlass.engine import Engine
from windlass.engine.audit import ACTIONS, AUDITED
from windlass.model.operations import AddToken, Audit, Cancel, Rerun
from windlass.model.shapes import SHAPES, Shape
from windlass.model.token import Issued, Scope


async def issue(engine: Engine, *scopes: Scope, tenant: str, note: str = "") -> Issued:
    return await engine(AddToken(tenant=tenant, scopes=list(scopes), note=note))


async def read(site: str, token: str, tenant: str, **query: Any) -> Any:
    async with web(site, token) as client:
        answer = await client.get(f"/v1/{tenant}/audit", params=query)
    return answer.status_code, answer.json()


async def test_a_line_names_the_token_and_never_its_secret(site: str, engine: Engine) -> None:
    issued = await issue(engine, "operate", "read", tenant="acme", note="night shift")
    job = await enqueue(engine, tenant="acme")
    async with Client(site, issued.token) as client:
        await client(Cancel(tenant="acme", ids=[job.id]))
        (noted, _) = (await client(Audit(tenant="acme"))).entries
    assert (noted.by, noted.note) == (f"token {issued.key}", "night shift")
    assert (noted.action, noted.ids, noted.count, noted.tenant) == ("cancel", [job.id], 1, "acme")
    status, answer = await read(site, issued.token, "acme")
    assert status == 200
    assert issued.token.rpartition("_")[2] not in str(answer)


@pytest.mark.parametrize("shape", [one for one in SHAPES if one.kind in AUDITED], ids=named)
async def test_each_management_operation_leaves_one_line_with_its_token(
    shape: Shape, site: str, engine: Engine
) -> None:
    issued = await issue(engine, "admin", tenant="default", note="night shift")
    names = await made(engine, ended=shape.kind is Rerun)
    before = (await engine(Audit())).entries
    query, body, _ = asked(shape, names)
    async with web(site, issued.token) as client:
        path = "/v1/default" + shape.path.format(**names)
        answer = await client.request(shape.route.verb, path, json=body, params=query)
    assert answer.status_code == shape.route.status, answer.text
    (line, *rest) = (await engine(Audit())).entries
    assert rest == before
    assert (line.action, line.by, line.note) == (ACTIONS[shape.kind], f"token {issued.key}", "night shift")


async def test_the_machines_own_token_is_called_local(site: str) -> None:
    async with web(site) as client:
        await client.patch("/v1/default/queues/mail", json={"paused": True})
        (noted,) = (await client.get("/v1/default/audit")).json()["entries"]
    assert (noted["by"], noted["action"], noted["name"]) == ("token local", "change-queue", "mail")


async def test_requests_of_other_dialects_name_their_token_too(site: str, engine: Engine) -> None:
    issued = await issue(engine, "admin", tenant="default")
    async with web(site, issued.token) as client:
        made = await client.post("/job", json={"name": "a", "argument": {}})
        assert (await client.delete(f"/job/{made.json()['job_id']}")).status_code == 204
        (noted, _) = (await client.get("/v1/default/audit")).json()["entries"]
    assert (noted["by"], noted["action"]) == (f"token {issued.key}", "cancel")


async def test_a_tenant_sees_its_own_lines_and_a_token_of_all_tenants_all(site: str, engine: Engine) -> None:
    mine = await issue(engine, "operate", tenant="mine")
    every = await issue(engine, "operate", tenant="-")
    await issue(engine, "read", tenant="theirs")
    _, answer = await read(site, mine.token, "mine")
    assert [entry["tenant"] for entry in answer["entries"]] == ["mine"]
    assert (await read(site, mine.token, "theirs"))[0] == 403
    assert (await read(site, mine.token, "-"))[0] == 403
    _, answer = await read(site, every.token, "-", limit=2)
    assert [entry["tenant"] for entry in answer["entries"]] == ["theirs", "-"]
    _, rest = await read(site, every.token, "-", limit=2, after=answer["next"])
    assert [entry["tenant"] for entry in rest["entries"]] == ["mine"]
    assert rest["next"] is None


@pytest.mark.parametrize(
    ("query", "at"), [({"limit": 0}, "limit"), ({"limit": 1001}, "limit"), ({"after": "x"}, "after")]
)
async def test_a_page_that_cannot_be_is_refused_by_name(site: str, query: dict[str, Any], at: str) -> None:
    async with web(site) as client:
        answer = await client.get("/v1/default/audit", params=query)
    assert (answer.status_code, answer.json()["at"]) == (400, at)


async def test_to_read_the_log_takes_the_scope_operate(site: str, engine: Engine) -> None:
    reader = await issue(engine, "read", tenant="mine")
    assert (await read(site, reader.token, "mine"))[0] == 403
