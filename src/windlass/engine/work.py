"""Answers what workers send: claim, begin, renew, finish, release.

A claim leases jobs to a worker under a token. The worker says when its code begins, renews the lease while it runs, and
reports how the run ended, or gives the job back. The store refuses every report without the current token.

A success needs no decision and is one round trip for a whole batch. For every other outcome the job is read, the
lifecycle decides, and the move is written only if the job has not changed. `reports` knows what a report means.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any

from msgspec.structs import replace

from windlass.engine import reports
from windlass.engine.context import POLL_EVERY, EngineContext, heard_of, known_worker, lease_of
from windlass.engine.dependencies import give_results
from windlass.engine.flow.apply import hold_limits
from windlass.engine.flow.tiers import rebalance
from windlass.engine.handlers import tasks_of
from windlass.engine.jobs import check_output, deliveries
from windlass.engine.workers import unknown_orders
from windlass.model import lifecycle
from windlass.model.job import Reason
from windlass.model.lifecycle import Move
from windlass.model.names import key_of
from windlass.model.operations import (
    Applied,
    Begin,
    Claim,
    Claimed,
    Finish,
    Operation,
    Release,
    Released,
    Renew,
    Renewed,
)
from windlass.model.outcome import Verdict
from windlass.model.worker import Worker, WorkerUsage
from windlass.store.data import ClaimRequest, Record, Sweep

LEAST_WAIT = 0.001
NOTHING_NEW = Renewed()


async def claim(context: EngineContext, operation: Claim) -> list[Claimed]:
    """Lease jobs to a worker; if there are none, wait for one."""
    worker = await known_worker(context, operation.worker, operation.tenant)
    records: list[Record] = []
    if not operation.wait or worker.id not in context.idle:  # else it listens first, then asks once
        records = await context.writes.claim(await _request(context, operation, worker))
    if not records and operation.wait:
        records = await _wait_and_claim(context, operation, worker)
    # A claim may have taken the last place of a tier for which others wait.
    for tenant, queue in {(one.job.tenant, one.job.queue) for one in records if one.job.assigned is not None}:
        await rebalance(context, tenant, queue)
    context.stats.claimed(records, asyncio.get_running_loop().time())
    config = await context.flow_config.current()
    claims = [reports.claimed(record, config) for record in records]
    asking = [one for one in claims if one.job.with_results is not None]
    return await give_results(context, claims) if asking else claims


async def _request(context: EngineContext, operation: Claim, worker: Worker, stays: float = 0.0) -> ClaimRequest:
    nonce = bytes.fromhex(operation.nonce) if operation.nonce is not None else context.chance.token()
    tasks = await tasks_of(context, worker, operation.languages)
    more = {"repeatable": operation.nonce is not None, "stays": stays, "warm": operation.warm}
    return await reports.claim_request(context, worker, tasks, nonce, operation.slots, **more)


async def _wait_and_claim(context: EngineContext, operation: Claim, worker: Worker) -> list[Record]:
    loop = asyncio.get_running_loop()
    until = loop.time() + operation.wait
    topics = [f"work/{queue}" for queue in worker.queues]
    context.idle.discard(worker.id)
    async with context.store.events.listen([*topics, f"grant/{worker.id}"]) as listener:
        while True:
            # Claim before the first wait, even if it has just claimed: jobs may have arrived before it listened for
            # wake-ups. The claim stays parked in the store meanwhile. And after the last wait, to withdraw that.
            remaining = max(0.0, until - loop.time())
            request = await _request(context, operation, worker, stays=min(POLL_EVERY, remaining))
            records = await context.writes.claim(request)
            if records or not remaining:
                return records
            if worker.id in context.known_workers:
                context.idle.add(worker.id)
            await listener.wait(min(POLL_EVERY, remaining, await _next_opening(context, worker)))


async def _next_opening(context: EngineContext, worker: Worker) -> float:
    """Seconds until a rate limit or a pause lets a job start."""
    rules = (await context.flow_config.current()).rules
    if not any(one.count or one.closed_until for one in rules.limit_rules.values()):
        return POLL_EVERY
    found = await context.store.jobs.next_due(Sweep.UNBLOCK, worker.queues)
    return POLL_EVERY if found is None else max(found, LEAST_WAIT)


async def begin(context: EngineContext, operation: Begin) -> Applied:
    """The code of these jobs has started, or will when this is answered."""
    worker = await known_worker(context, operation.worker, operation.tenant)
    begun = list(zip(operation.jobs, await reports.tenants_of(context, operation), strict=True))
    beats = [reports.begun(item, tenant) for item, tenant in begun]
    replies = await context.writes.heartbeat(beats, lease_of(context, worker))
    replied = [(one, reply) for one, reply in zip(begun, replies, strict=True) if reply.held]
    held = [one for one, _ in replied]
    if ordered := [one for one, reply in replied if reply.reason in lifecycle.STOP_ORDERS]:
        ended = await reports.end_unbegun(context, ordered)
        held = [one for one in held if reports.run_of(*one) not in ended]
    return Applied(applied=[item.id for item, _ in held], refused=[one[0].id for one in begun if one not in held])


async def renew(context: EngineContext, operation: Renew) -> Renewed:
    """Extend the leases of a worker's jobs; return orders and messages for them, waiting for some if asked."""
    usage = None if operation.memory is None else WorkerUsage(operation.memory, operation.cpu)
    lease = lease_of(context, await heard_of(context, operation.worker, operation.tenant, usage))
    renewed = await renew_now(context, operation, lease)
    if not operation.wait or renewed != NOTHING_NEW:
        return renewed
    return await _renew_until_ordered(context, operation, lease)


async def _renew_until_ordered(context: EngineContext, operation: Renew, lease: float) -> Renewed:
    loop = asyncio.get_running_loop()
    until = loop.time() + operation.wait
    # Progress, output and usage are reported once.
    bare = replace(operation, jobs=[replace(item, progress=None, output=[], usage=None) for item in operation.jobs])
    async with context.store.events.listen([f"order/{operation.worker}"]) as listener:
        while True:
            # Renew once more before the first wait: an order may have come before it listened for wake-ups.
            renewed = await renew_now(context, bare, lease)
            remaining = until - loop.time()
            if renewed != NOTHING_NEW or remaining <= 0:
                return renewed
            if await listener.wait(min(POLL_EVERY, remaining)):
                # The wake-up does not name the job: it may be one that was claimed meanwhile.
                return await renew_now(context, bare, lease)


async def renew_now(context: EngineContext, operation: Renew, lease: float) -> Renewed:
    orders = await unknown_orders(context, operation)
    if not operation.jobs:
        return Renewed(worker=orders)
    check_output(operation.jobs)
    tenants = await reports.tenants_of(context, operation)
    beats = [reports.alive(item, tenant) for item, tenant in zip(operation.jobs, tenants, strict=True)]
    replies = await context.writes.heartbeat(beats, lease)
    stops = [reports.order_for(item, reply) for item, reply in zip(operation.jobs, replies, strict=True)]
    return Renewed(
        lost=[reply.id for reply in replies if not reply.held],
        orders=[order for order in stops if order is not None],
        messages=deliveries(replies),
        worker=orders,
    )


async def finish(context: EngineContext, operation: Finish) -> Applied:
    """Handle ended runs: add the jobs and files they made, write successes, decide the rest."""
    await known_worker(context, operation.worker, operation.tenant)
    for place, item in enumerate(operation.jobs):
        reports.check_finished(context, item, f"jobs[{place}]")
    reported = list(zip(operation.jobs, await reports.tenants_of(context, operation), strict=True))
    await reports.add_made(context, reported)
    ok = [(item, tenant) for item, tenant in reported if item.outcome is Verdict.OK]
    others = [(item, tenant) for item, tenant in reported if item.outcome is not Verdict.OK]
    applied: set[reports.JobRun] = set()
    if ok:
        held = await context.writes.succeed([reports.success(item, tenant) for item, tenant in ok])
        applied = {reports.run_of(item, tenant) for (item, tenant), applies in zip(ok, held, strict=True) if applies}
    if others:
        on_lost = await reports.read_on_lost(context, any(item.reason is Reason.CRASHED for item, _ in others))
        applied |= await reports.move_held(context, others, partial(reports.finish_move, context, on_lost))
    context.stats.finished((key for key, _ in applied), asyncio.get_running_loop().time())
    return reports.applied_of(reported, applied)


async def release(context: EngineContext, operation: Release) -> Applied:
    """Give jobs back. A limit that a report names is paused first: else the next job would start in between."""
    await known_worker(context, operation.worker, operation.tenant)
    reported = list(zip(operation.jobs, await reports.tenants_of(context, operation), strict=True))
    await reports.keep_left(context, reported)
    held = await hold_limits(context, reported)
    on_lost = await reports.read_on_lost(context, any(item.stopped is not None for item in operation.jobs))

    def back(item: Released, record: Record, now: datetime) -> Move:
        delay = None if key_of(record.job) in held else item.delay
        return lifecycle.release(record.job, now, delay, stopped=item.stopped, on_lost=on_lost(record.job))

    return reports.applied_of(reported, await reports.move_held(context, reported, back))


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    Claim: claim,
    Begin: begin,
    Renew: renew,
    Finish: finish,
    Release: release,
}
