"""The regime: limits, queues' settings and pauses as they are kept, and what follows from them for a new job.

What is kept on the shelf is the truth; `Rules` are derived from it and put in force in the store (`engine.rules`). An
engine remembers the regime it last saw: a job that comes under an older one is refused by the store, and is taken in
under the newer one then.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from windlass.engine import groups
from windlass.model.errors import PartAway
from windlass.model.job import DAY, NewJob, Terms
from windlass.model.limit import Limit, Pause
from windlass.model.names import EVERY_TENANT
from windlass.model.queue import QueueSettings, tier_of
from windlass.store import Draft
from windlass.store.beside import Shelf
from windlass.store.flow import Flow, Rules

LIMITS, QUEUES, TASKS = "limit", "queue", "task"
"""Kinds of records: by `TENANT/NAME`, `TENANT,QUEUE` and `TENANT,TASK`."""

MOST_REMEMBERED = 10_000

YIELDS_WITHIN = 2.0
"""Seconds within which a yielding job that was let in must have started."""

_limit = msgspec.msgpack.Decoder(Limit)
_queue = msgspec.msgpack.Decoder(QueueSettings)
_pause = msgspec.msgpack.Decoder(Pause)

NO_SETTINGS = QueueSettings()


class _Lane(Struct, frozen=True):
    """What holds for all jobs of one tenant, queue and task."""

    limits: list[Limit]
    settings: QueueSettings
    fixed: str | None
    """The buckets, if they depend on nothing else."""


class Regime:
    """One state of all that is kept."""

    def __init__(
        self, rules: Rules, limits: Sequence[Limit], queues: dict[str, QueueSettings], tasks: dict[str, Pause]
    ) -> None:
        self.rules = rules
        self.limits = limits
        self.queues = queues
        self.tasks = tasks
        self._never_twice = frozenset(name.partition(",")[2] for name, one in queues.items() if one.on_lost == "fail")
        self._in_order = frozenset(name for name, one in queues.items() if one.policy == "priority")
        self._lanes: dict[tuple[str, str, str], _Lane] = {}

    def settings(self, tenant: str, queue: str) -> QueueSettings:
        """A tenant's own, or else everybody's."""
        return self.queues.get(f"{tenant},{queue}") or self.queues.get(f"{EVERY_TENANT},{queue}") or NO_SETTINGS

    def has_never_twice(self, queues: Iterable[str]) -> bool:
        """Whether in one of these queues somebody's jobs are to fail rather than be run again."""
        return not self._never_twice.isdisjoint(queues)

    def in_order(self, queues: Iterable[str]) -> frozenset[str]:
        """Where the operator chose priority and arrival alone: `TENANT,QUEUE`."""
        if not self._in_order:
            return self._in_order
        names = set(queues)
        return frozenset(line for line in self._in_order if line.partition(",")[2] in names)

    def has_tiers(self, tenant: str, queue: str) -> bool:
        return f"{tenant},{queue}" in self.rules.tiers

    def tiered(self, drafts: Iterable[Draft]) -> set[tuple[str, str]]:
        """Which of their tenants' queues have tiers."""
        if not self.rules.tiers:
            return set()
        return {line for draft in drafts if self.has_tiers(*(line := (draft.tenant, draft.new.queue)))}

    def all_admitted(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """New jobs as the store gets them; as they are where there are no rules."""
        return drafts if self.rules.edition == 0 else [self.admitted(draft) for draft in drafts]

    def admitted(self, draft: Draft, *, strict: bool = False) -> Draft:
        """A job with what its queue gives it, in its group. `strict` refuses what the queue does not know."""
        new, tenant = draft.new, draft.tenant
        lane = self._lane(tenant, new.queue, new.task)
        if lane.settings is not NO_SETTINGS:
            new = _with_defaults(new, lane.settings, strict=strict)
        group = self._group(lane, tenant, new, new.payload, strict=strict)
        return replace(draft, new=new, group=group, grouping=self.rules.grouping)

    def group(self, tenant: str, terms: Terms, payload: bytes | None) -> str:
        """The group of a job that is here already."""
        return self._group(self._lane(tenant, terms.queue, terms.task), tenant, terms, payload, strict=False)

    def needs_payload(self, tenant: str, queue: str, task: str) -> bool:
        return any(map(groups.needs_payload, self._lane(tenant, queue, task).limits))

    def _group(
        self, lane: _Lane, tenant: str, terms: Terms, payload: msgspec.Raw | bytes | None, *, strict: bool
    ) -> str:
        kind = groups.class_of(lane.settings.tiers, terms, strict=strict)
        if lane.fixed is not None:
            return kind + lane.fixed
        return kind + groups.buckets(lane.limits, groups.subject(tenant, terms, payload))

    def _lane(self, tenant: str, queue: str, task: str) -> _Lane:
        found = self._lanes.get((tenant, queue, task))
        if found is None:
            limits = groups.concerned(self.limits, tenant, queue, task)
            fixed = None
            if not any(map(groups.looks_inside, limits)):
                fixed = groups.buckets(limits, groups.subject(tenant, Terms(task=task, queue=queue), None))
            found = _Lane(limits, self.settings(tenant, queue), fixed)
            if len(self._lanes) >= MOST_REMEMBERED:
                self._lanes.clear()
            self._lanes[tenant, queue, task] = found
        return found


def _with_defaults(new: NewJob, settings: QueueSettings, *, strict: bool) -> NewJob:
    """What a queue gives to jobs that do not ask."""
    changes: dict[str, object] = {}
    if new.timeout is None and settings.timeout is not None:
        changes["timeout"] = settings.timeout
    if settings.tiers and isinstance(new.tier, float | int) and not isinstance(new.tier, bool):
        if strict:
            tier_of(settings.tiers, new.tier)
        changes["timeout"] = min(new.tier, new.timeout or new.tier)
    if new.yielding:
        # Two engines may let two in for one place: the second must not wait for ever.
        changes["expires"] = min(YIELDS_WITHIN, new.expires or YIELDS_WITHIN)
    if settings.isolate and not new.isolate:
        changes["isolate"] = True
    if settings.keep_success is not UNSET and new.keep_success == DAY:
        changes["keep_success"] = settings.keep_success
    if settings.keep_failure is not UNSET and new.keep_failure == 7 * DAY:
        changes["keep_failure"] = settings.keep_failure
    return replace(new, **changes) if changes else new


NO_REGIME = Regime(Rules(), [], {}, {})


class Regimes:
    """The regime that an engine last saw."""

    def __init__(self, shelf: Shelf, flow: Flow) -> None:
        self._shelf = shelf
        self._flow = flow
        self._seen: Regime | None = None
        self._outdated = False

    @property
    def none_seen(self) -> bool:
        """Whether there were no rules at the last look."""
        return self._seen is NO_REGIME and not self._outdated

    async def current(self) -> Regime:
        if self._seen is None or self._outdated:
            self._seen = await self._read_if_there()
        return self._seen

    async def _read_if_there(self) -> Regime:
        """The one in force; the last that was seen while the part of the store is away that would know."""
        try:
            found = await self.read()
        except PartAway:
            if self._seen is None:
                raise
            return self._seen
        self._outdated = False
        return found

    async def refreshed(self) -> Regime:
        """The one in force now, if that can be known: costs one small reading unless it has changed."""
        try:
            rules = await self._flow.rules()
        except PartAway:
            return await self.current()
        if self._seen is None or self._outdated or self._seen.rules.edition != rules.edition:
            self._seen = await self.read(rules)
        self._outdated = False
        return self._seen

    def forget(self) -> None:
        self._outdated = True

    async def read(self, rules: Rules | None = None) -> Regime:
        rules = rules or await self._flow.rules()
        if rules.edition == 0:
            return NO_REGIME
        return await self.kept(rules)

    async def kept(self, rules: Rules) -> Regime:
        """What is kept now, in force or not."""
        limits = [_limit.decode(data) for _, data in sorted((await self._shelf.shelved(LIMITS)).items())]
        queues = {name: _queue.decode(data) for name, data in (await self._shelf.shelved(QUEUES)).items()}
        tasks = {name: _pause.decode(data) for name, data in (await self._shelf.shelved(TASKS)).items()}
        return Regime(rules, limits, queues, tasks)
