"""Applies the flow configuration: derives the store's rules from it and regroups waiting jobs.

Each change is one compare-and-set of all rules, so that of two concurrent changes both take effect. If waiting jobs may
have other limit keys than before, their lanes are closed until the jobs are regrouped: a limit applies to them too from
the moment it is in force. The rules note which lanes are being regrouped, so that the duty `regroup` continues after a
crash.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from windlass.engine.context import MOST_ROUNDS, EngineContext, claiming_workers, fence
from windlass.engine.flow.config import FlowConfig, limit_name
from windlass.model.errors import Conflict, Invalid
from windlass.model.job import PENDING
from windlass.model.limit import Limit, Pause
from windlass.model.names import EVERY_TENANT, JobKey, key_of
from windlass.model.operations import Released
from windlass.model.queue import QueueSettings
from windlass.model.worker import Worker
from windlass.policy.tiers import caps
from windlass.store.data import ListScope, Record
from windlass.store.flow import ANY, BAR, KEY, LimitRule, Regroup, Rules, TierRule

FOREVER = datetime(2200, 1, 1, tzinfo=UTC)
"""A pause without an end. Stores count microseconds, and all of them can represent this time."""

MOST_REGROUPED = 20_000
"""Jobs that a change of a limit regroups before it answers. A duty does the rest."""

PAGE = 1000


async def apply_config(context: EngineContext) -> FlowConfig:
    """Derive the rules from the records, until the derived rules are in force."""
    for _ in range(MOST_ROUNDS):
        before = await context.store.flow.rules()
        stored = await context.flow_config.read_records(before)
        rules = derive_rules(before, stored, await claiming_workers(context))
        if rules == before or await context.store.flow.set_rules(rules):
            context.flow_config.invalidate()
            return await context.flow_config.current()
    raise Conflict("other callers change the rules at the same time: try again")


async def update_tier_caps(context: EngineContext) -> int:
    """Adapt the caps of tiers to the live workers."""
    config = await context.flow_config.refreshed()
    if config.rules.tiers and any(settings.tiers for settings in config.queues.values()):
        await apply_config(context)
    return 0


def derive_rules(before: Rules, stored: FlowConfig, workers: Sequence[Worker]) -> Rules:
    """The rules that follow from the configuration; the same object if nothing has changed."""
    fingerprints = dict(_fingerprints(stored))
    moved = {name for name, mark in fingerprints.items() if before.fingerprints.get(name) != mark}
    reached = {_pattern(some[name]) for some in (before.fingerprints, fingerprints) for name in moved if name in some}
    regrouping = sorted({*before.regrouping, *reached})
    tiered = {name: settings for name, settings in stored.queues.items() if settings.tiers}
    made = Rules(
        version=before.version,
        group_epoch=before.group_epoch,
        limit_rules={limit_name(limit): _limit_rule(limit) for limit in stored.limits},
        tiers={name: tier_levels(name, settings, workers) for name, settings in tiered.items()},
        fair_queues={
            name.partition(",")[2]: dict(settings.weights)
            for name, settings in stored.queues.items()
            if settings.policy == "fair" and name.startswith(f"{EVERY_TENANT},")
        },
        fair_tenant_queues={
            (ANY + name[1:] if name.startswith(f"{EVERY_TENANT},") else name): dict(settings.weights)
            for name, settings in stored.queues.items()
            if settings.policy == "fair"
        },
        paused_until=dict(_paused_lanes(stored, regrouping)),
        regrouping=regrouping,
        fingerprints=fingerprints | _retired(before, fingerprints) | _defaults(stored),
    )
    if made == before:
        return before
    # New jobs must get the new limit keys, and the new defaults of their queue.
    group_epoch = before.group_epoch + (made.fingerprints != before.fingerprints)
    return replace(made, version=before.version + 1, group_epoch=group_epoch)


def _limit_rule(limit: Limit) -> LimitRule:
    queue = limit.match.queue
    return LimitRule(
        running=limit.running,
        count=limit.rate.count if limit.rate else None,
        per=limit.rate.per if limit.rate else 1.0,
        burst=limit.rate.burst if limit.rate else None,
        queue=queue if isinstance(queue, str) else None,
        closed_until=(limit.until or FOREVER) if limit.paused else None,
    )


def tier_levels(tenant_queue: str, settings: QueueSettings, workers: Sequence[Worker]) -> list[TierRule]:
    """A queue's tiers with the caps that follow from the live workers."""
    sizes = caps(settings.tiers, live_slots(tenant_queue, workers))
    return [
        TierRule(name=tier.name, seconds=tier.seconds, cap=cap) for tier, cap in zip(settings.tiers, sizes, strict=True)
    ]


def live_slots(tenant_queue: str, workers: Sequence[Worker]) -> int:
    """How many jobs of a tenant's queue the live workers can run at once."""
    tenant, _, queue = tenant_queue.partition(",")
    return sum(one.slots for one in workers if queue in one.queues and one.tenant in (tenant, EVERY_TENANT))


def _paused_lanes(stored: FlowConfig, regrouping: Iterable[str]) -> Iterable[tuple[str, datetime]]:
    for name, settings in stored.queues.items():
        if settings.paused:
            tenant, _, queue = name.partition(",")
            yield f"{_part(tenant)},{queue},{ANY}", settings.until or FOREVER
    for name, pause in stored.tasks.items():
        if pause.paused:
            tenant, _, task = name.partition(",")
            yield f"{_part(tenant)},{ANY},{task}", pause.until or FOREVER
    for pattern in regrouping:
        yield pattern, FOREVER


def _part(tenant: str) -> str:
    return ANY if tenant == EVERY_TENANT else tenant


def _fingerprints(stored: FlowConfig) -> Iterable[tuple[str, str]]:
    """What limit keys depend on. A change of anything else moves no job."""
    for limit in stored.limits:
        yield limit_name(limit), f"{_reach(limit)}#{_digest((limit.match, limit.key))}"
    for name, settings in stored.queues.items():
        if settings.tiers:
            times = [(tier.name, tier.seconds) for tier in settings.tiers]
            yield name, f"{name},{ANY}#{_digest(times)}"


def _retired(before: Rules, fingerprints: Mapping[str, str]) -> dict[str, str]:
    """Removed limits and tiers that may still be in jobs' limit keys. They bound nothing, unless the name is reused."""
    return {
        name: f"{_pattern(mark)}#" for name, mark in before.fingerprints.items() if name and name not in fingerprints
    }


def _defaults(stored: FlowConfig) -> dict[str, str]:
    """The defaults of new jobs. A change of them moves no stored job."""
    given = sorted(
        (
            name,
            one.timeout,
            one.isolate,
            one.output,
            one.most_payload,
            one.most_files,
            str(one.keep_success),
            str(one.keep_failure),
            one.policy == "priority",
        )
        for name, one in stored.queues.items()
    )
    return {"": f"#{_digest(given)}"} if given else {}


def _reach(limit: Limit) -> str:
    """A pattern of the lanes that a limit may bound."""
    match, tenant = limit.match, limit.tenant
    if tenant == EVERY_TENANT:
        tenant = match.tenant if isinstance(match.tenant, str) else ANY
    return ",".join((tenant, *(one if isinstance(one, str) else ANY for one in (match.queue, match.task))))


def _pattern(mark: str) -> str:
    return mark.partition("#")[0]


def _digest(value: object) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(value), digest_size=8).hexdigest()


async def regroup_jobs(context: EngineContext, most: int | None = None) -> bool:
    """Regroup jobs whose limit keys may have changed, and open their lanes again; whether that is done."""
    while True:
        config = await context.flow_config.refreshed()
        rules = config.rules
        retired = {name: _pattern(mark) for name, mark in rules.fingerprints.items() if mark.endswith("#")}
        if not rules.regrouping and not retired:
            return True
        for pattern in sorted({*rules.regrouping, *retired.values()}):
            if not await _regroup_pattern(context, config, pattern, most):
                return False
        opened = replace(
            rules,
            version=rules.version + 1,
            regrouping=[],
            paused_until=dict(_paused_lanes(config, [])),
            fingerprints={name: mark for name, mark in rules.fingerprints.items() if name not in retired},
        )
        if await context.store.flow.set_rules(opened):
            context.flow_config.invalidate()
            return True


async def _regroup_pattern(context: EngineContext, config: FlowConfig, pattern: str, most: int | None) -> bool:
    tenant, queue, _ = pattern.split(",")
    counts = (await context.store.jobs.counts(EVERY_TENANT if tenant == ANY else tenant)).jobs
    queues = {(one.tenant, one.queue) for one in counts if one.state in PENDING and queue in (ANY, one.queue)}
    done = 0
    for tenant_queue in sorted(queues):
        after = None
        while True:
            if most is not None and done >= most:
                return False
            piece = await context.store.jobs.list(ListScope(*tenant_queue, PENDING), after, PAGE)
            await _regroup(context, config, piece.records)
            done += len(piece.records)
            if (after := piece.next) is None:
                break
    return True


async def _regroup(context: EngineContext, config: FlowConfig, records: Sequence[Record]) -> None:
    for _ in range(MOST_ROUNDS):
        payloads = await _payloads(context, config, records)
        changes = [
            Regroup(one.job.id, one.job.tenant, one.group, group)
            for one in records
            if (group := config.group(one.job.tenant, one.job, payloads.get(key_of(one.job)))) != one.group
        ]
        if not changes:
            return
        moved = await context.store.flow.regroup(changes)
        refused = [key_of(change) for change, done in zip(changes, moved, strict=True) if not done]
        if not refused:
            return
        records = [one for one in (await context.store.jobs.read(refused)).records if one and one.job.state in PENDING]


async def _payloads(
    context: EngineContext, config: FlowConfig, records: Sequence[Record]
) -> dict[JobKey, bytes | None]:
    """The payloads of jobs whose limits need them."""
    wanted = [key_of(one.job) for one in records if config.needs_payload(one.job.tenant, one.job.queue, one.job.task)]
    if not wanted:
        return {}
    found = (await context.store.jobs.read(wanted, payload=True)).records
    return {key_of(one.job): one.payload for one in found if one is not None}


async def hold_limits(context: EngineContext, reports: Sequence[tuple[Released, str]]) -> set[JobKey]:
    """Hold the limits that released jobs name for their delays; the jobs that have such a limit."""
    given = {JobKey(item.id, tenant): item for item, tenant in reports if item.hold_limit is not None and item.delay}
    found: set[JobKey] = set()
    for record in (await context.store.jobs.read(list(given))).records if given else ():
        if record is None or record.token is None or record.token != fence(given[key_of(record.job)].token):
            continue
        item = given[key_of(record.job)]
        for bucket in record.group.split(BAR)[1:]:
            name = bucket.partition(KEY)[0].partition("/")[2]
            if item.hold_limit in ("", name):
                await context.store.flow.hold(bucket, item.delay or 0.0)
                found.add(key_of(record.job))
    return found


def is_paused(pause: Pause | Limit, now: datetime) -> bool:
    return pause.paused and (pause.until is None or pause.until > now)


def paused_since(pause: Pause, before: Pause | Limit | None, now: datetime) -> datetime | None:
    """Since when something is paused, now or since an earlier pause; null = it is not."""
    if not pause.paused:
        return None
    if pause.until is not None and pause.until <= now:
        raise Invalid(f"the pause would be over already: the store's clock shows {now:%Y-%m-%dT%H:%M:%SZ}", at="until")
    return before.since if before is not None and is_paused(before, now) else now
