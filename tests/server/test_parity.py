"""The same questions to an engine in process and to a client over HTTP: the same answers, and the same errors.

Each scenario is played twice, on two stores that begin alike, with the same seed and the same clock; whatever it was
answered, in the order it was answered, must be equal.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from tests.support.engines import packed
from tests.support.http_servers import LOCAL, served
from tests.support.servers import NewPrefix
from tests.support.stores import EPOCH, SeededChance, StoreKind, VirtualClock, address_of, open_store
from windlass.client import Client
from windlass.engine import Engine
from windlass.model.errors import Conflict, FilesMissing, Invalid, Missing, TooLarge, WindlassError
from windlass.model.handler import HandlerOptions, NewHandler
from windlass.model.job import JSON, MSGPACK, TEXT, Job, State
from windlass.model.limit import Condition, NewLimit, Pause, Rate, Which
from windlass.model.match import Match
from windlass.model.names import fresh_id, queue_mark
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import (
    OPERATIONS,
    Accepted,
    AddToken,
    Adopt,
    Alive,
    Applied,
    Audit,
    Began,
    Begin,
    Cancel,
    ChangeQueue,
    Claim,
    Claimed,
    Count,
    Delete,
    Edit,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    FailByHand,
    Failures,
    Finish,
    FinishByHand,
    Finished,
    FinishedStep,
    GetCode,
    GetEstimate,
    GetFile,
    GetFiles,
    GetHandler,
    GetHealth,
    GetHistory,
    GetLimit,
    GetOutput,
    GetProgress,
    GetQueue,
    GetQueueEstimate,
    GetQuota,
    GetResult,
    GetSchedule,
    GetStats,
    GetSteps,
    GetTask,
    Handlers,
    JobSteps,
    LeasedJob,
    Limits,
    List,
    LoadSteps,
    LowerTimeout,
    Operation,
    Orphan,
    Output,
    PauseLimit,
    PauseSchedule,
    PauseTask,
    PauseWorker,
    PutFile,
    PutHandler,
    PutLimit,
    PutQuota,
    PutSchedule,
    Queues,
    Register,
    Release,
    Released,
    RemoveHandler,
    RemoveLimit,
    RemoveSchedule,
    RemoveToken,
    Renew,
    Rerun,
    Resize,
    RunSchedule,
    SaveSteps,
    Schedules,
    Send,
    SendSignal,
    Service,
    Show,
    StopWorker,
    Tasks,
    Tokens,
    Unregister,
    WorkerChanges,
    Workers,
)
from windlass.model.outcome import Verdict
from windlass.model.output import MOST_MESSAGE, NewChunk, Progress, RunUsage
from windlass.model.queue import QueueChange, Tier
from windlass.model.quota import Quota
from windlass.model.retry import RetryPolicy as Policy
from windlass.model.schedule import NewSchedule
from windlass.model.steps import MOST_STEP_BYTES
from windlass.model.worker import NewWorker, WorkerOrders

A = TypeVar("A")

UNKNOWN_ID = f"00000000-0000-7000-8000-0000000000{queue_mark('default'):02x}"
NO_TOKEN = "0123456789abcdef"  # noqa: S105 - of no run


class Script:
    """Asks a service, and records its answers."""

    def __init__(self, service: Service, clock: VirtualClock) -> None:
        self._service = service
        self.clock = clock
        self.heard: list[Any] = []

    async def ask(self, operation: Operation[A]) -> A:
        answer = await self._service(operation)
        self.heard.append((type(operation).__name__, readable(answer)))
        return answer

    async def refused(self, operation: Operation[Any], kind: type[WindlassError]) -> None:
        with pytest.raises(WindlassError) as fault:
            await self._service(operation)
        assert type(fault.value) is kind
        at = fault.value.at.rpartition(".")[2]
        self.heard.append((type(operation).__name__, kind, at if at != "jobs" else ""))  # an array is a body of no name

    # Short ways

    async def enqueue(self, task: str = "work", **terms: Any) -> Job:
        return await self.ask(Enqueue(job=NewJob(task=task, **terms)))

    async def worker(self, **more: Any) -> str:
        return (await self.ask(Register(worker=NewWorker(name="w", **more)))).worker

    async def running(self, **terms: Any) -> tuple[str, Claimed]:
        await self.enqueue(**terms)
        worker = await self.worker()
        (claimed,) = await self.ask(Claim(worker=worker))
        return worker, claimed

    async def finish(self, worker: str, claimed: Claimed, outcome: Verdict = Verdict.OK, **more: Any) -> list[str]:
        report = Finished(id=claimed.job.id, token=claimed.token, outcome=outcome, **more)
        return (await self.ask(Finish(worker=worker, jobs=[report]))).applied


def readable(answer: Any) -> Any:
    """An answer that can be compared: what is encoded in it as bytes."""
    if isinstance(answer, Accepted):
        answer = replace(answer, estimate=None)  # given only while it is cheap: two services need not say the same
    return msgspec.to_builtins(answer, enc_hook=bytes, builtin_types=(bytes,))


Scenario = Callable[[Script], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}
COVERED: set[type[Operation[Any]]] = set()


def scenario(*kinds: type[Operation[Any]]) -> Callable[[Scenario], Scenario]:
    def enter(play: Scenario) -> Scenario:
        SCENARIOS[play.__name__] = play
        COVERED.update(kinds)
        return play

    return enter


@scenario(Enqueue, Show)
async def a_job_is_queued_and_shown(script: Script) -> None:
    job = await script.enqueue(
        payload=packed({"n": [1, 2.5, None, b"x"]}),
        tags=["a", "5"],
        priority=-7,
        headers={"trace": "5"},
        retry=Policy(base=3),
        max_retry=None,
        timeout=9.5,
        files={"a.txt": b"\x00\xff"},
    )
    assert job.priority == -7
    await script.ask(Show(id=job.id))
    shown = await script.ask(Show(id=job.id, payload=True))
    assert isinstance(shown.payload, Raw)
    await script.refused(Show(id=UNKNOWN_ID), Missing)
    await script.refused(Show(id="no/id"), Invalid)
    await script.refused(Show(id=""), Invalid)
    await script.refused(Show(id=job.id, tenant="other"), Missing)
    await script.refused(Show(id=job.id, tenant="a b"), Invalid)


@scenario(Enqueue, EnqueueLines)
async def an_owner_timeout_is_kept(script: Script) -> None:
    job = await script.enqueue(owner_timeout=60.0)
    assert job.owner_timeout == 60.0
    script.clock.advance(30)
    assert (await script.ask(Show(id=job.id))).owner_timeout == 60.0
    options = JobOptions(owner_timeout=60.0)
    (id,) = (await script.ask(EnqueueLines(task="work", text="a", options=options))).ids
    assert (await script.ask(Show(id=id))).owner_timeout == 60.0
    await script.refused(Enqueue(job=NewJob(task="a", owner_timeout=0.5)), Invalid)


@scenario(Enqueue)
async def a_job_sent_twice_is_one(script: Script) -> None:
    id = fresh_id(bytes(16), "default")
    assert (await script.ask(Enqueue(job=NewJob(task="a", id=id)))).created
    assert not (await script.ask(Enqueue(job=NewJob(task="a", id=id)))).created
    assert (await script.ask(Enqueue(job=NewJob(task="a", key="k/1")))).created
    assert not (await script.ask(Enqueue(job=NewJob(task="a", key="k/1")))).created
    await script.refused(Enqueue(job=NewJob(task="a", id=id, key="k")), Invalid)
    await script.refused(Enqueue(job=NewJob(task="a b")), Invalid)
    await script.refused(Enqueue(job=NewJob(task="a", payload=packed(b"x" * 2**20))), TooLarge)
    await script.refused(Enqueue(tenant="-", job=NewJob(task="a")), Invalid)


@scenario(Enqueue, EnqueueMany)
async def jobs_follow_each_other(script: Script) -> None:
    first = await script.enqueue(then=NewJob(task="second", then=NewJob(task="third", payload=packed(3))))
    await script.enqueue(after=[first.id])
    worker = await script.worker()
    (claimed,) = await script.ask(Claim(worker=worker))
    assert await script.finish(worker, claimed, result=packed("out"))
    assert (await script.ask(List())).jobs
    text = NewJob(task="second", content_type=TEXT, payload=Raw(b"plain"), then=NewJob(task="a b"))
    await script.refused(Enqueue(job=NewJob(task="first", then=text)), Invalid)


@scenario(EnqueueMany)
async def many_are_queued_or_none(script: Script) -> None:
    news = [NewJob(task="a", payload=packed(n)) for n in range(3)]
    assert (await script.ask(EnqueueMany(jobs=[*news, NewJob(task="b", key="k")]))).created == 4
    assert (await script.ask(EnqueueMany(jobs=[]))).created == 0
    await script.refused(EnqueueMany(jobs=[*news, NewJob(task="a", priority=2**31)]), Invalid)
    await script.refused(EnqueueMany(jobs=[NewJob(task="a")] * 1001), Invalid)
    assert (await script.ask(Count())).count == 4


@scenario(EnqueueLines)
async def lines_become_jobs(script: Script) -> None:
    options = JobOptions(
        tags=["q", "7"], priority=-2, headers={"n": "5"}, retry=Policy(base=1, deadline=9), max_retry=None
    )
    text = "first ☃\n\n# no\n  second\r\nthird"
    made = await script.ask(EnqueueLines(task="line", text=text, options=options, delay=30.0))
    assert made.created == 3
    for id in made.ids:
        await script.ask(Show(id=id))
    tiers = [Tier(name="fast", seconds=7.0)]
    await script.ask(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))
    for tier in ("fast", 5.0, 7):
        await script.ask(EnqueueLines(task="line", text="x", options=JobOptions(tier=tier)))
    await script.ask(List(match=Match(task="line")))
    await script.refused(EnqueueLines(task="a b", text="x"), Invalid)
    await script.refused(EnqueueLines(task="a", text="x", options=JobOptions(key="k")), Invalid)
    await script.refused(EnqueueLines(task="a", text="x", options=JobOptions(priority=2**31)), Invalid)


@scenario(GetResult, Finish)
async def results_are_answered_or_missing(script: Script) -> None:
    for keep in ("keep", "once", "none"):
        worker, claimed = await script.running(keep_result=keep)
        assert (await script.ask(GetResult(id=claimed.job.id))).state is State.RUNNING
        await script.finish(worker, claimed, result=packed(None))
        first = await script.ask(GetResult(id=claimed.job.id, wait=1.0))
        second = await script.ask(GetResult(id=claimed.job.id))
        assert (first.result is UNSET, second.result is UNSET) == (keep == "none", keep != "keep")
    await script.refused(GetResult(id=UNKNOWN_ID), Missing)
    await script.refused(GetResult(id=UNKNOWN_ID, wait=61.0), Invalid)


@scenario(GetResult)
async def a_result_goes_before_its_record(script: Script) -> None:
    for keep in ("keep", "once"):
        worker, claimed = await script.running(keep_result=keep, keep_result_for=60.0)
        assert claimed.job.keep_result_for == 60.0
        await script.finish(worker, claimed, result=packed(7))
        script.clock.advance(60)
        answer = await script.ask(GetResult(id=claimed.job.id, wait=1.0))
        assert (answer.state, answer.result) == (State.SUCCEEDED, UNSET)
        assert (await script.ask(Show(id=claimed.job.id))).state is State.SUCCEEDED
    await script.refused(Enqueue(job=NewJob(task="a", keep_result_for=-1.0)), Invalid)


@scenario(Finish)
async def outcomes_of_all_kinds(script: Script) -> None:
    for outcome in Verdict:
        worker, claimed = await script.running(max_retry=1, payload=packed(str(outcome)))
        more = {"result": packed({1: 2})} if outcome is Verdict.OK else {"message": "oh", "delay": 5.0}
        await script.finish(worker, claimed, outcome, **more)
        await script.finish(worker, claimed, outcome)
        await script.ask(Show(id=claimed.job.id))
    worker, claimed = await script.running(payload=packed(1))
    await script.finish(worker, claimed, result=Raw(b'{"a": 1}'), content_type=JSON, jobs=[NewJob(task="child")])
    await script.refused(Finish(worker=worker, jobs=[_report(code=99)]), Invalid)
    await script.refused(Finish(worker="no/body", jobs=[]), Missing)
    await script.refused(Finish(worker="nobody", jobs=[]), Missing)


def _report(**more: Any) -> Finished:
    return Finished(id=UNKNOWN_ID, token=NO_TOKEN, outcome=Verdict.OK, **more)


@scenario(GetProgress)
async def the_progress_of_jobs_by_their_ids(script: Script) -> None:
    worker, claimed = await script.running()
    waiting = await script.enqueue("later", delay=60.0)
    ids = [claimed.job.id, waiting.id, UNKNOWN_ID, waiting.id]
    found = await script.ask(GetProgress(ids=ids))
    assert (found.total, found.done, found.states) == (4, 1, {State.RUNNING: 1, State.SCHEDULED: 2})
    await script.finish(worker, claimed)
    await script.ask(GetProgress(ids=ids, wait=0.01))
    await script.ask(Cancel(ids=[waiting.id]))
    assert (await script.ask(GetProgress(ids=ids, wait=60))).done == 4
    assert (await script.ask(GetProgress(ids=[]))).total == 0
    assert (await script.ask(GetProgress(tenant="other", ids=ids))).states == {}
    await script.refused(GetProgress(ids=["nonsense"]), Invalid)
    await script.refused(GetProgress(ids=[UNKNOWN_ID] * 1001), Invalid)


@scenario(List, Count)
async def jobs_are_listed_and_counted(script: Script) -> None:
    for n in range(5):
        script.clock.advance(1)
        await script.enqueue("odd" if n % 2 else "even", payload=packed({"n": n, "text": str(n), "deep": {"x": True}}))
    await script.enqueue("tagged", tags=["a b", "&c=d", "5"], key="k&=?", queue="other")
    first = await script.ask(List(limit=2))
    assert first.next is not None
    await script.ask(List(limit=2, after=first.next))
    for match in (
        Match(task="odd"),
        Match(queue="other"),
        Match(state=["pending"]),
        Match(state=["succeeded", "running"]),
        Match(tag=["a b", "&c=d", "5"]),
        Match(key="k&=?"),
        Match(worker="nobody"),
        Match(node="rack 7/&"),
        Match(created_after=EPOCH + timedelta(seconds=2), created_before=EPOCH + timedelta(seconds=4)),
        Match(payload={"n": 3}),
        Match(payload={"text": "3"}),
        Match(payload={"deep.x": True, "n": 1}),
        Match(payload={"n": None}),
        Match(text="null"),
    ):
        listed = await script.ask(List(match=match))
        assert (await script.ask(Count(match=match))).count == len(listed.jobs)
    assert (await script.ask(Count(match=Match(payload={"text": "3"})))).count == 1
    worker = (await script.ask(Register(worker=NewWorker(name="w", node="rack 7/&")))).worker
    await script.ask(Claim(worker=worker))
    assert (await script.ask(Count(match=Match(node="rack 7/&")))).count == 1
    await script.refused(List(limit=1001), Invalid)
    await script.refused(List(after="nonsense"), Invalid)


@scenario(Cancel, Rerun, Delete)
async def actions_by_id_and_by_match(script: Script) -> None:
    for n in range(6):
        await script.enqueue("a", payload=packed({"n": n}), max_retry=0)
    ids = [job.id for job in (await script.ask(List())).jobs]
    before = EPOCH + timedelta(days=1)
    for kind in (Cancel, Rerun, Delete):
        await script.refused(kind(), Invalid)
        await script.refused(kind(ids=[UNKNOWN_ID]), Missing)
        await script.refused(kind(ids=["x"]), Invalid)
        await script.refused(kind(ids=[ids[0]], tenant="other"), Missing)
        await script.ask(kind(ids=[ids[0]]))
        await script.ask(kind(match=Match(payload={"n": 1}), dry_run=True))
        await script.ask(kind(match=Match(payload={"n": 1}, created_before=before)))
        await script.ask(kind(match=Match()))
        await script.ask(GetStats())
    waits, ends = (await script.enqueue()).id, (await script.enqueue("b")).id
    await script.ask(Cancel(ids=[ends]))
    for ids in ([waits], [ends, waits]):
        await script.refused(Delete(ids=ids, finished_only=True), Conflict)
    await script.refused(Delete(ids=[UNKNOWN_ID], finished_only=True), Missing)
    assert (await script.ask(Delete(match=Match(task="b"), finished_only=True, dry_run=True))).changed == 1
    assert (await script.ask(Delete(ids=[ends], finished_only=True))).changed == 1
    assert (await script.ask(Delete(ids=[fresh_id(n.to_bytes(16), "default") for n in range(1000)]))).changed == 0


@scenario(Edit)
async def jobs_are_annotated(script: Script) -> None:
    job = await script.enqueue()
    await script.ask(Edit(id=job.id, annotations={"a b": "☃", "b": ""}))
    await script.ask(Edit(id=job.id, annotations={"b": None, "c": "x" * 1000}))
    await script.ask(Show(id=job.id))
    await script.ask(List())
    await script.refused(Edit(id=job.id, annotations={"d": "x" * 2**14}), TooLarge)
    await script.refused(Edit(id=job.id, annotations={"a=b": "x"}), Invalid)
    await script.refused(Edit(id=UNKNOWN_ID, annotations={}), Missing)


@scenario(Edit)
async def waiting_jobs_are_edited(script: Script) -> None:
    job = await script.enqueue()
    for payload, content_type in ((b"\xa1x", MSGPACK), (b'{"a":1}', "application/json"), (b"\x00\xff", "image/png")):
        await script.ask(Edit(id=job.id, payload=Raw(payload), content_type=content_type))
    await script.ask(Edit(id=job.id, payload=Raw(b"\xa1y")))
    await script.ask(Show(id=job.id, payload=True))
    await script.ask(Edit(id=job.id, priority=-1, queue="b", tags=["a", "b"], delay=60.0))
    await script.ask(Edit(id=job.id, queue="default"))
    await script.ask(Edit(id=job.id, delay=0.0))
    await script.ask(List())
    await script.refused(Edit(id=job.id, priority=2**40), Invalid)
    await script.refused(Edit(id=job.id, payload=Raw(b"\xc1"), content_type="x" * 129), Invalid)
    await script.refused(Edit(id=UNKNOWN_ID, priority=1), Missing)
    await script.ask(Claim(worker=await script.worker()))
    await script.refused(Edit(id=job.id, priority=1), Conflict)


@scenario(FinishByHand, FailByHand)
async def running_jobs_are_ended_by_hand(script: Script) -> None:
    results: list[tuple[Raw | UnsetType, str]] = [
        (UNSET, MSGPACK),
        (packed({1: 2}), MSGPACK),
        (Raw(b'{"a": 1}'), JSON),
        (packed(None), MSGPACK),
    ]
    for result, content_type in results:
        worker, claimed = await script.running()
        by_hand = FinishByHand(id=claimed.job.id, result=result, content_type=content_type)
        assert (await script.ask(by_hand)).changed == 1
        await script.ask(Show(id=claimed.job.id))
        await script.refused(FinishByHand(id=claimed.job.id), Conflict)
        assert await script.finish(worker, claimed) == []
    _, claimed = await script.running()
    await script.ask(FailByHand(id=claimed.job.id, message="no ☃"))
    await script.ask(Show(id=claimed.job.id))
    await script.refused(FailByHand(id=claimed.job.id), Conflict)
    await script.refused(FailByHand(id=claimed.job.id, message="x" * 2001), Invalid)
    await script.refused(FailByHand(id=UNKNOWN_ID), Missing)
    await script.refused(FinishByHand(id=UNKNOWN_ID), Missing)
    await script.refused(FinishByHand(id=claimed.job.id, content_type="x" * 129), Invalid)


@scenario(LowerTimeout)
async def the_time_limit_of_a_running_job_is_lowered(script: Script) -> None:
    _, claimed = await script.running()
    assert (await script.ask(LowerTimeout(id=claimed.job.id, timeout=3600.0))).changed == 1
    assert (await script.ask(LowerTimeout(id=claimed.job.id, timeout=7200.0))).changed == 0
    await script.refused(LowerTimeout(id=claimed.job.id, timeout=-1.0), Invalid)
    await script.refused(LowerTimeout(id=UNKNOWN_ID, timeout=1.0), Missing)


@scenario(GetHealth)
async def a_tenant_learns_nothing_of_the_store(script: Script) -> None:
    await script.ask(GetHealth())
    await script.ask(GetHealth(tenant="shop"))


@scenario(GetStats, Workers, WorkerChanges, Register, Unregister)
async def workers_come_and_go(script: Script) -> None:
    worker = await script.worker(queues=["a", "b"], tasks=["t"], slots=3, node="n", pid=5)
    await script.ask(Workers())
    await script.ask(Unregister(worker=worker))
    await script.refused(Unregister(worker=worker), Missing)
    await script.refused(Unregister(worker="a/../b"), Missing)
    await script.refused(Unregister(worker=""), Missing)
    await script.refused(Register(worker=NewWorker(name="")), Invalid)
    await script.ask(Workers())
    changes = await script.ask(WorkerChanges())
    assert [(one.event, one.worker, one.node) for one in changes] == [("stopped", worker, "n"), ("joined", worker, "n")]
    assert len(await script.ask(WorkerChanges(limit=1))) == 1
    await script.refused(WorkerChanges(limit=0), Invalid)
    await script.ask(GetStats())


@scenario(PauseWorker, StopWorker, Renew, Register, Workers)
async def workers_are_ordered(script: Script) -> None:
    worker = await script.worker(queues=["a"])
    paused = await script.ask(PauseWorker(worker=worker, pause=Pause(paused=True, why="a leak")))
    assert (paused.orders.pause.paused, paused.orders.pause.why) == (True, "a leak")
    told = (await script.ask(Renew(worker=worker, wait=0.1, paused=False))).worker
    assert told == paused.orders
    assert (await script.ask(Renew(worker=worker, wait=0.1, paused=True))).worker is None
    assert (await script.ask(Renew(worker=worker, paused=False))).worker == told  # also if it does not wait
    assert (await script.ask(Renew(worker=worker, wait=0.1))).worker is None  # it takes no orders
    stopped = await script.ask(StopWorker(worker="w"))  # by its name
    assert (stopped.orders.stop, stopped.orders.pause.why) == ("soon", "a leak")
    assert (await script.ask(StopWorker(worker=worker, now=True))).orders.stop == "now"
    assert (await script.ask(StopWorker(worker=worker))).orders.stop == "now"  # what is ordered twice is not less
    assert not (await script.ask(PauseWorker(worker=worker, pause=Pause()))).orders.pause.paused
    (shown,) = await script.ask(Workers())
    assert shown.orders == WorkerOrders(stop="now")
    again = (await script.ask(Register(worker=NewWorker(name="again"), formerly=worker))).worker
    assert [(one.id, one.orders.stop) for one in await script.ask(Workers())] == [(worker, None), (again, "now")]
    pushed = await script.worker(url="http://127.0.0.1:9/", trusted=True)
    await script.refused(StopWorker(worker=pushed), Conflict)
    await script.ask(PauseWorker(worker=pushed, pause=Pause(paused=True)))
    await script.refused(PauseWorker(worker="w", pause=Pause(paused=True)), Conflict)  # there are two of that name
    await script.refused(StopWorker(worker="nobody"), Missing)
    await script.refused(StopWorker(worker=""), Missing)


@scenario(Claim, Begin, Renew, Adopt, Release)
async def jobs_are_held(script: Script) -> None:
    worker, claimed = await script.running(timeout=50.0, files={"f": b"\xff"})
    item: dict[str, Any] = {"id": claimed.job.id, "token": claimed.token}
    await script.ask(Begin(worker=worker, jobs=[Began(**item, pid=7)]))
    progress = Progress(done=1, total=2, note="x")
    chunk = NewChunk(stream="log", data=b"\xff")
    await script.ask(Renew(worker=worker, jobs=[Alive(**item, progress=progress, output=[chunk])]))
    await script.ask(Renew(worker=worker, jobs=[Alive(id=UNKNOWN_ID, token=NO_TOKEN)], wait=5.0, memory=2**40, cpu=1.5))
    usage = RunUsage(memory=2**40, cpu=1.5, output=1)
    await script.ask(Renew(worker=worker, jobs=[Alive(**item, usage=usage)]))
    assert (await script.ask(Show(id=claimed.job.id))).usage == usage
    await script.refused(Renew(worker=worker, jobs=[Alive(**item, usage=RunUsage(memory=-1))]), Invalid)
    await script.ask(Workers())
    await script.refused(Renew(worker=worker, memory=-1), Invalid)
    orphan = Orphan(**item, nonce="fedcba9876543210")
    (adopted,) = await script.ask(
        Adopt(worker=worker, jobs=[orphan, Orphan(id=UNKNOWN_ID, token=NO_TOKEN, nonce=NO_TOKEN)])
    )
    item["token"] = adopted.token
    assert not await script.ask(Adopt(worker=worker, jobs=[replace(orphan, nonce="0" * 16)]))
    await script.refused(Adopt(worker="w", jobs=[orphan]), Missing)
    await script.refused(Adopt(worker=worker, jobs=[replace(orphan, nonce="x")]), Invalid)
    await script.ask(Cancel(ids=[claimed.job.id]))
    assert (await script.ask(Renew(worker=worker, jobs=[Alive(**item)], wait=5.0))).orders
    await script.ask(
        Release(worker=worker, jobs=[Released(**item, delay=3.0), Released(id=UNKNOWN_ID, token=NO_TOKEN)])
    )
    assert await script.ask(Claim(worker=worker, slots=5, nonce="0123456789abcdef")) == []
    await script.refused(Claim(worker=worker, nonce="x"), Invalid)
    await script.refused(Claim(worker=worker, slots=1001), Invalid)
    for operation in (Claim(worker="w"), Begin(worker="w", jobs=[]), Renew(worker="w"), Release(worker="w", jobs=[])):
        await script.refused(operation, Missing)


@scenario(Output, GetOutput)
async def output_is_taken_and_shown(script: Script) -> None:
    worker, claimed = await script.running()
    for data in (b"one", b"\xff\x00", b""):
        await script.ask(Output(id=claimed.job.id, token=claimed.token, stream="stdout", data=data))
    shown = await script.ask(GetOutput(id=claimed.job.id))
    assert [chunk.data for chunk in shown.chunks][:2] == [b"one", b"\xff\x00"]
    await script.ask(GetOutput(id=claimed.job.id, after=1, limit=1))
    await script.refused(Output(id=claimed.job.id, token=NO_TOKEN, stream="log", data=b"x"), Conflict)
    await script.refused(Output(id=UNKNOWN_ID, token=NO_TOKEN, stream="log", data=b"x"), Missing)
    await script.refused(GetOutput(id=claimed.job.id, limit=0), Invalid)
    await script.finish(worker, claimed)


@scenario(SaveSteps, LoadSteps, GetSteps)
async def steps_are_saved_by_the_run_of_their_job_and_loaded_by_the_next(script: Script) -> None:
    worker, claimed = await script.running()
    id, token = claimed.job.id, claimed.token

    async def saved(token: str, name: str, result: bytes = b"") -> Applied:
        step = FinishedStep(id=id, token=token, name=name, result=result)
        return await script.ask(SaveSteps(worker=worker, jobs=[step]))

    async def loaded(token: str) -> list[JobSteps]:
        return await script.ask(LoadSteps(worker=worker, jobs=[LeasedJob(id=id, token=token)]))

    assert (await loaded(token))[0].steps == []
    assert (await saved(token, "a \u00fc", b"\x00\xff")).applied == [id]
    assert (await saved(NO_TOKEN, "b")).refused == [id]
    for name in ("", "x" * 129, "two\nlines"):
        step = FinishedStep(id=id, token=token, name=name, result=b"")
        await script.refused(SaveSteps(worker=worker, jobs=[step]), Invalid)
    large = FinishedStep(id=id, token=token, name="b", result=bytes(MOST_STEP_BYTES))
    await script.refused(SaveSteps(worker=worker, jobs=[large]), TooLarge)
    await script.finish(worker, claimed, Verdict.FAILED)
    assert (await saved(token, "b")).refused == [id]
    assert await loaded(token) == []
    script.clock.advance(2)
    await script.ask(Rerun(ids=[id]))
    (again,) = await script.ask(Claim(worker=worker))
    ((only,),) = [one.steps for one in await loaded(again.token)]
    assert (only.name, only.result, only.age) == ("a \u00fc", b"\x00\xff", 2.0)
    assert [one.name for one in await script.ask(GetSteps(id=id))] == ["a \u00fc"]
    await script.refused(GetSteps(tenant="other", id=id), Missing)
    await script.refused(GetSteps(id=UNKNOWN_ID), Missing)


@scenario(PutFile, GetFiles, GetFile)
async def files_are_sent_once_and_fetched_from_the_jobs_that_left_them(script: Script) -> None:
    known, unknown = (hashlib.sha256(data).hexdigest() for data in (b"known", b"unknown"))
    await script.ask(PutFile(hash=known, data=b"known"))
    await script.refused(PutFile(hash=unknown, data=b"other"), Invalid)
    await script.refused(PutFile(hash="x", data=b"other"), Invalid)
    await script.refused(PutFile(hash=unknown, data=b"x" * (2**20 + 1)), TooLarge)
    with pytest.raises(FilesMissing) as fault:
        await script.ask(Enqueue(job=NewJob(task="a", hashes={"f": known, "g": unknown})))
    script.heard.append(fault.value.missing)
    assert fault.value.missing == [unknown]
    await script.refused(Enqueue(tenant="other", job=NewJob(task="a", hashes={"f": known})), FilesMissing)
    await script.refused(Enqueue(job=NewJob(task="a", hashes={"f": known}, files={"f": b""})), Invalid)
    await script.refused(Enqueue(job=NewJob(task="a", hashes={"../f": known})), Invalid)
    worker, claimed = await script.running(hashes={"f": known}, files={"g": b"1"})
    assert claimed.files == {"f": b"known", "g": b"1"}
    await script.finish(worker, claimed, files={"out \u00fc.svg": b"<svg/>", "a": b""})
    assert [entry.size for entry in await script.ask(GetFiles(id=claimed.job.id))] == [0, 6]
    assert await script.ask(GetFile(id=claimed.job.id, name="out \u00fc.svg")) == b"<svg/>"
    await script.refused(GetFile(id=claimed.job.id, name="g"), Missing)
    await script.refused(GetFile(id=claimed.job.id, name="../a"), Missing)
    await script.refused(GetFile(tenant="other", id=claimed.job.id, name="a"), Missing)
    await script.refused(GetFiles(id=UNKNOWN_ID), Missing)


@scenario(Send)
async def messages_reach_the_worker_of_the_job(script: Script) -> None:
    job = await script.ask(Enqueue(job=NewJob(task="talk", queue="talk", input=True)))
    await script.ask(Send(id=job.id, data=b"one"))
    worker = (await script.ask(Register(worker=NewWorker(name="talker", queues=["talk"])))).worker
    (claimed,) = await script.ask(Claim(worker=worker, nonce="00112233445566aa"))
    await script.ask(Send(id=job.id, data=b"\xff\x00"))
    item = Alive(id=job.id, token=claimed.token)
    assert (await script.ask(Renew(worker=worker, jobs=[item]))).messages == []
    heard = await script.ask(Renew(worker=worker, jobs=[replace(item, heard=0)], wait=5.0))
    assert [(one.n, one.data) for one in heard.messages] == [(1, b"one"), (2, b"\xff\x00")]
    await script.ask(Renew(worker=worker, jobs=[replace(item, heard=2)]))
    await script.refused(Renew(worker=worker, jobs=[replace(item, heard=-1)]), Invalid)
    await script.refused(Send(id=UNKNOWN_ID, data=b"x"), Missing)
    await script.refused(Send(id=job.id, data=b"x" * (MOST_MESSAGE + 1)), Invalid)
    await script.finish(worker, claimed)
    await script.refused(Send(id=job.id, data=b"late"), Conflict)


@scenario(Resize, SendSignal)
async def sizes_and_signals_reach_a_job_with_a_terminal(script: Script) -> None:
    job = await script.ask(Enqueue(job=NewJob(task="talk", queue="talks", stdin="terminal", most_input=10)))
    assert (job.isolate, job.input) == (True, True)
    await script.ask(Resize(id=job.id, rows=24, columns=80))
    await script.ask(SendSignal(id=job.id, signal="INT"))
    await script.refused(Send(id=job.id, data=b"xx"), TooLarge)
    plain = await script.ask(Enqueue(job=NewJob(task="talk", queue="talks", input=True)))
    for message in (Resize(id=plain.id, rows=1, columns=1), SendSignal(id=plain.id, signal="INT")):
        await script.refused(message, Conflict)
        await script.refused(replace(message, id=UNKNOWN_ID), Missing)
    await script.refused(Resize(id=job.id, rows=0, columns=1), Invalid)
    await script.refused(SendSignal(id=job.id, signal="LOUD"), Invalid)  # type: ignore[arg-type]


@scenario(AddToken, Tokens, RemoveToken)
async def tokens_are_made_and_removed(script: Script) -> None:
    made = await script.ask(AddToken(tenant="shop", scopes=["read"], expires=60.0, note="n"))
    await script.ask(AddToken(tenant="-"))
    await script.ask(Tokens(tenant="-"))
    assert [one.key for one in await script.ask(Tokens(tenant="shop"))] == [made.key]
    await script.refused(RemoveToken(tenant="other", key=made.key), Missing)
    await script.refused(RemoveToken(tenant="shop", key="a/b"), Missing)
    await script.ask(RemoveToken(tenant="shop", key=made.key))
    assert await script.ask(Tokens(tenant="shop")) == []
    await script.refused(AddToken(scopes=[]), Invalid)


@scenario(Audit)
async def what_was_done_is_read_page_by_page(script: Script) -> None:
    for queue in "abc":
        await script.ask(ChangeQueue(tenant="shop", queue=queue, change=QueueChange(paused=True)))
    page = await script.ask(Audit(tenant="shop", limit=2))
    assert [entry.name for entry in page.entries] == ["c", "b"]
    rest = await script.ask(Audit(tenant="shop", limit=2, after=page.next))
    assert ([entry.name for entry in rest.entries], rest.next) == (["a"], None)
    await script.refused(Audit(after="x"), Invalid)
    job = await script.enqueue("later", delay=60.0)
    await script.ask(Cancel(ids=[job.id]))
    (line,) = (await script.ask(Audit(job=job.id))).entries
    assert line.action == "cancel"


@scenario(PutQuota, GetQuota)
async def quotas_are_kept(script: Script) -> None:
    assert await script.ask(GetQuota(tenant="shop")) == Quota()
    wide = Quota(jobs_per_second=1e9, stored_jobs=2**53)
    assert await script.ask(PutQuota(tenant="shop", quota=wide)) == wide
    assert await script.ask(GetQuota(tenant="shop")) == wide
    assert await script.ask(GetQuota()) == Quota()
    await script.refused(PutQuota(quota=Quota(stored_jobs=-1)), Invalid)


@scenario(PutLimit, GetLimit, Limits, PauseLimit, RemoveLimit)
async def limits_are_kept_paused_and_removed(script: Script) -> None:
    which = Which(queue="default", payload={"n": 7, "m": Condition(any_of=[1, "a"])}, any=[Which(tag=["x"])])
    limit = NewLimit(match=which, running=1, rate=Rate(count=5, per=2.5, burst=9), key="payload.n")
    await script.ask(PutLimit(name="some", limit=limit))
    for _ in range(2):
        await script.enqueue(payload=packed({"n": 7, "m": "a"}), tags=["x"])
    worker = await script.worker()
    assert len(await script.ask(Claim(worker=worker, slots=5))) == 1
    assert (await script.ask(GetLimit(name="some"))).buckets[0].waiting == 1
    await script.ask(PauseLimit(name="some", pause=Pause(paused=True, until=EPOCH + timedelta(days=1), why="w")))
    assert len(await script.ask(Limits())) == 1
    await script.refused(PutLimit(name="some", limit=NewLimit()), Invalid)
    await script.refused(GetLimit(name="other"), Missing)
    await script.ask(RemoveLimit(name="some"))
    await script.refused(RemoveLimit(name="some"), Missing)
    assert len(await script.ask(Claim(worker=worker, slots=5))) == 1


@scenario(ChangeQueue, GetQueue, Queues, GetTask, Tasks, PauseTask)
async def queues_follow_their_settings(script: Script) -> None:
    tiers = [Tier(name="fast", seconds=3), Tier(name="slow", seconds=30, cap="50%")]
    change = QueueChange(tiers=tiers, timeout=60.0, keep_success=None, on_lost="requeue", weights={"work": 2.5})
    await script.ask(ChangeQueue(queue="default", change=change))
    await script.worker(slots=4)
    await script.enqueue(tier="slow")
    await script.ask(GetQueue(queue="default"))
    await script.ask(ChangeQueue(queue="default", change=QueueChange(paused=True, why="rest")))
    await script.ask(Queues())
    await script.ask(GetQueue(queue="unknown"))
    await script.refused(ChangeQueue(queue="default", change=QueueChange(tiers=tiers[::-1])), Invalid)
    await script.ask(PauseTask(task="work", pause=Pause(paused=True)))
    assert (await script.ask(GetTask(task="work"))).paused
    assert not (await script.ask(GetTask(task="other"))).paused
    await script.ask(PauseTask(tenant="-", task="all", pause=Pause(paused=True, why="moving")))
    tasks = await script.ask(Tasks())
    assert [(one.tenant, one.task, one.why) for one in tasks] == [("-", "all", "moving"), ("default", "work", "")]
    assert [one.task for one in await script.ask(Tasks(tenant="shop"))] == ["all"]
    await script.refused(Enqueue(job=NewJob(task="work", queue="plain", tier="slow")), Invalid)
    await script.ask(ChangeQueue(queue="turns", change=QueueChange(policy="fair")))
    for task in "xxyy":
        await script.enqueue(task, queue="turns")
    worker = await script.worker(queues=["turns"])
    warm = [await script.ask(Claim(worker=worker, warm=["default/y"])) for _ in range(3)]
    assert [one.job.task for claimed in warm for one in claimed] == ["y", "y", "x"]


@scenario(GetEstimate, GetQueueEstimate)
async def waits_are_estimated(script: Script) -> None:
    first = await script.enqueue(delay=60.0)
    await script.ask(GetEstimate(id=first.id))
    second = await script.enqueue()
    await script.ask(GetEstimate(id=second.id))
    await script.ask(GetQueueEstimate(queue="default"))
    await script.refused(GetEstimate(id=UNKNOWN_ID), Missing)


@scenario(PutHandler, GetHandler, Handlers, RemoveHandler, GetCode)
async def handlers_are_kept(script: Script) -> None:
    first = NewHandler(lang="sh", body="cat", before_each="# ☃", eid="e", options=HandlerOptions(batch=3))
    await script.ask(PutHandler(tenant="shop", task="line", handler=first))
    assert (await script.ask(PutHandler(tenant="shop", task="line", handler=first))).version == 1
    second = await script.ask(PutHandler(tenant="shop", task="line", handler=NewHandler(lang="http", body="http://h/")))
    assert (await script.ask(GetHandler(tenant="shop", task="line"))).version == second.version == 2
    assert (await script.ask(GetHandler(tenant="shop", task="line", version=1))).before_each == "# ☃"
    assert (await script.ask(GetCode(tenant="shop", task="line"))).handler
    assert not (await script.ask(GetCode(tenant="shop", task="line", known=second.digest))).handler
    assert await script.ask(Handlers()) == []
    assert len(await script.ask(Handlers(tenant="-"))) == 1
    await script.refused(GetHandler(tenant="shop", task="line", version=3), Missing)
    for kind in (GetHandler, GetCode, RemoveHandler):
        await script.refused(kind(task="line"), Missing)
        await script.refused(kind(tenant="-", task="line"), Invalid)
        await script.refused(kind(tenant="shop", task="a b"), Invalid)
    await script.refused(PutHandler(tenant="-", task="line", handler=first), Invalid)
    await script.refused(PutHandler(task="line", handler=NewHandler(lang="sh", body="")), Invalid)
    await script.ask(RemoveHandler(tenant="shop", task="line"))
    await script.refused(GetHandler(tenant="shop", task="line"), Missing)


@scenario(Failures)
async def failed_jobs_are_grouped(script: Script) -> None:
    for number in range(3):
        await script.running()
        (job,) = (await script.ask(List(match=Match(state=["running"])))).jobs
        await script.ask(FailByHand(id=job.id, message=f"tape {number} is broken"))
    page = await script.ask(Failures())
    (group,) = page.groups
    assert (group.count, group.type, page.scanned) == (3, "by_hand", 3)
    same = Match(fingerprint=group.fingerprint, state=["failed"])
    assert (await script.ask(Failures(match=same, limit=1))).groups == [group]
    assert (await script.ask(Failures(match=Match(fingerprint="0" * 16)))).groups == []
    await script.refused(Failures(match=Match(fingerprint="x")), Invalid)
    assert (await script.ask(Rerun(match=same, dry_run=True))).changed == 3
    assert (await script.ask(Delete(match=same))).changed == 3


@scenario(GetHistory)
async def a_history_is_kept(script: Script) -> None:
    await script.ask(GetHistory())
    await script.ask(GetHistory(step="hour", points=5, queue="mail", by_queue=True))
    await script.refused(GetHistory(points=0), Invalid)
    await script.refused(GetHistory(queue="a b"), Invalid)


@scenario(PutSchedule, GetSchedule, Schedules, PauseSchedule, RunSchedule, RemoveSchedule)
async def schedules_are_kept(script: Script) -> None:
    job = NewJob(task="report", payload=packed({"n": [1, None]}), queue="night", then=NewJob(task="mail"))
    new = NewSchedule(cron="0 3 * * *", tz="Europe/Rome", job=job, overlap="queue", jitter=5.0)
    card = await script.ask(PutSchedule(tenant="shop", name="nightly", schedule=new))
    assert (len(card.next), bytes(card.job.payload)) == (5, bytes(job.payload))
    other = NewJob(task="line", payload=packed([1]))
    await script.ask(PutSchedule(tenant="shop", name="other", schedule=NewSchedule(every=60.0, job=other)))
    assert (await script.ask(GetSchedule(tenant="shop", name="nightly"))).tz == "Europe/Rome"
    assert [one.name for one in await script.ask(Schedules(tenant="shop"))] == ["nightly", "other"]
    assert await script.ask(Schedules()) == []
    assert len(await script.ask(Schedules(tenant="-"))) == 2
    assert (await script.ask(PauseSchedule(tenant="shop", name="nightly", pause=Pause(paused=True)))).paused
    ran = await script.ask(RunSchedule(tenant="shop", name="other"))
    shown = await script.ask(Show(tenant="shop", id=ran.id, payload=True))
    assert shown.headers == {"schedule": "other"}
    for kind in (GetSchedule, RunSchedule, RemoveSchedule):
        await script.refused(kind(name="nightly"), Missing)
    await script.refused(PutSchedule(tenant="-", name="s", schedule=new), Invalid)
    await script.refused(PutSchedule(name="s", schedule=NewSchedule(cron="x", job=job)), Invalid)
    await script.refused(PutSchedule(name="s", schedule=NewSchedule(every=5.0, job=NewJob(task="a b"))), Invalid)
    await script.refused(PutSchedule(name="s", schedule=NewSchedule(every=0.5, job=job)), Invalid)
    await script.ask(RemoveSchedule(tenant="shop", name="nightly"))
    await script.refused(GetSchedule(tenant="shop", name="nightly"), Missing)


@asynccontextmanager
async def opened(kind: StoreKind, address: str, prefix: str) -> AsyncIterator[tuple[Engine, VirtualClock]]:
    clock = VirtualClock()
    async with open_store(kind, address, clock, prefix) as store:
        yield Engine(store, SeededChance(), user="token local"), clock  # whom the server names, too


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_client_is_answered_what_the_engine_answers(
    name: str, kind: StoreKind, request: pytest.FixtureRequest, new_prefix: NewPrefix, tmp_path: Any
) -> None:
    address = address_of(kind, request, tmp_path)
    async with opened(kind, address, new_prefix()) as (engine, clock):
        inside = Script(engine, clock)
        await SCENARIOS[name](inside)
    async with (
        opened(kind, address, new_prefix()) as (engine, clock),
        served(engine, clock) as site,
        Client(site, LOCAL) as client,
    ):
        outside = Script(client, clock)
        await SCENARIOS[name](outside)
    assert outside.heard == inside.heard


def test_every_operation_has_a_scenario() -> None:
    assert set(OPERATIONS) == COVERED


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_a_text_arrives_as_text_in_either_way(engine: Engine, site: str) -> None:
    """The one difference there is: over HTTP every payload is in the format of the body."""
    id = (await engine(EnqueueLines(task="line", text="hello ☃"))).ids[0]
    async with Client(site, LOCAL) as client:
        outside = await client(Show(id=id, payload=True))
    inside = await engine(Show(id=id, payload=True))
    assert isinstance(inside.payload, Raw)
    assert isinstance(outside.payload, Raw)
    assert (bytes(inside.payload).decode(), inside.content_type) == ("hello ☃", TEXT)
    assert msgspec.msgpack.decode(outside.payload) == "hello ☃"
