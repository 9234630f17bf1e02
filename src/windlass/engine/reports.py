"""What workers ask and report: what one may claim, whose a reported job is, whether a report is allowed, its writes.

A report names a job and a token. Each report is applied or refused by itself.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Raw
from msgspec.structs import replace

from windlass.engine import new_jobs
from windlass.engine.context import EngineContext, ambiguous_id, fence, lease_of
from windlass.engine.files import attach
from windlass.engine.flow.config import FlowConfig
from windlass.engine.records import known_task_options, options_of
from windlass.model import lifecycle, wire
from windlass.model.admission import check_left_files
from windlass.model.errors import Invalid
from windlass.model.handler import NO_HANDLER, HandlerRun
from windlass.model.job import Error, Job, Reason
from windlass.model.lifecycle import Move
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT, JobKey, check_id, is_id, key_of
from windlass.model.new_job import AT_MOST_ONCE, OnLost
from windlass.model.operations import (
    MOST_SPAWNED,
    Adopt,
    Alive,
    Applied,
    Began,
    Begin,
    Claimed,
    Finish,
    Finished,
    LeasedJob,
    LoadSteps,
    Order,
    Release,
    Released,
    Renew,
    SaveSteps,
)
from windlass.model.outcome import CODES, Outcome, Verdict
from windlass.model.worker import Worker
from windlass.store.data import ClaimRequest, Heartbeat, HeartbeatReply, JobSuccess, Record, Turn

JobRun = tuple[JobKey, bytes]
"""A job and the token under which it runs."""

Report = TypeVar("Report", bound=LeasedJob)

OnLostOf = Callable[[Job], OnLost]
"""What becomes of a job whose run ends without its own word."""

WORKERS_REASONS = (Reason.TIMEOUT, Reason.CRASHED, Reason.MEMORY, Reason.OUTPUT, Reason.DISK)
"""Reasons that a worker may report."""


async def tenants_of(
    context: EngineContext, operation: Adopt | Begin | Renew | Finish | Release | SaveSteps | LoadSteps
) -> list[str]:
    """The tenant of each reported job: the worker's own; for a shared worker, the one that the report names."""
    own, items = operation.tenant, operation.jobs
    for place, item in enumerate(items):
        if not is_id(item.id):
            check_id(item.id, at=f"jobs[{place}].id")
        if own != EVERY_TENANT and item.tenant not in (None, own):
            raise Invalid(f"a worker of tenant {own} has no jobs of other tenants", at=f"jobs[{place}].tenant")
    if own != EVERY_TENANT:
        return [own] * len(items)
    unnamed = {item.id: "" for item in items if item.tenant is None}
    for id, tenants in zip(unnamed, await context.store.jobs.tenants_with([*unnamed]), strict=True) if unnamed else ():
        if len(tenants) > 1:
            place = next(place for place, item in enumerate(items) if item.id == id and item.tenant is None)
            raise ambiguous_id(id, tenants, at=f"jobs[{place}].tenant")
        unnamed[id] = tenants[0] if tenants else DEFAULT_TENANT  # no such job: refused like any that is not held
    return [item.tenant or unnamed[item.id] for item in items]


def run_of(item: LeasedJob, tenant: str) -> JobRun:
    return JobKey(item.id, tenant), fence(item.token)


# Claims


async def claim_request(
    context: EngineContext, worker: Worker, tasks: Sequence[str] | None, nonce: bytes, slots: int, **more: Any
) -> ClaimRequest:
    """A worker's claim of these tasks (null = any), under the settings of its queues."""
    able = worker if tasks is worker.tasks else replace(worker, tasks=tasks)
    if worker.weights and worker.in_turn:  # to a store, a queue that is named several times has several turns
        able = replace(able, queues=[one for one in worker.queues for _ in range(worker.weights.get(one, 1))])
    slots = slots if tasks is None or tasks else 0  # to a store, no tasks would mean any task
    config = await context.flow_config.current()
    return ClaimRequest(
        able,
        nonce,
        slots,
        lease_of(context, worker),
        turns=_turns(worker),
        in_order=config.strict_priority(worker.queues),
        lasts=config.has_at_most_once(worker.queues),
        **more,
    )


def claimed(record: Record, config: FlowConfig) -> Claimed:
    """A claim's answer; says what `on_lost` comes to, so that the worker reports a begin in time."""
    job, on_lost = record.job, config.on_lost(record.job)
    return Claimed(
        job=job if on_lost in (job.on_lost, "retry") else replace(job, on_lost=on_lost),
        token=(record.token or b"").hex(),
        payload=Raw(record.payload or b""),
        files=record.files,
        deadline=job.deadline,
    )


def _turns(worker: Worker) -> frozenset[Turn]:
    """What takes turns in a worker's claims, unless a queue's settings say otherwise."""
    queues: tuple[Turn, ...] = ("queues",) if worker.in_turn and len(worker.queues) > 1 else ()
    tenants: tuple[Turn, ...] = ("tenants",) if worker.tenant == EVERY_TENANT else ()
    tasks: tuple[Turn, ...] = ("tasks",) if worker.handlers and worker.tasks == [] else ()
    return frozenset((*queues, *tenants, *tasks))


# Reports as the store and the lifecycle take them


def begun(item: Began, tenant: str) -> Heartbeat:
    token, lease = fence(item.token), item.lease
    return Heartbeat(item.id, tenant, token, pid=item.pid, ran=_ran(item), files_loaded=item.files_loaded, lease=lease)


def alive(item: Alive, tenant: str) -> Heartbeat:
    return Heartbeat(
        item.id,
        tenant,
        fence(item.token),
        progress=item.progress,
        output=item.output,
        usage=item.usage,
        messages_after=item.heard,
        lease=item.lease,
    )


def success(item: Finished, tenant: str) -> JobSuccess:
    result = bytes(item.result) if isinstance(item.result, Raw) else None
    code = item.code or CODES[Verdict.OK]
    return JobSuccess(item.id, tenant, fence(item.token), code, result, item.content_type, item.finished_at, _ran(item))


def finish_move(context: EngineContext, on_lost: OnLostOf, item: Finished, record: Record, now: datetime) -> Move:
    error = item.error or Error()
    outcome = Outcome(
        verdict=item.outcome,
        code=item.code,
        error=replace(error, message=error.message or item.message),
        reason=item.reason,
        delay=item.delay,
    )
    move = lifecycle.finish(record.job, outcome, now, context.chance.fraction(), on_lost(record.job))
    return replace(move, finished_at=item.finished_at, ran=_ran(item))


def _ran(item: Began | Finished) -> HandlerRun:
    if item.sandbox is None and item.handler_version is None:
        return NO_HANDLER
    return HandlerRun(item.sandbox, item.handler_version)


def order_for(item: Alive, reply: HeartbeatReply) -> Order | None:
    """What the worker must do with the job, if it does not know yet."""
    if reply.reason in lifecycle.STOP_ORDERS:
        return Order(id=reply.id, order="halt" if reply.reason is Reason.HALTED else "cancel")
    if reply.reason in (Reason.SHRUNK, Reason.LOWERED) and reply.deadline != item.deadline:
        return Order(id=reply.id, order="deadline", deadline=reply.deadline)
    return None


async def read_on_lost(context: EngineContext, decides: bool = True) -> OnLostOf:
    """What `on_lost` comes to for a job: as it says itself, or else its task, or else its queue.

    As it is now if it decides about a report; else any will do, and costs no read. A job that was enqueued by name
    before a worker had its task does not say it itself.
    """
    if not decides:
        return (await context.flow_config.current()).on_lost
    config, tasks = await context.flow_config.refreshed(), await known_task_options(context)

    def on_lost(job: Job) -> OnLost:
        return config.on_lost(replace(job, on_lost=job.on_lost or options_of(tasks, job.tenant, job.task).on_lost))

    return on_lost


# Checks


def check_finished(context: EngineContext, item: Finished, at: str) -> None:
    if item.code is not None and item.code // 100 != CODES[item.outcome] // 100:
        meant = {number // 100: verdict for verdict, number in CODES.items()}.get(item.code // 100)
        hint = f"it means {meant}" if meant else "codes are 1xx, 2xx, 4xx or 5xx"
        raise Invalid(f"code {item.code} does not go with outcome {item.outcome}: {hint}", at=f"{at}.code")
    if item.reason is not None and (item.reason not in WORKERS_REASONS or item.outcome is Verdict.OK):
        known = ", ".join(WORKERS_REASONS)
        raise Invalid(f"reason must be one of: {known}; and only where the outcome is not ok", at=f"{at}.reason")
    if item.jobs and item.outcome is not Verdict.OK:
        raise Invalid("only a successful job can make new jobs", at=f"{at}.jobs")
    if len(item.jobs) > MOST_SPAWNED:
        raise Invalid(f"{len(item.jobs)} new jobs of one job, at most {MOST_SPAWNED} are allowed", at=f"{at}.jobs")
    for place, new in enumerate(item.jobs):
        new_jobs.check_job(context, new, f"{at}.jobs[{place}]")
    if item.files:
        check_left_files(item.files, context.settings.most_result, f"{at}.files")
    if isinstance(item.result, Raw):
        wire.check_size(item.result, context.settings.most_result, at=f"{at}.result")


# Writing


async def keep_left(context: EngineContext, reports: Sequence[tuple[Released, str]]) -> None:
    """Keep the files that runs leave which come again."""
    for place, (item, _) in enumerate(reports):
        if item.files:
            check_left_files(item.files, context.settings.most_result, f"jobs[{place}].files")
    await attach(context, reports)


async def add_made(context: EngineContext, reports: Sequence[tuple[Finished, str]]) -> None:
    """Add the files that runs leave, and the jobs that successful ones made."""
    if [item for item, _ in reports if item.files]:
        await attach(context, reports)
    if [item for item, _ in reports if item.jobs]:
        await add_spawned(context, reports)


async def add_spawned(context: EngineContext, reports: Sequence[tuple[Finished, str]]) -> None:
    """Add the jobs that successful jobs made, before the successes are written: a crash in between loses none.

    Their ids depend only on parent and index, so a repeated report or a second run adds nothing. If the lease is lost
    between the read and the add, the new jobs stay though the report is refused; the parent's next run finds them.
    """
    by_run = {run_of(item, tenant): item for item, tenant in reversed(reports)}
    found = (await context.store.jobs.read(list(dict.fromkeys(key for key, _ in by_run)))).records
    held = [(one.job, by_run.get((key_of(one.job), one.token or b""))) for one in found if one is not None]
    made = [
        new_jobs.child_draft(context, job.tenant, job.id, f"jobs[{place}]", new)
        for job, item in held
        if item is not None
        for place, new in enumerate(item.jobs)
    ]
    await new_jobs.add(context, made)


async def move_held(
    context: EngineContext,
    reports: Sequence[tuple[Report, str]],
    decide: Callable[[Report, Record, datetime], Move | None],
) -> set[JobRun]:
    """Decide and write moves of jobs that a worker holds; the runs that it did hold."""
    by_run = {run_of(item, tenant): item for item, tenant in reversed(reports)}  # the first of two on one run counts
    applied: set[JobRun] = set()

    def fenced(record: Record, now: datetime) -> Move | None:
        run = (key_of(record.job), record.token or b"")
        if record.token is None or run not in by_run:
            return None
        applied.add(run)
        return decide(by_run[run], record, now)

    changed = await context.move_jobs([key for key, _ in by_run], fenced)
    return {run for run in applied if run[0] in changed}


async def end_unbegun(context: EngineContext, reports: Sequence[tuple[Began, str]]) -> set[JobRun]:
    """Runs that were ordered to stop end here if their code waits for this answer (`on_lost` fail or adopt); which."""
    on_lost = await read_on_lost(context)

    def stop(_item: Began, record: Record, now: datetime) -> Move | None:
        waits = record.job.reason in lifecycle.STOP_ORDERS and on_lost(record.job) in AT_MOST_ONCE
        return lifecycle.release(record.job, now) if waits else None

    return await move_held(context, reports, stop)


def applied_of(reports: Sequence[tuple[LeasedJob, str]], applied: set[JobRun]) -> Applied:
    """Which reports were applied. A second report on the same run changes nothing."""
    if len(applied) == len(reports):  # all of them, and no two on one run
        return Applied(applied=[item.id for item, _ in reports], refused=[])
    held: list[str] = []
    refused: list[str] = []
    for item, tenant in reports:
        run = run_of(item, tenant)
        (held if run in applied else refused).append(item.id)
        applied.discard(run)
    return Applied(applied=held, refused=refused)
