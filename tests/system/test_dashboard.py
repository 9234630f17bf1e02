"""The dashboard in a real browser, over a real server on both stores."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.http_servers import Process, process
from tests.support.patience import PATIENCE
from tests.support.servers import StartServer

PAGES = ("", "jobs", "failures", "queues", "workers", "schedules", "limits", "handlers", "audit", "tokens")
HOSTILE = "<img src=x onerror=alert(1)>\"'`${1}</script>\u202e"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        expect.set_options(timeout=PATIENCE * 1000)
        yield chromium
        chromium.close()


class Site:
    """A server, and what a test asks of it beside the browser."""

    def __init__(self, server: Process) -> None:
        self.server = server
        self.client = httpx2.Client(base_url=server.address, headers={"authorization": f"Bearer {server.token}"})

    def ask(self, verb: str, path: str, body: Any = None, tenant: str = "default") -> Any:
        response = self.client.request(verb, f"/v1/{tenant}{path}", json=body)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def queued(self, task: str = "mail", **more: Any) -> str:
        return str(self.ask("POST", "/jobs", {"task": task, **more})["id"])

    def failed(self, message: str, task: str = "mail") -> str:
        id = self.queued(task, queue="failing")
        worker = self.ask("POST", "/workers", {"name": "w", "queues": ["failing"]})["worker"]
        (claimed,) = self.ask("POST", f"/workers/{worker}/claim", {"slots": 1})
        error = {"type": "SmtpError", "message": message, "traceback": f"Traceback: {message}"}
        report = {"id": id, "token": claimed["token"], "outcome": "failed", "error": error}
        self.ask("POST", f"/workers/{worker}/finish", [report])
        self.ask("DELETE", f"/workers/{worker}")
        return id

    def page(self, browser: Browser, faults: list[str], token: str = "") -> Page:
        """A page of a browser that has signed in; what goes wrong in it is noted."""
        context = browser.new_context(base_url=self.server.address)
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda fault: faults.append(str(fault)))
        page.on("dialog", lambda dialog: faults.append(f"dialog {dialog.message}"))
        page.on(
            "request",
            lambda one: None if one.url.startswith((self.server.address, "data:")) else faults.append(one.url),
        )
        headers = {"authorization": f"Bearer {token or self.server.token}"}
        page.goto(self.client.post("/session/link", headers=headers).json()["path"])
        return page


@pytest.fixture(params=["file", "redis"])
def site(request: pytest.FixtureRequest, tmp_path: Path, start_server: StartServer) -> Iterator[Site]:
    store = start_server("redis").url if request.param == "redis" else None
    with process(tmp_path, "--no-worker", "--no-handlers", store=store) as server:
        found = Site(server)
        yield found
        found.client.close()


def test_every_page_shows_what_there_is_and_nothing_else_is_asked_for(site: Site, browser: Browser) -> None:
    """X5: hostile texts are shown as they are."""
    faults: list[str] = []
    site.ask("PUT", "/limits/api", {"running": 1, "match": {"task": "call"}})
    site.ask("PUT", "/schedules/nightly", {"cron": "0 3 * * *", "job": {"task": "backup"}})
    site.ask("PATCH", "/queues/slow", {"paused": True, "why": HOSTILE})
    failed = site.failed(HOSTILE)
    site.queued(tags=[HOSTILE], payload={"a": HOSTILE})
    page = site.page(browser, faults)
    for name in PAGES:
        page.goto(f"/#/{name}")
        expect(page.get_by_role("main").get_by_role("heading").first).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
    page.goto("/#/schedules")
    expect(page.get_by_text("nightly")).to_be_visible()
    page.goto("/#/queues")
    expect(page.get_by_text(HOSTILE)).to_be_visible()
    page.goto(f"/#/job/default/{failed}")
    expect(page.get_by_text(f"Traceback: {HOSTILE}")).to_be_visible()
    page.goto("/#/jobs")
    expect(page.get_by_text(HOSTILE, exact=True)).to_be_visible()
    assert faults == []
    page.context.close()


def test_a_job_that_does_not_run_says_why_and_a_failed_one_runs_again(site: Site, browser: Browser) -> None:
    faults: list[str] = []
    page = site.page(browser, faults)
    id = site.queued("report", queue="nobody")
    expect(page.get_by_role("strong").filter(has_text="No worker")).to_be_visible()  # live: it came after the page
    page.goto(f"/#/job/default/{id}")
    expect(page.locator(".note-line")).to_contain_text("no worker takes jobs from its queue")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("cancelled", exact=True).first).to_be_visible()
    failed = [site.failed(f"smtp {number} refused") for number in (1, 2)]
    page.goto("/#/failures")
    row = page.get_by_role("row").filter(has_text="SmtpError")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("2")
    row.get_by_role("button", name="Retry").click()
    expect(page.get_by_text("Nothing has failed.")).to_be_visible()
    assert {site.ask("GET", f"/jobs/{id}")["state"] for id in failed} == {"queued"}
    page.goto("/#/jobs?q=state:queued")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete 2").click()
    expect(page.get_by_text("No job matches.")).to_be_visible()
    page.goto("/#/audit")
    expect(page.get_by_role("row").filter(has_text="delete")).to_have_count(1)
    assert faults == []
    page.context.close()


@pytest.mark.parametrize("site", ["file"], indirect=True)
def test_a_token_that_only_reads_sees_its_tenant_and_no_action(site: Site, browser: Browser) -> None:
    faults: list[str] = []
    token = site.ask("POST", "/tokens", {"scopes": ["read"]}, tenant="shop")["token"]
    own = str(site.ask("POST", "/jobs", {"task": "mine"}, tenant="shop")["id"])
    site.queued("foreign")
    page = site.page(browser, faults, token)
    expect(page.get_by_text("read only")).to_be_visible()
    page.goto("/#/jobs")
    expect(page.get_by_text("mine")).to_be_visible()
    expect(page.get_by_text("foreign")).to_have_count(0)
    for path in ("jobs", f"job/shop/{own}", "queues", "schedules", "limits"):
        page.goto(f"/#/{path}")
        expect(page.get_by_role("main").get_by_role("heading").first).to_be_visible()
        for name in ("Cancel", "Retry", "Delete", "Pause", "Edit", "New limit", "New schedule"):
            expect(page.get_by_role("main").get_by_role("button", name=name, exact=True)).to_have_count(0)
    expect(page.get_by_role("link", name="Tokens")).to_have_count(0)
    assert faults == []
    page.context.close()


@pytest.mark.parametrize("site", ["file"], indirect=True)
def test_a_page_says_when_the_server_is_away_and_goes_on_by_itself(site: Site, browser: Browser) -> None:
    page = site.page(browser, [])
    page.goto("/#/jobs")
    site.queued("first")
    expect(page.get_by_text("first")).to_be_visible()
    site.server.kill()
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    expect(page.get_by_text("first")).to_be_visible()
    site.server.start()
    site.queued("second")
    expect(page.get_by_text("second")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    page.context.close()
