"""Flow configuration: limits, queue settings and pauses as stored, and what they mean for a new job.

The records are the truth. `Rules` are derived from them and put in force in the store (`flow.apply`). An engine caches
the configuration that it last read: the store refuses a job that comes under older rules, and it is added again under
the new ones. Payloads are decoded only if a limit asks for one of their fields.
"""

import hashlib
from collections.abc import Iterable, Sequence
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from windlass.model import wire
from windlass.model.duration import DAY
from windlass.model.errors import Invalid, PartAway
from windlass.model.job import Job
from windlass.model.limit import Limit, Pause, Subject, holds, key_of, may_hold, paths
from windlass.model.match import ABSENT
from windlass.model.names import EVERY_TENANT
from windlass.model.new_job import AT_MOST_ONCE, LOWEST, NewJob, OnLost, Terms
from windlass.model.output import DEFAULT_OUTPUT
from windlass.model.queue import QueueSettings, Tier, tier_of
from windlass.store.data import Draft
from windlass.store.flow import BAR, EXPLICIT, FLEXIBLE, KEY, YIELDING, Rules
from windlass.store.protocol import Store

LIMITS, QUEUES, TASKS = "limit", "queue", "task"
"""Kinds of records: by `TENANT/NAME`, `TENANT,QUEUE` and `TENANT,TASK`."""

MOST_CACHED = 10_000

YIELDS_WITHIN = 2.0
"""Seconds within which an admitted yielding job must have started."""

MOST_KEY = 80
"""Characters of a key in the name of a bucket. A longer key is replaced by a digest."""

NO_KEY = "~"
"""The bucket of jobs that lack the key."""

_limit = msgspec.msgpack.Decoder(Limit)
_queue = msgspec.msgpack.Decoder(QueueSettings)
_pause = msgspec.msgpack.Decoder(Pause)

NO_SETTINGS = QueueSettings()


class _LaneConfig(Struct, frozen=True):
    """What applies to all jobs of one tenant, queue and task."""

    limits: list[Limit]
    settings: QueueSettings
    fixed: str | None
    """The limit keys, if they do not depend on the job."""


class FlowConfig:
    """The flow configuration at one moment, and the rules in force."""

    def __init__(
        self, rules: Rules, limits: Sequence[Limit], queues: dict[str, QueueSettings], tasks: dict[str, Pause]
    ) -> None:
        self.rules = rules
        self.limits = limits
        self.queues = queues
        self.tasks = tasks
        self._at_most_once = frozenset(
            name.partition(",")[2] for name, one in queues.items() if one.on_lost in AT_MOST_ONCE
        )
        self._strict_priority = frozenset(name for name, one in queues.items() if one.policy == "priority")
        self.has_bounds = any(one.most_payload is not None or one.most_files is not None for one in queues.values())
        """Whether a queue has bounds of its own on payloads or files."""
        self._lanes: dict[tuple[str, str, str], _LaneConfig] = {}

    def settings(self, tenant: str, queue: str) -> QueueSettings:
        """A tenant's own settings of a queue, or else those for all tenants."""
        if not self.queues:
            return NO_SETTINGS
        return self.queues.get(f"{tenant},{queue}") or self.queues.get(f"{EVERY_TENANT},{queue}") or NO_SETTINGS

    def on_lost(self, job: Job) -> OnLost:
        """What becomes of a job whose run ends without its own word: as it says itself, or else its queue."""
        found = job.on_lost or self.settings(job.tenant, job.queue).on_lost
        return "fail" if found == "adopt" and job.stdin is not None else found

    def has_at_most_once(self, queues: Iterable[str]) -> bool:
        """Whether one of these queues has a tenant whose lost jobs fail instead of running again."""
        return not self._at_most_once.isdisjoint(queues)

    def strict_priority(self, queues: Iterable[str]) -> frozenset[str]:
        """Those of these queues that go by priority and arrival only, as `TENANT,QUEUE`."""
        if not self._strict_priority:
            return self._strict_priority
        names = set(queues)
        return frozenset(name for name in self._strict_priority if name.partition(",")[2] in names)

    def has_tiers(self, tenant: str, queue: str) -> bool:
        return f"{tenant},{queue}" in self.rules.tiers

    def tiered(self, drafts: Iterable[Draft]) -> set[tuple[str, str]]:
        """The tenants and queues of these jobs that have tiers."""
        if not self.rules.tiers:
            return set()
        return {name for draft in drafts if self.has_tiers(*(name := (draft.tenant, draft.new.queue)))}

    def resolve_all(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """New jobs as the store gets them; unchanged if there are no rules."""
        return drafts if self.rules.version == 0 else [self.resolve(draft) for draft in drafts]

    def resolve(self, draft: Draft, *, strict: bool = False) -> Draft:
        """A new job with its queue's defaults and its limit keys. `strict` refuses what the queue does not have."""
        new, tenant = draft.new, draft.tenant
        lane = self._lane(tenant, new.queue, new.task)
        if lane.settings is not NO_SETTINGS:
            new = _with_defaults(new, lane.settings, strict=strict)
        group = self._group(lane, tenant, new, new.payload, strict=strict)
        return replace(draft, new=new, group=group, group_epoch=self.rules.group_epoch)

    def group(self, tenant: str, terms: Terms, payload: bytes | None) -> str:
        """The tier class and limit keys of a stored job."""
        return self._group(self._lane(tenant, terms.queue, terms.task), tenant, terms, payload, strict=False)

    def needs_payload(self, tenant: str, queue: str, task: str) -> bool:
        return any(map(_needs_payload, self._lane(tenant, queue, task).limits))

    def _group(
        self, lane: _LaneConfig, tenant: str, terms: Terms, payload: msgspec.Raw | bytes | None, *, strict: bool
    ) -> str:
        kind = _tier_class(lane.settings.tiers, terms, strict=strict)
        if lane.fixed is not None:
            return kind + lane.fixed
        return kind + _limit_keys(lane.limits, _subject(tenant, terms, payload))

    def _lane(self, tenant: str, queue: str, task: str) -> _LaneConfig:
        found = self._lanes.get((tenant, queue, task))
        if found is None:
            limits = [
                limit
                for limit in self.limits
                if limit.tenant in (EVERY_TENANT, tenant) and may_hold(limit.match, tenant, queue, task)
            ]
            fixed = None
            if not any(map(_depends_on_job, limits)):
                fixed = _limit_keys(limits, _subject(tenant, Terms(task=task, queue=queue), None))
            found = _LaneConfig(limits, self.settings(tenant, queue), fixed)
            if len(self._lanes) >= MOST_CACHED:
                self._lanes.clear()
            self._lanes[tenant, queue, task] = found
        return found


def _with_defaults(new: NewJob, settings: QueueSettings, *, strict: bool) -> NewJob:
    """A job with its queue's settings where it does not choose."""
    changes: dict[str, object] = {}
    if new.timeout is None and settings.timeout is not None:
        changes["timeout"] = settings.timeout
    if settings.tiers and isinstance(new.tier, float | int) and not isinstance(new.tier, bool):
        if strict:
            tier_of(settings.tiers, new.tier)
        changes["timeout"] = min(new.tier, new.timeout or new.tier)
    if new.yielding:
        # The slot that was free for it is kept for it; if the slot's worker is lost, it must not wait forever.
        changes["priority"] = LOWEST
        changes["expires"] = min(YIELDS_WITHIN, new.expires or YIELDS_WITHIN)
    if settings.isolate and not new.isolate:
        changes["isolate"] = True
    if new.output is None and settings.output != DEFAULT_OUTPUT:
        changes["output"] = settings.output
    if settings.keep_success is not UNSET and new.keep_success == DAY:
        changes["keep_success"] = settings.keep_success
    if settings.keep_failure is not UNSET and new.keep_failure == 7 * DAY:
        changes["keep_failure"] = settings.keep_failure
    return replace(new, **changes) if changes else new


# Limit keys


def limit_name(limit: Limit) -> str:
    return f"{limit.tenant}/{limit.name}"


def _depends_on_job(limit: Limit) -> bool:
    """Whether a limit asks for more of a job than tenant, queue and task."""
    inner = (limit.match, *limit.match.all, *limit.match.any)
    return _needs_payload(limit) or any(which.tag or which.all or which.any for which in inner)


def _needs_payload(limit: Limit) -> bool:
    return (limit.key or "").startswith("payload.") or any(True for _ in paths(limit.match))


def _subject(tenant: str, terms: Terms, payload: Raw | bytes | None) -> Subject:
    """What limits see of a job. The payload is decoded when a limit asks for it."""
    decoded: list[object] = []

    def value() -> object:
        if not decoded:
            decoded.append(_decoded(payload, terms.content_type))
        return decoded[0]

    return Subject(tenant, terms.queue, terms.task, terms.tags, value)


def _decoded(payload: Raw | bytes | None, content_type: str) -> object:
    try:
        return ABSENT if payload is None else wire.value(Raw(bytes(payload)), content_type)
    except Invalid:
        return ABSENT  # an unknown encoding: it has no fields


def _limit_keys(limits: Sequence[Limit], job: Subject) -> str:
    """The buckets of a job, each after a bar."""
    return "".join(BAR + _bucket(limit, job) for limit in limits if holds(limit.match, job))


def _bucket(limit: Limit, job: Subject) -> str:
    name = limit_name(limit)
    return name if limit.key is None else f"{name}{KEY}{_key(key_of(limit.key, job))}"


def _key(value: object) -> str:
    if value is ABSENT:
        return NO_KEY
    text = value if isinstance(value, str) else wire.encode(value, "json").decode(errors="replace")
    plain = quote(text, safe="").replace("~", "%7E")
    if plain and len(plain) <= MOST_KEY:
        return plain
    return f"%{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def _tier_class(tiers: list[Tier], terms: Terms, *, strict: bool) -> str:
    """Explicit, flexible or yielding; empty if the queue has no tiers."""
    if terms.yielding:
        if tiers:
            return YIELDING
        if strict:
            raise Invalid(f"queue {terms.queue!r} has no tiers: a yielding job needs a queue with tiers", at="yielding")
        return ""
    if not tiers:
        if strict and terms.tier is not None:
            raise Invalid(_no_tiers(terms), at="tier")
        return ""
    if terms.tier is None:
        return FLEXIBLE
    try:
        return EXPLICIT + tier_of(tiers, terms.tier).name
    except Invalid:
        if strict:
            raise
        return FLEXIBLE


def _no_tiers(terms: Terms) -> str:
    seconds = isinstance(terms.tier, float | int)
    instead = "give the job a timeout" if seconds else "name none"
    return f"queue {terms.queue!r} has no tiers: set some (windlass queues set {terms.queue} --tier …), or {instead}"


NO_FLOW_CONFIG = FlowConfig(Rules(), [], {}, {})


class FlowConfigCache:
    """The configuration that an engine last read."""

    def __init__(self, store: Store) -> None:
        self._records = store.records
        self._flow = store.flow
        self._cached: FlowConfig | None = None
        self._outdated = False

    @property
    def is_empty(self) -> bool:
        """Whether there were no rules when it was last read."""
        return self._cached is NO_FLOW_CONFIG and not self._outdated

    @property
    def may_have_bounds(self) -> bool:
        """Whether a queue may have bounds of its own on payloads or files."""
        return self._cached is None or self._outdated or self._cached.has_bounds

    async def current(self) -> FlowConfig:
        if self._cached is None or self._outdated:
            self._cached = await self._read_if_possible()
        return self._cached

    async def _read_if_possible(self) -> FlowConfig:
        """The configuration in force; the cached one while that partition of the store is away."""
        try:
            found = await self.read()
        except PartAway:
            if self._cached is None:
                raise
            return self._cached
        self._outdated = False
        return found

    async def refreshed(self) -> FlowConfig:
        """The configuration in force now, if the store answers. Costs one small read unless it has changed."""
        try:
            rules = await self._flow.rules()
        except PartAway:
            return await self.current()
        if self._cached is None or self._outdated or self._cached.rules.version != rules.version:
            self._cached = await self.read(rules)
        self._outdated = False
        return self._cached

    def invalidate(self) -> None:
        self._outdated = True

    async def read(self, rules: Rules | None = None) -> FlowConfig:
        rules = rules or await self._flow.rules()
        if rules.version == 0:
            return NO_FLOW_CONFIG
        return await self.read_records(rules)

    async def read_records(self, rules: Rules) -> FlowConfig:
        """The stored configuration, in force or not."""
        limits = [_limit.decode(data) for _, data in sorted((await self._records.list(LIMITS)).items())]
        queues = {name: _queue.decode(data) for name, data in (await self._records.list(QUEUES)).items()}
        tasks = {name: _pause.decode(data) for name, data in (await self._records.list(TASKS)).items()}
        return FlowConfig(rules, limits, queues, tasks)
