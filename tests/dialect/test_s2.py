"""The routes of an older queue of pushers and workers, as its users write them. Tests name the promises they keep."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import msgspec
import pytest

from tests.support.engines import register, take
from tests.support.http_servers import decoded, encoded, web
from tests.support.patience import LONGEST_WAIT, NOTIFIED
from tests.support.stores import EPOCH, VirtualClock
from windlass.dialect.s2 import PollQuery
from windlass.engine import Engine, jobs
from windlass.engine.upkeep import promote, purge, reclaim
from windlass.model.limit import NewLimit, Rate, Which
from windlass.model.operations import AddToken, Claim, Claimed, Count, PutLimit, Show
from windlass.model.retry import EXPONENTIAL
from windlass.model.token import Scope

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)

PACKED = "application/msgpack"
JSON = "application/json"
UNKNOWN_ID = "00000000-0000-7000-8000-0000000000df"


class Master:
    """A server, as pushers and workers of that queue speak to it."""

    def __init__(self, client: httpx2.AsyncClient, engine: Engine, clock: VirtualClock) -> None:
        self.client = client
        self.engine = engine
        self.clock = clock

    async def ask(
        self, verb: str, path: str, body: Any = None, status: int = 200, *, form: str = PACKED, worker: str = ""
    ) -> Any:
        headers = {"content-type": form, "accept": form, **({"worker-id": worker} if worker else {})}
        content = body if isinstance(body, bytes) or body is None else encoded(body, form)
        response = await self.client.request(verb, path, content=content, headers=headers)
        assert response.status_code == status, (response.status_code, response.content)
        if status < 300 and response.content:
            assert response.headers["content-type"] == form
        return decoded(response) if response.content else None

    async def push(self, name: str = "work", argument: Any = None, **more: Any) -> str:
        job = {"name": name, "argument": argument, **more}
        return str((await self.ask("POST", "/job", job, 201))["job_id"])

    async def job(self, id: str) -> Any:
        return await self.ask("GET", f"/job/{id}")

    async def start(self) -> tuple[str, Claimed]:
        worker = await register(self.engine)
        return worker, await take(self.engine, worker)

    async def start_all(self) -> list[tuple[str, Claimed]]:
        """Whatever may start now."""
        worker = await register(self.engine, slots=100)
        return [(worker, claimed) for claimed in await self.engine(Claim(worker=worker, slots=100))]

    async def done(self, run: tuple[str, Claimed], status: int = 204, **said: Any) -> None:
        worker, claimed = run
        body = {"job_id": f"{claimed.job.id}.{claimed.token}", "type": "success", **said}
        await self.ask("POST", "/done", body, status, worker=worker)

    async def fail(self, *, should_retry: bool = True, **more: Any) -> str:
        run = await self.start()
        await self.done(run, type="failure", should_retry=should_retry, **more)
        return run[1].job.id

    async def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await promote(self.engine)
        await reclaim(self.engine)


@pytest.fixture
async def master(site: str, engine: Engine, clock: VirtualClock) -> AsyncIterator[Master]:
    async with web(site) as client:
        yield Master(client, engine, clock)


async def test_each_job_gets_an_id_and_the_terms_of_that_queue(master: Master, engine: Engine) -> None:
    """S2 1 and 3."""
    first, second = await master.push(), await master.push()
    assert first != second
    job = await engine(Show(id=first))
    assert (job.priority, job.max_retry, job.timeout, job.keep_result) == (0, 10, 30, "none")
    assert await master.job(first) == {"status": "queued", "retry_count": 0, "message": ""}


@pytest.mark.parametrize("form", [PACKED, JSON])
@pytest.mark.parametrize(
    "wrong",
    [
        {"name": None},
        {"name": 5},
        {"name": "no name"},
        {"priority": 2**31},
        {"priority": -(2**31) - 1},
        {"priority": "high"},
        {"timeout": -1},
        {"max_retry": -1},
        {"max_retry": 1.5},
        {"keep_result": "yes"},
    ],
    ids=str,
)
async def test_what_is_wrong_is_refused_and_not_queued(
    master: Master, engine: Engine, wrong: dict[str, Any], form: str
) -> None:
    """S2 2."""
    await master.ask("POST", "/job", {"name": "a", "argument": {}, **wrong}, 400, form=form)
    bodies: list[Any] = [{"argument": {}}, {"name": "a"}, [], "a", b"", b"\xc1"]
    for body in bodies:
        await master.ask("POST", "/job", body, 400, form=form)
    await master.ask("POST", "/job", b"name=a", 415, form="application/x-www-form-urlencoded")
    assert (await engine(Count())).count == 0


VALUES: list[Any] = [
    None,
    -(2**63),
    2**64 - 1,
    1.5,
    "text",
    b"\x00\xff",
    [1, [2, {"a": None}]],
    {"nested": {"map": [True, {}]}},
    datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    {1: "a key that is no text"},
]


@pytest.mark.parametrize("value", VALUES, ids=str)
async def test_any_value_comes_back_as_it_was(master: Master, value: Any) -> None:
    """S2 4 and 12: as an argument and as a result."""
    id = await master.push(argument=value, keep_result=True)
    run = await master.start()
    assert msgspec.msgpack.decode(run[1].payload, strict=False) == value
    await master.done(run, result=value)
    told = await master.job(id)
    assert (told["status"], told["result"]) == ("done", value)


async def test_json_has_the_same_shapes(master: Master) -> None:
    """S2 34."""
    job = {"name": "a", "argument": {"x": [1, "é"]}, "keep_result": True}
    id = (await master.ask("POST", "/job", job, 201, form=JSON))["job_id"]
    worker, claimed = await master.start()
    report = {"job_id": f"{id}.{claimed.token}", "type": "success", "result": {"y": 1.5}}
    await master.ask("POST", "/done", report, 204, form=JSON, worker=worker)
    assert (await master.ask("GET", f"/job/{id}", form=JSON))["result"] == {"y": 1.5}
    problem = await master.ask("GET", f"/job/{UNKNOWN_ID}", status=404, form=JSON)
    assert (problem["status"], problem["code"]) == (404, "missing")


async def test_lower_numbers_go_first_then_older_jobs(master: Master) -> None:
    """S2 5 and 6."""
    ids = [await master.push(priority=priority) for priority in (5, 0, -5, 0, 2**31 - 1, -(2**31))]
    order = []
    for _ in ids:
        run = await master.start()
        order.append(run[1].job.id)
        await master.done(run, result=None)
    assert order == [ids[place] for place in (5, 2, 1, 3, 0, 4)]


async def test_a_job_with_a_high_number_waits_as_long_as_better_ones_come(master: Master) -> None:
    """S2 7: it does not get better by waiting."""
    patient = await master.push(priority=1)
    for _ in range(20):
        better = await master.push()
        await master.later(3600)
        run = await master.start()
        assert run[1].job.id == better
        await master.done(run, result=None)
    assert (await master.start())[1].job.id == patient


async def test_a_failed_job_competes_again_at_its_priority(master: Master) -> None:
    """S2 8: with those that came meanwhile."""
    failed = await master.push(priority=-1)
    assert await master.fail() == failed
    worse, better = await master.push(), await master.push(priority=-2)
    await master.later(60)
    assert [(await master.start())[1].job.id for _ in range(3)] == [better, failed, worse]


async def test_the_gaps_between_runs_double(master: Master, engine: Engine) -> None:
    """S2 10: but for the chance that keeps failures apart."""
    id = await master.push(max_retry=6)
    gaps = []
    for _ in range(6):
        await master.fail()
        due = (await engine(Show(id=id))).run_at
        assert due is not None
        gaps.append((due - master.clock.now()).total_seconds())
        await master.later(gaps[-1])
    expected = [EXPONENTIAL.base * EXPONENTIAL.factor**number for number in range(6)]
    assert EXPONENTIAL.factor == 2
    for gap, middle in zip(gaps, expected, strict=True):
        assert abs(gap - middle) <= EXPONENTIAL.jitter * middle


async def test_a_failed_job_is_tried_again_ever_later_and_then_no_more(master: Master, engine: Engine) -> None:
    """S2 8, 9, 10, 18 and 19: with two retries, three runs."""
    id = await master.push(max_retry=2)
    walk, pauses = [], []
    for count in range(3):
        assert await master.fail(message=f"no {count}", error={"code": count}) == id
        answer = await master.job(id)
        walk.append((answer["status"], answer["retry_count"], answer["message"], answer["error"]))
        if answer["status"] == "retrying":
            due = (await engine(Show(id=id))).run_at
            assert due is not None
            pauses.append((due - master.clock.now()).total_seconds())
            await master.later(pauses[-1])
            assert (await master.job(id))["status"] == "queued"
    assert walk == [
        ("retrying", 0, "no 0", {"code": 0}),
        ("retrying", 1, "no 1", {"code": 1}),
        ("error", 2, "no 2", {"code": 2}),
    ]
    assert pauses[1] > 1.5 * pauses[0] > 0


async def test_a_failure_without_hope_is_final(master: Master) -> None:
    """S2 9, 11 and 18: and so is the first where no retries are."""
    unreportable = await master.push("a")
    await master.fail(should_retry=False, message="no such file", error=[1, None], reason="other")
    answer = await master.job(unreportable)
    assert (answer["status"], answer["message"], answer["error"]) == ("error", "no such file", [1, None])
    once = await master.push("b", max_retry=0)
    await master.fail(reason="timeout")
    assert (await master.job(once))["status"] == "error"


async def test_a_result_is_handed_out_once_or_never(master: Master) -> None:
    """S2 12, 13 and 14: later it is null, and the job is still done."""
    for keep, results in ((True, [7, None]), (False, [None, None])):
        id = await master.push(keep_result=keep)
        await master.done(await master.start(), result=7)
        assert [(await master.job(id))["result"] for _ in range(2)] == results
        assert (await master.job(id))["status"] == "done"


async def test_a_result_that_is_not_fetched_is_null_after_an_hour(master: Master, engine: Engine) -> None:
    """S2 15: and the job is still done."""
    fetched, forgotten = [await master.push(keep_result=True) for _ in range(2)]
    for _ in range(2):
        await master.done(await master.start(), result=7)
    await master.later(3599)
    assert (await master.job(fetched))["result"] == 7
    for sweep in (False, True):
        await master.later(1)
        if sweep:
            assert await purge(engine) == 2
        for id in (fetched, forgotten):
            answer = await master.job(id)
            assert (answer["status"], answer["result"]) == ("done", None)
            assert (await master.ask("GET", f"/job/{id}/polling"))["result"] is None
    await master.later(23 * 3600)
    await purge(engine)
    await master.ask("GET", f"/job/{forgotten}", status=404)


async def test_the_end_of_a_job_is_in_iso_8601(master: Master) -> None:
    """S2 17: as the worker says, or as the clock does."""
    said, unsaid = await master.push(), await master.push()
    first, second = await master.start(), await master.start()
    master.clock.advance(5)
    await master.done(first, result=None, finished_at="2026-01-01T01:00:03+01:00")
    await master.done(second, result=None)
    assert datetime.fromisoformat((await master.job(said))["finished_at"]) == EPOCH + timedelta(seconds=3)
    assert datetime.fromisoformat((await master.job(unsaid))["finished_at"]) == EPOCH + timedelta(seconds=5)


async def test_a_running_job_names_its_worker(master: Master) -> None:
    """S2 19."""
    id = await master.push()
    worker, _ = await master.start()
    assert await master.job(id) == {"status": "running", "retry_count": 0, "message": "", "worker_id": worker}


async def test_a_job_is_cancelled_before_it_starts_or_not_at_all(master: Master, engine: Engine) -> None:
    """S2 20."""
    waiting = await master.push()
    await master.ask("DELETE", f"/job/{waiting}", status=204)
    await master.ask("GET", f"/job/{waiting}", status=404)
    await master.ask("DELETE", f"/job/{waiting}", status=404)
    running = await master.push()
    run = await master.start()
    assert run[1].job.id == running
    await master.ask("DELETE", f"/job/{running}", status=409)
    await master.done(run, result=None)
    await master.ask("DELETE", f"/job/{running}", status=409)
    assert (await engine(Show(id=running))).state == "succeeded"
    for unknown in (UNKNOWN_ID, "nonsense"):
        await master.ask("DELETE", f"/job/{unknown}", status=404)


async def test_a_poll_hears_of_the_end_at_once_and_of_nothing_before(
    master: Master, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2 21 and 22: not of a failure that is tried again."""
    monkeypatch.setattr(jobs, "POLL_EVERY", 10 * LONGEST_WAIT)
    id = await master.push(max_retry=1, keep_result=True)
    begun = time.monotonic()
    assert (await master.ask("GET", f"/job/{id}/polling?timeout=0.3", status=408))["state"] == "queued"
    assert time.monotonic() - begun > 0.25
    waiting = asyncio.create_task(master.ask("GET", f"/job/{id}/polling?timeout={LONGEST_WAIT:g}"))
    await master.fail()
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await master.ask("GET", f"/job/{id}/polling?timeout=0", status=408)
    await master.later(60)
    run = await master.start()
    ended = time.monotonic()
    await master.done(run, result="x")
    assert (await waiting)["result"] == "x"
    assert time.monotonic() - ended < NOTIFIED, "it was looked for, not heard of"
    assert (await master.ask("GET", f"/job/{id}/polling"))["status"] == "done"
    for unknown in (UNKNOWN_ID, "nonsense"):
        await master.ask("GET", f"/job/{unknown}/polling", status=404)
    assert PollQuery().timeout == 5
    for wrong in ("-1", "61", "soon"):
        await master.ask("GET", f"/job/{id}/polling?timeout={wrong}", status=400)


async def test_workers_of_one_name_are_two(master: Master) -> None:
    """S2 23."""
    new = {"name": "w", "max_jobs": 2, "url": "http://127.0.0.1:9"}
    first, second = [(await master.ask("POST", "/worker", new, 201))["worker_id"] for _ in range(2)]
    assert first != second
    await master.ask("PUT", "/worker", status=204, worker=first)
    await master.ask("DELETE", "/worker", status=204, worker=first)
    for verb in ("DELETE", "PUT"):
        await master.ask(verb, "/worker", status=404, worker=first)
        await master.ask(verb, "/worker", status=400)
    for wrong in ({"name": 5}, {"max_jobs": 0}, {"max_jobs": "2"}, {"url": "ftp://x"}, {"url": None}):
        await master.ask("POST", "/worker", {**new, **wrong}, 400)
    for missing in new:
        await master.ask("POST", "/worker", {name: said for name, said in new.items() if name != missing}, 400)


async def test_a_report_that_makes_no_sense_changes_nothing(master: Master, engine: Engine) -> None:
    """S2 16 and 26: nor does a second one."""
    id = await master.push(keep_result=True)
    worker, claimed = run = await master.start()
    run_id = f"{id}.{claimed.token}"
    good = {"job_id": run_id, "type": "success", "result": 1}
    for wrong in ({"type": "fine"}, {"type": "failure"}, {"job_id": 5}, {"finished_at": "soon"}):
        await master.ask("POST", "/done", {**good, **wrong}, 400, worker=worker)
    await master.ask("POST", "/done", {"job_id": run_id, "type": "success"}, 400, worker=worker)
    await master.ask("POST", "/done", good, 400)
    await master.ask("POST", "/done", good, 404, worker="nobody")
    for unknown in (id, f"{UNKNOWN_ID}.{claimed.token}", "nonsense", f"nonsense.{claimed.token}"):
        await master.ask("POST", "/done", {**good, "job_id": unknown}, 404, worker=worker)
    assert (await master.job(id))["status"] == "running"
    await master.ask("POST", "/done", {**good, "job_id": f"{id}.{'0' * 16}"}, 204, worker=worker)
    assert (await master.job(id))["status"] == "running"
    await master.done(run, result=1)
    await master.done(run, type="failure", should_retry=False)
    assert (await master.job(run_id))["result"] == 1


LIMITS: dict[str, tuple[Which, list[dict[str, Any]], int]] = {
    "S2 28, by name": (Which(task="mail"), [{"name": "mail"}] * 3, 1),
    "S2 28, by a field": (Which(payload={"to.host": "x"}), [{"argument": {"to": {"host": "x"}}}] * 3, 1),
    "S2 29": (
        Which(task="mail", payload={"urgent": True}),
        [{"name": "mail", "argument": {"urgent": urgent}} for urgent in (True, False, True)],
        2,
    ),
}


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_limit_holds_for_jobs_that_match_and_others_pass_by(master: Master, engine: Engine, limit: str) -> None:
    """S2 28, 29 and 30: at most one start in ten seconds, and one that runs."""
    which, jobs, started = LIMITS[limit]
    await engine(PutLimit(name="l", limit=NewLimit(match=which, running=1, rate=Rate(count=1, per=10.0))))
    for job in jobs:
        await master.push(**{"argument": None, **job})
    other = await master.push("other")
    taken = await master.start_all()
    assert len(taken) == started + 1
    assert taken[-1][1].job.id == other
    await master.later(10)
    assert await master.start_all() == [], "the first one still runs"
    for run in taken:
        await master.done(run, result=None)
    (second,) = await master.start_all()
    await master.done(second, result=None)
    await master.later(9)
    assert await master.start_all() == [], "the second one started less than ten seconds ago"
    await master.later(1)
    assert len(await master.start_all()) == 2 - started


ROUTES: list[tuple[str, str, Scope]] = [
    ("POST", "/job", "enqueue"),
    ("GET", f"/job/{UNKNOWN_ID}", "read"),
    ("GET", f"/job/{UNKNOWN_ID}/polling", "read"),
    ("DELETE", f"/job/{UNKNOWN_ID}", "operate"),
    ("POST", "/worker", "work"),
    ("PUT", "/worker", "work"),
    ("DELETE", "/worker", "work"),
    ("POST", "/done", "work"),
]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route[0]} {route[1]}")
async def test_a_token_opens_what_it_is_for(
    engine: Engine, site: str, clock: VirtualClock, route: tuple[str, str, Scope]
) -> None:
    verb, path, scope = route

    async def asked(*scopes: Scope) -> int:
        token = (await engine(AddToken(tenant="shop", scopes=list(scopes)))).token if scopes else ""
        clock.advance(1)  # the cached tokens expire
        async with web(site, token) as client:
            return (await client.request(verb, path, headers={"content-type": JSON}, content=b"{}")).status_code

    every: list[Scope] = ["enqueue", "work", "read", "operate"]
    assert await asked() == 401
    assert await asked(*[one for one in every if one != scope]) == 403
    assert await asked(scope) in (400, 404)
