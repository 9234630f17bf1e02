"""Pages of the dashboard follow the event stream, in a real browser over a real server on both stores."""

import base64
import time
from collections.abc import Callable

from playwright.sync_api import Page, Request, expect

from tests.support.dashboards import Dashboard, on_one_store
from tests.support.patience import PATIENCE

DEAF = """
const later = window.setTimeout;
const regular = [1500, 2000, 3000, 4000, 5000, 10000];
window.setTimeout = (run, wait, ...rest) => (regular.includes(wait) ? 0 : later(run, wait, ...rest));
let hidden = false;
Object.defineProperty(document, "hidden", { get: () => hidden });
window.hide = (value) => { hidden = value; document.dispatchEvent(new Event("visibilitychange")); };
"""
"""No question is asked again because time has passed. And a page can be hidden."""


class Streams:
    """The event streams that a page has open."""

    def __init__(self, page: Page) -> None:
        self.open: list[Request] = []
        self.opened = 0
        page.on("request", self._begun)
        page.on("requestfinished", self._ended)
        page.on("requestfailed", self._ended)

    def _begun(self, request: Request) -> None:
        if "/events" in request.url:
            self.open.append(request)
            self.opened += 1

    def _ended(self, request: Request) -> None:
        if request in self.open:
            self.open.remove(request)


def until(page: Page, holds: Callable[[], bool]) -> None:
    over = time.monotonic() + PATIENCE
    while time.monotonic() < over:
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not come to hold")


def deaf(dashboard: Dashboard, scopes: tuple[str, ...] = ("read",)) -> tuple[Page, Streams]:
    """A page that learns of changes from events alone."""
    page = dashboard.page(dashboard.ask("POST", "/tokens", {"scopes": list(scopes)})["token"])
    page.add_init_script(DEAF)
    streams = Streams(page)
    page.reload()
    until(page, lambda: len(streams.open) == 1)
    return page, streams


def test_changes_show_because_of_events_and_each_page_has_one_stream(dashboard: Dashboard) -> None:
    page, streams = deaf(dashboard)
    main = page.get_by_role("main")
    expect(main.get_by_text("windlass enqueue add")).to_be_visible()
    other = dashboard.queued("other", queue="slow")
    page.goto("/#/jobs")
    expect(main.get_by_role("link", name="other", exact=True)).to_be_visible()
    run = dashboard.running("fast", "report")
    expect(main.get_by_role("link", name="report", exact=True)).to_be_visible()
    expect(main.get_by_role("row").filter(has_text="report")).to_contain_text("running")
    expect(page.get_by_role("complementary").get_by_role("button", name="running 1")).to_be_visible()
    assert len(streams.open) == 1
    page.goto(f"/#/job/{dashboard.tenant}/{run[1]}")
    expect(main.get_by_role("heading", name="report")).to_be_visible()
    dashboard.report(run, progress={"done": 3, "total": 4})
    expect(main.get_by_text("3 of 4")).to_be_visible()
    for piece in ("grüße".encode()[:3], "grüße".encode()[3:]):
        dashboard.report(run, output=[{"stream": "stdout", "data": base64.b64encode(piece).decode()}])
    expect(page.get_by_role("log")).to_have_text("grüße")
    dashboard.finish(run, result={"rows": 7})
    expect(page.locator("pre").filter(has_text='"rows": 7')).to_be_visible()
    expect(page.get_by_role("log")).to_have_text("grüße")
    until(page, lambda: not streams.open)  # the stream of a job ends with it
    page.goto("/#/")
    expect(page.get_by_role("link", name="Queued 1")).to_be_visible()
    dashboard.ask("POST", f"/jobs/{other}/cancel")
    expect(page.get_by_role("link", name="Queued 0")).to_be_visible()
    assert len(streams.open) == 1


def test_a_page_of_a_job_follows_an_edit_its_begin_and_the_job_that_follows_it(dashboard: Dashboard) -> None:
    id = dashboard.queued("report", queue="reports", then={"task": "send", "queue": "mail"})
    follow_up = dashboard.ask("GET", f"/jobs/{id}")["follow_up"]
    page, _ = deaf(dashboard)
    main = page.get_by_role("main")
    page.goto(f"/#/job/{dashboard.tenant}/{id}")
    family = main.get_by_role("region", name="Jobs before and after")
    expect(family).to_contain_text("on success")
    dashboard.ask("PATCH", f"/jobs/{id}", {"priority": 7})
    expect(main.locator("dd").filter(has_text="7").first).to_be_visible()
    worker = dashboard.worker("reports")
    (claimed,) = dashboard.ask("POST", f"/workers/{worker}/claim", {"slots": 1, "wait": 20})
    expect(main.get_by_text("Runs on")).to_be_visible()
    dashboard.ask("POST", f"/workers/{worker}/begin", [{"id": id, "token": claimed["token"], "pid": 4711}])
    expect(main.get_by_text("in process 4711")).to_be_visible()
    dashboard.finish((worker, id, claimed["token"]), result={"rows": 7})
    until(page, lambda: dashboard.ask("GET", "/jobs?task=send")["jobs"] != [])
    page.reload()  # it may have asked a moment before the other job was made
    family.get_by_role("link", name="send").click()
    expect(main.locator("h1 + .badge + code")).to_have_text(follow_up)


@on_one_store
def test_a_list_hears_only_of_its_queue_and_its_task(dashboard: Dashboard) -> None:
    page, streams = deaf(dashboard)
    page.goto("/#/jobs?q=state:queued task:mail payload.n:5")
    until(page, lambda: [one.url for one in streams.open if "task=mail" in one.url] != [])
    assert [one.url.partition("?")[2] for one in streams.open] == ["task=mail"]
    dashboard.queued("mail", payload={"n": 5})
    expect(page.get_by_role("main").get_by_role("link", name="mail", exact=True)).to_be_visible()


@on_one_store
def test_a_hidden_page_has_no_stream_and_catches_up(dashboard: Dashboard) -> None:
    page, streams = deaf(dashboard)
    page.goto("/#/jobs")
    dashboard.queued("first")
    expect(page.get_by_role("link", name="first", exact=True)).to_be_visible()
    page.evaluate("hide(true)")
    until(page, lambda: not streams.open)
    dashboard.queued("second")
    page.evaluate("hide(false)")
    expect(page.get_by_role("link", name="second", exact=True)).to_be_visible()
    until(page, lambda: len(streams.open) == 1)
    dashboard.queued("third")
    expect(page.get_by_role("link", name="third", exact=True)).to_be_visible()


@on_one_store
def test_a_job_that_is_retried_is_followed_again(dashboard: Dashboard) -> None:
    id = dashboard.failed("refused")
    page, streams = deaf(dashboard, ("read", "operate"))
    page.goto(f"/#/job/{dashboard.tenant}/{id}")
    page.get_by_role("button", name="Retry", exact=True).click()
    until(page, lambda: len(streams.open) == 1 and id in streams.open[0].url)
    dashboard.ask("POST", f"/jobs/{id}/cancel")
    expect(page.get_by_role("main").get_by_text("cancelled", exact=True).first).to_be_visible()


@on_one_store
def test_a_page_with_too_many_events_asks_now_and_then_instead(dashboard: Dashboard) -> None:
    page = dashboard.page()
    streams = Streams(page)
    page.goto("/#/jobs?q=queue:busy")
    until(page, lambda: len(streams.open) == 1 and "busy" in streams.open[0].url)
    for _ in range(3):
        dashboard.ask("POST", "/jobs/batch", [{"task": "noop", "queue": "busy"}] * 100)
    until(page, lambda: not streams.open)
    opened = streams.opened
    dashboard.queued("later", queue="busy")
    expect(page.get_by_role("link", name="later", exact=True)).to_be_visible()
    until(page, lambda: streams.opened > opened)  # it tries again
