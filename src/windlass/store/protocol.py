"""What a store implements: typed facets over one place where jobs live. The data is in `data` and `flow`.

A store knows SQL or keys; it decides nothing. `model.lifecycle` decides which state comes next and returns a `Move`;
the store checks the move's guards and writes it whole, or refuses it. What every store promises:

- A job is named by its id and its tenant (`JobKey`): the same id in two tenants is two jobs.
- `add` is idempotent by that key, and arrival order is a sequence that the store keeps.
- `claim` is one atomic step: a job is leased to one worker, or to none, under a token that fences all its writes.
- Due times and leases are judged by the store's own clock; callers pass durations, or times that the store gave them.
- Finished jobs leave what claims search, and vanish when their keep clock runs out; a result may vanish before them.
- No call costs more as the backlog grows, beyond a logarithm; no call loops without a bound.
- Answers are per item, in the order of the items. A store may have partitions, which can be away one by one. Jobs
  whose ids end in the same byte share one. What `overdue` and `journal` answer says which partitions answered.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager as Opened
from typing import Protocol

from windlass.model.job import State
from windlass.model.lifecycle import Move
from windlass.model.names import JobKey
from windlass.model.output import Chunk
from windlass.model.worker import NewWorker, Worker, WorkerUsage
from windlass.store import data, flow, optional


class JobStore(Protocol):
    """Jobs, from add to purge."""

    async def add(
        self, drafts: Sequence[data.Draft], *, wait_for_replicas: bool = False, slots: flow.FreeSlots | None = None
    ) -> list[data.Added]:
        """Add new jobs; for each, whether it is new. A job whose id already exists for its tenant is left unchanged.

        `model.unique` decides on unique jobs; `Conflict` = it rejects one, and no job of that partition is kept.
        Raises `StaleRules` if limit keys were made under other rules than those in force. `wait_for_replicas`: answer
        when enough replicas have them, if the store is set up so, or raise `NotReplicated`; they are kept then, too.
        `slots`: raise `NoFreeSlot`, and keep none, unless a slot is free for each that is new.
        """

    async def claim(self, request: data.ClaimRequest) -> list[data.Record]:
        """Lease the first jobs that a worker may take: by order of its queues (or turns), turn, priority and arrival.

        Nothing that `flow` forbids is taken. The same nonce again returns the same jobs. They come with their payloads
        and files. A claim is a heartbeat of its worker, noted every `SEEN_EVERY` seconds.
        """

    async def heartbeat(self, beats: Sequence[data.Heartbeat], lease: float) -> list[data.HeartbeatReply]:
        """Renew the leases of jobs and store what they report; return orders and messages for them."""

    async def succeed(self, successes: Sequence[data.JobSuccess]) -> list[bool]:
        """Record successes; for each, whether its token was right. The keep times of the job are applied at once."""

    async def apply(self, moves: Sequence[Move], room: flow.Room | None = None) -> list[bool]:
        """Write moves, one after the other; for each, whether its guards held. A refused move changes nothing.

        With `room`, each has one more guard: room must still be needed.
        """

    async def read(self, keys: Sequence[JobKey], *, payload: bool = False) -> data.Reading:
        """Look jobs up."""

    async def tenants_with(self, ids: Sequence[str]) -> list[list[str]]:
        """For each id, the tenants that have such a job, sorted."""

    async def results(self, keys: Sequence[JobKey], *, spend: bool = True) -> list[data.StoredResult | None]:
        """The results of jobs, unless their time is over. `spend`: one kept for one reading only is gone afterwards."""

    async def output(self, key: JobKey, after: int, limit: int) -> list[Chunk]:
        """Output chunks after number `after`. The newest are kept, across runs, until a finished job is rerun."""

    async def post(self, key: JobKey, message: bytes, most: int | None = None) -> data.Posted:
        """Store a message for the current or next run; refused if the run would get more than `most` bytes in all."""

    async def counts(self, tenant: str) -> data.Counts:
        """How many jobs a tenant has (`-` = all tenants), and how its runs ended, from counters."""

    async def sweep(self, sweep: data.Sweep, limit: int) -> data.SweepReply:
        """Do what needs no decision: promote or purge what is due, earliest first, or unblock lanes that have room."""

    async def next_due(self, sweep: data.Sweep, queues: Sequence[str] = ()) -> float | None:
        """Seconds until PROMOTE has something to do, or UNBLOCK in these queues; null = nothing waits for the clock."""

    async def overdue(self, clock: data.Overdue, limit: int) -> data.OverdueJobs:
        """Jobs whose clock has run out and that need a decision, earliest first."""

    async def add_dependencies(self, edges: Sequence[data.Dependency]) -> list[State | None]:
        """The states of the parents (null = the tenant has no such job). Edges to pending parents are stored."""

    async def completed_parents(self, done: Sequence[data.CompletedParent], limit: int) -> list[data.CompletedParent]:
        """Remove processed parents and children (except those that completed again), then return the next ones."""

    async def list(self, scope: data.ListScope, after: str | None, limit: int) -> data.RecordPage:
        """Jobs of a scope: tenant by tenant, queue by queue, in order of arrival or the other way round.

        A job that changes its state between two pages is neither missed nor seen twice while it stays in the scope.
        """


class FlowStore(Protocol):
    """Flow control: which jobs a claim may take. `flow` says what the rules mean."""

    async def rules(self) -> flow.Rules:
        """The rules in force."""

    async def set_rules(self, rules: flow.Rules) -> bool:
        """Put rules into force if their version follows the current one; returns whether it did. Runs continue."""

    async def regroup(self, changes: Sequence[flow.Regroup]) -> list[bool]:
        """Give pending jobs other limit keys; for each, whether its guard held. A running job's places follow."""

    async def hold(self, bucket: str, seconds: float) -> None:
        """Start nothing of a bucket for `seconds`."""

    async def backlog(self, tenant: str, queue: str, limit: int) -> list[flow.LaneBacklog]:
        """What is queued (`tenant` may be `-`), at most `limit` jobs of each lane."""

    async def rank(self, key: JobKey) -> int | None:
        """How many jobs of its lane are ahead of a queued job (it may stop at `MOST_RANKED`); null = not queued."""

    async def usage(self, limit_rule: str, limit: int) -> list[flow.BucketUsage]:
        """State of a limit rule's buckets in use or waited for, at most `limit`."""


class WorkerStore(Protocol):
    """Workers, each kept for one lease after its last heartbeat."""

    async def heartbeat(
        self, id: str, tenant: str, lease: float, new: NewWorker | None = None, usage: WorkerUsage | None = None
    ) -> Worker | None:
        """Renew a tenant's worker; null if it was not known. `new` registers or replaces it, a lease of 0 ends it."""

    async def list(self, tenant: str) -> list[Worker]:
        """The workers that are alive."""


class RecordStore(Protocol):
    """Small records beside the jobs: tokens, limits, handlers. Compare-and-swap keeps concurrent edits apart."""

    async def swap(self, kind: str, name: str, before: bytes | data.Unchecked | None, after: bytes | None) -> bool:
        """Store `after` if the record is `before`, or `before` is `ANYTHING`; whether it did. Null = no record."""

    async def list(self, kind: str, names: Sequence[str] | None = None) -> dict[str, bytes]:
        """The records of a kind, by name: all of them, or those of `names` that exist."""


class Listener(Protocol):
    """Waits for wake-ups or events."""

    async def wait(self, seconds: float) -> list[str]:
        """What arrives within `seconds`: `WOKEN`, or lines of the feed, with `GAP` where some were missed.

        A wake-up does not say what happened, and may be lost: so poll as well.
        """


class EventStore(Protocol):
    """Wake-ups, and events for subscribers in all processes: short lines, delivered at most once."""

    @property
    def quiet(self) -> bool:
        """Whether there are no subscribers, as far as is known without a round trip."""

    def listen(self, topics: Sequence[str]) -> Opened[Listener]:
        """Wake-ups for topics, which `encoding` lists. `FEED` alone = what is published from now on by any process."""

    async def publish(self, lines: Sequence[str]) -> None:
        """Publish to the subscribers, if there are any; checks for them where that is not known."""


class Store(Protocol):
    """Where jobs live."""

    jobs: JobStore
    flow: FlowStore
    workers: WorkerStore
    records: RecordStore
    events: EventStore
    # Optional capabilities (`optional`); null = the store does not have it.
    journal: optional.JournalTarget | None
    disk: optional.LocalDisk | None
    space: optional.StoreSpace | None
    prepare: optional.Preparation | None
    audit: optional.AuditStore | None
    files: optional.FileStore | None
    steps: optional.StepStore | None

    async def close(self) -> None:
        """Close everything that was opened."""
