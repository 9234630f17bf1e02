"""Who may do what over HTTP, for every route of the table: a route without a good request fails here.

Somebody else's thing answers exactly like none: the same status, the same bytes, the same headers.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import httpx2
import msgspec
import pytest

from tests.support.http_servers import LOCAL, decoded, encoded, make_auth, named, served, web
from tests.support.patience import PATIENCE
from tests.support.sample_requests import NOTHING, asked, made
from tests.support.stores import VirtualClock
from windlass.engine import Engine
from windlass.local_token import known_token, local_token
from windlass.model.errors import Invalid, Unavailable
from windlass.model.job import JSON
from windlass.model.operations import (
    AddToken,
    Begin,
    Cancel,
    Delete,
    Enqueue,
    EnqueueMany,
    Finish,
    Limits,
    List,
    PutFile,
    PutLimit,
    PutSchedule,
    RemoveToken,
    Renew,
    Rerun,
    Schedules,
    Tokens,
)
from windlass.model.shapes import SHAPES, Shape
from windlass.model.token import Scope
from windlass.server.application import application
from windlass.server.auth import LOCAL_HOSTS
from windlass.server.live import ALL_EVENTS, EVENTS, LIVE
from windlass.system import SystemRandomness

pytestmark = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)

SCOPES: tuple[Scope, ...] = get_args(Scope)
MINE, THEIRS = "mine", "theirs"


@pytest.fixture
async def client(site: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A client without a default token."""
    async with web(site, token="") as client:
        yield client


async def token(engine: Engine, *scopes: Scope, tenant: str = MINE, expires: float | None = None) -> str:
    return (await engine(AddToken(tenant=tenant, scopes=list(scopes or ("admin",)), expires=expires))).token


async def send(
    client: httpx2.AsyncClient, shape: Shape, names: dict[str, str], token: str, tenant: str = MINE, **more: Any
) -> httpx2.Response:
    query, body, media = asked(shape, names)
    content = body if isinstance(body, bytes) or body is None else encoded(body, JSON)
    shown = {"authorization": f"Bearer {token}"} if token else {}
    headers = {**shown, "content-type": media or JSON, **more.pop("headers", {})}
    path = f"/v1/{tenant}{shape.path.format(**names)}"
    arguments = {"params": query, "content": content, "headers": headers, **more}
    return await client.request(shape.route.verb, path, **arguments)


# Every route


@pytest.mark.parametrize("shape", SHAPES, ids=named)
async def test_every_route_asks_for_a_token_that_is_good(
    shape: Shape, engine: Engine, clock: VirtualClock, client: httpx2.AsyncClient
) -> None:
    names = await made(engine, MINE)
    removed, short, good = await token(engine), await token(engine, expires=60.0), await token(engine)
    await engine(RemoveToken(tenant=MINE, key=removed.split("_")[1]))
    clock.advance(61)
    broken = good[:-1] + ("0" if good[-1] != "0" else "1")
    for wrong in ("", "x", f"wl_{'0' * 12}_{'0' * 64}", removed, short, broken, good.upper(), f"{good}x"):
        response = await send(client, shape, names, wrong)
        assert (response.status_code, decoded(response)["code"]) == (401, "unauthenticated"), wrong
        assert response.headers["www-authenticate"] == "Bearer"
    basic = await send(client, shape, names, "", headers={"authorization": f"Basic {good}"})
    assert basic.status_code == 401
    assert (await send(client, shape, names, good)).status_code not in (401, 403)


@pytest.mark.parametrize("shape", SHAPES, ids=named)
async def test_every_route_asks_for_its_scope(shape: Shape, engine: Engine, client: httpx2.AsyncClient) -> None:
    names = await made(engine, MINE)
    holders = {scope: await token(engine, scope) for scope in SCOPES}
    others = await token(engine, *(scope for scope in SCOPES if scope not in (shape.route.scope, "admin")))
    for scope, holder in holders.items():
        response = await send(client, shape, names, holder)
        assert (response.status_code != 403) == (scope in (shape.route.scope, "admin")), scope
    response = await send(client, shape, names, others)
    assert (response.status_code, decoded(response)["code"]) == (403, "denied")


@pytest.mark.parametrize("shape", SHAPES, ids=named)
async def test_every_route_is_closed_to_other_tenants(shape: Shape, engine: Engine, client: httpx2.AsyncClient) -> None:
    names = await made(engine, MINE)
    theirs, everybodys = await token(engine, tenant=THEIRS), await token(engine, tenant="-")
    for stranger, tenant in ((theirs, MINE), (theirs, "-"), (theirs, "mine2"), (theirs, "their")):
        response = await send(client, shape, names, stranger, tenant)
        assert (response.status_code, decoded(response)["code"]) == (403, "denied")
    assert (await send(client, shape, names, theirs, "%2d")).status_code == 403
    assert (await send(client, shape, names, everybodys, "no name!")).status_code == 400
    assert (await send(client, shape, names, everybodys)).status_code not in (401, 403)
    assert (await send(client, shape, names, everybodys, "-")).status_code not in (401, 403)


@pytest.mark.parametrize("shape", SHAPES, ids=named)
async def test_nothing_but_the_path_names_a_tenant(shape: Shape, engine: Engine, client: httpx2.AsyncClient) -> None:
    names, mine = await made(engine, MINE), await token(engine)
    body = asked(shape, names).body
    if isinstance(body, dict):
        inner: Any = {**body, "tenant": THEIRS}
    elif isinstance(body, list):
        inner = [{**body[0], "tenant": THEIRS}]
    else:
        response = await send(client, shape, names, mine, params={**asked(shape, names).query, "tenant": THEIRS})
        assert (response.status_code, decoded(response)["at"]) == (400, "tenant")
        return
    response = await send(client, shape, names, mine, content=encoded(inner, JSON))
    assert response.status_code == 400
    assert decoded(response)["at"].endswith("tenant")


ANY_NAME = {"task", "queue"}
"""Whoever asks for one of these finds it, empty."""

MAKERS = (PutFile, PutLimit, PutSchedule)
"""Nothing is missing for these: they make what they name, of the tenant that asks."""


def bare(response: httpx2.Response, names: dict[str, str]) -> tuple[int, str, dict[str, str]]:
    """All of an answer, but for the date and for what was asked about, by whatever name."""
    text = response.text
    for name in ("id", "worker", "key", "name", "queue"):
        text = text.replace(names[name], f"<{name}>")
    return response.status_code, text, {name: value for name, value in response.headers.items() if name != "date"}


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if set(shape.names) - ANY_NAME], ids=named)
async def test_a_foreign_thing_answers_like_none(shape: Shape, engine: Engine, client: httpx2.AsyncClient) -> None:
    foreign, own, mine = await made(engine, THEIRS), await made(engine, MINE), await token(engine)
    missing = {**NOTHING, "token": foreign["token"]}
    before = await everything(engine, THEIRS)
    answers = [bare(await send(client, shape, names, mine), names) for names in (foreign, missing)]
    assert answers[0] == answers[1]
    assert (answers[0][0] == 404) == (shape.kind not in MAKERS)
    assert await everything(engine, THEIRS) == before
    assert bare(await send(client, shape, own, mine), own)[0] != 404


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.kind in MAKERS], ids=named)
async def test_a_name_that_others_have_is_free(shape: Shape, engine: Engine, client: httpx2.AsyncClient) -> None:
    foreign, mine = await made(engine, THEIRS), await token(engine)
    before = await everything(engine, THEIRS)
    answers = [bare(await send(client, shape, names, mine), names) for names in (foreign, NOTHING)]
    assert [status for status, _, _ in answers] == [shape.route.status] * 2
    assert await everything(engine, THEIRS) == before


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.kind in (Begin, Renew, Finish)], ids=named)
async def test_a_worker_cannot_hold_a_foreign_job(shape: Shape, engine: Engine, client: httpx2.AsyncClient) -> None:
    foreign, own, mine = await made(engine, THEIRS), await made(engine, MINE), await token(engine)
    before = await everything(engine, THEIRS)
    answers = []
    for id in (foreign["id"], NOTHING["id"]):
        names = {**own, "id": id, "token": own["token"]}
        answers.append(bare(await send(client, shape, names, mine), names))
    assert answers[0] == answers[1]
    assert await everything(engine, THEIRS) == before


@pytest.mark.parametrize(
    "shape", [shape for shape in SHAPES if shape.kind in (Cancel, Rerun, Delete) and not shape.names], ids=named
)
async def test_an_action_on_many_leaves_foreign_jobs_alone(
    shape: Shape, engine: Engine, client: httpx2.AsyncClient
) -> None:
    mine, before = await token(engine), []
    foreign = [(await made(engine, THEIRS, ended=ended))["id"] for ended in (False, True)]
    before = await everything(engine, THEIRS)
    answers = []
    for ids in (foreign, [NOTHING["id"], NOTHING["id"][::-1].replace("-", "0")[:8] + NOTHING["id"][8:]]):
        response = await send(client, shape, NOTHING, mine, params={}, content=encoded({"ids": ids}, JSON))
        answers.append((response.status_code, response.content))
    assert answers == [(200, b'{"changed":0}')] * 2
    response = await send(
        client, shape, NOTHING, mine, params={}, content=encoded({"state": ["pending", "finished"]}, JSON)
    )
    assert decoded(response) == {"changed": 0}
    assert await everything(engine, THEIRS) == before


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.kind in (Enqueue, EnqueueMany)], ids=named)
async def test_keys_and_parents_of_others_are_not_there(
    shape: Shape, engine: Engine, client: httpx2.AsyncClient
) -> None:
    foreign, mine, theirs = await made(engine, THEIRS), await token(engine), await token(engine, tenant=THEIRS)
    job: dict[str, Any] = {"task": "a", "key": "the-same"}
    for tenant, holder in ((THEIRS, theirs), (MINE, mine)):
        content = encoded([job] if shape.kind is EnqueueMany else job, JSON)
        response = await send(client, shape, NOTHING, holder, tenant, content=content)
        assert (response.status_code, decoded(response)["created"]) == (201, True if shape.kind is Enqueue else 1)
    answers = []
    for id in (foreign["id"], NOTHING["id"]):
        follower: Any = {"task": "a", "after": [id]}
        content = encoded([follower] if shape.kind is EnqueueMany else follower, JSON)
        response = await send(client, shape, NOTHING, mine, content=content)
        told = decoded(response)
        answers.append((response.status_code, told.get("state"), told.get("detail", "").replace(id, "")))
    assert answers[0] == answers[1]


async def everything(engine: Engine, tenant: str) -> list[bytes]:
    listed = await engine(List(tenant=tenant, limit=1000))
    made: list[list[Any]] = [listed.jobs, await engine(Limits(tenant=tenant)), await engine(Schedules(tenant=tenant))]
    return [msgspec.msgpack.encode(one) for some in made for one in some]


# Tokens


async def test_a_removed_token_is_refused_within_a_second(
    engine: Engine, clock: VirtualClock, client: httpx2.AsyncClient
) -> None:
    mine = await token(engine, "read")
    auth = {"authorization": f"Bearer {mine}"}
    assert (await client.get(f"/v1/{MINE}/stats", headers=auth)).status_code == 200
    await engine(RemoveToken(tenant=MINE, key=mine.split("_")[1]))
    clock.advance(1)
    assert (await client.get(f"/v1/{MINE}/stats", headers=auth)).status_code == 401


async def test_a_new_token_is_good_within_a_second(
    engine: Engine, clock: VirtualClock, client: httpx2.AsyncClient
) -> None:
    await client.get(f"/v1/{MINE}/stats", headers={"authorization": "Bearer x"})
    mine = await token(engine, "read")
    clock.advance(1)
    assert (await client.get(f"/v1/{MINE}/stats", headers={"authorization": f"Bearer {mine}"})).status_code == 200


async def test_the_first_callers_of_a_server_all_get_in(engine: Engine, clock: VirtualClock) -> None:
    mine = await token(engine, "read")
    for _ in range(3):
        async with served(engine, clock) as site, web(site, mine) as client:
            answers = await asyncio.gather(*(client.get(f"/v1/{MINE}/stats") for _ in range(20)))
            assert {answer.status_code for answer in answers} == {200}


async def test_a_store_that_does_not_answer_is_not_an_unknown_token(
    engine: Engine, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = await token(engine, "read")

    async def down(*_: Any) -> Any:
        raise Unavailable("gone")

    with monkeypatch.context() as broken:
        broken.setattr(engine.context.store.records, "list", down)
        for _ in range(2):
            answer = await client.get(f"/v1/{MINE}/stats", headers={"authorization": f"Bearer {mine}"})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert (await client.get(f"/v1/{MINE}/stats", headers={"authorization": f"Bearer {mine}"})).status_code == 200


async def test_a_token_is_shown_once_and_never_kept(engine: Engine, client: httpx2.AsyncClient) -> None:
    admin = {"authorization": f"Bearer {LOCAL}"}
    made = await client.post(f"/v1/{MINE}/tokens", json={"scopes": ["read"], "note": "n"}, headers=admin)
    secret = decoded(made)["token"]
    listed = await client.get("/v1/-/tokens", headers=admin)
    assert secret not in listed.text
    assert "digest" not in listed.text
    stored = await engine.context.store.records.list("token")
    assert all(secret.encode() not in data and secret.split("_")[2].encode() not in data for data in stored.values())


async def test_an_admin_of_one_tenant_makes_tokens_for_that_one(engine: Engine, client: httpx2.AsyncClient) -> None:
    admin = {"authorization": f"Bearer {await token(engine)}"}
    for tenant in (THEIRS, "-"):
        assert (await client.post(f"/v1/{tenant}/tokens", json={}, headers=admin)).status_code == 403
    assert (await client.post(f"/v1/{MINE}/tokens", json={}, headers=admin)).status_code == 201
    await engine(AddToken(tenant=THEIRS))
    shown = decoded(await client.get(f"/v1/{MINE}/tokens", headers=admin))
    assert {one["tenant"] for one in shown} == {MINE}


# Local mode


@pytest.mark.parametrize("shape", SHAPES, ids=named)
async def test_every_route_of_a_local_server_wants_a_local_name(
    shape: Shape, engine: Engine, client: httpx2.AsyncClient
) -> None:
    for host in ("evil.example", "evil.example:7717", "127.0.0.1.evil.example", "localhost.evil.example", "", "[::2]"):
        response = await send(client, shape, NOTHING, LOCAL, headers={"host": host})
        assert response.status_code in (400, 403)
        assert response.status_code == 403 or not host


@pytest.mark.parametrize("shape", SHAPES, ids=named)
async def test_no_route_of_a_local_server_is_open_to_a_page_of_another_site(
    shape: Shape, engine: Engine, client: httpx2.AsyncClient
) -> None:
    host = client.base_url.netloc.decode()
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": f"http://{host}.evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": f"http://{host}", "sec-fetch-site": "cross-site"},
    ):
        response = await send(client, shape, NOTHING, LOCAL, headers=headers)
        assert (response.status_code, decoded(response)["at"]) == (403, "origin"), headers
    for headers in ({"origin": f"http://{host}", "sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
        assert (await send(client, shape, NOTHING, LOCAL, headers=headers)).status_code != 403, headers


async def test_a_local_server_has_several_names(engine: Engine, client: httpx2.AsyncClient) -> None:
    auth = {"authorization": f"Bearer {LOCAL}"}
    for name in sorted(LOCAL_HOSTS - {"::1"}):
        for host in (name, f"{name}:7717", name.upper()):
            response = await client.get("/v1/default/stats", headers={**auth, "host": host})
            assert response.status_code == 200, host


async def test_a_public_server_has_any_name(engine: Engine, clock: VirtualClock) -> None:
    async with served(engine, clock, local=False) as site, web(site) as client:
        assert (await client.get("/v1/default/stats", headers={"host": "jobs.example"})).status_code == 200


def test_the_token_of_this_machine_is_only_its_owners(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "state" / "windlass"
    made = local_token(folder, SystemRandomness())
    assert (folder.stat().st_mode & 0o777, (folder / "token").stat().st_mode & 0o777) == (0o700, 0o600)
    assert made == local_token(folder, SystemRandomness()) == known_token(folder)
    assert len(made) > 64
    (folder / "token").chmod(0o640)
    with pytest.raises(Invalid, match="can be read by others"):
        local_token(folder, SystemRandomness())


def test_a_server_that_others_can_reach_does_not_start_without_tokens(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-m", "windlass", "serve", "--host", "0.0.0.0", "--port", "0"]  # noqa: S104
    place = ["--store", str(tmp_path / "jobs.db"), "--data", str(tmp_path / "data")]
    ended = subprocess.run([*command, *place], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 4
    assert "there are no tokens" in ended.stderr
    assert not (tmp_path / "data" / "token").exists()


async def test_the_tokens_of_all_are_for_those_of_all(engine: Engine) -> None:
    await engine(AddToken(tenant=MINE))
    assert len(await engine(Tokens(tenant="-"))) == 1
    assert await engine(Tokens(tenant=THEIRS)) == []


async def test_every_route_has_a_case_here_or_beside(engine: Engine, clock: VirtualClock) -> None:
    """A route that is no operation must be named here, and tested in a file of its own; so are other dialects."""
    app = application(engine, engine, make_auth(engine, clock))
    known = {f"/v1/{{tenant}}{shape.path}" for shape in SHAPES}
    beside = {ALL_EVENTS, EVENTS, LIVE, "/metrics"}
    open_to_all = {"/openapi.json", "/reference", "/healthz", "/readyz"}
    assert {getattr(route, "path", "") for route in app.routes} == known | beside | open_to_all
