"""How a job lies in Redis: bytes to `Record` and back. The counterpart of `lua/keys.lua`.

The numbers of states and reasons and the two structs are the contract with the scripts: what is kept in
a server outlives this program, so numbers are only ever added.
"""

import struct
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

import msgspec

from windlass.model.job import Error, Job, Progress, Reason, State
from windlass.model.lifecycle import GONE, Move, Step
from windlass.model.names import raw_id, text_id
from windlass.store import Done, Draft, Record, Touch, terms
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
)
STATE_NUMBERS = {state: number for number, state in enumerate(STATES)} | {GONE: len(STATES)}
REASON_NUMBERS = {reason: number for number, reason in enumerate(REASONS)}

HEAD = struct.Struct(">BBBBIBBiQQQQQdHI")
ANSWER = struct.Struct(">16sI" + HEAD.format[1:])
ID_AND_SIZE = ANSWER.size - HEAD.size
FLAGS = ID_AND_SIZE + 3
ERRORS, PROGRESS = 4, 8
RUN = struct.Struct(">8sIQQH")
NEW = struct.Struct(">iBdqqqIHI")
DONE = struct.Struct(">16s8sHq")
MOVE = struct.Struct(">BIBBBBIBBqHdBq")

KEEP_RESULT_FLAGS = {"keep": 0, "once": 16, "none": 32}
FOR_EVER = -1.0
NEVER = -1

_pack = msgspec.msgpack.Encoder().encode
_errors = msgspec.msgpack.Decoder(Error)
_progress = msgspec.msgpack.Decoder(Progress)


def add_arguments(drafts: Sequence[Draft]) -> list[bytes | str | int]:
    """What `add.lua` is told."""
    lines: dict[str, int] = {}
    counts: list[int] = []
    jobs: list[bytes | str | int] = []
    for draft in drafts:
        new, packed = draft.new, terms.pack(draft.new)
        line, route = _names(draft.tenant, new.queue, new.task)
        number = lines.setdefault(line, len(lines))
        if number == len(counts):
            counts.append(0)
        meta = NEW.pack(
            new.priority,
            KEEP_RESULT_FLAGS[new.keep_result],
            FOR_EVER if new.keep_success is None else new.keep_success,
            0 if new.run_at is None else to_micros(new.run_at),
            0 if new.delay is None else span(new.delay),
            NEVER if new.expires is None else span(new.expires),
            len(packed),
            number,
            counts[number],
        )
        counts[number] += 1
        jobs.append(raw_id(draft.id) + meta)
        jobs.append(b"%b\0%b%b" % (route, packed, bytes(new.payload)))
    head: list[bytes | str | int] = [len(lines)]
    for name, number in lines.items():
        head += (name, counts[number])
    return head + jobs


@lru_cache(maxsize=4096)
def _names(tenant: str, queue: str, task: str) -> tuple[str, bytes]:
    """The line and the route of a job."""
    return f"{tenant},{queue}", f"{tenant},{queue},{task}".encode()


def touch_arguments(touches: Sequence[Touch]) -> Iterator[bytes | str | int]:
    for touch in touches:
        yield raw_id(touch.id)
        yield touch.token
        yield "" if touch.pid is None else touch.pid
        yield b"" if touch.progress is None else _pack(touch.progress)


def succeed_arguments(dones: Sequence[Done]) -> Iterator[bytes | str | int]:
    for done in dones:
        finished = 0 if done.finished_at is None else to_micros(done.finished_at)
        packed = DONE.pack(raw_id(done.id), done.token.ljust(8), done.code, finished)
        yield packed if done.result is None else b"%b%b\0%b" % (packed, done.content_type.encode(), done.result)


def apply_arguments(moves: Sequence[Move]) -> Iterator[bytes | str | int]:
    for move in moves:
        yield raw_id(move.id)
        yield move.fence or b""
        yield b"" if move.error is None else _pack(move.error)
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
        )


def records(reply: Sequence[Any], *, whole: bool) -> list[Record]:
    """The jobs of a reply, each with its errors and progress behind it if its flags say so."""
    found: list[Record] = []
    entries = iter(reply)
    for value in entries:
        flags = value[FLAGS]
        errors = [_errors.decode(entry) for entry in next(entries)] if flags & ERRORS else []
        progress = _progress.decode(next(entries)) if flags & PROGRESS else None
        found.append(record(value, errors, progress, whole=whole))
    return found


def record(value: bytes, errors: list[Error], progress: Progress | None, *, whole: bool) -> Record:
    """A job from its bytes: id, size, then as `keys.lua` says."""
    (
        id,
        size,
        _version,
        state,
        reason,
        _flags,
        attempt,
        crashes,
        losses,
        priority,
        _seq,
        _pos,
        created,
        updated,
        due,
        _keep,
        run_size,
        terms_size,
    ) = ANSWER.unpack_from(value)
    zero = value.index(0, ANSWER.size)
    run_from = zero + 1 + terms_size
    end = run_from + run_size
    tenant, queue, task = _parts(value[ANSWER.size : zero])
    asked = terms.unpack(value[zero + 1 : run_from])
    token, pid, started, finished, code, worker, node = _run(value[run_from:end])
    running = STATES[state] is State.RUNNING
    started_at = from_micros(started) if started else None
    deadline = None
    if running and started_at and "timeout" in asked:
        deadline = started_at + timedelta(seconds=asked["timeout"])
    job = Job(
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
        worker=worker or None,
        node=node or None,
        pid=pid or None,
        progress=progress,
        code=code or None,
        errors=errors,
        error=errors[-1] if errors else None,
        created_at=from_micros(created),
        updated_at=from_micros(updated),
        run_at=from_micros(due) if due else None,
        started_at=started_at,
        finished_at=from_micros(finished) if finished else None,
        deadline=deadline,
        size=(len(value) if whole else size + ID_AND_SIZE) - end,
    )
    return Record(job, token if running else None, value[end:] if whole else None)


@lru_cache(maxsize=4096)
def _parts(route: bytes) -> tuple[str, str, str]:
    tenant, queue, task = route.decode().split(",")
    return tenant, queue, task


@lru_cache(maxsize=1024)
def _run(data: bytes) -> tuple[bytes, int, int, int, int, str, str]:
    if not data:
        return b"", 0, 0, 0, 0, "", ""
    worker, node, _ = data[RUN.size :].decode().split("\0")
    return (*RUN.unpack_from(data), worker, node)
