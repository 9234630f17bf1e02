"""What two older queues promised their users, held by ours over HTTP: each test names the promises it keeps."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.serving import Web, decoded
from tests.worlds import EPOCH, VirtualClock
from windlass.engine import Engine, jobs
from windlass.engine.upkeep import promote, purge, reclaim

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)


class Desk:
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
        """Let time pass, and the queue do what it then has to; whoever works after that is a new worker."""
        self.clock.advance(seconds)
        for duty in (promote, reclaim, purge):
            await duty(self.engine)
        self.worker = ""


@pytest.fixture
def desk(page: Web, engine: Engine, clock: VirtualClock) -> Desk:
    return Desk(page, engine, clock)


async def test_two_posts_make_two_jobs(desk: Desk) -> None:
    """S2 1 and 3."""
    first, second = await desk.enqueue(), await desk.enqueue()
    assert first != second
    job = await desk.job(first)
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
async def test_what_is_wrong_is_refused_and_not_queued(body: Any, desk: Desk) -> None:
    """S2 2."""
    response = await desk.page.send("POST", "/jobs", b"null" if body is None else body)
    assert response.status_code == 400
    assert (await desk.ask("GET", "/jobs/count"))["count"] == 0


async def test_jobs_go_by_priority_then_by_age(desk: Desk) -> None:
    """S2 5, 6 and 7: lower first, equals by arrival, and a low one may wait for ever."""
    ids = [await desk.enqueue(priority=priority) for priority in (5, 0, -5, 0, 2**31 - 1, -(2**31))]
    order = [await desk.run() for _ in range(3)]
    later = await desk.enqueue(priority=1)
    order += [await desk.run() for _ in range(4)]
    assert order == [ids[5], ids[2], ids[1], ids[3], later, ids[0], ids[4]]


async def test_a_failed_job_competes_again_after_its_pause(desk: Desk) -> None:
    """S2 8 and 9; S4 5, 6, 9 and 11: `max_retry` counts the runs after the first."""
    retried = await desk.enqueue(priority=-1, max_retry=2, retry={"base": 10, "jitter": 0})
    await desk.run("error", message="first")
    waiting = await desk.job(retried)
    assert (waiting["state"], waiting["attempt"], waiting["reason"]) == ("scheduled", 1, "error")
    other = await desk.enqueue()
    await desk.later(9)
    assert await desk.run() == other
    await desk.enqueue()
    await desk.later(1)
    assert await desk.run("error", message="second") == retried
    await desk.later(20)
    assert await desk.run("error", message="third") == retried
    ended = await desk.job(retried)
    assert (ended["state"], ended["attempt"]) == ("failed", 3)
    assert [error["message"] for error in ended["errors"]] == ["first", "second", "third"]
    once = await desk.enqueue("once")
    await desk.run()
    await desk.run("error")
    assert (await desk.job(once))["state"] == "failed"


async def test_the_pauses_double(desk: Desk) -> None:
    """S2 10; S4 7: from the start of each run, if so asked."""
    id = await desk.enqueue(max_retry=3, retry={"base": 20, "jitter": 0, "cap": 1000, "anchor": "start"})
    started = []
    for pause in (20, 40, 80, 0):
        await desk.run("error")
        job = await desk.job(id)
        started.append(datetime.fromisoformat(job["started_at"]) - EPOCH)
        await desk.later(pause)
    assert started == [timedelta(seconds=total) for total in (0, 20, 60, 140)]


async def test_a_job_that_cannot_succeed_is_not_run_again(desk: Desk) -> None:
    """S2 11 and 18; S4 12."""
    id = await desk.enqueue(max_retry=5)
    await desk.run("failed", message="no such file", error={"type": "StopTask", "message": "why"})
    job = await desk.job(id)
    assert (job["state"], job["reason"], job["error"]["type"], job["error"]["message"]) == (
        "failed",
        "failed",
        "StopTask",
        "why",
    )


async def test_a_success_after_retries_is_one(desk: Desk) -> None:
    """S4 8 and 11."""
    id = await desk.enqueue(max_retry=3, retry={"base": 1, "jitter": 0})
    await desk.run("error", message="once")
    await desk.later(1)
    await desk.run()
    await desk.later(100)
    assert await desk.claim() == []
    job = await desk.job(id)
    assert (job["state"], [error["message"] for error in job["errors"]]) == ("succeeded", ["once"])


async def test_results_are_kept_as_asked(desk: Desk) -> None:
    """S2 12, 13 and 14."""
    kept, once, none = [await desk.enqueue(keep_result=keep, keep_success=60) for keep in ("keep", "once", "none")]
    for _ in range(3):
        await desk.run(result={"r": [1]})
    results = [[(await desk.ask("GET", f"/jobs/{id}/result"))["result"] for _ in range(2)] for id in (kept, once, none)]
    assert results == [[{"r": [1]}, {"r": [1]}], [{"r": [1]}, None], [None, None]]
    assert {(await desk.job(id))["state"] for id in (kept, once, none)} == {"succeeded"}
    await desk.later(61)
    for id in (kept, once, none):
        await desk.ask("GET", f"/jobs/{id}/result", status=404)


async def test_a_result_has_a_time_of_its_own(desk: Desk) -> None:
    """S2 15: after it there is none, and the job is still there."""
    never_asked, asked = [await desk.enqueue(keep_result_for=30, keep_success=60) for _ in range(2)]
    for _ in range(2):
        await desk.run(result={"r": [1]})
    assert (await desk.ask("GET", f"/jobs/{asked}/result"))["result"] == {"r": [1]}
    await desk.later(30)
    for id in (never_asked, asked):
        told = await desk.ask("GET", f"/jobs/{id}/result")
        assert (told["state"], told["code"], told["result"]) == ("succeeded", 200, None)
        assert (await desk.job(id))["keep_result_for"] == 30
    await desk.later(30)
    for id in (never_asked, asked):
        await desk.ask("GET", f"/jobs/{id}/result", status=404)


async def test_a_job_whose_worker_is_silent_past_its_time_is_taken_away(desk: Desk) -> None:
    """S2 16: and the late report changes nothing."""
    id = await desk.enqueue(timeout=5, max_retry=0)
    (claimed,) = await desk.claim()
    assert claimed["deadline"] is not None
    silent = desk.worker
    for _ in range(4):
        await desk.later(10)
    assert (await desk.job(id))["state"] != "running"
    before = await desk.job(id)
    report = {"id": id, "token": claimed["token"], "outcome": "ok"}
    late = await desk.page.send("POST", f"/workers/{silent}/finish", [report])
    assert late.status_code == 404 or decoded(late)["refused"] == [id]
    assert await desk.job(id) == before


async def test_when_a_job_ended_is_told(desk: Desk) -> None:
    """S2 17: as the worker says, or as the clock does."""
    said, unsaid = await desk.enqueue(), await desk.enqueue()
    first, second = await desk.claim(2)
    desk.clock.advance(2)
    assert (await desk.finish(first, finished_at="2026-01-01T01:00:01.5+01:00"))["applied"]
    assert (await desk.finish(second))["applied"]
    assert (await desk.job(said))["finished_at"] == "2026-01-01T00:00:01.500000Z"
    assert datetime.fromisoformat((await desk.job(unsaid))["finished_at"]) == EPOCH + timedelta(seconds=2)


async def test_the_walk_of_a_job_is_told(desk: Desk) -> None:
    """S2 19; S4 10: pending until it has ended."""
    id = await desk.enqueue(max_retry=1, retry={"base": 1, "jitter": 0})

    async def seen() -> tuple[str, int, bool, int]:
        job = await desk.job(id)
        pending = (await desk.ask("GET", "/jobs/count?state=pending"))["count"]
        return job["state"], job["attempt"], job["worker"] is not None, pending

    walk = [await seen()]
    (claimed,) = await desk.claim()
    walk.append(await seen())
    await desk.finish(claimed, "error")
    walk.append(await seen())
    await desk.later(1)
    walk.append(await seen())
    await desk.run()
    walk.append(await seen())
    assert walk == [
        ("queued", 0, False, 1),
        ("running", 1, True, 1),
        ("scheduled", 1, True, 1),
        ("queued", 1, True, 1),
        ("succeeded", 2, True, 0),
    ]


@asynccontextmanager
async def asking(desk: Desk, path: str) -> AsyncIterator["asyncio.Task[Any]"]:
    """A request on its way, that has reached the server."""
    task = asyncio.create_task(desk.page.send("GET", path))
    await asyncio.sleep(0.1)
    yield task


async def test_whoever_waits_for_a_result_hears_of_the_end_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2 21 and 22: of the end, not of a failure that is tried again."""
    monkeypatch.setattr(jobs, "LOOK_AGAIN", 60.0)
    await desk.ask("GET", "/jobs/00000000-0000-7000-8000-0000000000df/result?wait=1", status=404)
    id = await desk.enqueue(max_retry=1, retry={"base": 0, "jitter": 0})
    begun = time.monotonic()
    await desk.ask("GET", f"/jobs/{id}/result?wait=0.3", status=408)
    assert time.monotonic() - begun > 0.25
    async with asking(desk, f"/jobs/{id}/result?wait=30") as waiting:
        await desk.run("error")
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await desk.later(0)
        (claimed,) = await desk.claim()
        ended = time.monotonic()
        await desk.finish(claimed, result="done")
        assert decoded(await waiting)["result"] == "done"
        assert time.monotonic() - ended < 20, "it was looked for, not heard of"
    begun = time.monotonic()
    assert (await desk.ask("GET", f"/jobs/{id}/result?wait=20"))["result"] == "done"
    assert time.monotonic() - begun < 20, "it waited for what was there"


async def test_workers_of_one_name_are_two(desk: Desk) -> None:
    """S2 23."""
    first, second = [(await desk.ask("POST", "/workers", {"name": "w"}, 201))["worker"] for _ in range(2)]
    assert first != second
    assert {one["id"] for one in await desk.ask("GET", "/workers")} == {first, second}
    await desk.ask("DELETE", f"/workers/{first}", status=204)
    await desk.ask("DELETE", f"/workers/{first}", status=404)


async def test_a_report_that_makes_no_sense_changes_nothing(desk: Desk) -> None:
    """S2 26."""
    id = await desk.enqueue()
    (claimed,) = await desk.claim()
    report = {"id": id, "token": claimed["token"], "outcome": "ok"}
    await desk.ask("POST", "/workers/nobody/finish", [report], 404)
    for wrong in ([{"id": id}], [{**report, "outcome": "fine"}], {**report}, [{**report, "code": 404}]):
        await desk.ask("POST", f"/workers/{desk.worker}/finish", wrong, 400)
    unknown = {**report, "id": "00000000-0000-7000-8000-0000000000df"}
    answer = await desk.ask("POST", f"/workers/{desk.worker}/finish", [unknown])
    assert answer == {"applied": [], "refused": [unknown["id"]]}
    assert (await desk.job(id))["state"] == "running"
    assert (await desk.finish(claimed, result=1))["applied"] == [id]
    assert (await desk.finish(claimed, "error"))["refused"] == [id]
    assert (await desk.ask("GET", f"/jobs/{id}/result"))["result"] == 1


async def test_records_go_after_their_time(desk: Desk) -> None:
    """S4 13, 14 and 15: counted from the end, and chosen for each job."""
    good = await desk.enqueue(keep_success=10, keep_failure=1)
    bad = await desk.enqueue("b", keep_success=1, keep_failure=100, max_retry=1, retry={"base": 50, "jitter": 0})
    await desk.run()
    await desk.run("error")
    await desk.later(11)
    await desk.ask("GET", f"/jobs/{good}", status=404)
    await desk.later(39)
    await desk.run("error")
    await desk.later(99)
    assert (await desk.job(bad))["state"] == "failed"
    await desk.later(2)
    await desk.ask("GET", f"/jobs/{bad}", status=404)
    assert (await desk.ask("GET", "/jobs/count"))["count"] == 0


async def test_a_listing_has_what_it_is_asked_for_and_nothing_else(desk: Desk) -> None:
    """S4 16, 17, 18 and 20: names match whole, and a count is the length of a listing."""
    for queue in ("ab", "abc"):
        for outcome in ("ok", "failed", ""):
            await desk.enqueue(queue=queue, tags=[queue, outcome or "none"], payload={"q": queue})
    worker = (await desk.ask("POST", "/workers", {"name": "w", "queues": ["ab", "abc"]}, 201))["worker"]
    desk.worker = worker
    for claimed in await desk.claim(6):
        if (outcome := claimed["job"]["tags"][1]) != "none":
            await desk.finish(claimed, outcome)
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
        listed = (await desk.ask("GET", f"/jobs{query}"))["jobs"]
        assert len(listed) == (await desk.ask("GET", f"/jobs/count{query}"))["count"] == count, query
    one = (await desk.ask("GET", "/jobs?queue=ab&limit=1"))["jobs"][0]
    assert (await desk.ask("GET", f"/jobs/{one['id']}?payload=true"))["payload"] == {"q": "ab"}


async def test_what_is_deleted_does_not_run_and_leaves_nothing(desk: Desk) -> None:
    """S4 21 and 22."""
    running = await desk.enqueue()
    (claimed,) = await desk.claim()
    queued = await desk.enqueue()
    assert (await desk.ask("DELETE", "/jobs?state=pending&state=finished"))["changed"] == 2
    await desk.ask("GET", f"/jobs/{queued}", status=404)
    assert await desk.claim() == []
    await desk.finish(claimed)
    await desk.ask("GET", f"/jobs/{running}", status=404)
    assert (await desk.ask("DELETE", "/jobs?state=pending&state=finished"))["changed"] == 0


async def test_a_job_cancelled_before_its_start_never_runs(desk: Desk) -> None:
    """S2 20: a running one is stopped, one that has ended is left alone, one that is not there is missing."""
    waiting = await desk.enqueue()
    assert await desk.ask("POST", f"/jobs/{waiting}/cancel", {}) == {"changed": 1}
    assert await desk.claim() == []
    assert (await desk.ask("GET", f"/jobs/{waiting}"))["state"] == "cancelled"
    assert await desk.ask("POST", f"/jobs/{waiting}/cancel", {}) == {"changed": 0}
    await desk.enqueue()
    (claimed,) = await desk.claim()
    assert await desk.ask("POST", f"/jobs/{claimed['job']['id']}/cancel", {}) == {"changed": 1}
    held = {"id": claimed["job"]["id"], "token": claimed["token"]}
    renewed = await desk.ask("POST", f"/workers/{desk.worker}/renew", [held])
    assert [(order["id"], order["order"]) for order in renewed["orders"]] == [(held["id"], "cancel")]
    await desk.ask("POST", "/jobs/00000000-0000-7000-8000-0000000000df/cancel", {}, 404)


async def test_a_job_is_taken_in_though_nobody_works(desk: Desk) -> None:
    """S4 1: answered before the work is done, and pending until somebody comes."""
    id = await desk.enqueue()
    assert await desk.ask("GET", "/workers") == []
    assert await desk.ask("GET", "/jobs/count?state=pending") == {"count": 1}
    assert await desk.run() == id


async def test_a_page_for_people_finds_jobs_workers_and_limits_with_what_they_say(desk: Desk) -> None:
    """S2 32: what such a page shows is a question each: what went wrong, who works, which limit a job waits for."""
    await desk.ask("PUT", "/limits/api", {"match": {"task": "call"}, "running": 1})
    broken = await desk.enqueue("broken")
    await desk.run("failed", error={"type": "Missing", "message": "no such customer"})
    runs, waits = await desk.enqueue("call"), await desk.enqueue("call")
    await desk.claim(2)
    jobs = (await desk.ask("GET", "/jobs"))["jobs"]
    assert [(job["id"], job["state"]) for job in jobs] == [(broken, "failed"), (runs, "running"), (waits, "queued")]
    assert jobs[0]["error"]["message"] == "no such customer"
    (worker,) = await desk.ask("GET", "/workers")
    assert (worker["name"], worker["running"], worker["id"]) == ("w", 1, jobs[1]["worker"])
    (limit,) = await desk.ask("GET", "/limits")
    assert (limit["name"], limit["match"], limit["running"]) == ("api", {"task": "call"}, 1)
    told = await desk.ask("GET", f"/jobs/{waits}/estimate")
    assert (told["why"], told["name"], told["position"]) == ("limit", "api", 1)


async def test_a_listing_may_begin_with_the_newest_job_and_its_pages_follow(desk: Desk) -> None:
    ids = [await desk.enqueue() for _ in range(5)]
    seen: list[str] = []
    path: str | None = "/jobs?order=newest&limit=2"
    while path:
        page = await desk.ask("GET", path)
        seen += [job["id"] for job in page["jobs"]]
        await desk.enqueue()  # newer than all that is still to come
        path = f"/jobs?order=newest&limit=2&after={page['next']}" if page["next"] else None
    assert seen == ids[::-1]
    assert [job["id"] for job in (await desk.ask("GET", "/jobs?limit=5"))["jobs"]] == ids
    assert (await desk.ask("GET", "/jobs?order=sideways", status=400))["at"] == "order"
