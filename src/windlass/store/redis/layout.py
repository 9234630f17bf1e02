"""How a job lies in Redis, and what scripts are told. The counterpart of `lua/keys.lua`; `answers` reads what they say.

The numbers of states and reasons and the two structs are the contract with the scripts: what is kept in
a server outlives this program, so numbers are only ever added.
"""

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import attrgetter

import msgspec

from windlass.model.job import NewJob, Reason, State, Stream
from windlass.model.lifecycle import GONE, Lapse, Move, Step, Verdict
from windlass.model.names import DEFAULT_TENANT, raw_id, raw_key
from windlass.store import Done, Draft, Ripe, Touch, places, terms
from windlass.store.alike import alike
from windlass.store.mailbox import Reader
from windlass.store.micros import span, to_micros

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
)
BLOCKED, RUNNING = STATES.index(State.BLOCKED), STATES.index(State.RUNNING)
STATE_NUMBERS = {state: number for number, state in enumerate(STATES)} | {GONE: len(STATES)}
REASON_NUMBERS = {reason: number for number, reason in enumerate(REASONS)}

HEAD = struct.Struct(">BBBBIBBQQHIiQQQd")
# Places in a head; attempt, crashes and losses are neighbours.
STATE, FLAGS, ATTEMPT, UPDATED, RUN_SIZE, TERMS_SIZE = 1, 3, 4, 7, 9, 10
OWN = struct.Struct(">16sI")
TOLD = struct.Struct(">8sIQQH")
LIVE = struct.Struct(">8sIQQBBIBBQQHQd")
ENDED = struct.Struct(">IQQH")
ERRORS, PROGRESS, FOLLOWED, EXTRAS = 4, 8, 64, 128  # flags
NEW = struct.Struct(">iBdqqqIH")
RANK = struct.Struct(">I")
DONE = struct.Struct(">8sHq")
OWNER_CLOCK = struct.Struct(">Iq")
MOVE = struct.Struct(">BIBBBBIBBqHdBqqB")
OUTCOMES = (None, *Verdict)
"""As they are numbered in a move."""
LAPSES: dict[Lapse | None, int] = {None: 0, "lease": 1, "owner": 2}
HOW = {Step.RERUN: 1, Step.ATTEND: 2}

CHUNK = struct.Struct(">QQIQB")
MESSAGE = struct.Struct(">QQ")
STREAMS: tuple[Stream, ...] = ("stdout", "stderr", "log")

KEEP_RESULT_FLAGS = {"keep": 0, "once": 16, "none": 32}
TIMED = 48
"""In the place of these flags: the result goes before its record does; how it is kept is said in a `HOLD`."""
HOLD = struct.Struct(">?d")
RESULT_ONLY = 128
"""Added to the state of a job that was swept: only its result was dropped."""
FOR_EVER = -1.0
NEVER = -1
AS_IT_IS = -1
AGES_AGO = -(10**17)
"""In the place of a due time: the job waits for others."""

_pack = msgspec.msgpack.Encoder().encode


def add_arguments(drafts: Sequence[Draft]) -> list[bytes | str | int]:
    """What `add.lua` is told: of jobs with groups that were made under the same rules."""
    lines: dict[str, int] = {}
    counts: list[int] = []
    jobs: list[bytes | str | int] = []
    owner_clocks: list[bytes] = []  # beside the jobs, for few have one
    so_far = 0
    for some in alike(drafts):
        first, new = some[0], some[0].new
        line, route = _names(first.tenant, new.queue, new.task, first.group)
        number = lines.setdefault(line, len(lines))
        if number == len(counts):
            counts.append(0)
        packed = terms.pack(new)
        meta, before, extras = _meta(new, len(packed), number), b"%b\0%b" % (route, packed), _extras(first)
        for rank, draft in enumerate(some, counts[number]):
            jobs += (raw_id(draft.id) + meta + RANK.pack(rank), before + bytes(draft.new.payload), *extras)
        counts[number] += len(some)
        if new.unattended is not None:
            length = span(new.unattended)
            owner_clocks += (OWNER_CLOCK.pack(so_far + place, length) for place in range(1, len(some) + 1))
        so_far += len(some)
    head: list[bytes | str | int] = [drafts[0].grouping if drafts else 0, b"".join(owner_clocks), len(lines)]
    for name, number in lines.items():
        head += (name, counts[number])
    return head + jobs


def _meta(new: NewJob, terms_size: int, line: int) -> bytes:
    """What a script must know of a job, but for its place among the batch's jobs of its line."""
    return NEW.pack(
        new.priority,
        _flags(new),
        FOR_EVER if new.keep_success is None else new.keep_success,
        AGES_AGO if new.after else 0 if new.run_at is None else to_micros(new.run_at),
        0 if new.delay is None else span(new.delay),
        NEVER if new.expires is None else span(new.expires),
        terms_size,
        line,
    )


def _flags(new: NewJob) -> int:
    kept = KEEP_RESULT_FLAGS[new.keep_result] if _hold(new) is None else TIMED
    return kept + (EXTRAS if new.files else 0) + (FOLLOWED if new.then else 0)


def _extras(draft: Draft) -> list[bytes]:
    """What comes with a job beside its bytes."""
    new = draft.new
    found = []
    if new.files:
        found.append(_pack(new.files))
    if new.then is not None:
        found.append(terms.pack_then(draft.tenant, new.then))
    if (hold := _hold(new)) is not None:
        found.append(HOLD.pack(new.keep_result == "once", hold))
    if new.after:
        found.append(ids(new.after))
    return found


def _hold(new: NewJob) -> float | None:
    return terms.held_for(new.keep_result, new.keep_result_for, new.keep_success)


_waits_or_brings = attrgetter("delay", "run_at", "expires", "unattended", "after", "files", "then", "keep_result_for")
_neither = _waits_or_brings(NewJob(task="x"))


def is_bare(draft: Draft) -> bool:
    """Whether a job waits for nothing, brings nothing along and has no group (see `add_one.lua`)."""
    return bool(_waits_or_brings(draft.new) == _neither) and not draft.group


def ids(some: Sequence[str]) -> bytes:
    """Several ids of one tenant, one after the other."""
    return b"".join(raw_key(id, DEFAULT_TENANT) for id in some)


@lru_cache(maxsize=4096)
def _names(tenant: str, queue: str, task: str, group: str) -> tuple[str, bytes]:
    """The line and the route of a job."""
    lane = f"{tenant},{queue},{task}"
    return f"{tenant},{queue}", (f"{lane};{group}" if group else lane).encode()


def touch_arguments(touches: Sequence[Touch]) -> Iterator[bytes | str | int]:
    for touch in touches:
        yield raw_key(touch.id, touch.tenant)
        yield touch.token
        yield "" if touch.pid is None else touch.pid
        yield b"" if touch.progress is None else _pack(touch.progress)
        yield places.added(touch.ran)
        yield len(touch.output)
        for chunk in touch.output:
            yield bytes((STREAMS.index(chunk.stream),)) + chunk.data


def collect_arguments(readers: Sequence[Reader]) -> Iterator[bytes | str | int]:
    for reader in readers:
        yield raw_key(reader.id, reader.tenant)
        yield reader.token
        yield reader.after


def succeed_arguments(dones: Sequence[Done]) -> Iterator[bytes | str | int]:
    for done in dones:
        finished = 0 if done.finished_at is None else to_micros(done.finished_at)
        key = raw_key(done.id, done.tenant)
        about = DONE.pack(done.token.ljust(8), done.code, finished)
        packed = b"%c%b%b%b\0" % (len(key), key, about, places.added(done.ran).encode())
        yield packed if done.result is None else b"%b%b\0%b" % (packed, done.content_type.encode(), done.result)


def apply_arguments(moves: Sequence[Move]) -> Iterator[bytes | str | int]:
    for move in moves:
        yield raw_key(move.id, move.tenant)
        yield ids(move.waits_before) if move.source is State.BLOCKED else move.fence or b""
        yield ids(move.waits_for) if move.target is State.BLOCKED else _pack(move.error) if move.error else b""
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
            FOR_EVER if move.keep is None else move.keep,
            HOW.get(move.step, 0),
            0 if move.finished_at is None else to_micros(move.finished_at),
            AS_IT_IS if move.unattended is None else span(move.unattended),
            OUTCOMES.index(move.outcome),
        ) + _tiers(move)
        yield places.added(move.ran)


def _tiers(move: Move) -> bytes:
    """The name of a running job's tier, and the seconds and name of the shorter one that it gets."""
    if move.assigned is None:
        return (move.assigned_before or "").encode()
    name, seconds = move.assigned
    return f"{move.assigned_before or ''}\0{seconds!r} {name}".encode()


def ripe_arguments(done: Sequence[Ripe]) -> Iterator[bytes | str | int]:
    for one in done:
        yield raw_id(one.id)
        yield one.tenant
        yield one.mark
        yield len(one.children)
        yield from map(raw_id, one.children)


@lru_cache(maxsize=4096)
def parts(route: bytes) -> tuple[str, str, str, str]:
    """Tenant, queue, task and group of a job."""
    lane, _, group = route.decode().partition(";")
    tenant, queue, task = lane.split(",")
    return tenant, queue, task, group
