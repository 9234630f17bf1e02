"""The dashboard in a real browser, over a real server on both stores."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.dashboards import FLAGS_OF_SERVER, Dashboard, on_one_store
from tests.support.http_servers import process
from tests.support.servers import Server

PAGES = ("", "jobs", "failures", "queues", "workers", "schedules", "limits", "handlers", "audit", "tokens")
HOSTILE = "<img src=x onerror=alert(1)>\"'`${1}</script>\u202e"


def test_every_page_shows_what_there_is_and_nothing_else_is_asked_for(dashboard: Dashboard) -> None:
    """X5: hostile texts are shown as they are."""
    dashboard.ask("PUT", "/limits/api", {"running": 1, "match": {"task": "call"}})
    dashboard.ask("PUT", "/schedules/nightly", {"cron": "0 3 * * *", "job": {"task": "backup"}})
    dashboard.ask("PATCH", "/queues/slow", {"paused": True, "why": HOSTILE})
    failed = dashboard.failed(HOSTILE)
    dashboard.queued(tags=[HOSTILE], payload={"a": HOSTILE})
    page = dashboard.page()
    for name in PAGES:
        page.goto(f"/#/{name}")
        expect(page.get_by_role("main").get_by_role("heading").first).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
    page.goto("/#/schedules")
    expect(page.get_by_text("nightly")).to_be_visible()
    page.goto("/#/queues")
    expect(page.get_by_text(HOSTILE)).to_be_visible()
    page.goto(f"/#/job/{dashboard.tenant}/{failed}")
    expect(page.get_by_text(f"Traceback: {HOSTILE}")).to_be_visible()
    page.goto("/#/jobs")
    expect(page.get_by_text(HOSTILE, exact=True)).to_be_visible()


def test_a_job_that_does_not_run_says_why_and_a_failed_one_runs_again(dashboard: Dashboard) -> None:
    page = dashboard.page()
    id = dashboard.queued("report", queue="nobody")
    expect(page.get_by_role("strong").filter(has_text="No worker")).to_be_visible()  # live: it came after the page
    page.goto(f"/#/job/{dashboard.tenant}/{id}")
    expect(page.locator(".note-line")).to_contain_text("no worker takes jobs from its queue")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("cancelled", exact=True).first).to_be_visible()
    failed = [dashboard.failed(f"smtp {number} refused") for number in (1, 2)]
    page.goto("/#/failures")
    row = page.get_by_role("row").filter(has_text="SmtpError")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("2")
    row.get_by_role("button", name="Traceback").click()
    expect(row.locator("pre")).to_contain_text("Traceback: smtp")
    row.get_by_role("button", name="Retry").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry 2").click()
    expect(page.get_by_text("Nothing has failed.")).to_be_visible()
    assert {dashboard.ask("GET", f"/jobs/{id}")["state"] for id in failed} == {"queued"}
    page.goto("/#/jobs?q=state:queued")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete 2").click()
    expect(page.get_by_text("No job matches.")).to_be_visible()
    page.goto("/#/audit")
    expect(page.get_by_role("row").filter(has_text="delete")).to_have_count(1)


@on_one_store
def test_a_token_that_only_reads_sees_its_tenant_and_no_action(dashboard: Dashboard) -> None:
    token = dashboard.ask("POST", "/tokens", {"scopes": ["read"]})["token"]
    own = dashboard.queued("mine")
    dashboard.ask("POST", "/jobs", {"task": "foreign"}, tenant="default")
    page = dashboard.page(token)
    expect(page.get_by_text("read only")).to_be_visible()
    page.goto("/#/jobs")
    expect(page.get_by_role("link", name="mine")).to_be_visible()
    expect(page.get_by_text("foreign")).to_have_count(0)
    for path in ("jobs", f"job/{dashboard.tenant}/{own}", "queues", "schedules", "limits"):
        page.goto(f"/#/{path}")
        expect(page.get_by_role("main").get_by_role("heading").first).to_be_visible()
        for name in ("Cancel", "Retry", "Delete", "Pause", "Edit", "New limit", "New schedule"):
            expect(page.get_by_role("main").get_by_role("button", name=name, exact=True)).to_have_count(0)
    expect(page.get_by_role("link", name="Tokens")).to_have_count(0)


@on_one_store
def test_a_page_says_when_the_server_is_away_and_goes_on_by_itself(dashboard: Dashboard) -> None:
    page = dashboard.page()
    page.goto("/#/jobs")
    dashboard.queued("first")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    dashboard.server.kill()
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    dashboard.server.start()
    dashboard.queued("second")
    expect(page.get_by_role("link", name="second")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    dashboard.faults[:] = [one for one in dashboard.faults if "net::ERR" not in one]  # the browser says so itself


LEFT_AT_ONCE = """
const add = window.addEventListener;
window.addEventListener = (name, ...rest) => {
    if (name === "hashchange") history.replaceState(null, "", "#/jobs");
    return add.call(window, name, ...rest);
};
"""


@on_one_store
def test_an_address_that_changes_while_the_page_starts_is_followed(dashboard: Dashboard) -> None:
    page = dashboard.page()
    page.add_init_script(LEFT_AT_ONCE)
    page.reload()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()


@on_one_store
def test_workers_show_what_they_use(dashboard: Dashboard) -> None:
    worker = dashboard.worker("mail", slots=4)
    dashboard.ask("POST", f"/workers/{worker}/renew?memory={300 * 2**20}&cpu=0.25", [])
    page = dashboard.page()
    page.goto("/#/workers")
    row = page.get_by_role("row").filter(has_text="mail")
    expect(row).to_contain_text("300.0 MiB")
    expect(row).to_contain_text("25 %")


@on_one_store
def test_a_running_job_shows_what_it_uses(dashboard: Dashboard) -> None:
    run = dashboard.running("mail")
    dashboard.report(run, usage={"memory": 200 * 2**20, "cpu": 1.5, "output": 2048})
    page = dashboard.page()
    page.goto(f"/#/job/{dashboard.tenant}/{run[1]}")
    expect(page.get_by_text("It uses 200.0 MiB of memory, 150 % of a CPU, 2.0 KiB of output.")).to_be_visible()
    page.goto("/#/workers")
    page.get_by_role("button", name="1 of 1").click()
    expect(page.get_by_role("row").filter(has_text="mail")).to_contain_text("200.0 MiB of memory")
    error = {"type": "E", "message": "no", "peak_memory": 2**30, "cpu_time": 3.5}
    dashboard.finish(run, "failed", error=error)
    page.goto(f"/#/job/{dashboard.tenant}/{run[1]}")
    expect(page.get_by_text("at most 1.0 GiB of memory, 3.5 s of CPU time")).to_be_visible()


def test_an_action_on_all_that_match_a_field_of_the_payload_leaves_the_others(dashboard: Dashboard) -> None:
    kept, cancelled = dashboard.queued(payload={"n": 1}), dashboard.queued(payload={"n": 5})
    page = dashboard.page()
    page.goto("/#/jobs?q=payload.n:5")
    expect(page.get_by_role("main").get_by_role("row")).to_have_count(2)  # with the head
    page.get_by_role("main").get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel 1").click()
    expect(page.get_by_text("1 cancelled")).to_be_visible()
    assert [dashboard.ask("GET", f"/jobs/{id}")["state"] for id in (kept, cancelled)] == ["queued", "cancelled"]


def test_jobs_that_are_selected_are_deleted_in_one_request(dashboard: Dashboard) -> None:
    ids = [dashboard.queued() for _ in range(3)]
    page = dashboard.page()
    page.goto("/#/jobs")
    for id in ids[:2]:
        page.get_by_label(f"Select {id}").check()
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if one.method == "DELETE" else None)
    page.get_by_role("main").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("2 deleted")).to_be_visible()
    expect(page.get_by_role("main").get_by_role("row")).to_have_count(2)
    assert [job["id"] for job in dashboard.ask("GET", "/jobs")["jobs"]] == ids[2:]
    assert len(asked) == 1


@on_one_store
def test_editing_a_schedule_keeps_what_the_form_does_not_change(dashboard: Dashboard) -> None:
    whole = {
        "every": 3600.0,
        "start": "2026-01-01T00:00:00Z",
        "end": "2999-01-01T00:00:00Z",
        "overlap": "queue",
        "catch_up": "all",
        "jitter": 30.0,
        "job": {"task": "backup", "payload": [1], "priority": 3},
    }
    dashboard.ask("PUT", "/schedules/nightly", whole)
    page = dashboard.page()
    page.goto("/#/schedules")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Each job up to so many seconds later").fill("60")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("saved")).to_be_visible()
    found = dashboard.ask("GET", "/schedules/nightly")
    assert {name: found[name] for name in whole if name != "job"} == {
        **{name: value for name, value in whole.items() if name != "job"},
        "jitter": 60.0,
    }
    assert (found["job"]["payload"], found["job"]["priority"]) == ([1], 3)


@on_one_store
def test_editing_a_queue_keeps_what_the_form_does_not_change(dashboard: Dashboard) -> None:
    whole = {"policy": "priority", "on_lost": "adopt", "timeout": 90.0, "keep_success": 60.0, "isolate": True}
    dashboard.ask("PATCH", "/queues/slow", whole)
    page = dashboard.page()
    page.goto("/#/queues")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Timeout").fill("120")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("saved")).to_be_visible()
    found = dashboard.ask("GET", "/queues/slow")
    assert {name: found[name] for name in whole} == {**whole, "timeout": 120.0}


@pytest.mark.long
def test_the_overview_says_that_the_store_does_not_answer_and_goes_on(tmp_path: Path, chromium: Browser) -> None:
    (tmp_path / "redis").mkdir()
    with (
        Server("redis", tmp_path / "redis") as store,
        process(tmp_path, *FLAGS_OF_SERVER, store=store.url) as server,
    ):
        dashboard = Dashboard(server, chromium, "shop")
        dashboard.queued(queue="before")
        page = dashboard.page()
        expect(page.get_by_role("link", name="before").first).to_be_visible()
        store.kill()
        expect(page.get_by_role("status").filter(has_text="Store:")).to_be_visible()
        store.restart()
        dashboard.queued(queue="later")
        expect(page.get_by_role("link", name="later").first).to_be_visible()
        expect(page.get_by_role("status").filter(has_text="Store:")).to_have_count(0)
        page.context.close()
        dashboard.close()
