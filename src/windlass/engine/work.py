"""Answers to the operations of workers: register, claim, begin, renew, finish, release.

A success needs no decision and is one round trip for a whole batch. For every other outcome the job is read, the
lifecycle decides, and the move is written only if the job has not changed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from windlass.engine import new_jobs
from windlass.engine.context import POLL_EVERY, EngineContext, ambiguous_id, fence
from windlass.engine.flow.apply import update_tier_caps
from windlass.engine.flow.tiers import rebalance
from windlass.engine.handlers import tasks_of
from windlass.engine.jobs import check_output, deliveries
from windlass.engine.records import register_task_options
from windlass.model import lifecycle, wire
from windlass.model.errors import Invalid, Missing, PartAway
from windlass.model.handler import NO_HANDLER, HandlerRun
from windlass.model.job import Error, Reason
from windlass.model.lifecycle import CODES, Move, Outcome, Verdict
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT, JobKey, check_id, is_id, key_of, text_id
from windlass.model.operations import (
    MOST_SPAWNED,
    Alive,
    Applied,
    Began,
    Begin,
    Claim,
    Claimed,
    Finish,
    Finished,
    LeasedJob,
    Operation,
    Order,
    Register,
    Registered,
    Release,
    Released,
    Renew,
    Renewed,
    Unregister,
    Workers,
)
from windlass.model.push import read_url
from windlass.model.worker import NewWorker, Worker
from windlass.store import ClaimRequest, Heartbeat, HeartbeatReply, JobSuccess, Record, Turn
from windlass.store.flow import BAR, KEY

SECRETS = "push.secret"
"""Records: the secrets of push workers, by worker."""

LEAST_WAIT = 0.001

NOTHING_NEW = Renewed()

JobRun = tuple[JobKey, bytes]
"""A job and the token under which it runs."""

WORKERS_REASONS = (Reason.TIMEOUT, Reason.CRASHED, Reason.MEMORY, Reason.OUTPUT, Reason.DISK)
"""Reasons that a worker may report."""


async def register(context: EngineContext, operation: Register) -> Registered:
    id = operation.id or text_id(context.chance.uuid7())
    if operation.worker.tasks == [] and not operation.worker.handlers:
        raise Invalid("the worker has no tasks and runs no handlers: give it one or the other", at="worker.tasks")
    if operation.worker.url is not None:
        read_url(operation.worker.url)
    if operation.id is not None:
        known = await _known(context, operation.id, operation.tenant)
        if known.url != operation.worker.url:
            raise Invalid("a worker's URL cannot change: register a new worker", at="worker.url")
    await register_task_options(context, operation.tenant, operation.worker)
    about = replace(operation.worker, options=None)
    lease = lease_of(context, operation.worker)
    await context.store.register_worker(id, operation.tenant, about, lease)
    if operation.id is not None and (changed := await _heartbeat(context, id, operation.tenant)) is not None:
        context.remember_worker(changed)  # only now: the cached worker must survive a store that is away
    await update_tier_caps(context)
    context.stats.worker_registered(operation.worker.queues)
    if operation.worker.url is None or operation.id is not None:
        return Registered(worker=id, lease=lease)
    # Stored after the worker: a secret without a worker may be deleted.
    secret = b"".join(context.chance.token() for _ in range(4)).hex()
    await context.records.put(SECRETS, id, secret.encode())
    return Registered(worker=id, lease=lease, secret=secret)


def lease_of(context: EngineContext, worker: NewWorker | None) -> float:
    """Seconds after which a silent worker counts as lost, and its jobs with it."""
    own = None if worker is None else worker.lease
    return context.settings.lease if own is None else min(own, context.settings.lease)


async def workers(context: EngineContext, operation: Workers) -> list[Worker]:
    """The workers that serve a tenant: its own, and shared ones without their URLs."""
    tenant = operation.tenant
    found = await context.store.workers(EVERY_TENANT)
    if tenant == EVERY_TENANT:
        return found
    serving = [worker for worker in found if worker.tenant in (EVERY_TENANT, tenant)]
    return [worker if worker.tenant == tenant else replace(worker, url=None) for worker in serving]


async def unregister(context: EngineContext, operation: Unregister) -> None:
    await _known(context, operation.worker, operation.tenant)
    context.forget_worker(operation.worker)
    if not await context.store.unregister_worker(operation.worker):
        raise _unknown_worker(operation.worker)
    await update_tier_caps(context)


async def claim(context: EngineContext, operation: Claim) -> list[Claimed]:
    worker = await _known(context, operation.worker, operation.tenant)
    records: list[Record] = []
    if not operation.wait or worker.id not in context.idle:
        records = await context.writes.claim(await _claim_request(context, operation, worker))
    if not records and operation.wait:
        records = await _wait_and_claim(context, operation, worker)
    await _rebalance_after(context, records)
    context.stats.claimed(records, asyncio.get_running_loop().time())
    return _claimed(records)


def _claimed(records: Sequence[Record]) -> list[Claimed]:
    token = (records[0].token or b"").hex() if records else ""  # one claim, one token
    return [
        Claimed(
            job=record.job,
            token=token,
            payload=Raw(record.payload or b""),
            files=record.files,
            deadline=record.job.deadline,
        )
        for record in records
    ]


async def _rebalance_after(context: EngineContext, records: Sequence[Record]) -> None:
    """A claim may have taken the last place of a tier for which others wait."""
    for tenant, queue in {(one.job.tenant, one.job.queue) for one in records if one.job.assigned is not None}:
        await rebalance(context, tenant, queue)


async def _claim_request(context: EngineContext, operation: Claim, worker: Worker, stays: float = 0.0) -> ClaimRequest:
    named = operation.nonce is not None
    nonce = bytes.fromhex(operation.nonce) if operation.nonce is not None else context.chance.token()
    tasks = await tasks_of(context, worker, operation.languages)
    slots = operation.slots if tasks is None or tasks else 0  # to a store, no tasks would mean any task
    able = worker if tasks is worker.tasks else replace(worker, tasks=tasks)
    lease, warm = lease_of(context, worker), operation.warm
    config = await context.flow_config.current()
    turns, in_order = turns_of(worker), config.strict_priority(worker.queues)
    lasts = config.has_at_most_once(worker.queues)
    return ClaimRequest(
        able, nonce, slots, lease, named, stays=stays, warm=warm, turns=turns, in_order=in_order, lasts=lasts
    )


def turns_of(worker: Worker) -> frozenset[Turn]:
    """What takes turns in a worker's claims, unless a queue's settings say otherwise."""
    queues: tuple[Turn, ...] = ("queues",) if worker.in_turn and len(worker.queues) > 1 else ()
    tenants: tuple[Turn, ...] = ("tenants",) if worker.tenant == EVERY_TENANT else ()
    tasks: tuple[Turn, ...] = ("tasks",) if worker.handlers and worker.tasks == [] else ()
    return frozenset((*queues, *tenants, *tasks))


async def _wait_and_claim(context: EngineContext, operation: Claim, worker: Worker) -> list[Record]:
    loop = asyncio.get_running_loop()
    until = loop.time() + operation.wait
    topics = [f"work/{queue}" for queue in worker.queues]
    context.idle.discard(worker.id)
    async with context.store.listen([*topics, f"wish/{worker.id}"]) as listener:
        while True:
            # Claim once more before the first wait: jobs may have arrived before the subscription. And after the
            # last wait: no parked claim is left behind.
            remaining = max(0.0, until - loop.time())
            wish = await _claim_request(context, operation, worker, stays=min(POLL_EVERY, remaining))
            records = await context.writes.claim(wish)
            if records or not remaining:
                return records
            if worker.id in context.known_workers:
                context.idle.add(worker.id)
            await listener.wait(min(POLL_EVERY, remaining, await _opening(context, worker)))


async def _opening(context: EngineContext, worker: Worker) -> float:
    """Seconds until a rate limit or the end of a pause allows a start."""
    if not any(
        one.count or one.closed_until for one in (await context.flow_config.current()).rules.limit_rules.values()
    ):
        return POLL_EVERY
    found = await context.flow.next_opening(worker.queues)
    return POLL_EVERY if found is None else max(found, LEAST_WAIT)


async def begin(context: EngineContext, operation: Begin) -> Applied:
    worker = await _known(context, operation.worker, operation.tenant)
    tenants = await _tenants(context, operation)
    touches = [_began(item, tenant) for item, tenant in zip(operation.jobs, tenants, strict=True)]
    touched = await context.writes.touch(touches, lease_of(context, worker))
    return _applied(operation.jobs, [answer.held for answer in touched])


def _began(item: Began, tenant: str) -> Heartbeat:
    return Heartbeat(item.id, tenant, fence(item.token), pid=item.pid, ran=_ran(item))


def _ran(item: Began | Finished) -> HandlerRun:
    if item.sandbox is None and item.handler_version is None:
        return NO_HANDLER
    return HandlerRun(item.sandbox, item.handler_version)


def _alive(item: Alive, tenant: str) -> Heartbeat:
    return Heartbeat(item.id, tenant, fence(item.token), progress=item.progress, output=item.output)


async def _tenants(context: EngineContext, operation: Begin | Renew | Finish | Release) -> list[str]:
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
    for id, owners in zip(unnamed, await context.directory.owners([*unnamed]), strict=True) if unnamed else ():
        if len(owners) > 1:
            place = next(place for place, item in enumerate(items) if item.id == id and item.tenant is None)
            raise ambiguous_id(id, owners, at=f"jobs[{place}].tenant")
        unnamed[id] = owners[0] if owners else DEFAULT_TENANT  # no such job: refused like any that is not held
    return [item.tenant or unnamed[item.id] for item in items]


async def renew(context: EngineContext, operation: Renew) -> Renewed:
    lease = lease_of(context, await _heartbeat_or_known(context, operation))
    renewed = await renew_now(context, operation, lease)
    if not operation.wait or renewed != NOTHING_NEW:
        return renewed
    return await _renew_until_ordered(context, operation, lease)


async def _heartbeat_or_known(context: EngineContext, operation: Renew) -> Worker:
    """Record a worker's heartbeat. If that partition of the store is away, a known worker continues; should it expire
    meanwhile, it learns so when the partition is back.
    """
    try:
        found = await _heartbeat(context, operation.worker, operation.tenant)
    except PartAway:
        found = context.known_workers.get(operation.worker)
        if found is None or found.tenant != operation.tenant:
            raise
    if found is None:
        context.forget_worker(operation.worker)
        raise _unknown_worker(operation.worker)
    return found


async def _heartbeat(context: EngineContext, id: str, tenant: str) -> Worker | None:
    """Record a worker's heartbeat; null = there is no such worker, or it has expired."""
    lease = lease_of(context, context.known_workers.get(id))
    found = await context.store.worker_heartbeat(id, tenant, lease)
    if found is not None and lease_of(context, found) < lease:  # its own lease was not known here
        found = await context.store.worker_heartbeat(id, tenant, lease_of(context, found))
    return found


async def _renew_until_ordered(context: EngineContext, operation: Renew, lease: float) -> Renewed:
    loop = asyncio.get_running_loop()
    until = loop.time() + operation.wait
    bare = replace(
        operation, jobs=[replace(item, progress=None, output=[]) for item in operation.jobs]
    )  # progress and output are reported once
    async with context.store.listen([f"order/{operation.worker}"]) as listener:
        while True:
            # Renew once more before the first wait: an order may have come before the subscription.
            renewed = await renew_now(context, bare, lease)
            remaining = until - loop.time()
            if renewed != NOTHING_NEW or remaining <= 0:
                return renewed
            if await listener.wait(min(POLL_EVERY, remaining)):
                # The notice does not name the job: it may be one that was claimed meanwhile.
                return await renew_now(context, bare, lease)


async def renew_now(context: EngineContext, operation: Renew, lease: float) -> Renewed:
    if not operation.jobs:
        return Renewed()
    check_output(operation.jobs)
    tenants = await _tenants(context, operation)
    touches = [_alive(item, tenant) for item, tenant in zip(operation.jobs, tenants, strict=True)]
    touched = await context.writes.touch(touches, lease)
    return Renewed(
        lost=[answer.id for answer in touched if not answer.held],
        orders=[
            order
            for item, answer in zip(operation.jobs, touched, strict=True)
            if (order := _order(item, answer)) is not None
        ],
        messages=await deliveries(context, operation.jobs, tenants),
    )


def _order(item: Alive, answer: HeartbeatReply) -> Order | None:
    """What the worker must do with the job, if it does not know yet."""
    if answer.reason in lifecycle.ORDERS:
        return Order(id=answer.id, order="halt" if answer.reason is Reason.HALTED else "cancel")
    if answer.reason is Reason.SHRUNK and answer.deadline != item.deadline:
        return Order(id=answer.id, order="deadline", deadline=answer.deadline)
    return None


async def finish(context: EngineContext, operation: Finish) -> Applied:
    await _known(context, operation.worker, operation.tenant)
    for place, item in enumerate(operation.jobs):
        if _says_more(item):
            _check_finished(context, item, f"jobs[{place}]")
    tenants = await _tenants(context, operation)
    reports = list(zip(operation.jobs, tenants, strict=True))
    if any(item.jobs for item in operation.jobs):
        await _spawn(context, reports)
    dones = [_done(item, tenant) for item, tenant in reports if item.outcome is Verdict.OK]
    applied: set[JobRun] = set()
    if dones:
        verdicts = await context.writes.succeed(dones)
        applied = {(key_of(done), done.token) for done, held in zip(dones, verdicts, strict=True) if held}
    others = [(item, tenant) for item, tenant in reports if item.outcome is not Verdict.OK]
    applied |= await _move_held(context, others, lambda item, record, now: _move(context, item, record, now))
    context.stats.finished((key for key, _ in applied), asyncio.get_running_loop().time())
    return _report(reports, applied)


def _says_more(item: Finished) -> bool:
    """Whether a report has more to check than its outcome."""
    return item.code is not None or item.reason is not None or bool(item.jobs) or isinstance(item.result, Raw)


def _check_finished(context: EngineContext, item: Finished, at: str) -> None:
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
    if isinstance(item.result, Raw):
        wire.check_size(item.result, context.settings.most_result, at=f"{at}.result")


async def _spawn(context: EngineContext, items: Sequence[tuple[Finished, str]]) -> None:
    """Add the jobs that successful jobs made, before the successes are written: a crash in between loses none.

    Their ids depend only on parent and index, so a repeated report or a second run adds nothing. If the lease is lost
    between the read and the add, the new jobs stay though the report is refused; the parent's next run finds them.
    """
    reports = {_run(item, tenant): item for item, tenant in reversed(items)}
    found = (await context.store.read(list(dict.fromkeys(key for key, _ in reports)))).records
    held = [(one.job, reports.get((key_of(one.job), one.token or b""))) for one in found if one is not None]
    made = [
        new_jobs.child_draft(context, job.tenant, job.id, f"jobs[{place}]", new)
        for job, item in held
        if item is not None
        for place, new in enumerate(item.jobs)
    ]
    await new_jobs.add(context, made)


def _done(item: Finished, tenant: str) -> JobSuccess:
    result = bytes(item.result) if isinstance(item.result, Raw) else None
    code = item.code or CODES[Verdict.OK]
    return JobSuccess(item.id, tenant, fence(item.token), code, result, item.content_type, item.finished_at, _ran(item))


def _move(context: EngineContext, item: Finished, record: Record, now: datetime) -> Move:
    error = item.error or Error()
    outcome = Outcome(
        verdict=item.outcome,
        code=item.code,
        error=replace(error, message=error.message or item.message),
        reason=item.reason,
        delay=item.delay,
    )
    move = lifecycle.finish(record.job, outcome, now, context.chance.fraction())
    return replace(move, finished_at=item.finished_at, ran=_ran(item))


async def release(context: EngineContext, operation: Release) -> Applied:
    await _known(context, operation.worker, operation.tenant)

    reports = list(zip(operation.jobs, await _tenants(context, operation), strict=True))
    held = await _hold_limits(context, reports) if any(item.rests is not None for item in operation.jobs) else set()

    def back(item: Released, record: Record, now: datetime) -> Move:
        return lifecycle.release(record.job, now, None if key_of(record.job) in held else item.delay)

    return _report(reports, await _move_held(context, reports, back))


async def _hold_limits(context: EngineContext, items: Sequence[tuple[Released, str]]) -> set[JobKey]:
    """Hold the limits that these reports name for their delays; the jobs that have such a limit.

    Done before the jobs are released: else the next job would start in between.
    """
    given = {JobKey(item.id, tenant): item for item, tenant in items if item.rests is not None and item.delay}
    held = [one for one in (await context.store.read(list(given))).records if one and one.token]
    found = set()
    for record in held:
        item = given[key_of(record.job)]
        if record.token != fence(item.token):
            continue
        for bucket in record.group.split(BAR)[1:]:
            name = bucket.partition(KEY)[0].partition("/")[2]
            if item.rests in ("", name):
                await context.flow.hold(bucket, item.delay or 0.0)
                found.add(key_of(record.job))
    return found


async def _move_held(
    context: EngineContext, items: Sequence[tuple[Any, str]], decide: Callable[[Any, Record, datetime], Move]
) -> set[JobRun]:
    """Decide and write moves of jobs that a worker holds; the runs that it did hold."""
    reports = {_run(item, tenant): item for item, tenant in reversed(items)}  # the first of two on one run counts
    applied: set[JobRun] = set()

    def fenced(record: Record, now: datetime) -> Move | None:
        run = (key_of(record.job), record.token or b"")
        if record.token is None or run not in reports:
            return None
        applied.add(run)
        return decide(reports[run], record, now)

    changed = await context.move_jobs([key for key, _ in reports], fenced)
    return {run for run in applied if run[0] in changed}


def _applied(items: Sequence[LeasedJob], held: Sequence[bool]) -> Applied:
    pairs = list(zip(items, held, strict=True))
    return Applied(applied=[item.id for item, ok in pairs if ok], refused=[item.id for item, ok in pairs if not ok])


def _report(reports: Sequence[tuple[LeasedJob, str]], applied: set[JobRun]) -> Applied:
    if len(applied) == len(reports):  # all distinct and applied
        return Applied(applied=[item.id for item, _ in reports], refused=[])
    held = []
    for item, tenant in reports:
        run = _run(item, tenant)
        held.append(run in applied)
        applied.discard(run)  # a second report on the same run changes nothing
    return _applied([item for item, _ in reports], held)


def _run(item: LeasedJob, tenant: str) -> JobRun:
    return JobKey(item.id, tenant), fence(item.token)


async def _known(context: EngineContext, id: str, tenant: str) -> Worker:
    worker = context.known_workers.get(id) or await _heartbeat(context, id, tenant)
    if worker is None or worker.tenant != tenant:
        raise _unknown_worker(id)
    context.remember_worker(worker)
    return worker


def _unknown_worker(id: str) -> Missing:
    return Missing(f"there is no worker {id[:60]}: it was silent for a whole lease, or never registered", at="worker")


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    Register: register,
    Workers: workers,
    Unregister: unregister,
    Claim: claim,
    Begin: begin,
    Renew: renew,
    Finish: finish,
    Release: release,
}
