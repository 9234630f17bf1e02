"""Signing in to the dashboard, and the files of its pages; without a browser. `system/test_dashboard.py` has one."""

import hashlib
import json
from pathlib import Path

import httpx2
import pytest

from tests.support.http_servers import web
from tests.support.stores import VirtualClock
from windlass.engine import Engine
from windlass.model.operations import AddToken, RemoveToken

VENDORED = Path(__file__).parents[2] / "requirements" / "vendored.json"


async def sign_in(client: httpx2.AsyncClient, token: str) -> httpx2.Response:
    return await client.post("/session", headers={"authorization": f"Bearer {token}"})


async def test_the_pages_and_their_files_are_served_under_a_strict_policy(site: str) -> None:
    async with web(site, "") as client:
        for path, kind in (
            ("/", "text/html"),
            ("/dashboard/app.js", "text/javascript"),
            ("/dashboard/app.css", "text/css"),
        ):
            response = await client.get(path)
            assert (response.status_code, response.headers["content-type"].partition(";")[0]) == (200, kind)
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["x-content-type-options"] == "nosniff"
        for path in ("/dashboard/", "/dashboard/none.js", "/dashboard/%2e%2e/__init__.py", "/dashboard/__init__.py"):
            assert (await client.get(path)).status_code == 404


def test_files_of_others_are_as_they_were_published() -> None:
    locked = json.loads(VENDORED.read_text())
    static = VENDORED.parents[1] / "src/windlass/server/dashboard/static"
    assert {static.parents[4] / one["path"] for one in locked} == set((static / "vendor").glob("*.js"))
    for one in locked:
        assert hashlib.sha256((VENDORED.parents[1] / one["path"]).read_bytes()).hexdigest() == one["sha256"]


async def test_a_link_signs_in_once(site: str) -> None:
    async with web(site) as client:
        path = (await client.post("/session/link")).json()["path"]
    async with web(site, "") as browser:
        assert (await browser.get("/session")).status_code == 401
        first = await browser.get(path)
        assert (first.status_code, first.headers["location"]) == (303, "/")
        cookie = first.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/"))
        assert "wl_local" not in cookie
        assert (await browser.get("/session")).json()["tenant"] == "-"
        assert (await browser.get("/v1/default/jobs")).status_code == 200
    async with web(site, "") as other:
        again = await other.get(path)
        assert "set-cookie" not in again.headers
        assert (await other.get("/v1/default/jobs")).status_code == 401


async def test_a_session_allows_what_its_token_allows_and_ends_with_it(engine: Engine, site: str) -> None:
    issued = await engine(AddToken(tenant="shop", scopes=["read"]))
    async with web(site, "") as browser:
        who = (await sign_in(browser, issued.token)).json()
        assert (who["tenant"], who["scopes"], who["token"]) == ("shop", ["read"], issued.key)
        assert (await browser.get("/v1/shop/queues")).status_code == 200
        assert (await browser.get("/v1/default/queues")).status_code == 403
        assert (await browser.patch("/v1/shop/queues/q", json={"paused": True})).status_code == 403
        await engine(RemoveToken(tenant="shop", key=issued.key))
        assert (await browser.get("/v1/shop/queues")).status_code == 401
        assert (await browser.get("/session")).status_code == 401


async def test_a_session_ends_by_itself_and_by_signing_out(engine: Engine, clock: VirtualClock, site: str) -> None:
    issued = await engine(AddToken(tenant="shop", scopes=["read"]))
    async with web(site, "") as browser:
        await sign_in(browser, issued.token)
        cookies = dict(browser.cookies)
        assert (await browser.delete("/session")).status_code == 204
        assert (await browser.get("/session")).status_code == 401
        browser.cookies.update(cookies)
        assert (await browser.get("/session")).status_code == 200
        clock.advance(12 * 3600 + 1)
        assert (await browser.get("/session")).status_code == 401


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}])
async def test_other_sites_cannot_use_a_session(engine: Engine, site: str, headers: dict[str, str]) -> None:
    issued = await engine(AddToken(tenant="shop", scopes=["operate"]))
    async with web(site, "") as browser:
        await sign_in(browser, issued.token)
        for verb, path in (("POST", "/v1/shop/jobs/cancel"), ("GET", "/v1/shop/jobs"), ("DELETE", "/session")):
            assert (await browser.request(verb, path, headers=headers)).status_code == 403


async def test_a_cookie_that_is_not_ours_is_no_session(engine: Engine, site: str) -> None:
    issued = await engine(AddToken(tenant="shop", scopes=["read"]))
    async with web(site, "") as browser:
        await sign_in(browser, issued.token)
        ((name, value),) = dict(browser.cookies).items()
        key, until, mac = value.split(".")
        for forged in (
            f"local.{until}.{mac}",
            f"{key}.{int(until) + 9}.{mac}",
            f"{key}.{until}.{'0' * 64}",
            "x",
            "..",
            "",
        ):
            browser.cookies.clear()
            assert (await browser.get("/session", headers={"cookie": f"{name}={forged}"})).status_code == 401


async def test_files_are_compressed_and_sent_once(site: str) -> None:
    async with web(site, "") as client:
        whole = await client.get("/dashboard/app.js", headers={"accept-encoding": "identity"})
        small = await client.get("/dashboard/app.js", headers={"accept-encoding": "gzip"})
        assert (small.content, small.headers["content-encoding"]) == (whole.content, "gzip")
        assert int(small.headers["content-length"]) < len(whole.content) / 2
        assert "content-encoding" not in whole.headers
        again = await client.get("/dashboard/app.js", headers={"if-none-match": whole.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


async def test_all_that_a_page_loads_weighs_little(site: str) -> None:
    static = VENDORED.parents[1] / "src/windlass/server/dashboard/static"
    async with web(site, "", follow_redirects=True) as client:
        together = 0
        for file in static.rglob("*.*"):
            path = f"/dashboard/{file.relative_to(static)}"
            response = await client.get(path, headers={"accept-encoding": "gzip"})
            together += int(response.headers["content-length"])
    assert together < 150_000


async def test_a_link_exports_what_matches_line_by_line(engine: Engine, site: str) -> None:
    issued = await engine(AddToken(tenant="shop", scopes=["enqueue", "read"]))
    async with web(site, issued.token) as client:
        for number in range(3):
            await client.post("/v1/shop/jobs", json={"task": "mail", "payload": {"n": number % 2}})
    async with web(site, "") as browser:
        await sign_in(browser, issued.token)
        accept = {"accept": "text/html,*/*;q=0.8", "sec-fetch-site": "same-origin"}
        path = "/dashboard/export/shop/jobs.ndjson?state=queued&payload.n=0&order=newest"
        response = await browser.get(path, headers=accept)
        assert response.headers["content-disposition"] == 'attachment; filename="jobs.ndjson"'
        assert [json.loads(line)["task"] for line in response.text.splitlines()] == ["mail", "mail"]
        assert (await browser.get("/dashboard/export/default/jobs.ndjson", headers=accept)).status_code == 403
        assert (await browser.get(path, headers={"sec-fetch-site": "cross-site"})).status_code == 403
