"""The dashboard in a real browser, over a real server on both stores."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.http_servers import Process, process
from tests.support.patience import PATIENCE
from tests.support.servers import Server

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
    """A tenant of its own on a server that the tests of this module share, and a browser that is signed in for it."""

    def __init__(self, server: Process, browser: Browser, tenant: str) -> None:
        self.server = server
        self.tenant = tenant
        self._browser = browser
        self.faults: list[str] = []
        """What went wrong in its pages."""
        self._local = self._client(server.token)
        scopes = ["enqueue", "work", "read", "operate", "admin"]
        self.token = self._local.post(f"/v1/{tenant}/tokens", json={"scopes": scopes}).json()["token"]
        self.client = self._client(self.token)

    def close(self) -> None:
        self._local.close()
        self.client.close()

    def _client(self, token: str) -> httpx2.Client:
        headers = {"authorization": f"Bearer {token}"}
        return httpx2.Client(base_url=self.server.address, headers=headers, trust_env=False, timeout=PATIENCE)

    def ask(self, verb: str, path: str, body: Any = None, tenant: str = "") -> Any:
        client = self._local if tenant else self.client
        response = client.request(verb, f"/v1/{tenant or self.tenant}{path}", json=body)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def queued(self, task: str = "mail", **more: Any) -> str:
        return str(self.ask("POST", "/jobs", {"task": task, **more})["id"])

    def worker(self, *queues: str, **more: Any) -> str:
        return str(self.ask("POST", "/workers", {"name": "w", "queues": list(queues), **more})["worker"])

    def running(self, queue: str, task: str = "mail", worker: str = "", **more: Any) -> tuple[str, str, str]:
        """A job that runs: its worker, its id, its token."""
        id = self.queued(task, queue=queue, **more)
        worker = worker or self.worker(queue)
        (claimed,) = self.ask("POST", f"/workers/{worker}/claim", {"slots": 1})
        self.ask("POST", f"/workers/{worker}/begin", [{"id": id, "token": claimed["token"], "pid": 77}])
        return worker, id, claimed["token"]

    def failed(self, message: str, task: str = "mail") -> str:
        worker, id, token = self.running("failing", task)
        error = {"type": "SmtpError", "message": message, "traceback": f"Traceback: {message}"}
        report = {"id": id, "token": token, "outcome": "failed", "error": error}
        self.ask("POST", f"/workers/{worker}/finish", [report])
        self.ask("DELETE", f"/workers/{worker}")
        return id

    def page(self, token: str = "") -> Page:
        """A page of a browser that has signed in; what goes wrong in it is noted."""
        faults = self.faults
        context = self._browser.new_context(base_url=self.server.address)
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on(
            "response",
            lambda one: faults.append(f"{one.status} {one.url} {one.request.post_data}") if one.status >= 400 else None,
        )
        page.on("pageerror", lambda fault: faults.append(str(fault)))
        page.on("dialog", lambda dialog: faults.append(f"dialog {dialog.message}"))
        page.on(
            "request",
            lambda one: None if one.url.startswith((self.server.address, "data:")) else faults.append(one.url),
        )
        headers = {"authorization": f"Bearer {token or self.token}"}
        page.goto(self.client.post("/session/link", headers=headers).json()["path"])
        return page


FLAGS_OF_SERVER = ("--no-worker", "--no-handlers", "--allow-upload")


@pytest.fixture(scope="module", params=["file", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("dashboard")
    with ExitStack() as stack:
        store = None
        if request.param == "redis":
            store = stack.enter_context(Server("redis", tmp_path_factory.mktemp("redis"))).url
        yield stack.enter_context(process(folder, *FLAGS_OF_SERVER, store=store))


NUMBERS = itertools.count(1)


@pytest.fixture
def site(shared: Process, browser: Browser) -> Iterator[Site]:
    """Whatever a test does to it, its pages say nothing on the console and ask nothing of other servers."""
    found = Site(shared, browser, f"shop-{next(NUMBERS)}")
    yield found
    for context in browser.contexts:
        context.close()
    found.close()
    assert found.faults == []


on_one_store = pytest.mark.parametrize("shared", ["file"], indirect=True)
"""For what no store can do differently."""


def test_every_page_shows_what_there_is_and_nothing_else_is_asked_for(site: Site) -> None:
    """X5: hostile texts are shown as they are."""
    site.ask("PUT", "/limits/api", {"running": 1, "match": {"task": "call"}})
    site.ask("PUT", "/schedules/nightly", {"cron": "0 3 * * *", "job": {"task": "backup"}})
    site.ask("PATCH", "/queues/slow", {"paused": True, "why": HOSTILE})
    failed = site.failed(HOSTILE)
    site.queued(tags=[HOSTILE], payload={"a": HOSTILE})
    page = site.page()
    for name in PAGES:
        page.goto(f"/#/{name}")
        expect(page.get_by_role("main").get_by_role("heading").first).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
    page.goto("/#/schedules")
    expect(page.get_by_text("nightly")).to_be_visible()
    page.goto("/#/queues")
    expect(page.get_by_text(HOSTILE)).to_be_visible()
    page.goto(f"/#/job/{site.tenant}/{failed}")
    expect(page.get_by_text(f"Traceback: {HOSTILE}")).to_be_visible()
    page.goto("/#/jobs")
    expect(page.get_by_text(HOSTILE, exact=True)).to_be_visible()


def test_a_job_that_does_not_run_says_why_and_a_failed_one_runs_again(site: Site) -> None:
    page = site.page()
    id = site.queued("report", queue="nobody")
    expect(page.get_by_role("strong").filter(has_text="No worker")).to_be_visible()  # live: it came after the page
    page.goto(f"/#/job/{site.tenant}/{id}")
    expect(page.locator(".note-line")).to_contain_text("no worker takes jobs from its queue")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("cancelled", exact=True).first).to_be_visible()
    failed = [site.failed(f"smtp {number} refused") for number in (1, 2)]
    page.goto("/#/failures")
    row = page.get_by_role("row").filter(has_text="SmtpError")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("2")
    row.get_by_role("button", name="Traceback").click()
    expect(row.locator("pre")).to_contain_text("Traceback: smtp")
    row.get_by_role("button", name="Retry").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry 2").click()
    expect(page.get_by_text("Nothing has failed.")).to_be_visible()
    assert {site.ask("GET", f"/jobs/{id}")["state"] for id in failed} == {"queued"}
    page.goto("/#/jobs?q=state:queued")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete 2").click()
    expect(page.get_by_text("No job matches.")).to_be_visible()
    page.goto("/#/audit")
    expect(page.get_by_role("row").filter(has_text="delete")).to_have_count(1)


@on_one_store
def test_a_token_that_only_reads_sees_its_tenant_and_no_action(site: Site) -> None:
    token = site.ask("POST", "/tokens", {"scopes": ["read"]})["token"]
    own = site.queued("mine")
    site.ask("POST", "/jobs", {"task": "foreign"}, tenant="default")
    page = site.page(token)
    expect(page.get_by_text("read only")).to_be_visible()
    page.goto("/#/jobs")
    expect(page.get_by_role("link", name="mine")).to_be_visible()
    expect(page.get_by_text("foreign")).to_have_count(0)
    for path in ("jobs", f"job/{site.tenant}/{own}", "queues", "schedules", "limits"):
        page.goto(f"/#/{path}")
        expect(page.get_by_role("main").get_by_role("heading").first).to_be_visible()
        for name in ("Cancel", "Retry", "Delete", "Pause", "Edit", "New limit", "New schedule"):
            expect(page.get_by_role("main").get_by_role("button", name=name, exact=True)).to_have_count(0)
    expect(page.get_by_role("link", name="Tokens")).to_have_count(0)


@on_one_store
def test_a_page_says_when_the_server_is_away_and_goes_on_by_itself(site: Site) -> None:
    page = site.page()
    page.goto("/#/jobs")
    site.queued("first")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    site.server.kill()
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    site.server.start()
    site.queued("second")
    expect(page.get_by_role("link", name="second")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    site.faults[:] = [one for one in site.faults if "net::ERR" not in one]  # the browser says so itself


LEFT_AT_ONCE = """
const add = window.addEventListener;
window.addEventListener = (name, ...rest) => {
    if (name === "hashchange") history.replaceState(null, "", "#/jobs");
    return add.call(window, name, ...rest);
};
"""


@on_one_store
def test_an_address_that_changes_while_the_page_starts_is_followed(site: Site) -> None:
    page = site.page()
    page.add_init_script(LEFT_AT_ONCE)
    page.reload()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()


@on_one_store
def test_workers_show_what_they_use(site: Site) -> None:
    worker = site.worker("mail", slots=4)
    site.ask("POST", f"/workers/{worker}/renew?memory={300 * 2**20}&cpu=0.25", [])
    page = site.page()
    page.goto("/#/workers")
    row = page.get_by_role("row").filter(has_text="mail")
    expect(row).to_contain_text("300.0 MiB")
    expect(row).to_contain_text("25 %")


def test_an_action_on_all_that_match_a_field_of_the_payload_leaves_the_others(site: Site) -> None:
    kept, cancelled = site.queued(payload={"n": 1}), site.queued(payload={"n": 5})
    page = site.page()
    page.goto("/#/jobs?q=payload.n:5")
    expect(page.get_by_role("main").get_by_role("row")).to_have_count(2)  # with the head
    page.get_by_role("main").get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel 1").click()
    expect(page.get_by_text("1 cancelled")).to_be_visible()
    assert [site.ask("GET", f"/jobs/{id}")["state"] for id in (kept, cancelled)] == ["queued", "cancelled"]


def test_jobs_that_are_selected_are_deleted_in_one_request(site: Site) -> None:
    ids = [site.queued() for _ in range(3)]
    page = site.page()
    page.goto("/#/jobs")
    for id in ids[:2]:
        page.get_by_label(f"Select {id}").check()
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if one.method == "DELETE" else None)
    page.get_by_role("main").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("2 deleted")).to_be_visible()
    expect(page.get_by_role("main").get_by_role("row")).to_have_count(2)
    assert [job["id"] for job in site.ask("GET", "/jobs")["jobs"]] == ids[2:]
    assert len(asked) == 1


@on_one_store
def test_editing_a_schedule_keeps_what_the_form_does_not_change(site: Site) -> None:
    whole = {
        "every": 3600.0,
        "start": "2026-01-01T00:00:00Z",
        "end": "2999-01-01T00:00:00Z",
        "overlap": "queue",
        "catch_up": "all",
        "jitter": 30.0,
        "job": {"task": "backup", "payload": [1], "priority": 3},
    }
    site.ask("PUT", "/schedules/nightly", whole)
    page = site.page()
    page.goto("/#/schedules")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Each job up to so many seconds later").fill("60")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("saved")).to_be_visible()
    found = site.ask("GET", "/schedules/nightly")
    assert {name: found[name] for name in whole if name != "job"} == {
        **{name: value for name, value in whole.items() if name != "job"},
        "jitter": 60.0,
    }
    assert (found["job"]["payload"], found["job"]["priority"]) == ([1], 3)


@on_one_store
def test_editing_a_queue_keeps_what_the_form_does_not_change(site: Site) -> None:
    whole = {"policy": "priority", "on_lost": "adopt", "timeout": 90.0, "keep_success": 60.0, "isolate": True}
    site.ask("PATCH", "/queues/slow", whole)
    page = site.page()
    page.goto("/#/queues")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Timeout").fill("120")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("saved")).to_be_visible()
    found = site.ask("GET", "/queues/slow")
    assert {name: found[name] for name in whole} == {**whole, "timeout": 120.0}
