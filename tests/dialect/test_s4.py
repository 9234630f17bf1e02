"""The routes of an older queue of notifications, as its users write them: each test names the promises it keeps."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx2
import msgspec
import pytest
from msgspec.structs import replace

from tests.support.engines import enqueue, finish, register, take
from tests.support.http_servers import served, web
from tests.support.stores import EPOCH, VirtualClock
from windlass.dialect.s4 import PREFIXES, NotificationOptions
from windlass.engine import Engine
from windlass.engine.upkeep import promote, purge
from windlass.model.duration import DAY
from windlass.model.errors import Unavailable
from windlass.model.job import Error
from windlass.model.match import Match
from windlass.model.operations import (
    A,
    AddToken,
    Cancel,
    ChangeQueue,
    Claim,
    Claimed,
    Count,
    Delete,
    List,
    Operation,
    Show,
)
from windlass.model.outcome import Verdict
from windlass.model.queue import QueueChange
from windlass.model.token import Scope

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)

ROOM = {"id": "Room:1", "type": "Room", "temperature": {"type": "Number", "value": 23.5}}
LISTING = "/management/queue/notifications"
STATUSES = ("pending", "succeeded", "failed")


class Caller:
    """A client that sends and manages notifications."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def notify(self, *entities: Any, status: int = 200, **headers: str) -> str:
        body = {"subscriptionId": "s1", "data": list(entities) or [ROOM]}
        response = await self.client.post("/v2/notify", json=body, headers=spelled(headers))
        assert response.status_code == status, response.text
        return response.text

    async def get(self, rest: str = "", **headers: str) -> Any:
        response = await self.client.get(LISTING + rest, headers=spelled(headers))
        assert response.status_code == 200, response.text
        return response.json()

    async def delete(self, **headers: str) -> int:
        return (await self.client.delete(LISTING, headers=spelled(headers))).status_code

    async def runtime(self) -> Any:
        """How the only task there is fares."""
        (one,) = await self.get("/summary")
        return one


def spelled(headers: dict[str, str]) -> dict[str, str]:
    names = {"service": "Fiware-Service", "path": "Fiware-ServicePath", "correlator": "Fiware-Correlator"}
    return {names.get(name, name.replace("_", "-")): value for name, value in headers.items()}


@pytest.fixture
async def caller(site: str) -> AsyncIterator[Caller]:
    async with web(site) as client:
        yield Caller(client)


async def next_run(engine: Engine) -> tuple[str, Claimed]:
    worker = await register(engine)
    return worker, await take(engine, worker)


async def run(engine: Engine, outcome: Verdict = Verdict.OK, **more: Any) -> None:
    await finish(engine, *await next_run(engine), outcome, **more)


async def fail(engine: Engine, message: str) -> None:
    await run(engine, Verdict.ERROR, error=Error(type="Broken", message=message))


async def test_a_notification_is_answered_before_the_work_is_done(engine: Engine, caller: Caller) -> None:
    """S4 1, 10 and 16: it is pending until a worker has run it, which gets what was sent."""
    await caller.notify(service="shop", path="/a", correlator="c1", Fiware_TimeIndex_Attribute="at")
    (answer,) = await caller.get()
    given = {"fiware_service": "shop", "fiware_service_path": "/a", "fiware_correlator": "c1", "payload": [ROOM]}
    assert answer["input"] == given
    runtime = answer["runtime"]
    assert (runtime["task_type"], runtime["status"], runtime["retries_left"], runtime["errors"]) == (
        "notify",
        "pending",
        None,
        [],
    )
    worker, claimed = await next_run(engine)
    assert msgspec.json.decode(claimed.payload) == given
    assert claimed.job.headers["fiware-timeindex-attribute"] == "at"
    assert (await caller.runtime())["status"] == "pending"
    await finish(engine, worker, claimed)
    assert (await caller.runtime())["status"] == "succeeded"


async def test_work_that_is_not_offloaded_is_done_before_the_answer(engine: Engine, clock: VirtualClock) -> None:
    """S4 2: and a client whose notification fails gets the error."""
    async with (
        served(engine, clock, notifications=NotificationOptions(offload=False, max_retry=3)) as site,
        web(site) as client,
    ):
        caller = Caller(client)
        worker = await register(engine)
        for outcome, status in ((Verdict.OK, 200), (Verdict.ERROR, 500)):
            asked = asyncio.create_task(caller.notify(status=status))
            (claimed,) = await engine(Claim(worker=worker, wait=10))
            assert not asked.done()
            await finish(engine, worker, claimed, outcome, error=Error(message="no such table"))
            assert ("done" if status == 200 else "no such table") in await asked
            await caller.delete()


async def test_work_that_a_client_waits_for_starts_soon_or_never(engine: Engine, clock: VirtualClock) -> None:
    """S4 2."""
    async with served(engine, clock, notifications=NotificationOptions(offload=False)) as site, web(site) as client:
        asked = asyncio.create_task(Caller(client).notify())
        (claimed,) = await engine(Claim(worker=await register(engine), wait=10))
        assert (claimed.job.expires, claimed.job.timeout, claimed.job.max_retry) == (60, 180, 0)
        asked.cancel()


class Down:
    """A queue that takes nothing in."""

    async def __call__(self, operation: Operation[A], /) -> A:
        raise Unavailable("the store does not answer")


async def test_a_queue_that_is_down_is_an_error(engine: Engine, clock: VirtualClock) -> None:
    """S4 3: its sender keeps the notification. A server with a journal takes it, and is not down."""
    async with served(engine, clock, asking=Down()) as site, web(site) as client:
        assert "not_queued" in await Caller(client).notify(status=500)


async def test_a_task_that_fails_without_retries_has_failed(engine: Engine, caller: Caller) -> None:
    """S4 5 and 15: these are the terms of that queue."""
    await caller.notify()
    await fail(engine, "no such table")
    answer = await caller.runtime()
    assert (answer["status"], answer["errors"], answer["retries_left"]) == ("failed", ["Broken: no such table"], None)
    (job,) = (await engine(List())).jobs
    assert (job.queue, job.keep_success, job.keep_failure, job.timeout) == ("default", DAY, 7 * DAY, 180)


async def test_retries_are_counted_spaced_and_listed(engine: Engine, clock: VirtualClock) -> None:
    """S4 6, 7, 9, 10 and 11: four runs, twenty seconds apart, then forty, then eighty."""
    async with served(engine, clock, notifications=NotificationOptions(max_retry=3)) as site, web(site) as client:
        caller = Caller(client)
        await caller.notify()
        walk, starts = [(await caller.runtime())["retries_left"]], []
        for pause in (20, 40, 80, 0):
            worker, claimed = await next_run(engine)
            starts.append(clock.now() - EPOCH)
            running = await caller.runtime()
            walk.append(running["retries_left"])
            assert running["status"] == "pending"
            await finish(engine, worker, claimed, Verdict.ERROR, error=Error(message=f"at {pause}"))
            if pause:
                assert (await caller.runtime())["status"] == "pending"
            clock.advance(pause)
            await promote(engine)
        assert walk == [3, 3, 2, 1, 0]
        assert starts == [timedelta(seconds=passed) for passed in (0, 20, 60, 140)]
        ended = await caller.runtime()
        assert (ended["status"], ended["errors"]) == ("failed", ["at 20", "at 40", "at 80", "at 0"])


async def test_a_success_after_a_retry_keeps_its_errors(engine: Engine, clock: VirtualClock) -> None:
    """S4 8, 11 and 12: and a task that stops has failed, whatever retries are left."""
    async with (
        served(engine, clock, notifications=NotificationOptions(max_retry=3, retry_after=5)) as site,
        web(site) as client,
    ):
        caller = Caller(client)
        await caller.notify()
        await fail(engine, "busy")
        clock.advance(5)
        await promote(engine)
        await run(engine)
        answer = await caller.runtime()
        assert (answer["status"], answer["errors"], answer["retries_left"]) == ("succeeded", ["Broken: busy"], 2)
        await caller.delete()
        await caller.notify()
        await run(engine, Verdict.FAILED, error=Error(type="StopTask", message="no such column"))
        answer = await caller.runtime()
        assert (answer["status"], answer["errors"]) == ("failed", ["StopTask: no such column"])


async def test_tasks_vanish_when_their_time_is_over(engine: Engine, clock: VirtualClock) -> None:
    """S4 13: without any request."""
    habits = NotificationOptions(keep_success=10, keep_failure=60)
    async with served(engine, clock, notifications=habits) as site, web(site) as client:
        caller = Caller(client)
        left = []
        for outcome in (Verdict.OK, Verdict.ERROR):
            await caller.notify()
            await run(engine, outcome)
        for pause in (9, 2, 48, 2):
            clock.advance(pause)
            await purge(engine)
            left.append([one["status"] for one in await caller.get("/summary")])
        assert left == [["succeeded", "failed"], ["failed"], ["failed"], []]


@pytest.mark.parametrize("whose", ["default", "-"])
async def test_a_queues_own_keep_times_win_over_the_settings_of_notifications(
    engine: Engine, clock: VirtualClock, whose: str
) -> None:
    """S4 13."""
    settings = NotificationOptions(keep_success=10, keep_failure=60)
    async with served(engine, clock, notifications=settings) as site, web(site) as client:
        caller = Caller(client)
        await engine(ChangeQueue(tenant=whose, queue="default", change=QueueChange(keep_success=3600.0)))
        await caller.notify()
        await engine(ChangeQueue(tenant=whose, queue="default", change=QueueChange(keep_failure=None)))
        await caller.notify()
        clear = QueueChange(clear=["keep_success", "keep_failure"])
        await engine(ChangeQueue(tenant=whose, queue="default", change=clear))
        await caller.notify()
    jobs = (await engine(List())).jobs
    assert [(job.keep_success, job.keep_failure) for job in jobs] == [(3600, 60), (3600, None), (10, 60)]


async def test_each_status_lists_its_own_tasks_and_a_count_is_the_length(engine: Engine, clock: VirtualClock) -> None:
    """S4 17 and 20: pending is queued, running and waiting for a retry; a cancelled task is gone."""
    async with served(engine, clock, notifications=NotificationOptions(max_retry=1)) as site, web(site) as client:
        caller = Caller(client)
        for outcome in (Verdict.OK, Verdict.FAILED, Verdict.ERROR, None):
            await caller.notify(correlator=str(outcome))
            if outcome is not None:
                await run(engine, outcome)
        await next_run(engine)
        await caller.notify(correlator="queued")
        await caller.notify(correlator="cancelled")
        jobs = (await engine(List())).jobs
        await engine(Cancel(ids=[jobs[-1].id]))
        found = {}
        for status in STATUSES:
            listed = await caller.get(f"?taskStatus={status}")
            assert {one["runtime"]["status"] for one in listed} == {status}
            assert await caller.get(f"/count?taskStatus={status}") == len(listed)
            found[status] = [one["input"]["fiware_correlator"] for one in listed]
        assert {status: len(listed) for status, listed in found.items()} == {"pending": 3, "succeeded": 1, "failed": 1}
        assert sorted(found["pending"]) == sorted(["None", "error", "queued"])
        assert await caller.get("/count") == len(await caller.get()) == len(await caller.get("/summary")) == 5
        assert (await client.get(f"{LISTING}?taskStatus=lost")).json()["at"] == "taskStatus"


SCOPES: list[tuple[dict[str, str], int]] = [
    ({}, 7),
    ({"service": "shop"}, 1),
    ({"service": "shop", "path": "/"}, 1),
    ({"service": "shop", "path": "/ab"}, 3),
    ({"service": "shop", "path": "/abc"}, 1),
    ({"service": "shop", "path": "/a"}, 0),
    ({"service": "sho", "path": "/ab"}, 0),
    ({"service": "shop", "path": "/ab", "correlator": "c1"}, 1),
    ({"service": "shop", "path": "/ab", "correlator": "c"}, 0),
    ({"service": "other", "path": "/ab"}, 1),
    ({"service": "shop", "ngsild_tenant": "other", "path": "/ab"}, 1),
    ({"path": "/ab"}, 0),
    ({"path": "/"}, 1),
]


async def test_a_scope_is_exactly_what_it_names(caller: Caller) -> None:
    """S4 18, 19 and 20: no name stands for those that begin with it; no header at all means everything."""
    for correlator in ("c1", "c2", ""):
        await caller.notify(service="shop", path="/ab", correlator=correlator)
    await caller.notify(service="shop", path="/abc")
    await caller.notify(service="shop")
    await caller.notify(service="shop", ngsild_tenant="other", path="/ab")
    await caller.notify()
    for headers, number in SCOPES:
        listed = await caller.get(**headers)
        assert len(listed) == len(await caller.get("/summary", **headers)) == number, headers
        assert await caller.get("/count", **headers) == number, headers
    (one,) = await caller.get(service="shop")
    assert (one["input"]["fiware_service"], one["input"]["fiware_service_path"]) == ("shop", "/")


async def test_a_path_may_be_longer_than_any_tag(caller: Caller) -> None:
    """S4 18."""
    deep = "/" + "/".join(["x" * 50] * 10)
    await caller.notify(service="shop", path=deep)
    assert await caller.get("/count", service="shop", path=deep) == 1
    assert await caller.get("/count", service="shop", path=deep[:-1]) == 0


async def test_a_scope_is_deleted_in_all_states_and_nothing_else_is(engine: Engine, caller: Caller) -> None:
    """S4 21 and 22: what was queued never runs, what runs leaves no record."""
    for outcome in (Verdict.OK, Verdict.FAILED):
        await caller.notify(service="shop", path="/ab")
        await run(engine, outcome)
    await caller.notify(service="shop", path="/ab")
    worker, claimed = await next_run(engine)
    await caller.notify(service="shop", path="/ab")
    await caller.notify(service="shop", path="/abc")
    assert await caller.delete(service="shop", path="/ab") == 204
    await finish(engine, worker, claimed)
    assert await caller.get("/count", service="shop", path="/ab") == 0
    _, left = await next_run(engine)
    assert left.job.headers["fiware-servicepath"] == "/abc"
    assert await caller.delete(service="shop", path="/ab") == 204
    assert await caller.get("/count") == 1


async def test_other_jobs_are_none_of_its_business(engine: Engine, caller: Caller) -> None:
    """S4 21."""
    await caller.notify()
    assert await caller.delete() == 204
    other = await enqueue(engine, "mail")
    assert (await caller.get("/count"), await caller.delete()) == (0, 204)
    assert (await engine(Show(id=other.id))).task == "mail"


async def test_a_long_listing_is_streamed_while_it_is_read(engine: Engine, clock: VirtualClock) -> None:
    """S4 23: no page is asked for before the one before it is on its way."""
    asked: list[str] = []

    class Counting:
        async def __call__(self, operation: Operation[A], /) -> A:
            asked.append(type(operation).__name__)
            return await engine(replace(operation, limit=25) if isinstance(operation, List) else operation)  # type: ignore[arg-type]

    async with served(engine, clock, asking=Counting()) as site, web(site) as client:
        caller = Caller(client)
        for _ in range(110):
            await caller.notify()
        asked.clear()
        assert len(await caller.get()) == 110
    assert asked.count("List") == 5
    pages = " ".join(asked).split("List")
    assert max(page.count("Show") for page in pages) == 25


async def test_tasks_that_go_during_a_listing_are_left_out(engine: Engine, clock: VirtualClock) -> None:
    """S4 24 and 25: and the array is still one."""

    class Purging:
        async def __call__(self, operation: Operation[A], /) -> A:
            answer = await engine(operation)
            if isinstance(operation, List):
                gone = [job.id for job in answer.jobs if job.headers.get("fiware-correlator") != "kept"]  # type: ignore[attr-defined]
                await engine(Delete(ids=gone))
            return answer

    async with served(engine, clock, asking=Purging()) as site, web(site) as client:
        caller = Caller(client)
        for correlator in ("a", "kept", "b"):
            await caller.notify(correlator=correlator)
        assert [one["input"]["fiware_correlator"] for one in await caller.get()] == ["kept"]
        await caller.delete()
        await caller.notify()
        assert await caller.get() == []


async def test_an_array_is_strict_unless_a_null_is_wanted_at_its_end(engine: Engine, clock: VirtualClock) -> None:
    """S4 25 and 26: a summary is flat, or wrapped where that is wanted."""
    for habits, null, keys in (
        (NotificationOptions(), [], {"task_id", "task_type", "status", "retries_left", "errors"}),
        (NotificationOptions(trailing_null=True, wrapped_summary=True), [None], {"runtime"}),
    ):
        async with served(engine, clock, notifications=habits) as site, web(site) as client:
            caller = Caller(client)
            await caller.delete()
            assert (await caller.get(), await caller.get("/summary")) == (null, null)
            await caller.notify()
            await caller.notify()
            first, second, *rest = await caller.get("/summary")
            assert (set(first), set(second), rest) == (keys, keys, null)
            assert [*map(type, await caller.get())] == [dict, dict, *map(type, null)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no JSON",
        b"[]",
        b"{}",
        b'{"data": []}',
        b'{"data": {}}',
        b'{"data": [1]}',
        b'{"data": [{"id": "Room:1"}]}',
        b'{"data": [{"type": "Room"}]}',
        b'{"data": [{"id": "", "type": "Room"}]}',
        b'{"data": [{"id": 7, "type": "Room"}]}',
        b'{"data": [{"id": "Room:1", "type": "Room"}, {"id": "Room:2"}]}',
        b'{"data": [{"id": "\xff", "type": "Room"}]}',
    ],
)
async def test_what_is_no_notification_is_refused_and_not_queued(caller: Caller, body: bytes) -> None:
    """S4 31."""
    response = await caller.client.post("/v2/notify", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert await caller.get("/count") == 0


async def test_empty_attributes_are_left_out(caller: Caller) -> None:
    """S4 31: nought and false say something."""
    kept = {
        "zero": {"value": 0},
        "off": {"type": "Boolean", "value": False},
        "owner": {"type": "Relationship", "object": "urn:x"},
    }
    empty: dict[str, Any] = {
        "none": None,
        "blank": {},
        "text": {"type": "", "value": ""},
        "null": {"value": None, "metadata": {}},
    }
    await caller.notify({**ROOM, **kept, **empty})
    (answer,) = await caller.get()
    assert answer["input"]["payload"] == [{**ROOM, **kept}]


async def test_a_task_id_holds_the_scope_and_is_unique(engine: Engine, caller: Caller) -> None:
    """S4 32."""
    for _ in range(2):
        await caller.notify(service="shop", path="/a:b", correlator="c:1")
    first, second = [one["task_id"] for one in await caller.get("/summary")]
    assert first != second
    jobs = (await engine(List())).jobs
    parts = ["" if part == '""' else b64decode(part).decode() for part in first.split(":")]
    assert parts == ["shop", "/a:b", "c:1", jobs[0].id.replace("-", "")]
    await caller.delete()
    await caller.notify()
    assert (await caller.runtime())["task_id"].startswith('"":Lw==:"":')


async def test_none_of_many_notifications_at_once_is_lost(caller: Caller) -> None:
    """S4 33."""
    async with asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(caller.notify(correlator=f"c{number}"))
    assert len({one["task_id"] for one in await caller.get("/summary")}) == 200


async def test_the_routes_have_another_name(caller: Caller) -> None:
    await caller.notify()
    for rest in ("", "/summary", "/count"):
        found = [(await caller.client.get(f"{prefix}/notifications{rest}")).json() for prefix in PREFIXES]
        assert found[0] == found[1] != []
    assert (await caller.client.delete("/wq/management/notifications")).status_code == 204
    assert await caller.get("/count") == 0


ROUTES: list[tuple[str, str, Scope]] = [
    ("POST", "/v2/notify", "enqueue"),
    ("GET", LISTING, "read"),
    ("GET", f"{LISTING}/summary", "read"),
    ("GET", f"{LISTING}/count", "read"),
    ("DELETE", LISTING, "operate"),
]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route[0]} {route[1]}")
async def test_a_token_opens_what_it_is_for_in_its_own_tenant(
    engine: Engine, site: str, clock: VirtualClock, caller: Caller, route: tuple[str, str, Scope]
) -> None:
    verb, path, scope = route
    await caller.notify()

    async def asked(*scopes: Scope) -> httpx2.Response:
        token = (await engine(AddToken(tenant="shop", scopes=list(scopes)))).token if scopes else ""
        clock.advance(1)  # the cached tokens expire
        async with web(site, token) as client:
            body = msgspec.json.encode({"data": [ROOM]}) if verb == "POST" else None
            return await client.request(verb, path, content=body)

    every: list[Scope] = ["enqueue", "work", "read", "operate"]
    assert (await asked()).status_code == 401
    assert (await asked(*[one for one in every if one != scope])).status_code == 403
    own = await asked(scope)
    assert own.status_code in (200, 204)
    assert own.text in ("queued\n", "[]", "0", "")
    assert (await engine(Count(match=Match(task="notify")))).count == 1
