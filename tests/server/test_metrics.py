"""What a scraper of Prometheus reads."""

import re

import httpx2
import pytest

from tests.support.engines import enqueue, finish, register, take
from tests.support.http_servers import LOCAL, Web
from windlass.engine import Engine
from windlass.model.operations import AddToken

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


async def scraped(page: Web, token: str = LOCAL) -> dict[str, float]:
    response = await page.client.get("/metrics", headers={"authorization": f"Bearer {token}"})
    assert (response.status_code, response.headers["content-type"].split(";")[0]) == (200, "text/plain")
    return read(response.text)


def read(text: str) -> dict[str, float]:
    """Numbers by their name and labels; each is one line, and each family is introduced once."""
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        matched = LINE.fullmatch(line)
        assert matched, line
        name, labels, value = matched.groups()
        assert name in families or name.rsplit("_", 1)[0] in families, name
        key = f"{name}{{{labels}}}" if labels else name
        assert key not in found, key
        found[key] = float(value)
    return found


async def test_metrics_of_jobs_workers_and_slots_are_by_tenant(engine: Engine, page: Web) -> None:
    worker = await register(engine, slots=3)
    for queue in ("default", "default", "mail"):
        await enqueue(engine, queue=queue)
    await enqueue(engine, tenant="other")
    claimed = await take(engine, worker)
    found = await scraped(page)
    assert found['windlass_jobs{tenant="default",queue="default",state="queued"}'] == 1
    assert found['windlass_jobs{tenant="default",queue="default",state="running"}'] == 1
    assert found['windlass_jobs{tenant="default",queue="mail",state="queued"}'] == 1
    assert found['windlass_jobs{tenant="other",queue="default",state="queued"}'] == 1
    assert found['windlass_workers{tenant="default"}'] == 1
    assert found['windlass_slots{tenant="default"}'] == 3
    assert found['windlass_slots_used{tenant="default"}'] == 1
    await finish(engine, worker, claimed)
    assert (await scraped(page))['windlass_jobs{tenant="default",queue="default",state="succeeded"}'] == 1


async def test_requests_are_counted_by_route_and_status(page: Web) -> None:
    for _ in range(3):
        await page.send("POST", "/jobs", {"task": "work"})
    await page.send("POST", "/jobs", {"task": "no name!"})
    for verb, path in (("GET", "/a"), ("PROPFIND", "/b")):
        await page.client.request(verb, path)
    found = await scraped(page)
    assert found['windlass_http_requests_total{method="POST",route="/v1/{tenant}/jobs",status="201"}'] == 3
    assert found['windlass_http_requests_total{method="POST",route="/v1/{tenant}/jobs",status="400"}'] == 1
    assert found['windlass_http_requests_total{method="none",route="none",status="404"}'] == 2, "one line for all"
    assert found["windlass_jobs_enqueued_total"] == 3
    name, route = "windlass_http_request_duration_seconds", 'route="/v1/{tenant}/jobs"'
    counts = [found[f'{name}_bucket{{{route},le="{bound}"}}'] for bound in ("0.005", "0.1", "10.0", "+Inf")]
    assert counts == sorted(counts)
    assert counts[-1] == found[f"{name}_count{{{route}}}"] == 4
    assert found[f"{name}_sum{{{route}}}"] > 0


async def test_claims_and_ends_are_counted(engine: Engine, page: Web) -> None:
    worker = (await page.send("POST", "/workers", {"name": "w"})).json()["worker"]
    await page.send("POST", "/jobs/batch", [{"task": "a"}, {"task": "b"}])
    claimed = (await page.send("POST", f"/workers/{worker}/claim", {"slots": 2})).json()
    report = {"id": claimed[0]["job"]["id"], "token": claimed[0]["token"], "outcome": "ok"}
    await page.send("POST", f"/workers/{worker}/finish", [report])
    found = await scraped(page)
    counted = [found[f"windlass_jobs_{word}_total"] for word in ("enqueued", "claimed", "finished")]
    assert counted == [2, 2, 1]


async def test_a_tenant_is_shown_its_own_numbers_and_no_others(engine: Engine, page: Web) -> None:
    await enqueue(engine, tenant="mine")
    await enqueue(engine, tenant="secret")
    await register(engine, tenant="secret")
    token = (await engine(AddToken(tenant="mine", scopes=["read"]))).token
    found = await scraped(page, token)
    assert set(found) == {"windlass_up", 'windlass_jobs{tenant="mine",queue="default",state="queued"}'}


@pytest.mark.parametrize(("headers", "status"), [({"authorization": "Bearer x"}, 401), ({"host": "evil.example"}, 403)])
async def test_metrics_need_a_token(page: Web, headers: dict[str, str], status: int) -> None:
    assert (await page.client.get("/metrics", headers=headers)).status_code == status


async def test_numbers_are_for_those_who_may_read(engine: Engine, site: str) -> None:
    token = (await engine(AddToken(tenant="mine", scopes=["enqueue", "work", "operate"]))).token
    async with httpx2.AsyncClient(base_url=site, trust_env=False) as client:
        assert (await client.get("/metrics", headers={"authorization": f"Bearer {token}"})).status_code == 403
