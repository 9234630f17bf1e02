"""The dashboard in a real browser, over a real server for each module of tests; each test has a tenant of its own."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import opened_browser
from tests.support.http_servers import Process, process
from tests.support.patience import PATIENCE
from tests.support.servers import Server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE * 1000)
    with opened_browser() as browser:
        yield browser


class Dashboard:
    """A tenant of its own on a server that the tests of this module share, and a browser that is signed in for it."""

    def __init__(self, server: Process, browser: Browser, tenant: str) -> None:
        self.server = server
        self.tenant = tenant
        self._browser = browser
        self.faults: list[str] = []
        """What went wrong in its pages."""
        self.deleted: set[str] = set()
        """Jobs that a test deletes in a page, which may just have asked for them: that is answered with 404."""
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
        (claimed,) = self.ask("POST", f"/workers/{worker}/claim", {"slots": 1, "wait": 20})
        self.ask("POST", f"/workers/{worker}/begin", [{"id": id, "token": claimed["token"], "pid": 77}])
        return worker, id, claimed["token"]

    def failed(self, message: str, task: str = "mail", **more: Any) -> str:
        worker, id, token = self.running("failing", task)
        error = {"type": "SmtpError", "message": message, "traceback": f"Traceback: {message}"}
        report = {"id": id, "token": token, "outcome": "failed", "error": error, **more}
        self.ask("POST", f"/workers/{worker}/finish", [report])
        self.ask("DELETE", f"/workers/{worker}")
        return id

    def report(self, run: tuple[str, str, str], **what: Any) -> None:
        """What a running job says: `progress`, `output`."""
        worker, id, token = run
        self.ask("POST", f"/workers/{worker}/renew", [{"id": id, "token": token, **what}])

    def finish(self, run: tuple[str, str, str], outcome: str = "ok", **what: Any) -> None:
        worker, id, token = run
        self.ask("POST", f"/workers/{worker}/finish", [{"id": id, "token": token, "outcome": outcome, **what}])

    def page(self, token: str = "", path: str = "/", **form: Any) -> Page:
        """A page of a browser that has signed in; what goes wrong in it is noted. `form`: its width and colours."""
        faults = self.faults

        def expected(url: str) -> bool:
            return any(f"/jobs/{id}" in url for id in self.deleted)

        context = self._browser.new_context(base_url=self.server.address, **form)
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.on(
            "console",
            lambda said: (
                None
                if said.type not in ("error", "warning") or ("404" in said.text and expected(said.location["url"]))
                else faults.append(said.text)
            ),
        )
        page.on(
            "response",
            lambda one: (
                None
                if one.status < 400 or (one.status == 404 and expected(one.url))
                else faults.append(f"{one.status} {one.url} {one.request.post_data}")
            ),
        )
        page.on("pageerror", lambda fault: faults.append(str(fault)))
        page.on("dialog", lambda dialog: faults.append(f"dialog {dialog.message}"))
        page.on(
            "request",
            lambda one: None if one.url.startswith((self.server.address, "data:")) else faults.append(one.url),
        )
        headers = {"authorization": f"Bearer {token or self.token}"}
        page.goto(self.client.post("/session/link", headers=headers).json()["path"])
        if path != "/":
            page.goto(f"/#{path}")
        return page


FLAGS_OF_SERVER = ("--no-worker", "--no-handlers", "--allow-upload")


@pytest.fixture(scope="module", params=["file", "redis"])
def dashboard_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("dashboard")
    with ExitStack() as stack:
        store = None
        if request.param == "redis":
            store = stack.enter_context(Server("redis", tmp_path_factory.mktemp("redis"))).url
        yield stack.enter_context(process(folder, *FLAGS_OF_SERVER, store=store))


NUMBERS = itertools.count(1)


@pytest.fixture
def dashboard(dashboard_server: Process, chromium: Browser) -> Iterator[Dashboard]:
    """Whatever a test does to it, its pages say nothing on the console and ask nothing of other servers."""
    found = Dashboard(dashboard_server, chromium, f"shop-{next(NUMBERS)}")
    yield found
    for context in chromium.contexts:
        context.close()
    found.close()
    assert found.faults == []


on_one_store = pytest.mark.parametrize("dashboard_server", ["file"], indirect=True)
"""For what no store can do differently."""
