"""A good request for every route there is: a route without one fails the tests that go through all of them."""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

from windlass.engine import Engine
from windlass.model.handler import NewHandler
from windlass.model.limit import NewLimit, Which
from windlass.model.names import JobKey, queue_mark
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    AddToken,
    Adopt,
    Audit,
    Begin,
    Cancel,
    ChangeQueue,
    Claim,
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
    Limits,
    List,
    LoadSteps,
    LowerTimeout,
    Operation,
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
    Show,
    StopWorker,
    Tasks,
    Tokens,
    Unregister,
    WorkerChanges,
    Workers,
)
from windlass.model.outcome import Verdict
from windlass.model.schedule import NewSchedule
from windlass.model.shapes import Shape
from windlass.model.worker import NewWorker

MARK = f"{queue_mark('default'):02x}"
UNKNOWN_ID = f"00000000-0000-7000-8000-0000000000{MARK}"
"""The id of no job."""

FILE = b"a file"

NOTHING: dict[str, str] = {
    "id": UNKNOWN_ID,
    "worker": f"1{UNKNOWN_ID[1:]}",
    "key": "0" * 12,
    "task": "work",
    "token": "0" * 16,
    "queue": "noqueue",
    "name": "lq" + "f" * 16,
    "hash": hashlib.sha256(FILE).hexdigest(),
}
"""What a path may name and a body may hold, of which there is nothing."""


class Asked(NamedTuple):
    """What goes into a request beside verb and path."""

    query: dict[str, Any] = {}  # noqa: RUF012 - it is never written
    body: Any = None
    media: str | None = None
    """The one media type that the body can have; null = either format."""


Fill = Callable[[dict[str, str]], Asked]

LINES = "text/plain"
BYTES = "application/octet-stream"


def _held(names: dict[str, str], **more: Any) -> Asked:
    return Asked(body=[{"id": names["id"], "token": names["token"], **more}])


GOOD: dict[type[Operation[Any]], Fill] = {
    Enqueue: lambda _: Asked(body={"task": "a", "payload": {"n": 1}}),
    EnqueueMany: lambda _: Asked(body=[{"task": "a"}, {"task": "b", "payload": [1]}]),
    EnqueueLines: lambda _: Asked({"priority": -3, "headers.x": "5"}, b"one\ntwo\n", LINES),
    Show: lambda _: Asked({"payload": "true"}),
    GetProgress: lambda names: Asked(body={"ids": [names["id"]], "wait": 0}),
    GetResult: lambda _: Asked({"wait": "0"}),
    GetOutput: lambda _: Asked({"limit": 5}),
    GetFiles: lambda _: Asked(),
    GetFile: lambda _: Asked(),
    PutFile: lambda _: Asked({}, FILE, BYTES),
    GetSteps: lambda _: Asked(),
    LoadSteps: _held,
    SaveSteps: lambda names: _held(names, name="a step", result=b"\x00\xff"),
    List: lambda _: Asked({"limit": 5, "state": ["queued", "finished"], "payload.n": 1}),
    Failures: lambda _: Asked({"limit": 5, "task": "a", "fingerprint": "0123456789abcdef"}),
    Count: lambda _: Asked({"task": "a"}),
    Cancel: lambda _: Asked(body={"dry_run": False}),
    Rerun: lambda _: Asked(body={"dry_run": False}),
    Delete: lambda _: Asked({"dry_run": "false"}),
    FinishByHand: lambda _: Asked(body={"result": {"r": 1}}),
    FailByHand: lambda _: Asked(body={"message": "m"}),
    LowerTimeout: lambda _: Asked(body={"timeout": 9.0}),
    Edit: lambda _: Asked(body={"annotations": {"a": "b", "c": None}}),
    GetStats: lambda _: Asked(),
    GetHealth: lambda _: Asked(),
    GetHistory: lambda _: Asked({"step": "hour", "points": 3}),
    Register: lambda _: Asked(body={"name": "w", "slots": 3}),
    Workers: lambda _: Asked(),
    PauseWorker: lambda _: Asked(body={"paused": False}),
    StopWorker: lambda _: Asked(body={"now": False}),
    WorkerChanges: lambda _: Asked({"limit": 3}),
    Unregister: lambda _: Asked(),
    Claim: lambda _: Asked(body={"slots": 2, "wait": 0}),
    Begin: lambda names: _held(names, pid=5),
    Renew: lambda names: _held(names, progress={"done": 1}),
    Adopt: lambda names: _held(names, nonce="0123456789abcdef"),
    Finish: lambda names: _held(names, outcome="ok", result={"r": 1}),
    Release: _held,
    Send: lambda _: Asked({}, b"\xff", BYTES),
    Resize: lambda _: Asked(body={"rows": 24, "columns": 80}),
    SendSignal: lambda _: Asked(body={"signal": "INT"}),
    Output: lambda names: Asked({"token": names["token"], "stream": "log"}, b"\xff", BYTES),
    Audit: lambda _: Asked({"limit": 5}),
    AddToken: lambda _: Asked(body={"scopes": ["read"]}),
    Tokens: lambda _: Asked(),
    RemoveToken: lambda _: Asked(),
    PutQuota: lambda _: Asked(body={"stored_jobs": 10**6}),
    GetQuota: lambda _: Asked(),
    PutLimit: lambda _: Asked(body={"running": 3, "match": {"queue": "q", "payload": {"n": {"min": 1}}}}),
    GetLimit: lambda _: Asked(),
    Limits: lambda _: Asked(),
    PauseLimit: lambda _: Asked(body={"paused": True, "why": "tired"}),
    RemoveLimit: lambda _: Asked(),
    Queues: lambda _: Asked(),
    GetQueue: lambda _: Asked(),
    ChangeQueue: lambda _: Asked(body={"policy": "fair", "weights": {"a": 2}}),
    GetTask: lambda _: Asked(),
    Tasks: lambda _: Asked(),
    PauseTask: lambda _: Asked(body={"paused": False}),
    GetEstimate: lambda _: Asked(),
    GetQueueEstimate: lambda _: Asked(),
    PutHandler: lambda _: Asked(body={"lang": "sh", "body": "cat", "beforeEach": ":"}),
    GetHandler: lambda _: Asked({"version": 1}),
    Handlers: lambda _: Asked(),
    RemoveHandler: lambda _: Asked(),
    GetCode: lambda _: Asked({"known": "0" * 16}),
    PutSchedule: lambda _: Asked(body={"cron": "0 3 * * *", "job": {"task": "a", "payload": {"n": 1}}}),
    GetSchedule: lambda _: Asked(),
    Schedules: lambda _: Asked(),
    PauseSchedule: lambda _: Asked(body={"paused": True, "why": "tired"}),
    RunSchedule: lambda _: Asked(),
    RemoveSchedule: lambda _: Asked(),
}


def asked(shape: Shape, names: dict[str, str]) -> Asked:
    found = GOOD[shape.kind](names)
    if shape.kind in (Cancel, Rerun) and "id" not in shape.names:
        return Asked(body={"state": ["pending"], "task": "a"})
    if shape.kind is Delete and "id" not in shape.names:
        return Asked({"state": "finished"})
    return found


async def made(engine: Engine, tenant: str = "default", *, ended: bool = False) -> dict[str, str]:
    """A running job (or one that has ended), its worker and a token, made for a tenant; by the names of paths."""
    queue = f"q{engine.context.chance.token().hex()}"  # where no other job is
    job = await engine(Enqueue(tenant=tenant, job=NewJob(task="a", queue=queue, stdin="terminal")))
    worker = (await engine(Register(tenant=tenant, worker=NewWorker(name="w", queues=[queue])))).worker
    (claimed,) = await engine(Claim(tenant=tenant, worker=worker))
    if ended:
        report = Finished(id=job.id, token=claimed.token, outcome=Verdict.OK)
        await engine(Finish(tenant=tenant, worker=worker, jobs=[report]))
    key = (await engine(AddToken(tenant=tenant))).key
    await engine(PutLimit(tenant=tenant, name=f"l{queue}", limit=NewLimit(running=100, match=Which(queue=queue))))
    schedule = NewSchedule(every=3600.0, job=NewJob(task="a", queue=queue))
    await engine(PutSchedule(tenant=tenant, name=f"l{queue}", schedule=schedule))
    await engine(PutHandler(tenant=tenant, task="work", handler=NewHandler(lang="sh", body="cat")))
    assert engine.context.store.files is not None
    if not ended:
        left = {f"l{queue}": b"left"}
        assert await engine.context.store.files.attach(JobKey(job.id, tenant), bytes.fromhex(claimed.token), left)
    names = {"id": job.id, "worker": worker, "key": key, "task": "work", "token": claimed.token}
    return names | {"queue": queue, "name": f"l{queue}", "hash": NOTHING["hash"]}
