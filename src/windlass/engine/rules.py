"""Puts in force what is kept of limits, queues and pauses.

Each change is one compare-and-set of all rules, so that two who change something at once both find their change in
force. Where jobs that are here already may belong to other groups than before, the lanes concerned are shut until they
have been sorted: a limit holds from the moment it is in force, for those that wait too. Whoever dies in between leaves
a note in the rules, and the duty `sort_out` goes on.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from windlass.engine.desk import MOST_ROUNDS, Desk
from windlass.engine.groups import allowance_name
from windlass.engine.regime import Regime
from windlass.model.errors import Conflict
from windlass.model.job import PENDING
from windlass.model.limit import Limit, Pause
from windlass.model.names import EVERY_TENANT, JobKey, key_of
from windlass.model.queue import QueueSettings
from windlass.model.worker import Worker
from windlass.policy.tiers import caps
from windlass.store import Record, Scope
from windlass.store.flow import ANY, Allowance, Level, Regroup, Rules

FOR_EVER = datetime(2200, 1, 1, tzinfo=UTC)
"""As long as nobody says otherwise; stores count microseconds, and this is a number that all of them can tell."""

MOST_SORTED = 20_000
"""Jobs that whoever changes a limit sorts before it answers; a duty does the rest."""

AT_ONCE = 1000


async def put_in_force(desk: Desk) -> Regime:
    """Derive the rules from what is kept, until what was derived is what is in force."""
    for _ in range(MOST_ROUNDS):
        before = await desk.flow.rules()
        kept = await desk.regimes.kept(before)
        rules = derive(before, kept, await desk.store.workers(EVERY_TENANT))
        if rules == before or await desk.flow.regulate(rules):
            desk.regimes.forget()
            return await desk.regimes.current()
    raise Conflict("others change the rules at the same time: try again")


async def keep_caps(desk: Desk) -> int:
    """Let the caps of tiers follow the workers that come and go."""
    regime = await desk.regimes.refreshed()
    if regime.rules.tiers and any(settings.tiers for settings in regime.queues.values()):
        await put_in_force(desk)
    return 0


def derive(before: Rules, kept: Regime, workers: Sequence[Worker]) -> Rules:
    """The rules that follow from what is kept; the same as before if nothing has changed."""
    marks = dict(_marks(kept))
    moved = {name for name, mark in marks.items() if before.marks.get(name) != mark}
    reached = {_pattern(some[name]) for some in (before.marks, marks) for name in moved if name in some}
    sorting = sorted({*before.sorting, *reached})
    lines = {name: settings for name, settings in kept.queues.items() if settings.tiers}
    made = Rules(
        edition=before.edition,
        grouping=before.grouping,
        allowances={allowance_name(limit): _allowance(limit) for limit in kept.limits},
        tiers={name: _levels(name, settings, workers) for name, settings in lines.items()},
        fair_queues={
            name.partition(",")[2]: dict(settings.weights)
            for name, settings in kept.queues.items()
            if settings.policy == "fair" and name.startswith(f"{EVERY_TENANT},")
        },
        fair_lines={
            (ANY + name[1:] if name.startswith(f"{EVERY_TENANT},") else name): dict(settings.weights)
            for name, settings in kept.queues.items()
            if settings.policy == "fair"
        },
        shut=dict(_shut(kept, sorting)),
        sorting=sorting,
        marks=marks | _retired(before, marks) | _defaults(kept),
    )
    if made == before:
        return before
    # Whoever takes jobs in must know of new groups, and of what a queue now gives to its jobs.
    grouping = before.grouping + (made.marks != before.marks)
    return replace(made, edition=before.edition + 1, grouping=grouping)


def _allowance(limit: Limit) -> Allowance:
    queue = limit.match.queue
    return Allowance(
        running=limit.running,
        count=limit.rate.count if limit.rate else None,
        per=limit.rate.per if limit.rate else 1.0,
        burst=limit.rate.burst if limit.rate else None,
        queue=queue if isinstance(queue, str) else None,
        closed_until=(limit.until or FOR_EVER) if limit.paused else None,
    )


def _levels(line: str, settings: QueueSettings, workers: Sequence[Worker]) -> list[Level]:
    sizes = caps(settings.tiers, live_slots(line, workers))
    return [
        Level(name=tier.name, seconds=tier.seconds, cap=cap) for tier, cap in zip(settings.tiers, sizes, strict=True)
    ]


def live_slots(line: str, workers: Sequence[Worker]) -> int:
    """How many jobs of a line the live workers could run at once."""
    tenant, _, queue = line.partition(",")
    return sum(one.slots for one in workers if queue in one.queues and one.tenant in (tenant, EVERY_TENANT))


def _shut(kept: Regime, sorting: Iterable[str]) -> Iterable[tuple[str, datetime]]:
    for name, settings in kept.queues.items():
        if settings.paused:
            tenant, _, queue = name.partition(",")
            yield f"{_part(tenant)},{queue},{ANY}", settings.until or FOR_EVER
    for name, pause in kept.tasks.items():
        if pause.paused:
            tenant, _, task = name.partition(",")
            yield f"{_part(tenant)},{ANY},{task}", pause.until or FOR_EVER
    for pattern in sorting:
        yield pattern, FOR_EVER


def _part(tenant: str) -> str:
    return ANY if tenant == EVERY_TENANT else tenant


def _marks(kept: Regime) -> Iterable[tuple[str, str]]:
    """What groups are made from. A change of anything else moves no job."""
    for limit in kept.limits:
        yield allowance_name(limit), f"{_reach(limit)}#{_digest((limit.match, limit.key))}"
    for name, settings in kept.queues.items():
        if settings.tiers:
            times = [(tier.name, tier.seconds) for tier in settings.tiers]
            yield name, f"{name},{ANY}#{_digest(times)}"


def _retired(before: Rules, marks: Mapping[str, str]) -> dict[str, str]:
    """What is no more, but may still be part of groups: it binds nobody, unless something else comes under its name."""
    return {name: f"{_pattern(mark)}#" for name, mark in before.marks.items() if name and name not in marks}


def _defaults(kept: Regime) -> dict[str, str]:
    """What new jobs get; a change of it moves none that are here."""
    given = sorted(
        (name, one.timeout, one.isolate, str(one.keep_success), str(one.keep_failure), one.policy == "priority")
        for name, one in kept.queues.items()
    )
    return {"": f"#{_digest(given)}"} if given else {}


def _reach(limit: Limit) -> str:
    """A pattern of the lanes that a limit may concern."""
    match, tenant = limit.match, limit.tenant
    if tenant == EVERY_TENANT:
        tenant = match.tenant if isinstance(match.tenant, str) else ANY
    return ",".join((tenant, *(one if isinstance(one, str) else ANY for one in (match.queue, match.task))))


def _pattern(mark: str) -> str:
    return mark.partition("#")[0]


def _digest(value: object) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(value), digest_size=8).hexdigest()


async def sort_out(desk: Desk, most: int | None = None) -> bool:
    """Sort jobs whose groups may have changed, and open their lanes again; whether that is done."""
    while True:
        regime = await desk.regimes.refreshed()
        rules = regime.rules
        retired = {name: _pattern(mark) for name, mark in rules.marks.items() if mark.endswith("#")}
        if not rules.sorting and not retired:
            return True
        for pattern in sorted({*rules.sorting, *retired.values()}):
            if not await _sort(desk, regime, pattern, most):
                return False
        opened = replace(
            rules,
            edition=rules.edition + 1,
            sorting=[],
            shut=dict(_shut(regime, [])),
            marks={name: mark for name, mark in rules.marks.items() if name not in retired},
        )
        if await desk.flow.regulate(opened):
            desk.regimes.forget()
            return True


async def _sort(desk: Desk, regime: Regime, pattern: str, most: int | None) -> bool:
    tenant, queue, _ = pattern.split(",")
    counts = await desk.store.tally(EVERY_TENANT if tenant == ANY else tenant)
    lines = {(one.tenant, one.queue) for one in counts if one.state in PENDING and queue in (ANY, one.queue)}
    done = 0
    for line in sorted(lines):
        after = None
        while True:
            if most is not None and done >= most:
                return False
            piece = await desk.store.page(Scope(*line, PENDING), after, AT_ONCE)
            await _regroup(desk, regime, piece.records)
            done += len(piece.records)
            if (after := piece.next) is None:
                break
    return True


async def _regroup(desk: Desk, regime: Regime, records: Sequence[Record]) -> None:
    for _ in range(MOST_ROUNDS):
        payloads = await _payloads(desk, regime, records)
        changes = [
            Regroup(one.job.id, one.job.tenant, one.group, group)
            for one in records
            if (group := regime.group(one.job.tenant, one.job, payloads.get(key_of(one.job)))) != one.group
        ]
        if not changes:
            return
        moved = await desk.flow.regroup(changes)
        refused = [key_of(change) for change, done in zip(changes, moved, strict=True) if not done]
        if not refused:
            return
        records = [one for one in (await desk.store.read(refused)).records if one and one.job.state in PENDING]


async def _payloads(desk: Desk, regime: Regime, records: Sequence[Record]) -> dict[JobKey, bytes | None]:
    """Of those whose limits ask for them."""
    wanted = [key_of(one.job) for one in records if regime.needs_payload(one.job.tenant, one.job.queue, one.job.task)]
    if not wanted:
        return {}
    found = (await desk.store.read(wanted, payload=True)).records
    return {key_of(one.job): one.payload for one in found if one is not None}


def resting(pause: Pause | Limit, now: datetime) -> bool:
    return pause.paused and (pause.until is None or pause.until > now)


def begun(pause: Pause, before: Pause | Limit | None, now: datetime) -> datetime | None:
    """Since when something is paused that may have been before; null = it is not."""
    if not pause.paused:
        return None
    return before.since if before is not None and resting(before, now) else now
