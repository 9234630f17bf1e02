"""The engine: answers operations in process, over a store.

Combines the model and the policies with a store; knows neither SQL nor keys nor HTTP. `Engine` is a `Service`: its
caller need not know whether the store is in this process or across the network. It is also a source of events.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, cast

from msgspec import UNSET, Raw
from msgspec.structs import replace

from windlass.engine import (
    adopt,
    audit,
    edit,
    failures,
    files,
    handlers,
    history,
    jobs,
    new_jobs,
    records,
    schedules,
    steps,
    work,
    workers,
)
from windlass.engine.context import EngineContext, Settings
from windlass.engine.estimate import answers as estimates
from windlass.engine.events.feed import Feed
from windlass.engine.events.follow import follow_job
from windlass.engine.flow import settings as flow_settings
from windlass.engine.new_jobs import PreparedCommands
from windlass.model import wire
from windlass.model.events import Event, EventCursor, EventSubscription, EventWithOutput, cursor, state_event
from windlass.model.job import FINISHED, Job
from windlass.model.match import Match
from windlass.model.names import EVERY_TENANT, check_name, is_name
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    MOST_AT_ONCE,
    MOST_TEXT,
    A,
    Edit,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    Finish,
    FinishByHand,
    Finished,
    GetStats,
    Operation,
    PutSchedule,
    Show,
)
from windlass.model.outcome import Verdict
from windlass.model.ports import Randomness
from windlass.model.schedule import NewSchedule
from windlass.store.protocol import Store

ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = (
    new_jobs.ANSWERS
    | jobs.ANSWERS
    | edit.ANSWERS
    | failures.ANSWERS
    | work.ANSWERS
    | files.ANSWERS
    | steps.ANSWERS
    | adopt.ANSWERS
    | workers.ANSWERS
    | records.ANSWERS
    | handlers.ANSWERS
    | flow_settings.ANSWERS
    | estimates.ANSWERS
    | audit.ANSWERS
    | schedules.ANSWERS
    | history.ANSWERS
)


class Engine:
    """Answers operations over a store."""

    def __init__(
        self, store: Store, chance: Randomness, settings: Settings | None = None, *, user: str = "user"
    ) -> None:
        """`user`: whom the audit log names where no server says who asks."""
        self.context = EngineContext(store, chance, settings or Settings(), user)
        self.feed = Feed(store)
        self.prepared = PreparedCommands(self.context)
        """For callers without an event loop."""

    async def __call__(self, operation: Operation[A], /) -> A:
        kind = type(operation)
        answering = ANSWERS[kind](self.context, validated(operation))
        answer = await (audit.audited(self.context, operation, answering) if kind in audit.AUDITED else answering)
        return cast("A", answer)

    async def check_ready(self) -> None:
        """Raise what prevents the engine from accepting new jobs."""
        await self(GetStats(tenant="default"))
        if self.context.store.disk is not None:
            await self.context.store.disk.check_room()

    def follow(self, job: Job, cursor: EventCursor) -> AsyncGenerator[EventWithOutput | None, None]:
        predict = partial(estimates.estimate_for_follower, self.context)
        return follow_job(self, self.feed, job, cursor, predict=predict)

    def watching(self, tenant: str, match: Match) -> AbstractAsyncContextManager[EventSubscription]:
        return self.feed.watching(tenant, match)

    def wake(self) -> None:
        self.feed.wake()

    async def follow_job(self, tenant: str, id: str, since: str = "") -> AsyncGenerator[Event, None]:
        job = await self(Show(tenant=tenant, id=id))
        at = cursor(since)
        if job.state in FINISHED and at.sent == state_event(job):
            return
        async with aclosing(self.follow(job, at)) as stream:
            async for item in stream:
                if item is not None:
                    yield item[0]

    async def watch(self, tenant: str, match: Match) -> AsyncGenerator[Event, None]:
        async with self.watching(tenant, match) as watcher:
            while True:
                for event in await watcher.take(60):
                    yield event


O = TypeVar("O", bound=Operation)  # type: ignore[type-arg] # noqa: E741 - whatever it answers


def validated(operation: O) -> O:
    """The operation, if all its fields have the declared types and bounds: those made in Python are checked too.

    Payloads and results are not decoded. New jobs are checked where they get their ids.
    """
    if operation.tenant != EVERY_TENANT:
        check_name(operation.tenant, at="tenant")
    match operation:
        case Enqueue() | EnqueueMany():
            return operation  # each job is checked when it gets its id
        case EnqueueLines(text=str(text)) if len(text) <= MOST_TEXT:
            return replace(wire.checked(replace(operation, text="")), text=text)
        case Finish() if _is_short(operation) and all(map(_is_plain, operation.jobs)):
            return operation
        case Finish() if any(item.result is not UNSET or item.jobs for item in operation.jobs):
            bares = [replace(item, result=UNSET, jobs=[]) for item in operation.jobs]
            bare = wire.checked(replace(operation, jobs=bares))
            pairs = zip(bare.jobs, operation.jobs, strict=True)
            return replace(bare, jobs=[replace(item, result=given.result, jobs=given.jobs) for item, given in pairs])
        case FinishByHand():
            return replace(wire.checked(replace(operation, result=UNSET)), result=operation.result)
        case Edit(payload=Raw()):
            return replace(wire.checked(replace(operation, payload=UNSET)), payload=operation.payload)
        case PutSchedule(schedule=NewSchedule(job=job)):  # it is checked where it is taken in, as every new job
            times = wire.checked(replace(operation.schedule, job=NewJob(task="x")))
            return replace(operation, schedule=replace(times, job=job))
        case _:
            return wire.checked(operation)


_details = attrgetter(
    *(name for name in Finished.__struct_fields__ if name not in {"id", "token", "tenant", "outcome", "result"})
)
_no_details = _details(Finished(id="", token="", outcome=Verdict.OK))


def _is_short(operation: Finish) -> bool:
    return type(operation.worker) is str and type(operation.jobs) is list and len(operation.jobs) <= MOST_AT_ONCE


def _is_plain(report: Finished) -> bool:
    """Whether a report has only an outcome, as most do: then there is little to check."""
    return (
        type(report.id) is str
        and type(report.token) is str
        and (report.tenant is None or (type(report.tenant) is str and is_name(report.tenant)))
        and type(report.outcome) is Verdict
        and _details(report) == _no_details
    )
