"""`windlass doctor`: looks for what is wrong with a store and whoever works on it.

Each look gives findings: what was found, whether it is well, and what to do if not. Nothing is changed.
"""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Literal, NamedTuple

from cyclopts import Parameter
from msgspec import Struct
from rich.text import Text

from windlass.addresses import facts_of, file_of, scrub, shown
from windlass.cli import saying
from windlass.cli.pausing import told
from windlass.cli.place import HERE, Place, Queue, opened
from windlass.cli.queues import nobody_takes, takes
from windlass.engine import Engine
from windlass.model.errors import Invalid, Missing, Unavailable, WindlassError
from windlass.model.job import Job, State
from windlass.model.limit import Limit, Pause
from windlass.model.match import Match
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT
from windlass.model.operations import MOST_AT_ONCE, GetStats, GetTask, Handlers, Limits, List, Queues, Workers
from windlass.system import SystemClock
from windlass.worker.pool import AppBroken, Pool, shared

Level = Literal["ok", "warn", "FAIL"]

STYLES: dict[Level, str] = {"ok": "green", "warn": "yellow", "FAIL": "bold red"}

ROUNDS = 5
"""Round trips that are timed; the middle one counts."""

SLOW = 0.05
"""Seconds of a round trip beyond which a store is far away or overworked."""

LATE = 5.0
"""Seconds after which a job that is due should long have been queued."""

MOST_LOOKED_AT = 10_000
"""Scheduled jobs that are looked at."""

MOST_TASKS = 200
"""Tasks of one tenant that are asked whether they are paused."""

MOST_DAMAGE = 20
"""Faults of a store that are shown."""

APART = 1.0
"""Seconds that two clocks may differ."""


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was looked at."""

    what: str
    level: Level
    found: str
    advice: str = ""


class Report(Struct, frozen=True, kw_only=True):
    """All findings."""

    ok: bool
    findings: list[Finding]


async def doctor(
    app: Annotated[
        str, Parameter(help="Also import this app, `module:name`, and look at what it does meanwhile.")
    ] = "",
    /,
    *,
    deep: Annotated[bool, Parameter(help="Also read the whole store and check it for damage; slow.")] = False,
    place: Place = HERE,
) -> int:
    """Look for what is wrong with a store and its workers; exits 1 if something must be mended.

    For example:
      windlass doctor
      windlass doctor --deep
      windlass doctor shop:app
      windlass doctor --store redis://localhost --json
    """
    findings: list[Finding] = []
    async for finding in _examine(place, app, deep=deep):
        findings.append(finding)
        if not place.json:
            _print(finding)
    well = all(finding.level != "FAIL" for finding in findings)
    if place.json:
        saying.write_json(Report(ok=well, findings=findings))
    return 0 if well else 1


async def _app(target: str) -> AsyncIterator[Finding]:
    """What is wrong with an app, imported as a worker does it."""
    pool = Pool(target)
    try:
        found = await pool.start()
    except AppBroken as fault:
        yield Finding(
            what="app",
            level="FAIL",
            found=f"{target} cannot be imported: {fault}",
            advice="see its traceback: windlass worker " + target,
        )
        return
    finally:
        await pool.close()
    yield Finding(what="app", level="ok", found=f"{target} has {saying.plural(len(found.tasks), 'task')}")
    if found.connections:
        where, advice = shared(found.connections)
        yield Finding(what="app", level="warn", found=f"shares its connections to {where}", advice=advice)


async def _examine(place: Place, app: str, *, deep: bool) -> AsyncIterator[Finding]:
    if app:
        async for finding in _app(app):
            yield finding
    log = logging.getLogger("windlass.store")
    usual = log.level
    log.setLevel(logging.ERROR)  # what a store warns of is among the findings
    try:
        async with opened(place, every_tenant=True) as queue:
            for look in (*LOOKS, _consistency) if deep else LOOKS:
                async for finding in look(queue):
                    yield finding
    except Missing:
        raise
    except WindlassError as error:
        away = isinstance(error, Unavailable) and file_of(place.settle().store) is None
        advice = "see that it runs, and that --store names it" if away else ""
        yield Finding(what=error.at or "store", level="FAIL", found=error.detail, advice=advice)
    finally:
        log.setLevel(usual)


def _print(finding: Finding) -> None:
    paper = saying.paper()
    level = Text(f"{finding.level:4}", style=STYLES[finding.level])
    paper.print(Text("  ").join([level, Text(f"{finding.what:11}"), Text(finding.found)]))
    if finding.advice:
        paper.print(Text(f"{'':19}{finding.advice}", style="dim"))


async def _store(queue: Queue) -> AsyncIterator[Finding]:
    if not isinstance(queue.service, Engine):
        yield Finding(what="server", level="ok", found=f"answers at {shown(queue.address)}")
        return
    facts = await facts_of(queue.service, queue.address)
    yield Finding(what="store", level="ok", found=f"{facts.kind} {facts.version} at {shown(queue.address)}")
    level: Level = "warn" if facts.risk else "ok"
    yield Finding(what="durability", level=level, found=facts.durability, advice=facts.risk)
    if facts.exposed:
        yield Finding(what="permissions", level="warn", found=facts.exposed, advice=f"chmod 600 {queue.address}*")
    if facts.halts:
        yield Finding(what="cluster", level="warn", found="does not go on in part", advice=facts.halts)
    apart = (SystemClock().now() - facts.now).total_seconds()
    yield Finding(
        what="clock",
        level="ok" if abs(apart) < APART else "warn",
        found=f"{saying.span(abs(apart))} {'behind' if apart > 0 else 'ahead of'} this host",
        advice="" if abs(apart) < APART else "due times go by the store's clock: set both by NTP",
    )


async def _round_trip(queue: Queue) -> AsyncIterator[Finding]:
    clock = SystemClock()
    times = []
    for _ in range(ROUNDS):
        began = clock.monotonic()
        await queue(Workers())
        times.append(clock.monotonic() - began)
    middle = sorted(times)[ROUNDS // 2]
    slow = middle > SLOW
    yield Finding(
        what="round trip",
        level="warn" if slow else "ok",
        found=f"{middle * 1000:.1f} ms",
        advice="the store is far away, or busy: each claim and report waits this long" if slow else "",
    )


async def _workers(queue: Queue) -> AsyncIterator[Finding]:
    alive = await queue(Workers())
    slots = sum(worker.slots for worker in alive)
    running = sum(worker.running for worker in alive)
    if alive:
        found = f"{saying.plural(len(alive), 'worker')}, {running} of {saying.plural(slots, 'slot')} in use"
        yield Finding(what="workers", level="ok", found=found)
    else:
        yield Finding(what="workers", level="warn", found="none", advice="start one: windlass worker MODULE:APP")
    handled = {(one.tenant, one.task): one.lang for one in await queue(Handlers())}
    for worker in alive:
        for unable, why in worker.unable.items():
            if unable not in handled.values():
                continue
            yield Finding(
                what="workers",
                level="warn",
                found=f"{worker.name} takes no jobs of handlers in {unable}: {why}",
                advice=f"mend that on {worker.node}; it looks again by itself",
            )
    for line in (await queue(GetStats())).queues:
        lang = handled.get((line.tenant, line.task))
        waiting = sum(line.states.get(state, 0) for state in (State.QUEUED, State.SCHEDULED))
        if waiting and not any(takes(worker, line, lang) for worker in alive):
            tenant = "" if line.tenant == "default" else f" of {line.tenant}"
            yield Finding(
                what="queue",
                level="warn",
                found=f"{saying.plural(waiting, 'job')} of task {line.task} in {line.queue}{tenant}, and no worker"
                + (f" that runs {lang}" if lang is not None else f": {nobody_takes(alive, line)}" if alive else ""),
                advice=f"start one for its handler where {lang} works: windlass worker -q {line.queue}"
                if lang is not None
                else f"start one that knows the task: windlass worker MODULE:APP -q {line.queue}; "
                f"or give it code: windlass handlers set {line.task} FILE",
            )


async def _upkeep(queue: Queue) -> AsyncIterator[Finding]:
    """Whoever does upkeep queues due jobs at once; a job that is late says that nobody does."""
    now = SystemClock().now()
    if isinstance(queue.service, Engine):
        now = (await facts_of(queue.service, queue.address)).now
    looked = await _scheduled(queue)
    late = [job for job in looked.jobs if job.run_at and (now - job.run_at).total_seconds() > LATE]
    if not late:
        known = "" if looked.all else f" among the first {len(looked.jobs):,}"
        yield Finding(what="upkeep", level="ok", found=f"no scheduled job is late{known}")
        return
    most = saying.span(max((now - job.run_at).total_seconds() for job in late if job.run_at))
    yield Finding(
        what="upkeep",
        level="FAIL",
        found=f"{saying.plural(len(late), 'scheduled job')} late, by up to {most}",
        advice="nobody queues jobs whose time has come: start a worker",
    )


class Scheduled(NamedTuple):
    """Scheduled jobs, and whether these are all."""

    jobs: list[Job]
    all: bool


async def _scheduled(queue: Queue) -> Scheduled:
    found: list[Job] = []
    after = None
    while len(found) < MOST_LOOKED_AT:
        page = await queue(List(match=Match(state=["scheduled"]), limit=MOST_AT_ONCE, after=after))
        found += page.jobs
        if (after := page.next) is None:
            return Scheduled(found, all=True)
    return Scheduled(found, all=False)


async def _pauses(queue: Queue) -> AsyncIterator[Finding]:
    """Whatever somebody has told to rest: jobs that wait for it wait until it is resumed."""
    lines = (await queue(GetStats())).queues
    found = 0
    for tenant in sorted({EVERY_TENANT, *(line.tenant for line in lines)}):
        async for pause in _paused_of(queue, tenant, {line.task for line in lines if line.tenant == tenant}):
            found += 1
            yield pause
    if not found:
        yield Finding(what="pauses", level="ok", found="nothing is paused")


async def _paused_of(queue: Queue, tenant: str, tasks: set[str]) -> AsyncIterator[Finding]:
    """A tenant's pauses; tasks are asked for one by one, so these are the first of them only."""
    whose = "" if tenant == DEFAULT_TENANT else " of everybody" if tenant == EVERY_TENANT else f" of {tenant}"
    flag = "" if tenant == DEFAULT_TENANT else f" --tenant {tenant}"
    named: list[tuple[str, str, Pause | Limit]] = []
    named += [("queue", one.queue, one) for one in await queue.service(Queues(tenant=tenant))]
    named += [("limit", one.name, one) for one in await queue.service(Limits(tenant=tenant))]
    for task in sorted(tasks)[:MOST_TASKS]:
        named.append(("task", task, await queue.service(GetTask(tenant=tenant, task=task))))
    for kind, name, pause in named:
        if pause.paused:
            yield Finding(
                what="pauses",
                level="warn",
                found=f"{kind} {name}{whose}: {told(pause)}",
                advice=f"its jobs wait; let them go on: windlass {kind}s resume {name}{flag}",
            )


async def _consistency(queue: Queue) -> AsyncIterator[Finding]:
    """Whether records, indexes and counters agree."""
    if not isinstance(queue.service, Engine):
        raise Invalid("a server cannot be checked so: run it on the server's machine, with --store", at="--deep")
    found = await scrub(queue.service, queue.address)
    if found:  # in Redis it is read in steps: what changes meanwhile is no fault
        again = set(await scrub(queue.service, queue.address))
        found = [one for one in found if one in again]
    if not found:
        yield Finding(what="consistency", level="ok", found="records, indexes and counters agree")
        return
    advice = "stop workers and servers and look again; if it stays, restore a backup or report it"
    for one in found[:MOST_DAMAGE]:
        yield Finding(what="consistency", level="FAIL", found=one, advice=advice)
        advice = ""
    if len(found) > MOST_DAMAGE:
        yield Finding(what="consistency", level="FAIL", found=f"and {len(found) - MOST_DAMAGE:,} more")


LOOKS: tuple[Callable[[Queue], AsyncIterator[Finding]], ...] = (_store, _round_trip, _workers, _upkeep, _pauses)
