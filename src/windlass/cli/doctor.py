"""`windlass doctor`: checks a store and its workers for problems.

Each check yields findings: what it saw, whether that is a problem, and what to do about it. Nothing is changed.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Annotated, Literal

from cyclopts import Parameter
from msgspec import Struct
from rich.text import Text

from windlass.addresses import facts_of, file_of, quick_check, scrub, shown
from windlass.cli import console, terminal
from windlass.cli.enqueue import serves, takes, why_not_taken
from windlass.cli.resources import pause_text
from windlass.cli.target import HERE, Queue, Target, open_queue
from windlass.engine import Engine
from windlass.model.errors import Invalid, Missing, Unavailable, WindlassError
from windlass.model.handler import HandlerEntry
from windlass.model.job import State
from windlass.model.limit import Limit, Pause
from windlass.model.match import Match
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT
from windlass.model.operations import (
    GetHealth,
    GetStats,
    Handlers,
    Limits,
    Queues,
    QueueStats,
    TaskEntry,
    Tasks,
    Workers,
)
from windlass.model.worker import Worker, counted_slots, unmet
from windlass.store.optional import StoreInfo
from windlass.system import SystemClock
from windlass.worker.contexts.processes import AppBroken, ProcessManager, describe_shared

Level = Literal["ok", "warn", "FAIL"]

STYLES: dict[Level, str] = {"ok": "green", "warn": "yellow", "FAIL": "bold red"}

ROUNDS = 5
"""Round trips that are timed; the median counts."""

SLOW = 0.05
"""Seconds of a round trip beyond which a store is far away or overloaded."""

LATE = 5.0
"""Seconds after which a scheduled job is late."""

MOST_LOOKED_AT = 10_000
"""Scheduled jobs that are checked."""

NEARLY_FULL = 0.05
"""A store is nearly full if what is left is a smaller share than this of what it takes."""

MOST_DAMAGE = 20
"""Inconsistencies that are shown."""

APART = 1.0
"""Seconds that two clocks may differ."""


class Finding(Struct, frozen=True, omit_defaults=True):
    """The result of one check."""

    what: str
    level: Level
    found: str
    advice: str = ""


class DoctorReport(Struct, frozen=True, kw_only=True):
    """All findings."""

    ok: bool
    findings: list[Finding]


async def doctor(
    app: Annotated[str, Parameter(help="Also import this app, `module:name`, and check it.")] = "",
    /,
    *,
    deep: Annotated[bool, Parameter(help="Also check the whole store for inconsistencies; slow.")] = False,
    target: Target = HERE,
) -> int:
    """Check a store and its workers for problems; exits 1 if something must be fixed.

    For example:
      windlass doctor
      windlass doctor --deep
      windlass doctor shop:app
      windlass doctor --store redis://localhost --json
    """
    findings: list[Finding] = []
    async with aclosing(_examine(target, app, deep=deep)) as found:  # also when the reader of stdout goes away
        async for finding in found:
            findings.append(finding)
            if not target.json:
                _print(finding)
    ok = all(finding.level != "FAIL" for finding in findings)
    if target.json:
        console.write_json(DoctorReport(ok=ok, findings=findings))
    return 0 if ok else 1


async def _app(target: str) -> AsyncIterator[Finding]:
    """Checks an app, imported as a worker imports it."""
    pool = ProcessManager(target)
    try:
        found = await pool.start()
    except AppBroken as fault:
        advice = f"see its traceback: windlass worker {target}"
        yield Finding("app", "FAIL", f"{target} cannot be imported: {fault}", advice)
        return
    finally:
        await pool.close()
    yield Finding("app", "ok", f"{target} has {console.plural(len(found.tasks), 'task')}")
    if found.connections:
        where, advice = describe_shared(found.connections)
        yield Finding("app", "warn", f"shares its connections to {where}", advice)


async def _examine(target: Target, app: str, *, deep: bool) -> AsyncGenerator[Finding, None]:
    if app:
        async for finding in _app(app):
            yield finding
    log = logging.getLogger("windlass.store")
    usual = log.level
    log.setLevel(logging.ERROR)  # warnings of the store are among the findings
    try:
        async with open_queue(target, every_tenant=True) as queue:
            for check in (*CHECKS, _consistency) if deep else CHECKS:
                async for finding in check(queue):
                    yield finding
    except Missing:
        raise
    except WindlassError as error:
        away = isinstance(error, Unavailable) and file_of(target.settings().store) is None
        advice = "check that it runs and that --store names it" if away else ""
        yield Finding(error.at or "store", "FAIL", error.detail, advice)
    finally:
        log.setLevel(usual)


def _print(finding: Finding) -> None:
    out = terminal.stdout()
    level = Text(f"{finding.level:4}", style=STYLES[finding.level])
    out.print(Text("  ").join([level, Text(f"{finding.what:11}"), Text(finding.found)]))
    if finding.advice:
        out.print(Text(f"{'':19}{finding.advice}", style="dim"))


async def _store(queue: Queue) -> AsyncIterator[Finding]:
    if not isinstance(queue.service, Engine):
        yield Finding("server", "ok", f"answers at {shown(queue.address)}")
        return
    facts = await facts_of(queue.service, queue.address)
    yield Finding("store", "ok", f"{facts.kind} {facts.version} at {shown(queue.address)}")
    yield Finding("durability", "warn" if facts.risk else "ok", facts.durability, facts.risk)
    if facts.exposed:
        yield Finding("permissions", "warn", facts.exposed, f"chmod 600 {queue.address}*")
    if facts.halts:
        yield Finding("cluster", "warn", "stops as a whole when a part fails", facts.halts)
    yield _clock(facts)


def _clock(facts: StoreInfo) -> Finding:
    here = SystemClock().now()
    ahead = (facts.now - (facts.host_now or here)).total_seconds()
    if ahead >= APART:
        found = f"{console.span(ahead)} ahead of its host, whose clock was set back"
        advice = f"it goes a tenth slower until both agree, in {console.span(ahead * 10)}; no time goes back"
        return Finding("clock", "warn", found, advice)
    apart = (here - facts.now).total_seconds()
    found = f"{console.span(abs(apart))} {'behind' if apart > 0 else 'ahead of'} this host"
    advice = "" if abs(apart) < APART else "due times follow the store's clock: synchronize both with NTP"
    return Finding("clock", "warn" if advice else "ok", found, advice)


async def _file(queue: Queue) -> AsyncIterator[Finding]:
    """Damaged pages: a job on one cannot be read, and other jobs may go on for long."""
    if not isinstance(queue.service, Engine) or file_of(queue.address) is None:
        return
    damage = await quick_check(queue.service)
    if damage is None:
        yield Finding("file", "ok", "not checked, because it is large: --deep does")
    elif not damage:
        yield Finding("file", "ok", "no page is damaged")
    for one in damage or []:
        yield Finding("file", "FAIL", one, "restore a backup, or start with a new file")


async def _space(queue: Queue) -> AsyncIterator[Finding]:
    """How full the store is, and what waits in the journal of a server."""
    health = await queue.service(GetHealth(tenant=EVERY_TENANT))
    if (store := health.store) is not None:
        left = "" if store.free is None else f", {console.size(store.free)} free"
        advice = "" if store.free is None or store.free > store.used * NEARLY_FULL else "make room before it is full"
        yield Finding("space", "warn" if advice else "ok", f"{console.size(store.used)} used{left}", advice)
    if (journal := health.journal) is not None:
        found = f"{console.plural(journal.waiting, 'job')} not in the store yet"
        yield Finding("journal", "warn" if journal.fault else "ok", found, journal.fault)


async def _round_trip(queue: Queue) -> AsyncIterator[Finding]:
    clock = SystemClock()
    times = []
    for _ in range(ROUNDS):
        began = clock.monotonic()
        await queue(Workers())
        times.append(clock.monotonic() - began)
    middle = sorted(times)[ROUNDS // 2]
    advice = "the store is far away or busy: each claim and report takes this long" if middle > SLOW else ""
    yield Finding("round trip", "warn" if advice else "ok", f"{middle * 1000:.1f} ms", advice)


async def _workers(queue: Queue) -> AsyncIterator[Finding]:
    alive = await queue(Workers())
    slots = sum(counted_slots(worker) for worker in alive)
    running = sum(worker.running for worker in alive)
    if alive:
        found = f"{console.plural(len(alive), 'worker')}, {running} of {console.plural(slots, 'slot')} in use"
        yield Finding("workers", "ok", found)
    else:
        yield Finding("workers", "warn", "none", "start one: windlass worker MODULE:APP")
    handled = {(one.tenant, one.task): one for one in await queue(Handlers())}
    for worker in alive:
        for unable, why in worker.unable.items():
            if unable not in {one.lang for one in handled.values()}:
                continue
            found = f"{worker.name} cannot run handlers in {unable}: {why}"
            yield Finding("workers", "warn", found, f"fix that on {worker.node}; the worker checks again by itself")
    for line in (await queue(GetStats())).queues:
        handler = handled.get((line.tenant, line.task))
        waiting = sum(line.states.get(state, 0) for state in (State.QUEUED, State.SCHEDULED))
        if waiting and not any(takes(worker, line, handler) for worker in alive):
            yield _not_taken(line, waiting, alive, handler)


def _not_taken(line: QueueStats, waiting: int, alive: list[Worker], handler: HandlerEntry | None) -> Finding:
    tenant = "" if line.tenant == DEFAULT_TENANT else f" of {line.tenant}"
    found = f"{console.plural(waiting, 'job')} of task {line.task} in {line.queue}{tenant}, and no worker"
    needed = [label for worker in alive for label in unmet(worker, line.task)] or (handler.needs if handler else [])
    if needed and any(serves(worker, line.tenant, line.queue) for worker in alive):
        advice = "start a worker where that is there: windlass worker"
        advice += f"{'' if handler else ' MODULE:APP'} -q {line.queue} --offers {','.join(dict.fromkeys(needed))}"
        return Finding("queue", "warn", f"{found}: {why_not_taken(alive, line, handler)}", advice)
    if handler is not None:
        advice = f"start a worker on a machine with {handler.lang}: windlass worker -q {line.queue}"
        return Finding("queue", "warn", f"{found} that runs {handler.lang}", advice)
    advice = f"start a worker that knows the task: windlass worker MODULE:APP -q {line.queue}"
    advice += f"; or store code for it: windlass handlers set {line.task} FILE"
    return Finding("queue", "warn", f"{found}: {why_not_taken(alive, line)}" if alive else found, advice)


async def _upkeep(queue: Queue) -> AsyncIterator[Finding]:
    """Workers and servers queue jobs when they are due: a late job means that none does."""
    now = await queue.now()
    jobs = [job async for job in queue.jobs(Match(state=["scheduled"]), most=MOST_LOOKED_AT)]
    late = [seconds for job in jobs if job.run_at and (seconds := (now - job.run_at).total_seconds()) > LATE]
    if late:
        found = f"{console.plural(len(late), 'scheduled job')} late, by up to {console.span(max(late))}"
        yield Finding("upkeep", "FAIL", found, "no process queues due jobs: start a worker")
    else:
        known = "" if len(jobs) < MOST_LOOKED_AT else f" among the first {len(jobs):,}"
        yield Finding("upkeep", "ok", f"no scheduled job is late{known}")


async def _pauses(queue: Queue) -> AsyncIterator[Finding]:
    """Paused queues, tasks and limits, whose jobs wait until they are resumed; and paused workers."""
    lines = (await queue(GetStats())).queues
    found = 0
    tasks, workers = await queue.service(Tasks(tenant=EVERY_TENANT)), await queue.service(Workers(tenant=EVERY_TENANT))
    tenants = {one.tenant for one in lines} | {one.tenant for one in tasks} | {one.tenant for one in workers}
    for tenant in sorted({EVERY_TENANT, *tenants}):
        own = [one for one in tasks if one.tenant == tenant], [one for one in workers if one.tenant == tenant]
        async for pause in _paused_of(queue, tenant, *own):
            found += 1
            yield pause
    if not found:
        yield Finding("pauses", "ok", "nothing is paused")


async def _paused_of(
    queue: Queue, tenant: str, tasks: list[TaskEntry], workers: list[Worker]
) -> AsyncIterator[Finding]:
    """A tenant's pauses."""
    whose = "" if tenant == DEFAULT_TENANT else " of all tenants" if tenant == EVERY_TENANT else f" of {tenant}"
    flag = "" if tenant == DEFAULT_TENANT else f" --tenant {tenant}"
    named: list[tuple[str, str, Pause | Limit]] = []
    named += [("queue", one.queue, one) for one in await queue.service(Queues(tenant=tenant))]
    named += [("limit", one.name, one) for one in await queue.service(Limits(tenant=tenant))]
    named += [("task", one.task, one) for one in tasks]
    named += [("worker", one.name, one.orders.pause) for one in workers]
    for kind, name, pause in named:
        if pause.paused:
            found = f"{kind} {name}{whose}: {pause_text(pause)}"
            effect = "it claims no jobs" if kind == "worker" else "its jobs wait"
            yield Finding("pauses", "warn", found, f"{effect}; resume it: windlass {kind}s resume {name}{flag}")


async def _consistency(queue: Queue) -> AsyncIterator[Finding]:
    """Checks that records, indexes and counters agree."""
    if not isinstance(queue.service, Engine):
        raise Invalid("--deep needs the store itself: run it on the server's machine with --store", at="consistency")
    found = await scrub(queue.service, queue.address)
    if found:  # Redis is read in steps: what changes meanwhile is not an inconsistency
        again = set(await scrub(queue.service, queue.address))
        found = [one for one in found if one in again]
    if not found:
        yield Finding("consistency", "ok", "records, indexes and counters agree")
        return
    advice = "stop workers and servers and check again; if it remains, restore a backup or report it"
    for one in found[:MOST_DAMAGE]:
        yield Finding("consistency", "FAIL", one, advice)
        advice = ""
    if len(found) > MOST_DAMAGE:
        yield Finding("consistency", "FAIL", f"and {len(found) - MOST_DAMAGE:,} more")


Check = Callable[[Queue], AsyncIterator[Finding]]

CHECKS: tuple[Check, ...] = (_store, _file, _space, _round_trip, _workers, _upkeep, _pauses)
