"""Who can use the dashboard, and with what: accessibility, phones, keyboards, themes, and tokens that allow less."""

import base64
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.support.dashboards import Dashboard, on_one_store

AXE = Path(sys.prefix) / "node" / "node_modules" / "axe-core" / "axe.min.js"

PAGES = ("", "jobs", "failures", "queues", "workers", "schedules", "limits", "handlers", "audit", "tokens")
HOSTILE = "<img src=x onerror=alert(1)>\"'`${1}</script>\u202e"


def fill_all(dashboard: Dashboard) -> list[str]:
    """Something on each page, hostile wherever a client may write a text; the paths of all pages."""
    tenant = dashboard.tenant
    dashboard.ask("PUT", "/limits/bank", {"running": 1, "key": "payload.who", "match": {"task": "charge"}})
    run = dashboard.running("payments", "charge", payload={"who": HOSTILE}, worker="", tags=[HOSTILE])
    waiting = dashboard.queued(
        "charge", queue="payments", payload={"who": HOSTILE}, key=HOSTILE, headers={"h": HOSTILE}
    )
    child = dashboard.queued(after=[run[1]], tags=[HOSTILE])
    dashboard.report(run, progress={"done": 1, "total": 3, "note": HOSTILE})
    output = base64.b64encode(HOSTILE.encode()).decode()
    dashboard.report(run, output=[{"stream": "stderr", "data": output}])
    failed = dashboard.failed(HOSTILE)
    dashboard.ask("PATCH", f"/jobs/{failed}", {"annotations": {"note": HOSTILE}})
    done = dashboard.running("done", "sum")
    dashboard.finish(done, result={"text": HOSTILE})
    tiers = [{"name": "short", "seconds": 10}, {"name": "long", "seconds": 60, "cap": "50%"}]
    dashboard.ask("PATCH", "/queues/slow", {"paused": True, "why": HOSTILE, "announcement": HOSTILE, "tiers": tiers})
    dashboard.worker("slow", name=HOSTILE, node=HOSTILE, app=HOSTILE, slots=4)
    dashboard.ask("PUT", "/schedules/nightly", {"cron": "0 3 * * *", "job": {"task": "backup", "payload": HOSTILE}})
    dashboard.ask("PUT", "/handlers/vat", {"lang": "python", "body": f"def run(payload): return {HOSTILE!r}"})
    dashboard.ask("POST", "/tokens", {"scopes": ["read"], "note": HOSTILE})
    return [*PAGES, *(f"job/{tenant}/{id}" for id in (run[1], waiting, child, failed, done[1]))]


def settled(page: Page, path: str) -> None:
    page.goto(f"/#/{path}")
    expect(page.get_by_role("main").get_by_role("heading").first).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


def faults_of(page: Page, only: str = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']") -> list[str]:
    options = f"{{runOnly: {only}, resultTypes: ['violations']}}"
    found: list[dict[str, Any]] = page.evaluate(f"axe.run({options}).then(one => one.violations)")
    return [
        f"{one['id']}: {node['html'][:120]} {node['any'][:1]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@on_one_store
def test_no_page_has_a_serious_fault_of_accessibility(dashboard: Dashboard) -> None:
    paths = fill_all(dashboard)
    faults: dict[str, list[str]] = {}
    for form in ({"color_scheme": "light"}, {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}}):
        page = dashboard.page(**form)
        for path in paths:
            settled(page, path)
            if not page.evaluate("'axe' in window"):
                page.evaluate(AXE.read_text())
            if found := faults_of(page):
                faults[f"/{path} {form['color_scheme']}"] = found
    assert faults == {}, "\n".join(f"{path}: {one}" for path, found in faults.items() for one in found)


@on_one_store
def test_dialogs_menus_and_the_palette_have_no_serious_fault(dashboard: Dashboard) -> None:
    dashboard.queued(queue="mail")
    page = dashboard.page(path="/queues")
    page.evaluate(AXE.read_text())
    page.get_by_role("button", name="Edit").click()
    assert faults_of(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    assert faults_of(page) == []
    page.keyboard.press("Escape")
    page.goto("/#/jobs")
    page.get_by_role("combobox", name="Query").press_sequentially("state:")
    expect(page.get_by_role("listbox", name="Completions")).to_be_visible()
    assert faults_of(page) == []


def test_hostile_texts_are_shown_as_they_are_on_every_page(dashboard: Dashboard) -> None:
    """X5."""
    paths = fill_all(dashboard)
    page = dashboard.page()
    seen = ""
    for path in paths:
        settled(page, path)
        for name in ("Show", "Traceback", "vat"):
            for button in page.get_by_role("main").get_by_role("button", name=name, exact=True).all():
                button.click()
        if path in ("queues", "workers", "tokens", "failures") or path.startswith("job/"):
            expect(page.get_by_role("main").get_by_text("onerror=alert").first).to_be_visible()
        seen += page.get_by_role("main").inner_text()
    assert page.locator("img[src]").count() == 0
    assert seen.count("<img src=x onerror=alert(1)>") >= 15
    assert page.evaluate("[...document.scripts].every(one => one.src.startsWith(location.origin))")


@on_one_store
def test_no_page_is_wider_than_a_phone(dashboard: Dashboard) -> None:
    page = dashboard.page(viewport={"width": 390, "height": 844})
    wide = {}
    for path in fill_all(dashboard):
        settled(page, path)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            wide[path] = width
    assert wide == {}


@on_one_store
def test_the_palette_goes_everywhere_by_keyboard(dashboard: Dashboard) -> None:
    id = dashboard.queued("render", queue="films")
    page = dashboard.page()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("films")
    expect(page.get_by_role("option", name="Queue films")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("combobox", name="Query")).to_have_value("queue:films")
    page.keyboard.press("Control+k")
    page.keyboard.type(id)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="render")).to_be_visible()


@on_one_store
def test_colours_follow_the_system_until_they_are_chosen(dashboard: Dashboard) -> None:
    page = dashboard.page(color_scheme="dark")
    theme = "document.documentElement.dataset.theme"
    expect(page.get_by_role("button", name="Light")).to_be_visible()
    assert page.evaluate(theme) == "dark"
    page.get_by_role("button", name="Light").click()
    page.reload()
    expect(page.get_by_role("button", name="Dark")).to_be_visible()
    assert page.evaluate(theme) == "light"


@on_one_store
def test_times_are_in_the_zone_of_the_viewer_and_exact_on_hover(dashboard: Dashboard) -> None:
    id = dashboard.queued(run_at="2031-01-15T12:00:00Z")
    page = dashboard.page(path=f"/job/{dashboard.tenant}/{id}", timezone_id="Asia/Tokyo", locale="en-GB")
    when = page.locator(".why time")
    expect(when).to_have_attribute("title", "Wednesday, 15 January 2031 at 21:00:00 GMT+9")
    expect(when).to_contain_text("in ")


@on_one_store
def test_a_token_that_only_reads_sees_no_button_that_changes_anything(dashboard: Dashboard) -> None:
    paths = fill_all(dashboard)
    reader = dashboard.ask("POST", "/tokens", {"scopes": ["read"]})["token"]
    page = dashboard.page(reader)
    harmless = {"Live", "Still", "Find", "Clear", "Show", "Hide", "Traceback", "1 h", "24 h", "30 d", "Count", "vat"}
    for path in paths:
        if path in ("tokens", "audit"):
            continue
        settled(page, path)
        main = page.get_by_role("main")
        buttons = [one.strip() for one in main.locator("button, summary.button").all_inner_texts()]
        facets = main.locator(".facet button").all_inner_texts()
        shown = [one for one in buttons if one not in harmless and one not in facets and " of " not in one]
        assert shown == [], path
        assert main.get_by_role("checkbox").count() == 0


@on_one_store
def test_a_token_of_all_tenants_chooses_one_or_sees_all(dashboard: Dashboard) -> None:
    dashboard.queued("mine")
    page = dashboard.page(dashboard.server.token)
    page.get_by_label("Tenant").select_option(dashboard.tenant)
    page.goto("/#/jobs")
    expect(page.get_by_role("link", name="mine")).to_be_visible()
    page.get_by_label("Tenant").select_option("-")
    for path in PAGES:
        settled(page, path)
        expect(page.get_by_role("alert")).to_have_count(0)
    page.goto("/#/jobs")
    expect(page.get_by_role("cell", name=dashboard.tenant, exact=True).first).to_be_visible()


@on_one_store
def test_a_session_that_has_ended_asks_to_sign_in_again(dashboard: Dashboard) -> None:
    issued = dashboard.ask("POST", "/tokens", {"scopes": ["read"]})
    page = dashboard.page(issued["token"])
    expect(page.get_by_role("navigation")).to_be_visible()
    dashboard.ask("DELETE", f"/tokens/{issued['key']}")
    expect(page.get_by_label("Token")).to_be_visible()
    page.get_by_label("Token").fill(dashboard.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation")).to_be_visible()
    dashboard.faults[:] = [one for one in dashboard.faults if "401" not in one]


SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
    for (const one of list.getEntries()) if (!one.hadRecentInput) window.shifts += one.value;
}).observe({ type: "layout-shift" });
"""


@on_one_store
def test_pages_that_follow_what_happens_stand_still(dashboard: Dashboard) -> None:
    """Figures change, nothing moves."""
    run = dashboard.running("payments", "charge")
    for _ in range(2):
        dashboard.queued(queue="payments")
    dashboard.ask("POST", f"/workers/{run[0]}/renew?memory={2**20}&cpu=0.01", [])
    page = dashboard.page()
    for path, text in (("", "Queued 9"), ("queues", "9"), ("workers", "")):
        settled(page, path)
        page.evaluate(SHIFTS)
        if path == "":
            for _ in range(7):
                dashboard.queued(queue="payments")
            expect(page.get_by_role("link", name=text)).to_be_visible()
        elif path == "queues":
            expect(page.get_by_role("link", name=text, exact=True)).to_be_visible()
        else:
            dashboard.ask("POST", f"/workers/{run[0]}/renew?memory={300 * 2**20}&cpu=0.25", [])
            expect(page.get_by_role("cell", name="300.0 MiB")).to_be_visible()
        assert page.evaluate("window.shifts") < 0.01, path
