"""Answers to the operations of workers: register, claim, begin, renew, finish, release.

A success needs no decision and is one round trip for a whole batch. Every other outcome is read, decided by the
lifecycle and written under the guard of what was read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from windlass.engine import drafts, task_options
from windlass.engine.desk import Desk, fence, several
from windlass.engine.following import add
from windlass.engine.handlers import tasks_of
from windlass.engine.jobs import LOOK_AGAIN
from windlass.engine.output import check_output
from windlass.engine.rules import keep_caps
from windlass.engine.sending import deliveries
from windlass.engine.tiers import attend
from windlass.model import lifecycle, wire
from windlass.model.errors import Invalid, Missing, PartAway
from windlass.model.job import NO_HANDLER, Error, HandlerRun, Reason
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
    Held,
    Operation,
    Order,
    Register,
    Registered,
    Release,
    Renew,
    Renewed,
    Unregister,
    Unrun,
    Workers,
)
from windlass.model.push import read_url
from windlass.model.worker import NewWorker, Worker
from windlass.store import Done, Record, Touch, Touched, Turn, Wish
from windlass.store.flow import BAR, KEY

SECRETS = "push.secret"
"""Where the secrets of workers are kept to which jobs are sent."""

LEAST_WAIT = 0.001

NOTHING_NEW = Renewed()

Run = tuple[JobKey, bytes]
"""A job, and the token under which it runs."""

WORKERS_REASONS = (Reason.TIMEOUT, Reason.CRASHED, Reason.MEMORY, Reason.OUTPUT, Reason.DISK)
"""What only a worker can know of a run."""


async def register(desk: Desk, operation: Register) -> Registered:
    id = operation.id or text_id(desk.chance.uuid7())
    if operation.worker.tasks == [] and not operation.worker.handlers:
        raise Invalid("a worker that knows no task and runs no handlers has nothing to do", at="worker.tasks")
    if operation.worker.url is not None:
        read_url(operation.worker.url)
    if operation.id is not None:
        known = await _known(desk, operation.id, operation.tenant)
        if known.url != operation.worker.url:
            raise Invalid("its address cannot be changed: register it anew", at="worker.url")
    await task_options.register(desk, operation.tenant, operation.worker)
    about = replace(operation.worker, options=None)
    lease = lease_of(desk, operation.worker)
    await desk.store.enlist(id, operation.tenant, about, lease)
    if operation.id is not None and (changed := await _heard_of(desk, id, operation.tenant)) is not None:
        desk.remember(changed)  # only now: a store that is away must not make us forget what we know of the worker
    await keep_caps(desk)
    desk.experience.manned(operation.worker.queues)
    if operation.worker.url is None or operation.id is not None:
        return Registered(worker=id, lease=lease)
    # Kept after the worker: whoever finds a secret without a worker may throw it away.
    secret = b"".join(desk.chance.token() for _ in range(4)).hex()
    await desk.shelf.put(SECRETS, id, secret.encode())
    return Registered(worker=id, lease=lease, secret=secret)


def lease_of(desk: Desk, worker: NewWorker | None) -> float:
    """Seconds after which a worker that says nothing is taken for lost, and its jobs with it."""
    own = None if worker is None else worker.lease
    return desk.settings.lease if own is None else min(own, desk.settings.lease)


async def workers(desk: Desk, operation: Workers) -> list[Worker]:
    """Those that serve a tenant: its own, and those of all tenants; without an address that is not its to know."""
    tenant = operation.tenant
    found = await desk.store.workers(EVERY_TENANT)
    if tenant == EVERY_TENANT:
        return found
    serving = [worker for worker in found if worker.tenant in (EVERY_TENANT, tenant)]
    return [worker if worker.tenant == tenant else replace(worker, url=None) for worker in serving]


async def unregister(desk: Desk, operation: Unregister) -> None:
    await _known(desk, operation.worker, operation.tenant)
    desk.forget_worker(operation.worker)
    desk.hands.pop(operation.worker, None)
    if not await desk.store.dismiss(operation.worker):
        raise _stranger(operation.worker)
    await keep_caps(desk)


async def claim(desk: Desk, operation: Claim) -> list[Claimed]:
    worker = await _known(desk, operation.worker, operation.tenant)
    records: list[Record] = []
    if not operation.wait or worker.id not in desk.idle:
        records = await desk.store.claim(await _wish(desk, operation, worker))
    if not records and operation.wait:
        records = await _claim_soon(desk, operation, worker)
    await _attend_after(desk, records)
    desk.experience.claimed(records, asyncio.get_running_loop().time())
    return _handed_out(records)


def _handed_out(records: Sequence[Record]) -> list[Claimed]:
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


async def _attend_after(desk: Desk, records: Sequence[Record]) -> None:
    """A claim may have taken the last place for which others wait."""
    for tenant, queue in {(one.job.tenant, one.job.queue) for one in records if one.job.assigned is not None}:
        await attend(desk, tenant, queue)


async def _wish(desk: Desk, operation: Claim, worker: Worker, stays: float = 0.0) -> Wish:
    named = operation.nonce is not None
    nonce = bytes.fromhex(operation.nonce) if operation.nonce is not None else desk.chance.token()
    tasks = await tasks_of(desk, worker, operation.languages)
    slots = operation.slots if tasks is None or tasks else 0  # to a store, no tasks would be any
    able = worker if tasks is worker.tasks else replace(worker, tasks=tasks)
    lease, warm = lease_of(desk, worker), operation.warm
    regime = await desk.regimes.current()
    turns, in_order = turns_of(worker), regime.in_order(worker.queues)
    lasts = regime.has_never_twice(worker.queues)
    return Wish(able, nonce, slots, lease, named, stays=stays, warm=warm, turns=turns, in_order=in_order, lasts=lasts)


def turns_of(worker: Worker) -> frozenset[Turn]:
    """Who takes turns in a worker's claims unless a queue's settings say otherwise."""
    queues: tuple[Turn, ...] = ("queues",) if worker.in_turn and len(worker.queues) > 1 else ()
    tenants: tuple[Turn, ...] = ("tenants",) if worker.tenant == EVERY_TENANT else ()
    tasks: tuple[Turn, ...] = ("tasks",) if worker.handlers and worker.tasks == [] else ()
    return frozenset((*queues, *tenants, *tasks))


async def _claim_soon(desk: Desk, operation: Claim, worker: Worker) -> list[Record]:
    loop = asyncio.get_running_loop()
    until = loop.time() + operation.wait
    topics = [f"work/{queue}" for queue in worker.queues]
    hand = desk.hands.get(worker.id)
    desk.idle.discard(worker.id)
    async with desk.store.listen([*topics, f"wish/{worker.id}"]) as listener:
        while True:
            # Claimed once more before the first wait: work may have come before anybody listened. And after the last:
            # no wish is left behind.
            remaining = max(0.0, until - loop.time())
            wish = await _wish(desk, operation, worker, stays=min(LOOK_AGAIN, remaining))
            if hand is not None:
                listener.hand_over(wish, lambda glimpse, read: hand(glimpse, lambda: _handed_out(read())))
            records = await desk.store.claim(wish)
            if records or not remaining:
                return records
            if worker.id in desk.known_workers:
                desk.idle.add(worker.id)
            await listener.wait(min(LOOK_AGAIN, remaining, await _opening(desk, worker)))


async def _opening(desk: Desk, worker: Worker) -> float:
    """Seconds until something that was passed by may start, by the clock alone."""
    if not any(one.count or one.closed_until for one in (await desk.regimes.current()).rules.allowances.values()):
        return LOOK_AGAIN
    found = await desk.flow.opening(worker.queues)
    return LOOK_AGAIN if found is None else max(found, LEAST_WAIT)


async def begin(desk: Desk, operation: Begin) -> Applied:
    worker = await _known(desk, operation.worker, operation.tenant)
    tenants = await _tenants(desk, operation)
    touches = [_began(item, tenant) for item, tenant in zip(operation.jobs, tenants, strict=True)]
    touched = await desk.store.touch(touches, lease_of(desk, worker))
    return _applied(operation.jobs, [answer.held for answer in touched])


def _began(item: Began, tenant: str) -> Touch:
    return Touch(item.id, tenant, fence(item.token), pid=item.pid, ran=_ran(item))


def _ran(item: Began | Finished) -> HandlerRun:
    if item.sandbox is None and item.handler_version is None:
        return NO_HANDLER
    return HandlerRun(item.sandbox, item.handler_version)


def _alive(item: Alive, tenant: str) -> Touch:
    return Touch(item.id, tenant, fence(item.token), progress=item.progress, output=item.output)


async def _tenants(desk: Desk, operation: Begin | Renew | Finish | Release) -> list[str]:
    """Whose each of the jobs is that a worker speaks of: its own tenant's, or of one that serves all as it says."""
    own, items = operation.tenant, operation.jobs
    for place, item in enumerate(items):
        if not is_id(item.id):
            check_id(item.id, at=f"jobs[{place}].id")
        if own != EVERY_TENANT and item.tenant not in (None, own):
            raise Invalid(f"a worker of tenant {own} has no jobs of others", at=f"jobs[{place}].tenant")
    if own != EVERY_TENANT:
        return [own] * len(items)
    unnamed = {item.id: "" for item in items if item.tenant is None}
    for id, owners in zip(unnamed, await desk.directory.owners([*unnamed]), strict=True) if unnamed else ():
        if len(owners) > 1:
            place = next(place for place, item in enumerate(items) if item.id == id and item.tenant is None)
            raise several(id, owners, at=f"jobs[{place}].tenant")
        unnamed[id] = owners[0] if owners else DEFAULT_TENANT  # nobody's: it is refused like any that is not held
    return [item.tenant or unnamed[item.id] for item in items]


async def renew(desk: Desk, operation: Renew) -> Renewed:
    lease = lease_of(desk, await _greet(desk, operation))
    renewed = await renew_now(desk, operation, lease)
    if not operation.wait or renewed != NOTHING_NEW:
        return renewed
    return await _renew_until_ordered(desk, operation, lease)


async def _greet(desk: Desk, operation: Renew) -> Worker:
    """Note that a worker lives. Where the part of the store is away that would, one that is known goes on: if it is
    forgotten meanwhile, it hears of it when that part is back.
    """
    try:
        found = await _heard_of(desk, operation.worker, operation.tenant)
    except PartAway:
        found = desk.known_workers.get(operation.worker)
        if found is None or found.tenant != operation.tenant:
            raise
    if found is None:
        desk.forget_worker(operation.worker)
        raise _stranger(operation.worker)
    return found


async def _heard_of(desk: Desk, id: str, tenant: str) -> Worker | None:
    """Note that a worker lives; null = there is none, or none any more."""
    lease = lease_of(desk, desk.known_workers.get(id))
    found = await desk.store.greet(id, tenant, lease)
    if found is not None and lease_of(desk, found) < lease:  # it was not known here that it may be silent no longer
        found = await desk.store.greet(id, tenant, lease_of(desk, found))
    return found


async def _renew_until_ordered(desk: Desk, operation: Renew, lease: float) -> Renewed:
    loop = asyncio.get_running_loop()
    until = loop.time() + operation.wait
    bare = replace(
        operation, jobs=[replace(item, progress=None, output=[]) for item in operation.jobs]
    )  # news is told once
    async with desk.store.listen([f"order/{operation.worker}"]) as listener:
        while True:
            # Looked at once more before the first wait: an order may have come before anybody listened.
            renewed = await renew_now(desk, bare, lease)
            remaining = until - loop.time()
            if renewed != NOTHING_NEW or remaining <= 0:
                return renewed
            if await listener.wait(min(LOOK_AGAIN, remaining)):
                # Of which job this speaks is not said: it may be one that was claimed meanwhile.
                return await renew_now(desk, bare, lease)


async def renew_now(desk: Desk, operation: Renew, lease: float) -> Renewed:
    if not operation.jobs:
        return Renewed()
    check_output(operation.jobs)
    tenants = await _tenants(desk, operation)
    touches = [_alive(item, tenant) for item, tenant in zip(operation.jobs, tenants, strict=True)]
    touched = await desk.store.touch(touches, lease)
    return Renewed(
        lost=[answer.id for answer in touched if not answer.held],
        orders=[
            order
            for item, answer in zip(operation.jobs, touched, strict=True)
            if (order := _order(item, answer)) is not None
        ],
        messages=await deliveries(desk, operation.jobs, tenants),
    )


def _order(item: Alive, answer: Touched) -> Order | None:
    """What the worker of a job must be told that it does not know."""
    if answer.reason in lifecycle.ORDERS:
        return Order(id=answer.id, order="halt" if answer.reason is Reason.HALTED else "cancel")
    if answer.reason is Reason.SHRUNK and answer.deadline != item.deadline:
        return Order(id=answer.id, order="deadline", deadline=answer.deadline)
    return None


async def finish(desk: Desk, operation: Finish) -> Applied:
    await _known(desk, operation.worker, operation.tenant)
    for place, item in enumerate(operation.jobs):
        if _says_more(item):
            _check_finished(desk, item, f"jobs[{place}]")
    tenants = await _tenants(desk, operation)
    reports = list(zip(operation.jobs, tenants, strict=True))
    if any(item.jobs for item in operation.jobs):
        await _spawn(desk, reports)
    dones = [_done(item, tenant) for item, tenant in reports if item.outcome is Verdict.OK]
    applied: set[Run] = set()
    if dones:
        verdicts = await desk.store.succeed(dones)
        applied = {(key_of(done), done.token) for done, held in zip(dones, verdicts, strict=True) if held}
    others = [(item, tenant) for item, tenant in reports if item.outcome is not Verdict.OK]
    applied |= await _settle_held(desk, others, lambda item, record, now: _move(desk, item, record, now))
    desk.experience.finished((key for key, _ in applied), asyncio.get_running_loop().time())
    return _report(reports, applied)


def _says_more(item: Finished) -> bool:
    """Whether a report has more to check than that a job ended so."""
    return item.code is not None or item.reason is not None or bool(item.jobs) or isinstance(item.result, Raw)


def _check_finished(desk: Desk, item: Finished, at: str) -> None:
    if item.code is not None and item.code // 100 != CODES[item.outcome] // 100:
        meant = {number // 100: verdict for verdict, number in CODES.items()}.get(item.code // 100)
        hint = f"it means {meant}" if meant else "codes are 1xx, 2xx, 4xx or 5xx"
        raise Invalid(f"code {item.code} does not go with outcome {item.outcome}: {hint}", at=f"{at}.code")
    if item.reason is not None and (item.reason not in WORKERS_REASONS or item.outcome is Verdict.OK):
        known = ", ".join(WORKERS_REASONS)
        raise Invalid(f"of what did not go well a worker may say {known}, nothing else", at=f"{at}.reason")
    if item.jobs and item.outcome is not Verdict.OK:
        raise Invalid("only a job that ended well makes new jobs", at=f"{at}.jobs")
    if len(item.jobs) > MOST_SPAWNED:
        raise Invalid(f"{len(item.jobs)} new jobs of one job, at most {MOST_SPAWNED} are allowed", at=f"{at}.jobs")
    for place, new in enumerate(item.jobs):
        drafts.check(desk, new, f"{at}.jobs[{place}]")
    if isinstance(item.result, Raw):
        wire.check_size(item.result, desk.settings.most_result, at=f"{at}.result")


async def _spawn(desk: Desk, items: Sequence[tuple[Finished, str]]) -> None:
    """Add the jobs that ended jobs have made, before those are written as ended: so none is lost by a crash in between.

    Their ids depend on their parent and their place alone, so that a report sent again, or a second run, adds nothing.
    A lease that is lost between the read and the add leaves them there though the report is refused: the next run of
    the parent finds them made.
    """
    reports = {_run(item, tenant): item for item, tenant in reversed(items)}
    found = (await desk.store.read(list(dict.fromkeys(key for key, _ in reports)))).records
    held = [(one.job, reports.get((key_of(one.job), one.token or b""))) for one in found if one is not None]
    made = [
        drafts.child(desk, job.tenant, job.id, f"jobs[{place}]", new)
        for job, item in held
        if item is not None
        for place, new in enumerate(item.jobs)
    ]
    await add(desk, made)


def _done(item: Finished, tenant: str) -> Done:
    result = bytes(item.result) if isinstance(item.result, Raw) else None
    code = item.code or CODES[Verdict.OK]
    return Done(item.id, tenant, fence(item.token), code, result, item.content_type, item.finished_at, _ran(item))


def _move(desk: Desk, item: Finished, record: Record, now: datetime) -> Move:
    error = item.error or Error()
    outcome = Outcome(
        verdict=item.outcome,
        code=item.code,
        error=replace(error, message=error.message or item.message),
        reason=item.reason,
        delay=item.delay,
    )
    move = lifecycle.finish(record.job, outcome, now, desk.chance.fraction())
    return replace(move, finished_at=item.finished_at, ran=_ran(item))


async def release(desk: Desk, operation: Release) -> Applied:
    await _known(desk, operation.worker, operation.tenant)

    reports = list(zip(operation.jobs, await _tenants(desk, operation), strict=True))
    resting = await _let_rest(desk, reports) if any(item.rests is not None for item in operation.jobs) else set()

    def back(item: Unrun, record: Record, now: datetime) -> Move:
        return lifecycle.release(record.job, now, None if key_of(record.job) in resting else item.delay)

    return _report(reports, await _settle_held(desk, reports, back))


async def _let_rest(desk: Desk, items: Sequence[tuple[Unrun, str]]) -> set[JobKey]:
    """Start nothing of these jobs' limits for as long as each of them says; the jobs that have such a limit.

    Before they are given back: or the next one would start in between.
    """
    given = {JobKey(item.id, tenant): item for item, tenant in items if item.rests is not None and item.delay}
    held = [one for one in (await desk.store.read(list(given))).records if one and one.token]
    found = set()
    for record in held:
        item = given[key_of(record.job)]
        if record.token != fence(item.token):
            continue
        for bucket in record.group.split(BAR)[1:]:
            name = bucket.partition(KEY)[0].partition("/")[2]
            if item.rests in ("", name):
                await desk.flow.hold(bucket, item.delay or 0.0)
                found.add(key_of(record.job))
    return found


async def _settle_held(
    desk: Desk, items: Sequence[tuple[Any, str]], decide: Callable[[Any, Record, datetime], Move]
) -> set[Run]:
    """Decide and write moves of jobs that a worker holds; the runs that it did hold."""
    reports = {_run(item, tenant): item for item, tenant in reversed(items)}  # the first of two on one run counts
    applied: set[Run] = set()

    def fenced(record: Record, now: datetime) -> Move | None:
        run = (key_of(record.job), record.token or b"")
        if record.token is None or run not in reports:
            return None
        applied.add(run)
        return decide(reports[run], record, now)

    changed = await desk.settle([key for key, _ in reports], fenced)
    return {run for run in applied if run[0] in changed}


def _applied(items: Sequence[Held], held: Sequence[bool]) -> Applied:
    pairs = list(zip(items, held, strict=True))
    return Applied(applied=[item.id for item, ok in pairs if ok], refused=[item.id for item, ok in pairs if not ok])


def _report(reports: Sequence[tuple[Held, str]], applied: set[Run]) -> Applied:
    if len(applied) == len(reports):  # so no two of them are the same
        return Applied(applied=[item.id for item, _ in reports], refused=[])
    held = []
    for item, tenant in reports:
        run = _run(item, tenant)
        held.append(run in applied)
        applied.discard(run)  # a second report on the same run changes nothing
    return _applied([item for item, _ in reports], held)


def _run(item: Held, tenant: str) -> Run:
    return JobKey(item.id, tenant), fence(item.token)


async def _known(desk: Desk, id: str, tenant: str) -> Worker:
    worker = desk.known_workers.get(id) or await _heard_of(desk, id, tenant)
    if worker is None or worker.tenant != tenant:
        raise _stranger(id)
    desk.remember(worker)
    return worker


def _stranger(id: str) -> Missing:
    return Missing(f"there is no worker {id[:60]}: it was silent for a whole lease, or never registered", at="worker")


ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = {
    Register: register,
    Workers: workers,
    Unregister: unregister,
    Claim: claim,
    Begin: begin,
    Renew: renew,
    Finish: finish,
    Release: release,
}
