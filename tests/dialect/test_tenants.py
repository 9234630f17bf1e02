"""Authorization in other dialects, for every route of their tables: a route without a good request fails here.

A thing of another tenant answers exactly like a missing one, and listings hold only the tenant's own jobs.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple, get_args

import httpx2
import msgspec
import pytest
from msgspec import Raw

from tests.support.http_servers import LOCAL, decoded, make_auth, web
from tests.support.sample_requests import NOTHING, made
from tests.support.stores import VirtualClock
from windlass.dialect import s2, s3, s4
from windlass.engine import Engine
from windlass.model.job import JSON, TEXT
from windlass.model.new_job import NewJob
from windlass.model.operations import AddToken, Enqueue, GetHandler, List
from windlass.model.token import Scope
from windlass.server.openapi import RouteSpec
from windlass.server.requests import RequestLimits

pytestmark = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)

SCOPES: tuple[Scope, ...] = get_args(Scope)
MINE, THEIRS = "mine", "theirs"
SECRET = "for nobody else"  # noqa: S105 - must not be shown

TABLE = (*s2.SPECS, *s3.SPECS, *s4.SPECS)


class Route(NamedTuple):
    """One way to ask for one spec."""

    verb: str
    spec: RouteSpec


ROUTES = [Route(verb, spec) for spec in TABLE for verb in spec.verbs]


class Good(NamedTuple):
    """What goes into a request beside verb and path."""

    body: Any = None
    media: str = JSON


def _report(names: dict[str, str]) -> Good:
    return Good({"job_id": f"{names['id']}.{names['token']}", "type": "success", "result": 1})


Fill = Callable[[dict[str, str]], Good]

GOOD: dict[str, Fill] = {
    "S2Push": lambda _: Good({"name": "a", "argument": 1}),
    "S2Status": lambda _: Good(),
    "S2Poll": lambda _: Good(),
    "S2Cancel": lambda _: Good(),
    "S2Register": lambda _: Good({"name": "w", "max_jobs": 1, "url": "http://127.0.0.1:9"}),
    "S2Live": lambda _: Good(),
    "S2Unregister": lambda _: Good(),
    "S2Done": _report,
    "S3Add": lambda _: Good(b"one\ntwo\n", TEXT),
    "S3AddHandler": lambda _: Good({"lang": "sh", "body": "cat"}),
    "S3GetHandler": lambda _: Good(),
    "S3RemoveHandler": lambda _: Good(),
    "S4Notify": lambda _: Good({"data": [{"id": "1", "type": "Room"}]}),
    **dict.fromkeys(("S4List", "S4Delete", "S4Summary", "S4Count"), lambda _: Good()),
    **dict.fromkeys(("S4ListWq", "S4DeleteWq", "S4SummaryWq", "S4CountWq"), lambda _: Good()),
}

NAMES_A_TENANT = [route for route in ROUTES if "{tenant}" in route.spec.path]
NAMES_A_THING = [
    route
    for route in ROUTES
    if route not in NAMES_A_TENANT
    and ("{id}" in route.spec.path or route.spec.required_headers or route.spec.name == "S2Done")
]


def called(route: Route) -> str:
    return f"{route.verb} {route.spec.path}"


@pytest.fixture
async def client(site: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A client without a default token."""
    async with web(site, token="") as client:
        yield client


async def token(engine: Engine, *scopes: Scope, tenant: str = MINE) -> str:
    return (await engine(AddToken(tenant=tenant, scopes=list(scopes or ("admin",))))).token


async def furnished(engine: Engine, tenant: str) -> dict[str, str]:
    """A running job, its worker, a handler and a notification of a tenant's."""
    names = await made(engine, tenant)
    payload = Raw(msgspec.json.encode({"payload": [{"note": SECRET}]}))
    await engine(Enqueue(tenant=tenant, job=NewJob(task="notify", payload=payload, content_type=JSON)))
    return names


async def send(
    client: httpx2.AsyncClient, route: Route, names: dict[str, str], token: str, tenant: str = MINE, **more: str
) -> httpx2.Response:
    good = GOOD[route.spec.name](names)
    content = good.body if isinstance(good.body, bytes) or good.body is None else msgspec.json.encode(good.body)
    headers = {"content-type": good.media, "accept": JSON, "worker-id": names["worker"], **more}
    shown = {"authorization": f"Bearer {token}"} if token else {}
    path = route.spec.path.format(tenant=tenant, id=names["id"], type=names["task"])
    query = {"timeout": "0"} if path.endswith("/polling") else {}
    return await client.request(route.verb, path, params=query, content=content, headers={**headers, **shown})


async def everything(engine: Engine, tenant: str) -> list[Any]:
    jobs = (await engine(List(tenant=tenant, limit=1000))).jobs
    return [msgspec.to_builtins(one) for one in (*jobs, await engine(GetHandler(tenant=tenant, task="work")))]


def test_the_tables_are_all_that_is_served(engine: Engine, clock: VirtualClock) -> None:
    auth, limits = make_auth(engine, clock), RequestLimits()
    routes = [*s2.routes(engine, auth, limits), *s3.routes(engine, auth, limits), *s4.routes(engine, auth, limits)]
    assert {route.spec.name for route in routes} == {spec.name for spec in TABLE}
    assert len(routes) == len(TABLE)
    assert {spec.name for spec in TABLE} == GOOD.keys()


async def test_every_route_asks_for_a_token_that_is_good(engine: Engine, client: httpx2.AsyncClient) -> None:
    names, good = await furnished(engine, MINE), await token(engine)
    before = await everything(engine, MINE)
    for route in ROUTES:
        for wrong in ("", "x", good[:-1] + ("0" if good[-1] != "0" else "1"), f"{good}x"):
            response = await send(client, route, names, wrong)
            assert (response.status_code, decoded(response)["code"]) == (401, "unauthenticated"), (called(route), wrong)
    assert await everything(engine, MINE) == before


async def test_every_route_asks_for_its_scope(engine: Engine, client: httpx2.AsyncClient) -> None:
    holders = {scope: await token(engine, scope) for scope in SCOPES}
    for route in ROUTES:
        names = await furnished(engine, MINE)
        for scope, holder in holders.items():
            status = (await send(client, route, names, holder)).status_code
            assert status != 401
            assert (status != 403) == (scope in (route.spec.scope, "admin")), (called(route), scope)


@pytest.mark.parametrize("route", NAMES_A_TENANT, ids=called)
async def test_a_route_that_names_a_tenant_is_closed_to_others(
    route: Route, engine: Engine, client: httpx2.AsyncClient
) -> None:
    names, stranger = await furnished(engine, THEIRS), await token(engine)
    before = await everything(engine, THEIRS)
    for tenant in (THEIRS, "-", "their", "theirs2"):
        response = await send(client, route, names, stranger, tenant)
        assert (response.status_code, decoded(response)["code"]) == (403, "denied")
    assert await everything(engine, THEIRS) == before


@pytest.mark.parametrize("route", NAMES_A_THING, ids=called)
async def test_a_foreign_thing_answers_like_none(route: Route, engine: Engine, client: httpx2.AsyncClient) -> None:
    foreign, own, mine = await furnished(engine, THEIRS), await furnished(engine, MINE), await token(engine)
    before = await everything(engine, THEIRS)

    async def answer(names: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        response = await send(client, route, names, mine)
        text = response.text.replace(names["id"], "<id>").replace(names["worker"], "<worker>")
        return response.status_code, text, {name: said for name, said in response.headers.items() if name != "date"}

    missing = {**NOTHING, "token": foreign["token"]}
    assert await answer(foreign) == await answer(missing)
    assert (await answer(foreign))[0] == 404
    ours = {"worker": own["worker"], "token": own["token"]}
    if route.spec.name == "S2Done":
        assert await answer(foreign | ours) == await answer(missing | ours)
        assert (await answer(foreign | ours))[0] == 404
    assert await everything(engine, THEIRS) == before
    assert (await send(client, route, own, mine)).status_code != 404


async def test_listings_hold_only_the_tenants_own_jobs(engine: Engine, client: httpx2.AsyncClient) -> None:
    """Whatever the headers say: a service is no tenant."""
    mine, own = await token(engine), await made(engine, MINE)
    await furnished(engine, THEIRS)
    before = await everything(engine, THEIRS)
    claims: list[dict[str, str]] = [{}, {"fiware-service": THEIRS}, {"ngsild-tenant": THEIRS}]
    for route in ROUTES[::-1]:  # what is listed, before anything is added
        for claim in claims:
            response = await send(client, route, own, mine, **claim)
            assert response.status_code not in (401, 403)
            assert SECRET not in response.text
            if route.spec.name.startswith(("S4List", "S4Summary", "S4Count")):
                assert decoded(response) in ([], 0), called(route)
    assert await everything(engine, THEIRS) == before


async def test_no_route_of_a_local_server_is_open_to_others(engine: Engine, client: httpx2.AsyncClient) -> None:
    for route in ROUTES:
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
            response = await send(client, route, NOTHING, LOCAL, **headers)
            assert response.status_code == 403, (called(route), headers)
