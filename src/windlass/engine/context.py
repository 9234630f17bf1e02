"""What all answers of one engine share: the store, settings, caches, and every write that changes jobs.

Finds a tenant's job and a worker, decides and writes moves. Each write publishes its events: an event travels as one
line, its name and the job's id and tenant; that of a deleted job also carries its queue, task and last state. Events
are best effort: a failed publish never fails the write. Knows no operation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from windlass.engine.batcher import Batcher
from windlass.engine.estimate.stats import RunStats
from windlass.engine.flow.config import FlowConfigCache
from windlass.model import lifecycle
from windlass.model.errors import Conflict, Missing, NotReplicated, PartAway, WindlassError
from windlass.model.events import move_event
from windlass.model.handler import HandlerEntry
from windlass.model.job import Job
from windlass.model.lifecycle import GONE, Move
from windlass.model.names import EVERY_TENANT, JobKey, OfTenant, check_id, key_of
from windlass.model.new_job import JobOptions
from windlass.model.ports import Randomness
from windlass.model.token import Locked
from windlass.model.wire import MOST_PAYLOAD, MOST_RESULT
from windlass.model.worker import NewWorker, Worker, WorkerUsage
from windlass.store.data import (
    Added,
    ClaimRequest,
    Draft,
    DrainReply,
    DrainRequest,
    DueJob,
    Duplicate,
    Heartbeat,
    HeartbeatReply,
    JobSuccess,
    Record,
    Sweep,
    stored_as,
)
from windlass.store.flow import FreeSlots, Room, StaleRules
from windlass.store.optional import JournalTarget
from windlass.store.protocol import Store

Decide = Callable[[Record, datetime], Move | None]
"""The move of a job as it was read at that time; null = none."""

MOST_ROUNDS = 8
"""How often a move is decided again because the job changed meanwhile."""

DELETED = "deleted"
"""The event of a deleted job."""

POLL_EVERY = 1.0
"""Seconds after which a waiting call polls the store: a wake-up may be lost."""

MOST_KNOWN_WORKERS = 10_000

FENCE_BYTES = 8

MOST_NAMED = 10
"""Tenants named in an error about an ambiguous id."""

TOUCH_PART = 0.25
"""The share of an owner timeout that must pass before it is reset again."""

MOST_TOUCHED = 10_000
"""Jobs whose last owner touch is remembered."""


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of an engine."""

    lease: float = 15.0
    """Seconds after which a job that was not renewed, or a silent worker, counts as lost."""
    most_payload: int = MOST_PAYLOAD
    """Bytes of one payload."""
    most_result: int = MOST_RESULT
    """Bytes of one result."""
    replicas: int | None = None
    """Replicas of a Redis store that must have a new job before it is accepted; null = as the store's URL says."""
    replicated_within: float = 1.0
    """Seconds to wait for them."""
    replicas_synced: bool = False
    """Whether they must have it on disk."""


class HandledTasks(NamedTuple):
    """The tasks that have handlers, cached."""

    until: float
    """When to read again, by the loop's clock."""
    tasks: Mapping[str, Mapping[str, HandlerEntry]]
    """By tenant."""


class StoreWrites:
    """The writes to a store that change jobs. Each publishes its events if any process listens."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(
        self, drafts: Sequence[Draft], *, wait_for_replicas: bool = False, slots: FreeSlots | None = None
    ) -> list[Added]:
        try:
            created = await self._store.jobs.add(drafts, wait_for_replicas=wait_for_replicas, slots=slots)
        except StaleRules as stale:  # the store may have kept some of them
            await self._publish_created(drafts, stale.answers)
            raise
        except NotReplicated:  # they are stored; which of them are new is unknown
            await self._publish_created(drafts, [True] * len(drafts))
            raise
        await self._publish_created(drafts, created)
        return created

    async def drain(self, target: JournalTarget, request: DrainRequest) -> DrainReply:
        """Move jobs from a journal into its store."""
        reply = await target.drain(request)
        await self._publish_created(request.drafts, reply.created)
        return reply

    async def _publish_created(self, drafts: Sequence[Draft], created: Sequence[Added | None]) -> None:
        if not self._store.events.quiet:
            pairs = zip(drafts, created, strict=False)  # `created` is empty if the jobs were drained before
            await self.publish_queued([stored_as(draft, new) for draft, new in pairs if new or _replaces(new)])

    async def publish_queued(self, keys: Sequence[JobKey]) -> None:
        await self._publish([_line("queued", key) for key in keys])

    async def claim(self, request: ClaimRequest) -> list[Record]:
        records = await self._store.jobs.claim(request)
        if not self._store.events.quiet:
            await self._publish([_line("started", record.job) for record in records])
        return records

    async def heartbeat(self, beats: Sequence[Heartbeat], lease: float) -> list[HeartbeatReply]:
        replies = await self._renew(beats, lease)
        if not self._store.events.quiet:
            held = [beat for beat, reply in zip(beats, replies, strict=True) if reply.held]
            lines = [_line("begun", beat) for beat in held if beat.pid is not None]
            lines += [_line("output", beat) for beat in held if beat.output]
            await self._publish(lines + [_line("progress", beat) for beat in held if beat.progress is not None])
        return replies

    async def _renew(self, beats: Sequence[Heartbeat], lease: float) -> list[HeartbeatReply]:
        """Each for as long as it says, or else for the lease that is given: a call of the store has one for all."""
        leases = {beat.lease or lease for beat in beats}
        if leases == {lease}:
            return await self._store.jobs.heartbeat(beats, lease)
        replies: dict[int, HeartbeatReply] = {}
        for length in leases:
            places = [place for place, beat in enumerate(beats) if (beat.lease or lease) == length]
            found = await self._store.jobs.heartbeat([beats[place] for place in places], length)
            replies |= zip(places, found, strict=True)
        return [replies[place] for place in range(len(beats))]

    async def succeed(self, successes: Sequence[JobSuccess]) -> list[bool]:
        held = await self._store.jobs.succeed(successes)
        if not self._store.events.quiet:
            await self._publish([_line("succeeded", one) for one, ok in zip(successes, held, strict=True) if ok])
        return held

    async def apply(self, moves: Sequence[Move], room: Room | None = None) -> list[bool]:
        deleted: dict[JobKey, Job] = {}
        if not self._store.events.quiet:
            deleted = await self._read([key_of(move) for move in moves if move.target is GONE])
        applied = await self._store.jobs.apply(moves, room)
        if not self._store.events.quiet:
            written = [move for move, done in zip(moves, applied, strict=True) if done]
            await self._publish([line for move in written if (line := _move_line(move, deleted)) is not None])
        return applied

    async def _read(self, keys: Sequence[JobKey]) -> dict[JobKey, Job]:
        """Jobs that are about to be deleted."""
        found = (await self._store.jobs.read(keys)).records if keys else []
        return {key_of(record.job): record.job for record in found if record is not None}

    async def sweep(self, sweep: Sweep, limit: int) -> int:
        """How many jobs or lanes it changed."""
        swept = await self._store.jobs.sweep(sweep, limit)
        if not self._store.events.quiet:
            dropped = [one for one in swept.jobs if not one.result_only]
            await self._publish(
                [_line("queued", one) if sweep is Sweep.PROMOTE else _deleted_line(one) for one in dropped]
            )
        return swept.count

    async def _publish(self, lines: list[str]) -> None:
        if lines:
            with suppress(WindlassError):
                await self._store.events.publish(lines)


def _replaces(added: Added | None) -> bool:
    return isinstance(added, Duplicate) and added.replaced


def _move_line(move: Move, deleted: Mapping[JobKey, Job]) -> str | None:
    if move.target is GONE:
        key = key_of(move)
        return _deleted_line(deleted[key]) if key in deleted else None
    name = move_event(move)
    return None if name is None else _line(name, move)


def _line(name: str, job: OfTenant) -> str:
    return f"{name} {job.id} {job.tenant}"


def _deleted_line(job: Job | DueJob) -> str:
    return f"{DELETED} {job.id} {job.tenant} {job.queue} {job.task} {job.state}"


class EngineContext:
    """The dependencies and caches of one engine."""

    def __init__(self, store: Store, chance: Randomness, settings: Settings, user: str) -> None:
        self.store = store
        self.user = user
        """Who asks where no server says who does."""
        self.writes = StoreWrites(store)
        self.flow_config = FlowConfigCache(store)
        self.chance = chance
        self.settings = settings
        self.batcher: Batcher[Draft, tuple[Record | None, bool]] | None = None
        """Of jobs that are enqueued one by one: see `new_jobs`."""
        self.stats = RunStats()
        self.handled_tasks: HandledTasks | None = None
        self.task_options: Mapping[str, JobOptions] = {}
        """What workers have registered, as it was last read, by `tenant/task`: see `records`."""
        self.reserved: frozenset[str] = frozenset()
        """Tasks of an app in the same process, as `tenant/task`: no handler may replace them."""
        # A worker's registration does not change, so it is read once. Its heartbeats show whether it is alive.
        self.known_workers: dict[str, Worker] = {}
        self.idle: set[str] = set()
        """Workers whose last claim had to wait: their next claim subscribes first and then asks once."""
        self.on_token: list[Callable[[str, Locked | None], None]] = []
        """Called for each token that is added here, or removed (null), by its key."""
        self._owner_touches = OwnerTouches()

    async def find(self, id: str, tenant: str, *, payload: bool = False) -> Record:
        """The record of a tenant's own job. Another tenant's job is not found."""
        return (await self.find_now(id, tenant, payload=payload))[0]

    async def keys(self, ids: Sequence[str], tenant: str) -> list[JobKey | None]:
        """The jobs that a tenant means by these ids. For all tenants: null = none; an id of several is refused."""
        if tenant != EVERY_TENANT:
            return [JobKey(id, tenant) for id in ids]
        found = zip(ids, await self.store.jobs.tenants_with(ids), strict=True)
        return [_only_key(id, tenants) for id, tenants in found]

    async def find_now(self, id: str, tenant: str, *, payload: bool = False) -> tuple[Record, datetime]:
        """The record and the store's time."""
        check_id(id)
        (key,) = await self.keys([id], tenant)
        if key is None:
            raise no_job(id)
        reading = await self.store.jobs.read([key], payload=payload)
        record = reading.records[0]
        if record is None:
            raise no_job(id)
        return record, reading.now

    async def find_for_owner(self, id: str, tenant: str, *, payload: bool = False) -> Record:
        """The record of a job for a caller who waits for it: also resets the job's owner timeout."""
        record, now = await self.find_now(id, tenant, payload=payload)
        await self._touch_owners([record], now)
        return record

    async def read_for_owner(self, keys: Sequence[JobKey]) -> list[Record | None]:
        """The same for many jobs; null where there is no such job."""
        reading = await self.store.jobs.read(keys)
        await self._touch_owners([record for record in reading.records if record is not None], reading.now)
        return reading.records

    async def _touch_owners(self, records: Sequence[Record], now: datetime) -> None:
        touches = self._owner_touches
        due = [one for one in records if one.job.owner_timeout is not None and touches.is_due(one.job, now)]
        if due and await self.move_records(due, now, touch_owner) < len(due):
            await self.move_jobs([key_of(one.job) for one in due], touch_owner)  # some have changed meanwhile
        for one in due:
            touches.note(key_of(one.job), now)

    async def move_jobs(self, keys: Sequence[JobKey], decide: Decide) -> set[JobKey]:
        """Read these jobs, decide and write their moves; the jobs that changed.

        The store refuses a move if the job changed after it was read. The job is then read and decided again.
        """
        changed: set[JobKey] = set()
        rest = list(dict.fromkeys(keys))
        for _ in range(MOST_ROUNDS):
            if not rest:
                break
            reading = await self.store.jobs.read(rest)
            moves = self._moves(reading.records, decide, reading.now)
            applied = await self.writes.apply(moves)
            changed |= {key_of(move) for move, done in zip(moves, applied, strict=True) if done}
            rest = [key_of(move) for move, done in zip(moves, applied, strict=True) if not done]
        return changed

    async def move_records(self, records: Sequence[Record | None], now: datetime, decide: Decide) -> int:
        """The same for jobs already read, without a second try; how many changed."""
        moves = self._moves(records, decide, now)
        return sum(await self.writes.apply(moves)) if moves else 0

    def _moves(self, records: Sequence[Record | None], decide: Decide, now: datetime) -> list[Move]:
        """The decided moves, each fenced by the token its job was read under."""
        decided = [(record, decide(record, now)) for record in records if record is not None]
        return [replace(move, fence=record.token) for record, move in decided if move is not None]

    def remember_worker(self, worker: Worker) -> None:
        if len(self.known_workers) >= MOST_KNOWN_WORKERS:
            self.forget_worker(next(iter(self.known_workers)))
        self.known_workers[worker.id] = worker

    def forget_worker(self, id: str) -> None:
        self.known_workers.pop(id, None)
        self.idle.discard(id)


class HasContext(Protocol):
    """An engine."""

    context: EngineContext


class OwnerTouches:
    """When this engine last reset the owner timeouts of jobs. A timeout is not reset on every call."""

    def __init__(self) -> None:
        self._touched_at: dict[JobKey, datetime] = {}

    def is_due(self, job: Job, now: datetime) -> bool:
        if lifecycle.touch_owner(job) is None:
            return False
        return now >= self._touched_at.get(key_of(job), job.created_at) + timedelta(seconds=touch_every(job))

    def note(self, key: JobKey, now: datetime) -> None:
        self._touched_at.pop(key, None)  # the least recently touched job is forgotten first
        if len(self._touched_at) >= MOST_TOUCHED:
            self._touched_at.pop(next(iter(self._touched_at)))
        self._touched_at[key] = now


def touch_every(job: Job) -> float:
    """Seconds after which a caller who waits for a job must ask again."""
    return math.inf if job.owner_timeout is None else job.owner_timeout * TOUCH_PART


def touch_owner(record: Record, _: datetime) -> Move | None:
    return lifecycle.touch_owner(record.job)


def no_job(id: str) -> Missing:
    return Missing(f"there is no job {id}", at="id")


def _only_key(id: str, tenants: Sequence[str]) -> JobKey | None:
    if len(tenants) > 1:
        raise ambiguous_id(id, tenants)
    return JobKey(id, tenants[0]) if tenants else None


def ambiguous_id(id: str, tenants: Sequence[str], at: str = "id") -> Conflict:
    named = ", ".join(tenants[:MOST_NAMED]) + (" and others" if len(tenants) > MOST_NAMED else "")
    return Conflict(f"several tenants have a job {id}: {named}; name the tenant", at=at)


@lru_cache(maxsize=1024)  # all jobs of one claim have the same
def fence(token: str) -> bytes:
    """The bytes of a token; empty if it is not one, which no job has."""
    try:
        given = bytes.fromhex(token)
    except ValueError:
        return b""
    return given if len(given) == FENCE_BYTES else b""


# Known workers


async def claiming_workers(context: EngineContext) -> list[Worker]:
    """The live workers that take jobs: not those that are draining."""
    return [worker for worker in await context.store.workers.list(EVERY_TENANT) if not worker.draining]


def lease_of(context: EngineContext, worker: NewWorker | None) -> float:
    """Seconds after which a silent worker counts as lost, and its jobs with it."""
    own = None if worker is None else worker.lease
    return context.settings.lease if own is None else min(own, context.settings.lease)


async def known_worker(context: EngineContext, id: str, tenant: str) -> Worker:
    """A tenant's worker, as it registered."""
    worker = context.known_workers.get(id) or await _heartbeat(context, id, tenant)
    if worker is None or worker.tenant != tenant:
        raise unknown_worker(id)
    context.remember_worker(worker)
    return worker


async def heard_of(context: EngineContext, id: str, tenant: str, usage: WorkerUsage | None) -> Worker:
    """Record a worker's heartbeat. If that partition of the store is away, a known worker continues; should it expire
    meanwhile, it learns so when the partition is back.
    """
    try:
        found = await _heartbeat(context, id, tenant, usage)
    except PartAway:
        found = context.known_workers.get(id)
        if found is None or found.tenant != tenant:
            raise
    if found is None:
        context.forget_worker(id)
        raise unknown_worker(id)
    return found


async def _heartbeat(context: EngineContext, id: str, tenant: str, usage: WorkerUsage | None = None) -> Worker | None:
    """Record a worker's heartbeat; null = there is no such worker, or it has expired."""
    lease = lease_of(context, context.known_workers.get(id))
    found = await context.store.workers.heartbeat(id, tenant, lease, usage=usage)
    if found is not None and lease_of(context, found) < lease:  # its own lease was not known here
        found = await context.store.workers.heartbeat(id, tenant, lease_of(context, found))
    return found


def unknown_worker(id: str) -> Missing:
    return Missing(f"there is no worker {id[:60]}: it was silent for a whole lease, or never registered", at="worker")
