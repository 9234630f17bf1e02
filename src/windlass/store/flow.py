"""Flow control in a store: which jobs a claim may take.

The engine decides what the rules mean for a job and writes that down as the job's *group*; a store holds claims to it,
in the same atomic step in which it leases a job. What every store promises:

- A job without a group pays nothing for any of this.
- No bucket holds more places than its limit rule allows, no more starts fall into a window than its rate allows: at no
  moment, for all workers together. Places are ids of running jobs: whatever ends a run gives them back.
- Jobs whose bucket is full are passed by, and cost a claim nothing however many they are.
- A lane that is shut is not claimed from.
- Where turns are taken, a worker with warm contexts may get their jobs a little earlier, but no tenant or task is ever
  served more than `LEAD` turns ahead of its turn.

A group is a text: its class, then its buckets, each after a bar: `=slow`, `~|acme/api`, `|acme/api=42|-/all`.

- The class is empty in a queue without tiers. `=NAME` is a job that asked for that tier, `~` a flexible one, `!` a
  yielding one.
- A bucket is the name of a limit rule, alone or with a key after an equals sign. Keys are made of letters, digits, `_`,
  `.`, `-`, `~` and `%`; the engine escapes everything else.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from windlass.model.names import JobKey

FLEXIBLE = "~"
YIELDING = "!"
EXPLICIT = "="
BAR = "|"
KEY = "="
ANY = "*"


LEAD = 2.0
"""Turns of weight 1 by which a tenant or task may be served early, for a worker that has a warm context for it."""
NEAR = 16
"""Of those whose turn comes next, at most so many are looked at for that."""

MOST_RANKED = 500_000
"""Jobs ahead of another that are counted one by one where a store knows no quicker way."""


class StaleRules(Exception):
    """Jobs came with groups made under rules that are no longer in force.

    A store that takes them in parts may have kept some before the rules changed: `answers` says what `add` would say of
    each, and null of one that was not kept. Without answers none was.
    """

    def __init__(self, answers: Sequence[bool | None] = ()) -> None:
        super().__init__("groups were made under other rules")
        self.answers = answers


class LimitRule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one limit allows in each of its buckets."""

    running: int | None = None
    """Places: so many of its jobs run at once; null = any number."""
    count: int | None = None
    """Starts per period; null = any number. Without `burst`, no window of that length ever holds more."""
    per: float = 1.0
    """Seconds of the period."""
    burst: int | None = None
    """With it, starts are paid with tokens: so many at first and at most, one more each `per / count` seconds."""
    queue: str | None = None
    """The only queue whose jobs it bounds; null = jobs of several may be in one bucket."""
    closed_until: datetime | None = None
    """Before this time no job of it starts; null = open. The end of time = until it is resumed."""


class TierRule(Struct, frozen=True, kw_only=True, array_like=True):
    """One tier of a tenant's queue."""

    name: str
    seconds: float
    """The longest run at it."""
    cap: int
    """At most so many jobs run at it or at a longer one. The shortest tier has no cap: slots are its bound."""


# Stored by these names: `rename` keeps what older versions wrote readable.
class Rules(Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"limit_rules": "allowances"}):
    """Everything that bounds claims in one store."""

    edition: int = 0
    """Grows by one with each change."""
    grouping: int = 0
    """Grows when a job might belong to another group than before; jobs come with the number of their group."""
    limit_rules: dict[str, LimitRule] = {}
    """By the name of a bucket without its key: `TENANT/LIMIT`."""
    tiers: dict[str, list[TierRule]] = {}
    """By `TENANT,QUEUE`; shortest first."""
    fair_queues: dict[str, dict[str, float]] = {}
    """Queues whose tenants take turns: the weights of tenants (1 unless named)."""
    fair_lines: dict[str, dict[str, float]] = {}
    """`TENANT,QUEUE` or `*,QUEUE` whose tasks take turns: the weights of tasks (1 unless named)."""
    shut: dict[str, datetime] = {}
    """`TENANT,QUEUE,TASK`, each part a name or `*`: matching lanes are not claimed from before that time."""
    sorting: list[str] = []
    """Such patterns: their jobs may be in wrong groups yet, and are shut meanwhile. Kept, not read."""
    marks: dict[str, str] = {}
    """What groups are made from, by bucket or line: a pattern of the jobs concerned, `#`, a digest. Kept, not read."""


class Regroup(Struct, frozen=True):
    """A job is to belong to another group. Refused unless it still is in the one before, and has not ended."""

    id: str
    tenant: str
    before: str
    after: str


class LaneBacklog(Struct, frozen=True):
    """The queued jobs of one tenant, queue, task and group, as far as they were asked for."""

    tenant: str
    queue: str
    task: str
    group: str
    count: int
    """How many there are in all."""
    jobs: list[tuple[int, int, str]]
    """The first of them: priority, arrival, id; in the order in which they are claimed."""


class BucketUsage(Struct, frozen=True):
    """How one bucket stands."""

    bucket: str
    running: int
    """Places taken."""
    waiting: int
    """Queued jobs of groups with this bucket that are passed by because it (or another of theirs) is full."""
    free_at: datetime | None
    """When the next start is allowed, if its rate or a pause holds it up now; null = neither does."""


class Flow(Protocol):
    """What a store does for flow control. Every store is one too."""

    async def rules(self) -> Rules:
        """The rules in force."""
        ...

    async def set_rules(self, rules: Rules) -> bool:
        """Put these in force if their edition is the next one after that in force; whether it was.

        Bounds that became narrower than what runs already end nothing: they let nothing start until there is room.
        """
        ...

    async def regroup(self, changes: Sequence[Regroup]) -> list[bool]:
        """Move jobs to other groups, waiting ones and running ones; for each, whether its guard held.

        A running job's places follow, even where that fills a bucket beyond its limit.
        """
        ...

    async def hold(self, bucket: str, seconds: float) -> None:
        """Start nothing of a bucket for so long."""
        ...

    async def unblock_ready(self, limit: int) -> int:
        """Let jobs be claimed again whose bucket has become free with time, whose lane is open again, or that were
        overlooked; how many lanes there were. Claims do the same for what concerns them; this is for idle workers, who
        then hear of it.
        """
        ...

    async def next_opening(self, queues: Sequence[str]) -> float | None:
        """Seconds until something that is passed by in these queues becomes free by the clock alone; null = never."""
        ...

    async def waiting(self, tenant: str, queue: str, limit: int) -> list[LaneBacklog]:
        """What is queued (`tenant` may be `-`), at most so many jobs of each group."""
        ...

    async def rank(self, key: JobKey) -> int | None:
        """How many jobs of its own tenant, queue, task and group are ahead of a queued job; null = it is not queued.

        A store may stop counting at `MOST_RANKED`: then there are at least so many.
        """
        ...

    async def usage(self, limit_rule: str, limit: int) -> list[BucketUsage]:
        """How the buckets of a limit rule stand, those in use or waited for, at most so many."""
        ...
