"""How a job is stored in Redis: arguments and answers of the function library, to and from our records.

The counterpart of `lua/keys.lua`. The numbers of states and reasons and the structs are the contract with the library:
what a server stores outlives this program, so numbers are only ever added. Asks no server.
"""

import struct
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from windlass.model.edit import JobEdit
from windlass.model.handler import NO_HANDLER, HandlerRun
from windlass.model.job import Error, Job, Reason, State
from windlass.model.lifecycle import GONE, STOP_ORDERS, Lapse, Move, Step
from windlass.model.names import ID_SIZE, raw_id, raw_ids, raw_key, text_id, text_ids
from windlass.model.new_job import NewJob
from windlass.model.outcome import Verdict
from windlass.model.output import Chunk, Message, Progress, RunUsage, Stream
from windlass.model.unique import IDENTITY_SIZE
from windlass.store import encoding
from windlass.store.data import (
    ORDER_STEPS,
    Added,
    ClaimRequest,
    CompletedParent,
    Draft,
    DueJob,
    Duplicate,
    Heartbeat,
    HeartbeatReply,
    JobSuccess,
    Record,
    StoredResult,
)
from windlass.store.encoding import alike, ended_at, from_micros, span, to_micros
from windlass.store.flow import EXPLICIT, FLEXIBLE, Room
from windlass.store.redis.urls import Argument

STATES = (
    State.BLOCKED,
    State.SCHEDULED,
    State.QUEUED,
    State.RUNNING,
    State.SUCCEEDED,
    State.FAILED,
    State.CANCELLED,
)
REASONS = (
    None,
    Reason.ERROR,
    Reason.RETRY,
    Reason.FAILED,
    Reason.TIMEOUT,
    Reason.CRASHED,
    Reason.LOST,
    Reason.DEADLINE,
    Reason.EXPIRED,
    Reason.SHRUNK,
    Reason.HALTED,
    Reason.RELEASED,
    Reason.SNOOZED,
    Reason.CANCELLED,
    Reason.DELETED,
    Reason.MEMORY,
    Reason.OUTPUT,
    Reason.DEPENDENCY,
    Reason.ACCEPTED,
    Reason.ABANDONED,
    Reason.DISK,
    Reason.BY_HAND,
    Reason.LOWERED,
)
BLOCKED, RUNNING = STATES.index(State.BLOCKED), STATES.index(State.RUNNING)
STATE_NUMBERS = {state: number for number, state in enumerate(STATES)} | {GONE: len(STATES)}
REASON_NUMBERS = {reason: number for number, reason in enumerate(REASONS)}

HEAD = struct.Struct(">BBBBIBBQQHIiQQQd")
# Places in a head; attempt, crashes and losses are neighbours.
STATE, FLAGS, ATTEMPT, UPDATED, RUN_SIZE, TERMS_SIZE = 1, 3, 4, 7, 9, 10
OWN = struct.Struct(">16sI")
ANSWERED_RUN = struct.Struct(">8sIQQH")
LIVE = struct.Struct(">8sIQQBBIBBQQHQd")
ENDED = struct.Struct(">IQQH")
ERRORS, PROGRESS, FOLLOWED, EXTRAS = 4, 8, 64, 128  # flags
NEW = struct.Struct(">iBdqqqIH")
RANK = struct.Struct(">I")
DONE = struct.Struct(">8sHqB")
OWNER_CLOCK = struct.Struct(">Iq")
UNIQUE_KIND = 2
"""What the record of a unique job begins with."""
UNIQUE = struct.Struct(">16sBqB")
NO_IDENTITY = bytes(IDENTITY_SIZE)
"""Of a job that is not unique, in a batch with others that are."""
JOIN, REPLACE, REJECT, REPLACE_OR_JOIN = range(4)
ON_DUPLICATE = {"join": JOIN, "replace": REPLACE, "reject": REJECT}
UNIQUE_WHILE = {"pending": -1, "queued": -2}
REJECTED = struct.Struct(">IB16s")
"""What rejects a unique job: its number, from 1, and the state and id of the other one."""
MOVE = struct.Struct(">BIBBBBIBBqHdBqqB")
OUTCOMES = (None, *Verdict)
"""As they are numbered in a move."""
LAPSES: dict[Lapse | None, int] = {None: 0, "lease": 1, "owner": 2}
HOW = {Step.RERUN: 1, Step.TOUCH_OWNER: 2, Step.ADOPT: 3, Step.MEET: 4, **dict.fromkeys(ORDER_STEPS, 5)}
ADOPTER = struct.Struct(">8sQ")
EDITS = struct.Struct(">I")

CHUNK = struct.Struct(">QQIQB")
MESSAGE = struct.Struct(">QQ")
STREAMS: tuple[Stream, ...] = ("stdout", "stderr", "log", "values")

KEEP_RESULT_FLAGS = {"keep": 0, "once": 16, "none": 32}
TIMED = 48
"""In the place of these flags: the result goes before its record does; how it is kept is said in a `HOLD`."""
HOLD = struct.Struct(">?d")
RESULT_ONLY = 128
"""Added to the state of a job that was swept: only its result was dropped."""
WITHOUT_LIMIT = -1.0
NEVER = -1
AS_IT_IS = -1
WAITS_FOR_JOBS = -(10**17)
"""In the place of a due time: the job waits for others."""

_pack = msgspec.msgpack.Encoder().encode


def add_arguments(drafts: Sequence[Draft]) -> list[bytes | str | int]:
    """The arguments of `add`, for jobs whose limit keys were made under the same rules."""
    tenant_queues: dict[str, int] = {}
    counts: list[int] = []
    jobs: list[bytes | str | int] = []
    owner_clocks: list[bytes] = []  # beside the jobs, for few have one
    so_far = 0
    for some in alike(drafts):
        first, new = some[0], some[0].new
        tenant_queue, lane = _names(first.tenant, new.queue, new.task, first.group)
        number = tenant_queues.setdefault(tenant_queue, len(tenant_queues))
        if number == len(counts):
            counts.append(0)
        packed = encoding.pack_terms(new)
        meta, before, extras = _meta(new, len(packed), number), b"%b\0%b" % (lane, packed), _extras(first)
        for rank, draft in enumerate(some, counts[number]):
            jobs += (raw_id(draft.id) + meta + RANK.pack(rank), before + bytes(draft.new.payload), *extras)
        counts[number] += len(some)
        if new.owner_timeout is not None:
            length = span(new.owner_timeout)
            owner_clocks += (OWNER_CLOCK.pack(so_far + place, length) for place in range(1, len(some) + 1))
        so_far += len(some)
    head: list[bytes | str | int] = [drafts[0].group_epoch if drafts else 0, b"".join(owner_clocks), len(tenant_queues)]
    for name, number in tenant_queues.items():
        head += (name, counts[number])
    return head + jobs


def unique_arguments(drafts: Sequence[Draft]) -> bytes:
    """What `add_unique` gets before the arguments of `add`."""
    return b"".join(map(_unique, drafts))


def _unique(draft: Draft) -> bytes:
    new, key = draft.new, raw_key(draft.id, draft.tenant)
    if not draft.identity:
        return UNIQUE.pack(NO_IDENTITY, JOIN, 0, len(key)) + key
    second = ON_DUPLICATE[new.on_duplicate]
    if draft.follows:  # no caller could be refused
        second = REPLACE_OR_JOIN if second == REPLACE else JOIN
    return UNIQUE.pack(draft.identity, second, _unique_while(new), len(key)) + key


def _unique_while(new: NewJob) -> int:
    return UNIQUE_WHILE[new.unique] if isinstance(new.unique, str) else span(new.unique or 0)


def added(reply: Sequence[int | bytes]) -> list[Added]:
    """What `add_unique` answers."""
    return [
        bool(one) if isinstance(one, int) else Duplicate(text_id(one[-ID_SIZE:]), len(one) > ID_SIZE) for one in reply
    ]


def _meta(new: NewJob, terms_size: int, tenant_queue: int) -> bytes:
    """What the library must know of a job, but for its place among the batch's jobs of its tenant queue."""
    return NEW.pack(
        new.priority,
        _flags(new),
        WITHOUT_LIMIT if new.keep_success is None else new.keep_success,
        WAITS_FOR_JOBS if new.after else 0 if new.run_at is None else to_micros(new.run_at),
        0 if new.delay is None else span(new.delay),
        NEVER if new.expires is None else span(new.expires),
        terms_size,
        tenant_queue,
    )


def _flags(new: NewJob) -> int:
    kept = KEEP_RESULT_FLAGS[new.keep_result] if _hold(new) is None else TIMED
    return kept + (EXTRAS if new.files else 0) + (FOLLOWED if new.then or new.on_failure else 0)


def _extras(draft: Draft) -> list[bytes]:
    """What comes with a job beside its bytes."""
    new = draft.new
    found = []
    if new.files:
        found.append(_pack(new.files))
    if new.then is not None or new.on_failure is not None:
        found.append(b"" if new.then is None else encoding.pack_then(draft.tenant, new.then))
    if (hold := _hold(new)) is not None:
        found.append(HOLD.pack(new.keep_result == "once", hold))
    if new.after:
        found.append(raw_ids(new.after))
    return found


def _hold(new: NewJob) -> float | None:
    return encoding.held_for(new.keep_result, new.keep_result_for, new.keep_success)


_waits_or_brings = attrgetter(
    *("unique", "delay", "run_at", "expires", "owner_timeout", "after", "files"),
    *("then", "on_failure", "keep_result_for"),
)
_neither = _waits_or_brings(NewJob(task="x"))


def is_bare(draft: Draft) -> bool:
    """Whether a job waits for nothing, brings nothing along and has no group (see `add`)."""
    return bool(_waits_or_brings(draft.new) == _neither) and not draft.group


@lru_cache(maxsize=4096)
def _names(tenant: str, queue: str, task: str, group: str) -> tuple[str, bytes]:
    """The tenant queue and the lane of a job."""
    plain = f"{tenant},{queue},{task}"
    return f"{tenant},{queue}", (f"{plain};{group}" if group else plain).encode()


def heartbeat_arguments(beats: Sequence[Heartbeat]) -> Iterator[bytes | str | int]:
    for beat in beats:
        yield raw_key(beat.id, beat.tenant)
        yield beat.token
        yield "" if beat.pid is None else beat.pid
        yield b"" if beat.progress is None else _pack(beat.progress)
        yield encoding.encode_handler_run(beat.ran) + encoding.encode_usage(beat.usage)
        yield "" if beat.messages_after is None else beat.messages_after
        yield f"-{len(beat.output)}" if beat.files_loaded else len(beat.output)
        for chunk in beat.output:
            yield bytes((STREAMS.index(chunk.stream),)) + chunk.data


def succeed_arguments(successes: Sequence[JobSuccess]) -> Iterator[bytes | str | int]:
    for done in successes:
        finished = 0 if done.finished_at is None else to_micros(done.finished_at)
        key = raw_key(done.id, done.tenant)
        about = DONE.pack(done.token.ljust(8), done.code, finished, REASON_NUMBERS[done.reason])
        packed = b"%c%b%b%b\0" % (len(key), key, about, encoding.encode_handler_run(done.ran).encode())
        yield packed if done.result is None else b"%b%b\0%b" % (packed, done.content_type.encode(), done.result)


def apply_arguments(moves: Sequence[Move]) -> Iterator[bytes | str | int]:
    for move in moves:
        yield raw_key(move.id, move.tenant)
        yield raw_ids(move.waits_before) if move.source is State.BLOCKED else move.fence or b""
        yield _what_is_written(move)
        yield MOVE.pack(
            STATE_NUMBERS[move.source],
            move.attempt_before,
            REASON_NUMBERS[move.reason_before],
            LAPSES[move.lapsed],
            STATE_NUMBERS[move.target],
            REASON_NUMBERS[move.reason],
            move.attempt,
            move.crashes,
            move.losses,
            0 if move.run_at is None else to_micros(move.run_at),
            move.code or 0,
            WITHOUT_LIMIT if move.keep is None else move.keep,
            HOW.get(move.step, 0),
            0 if move.finished_at is None else to_micros(move.finished_at),
            AS_IT_IS if move.owner_timeout is None else span(move.owner_timeout),
            OUTCOMES.index(move.outcome),
        ) + _tiers(move)
        yield encoding.encode_handler_run(move.ran)


def _what_is_written(move: Move) -> bytes:
    """What a move writes whole: what the job goes on to wait for, its adopter, or its error."""
    if move.target is State.BLOCKED:
        return raw_ids(move.waits_for)
    if (adopter := move.adopter) is not None:
        place = encoding.encode_adopted(adopter.node, adopter.at)
        return ADOPTER.pack(adopter.token, span(adopter.lease)) + f"{adopter.worker}\0{place}\0".encode()
    return _pack(move.error) if move.error else b""


ORDER_REASONS = bytes(REASON_NUMBERS[reason] for reason in sorted(STOP_ORDERS))
"""What `make_room` gets, to know the runs that were ordered to stop."""


def room_arguments(moves: Sequence[Move], room: Room) -> Iterator[bytes | str | int]:
    for move, need in zip(moves, room.needs, strict=True):
        yield b"" if need.waiting is None else raw_key(*need.waiting)
        yield need.full or ""
        yield need.slots
        yield need.ahead
        yield from apply_arguments([move])


def _tiers(move: Move) -> bytes:
    """The name of a running job's tier, and the seconds and name of the shorter one that it gets."""
    if move.assigned is None:
        return (move.assigned_before or "").encode()
    name, seconds = move.assigned
    return f"{move.assigned_before or ''}\0{seconds!r} {name or ''}".encode()


def completed_parent_arguments(done: Sequence[CompletedParent]) -> Iterator[bytes | str | int]:
    for one in done:
        yield raw_id(one.id)
        yield one.tenant
        yield one.mark
        yield len(one.children)
        yield from map(raw_id, one.children)


@lru_cache(maxsize=4096)
def parts(lane: bytes) -> tuple[str, str, str, str]:
    """Tenant, queue, task and group of a job."""
    plain, _, group = lane.decode().partition(";")
    tenant, queue, task = plain.split(",")
    return tenant, queue, task, group


# Answers

HISTORY, TERMS = slice(3, 10), slice(18, 32)
"""The bytes of a head from its flags to its losses, and from its due time to its size of terms."""
NO_HISTORY, NO_TERMS = frozenset({bytes(7), bytes((FOLLOWED, *bytes(6)))}), bytes(14)
"""Those of a plain new job, which others may wait for."""
PRIORITY, CREATION = struct.Struct(">i"), struct.Struct(">Q")
BEGINNING = from_micros(0)
PRIORITY_AT, PRIORITY_END, CREATION_AT = 32, 36, 52
"""Where these are in a head."""
GRANT = struct.Struct(">8sQ16s")
"""What a notice of a grant begins with: nonce, time of the lease, id. The bytes of the job follow."""
NONCE_SIZE = 8
_errors = msgspec.msgpack.Decoder(Error)
_files = msgspec.msgpack.Decoder(dict[str, bytes])
_progress = msgspec.msgpack.Decoder(Progress)


def heartbeat_reply(id: str, held: int, reason: int, meta: bytes, messages: Sequence[bytes]) -> HeartbeatReply:
    """What `renew` answers of one job."""
    deadline = None
    if meta:
        (record,) = records([raw_id(id) + bytes(4) + meta], whole=False, bare=True)
        deadline = record.job.deadline
    heard = [Message(MESSAGE.unpack_from(one)[0], one[MESSAGE.size :]) for one in messages]
    return HeartbeatReply(id, bool(held), REASONS[reason], deadline, heard)


def chunks(reply: Sequence[bytes]) -> list[Chunk]:
    """What `output` answers."""
    found: list[Chunk] = []
    for piece in reply:
        n, _, attempt, at, stream = CHUNK.unpack_from(piece)
        data = piece[CHUNK.size :]
        found.append(Chunk(n=n, attempt=attempt, at=from_micros(at), stream=STREAMS[stream], data=data))
    return found


def swept(reply: Sequence[bytes]) -> list[DueJob]:
    """What `promote` and `purge` answer."""
    return [
        DueJob(text_id(one[:16]), *parts(one[17:])[:3], STATES[one[16] % RESULT_ONLY], one[16] >= RESULT_ONLY)
        for one in reply
    ]


class Run(NamedTuple):
    """A run of a job, current or last; empty before the first."""

    token: bytes = b""
    pid: int = 0
    started: int = 0
    finished: int = 0
    code: int = 0
    worker: str = ""
    node: str = ""
    tier: str = ""
    """Seconds and name of the one at which it runs."""
    ran: HandlerRun = NO_HANDLER
    adopted_at: datetime | None = None
    usage: RunUsage | None = None


NO_RUN = Run()


def records(reply: Sequence[Any], *, whole: bool, handed_out: bool = False, bare: bool = False) -> list[Record]:
    """The jobs of a reply, each with its errors and progress (and files) behind it if its flags say so.

    A `bare` reply is of jobs alone, whatever their flags say.
    """
    found: list[Record] = []
    entries = iter(reply)
    for value in entries:
        id, size = OWN.unpack_from(value)
        head = HEAD.unpack_from(value, OWN.size)
        flags = 0 if bare else head[FLAGS]
        errors = [_errors.decode(entry) for entry in next(entries)] if flags & ERRORS else []
        progress = _progress.decode(next(entries)) if flags & PROGRESS else None
        edits = _edits_of(next(entries)) if flags & EXTRAS else {}
        waits = next(entries) if head[STATE] == BLOCKED else b""
        files = _files_of(next(entries)) if handed_out and head[FLAGS] & EXTRAS else {}
        text = OWN.size + HEAD.size
        zero = value.index(0, text)
        run_from = zero + 1 + head[TERMS_SIZE]
        end = run_from + head[RUN_SIZE]
        run = _run(value[run_from:end]) if head[RUN_SIZE] else NO_RUN
        size = len(value) - end if whole else size
        job = _job(id, head, value[text:zero], value[zero + 1 : run_from], run, errors, progress, size)
        if waits:
            job = replace(job, waits_for=text_ids(waits))
        if edits:
            job = replace(job, **edits)
        running = job.state is State.RUNNING
        group = parts(value[text:zero])[3]
        found.append(Record(job, run.token if running else None, value[end:] if whole else None, files, group))
    return found


def completed_parents(reply: Sequence[Any]) -> list[CompletedParent]:
    """What `completed_parents` answers."""
    found: list[CompletedParent] = []
    for at in range(0, len(reply), 5):
        member, score, follows, result, children = reply[at : at + 5]
        state = int(score) % 8
        found.append(
            CompletedParent(
                text_id(member[:16]),
                member[16:].decode(),
                int(score),
                STATES[state] if state < len(STATES) else None,
                [text_id(child) for child in children],
                encoding.unpack_then(follows)[1] if follows else None,
                kept(result) if result else None,
            )
        )
    return found


def kept(result: bytes) -> StoredResult:
    content_type, _, data = result.partition(b"\0")
    return StoredResult(data, content_type.decode())


def _edits_of(value: bytes) -> dict[str, Any]:
    """What callers have edited of a job, as its fields; nothing if they never did."""
    if not value:
        return {}
    return {"edits": EDITS.unpack_from(value)[0], "annotations": encoding.unpack_annotations(value[EDITS.size :])}


def edit_arguments(tenant: str, change: JobEdit) -> list[Argument]:
    """What `edit` gets behind the arguments of its move."""
    about: list[Argument] = [change.number, encoding.pack_annotations(change.annotations)]
    if (new := change.new) is None:
        return about
    _, lane = _names(tenant, new.queue, new.task, change.group)
    packed = encoding.pack_terms(new)
    body = b"%b\0%b%b" % (lane, packed, bytes(new.payload))
    about += (change.group_epoch, lane, new.priority, len(packed), body)
    return [*about, change.identity, _unique_while(new) if change.identity else 0]


def _files_of(value: bytes) -> dict[str, bytes]:
    return _files.decode(value) if value else {}


def claimed(reply: Sequence[Any], request: ClaimRequest) -> list[Record]:
    """The jobs of a claim: their bytes as they were, and what we know became of them."""
    now, *entries = reply
    if not now:
        return records(entries, whole=True, handed_out=True)
    started = int(now)
    start, worker = from_micros(started), request.worker
    found: list[Record] = []
    rest = iter(entries)
    for id in rest:
        value = next(rest)
        created = from_micros(CREATION.unpack_from(value, CREATION_AT)[0])
        if (plain := _plain(id, value, created, start, request)) is not None:
            found.append(plain)
            continue
        run = Run(request.nonce, 0, started, 0, 0, worker.id, worker.node)
        head = HEAD.unpack_from(value)
        errors = [_errors.decode(entry) for entry in next(rest)] if head[FLAGS] & ERRORS else []
        edits = _edits_of(next(rest)) if head[FLAGS] & EXTRAS else {}
        files = _files_of(next(rest)) if head[FLAGS] & EXTRAS else {}
        zero = value.index(0, HEAD.size)
        payload_from, payload_to = zero + 1 + head[TERMS_SIZE], len(value) - head[RUN_SIZE]
        code = ENDED.unpack_from(value, payload_to)[3] if head[RUN_SIZE] else 0
        after = (1, RUNNING, 0, 0, head[ATTEMPT] + 1, *head[ATTEMPT + 1 : UPDATED], started, *head[UPDATED + 1 :])
        payload = value[payload_from:payload_to]
        packed = value[zero + 1 : payload_from]
        lane = value[HEAD.size : zero]
        group = parts(lane)[3]
        tier = next(rest).decode() if group.startswith((EXPLICIT, FLEXIBLE)) else ""
        own = run._replace(code=code, tier=tier) if code or tier else run
        job = _job(id, after, lane, packed, own, errors, None, len(payload))
        job = replace(job, **edits) if edits else job
        found.append(Record(job, request.nonce, payload, files, group))
    return found


def granted(message: bytes, request: ClaimRequest) -> list[Record]:
    """The job that a notice brings to a parked claim: new, and leased at the moment when it came."""
    _, started, id = GRANT.unpack_from(message)
    return claimed([b"%d" % started, id, message[GRANT.size :]], request)


def _plain(id: bytes, value: bytes, created: datetime, start: datetime, request: ClaimRequest) -> Record | None:
    """A job that asked for nothing, was never late and has never run, as most claims bring; null = another."""
    if value[HISTORY] not in NO_HISTORY or value[TERMS] != NO_TERMS:
        return None
    zero = value.index(0, HEAD.size)
    lane = value[HEAD.size : zero]
    if b";" in lane:
        return None
    worker, payload = request.worker, value[zero + 1 :]
    like = _first_run(value[PRIORITY_AT:PRIORITY_END], lane, worker.id, worker.node)
    job = replace(like, id=text_id(id), created_at=created, updated_at=start, started_at=start, size=len(payload))
    return Record(job, request.nonce, payload)


@lru_cache(maxsize=1000)
def _first_run(priority: bytes, lane: bytes, worker: str, node: str) -> Job:
    """Such a job, but for what is its own."""
    tenant, queue, task, _ = parts(lane)
    return Job(
        id="",
        tenant=tenant,
        queue=queue,
        task=task,
        priority=PRIORITY.unpack(priority)[0],
        state=State.RUNNING,
        attempt=1,
        worker=worker or None,
        node=node or None,
        created_at=BEGINNING,
        updated_at=BEGINNING,
        started_at=BEGINNING,
        size=0,
    )


def _job(  # noqa: PLR0917 - the parts of a job, in the order of its bytes
    id: bytes,
    head: tuple[Any, ...],
    lane: bytes,
    packed: bytes,
    run: Run,
    errors: list[Error],
    progress: Progress | None,
    size: int,
) -> Job:
    _, state, reason, _, attempt, crashes, losses, updated, due, _, _, priority, _, _, created, _ = head
    tenant, queue, task, _ = parts(lane)
    asked = encoding.unpack_terms(packed)
    started_at = from_micros(run.started) if run.started else None
    seconds, _, assigned = run.tier.partition(" ")
    bounds = [asked["timeout"]] if "timeout" in asked else []
    bounds += [float(seconds)] if seconds else []
    deadline = None
    if state == RUNNING and started_at and bounds:
        deadline = started_at + timedelta(seconds=min(bounds))
    return Job(
        **asked,
        id=text_id(id),
        tenant=tenant,
        queue=queue,
        task=task,
        priority=priority,
        state=STATES[state],
        reason=REASONS[reason],
        attempt=attempt,
        crashes=crashes,
        losses=losses,
        worker=run.worker or None,
        node=run.node or None,
        adopted_by=run.worker if run.adopted_at is not None else None,
        adopted_at=run.adopted_at,
        sandbox=run.ran.sandbox,
        handler_version=run.ran.handler_version,
        pid=run.pid or None,
        progress=progress,
        usage=run.usage if state == RUNNING else None,
        code=run.code or None,
        errors=errors,
        error=errors[-1] if errors else None,
        created_at=from_micros(created),
        updated_at=from_micros(updated),
        run_at=from_micros(due) if due else None,
        started_at=started_at,
        finished_at=ended_at(started_at, from_micros(run.finished) if run.finished else None),
        assigned=assigned or None,
        deadline=deadline,
        size=size,
    )


def _run(data: bytes) -> Run:
    worker, place, tier = data[ANSWERED_RUN.size :].decode().split("\0")
    token, pid, started, finished, code = ANSWERED_RUN.unpack_from(data)
    place, usage = encoding.split_usage(place)
    node, ran, adopted_at = encoding.decode_place(place)
    return Run(token, pid, started, finished, code, worker, node or "", tier, ran, adopted_at, usage)
