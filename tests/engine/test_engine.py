"""The engine over each store: operations in, answers out, and what it refuses."""

import asyncio
import math
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec import UNSET, Raw
from msgspec.structs import replace

from tests.store.model_store import ModelStore
from tests.support.engines import enqueue, finish, packed, register, state, take
from tests.support.patience import LONGEST_WAIT, NOTIFIED, PATIENCE
from tests.support.stores import EPOCH, SeededChance, VirtualClock
from windlass.engine import ANSWERS, Engine, Settings, jobs, upkeep, work
from windlass.model import wire
from windlass.model.errors import Conflict, Invalid, Missing, TooLarge, Unavailable, WindlassError
from windlass.model.job import TEXT, Error, Job, Reason, State
from windlass.model.match import Match
from windlass.model.names import fresh_id, queue_mark
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import (
    MOST_AT_ONCE,
    OPERATIONS,
    Alive,
    Applied,
    Audit,
    Began,
    Begin,
    Cancel,
    Changed,
    Claim,
    Count,
    Delete,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    Finish,
    Finished,
    GetResult,
    GetStats,
    List,
    Operation,
    Order,
    Register,
    Release,
    Released,
    Renew,
    Renewed,
    Rerun,
    Result,
    Show,
    Stats,
    Unregister,
    Workers,
)
from windlass.model.outcome import Verdict
from windlass.model.output import Progress
from windlass.model.retry import RetryPolicy as Policy
from windlass.model.wire import MOST_PAYLOAD, MOST_RESULT
from windlass.model.worker import NewWorker
from windlass.store.data import ListScope, RecordPage
from windlass.store.protocol import Store

NO_SUCH_ID = "00000000-0000-7000-8000-0000000000df"
TOKEN = "0123456789abcdef"  # noqa: S105 - of no job


def test_every_operation_has_an_answer() -> None:
    assert set(ANSWERS) == set(OPERATIONS)


# What is refused: one clear error that names the field, and nothing is written

BAD_JOBS: list[tuple[dict[str, Any], str]] = [
    ({"task": "a b"}, "task"),
    ({"task": "a\n"}, "task"),
    ({"task": ""}, "task"),
    ({"task": 5}, "task"),
    ({"task": "a", "queue": "-"}, "queue"),
    ({"task": "a", "queue": None}, "queue"),
    ({"task": "a", "priority": 2**31}, "priority"),
    ({"task": "a", "priority": -(2**31) - 1}, "priority"),
    ({"task": "a", "priority": 2**64}, "priority"),
    ({"task": "a", "priority": "high"}, "priority"),
    ({"task": "a", "priority": 0.5}, "priority"),
    ({"task": "a", "delay": -1.0}, "delay"),
    ({"task": "a", "delay": math.nan}, "delay"),
    ({"task": "a", "timeout": -0.001}, "timeout"),
    ({"task": "a", "expires": -1.0}, "expires"),
    ({"task": "a", "keep_success": -1.0}, "keep_success"),
    ({"task": "a", "keep_failure": math.inf}, "keep_failure"),
    ({"task": "a", "keep_result": "twice"}, "keep_result"),
    ({"task": "a", "max_retry": -1}, "max_retry"),
    ({"task": "a", "retry": Policy(factor=0.5)}, "retry.factor"),
    ({"task": "a", "tags": "night"}, "tags"),
    ({"task": "a", "tags": [""]}, "tags"),
    ({"task": "a", "headers": {"x": 1}}, "headers"),
    ({"task": "a", "headers": {"x": object()}}, "headers"),
    ({"task": "a", "run_at": datetime(2026, 1, 1)}, "run_at"),  # noqa: DTZ001
    ({"task": "a", "run_at": EPOCH, "delay": 1.0}, "run_at"),
    ({"task": "a", "id": "7"}, "id"),
    ({"task": "a", "id": NO_SUCH_ID.upper()}, "id"),
    ({"task": "a", "id": NO_SUCH_ID, "key": "k"}, "key"),
    ({"task": "a", "key": ""}, "key"),
    ({"task": "a", "key": "\ud800"}, "key"),
    ({"task": "a", "payload": Raw(b"x" * (MOST_PAYLOAD + 1))}, "payload"),
]


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("fields", "at"), BAD_JOBS, ids=[f"{n}-{at}" for n, (_, at) in enumerate(BAD_JOBS)])
async def test_a_bad_job_is_refused_by_name(engine: Engine, fields: dict[str, Any], at: str) -> None:
    bad = NewJob(**fields)
    with pytest.raises((Invalid, TooLarge)) as one:
        await engine(Enqueue(job=bad))
    with pytest.raises((Invalid, TooLarge)) as many:
        await engine(EnqueueMany(jobs=[NewJob(task="good"), bad]))
    assert one.value.at.startswith(f"job.{at}")
    assert many.value.at.startswith(f"jobs[1].{at}")
    assert await engine(GetStats(tenant="-")) == Stats(queues=[])


def test_a_field_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(Invalid) as fault:
        wire.decode(wire.encode({"job": {"task": "a", "prioritty": 1}}), Enqueue)
    assert fault.value.at == "job.prioritty"


async def test_a_payload_may_be_as_large_as_allowed(engine: Engine) -> None:
    job = await enqueue(engine, payload=Raw(b"x" * MOST_PAYLOAD), content_type=TEXT)
    assert job.size == MOST_PAYLOAD


async def test_how_large_a_payload_may_be_can_be_chosen(store: Store, chance: SeededChance) -> None:
    engine = Engine(store, chance, Settings(most_payload=10))
    await enqueue(engine, payload=Raw(b"x" * 10))
    with pytest.raises(TooLarge):
        await enqueue(engine, payload=Raw(b"x" * 11))


@pytest.mark.parametrize("tenant", ["", "a b", ".", "a\n", "x" * 129])
async def test_a_bad_tenant_is_refused(engine: Engine, tenant: str) -> None:
    for operation in (Enqueue(tenant=tenant, job=NewJob(task="a")), List(tenant=tenant), GetStats(tenant=tenant)):
        with pytest.raises(Invalid) as fault:
            await engine(operation)
        assert fault.value.at == "tenant"


async def test_a_job_belongs_to_one_tenant(engine: Engine) -> None:
    for operation in (
        Enqueue(tenant="-", job=NewJob(task="a")),
        EnqueueMany(tenant="-", jobs=[NewJob(task="a")]),
    ):
        with pytest.raises(Invalid) as fault:
            await engine(operation)
        assert fault.value.at == "tenant"


def too_much(worker: str) -> list[tuple[Operation[Any], str]]:
    held: dict[str, Any] = {"id": NO_SUCH_ID, "token": TOKEN}
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    ok = Verdict.OK
    return [
        (EnqueueMany(jobs=[NewJob(task="a")] * (MOST_AT_ONCE + 1)), "jobs"),
        (Show(id="7"), "id"),
        (GetResult(id="7"), "id"),
        (GetResult(id=NO_SUCH_ID, wait=-1.0), "wait"),
        (GetResult(id=NO_SUCH_ID, wait=61.0), "wait"),
        (List(limit=0), "limit"),
        (List(limit=MOST_AT_ONCE + 1), "limit"),
        (List(after="nonsense"), "after"),
        (List(match=Match(task="a b")), "match.task"),
        (List(match=Match(created_after=naive)), "match.created_after"),
        (Count(match=Match(created_before=naive)), "match.created_before"),
        (Count(match=Match(state=["ended"])), "match.state"),  # type: ignore[list-item]
        (Cancel(), "ids"),
        (Cancel(ids=[NO_SUCH_ID], match=Match()), "ids"),
        (Rerun(ids=[NO_SUCH_ID, "7"]), "ids"),
        (Delete(ids=[NO_SUCH_ID] * (MOST_AT_ONCE + 1)), "ids"),
        (Delete(match=Match(queue="")), "match.queue"),
        (Register(worker=NewWorker(name="")), "worker.name"),
        (Register(worker=NewWorker(name="w", queues=[])), "worker.queues"),
        (Register(worker=NewWorker(name="w", slots=0)), "worker.slots"),
        (Claim(worker=worker, slots=0), "slots"),
        (Claim(worker=worker, slots=MOST_AT_ONCE + 1), "slots"),
        (Claim(worker=worker, wait=-1.0), "wait"),
        (Claim(worker=worker, nonce="no nonce"), "nonce"),
        (Claim(worker=worker, nonce="abcd"), "nonce"),
        (Begin(worker=worker, jobs=[Began(**held, pid=-1)]), "jobs[0].pid"),
        (Renew(worker=worker, jobs=[Alive(**held, progress=Progress(note="x" * 1001))]), "jobs[0].progress.note"),
        (Finish(worker=worker, jobs=[Finished(**held, outcome=ok, code=99)]), "jobs[0].code"),
        (Finish(worker=worker, jobs=[Finished(**held, outcome=ok, code=404)]), "jobs[0].code"),
        (Finish(worker=worker, jobs=[Finished(**held, outcome=ok, finished_at=naive)]), "jobs[0].finished_at"),
        (Finish(worker=worker, jobs=[Finished(**held, outcome=Verdict.RETRY, delay=-1.0)]), "jobs[0].delay"),
        (Finish(worker=worker, jobs=[Finished(**held, outcome=Verdict.RETRY, delay=math.nan)]), "jobs[0].delay"),
        (
            Finish(worker=worker, jobs=[Finished(**held, outcome=ok, result=Raw(b"x" * (MOST_RESULT + 1)))]),
            "jobs[0].result",
        ),
        (Release(worker=worker, jobs=[Released(**held, delay=-1.0)]), "jobs[0].delay"),
        (Release(worker=worker, jobs=[Released(**held, delay=1e300)]), "jobs[0].delay"),
    ]


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("number", range(len(too_much(""))), ids=lambda n: f"{type(too_much('')[n][0]).__name__}-{n}")
async def test_a_bad_operation_is_refused_by_name(engine: Engine, number: int) -> None:
    worker = await register(engine)
    operation, at = too_much(worker)[number]
    with pytest.raises((Invalid, TooLarge)) as fault:
        await engine(operation)
    assert re.sub(r"\[\d+\]$", "", fault.value.at).endswith(at.rpartition(".")[2])
    assert await engine(GetStats(tenant="-")) == Stats(queues=[])


async def test_a_result_that_is_too_large_leaves_the_job_running(engine: Engine) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    with pytest.raises(TooLarge):
        await finish(engine, worker, claimed, result=Raw(b"x" * (MOST_RESULT + 1)))
    assert await state(engine, job.id) is State.RUNNING
    assert (await finish(engine, worker, claimed)).applied == [job.id]


async def test_a_lie_about_a_report_of_many_leaves_all_of_them_running(engine: Engine) -> None:
    await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    good = Finished(id=claimed.job.id, token=claimed.token, outcome=Verdict.OK)
    bad = Finished(id=NO_SUCH_ID, token=TOKEN, outcome=Verdict.OK, code=500)
    with pytest.raises(Invalid) as fault:
        await engine(Finish(worker=worker, jobs=[good, bad]))
    assert fault.value.at == "jobs[1].code"
    assert await state(engine, claimed.job.id) is State.RUNNING


# Queueing


async def test_a_job_is_queued_once_by_id(engine: Engine) -> None:
    id = fresh_id(uuid.UUID(int=7).bytes, "default")
    first = await enqueue(engine, id=id, priority=1)
    again = await enqueue(engine, "other", id=id, priority=2)
    assert again == first
    assert await engine(Count()) == await engine(Count(match=Match(task="work")))


async def test_a_job_is_queued_once_by_key(engine: Engine) -> None:
    first = await enqueue(engine, key="order-7")
    assert (await enqueue(engine, key="order-7")).id == first.id
    others = [
        await enqueue(engine, key="order-8"),
        await enqueue(engine, key="order-7", queue="images"),
        await enqueue(engine, key="order-7", tenant="acme"),
    ]
    assert len({job.id for job in (first, *others)}) == 4
    await engine(Delete(ids=[first.id]))
    assert (await enqueue(engine, "anew", key="order-7")).task == "anew"


async def test_a_batch_is_queued_in_order_and_once(engine: Engine) -> None:
    batch = EnqueueMany(jobs=[NewJob(task=f"t{n}", key=f"k{n % 3}") for n in range(5)])
    first = await engine(batch)
    assert (first.created, first.ids[0], first.ids[1]) == (3, first.ids[3], first.ids[4])
    assert (await engine(batch)).created == 0
    assert [job.task for job in (await engine(List())).jobs] == ["t0", "t1", "t2"]


async def test_every_store_judges_the_ids_of_callers_alike(engine: Engine) -> None:
    """An id that ends otherwise than its queue's jobs do is taken everywhere, or nowhere."""
    model = Engine(ModelStore(VirtualClock()), SeededChance())
    for queue in ("default", "a", "a.b", "images"):
        for ending in (0x00, 0x01, 0x7F, 0xFF):
            if ending == queue_mark(queue):
                continue
            id = f"01890a5d-ac96-774b-bcce-b302099a80{ending:02x}"
            operation = Enqueue(job=NewJob(task="a", queue=queue, id=id))
            assert await outcome(engine, operation) == await outcome(model, operation)
            await engine(Delete(match=Match()))
            await model(Delete(match=Match()))


async def outcome(engine: Engine, operation: Enqueue) -> str:
    try:
        return (await engine(operation)).id
    except WindlassError as error:
        return f"{error.code} at {error.at}"


async def test_the_id_of_another_tenants_job_does_not_show_it(engine: Engine) -> None:
    theirs = await enqueue(engine, tenant="acme", headers={"secret": "1"})
    with pytest.raises(Missing):
        await engine(Show(id=theirs.id))
    own = await enqueue(engine, id=theirs.id)
    assert (own.tenant, own.headers) == ("default", {})


# Looking


async def test_a_payload_is_shown_only_where_asked_for(engine: Engine) -> None:
    job = await enqueue(engine, payload=packed({"a": 1}))
    shown = await engine(Show(id=job.id, payload=True))
    assert (await engine(Show(id=job.id))).payload is UNSET
    assert bytes(shown.payload or b"") == wire.encode({"a": 1})


@pytest.mark.parametrize("ask", [Show, GetResult], ids=["show", "result"])
async def test_a_foreign_job_is_a_missing_job(engine: Engine, ask: type[Show | GetResult]) -> None:
    job = await enqueue(engine, tenant="acme")
    with pytest.raises(Missing) as foreign:
        await engine(ask(id=job.id))
    await engine(Delete(tenant="acme", ids=[job.id]))
    with pytest.raises(Missing) as missing:
        await engine(ask(id=job.id))
    assert foreign.value.problem() == missing.value.problem()
    assert missing.value.at == "id"


async def test_a_request_for_all_tenants_gets_every_job(engine: Engine) -> None:
    job = await enqueue(engine, tenant="acme")
    assert await engine(Show(tenant="-", id=job.id)) == job
    assert [found.id for found in (await engine(List(tenant="-"))).jobs] == [job.id]
    assert (await engine(Count(tenant="-"))).count == 1


async def test_the_result_of_a_success(engine: Engine) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    await finish(engine, worker, await take(engine, worker), code=201, result=Raw(b"done"), content_type=TEXT)
    for _ in range(2):
        result = await engine(GetResult(id=job.id))
        assert (result.state, result.code, bytes(result.result or b""), result.content_type) == (
            State.SUCCEEDED,
            201,
            b"done",
            TEXT,
        )


async def test_the_result_of_a_failure(engine: Engine) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    await finish(engine, worker, claimed, Verdict.FAILED, error=Error(type="E"), message="no such customer")
    result = await engine(GetResult(id=job.id))
    assert (result.state, result.code, result.result) == (State.FAILED, 400, UNSET)
    assert result.error is not None
    assert (result.error.type, result.error.message, result.error.reason) == ("E", "no such customer", Reason.FAILED)


async def test_a_result_that_is_read_once(engine: Engine) -> None:
    job = await enqueue(engine, keep_result="once")
    worker = await register(engine)
    await finish(engine, worker, await take(engine, worker), result=packed(42))
    first, second = await engine(GetResult(id=job.id)), await engine(GetResult(id=job.id))
    assert bytes(first.result or b"") == wire.encode(42)
    assert (second.state, second.result) == (State.SUCCEEDED, UNSET)


async def test_the_result_of_a_job_that_has_not_ended_is_its_state(engine: Engine) -> None:
    job = await enqueue(engine)
    assert await engine(GetResult(id=job.id)) == Result(state=State.QUEUED)
    assert await engine(GetResult(id=job.id, wait=0.05)) == Result(state=State.QUEUED)


@asynccontextmanager
async def meanwhile(engine: Engine, operation: Operation[Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """An operation that waits, begun and given the time to get to its waiting."""
    waiting = asyncio.ensure_future(engine(operation))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    try:
        yield waiting
    finally:
        waiting.cancel()


@pytest.fixture
def never_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits must be notified: it does not look again by itself."""
    for room in (jobs, work):
        monkeypatch.setattr(room, "POLL_EVERY", 10 * LONGEST_WAIT)


@pytest.mark.usefixtures("never_look_again")
@pytest.mark.parametrize("keep", [0.0, 60.0])
async def test_a_wait_for_a_result_ends_with_the_job(engine: Engine, keep: float) -> None:
    job = await enqueue(engine, keep_failure=keep)
    async with meanwhile(engine, GetResult(id=job.id, wait=LONGEST_WAIT)) as waiting:
        started = time.monotonic()
        await engine(Cancel(ids=[job.id]))
        if keep:
            assert (await waiting).state is State.CANCELLED
        else:
            with pytest.raises(Missing):
                await waiting
    assert time.monotonic() - started < NOTIFIED


async def a_crowd(engine: Engine) -> None:
    await enqueue(engine, "x", queue="a", tags=["t"], payload=packed({"n": 1}), key="k")
    await enqueue(engine, "y", queue="a", tags=["t", "u"], payload=packed({"n": True}))
    await enqueue(engine, "x", queue="b", delay=5.0, payload=packed({"n": {"m": "x"}}))
    await enqueue(engine, "z", queue="c", payload=Raw(b"\xc1"))
    await enqueue(engine, "x", queue="a", tenant="acme", payload=packed({"n": 1}))
    worker = await register(engine, "c")
    await finish(engine, worker, await take(engine, worker), Verdict.FAILED, message="disk is full")


MATCHES: list[tuple[Match, int]] = [
    (Match(), 4),
    (Match(task="x"), 2),
    (Match(queue="a"), 2),
    (Match(queue="a", task="x"), 1),
    (Match(state=["queued"]), 2),
    (Match(state=["scheduled", "failed"]), 2),
    (Match(state=["pending"]), 3),
    (Match(state=["finished"]), 1),
    (Match(tag=["t"]), 2),
    (Match(tag=["u", "t"]), 1),
    (Match(key="k"), 1),
    (Match(reason=Reason.FAILED), 1),
    (Match(text="full"), 1),
    (Match(payload={"n": 1}), 1),
    (Match(payload={"n": True}), 1),
    (Match(payload={"n.m": "x"}), 1),
    (Match(created_before=EPOCH), 0),
    (Match(created_after=EPOCH - timedelta(seconds=1)), 4),
    (Match(task="w"), 0),
]


@pytest.mark.parametrize(("match", "number"), MATCHES, ids=[str(n) for n in range(len(MATCHES))])
@pytest.mark.parametrize("limit", [1, 100])
async def test_what_matches_is_listed_and_counted(engine: Engine, match: Match, number: int, limit: int) -> None:
    await a_crowd(engine)
    found = await pages(engine, List(match=match, limit=limit))
    assert len(found) == len({job.id for job in found}) == number
    assert (await engine(Count(match=match))).count == number
    assert {job.tenant for job in found} <= {"default"}


async def pages(engine: Engine, operation: List) -> list[Job]:
    found: list[Job] = []
    while True:
        page = await engine(operation)
        assert len(page.jobs) <= operation.limit
        found += page.jobs
        if page.next is None:
            return found
        operation = replace(operation, after=page.next)


async def test_few_of_many_are_found_though_no_page_need_be_full(engine: Engine) -> None:
    await engine(EnqueueMany(jobs=[NewJob(task="rare" if n % 50 == 0 else "common") for n in range(500)]))
    found = await pages(engine, List(match=Match(task="rare"), limit=10))
    assert [job.task for job in found] == ["rare"] * 10


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
async def test_what_is_rare_is_listed_once_in_order_and_not_row_by_row(
    engine: Engine, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = {0, 1, 2, 800, 801, 1999}
    jobs = [NewJob(task="rare" if n in rare else "common", tags=[str(n)]) for n in range(2000)]
    await engine(EnqueueMany(jobs=jobs[:1000]))
    await engine(EnqueueMany(jobs=jobs[1000:]))
    asked: list[int] = []
    page = engine.context.store.jobs.list

    async def counted(scope: ListScope, after: str | None, limit: int) -> RecordPage:
        asked.append(limit)
        return await page(scope, after, limit)

    monkeypatch.setattr(engine.context.store.jobs, "list", counted)
    found = await pages(engine, List(match=Match(task="rare"), limit=limit))
    assert [job.tags for job in found] == [[str(n)] for n in sorted(rare)]
    assert len(asked) < 60


async def test_the_numbers_by_queue_task_and_state(engine: Engine) -> None:
    await a_crowd(engine)
    stats = await engine(GetStats())
    assert [(row.queue, row.task, row.states) for row in stats.queues] == [
        ("a", "x", {State.QUEUED: 1}),
        ("a", "y", {State.QUEUED: 1}),
        ("b", "x", {State.SCHEDULED: 1}),
        ("c", "z", {State.FAILED: 1}),
    ]
    assert len((await engine(GetStats(tenant="-"))).queues) == 5


# Cancel, retry, delete


@pytest.mark.parametrize("action", [Cancel, Rerun, Delete])
async def test_an_action_on_one_job_that_is_not_there_says_so(
    engine: Engine, action: type[Cancel | Rerun | Delete]
) -> None:
    theirs = await enqueue(engine, tenant="acme")
    for id in (NO_SUCH_ID, theirs.id):
        with pytest.raises(Missing):
            await engine(action(ids=[id]))
    assert (await engine(Show(tenant="acme", id=theirs.id))) == theirs


@pytest.mark.parametrize("action", [Cancel, Delete])
async def test_an_action_on_many_jobs_changes_those_that_are_there(
    engine: Engine, action: type[Cancel | Rerun | Delete]
) -> None:
    mine = [(await enqueue(engine, queue=f"q{n}")).id for n in range(3)]
    theirs = await enqueue(engine, tenant="acme")
    operation = action(ids=[*mine, NO_SUCH_ID, theirs.id, mine[0]])
    assert await engine(replace(operation, dry_run=True)) == Changed(changed=3)
    assert (await engine(Count(match=Match(state=["queued"])))).count == 3
    assert await engine(operation) == Changed(changed=3)
    assert (await engine(Count(match=Match(state=["queued"])))).count == 0
    assert await engine(Show(tenant="acme", id=theirs.id)) == theirs


@pytest.mark.parametrize("action", [Cancel, Delete])
async def test_an_action_on_all_that_match(engine: Engine, action: type[Cancel | Rerun | Delete]) -> None:
    await a_crowd(engine)
    operation = action(match=Match(tag=["t"]))
    assert await engine(replace(operation, dry_run=True)) == Changed(changed=2)
    assert (await engine(Count(match=Match(state=["queued"])))).count == 2
    assert await engine(operation) == Changed(changed=2)
    assert (await engine(Count(match=Match(state=["queued"])))).count == 0
    assert (await engine(Count(tenant="acme"))).count == 1


async def test_an_action_on_thousands(engine: Engine) -> None:
    for _ in range(3):
        await engine(EnqueueMany(jobs=[NewJob(task="a", queue=f"q{n % 3}") for n in range(800)]))
    assert await engine(Cancel(match=Match(queue="q1"))) == Changed(changed=801)
    assert await engine(Rerun(match=Match())) == Changed(changed=801)
    assert await engine(Delete(match=Match())) == Changed(changed=2400)
    assert await engine(GetStats(tenant="-")) == Stats(queues=[])


async def test_only_what_can_be_done_is_done(engine: Engine) -> None:
    job = await enqueue(engine)
    assert await engine(Rerun(ids=[job.id])) == Changed(changed=0)
    assert await engine(Cancel(ids=[job.id])) == Changed(changed=1)
    assert await engine(Cancel(ids=[job.id])) == Changed(changed=0)
    assert await engine(Rerun(ids=[job.id])) == Changed(changed=1)
    assert await state(engine, job.id) is State.QUEUED


async def test_only_finished_jobs_are_deleted_if_so_asked(engine: Engine) -> None:
    """S1 29."""
    worker = await register(engine)
    done, running, queued, later = [(await enqueue(engine, delay=60.0 * (n == 3))).id for n in range(4)]
    await finish(engine, worker, await take(engine, worker))
    assert (await take(engine, worker)).job.id == running
    for id in (running, queued, later):
        with pytest.raises(Conflict, match=f"job {id} is .*: only finished jobs are to be deleted"):
            await engine(Delete(ids=[done, id], finished_only=True))
    assert (await engine(Show(id=running))).reason is None, "it was not ordered to stop"
    assert (await engine(Delete(match=Match(state=["running"]), finished_only=True))).changed == 0
    assert (await engine(Delete(match=Match(), finished_only=True, dry_run=True))).changed == 1
    assert (await engine(Delete(match=Match(), finished_only=True))).changed == 1
    with pytest.raises(Missing):
        await engine(Show(id=done))
    assert [await state(engine, id) for id in (running, queued, later)] == ["running", "queued", "scheduled"]
    await engine(Cancel(ids=[queued]))
    assert (await engine(Delete(ids=[queued], finished_only=True))).changed == 1
    (line, *_) = (await engine(Audit())).entries
    assert (line.action, line.ids, line.details) == ("delete", [queued], '{"finished_only":true}')


async def test_a_running_job_that_is_cancelled_is_stopped_by_its_worker(engine: Engine) -> None:
    job = await enqueue(engine, max_retry=5)
    worker = await register(engine)
    claimed = await take(engine, worker)
    alive = Alive(id=job.id, token=claimed.token)
    assert await engine(Renew(worker=worker, jobs=[alive])) == Renewed()
    assert await engine(Cancel(ids=[job.id])) == Changed(changed=1, stopping=1)
    assert await engine(Cancel(ids=[job.id])) == Changed(changed=0)
    assert await engine(Renew(worker=worker, jobs=[alive])) == Renewed(orders=[Order(id=job.id, order="cancel")])
    await finish(engine, worker, claimed, Verdict.ERROR)
    shown = await engine(Show(id=job.id))
    assert (shown.state, shown.reason) == (State.CANCELLED, Reason.CANCELLED)


async def test_a_running_job_that_is_deleted_is_gone_when_it_has_stopped(engine: Engine) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    assert await engine(Delete(ids=[job.id])) == Changed(changed=1, stopping=1)
    assert await engine(Delete(ids=[job.id])) == Changed(changed=0)
    assert await state(engine, job.id) is State.RUNNING
    assert (await finish(engine, worker, claimed, Verdict.ERROR)).applied == [job.id]
    with pytest.raises(Missing):
        await engine(Show(id=job.id))


# Work


async def test_an_unknown_worker_is_refused(engine: Engine) -> None:
    theirs = await register(engine, tenant="acme")
    for worker in (NO_SUCH_ID, theirs):
        for operation in (
            Claim(worker=worker),
            Begin(worker=worker, jobs=[]),
            Renew(worker=worker),
            Finish(worker=worker, jobs=[]),
            Release(worker=worker, jobs=[]),
            Unregister(worker=worker),
        ):
            with pytest.raises(Missing) as fault:
                await engine(operation)
            assert fault.value.at == "worker"


async def test_workers_come_and_go(engine: Engine, clock: VirtualClock) -> None:
    one, other = await register(engine, node="n1"), await register(engine, tenant="acme")
    assert [worker.id for worker in await engine(Workers())] == [one]
    assert [worker.id for worker in await engine(Workers(tenant="-"))] == [one, other]
    await engine(Unregister(worker=one))
    assert await engine(Workers()) == []
    clock.advance(15)
    assert await engine(Workers(tenant="-")) == []
    with pytest.raises(Missing):
        await engine(Renew(tenant="acme", worker=other))


async def test_a_foreign_tenant_does_not_keep_a_worker_alive(engine: Engine, clock: VirtualClock) -> None:
    worker = await register(engine, tenant="acme")
    clock.advance(10)
    with pytest.raises(Missing):
        await engine(Renew(tenant="default", worker=worker))
    clock.advance(5)
    assert await engine(Workers(tenant="acme")) == []


async def test_a_claiming_worker_has_been_seen(engine: Engine, clock: VirtualClock) -> None:
    worker = await register(engine)
    for _ in range(5):
        clock.advance(5)
        await engine(Claim(worker=worker))
        (known,) = await engine(Workers())
        assert known.seen_at == clock.now()


async def test_a_claimed_job_comes_with_all_it_needs(engine: Engine, clock: VirtualClock) -> None:
    job = await enqueue(engine, payload=packed([1]), timeout=30.0)
    worker = await register(engine)
    claimed = await take(engine, worker)
    assert (claimed.job.id, claimed.job.state, bytes(claimed.payload)) == (job.id, State.RUNNING, wire.encode([1]))
    assert claimed.deadline == claimed.job.deadline == clock.now() + timedelta(seconds=30)
    assert len(bytes.fromhex(claimed.token)) == 8


async def test_a_claim_with_the_same_nonce_answers_the_same_jobs(engine: Engine) -> None:
    for _ in range(3):
        await enqueue(engine)
    worker = await register(engine)
    claim = Claim(worker=worker, slots=2, nonce="00000000000000ff")
    first, again = await engine(claim), await engine(claim)
    assert [(c.job.id, c.token) for c in first] == [(c.job.id, c.token) for c in again]
    assert {c.token for c in first} == {"00000000000000ff"}


@pytest.mark.usefixtures("never_look_again")
async def test_a_claim_that_waits_gets_new_work_at_once(engine: Engine) -> None:
    worker = await register(engine, "a", "b")
    async with meanwhile(engine, Claim(worker=worker, wait=LONGEST_WAIT)) as waiting:
        started = time.monotonic()
        job = await enqueue(engine, queue="b")
        (claimed,) = await waiting
    assert claimed.job.id == job.id
    assert time.monotonic() - started < NOTIFIED


async def test_a_claim_that_waits_in_vain_is_empty(engine: Engine) -> None:
    worker = await register(engine)
    started = time.monotonic()
    assert await engine(Claim(worker=worker, wait=0.2)) == []
    assert time.monotonic() - started >= 0.2


async def test_of_two_waiting_workers_one_gets_the_job(engine: Engine) -> None:
    workers = [await register(engine) for _ in range(2)]
    claims = [asyncio.ensure_future(engine(Claim(worker=worker, wait=0.5))) for worker in workers]
    await asyncio.sleep(0.05)
    job = await enqueue(engine)
    answers = await asyncio.gather(*claims)
    assert sorted(len(answer) for answer in answers) == [0, 1]
    assert [claimed.job.id for answer in answers for claimed in answer] == [job.id]


async def test_a_job_that_begins_has_a_pid(engine: Engine) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    items = [Began(id=job.id, token=claimed.token, pid=77), Began(id=NO_SUCH_ID, token=TOKEN, pid=78)]
    assert await engine(Begin(worker=worker, jobs=items)) == Applied(applied=[job.id], refused=[NO_SUCH_ID])
    assert (await engine(Show(id=job.id))).pid == 77


async def test_a_renewal_says_what_is_lost_and_notes_progress(engine: Engine, clock: VirtualClock) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    clock.advance(14)
    half = Progress(done=1, total=2, note="half")
    items = [Alive(id=job.id, token=claimed.token, progress=half), Alive(id=NO_SUCH_ID, token=TOKEN)]
    assert await engine(Renew(worker=worker, jobs=items)) == Renewed(lost=[NO_SUCH_ID])
    clock.advance(14)
    assert await upkeep.reclaim(engine) == 0
    assert (await engine(Show(id=job.id))).progress == half


@pytest.mark.parametrize("lie", ["", "zz", "0" * 15, "0" * 16, "0" * 32, "ü"])
async def test_a_report_without_the_token_is_refused(engine: Engine, lie: str) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    claimed = replace(await take(engine, worker), token=lie)
    for verdict in Verdict:
        assert await finish(engine, worker, claimed, verdict) == Applied(refused=[job.id])
    released = await engine(Release(worker=worker, jobs=[Released(id=job.id, token=lie)]))
    assert released == Applied(refused=[job.id])
    assert await state(engine, job.id) is State.RUNNING


@pytest.mark.parametrize("verdict", Verdict)
async def test_a_report_counts_once(engine: Engine, verdict: Verdict) -> None:
    job = await enqueue(engine, max_retry=1)
    worker = await register(engine)
    claimed = await take(engine, worker)
    assert await finish(engine, worker, claimed, verdict) == Applied(applied=[job.id])
    before = await engine(Show(id=job.id))
    assert await finish(engine, worker, claimed, verdict) == Applied(refused=[job.id])
    assert await engine(Show(id=job.id)) == before


async def test_an_old_report_in_the_same_batch_does_not_hide_the_true_one(engine: Engine, clock: VirtualClock) -> None:
    job = await enqueue(engine, max_retry=5)
    worker = await register(engine)
    old = await take(engine, worker)
    clock.advance(15)
    assert await upkeep.reclaim(engine) == 1
    new = await take(engine, worker)
    items = [Finished(id=job.id, token=token, outcome=Verdict.FAILED) for token in (old.token, new.token)]
    assert (await engine(Finish(worker=worker, jobs=items))).applied == [job.id]
    assert await state(engine, job.id) is State.FAILED


async def test_a_late_report_after_the_lease_was_lost_is_refused(engine: Engine, clock: VirtualClock) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    late = await take(engine, worker)
    clock.advance(15)
    assert await upkeep.reclaim(engine) == 1
    new = await take(engine, worker)
    assert await finish(engine, worker, late, result=packed("late")) == Applied(refused=[job.id])
    assert await finish(engine, worker, new, result=packed("new")) == Applied(applied=[job.id])
    shown = await engine(Show(id=job.id))
    assert (shown.attempt, shown.losses) == (2, 1)


async def test_a_released_job_has_used_no_attempt(engine: Engine) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    assert (await engine(Release(worker=worker, jobs=[Released(id=job.id, token=claimed.token)]))).applied == [job.id]
    assert (await take(engine, worker)).job.attempt == 1


async def test_a_snoozed_job_comes_back_later(engine: Engine, clock: VirtualClock) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    await engine(Release(worker=worker, jobs=[Released(id=job.id, token=claimed.token, delay=5.0)]))
    assert await state(engine, job.id) is State.SCHEDULED
    clock.advance(5)
    assert await upkeep.promote(engine) == 1
    assert (await take(engine, worker)).job.attempt == 1


async def test_a_report_of_many_outcomes_at_once(engine: Engine) -> None:
    jobs = [(await enqueue(engine, max_retry=1)).id for _ in range(4)]
    worker = await register(engine)
    claimed = await engine(Claim(worker=worker, slots=4))
    items = [
        Finished(id=item.job.id, token=item.token, outcome=verdict)
        for item, verdict in zip(claimed, (Verdict.OK, Verdict.FAILED, Verdict.RETRY, Verdict.ERROR), strict=True)
    ]
    assert await engine(Finish(worker=worker, jobs=items)) == Applied(applied=jobs)
    assert [await state(engine, id) for id in jobs] == [
        State.SUCCEEDED,
        State.FAILED,
        State.SCHEDULED,
        State.SCHEDULED,
    ]


# Upkeep


async def test_each_duty_does_its_part(engine: Engine, clock: VirtualClock) -> None:
    delayed = await enqueue(engine, delay=5.0)
    unwanted = await enqueue(engine, queue="nobody", expires=5.0, keep_failure=60.0)
    leased = await enqueue(engine, queue="busy")
    worker = await register(engine, "busy")
    await take(engine, worker)
    duties = (upkeep.promote, upkeep.reclaim, upkeep.expire, upkeep.purge)
    assert [await duty(engine) for duty in duties] == [0, 0, 0, 0]
    clock.advance(15)
    assert [await duty(engine) for duty in duties] == [1, 1, 1, 0]
    shown = [await engine(Show(id=job.id)) for job in (delayed, unwanted, leased)]
    assert [job.state for job in shown] == [State.QUEUED, State.FAILED, State.QUEUED]
    assert [job.reason for job in shown] == [None, Reason.EXPIRED, Reason.LOST]
    clock.advance(60)
    assert [await duty(engine) for duty in duties] == [0, 0, 0, 1]


async def test_a_duty_takes_bounded_steps(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(2):
        await engine(EnqueueMany(jobs=[NewJob(task="a", queue=f"q{n % 20}", delay=1.0) for n in range(400)]))
    clock.advance(1)
    assert [await upkeep.promote(engine) for _ in range(3)] == [upkeep.STEP, 800 - upkeep.STEP, 0]


async def test_house_is_kept_as_time_passes(engine: Engine, clock: VirtualClock) -> None:
    job = await enqueue(engine, delay=1.0)
    worker = await register(engine)
    house = asyncio.ensure_future(upkeep.run_upkeep(engine, clock))
    claim = asyncio.ensure_future(engine(Claim(worker=worker, wait=5.0)))
    while not claim.done():
        clock.advance(0.25)
        await asyncio.sleep(0.005)
    assert [claimed.job.id for claimed in claim.result()] == [job.id]
    house.cancel()
    ended, _ = await asyncio.wait([house], timeout=PATIENCE)
    assert ended, "upkeep still runs after its cancellation"
    assert house.cancelled()


@pytest.mark.parametrize(
    "fault", [Unavailable("the store is away"), ValueError("the store is away, or a slip of ours")]
)
async def test_a_round_that_fails_is_not_the_last(
    engine: Engine, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    rounds: list[float] = []

    async def shaky(_: Engine) -> int:
        rounds.append(clock.monotonic())
        if len(rounds) == 1:
            raise fault
        return 0

    keeping = asyncio.ensure_future(upkeep.repeat(2.0, shaky, engine, clock))
    while len(rounds) < 3:
        await asyncio.sleep(0)
        clock.advance(1.0)
    keeping.cancel()
    assert "the store is away" in caplog.text
    assert rounds[2] - rounds[1] >= 2.0


async def test_a_store_that_stays_away_is_logged_once_each_time(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    away = [True, True, True, False, True, True, False]
    rounds = 0

    async def shaky(_: Engine) -> int:
        nonlocal rounds
        rounds += 1
        if rounds <= len(away) and away[rounds - 1]:
            raise Unavailable("the store is away")
        return 0

    keeping = asyncio.ensure_future(upkeep.repeat(2.0, shaky, engine, clock))
    while rounds <= len(away):
        await asyncio.sleep(0)
        clock.advance(1.0)
    keeping.cancel()
    assert caplog.text.count("the store is away") == 2


async def test_a_backlog_is_worked_off_without_a_pause(engine: Engine) -> None:
    clock = VirtualClock()
    backlog = [upkeep.STEP, upkeep.STEP, upkeep.STEP, 3]
    rounds: list[float] = []

    async def busy(_: Engine) -> int:
        rounds.append(clock.monotonic())
        return backlog[len(rounds) - 1] if len(rounds) <= len(backlog) else 0

    keeping = asyncio.ensure_future(upkeep.repeat(60.0, busy, engine, clock))
    for _ in range(20):
        await asyncio.sleep(0)
    keeping.cancel()
    assert rounds == [0.0] * 4


class NoNotices:
    """A listener that nothing comes to."""

    async def wait(self, seconds: float) -> list[str]:
        await asyncio.sleep(seconds)
        return []


@pytest.mark.parametrize(("takes", "rests"), [(0.002, 0.004), (1.0, 0.02), (None, 0.02)])
async def test_a_duty_that_others_wait_for_rests_as_its_rounds_are_long(
    engine: Engine, takes: float | None, rests: float
) -> None:
    clock = VirtualClock()
    ends: list[float] = []
    begins: list[float] = []

    async def busy(_: Engine) -> int:
        begins.append(clock.monotonic())
        clock.advance(takes or 0.0)
        ends.append(clock.monotonic())
        if takes is None:
            raise Unavailable("the store is away")
        return 1

    keeping = asyncio.ensure_future(upkeep.repeat(0.02, busy, engine, clock, listener=NoNotices()))
    while len(begins) < 3:
        await asyncio.sleep(0)
        clock.advance(0.001)
    keeping.cancel()
    found = [begin - end for begin, end in zip(begins[1:], ends, strict=False)]
    assert found == pytest.approx([rests] * len(found), abs=0.0015)


# Lines


async def test_each_line_is_a_job_but_not_empty_lines_and_comments(engine: Engine) -> None:
    text = "first\n\n# a comment\n  second \r\nthird|with: anything\nünï\n"
    options = JobOptions(queue="a", priority=3, tags=["t"])
    answer = await engine(EnqueueLines(task="greet", text=text, options=options))
    jobs = [await engine(Show(id=id, payload=True)) for id in answer.ids]
    assert answer.created == 4
    assert [bytes(job.payload or b"").decode() for job in jobs] == ["first", "  second ", "third|with: anything", "ünï"]
    assert {(job.task, job.queue, job.priority, job.content_type) for job in jobs} == {("greet", "a", 3, "text/plain")}
    assert [job.id for job in (await engine(List())).jobs] == answer.ids


async def test_ten_thousand_lines_are_ten_thousand_jobs(engine: Engine) -> None:
    answer = await engine(EnqueueLines(task="a", text="\n".join(map(str, range(10_000))), delay=5.0))
    assert (answer.created, len(set(answer.ids))) == (10_000, 10_000)
    assert (await engine(Count(match=Match(state=["scheduled"])))).count == 10_000


@pytest.mark.parametrize(
    ("operation", "at"),
    [
        (EnqueueLines(task="a", text="x", options=JobOptions(key="k")), "options.key"),
        (EnqueueLines(task="a b", text="x"), "task"),
        (EnqueueLines(task="a", text="x\n\ud800"), "text"),
        (EnqueueLines(task="a", text="x\n" + "y" * (MOST_PAYLOAD + 1)), "line 2.payload"),
        (EnqueueLines(task="a", text="x", options=JobOptions(priority=2**40)), "options.priority"),
    ],
    ids=["shared key", "bad task", "no text", "long line", "bad wish"],
)
async def test_bad_lines_are_refused_by_name_and_none_is_queued(
    engine: Engine, operation: EnqueueLines, at: str
) -> None:
    with pytest.raises((Invalid, TooLarge)) as fault:
        await engine(operation)
    assert fault.value.at == at
    assert (await engine(Count())).count == 0


async def test_a_job_whose_sender_was_cancelled_before_it_went_out_is_not_queued(engine: Engine) -> None:
    sending = asyncio.create_task(engine(Enqueue(job=NewJob(task="t"))))
    await asyncio.sleep(0)  # it waits for the round to end
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await asyncio.sleep(0.05)
    assert (await engine(Count())).count == 0


async def test_a_clock_that_is_set_back_gives_no_negative_run_time(engine: Engine, clock: VirtualClock) -> None:
    worker = await register(engine)
    ids = [(await enqueue(engine)).id for _ in range(2)]
    claimed = [await take(engine, worker) for _ in ids]
    clock.advance(-5)
    await finish(engine, worker, claimed[0])
    await finish(engine, worker, claimed[1], Verdict.FAILED, message="no")
    for id in ids:
        job = await engine(Show(id=id))
        assert job.started_at
        assert job.finished_at
        assert job.finished_at >= job.started_at
