"""What two older queues promised their users, held by ours over HTTP: each test names the promises it keeps."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.http_servers import Web, decoded
from tests.support.patience import LONGEST_WAIT, NOTIFIED
from tests.support.stores import EPOCH, VirtualClock
from windlass.engine import Engine, jobs
from windlass.engine.upkeep import promote, purge, reclaim

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)


class ChecklistServer:
    """Short ways to ask a server, in JSON."""

    def __init__(self, page: Web, engine: Engine, clock: VirtualClock) -> None:
        self.page = page
        self.engine = engine
        self.clock = clock
        self.worker = ""

    async def ask(self, verb: str, path: str, body: Any = None, status: int = 200) -> Any:
        response = await self.page.send(verb, path, body)
        assert response.status_code == status, response.text
        return decoded(response) if response.content else None

    async def enqueue(self, task: str = "a", **terms: Any) -> str:
        return str((await self.ask("POST", "/jobs", {"task": task, **terms}, 201))["id"])

    async def job(self, id: str) -> Any:
        return await self.ask("GET", f"/jobs/{id}")

    async def claim(self, slots: int = 1) -> list[Any]:
        if not self.worker:
            self.worker = (await self.ask("POST", "/workers", {"name": "w", "slots": 100}, 201))["worker"]
        found: list[Any] = await self.ask("POST", f"/workers/{self.worker}/claim", {"slots": slots})
        return found

    async def finish(self, claimed: Any, outcome: str = "ok", **more: Any) -> Any:
        report = {"id": claimed["job"]["id"], "token": claimed["token"], "outcome": outcome, **more}
        return await self.ask("POST", f"/workers/{self.worker}/finish", [report])

    async def run(self, outcome: str = "ok", **more: Any) -> str:
        """Run the next job to this end; the id of it."""
        (claimed,) = await self.claim()
        assert (await self.finish(claimed, outcome, **more))["applied"]
        return str(claimed["job"]["id"])

    async def later(self, seconds: float) -> None:
        """Advance the clock and run the due duties; later calls work as a new worker."""
        self.clock.advance(seconds)
        for duty in (promote, reclaim, purge):
            await duty(self.engine)
        self.worker = ""


@pytest.fixture
def site(page: Web, engine: Engine, clock: VirtualClock) -> ChecklistServer:
    return ChecklistServer(page, engine, clock)


async def test_two_posts_make_two_jobs(site: ChecklistServer) -> None:
    """S2 1 and 3."""
    first, second = await site.enqueue(), await site.enqueue()
    assert first != second
    job = await site.job(first)
    assert (job["priority"], job["max_retry"], job["keep_result"], job["timeout"]) == (0, 0, "keep", None)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"payload": 1},
        {"task": 5},
        {"task": "a", "priority": 2**31},
        {"task": "a", "priority": -(2**31) - 1},
        {"task": "a", "priority": "high"},
        {"task": "a", "timeout": -1},
        {"task": "a", "max_retry": -1},
        {"task": "a", "unknown": 1},
        [],
        "a",
        None,
    ],
    ids=str,
)
async def test_what_is_wrong_is_refused_and_not_queued(body: Any, site: ChecklistServer) -> None:
    """S2 2."""
    response = await site.page.send("POST", "/jobs", b"null" if body is None else body)
    assert response.status_code == 400
    assert (await site.ask("GET", "/jobs/count"))["count"] == 0


async def test_jobs_go_by_priority_then_by_age(site: ChecklistServer) -> None:
    """S2 5, 6 and 7: lower first, equals by arrival, and a low one may wait forever."""
    ids = [await site.enqueue(priority=priority) for priority in (5, 0, -5, 0, 2**31 - 1, -(2**31))]
    order = [await site.run() for _ in range(3)]
    later = await site.enqueue(priority=1)
    order += [await site.run() for _ in range(4)]
    assert order == [ids[5], ids[2], ids[1], ids[3], later, ids[0], ids[4]]


async def test_a_failed_job_competes_again_after_its_pause(site: ChecklistServer) -> None:
    """S2 8 and 9; S4 5, 6, 9 and 11: `max_retry` counts the runs after the first."""
    retried = await site.enqueue(priority=-1, max_retry=2, retry={"base": 10, "jitter": 0})
    await site.run("error", message="first")
    waiting = await site.job(retried)
    assert (waiting["state"], waiting["attempt"], waiting["reason"]) == ("scheduled", 1, "error")
    other = await site.enqueue()
    await site.later(9)
    assert await site.run() == other
    await site.enqueue()
    await site.later(1)
    assert await site.run("error", message="second") == retried
    await site.later(20)
    assert await site.run("error", message="third") == retried
    ended = await site.job(retried)
    assert (ended["state"], ended["attempt"]) == ("failed", 3)
    assert [error["message"] for error in ended["errors"]] == ["first", "second", "third"]
    once = await site.enqueue("once")
    await site.run()
    await site.run("error")
    assert (await site.job(once))["state"] == "failed"


async def test_the_pauses_double(site: ChecklistServer) -> None:
    """S2 10; S4 7: from the start of each run, if so asked."""
    id = await site.enqueue(max_retry=3, retry={"base": 20, "jitter": 0, "cap": 1000, "anchor": "start"})
    started = []
    for pause in (20, 40, 80, 0):
        await site.run("error")
        job = await site.job(id)
        started.append(datetime.fromisoformat(job["started_at"]) - EPOCH)
        await site.later(pause)
    assert started == [timedelta(seconds=total) for total in (0, 20, 60, 140)]


async def test_a_job_that_cannot_succeed_is_not_run_again(site: ChecklistServer) -> None:
    """S2 11 and 18; S4 12."""
    id = await site.enqueue(max_retry=5)
    await site.run("failed", message="no such file", error={"type": "StopTask", "message": "why"})
    job = await site.job(id)
    assert (job["state"], job["reason"], job["error"]["type"], job["error"]["message"]) == (
        "failed",
        "failed",
        "StopTask",
        "why",
    )


async def test_a_success_after_retries_is_one(site: ChecklistServer) -> None:
    """S4 8 and 11."""
    id = await site.enqueue(max_retry=3, retry={"base": 1, "jitter": 0})
    await site.run("error", message="once")
    await site.later(1)
    await site.run()
    await site.later(100)
    assert await site.claim() == []
    job = await site.job(id)
    assert (job["state"], [error["message"] for error in job["errors"]]) == ("succeeded", ["once"])


async def test_results_are_kept_as_asked(site: ChecklistServer) -> None:
    """S2 12, 13 and 14."""
    kept, once, none = [await site.enqueue(keep_result=keep, keep_success=60) for keep in ("keep", "once", "none")]
    for _ in range(3):
        await site.run(result={"r": [1]})
    results = [[(await site.ask("GET", f"/jobs/{id}/result"))["result"] for _ in range(2)] for id in (kept, once, none)]
    assert results == [[{"r": [1]}, {"r": [1]}], [{"r": [1]}, None], [None, None]]
    assert {(await site.job(id))["state"] for id in (kept, once, none)} == {"succeeded"}
    await site.later(61)
    for id in (kept, once, none):
        await site.ask("GET", f"/jobs/{id}/result", status=404)


async def test_a_result_has_a_time_of_its_own(site: ChecklistServer) -> None:
    """S2 15: after it there is none, and the job is still there."""
    never_asked, asked = [await site.enqueue(keep_result_for=30, keep_success=60) for _ in range(2)]
    for _ in range(2):
        await site.run(result={"r": [1]})
    assert (await site.ask("GET", f"/jobs/{asked}/result"))["result"] == {"r": [1]}
    await site.later(30)
    for id in (never_asked, asked):
        answer = await site.ask("GET", f"/jobs/{id}/result")
        assert (answer["state"], answer["code"], answer["result"]) == ("succeeded", 200, None)
        assert (await site.job(id))["keep_result_for"] == 30
    await site.later(30)
    for id in (never_asked, asked):
        await site.ask("GET", f"/jobs/{id}/result", status=404)


async def test_a_job_whose_worker_is_silent_past_its_time_is_taken_away(site: ChecklistServer) -> None:
    """S2 16: and the late report changes nothing."""
    id = await site.enqueue(timeout=5, max_retry=0)
    (claimed,) = await site.claim()
    assert claimed["deadline"] is not None
    silent = site.worker
    for _ in range(4):
        await site.later(10)
    assert (await site.job(id))["state"] != "running"
    before = await site.job(id)
    report = {"id": id, "token": claimed["token"], "outcome": "ok"}
    late = await site.page.send("POST", f"/workers/{silent}/finish", [report])
    assert late.status_code == 404 or decoded(late)["refused"] == [id]
    assert await site.job(id) == before


async def test_the_end_time_of_a_job_is_answered(site: ChecklistServer) -> None:
    """S2 17: as the worker says, or as the clock does."""
    said, unsaid = await site.enqueue(), await site.enqueue()
    first, second = await site.claim(2)
    site.clock.advance(2)
    assert (await site.finish(first, finished_at="2026-01-01T01:00:01.5+01:00"))["applied"]
    assert (await site.finish(second))["applied"]
    assert (await site.job(said))["finished_at"] == "2026-01-01T00:00:01.500000Z"
    assert datetime.fromisoformat((await site.job(unsaid))["finished_at"]) == EPOCH + timedelta(seconds=2)


async def test_the_states_of_a_job_are_answered(site: ChecklistServer) -> None:
    """S2 19; S4 10: pending until it has ended."""
    id = await site.enqueue(max_retry=1, retry={"base": 1, "jitter": 0})

    async def seen() -> tuple[str, int, bool, int]:
        job = await site.job(id)
        pending = (await site.ask("GET", "/jobs/count?state=pending"))["count"]
        return job["state"], job["attempt"], job["worker"] is not None, pending

    walk = [await seen()]
    (claimed,) = await site.claim()
    walk.append(await seen())
    await site.finish(claimed, "error")
    walk.append(await seen())
    await site.later(1)
    walk.append(await seen())
    await site.run()
    walk.append(await seen())
    assert walk == [
        ("queued", 0, False, 1),
        ("running", 1, True, 1),
        ("scheduled", 1, True, 1),
        ("queued", 1, True, 1),
        ("succeeded", 2, True, 0),
    ]


@asynccontextmanager
async def asking(site: ChecklistServer, path: str) -> AsyncIterator["asyncio.Task[Any]"]:
    """A request on its way, that has reached the server."""
    task = asyncio.create_task(site.page.send("GET", path))
    await asyncio.sleep(0.1)
    yield task


async def test_a_long_poll_for_a_result_returns_at_the_end_of_the_job(
    site: ChecklistServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2 21 and 22: of the end, not of a failure that is tried again."""
    monkeypatch.setattr(jobs, "POLL_EVERY", 10 * LONGEST_WAIT)
    await site.ask("GET", "/jobs/00000000-0000-7000-8000-0000000000df/result?wait=1", status=404)
    id = await site.enqueue(max_retry=1, retry={"base": 0, "jitter": 0})
    begun = time.monotonic()
    await site.ask("GET", f"/jobs/{id}/result?wait=0.3", status=408)
    assert time.monotonic() - begun > 0.25
    async with asking(site, f"/jobs/{id}/result?wait={LONGEST_WAIT:g}") as waiting:
        await site.run("error")
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await site.later(0)
        (claimed,) = await site.claim()
        ended = time.monotonic()
        await site.finish(claimed, result="done")
        assert decoded(await waiting)["result"] == "done"
        assert time.monotonic() - ended < NOTIFIED, "it was looked for, not heard of"
    begun = time.monotonic()
    assert (await site.ask("GET", f"/jobs/{id}/result?wait={LONGEST_WAIT:g}"))["result"] == "done"
    assert time.monotonic() - begun < NOTIFIED, "it waited for what was there"


async def test_workers_of_one_name_are_two(site: ChecklistServer) -> None:
    """S2 23."""
    first, second = [(await site.ask("POST", "/workers", {"name": "w"}, 201))["worker"] for _ in range(2)]
    assert first != second
    assert {one["id"] for one in await site.ask("GET", "/workers")} == {first, second}
    await site.ask("DELETE", f"/workers/{first}", status=204)
    await site.ask("DELETE", f"/workers/{first}", status=404)


async def test_a_report_that_makes_no_sense_changes_nothing(site: ChecklistServer) -> None:
    """S2 26."""
    id = await site.enqueue()
    (claimed,) = await site.claim()
    report = {"id": id, "token": claimed["token"], "outcome": "ok"}
    await site.ask("POST", "/workers/nobody/finish", [report], 404)
    for wrong in ([{"id": id}], [{**report, "outcome": "fine"}], {**report}, [{**report, "code": 404}]):
        await site.ask("POST", f"/workers/{site.worker}/finish", wrong, 400)
    unknown = {**report, "id": "00000000-0000-7000-8000-0000000000df"}
    answer = await site.ask("POST", f"/workers/{site.worker}/finish", [unknown])
    assert answer == {"applied": [], "refused": [unknown["id"]]}
    assert (await site.job(id))["state"] == "running"
    assert (await site.finish(claimed, result=1))["applied"] == [id]
    assert (await site.finish(claimed, "error"))["refused"] == [id]
    assert (await site.ask("GET", f"/jobs/{id}/result"))["result"] == 1


async def test_records_go_after_their_time(site: ChecklistServer) -> None:
    """S4 13, 14 and 15: counted from the end, and chosen for each job."""
    good = await site.enqueue(keep_success=10, keep_failure=1)
    bad = await site.enqueue("b", keep_success=1, keep_failure=100, max_retry=1, retry={"base": 50, "jitter": 0})
    await site.run()
    await site.run("error")
    await site.later(11)
    await site.ask("GET", f"/jobs/{good}", status=404)
    await site.later(39)
    await site.run("error")
    await site.later(99)
    assert (await site.job(bad))["state"] == "failed"
    await site.later(2)
    await site.ask("GET", f"/jobs/{bad}", status=404)
    assert (await site.ask("GET", "/jobs/count"))["count"] == 0


async def test_a_listing_has_what_it_is_asked_for_and_nothing_else(site: ChecklistServer) -> None:
    """S4 16, 17, 18 and 20: names match whole, and a count is the length of a listing."""
    for queue in ("ab", "abc"):
        for outcome in ("ok", "failed", ""):
            await site.enqueue(queue=queue, tags=[queue, outcome or "none"], payload={"q": queue})
    worker = (await site.ask("POST", "/workers", {"name": "w", "queues": ["ab", "abc"]}, 201))["worker"]
    site.worker = worker
    for claimed in await site.claim(6):
        if (outcome := claimed["job"]["tags"][1]) != "none":
            await site.finish(claimed, outcome)
    for query, count in (
        ("", 6),
        ("?queue=ab", 3),
        ("?queue=ab&state=pending", 1),
        ("?state=succeeded", 2),
        ("?state=failed&queue=abc", 1),
        ("?state=finished", 4),
        ("?tag=ab", 3),
        ("?tag=ab&tag=ok", 1),
        ("?payload.q=ab", 3),
        ("?payload[q]=ab&state=running", 1),
        ("?queue=a", 0),
    ):
        listed = (await site.ask("GET", f"/jobs{query}"))["jobs"]
        assert len(listed) == (await site.ask("GET", f"/jobs/count{query}"))["count"] == count, query
    one = (await site.ask("GET", "/jobs?queue=ab&limit=1"))["jobs"][0]
    assert (await site.ask("GET", f"/jobs/{one['id']}?payload=true"))["payload"] == {"q": "ab"}


async def test_what_is_deleted_does_not_run_and_leaves_nothing(site: ChecklistServer) -> None:
    """S4 21 and 22."""
    running = await site.enqueue()
    (claimed,) = await site.claim()
    queued = await site.enqueue()
    assert (await site.ask("DELETE", "/jobs?state=pending&state=finished"))["changed"] == 2
    await site.ask("GET", f"/jobs/{queued}", status=404)
    assert await site.claim() == []
    await site.finish(claimed)
    await site.ask("GET", f"/jobs/{running}", status=404)
    assert (await site.ask("DELETE", "/jobs?state=pending&state=finished"))["changed"] == 0


async def test_a_job_cancelled_before_its_start_never_runs(site: ChecklistServer) -> None:
    """S2 20: a running one is stopped, one that has ended is left alone, one that is not there is missing."""
    waiting = await site.enqueue()
    assert await site.ask("POST", f"/jobs/{waiting}/cancel", {}) == {"changed": 1}
    assert await site.claim() == []
    assert (await site.ask("GET", f"/jobs/{waiting}"))["state"] == "cancelled"
    assert await site.ask("POST", f"/jobs/{waiting}/cancel", {}) == {"changed": 0}
    await site.enqueue()
    (claimed,) = await site.claim()
    running = claimed["job"]["id"]
    assert await site.ask("POST", f"/jobs/{running}/cancel", {"dry_run": True}) == {"changed": 1, "stopping": 1}
    assert await site.ask("POST", f"/jobs/{running}/cancel", {}) == {"changed": 1, "stopping": 1}
    held = {"id": claimed["job"]["id"], "token": claimed["token"]}
    renewed = await site.ask("POST", f"/workers/{site.worker}/renew", [held])
    assert [(order["id"], order["order"]) for order in renewed["orders"]] == [(held["id"], "cancel")]
    await site.ask("POST", "/jobs/00000000-0000-7000-8000-0000000000df/cancel", {}, 404)


async def test_a_job_is_accepted_without_workers(site: ChecklistServer) -> None:
    """S4 1: answered before the work is done, and pending until a worker comes."""
    id = await site.enqueue()
    assert await site.ask("GET", "/workers") == []
    assert await site.ask("GET", "/jobs/count?state=pending") == {"count": 1}
    assert await site.run() == id


async def test_a_page_for_people_finds_jobs_workers_and_limits_with_what_they_say(site: ChecklistServer) -> None:
    """S2 32: what such a page shows is a question each: what went wrong, who works, which limit a job waits for."""
    await site.ask("PUT", "/limits/api", {"match": {"task": "call"}, "running": 1})
    broken = await site.enqueue("broken")
    await site.run("failed", error={"type": "Missing", "message": "no such customer"})
    runs, waits = await site.enqueue("call"), await site.enqueue("call")
    await site.claim(2)
    jobs = (await site.ask("GET", "/jobs"))["jobs"]
    assert [(job["id"], job["state"]) for job in jobs] == [(broken, "failed"), (runs, "running"), (waits, "queued")]
    assert jobs[0]["error"]["message"] == "no such customer"
    (worker,) = await site.ask("GET", "/workers")
    assert (worker["name"], worker["running"], worker["id"]) == ("w", 1, jobs[1]["worker"])
    (limit,) = await site.ask("GET", "/limits")
    assert (limit["name"], limit["match"], limit["running"]) == ("api", {"task": "call"}, 1)
    answer = await site.ask("GET", f"/jobs/{waits}/estimate")
    assert (answer["why"], answer["name"], answer["position"]) == ("limit", "api", 1)


async def test_a_listing_may_begin_with_the_newest_job_and_its_pages_follow(site: ChecklistServer) -> None:
    ids = [await site.enqueue() for _ in range(5)]
    seen: list[str] = []
    path: str | None = "/jobs?order=newest&limit=2"
    while path:
        page = await site.ask("GET", path)
        seen += [job["id"] for job in page["jobs"]]
        await site.enqueue()  # newer than all that is still to come
        path = f"/jobs?order=newest&limit=2&after={page['next']}" if page["next"] else None
    assert seen == ids[::-1]
    assert [job["id"] for job in (await site.ask("GET", "/jobs?limit=5"))["jobs"]] == ids
    assert (await site.ask("GET", "/jobs?order=sideways", status=400))["at"] == "order"
