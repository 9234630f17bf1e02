"""How a job lies in Redis: bytes to `Record` and back. The counterpart of `lua/keys.lua`.

The numbers of states and reasons and the two structs are the contract with the scripts: what is kept in
a server outlives this program, so numbers are only ever added.
"""

import struct
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from windlass.model.job import Chunk, Error, Job, NewJob, Progress, Reason, State, Stream
from windlass.model.lifecycle import GONE, Move, Step
from windlass.model.names import raw_id, text_id
from windlass.store import Done, Draft, Kept, Record, Ripe, Touch, Touched, Wish, terms
from windlass.store.flow import EXPLICIT, FLEXIBLE
from windlass.store.micros import from_micros, span, to_micros

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
)
BLOCKED, RUNNING = STATES.index(State.BLOCKED), STATES.index(State.RUNNING)
STATE_NUMBERS = {state: number for number, state in enumerate(STATES)} | {GONE: len(STATES)}
REASON_NUMBERS = {reason: number for number, reason in enumerate(REASONS)}

HEAD = struct.Struct(">BBBBIBBQQHIiQQQd")
# Places in a head; attempt, crashes and losses are neighbours.
STATE, FLAGS, ATTEMPT, UPDATED, DUE, RUN_SIZE, TERMS_SIZE, PRIORITY, CREATED = 1, 3, 4, 7, 8, 9, 10, 11, 14
OWN = struct.Struct(">16sI")
TOLD = struct.Struct(">8sIQQH")
LIVE = struct.Struct(">8sIQQBBIBBQQHQd")
ENDED = struct.Struct(">IQQH")
ERRORS, PROGRESS, FOLLOWED, EXTRAS = 4, 8, 64, 128  # flags
NEW = struct.Struct(">iBdqqqIHI")
DONE = struct.Struct(">16s8sHq")
MOVE = struct.Struct(">BIBBBBIBBqHdBq")

CHUNK = struct.Struct(">QQIQB")
STREAMS: tuple[Stream, ...] = ("stdout", "stderr", "log")

KEEP_RESULT_FLAGS = {"keep": 0, "once": 16, "none": 32}
FOR_EVER = -1.0
NEVER = -1
AGES_AGO = -(10**17)
"""In the place of a due time: the job waits for others."""

_pack = msgspec.msgpack.Encoder().encode
_errors = msgspec.msgpack.Decoder(Error)
_files = msgspec.msgpack.Decoder(dict[str, bytes])
_progress = msgspec.msgpack.Decoder(Progress)


def add_arguments(drafts: Sequence[Draft]) -> list[bytes | str | int]:
    """What `add.lua` is told: of jobs with groups that were made under the same rules."""
    lines: dict[str, int] = {}
    counts: list[int] = []
    jobs: list[bytes | str | int] = []
    for draft, packed in zip(drafts, terms.pack_all(draft.new for draft in drafts), strict=True):
        new = draft.new
        line, route = _names(draft.tenant, new.queue, new.task, draft.group)
        number = lines.setdefault(line, len(lines))
        if number == len(counts):
            counts.append(0)
        meta = NEW.pack(
            new.priority,
            KEEP_RESULT_FLAGS[new.keep_result] + (EXTRAS if new.files else 0) + (FOLLOWED if new.then else 0),
            FOR_EVER if new.keep_success is None else new.keep_success,
            AGES_AGO if new.after else 0 if new.run_at is None else to_micros(new.run_at),
            0 if new.delay is None else span(new.delay),
            NEVER if new.expires is None else span(new.expires),
            len(packed),
            number,
            counts[number],
        )
        counts[number] += 1
        jobs.append(raw_id(draft.id) + meta)
        jobs.append(b"%b\0%b%b" % (route, packed, bytes(new.payload)))
        if new.files:
            jobs.append(_pack(new.files))
        if new.then is not None:
            jobs.append(terms.pack_then(draft.tenant, new.then))
        if new.after:
            jobs.append(ids(new.after))
    head: list[bytes | str | int] = [drafts[0].grouping if drafts else 0, len(lines)]
    for name, number in lines.items():
        head += (name, counts[number])
    return head + jobs


_waits_or_brings = attrgetter("delay", "run_at", "expires", "after", "files", "then")
_neither = _waits_or_brings(NewJob(task="x"))


def is_bare(draft: Draft) -> bool:
    """Whether a job waits for nothing, brings nothing along and has no group (see `add_one.lua`)."""
    return bool(_waits_or_brings(draft.new) == _neither) and not draft.group


def ids(some: Sequence[str]) -> bytes:
    """Several ids, one after the other."""
    return b"".join(map(raw_id, some))


@lru_cache(maxsize=4096)
def _names(tenant: str, queue: str, task: str, group: str) -> tuple[str, bytes]:
    """The line and the route of a job."""
    lane = f"{tenant},{queue},{task}"
    return f"{tenant},{queue}", (f"{lane};{group}" if group else lane).encode()


def touch_arguments(touches: Sequence[Touch]) -> Iterator[bytes | str | int]:
    for touch in touches:
        yield raw_id(touch.id)
        yield touch.token
        yield "" if touch.pid is None else touch.pid
        yield b"" if touch.progress is None else _pack(touch.progress)
        yield len(touch.output)
        for chunk in touch.output:
            yield bytes((STREAMS.index(chunk.stream),)) + chunk.data


def touched(id: str, held: int, reason: int, told: bytes) -> Touched:
    """What `touch.lua` answers of one job."""
    deadline = None
    if told:
        (record,) = records([raw_id(id) + bytes(4) + told], whole=False, bare=True)
        deadline = record.job.deadline
    return Touched(id, bool(held), REASONS[reason], deadline)


def chunks(reply: Sequence[bytes]) -> list[Chunk]:
    """What `output.lua` answers."""
    found: list[Chunk] = []
    for piece in reply:
        n, _, attempt, at, stream = CHUNK.unpack_from(piece)
        data = piece[CHUNK.size :]
        found.append(Chunk(n=n, attempt=attempt, at=from_micros(at), stream=STREAMS[stream], data=data))
    return found


def succeed_arguments(dones: Sequence[Done]) -> Iterator[bytes | str | int]:
    for done in dones:
        finished = 0 if done.finished_at is None else to_micros(done.finished_at)
        packed = DONE.pack(raw_id(done.id), done.token.ljust(8), done.code, finished)
        yield packed if done.result is None else b"%b%b\0%b" % (packed, done.content_type.encode(), done.result)


def apply_arguments(moves: Sequence[Move]) -> Iterator[bytes | str | int]:
    for move in moves:
        yield raw_id(move.id)
        yield ids(move.waits_before) if move.source is State.BLOCKED else move.fence or b""
        yield ids(move.waits_for) if move.target is State.BLOCKED else _pack(move.error) if move.error else b""
        yield MOVE.pack(
            STATE_NUMBERS[move.source],
            move.attempt_before,
            REASON_NUMBERS[move.reason_before],
            move.lapsed,
            STATE_NUMBERS[move.target],
            REASON_NUMBERS[move.reason],
            move.attempt,
            move.crashes,
            move.losses,
            0 if move.run_at is None else to_micros(move.run_at),
            move.code or 0,
            FOR_EVER if move.keep is None else move.keep,
            move.step is Step.RERUN,
            0 if move.finished_at is None else to_micros(move.finished_at),
        ) + _tiers(move)


def _tiers(move: Move) -> bytes:
    """The name of a running job's tier, and the seconds and name of the shorter one that it gets."""
    if move.assigned is None:
        return (move.assigned_before or "").encode()
    name, seconds = move.assigned
    return f"{move.assigned_before or ''}\0{seconds!r} {name}".encode()


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
            job = replace(job, waits_for=id_list(waits))
        running = job.state is State.RUNNING
        group = parts(value[text:zero])[3]
        found.append(Record(job, run.token if running else None, value[end:] if whole else None, files, group))
    return found


def id_list(packed: bytes) -> list[str]:
    return [text_id(packed[at : at + 16]) for at in range(0, len(packed), 16)]


def ripe_arguments(done: Sequence[Ripe]) -> Iterator[bytes | str | int]:
    for one in done:
        yield raw_id(one.id)
        yield one.tenant
        yield one.mark
        yield len(one.children)
        yield from map(raw_id, one.children)


def ripened(reply: Sequence[Any]) -> list[Ripe]:
    """What `ripe.lua` answers."""
    found: list[Ripe] = []
    for at in range(0, len(reply), 5):
        member, score, follows, result, children = reply[at : at + 5]
        state = int(score) % 8
        found.append(
            Ripe(
                text_id(member[:16]),
                member[16:].decode(),
                int(score),
                STATES[state] if state < len(STATES) else None,
                [text_id(child) for child in children],
                terms.unpack_then(follows)[1] if follows else None,
                kept(result) if result else None,
            )
        )
    return found


def kept(result: bytes) -> Kept:
    content_type, _, data = result.partition(b"\0")
    return Kept(data, content_type.decode())


def _files_of(value: bytes) -> dict[str, bytes]:
    return _files.decode(value) if value else {}


def claimed(reply: Sequence[Any], wish: Wish) -> list[Record]:
    """The jobs of a claim: their bytes as they were, and what we know became of them."""
    now, *entries = reply
    if not now:
        return records(entries, whole=True, handed_out=True)
    started = int(now)
    run = Run(wish.nonce, 0, started, 0, 0, wish.worker.id, wish.worker.node)
    found: list[Record] = []
    rest = iter(entries)
    for id in rest:
        value = next(rest)
        head = HEAD.unpack_from(value)
        errors = [_errors.decode(entry) for entry in next(rest)] if head[FLAGS] & ERRORS else []
        files = _files_of(next(rest)) if head[FLAGS] & EXTRAS else {}
        zero = value.index(0, HEAD.size)
        payload_from, payload_to = zero + 1 + head[TERMS_SIZE], len(value) - head[RUN_SIZE]
        code = ENDED.unpack_from(value, payload_to)[3] if head[RUN_SIZE] else 0
        after = (1, RUNNING, 0, 0, head[ATTEMPT] + 1, *head[ATTEMPT + 1 : UPDATED], started, *head[UPDATED + 1 :])
        payload = value[payload_from:payload_to]
        packed = value[zero + 1 : payload_from]
        route = value[HEAD.size : zero]
        group = parts(route)[3]
        tier = next(rest).decode() if group.startswith((EXPLICIT, FLEXIBLE)) else ""
        if not (packed or head[DUE] or head[RUN_SIZE] or errors or tier or any(head[ATTEMPT:UPDATED])):
            found.append(Record(_first_run(id, head, route, run, len(payload)), wish.nonce, payload, files, group))
            continue
        own = run._replace(code=code, tier=tier) if code or tier else run
        job = _job(id, after, route, packed, own, errors, None, len(payload))
        found.append(Record(job, wish.nonce, payload, files, group))
    return found


def _first_run(id: bytes, head: tuple[Any, ...], route: bytes, run: Run, size: int) -> Job:
    """A job that asked for nothing, was never late and has never run: what most claims bring, made in half the time."""
    tenant, queue, task, _ = parts(route)
    started = from_micros(run.started)
    return Job(
        id=text_id(id),
        tenant=tenant,
        queue=queue,
        task=task,
        priority=head[PRIORITY],
        state=State.RUNNING,
        attempt=1,
        worker=run.worker or None,
        node=run.node or None,
        created_at=from_micros(head[CREATED]),
        updated_at=started,
        started_at=started,
        size=size,
    )


def _job(  # noqa: PLR0917 - the parts of a job, in the order they lie
    id: bytes,
    head: tuple[Any, ...],
    route: bytes,
    packed: bytes,
    run: Run,
    errors: list[Error],
    progress: Progress | None,
    size: int,
) -> Job:
    _, state, reason, _, attempt, crashes, losses, updated, due, _, _, priority, _, _, created, _ = head
    tenant, queue, task, _ = parts(route)
    asked = terms.unpack(packed)
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
        pid=run.pid or None,
        progress=progress,
        code=run.code or None,
        errors=errors,
        error=errors[-1] if errors else None,
        created_at=from_micros(created),
        updated_at=from_micros(updated),
        run_at=from_micros(due) if due else None,
        started_at=started_at,
        finished_at=from_micros(run.finished) if run.finished else None,
        assigned=assigned or None,
        deadline=deadline,
        size=size,
    )


@lru_cache(maxsize=4096)
def parts(route: bytes) -> tuple[str, str, str, str]:
    """Tenant, queue, task and group of a job."""
    lane, _, group = route.decode().partition(";")
    tenant, queue, task = lane.split(",")
    return tenant, queue, task, group


def _run(data: bytes) -> Run:
    worker, node, tier = data[TOLD.size :].decode().split("\0")
    token, pid, started, finished, code = TOLD.unpack_from(data)
    return Run(token, pid, started, finished, code, worker, node, tier)
