"""Pictures of the dashboard: starts a server with the sample shop, fills it, and looks at its pages in a browser.

`./dev screenshots` writes those that the documentation shows into `docs/images`; with a folder, every page there: light
and dark, wide and on a phone. `--empty` shows a server without a job.
"""

import asyncio
import math
import shutil
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import msgspec
from msgspec.structs import replace
from playwright.sync_api import Browser, expect

from tests.support.browser import opened_browser
from tests.support.http_servers import process
from windlass.addresses import open_store
from windlass.engine.history import KEPT, KINDS, SECONDS, Note
from windlass.engine.schedules import STATES, TickProgress
from windlass.model.job import State
from windlass.model.schedule import ScheduleRun

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
PATIENCE = 40.0

WIDE, PHONE = (1280, 800), (390, 844)
SHOWN = {
    "overview": ("light-wide", "dark-wide"),
    "jobs": ("light-wide",),
    "job": ("dark-wide",),
    "job-waiting": ("light-wide", "light-phone"),
    "job-failed": ("light-wide",),
    **dict.fromkeys(
        ("failures", "queues", "workers", "schedules", "limits", "handlers", "audit", "tokens"), ("light-wide",)
    ),
}
"""Which pictures the documentation has."""


SKIPPED = "skipped: the job of an earlier tick is pending"

HANDLER = """def run(payload):
    net = payload["net"]
    return {"net": net, "vat": net * %d / 100}
"""


class Site(NamedTuple):
    """A server with the sample shop."""

    client: httpx2.Client
    pages: dict[str, str]
    """Paths behind the `#`, by the name of the picture."""

    def ask(self, verb: str, path: str, body: Any = None) -> Any:
        response = self.client.request(verb, f"/v1/default{path}", json=body)
        response.raise_for_status()
        return response.json() if response.content else None


async def _write_past(store: str) -> None:
    """Notes of a day and of a month, as the server would have made them: a shop sleeps at night."""
    opened = await open_store(store)
    notes = []
    try:
        for step, seconds in SECONDS.items():
            last, sums = int(time.time()) // seconds, [0, 0, 0, 10_000]
            for number in range(last - KEPT[step] + 2, last + 1):
                hour = number * seconds / 3600
                busy = seconds / 60 * (14 - 11 * math.cos((hour - 4) * math.pi / 12) + 3 * math.sin(hour * 7.7))
                ends = (busy, busy / 60 if number % 3 else 0, busy / 25 if number % 2 else 0, 0)
                sums = [before + round(max(0, new)) for before, new in zip(sums, ends, strict=True)]
                note = msgspec.msgpack.encode(
                    Note(number, {"default,default": [*sums, round(busy / 9), 3]}, {"-": 2 + (number % 97 < 60)})
                )
                notes.append(opened.records.swap(KINDS[step], str(number % KEPT[step]), None, note))
        for name, every, begins, took in (("rates", 3600, 0, 0.8), ("nightly-backup", 86_400, 7200, 94.0)):
            notes.append(opened.records.swap(STATES, f"default/{name}", None, _past_runs(every, begins, took)))
        await asyncio.gather(*notes)
    finally:
        await opened.close()


def _past_runs(every: int, begins: int, took: float) -> bytes:
    """What a schedule notes of its runs: one failed, and one tick made no job."""
    now = time.time()
    last = (now - begins) // every * every + begins
    runs: list[ScheduleRun] = []
    for number in range(13, -1, -1):
        tick = datetime.fromtimestamp(last - number * every, UTC)
        start = tick + timedelta(milliseconds=12 + 31 * number % 170)
        end = start + timedelta(seconds=took * (1 + number % 5 / 9))
        ran = ScheduleRun(
            tick=tick, job=str(uuid.uuid4()), state=State.SUCCEEDED, attempt=1, started_at=start, finished_at=end
        )
        special = {8: replace(ran, state=State.FAILED), 3: ScheduleRun(tick=tick, note=SKIPPED)}
        runs.append(special.get(number, ran))
    return msgspec.msgpack.encode(TickProgress(datetime.fromtimestamp(now, UTC), runs, 1))


def _fill(site: Site) -> None:
    """What a shop has going on: mail, payments that are tried again, a long report, work that waits for a worker."""
    site.ask("PUT", "/limits/bank", {"running": 2, "match": {"task": "charge"}})
    site.ask("PUT", "/limits/one-report", {"running": 1, "match": {"task": "report"}})
    site.ask("PATCH", "/queues/images", {"paused": True, "why": "the disk is nearly full"})
    tiers = [{"name": "short", "seconds": 60, "cap": "100%"}, {"name": "long", "seconds": 600, "cap": "50%"}]
    site.ask("PATCH", "/queues/reports", {"tiers": tiers, "announcement": "monthly, on the first"})
    site.ask("PUT", "/handlers/vat", {"lang": "python", "body": HANDLER % 19})
    site.ask("PUT", "/handlers/vat", {"lang": "python", "body": HANDLER % 22})
    site.ask("POST", "/tokens", {"scopes": ["enqueue", "read"], "note": "web shop"})
    site.ask("POST", "/tokens", {"scopes": ["read"], "note": "the screen in the office", "expires": 90 * 86_400})
    jobs: list[dict[str, Any]] = []
    for order in range(1, 41):
        jobs.append({"task": "send_mail", "payload": [f"customer{order}@example.org", order], "tags": ["mail"]})
        jobs.append({"task": "charge", "queue": "payments", "payload": [order, order * 250]})
    jobs += [{"task": "thumbnail", "queue": "images", "payload": [f"{name}.png"]} for name in ("lamp", "chair")]
    jobs += [{"task": "label", "queue": "printer", "payload": order} for order in (31, 32, 33)]
    for job in jobs:
        job.setdefault("max_retry", 3 if job["task"] == "charge" else 0)
        job["retry"] = {"base": 600}
        site.ask("POST", "/jobs", job)
    report = site.ask("POST", "/jobs", {"task": "report", "queue": "reports", "payload": [11], "timeout": 600})
    letter = {"task": "send_mail", "payload": ["board@example.org", 1], "after": [report["id"]]}
    site.ask("POST", "/jobs", letter)
    waiting = [site.ask("POST", "/jobs", {"task": "report", "queue": "reports", "payload": [one]}) for one in (12, 1)]
    site.ask("POST", "/schedules/rates/run", {})
    _await(lambda: not any(one["state"] == "queued" for one in _jobs(site, "task=charge")))
    _await(lambda: (site.ask("GET", f"/jobs/{report['id']}").get("progress") or {}).get("done", 0) > 12)
    site.ask("PATCH", f"/jobs/{report['id']}", {"annotations": {"ticket": "OPS-7"}})
    site.pages["job"] = f"/job/default/{report['id']}"
    site.pages["job-failed"] = f"/job/default/{_jobs(site, 'state=failed')[0]['id']}"
    site.pages["job-waiting"] = f"/job/default/{waiting[0]['id']}"
    site.ask("POST", f"/jobs/{waiting[1]['id']}/cancel")


def _jobs(site: Site, query: str) -> list[dict[str, Any]]:
    return list(site.ask("GET", f"/jobs?{query}&order=newest")["jobs"])


def _await(happened: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > until:
            raise RuntimeError("the sample jobs have not run")
        time.sleep(0.1)


def _take(browser: Browser, site: Site, folder: Path, *, every: bool) -> None:
    for theme in ("light", "dark"):
        for form, (width, height) in (("wide", WIDE), ("phone", PHONE)):
            context = browser.new_context(
                base_url=str(site.client.base_url),
                viewport={"width": width, "height": height},
                color_scheme="dark" if theme == "dark" else "light",
                locale="en-GB",
            )
            page = context.new_page()
            page.goto(site.client.post("/session/link").json()["path"])
            for name, path in site.pages.items():
                if not every and f"{theme}-{form}" not in SHOWN.get(name, ()):
                    continue
                page.goto(f"/#{path}")
                page.locator("main h1").wait_for()
                expect(page.locator("main [aria-busy=true]")).to_have_count(0)
                page.wait_for_timeout(900)  # for what is asked for later; the stream of events never ends
                wide = page.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    print(f"{name}, {theme}, {form}: {wide} pixels wide", file=sys.stderr)
                page.screenshot(path=folder / f"{name}-{theme}-{form}.png", full_page=every)
            context.close()


def main(said: list[str]) -> int:
    empty = "--empty" in said
    folders = [Path(one) for one in said if not one.startswith("-")]
    if len(folders) > 1 or any(one.startswith("-") and one != "--empty" for one in said) or (empty and not folders):
        print("usage: ./dev screenshots [FOLDER [--empty]]", file=sys.stderr)
        return 2
    goal = folders[0] if folders else IMAGES
    goal.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shop-") as name:
        folder = Path(name)
        if not empty:
            asyncio.run(_write_past(str(folder / "jobs.db")))
        shutil.copy(ROOT / "examples" / "shop.py", folder)  # its path is in tracebacks
        with (
            process(folder, "--app", "shop:app", "-c", "8", "--allow-upload", PYTHONPATH=name) as server,
            opened_browser() as browser,
        ):
            headers = {"authorization": f"Bearer {server.token}"}
            client = httpx2.Client(base_url=server.address, headers=headers, trust_env=False, timeout=30)
            names = ("jobs", "failures", "queues", "workers", "schedules", "limits", "handlers", "audit", "tokens")
            site = Site(client, {"overview": "/", **{name: f"/{name}" for name in names}})
            if not empty:
                _fill(site)
            _take(browser, site, goal, every=bool(folders))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
