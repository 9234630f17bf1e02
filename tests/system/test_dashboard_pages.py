"""What each page of the dashboard shows and does, in a real browser over a real server on both stores."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.dashboards import Dashboard, on_one_store


def fill(page: Page, **fields: str) -> None:
    """The fields of the open dialog, by the start of their labels, with `_` for a space; then its last button."""
    dialog = page.get_by_role("dialog")
    for name, value in fields.items():
        dialog.get_by_label(name.replace("_", " ")).first.fill(value)
    dialog.locator("button[type=submit]").click()
    expect(dialog).to_have_count(0)


def press(page: Page, name: str, row: str = "") -> None:
    place = page.get_by_role("row").filter(has_text=row) if row else page.get_by_role("main")
    place.get_by_role("button", name=name, exact=True).click()


# Overview


def test_the_overview_says_what_holds_jobs_up(dashboard: Dashboard) -> None:
    dashboard.ask("PUT", "/limits/bank", {"running": 1, "match": {"task": "charge"}})
    run = dashboard.running("payments", "charge")
    dashboard.queued("charge", queue="payments")
    dashboard.queued(queue="alone")
    dashboard.ask("PATCH", "/queues/images", {"paused": True, "why": "disk full"})
    page = dashboard.page()
    main = page.get_by_role("main")
    expect(main.get_by_text("windlass worker MODULE:APP -q alone")).to_be_visible()
    expect(main.get_by_text("images (disk full)")).to_be_visible()
    limits = main.get_by_role("region", name="Limits that hold jobs back").get_by_role("row").filter(has_text="bank")
    expect(limits).to_contain_text("1 / 1")
    expect(page.get_by_role("link", name="Running 1")).to_contain_text("of 1 slots")
    dashboard.finish(run)  # live: the page is not loaded again
    expect(page.get_by_role("link", name="Running 0")).to_be_visible()
    press(page, "24 h")
    expect(main.get_by_role("img", name="Runs: ok")).to_be_visible()


def test_the_overview_lists_workers_that_came_and_went_and_paused_tasks(dashboard: Dashboard) -> None:
    worker = dashboard.worker("mail", node="machine-a")
    dashboard.ask("DELETE", f"/workers/{worker}")
    dashboard.queued("charge")
    dashboard.ask("PATCH", "/tasks/charge", {"paused": True, "why": "the bank is down"})
    page = dashboard.page()
    main = page.get_by_role("main")
    changes = main.get_by_role("list", name="Workers that came and went").get_by_role("listitem")
    expect(changes.first).to_contain_text("stopped")
    expect(changes.nth(1)).to_contain_text("joined")
    paused = main.locator(".note-line").filter(has_text="the bank is down")
    paused.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("charge goes on")).to_be_visible()
    expect(paused).to_have_count(0)
    page.reload()  # what came and went is kept by the store
    expect(changes).to_have_count(2)
    expect(main.get_by_text("Store", exact=True)).to_have_count(0)  # that is for a token of all tenants
    other = dashboard.page(dashboard.server.token)
    other.evaluate("name => localStorage.setItem('tenant', name)", dashboard.tenant)
    other.reload()
    expect(other.get_by_role("main").locator(".card").filter(has_text="Store")).to_contain_text(
        re.compile("[0-9] [KM]iB")
    )


def test_a_task_is_paused_and_resumed(dashboard: Dashboard) -> None:
    dashboard.queued("charge")
    page = dashboard.page(path="/jobs?q=task:charge")
    press(page, "Pause charge")
    fill(page, Why="the bank is down")
    expect(page.get_by_role("main")).to_contain_text("the bank is down")
    assert dashboard.ask("GET", "/tasks/charge")["paused"]
    press(page, "Resume charge")
    expect(page.get_by_role("button", name="Pause charge")).to_be_visible()
    assert not dashboard.ask("GET", "/tasks/charge").get("paused")


@on_one_store
def test_an_empty_queue_teaches_the_first_commands(dashboard: Dashboard) -> None:
    page = dashboard.page()
    expect(page.get_by_text("windlass enqueue add")).to_be_visible()
    for path, command in (("jobs", "windlass enqueue"), ("workers", "windlass worker"), ("limits", "limits set")):
        page.goto(f"/#/{path}")
        expect(page.locator(".empty code")).to_contain_text(command)


# Jobs


def test_the_query_bar_completes_and_the_facets_narrow(dashboard: Dashboard) -> None:
    for task in ("mail", "mail", "render"):
        dashboard.queued(task, queue=f"of-{task}")
    page = dashboard.page(path="/jobs")
    main = page.get_by_role("main")
    expect(main.get_by_text("3 jobs")).to_be_visible()
    bar = page.get_by_role("combobox", name="Query")
    bar.press_sequentially("ta")
    bar.press("Tab")
    expect(bar).to_have_value("task:")
    options = page.get_by_role("listbox", name="Completions").get_by_role("option")
    expect(options).to_have_count(2)
    bar.press("ArrowDown")
    bar.press("ArrowDown")
    bar.press("Enter")
    expect(bar).to_have_value("task:render ")
    bar.press("Enter")
    expect(main.get_by_text("1 job", exact=True)).to_be_visible()
    expect(main.get_by_role("row")).to_have_count(2)
    filters = page.get_by_role("complementary", name="Filters")
    filters.get_by_role("button", name="render 1", exact=True).click()
    expect(main.get_by_role("row")).to_have_count(4)
    filters.get_by_role("button", name="of-mail 2", exact=True).click()
    expect(main.get_by_role("row")).to_have_count(3)
    expect(page).to_have_url(f"{dashboard.server.address}/#/jobs?q=queue%3Aof-mail")


def test_a_facet_counts_what_runs_on_each_node(dashboard: Dashboard) -> None:
    for node, queue in (("rack 1", "a"), ("rack 1", "b"), ("rack 2", "c")):
        dashboard.running(queue, f"of-{queue}", dashboard.worker(queue, node=node))
    dashboard.worker("d", node="idle")
    shared = dashboard.ask("POST", "/workers", {"name": "w", "node": "shared"}, tenant="-")["worker"]
    dashboard.queued()
    page = dashboard.page(path="/jobs")
    running = page.get_by_role("group", name="Running on")
    expect(running.get_by_role("button")).to_have_text(["idle0", "rack 12", "rack 21", "shared"])
    local = dashboard.page(dashboard.server.token)  # which knows that no other tenant has jobs that run
    own = {"tenant": dashboard.tenant, "queue": "a", "task": "of-a", "states": {"running": 3}, "outcomes": {}}
    local.route("**/v1/-/stats", lambda route: route.fulfill(json={"queues": [own]}))
    local.evaluate("name => localStorage.setItem('tenant', name)", dashboard.tenant)
    local.goto("/#/jobs")
    local.reload()
    expect(local.get_by_role("group", name="Running on").get_by_role("button").last).to_have_text("shared0")
    local.close()
    dashboard.ask("DELETE", f"/workers/{shared}", tenant="-")
    running.get_by_role("button", name="rack 1").click()
    expect(page).to_have_url(f"{dashboard.server.address}/#/jobs?q=state%3Arunning%20node%3A%22rack%201%22")
    main = page.get_by_role("main")
    expect(main.get_by_role("row")).to_have_count(3)
    expect(main.get_by_role("link", name="of-a")).to_be_visible()
    expect(running.get_by_role("button", name="rack 1")).to_have_attribute("aria-pressed", "true")
    dashboard.running("e", "of-e", dashboard.worker("e", node="rack 1"))  # live
    expect(main.get_by_role("row")).to_have_count(4)
    expect(running.get_by_role("button", name="rack 1")).to_have_text("rack 13")
    running.get_by_role("button", name="rack 1").click()
    expect(page).to_have_url(f"{dashboard.server.address}/#/jobs")


@on_one_store
def test_a_query_that_names_no_field_says_which_there_are(dashboard: Dashboard) -> None:
    page = dashboard.page(path="/jobs?q=colour:red")
    expect(page.get_by_role("alert")).to_contain_text("colour: is no field of a job")


def test_an_action_on_all_that_match_counts_first_and_says_how_far_it_is(dashboard: Dashboard) -> None:
    ids = [dashboard.queued() for _ in range(3)]
    page = dashboard.page(path="/jobs")
    parts: list[Route] = []

    def hold(route: Route) -> None:
        if (route.request.post_data_json or {}).get("dry_run"):
            route.continue_()
        else:
            parts.append(route)

    page.route("**/jobs/cancel", hold)
    press(page, "Cancel")
    expect(page.get_by_role("dialog")).to_contain_text("Cancel 3 jobs?")
    page.get_by_role("dialog").get_by_role("button", name="Cancel 3").click()
    expect(page.get_by_text("Cancel: 0 of 3")).to_be_visible()
    dashboard.ask("POST", f"/jobs/{ids[0]}/cancel")
    expect(page.get_by_text("Cancel: 1 of 3")).to_be_visible()
    parts[0].continue_()
    expect(page.get_by_text("2 cancelled")).to_be_visible()
    assert {dashboard.ask("GET", f"/jobs/{id}")["state"] for id in ids} == {"cancelled"}


@on_one_store
def test_an_action_on_many_says_how_many_are_still_being_stopped(dashboard: Dashboard) -> None:
    waiting = dashboard.queued()
    _, one, _ = dashboard.running("slow")
    dashboard.running("slower")
    page = dashboard.page(path="/jobs")
    page.get_by_label(f"Select {waiting}").click()
    page.get_by_label(f"Select {one}").click()
    press(page, "Cancel")
    expect(page.get_by_text("1 cancelled, 1 is being stopped")).to_be_visible()
    press(page, "Delete")
    expect(page.get_by_role("dialog")).to_contain_text("2 run, and are stopped first")
    page.get_by_role("dialog").get_by_role("button", name="Delete 3").click()
    expect(page.get_by_text("1 deleted, 2 are being stopped")).to_be_visible()
    page.goto(f"/#/job/{dashboard.tenant}/{dashboard.running('other')[1]}")
    press(page, "Cancel")
    expect(page.get_by_text("it is being stopped")).to_be_visible()


@on_one_store
def test_a_list_stands_still_while_jobs_are_selected(dashboard: Dashboard) -> None:
    ids = [dashboard.queued() for _ in range(4)]
    page = dashboard.page(path="/jobs")
    page.get_by_label(f"Select {ids[3]}").click()
    page.get_by_label(f"Select {ids[1]}").click(modifiers=["Shift"])
    expect(page.get_by_text("3 selected")).to_be_visible()
    dashboard.queued("new")
    expect(page.get_by_role("complementary").get_by_role("button", name="new 1")).to_be_visible()
    expect(page.get_by_role("link", name="new", exact=True)).to_have_count(0)
    press(page, "Cancel")
    expect(page.get_by_text("3 cancelled")).to_be_visible()
    expect(page.get_by_role("link", name="new", exact=True)).to_be_visible()
    assert dashboard.ask("GET", f"/jobs/{ids[0]}")["state"] == "queued"


def test_an_export_has_a_line_for_each_job_that_matches(dashboard: Dashboard) -> None:
    for number in range(3):
        dashboard.queued(payload={"n": number % 2})
    page = dashboard.page(path="/jobs?q=payload.n:0")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    assert len(Path(download.value.path()).read_text().splitlines()) == 2


@on_one_store
def test_a_long_list_loads_what_comes_into_view_and_keeps_few_rows(dashboard: Dashboard) -> None:
    for _ in range(7):
        dashboard.ask("POST", "/jobs/batch", [{"task": "mail"}] * 100)
    page = dashboard.page(path="/jobs")
    rows = page.get_by_role("main").locator("tbody tr")
    expect(rows).to_have_count(50)
    more = page.get_by_role("button", name="Show more")
    for most in range(100, 501, 50):
        more.scroll_into_view_if_needed()
        expect(rows).to_have_count(most)
    while more.count():
        page.mouse.wheel(0, 10_000)
    expect(rows).to_have_count(500)
    press(page, "Back to the newest")
    expect(rows).to_have_count(50)


@pytest.mark.long
def test_a_list_of_a_hundred_thousand_jobs(dashboard: Dashboard) -> None:
    lines = b"\n".join([b'{"task": "mail"}'] * 20_000)
    for _ in range(5):
        path, form = f"/v1/{dashboard.tenant}/jobs/batch", {"content-type": "application/x-ndjson"}
        assert dashboard.client.post(path, content=lines, headers=form).is_success
    page = dashboard.page(path="/jobs?q=task:mail")
    expect(page.get_by_text("100\u202f000 jobs")).to_be_visible()
    expect(page.get_by_role("main").locator("tbody tr")).to_have_count(50)
    press(page, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete 100\u202f000").click()
    expect(page.get_by_text("100\u202f000 deleted", exact=False)).to_be_visible()
    expect(page.get_by_text("No job matches.")).to_be_visible()


# One job


def test_a_job_says_why_it_waits_and_what_to_do(dashboard: Dashboard) -> None:
    dashboard.ask("PUT", "/limits/bank", {"running": 1, "match": {"task": "charge"}})
    worker = dashboard.worker("payments", slots=3)
    run = dashboard.running("payments", "charge", worker)
    limited = dashboard.queued("charge", queue="payments")
    dashboard.ask("PATCH", "/queues/images", {"paused": True, "why": "disk full"})
    dashboard.worker("images")
    paused = dashboard.queued(queue="images")
    page = dashboard.page(path=f"/job/{dashboard.tenant}/{limited}")
    why = page.locator(".why")
    expect(why).to_contain_text("a limit holds it back (bank)")
    page.goto(f"/#/job/{dashboard.tenant}/{paused}")
    expect(why).to_contain_text("disk full")
    why.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("queue images goes on")).to_be_visible()
    assert not dashboard.ask("GET", "/queues/images").get("paused")
    dashboard.finish(run)


def test_a_running_job_shows_progress_and_output_as_they_come(dashboard: Dashboard) -> None:
    run = dashboard.running("reports", "report")
    child = dashboard.queued(after=[run[1]])
    page = dashboard.page(path=f"/job/{dashboard.tenant}/{run[1]}")
    expect(page.get_by_text("in process 77")).to_be_visible()
    expect(page.get_by_role("region", name="Jobs before and after")).to_contain_text("mailblocked")
    dashboard.report(run, progress={"done": 3, "total": 4, "note": "page 3"})
    expect(page.get_by_text("3 of 4")).to_be_visible()
    for piece in ("gr\u00fc\u00dfe".encode()[:3], "gr\u00fc\u00dfe".encode()[3:]):
        dashboard.report(run, output=[{"stream": "stdout", "data": base64.b64encode(piece).decode()}])
    expect(page.get_by_role("log")).to_have_text("gr\u00fc\u00dfe")
    dashboard.finish(run, result={"rows": 7})
    expect(page.locator("pre").filter(has_text='"rows": 7')).to_be_visible()
    page.goto(f"/#/job/{dashboard.tenant}/{child}")
    family = page.get_by_role("region", name="Jobs before and after")
    expect(family).to_contain_text("reportsucceeded")
    family.get_by_role("link", name="report").click()
    expect(family).to_contain_text("mail")


def test_a_job_shows_the_steps_that_it_has_finished(dashboard: Dashboard) -> None:
    worker, id, token = dashboard.running("orders", "order")
    page = dashboard.page(path=f"/job/{dashboard.tenant}/{id}")
    expect(page.get_by_text("in process 77")).to_be_visible()
    steps = page.get_by_role("region", name="Steps", exact=True).first
    expect(steps).to_have_count(0)
    for name, result in (("charge <i>", b"{}"), ("book", b"x" * 2048)):
        step = {"id": id, "token": token, "name": name, "result": base64.b64encode(result).decode()}
        dashboard.ask("POST", f"/workers/{worker}/steps", [step])
    expect(steps.get_by_role("row")).to_have_count(3)  # with the head
    expect(steps.get_by_role("row").nth(1)).to_contain_text("charge <i>")
    expect(steps.get_by_role("row").nth(2)).to_contain_text("2.0 KiB")
    dashboard.finish((worker, id, token))
    expect(page.get_by_text("succeeded", exact=True).first).to_be_visible()
    expect(steps.get_by_role("row")).to_have_count(3)


@on_one_store
def test_a_payload_is_hidden_until_asked_for(dashboard: Dashboard) -> None:
    id = dashboard.queued(payload={"card": "4242"})
    page = dashboard.page(path=f"/job/{dashboard.tenant}/{id}")
    panel = page.get_by_role("region", name="Payload")
    expect(panel).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if "payload=true" in one.url else None)
    expect(page.get_by_text("4242")).to_have_count(0)
    assert asked == []
    panel.get_by_role("button", name="Show").click()
    expect(panel.get_by_text("4242")).to_be_visible()


def test_a_copy_of_a_job_keeps_its_options_and_takes_another_payload(dashboard: Dashboard) -> None:
    options = {"max_retry": 2, "priority": 5, "tags": ["vip"], "timeout": 90.0, "keep_success": None, "isolate": True}
    id = dashboard.queued("charge", payload={"cents": 100}, **options)
    page = dashboard.page(path=f"/job/{dashboard.tenant}/{id}")
    press(page, "Run a copy")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Payload").fill("{not json")
    dialog.get_by_role("button", name="Queue").click()
    expect(dialog.get_by_role("alert")).to_contain_text("The payload is no JSON")
    fill(page, Payload='{"cents": 150}')
    expect(page.get_by_text("queued", exact=True).first).to_be_visible()
    expect(page.get_by_role("main").get_by_text(id)).to_have_count(0)
    (copy,) = [one for one in dashboard.ask("GET", "/jobs")["jobs"] if one["id"] != id]
    assert {name: copy[name] for name in options} == options
    assert dashboard.ask("GET", f"/jobs/{copy['id']}?payload=true")["payload"] == {"cents": 150}


def test_a_waiting_job_is_edited(dashboard: Dashboard) -> None:
    id = dashboard.queued("charge", payload={"cents": 100}, tags=["vip"])
    page = dashboard.page(path=f"/job/{dashboard.tenant}/{id}")
    press(page, "Edit")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Payload").fill("{not json")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("The payload is no JSON")
    fill(
        page, Payload='{"cents": 150}', Priority="-1", Queue="late", Tags="vip late", Not_before="2999-01-31T12:00:00Z"
    )
    expect(page.get_by_text("scheduled", exact=True).first).to_be_visible()
    job = dashboard.ask("GET", f"/jobs/{id}?payload=true")
    assert (job["payload"], job["priority"], job["queue"], job["tags"]) == ({"cents": 150}, -1, "late", ["vip", "late"])
    press(page, "Edit")
    fill(page, Not_before="")
    expect(page.get_by_text("queued", exact=True).first).to_be_visible()
    dashboard.ask("POST", f"/jobs/{id}/cancel")
    expect(page.get_by_role("button", name="Edit", exact=True)).to_have_count(0)


def test_a_running_job_is_ended_by_hand_and_annotated(dashboard: Dashboard) -> None:
    _, id, _ = dashboard.running("tapes", "backup")
    page = dashboard.page(path=f"/job/{dashboard.tenant}/{id}")
    page.get_by_text("More", exact=True).click()
    press(page, "Annotate")
    fill(page, Name="ticket", Text="OPS-7")
    expect(page.get_by_role("region", name="Details").get_by_text("ticket: OPS-7")).to_be_visible()
    page.get_by_text("More", exact=True).click()
    press(page, "Fail by hand")
    fill(page, Why="the tape is broken")
    expect(page.get_by_role("region", name="Failed run").get_by_text("the tape is broken")).to_be_visible()
    press(page, "Retry")
    expect(page.get_by_role("button", name="Retry")).to_have_count(0)
    page.get_by_text("More", exact=True).click()
    press(page, "Delete")
    dashboard.deleted.add(id)
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No jobs yet.")).to_be_visible()


# Queues, workers, limits, schedules


@on_one_store
def test_a_queue_gets_tiers_and_a_pause_with_an_end(dashboard: Dashboard) -> None:
    dashboard.queued(queue="renders")
    page = dashboard.page(path="/queues")
    press(page, "Edit", row="renders")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Tiers").fill("short ten")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("is no tier")
    fill(page, Tiers="short 10 100%\nlong 600 1", Announcement="new machine")
    expect(page.get_by_text("new machine")).to_be_visible()
    found = dashboard.ask("GET", "/queues/renders")
    assert [one["name"] for one in found["tiers"]] == ["short", "long"]
    press(page, "Pause", row="renders")
    fill(page, Why="moving", For_how_many_minutes="30")
    expect(page.get_by_role("row").filter(has_text="renders")).to_contain_text("goes on in")
    assert dashboard.ask("GET", "/queues/renders")["until"]
    press(page, "Resume", row="renders")
    expect(page.get_by_text("renders goes on")).to_be_visible()


def test_workers_stand_by_node_with_what_they_run(dashboard: Dashboard) -> None:
    worker = dashboard.worker("mail", slots=2, node="machine-a")
    dashboard.worker("mail", slots=3, node="machine-b")
    run = dashboard.running("mail", worker=worker)
    page = dashboard.page(path="/workers")
    panel = page.get_by_role("region", name="machine-a", exact=True)
    expect(panel).to_contain_text("1 of 2 slots")
    expect(page.get_by_role("region", name="machine-b", exact=True)).to_be_visible()
    panel.get_by_role("button", name="1 of 2").click()
    panel.locator("li a").click()
    expect(page.get_by_text(run[1])).to_be_visible()


def test_a_job_whose_only_worker_is_paused_says_so_and_resumes_it(dashboard: Dashboard) -> None:
    worker = dashboard.worker("reports", name="web-3", draining=True)
    dashboard.ask("PATCH", f"/workers/{worker}", {"paused": True, "why": "looking for a leak"})
    id = dashboard.queued("report", queue="reports")
    page = dashboard.page(path=f"/job/{dashboard.tenant}/{id}")
    expect(page.get_by_text("would take it, and is paused: looking for a leak")).to_be_visible()
    press(page, "Resume")
    expect(page.get_by_text("web-3 goes on")).to_be_visible()
    dashboard.ask("PATCH", f"/workers/{worker}", {"paused": True, "why": "looking again"})
    page.goto("/#/")
    expect(page.get_by_text("Paused: worker web-3 (looking again)")).to_be_visible()
    press(page, "Resume")
    expect(page.get_by_text("Paused: worker web-3")).to_have_count(0)
    assert not dashboard.ask("GET", "/workers")[0]["orders"].get("pause")


@on_one_store
def test_a_job_that_needs_what_no_worker_offers_says_how_to_start_one(dashboard: Dashboard) -> None:
    about = {"tasks": ["render", "other"], "needs": {"render": ["gpu"]}, "app": "shop:app"}
    dashboard.worker("renders", **about)
    id = dashboard.queued("render", queue="renders")
    page = dashboard.page(path=f"/job/{dashboard.tenant}/{id}")
    expect(page.get_by_text("windlass worker shop:app -q renders --offers gpu")).to_be_visible()
    expect(page.get_by_text("do not know the task")).to_have_count(0)


@on_one_store
def test_a_job_that_waits_for_a_slot_leads_to_what_its_workers_run(dashboard: Dashboard) -> None:
    run = dashboard.running("mail", worker=dashboard.worker("mail", "images", name="web-1"))
    id = dashboard.queued("thumbnail", queue="images")
    page = dashboard.page(path=f"/job/{dashboard.tenant}/{id}")
    page.get_by_role("link", name="web-1").click()
    expect(page.get_by_role("link", name=re.compile(run[1][:8]))).to_be_visible()


def test_a_worker_is_paused_resumed_and_stopped(dashboard: Dashboard) -> None:
    worker = dashboard.worker("mail", name="web-1")
    page = dashboard.page(path="/workers")
    row = page.get_by_role("row").filter(has_text="web-1")
    press(page, "Pause", row="web-1")
    fill(page, Why="looking for a leak", For_how_many_minutes="30")
    expect(row).to_contain_text("looking for a leak")
    expect(row).to_contain_text("pausing")  # until it says that it drains
    told = dashboard.ask("POST", f"/workers/{worker}/renew?wait=1&paused=false", [])
    assert told["worker"]["pause"]["why"] == "looking for a leak"
    press(page, "Resume", row="web-1")
    expect(row).not_to_contain_text("looking for a leak")
    press(page, "Stop", row="web-1")
    page.get_by_role("dialog").get_by_label("Give running jobs back at once").check()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(row).to_contain_text("stopping")
    assert dashboard.ask("POST", f"/workers/{worker}/renew?wait=1&paused=false", [])["worker"]["stop"] == "now"
    dashboard.ask("DELETE", f"/workers/{worker}")
    expect(row).to_have_count(0)


@on_one_store
def test_a_shared_worker_is_ordered_only_by_who_acts_for_all_tenants(dashboard: Dashboard) -> None:
    shared = dashboard.ask("POST", "/workers", {"name": "everyones", "queues": ["none"]}, tenant="-")["worker"]
    try:
        page = dashboard.page(path="/workers")
        row = page.get_by_role("row").filter(has_text="everyones")
        expect(row).to_be_visible()
        expect(row.get_by_role("button", name="Stop")).to_have_count(0)
    finally:  # others share this server
        dashboard.ask("DELETE", f"/workers/{shared}", tenant="-")


def test_a_limit_is_made_edited_paused_and_removed(dashboard: Dashboard) -> None:
    page = dashboard.page(path="/limits")
    press(page, "New limit")
    fill(
        page,
        Name="bank",
        Which_jobs='{"task": "charge"}',
        At_most_so_many_at_once="1",
        A_bucket_for_each="payload.customer",
    )
    for customer in ("ann", "bob", "bob"):
        dashboard.queued("charge", queue="payments", payload={"customer": customer})
    worker = dashboard.worker("payments", slots=5)
    dashboard.ask("POST", f"/workers/{worker}/claim", {"slots": 5})
    row = page.get_by_role("row").filter(has_text="bank")
    expect(row.get_by_role("img", name="1 of 1 run")).to_have_count(2)
    expect(row).to_contain_text("1 held back")
    press(page, "Edit", row="bank")
    fill(page, At_most_so_many_at_once="4")
    expect(row).to_contain_text("4 at once, for each payload.customer")
    assert dashboard.ask("GET", "/limits/bank")["match"] == {"task": "charge"}
    press(page, "Pause", row="bank")
    fill(page, Why="bank closed")
    expect(row).to_contain_text("bank closed")
    press(page, "Resume", row="bank")
    expect(row).not_to_contain_text("bank closed")
    press(page, "Remove", row="bank")
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No limits")).to_be_visible()


def test_a_schedule_is_made_run_paused_and_removed(dashboard: Dashboard) -> None:
    page = dashboard.page(path="/schedules")
    press(page, "New schedule")
    fill(page, Name="nightly", Task="backup", Payload="[1]", Cron="0 3 * * *", Time_zone="Europe/Rome")
    row = page.get_by_role("row").filter(has_text="nightly")
    expect(row).to_contain_text("0 3 * * * Europe/Rome")
    press(page, "Run now", row="nightly")
    expect(row).to_contain_text("queued, run by hand")
    press(page, "Pause", row="nightly")
    fill(page, Why="holidays")
    expect(row).to_contain_text("holidays")
    (job,) = dashboard.ask("GET", "/jobs")["jobs"]
    assert (job["task"], job["queue"]) == ("backup", "default")
    press(page, "Remove", row="nightly")
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No schedules.")).to_be_visible()


def test_a_schedule_shows_its_last_runs_while_they_happen(dashboard: Dashboard) -> None:
    dashboard.ask("PUT", "/schedules/rates", {"every": 86_400, "job": {"task": "rates", "queue": "bank"}})
    asked: list[str] = []
    page = dashboard.page(path="/schedules")
    page.on("request", lambda one: asked.append(one.url) if "/schedules" in one.url else None)
    row = page.get_by_role("row").filter(has_text="rates")
    expect(row).to_contain_text("none yet")
    cells = row.get_by_role("list", name="Last runs of rates").get_by_role("listitem")
    for outcome in ("failed", "ok"):
        dashboard.ask("POST", "/schedules/rates/run")
        worker = dashboard.worker("bank")
        (claimed,) = dashboard.ask("POST", f"/workers/{worker}/claim", {"slots": 1, "wait": 20})
        expect(cells.last.get_by_role("link")).to_have_accessible_name(re.compile("running, run by hand, .* late$"))
        id = claimed["job"]["id"]
        dashboard.finish((worker, id, claimed["token"]), outcome)
    expect(cells.last.get_by_role("link")).to_have_accessible_name(re.compile("succeeded, .* late, took "))
    expect(cells).to_have_text(["✕", "✓"])
    expect(row).to_contain_text("succeeded, run by hand")
    assert all(url.endswith("/schedules") for url in asked), "one request for all schedules"
    dashboard.ask("DELETE", f"/jobs/{id}")
    expect(cells.last.get_by_role("img")).to_have_accessible_name(re.compile("its record is gone$"))
    cells.first.get_by_role("link").click()
    expect(page.get_by_role("heading", name="rates")).to_be_visible()


@on_one_store
def test_on_a_phone_a_row_with_buttons_is_no_wider_than_the_page(dashboard: Dashboard) -> None:
    dashboard.queued(queue="renders")
    tiers = [{"name": "short", "seconds": 10}, {"name": "long", "seconds": 600, "cap": 1}]
    dashboard.ask("PATCH", "/queues/renders", {"tiers": tiers})
    dashboard.ask("PUT", "/limits/bank", {"running": 1, "match": {"task": "charge"}})
    dashboard.failed("refused")
    dashboard.ask("PUT", "/schedules/rates", {"every": 86_400, "overlap": "queue", "job": {"task": "rates"}})
    for _ in range(15):
        dashboard.ask("POST", "/schedules/rates/run")
    page = dashboard.page(viewport={"width": 390, "height": 844})
    for path in ("queues", "limits", "failures", "schedules", "tokens", "audit"):
        page.goto(f"/#/{path}")
        table = page.locator("main table.cards")
        expect(table).to_be_visible()
        widths = "one => [one.parentElement.scrollWidth, one.parentElement.clientWidth]"
        needed, there = table.evaluate(widths)
        assert needed <= there, path
        tall = table.locator("button").evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")
        assert all(height < 40 for height in tall), path


def test_the_timeline_of_a_job_says_what_was_done_to_it_by_hand(dashboard: Dashboard) -> None:
    id, other = dashboard.queued(), dashboard.queued()
    dashboard.ask("PATCH", f"/jobs/{id}", {"priority": 3, "tags": ["vip"]})
    page = dashboard.page(path=f"/job/{dashboard.tenant}/{id}")
    steps = page.get_by_role("region", name="Timeline").get_by_role("listitem")
    expect(steps).to_have_count(2)
    expect(steps.last).to_contain_text(re.compile("edited by token [0-9a-f]+.*priority, tags"))
    dashboard.ask("PATCH", f"/jobs/{other}", {"priority": 3})
    dashboard.ask("PATCH", f"/jobs/{id}", {"annotations": {"ticket": "<b>7</b>"}})  # live
    expect(steps).to_have_count(3)
    expect(steps.last).to_contain_text("ticket: <b>7</b>")
    expect(page.get_by_role("region", name="Details")).to_contain_text("2 times")
    press(page, "Cancel")
    expect(steps.filter(has_text="cancelled by token")).to_have_count(1)
    expect(steps).to_have_count(5)  # that it ended, too
    press(page, "Retry")
    expect(steps.filter(has_text="queued again by token")).to_have_count(1)


@on_one_store
def test_the_details_of_a_job_name_the_options_that_are_not_as_usual(dashboard: Dashboard) -> None:
    page = dashboard.page(path=f"/job/{dashboard.tenant}/{dashboard.queued()}")
    details = page.get_by_role("region", name="Details")
    expect(details).to_contain_text("Priority")
    for label in ("Run again", "Expires", "Success kept", "Failure kept", "Result", "Isolated", "Unique", "Owner"):
        expect(details.get_by_text(label, exact=True)).to_have_count(0)
    options: dict[str, Any] = {"max_retry": 3, "retry": {"base": 5, "deadline": 3600}, "keep_success": None}
    id = dashboard.queued(keep_result="once", unique="pending", isolate=True, expires=90, **options)
    page.goto(f"/#/job/{dashboard.tenant}/{id}")
    for text in (
        "after 5 s, each wait 2 times the last, at most 1 h, until it is 1 h old",
        "if it has not started 1 min 30 s after it was made",
        "forever",
        "for one reading",
        "while it is pending",
        "a process of its own",
    ):
        expect(details.get_by_text(text, exact=True)).to_be_visible()


# Failures, handlers, tokens, audit


def test_a_group_of_failures_leads_to_its_jobs_and_is_deleted(dashboard: Dashboard) -> None:
    for number in (1, 2):
        dashboard.failed(f"smtp {number} refused")
    other = dashboard.failed("no such address")
    page = dashboard.page(path="/failures")
    page.get_by_role("row").filter(has_text="refused").get_by_role("link", name="mail").click()
    expect(page.get_by_role("main").locator("tbody tr")).to_have_count(2)
    page.goto("/#/failures")
    press(page, "Delete", row="refused")
    page.get_by_role("dialog").get_by_role("button", name="Delete 2").click()
    expect(page.get_by_text("2 deleted")).to_be_visible()
    assert [one["id"] for one in dashboard.ask("GET", "/jobs")["jobs"]] == [other]


def test_a_group_of_failures_names_the_versions_of_its_handler(dashboard: Dashboard) -> None:
    for version in (9, 10, 10):
        dashboard.failed("no tax rate", "vat", handler_version=version)
    dashboard.failed("refused")
    page = dashboard.page(path="/failures")
    row = page.get_by_role("row").filter(has_text="vat")
    expect(row.locator(".tag")).to_have_text(["version 10: 2", "version 9: 1"])
    expect(page.get_by_role("row").filter(has_text="mail").locator(".tag")).to_have_count(0)


@on_one_store
def test_a_handler_is_uploaded_changed_tried_and_removed(dashboard: Dashboard) -> None:
    page = dashboard.page(path="/handlers")
    press(page, "Upload")
    fill(page, Task="vat", Source="def run(payload):\n    return 19\n")
    press(page, "Edit", row="vat")
    fill(page, Source="def run(payload):\n    return 22\n")
    expect(page.get_by_text("version 2 is in force")).to_be_visible()
    page.get_by_role("button", name="vat").click()
    source = page.get_by_role("region", name="Source of vat")
    expect(source).to_contain_text("return 22")
    source.get_by_label("Version").select_option("1")
    expect(source).to_contain_text("return 19")
    press(page, "Try", row="vat")
    fill(page, Payload='{"net": 5}')
    expect(page.get_by_role("heading", name="vat")).to_be_visible()
    (job,) = dashboard.ask("GET", "/jobs")["jobs"]
    assert dashboard.ask("GET", f"/jobs/{job['id']}?payload=true")["payload"] == {"net": 5}
    page.goto("/#/handlers")
    press(page, "Try", row="vat")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="queued").click()  # the payload of the job before
    expect(dialog.get_by_label("Payload")).to_have_value(re.compile('"net": 5'))
    dialog.get_by_role("button", name="Cancel").click()
    press(page, "Remove", row="vat")
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No code is kept")).to_be_visible()


@on_one_store
def test_a_token_is_shown_once_and_the_audit_log_has_its_making(dashboard: Dashboard) -> None:
    page = dashboard.page(path="/tokens")
    press(page, "New token")
    page.get_by_role("dialog").get_by_role("checkbox", name="enqueue").uncheck()
    fill(page, What_it_is_for="the office screen")
    shown = page.get_by_role("status").locator("code")
    expect(shown).to_have_text(re.compile("^wl_"))
    secret = shown.inner_text()
    found = [one for one in dashboard.ask("GET", "/tokens") if one.get("note") == "the office screen"]
    assert found[0]["scopes"] == ["read"]
    page.reload()
    row = page.get_by_role("row").filter(has_text="the office screen")
    expect(row).to_be_visible()
    assert secret not in page.content()
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)
    page.goto("/#/audit")
    expect(page.get_by_role("row").filter(has_text="remove-token")).to_have_count(1)
    page.get_by_label("Find in these lines").fill("add-token")
    expect(page.get_by_role("row").filter(has_text="remove-token")).to_have_count(0)
    assert json.dumps(dashboard.ask("GET", "/audit")).count(secret) == 0
