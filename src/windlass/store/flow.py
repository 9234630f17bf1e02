"""Flow control in a store: which jobs a claim may take.

The engine decides what the rules mean for a job and writes that down as the job's *group*; a store holds claims to it,
in the same atomic step in which it leases a job. What every store promises:

- A job without a group pays nothing for any of this.
- No bucket holds more places than its limit rule allows, no more starts fall into a window than its rate allows: at no
  moment, for all workers together. Whatever ends a run gives its places back.
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

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from windlass.model.names import JobKey
from windlass.store.data import Added

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

    def __init__(self, answers: Sequence[Added | None] = ()) -> None:
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


class Rules(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that bounds claims in one store."""

    version: int = 0
    """Grows by one with each change."""
    group_epoch: int = 0
    """Grows when a job might get other limit keys than before; a job comes with the epoch of its limit keys."""
    limit_rules: dict[str, LimitRule] = {}
    """By the name of a bucket without its key: `TENANT/LIMIT`."""
    tiers: dict[str, list[TierRule]] = {}
    """By `TENANT,QUEUE`; shortest first."""
    fair_queues: dict[str, dict[str, float]] = {}
    """Queues whose tenants take turns: the weights of tenants (1 unless named)."""
    fair_tenant_queues: dict[str, dict[str, float]] = {}
    """`TENANT,QUEUE` or `*,QUEUE` whose tasks take turns: the weights of tasks (1 unless named)."""
    paused_until: dict[str, datetime] = {}
    """`TENANT,QUEUE,TASK`, each part a name or `*`: matching lanes are not claimed from before that time."""
    regrouping: list[str] = []
    """Such patterns: their jobs may have wrong limit keys yet, and are paused meanwhile. Kept, not read."""
    fingerprints: dict[str, str] = {}
    """What limit keys are made from, by bucket or tenant's queue: a pattern of the jobs concerned, `#`, a digest. Kept,
    not read."""


class Regroup(Struct, frozen=True):
    """A job is to belong to another group. Refused unless it still is in the one before, and has not ended."""

    id: str
    tenant: str
    before: str
    after: str


class TierSlots(Struct, frozen=True):
    """The slots of a tenant's queue with tiers. How many of them are free, a store counts itself, in the same step."""

    tenant: str
    queue: str
    slots: Mapping[str, int]
    """Of each live worker that serves it, by id."""


class FreeSlots(Struct, frozen=True):
    """New yielding jobs of a queue need a free slot each. One that a queued yielding job waits for is not free."""

    where: TierSlots
    ahead: int = 0
    """So many more are not free: jobs that wait before them will have those."""


class NoFreeSlot(Exception):
    """No slot is free for a new yielding job: none of the call was kept."""


class RoomNeed(Struct, frozen=True):
    """Why a move takes time or the slot from a running job of a queue with tiers."""

    waiting: JobKey | None
    """Who needs room: the move is refused unless that job is queued. Null = a yielding job that was denied."""
    full: str | None = None
    """The tier that must be full; null = it is the slots that are wanted."""
    slots: int = 1
    """Then: how many. Refused if as many are free, or become free because their jobs were ordered to stop."""
    ahead: int = 0
    """So many of the jobs of `Room.ahead` get such slots before: one for each that is still queued."""


class Room(Struct, frozen=True):
    """What moves are needed for, all of jobs of one tenant's queue: checked for each in the step that writes it."""

    where: TierSlots
    needs: Sequence[RoomNeed]
    """Of each move, in their order."""
    may_stop: Sequence[JobKey] = ()
    """The running jobs that may have been ordered to stop."""
    ahead: Sequence[JobKey] = ()
    """The waiting jobs that start next, in their order."""


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
