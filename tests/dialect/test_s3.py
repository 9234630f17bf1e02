"""The routes of an older function queue, as its users write them. The numbers in brackets are its promises."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from tests.support.http_servers import served, web
from tests.support.stores import VirtualClock
from windlass.dialect.s3 import JOB_OPTIONS, ClientJobOptions
from windlass.engine import Engine
from windlass.model.duration import DAY
from windlass.model.job import TEXT, State
from windlass.model.names import check_id
from windlass.model.operations import AddToken, ChangeQueue, Claim, Count, GetHandler, Handlers, Register, Show
from windlass.model.queue import QueueChange
from windlass.model.token import Scope
from windlass.model.worker import NewWorker

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)


@pytest.fixture
async def shop(site: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with web(site) as client:
        yield client


async def add(shop: httpx2.AsyncClient, lines: str, path: str = "/shop/job/mail/add", **more: Any) -> Any:
    response = await shop.post(path, content=lines, **more)
    assert response.status_code == 200, response.text
    return response.json()


async def test_each_line_is_a_job_and_the_ids_come_in_order(engine: Engine, shop: httpx2.AsyncClient) -> None:
    """[1]"""
    added = await add(shop, "one\ntwo\nthree|with a bar\n")
    assert (added["ok"], added["count"], len(set(added["ids"]))) == (True, 3, 3)
    jobs = [await engine(Show(tenant="shop", id=id, payload=True)) for id in added["ids"]]
    assert [bytes(job.payload) for job in jobs] == [b"one", b"two", b"three|with a bar"]  # type: ignore[arg-type]
    assert added["ids"] == sorted(added["ids"])
    made_at = [int(check_id(id).replace("-", "")[:12], 16) for id in added["ids"]]  # milliseconds
    assert made_at == sorted(made_at)
    assert made_at == pytest.approx([job.created_at.timestamp() * 1000 for job in jobs], abs=2000)


async def test_empty_lines_and_remarks_are_no_jobs(engine: Engine, shop: httpx2.AsyncClient) -> None:
    """[2]"""
    added = await add(shop, "\n# a remark\none\r\n\n   \n#\n")
    assert (added["count"], len(added["ids"])) == (1, 1)
    assert (await add(shop, "")) == {"ok": True, "count": 0, "ids": []}
    assert (await engine(Count(tenant="shop"))).count == 1


async def test_ids_come_one_per_line_if_text_is_accepted(shop: httpx2.AsyncClient) -> None:
    """[1]"""
    response = await shop.post("/shop/job/mail/add", content="one\ntwo\n", headers={"accept": TEXT})
    assert [check_id(line) for line in response.text.splitlines()] == response.text.split()
    assert len(response.text.splitlines()) == 2


async def test_jobs_get_the_terms_of_that_queue(engine: Engine, shop: httpx2.AsyncClient) -> None:
    """[22, 24]"""
    (id,) = (await add(shop, "one"))["ids"]
    job = await engine(Show(tenant="shop", id=id))
    assert (job.max_retry, job.retry.base, job.retry.factor, job.retry.deadline) == (None, 300, 1, 6 * 3600)
    assert (job.keep_success, job.keep_failure, job.expires) == (14 * DAY, 14 * DAY, 30 * DAY)
    assert (job.timeout, job.state, JOB_OPTIONS.queue) == (120, State.QUEUED, "default")


async def test_handlers_are_set_shown_replaced_and_deleted(engine: Engine, shop: httpx2.AsyncClient) -> None:
    """[26]"""
    first = await shop.post("/shop/handler/add/mail/add?method=sh", content="cat")
    assert (first.status_code, first.json()) == (200, {"ok": True, "version": 1})
    second = await shop.put("/shop/handler/add/mail/add", json={"lang": "node", "body": "x", "beforeEach": "y"})
    assert second.json() == {"ok": True, "version": 2}
    answer = (await shop.get("/shop/handler/get/mail")).json()
    assert (answer["lang"], answer["body"], answer["beforeEach"], answer["version"]) == ("node", "x", "y", 2)
    assert [one["version"] for one in answer["versions"]] == [2, 1]
    assert (await engine(GetHandler(tenant="shop", task="mail"))).body == "x"
    assert (await shop.delete("/shop/handler/del/mail/delete")).json() == {"ok": True}
    assert (await shop.get("/shop/handler/get/mail")).status_code == 404
    assert (await shop.post("/shop/handler/del/mail/delete")).status_code == 404
    assert await engine(Handlers(tenant="-")) == []


@pytest.mark.parametrize(
    ("query", "more", "at"),
    [
        ("", {"content": "cat"}, "lang"),
        ("?method=sh", {"content": ""}, "body"),
        ("?method=cobol", {"content": "cat"}, "lang"),
        ("?method=sh", {"content": b"\xff"}, "body"),
        ("", {"json": {"body": "cat"}}, "lang"),
        ("", {"json": {"lang": "sh"}}, "body"),
        ("", {"json": {"lang": "sh", "body": "cat", "extra": 1}}, "extra"),
        ("?method=node", {"json": {"lang": "sh", "body": "cat"}}, "method"),
    ],
)
async def test_a_handler_without_language_or_body_is_refused(
    engine: Engine, shop: httpx2.AsyncClient, query: str, more: dict[str, Any], at: str
) -> None:
    """[26]"""
    response = await shop.post(f"/shop/handler/add/mail/add{query}", **more)
    assert (response.status_code, response.json()["at"]) == (400, at)
    assert await engine(Handlers(tenant="-")) == []


async def test_a_client_is_a_tenant_whatever_the_names_have_in_common(engine: Engine, shop: httpx2.AsyncClient) -> None:
    """[11]"""
    for client, kind in (("a-b", "c"), ("a", "b-c"), ("a-b-c", "c")):
        await add(shop, "x", f"/{client}/job/{kind}/add")
    await shop.post("/a/handler/add/c/add?method=sh", content="cat")
    worker = (await engine(Register(tenant="a-b", worker=NewWorker(name="w", tasks=[], handlers=True)))).worker
    assert await engine(Claim(tenant="a-b", worker=worker, slots=10)) == []
    await shop.post("/a-b/handler/add/c/add?method=sh", content="cat")
    (claimed,) = await engine(Claim(tenant="a-b", worker=worker, slots=10, wait=2.0))
    assert (claimed.job.tenant, claimed.job.task) == ("a-b", "c")


ROUTES: list[tuple[str, str, Scope]] = [
    ("POST", "/shop/job/mail/add", "enqueue"),
    ("POST", "/shop/handler/add/mail/add?method=sh", "admin"),
    ("GET", "/shop/handler/get/mail", "read"),
    ("DELETE", "/shop/handler/del/mail/delete", "admin"),
]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route[1])
async def test_a_token_opens_what_it_is_for_and_nothing_else(
    engine: Engine, site: str, clock: VirtualClock, route: tuple[str, str, Scope]
) -> None:
    verb, path, scope = route

    async def asked(tenant: str, *scopes: Scope) -> int:
        token = (await engine(AddToken(tenant=tenant, scopes=list(scopes)))).token if scopes else ""
        clock.advance(1)  # the cached tokens expire
        async with web(site, token) as client:
            return (await client.request(verb, path, content="cat")).status_code

    every: list[Scope] = ["enqueue", "work", "read", "operate", "admin"]
    assert await asked("") == 401
    assert await asked("other", *every) == 403
    assert await asked("shop", *[one for one in every if one not in (scope, "admin")]) == 403
    assert await asked("shop", scope) in (200, 404)


async def test_an_invalid_name_is_refused_as_everywhere(shop: httpx2.AsyncClient) -> None:
    for path in ("/a%20b/job/mail/add", "/shop/job/a%20b/add", "/-/job/mail/add"):
        response = await shop.post(path, content="x")
        assert (response.status_code, response.json()["status"]) == (400, 400), path
    assert (await shop.get("/shop/job/mail/add")).status_code == 405


async def test_a_deferred_job_does_not_run_before_its_time(
    engine: Engine, shop: httpx2.AsyncClient, clock: VirtualClock
) -> None:
    """[12]"""
    response = await shop.post("/v1/shop/tasks/mail/jobs?delay=60", content="one")
    assert response.status_code == 201
    job = await engine(Show(tenant="shop", id=response.json()["ids"][0]))
    assert (job.state, job.run_at) == (State.SCHEDULED, clock.now() + timedelta(seconds=60))


async def test_how_long_jobs_are_kept_and_wait_can_be_chosen(engine: Engine, clock: VirtualClock) -> None:
    """[24]"""
    terms = ClientJobOptions(keep_success=60.0, keep_failure=None, expires=3600.0)
    async with served(engine, clock, client_jobs=terms) as address, web(address) as shop:
        (id,) = (await add(shop, "one"))["ids"]
    job = await engine(Show(tenant="shop", id=id))
    assert (job.keep_success, job.keep_failure, job.expires) == (60.0, None, 3600.0)


@pytest.mark.parametrize("whose", ["shop", "-"])
async def test_a_queues_own_settings_win_over_the_defaults_of_these_routes(
    engine: Engine, shop: httpx2.AsyncClient, whose: str
) -> None:
    """[24]"""
    change = QueueChange(keep_success=60.0, keep_failure=None)
    await engine(ChangeQueue(tenant=whose, queue="default", change=change))
    (id,) = (await add(shop, "one"))["ids"]
    job = await engine(Show(tenant="shop", id=id))
    assert (job.keep_success, job.keep_failure, job.expires) == (60.0, None, 30 * DAY)
    await engine(ChangeQueue(tenant=whose, queue="default", change=QueueChange(clear=["keep_success", "keep_failure"])))
    (id,) = (await add(shop, "one"))["ids"]
    job = await engine(Show(tenant="shop", id=id))
    assert (job.keep_success, job.keep_failure) == (14 * DAY, 14 * DAY)


async def test_a_queue_that_says_one_of_them_leaves_the_other(engine: Engine, shop: httpx2.AsyncClient) -> None:
    await engine(ChangeQueue(tenant="shop", queue="default", change=QueueChange(keep_failure=3600.0)))
    (id,) = (await add(shop, "one"))["ids"]
    job = await engine(Show(tenant="shop", id=id))
    assert (job.keep_success, job.keep_failure) == (14 * DAY, 3600.0)
