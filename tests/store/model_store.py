"""The specification of a store: small, slow and obviously right.

One dict of jobs, one of workers, and `sorted`. No index, no counter, nothing to get out of step: what the real stores
answer is compared with what this one answers. It is no store for use, and nothing outside the tests knows it.
"""

import asyncio
import dataclasses
import itertools
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from tests.store.model_flow import Bounds, Lane, lane_of, rank, waiting
from windlass.model.audit import MOST_LINES_KEPT
from windlass.model.edit import JobEdit
from windlass.model.errors import Conflict, Invalid
from windlass.model.handler import NO_HANDLER, HandlerRun
from windlass.model.job import FINISHED, PENDING, Job, Reason, State
from windlass.model.lifecycle import GONE, STOP_ORDERS, Move, Step, enter
from windlass.model.names import EVERY_TENANT, JobKey, OfTenant, key_of
from windlass.model.new_job import NewJob, Terms
from windlass.model.outcome import Verdict
from windlass.model.output import MOST_INPUT, MOST_KEPT, MOST_MESSAGES, MOST_OUTPUT, Chunk, Message, NewChunk
from windlass.model.ports import Clock
from windlass.model.unique import duplicate_refused, edit_refused, settle
from windlass.model.worker import NewWorker, Worker, WorkerUsage
from windlass.store.data import (
    ANYTHING,
    MOST_CHILDREN,
    ORDER_STEPS,
    SEEN_EVERY,
    WOKEN,
    Added,
    ClaimRequest,
    CompletedParent,
    Counts,
    Dependency,
    Draft,
    DueJob,
    Duplicate,
    Heartbeat,
    HeartbeatReply,
    JobCount,
    JobSuccess,
    ListScope,
    Overdue,
    OverdueJobs,
    Posted,
    Reading,
    Record,
    RecordPage,
    RunCount,
    StoredResult,
    Sweep,
    SweepReply,
    Unchecked,
    shuffled,
    turns_of_queues,
)
from windlass.store.encoding import end_topic
from windlass.store.flow import (
    YIELDING,
    BucketUsage,
    FreeSlots,
    LaneBacklog,
    NoFreeSlot,
    Regroup,
    Room,
    RoomNeed,
    Rules,
    StaleRules,
    TierSlots,
)
from windlass.store.optional import (
    AuditRow,
    AuditRows,
    AuditStore,
    FileStore,
    JournalTarget,
    LocalDisk,
    Preparation,
    StepStore,
    StoreSpace,
    audit_cursor,
)
from windlass.store.protocol import EventStore, FlowStore, JobStore, RecordStore, WorkerStore

MOST_ERRORS = 100


@dataclass
class Entry:
    """Everything there is of one job."""

    job: Job
    payload: bytes
    arrival: int
    group: str = ""
    seconds: float | None = None
    """How long a run may take at the tier that it was assigned."""
    token: bytes | None = None
    lease_until: datetime | None = None
    expires_at: datetime | None = None
    abandon_at: datetime | None = None
    purge_at: datetime | None = None
    result: StoredResult | None = None
    drop_result_at: datetime | None = None
    """When the result goes, if its record outlives it; null again when that is done."""
    files: dict[str, bytes] = field(default_factory=dict)
    output: list[Chunk] = field(default_factory=list)
    put_out: int = 0
    followed: bool = False
    input: list[Message] = field(default_factory=list)
    sent: int = 0
    got: int = 0

    def swept(self, *, result_only: bool = False) -> DueJob:
        job = self.job
        return DueJob(job.id, job.tenant, job.queue, job.task, job.state, result_only)

    def keep_clock(self) -> datetime | None:
        return self.drop_result_at or self.purge_at

    def post(self, data: bytes, most: int | None) -> Posted:
        if most is not None and self.got + len(data) > most:
            return Posted.OVER
        if len(self.input) >= MOST_MESSAGES or sum(len(one.data) for one in self.input) + len(data) > MOST_INPUT:
            return Posted.FULL
        self.sent += 1
        self.got += len(data)
        self.input.append(Message(self.sent, data))
        return Posted.KEPT

    def put(self, chunk: NewChunk, now: datetime) -> None:
        self.put_out += 1
        said = Chunk(stream=chunk.stream, data=chunk.data, n=self.put_out, attempt=self.job.attempt, at=now)
        self.output.append(said)
        while len(self.output) > MOST_KEPT or sum(len(kept.data) for kept in self.output) > MOST_OUTPUT:
            del self.output[0]

    def note(self, ran: HandlerRun) -> None:
        if ran != NO_HANDLER:
            self.change(sandbox=ran.sandbox, handler_version=ran.handler_version)

    def change(self, **fields: Any) -> None:
        self.job = replace(self.job, **fields)

    def handed_out(self) -> Record:
        return replace(self.record(payload=True), files=self.files)

    def record(self, *, payload: bool = False) -> Record:
        last = self.job.errors[-1] if self.job.errors else None
        job = replace(self.job, deadline=self.deadline(), error=last)
        return Record(job, self.token, self.payload if payload else None, group=self.group)

    def deadline(self) -> datetime | None:
        bounds = [seconds for seconds in (self.job.timeout, self.seconds) if seconds is not None]
        return later(self.job.started_at, min(bounds, default=None)) if self.job.state is State.RUNNING else None

    def leave(self) -> None:
        """It runs no more, or it never did."""
        if self.token is not None or self.job.state in FINISHED:
            self.input, self.sent, self.got = [], 0, 0
        self.token = self.lease_until = self.seconds = None
        self.change(assigned=None, usage=None)


@dataclass
class Sequels:
    """What is to happen when a job has ended. Outlives the job until it has happened."""

    then: NewJob | None = None
    children: set[str] = field(default_factory=set)
    result: StoredResult | None = None
    """What was kept for one reading, and has been read."""


@dataclass
class WakeupListener:
    """Somebody who listens."""

    topics: Collection[str]
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, seconds: float) -> list[str]:
        try:
            async with asyncio.timeout(seconds):
                await self.heard.wait()
        except TimeoutError:
            return []
        self.heard.clear()
        return [WOKEN]


IN_PLACE = ORDER_STEPS | {Step.TOUCH_OWNER, Step.MEET, Step.ADOPT, Step.EDIT, Step.DEFER}
"""Steps that leave a job in its state."""


class ModelJobs:
    """Jobs, and what the other facets share with them."""

    def __init__(self, clock: Clock, events: "ModelEvents") -> None:
        self.clock = clock
        self._notify = events.notify
        self._jobs: dict[JobKey, Entry] = {}
        self.workers = ModelWorkers(clock, self)
        self._arrivals = itertools.count(1)
        self._sequels: dict[JobKey, Sequels] = {}
        self._completed: dict[JobKey, tuple[int, State | None]] = {}
        self._identities: dict[bytes, JobKey] = {}
        """The last job that was added under each."""
        self._marks = itertools.count(1)
        self.bounds = Bounds()
        self._outcomes: Counter[tuple[str, str, str, Verdict]] = Counter()
        self.open: set[Lane] = set()

    # Jobs come, are claimed, and end

    async def add(
        self, drafts: Sequence[Draft], *, wait_for_replicas: bool = False, slots: FreeSlots | None = None
    ) -> list[Added]:
        del wait_for_replicas  # there are none
        if slots is not None and not self._admits(drafts, slots):
            raise NoFreeSlot
        now = self.clock.now()
        if any(draft.group_epoch != self.bounds.rules.group_epoch for draft in drafts):
            raise StaleRules
        sequels = {key: dataclasses.replace(one, children={*one.children}) for key, one in self._sequels.items()}
        before = self._jobs.copy(), sequels, self._identities.copy()
        try:
            new = [self._settle(draft, now) for draft in drafts]
        except Conflict:  # of a whole partition; no walk sends a batch to several with a job that may be rejected
            self._jobs, self._sequels, self._identities = before
            raise
        self.settle()
        return new

    def _settle(self, draft: Draft, now: datetime) -> Added:
        """Add a job, unless it is unique and there is another one."""
        if key_of(draft) in self._jobs:
            return False
        if not draft.identity:
            return self._add(draft, now)
        other = self._jobs.get(self._identities.get(draft.identity, key_of(draft)))
        how = settle(draft.new, other.job.state, now - other.job.created_at, follows=draft.follows) if other else "add"
        if other is None or how == "add":
            self._identities[draft.identity] = key_of(draft)
            return self._add(draft, now)
        if how == "reject":
            raise duplicate_refused(draft.new, other.job.id, other.job.state)
        if how == "replace":
            self._make_way(other)
            self._add(replace(draft, id=other.job.id), now)
            if self._sequels.get(key_of(other.job), Sequels()).children:
                self._jobs[key_of(other.job)].followed = True
        return Duplicate(other.job.id, replaced=how == "replace")

    def _make_way(self, entry: Entry) -> None:
        """A job is replaced; those that wait for it go on to wait."""
        key = key_of(entry.job)
        del self._jobs[key]
        if (sequels := self._sequels.get(key)) is not None:
            sequels.result = None
            if key not in self._completed:
                sequels.then = None

    def _admits(self, drafts: Sequence[Draft], slots: FreeSlots) -> bool:
        fresh, where = {key_of(draft) for draft in drafts} - self._jobs.keys(), slots.where
        queued = [e for e in self.entries(State.QUEUED) if (e.job.tenant, e.job.queue) == (where.tenant, where.queue)]
        promised = sum(entry.group.startswith(YIELDING) for entry in queued)
        return not fresh or self._free_slots(where) - promised - slots.ahead >= len(fresh)

    def _free_slots(self, where: TierSlots) -> int:
        held = Counter(entry.job.worker for entry in self.entries(State.RUNNING))
        return sum(max(0, slots - held[worker]) for worker, slots in where.slots.items())

    def _add(self, draft: Draft, now: datetime) -> bool:
        if key_of(draft) in self._jobs:
            return False
        new = draft.new
        state, due = enter(new, now)
        job = Job(
            **{name: getattr(new, name) for name in Terms.__struct_fields__},
            id=draft.id,
            tenant=draft.tenant,
            state=state,
            waits_for=new.after,
            run_at=due.astimezone(UTC) if due else None,
            created_at=now,
            updated_at=now,
            size=len(bytes(new.payload)),
        )
        entry = Entry(job, bytes(new.payload), next(self._arrivals), group=draft.group, files=new.files)
        entry.expires_at = later(now, new.expires)
        entry.abandon_at = later(now, new.owner_timeout)
        self._jobs[key_of(job)] = entry
        entry.followed = new.then is not None or new.on_failure is not None
        if new.then is not None:
            self._sequels.setdefault(key_of(job), Sequels()).then = new.then
        if job.state is State.QUEUED:
            self._notify(f"work/{job.queue}")
        return True

    async def claim(self, request: ClaimRequest) -> list[Record]:
        now, worker = self.clock.now(), request.worker
        if request.heard:
            await self.workers.claims(worker.id, request.lease)
        held = [e for e in self.entries(State.RUNNING) if e.job.worker == worker.id and e.token == request.nonce]
        if held:
            held.sort(key=lambda entry: (worker.queues.index(entry.job.queue), *rank(entry)))
            return [entry.handed_out() for entry in held]
        taken: list[Entry] = []
        while len(taken) < request.slots and (entry := self._first(request, taken)):
            self._start(entry, request, now)
            taken.append(entry)
        self.settle()
        return [entry.handed_out() for entry in taken]

    def _first(self, request: ClaimRequest, taken: list[Entry]) -> Entry | None:
        """The job that a worker takes next, after these."""
        worker = request.worker
        free = self.settle()
        fit = [entry for entry in free if self._may_take(worker, entry.job)]
        if "queues" in request.turns:
            fit = _of_next_queue(request, fit, taken)
        for queue in worker.queues:
            if there := [entry for entry in fit if entry.job.queue == queue]:
                return self.bounds.first(self._whose_turn(request, queue, there, taken), free, request.warm)
        return None

    def _whose_turn(self, request: ClaimRequest, queue: str, fit: list[Entry], taken: list[Entry]) -> list[Entry]:
        """Of the jobs of a queue, those of the tenant and the task whose turn it is in this claim."""
        if queue in self.bounds.rules.fair_queues or f"-,{queue}" in request.in_order:
            return fit
        if "tenants" in request.turns:
            fit = _next_turn(request, lambda job: f"{job.tenant},{job.queue}", fit, taken)
        line = {f"{entry.job.tenant},{entry.job.queue}" for entry in fit}
        if "tasks" in request.turns and not line & request.in_order and not any(map(self.bounds.is_fair, line)):
            fit = _next_turn(request, lambda job: f"{job.tenant},{job.queue},{job.task}", fit, taken)
        return fit

    def _start(self, entry: Entry, request: ClaimRequest, now: datetime) -> None:
        tier = self.bounds.tiers(entry, self.entries(State.RUNNING))[-1]
        self.bounds.start(entry, now)
        entry.token, entry.lease_until, entry.expires_at = request.nonce, later(now, request.lease), None
        entry.seconds = tier.seconds if tier else None
        entry.change(
            state=State.RUNNING,
            attempt=entry.job.attempt + 1,
            reason=None,
            worker=request.worker.id,
            node=request.worker.node or None,
            adopted_by=None,
            adopted_at=None,
            sandbox=None,
            handler_version=None,
            pid=None,
            progress=None,
            started_at=now,
            updated_at=now,
            assigned=tier.name if tier else None,
        )

    def _may_take(self, worker: Worker, job: Job) -> bool:
        return (
            job.queue in worker.queues
            and worker.tenant in (EVERY_TENANT, job.tenant)
            and (worker.tasks is None or bool({job.task, f"{job.tenant}/{job.task}"} & set(worker.tasks)))
        )

    async def heartbeat(self, beats: Sequence[Heartbeat], lease: float) -> list[HeartbeatReply]:
        now = self.clock.now()
        return [self._heartbeat(beat, lease, now) for beat in beats]

    def _heartbeat(self, beat: Heartbeat, lease: float, now: datetime) -> HeartbeatReply:
        entry = self._held(beat, beat.token)
        if entry is None:
            return HeartbeatReply(beat.id, held=False)
        entry.lease_until = later(now, lease)
        if beat.pid is not None:
            entry.change(pid=beat.pid, updated_at=now)
        if beat.progress is not None:
            entry.change(progress=beat.progress, updated_at=now)
        if beat.usage is not None:
            entry.change(usage=beat.usage)
        entry.note(beat.ran)
        if beat.files_loaded:
            entry.files = {}
        for chunk in beat.output:
            entry.put(chunk, now)
        deadline = entry.deadline() if entry.seconds is not None else None
        messages: list[Message] = []
        if beat.messages_after is not None:
            entry.input = [message for message in entry.input if message.n > beat.messages_after]
            messages = list(entry.input)
        return HeartbeatReply(beat.id, held=True, reason=entry.job.reason, deadline=deadline, messages=messages)

    async def succeed(self, successes: Sequence[JobSuccess]) -> list[bool]:
        now = self.clock.now()
        applied = [self._succeed(done, now) for done in successes]
        self.settle()
        return applied

    def _succeed(self, done: JobSuccess, now: datetime) -> bool:
        entry = self._held(done, done.token)
        if entry is None:
            return False
        self._count(entry.job, Verdict.OK)
        keep = 0 if entry.job.reason is Reason.DELETED else entry.job.keep_success
        if done.result is not None and entry.job.keep_result != "none":
            entry.result = StoredResult(done.result, done.content_type)
            held = entry.job.keep_result_for
            if held is not None and (keep is None or held < keep):
                entry.drop_result_at = later(now, held)
        entry.change(state=State.SUCCEEDED, reason=done.reason, code=done.code, updated_at=now)
        entry.note(done.ran)
        self._end(entry, done.finished_at, keep, now)
        return True

    async def apply(self, moves: Sequence[Move], room: Room | None = None) -> list[bool]:
        now = self.clock.now()
        applied = []
        for place, move in enumerate(moves):
            is_needed = room is None or self._is_needed(move, room.needs[place], room)
            applied.append(is_needed and self._apply(move, now))
        self.settle()
        return applied

    def _is_needed(self, move: Move, need: RoomNeed, room: Room) -> bool:
        if need.waiting is not None and not self._is_queued(need.waiting):
            return False
        if need.full is not None:
            running = self.entries(State.RUNNING)
            job = self._jobs[key_of(move)].job
            numbers = [number for number, level in enumerate(self.bounds.levels(job)) if level.name == need.full]
            return any(
                number and self.bounds.taken(job, number, running) >= self.bounds.levels(job)[number].cap
                for number in numbers
            )
        seen = [self._jobs[key].job for key in room.may_stop if key in self._jobs]
        stopping = sum(job.state is State.RUNNING and job.reason in STOP_ORDERS for job in seen)
        ahead = sum(map(self._is_queued, room.ahead[: need.ahead]))
        return self._free_slots(room.where) + stopping - ahead < need.slots

    def _is_queued(self, key: JobKey) -> bool:
        entry = self._jobs.get(key)
        return entry is not None and entry.job.state is State.QUEUED

    def _apply(self, move: Move, now: datetime) -> bool:
        entry = self._jobs.get(key_of(move))
        if entry is None or not self._allows(entry, move, now):
            return False
        if move.target == entry.job.state and move.step not in IN_PLACE:
            raise NotImplementedError(f"the model was not taught {move.step}")
        self._count(entry.job, move.outcome)
        if move.owner_timeout is not None:
            entry.abandon_at = later(now, move.owner_timeout)
        self._edit(entry, move, now)
        if move.step in (Step.TOUCH_OWNER, Step.EDIT):
            return True
        if move.lapsed == "owner":
            entry.abandon_at = None
        if move.target is GONE:
            if entry.job.state not in FINISHED:
                self._complete(entry, None)
            self._vanish(entry)
        elif move.target is State.BLOCKED:
            entry.change(waits_for=move.waits_for)
        elif move.target is State.RUNNING:
            self._notify(f"order/{entry.job.worker}")
            self._change_run(entry, move, now)
        else:
            self._write(entry, move, now)
        return True

    def _edit(self, entry: Entry, move: Move, now: datetime) -> None:
        if (change := move.edit) is not None:
            if change.new is not None:
                self._rewrite(entry, change, change.new, now)
            updated_at = entry.job.updated_at if entry.job.state in FINISHED else now
            entry.change(edits=entry.job.edits + 1, annotations=dict(change.annotations), updated_at=updated_at)

    def _rewrite(self, entry: Entry, change: JobEdit, new: NewJob, now: datetime) -> None:
        if change.group_epoch != self.bounds.rules.group_epoch:
            raise StaleRules
        if change.identity:
            other = self._jobs.get(self._identities.get(change.identity, key_of(entry.job)), entry)
            if other is not entry and settle(new, other.job.state, now - other.job.created_at) != "add":
                raise edit_refused(other.job.id, other.job.state)
            own = {key: one for key, one in self._identities.items() if one != key_of(entry.job)}
            self._identities = own | {change.identity: key_of(entry.job)}
        if new.queue != entry.job.queue:
            entry.arrival = next(self._arrivals)
        entry.payload, entry.group = bytes(new.payload), change.group
        terms = {name: getattr(new, name) for name in Terms.__struct_fields__}
        entry.change(**terms, size=len(entry.payload))
        if entry.job.state is State.QUEUED:
            self._notify(f"work/{entry.job.queue}")

    def _change_run(self, entry: Entry, move: Move, now: datetime) -> None:
        entry.change(reason=move.reason, updated_at=now)
        if move.assigned:
            name, entry.seconds = move.assigned
            entry.change(assigned=name)
        if (adopter := move.adopter) is not None:
            entry.token, entry.lease_until = adopter.token, later(now, adopter.lease)
            place = {"worker": adopter.worker, "node": adopter.node or None}
            entry.change(**place, adopted_by=adopter.worker, adopted_at=adopter.at, usage=None)

    def _allows(self, entry: Entry, move: Move, now: datetime) -> bool:
        job = entry.job
        if (job.state, job.attempt, job.reason) != (move.source, move.attempt_before, move.reason_before):
            return False
        if job.state is State.RUNNING and (entry.token, job.assigned) != (move.fence, move.assigned_before):
            return False
        if job.waits_for != move.waits_before:
            return False
        if move.edit is not None and job.edits != move.edit.number:
            return False
        until = entry.lease_until if move.lapsed == "lease" else entry.abandon_at
        return move.lapsed is None or (until is not None and until <= now)

    def _write(self, entry: Entry, move: Move, now: datetime) -> None:
        errors = [*entry.job.errors, *([move.error] if move.error else [])][-MOST_ERRORS:]
        entry.change(
            state=move.target,
            reason=move.reason,
            attempt=move.attempt,
            crashes=move.crashes,
            losses=move.losses,
            run_at=move.run_at,
            code=move.code,
            waits_for=[],
            errors=errors,
            updated_at=now,
        )
        entry.note(move.ran)
        if move.step is Step.RERUN:
            entry.result = entry.drop_result_at = entry.expires_at = None
            self._forget_spent(key_of(entry.job))
            entry.output = []
            entry.change(progress=None)
        if move.target in FINISHED:
            self._end(entry, move.finished_at, move.keep, now)
            return
        entry.leave()
        entry.purge_at = None
        entry.change(finished_at=None)
        if move.target is State.QUEUED:
            self._notify(f"work/{entry.job.queue}")

    def _end(self, entry: Entry, finished_at: datetime | None, keep: float | None, now: datetime) -> None:
        entry.leave()
        entry.abandon_at = None
        entry.purge_at = later(now, keep)
        ended = (finished_at or now).astimezone(UTC)
        entry.change(finished_at=max(ended, entry.job.started_at or ended))
        self._complete(entry, entry.job.state)
        if keep == 0:
            self._vanish(entry)
        self._notify(end_topic(key_of(entry.job)))

    # Jobs are looked at

    async def read(self, keys: Sequence[JobKey], *, payload: bool = False) -> Reading:
        found = [self._jobs[key].record(payload=payload) if key in self._jobs else None for key in keys]
        return Reading(self.clock.now(), found)

    async def tenants_with(self, ids: Sequence[str]) -> list[list[str]]:
        return [sorted(key.tenant for key in self._jobs if key.id == id) for id in ids]

    async def results(self, keys: Sequence[JobKey], *, spend: bool = True) -> list[StoredResult | None]:
        return [self._result(key, spend) for key in keys]

    def _result(self, key: JobKey, spend: bool) -> StoredResult | None:
        entry = self._jobs.get(key)
        if entry is None or (entry.drop_result_at is not None and entry.drop_result_at <= self.clock.now()):
            return None
        kept = entry.result
        if entry.job.keep_result == "once" and spend:
            self._spend(entry)
        return kept

    def _spend(self, entry: Entry) -> None:
        """A result goes, but for the job that follows."""
        key, kept, entry.result = key_of(entry.job), entry.result, None
        if kept and entry.followed and key in self._completed:
            self._sequels.setdefault(key, Sequels()).result = kept

    async def output(self, key: JobKey, after: int, limit: int) -> list[Chunk]:
        entry = self._jobs.get(key)
        return [chunk for chunk in entry.output if chunk.n > after][:limit] if entry else []

    def _count(self, job: Job, outcome: Verdict | None) -> None:
        if outcome is not None:
            self._outcomes[job.tenant, job.queue, job.task, outcome] += 1

    async def counts(self, tenant: str) -> Counts:
        jobs = (entry.job for entry in self._jobs.values() if tenant in (EVERY_TENANT, entry.job.tenant))
        counts = Counter((job.tenant, job.queue, job.task, job.state) for job in jobs)
        runs = [(names, count) for names, count in self._outcomes.items() if tenant in (EVERY_TENANT, names[0])]
        return Counts(
            [JobCount(*names, count) for names, count in sorted(counts.items())],
            [RunCount(*names, count) for names, count in sorted(runs)],
        )

    # They are sent messages

    async def post(self, key: JobKey, message: bytes, most: int | None = None) -> Posted:
        entry = self._jobs.get(key)
        if entry is None or entry.job.state in FINISHED:
            return Posted.ENDED
        posted = entry.post(message, most)
        if posted is Posted.KEPT and entry.job.state is State.RUNNING:
            self._notify(f"order/{entry.job.worker}")
        return posted

    # Clocks run out

    async def sweep(self, sweep: Sweep, limit: int) -> SweepReply:
        now = self.clock.now()
        if sweep is Sweep.UNBLOCK:
            before = self.open
            self.settle()
            return SweepReply(min(len(self.open - before), limit))
        if sweep is Sweep.PROMOTE:
            due = self._due(self.entries(State.SCHEDULED), lambda entry: entry.job.run_at, now)[:limit]
            for entry in due:
                entry.change(state=State.QUEUED, updated_at=now)
                self._notify(f"work/{entry.job.queue}")
            self.settle()
            return SweepReply(len(due), [entry.swept() for entry in due])
        due = self._due(self.entries(*FINISHED), Entry.keep_clock, now)[:limit]
        return SweepReply(len(due), [self._drop(entry, now) for entry in due])

    def _drop(self, entry: Entry, now: datetime) -> DueJob:
        """A keep clock has run out: of the record, or of its result."""
        if entry.drop_result_at is None or (entry.purge_at is not None and entry.purge_at <= now):
            self._vanish(entry)
            return entry.swept()
        entry.drop_result_at = None
        self._spend(entry)
        return entry.swept(result_only=True)

    async def next_due(self, sweep: Sweep, queues: Sequence[str] = ()) -> float | None:
        now = self.clock.now()
        if sweep is Sweep.UNBLOCK:
            queued = [entry for entry in self.entries(State.QUEUED) if entry.job.queue in queues]
            return self.bounds.next_opening(queued, self.entries(State.RUNNING), now)
        due_at = [entry.job.run_at for entry in self.entries(State.SCHEDULED) if entry.job.run_at is not None]
        return max((min(due_at) - now).total_seconds(), 0.0) if due_at else None

    async def overdue(self, clock: Overdue, limit: int) -> OverdueJobs:
        now = self.clock.now()
        if clock is Overdue.LEASE:
            due = self._due(self.entries(State.RUNNING), lambda entry: entry.lease_until, now)
        elif clock is Overdue.OWNER:
            due = self._due(self.entries(*PENDING), lambda entry: entry.abandon_at, now)
        else:
            waiting = self.entries(State.BLOCKED, State.SCHEDULED, State.QUEUED)
            due = self._due(waiting, lambda entry: entry.expires_at, now)
        return OverdueJobs(now, [entry.record() for entry in due[:limit]])

    def _due(self, entries: Iterable[Entry], until: Callable[[Entry], datetime | None], now: datetime) -> list[Entry]:
        found = ((when, entry.arrival, entry) for entry in entries if (when := until(entry)) and when <= now)
        return [entry for _, _, entry in sorted(found, key=lambda item: item[:2])]

    def settle(self) -> list[Entry]:
        """See what could start, whose turn it is, and who is to hear of it: after each change, and as time passes."""
        free = self.bounds.open(self.entries(State.QUEUED), self.entries(State.RUNNING), self.clock.now())
        before, self.open = self.open, {lane_of(entry) for entry in free}
        self.bounds.settle(self.open, self.entries(State.QUEUED))
        for _, queue, _, _ in self.open - before:
            self._notify(f"work/{queue}")
        return free

    # Jobs wait for jobs

    async def add_dependencies(self, edges: Sequence[Dependency]) -> list[State | None]:
        return [self._bind(edge) for edge in edges]

    def _bind(self, edge: Dependency) -> State | None:
        parent = JobKey(edge.parent, edge.tenant)
        entry = self._jobs.get(parent)
        if entry is None:
            return self._completed.get(parent, (0, None))[1]
        if entry.job.state not in FINISHED:
            entry.followed = True
            self._sequels.setdefault(parent, Sequels()).children.add(edge.child)
        return entry.job.state

    def _complete(self, entry: Entry, state: State | None) -> None:
        if entry.followed:
            self._completed[key_of(entry.job)] = next(self._marks), state

    def _vanish(self, entry: Entry) -> None:
        key = key_of(entry.job)
        del self._jobs[key]
        self._identities = {identity: last for identity, last in self._identities.items() if last != key}
        self._forget_spent(key)
        if entry.followed and key not in self._completed:
            self._sequels.pop(key, None)

    def _forget_spent(self, key: JobKey) -> None:
        if key in self._sequels:
            self._sequels[key].result = None

    async def completed_parents(self, done: Sequence[CompletedParent], limit: int) -> list[CompletedParent]:
        for one in done:
            key = key_of(one)
            sequels = self._sequels.get(key) or Sequels()
            sequels.children -= set(one.children)
            if self._completed.get(key, (0, None))[0] != one.mark or sequels.children:
                continue
            del self._completed[key]
            sequels.result = None
            entry = self._jobs.get(key)
            if entry is None or not entry.followed:
                self._sequels.pop(key, None)
        first = sorted((mark, key, state) for key, (mark, state) in self._completed.items())[:limit]
        return [self._reported(key, mark, state) for mark, key, state in first]

    def _reported(self, key: JobKey, mark: int, state: State | None) -> CompletedParent:
        sequels, entry = self._sequels.get(key) or Sequels(), self._jobs.get(key)
        result = (entry.result if entry else None) or sequels.result
        children = sorted(sequels.children)[:MOST_CHILDREN]
        return CompletedParent(*key, mark, state, children, sequels.then, result if sequels.then else None)

    def entry(self, key: JobKey) -> Entry | None:
        return self._jobs.get(key)

    def entries(self, *states: State) -> list[Entry]:
        """All there is of the jobs in these states, in order of arrival."""
        return [entry for entry in self._jobs.values() if entry.job.state in states]

    def _held(self, job: OfTenant, token: bytes) -> Entry | None:
        entry = self._jobs.get(key_of(job))
        return entry if entry and entry.job.state is State.RUNNING and entry.token == token else None

    async def list(self, scope: ListScope, after: str | None, limit: int) -> RecordPage:
        def place(entry: Entry) -> tuple[bytes, bytes, int]:
            arrival = -entry.arrival if scope.newest_first else entry.arrival
            return entry.job.tenant.encode(), entry.job.queue.encode(), arrival

        start = read_cursor(after) if after is not None else (b"", b"", -(2**62))
        fit = (
            entry
            for entry in self.entries(*scope.states)
            if scope.tenant in (EVERY_TENANT, entry.job.tenant) and scope.queue in (None, entry.job.queue)
        )
        found = sorted((entry for entry in fit if place(entry) > start), key=place)
        page = found[:limit]
        following = write_cursor(place(page[-1])) if len(found) > limit else None
        return RecordPage([entry.record() for entry in page], following)


class ModelFlow:
    """Flow control."""

    def __init__(self, jobs: ModelJobs) -> None:
        self._jobs = jobs

    async def rules(self) -> Rules:
        return self._jobs.bounds.rules

    async def set_rules(self, rules: Rules) -> bool:
        done = self._jobs.bounds.set_rules(rules)
        self._jobs.settle()
        return done

    async def regroup(self, changes: Sequence[Regroup]) -> list[bool]:
        done = [self._regroup(change) for change in changes]
        self._jobs.settle()
        return done

    def _regroup(self, change: Regroup) -> bool:
        entry = self._jobs.entry(key_of(change))
        if entry is None or entry.group != change.before or entry.job.state in FINISHED:
            return False
        entry.group = change.after
        return True

    async def hold(self, bucket: str, seconds: float) -> None:
        self._jobs.bounds.hold(bucket, self._jobs.clock.now() + timedelta(seconds=seconds))
        self._jobs.settle()

    async def backlog(self, tenant: str, queue: str, limit: int) -> list[LaneBacklog]:
        queued = [entry for entry in self._jobs.entries(State.QUEUED) if entry.job.queue == queue]
        return waiting([entry for entry in queued if tenant in (EVERY_TENANT, entry.job.tenant)], limit)

    async def rank(self, key: JobKey) -> int | None:
        queued = self._jobs.entries(State.QUEUED)
        own = next((entry for entry in queued if key_of(entry.job) == key), None)
        return None if own is None else sum(lane_of(one) == lane_of(own) and rank(one) < rank(own) for one in queued)

    async def usage(self, limit_rule: str, limit: int) -> list[BucketUsage]:
        queued, running = self._jobs.entries(State.QUEUED), self._jobs.entries(State.RUNNING)
        return self._jobs.bounds.usage(limit_rule, queued, running, self._jobs.clock.now())[:limit]


class ModelWorkers:
    """Workers."""

    def __init__(self, clock: Clock, jobs: ModelJobs) -> None:
        self._clock = clock
        self._jobs = jobs
        self._workers: dict[str, tuple[Worker, datetime]] = {}

    async def heartbeat(
        self, id: str, tenant: str, lease: float, new: NewWorker | None = None, usage: WorkerUsage | None = None
    ) -> Worker | None:
        now = self._clock.now()
        if new is not None:
            said = {name: getattr(new, name) for name in NewWorker.__struct_fields__}
            known = self._alive(id) and self._workers[id][0].tenant == tenant
            since = self._workers[id][0].registered_at if known else now
            worker = Worker(**said, id=id, tenant=tenant, registered_at=since, seen_at=now)
        elif not self._alive(id) or self._workers[id][0].tenant != tenant:
            return None
        else:
            worker = replace(self._workers[id][0], seen_at=now)
        before = self._workers[id][0].usage if self._alive(id) else None
        worker = replace(worker, usage=usage or before)
        self._workers[id] = worker, now + timedelta(seconds=lease)
        return self._counted(worker)

    async def claims(self, id: str, lease: float) -> None:
        """A claim is a heartbeat."""
        if self._alive(id):
            known, _ = self._workers[id]
            if self._clock.now() - known.seen_at >= timedelta(seconds=SEEN_EVERY):
                await self.heartbeat(id, known.tenant, lease)

    def _alive(self, id: str) -> bool:
        return id in self._workers and self._workers[id][1] > self._clock.now()

    def _counted(self, worker: Worker) -> Worker:
        return replace(
            worker, running=sum(entry.job.worker == worker.id for entry in self._jobs.entries(State.RUNNING))
        )

    async def list(self, tenant: str) -> list[Worker]:
        alive = [worker for id, (worker, _) in self._workers.items() if self._alive(id)]
        found = [self._counted(worker) for worker in alive if tenant in (EVERY_TENANT, worker.tenant)]
        return sorted(found, key=lambda worker: (worker.registered_at, worker.id))


class ModelRecords:
    """Records beside the jobs."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], bytes] = {}

    async def swap(self, kind: str, name: str, before: bytes | Unchecked | None, after: bytes | None) -> bool:
        if before is not ANYTHING and self._records.get((kind, name)) != before:
            return False
        self._records.pop((kind, name), None)
        if after is not None:
            self._records[kind, name] = after
        return True

    async def list(self, kind: str, names: Sequence[str] | None = None) -> dict[str, bytes]:
        found = {name: data for (one, name), data in self._records.items() if one == kind}
        return found if names is None else {name: found[name] for name in names if name in found}


class ModelAudit:
    """The audit log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: list[tuple[int, AuditRow]] = []
        self._last = 0

    async def add(self, tenant: str, line: bytes) -> None:
        self._last += 1
        self._lines.append((self._last, AuditRow(self._clock.now(), tenant, line)))
        own = [one for one in self._lines if one[1].tenant == tenant]
        if len(own) > MOST_LINES_KEPT:
            self._lines.remove(own[0])

    async def list(self, tenant: str, after: str | None, limit: int) -> AuditRows:
        before = audit_cursor(after)
        found = [one for one in self._lines if tenant in (EVERY_TENANT, one[1].tenant) and one[0] < before]
        page = found[::-1][:limit]
        return AuditRows([row for _, row in page], str(page[-1][0]) if len(page) == limit else None)


class ModelEvents:
    """Wake-ups. There is no other process to publish to."""

    def __init__(self) -> None:
        self._listeners: list[WakeupListener] = []
        self.quiet = True

    @asynccontextmanager
    async def listen(self, topics: Sequence[str]) -> AsyncIterator[WakeupListener]:
        listener = WakeupListener(topics)
        self._listeners.append(listener)
        try:
            yield listener
        finally:
            self._listeners.remove(listener)

    def notify(self, topic: str) -> None:
        for listener in self._listeners:
            if topic in listener.topics:
                listener.heard.set()

    async def publish(self, lines: Sequence[str]) -> None:
        pass


class ModelStore:
    """Implements `windlass.store.protocol`."""

    def __init__(self, clock: Clock) -> None:
        events = ModelEvents()
        jobs = ModelJobs(clock, events)
        self.jobs: JobStore = jobs
        self.entries = jobs.entries
        self.flow: FlowStore = ModelFlow(jobs)
        self.workers: WorkerStore = jobs.workers
        self.records: RecordStore = ModelRecords()
        self.events: EventStore = events
        self.journal: JournalTarget | None = None
        self.disk: LocalDisk | None = None
        self.space: StoreSpace | None = None
        self.prepare: Preparation | None = None
        self.audit: AuditStore | None = ModelAudit(clock)
        self.files: FileStore | None = None
        self.steps: StepStore | None = None

    async def close(self) -> None:
        pass


def _of_next_queue(request: ClaimRequest, fit: list[Entry], taken: Sequence[Entry]) -> list[Entry]:
    """The jobs of the queue whose turn it is: each has as many turns in a round as it is named."""
    waiting = deque(turns_of_queues(request.nonce, request.worker.queues))
    for entry in taken:
        while (queue := waiting.popleft()) != entry.job.queue:
            pass  # it had no more jobs
        waiting.append(queue)
    there = {entry.job.queue for entry in fit}
    chosen = next((queue for queue in waiting if queue in there), None)
    return [entry for entry in fit if entry.job.queue == chosen]


def _next_turn(
    request: ClaimRequest, name: Callable[[Job], str], fit: list[Entry], taken: Sequence[Entry]
) -> list[Entry]:
    """The jobs of the one whose turn it is: who was given the fewest in this claim, and comes first by chance."""
    given = Counter(name(entry.job) for entry in taken)
    order = shuffled(request.nonce, {name(entry.job) for entry in fit})
    chosen = min(order, key=lambda one: given[one], default=None)
    return [entry for entry in fit if name(entry.job) == chosen]


def later(when: datetime | None, seconds: float | None) -> datetime | None:
    return None if when is None or seconds is None else when + timedelta(seconds=seconds)


def write_cursor(place: tuple[bytes, bytes, int]) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(place)).decode()


def read_cursor(text: str) -> tuple[bytes, bytes, int]:
    try:
        return msgspec.msgpack.decode(urlsafe_b64decode(text), type=tuple[bytes, bytes, int])
    except (ValueError, msgspec.MsgspecError):
        raise Invalid("not a cursor that a page gave", at="after") from None
